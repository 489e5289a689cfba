//! Deferred sync (invariant 10 of the core, those of `force`; protocol reference, section 7.9).

use super::*;
use crate::error::{BookieAnswer, BookieAnswers, ForceError};
use crate::writer::force::Force;

impl Script {
    fn deferred(e: usize, qw: usize, qa: usize) -> Script {
        Script::with(e, qw, qa, true)
    }

    fn ack_over(&mut self, connection: u64, entry: i64, positions: &[usize]) {
        for &position in positions {
            let tag = self.tag(entry, position);
            self.core.on_answer(at(entry), tag, Connection(connection), &Ok(()));
            self.settle();
        }
    }

    fn acknowledged(&self) -> i64 {
        EntryId::to_wire(self.core.acknowledged())
    }

    /// Answers of the members, in their order; returns the outcome of the force.
    fn end(
        &mut self,
        mut force: Force,
        answers: &[Result<u64, BookieError>],
    ) -> Result<Option<EntryId>, ForceError> {
        for (position, answer) in answers.iter().enumerate() {
            let answer = answer.clone().map(Connection);
            if !self.core.on_force_answer(&mut force, position, answer) {
                break;
            }
        }
        let outcome = self.core.end_force(&force);
        self.settle();
        outcome
    }

    fn force(&mut self, answers: &[Result<u64, BookieError>]) -> Result<Option<EntryId>, ForceError> {
        let force = self.core.begin_force().unwrap();
        self.end(force, answers)
    }

    fn last_lac(&self) -> Option<EntryId> {
        let last = self.sent.last().unwrap();
        self.codec.open(Some(last.entry), &last.body).unwrap().last_add_confirmed
    }
}

fn failed(bookie: &str, error: BookieError) -> BookieAnswers {
    BookieAnswers(vec![(BookieId::new(bookie).unwrap(), BookieAnswer::Failed(error))])
}

#[test]
fn what_is_acknowledged_is_confirmed_by_a_force_of_the_whole_ensemble() {
    let mut script = Script::deferred(3, 2, 2);
    script.append(3);
    script.ack(0, &[0, 1]);
    script.ack(1, &[1, 2]);
    assert_eq!((script.acknowledged(), script.confirmed()), (1, -1));
    assert!(script.core.has_unacknowledged() && script.core.has_unforced());
    script.append(1);
    assert_eq!(script.last_lac(), None, "IC3: nothing is confirmed");
    let force = script.core.begin_force().unwrap();
    assert_eq!(force.members().count(), 3, "of any write set");
    // Acknowledged behind the force: not covered.
    script.ack(2, &[2, 0]);
    assert_eq!(script.acknowledged(), 2);
    assert_eq!(script.core.unannounced(), None);
    assert_eq!(script.end(force, &[Ok(0), Ok(0), Ok(0)]), Ok(Some(at(1))));
    assert_eq!(script.core.confirmed_length_bytes(), 10, "of what is confirmed");
    script.append(1);
    assert_eq!(script.last_lac(), Some(at(1)));
    script.ack(3, &[0, 1]);
    script.ack(4, &[1, 2]);
    assert_eq!(script.force(&[Ok(0), Ok(0), Ok(0)]), Ok(Some(at(4))));
    assert_eq!(script.core.unannounced(), Some(at(4)), "readers are told");
    script.core.begin_close();
    let (metadata, version) = script.wanted_write();
    assert_eq!(metadata.state, LedgerState::Closed { last_entry: Some(at(4)), length_bytes: 25 });
    assert_eq!(version, Version::counted(0));
}

#[test]
fn a_force_that_not_all_answer_confirms_nothing_and_may_be_tried_again() {
    let mut script = Script::deferred(3, 3, 2);
    script.append(1);
    script.ack(0, &[0, 1, 2]);
    let timed_out = BookieError::TimedOut(std::time::Duration::from_secs(5));
    let error = script.force(&[Ok(0), Ok(0), Err(timed_out.clone())]).unwrap_err();
    let ForceError::Bookies { answers, .. } = &error else { panic!("{error}") };
    assert_eq!(*answers, failed("c", timed_out));
    // A force that not all members answered.
    assert!(script.force(&[Ok(0), Ok(0)]).is_err());
    assert_eq!((script.confirmed(), script.why()), (-1, None));
    assert_eq!(script.force(&[Ok(0), Ok(0), Ok(0)]), Ok(Some(at(0))));
    // A later one ends first.
    script.append(1);
    script.ack(1, &[0, 1]);
    let first = script.core.begin_force().unwrap();
    script.append(1);
    script.ack(2, &[0, 1]);
    assert_eq!(script.force(&[Ok(0), Ok(0), Ok(0)]), Ok(Some(at(2))));
    assert_eq!(script.end(first, &[Ok(0), Ok(0), Ok(0)]), Ok(Some(at(2))), "IC3: the LAC does not go back");
    assert_eq!(script.core.confirmed_length_bytes(), 15);
}

/// Force invariant 2.
#[test]
fn a_bookie_that_answers_a_force_over_another_connection_answers_for_nothing() {
    let mut script = Script::deferred(3, 3, 2);
    script.append(1);
    script.ack_over(4, 0, &[0, 1]);
    let error = script.force(&[Ok(4), Ok(5), Ok(9)]).unwrap_err();
    let why = WhyStopped::DeferredSync(failed("b", BookieError::Reconnected));
    assert!(matches!(&error, ForceError::Stopped(stopped) if stopped.why == why), "{error}");
    assert_eq!((script.confirmed(), script.why()), (-1, Some(why)));
    // A member that acknowledged nothing beyond the forced entries may use any connection, and so may one whose entries
    // were forced.
    let mut script = Script::deferred(3, 3, 2);
    script.append(1);
    script.ack_over(4, 0, &[0, 1]);
    assert_eq!(script.force(&[Ok(4), Ok(4), Ok(9)]), Ok(Some(at(0))));
    script.ack_over(11, 0, &[2]);
    script.append(1);
    script.ack_over(12, 1, &[1, 2]);
    assert_eq!(script.force(&[Ok(12), Ok(12), Ok(12)]), Ok(Some(at(1))));
}

/// Force invariant 3.
#[test]
fn acknowledgements_over_two_connections_without_a_force_end_the_writer() {
    let mut script = Script::deferred(3, 3, 2);
    script.append(2);
    script.ack_over(1, 0, &[0, 1]);
    script.ack_over(2, 1, &[1]);
    assert_eq!(script.why(), Some(WhyStopped::DeferredSync(failed("b", BookieError::Reconnected))));
    assert!(script.core.begin_force().is_err());
}

/// Invariant 10.
#[test]
fn a_failure_ends_a_writer_with_deferred_sync_and_slowness_does_not() {
    let mut script = Script::deferred(3, 3, 2);
    script.append(4);
    for entry in 0..4 {
        script.ack(entry, &[0, 1]);
    }
    script.report(1);
    assert_eq!((script.core.next_step(), script.why()), (None, None));
    // Of a complete entry: the next one brings it up, as ever.
    script.answer(0, 2, LOST);
    assert_eq!(script.why(), None);
    script.append(1);
    assert_eq!(script.why(), Some(WhyStopped::DeferredSync(failed("c", BookieError::Lost))));
    assert_eq!((script.core.next_step(), script.confirmed()), (None, -1));
    let error = script.core.stopped().unwrap().to_string();
    assert!(error.contains("c: the connection was lost") && error.contains("Recover the ledger"), "{error}");
}

#[test]
fn a_ledger_without_deferred_sync_can_be_forced_and_confirms_by_itself() {
    let mut script = Script::new(3, 3, 2);
    script.append(2);
    script.ack(0, &[0, 1]);
    assert_eq!(script.confirmed(), 0);
    assert_eq!(script.force(&[Ok(3), Ok(4), Ok(5)]), Ok(Some(at(0))), "adds go another way");
    script.ack(1, &[0, 1]);
    assert_eq!(script.confirmed(), 1);
    assert!(script.force(&[Ok(3), Err(BookieError::Lost)]).is_err());
    assert_eq!((script.confirmed(), script.why()), (1, None));
}
