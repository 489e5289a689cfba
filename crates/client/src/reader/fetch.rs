//! Getting entries from their replicas.
//!
//! # Invariants
//! 1. The replicas of an entry are asked until one returns it with a valid digest (IC9); each is asked once (IC19), in
//!    the order and at the time that `race` says.
//! 2. When none returns it, the current metadata is read, and a write set that has changed is asked (IC21). An open ledger may
//!    have a newer segment. Repair replaces members of closed ledgers, too, and the old members may then delete their copies.
//! 3. An entry is absent when current metadata names only bookies that do not have it. Of a closed ledger whose metadata cannot
//!    be read now, it is unavailable, and that is said soon.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bindery_types::{BookieId, EntryId};
use bindery_wire::ErrorCode;
use bytes::Bytes;

use super::race::Ask;
use super::state::{ReaderState, Replicas};
use crate::entry::Entry;
use crate::error::{BookieAnswer, ReadError};
use crate::health::Operation;
use crate::transport::{BatchReadRequest, BookieError, ReadRequest, Transport};

/// How often a segment may change under a read.
const REREADS_MAX: usize = 16;

impl ReaderState {
    /// Reads one entry, alone or of a run, whatever the LAC (last add confirmed).
    pub async fn fetch(&self, entry: EntryId, is_of_run: bool) -> Result<Entry, ReadError> {
        let ledger = self.id;
        let mut rereads = 0;
        loop {
            if self.shared.is_closed() {
                return Err(ReadError::ClientClosed);
            }
            let replicas = self.replicas();
            let send = |transport: Arc<dyn Transport>, bookie: BookieId| async move {
                let request = ReadRequest { ledger, entry: Some(entry), fence: None };
                transport.read(&bookie, request).await
            };
            let ask = Ask { first: entry, entries: 1, operation: Operation::Read, is_of_run };
            let answers = match self.ask(&replicas, ask, send, |result| self.judge(entry, result)).await {
                Ok(found) => return Ok(found),
                Err(answers) => answers,
            };
            // Invariant 2.
            let begun = self.rereads_begun();
            let is_named_still =
                |now: &Replicas| now.metadata.write_set(entry).eq(replicas.metadata.write_set(entry));
            let mut is_current = false;
            if rereads < REREADS_MAX {
                rereads += 1;
                // Another read may have found out already.
                if is_named_still(&self.replicas()) {
                    is_current = self.reread_after(begun).await?;
                }
                if !is_named_still(&self.replicas()) {
                    continue;
                }
            }
            let is_absent = is_current && answers.0.iter().all(|(_, answer)| *answer == BookieAnswer::Absent);
            return Err(match is_absent {
                true => ReadError::NoEntry { ledger, entry, answers },
                false => ReadError::Unavailable { ledger, entry, answers },
            });
        }
    }

    fn judge(&self, entry: EntryId, result: Result<Bytes, BookieError>) -> Result<Entry, BookieAnswer> {
        match result {
            Ok(stored) => match self.codec.open(Some(entry), &stored) {
                Some(found) => {
                    self.advance(found.last_add_confirmed);
                    Ok(found)
                }
                None => Err(BookieAnswer::Damaged),
            },
            Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)) => Err(BookieAnswer::Absent),
            Err(error) => Err(BookieAnswer::Failed(error)),
        }
    }

    /// Reads a run of entries of one segment, of which each replica has all. Returns at least the first, in order and
    /// without a gap, perhaps fewer than asked for.
    pub async fn fetch_batch(
        &self,
        first: EntryId,
        count: u32,
        size_bytes_max: u64,
    ) -> Result<Vec<Entry>, ReadError> {
        let ledger = self.id;
        let send = |transport: Arc<dyn Transport>, bookie: BookieId| async move {
            let request = BatchReadRequest { ledger, first, stride: 1, count_max: count, size_bytes_max };
            transport.batch_read(&bookie, request).await
        };
        let mut without = 0;
        let judge = |result: Result<Vec<Bytes>, BookieError>| match result {
            Ok(stored) => {
                let entries: Vec<Entry> = stored
                    .into_iter()
                    .take(count as usize)
                    .enumerate()
                    .map_while(|(index, stored)| {
                        let id = first.get().checked_add(index as i64)?;
                        self.judge(EntryId::new(id)?, Ok(stored)).ok()
                    })
                    .collect();
                // Damage further on: the next call begins with it, and comes to another replica.
                if entries.is_empty() { Err(BookieAnswer::Damaged) } else { Ok(entries) }
            }
            Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)) => Err(BookieAnswer::Absent),
            // It does not know the request, which is no trouble: the next one may.
            Err(BookieError::Refused(ErrorCode::BadRequest | ErrorCode::BadVersion)) => {
                without += 1;
                Err(BookieAnswer::Damaged)
            }
            Err(error) => {
                if let BookieError::Unexpected(_) = error {
                    without += 1;
                }
                Err(BookieAnswer::Failed(error))
            }
        };
        let entries = u64::from(count);
        let ask = Ask { first, entries, operation: Operation::BatchRead, is_of_run: true };
        match self.ask(&self.replicas(), ask, send, judge).await {
            Ok(entries) => {
                self.has_batched.store(true, Ordering::Relaxed);
                return Ok(entries);
            }
            // None that answers knows it. While one does, the others are passed over, which costs nothing. One that hangs beside
            // those that do not know it would cost its timeout for each entry.
            Err(_) if without > 0 => self.batches.pause(),
            Err(_) => {}
        }
        Ok(vec![self.fetch(first, true).await?])
    }
}
