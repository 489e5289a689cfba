//! Adds that wait for their answers: which answer belongs to which add (protocol reference, section 1.7).
//!
//! v2 and v3 answers carry ledger and entry; v2 answers carry no other ids. A writer's adds are answered in order, so
//! the first one waiting is nearly always the one answered. For the rest, the adds of a ledger are kept as runs of
//! ascending entry ids: a run is searched in halves, and a new one begins only where an entry is sent again.
//!
//! # Invariants
//! 1. Every add is given out exactly once: answered, overdue, or by [`PendingAdds::drain`]; or it was withdrawn before it
//!    was sent.
//! 2. Adds of equal ledger and entry are answered in the order in which they were pushed.
//! 3. An overdue add keeps its place until its own late answer comes, and that answer is dropped. Without the place the
//!    late answer would be taken for the answer to a later add of the same entry.
//! 4. No sink is kept beyond its last waiting add.
//!
//! # Limits     as many as callers have sent and not had answered; places of overdue adds: see `pending`

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bindery_types::{EntryId, LedgerId};
use tokio::time::Instant;

use super::delivery::Deliveries;
use super::pending::{Overdue, Sweep};
use crate::transport::{AddSink, AddTag, BookieError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Given out as overdue; its answer may still come (invariant 3).
    Overdue,
    /// Given out, answered; waits to become the first of its run.
    Gone,
}

#[derive(Debug, Clone, Copy)]
struct PendingAdd {
    entry: EntryId,
    tag: AddTag,
    /// Number of the frame in the lane.
    position: u64,
    deadline: Instant,
    sink: u32,
    state: State,
}

/// Ascending entry ids, so no two are equal; the first is never gone.
type Run = VecDeque<PendingAdd>;

#[derive(Default)]
struct LedgerAdds {
    /// None but a single one is empty.
    runs: VecDeque<Run>,
    /// Nearly always one: the ledger's writer.
    sinks: Vec<Arc<dyn AddSink>>,
}

impl LedgerAdds {
    fn known_sink(&self, sink: &Arc<dyn AddSink>) -> Option<u32> {
        let same = |known: &Arc<dyn AddSink>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(sink));
        self.sinks.iter().position(same).map(|index| index as u32)
    }

    fn sink_index(&mut self, sink: &Arc<dyn AddSink>) -> u32 {
        self.known_sink(sink).unwrap_or_else(|| {
            self.sinks.push(sink.clone());
            self.sinks.len() as u32 - 1
        })
    }

    fn push(&mut self, add: PendingAdd) {
        match self.runs.back_mut() {
            Some(run) if run.back().is_none_or(|last| last.entry < add.entry) => run.push_back(add),
            _ => self.runs.push_back(Run::from([add])),
        }
    }

    /// The first add of this entry that is not gone; it is now.
    fn take(&mut self, entry: EntryId) -> Option<PendingAdd> {
        for (index, run) in self.runs.iter_mut().enumerate() {
            let at = match run.front() {
                Some(first) if first.entry == entry => 0,
                _ => match run.binary_search_by_key(&entry, |add| add.entry) {
                    Ok(at) => at,
                    Err(_) => continue,
                },
            };
            let add = run[at];
            if add.state == State::Gone {
                continue;
            }
            run[at].state = State::Gone;
            while run.front().is_some_and(|first| first.state == State::Gone) {
                run.pop_front();
            }
            if run.is_empty() && self.runs.len() > 1 {
                self.runs.remove(index);
            }
            return Some(add);
        }
        None
    }

    fn is_empty(&self) -> bool {
        self.runs.front().is_none_or(VecDeque::is_empty)
    }
}

/// The adds of one connection.
#[derive(Default)]
pub(super) struct PendingAdds {
    /// They were sent as v3, and so are their answers; all of a lane are, or none.
    pub(super) are_v3: bool,
    ledgers: HashMap<LedgerId, LedgerAdds>,
    /// Those that are not gone.
    count: usize,
    /// An emptied ledger, kept for its buffers.
    spare: Option<LedgerAdds>,
}

impl PendingAdds {
    pub(super) fn is_empty(&self) -> bool {
        self.ledgers.is_empty()
    }

    /// How many were pushed and not answered, overdue ones included.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Counts an add as sent from `position` on. Deadlines never go back from one push to the next.
    pub(super) fn push(
        &mut self,
        ledger: LedgerId,
        entry: EntryId,
        tag: AddTag,
        position: u64,
        deadline: Instant,
        sink: &Arc<dyn AddSink>,
    ) {
        let spare = &mut self.spare;
        let adds = self.ledgers.entry(ledger).or_insert_with(|| spare.take().unwrap_or_default());
        let sink = adds.sink_index(sink);
        adds.push(PendingAdd { entry, tag, position, deadline, sink, state: State::Waiting });
        self.count += 1;
    }

    /// Gives out the add that an answer belongs to. False when there is none.
    pub(super) fn answer(
        &mut self,
        ledger: LedgerId,
        entry: EntryId,
        result: Result<(), BookieError>,
        out: &mut Deliveries,
    ) -> bool {
        let Some(adds) = self.ledgers.get_mut(&ledger) else { return false };
        let Some(add) = adds.take(entry) else { return false };
        self.count -= 1;
        if add.state == State::Waiting {
            out.add(&adds.sinks[add.sink as usize], entry, add.tag, result);
        }
        if adds.is_empty() {
            self.forget(ledger);
        }
        true
    }

    fn forget(&mut self, ledger: LedgerId) {
        if let Some(mut adds) = self.ledgers.remove(&ledger) {
            adds.sinks.clear();
            self.spare = Some(adds);
        }
    }

    /// Forgets the adds of one sink whose frames have at least this number; their numbers.
    pub(super) fn withdraw(&mut self, ledger: LedgerId, sink: &Arc<dyn AddSink>, from: u64) -> Vec<u64> {
        let mut withdrawn = Vec::new();
        let Some(adds) = self.ledgers.get_mut(&ledger) else { return withdrawn };
        let Some(sink) = adds.known_sink(sink) else { return withdrawn };
        for run in &mut adds.runs {
            run.retain(|add| {
                let stays = add.state == State::Gone || add.sink != sink || add.position < from;
                if !stays {
                    withdrawn.push(add.position);
                }
                stays
            });
            while run.front().is_some_and(|add| add.state == State::Gone) {
                run.pop_front();
            }
        }
        adds.runs.retain(|run| !run.is_empty());
        self.count -= withdrawn.len();
        if adds.is_empty() {
            self.forget(ledger);
        }
        withdrawn
    }

    /// Gives out what is overdue.
    pub(super) fn sweep(&mut self, sweep: &Sweep, found: &mut Overdue, out: &mut Deliveries) {
        for adds in self.ledgers.values_mut() {
            for run in &mut adds.runs {
                for add in run.iter_mut() {
                    match add.state {
                        State::Gone => {}
                        State::Overdue => found.keep(sweep, add.deadline - sweep.timeout, add.deadline),
                        // Pushed in the order of their deadlines.
                        State::Waiting if add.deadline > sweep.now => break,
                        State::Waiting => {
                            add.state = State::Overdue;
                            found.give_up(sweep, add.position);
                            let result = Err(BookieError::TimedOut(sweep.timeout));
                            out.add(&adds.sinks[add.sink as usize], add.entry, add.tag, result);
                        }
                    }
                }
            }
        }
    }

    /// Gives out all that wait, with the error that `why` gives for a frame at this position.
    pub(super) fn drain(&mut self, why: &impl Fn(u64) -> BookieError, out: &mut Deliveries) {
        self.count = 0;
        for (_, adds) in self.ledgers.drain() {
            for add in adds.runs.iter().flatten().filter(|add| add.state == State::Waiting) {
                out.add(&adds.sinks[add.sink as usize], add.entry, add.tag, Err(why(add.position)));
            }
        }
    }
}
