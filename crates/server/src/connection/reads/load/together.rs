//! Reads of neighbours that are in hand at once, and whose entries lie together on disk: one look-up for all that are
//! behind the first, and one read.
//!
//! A reader that asks for a range sends a request for each entry. Those that have arrived when the turn of the first
//! one comes are read together; each still has its own bytes, its own answer and its own line of equal keys.
//!
//! # Invariants
//! 1. All requests had come before the look-up that serves them: none is answered from before it was asked.
//! 2. Entries that cannot be read together are read alone, and only that way is a failure answered: the damage of one is
//!    not that of its neighbours.
//!
//! # Limits
//! [`TOGETHER_ENTRIES_MAX`] entries, [`SCRATCH_BYTES`](super::SCRATCH_BYTES).

use super::answers::{answer_entry, answer_without_entry};
use super::{
    Granted, HEAD_BYTES, SCRATCH, SCRATCH_BYTES, learn_size, park_until_durable, refuse_too_old,
    retry_larger, run_entry, tier,
};
use crate::connection::Connection;
use crate::connection::output::outbox::{Body, Window};
use crate::connection::request::ReadRequest;
use crate::shared::Shared;
use bindery_engine::{Ahead, EntryRef, FoundRun, Lookup, Patience, TOGETHER_ENTRIES_MAX};
use bindery_types::EntryId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most requests behind the first one of those that are read together.
pub const FOLLOWING_MAX: usize = TOGETHER_ENTRIES_MAX as usize - 1;

/// See the module. The reads that were granted are of the first entries of the run.
pub struct Together {
    found: FoundRun,
    reads: VecDeque<Granted>,
    /// Entries of the run that were answered before these.
    done: usize,
    /// The next one was read with its neighbours, and failed.
    is_next_unsound: bool,
}

impl Together {
    /// Finds what can be read together with the first one, when the `following` requests behind it ask for its
    /// neighbours. `None` when that is nothing, or cannot be told without waiting for the disk.
    pub fn find(shared: &Shared, first: &Granted, following: usize) -> Option<FoundRun> {
        let entry = EntryId::new(first.request.entry).filter(|_| following > 0)?;
        let (ledger, count) = (first.request.ledger, following.min(FOLLOWING_MAX) as u32 + 1);
        let found = shared.engine.read_run(ledger, (entry, 1), count, SCRATCH_BYTES, Patience::Never)?;
        let is_first_covered = found.lengths().next()? <= first.room();
        (found.lengths().len() > 1 && is_first_covered).then_some(found)
    }

    /// The first of those that were found.
    pub fn new(found: FoundRun, first: Granted) -> Together {
        Together { found, reads: VecDeque::from([first]), done: 0, is_next_unsound: false }
    }

    /// The last one that was granted, and the bytes that the next one takes, if there is a next one.
    pub fn next(&self) -> Option<(&ReadRequest, usize)> {
        let length = self.found.lengths().nth(self.reads.len())?;
        let last = self.reads.back().expect("the first one was granted");
        Some((&last.request, length + HEAD_BYTES))
    }

    /// Takes the next one.
    pub fn push(&mut self, granted: Granted) {
        self.reads.push_back(granted);
    }

    /// How many were granted.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Bytes that they hold.
    pub fn bytes(&self) -> u64 {
        self.reads.iter().map(|granted| granted.permit.bytes()).sum()
    }

    /// Their windows.
    pub fn windows(&mut self) -> impl Iterator<Item = &mut Window> {
        self.reads.iter_mut().map(|granted| &mut granted.window)
    }

    /// The part of the disk that is about to be read.
    pub fn ahead(&self) -> Ahead {
        self.found.ahead(self.done)
    }

    /// The requests that are not answered.
    pub fn give_up(self, connection: &Connection) -> Vec<ReadRequest> {
        self.reads.into_iter().map(|granted| granted.give_up(connection)).collect()
    }

    /// Answers all when no thread has to wait for the disk; else gives back those that are not answered.
    pub fn run_inline(mut self, shared: &Shared, connection: &Connection) -> Option<Together> {
        let answered = self.answer_sound(shared, connection, Patience::Never);
        shared.metrics.reads_without_wait.add(answered as u64);
        (!self.reads.is_empty()).then_some(self)
    }

    /// Answers all, on a thread that may wait for the disk.
    pub fn run(mut self, shared: &Arc<Shared>, connection: &Arc<Connection>) {
        while let Some(first) = self.reads.front() {
            // Those that have waited longest come first.
            let is_too_old = connection.is_too_old(shared, &first.request);
            if !is_too_old
                && !self.is_next_unsound
                && self.answer_sound(shared, connection, Patience::Wait) > 0
            {
                continue;
            }
            let Some(first) = self.reads.pop_front() else { return };
            self.done += 1;
            self.is_next_unsound = false;
            if is_too_old {
                refuse_too_old(shared, connection, &first.give_up(connection));
            } else {
                run_alone(shared, connection, first);
            }
        }
    }

    /// Reads what is left together and answers those that are as they were written, up to the first that is not. Returns
    /// how many; the others stay.
    fn answer_sound(&mut self, shared: &Shared, connection: &Connection, patience: Patience) -> usize {
        SCRATCH.with_borrow_mut(|buffer| {
            let Some(bodies) = self.found.read(self.done, self.reads.len(), buffer, patience) else {
                return 0;
            };
            let now_ns = shared.clock.monotonic_ns();
            let (mut sound, mut longest) = (0, 0);
            for body in bodies {
                let granted = self.reads.pop_front().expect("as many were read as are left");
                longest = longest.max(body.len());
                answer_entry(shared, connection, granted, Body::Copy(body), now_ns);
                sound += 1;
            }
            if sound > 0 {
                learn_size(connection, longest);
            }
            self.is_next_unsound = !self.reads.is_empty();
            self.done += sound;
            shared.metrics.reads_together.add(sound as u64);
            sound
        })
    }
}

/// Reads one that could not be read with its neighbours, and answers what comes of it.
fn run_alone(shared: &Arc<Shared>, connection: &Arc<Connection>, granted: Granted) {
    let request = &granted.request;
    let entry = EntryId::new(request.entry).map_or(EntryRef::Last, EntryRef::At);
    match shared.engine.read(request.ledger, entry) {
        Ok(Lookup::Memory(bytes)) if bytes.len() <= granted.room() => {
            answer_entry(shared, connection, granted, Body::Copy(&bytes), shared.clock.monotonic_ns());
        }
        Ok(Lookup::Memory(bytes)) => retry_larger(connection, granted, bytes.len()),
        Ok(Lookup::Disk(read)) => run_entry(shared, connection, granted, read),
        Ok(Lookup::Tiered(read)) => tier::run_tiered(shared, connection, granted, Some(read)),
        Ok(Lookup::Undurable(point)) => {
            park_until_durable(shared, connection, granted.give_up(connection), point);
        }
        Err(refusal) => answer_without_entry(shared, connection, &granted.give_up(connection), refusal),
    }
}
