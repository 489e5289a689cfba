//! A load driver over TCP, v2: one thread, several connections, a window of outstanding adds over all of them.

use super::thread_cpu_s;
use crate::support::Histogram;
use bindery_wire::v2;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Most bytes gathered before the socket is written.
const GATHERED_BYTES_MAX: usize = 256 << 10;

/// What to send.
#[derive(Clone, Copy)]
pub struct Load {
    pub entry_bytes: usize,
    pub connections: usize,
    pub ledgers: usize,
    /// The first of the ledgers: each run has its own.
    pub first_ledger: i64,
    pub outstanding: usize,
    /// Not measured.
    pub warmup_s: f64,
    pub seconds: f64,
}

/// What came of it.
pub struct Outcome {
    pub adds: u64,
    pub seconds: f64,
    pub latencies: Histogram,
    /// Of the driver's thread, in the measured time.
    pub cpu_s: f64,
    /// Of the whole process, in the measured time.
    pub process_cpu_s: f64,
}

impl Outcome {
    /// What is not the driver's, in microseconds for each add.
    pub fn cpu_us_per_add(&self) -> f64 {
        (self.process_cpu_s - self.cpu_s).max(0.0) * 1e6 / self.adds.max(1) as f64
    }
}

/// Runs the load from a thread of its own, until everything is answered.
pub fn run(address: SocketAddr, load: Load) -> Outcome {
    let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(drive(address, load))
    });
    thread.unwrap().join().unwrap()
}

async fn drive(address: SocketAddr, load: Load) -> Outcome {
    let begun = Instant::now();
    let from = begun + Duration::from_secs_f64(load.warmup_s);
    let until = from + Duration::from_secs_f64(load.seconds);
    let mut tasks = Vec::new();
    for index in 0..load.connections {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let share = |all: usize| all / load.connections + usize::from(index < all % load.connections);
        let first = load.first_ledger + (0..index).map(|i| load.share_of_ledgers(i) as i64).sum::<i64>();
        let connection = Connection::new(
            socket,
            load.entry_bytes,
            first,
            share(load.ledgers).max(1),
            share(load.outstanding),
        );
        tasks.push(tokio::task::spawn(connection.run(from, until)));
    }
    tokio::time::sleep_until(from.into()).await;
    let before = (thread_cpu_s(), crate::support::cpu(), Instant::now());
    tokio::time::sleep_until(until.into()).await;
    let (cpu_s, process_cpu) = (thread_cpu_s() - before.0, crate::support::cpu() - before.1);
    let seconds = before.2.elapsed().as_secs_f64();
    let mut latencies = Histogram::new();
    for task in tasks {
        latencies.merge(&task.await.unwrap());
    }
    Outcome { adds: latencies.total(), seconds, latencies, cpu_s, process_cpu_s: process_cpu.as_secs_f64() }
}

impl Load {
    fn share_of_ledgers(&self, index: usize) -> usize {
        (self.ledgers / self.connections + usize::from(index < self.ledgers % self.connections)).max(1)
    }
}

struct Connection {
    socket: TcpStream,
    /// A whole frame; the ids are put in for each entry.
    frame: Vec<u8>,
    first_ledger: i64,
    /// Of each ledger: the next entry, and when those outstanding were sent.
    ledgers: Vec<(i64, VecDeque<Instant>)>,
    turn: usize,
    window: usize,
    outstanding: usize,
}

/// Where the ids are in a frame: behind length, header and key.
const BODY_AT: usize = 28;

impl Connection {
    fn new(
        socket: TcpStream,
        entry_bytes: usize,
        first_ledger: i64,
        ledgers: usize,
        window: usize,
    ) -> Connection {
        let body = vec![7; entry_bytes];
        let add = v2::Add::new(v2::Flags::NONE, bindery_types::MasterKey::new([1; 20]), &body).unwrap();
        let mut frame = Vec::new();
        v2::Request::Add(add).encode(&mut frame);
        assert_eq!(frame.len(), BODY_AT + entry_bytes);
        let ledgers = (0..ledgers).map(|_| (0, VecDeque::new())).collect();
        Connection { socket, frame, first_ledger, ledgers, turn: 0, window, outstanding: 0 }
    }

    fn gather(&mut self, out: &mut Vec<u8>) {
        let now = Instant::now();
        while self.outstanding < self.window && out.len() < GATHERED_BYTES_MAX {
            self.turn = (self.turn + 1) % self.ledgers.len();
            let (entry, sent) = &mut self.ledgers[self.turn];
            let at = out.len() + BODY_AT;
            out.extend_from_slice(&self.frame);
            out[at..at + 8].copy_from_slice(&(self.first_ledger + self.turn as i64).to_be_bytes());
            out[at + 8..at + 16].copy_from_slice(&entry.to_be_bytes());
            out[at + 16..at + 24].copy_from_slice(&(*entry - 1).to_be_bytes());
            sent.push_back(now);
            (*entry, self.outstanding) = (*entry + 1, self.outstanding + 1);
        }
    }

    async fn run(mut self, from: Instant, until: Instant) -> Histogram {
        let mut latencies = Histogram::new();
        let (mut out, mut written) = (Vec::with_capacity(2 * GATHERED_BYTES_MAX), 0);
        let (mut read, mut filled) = (vec![0; 64 << 10], 0);
        loop {
            let mut is_idle = true;
            if written == out.len() {
                out.clear();
                written = 0;
                if Instant::now() < until {
                    self.gather(&mut out);
                } else if self.outstanding == 0 {
                    return latencies;
                }
            }
            if written < out.len() {
                match self.socket.try_write(&out[written..]) {
                    Ok(n) => (written, is_idle) = (written + n, false),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            match self.socket.try_read(&mut read[filled..]) {
                Ok(0) => panic!("the bookie closed the connection"),
                Ok(n) => {
                    is_idle = false;
                    filled += n;
                    self.take_answers(&read[..filled], &mut latencies, from, until);
                    let rest = filled % v2::ADD_RESPONSE_SIZE_BYTES;
                    read.copy_within(filled - rest..filled, 0);
                    filled = rest;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if !is_idle {
                tokio::task::yield_now().await;
            } else if written < out.len() {
                tokio::select! {
                    ready = self.socket.readable() => ready.unwrap(),
                    ready = self.socket.writable() => ready.unwrap(),
                }
            } else {
                self.socket.readable().await.unwrap();
            }
        }
    }

    fn take_answers(&mut self, data: &[u8], latencies: &mut Histogram, from: Instant, until: Instant) {
        let now = Instant::now();
        for answer in data.chunks_exact(v2::ADD_RESPONSE_SIZE_BYTES) {
            let Ok(v2::Response::Add { code, ledger_id, .. }) = v2::Response::decode(&answer[4..]) else {
                panic!("not the answer to an add")
            };
            assert_eq!(code, bindery_wire::ErrorCode::Ok);
            let (_, sent) = &mut self.ledgers[(ledger_id - self.first_ledger) as usize];
            let sent = sent.pop_front().expect("an answer for each add");
            self.outstanding -= 1;
            if now >= from && now < until {
                latencies.record(u64::try_from((now - sent).as_nanos()).unwrap(), 1);
            }
        }
    }
}
