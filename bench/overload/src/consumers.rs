//! Consumers that ask for much and take little: each pipelines reads as fast as the bookie takes them, and reads its
//! answers not at all or at a rate. One thread for all of them, apart from the measured flows.

use crate::clock::{MILLI, SECOND, now};
use crate::link::{Endpoint, Link};
use crate::work::{Filled, put_read};
use anyhow::Result;
use bytes::{Buf, BytesMut};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Encoded requests of one consumer at once: memory stays small with a thousand of them.
const CHUNK_REQUESTS: u64 = 256;
const TICK: u64 = 10 * MILLI;

/// The consumers' behaviour.
#[derive(Debug, Clone)]
pub struct ConsumerSpec {
    /// How many.
    pub count: usize,
    /// Reads each keeps unanswered.
    pub pipeline: u64,
    /// Protocol 3 instead of 2.
    pub is_v3: bool,
    /// The entries that they read.
    pub filled: Filled,
    /// Bytes each second over all of them; 0: they never read.
    pub drain_per_s: u64,
    /// They close their sending side once they have sent all requests.
    pub half_close: bool,
}

/// The consumers' results.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// Connections made.
    pub connected: usize,
    /// Connections that could not be made.
    pub not_connected: usize,
    /// Requests that the kernel took.
    pub sent: u64,
    /// Bytes of requests that the kernel has not taken: the bookie reads no further.
    pub unsent: u64,
    /// Answers taken.
    pub answers: u64,
    /// Bytes taken.
    pub bytes: u64,
    /// Answers of v2 by result code.
    pub codes: BTreeMap<i32, u64>,
    /// Closed by the bookie.
    pub closed: usize,
}

struct Consumer {
    link: Option<Link>,
    out: BytesMut,
    asked: u64,
    answered: u64,
    frames: Frames,
    allowance: u64,
    is_waiting: bool,
    is_shut: bool,
}

/// Counts frames in a stream without keeping them.
#[derive(Default)]
struct Frames {
    head: Vec<u8>,
    skip: u64,
}

/// Length prefix, header and result code.
const HEAD_SIZE_BYTES: usize = 12;

impl Frames {
    fn take(&mut self, mut bytes: &[u8], is_v3: bool, codes: &mut BTreeMap<i32, u64>) -> u64 {
        let mut count = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let part = (bytes.len() as u64).min(self.skip);
                bytes = &bytes[part as usize..];
                self.skip -= part;
                continue;
            }
            let part = bytes.len().min(HEAD_SIZE_BYTES - self.head.len());
            self.head.extend_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            if self.head.len() == HEAD_SIZE_BYTES {
                let number =
                    |at: usize| i32::from_be_bytes(self.head[at..at + 4].try_into().expect("four bytes"));
                if !is_v3 {
                    *codes.entry(number(8)).or_default() += 1;
                }
                self.skip = (number(0).max(8) - 8) as u64;
                self.head.clear();
                count += 1;
            }
        }
        count
    }
}

/// Runs until `stop`; gives what was seen. Connections close (with answers unread, so by reset) when this returns.
pub fn run(bookie: &Endpoint, spec: &ConsumerSpec, stop: &Arc<AtomicBool>) -> Result<Seen> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut seen = Seen::default();
    let mut all = Vec::new();
    for at in 0..spec.count {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let link = match bookie.connect(Duration::from_secs(2)) {
            Ok(link) => link,
            Err(_) => {
                seen.not_connected += 1;
                continue;
            }
        };
        link.set_nonblocking()?;
        epoll::add(&epoll, &link, EventData::new_u64(all.len() as u64), EventFlags::OUT | EventFlags::RDHUP)?;
        seen.connected += 1;
        all.push(Consumer {
            link: Some(link),
            out: BytesMut::new(),
            // so that they do not all ask for the same entries
            asked: at as u64 * 997,
            answered: at as u64 * 997,
            frames: Frames::default(),
            allowance: 0,
            is_waiting: true,
            is_shut: false,
        });
    }
    let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
    let mut scratch = vec![0; 64 << 10];
    let mut last_tick = now();
    while !stop.load(Ordering::Relaxed) {
        events.clear();
        let wait = Timespec { tv_sec: 0, tv_nsec: TICK as i64 };
        match epoll::wait(&epoll, spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let (flags, data) = (event.flags, event.data);
            let consumer = &mut all[data.u64() as usize];
            if flags.intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP) {
                consumer.link = None;
                seen.closed += 1;
            } else {
                ask(consumer, spec, &epoll, data.u64(), &mut seen)?;
            }
        }
        let at = now();
        if spec.drain_per_s > 0 && at - last_tick >= TICK {
            let each = spec.drain_per_s * (at - last_tick) / SECOND / spec.count as u64;
            last_tick = at;
            for (token, consumer) in all.iter_mut().enumerate() {
                consumer.allowance = (consumer.allowance + each).min(1 << 20);
                drain(consumer, spec, &mut scratch, &mut seen);
                if !consumer.is_waiting {
                    ask(consumer, spec, &epoll, token as u64, &mut seen)?;
                }
            }
        }
    }
    let unsent = |consumer: &Consumer| consumer.out.len() + consumer.link.as_ref().map_or(0, Link::unsent);
    seen.unsent = all.iter().map(|consumer| unsent(consumer) as u64).sum();
    Ok(seen)
}

/// Sends requests up to the pipeline's length, as far as the kernel takes them.
fn ask(
    consumer: &mut Consumer,
    spec: &ConsumerSpec,
    epoll: &OwnedFd,
    token: u64,
    seen: &mut Seen,
) -> Result<()> {
    let Some(link) = &mut consumer.link else { return Ok(()) };
    let all = spec.filled.ledgers * spec.filled.each;
    let mut is_blocked = loop {
        if consumer.out.is_empty() {
            let until = consumer.answered + spec.pipeline;
            for seq in consumer.asked..until.min(consumer.asked + CHUNK_REQUESTS) {
                let at = seq % all;
                let ledger = spec.filled.first + (at % spec.filled.ledgers) as i64;
                put_read(spec.is_v3, seq, ledger, (at / spec.filled.ledgers) as i64, &mut consumer.out);
                consumer.asked += 1;
                seen.sent += 1;
            }
        }
        let is_sending = !consumer.out.is_empty() && !consumer.is_shut;
        let sent = if is_sending { link.write(&consumer.out) } else { link.flush().map(|()| 0) };
        match sent {
            Ok(_) if !is_sending => break false,
            Ok(taken) => consumer.out.advance(taken),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => {
                consumer.link = None;
                seen.closed += 1;
                return Ok(());
            }
        }
    };
    if !is_blocked && spec.half_close && !consumer.is_shut {
        match link.end() {
            Ok(is_shut) => (consumer.is_shut, is_blocked) = (is_shut, !is_shut),
            Err(error) => eprintln!("  a consumer cannot close its sending side: {error}"),
        }
    }
    if is_blocked != consumer.is_waiting {
        let flags = if is_blocked { EventFlags::OUT | EventFlags::RDHUP } else { EventFlags::RDHUP };
        epoll::modify(epoll, &*link, EventData::new_u64(token), flags)?;
        consumer.is_waiting = is_blocked;
    }
    Ok(())
}

fn drain(consumer: &mut Consumer, spec: &ConsumerSpec, scratch: &mut [u8], seen: &mut Seen) {
    while consumer.allowance > 0 {
        let Some(link) = &mut consumer.link else { return };
        let want = scratch.len().min(consumer.allowance as usize);
        match link.read(&mut scratch[..want]) {
            Ok(0) => {
                consumer.link = None;
                seen.closed += 1;
            }
            Ok(count) => {
                let answers = consumer.frames.take(&scratch[..count], spec.is_v3, &mut seen.codes);
                consumer.answered += answers;
                consumer.allowance -= count as u64;
                seen.answers += answers;
                seen.bytes += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

impl Seen {
    /// For the result file.
    pub fn json(&self) -> Value {
        let codes: BTreeMap<String, u64> =
            self.codes.iter().map(|(code, n)| (code.to_string(), *n)).collect();
        json!({
            "connected": self.connected, "not_connected": self.not_connected, "sent": self.sent,
            "unsent_bytes": self.unsent, "answers": self.answers, "bytes": self.bytes, "codes": codes,
            "closed_by_bookie": self.closed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_whatever_the_pieces() {
        let mut stream = Vec::new();
        for (size, code) in [(20, 0), (8, 106), (1000, 0), (24, 2)] {
            stream.extend_from_slice(&i32::to_be_bytes(size));
            stream.extend_from_slice(&[2, 2, 0, 0]);
            stream.extend_from_slice(&i32::to_be_bytes(code));
            stream.extend(std::iter::repeat_n(9, size as usize - 8));
        }
        for piece in [1, 3, 12, 13, 5000] {
            let (mut frames, mut codes) = (Frames::default(), BTreeMap::new());
            let count: u64 = stream.chunks(piece).map(|bytes| frames.take(bytes, false, &mut codes)).sum();
            assert_eq!(count, 4);
            assert_eq!(codes, BTreeMap::from([(0, 2), (2, 1), (106, 1)]));
        }
    }
}
