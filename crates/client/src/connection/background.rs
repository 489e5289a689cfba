//! Reads in the background, over connections of their own.
//!
//! A bookie lets its connections take turns by bytes, so a long answer that is read here delays what others ask for by one
//! turn; on the connection of the foreground it would stand before all of its answers.
//!
//! # Limits     one connection more for each bookie that is read from in the background

use std::sync::Arc;

use bindery_types::BookieId;
use bytes::Bytes;

use super::{Bookies, Lanes};
use crate::transport::{Answer, BatchReadRequest, ReadRequest, Transport, TransportLayer};

/// The same bookies. Reads go over the background's connections, everything else as it always does.
pub(super) struct Background(pub(super) Arc<Bookies>);

impl TransportLayer for Background {
    fn beneath(&self) -> &dyn Transport {
        &*self.0
    }

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        match request.fence {
            // A fence is urgent, whoever asks for it.
            Some(_) => self.0.read(bookie, request),
            None => self.0.read_over(Lanes::Background, bookie, request),
        }
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        self.0.batch_read_over(Lanes::Background, bookie, request)
    }
}
