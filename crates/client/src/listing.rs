//! The ids of all ledgers, as a stream over the ranges that the metadata store is read in.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bindery_metadata::StoreError;
use bindery_metadata::layout::LedgerListing;
use bindery_types::LedgerId;
use futures_core::{FusedStream, Stream};

type Range = Result<Option<Vec<LedgerId>>, StoreError>;
type Reading = Pin<Box<dyn Future<Output = (LedgerListing, Range)> + Send>>;

/// Ids of ledgers in ascending order, see [`Client::ledgers`](crate::Client::ledgers). Ledgers that are created or deleted
/// meanwhile may or may not be among them; all others are, once each. Also a [`Stream`], for the combinators of `StreamExt`
/// and `TryStreamExt`.
///
/// After an error that may pass ([`StoreError::is_transient`]) it goes on with the range that could not be read: stop there if
/// that is not wanted, as `TryStreamExt` does. After any other error it is over.
#[must_use = "nothing is read before the stream is polled"]
pub struct LedgerStream {
    listing: Listing,
    /// The rest of the range that was read last.
    range: VecDeque<LedgerId>,
}

enum Listing {
    Idle(LedgerListing),
    Reading(Reading),
    Over,
}

impl LedgerStream {
    pub(crate) fn new(listing: LedgerListing) -> LedgerStream {
        LedgerStream { listing: Listing::Idle(listing), range: VecDeque::new() }
    }

    /// The next id; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<LedgerId, StoreError>> {
        poll_fn(|context| self.poll_id(context)).await
    }

    /// The next ids at once, never none: those of one range of the metadata store, or the rest of it. `None` at the end.
    /// Cancel safe.
    pub async fn next_range(&mut self) -> Option<Result<Vec<LedgerId>, StoreError>> {
        poll_fn(|context| self.poll_range(context))
            .await
            .map(|outcome| outcome.map(|()| std::mem::take(&mut self.range).into()))
    }

    fn poll_id(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<LedgerId, StoreError>>> {
        let outcome = ready!(self.poll_range(context));
        Poll::Ready(outcome.map(|outcome| {
            outcome.map(|()| self.range.pop_front().expect("a range that was read is never empty"))
        }))
    }

    /// Has a range with an id in it.
    fn poll_range(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(), StoreError>>> {
        if !self.range.is_empty() {
            return Poll::Ready(Some(Ok(())));
        }
        // Dropped or panicking in between, the listing is over.
        let mut reading: Reading = match std::mem::replace(&mut self.listing, Listing::Over) {
            Listing::Idle(mut listing) => Box::pin(async move {
                let range = listing.next().await;
                (listing, range)
            }),
            Listing::Reading(reading) => reading,
            Listing::Over => return Poll::Ready(None),
        };
        let Poll::Ready((listing, range)) = reading.as_mut().poll(context) else {
            self.listing = Listing::Reading(reading);
            return Poll::Pending;
        };
        Poll::Ready(match range {
            Ok(Some(ids)) => {
                self.listing = Listing::Idle(listing);
                self.range = ids.into();
                Some(Ok(()))
            }
            Ok(None) => None,
            Err(error) => {
                if error.is_transient() {
                    self.listing = Listing::Idle(listing);
                }
                Some(Err(error))
            }
        })
    }
}

impl Stream for LedgerStream {
    type Item = Result<LedgerId, StoreError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_id(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.range.len(), None)
    }
}

impl FusedStream for LedgerStream {
    fn is_terminated(&self) -> bool {
        self.range.is_empty() && matches!(self.listing, Listing::Over)
    }
}

impl fmt::Debug for LedgerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerStream")
            .field("is_over", &matches!(self.listing, Listing::Over))
            .finish_non_exhaustive()
    }
}
