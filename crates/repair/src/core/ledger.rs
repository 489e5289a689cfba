//! The repair of one ledger under its lock: what is done next.
//!
//! ```text
//! Look --> lacks copies of one that is away --> Choose --> Copy --> Check --> Name ---.
//!  ^ '---> a named member lacks entries ------> List ----> Copy ------------------.   |
//!  | '---> is open, and its writer is gone ---> Age, Watch -> Close -------------.   |   |
//!  |                                                                          '---+---'
//!  '--------------------------------------------------------------------------------'
//!  Look --> lacks nothing --> ProveLock --> Unmark --> End
//! ```
//! The shell does one [`Action`] at a time and tells what came of it with the method that the action names; the answer is the next one.
//!
//! # Invariants
//! 1. A new member is named only after it has acknowledged every entry of its place, or knows where in object storage the entry is
//!    ([`super::tiered`]), and after another look that found the old one still away. Metadata is written at the version that the core saw; after any other change the core looks again.
//! 2. Metadata and marks change only under the lock: the shell reads it just before, or the same transaction removes it.
//! 3. The mark goes at the version that was read under the lock, and only when nothing was found lacking.
//! 4. A place that cannot be repaired now holds up no other of the ledger.
//! 5. A ledger is closed only after its grace, and while it is not seen to grow.
//! 6. Copies go past the journal only where the ledger is closed and was fenced on the bookie that takes them.
//!
//! # Limits     [`LOOKS_MAX`] looks in one attempt; one list of entries at a time

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bindery_client::repair::with_member;
use bindery_io::canary::{Canaries, Canary};
use bindery_metadata::layout::Marked;
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerMetadata, LedgerState, Segment};

use super::audit::{
    Audit, Lack, SegmentEnd, audit, entries_of, entry_bytes, lacks_nothing, missing_runs, segments, slices,
};
use super::queue::Attempt;

/// Looks in one attempt: after each one a member is replaced or filled, or another's change is met.
const LOOKS_MAX: usize = 1000;
/// Pauses before another attempt: while repair is disabled, of a ledger that was marked again, of one whose bookie may come back, and of
/// one that is written to.
const DISABLED_PAUSE: Duration = Duration::from_secs(1);
const MARKED_AGAIN_PAUSE: Duration = Duration::from_millis(500);
const AWAITED_PAUSE_MAX: Duration = Duration::from_secs(120);
const WRITTEN_PAUSE_MIN: Duration = Duration::from_secs(5);
/// Copies of fewer bytes go through the journal like adds: an entry log of their own would be too small.
const PAST_JOURNAL_BYTES_MIN: u64 = 1 << 20;

/// Facts that the shell knows without a request.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The bookies that are registered, in whatever mode.
    pub live: &'a BTreeSet<BookieId>,
    /// Those that are being emptied.
    pub draining: &'a BTreeSet<BookieId>,
    /// The process ends.
    pub is_stopped: bool,
    /// An operator disabled repair.
    pub is_disabled: bool,
    /// Whether the session that took the lock is still the current one.
    pub may_hold_lock: bool,
}

impl Facts<'_> {
    /// Why the attempt ends here, if it does.
    fn stop(&self) -> Option<Attempt> {
        if self.is_stopped {
            return Some(Attempt::Later(Duration::ZERO, "this process stops".into()));
        }
        if self.is_disabled {
            return Some(Attempt::Later(DISABLED_PAUSE, "repair is disabled".into()));
        }
        (!self.may_hold_lock).then(|| Attempt::Failed("the session that held its lock ended".into()))
    }

    /// Whether a bookie is there and is not being emptied: its copies are not replaced then.
    fn is_staying(&self, bookie: &BookieId) -> bool {
        self.live.contains(bookie) && !self.draining.contains(bookie)
    }
}

/// How long a repair waits for bookies and writers.
pub trait Patience {
    /// Bookies that are away and may still return, and the time that they have left before they are replaced.
    fn awaited(&mut self, lost: &Audit) -> BTreeMap<BookieId, Duration>;
    /// All bookies of its last ensemble are there: a later loss has a grace of its own.
    fn on_members_there(&mut self);
}

/// Copies to bring to a bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyTask {
    /// What is to be there.
    pub lack: Lack,
    /// Where: another bookie than the one that lacks it, or the same.
    pub target: BookieId,
}

/// New metadata of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// The copies that they name.
    pub copy: CopyTask,
    /// The metadata.
    pub metadata: LedgerMetadata,
    /// The version that they follow.
    pub version: Version,
}

/// The next step of the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Read metadata, and whether the lock is there if `proves_lock`: [`LedgerRepair::on_look`], [`LedgerRepair::on_deleted`].
    Look {
        /// See above.
        proves_lock: bool,
    },
    /// Ask a member which entries it has: [`LedgerRepair::on_list`].
    List(BookieId),
    /// Find a bookie that may take the place: [`LedgerRepair::on_choice`].
    Choose(Lack),
    /// Bring entries to a bookie, those that it has not: [`LedgerRepair::on_copied`].
    Copy(CopyTask),
    /// Look at the facts again: [`LedgerRepair::on_check`].
    Check,
    /// Read whether the lock is there: [`LedgerRepair::on_lock`].
    ProveLock,
    /// Write metadata: [`LedgerRepair::on_named`].
    Name(Naming),
    /// Write metadata, remove the mark at this version, and give the lock back, all or nothing: [`LedgerRepair::on_named`].
    NameLast(Naming, Version),
    /// Remove the mark at this version: [`LedgerRepair::on_unmarked`].
    Unmark(Version),
    /// Say for how long the ledger is known to be open and to lack a bookie: [`LedgerRepair::on_age`].
    Age,
    /// See whether entries come to the last ensemble: [`LedgerRepair::on_growth`].
    Watch,
    /// Fence and close the ledger: [`LedgerRepair::on_closed`].
    Close,
    /// Nothing more: the attempt came to this.
    End(Attempt),
}

/// What came of [`Action::Copy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copied {
    /// The target has acknowledged all of it, or reads from object storage what it has not, at the places that the catalogue has.
    Whole,
    /// The bookie whose copies were to be replaced is there again.
    CameBack,
    /// The whole attempt ends.
    Ended(Attempt),
    /// It could not be done now.
    Failed(String),
}

/// What came of a change of metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// It is done.
    Done,
    /// Something was not as it had been read, or it had been read too long ago, and nothing was done.
    Refused,
    /// The answer was lost.
    Unknown,
    /// The metadata store does not take it.
    Failed(String),
}

/// Where the lock of a ledger is, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockPlace {
    /// This session holds it.
    Held,
    /// It was given back in the transaction that ended the repair.
    GivenBack,
    /// The answer to that transaction was lost.
    Unknown,
}

/// What an attempt did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// It made the ledger whole.
    pub is_repaired: bool,
    /// It found the ledger whole.
    pub was_whole: bool,
    /// It closed the ledger.
    pub is_closed: bool,
    /// Copies that were not needed in the end, because a bookie came back.
    pub dropped: u64,
}

/// A segment, by its first entry, and a position in its ensemble.
type Place = (EntryId, usize);

fn place_of(lack: &Lack) -> Place {
    (lack.first, lack.position)
}

/// What the last look found.
#[derive(Debug)]
struct Looked {
    metadata: LedgerMetadata,
    version: Version,
    /// Copies that are missing with bookies that are away or being emptied.
    lost: Audit,
    live: BTreeSet<BookieId>,
    awaited: BTreeMap<BookieId, Duration>,
    /// Named members whose lists are still to come.
    unasked: VecDeque<BookieId>,
}

/// The answer that the core waits for.
#[derive(Debug)]
enum Stage {
    Looking,
    Listing(BookieId),
    Choosing(Lack),
    Copying(CopyTask),
    Checking(CopyTask),
    Naming(Naming),
    NamingLast(Naming),
    ProvingToName(Naming),
    ProvingToUnmark,
    Unmarking,
    UnmarkingDeleted,
    Watching,
    /// A last look, with proof of the lock, before the core closes the ledger that has these segments.
    LookingToClose(Vec<Segment>),
    Closing,
    Ended,
}

/// See the module.
#[derive(Debug)]
pub struct LedgerRepair {
    canaries: Canaries,
    grace: Duration,
    mark: Marked,
    stage: Stage,
    looked: Option<Looked>,
    looks: usize,
    has_changed: bool,
    /// Places whose bookies got all that they lacked. One in limbo goes on saying that it does not know, until it has compared.
    completed: BTreeSet<Place>,
    /// Places that cannot be repaired now, and why.
    given_up: BTreeMap<Place, Attempt>,
    lock_place: LockPlace,
    tally: Tally,
}

impl LedgerRepair {
    /// Of a ledger whose lock is held, and whose mark was read under it. `grace`: how long an open ledger that lost a bookie of its last
    /// ensemble is left to its writer.
    pub fn new(mark: Marked, grace: Duration, canaries: Canaries) -> LedgerRepair {
        LedgerRepair {
            canaries,
            grace,
            mark,
            stage: Stage::Looking,
            looked: None,
            looks: 0,
            has_changed: false,
            completed: BTreeSet::new(),
            given_up: BTreeMap::new(),
            lock_place: LockPlace::Held,
            tally: Tally::default(),
        }
    }

    /// The first action.
    pub fn begin(&self) -> Action {
        Action::Look { proves_lock: false }
    }

    /// The mark.
    pub fn mark(&self) -> &Marked {
        &self.mark
    }

    /// Metadata of the last look.
    ///
    /// # Panics
    /// Before the first look.
    pub fn metadata(&self) -> &LedgerMetadata {
        &self.looked().metadata
    }

    /// Bookies that were registered at the last look.
    pub fn live(&self) -> &BTreeSet<BookieId> {
        &self.looked().live
    }

    /// Where the lock is.
    pub fn lock_place(&self) -> LockPlace {
        self.lock_place
    }

    /// What was done up to now.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    fn looked(&self) -> &Looked {
        self.looked.as_ref().expect("there was a look at metadata")
    }

    fn end(&mut self, attempt: Attempt) -> Action {
        self.stage = Stage::Ended;
        Action::End(attempt)
    }

    fn failed(&mut self, why: impl Into<String>) -> Action {
        self.end(Attempt::Failed(why.into()))
    }

    fn look(&mut self) -> Action {
        self.stage = Stage::Looking;
        Action::Look { proves_lock: false }
    }

    /// Takes in metadata and facts. `holds_lock`: whether the lock is there, if the action asked for that.
    pub fn on_look(
        &mut self,
        (metadata, version): (LedgerMetadata, Version),
        facts: Facts<'_>,
        holds_lock: bool,
        patience: &mut dyn Patience,
    ) -> Action {
        self.looks += 1;
        // Each place that is given up may take one.
        if self.looks > LOOKS_MAX + self.given_up.len() {
            return self.failed("its metadata keeps changing");
        }
        if let Some(attempt) = facts.stop() {
            return self.end(attempt);
        }
        let to_close = match std::mem::replace(&mut self.stage, Stage::Looking) {
            Stage::LookingToClose(segments) => Some(segments),
            _ => None,
        };
        let away = audit(&metadata, |bookie| facts.live.contains(bookie));
        let awaited = if away.is_whole() { BTreeMap::new() } else { patience.awaited(&away) };
        let lost = audit(&metadata, |bookie| self.stays(facts, bookie));
        if away.open.is_empty() {
            patience.on_members_there();
        }
        let unasked = self.named_members(&metadata, facts);
        self.looked = Some(Looked {
            metadata,
            version,
            lost: Audit { open: away.open, ..lost },
            live: facts.live.clone(),
            awaited,
            unasked,
        });
        if let Some(segments) = to_close {
            if !holds_lock {
                return self.failed("its lock was lost");
            }
            // The writer may have replaced the bookie meanwhile.
            if self.looked().metadata.segments() == segments && !self.looked().lost.open.is_empty() {
                self.stage = Stage::Closing;
                return Action::Close;
            }
        }
        self.next()
    }

    fn is_named(&self, bookie: &BookieId) -> bool {
        self.mark.replicas.iter().any(|replica| replica == bookie.as_str())
    }

    /// Whether the copies of a bookie count. Those of a bookie that is being emptied do not, in a mark that names it.
    fn stays(&self, facts: Facts<'_>, bookie: &BookieId) -> bool {
        facts.live.contains(bookie) && !(facts.draining.contains(bookie) && self.is_named(bookie))
    }

    /// Members that stay and that the mark names, each once.
    fn named_members(&self, metadata: &LedgerMetadata, facts: Facts<'_>) -> VecDeque<BookieId> {
        let members = metadata.segments().iter().flat_map(|segment| segment.ensemble.iter());
        let named: BTreeSet<&BookieId> =
            members.filter(|bookie| self.stays(facts, bookie) && self.is_named(bookie)).collect();
        named.into_iter().cloned().collect()
    }

    /// What is to be done about what the last look found.
    fn next(&mut self) -> Action {
        while let Some(mut lack) = self.next_lack() {
            if let Some(why) = self.lost_for_good(&lack) {
                self.given_up.insert(place_of(&lack), Attempt::Failed(why));
                continue;
            }
            if self.canaries.has(Canary::M60SegmentEndOffByOne) && lack.first < lack.last {
                lack.last = EntryId::new(lack.last.get() - 1).expect("it is behind another");
            }
            self.stage = Stage::Choosing(lack.clone());
            return Action::Choose(lack);
        }
        while let Some(bookie) = self.looked.as_mut().and_then(|looked| looked.unasked.pop_front()) {
            if self.open_places(&bookie).next().is_some() {
                self.stage = Stage::Listing(bookie.clone());
                return Action::List(bookie);
            }
        }
        let Looked { lost, awaited, .. } = self.looked();
        if !self.given_up.is_empty() {
            // One that needs an operator tells more than one that another worker takes.
            let tells = |attempt: &&Attempt| matches!(attempt, Attempt::Failed(_));
            let why = self.given_up.values().find(tells).or(self.given_up.values().next());
            let why = why.expect("it is not empty").clone();
            return self.end(why);
        }
        if let Some((bookie, left)) = awaited.iter().min_by_key(|(_, left)| **left) {
            let why = format!("{bookie} is away: it has {left:?} to come back before it is replaced");
            let pause = (*left).min(AWAITED_PAUSE_MAX);
            return self.end(Attempt::Later(pause, why));
        }
        if lost.open.is_empty() {
            // An open ledger's writer leaves a bookie that is being emptied, with its next add.
            self.stage = Stage::ProvingToUnmark;
            return Action::ProveLock;
        }
        self.close()
    }

    /// A place whose bookie is away and not waited for, or is being emptied.
    fn next_lack(&self) -> Option<Lack> {
        let Looked { lost, awaited, .. } = self.looked();
        let is_left = |lack: &&Lack| {
            !awaited.contains_key(&lack.bookie) && !self.given_up.contains_key(&place_of(lack))
        };
        lost.lacks.iter().find(is_left).cloned()
    }

    /// Why no other bookie has the entries of a place.
    fn lost_for_good(&self, lack: &Lack) -> Option<String> {
        let Looked { metadata, live, .. } = self.looked();
        let segment = metadata.segments().iter().find(|segment| segment.first_entry == lack.first);
        let ensemble = &segment.expect("a lack is of a segment of this metadata").ensemble;
        let others = ensemble.iter().filter(|bookie| live.contains(*bookie)).count();
        // One that is being emptied is a source, too.
        let is_source = live.contains(&lack.bookie);
        let is_lost = !is_source && (metadata.quorum.write_quorum_size() == 1 || others == 0);
        is_lost.then(|| {
            let Lack { first, last, bookie, .. } = lack;
            format!("entries {first} to {last} have no copy left: they come back only with {bookie}")
        })
    }

    /// This attempt leaves the place as it is.
    fn give_up(&mut self, lack: &Lack, why: Attempt) -> Action {
        self.given_up.insert(place_of(lack), why);
        self.look()
    }

    /// A bookie may take the place; or why there is none that this worker copies to.
    pub fn on_choice(&mut self, choice: Result<BookieId, Attempt>) -> Action {
        let Stage::Choosing(lack) = &self.stage else { unreachable!("no choice was asked for") };
        let lack = lack.clone();
        match choice {
            Ok(target) => self.copy(CopyTask { lack, target }),
            Err(attempt @ Attempt::Later(..)) => self.end(attempt),
            Err(attempt) => {
                self.given_up.insert(place_of(&lack), attempt);
                self.next()
            }
        }
    }

    fn copy(&mut self, copy: CopyTask) -> Action {
        let Looked { metadata, live, .. } = self.looked();
        let lack = &copy.lack;
        let is_source = copy.target != lack.bookie && live.contains(&lack.bookie);
        if metadata.quorum.write_quorum_size() == 1 && !is_source {
            let why =
                format!("no other bookie has the entries of {}: there is one copy of each", lack.bookie);
            return self.give_up(&copy.lack, Attempt::Failed(why));
        }
        if metadata.secret.is_none() {
            let why =
                "its metadata is of version 1 and has no password: copies could not be verified or stored";
            return self.give_up(&copy.lack, Attempt::Failed(why.into()));
        }
        self.stage = Stage::Copying(copy.clone());
        Action::Copy(copy)
    }

    /// Between two batches of copies: what the copying ends with, if it is not to go on.
    pub fn unwanted(&self, facts: Facts<'_>) -> Option<Copied> {
        if let Some(attempt) = facts.stop() {
            return Some(Copied::Ended(attempt));
        }
        let (Stage::Copying(CopyTask { lack, target }) | Stage::Checking(CopyTask { lack, target })) =
            &self.stage
        else {
            unreachable!("nothing is copied");
        };
        let has_returned = *target != lack.bookie && facts.is_staying(&lack.bookie);
        (has_returned && !self.canaries.has(Canary::M57CopiesBeforeCheck)).then_some(Copied::CameBack)
    }

    /// Whether copies of these runs may go past the journal of the bookie that takes them, once it has fenced the ledger. `is_damaged`: it
    /// holds damaged copies of some, which only an add replaces.
    pub fn goes_past_journal(&self, runs: &[(EntryId, EntryId)], is_damaged: bool) -> bool {
        let metadata = &self.looked().metadata;
        let is_closed = matches!(metadata.state, LedgerState::Closed { .. });
        is_closed && !is_damaged && bytes_of(metadata, runs) >= PAST_JOURNAL_BYTES_MIN
    }

    /// The copying ended.
    pub fn on_copied(&mut self, copied: Copied) -> Action {
        let Stage::Copying(copy) = &self.stage else { unreachable!("nothing is copied") };
        let copy = copy.clone();
        match copied {
            Copied::Whole if copy.target == copy.lack.bookie => {
                self.completed.insert(place_of(&copy.lack));
                self.has_changed = true;
                self.look()
            }
            Copied::Whole => {
                self.stage = Stage::Checking(copy);
                Action::Check
            }
            Copied::CameBack => self.drop_copies(),
            Copied::Ended(attempt) => self.end(attempt),
            Copied::Failed(why) => self.give_up(&copy.lack, Attempt::Failed(why)),
        }
    }

    /// The bookie came back, so its copies stay.
    fn drop_copies(&mut self) -> Action {
        self.tally.dropped += 1;
        self.look()
    }

    /// Takes in the facts after all copies were acknowledged.
    pub fn on_check(&mut self, facts: Facts<'_>) -> Action {
        match self.unwanted(facts) {
            Some(Copied::Ended(attempt)) => return self.end(attempt),
            Some(_) => return self.drop_copies(),
            None => {}
        }
        let Stage::Checking(copy) = std::mem::replace(&mut self.stage, Stage::Looking) else {
            unreachable!("nothing is checked");
        };
        let Looked { metadata, version, .. } = self.looked();
        let changed = with_member(metadata, copy.lack.first, copy.lack.position, &copy.target);
        let Some(changed) = changed else { return self.look() };
        let is_last = lacks_nothing(&changed, &self.mark.replicas, |bookie| self.stays(facts, bookie));
        let naming = Naming { copy, metadata: changed, version: *version };
        if is_last {
            self.stage = Stage::NamingLast(naming.clone());
            return Action::NameLast(naming, self.mark.version);
        }
        self.prove_to_name(naming)
    }

    fn prove_to_name(&mut self, naming: Naming) -> Action {
        self.stage = Stage::ProvingToName(naming);
        Action::ProveLock
    }

    /// Whether the lock is there.
    pub fn on_lock(&mut self, holds_lock: bool) -> Action {
        if !holds_lock && !self.canaries.has(Canary::M58LockIgnored) {
            return self.failed("its lock was lost");
        }
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::ProvingToName(naming) => {
                self.stage = Stage::Naming(naming.clone());
                Action::Name(naming)
            }
            Stage::ProvingToUnmark => {
                self.stage = Stage::Unmarking;
                Action::Unmark(self.mark.version)
            }
            other => unreachable!("the lock was not asked for in {other:?}"),
        }
    }

    /// What came of [`Action::Name`] or [`Action::NameLast`].
    pub fn on_named(&mut self, named: Named) -> Action {
        let (naming, is_last) = match std::mem::replace(&mut self.stage, Stage::Looking) {
            Stage::Naming(naming) => (naming, false),
            Stage::NamingLast(naming) => (naming, true),
            other => unreachable!("metadata was not written in {other:?}"),
        };
        match named {
            Named::Done if is_last => {
                self.lock_place = LockPlace::GivenBack;
                self.tally.is_repaired = true;
                self.end(Attempt::Done)
            }
            Named::Done => {
                self.has_changed = true;
                self.look()
            }
            // Of the three, the mark alone may have changed.
            Named::Refused if is_last => self.prove_to_name(naming),
            Named::Refused => self.look(),
            // The next look tells whether it was written.
            Named::Unknown => {
                if is_last {
                    self.lock_place = LockPlace::Unknown;
                }
                self.look()
            }
            Named::Failed(why) => self.give_up(&naming.copy.lack, Attempt::Failed(why)),
        }
    }

    /// Places of a bookie that the mark is about and that are neither completed nor given up, with their ends.
    fn open_places<'a>(&'a self, bookie: &'a BookieId) -> impl Iterator<Item = Lack> + 'a {
        segments(&self.looked().metadata).flat_map(move |(segment, end)| {
            let SegmentEnd::At(last) = end else { return None };
            let position = segment.ensemble.iter().position(|member| member == bookie)?;
            let place = (segment.first_entry, position);
            let is_settled = self.completed.contains(&place) || self.given_up.contains_key(&place);
            let (first, bookie) = (segment.first_entry, bookie.clone());
            (!is_settled).then_some(Lack { first, last, position, bookie })
        })
    }

    /// Which entries the bookie says that it has.
    pub fn on_list(&mut self, has: Result<&dyn Fn(EntryId) -> bool, String>) -> Action {
        let Stage::Listing(bookie) = std::mem::replace(&mut self.stage, Stage::Looking) else {
            unreachable!("no list was asked for");
        };
        let places: Vec<Lack> = self.open_places(&bookie).collect();
        match has {
            Ok(has) => {
                let metadata = &self.looked().metadata;
                // A bookie with nothing lacks some of the first slice, so most answers come at once.
                let lacks = |place: &&Lack| {
                    slices(place).any(|slice| !missing_runs(metadata, &slice, has).is_empty())
                };
                match places.iter().find(lacks).cloned() {
                    Some(lack) => {
                        let target = lack.bookie.clone();
                        self.copy(CopyTask { lack, target })
                    }
                    None => self.next(),
                }
            }
            Err(why) => {
                for place in places {
                    self.given_up.insert(place_of(&place), Attempt::Failed(why.clone()));
                }
                self.next()
            }
        }
    }

    /// The ledger was deleted: its mark goes.
    pub fn on_deleted(&mut self) -> Action {
        self.stage = Stage::UnmarkingDeleted;
        Action::Unmark(self.mark.version)
    }

    /// Whether the mark was there at its version, and is gone now.
    pub fn on_unmarked(&mut self, is_gone: bool) -> Action {
        let was_deleted = matches!(self.stage, Stage::UnmarkingDeleted);
        if !is_gone && !was_deleted {
            return self.end(Attempt::Later(MARKED_AGAIN_PAUSE, "it was marked again".into()));
        }
        self.tally.is_repaired = !was_deleted && self.has_changed;
        self.tally.was_whole = !was_deleted && !self.has_changed;
        self.end(Attempt::Done)
    }

    /// Closes a ledger whose last ensemble has lost a bookie, after its grace and unless it is written to.
    fn close(&mut self) -> Action {
        match self.looked().metadata.state {
            LedgerState::Open => Action::Age,
            _ => self.look_to_close(),
        }
    }

    /// For how long the ledger is known to be open and to lack a bookie in its last ensemble.
    pub fn on_age(&mut self, age: Duration) -> Action {
        if age < self.grace {
            let why = format!("it is open: its writer has {:?} to replace {}", self.grace, self.lost_names());
            return self.end(Attempt::Later(self.grace - age, why));
        }
        self.stage = Stage::Watching;
        Action::Watch
    }

    /// The bookies that are away of the last ensemble, for messages.
    pub fn lost_names(&self) -> String {
        let open = &self.looked().lost.open;
        open.iter().map(|bookie| bookie.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Whether entries were seen to come; or why nothing is known of that.
    pub fn on_growth(&mut self, growth: Result<bool, Attempt>) -> Action {
        match growth {
            Err(attempt) => self.end(attempt),
            Ok(true) if !self.canaries.has(Canary::M62ClosesUnderWriter) => {
                let why = format!("it is open, and written to without {}", self.lost_names());
                self.end(Attempt::Later(self.grace.max(WRITTEN_PAUSE_MIN), why))
            }
            Ok(_) => self.look_to_close(),
        }
    }

    fn look_to_close(&mut self) -> Action {
        if self.looked().metadata.secret.is_none() {
            return self.failed("it is not closed, and its metadata has no password to close it with");
        }
        self.stage = Stage::LookingToClose(self.looked().metadata.segments().to_vec());
        Action::Look { proves_lock: true }
    }

    /// The ledger was closed, or why not.
    pub fn on_closed(&mut self, closed: Result<(), String>) -> Action {
        match closed {
            Ok(()) => {
                self.tally.is_closed = true;
                self.look()
            }
            Err(why) => self.failed(format!("it cannot be closed: {why}")),
        }
    }
}

/// About how many bytes the entries of a position in these runs have.
fn bytes_of(metadata: &LedgerMetadata, runs: &[(EntryId, EntryId)]) -> u64 {
    entries_of(metadata, runs).saturating_mul(entry_bytes(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret, Quorum};

    /// Waits for nobody.
    struct None;

    impl Patience for None {
        fn awaited(&mut self, _: &Audit) -> BTreeMap<BookieId, Duration> {
            BTreeMap::new()
        }
        fn on_members_there(&mut self) {}
    }

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    /// Of one entry in each segment, on these bookies.
    fn ledger(copies: usize, segments: &[String]) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(copies, copies, 1).unwrap(), secret);
        for (first, names) in segments.iter().enumerate() {
            let first_entry = EntryId::new(first as i64).unwrap();
            let ensemble = names.split(' ').map(id).collect();
            metadata.push_segment(Segment { first_entry, ensemble }).unwrap();
        }
        let last_entry = EntryId::new(segments.len() as i64 - 1);
        metadata.state = LedgerState::Closed { last_entry, length_bytes: 1 };
        metadata
    }

    fn begin(metadata: LedgerMetadata, live: &BTreeSet<BookieId>) -> (LedgerRepair, Action) {
        let mark = Marked {
            replicas: vec!["a".into()],
            since_ms: Option::None,
            danger: Option::None,
            version: Version::counted(0),
        };
        let mut core = LedgerRepair::new(mark, Duration::ZERO, Canaries::none());
        let action = core.on_look((metadata, Version::counted(0)), facts(live), true, &mut None);
        (core, action)
    }

    fn facts(live: &BTreeSet<BookieId>) -> Facts<'_> {
        static NONE: BTreeSet<BookieId> = BTreeSet::new();
        Facts { live, draining: &NONE, is_stopped: false, is_disabled: false, may_hold_lock: true }
    }

    #[test]
    fn places_without_a_copy_hold_up_no_other_of_the_ledger_however_many_they_are() {
        let mut segments: Vec<String> = (0..3 * LOOKS_MAX).map(|_| "a x".to_owned()).collect();
        segments.push("b c".to_owned());
        let live = ["c", "d"].map(id).into();
        let (mut core, action) = begin(ledger(2, &segments), &live);
        let Action::Choose(lack) = action else { panic!("{action:?}") };
        assert_eq!(lack.bookie, id("b"));
        // No bookie can take it either: the attempt ends, and says what an operator has to know.
        let Action::End(Attempt::Failed(why)) = core.on_choice(Err(Attempt::NotHere)) else { panic!() };
        assert!(why.contains("have no copy left"), "{why}");
    }

    #[test]
    fn an_open_ledger_is_asked_for_its_age_before_it_is_watched_or_closed() {
        let mut metadata = ledger(2, &["a b".to_owned()]);
        metadata.state = LedgerState::Open;
        let live = ["b", "c"].map(id).into();
        let (mut core, action) = begin(metadata.clone(), &live);
        core.grace = Duration::from_secs(30);
        assert_eq!(action, Action::Age);
        let Action::End(Attempt::Later(pause, _)) = core.on_age(Duration::from_secs(10)) else { panic!() };
        assert_eq!(pause, Duration::from_secs(20));
        let (mut core, _) = begin(metadata.clone(), &live);
        assert_eq!(core.on_age(Duration::from_secs(30)), Action::Watch);
        assert_eq!(core.on_growth(Ok(false)), Action::Look { proves_lock: true });
        // The writer replaced the bookie meanwhile.
        let mut replaced = ledger(2, &["a b".to_owned(), "c b".to_owned()]);
        replaced.state = LedgerState::Open;
        let action = core.on_look((replaced, Version::counted(1)), facts(&live), true, &mut None);
        assert!(matches!(action, Action::Choose(_)), "{action:?}");
    }
}
