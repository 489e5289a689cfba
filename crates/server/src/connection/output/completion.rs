//! Takes the answers to adds from the engine: encodes them into each connection's outbox and writes them right away.
//!
//! Runs on a thread of the engine's with a whole group at once. Answers that came from one socket read stand next to each
//! other, so a connection is looked up and locked once per run, not once per add, and its socket is written once per
//! group, whatever the number of shards.

use crate::connection::Connection;
use crate::connection::request::{Reply, add_code};
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::slow_log::{Slow, SlowKind};
use bindery_engine::{AddDone, AddSink, GroupTimes};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The server's end of the engine.
pub struct Completion {
    shared: Arc<Shared>,
}

impl Completion {
    /// Answers on behalf of `shared`'s connections.
    pub fn new(shared: Arc<Shared>) -> Completion {
        Completion { shared }
    }

    /// `answered_ns`: when the first of them was put into its outbox.
    fn record(
        &self,
        group: &GroupTimes,
        shards: &[Vec<AddDone>],
        touched: &[Arc<Connection>],
        answered_ns: u64,
    ) {
        let now_ns = self.shared.clock.monotonic_ns();
        let metrics = &self.shared.metrics;
        let all = || shards.iter().flatten();
        let latency = |add: &AddDone| now_ns.saturating_sub(Reply::of_origin(&add.origin).1);
        let key = Metrics::of_journal(group.journal);
        let (mut answered, mut failed) = (0, 0);
        {
            let mut recorder = metrics.add_entry.recorder(key, now_ns, true);
            for add in all() {
                answered += 1;
                match add.result {
                    Ok(()) => recorder.record_ns(latency(add)),
                    Err(_) => failed += 1,
                }
            }
        }
        metrics.adds_in_progress.add(-answered);
        if failed > 0 {
            let mut recorder = metrics.add_entry.recorder(key, now_ns, false);
            all().filter(|add| add.result.is_err()).for_each(|add| recorder.record_ns(latency(add)));
        }
        self.record_stages(group, shards, (answered_ns, now_ns));
        let threshold_ns = self.shared.limits.slow_request.as_nanos() as u64;
        let slow = || all().filter(|add| threshold_ns > 0 && latency(add) >= threshold_ns);
        if let Some(worst) = slow().max_by_key(|add| latency(add)) {
            let others = slow().count() as u64 - 1;
            // Its peer may have taken the answer and be gone by now.
            let held = touched.iter().find(|connection| connection.id == worst.origin.connection).cloned();
            let connection = held.or_else(|| self.shared.connection(worst.origin.connection));
            self.report(worst, others, connection, group, (answered_ns, now_ns));
        }
    }

    fn record_stages(&self, group: &GroupTimes, shards: &[Vec<AddDone>], (answered_ns, now_ns): (u64, u64)) {
        let stages = &self.shared.metrics.stages;
        let journal = stages.journal(group.journal);
        if group.bytes > 0 {
            let of_group = [
                (&journal.sync, group.written_ns.saturating_sub(group.begun_ns)),
                (&journal.entries, group.adds),
                (&journal.bytes, group.bytes),
                (&stages.answer, answered_ns.saturating_sub(group.written_ns)),
            ];
            for (summary, value) in of_group {
                summary.record(0, now_ns, value, true);
            }
        }
        let mut queue = journal.queue.recorder(0, now_ns, true);
        for run in
            shards.iter().flat_map(|done| done.chunk_by(|a, b| a.origin.connection == b.origin.connection))
        {
            queue.record_ns(group.cut_ns.saturating_sub(Reply::of_origin(&run[0].origin).1));
        }
    }

    /// One line for the slowest of a group.
    fn report(
        &self,
        add: &AddDone,
        others: u64,
        connection: Option<Arc<Connection>>,
        group: &GroupTimes,
        (answered_ns, now_ns): (u64, u64),
    ) {
        let (_, received_ns) = Reply::of_origin(&add.origin);
        let between = |from: u64, to: u64| Some(Duration::from_nanos(to.saturating_sub(from)));
        let is_sent = connection.as_ref().is_some_and(|connection| connection.outbox.progress().1 == 0);
        let slow = Slow {
            peer: connection.map(|connection| connection.peer()),
            ids: Some((add.ledger.get(), add.entry.get())),
            bytes: u64::from(add.bytes),
            total: Duration::from_nanos(now_ns.saturating_sub(received_ns)),
            queue: between(received_ns, group.begun_ns),
            journal: between(group.begun_ns, group.written_ns),
            load: None,
            answer: between(group.written_ns, answered_ns),
            send: between(answered_ns, now_ns).filter(|_| is_sent),
            group: Some((group.journal, group.adds)),
            others,
        };
        self.shared.metrics.stages.slow.report(now_ns, SlowKind::Add, &slow);
    }

    /// Appends the answers of one shard, a run of one connection at a time; remembers each connection once.
    fn append(&self, done: &[AddDone], touched: &mut Vec<Arc<Connection>>) {
        for run in done.chunk_by(|a, b| a.origin.connection == b.origin.connection) {
            let id = run[0].origin.connection;
            let Some(connection) = self.shared.connection(id) else { continue };
            let promised = run.iter().map(|add| Reply::of_origin(&add.origin).0.add_answer_bytes()).sum();
            connection.outbox.answer(promised, |out| {
                for add in run {
                    let code = add.result.map_or_else(add_code, |()| bindery_wire::ErrorCode::Ok);
                    let (reply, _) = Reply::of_origin(&add.origin);
                    reply.put_add(code, add.ledger.get(), add.entry.get(), out);
                }
            });
            // After it: a task that sees no answer owed may answer at once and overtakes nothing.
            connection.activity.on_adds_owed(-(run.len() as i64));
            if connection.touched.fetch_add(run.len(), Ordering::AcqRel) == 0 {
                touched.push(connection);
            }
        }
    }
}

impl AddSink for Completion {
    fn on_adds_done(&self, group: &GroupTimes, shards: &[Vec<AddDone>]) {
        let answered_ns = self.shared.clock.monotonic_ns();
        let mut touched: Vec<Arc<Connection>> = Vec::new();
        for done in shards {
            self.append(done, &mut touched);
        }
        for connection in &touched {
            // Cleared first: whoever appends after this flushes itself.
            let answers = connection.touched.swap(0, Ordering::AcqRel);
            connection.flush();
            self.shared.metrics.batching.answers.record(answers as u64);
        }
        self.record(group, shards, &touched, answered_ns);
    }
}
