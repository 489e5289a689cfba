//! Full, failing and slow disks: when the bookie stops taking writes, and when it takes them again by itself.
//!
//! # Data flow
//! ```text
//! Disk::space ---------> usage::UsageCore ---------> ReadOnlyReasons -> engine (refuses, accepts)
//! journal pulses ------> slow_journal::SlowJournalCore -/  \--> registrar (available, readonly)
//! calls under way -----> ledger_hang::LedgerHangCore ----/
//! engine's status ---------------------------------------/
//! engine's ledger memory -> ledger_memory::LedgerMemoryCore --> ReadOnlyReasons -> registrar alone
//! space, verdict ------> reserve: held, given up, taken back -> engine (what recoveries may add, what flushes leave free)
//! verdict, engine's status -> garbage::GarbageDesk: rounds with a compaction while space, or memory for ledgers, is short
//! ```
//! The cores decide and do no I/O; [`DiskWatch`] measures on blocking threads every `diskCheckInterval`, and looks at
//! the engine twice a second: it measures at once when something begins to wait for space, and when nothing does any more.
//!
//! # Limits
//! One call to each volume at a time. One that does not answer within [`ANSWER_MAX`] keeps what was measured of it last, and the others
//! are judged meanwhile. Its late answer counts at the check after, so that a volume that is always slow is still measured.

pub mod calls;
pub mod ledger_hang;
pub mod ledger_memory;
pub mod read_only;
pub mod reserve;
pub mod slow_journal;
pub mod usage;

pub use calls::LedgerCalls;
pub use read_only::{Cause, ReadOnlyReasons};
pub use slow_journal::SlowLimits;
pub use usage::DiskLimits;

pub use crate::data_dirs::Volume;
use crate::latch::Latch;
use crate::maintenance::garbage::{GarbageDesk, GarbageRequest};
use bindery_engine::{Engine, WantedCollection};
use bindery_io::{Clock, Disk, Space};
use bindery_metrics::{Exposition, Kind, Row, Table};
use ledger_hang::LedgerHangCore;
use ledger_memory::LedgerMemoryCore;
use parking_lot::Mutex;
use reserve::Reserve;
use slow_journal::{Pulse, SlowJournalCore};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use usage::{Reading, UsageCore, Verdict};

/// Time between the first two rounds of garbage collection, with their compactions, while a volume is full. It doubles, up to
/// the configured time between rounds, while they remove nothing.
const FULL_ROUND_INTERVAL: Duration = Duration::from_secs(30);
/// Disks of which one is full are measured so often at least: space that comes back is used soon.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// How often the engine is checked.
const GLANCE_INTERVAL: Duration = Duration::from_millis(500);
/// How long a check waits for a volume.
const ANSWER_MAX: Duration = Duration::from_secs(2);

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

/// What an operator sees of one ledger directory.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectoryStatus {
    /// Its path.
    pub dir: PathBuf,
    /// The share of its volume in use, from 0 to 1, when it is known.
    pub used: Option<f64>,
    /// Above the threshold: it gets no entries.
    pub is_full: bool,
}

/// What the last check found, for the admin port.
#[derive(Default)]
pub struct DiskDesk {
    volumes: Mutex<Vec<VolumeStatus>>,
    directories: Mutex<Vec<DirectoryStatus>>,
}

impl DiskDesk {
    /// The volumes at the last check.
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        self.volumes.lock().clone()
    }

    /// The ledger directories at the last check, by number.
    pub fn directories(&self) -> Vec<DirectoryStatus> {
        self.directories.lock().clone()
    }

    /// Writes the gauges of volumes and of reasons to be read-only.
    pub fn expose(&self, standing: &ReadOnlyReasons, out: &mut Exposition) {
        let volumes = self.volumes();
        let named: Vec<_> = volumes.iter().map(|of| (of.dir.display().to_string(), of)).collect();
        VOLUMES.expose_each(named.iter().map(|(dir, of)| (dir.as_str(), *of)), out);
        REASONS.expose(&standing.reasons(), out);
    }
}

/// By volume.
pub const VOLUMES: Table<VolumeStatus> = Table::by(
    "dir",
    &[
        Row::each(Kind::Gauge, "bindery_volume_total_bytes", &[], "Size of a volume.", |of, series| {
            if let Some(space) = of.space {
                series.count(&[], space.total);
            }
        }),
        Row::each(Kind::Gauge, "bindery_volume_free_bytes", &[], "Free bytes of a volume.", |of, series| {
            if let Some(space) = of.space {
                series.count(&[], space.free);
            }
        }),
        Row::gauge(
            "bindery_volume_reserve_bytes",
            "Bytes of a volume that a file of the bookie holds for the time when it is full.",
            |of| of.reserve.0,
        ),
        Row::flag("bindery_volume_full", "1 while a volume is above its threshold.", |of| of.is_full),
    ],
);

/// Why the bookie is read-only.
pub const REASONS: Table<BTreeMap<Cause, String>> = Table::new(&[Row::each(
    Kind::Gauge,
    "bindery_read_only",
    &["cause"],
    "1 for each cause for which no adds, or no new ledgers, are taken.",
    |reasons, series| {
        for cause in Cause::ALL {
            series.signed(&[("cause", cause.name())], i64::from(reasons.contains_key(&cause)));
        }
    },
)]);

/// What is measured, and what is kept free.
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
    directories: Vec<DirectoryStatus>,
    /// Bytes that recoveries may add from now on while no other adds are taken; `None` leaves them those they have.
    recovery_reserve: Option<u64>,
}

/// Tells flushes what to leave free for rewrites, by ledger directory.
type LeaveRoom = Arc<dyn Fn(&[u64]) + Send + Sync>;

/// A volume, its reserve, and what was measured of it last.
struct Guarded {
    volume: Volume,
    reserve: Arc<Reserve>,
    /// Bytes that the reserve held when that could be told last. Without a descriptor it cannot.
    held: u64,
    /// Of the directory of the reserve.
    space: Option<Space>,
    /// Of the ledger directories, in the order of `volume.ledger_dirs`.
    spaces: Vec<Result<Space, String>>,
    /// The call to it that is under way, or came back late.
    call: Option<JoinHandle<Measured>>,
}

/// What a volume answers. Made on a blocking thread.
struct Measured {
    held: std::io::Result<u64>,
    space: Option<Space>,
    spaces: Vec<Result<Space, String>>,
}

impl Guarded {
    fn new(volume: Volume, reserve: Reserve) -> Guarded {
        let spaces = vec![Err("it was not measured yet".to_owned()); volume.ledger_dirs.len()];
        Guarded { volume, reserve: Arc::new(reserve), held: 0, space: None, spaces, call: None }
    }

    fn lacking(&self) -> u64 {
        self.reserve.size().saturating_sub(self.held)
    }

    /// Does `work` on the volume, if there is some, and measures it, on a blocking thread; unless a call of before was not taken yet.
    fn begin(&mut self, disk: &Arc<dyn Disk>, dirs: &[PathBuf], work: impl FnOnce() + Send + 'static) {
        if self.call.is_some() {
            return;
        }
        let (disk, reserve) = (disk.clone(), self.reserve.clone());
        let own = self.volume.reserve_dir.clone();
        let dirs: Vec<PathBuf> = self.volume.ledger_dirs.iter().map(|index| dirs[*index].clone()).collect();
        self.call = Some(tokio::task::spawn_blocking(move || {
            work();
            Measured::of(&*disk, &reserve, &own, &dirs)
        }));
    }

    /// Takes the answer of the call under way, if it comes by then. True if it did.
    async fn take_answer(&mut self, until: Instant) -> bool {
        let Some(call) = &mut self.call else { return false };
        let Ok(answer) = tokio::time::timeout_at(until, call).await else { return false };
        self.call = None;
        match answer {
            Ok(measured) => self.on_measured(measured),
            // Without a panic it was cancelled: the process ends.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return false,
            },
        }
        true
    }

    fn on_measured(&mut self, measured: Measured) {
        let Measured { held, space, spaces } = measured;
        (self.space, self.spaces) = (space, spaces);
        match held {
            Ok(held) => self.held = held,
            Err(error) => {
                let dir = self.volume.reserve_dir.display();
                tracing::warn!(%dir, %error, "cannot measure the reserve: assuming it is unchanged");
            }
        }
    }
}

impl Measured {
    /// Blocks on the disk.
    fn of(disk: &dyn Disk, reserve: &Reserve, own: &Path, dirs: &[PathBuf]) -> Measured {
        let spaces = dirs.iter().map(|dir| disk.space(dir).map_err(|error| error.to_string())).collect();
        Measured { held: reserve.held(disk), space: disk.space(own).ok(), spaces }
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
    gauges: Gauges,
    limits: DiskLimits,
    slow: SlowLimits,
    desk: Arc<DiskDesk>,
    ledgers: Mutex<LedgerMemoryCore>,
    rounds: Mutex<FullRounds>,
    /// Those for ledgers that are too many.
    ledger_rounds: Mutex<FullRounds>,
    /// The configured time between rounds of garbage collection.
    round_interval: Duration,
    /// Some ledger directory was full at the last check.
    is_full: bool,
}

impl DiskWatch {
    /// For these ledger directories on these volumes. Makes room for the start: a reserve is
    /// given up where the volume is nearly full, and none is made yet. Blocks on the disk.
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
            let of_volume: Vec<PathBuf> =
                volume.ledger_dirs.iter().map(|index| dirs[*index].clone()).collect();
            // A start waits for it: a directory that was never measured would count as full.
            let measured = Measured::of(&*disk, &reserve, &volume.reserve_dir, &of_volume);
            let mut guarded = Guarded::new(volume, reserve);
            guarded.on_measured(measured);
            reserves.push(guarded);
        }
        let names = dirs.iter().map(|dir| dir.display().to_string()).collect();
        let core = UsageCore::new(limits.clone(), names);
        let gauges = Gauges { disk, dirs, volumes: reserves, core, is_new: true };
        DiskWatch {
            gauges,
            limits,
            slow,
            desk: Arc::new(DiskDesk::default()),
            ledgers: Mutex::default(),
            rounds: Mutex::default(),
            ledger_rounds: Mutex::default(),
            round_interval,
            is_full: false,
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
    pub async fn check(&mut self, engine: &Arc<Engine>, standing: &ReadOnlyReasons, garbage: &GarbageDesk) {
        let is_short = tell_what_waits(engine, standing);
        let are_ledgers_too_many = self.look_at_ledgers(engine, standing);
        let may_take_adds = standing.takes_adds() && !is_short;
        let leaves = engine.clone();
        let leave_room: LeaveRoom = Arc::new(move |room| leaves.set_rewrite_room(room));
        let Checked { verdict, volumes, directories, recovery_reserve } =
            self.gauges.check(is_short, may_take_adds, leave_room, ANSWER_MAX).await;
        if let Some(bytes) = recovery_reserve {
            engine.set_recovery_reserve(bytes);
        }
        *self.desk.volumes.lock() = volumes;
        *self.desk.directories.lock() = directories;
        if verdict.is_almost_full && self.limits.forces_collection {
            engine.want_collection(WantedCollection { minor: true, major: false });
        }
        self.is_full = verdict.full.contains(&true);
        self.ask_for_space(is_short || self.is_full, garbage);
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

    /// The log tells operators to delete ledgers: this makes it help soon, however long the configured intervals are. The rounds asked
    /// for here compact whatever they remove; those in between compact when they do.
    fn ask_for_space(&self, is_short: bool, garbage: &GarbageDesk) {
        garbage.want_space(is_short);
        let removed = garbage.removed.get() + garbage.surplus_removed.get();
        if self.rounds.lock().is_due(Instant::now(), is_short, removed, self.round_interval) {
            garbage.ask(GarbageRequest { minor: true, major: true, ..GarbageRequest::default() });
        }
    }

    /// Watches until `stop`. `calls` are those to the disks of the ledger directories.
    pub async fn run(
        mut self,
        calls: Arc<LedgerCalls>,
        engine: Arc<Engine>,
        garbage: Arc<GarbageDesk>,
        clock: Arc<dyn Clock>,
        standing: Arc<ReadOnlyReasons>,
        stop: Arc<Latch>,
    ) {
        let mut slow = SlowJournalCore::new(self.slow);
        let mut hang = LedgerHangCore::default();
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
            let adds_wait = engine.adds_wait();
            let reason = hang.tick(Duration::from_nanos(now_ns), &calls.silences(), adds_wait);
            standing.set(Cause::LedgersHang, reason);
            let interval = match self.is_full {
                true => self.limits.interval.min(FULL_CHECK_INTERVAL),
                false => self.limits.interval,
            };
            if checks.is_due(now_ns, is_short, interval) {
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

/// Lets the reserve of a volume have, or lack, what it should. Blocks on the disk.
fn tend(disk: &dyn Disk, reserve: &Reserve, dir: &Path, space: Space, is_short: bool, takes_adds: bool) {
    match reserve.tend(disk, space, is_short, takes_adds) {
        Ok(reserve::Step::Keep) => {}
        Ok(step) => {
            let said = match step {
                reserve::Step::GiveUp => {
                    "gave up the reserve of this volume to make room for flushes and deletions"
                }
                reserve::Step::Refill | reserve::Step::Keep => "holding the reserve of this volume again",
            };
            tracing::info!(dir = %dir.display(), bytes = reserve.size(), "{said}");
        }
        Err(error) => tracing::warn!(dir = %dir.display(), %error, "cannot adjust the reserve"),
    }
}

impl Gauges {
    /// Waits for each volume at most `answer_max`, twice.
    async fn check(
        &mut self,
        is_short: bool,
        may_take_adds: bool,
        leave_room: LeaveRoom,
        answer_max: Duration,
    ) -> Checked {
        let until = Instant::now() + answer_max;
        for guarded in &mut self.volumes {
            guarded.begin(&self.disk, &self.dirs, || {});
        }
        let mut answered = Vec::with_capacity(self.volumes.len());
        for guarded in &mut self.volumes {
            let answers = guarded.take_answer(until).await;
            if !answers {
                let dir = guarded.volume.reserve_dir.display();
                tracing::warn!(%dir, "this volume does not answer: assuming that its space is unchanged");
            }
            answered.push(answers);
        }
        let readings = self.readings();
        let verdict = self.core.check(&readings);
        let directories = (self.dirs.iter().zip(&readings).zip(&verdict.full))
            .map(|((dir, reading), is_full)| DirectoryStatus {
                dir: dir.clone(),
                used: reading.space.is_ok().then(|| reading.used()),
                is_full: *is_full,
            })
            .collect();
        let takes_adds = may_take_adds && verdict.read_only.is_none();
        let of_whole_reserves: Arc<[u64]> = self.rewrite_room(|guarded| guarded.reserve.size()).into();
        let until = Instant::now() + answer_max;
        for (guarded, answers) in self.volumes.iter_mut().zip(answered) {
            let Some(space) = guarded.space.filter(|_| answers) else { continue };
            let (disk, reserve) = (self.disk.clone(), guarded.reserve.clone());
            let dir = guarded.volume.reserve_dir.clone();
            let (leave_room, of_whole_reserves) = (leave_room.clone(), of_whole_reserves.clone());
            guarded.begin(&self.disk, &self.dirs, move || {
                // Before it is given up, or a flush that waits could take all of it.
                if let Ok(reserve::Step::GiveUp) = reserve.step(&*disk, space, is_short, takes_adds) {
                    leave_room(&of_whole_reserves);
                }
                tend(&*disk, &reserve, &dir, space, is_short, takes_adds);
            });
        }
        for guarded in &mut self.volumes {
            guarded.take_answer(until).await;
        }
        leave_room(&self.rewrite_room(Guarded::lacking));
        let status = |guarded: &Guarded| VolumeStatus {
            dir: guarded.volume.reserve_dir.clone(),
            space: guarded.space,
            reserve: (guarded.held, guarded.reserve.size()),
            is_full: guarded.volume.ledger_dirs.iter().any(|index| verdict.full[*index]),
        };
        let volumes = self.volumes.iter().map(status).collect();
        Checked { verdict, volumes, directories, recovery_reserve: self.recovery_reserve(is_short) }
    }

    /// One for each ledger directory.
    fn readings(&self) -> Vec<Reading> {
        let unknown = || Reading { space: Err("it is on no known volume".to_owned()), reserve_lacking: 0 };
        let mut readings: Vec<Reading> = self.dirs.iter().map(|_| unknown()).collect();
        for guarded in &self.volumes {
            for (index, space) in guarded.volume.ledger_dirs.iter().zip(&guarded.spaces) {
                readings[*index] = Reading { space: space.clone(), reserve_lacking: guarded.lacking() };
            }
        }
        readings
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
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

    fn gauges(disk: Arc<dyn Disk>, dirs: &[&Path], volumes: Vec<Volume>, reserve_bytes: u64) -> Gauges {
        let limits = DiskLimits { reserve_bytes: Some(reserve_bytes), ..DiskLimits::default() };
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| (*dir).to_owned()).collect();
        let (slow, round_interval) = (SlowLimits::default(), Duration::from_secs(900));
        DiskWatch::prepare(disk, dirs, volumes, 0, limits, slow, round_interval).gauges
    }

    fn on(dir: &Path, ledger_dirs: Vec<usize>) -> Volume {
        Volume { reserve_dir: dir.to_owned(), ledger_dirs, has_journal: false }
    }

    /// Reserve invariant 4: flushes are told before the first byte of a reserve is free, and no longer than it is given up.
    #[tokio::test]
    async fn half_of_a_reserve_that_is_given_up_stays_for_rewrites() {
        const SIZE: u64 = 4 << 20;
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Exhausted(RealDisk::new(), Arc::default()));
        let mut gauges = gauges(disk, &[dir.path(), dir.path()], vec![on(dir.path(), vec![1])], SIZE);
        let path = dir.path().join(reserve::RESERVE_NAME);
        type Told = Vec<(Vec<u64>, bool)>;
        let told: Arc<Mutex<Told>> = Arc::default();
        let kept = vec![0, SIZE / 2];
        let expected = [
            (false, vec![(vec![0, 0], true)], "it is held"),
            (true, vec![(kept.clone(), true), (kept.clone(), false)], "it is given up"),
            (true, vec![(kept, false)], "it stays given up"),
            (false, vec![(vec![0, 0], true)], "it was taken back"),
        ];
        for (is_short, expected, what) in expected {
            let (told_too, path) = (told.clone(), path.clone());
            let leave: LeaveRoom =
                Arc::new(move |room: &[u64]| told_too.lock().push((room.to_vec(), path.exists())));
            gauges.check(is_short, !is_short, leave, ANSWER_MAX).await;
            assert_eq!(std::mem::take(&mut *told.lock()), expected, "{what}");
        }
    }

    /// The reserve was given up, so the volume is full; without descriptors that must not be forgotten.
    #[tokio::test]
    async fn a_reserve_that_cannot_be_looked_at_is_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let is_exhausted = Arc::new(AtomicBool::new(false));
        let disk = Arc::new(Exhausted(RealDisk::new(), is_exhausted.clone()));
        let mut gauges = gauges(disk, &[dir.path()], vec![on(dir.path(), vec![0])], 50 << 20);
        for _ in 0..2 {
            let checked = gauges.check(false, false, Arc::new(|_: &[u64]| {}), ANSWER_MAX).await;
            let Checked { verdict, volumes, .. } = checked;
            assert_eq!((&verdict.full[..], volumes[0].reserve.0), (&[true][..], 0), "{verdict:?}");
            is_exhausted.store(true, Ordering::SeqCst);
        }
    }

    /// Two volumes of which one can be made to hang, and one to be full.
    struct Volatile {
        real: RealDisk,
        hangs: PathBuf,
        is_hanging: AtomicBool,
        hanging_free: AtomicU64,
        /// Of the other one.
        free: AtomicU64,
    }

    impl DiskLayer for Volatile {
        fn beneath(&self) -> &dyn Disk {
            &self.real
        }
        fn space(&self, dir: &Path) -> io::Result<Space> {
            let may_hang = dir == self.hangs;
            while may_hang && self.is_hanging.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let free = if may_hang { &self.hanging_free } else { &self.free }.load(Ordering::SeqCst);
            Ok(Space { total: 1 << 30, free })
        }
    }

    #[tokio::test]
    async fn a_volume_that_hangs_keeps_its_last_reading_and_does_not_hold_up_the_others() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = [dirs[0].path(), dirs[1].path()];
        let disk = Arc::new(Volatile {
            real: RealDisk::new(),
            hangs: paths[0].to_owned(),
            is_hanging: AtomicBool::new(false),
            hanging_free: (1 << 29).into(),
            free: (1 << 29).into(),
        });
        let volumes = vec![on(paths[0], vec![0]), on(paths[1], vec![1])];
        let mut gauges = gauges(disk.clone(), &paths, volumes, 0);
        let answer_max = Duration::from_millis(50);
        let check =
            async |gauges: &mut Gauges| gauges.check(false, true, Arc::new(|_: &[u64]| {}), answer_max).await;
        // However slow the machine is, it answers at last.
        while gauges.spaces_known() < 2 {
            check(&mut gauges).await;
        }
        disk.is_hanging.store(true, Ordering::SeqCst);
        disk.free.store(0, Ordering::SeqCst);
        let mut full = vec![];
        while full != [false, true] {
            full = check(&mut gauges).await.verdict.full;
        }
        assert!(gauges.volumes[0].call.is_some(), "one call is under way, and no other was begun");
        disk.is_hanging.store(false, Ordering::SeqCst);
        disk.free.store(1 << 29, Ordering::SeqCst);
        while full != [false, false] || gauges.volumes[0].call.is_some() {
            full = check(&mut gauges).await.verdict.full;
        }
    }

    /// Lets a volume answer in the end, also when a test fails: the end of the runtime waits for the call.
    struct Thaws<'a>(&'a AtomicBool);

    impl Drop for Thaws<'_> {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    /// A volume each of whose calls takes longer than a check waits.
    #[tokio::test]
    async fn what_a_slow_volume_answers_late_counts_at_the_check_after() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Volatile {
            real: RealDisk::new(),
            hangs: dir.path().to_owned(),
            is_hanging: AtomicBool::new(false),
            hanging_free: (1 << 29).into(),
            free: 0.into(),
        });
        let mut gauges = gauges(disk.clone(), &[dir.path()], vec![on(dir.path(), vec![0])], 0);
        let check = async |gauges: &mut Gauges| {
            gauges.check(false, true, Arc::new(|_: &[u64]| {}), Duration::ZERO).await
        };
        let _thaws = Thaws(&disk.is_hanging);
        disk.is_hanging.store(true, Ordering::SeqCst);
        let before = check(&mut gauges).await;
        assert_eq!(before.volumes[0].space, Some(Space { total: 1 << 30, free: 1 << 29 }));
        // It answers, after the check, that it is full; and is as slow again from then on.
        disk.hanging_free.store(0, Ordering::SeqCst);
        disk.is_hanging.store(false, Ordering::SeqCst);
        let call = gauges.volumes[0].call.as_ref().expect("the call is kept");
        while !call.is_finished() {
            tokio::task::yield_now().await;
        }
        disk.is_hanging.store(true, Ordering::SeqCst);
        let after = check(&mut gauges).await;
        assert_eq!(
            (after.volumes[0].space, &after.verdict.full[..]),
            (Some(Space { total: 1 << 30, free: 0 }), &[true][..])
        );
    }

    impl Gauges {
        fn spaces_known(&self) -> usize {
            self.volumes.iter().flat_map(|guarded| &guarded.spaces).filter(|space| space.is_ok()).count()
        }
    }
}
