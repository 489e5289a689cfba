//! A frame of which the peer has a part, and whose memory is wanted back.
//!
//! The rest of the frame must be of the very bytes that it began with: a recovery may have written the entry again, with
//! another LAC (last add confirmed) and so another digest. So what is kept is the frame's layout (all but the entries)
//! and an identity of the entries' bytes; a copy with other bytes is not sent, and the connection is closed.
//!
//! # Invariants
//! 1. [`Identity::rest`] gives bytes only for a body equal in length, CRC32C and a second hash that has nothing to do with
//!    it. The CRC alone will not do: entries carry checksums of the same kind themselves, and bytes that end in their own
//!    CRC (little endian) all have the same one.
//! 2. Place and generation of the copy do not matter: compaction moves it, and equal bytes are equal bytes.

use crate::connection::request::{ReadKind, ReadRequest, Reply};
use bindery_journal::record::crc32c;
use bindery_types::LedgerId;
use bindery_wire::frame::LENGTH_PREFIX_SIZE_BYTES;
use bindery_wire::{v2, v3};
use bytes::{BufMut, Bytes, BytesMut};
use std::hash::Hasher;
use std::iter::successors;
use std::ops::Range;

/// What a frame looked like, without its entries.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// Everything before the entries.
    head: Vec<u8>,
    /// Everything behind them.
    tail: Vec<u8>,
    body_len: usize,
    crc32c: u32,
    hash: u64,
    ledger: LedgerId,
    first_entry: i64,
    /// From one entry to the next.
    step: i64,
    /// Entries with their sizes before them, as a batch read has them; none for a single entry.
    batch: Option<usize>,
}

impl Identity {
    /// Of the whole `frame` that answers `request`; `None` when it cannot be made again (lists, disk space).
    pub fn of(request: &ReadRequest, frame: &[u8]) -> Option<Identity> {
        let at = body_of(request, frame)?;
        let body = &frame[at.clone()];
        let (first_entry, step, batch) = match &request.kind {
            ReadKind::Batch(batch) => (batch.start_entry_id, i64::from(batch.stride), Some(batch_len(body)?)),
            ReadKind::Entry | ReadKind::Poll(_) | ReadKind::Lac => (entry_id_of(body)?, 1, None),
            ReadKind::List | ReadKind::Info(_) => return None,
        };
        Some(Identity {
            head: frame[..at.start].to_vec(),
            tail: frame[at.end..].to_vec(),
            body_len: body.len(),
            crc32c: crc32c(body),
            hash: hash(body),
            ledger: request.ledger,
            first_entry,
            step,
            batch,
        })
    }

    /// The ledger of its entries.
    pub fn ledger(&self) -> LedgerId {
        self.ledger
    }

    /// Ids of its entries, and whether their sizes stand before them.
    pub fn entries(&self) -> (impl Iterator<Item = i64> + use<>, bool) {
        let (count, step) = (self.batch.unwrap_or(1), self.step);
        // Behind the last id there is none.
        let ids = successors(Some(self.first_entry), move |entry| entry.checked_add(step));
        (ids.take(count), self.batch.is_some())
    }

    /// Bytes of the whole frame.
    pub fn frame_len(&self) -> usize {
        self.head.len() + self.body_len + self.tail.len()
    }

    /// What follows the first `sent` bytes of the frame, when `body` has the bytes it began with (invariant 1).
    pub fn rest(&self, sent: usize, body: &[u8]) -> Option<BytesMut> {
        if body.len() != self.body_len || crc32c(body) != self.crc32c || hash(body) != self.hash {
            return None;
        }
        let mut out = BytesMut::with_capacity(self.frame_len() - sent);
        let mut skip = sent;
        for part in [&self.head[..], body, &self.tail[..]] {
            let skipped = skip.min(part.len());
            out.put_slice(&part[skipped..]);
            skip -= skipped;
        }
        Some(out)
    }
}

fn hash(body: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

/// Where the entries stand in a frame.
fn body_of(request: &ReadRequest, frame: &[u8]) -> Option<Range<usize>> {
    match (request.reply, &request.kind) {
        (Reply::V2 { .. }, ReadKind::Batch(_)) => Some(v2::BATCH_READ_RESPONSE_OVERHEAD_BYTES..frame.len()),
        (Reply::V2 { .. }, _) => Some(v2::READ_RESPONSE_OVERHEAD_BYTES..frame.len()),
        (Reply::V3 { .. }, _) => {
            let payload = Bytes::copy_from_slice(&frame[LENGTH_PREFIX_SIZE_BYTES..]);
            let response = v3::decode_response(payload.clone()).ok()?;
            let body = match (response.read_response, response.read_lac_response) {
                (Some(read), _) => read.body?,
                (None, Some(lac)) => lac.last_entry_body?,
                (None, None) => return None,
            };
            // The decoder shares the payload's memory.
            let begin = (body.as_ptr() as usize).checked_sub(payload.as_ptr() as usize)?;
            let begin = begin + LENGTH_PREFIX_SIZE_BYTES;
            let at = begin..begin.checked_add(body.len())?;
            (frame.get(at.clone())? == &body[..]).then_some(at)
        }
    }
}

/// The id inside an entry, which storage goes by.
fn entry_id_of(body: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(body.get(8..16)?.try_into().ok()?))
}

/// How many entries stand in the body of a batch read.
fn batch_len(mut body: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !body.is_empty() {
        let (size, rest) = body.split_at_checked(v2::BATCH_READ_ENTRY_OVERHEAD_BYTES)?;
        let size = u32::from_be_bytes(size.try_into().ok()?) as usize;
        body = rest.get(size..)?;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::reads::long_poll::PollRead;
    use bindery_wire::ErrorCode;
    use bindery_wire::v3::response;

    fn request(kind: ReadKind, reply: Reply) -> ReadRequest {
        ReadRequest { kind, reply, ..ReadRequest::for_test(1, 7) }
    }

    fn body(entry: i64, lac: i64, payload: usize) -> Vec<u8> {
        let mut body = Vec::new();
        for field in [LedgerId::MIN.get(), entry, lac, payload as i64] {
            body.extend_from_slice(&field.to_be_bytes());
        }
        body.extend_from_slice(&crc32c(&body).to_be_bytes());
        body.resize(body.len() + payload, 9);
        body
    }

    fn v2_frame(body: &[u8]) -> BytesMut {
        let mut out = BytesMut::new();
        v2::put_read_response(2, LedgerId::MIN.get(), 7, body, &mut out);
        out
    }

    #[test]
    fn the_rest_continues_the_frame_at_every_cut_in_every_form() {
        let whole = body(7, 5, 40);
        let mut frames = vec![(request(ReadKind::Entry, Reply::V2 { version: 2 }), v2_frame(&whole))];
        let bytes = || Some(Bytes::from(whole.clone()));
        let poll = PollRead { previous: 6, wants_entry: true, woken_at_ms: None };
        let result = |lac| response::ReadResult { body: bytes(), max_lac: lac, lac_update_timestamp_ms: lac };
        let v3_frames = [
            (ReadKind::Entry, response::read(9, LedgerId::MIN.get(), 7, result(None))),
            (ReadKind::Poll(Box::new(poll)), response::read(9, LedgerId::MIN.get(), 7, result(Some(70)))),
            (
                ReadKind::Lac,
                response::read_lac(9, ErrorCode::Ok, 0, Some(Bytes::from_static(b"explicit")), bytes()),
            ),
        ];
        for (kind, message) in v3_frames {
            let mut out = BytesMut::new();
            v3::put_frame(&message, &mut out);
            frames.push((request(kind, Reply::V3 { txn: 9 }), out));
        }
        for (request, frame) in frames {
            let identity = Identity::of(&request, &frame).unwrap();
            assert_eq!(ids_of(&identity), ([7].to_vec(), false));
            for sent in 0..=frame.len() {
                let rest = identity.rest(sent, &whole).unwrap();
                assert_eq!(rest, frame[sent..], "{:?} cut at {sent}", request.kind);
            }
        }
    }

    #[test]
    fn a_batch_is_known_by_its_entries() {
        let mut batch = v2::BatchRead {
            version: 2,
            flags: v2::Flags::NONE,
            ledger_id: LedgerId::MIN.get(),
            start_entry_id: 4,
            request_id: 1,
            max_count: 10,
            max_size_bytes: 1000,
            master_key: None,
            stride: 1,
        };
        for (stride, ids) in [(1, [4, 5, 6]), (3, [4, 7, 10])] {
            batch.stride = stride;
            let entries = ids.map(|entry| body(entry, 3, entry as usize * 10));
            let mut frame = BytesMut::new();
            let slices = entries.iter().map(|entry| &entry[..]);
            v2::put_batch_read_response(2, LedgerId::MIN.get(), 4, 1, stride > 1, slices, &mut frame);
            let request = request(ReadKind::Batch(Box::new(batch)), Reply::V2 { version: 2 });
            let identity = Identity::of(&request, &frame).unwrap();
            assert_eq!(ids_of(&identity), (ids.to_vec(), true));
            let body = &frame[v2::BATCH_READ_RESPONSE_OVERHEAD_BYTES..];
            assert_eq!(identity.rest(50, body).unwrap(), frame[50..]);
        }
    }

    fn ids_of(identity: &Identity) -> (Vec<i64>, bool) {
        let (ids, is_batch) = identity.entries();
        (ids.collect(), is_batch)
    }

    /// Invariant 1: another LAC that changes neither length nor CRC.
    #[test]
    fn a_copy_with_another_lac_is_refused_though_its_checksum_is_equal() {
        let with_own_crc = |lac| {
            let mut body = body(7, lac, 0);
            body.extend_from_slice(&crc32c(&body).to_le_bytes());
            body
        };
        let (before, after) = (with_own_crc(5), with_own_crc(6));
        assert_ne!(before, after);
        assert_eq!((before.len(), crc32c(&before)), (after.len(), crc32c(&after)), "the trap is real");
        let frame = v2_frame(&before);
        let identity = Identity::of(&request(ReadKind::Entry, Reply::V2 { version: 2 }), &frame).unwrap();
        assert!(identity.rest(10, &before).is_some());
        assert!(identity.rest(10, &after).is_none());
        assert!(identity.rest(10, &before[1..]).is_none());
    }

    #[test]
    fn lists_cannot_be_made_again() {
        let message = response::get_list_of_entries(1, ErrorCode::Ok, 0, Some(Bytes::from_static(&[0; 64])));
        let mut frame = BytesMut::new();
        v3::put_frame(&message, &mut frame);
        assert_eq!(Identity::of(&request(ReadKind::List, Reply::V3 { txn: 1 }), &frame), None);
    }
}
