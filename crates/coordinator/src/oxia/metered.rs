//! Bytes that a call holds, counted at its connection.

use crate::outbox::Outbox;
use crate::shared::Shared;
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

/// The bytes that one call holds.
pub(super) struct Account {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    /// Until the call ends.
    call: AtomicUsize,
    request: AtomicUsize,
    answer: AtomicUsize,
}

impl Account {
    /// An account of a call that holds `call` bytes until it ends.
    pub(super) fn new(shared: Arc<Shared>, outbox: Arc<Outbox>, call: usize) -> Account {
        shared.hold(&outbox, call);
        let [request, answer] = [0, 0].map(AtomicUsize::new);
        Account { shared, outbox, call: call.into(), request, answer }
    }

    /// The call holds so many bytes more, until it ends.
    pub(super) fn grows(&self, bytes: usize) {
        self.call.fetch_add(bytes, Ordering::Relaxed);
        self.shared.hold(&self.outbox, bytes);
    }

    /// Counts bytes of a request that arrived, or that decoding added.
    pub(super) fn received(&self, bytes: usize) {
        self.request.fetch_add(bytes, Ordering::Relaxed);
        self.shared.hold(&self.outbox, bytes);
    }

    /// The requests that came were executed.
    pub(super) fn executed(&self) {
        self.outbox.release(self.request.swap(0, Ordering::Relaxed));
    }

    /// So many bytes of answers wait to be given. Those that are given are counted as [`Chunk`]s.
    pub(super) fn waits(&self, bytes: usize) {
        self.outbox.release(self.answer.swap(bytes, Ordering::Relaxed));
        if bytes > 0 {
            self.shared.hold(&self.outbox, bytes);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.outbox.release(*self.call.get_mut() + *self.request.get_mut() + *self.answer.get_mut());
    }
}

/// The body of a request, whose bytes are counted as they come.
pub(super) struct Metered {
    body: Incoming,
    account: Arc<Account>,
}

impl Metered {
    pub(super) fn new(body: Incoming, account: Arc<Account>) -> Metered {
        Metered { body, account }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.account.received(data.remaining());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, whose bytes are counted until the socket has them.
pub(super) struct Answer<B> {
    body: B,
    account: Arc<Account>,
}

impl<B> Answer<B> {
    pub(super) fn new(body: B, account: Arc<Account>) -> Answer<B> {
        Answer { body, account }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Chunk;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let counted = |bytes| Chunk::new(bytes, self.account.clone());
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(counted))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of an answer, on their way through HTTP/2's buffers.
pub(super) struct Chunk {
    bytes: Bytes,
    counted: usize,
    account: Arc<Account>,
}

impl Chunk {
    fn new(bytes: Bytes, account: Arc<Account>) -> Chunk {
        let counted = bytes.len();
        account.shared.hold(&account.outbox, counted);
        Chunk { bytes, counted, account }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.account.outbox.release(self.counted);
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
