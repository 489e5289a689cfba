//! Where the time of a request goes, stage by stage, and what the groups of each journal are like.
//!
//! A stage is recorded once for a group, for the adds of one connection in a group, or for a turn of a connection's
//! reads; never for each entry.

use super::Summary;
use crate::slow_log::SlowLog;
use bindery_flow::BudgetWaits;
use bindery_metrics::{Exposition, Kind, Row, Table, numbers};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

numbers! {
    /// What is measured of one journal.
    pub struct JournalStages(shards: usize) {
        queue: Summary(
            "bookie_journal_JOURNAL_QUEUE_LATENCY",
            "From the socket read to the cut of the group, in ms, once for the adds of one connection in a group."
        ) = Summary::latency(shards),
        sync: Summary("bookie_journal_JOURNAL_SYNC", "Write and sync of a group, one call, in ms.")
            = Summary::latency(shards),
        entries: Summary("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES", "Adds of a group.")
            = Summary::sizes(shards),
        bytes: Summary("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES", "Bytes of the records of a group.")
            = Summary::sizes(shards),
    }
}

/// See the module.
#[derive(Default)]
pub struct Stages {
    journals: Mutex<BTreeMap<usize, Arc<JournalStages>>>,
    /// How long a batch waited for room in the write pool, when it had to.
    pub room: Summary,
    /// From a durable group to its answers in the connections' outboxes.
    pub answer: Summary,
    /// From the socket read to the turn, once for each turn of a connection.
    pub read_queue: Summary,
    /// Loading an entry on disk, with the wait for a thread.
    pub read_load: Summary,
    /// How long bytes that a peer did not take at once waited for it.
    pub send: Summary,
    /// Slow requests.
    pub slow: SlowLog,
}

impl Stages {
    /// Everything but what is of one journal.
    pub const TABLE: Table<Stages> = Table::new(&[
        Row::each(
            Kind::Summary,
            "bindery_add_stage",
            &["stage"],
            "Where the time of adds goes, in ms. room: a batch waits for room in the write pool, when it has to; answer: from a durable \
             group to its answers in the outboxes.",
            |stages, series| {
                for (stage, summary) in [("room", &stages.room), ("answer", &stages.answer)] {
                    series.summary(&[("stage", stage)], &summary.snapshot(series.now_ns()));
                }
            },
        ),
        Row::each(
            Kind::Summary,
            "bindery_read_stage",
            &["stage"],
            "Where the time of reads goes, in ms. queue: from the socket read to the turn, once for each turn of a connection; load: of an \
             entry on disk, with the wait for a thread.",
            |stages, series| {
                for (stage, summary) in [("queue", &stages.read_queue), ("load", &stages.read_load)] {
                    series.summary(&[("stage", stage)], &summary.snapshot(series.now_ns()));
                }
            },
        ),
        Row::summary(
            "bindery_send_wait",
            "How long bytes that a peer did not take at once waited for it, in ms.",
            |stages, now_ns| stages.send.snapshot(now_ns),
        ),
        Row::each(
            Kind::Counter,
            "bindery_slow_requests",
            &["kind"],
            "Requests that took longer than slowRequestThresholdMSec, those included of which the log has no line.",
            |stages, series| {
                for (kind, count) in stages.slow.counts() {
                    series.count(&[("kind", kind)], count);
                }
            },
        ),
    ]);

    /// What is measured of the journal with this number.
    pub fn journal(&self, number: usize) -> Arc<JournalStages> {
        self.journals.lock().entry(number).or_insert_with(|| Arc::new(JournalStages::new(1))).clone()
    }

    /// Waits of batches of adds for room in the write pool, including those that were then refused.
    pub fn room_waits(&self) -> BudgetWaits {
        let (count, waited_us) = self.room.totals();
        BudgetWaits { count, waited_ns: waited_us.saturating_mul(1000) }
    }

    /// Writes what is of the journals, `journals` of them, name by name.
    pub fn expose_journals(&self, journals: usize, out: &mut Exposition) {
        let stages: Vec<_> = (0..journals).map(|number| (number.to_string(), self.journal(number))).collect();
        JOURNALS.expose_each(stages.iter().map(|(number, stages)| (number.as_str(), &**stages)), out);
    }
}

/// By journal.
pub const JOURNALS: Table<JournalStages> = Table::by("journalIndex", JournalStages::ROWS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_told_apart_and_stand_together_by_name() {
        let stages = Stages::default();
        stages.journal(1).bytes.record(0, 0, 4096, true);
        stages.journal(1).sync.record(0, 0, 2_000_000, true);
        let mut out = Exposition::new();
        stages.expose_journals(2, &mut out);
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
