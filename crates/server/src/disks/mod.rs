//! Full, failing and slow disks: when the bookie stops taking writes, and when it takes them again by itself.
//!
//! # Data flow
//! ```text
//! Disk::space ---------> usage::UsageCore ---------> Standing -> engine (refuses, accepts)
//! journal pulses ------> slow_journal::SlowJournalCore -/  \--> registrar (available, readonly)
//! engine's status ---------------------------------------/
//! space, verdict ------> reserve: held, given up, taken back
//! verdict, engine's status -> garbage::GarbageDesk: rounds with a compaction while space is short
//! ```
//! The cores decide and do no I/O; [`DiskWatch`] measures on a blocking thread every `diskCheckInterval`, and looks at
//! the engine twice a second.
//!
//! # Limits
//! One measurement at a time. A disk that does not answer it leaves the last verdict in force.

pub mod reserve;
pub mod slow_journal;
pub mod standing;
pub mod usage;

pub use slow_journal::SlowLimits;
pub use standing::{Cause, Standing};
pub use usage::DiskLimits;

use crate::garbage::{GarbageDesk, GarbageRequest};
use crate::latch::Latch;
use crate::metrics::Exposition;
use bindery_engine::{Engine, WantedCollection};
use bindery_io::{Clock, Disk, Space};
use parking_lot::Mutex;
use reserve::Reserve;
use slow_journal::{Pulse, SlowJournalCore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use usage::{Reading, UsageCore, Verdict};

/// Time between two rounds of garbage collection, with their compactions, while a volume is full.
const FULL_ROUND_INTERVAL: Duration = Duration::from_secs(30);
/// How often the engine is looked at.
const GLANCE_INTERVAL: Duration = Duration::from_millis(500);

/// The directories of one file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Where its reserve is: one of the directories.
    pub reserve_dir: PathBuf,
    /// The ledger directories on it, by their place in the configuration.
    pub ledger_dirs: Vec<usize>,
    /// A journal is on it.
    pub has_journal: bool,
}

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
    pub fn expose(&self, standing: &Standing, out: &mut Exposition) {
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
    volumes: Vec<(Volume, Reserve)>,
    core: UsageCore,
}

/// Watches the disks of a bookie.
pub struct DiskWatch {
    gauges: Arc<Mutex<Gauges>>,
    limits: DiskLimits,
    slow: SlowLimits,
    desk: Arc<DiskDesk>,
    /// Time of the last request for such a round.
    asked: Mutex<Option<Instant>>,
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
                tracing::warn!(%dir, free_mib = space.free >> 20, "nearly full: giving the reserve up for the start");
                if let Err(error) = reserve.tend(&*disk, space, true, false) {
                    tracing::warn!(%dir, %error, "cannot give the reserve up");
                }
            }
            reserves.push((volume, reserve));
        }
        let names = dirs.iter().map(|dir| dir.display().to_string()).collect();
        let core = UsageCore::new(limits.clone(), names);
        let gauges = Gauges { disk, dirs, volumes: reserves, core };
        DiskWatch {
            gauges: Arc::new(Mutex::new(gauges)),
            limits,
            slow,
            desk: Arc::new(DiskDesk::default()),
            asked: Mutex::default(),
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
    pub async fn check(&self, engine: &Engine, standing: &Standing, garbage: &GarbageDesk) {
        let is_short = tell_what_waits(engine, standing);
        let may_take_adds = standing.takes_adds() && !is_short;
        let gauges = self.gauges.clone();
        let checked = tokio::task::spawn_blocking(move || gauges.lock().check(is_short, may_take_adds)).await;
        let Ok((verdict, volumes)) = checked else { return };
        *self.desk.volumes.lock() = volumes;
        if verdict.is_almost_full && self.limits.forces_collection {
            engine.want_collection(WantedCollection { minor: true, major: false });
        }
        if is_short || verdict.full.contains(&true) {
            self.ask_for_space(garbage);
        }
        engine.set_full_directories(&verdict.full);
        standing.set_high_priority(verdict.takes_high_priority);
        standing.set(Cause::DiskFull, verdict.read_only);
    }

    /// The log tells operators to delete ledgers: this makes it help soon, however long the configured intervals are.
    fn ask_for_space(&self, garbage: &GarbageDesk) {
        let mut asked = self.asked.lock();
        if asked.is_none_or(|asked| asked.elapsed() >= FULL_ROUND_INTERVAL) {
            *asked = Some(Instant::now());
            garbage.ask(GarbageRequest { minor: true, major: true, ..GarbageRequest::default() });
        }
    }

    /// Watches until `stop`.
    pub async fn run(
        self,
        engine: Arc<Engine>,
        garbage: Arc<GarbageDesk>,
        clock: Arc<dyn Clock>,
        standing: Arc<Standing>,
        stop: Arc<Latch>,
    ) {
        let mut slow = SlowJournalCore::new(self.slow);
        let mut checked_ns = clock.monotonic_ns();
        let mut was_short = false;
        loop {
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(GLANCE_INTERVAL) => {}
            }
            let now_ns = clock.monotonic_ns();
            let status = engine.status();
            standing.set(Cause::StorageFailed, status.failed);
            let is_short = tell_what_waits(&engine, &standing);
            let pulses: Vec<Pulse> = engine
                .pulses(now_ns)
                .into_iter()
                .map(|pulse| Pulse { groups: pulse.groups, slow: pulse.slow, busy: pulse.busy })
                .collect();
            let reason = slow.tick(Duration::from_nanos(now_ns), &pulses);
            engine.set_probing(reason.is_some());
            standing.set(Cause::SlowJournal, reason);
            // A flush that waits for space is what the reserve is for.
            let is_due = Duration::from_nanos(now_ns.saturating_sub(checked_ns)) >= self.limits.interval;
            if is_due || (is_short && !was_short) {
                checked_ns = now_ns;
                self.check(&engine, &standing, &garbage).await;
            }
            was_short = is_short;
        }
    }
}

/// True when something waits for space. Waiting for a descriptor is no reason to give up a reserve.
fn tell_what_waits(engine: &Engine, standing: &Standing) -> bool {
    let status = engine.status();
    let is_short = status.waits_for_space.is_some();
    standing.set(Cause::NoSpace, status.waits_for_space);
    standing.set(Cause::NoDescriptor, status.waits_for_descriptor);
    is_short
}

impl Gauges {
    fn check(&mut self, is_short: bool, may_take_adds: bool) -> (Verdict, Vec<VolumeStatus>) {
        let mut readings = Vec::with_capacity(self.dirs.len());
        for (index, dir) in self.dirs.iter().enumerate() {
            let space = self.disk.space(dir).map_err(|error| error.to_string());
            let reserve = self.volumes.iter().find(|(volume, _)| volume.ledger_dirs.contains(&index));
            let lacking = |(_, reserve): &(Volume, Reserve)| {
                reserve.held(&*self.disk).map_or(0, |held| reserve.size().saturating_sub(held))
            };
            readings.push(Reading { space, reserve_lacking: reserve.map_or(0, lacking) });
        }
        let verdict = self.core.check(&readings);
        let takes_adds = may_take_adds && verdict.read_only.is_none();
        let mut volumes = Vec::with_capacity(self.volumes.len());
        for (volume, reserve) in &self.volumes {
            let dir = &volume.reserve_dir;
            let mut space = self.disk.space(dir).ok();
            if let Some(now) = space {
                match reserve.tend(&*self.disk, now, is_short, takes_adds) {
                    Ok(reserve::Step::Keep) => {}
                    Ok(step) => {
                        tracing::info!(dir = %dir.display(), ?step, bytes = reserve.size(), "reserve");
                        space = self.disk.space(dir).ok();
                    }
                    Err(error) => tracing::warn!(dir = %dir.display(), %error, "cannot tend the reserve"),
                }
            }
            volumes.push(VolumeStatus {
                dir: dir.clone(),
                space,
                reserve: (reserve.held(&*self.disk).unwrap_or(0), reserve.size()),
                is_full: volume.ledger_dirs.iter().any(|index| verdict.full[*index]),
            });
        }
        (verdict, volumes)
    }
}
