//! ZooKeeper's four letter words: text answers for people and monitoring, on the same port.

use crate::core::Figures;
use crate::outbox::{Counters, Outbox};
use crate::requests::Requests;
use crate::shared::Shared;
use bytes::Bytes;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The version whose protocol this is, and ours.
const VERSION: &str = concat!("3.9.0-bindery-", env!("CARGO_PKG_VERSION"), ", built on none");

/// A known word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Ruok,
    Stat,
    Srvr,
    Mntr,
    Isro,
    /// One that ZooKeeper knows and this server does not answer.
    Refused([u8; 4]),
}

impl Word {
    /// `None` for bytes that are no word; they are the length of a frame then.
    pub(super) fn from_bytes(bytes: &[u8; 4]) -> Option<Word> {
        Some(match bytes {
            b"ruok" => Word::Ruok,
            b"stat" => Word::Stat,
            b"srvr" => Word::Srvr,
            b"mntr" => Word::Mntr,
            b"isro" => Word::Isro,
            b"conf" | b"cons" | b"crst" | b"dirs" | b"dump" | b"envi" | b"gtmk" | b"stmk" | b"srst"
            | b"wchc" | b"wchp" | b"wchs" | b"hash" => Word::Refused(*bytes),
            _ => return None,
        })
    }
}

struct Totals {
    received: u64,
    sent: u64,
    outstanding: usize,
    latency_avg_ms: f64,
    latency_max_ms: u64,
}

fn totals(counters: &Counters, outboxes: &[Arc<Outbox>]) -> Totals {
    let of_open = |counter: fn(&Outbox) -> u64| outboxes.iter().map(|outbox| counter(outbox)).sum::<u64>();
    let sent = counters.sent.load(Ordering::Relaxed) + of_open(|outbox| outbox.sent.load(Ordering::Relaxed));
    let sum_ms = counters.latency_sum_ms.load(Ordering::Relaxed) as f64;
    Totals {
        received: counters.received.load(Ordering::Relaxed)
            + of_open(|outbox| outbox.received.load(Ordering::Relaxed)),
        sent,
        outstanding: outboxes.iter().map(|outbox| outbox.len()).sum(),
        latency_avg_ms: (sum_ms / sent.max(1) as f64 * 1e4).round() / 1e4,
        latency_max_ms: counters.latency_max_ms.load(Ordering::Relaxed),
    }
}

/// The answer to a word.
pub(super) fn answer(shared: &Shared, word: Word) -> Bytes {
    let text = match word {
        Word::Ruok => "imok".to_owned(),
        Word::Isro => "rw".to_owned(),
        Word::Refused(word) => {
            format!(
                "{} is not executed because it is not in the whitelist.\n",
                String::from_utf8_lossy(&word)
            )
        }
        Word::Stat | Word::Srvr | Word::Mntr => {
            let (figures, outboxes) = shared.figures();
            let totals = totals(&shared.counters, &outboxes);
            match word {
                Word::Mntr => mntr(&figures, &totals, outboxes.len(), shared.uptime_ms(), &shared.requests),
                _ => srvr(&figures, &totals, &outboxes, word == Word::Stat),
            }
        }
    };
    text.into()
}

// Writing into a string never fails.
fn srvr(figures: &Figures, totals: &Totals, outboxes: &[Arc<Outbox>], with_clients: bool) -> String {
    let mut text = format!("Zookeeper version: {VERSION}\n");
    if with_clients {
        text.push_str("Clients:\n");
        for outbox in outboxes {
            let (received, sent) =
                (outbox.received.load(Ordering::Relaxed), outbox.sent.load(Ordering::Relaxed));
            let (peer, queued) = (outbox.peer, outbox.len());
            let _ = writeln!(text, " /{peer}[1](queued={queued},recved={received},sent={sent})");
        }
        text.push('\n');
    }
    let _ = write!(
        text,
        "Latency min/avg/max: 0/{:?}/{}\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: {}\nZxid: {:#x}\n\
         Mode: standalone\nNode count: {}\n",
        totals.latency_avg_ms,
        totals.latency_max_ms,
        totals.received,
        totals.sent,
        outboxes.len(),
        totals.outstanding,
        figures.zxid,
        figures.nodes,
    );
    text
}

fn mntr(
    figures: &Figures,
    totals: &Totals,
    connections: usize,
    uptime_ms: u64,
    requests: &Requests,
) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "zk_{key}\t{value}");
    };
    line("version", &VERSION);
    line("server_state", &"standalone");
    line("avg_latency", &format_args!("{:?}", totals.latency_avg_ms));
    line("max_latency", &totals.latency_max_ms);
    line("min_latency", &0);
    line("packets_received", &totals.received);
    line("packets_sent", &totals.sent);
    line("num_alive_connections", &connections);
    line("outstanding_requests", &totals.outstanding);
    line("uptime", &uptime_ms);
    line("znode_count", &figures.nodes);
    line("watch_count", &figures.watches);
    line("ephemerals_count", &figures.ephemerals);
    line("approximate_data_size", &figures.size_bytes);
    line("global_sessions", &figures.sessions);
    for (name, count) in requests.all() {
        let _ = writeln!(text, "bindery_requests_{name}\t{count}");
    }
    text
}
