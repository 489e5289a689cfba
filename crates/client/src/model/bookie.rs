//! A simulated bookie: how it answers by the rules of the protocol, and what survives a crash.
//!
//! # Invariants
//! 1. Adds, fences and explicit LACs (last add confirmed) are records of one log. An answer that depends on a record is
//!    sent when the log is synced up to that record; a crash drops all records that are not synced (IB1, IB4). An add
//!    with deferred sync is answered at once.
//! 2. Fenced is for good, and an add that is not part of a recovery is refused from then on (IB3, IB5).
//! 3. A bookie that lost its disks takes adds of the writer when metadata says that the ledger is open and the bookie
//!    is in the last ensemble, from then on until it starts again. If metadata named it when the disks were lost, it is
//!    in limbo: it returns the entries it has, and reports all others as unknown (IB27, IB28).

use std::collections::BTreeMap;

use bindery_types::EntryId;
use bindery_wire::ErrorCode;
use bytes::Bytes;

use super::network::Request;
use crate::transport::BookieError;

/// How a bookie is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Up,
    /// No connection can be made.
    Down,
    /// The bookie is there and does nothing: requests to it wait.
    Stopped,
}

/// The bookie's part of the ledger, in memory or on its disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub is_fenced: bool,
    pub entries: BTreeMap<i64, Bytes>,
    pub explicit_lac: Option<(i64, Bytes)>,
}

/// What metadata says of the ledger to a bookie that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Open, and the bookie is in the last ensemble.
    OpenHere,
    OpenElsewhere,
    /// In recovery, or closed.
    Ended,
}

/// Of a bookie whose disks are newer than the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newer {
    is_limbo: bool,
    /// The word was given since it started.
    is_vouched: bool,
}

#[derive(Debug, Clone)]
enum Record {
    Add(i64, Bytes),
    Fence,
    Lac(i64, Bytes),
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Bookie {
    pub mode: Mode,
    pub is_read_only: bool,
    memory: Contents,
    durable: Contents,
    log: Vec<Record>,
    newer: Option<Newer>,
}

/// The outcome of a request.
pub(super) struct Served {
    pub result: Result<Bytes, BookieError>,
    /// It is answered when the log is synced.
    pub waits: bool,
}

impl Contents {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Fence => self.is_fenced = true,
            Record::Add(entry, body) => {
                if let Some(before) = self.entries.insert(*entry, body.clone()) {
                    assert!(is_same_entry(&before, body), "an entry has one content");
                }
            }
            Record::Lac(lac, body) => {
                if self.explicit_lac.as_ref().is_none_or(|(before, _)| before < lac) {
                    self.explicit_lac = Some((*lac, body.clone()));
                }
            }
        }
    }
}

/// Whether two stored forms differ at most in the LAC inside, and so in the digest over it.
fn is_same_entry(one: &Bytes, other: &Bytes) -> bool {
    // Ledger, entry, and behind the LAC the length. The payload is compared where copies are counted.
    one.len() == other.len() && one[..16] == other[..16] && one[24..32] == other[24..32]
}

impl Bookie {
    /// What a power cut would leave now.
    pub fn durable(&self) -> &Contents {
        &self.durable
    }

    /// What it answers from.
    pub fn memory(&self) -> &Contents {
        &self.memory
    }

    /// `word`: what it would hear from metadata now.
    pub fn serve(&mut self, request: &Request, is_deferred: bool, word: Word) -> Served {
        if let Some(newer) = &mut self.newer
            && let Request::Add { is_recovery: false, .. } = request
            && !newer.is_vouched
        {
            let refused = |code| Served { result: Err(BookieError::Refused(code)), waits: false };
            match word {
                Word::OpenHere => newer.is_vouched = true,
                Word::OpenElsewhere => return refused(ErrorCode::UnknownLedgerState),
                Word::Ended => return refused(ErrorCode::Fenced),
            }
        }
        match request {
            Request::Add { entry, body, is_recovery, .. } => {
                let Served { result, waits } = self.add(*entry, body, *is_recovery);
                Served { result, waits: waits && (*is_recovery || !is_deferred) }
            }
            Request::Force { .. } => Served { result: Ok(Bytes::new()), waits: self.has_unsynced() },
            Request::WriteLac { lac, body } => self.write_lac(*lac, body),
            Request::Read { entry, fences, .. } => self.read(*entry, *fences),
        }
    }

    pub fn add(&mut self, entry: EntryId, body: &Bytes, is_recovery: bool) -> Served {
        let refused = |code| Served { result: Err(BookieError::Refused(code)), waits: false };
        match is_recovery {
            false if self.memory.is_fenced => refused(ErrorCode::Fenced),
            false if self.is_read_only => refused(ErrorCode::ReadOnly),
            _ => {
                self.append(Record::Add(entry.get(), body.clone()));
                Served { result: Ok(Bytes::new()), waits: true }
            }
        }
    }

    pub fn write_lac(&mut self, lac: EntryId, body: &Bytes) -> Served {
        self.append(Record::Lac(lac.get(), body.clone()));
        Served { result: Ok(Bytes::new()), waits: true }
    }

    pub fn read(&mut self, entry: Option<EntryId>, fences: bool) -> Served {
        if fences && !self.memory.is_fenced {
            self.append(Record::Fence);
        }
        let is_limbo = self.is_in_limbo();
        let found = match entry {
            Some(entry) => self.memory.entries.get(&entry.get()),
            None => self.memory.entries.values().next_back().filter(|_| !is_limbo),
        };
        let absent = match self.memory.entries.is_empty() {
            _ if is_limbo => ErrorCode::UnknownLedgerState,
            true => ErrorCode::NoLedger,
            false => ErrorCode::NoEntry,
        };
        let result = found.cloned().ok_or(BookieError::Refused(absent));
        Served { result, waits: fences && !self.log.is_empty() }
    }

    fn append(&mut self, record: Record) {
        self.memory.take(&record);
        self.log.push(record);
    }

    pub fn has_unsynced(&self) -> bool {
        !self.log.is_empty()
    }

    pub fn sync(&mut self) {
        for record in self.log.drain(..) {
            self.durable.take(&record);
        }
    }

    /// A power cut, and what it starts with afterwards.
    pub fn crash(&mut self) {
        self.log.clear();
        self.memory = self.durable.clone();
        if let Some(newer) = &mut self.newer {
            newer.is_vouched = false;
        }
    }

    /// Its disks are lost; what they had. `is_named`: metadata names it, in whichever segment.
    pub fn lose_disks(&mut self, is_named: bool) -> Contents {
        let lost = std::mem::take(&mut self.durable);
        // Limbo is for good until somebody brings back what is missing.
        let is_limbo = is_named || self.is_in_limbo();
        self.newer = Some(Newer { is_limbo, is_vouched: false });
        self.crash();
        lost
    }

    /// Its copies are surplus, and are collected.
    pub fn forget(&mut self) {
        self.log.retain(|record| !matches!(record, Record::Add(..)));
        self.memory.entries.clear();
        self.durable.entries.clear();
    }

    /// Whether entries may be missing here.
    pub fn is_in_limbo(&self) -> bool {
        self.newer.is_some_and(|newer| newer.is_limbo)
    }
}
