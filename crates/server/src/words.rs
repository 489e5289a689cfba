//! Adds that wait for a word of metadata: may this ledger be written to here ([`Engine::add_or_ask`])?
//!
//! # Data flow
//! ```text
//! reader: engine asks -> copy of the add, with a permit -> waiting, by ledger -> one read of its metadata
//!     -> Engine::on_word -> placed as any add, or refused
//! ```
//!
//! Here wait also the adds of recoveries that a full bookie has no room for, and that may be on its disks already: what is
//! there is compared before they are placed ([`Engine::copy_on_disk`]).
//!
//! # Invariants
//! 1. A word that lets an add pass was read, after a sync of the store, when the add was here already. Words that refuse
//!    may be [`WORD_KEPT`] old: a late writer sends many adds.
//! 2. Nobody waits for a word but the adds that need it: neither their connection nor other ledgers.
//! 3. Every add held is placed or refused within the deadline, or its connection is closed.
//! 4. Adds of one key leave in the order in which they came (IB23, protocol reference, section 1.7): while one is held
//!    or on its way to be placed, later ones are held behind it ([`WordDesk::free_run`]), and a ledger is placed by one
//!    task at a time.
//!
//! # Limits
//! Adds held: [`HELD_MAX`], and their bytes a permit of the pool for large frames, which is not waited for. As many
//! again, without their bytes, that must be refused behind one of their key. Reads under way: [`READS_MAX`].

use crate::io_pool::Lane;
use crate::latch::Latch;
use crate::metrics::Counter;
use crate::shared::Shared;
use bindery_engine::{Add, Engine, Origin, Refusal, Turn, Word};
use bindery_flow::Permit;
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, MasterKey};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Adds held at once; more are answered with too-many-requests.
pub const HELD_MAX: usize = 4096;
/// Metadata reads under way.
pub const READS_MAX: usize = 16;
/// How long a word that refuses is good for other adds.
pub const WORD_KEPT: Duration = Duration::from_secs(1);
/// Words kept.
const KEPT_MAX: usize = 1024;

/// An add with its own copy of the body.
struct Held {
    /// It found no room here, and says so when its turn comes; without a body.
    is_refused: bool,
    origin: Origin,
    entry: EntryId,
    last_add_confirmed: Option<EntryId>,
    key: MasterKey,
    body: Vec<u8>,
    is_recovery: bool,
    is_high_priority: bool,
    _permit: Option<Permit>,
}

impl Held {
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
    adds: Vec<Held>,
    /// Keys held, or on their way to be placed: how many of each.
    keys: BTreeMap<EntryId, usize>,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<LedgerId, Waiting>,
    /// Ledgers whose read has not begun.
    queue: VecDeque<LedgerId>,
    kept: BTreeMap<LedgerId, (Word, Instant)>,
}

impl State {
    fn is_held(&self, add: &Add<'_>) -> bool {
        self.waiting.get(&add.ledger).is_some_and(|waiting| waiting.keys.contains_key(&add.entry))
    }
}

/// An add that cannot wait here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotHeld {
    /// It is refused.
    Refused(Refusal),
    /// Nor be refused: that would pass one of its key, and too many of those wait already. No client gets here.
    TooMany,
}

/// Where adds wait. Connections put them there, [`WordReader`] takes them out.
#[derive(Default)]
pub struct WordDesk {
    state: Mutex<State>,
    /// Adds held, or on their way to be placed; changed under the lock of the state.
    held: AtomicUsize,
    wake: Notify,
    /// Adds that waited.
    pub adds: Counter,
    /// Metadata reads.
    pub reads: Counter,
    /// Reads that failed or were too slow.
    pub silent: Counter,
}

impl WordDesk {
    /// How many of `adds`, from the first, need not stand behind one of their key that is held here.
    pub fn free_run(&self, adds: &[Add<'_>]) -> usize {
        // Of their own connection, which came before them by the same task.
        if self.held() == 0 {
            return adds.len();
        }
        let state = self.state.lock();
        let is_behind = |add: &Add<'_>| state.is_held(add);
        adds.iter().position(is_behind).unwrap_or(adds.len())
    }

    /// Takes a copy of an add that must wait for a word, or for an older one of its key.
    ///
    /// # Errors
    /// It cannot: refuse it so, or close its connection.
    pub fn hold(&self, shared: &Shared, add: &Add<'_>) -> Result<(), NotHeld> {
        let permit = shared.pools.inbound_large.try_acquire(add.body.len() as u64);
        let now = Instant::now();
        let mut state = self.state.lock();
        let is_behind = state.is_held(add);
        // A word that refuses writers may be all that a recovery needs, and then it must be fresh.
        if let Some((word, read)) = state.kept.get(&add.ledger)
            && !is_behind
            && now.duration_since(*read) < WORD_KEPT
            && (!add.is_recovery || *word == Word::Absent)
        {
            shared.engine.on_word(add.ledger, add.key, add.is_recovery, *word).map_err(NotHeld::Refused)?;
        }
        let held = self.held();
        let is_refused = permit.is_none() || held >= HELD_MAX;
        match (is_refused, is_behind) {
            (true, false) => return Err(NotHeld::Refused(Refusal::TooManyRequests)),
            (true, true) if held >= 2 * HELD_MAX => return Err(NotHeld::TooMany),
            _ => {}
        }
        self.held.store(held + 1, Ordering::Release);
        self.adds.add(1);
        let held = Held {
            is_refused,
            origin: add.origin,
            entry: add.entry,
            last_add_confirmed: add.last_add_confirmed,
            key: add.key,
            body: if is_refused { Vec::new() } else { add.body.to_vec() },
            is_recovery: add.is_recovery,
            is_high_priority: add.is_high_priority,
            _permit: permit.filter(|_| !is_refused),
        };
        let is_first = !state.waiting.contains_key(&add.ledger);
        let waiting = state.waiting.entry(add.ledger).or_default();
        waiting.since.get_or_insert(now);
        *waiting.keys.entry(add.entry).or_default() += 1;
        waiting.adds.push(held);
        if is_first {
            state.queue.push_back(add.ledger);
            drop(state);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Adds held now, those on their way to be placed included.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// The next ledger to be read, and since when somebody waits.
    fn next(&self) -> Option<(LedgerId, Instant)> {
        let mut state = self.state.lock();
        let ledger = state.queue.pop_front()?;
        let since = state.waiting.get(&ledger).and_then(|waiting| waiting.since);
        Some((ledger, since.unwrap_or_else(Instant::now)))
    }

    /// Takes out what came before the read of `ledger` began; what came since waits for one more, which begins when
    /// these are placed ([`WordDesk::placed`]).
    fn settle(&self, ledger: LedgerId, begun: Begun, word: Word) -> Vec<Held> {
        let mut state = self.state.lock();
        if !matches!(word, Word::OpenHere | Word::Silent) {
            if state.kept.len() >= KEPT_MAX {
                state.kept.clear();
            }
            state.kept.insert(ledger, (word, begun.at));
        }
        let Some(waiting) = state.waiting.get_mut(&ledger) else { return Vec::new() };
        let adds: Vec<Held> = waiting.adds.drain(..begun.adds.min(waiting.adds.len())).collect();
        waiting.since = (!waiting.adds.is_empty()).then(Instant::now);
        adds
    }

    /// These are in the hands of their shard: later ones of their keys may follow.
    fn placed(&self, ledger: LedgerId, adds: &[Held]) {
        let mut state = self.state.lock();
        let Some(waiting) = state.waiting.get_mut(&ledger) else { return };
        for held in adds {
            if let Some(count) = waiting.keys.get_mut(&held.entry) {
                *count -= 1;
                if *count == 0 {
                    waiting.keys.remove(&held.entry);
                }
            }
        }
        let is_empty = waiting.adds.is_empty();
        if is_empty {
            state.waiting.remove(&ledger);
        } else {
            state.queue.push_back(ledger);
        }
        self.held.fetch_sub(adds.len(), Ordering::Release);
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

/// What metadata means for writers and recoveries of a ledger.
pub fn word_of(metadata: &LedgerMetadata, bookie: &BookieId) -> Word {
    let is_last = metadata.segments().last().is_some_and(|segment| segment.ensemble.contains(bookie));
    match metadata.state {
        LedgerState::Open if is_last => Word::OpenHere,
        LedgerState::Open => Word::OpenElsewhere,
        LedgerState::InRecovery | LedgerState::Closed { .. } => Word::Ended,
    }
}

/// Reads metadata for the adds on the desk.
pub struct WordReader {
    /// Where they wait, and where they go.
    pub shared: Arc<Shared>,
    /// The cluster.
    pub layout: Layout,
    /// This bookie.
    pub bookie_id: BookieId,
}

impl WordReader {
    /// Works until `stop`.
    pub async fn run(self, stop: Arc<Latch>) {
        let mut reads: JoinSet<(LedgerId, Begun, Word)> = JoinSet::new();
        let mut placing: JoinSet<()> = JoinSet::new();
        let desk = &self.shared.words;
        loop {
            while reads.len() < READS_MAX
                && let Some((ledger, since)) = desk.next()
            {
                let begun = desk.begin(ledger);
                let left = self.shared.limits.admission_deadline.saturating_sub(since.elapsed());
                reads.spawn(read(self.layout.clone(), self.bookie_id.clone(), ledger, begun, left));
                desk.reads.add(1);
            }
            tokio::select! {
                () = stop.wait() => return,
                () = desk.wake.notified() => {}
                Some(read) = reads.join_next() => {
                    let Ok((ledger, begun, word)) = read else { continue };
                    if word == Word::Silent {
                        desk.silent.add(1);
                    }
                    let adds = desk.settle(ledger, begun, word);
                    placing.spawn(place(self.shared.clone(), ledger, adds, word));
                }
                Some(_) = placing.join_next() => {}
            }
        }
    }
}

async fn read(
    layout: Layout,
    bookie_id: BookieId,
    ledger: LedgerId,
    begun: Begun,
    left: Duration,
) -> (LedgerId, Begun, Word) {
    let ledgers = layout.ledgers();
    let answer = async {
        // A server that lags would not know that the ledger was closed.
        layout.store().sync(&ledgers.path(ledger)).await.map_err(LedgerError::from)?;
        ledgers.get(ledger).await
    };
    let word = match tokio::time::timeout(left, answer).await {
        Ok(Ok(stored)) => word_of(&stored.metadata, &bookie_id),
        Ok(Err(LedgerError::NotFound(_))) => Word::Absent,
        Ok(Err(error)) => {
            tracing::warn!(%ledger, %error, "metadata of a ledger that somebody writes to");
            Word::Silent
        }
        Err(_) => Word::Silent,
    };
    (ledger, begun, word)
}

/// Places adds in their order, or refuses them.
async fn place(shared: Arc<Shared>, ledger: LedgerId, adds: Vec<Held>, word: Word) {
    let deadline = Instant::now() + shared.limits.admission_deadline;
    for held in &adds {
        let outcome = match shared.engine.on_word(ledger, held.key, held.is_recovery, word) {
            _ if held.is_refused => Err(Refusal::TooManyRequests),
            Ok(()) if is_stored(&shared, ledger, held, deadline).await => Ok(()),
            Ok(()) => offer(&shared.engine, ledger, held, deadline).await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = outcome {
            shared.engine.refuse(shared.engine.shard_of(ledger), &[held.add(ledger)], refusal);
        }
    }
    shared.words.placed(ledger, &adds);
}

/// True when the add was acknowledged, because a copy on disk is the same. One that cannot be read in time is none.
async fn is_stored(shared: &Arc<Shared>, ledger: LedgerId, held: &Held, deadline: Instant) -> bool {
    let add = held.add(ledger);
    let Some(copy) = shared.engine.copy_on_disk(&add) else { return false };
    let loaded = async {
        let place = shared.io.of_directory(copy.directory());
        let slot = shared.io.slot(place, Lane::High, held.body.len() as u64).await;
        let (told, loaded) = oneshot::channel();
        // Nobody listens any more after the deadline.
        shared.io.run(slot, None::<fn()>, move || drop(told.send(copy.load())));
        loaded.await
    };
    let stored = tokio::time::timeout_at(deadline, loaded).await;
    matches!(stored, Ok(Ok(Ok(stored))) if stored == held.body) && shared.engine.confirm(&add)
}

/// Offers an add until there is room for it; then its answer comes as any other's.
async fn offer(
    engine: &Arc<Engine>,
    ledger: LedgerId,
    held: &Held,
    deadline: Instant,
) -> Result<(), Refusal> {
    let shard = engine.shard_of(ledger);
    let mut turn: Option<Turn> = None;
    loop {
        let adds = [held.add(ledger)];
        let taken = match turn.take() {
            Some(turn) => engine.add_batch_in_turn(shard, &adds, turn),
            None => engine.add_batch(shard, &adds),
        };
        if taken > 0 {
            return Ok(());
        }
        let (told, room) = oneshot::channel();
        // Nobody listens any more after the deadline: the turn comes back, and goes to the next.
        engine.when_room(shard, &adds, Box::new(move |turn| drop(told.send(turn))));
        match tokio::time::timeout_at(deadline, room).await {
            Ok(Ok(given)) => turn = Some(given),
            Ok(Err(_)) | Err(_) => return Err(Refusal::TooManyRequests),
        }
    }
}
