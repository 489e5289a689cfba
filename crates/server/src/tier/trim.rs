//! Lets local copies go, one ledger at a time.
//!
//! # Data flow
//! ```text
//! engine: untrimmed ledgers ─► Trimmer ─► metadata of one ─► catalogue: its extents ─► each checked (T19) ─► engine: trim
//! ```
//!
//! # Invariants
//! 1. Nothing goes without a check, in this round, of every extent that has it: length of the object as the store says, its
//!    footer, lengths and checksums of all entries that are here, some blocks read back.
//! 2. Any difference leaves the ledger as it is, and shows: in the log, a metric, the admin port.
//! 3. An error of the metadata store, or a bucket that cannot be reached, ends the round.
//! 4. Metadata is read after what is known of the ledger here, and nothing goes if anything was placed for it since: an id that is used
//!    again while its former ledger is compared keeps the copies.
//! 5. It holds a page of checksums; requests for checks wait for those of readers, ledgers come at the pace that is set.

use super::Tier;
use super::trimmer::{Blocked, Candidate, Room, Trimmer, Verdict};
use crate::latch::Latch;
use crate::log_limit::LogLimit;
use crate::metrics::Counter;
use crate::volumes::Volumes;
use bindery_engine::{Engine, EntryRef, LocalChecksum, Lookup, Refusal, TrimError};
use bindery_io::{Clock, Random};
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_tiering::cover::is_same_entry;
use bindery_tiering::fetch::FetchError;
use bindery_tiering::fetch::check::{CheckError, Checked, LocalDifference, LocalRecords};
use bindery_tiering::object::TableEntry;
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId, LedgerMetadata, LedgerState};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, block_in_place};

/// Ledgers taken from the engine at a time.
const PAGE: usize = 1_024;
/// Trimming follows the catalogue's log once in this time, however many ledgers a round has.
const CATALOGUE_AGE_MAX: Duration = Duration::from_secs(10);
/// Extents of a ledger that are checked side by side: as many requests as checks may have at once.
const CHECKS_AT_ONCE: usize = 8;
/// Ledgers of one round, at most: the next round goes on.
const ROUND_MAX: usize = 10_000;
/// A ledger that may not go yet, by its metadata, is not asked about before.
const NOT_YET_PAUSE: Duration = Duration::from_secs(600);

/// How trimming goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrimStatus {
    /// When the last round ended, in milliseconds since 1970.
    pub last_end_ms: Option<i64>,
    /// Why it ended early.
    pub stopped_because: Option<String>,
    /// Ledgers that have something to be trimmed.
    pub waiting: usize,
    /// Ledgers whose copy in object storage differs.
    pub blocked_count: usize,
    /// The first of them.
    pub blocked: Vec<(LedgerId, Blocked)>,
    /// Bytes that are to go before their time, for want of space.
    pub lacking_bytes: u64,
}

/// The state that trimming shares with the admin port.
#[derive(Default)]
pub struct TrimDesk {
    asked: Notify,
    /// The next round checks ledgers again that differ.
    rechecks: AtomicBool,
    status: Mutex<TrimStatus>,
    /// Rounds begun.
    pub rounds: Counter,
    /// Ledgers whose copies went.
    pub ledgers: Counter,
    /// Entries of these.
    pub entries: Counter,
    /// Extents that were checked and found to be good.
    pub checks: Counter,
    /// Checks that found a difference.
    pub differences: Counter,
    /// Entries that were read back for checks.
    pub entries_read: Counter,
}

impl TrimDesk {
    /// Asks for a round now, of the ledgers that are due, and of those that differ.
    pub fn ask(&self) {
        self.rechecks.store(true, Ordering::Release);
        self.asked.notify_one();
    }

    /// How it goes.
    pub fn status(&self) -> TrimStatus {
        self.status.lock().clone()
    }
}

/// The task that trims.
pub struct TrimTask {
    /// Has the copies.
    pub engine: Arc<Engine>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where they take space.
    pub volumes: Volumes,
    /// Object storage.
    pub tier: Arc<Tier>,
    /// The cluster.
    pub layout: Layout,
    /// Which blocks are read back.
    pub random: Arc<dyn Random>,
    /// Decides what may go.
    pub trimmer: Trimmer,
    /// What is written down about single ledgers.
    pub log: LogLimit,
}

/// Why a round ended.
enum Stop {
    /// Something else has to be well first.
    Round(String),
}

/// Why a ledger did not go.
enum Left {
    /// It may another time.
    Later(Duration),
    /// Its copy in object storage is not good.
    Differs(String),
}

impl TrimTask {
    /// Works until `stop`, on the threads of object storage.
    pub fn start(self, stop: Arc<Latch>) -> JoinHandle<()> {
        let handle = self.tier.handle().clone();
        handle.spawn(self.run(stop))
    }

    async fn run(mut self, stop: Arc<Latch>) {
        let interval = self.trimmer.config().interval;
        loop {
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(interval) => {}
                () = self.tier.desk.asked.notified() => {}
            }
            let tier = self.tier.clone();
            tier.desk.rounds.add(1);
            let outcome = tokio::select! {
                () = stop.wait() => return,
                outcome = self.round() => outcome,
            };
            let stopped_because = match outcome {
                Ok(()) => None,
                Err(Stop::Round(why)) => {
                    tracing::warn!(why, "trimming stopped and will be retried");
                    Some(why)
                }
            };
            self.show(stopped_because);
        }
    }

    fn show(&self, stopped_because: Option<String>) {
        let (blocked_count, waiting) = self.trimmer.counts();
        let blocked = self.trimmer.blocked().iter().map(|(ledger, blocked)| (*ledger, blocked.clone()));
        let mut status = self.tier.desk.status.lock();
        status.last_end_ms = Some(self.clock.wall_ms());
        status.stopped_because = stopped_because;
        (status.waiting, status.blocked_count) = (waiting, blocked_count);
        status.blocked = blocked.collect();
    }

    async fn round(&mut self) -> Result<(), Stop> {
        let engine = self.engine.clone();
        let candidates = untrimmed(&engine);
        self.trimmer.observe(self.clock.monotonic_ns(), candidates);
        if self.tier.desk.rechecks.swap(false, Ordering::AcqRel) {
            self.trimmer.recheck();
        }
        let room = block_in_place(|| self.room())
            .map_err(|error| Stop::Round(format!("cannot see how much disk is free: {error}")))?;
        let mut lacking = self.trimmer.lacking(self.clock.monotonic_ns(), room);
        self.tier.desk.status.lock().lacking_bytes = lacking;
        let due = self.trimmer.due(self.clock.monotonic_ns(), lacking > 0, ROUND_MAX);
        for candidate in due {
            let ledger = candidate.ledger;
            let is_of_age = self.trimmer.is_of_age(self.clock.monotonic_ns(), ledger);
            if !is_of_age && lacking == 0 {
                continue;
            }
            self.pace().await;
            let left = self.trim(&candidate).await;
            if left.is_err() {
                // The next round begins with another one: it may be this ledger's object alone that cannot be read.
                self.trimmer.put_off(self.clock.monotonic_ns(), ledger, NOT_YET_PAUSE);
            }
            match left? {
                Ok(bytes) => {
                    self.trimmer.trimmed(self.clock.monotonic_ns(), ledger, bytes);
                    lacking = lacking.saturating_sub(bytes);
                }
                Err(Left::Later(time)) => {
                    self.trimmer.put_off(self.clock.monotonic_ns(), ledger, time);
                }
                Err(Left::Differs(why)) => {
                    self.tier.desk.differences.add(1);
                    let (now_ns, now_ms) = (self.clock.monotonic_ns(), self.clock.wall_ms());
                    if self.trimmer.block(now_ns, now_ms, ledger, why.clone())
                        && let Some(left_out) = self.log.admit(now_ns)
                    {
                        tracing::error!(%ledger, why, left_out, "keeping local copies: their copy in object storage failed its \
                         check");
                    }
                }
            }
        }
        Ok(())
    }

    fn room(&self) -> std::io::Result<Room> {
        let space = self.volumes.space()?;
        let local_bytes = self.engine.stats().entry_log_bytes;
        Ok(Room { local_bytes, disk_bytes: space.total, free_bytes: space.free })
    }

    /// Trims one ledger; says about how many bytes that gives back.
    async fn trim(&mut self, candidate: &Candidate) -> Result<Result<u64, Left>, Stop> {
        let ledger = candidate.ledger;
        let seen = self.engine.tiered(ledger).filter(|seen| seen.life == candidate.life);
        // Extents that are placed and not durable yet do not show: others would be compared than those that count.
        let Some(seen) = seen.filter(|seen| seen.is_update_durable) else {
            return Ok(Err(Left::Later(Duration::ZERO)));
        };
        // The id may be used again at any time. If another ledger has entries here that came before `seen`, this read shows that ledger;
        // if any come later, the engine does not trim.
        let stored = match self.layout.ledgers().get_latest(ledger).await {
            Ok(stored) => stored,
            // Deleted, which is for garbage collection to say; or unreadable.
            Err(LedgerError::NotFound(_) | LedgerError::Malformed { .. }) => {
                return Ok(Err(Left::Later(NOT_YET_PAUSE)));
            }
            Err(other) => {
                return Err(Stop::Round(format!("cannot read the metadata of ledger {ledger}: {other}")));
            }
        };
        if seen.created_ms.is_some_and(|noted| noted != stored.creation(None).ms) {
            let cluster_ms =
                self.layout.made_ms().await.map_err(|error| {
                    Stop::Round(format!("cannot read when the cluster was made: {error}"))
                })?;
            // The id was used again: the register makes way once a tierer tells of the ledger that lives.
            if stored.creation(cluster_ms).is_anothers(seen.created_ms) {
                return Ok(Err(Left::Later(NOT_YET_PAUSE)));
            }
        }
        let metadata = &stored.metadata;
        match self.trimmer.judge(candidate, metadata) {
            Verdict::MayGo => {}
            Verdict::NotYet | Verdict::NotWanted => return Ok(Err(Left::Later(NOT_YET_PAUSE))),
            Verdict::Beyond { last } => {
                let last =
                    last.map_or_else(|| "it is empty".into(), |last| format!("its last entry is {last}"));
                let why =
                    format!("object storage is said to have it up to entry {}, and {last}", candidate.lre);
                return Ok(Err(Left::Differs(why)));
            }
        }
        // Copies in memory have no checksums yet: the next flush takes them.
        if self.engine.has_unflushed(ledger) {
            return Ok(Err(Left::Later(Duration::ZERO)));
        }
        let digest_bytes = metadata.secret.as_ref().map(|secret| secret.digest_type.size_bytes());
        if let Err(left) = self.check_all(candidate, digest_bytes).await? {
            return Ok(Err(left));
        }
        let engine = &self.engine;
        Ok(match block_in_place(|| engine.trim(ledger, &seen, candidate.lre)) {
            Ok(()) => {
                self.tier.desk.ledgers.add(1);
                self.tier.desk.entries.add(candidate.lre.get() as u64 + 1);
                tracing::debug!(%ledger, last = %candidate.lre, "local copies may go: they are in object storage");
                Ok(share_of(metadata))
            }
            Err(TrimError::Changed | TrimError::NotTiered) => Err(Left::Later(Duration::ZERO)),
            Err(error @ (TrimError::AboveLre(_) | TrimError::Uncovered(_))) => {
                Err(Left::Differs(error.to_string()))
            }
            Err(TrimError::Io) => Err(Left::Later(NOT_YET_PAUSE)),
        })
    }

    /// Compares everything up to the register with the objects that the catalogue names.
    async fn check_all(
        &mut self,
        candidate: &Candidate,
        digest_bytes: Option<usize>,
    ) -> Result<Result<(), Left>, Stop> {
        let ledger = candidate.ledger;
        if self.tier.fetcher().is_none() {
            return Err(Stop::Round(format!("the tier cannot be reached: {} is not there", self.tier.url())));
        }
        let comparison = Arc::new(Comparison {
            tier: self.tier.clone(),
            engine: self.engine.clone(),
            random: self.random.clone(),
            ledger,
            digest_bytes,
            samples: self.trimmer.config().samples,
        });
        let (mut next, mut age_max) = (Some(EntryId::FIRST), CATALOGUE_AGE_MAX);
        while let Some(entry) = next.filter(|entry| *entry <= candidate.lre) {
            // The comparison tells entries of another ledger apart, so no creation time is needed.
            let mut extents = match self.tier.locate(ledger, entry, None, age_max).await {
                Ok(extents) => extents,
                Err(error) if error.is_of_ledger() => return Ok(Err(Left::Differs(error.to_string()))),
                Err(error) => return Err(Stop::Round(error.to_string())),
            };
            extents.retain(|extent| extent.first <= candidate.lre);
            let checks: Vec<_> = extents.iter().map(|extent| comparison.clone().check(*extent)).collect();
            let mut checks = futures_util::stream::iter(checks).buffered(CHECKS_AT_ONCE);
            for extent in &extents {
                let checked = checks.next().await.expect("each extent is checked");
                let checked = self.judged(ledger, checked)?;
                // The object may have been rewritten since. The next look follows the log again.
                if let Err(Left::Differs(_)) = checked
                    && !age_max.is_zero()
                {
                    age_max = Duration::ZERO;
                    break;
                }
                if let Err(left) = checked {
                    return Ok(Err(left));
                }
                next = EntryId::new(extent.last.get().saturating_add(1));
            }
        }
        Ok(Ok(()))
    }

    /// What the outcome of a check means for its ledger.
    fn judged(
        &mut self,
        ledger: LedgerId,
        checked: Result<Checked, CheckError>,
    ) -> Result<Result<(), Left>, Stop> {
        match checked {
            Ok(checked) => {
                self.tier.desk.checks.add(1);
                self.tier.desk.entries_read.add(checked.entries_read);
                Ok(Ok(()))
            }
            Err(error) if self.trimmer.allows(!error.is_alarm()) && error.is_alarm() => Ok(Ok(())),
            Err(error) if error.is_alarm() => Ok(Err(Left::Differs(error.to_string()))),
            Err(CheckError::Fetch(error @ (FetchError::Unreachable { .. } | FetchError::Stopped))) => {
                Err(Stop::Round(error.to_string()))
            }
            Err(error) => {
                self.say(
                    ledger,
                    &error,
                    "cannot check the copy in object storage: keeping local copies for now",
                );
                Ok(Err(Left::Later(NOT_YET_PAUSE)))
            }
        }
    }

    /// A line now and then: hundreds of ledgers may have the same fault.
    fn say(&mut self, ledger: LedgerId, why: &dyn std::fmt::Display, what: &str) {
        if let Some(left_out) = self.log.admit(self.clock.monotonic_ns()) {
            tracing::warn!(%ledger, %why, left_out, "{what}");
        }
    }

    async fn pace(&self) {
        let per_second = self.trimmer.config().ledgers_per_second.max(1);
        tokio::time::sleep(Duration::from_secs(1) / per_second).await;
    }
}

/// Compares extents of a ledger with what is here (T19).
struct Comparison {
    tier: Arc<Tier>,
    engine: Arc<Engine>,
    random: Arc<dyn Random>,
    ledger: LedgerId,
    digest_bytes: Option<usize>,
    samples: Option<usize>,
}

impl Comparison {
    fn check(self: Arc<Self>, extent: TierExtent) -> BoxFuture<'static, Result<Checked, CheckError>> {
        Box::pin(async move {
            let fetcher = self.tier.fetcher().ok_or(FetchError::Stopped)?;
            let (engine, ledger) = (self.engine.clone(), self.ledger);
            let mut records = Records { engine, ledger, digest_bytes: self.digest_bytes };
            let some_of = |blocks| some_of(blocks, self.samples, &*self.random);
            fetcher.check(ledger, &extent, some_of, &mut records).await
        })
    }
}

/// All ledgers that have something to be trimmed, some at a time.
fn untrimmed(engine: &Engine) -> impl Iterator<Item = Candidate> {
    let mut after = None;
    let pages = std::iter::from_fn(move || {
        let page = engine.untrimmed(after, PAGE);
        after = page.last().map(|(ledger, _)| *ledger).or(after);
        (!page.is_empty()).then_some(page)
    });
    pages.flatten().map(|(ledger, tiered)| Candidate { ledger, life: tiered.life, lre: tiered.lre })
}

/// About how many bytes of a ledger one of its bookies holds.
fn share_of(metadata: &LedgerMetadata) -> u64 {
    let LedgerState::Closed { length_bytes, .. } = metadata.state else { return 0 };
    let quorum = &metadata.quorum;
    length_bytes / quorum.ensemble_size().max(1) as u64 * quorum.write_quorum_size() as u64
}

/// So many blocks, drawn by lot; all without a number.
fn some_of(blocks: usize, samples: Option<usize>, random: &dyn Random) -> Vec<usize> {
    match samples {
        None => (0..blocks).collect(),
        Some(samples) if samples >= blocks => (0..blocks).collect(),
        // The same one twice is read once.
        Some(samples) => (0..samples).map(|_| (random.next_u64() % blocks as u64) as usize).collect(),
    }
}

/// The copies of a ledger that are on disk here.
struct Records {
    engine: Arc<Engine>,
    ledger: LedgerId,
    /// Length of its digests; not known of metadata without a password.
    digest_bytes: Option<usize>,
}

impl LocalRecords for Records {
    fn compare(&mut self, first: EntryId, table: &[TableEntry]) -> Result<Vec<EntryId>, LocalDifference> {
        let Some(last) = EntryId::new(first.get() + table.len() as i64 - 1) else { return Ok(Vec::new()) };
        // The disk may take a while: other work of this thread goes to another one.
        let here = block_in_place(|| self.engine.local_checksums(self.ledger, first, last, table.len()));
        let here = here.map_err(|refusal| LocalDifference::Unreadable(refusal.to_string()))?;
        let differs = |record: &LocalChecksum| {
            let listed = &table[(record.entry.get() - first.get()) as usize];
            (listed.size_bytes, listed.crc32c) != (record.length, record.crc32c)
        };
        Ok(here.iter().filter(|record| differs(record)).map(|record| record.entry).collect())
    }

    fn compare_entry(&mut self, entry: EntryId, stored: &[u8]) -> Result<(), LocalDifference> {
        let is_same = |here: &[u8]| is_same_entry(here, stored, self.digest_bytes);
        let compared = match self.engine.read(self.ledger, EntryRef::At(entry)) {
            Ok(Lookup::Memory(here)) => Ok(is_same(&here)),
            Ok(Lookup::Disk(read)) => block_in_place(|| read.load()).map(|here| is_same(&here)),
            Ok(Lookup::Undurable(_)) => Err(Refusal::TooManyRequests),
            Ok(Lookup::Tiered(_)) => Err(Refusal::NoEntry),
            Err(refusal) => Err(refusal),
        };
        match compared {
            Ok(true) | Err(Refusal::NoEntry | Refusal::Tiered) => Ok(()),
            Ok(false) => Err(LocalDifference::Entry(entry)),
            Err(refusal) => Err(LocalDifference::Unreadable(refusal.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SystemRandom;

    #[test]
    fn samples_are_within_the_blocks() {
        assert_eq!(some_of(3, None, &SystemRandom), [0, 1, 2]);
        assert_eq!(some_of(3, Some(5), &SystemRandom), [0, 1, 2]);
        let some = some_of(100, Some(4), &SystemRandom);
        assert!(some.len() == 4 && some.iter().all(|block| *block < 100));
        assert_eq!(some_of(0, Some(4), &SystemRandom), Vec::<usize>::new());
    }
}
