//! The models hold for the sources as they are, and each finds the bugs planted for it.

use bindery_model::world::{check, find};
use bindery_model::{STALE, sound};

/// Interleavings tried by each scheduler.
const TRIES: usize = 1500;

#[test]
fn every_planted_bug_is_planted() {
    assert!(STALE.is_empty(), "crates/model/bugs.rs names text that its source has no more: {STALE:?}");
}

/// Flow invariants 1 and 3.
#[test]
fn a_budget_serves_everybody_and_gets_everything_back() {
    check(TRIES, sound::budgets::everybody_is_served);
}

/// Flow invariant 2.
#[test]
fn nobody_passes_the_line_of_a_budget() {
    check(TRIES, sound::budgets::nobody_passes);
    check(TRIES, sound::budgets::who_gives_up_lets_the_next_go);
}

/// IB21 at its narrowest: a budget of one byte and a thousand clients.
#[test]
fn one_byte_for_a_thousand_clients() {
    check(3, || sound::budgets::one_byte_for_many(1000));
    check(TRIES / 10, || sound::budgets::one_byte_for_many(12));
}

/// Outbox invariants 1, 2, 3 and 5.
#[test]
fn everything_leaves_an_outbox_in_order() {
    check(TRIES, sound::outboxes::everything_leaves_in_order);
}

/// Outbox invariant 4.
#[test]
fn a_closed_outbox_gives_everything_back() {
    check(TRIES, sound::outboxes::a_close_gives_everything_back);
}

/// Line invariants 2 and 3.
#[test]
fn every_add_that_waits_gets_a_grant() {
    check(TRIES, sound::admission::every_add_gets_a_grant);
}

/// A test for each planted bug: some scenario of its subject finds it, and says what is named.
macro_rules! finds {
    ($($bug:ident: $($scenario:ident)::+ => $says:literal;)*) => {$(
        #[test]
        fn $bug() {
            let found = find(TRIES, bindery_model::$bug::$($scenario)::+);
            let Some(found) = found else { panic!("the planted bug is not found") };
            assert!(found.contains($says), "found something else: {found}");
        }
    )*};
}

finds! {
    released_bytes_serve_nobody: budgets::everybody_is_served => "deadlock";
    a_cancelled_place_keeps_others_back: budgets::who_gives_up_lets_the_next_go => "deadlock";
    small_ones_pass_the_line: budgets::nobody_passes => "passes";
    merged_bytes_come_back_twice: budgets::everybody_is_served => "got back more than it gave";
    a_grant_to_nobody_is_lost: budgets::everybody_is_served => "deadlock";
    two_threads_write: outboxes::everything_leaves_in_order => "one thread writes at a time";
    what_is_left_goes_behind: outboxes::everything_leaves_in_order => "appended";
    room_is_not_told: outboxes::everything_leaves_in_order => "deadlock";
    a_closed_outbox_keeps_its_lease: outboxes::a_close_gives_everything_back => "leases came back";
    a_writer_leaves_without_a_word: outboxes::everything_leaves_in_order => "deadlock";
    a_window_opens_untold: outboxes::everything_leaves_in_order => "deadlock";
    a_signal_is_raised_beside_the_lock: admission::every_add_gets_a_grant => "deadlock";
    an_unused_grant_wakes_no_thread: admission::every_add_gets_a_grant => "deadlock";
    a_grant_is_not_returned: admission::every_add_gets_a_grant => "deadlock";
    the_queue_is_a_stack: admission::every_add_gets_a_grant => "in the order of arrival";
}
