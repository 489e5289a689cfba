//! Adds per second, and per CPU second of the client, against a peer that answers everything at once.
//!
//! ```text
//! cargo bench -p bindery-client --bench transport -- [seconds] [payload bytes]
//! ```
//! The peer is a process of its own, whose CPU time is not counted. No ledger protocol and no digests are involved:
//! this is the cost of the connections. Given no `--bench` (as by `cargo test --benches`), each measurement is short.

#![allow(clippy::unwrap_used, reason = "a measurement fails by panicking")]

mod support;

use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{AddAnswer, AddRequest, AddSink, AddTag, Transport};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_types::{BookieId, EntryId, LedgerId, MasterKey};
use bindery_wire::frame::{self, Split};
use bindery_wire::{ErrorCode, FrameLimit, v2};
use bytes::{BufMut, BytesMut};
use support::cpu_used;
use tokio::sync::Notify;
use tokio::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "peer") {
        return be_peer();
    }
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let seconds = numbers.next().map_or(if is_bench { 4.0 } else { 0.1 }, |seconds| seconds as f64);
    let payload = numbers.next().unwrap_or(1024) as usize;

    let mut peer = Peer::start();
    println!("payload {payload} bytes; the peer answers at once");
    println!(
        "{:>9} {:>8} {:>12} {:>16} {:>11}",
        "threads", "window", "adds/s", "adds/CPU second", "CPU us/add"
    );
    for threads in [1, 2] {
        for window in [1, 10, 100, 1000, 10_000] {
            let runtime = match threads {
                1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
                _ => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
            };
            let bookie = peer.bookie.clone();
            let run = run(bookie, window, payload, Duration::from_secs_f64(seconds));
            // On a worker, as all tasks of an application are.
            let runtime = runtime.unwrap();
            let Measured { adds, elapsed, cpu } =
                runtime.block_on(async { tokio::spawn(run).await.unwrap() });
            let (rate, adds) = (adds as f64 / elapsed.as_secs_f64(), adds as f64);
            let cpu = cpu.as_secs_f64();
            println!("{threads:>9} {window:>8} {rate:>12.0} {:>16.0} {:>11.2}", adds / cpu, cpu * 1e6 / adds);
        }
    }
    peer.stop();
}

struct Measured {
    adds: u64,
    elapsed: Duration,
    cpu: Duration,
}

#[derive(Default)]
struct Answered {
    count: AtomicU64,
    changed: Notify,
}

impl AddSink for Answered {
    fn added(self: Arc<Self>, _: &BookieId, answers: &[AddAnswer]) {
        assert!(answers.iter().all(|answer| answer.result.is_ok()));
        self.count.fetch_add(answers.len() as u64, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// A closed loop of `window` adds.
async fn run(bookie: BookieId, window: u64, payload: usize, duration: Duration) -> Measured {
    let store = MemoryCluster::new().open();
    layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    let layout = Layout::open(Arc::new(store), "/ledgers", None).await.unwrap();
    let bookies = Bookies::new(layout.registration(), ConnectionOptions::default());
    let answered = Arc::new(Answered::default());
    let sink: Arc<dyn AddSink> = answered.clone();
    let ledger = LedgerId::new(1).unwrap();
    let mut arena = BytesMut::new();

    let (mut sent, mut begin) = (0u64, None);
    let warm_up = Instant::now() + duration / 10;
    loop {
        let done = answered.count.load(Ordering::Relaxed);
        while sent < done + window {
            let entry = EntryId::new(sent as i64).unwrap();
            arena.reserve((32 + payload).max(64 * 1024 * usize::from(arena.capacity() < 32 + payload)));
            for field in [ledger.get(), entry.get(), entry.get() - 1, 0] {
                arena.put_i64(field);
            }
            arena.put_bytes(b'x', payload);
            let body = arena.split().freeze();
            let key = MasterKey::new([7; 20]);
            let request = AddRequest {
                ledger,
                entry,
                body,
                master_key: key,
                is_recovery: false,
                is_background: false,
                is_deferred: false,
                tag: AddTag(sent),
            };
            bookies.add(&bookie, request, &sink);
            sent += 1;
        }
        bookies.flush();
        let now = Instant::now();
        match begin {
            None if now >= warm_up => begin = Some((now, cpu_used(), done)),
            Some((since, cpu, at)) if now >= since + duration => {
                let measured = Measured { adds: done - at, elapsed: now - since, cpu: cpu_used() - cpu };
                while answered.count.load(Ordering::Relaxed) < sent {
                    answered.changed.notified().await;
                }
                bookies.close().await;
                return measured;
            }
            _ => {}
        }
        answered.changed.notified().await;
    }
}

struct Peer {
    process: Child,
    bookie: BookieId,
}

impl Peer {
    fn start() -> Peer {
        let this = std::env::current_exe().unwrap();
        let mut process = Command::new(this).arg("peer").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Peer { process, bookie: BookieId::new(line.trim()).unwrap() }
    }

    fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn be_peer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    for socket in listener.incoming() {
        let socket = socket.unwrap();
        std::thread::spawn(move || answer_all(socket));
    }
}

fn answer_all(mut socket: TcpStream) {
    socket.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 4 << 20];
    let (mut end, mut out) = (0, BytesMut::new());
    loop {
        match socket.read(&mut buffer[end..]) {
            Ok(0) | Err(_) => return,
            Ok(count) => end += count,
        }
        let mut begin = 0;
        while let Split::Frame(payload) = frame::split(&buffer[begin..end], FrameLimit::DEFAULT).unwrap() {
            let (from, to) = (begin + payload.start, begin + payload.end);
            if let v2::Request::Add(add) = v2::Request::decode(&buffer[from..to]).unwrap() {
                v2::put_add_response(2, ErrorCode::Ok, add.ledger_id, add.entry_id, &mut out);
            }
            begin = to;
        }
        buffer.copy_within(begin..end, 0);
        end -= begin;
        if socket.write_all(&out).is_err() {
            return;
        }
        out.clear();
    }
}
