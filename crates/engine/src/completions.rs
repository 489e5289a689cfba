//! The answers of a finished group.

use crate::admission_queue::{AdmissionGrant, RoomWaiter};
use crate::api::{AddDone, AddSink, GroupTimes, Refusal, Waiter};
use crate::tickets::FreezeTicket;

/// Answers of a group. Deliver it without holding a lock.
#[derive(Default)]
pub struct Completions {
    pub(crate) adds: Vec<Vec<AddDone>>,
    pub(crate) waiters: Vec<(Waiter, Result<(), Refusal>)>,
    pub(crate) grants: Vec<(RoomWaiter, AdmissionGrant)>,
    /// Of the group, unless these are grants alone.
    pub(crate) group: Option<GroupTimes>,
    /// Set when this group froze the write caches.
    pub freeze: Option<FreezeTicket>,
}

impl Completions {
    /// Of adds that were refused, and of those who wait for room.
    pub(crate) fn of_refusals(
        times: GroupTimes,
        adds: Vec<Vec<AddDone>>,
        grants: Vec<(RoomWaiter, AdmissionGrant)>,
    ) -> Completions {
        Completions { adds, grants, group: Some(times), ..Completions::default() }
    }

    /// Hands every answer to its taker.
    pub fn deliver(self, sink: &dyn AddSink) {
        if let Some(group) = self.group.filter(|group| group.bytes > 0 || !self.adds.is_empty()) {
            sink.on_adds_done(&group, &self.adds);
        }
        for (waiter, outcome) in self.waiters {
            waiter(outcome);
        }
        for (waiter, grant) in self.grants {
            waiter(grant);
        }
    }

    /// True when it consists only of answers, to at most `adds_max` adds.
    pub(crate) fn is_few_adds(&self, adds_max: usize) -> bool {
        self.waiters.is_empty()
            && self.grants.is_empty()
            && self.adds.iter().map(Vec::len).sum::<usize>() <= adds_max
    }

    /// True when there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.waiters.is_empty() && self.grants.is_empty()
    }
}
