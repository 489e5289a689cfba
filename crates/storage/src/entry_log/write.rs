//! Writing an entry log: one pass, one aligned staging buffer, nothing read back.
//!
//! # Data flow
//! ```text
//! append ... -> write_footer, some runs at a time -> finish: trailer, sync, sync_dir -> SealedLog
//!          \-------------------------------------/ (what is left of the footer)
//! ... -> finish_unnamed: trailer, sync -> UnnamedLog -> name: sync_dir -> SealedLog
//! ```

use super::format::{
    BLOCK, ENTRY_BODY_MIN_BYTES, EXTENT_SIZE, EntryLocation, Extent, Header, IndexRecord, RUN_ENTRIES_MAX,
    Trailer, encode_footer_head, file_name,
};
use super::packed::PackedExtents;
use crate::codec::{Crc32c, crc32c};
use crate::{DiskError, Generation, IndexPool, LogId, WriteError};
use bindery_io::chunk::AlignedBuf;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode, has_no_descriptor};
use bindery_types::{EntryId, LedgerId};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one write to the disk: enough for the whole bandwidth of a device, and few enough to pace a flush with.
pub const LOG_WRITE_BYTES: usize = 1 << 20;

/// A log under construction. Dropped before [`EntryLogWriter::finish`] it leaves an orphan file, which the next
/// open of the directory removes.
pub struct EntryLogWriter {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    dir: PathBuf,
    path: PathBuf,
    header: Header,
    staging: AlignedBuf,
    /// Bytes of `staging` in use.
    filled: usize,
    /// Bytes in the file already: a whole number of blocks.
    written: u64,
    run: Option<Run>,
    /// Encoded index records of the open run.
    records: Vec<u8>,
    /// The closed runs that the footer does not list yet.
    extents: PackedExtents,
    footer: Option<Footer>,
    entries: u64,
    /// Set by the first failure; no write or sync is issued after it (IB14).
    failed: bool,
    name_losses: NameLosses,
}

/// The number of failed syncs of a directory, and what it was before a file was made there.
#[derive(Clone)]
struct NameLosses {
    count: Arc<AtomicU64>,
    before: u64,
}

impl NameLosses {
    /// Makes the name of the file durable.
    fn sync_dir(&self, disk: &dyn Disk, dir: &Path) -> Result<(), DiskError> {
        disk.sync_dir(dir).map_err(|e| {
            // Without a descriptor no sync was attempted.
            if !has_no_descriptor(&e) {
                self.count.fetch_add(1, Ordering::AcqRel);
            }
            DiskError::new(dir, "sync directory", e)
        })?;
        // A sync that failed for another log may have been the one that was to make this name durable.
        if self.count.load(Ordering::Acquire) != self.before {
            let lost = io::Error::other("a sync of it failed while the log was written");
            return Err(DiskError::new(dir, "sync directory", lost));
        }
        Ok(())
    }
}

/// The open run; becomes an [`Extent`].
struct Run {
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    count: u32,
    stride: u64,
    max_lac: Option<EntryId>,
    bodies_offset: u64,
    generation: Generation,
}

/// The footer, once it is begun: no entry follows.
struct Footer {
    offset: u64,
    /// Checksum of what is written of it so far.
    crc: Crc32c,
    /// Number of runs that it will list.
    runs: u64,
}

/// A log of which all is durable but its name. Dropped, it leaves an orphan file, which the next open of the directory removes.
pub struct UnnamedLog {
    sealed: SealedLog,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    path: PathBuf,
    name_losses: NameLosses,
}

impl UnnamedLog {
    /// What was written.
    pub fn sealed(&self) -> &SealedLog {
        &self.sealed
    }

    /// Makes the name durable. The owner of the directory does this, on the thread that commits the log.
    ///
    /// # Errors
    /// The name may be lost with a power cut: the log must not be committed.
    pub fn name(&self) -> Result<(), DiskError> {
        self.name_losses.sync_dir(&*self.disk, &self.dir)
    }

    /// Gives the log up and removes its file. If the file is back after a power cut, it is an orphan like any other.
    pub fn abandon(self) -> Result<(), DiskError> {
        self.disk.remove(&self.path).map_err(|e| DiskError::new(&self.path, "remove", e))
    }
}

/// A finished, durable log. It exists once the state table lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedLog {
    /// The log.
    pub log_id: LogId,
    /// Its generation.
    pub generation: Generation,
    /// Length of the file in bytes.
    pub size: u64,
    /// Number of entries.
    pub entries: u64,
    /// Number of runs.
    pub runs: u64,
    /// The checksum of the footer, which lists them.
    pub footer_checksum: u32,
}

impl EntryLogWriter {
    /// Starts log `log_id` in `dir`. No entry in it has a generation above `generation`.
    ///
    /// # Errors
    /// When the file exists already or cannot be created.
    pub fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        log_id: LogId,
        generation: Generation,
    ) -> Result<EntryLogWriter, WriteError> {
        EntryLogWriter::create_with(disk, dir, log_id, generation, LOG_WRITE_BYTES)
    }

    /// As [`EntryLogWriter::create`], with writes of `write_bytes`: at least two blocks.
    pub(crate) fn create_with(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        log_id: LogId,
        generation: Generation,
        write_bytes: usize,
    ) -> Result<EntryLogWriter, WriteError> {
        // Nothing is written before the caller has the writer, which removes the file when a write fails.
        assert!(
            write_bytes > BLOCK_SIZE_BYTES && write_bytes.is_multiple_of(BLOCK_SIZE_BYTES),
            "{write_bytes}"
        );
        let path = dir.join(file_name(log_id));
        let create = || {
            if disk.exists(&path)? {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            disk.open(&path, OpenMode::CreateDirect)
        };
        let file = create().map_err(|e| DiskError::new(&path, "create entry log", e))?;
        let header = Header { log_id, generation };
        let mut writer = EntryLogWriter {
            disk: disk.clone(),
            file,
            dir: dir.to_owned(),
            path,
            header,
            staging: AlignedBuf::zeroed(write_bytes),
            filled: 0,
            written: 0,
            run: None,
            records: Vec::new(),
            extents: PackedExtents::default(),
            footer: None,
            entries: 0,
            failed: false,
            name_losses: NameLosses { count: Arc::default(), before: 0 },
        };
        writer.push(&header.encode())?;
        Ok(writer)
    }

    /// Makes this one of several writers in a directory, which share the number of failed syncs of it in `losses`: it was `before`
    /// when this file was not made yet.
    pub(crate) fn beside(self, losses: &Arc<AtomicU64>, before: u64) -> EntryLogWriter {
        EntryLogWriter { name_losses: NameLosses { count: losses.clone(), before }, ..self }
    }

    /// Charges the memory for its runs to `pool`.
    pub(crate) fn charged_to(self, pool: &Arc<IndexPool>) -> EntryLogWriter {
        EntryLogWriter { extents: PackedExtents::charged_to(pool), ..self }
    }

    /// The log's id.
    pub fn log_id(&self) -> LogId {
        self.header.log_id
    }

    /// The highest generation its entries may have.
    pub fn generation(&self) -> Generation {
        self.header.generation
    }

    /// Bytes handed to the disk so far. Pacing counts these.
    pub fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Bytes that are still to be written to finish the log.
    pub fn unwritten_bytes(&self) -> u64 {
        self.filled as u64 + self.records.len() as u64 + self.runs_to_list() * EXTENT_SIZE as u64
    }

    /// Runs that the footer does not list yet.
    pub fn runs_to_list(&self) -> u64 {
        self.extents.len() + u64::from(self.run.is_some())
    }

    /// Adds an entry. `body` is the entry as received (protocol reference, section 3.1), `crc32c` its CRC32C as
    /// computed on arrival. Writes to the disk whenever the staging buffer is full: for most entries not at all.
    ///
    /// # Panics
    /// When (ledger, entry) does not ascend, or the body is shorter than [`ENTRY_BODY_MIN_BYTES`] or names another
    /// ledger or entry: bugs of the caller (entry log invariant 1).
    pub fn append(
        &mut self,
        ledger: LedgerId,
        entry: EntryId,
        body: &[u8],
        crc32c: u32,
    ) -> Result<(), WriteError> {
        self.append_as(ledger, entry, body, crc32c, self.header.generation)
    }

    /// As [`EntryLogWriter::append`], for a copy with a generation of its own, as rewrites make them. A change of generation begins a
    /// new run.
    ///
    /// # Panics
    /// As `append`, when `generation` is above the log's, and when the footer was begun.
    pub fn append_as(
        &mut self,
        ledger: LedgerId,
        entry: EntryId,
        body: &[u8],
        crc32c: u32,
        generation: Generation,
    ) -> Result<(), WriteError> {
        assert!(self.footer.is_none(), "no entry follows the footer");
        assert!(generation <= self.header.generation, "no entry is newer than its log");
        assert!(body.len() >= ENTRY_BODY_MIN_BYTES, "a body of {} bytes is no entry", body.len());
        assert_eq!(
            body[..8],
            ledger.get().to_be_bytes(),
            "the body of {ledger}:{entry} names another ledger"
        );
        assert_eq!(
            body[8..16],
            entry.get().to_be_bytes(),
            "the body of {ledger}:{entry} names another entry"
        );
        debug_assert_eq!(
            crate::codec::crc32c(&[body]),
            crc32c,
            "the body of {ledger}:{entry} has another CRC"
        );
        let length = u32::try_from(body.len()).expect("a frame is shorter than 4 GiB");
        let mut lac = [0; 8];
        lac.copy_from_slice(&body[16..24]);
        let lac = EntryId::new(i64::from_be_bytes(lac));

        if let Some(run) = &self.run {
            let last = (run.ledger, run.last);
            assert!((ledger, entry) > last, "{ledger}:{entry} does not ascend after {}:{}", last.0, last.1);
            if run.ledger != ledger || run.count == RUN_ENTRIES_MAX || run.generation != generation {
                self.close_run()?;
            }
        }
        let offset = self.position();
        let run = self.run.get_or_insert(Run {
            ledger,
            first: entry,
            last: entry,
            count: 0,
            stride: 1,
            max_lac: None,
            bodies_offset: offset,
            generation,
        });
        let step = entry.get().abs_diff(run.last.get());
        match run.count {
            0 => {}
            1 => run.stride = step,
            _ if run.stride != step => run.stride = 0,
            _ => {}
        }
        let location = EntryLocation { log_id: self.header.log_id, offset, length, crc32c };
        IndexRecord { entry, location }.encode(ledger, run.count, &mut self.records);
        run.last = entry;
        run.count += 1;
        run.max_lac = run.max_lac.max(lac);
        self.entries += 1;
        self.push(body)
    }

    /// Begins the footer, or continues it, by at most `runs_max` runs: a footer of millions of runs takes long. True when all runs are
    /// listed, so that only the trailer and the syncs are left for [`EntryLogWriter::finish`].
    pub fn write_footer(&mut self, runs_max: usize) -> Result<bool, WriteError> {
        if self.footer.is_none() {
            self.close_run()?;
            let runs = self.extents.len();
            let head = encode_footer_head(runs, self.entries);
            let mut crc = Crc32c::new();
            crc.update(&head);
            self.footer = Some(Footer { offset: self.position(), crc, runs });
            self.push(&head)?;
        }
        let mut bytes = Vec::with_capacity(EXTENT_SIZE);
        for _ in 0..runs_max {
            let Some(extent) = self.extents.pop(self.header.log_id) else { break };
            bytes.clear();
            extent.encode(&mut bytes);
            if let Some(footer) = &mut self.footer {
                footer.crc.update(&bytes);
            }
            self.push(&bytes)?;
        }
        Ok(self.extents.len() == 0)
    }

    /// Writes index and footer, as far as they are not written yet, and makes file and name durable. The log still has to be committed to
    /// the state table to exist.
    pub fn finish(mut self) -> Result<SealedLog, WriteError> {
        self.seal()
    }

    /// As [`EntryLogWriter::finish`], for a log that can be written again: after an error its file is removed, so that
    /// failed attempts do not fill the disk.
    pub fn finish_or_abandon(mut self) -> Result<SealedLog, WriteError> {
        let sealed = self.seal();
        if sealed.is_err() {
            // If that fails too, it is an orphan of the next open.
            let _ = self.abandon();
        }
        sealed
    }

    /// As [`EntryLogWriter::finish_or_abandon`], but for the name: see [`UnnamedLog::name`].
    pub fn finish_unnamed(mut self) -> Result<UnnamedLog, WriteError> {
        let written = self.write_all();
        let synced =
            written.and_then(|sealed| self.attempt("sync entry log", |w| w.file.sync()).map(|()| sealed));
        let EntryLogWriter { disk, file, dir, path, name_losses, .. } = self;
        drop(file);
        match synced {
            Ok(sealed) => Ok(UnnamedLog { sealed, disk, dir, path, name_losses }),
            Err(error) => {
                // If that fails too, it is an orphan of the next open.
                let _ = disk.remove(&path);
                Err(error)
            }
        }
    }

    /// As [`EntryLogWriter::finish`], but without a sync of file and name: for canary M9, which commits before the log is durable.
    pub fn finish_unsynced(mut self) -> Result<SealedLog, WriteError> {
        self.write_all()
    }

    fn seal(&mut self) -> Result<SealedLog, WriteError> {
        let sealed = self.write_all()?;
        self.attempt("sync entry log", |w| w.file.sync())?;
        self.name_losses.sync_dir(&*self.disk, &self.dir)?;
        Ok(sealed)
    }

    fn write_all(&mut self) -> Result<SealedLog, WriteError> {
        self.write_footer(usize::MAX)?;
        let Some(Footer { offset: footer_offset, crc, runs }) = self.footer.take() else {
            return Err(WriteError::AlreadyFailed { path: self.path.clone() });
        };
        let footer_end = self.position();
        let size = Trailer::file_len(footer_end);
        let footer_len = footer_end - footer_offset;
        let trailer = Trailer {
            header: self.header,
            footer_crc: crc.value(),
            footer_offset,
            footer_len,
            file_len: size,
        };
        let trailer = trailer.encode();
        let padding = size - footer_end - trailer.len() as u64;
        self.push(&vec![0; usize::try_from(padding).expect("padding is shorter than two blocks")])?;
        self.push(&trailer)?;
        self.write_staging()?;
        assert_eq!(self.written, size, "the trailer ends the file");
        let Header { log_id, generation } = self.header;
        Ok(SealedLog { log_id, generation, size, entries: self.entries, runs, footer_checksum: crc.value() })
    }

    /// Gives the log up and removes its file. If the file is back after a power cut, it is an orphan like any other.
    pub fn abandon(self) -> Result<(), DiskError> {
        let EntryLogWriter { disk, file, path, .. } = self;
        drop(file);
        disk.remove(&path).map_err(|e| DiskError::new(&path, "remove", e))
    }

    /// Where the next byte goes.
    fn position(&self) -> u64 {
        self.written + self.filled as u64
    }

    fn close_run(&mut self) -> Result<(), WriteError> {
        let Some(run) = self.run.take() else { return Ok(()) };
        let records = std::mem::take(&mut self.records);
        let records_offset = self.position();
        self.extents.push(&Extent {
            log_id: self.header.log_id,
            ledger: run.ledger,
            first: run.first,
            last: run.last,
            count: run.count,
            stride: run.stride,
            max_lac: run.max_lac,
            generation: run.generation,
            bodies_offset: run.bodies_offset,
            bodies_len: records_offset - run.bodies_offset,
            records_offset,
            records_crc: crc32c(&[&records]),
        });
        let pushed = self.push(&records);
        self.records = records;
        self.records.clear();
        pushed
    }

    fn push(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let n = bytes.len().min(self.staging.len() - self.filled);
            self.staging[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
            if self.filled == self.staging.len() {
                self.write_staging()?;
            }
        }
        Ok(())
    }

    fn write_staging(&mut self) -> Result<(), WriteError> {
        assert_eq!(self.filled % BLOCK_SIZE_BYTES, 0, "direct writes are whole blocks");
        assert_eq!(self.written % BLOCK, 0, "direct writes start at a block");
        self.attempt("write entry log", |w| {
            w.file.write_all_at(&mut [IoSlice::new(&w.staging[..w.filled])], w.written)
        })?;
        self.written += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    fn attempt(
        &mut self,
        action: &'static str,
        act: impl FnOnce(&Self) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::AlreadyFailed { path: self.path.clone() });
        }
        act(self).map_err(|e| {
            self.failed = true;
            DiskError::new(&self.path, action, e).into()
        })
    }
}
