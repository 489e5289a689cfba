//! Long polls of one connection: reads that wait until a ledger's LAC (last add confirmed) moves (protocol reference,
//! section 2.6). A parked poll holds only its descriptor, for which the memory limit has a part of its own
//! ([`crate::memory::MemoryPlan::long_polls_max`]); room for its answer is promised again when it ends.
//!
//! # Limits
//! `long_polls_per_connection_max`, `long_polls_max`. Of the latter an address has its share ([`LongPollPlaces`]).

use crate::connection::request::ReadRequest;
use crate::shares::Shares;
use bindery_engine::PollId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

/// What a long poll asked for and how it ended.
#[derive(Debug, PartialEq)]
pub struct PollRead {
    /// The last entry the reader has seen, as on the wire.
    pub previous: i64,
    /// Send the next entry along.
    pub wants_entry: bool,
    /// When an update woke it, in milliseconds since 1970; `None` after a timeout or when it did not wait.
    pub woken_at_ms: Option<i64>,
}

/// Who shares the places of long polls: an address; of this machine, where all that runs here has one, a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PollHolder {
    /// All connections of an address.
    Address(IpAddr),
    /// A connection from this machine.
    Connection(u64),
}

impl PollHolder {
    /// For a poll of this connection.
    pub fn of(peer: SocketAddr, connection: u64) -> PollHolder {
        match peer.ip().to_canonical() {
            address if address.is_loopback() => PollHolder::Connection(connection),
            address => PollHolder::Address(address),
        }
    }
}

/// The places of all parked long polls. One holder takes half of them at most, the next a quarter, and so on ([`Shares`]).
#[derive(Default)]
pub struct LongPollPlaces(Mutex<Shares<PollHolder>>);

impl LongPollPlaces {
    /// Takes one of `max` places.
    pub fn take(&self, holder: PollHolder, max: usize) -> bool {
        self.0.lock().take(holder, 1, max as u64)
    }

    /// Gives one back that was taken.
    pub fn give_back(&self, holder: PollHolder) {
        self.0.lock().give_back(holder, 1);
    }
}

struct Parked {
    request: ReadRequest,
    /// Known once the engine has answered.
    id: Option<PollId>,
    deadline_ns: u64,
}

/// See the module. Every parked poll is in both maps.
#[derive(Default)]
pub struct LongPolls {
    parked: HashMap<u64, Parked>,
    deadlines: BTreeMap<(u64, u64), ()>,
}

impl LongPolls {
    /// Registers a poll before the engine is asked, since its waiter may fire at once.
    pub fn park(&mut self, request: ReadRequest, deadline_ns: u64) {
        let seq = request.seq;
        self.deadlines.insert((deadline_ns, seq), ());
        self.parked.insert(seq, Parked { request, id: None, deadline_ns });
    }

    /// Remembers how to take the poll back from the engine. False when it fired or expired already.
    #[must_use]
    pub fn set_id(&mut self, seq: u64, id: PollId) -> bool {
        let parked = self.parked.get_mut(&seq);
        parked.is_some_and(|parked| {
            parked.id = Some(id);
            true
        })
    }

    /// Ends a poll; `None` when it ended before.
    pub fn take(&mut self, seq: u64) -> Option<(ReadRequest, Option<PollId>)> {
        let parked = self.parked.remove(&seq)?;
        self.deadlines.remove(&(parked.deadline_ns, seq));
        Some((parked.request, parked.id))
    }

    /// When the next one times out.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.first_key_value().map(|((deadline_ns, _), ())| *deadline_ns)
    }

    /// One that timed out by now.
    pub fn take_expired(&mut self, now_ns: u64) -> Option<(ReadRequest, Option<PollId>)> {
        let ((deadline_ns, seq), ()) = self.deadlines.first_key_value()?;
        if *deadline_ns > now_ns {
            return None;
        }
        let seq = *seq;
        self.take(seq)
    }

    /// Any one, for the end of the connection.
    pub fn take_any(&mut self) -> Option<(ReadRequest, Option<PollId>)> {
        self.take_expired(u64::MAX)
    }

    /// Number parked.
    pub fn len(&self) -> usize {
        self.parked.len()
    }
}
