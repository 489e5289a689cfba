//! Which entries of a ledger with deferred sync are durable: acknowledgements that bookies gave before they synced, and
//! the forces that make good on them (protocol reference, section 7.9).
//!
//! # Data flow
//! ```text
//! add acknowledged -> Unforced::note       which bookie, over which connection
//! force            -> Force: each member   -> FORCE_LEDGER -> Force::on_answer -> all: Unforced::advance -> LAC
//! ```
//!
//! # Invariants
//! 1. With deferred sync the LAC (last add confirmed) is where the acknowledged entries ended, in order, when a force began
//!    that every member of the ensemble answered well. All of them: which ones acknowledged an entry is not kept.
//! 2. A force covers only entries that a member acknowledged over the connection that brings its answer. A bookie that
//!    lost its power in between answers as gladly, over another connection.
//! 3. A member whose acknowledgements above the LAC came over two connections may have lost the first of them: no force
//!    can answer for both, so the writer stops.

use bindery_io::canary::{Canaries, Canary};
use bindery_types::{BookieId, EntryId};

use crate::error::{BookieAnswer, BookieAnswers};
use crate::transport::{BookieError, Connection};

/// What a member acknowledged above the LAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Acked {
    over: Connection,
    /// The last entry.
    last: i64,
}

/// See the module; of one ledger with deferred sync.
#[derive(Debug, Clone)]
pub(super) struct Unforced {
    /// The LAC, -1 for none, and the payload bytes up to it since the start.
    lac: i64,
    payload_bytes: u64,
    /// By position of the ensemble, which does not change.
    acked: Vec<Option<Acked>>,
}

/// A force under way.
#[derive(Debug, Clone)]
pub(crate) struct Force {
    upto: i64,
    payload_bytes: u64,
    members: Vec<Member>,
}

#[derive(Debug, Clone)]
struct Member {
    bookie: BookieId,
    /// The connection that its answer must come over, if it matters (invariant 2).
    over: Option<Connection>,
    answer: Option<Result<(), BookieError>>,
}

impl Unforced {
    pub fn new(confirmed: Option<EntryId>, ensemble_size: usize) -> Unforced {
        Unforced { lac: EntryId::to_wire(confirmed), payload_bytes: 0, acked: vec![None; ensemble_size] }
    }

    pub fn lac(&self) -> Option<EntryId> {
        EntryId::new(self.lac)
    }

    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Counts an acknowledgement. False when the one before it came over another connection (invariant 3).
    pub fn note(
        &mut self,
        position: usize,
        entry: EntryId,
        connection: Connection,
        canaries: Canaries,
    ) -> bool {
        // Entries that were forced need no acknowledgement any more.
        let Some(acked) = self.acked.get_mut(position).filter(|_| entry.get() > self.lac) else {
            return true;
        };
        match acked {
            Some(known) if known.over != connection && !canaries.has(Canary::M33ForcesAnyConnection) => false,
            Some(known) => {
                known.last = known.last.max(entry.get());
                true
            }
            None => {
                *acked = Some(Acked { over: connection, last: entry.get() });
                true
            }
        }
    }

    /// A force that covers what is acknowledged, up to `acknowledged` with so many payload bytes since the start.
    pub fn begin(&self, members: &[BookieId], acknowledged: Option<EntryId>, payload_bytes: u64) -> Force {
        let over = self.acked.iter().map(|acked| acked.map(|acked| acked.over));
        Force::new(members, over, EntryId::to_wire(acknowledged), payload_bytes)
    }

    /// Every member answered well (invariant 1).
    fn advance(&mut self, force: &Force) {
        // A later one may have ended before.
        if force.upto > self.lac {
            (self.lac, self.payload_bytes) = (force.upto, force.payload_bytes);
        }
        for acked in &mut self.acked {
            *acked = acked.filter(|acked| acked.last > self.lac);
        }
    }

    /// Counts a force that ended; which members did not answer well, if any.
    pub fn end(&mut self, force: &Force) -> Result<(), BookieAnswers> {
        force.outcome()?;
        self.advance(force);
        Ok(())
    }
}

impl Force {
    fn new(
        members: &[BookieId],
        over: impl Iterator<Item = Option<Connection>>,
        upto: i64,
        payload_bytes: u64,
    ) -> Force {
        let members = members.iter().zip(over);
        let members =
            members.map(|(bookie, over)| Member { bookie: bookie.clone(), over, answer: None }).collect();
        Force { upto, payload_bytes, members }
    }

    /// Of a ledger whose bookies sync, or should, before they answer: nothing rests on it but the caller's wish.
    pub fn plain(members: &[BookieId]) -> Force {
        Force::new(members, std::iter::repeat(None), -1, 0)
    }

    /// The bookies to ask, by position.
    pub fn members(&self) -> impl Iterator<Item = (usize, &BookieId)> {
        self.members.iter().map(|member| &member.bookie).enumerate()
    }

    /// Counts the answer of a member. False when this force cannot succeed any more.
    pub fn on_answer(
        &mut self,
        position: usize,
        answer: Result<Connection, BookieError>,
        canaries: Canaries,
    ) -> bool {
        let member = &mut self.members[position];
        let answer = match answer {
            Ok(connection)
                if member.over.is_some_and(|over| over != connection)
                    && !canaries.has(Canary::M33ForcesAnyConnection) =>
            {
                Err(BookieError::Reconnected)
            }
            answer => answer.map(drop),
        };
        let is_well = answer.is_ok();
        member.answer = Some(answer);
        is_well
    }

    /// Whether a member answered over another connection than it must: no later force can answer for it either.
    pub fn is_hopeless(&self) -> bool {
        self.members.iter().any(|member| member.answer == Some(Err(BookieError::Reconnected)))
    }

    /// Whether all members answered well; else what those say that did not.
    pub fn outcome(&self) -> Result<(), BookieAnswers> {
        let failed = self.members.iter().filter_map(|member| match &member.answer {
            Some(Err(error)) => Some((member.bookie.clone(), BookieAnswer::Failed(error.clone()))),
            Some(Ok(())) | None => None,
        });
        let failed: Vec<_> = failed.collect();
        match failed.is_empty() && self.members.iter().all(|member| member.answer.is_some()) {
            true => Ok(()),
            false => Err(BookieAnswers(failed)),
        }
    }
}
