//! Turns to compute for peers that are not known yet: steps of TLS handshakes, and derivations of keys from passwords.
//!
//! # Data flow
//! ```text
//! TLS handshakes ─────────────────────────────────────────────► turn ─► blocking pool
//! login ─► place in the line of logins, or refused ─► head of it ─┘
//! ```
//!
//! # Invariants
//! 1. No more compute at once than there are turns, whatever they compute. Turns are given in the order of arrival.
//! 2. No more logins wait for turns than there are turns, so a handshake has at most that many logins before it. Other logins wait in a
//!    line of their own.
//! 3. That line has [`LOGINS_MAX`] places, [`LOGINS_OF_ADDRESS_MAX`] for an address. A login without a place is refused at once. A
//!    place is held until the derivation has ended, also when its connection has not lived as long.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Logins that wait or compute. Each may hold as much of the pool for first requests as a stranger's buffer has: half of the pool together.
pub const LOGINS_MAX: usize = 64;
/// Of these, those of one address: an IPv4 address, or the network (/64) of an IPv6 address.
pub const LOGINS_OF_ADDRESS_MAX: usize = 8;

/// Turns of a process or a port; see the module. Clones share them.
#[derive(Debug, Clone)]
pub struct Turns(Arc<State>);

#[derive(Debug)]
struct State {
    all: Arc<Semaphore>,
    /// Logins that may wait for a turn (invariant 2).
    logins: Arc<Semaphore>,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    taken: usize,
    /// Of addresses that have any.
    of_address: HashMap<IpAddr, usize>,
}

/// A place in the line of logins, free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    turns: Turns,
    address: IpAddr,
}

/// A turn of a login. It is over when this is dropped.
#[derive(Debug)]
pub(crate) struct LoginTurn {
    _turn: OwnedSemaphorePermit,
    _head: OwnedSemaphorePermit,
    _place: Place,
}

impl Turns {
    /// So many turns at once, at least one.
    pub fn new(turns: usize) -> Turns {
        let turns = turns.max(1);
        Turns(Arc::new(State {
            all: Arc::new(Semaphore::new(turns)),
            logins: Arc::new(Semaphore::new(turns)),
            places: Mutex::default(),
        }))
    }

    /// A turn for a step of a handshake. Cancel safe.
    pub async fn handshake(&self) -> SemaphorePermit<'_> {
        self.0.all.acquire().await.expect("the semaphore is never closed")
    }

    /// Logins that wait or compute now.
    pub fn logins(&self) -> usize {
        self.0.places.lock().taken
    }

    /// A place for a login from this address; `None` when there is none (invariant 3).
    pub(crate) fn place(&self, address: IpAddr) -> Option<Place> {
        let address = network_of(address);
        let mut places = self.0.places.lock();
        let of_address = places.of_address.get(&address).copied().unwrap_or(0);
        if places.taken >= LOGINS_MAX || of_address >= LOGINS_OF_ADDRESS_MAX {
            return None;
        }
        places.taken += 1;
        places.of_address.insert(address, of_address + 1);
        Some(Place { turns: self.clone(), address })
    }
}

impl Place {
    /// Waits for a turn. Cancel safe: the place is free again then.
    pub(crate) async fn turn(self) -> LoginTurn {
        let State { all, logins, .. } = &*self.turns.0;
        let (all, logins) = (all.clone(), logins.clone());
        let head = logins.acquire_owned().await.expect("the semaphore is never closed");
        let turn = all.acquire_owned().await.expect("the semaphore is never closed");
        LoginTurn { _turn: turn, _head: head, _place: self }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.turns.0.places.lock();
        places.taken -= 1;
        let of_address =
            places.of_address.get_mut(&self.address).expect("a place is counted for its address");
        *of_address -= 1;
        if *of_address == 0 {
            places.of_address.remove(&self.address);
        }
    }
}

/// The address, or of IPv6 the network that a host can choose addresses of.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_pending<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
    }

    /// Invariant 3.
    #[test]
    fn logins_have_so_many_places_and_an_address_fewer() {
        let turns = Turns::new(1);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut places: Vec<Place> =
            (0..LOGINS_OF_ADDRESS_MAX).map(|_| turns.place(address("192.0.2.1")).unwrap()).collect();
        assert!(turns.place(address("192.0.2.1")).is_none());
        assert!(turns.place(address("::ffff:192.0.2.1")).is_none(), "the same address");
        places.pop();
        places.push(turns.place(address("192.0.2.1")).unwrap());
        for host in 0..LOGINS_OF_ADDRESS_MAX {
            places.push(turns.place(address(&format!("2001:db8::{host:x}"))).unwrap());
        }
        assert!(turns.place(address("2001:db8::ffff")).is_none(), "the same network");
        let mut network = 1;
        while places.len() < LOGINS_MAX {
            places.push(turns.place(address(&format!("2001:db8:0:{network:x}::1"))).unwrap());
            network += 1;
        }
        assert!(turns.place(address("192.0.2.2")).is_none());
        assert_eq!(turns.logins(), LOGINS_MAX);
        drop(places);
        assert_eq!(turns.logins(), 0);
        assert!(turns.place(address("192.0.2.2")).is_some());
        assert!(turns.0.places.lock().of_address.is_empty(), "nothing is kept of who left");
    }

    /// Invariants 1 and 2.
    #[tokio::test]
    async fn handshakes_and_logins_share_turns_and_few_logins_come_first() {
        let turns = Turns::new(1);
        let place = || turns.place("192.0.2.1".parse().unwrap()).unwrap();
        let computing = place().turn().await;
        let mut second = pin!(place().turn());
        assert!(is_pending(second.as_mut()));
        let mut handshake = pin!(turns.handshake());
        assert!(is_pending(handshake.as_mut()), "the turn is taken");
        drop(computing);
        // The second login becomes the head of its line now, behind the handshake.
        assert!(is_pending(second.as_mut()));
        let step = handshake.await;
        assert!(is_pending(second.as_mut()));
        drop(step);
        second.await;
    }
}
