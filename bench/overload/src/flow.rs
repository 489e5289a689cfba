//! A class of requests over connections of its own: when each is due, what is under way, what became of it.
//!
//! In open loop a request belongs to the moment it was due, whether or not the bookie, or this program, was ready for it.

use crate::clock::{MILLI, SECOND};
use crate::conn::Conn;
use crate::link::Endpoint;
use crate::stats::{Outcome, Phases, Stats};
use crate::work::{Answer, Filled, Requests, Work};
use anyhow::{Context, Result};
use bindery_wire::ErrorCode;
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Encoded and unsent bytes of a connection above which further requests wait as what they are.
const OUT_BYTES_MAX: usize = 256 << 10;
/// At high rates a connection has a few requests in a row, as a client that batches would send them.
const BURSTS_PER_S: f64 = 20_000.0;
const RECONNECT_AFTER: u64 = 200 * MILLI;

/// When requests are due.
#[derive(Debug, Clone)]
pub enum Pace {
    /// So many each second over all connections, each step until its end.
    Open(Vec<(u64, f64)>),
    /// So many under way on each connection.
    Closed(usize),
    /// So many at once on each connection, and again when all are answered; each such group counts as one.
    Groups(usize),
    /// As another flow's adds are acknowledged.
    Followed,
    /// So many under way on each connection until each ledger has so many entries.
    Fill {
        /// Entries of each ledger.
        each: u64,
        /// Adds under way on each connection.
        under_way: usize,
    },
}

/// The settings of a flow.
#[derive(Debug, Clone)]
pub struct FlowSpec {
    /// Name of the class.
    pub name: &'static str,
    /// The requests.
    pub work: Work,
    /// When they are sent.
    pub pace: Pace,
    /// Protocol 3 instead of 2.
    pub is_v3: bool,
    /// Connections.
    pub connections: usize,
    /// The lowest ledger id of adds.
    pub first: i64,
    /// The entries that reads ask for.
    pub filled: Filled,
    /// Bytes of an added entry as stored.
    pub entry_size_bytes: usize,
    /// After so long without an answer a request has failed.
    pub timeout: u64,
    /// Requests are due only between these moments.
    pub window: (u64, u64),
}

/// Always.
pub const ALWAYS: (u64, u64) = (0, u64::MAX);

/// Requests in order of their due times; those that ended are 0.
#[derive(Default)]
struct Slots {
    base: u64,
    dues: VecDeque<u64>,
    live: usize,
    /// The first one that is not encoded.
    next: u64,
    /// Ids of followed entries, beside `dues`.
    ids: VecDeque<(i64, i64)>,
    by_ids: HashMap<(i64, i64), u64>,
    group_bytes: u64,
    group_refusal: Option<ErrorCode>,
}

struct Line {
    conn: Option<Conn>,
    reconnect_at: u64,
    slots: Slots,
}

/// A class of requests.
pub struct Flow {
    spec: FlowSpec,
    bookie: Endpoint,
    index: usize,
    requests: Requests,
    lines: Vec<Line>,
    begin: u64,
    next_due: u64,
    turn: usize,
    /// Requests that the connection whose turn it is has had.
    burst: usize,
    /// Their outcomes.
    pub stats: Stats,
    /// Connections that broke or could not be made again.
    pub broken: u64,
    /// Adds just acknowledged, when somebody follows.
    pub acknowledged: Option<Vec<(i64, i64)>>,
    unsent_max: u64,
}

impl Flow {
    /// Connects.
    pub fn new(
        spec: FlowSpec,
        index: usize,
        bookie: Endpoint,
        epoll: &OwnedFd,
        begin: u64,
        phases: Phases,
    ) -> Result<Flow> {
        let requests = Requests::new(
            spec.work,
            spec.is_v3,
            spec.first,
            spec.filled,
            spec.connections,
            spec.entry_size_bytes,
        );
        let mut lines = Vec::new();
        for at in 0..spec.connections {
            let token = (index as u64) << 32 | at as u64;
            let conn = Conn::connect(&bookie, epoll, token)
                .with_context(|| format!("connect to {}", bookie.address))?;
            lines.push(Line { conn: Some(conn), reconnect_at: 0, slots: Slots::default() });
        }
        let stats = Stats::new(begin, phases, spec.connections);
        Ok(Flow {
            spec,
            bookie,
            index,
            requests,
            lines,
            begin,
            next_due: begin,
            turn: 0,
            burst: 0,
            stats,
            broken: 0,
            acknowledged: None,
            unsent_max: u64::MAX,
        })
    }

    /// Forgets what was and begins at `begin`. Nothing may be under way.
    pub fn restart(&mut self, begin: u64, phases: Phases) {
        assert_eq!(self.live(), 0, "nothing is under way");
        self.stats = Stats::new(begin, phases, self.lines.len());
        (self.begin, self.next_due) = (begin, begin);
    }

    /// Gives up, from now on, requests that the kernel has not taken this long after they were due: a client that
    /// queues without bound, oldest first, would send only requests that are about to fail, whatever the bookie does.
    pub fn set_unsent_max(&mut self, unsent_max: u64) {
        self.unsent_max = unsent_max;
    }

    /// Another timeout from now on.
    pub fn set_timeout(&mut self, timeout: u64) {
        self.spec.timeout = timeout;
    }

    /// Another pace from now on.
    pub fn set_pace(&mut self, pace: Pace) {
        self.spec.pace = pace;
    }

    /// The class.
    pub fn name(&self) -> &'static str {
        self.spec.name
    }

    /// Connections.
    pub fn connections(&self) -> usize {
        self.lines.len()
    }

    /// When this flow wants to be called again without an event.
    pub fn next_due(&self) -> Option<u64> {
        matches!(self.spec.pace, Pace::Open(_)).then_some(self.next_due)
    }

    /// Requests that are due and have not ended.
    pub fn live(&self) -> usize {
        self.lines.iter().map(|line| line.slots.live).sum()
    }

    /// Makes what is due until `now` due, none at or after `end`. Marks lines with news in `touched`.
    pub fn make_due(&mut self, now: u64, end: u64, touched: &mut Vec<usize>) {
        if now < self.begin.max(self.spec.window.0) {
            return;
        }
        let end = end.min(self.spec.window.1);
        match &self.spec.pace {
            Pace::Open(steps) => {
                while self.next_due <= now && self.next_due < end {
                    let due = self.next_due;
                    let rate = steps.iter().find(|(until, _)| due < *until).map_or(0.0, |(_, rate)| *rate);
                    if rate <= 0.0 {
                        self.next_due += MILLI;
                        continue;
                    }
                    let at = self.turn;
                    self.burst += 1;
                    if self.burst >= (rate / BURSTS_PER_S) as usize {
                        self.turn = (self.turn + 1) % self.lines.len();
                        self.burst = 0;
                    }
                    self.next_due += ((SECOND as f64 / rate) as u64).max(1);
                    self.stats.on_due(due, now);
                    self.lines[at].slots.push(due);
                    touched.push(at);
                }
            }
            Pace::Closed(count) => {
                let count = (*count).min(self.requests.under_way_max());
                for (at, line) in self.lines.iter_mut().enumerate() {
                    if now < end && line.slots.live < count {
                        for _ in line.slots.live..count {
                            self.stats.on_due(now, now);
                            line.slots.push(now);
                        }
                        touched.push(at);
                    }
                }
            }
            Pace::Groups(count) => {
                for (at, line) in self.lines.iter_mut().enumerate() {
                    if now < end && line.slots.live == 0 {
                        self.stats.on_due(now, now);
                        (0..*count).for_each(|_| line.slots.push(now));
                        touched.push(at);
                    }
                }
            }
            Pace::Followed => {}
            Pace::Fill { under_way, .. } => {
                let under_way = *under_way;
                for at in 0..self.lines.len() {
                    let all = self.fill_of(at);
                    let slots = &mut self.lines[at].slots;
                    while slots.live < under_way && slots.base + (slots.dues.len() as u64) < all {
                        self.stats.on_due(now, now);
                        slots.push(now);
                        if touched.last() != Some(&at) {
                            touched.push(at);
                        }
                    }
                }
            }
        }
    }

    /// Adds that a connection makes to fill its ledgers.
    fn fill_of(&self, at: usize) -> u64 {
        match (&self.spec.pace, self.spec.work) {
            (Pace::Fill { each, .. }, Work::Add { ledgers }) => {
                each * (ledgers - at as u64).div_ceil(self.spec.connections as u64)
            }
            _ => u64::MAX,
        }
    }

    /// Nothing more will be due, whatever the time.
    pub fn is_exhausted(&self) -> bool {
        let made = |line: &Line| line.slots.base + line.slots.dues.len() as u64;
        self.lines.iter().enumerate().all(|(at, line)| made(line) >= self.fill_of(at))
    }

    /// A read of an entry that was just acknowledged.
    pub fn follow(&mut self, ids: (i64, i64), now: u64) {
        let at = self.turn;
        self.turn = (self.turn + 1) % self.lines.len();
        self.stats.on_due(now, now);
        let slots = &mut self.lines[at].slots;
        slots.by_ids.insert(ids, slots.base + slots.dues.len() as u64);
        slots.ids.push_back(ids);
        slots.push(now);
        self.pump_at(at, now);
    }

    fn pump_at(&mut self, at: usize, now: u64) {
        let Line { conn: Some(conn), slots, .. } = &mut self.lines[at] else { return };
        while conn.tail.is_empty()
            && conn.out.len() < OUT_BYTES_MAX
            && slots.next < slots.base + slots.dues.len() as u64
        {
            let place = (slots.next - slots.base) as usize;
            let due = slots.dues[place];
            if due != 0 && now.saturating_sub(due) > self.unsent_max {
                slots.dues[place] = 0;
                slots.live -= 1;
                self.stats.on_end(due, now.max(due + self.spec.timeout), at, Outcome::Timeout);
            }
            if slots.dues[place] != 0 {
                let ids = slots.ids.get(place).copied();
                conn.tail = self.requests.encode(at, slots.next, ids, &mut conn.out);
            }
            slots.next += 1;
        }
    }

    /// Encodes and sends what there is on a line.
    pub fn pump(&mut self, at: usize, now: u64, epoll: &OwnedFd) {
        self.pump_at(at, now);
        loop {
            let Some(conn) = &mut self.lines[at].conn else { return };
            if conn.flush(epoll).is_err() {
                self.break_line(at, now);
                return;
            }
            if conn.unsent() > 0 {
                return;
            }
            self.pump_at(at, now);
            if self.lines[at].conn.as_ref().is_none_or(|conn| conn.unsent() == 0) {
                return;
            }
        }
    }

    fn break_line(&mut self, at: usize, now: u64) {
        let line = &mut self.lines[at];
        if line.conn.take().is_none() {
            return;
        }
        self.broken += 1;
        line.reconnect_at = now + RECONNECT_AFTER;
        let sent = (line.slots.next - line.slots.base) as usize;
        for place in 0..sent.min(line.slots.dues.len()) {
            let due = std::mem::take(&mut line.slots.dues[place]);
            if due != 0 {
                line.slots.live -= 1;
                self.stats.on_end(due, now, at, Outcome::Lost);
            }
        }
        line.slots.trim();
    }

    /// Reads what came on a line.
    pub fn on_readable(&mut self, at: usize, scratch: &mut [u8], now: u64) {
        let Flow { lines, requests, stats, spec, acknowledged, .. } = self;
        let Line { conn: Some(conn), slots, .. } = &mut lines[at] else { return };
        let is_group = matches!(spec.pace, Pace::Groups(_));
        let result = conn.read(scratch, |payload| {
            let Answer { mut seq, code, bytes } = requests.decode(at, slots.base, payload)?;
            if spec.work == Work::Follow && !spec.is_v3 {
                let header = payload.get(8..24).context("ids")?;
                let number = |range: std::ops::Range<usize>| {
                    i64::from_be_bytes(header[range].try_into().expect("eight bytes"))
                };
                seq = slots.by_ids.get(&(number(0..8), number(8..16))).copied();
            }
            let due = seq.and_then(|seq| seq.checked_sub(slots.base)).map(|place| place as usize);
            let Some(due) = due.and_then(|place| slots.dues.get_mut(place)).filter(|due| **due != 0) else {
                stats.late += 1;
                return Ok(());
            };
            let due = std::mem::take(due);
            slots.live -= 1;
            if let (Some(list), Work::Add { .. }, ErrorCode::Ok) = (acknowledged.as_mut(), spec.work, code) {
                list.push(requests.ids_of(at, seq.unwrap_or_default()));
            }
            if is_group {
                slots.group_bytes += bytes;
                if code != ErrorCode::Ok {
                    slots.group_refusal = Some(code);
                }
                if slots.live > 0 {
                    return Ok(());
                }
            }
            let bytes = if is_group { std::mem::take(&mut slots.group_bytes) } else { bytes };
            let code = slots.group_refusal.take().unwrap_or(code);
            let outcome = if code == ErrorCode::Ok { Outcome::Ok(bytes) } else { Outcome::Refused(code) };
            stats.on_end(due, now, at, outcome);
            Ok(())
        });
        lines[at].slots.trim();
        if result.is_err() {
            self.break_line(at, now);
        }
    }

    /// Ends what is too old, and connects again where a connection broke.
    pub fn sweep(&mut self, now: u64, epoll: &OwnedFd) {
        for at in 0..self.lines.len() {
            let line = &mut self.lines[at];
            while let Some(due) = line.slots.dues.front().copied() {
                if due != 0 {
                    if due + self.spec.timeout > now {
                        break;
                    }
                    line.slots.dues[0] = 0;
                    line.slots.live -= 1;
                    self.stats.on_end(due, now, at, Outcome::Timeout);
                }
                line.slots.trim();
            }
            if line.conn.is_none() && now >= line.reconnect_at {
                let token = (self.index as u64) << 32 | at as u64;
                line.conn = Conn::connect_within(&self.bookie, epoll, token, Duration::from_millis(100)).ok();
                line.reconnect_at = now + 5 * RECONNECT_AFTER;
                self.pump(at, now, epoll);
            }
        }
    }

    /// Ends everything: what has no answer now never had one.
    pub fn give_up(&mut self, now: u64) {
        for (at, line) in self.lines.iter_mut().enumerate() {
            line.conn = None;
            line.slots.base += line.slots.dues.len() as u64;
            line.slots.next = line.slots.base;
            line.slots.ids.clear();
            line.slots.by_ids.clear();
            for due in line.slots.dues.drain(..).filter(|due| *due != 0) {
                self.stats.on_end(due, now.max(due + self.spec.timeout), at, Outcome::Timeout);
            }
            line.slots.live = 0;
        }
    }

    /// Their outcomes, with the settings of the flow.
    pub fn json(&self) -> serde_json::Value {
        let mut value = self.stats.json();
        value["connections"] = self.spec.connections.into();
        value["protocol"] = if self.spec.is_v3 { "v3" } else { "v2" }.into();
        value["entry_size_bytes"] = self.requests.entry_size_bytes().into();
        value["broken"] = self.broken.into();
        value
    }
}

impl Slots {
    fn push(&mut self, due: u64) {
        self.dues.push_back(due.max(1));
        self.live += 1;
    }

    /// Forgets ended ones at the front.
    fn trim(&mut self) {
        while self.dues.front() == Some(&0) {
            self.dues.pop_front();
            if let Some(ids) = self.ids.pop_front() {
                self.by_ids.remove(&ids);
            }
            self.base += 1;
        }
        self.next = self.next.max(self.base);
    }
}
