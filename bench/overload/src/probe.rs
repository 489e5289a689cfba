//! Things that must be answered whatever else happens: fences, health over the protocol on new connections, the HTTP
//! port. Each has a thread of its own and asks twice a second.

use crate::args::Target;
use crate::clock::{MILLI, now, sleep_until};
use crate::link::Endpoint;
use crate::stats::Phases;
use crate::watch::get;
use crate::work::{KEY, put_v3};
use anyhow::{Context, Result, bail};
use bindery_wire::ErrorCode;
use bindery_wire::v2::{self, Flags};
use bindery_wire::v3::{self, proto};
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use std::io::Write;
use std::thread::JoinHandle;
use std::time::Duration;

const PERIOD: u64 = 500 * MILLI;

/// The results of one kind of probe: when it was sent, and after how long it was answered, if it was.
pub struct Probed {
    name: &'static str,
    asked: Vec<(u64, Option<u64>)>,
}

/// Probes under way.
pub struct Probes {
    threads: Vec<JoinHandle<Probed>>,
}

impl Probes {
    /// Asks from `begin` to `end`. Fences `fences` ledgers, one each time, from ledger `first` on: each must have entry 0.
    pub fn start(target: &Target, begin: u64, end: u64, first: i64, fences: u64, wait: Duration) -> Probes {
        let (fenced, asked) = (target.bookie.clone(), target.bookie.clone());
        let mut ledgers = first..first + fences as i64;
        let mut threads = vec![
            spawn("fence", begin, end, move || fence(&fenced, ledgers.next()?, wait).ok()),
            spawn("health", begin, end, move || health(&asked, wait).ok()),
        ];
        if let Some(admin) = target.admin {
            let path = if target.is_java { "/metrics" } else { "/api/v1/bookie/is_ready" };
            threads.push(spawn("http", begin, end, move || get(admin, path, wait).map(|_| ())));
        }
        Probes { threads }
    }

    /// Waits for the last ones.
    pub fn finish(self, begin: u64, phases: &Phases) -> Value {
        let mut all = serde_json::Map::new();
        for thread in self.threads {
            if let Ok(probed) = thread.join() {
                all.insert(probed.name.to_owned(), probed.json(begin, phases));
            }
        }
        Value::Object(all)
    }
}

/// Enough for a run from `begin` to `end`.
pub fn fences_needed(seconds: f64) -> u64 {
    (seconds * 1e9 / PERIOD as f64) as u64 + 4
}

fn spawn(
    name: &'static str,
    begin: u64,
    end: u64,
    mut ask: impl FnMut() -> Option<()> + Send + 'static,
) -> JoinHandle<Probed> {
    std::thread::spawn(move || {
        let mut asked = Vec::new();
        let mut due = begin;
        while due < end {
            sleep_until(due);
            let at = now();
            let answer = ask().map(|()| now() - at);
            asked.push((at, answer));
            due = (due + PERIOD).max(now());
        }
        Probed { name, asked }
    })
}

impl Probed {
    fn json(&self, mut begin: u64, phases: &Phases) -> Value {
        let mut all = serde_json::Map::new();
        for (name, end) in phases {
            let within = self.asked.iter().filter(|(at, _)| *at >= begin && *at < *end);
            let (mut answered, mut failed) = (Vec::new(), 0);
            for (_, answer) in within {
                match answer {
                    Some(took) => answered.push(*took as f64 / 1e6),
                    None => failed += 1,
                }
            }
            answered.sort_by(f64::total_cmp);
            all.insert(
                (*name).to_owned(),
                json!({ "answered": answered.len(), "failed": failed, "p50_ms": answered.get(answered.len() / 2),
                        "max_ms": answered.last() }),
            );
            begin = *end;
        }
        Value::Object(all)
    }
}

/// One request, one answer, on a connection of its own.
pub fn exchange(bookie: &Endpoint, request: &[u8], wait: Duration) -> Result<Vec<u8>> {
    let mut link = bookie.connect(wait)?;
    link.write_all(request)?;
    Ok(link.answer()?)
}

fn fence(bookie: &Endpoint, ledger_id: i64, wait: Duration) -> Result<()> {
    let mut out = BytesMut::new();
    let flags = Flags::DO_FENCING.with(Flags::HIGH_PRIORITY);
    let read =
        v2::Read { version: v2::VERSION_CURRENT, flags, ledger_id, entry_id: 0, master_key: Some(KEY) };
    v2::Request::Read(read).encode(&mut out);
    let payload = exchange(bookie, &out, wait)?;
    match v2::Response::decode(&payload)? {
        v2::Response::Read { code: ErrorCode::Ok, .. } => Ok(()),
        other => bail!("a fence was answered with {other:?}"),
    }
}

fn health(bookie: &Endpoint, wait: Duration) -> Result<()> {
    let mut out = BytesMut::new();
    let info = proto::GetBookieInfoRequest { requested: Some(1) };
    put_v3(1, v3::Operation::GetBookieInfo(info), &mut out);
    let response = v3::decode_response(Bytes::from(exchange(bookie, &out, wait)?))?;
    response.get_bookie_info_response.context("bookie info")?;
    Ok(())
}
