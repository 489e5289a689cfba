//! The simulated network: one connection at a time between a party and a bookie.
//!
//! # Invariants
//! 1. Requests of a connection are served in their order; nothing is sent twice, nothing is swallowed while it lasts.
//! 2. When it breaks, all requests that the party waits for fail. Requests that were sent may still arrive later,
//!    alongside those of the next connection.
//! 3. Each request is answered once at most, and a request that is awaited is answered or failed.

use std::collections::VecDeque;

use bindery_types::EntryId;
use bytes::Bytes;

use crate::recovery::core::ReadTag;
use crate::transport::{AddTag, BookieError};

/// Requests to bookies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Add {
        entry: EntryId,
        body: Bytes,
        is_recovery: bool,
        tag: AddTag,
    },
    Read {
        entry: Option<EntryId>,
        fences: bool,
        tag: ReadTag,
    },
    WriteLac {
        lac: EntryId,
        body: Bytes,
    },
    /// Of the writer's force of this number.
    Force {
        number: u64,
    },
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// On its way.
    Sent,
    /// Done, and answered when the bookie's log is synced.
    Done(Result<Bytes, BookieError>),
    /// The answer is on its way.
    Answered(Result<Bytes, BookieError>),
}

/// A request and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flight {
    pub request: Request,
    pub stage: Stage,
    pub is_awaited: bool,
    /// Of a connection that broke.
    pub is_old: bool,
}

/// What is under way between a party and a bookie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub flights: VecDeque<Flight>,
}

impl Link {
    pub fn send(&mut self, request: Request) {
        self.flights.push_back(Flight { request, stage: Stage::Sent, is_awaited: true, is_old: false });
    }

    /// The request that is served next, of this connection or of those before.
    pub fn next_sent(&self, is_old: bool) -> Option<usize> {
        self.flights.iter().position(|flight| flight.is_old == is_old && flight.stage == Stage::Sent)
    }

    /// Answers on their way.
    pub fn answered(&self) -> impl Iterator<Item = usize> {
        let flights = self.flights.iter().enumerate();
        flights.filter(|(_, flight)| matches!(flight.stage, Stage::Answered(_))).map(|(index, _)| index)
    }

    /// Requests that the party waits for and that have no answer yet.
    pub fn unanswered(&self) -> impl Iterator<Item = usize> {
        let flights = self.flights.iter().enumerate();
        let open =
            flights.filter(|(_, flight)| flight.is_awaited && !matches!(flight.stage, Stage::Answered(_)));
        open.map(|(index, _)| index)
    }

    /// The connection breaks at the party's end; requests that were sent may still be executed.
    pub fn break_off(&mut self) {
        for mut flight in std::mem::take(&mut self.flights) {
            if flight.is_awaited {
                let stage = Stage::Answered(Err(BookieError::Lost));
                let request = flight.request.clone();
                self.flights.push_back(Flight { request, stage, is_awaited: true, is_old: false });
                flight.is_awaited = false;
            }
            flight.is_old = true;
            if !matches!(flight.stage, Stage::Answered(_)) {
                self.flights.push_back(flight);
            }
        }
    }

    /// The bookie crashes: nothing of what was under way is done any more.
    pub fn crash(&mut self) {
        self.flights.retain(|flight| flight.is_awaited);
        for flight in &mut self.flights {
            flight.stage = Stage::Answered(Err(BookieError::Lost));
        }
    }

    /// The party is no more.
    pub fn abandon(&mut self) {
        for flight in &mut self.flights {
            flight.is_awaited = false;
        }
        self.tidy();
    }

    /// Forgets answers that the party no longer waits for.
    pub fn tidy(&mut self) {
        self.flights.retain(|flight| flight.is_awaited || !matches!(flight.stage, Stage::Answered(_)));
    }
}
