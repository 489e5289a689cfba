//! A file system in memory that crashes, fails and decays on demand, the same way for the same seed.
//!
//! # Data flow
//! ```text
//! write -> cache (readers see it) + pending versions -> sync -> durable
//!                                        |
//!                                        +-> crash: each pending sector old, new or torn -> another SimDisk
//! ```
//!
//! # Invariants
//! 1. The same configuration, seed and calls give the same answers, traces and images.
//! 2. A crash changes no sector, length or name that has nothing pending.
//! 3. A sync that worked covers every write that had returned before it, except what a fault (failed sync, lost
//!    write) took; a durable write covers its own range, with the length it needs, and no other data.
//! 4. After a failed sync the next one works and proves nothing.
//! 5. After the power is off nothing changes any more and every call fails with "simulated crash".
//!
//! # Model
//! Pending sectors of a file reorder freely between its syncs; the new length does so with them, and a cut is one
//! event. Names become durable by [`Disk::sync_dir`] only. See [`FaultKind`] for the faults.
//!
//! # Limits
//! The newest four versions of a page take part in a crash. No latency (calls return at once; the simulator delays
//! completions), no hung device. Driven from one thread; the mutex only makes it `Sync`.

mod content;
mod faults;
mod file;
mod inode;
mod names;
mod state;
#[cfg(test)]
mod tests;
mod trace;

pub use faults::{Damage, FaultKind, FaultPlan};
pub use inode::SectorSize;

use bindery_io::{Disk, DiskFile, DiskLock, Entry, OpenMode, SeededRandom, Space};
use file::SimFile;
use parking_lot::Mutex;
use state::{Call, Power, Run, State, normal};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The kind of disk that is simulated.
#[derive(Debug, Clone)]
pub struct SimDiskConfig {
    /// The unit that a crash keeps or loses as a whole.
    pub sector: SectorSize,
    /// Size in bytes, of which allocated pages of 4096 bytes are used up; `None` for as much as is wanted.
    pub capacity: Option<u64>,
    /// Whether files open for direct I/O; else they fall back to buffered.
    pub accepts_direct: bool,
    /// Probability that a pending sector is torn, in the half of the crashes that tear at all.
    pub torn: f64,
    /// Probability that a torn sector holds nonsense; else it is part new, part old.
    pub garbage: f64,
    /// Names of files whose torn sectors are never nonsense, because their format takes for granted that bytes next
    /// to those being written stay (redb rewrites the first 320 bytes of its file in place).
    pub garbage_spares: Vec<String>,
    /// Ends of the names of files whose medium the drawn faults may damage; none for all. Faults by order go anywhere.
    pub damaged_files: Vec<String>,
    /// How many of the last operations [`SimDisk::trace`] gives.
    pub trace_lines: usize,
}

impl Default for SimDiskConfig {
    fn default() -> Self {
        SimDiskConfig {
            sector: SectorSize::Bytes512,
            capacity: None,
            accepts_direct: true,
            torn: 0.1,
            garbage: 0.25,
            garbage_spares: Vec::new(),
            damaged_files: Vec::new(),
            trace_lines: 200,
        }
    }
}

impl SimDiskConfig {
    /// Draws sector size and direct I/O for one run.
    pub fn draw(random: &SeededRandom) -> SimDiskConfig {
        let sector = if random.chance(0.5) { SectorSize::Bytes512 } else { SectorSize::Bytes4096 };
        SimDiskConfig { sector, accepts_direct: random.chance(0.75), ..SimDiskConfig::default() }
    }
}

/// The simulated disk. Paths may be absolute or relative; `/` and the empty path are directories.
pub struct SimDisk {
    shared: Arc<Mutex<State>>,
}

impl SimDisk {
    /// An empty disk. Its faults (none yet) and the state of an operation that a crash meets come from `random`.
    pub fn new(config: SimDiskConfig, random: &SeededRandom) -> SimDisk {
        SimDisk::from_state(State::new(config, random))
    }

    fn from_state(state: State) -> SimDisk {
        SimDisk { shared: Arc::new(Mutex::new(state)) }
    }

    /// Faults from now on. A restarted disk begins without.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.shared.lock().faults.set_plan(plan);
    }

    /// Orders one fault: the next operation that can have it does, on `path` when given (a file by the name under
    /// which it was opened).
    pub fn order_fault(&self, kind: FaultKind, path: Option<&Path>) {
        self.shared.lock().faults.order(kind, path.map(Path::to_path_buf));
    }

    /// The size of the disk from now on.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.shared.lock().config.capacity = capacity;
    }

    /// The power goes with the change (create, write, sync, rename, ...) that follows the next `changes` ones: it
    /// fails, may leave something pending, and from then on every call fails with "simulated crash".
    pub fn crash_after(&self, changes: u64) {
        self.shared.lock().power = Power::Changes(changes);
    }

    /// As `crash_after`, for an explorer: the change that the cut meets leaves all it can pending, and nothing is drawn.
    pub fn crash_after_leaving_all(&self, changes: u64) {
        let mut state = self.shared.lock();
        (state.power, state.cut_leaves_all) = (Power::Changes(changes), true);
    }

    /// Cuts the power and gives the disk that a restart finds when `keep` says yes or no to each pending sector, length
    /// and name, asked in the same order each time. May be called again for another answer.
    pub fn crash_choosing(&self, mut keep: impl FnMut() -> bool) -> SimDisk {
        SimDisk::from_state(self.shared.lock().crash_choosing(&mut keep))
    }

    /// True when the power is off.
    pub fn is_off(&self) -> bool {
        self.shared.lock().power == Power::Off
    }

    /// Cuts the power and gives the disk that a restart finds, which depends on `random`. It has no faults, locks or
    /// open files; this one is off.
    pub fn crash(&self, random: &SeededRandom) -> SimDisk {
        SimDisk::from_state(self.shared.lock().crash(random))
    }

    /// The disk that a restart would find if nothing pending survived. This one goes on. Cheap: pages are shared.
    pub fn durable_image(&self) -> SimDisk {
        SimDisk::from_state(self.shared.lock().durable_image())
    }

    /// The device is replaced by an empty one; open files fail from now on.
    pub fn wipe(&self) {
        self.shared.lock().wipe();
    }

    /// Inverts `count` bits from bit 0 of the byte at `offset` on, in what is cached, pending and durable.
    pub fn flip_bits(&self, path: &Path, offset: u64, count: u32) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.inode_at(path)?.flip_bits(offset, count);
        state.faults.note(FaultKind::BitRot, path, offset..offset + u64::from(count.div_ceil(8)));
        Ok(())
    }

    /// Makes the pages of 4096 bytes that hold these bytes unreadable until they are written again.
    pub fn fail_reads(&self, path: &Path, offset: u64, len: usize) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.inode_at(path)?.fail_reads(offset, len);
        state.faults.note(FaultKind::LatentReadError, path, offset..offset + len as u64);
        Ok(())
    }

    /// True when the file has writes or a length that no sync has covered yet.
    pub fn has_pending(&self, path: &Path) -> io::Result<bool> {
        Ok(self.shared.lock().inode_at(path)?.has_pending())
    }

    /// The damage done to the medium since the disk was made, oldest first, but for files that were replaced by others of their name.
    /// Crashes keep it.
    pub fn damage(&self) -> Vec<Damage> {
        self.shared.lock().faults.damage.clone()
    }

    /// How often each kind of fault came up since the disk was made or restarted.
    pub fn fault_hits(&self) -> Vec<(FaultKind, u64)> {
        self.shared.lock().faults.hits.iter().map(|(kind, hits)| (*kind, *hits)).collect()
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.shared.lock().trace.operations
    }

    /// Operations so far that could change something: what [`SimDisk::crash_after`] counts.
    pub fn changes(&self) -> u64 {
        self.shared.lock().trace.changes
    }

    /// The last operations, oldest first, one line each.
    pub fn trace(&self) -> Vec<String> {
        self.shared.lock().trace.lines()
    }

    /// A hash of all operations and their outcomes: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash
    }

    /// A hash of all names and contents that readers see.
    pub fn content_hash(&self) -> u64 {
        self.shared.lock().content_hash()
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let path = normal(path)?;
        let create = !mode.is_read_only();
        let mut state = self.shared.lock();
        let is_change = create && state.names.get(&path).is_none();
        let call = Call::on_name(if create { "open" } else { "open_to_read" }, &path, is_change);
        let inode = state.run(call, |&inode| inode, |state, run| state.open(&path, create, run))?;
        state.add_handle(inode);
        if is_change {
            // What was damaged under this name was another file.
            state.faults.damage.retain(|damage| damage.path != path);
        }
        let is_direct = mode.is_direct() && state.config.accepts_direct;
        drop(state);
        let (shared, path) = (self.shared.clone(), Arc::from(path));
        Ok(Arc::new(SimFile { shared, inode, path, is_direct, is_writable: create }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let dir = normal(dir)?;
        let call = Call::on_name("list", &dir, false);
        self.shared.lock().run(call, |found: &Vec<Entry>| found.len() as u64, |state, _| state.list(&dir))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let dir = normal(dir)?;
        let mut state = self.shared.lock();
        let call = Call::on_name("create_dir", &dir, !state.names.is_dir(&dir));
        state.run(call, |_| 0, |state, run| state.create_dir_all(&dir, run))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from)?, normal(to)?);
        let mut call = Call::on_name("rename", &from, true);
        // One path for the report, both for the reader.
        call.path = Arc::from(PathBuf::from(format!("{} -> {}", from.display(), to.display())));
        self.shared.lock().run(call, |_| 0, |state, run| state.rename(&from, &to, run))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let call = Call::on_name("remove", &path, true);
        self.shared.lock().run(call, |_| 0, |state, run| state.remove(&path, run))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = normal(dir)?;
        let call = Call::on_name("sync_dir", &dir, true);
        self.shared.lock().run(call, |_| 0, |state, run| state.sync_dir(&dir, run))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let path = normal(path)?;
        let call = Call::on_name("exists", &path, false);
        self.shared.lock().run(
            call,
            |&found| u64::from(found),
            |state, _| Ok(state.names.get(&path).is_some()),
        )
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let path = normal(path)?;
        let mut state = self.shared.lock();
        let call = Call::on_name("lock", &path, state.names.get(&path).is_none());
        let token = state.run(call, |&token| token, |state, run: Run| state.lock(&path, run))?;
        Ok(Box::new(SimLock { shared: Arc::downgrade(&self.shared), path, token }))
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let dir = normal(dir)?;
        let call = Call::on_name("space", &dir, false);
        self.shared.lock().run(call, |space: &Space| space.free, |state, _| state.space(&dir))
    }
}

/// Ends when it is dropped, or at a crash.
struct SimLock {
    shared: Weak<Mutex<State>>,
    path: PathBuf,
    token: u64,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut state = shared.lock();
            if state.locks.get(&self.path) == Some(&self.token) {
                state.locks.remove(&self.path);
            }
        }
    }
}
