//! The slow-request log: one line for a request that took longer than a threshold, with the time of each stage.
//!
//! # Data flow
//! ```text
//! completion (worst add of a group), reads, refused batches, peers that took their answers late -> bucket -> log line
//! ```
//!
//! # Invariants
//! 1. A stage's time comes from readings of the clock that are taken for a socket read or a group as a whole.
//! 2. The log is not flooded: lines are few, omitted ones are counted in the next line, and peers that take their
//!    answers late have a bucket of their own.
//!
//! # Limits     [`BURST`] lines at once, then one in [`REFILL`]; of slow peers one in [`PEER_REFILL`]

use bindery_metrics::Counter;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::time::Duration;

/// Lines written at once.
const BURST: u64 = 10;
/// Time after which there is one line more.
const REFILL: Duration = Duration::from_secs(1);
/// The same, for peers that take their answers late.
const PEER_REFILL: Duration = Duration::from_secs(10);

/// What was slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlowKind {
    /// An add that was answered.
    Add,
    /// An add that found no room in time and was answered so.
    RefusedAdd,
    /// A read of any kind but a long poll.
    Read,
    /// A read that fences.
    FencingRead,
    /// A peer that took its answers late.
    Peer,
}

impl SlowKind {
    const ALL: [SlowKind; 5] =
        [SlowKind::Add, SlowKind::RefusedAdd, SlowKind::Read, SlowKind::FencingRead, SlowKind::Peer];

    fn name(self) -> &'static str {
        match self {
            SlowKind::Add => "add",
            SlowKind::RefusedAdd => "refused-add",
            SlowKind::Read => "read",
            SlowKind::FencingRead => "fencing-read",
            SlowKind::Peer => "peer",
        }
    }
}

/// One slow request. Stages that it has not are `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slow {
    /// Where it came from, unless the connection is gone.
    pub peer: Option<SocketAddr>,
    /// Ledger and entry, as on the wire.
    pub ids: Option<(i64, i64)>,
    /// Bytes of the entry, or of the answers.
    pub bytes: u64,
    /// From the socket read that brought it to now.
    pub total: Duration,
    /// Waiting: for room, for its turn, for the group before it, for a fence.
    pub queue: Option<Duration>,
    /// Write and sync of its group, one call.
    pub journal: Option<Duration>,
    /// From its turn to the loaded entry.
    pub load: Option<Duration>,
    /// From the durable group to the answer.
    pub answer: Option<Duration>,
    /// From the answer to the kernel; `None` also while the peer does not take it.
    pub send: Option<Duration>,
    /// The journal and the number of adds of its group.
    pub group: Option<(usize, u64)>,
    /// Others as slow that stand behind this one.
    pub others: u64,
}

#[derive(Default)]
struct Bucket {
    /// Lines there are, in nanoseconds of refilling.
    credit_ns: u64,
    /// Since when; `None` before the first line.
    from_ns: Option<u64>,
    left_out: u64,
}

impl Bucket {
    /// How many were left out before this one, if it may be written.
    fn take(&mut self, now_ns: u64, refill: Duration, others: u64) -> Option<u64> {
        let refill_ns = refill.as_nanos() as u64;
        let most = BURST * refill_ns;
        self.credit_ns = match self.from_ns {
            None => most,
            Some(from_ns) => self.credit_ns.saturating_add(now_ns.saturating_sub(from_ns)).min(most),
        };
        self.from_ns = Some(now_ns);
        if self.credit_ns < refill_ns {
            self.left_out += 1 + others;
            return None;
        }
        self.credit_ns -= refill_ns;
        Some(std::mem::replace(&mut self.left_out, others))
    }
}

/// See the module.
#[derive(Default)]
pub struct SlowLog {
    requests: Mutex<Bucket>,
    peers: Mutex<Bucket>,
    counts: [Counter; SlowKind::ALL.len()],
}

impl SlowLog {
    /// Writes a line, unless there were many of late.
    pub fn report(&self, now_ns: u64, kind: SlowKind, slow: &Slow) {
        self.counts[kind as usize].add(1 + slow.others);
        let (bucket, refill) = match kind {
            SlowKind::Peer => (&self.peers, PEER_REFILL),
            _ => (&self.requests, REFILL),
        };
        let Some(left_out) = bucket.lock().take(now_ns, refill, slow.others) else { return };
        let ms = |stage: Option<Duration>| stage.map(|time| time.as_micros() as f64 / 1000.0);
        tracing::warn!(
            kind = kind.name(),
            ledger_id = slow.ids.map(|(ledger, _)| ledger),
            entry_id = slow.ids.map(|(_, entry)| entry),
            peer = slow.peer.map(tracing::field::display),
            bytes = slow.bytes,
            total_ms = ms(Some(slow.total)),
            queue_ms = ms(slow.queue),
            journal_ms = ms(slow.journal),
            load_ms = ms(slow.load),
            answer_ms = ms(slow.answer),
            send_ms = ms(slow.send),
            journal = slow.group.map(|(journal, _)| journal),
            group_adds = slow.group.map(|(_, adds)| adds),
            left_out = left_out,
            "slow request"
        );
    }

    /// By kind: how many there were, written or not.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        SlowKind::ALL.into_iter().map(|kind| (kind.name(), self.counts[kind as usize].get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Slow log invariant 2.
    #[test]
    fn a_bucket_gives_a_burst_then_one_at_a_time_and_counts_the_rest() {
        let mut bucket = Bucket::default();
        for _ in 0..BURST {
            assert_eq!(bucket.take(5 * SECOND, REFILL, 0), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(bucket.take(5 * SECOND + 1, REFILL, 2), None);
        }
        assert_eq!(bucket.take(6 * SECOND, REFILL, 4), Some(21), "seven and their others");
        assert_eq!(bucket.take(6 * SECOND, REFILL, 0), None);
        assert_eq!(bucket.take(1000 * SECOND, REFILL, 0), Some(5), "the others of the one written, and one");
        for _ in 1..BURST {
            assert_eq!(bucket.take(1000 * SECOND, REFILL, 0), Some(0));
        }
        assert_eq!(bucket.take(1000 * SECOND, REFILL, 0), None, "no more than a burst is saved up");
    }

    #[test]
    fn slow_peers_do_not_use_up_the_lines_of_requests() {
        let log = SlowLog::default();
        for _ in 0..100 {
            log.report(0, SlowKind::Peer, &Slow::default());
        }
        assert_eq!(log.requests.lock().from_ns, None);
        log.report(0, SlowKind::Add, &Slow { others: 3, ..Slow::default() });
        assert_eq!(log.requests.lock().left_out, 3);
        let counts: Vec<_> = log.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("add", 4), ("peer", 100)]);
    }
}
