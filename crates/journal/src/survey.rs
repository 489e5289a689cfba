//! Every place of a journal file, good or not, for `bindery verify` and `bindery disk`. Needs no server and changes
//! nothing.
//!
//! A restart reads what the marks need and stops at the first damage; this goes on behind it, by the same reader. What
//! the restart would say is [`crate::Journal::replay`]'s to say.
//!
//! # Limits
//! One group in memory, and [`CLAIMS_MAX`] ranges of entries for each bad place.

use crate::file::{FileHeader, HeaderProblem, slot_of_name};
use crate::group::GroupHeader;
use crate::reader::{OpenError, Reader};
use crate::record::{HEADER_SIZE_BYTES, Kind, Record};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, OpenMode};
use bindery_types::{EntryId, LedgerId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Ranges that a bad place lists.
pub const CLAIMS_MAX: usize = 32;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;

/// One file of a journal.
#[derive(Debug, Clone)]
pub struct File {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// Its header, or why it has none.
    pub header: Result<FileHeader, HeaderProblem>,
}

impl File {
    /// True when it is shorter than it was when its header was written. Of the newest file that is damage; of an earlier
    /// one only when groups are missing before the next.
    pub fn was_cut(&self) -> bool {
        match &self.header {
            Ok(header) => header.is_whole && self.length < header.length,
            Err(problem) => self.length < BLOCK && *problem == HeaderProblem::Damaged,
        }
    }
}

/// The content at a place of a file.
pub enum Place<'a> {
    /// A good group and its records.
    Group(&'a GroupHeader, &'a [Record<'a>]),
    /// No good group where one was begun or must have been.
    Bad(BadPlace),
}

/// Bytes where a group was begun, or must have been because another follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPlace {
    /// Offset in the file.
    pub offset: u64,
    /// Why it is no good group.
    pub why: String,
    /// Offset and sequence of the next group of the same use. `None`: nothing follows, a torn tail.
    pub next: Option<(u64, u64)>,
    /// Entries that the bytes say they hold, unverified: ledger, first, last. Other records count as `None`.
    pub claims: Vec<(LedgerId, Option<(EntryId, EntryId)>)>,
}

impl BadPlace {
    /// True when a restart that has everything up to group `covered` stops here (requirement J13), unless the file was
    /// written without sync.
    pub fn is_damage(&self, covered: u64) -> bool {
        self.next.is_some_and(|(_, sequence)| sequence > covered + 1)
    }
}

/// The files of the journal in `dir`: in the order of their use, then those without a header.
pub fn files(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Vec<File>, OpenError> {
    let failed = |source| OpenError::Io { action: "list", path: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in disk.list(dir).map_err(failed)? {
        if entry.is_dir || slot_of_name(&entry.name).is_none() {
            continue;
        }
        files.push(file(disk, &dir.join(&entry.name))?);
    }
    let order = |file: &File| file.header.as_ref().map_or((true, 0), |h| (false, h.identity.file_id));
    files.sort_by_key(order);
    Ok(files)
}

/// One file by its path.
///
/// # Errors
/// When it cannot be opened or read.
pub fn file(disk: &Arc<dyn Disk>, path: &Path) -> Result<File, OpenError> {
    let reader = Reader::patient(disk, path.to_owned())?;
    Ok(File { path: path.to_owned(), length: reader.length(), header: reader.header()? })
}

/// The number of the journal whose files are in `dir`, by the first of them that can be read and has a header.
pub fn number(disk: &dyn Disk, dir: &Path) -> Option<u16> {
    let names = disk.list(dir).ok()?;
    names.iter().filter(|entry| !entry.is_dir && slot_of_name(&entry.name).is_some()).find_map(|entry| {
        let file = disk.open(&dir.join(&entry.name), OpenMode::Read).ok()?;
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        file.read_exact_at(&mut block, 0).ok()?;
        Some(FileHeader::decode(&block).ok()?.journal)
    })
}

/// True for a name that a journal file has.
pub fn is_journal_file(name: &str) -> bool {
    slot_of_name(name).is_some()
}

/// Shows `visit` the places of a file's current use in their order. A file without a header shows the good groups
/// that it holds of any use, and no bad places.
///
/// # Errors
/// When the file cannot be read.
pub fn walk(disk: &Arc<dyn Disk>, file: &File, mut visit: impl FnMut(Place<'_>)) -> Result<(), OpenError> {
    let reader = Reader::patient(disk, file.path.clone())?;
    let mut buffer = Vec::new();
    let mut offset = BLOCK;
    let Ok(header) = &file.header else {
        if file.length <= BLOCK || reader.seems_unused()? {
            return Ok(());
        }
        while let Some((at, found)) = reader.scan(offset, |_| true)? {
            offset = at + BLOCK;
            if let Ok(group) = reader.group_at(at, Some(found.identity), &mut buffer)? {
                let records = reader.records(&group, &buffer).expect("group_at checked the parts");
                visit(Place::Group(&group, &records));
                offset = at + group.total_bytes;
            }
        }
        return Ok(());
    };
    loop {
        match reader.group_at(offset, Some(header.identity), &mut buffer)? {
            Ok(group) => {
                let records = reader.records(&group, &buffer).expect("group_at checked the parts");
                visit(Place::Group(&group, &records));
                offset += group.total_bytes;
            }
            Err(bad) => {
                let is_torn = bad.is_torn;
                let why = reader.why(offset, bad);
                let next = match offset + BLOCK < reader.length() {
                    true => reader.next_group_behind(offset, header.identity)?,
                    false => None,
                };
                if is_torn || next.is_some() {
                    let claims = claims_of(&buffer);
                    visit(Place::Bad(BadPlace { offset, why, next, claims }));
                }
                let Some((at, _)) = next else { return Ok(()) };
                offset = at;
            }
        }
    }
}

/// The entries that a bad group claims to hold, as far as its header and the headers of its records can be followed.
fn claims_of(group: &[u8]) -> Vec<(LedgerId, Option<(EntryId, EntryId)>)> {
    let mut claims: Vec<(LedgerId, Option<(EntryId, EntryId)>)> = Vec::new();
    let Some(header) = GroupHeader::decode(&group[..group.len().min(BLOCK_SIZE_BYTES)]) else {
        return claims;
    };
    for part in &header.parts {
        let start = (part.offset as usize).min(group.len());
        let mut rest = &group[start..group.len().min(start + part.length as usize)];
        while let Some((head, body)) = rest.split_at_checked(HEADER_SIZE_BYTES) {
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let Some((body, behind)) = body.split_at_checked(length) else { break };
            rest = behind;
            let id =
                |at: usize| body.get(at..at + 8).and_then(|b| Some(i64::from_be_bytes(b.try_into().ok()?)));
            let Some(ledger) = id(0).and_then(LedgerId::new) else { continue };
            let entry = if head[8] == Kind::Entry as u8 { id(8).and_then(EntryId::new) } else { None };
            claim(&mut claims, ledger, entry);
        }
    }
    claims
}

fn claim(claims: &mut Vec<(LedgerId, Option<(EntryId, EntryId)>)>, ledger: LedgerId, entry: Option<EntryId>) {
    let is_same = |(l, range): &(LedgerId, Option<_>)| *l == ledger && range.is_some() == entry.is_some();
    let Some(at) = claims.iter().position(is_same) else {
        if claims.len() < CLAIMS_MAX {
            claims.push((ledger, entry.map(|entry| (entry, entry))));
        }
        return;
    };
    if let (Some((first, last)), Some(entry)) = (&mut claims[at].1, entry) {
        *first = entry.min(*first);
        *last = entry.max(*last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{encode, fold_header};
    use crate::{Group, Journal, JournalConfig, Part, ReplayError};
    use bindery_io::canary::Canaries;
    use bindery_io::chunk::{ChunkPool, Lane};
    use bindery_io::{RealDisk, SeededRandom};
    use std::convert::Infallible;
    use std::io::IoSlice;

    fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Journal {
        let config = JournalConfig {
            bytes_max: 0,
            dir: dir.to_owned(),
            file_bytes: 4 * BLOCK,
            owner: "cluster bookie".into(),
            journal: 0,
            is_tiered: false,
            sync: true,
            canaries: Canaries::none(),
        };
        Journal::open(disk.clone(), config, Arc::new(SeededRandom::new(7))).unwrap()
    }

    /// Groups 1 to 8 in three files; the last is empty (a seal), and a file is unused.
    fn journal(disk: &Arc<dyn Disk>, dir: &Path) {
        let mut journal = open(disk, dir);
        journal.replay(0, |_, _| Ok::<(), Infallible>(())).unwrap();
        let pool = ChunkPool::new(64 << 10, 1, 0);
        let mut chunk = pool.take(Lane::Normal).unwrap();
        for entry in 0..8i64 {
            let (start, mut header) = (chunk.len(), [0; HEADER_SIZE_BYTES]);
            let body = [[5, entry, entry - 1].map(i64::to_be_bytes).concat(), vec![7; 90]].concat();
            chunk.append(HEADER_SIZE_BYTES + body.len(), |target| {
                header = encode(target, Kind::Entry, &[&body]).0;
            });
            let headers_crc = fold_header(0, &header);
            let part = Part { data: chunk.slice(start..chunk.len()), shard: 0, record_count: 1, headers_crc };
            let parts = if entry == 7 { Vec::new() } else { vec![part] };
            journal.write(&Group { parts, force_sync: false }).unwrap();
        }
        let unused = disk.open(&dir.join("journal-0003.bjl"), OpenMode::CreateBuffered).unwrap();
        unused.set_len(4 * BLOCK).unwrap();
    }

    /// The findings of a survey of all files: good groups, bad places, and whether one of them is damage.
    fn survey(disk: &Arc<dyn Disk>, dir: &Path, covered: u64) -> (Vec<u64>, Vec<BadPlace>, bool) {
        let (mut groups, mut bad, mut is_damage) = (Vec::new(), Vec::new(), false);
        let mut expected = covered + 1;
        for file in files(disk, dir).unwrap() {
            let has_header = file.header.is_ok();
            if let Ok(header) = &file.header {
                is_damage |= header.first_group > expected;
            }
            walk(disk, &file, |place| match place {
                Place::Group(group, _) => {
                    is_damage |= !has_header && group.sequence > covered;
                    expected = expected.max(group.sequence + 1);
                    groups.push(group.sequence);
                }
                Place::Bad(place) => {
                    is_damage |= place.is_damage(covered);
                    bad.push(place);
                }
            })
            .unwrap();
        }
        (groups, bad, is_damage)
    }

    /// J13. Goal: a newest file that was cut anywhere is damage, whatever is left of it, and the survey says so, too.
    /// Method: cut it at every half block; then the same with a header that does not say how long the file was.
    #[test]
    fn a_newest_file_that_was_cut_is_damage() {
        let (dir, disk): (_, Arc<dyn Disk>) = (tempfile::tempdir().unwrap(), Arc::new(RealDisk::new()));
        journal(&disk, dir.path());
        let newest = files(&disk, dir.path()).unwrap().into_iter().rfind(|file| file.header.is_ok()).unwrap();
        let header = newest.header.unwrap();
        assert_eq!(newest.length, header.length);
        let shrinking = disk.open(&newest.path, OpenMode::CreateBuffered).unwrap();
        let begin_with = |header: &FileHeader| {
            let mut block = vec![0; BLOCK_SIZE_BYTES];
            header.encode(&mut block);
            shrinking.write_all_at(&mut [IoSlice::new(&block)], 0).unwrap();
        };
        let replay = || open(&disk, dir.path()).replay(0, |_, _| Ok::<(), Infallible>(()));
        for at in (2..newest.length * 2 / BLOCK).rev().map(|half_blocks| half_blocks * BLOCK / 2) {
            shrinking.set_len(at).unwrap();
            begin_with(&header);
            let Err(ReplayError::Damage(damage)) = replay() else { panic!("cut at {at} and replayed") };
            assert_eq!((&damage.path, damage.offset), (&newest.path, at));
            assert!(file(&disk, &newest.path).unwrap().was_cut());
            let mut accepting = open(&disk, dir.path());
            accepting.accept_damage();
            let seen = accepting.replay(0, |_, _| Ok::<(), Infallible>(())).unwrap();
            assert_eq!(seen.damaged_places, 1);

            begin_with(&FileHeader { is_whole: false, ..header.clone() });
            replay().unwrap();
            assert!(!file(&disk, &newest.path).unwrap().was_cut());
        }
        for at in [1, 600, BLOCK - 1] {
            begin_with(&header);
            shrinking.set_len(at).unwrap();
            let Err(ReplayError::Damage(damage)) = replay() else { panic!("cut at {at} and replayed") };
            assert_eq!((&damage.path, damage.offset), (&newest.path, at));
            assert!(file(&disk, &newest.path).unwrap().was_cut());
            let mut accepting = open(&disk, dir.path());
            accepting.accept_damage();
            let seen = accepting.replay(0, |_, _| Ok::<(), Infallible>(())).unwrap();
            assert_eq!(seen.damaged_places, 1);
            accepting.release_up_to(accepting.last_group());
            replay().unwrap();
        }
    }

    #[test]
    fn a_sound_journal_shows_its_groups_and_nothing_else() {
        let (dir, disk): (_, Arc<dyn Disk>) = (tempfile::tempdir().unwrap(), Arc::new(RealDisk::new()));
        journal(&disk, dir.path());
        assert_eq!(survey(&disk, dir.path(), 0), ((1..=8).collect(), Vec::new(), false));
        let headers: Vec<_> = files(&disk, dir.path()).unwrap().into_iter().map(|f| f.header).collect();
        assert_eq!(headers[3], Err(HeaderProblem::Unused));
        assert!(headers[..3].iter().all(Result::is_ok), "{headers:?}");
    }

    /// J13. Goal: the survey and a restart never disagree about damage, and the survey sees behind it.
    /// Method: flip a bit in every byte that means something, of every file, under two marks.
    #[test]
    fn the_survey_judges_as_a_restart_does() {
        let (dir, disk): (_, Arc<dyn Disk>) = (tempfile::tempdir().unwrap(), Arc::new(RealDisk::new()));
        journal(&disk, dir.path());
        let (mut damages, mut harmless, mut claimed) = (0, 0, 0);
        for path in files(&disk, dir.path()).unwrap().into_iter().map(|file| file.path) {
            let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
            for at in (0..file.len().unwrap()).filter(|at| at % BLOCK < 260 || at % 97 == 0) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                let flipped = [byte[0] ^ (1 << (at % 8))];
                file.write_all_at(&mut [IoSlice::new(&flipped)], at).unwrap();
                for covered in [0, 4] {
                    let replayed = open(&disk, dir.path()).replay(covered, |_, _| Ok::<(), Infallible>(()));
                    let (_, bad, is_damage) = survey(&disk, dir.path(), covered);
                    match replayed {
                        Ok(_) => assert!(!is_damage, "{} byte {at}, mark {covered}", path.display()),
                        Err(ReplayError::Damage(damage)) => {
                            assert!(is_damage, "{damage}");
                            damages += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    harmless += u64::from(!is_damage && !bad.is_empty());
                    claimed +=
                        bad.iter().flat_map(|place| &place.claims).filter(|(l, _)| l.get() == 5).count();
                }
                file.write_all_at(&mut [IoSlice::new(&byte)], at).unwrap();
            }
        }
        assert!(damages > 1000 && harmless > 500 && claimed > 400, "{damages} {harmless} {claimed}");
    }
}
