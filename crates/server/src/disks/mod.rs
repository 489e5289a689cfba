//! Full, failing and slow disks: when the bookie stops taking writes, and when it takes them again by itself.
//!
//! # Data flow
//! ```text
//! Disk::space ---------> usage::UsageCore ---------> ReadOnlyReasons -> engine (refuses, accepts)
//! journal pulses ------> slow_journal::SlowJournalCore -/  \--> registrar (available, readonly)
//! engine's status ---------------------------------------/
//! engine's ledger memory -> ledger_memory::LedgerMemoryCore --> ReadOnlyReasons -> registrar alone
//! space, verdict ------> reserve: held, given up, taken back -> engine (what recoveries may add, what flushes leave free)
//! verdict, engine's status -> garbage::GarbageDesk: rounds with a compaction while space, or memory for ledgers, is short
//! ```
//! The cores decide and do no I/O; [`DiskWatch`] measures on a blocking thread every `diskCheckInterval`, and looks at
//! the engine twice a second: it measures at once when something begins to wait for space, and when nothing does any more.
//!
//! # Limits
//! One measurement at a time. A disk that does not answer it leaves the last verdict in force.

pub mod ledger_memory;
pub mod read_only;
pub mod reserve;
pub mod slow_journal;
pub mod usage;

pub use read_only::{Cause, ReadOnlyReasons};
pub use slow_journal::SlowLimits;
pub use usage::DiskLimits;

pub use crate::data_dirs::Volume;
use crate::latch::Latch;
use crate::maintenance::garbage::{GarbageDesk, GarbageRequest};
use crate::metrics::Exposition;
use bindery_engine::{Engine, WantedCollection};
use bindery_io::{Clock, Disk, Space};
use ledger_memory::LedgerMemoryCore;
use parking_lot::Mutex;
use reserve::Reserve;
use slow_journal::{Pulse, SlowJournalCore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use usage::{Reading, UsageCore, Verdict};

/// Time between the first two rounds of garbage collection, with their compactions, while a volume is full. It doubles, up to
/// the configured time between rounds, while they remove nothing.
const FULL_ROUND_INTERVAL: Duration = Duration::from_secs(30);
/// How often the engine is checked.
const GLANCE_INTERVAL: Duration = Duration::from_millis(500);

/// What an operator sees of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Names it.
    pub dir: PathBuf,
    /// Its size and free bytes, when they are known.
    pub space: Option<Space>,
    /// Bytes of the reserve that are held, and that should be.
    pub reserve: (u64, u64),
    /// Above the threshold.
    pub is_full: bool,
}

/// What the last check found, for the admin port.
#[derive(Default)]
pub struct DiskDesk {
    volumes: Mutex<Vec<VolumeStatus>>,
}

impl DiskDesk {
    /// The volumes at the last check.
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        self.volumes.lock().clone()
    }

    /// Writes the gauges of volumes and of reasons to be read-only.
    pub fn expose(&self, standing: &ReadOnlyReasons, out: &mut Exposition) {
        let volumes = self.volumes();
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let names: Vec<String> = volumes.iter().map(|volume| volume.dir.display().to_string()).collect();
        let known = || volumes.iter().zip(&names).filter_map(|(volume, name)| Some((volume.space?, name)));
        for (space, name) in known() {
            out.gauge("bindery_volume_total_bytes", &[("dir", name)], gauge(space.total));
        }
        for (space, name) in known() {
            out.gauge("bindery_volume_free_bytes", &[("dir", name)], gauge(space.free));
        }
        for (volume, name) in volumes.iter().zip(&names) {
            out.gauge("bindery_volume_reserve_bytes", &[("dir", name)], gauge(volume.reserve.0));
        }
        for (volume, name) in volumes.iter().zip(&names) {
            out.gauge("bindery_volume_full", &[("dir", name)], i64::from(volume.is_full));
        }
        let reasons = standing.reasons();
        for cause in Cause::ALL {
            out.gauge(
                "bindery_read_only",
                &[("cause", cause.name())],
                i64::from(reasons.contains_key(&cause)),
            );
        }
    }
}

/// What is measured, and what is kept free. Blocks on the disk.
struct Gauges {
    disk: Arc<dyn Disk>,
    /// Ledger directories, by number.
    dirs: Vec<PathBuf>,
    volumes: Vec<Guarded>,
    core: UsageCore,
    /// Nothing was checked yet.
    is_new: bool,
}

/// What a check found.
struct Checked {
    verdict: Verdict,
    volumes: Vec<VolumeStatus>,
    /// Bytes that recoveries may add from now on while no other adds are taken; `None` leaves them those they have.
    recovery_reserve: Option<u64>,
}

/// A volume and its reserve.
struct Guarded {
    volume: Volume,
    reserve: Reserve,
    /// Bytes that the reserve held when that could be told last. Without a descriptor it cannot.
    held: u64,
}

impl Guarded {
    fn lacking(&self) -> u64 {
        self.reserve.size().saturating_sub(self.held)
    }

    fn measure(&mut self, disk: &dyn Disk) {
        match self.reserve.held(disk) {
            Ok(held) => self.held = held,
            Err(error) => {
                let dir = self.volume.reserve_dir.display();
                tracing::warn!(%dir, %error, "cannot measure the reserve: assuming it is unchanged");
            }
        }
    }
}

/// When a lack of space requests rounds of garbage collection. Each lists the whole cluster.
#[derive(Debug, Default)]
struct FullRounds {
    last: Option<Instant>,
    /// From that one to the next, and from the next to the one behind it.
    pauses: [Duration; 2],
    /// Ledgers removed by the time of the last one.
    removed: u64,
    was_short: bool,
}

impl FullRounds {
    /// True when a round is due now. `removed` counts all ledgers that rounds removed.
    fn is_due(&mut self, now: Instant, is_short: bool, removed: u64, pause_max: Duration) -> bool {
        let is_new = is_short && !self.was_short;
        self.was_short = is_short;
        if is_new || removed != self.removed {
            (self.pauses, self.removed) = ([FULL_ROUND_INTERVAL; 2], removed);
        }
        let [pause, next] = self.pauses;
        let is_due = is_short && self.last.is_none_or(|last| now.duration_since(last) >= pause);
        if is_due {
            self.last = Some(now);
            self.pauses = [next, (next * 2).min(pause_max.max(FULL_ROUND_INTERVAL))];
        }
        is_due
    }
}

/// When the disks are measured.
struct Checks {
    checked_ns: u64,
    was_short: bool,
}

impl Checks {
    /// True when that is due now: the interval is over, something began to wait for space, which is what the reserve is for, or
    /// what waited found some, and the bookie may be writable again.
    fn is_due(&mut self, now_ns: u64, is_short: bool, interval: Duration) -> bool {
        let is_over = Duration::from_nanos(now_ns.saturating_sub(self.checked_ns)) >= interval;
        let has_turned = std::mem::replace(&mut self.was_short, is_short) != is_short;
        if is_over || has_turned {
            self.checked_ns = now_ns;
        }
        is_over || has_turned
    }
}

/// Watches the disks of a bookie.
pub struct DiskWatch {
    gauges: Arc<Mutex<Gauges>>,
    limits: DiskLimits,
    slow: SlowLimits,
    desk: Arc<DiskDesk>,
    ledgers: Mutex<LedgerMemoryCore>,
    rounds: Mutex<FullRounds>,
    /// Those for ledgers that are too many.
    ledger_rounds: Mutex<FullRounds>,
    /// The configured time between rounds of garbage collection.
    round_interval: Duration,
}

impl DiskWatch {
    /// For these ledger directories on these volumes. Makes room for the start: a reserve is given up where the volume
    /// is nearly full, and none is made yet. Blocks on the disk.
    pub fn prepare(
        disk: Arc<dyn Disk>,
        dirs: Vec<PathBuf>,
        volumes: Vec<Volume>,
        write_pool_bytes: u64,
        limits: DiskLimits,
        slow: SlowLimits,
        round_interval: Duration,
    ) -> DiskWatch {
        let mut reserves = Vec::with_capacity(volumes.len());
        for volume in volumes {
            let space = disk.space(&volume.reserve_dir);
            let total = space.as_ref().map_or(0, |space| space.total);
            let size =
                limits.reserve_bytes.unwrap_or_else(|| reserve::default_bytes(total, write_pool_bytes));
            let reserve = Reserve::new(&volume.reserve_dir, size);
            if let Ok(space) = space
                && space.free < reserve.size()
                && reserve.held(&*disk).is_ok_and(|held| held > 0)
            {
                let dir = volume.reserve_dir.display();
                tracing::warn!(%dir, free_mib = space.free >> 20, "volume nearly full: giving up the reserve for the \
                 start");
                if let Err(error) = reserve.tend(&*disk, space, true, false) {
                    tracing::warn!(%dir, %error, "cannot give up the reserve");
                }
            }
            let mut guarded = Guarded { volume, reserve, held: 0 };
            guarded.measure(&*disk);
            reserves.push(guarded);
        }
        let names = dirs.iter().map(|dir| dir.display().to_string()).collect();
        let core = UsageCore::new(limits.clone(), names);
        let gauges = Gauges { disk, dirs, volumes: reserves, core, is_new: true };
        DiskWatch {
            gauges: Arc::new(Mutex::new(gauges)),
            limits,
            slow,
            desk: Arc::new(DiskDesk::default()),
            ledgers: Mutex::default(),
            rounds: Mutex::default(),
            ledger_rounds: Mutex::default(),
            round_interval,
        }
    }

    /// What the checks find.
    pub fn desk(&self) -> Arc<DiskDesk> {
        self.desk.clone()
    }

    /// False: a full disk stops the bookie.
    pub fn may_be_read_only(&self) -> bool {
        self.limits.may_be_read_only
    }

    /// Measures once and acts on it.
    pub async fn check(&self, engine: &Arc<Engine>, standing: &ReadOnlyReasons, garbage: &GarbageDesk) {
        let is_short = tell_what_waits(engine, standing);
        let are_ledgers_too_many = self.look_at_ledgers(engine, standing);
        let may_take_adds = standing.takes_adds() && !is_short;
        let (gauges, leaves) = (self.gauges.clone(), engine.clone());
        let check =
            move || gauges.lock().check(is_short, may_take_adds, &|room| leaves.set_rewrite_room(room));
        let checked = tokio::task::spawn_blocking(check).await;
        let Ok(Checked { verdict, volumes, recovery_reserve }) = checked else { return };
        if let Some(bytes) = recovery_reserve {
            engine.set_recovery_reserve(bytes);
        }
        *self.desk.volumes.lock() = volumes;
        if verdict.is_almost_full && self.limits.forces_collection {
            engine.want_collection(WantedCollection { minor: true, major: false });
        }
        self.ask_for_space(is_short || verdict.full.contains(&true), garbage);
        self.ask_for_ledgers(are_ledgers_too_many, garbage);
        engine.set_full_directories(&verdict.full);
        standing.set_high_priority(verdict.takes_high_priority);
        standing.set(Cause::DiskFull, verdict.read_only);
    }

    /// Keeps new ledgers away while the memory for their states is nearly full. True while it is.
    fn look_at_ledgers(&self, engine: &Engine, standing: &ReadOnlyReasons) -> bool {
        let reason = self.ledgers.lock().tick(engine.ledger_memory());
        let are_too_many = reason.is_some();
        standing.set(Cause::TooManyLedgers, reason);
        are_too_many
    }

    /// Rounds become rare whatever they remove: there may be ledgers enough that are alive, and each round lists the whole cluster.
    fn ask_for_ledgers(&self, are_too_many: bool, garbage: &GarbageDesk) {
        if self.ledger_rounds.lock().is_due(Instant::now(), are_too_many, 0, self.round_interval) {
            garbage.ask(GarbageRequest { minor: true, major: true, ..GarbageRequest::default() });
        }
    }

    /// The log tells operators to delete ledgers: this makes it help soon, however long the configured intervals are.
    fn ask_for_space(&self, is_short: bool, garbage: &GarbageDesk) {
        let removed = garbage.removed.get() + garbage.surplus_removed.get();
        if self.rounds.lock().is_due(Instant::now(), is_short, removed, self.round_interval) {
            garbage.ask(GarbageRequest { minor: true, major: true, ..GarbageRequest::default() });
        }
    }

    /// Watches until `stop`.
    pub async fn run(
        self,
        engine: Arc<Engine>,
        garbage: Arc<GarbageDesk>,
        clock: Arc<dyn Clock>,
        standing: Arc<ReadOnlyReasons>,
        stop: Arc<Latch>,
    ) {
        let mut slow = SlowJournalCore::new(self.slow);
        let mut checks = Checks { checked_ns: clock.monotonic_ns(), was_short: false };
        let (mut refused, mut is_told) = (0, false);
        loop {
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(GLANCE_INTERVAL) => {}
            }
            let now_ns = clock.monotonic_ns();
            let status = engine.status();
            standing.set(Cause::StorageFailed, status.failed);
            let is_short = tell_what_waits(&engine, &standing);
            self.look_at_ledgers(&engine, &standing);
            // Once for each time that it is full.
            is_told &= !standing.takes_adds();
            if status.recoveries_refused > refused && !is_told {
                let left = status.recovery_reserve_bytes;
                tracing::warn!(
                    left,
                    "a recovery found no room in what is kept for it: it may be impossible to close ledgers of this \
                     bookie until there is space; delete ledgers or enlarge the volume"
                );
                is_told = true;
            }
            refused = status.recoveries_refused;
            let pulses: Vec<Pulse> = engine
                .pulses(now_ns)
                .into_iter()
                .map(|pulse| Pulse { groups: pulse.groups, slow: pulse.slow, busy: pulse.busy })
                .collect();
            let reason = slow.tick(Duration::from_nanos(now_ns), &pulses);
            engine.set_probing(reason.is_some());
            standing.set(Cause::SlowJournal, reason);
            if checks.is_due(now_ns, is_short, self.limits.interval) {
                self.check(&engine, &standing, &garbage).await;
            }
        }
    }
}

/// True when something waits for space. Waiting for a descriptor is no reason to give up a reserve.
fn tell_what_waits(engine: &Engine, standing: &ReadOnlyReasons) -> bool {
    let status = engine.status();
    let is_short = status.waits_for_space.is_some();
    standing.set(Cause::NoSpace, status.waits_for_space);
    standing.set(Cause::NoDescriptor, status.waits_for_descriptor);
    is_short
}

impl Gauges {
    /// `leave_room` tells flushes what to leave free for rewrites, by ledger directory.
    fn check(&mut self, is_short: bool, may_take_adds: bool, leave_room: &dyn Fn(&[u64])) -> Checked {
        for guarded in &mut self.volumes {
            guarded.measure(&*self.disk);
        }
        let mut readings = Vec::with_capacity(self.dirs.len());
        for (index, dir) in self.dirs.iter().enumerate() {
            let space = self.disk.space(dir).map_err(|error| error.to_string());
            readings.push(Reading { space, reserve_lacking: self.of_reserve(index, Guarded::lacking) });
        }
        let verdict = self.core.check(&readings);
        let takes_adds = may_take_adds && verdict.read_only.is_none();
        let of_whole_reserves = self.rewrite_room(|guarded| guarded.reserve.size());
        let mut volumes = Vec::with_capacity(self.volumes.len());
        for guarded in &mut self.volumes {
            let Guarded { volume, reserve, .. } = &*guarded;
            let dir = &volume.reserve_dir;
            let mut space = self.disk.space(dir).ok();
            if let Some(now) = space {
                // Before it is given up, or a flush that waits could take all of it.
                if let Ok(reserve::Step::GiveUp) = reserve.step(&*self.disk, now, is_short, takes_adds) {
                    leave_room(&of_whole_reserves);
                }
                match reserve.tend(&*self.disk, now, is_short, takes_adds) {
                    Ok(reserve::Step::Keep) => {}
                    Ok(step) => {
                        let said = match step {
                            reserve::Step::GiveUp => {
                                "gave up the reserve of this volume to make room for flushes and deletions"
                            }
                            reserve::Step::Refill | reserve::Step::Keep => {
                                "holding the reserve of this volume again"
                            }
                        };
                        tracing::info!(dir = %dir.display(), bytes = reserve.size(), "{said}");
                        space = self.disk.space(dir).ok();
                    }
                    Err(error) => tracing::warn!(dir = %dir.display(), %error, "cannot adjust the reserve"),
                }
            }
            let is_full = volume.ledger_dirs.iter().any(|index| verdict.full[*index]);
            let dir = dir.clone();
            guarded.measure(&*self.disk);
            volumes.push(VolumeStatus {
                dir,
                space,
                reserve: (guarded.held, guarded.reserve.size()),
                is_full,
            });
        }
        leave_room(&self.rewrite_room(Guarded::lacking));
        Checked { verdict, volumes, recovery_reserve: self.recovery_reserve(is_short) }
    }

    /// `bytes` of the reserve of a ledger directory's volume.
    fn of_reserve(&self, directory: usize, bytes: impl Fn(&Guarded) -> u64) -> u64 {
        let guarded = self.volumes.iter().find(|guarded| guarded.volume.ledger_dirs.contains(&directory));
        guarded.map_or(0, bytes)
    }

    /// What flushes leave free in each ledger directory: half of what is, or may be, `given_up` of its reserve. The other half
    /// is for a flush that waits for space.
    fn rewrite_room(&self, given_up: impl Fn(&Guarded) -> u64) -> Vec<u64> {
        (0..self.dirs.len()).map(|index| self.of_reserve(index, &given_up) / 2).collect()
    }

    /// Half of the smallest reserve of a ledger volume, for as long as all are held; when they are given up, recoveries have
    /// what is left of it, and the other half is for fences, removals and compactions. A start has that once, whatever is
    /// held: it cannot count adds of before.
    fn recovery_reserve(&mut self, is_short: bool) -> Option<u64> {
        let reserves = || self.volumes.iter().filter(|guarded| !guarded.volume.ledger_dirs.is_empty());
        let is_held = !is_short && reserves().all(|guarded| guarded.held >= guarded.reserve.size());
        let bytes = reserves().map(|guarded| guarded.reserve.size() / 2).min().unwrap_or(0);
        (std::mem::take(&mut self.is_new) || is_held).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::{DiskFile, DiskLayer, OpenMode, RealDisk};
    use std::io;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn rounds_of_a_full_bookie_become_rare_while_they_remove_nothing() {
        let begun = Instant::now();
        let max = Duration::from_secs(200);
        let mut rounds = FullRounds::default();
        let mut asked_at = |seconds: std::ops::Range<u64>, is_short, removed| -> Vec<u64> {
            let is_due = |s: &u64| rounds.is_due(begun + Duration::from_secs(*s), is_short, removed, max);
            seconds.filter(is_due).collect()
        };
        assert_eq!(asked_at(0..10, false, 0), [0; 0]);
        assert_eq!(asked_at(10..1000, true, 0), [10, 40, 100, 220, 420, 620, 820]);
        // Something went: there may be more.
        assert_eq!(asked_at(1000..1100, true, 5), [1000, 1030, 1090]);
        assert_eq!(asked_at(1100..1110, false, 5), [0; 0]);
        assert_eq!(asked_at(1110..1300, true, 5), [1120, 1150, 1210]);
        // It comes and goes: no more often than at first.
        let mut rounds = FullRounds::default();
        let flaps = (0..60).filter(|s| rounds.is_due(begun + Duration::from_secs(*s), s % 2 == 0, 0, max));
        assert_eq!(flaps.collect::<Vec<_>>(), [0, 30]);
    }

    #[test]
    fn disks_are_measured_when_space_comes_and_goes_and_once_in_an_interval() {
        let mut checks = Checks { checked_ns: 0, was_short: false };
        let ten = Duration::from_secs(10);
        let mut due_at = |seconds: std::ops::Range<u64>, is_short| -> Vec<u64> {
            seconds.filter(|s| checks.is_due(s * 1_000_000_000, is_short, ten)).collect()
        };
        assert_eq!(due_at(0..25, false), [10, 20]);
        assert_eq!(due_at(25..40, true), [25, 35]);
        assert_eq!(due_at(40..60, false), [40, 50]);
    }

    /// The real disk, where everything is free and nothing can be opened when the test says so.
    struct Exhausted(RealDisk, Arc<AtomicBool>);

    impl DiskLayer for Exhausted {
        fn beneath(&self) -> &dyn Disk {
            &self.0
        }
        fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
            match self.1.load(Ordering::SeqCst) {
                // EMFILE.
                true => Err(io::Error::from_raw_os_error(24)),
                false => self.0.open(path, mode),
            }
        }
        fn space(&self, _: &Path) -> io::Result<Space> {
            Ok(Space { total: 1 << 30, free: 60 << 20 })
        }
    }

    /// Reserve invariant 4: flushes are told before the first byte of a reserve is free, and no longer than it is given up.
    #[test]
    fn half_of_a_reserve_that_is_given_up_stays_for_rewrites() {
        const SIZE: u64 = 4 << 20;
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Exhausted(RealDisk::new(), Arc::default()));
        let volume =
            |ledger_dirs| Volume { reserve_dir: dir.path().to_owned(), ledger_dirs, has_journal: false };
        let limits = DiskLimits { reserve_bytes: Some(SIZE), ..DiskLimits::default() };
        let dirs = vec![dir.path().to_owned(), dir.path().to_owned()];
        let slow = SlowLimits::default();
        let round_interval = Duration::from_secs(900);
        let watch = DiskWatch::prepare(disk, dirs, vec![volume(vec![1])], 0, limits, slow, round_interval);
        let path = dir.path().join(reserve::RESERVE_NAME);
        let told = Mutex::new(Vec::new());
        let check = |is_short| {
            let leave = |room: &[u64]| told.lock().push((room.to_vec(), path.exists()));
            watch.gauges.lock().check(is_short, !is_short, &leave);
            std::mem::take(&mut *told.lock())
        };
        assert_eq!(check(false), [(vec![0, 0], true)], "it is held");
        let kept = vec![0, SIZE / 2];
        assert_eq!(check(true), [(kept.clone(), true), (kept.clone(), false)]);
        assert_eq!(check(true), [(kept, false)]);
        assert_eq!(check(false), [(vec![0, 0], true)], "it was taken back");
    }

    /// The reserve was given up, so the volume is full; without descriptors that must not be forgotten.
    #[test]
    fn a_reserve_that_cannot_be_looked_at_is_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let is_exhausted = Arc::new(AtomicBool::new(false));
        let disk = Arc::new(Exhausted(RealDisk::new(), is_exhausted.clone()));
        let volume = Volume { reserve_dir: dir.path().to_owned(), ledger_dirs: vec![0], has_journal: false };
        let limits = DiskLimits { reserve_bytes: Some(50 << 20), ..DiskLimits::default() };
        let dirs = vec![dir.path().to_owned()];
        let slow = SlowLimits::default();
        let watch = DiskWatch::prepare(disk, dirs, vec![volume], 0, limits, slow, Duration::from_secs(900));
        for _ in 0..2 {
            let Checked { verdict, volumes, .. } = watch.gauges.lock().check(false, false, &|_| {});
            assert_eq!((&verdict.full[..], volumes[0].reserve.0), (&[true][..], 0), "{verdict:?}");
            is_exhausted.store(true, Ordering::SeqCst);
        }
    }
}
