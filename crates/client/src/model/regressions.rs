//! Scripts of what went wrong in other clients, each named after the report, as events of the simulated world. All checks
//! of the world are on; a script asserts only what else must come of it.

use bindery_io::canary::Canaries;
use bindery_types::{BookieId, DigestType, EntryId, LedgerState, Quorum};

use super::bookie::Mode;
use super::event::{Event, StoreFate};
use super::network::{Request, Stage};
use super::world::{Call, Setup, WRITER, World};
use crate::writer::core::Step;

/// The first recoverer.
const RECOVERER: usize = 1;

/// With a bug planted, only its consequences are checked.
fn world(quorum: (usize, usize, usize), bookies: usize, planted: Option<Canaries>) -> World {
    let (e, qw, qa) = quorum;
    World::new(Setup {
        quorum: Quorum::new(e, qw, qa).unwrap(),
        bookies,
        digest: DigestType::Crc32c,
        is_prompt: true,
        is_deferred: false,
        only_outcomes: planted.is_some(),
        is_handed_over: false,
        slow_bytes_max: u64::MAX,
        keep_bytes_max: u64::MAX,
        read_ahead_entries: 1,
        canaries: planted.unwrap_or_default(),
        budget: None,
        random: None,
    })
}

/// Three bookies, one of which is away while entries 2 and 3 are written: it is held, and the writer keeps no entries for it.
/// All checks are on, even with a bug planted.
fn world_with_a_gap(planted: Canaries) -> World {
    let mut world = World::new(Setup {
        quorum: Quorum::new(3, 3, 2).unwrap(),
        bookies: 3,
        digest: DigestType::Crc32c,
        is_prompt: true,
        is_deferred: false,
        only_outcomes: false,
        is_handed_over: true,
        slow_bytes_max: u64::MAX,
        keep_bytes_max: 0,
        read_ahead_entries: 1,
        canaries: planted,
        budget: None,
        random: None,
    });
    world.append_entries(2);
    world.run(None);
    world.apply(&Event::Turn(2, Mode::Down));
    world.append_entries(1);
    world.answer(WRITER, &[2]);
    world.run(None);
    world.append_entries(1);
    world.run(None);
    assert_eq!(world.confirmed(), 3);
    assert_eq!(world.writer().map(|writer| writer.held().len()), Some(1));
    world.apply(&Event::Turn(2, Mode::Up));
    world
}

impl World {
    fn append_entries(&mut self, count: usize) {
        for _ in 0..count {
            self.apply(&Event::Append);
        }
    }

    /// A bookie carries out the oldest request of a party; its answer is then on its way.
    fn do_next(&mut self, party: usize, bookie: usize) {
        self.apply(&Event::Serve { party, bookie, is_old: false, refusal: None });
    }

    fn hear_next(&mut self, party: usize, bookie: usize) {
        let flight = self.links[&(party, bookie)].answered().next().expect("an answer is on its way");
        self.apply(&Event::Hear { party, bookie, flight, is_damaged: false });
    }

    /// Each of the bookies carries out one request of a party, and its answer arrives.
    fn answer(&mut self, party: usize, bookies: &[usize]) {
        for &bookie in bookies {
            self.do_next(party, bookie);
            self.hear_next(party, bookie);
        }
    }

    /// The writer's add of entry `lost` to a bookie times out.
    fn lose_add(&mut self, bookie: usize, lost: i64) {
        let is_it = |request: &Request| matches!(request, Request::Add { entry, .. } if entry.get() == lost);
        let flights = &self.links[&(WRITER, bookie)].flights;
        let flight = flights.iter().position(|flight| flight.is_awaited && is_it(&flight.request));
        self.apply(&Event::TimeOut { party: WRITER, bookie, flight: flight.expect("it was sent there") });
    }

    /// The connection breaks and the party hears of it. Requests that it sent are still on their way.
    fn cut(&mut self, party: usize, bookie: usize) {
        self.apply(&Event::Break { party, bookie });
        let is_heard = |world: &World| {
            let link = world.links.get(&(party, bookie));
            link.is_none_or(|link| {
                link.flights.iter().all(|flight| !matches!(flight.stage, Stage::Answered(_)))
            })
        };
        while !is_heard(self) {
            self.hear_next(party, bookie);
        }
    }

    fn store_does(&mut self, party: usize, fate: StoreFate) {
        self.apply(&Event::AskStore { party, fate });
    }

    fn store_answers(&mut self, party: usize) {
        self.apply(&Event::HearStore { party, gives_up: false });
    }

    fn change_metadata(&mut self, party: usize) {
        self.store_does(party, StoreFate::Done);
        self.store_answers(party);
    }

    /// Delivers everything under way, of one party or of all.
    fn run(&mut self, only: Option<usize>) {
        let is_of = |event: &Event| match *event {
            Event::Serve { party, .. }
            | Event::Hear { party, .. }
            | Event::AskStore { party, .. }
            | Event::HearStore { party, .. } => only.is_none_or(|only| only == party),
            _ => true,
        };
        while let Some(event) = self.deliveries().into_iter().find(is_of) {
            self.apply(&event);
        }
    }

    fn begin_recovery(&mut self) {
        self.apply(&Event::StartRecovery);
        self.change_metadata(RECOVERER);
    }

    fn confirmed(&self) -> i64 {
        self.ghost.confirmed
    }

    fn closed_at(&self) -> Option<i64> {
        self.end().map(|(last, _)| EntryId::to_wire(last))
    }

    fn ensemble_of(&self, segment: usize) -> Vec<usize> {
        self.metadata().segments()[segment]
            .ensemble
            .iter()
            .map(|bookie: &BookieId| self.index(bookie))
            .collect()
    }

    /// How many requests about an entry a party has sent whose answers it awaits.
    fn asks_about(&self, party: usize, wanted: i64) -> usize {
        let links = self.links.iter().filter(|((from, _), _)| *from == party);
        let flights = links.flat_map(|(_, link)| &link.flights).filter(|flight| flight.is_awaited);
        flights
            .filter(|flight| match &flight.request {
                Request::Add { entry, .. } => entry.get() == wanted,
                Request::Read { entry, .. } => *entry == EntryId::new(wanted),
                Request::WriteLac { .. } | Request::Force { .. } => false,
            })
            .count()
    }
}

/// R8: two entries are under way when a third fails everywhere; the bookies that were replaced acknowledge them late, while
/// the change is being written and after it.
fn late_acks_of_replaced_bookies(planted: Option<Canaries>) -> World {
    let mut world = world((2, 2, 1), 4, planted);
    world.append_entries(8);
    for _ in 0..5 {
        world.answer(WRITER, &[0, 1]);
    }
    assert_eq!(world.confirmed(), 4);
    for bookie in [0, 0, 1, 1] {
        world.do_next(WRITER, bookie);
    }
    // So that it is not chosen again for the other position.
    world.apply(&Event::TurnReadOnly(0, true));
    world.lose_add(0, 7);
    world.hear_next(WRITER, 1);
    assert_eq!(world.confirmed(), 4, "nothing is confirmed while the ensemble changes");
    world.store_does(WRITER, StoreFate::Done);
    world.lose_add(1, 7);
    world.store_answers(WRITER);
    world.change_metadata(WRITER);
    assert_eq!(world.ensemble_of(1), [2, 3]);
    for bookie in [0, 0, 1] {
        world.hear_next(WRITER, bookie);
    }
    world
}

#[test]
fn bk_4651_acks_of_replaced_bookies_complete_nothing() {
    let mut world = late_acks_of_replaced_bookies(None);
    assert_eq!(world.confirmed(), 4, "IC11: late acks are not those of the successors");
    world.run(None);
    assert_eq!(world.confirmed(), 7);
}

/// R9: an entry is complete and waits for the one before it; both of its bookies are replaced, one after the other.
#[test]
fn bk_4097_an_entry_that_waits_is_complete_with_acks_of_present_members_only() {
    let mut world = world((6, 2, 2), 8, None);
    world.append_entries(2);
    // Entry 1 is on bookies 1 and 2, entry 0 on 0 and 1.
    world.do_next(WRITER, 1);
    world.answer(WRITER, &[1, 2]);
    world.lose_add(0, 0);
    world.change_metadata(WRITER);
    assert_eq!((world.confirmed(), world.ensemble_of(0)), (-1, vec![6, 1, 2, 3, 4, 5]));
    world.append_entries(2);
    // Entry 2 goes to 2 and 3.
    world.lose_add(2, 2);
    world.change_metadata(WRITER);
    assert_eq!(world.ensemble_of(0), [6, 1, 0, 3, 4, 5]);
    world.run(None);
    assert_eq!(world.confirmed(), 3);
}

/// R11: the metadata store does not answer; one bookie after the other fails, the others acknowledge everything.
#[test]
fn bk_1591_nothing_is_confirmed_on_an_ensemble_that_is_not_in_metadata() {
    let mut world = world((3, 3, 2), 6, None);
    world.append_entries(1);
    world.lose_add(0, 0);
    world.answer(WRITER, &[1, 2]);
    for lost in [1, 2] {
        world.append_entries(1);
        world.lose_add(lost as usize, lost);
        assert!(
            matches!(world.parties[WRITER].call, Call::Asked(Step::Write { .. })),
            "IC11: one change at a time"
        );
        assert_eq!(world.confirmed(), -1, "IC1");
    }
    world.run(None);
    assert_eq!(world.confirmed(), 2);
    assert_eq!(world.ensemble_of(world.metadata().segments().len() - 1), [3, 0, 4]);
}

/// R13: the fence does not reach bookie 2; bookies 0 and 2 have not got the entry, 1 has acknowledged it.
fn fence_that_is_lost(planted: Option<Canaries>) -> World {
    let mut world = world((3, 3, 2), 3, planted);
    world.append_entries(1);
    world.do_next(WRITER, 1);
    world.begin_recovery();
    world.cut(RECOVERER, 2);
    world.answer(RECOVERER, &[0, 1]);
    world.answer(RECOVERER, &[0, 2]);
    world.change_metadata(RECOVERER);
    assert_eq!(world.closed_at(), Some(-1));
    world.hear_next(WRITER, 1);
    world.do_next(WRITER, 2);
    world.hear_next(WRITER, 2);
    world
}

#[test]
fn bk_2614_a_bookie_that_the_fence_did_not_reach_takes_nothing_behind_the_recovery() {
    let world = fence_that_is_lost(None);
    assert_eq!(world.confirmed(), -1, "IC5, IC7");
}

/// R14: the last ensemble is empty, and its members know nothing of what was confirmed before it.
#[test]
fn bk_2615_a_recovery_of_an_empty_last_ensemble_leaves_what_is_before_it_alone() {
    let mut world = world((3, 3, 2), 5, None);
    world.append_entries(1);
    world.answer(WRITER, &[0, 1, 2]);
    world.append_entries(1);
    world.lose_add(2, 1);
    world.change_metadata(WRITER);
    assert_eq!((world.confirmed(), world.ensemble_of(1)), (0, vec![0, 1, 3]));
    world.apply(&Event::Kill(WRITER));
    world.begin_recovery();
    world.answer(RECOVERER, &[0, 1, 3]);
    assert_eq!((world.asks_about(RECOVERER, 0), world.asks_about(RECOVERER, 1)), (0, 3), "IC12");
    world.run(None);
    let closed_at = world.closed_at().unwrap();
    assert!((0..=1).contains(&closed_at));
    let starts: Vec<i64> =
        world.metadata().segments().iter().map(|segment| segment.first_entry.get()).collect();
    assert_eq!(starts, [0, 1], "IC12: no segment before the last one");
}

/// R15: bookies 0 and 2 of four are in every pair of neighbours; 0 and 1 are not.
#[test]
fn bk_2303_coverage_is_neither_too_weak_nor_out_of_reach() {
    let fenced = |answering: &[usize]| {
        let mut world = world((4, 2, 2), 4, None);
        world.begin_recovery();
        world.answer(RECOVERER, answering);
        world.asks_about(RECOVERER, 0) > 0
    };
    assert!(fenced(&[0, 2]) && fenced(&[1, 3]), "IC20: it goes on with bookies 1 and 3 silent");
    assert!(!fenced(&[0, 1]), "IC4: an ack quorum may be on 2 and 3");
    assert!(!fenced(&[3]) && fenced(&[0, 1, 2]));
}

/// R34: the answer to the first change is lost, a second bookie fails, and the one that was replaced is back.
#[test]
fn bk_1886_a_second_change_waits_until_the_first_is_known() {
    let mut world = world((3, 3, 2), 4, None);
    world.append_entries(1);
    world.answer(WRITER, &[2]);
    world.lose_add(0, 0);
    world.store_does(WRITER, StoreFate::LostAfter);
    world.lose_add(1, 0);
    world.store_answers(WRITER);
    assert!(matches!(world.parties[WRITER].call, Call::Asked(Step::Read)), "IC14: it looks first");
    world.change_metadata(WRITER);
    assert_eq!((world.ensemble_of(0), world.confirmed()), (vec![3, 1, 2], -1));
    world.change_metadata(WRITER);
    assert_eq!(world.ensemble_of(0), [3, 0, 2], "the member that was replaced is back in another place");
    world.run(None);
    assert_eq!(world.confirmed(), 0, "IC11: by acks that were given since");
}

/// R37: the one copy of the entry is found, and nothing that is sent afterwards arrives.
#[test]
fn bk_3466_a_ledger_does_not_end_with_an_entry_that_was_not_stored_again() {
    let mut world = world((2, 2, 2), 2, None);
    world.append_entries(1);
    world.do_next(WRITER, 0);
    world.apply(&Event::Kill(WRITER));
    world.begin_recovery();
    world.answer(RECOVERER, &[0, 1]);
    world.answer(RECOVERER, &[0]);
    assert!(world.asks_about(RECOVERER, 0) > 0, "it is being added again");
    world.cut(RECOVERER, 0);
    world.cut(RECOVERER, 1);
    world.run(Some(RECOVERER));
    assert_eq!(world.recoverers(), 0, "it failed");
    assert_eq!(world.metadata().state, LedgerState::InRecovery, "IC15: not closed");
    world.apply(&Event::StartRecovery);
    world.run(None);
    assert_eq!(world.closed_at(), Some(0));
    assert_eq!(world.copies(world.metadata(), EntryId::FIRST), 2, "IC10");
}

/// R10: the disks of two bookies are lost after the ledger was closed, and its writer still adds. They are not the bookies
/// that the segment began with, so they are failures for it, and what metadata says is looked up.
#[test]
fn bk_4812_bookies_with_new_disks_acknowledge_nothing_of_a_closed_ledger() {
    let mut world = world((3, 3, 2), 3, None);
    world.append_entries(1);
    world.answer(WRITER, &[0, 1, 2]);
    world.begin_recovery();
    world.run(Some(RECOVERER));
    assert_eq!(world.closed_at(), Some(0));
    for bookie in [0, 1] {
        world.apply(&Event::LoseDisks(bookie));
        world.apply(&Event::Turn(bookie, Mode::Up));
    }
    world.run(None);
    world.append_entries(1);
    world.run(None);
    assert_eq!(world.confirmed(), 0, "IC7, IC16");
    assert!(world.writer().is_none(), "it was told");
}

/// R12: one of three bookies comes back with empty disks and says that it cannot tell; another one is away.
#[test]
fn bk_2612_a_bookie_with_new_disks_is_no_knowledge() {
    let mut world = world((3, 3, 2), 3, None);
    world.append_entries(1);
    world.answer(WRITER, &[0, 1]);
    assert_eq!(world.confirmed(), 0);
    world.apply(&Event::Kill(WRITER));
    world.apply(&Event::LoseDisks(0));
    world.apply(&Event::Turn(0, Mode::Up));
    world.apply(&Event::Turn(1, Mode::Down));
    world.begin_recovery();
    world.run(None);
    assert_eq!(world.closed_at(), None, "IC6, IC16: two bookies are no ack quorum's worth of knowledge");
    world.apply(&Event::Turn(1, Mode::Up));
    world.apply(&Event::StartRecovery);
    world.run(None);
    assert_eq!(world.closed_at(), Some(0), "IC7");
}

/// R50: of three bookies one answers the fence with damaged bytes, one not at all.
#[test]
fn r50_a_damaged_answer_is_no_knowledge() {
    let mut world = world((3, 3, 2), 3, None);
    world.append_entries(1);
    world.answer(WRITER, &[0, 1]);
    assert_eq!(world.confirmed(), 0);
    world.apply(&Event::Kill(WRITER));
    world.begin_recovery();
    world.cut(RECOVERER, 1);
    world.answer(RECOVERER, &[2]);
    world.do_next(RECOVERER, 0);
    world.apply(&Event::Hear { party: RECOVERER, bookie: 0, flight: 0, is_damaged: true });
    assert_eq!(world.recoverers(), 0, "IC6: it cannot know, and fails");
    assert_eq!(world.closed_at(), None);
    world.apply(&Event::StartRecovery);
    world.run(None);
    assert_eq!(world.closed_at(), Some(0), "IC7");
}

/// Found by reading: a bookie that was held is back when the next writer comes, and gets its entries. Java's checker finds the
/// first and the last entry of the segment, and takes the bookie for complete.
fn handed_over_with_a_gap(planted: Canaries) -> World {
    let mut world = world_with_a_gap(planted);
    world.apply(&Event::HandOver);
    world.run(None);
    assert!(world.writer().is_none());
    // Java's checker knew of a LAC before the gap, and removed the mark. Looking again, it marks the ledger again.
    let marks = std::mem::take(&mut world.marks);
    world.apply(&Event::TakeOver);
    world.append_entries(2);
    world.run(None);
    assert_eq!(world.confirmed(), 5);
    world.marks = marks;
    world.apply(&Event::BeginClose);
    world.run(None);
    assert_eq!(world.closed_at(), Some(5));
    world
}

/// The same, with a recovery that adds entry 4 to all three.
fn recovered_with_a_gap(planted: Canaries) -> World {
    let mut world = world_with_a_gap(planted);
    world.append_entries(1);
    world.do_next(WRITER, 0);
    world.apply(&Event::Kill(WRITER));
    world.apply(&Event::StartRecovery);
    world.run(None);
    assert_eq!(world.closed_at(), Some(4));
    world
}

impl World {
    fn starts(&self) -> Vec<i64> {
        self.metadata().segments().iter().map(|segment| segment.first_entry.get()).collect()
    }

    /// Entries that a bookie has.
    fn entries_of(&self, bookie: usize) -> Vec<i64> {
        self.bookies[bookie].memory().entries.keys().copied().collect()
    }
}

#[test]
fn a_gap_ends_where_the_next_writer_or_a_recovery_begins() {
    let world = handed_over_with_a_gap(Canaries::none());
    assert_eq!((world.starts(), world.entries_of(2)), (vec![0, 4], vec![0, 1, 4, 5]), "IC23");
    let world = recovered_with_a_gap(Canaries::none());
    assert_eq!((world.starts(), world.entries_of(2)), (vec![0, 4], vec![0, 1, 4]), "IC23");
}

/// The same with the cure taken out, which each script must notice.
#[cfg(debug_assertions)]
#[test]
fn every_canary_of_a_gap_is_found() {
    use bindery_io::canary::Canary;

    type Script = fn(Canaries) -> World;
    std::panic::set_hook(Box::new(|_| {}));
    let scripts: [(Canary, Script); 2] = [
        (Canary::M39RecoversIntoTheSegment, recovered_with_a_gap),
        (Canary::M40HandsOverTheSegment, handed_over_with_a_gap),
    ];
    for (canary, script) in scripts {
        let outcome = std::panic::catch_unwind(|| drop(script(Canaries::only(canary))));
        let text = outcome.err().map(|panic| super::text_of(&*panic));
        assert!(text.as_ref().is_some_and(|text| text.contains("IC23")), "{canary:?}: {text:?}");
    }
    let _ = std::panic::take_hook();
}

/// The scripts of #2614 and #4651 fail when their bugs are planted.
#[cfg(debug_assertions)]
#[test]
fn every_canary_of_a_script_is_found() {
    use bindery_io::canary::Canary;

    type Script = fn(Option<Canaries>) -> World;
    let scripts: [(Canary, Script, &str); 2] = [
        (Canary::M16ReadsWithoutFence, fence_that_is_lost, "IC7"),
        (Canary::M18ReplacedAckCounts, late_acks_of_replaced_bookies, "IC1"),
    ];
    for (canary, script, id) in scripts {
        let outcome = std::panic::catch_unwind(|| drop(script(Some(Canaries::only(canary)))));
        let text = outcome.err().map(|panic| super::text_of(&*panic));
        assert!(text.as_ref().is_some_and(|text| text.contains(id)), "{canary:?}: {text:?}");
    }
}
