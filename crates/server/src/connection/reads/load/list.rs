//! Lists of the entries that the bookie has of a ledger.

use super::answers::{answer_failure, record};
use super::{Granted, HEAD_BYTES, retry_larger};
use crate::connection::Connection;
use crate::connection::output::outbox::Body;
use crate::connection::request::Reply;
use crate::shared::Shared;
use bindery_engine::Refusal;
use bindery_wire::v3::{self, response};
use bindery_wire::{EntryAvailability, ErrorCode};

/// Charged for a list before its length is known: 630 runs.
pub(super) const LEAST_BYTES: usize = 64 * 1024;
/// Bytes that a list takes for each of its runs: two runs of 16 bytes while it is collected, a group of the answer, the
/// group encoded, and that in its frame, 24 each.
const RUN_BYTES: usize = 2 * 16 + 3 * 24;
/// When a list needs more, it comes again with so many times the bytes.
const STEP: usize = 8;

/// Lists the entries of a ledger, or comes again with more bytes.
pub(super) fn run(shared: &Shared, connection: &Connection, granted: Granted) {
    let request = &granted.request;
    let Reply::V3 { txn } = request.reply else { return };
    let ledger = request.ledger.get();
    let charged = granted.permit.bytes() as usize;
    let runs = match shared.engine.list_entries_within(request.ledger, charged / RUN_BYTES) {
        Ok(runs) => runs,
        Err(refusal) => {
            return answer_failure(shared, connection, &granted.give_up(connection), refusal);
        }
    };
    let Some(runs) = runs else {
        // At most what fits a frame and a pool: more runs could not be answered.
        let frame_runs = shared.limits.frame.size_bytes() / 24;
        let pool = if request.class.is_priority() {
            &shared.pools.outbound_priority
        } else {
            &shared.pools.outbound
        };
        let most = (frame_runs * RUN_BYTES).min(pool.capacity() as usize - HEAD_BYTES);
        if charged < most {
            let size = charged.saturating_mul(STEP).min(most);
            return retry_larger(connection, granted, size);
        }
        shared.list_log.write(|left_out| {
            tracing::warn!(
                ledger_id = ledger,
                left_out,
                "the list of entries exceeds the frame limit or its memory: answering \
             with an I/O error"
            );
        });
        return answer_failure(shared, connection, &granted.give_up(connection), Refusal::Io);
    };
    let mut available = EntryAvailability::default();
    for run in &runs {
        available.push_run(run.first, run.last);
    }
    let size = available.encoded_size_bytes();
    if !shared.limits.frame.admits_payload(size + HEAD_BYTES) {
        shared.list_log.write(|left_out| {
            tracing::warn!(
                ledger_id = ledger,
                runs = runs.len(),
                left_out,
                "the list of entries exceeds the frame limit: \
             answering with an I/O error"
            );
        });
        return answer_failure(shared, connection, &granted.give_up(connection), Refusal::Io);
    }
    let message = response::get_list_of_entries(txn, ErrorCode::Ok, ledger, Some(available.encode()));
    record(shared, connection, request, size, shared.clock.monotonic_ns(), true);
    let Granted { request, permit, window } = granted;
    connection.outbox.entry(request, window, permit, Body::Copy(&[]), |out| v3::put_frame(&message, out));
}
