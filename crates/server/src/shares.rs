//! What connections or addresses share, places or bytes: each takes some only while it then holds no more than was free before.
//!
//! So one that takes all it can holds half, the next a quarter, and so on: it takes one more of them for each doubling of the capacity
//! (13 for 4,096 places) to leave nothing. As some comes back, those that hold least take it first.

use std::collections::BTreeMap;

/// The holdings of each.
pub struct Shares<Who> {
    taken: u64,
    /// Of each that has any.
    held: BTreeMap<Who, u64>,
}

impl<Who> Default for Shares<Who> {
    fn default() -> Shares<Who> {
        Shares { taken: 0, held: BTreeMap::new() }
    }
}

impl<Who: Ord + Copy> Shares<Who> {
    /// Takes so much of `capacity`, if this one may have it.
    pub fn take(&mut self, who: Who, amount: u64, capacity: u64) -> bool {
        let held = self.held.get(&who).copied().unwrap_or(0) + amount;
        let may = held <= capacity.saturating_sub(self.taken);
        if may && amount > 0 {
            self.taken += amount;
            self.held.insert(who, held);
        }
        may
    }

    /// Gives back what this one took.
    pub fn give_back(&mut self, who: Who, amount: u64) {
        if amount == 0 {
            return;
        }
        let held = self.held.get_mut(&who).expect("it was taken before it is given back");
        *held -= amount;
        self.taken -= amount;
        if *held == 0 {
            self.held.remove(&who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_take_all_they_can_leave_some_to_others() {
        let mut shares = Shares::<u64>::default();
        let mut take_all =
            |connection| std::iter::repeat_with(|| shares.take(connection, 1, 60)).position(|took| !took);
        assert_eq!([1, 2, 3].map(&mut take_all), [Some(30), Some(15), Some(8)]);
        // As some comes back, those that have least may take it.
        shares.give_back(1, 10);
        assert!(!shares.take(1, 1, 60) && shares.take(3, 1, 60) && shares.take(4, 10, 60));
        for (connection, held) in [(1, 20), (2, 15), (3, 9), (4, 10)] {
            shares.give_back(connection, held);
        }
        assert!(shares.taken == 0 && shares.held.is_empty());
        assert!(shares.take(1, 30, 60) && !shares.take(1, 1, 60) && shares.take(2, 30, 60));
    }
}
