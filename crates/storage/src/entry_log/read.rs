//! Reading an entry log: index records through the block cache, bodies from the kernel's page cache (files are opened
//! for buffered reads) or, for a sequential reader, from what was read ahead. Rewrites and the scrub, which go through
//! whole logs, read past the caches where the file system can ([`EntryLog::streamed`], [`EntryLog::open_uncached`]).
//!
//! # Invariants
//! 1. There are two variants of each read: one waits for the disk and one gives up instead ([`TryReadError::WouldBlock`]).
//!    Both are the same code with another [`Patience`] and verify the same.
//! 2. For reads in sequence that may wait, the kernel is told what to read ahead: [`ASKED_BYTES`] at a time.
//! 3. A buffer is filled whole or the read fails: a short read is continued where it stopped.

use super::format::{
    BLOCK, EXTENT_SIZE, EntryLocation, Extent, FOOTER_HEAD_SIZE, FooterDecoder, Header, IndexRecord, Place,
    RECORD_SIZE, TRAILER_SIZE, Trailer, file_name,
};
use super::runs::{LogIndex, RunCursor};
use crate::block_cache::{BlockCache, BlockKey, BlockKind};
use crate::codec::crc32c;
use crate::{Damaged, DiskError, Generation, LogId, OpenLogError, ReadError, TryReadError};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode};
use bindery_types::{EntryId, LedgerId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Records fetched per step of a search: one read covers the neighbourhood of a good guess.
const WINDOW_RECORDS: u32 = 16;
const OPEN: &str = "open entry log";

/// Bodies read one after another before what follows is read ahead.
const STREAK_MIN: u32 = 3;
/// Bytes that the kernel is told to read ahead when a sequential reader waits for the disk. By itself it may read
/// megabytes ahead, and a journal's write to the same device waits behind them; with less a reader waits more often.
const ASKED_BYTES: u64 = 512 << 10;
/// Longest body that is read through blocks of read-ahead: for longer ones a read of their own costs little.
const AHEAD_BODY_BYTES_MAX: usize = BlockKind::Ahead.bytes() / 2;

/// Whether a read may wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// On a thread that may block.
    Wait,
    /// Take what is in memory, ours or the kernel's, or give up.
    Never,
}

/// The cache that a log is read through.
struct Cached {
    cache: Arc<BlockCache>,
    /// The file's number in it. It changes when bytes do not verify: they may have been damaged on their way, so the
    /// blocks that are cached of the file must not be used again.
    file: AtomicU64,
}

/// How the bodies of a log are being read: a hint, shared by all readers.
#[derive(Default)]
struct Streak {
    /// Where the body read last ended.
    end: AtomicU64,
    /// Bodies in a row that began there, or near it.
    length: AtomicU32,
    /// The end of the range that the kernel was last told to read ahead.
    asked: AtomicU64,
}

impl Streak {
    /// Whether the kernel is to be told to read ahead from `offset` on: the read there is not within the range that it
    /// was last told to read. Notes the new range if so.
    fn asks(&self, offset: u64, length: usize) -> bool {
        let asked = self.asked.load(Relaxed);
        let is_within = asked.saturating_sub(ASKED_BYTES) <= offset && offset + length as u64 <= asked;
        if !is_within {
            self.asked.store(offset + ASKED_BYTES, Relaxed);
        }
        !is_within
    }

    /// Notes a read; true if it continues a sequence.
    fn note(&self, offset: u64, length: usize) -> bool {
        let new_end = offset + length as u64;
        let end = self.end.swap(new_end, Relaxed);
        if new_end == end {
            // A read that would have waited comes again, from a thread that may.
            return self.length.load(Relaxed) > STREAK_MIN;
        }
        // Several threads serve one reader: the order is not exact.
        if offset.abs_diff(end) > 4 * BLOCK {
            self.length.store(0, Relaxed);
            return false;
        }
        self.length.fetch_add(1, Relaxed) >= STREAK_MIN
    }
}

/// Bytes of a log that are about to be read.
pub struct Ahead {
    pub(super) log: Arc<EntryLog>,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Ahead {
    /// Has the kernel start to read them, for the reads that come next. May wait for room in the device's queue: call
    /// it on a thread that may block.
    pub fn begin(&self) {
        self.log.file.begin_reading(self.offset, self.length);
    }
}

/// A sealed log, open for reading. Shared by any number of readers.
pub struct EntryLog {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) path: PathBuf,
    pub(super) trailer: Trailer,
    entries: u64,
    extents: u64,
    cache: Option<Cached>,
    streak: Streak,
}

/// The description that `bindery inspect entry-log` shows.
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
        named(EntryLog::open_file(disk, &dir.join(file_name(log_id)))?, log_id)
    }

    /// As [`EntryLog::open`], but with an index in place of the extents: all extents, if there are at most `resident_max`, and otherwise
    /// a paged index of them, so that they are never all in memory.
    pub(crate) fn open_indexed(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        log_id: LogId,
        resident_max: u64,
    ) -> Result<(EntryLog, LogIndex), OpenLogError> {
        let mut opening = IndexedOpening::begin(disk, dir, log_id, resident_max)?;
        while !opening.read_on()? {}
        opening.finish()
    }

    /// As [`EntryLog::open`], with reads that go past the page cache, and without its extents: [`EntryLog::runs`] gives them.
    pub fn open_medium(disk: &Arc<dyn Disk>, dir: &Path, log_id: LogId) -> Result<EntryLog, OpenLogError> {
        let path = dir.join(file_name(log_id));
        let file = bindery_io::open_uncached(&**disk, &path).map_err(|e| DiskError::new(&path, OPEN, e))?;
        Ok(named((EntryLog::over(file, &path, |_| {})?, ()), log_id)?.0)
    }

    /// As [`EntryLog::open`], with reads that go past the page cache: to read all of it, once, from the medium.
    pub fn open_uncached(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        log_id: LogId,
    ) -> Result<(EntryLog, Vec<Extent>), OpenLogError> {
        let path = dir.join(file_name(log_id));
        let file = bindery_io::open_uncached(&**disk, &path).map_err(|e| DiskError::new(&path, OPEN, e))?;
        named(EntryLog::with_extents(file, &path)?, log_id)
    }

    /// The same log through a file of its own, for a caller that goes through it once: reads bypass the page cache, so that what
    /// readers have cached stays, and read ahead by at most `window_bytes` in each of two places. Header and footer are not verified
    /// again, because every record and every body says which log or entry it belongs to.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn streamed(&self, disk: &Arc<dyn Disk>, window_bytes: usize) -> Result<EntryLog, ReadError> {
        let file = bindery_io::open_ahead(&**disk, &self.path, window_bytes);
        Ok(EntryLog {
            file: file.map_err(|e| DiskError::new(&self.path, OPEN, e))?,
            path: self.path.clone(),
            trailer: self.trailer,
            entries: self.entries,
            extents: self.extents,
            cache: None,
            streak: Streak::default(),
        })
    }

    /// As [`EntryLog::open`], for a file of any name.
    pub fn open_file(disk: &Arc<dyn Disk>, path: &Path) -> Result<(EntryLog, Vec<Extent>), OpenLogError> {
        let file = disk.open(path, OpenMode::ReadScattered).map_err(|e| DiskError::new(path, OPEN, e))?;
        EntryLog::with_extents(file, path)
    }

    fn with_extents(file: Arc<dyn DiskFile>, path: &Path) -> Result<(EntryLog, Vec<Extent>), OpenLogError> {
        let mut extents = Vec::new();
        let log = EntryLog::over(file, path, |run| extents.push(run))?;
        Ok((log, extents))
    }

    /// Verifies header, trailer and footer. `take` gets each run.
    fn over(
        file: Arc<dyn DiskFile>,
        path: &Path,
        mut take: impl FnMut(Extent),
    ) -> Result<EntryLog, OpenLogError> {
        let mut opening = Opening::begin(file, path)?;
        while !opening.read_on(&mut take)? {}
        opening.finish()
    }

    /// Its runs, read from the footer some at a time.
    pub fn runs(self: &Arc<Self>) -> Result<RunCursor, ReadError> {
        RunCursor::new(self.clone())
    }

    /// As [`EntryLog::runs`], of runs that the caller has of it: its footer is not read.
    pub fn known_runs(self: &Arc<Self>, runs: Vec<Extent>) -> RunCursor {
        RunCursor::of(self.clone(), runs)
    }

    /// The checksum of the footer, which lists its runs.
    pub fn footer_checksum(&self) -> u32 {
        self.trailer.footer_crc
    }

    /// Reads through `cache` from now on.
    #[must_use]
    pub fn cached_by(mut self, cache: &Arc<BlockCache>) -> EntryLog {
        self.cache = Some(Cached { cache: cache.clone(), file: cache.register().into() });
        self
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

    /// What `bindery inspect entry-log` shows of it.
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
        self.lookup_with(extent, entry, Patience::Wait).map_err(waited)
    }

    pub(crate) fn lookup_with(
        &self,
        extent: &Extent,
        entry: EntryId,
        patience: Patience,
    ) -> Result<Option<EntryLocation>, TryReadError> {
        assert_eq!(extent.log_id, self.log_id(), "an extent is looked up in its own log");
        match extent.place(entry) {
            Place::Absent => Ok(None),
            Place::At(place) => {
                let mut bytes = [0; RECORD_SIZE];
                self.read_records(extent, place, &mut bytes, patience)?;
                let record = self.decode_record(&bytes, extent, place).map_err(|e| self.distrust(e))?;
                debug_assert_eq!(record.entry, entry, "decode checks the place of a regular run's record");
                Ok(Some(record.location))
            }
            Place::Search => Ok(self.search(extent, entry, patience)?.map(|(_, record)| record.location)),
        }
    }

    /// Where an entry stands among the records of a run; `None` when it is not there. Without a read where arithmetic tells.
    pub(super) fn find_place(
        &self,
        extent: &Extent,
        entry: EntryId,
        patience: Patience,
    ) -> Result<Option<u32>, TryReadError> {
        match extent.place(entry) {
            Place::Absent => Ok(None),
            Place::At(place) => Ok(Some(place)),
            Place::Search => Ok(self.search(extent, entry, patience)?.map(|(place, _)| place)),
        }
    }

    /// Interpolation with bisection every second step: near misses of striping (two of every three entries) are
    /// found with one read, and the worst case stays logarithmic.
    fn search(
        &self,
        extent: &Extent,
        wanted: EntryId,
        patience: Patience,
    ) -> Result<Option<(u32, IndexRecord)>, TryReadError> {
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
            self.read_records(extent, start, bytes, patience)?;
            let record_at = |place: u32| {
                let at = (place - start) as usize * RECORD_SIZE;
                self.decode_record(&bytes[at..at + RECORD_SIZE], extent, place)
            };
            // Bisect inside the window; decode, and so verify, only what is compared.
            let (mut left, mut right) = (start, end);
            while left < right {
                let middle = left + (right - left) / 2;
                let record = record_at(middle).map_err(|e| self.distrust(e))?;
                if record.entry == wanted {
                    return Ok(Some((middle, record)));
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

    /// Reads an entry's body into `body`, which must have exactly its length, and verifies it: CRC, then the ids inside. Blocks on the
    /// disk.
    ///
    /// # Panics
    /// When `location` is of another log, or `body` has another length.
    pub fn read_into(
        &self,
        location: &EntryLocation,
        ledger: LedgerId,
        entry: EntryId,
        body: &mut [u8],
    ) -> Result<(), ReadError> {
        self.read_with(location, ledger, entry, body, Patience::Wait).map_err(waited)
    }

    /// As [`EntryLog::read_into`], without waiting for the disk.
    pub fn try_read_into(
        &self,
        location: &EntryLocation,
        ledger: LedgerId,
        entry: EntryId,
        body: &mut [u8],
    ) -> Result<(), TryReadError> {
        self.read_with(location, ledger, entry, body, Patience::Never)
    }

    fn read_with(
        &self,
        location: &EntryLocation,
        ledger: LedgerId,
        entry: EntryId,
        body: &mut [u8],
        patience: Patience,
    ) -> Result<(), TryReadError> {
        assert_eq!(location.log_id, self.log_id(), "a location is read from its own log");
        assert_eq!(body.len(), location.length as usize, "the buffer has the length of the entry");
        self.read_bodies(location.offset, body, patience)?;
        self.verify_body(location, ledger, entry, body)
    }

    /// Reads one body, or several that are adjacent. Short ones that are read in sequence come through blocks of read-ahead, others
    /// straight from the file.
    pub(super) fn read_bodies(
        &self,
        offset: u64,
        bodies: &mut [u8],
        patience: Patience,
    ) -> Result<(), TryReadError> {
        let is_sequential = self.streak.note(offset, bodies.len());
        if is_sequential && patience == Patience::Wait && self.streak.asks(offset, bodies.len()) {
            self.file.begin_reading(offset, ASKED_BYTES);
        }
        if is_sequential && bodies.len() <= AHEAD_BODY_BYTES_MAX {
            self.read_blocks(BlockKind::Ahead, bodies, offset, "an entry", patience)
        } else {
            self.read_plain(bodies, offset, "an entry", patience)
        }
    }

    /// The bytes of the body at a location, to tell the kernel that they are about to be read.
    pub fn ahead(self: &Arc<Self>, location: &EntryLocation) -> Ahead {
        Ahead { log: self.clone(), offset: location.offset, length: u64::from(location.length) }
    }

    /// Checks a body that was read: CRC, then the ids inside.
    pub(super) fn verify_body(
        &self,
        location: &EntryLocation,
        ledger: LedgerId,
        entry: EntryId,
        body: &[u8],
    ) -> Result<(), TryReadError> {
        let damaged = |what: String| {
            Err(self.distrust(ReadError::from(Damaged::new(&self.path, location.offset, what))))
        };
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
        read_exact(&*self.file, &self.path, &mut bytes, extent.records_offset, "the index records")?;
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

    /// At most `count` records of a run's index, from `place` on, all of entries above `after`. Each is verified by itself, while
    /// [`EntryLog::entries`] verifies the checksum of the whole index.
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
        let offset = extent.records_offset + u64::from(place) * RECORD_SIZE as u64;
        read_exact(&*self.file, &self.path, &mut bytes, offset, "the index records")?;
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

    /// Number of entries.
    pub fn entry_count(&self) -> u64 {
        self.entries
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

    /// All extents, from the footer. Blocks on the disk.
    pub fn read_extents(&self) -> Result<Vec<Extent>, ReadError> {
        read_footer(&*self.file, &self.path, &self.trailer)
    }

    /// Where an extent of the footer begins, by its number.
    pub(crate) fn footer_extents_offset(&self, number: usize) -> u64 {
        self.trailer.footer_offset + (FOOTER_HEAD_SIZE + number * EXTENT_SIZE) as u64
    }

    /// Reads `count` extents of the footer from number `begin` on, and verifies that they have `checksum`. Then calls `look` with a
    /// function that decodes the extent at a place among them.
    pub(crate) fn with_footer_extents<T>(
        &self,
        begin: usize,
        count: usize,
        checksum: u32,
        patience: Patience,
        look: impl FnOnce(&dyn Fn(usize) -> Result<Extent, ReadError>) -> Result<T, ReadError>,
    ) -> Result<T, TryReadError> {
        let mut buffer = [0; super::FOOTER_BLOCK_EXTENTS * EXTENT_SIZE];
        let bytes = &mut buffer[..count * EXTENT_SIZE];
        let offset = self.footer_extents_offset(begin);
        self.read_blocks(BlockKind::Index, bytes, offset, "the footer", patience)?;
        let damaged = |what: &str| ReadError::from(Damaged::new(&self.path, offset, what));
        if crc32c(&[bytes]) != checksum {
            return Err(self.distrust(damaged("the footer is not what it was when the log was opened")));
        }
        let (log_id, limit) = (self.log_id(), self.trailer.footer_offset);
        let extent_at = |at: usize| {
            Extent::decode(&bytes[at * EXTENT_SIZE..][..EXTENT_SIZE], log_id, None, limit).map_err(damaged)
        };
        Ok(look(&extent_at)?)
    }

    pub(super) fn read_records(
        &self,
        extent: &Extent,
        place: u32,
        bytes: &mut [u8],
        patience: Patience,
    ) -> Result<(), TryReadError> {
        let offset = extent.records_offset + u64::from(place) * RECORD_SIZE as u64;
        self.read_blocks(BlockKind::Index, bytes, offset, "the index records", patience)
    }

    /// Reads through the block cache. A block that is missing there is read whole, or up to the end of the file.
    pub(super) fn read_blocks(
        &self,
        kind: BlockKind,
        mut bytes: &mut [u8],
        mut offset: u64,
        what: &str,
        patience: Patience,
    ) -> Result<(), TryReadError> {
        let Some(Cached { cache, file }) = &self.cache else {
            return self.read_plain(bytes, offset, what, patience);
        };
        let file = file.load(Relaxed);
        let block_bytes = kind.bytes();
        while !bytes.is_empty() {
            let (number, at) = (offset / block_bytes as u64, (offset % block_bytes as u64) as usize);
            let (head, tail) = bytes.split_at_mut(bytes.len().min(block_bytes - at));
            offset += head.len() as u64;
            let key = BlockKey { file, kind, number };
            if !cache.get(key, at, head) {
                let begin = number * block_bytes as u64;
                let behind = self.trailer.file_len.saturating_sub(begin).min(block_bytes as u64) as usize;
                let mut block = vec![0; behind.max(at + head.len())].into_boxed_slice();
                match self.read_plain(&mut block, begin, what, patience) {
                    Ok(()) => {
                        head.copy_from_slice(&block[at..at + head.len()]);
                        cache.put(key, block);
                    }
                    Err(TryReadError::WouldBlock) => return Err(TryReadError::WouldBlock),
                    // A bad sector elsewhere in the block does not concern these bytes.
                    Err(TryReadError::Failed(_)) => {
                        let at = offset - head.len() as u64;
                        self.read_plain(head, at, what, patience)?;
                    }
                }
            }
            bytes = tail;
        }
        Ok(())
    }

    /// To be called with the error when bytes did not verify: blocks that are cached of the file are not used again. Returns the error.
    pub(super) fn distrust(&self, error: impl Into<TryReadError>) -> TryReadError {
        if let Some(Cached { cache, file }) = &self.cache {
            file.store(cache.register(), Relaxed);
        }
        error.into()
    }

    /// Reads from the file, without the block cache; `what` names the bytes in errors. A read that may not wait fails only with
    /// [`TryReadError::WouldBlock`].
    fn read_plain(
        &self,
        bytes: &mut [u8],
        offset: u64,
        what: &str,
        patience: Patience,
    ) -> Result<(), TryReadError> {
        if patience == Patience::Wait {
            return Ok(read_exact(&*self.file, &self.path, bytes, offset, what)?);
        }
        // An error here says nothing about the file: the kernel or a filter of system calls may not know such reads.
        match self.file.read_cached_exact_at(bytes, offset) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(TryReadError::WouldBlock),
        }
    }

    pub(super) fn decode_record(
        &self,
        bytes: &[u8],
        extent: &Extent,
        place: u32,
    ) -> Result<IndexRecord, ReadError> {
        let offset = extent.records_offset + u64::from(place) * RECORD_SIZE as u64;
        IndexRecord::decode(bytes, extent, place)
            .map_err(|what| Damaged::new(&self.path, offset, what).into())
    }
}

/// A log whose footer is being read.
struct Opening {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    trailer: Trailer,
    footer: FooterReader,
    extents: u64,
}

impl Opening {
    /// Verifies header and trailer.
    fn begin(file: Arc<dyn DiskFile>, path: &Path) -> Result<Opening, OpenLogError> {
        let len = file.len().map_err(|e| DiskError::new(path, OPEN, e))?;
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
        let footer = FooterReader::begin(&*file, path, &trailer)?;
        let extents = footer.decoder.left();
        Ok(Opening { file, path: path.to_owned(), trailer, footer, extents })
    }

    /// Reads the next runs of the footer, at most [`FOOTER_READ_EXTENTS`], and calls `take` with each. True when none is left.
    fn read_on(&mut self, take: impl FnMut(Extent)) -> Result<bool, OpenLogError> {
        if self.footer.decoder.left() > 0 {
            self.footer.read_on(&*self.file, &self.path, take)?;
        }
        Ok(self.footer.decoder.left() == 0)
    }

    /// Verifies the footer as a whole, once all of it was read.
    fn finish(self) -> Result<EntryLog, OpenLogError> {
        let Opening { file, path, trailer, footer, extents } = self;
        let entries = footer.decoder.finish(&path)?;
        Ok(EntryLog { file, path, trailer, entries, extents, cache: None, streak: Streak::default() })
    }
}

/// As [`EntryLog::open_indexed`], some runs at a time.
pub(crate) struct IndexedOpening {
    log_id: LogId,
    opening: Opening,
    is_resident: bool,
    index: LogIndex,
}

impl IndexedOpening {
    pub(crate) fn begin(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        log_id: LogId,
        resident_max: u64,
    ) -> Result<IndexedOpening, OpenLogError> {
        let path = dir.join(file_name(log_id));
        let file = disk.open(&path, OpenMode::ReadScattered).map_err(|e| DiskError::new(&path, OPEN, e))?;
        let opening = Opening::begin(file, &path)?;
        let is_resident = opening.extents <= resident_max;
        Ok(IndexedOpening { log_id, opening, is_resident, index: LogIndex::default() })
    }

    /// Reads the next runs; true when none is left.
    pub(crate) fn read_on(&mut self) -> Result<bool, OpenLogError> {
        let IndexedOpening { opening, is_resident, index, .. } = self;
        opening.read_on(|run| index.push(run, *is_resident))
    }

    /// Bytes of memory that the index takes of the runs read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// Verifies the footer as a whole, once all of it was read.
    pub(crate) fn finish(self) -> Result<(EntryLog, LogIndex), OpenLogError> {
        named((self.opening.finish()?, self.index.finish()), self.log_id)
    }
}

/// Extents of a footer that are read at once.
const FOOTER_READ_EXTENTS: u64 = 816;

/// Reads a footer from start to end, some extents at a time.
pub(super) struct FooterReader {
    pub(super) decoder: FooterDecoder,
    offset: u64,
}

impl FooterReader {
    pub(super) fn begin(
        file: &(dyn DiskFile + 'static),
        path: &Path,
        trailer: &Trailer,
    ) -> Result<FooterReader, ReadError> {
        let mut head = [0; FOOTER_HEAD_SIZE];
        read_exact(file, path, &mut head, trailer.footer_offset, "the footer")?;
        let offset = trailer.footer_offset + FOOTER_HEAD_SIZE as u64;
        Ok(FooterReader { decoder: FooterDecoder::new(trailer, &head, path)?, offset })
    }

    /// Reads the next extents, at most [`FOOTER_READ_EXTENTS`], and calls `take` with each.
    pub(super) fn read_on(
        &mut self,
        file: &(dyn DiskFile + 'static),
        path: &Path,
        take: impl FnMut(Extent),
    ) -> Result<(), ReadError> {
        let count = self.decoder.left().min(FOOTER_READ_EXTENTS) as usize;
        let mut bytes = vec![0; count * EXTENT_SIZE];
        read_exact(file, path, &mut bytes, self.offset, "the footer")?;
        self.offset += bytes.len() as u64;
        Ok(self.decoder.decode(&bytes, path, take)?)
    }
}

/// All extents of a footer, ascending by (ledger, first).
pub(super) fn read_footer(
    file: &(dyn DiskFile + 'static),
    path: &Path,
    trailer: &Trailer,
) -> Result<Vec<Extent>, ReadError> {
    let mut footer = FooterReader::begin(file, path, trailer)?;
    let mut extents = Vec::new();
    while footer.decoder.left() > 0 {
        footer.read_on(file, path, |extent| extents.push(extent))?;
    }
    footer.decoder.finish(path)?;
    Ok(extents)
}

/// Checks that a log is the one its file's name says.
fn named<T>(opened: (EntryLog, T), log_id: LogId) -> Result<(EntryLog, T), OpenLogError> {
    let log = &opened.0;
    if log.log_id() != log_id {
        return Err(Damaged::new(&log.path, 0, format!("the file holds log {}", log.log_id())).into());
    }
    Ok(opened)
}

pub(super) fn read_exact(
    file: &(dyn DiskFile + 'static),
    path: &Path,
    bytes: &mut [u8],
    offset: u64,
    what: &str,
) -> Result<(), ReadError> {
    file.read_exact_at(bytes, offset).map_err(|e| read_error(path, offset, what, e))
}

/// A file that ends early is damaged: all lengths were checked against it when it was opened.
fn read_error(path: &Path, offset: u64, what: &str, error: io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Damaged::new(path, offset, format!("the file ends inside {what}")).into()
        }
        _ => DiskError::new(path, "read entry log", error).into(),
    }
}

/// Converts the error of a read that was allowed to wait.
pub(crate) fn waited(error: TryReadError) -> ReadError {
    match error {
        TryReadError::Failed(error) => error,
        TryReadError::WouldBlock => unreachable!("a read that may wait does not give up"),
    }
}
