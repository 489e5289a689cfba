//! A cluster in which the cores of repair run: bookies that come and go and lose what they have, writers, marks and locks in metadata,
//! auditors, workers of bookies and one of none, and the removal of surplus. Every step of every actor is an event of its own, so that
//! anything may happen between two of them.
//!
//! # What is checked, at each event
//! - **IR1** Metadata names a bookie only when it has every entry of its place.
//! - **IR2** A bookie that is seen to be back keeps its place, although another one has copies for it.
//! - **IR3** Metadata and marks are changed only with the lock.
//! - **IR4** Every acknowledged entry has a copy on a member that nothing destroyed.
//! - **IR5** A worker repairs the untried ledger with the fewest copies first.
//! - **IR6** An open ledger that is seen to grow is not closed.
//! - **IR7** In the end, when nothing fails any more, no mark is left and every copy is there.

mod acts;
mod jobs;
mod swarm;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_io::SeededRandom;
use bindery_io::canary::Canaries;
use bindery_types::{
    BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum, Segment,
};

use self::jobs::Worker;
use super::auditor::{AuditorCore, AuditorSettings};

/// Times of the model.
const DELAY: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(2);
/// Entries of large ledgers have so many bytes that six of them go past the journal.
const LARGE_ENTRY_BYTES: u64 = 200 << 10;

fn bookie_id(index: usize) -> BookieId {
    BookieId::new(format!("b{index}")).unwrap()
}

fn ledger_id(index: usize) -> LedgerId {
    LedgerId::new(index as i64).unwrap()
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

/// The entries and flags of a ledger on one bookie.
#[derive(Debug, Clone, Default)]
struct Held {
    entries: BTreeSet<i64>,
    is_fenced: bool,
    /// It may have lost entries, and denies none.
    is_limbo: bool,
    /// Grows with each change.
    changes: u64,
}

#[derive(Debug, Clone, Default)]
struct Bookie {
    is_up: bool,
    /// As metadata have it: a crash is seen later.
    is_registered: bool,
    /// It never returns.
    is_gone: bool,
    is_draining: bool,
    starts: u64,
    ledgers: BTreeMap<usize, Held>,
    /// The ledger that the round for surplus removes, and its changes when the round found it.
    surplus: Option<Surplus>,
}

#[derive(Debug, Clone, Copy)]
struct Surplus {
    ledger: usize,
    changes: u64,
    /// The round read the metadata, and rewrote them, under the lock.
    is_proven: bool,
}

/// Who holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// A worker, in a session.
    Worker(usize, u64),
    /// The surplus round of a bookie.
    Surplus(usize),
}

#[derive(Debug, Clone)]
struct Mark {
    replicas: Vec<String>,
    since_ms: Option<i64>,
    version: u64,
}

#[derive(Debug, Clone)]
struct Ledger {
    metadata: LedgerMetadata,
    version: u64,
    /// The last acknowledged entry, -1 for none.
    acked: i64,
    /// Whether there is a writer, which the ledger is open for.
    has_writer: bool,
    is_large: bool,
    mark: Option<Mark>,
    lock: Option<Holder>,
}

/// How a surplus ledger is removed.
#[derive(Debug, Clone, Copy)]
struct SurplusRules {
    /// Metadata are read again under the lock.
    reads_again: bool,
    /// Metadata are rewritten under the lock, so that a worker with an older version cannot name this bookie.
    writes_anew: bool,
}

/// What the runs met, so that runs which test nothing are noticed.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    named: u64,
    named_last: u64,
    filled: u64,
    past_journal: u64,
    dropped: u64,
    closed: u64,
    spared: u64,
    surplus: u64,
    expired: u64,
    lost_answers: u64,
    unmarked: u64,
    failed: u64,
    elsewhere: u64,
    marked_again: u64,
    drained: u64,
}

impl Met {
    fn add(&mut self, other: &Met) {
        for (sum, of_run) in [
            (&mut self.named, other.named),
            (&mut self.named_last, other.named_last),
            (&mut self.filled, other.filled),
            (&mut self.past_journal, other.past_journal),
            (&mut self.dropped, other.dropped),
            (&mut self.closed, other.closed),
            (&mut self.spared, other.spared),
            (&mut self.surplus, other.surplus),
            (&mut self.expired, other.expired),
            (&mut self.lost_answers, other.lost_answers),
            (&mut self.unmarked, other.unmarked),
            (&mut self.failed, other.failed),
            (&mut self.elsewhere, other.elsewhere),
            (&mut self.marked_again, other.marked_again),
            (&mut self.drained, other.drained),
        ] {
            *sum += of_run;
        }
    }
}

/// What an auditor or a worker knows of the cluster, which may be a little old.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct View {
    live: BTreeSet<BookieId>,
    draining: BTreeSet<BookieId>,
    is_disabled: bool,
}

struct Auditor {
    core: AuditorCore,
    view: View,
    /// Ledgers that the scan under way still has to see.
    scan: Option<Vec<usize>>,
}

struct World {
    random: SeededRandom,
    canaries: Canaries,
    rules: SurplusRules,
    now: Duration,
    bookies: Vec<Bookie>,
    ledgers: Vec<Ledger>,
    workers: Vec<Worker>,
    auditor: Option<Auditor>,
    is_disabled: bool,
    /// How often requests to the metadata store fail, or their answers are lost.
    loss: f64,
    met: Met,
}

impl World {
    fn new(seed: u64, canaries: Canaries, bookies: usize) -> World {
        let random = SeededRandom::new(seed);
        let up = Bookie { is_up: true, is_registered: true, ..Bookie::default() };
        let mut workers: Vec<Worker> =
            (0..bookies).map(|index| Worker::new(index, Some(index), canaries)).collect();
        // One that is part of no bookie, and copies to any.
        workers.push(Worker::new(bookies, None, canaries));
        World {
            random,
            canaries,
            rules: SurplusRules { reads_again: true, writes_anew: true },
            now: Duration::from_secs(1000),
            bookies: vec![up; bookies],
            ledgers: Vec::new(),
            workers,
            auditor: None,
            is_disabled: false,
            loss: 0.0,
            met: Met::default(),
        }
    }

    fn below(&self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap()
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if std::env::var_os("BINDERY_REPAIR_SEED").is_some() {
            println!("{:?} {}", self.now, what());
        }
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.now.as_millis()).unwrap()
    }

    /// A ledger with these quorums on these bookies, open and with a writer.
    fn add_ledger(&mut self, (e, w, a): (usize, usize, usize), members: &[usize]) {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(e, w, a).unwrap(), secret);
        let ensemble = members.iter().map(|index| bookie_id(*index)).collect();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        self.ledgers.push(Ledger {
            metadata,
            version: 0,
            acked: -1,
            has_writer: true,
            is_large: self.random.chance(0.4),
            mark: None,
            lock: None,
        });
    }

    fn index_of(&self, bookie: &BookieId) -> usize {
        bookie.as_str()[1..].parse().unwrap()
    }

    fn view(&self) -> View {
        let named = |is: &dyn Fn(&Bookie) -> bool| {
            let found = self.bookies.iter().enumerate().filter(|(_, bookie)| is(bookie));
            found.map(|(index, _)| bookie_id(index)).collect()
        };
        View {
            live: named(&|bookie| bookie.is_registered),
            draining: named(&|bookie| bookie.is_draining),
            is_disabled: self.is_disabled,
        }
    }

    /// Whether a bookie takes copies.
    fn takes_writes(&self, index: usize) -> bool {
        let bookie = &self.bookies[index];
        bookie.is_up && bookie.is_registered && !bookie.is_draining
    }

    /// Entries that belong to a position of a segment, and its last one is known: by arithmetic of this model alone.
    fn entries_of(metadata: &LedgerMetadata, first: EntryId, position: usize) -> Vec<i64> {
        let segments = metadata.segments();
        let at = segments.iter().position(|segment| segment.first_entry == first).unwrap();
        let end = match (segments.get(at + 1), metadata.state) {
            (Some(next), _) => next.first_entry.get(),
            (None, LedgerState::Closed { last_entry, .. }) => last_entry.map_or(0, |last| last.get() + 1),
            (None, _) => 0,
        };
        (first.get()..end).filter(|id| metadata.quorum.is_in_write_set(entry(*id), position)).collect()
    }

    fn has(&self, bookie: usize, ledger: usize, id: i64) -> bool {
        self.bookies[bookie].ledgers.get(&ledger).is_some_and(|held| held.entries.contains(&id))
    }

    fn put(&mut self, bookie: usize, ledger: usize, id: i64) {
        let held = self.bookies[bookie].ledgers.entry(ledger).or_default();
        if held.entries.insert(id) {
            held.changes += 1;
        }
    }

    /// Marks a ledger.
    fn mark(&mut self, ledger: usize, replicas: &[BookieId], has_time: bool) {
        let since_ms = has_time.then(|| self.now_ms());
        let mark =
            self.ledgers[ledger].mark.get_or_insert(Mark { replicas: Vec::new(), since_ms, version: 0 });
        mark.version += 1;
        for replica in replicas {
            if !mark.replicas.iter().any(|named| named == replica.as_str()) {
                mark.replicas.push(replica.as_str().to_owned());
            }
        }
    }

    /// IR4 of a ledger.
    fn check_copies(&self, index: usize) {
        let ledger = &self.ledgers[index];
        for id in 0..=ledger.acked {
            let mut members = ledger.metadata.write_set(entry(id));
            let has_copy = members.any(|member| {
                let member = self.index_of(member);
                !self.bookies[member].is_gone && self.has(member, index, id)
            });
            assert!(has_copy, "IR4: no member has entry {id} of ledger {index}: {:?}", ledger.metadata);
        }
    }

    /// Whether a ledger that is not closed could still be closed without what this bookie knows: else it waits for it for good.
    fn can_be_closed(&self, index: usize, lost: usize) -> bool {
        let metadata = &self.ledgers[index].metadata;
        let quorum = metadata.quorum;
        let ensemble = &metadata.segments().last().unwrap().ensemble;
        let is_silent = |at: usize| {
            let member = self.index_of(&ensemble[at]);
            member == lost || self.bookies[member].is_gone || self.is_limbo(member, index)
        };
        (0..quorum.ensemble_size()).all(|first| {
            let set = quorum.write_set(entry(first as i64));
            set.filter(|at| is_silent(*at)).count() < quorum.ack_quorum_size()
        })
    }

    fn is_limbo(&self, bookie: usize, ledger: usize) -> bool {
        self.bookies[bookie].ledgers.get(&ledger).is_some_and(|held| held.is_limbo)
    }

    /// Whether the ledgers would survive that a bookie loses all it has.
    fn survive(&self, lost: usize) -> bool {
        self.ledgers.iter().enumerate().all(|(index, ledger)| {
            let is_closed = matches!(ledger.metadata.state, LedgerState::Closed { .. });
            if !is_closed && !self.can_be_closed(index, lost) {
                return false;
            }
            (0..=ledger.acked).all(|id| {
                let members = ledger.metadata.write_set(entry(id)).map(|member| self.index_of(member));
                let mut copies = members.filter(|member| {
                    *member != lost && !self.bookies[*member].is_gone && self.has(*member, index, id)
                });
                copies.next().is_some()
            })
        })
    }

    /// A new version of the metadata of a ledger.
    fn set_metadata(&mut self, index: usize, metadata: LedgerMetadata) {
        let ledger = &mut self.ledgers[index];
        ledger.metadata = metadata;
        ledger.version += 1;
        self.check_copies(index);
    }

    fn auditor_settings() -> AuditorSettings {
        AuditorSettings { delay: DELAY, scan_interval: Duration::from_secs(600), settle: SETTLE }
    }
}
