//! Batch reads: the first entry whatever its size, then those that follow it, or its stride, while they fit; anything missing
//! after the first ends the batch (protocol reference, section 1.5), so no request has more entries looked up than it returns,
//! and one. The window ends it too, and so do [`BETWEEN_BYTES_MAX`] bytes read between entries of a stride.
//!
//! Of entries in object storage alone it takes those that are in memory by now; when the first one is not, it waits for that.
//! It is begun inline, with what the kernel has in memory; a thread that may wait goes on where that stopped.

use super::answers::{answer_failure, record};
use super::{
    Granted, HEAD_BYTES, SCRATCH, SCRATCH_BYTES, learn_size, park_until_durable, retry_larger, tier,
};
use crate::connection::Connection;
use crate::connection::output::outbox::Body;
use crate::connection::reads::held;
use crate::connection::request::{ReadKind, Reply};
use crate::limits::Limits;
use crate::shared::Shared;
use bindery_engine::{DurablePoint, EntryRef, Lookup, Patience, Refusal, TOGETHER_ENTRIES_MAX, TieredRead};
use bindery_types::{EntryId, LedgerId};
use bindery_wire::{BatchReadBudget, v2};
use bytes::BytesMut;
use std::sync::Arc;

/// A batch of more bytes, or one that takes more look-ups, is finished on the I/O pool: some 30 µs of copying, or 100 of
/// looking up, keep the other connections of a thread waiting.
const INLINE_BYTES_MAX: usize = 128 * 1024;
/// See [`INLINE_BYTES_MAX`].
const INLINE_LOOKUPS_MAX: usize = 32;
/// Bytes between wanted entries that are read for one batch at most: a few times what an answer may have.
const BETWEEN_BYTES_MAX: usize = 16 << 20;
/// Bytes that take a thread as long as starting a read does.
const BYTES_OF_A_START: usize = 16 * 1024;

/// A batch as far as it is read: its entries as they stand in the frame.
pub struct BatchLoad {
    connection: u64,
    ledger: LedgerId,
    budget: BatchReadBudget,
    body: BytesMut,
    next: i64,
    /// From one entry to the next.
    step: u32,
    /// Entries that may come at most, with those in `body`.
    count_max: u32,
    /// Bytes that the permit leaves for entries.
    room: usize,
    /// The bound that the request sets, when `room` is less because its entries probably need no more.
    most: Option<usize>,
    /// The longest entry so far.
    longest: usize,
    /// Look-ups so far.
    lookups: usize,
    /// Bytes between entries of a stride that were read with them.
    between: usize,
    /// The next entry was read with its neighbours, and failed.
    is_next_unsound: bool,
    /// Entries of object storage are among those in `body`.
    is_from_tier: bool,
}

/// Why a batch got no more entries.
enum Stop {
    /// It is complete, or the next entry is not to be had now.
    Ended,
    /// The next one takes a thread that may wait.
    WouldWait,
    /// The first one is not durable yet.
    Undurable(DurablePoint),
    /// The first one is in object storage alone.
    Tiered(TieredRead),
    /// The first one needs so many bytes, or more than were likely are needed for the next.
    Larger(usize),
    /// There is no first one.
    Refused(Refusal),
}

impl BatchLoad {
    /// The requested batch, none of it read, for which `charge` bytes will be held; up to `most` if that is too little.
    pub fn new(
        limits: &Limits,
        batch: &v2::BatchRead,
        (connection, ledger): (u64, LedgerId),
        charge: usize,
        most: usize,
    ) -> BatchLoad {
        let room = charge - HEAD_BYTES;
        let server_max =
            (limits.batch_read_size_bytes_max as usize).min(room + v2::BATCH_READ_RESPONSE_OVERHEAD_BYTES);
        let count_max = u32::try_from(batch.max_count).ok().filter(|count| *count > 0).unwrap_or(u32::MAX);
        BatchLoad {
            connection,
            ledger,
            budget: BatchReadBudget::new(batch, server_max as u32, limits.frame),
            body: BytesMut::new(),
            next: batch.start_entry_id,
            step: batch.stride,
            count_max,
            room,
            most: (room < most).then_some(most),
            longest: 0,
            lookups: 0,
            between: 0,
            is_next_unsound: false,
            is_from_tier: false,
        }
    }

    /// Bytes of the answer, and those between that were read with them.
    fn read_bytes(&self) -> usize {
        self.body.len() + self.between
    }

    /// How many reads could have been started in the time that it took so far.
    pub fn starts(&self) -> usize {
        self.lookups.max(1) + self.read_bytes() / BYTES_OF_A_START
    }

    /// Reads and answers it when no thread has to wait for the disk and it is short; else gives it back as far as it
    /// is. Returns what that took ([`BatchLoad::starts`]).
    pub fn run_inline(
        mut self,
        shared: &Arc<Shared>,
        connection: &Connection,
        granted: Granted,
    ) -> Result<usize, Box<(Granted, BatchLoad)>> {
        match self.fill(shared, Patience::Never) {
            Stop::WouldWait => Err(Box::new((granted, self))),
            stop => {
                let starts = self.starts();
                self.answer(shared, connection, granted, stop);
                Ok(starts)
            }
        }
    }

    /// Reads the rest on a thread that may wait, and answers.
    pub fn run(mut self, shared: &Arc<Shared>, connection: &Connection, granted: Granted) {
        let stop = self.fill(shared, Patience::Wait);
        self.answer(shared, connection, granted, stop);
    }

    fn fill(&mut self, shared: &Shared, patience: Patience) -> Stop {
        while !self.budget.is_full() {
            if self.budget.count() > 0 && self.between > BETWEEN_BYTES_MAX {
                return Stop::Ended;
            }
            let is_long = self.read_bytes() >= INLINE_BYTES_MAX || self.lookups >= INLINE_LOOKUPS_MAX;
            if patience == Patience::Never && is_long {
                return Stop::WouldWait;
            }
            let Some(entry) = EntryId::new(self.next) else { return self.ended(Refusal::NoEntry) };
            self.lookups += 1;
            let added = match self.add_together(shared, entry, patience) {
                Ok(true) => Ok(()),
                Ok(false) => self.add_one(shared, entry, patience),
                Err(stop) => Err(stop),
            };
            if let Err(stop) = added {
                return stop;
            }
        }
        self.full()
    }

    /// No further entry fits.
    fn full(&self) -> Stop {
        match self.most {
            Some(most) if self.budget.count() < self.count_max => Stop::Larger(most),
            _ => Stop::Ended,
        }
    }

    /// The end of the batch for want of an entry.
    fn ended(&self, refusal: Refusal) -> Stop {
        if self.budget.count() == 0 { Stop::Refused(refusal) } else { Stop::Ended }
    }

    /// Adds entries that lie together on disk. False when they do not, or cannot be read so.
    fn add_together(&mut self, shared: &Shared, first: EntryId, patience: Patience) -> Result<bool, Stop> {
        if std::mem::take(&mut self.is_next_unsound) {
            return Ok(false);
        }
        let count = (self.count_max - self.budget.count()).min(TOGETHER_ENTRIES_MAX);
        let found = shared.engine.read_run(self.ledger, (first, self.step), count, SCRATCH_BYTES, patience);
        let Some(found) = found.filter(|found| found.lengths().len() > 1) else { return Ok(false) };
        let mut budget = self.budget.clone();
        let fitting = found.lengths().take_while(|length| budget.admit(*length)).count();
        if self.budget.count() > 0 && fitting == 0 {
            return Err(self.full());
        }
        let needed = found.lengths().next().unwrap_or(0) + v2::BATCH_READ_ENTRY_OVERHEAD_BYTES;
        if fitting < 2 || (self.budget.count() == 0 && needed > self.room) {
            return Ok(false);
        }
        let sound = SCRATCH.with_borrow_mut(|buffer| {
            let bodies = found.read(0, fitting, buffer, patience).ok_or(Stop::WouldWait)?;
            let entries_bytes: usize = found.lengths().take(fitting).sum();
            self.between += found.span_bytes(fitting) - entries_bytes;
            self.body.reserve(entries_bytes + fitting * v2::BATCH_READ_ENTRY_OVERHEAD_BYTES);
            let mut sound = 0;
            for body in bodies {
                let is_admitted = self.budget.admit(body.len());
                assert!(is_admitted, "as many were read as fit");
                self.put(body);
                sound += 1;
            }
            Ok(sound)
        })?;
        shared.metrics.reads_together.add(sound as u64);
        if patience == Patience::Never {
            shared.metrics.reads_without_wait.add(sound as u64);
        }
        self.is_next_unsound = sound < fitting;
        // The next entry does not fit.
        let is_ended = sound == fitting && fitting < found.lengths().len();
        if is_ended { Err(self.full()) } else { Ok(true) }
    }

    fn add_one(&mut self, shared: &Shared, entry: EntryId, patience: Patience) -> Result<(), Stop> {
        match shared.engine.read(self.ledger, EntryRef::At(entry)) {
            Ok(Lookup::Memory(body)) => self.add(&body),
            Ok(Lookup::Disk(read)) if patience == Patience::Wait => match read.load() {
                Ok(body) => self.add(&body),
                Err(Refusal::Tiered) => self.add_tiered(shared, read.into_tiered()),
                Err(refusal) => Err(self.ended(refusal)),
            },
            Ok(Lookup::Tiered(read)) => self.add_tiered(shared, Some(read)),
            Ok(Lookup::Disk(mut read)) => {
                let size = match read.try_locate().ok_or(Stop::WouldWait)? {
                    Ok(size) => size,
                    Err(Refusal::Tiered) => return self.add_tiered(shared, read.into_tiered()),
                    Err(refusal) => return Err(self.ended(refusal)),
                };
                let size = size as usize;
                self.check_room(size, &mut self.budget.clone())?;
                if size > SCRATCH_BYTES {
                    return Err(Stop::WouldWait);
                }
                SCRATCH.with_borrow_mut(|body| {
                    let loaded = read.try_load(body).ok_or(Stop::WouldWait)?;
                    loaded.map_err(|refusal| self.ended(refusal))?;
                    shared.metrics.reads_without_wait.add(1);
                    self.add(body)
                })
            }
            Ok(Lookup::Undurable(point)) if self.budget.count() == 0 => Err(Stop::Undurable(point)),
            Ok(Lookup::Undurable(_)) => Err(Stop::Ended),
            Err(refusal) => Err(self.ended(refusal)),
        }
    }

    /// Adds an entry of object storage that is in memory here.
    fn add_tiered(&mut self, shared: &Shared, read: Option<TieredRead>) -> Result<(), Stop> {
        let read = read.ok_or_else(|| self.ended(Refusal::Io))?;
        match shared.tier.as_ref().and_then(|tier| tier.cached(self.connection, &read)) {
            Some(entry) => {
                self.add(&entry)?;
                self.is_from_tier = true;
                Ok(())
            }
            None if self.budget.count() == 0 => Err(Stop::Tiered(read)),
            None => Err(Stop::Ended),
        }
    }

    fn add(&mut self, body: &[u8]) -> Result<(), Stop> {
        let mut budget = self.budget.clone();
        self.check_room(body.len(), &mut budget)?;
        self.budget = budget;
        self.put(body);
        Ok(())
    }

    /// Whether an entry of so many bytes goes in; `budget` counts it then.
    fn check_room(&self, length: usize, budget: &mut BatchReadBudget) -> Result<(), Stop> {
        let needed = length + v2::BATCH_READ_ENTRY_OVERHEAD_BYTES;
        if budget.count() == 0 && needed > self.room {
            return Err(Stop::Larger(needed));
        }
        if budget.admit(length) { Ok(()) } else { Err(self.full()) }
    }

    fn put(&mut self, body: &[u8]) {
        self.longest = self.longest.max(body.len());
        v2::put_batch_entry_size(body.len(), &mut self.body);
        self.body.extend_from_slice(body);
        // Behind the last id there is none, and that ends the batch.
        self.next = self.next.checked_add(i64::from(self.step)).unwrap_or(-1);
    }

    fn answer(self, shared: &Arc<Shared>, connection: &Connection, granted: Granted, stop: Stop) {
        let refusal = match stop {
            Stop::Undurable(point) => {
                return park_until_durable(shared, connection, granted.give_up(connection), point);
            }
            Stop::Tiered(read) => {
                return tier::park(shared, connection, granted.give_up(connection), read);
            }
            Stop::Larger(needed) => return retry_larger(connection, granted, needed),
            Stop::Refused(refusal) => Some(refusal),
            // Not even the first entry fits a frame.
            Stop::Ended | Stop::WouldWait if self.budget.count() == 0 => Some(Refusal::Io),
            Stop::Ended | Stop::WouldWait => None,
        };
        if let Some(refusal) = refusal {
            return answer_failure(shared, connection, &granted.give_up(connection), refusal);
        }
        learn_size(connection, self.longest);
        let Granted { mut request, permit, window } = granted;
        // The entries are copied: their pins may go.
        drop(request.tier.take());
        request.is_from_tier = self.is_from_tier;
        let (ReadKind::Batch(batch), Reply::V2 { version }) = (&request.kind, request.reply) else { return };
        let (ledger, start, request_id) = (self.ledger.get(), batch.start_entry_id, batch.request_id);
        let is_strided = batch.flags.contains(v2::Flags::STRIDE);
        let size = self.body.len();
        shared.metrics.read_bytes.add(size as u64);
        held::take(shared, connection, &request, size);
        record(shared, connection, &request, size, shared.clock.monotonic_ns(), true);
        connection.outbox.entry(request, window, permit, Body::Owned(self.body.into()), |out| {
            v2::put_batch_read_response_header(version, ledger, start, request_id, is_strided, size, out);
        });
    }
}
