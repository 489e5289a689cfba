//! Reading a journal back after a restart: which files, which groups, and what a bad group means.
//!
//! A bad group is a torn tail when no later group of the same file use exists, and damage otherwise (requirement
//! J13): damage stops the start, because a bookie that forgot acknowledged entries must not answer "no such entry".
//! Damage up to the covered group is harmless and skipped. A file that was written without sync may have holes. A hole is damage only
//! if a later group of the file proves that the missing one was durable, or the next file proves that all of this one was. The newest
//! file is damaged as well if it is shorter than it was when its header was written, or ends inside its header: none of our writes
//! leaves such a file.
//!
//! A file that was written with sync is read past the page cache. A group that only the cache still shows, because its sync failed,
//! was never acknowledged, and a mark that counted it would be above everything that the journal has after a power cut.
//!
//! Blocks that the medium cannot return are read as zeros and remembered. After the covered group they are damage whatever else is
//! found, since their content is unknown. A later start may be able to read them ([`Damage::may_pass`]).

use crate::file::{FileHeader, HeaderProblem, slot_name, slot_of_name};
use crate::group::{FileIdentity, GroupHeader};
use crate::reader::{Damage, OpenError, Reader, UNREADABLE};
use crate::record::Record;
use crate::writer::{Journal, JournalConfig, Used};
use bindery_io::canary::Canary;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, Random};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
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
    /// The medium could not return the block of the header, so whether the file has one is unknown.
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
        // The files whose headers could not be read may have the highest ids, which must not be given out again.
        journal.next_file_id += slots.iter().filter(|slot| slot.lacks_header).count() as u64;
        Ok(journal)
    }

    /// Makes [`Journal::replay`] pass over damage, and replay everything that can be read, instead of stopping. For an operator who
    /// accepts that acknowledged records are missing. Their entries must then be answered as unknown, not as absent.
    pub fn accept_damage(&mut self) {
        self.accepts_damage = true;
    }

    /// Ends the replay with `damage`, or, if damage is accepted, counts one more place that is passed over.
    fn pass_over(&self, damage: Damage, seen: &mut Replayed) -> Result<(), Damage> {
        let damage = Damage { may_pass: self.has_unreadable.load(Ordering::Relaxed), ..damage };
        if !self.accepts_damage {
            return Err(damage);
        }
        seen.damaged_places += 1;
        seen.first_damage.get_or_insert(damage);
        Ok(())
    }

    /// Calls `visit` with sequence and records of every group after `covered`, in order, and makes the journal ready to be
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
                // This is damage without sync, too: a file is synced as a whole before the next one is begun.
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
        // Everything before this offset is covered.
        let mut needed_from = BLOCK;
        let places_before = seen.damaged_places;
        let mut buffer = Vec::new();
        // Holes ascend, and so do the groups after them that prove something: each part of the file is scanned once.
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
                        // If the next file begins with the next group, nothing is missing after the last one.
                        let is_whole = follows == Some(seen.last_group + 1);
                        let unreadable =
                            reader.last_unreadable().filter(|at| *at >= needed_from && !is_whole);
                        match unreadable {
                            // It counts as one with the damage that was found in this file before.
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

    /// Checks the length of the newest file, which may end with any group: only its length shows that it was truncated. Groups that are
    /// missing from any other file show in the file that follows it.
    fn check_length(
        &self,
        slot: &Slot,
        header: &FileHeader,
        seen: &mut Replayed,
    ) -> Result<(), OpenOrDamage> {
        let reader = self.reader(slot)?;
        let is_cut = header.is_whole && reader.length() < header.length;
        if is_cut && !self.config.canaries.has(Canary::M11ReplayStopsAtDamage) {
            let what = format!("it was cut: it had {} bytes, and has {}", header.length, reader.length());
            self.pass_over(reader.damage(reader.length(), what), seen)?;
        }
        Ok(())
    }

    /// Checks a file without a valid header, once all others are replayed. It counts as unused, unless it holds a good group after the
    /// last one replayed: then its header was damaged after groups in it were acknowledged. It is damaged as well if it ends inside its
    /// header, or if the medium cannot return blocks that may have held such a group.
    fn check_headless(&self, slot: &Slot, reader: &Reader, seen: &mut Replayed) -> Result<(), OpenOrDamage> {
        let mut offset = BLOCK;
        if reader.seems_unused()? {
            // The unreadable blocks may be the header and the only group of a file that was in use.
            let unreadable = reader.last_unreadable().filter(|at| *at >= BLOCK && slot.lacks_header);
            if let Some(at) = unreadable {
                self.pass_over(reader.damage(at, UNREADABLE.to_owned()), seen)?;
            }
            return Ok(());
        }
        if reader.length() < BLOCK {
            if !self.config.canaries.has(Canary::M11ReplayStopsAtDamage) {
                let what = format!("it was cut inside its header: it has {} bytes", reader.length());
                self.pass_over(reader.damage(reader.length(), what), seen)?;
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
        // If only the header cannot be read, no group is missing.
        let unreadable = reader.last_unreadable().filter(|at| *at >= BLOCK);
        if let Some(at) = unreadable.filter(|_| seen.damaged_places == places_before) {
            self.pass_over(reader.damage(at, UNREADABLE.to_owned()), seen)?;
        }
        Ok(())
    }

    /// Once damage is accepted: reconstructs the lost header of a file from the good groups of its last use. `None` if none of them
    /// is after `covered`. The length that the file had remains unknown.
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
            length: reader.length(),
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

    /// Opens a file past the page cache if its groups were acknowledged as durable. Any other file is read through the cache: the groups
    /// that it shows have outlived the process that wrote them, and the flush after the replay makes them durable.
    fn reader(&self, slot: &Slot) -> Result<Reader, OpenError> {
        let reader = match &slot.header {
            Some(header) if header.is_unsynced => Reader::open(&self.disk, slot.path.clone())?,
            Some(_) => Reader::of_medium(&self.disk, slot.path.clone())?,
            None => Reader::open(&self.disk, slot.path.clone())?,
        };
        Ok(reader.with_patience(self.has_unreadable.clone()))
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
/// Finds groups of a file that prove that others were durable before them. Its questions must ascend by offset and by group: then
/// each part of the file is scanned once, however many holes there are.
#[derive(Default)]
struct Proven {
    /// The last proof found: no group before it proves as much.
    found: Option<(u64, GroupHeader)>,
    /// The file was scanned to its end: there is no other proof.
    is_at_end: bool,
}

impl Proven {
    /// The first group at or after `offset` that was written when group `missing` was durable already.
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
