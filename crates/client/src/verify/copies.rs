//! Reads one bookie's own copies of a part of a ledger, and none of the other bookies'.
//!
//! # Invariants
//! 1. Copies come in the order of the entries, one for each, from the first on; the first is always among them.
//! 2. A bookie that does not answer is asked again a few times, and then counts as unreachable for that request.
//!
//! # Limits     nothing more is read once [`PART_BYTES`] came; under way: a batch of that size, or [`SINGLES_MAX`]
//! entries

use std::sync::Arc;
use std::time::Duration;

use bindery_types::{BookieId, EntryId, LedgerId};
use bindery_wire::ErrorCode;
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::core::Copy;
use crate::entry::EntryCodec;
use crate::transport::{BatchReadRequest, BookieError, ReadRequest, Transport};

/// Bytes of one bookie's part to request at a time.
pub(super) const PART_BYTES: u64 = 256 << 10;
/// Single entries asked of one bookie at a time.
const SINGLES_MAX: usize = 16;
/// How often a request is sent that gets no answer in time; each time takes the request timeout.
const TRIES_TIMED_OUT: u32 = 2;
/// How often one is sent that fails in another way.
const TRIES: u32 = 4;
/// Before the second time; twice as long before each after it.
const PAUSE: Duration = Duration::from_millis(100);

/// Whom to ask, and for what.
pub(super) struct Part {
    pub transport: Arc<dyn Transport>,
    pub codec: EntryCodec,
    pub ledger: LedgerId,
    pub bookie: BookieId,
    /// Ascending, not empty.
    pub entries: Vec<EntryId>,
    /// They follow one another, and the bookie may know batch reads.
    pub is_batch: bool,
}

/// What came of it.
pub(super) struct Copies {
    /// Of the first entries of the part, at least one.
    pub copies: Vec<Copy>,
    pub knows_batches: bool,
}

/// What the answer to a batch read means.
enum Batch {
    Entries(Vec<Bytes>),
    /// Read the first entry alone, and the rest one by one, too.
    Singles,
    /// It does not know the request.
    Unknown,
    Unreachable(BookieError),
}

impl Part {
    pub(super) async fn read(self) -> Copies {
        let mut copies = Vec::with_capacity(self.entries.len());
        let (mut bytes, mut knows_batches, mut is_batch) = (0, true, self.is_batch);
        while copies.len() < self.entries.len() && (copies.is_empty() || bytes < PART_BYTES) {
            let rest = &self.entries[copies.len()..];
            if !is_batch {
                let wave = &rest[..rest.len().min(SINGLES_MAX)];
                let found = self.singles(wave).await;
                bytes += found.iter().map(size_bytes).sum::<u64>();
                // Nobody there: no need to ask for the rest.
                let gone = match found.iter().all(|copy| matches!(copy, Copy::Unreachable(_))) {
                    true => found.last().cloned(),
                    false => None,
                };
                copies.extend(found);
                if let Some(gone) = gone {
                    copies.resize(self.entries.len(), gone);
                }
                continue;
            }
            match self.batch(rest[0], rest.len()).await {
                Batch::Entries(stored) => {
                    let found = stored.iter().zip(rest).map(|(stored, entry)| self.judge(*entry, stored));
                    let found: Vec<Copy> = found.collect();
                    bytes += found.iter().map(size_bytes).sum::<u64>();
                    copies.extend(found);
                }
                Batch::Singles => is_batch = false,
                Batch::Unknown => (is_batch, knows_batches) = (false, false),
                Batch::Unreachable(error) => {
                    copies.resize(self.entries.len(), Copy::Unreachable(error));
                }
            }
        }
        Copies { copies, knows_batches }
    }

    fn judge(&self, entry: EntryId, stored: &Bytes) -> Copy {
        self.codec.open(Some(entry), stored).map_or(Copy::Damaged(None), Copy::Sound)
    }

    async fn batch(&self, first: EntryId, count: usize) -> Batch {
        let request = BatchReadRequest {
            ledger: self.ledger,
            first,
            stride: 1,
            count_max: u32::try_from(count).unwrap_or(u32::MAX),
            size_bytes_max: PART_BYTES,
        };
        let answer = retried(|| self.transport.batch_read(&self.bookie, request.clone())).await;
        match answer {
            Ok(stored) if stored.is_empty() => Batch::Unknown,
            Ok(stored) => Batch::Entries(stored),
            Err(BookieError::Refused(ErrorCode::BadRequest | ErrorCode::BadVersion)) => Batch::Unknown,
            Err(BookieError::Refused(_)) => Batch::Singles,
            Err(error) => Batch::Unreachable(error),
        }
    }

    async fn singles(&self, entries: &[EntryId]) -> Vec<Copy> {
        // Dropped with this future.
        let mut reads = JoinSet::new();
        for (index, entry) in entries.iter().copied().enumerate() {
            let (transport, bookie) = (self.transport.clone(), self.bookie.clone());
            let request = ReadRequest { ledger: self.ledger, entry: Some(entry), fence: None };
            reads.spawn(async move { (index, retried(|| transport.read(&bookie, request.clone())).await) });
        }
        let mut copies = vec![Copy::Missing; entries.len()];
        while let Some(read) = reads.join_next().await {
            let (index, answer) = match read {
                Ok(read) => read,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            copies[index] = match answer {
                Ok(stored) => self.judge(entries[index], &stored),
                Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)) => Copy::Missing,
                // It has it and cannot read it.
                Err(error @ BookieError::Refused(ErrorCode::Io)) => Copy::Damaged(Some(error)),
                Err(error) => Copy::Unreachable(error),
            };
        }
        copies
    }
}

fn size_bytes(copy: &Copy) -> u64 {
    match copy {
        Copy::Sound(entry) => entry.payload.len() as u64,
        _ => 0,
    }
}

/// Sends a request again as long as that may help.
async fn retried<T, F>(send: impl Fn() -> F) -> Result<T, BookieError>
where
    F: Future<Output = Result<T, BookieError>>,
{
    let mut tries = 0;
    loop {
        let error = match send().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        tries += 1;
        let tries_max = match &error {
            BookieError::TimedOut(_) => TRIES_TIMED_OUT,
            BookieError::Refused(ErrorCode::TooManyRequests)
            | BookieError::Lost
            | BookieError::LostUnanswered(_)
            | BookieError::Unreachable(_)
            | BookieError::Unexpected(_) => TRIES,
            BookieError::Refused(_)
            | BookieError::AnswerTooLarge { .. }
            | BookieError::NotRegistered
            | BookieError::Closed
            | BookieError::Behind(_)
            | BookieError::Reconnected => 1,
        };
        if tries >= tries_max {
            return Err(error);
        }
        sleep(PAUSE * 2u32.pow(tries - 1)).await;
    }
}
