//! Reads per CPU second of the client: in bulk, as stored, next to an ordinary reader.
//!
//! ```text
//! cargo bench -p bindery-client --bench bulk -- [seconds] [payload bytes] [range KiB]
//! ```
//! The bookies are processes of their own, which answer from memory and are not counted. Both readers verify every
//! digest. Given no `--bench` (as by `cargo test --benches`), each measurement is short.

#![allow(clippy::unwrap_used, reason = "a measurement fails by panicking")]

mod support;

use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bindery_client::{
    BookieId, BulkOptions, Client, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerState, OpenMode,
    Quorum, Segment,
};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_types::{Digester, LedgerSecret};
use bindery_wire::entry::EntryHeader;
use bindery_wire::frame::{self, Split};
use bindery_wire::{FrameLimit, v2};
use bytes::{Buf, BytesMut};
use support::cpu_used;
use tokio::time::Instant;

/// Payload bytes of the ledger that is read again and again.
const LEDGER_BYTES: usize = 32 << 20;
const LEDGER_BYTES_SHORT: usize = 1 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if args.iter().any(|arg| arg == "peer") {
        return be_peer(numbers[0], numbers[1]);
    }
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let seconds = numbers.first().map_or(if is_bench { 3.0 } else { 0.05 }, |seconds| *seconds as f64);
    let payloads = numbers.get(1).map_or(vec![100, 1024, 16 << 10], |size| vec![*size]);
    let range_size_bytes = numbers.get(2).map(|size| *size as u64 * 1024);
    println!(
        "{:>9} {:>8} {:>9} {:>9} {:>14} {:>12} {:>12}",
        "payload", "E/Qw", "reader", "MB/s", "MB/CPU second", "CPU s/GiB", "CPU ns/entry"
    );
    for payload in payloads {
        let count = if is_bench { LEDGER_BYTES } else { LEDGER_BYTES_SHORT } / payload;
        let mut peers: Vec<Peer> = (0..3).map(|_| Peer::start(count, payload)).collect();
        for write_quorum in [3, 2] {
            let mut bulk = BulkOptions::default();
            bulk.range_size_bytes = range_size_bytes.unwrap_or(bulk.range_size_bytes);
            for bulk in [None, Some(bulk)] {
                let is_bulk = bulk.is_some();
                let bookies = peers.iter().map(|peer| peer.bookie.clone()).collect();
                let run = run(bookies, write_quorum, count, payload, seconds, bulk);
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                // On a worker, as all tasks of an application are.
                let Measured { bytes, elapsed, cpu } =
                    runtime.block_on(async { tokio::spawn(run).await.unwrap() });
                let (megabytes, cpu) = (bytes as f64 / 1e6, cpu.as_secs_f64());
                println!(
                    "{payload:>9} {:>8} {:>9} {:>9.0} {:>14.0} {:>12.2} {:>12.0}",
                    format!("3/{write_quorum}"),
                    if is_bulk { "bulk" } else { "ordinary" },
                    megabytes / elapsed.as_secs_f64(),
                    megabytes / cpu,
                    cpu / megabytes * 1.074e3,
                    cpu * 1e9 / (bytes as f64 / payload as f64),
                );
            }
        }
        peers.iter_mut().for_each(Peer::stop);
    }
}

struct Measured {
    /// Payload bytes.
    bytes: u64,
    elapsed: Duration,
    cpu: Duration,
}

async fn run(
    bookies: Vec<BookieId>,
    write_quorum: usize,
    count: usize,
    payload: usize,
    seconds: f64,
    bulk: Option<BulkOptions>,
) -> Measured {
    let store = Arc::new(MemoryCluster::new().open());
    layout::init_cluster(&*store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    let layout = Layout::open(store, "/ledgers", None).await.unwrap();
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(Quorum::new(3, write_quorum, 2).unwrap(), secret);
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble: bookies }).unwrap();
    let last = EntryId::new(count as i64 - 1).unwrap();
    let length_bytes = (count * payload) as u64;
    metadata.state = LedgerState::Closed { last_entry: Some(last), length_bytes };
    layout.ledgers().create(ledger(), &metadata).await.unwrap();
    let client = Client::builder().layout(layout).connect().await.unwrap();

    let (mut bytes, mut begin) = (0, None);
    let warm_up = Instant::now() + Duration::from_secs_f64(seconds / 10.0);
    let is_bulk = bulk.is_some();
    let view = client.bulk(bulk.unwrap_or_default()).open(ledger()).await.unwrap();
    let reader = client.open_ledger(ledger(), b"", OpenMode::ReadOnly).await.unwrap();
    loop {
        let now = Instant::now();
        match begin {
            None if now >= warm_up => begin = Some((now, cpu_used(), bytes)),
            Some((since, cpu, before)) if (now - since).as_secs_f64() >= seconds => {
                let measured =
                    Measured { bytes: bytes - before, elapsed: now - since, cpu: cpu_used() - cpu };
                client.close().await;
                return measured;
            }
            _ => {}
        }
        let mut entries = 0;
        if is_bulk {
            let mut stream = view.read(EntryId::FIRST, last);
            while let Some(batch) = stream.next().await {
                entries += batch.unwrap().entries().len();
            }
        } else {
            let mut stream = reader.read(EntryId::FIRST..=last);
            while let Some(entry) = stream.next().await {
                assert_eq!(entry.unwrap().payload.len(), payload);
                entries += 1;
            }
        }
        assert_eq!(entries, count);
        bytes += length_bytes;
    }
}

fn ledger() -> LedgerId {
    LedgerId::new(1).unwrap()
}

struct Peer {
    process: Child,
    bookie: BookieId,
}

impl Peer {
    fn start(count: usize, payload: usize) -> Peer {
        let this = std::env::current_exe().unwrap();
        let mut process = Command::new(this);
        process.args(["peer", &count.to_string(), &payload.to_string()]).stdout(Stdio::piped());
        let mut process = process.spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Peer { process, bookie: BookieId::new(line.trim()).unwrap() }
    }

    fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A bookie that has all entries.
fn be_peer(count: usize, payload: usize) {
    let digester = Digester::new(DigestType::Crc32c, b"");
    let payload = vec![b'x'; payload];
    let entries = (0..count as i64).map(|id| {
        let mut stored = Vec::new();
        let header = EntryHeader { ledger_id: ledger().get(), entry_id: id, last_add_confirmed: id - 1 };
        header.put_with_length((id + 1) * payload.len() as i64, &mut stored);
        let digest = digester.compute(&stored, &payload);
        stored.extend_from_slice(digest.as_bytes());
        stored.extend_from_slice(&payload);
        stored
    });
    let entries: Arc<Vec<Vec<u8>>> = Arc::new(entries.collect());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    for socket in listener.incoming() {
        let (socket, entries) = (socket.unwrap(), entries.clone());
        std::thread::spawn(move || answer_all(socket, &entries));
    }
}

fn answer_all(mut socket: TcpStream, entries: &[Vec<u8>]) {
    socket.set_nodelay(true).unwrap();
    let (mut buffer, mut chunk, mut out) = (BytesMut::new(), vec![0; 64 << 10], BytesMut::new());
    loop {
        match socket.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(count) => buffer.extend_from_slice(&chunk[..count]),
        }
        while let Split::Frame(payload) = frame::split(&buffer, FrameLimit::DEFAULT).unwrap() {
            buffer.advance(payload.start);
            let request = buffer.split_to(payload.len());
            match v2::Request::decode(&request).unwrap() {
                v2::Request::Read(read) => {
                    let stored = &entries[read.entry_id as usize];
                    v2::put_read_response(2, read.ledger_id, read.entry_id, stored, &mut out);
                }
                v2::Request::BatchRead(read) => {
                    let run = entries[read.start_entry_id as usize..].iter().step_by(read.stride as usize);
                    let run = run.take(read.max_count as usize);
                    let mut size_bytes = 0;
                    let run = run.take_while(|stored| {
                        let is_first = size_bytes == 0;
                        size_bytes += stored.len() as i64 + 4;
                        is_first || size_bytes <= read.max_size_bytes
                    });
                    let run: Vec<&[u8]> = run.map(Vec::as_slice).collect();
                    let (id, first) = (read.request_id, read.start_entry_id);
                    let run = run.iter().copied();
                    let is_strided = read.flags.contains(v2::Flags::STRIDE);
                    v2::put_batch_read_response(2, read.ledger_id, first, id, is_strided, run, &mut out);
                }
                other => panic!("{other:?}"),
            }
        }
        if socket.write_all(&out).is_err() {
            return;
        }
        out.clear();
    }
}
