//! Refusals that leave ahead of a group whose write hangs.

use super::{Answer, Check, Inbox, Op, Sim};
use bindery_engine::AddDone;

impl Sim {
    /// Now and then, while a group of a read-only bookie is between cut and finish, as if its write took long. True when
    /// that was this step.
    pub(super) fn refuses_ahead(&mut self, journal: usize) -> bool {
        let lane = &self.lanes[journal];
        let under_way = lane.in_flight.as_ref().or(lane.written.as_ref().map(|(in_flight, _)| in_flight));
        // Refusals without a group go out at once: nothing is written that could hang.
        let is_under_way = under_way.is_some_and(|in_flight| !in_flight.is_refusals());
        let engine = self.machine().engine.clone();
        if !is_under_way || !engine.status().is_read_only || !self.checks.chance(0.3) {
            return false;
        }
        let early = Inbox::default();
        engine.refuse_ahead(journal).deliver(&early);
        let early = std::mem::take(&mut *early.0.lock());
        if !early.is_empty() {
            self.hit("journal.refused_ahead");
        }
        self.inbox.0.lock().extend(early.into_iter().map(|answer| match answer {
            Answer::Add(done) => Answer::Ahead(done),
            other => other,
        }));
        true
    }

    /// IB23: it passes answers to other entries, but none to an older add of its own.
    pub(super) fn on_refused_ahead(&mut self, done: &AddDone) -> Check {
        let (ledger, entry) = (done.ledger, done.entry);
        if done.result.is_ok() {
            return Err(format!("IB1: add {ledger}:{entry} was acknowledged ahead of its group"));
        }
        let is_older = |(txn, op): (&u64, &Op)| {
            *txn < done.origin.txn
                && matches!(op, Op::Add { ledger: l, entry: e, .. } if *l == ledger && *e == entry.get())
        };
        if self.ops.iter().any(is_older) {
            return Err(format!(
                "IB23: a refusal of add {ledger}:{entry} overtakes the answer to an older one"
            ));
        }
        self.on_add_answered(done)
    }
}
