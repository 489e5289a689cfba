//! Who reads a log in sequence: guessed from the places of reads, shared by all readers, so that what comes next can be
//! read ahead.
//!
//! # Data flow
//! ```text
//! note(offset, length) --> goes on where one of the known places ends: that sequence, when it is long enough
//!                     \--> nowhere: a place that nobody went on from lately is forgotten for this one
//! ```
//!
//! # Invariants
//! 1. All of it is a hint: reads that come at once may lose each other's notes, and what is read is the same.
//! 2. A sequence that is gone on with is not forgotten for reads here and there: it lasts for [`TURNS_MAX`] of them that find
//!    no other place to be forgotten, and each read of it makes that so many again.
//!
//! # Limits     [`SEQUENCES_MAX`] for each log; readers beyond that read as if they read here and there.

use super::format::BLOCK;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How many are known for each log: a log has the entries of many ledgers, and each may have a reader.
const SEQUENCES_MAX: usize = 8;
/// Bodies read one after another before what follows is read ahead.
const LENGTH_MIN: u32 = 3;
/// See invariant 2.
const TURNS_MAX: u32 = 16;
/// What the kernel is asked for when a sequential reader waits for the disk. By itself it may read megabytes ahead, which
/// a journal's write to the same device waits behind; with less a reader waits more often.
pub(super) const ASKED_BYTES: u64 = 512 << 10;

/// A place in a log that reads have come to, one behind the other.
#[derive(Default)]
pub(super) struct Sequence {
    /// Where the body read last ended.
    end: AtomicU64,
    /// Bodies in a row that began there, or just behind.
    length: AtomicU32,
    /// Reads elsewhere before it may be forgotten.
    turns: AtomicU32,
    /// Where what the kernel was asked for last ends.
    asked: AtomicU64,
}

impl Sequence {
    /// Whether the kernel is to be asked for the [`ASKED_BYTES`] from `offset` on: what is read there is not within what it
    /// was asked for last. Then that is.
    pub fn asks(&self, offset: u64, length: usize) -> bool {
        let asked = self.asked.load(Relaxed);
        let is_within = asked.saturating_sub(ASKED_BYTES) <= offset && offset + length as u64 <= asked;
        if !is_within {
            self.asked.store(offset + ASKED_BYTES, Relaxed);
        }
        !is_within
    }

    /// Whether a read of `offset..new_end` goes on here, or was the last one: what would have waited is read again, by a
    /// thread that may. Several threads serve one reader, so the order is not exact.
    fn is_near(&self, offset: u64, new_end: u64) -> bool {
        let end = self.end.load(Relaxed);
        new_end == end || offset.abs_diff(end) <= 4 * BLOCK
    }

    fn go_on(&self, new_end: u64) -> bool {
        let length = match self.end.swap(new_end, Relaxed) == new_end {
            true => self.length.load(Relaxed),
            false => self.length.fetch_add(1, Relaxed).saturating_add(1),
        };
        self.turns.store(TURNS_MAX, Relaxed);
        length > LENGTH_MIN
    }

    fn begin(&self, new_end: u64) {
        self.end.store(new_end, Relaxed);
        self.length.store(0, Relaxed);
        self.asked.store(0, Relaxed);
    }
}

/// The sequences of a log.
#[derive(Default)]
pub(super) struct Sequences {
    all: [Sequence; SEQUENCES_MAX],
    /// Where the search for one to be forgotten begins.
    hand: AtomicUsize,
}

impl Sequences {
    /// Notes a read: the sequence that it goes on, if it does.
    pub fn note(&self, offset: u64, length: usize) -> Option<&Sequence> {
        let new_end = offset + length as u64;
        if let Some(sequence) = self.all.iter().find(|sequence| sequence.is_near(offset, new_end)) {
            return sequence.go_on(new_end).then_some(sequence);
        }
        let hand = self.hand.fetch_add(1, Relaxed);
        let mut from_hand = (0..SEQUENCES_MAX).map(|step| &self.all[hand.wrapping_add(step) % SEQUENCES_MAX]);
        match from_hand.find(|sequence| sequence.turns.load(Relaxed) == 0) {
            Some(sequence) => sequence.begin(new_end),
            None => {
                for sequence in &self.all {
                    sequence.turns.store(sequence.turns.load(Relaxed).saturating_sub(1), Relaxed);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: usize = 1000;

    /// Reads body `number` of a reader whose bodies begin at `start`.
    fn read(sequences: &Sequences, start: u64, number: u64) -> bool {
        sequences.note(start + number * BODY as u64, BODY).is_some()
    }

    /// How many of these were known to be in sequence.
    fn known(sequences: &Sequences, start: u64, numbers: std::ops::Range<u64>) -> usize {
        numbers.filter(|number| read(sequences, start, *number)).count()
    }

    #[test]
    fn readers_of_several_places_are_each_in_sequence() {
        let sequences = Sequences::default();
        for number in 0..100 {
            for reader in 0..SEQUENCES_MAX as u64 {
                let is_known = read(&sequences, (reader + 1) << 30, number);
                assert_eq!(is_known, number > u64::from(LENGTH_MIN), "reader {reader}, body {number}");
            }
        }
    }

    #[test]
    fn reads_here_and_there_end_no_sequence_that_goes_on() {
        // Invariant 2.
        let sequences = Sequences::default();
        assert_eq!(known(&sequences, 1 << 40, 0..10), 6);
        for number in 10..100 {
            for elsewhere in 0..200 {
                assert!(!read(&sequences, (number * 200 + elsewhere) << 20, 0));
            }
            assert!(read(&sequences, 1 << 40, number), "body {number}");
        }
    }

    #[test]
    fn readers_that_are_gone_make_room() {
        let sequences = Sequences::default();
        for number in 0..10 {
            for reader in 0..SEQUENCES_MAX as u64 {
                read(&sequences, (reader + 1) << 30, number);
            }
        }
        let other = 1 << 40;
        assert_eq!(known(&sequences, other, 0..10), 0, "no place yet");
        // One read more than they last finds a place, and it takes as many again as any.
        let misses = u64::from(TURNS_MAX) - 10 + 1 + u64::from(LENGTH_MIN);
        assert_eq!(known(&sequences, other, 10..50), 40 - misses as usize);
    }

    #[test]
    fn what_is_read_again_goes_on_with_nothing_and_ends_nothing() {
        let sequences = Sequences::default();
        for number in 0..10 {
            let is_known = number > u64::from(LENGTH_MIN);
            assert_eq!(read(&sequences, 1 << 30, number), is_known);
            assert_eq!(read(&sequences, 1 << 30, number), is_known, "again, by a thread that may wait");
        }
        // Longer than what counts as near.
        let long = 1 << 20;
        for number in 0..10 {
            sequences.note((1 << 50) + number * long, long as usize);
        }
        assert!(sequences.note((1 << 50) + 9 * long, long as usize).is_some());
    }
}
