//! Which request is the n-th of a connection, its bytes, and which request an answer belongs to.
//!
//! Adds go to ledgers of the flow, each entry once; connections that share a ledger take every n-th entry of it. Reads
//! walk over everything that was filled, in an order that meets each entry once before it meets one again, so that no
//! two requests under way on a connection have the same ids (on v2 answers are found by ids alone).

use anyhow::{Context, Result, bail};
use bindery_types::MasterKey;
use bindery_wire::v2::{self, Flags};
use bindery_wire::v3::{self, proto};
use bindery_wire::{ErrorCode, entry::EntryHeader};
use bytes::{Bytes, BytesMut};

/// The key of all ledgers here.
pub const KEY: MasterKey = MasterKey::new([7; 20]);

/// From here on an entry's bytes are kept once for all connections (v2).
const LARGE_SIZE_BYTES: usize = 256 << 10;
/// The part of such an entry that each connection keeps for itself: the ids and the length.
const FRONT_SIZE_BYTES: usize = 32;

/// The requests of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Adds, over so many ledgers.
    Add {
        /// Ledgers of the flow.
        ledgers: u64,
    },
    /// Single reads all over what was filled.
    Random,
    /// Single reads in order, connections begin at different places.
    Sequential,
    /// Batch reads of so many entries (v2), all over.
    Batch(u64),
    /// Reads of entries that another flow has just added.
    Follow,
    /// Fences, entry 0 of each ledger that was filled in turn (v2).
    Fence,
    /// How much room the bookie has (v3).
    Info,
}

/// Entries that were written beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// The lowest ledger id.
    pub first: i64,
    /// How many ledgers.
    pub ledgers: u64,
    /// Entries of each.
    pub each: u64,
}

/// Requests of one flow.
pub struct Requests {
    work: Work,
    is_v3: bool,
    /// Ledger of the first add.
    first: i64,
    filled: Filled,
    connections: u64,
    body: Vec<u8>,
    /// All of a large body but its front, shared by all connections.
    tail: Bytes,
    /// Requests after which a reader starts over; the order is a multiplication modulo this.
    round: u64,
    factor: u64,
    inverse: u64,
}

/// An answer.
pub struct Answer {
    /// The request it belongs to, or `None` when it is not known any more.
    pub seq: Option<u64>,
    /// Its code.
    pub code: ErrorCode,
    /// Bytes of entries in it.
    pub bytes: u64,
}

impl Requests {
    /// `first`: the lowest ledger id of adds. `entry_size_bytes`: of a whole entry as stored, at least 32.
    pub fn new(
        work: Work,
        is_v3: bool,
        first: i64,
        filled: Filled,
        connections: usize,
        entry_size_bytes: usize,
    ) -> Requests {
        let all = (filled.ledgers * filled.each).max(1);
        let round = match work {
            Work::Batch(count) => (all / count).max(1),
            _ => all,
        };
        let mut factor = match work {
            Work::Random | Work::Batch(_) => 0x9E37_79B1 % round,
            _ => 1,
        };
        factor = factor.max(1);
        while gcd(factor, round) != 1 {
            factor += 1;
        }
        let mut body = vec![0x5a; entry_size_bytes.max(32)];
        // not all alike, so that nothing on the way profits from that
        body.iter_mut().enumerate().for_each(|(i, byte)| *byte ^= (i as u8).wrapping_mul(31));
        let is_large = body.len() > LARGE_SIZE_BYTES && !is_v3;
        let tail = if is_large { Bytes::from(body.split_off(FRONT_SIZE_BYTES)) } else { Bytes::new() };
        Requests {
            work,
            is_v3,
            first,
            filled,
            connections: connections as u64,
            body,
            tail,
            round,
            factor,
            inverse: inverse(factor, round),
        }
    }

    /// Requests that may be under way at once on a connection, so that their ids differ.
    pub fn under_way_max(&self) -> usize {
        match self.work {
            Work::Add { .. } | Work::Follow | Work::Info => usize::MAX,
            _ => self.round as usize,
        }
    }

    fn sharers(&self, ledgers: u64, connection: u64) -> (u64, u64) {
        let own = connection % ledgers;
        ((self.connections - own).div_ceil(ledgers), connection / ledgers)
    }

    fn place(&self, connection: u64, seq: u64) -> u64 {
        let from = connection * (self.round / self.connections.max(1));
        ((u128::from(seq) * u128::from(self.factor) + u128::from(from)) % u128::from(self.round)) as u64
    }

    fn ids(&self, connection: u64, seq: u64) -> (i64, i64) {
        match self.work {
            Work::Add { ledgers } if ledgers >= self.connections => {
                let own = (ledgers - connection).div_ceil(self.connections);
                let ledger = connection + (seq % own) * self.connections;
                (self.first + ledger as i64, (seq / own) as i64)
            }
            Work::Add { ledgers } => {
                let (sharers, rank) = self.sharers(ledgers, connection);
                (self.first + (connection % ledgers) as i64, (seq * sharers + rank) as i64)
            }
            Work::Random | Work::Sequential | Work::Follow | Work::Fence | Work::Info => {
                let at = self.place(connection, seq);
                (self.filled.first + (at / self.filled.each) as i64, (at % self.filled.each) as i64)
            }
            Work::Batch(count) => {
                let at = self.place(connection, seq) * count;
                (self.filled.first + (at / self.filled.each) as i64, (at % self.filled.each) as i64)
            }
        }
    }

    /// Ledger and entry of the `seq`-th request of a connection.
    pub fn ids_of(&self, connection: usize, seq: u64) -> (i64, i64) {
        self.ids(connection as u64, seq)
    }

    /// The request of these ids, of those from `base` on.
    fn seq_of(&self, connection: u64, ledger: i64, entry: i64, base: u64) -> Option<u64> {
        let (ledger, entry) = match self.work {
            Work::Add { .. } => (u64::try_from(ledger - self.first).ok()?, u64::try_from(entry).ok()?),
            _ => (u64::try_from(ledger - self.filled.first).ok()?, u64::try_from(entry).ok()?),
        };
        match self.work {
            Work::Add { ledgers } if ledgers >= self.connections => {
                let own = (ledgers - connection).div_ceil(self.connections);
                Some(entry * own + (ledger - connection) / self.connections)
            }
            Work::Add { ledgers } => {
                let (sharers, rank) = self.sharers(ledgers, connection);
                Some((entry - rank) / sharers)
            }
            Work::Batch(_) | Work::Follow | Work::Info => None,
            Work::Random | Work::Sequential | Work::Fence => {
                let at = ledger * self.filled.each + entry;
                let from = connection * (self.round / self.connections.max(1));
                let turned = (at + self.round - from % self.round) % self.round;
                let within = (u128::from(turned) * u128::from(self.inverse) % u128::from(self.round)) as u64;
                let base_within = base % self.round;
                Some(base + (within + self.round - base_within) % self.round)
            }
        }
    }

    /// Appends the frame of the `seq`-th request of a connection; `ids` stand in for its own. The returned bytes must
    /// follow it.
    pub fn encode(
        &mut self,
        connection: usize,
        seq: u64,
        ids: Option<(i64, i64)>,
        out: &mut BytesMut,
    ) -> Bytes {
        let (ledger_id, entry_id) = ids.unwrap_or_else(|| self.ids(connection as u64, seq));
        match self.work {
            Work::Add { .. } => {
                let header = EntryHeader { ledger_id, entry_id, last_add_confirmed: entry_id - 1 };
                header.put_with_length(entry_id, &mut &mut self.body[..]);
                if self.is_v3 {
                    let body = proto::AddRequest {
                        ledger_id,
                        entry_id,
                        master_key: Bytes::from_static(KEY.as_bytes()),
                        body: Bytes::copy_from_slice(&self.body),
                        ..Default::default()
                    };
                    put_v3(seq, v3::Operation::Add(body), out);
                } else {
                    let at = out.len();
                    let add = v2::Add::new(Flags::NONE, KEY, &self.body).expect("a body of 32 bytes or more");
                    v2::Request::Add(add).encode(out);
                    if !self.tail.is_empty() {
                        let size_bytes = v2::ADD_BODY_OFFSET_BYTES + self.entry_size_bytes();
                        out[at..at + 4].copy_from_slice(&(size_bytes as u32).to_be_bytes());
                        return self.tail.clone();
                    }
                }
            }
            Work::Batch(count) => {
                let read = v2::BatchRead {
                    version: v2::VERSION_CURRENT,
                    flags: Flags::NONE,
                    ledger_id,
                    start_entry_id: entry_id,
                    request_id: seq as i64,
                    max_count: count as i32,
                    max_size_bytes: 5 << 20,
                    master_key: None,
                    stride: 1,
                };
                v2::Request::BatchRead(read).encode(out);
            }
            Work::Fence => {
                let flags = Flags::DO_FENCING.with(Flags::HIGH_PRIORITY);
                let version = v2::VERSION_CURRENT;
                let read = v2::Read { version, flags, ledger_id, entry_id, master_key: Some(KEY) };
                v2::Request::Read(read).encode(out);
            }
            Work::Info => {
                let info = proto::GetBookieInfoRequest { requested: Some(1) };
                put_v3(seq, v3::Operation::GetBookieInfo(info), out);
            }
            Work::Random | Work::Sequential | Work::Follow => {
                put_read(self.is_v3, seq, ledger_id, entry_id, out);
            }
        }
        Bytes::new()
    }

    /// Reads an answer of a connection whose oldest request is `base`.
    pub fn decode(&self, connection: usize, base: u64, payload: &[u8]) -> Result<Answer> {
        if self.is_v3 {
            let response = v3::decode_response(Bytes::copy_from_slice(payload))?;
            let code = ErrorCode::from_v3(response.status).context("a status")?;
            let body = response.read_response.and_then(|read| read.body);
            let bytes = body.map_or(0, |body| body.len() as u64);
            return Ok(Answer { seq: Some(response.header.txn_id), code, bytes });
        }
        let connection = connection as u64;
        Ok(match v2::Response::decode(payload)? {
            v2::Response::Add { code, ledger_id, entry_id, .. } => {
                Answer { seq: self.seq_of(connection, ledger_id, entry_id, base), code, bytes: 0 }
            }
            v2::Response::Read { code, ledger_id, entry_id, body, .. } => {
                let seq = self.seq_of(connection, ledger_id, entry_id, base);
                Answer { seq, code, bytes: body.len() as u64 }
            }
            v2::Response::BatchRead { code, request_id, entries, .. } => {
                let bytes = entries.map(|entry| entry.len() as u64).sum();
                Answer { seq: u64::try_from(request_id).ok(), code, bytes }
            }
            v2::Response::Auth { .. } => bail!("an AUTH answer that nobody asked for"),
        })
    }

    /// Bytes of an entry as stored.
    pub fn entry_size_bytes(&self) -> usize {
        self.body.len() + self.tail.len()
    }
}

/// Appends a v3 request.
pub fn put_v3(txn_id: u64, operation: v3::Operation, out: &mut BytesMut) {
    v3::put_frame(&v3::Request { txn_id, priority: 0, operation }.into_message(), out);
}

/// Appends a plain read.
pub fn put_read(is_v3: bool, seq: u64, ledger_id: i64, entry_id: i64, out: &mut BytesMut) {
    if is_v3 {
        let read = proto::ReadRequest { ledger_id, entry_id, ..Default::default() };
        put_v3(seq, v3::Operation::Read(read), out);
    } else {
        let flags = Flags::NONE;
        let read = v2::Read { version: v2::VERSION_CURRENT, flags, ledger_id, entry_id, master_key: None };
        v2::Request::Read(read).encode(out);
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The number whose product with `a` is 1 modulo `m`; `a` and `m` have no common factor.
fn inverse(a: u64, m: u64) -> u64 {
    let (mut old, mut new) = ((i128::from(a), 1i128), (i128::from(m), 0i128));
    while new.0 != 0 {
        let quotient = old.0 / new.0;
        (old, new) = (new, (old.0 - quotient * new.0, old.1 - quotient * new.1));
    }
    old.1.rem_euclid(i128::from(m)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On v2 the ids of an answer are all there is: they must lead back to the request.
    #[test]
    fn ids_lead_back_to_the_request() {
        for (work, connections) in [
            (Work::Add { ledgers: 1 }, 16),
            (Work::Add { ledgers: 50 }, 16),
            (Work::Add { ledgers: 5 }, 16),
            (Work::Add { ledgers: 50 }, 1),
            (Work::Random, 4),
            (Work::Sequential, 3),
            (Work::Fence, 2),
        ] {
            let filled = Filled { first: 100, ledgers: 7, each: 60 };
            let requests = Requests::new(work, false, 1000, filled, connections, 64);
            let mut seen = std::collections::BTreeSet::new();
            for connection in 0..connections as u64 {
                for seq in 0..1000 {
                    let (ledger, entry) = requests.ids(connection, seq);
                    for base in [seq.saturating_sub(400), seq] {
                        let back = requests.seq_of(connection, ledger, entry, base);
                        assert_eq!(back, Some(seq), "{work:?} of {connections}, {connection}");
                    }
                    if matches!(work, Work::Add { .. }) {
                        assert!(seen.insert((ledger, entry)), "an entry is added once: {work:?}");
                    }
                }
            }
        }
    }
}
