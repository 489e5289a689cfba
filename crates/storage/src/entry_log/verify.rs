//! Checking a whole log: every byte that is read by anything is read here, and compared with what implies it.

use super::format::{BLOCK, Extent, TRAILER_SIZE};
use super::read::{EntryLog, read_exact, read_footer};
use crate::{Damaged, ReadError};
use bindery_io::BLOCK_SIZE_BYTES;
use bindery_types::EntryId;

/// Damages that are listed one by one; the others are counted.
const DAMAGES_MAX: usize = 100;

/// What a check of a whole log found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Entries that verified.
    pub entries: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// The first damages, at most 100.
    pub damages: Vec<Damaged>,
    /// Number of all damages.
    pub damage_count: u64,
}

impl VerifyReport {
    fn note(&mut self, result: Result<(), ReadError>) -> Result<(), ReadError> {
        match result {
            Ok(()) => Ok(()),
            Err(ReadError::Damaged(damaged)) => {
                self.damage_count += 1;
                if self.damages.len() < DAMAGES_MAX {
                    self.damages.push(damaged);
                }
                Ok(())
            }
            Err(error @ ReadError::Disk(_)) => Err(error),
        }
    }
}

impl EntryLog {
    /// Reads and checks everything. Damage is reported, not returned as an error, so that one bad entry does not
    /// hide the next.
    ///
    /// # Errors
    /// Only when the disk refuses to read.
    pub fn verify(&self) -> Result<VerifyReport, ReadError> {
        let mut report = VerifyReport::default();
        let frame = self.verify_frame();
        report.note(frame)?;
        match read_footer(&*self.file, &self.path, &self.trailer) {
            Err(error) => report.note(Err(error))?,
            Ok((extents, _)) => {
                for extent in &extents {
                    let run = self.verify_run(extent, &mut report);
                    report.note(run)?;
                }
            }
        }
        Ok(report)
    }

    /// Header, and the zeros between footer and trailer.
    fn verify_frame(&self) -> Result<(), ReadError> {
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        read_exact(&*self.file, &self.path, &mut block, 0, "the header")?;
        if block != self.trailer.header.encode() {
            return Err(Damaged::new(&self.path, 0, "the header is not the one that was written").into());
        }
        let footer_end = self.trailer.footer_offset + self.trailer.footer_len;
        let trailer_offset = self.trailer.file_len - TRAILER_SIZE as u64;
        let padding = usize::try_from(trailer_offset - footer_end).expect("padding is shorter than a block");
        debug_assert!((padding as u64) < BLOCK, "file_len was checked when the file was opened");
        read_exact(&*self.file, &self.path, &mut block[..padding], footer_end, "the padding")?;
        if block[..padding].iter().any(|b| *b != 0) {
            return Err(Damaged::new(&self.path, footer_end, "the padding is not zero").into());
        }
        let trailer = &mut block[..TRAILER_SIZE];
        read_exact(&*self.file, &self.path, trailer, trailer_offset, "the trailer")?;
        if *trailer != self.trailer.encode() {
            return Err(Damaged::new(&self.path, trailer_offset, "the trailer has changed").into());
        }
        Ok(())
    }

    fn verify_run(&self, extent: &Extent, report: &mut VerifyReport) -> Result<(), ReadError> {
        let records = self.entries(extent)?;
        let mut offset = extent.bodies_offset;
        let mut max_lac: Option<EntryId> = None;
        let mut body = Vec::new();
        let mut complete = true;
        for record in &records {
            let location = record.location;
            if location.offset != offset {
                return Err(Damaged::new(&self.path, offset, "there is a gap between two bodies").into());
            }
            offset += u64::from(location.length);
            body.resize(location.length as usize, 0);
            let read = self.read_into(&location, extent.ledger, record.entry, &mut body);
            if read.is_ok() {
                report.entries += 1;
                report.body_bytes += u64::from(location.length);
                let lac = body[16..24].try_into().map(i64::from_be_bytes).ok().and_then(EntryId::new);
                max_lac = max_lac.max(lac);
            } else {
                complete = false;
            }
            report.note(read)?;
        }
        let ids_fit = records.first().map(|r| r.entry) == Some(extent.first)
            && records.last().map(|r| r.entry) == Some(extent.last);
        if offset != extent.records_offset || !ids_fit || (complete && max_lac != extent.max_lac) {
            let what = format!("the extent of ledger {} contradicts its run", extent.ledger);
            return Err(Damaged::new(&self.path, extent.records_offset, what).into());
        }
        Ok(())
    }
}
