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

/// What one call holds.
pub(super) struct Account {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    request: AtomicUsize,
    answer: AtomicUsize,
}

impl Account {
    pub(super) fn new(shared: Arc<Shared>, outbox: Arc<Outbox>) -> Account {
        Account { shared, outbox, request: AtomicUsize::new(0), answer: AtomicUsize::new(0) }
    }

    /// Bytes of a request came.
    fn received(&self, bytes: usize) {
        self.request.fetch_add(bytes, Ordering::Relaxed);
        self.shared.hold(&self.outbox, bytes);
    }

    /// The requests that came were executed.
    pub(super) fn executed(&self) {
        self.outbox.release(self.request.swap(0, Ordering::Relaxed));
    }

    /// An answer of so many bytes is given, in place of the one before, which was taken.
    pub(super) fn answers(&self, bytes: usize) {
        self.outbox.release(self.answer.swap(bytes, Ordering::Relaxed));
        if bytes > 0 {
            self.shared.hold(&self.outbox, bytes);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.outbox.release(*self.request.get_mut() + *self.answer.get_mut());
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
