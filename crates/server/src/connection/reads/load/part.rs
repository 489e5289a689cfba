//! The rest of a frame that was dropped while the peer had a part of it: the same bytes, loaded again.

use super::HEAD_BYTES;
use crate::connection::output::outbox::{Identity, Part, Window};
use crate::connection::{CloseReason, Connection};
use crate::shared::Shared;
use bindery_engine::{EntryRef, Lookup};
use bindery_flow::Permit;
use bindery_types::EntryId;
use bindery_wire::v2;
use bytes::{BufMut, BytesMut};

/// Bytes to hold for the rest of a frame.
pub fn charge_of_part(part: &Part) -> usize {
    part.identity.frame_len() + HEAD_BYTES
}

/// Loads what a dropped frame was made of. Another copy than the one the peer has a part of is not sent.
pub(super) fn run(shared: &Shared, connection: &Connection, part: &Part, permit: Permit, window: Window) {
    let rest = load_body(shared, &part.identity).and_then(|body| part.identity.rest(part.sent, &body));
    match rest {
        Some(rest) => {
            shared.metrics.frames_resumed.add(1);
            connection.outbox.resume(rest, window, permit);
        }
        None => {
            connection.outbox.close_window(window);
            connection.close_because(CloseReason::CopyGone { ledger: part.identity.ledger().get() });
        }
    }
}

/// The entries of a frame as they stand in it; `None` when one of them cannot be read any more.
fn load_body(shared: &Shared, identity: &Identity) -> Option<Vec<u8>> {
    let (entries, is_batch) = identity.entries();
    let mut body = Vec::new();
    for entry in entries {
        let entry = EntryRef::At(EntryId::new(entry)?);
        let loaded = match shared.engine.read(identity.ledger(), entry).ok()? {
            Lookup::Memory(bytes) => Loaded::Memory(bytes),
            Lookup::Disk(read) => Loaded::Disk(read.load().ok()?),
            // Its copy here was let go since. To fetch it would hold up all other answers.
            Lookup::Undurable(_) | Lookup::Tiered(_) => return None,
        };
        let bytes = loaded.bytes();
        if body.len() + bytes.len() > identity.frame_len() {
            return None;
        }
        if is_batch {
            let mut size = BytesMut::new();
            v2::put_batch_entry_size(bytes.len(), &mut size);
            body.put_slice(&size);
        }
        body.put_slice(bytes);
    }
    Some(body)
}

enum Loaded {
    Memory(bindery_io::chunk::ChunkSlice),
    Disk(Vec<u8>),
}

impl Loaded {
    fn bytes(&self) -> &[u8] {
        match self {
            Loaded::Memory(bytes) => bytes,
            Loaded::Disk(bytes) => bytes,
        }
    }
}
