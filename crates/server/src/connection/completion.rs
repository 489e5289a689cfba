//! Takes the answers to adds from the engine: encodes them into each connection's outbox and writes them right away.
//!
//! Runs on a thread of the engine's with a whole group at once. Answers that came from one socket read stand next to each
//! other, so a connection is looked up and locked once per run, not once per add, and its socket is written once per
//! group, whatever the number of shards.

use super::Connection;
use super::request::{Reply, add_code};
use crate::shared::Shared;
use bindery_engine::{AddDone, AddSink};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The server's end of the engine.
pub struct Completion {
    shared: Arc<Shared>,
}

impl Completion {
    /// Answers on behalf of `shared`'s connections.
    pub fn new(shared: Arc<Shared>) -> Completion {
        Completion { shared }
    }

    fn record(&self, shards: &[Vec<AddDone>]) {
        let now_ns = self.shared.clock.monotonic_ns();
        let metrics = &self.shared.metrics;
        let all = || shards.iter().flatten();
        let latency = |add: &AddDone| now_ns.saturating_sub(Reply::of_origin(&add.origin).1);
        let (mut answered, mut failed) = (0, 0);
        {
            let mut recorder = metrics.add_entry.recorder(0, now_ns, true);
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
            let mut recorder = metrics.add_entry.recorder(0, now_ns, false);
            all().filter(|add| add.result.is_err()).for_each(|add| recorder.record_ns(latency(add)));
        }
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
            if connection.touched.fetch_add(run.len(), Ordering::AcqRel) == 0 {
                touched.push(connection);
            }
        }
    }
}

impl AddSink for Completion {
    fn on_adds_done(&self, done: &[AddDone]) {
        self.on_adds_of_group(&[done.to_vec()]);
    }

    fn on_adds_of_group(&self, shards: &[Vec<AddDone>]) {
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
        self.record(shards);
    }
}
