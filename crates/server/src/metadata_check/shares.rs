//! What connections share, places or bytes: each takes some only while it then holds no more than was free before.
//!
//! So one that takes all it can holds half, the next a quarter, and so on: it takes a connection for each doubling of the capacity
//! (13 for 4,096 places) to leave nothing. As some comes back, those that hold least take it first.

use std::collections::BTreeMap;

/// The holdings of each connection.
#[derive(Default)]
pub(super) struct Shares {
    taken: u64,
    /// Of each connection that has any.
    held: BTreeMap<u64, u64>,
}

impl Shares {
    /// Takes so much of `capacity`, if the connection may have it.
    pub(super) fn take(&mut self, connection: u64, amount: u64, capacity: u64) -> bool {
        let held = self.held.get(&connection).copied().unwrap_or(0) + amount;
        let may = held <= capacity.saturating_sub(self.taken);
        if may && amount > 0 {
            self.taken += amount;
            self.held.insert(connection, held);
        }
        may
    }

    /// Gives back what the connection took.
    pub(super) fn give_back(&mut self, connection: u64, amount: u64) {
        if amount == 0 {
            return;
        }
        let held = self.held.get_mut(&connection).expect("it was taken before it is given back");
        *held -= amount;
        self.taken -= amount;
        if *held == 0 {
            self.held.remove(&connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_take_all_they_can_leave_some_to_others() {
        let mut shares = Shares::default();
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
