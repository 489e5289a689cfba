//! What each request asks for: from a decoded frame to the engine, the read queue or an answer at once (protocol
//! reference, sections 1.4, 2.4 to 2.6).

use crate::auth::Need;
use crate::connection::ingest::Frames;
use crate::connection::reads::long_poll::PollRead;
use crate::connection::request::{ReadKind, ReadRequest, Reply, code};
use crate::connection::{CloseReason, Connection};
use crate::metrics::Metrics;
use crate::read_class::ReadClass;
use crate::shared::Shared;
use bindery_engine::{Add, EXPLICIT_LAC_BYTES_MAX, Poll, Refusal, Waiter};
use bindery_types::{EntryId, LedgerId, MasterKey};
use bindery_wire::entry::{EntryHeader, ExplicitLac};
use bindery_wire::frame::LENGTH_PREFIX_SIZE_BYTES;
use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use bindery_wire::v3::{self, Operation, proto, response};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::time::Duration;

/// Room for a v2 AUTH answer.
const V2_AUTH_ANSWER_BYTES: usize = 64;

/// Whether a read fences.
enum Fencing {
    No,
    /// With the key that was presented.
    With(MasterKey),
    /// Asked for without a usable key: unauthorised.
    WithoutKey,
    /// The peer's roles do not allow this read: unauthorised.
    Forbidden,
}

/// The remaining work for a frame; the adds before it decide when it is done.
pub(super) enum Next<'f> {
    /// Nothing: it is answered, or waits for its turn to be.
    Done,
    /// To be placed behind what was added to its ledger. Its answer is promised.
    Add(Add<'f>),
    /// To be done behind the adds of its ledger. Nothing is promised.
    WriteLac(u64, WriteLac<'f>),
    /// As well.
    Force(u64, LedgerId),
}

/// A WRITE_LAC that can be done.
pub(super) struct WriteLac<'f> {
    pub(super) ledger: LedgerId,
    key: MasterKey,
    lac: Option<EntryId>,
    body: &'f [u8],
}

/// The place in `payload` of what was decoded from `copy`, whose bytes are the same, and shares them.
fn found_again<'f>(decoded: &Bytes, copy: &Bytes, payload: &'f [u8]) -> &'f [u8] {
    // Nothing may live anywhere.
    if decoded.is_empty() {
        return &[];
    }
    let begin = decoded.as_ptr() as usize - copy.as_ptr() as usize;
    &payload[begin..begin + decoded.len()]
}

impl<'f> Frames<'_, 'f> {
    pub(super) fn on_v2(&mut self, packet: &'f [u8]) -> Result<Next<'f>, CloseReason> {
        let request = match v2::Request::decode(packet) {
            Ok(request) => request,
            Err(error) => {
                let Some(refusal) = error.refusal() else {
                    return Err(CloseReason::BadFrame(error.to_string()));
                };
                let promised = V2_ANSWER_BYTES_MAX;
                self.promise(promised);
                self.connection.outbox.answer(promised, |out| refusal.encode(out));
                return Ok(Next::Done);
            }
        };
        let may = self.may(Need::of_v2(&request));
        match request {
            v2::Request::Add(add) => {
                let reply = Reply::V2 { version: add.version };
                self.promise(reply.add_answer_bytes());
                if !may {
                    let (ledger, entry) = (add.ledger_id, add.entry_id);
                    return Ok(self.refuse_add(reply, ledger, entry, ErrorCode::Unauthorized));
                }
                let header = EntryHeader {
                    ledger_id: add.ledger_id,
                    entry_id: add.entry_id,
                    last_add_confirmed: add.last_add_confirmed,
                };
                let is_recovery = add.flags.contains(v2::Flags::RECOVERY_ADD);
                let is_high = add.flags.contains(v2::Flags::HIGH_PRIORITY);
                return Ok(self.on_add(reply, header, Some(add.master_key), add.body, is_recovery, is_high));
            }
            v2::Request::Read(read) => {
                let reply = Reply::V2 { version: read.version };
                let fencing = fencing_of(may, read.flags, read.master_key);
                let is_high = read.flags.contains(v2::Flags::HIGH_PRIORITY);
                self.on_read(reply, ReadKind::Entry, read.ledger_id, read.entry_id, fencing, is_high);
            }
            v2::Request::BatchRead(batch) => {
                let reply = Reply::V2 { version: batch.version };
                let fencing = fencing_of(may, batch.flags, batch.master_key);
                let is_high = batch.flags.contains(v2::Flags::HIGH_PRIORITY);
                let kind = ReadKind::Batch(Box::new(batch));
                self.on_read(reply, kind, batch.ledger_id, batch.start_entry_id, fencing, is_high);
            }
            v2::Request::Auth(auth) => {
                if let Err(error) = v3::decode_auth_message(auth.message) {
                    return Err(CloseReason::BadFrame(error.to_string()));
                }
                self.promise(V2_AUTH_ANSWER_BYTES);
                let mut framed = BytesMut::new();
                v3::put_frame(&v3::auth_disabled_message(), &mut framed);
                // Inside a v2 packet the message stands without a length of its own.
                let message = framed.split_off(LENGTH_PREFIX_SIZE_BYTES);
                self.connection.outbox.answer(V2_AUTH_ANSWER_BYTES, |out| {
                    v2::put_auth_response(auth.version, &message, out);
                });
            }
        }
        Ok(Next::Done)
    }

    pub(super) fn on_v3(&mut self, payload: &'f [u8]) -> Result<Next<'f>, CloseReason> {
        match v3::HotRequest::parse(payload) {
            Some(v3::HotRequest::Add(add)) => Ok(self.on_v3_add(add)),
            Some(v3::HotRequest::Read(read)) => {
                let (reply, is_high) = (Reply::V3 { txn: read.txn_id }, read.priority > 0);
                let fencing = if self.may(Need::Read) { Fencing::No } else { Fencing::Forbidden };
                self.on_read(reply, ReadKind::Entry, read.ledger_id, read.entry_id, fencing, is_high);
                Ok(Next::Done)
            }
            None => self.on_other_v3(payload),
        }
    }

    /// Everything that is not an add or a plain read as clients send them.
    fn on_other_v3(&mut self, payload: &'f [u8]) -> Result<Next<'f>, CloseReason> {
        // The copy lets the decoder share bytes; those that are needed later are then found again in the read buffer. It
        // is in no pool: it is gone when this returns, so that there is one at a time for each thread.
        let copy = Bytes::copy_from_slice(payload);
        let request = match v3::Request::decode(copy.clone()) {
            Ok(request) => request,
            Err(error) => {
                let Some(refusal) = error.refusal() else {
                    return Err(CloseReason::BadFrame(error.to_string()));
                };
                self.answer_v3(refusal);
                return Ok(Next::Done);
            }
        };
        // `on_v3_add` checks adds, because most of them do not come here.
        let is_add = matches!(request.operation, Operation::Add(_));
        if !is_add && !self.may(Need::of_v3(&request.operation)) {
            self.answer_v3(&request.failure(ErrorCode::Unauthorized));
            return Ok(Next::Done);
        }
        let reply = Reply::V3 { txn: request.txn_id };
        let is_high = request.priority > 0;
        match &request.operation {
            Operation::Add(add) => {
                return Ok(self.on_v3_add(v3::HotAdd {
                    txn_id: request.txn_id,
                    priority: request.priority,
                    ledger_id: add.ledger_id,
                    entry_id: add.entry_id,
                    master_key: found_again(&add.master_key, &copy, payload),
                    body: found_again(&add.body, &copy, payload),
                    write_flags: add.write_flags,
                    is_recovery: add.is_recovery_add(),
                }));
            }
            Operation::WriteLac(write) => {
                let body = found_again(&write.body, &copy, payload);
                return Ok(self.check_write_lac(request.txn_id, write, body));
            }
            Operation::ForceLedger(force) => {
                let (txn, raw_ledger) = (request.txn_id, force.ledger_id);
                if let Some(ledger) = LedgerId::new(raw_ledger) {
                    return Ok(Next::Force(txn, ledger));
                }
                self.answer_v3(&response::force_ledger(txn, ErrorCode::BadRequest, raw_ledger));
            }
            Operation::Read(read) if read.is_long_poll() => self.on_long_poll(request.txn_id, read),
            Operation::Read(read) => {
                let fencing = match (read.is_fencing(), read.key()) {
                    (false, _) => Fencing::No,
                    (true, Some(key)) => Fencing::With(key),
                    (true, None) => Fencing::WithoutKey,
                };
                // Also with ENTRY_PIGGYBACK, which means nothing without previousLAC: Java serves an ordinary read.
                self.on_read(reply, ReadKind::Entry, read.ledger_id, read.entry_id, fencing, is_high);
            }
            Operation::ReadLac(read) => {
                self.on_read(reply, ReadKind::Lac, read.ledger_id, -1, Fencing::No, is_high);
            }
            Operation::GetListOfEntries(list) => {
                self.on_read(reply, ReadKind::List, list.ledger_id, -1, Fencing::No, is_high);
            }
            Operation::GetBookieInfo(info) => {
                self.on_read(reply, ReadKind::Info(*info), 0, -1, Fencing::No, is_high);
            }
            Operation::Auth(_) => {
                self.answer_v3(&response::auth(request.txn_id, v3::auth_disabled_message()));
            }
            // One that may begin TLS does not come here ([`crate::connection::ingest`], start_tls invariant 1).
            Operation::StartTls => self.answer_v3(&request.failure(ErrorCode::BadRequest)),
            Operation::ReconcileLedgers(message) => match self.reconcile(request.txn_id, message) {
                Ok(()) => {}
                Err(code) => self.answer_v3(&request.failure(code)),
            },
        }
        Ok(Next::Done)
    }

    fn on_v3_add(&mut self, add: v3::HotAdd<'f>) -> Next<'f> {
        let reply = Reply::V3 { txn: add.txn_id };
        self.promise(reply.add_answer_bytes());
        if !self.may(Need::Write) {
            return self.refuse_add(reply, add.ledger_id, add.entry_id, ErrorCode::Unauthorized);
        }
        match EntryHeader::of(add.body) {
            // Storage uses the ids inside the body, the answer those of the message: they must agree.
            Ok(header) if (header.ledger_id, header.entry_id) == (add.ledger_id, add.entry_id) => {
                let key = MasterKey::from_slice(add.master_key);
                self.on_add(reply, header, key, add.body, add.is_recovery, add.priority > 0)
            }
            _ => self.refuse_add(reply, add.ledger_id, add.entry_id, ErrorCode::BadRequest),
        }
    }

    fn on_add(
        &mut self,
        reply: Reply,
        header: EntryHeader,
        key: Option<MasterKey>,
        body: &'f [u8],
        is_recovery: bool,
        is_high_priority: bool,
    ) -> Next<'f> {
        let (raw_ledger, raw_entry) = (header.ledger_id, header.entry_id);
        let Some(key) = key else {
            return self.refuse_add(reply, raw_ledger, raw_entry, ErrorCode::Unauthorized);
        };
        // Negative ids name journal records of Java, not entries. Entries that could never be sent back are for the engine
        // to refuse: what is answered here overtakes older adds, and those may be of the same key (IB23).
        let ids = (LedgerId::new(raw_ledger), EntryId::new(raw_entry));
        let (Some(ledger), Some(entry)) = ids else {
            return self.refuse_add(reply, raw_ledger, raw_entry, ErrorCode::BadRequest);
        };
        Next::Add(Add {
            origin: reply.origin(self.connection.id, self.received_ns),
            ledger,
            entry,
            last_add_confirmed: EntryId::new(header.last_add_confirmed),
            key,
            body,
            is_recovery,
            is_high_priority,
        })
    }

    fn refuse_add(&self, reply: Reply, ledger: i64, entry: i64, code: ErrorCode) -> Next<'f> {
        self.connection
            .outbox
            .answer(reply.add_answer_bytes(), |out| reply.put_add(code, ledger, entry, out));
        self.shared.metrics.add_entry.record(Metrics::NO_JOURNAL, self.received_ns, 0, false);
        Next::Done
    }

    fn on_read(
        &mut self,
        reply: Reply,
        kind: ReadKind,
        raw_ledger: i64,
        entry: i64,
        fencing: Fencing,
        is_high: bool,
    ) {
        let promised = reply.answer_bytes();
        self.promise(promised);
        let is_fence = matches!(fencing, Fencing::With(_) | Fencing::WithoutKey);
        self.received.reads += 1;
        self.read_room = self.read_room.saturating_sub(1);
        self.received.recovery += u64::from(is_fence);
        let ledger = LedgerId::new(raw_ledger);
        let mut request = ReadRequest {
            seq: self.connection.next_seq(),
            kind,
            ledger: ledger.unwrap_or(LedgerId::MIN),
            entry,
            reply,
            received_ns: self.received_ns,
            started_ns: 0,
            waits_since_ns: self.received_ns,
            promised,
            is_fence,
            class: ReadClass::of(is_high || is_fence),
            size_hint: 0,
            wait_outcome: None,
            tier: None,
            is_from_tier: false,
        };
        // -1 asks for the last entry where one entry is meant; a batch starts at an entry.
        let lowest = if matches!(request.kind, ReadKind::Batch(_)) { 0 } else { -1 };
        if ledger.is_none() || entry < lowest {
            self.connection.outbox.answer(promised, |out| {
                put_failure_raw(&request, raw_ledger, ErrorCode::BadRequest, out);
            });
            return;
        }
        if let Fencing::WithoutKey | Fencing::Forbidden = fencing {
            // Refused in its turn: it must not overtake an older read of its key.
            request.wait_outcome = Some(Err(Refusal::WrongKey));
            self.connection.push_read(self.shared, request);
            return;
        }
        let (ledger, seq) = (request.ledger, request.seq);
        if let Fencing::With(key) = fencing {
            // Requests received before the fence are ahead of it in the journal, as far as there is room. Reads and
            // adds are not ordered (section 1.7): an add that waits for room has not been acknowledged, and meets the
            // fence.
            self.hand_over_all();
            if !self.connection.push_read(self.shared, request) {
                return;
            }
            let waiter = self.waiter(move |_, connection, outcome| {
                if connection.reads.lock().fence_done(seq, outcome) {
                    connection.wake_sender.notify_one();
                }
            });
            if let Some(waiter) = self.shared.engine.fence_or_ask(ledger, key, waiter) {
                let fences = &self.shared.parked_adds.fences;
                fences.push(self.connection.id, ledger, key, waiter);
            }
        } else {
            self.connection.push_read(self.shared, request);
        }
    }

    fn on_long_poll(&mut self, txn: u64, read: &proto::ReadRequest) {
        let reply = Reply::V3 { txn };
        let (previous, wants_entry) = (read.previous_lac(), read.wants_entry_piggyback());
        let (Some(ledger), true) =
            (LedgerId::new(read.ledger_id), read.entry_id >= -1 && (!wants_entry || read.entry_id == -1))
        else {
            let message = response::read_failure(txn, ErrorCode::BadRequest, read.ledger_id, read.entry_id);
            return self.answer_v3(&message);
        };
        let promised = reply.answer_bytes();
        self.promise(promised);
        self.received.reads += 1;
        self.read_room = self.read_room.saturating_sub(1);
        // Without the flag it is a plain read that comes late.
        let kind = if wants_entry {
            ReadKind::Poll(Box::new(PollRead { previous, wants_entry, woken_at_ms: None }))
        } else {
            ReadKind::Entry
        };
        let seq = self.connection.next_seq();
        let request = ReadRequest {
            seq,
            kind,
            ledger,
            entry: read.entry_id,
            reply,
            received_ns: self.received_ns,
            started_ns: 0,
            waits_since_ns: self.received_ns,
            promised,
            is_fence: false,
            class: ReadClass::Plain,
            size_hint: 0,
            wait_outcome: None,
            tier: None,
            is_from_tier: false,
        };
        let Some(wait_ms) = read.time_out.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0) else {
            self.connection.push_read(self.shared, request);
            return;
        };
        let limits = &self.shared.limits;
        if !self.connection.enter_poll(self.shared) {
            self.shared.metrics.long_polls_refused.add(1);
            self.connection
                .outbox
                .answer(promised, |out| request.put_failure(ErrorCode::TooManyRequests, out));
            return;
        }
        let wait = Duration::from_millis(wait_ms).min(limits.long_poll_wait_max);
        // From now on: the frame may have waited for room for its answer.
        let deadline_ns = self.shared.clock.monotonic_ns() + wait.as_nanos() as u64;
        self.connection.polls.lock().park(request, deadline_ns);
        // It may wait for minutes: its descriptor stands for the answer.
        self.connection.outbox.return_credit(promised);
        let waiter = self.waiter(move |shared, connection, _| {
            let taken = connection.polls.lock().take(seq);
            if let Some((request, _)) = taken {
                connection.end_poll(shared, request, true);
            }
        });
        let outcome = self.shared.engine.poll_lac(ledger, EntryId::new(previous), waiter);
        match outcome {
            Ok(Poll::Parked(id)) => {
                let is_parked = self.connection.polls.lock().set_id(seq, id);
                if !is_parked {
                    // It ended before the engine's id for it was known, so no other code takes it back.
                    self.shared.engine.cancel_poll(ledger, id);
                }
                // The sender watches the deadline.
                self.connection.wake_sender.notify_one();
            }
            Ok(Poll::Ready) => {
                let taken = self.connection.polls.lock().take(seq);
                if let Some((request, _)) = taken {
                    self.connection.end_poll(self.shared, request, false);
                }
            }
            Err(refusal) => {
                let taken = self.connection.polls.lock().take(seq);
                if let Some((request, _)) = taken {
                    self.connection.leave_poll(self.shared);
                    match self.connection.outbox.promise_again(promised) {
                        true => {
                            let outbox = &self.connection.outbox;
                            outbox.answer(promised, |out| request.put_failure(code(refusal), out));
                        }
                        false => self.connection.close(),
                    }
                }
            }
        }
    }

    /// Answers a WRITE_LAC that cannot be; `body` is its body in the read buffer.
    fn check_write_lac(&mut self, txn: u64, write: &proto::WriteLacRequest, body: &'f [u8]) -> Next<'f> {
        let raw_ledger = write.ledger_id;
        let mut fail = |code| {
            self.answer_v3(&response::write_lac(txn, code, raw_ledger));
            Next::Done
        };
        let Some(key) = write.key() else { return fail(ErrorCode::Unauthorized) };
        // The bookie reads the LAC (last add confirmed) from the body and stores the bytes as they are (section 3.3).
        let lac = ExplicitLac::of(body)
            .ok()
            .filter(|lac| lac.ledger_id == raw_ledger && body.len() <= EXPLICIT_LAC_BYTES_MAX);
        let (Some(ledger), Some(lac)) = (LedgerId::new(raw_ledger), lac) else {
            return fail(ErrorCode::BadRequest);
        };
        let lac = EntryId::new(lac.last_add_confirmed);
        Next::WriteLac(txn, WriteLac { ledger, key, lac, body })
    }

    /// Earlier requests to its ledger are placed, and its answer is promised.
    pub(super) fn write_lac(&mut self, txn: u64, write: WriteLac<'f>) {
        let WriteLac { ledger, key, lac, body } = write;
        let received_ns = self.received_ns;
        let waiter = self.waiter(move |shared, connection, outcome| {
            let message = response::write_lac(txn, outcome_code(outcome), ledger.get());
            connection.answer_promised(&message);
            let now_ns = shared.clock.monotonic_ns();
            shared.metrics.write_lac.record(0, now_ns, now_ns.saturating_sub(received_ns), outcome.is_ok());
        });
        self.shared.engine.write_lac(ledger, key, lac, body, waiter);
    }

    /// As [`Frames::write_lac`].
    pub(super) fn force(&mut self, txn: u64, ledger: LedgerId) {
        let received_ns = self.received_ns;
        let waiter = self.waiter(move |shared, connection, outcome| {
            let message = response::force_ledger(txn, outcome_code(outcome), ledger.get());
            connection.answer_promised(&message);
            let now_ns = shared.clock.monotonic_ns();
            let latency_ns = now_ns.saturating_sub(received_ns);
            shared.metrics.force_ledger.record(0, now_ns, latency_ns, outcome.is_ok());
        });
        self.shared.engine.force(ledger, waiter);
    }

    /// What a tierer says of ledgers (section 2.8). Without object storage this bookie could not read what it would let go.
    fn reconcile(&mut self, txn: u64, message: &proto::ReconcileLedgersRequest) -> Result<(), ErrorCode> {
        let tier = self.shared.tier.clone().ok_or(ErrorCode::BadRequest)?;
        // Where peers log in, the role tier was checked before.
        if self.shared.auth.is_none() && !tier.is_of_tierer(message) {
            let (peer, path) = (self.connection.peer, tier.secret_path());
            tier.warn(|left_out| {
                tracing::warn!(%peer, path, left_out, "refused a peer that says what is in object storage: this bookie needs the tier \
                 secret of the cluster, which tierers and commands read from metadata");
            });
            return Err(ErrorCode::Unauthorized);
        }
        let Reconcile { cluster, ledgers, is_restore } =
            Reconcile::from_message(message).map_err(|error| {
                tracing::debug!(peer = %self.connection.peer, %error, "refused");
                ErrorCode::BadRequest
            })?;
        if cluster != tier.cluster() {
            let peer = self.connection.peer;
            tier.warn(
                |left_out| tracing::warn!(%peer, %cluster, left_out, "refused a tierer of another cluster"),
            );
            return Err(ErrorCode::BadRequest);
        }
        let place = tier.begin_reconcile().ok_or(ErrorCode::TooManyRequests)?;
        let promised = crate::connection::request::V3_ANSWER_BYTES;
        self.promise(promised);
        let (shared, id) = (self.shared.clone(), self.connection.id);
        let is_question = ledgers.iter().all(|ledger| ledger.extents.is_empty());
        let done = move |results: Vec<bindery_engine::Reconciled>| {
            let let_go = |done: &bindery_engine::Reconciled| {
                let tiered = shared.engine.tiered(done.ledger).filter(|_| is_question)?;
                tiered.trimmed_below.min(done.lre)
            };
            let results: Vec<Reconciled> = results
                .into_iter()
                .map(|done| Reconciled {
                    ledger: done.ledger,
                    code: outcome_code(done.result),
                    last: done.lre,
                    let_go: let_go(&done),
                })
                .collect();
            place.end(&results);
            if let Some(connection) = shared.connection(id) {
                let message = response::reconcile_ledgers(txn, ErrorCode::Ok, results);
                connection.outbox.unpromised_answer(promised, |out| v3::put_frame(&message, out));
                connection.flush();
            }
        };
        match is_restore {
            true => tier.restore(&self.shared.engine, ledgers, Box::new(done)),
            false => tier.reconcile(&self.shared.engine, ledgers, Box::new(done)),
        }
        Ok(())
    }

    fn answer_v3(&mut self, message: &proto::Response) {
        let promised = crate::connection::request::V3_ANSWER_BYTES;
        self.promise(promised);
        self.connection.outbox.answer(promised, |out| v3::put_frame(message, out));
    }

    /// A waiter that acts on this connection if it is still open. It knows the connection by number only, so that a
    /// parked waiter does not keep a socket.
    fn waiter(
        &self,
        act: impl FnOnce(&Arc<Shared>, &Arc<Connection>, Result<(), Refusal>) + Send + 'static,
    ) -> Waiter {
        let (shared, id) = (self.shared.clone(), self.connection.id);
        Box::new(move |outcome| {
            if let Some(connection) = shared.connection(id) {
                act(&shared, &connection, outcome);
            }
        })
    }
}

/// The largest answer to a packet that was understood just well enough to be refused: a batch read's.
const V2_ANSWER_BYTES_MAX: usize = crate::connection::request::V2_ANSWER_BYTES;

impl Connection {
    /// Sends a message that was promised [`crate::connection::request::V3_ANSWER_BYTES`].
    fn answer_promised(&self, message: &proto::Response) {
        self.outbox.answer(crate::connection::request::V3_ANSWER_BYTES, |out| v3::put_frame(message, out));
        self.flush();
    }
}

fn fencing_of(may: bool, flags: v2::Flags, key: Option<MasterKey>) -> Fencing {
    if !may {
        return Fencing::Forbidden;
    }
    match (flags.contains(v2::Flags::DO_FENCING), key) {
        (false, _) => Fencing::No,
        (true, Some(key)) => Fencing::With(key),
        (true, None) => Fencing::WithoutKey,
    }
}

fn outcome_code(outcome: Result<(), Refusal>) -> ErrorCode {
    outcome.map_or_else(code, |()| ErrorCode::Ok)
}

/// A failure for a ledger id that no ledger has, echoed as it was sent.
fn put_failure_raw(request: &ReadRequest, raw_ledger: i64, code: ErrorCode, out: &mut BytesMut) {
    let (entry_id, ledger_id) = (request.entry, raw_ledger);
    match (request.reply, &request.kind) {
        (Reply::V2 { version }, ReadKind::Batch(batch)) => {
            let request_id = batch.request_id;
            let ids = v2::Correlation::BatchRead { ledger_id, start_entry_id: entry_id, request_id };
            v2::put_error_response(version, ids, code, out);
        }
        (Reply::V2 { version }, _) => {
            v2::put_error_response(version, v2::Correlation::Read { ledger_id, entry_id }, code, out);
        }
        (Reply::V3 { txn }, ReadKind::Lac) => {
            v3::put_frame(&response::read_lac(txn, code, ledger_id, None, None), out);
        }
        (Reply::V3 { txn }, ReadKind::List) => {
            v3::put_frame(&response::get_list_of_entries(txn, code, ledger_id, None), out);
        }
        (Reply::V3 { txn }, _) => {
            v3::put_frame(&response::read_failure(txn, code, ledger_id, entry_id), out);
        }
    }
}
