//! One object under construction: which ledgers are read, what goes into the object in which order, and when it is finished.
//!
//! # Data flow
//! ```text
//! order ─► open up to so many ledgers ─► batches ─► ObjectBuilder ─► parts ─► store
//!             one of them is current: its batches go in at once; each other keeps one batch until its turn
//! ```
//!
//! # Invariants
//! 1. Entries of a ledger go in one behind the other, from the first that was ordered; nothing behind one that is missing.
//! 2. A ledger that delivers nothing for [`Limits::silence_max`], and an object that takes longer than [`Limits::time_max`], are
//!    cut where they are: entries that were delivered count.
//! 3. A ledger that stalls loses its turn while another has something to give. When it goes on, it has another extent in the
//!    object.
//! 4. Held are: one batch for each reader, the builder's block and tables, a part that is being filled, and one that is being
//!    written.
//!
//! # Not here   reading and writing (`shell`)

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{NewExtent, NewObject};
use bindery_tiering::object::{AppendError, Compression, ObjectBuilder, ObjectSummary};
use bindery_types::codec::crc32c;
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;

use crate::core::measure::BuildTimes;
use crate::core::{BuildOrder, Built, Left};

/// Ledgers of one object that are read from bookies at the same time.
pub const READERS: usize = 4;

/// Limits of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// It is finished when it has so many bytes.
    pub target_bytes: u64,
    /// Parts are exactly this long, but for the last.
    pub part_bytes: usize,
    /// How long a ledger may deliver nothing.
    pub silence_max: Duration,
    /// After this time without a batch of the current ledger, another has its turn.
    pub stall: Duration,
    /// How long the object may take.
    pub time_max: Duration,
    /// How blocks are stored.
    pub compression: Compression,
    /// Ledgers that are read at the same time. With one, they go in in the order in which they were ordered.
    pub readers: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            target_bytes: 64 << 20,
            part_bytes: 8 << 20,
            silence_max: Duration::from_secs(15),
            stall: Duration::from_millis(300),
            time_max: Duration::from_secs(60),
            compression: Compression::None,
            readers: READERS,
        }
    }
}

/// Something happened.
#[derive(Debug)]
pub enum Input {
    /// Time passed.
    Time,
    /// The next entries of a ledger, as they are stored.
    Batch {
        /// The ledger's place in the order.
        index: usize,
        /// The number of the first, and the entries.
        first: EntryId,
        /// Their bytes.
        entries: Vec<Bytes>,
    },
    /// A ledger cannot be read any further.
    Ended {
        /// The ledger's place in the order.
        index: usize,
        /// Why.
        why: String,
    },
    /// A part was written.
    Written,
    /// The object is complete in the store, with this entity tag.
    Completed {
        /// The tag, if the store gives one.
        tag: Option<String>,
    },
    /// Writing failed.
    WriteFailed(String),
    /// It is given up.
    Abandoned,
}

/// Something is to be done.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Read the ledger from an entry to another, and give the first batch.
    Open {
        /// The ledger's place in the order.
        index: usize,
        /// The ledger.
        ledger: LedgerId,
        /// The first entry.
        first: EntryId,
        /// The last entry.
        last: EntryId,
    },
    /// Give the next batch of a ledger that is open.
    Next(usize),
    /// Nothing of the ledger is needed any more.
    Close(usize),
    /// Write a part.
    Part(Vec<Bytes>),
    /// Write the last part, and complete the object.
    LastPart(Vec<Bytes>),
    /// The object is short: write all of it at once, under a key that must not be there.
    Whole(Vec<Bytes>),
    /// Give up what was written.
    Abort,
    /// All is done.
    Done(Built),
}

/// How far a ledger is.
enum Reader {
    /// Not begun.
    Waiting,
    /// A batch is on its way.
    Reading {
        next: EntryId,
        since: Duration,
    },
    /// A batch is here, which has not had its turn.
    Holding {
        first: EntryId,
        entries: Vec<Bytes>,
    },
    Over,
}

/// The reason for which the object waits, for the measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Read,
    Upload,
}

/// One object under construction.
pub struct Assembly {
    order: BuildOrder,
    limits: Limits,
    builder: Option<ObjectBuilder>,
    readers: Vec<Reader>,
    /// The next ledger to open.
    next: usize,
    /// Ledgers that are open.
    open: usize,
    /// Whose extent is open in the builder.
    current: Option<usize>,
    /// When its last batch came.
    current_at: Duration,
    /// Bytes of the object that are built and not yet given to an upload, in order.
    pending: Vec<Bytes>,
    pending_bytes: usize,
    is_writing: bool,
    has_parts: bool,
    /// All entries are in; the rest is written.
    summary: Option<ObjectSummary>,
    is_last_sent: bool,
    is_over: bool,
    left: BTreeMap<LedgerId, Left>,
    began: Duration,
    waits: (Waits, Duration),
    times: BuildTimes,
}

impl Assembly {
    /// An object that was ordered; `built_ms` is the time for its header.
    pub fn new(
        now: Duration,
        order: BuildOrder,
        cluster: ClusterId,
        built_ms: u64,
        limits: Limits,
    ) -> Assembly {
        let builder = ObjectBuilder::new(order.object, cluster, built_ms, limits.compression);
        Assembly {
            readers: order.ledgers.iter().map(|_| Reader::Waiting).collect(),
            builder: Some(builder),
            order,
            limits,
            next: 0,
            open: 0,
            current: None,
            current_at: now,
            pending: Vec::new(),
            pending_bytes: 0,
            is_writing: false,
            has_parts: false,
            summary: None,
            is_last_sent: false,
            is_over: false,
            left: BTreeMap::new(),
            began: now,
            waits: (Waits::Read, now),
            times: BuildTimes::default(),
        }
    }

    /// When [`Input::Time`] is due.
    pub fn wake_at(&self) -> Option<Duration> {
        if self.summary.is_some() || self.is_over {
            return None;
        }
        let silent = self.readers.iter().filter_map(|reader| match reader {
            Reader::Reading { since, .. } => Some(*since + self.limits.silence_max),
            Reader::Waiting | Reader::Holding { .. } | Reader::Over => None,
        });
        let has_other = self.readers.iter().any(|reader| matches!(reader, Reader::Holding { .. }));
        let stalled = has_other.then(|| self.current_at + self.limits.stall);
        silent.chain(stalled).chain([self.began + self.limits.time_max]).min()
    }

    /// How long putting entries in took, as the caller measured it.
    pub fn worked(&mut self, time: Duration) {
        self.times.build += time;
    }

    /// Takes something in.
    pub fn on_input(&mut self, now: Duration, input: Input, out: &mut Vec<Output>) {
        if self.is_over {
            return;
        }
        self.account(now);
        match input {
            Input::Time => {}
            Input::Batch { index, first, entries } => {
                if let Reader::Reading { next, .. } = &self.readers[index] {
                    match *next == first && !entries.is_empty() {
                        true => self.readers[index] = Reader::Holding { first, entries },
                        false => self.end(index, format!("entry {next} was to come, and {first} came"), out),
                    }
                }
            }
            Input::Ended { index, why } => self.end(index, why, out),
            Input::Written => self.is_writing = false,
            Input::Completed { tag } => return self.complete(tag.as_deref(), out),
            Input::WriteFailed(why) => return self.fail(why, out),
            Input::Abandoned => return self.fail("it was given up".to_owned(), out),
        }
        self.go_on(now, out);
    }

    fn go_on(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.summary.is_none() {
            self.give_up_the_silent(now, out);
            self.take_in(now, out);
            let is_out_of_time = now >= self.began + self.limits.time_max;
            let is_read = self.open == 0 && self.next >= self.readers.len();
            if is_read || is_out_of_time || self.is_full() {
                let is_cut = is_out_of_time && !is_read && !self.is_full();
                self.finish(if is_cut { Left::OutOfTime } else { Left::Full }, out);
            } else {
                self.open_more(now, out);
            }
        }
        self.write(out);
        let is_held_up = self.summary.is_some() || self.is_upload_behind();
        self.waits = (if is_held_up { Waits::Upload } else { Waits::Read }, now);
    }

    fn account(&mut self, now: Duration) {
        let (waits, since) = self.waits;
        let time = now.saturating_sub(since);
        match waits {
            Waits::Read => self.times.read += time,
            Waits::Upload => self.times.upload += time,
        }
        self.waits = (waits, now);
    }

    fn is_full(&self) -> bool {
        self.builder
            .as_ref()
            .is_some_and(|builder| !builder.is_empty() && builder.has_reached(self.limits.target_bytes))
    }

    /// Whether a part is full and the one before it is not written.
    fn is_upload_behind(&self) -> bool {
        self.is_writing && self.pending_bytes >= self.limits.part_bytes
    }

    fn open_more(&mut self, now: Duration, out: &mut Vec<Output>) {
        while self.open < self.limits.readers && self.next < self.readers.len() {
            let index = self.next;
            let wanted = &self.order.ledgers[index];
            self.readers[index] = Reader::Reading { next: wanted.first, since: now };
            out.push(Output::Open { index, ledger: wanted.ledger, first: wanted.first, last: wanted.last });
            self.next += 1;
            self.open += 1;
        }
    }

    /// Ends a ledger. Entries that it gave before count.
    fn end(&mut self, index: usize, why: String, out: &mut Vec<Output>) {
        if matches!(self.readers[index], Reader::Reading { .. } | Reader::Holding { .. }) {
            self.left.insert(self.order.ledgers[index].ledger, Left::Unread(why));
            self.close(index, out);
        }
    }

    fn close(&mut self, index: usize, out: &mut Vec<Output>) {
        self.readers[index] = Reader::Over;
        self.open -= 1;
        if self.current == Some(index) {
            self.current = None;
        }
        out.push(Output::Close(index));
    }

    fn give_up_the_silent(&mut self, now: Duration, out: &mut Vec<Output>) {
        for index in 0..self.next {
            if let Reader::Reading { since, .. } = self.readers[index]
                && now >= since + self.limits.silence_max
            {
                let why = format!("no entry came within {:?}", self.limits.silence_max);
                self.end(index, why, out);
            }
        }
    }

    /// Puts in what is here, as long as parts are written fast enough.
    fn take_in(&mut self, now: Duration, out: &mut Vec<Output>) {
        while !self.is_full() && !self.is_upload_behind() {
            let Some(index) = self.turn(now) else { return };
            let Reader::Holding { first, entries } =
                std::mem::replace(&mut self.readers[index], Reader::Waiting)
            else {
                unreachable!("whose turn it is has a batch")
            };
            self.put(now, index, first, entries, out);
            self.collect();
        }
    }

    /// Whose batch goes in next: the current ledger's, or another one's if that one stalls or there is none.
    fn turn(&self, now: Duration) -> Option<usize> {
        let holds = |index: &usize| matches!(self.readers[*index], Reader::Holding { .. });
        match self.current {
            Some(current) if holds(&current) => Some(current),
            Some(_) if now < self.current_at + self.limits.stall => None,
            _ => (0..self.next).find(holds),
        }
    }

    fn put(
        &mut self,
        now: Duration,
        index: usize,
        first: EntryId,
        entries: Vec<Bytes>,
        out: &mut Vec<Output>,
    ) {
        let wanted = &self.order.ledgers[index];
        let builder = self.builder.as_mut().expect("an object that is not finished has a builder");
        if self.current != Some(index) {
            let metadata = Bytes::from(bindery_metadata::codec::ledger::encode(&wanted.metadata));
            match builder.begin(wanted.ledger, first, metadata) {
                Ok(()) => self.current = Some(index),
                Err(error) => return self.refuse(index, &error, out),
            }
        }
        self.current_at = now;
        let mut next = first;
        for bytes in entries {
            let crc = crc32c(&[&bytes]);
            let builder = self.builder.as_mut().expect("it was just there");
            if let Err(error) = builder.append(bytes, crc) {
                return self.refuse(index, &error, out);
            }
            let is_full = builder.has_reached(self.limits.target_bytes);
            if next >= self.order.ledgers[index].last {
                return self.close(index, out);
            }
            next = EntryId::new(next.get() + 1).expect("below the last one");
            if is_full {
                // The rest is left to `finish`.
                self.readers[index] = Reader::Reading { next, since: now };
                return;
            }
        }
        self.readers[index] = Reader::Reading { next, since: now };
        out.push(Output::Next(index));
    }

    /// The builder does not take an entry, or a ledger.
    fn refuse(&mut self, index: usize, error: &AppendError, out: &mut Vec<Output>) {
        let left = match error {
            AppendError::Full => Left::Full,
            AppendError::OtherEntry { .. }
            | AppendError::TooLarge { .. }
            | AppendError::MetadataTooLarge { .. } => Left::Unread(error.to_string()),
        };
        let is_full = left == Left::Full;
        self.left.insert(self.order.ledgers[index].ledger, left);
        self.close(index, out);
        if is_full {
            self.finish(Left::Full, out);
        }
    }

    /// Moves the bytes that the builder has finished to `pending`. Once it is finished there is nothing left to move.
    fn collect(&mut self) {
        if let Some(builder) = &mut self.builder {
            for chunk in builder.take() {
                self.pending_bytes += chunk.len();
                self.pending.push(chunk);
            }
        }
    }

    /// Nothing more goes in, for this reason.
    fn finish(&mut self, why: Left, out: &mut Vec<Output>) {
        let Some(builder) = self.builder.take() else { return };
        for index in 0..self.readers.len() {
            let is_begun = match self.readers[index] {
                Reader::Over => continue,
                Reader::Waiting => index < self.next,
                Reader::Reading { .. } | Reader::Holding { .. } => true,
            };
            self.left.entry(self.order.ledgers[index].ledger).or_insert_with(|| why.clone());
            self.readers[index] = Reader::Over;
            if is_begun {
                out.push(Output::Close(index));
            }
        }
        (self.open, self.current) = (0, None);
        if builder.is_empty() {
            self.is_over = true;
            out.push(Output::Done(self.built(Ok(None))));
            return;
        }
        let (chunks, summary) = builder.finish();
        for chunk in chunks {
            self.pending_bytes += chunk.len();
            self.pending.push(chunk);
        }
        self.summary = Some(summary);
    }

    /// Sends the next part, if it is full or the last, and none is on its way.
    fn write(&mut self, out: &mut Vec<Output>) {
        if self.is_writing || self.is_last_sent || self.is_over {
            return;
        }
        let is_last = self.summary.is_some() && self.pending_bytes <= self.limits.part_bytes;
        if !is_last && self.pending_bytes < self.limits.part_bytes {
            return;
        }
        self.is_writing = true;
        if is_last {
            self.is_last_sent = true;
            self.pending_bytes = 0;
            let chunks = std::mem::take(&mut self.pending);
            out.push(if self.has_parts { Output::LastPart(chunks) } else { Output::Whole(chunks) });
            return;
        }
        self.has_parts = true;
        let (mut part, mut room) = (Vec::new(), self.limits.part_bytes);
        let mut rest = std::mem::take(&mut self.pending).into_iter();
        for mut chunk in rest.by_ref() {
            if chunk.len() >= room {
                part.push(chunk.split_to(room));
                self.pending.extend((!chunk.is_empty()).then_some(chunk));
                break;
            }
            room -= chunk.len();
            part.push(chunk);
        }
        self.pending.extend(rest);
        self.pending_bytes -= self.limits.part_bytes;
        out.push(Output::Part(part));
    }

    fn complete(&mut self, tag: Option<&str>, out: &mut Vec<Output>) {
        let Some(summary) = self.summary.take() else { return };
        self.is_over = true;
        let object = ObjectRef {
            id: summary.object,
            length_bytes: summary.size_bytes,
            footer_offset: summary.trailer.footer_offset,
            footer_crc: summary.trailer.footer_crc32c,
            etag_crc: tag.map_or(0, |tag| crc32c(&[tag.as_bytes()])),
        };
        let created: HashMap<LedgerId, Option<i64>> =
            self.order.ledgers.iter().map(|wanted| (wanted.ledger, wanted.metadata.created_ms)).collect();
        let extents = summary.footer.extents.iter().map(|extent| NewExtent {
            ledger: extent.ledger,
            first: extent.first,
            last: extent.last,
            bytes: extent.body_bytes,
            created_ms: created.get(&extent.ledger).copied().flatten(),
        });
        let new = NewObject { object, extents: extents.collect() };
        out.push(Output::Done(self.built(Ok(Some(new)))));
    }

    fn fail(&mut self, why: String, out: &mut Vec<Output>) {
        self.is_over = true;
        for index in 0..self.next {
            if !matches!(self.readers[index], Reader::Over) {
                out.push(Output::Close(index));
            }
        }
        if self.has_parts {
            out.push(Output::Abort);
        }
        out.push(Output::Done(self.built(Err(why))));
    }

    fn built(&mut self, outcome: Result<Option<NewObject>, String>) -> Built {
        let left = std::mem::take(&mut self.left).into_iter().collect();
        let times = BuildTimes { read: self.times.read.saturating_sub(self.times.build), ..self.times };
        Built { outcome, left, times }
    }
}

#[cfg(test)]
mod tests;
