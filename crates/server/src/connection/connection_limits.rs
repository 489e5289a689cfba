//! How many connections each address has, and which connections have not sent a request yet.
//!
//! A peer is a client from its first well-formed request on, or, where authentication is required, from its success on.
//! Before that it is *silent*, whatever bytes it sent. A silent connection has a small part of the memory
//! ([`crate::connection::ingest`]) and is the first to be closed when all places are taken.
//!
//! # Invariants
//! 1. A connection counts for its address from before it is served until it is gone.
//! 2. A connection is in the list of silent ones from when it is served until its first request is handled, or it has
//!    said who it is where it has to, or it ends.
//! 3. A listener that waits for a place is told of each connection that enters the list.
//! 4. While a newcomer waits for a place, whoever asks is told since when.

use crate::limits::Limits;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

#[derive(Default)]
struct State {
    /// Never iterated.
    by_address: HashMap<IpAddr, usize>,
    /// By time of arrival and number.
    silent: BTreeSet<(u64, u64)>,
}

/// See the module.
#[derive(Default)]
pub struct ConnectionLimits {
    state: Mutex<State>,
    /// Told of each newcomer among the silent ones.
    silent_came: Notify,
    /// Since when a newcomer has waited for a place, and one more; 0 while none does.
    crowded_ns: AtomicU64,
}

impl ConnectionLimits {
    /// Takes a place for a connection from this address; false when it has as many as the limits allow.
    #[must_use]
    pub fn enter(&self, address: IpAddr, limits: &Limits) -> bool {
        let max = limits.connections_of(address);
        let address = counted_as(address);
        let mut state = self.state.lock();
        let count = state.by_address.get(&address).copied().unwrap_or(0);
        if count < max {
            state.by_address.insert(address, count + 1);
        }
        count < max
    }

    /// Gives back the place of a connection that [`ConnectionLimits::enter`] let in.
    pub fn leave(&self, address: IpAddr) {
        let address = counted_as(address);
        let mut state = self.state.lock();
        let count = state.by_address.get_mut(&address).expect("who leaves has entered");
        *count -= 1;
        if *count == 0 {
            state.by_address.remove(&address);
        }
    }

    /// Number of the connection that has been silent for longest.
    pub fn oldest_silent(&self) -> Option<u64> {
        self.state.lock().silent.first().map(|(_, id)| *id)
    }

    /// A newcomer waits for a place from now on, as there is nobody who could make room for it; or no more (`None`).
    pub fn set_crowded(&self, since_ns: Option<u64>) {
        self.crowded_ns.store(since_ns.map_or(0, |ns| ns.saturating_add(1)), Ordering::Relaxed);
    }

    /// Since when a newcomer has waited for a place, while one does.
    pub fn crowded_since_ns(&self) -> Option<u64> {
        self.crowded_ns.load(Ordering::Relaxed).checked_sub(1)
    }

    /// How many are silent.
    pub fn silent(&self) -> usize {
        self.state.lock().silent.len()
    }

    pub(super) fn add_silent(&self, arrived_ns: u64, id: u64) {
        self.state.lock().silent.insert((arrived_ns, id));
        self.silent_came.notify_one();
    }

    pub(super) fn remove_silent(&self, arrived_ns: u64, id: u64) {
        self.state.lock().silent.remove(&(arrived_ns, id));
    }

    /// Returns when a connection came among the silent ones since this was called last. Cancel safe; for one task.
    pub async fn silent_came(&self) {
        self.silent_came.notified().await;
    }
}

/// Addresses that are counted together: of IPv6 the first 64 bits, since a host has all behind them.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_so_many_places_and_gets_them_back() {
        let limits = Limits { connections_per_address_max: Some(2), ..Limits::default() };
        let door = ConnectionLimits::default();
        assert!(door.enter(ip("10.0.0.1"), &limits) && door.enter(ip("::ffff:10.0.0.1"), &limits));
        assert!(!door.enter(ip("10.0.0.1"), &limits));
        assert!(door.enter(ip("10.0.0.2"), &limits), "another address");
        door.leave(ip("10.0.0.1"));
        assert!(door.enter(ip("10.0.0.1"), &limits));
        for address in ["10.0.0.1", "10.0.0.1", "10.0.0.2"] {
            door.leave(ip(address));
        }
        assert!(door.state.lock().by_address.is_empty(), "invariant 1");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_counted_together() {
        let limits = Limits { connections_per_address_max: Some(1), ..Limits::default() };
        let door = ConnectionLimits::default();
        assert!(door.enter(ip("2001:db8::1"), &limits));
        assert!(!door.enter(ip("2001:db8::2"), &limits));
        assert!(door.enter(ip("2001:db8:0:1::1"), &limits));
    }

    #[test]
    fn by_default_an_address_has_half_of_all_places_and_this_machine_all() {
        let limits = Limits { connections_max: 10, ..Limits::default() };
        assert_eq!(limits.connections_of(ip("10.0.0.1")), 5);
        assert_eq!(limits.connections_of(ip("127.0.0.1")), usize::MAX);
        assert_eq!(limits.connections_of(ip("::ffff:127.0.0.1")), usize::MAX);
        let limits = Limits { connections_per_address_max: Some(3), ..limits };
        assert_eq!(limits.connections_of(ip("::1")), 3, "when it is set, it is for all");
    }

    #[test]
    fn the_oldest_silent_one_is_found_until_it_speaks() {
        let door = ConnectionLimits::default();
        for (arrived_ns, id) in [(5, 1), (3, 7), (9, 2)] {
            door.add_silent(arrived_ns, id);
        }
        assert_eq!((door.oldest_silent(), door.silent()), (Some(7), 3));
        door.remove_silent(3, 7);
        assert_eq!(door.oldest_silent(), Some(1));
    }
}
