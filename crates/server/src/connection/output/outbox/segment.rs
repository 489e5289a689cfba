//! A piece of the outbox: bytes on their way, which answers with entries are among them, and what covers those.

use super::Window;
use super::part::Identity;
use crate::connection::request::ReadRequest;
use crate::read_class::{PerClass, ReadClass};
use bindery_flow::Permit;
use bytes::BytesMut;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// The rest of a frame that is kept when memory is wanted back: less than what it takes to load it again.
pub(super) const REST_KEPT_BYTES: usize = 4096;

/// Larger buffers are not kept for reuse.
const SPARE_BYTES_MAX: usize = 64 * 1024;
/// A buffer that is no larger than this is left to a peer that takes nothing, however few bytes are in it.
const FIT_BYTES_MIN: usize = 1024;
/// Buffers that a thread keeps.
const SPARES_MAX: usize = 4;

thread_local! {
    /// Emptied buffers of any connection: an idle one keeps none.
    static SPARES: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, used before if there is one.
pub(super) fn take_spare() -> BytesMut {
    SPARES.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps a buffer whose bytes have left for the next segment of this thread.
pub(super) fn keep_spare(mut bytes: BytesMut) {
    SPARES.with_borrow_mut(|spares| {
        if spares.len() < SPARES_MAX && (1..=SPARE_BYTES_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            spares.push(bytes);
        }
    });
}

/// An answer with entry bytes that the kernel does not have wholly yet.
pub(super) struct Response {
    pub request: ReadRequest,
    /// Where its bytes stand among those of its segment.
    pub begin: usize,
    pub end: usize,
    /// Bytes of its frame that stand before `begin` no more: the peer has them.
    pub sent_before: usize,
    /// Of a frame that was dropped once already.
    pub identity: Option<Arc<Identity>>,
    /// Can be dropped and loaded again.
    pub may_drop: bool,
    /// Bytes of permit and window.
    pub charge: usize,
    pub class: ReadClass,
}

/// See the module. `bytes`, then `body`; a large entry stands in a segment of its own.
#[derive(Default)]
pub(super) struct Segment {
    pub bytes: BytesMut,
    pub body: Vec<u8>,
    /// Bytes that the kernel has.
    pub written: usize,
    /// Bytes of answers without entries inside.
    pub answer_bytes: usize,
    /// In the order of their bytes.
    pub responses: VecDeque<Response>,
    /// They cover the bytes of entries inside.
    pub permits: PerClass<Option<Permit>>,
    /// Bytes charged to the read windows.
    pub window_bytes: PerClass<usize>,
}

/// The result of taking back the memory of a segment.
#[derive(Default)]
pub(super) struct Dropped {
    /// Bytes that stay: answers without entries, and small rests.
    pub kept: Option<Segment>,
    /// Whole responses that are descriptors again, in order.
    pub requests: Vec<ReadRequest>,
    /// The frame at its front, partly sent, its request, and how much of it was sent.
    pub part: Option<(ReadRequest, Arc<Identity>, usize)>,
    /// Bytes given back to the windows.
    pub window_bytes: PerClass<usize>,
    /// Bytes of answers that had left, when no segment is kept.
    pub answer_bytes: usize,
    /// To be dropped by the caller, outside of locks.
    pub permits: Vec<Permit>,
}

impl Segment {
    pub fn len(&self) -> usize {
        self.bytes.len() + self.body.len()
    }

    pub fn is_written(&self) -> bool {
        self.written == self.len()
    }

    /// What is to be written, in at most two pieces.
    pub fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        let in_bytes = self.written.min(self.bytes.len());
        let in_body = self.written - in_bytes;
        [&self.bytes[in_bytes..], &self.body[in_body..]]
            .into_iter()
            .filter(|slice| !slice.is_empty())
            .map(IoSlice::new)
    }

    /// Copies a few bytes out of a large buffer, which others may use meanwhile (outbox invariant 10).
    pub fn fit(&mut self) {
        if self.bytes.capacity() > FIT_BYTES_MIN.max(2 * self.bytes.len()) {
            let fitting = BytesMut::from(&self.bytes[..]);
            keep_spare(std::mem::replace(&mut self.bytes, fitting));
        }
    }

    /// Notes a response whose bytes are the last of the segment.
    pub fn cover(&mut self, request: ReadRequest, begin: usize, window: Window, permit: Permit) {
        let (end, charge, class) = (self.len(), window.bytes, window.class);
        self.responses.push_back(Response {
            request,
            begin,
            end,
            sent_before: 0,
            identity: None,
            may_drop: true,
            charge,
            class,
        });
        self.take_permit(charge, class, permit);
    }

    pub fn take_permit(&mut self, charge: usize, class: ReadClass, permit: Permit) {
        self.window_bytes[class] += charge;
        match &mut self.permits[class] {
            Some(covering) => covering.merge(permit),
            none => *none = Some(permit),
        }
    }

    /// Responses that the kernel has wholly.
    pub fn take_finished(&mut self, mut finished: impl FnMut(ReadRequest)) {
        while self.responses.front().is_some_and(|response| response.end <= self.written) {
            let response = self.responses.pop_front().expect("there is a front");
            finished(response.request);
        }
    }

    /// Takes the responses apart from the rest (outbox invariant 7). No one else may hold the segment.
    pub fn drop_responses(mut self) -> Dropped {
        if self.responses.is_empty() {
            return Dropped { kept: Some(self), ..Dropped::default() };
        }
        let mut dropped = Dropped::default();
        let mut kept = Segment { answer_bytes: self.answer_bytes, ..Segment::default() };
        let mut at = self.written;
        for response in std::mem::take(&mut self.responses) {
            self.copy(at..response.begin.max(at), &mut kept.bytes);
            let begin = response.begin.max(at);
            at = response.end;
            let sent = response.sent_before + begin - response.begin;
            let rest = response.end - begin;
            // The rest of a frame whose entries came from object storage stays, whatever its length: to fetch them again
            // takes a while, and holds up all other answers.
            if !response.may_drop || (sent > 0 && (rest <= REST_KEPT_BYTES || response.request.is_from_tier))
            {
                self.keep(response, begin, &mut kept);
            } else if sent == 0 {
                dropped.requests.push(response.request);
            } else {
                let identity = match &response.identity {
                    Some(identity) => Some(identity.clone()),
                    None => {
                        let mut frame = BytesMut::new();
                        self.copy(response.begin..response.end, &mut frame);
                        Identity::of(&response.request, &frame).map(Arc::new)
                    }
                };
                match identity {
                    Some(identity) => dropped.part = Some((response.request, identity, sent)),
                    None => self.keep(response, begin, &mut kept),
                }
            }
        }
        self.copy(at..self.len(), &mut kept.bytes);
        for class in ReadClass::IN_ORDER {
            dropped.window_bytes[class] = self.window_bytes[class] - kept.window_bytes[class];
            dropped.permits.extend(self.permits[class].take());
        }
        if kept.len() > 0 {
            dropped.kept = Some(kept);
        } else {
            dropped.answer_bytes = kept.answer_bytes;
        }
        dropped
    }

    /// What is left of a response from `begin` on goes to `kept`, with the bytes that cover it.
    fn keep(&mut self, mut response: Response, begin: usize, kept: &mut Segment) {
        let at = kept.bytes.len();
        self.copy(begin..response.end, &mut kept.bytes);
        let charge = response.charge.min(response.end - begin);
        let permit = self.permits[response.class].as_mut();
        let permit = permit.expect("a permit covers each response (outbox invariant 3)");
        kept.take_permit(charge, response.class, permit.split(charge as u64));
        response.sent_before += begin - response.begin;
        (response.begin, response.end) = (at, kept.bytes.len());
        (response.charge, response.may_drop) = (charge, false);
        kept.responses.push_back(response);
    }

    fn copy(&self, range: std::ops::Range<usize>, out: &mut BytesMut) {
        let split = self.bytes.len();
        out.extend_from_slice(&self.bytes[range.start.min(split)..range.end.min(split)]);
        out.extend_from_slice(&self.body[range.start.max(split) - split..range.end.max(split) - split]);
    }
}
