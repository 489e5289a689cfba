//! The bytes and names that a disk keeps through a power cut, in memory: the model of the simulated disk (`crates/sim/src/disk`), written again
//! so that neither can hide a mistake of the other.
//!
//! # Invariants
//! 1. A byte is durable after a sync of its file, or when its own write was synchronous; a length likewise; not
//!    otherwise.
//! 2. A change of a name is durable only after a sync of the directory of its (new) name.
//! 3. At a cut each unsynced sector (512 bytes) becomes the durable one or one of its newest four versions, each unsynced
//!    change of a name and of a length is kept or lost, all by the seed.
//! 4. Inodes that no name reaches after a cut are gone.

use std::collections::{BTreeMap, BTreeSet};

/// Number of a file or directory.
pub type Inode = u64;
/// The root directory.
pub const ROOT: Inode = 1;
const SECTOR: usize = 512;
type Sector = [u8; SECTOR];
/// Versions of a sector that are remembered.
const VERSIONS_MAX: usize = 4;
const LENGTHS_MAX: usize = 64;

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A file's bytes, as readers see them and as they would survive.
#[derive(Default)]
struct File {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Unsynced sectors: their versions, oldest first.
    pending: BTreeMap<usize, Vec<Sector>>,
    /// Unsynced lengths, oldest first.
    lengths: Vec<usize>,
}

fn sector_of(bytes: &[u8], index: usize) -> Sector {
    let mut sector = [0; SECTOR];
    let from = (index * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    sector[..to - from].copy_from_slice(&bytes[from..to]);
    sector
}

/// Puts a sector into bytes, as far as they go.
fn put(bytes: &mut [u8], index: usize, sector: &Sector) {
    let from = (index * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    bytes[from..to].copy_from_slice(&sector[..to - from]);
}

fn sectors(from: usize, to: usize) -> std::ops::Range<usize> {
    if from >= to { 0..0 } else { from / SECTOR..to.div_ceil(SECTOR) }
}

impl File {
    fn touch(&mut self, from: usize, to: usize) {
        for index in sectors(from, to) {
            let versions = self.pending.entry(index).or_default();
            versions.push(sector_of(&self.live, index));
            if versions.len() > VERSIONS_MAX {
                versions.remove(0);
            }
        }
    }

    fn set_len(&mut self, len: usize) {
        let old = self.live.len();
        self.live.resize(len, 0);
        if len < old {
            self.touch(len, old); // should it grow again, zeros are what it has
        }
        self.note_length();
    }

    fn note_length(&mut self) {
        self.lengths.push(self.live.len());
        if self.lengths.len() > LENGTHS_MAX {
            self.lengths.remove(LENGTHS_MAX / 2);
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8], is_sync: bool) {
        let end = offset + bytes.len();
        if end > self.live.len() {
            self.live.resize(end, 0);
            self.note_length();
        }
        self.live[offset..end].copy_from_slice(bytes);
        if !is_sync {
            return self.touch(offset, end);
        }
        self.durable.resize(self.live.len(), 0);
        self.lengths.clear();
        for index in sectors(offset, end) {
            // The whole sector goes to the medium, and what was pending for it is older.
            put(&mut self.durable, index, &sector_of(&self.live, index));
            self.pending.remove(&index);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for index in std::mem::take(&mut self.pending).into_keys() {
            put(&mut self.durable, index, &sector_of(&self.live, index));
        }
        self.lengths.clear();
    }

    fn cut(&mut self, random: &mut Random, kept_of_ten: u64, done: &mut Cut) {
        let mut len = self.durable.len();
        for &pending in &self.lengths {
            if random.below(10) < kept_of_ten {
                len = pending;
                done.kept += 1;
            } else {
                done.lost += 1;
            }
        }
        self.durable.resize(len, 0);
        for (index, versions) in std::mem::take(&mut self.pending) {
            if random.below(10) < kept_of_ten {
                // Mostly the newest: one that is older was written back in between.
                let back =
                    if random.below(4) == 0 { random.below(versions.len() as u64) as usize } else { 0 };
                put(&mut self.durable, index, &versions[versions.len() - 1 - back]);
                done.kept += 1;
            } else {
                done.lost += 1;
            }
        }
        self.lengths.clear();
        self.live.clone_from(&self.durable);
    }
}

/// What a cut did: sectors, lengths and names that were not synced.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Not synced, and kept.
    pub kept: u64,
    /// Not synced, and gone.
    pub lost: u64,
}

/// Syncs seen.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counters {
    /// Writes without a promise.
    pub writes: u64,
    /// Writes that are their own sync (`RWF_DSYNC`, `O_DSYNC`).
    pub sync_writes: u64,
    /// `fsync` and `fdatasync` of files.
    pub syncs: u64,
    /// `fsync` of directories.
    pub dir_syncs: u64,
}

enum Node {
    File(File),
    Dir { live: BTreeMap<String, Inode>, durable: BTreeMap<String, Inode> },
}

#[derive(Clone)]
enum Change {
    Add { dir: Inode, name: String, inode: Inode },
    Rename { from_dir: Inode, from: String, dir: Inode, name: String, inode: Inode },
    Remove { dir: Inode, name: String, inode: Inode },
}

impl Change {
    fn dir(&self) -> Inode {
        match self {
            Change::Add { dir, .. } | Change::Rename { dir, .. } | Change::Remove { dir, .. } => *dir,
        }
    }
}

/// Kind and size of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// A directory, or a file.
    pub is_dir: bool,
    /// Length in bytes.
    pub len: u64,
    /// Permission bits.
    pub mode: u16,
}

/// The disk. Errors are errno values.
pub struct Disk {
    nodes: BTreeMap<Inode, (Node, u16)>,
    changes: Vec<Change>,
    next: Inode,
    /// Calls seen since the start.
    pub counters: Counters,
}

fn new_dir() -> Node {
    Node::Dir { live: BTreeMap::new(), durable: BTreeMap::new() }
}

impl Default for Disk {
    fn default() -> Disk {
        let nodes = BTreeMap::from([(ROOT, (new_dir(), 0o755))]);
        Disk { nodes, changes: Vec::new(), next: ROOT + 1, counters: Counters::default() }
    }
}

impl Disk {
    fn dir(&mut self, inode: Inode) -> Result<&mut BTreeMap<String, Inode>, i32> {
        match self.nodes.get_mut(&inode) {
            Some((Node::Dir { live, .. }, _)) => Ok(live),
            Some(_) => Err(libc::ENOTDIR),
            None => Err(libc::ENOENT),
        }
    }

    fn file(&mut self, inode: Inode) -> Result<&mut File, i32> {
        match self.nodes.get_mut(&inode) {
            Some((Node::File(file), _)) => Ok(file),
            Some(_) => Err(libc::EISDIR),
            None => Err(libc::ENOENT),
        }
    }

    /// The inode behind a name.
    pub fn lookup(&mut self, dir: Inode, name: &str) -> Result<Inode, i32> {
        self.dir(dir)?.get(name).copied().ok_or(libc::ENOENT)
    }

    /// Attributes of an inode.
    pub fn attributes(&self, inode: Inode) -> Result<Attributes, i32> {
        match self.nodes.get(&inode).ok_or(libc::ENOENT)? {
            (Node::File(file), mode) => {
                Ok(Attributes { is_dir: false, len: file.live.len() as u64, mode: *mode })
            }
            (Node::Dir { .. }, mode) => Ok(Attributes { is_dir: true, len: 0, mode: *mode }),
        }
    }

    /// Names in a directory, sorted.
    pub fn list(&mut self, dir: Inode) -> Result<Vec<(String, Inode)>, i32> {
        Ok(self.dir(dir)?.iter().map(|(name, inode)| (name.clone(), *inode)).collect())
    }

    /// Makes a file or directory.
    pub fn make(&mut self, dir: Inode, name: &str, is_dir: bool, mode: u16) -> Result<Inode, i32> {
        if self.dir(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let inode = self.next;
        self.next += 1;
        let node = if is_dir { new_dir() } else { Node::File(File::default()) };
        self.nodes.insert(inode, (node, mode));
        self.dir(dir)?.insert(name.to_owned(), inode);
        self.changes.push(Change::Add { dir, name: name.to_owned(), inode });
        Ok(inode)
    }

    /// Removes a name. The bytes stay for whoever has the file open, until the next cut.
    pub fn remove(&mut self, dir: Inode, name: &str, is_dir: bool) -> Result<(), i32> {
        let inode = self.lookup(dir, name)?;
        match (self.attributes(inode)?.is_dir, is_dir) {
            (true, false) => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            (true, true) if !self.dir(inode)?.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.dir(dir)?.remove(name);
        self.changes.push(Change::Remove { dir, name: name.to_owned(), inode });
        Ok(())
    }

    /// Moves a name over whatever has the new one.
    pub fn rename(&mut self, from_dir: Inode, from: &str, dir: Inode, name: &str) -> Result<(), i32> {
        let inode = self.lookup(from_dir, from)?;
        self.dir(dir)?;
        self.dir(from_dir)?.remove(from);
        self.dir(dir)?.insert(name.to_owned(), inode);
        let (from, name) = (from.to_owned(), name.to_owned());
        self.changes.push(Change::Rename { from_dir, from, dir, name, inode });
        Ok(())
    }

    /// Permission bits; durable at once, nothing depends on them.
    pub fn set_mode(&mut self, inode: Inode, mode: u16) -> Result<(), i32> {
        self.nodes.get_mut(&inode).ok_or(libc::ENOENT)?.1 = mode;
        Ok(())
    }

    /// Cuts or extends a file.
    pub fn set_len(&mut self, inode: Inode, len: u64) -> Result<(), i32> {
        self.file(inode)?.set_len(len as usize);
        Ok(())
    }

    /// Reads.
    pub fn read(&mut self, inode: Inode, offset: u64, size: usize) -> Result<&[u8], i32> {
        let live = &self.file(inode)?.live;
        let from = (offset as usize).min(live.len());
        Ok(&live[from..(from + size).min(live.len())])
    }

    /// Writes; `is_sync`: durable when this returns.
    pub fn write(&mut self, inode: Inode, offset: u64, bytes: &[u8], is_sync: bool) -> Result<(), i32> {
        self.file(inode)?.write(offset as usize, bytes, is_sync);
        *(if is_sync { &mut self.counters.sync_writes } else { &mut self.counters.writes }) += 1;
        Ok(())
    }

    /// `fsync`, `fdatasync`.
    pub fn sync(&mut self, inode: Inode) -> Result<(), i32> {
        self.file(inode)?.sync();
        self.counters.syncs += 1;
        Ok(())
    }

    /// `fsync` of a directory.
    pub fn sync_dir(&mut self, inode: Inode) -> Result<(), i32> {
        self.dir(inode)?;
        let (now, later) =
            std::mem::take(&mut self.changes).into_iter().partition(|c: &Change| c.dir() == inode);
        self.changes = later;
        now.into_iter().for_each(|change| self.apply(change));
        self.counters.dir_syncs += 1;
        Ok(())
    }

    fn durable(&mut self, inode: Inode) -> Option<&mut BTreeMap<String, Inode>> {
        match self.nodes.get_mut(&inode) {
            Some((Node::Dir { durable, .. }, _)) => Some(durable),
            _ => None,
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Add { dir, name, inode } => {
                self.durable(dir).map(|names| names.insert(name, inode));
            }
            Change::Rename { from_dir, from, dir, name, inode } => {
                if let Some(names) = self.durable(from_dir)
                    && names.get(&from) == Some(&inode)
                {
                    names.remove(&from);
                }
                self.durable(dir).map(|names| names.insert(name, inode));
            }
            Change::Remove { dir, name, inode } => {
                if let Some(names) = self.durable(dir)
                    && names.get(&name) == Some(&inode)
                {
                    names.remove(&name);
                }
            }
        }
    }

    /// The power goes.
    pub fn cut(&mut self, seed: u64) -> Cut {
        let mut random = Random(seed);
        let mut done = Cut::default();
        // All lost, mostly lost, half, mostly kept.
        let kept_of_ten = [0, 1, 5, 5, 9][random.below(5) as usize];
        for change in std::mem::take(&mut self.changes) {
            if random.below(10) < kept_of_ten {
                self.apply(change);
                done.kept += 1;
            } else {
                done.lost += 1;
            }
        }
        let mut reachable = BTreeSet::from([ROOT]);
        let mut todo = vec![ROOT];
        while let Some(inode) = todo.pop() {
            if let Some((Node::Dir { live, durable }, _)) = self.nodes.get_mut(&inode) {
                live.clone_from(durable);
                todo.extend(durable.values().copied().filter(|inode| reachable.insert(*inode)));
            }
        }
        self.nodes.retain(|inode, _| reachable.contains(inode));
        for (node, _) in self.nodes.values_mut() {
            if let Node::File(file) = node {
                file.cut(&mut random, kept_of_ten, &mut done);
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over some seeds: did it always survive, did it ever.
    fn survives(
        prepare: impl Fn(&mut Disk) -> Inode,
        holds: impl Fn(&mut Disk, Inode) -> bool,
    ) -> (bool, bool) {
        let kept = (0..200).map(|seed| {
            let mut disk = Disk::default();
            let file = prepare(&mut disk);
            disk.cut(seed);
            holds(&mut disk, file)
        });
        let kept: Vec<bool> = kept.collect();
        (kept.iter().all(|kept| *kept), kept.iter().any(|kept| *kept))
    }

    fn named(disk: &mut Disk) -> Inode {
        let file = disk.make(ROOT, "f", false, 0o600).unwrap();
        disk.sync_dir(ROOT).unwrap();
        file
    }

    fn has(disk: &mut Disk, file: Inode, bytes: &[u8]) -> bool {
        disk.read(file, 0, 1 << 20).is_ok_and(|found| found == bytes)
    }

    #[test]
    fn unsynced_bytes_may_go_and_synced_ones_stay() {
        let bytes = [7; 2000];
        let write = |disk: &mut Disk, is_sync| {
            let file = named(disk);
            disk.write(file, 0, &bytes, is_sync).unwrap();
            file
        };
        assert_eq!(survives(|d| write(d, false), |d, f| has(d, f, &bytes)), (false, true));
        assert_eq!(survives(|d| write(d, true), |d, f| has(d, f, &bytes)), (true, true));
        let synced = |d: &mut Disk| {
            let file = write(d, false);
            d.sync(file).unwrap();
            file
        };
        assert_eq!(survives(synced, |d, f| has(d, f, &bytes)), (true, true));
    }

    #[test]
    fn a_synchronous_write_makes_only_itself_durable() {
        let prepare = |d: &mut Disk| {
            let file = named(d);
            d.write(file, 0, &[1; 512], false).unwrap();
            d.write(file, 512, &[2; 512], true).unwrap();
            file
        };
        let second = |d: &mut Disk, f| d.read(f, 512, 512).unwrap() == [2; 512];
        assert_eq!(survives(prepare, second), (true, true));
        assert_eq!(survives(prepare, |d, f| d.read(f, 0, 512).unwrap() == [1; 512]), (false, true));
    }

    #[test]
    fn an_older_version_never_comes_back_over_a_synced_one() {
        let prepare = |d: &mut Disk| {
            let file = named(d);
            d.write(file, 0, &[1; 512], false).unwrap();
            d.write(file, 0, &[2; 512], true).unwrap();
            file
        };
        assert_eq!(survives(prepare, |d, f| has(d, f, &[2; 512])), (true, true));
    }

    #[test]
    fn a_name_is_durable_with_its_directory_only() {
        let make = |d: &mut Disk| {
            let file = d.make(ROOT, "f", false, 0o600).unwrap();
            d.write(file, 0, &[1; 100], true).unwrap();
            d.sync(file).unwrap();
            file
        };
        assert_eq!(survives(make, |d, _| d.lookup(ROOT, "f").is_ok()), (false, true));
        let renamed = |d: &mut Disk| {
            let file = named(d);
            d.rename(ROOT, "f", ROOT, "g").unwrap();
            file
        };
        assert_eq!(survives(renamed, |d, f| d.lookup(ROOT, "g") == Ok(f)), (false, true));
        assert_eq!(survives(renamed, |d, f| d.lookup(ROOT, "f") == Ok(f)), (false, true));
        assert_eq!(survives(renamed, |d, _| d.list(ROOT).unwrap().len() == 1), (true, true));
        let removed = |d: &mut Disk| {
            let file = named(d);
            d.remove(ROOT, "f", false).unwrap();
            file
        };
        assert_eq!(survives(removed, |d, f| d.lookup(ROOT, "f") == Ok(f)), (false, true));
    }

    #[test]
    fn an_unsynced_length_may_go() {
        let prepare = |d: &mut Disk| {
            let file = named(d);
            d.write(file, 0, &[1; 1024], true).unwrap();
            d.set_len(file, 512).unwrap();
            file
        };
        assert_eq!(survives(prepare, |d, f| has(d, f, &[1; 512])), (false, true));
        assert_eq!(survives(prepare, |d, f| d.attributes(f).unwrap().len == 1024), (false, true));
    }
}
