//! Compares the copies of entries and counts what is wrong with them, without I/O.
//!
//! # Invariants
//! 1. Each copy is counted once, under the bookie that should have it, with at most one fault.
//! 2. Copies are equal when payload and length are: the LAC (last add confirmed) in the header is of the moment, and
//!    differs where a recovery stored an entry again (protocol reference, section 7.6).
//! 3. An entry is below its ack quorum only if copies on bookies that could not be asked would not make up for it.
//!
//! # Limits     findings: [`FINDINGS_MAX`]; one open run for each bookie

use std::collections::{BTreeMap, HashMap};

use bindery_types::{BookieId, EntryId, LedgerId};

use super::report::{CopyCounts, FINDINGS_MAX, Fault, Finding, VerifyReport};
use crate::entry::Entry;
use crate::transport::BookieError;

/// What one bookie returned for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Copy {
    /// An entry with the right ids and a valid digest.
    Sound(Entry),
    Missing,
    /// `None`: it returned bytes that are no such entry; else it could not read it.
    Damaged(Option<BookieError>),
    Unreachable(BookieError),
}

/// A run of faults that the next copy of the bookie may go on with.
struct Run {
    fault: Fault,
    /// Its finding, unless that was left out.
    finding: Option<usize>,
}

/// See the module.
pub(super) struct Tally {
    report: VerifyReport,
    runs: HashMap<BookieId, Run>,
}

impl Tally {
    /// Nothing counted yet. `last` is `None` when there is nothing to count.
    pub fn new(
        ledger: LedgerId,
        is_closed: bool,
        ack_quorum_size: usize,
        first: EntryId,
        last: Option<EntryId>,
    ) -> Tally {
        let report = VerifyReport {
            ledger,
            is_closed,
            ack_quorum_size,
            first,
            last,
            entries: 0,
            payload_bytes: 0,
            bookies: BTreeMap::new(),
            below_ack_quorum: 0,
            lost: 0,
            undecided: 0,
            first_below: None,
            findings: Vec::new(),
            findings_left_out: 0,
        };
        Tally { report, runs: HashMap::new() }
    }

    pub fn report(&self) -> &VerifyReport {
        &self.report
    }

    pub fn into_report(self) -> VerifyReport {
        self.report
    }

    /// Counts an entry: the copies of its write set. Entries come in ascending order.
    pub fn count(&mut self, entry: EntryId, copies: &[(&BookieId, Copy)]) {
        let majority = majority(copies);
        let (mut equal, mut sound, mut unreachable) = (0, 0, 0);
        for (index, (bookie, copy)) in copies.iter().enumerate() {
            let (fault, error) = match copy {
                Copy::Sound(_) => {
                    sound += 1;
                    match majority.is_some_and(|majority| is_equal(copy, &copies[majority].1)) {
                        true => {
                            equal += 1;
                            (None, None)
                        }
                        false => (Some(Fault::Different), None),
                    }
                }
                Copy::Missing => (Some(Fault::Missing), None),
                Copy::Damaged(error) => (Some(Fault::Damaged), error.clone()),
                Copy::Unreachable(error) => {
                    unreachable += 1;
                    (Some(Fault::Unreachable), Some(error.clone()))
                }
            };
            debug_assert!(
                copies[..index].iter().all(|(other, _)| other != bookie),
                "a write set has no doubles"
            );
            self.count_copy(bookie, entry, fault, error);
        }
        let report = &mut self.report;
        report.entries += 1;
        // Of copies that differ any will do: they count as bytes, not as sound.
        let any = copies.iter().find_map(|(_, copy)| match copy {
            Copy::Sound(found) => Some(found.payload.len() as u64),
            _ => None,
        });
        report.payload_bytes += any.unwrap_or(0);
        if equal >= report.ack_quorum_size {
            return;
        }
        report.first_below.get_or_insert(entry);
        if equal + unreachable >= report.ack_quorum_size {
            report.undecided += 1;
            return;
        }
        report.below_ack_quorum += 1;
        if sound == 0 && unreachable == 0 {
            report.lost += 1;
        }
    }

    fn count_copy(
        &mut self,
        bookie: &BookieId,
        entry: EntryId,
        fault: Option<Fault>,
        error: Option<BookieError>,
    ) {
        let report = &mut self.report;
        let counts = match report.bookies.get_mut(bookie) {
            Some(counts) => counts,
            None => report.bookies.entry(bookie.clone()).or_default(),
        };
        counts.checked += 1;
        let Some(fault) = fault else {
            self.runs.remove(bookie);
            return;
        };
        CopyCounts::count(counts, fault);
        if let Some(run) = self.runs.get(bookie).filter(|run| run.fault == fault) {
            if let Some(index) = run.finding {
                let finding = &mut report.findings[index];
                finding.last = entry;
                finding.entries += 1;
            }
            return;
        }
        let finding = (report.findings.len() < FINDINGS_MAX).then_some(report.findings.len());
        match finding {
            None => report.findings_left_out += 1,
            Some(_) => report.findings.push(Finding {
                bookie: bookie.clone(),
                fault,
                first: entry,
                last: entry,
                entries: 1,
                error,
            }),
        }
        self.runs.insert(bookie.clone(), Run { fault, finding });
    }
}

fn is_equal(one: &Copy, other: &Copy) -> bool {
    match (one, other) {
        (Copy::Sound(one), Copy::Sound(other)) => {
            one.length_bytes == other.length_bytes && one.payload == other.payload
        }
        _ => false,
    }
}

/// A copy that more sound copies are equal to than to any other; `None` when no value has most.
fn majority(copies: &[(&BookieId, Copy)]) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    let mut is_tie = false;
    for (index, (_, copy)) in copies.iter().enumerate() {
        let is_counted = copies[..index].iter().any(|(_, other)| is_equal(copy, other));
        if is_counted || !matches!(copy, Copy::Sound(_)) {
            continue;
        }
        let equal = copies[index..].iter().filter(|(_, other)| is_equal(copy, other)).count();
        match best {
            Some((_, most)) if equal < most => {}
            Some((_, most)) if equal == most => is_tie = true,
            _ => {
                best = Some((index, equal));
                is_tie = false;
            }
        }
    }
    best.filter(|_| !is_tie).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn at(entry: i64) -> EntryId {
        EntryId::new(entry).unwrap()
    }

    fn sound(payload: &'static str) -> Copy {
        let payload = Bytes::from_static(payload.as_bytes());
        Copy::Sound(Entry { id: at(0), payload, last_add_confirmed: None, length_bytes: 1 })
    }

    /// Counts entries of 3 copies on a, b, c with an ack quorum of 2.
    fn report(entries: Vec<[Copy; 3]>) -> VerifyReport {
        let ids = ["a", "b", "c"].map(id);
        let mut tally = Tally::new(LedgerId::new(1).unwrap(), true, 2, at(0), Some(at(9)));
        for (entry, copies) in entries.into_iter().enumerate() {
            let copies: Vec<(&BookieId, Copy)> = ids.iter().zip(copies).collect();
            tally.count(at(entry as i64), &copies);
        }
        for counts in tally.report().bookies.values() {
            assert_eq!(counts.checked, tally.report().entries, "invariant 1");
        }
        tally.into_report()
    }

    fn faults(report: &VerifyReport) -> [[u64; 4]; 3] {
        ["a", "b", "c"].map(|name| Fault::ALL.map(|fault| report.bookies[&id(name)].of(fault)))
    }

    #[test]
    fn equal_copies_are_sound_whatever_their_headers_lac() {
        let mut other = sound("x");
        let Copy::Sound(entry) = &mut other else { unreachable!() };
        entry.last_add_confirmed = Some(at(7));
        let report = report(vec![[sound("x"), sound("x"), other]]);
        assert!(report.is_sound() && report.findings.is_empty(), "invariant 2: {report:?}");
        assert_eq!((report.entries, report.payload_bytes, report.bookies[&id("a")].sound()), (1, 1, 1));
    }

    #[test]
    fn each_fault_is_counted_under_its_bookie_and_what_is_left_against_the_ack_quorum() {
        let lost = Copy::Unreachable(BookieError::Lost);
        let damaged = || Copy::Damaged(None);
        // Copies; faults of a, b and c in the order of `Fault::ALL`; below, lost, undecided.
        type Case = ([Copy; 3], [[u64; 4]; 3], (u64, u64, u64));
        let none = [0; 4];
        let cases: Vec<Case> = vec![
            ([sound("x"), Copy::Missing, sound("x")], [none, [1, 0, 0, 0], none], (0, 0, 0)),
            ([sound("x"), sound("y"), sound("x")], [none, [0, 0, 1, 0], none], (0, 0, 0)),
            ([sound("x"), Copy::Missing, damaged()], [none, [1, 0, 0, 0], [0, 1, 0, 0]], (1, 0, 0)),
            // Who is right cannot be told.
            ([sound("x"), sound("y"), damaged()], [[0, 0, 1, 0], [0, 0, 1, 0], [0, 1, 0, 0]], (1, 0, 0)),
            ([sound("x"), sound("y"), sound("z")], [[0, 0, 1, 0]; 3], (1, 0, 0)),
            // Invariant 3.
            ([sound("x"), lost.clone(), Copy::Missing], [none, [0, 0, 0, 1], [1, 0, 0, 0]], (0, 0, 1)),
            ([Copy::Missing, lost, Copy::Missing], [[1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]], (1, 0, 0)),
            (
                [Copy::Missing, damaged(), Copy::Missing],
                [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]],
                (1, 1, 0),
            ),
        ];
        for (copies, expected, (below, lost, undecided)) in cases {
            let said = format!("{copies:?}");
            let report = report(vec![copies]);
            assert_eq!(faults(&report), expected, "{said}");
            assert_eq!(
                (report.below_ack_quorum, report.lost, report.undecided),
                (below, lost, undecided),
                "{said}"
            );
            assert_eq!(report.first_below.is_some(), below + undecided > 0, "{said}");
            let only_unreachable = expected.iter().all(|of| of[..3] == [0; 3]);
            assert_eq!((report.is_sound(), report.is_damaged()), (false, !only_unreachable), "{said}");
        }
    }

    #[test]
    fn faults_without_a_sound_copy_between_them_are_one_finding() {
        let missing = || [sound("x"), Copy::Missing, sound("x")];
        let well = || [sound("x"), sound("x"), sound("x")];
        let damaged = || [sound("x"), Copy::Damaged(None), sound("x")];
        let report = report(vec![missing(), missing(), well(), missing(), damaged(), damaged()]);
        let said: Vec<String> = report.findings.iter().map(Finding::to_string).collect();
        assert_eq!(
            said,
            ["b: 2 entries from 0 to 1 missing", "b: entry 3 missing", "b: 2 entries from 4 to 5 damaged"]
        );
    }

    #[test]
    fn findings_are_bounded_and_all_are_counted() {
        let turns = (0..FINDINGS_MAX + 50)
            .flat_map(|_| [[sound("x"), Copy::Missing, sound("x")], [sound("x"), sound("x"), sound("x")]]);
        let report = report(turns.collect());
        assert_eq!((report.findings.len(), report.findings_left_out), (FINDINGS_MAX, 50));
        assert_eq!(report.copies(Fault::Missing), FINDINGS_MAX as u64 + 50);
    }
}
