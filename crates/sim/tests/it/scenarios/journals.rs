//! Several journals: marks are vectors.

use super::*;

fn two_journals() -> EngineConfig {
    let dirs = |name: &str| (0..2).map(|i| PathBuf::from(format!("/data/{name}{i}"))).collect();
    EngineConfig { journal_dirs: dirs("journal"), ledger_dirs: dirs("ledgers"), shard_count: 4, ..config() }
}

impl Bookie {
    /// A group of one journal.
    fn group_of(&mut self, journal: usize) -> Option<FreezeTicket> {
        let journaling = &mut self.machine.journals[journal];
        let in_flight = journaling.cut()?;
        let written = journaling.write(&in_flight);
        let mut done = journaling.finish(in_flight, written);
        let ticket = done.freeze.take();
        done.deliver(&self.answers);
        ticket
    }

    /// A flush, and its journal told.
    fn flush_of(&mut self, ticket: FreezeTicket) {
        if let Ok(flushed) = self.machine.flushing.flush(ticket) {
            self.machine.journals[flushed.journal].on_flushed(flushed);
        }
    }

    /// A ledger whose entries go to this journal: its group answers the add.
    fn ledger_of(&mut self, journal: usize, from: i64) -> i64 {
        for id in from.. {
            self.add(id, 0, 10, false);
            self.group_of(journal);
            let is_here = !self.results().is_empty();
            self.group_of(1 - journal);
            self.results();
            if is_here {
                return id;
            }
        }
        unreachable!("ids do not end")
    }
}

/// BookKeeper #4844: two journals were sampled one after the other, as [2, 1] and as [1, 2]; compared in dictionary
/// order the flush for the second was skipped and recorded as done. Here each component stands for itself: whichever of
/// two flushes comes first, and wherever the power goes, all of both is there.
#[test]
fn r5_bk_4844_marks_that_cannot_be_compared_cover_nothing_of_each_other() {
    for order in [[0, 1], [1, 0]] {
        for operations in 0..1000 {
            let mut bookie = start_with(two_journals(), new_disk());
            let ledgers = [bookie.ledger_of(0, 1), bookie.ledger_of(1, 50)];
            bookie.machine.want_freeze();
            // The first journal is sampled, then the other one moves on, then that one is sampled.
            let mut tickets = Vec::new();
            for journal in order {
                for e in 1..4 {
                    bookie.add(ledgers[journal], e, 5000, false);
                    tickets.extend(bookie.group_of(journal));
                }
            }
            assert_eq!(tickets.len(), 2, "one freeze of each");
            // The last freeze is flushed first.
            bookie.disk.crash_after(operations);
            for ticket in tickets.into_iter().rev() {
                bookie.flush_of(ticket);
            }
            let is_over = !bookie.disk.is_off();
            for seed in 0..2 {
                let left = Arc::new(bookie.disk.crash(&SeededRandom::new(operations * 10 + seed)));
                let restarted = start_with(two_journals(), left);
                for (id, e) in ledgers.into_iter().flat_map(|id| (1..4).map(move |e| (id, e))) {
                    let found = restarted.read(id, EntryRef::At(entry(e)));
                    assert_eq!(found, Ok(body(id, e, 5000)), "crash at {operations}, order {order:?}");
                }
            }
            if is_over {
                break;
            }
            assert!(operations < 999, "the flushes do not end");
        }
    }
}
