//! Checking a whole log: every byte that is read by anything is read here, and compared with what implies it. At once
//! ([`EntryLog::verify_extents`]) or in steps ([`LogCheck`]), by the same code.
//!
//! # Limits
//! One run's index (1.75 MiB at most), 256 KiB of bodies or the longest body, and the footer are in memory. A step ends
//! with the entry that reaches its bound.

use super::format::{BLOCK, Extent, IndexRecord, RECORD_SIZE, TRAILER_SIZE, Trailer, record_crc};
use super::read::{EntryLog, read_exact, read_footer};
use crate::codec::crc32c;
use crate::{Damaged, DiskError, Generation, OpenLogError, ReadError};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, OpenMode, is_shortage};
use bindery_types::{EntryId, LedgerId};
use std::path::Path;
use std::sync::Arc;

/// Damages that are listed one by one; the others are counted.
const DAMAGES_MAX: usize = 100;
/// Bodies read at once.
const WINDOW_BYTES: usize = 256 << 10;

/// The findings of a check of a whole log.
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

/// Which structure of a log is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogPart {
    /// Header, footer or trailer: the log does not open any more, and with it the directory.
    Frame,
    /// The zeros between footer and trailer, which nothing reads.
    Padding,
    /// An index record: its entry cannot be found, nor ruled out.
    Index,
    /// The body of an entry.
    Entry,
}

/// One thing that is wrong in a log.
#[derive(Debug)]
pub struct LogDamage {
    /// The structure.
    pub part: LogPart,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// The damage, in words.
    pub what: String,
    /// The expected value, and the one found: checksums, lengths, offsets.
    pub expected_found: Option<(String, String)>,
    /// The entries that cannot be read: ledger, first, last.
    pub affected: Option<(LedgerId, EntryId, EntryId)>,
    /// The age of these copies.
    pub generation: Option<Generation>,
    /// Set when the disk refused to read, so that nothing is known about the bytes.
    pub unreadable: Option<DiskError>,
}

/// A report from a check under way.
#[derive(Debug)]
pub enum LogEvent {
    /// Something is wrong.
    Damage(LogDamage),
    /// So many more bytes were checked.
    Bytes(u64),
}

/// The sums of everything that verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogTotals {
    /// Entries that verified.
    pub entries: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
}

/// How far the check of one log has come: the frame first, then run after run.
#[derive(Default)]
pub struct LogCheck {
    totals: LogTotals,
    is_frame_done: bool,
    /// The next run, or the one under way, among the extents of this step.
    extent: usize,
    run: Option<Run>,
    window: Vec<u8>,
    /// Where `window` begins in the file.
    window_at: u64,
}

/// A run under way.
struct Run {
    /// Its index records.
    records: Vec<u8>,
    /// The next record.
    place: u32,
    before: Option<EntryId>,
    /// Where the next body must begin; unknown behind a bad record.
    next_at: Option<u64>,
    is_sound: bool,
    max_lac: Option<EntryId>,
}

/// A step of a check.
struct Check<'a> {
    log: &'a EntryLog,
    state: &'a mut LogCheck,
    visit: &'a mut dyn FnMut(LogEvent),
    /// Bytes of the file that this step checked.
    spent: u64,
}

impl LogDamage {
    fn new(part: LogPart, offset: u64, what: impl Into<String>) -> LogDamage {
        let what = what.into();
        LogDamage {
            part,
            offset,
            what,
            expected_found: None,
            affected: None,
            generation: None,
            unreadable: None,
        }
    }

    fn from_read(part: LogPart, offset: u64, error: ReadError) -> LogDamage {
        match error {
            ReadError::Damaged(damaged) => LogDamage::new(part, damaged.offset, damaged.what),
            ReadError::Disk(error) => {
                let what = format!("the disk refuses to read: {}", error.source);
                LogDamage { unreadable: Some(error), ..LogDamage::new(part, offset, what) }
            }
        }
    }

    /// A shortage of the process or the machine kept the bytes from being read: nothing is known about them.
    pub fn is_shortage(&self) -> bool {
        self.unreadable.as_ref().is_some_and(|error| is_shortage(&error.source))
    }

    fn expected(mut self, expected: impl Into<String>, found: impl Into<String>) -> LogDamage {
        self.expected_found = Some((expected.into(), found.into()));
        self
    }

    fn affects(mut self, extent: &Extent, first: EntryId, last: EntryId) -> LogDamage {
        self.affected = Some((extent.ledger, first, last));
        self.generation = Some(extent.generation);
        self
    }
}

fn crc(value: u32) -> String {
    format!("CRC32C {value:08x}")
}

impl EntryLog {
    /// Reads and checks everything. Damage is reported, not returned as an error, so that one bad entry does not
    /// hide the next.
    ///
    /// # Errors
    /// Only when the disk refuses to read.
    pub fn verify(&self) -> Result<VerifyReport, ReadError> {
        let mut report = VerifyReport::default();
        let mut refused = None;
        let totals = match read_footer(&*self.file, &self.path, &self.trailer) {
            Err(error) => {
                self.note(&mut report, &mut refused, LogDamage::from_read(LogPart::Frame, 0, error));
                LogTotals::default()
            }
            Ok(extents) => self.verify_extents(&extents, &mut |event| {
                if let LogEvent::Damage(damage) = event {
                    self.note(&mut report, &mut refused, damage);
                }
            }),
        };
        (report.entries, report.body_bytes) = (totals.entries, totals.body_bytes);
        refused.map_or(Ok(report), |error: DiskError| Err(error.into()))
    }

    fn note(&self, report: &mut VerifyReport, refused: &mut Option<DiskError>, damage: LogDamage) {
        let LogDamage { offset, mut what, expected_found, unreadable, .. } = damage;
        if unreadable.is_some() {
            *refused = refused.take().or(unreadable);
            return;
        }
        report.damage_count += 1;
        if report.damages.len() < DAMAGES_MAX {
            if let Some((expected, found)) = expected_found {
                what = format!("{what}: expected {expected}, found {found}");
            }
            report.damages.push(Damaged::new(&self.path, offset, what));
        }
    }

    /// Checks header, padding, trailer and all runs; `extents` are those that opening the log gave.
    pub fn verify_extents(&self, extents: &[Extent], visit: &mut dyn FnMut(LogEvent)) -> LogTotals {
        let mut check = LogCheck::default();
        let is_done = check.step(self, extents, u64::MAX, visit);
        assert!(is_done, "no log is that long");
        check.totals
    }

    /// The extents of a log that does not open, as far as trailer and footer still verify: what is lost with it.
    pub fn salvage_extents(disk: &Arc<dyn Disk>, path: &Path) -> Result<Vec<Extent>, OpenLogError> {
        let disk_error = |e| DiskError::new(path, "open entry log", e);
        let file = disk.open(path, OpenMode::Read).map_err(disk_error)?;
        let len = file.len().map_err(disk_error)?;
        let Some(trailer_offset) = len.checked_sub(TRAILER_SIZE as u64) else {
            return Err(Damaged::new(path, 0, "the file is shorter than a trailer").into());
        };
        let mut bytes = [0; TRAILER_SIZE];
        read_exact(&*file, path, &mut bytes, trailer_offset, "the trailer")?;
        let trailer = Trailer::decode(&bytes, len, path)?;
        Ok(read_footer(&*file, path, &trailer)?)
    }
}

impl LogCheck {
    /// Checks on, in the log of the steps before, until `bytes_max` bytes were read or these extents are done: true.
    /// The next step goes on with those that follow in the log, if there are any.
    ///
    /// # Panics
    /// When an extent is of another log.
    pub fn step(
        &mut self,
        log: &EntryLog,
        extents: &[Extent],
        bytes_max: u64,
        visit: &mut dyn FnMut(LogEvent),
    ) -> bool {
        let mut check = Check { log, state: self, visit, spent: 0 };
        if !check.state.is_frame_done {
            check.frame();
            check.state.is_frame_done = true;
        }
        while let Some(extent) = extents.get(check.state.extent) {
            assert_eq!(extent.log_id, log.log_id(), "an extent is checked in its own log");
            if check.spent >= bytes_max {
                return false;
            }
            if check.run(extent, bytes_max) {
                check.state.extent += 1;
            }
        }
        check.state.extent = 0;
        true
    }

    /// The sums of everything that verified so far.
    pub fn totals(&self) -> LogTotals {
        self.totals
    }
}

impl Check<'_> {
    fn look(&mut self, bytes: u64) {
        self.spent += bytes;
        (self.visit)(LogEvent::Bytes(bytes));
    }

    fn damage(&mut self, damage: LogDamage) {
        (self.visit)(LogEvent::Damage(damage));
    }

    fn read(&self, bytes: &mut [u8], offset: u64, what: &str) -> Result<(), ReadError> {
        read_exact(&*self.log.file, &self.log.path, bytes, offset, what)
    }

    /// Header, trailer, and the zeros before it. They were good when the log was opened.
    fn frame(&mut self) {
        let trailer = self.log.trailer;
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        match self.read(&mut block, 0, "the header") {
            Err(error) => self.damage(LogDamage::from_read(LogPart::Frame, 0, error)),
            Ok(()) if block != trailer.header.encode() => {
                self.damage(LogDamage::new(LogPart::Frame, 0, "the header has changed"));
            }
            Ok(()) => {}
        }
        let footer_end = trailer.footer_offset + trailer.footer_len;
        let trailer_offset = trailer.file_len - TRAILER_SIZE as u64;
        let padding = usize::try_from(trailer_offset - footer_end).expect("padding is shorter than a block");
        debug_assert!((padding as u64) < BLOCK, "file_len was checked when the file was opened");
        match self.read(&mut block[..padding], footer_end, "the padding") {
            Err(error) => self.damage(LogDamage::from_read(LogPart::Padding, footer_end, error)),
            Ok(()) => {
                if let Some(at) = block[..padding].iter().position(|b| *b != 0) {
                    let what = "the padding is not zero";
                    let damage = LogDamage::new(LogPart::Padding, footer_end + at as u64, what);
                    self.damage(damage.expected("00", format!("{:02x}", block[at])));
                }
            }
        }
        match self.read(&mut block[..TRAILER_SIZE], trailer_offset, "the trailer") {
            Err(error) => self.damage(LogDamage::from_read(LogPart::Frame, trailer_offset, error)),
            Ok(()) if block[..TRAILER_SIZE] != trailer.encode() => {
                self.damage(LogDamage::new(LogPart::Frame, trailer_offset, "the trailer has changed"));
            }
            Ok(()) => {}
        }
        self.look(trailer.file_len - trailer.footer_offset + BLOCK);
    }

    /// Checks a run, or goes on with it; true when it is done.
    fn run(&mut self, extent: &Extent, bytes_max: u64) -> bool {
        let whole = |damage: LogDamage| damage.affects(extent, extent.first, extent.last);
        let mut run = match self.state.run.take() {
            Some(run) => run,
            None => {
                let mut records = vec![0; usize::try_from(extent.records_len()).expect("a run is bounded")];
                let read = self.read(&mut records, extent.records_offset, "the index records");
                self.look(extent.records_len());
                if let Err(error) = read {
                    self.damage(whole(LogDamage::from_read(LogPart::Index, extent.records_offset, error)));
                    self.look(extent.body_bytes());
                    return true;
                }
                let next_at = Some(extent.bodies_offset);
                Run { records, place: 0, before: None, next_at, is_sound: true, max_lac: None }
            }
        };
        while run.place < extent.count {
            if self.spent >= bytes_max {
                self.state.run = Some(run);
                return false;
            }
            self.record(extent, &mut run);
            run.place += 1;
        }
        if run.next_at.is_some_and(|next| next != extent.records_offset) {
            let damage =
                LogDamage::new(LogPart::Index, extent.records_offset, "the bodies of a run do not fill it");
            let expected = format!("an end at {}", extent.records_offset);
            self.damage(whole(damage.expected(expected, format!("at {}", run.next_at.unwrap_or_default()))));
            run.is_sound = false;
        }
        let records_crc = crc32c(&[&run.records]);
        if run.is_sound && (records_crc != extent.records_crc || run.max_lac != extent.max_lac) {
            let what = format!("the extent of ledger {} contradicts its run", extent.ledger);
            let line =
                |records_crc, lac| format!("records {}, LAC {}", crc(records_crc), EntryId::to_wire(lac));
            let damage = LogDamage::new(LogPart::Index, extent.records_offset, what)
                .expected(line(extent.records_crc, extent.max_lac), line(records_crc, run.max_lac));
            self.damage(whole(damage));
        }
        true
    }

    /// Checks the next record of a run, and its body.
    fn record(&mut self, extent: &Extent, run: &mut Run) {
        let whole = |damage: LogDamage| damage.affects(extent, extent.first, extent.last);
        let place = run.place;
        let at = extent.records_offset + u64::from(place) * RECORD_SIZE as u64;
        let record_bytes = &run.records[place as usize * RECORD_SIZE..][..RECORD_SIZE];
        let record = match IndexRecord::decode(record_bytes, extent, place) {
            Ok(record) => record,
            Err(what) => {
                let (expected, found) = record_crcs(record_bytes, extent, place);
                let (first, last) = taken_by(extent, place);
                let damage = LogDamage::new(LogPart::Index, at, what).expected(expected, found);
                self.damage(damage.affects(extent, first, last));
                (run.next_at, run.is_sound) = (None, false);
                return;
            }
        };
        if run.before.is_some_and(|before| before >= record.entry) {
            self.damage(whole(LogDamage::new(LogPart::Index, at, "the records of a run do not ascend")));
            run.is_sound = false;
        }
        run.before = Some(record.entry);
        let location = record.location;
        if run.next_at.is_some_and(|next| next != location.offset) {
            let expected = format!("offset {}", run.next_at.unwrap_or_default());
            let damage = LogDamage::new(LogPart::Index, at, "there is a gap between two bodies");
            self.damage(whole(damage.expected(expected, format!("offset {}", location.offset))));
            run.is_sound = false;
        }
        run.next_at = Some(location.offset + u64::from(location.length));
        match self.body(extent, &record) {
            Ok(lac) => run.max_lac = run.max_lac.max(lac),
            Err(damage) => {
                self.damage(damage.affects(extent, record.entry, record.entry));
                run.is_sound = false;
            }
        }
        self.look(u64::from(location.length));
    }

    /// Checks one body; gives the LAC (last add confirmed) it carries.
    fn body(&mut self, extent: &Extent, record: &IndexRecord) -> Result<Option<EntryId>, Box<LogDamage>> {
        let (location, entry) = (record.location, record.entry);
        let body = self.bytes(extent, location.offset, location.length as usize);
        let body =
            body.map_err(|error| Box::new(LogDamage::from_read(LogPart::Entry, location.offset, error)))?;
        let found = crc32c(&[body]);
        if found != location.crc32c {
            let what = format!("the checksum of entry {}:{entry} does not match", extent.ledger);
            let damage = LogDamage::new(LogPart::Entry, location.offset, what);
            return Err(Box::new(damage.expected(crc(location.crc32c), crc(found))));
        }
        let id = |at: usize| body[at..at + 8].try_into().map_or(-1, i64::from_be_bytes);
        if (id(0), id(8)) != (extent.ledger.get(), entry.get()) {
            let what = format!("the body found for entry {}:{entry} names another entry", extent.ledger);
            let damage = LogDamage::new(LogPart::Entry, location.offset, what);
            let expected = format!("{}:{entry}", extent.ledger);
            return Err(Box::new(damage.expected(expected, format!("{}:{}", id(0), id(8)))));
        }
        let lac = EntryId::new(id(16));
        self.state.totals.entries += 1;
        self.state.totals.body_bytes += u64::from(location.length);
        Ok(lac)
    }

    /// `length` bytes at `offset` of a run's bodies, through the window.
    fn bytes(&mut self, extent: &Extent, offset: u64, length: usize) -> Result<&[u8], ReadError> {
        let held = self.state.window_at..self.state.window_at + self.state.window.len() as u64;
        if !(held.contains(&offset) && offset + length as u64 <= held.end) {
            let behind = usize::try_from(extent.records_offset - offset).unwrap_or(usize::MAX);
            let mut window = std::mem::take(&mut self.state.window);
            window.resize(length.max(WINDOW_BYTES).min(behind), 0);
            let mut read = self.read(&mut window, offset, "an entry");
            if read.is_err() {
                // A bad sector behind this body is not this body's.
                window.truncate(length);
                read = self.read(&mut window, offset, "an entry");
            }
            if read.is_err() {
                window.clear();
            }
            (self.state.window, self.state.window_at) = (window, offset);
            read?;
        }
        Ok(&self.state.window[(offset - self.state.window_at) as usize..][..length])
    }
}

/// The checksum that the bytes of a record call for, and the one in it.
fn record_crcs(bytes: &[u8], extent: &Extent, place: u32) -> (String, String) {
    let (head, stored) = bytes.split_at(RECORD_SIZE - 4);
    let stored = stored.try_into().map_or(0, u32::from_le_bytes);
    (crc(record_crc(extent.log_id, extent.ledger, place, head)), crc(stored))
}

/// Which entries the bad record at `place` takes: its own in a regular run. Any in a run that is searched, because a
/// search that meets it can go neither way.
fn taken_by(extent: &Extent, place: u32) -> (EntryId, EntryId) {
    let own = extent.regular_ids().and_then(|mut ids| ids.nth(place as usize));
    own.map_or((extent.first, extent.last), |entry| (entry, entry))
}
