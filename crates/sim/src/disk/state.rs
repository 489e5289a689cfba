//! The state behind a simulated disk: names, files, faults, power. Transfers on files are in `file.rs`.

use super::content::PAGE_U64;
use super::faults::{FaultKind, Faults};
use super::inode::{CrashDraw, Inode};
use super::names::{Change, Names, Node, is_root};
use super::trace::{HASH_START, Trace, hash_bytes, hash_word};
use super::{FaultPlan, SimDiskConfig};
use bindery_io::{Entry, SeededRandom, Space};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Size that a disk without a capacity shows.
const UNLIMITED_BYTES: u64 = 1 << 40;

pub(super) fn io_error() -> io::Error {
    io::Error::from_raw_os_error(5) // EIO
}

pub(super) fn no_space() -> io::Error {
    io::Error::from_raw_os_error(28) // ENOSPC
}

pub(super) fn power_is_off() -> io::Error {
    io::Error::other("simulated crash")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    On,
    /// This many changes still work.
    Changes(u64),
    Off,
}

/// How an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Whole,
    /// The power goes while it runs: it may leave something pending, and its caller hears of a crash.
    Cut,
}

/// A call, for counting and reporting.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) path: Arc<Path>,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) is_change: bool,
}

impl Call {
    pub(super) fn on_name(name: &'static str, path: &Path, is_change: bool) -> Call {
        Call { name, path: Arc::from(path), offset: 0, len: 0, is_change }
    }
}

pub(super) struct State {
    pub(super) config: SimDiskConfig,
    pub(super) faults: Faults,
    pub(super) names: Names,
    pub(super) inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    /// Open handles of each file.
    handles: BTreeMap<u64, u64>,
    pub(super) locks: BTreeMap<PathBuf, u64>,
    next_lock: u64,
    /// Directories in which the next sync of a file fails (F3).
    pub(super) late_errors: BTreeSet<PathBuf>,
    pub(super) power: Power,
    pub(super) power_random: SeededRandom,
    /// An operation that the power cut meets leaves all it can.
    pub(super) cut_leaves_all: bool,
    pub(super) trace: Trace,
}

/// A path without `.` in it; `..` is refused, because nobody needs it.
pub(super) fn normal(path: &Path) -> io::Result<PathBuf> {
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the simulated disk knows no .."));
    }
    Ok(path.components().filter(|c| *c != Component::CurDir).collect())
}

impl State {
    pub(super) fn new(config: SimDiskConfig, random: &SeededRandom) -> State {
        State {
            faults: Faults::new(FaultPlan::default(), &random.child("faults")),
            names: Names::default(),
            inodes: BTreeMap::new(),
            next_inode: 1,
            handles: BTreeMap::new(),
            locks: BTreeMap::new(),
            next_lock: 1,
            late_errors: BTreeSet::new(),
            power: Power::On,
            power_random: random.child("power"),
            cut_leaves_all: false,
            trace: Trace::new(config.trace_lines),
            config,
        }
    }

    /// Runs one operation: counts it, lets the power go when it is time, writes it down.
    pub(super) fn run<T>(
        &mut self,
        call: Call,
        measure: impl FnOnce(&T) -> u64,
        operation: impl FnOnce(&mut State, Run) -> io::Result<T>,
    ) -> io::Result<T> {
        let run = match self.power {
            Power::Off => return Err(power_is_off()),
            Power::Changes(0) if call.is_change => {
                self.power = Power::Off;
                Run::Cut
            }
            Power::Changes(left) if call.is_change => {
                self.power = Power::Changes(left - 1);
                Run::Whole
            }
            Power::On | Power::Changes(_) => Run::Whole,
        };
        let mut result = operation(self, run);
        if run == Run::Cut {
            result = Err(power_is_off());
        }
        let outcome = match &result {
            Ok(value) => Ok(measure(value)),
            Err(e) => Err(e.kind()),
        };
        self.trace.changes += u64::from(call.is_change);
        self.trace.push(call.name, call.path, call.offset, call.len, outcome);
        result
    }

    /// True when an operation that the power cut met went as far as leaving something pending.
    pub(super) fn cut_left_something(&mut self) -> bool {
        self.cut_leaves_all || self.power_random.chance(0.5)
    }

    /// Decides whether an operation on `path` has this fault.
    pub(super) fn hit(&mut self, kind: FaultKind, path: &Path) -> bool {
        self.faults.hit(kind, path, &self.config.damaged_files)
    }

    fn fault_on_name(&mut self, kind: FaultKind, path: &Path) -> io::Result<()> {
        if self.hit(kind, path) { Err(io_error()) } else { Ok(()) }
    }

    fn parent_must_exist(&self, path: &Path) -> io::Result<()> {
        match path.parent().and_then(|parent| self.names.get(parent)) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn change(&mut self, change: Change, run: Run) {
        if run == Run::Whole || self.cut_left_something() {
            self.names.change(change);
        }
    }

    /// The inode behind a name, made when it is missing and `create`.
    pub(super) fn open(&mut self, path: &Path, create: bool, run: Run) -> io::Result<u64> {
        self.fault_on_name(FaultKind::NameError, path)?;
        match self.names.get(path) {
            Some(Node::Dir) => Err(ErrorKind::IsADirectory.into()),
            Some(Node::File(inode)) => Ok(inode),
            None => {
                self.parent_must_exist(path)?;
                if !create {
                    return Err(ErrorKind::NotFound.into());
                }
                let inode = self.next_inode;
                self.next_inode += 1;
                self.inodes.insert(inode, Inode::new(self.config.sector));
                self.change(Change::Add { path: path.to_path_buf(), node: Node::File(inode) }, run);
                Ok(inode)
            }
        }
    }

    pub(super) fn add_handle(&mut self, inode: u64) {
        *self.handles.entry(inode).or_insert(0) += 1;
    }

    pub(super) fn drop_handle(&mut self, inode: u64) {
        if let Some(count) = self.handles.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.handles.remove(&inode);
                self.forget_unreachable(inode);
            }
        }
    }

    fn forget_unreachable(&mut self, inode: u64) {
        if !self.handles.contains_key(&inode) && !self.names.mention(inode) {
            self.inodes.remove(&inode);
        }
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        match self.names.get(dir) {
            Some(Node::Dir) => {}
            Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
            None => return Err(ErrorKind::NotFound.into()),
        }
        let entry = |(path, node): (&Path, Node)| Entry {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            is_dir: node == Node::Dir,
            len: match node {
                Node::Dir => 0,
                Node::File(inode) => self.inodes.get(&inode).map_or(0, |inode| inode.cache.len()),
            },
        };
        Ok(self.names.list(dir).map(entry).collect())
    }

    pub(super) fn create_dir_all(&mut self, dir: &Path, run: Run) -> io::Result<()> {
        self.fault_on_name(FaultKind::NameError, dir)?;
        let mut missing: Vec<&Path> = Vec::new();
        for above in dir.ancestors() {
            match self.names.get(above) {
                Some(Node::Dir) => break,
                Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
                None => missing.push(above),
            }
        }
        for path in missing.into_iter().rev() {
            self.change(Change::Add { path: path.to_path_buf(), node: Node::Dir }, run);
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, run: Run) -> io::Result<()> {
        self.fault_on_name(FaultKind::NameError, from)?;
        let inode = match self.names.get(from) {
            Some(Node::File(inode)) => inode,
            Some(Node::Dir) => return Err(io::Error::new(ErrorKind::InvalidInput, "renames are for files")),
            None => return Err(ErrorKind::NotFound.into()),
        };
        self.parent_must_exist(to)?;
        if self.names.is_dir(to) {
            return Err(ErrorKind::IsADirectory.into());
        }
        if from != to {
            self.change(Change::Rename { from: from.to_path_buf(), to: to.to_path_buf(), inode }, run);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path, run: Run) -> io::Result<()> {
        self.fault_on_name(FaultKind::NameError, path)?;
        match self.names.get(path) {
            Some(Node::File(inode)) => {
                self.change(Change::Remove { path: path.to_path_buf(), inode }, run);
                Ok(())
            }
            Some(Node::Dir) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn sync_dir(&mut self, dir: &Path, run: Run) -> io::Result<()> {
        match self.names.get(dir) {
            Some(Node::Dir) => {}
            Some(Node::File(_)) => return Err(ErrorKind::NotADirectory.into()),
            None => return Err(ErrorKind::NotFound.into()),
        }
        if run == Run::Cut {
            return Ok(()); // pending changes stay pending, and the crash draws for each
        }
        let failed = self.hit(FaultKind::SyncDirError, dir);
        let random = self.faults.random(FaultKind::SyncDirError);
        self.names.sync_dir(dir, || !failed || random.chance(0.25));
        let candidates: Vec<u64> = self.inodes.keys().copied().collect();
        for inode in candidates {
            self.forget_unreachable(inode);
        }
        if failed { Err(io_error()) } else { Ok(()) }
    }

    pub(super) fn lock(&mut self, path: &Path, run: Run) -> io::Result<u64> {
        self.open(path, true, run)?;
        if self.locks.contains_key(path) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let token = self.next_lock;
        self.next_lock += 1;
        if run == Run::Whole {
            self.locks.insert(path.to_path_buf(), token);
        }
        Ok(token)
    }

    fn used_bytes(&self) -> u64 {
        self.inodes.values().map(|inode| inode.cache.page_count()).sum::<u64>() * PAGE_U64
    }

    pub(super) fn space(&self, dir: &Path) -> io::Result<Space> {
        if !self.names.is_dir(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let total = self.config.capacity.unwrap_or(UNLIMITED_BYTES);
        Ok(Space { total, free: total.saturating_sub(self.used_bytes()) })
    }

    /// Bytes that may still be allocated; `None` without a limit.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.config.capacity.map(|capacity| capacity.saturating_sub(self.used_bytes()))
    }

    /// The disk after a restart that found these names and files.
    fn restarted(
        &self,
        random: &SeededRandom,
        names: Names,
        mut file: impl FnMut(&Path, &Inode) -> Inode,
    ) -> State {
        let mut state = State::new(self.config.clone(), random);
        for (path, node) in names.iter() {
            if let Node::File(inode) = node
                && let Some(found) = self.inodes.get(&inode)
            {
                state.inodes.insert(inode, file(path, found));
            }
        }
        state.names = names;
        state.next_inode = self.next_inode;
        state.faults.damage = self.faults.damage.clone();
        state
    }

    pub(super) fn durable_image(&self) -> State {
        self.restarted(&SeededRandom::new(0), self.names.durable_image(), |_, inode| inode.durable_image())
    }

    pub(super) fn crash(&mut self, random: &SeededRandom) -> State {
        use bindery_io::Random;
        self.power = Power::Off;
        self.locks.clear();
        let tears = random.chance(0.5);
        let names = self.names.crash(random);
        let file = |path: &Path, inode: &Inode| {
            // Nothing written, everything written and mixtures all have to come up often.
            let new = [0.0, 0.1, 0.5, 0.9, 1.0][random.below(5) as usize];
            let torn = if tears { self.config.torn } else { 0.0 };
            let is_spared =
                self.config.garbage_spares.iter().any(|name| path.file_name() == Some(name.as_ref()));
            let garbage = if is_spared { 0.0 } else { self.config.garbage };
            inode.crash(CrashDraw { new, torn, garbage }, random)
        };
        self.restarted(&SeededRandom::new(random.next_u64()), names, file)
    }

    pub(super) fn crash_choosing(&mut self, keep: &mut dyn FnMut() -> bool) -> State {
        self.power = Power::Off;
        self.locks.clear();
        let names = self.names.crash_choosing(keep);
        self.restarted(&SeededRandom::new(0), names, |_, inode| inode.crash_choosing(keep))
    }

    pub(super) fn wipe(&mut self) {
        self.names = Names::default();
        self.inodes.clear();
        self.locks.clear();
        self.late_errors.clear();
        self.faults.damage.clear();
    }

    pub(super) fn content_hash(&self) -> u64 {
        let mut hash = HASH_START;
        for (path, node) in self.names.iter() {
            hash = hash_bytes(hash, path.as_os_str().as_encoded_bytes());
            let Node::File(inode) = node else { continue };
            let Some(inode) = self.inodes.get(&inode) else { continue };
            hash = hash_word(hash, inode.cache.len());
            for (index, page) in inode.cache.pages().filter(|(_, page)| page.iter().any(|&b| b != 0)) {
                hash = hash_bytes(hash_word(hash, index), page);
            }
        }
        hash
    }

    pub(super) fn inode_at(&mut self, path: &Path) -> io::Result<&mut Inode> {
        let path = normal(path)?;
        match self.names.get(&path) {
            Some(Node::File(inode)) if !is_root(&path) => {
                self.inodes.get_mut(&inode).ok_or_else(|| ErrorKind::NotFound.into())
            }
            _ => Err(ErrorKind::NotFound.into()),
        }
    }
}
