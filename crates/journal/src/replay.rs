//! Reading a journal back after a restart: which files, which groups, and what a bad group means.
//!
//! A bad group is a torn tail when no later group of the same file use exists, and damage otherwise (requirement
//! J13): damage stops the start, because a bookie that forgot acknowledged entries must not answer "no such entry".
//! Damage below the covered group is harmless and skipped. A file that was written without sync may have holes, but where
//! a group behind one proves that it was durable, or the next file that all of this one was. A newest file that is shorter
//! than it was when its header was written is damage as well, and so is one that ends inside its header: no write of ours
//! leaves one.
//!
//! A file that was written with sync is read past the page cache: a group that only the cache still shows, since its sync
//! failed, was never acknowledged, and a mark that counts it would be above all that the journal has after a power cut.
//!
//! Blocks that the medium cannot return are read as zeros and remembered: behind what is covered they are damage,
//! whatever else is found, since their content is unknown. It may pass ([`Damage::may_pass`]).

use crate::file::{FileHeader, HeaderProblem, slot_name, slot_of_name};
use crate::group::{FileIdentity, GroupHeader};
use crate::record::{Record, decode_part};
use crate::writer::{Journal, JournalConfig, Used};
use bindery_io::canary::Canary;
use bindery_io::chunk::AlignedBuf;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode, Random, is_unreadable, open_ahead};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
/// Bytes read at once while looking for a group behind a bad one.
const SCAN_STEP: usize = 1 << 20;

/// Bytes read ahead of the groups of a file.
const WINDOW_BYTES: usize = 1 << 20;

/// The description of a block that the medium cannot return.
const UNREADABLE: &str = "the disk does not give what is there (an I/O error), and nobody knows what it was";

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// Verb phrase.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A later format.
    #[error("journal file {path} has {problem}")]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Always [`HeaderProblem::NewerFormat`].
        problem: HeaderProblem,
    },
    /// The file belongs to another journal of the bookie.
    #[error(
        "journal file {path} is of journal {found} of this bookie, and its directory is configured as journal \
         {expected}: name the journal directories in the order they had, and only take away from the end of the list"
    )]
    OtherJournal {
        /// The file.
        path: PathBuf,
        /// Number of the journal that wrote it.
        found: u16,
        /// Number by the configuration.
        expected: u16,
    },
    /// The file belongs to another bookie.
    #[error(
        "journal file {path} belongs to {found:?}, and this is {expected:?}: give each bookie its own directory"
    )]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// The id that is in the file.
        found: String,
        /// Our own id.
        expected: String,
    },
}

/// Acknowledged data may be missing at this place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "journal file {path} {} at offset {offset}: {what}. Nothing was changed. {}Look at it with \
     `bindery inspect journal {path}`; restore the file from a copy, or remove this bookie from the cluster and let \
     its ledgers be re-replicated, or start with --accept-journal-damage: what may be missing is then answered as \
     unknown",
    if *may_pass { "cannot be read" } else { "is damaged" },
    if *may_pass { "I/O errors may pass: start it again first. " } else { "" }
)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where the first bad byte may be.
    pub offset: u64,
    /// The damage, in words.
    pub what: String,
    /// The medium did not give some block of this journal, of whatever file: another start may read it.
    pub may_pass: bool,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError<E> {
    /// Reading failed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Data may be missing.
    #[error(transparent)]
    Damage(#[from] Damage),
    /// The visitor failed.
    #[error(transparent)]
    Visitor(E),
}

/// The findings of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Groups given to the visitor.
    pub groups: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of these groups on disk.
    pub bytes: u64,
    /// Sequence of the last group of the journal (given or covered).
    pub last_group: u64,
    /// File and offset of a group that was cut off because its write never finished.
    pub torn_tail: Option<(PathBuf, u64)>,
    /// Unsynced files with holes (only after a power cut with `journal.sync = false`).
    pub unsynced_holes: u64,
    /// Damaged places that were passed over ([`Journal::accept_damage`]).
    pub damaged_places: u64,
    /// The first of them.
    pub first_damage: Option<Damage>,
}

impl Replayed {
    /// Adds what the replay of another journal saw.
    pub fn add(&mut self, other: Replayed) {
        self.groups += other.groups;
        self.records += other.records;
        self.bytes += other.bytes;
        self.last_group = self.last_group.max(other.last_group);
        self.torn_tail = self.torn_tail.take().or(other.torn_tail);
        self.unsynced_holes += other.unsynced_holes;
        self.damaged_places += other.damaged_places;
        self.first_damage = self.first_damage.take().or(other.first_damage);
    }
}

struct Slot {
    slot: u32,
    path: PathBuf,
    header: Option<FileHeader>,
    /// The medium did not give the block that had the header, if there was one.
    lacks_header: bool,
}

impl Journal {
    /// Looks at the files of a journal; nothing is changed. Call [`Journal::replay`] next, even for an empty one.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: JournalConfig,
        random: Arc<dyn Random>,
    ) -> Result<Journal, OpenError> {
        let mut journal = Journal::new(disk, config, random);
        let slots = journal.find_slots()?;
        journal.next_slot = slots.iter().map(|slot| slot.slot + 1).max().unwrap_or(0);
        journal.missing_slots = (0..journal.next_slot).collect();
        for slot in &slots {
            journal.missing_slots.remove(&slot.slot);
            if let Some(header) = &slot.header {
                journal.next_file_id = journal.next_file_id.max(header.identity.file_id + 1);
            }
        }
        // The newest may be among those whose header is not to be had, and their ids must not be given out again.
        journal.next_file_id += slots.iter().filter(|slot| slot.lacks_header).count() as u64;
        Ok(journal)
    }

    /// Has [`Journal::replay`] pass over damage instead of stopping at it: everything that can be read is given. For an
    /// operator who accepts that acknowledged records are missing; their entries must be answered as unknown.
    pub fn accept_damage(&mut self) {
        self.accepts_damage = true;
    }

    /// Damage: the end of the replay, or one more place that is left out.
    fn pass_over(&self, damage: Damage, seen: &mut Replayed) -> Result<(), Damage> {
        let damage = Damage { may_pass: self.has_unreadable.load(Ordering::Relaxed), ..damage };
        if !self.accepts_damage {
            return Err(damage);
        }
        seen.damaged_places += 1;
        seen.first_damage.get_or_insert(damage);
        Ok(())
    }

    /// Gives `visit` every group behind `covered` (sequence and records, in order), and makes the journal ready to be
    /// written. Replaying twice gives the same (requirement J9).
    pub fn replay<E>(
        &mut self,
        covered: u64,
        mut visit: impl FnMut(u64, &[Record<'_>]) -> Result<(), E>,
    ) -> Result<Replayed, ReplayError<E>> {
        let mut slots = self.find_slots()?;
        let mut seen = Replayed { last_group: covered, ..Replayed::default() };
        if self.accepts_damage {
            for slot in slots.iter_mut().filter(|s| s.header.is_none()) {
                slot.header = self.header_by_groups(slot, covered, &mut seen)?;
            }
        }
        slots.sort_by_key(|s| s.header.as_ref().map(|h| h.identity.file_id));
        let headers: Vec<_> = slots.iter().filter_map(|s| s.header.as_ref()).collect();
        let mut position = 0;
        for slot in &slots {
            let Some(header) = &slot.header else { continue };
            let is_twice = position > 0 && headers[position - 1].identity.file_id == header.identity.file_id;
            position += 1;
            let next =
                headers[position..].iter().find(|next| next.identity.file_id > header.identity.file_id);
            if is_twice && !self.config.canaries.has(Canary::M11ReplayStopsAtDamage) {
                let what = format!(
                    "another file has its id, {}: one of them is a copy, or older",
                    header.identity.file_id
                );
                self.pass_over(
                    Damage { path: slot.path.clone(), offset: 0, what, may_pass: false },
                    &mut seen,
                )?;
            }
            if let Some(next) = next.filter(|next| next.first_group <= covered + 1) {
                // All of it is covered: no need to read it, and damage in it does no harm.
                let (last_group, is_unreadable) = (next.first_group - 1, slot.lacks_header);
                self.used.push(Used { slot: slot.slot, last_group, is_unreadable });
                continue;
            }
            if header.first_group > seen.last_group + 1 {
                let what = format!(
                    "it starts with group {}, and group {} was not found in any file",
                    header.first_group,
                    seen.last_group + 1
                );
                // Also without sync: the file before is synced as a whole before another one begins.
                if !self.config.canaries.has(Canary::M11ReplayStopsAtDamage) {
                    self.pass_over(
                        Damage { path: slot.path.clone(), offset: 0, what, may_pass: false },
                        &mut seen,
                    )?;
                }
                seen.last_group = header.first_group - 1;
            }
            let follows = next.map(|next| next.first_group);
            let is_next = |next: &&&FileHeader| next.identity.file_id == header.identity.file_id + 1;
            let was_synced = next.filter(is_next).is_some_and(|next| next.follows_sync);
            let may_have_holes = header.is_unsynced && !was_synced;
            let reader = self.reader(slot)?;
            let last_group =
                self.replay_file(&reader, header, may_have_holes, follows, covered, &mut seen, &mut visit)?;
            if next.is_none() {
                self.check_length(slot, header, &mut seen)?;
            }
            let is_unreadable = slot.lacks_header || reader.last_unreadable().is_some();
            self.used.push(Used { slot: slot.slot, last_group, is_unreadable });
        }
        for slot in slots.iter().filter(|s| s.header.is_none()) {
            let reader = self.reader(slot)?;
            self.check_headless(slot, &reader, &mut seen)?;
            let is_unreadable = slot.lacks_header || reader.last_unreadable().is_some();
            self.used.push(Used { slot: slot.slot, last_group: 0, is_unreadable });
        }
        self.next_group = seen.last_group + 1;
        Ok(seen)
    }

    /// Replays one file; returns the sequence of its last good group. `follows`: the first group of the next file.
    #[allow(clippy::too_many_arguments, reason = "what is known of a file, and where what it holds goes")]
    fn replay_file<E>(
        &self,
        reader: &Reader,
        header: &FileHeader,
        may_have_holes: bool,
        follows: Option<u64>,
        covered: u64,
        seen: &mut Replayed,
        visit: &mut impl FnMut(u64, &[Record<'_>]) -> Result<(), E>,
    ) -> Result<u64, ReplayError<E>> {
        let unchecked = self.config.canaries.has(Canary::M12RecycledFileUnchecked);
        let identity = if unchecked { None } else { Some(header.identity) };
        let mut last = header.first_group.saturating_sub(1);
        let mut offset = BLOCK;
        // Before it everything is covered.
        let mut needed_from = BLOCK;
        let places_before = seen.damaged_places;
        let mut buffer = Vec::new();
        // Holes ascend, and so do the proofs behind them: each part of the file is read once.
        let mut proven = Proven::default();
        loop {
            match reader.group_at(offset, identity, &mut buffer)? {
                Ok(group) => {
                    let sequence = if unchecked { seen.last_group.max(covered) + 1 } else { group.sequence };
                    if sequence > seen.last_group + 1 {
                        let what = format!("group {sequence} follows group {}", seen.last_group);
                        self.pass_over(reader.damage(offset, what), seen)?;
                        seen.last_group = sequence - 1;
                    }
                    if sequence == seen.last_group + 1 {
                        let records = reader.records(&group, &buffer);
                        let records = records.expect("group_at checked the parts");
                        visit(sequence, &records).map_err(ReplayError::Visitor)?;
                        seen.groups += 1;
                        seen.records += records.len() as u64;
                        seen.bytes += group.total_bytes;
                        seen.last_group = sequence;
                    }
                    last = sequence.max(last);
                    offset += group.total_bytes;
                    if sequence <= covered {
                        needed_from = offset;
                    }
                }
                Err(what) => {
                    let Some((next, sequence)) = reader.next_group_behind(offset, header.identity)? else {
                        // The next file proves that what is missing behind the last group is nothing.
                        let is_whole = follows == Some(seen.last_group + 1);
                        let unreadable =
                            reader.last_unreadable().filter(|at| *at >= needed_from && !is_whole);
                        match unreadable {
                            // Passed over, it counts once with what was found before.
                            Some(_) if seen.damaged_places > places_before => {}
                            Some(at) => self.pass_over(reader.damage(at, UNREADABLE.to_owned()), seen)?,
                            None if what.is_torn => {
                                seen.torn_tail = Some((reader.path.clone(), offset));
                            }
                            None => {}
                        }
                        return Ok(last);
                    };
                    if sequence <= covered + 1 {
                        needed_from = next;
                    } else {
                        if self.config.canaries.has(Canary::M11ReplayStopsAtDamage) {
                            return Ok(last);
                        }
                        if !may_have_holes {
                            let what = format!("{}, and group {sequence} follows at {next}", what.text);
                            self.pass_over(reader.damage(offset, what), seen)?;
                            seen.last_group = sequence - 1;
                            offset = next;
                            continue;
                        }
                        let missing = seen.last_group + 1;
                        if let Some((at, proof)) = proven.behind(reader, next, header.identity, missing)? {
                            let what = format!(
                                "{}, and group {} at {at} was written when group {missing} was durable",
                                what.text, proof.sequence
                            );
                            self.pass_over(reader.damage(offset, what), seen)?;
                        }
                        seen.unsynced_holes += 1;
                        seen.last_group = sequence - 1;
                    }
                    offset = next;
                }
            }
        }
    }

    /// The newest file may end with any group, so only its length tells that it was cut. In any other file, missing
    /// groups show in the file that follows it.
    fn check_length(
        &self,
        slot: &Slot,
        header: &FileHeader,
        seen: &mut Replayed,
    ) -> Result<(), OpenOrDamage> {
        let reader = self.reader(slot)?;
        let is_cut = header.is_whole && reader.length < header.length;
        if is_cut && !self.config.canaries.has(Canary::M11ReplayStopsAtDamage) {
            let what = format!("it was cut: it had {} bytes, and has {}", header.length, reader.length);
            self.pass_over(reader.damage(reader.length, what), seen)?;
        }
        Ok(())
    }

    /// A file whose header is bad counts as unused, unless it holds a group that would come next: then its header
    /// was damaged after groups were acknowledged from it.
    fn check_headless(&self, slot: &Slot, reader: &Reader, seen: &mut Replayed) -> Result<(), OpenOrDamage> {
        let mut offset = BLOCK;
        if reader.seems_unused()? {
            // Of a file with one group, header and group may be what the disk does not give.
            let unreadable = reader.last_unreadable().filter(|at| *at >= BLOCK && slot.lacks_header);
            if let Some(at) = unreadable {
                self.pass_over(reader.damage(at, UNREADABLE.to_owned()), seen)?;
            }
            return Ok(());
        }
        if reader.length < BLOCK {
            if !self.config.canaries.has(Canary::M11ReplayStopsAtDamage) {
                let what = format!("it was cut inside its header: it has {} bytes", reader.length);
                self.pass_over(reader.damage(reader.length, what), seen)?;
            }
            return Ok(());
        }
        let (last_group, places_before) = (seen.last_group, seen.damaged_places);
        while let Some((at, header)) = reader.scan(offset, |h| h.sequence > last_group)? {
            let mut buffer = Vec::new();
            if reader.group_at(at, Some(header.identity), &mut buffer)?.is_ok()
                && !self.config.canaries.has(Canary::M11ReplayStopsAtDamage)
            {
                self.pass_over(reader.damage(0, headless_with(header.sequence)), seen)?;
            }
            offset = at + BLOCK;
        }
        // Of a header alone nothing is missing.
        let unreadable = reader.last_unreadable().filter(|at| *at >= BLOCK);
        if let Some(at) = unreadable.filter(|_| seen.damaged_places == places_before) {
            self.pass_over(reader.damage(at, UNREADABLE.to_owned()), seen)?;
        }
        Ok(())
    }

    /// After accepted damage: the header that a file without one must have had, by the good groups of its last use, when one
    /// of them is behind `covered`. The length of the file remains unknown.
    fn header_by_groups(
        &mut self,
        slot: &Slot,
        covered: u64,
        seen: &mut Replayed,
    ) -> Result<Option<FileHeader>, OpenOrDamage> {
        let reader = self.reader(slot)?;
        if reader.seems_unused()? {
            return Ok(None);
        }
        // The first and the last good group of the last use.
        let mut found: Option<(GroupHeader, u64)> = None;
        let (mut offset, mut buffer) = (BLOCK, Vec::new());
        while let Some((at, begun)) = reader.scan(offset, |_| true)? {
            offset = at + BLOCK;
            let Ok(group) = reader.group_at(at, Some(begun.identity), &mut buffer)? else { continue };
            offset = at + group.total_bytes;
            let file_id = group.identity.file_id;
            match &mut found {
                Some((first, _)) if first.identity.file_id > file_id => {}
                Some((first, last)) if first.identity.file_id == file_id => *last = group.sequence,
                _ => found = Some((group.clone(), group.sequence)),
            }
        }
        let Some((first, last)) = found.filter(|(_, last)| *last > covered) else { return Ok(None) };
        self.pass_over(reader.damage(0, headless_with(last)), seen)?;
        self.raise_file_id(first.identity.file_id);
        Ok(Some(FileHeader {
            identity: first.identity,
            first_group: first.sequence,
            length: reader.length,
            owner: self.config.owner.clone(),
            journal: self.config.journal,
            is_tiered: self.config.is_tiered,
            is_unsynced: first.unsynced_before > 0,
            is_whole: false,
            follows_sync: false,
        }))
    }

    fn find_slots(&self) -> Result<Vec<Slot>, OpenError> {
        let dir = &self.config.dir;
        let names = match self.disk.list(dir) {
            Ok(names) => names,
            Err(source) => return Err(OpenError::Io { action: "list", path: dir.clone(), source }),
        };
        let mut slots = Vec::new();
        for entry in names.into_iter().filter(|e| !e.is_dir) {
            let Some(slot) = slot_of_name(&entry.name) else { continue };
            let path = dir.join(slot_name(slot));
            let mut found = Slot { slot, path, header: None, lacks_header: false };
            let mut block = vec![0; BLOCK_SIZE_BYTES];
            let reader = self.reader(&found)?;
            let read = reader.read(0, &mut block)?;
            found.lacks_header = reader.last_unreadable().is_some();
            match FileHeader::decode(&block[..read]) {
                Ok(header) if header.owner == self.config.owner => {
                    let (number, expected) = (header.journal, self.config.journal);
                    if number != expected {
                        return Err(OpenError::OtherJournal { path: found.path, found: number, expected });
                    }
                    found.header = Some(header);
                }
                Ok(header) => {
                    let expected = self.config.owner.clone();
                    return Err(OpenError::OtherOwner { path: found.path, found: header.owner, expected });
                }
                Err(problem @ HeaderProblem::NewerFormat(_)) => {
                    return Err(OpenError::NewerFormat { path: found.path, problem });
                }
                Err(HeaderProblem::Unused | HeaderProblem::Damaged) => {}
            }
            slots.push(found);
        }
        Ok(slots)
    }

    /// Reads a file whose groups were acknowledged as durable past the page cache. Any other is read through it: its groups have
    /// outlived the process that wrote them, and the flush makes them durable.
    fn reader(&self, slot: &Slot) -> Result<Reader, OpenError> {
        let patience = Some(self.has_unreadable.clone());
        let reader = match &slot.header {
            Some(header) if header.is_unsynced => Reader::open(&self.disk, slot.path.clone())?,
            Some(_) => Reader::of_medium(&self.disk, slot.path.clone())?,
            None => Reader::open(&self.disk, slot.path.clone())?,
        };
        Ok(Reader { patience, ..reader })
    }
}

/// Describes a file that has a bad header and a group that is needed.
fn headless_with(group: u64) -> String {
    format!("its header is unreadable, but group {group} is in it")
}

/// The errors of `check_headless`, for any visitor error type.
enum OpenOrDamage {
    Open(OpenError),
    Damage(Damage),
}
/// Groups of a file that say which others were durable when they were written. Asked for places and groups that ascend: each
/// part of the file is gone through once, however many holes there are.
#[derive(Default)]
struct Proven {
    /// The last proof found: no group before it proves as much.
    found: Option<(u64, GroupHeader)>,
    /// Behind it there is none.
    is_at_end: bool,
}

impl Proven {
    /// The first group at `offset` or behind that was written when group `missing` was durable.
    fn behind(
        &mut self,
        reader: &Reader,
        offset: u64,
        identity: FileIdentity,
        missing: u64,
    ) -> Result<Option<(u64, GroupHeader)>, OpenError> {
        let proves = |header: &GroupHeader| header.identity == identity && header.proves_durable() >= missing;
        let is_still = |(at, header): &(u64, GroupHeader)| *at >= offset && proves(header);
        if self.is_at_end || self.found.as_ref().is_some_and(is_still) {
            return Ok(self.found.clone().filter(is_still));
        }
        let from = self.found.as_ref().map_or(offset, |(at, _)| offset.max(*at));
        self.found = reader.scan(from, proves)?;
        self.is_at_end = self.found.is_none();
        Ok(self.found.clone())
    }
}

impl From<OpenError> for OpenOrDamage {
    fn from(e: OpenError) -> Self {
        OpenOrDamage::Open(e)
    }
}
impl From<Damage> for OpenOrDamage {
    fn from(e: Damage) -> Self {
        OpenOrDamage::Damage(e)
    }
}
impl<E> From<OpenOrDamage> for ReplayError<E> {
    fn from(e: OpenOrDamage) -> Self {
        match e {
            OpenOrDamage::Open(e) => ReplayError::Open(e),
            OpenOrDamage::Damage(e) => ReplayError::Damage(e),
        }
    }
}

/// Why there is no good group at an offset.
pub(crate) struct BadGroup {
    pub(crate) text: String,
    /// There is a header of this file use, so a group was begun here.
    pub(crate) is_torn: bool,
}

/// Reads one journal file.
pub(crate) struct Reader {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    length: u64,
    /// Set when what the medium does not give is read as zeros; without it that is an error.
    patience: Option<Arc<AtomicBool>>,
    /// Behind the last block that was read so; 0 while there is none.
    unreadable_end: Arc<AtomicU64>,
}

impl Reader {
    pub(crate) fn open(disk: &Arc<dyn Disk>, path: PathBuf) -> Result<Reader, OpenError> {
        let opened = disk.open(&path, OpenMode::Read).and_then(|file| Ok((file.len()?, file)));
        match opened {
            Ok((length, file)) => {
                let disk = disk.clone();
                Ok(Reader { disk, file, path, length, patience: None, unreadable_end: Arc::default() })
            }
            Err(source) => Err(OpenError::Io { action: "open", path, source }),
        }
    }

    /// As [`Reader::open`], past the page cache: after a failed sync the cache may show bytes that are nowhere else.
    /// Writes that a killed process left in the device are made durable first.
    pub(crate) fn of_medium(disk: &Arc<dyn Disk>, path: PathBuf) -> Result<Reader, OpenError> {
        let reader = Reader::open(disk, path)?;
        let synced = disk.open(&reader.path, OpenMode::CreateDirect).and_then(|file| file.sync());
        let opened = synced.and_then(|()| open_ahead(&**disk, &reader.path, WINDOW_BYTES));
        match opened {
            Ok(file) => {
                // Without direct I/O the page cache is read after all.
                file.drop_cached();
                Ok(Reader { file, ..reader })
            }
            Err(source) => Err(OpenError::Io { action: "sync", path: reader.path, source }),
        }
    }

    /// As [`Reader::open`], but blocks that the medium cannot return are read as zeros.
    pub(crate) fn patient(disk: &Arc<dyn Disk>, path: PathBuf) -> Result<Reader, OpenError> {
        Ok(Reader { patience: Some(Arc::default()), ..Reader::open(disk, path)? })
    }

    /// The header. One that the medium does not give is damaged.
    pub(crate) fn header(&self) -> Result<Result<FileHeader, HeaderProblem>, OpenError> {
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        let n = self.read(0, &mut block)?;
        Ok(match self.last_unreadable() {
            Some(_) => Err(HeaderProblem::Damaged),
            None => FileHeader::decode(&block[..n]),
        })
    }

    /// Why there is no good group at `offset`, which was just examined.
    pub(crate) fn why(&self, offset: u64, bad: BadGroup) -> String {
        match self.last_unreadable().filter(|at| *at >= offset) {
            Some(at) => format!("{UNREADABLE}, at {at}"),
            None => bad.text,
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, OpenError> {
        let mut done = 0;
        // Set by an error: the rest is read block by block, to find the blocks that are at fault.
        let mut is_by_block = false;
        while done < buf.len() {
            let at = offset + done as u64;
            let end = match is_by_block {
                true => buf.len().min(done + (BLOCK - at % BLOCK) as usize),
                false => buf.len(),
            };
            match self.file.read_at(&mut buf[done..end], at) {
                Ok(0) => break,
                // A direct file ends inside a block only when it was cut; it cannot be read on from there.
                Ok(n) if self.file.is_direct() && !n.is_multiple_of(BLOCK_SIZE_BYTES) => {
                    done += n;
                    break;
                }
                Ok(n) => done += n,
                Err(error) if is_unreadable(&error) && self.patience.is_some() => {
                    if !std::mem::replace(&mut is_by_block, true) {
                        continue;
                    }
                    let end = end.min(done + self.length.saturating_sub(at) as usize);
                    if end == done {
                        break;
                    }
                    buf[done..end].fill(0);
                    self.unreadable_end.fetch_max((at / BLOCK + 1) * BLOCK, Ordering::Relaxed);
                    if let Some(noted) = &self.patience {
                        noted.store(true, Ordering::Relaxed);
                    }
                    done = end;
                }
                Err(source) => return Err(OpenError::Io { action: "read", path: self.path.clone(), source }),
            }
        }
        Ok(done)
    }

    /// Where the last block is that the medium did not give.
    fn last_unreadable(&self) -> Option<u64> {
        self.unreadable_end.load(Ordering::Relaxed).checked_sub(BLOCK)
    }

    /// True when every block read is zero: a prepared file, never used. Most files without a header are these,
    /// and reading 256 MiB of zeros at each start would cost more than the rest of it. Looked at are the places of
    /// the header and the first groups, and one block in each MiB behind them.
    pub(crate) fn seems_unused(&self) -> Result<bool, OpenError> {
        const DENSE: u64 = 16 * BLOCK;
        let sparse = (DENSE..self.length).step_by(1 << 20);
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        for offset in (0..DENSE.min(self.length)).step_by(BLOCK_SIZE_BYTES).chain(sparse) {
            let n = self.read(offset, &mut block)?;
            if block[..n].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The group at `offset`, with `buffer` holding its bytes, every one of them checked.
    pub(crate) fn group_at(
        &self,
        offset: u64,
        identity: Option<FileIdentity>,
        buffer: &mut Vec<u8>,
    ) -> Result<Result<GroupHeader, BadGroup>, OpenError> {
        let bad = |text: &str, is_torn| Ok(Err(BadGroup { text: text.to_owned(), is_torn }));
        buffer.resize(BLOCK_SIZE_BYTES, 0);
        let n = self.read(offset, buffer)?;
        let Some(header) = GroupHeader::decode(&buffer[..n]) else { return bad("no group header", false) };
        if identity.is_some_and(|i| i != header.identity) || header.offset != offset {
            return bad("a group of an earlier use of the file", false);
        }
        if offset + header.total_bytes > self.length {
            return bad("a group that reaches beyond the file", true);
        }
        // The length is bounded by the file's, and the header's checksum holds.
        buffer.resize(header.total_bytes as usize, 0);
        if self.read(offset, buffer)? < buffer.len() {
            return bad("a group that reaches beyond the file", true);
        }
        match self.records(&header, buffer) {
            Ok(_) => Ok(Ok(header)),
            Err(text) => Ok(Err(BadGroup { text, is_torn: true })),
        }
    }

    /// The records of a group whose bytes are in `buffer`, part by part.
    pub(crate) fn records<'a>(
        &self,
        header: &GroupHeader,
        buffer: &'a [u8],
    ) -> Result<Vec<Record<'a>>, String> {
        let mut records = Vec::new();
        for part in &header.parts {
            let data = buffer.get(part.offset as usize..).and_then(|b| b.get(..part.length as usize));
            let data = data.ok_or("a part beyond its group")?;
            let mut decoded =
                decode_part(data, part.record_count, part.headers_crc).map_err(|e| e.to_string())?;
            records.append(&mut decoded);
        }
        Ok(records)
    }

    /// The first group of this file use that begins behind `offset`, by its header.
    pub(crate) fn next_group_behind(
        &self,
        offset: u64,
        identity: FileIdentity,
    ) -> Result<Option<(u64, u64)>, OpenError> {
        let found = self.scan(offset + BLOCK, |h| h.identity == identity)?;
        Ok(found.map(|(at, header)| (at, header.sequence)))
    }

    /// The first block from `offset` on that holds a group header at its own offset and satisfies `accept`.
    pub(crate) fn scan(
        &self,
        mut offset: u64,
        accept: impl Fn(&GroupHeader) -> bool,
    ) -> Result<Option<(u64, GroupHeader)>, OpenError> {
        // Past the page cache, which a start should not fill with zeros; the kernel writes out what is dirty first.
        let failed = |source| OpenError::Io { action: "open", path: self.path.clone(), source };
        let direct = self.disk.open(&self.path, OpenMode::CreateDirect).map_err(failed)?;
        let direct = Reader {
            disk: self.disk.clone(),
            file: direct,
            path: self.path.clone(),
            length: self.length,
            patience: self.patience.clone(),
            unreadable_end: self.unreadable_end.clone(),
        };
        let mut buffer = AlignedBuf::zeroed(SCAN_STEP.min(self.length.saturating_sub(offset) as usize));
        while offset < self.length {
            let n = direct.read(offset, &mut buffer)?;
            for at in (0..n).step_by(BLOCK_SIZE_BYTES) {
                let block = &buffer[at..n.min(at + BLOCK_SIZE_BYTES)];
                if let Some(header) = GroupHeader::decode(block)
                    && header.offset == offset + at as u64
                    && accept(&header)
                {
                    return Ok(Some((header.offset, header)));
                }
            }
            if n < buffer.len() {
                break;
            }
            offset += n as u64;
        }
        Ok(None)
    }

    /// True when the medium has what the page cache shows of this file.
    pub(crate) fn is_on_medium(&self) -> Result<bool, OpenError> {
        let mut window = vec![0; WINDOW_BYTES];
        let mut sums = |reader: &Reader| -> Result<Vec<u32>, OpenError> {
            let mut sums = Vec::new();
            for offset in (0..self.length).step_by(WINDOW_BYTES) {
                let n = reader.read(offset, &mut window)?;
                sums.push(crate::record::crc32c(&window[..n]));
            }
            Ok(sums)
        };
        // First what is shown: to get at the medium the page cache may have to forget it.
        let shown = sums(self)?;
        let medium = Reader::of_medium(&self.disk, self.path.clone())?;
        Ok(sums(&medium)? == shown)
    }

    fn damage(&self, offset: u64, what: String) -> Damage {
        Damage { path: self.path.clone(), offset, what, may_pass: false }
    }
}
