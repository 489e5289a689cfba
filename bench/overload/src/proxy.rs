//! A bookie's front door that can be slowed down or shut: `overload proxy --listen HOST:PORT --to HOST:PORT`, for
//! `bench/reads`. Orders come on standard input, one a line: `pass`, `delay MS`, `refuse`; each is answered with `ok` when it
//! holds. The end of the input ends the program.
//!
//! ```text
//! client -> copy -> bookie
//! client <- wait until due <- queue <- read <- bookie
//! ```
//!
//! # Invariants
//! 1. Bytes keep their order, also when the delay changes. Bytes sent to a client are at least `delay` old.
//! 2. While it refuses connections no socket listens, and all connections are closed; so are those whose bookie cannot
//!    be reached.
//!
//! # Limits     three threads for each connection; of answers that wait, `CHUNKS_MAX` reads

use crate::args::Args;
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of one read.
const CHUNK_BYTES: usize = 64 << 10;
/// Reads of a connection that wait for their time; more are left to the bookie.
const CHUNKS_MAX: usize = 4096;
/// The listener looks so often whether it is to end.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// State that the threads share.
struct Door {
    listen: SocketAddr,
    to: SocketAddr,
    delay_ms: AtomicU64,
    /// Both ends of every connection, until all are closed.
    streams: Mutex<Vec<TcpStream>>,
}

/// Serves until standard input ends.
pub fn run(mut args: Args) -> Result<()> {
    let mut address = |name: &str| -> Result<SocketAddr> {
        let text = args.text(name).with_context(|| format!("--{name} HOST:PORT is needed"))?;
        text.parse().with_context(|| format!("--{name} {text}"))
    };
    let (listen, to) = (address("listen")?, address("to")?);
    args.finish()?;
    let door = Arc::new(Door { listen, to, delay_ms: AtomicU64::new(0), streams: Mutex::new(Vec::new()) });
    let mut open = Some(Open::new(&door)?);
    say_ok()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["pass"] => door.delay_ms.store(0, Ordering::Release),
            ["delay", ms] => door.delay_ms.store(ms.parse().context("delay MS")?, Ordering::Release),
            ["refuse"] => {
                open = None;
                door.close_all();
            }
            _ => bail!("pass, delay MS or refuse; not {line:?}"),
        }
        if line.trim() != "refuse" && open.is_none() {
            open = Some(Open::new(&door)?);
        }
        say_ok()?;
    }
    Ok(())
}

fn say_ok() -> Result<()> {
    println!("ok");
    Ok(std::io::stdout().flush()?)
}

/// The listener and its thread; dropped, the port is closed.
struct Open {
    end: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Open {
    fn new(door: &Arc<Door>) -> Result<Open> {
        let listener =
            TcpListener::bind(door.listen).with_context(|| format!("cannot listen on {}", door.listen))?;
        listener.set_nonblocking(true)?;
        let (end, ended) = sync_channel(0);
        let door = door.clone();
        let thread = thread::spawn(move || door.accept(&listener, &ended));
        Ok(Open { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Door {
    fn accept(self: &Arc<Door>, listener: &TcpListener, ended: &Receiver<()>) {
        while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&LOOK_INTERVAL));
            if let Ok((client, _)) = listener.accept() {
                // A client that cannot be served sees the connection close: invariant 2.
                let _ = self.serve(client);
            }
        }
    }

    fn serve(self: &Arc<Door>, client: TcpStream) -> std::io::Result<()> {
        client.set_nonblocking(false)?;
        client.set_nodelay(true)?;
        let bookie = TcpStream::connect_timeout(&self.to, Duration::from_secs(1))?;
        bookie.set_nodelay(true)?;
        self.streams.lock().expect("no thread panics").extend([client.try_clone()?, bookie.try_clone()?]);
        let (mut from, mut to) = (client.try_clone()?, bookie.try_clone()?);
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
        let (queue, waiting) = sync_channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
        let door = self.clone();
        thread::spawn(move || door.receive(bookie, &queue));
        thread::spawn(move || send(client, &waiting));
        Ok(())
    }

    fn receive(&self, mut bookie: TcpStream, queue: &SyncSender<(Instant, Vec<u8>)>) {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(length) = bookie.read(&mut chunk) {
            let due = Instant::now() + Duration::from_millis(self.delay_ms.load(Ordering::Acquire));
            if length == 0 || queue.send((due, chunk[..length].to_vec())).is_err() {
                break;
            }
        }
        let _ = bookie.shutdown(Shutdown::Both);
    }

    fn close_all(&self) {
        for stream in self.streams.lock().expect("no thread panics").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn send(mut client: TcpStream, waiting: &Receiver<(Instant, Vec<u8>)>) {
    for (due, chunk) in waiting {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if client.write_all(&chunk).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}
