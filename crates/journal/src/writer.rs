//! Writing groups: one file at a time, one group at a time, one positioned write each.

use crate::file::{FileHeader, IDENTITY_MAX, slot_name};
use crate::group::{FileIdentity, GroupHeader, PartHeader, layout};
use crate::reader::{OpenError, Reader};
use bindery_io::canary::{Canaries, Canary};
use bindery_io::chunk::{AlignedBuf, ChunkSlice};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode, Random, Shortage, ZeroFill, has_no_descriptor};
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;

/// Free files that are used only when no other can be made. With one in hand, a journal on a full volume still takes fences,
/// and the group that freezes the caches, whose flush then frees files.
const FILES_KEPT_BACK: usize = 1;

/// Whole-block runs shorter than this are copied through the scratch buffer: a copy of 32 KiB costs less than the
/// kernel spends on further slices.
const DIRECT_RUN_MIN: u64 = 32 << 10;

/// Without sync, groups smaller than this go through the page cache: they are copied there at once, whereas a direct write waits
/// for the device. For larger ones the copy, and the kernel's work to write it out, cost more than the wait.
const CACHED_GROUP_MAX: u64 = 64 << 10;

/// After this many bytes of such groups the kernel is told to start writing them out. Only a small part of a file is then
/// ever dirty, so the sync at its end is short, and the kernel never has to throttle writers for all of it at once.
const WRITEBACK_STEP_BYTES: u64 = 1 << 20;

/// How a journal is laid out.
#[derive(Debug, Clone)]
pub struct JournalConfig {
    /// Directory of its files.
    pub dir: PathBuf,
    /// Length of a file in bytes, whole blocks.
    pub file_bytes: u64,
    /// Which bookie's data this is; a file of another owner is refused.
    pub owner: String,
    /// Number of the journal among those of the bookie; a file of another one is refused.
    pub journal: u16,
    /// Records about entries in object storage may be written. Its files then have a format version that older builds refuse.
    pub is_tiered: bool,
    /// Bytes that all files together may take; 0 for no limit. One file beyond it is made if a flush cannot begin without it
    /// (requirement J11).
    pub bytes_max: u64,
    /// False: groups are written and not synced (BookKeeper's `journalSyncData=false`), small ones to the page cache only.
    pub sync: bool,
    /// Planted bugs (simulator only).
    pub canaries: Canaries,
}

/// A filled piece of a shard's open chunk.
#[derive(Clone)]
pub struct Part {
    /// The records, one after another.
    pub data: ChunkSlice,
    /// Index of the shard.
    pub shard: u32,
    /// Number of records.
    pub record_count: u32,
    /// Chained CRC32C of their headers ([`crate::record::fold_header`]).
    pub headers_crc: u32,
}

/// The pieces that one write makes durable. No parts: the group only seals what is before it.
#[derive(Clone, Default)]
pub struct Group {
    /// The pieces, in the order in which they are replayed.
    pub parts: Vec<Part>,
    /// Sync even when the journal is configured not to (FORCE_LEDGER).
    pub force_sync: bool,
}

/// The journal failed; it stays failed (invariant 4).
#[derive(Debug, Clone, thiserror::Error)]
#[error("journal: cannot {action} {path}: {source}")]
pub struct JournalError {
    /// Verb phrase.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The first error of the system.
    pub source: Arc<io::Error>,
}

/// A file that can be taken into use.
pub struct PreparedFile {
    pub(crate) slot: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Length of the file in bytes.
    pub(crate) length: u64,
}

struct Current {
    slot: u32,
    file: Arc<dyn DiskFile>,
    /// The same file through the page cache, in a journal that does not sync by itself.
    cached: Option<Arc<dyn DiskFile>>,
    identity: FileIdentity,
    position: u64,
    length: u64,
    /// Groups that no sync has covered yet. Stays 0 in a journal that syncs each group.
    unsynced: u32,
    /// The offset up to which the kernel was told to write out dirty pages.
    writeback: u64,
}

impl Current {
    /// The handle through which a group of `group_bytes` is written if it is not synced.
    fn unsynced_file(&self, group_bytes: u64) -> &dyn DiskFile {
        match &self.cached {
            Some(cached) if group_bytes < CACHED_GROUP_MAX => &**cached,
            _ => &*self.file,
        }
    }

    /// Tells the kernel to begin writing out what went to the page cache, once it is [`WRITEBACK_STEP_BYTES`].
    fn begin_writeback(&mut self) {
        let bytes = self.position - self.writeback;
        if let Some(cached) = &self.cached
            && bytes >= WRITEBACK_STEP_BYTES
        {
            cached.begin_writeback(self.writeback, bytes);
            self.writeback = self.position;
        }
    }
}

pub(crate) struct Used {
    pub(crate) slot: u32,
    pub(crate) last_group: u64,
    /// The medium could not return some block of it, so it is not used again.
    pub(crate) is_unreadable: bool,
}

/// One journal. Owned by the journal thread (or by the simulator).
pub struct Journal {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) config: JournalConfig,
    random: Arc<dyn Random>,
    free: VecDeque<PreparedFile>,
    pub(crate) used: Vec<Used>,
    current: Option<Current>,
    pub(crate) accepts_damage: bool,
    /// The medium could not return some block when the files were read.
    pub(crate) has_unreadable: Arc<AtomicBool>,
    pub(crate) next_slot: u32,
    /// Slots below `next_slot` that no file has and that are not reserved. They are given out first.
    pub(crate) missing_slots: BTreeSet<u32>,
    pub(crate) next_file_id: u64,
    pub(crate) next_group: u64,
    /// Bytes of all groups written since the start.
    written_bytes: u64,
    /// The directory was synced since this process listed its files. It is synced again whenever a file is made.
    names_are_durable: bool,
    /// Why the last attempt to make a file failed, if a later one may succeed: no space, or no descriptor.
    no_space: Option<(Shortage, String)>,
    failed: Option<JournalError>,
    scratch: AlignedBuf,
}

impl Journal {
    pub(crate) fn new(disk: Arc<dyn Disk>, config: JournalConfig, random: Arc<dyn Random>) -> Journal {
        assert!(config.owner.len() <= IDENTITY_MAX, "the identity fits the file header");
        assert!(
            config.file_bytes.is_multiple_of(BLOCK) && config.file_bytes > BLOCK,
            "a file is whole blocks"
        );
        Journal {
            disk,
            config,
            random,
            free: VecDeque::new(),
            used: Vec::new(),
            current: None,
            accepts_damage: false,
            has_unreadable: Arc::default(),
            next_slot: 0,
            missing_slots: BTreeSet::new(),
            next_file_id: 1,
            next_group: 1,
            written_bytes: 0,
            names_are_durable: false,
            no_space: None,
            failed: None,
            scratch: AlignedBuf::zeroed(256 << 10),
        }
    }

    /// Sequence of the last group written (0 before the first).
    pub fn last_group(&self) -> u64 {
        self.next_group - 1
    }

    /// How it is laid out.
    pub fn config(&self) -> &JournalConfig {
        &self.config
    }

    /// Id of the last file taken into use (0 before the first).
    pub fn last_file_id(&self) -> u64 {
        self.next_file_id - 1
    }

    /// Number of files there are, in whatever state.
    pub fn file_count(&self) -> usize {
        self.next_slot as usize - self.missing_slots.len()
    }

    /// Bytes of all files.
    pub fn footprint_bytes(&self) -> u64 {
        self.file_count() as u64 * self.config.file_bytes
    }

    /// Bytes that a flush could free: files that are written, and what is written of the current one.
    pub fn bytes_in_use(&self) -> u64 {
        self.used.len() as u64 * self.config.file_bytes + self.current.as_ref().map_or(0, |c| c.position)
    }

    /// True if a group that needs another file must wait for a flush: the cap allows no more files, and those that are free are kept
    /// back.
    pub fn is_at_cap(&self) -> bool {
        self.free.len() <= FILES_KEPT_BACK && self.has_all_files()
    }

    /// The cap allows no further file.
    fn has_all_files(&self) -> bool {
        let cap = self.config.bytes_max;
        cap > 0 && self.footprint_bytes() + self.config.file_bytes > cap
    }

    /// Latches a journal that is at its cap when nothing will free a file any more, and returns the error that it is latched with.
    pub fn give_up(&mut self) -> JournalError {
        let what =
            "the journal has all the files it may have, and ledger storage, which failed, frees none of them";
        let slot = self.current.as_ref().map_or(0, |current| current.slot);
        self.latch("go on behind", slot, io::Error::other(what))
    }

    /// True if a group of so many bytes fits the file in use.
    pub fn fits(&self, bytes: u64) -> bool {
        self.current.as_ref().is_some_and(|c| c.position + bytes <= c.length)
    }

    /// The next file gets a higher id than `file_id`: ids stay ascending even when the file that had the highest one
    /// lost its header in a crash while it was taken into use again.
    pub fn raise_file_id(&mut self, file_id: u64) {
        self.next_file_id = self.next_file_id.max(file_id + 1);
    }

    /// Bytes of all groups written since the start, with headers and padding.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Writes a group and returns its sequence. After an error the journal is latched: the caller answers every
    /// waiter of this and all later groups with an error.
    pub fn write(&mut self, group: &Group) -> Result<u64, JournalError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let parts = &group.parts;
        let place = layout(parts.iter().map(|p| (p.data.offset_in_chunk(), p.data.len())));
        if self.current.as_ref().is_none_or(|c| c.position + place.total_bytes > c.length) {
            self.roll(place.total_bytes)?;
        }
        // Groups written before without sync are synced first, because the header of this one says that they are durable.
        let is_forced = group.force_sync && !self.config.sync;
        if is_forced {
            self.sync()?;
        }
        let current = self.current.as_ref().expect("roll opened a file");
        let header = GroupHeader {
            identity: current.identity,
            sequence: self.next_group,
            offset: current.position,
            total_bytes: place.total_bytes,
            unsynced_before: if self.config.sync { 0 } else { current.unsynced.saturating_add(1) },
            parts: parts
                .iter()
                .zip(&place.part_offsets)
                .map(|(p, offset)| PartHeader {
                    offset: u32::try_from(*offset).expect("a group is below 4 GiB"),
                    length: u32::try_from(p.data.len()).expect("a part is below 4 GiB"),
                    shard: p.shard,
                    record_count: p.record_count,
                    headers_crc: p.headers_crc,
                })
                .collect(),
        };
        let runs = plan_runs(parts, &place.part_offsets, place.total_bytes);
        fill_scratch(&mut self.scratch, &runs, &header, parts, &place.part_offsets);
        let mut slices = Vec::with_capacity(runs.len());
        let mut scratch_at = 0;
        for run in &runs {
            let length = (run.end - run.start) as usize;
            slices.push(IoSlice::new(match run.part {
                Some(i) => &parts[i].data[(run.start - place.part_offsets[i]) as usize..][..length],
                None => {
                    scratch_at += length;
                    &self.scratch[scratch_at - length..scratch_at]
                }
            }));
        }
        let position = current.position;
        let is_synced =
            (self.config.sync || group.force_sync) && !self.config.canaries.has(Canary::M1AckBeforeSync);
        let is_newest_synced = is_synced && self.config.canaries.has(Canary::M2NewestFileSynced);
        let written = if is_synced && !is_newest_synced {
            current.file.write_all_durable_at(&mut slices, position)
        } else {
            current.unsynced_file(place.total_bytes).write_all_at(&mut slices, position)
        };
        let written = match written {
            Err(_) if self.config.canaries.has(Canary::M5SyncRetried) => current.file.sync(),
            other => other,
        };
        if let Err(error) = written {
            let slot = current.slot;
            return Err(self.latch("write and sync a group to", slot, error));
        }
        let current = self.current.as_mut().expect("still open");
        current.position += place.total_bytes;
        if !is_synced {
            current.unsynced = current.unsynced.saturating_add(1);
        }
        current.begin_writeback();
        self.written_bytes += place.total_bytes;
        self.next_group += 1;
        if is_newest_synced {
            if current.position + place.total_bytes > current.length {
                self.roll(place.total_bytes)?;
            }
            self.sync()?;
        }
        Ok(self.next_group - 1)
    }

    /// The next group gets a higher number than `group`.
    pub fn raise_group(&mut self, group: u64) {
        self.next_group = self.next_group.max(group + 1);
    }

    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<&JournalError> {
        self.failed.as_ref()
    }

    /// Makes everything written so far durable: what FORCE_LEDGER asks of a journal that does not sync by itself.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        let (synced, slot) = (current.file.sync(), current.slot);
        if synced.is_ok() {
            current.unsynced = 0;
        }
        synced.map_err(|error| self.latch("sync", slot, error))
    }

    /// Everything up to `group` is in ledger storage: files that hold nothing later may be reused (invariant 5).
    pub fn release_up_to(&mut self, group: u64) {
        let (mut kept, mut released): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.used).into_iter().partition(|used| used.last_group > group);
        // Above the cap, the files with the highest slots are removed, so that few slots below are left without a file. A removed
        // file that is back after a crash holds only groups that are covered.
        while self.config.bytes_max > 0 && self.footprint_bytes() > self.config.bytes_max {
            let Some(at) = released.iter().position(|used| used.slot + 1 == self.next_slot) else { break };
            if self.disk.remove(&self.config.dir.join(slot_name(released[at].slot))).is_err() {
                break;
            }
            let slot = released.remove(at).slot;
            self.give_back_slot(slot);
        }
        for used in released {
            let path = self.config.dir.join(slot_name(used.slot));
            if used.is_unreadable {
                // It would count as damage at every start if it were the newest file. One that cannot be removed is left alone.
                if self.disk.remove(&path).is_ok() {
                    self.give_back_slot(used.slot);
                }
                continue;
            }
            match self.disk.open(&path, OpenMode::CreateDirect) {
                // A file that ends inside its header is emptied, or a later start would take it for damage. If that fails it is not used.
                Ok(file) if file.len().is_ok_and(|length| length < BLOCK) && file.set_len(0).is_err() => {}
                Ok(file) => {
                    let length = file.len().unwrap_or(0);
                    self.free.push_back(PreparedFile { slot: used.slot, file, length });
                }
                // The next flush tries again.
                Err(error) if has_no_descriptor(&error) => kept.push(used),
                // A slot that cannot be opened any more is left alone: it holds nothing that is needed.
                Err(_) => {}
            }
        }
        self.used = kept;
    }

    /// For a start that cannot flush yet what it replayed after `covered`, so that its files must be kept. Makes what was read durable,
    /// which otherwise the flush does, and makes a file for what follows, if possible. Blocks on the disk.
    ///
    /// # Errors
    /// A file cannot be synced, or a sync of it failed in an earlier process: a power cut may take groups that were read from it.
    pub fn hold(&mut self, covered: u64) -> Result<(), OpenError> {
        self.release_up_to(covered);
        let cannot = |action, path: PathBuf| move |source| OpenError::Io { action, path, source };
        for used in &self.used {
            let path = self.config.dir.join(slot_name(used.slot));
            let reader = Reader::open(&self.disk, path.clone())?;
            let is_durable = match reader.header()? {
                Ok(header) if header.is_unsynced => reader.is_on_medium()?,
                // It was read past the page cache.
                _ => Reader::of_medium(&self.disk, path.clone()).map(|_| true)?,
            };
            if !is_durable {
                let why = "a sync of it failed before, and only the page cache still has what it was given";
                return Err(cannot("sync", path)(io::Error::other(why)));
            }
        }
        self.prepare()
    }

    /// Called at the end of a start: makes the names of the files durable, and makes a file for the next group, if possible. The first
    /// group then needs neither space nor a descriptor. If no file can be made now, that group has to wait for one. Blocks on the disk.
    ///
    /// # Errors
    /// The directory cannot be synced.
    pub fn prepare(&mut self) -> Result<(), OpenError> {
        if !self.names_are_durable {
            let path = self.config.dir.clone();
            self.disk.sync_dir(&path).map_err(|source| OpenError::Io { action: "sync", path, source })?;
            self.names_are_durable = true;
        }
        if self.free.is_empty() {
            let _ = self.add_spare();
        }
        Ok(())
    }

    /// Number of files ready to be taken into use.
    pub fn files_free(&self) -> usize {
        self.free.len()
    }

    /// True when the file in use is the last, and no further one could be made.
    pub fn has_no_other_file(&self) -> bool {
        self.no_space.is_some() && self.free.is_empty()
    }

    /// Most bytes of a group with recovery adds while no further file can be counted on: a quarter of a file is left for fences, and the
    /// group fits the file in use or the next one.
    pub fn room_for_recoveries(&self) -> u64 {
        let current = self.current.as_ref().map_or(0, |c| c.length - c.position);
        // The file in use begins with its header, of one block.
        let next = self.free.front().map_or(0, |next| next.length.saturating_sub(BLOCK));
        (current + next).saturating_sub(self.config.file_bytes / 4).min(current.max(next))
    }

    /// Why no further file can be made, while the one in use is the last: only what must be written should be written then. `None`
    /// otherwise, and during the first half of a file that is the only one: there is none that a flush could free, and a volume with
    /// room for a single file would be of no use.
    pub fn short_of_files(&self) -> Option<(Shortage, &str)> {
        let is_half_used = self.current.as_ref().is_none_or(|c| c.position >= c.length / 2);
        let is_short = self.free.is_empty() && (is_half_used || !self.used.is_empty());
        self.no_space.as_ref().filter(|_| is_short).map(|(shortage, why)| (*shortage, &**why))
    }

    /// Files full of groups that are not released.
    pub fn files_used(&self) -> usize {
        self.used.len()
    }

    /// Tries to make a file when the last try found no space. Blocks on the disk.
    pub fn make_spare(&mut self) {
        if self.has_no_other_file() && self.failed.is_none() {
            let _ = self.add_spare();
        }
    }

    /// Creates a journal file before it is needed, blocking on the disk. If space or descriptors are short, `no_space` says why, and
    /// callers may drop the error; any other kind comes back when a group needs the file.
    fn add_spare(&mut self) -> io::Result<()> {
        let file = self.create_file(self.config.file_bytes)?;
        self.free.push_back(file);
        Ok(())
    }

    /// Fails if fewer than `bytes` are free. An attempt to allocate them would take all free space for a moment, away from a flush or a
    /// rewrite of entry logs.
    fn find_space(&self, bytes: u64) -> io::Result<()> {
        match self.disk.space(&self.config.dir) {
            // Some network file systems do not say.
            Ok(space) if space.total > 0 && space.free < bytes => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("{bytes} bytes are needed, and {} are free", space.free),
            )),
            _ => Ok(()),
        }
    }

    /// Makes a file with all its blocks allocated, so that the write of a group never finds the volume full half-way. A file that cannot
    /// be made is removed again, and `no_space` says why if that may pass.
    fn create_file(&mut self, length: u64) -> io::Result<PreparedFile> {
        let slot = self.reserve_slot();
        let path = self.config.dir.join(slot_name(slot));
        let opened = self.find_space(length).and_then(|()| self.disk.open(&path, OpenMode::CreateDirect));
        let made = opened.and_then(|file| {
            file.allocate(length)?;
            self.disk.sync_dir(&self.config.dir)?;
            Ok(PreparedFile { slot, file, length })
        });
        match &made {
            Ok(_) => (self.no_space, self.names_are_durable) = (None, true),
            Err(error) => {
                // If it stays, the next start skips it as unused.
                let _ = self.disk.remove(&path);
                self.give_back_slot(slot);
                self.no_space = Shortage::of(error)
                    .map(|shortage| (shortage, format!("cannot make {}: {error}", path.display())));
            }
        }
        made
    }

    /// The file for the next groups, and how much of it can be used.
    fn next_file(&mut self, length: u64) -> Result<(PreparedFile, u64), JournalError> {
        // At the cap the file that is kept back is used. One beyond the cap is made only if there is none.
        let may_make = self.free.is_empty() || !self.has_all_files();
        if self.free.len() <= FILES_KEPT_BACK && may_make {
            match self.create_file(length) {
                // The older free file comes first: files come into use in the order of their numbers.
                Ok(file) if length == self.config.file_bytes => self.free.push_back(file),
                Ok(file) => return Ok((file, length)),
                Err(error) if Shortage::of(&error).is_none() || self.free.is_empty() => {
                    let slot = self.missing_slots.first().copied().unwrap_or(self.next_slot);
                    return Err(self.latch("create", slot, error));
                }
                Err(_) => {} // one that is kept back; `no_space` says why
            }
        }
        let prepared = self.free.pop_front().expect("one is free");
        // A file of an earlier version may lack some of its blocks. If there is no space for them, its present length must do.
        let usable = match prepared.file.allocate(length).or_else(|error| match Shortage::of(&error) {
            Some(Shortage::Space) => Ok(()),
            _ => Err(error),
        }) {
            Ok(()) => prepared.file.len(),
            Err(error) => Err(error),
        };
        match usable {
            Ok(usable) => Ok((prepared, length.min(usable - usable % BLOCK))),
            Err(error) => Err(self.latch("allocate", prepared.slot, error)),
        }
    }

    /// Reserves the slot of a file that is yet to be made, here or by [`PreparedFile::create`] on another thread.
    pub fn reserve_slot(&mut self) -> u32 {
        self.missing_slots.pop_first().unwrap_or_else(|| {
            self.next_slot += 1;
            self.next_slot - 1
        })
    }

    /// Returns a slot that has no file, because none could be made or it was removed. It no longer counts as a file, and is given out
    /// again.
    pub fn give_back_slot(&mut self, slot: u32) {
        self.missing_slots.insert(slot);
        while self.next_slot > 0 && self.missing_slots.remove(&(self.next_slot - 1)) {
            self.next_slot -= 1;
        }
    }

    /// Takes a file that was prepared elsewhere.
    pub fn add_prepared(&mut self, file: PreparedFile) {
        self.free.push_back(file);
    }

    /// Takes the next file into use: its length is durable before its header, and that before the first group
    /// (invariant 3).
    fn roll(&mut self, group_bytes: u64) -> Result<(), JournalError> {
        let follows_sync = self.current.is_some() && !self.config.sync;
        if let Some(old) = self.current.take() {
            // A later forced sync reaches only the file that is in use then, so this one is synced now.
            if !self.config.sync
                && let Err(error) = old.file.sync()
            {
                return Err(self.latch("sync", old.slot, error));
            }
            let last_group = self.next_group - 1;
            self.used.push(Used { slot: old.slot, last_group, is_unreadable: false });
        }
        let (PreparedFile { slot, file, .. }, length) =
            self.next_file(self.config.file_bytes.max(BLOCK + group_bytes))?;
        if length < BLOCK + group_bytes {
            let full = io::Error::new(io::ErrorKind::StorageFull, "the file is too short for the group");
            return Err(self.latch("use", slot, full));
        }
        let identity = FileIdentity { file_id: self.next_file_id, nonce: self.random.next_u64() };
        let header = FileHeader {
            identity,
            first_group: self.next_group,
            length,
            owner: self.config.owner.clone(),
            journal: self.config.journal,
            is_tiered: self.config.is_tiered,
            is_unsynced: !self.config.sync,
            is_whole: true,
            follows_sync,
        };
        header.encode(&mut self.scratch[..BLOCK_SIZE_BYTES]);
        // The length is made durable before the header: a file that is shorter than its header says was truncated later.
        let ready = file
            .sync()
            .and_then(|()| {
                file.write_all_durable_at(&mut [IoSlice::new(&self.scratch[..BLOCK_SIZE_BYTES])], 0)
            })
            .and_then(
                |()| if self.names_are_durable { Ok(()) } else { self.disk.sync_dir(&self.config.dir) },
            );
        if let Err(error) = ready {
            return Err(self.latch("start", slot, error));
        }
        self.names_are_durable = true;
        let path = self.config.dir.join(slot_name(slot));
        let cached = (!self.config.sync).then(|| self.disk.open(&path, OpenMode::CreateBuffered)).transpose();
        let cached = match cached {
            // It is slower without: all groups are written to the device directly.
            Err(error) if has_no_descriptor(&error) => None,
            other => other.map_err(|error| self.latch("open", slot, error))?,
        };
        self.next_file_id += 1;
        let (position, writeback) = (BLOCK, BLOCK);
        self.current =
            Some(Current { slot, file, cached, identity, position, length, unsynced: 0, writeback });
        // Not only when this one is full: if the volume is full as well by then, there is no file for fences.
        if self.free.is_empty() && !self.has_all_files() {
            let _ = self.add_spare();
        }
        Ok(())
    }

    fn latch(&mut self, action: &'static str, slot: u32, source: io::Error) -> JournalError {
        let path = self.config.dir.join(slot_name(slot));
        let error = JournalError { action, path, source: Arc::new(source) };
        self.failed = Some(error.clone());
        error
    }
}

impl PreparedFile {
    /// Creates the file of a reserved slot and fills it with zeros, so that no later write has to allocate: measured,
    /// a synced write into merely allocated space takes 2.7 times as long. `proceed` is called before each step. When it returns false
    /// the result is `Ok(None)`, and the unfinished file stays. After an error the file is removed, so the slot can be given back.
    pub fn create(
        disk: &dyn Disk,
        config: &JournalConfig,
        slot: u32,
        proceed: impl FnMut() -> bool,
    ) -> io::Result<Option<PreparedFile>> {
        let made = PreparedFile::fill(disk, config, slot, proceed);
        if made.is_err() {
            // If it stays, the next start skips it as unused.
            let _ = disk.remove(&config.dir.join(slot_name(slot)));
        }
        made
    }

    fn fill(
        disk: &dyn Disk,
        config: &JournalConfig,
        slot: u32,
        mut proceed: impl FnMut() -> bool,
    ) -> io::Result<Option<PreparedFile>> {
        let path = config.dir.join(slot_name(slot));
        let file = disk.open(&path, OpenMode::CreateDirect)?;
        let length = file.len()?;
        let whole = length - length % BLOCK;
        let mut fill = ZeroFill::new(whole, config.file_bytes.saturating_sub(whole));
        while fill.remaining() > 0 {
            if !proceed() {
                return Ok(None);
            }
            fill.step(&*file)?;
        }
        file.sync()?;
        disk.sync_dir(&config.dir)?;
        Ok(Some(PreparedFile { slot, file, length: config.file_bytes.max(whole) }))
    }
}

/// A range of the group that goes to disk from one place in memory: a part's chunk, or the scratch buffer.
struct Run {
    start: u64,
    end: u64,
    part: Option<usize>,
}

/// Splits `[0, total)` into runs. Whole blocks inside a long part come from its chunk, the rest from scratch.
fn plan_runs(parts: &[Part], offsets: &[u64], total: u64) -> Vec<Run> {
    let mut runs = Vec::with_capacity(2 * parts.len() + 1);
    let mut done = 0;
    for (i, (part, &offset)) in parts.iter().zip(offsets).enumerate() {
        let start = offset.next_multiple_of(BLOCK);
        let end = offset + part.data.len() as u64;
        let end = end - end % BLOCK;
        if end < start + DIRECT_RUN_MIN {
            continue;
        }
        if done < start {
            runs.push(Run { start: done, end: start, part: None });
        }
        runs.push(Run { start, end, part: Some(i) });
        done = end;
    }
    if done < total {
        runs.push(Run { start: done, end: total, part: None });
    }
    runs
}

/// Fills `scratch` with the runs that come from no chunk, one after another: the header, ends of parts, and zeros between them.
fn fill_scratch(
    scratch: &mut AlignedBuf,
    runs: &[Run],
    header: &GroupHeader,
    parts: &[Part],
    offsets: &[u64],
) {
    let needed: u64 = runs.iter().filter(|r| r.part.is_none()).map(|r| r.end - r.start).sum();
    if (scratch.len() as u64) < needed {
        *scratch = AlignedBuf::zeroed(needed as usize);
    }
    scratch[..needed as usize].fill(0);
    let mut base = 0u64;
    for run in runs.iter().filter(|r| r.part.is_none()) {
        for (part, &offset) in parts.iter().zip(offsets) {
            let from = offset.max(run.start);
            let to = (offset + part.data.len() as u64).min(run.end);
            if from < to {
                let source = &part.data[(from - offset) as usize..(to - offset) as usize];
                let at = (base + from - run.start) as usize;
                scratch[at..at + source.len()].copy_from_slice(source);
            }
        }
        base += run.end - run.start;
    }
    let mut bytes = Vec::with_capacity(BLOCK_SIZE_BYTES);
    header.encode(&mut bytes);
    scratch[..bytes.len()].copy_from_slice(&bytes);
}
