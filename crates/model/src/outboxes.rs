//! Scenarios of an outbox: one writes at a time and in order, the reader is told when there is room, nothing that is
//! queued is forgotten, and everything held comes back (outbox invariants 1 to 6).

use super::budget::{ByteBudget, Permit};
use super::outbox::{Body, Flush, Outbox, Sink, Window};
use super::read_class::ReadClass;
use super::request::ReadRequest;
use crate::lock::Mutex;
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc::channel;
use shuttle::thread;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::sync::Notify;

/// Answers: who appended it, and its number there.
const ANSWER_BYTES: usize = 8;
const ANSWERS: u32 = 12;
const ENTRIES: u32 = 3;
const ENTRY_BYTES: usize = 40;

/// The socket and who is behind it.
struct Peer {
    state: Mutex<PeerState>,
    /// It takes bytes again.
    writable: Notify,
    /// It was offered some.
    offered: Notify,
}

#[derive(Default)]
struct PeerState {
    is_written: bool,
    /// Bytes that it takes before it has to be asked again.
    room: usize,
    got: Vec<u8>,
}

impl Sink for Peer {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        {
            let mut state = self.state.lock();
            assert!(!state.is_written, "one thread writes at a time (outbox invariant 1)");
            state.is_written = true;
        }
        thread::yield_now();
        let mut state = self.state.lock();
        state.is_written = false;
        let mut taken = 0;
        for slice in slices {
            let n = slice.len().min(state.room);
            state.got.extend_from_slice(&slice[..n]);
            state.room -= n;
            taken += n;
        }
        drop(state);
        self.offered.notify_one();
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }
}

impl Peer {
    fn new() -> Arc<Peer> {
        Arc::new(Peer { state: Mutex::default(), writable: Notify::new(), offered: Notify::new() })
    }

    fn take(&self, bytes: usize) {
        self.state.lock().room = bytes;
        self.writable.notify_one();
    }
}

/// Appends a response with an entry.
fn append(outbox: &Outbox, promised: usize, window: Window, permit: Permit, body: Body<'_>, head: &[u8]) {
    let request = ReadRequest { promised, class: ReadClass::Plain, is_from_tier: false };
    outbox.entry(request, window, permit, body, |out| out.extend_from_slice(head));
}

/// The parts of a connection that its outbox needs.
struct Connection {
    outbox: Outbox,
    peer: Arc<Peer>,
    sender: Arc<Notify>,
    entries: ByteBudget,
    pool: ByteBudget,
}

impl Connection {
    fn new() -> Arc<Connection> {
        let (pool, entries) = (ByteBudget::new("outbox", 1 << 20), ByteBudget::new("outbound", 1 << 20));
        let sender: Arc<Notify> = Arc::default();
        // Room for one answer and a little more, so that the reader has to wait.
        let outbox = Outbox::new(4096, ENTRY_BYTES, ENTRY_BYTES, pool.clone(), sender.clone());
        Arc::new(Connection { outbox, peer: Peer::new(), sender, entries, pool })
    }

    fn flush(&self) {
        if self.outbox.flush(&*self.peer, false, &mut Vec::new()) == Flush::Left {
            self.sender.notify_one();
        }
    }

    fn assert_empty(&self) {
        assert_eq!((self.pool.gauge().used, self.pool.gauge().waiting), (0, 0), "leases came back");
        assert_eq!((self.entries.gauge().used, self.entries.gauge().waiting), (0, 0), "permits came back");
    }
}

fn put(out: &mut bytes::BytesMut, who: u32, number: u32) {
    out.extend_from_slice(&who.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
}

/// The sender task: writes what the socket did not take at once, and loads entries as the window allows.
fn run_sender(connection: &Connection) {
    let mut left = ENTRIES;
    loop {
        while left > 0
            && let Some(window) = connection.outbox.open_window(ENTRY_BYTES, ReadClass::Plain)
        {
            let permit = connection.entries.try_acquire(ENTRY_BYTES as u64).expect("it is large");
            let number = ENTRIES - left;
            let mut body = number.to_be_bytes().to_vec();
            body.resize(ENTRY_BYTES - 4, 0);
            let head = u32::MAX.to_be_bytes();
            append(&connection.outbox, ANSWER_BYTES, window, permit, Body::Copy(&body), &head);
            left -= 1;
        }
        let is_blocked = match connection.outbox.flush(&*connection.peer, true, &mut Vec::new()) {
            Flush::Left => true,
            Flush::Broken => return,
            _ => false,
        };
        if left == 0 && connection.outbox.owes_nothing() {
            return;
        }
        block_on(async {
            tokio::select! {
                biased;
                () = connection.sender.notified() => {}
                () = connection.peer.writable.notified(), if is_blocked => {}
            }
        });
    }
}

/// A reader that needs credit, two threads that answer, the sender, and a peer that takes little at a time. Everything
/// arrives, in the order of each thread that appended it.
pub fn everything_leaves_in_order() {
    let connection = Connection::new();
    let mut threads = Vec::new();
    let (to_answer, mut inboxes) = (0..2).map(|_| channel()).fold((Vec::new(), Vec::new()), |mut ends, (a, b)| {
        ends.0.push(a);
        ends.1.push(b);
        ends
    });
    // Promises of the entries are made at the beginning: the sender needs no credit.
    for _ in 0..ENTRIES {
        assert_eq!(connection.outbox.try_credit(ANSWER_BYTES, ANSWER_BYTES), Some(ANSWER_BYTES));
    }
    // The free room left is little more than an answer.
    let filling = connection.outbox.try_credit(1, 4096 - (ENTRIES as usize + 2) * ANSWER_BYTES).expect("it is empty");
    threads.push(thread::spawn({
        let connection = connection.clone();
        move || {
            for number in 0..ANSWERS {
                let credit = block_on(connection.outbox.credit(ANSWER_BYTES, ANSWER_BYTES));
                assert_eq!(credit, Ok(ANSWER_BYTES));
                to_answer[number as usize % 2].send(number).expect("the thread that answers listens");
            }
            connection.outbox.return_credit(filling);
            // The rest of the lease may have been the last thing that the sender had to wait for.
            connection.sender.notify_one();
        }
    }));
    for (who, inbox) in (0u32..).zip(inboxes.drain(..)) {
        let connection = connection.clone();
        threads.push(thread::spawn(move || {
            while let Ok(number) = inbox.recv() {
                connection.outbox.answer(ANSWER_BYTES, |out| put(out, who, number));
                connection.flush();
            }
            connection.sender.notify_one();
        }));
    }
    threads.push(thread::spawn({
        let connection = connection.clone();
        move || run_sender(&connection)
    }));
    let expected = ANSWERS as usize * ANSWER_BYTES + ENTRIES as usize * ENTRY_BYTES;
    // The peer: takes a few bytes, whenever it has those it asked for before, and otherwise waits for them.
    loop {
        let (got, room) = {
            let state = connection.peer.state.lock();
            (state.got.len(), state.room)
        };
        if got == expected {
            break;
        }
        if room == 0 {
            connection.peer.take(thread_rng().gen_range(1..24));
        }
        block_on(connection.peer.offered.notified());
    }
    for thread in threads {
        thread.join().expect("a thread that panics ends the run");
    }
    let got = std::mem::take(&mut connection.peer.state.lock().got);
    let mut last: HashMap<u32, u32> = HashMap::new();
    let mut at = 0;
    while at < got.len() {
        let word = |at: usize| u32::from_be_bytes(got[at..at + 4].try_into().expect("four bytes"));
        let (who, number) = (word(at), word(at + 4));
        assert!(who == u32::MAX || who < 2, "bytes are where they were appended (outbox invariant 1)");
        let before = last.insert(who, number);
        assert!(before.is_none_or(|before| before < number), "in the order in which they were appended");
        at += if who == u32::MAX { ENTRY_BYTES } else { ANSWER_BYTES };
    }
    connection.assert_empty();
}

/// The connection closes in the middle of it all: no thread waits for ever, no bytes stay held (outbox invariant 4).
pub fn a_close_gives_everything_back() {
    let connection = Connection::new();
    // Beyond the free room, so that there is a lease.
    let outbox = Outbox::new(16 * 1024, ENTRY_BYTES, ENTRY_BYTES, connection.pool.clone(), connection.sender.clone());
    let connection = Arc::new(Connection {
        outbox,
        peer: connection.peer.clone(),
        sender: connection.sender.clone(),
        entries: connection.entries.clone(),
        pool: connection.pool.clone(),
    });
    let reader = thread::spawn({
        let connection = connection.clone();
        move || {
            // The peer takes nothing, so that this waits in the end.
            while let Ok(credit) = block_on(connection.outbox.credit(1024, 1024)) {
                connection.outbox.answer(credit, |out| out.resize(out.len() + credit, 0));
                connection.flush();
            }
        }
    });
    let loads = thread::spawn({
        let connection = connection.clone();
        move || {
            for _ in 0..4 {
                let Some(window) = connection.outbox.open_window(ENTRY_BYTES, ReadClass::Plain) else { return };
                let permit = connection.entries.try_acquire(ENTRY_BYTES as u64).expect("it is large");
                if thread_rng().gen_bool(0.5) {
                    connection.outbox.close_window(window);
                } else {
                    let body = vec![0; ENTRY_BYTES];
                    append(&connection.outbox, 0, window, permit, Body::Owned(body), &[]);
                    connection.flush();
                }
            }
        }
    });
    let closer = thread::spawn({
        let connection = connection.clone();
        move || {
            for _ in 0..thread_rng().gen_range(0..40) {
                thread::yield_now();
            }
            connection.outbox.close();
        }
    });
    for thread in [reader, loads, closer] {
        thread.join().expect("a thread that panics ends the run");
    }
    assert_eq!(connection.outbox.flush(&*connection.peer, true, &mut Vec::new()), Flush::Broken);
    connection.assert_empty();
}
