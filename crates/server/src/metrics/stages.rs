//! Where the time of a request goes, stage by stage, and what the groups of each journal are like.
//!
//! A stage is recorded once for a group, for the adds of one connection in a group, or for a turn of a connection's
//! reads; never for each entry.

use super::{Exposition, Summary};
use crate::slow_log::SlowLog;
use bindery_flow::BudgetWaits;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is measured of one journal.
pub struct JournalStages {
    /// `bookie_journal_JOURNAL_QUEUE_LATENCY`: from the socket read to the cut of the group, once for the adds of one
    /// connection in a group.
    pub queue: Summary,
    /// `bookie_journal_JOURNAL_SYNC`: write and sync of a group, one call.
    pub sync: Summary,
    /// `bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES`: adds of a group.
    pub entries: Summary,
    /// `bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES`: bytes of its records.
    pub bytes: Summary,
}

impl JournalStages {
    fn new() -> JournalStages {
        JournalStages {
            queue: Summary::latency(1),
            sync: Summary::latency(1),
            entries: Summary::sizes(1),
            bytes: Summary::sizes(1),
        }
    }
}

/// See the module.
pub struct Stages {
    journals: Mutex<BTreeMap<usize, Arc<JournalStages>>>,
    /// `bindery_add_stage`, `room`: how long a batch waited for room in the write pool, when it had to.
    pub room: Summary,
    /// `bindery_add_stage`, `answer`: from a durable group to its answers in the connections' outboxes.
    pub answer: Summary,
    /// `bindery_read_stage`, `queue`: from the socket read to the turn, once for each turn of a connection.
    pub read_queue: Summary,
    /// `bindery_read_stage`, `load`: of an entry on disk, with the wait for a thread.
    pub read_load: Summary,
    /// `bindery_send_wait`: how long bytes that a peer did not take at once waited for it.
    pub send: Summary,
    /// Slow requests.
    pub slow: SlowLog,
}

impl Stages {
    /// Nothing measured yet.
    pub fn new() -> Stages {
        Stages {
            journals: Mutex::default(),
            room: Summary::latency(1),
            answer: Summary::latency(1),
            read_queue: Summary::latency(1),
            read_load: Summary::latency(1),
            send: Summary::latency(1),
            slow: SlowLog::default(),
        }
    }

    /// What is measured of the journal with this number.
    pub fn journal(&self, number: usize) -> Arc<JournalStages> {
        self.journals.lock().entry(number).or_insert_with(|| Arc::new(JournalStages::new())).clone()
    }

    /// Waits of batches of adds for room in the write pool, including those that were then refused.
    pub fn room_waits(&self) -> BudgetWaits {
        let (count, waited_us) = self.room.totals();
        BudgetWaits { count, waited_ns: waited_us.saturating_mul(1000) }
    }

    /// Writes everything but what is of one journal.
    pub fn expose(&self, now_ns: u64, out: &mut Exposition) {
        let stages = [
            ("bindery_add_stage", "room", &self.room),
            ("bindery_add_stage", "answer", &self.answer),
            ("bindery_read_stage", "queue", &self.read_queue),
            ("bindery_read_stage", "load", &self.read_load),
        ];
        for (name, stage, summary) in stages {
            out.summary(name, &[("stage", stage)], &summary.snapshot(now_ns));
        }
        out.summary("bindery_send_wait", &[], &self.send.snapshot(now_ns));
        for (kind, count) in self.slow.counts() {
            out.counter("bindery_slow_requests", &[("kind", kind)], count);
        }
    }

    /// Writes what is of the journals, `journals` of them, name by name.
    pub fn expose_journals(&self, journals: usize, now_ns: u64, out: &mut Exposition) {
        type Pick = fn(&JournalStages) -> &Summary;
        let names: [(&str, Pick); 4] = [
            ("JOURNAL_QUEUE_LATENCY", |journal| &journal.queue),
            ("JOURNAL_SYNC", |journal| &journal.sync),
            ("JOURNAL_FORCE_WRITE_BATCH_ENTRIES", |journal| &journal.entries),
            ("JOURNAL_FORCE_WRITE_BATCH_BYTES", |journal| &journal.bytes),
        ];
        for (name, pick) in names {
            for number in 0..journals {
                let (name, index) = (format!("bookie_journal_{name}"), number.to_string());
                out.summary(
                    &name,
                    &[("journalIndex", &index)],
                    &pick(&self.journal(number)).snapshot(now_ns),
                );
            }
        }
    }
}

impl Default for Stages {
    fn default() -> Self {
        Stages::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_told_apart_and_stand_together_by_name() {
        let stages = Stages::new();
        stages.journal(1).bytes.record(0, 0, 4096, true);
        stages.journal(1).sync.record(0, 0, 2_000_000, true);
        let mut out = Exposition::new();
        stages.expose_journals(2, 0, &mut out);
        let text = out.into_text();
        assert_eq!(text.matches("# TYPE").count(), 4, "one for each name");
        for line in [
            "bookie_journal_JOURNAL_SYNC_sum{success=\"true\", journalIndex=\"1\"} 2.0\n",
            "bookie_journal_JOURNAL_SYNC_count{success=\"true\", journalIndex=\"0\"} 0\n",
            "BATCH_BYTES_sum{success=\"true\", journalIndex=\"1\"} 4096.0\n",
            "BATCH_BYTES{success=\"true\",quantile=\"0.5\", journalIndex=\"1\"} 41",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
