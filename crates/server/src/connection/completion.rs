//! Takes the answers to adds from the engine: encodes them into each connection's outbox and writes them right away.
//!
//! Runs on the engine's completion thread with a whole group at once. Answers that came from one socket read stand
//! next to each other, so a connection is looked up and locked once per run, not once per add, and its socket is
//! written once per group.

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

    fn record(&self, done: &[AddDone]) {
        let now_ns = self.shared.clock.monotonic_ns();
        let metrics = &self.shared.metrics;
        metrics.adds_in_progress.add(-(done.len() as i64));
        let latency = |add: &AddDone| now_ns.saturating_sub(Reply::of_origin(&add.origin).1);
        let mut failed = 0;
        {
            let mut recorder = metrics.add_entry.recorder(0, now_ns, true);
            for add in done {
                match add.result {
                    Ok(()) => recorder.record_ns(latency(add)),
                    Err(_) => failed += 1,
                }
            }
        }
        if failed > 0 {
            let mut recorder = metrics.add_entry.recorder(0, now_ns, false);
            done.iter().filter(|add| add.result.is_err()).for_each(|add| recorder.record_ns(latency(add)));
        }
    }
}

impl AddSink for Completion {
    fn on_adds_done(&self, done: &[AddDone]) {
        let mut touched: Vec<Arc<Connection>> = Vec::new();
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
            if !connection.is_touched.swap(true, Ordering::AcqRel) {
                touched.push(connection);
            }
        }
        for connection in &touched {
            // Cleared first: whoever appends after this flushes itself.
            connection.is_touched.store(false, Ordering::Release);
            connection.flush();
        }
        self.record(done);
    }
}
