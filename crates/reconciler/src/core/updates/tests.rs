//! Bookies in a list; answers are given by hand.

use bindery_tiering::ObjectId;
use bindery_types::tier::ObjectRef;
use bindery_types::{DigestType, LedgerSecret, Quorum, Segment};

use super::*;

fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn bookie(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

fn extent(first: i64, last: i64) -> TierExtent {
    let id = ObjectId::new(1, [first as u8; 10]);
    let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 0, etag_crc: 0 };
    TierExtent { first: entry(first), last: entry(last), object }
}

fn metadata(names: &str) -> Arc<LedgerMetadata> {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
    let ensemble = names.split(' ').map(bookie).collect();
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    Arc::new(metadata)
}

#[derive(Clone)]
struct Desk {
    updates: Updates,
    now: Duration,
    reports: Vec<Report>,
    requests: Vec<UpdateRequest>,
    given_up: Vec<RequestId>,
}

impl Desk {
    fn new(settings: UpdateSettings) -> Desk {
        let mut desk = Desk {
            updates: Updates::new(settings),
            now: Duration::from_secs(1),
            reports: Vec::new(),
            requests: Vec::new(),
            given_up: Vec::new(),
        };
        desk.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles), ("c", Ability::Reconciles)]);
        desk
    }

    fn bookies(&mut self, abilities: &[(&str, Ability)]) {
        let abilities = abilities.iter().map(|(name, ability)| (bookie(name), *ability)).collect();
        self.updates.set_bookies(self.now, &abilities, &mut self.reports);
        self.go_on();
    }

    /// Ledgers of which bookies have nothing yet, and said so.
    fn introduce(&mut self, ids: std::ops::Range<i64>) {
        for id in ids {
            self.updates.know(self.now, ledger(id), &metadata("a b c"), entry(9));
            self.updates.ask(self.now, ledger(id), &mut self.reports);
        }
        self.go_on();
        while let Some(request) = self.requests.first().cloned() {
            assert!(
                request.ledgers.iter().all(|update| update.extents.is_empty()),
                "invariant 6: it only asks"
            );
            self.requests.remove(0);
            self.answer(&request, UpdateStatus::Done);
        }
    }

    fn advance(&mut self, id: i64, first: i64, last: i64) {
        self.updates.know(self.now, ledger(id), &metadata("a b c"), entry(last));
        let extents = [extent(first, last)];
        self.updates.advance(self.now, ledger(id), entry(last), (&extents, self.now), &mut self.reports);
    }

    fn go_on(&mut self) {
        self.updates.on_time(self.now, &mut self.given_up, &mut self.reports);
        self.updates.dispatch(self.now, &mut self.requests);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.go_on();
    }

    /// Takes the request to a bookie out of those that travel.
    fn take(&mut self, name: &str) -> UpdateRequest {
        let index = self.requests.iter().position(|request| request.bookie == bookie(name));
        self.requests.remove(index.unwrap_or_else(|| panic!("no request to {name}: {:?}", self.requests)))
    }

    fn answer(&mut self, request: &UpdateRequest, status: UpdateStatus) {
        let results = request.ledgers.iter().map(|update| UpdateResult {
            ledger: update.ledger,
            status,
            register: update.last,
            is_durable: true,
        });
        let answer = Ok(results.collect());
        self.updates.on_answer(self.now, request.id, answer, &mut self.reports);
        self.go_on();
    }

    fn done(&mut self, name: &str) {
        let request = self.take(name);
        self.answer(&request, UpdateStatus::Done);
    }

    fn reconciled(&self) -> Vec<i64> {
        let of = |report: &Report| match report {
            Report::Reconciled { ledger, .. } => Some(ledger.get()),
            _ => None,
        };
        self.reports.iter().filter_map(of).collect()
    }
}

fn ids(request: &UpdateRequest) -> Vec<i64> {
    request.ledgers.iter().map(|update| update.ledger.get()).collect()
}

#[test]
fn hundreds_of_ledgers_travel_in_one_request_to_each_bookie() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(0..500);
    let asked = desk.updates.counts().requests;
    (0..500).for_each(|id| desk.advance(id, 0, 9));
    desk.go_on();
    assert_eq!(desk.requests.len(), 3);
    assert!(desk.requests.iter().all(|request| request.ledgers.len() == 500));
    desk.done("a");
    assert!(desk.reconciled().is_empty(), "one of three is no ack quorum of two");
    desk.done("c");
    assert_eq!(desk.reconciled().len(), 500);
    desk.done("b");
    assert_eq!(desk.updates.counts().requests - asked, 3);
    assert!((0..500).all(|id| desk.updates.is_settled(ledger(id))));
}

#[test]
fn one_ledger_in_a_request_and_so_many_requests_at_once() {
    for in_flight_max in [1, 4, 32] {
        let mode = UpdateMode::Single;
        let mut desk = Desk::new(UpdateSettings { in_flight_max, mode, ..UpdateSettings::default() });
        desk.introduce(0..40);
        (0..40).for_each(|id| desk.advance(id, 0, 9));
        desk.go_on();
        let mut sent = 0;
        while let Some(request) = desk.requests.first().cloned() {
            assert_eq!(desk.requests.len(), desk.updates.in_flight());
            assert!(desk.updates.in_flight() <= in_flight_max && request.ledgers.len() == 1);
            desk.requests.remove(0);
            desk.answer(&request, UpdateStatus::Done);
            sent += 1;
        }
        assert_eq!((sent, desk.reconciled().len()), (120, 40));
    }
}

/// Invariant 5.
#[test]
fn a_newer_value_waits_for_the_older_and_replaces_what_did_not_leave() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(1..2);
    desk.advance(1, 0, 9);
    desk.go_on();
    desk.advance(1, 10, 19);
    desk.advance(1, 20, 29);
    desk.go_on();
    assert_eq!(desk.requests.len(), 3, "one update of a ledger is outstanding at a bookie");
    desk.done("a");
    let second = desk.take("a");
    assert_eq!(second.ledgers[0].last, Some(entry(29)));
    assert_eq!(second.ledgers[0].extents, [extent(10, 19), extent(20, 29)]);
}

/// Invariants 3 and 4.
#[test]
fn one_ledger_that_hangs_delays_no_other() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(0..101);
    (0..100).for_each(|id| desk.advance(id, 0, 9));
    desk.go_on();
    // Ledger 7 hangs, at all bookies, and with it the requests that carry it.
    let hung: Vec<UpdateRequest> = std::mem::take(&mut desk.requests);
    assert!(hung.iter().all(|request| ids(request).contains(&7)));
    desk.advance(100, 0, 9);
    desk.go_on();
    assert!(desk.requests.iter().all(|request| ids(request) == [100]), "others go on: {:?}", desk.requests);
    ["a", "b", "c"].into_iter().for_each(|name| desk.done(name));
    assert_eq!(desk.reconciled(), [100]);
    desk.pass(Duration::from_secs(2));
    while let Some(index) = desk.requests.iter().position(|request| ids(request) != [7]) {
        let request = desk.requests.remove(index);
        assert_eq!(request.ledgers.len(), 1, "the ledgers of an overdue batch travel alone");
        desk.answer(&request, UpdateStatus::Done);
    }
    assert_eq!(desk.reconciled().len(), 100, "all but ledger 7");
    assert_eq!(desk.now, Duration::from_secs(3), "two seconds after they were sent");
    // The answer comes after all.
    desk.answer(&hung[0], UpdateStatus::Done);
    desk.answer(&hung[1], UpdateStatus::Done);
    assert_eq!(desk.reconciled().len(), 101);
}

#[test]
fn a_dead_bookie_delays_no_other_and_has_one_request_at_a_time() {
    let mut desk = Desk::new(UpdateSettings { in_flight_max: 8, ..UpdateSettings::default() });
    desk.introduce(0..50);
    for round in 0..40 {
        (0..50).for_each(|id| desk.advance(id, round * 10, round * 10 + 9));
        desk.go_on();
        while let Some(index) = desk.requests.iter().position(|request| request.bookie != bookie("b")) {
            let request = desk.requests.remove(index);
            desk.answer(&request, UpdateStatus::Done);
        }
        assert_eq!(desk.reconciled().len(), 50 * (round as usize + 1), "round {round}");
        desk.pass(Duration::from_secs(1));
        desk.requests.retain(|request| !desk.given_up.contains(&request.id));
    }
    assert!(desk.updates.counts().timeouts > 0);
    assert!(desk.updates.in_flight() <= 1, "{}", desk.updates.in_flight());
    // It is back, and learns everything.
    for _ in 0..200 {
        desk.pass(Duration::from_secs(1));
        while let Some(request) = desk.requests.pop() {
            desk.answer(&request, UpdateStatus::Done);
        }
        let wanted = desk.reports.iter().filter_map(|report| match report {
            Report::WantsExtents { ledger, .. } => Some(*ledger),
            _ => None,
        });
        for ledger in wanted.collect::<BTreeSet<_>>() {
            let all = (0..40).map(|round| extent(round * 10, round * 10 + 9)).collect();
            desk.updates.extents(desk.now, ledger, Some(all), &mut desk.reports);
        }
        desk.reports.retain(|report| !matches!(report, Report::WantsExtents { .. }));
    }
    assert!((0..50).all(|id| desk.updates.is_settled(ledger(id))));
    assert!((0..50).all(|id| desk.updates.registers(ledger(id)).len() == 3));
}

#[test]
fn a_bookie_that_keeps_everything_is_not_told_and_counts() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.bookies(&[("a", Ability::Reconciles), ("b", Ability::KeepsEverything), ("c", Ability::Absent)]);
    desk.introduce(1..2);
    desk.advance(1, 0, 9);
    desk.go_on();
    assert_eq!(desk.requests.len(), 1);
    desk.done("a");
    assert_eq!(desk.reconciled(), [1]);
    // One that is absent counts for nothing: it may come back.
    desk.bookies(&[("a", Ability::Absent), ("b", Ability::KeepsEverything), ("c", Ability::Absent)]);
    desk.advance(2, 0, 9);
    desk.go_on();
    assert!(desk.requests.is_empty() && desk.reconciled() == [1]);
    desk.pass(Duration::from_secs(10));
    assert_eq!(desk.reports.last(), Some(&Report::Late(ledger(2))));
    desk.bookies(&[("a", Ability::Reconciles), ("b", Ability::KeepsEverything), ("c", Ability::Absent)]);
    assert!(desk.requests[0].ledgers[0].extents.is_empty(), "invariant 6");
    desk.done("a");
    desk.done("a");
    assert_eq!(desk.reconciled(), [1, 2]);
}

/// Invariant 6, T2: before it is known which bookies there are, nobody has been asked, and one whose register is not known is asked
/// for it before it gets extents: they could replace those of another catalogue.
#[test]
fn registers_come_before_extents() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.updates = Updates::new(UpdateSettings::default());
    desk.updates.know(desk.now, ledger(1), &metadata("a b c"), entry(9));
    desk.updates.ask(desk.now, ledger(1), &mut desk.reports);
    desk.go_on();
    assert!(!desk.reports.contains(&Report::Asked(ledger(1))) && desk.requests.is_empty());
    desk.advance(1, 0, 9);
    desk.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles), ("c", Ability::Reconciles)]);
    assert!(desk.requests.iter().all(|request| request.ledgers[0].extents.is_empty()), "{:?}", desk.requests);
    for name in ["a", "b", "c"] {
        let request = desk.take(name);
        let register = Some(entry(99));
        let result =
            UpdateResult { ledger: ledger(1), status: UpdateStatus::Done, register, is_durable: true };
        desk.updates.on_answer(desk.now, request.id, Ok(vec![result]), &mut desk.reports);
        desk.go_on();
    }
    assert!(desk.reports.contains(&Report::Asked(ledger(1))));
    assert!(desk.reports.iter().any(|report| matches!(report, Report::Ahead { .. })), "another catalogue's");
    assert!(desk.requests.is_empty(), "nothing replaces what they have: {:?}", desk.requests);
}

#[test]
fn no_such_ledger_counts_as_done_until_there_is_more() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(1..2);
    desk.advance(1, 0, 9);
    desk.go_on();
    let request = desk.take("a");
    desk.answer(&request, UpdateStatus::NoLedger);
    desk.done("b");
    assert_eq!(desk.reconciled(), [1]);
    desk.done("c");
    desk.advance(1, 10, 19);
    desk.go_on();
    assert_eq!(desk.take("b").ledgers[0].extents, [extent(10, 19)]);
    desk.done("a"); // Asked what it has by now.
    let again = desk.take("a");
    assert_eq!(again.ledgers[0].extents, [extent(0, 9), extent(10, 19)]);
}

/// Invariant 2, T15.
#[test]
fn a_bookie_that_is_behind_gets_what_it_misses_from_its_register_on() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.updates.know(desk.now, ledger(1), &metadata("a b c"), entry(39));
    desk.updates.ask(desk.now, ledger(1), &mut desk.reports);
    desk.go_on();
    for name in ["a", "b", "c"] {
        let request = desk.take(name);
        assert_eq!((request.ledgers[0].last, request.ledgers[0].extents.len()), (None, 0), "it only asks");
        let register = (name != "b").then(|| entry(29));
        let result =
            UpdateResult { ledger: ledger(1), status: UpdateStatus::Done, register, is_durable: true };
        desk.updates.on_answer(desk.now, request.id, Ok(vec![result]), &mut desk.reports);
    }
    assert!(desk.reports.contains(&Report::Asked(ledger(1))));
    desk.advance(1, 30, 39);
    desk.go_on();
    assert_eq!(desk.take("a").ledgers[0].extents, [extent(30, 39)]);
    assert!(desk.requests.iter().all(|request| request.bookie != bookie("b")));
    assert!(desk.reports.contains(&Report::WantsExtents { ledger: ledger(1), from: entry(0) }));
    // The catalogue gives a page at a time.
    desk.updates.extents(desk.now, ledger(1), Some(vec![extent(0, 9), extent(10, 19)]), &mut desk.reports);
    desk.go_on();
    let first = desk.take("b");
    assert_eq!(first.ledgers[0].last, Some(entry(19)));
    desk.answer(&first, UpdateStatus::Done);
    desk.pass(PAGE_PAUSE);
    assert!(desk.reports.contains(&Report::WantsExtents { ledger: ledger(1), from: entry(20) }));
    desk.updates.extents(desk.now, ledger(1), Some(vec![extent(20, 29), extent(30, 39)]), &mut desk.reports);
    desk.go_on();
    assert_eq!(desk.take("b").ledgers[0].last, Some(entry(39)));
}

/// Invariant 8, T16: whoever comes late is told what the catalogue says by then.
#[test]
fn extents_are_not_kept_for_long() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(1..2);
    desk.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles), ("c", Ability::Absent)]);
    desk.advance(1, 0, 9);
    desk.go_on();
    desk.done("a");
    desk.done("b");
    let all = [("a", Ability::Reconciles), ("b", Ability::Reconciles), ("c", Ability::Reconciles)];
    desk.pass(EXTENTS_KEPT_FOR + Duration::from_secs(1));
    desk.bookies(&all);
    assert!(desk.requests.iter().all(|request| request.ledgers[0].extents.is_empty()));
    assert!(desk.reports.contains(&Report::WantsExtents { ledger: ledger(1), from: entry(0) }));
    let rewritten = TierExtent { object: extent(5, 9).object, ..extent(0, 9) };
    desk.updates.extents(desk.now, ledger(1), Some(vec![rewritten]), &mut desk.reports);
    desk.go_on();
    assert_eq!(desk.take("c").ledgers[0].extents, [rewritten]);
    // An answer that took long is no better.
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(1..2);
    desk.updates.know(desk.now, ledger(1), &metadata("a b c"), entry(9));
    desk.updates.advance(desk.now, ledger(1), entry(9), (&[], desk.now), &mut desk.reports);
    desk.pass(EXTENTS_KEPT_FOR + Duration::from_secs(1));
    desk.updates.extents(desk.now, ledger(1), Some(vec![extent(0, 9)]), &mut desk.reports);
    desk.go_on();
    assert!(desk.requests.iter().all(|request| request.ledgers[0].extents.is_empty()));
}

#[test]
fn a_register_that_is_lower_than_it_was_is_believed() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(1..2);
    desk.advance(1, 0, 9);
    desk.go_on();
    ["a", "b", "c"].into_iter().for_each(|name| desk.done(name));
    desk.advance(1, 10, 19);
    desk.go_on();
    let request = desk.take("a");
    let behind =
        UpdateResult { ledger: ledger(1), status: UpdateStatus::Behind, register: None, is_durable: true };
    desk.updates.on_answer(desk.now, request.id, Ok(vec![behind]), &mut desk.reports);
    desk.go_on();
    assert_eq!(desk.take("a").ledgers[0].extents, [extent(0, 9), extent(10, 19)]);
    assert_eq!(desk.updates.counts().behind, 1);
}

#[test]
fn answers_that_make_no_sense_are_failures_and_tried_later() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(1..2);
    let result =
        |status, register, is_durable| UpdateResult { ledger: ledger(1), status, register, is_durable };
    let nonsense = [
        Ok(vec![]),
        Ok(vec![result(UpdateStatus::Done, None, true)]),
        Ok(vec![result(UpdateStatus::Done, Some(entry(9)), false)]),
        Ok(vec![result(UpdateStatus::Behind, None, true)]),
        Ok(vec![result(UpdateStatus::Failed, None, true)]),
        Ok(vec![result(UpdateStatus::Busy, None, true)]),
        Err(RequestError::Busy),
        Err(RequestError::Failed("no".into())),
    ];
    desk.advance(1, 0, 9);
    desk.go_on();
    for answer in nonsense {
        let request = desk.take("a");
        desk.updates.on_answer(desk.now, request.id, answer.clone(), &mut desk.reports);
        desk.go_on();
        assert!(desk.requests.iter().all(|request| request.bookie != bookie("a")), "not at once: {answer:?}");
        desk.pass(RETRY_MAX);
        desk.requests.retain(|request| !desk.given_up.contains(&request.id));
        // Extents that were committed a while ago are requested again (invariant 8).
        desk.updates.extents(desk.now, ledger(1), Some(vec![extent(0, 9)]), &mut desk.reports);
        desk.go_on();
    }
    assert_eq!(desk.reports.iter().filter(|report| **report == Report::Pressure).count(), 2);
    desk.done("a");
    desk.done("b");
    assert_eq!(desk.reconciled(), [1]);
}

/// T2: a register beyond the goal is reported, and not believed.
#[test]
fn a_register_beyond_the_goal_is_reported() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.advance(1, 0, 9);
    desk.go_on();
    let request = desk.take("c");
    let ahead = UpdateResult {
        ledger: ledger(1),
        status: UpdateStatus::Done,
        register: Some(entry(99)),
        is_durable: true,
    };
    desk.updates.on_answer(desk.now, request.id, Ok(vec![ahead]), &mut desk.reports);
    let expected = Report::Ahead { ledger: ledger(1), bookie: bookie("c"), register: entry(99) };
    assert!(desk.reports.contains(&expected));
}

#[test]
fn a_ledger_that_is_forgotten_leaves_nothing() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.advance(1, 0, 9);
    desk.go_on();
    let request = desk.take("a");
    desk.updates.on_answer(desk.now, request.id, Err(RequestError::Failed("no".into())), &mut desk.reports);
    desk.updates.forget(ledger(1));
    desk.done("b");
    desk.done("c");
    assert_eq!((desk.updates.targets.len(), desk.updates.waiting.len(), desk.updates.late.len()), (0, 0, 0));
    assert_eq!((desk.updates.requests.len(), desk.reconciled().len()), (0, 0));
}

/// T15: a catalogue that was rebuilt without an object. It is asked again once a minute, said once, and who knows what is behind the gap
/// goes on.
#[test]
fn a_gap_in_the_catalogue_is_not_asked_for_ten_times_a_second() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.updates.know(desk.now, ledger(1), &metadata("a b c"), entry(39));
    desk.updates.ask(desk.now, ledger(1), &mut desk.reports);
    desk.go_on();
    for (name, register) in [("a", 9), ("b", 29), ("c", 29)] {
        let request = desk.take(name);
        let (ledger, register) = (ledger(1), Some(entry(register)));
        let result = UpdateResult { ledger, status: UpdateStatus::Done, register, is_durable: true };
        desk.updates.on_answer(desk.now, request.id, Ok(vec![result]), &mut desk.reports);
    }
    desk.updates.advance(desk.now, ledger(1), entry(39), (&[], desk.now), &mut desk.reports);
    let (mut asked, mut gaps) = (Vec::new(), 0);
    let begin = desk.now;
    while desk.now < begin + Duration::from_secs(300) {
        desk.pass(Duration::from_millis(100));
        while let Some(request) = desk.requests.pop() {
            assert_ne!(request.bookie, bookie("a"), "nothing continues its register");
            desk.answer(&request, UpdateStatus::Done);
        }
        for report in std::mem::take(&mut desk.reports) {
            match report {
                Report::WantsExtents { from, .. } => {
                    asked.push(from);
                    let rows = vec![extent(20, 29), extent(30, 39)];
                    desk.updates.extents(desk.now, ledger(1), Some(rows), &mut desk.reports);
                }
                Report::Gap { first, next, .. } => {
                    gaps += 1;
                    assert_eq!((first, next), (entry(10), entry(20)));
                }
                other => desk.reports.push(other),
            }
        }
    }
    assert!((4..=8).contains(&asked.len()) && gaps == 1, "{asked:?}");
    assert!(asked.iter().all(|from| *from == entry(10)));
    // A bookie that is away comes back without them, and what is missing is asked for meanwhile.
    let mut away = desk.clone();
    away.bookies(&[("b", Ability::Reconciles), ("c", Ability::Reconciles)]);
    away.updates.ask(away.now, ledger(1), &mut away.reports);
    away.pass(RETRY_MAX);
    assert!(!away.reports.contains(&Report::GapClosed(ledger(1))), "{:?}", away.reports);
    assert!(away.reports.iter().any(|report| matches!(report, Report::WantsExtents { .. })));
    let rows = vec![extent(10, 19), extent(20, 29), extent(30, 39)];
    away.updates.extents(away.now, ledger(1), Some(rows), &mut away.reports);
    assert!(away.reports.contains(&Report::GapClosed(ledger(1))), "the object is back");
    away.go_on();
    assert!(away.requests.iter().all(|request| request.bookie != bookie("a")), "it is not there");
    let mut replaced = desk.clone();
    replaced.updates.know(replaced.now, ledger(1), &metadata("d b c"), entry(39));
    replaced.pass(Duration::from_millis(1));
    assert!(replaced.reports.contains(&Report::GapClosed(ledger(1))), "another one took its place");
    assert_eq!(desk.updates.register_max(ledger(1)), Some(entry(39)), "b and c were told of what is behind");
    // The object is back.
    while !desk.reports.iter().any(|report| matches!(report, Report::WantsExtents { .. })) {
        desk.pass(Duration::from_secs(1));
    }
    let rows = vec![extent(10, 19), extent(20, 29), extent(30, 39)];
    desk.updates.extents(desk.now, ledger(1), Some(rows), &mut desk.reports);
    assert!(desk.reports.contains(&Report::GapClosed(ledger(1))));
    desk.go_on();
    assert_eq!(desk.take("a").ledgers[0].last, Some(entry(39)));
}

#[test]
fn a_registered_bookie_that_does_not_answer_is_known() {
    let mut desk = Desk::new(UpdateSettings::default());
    desk.introduce(1..2);
    desk.advance(1, 0, 9);
    desk.go_on();
    ["b", "c"].into_iter().for_each(|name| desk.done(name));
    let unreachable = |desk: &Desk| desk.updates.unreachable().cloned().collect::<Vec<_>>();
    let fail = |desk: &mut Desk, error: RequestError| {
        let request = desk.take("a");
        desk.updates.on_answer(desk.now, request.id, Err(error), &mut desk.reports);
        desk.pass(RETRY_MAX);
        desk.updates.extents(desk.now, ledger(1), Some(vec![extent(0, 9)]), &mut desk.reports);
        desk.go_on();
    };
    let failed = || RequestError::Failed("no route".into());
    fail(&mut desk, failed());
    fail(&mut desk, failed());
    fail(&mut desk, RequestError::Busy);
    fail(&mut desk, failed());
    fail(&mut desk, failed());
    assert_eq!(unreachable(&desk), [], "one that is busy answers");
    fail(&mut desk, failed());
    assert_eq!(unreachable(&desk), [bookie("a")]);
    let mut away = desk.clone();
    away.bookies(&[("b", Ability::Reconciles), ("c", Ability::Reconciles)]);
    assert_eq!(unreachable(&away), [], "nobody reaches it");
    desk.done("a");
    assert_eq!(unreachable(&desk), []);
}
