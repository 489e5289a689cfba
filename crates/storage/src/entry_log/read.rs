//! Reading an entry log. Nothing is cached here; the kernel's page cache is (files are opened for buffered reads).

use super::format::{
    BLOCK, EntryLocation, Extent, Header, IndexRecord, Place, RECORD_SIZE, TRAILER_SIZE, Trailer,
    decode_footer, file_name,
};
use crate::codec::crc32c;
use crate::{Damaged, DiskError, Generation, LogId, OpenLogError, ReadError};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode};
use bindery_types::{EntryId, LedgerId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Records fetched per step of a search: one read covers the neighbourhood of a good guess.
const WINDOW_RECORDS: u32 = 16;

/// A sealed log, open for reading. Shared by any number of readers.
pub struct EntryLog {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) path: PathBuf,
    pub(super) trailer: Trailer,
    entries: u64,
    extents: u64,
}

/// What `bindery inspect entry-log` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDescription {
    /// The file.
    pub path: PathBuf,
    /// Its format version.
    pub format_version: u32,
    /// Its id.
    pub log_id: LogId,
    /// Its generation.
    pub generation: Generation,
    /// Length of the file in bytes.
    pub size: u64,
    /// Number of entries.
    pub entries: u64,
    /// Number of runs.
    pub extents: u64,
    /// Bytes of the footer.
    pub footer_bytes: u64,
}

impl EntryLog {
    /// Opens log `log_id` of directory `dir` and verifies header, trailer and footer.
    pub fn open(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        log_id: LogId,
    ) -> Result<(EntryLog, Vec<Extent>), OpenLogError> {
        let (log, extents) = EntryLog::open_file(disk, &dir.join(file_name(log_id)))?;
        if log.log_id() != log_id {
            let what = format!("the file holds log {}", log.log_id());
            return Err(Damaged::new(&log.path, 0, what).into());
        }
        Ok((log, extents))
    }

    /// As [`EntryLog::open`], for a file of any name.
    pub fn open_file(disk: &Arc<dyn Disk>, path: &Path) -> Result<(EntryLog, Vec<Extent>), OpenLogError> {
        let disk_error = |e| DiskError::new(path, "open entry log", e);
        let file = disk.open(path, OpenMode::Read).map_err(disk_error)?;
        let len = file.len().map_err(disk_error)?;
        if len < 2 * BLOCK || len % BLOCK != 0 {
            return Err(
                Damaged::new(path, 0, format!("{len} bytes are not the length of an entry log")).into()
            );
        }
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        read_exact(&*file, path, &mut block, 0, "the header")?;
        let header = Header::decode(&block, path)?;
        let trailer_offset = len - TRAILER_SIZE as u64;
        let trailer = &mut block[..TRAILER_SIZE];
        read_exact(&*file, path, trailer, trailer_offset, "the trailer")?;
        let trailer = Trailer::decode(trailer, len, path)?;
        if trailer.header != header {
            return Err(Damaged::new(path, trailer_offset, "trailer and header are of different logs").into());
        }
        let (extents, entries) = read_footer(&*file, path, &trailer)?;
        let log = EntryLog { file, path: path.to_owned(), trailer, entries, extents: extents.len() as u64 };
        Ok((log, extents))
    }

    /// The log's id.
    pub fn log_id(&self) -> LogId {
        self.trailer.header.log_id
    }

    /// The log's generation.
    pub fn generation(&self) -> Generation {
        self.trailer.header.generation
    }

    /// Length of the file in bytes.
    pub fn size(&self) -> u64 {
        self.trailer.file_len
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Facts for people.
    pub fn describe(&self) -> LogDescription {
        LogDescription {
            path: self.path.clone(),
            format_version: super::FORMAT_VERSION,
            log_id: self.log_id(),
            generation: self.generation(),
            size: self.size(),
            entries: self.entries,
            extents: self.extents,
            footer_bytes: self.trailer.footer_len,
        }
    }

    /// Finds an entry in a run: `None` is proven by verified records (entry log invariant 3). One small read when
    /// the run is regular, no read when arithmetic rules the entry out.
    ///
    /// # Panics
    /// When `extent` is of another log.
    pub fn lookup(&self, extent: &Extent, entry: EntryId) -> Result<Option<EntryLocation>, ReadError> {
        assert_eq!(extent.log_id, self.log_id(), "an extent is looked up in its own log");
        match extent.place(entry) {
            Place::Absent => Ok(None),
            Place::At(place) => {
                let mut bytes = [0; RECORD_SIZE];
                self.read_records(extent, place, &mut bytes)?;
                let record = self.decode_record(&bytes, extent, place)?;
                debug_assert_eq!(record.entry, entry, "decode checks the place of a regular run's record");
                Ok(Some(record.location))
            }
            Place::Search => self.search(extent, entry),
        }
    }

    /// Interpolation with bisection every second step: near misses of striping (two of every three entries) are
    /// found with one read, and the worst case stays logarithmic.
    fn search(&self, extent: &Extent, wanted: EntryId) -> Result<Option<EntryLocation>, ReadError> {
        let mut window = [0; WINDOW_RECORDS as usize * RECORD_SIZE];
        // The entry is in places [low, high) or nowhere; `below` and `above` bound the ids in there, inclusively.
        let (mut low, mut high) = (0, extent.count);
        let (mut below, mut above) = (extent.first.get(), extent.last.get());
        let mut bisect = false;
        while low < high {
            let guess = if bisect {
                low + (high - low) / 2
            } else {
                let span = u128::from(above.abs_diff(below)).max(1);
                let into = u128::from(wanted.get().abs_diff(below)) * u128::from(high - low - 1) / span;
                low + u32::try_from(into).map_or(high - low - 1, |into| into.min(high - low - 1))
            };
            bisect = !bisect;
            let start = guess.saturating_sub(WINDOW_RECORDS / 2).max(low);
            let end = high.min(start + WINDOW_RECORDS);
            let bytes = &mut window[..(end - start) as usize * RECORD_SIZE];
            self.read_records(extent, start, bytes)?;
            let record_at = |place: u32| {
                let at = (place - start) as usize * RECORD_SIZE;
                self.decode_record(&bytes[at..at + RECORD_SIZE], extent, place)
            };
            // Bisect inside the window; decode, and so verify, only what is compared.
            let (mut left, mut right) = (start, end);
            while left < right {
                let middle = left + (right - left) / 2;
                let record = record_at(middle)?;
                if record.entry == wanted {
                    return Ok(Some(record.location));
                }
                if record.entry < wanted {
                    left = middle + 1;
                    below = record.entry.get();
                } else {
                    right = middle;
                    above = record.entry.get();
                }
            }
            // `left` is where the entry would stand in the window. Inside it, both neighbours were compared.
            if left > start && left < end {
                return Ok(None);
            }
            if left == start {
                high = start;
            } else {
                low = end;
            }
        }
        Ok(None)
    }

    /// Reads an entry's body into `body`, which is set to its length, and verifies it: CRC, then the ids inside.
    pub fn read_into(
        &self,
        location: &EntryLocation,
        ledger: LedgerId,
        entry: EntryId,
        body: &mut [u8],
    ) -> Result<(), ReadError> {
        assert_eq!(location.log_id, self.log_id(), "a location is read from its own log");
        assert_eq!(body.len(), location.length as usize, "the buffer has the length of the entry");
        read_exact(&*self.file, &self.path, body, location.offset, "an entry")?;
        let damaged = |what: String| Err(Damaged::new(&self.path, location.offset, what).into());
        if crc32c(&[body]) != location.crc32c {
            return damaged(format!("the checksum of entry {ledger}:{entry} does not match"));
        }
        if body[..8] != ledger.get().to_be_bytes() || body[8..16] != entry.get().to_be_bytes() {
            return damaged(format!("the body found for entry {ledger}:{entry} names another entry"));
        }
        Ok(())
    }

    /// As [`EntryLog::read_into`], into fresh memory. The length was verified against the file by `lookup`.
    pub fn read(
        &self,
        location: &EntryLocation,
        ledger: LedgerId,
        entry: EntryId,
    ) -> Result<Vec<u8>, ReadError> {
        let mut body = vec![0; location.length as usize];
        self.read_into(location, ledger, entry, &mut body)?;
        Ok(body)
    }

    /// The index of a run, ascending: at most [`super::RUN_ENTRIES_MAX`] records, all verified.
    pub fn entries(&self, extent: &Extent) -> Result<Vec<IndexRecord>, ReadError> {
        assert_eq!(extent.log_id, self.log_id(), "an extent is read from its own log");
        let mut bytes = vec![0; extent.count as usize * RECORD_SIZE];
        self.read_records(extent, 0, &mut bytes)?;
        let damaged = |what: &str| ReadError::from(Damaged::new(&self.path, extent.records_offset, what));
        if crc32c(&[&bytes]) != extent.records_crc {
            return Err(damaged("the checksum of a run's records does not match"));
        }
        let mut records: Vec<IndexRecord> = Vec::with_capacity(extent.count as usize);
        for (place, bytes) in (0..).zip(bytes.chunks_exact(RECORD_SIZE)) {
            let record = self.decode_record(bytes, extent, place)?;
            if records.last().is_some_and(|before| before.entry >= record.entry) {
                return Err(damaged("the records of a run do not ascend"));
            }
            records.push(record);
        }
        Ok(records)
    }

    /// At most `count` records of a run's index, from `place` on, ascending behind `after`. Each is verified by itself.
    pub fn records_from(
        &self,
        extent: &Extent,
        place: u32,
        count: u32,
        after: Option<EntryId>,
    ) -> Result<Vec<IndexRecord>, ReadError> {
        assert_eq!(extent.log_id, self.log_id(), "an extent is read from its own log");
        let end = extent.count.min(place.saturating_add(count));
        let mut bytes = vec![0; end.saturating_sub(place) as usize * RECORD_SIZE];
        self.read_records(extent, place, &mut bytes)?;
        let mut records: Vec<IndexRecord> = Vec::with_capacity(bytes.len() / RECORD_SIZE);
        for (place, bytes) in (place..).zip(bytes.chunks_exact(RECORD_SIZE)) {
            let record = self.decode_record(bytes, extent, place)?;
            let before = records.last().map(|before| before.entry).or(after);
            if before.is_some_and(|before| before >= record.entry) {
                let what = "the records of a run do not ascend";
                return Err(Damaged::new(&self.path, extent.records_offset, what).into());
            }
            records.push(record);
        }
        Ok(records)
    }

    /// Number of runs.
    pub fn run_count(&self) -> u64 {
        self.extents
    }

    /// The entries of a run, ascending. Reads nothing when the run is regular.
    pub fn entry_ids(&self, extent: &Extent) -> Result<Vec<EntryId>, ReadError> {
        assert_eq!(extent.log_id, self.log_id(), "an extent is read from its own log");
        match extent.regular_ids() {
            Some(ids) => Ok(ids.collect()),
            None => Ok(self.entries(extent)?.into_iter().map(|record| record.entry).collect()),
        }
    }

    fn read_records(&self, extent: &Extent, place: u32, bytes: &mut [u8]) -> Result<(), ReadError> {
        let offset = extent.records_offset + u64::from(place) * RECORD_SIZE as u64;
        read_exact(&*self.file, &self.path, bytes, offset, "the index records")
    }

    fn decode_record(&self, bytes: &[u8], extent: &Extent, place: u32) -> Result<IndexRecord, ReadError> {
        let offset = extent.records_offset + u64::from(place) * RECORD_SIZE as u64;
        IndexRecord::decode(bytes, extent, place)
            .map_err(|what| Damaged::new(&self.path, offset, what).into())
    }
}

pub(super) fn read_footer(
    file: &(dyn DiskFile + 'static),
    path: &Path,
    trailer: &Trailer,
) -> Result<(Vec<Extent>, u64), ReadError> {
    let len = usize::try_from(trailer.footer_len).expect("a footer is shorter than its file");
    let mut footer = vec![0; len];
    read_exact(file, path, &mut footer, trailer.footer_offset, "the footer")?;
    Ok(decode_footer(&footer, trailer, path)?)
}

/// A file that ends early is damaged: all lengths were checked against it when it was opened.
pub(super) fn read_exact(
    file: &(dyn DiskFile + 'static),
    path: &Path,
    bytes: &mut [u8],
    offset: u64,
    what: &str,
) -> Result<(), ReadError> {
    file.read_exact_at(bytes, offset).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            Damaged::new(path, offset, format!("the file ends inside {what}")).into()
        }
        _ => DiskError::new(path, "read entry log", e).into(),
    })
}
