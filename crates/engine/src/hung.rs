//! Refusals while a write of a journal, or a ledger disk, hangs.
//!
//! Answers to adds leave with groups, so a write that hangs holds all of them up: the journal thread is inside the kernel. A
//! bookie that became read-only for it would leave its clients without a word until their own timeout. What it refuses
//! is known without the journal, so it goes out meanwhile.
//!
//! # Data flow
//! ```text
//! completion thread, now and then -> hung_writes -> all that is waiting for delivery -> refuse_ahead -> sink
//!                                                                                           |
//!                        Shard::take_refusals_ahead; AdmissionQueue::let_ordinary_go, whose adds are then refused
//! completion thread, now and then -> let_waiters_be_refused -> AdmissionQueue::let_ordinary_go
//! ```
//!
//! # Invariants
//! 1. Nothing is answered that may still become durable: adds that were placed wait for their group.
//! 2. An add that waits for room is not placed yet, so it may be refused at any time.
//! 3. No answer overtakes one to an older add of the same entry (shard invariant 4). Refusals are taken while the write still
//!    hangs, after everything that was answered before it began was delivered.

use crate::api::GroupTimes;
use crate::completions::Completions;
use crate::shared::Shared;
use std::num::NonZeroU64;
use std::time::Duration;

/// A write that takes longer than this holds refusals up no more.
const HANGS: Duration = Duration::from_millis(200);

/// A write of a journal that takes long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HungWrite {
    journal: usize,
    write: NonZeroU64,
}

impl Shared {
    /// Writes of journals that hang, while this engine is read-only.
    pub(crate) fn hung_writes(&self, now_ns: u64) -> Vec<HungWrite> {
        if !self.is_read_only() {
            return Vec::new();
        }
        let pulses = self.pulses(now_ns).into_iter().enumerate();
        let hung = pulses.filter(|(_, pulse)| pulse.busy >= HANGS);
        hung.filter_map(|(journal, _)| Some(HungWrite { journal, write: self.write_under_way(journal)? }))
            .collect()
    }

    /// Answers to adds that were refused while that write hangs; and those who wait for room, since there will be none.
    /// Nothing once it has ended. Deliver it before later answers of the journal.
    pub(crate) fn refuse_while_hung(&self, hung: HungWrite, now_ns: u64) -> Completions {
        // The journal's thread says that a write ended before it takes the lock of a shard to make it count. So what is true
        // under that lock stays so until it is given back.
        self.refuse_while(hung.journal, now_ns, || self.write_under_way(hung.journal) == Some(hung.write))
    }

    /// The same of a journal that a simulator holds between cut and finish.
    pub(crate) fn refuse_ahead(&self, journal: usize) -> Completions {
        self.refuse_while(journal, 0, || true)
    }

    /// Adds that wait for room while this engine is read-only, each with a grant of 0: there may be none for as long as a ledger disk
    /// hangs, and with the grant they are refused at once. Those that are taken nevertheless, being of high priority, queue again.
    pub(crate) fn let_waiters_be_refused(&self) -> Option<Completions> {
        let mut grants = Vec::new();
        if self.is_read_only() {
            (0..self.shards().len()).for_each(|shard| self.let_ordinary_go(shard, &mut grants));
        }
        (!grants.is_empty()).then(|| Completions { grants, ..Completions::default() })
    }

    fn refuse_while(&self, journal: usize, now_ns: u64, hangs: impl Fn() -> bool) -> Completions {
        let (mut shards, mut grants) = (Vec::new(), Vec::new());
        for index in self.shards_of(journal) {
            let refused = {
                let mut shard = self.lock(index);
                if hangs() { shard.take_refusals_ahead() } else { Vec::new() }
            };
            if !refused.is_empty() {
                shards.push(refused);
            }
            self.let_ordinary_go(index, &mut grants);
        }
        let adds = shards.iter().map(|adds| adds.len() as u64).sum();
        // Without a write all times are that of the cut.
        let times =
            GroupTimes { journal, adds, bytes: 0, cut_ns: now_ns, begun_ns: now_ns, written_ns: now_ns };
        Completions::of_refusals(times, shards, grants)
    }
}
