//! Refusals while a write of a journal hangs.
//!
//! Answers to adds leave with groups, so a write that hangs holds all of them up: the journal thread is inside the kernel. A
//! bookie that became read-only for it would leave its clients without a word until their own timeout. What it refuses
//! is known without the journal, so it goes out meanwhile.
//!
//! # Data flow
//! ```text
//! completion thread, now and then -> refuse_while_hung -> Shard::take_refusals_ahead -> sink
//!                                                     \-> Line::let_ordinary_go -> waiters, whose adds are then refused
//! ```
//!
//! # Invariants
//! 1. Nothing is answered that may still become durable: adds that were placed wait for their group.
//! 2. No answer overtakes one to an older add of the same entry (shard invariant 4).

use crate::api::GroupTimes;
use crate::engine::Engine;
use crate::machine::Completions;
use std::time::Duration;

/// A write that takes longer than this holds refusals up no more.
const HANGS: Duration = Duration::from_millis(200);

impl Engine {
    /// Answers to adds that were refused while this engine is read-only and a write of their journal hangs; and those who
    /// wait for room, since there will be none. Deliver it before later answers of the journal.
    pub(crate) fn refuse_while_hung(&self, now_ns: u64) -> Vec<Completions> {
        if !self.is_read_only() {
            return Vec::new();
        }
        let pulses = self.pulses(now_ns).into_iter().enumerate();
        let hung = pulses.filter(|(_, pulse)| pulse.busy >= HANGS);
        hung.map(|(journal, _)| self.refuse_ahead(journal, now_ns)).filter(|done| !done.is_empty()).collect()
    }

    /// What [`Engine::refuse_while_hung`] does of one journal, which need not hang.
    pub fn refuse_ahead(&self, journal: usize, now_ns: u64) -> Completions {
        let (mut shards, mut turns) = (Vec::new(), Vec::new());
        for index in self.shards_of(journal) {
            let refused = self.shards[index].lock().take_refusals_ahead();
            if !refused.is_empty() {
                shards.push(refused);
            }
            self.let_ordinary_go(index, &mut turns);
        }
        let adds = shards.iter().map(|adds| adds.len() as u64).sum();
        let (cut_ns, begun_ns, written_ns) = (now_ns, now_ns, now_ns);
        Completions::of_refusals(
            GroupTimes { journal, adds, bytes: 0, cut_ns, begun_ns, written_ns },
            shards,
            turns,
        )
    }
}
