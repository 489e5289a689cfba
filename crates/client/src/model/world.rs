//! The simulated world: parties, bookies, network and metadata store, moved by one [`Event`] at a time.
//!
//! The next event is chosen outside: by a seed (`swarm`) or exhaustively (`explore`). The checks are in `checks`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_flow::ByteBudget;
use bindery_io::canary::Canaries;
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

use super::bookie::{Bookie, Mode, Served, Word};
use super::checks::{Ghost, Heard};
use super::event::{Event, StoreFate};
use super::network::{Link, Request, Stage};
use super::part::Part;
use super::repair::Repair;
use crate::entry::EntryCodec;
use crate::handover::{Handover, claimed, needs_marks};
use crate::placement::{Candidates, Placement, RandomPlacement, Wanted};
use crate::recovery::core::{Out, RecoveryCore};
use crate::transport::{BookieError, Connection};
use crate::window::Send;
use crate::writer::core::{Fill, LetGo, Start, Step, WriterCore, cost_bytes, frames};
use crate::writer::force::Force;

/// The version id of the first metadata: any number from which no run counts down to 0.
const NAME_OF_THE_FIRST: i64 = 1 << 40;
const NAMES_FOR_A_WRITE: i64 = 3;

/// The writer is the first party.
pub(super) const WRITER: usize = 0;

/// What does not change in a run.
#[derive(Clone)]
pub(super) struct Setup {
    pub quorum: Quorum,
    /// How many bookies exist: with as many as the ensemble has there is no spare.
    pub bookies: usize,
    pub digest: DigestType,
    /// Answers leave as soon as requests are done, and in their order.
    pub is_prompt: bool,
    /// The writer's bookies acknowledge before they sync.
    pub is_deferred: bool,
    /// Whether only what users can see is checked, not how it comes about.
    pub only_outcomes: bool,
    /// Whether the ledger goes from one writer to the next.
    pub is_handed_over: bool,
    /// Bytes that one bookie may hold up.
    pub slow_bytes_max: u64,
    /// Bytes that the writer may keep for bookies that lack them.
    pub keep_bytes_max: u64,
    pub read_ahead_entries: usize,
    pub canaries: Canaries,
    /// The budget that counts entries in flight.
    pub budget: Option<ByteBudget>,
    /// Choices that are not events: sizes, replacements. None: always the first.
    pub random: Option<Arc<SeededRandom>>,
}

#[derive(Clone, Debug)]
pub(super) enum Core {
    Writer(Box<WriterCore>),
    Recoverer(Box<RecoveryCore>),
    /// Dead, or done.
    Gone,
}

/// What a party wants of the store.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Idle,
    Asked(Step),
    Answered(StoreAnswer),
}

#[derive(Clone, Debug)]
pub(super) enum StoreAnswer {
    Written(Result<Version, LedgerError>),
    Read(Result<StoredLedger, LedgerError>),
    Marked(bool),
    Waited,
}

#[derive(Clone, Debug)]
pub(super) struct Party {
    pub core: Core,
    pub call: Call,
    /// It never reads older metadata than it has seen.
    pub seen_version: i64,
    pub heard: Heard,
}

/// See the module.
#[derive(Clone)]
pub(super) struct World {
    pub setup: Arc<Setup>,
    pub codec: EntryCodec,
    pub ids: Arc<Vec<BookieId>>,
    pub bookies: Vec<Part<Bookie>>,
    pub links: BTreeMap<(usize, usize), Part<Link>>,
    pub parties: Vec<Part<Party>>,
    /// By version.
    pub history: Vec<Part<LedgerMetadata>>,
    /// Bookies on which the ledger is marked as under-replicated.
    pub marks: BTreeSet<BookieId>,
    /// Counts the connections of the writer, by bookie.
    pub connections: Vec<u64>,
    /// The writer's forces under way, by number.
    pub forces: BTreeMap<u64, Force>,
    pub forces_begun: u64,
    /// One at a time: Java locks a ledger that it repairs.
    pub repair: Option<Repair>,
    pub ghost: Ghost,
}

/// The version of the metadata after `writes` writes. As in Oxia, version ids are neither counts nor rising, so that the checks find a party
/// that computes with them.
fn named(writes: i64) -> Version {
    Version::new(NAME_OF_THE_FIRST - NAMES_FOR_A_WRITE * writes, writes)
}

/// The inverse of [`named`].
fn writes_before(version: Version) -> i64 {
    (NAME_OF_THE_FIRST - version.id()) / NAMES_FOR_A_WRITE
}

fn ledger() -> LedgerId {
    LedgerId::new(1).expect("a valid id")
}

impl World {
    pub fn new(setup: Setup) -> World {
        let ids: Vec<BookieId> =
            (0..setup.bookies).map(|n| BookieId::new(format!("b{n}")).expect("a valid id")).collect();
        let secret = LedgerSecret { digest_type: setup.digest, password: b"p".to_vec() };
        let codec = EntryCodec::new(ledger(), Digester::new(secret.digest_type, &secret.password));
        let mut metadata = LedgerMetadata::new(setup.quorum, secret);
        let ensemble = ids[..setup.quorum.ensemble_size()].to_vec();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).expect("the first segment");
        let token = setup.is_handed_over.then_some(0);
        if let Some(token) = token {
            Handover::Busy { token }.set(&mut metadata);
        }
        let mut writer = WriterCore::new(Start {
            ledger: ledger(),
            codec: codec.clone(),
            metadata: metadata.clone(),
            version: named(0),
            confirmed: None,
            length_bytes: 0,
            token,
            is_deferred: setup.is_deferred,
        });
        writer.plant(setup.canaries);
        World {
            codec,
            bookies: vec![Bookie::default().into(); ids.len()],
            connections: vec![0; ids.len()],
            forces: BTreeMap::new(),
            forces_begun: 0,
            repair: None,
            ids: Arc::new(ids),
            links: BTreeMap::new(),
            parties: vec![Party::new(Core::Writer(Box::new(writer))).into()],
            history: vec![metadata.into()],
            marks: BTreeSet::new(),
            ghost: Ghost::default(),
            setup: Arc::new(setup),
        }
    }

    pub fn metadata(&self) -> &LedgerMetadata {
        self.history.last().expect("a ledger is created with metadata")
    }

    pub fn version(&self) -> i64 {
        self.history.len() as i64 - 1
    }

    fn link(&mut self, party: usize, bookie: usize) -> &mut Link {
        self.links.entry((party, bookie)).or_insert_with(|| Link::default().into())
    }

    pub fn index(&self, bookie: &BookieId) -> usize {
        self.ids.iter().position(|id| id == bookie).expect("bookies of this world")
    }

    pub fn writer(&self) -> Option<&WriterCore> {
        match &self.parties[WRITER].core {
            Core::Writer(core) => Some(core),
            Core::Recoverer(_) | Core::Gone => None,
        }
    }

    /// A recoverer that waits for nothing but late answers.
    pub fn lingering(&self) -> Option<usize> {
        let is_lingering =
            |party: &Part<Party>| matches!(&party.core, Core::Recoverer(core) if core.is_lingering());
        self.parties.iter().position(is_lingering)
    }

    pub fn recoverers(&self) -> usize {
        self.parties.iter().filter(|party| matches!(party.core, Core::Recoverer(_))).count()
    }

    /// A number below a bound, when choices are random; else nothing.
    pub fn draw(&self, bound: u64) -> u64 {
        self.setup.random.as_ref().map_or(0, |random| random.below(bound))
    }

    /// What can happen without any fault.
    pub fn deliveries(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (&(party, bookie), link) in &self.links {
            for is_old in [false, true] {
                if link.next_sent(is_old).is_some() && self.bookies[bookie].mode != Mode::Stopped {
                    events.push(Event::Serve { party, bookie, is_old, refusal: None });
                }
            }
            let in_order = if self.setup.is_prompt { 1 } else { usize::MAX };
            events.extend(link.answered().take(in_order).map(|flight| Event::Hear {
                party,
                bookie,
                flight,
                is_damaged: false,
            }));
        }
        let unsynced = self.bookies.iter().enumerate().filter(|(_, bookie)| bookie.has_unsynced());
        let syncing =
            unsynced.filter(|(index, bookie)| bookie.mode == Mode::Up && self.has_reason_to_sync(*index));
        events.extend(syncing.map(|(index, _)| Event::Sync(index)));
        for (party, state) in self.parties.iter().enumerate() {
            match state.call {
                Call::Idle => {}
                Call::Asked(_) => events.push(Event::AskStore { party, fate: StoreFate::Done }),
                Call::Answered(_) => events.push(Event::HearStore { party, gives_up: false }),
            }
        }
        events
    }

    /// With deferred sync, adds that no caller waits for stay in memory, so that a crash has something to take.
    fn has_reason_to_sync(&self, bookie: usize) -> bool {
        let is_waiting =
            |link: &Part<Link>| link.flights.iter().any(|flight| matches!(flight.stage, Stage::Done(_)));
        !self.setup.is_deferred || self.links.iter().any(|((_, to), link)| *to == bookie && is_waiting(link))
    }

    pub fn apply(&mut self, event: &Event) {
        match *event {
            Event::Append => self.append(),
            Event::StartRecovery => self.start_recovery(),
            Event::BeginClose => self.begin_end(WriterCore::begin_close),
            Event::HandOver if self.setup.is_handed_over => self.begin_end(WriterCore::begin_hand_over),
            Event::HandOver => {}
            Event::TakeOver => self.take_over(),
            Event::Tick => {
                if let Core::Writer(writer) = &mut self.parties[WRITER].core {
                    writer.tick(true);
                    self.settle_writer();
                    self.follow(WRITER);
                }
            }
            Event::LosePatience(party) => {
                let mut out = Out::default();
                if let Core::Recoverer(core) = &mut self.parties[party].core {
                    core.lose_patience(&mut out);
                    self.perform(party, out);
                    self.follow(party);
                }
            }
            Event::Kill(party) => self.kill(party),
            Event::Retry => {
                if let Party { core: Core::Writer(writer), call: Call::Idle, .. } = &mut *self.parties[WRITER]
                {
                    writer.retry();
                    self.follow(WRITER);
                }
            }
            Event::ReportSlow => self.report_slow(),
            Event::Announce => self.announce(),
            Event::Force => self.force(),
            Event::Repair => self.step_repair(),
            Event::Serve { party, bookie, is_old, refusal } => self.serve(party, bookie, is_old, refusal),
            Event::Sync(bookie) => self.sync(bookie),
            Event::Hear { party, bookie, flight, is_damaged } => {
                let link = self.links.get_mut(&(party, bookie)).expect("a link with flights");
                let flight = link.flights.remove(flight).expect("a flight of the link");
                let Stage::Answered(mut result) = flight.stage else { panic!("it is not answered") };
                if let Ok(body) = &mut result
                    && is_damaged
                    && !body.is_empty()
                {
                    let mut damaged = body.to_vec();
                    let at =
                        self.setup.random.as_ref().map_or(0, |random| random.below(damaged.len() as u64));
                    damaged[at as usize] ^= 1;
                    *body = damaged.into();
                }
                if flight.is_awaited {
                    self.hear(party, bookie, flight.request, result);
                }
            }
            Event::TimeOut { party, bookie, flight } => {
                let link = self.links.get_mut(&(party, bookie)).expect("a link with flights");
                link.flights[flight].is_awaited = false;
                let request = link.flights[flight].request.clone();
                self.hear(party, bookie, request, Err(BookieError::TimedOut(Duration::ZERO)));
            }
            Event::Break { party, bookie } => {
                if let Some(link) = self.links.get_mut(&(party, bookie)) {
                    link.break_off();
                }
                self.connections[bookie] += u64::from(party == WRITER && self.setup.is_deferred);
            }
            Event::LoseDisks(bookie) => {
                let is_named = self.history.iter().any(|known| {
                    known.segments().iter().any(|segment| segment.ensemble.contains(&self.ids[bookie]))
                });
                let lost = self.bookies[bookie].lose_disks(is_named);
                self.ghost.lost.extend(lost.entries.into_keys().map(|entry| (bookie, entry)));
                self.ghost.summary.lost_disks += 1;
                self.apply(&Event::Crash(bookie));
            }
            Event::Crash(bookie) => {
                self.bookies[bookie].crash();
                self.connections[bookie] += u64::from(self.setup.is_deferred);
                self.bookies[bookie].mode = Mode::Down;
                self.links.iter_mut().filter(|((_, to), _)| *to == bookie).for_each(|(_, link)| link.crash());
            }
            Event::Turn(bookie, mode) => self.bookies[bookie].mode = mode,
            Event::TurnReadOnly(bookie, is_read_only) => self.bookies[bookie].is_read_only = is_read_only,
            Event::AskStore { party, fate } => self.ask_store(party, fate),
            Event::HearStore { party, gives_up } => self.hear_store(party, gives_up),
        }
        self.links.retain(|_, link| !link.flights.is_empty());
        self.note_confirmed();
    }

    fn append(&mut self) {
        let size = self.draw(40);
        let Core::Writer(writer) = &mut self.parties[WRITER].core else { return };
        let payload: Vec<u8> = match self.setup.random {
            Some(_) => vec![self.ghost.payloads.len() as u8; size as usize],
            None => vec![self.ghost.payloads.len() as u8],
        };
        let frames = frames(self.setup.quorum.write_quorum_size(), self.setup.is_deferred);
        let cost_bytes = cost_bytes(&self.codec, frames, payload.len());
        let permit = match &self.setup.budget {
            Some(budget) => match budget.try_acquire(cost_bytes) {
                Some(permit) => Some(permit),
                // The application waits (IC17).
                None => return,
            },
            None => None,
        };
        let mut sends = Vec::new();
        if let Ok(entry) = writer.append(&payload, permit, &mut sends) {
            assert_eq!(entry.get() as usize, self.ghost.payloads.len(), "ids follow one another");
            self.ghost.payloads.push(payload);
        }
        self.send(WRITER, sends);
        self.settle_writer();
        self.follow(WRITER);
    }

    fn start_recovery(&mut self) {
        let stored = self.stored(self.version());
        let mut out = Out::default();
        let Setup { read_ahead_entries, canaries, .. } = *self.setup;
        let codec = self.codec.clone();
        let core = RecoveryCore::planted(ledger(), codec, stored, read_ahead_entries, canaries, &mut out);
        let mut party = Party::new(Core::Recoverer(Box::new(core)));
        party.seen_version = self.version();
        self.parties.push(party.into());
        let index = self.parties.len() - 1;
        self.perform(index, out);
        self.follow(index);
    }

    fn begin_end(&mut self, begin: fn(&mut WriterCore)) {
        let Core::Writer(writer) = &mut self.parties[WRITER].core else { return };
        if writer.stopped().is_none() && !writer.has_unconfirmed() && writer.next_step().is_none() {
            begin(writer);
            self.settle_writer();
            self.follow(WRITER);
        }
    }

    /// The next writer takes a ledger that was left, as [`Client::open_for_append`](crate::Client::open_for_append) does.
    fn take_over(&mut self) {
        let metadata = self.metadata();
        let Some(Ok(Handover::Idle { next, length_bytes, .. })) = Handover::of(metadata) else { return };
        let is_free = matches!(self.parties[WRITER].core, Core::Gone)
            && matches!(self.parties[WRITER].call, Call::Idle)
            && metadata.state == LedgerState::Open;
        if !is_free {
            return;
        }
        let token = self.history.len() as u64;
        // Repair may have removed the mark.
        let is_marked = self.draw(2) == 0;
        let is_asked = needs_marks(metadata, next);
        let marks = self.marks.iter().filter(|_| is_marked && is_asked);
        let marked: Vec<String> = marks.map(ToString::to_string).collect();
        let metadata = claimed(metadata, token, next, &marked);
        self.check_claim(&metadata, next);
        self.history.push(metadata.clone().into());
        let mut writer = WriterCore::new(Start {
            ledger: ledger(),
            codec: self.codec.clone(),
            metadata,
            version: named(self.version()),
            confirmed: EntryId::new(next.get() - 1),
            length_bytes,
            token: Some(token),
            is_deferred: false,
        });
        writer.plant(self.setup.canaries);
        let mut party = Party::new(Core::Writer(Box::new(writer)));
        party.seen_version = self.version();
        self.parties[WRITER] = party.into();
        self.ghost.note_taken_over();
    }

    /// It hears nothing more; what it sent still arrives.
    fn kill(&mut self, party: usize) {
        self.parties[party].core = Core::Gone;
        self.parties[party].call = match std::mem::replace(&mut self.parties[party].call, Call::Idle) {
            Call::Asked(step) => Call::Asked(step),
            Call::Idle | Call::Answered(_) => Call::Idle,
        };
        self.links.iter_mut().filter(|((from, _), _)| *from == party).for_each(|(_, link)| link.abandon());
    }

    fn announce(&mut self) {
        let Core::Writer(writer) = &mut self.parties[WRITER].core else { return };
        let Some((lac, body, bookies)) = writer.announce() else { return };
        assert!(lac.get() <= self.ghost.confirmed, "IC3: the LAC {lac} is announced and not confirmed");
        for bookie in bookies {
            let bookie = self.index(&bookie);
            let request = Request::WriteLac { lac, body: body.clone() };
            self.link(WRITER, bookie).send(request);
        }
    }

    fn force(&mut self) {
        let Some(Ok(force)) = self.writer().map(WriterCore::begin_force) else { return };
        let number = self.forces_begun;
        self.forces_begun += 1;
        let members: Vec<usize> = force.members().map(|(_, bookie)| self.index(bookie)).collect();
        self.forces.insert(number, force);
        for bookie in members {
            self.link(WRITER, bookie).send(Request::Force { number });
        }
    }

    fn hear_force(&mut self, bookie: usize, number: u64, result: Result<Connection, BookieError>) {
        // It ended by an earlier answer.
        let Some(mut force) = self.forces.remove(&number) else { return };
        let Core::Writer(writer) = &mut self.parties[WRITER].core else { return };
        let position = force.members().position(|(_, id)| *id == self.ids[bookie]);
        let goes_on = writer.on_force_answer(&mut force, position.expect("a member was asked"), result);
        if goes_on && force.outcome().is_err() {
            self.forces.insert(number, force);
            return;
        }
        let before = writer.confirmed();
        let outcome = writer.end_force(&force);
        let summary = &mut self.ghost.summary;
        summary.forced += u64::from(writer.confirmed() > before);
        summary.failed_forces += u64::from(outcome.is_err());
        summary.reconnected += u64::from(force.is_hopeless());
        self.settle_writer();
    }

    fn serve(&mut self, party: usize, bookie: usize, is_old: bool, refusal: Option<ErrorCode>) {
        let metadata = self.metadata();
        let is_last =
            metadata.segments().last().is_some_and(|last| last.ensemble.contains(&self.ids[bookie]));
        let word = match metadata.state {
            LedgerState::Open if is_last => Word::OpenHere,
            LedgerState::Open => Word::OpenElsewhere,
            LedgerState::InRecovery | LedgerState::Closed { .. } => Word::Ended,
        };
        let link = self.links.get_mut(&(party, bookie)).expect("a link with flights");
        let index = link.next_sent(is_old).expect("a request to serve");
        let flight = &mut link.flights[index];
        let Served { result, waits } = match (self.bookies[bookie].mode, refusal) {
            (Mode::Down, _) => Served { result: Err(BookieError::Unreachable("down".into())), waits: false },
            (_, Some(code)) => Served { result: Err(BookieError::Refused(code)), waits: false },
            (_, None) => self.bookies[bookie].serve(&flight.request, self.setup.is_deferred, word),
        };
        if let (Request::Add { entry, .. }, Ok(_), false) = (&flight.request, &result, waits) {
            // Acknowledged before it is durable: the copies show whether the entry survives.
            self.ghost.acked.insert((bookie, entry.get()));
        }
        flight.stage = if waits { Stage::Done(result) } else { Stage::Answered(result) };
        if waits && self.setup.is_prompt {
            self.sync(bookie);
        }
        if let Some(link) = self.links.get_mut(&(party, bookie)) {
            link.tidy();
        }
    }

    pub fn sync(&mut self, bookie: usize) {
        self.bookies[bookie].sync();
        let is_waiting =
            |link: &Link| link.flights.iter().any(|flight| matches!(flight.stage, Stage::Done(_)));
        let links = self.links.iter_mut().filter(|((_, to), link)| *to == bookie && is_waiting(link));
        for (_, link) in links {
            for flight in &mut link.flights {
                if let Stage::Done(result) = &flight.stage {
                    if let (Request::Add { entry, .. }, Ok(_)) = (&flight.request, result) {
                        self.ghost.acked.insert((bookie, entry.get()));
                    }
                    flight.stage = Stage::Answered(result.clone());
                }
            }
            link.tidy();
        }
    }

    fn stored(&self, version: i64) -> StoredLedger {
        let metadata = LedgerMetadata::clone(&self.history[version as usize]);
        StoredLedger { metadata, version: named(version), created_ms: 0 }
    }

    fn ask_store(&mut self, party: usize, fate: StoreFate) {
        let Call::Asked(step) = std::mem::replace(&mut self.parties[party].call, Call::Idle) else { return };
        let lost = || LedgerError::Store(StoreError::ConnectionLoss);
        let answer = match (step, fate) {
            (Step::Place { .. }, _) => unreachable!("placing is not the store's"),
            // Of the driver's clock: whatever happens meanwhile.
            (Step::Wait, _) => StoreAnswer::Waited,
            (Step::Mark { .. }, StoreFate::LostBefore) => StoreAnswer::Marked(false),
            (Step::Mark { replicas }, _) => {
                self.marks.extend(replicas);
                StoreAnswer::Marked(fate != StoreFate::LostAfter)
            }
            (Step::Read, StoreFate::LostBefore | StoreFate::LostAfter) => StoreAnswer::Read(Err(lost())),
            (Step::Read, StoreFate::Stale(version)) => {
                StoreAnswer::Read(Ok(self.stored(version.max(self.parties[party].seen_version))))
            }
            (Step::Read, StoreFate::Done) => StoreAnswer::Read(Ok(self.stored(self.version()))),
            (Step::Write { .. }, StoreFate::LostBefore) => {
                self.ghost.summary.lost_store_answers += 1;
                StoreAnswer::Written(Err(lost()))
            }
            (Step::Write { metadata, expected }, _) if expected == named(self.version()) => {
                self.check_change(party, &metadata);
                self.history.push((*metadata).into());
                self.check_confirmed_copies();
                if fate == StoreFate::LostAfter {
                    self.ghost.summary.lost_store_answers += 1;
                    StoreAnswer::Written(Err(lost()))
                } else {
                    StoreAnswer::Written(Ok(named(self.version())))
                }
            }
            (Step::Write { .. }, _) => StoreAnswer::Written(Err(LedgerError::Changed(ledger()))),
        };
        if !matches!(self.parties[party].core, Core::Gone) {
            self.parties[party].call = Call::Answered(answer);
        }
    }

    fn hear_store(&mut self, index: usize, gives_up: bool) {
        let party = &mut self.parties[index];
        let Call::Answered(answer) = std::mem::replace(&mut party.call, Call::Idle) else { return };
        match &answer {
            StoreAnswer::Written(Ok(version)) => party.seen_version = writes_before(*version),
            StoreAnswer::Read(Ok(stored)) => party.seen_version = writes_before(stored.version),
            _ => {}
        }
        let is_unknown = matches!(answer, StoreAnswer::Written(Err(LedgerError::Store(_))));
        let (mut sends, mut out) = (Vec::new(), Out::default());
        match (&mut party.core, answer) {
            (Core::Writer(writer), StoreAnswer::Written(outcome)) => writer.written(outcome, &mut sends),
            (Core::Writer(writer), StoreAnswer::Read(Ok(stored))) => writer.read(stored, &mut sends),
            (Core::Writer(writer), StoreAnswer::Waited) => writer.waited(&mut sends),
            (Core::Recoverer(_), StoreAnswer::Waited) => unreachable!("a recovery does not wait for bookies"),
            (Core::Writer(writer), StoreAnswer::Marked(true)) => writer.marked(&mut sends),
            (Core::Writer(writer), StoreAnswer::Read(Err(_)) | StoreAnswer::Marked(false)) => {
                if !writer.put_off() && gives_up {
                    writer.metadata_failed(LedgerError::Store(StoreError::ConnectionLoss));
                }
            }
            (Core::Recoverer(core), StoreAnswer::Written(outcome)) => core.written(outcome, &mut out),
            (Core::Recoverer(core), StoreAnswer::Read(Ok(stored))) => core.read(stored, &mut out),
            (Core::Recoverer(core), StoreAnswer::Read(Err(error))) => {
                if gives_up {
                    core.metadata_failed(error);
                }
            }
            (Core::Recoverer(core), StoreAnswer::Marked(true)) => {
                core.marked();
                self.ghost.unmarked.remove(&index);
            }
            (Core::Recoverer(core), StoreAnswer::Marked(false)) => {
                if gives_up {
                    core.metadata_failed(LedgerError::Store(StoreError::ConnectionLoss));
                    self.ghost.unmarked.insert(index);
                }
            }
            (Core::Gone, _) => {}
        }
        let next = match &party.core {
            Core::Writer(core) => core.next_step(),
            Core::Recoverer(core) => core.next_step(),
            Core::Gone => None,
        };
        self.process(
            !is_unknown || next == Some(Step::Read),
            "IC14: what became of a write is found out by reading",
        );
        match index {
            WRITER => {
                self.send(WRITER, sends);
                self.settle_writer();
            }
            _ => self.perform(index, out),
        }
        self.follow(index);
    }

    fn hear(&mut self, index: usize, bookie: usize, request: Request, result: Result<Bytes, BookieError>) {
        self.note_heard(index, bookie, &request, &result);
        match (&mut self.parties[index].core, request) {
            (Core::Writer(writer), Request::Add { entry, tag, .. }) => {
                writer.on_answer(entry, tag, Connection(self.connections[bookie]), &result.map(drop));
                self.settle_writer();
            }
            (Core::Recoverer(core), Request::Add { entry, tag, .. }) => {
                let mut out = Out::default();
                core.on_answer(entry, tag, &result.map(drop));
                core.settle(&mut out);
                self.perform(index, out);
            }
            (Core::Recoverer(core), Request::Read { tag, .. }) => {
                let mut out = Out::default();
                core.on_read(tag, result, &mut out);
                self.perform(index, out);
            }
            (Core::Writer(_), Request::Force { number }) => {
                let connection = Connection(self.connections[bookie]);
                self.hear_force(bookie, number, result.map(|_| connection));
            }
            (_, _) => {}
        }
        self.follow(index);
    }

    /// Bookies were watched for long enough while they held up too much.
    fn report_slow(&mut self) {
        let Core::Writer(writer) = &mut self.parties[WRITER].core else { return };
        let mut behind = Vec::new();
        let bytes = writer.held_back(&mut behind);
        for position in behind {
            if bytes > self.setup.slow_bytes_max {
                writer.on_slow(position, bytes);
            }
        }
        self.settle_writer();
        self.follow(WRITER);
    }

    /// The work of the writer's shell after each event: it lets go of confirmed entries, and withdraws adds that
    /// bookies need not get any more, as far as they have not left.
    fn settle_writer(&mut self) {
        let Core::Writer(writer) = &mut self.parties[WRITER].core else { return };
        writer.settle();
        let withdrawn = writer.take_withdrawn();
        let held: BTreeSet<BookieId> = writer.held().into_iter().collect();
        let ensemble = writer.ensemble().to_vec();
        self.ghost.note_held(held, &ensemble);
        for bookie in withdrawn {
            let bookie = self.index(&bookie);
            let Some(link) = self.links.get_mut(&(WRITER, bookie)) else { continue };
            let is_waiting = |stage: &Stage, is_old: bool| *stage == Stage::Sent && !is_old;
            let waiting =
                link.flights.iter().filter(|flight| is_waiting(&flight.stage, flight.is_old)).count();
            let random = self.setup.random.as_ref();
            let mut left = random.map_or(0, |random| random.below(waiting as u64 + 1));
            link.flights.retain(|flight| {
                let is_add = matches!(flight.request, Request::Add { .. });
                !is_waiting(&flight.stage, flight.is_old) || !is_add || {
                    let stays = left > 0;
                    left = left.saturating_sub(1);
                    stays
                }
            });
        }
        let keep_bytes_max = self.setup.keep_bytes_max;
        let Core::Writer(writer) = &mut self.parties[WRITER].core else { return };
        writer.may_keep(keep_bytes_max);
        writer.release(&mut LetGo::default());
        let fills = writer.take_fills();
        let (missing, filled) = writer.copies_missing_and_filled();
        self.ghost.note_copies(missing, filled);
        for Fill { bookie, entry, body, tag } in fills {
            let bookie = self.index(&bookie);
            self.check_send(WRITER, entry, &body);
            self.link(WRITER, bookie).send(Request::Add { entry, body, is_recovery: false, tag });
        }
    }

    fn send(&mut self, party: usize, sends: Vec<Send>) {
        for Send { position, entry, body, tag } in sends {
            let ensemble = match &self.parties[party].core {
                Core::Writer(core) => core.ensemble(),
                Core::Recoverer(core) => core.ensemble(),
                Core::Gone => return,
            };
            let bookie = self.index(&ensemble[position]);
            self.check_send(party, entry, &body);
            let request = Request::Add { entry, body, is_recovery: party != WRITER, tag };
            self.link(party, bookie).send(request);
        }
    }

    fn perform(&mut self, party: usize, out: Out) {
        for read in out.reads {
            let bookie = self.index(&read.bookie);
            self.check_recovery_read(party, bookie, &read);
            let request = Request::Read { entry: read.entry, fences: read.fences, tag: read.tag };
            self.link(party, bookie).send(request);
        }
        self.send(party, out.sends);
    }

    fn place(
        &mut self,
        positions: &[usize],
        ensemble: &[BookieId],
        avoided: BTreeSet<BookieId>,
    ) -> Vec<BookieId> {
        let candidates = self.bookies.iter().zip(self.ids.iter()).filter(|(bookie, _)| !bookie.is_read_only);
        let Some(random) = &self.setup.random else {
            let usable =
                candidates.filter(|(bookie, id)| bookie.mode != Mode::Down && !ensemble.contains(*id));
            return usable.take(positions.len()).map(|(_, id)| id.clone()).collect();
        };
        // A bookie that is down may still be registered.
        let listed = candidates.filter(|(bookie, _)| bookie.mode != Mode::Down || random.chance(0.3));
        let writable = listed.map(|(_, id)| id.clone()).collect();
        let placement = RandomPlacement(SeededRandom::new(random.next_u64()));
        let wanted = Wanted { quorum: self.setup.quorum, ensemble, positions };
        placement.choose(&Candidates { writable, avoided, ..Candidates::default() }, wanted).bookies
    }

    /// Takes the step a party wants, and notes how it ended.
    fn follow(&mut self, index: usize) {
        loop {
            let step = match &self.parties[index].core {
                Core::Writer(core) => core.next_step(),
                Core::Recoverer(core) => core.next_step(),
                Core::Gone => None,
            };
            match step {
                Some(Step::Place { positions, ensemble, avoided, asked }) => {
                    let chosen = self.place(&positions, &ensemble, avoided);
                    let is_short = chosen.len() < positions.len();
                    let alive = asked
                        .into_iter()
                        .filter(|id| is_short && self.bookies[self.index(id)].mode == Mode::Up);
                    let alive: Vec<BookieId> = alive.collect();
                    let may_wait = self.setup.random.as_ref().is_some_and(|random| random.chance(0.5));
                    let mut out = Out::default();
                    match &mut self.parties[index].core {
                        Core::Writer(core) => {
                            core.may_wait(may_wait);
                            core.placed(&chosen, 0, &alive);
                        }
                        Core::Recoverer(core) => core.placed(&chosen, 0, &mut out),
                        Core::Gone => unreachable!("it has no step"),
                    }
                    self.perform(index, out);
                }
                Some(step) if matches!(self.parties[index].call, Call::Idle) => {
                    self.parties[index].call = Call::Asked(step);
                    break;
                }
                Some(_) | None => break,
            }
        }
        if self.note_end(index) {
            self.kill(index);
        }
    }

    /// Metadata of the ledger, when it is closed.
    pub fn end(&self) -> Option<(Option<EntryId>, u64)> {
        match self.metadata().state {
            LedgerState::Closed { last_entry, length_bytes } => Some((last_entry, length_bytes)),
            LedgerState::Open | LedgerState::InRecovery => None,
        }
    }
}

impl Party {
    fn new(core: Core) -> Party {
        Party { core, call: Call::Idle, seen_version: 0, heard: Heard::default() }
    }
}
