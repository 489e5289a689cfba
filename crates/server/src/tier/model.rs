//! A model of trimming: ledgers are written, reconciled, closed, deleted and come back, objects go bad, time passes, and each
//! ledger that the trimmer lets go is held against the rules. The same swarm must find the canaries.

use super::trimmer::{Candidate, Room, TrimConfig, Trimmer, Verdict};
use bindery_io::canary::{Canaries, Canary};
use bindery_types::{DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::time::Duration;

const LEDGERS: i64 = 4;
const SECOND_NS: u64 = 1_000_000_000;

/// A ledger as it is, whatever the trimmer believes.
#[derive(Debug, Clone)]
struct Ledger {
    life: u32,
    /// The last entry that was written.
    last: i64,
    lre: i64,
    is_closed: bool,
    is_deleted: bool,
    has_property: bool,
    /// Its copy in object storage is the same.
    is_same: bool,
    is_trimmed: bool,
    changed_ns: u64,
}

#[derive(Debug, Clone)]
enum Op {
    Write(i64, i64),
    Reconcile(i64),
    Close(i64),
    Delete(i64),
    ComeBack(i64),
    Alter(i64, bool),
    Pass(u64),
    Round { free: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let of = || 0..LEDGERS;
    prop_oneof![
        4 => (of(), 1..5_i64).prop_map(|(ledger, more)| Op::Write(ledger, more)),
        5 => of().prop_map(Op::Reconcile),
        3 => of().prop_map(Op::Close),
        1 => of().prop_map(Op::Delete),
        1 => of().prop_map(Op::ComeBack),
        2 => (of(), any::<bool>()).prop_map(|(ledger, is_same)| Op::Alter(ledger, is_same)),
        4 => (0..400_u64).prop_map(Op::Pass),
        6 => (0..100_u64).prop_map(|free| Op::Round { free }),
    ]
}

fn config() -> TrimConfig {
    TrimConfig {
        grace: Duration::from_secs(300),
        grace_when_short: Duration::from_secs(60),
        properties: vec![("application".into(), "pulsar".into())],
        recheck: Duration::from_secs(100),
        ..TrimConfig::default()
    }
}

fn metadata(ledger: &Ledger) -> LedgerMetadata {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).expect("a quorum"), secret);
    if ledger.is_closed {
        let last_entry = EntryId::new(ledger.last);
        metadata.state = LedgerState::Closed { last_entry, length_bytes: 10 };
    }
    if ledger.has_property {
        metadata.custom.insert("application".into(), b"pulsar".to_vec());
    }
    metadata
}

struct World {
    trimmer: Trimmer,
    now_ns: u64,
    ledgers: BTreeMap<i64, Ledger>,
    trims: usize,
}

impl World {
    fn new(canaries: Canaries) -> World {
        let ledger = |id: i64| Ledger {
            life: 0,
            last: -1,
            lre: -1,
            is_closed: false,
            is_deleted: false,
            has_property: id != 3,
            is_same: true,
            is_trimmed: false,
            changed_ns: 0,
        };
        World {
            trimmer: Trimmer::new(config(), canaries),
            now_ns: 0,
            ledgers: (0..LEDGERS).map(|id| (id, ledger(id))).collect(),
            trims: 0,
        }
    }

    fn apply(&mut self, op: &Op) -> Result<(), String> {
        let (now_ns, ledgers) = (self.now_ns, &mut self.ledgers);
        match op {
            Op::Write(id, more) => {
                let ledger = ledgers.get_mut(id).expect("one of them");
                if !ledger.is_closed && !ledger.is_deleted {
                    ledger.last += more;
                }
            }
            Op::Reconcile(id) => {
                let ledger = ledgers.get_mut(id).expect("one of them");
                if !ledger.is_deleted && ledger.lre < ledger.last {
                    // Now and then not all of it.
                    ledger.lre = ledger.last - i64::from(ledger.last - ledger.lre > 3);
                    ledger.changed_ns = now_ns;
                }
            }
            Op::Close(id) => ledgers.get_mut(id).expect("one of them").is_closed = true,
            Op::Delete(id) => ledgers.get_mut(id).expect("one of them").is_deleted = true,
            Op::ComeBack(id) => {
                let ledger = ledgers.get_mut(id).expect("one of them");
                if ledger.is_deleted {
                    *ledger = Ledger {
                        life: ledger.life + 1,
                        last: -1,
                        lre: -1,
                        is_closed: false,
                        is_deleted: false,
                        is_same: true,
                        is_trimmed: false,
                        changed_ns: now_ns,
                        ..*ledger
                    };
                }
            }
            Op::Alter(id, is_same) => ledgers.get_mut(id).expect("one of them").is_same = *is_same,
            Op::Pass(seconds) => self.now_ns += seconds * SECOND_NS,
            Op::Round { free } => return self.round(*free),
        }
        Ok(())
    }

    /// As the task does it.
    fn round(&mut self, free: u64) -> Result<(), String> {
        let candidates: Vec<Candidate> = self
            .ledgers
            .iter()
            .filter(|(_, ledger)| !ledger.is_trimmed && ledger.lre >= 0)
            .map(|(id, ledger)| Candidate {
                ledger: LedgerId::new(*id).expect("an id"),
                life: ledger.life,
                lre: EntryId::new(ledger.lre).expect("an id"),
            })
            .collect();
        self.trimmer.observe(self.now_ns, candidates.into_iter());
        let lacking =
            self.trimmer.lacking(self.now_ns, Room { local_bytes: 100, disk_bytes: 100, free_bytes: free });
        for candidate in self.trimmer.due(self.now_ns, lacking > 0, 100) {
            let ledger = &self.ledgers[&candidate.ledger.get()];
            if ledger.is_deleted {
                self.trimmer.put_off(self.now_ns, candidate.ledger, Duration::from_secs(60));
                continue;
            }
            match self.trimmer.judge(&candidate, &metadata(ledger)) {
                Verdict::MayGo if self.trimmer.allows(ledger.is_same) => {
                    self.check_trim(&candidate, lacking > 0)?;
                    self.trimmer.trimmed(self.now_ns, candidate.ledger, 10);
                    self.trims += 1;
                    let ledger = self.ledgers.get_mut(&candidate.ledger.get()).expect("one of them");
                    ledger.is_trimmed = true;
                }
                Verdict::MayGo | Verdict::Beyond { .. } => {
                    self.trimmer.block(self.now_ns, 0, candidate.ledger, "it differs".into());
                    if !self.trimmer.blocked().contains_key(&candidate.ledger) {
                        return Err("trimmer invariant 4: it is not shown".into());
                    }
                }
                Verdict::NotYet | Verdict::NotWanted => {
                    self.trimmer.put_off(self.now_ns, candidate.ledger, Duration::from_secs(60));
                }
            }
        }
        Ok(())
    }

    /// The rules, from the outside.
    fn check_trim(&self, candidate: &Candidate, is_short: bool) -> Result<(), String> {
        let ledger = &self.ledgers[&candidate.ledger.get()];
        let grace = if is_short { config().grace_when_short } else { config().grace };
        let age_ns = self.now_ns - ledger.changed_ns;
        let rules = [
            (ledger.is_closed && ledger.lre == ledger.last, "T9: closed, and all of it in object storage"),
            (!ledger.is_deleted && candidate.life == ledger.life, "T9: the ledger that was looked at"),
            (u128::from(age_ns) >= grace.as_nanos(), "T9: the grace is over"),
            (ledger.is_same, "T19: nothing goes whose copy differs"),
            (ledger.has_property, "only what the policy names"),
        ];
        match rules.into_iter().find(|(is_kept, _)| !is_kept) {
            None => Ok(()),
            Some((_, rule)) => Err(format!("{rule}: {candidate:?} {ledger:?}")),
        }
    }
}

/// How many ledgers the swarm let go, or the first rule that it found broken.
fn swarm(canaries: Canaries) -> Result<usize, String> {
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let trims = std::cell::Cell::new(0);
    let run = |ops: Vec<Op>| {
        let mut world = World::new(canaries);
        for op in &ops {
            world.apply(op).map_err(TestCaseError::fail)?;
        }
        trims.set(trims.get() + world.trims);
        Ok(())
    };
    match runner.run(&prop::collection::vec(op(), 20..160), run) {
        Ok(()) => Ok(trims.get()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn ledgers_go_by_the_rules_and_they_do_go() {
    let trims = swarm(Canaries::none()).expect("no rule is broken");
    assert!(trims > 100, "{trims}");
}

#[test]
#[cfg(debug_assertions)]
fn canary_t9_and_t19_are_found_by_the_same_swarm() {
    for (canary, rule) in [(Canary::T9TrimsBeforeTheEnd, "T9"), (Canary::T19DifferenceIgnored, "T19")] {
        let found = swarm(Canaries::only(canary)).expect_err("a planted bug must be found");
        assert!(found.contains(rule), "{found}");
    }
}

#[test]
fn no_more_goes_before_its_time_than_space_asks_for() {
    let mut trimmer = Trimmer::new(TrimConfig::default(), Canaries::none());
    let full = Room { local_bytes: 900, disk_bytes: 1_000, free_bytes: 100 };
    assert_eq!(trimmer.lacking(0, full), 100, "a fifth is to be free");
    let candidate =
        |id: i64| Candidate { ledger: LedgerId::new(id).unwrap(), life: 0, lre: EntryId::new(3).unwrap() };
    trimmer.observe(0, (0..3).map(candidate));
    assert!(trimmer.due(599 * SECOND_NS, true, 10).is_empty());
    assert_eq!(trimmer.due(600 * SECOND_NS, true, 2), [candidate(0), candidate(1)]);
    assert!(trimmer.due(600 * SECOND_NS, false, 2).is_empty());
    trimmer.trimmed(0, candidate(0).ledger, 60);
    assert_eq!(trimmer.lacking(0, full), 40, "what goes is on its way");
    // Some of it has come back.
    assert_eq!(trimmer.lacking(0, Room { local_bytes: 860, free_bytes: 140, ..full }), 40);
    assert_eq!(trimmer.lacking(0, Room { local_bytes: 860, free_bytes: 200, ..full }), 0);
    assert!(trimmer.is_of_age(14_400 * SECOND_NS, candidate(1).ledger));
    // Another life is another ledger.
    trimmer.observe(20_000 * SECOND_NS, std::iter::once(Candidate { life: 1, ..candidate(1) }));
    assert!(trimmer.due(20_000 * SECOND_NS, true, 10).is_empty());
    assert_eq!(trimmer.counts(), (0, 1));
}

/// Invariant 5: clients that write as fast as space comes back hide that it does.
#[test]
fn space_that_is_not_seen_to_come_back_is_not_waited_for_without_end() {
    let mut trimmer = Trimmer::new(TrimConfig::default(), Canaries::none());
    let full = Room { local_bytes: 900, disk_bytes: 1_000, free_bytes: 100 };
    let minute = 60 * SECOND_NS;
    for round in 0..200 {
        let lacking = trimmer.lacking(round * minute, full);
        trimmer.trimmed(round * minute, LedgerId::new(round as i64).unwrap(), lacking);
    }
    // Space that was let go in the last hour is on its way, and no more goes than is lacking.
    assert_eq!(trimmer.lacking(200 * minute, full), 0);
    assert_eq!(trimmer.lacking(400 * minute, full), 100, "an hour later it lacks again");
}

/// Invariant 3: however many ledgers may not go, each comes to its turn, and new ones come first.
#[test]
fn ledgers_that_may_not_go_hold_up_nobody() {
    const LEDGERS: i64 = 25_000;
    const ROUND: usize = 10_000;
    let mut trimmer =
        Trimmer::new(TrimConfig { grace: Duration::ZERO, ..TrimConfig::default() }, Canaries::none());
    let candidate =
        |id: i64| Candidate { ledger: LedgerId::new(id).unwrap(), life: 0, lre: EntryId::new(3).unwrap() };
    let (mut now_ns, mut seen) = (SECOND_NS, std::collections::BTreeSet::new());
    let mut round = |trimmer: &mut Trimmer, ledgers: i64| {
        trimmer.observe(now_ns, (0..ledgers).map(candidate));
        let due = trimmer.due(now_ns, false, ROUND);
        for candidate in &due {
            // As many as come in a second.
            now_ns += SECOND_NS / 20;
            trimmer.put_off(now_ns, candidate.ledger, Duration::from_secs(600));
        }
        due.iter().map(|candidate| candidate.ledger.get()).collect::<Vec<_>>()
    };
    for _ in 0..4 {
        seen.extend(round(&mut trimmer, LEDGERS));
    }
    assert_eq!(seen.len(), LEDGERS as usize, "each had its turn");
    assert_eq!(
        round(&mut trimmer, LEDGERS + 1).first(),
        Some(&LEDGERS),
        "one that was never considered comes first"
    );
}

/// Invariant 4: soon at first, then ever more rarely; at once when an operator says so.
#[test]
fn a_ledger_that_differs_is_checked_again_soon() {
    let mut trimmer =
        Trimmer::new(TrimConfig { grace: Duration::ZERO, ..TrimConfig::default() }, Canaries::none());
    let candidate = Candidate { ledger: LedgerId::new(1).unwrap(), life: 0, lre: EntryId::new(3).unwrap() };
    trimmer.observe(0, std::iter::once(candidate));
    let mut now_ns = 0;
    for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(trimmer.due(now_ns, false, 9), [candidate]);
        trimmer.block(now_ns, 0, candidate.ledger, "it is gone".into());
        let pause_ns = minutes * 60 * SECOND_NS;
        assert!(trimmer.due(now_ns + pause_ns - 1, false, 9).is_empty(), "{minutes} minutes");
        now_ns += pause_ns;
    }
    trimmer.block(now_ns, 0, candidate.ledger, "it is gone".into());
    assert!(trimmer.due(now_ns + 1, false, 9).is_empty());
    trimmer.recheck();
    assert_eq!(trimmer.due(now_ns + 1, false, 9), [candidate]);
    trimmer.unblock(candidate.ledger);
    assert_eq!(trimmer.counts(), (0, 1));
}
