//! Getting entries from their replicas.
//!
//! # Invariants
//! 1. The replicas of an entry are asked one after the other until one returns it with a valid digest (IC9); each is
//!    asked once (IC19).
//! 2. When none has it and the ledger is open, the metadata is read again: the entry may be in a newer segment. It
//!    counts as absent only in the segment it belongs to (IC21).

use std::sync::atomic::Ordering;

use bindery_types::EntryId;
use bindery_wire::ErrorCode;
use bytes::Bytes;

use super::state::ReaderState;
use crate::entry::Entry;
use crate::error::{BookieAnswer, BookieAnswers, ReadError};
use crate::transport::{BatchReadRequest, BookieError, ReadRequest};

/// How often a segment may change under a read.
const REREADS_MAX: usize = 16;

impl ReaderState {
    /// Reads one entry, whatever the LAC (last add confirmed).
    pub async fn fetch(&self, entry: EntryId, rotation: usize) -> Result<Entry, ReadError> {
        let mut rereads = 0;
        loop {
            if self.shared.is_closed() {
                return Err(ReadError::ClientClosed);
            }
            let metadata = self.metadata();
            let mut answers = BookieAnswers::default();
            for bookie in self.replicas(&metadata, entry, rotation) {
                let request = ReadRequest { ledger: self.id, entry: Some(entry), fence: None };
                let result = self.shared.transport.read(&bookie, request).await;
                self.shared.failures.note(&bookie, result.as_ref().err());
                match self.judge(entry, result) {
                    Ok(found) => return Ok(found),
                    Err(answer) => answers.0.push((bookie, answer)),
                }
            }
            // Invariant 2.
            if self.end().is_none() && rereads < REREADS_MAX {
                rereads += 1;
                self.reread().await?;
                let now = self.metadata();
                let write_set = |metadata: &bindery_types::LedgerMetadata| {
                    metadata.write_set(entry).cloned().collect::<Vec<_>>()
                };
                if write_set(&now) != write_set(&metadata) {
                    continue;
                }
            }
            let ledger = self.id;
            let is_absent = answers.0.iter().all(|(_, answer)| *answer == BookieAnswer::Absent);
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
        rotation: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let metadata = self.metadata();
        let mut is_understood = true;
        for bookie in self.replicas(&metadata, first, rotation) {
            let request = BatchReadRequest { ledger: self.id, first, count_max: count, size_bytes_max };
            let result = self.shared.transport.batch_read(&bookie, request).await;
            self.shared.failures.note(&bookie, result.as_ref().err());
            match result {
                Ok(stored) => {
                    let entries: Vec<Entry> = stored
                        .into_iter()
                        .take(count as usize)
                        .zip(first.get()..)
                        .map_while(|(stored, id)| self.judge(EntryId::new(id)?, Ok(stored)).ok())
                        .collect();
                    // Damage further on: the next call begins with it, and comes to another replica.
                    if !entries.is_empty() {
                        return Ok(entries);
                    }
                }
                Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)) => {}
                Err(_) => is_understood = false,
            }
        }
        let entry = self.fetch(first, rotation).await?;
        if !is_understood {
            // It can be read, but not so: an old bookie.
            self.can_batch.store(false, Ordering::Relaxed);
        }
        Ok(vec![entry])
    }
}
