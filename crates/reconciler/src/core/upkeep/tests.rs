use std::sync::Arc;

use bindery_tiering::catalogue::{ExtentOutcome, NewExtent, ObjectRow, Replaced, StoredObject, Verdict};
use bindery_types::tier::TierExtent;
use bindery_types::{DigestType, EntryId, LedgerMetadata, LedgerSecret, Quorum, Segment};

use super::*;
use crate::core::measure::BuildTimes;
use crate::core::updates::{RequestError, UpdateResult, UpdateSettings, UpdateStatus};
use crate::core::{Built, Left};

mod late;
mod returns;
mod rewrites;
mod waits;

const OURS: &str = "ours";

fn id(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}

fn ids(raw: std::ops::Range<i64>) -> Vec<LedgerId> {
    raw.map(id).collect()
}

fn object(n: u8) -> ObjectId {
    ObjectId::new(7, [n; 10])
}

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn bookie(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

fn reference(id: ObjectId, length_bytes: u64) -> ObjectRef {
    ObjectRef { id, length_bytes, footer_offset: length_bytes - 1, footer_crc: 0, etag_crc: 0 }
}

/// An object with ten extents, of which so many are live.
pub(super) fn stored(id: ObjectId, length_bytes: u64, live: f64) -> StoredObject {
    StoredObject {
        object: reference(id, length_bytes),
        crc: 0,
        extents: 10,
        bytes: length_bytes,
        live_extents: (live * 10.0) as u32,
        live_bytes: (live * length_bytes as f64) as u64,
        committed_ms: 0,
        unreferenced_ms: None,
        replaced: None,
    }
}

fn metadata(names: &str) -> Arc<LedgerMetadata> {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let ensemble: Vec<BookieId> = names.split(' ').map(bookie).collect();
    let mut metadata = LedgerMetadata::new(Quorum::new(ensemble.len(), 1, 1).unwrap(), secret);
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    Arc::new(metadata)
}

fn live(of: i64, first: i64, last: i64) -> LiveExtent {
    let (first, last) = (entry(first), entry(last));
    LiveExtent { ledger: id(of), first, last, bytes: 7, metadata: metadata("a b c") }
}

/// A range that is in object 9 now.
fn moved(of: i64, first: i64, last: i64, names: &str) -> Moved {
    let (first, last) = (entry(first), entry(last));
    let extents = vec![TierExtent { first, last, object: reference(object(9), 50) }];
    Moved { place: 0, ledger: id(of), first, last, extents, end: Some(last), metadata: Some(metadata(names)) }
}

/// A cluster, as an upkeep sees it.
struct Around {
    upkeep: Upkeep,
    now: Duration,
    catalogue: BTreeSet<LedgerId>,
    metadata: BTreeSet<LedgerId>,
    proof: Proof,
    garbage: BTreeSet<ObjectId>,
    /// Those of them that bookies referred to once.
    released: BTreeMap<ObjectId, StoredObject>,
    /// They are not in the bucket.
    are_gone: bool,
    deletion: Deletion,
    alarms: Vec<Alarm>,
    done: Vec<UpkeepAction>,
    /// So often a removal leaves extents for a further one.
    removals_left: u64,
    /// Rows of the page of the scan.
    rows: Vec<StoredObject>,
    live: BTreeMap<ObjectId, Vec<LiveExtent>>,
    next_id: ObjectId,
    /// An object with a later id.
    later: Option<ObjectId>,
    /// Extents of which the catalogue takes what is offered.
    verdict: Verdict,
    /// Objects that cannot be read, and whether the failure says so.
    damaged: BTreeMap<ObjectId, bool>,
    order: Option<RewriteOrder>,
    /// So many extents can be copied before an object takes too long.
    in_time: Option<usize>,
    waiting: Vec<StoredObject>,
    moved: Vec<Moved>,
    silent: BTreeSet<BookieId>,
    status: UpdateStatus,
    /// A look at the catalogue, and a request to bookies, take so long.
    slowness: Duration,
    /// And a look at the catalogue so much longer for each extent.
    of_extent: Duration,
    /// The log of the catalogue.
    log_length: u64,
    /// Objects are not released.
    cannot_release: bool,
    /// Requests to bookies since they last answered, of which only every third one does, if so.
    unanswered: Option<u32>,
}

impl Around {
    fn new(catalogue: std::ops::Range<i64>, metadata: std::ops::Range<i64>) -> Around {
        let now = Duration::from_secs(1000);
        Around {
            upkeep: Upkeep::new(now, UpkeepSettings::default(), 64 << 20, OURS.to_owned(), Canaries::none()),
            now,
            catalogue: ids(catalogue).into_iter().collect(),
            metadata: ids(metadata).into_iter().collect(),
            proof: Proof {
                instance_id: OURS.to_owned(),
                is_whole: true,
                has_mark: true,
                next_id: LedgerId::new(1000),
            },
            garbage: BTreeSet::new(),
            released: BTreeMap::new(),
            are_gone: false,
            in_time: None,
            deletion: Deletion::Done,
            alarms: Vec::new(),
            done: Vec::new(),
            removals_left: 0,
            rows: Vec::new(),
            live: BTreeMap::new(),
            next_id: object(8),
            later: None,
            verdict: Verdict::Accepted,
            damaged: BTreeMap::new(),
            order: None,
            waiting: Vec::new(),
            moved: Vec::new(),
            silent: BTreeSet::new(),
            status: UpdateStatus::Done,
            slowness: Duration::ZERO,
            of_extent: Duration::ZERO,
            unanswered: None,
            log_length: 5,
            cannot_release: false,
        }
    }

    fn now_ms(&self) -> u64 {
        self.now.as_millis() as u64
    }

    /// An object whose extents others took over so long ago.
    fn wait(&mut self, n: u8, since: Duration) {
        let at_ms = (self.now - since).as_millis() as u64;
        let replaced = Some(Replaced { number: 5, at_ms });
        self.waiting.push(StoredObject { replaced, ..stored(object(n), 100, 0.0) });
    }

    /// Objects that wait do so for as long as it takes.
    fn settle(&mut self) {
        self.pass();
        assert!(self.told().is_empty());
        self.now += UpkeepSettings::default().settle;
        self.done.clear();
    }

    fn bookies(&mut self, abilities: &[(&str, Ability)]) {
        self.upkeep.set_bookies(&abilities.iter().map(|(name, is)| (bookie(name), *is)).collect());
    }

    fn told(&self) -> Vec<String> {
        let requests = self.done.iter().filter_map(|action| match action {
            UpkeepAction::Tell(requests) => Some(requests),
            _ => None,
        });
        requests.flatten().map(|(bookie, _)| bookie.to_string()).collect()
    }

    fn answer(&self, (bookie, updates): (BookieId, Vec<Reconciliation>)) -> Told {
        if self.silent.contains(&bookie) || self.unanswered.is_some_and(|count| count != 0) {
            return (bookie, Err(RequestError::Failed("no answer".into())));
        }
        let result = |update: &Reconciliation| UpdateResult {
            ledger: update.ledger,
            status: self.status,
            register: update.last,
            is_durable: true,
        };
        (bookie, Ok(updates.iter().map(result).collect()))
    }

    /// One pass, from where it waits to where it waits again.
    fn pass(&mut self) {
        self.now = self.now.max(self.upkeep.wake_at().unwrap());
        while let Some(action) = self.upkeep.next(self.now) {
            assert_eq!(self.upkeep.next(self.now), None, "one action at a time");
            self.done.push(action.clone());
            let event = match action {
                UpkeepAction::Ledgers => UpkeepEvent::Ledgers(Ok(self.catalogue.iter().copied().collect())),
                UpkeepAction::Prove => UpkeepEvent::Proven(Ok(self.proof.clone())),
                UpkeepAction::List { is_first } => UpkeepEvent::Listed(Ok((is_first
                    && !self.metadata.is_empty())
                .then(|| self.metadata.iter().copied().collect()))),
                UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(Ok(ledgers
                    .into_iter()
                    .filter(|ledger| !self.metadata.contains(ledger))
                    .map(|ledger| Absent { ledger, created_ms: None })
                    .collect())),
                UpkeepAction::Remove(ledgers) if self.removals_left > 0 => {
                    self.removals_left -= 1;
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|absent| (absent.ledger, 10)).collect()))
                }
                UpkeepAction::Remove(ledgers) => {
                    ledgers.iter().for_each(|absent| assert!(self.catalogue.remove(&absent.ledger)));
                    UpkeepEvent::Removed(Ok(ledgers.into_iter().map(|absent| (absent.ledger, 0)).collect()))
                }
                UpkeepAction::Mark => {
                    self.proof.has_mark = true;
                    UpkeepEvent::Marked(Ok(()))
                }
                UpkeepAction::FindGarbage { after, limit, .. } => {
                    let behind = self.garbage.iter().filter(|object| Some(**object) > after);
                    let garbage = behind.map(|object| Garbage {
                        object: *object,
                        released: self.released.get(object).copied(),
                        is_reserved: false,
                    });
                    UpkeepEvent::Garbage(Ok(garbage.take(limit).collect()))
                }
                UpkeepAction::Delete(objects) => UpkeepEvent::Deleted(
                    objects.into_iter().map(|object| (object, self.deletion.clone())).collect(),
                ),
                UpkeepAction::Forget(objects) => {
                    objects.iter().for_each(|object| assert!(self.garbage.remove(object)));
                    UpkeepEvent::Forgotten(Ok(objects.len() as u64))
                }
                UpkeepAction::Scan { .. } => {
                    let rows =
                        self.rows.iter().map(|row| ScannedRow::new(row.object.id, &ObjectRow::Stored(*row)));
                    let listed = |row: &StoredObject| ListedObject {
                        object: row.object.id,
                        modified_ms: 0,
                        length_bytes: row.object.length_bytes,
                    };
                    UpkeepEvent::Scanned(Ok(ScanPage {
                        objects: self.rows.iter().map(listed).collect(),
                        rows: rows.collect(),
                        ..ScanPage::default()
                    }))
                }
                UpkeepAction::AskFor(_) => UpkeepEvent::Missing(Ok(Vec::new())),
                UpkeepAction::ReadFooters(_) => UpkeepEvent::FootersRead(Vec::new()),
                UpkeepAction::FindWaiting { after, limit } => UpkeepEvent::Waiting(Ok(WaitingPage {
                    objects: (self.waiting.iter().filter(|stored| Some(stored.object.id) > after))
                        .take(limit)
                        .copied()
                        .collect(),
                    now_ms: self.now_ms(),
                    log_length: self.log_length,
                })),
                UpkeepAction::WhereTo(object, _) if self.damaged.contains_key(&object.id) => {
                    let why = "the checksum of its footer is wrong".to_owned();
                    UpkeepEvent::Whereabouts(Err(SourceError { why, fault: super::Fault::Damage }))
                }
                UpkeepAction::WhereTo(..) if self.are_gone => {
                    let why = "it is not there".to_owned();
                    UpkeepEvent::Whereabouts(Err(SourceError { why, fault: super::Fault::Gone }))
                }
                UpkeepAction::WhereTo(_, places) => {
                    let at = self.now;
                    self.now += self.slowness + self.of_extent * places.len() as u32;
                    let of_place = |place: &u32| {
                        self.moved.get(*place as usize).map(|moved| Moved { place: *place, ..moved.clone() })
                    };
                    let moved = places.iter().filter_map(of_place).collect();
                    UpkeepEvent::Whereabouts(Ok(Whereabouts { at, moved, absent: Vec::new() }))
                }
                UpkeepAction::Tell(requests) => {
                    self.now += self.slowness;
                    if let Some(count) = &mut self.unanswered {
                        *count = (*count + 1) % 3;
                    }
                    UpkeepEvent::Told(requests.into_iter().map(|request| self.answer(request)).collect())
                }
                UpkeepAction::Release(_) if self.cannot_release => {
                    UpkeepEvent::Released(Err("no answer".to_owned()))
                }
                UpkeepAction::Release(objects) => {
                    self.waiting.retain(|stored| !objects.contains(&(stored.object.id, 5)));
                    UpkeepEvent::Released(Ok(objects.len() as u64))
                }
                UpkeepAction::Survey(objects) => {
                    let survey = |object: ObjectRef| {
                        let live = self.live.get(&object.id).cloned();
                        let why = || SourceError {
                            why: "its ledger is gone".to_owned(),
                            fault: super::Fault::Passing,
                        };
                        (object, live.ok_or_else(why))
                    };
                    UpkeepEvent::Surveyed(objects.into_iter().map(survey).collect())
                }
                UpkeepAction::Reserve => UpkeepEvent::Reserved(Ok((self.next_id, self.later))),
                UpkeepAction::Rewrite(order) if self.in_time.is_some() => self.copy_in_time(order),
                UpkeepAction::Replace { object, .. } if self.in_time.is_some() => self.replace_whole(&object),
                UpkeepAction::Rewrite(order) => {
                    let extent = |wanted: &crate::core::BuildLedger| NewExtent {
                        ledger: wanted.ledger,
                        first: wanted.first,
                        last: wanted.last,
                        bytes: wanted.bytes,
                        created_ms: None,
                    };
                    let pieces = || order.pieces.iter().flatten().map(|piece| piece.object.id);
                    let unread: BTreeSet<ObjectId> =
                        pieces().filter(|object| self.damaged.contains_key(object)).collect();
                    let is_named = unread.iter().all(|object| self.damaged[object]);
                    // Of a range that several objects have, what is before the damage.
                    let part = |(wanted, pieces): (&crate::core::BuildLedger, &Vec<Piece>)| {
                        let good = pieces.iter().take_while(|piece| !unread.contains(&piece.object.id));
                        Some(NewExtent { last: good.last()?.last, ..extent(wanted) })
                    };
                    let extents: Vec<NewExtent> =
                        order.order.ledgers.iter().zip(&order.pieces).filter_map(part).collect();
                    let new = NewObject { object: reference(order.order.object, 50), extents };
                    let outcome = match () {
                        () if !is_named => Err("it took too long".to_owned()),
                        () if new.extents.is_empty() => Ok(None),
                        () => Ok(Some(new)),
                    };
                    let error =
                        SourceError { why: "a checksum is wrong".to_owned(), fault: super::Fault::Damage };
                    let unread = unread.into_iter().filter(|_| is_named);
                    let unread = unread.map(|object| (object, error.clone())).collect();
                    let (left, times) = (Vec::new(), BuildTimes::default());
                    self.order = Some(order);
                    UpkeepEvent::Rewritten(Built { outcome, left, times }, unread)
                }
                UpkeepAction::Replace { object, .. } => {
                    if let Some(order) = self.order.take().filter(|_| self.verdict == Verdict::Accepted) {
                        let pieces = order.order.ledgers.iter().zip(&order.pieces);
                        for (wanted, piece) in
                            pieces.flat_map(|(of, pieces)| pieces.iter().map(move |piece| (of, piece)))
                        {
                            let has = |extent: &&NewExtent| {
                                extent.ledger == wanted.ledger
                                    && extent.first <= piece.first
                                    && extent.last >= piece.last
                            };
                            if object.extents.iter().any(|extent| has(&extent)) {
                                self.rows.retain(|row| row.object.id != piece.object.id);
                            }
                        }
                    }
                    let outcome = |extent: &NewExtent| ExtentOutcome {
                        ledger: extent.ledger,
                        verdict: self.verdict,
                        next: extent.last,
                    };
                    UpkeepEvent::Replaced(Ok(Ok(object.extents.iter().map(outcome).collect())))
                }
            };
            self.upkeep.on_event(self.now, event, &mut self.alarms);
        }
    }

    fn has_removed(&self) -> bool {
        self.done.iter().any(|action| matches!(action, UpkeepAction::Remove(_)))
    }
}

#[test]
fn a_large_share_goes_when_a_second_pass_finds_the_same() {
    let mut around = Around::new(0..100, 90..100);
    around.pass();
    assert!(!around.has_removed() && around.upkeep.status().doubt.is_none());
    assert_eq!(around.upkeep.wake_at(), Some(around.now + UpkeepSettings::default().confirm_pause));
    around.pass();
    assert_eq!(around.catalogue, around.metadata);
    assert_eq!(around.upkeep.status().counts.ledgers_removed, 90);
}

/// Invariant 1: each part of the proof is wanted.
#[test]
fn an_empty_listing_is_believed_only_of_a_store_that_proves_to_be_current() {
    let wrong: [fn(&mut Proof); 5] = [
        |proof| proof.instance_id = "another".to_owned(),
        |proof| proof.is_whole = false,
        |proof| proof.has_mark = false,
        |proof| proof.next_id = LedgerId::new(3),
        |proof| proof.next_id = None,
    ];
    for (index, spoil) in wrong.into_iter().enumerate() {
        let mut around = Around::new(0..5, 0..0);
        spoil(&mut around.proof);
        (0..3).for_each(|_| around.pass());
        assert!(!around.has_removed(), "{index}");
        assert_eq!((around.alarms.len(), around.upkeep.status().counts.doubts), (1, 3), "{index}");
        assert!(!around.done.contains(&UpkeepAction::Mark), "{index}: a doubt adds no evidence");
    }
    let mut around = Around::new(0..5, 0..0);
    around.pass();
    assert!(around.catalogue.is_empty() && around.alarms.is_empty());
}

#[test]
fn a_store_that_is_replaced_in_a_pass_removes_nothing() {
    let mut around = Around::new(0..5, 0..0);
    while !matches!(around.done.last(), Some(UpkeepAction::LookAgain(_))) {
        let action = around.upkeep.next(around.now).unwrap();
        around.done.push(action.clone());
        let event = match action {
            UpkeepAction::Ledgers => UpkeepEvent::Ledgers(Ok(ids(0..5))),
            UpkeepAction::Prove => UpkeepEvent::Proven(Ok(around.proof.clone())),
            UpkeepAction::List { .. } => UpkeepEvent::Listed(Ok(None)),
            UpkeepAction::LookAgain(ledgers) => UpkeepEvent::LookedAgain(Ok(ledgers
                .into_iter()
                .map(|ledger| Absent { ledger, created_ms: None })
                .collect())),
            other => panic!("{other:?}"),
        };
        around.upkeep.on_event(around.now, event, &mut around.alarms);
    }
    around.proof.has_mark = false;
    around.pass();
    assert!(!around.has_removed());
    assert!(around.upkeep.status().doubt.as_ref().unwrap().contains("mark"));
}

/// A cluster begins: without ledgers in the catalogue the first pass leaves a mark, and only that one.
#[test]
fn an_empty_catalogue_gets_one_mark() {
    let mut around = Around::new(0..0, 0..5);
    around.proof.has_mark = false;
    (0..3).for_each(|_| around.pass());
    assert_eq!(around.done.iter().filter(|action| **action == UpkeepAction::Mark).count(), 1);
}

/// Invariants 2 and 3.
#[test]
fn objects_that_cannot_be_deleted_are_one_alarm_and_hold_up_nothing() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage = (0..3).map(object).collect();
    around.deletion = Deletion::Denied("403".to_owned());
    (0..3).for_each(|_| around.pass());
    let is_denial = |alarm: &&Alarm| matches!(alarm, Alarm::CannotDelete { .. });
    assert_eq!(around.alarms.iter().filter(is_denial).count(), 1);
    assert_eq!((around.garbage.len(), around.upkeep.status().counts.delete_failures), (3, 3));
    around.deletion = Deletion::Done;
    around.pass();
    assert_eq!((around.garbage.len(), around.upkeep.status().counts.delete_failures), (0, 0));
    around.garbage = (0..3).map(object).collect();
    around.deletion = Deletion::Denied("403".to_owned());
    around.pass();
    assert_eq!(around.alarms.iter().filter(is_denial).count(), 2, "it was allowed in between");
}

#[test]
fn a_pause_and_a_stop_begin_nothing() {
    let mut around = Around::new(0..5, 0..5);
    around.upkeep.set_paused(true);
    assert_eq!((around.upkeep.wake_at(), around.upkeep.next(around.now)), (None, None));
    around.upkeep.set_paused(false);
    around.pass();
    around.upkeep.stop();
    assert_eq!(around.upkeep.wake_at(), None);
}

#[test]
fn a_large_ledger_is_removed_until_nothing_of_it_is_left() {
    let mut around = Around::new(0..5, 1..5);
    around.removals_left = 3;
    around.pass();
    let removals = around.done.iter().filter(|action| matches!(action, UpkeepAction::Remove(_)));
    assert_eq!((removals.count(), around.upkeep.status().counts.ledgers_removed), (4, 1));
}
