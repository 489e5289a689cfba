//! Garbage collection: ledgers that metadata does not have any more are removed here (protocol reference, section 6).
//!
//! [`GarbageRound`] decides what is garbage; this shell keeps time, asks the metadata store, and tells the engine.
//!
//! # Data flow
//! ```text
//! interval, or somebody asks -> ledgers here -> store synced -> INSTANCEID, LAYOUT -> listing -> (evidence)
//!     -> candidates again, by directory -> INSTANCEID, LAYOUT again (mark again) -> engine removes (batch by batch, durable)
//!     -> a new mark in the store -> collection of entry logs
//! ```
//!
//! # Invariants
//! 1. Any error of the store ends the round, before or between batches; the next round starts over. So does a journal that does
//!    not make removals durable in time; they are placed, and count when it does.
//! 2. The store is synced after the ledgers here were taken: a server that lags would not list a new ledger.
//! 3. Records placed for a ledger after its metadata was read are not removed because of that reading.
//! 4. A round that ended in doubt says so in a metric and the admin port until one goes through, and in one log line: the
//!    next one comes when the doubt is another, or over.
//! 5. Space comes back with the round, not an interval later: a collection follows as soon as the removals are flushed. When a
//!    large share of the ledgers went, it compacts, because their entries lie together with those that stay.
//! 6. The mark that this bookie knows the store by is replaced at most once in a round, when one has gone through that allows
//!    it ([`GarbageRound::may_mark`]) and what is here is not what was here at the last mark. The new mark is durable here
//!    before it is written to the store, and the former one counts until that is known to have worked: a crash in between
//!    costs no proof. A bookie without ledgers leaves a mark only while it knows none, the first one at its start.
//! 7. The highest ledger that the store was seen to know is remembered when its new mark is known to be there, not before:
//!    so a store that shows a mark we know knew it.
//! 8. While a ledger directory is full, or a write waits for space, rounds look for what was deleted [`SPACE_LOOK`] after one another,
//!    or [`SPACE_LOOK_SHARE`] times as long as the last one took: a deletion helps soon, and requests to the metadata store
//!    take a twentieth of the time at most. A major compaction follows a round that removes anything.
//! 9. An unproven ledger ([`GarbageRound`], invariant 5) goes in the first round that finds it so [`GarbageConfig::unproven_kept`]
//!    after another one did, when no round in between was in doubt; and not before the restart after that.
//!
//! # Limits
//! One round at a time; metadata operations of a second: [`GarbageConfig::ops_per_second`]; removals under way:
//! [`BATCH_MAX`]. A round holds the ids of the ledgers here; between rounds those of them that are unproven are held.

use crate::cluster_record::ClusterRecord;
use crate::data_dirs::DataDirs;
use crate::latch::Latch;
use crate::maintenance::damage::{self, Remedy};
use crate::maintenance::integrity::{self, InLimbo};
use crate::maintenance::surplus::Surplus;
use crate::maintenance::{JournalHangs, durable};
use bindery_engine::{
    Changes, Doubt, Engine, Evidence, GarbageLimits, GarbageRound, LedgerPresence, Listed, Refusal,
    SecondLook, WantedCollection,
};
use bindery_io::canary::Canaries;
use bindery_io::{Clock, Random};
use bindery_metadata::layout::{CookiesError, LedgerError, Ledgers};
use bindery_metadata::{Layout, StoreError};
use bindery_metrics::{Row, numbers};
use bindery_types::LedgerId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Ledgers whose removal is under way at once: their records take room that is kept for fences.
const BATCH_MAX: usize = 64;
/// How many candidates one read of their directory looks up. After that many the round checks again that the store is still the same.
const TOGETHER_MAX: usize = 4_096;
/// How long a removal waits for room before it is tried again, and how often.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
const ROOM_ATTEMPTS: u32 = 20;
/// Between a round that found a large share gone and the one that confirms it, at least.
const CONFIRM_PAUSE: Duration = Duration::from_secs(5);
/// Between two rounds of a bookie that needs space, at least, and in times of what the last one took.
const SPACE_LOOK: Duration = Duration::from_secs(3);
const SPACE_LOOK_SHARE: u32 = 20;
/// Ledgers in limbo that are shown one by one.
pub const LIMBO_LISTED_MAX: usize = 1000;
/// How often ledgers in limbo, and those with damaged entries, are looked at while there are any.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// Damaged ranges that are looked at together.
const DAMAGE_AT_ONCE: usize = 256;

/// Settings. Keys of `bk_server.conf` in brackets.
#[derive(Debug, Clone, PartialEq)]
pub struct GarbageConfig {
    /// Time between two rounds (`gcWaitTime`).
    pub interval: Duration,
    /// Metadata operations in a second, at most (`gcMetadataOpRateLimit`).
    pub ops_per_second: u32,
    /// When a round goes too far.
    pub limits: GarbageLimits,
    /// How long a ledger stays of which nothing shows that metadata ever knew it, though metadata is the store that we know: so
    /// long an operator has who put back a copy that is a little too old.
    pub unproven_kept: Duration,
    /// How long a round waits for a journal to make something durable.
    pub journal_patience: Duration,
}

impl Default for GarbageConfig {
    fn default() -> GarbageConfig {
        GarbageConfig {
            interval: Duration::from_secs(900),
            ops_per_second: 1000,
            limits: GarbageLimits::default(),
            unproven_kept: Duration::from_secs(3600),
            journal_patience: Duration::from_secs(30),
        }
    }
}

/// A requested round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GarbageRequest {
    /// With a minor compaction behind it.
    pub minor: bool,
    /// With a major compaction behind it.
    pub major: bool,
    /// Without the checks that an operator may waive ([`GarbageRound`], invariant 3).
    pub is_waived: bool,
    /// With a round over surplus ledgers behind it.
    pub surplus: bool,
}

impl GarbageRequest {
    fn joined(self, other: GarbageRequest) -> GarbageRequest {
        GarbageRequest {
            minor: self.minor | other.minor,
            major: self.major | other.major,
            is_waived: self.is_waived | other.is_waived,
            surplus: self.surplus | other.surplus,
        }
    }
}

/// How collection goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GarbageStatus {
    /// Somebody asked for the round under way, or for one that has not begun.
    pub is_forced: bool,
    /// When the last round ended, in milliseconds since the Unix epoch.
    pub last_end_ms: Option<i64>,
    /// Ledgers here when it began.
    pub last_ledgers: u64,
    /// Ledgers it removed.
    pub last_removed: u64,
    /// Why it ended early.
    pub last_doubt: Option<String>,
    /// Ledgers that it left here because nothing shows that metadata ever knew them.
    pub unproven: u64,
    /// Ledgers that it found deleted and left to the next round, because so large a share needs a second look.
    pub to_be_confirmed: u64,
    /// Why the last round over surplus ledgers ended early.
    pub surplus_doubt: Option<String>,
    /// Why the last look at ledgers in limbo ended early.
    pub limbo_doubt: Option<String>,
}

numbers! {
    /// What the collector shares with the admin port. A round that ended in doubt shows as `bindery_gc_stopped` until one goes through.
    pub struct GarbageDesk {
        rounds: Counter("bindery_gc_rounds", "Rounds of garbage collection begun."),
        doubts: Counter("bindery_gc_rounds_stopped", "Rounds of garbage collection that ended in doubt."),
        removed: Counter("bindery_gc_ledgers_removed", "Ledgers removed because metadata has them no more."),
        surplus_rounds: Counter("bindery_gc_surplus_rounds", "Rounds over ledgers that should not be here, begun."),
        surplus_removed: Counter("bindery_gc_surplus_removed", "Ledgers removed because they should not be here."),
    }
    with {
        asked: Notify,
        /// Set while the bookie needs space (invariant 8).
        is_space_wanted: AtomicBool,
        request: Mutex<Option<GarbageRequest>>,
        status: Mutex<GarbageStatus>,
        limbo: Mutex<Vec<InLimbo>>,
        limbo_count: AtomicU64,
    }
    also {
        Row::flag(
            "bindery_gc_surplus_stopped",
            "1 when the last round over ledgers that should not be here ended in doubt.",
            |desk| desk.status.lock().surplus_doubt.is_some(),
        ),
        Row::gauge("bindery_limbo_ledgers", "Ledgers of which entries may be missing here.", |desk| desk.limbo_count()),
        Row::flag(
            "bindery_gc_stopped",
            "1 when the last round of garbage collection ended in doubt about the metadata.",
            |desk| desk.status.lock().last_doubt.is_some(),
        ),
        Row::signed(
            "bindery_gc_last_end_ms",
            "When the last round of garbage collection ended, in ms since 1970; 0: none did. It must move every gcWaitTime.",
            |desk| desk.status.lock().last_end_ms.unwrap_or(0),
        ),
    }
}

impl GarbageDesk {
    /// Asks for a round now.
    pub fn ask(&self, request: GarbageRequest) {
        let mut slot = self.request.lock();
        let before = slot.unwrap_or_default();
        *slot = Some(before.joined(request));
        self.status.lock().is_forced = true;
        self.asked.notify_one();
    }

    /// Says whether a ledger directory is full or a write waits for space (invariant 8). Begins no round: that is [`ask`](Self::ask).
    pub fn want_space(&self, is_wanted: bool) {
        self.is_space_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// Ledgers in limbo, the first [`LIMBO_LISTED_MAX`], as they were last looked at.
    pub fn limbo(&self) -> Vec<InLimbo> {
        self.limbo.lock().clone()
    }

    /// How many ledgers are in limbo, as they were last looked at.
    pub fn limbo_count(&self) -> u64 {
        self.limbo_count.load(Ordering::Relaxed)
    }

    /// How it goes.
    pub fn status(&self) -> GarbageStatus {
        self.status.lock().clone()
    }
}

/// What collects.
pub struct GarbageCollector {
    /// Shared with the admin port.
    pub desk: Arc<GarbageDesk>,
    /// What removes.
    pub engine: Arc<Engine>,
    /// The cluster.
    pub layout: Layout,
    /// INSTANCEID of the cookie; empty when the cluster has none.
    pub instance_id: String,
    /// Settings.
    pub config: GarbageConfig,
    /// Time of day, for the status.
    pub clock: Arc<dyn Clock>,
    /// The bookie's record of the cluster's metadata; no other task changes it while this runs.
    pub known: ClusterRecord,
    /// Where that is kept.
    pub dirs: Arc<DataDirs>,
    /// Marks.
    pub random: Arc<dyn Random>,
    /// Which ledgers were here when the store got its mark, as one number.
    pub marked: Option<u64>,
    /// Ledgers that should not be here.
    pub surplus: Surplus,
    /// What an earlier round found gone, when that was a large share.
    pub found_before: Vec<LedgerId>,
    /// From when on a round that finds the same confirms it. Those that somebody asks for before do not.
    pub confirms_from: Instant,
    /// Ledgers of which nothing shows that metadata ever knew them, and since when they were found so.
    pub unproven: BTreeMap<LedgerId, Instant>,
    /// Compactions that were requested with that round, for the one that confirms it.
    pub carried: GarbageRequest,
    /// The kind of doubt that was logged, until a round goes through.
    pub logged: Option<std::mem::Discriminant<Doubt>>,
}

/// What a round did.
#[derive(Debug, Clone, Copy, Default)]
struct Removed {
    ledgers: u64,
    /// They were a large share.
    is_large: bool,
}

impl GarbageCollector {
    /// Works until `stop`.
    pub async fn run(mut self, stop: Arc<Latch>) {
        // Ledgers whose repair ended while this bookie was down are served as before at once.
        tokio::select! {
            () = stop.wait() => return,
            () = self.look_at_limbo() => {}
        }
        tokio::select! {
            () = stop.wait() => return,
            () = self.mark_at_start() => {}
        }
        let mut surplus_at = Instant::now() + self.surplus.config.interval;
        let (mut ended_at, mut looked_at, mut took) = (Instant::now(), Instant::now(), Duration::ZERO);
        loop {
            let is_space_wanted = self.desk.is_space_wanted.load(Ordering::Relaxed);
            let interval = match is_space_wanted {
                true => self.config.interval.min(SPACE_LOOK.max(took * SPACE_LOOK_SHARE)),
                false => self.config.interval,
            };
            let pause = match self.found_before.is_empty() {
                true => (ended_at + interval).saturating_duration_since(Instant::now()),
                false => self.confirms_from.saturating_duration_since(Instant::now()),
            };
            // Repair may bring what ledgers lack at any time, and damage may be found at any time.
            let is_look_first = pause > LOOK_INTERVAL;
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(LOOK_INTERVAL), if is_look_first => {
                    let look = async {
                        if self.desk.limbo_count.load(Ordering::Relaxed) > 0 {
                            self.look_at_limbo().await;
                        }
                        self.look_at_damage().await;
                    };
                    tokio::select! {
                        () = stop.wait() => return,
                        () = look => {}
                    }
                    looked_at = Instant::now();
                    continue;
                }
                () = tokio::time::sleep(pause), if !is_look_first => {}
                () = self.desk.asked.notified() => {}
            }
            let asked = self.desk.request.lock().take();
            let is_look_due = asked.is_some() || looked_at.elapsed() >= LOOK_INTERVAL;
            let request = std::mem::take(&mut self.carried).joined(asked.unwrap_or_default());
            let is_surplus_due = !self.surplus.config.interval.is_zero() && Instant::now() >= surplus_at;
            let rounds = async {
                if request.surplus || is_surplus_due {
                    surplus_at = Instant::now() + self.surplus.config.interval;
                    self.surplus_round(request.is_waived).await;
                }
                if is_look_due {
                    self.look_at_limbo().await;
                    self.look_at_damage().await;
                }
                let begun_at = Instant::now();
                self.round(request).await;
                begun_at.elapsed()
            };
            took = tokio::select! {
                () = stop.wait() => return,
                took = rounds => took,
            };
            ended_at = Instant::now();
            if is_look_due {
                looked_at = ended_at;
            }
        }
    }

    async fn surplus_round(&mut self, is_waived: bool) {
        self.desk.surplus_rounds.add(1);
        let Some(here) = self.snapshot().await else { return };
        let outcome = self.surplus.round(here, is_waived).await;
        match &outcome {
            Ok(removed) => self.desk.surplus_removed.add(*removed),
            Err(why) => tracing::warn!(why, "the search for surplus ledgers stopped and will be retried"),
        }
        self.desk.status.lock().surplus_doubt = outcome.err();
    }

    /// Lets those ledgers out of limbo that lack nothing.
    async fn look_at_limbo(&mut self) {
        let engine = self.engine.clone();
        let Ok(ledgers) = tokio::task::spawn_blocking(move || engine.limbo_ledgers()).await else { return };
        let (mut stay, mut count, mut doubt) = (Vec::new(), ledgers.len() as u64, None);
        let count_before = self.desk.limbo_count.swap(count, Ordering::Relaxed);
        for ledger in ledgers {
            self.pace().await;
            match integrity::check(
                &self.layout,
                &self.engine,
                &self.surplus.bookie_id,
                ledger,
                self.config.journal_patience,
            )
            .await
            {
                Ok(None) => count -= 1,
                Ok(Some(in_limbo)) => {
                    if in_limbo.first.is_some() {
                        self.mark_for_repair(ledger).await;
                    }
                    if stay.len() < LIMBO_LISTED_MAX {
                        stay.push(in_limbo);
                    }
                }
                Err(why) => {
                    tracing::warn!(why, "the check of ledgers in limbo stopped and will be retried");
                    doubt = Some(why);
                    break;
                }
            }
        }
        if count > 0 && count != count_before {
            tracing::warn!(
                ledgers = count,
                "ledgers in limbo: entries that may be missing are answered as unknown"
            );
        }
        *self.desk.limbo.lock() = stay;
        self.desk.limbo_count.store(count, Ordering::Relaxed);
        self.desk.status.lock().limbo_doubt = doubt;
    }

    /// Marks ledgers of which entries are damaged here for repair, and lets the damage go of those that were repaired.
    async fn look_at_damage(&mut self) {
        let mut after = None;
        loop {
            let ranges = self.engine.damaged(after, DAMAGE_AT_ONCE);
            let ledgers: BTreeSet<LedgerId> = ranges.iter().map(|range| range.ledger).collect();
            let Some(last) = ledgers.last() else { return };
            after = Some(*last);
            for ledger in ledgers {
                self.pace().await;
                let (layout, bookie) = (&self.layout, &self.surplus.bookie_id);
                let patience = self.config.journal_patience;
                match damage::check(layout, &self.engine, bookie, ledger, patience).await {
                    Ok(Remedy::Repair) => self.mark_for_repair(ledger).await,
                    Ok(Remedy::MadeGood | Remedy::Wait) => {}
                    Err(why) => {
                        tracing::warn!(why, "the look at damaged ledgers stopped and will be retried");
                        return;
                    }
                }
            }
        }
    }

    /// Marks a ledger as lacking what this bookie should have, unless that is known: replication workers bring it.
    async fn mark_for_repair(&self, ledger: LedgerId) {
        let (marks, own) = (self.layout.under_replication(), &self.surplus.bookie_id);
        let marking = async {
            let known = marks.replicas(ledger).await?.unwrap_or_default();
            match known.iter().any(|replica| replica == own.as_str()) {
                true => Ok(()),
                false => {
                    marks.mark_since(ledger, std::slice::from_ref(own), Some(self.clock.wall_ms())).await
                }
            }
        };
        if let Err(error) = marking.await {
            // The next look marks it.
            tracing::warn!(%ledger, %error, "a ledger that lacks entries here cannot be marked as under-replicated");
        }
    }

    async fn round(&mut self, request: GarbageRequest) {
        self.desk.rounds.add(1);
        let mut removed = Removed::default();
        let (here, outcome) = match self.snapshot().await {
            Some(here) => {
                let count = here.len() as u64;
                (count, self.compare(here, request.is_waived, &mut removed).await)
            }
            None => (0, Err(Doubt::Metadata("the bookie's storage failed".to_owned()))),
        };
        let Removed { ledgers: removed, is_large } = removed;
        self.desk.removed.add(removed);
        self.log(removed, here, &outcome);
        if outcome.is_err() {
            self.desk.doubts.add(1);
        }
        {
            let is_asked_again = self.desk.request.lock().is_some();
            let mut status = self.desk.status.lock();
            *status = GarbageStatus {
                surplus_doubt: status.surplus_doubt.take(),
                limbo_doubt: status.limbo_doubt.take(),
                is_forced: is_asked_again,
                last_end_ms: Some(self.clock.wall_ms()),
                last_ledgers: here,
                last_removed: removed,
                last_doubt: outcome.err().map(|doubt| doubt.to_string()),
                unproven: self.unproven.len() as u64,
                to_be_confirmed: self.found_before.len() as u64,
            };
        }
        // Ledgers removed in earlier rounds may give space back now, whatever the outcome of this round.
        let GarbageRequest { minor, mut major, .. } = request;
        major |= removed > 0 && self.desk.is_space_wanted.load(Ordering::Relaxed);
        if !self.found_before.is_empty() {
            self.carried = GarbageRequest { minor, major, ..GarbageRequest::default() };
        }
        let wanted = WantedCollection { minor, major };
        match removed {
            0 => self.engine.want_collection(wanted),
            _ => self.engine.want_collection_after_removals(WantedCollection {
                minor: wanted.minor || is_large,
                ..wanted
            }),
        }
    }

    /// Invariant 4.
    fn log(&mut self, removed: u64, here: u64, outcome: &Result<(), Doubt>) {
        let kind = outcome.as_ref().err().map(std::mem::discriminant);
        let before = std::mem::replace(&mut self.logged, kind);
        match outcome {
            Ok(()) if removed > 0 => tracing::info!(removed, ledgers = here, "garbage collected"),
            Ok(()) if before.is_some() => tracing::info!(ledgers = here, "garbage collection resumed"),
            Ok(()) => tracing::debug!(ledgers = here, "no garbage"),
            Err(doubt) if before == kind => {
                tracing::debug!(%doubt, removed, "garbage collection is still stopped");
            }
            Err(doubt @ (Doubt::Metadata(_) | Doubt::JournalHangs(_))) => {
                tracing::warn!(%doubt, removed, "garbage collection stopped and will be retried");
            }
            Err(doubt) => {
                tracing::error!(%doubt, removed, "garbage collection stopped: no ledger is removed until this is \
                 resolved");
            }
        }
    }

    /// The ledgers here, taken off the runtime's threads: there may be a million.
    async fn snapshot(&self) -> Option<Vec<LedgerId>> {
        if self.engine.status().failed.is_some() {
            return None;
        }
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || engine.ledgers()).await.ok()
    }

    async fn compare(
        &mut self,
        here: Vec<LedgerId>,
        is_waived: bool,
        removed: &mut Removed,
    ) -> Result<(), Doubt> {
        let (limits, expected) = (self.config.limits, self.known.known_up_to);
        // As a build left it that did not remember what the store knew. A mark that was never confirmed, or that no proof can rest on for
        // want of an INSTANCEID, is not required: a bookie without it would never leave a later one.
        let needs_mark =
            expected.is_none() && self.known.store_marks[0].is_some() && !self.instance_id.is_empty();
        let (of_here, is_empty) = (in_one_number(&here), here.is_empty());
        let mut found_before = std::mem::take(&mut self.found_before);
        let is_too_early = Instant::now() < self.confirms_from;
        let kept = if is_too_early { std::mem::take(&mut found_before) } else { Vec::new() };
        let is_confirming = !found_before.is_empty();
        let unproven = std::mem::take(&mut self.unproven);
        let is_old = |since: &Instant| since.elapsed() >= self.config.unproven_kept;
        let released =
            unproven.iter().filter(|(_, since)| is_old(since)).map(|(ledger, _)| *ledger).collect();
        let mut round = GarbageRound::begin(here, expected, limits, is_waived, Canaries::none())
            .known_at_mark(expected)
            .needs_mark(needs_mark)
            .release(released)
            .confirms(found_before);
        let store = |error: StoreError| Doubt::Metadata(error.to_string());
        self.layout.store().sync(self.layout.root()).await.map_err(store)?;
        self.check_cluster().await?;
        let ledgers = self.layout.ledgers();
        let mut listing = ledgers.list();
        while let Some(range) = listing.next().await.map_err(store)? {
            round.on_range(&range)?;
            self.pace().await;
        }
        let is_proven = round.needs_evidence();
        let evidence = if is_proven { self.evidence().await? } else { Evidence::default() };
        let listed = round.on_listed(evidence)?;
        self.note_unproven(round.unproven(), unproven);
        if let Listed::Unconfirmed(found) = listed {
            tracing::debug!(ledgers = found.len(), "a large share is not in metadata: looking again");
            if kept.is_empty() {
                (self.found_before, self.confirms_from) = (found, Instant::now() + CONFIRM_PAUSE);
            } else {
                self.found_before = kept;
            }
            return Ok(());
        }
        removed.is_large = is_confirming || is_waived;
        if let Some(accepted) = round.accepted() {
            let known_up_to = Some(accepted);
            self.remember(ClusterRecord { known_up_to, ..self.known }).await.map_err(Doubt::Metadata)?;
        }
        loop {
            let mut garbage = Vec::new();
            while garbage.len() < BATCH_MAX {
                let together = next_together(&mut round, &ledgers);
                if together.is_empty() {
                    break;
                }
                self.pace().await;
                // Before the read: later changes may belong to a ledger created again under the same id.
                let seen: Vec<(LedgerId, Changes)> =
                    together.iter().map(|ledger| (*ledger, self.engine.changes(*ledger))).collect();
                let found = ledgers.exist_together(&together).await;
                let found = found.map_err(|error: LedgerError| Doubt::Metadata(error.to_string()))?;
                garbage.extend(seen.into_iter().filter(|(ledger, _)| {
                    let is_there = found.contains(ledger);
                    round.is_garbage(if is_there { &SecondLook::Present } else { &SecondLook::Absent })
                }));
            }
            if garbage.is_empty() {
                break;
            }
            // The same store has to have answered from the beginning to here.
            self.check_cluster().await?;
            if is_proven && evidence.has_mark && !self.has_mark().await? {
                return Err(Doubt::MarkGone);
            }
            for batch in garbage.chunks(BATCH_MAX) {
                for (ledger, _) in batch {
                    tracing::debug!(%ledger, "not in metadata: removed");
                }
                removed.ledgers += self.remove(batch).await?;
            }
        }
        // A bookie without ledgers has none to lose to another store, but a mark that tells which one it was.
        if round.may_mark() || (is_empty && self.known.store_marks == [None; 2]) {
            self.mark(of_here, round.listed_here()).await;
        }
        Ok(())
    }

    /// Invariant 8; `before` is what earlier rounds found.
    fn note_unproven(&mut self, found: &[LedgerId], before: BTreeMap<LedgerId, Instant>) {
        let now = Instant::now();
        self.unproven =
            found.iter().map(|ledger| (*ledger, before.get(ledger).copied().unwrap_or(now))).collect();
        if let Some(highest) = found.iter().rfind(|ledger| !before.contains_key(ledger)) {
            tracing::warn!(
                ledgers = found.len(),
                %highest,
                "ledgers are here that metadata does not have, above every id that it has given out or listed: clients made \
                 them up, or metadata was put back from a copy of before they were created. They are removed if metadata \
                 still lacks them in an hour"
            );
        }
    }

    /// Invariant 6. Without a mark, because the store fails, there is one after the first round that allows it.
    async fn mark_at_start(&mut self) {
        if self.known.store_marks != [None; 2] {
            return;
        }
        let Some(here) = self.snapshot().await.filter(Vec::is_empty) else { return };
        let synced = self.layout.store().sync(self.layout.root()).await;
        match synced.map_err(|error| Doubt::Metadata(error.to_string())) {
            Ok(()) => match self.check_cluster().await {
                Ok(()) => self.mark(in_one_number(&here), None).await,
                Err(doubt) => tracing::debug!(%doubt, "no mark is left in the metadata store"),
            },
            Err(doubt) => tracing::debug!(%doubt, "no mark is left in the metadata store"),
        }
    }

    /// Leaves a new mark in the store, unless what is here is what was here at the last one.
    async fn mark(&mut self, of_here: u64, listed_here: Option<LedgerId>) {
        if self.marked == Some(of_here) {
            return;
        }
        match self.replace_mark(listed_here).await {
            Ok(()) => self.marked = Some(of_here),
            Err(why) => {
                tracing::warn!(
                    why,
                    "cannot leave a mark in the metadata store; retrying after the next round"
                )
            }
        }
    }

    async fn replace_mark(&mut self, listed_here: Option<LedgerId>) -> Result<(), String> {
        let marks = self.layout.store_marks();
        let found = marks.get(&self.surplus.bookie_id).await.map_err(|error| error.to_string())?;
        let former = found.filter(|mark| self.known.knows(*mark));
        let new = self.random.next_u64();
        self.remember(ClusterRecord { store_marks: [former, Some(new)], ..self.known }).await?;
        marks.put(&self.surplus.bookie_id, new).await.map_err(|error| error.to_string())?;
        // It never falls: ids that clients choose have no order, so what is left here says little about how far metadata reached.
        let known_up_to = listed_here.max(self.known.known_up_to);
        self.remember(ClusterRecord { store_marks: [Some(new), None], known_up_to, ..self.known }).await
    }

    async fn has_mark(&self) -> Result<bool, Doubt> {
        let found = self.layout.store_marks().get(&self.surplus.bookie_id).await;
        let found = found.map_err(|error| Doubt::Metadata(error.to_string()))?;
        Ok(found.is_some_and(|mark| self.known.knows(mark)))
    }

    async fn evidence(&self) -> Result<Evidence, Doubt> {
        let store = |error: StoreError| Doubt::Metadata(error.to_string());
        let has_cookie = match self.layout.cookies().get(&self.surplus.bookie_id).await {
            Ok(found) => found.is_some(),
            Err(CookiesError::Store(error)) => return Err(store(error)),
            Err(_) => false,
        };
        Ok(Evidence {
            is_member: has_cookie && !self.instance_id.is_empty(),
            has_mark: self.has_mark().await?,
            next_id: self.layout.ids().peek().await.map_err(store)?,
        })
    }

    /// Keeps `known` for later starts.
    async fn remember(&mut self, known: ClusterRecord) -> Result<(), String> {
        let dirs = self.dirs.clone();
        match tokio::task::spawn_blocking(move || dirs.save_known(&known)).await {
            Ok(Ok(())) => {
                self.known = known;
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn check_cluster(&self) -> Result<(), Doubt> {
        let found = self.layout.instance_id().await.map_err(|error| Doubt::Metadata(error.to_string()))?;
        GarbageRound::check_cluster(found.as_deref().unwrap_or_default(), &self.instance_id)?;
        match self.layout.is_whole().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Doubt::NotWhole),
            Err(error) => Err(Doubt::Metadata(error.to_string())),
        }
    }

    async fn pace(&self) {
        tokio::time::sleep(Duration::from_secs(1) / self.config.ops_per_second.max(1)).await;
    }

    /// Removes ledgers, durably, and returns how many were here. One that changed since it was examined stays until the
    /// next round.
    async fn remove(&self, batch: &[(LedgerId, Changes)]) -> Result<u64, Doubt> {
        let mut removed = 0;
        let mut left = batch.to_vec();
        for _ in 0..ROOM_ATTEMPTS {
            let mut answers = Vec::with_capacity(left.len());
            for (ledger, changes) in left.drain(..) {
                let was_here = self.engine.presence(ledger) == LedgerPresence::Known;
                let (done, answer) = oneshot::channel();
                let waiter = Box::new(move |outcome| {
                    let _ = done.send(outcome);
                });
                if self.engine.remove_unchanged(ledger, changes, waiter) {
                    answers.push(((ledger, changes), was_here, answer));
                } else {
                    tracing::info!(%ledger, "ledger was written to while it was being examined: leaving it for the \
                     next round");
                }
            }
            let deadline = Instant::now() + self.config.journal_patience;
            for (ledger, was_here, answer) in answers {
                let answered = durable(answer, deadline).await;
                match answered
                    .map_err(|JournalHangs| Doubt::JournalHangs(self.config.journal_patience.as_secs()))?
                {
                    Ok(()) => removed += u64::from(was_here),
                    Err(Refusal::TooManyRequests) => left.push(ledger),
                    Err(_) => {
                        return Err(Doubt::Metadata("the bookie's storage failed".to_owned()));
                    }
                }
            }
            if left.is_empty() {
                return Ok(removed);
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
        Err(Doubt::Metadata("the journal has no room for removals".to_owned()))
    }
}

/// The next candidates whose nodes lie in one directory of the store; none at the end.
fn next_together(round: &mut GarbageRound, ledgers: &Ledgers) -> Vec<LedgerId> {
    let mut together: Vec<LedgerId> = Vec::new();
    while together.len() < TOGETHER_MAX
        && let Some(next) = round.peek_candidate()
        && together.first().is_none_or(|first| ledgers.are_together(*first, next))
    {
        together.extend(round.next_candidate());
    }
    together
}

/// Ledgers, so that others are told from them.
fn in_one_number(ledgers: &[LedgerId]) -> u64 {
    let mut hasher = DefaultHasher::new();
    ledgers.hash(&mut hasher);
    hasher.finish()
}
