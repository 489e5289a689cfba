//! Whether the path of data works: adds become durable, disks answer, newcomers get a connection. For liveness and readiness probes.
//!
//! # Data flow
//! ```text
//!            every PROBE_INTERVAL: a group of each journal, written and synced ──┐ answered?
//!            every PROBE_INTERVAL: a block of each ledger disk, written, synced ─┤ and read back ── errors
//! DataPathWatch                                                                  ├─> HealthCore -> Health <- admin port
//!            calls to ledger disks under way, writes of journals under way ──────┤
//!            who waits for a place or a descriptor ──────────────────────────────┘
//! ```
//! The group goes the way of an add: through a shard, the journal's thread and the completion thread. It is empty unless adds come at
//! the same time, so it is no entry, no ledger and no traffic of clients, and its room in the journal comes back as that of any group. The block is in a
//! file that has no name any more, written in place.
//!
//! # Invariants
//! 1. A hang is seen within ten seconds of its begin: [`PROBE_INTERVAL`], the longest bound of [`HealthCore`] and [`LOOK_INTERVAL`] together.
//! 2. Overload is no fault: requests that wait for memory, for their turn or for room in a journal, or are refused, do not count. A disk is judged by
//!    whether any of its calls end, and a journal by how long one write lasts or its thread is silent; a slow one goes on ending them.
//! 3. A fault that a restart cannot mend, or that clients may bring about, makes a bookie not ready, but alive. Only a hang is reported to those
//!    who would restart it.
//! 4. A full disk, or another cause that makes a bookie read-only while it serves reads, is no fault either. A full table of connections is one,
//!    because new clients cannot connect, and so is a lack of descriptors.
//!
//! # Limits
//! One probe of each journal and each ledger disk at a time, the latter on a thread that may block. A line of text.

use crate::disks::LedgerCalls;
use crate::disks::calls::Silence;
use crate::latch::Latch;
use crate::shared::Shared;
use bindery_io::chunk::AlignedBuf;
use bindery_io::{BLOCK_SIZE_BYTES, Clock, Disk, DiskFile, OpenMode, Shortage};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

pub use crate::data_dirs::PROBE_NAME;

/// Time between two probes of a journal, or of a disk.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two looks at what they came to.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// A disk of which no call at all has ended for so long hangs, and so does a write of a journal that lasts so long.
const HANGS: Duration = Duration::from_secs(6);
/// A disk that takes no change for so long hangs, although it is read: a frozen file system is. So does a journal that writes nothing, and
/// does not say why.
const TAKES_NOTHING: Duration = Duration::from_secs(7);
/// A newcomer that waits for a connection for so long gets none.
const NO_CONNECTION: Duration = Duration::from_secs(5);
/// The longest reason that is shown, in bytes.
const REASON_MAX: usize = 400;

/// What a look finds of one journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalLook {
    /// How long the write under way has taken.
    pub busy: Duration,
    /// Its next group waits for a file, or for space.
    pub waits_for_file: bool,
    /// How long a probe has not been answered; zero if none is under way.
    pub unanswered: Duration,
}

/// What a look finds.
#[derive(Debug)]
pub struct Look<'a> {
    /// By the number of the journal.
    pub journals: &'a [JournalLook],
    /// Ledger directories with calls under way.
    pub silences: &'a [Silence<'a>],
    /// Ledger directories of which a probe failed, and why.
    pub failed: &'a BTreeMap<PathBuf, String>,
    /// How long a newcomer has waited for a place among the connections.
    pub crowded: Option<Duration>,
    /// Why no connection is accepted, if none is.
    pub lacks_descriptors: Option<&'a str>,
}

/// Judges what is found.
#[derive(Debug, Default)]
pub struct HealthCore {
    lacking_since: Option<Duration>,
}

impl HealthCore {
    /// Why data cannot pass, while it cannot. `now` counts from any origin.
    pub fn judge(&mut self, now: Duration, look: &Look<'_>) -> Option<String> {
        match look.lacks_descriptors {
            None => self.lacking_since = None,
            Some(_) => _ = self.lacking_since.get_or_insert(now),
        }
        of_hangs(look)
            .or_else(|| {
                let (dir, why) = look.failed.first_key_value()?;
                Some(format!(
                    "the disk of ledger directory {} does not keep what is written: {why}",
                    dir.display()
                ))
            })
            .or_else(|| self.of_connections(now, look))
    }

    fn of_connections(&self, now: Duration, look: &Look<'_>) -> Option<String> {
        if let Some(waited) = look.crowded.filter(|waited| *waited >= NO_CONNECTION) {
            return Some(format!(
                "all places for connections (maxConnections) are in use, and a new one has waited for {} s",
                waited.as_secs()
            ));
        }
        let (since, why) = (self.lacking_since?, look.lacks_descriptors?);
        (now.saturating_sub(since) >= NO_CONNECTION).then(|| format!("no connection is accepted: {why}"))
    }
}

/// Which disk hangs.
fn of_hangs(look: &Look<'_>) -> Option<String> {
    of_journals(look.journals).or_else(|| of_disks(look.silences))
}

fn of_journals(journals: &[JournalLook]) -> Option<String> {
    let hangs = |(number, journal): (usize, &JournalLook)| {
        if journal.busy >= HANGS {
            return Some(format!(
                "a write of journal {number} has not ended for {} s",
                journal.busy.as_secs()
            ));
        }
        let is_silent = journal.unanswered >= TAKES_NOTHING && !journal.waits_for_file;
        is_silent
            .then(|| format!("journal {number} has written nothing for {} s", journal.unanswered.as_secs()))
    };
    journals.iter().enumerate().find_map(hangs)
}

fn of_disks(silences: &[Silence<'_>]) -> Option<String> {
    let hangs = silences.iter().find(|of| of.of_all >= HANGS || of.of_changes >= TAKES_NOTHING)?;
    let seconds = hangs.of_all.max(hangs.of_changes).as_secs();
    Some(format!("the disk of ledger directory {} has not answered for {seconds} s", hangs.dir.display()))
}

/// The verdict, for the admin port.
#[derive(Debug, Default)]
pub struct Health {
    why: Mutex<Option<String>>,
    hang: Mutex<Option<String>>,
    is_seen: AtomicBool,
}

impl Health {
    /// Why data cannot pass; `None` while it does, and before the first look.
    pub fn why(&self) -> Option<String> {
        self.why.lock().clone()
    }

    /// Which disk hangs, so that a restart may help (invariant 3).
    pub fn hang(&self) -> Option<String> {
        self.hang.lock().clone()
    }

    /// Whether there was a look.
    pub fn is_seen(&self) -> bool {
        self.is_seen.load(Ordering::Acquire)
    }

    /// Notes the verdict of a look, and logs a change.
    fn set(&self, mut why: Option<String>, hang: Option<String>) {
        *self.hang.lock() = hang;
        if let Some(why) = &mut why {
            let mut end = why.len().min(REASON_MAX);
            while !why.is_char_boundary(end) {
                end -= 1;
            }
            why.truncate(end);
        }
        let before = std::mem::replace(&mut *self.why.lock(), why.clone());
        self.is_seen.store(true, Ordering::Release);
        match (before, why) {
            (None, Some(why)) => {
                tracing::error!(why, "data cannot pass: not ready, as probes are told")
            }
            (Some(_), None) => tracing::warn!("data passes again: ready, as probes are told"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}

/// The probe of a journal that is under way.
#[derive(Default)]
struct JournalProbe {
    /// When it began, and one more; 0 without one.
    begun_ns: Arc<AtomicU64>,
}

impl JournalProbe {
    fn age(&self, now_ns: u64) -> Duration {
        let begun = self.begun_ns.load(Ordering::Acquire);
        Duration::from_nanos(if begun == 0 { 0 } else { (now_ns + 1).saturating_sub(begun) })
    }
}

/// The file that a ledger disk is probed with.
#[derive(Default)]
struct ProbeFile(Option<(Arc<dyn DiskFile>, u64)>);

impl ProbeFile {
    /// Writes a block durably and reads it back. Blocks on the disk.
    fn probe(&mut self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let (file, number) = match &mut self.0 {
            Some(open) => open,
            None => {
                let path = dir.join(PROBE_NAME);
                let file = disk.open(&path, OpenMode::CreateDirect)?;
                // Its space goes with this process, whatever becomes of that.
                disk.remove(&path)?;
                self.0.insert((file, 0))
            }
        };
        *number += 1;
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE_BYTES);
        for eight in block.chunks_exact_mut(8) {
            eight.copy_from_slice(&number.to_le_bytes());
        }
        let written = file.write_durable_at(&[IoSlice::new(&block)], 0)?;
        let mut read_back = AlignedBuf::zeroed(BLOCK_SIZE_BYTES);
        let read = file.read_at(&mut read_back, 0)?;
        match written == block.len() && read == block.len() && *read_back == *block {
            true => Ok(()),
            false => Err(io::Error::other("a block that was written is not what is read")),
        }
    }
}

/// The probe of a ledger disk; the call that is under way, if there is one.
struct DiskProbe {
    dir: PathBuf,
    call: Option<JoinHandle<(ProbeFile, io::Result<()>)>>,
    file: ProbeFile,
}

impl DiskProbe {
    /// Begins a call, unless one is under way.
    fn begin(&mut self, disk: &Arc<dyn Disk>) {
        if self.call.is_none() {
            let (disk, dir, mut file) = (disk.clone(), self.dir.clone(), std::mem::take(&mut self.file));
            self.call = Some(tokio::task::spawn_blocking(move || {
                let outcome = file.probe(&*disk, &dir);
                (file, outcome)
            }));
        }
    }

    /// Takes the outcome of a call that has ended.
    async fn take(&mut self) -> Option<io::Result<()>> {
        let ended = self.call.take_if(|call| call.is_finished())?;
        match ended.await {
            Ok((file, Ok(()))) => {
                self.file = file;
                Some(Ok(()))
            }
            // With another file next time.
            Ok((_, failed)) => Some(failed),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The process ends.
                Err(_) => None,
            },
        }
    }
}

/// Probes and judges, until the bookie stops.
pub(crate) struct DataPathWatch {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: Arc<dyn Disk>,
    /// Where ledger directories have their files.
    pub(crate) dirs: Vec<PathBuf>,
    pub(crate) calls: Arc<LedgerCalls>,
    /// Why no connection is accepted, if none is.
    pub(crate) lacks_descriptors: Box<dyn Fn() -> Option<String> + Send + Sync>,
    pub(crate) health: Arc<Health>,
}

impl DataPathWatch {
    pub(crate) async fn run(self, stop: Arc<Latch>) {
        let (clock, engine) = (self.shared.clock.clone(), &self.shared.engine);
        let mut disks: Vec<DiskProbe> = self
            .dirs
            .iter()
            .map(|dir| DiskProbe { dir: dir.clone(), call: None, file: ProbeFile::default() })
            .collect();
        let journals: Vec<JournalProbe> =
            (0..engine.journal_count()).map(|_| JournalProbe::default()).collect();
        let (mut core, mut failed) = (HealthCore::default(), BTreeMap::new());
        let mut probed_ns = None;
        loop {
            let now_ns = clock.monotonic_ns();
            if probed_ns.is_none_or(|at| now_ns.saturating_sub(at) >= PROBE_INTERVAL.as_nanos() as u64) {
                probed_ns = Some(now_ns);
                self.probe_journals(&journals, now_ns);
                disks.iter_mut().for_each(|disk| disk.begin(&self.disk));
            }
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            for disk in &mut disks {
                self.note(disk, &mut failed).await;
            }
            self.look(&mut core, &journals, &failed, &*clock);
        }
    }

    fn probe_journals(&self, journals: &[JournalProbe], now_ns: u64) {
        for (number, probe) in journals.iter().enumerate() {
            let under_way = probe.begun_ns.clone();
            let is_new =
                under_way.compare_exchange(0, now_ns + 1, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if is_new {
                // A journal that failed is not silent: the engine says what happened.
                self.shared
                    .engine
                    .probe_journal(number, Box::new(move |_| under_way.store(0, Ordering::Release)));
            }
        }
    }

    /// Takes the outcome of a probe that has ended. A full disk is no fault, nor is a directory that the bookie does without.
    async fn note(&self, disk: &mut DiskProbe, failed: &mut BTreeMap<PathBuf, String>) {
        match disk.take().await {
            None => {}
            Some(Err(error)) if Shortage::of(&error).is_none() => {
                failed.insert(disk.dir.clone(), error.to_string());
            }
            Some(_) => _ = failed.remove(&disk.dir),
        }
    }

    fn look(
        &self,
        core: &mut HealthCore,
        journals: &[JournalProbe],
        failed: &BTreeMap<PathBuf, String>,
        clock: &dyn Clock,
    ) {
        let now_ns = clock.monotonic_ns();
        let engine = &self.shared.engine;
        let pulses = engine.pulses(now_ns);
        let journals: Vec<JournalLook> = pulses
            .iter()
            .zip(journals)
            .map(|(pulse, probe)| JournalLook {
                busy: pulse.busy,
                waits_for_file: pulse.waits_for_file,
                unanswered: probe.age(now_ns),
            })
            .collect();
        let done_without = engine.status().directories_failed;
        let is_done_without = |dir: &Path| {
            self.dirs.iter().position(|of| of == dir).is_some_and(|at| done_without.contains_key(&at))
        };
        let failed: BTreeMap<PathBuf, String> = failed
            .iter()
            .filter(|(dir, _)| !is_done_without(dir))
            .map(|(dir, why)| (dir.clone(), why.clone()))
            .collect();
        let crowded = self.shared.connections.door().crowded_since_ns();
        let lacks_descriptors = (self.lacks_descriptors)();
        let look = Look {
            journals: &journals,
            silences: &self.calls.silences(),
            failed: &failed,
            crowded: crowded.map(|since| Duration::from_nanos(now_ns.saturating_sub(since))),
            lacks_descriptors: lacks_descriptors.as_deref(),
        };
        self.health.set(core.judge(Duration::from_nanos(now_ns), &look), of_hangs(&look));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::RealDisk;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn judged(look: &Look<'_>) -> Option<String> {
        HealthCore::default().judge(at(100), look)
    }

    fn failed(dir: &str) -> BTreeMap<PathBuf, String> {
        BTreeMap::from([(PathBuf::from(dir), "I/O error".to_owned())])
    }

    fn of_journal(busy: u64, unanswered: u64) -> JournalLook {
        JournalLook { busy: at(busy), unanswered: at(unanswered), waits_for_file: false }
    }

    #[test]
    fn a_journal_whose_write_or_thread_hangs_is_named() {
        let sound = of_journal(0, 1);
        let of = |journal: JournalLook| {
            let (journals, none) = ([sound, journal], BTreeMap::new());
            judged(&Look {
                journals: &journals,
                silences: &[],
                failed: &none,
                crowded: None,
                lacks_descriptors: None,
            })
        };
        assert_eq!(of(sound), None);
        assert_eq!(of(of_journal(5, 5)), None);
        assert_eq!(of(of_journal(6, 6)).unwrap(), "a write of journal 1 has not ended for 6 s");
        assert_eq!(of(of_journal(0, 7)).unwrap(), "journal 1 has written nothing for 7 s");
    }

    /// Invariant 2.
    #[test]
    fn what_waits_for_room_is_no_hang() {
        let none = BTreeMap::new();
        let waits = JournalLook { waits_for_file: true, ..of_journal(0, 600) };
        // One call lasts and lasts, others end; nothing is changed for a while, but it is read.
        let silences = [
            Silence { dir: Path::new("/l"), of_all: at(5), of_changes: at(6) },
            Silence { dir: Path::new("/m"), of_all: at(0), of_changes: at(6) },
        ];
        let look = Look {
            journals: &[waits],
            silences: &silences,
            failed: &none,
            crowded: Some(at(4)),
            lacks_descriptors: None,
        };
        assert_eq!(judged(&look), None);
    }

    #[test]
    fn a_disk_that_hangs_or_takes_no_change_is_named() {
        let none = BTreeMap::new();
        for (of_all, of_changes) in [(6, 0), (6, 6), (0, 7)] {
            let silences = [Silence { dir: Path::new("/l"), of_all: at(of_all), of_changes: at(of_changes) }];
            let look = Look {
                silences: &silences,
                failed: &none,
                journals: &[],
                crowded: None,
                lacks_descriptors: None,
            };
            let why = judged(&look).unwrap();
            assert!(why.starts_with("the disk of ledger directory /l has not answered"), "{why}");
        }
        let look = Look {
            failed: &failed("/l"),
            journals: &[],
            silences: &[],
            crowded: None,
            lacks_descriptors: None,
        };
        assert!(judged(&look).unwrap().contains("does not keep what is written: I/O error"));
    }

    #[test]
    fn without_a_connection_for_newcomers_data_does_not_pass() {
        let none = BTreeMap::new();
        let look = |crowded, lacks_descriptors| Look {
            failed: &none,
            crowded,
            lacks_descriptors,
            journals: &[],
            silences: &[],
        };
        assert!(judged(&look(Some(at(5)), None)).unwrap().contains("maxConnections"));
        let mut core = HealthCore::default();
        assert_eq!(core.judge(at(10), &look(None, Some("too many files"))), None);
        assert_eq!(core.judge(at(14), &look(None, Some("too many files"))), None);
        assert!(core.judge(at(15), &look(None, Some("too many files"))).unwrap().contains("too many files"));
        assert_eq!(core.judge(at(16), &look(None, None)), None);
        assert_eq!(core.judge(at(17), &look(None, Some("again"))), None, "it counts anew");
    }

    /// Invariant 1.
    #[test]
    fn a_hang_is_seen_within_ten_seconds() {
        assert!(PROBE_INTERVAL + HANGS.max(TAKES_NOTHING) + LOOK_INTERVAL < at(10));
        assert!(NO_CONNECTION + LOOK_INTERVAL < at(10));
    }

    #[test]
    fn a_probe_leaves_no_file_and_sees_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, mut file) = (RealDisk::new(), ProbeFile::default());
        for _ in 0..3 {
            file.probe(&disk, dir.path()).unwrap();
        }
        assert_eq!(disk.list(dir.path()).unwrap(), []);
        assert!(ProbeFile::default().probe(&disk, &dir.path().join("gone")).is_err());
    }

    #[test]
    fn reasons_are_short() {
        let health = Health::default();
        assert!(!health.is_seen());
        health.set(Some("é".repeat(1000)), None);
        assert!(health.is_seen() && health.why().unwrap().len() <= REASON_MAX);
        health.set(None, None);
        assert_eq!(health.why(), None);
    }
}
