//! Ledgers whose metadata has grown large (core invariant 13).

use super::*;
use crate::metadata_edit::{FULL_SIZE_BYTES, GROWN_SIZE_BYTES};
use bindery_metadata::store::VALUE_SIZE_BYTES_MAX;

/// The script's next entry, which a and b acknowledge and c does not.
fn without_c(script: &mut Script) {
    let next = script.confirmed() + 1;
    script.append(1);
    script.ack(next, &[0, 1]);
}

fn fits(metadata: &LedgerMetadata) {
    let size = metadata_edit::size_bytes(metadata);
    assert!(size <= VALUE_SIZE_BYTES_MAX, "{size} bytes");
}

#[test]
fn a_bookie_that_comes_and_goes_makes_no_segments_without_end() {
    let mut script = Script::grown(GROWN_SIZE_BYTES - 4096);
    let begin = script.metadata().segments().len();
    let mut version = 0;
    let mut rejoined = 0;
    for _ in 0..3 * 4096 {
        // It falls behind, is let go of, and answers again.
        for _ in 0..4 {
            without_c(&mut script);
        }
        script.report(4);
        if script.core.held().is_empty() && script.core.next_step().is_some() {
            script.mark("c");
        }
        script.core.placed(&[], 0, &[]);
        script.core.retry();
        script.core.placed(&[], 0, &ids("c"));
        if !matches!(script.core.next_step(), Some(Step::Mark { .. })) {
            break;
        }
        script.mark("c");
        fits(&script.wanted_write().0);
        version += 1;
        script.written(Ok(version));
        rejoined += 1;
    }
    assert!(rejoined > 0 && rejoined < 3 * 4096, "{rejoined}");
    assert_eq!(script.core.held(), ids("c"), "it stays away");
    assert!(metadata_edit::size_bytes(&script.metadata()) < GROWN_SIZE_BYTES + 1024);
    let segments = script.metadata().segments().len();
    assert!(segments > begin);
    // The ledger goes on, and is closed, marked and without a segment more.
    for _ in 0..20 {
        without_c(&mut script);
    }
    assert_eq!(script.core.next_step(), None);
    script.core.begin_close();
    script.mark("c");
    let (closed, _) = script.wanted_write();
    assert!(matches!(closed.state, LedgerState::Closed { .. }) && closed.segments().len() == segments);
}

#[test]
fn no_segment_is_split_where_metadata_is_large() {
    let mut script = Script::grown(GROWN_SIZE_BYTES);
    let (first, segments) = (script.confirmed() + 1, script.metadata().segments().len());
    script.append(3);
    script.ack(first, &[0, 1, 2]);
    script.ack(first + 1, &[0, 1]);
    script.answer(first + 1, 2, refused(ErrorCode::TooManyRequests));
    script.ack(first + 2, &[0, 1, 2]);
    // A gap between two entries that c has: the mark comes at once, and no write that splits the segment before it.
    script.mark("c");
    if let Some(Step::Place { .. }) = script.core.next_step() {
        script.change("d", 1);
    }
    while let Some(Step::Mark { .. }) = script.core.next_step() {
        script.core.marked(&mut script.sent);
    }
    script.core.begin_close();
    while let Some(Step::Mark { .. }) = script.core.next_step() {
        script.core.marked(&mut script.sent);
    }
    let closed = script.wanted_write().0;
    assert!(closed.segments().len() <= segments + 1, "a replacement at most");
}

#[test]
fn a_failed_bookie_is_held_where_metadata_is_larger_still_unless_it_is_needed() {
    let mut script = Script::grown(FULL_SIZE_BYTES);
    let (first, segments) = (script.confirmed() + 1, script.metadata().segments().len());
    script.append(1);
    script.answer(first, 2, LOST);
    script.core.placed(&ids("d"), 0, &[]);
    script.mark("c");
    script.ack(first, &[0, 1]);
    assert_eq!((script.confirmed(), script.core.held()), (first, ids("c")), "nothing was written");
    script.append(1);
    script.answer(first + 1, 1, LOST);
    script.core.placed(&ids("e"), 0, &[]);
    while let Some(Step::Mark { .. }) = script.core.next_step() {
        script.core.marked(&mut script.sent);
    }
    let (changed, _) = script.wanted_write();
    assert_eq!(changed.segments().len(), segments + 1, "there is no ack quorum without it");
    fits(&changed);
    script.written(Ok(1));
    script.ack(first + 1, &[0, 1]);
    assert_eq!(script.confirmed(), first + 1);
}

#[test]
fn a_ledger_that_grew_to_the_limit_can_be_closed() {
    let mut script = Script::grown(VALUE_SIZE_BYTES_MAX + 1);
    let last = script.metadata().segments().last().cloned();
    script.core.begin_close();
    let (closed, _) = script.wanted_write();
    fits(&closed);
    assert_eq!(closed.segments().last().cloned(), last);
    assert!(matches!(closed.state, LedgerState::Closed { .. }));
}
