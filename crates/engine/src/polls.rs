//! The polls that wait for the LAC (last add confirmed) of one ledger: tens of thousands may, each for another LAC.
//!
//! A pointer while there are none, as most ledgers have none. Otherwise ordered by the LAC that they have seen: those that
//! are to be woken are in front, and the first one tells whether there are any. So what a finished group costs grows
//! with the polls it wakes, not with those that wait, and a poll is cancelled without a look at the others.

use crate::api::{PollId, Waiter};
use std::collections::BTreeMap;

/// See the module. There is no empty map.
#[derive(Default)]
#[allow(clippy::box_collection, reason = "a map takes three words, also when it is empty")]
pub(crate) struct Polls(Option<Box<BTreeMap<PollId, Waiter>>>);

impl Polls {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn park(&mut self, id: PollId, waiter: Waiter) {
        self.0.get_or_insert_default().insert(id, waiter);
    }

    /// Takes one back; its waiter is dropped. False when it is gone.
    pub(crate) fn cancel(&mut self, id: PollId) -> bool {
        let Some(map) = &mut self.0 else { return false };
        let was_parked = map.remove(&id).is_some();
        self.0.take_if(|map| map.is_empty());
        was_parked
    }

    /// Those that have seen less than `shown`, in the order in which they came.
    pub(crate) fn take_below(&mut self, shown: i64) -> Vec<Waiter> {
        let Some(map) = &mut self.0 else { return Vec::new() };
        if map.last_key_value().is_some_and(|(last, _)| last.previous < shown) {
            return self.take();
        }
        let mut taken = Vec::new();
        // Not `split_off`: it counts what stays.
        while let Some(first) = map.first_entry()
            && first.key().previous < shown
        {
            taken.push(first.remove_entry());
        }
        in_order(taken)
    }

    /// All of them, in the order in which they came.
    pub(crate) fn take(&mut self) -> Vec<Waiter> {
        in_order(self.0.take().map_or(Vec::new(), |map| map.into_iter().collect()))
    }
}

fn in_order(mut taken: Vec<(PollId, Waiter)>) -> Vec<Waiter> {
    taken.sort_unstable_by_key(|(id, _)| id.number);
    taken.into_iter().map(|(_, waiter)| waiter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[derive(Debug, Clone)]
    enum Step {
        Park(i64),
        /// The one at this place among all that were ever parked.
        Cancel(usize),
        Show(i64),
        Fence,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (-1i64..12).prop_map(Step::Park),
            3 => (0usize..40).prop_map(Step::Cancel),
            3 => (-1i64..13).prop_map(Step::Show),
            1 => Just(Step::Fence),
        ]
    }

    proptest! {
        /// As a plain list in the order of arrival that is looked through each time.
        #[test]
        fn polls_are_what_a_list_of_them_is(steps in prop::collection::vec(step(), 0..80)) {
            let fired: Arc<Mutex<Vec<u64>>> = Arc::default();
            let (mut polls, mut list, mut ids) = (Polls::default(), Vec::<PollId>::new(), Vec::new());
            for step in steps {
                let (taken, expected) = match step {
                    Step::Park(previous) => {
                        let id = PollId { previous, number: ids.len() as u64 };
                        let fired = fired.clone();
                        polls.park(id, Box::new(move |_| fired.lock().push(id.number)));
                        list.push(id);
                        ids.push(id);
                        (Vec::new(), Vec::new())
                    }
                    Step::Cancel(place) => {
                        let before = list.len();
                        if let Some(id) = ids.get(place) {
                            list.retain(|other| other != id);
                            prop_assert_eq!(polls.cancel(*id), list.len() < before);
                        }
                        (Vec::new(), Vec::new())
                    }
                    Step::Show(shown) => {
                        let (ready, parked): (Vec<_>, Vec<_>) =
                            list.into_iter().partition(|id| id.previous < shown);
                        list = parked;
                        (polls.take_below(shown), ready)
                    }
                    Step::Fence => (polls.take(), std::mem::take(&mut list)),
                };
                taken.into_iter().for_each(|waiter| waiter(Ok(())));
                let expected: Vec<u64> = expected.iter().map(|id| id.number).collect();
                prop_assert_eq!(std::mem::take(&mut *fired.lock()), expected);
                prop_assert_eq!(polls.is_empty(), list.is_empty());
                prop_assert_eq!(polls.0.is_none(), list.is_empty(), "an empty map is given back");
            }
        }
    }
}
