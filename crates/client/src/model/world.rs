//! The simulated world: bookies, metadata store, network, and the parties that use them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bindery_io::{Random, SeededRandom};
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{
    BookieId, DigestType, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum,
    Segment,
};
use bindery_wire::ErrorCode;
use bytes::Bytes;

use crate::entry::EntryCodec;
use crate::error::WhyStopped;
use crate::placement::{Candidates, Placement, RandomPlacement, Wanted};
use crate::recovery::core::{Out, ReadTag, RecoveryCore};
use crate::transport::{AddTag, BookieError};
use crate::window::Send;
use crate::writer::core::{LetGo, Start, Step, WriterCore};

const BOOKIES: usize = 7;
/// What one bookie may hold up: a few entries.
const SLOW_BYTES_MAX: u64 = 6000;
const SHAPES: [(usize, usize, usize); 9] =
    [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 1), (3, 2, 2), (3, 3, 2), (4, 3, 2), (5, 3, 2), (5, 3, 3)];

#[derive(Default)]
struct Bookie {
    is_down: bool,
    /// It is there and does nothing: what it is sent waits.
    is_stopped: bool,
    is_fenced: bool,
    entries: BTreeMap<i64, Bytes>,
}

#[derive(Clone)]
enum Request {
    Add { entry: EntryId, body: Bytes, is_recovery: bool, tag: AddTag },
    Read { entry: Option<EntryId>, tag: ReadTag },
}

enum Reply {
    Add(EntryId, AddTag, Result<(), BookieError>),
    Read(ReadTag, Result<Bytes, BookieError>),
    Written(Result<Version, LedgerError>),
    Stored(Result<StoredLedger, LedgerError>),
    Marked(bool),
}

enum Core {
    Writer(Box<WriterCore>),
    Recoverer(Box<RecoveryCore>),
    /// Dead, or done.
    Gone,
}

struct Party {
    core: Core,
    /// Requests in their order, and whether somebody waits for the answer.
    requests: BTreeMap<usize, VecDeque<(Request, bool)>>,
    replies: Vec<Reply>,
    /// The step that the store is working on.
    store_request: Option<Step>,
    awaits_store: bool,
}

/// What a run, or all runs, came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    pub confirmed: u64,
    pub ensemble_changes: u64,
    pub segments_by_recovery: u64,
    pub closed_by_writer: u64,
    pub fenced: u64,
    pub recoveries: u64,
    pub failed_recoveries: u64,
    pub recovered_behind_lac: u64,
    pub lost_store_answers: u64,
    pub holds: u64,
    pub rejoins: u64,
    pub closed_with_gaps: u64,
}

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.confirmed += other.confirmed;
        self.ensemble_changes += other.ensemble_changes;
        self.segments_by_recovery += other.segments_by_recovery;
        self.closed_by_writer += other.closed_by_writer;
        self.fenced += other.fenced;
        self.recoveries += other.recoveries;
        self.failed_recoveries += other.failed_recoveries;
        self.recovered_behind_lac += other.recovered_behind_lac;
        self.lost_store_answers += other.lost_store_answers;
        self.holds += other.holds;
        self.rejoins += other.rejoins;
        self.closed_with_gaps += other.closed_with_gaps;
    }
}

pub(super) struct World {
    random: SeededRandom,
    ledger: LedgerId,
    codec: EntryCodec,
    quorum: Quorum,
    ids: Vec<BookieId>,
    bookies: Vec<Bookie>,
    metadata: LedgerMetadata,
    version: i32,
    parties: Vec<Party>,
    payloads: Vec<Vec<u8>>,
    /// Confirmed to the writer, -1 for none.
    confirmed: i64,
    ends: BTreeSet<(i64, u64)>,
    /// How many of the bookies exist: with as many as the ensemble has there is no spare.
    bookies_count: usize,
    /// Bookies on which the ledger is marked as under-replicated.
    marks: BTreeSet<BookieId>,
    /// Those that the writer held at some time, and holds.
    was_held: BTreeSet<BookieId>,
    held: BTreeSet<BookieId>,
    /// Probability of faults.
    trouble: f64,
    summary: Summary,
}

impl World {
    pub fn new(seed: u64) -> World {
        let random = SeededRandom::new(seed);
        let (e, qw, qa) = SHAPES[random.below(SHAPES.len() as u64) as usize];
        let quorum = Quorum::new(e, qw, qa).unwrap();
        let ids: Vec<BookieId> = (0..BOOKIES).map(|n| BookieId::new(format!("b{n}")).unwrap()).collect();
        let ledger = LedgerId::new(1).unwrap();
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
        let codec = EntryCodec::new(ledger, Digester::new(secret.digest_type, &secret.password));
        let mut metadata = LedgerMetadata::new(quorum, secret);
        let ensemble = ids[..e].to_vec();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        let writer = WriterCore::new(Start {
            ledger,
            codec: codec.clone(),
            metadata: metadata.clone(),
            version: Version(0),
            confirmed: None,
            length_bytes: 0,
            token: None,
        });
        let bookies_count = if random.chance(0.4) { e } else { BOOKIES };
        let trouble = [0.0, 0.01, 0.03, 0.1][random.below(4) as usize];
        World {
            random,
            ledger,
            codec,
            quorum,
            ids,
            bookies: (0..BOOKIES).map(|_| Bookie::default()).collect(),
            metadata,
            version: 0,
            parties: vec![Party::new(Core::Writer(Box::new(writer)))],
            payloads: Vec::new(),
            confirmed: -1,
            ends: BTreeSet::new(),
            bookies_count,
            marks: BTreeSet::new(),
            was_held: BTreeSet::new(),
            held: BTreeSet::new(),
            trouble,
            summary: Summary::default(),
        }
    }

    pub fn steps(&self) -> u64 {
        200 + self.random.below(1200)
    }

    /// One event.
    pub fn step(&mut self) {
        match self.random.below(1000) {
            0..100 => self.append(),
            100..104 => self.start_recovery(),
            104..107 => self.close_writer(),
            // What it let go of is to be marked then.
            142..160 if !self.was_held.is_empty() => self.close_writer(),
            107..109 if self.random.chance(0.2) => self.kill_party(),
            109..129 if self.random.chance(self.trouble) => self.turn_bookie(),
            129..132 => self.stop_bookie(),
            132..142 => self.retry(),
            _ => self.deliver(),
        }
    }

    fn append(&mut self) {
        let is_burst = self.random.chance(0.2);
        for _ in 0..if is_burst { 8 } else { 1 } {
            let Core::Writer(writer) = &mut self.parties[0].core else { return };
            let payload: Vec<u8> = vec![self.payloads.len() as u8; self.random.below(40) as usize];
            let mut sends = Vec::new();
            if let Ok(entry) = writer.append(&payload, None, &mut sends) {
                assert_eq!(entry.get() as usize, self.payloads.len());
                self.payloads.push(payload);
            }
            self.send(0, sends, false);
            self.report_slow();
            self.follow(0);
        }
    }

    fn start_recovery(&mut self) {
        if self.parties.iter().filter(|party| matches!(party.core, Core::Recoverer(_))).count() >= 3 {
            return;
        }
        let stored = self.stored();
        let mut out = Out::default();
        let core = RecoveryCore::new(self.ledger, self.codec.clone(), stored, &mut out);
        self.parties.push(Party::new(Core::Recoverer(Box::new(core))));
        let index = self.parties.len() - 1;
        self.perform(index, out);
        self.follow(index);
    }

    fn close_writer(&mut self) {
        let Core::Writer(writer) = &mut self.parties[0].core else { return };
        if writer.stopped().is_none() && !writer.has_unconfirmed() && writer.next_step().is_none() {
            writer.begin_close();
            self.follow(0);
        }
    }

    fn kill_party(&mut self) {
        let index = self.random.below(self.parties.len() as u64) as usize;
        self.parties[index].kill();
    }

    fn turn_bookie(&mut self) {
        let index = self.random.below(BOOKIES as u64) as usize;
        let is_down = !self.bookies[index].is_down;
        self.bookies[index].is_down = is_down;
    }

    /// Stops a bookie, or lets a stopped one go on. One at most stands still, as Qw - Qa may be 1.
    fn stop_bookie(&mut self) {
        match self.bookies.iter_mut().find(|bookie| bookie.is_stopped) {
            Some(stopped) => stopped.is_stopped = false,
            None => {
                let index = self.random.below(BOOKIES as u64) as usize;
                self.bookies[index].is_stopped = self.random.chance(0.5);
            }
        }
    }

    /// The pause is over after which a writer looks for replacements again.
    fn retry(&mut self) {
        let Party { core: Core::Writer(writer), awaits_store: false, .. } = &mut self.parties[0] else {
            return;
        };
        writer.retry();
        self.follow(0);
    }

    /// What the writer's shell does after each event: slow bookies are reported, and what they need not get any more is
    /// withdrawn, as far as it has not left.
    fn report_slow(&mut self) {
        let Core::Writer(writer) = &mut self.parties[0].core else { return };
        let mut behind = Vec::new();
        let bytes = writer.held_back(&mut behind);
        for position in behind {
            if bytes > SLOW_BYTES_MAX {
                writer.on_slow(position, bytes);
            }
        }
        let withdrawn = writer.take_withdrawn();
        let now: BTreeSet<BookieId> = writer.held().into_iter().collect();
        self.summary.holds += now.difference(&self.held).count() as u64;
        self.summary.rejoins +=
            self.held.difference(&now).filter(|bookie| writer.ensemble().contains(bookie)).count() as u64;
        self.was_held.extend(now.iter().cloned());
        self.held = now;
        for bookie in withdrawn {
            let bookie = self.ids.iter().position(|id| *id == bookie).unwrap();
            let Some(queue) = self.parties[0].requests.get_mut(&bookie) else { continue };
            let left = self.random.below(queue.len() as u64 + 1) as usize;
            queue.truncate(left);
            if queue.is_empty() {
                self.parties[0].requests.remove(&bookie);
            }
        }
        let Core::Writer(writer) = &mut self.parties[0].core else { return };
        writer.release(&mut LetGo::default());
    }

    /// Lets something that is under way arrive.
    fn deliver(&mut self) {
        let party = self.random.below(self.parties.len() as u64) as usize;
        match self.random.below(5) {
            0 | 1 => {
                let queues: Vec<usize> = self.parties[party].requests.keys().copied().collect();
                if !queues.is_empty() {
                    let bookie = queues[self.random.below(queues.len() as u64) as usize];
                    self.serve(party, bookie);
                }
            }
            2 | 3 => {
                let replies = self.parties[party].replies.len();
                if replies > 0 {
                    let at = self.random.below(replies as u64) as usize;
                    let reply = self.parties[party].replies.swap_remove(at);
                    self.hear(party, reply);
                }
            }
            _ => self.serve_store(party),
        }
    }

    /// The bookie does the oldest request of a party, or does not.
    fn serve(&mut self, party: usize, bookie: usize) {
        let fate = if self.random.chance(self.trouble) { self.random.below(4) } else { 9 };
        if self.bookies[bookie].is_stopped && fate != 0 {
            return;
        }
        let queue = self.parties[party].requests.get_mut(&bookie).expect("it was just listed");
        if fate == 0 {
            // Given up by the client; the bookie may still do it.
            let (request, is_awaited) = queue.front_mut().expect("queues are not empty");
            if std::mem::take(is_awaited) {
                let reply = request.failed(BookieError::TimedOut(std::time::Duration::ZERO));
                self.parties[party].replies.push(reply);
            }
            return;
        }
        let (request, is_awaited) = queue.pop_front().expect("queues are not empty");
        if queue.is_empty() {
            self.parties[party].requests.remove(&bookie);
        }
        let reply = if self.bookies[bookie].is_down {
            request.failed(if fate == 1 {
                BookieError::Lost
            } else {
                BookieError::Unreachable("down".into())
            })
        } else if fate == 1 {
            request.failed(BookieError::Lost)
        } else if fate == 2 {
            request.failed(BookieError::Refused(ErrorCode::Io))
        } else {
            let reply = self.bookies[bookie].serve(&request);
            match (fate, reply) {
                // Done, and the answer is lost or damaged.
                (3, Reply::Read(tag, Ok(body))) => {
                    let mut damaged = body.to_vec();
                    let at = self.random.below(damaged.len() as u64) as usize;
                    damaged[at] ^= 1;
                    Reply::Read(tag, Ok(damaged.into()))
                }
                (3, _) => request.failed(BookieError::Lost),
                (_, reply) => reply,
            }
        };
        if is_awaited {
            self.parties[party].replies.push(reply);
        }
    }

    fn stored(&self) -> StoredLedger {
        StoredLedger { metadata: self.metadata.clone(), version: Version(self.version), created_ms: 0 }
    }

    fn serve_store(&mut self, party: usize) {
        let Some(step) = self.parties[party].store_request.take() else { return };
        let fate = if self.random.chance(self.trouble * 3.0) { self.random.below(3) } else { 9 };
        let lost = || LedgerError::Store(StoreError::ConnectionLoss);
        let reply = match step {
            Step::Place { .. } => unreachable!("placing is not the store's"),
            Step::Mark { .. } if fate == 0 => Reply::Marked(false),
            Step::Mark { replicas } => {
                self.marks.extend(replicas);
                // Done, and the answer is lost.
                Reply::Marked(fate != 1)
            }
            Step::Read if fate == 0 => Reply::Stored(Err(lost())),
            Step::Read => Reply::Stored(Ok(self.stored())),
            Step::Write { .. } if fate == 0 => {
                self.summary.lost_store_answers += 1;
                Reply::Written(Err(lost()))
            }
            Step::Write { metadata, expected } => {
                if expected == Version(self.version) {
                    self.change_metadata(party, *metadata);
                    if fate == 1 {
                        self.summary.lost_store_answers += 1;
                        Reply::Written(Err(lost()))
                    } else {
                        Reply::Written(Ok(Version(self.version)))
                    }
                } else {
                    Reply::Written(Err(LedgerError::Changed(self.ledger)))
                }
            }
        };
        self.parties[party].replies.push(reply);
    }

    fn change_metadata(&mut self, party: usize, new: LedgerMetadata) {
        let is_writer = party == 0;
        match (self.metadata.state, new.state) {
            (LedgerState::Open, LedgerState::Open) => self.summary.ensemble_changes += 1,
            (LedgerState::Open, LedgerState::InRecovery) => {
                assert!(!is_writer, "IC13");
                assert_eq!(new.segments(), self.metadata.segments(), "IC12");
            }
            (
                LedgerState::Open | LedgerState::InRecovery,
                LedgerState::Closed { last_entry, length_bytes },
            ) => {
                if is_writer {
                    self.summary.closed_by_writer += 1;
                    assert_eq!(new.segments(), self.metadata.segments());
                    self.check_marks(&new, last_entry);
                } else {
                    let grown = new.segments().len() - self.metadata.segments().len();
                    let is_replaced =
                        new.segments()[..self.metadata.segments().len()] != *self.metadata.segments();
                    self.summary.segments_by_recovery += (grown > 0 || is_replaced) as u64;
                    self.summary.recovered_behind_lac +=
                        (EntryId::to_wire(last_entry) > self.confirmed) as u64;
                }
                self.check_closed(&new, last_entry, length_bytes);
            }
            (before, after) => panic!("IC13: from {before:?} to {after:?} by party {party}"),
        }
        self.metadata = new;
        self.version += 1;
    }

    fn check_closed(&mut self, metadata: &LedgerMetadata, last_entry: Option<EntryId>, length_bytes: u64) {
        let last = EntryId::to_wire(last_entry);
        assert!(last >= self.confirmed, "IC7: closed at {last}, confirmed {}", self.confirmed);
        let mut length = 0;
        for id in 0..=last {
            let entry = EntryId::new(id).unwrap();
            length += self.payloads[id as usize].len() as u64;
            let copies = self.copies(metadata, entry);
            assert!(copies >= self.quorum.ack_quorum_size(), "IC10, IC15: entry {id} has {copies} copies");
        }
        assert_eq!(length_bytes, length, "the length of the ledger");
    }

    /// Every entry that a bookie lacks because the writer held it is named by a mark when the writer closes.
    fn check_marks(&mut self, metadata: &LedgerMetadata, last_entry: Option<EntryId>) {
        let mut has_gaps = false;
        for id in 0..=EntryId::to_wire(last_entry) {
            let entry = EntryId::new(id).unwrap();
            for bookie in metadata.write_set(entry).filter(|bookie| self.was_held.contains(*bookie)) {
                let index = self.ids.iter().position(|id| id == bookie).unwrap();
                if !self.bookies[index].entries.contains_key(&id) {
                    has_gaps = true;
                    assert!(self.marks.contains(bookie), "{bookie} lacks entry {id}, and no mark says so");
                }
            }
        }
        self.summary.closed_with_gaps += has_gaps as u64;
    }

    /// How many bookies of an entry's write set have it, with the writer's bytes.
    fn copies(&self, metadata: &LedgerMetadata, entry: EntryId) -> usize {
        metadata
            .write_set(entry)
            .filter(|bookie| {
                let index = self.ids.iter().position(|id| id == *bookie).unwrap();
                self.bookies[index].entries.get(&entry.get()).is_some_and(|stored| {
                    let found = self.codec.open(Some(entry), stored).expect("stored entries are sound");
                    assert_eq!(found.payload, self.payloads[entry.get() as usize], "the writer's bytes");
                    assert!(found.last_add_confirmed < Some(entry));
                    true
                })
            })
            .count()
    }

    /// A party hears an answer.
    fn hear(&mut self, index: usize, reply: Reply) {
        let party = &mut self.parties[index];
        if matches!(reply, Reply::Written(_) | Reply::Stored(_) | Reply::Marked(_)) {
            party.awaits_store = false;
        }
        match &mut party.core {
            Core::Writer(writer) => {
                let mut sends = Vec::new();
                match reply {
                    Reply::Add(entry, tag, result) => writer.on_answer(entry, tag, &result),
                    Reply::Read(..) => unreachable!("writers do not read"),
                    Reply::Written(outcome) => writer.written(outcome, &mut sends),
                    Reply::Stored(Ok(stored)) => writer.read(stored, &mut sends),
                    Reply::Marked(true) => writer.marked(&mut sends),
                    Reply::Stored(Err(_)) | Reply::Marked(false) => {
                        writer.put_off();
                    }
                }
                writer.settle();
                self.send(index, sends, false);
                self.report_slow();
            }
            Core::Recoverer(core) => {
                let mut out = Out::default();
                match reply {
                    Reply::Add(entry, tag, result) => {
                        core.on_answer(entry, tag, &result);
                        core.settle(&mut out);
                    }
                    Reply::Read(tag, result) => core.on_read(tag, result, &mut out),
                    Reply::Written(outcome) => core.written(outcome, &mut out),
                    Reply::Stored(Ok(stored)) => core.read(stored, &mut out),
                    Reply::Stored(Err(_)) => {}
                    Reply::Marked(_) => unreachable!("recoveries do not mark"),
                }
                self.perform(index, out);
            }
            Core::Gone => {}
        }
        self.follow(index);
    }

    fn send(&mut self, party: usize, sends: Vec<Send>, is_recovery: bool) {
        for Send { position, entry, body, tag } in sends {
            let ensemble = match &self.parties[party].core {
                Core::Writer(core) => core.ensemble(),
                Core::Recoverer(core) => core.ensemble(),
                Core::Gone => return,
            };
            let bookie = self.ids.iter().position(|id| *id == ensemble[position]).unwrap();
            let request = Request::Add { entry, body, is_recovery, tag };
            self.parties[party].requests.entry(bookie).or_default().push_back((request, true));
        }
    }

    fn perform(&mut self, party: usize, out: Out) {
        for read in out.reads {
            let bookie = self.ids.iter().position(|id| *id == read.bookie).unwrap();
            let request = Request::Read { entry: read.entry, tag: read.tag };
            self.parties[party].requests.entry(bookie).or_default().push_back((request, true));
        }
        self.send(party, out.sends, true);
    }

    /// Takes the step a party wants, and notes how it ended.
    fn follow(&mut self, index: usize) {
        let candidates = Candidates {
            // A bookie that is down may still be registered.
            writable: (0..self.bookies_count)
                .filter(|&bookie| !self.bookies[bookie].is_down || self.random.chance(0.3))
                .map(|bookie| self.ids[bookie].clone())
                .collect(),
            ..Candidates::default()
        };
        let is_alive = |bookie: &BookieId| {
            let bookie = &self.bookies[self.ids.iter().position(|id| id == bookie).unwrap()];
            !bookie.is_down && !bookie.is_stopped
        };
        let placement = RandomPlacement(SeededRandom::new(self.random.next_u64()));
        let party = &mut self.parties[index];
        let mut out = Out::default();
        loop {
            let step = match &party.core {
                Core::Writer(core) => core.next_step(),
                Core::Recoverer(core) => core.next_step(),
                Core::Gone => None,
            };
            match step {
                Some(Step::Place { positions, ensemble, avoided, asked }) => {
                    let candidates = Candidates { avoided, ..candidates.clone() };
                    let wanted = Wanted { quorum: self.quorum, ensemble: &ensemble, positions: &positions };
                    let chosen = placement.choose(&candidates, wanted).bookies;
                    match &mut party.core {
                        Core::Writer(core) => {
                            let alive: Vec<BookieId> = match chosen.len() < positions.len() {
                                true => asked.into_iter().filter(is_alive).collect(),
                                false => Vec::new(),
                            };
                            core.placed(&chosen, 0, &alive);
                        }
                        Core::Recoverer(core) => core.placed(&chosen, 0, &mut out),
                        Core::Gone => unreachable!("it has no step"),
                    }
                }
                Some(step) if !party.awaits_store => {
                    party.store_request = Some(step);
                    party.awaits_store = true;
                    break;
                }
                Some(_) | None => break,
            }
        }
        self.perform(index, out);
        let party = &mut self.parties[index];
        match &party.core {
            Core::Recoverer(core) => match core.result().cloned() {
                Some(Ok(recovered)) => {
                    let LedgerState::Closed { last_entry, length_bytes } = recovered.metadata.state else {
                        panic!("a recovered ledger is closed")
                    };
                    self.summary.recoveries += 1;
                    self.ends.insert((EntryId::to_wire(last_entry), length_bytes));
                    assert_eq!(self.ends.len(), 1, "IC8: {:?}", self.ends);
                    party.kill();
                }
                Some(Err(_)) => {
                    self.summary.failed_recoveries += 1;
                    party.kill();
                }
                None => {}
            },
            Core::Writer(core) => {
                if let Some(stopped) = core.stopped() {
                    if stopped.why == WhyStopped::Closing {
                        self.ends.insert((EntryId::to_wire(core.confirmed()), core.confirmed_length_bytes()));
                        assert_eq!(self.ends.len(), 1, "IC8: {:?}", self.ends);
                    }
                    self.summary.fenced += (stopped.why == WhyStopped::Fenced) as u64;
                    self.note_confirmed();
                    self.parties[0].kill();
                }
            }
            Core::Gone => {}
        }
    }

    fn note_confirmed(&mut self) {
        let Core::Writer(writer) = &self.parties[0].core else { return };
        let confirmed = EntryId::to_wire(writer.confirmed());
        assert!(confirmed >= self.confirmed, "IC3: the LAC goes back");
        for id in self.confirmed + 1..=confirmed {
            let copies = self.copies(&self.metadata, EntryId::new(id).unwrap());
            assert!(
                copies >= self.quorum.ack_quorum_size(),
                "IC1: entry {id} confirmed with {copies} copies"
            );
        }
        if let LedgerState::Closed { last_entry, .. } = self.metadata.state {
            assert!(confirmed <= EntryId::to_wire(last_entry), "IC7: {confirmed} confirmed behind the end");
        }
        self.summary.confirmed += (confirmed - self.confirmed) as u64;
        self.confirmed = confirmed;
    }

    /// What must hold after every event.
    pub fn check(&mut self) {
        self.note_confirmed();
    }

    /// Ends all faults and lets a recovery finish.
    pub fn heal(&mut self) {
        self.trouble = 0.0;
        for bookie in &mut self.bookies {
            bookie.is_down = false;
            bookie.is_stopped = false;
        }
        for _ in 0..20 {
            self.start_recovery();
            for _ in 0..20_000 {
                self.deliver();
                self.check();
                let is_recovering = self.parties.iter().any(|party| matches!(party.core, Core::Recoverer(_)));
                if !is_recovering && matches!(self.metadata.state, LedgerState::Closed { .. }) {
                    return;
                }
            }
        }
        panic!("IC20: no recovery succeeds although nothing fails");
    }

    pub fn check_end(self) -> Summary {
        let LedgerState::Closed { last_entry, length_bytes } = self.metadata.state else {
            panic!("closed when healed")
        };
        assert!(EntryId::to_wire(last_entry) >= self.confirmed, "IC7");
        assert!(self.ends.iter().all(|end| *end == (EntryId::to_wire(last_entry), length_bytes)), "IC8");
        for id in 0..=self.confirmed {
            let copies = self.copies(&self.metadata, EntryId::new(id).unwrap());
            assert!(copies >= self.quorum.ack_quorum_size(), "IC10: entry {id} has {copies} copies");
        }
        self.summary
    }
}

impl Party {
    fn new(core: Core) -> Party {
        Party {
            core,
            requests: BTreeMap::new(),
            replies: Vec::new(),
            store_request: None,
            awaits_store: false,
        }
    }

    /// It hears nothing more; what it sent still arrives.
    fn kill(&mut self) {
        self.core = Core::Gone;
    }
}

impl Request {
    fn failed(&self, error: BookieError) -> Reply {
        match self {
            Request::Add { entry, tag, .. } => Reply::Add(*entry, *tag, Err(error)),
            Request::Read { tag, .. } => Reply::Read(*tag, Err(error)),
        }
    }
}

impl Bookie {
    fn serve(&mut self, request: &Request) -> Reply {
        match request {
            Request::Add { entry, tag, is_recovery: false, .. } if self.is_fenced => {
                Reply::Add(*entry, *tag, Err(BookieError::Refused(ErrorCode::Fenced)))
            }
            Request::Add { entry, body, tag, .. } => {
                if let Some(before) = self.entries.insert(entry.get(), body.clone()) {
                    assert_eq!(before, *body, "an entry has one content");
                }
                Reply::Add(*entry, *tag, Ok(()))
            }
            Request::Read { entry, tag } => {
                // All reads here are a recovery's: each fences (IC5).
                self.is_fenced = true;
                let found = match entry {
                    Some(entry) => self.entries.get(&entry.get()),
                    None => self.entries.values().next_back(),
                };
                let absent = if self.entries.is_empty() { ErrorCode::NoLedger } else { ErrorCode::NoEntry };
                Reply::Read(*tag, found.cloned().ok_or(BookieError::Refused(absent)))
            }
        }
    }
}
