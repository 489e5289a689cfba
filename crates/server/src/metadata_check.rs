//! Adds parked until metadata says whether this bookie may accept writes to their ledger ([`Engine::add_or_ask`]).
//!
//! # Data flow
//! ```text
//! ingest: the engine asks -> ParkedAdds: a copy of the add, with a permit, by ledger -> one read of the ledger's metadata
//!     -> Engine::on_verdict -> placed as any add, or refused; parked again if the ledger changed meanwhile
//! ```
//!
//! Recovery adds that a full bookie has no room for, and that may be on its disks already, are parked here as well: what
//! is on disk is compared before they are placed ([`Engine::copy_on_disk`]).
//!
//! # Invariants
//! 1. A verdict that lets an add pass was read, after a sync of the store, when the add was parked already. Verdicts that
//!    refuse may be [`VERDICT_TTL`] old: a late writer sends many adds.
//! 2. Only the adds that need a verdict wait for it: neither the rest of their connection nor other ledgers do.
//! 3. Adds to a trimmed ledger are parked, too: the id may have been used again. If they are another ledger's, the one that is here is
//!    removed before they are placed ([`lives`]). An add is placed only if the ledger is as it was before the read: else metadata is read
//!    once more, because it spoke of something else.
//! 4. Every parked add is placed or refused within the deadline of each of its reads, or its connection is closed. A panic on the way costs the adds
//!    it hits their answer, and keeps no later one of their keys waiting.
//! 5. Adds of one key leave in the order in which they came (IB23, protocol reference, section 1.7): while one is parked
//!    or on its way to be placed, later ones are parked behind it ([`ParkedAdds::free_run`]), and a ledger is placed by
//!    one task at a time.
//!
//! # Limits
//! Parked adds: [`PARKED_MAX`]; their bytes have a permit of the pool for large frames, without which an add is refused. As
//! many again, without their bytes, that must be refused behind one of their key: they take no place of the former. Of either a
//! connection has its share ([`Shares`]). Reads under way: [`READS_MAX`].

pub mod fences;
pub(crate) mod lives;

use self::fences::WaitingFences;
use self::lives::Life;
use crate::io_pool::IoPools;
use crate::latch::Latch;
use crate::log_limit::PeerLog;
use crate::read_class::ReadClass;
use crate::shares::Shares;
use bindery_engine::{Add, AdmissionGrant, Engine, MetadataVerdict, Origin, Refusal, Tiered};
use bindery_flow::{ByteBudget, Permit};
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_metrics::{Row, numbers};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, MasterKey};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Adds parked at once; more are answered with too-many-requests. The same of refusals.
pub const PARKED_MAX: u64 = 4096;
/// Metadata reads under way.
pub const READS_MAX: usize = 16;
/// How long a verdict that refuses counts for other adds.
pub const VERDICT_TTL: Duration = Duration::from_secs(1);
/// Verdicts kept.
const KEPT_MAX: usize = 1024;

/// An add with its own copy of the body.
struct Parked {
    origin: Origin,
    entry: EntryId,
    last_add_confirmed: Option<EntryId>,
    key: MasterKey,
    body: Vec<u8>,
    is_recovery: bool,
    is_high_priority: bool,
    /// For the body. Without one it found no room, has no body, and is refused when it comes to the front.
    permit: Option<Permit>,
    /// It was parked again, because the ledger changed while metadata was read.
    is_again: bool,
}

impl Parked {
    fn add(&self, ledger: LedgerId) -> Add<'_> {
        Add {
            origin: self.origin,
            ledger,
            entry: self.entry,
            last_add_confirmed: self.last_add_confirmed,
            key: self.key,
            body: &self.body,
            is_recovery: self.is_recovery,
            is_high_priority: self.is_high_priority,
        }
    }
}

#[derive(Default)]
struct Waiting {
    /// When the first of them came, or was left behind by the read before.
    since: Option<Instant>,
    adds: Vec<Parked>,
    /// Keys parked, or on their way to be placed: how many of each.
    keys: BTreeMap<EntryId, usize>,
}

#[derive(Default)]
struct State {
    /// Of adds that may be placed, and the bytes of those; of adds that are refused.
    places: Shares<u64>,
    bytes: Shares<u64>,
    refusals: Shares<u64>,
    waiting: BTreeMap<LedgerId, Waiting>,
    /// Ledgers whose read has not begun.
    queue: VecDeque<LedgerId>,
    kept: BTreeMap<LedgerId, (MetadataVerdict, Instant)>,
}

impl State {
    /// Takes a place for an add of a connection, and so much of the memory.
    fn take_place(&mut self, connection: u64, bytes: u64, capacity: u64) -> bool {
        if !self.places.take(connection, 1, PARKED_MAX) {
            return false;
        }
        let may = self.bytes.take(connection, bytes, capacity);
        if !may {
            self.places.give_back(connection, 1);
        }
        may
    }

    fn give_back(&mut self, parked: &Parked) {
        let connection = parked.origin.connection;
        match &parked.permit {
            None => self.refusals.give_back(connection, 1),
            Some(permit) => {
                self.places.give_back(connection, 1);
                self.bytes.give_back(connection, permit.bytes());
            }
        }
    }

    fn is_behind(&self, add: &Add<'_>) -> bool {
        self.waiting.get(&add.ledger).is_some_and(|waiting| waiting.keys.contains_key(&add.entry))
    }
}

/// An add that cannot wait here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotParked {
    /// It is refused.
    Refused(Refusal),
    /// Nor be refused: that would pass one of its key, and too many of those wait already. No client gets here.
    TooMany,
}

numbers! {
    /// The adds that wait. Connections park them, [`MetadataChecker`] takes them out.
    pub struct ParkedAdds {
        adds: Counter(
            "bindery_parked_adds",
            "Adds that waited until metadata was read for them, or, on a full bookie, until they were compared with a copy on disk."
        ),
        reads: Counter("bindery_metadata_check_reads", "Reads of metadata for parked adds."),
        silent: Counter(
            "bindery_metadata_check_failed",
            "Reads of metadata for parked adds that failed or were too slow."
        ),
    }
    with {
        state: Mutex<State>,
        /// Adds parked, or on their way to be placed; changed under the lock of the state.
        parked: AtomicUsize,
        wake: Notify,
        /// Fences that wait for a word, too.
        pub fences: WaitingFences,
        log: PeerLog,
    }
    also {
        Row::gauge("bindery_parked_adds_waiting", "Adds that are parked now.", |adds| adds.parked() as u64),
    }
}

impl ParkedAdds {
    /// How many of `adds`, from the first, have no older add of their key parked here.
    pub fn free_run(&self, adds: &[Add<'_>]) -> usize {
        // A parked add of the same connection came before, by the same task.
        if self.parked() == 0 {
            return adds.len();
        }
        let state = self.state.lock();
        let is_behind = |add: &Add<'_>| state.is_behind(add);
        adds.iter().position(is_behind).unwrap_or(adds.len())
    }

    /// Parks a copy of an add that needs a verdict, or that an older one of its key is ahead of; its body takes `memory`.
    ///
    /// # Errors
    /// There is no room: refuse it with this, or close its connection.
    pub fn park(&self, engine: &Engine, memory: &ByteBudget, add: &Add<'_>) -> Result<(), NotParked> {
        let permit = memory.try_acquire(add.body.len() as u64);
        let now = Instant::now();
        let mut state = self.state.lock();
        let is_behind = state.is_behind(add);
        // A verdict that refuses writers may be all that a recovery needs, and then it must be fresh.
        if let Some((verdict, read)) = state.kept.get(&add.ledger)
            && !is_behind
            && now.duration_since(*read) < VERDICT_TTL
            && (!add.is_recovery || *verdict == MetadataVerdict::Absent)
        {
            engine.on_verdict(add.ledger, add.key, add.is_recovery, *verdict).map_err(NotParked::Refused)?;
        }
        let connection = add.origin.connection;
        match permit.filter(|permit| state.take_place(connection, permit.bytes(), memory.capacity())) {
            None if is_behind => self.insert_refusal(state, add, now),
            None => Err(NotParked::Refused(Refusal::TooManyRequests)),
            permit => {
                self.insert(state, add, permit, now);
                Ok(())
            }
        }
    }

    /// Parks the refusal of an add that found no room, behind an older one of its key.
    ///
    /// # Errors
    /// None of its key is parked here any more: refuse it with this, through its shard; or close its connection.
    pub fn park_refusal(&self, add: &Add<'_>) -> Result<(), NotParked> {
        let state = self.state.lock();
        if !state.is_behind(add) {
            return Err(NotParked::Refused(Refusal::TooManyRequests));
        }
        self.insert_refusal(state, add, Instant::now())
    }

    fn insert_refusal(
        &self,
        mut state: MutexGuard<'_, State>,
        add: &Add<'_>,
        now: Instant,
    ) -> Result<(), NotParked> {
        if !state.refusals.take(add.origin.connection, 1, PARKED_MAX) {
            return Err(NotParked::TooMany);
        }
        self.insert(state, add, None, now);
        Ok(())
    }

    /// Adds a copy to the end of the line of its ledger, for which a place was taken; without a permit it has no body, and is
    /// refused there.
    fn insert(&self, mut state: MutexGuard<'_, State>, add: &Add<'_>, permit: Option<Permit>, now: Instant) {
        self.parked.fetch_add(1, Ordering::Release);
        self.adds.add(1);
        let parked = Parked {
            origin: add.origin,
            entry: add.entry,
            last_add_confirmed: add.last_add_confirmed,
            key: add.key,
            body: if permit.is_some() { add.body.to_vec() } else { Vec::new() },
            is_recovery: add.is_recovery,
            is_high_priority: add.is_high_priority,
            permit,
            is_again: false,
        };
        let is_first = !state.waiting.contains_key(&add.ledger);
        let waiting = state.waiting.entry(add.ledger).or_default();
        waiting.since.get_or_insert(now);
        *waiting.keys.entry(add.entry).or_default() += 1;
        waiting.adds.push(parked);
        if is_first {
            state.queue.push_back(add.ledger);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Adds parked now, those on their way to be placed included.
    pub fn parked(&self) -> usize {
        self.parked.load(Ordering::Acquire)
    }

    /// The next ledger whose metadata is to be read, and since when its first add waits.
    fn next(&self) -> Option<(LedgerId, Instant)> {
        let mut state = self.state.lock();
        let ledger = state.queue.pop_front()?;
        let since = state.waiting.get(&ledger).and_then(|waiting| waiting.since);
        Some((ledger, since.unwrap_or_else(Instant::now)))
    }

    /// Takes out the adds that came before the read of `ledger` began; later ones wait for another read, which begins
    /// when these are placed ([`ParkedAdds::placed`]).
    fn settle(&self, ledger: LedgerId, begun: Begun, verdict: MetadataVerdict) -> Vec<Parked> {
        let mut state = self.state.lock();
        if !matches!(verdict, MetadataVerdict::OpenHere | MetadataVerdict::Silent) {
            if state.kept.len() >= KEPT_MAX {
                state.kept.clear();
            }
            state.kept.insert(ledger, (verdict, begun.at));
        }
        let Some(waiting) = state.waiting.get_mut(&ledger) else { return Vec::new() };
        let adds: Vec<Parked> = waiting.adds.drain(..begun.adds.min(waiting.adds.len())).collect();
        waiting.since = (!waiting.adds.is_empty()).then(Instant::now);
        adds
    }

    /// Adds that were taken out are parked again, in front of those that came later. They kept their places.
    fn park_again(&self, ledger: LedgerId, mut adds: Vec<Parked>) {
        adds.iter_mut().for_each(|parked| parked.is_again = true);
        let mut state = self.state.lock();
        let waiting = state.waiting.get_mut(&ledger).expect("it has keys of these adds");
        waiting.since.get_or_insert_with(Instant::now);
        waiting.adds.splice(0..0, adds);
    }

    /// These are in the hands of their shard: later ones of their keys may follow.
    fn placed(&self, ledger: LedgerId, adds: &[Parked]) {
        let mut state = self.state.lock();
        for parked in adds {
            state.give_back(parked);
        }
        let Some(waiting) = state.waiting.get_mut(&ledger) else { return };
        for parked in adds {
            if let Some(count) = waiting.keys.get_mut(&parked.entry) {
                *count -= 1;
                if *count == 0 {
                    waiting.keys.remove(&parked.entry);
                }
            }
        }
        let is_empty = waiting.adds.is_empty();
        if is_empty {
            state.waiting.remove(&ledger);
        } else {
            state.queue.push_back(ledger);
        }
        self.parked.fetch_sub(adds.len(), Ordering::Release);
        drop(state);
        if !is_empty {
            self.wake.notify_one();
        }
    }

    fn begin(&self, ledger: LedgerId) -> Begun {
        let adds = self.state.lock().waiting.get(&ledger).map_or(0, |waiting| waiting.adds.len());
        Begun { at: Instant::now(), adds }
    }
}

/// What waited when a read began.
#[derive(Clone, Copy)]
struct Begun {
    at: Instant,
    adds: usize,
}

/// What metadata allows writers and recoveries of a ledger.
pub fn verdict_of(metadata: &LedgerMetadata, bookie: &BookieId) -> MetadataVerdict {
    let is_last = metadata.segments().last().is_some_and(|segment| segment.ensemble.contains(bookie));
    match metadata.state {
        LedgerState::Open if is_last => MetadataVerdict::OpenHere,
        LedgerState::Open => MetadataVerdict::OpenElsewhere,
        LedgerState::InRecovery | LedgerState::Closed { .. } => MetadataVerdict::Ended,
    }
}

/// Reads metadata for the parked adds.
pub struct MetadataChecker {
    /// Those that wait.
    pub parked: Arc<ParkedAdds>,
    /// What takes them.
    pub engine: Arc<Engine>,
    /// Reads copies that are on disk already.
    pub io: Arc<IoPools>,
    /// How long an add waits at most, for its verdict and then for room, each.
    pub admission_deadline: Duration,
    /// The cluster.
    pub layout: Layout,
    /// This bookie.
    pub bookie_id: BookieId,
}

impl MetadataChecker {
    fn placing(&self) -> Placing {
        Placing {
            parked: self.parked.clone(),
            engine: self.engine.clone(),
            io: self.io.clone(),
            admission_deadline: self.admission_deadline,
        }
    }

    /// Works until `stop`.
    pub async fn run(self, stop: Arc<Latch>) {
        tokio::select! {
            () = stop.wait() => {}
            () = self.check_adds() => {}
            () = self.parked.fences.serve(&self) => {}
        }
    }

    async fn check_adds(&self) {
        let mut reads: JoinSet<Word> = JoinSet::new();
        let mut reading: BTreeMap<tokio::task::Id, (LedgerId, Begun)> = BTreeMap::new();
        let mut placing: JoinSet<()> = JoinSet::new();
        let parked = &self.parked;
        loop {
            while reads.len() < READS_MAX
                && let Some((ledger, since)) = parked.next()
            {
                let begun = parked.begin(ledger);
                let left = self.admission_deadline.saturating_sub(since.elapsed());
                // What came to be known later is of the ledger that metadata tells of, or of a later one.
                let seen = self.engine.tiered(ledger).filter(|seen| seen.trimmed_below.is_some());
                let task = reads.spawn(read(
                    parked.clone(),
                    self.layout.clone(),
                    self.bookie_id.clone(),
                    ledger,
                    seen,
                    left,
                ));
                reading.insert(task.id(), (ledger, begun));
                parked.reads.add(1);
            }
            tokio::select! {
                () = parked.wake.notified() => {}
                Some(read) = reads.join_next_with_id() => {
                    let (task, word) = match read {
                        Ok(read) => read,
                        // It panicked.
                        Err(error) => (error.id(), Word { verdict: MetadataVerdict::Silent, lives: None }),
                    };
                    let Some((ledger, begun)) = reading.remove(&task) else { continue };
                    if word.verdict == MetadataVerdict::Silent {
                        parked.silent.add(1);
                    }
                    let adds = parked.settle(ledger, begun, word.verdict);
                    placing.spawn(place(self.placing(), ledger, adds, word));
                }
                Some(_) = placing.join_next() => {}
            }
        }
    }
}

/// What metadata says of a ledger.
struct Word {
    verdict: MetadataVerdict,
    /// Of a ledger that was trimmed here before the read: what was known of it, and whose the adds of its writer and of a recovery are.
    lives: Option<(Tiered, [Life; 2])>,
}

async fn read(
    parked: Arc<ParkedAdds>,
    layout: Layout,
    bookie_id: BookieId,
    ledger: LedgerId,
    seen: Option<Tiered>,
    left: Duration,
) -> Word {
    let ledgers = layout.ledgers();
    let answer = async {
        // A server that lags would not know that the ledger was closed.
        layout.store().sync(&ledgers.path(ledger)).await.map_err(LedgerError::from)?;
        let stored = ledgers.get(ledger).await?;
        let lives = match seen {
            Some(seen) => {
                let cluster_ms = layout.made_ms().await.map_err(LedgerError::from)?;
                Some((seen, [false, true].map(|of| lives::of_add(&seen, &stored, cluster_ms, of))))
            }
            None => None,
        };
        Ok((verdict_of(&stored.metadata, &bookie_id), lives))
    };
    let mut lives = None;
    let verdict = match tokio::time::timeout(left, answer).await {
        Ok(Ok((verdict, of_trimmed))) => {
            lives = of_trimmed;
            verdict
        }
        Ok(Err(LedgerError::NotFound(_))) => MetadataVerdict::Absent,
        Ok(Err(error)) => {
            parked.log.write(|left_out| {
                tracing::warn!(%ledger, %error, left_out, "cannot read the metadata of a ledger that is being written to; its parked \
                 adds are refused");
            });
            MetadataVerdict::Silent
        }
        Err(_) => MetadataVerdict::Silent,
    };
    Word { verdict, lives }
}

/// The parts that placing needs.
struct Placing {
    parked: Arc<ParkedAdds>,
    engine: Arc<Engine>,
    io: Arc<IoPools>,
    admission_deadline: Duration,
}

/// Adds that were taken out, on their way to their shard. Those of their keys that came later may follow when this is dropped,
/// also by a panic.
struct OnTheWay {
    placing: Placing,
    ledger: LedgerId,
    adds: Vec<Parked>,
    /// How many of them were begun.
    begun: usize,
}

/// Why an add is not placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unplaced {
    Refused(Refusal),
    /// The ledger is another one than before the read, or trimmed otherwise: metadata spoke of something else.
    Changed,
}

impl From<Refusal> for Unplaced {
    fn from(refusal: Refusal) -> Unplaced {
        Unplaced::Refused(refusal)
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        let shard = self.placing.engine.shard_of(self.ledger);
        for parked in &self.adds[self.begun..] {
            self.placing.engine.refuse(shard, &[parked.add(self.ledger)], Refusal::Unknown);
        }
        self.placing.parked.placed(self.ledger, &self.adds);
    }
}

/// Places adds in their order, or refuses them. From the first one on that metadata did not speak for they are parked again, once.
async fn place(placing: Placing, ledger: LedgerId, adds: Vec<Parked>, mut word: Word) {
    let deadline = Instant::now() + placing.admission_deadline;
    let mut on_the_way = OnTheWay { placing, ledger, adds, begun: 0 };
    while on_the_way.begun < on_the_way.adds.len() {
        on_the_way.begun += 1;
        let OnTheWay { placing, adds, begun, .. } = &on_the_way;
        let parked = &adds[begun - 1];
        let mut judge = || {
            make_way(&placing.engine, ledger, parked.is_recovery, &mut word)?;
            Ok(placing.engine.on_verdict(ledger, parked.key, parked.is_recovery, word.verdict)?)
        };
        // One that is refused changes nothing.
        let judged = if parked.permit.is_none() { Err(Refusal::TooManyRequests.into()) } else { judge() };
        let outcome = match judged {
            Ok(()) if is_stored(placing, ledger, parked, deadline).await => Ok(()),
            Ok(()) => {
                let seen = word.lives.as_ref().map(|(seen, _)| seen);
                offer(&placing.engine, ledger, parked, seen, deadline).await
            }
            Err(unplaced) => Err(unplaced),
        };
        let refusal = match outcome {
            Ok(()) => continue,
            Err(Unplaced::Refused(refusal)) => refusal,
            Err(Unplaced::Changed) if parked.is_again => Refusal::Unknown,
            Err(Unplaced::Changed) => {
                on_the_way.begun -= 1;
                let again = on_the_way.adds.split_off(on_the_way.begun);
                on_the_way.placing.parked.park_again(ledger, again);
                return;
            }
        };
        placing.engine.refuse(placing.engine.shard_of(ledger), &[parked.add(ledger)], refusal);
    }
}

/// Removes what is here of another ledger than the one that the add is of (invariant 3).
fn make_way(engine: &Engine, ledger: LedgerId, is_recovery: bool, word: &mut Word) -> Result<(), Unplaced> {
    let Some((seen, lives)) = &word.lives else { return Ok(()) };
    match lives[usize::from(is_recovery)] {
        Life::Same => Ok(()),
        Life::Another if engine.end_other_life(ledger, seen)? => {
            // Nothing of a former ledger is left for the adds behind this one.
            word.lives = None;
            Ok(())
        }
        Life::Another => Err(Unplaced::Changed),
        Life::Doubtful => Err(Refusal::Unknown.into()),
    }
}

/// True when the add was acknowledged, because a copy on disk is the same. One that cannot be read in time is none.
async fn is_stored(placing: &Placing, ledger: LedgerId, parked: &Parked, deadline: Instant) -> bool {
    let add = parked.add(ledger);
    let Some(copy) = placing.engine.copy_on_disk(&add) else { return false };
    let loaded = async {
        let place = placing.io.of_directory(copy.directory());
        let slot = placing.io.slot(place, ReadClass::Priority, parked.body.len() as u64).await;
        let (told, loaded) = oneshot::channel();
        // After the deadline the receiver is gone.
        placing.io.run(slot, None::<fn()>, move || drop(told.send(copy.load())));
        loaded.await
    };
    let stored = tokio::time::timeout_at(deadline, loaded).await;
    matches!(stored, Ok(Ok(Ok(stored))) if stored == parked.body) && placing.engine.confirm(&add)
}

/// Offers an add until there is room for it; then its answer comes as any other's. `seen`: what was known of a trimmed ledger before
/// metadata was read.
async fn offer(
    engine: &Arc<Engine>,
    ledger: LedgerId,
    parked: &Parked,
    seen: Option<&Tiered>,
    deadline: Instant,
) -> Result<(), Unplaced> {
    let shard = engine.shard_of(ledger);
    let mut grant: Option<AdmissionGrant> = None;
    let mut changed = Vec::new();
    loop {
        let adds = [parked.add(ledger)];
        let taken = engine.add_judged(shard, &adds, grant.take(), seen, &mut changed);
        if !changed.is_empty() {
            return Err(Unplaced::Changed);
        }
        if taken > 0 {
            return Ok(());
        }
        let (told, room) = oneshot::channel();
        // After the deadline the receiver is gone: the grant is dropped, and goes to the next in the queue.
        engine.when_room(shard, &adds, Box::new(move |grant| drop(told.send(grant))));
        match tokio::time::timeout_at(deadline, room).await {
            Ok(Ok(given)) => grant = Some(given),
            Ok(Err(_)) | Err(_) => return Err(Refusal::TooManyRequests.into()),
        }
    }
}
