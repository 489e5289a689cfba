//! Requests of a run's clients.

use super::{Held, KEY, Op, Sim, WRONG_KEY, Writable};
use crate::bookie::ghost::Check;
use bindery_engine::{Add, LedgerPresence, Origin, Poll, Refusal, Unplaced};
use bindery_types::{EntryId, LedgerId};

impl Sim {
    pub(super) fn op(&mut self, op: Op) -> u64 {
        self.next_op += 1;
        self.ops.insert(self.next_op, op);
        self.next_op
    }

    pub(super) fn some_ledger(&self) -> LedgerId {
        if !self.retired.is_empty() && self.random.chance(0.08) {
            return self.retired[self.random.below(self.retired.len() as u64) as usize];
        }
        self.slots[self.random.below(self.slots.len() as u64) as usize]
    }

    pub(super) fn submit_adds(&mut self) -> Check {
        for _ in 0..1 + self.random.below(6) {
            let ledger = self.some_ledger();
            self.meet(ledger)?;
            let highest = self.ghost.highest_sent(ledger);
            let entry = if highest >= 0 && self.random.chance(self.profile.duplicates) {
                self.random.below(highest as u64 + 1) as i64
            } else {
                highest + 1 + if self.random.chance(0.1) { self.random.below(4) as i64 } else { 0 }
            };
            let is_key_right = !(self.ghost.is_key_durable(ledger) && self.random.chance(0.03));
            let is_recovery = self.random.chance(0.1);
            self.submit_add(ledger, entry, is_recovery, is_key_right);
        }
        Ok(())
    }

    pub(super) fn submit_add(&mut self, ledger: LedgerId, entry: i64, is_recovery: bool, is_key_right: bool) {
        let submission = self.ghost.next_submission();
        let lac = self.random.below(entry as u64 + 1) as i64 - 1;
        let size = match self.random.below(20) {
            0 => 3000,
            1..=3 => self.random.below(1000),
            _ => self.random.below(60),
        };
        let mut body = Vec::with_capacity(40 + size as usize);
        for v in [ledger.get(), entry, lac, size as i64, submission as i64] {
            body.extend_from_slice(&v.to_be_bytes());
        }
        body.extend((0..size).map(|i| (i ^ submission) as u8));
        let is_high_priority = self.random.chance(if is_recovery { 0.8 } else { 0.1 });
        let writable = self.writable(ledger, is_recovery, is_high_priority);
        let op = Op::Add { ledger, entry, submission, lac, is_recovery, is_key_right, writable };
        let op = self.op(op);
        let engine = self.machine().engine.clone();
        let shard = engine.shard_of(ledger);
        let add = Add {
            origin: Origin { connection: 1, txn: op, tag: 0 },
            ledger,
            entry: EntryId::new(entry).expect("not negative"),
            last_add_confirmed: EntryId::new(lac),
            key: if is_key_right { KEY } else { WRONG_KEY },
            body: &body,
            is_recovery,
            is_high_priority,
        };
        // A refusal is decided now and answered with the next group; a crash in between leaves it unanswered.
        let is_refused = writable != Writable::Yes
            || (engine.is_fenced(ledger) && !is_recovery)
            || engine.presence(ledger) == LedgerPresence::Removed;
        let mut unplaced = Vec::new();
        if engine.add_or_ask(shard, &[add], None, &mut unplaced) == 0 {
            self.ops.remove(&op);
            self.hit("add.no_room");
            let op = self.op(Op::Room);
            let waiter = self.inbox.waiter(op);
            engine.when_room(shard, &[add], Box::new(move |_| waiter(Ok(()))));
        } else if unplaced.iter().any(|(_, what)| *what == Unplaced::Asks) {
            self.ops.remove(&op);
            if self.held.len() < 20 {
                self.held.push(Held {
                    ledger,
                    entry,
                    lac,
                    is_recovery,
                    is_key_right,
                    is_high_priority,
                    body,
                });
            }
        } else if is_key_right {
            let order = (!is_refused).then_some(shard);
            self.ghost.on_submitted(order, ledger, entry, submission, lac, &body);
        }
    }

    pub(super) fn submit_fence(&mut self) -> Check {
        // Half of the fences hit a ledger nobody wrote to yet.
        let ledger = if self.random.chance(0.5) {
            self.some_ledger()
        } else {
            LedgerId::new(1000 + self.random.below(5) as i64).expect("not negative")
        };
        self.meet(ledger)?;
        let highest = self.ghost.highest_sent(ledger);
        let which = if self.random.chance(0.6) { -1 } else { self.random.below((highest + 3) as u64) as i64 };
        let is_key_right = !self.is_wrong_key_due(ledger);
        // As clients do: metadata first.
        self.ended.insert(ledger);
        let op = self.op(Op::Fence { ledger, which, is_key_right });
        let key = if is_key_right { KEY } else { WRONG_KEY };
        self.machine().engine.clone().fence(ledger, key, self.inbox.waiter(op));
        Ok(())
    }

    pub(super) fn submit_write_lac(&mut self) -> Check {
        let ledger = self.some_ledger();
        self.meet(ledger)?;
        let lac = self.random.below((self.ghost.highest_sent(ledger) + 2) as u64) as i64 - 1;
        let is_key_right = !self.is_wrong_key_due(ledger);
        let writable = self.writable(ledger, false, false);
        // The number of the request makes every body unique.
        let body = [ledger.get(), lac, self.next_op as i64].map(i64::to_be_bytes).concat();
        if is_key_right {
            self.ghost.on_lac_submitted(ledger, lac, &body);
        }
        let op = self.op(Op::WriteLac { ledger, lac, body: body.clone(), is_key_right, writable });
        let key = if is_key_right { KEY } else { WRONG_KEY };
        let engine = self.machine().engine.clone();
        engine.write_lac(ledger, key, EntryId::new(lac), &body, self.inbox.waiter(op));
        Ok(())
    }

    /// A wrong key is presented only where the right one is known to be durable: it must be refused.
    pub(super) fn is_wrong_key_due(&self, ledger: LedgerId) -> bool {
        self.ghost.is_key_durable(ledger) && self.random.chance(0.1)
    }

    /// The expected outcome of a write that is submitted now.
    pub(super) fn writable(&self, ledger: LedgerId, is_recovery: bool, is_high_priority: bool) -> Writable {
        let engine = &self.machine().engine;
        let (status, memory) = (engine.status(), engine.ledger_memory());
        // More than one ledger and the growth of a small map.
        let is_memory_short = memory.used_bytes.saturating_add(1 << 10) > memory.bytes_max;
        if status.failed.is_some() {
            Writable::Failed
        } else if status.waits_for_space.is_some() && is_recovery && is_high_priority {
            Writable::Perhaps
        } else if status.waits_for_space.is_some() || (status.is_read_only && !is_high_priority) {
            Writable::No
        } else if is_memory_short && engine.presence(ledger) == LedgerPresence::Unknown {
            Writable::Perhaps
        } else {
            Writable::Yes
        }
    }

    pub(super) fn submit_force(&mut self) {
        let ledger = self.some_ledger();
        let covered = self.ghost.acked(ledger);
        let op = self.op(Op::Force { ledger, covered });
        self.machine().engine.clone().force(ledger, self.inbox.waiter(op));
    }

    pub(super) fn submit_poll(&mut self) -> Check {
        let ledger = self.some_ledger();
        let previous = self.random.below((self.ghost.highest_sent(ledger) + 2) as u64) as i64 - 1;
        let op = self.op(Op::Poll { ledger, previous });
        let engine = self.machine().engine.clone();
        let polled = engine.poll_lac(ledger, EntryId::new(previous), self.inbox.waiter(op));
        let lac = engine.last_add_confirmed(ledger);
        let shown = EntryId::to_wire(lac.unwrap_or(None));
        match polled {
            Ok(Poll::Parked(_)) if shown > previous => {
                return Err(format!("IB21: a poll of {ledger} beyond {previous} was parked at {shown}"));
            }
            Ok(Poll::Parked(id)) if self.random.chance(0.5) => {
                if engine.cancel_poll(ledger, id) {
                    self.ops.remove(&op);
                }
            }
            Ok(Poll::Parked(_)) => {}
            Ok(Poll::Ready) if shown <= previous => {
                return Err(format!("IB10: a poll of {ledger} beyond {previous} is ready at {shown}"));
            }
            Err(Refusal::Unknown) if self.ghost.may_be_limbo(ledger) => {
                self.ops.remove(&op);
            }
            Ok(Poll::Ready) | Err(Refusal::NoLedger) => {
                self.ops.remove(&op);
            }
            Err(other) => return Err(format!("a poll of {ledger} was refused with {other:?}")),
        }
        self.ghost.check_lac(ledger, lac)
    }
}
