//! Copies that a repair brings past the journal: begun, appended, sealed and committed in steps, with everything else in between.

use super::{Op, Sim, read_now};
use crate::bookie::ghost::{Brought, Check};
use bindery_engine::{Ingest, IngestError, LedgerPresence, Machine, Refusal, SealedIngest};
use bindery_types::{EntryId, LedgerId};

/// How far an ingest has come.
#[derive(Default)]
pub(super) enum Ingesting {
    #[default]
    No,
    Open(Ingest, Vec<Brought>),
    Sealed(SealedIngest, Vec<Brought>),
}

impl Sim {
    /// A step of the ingest under way, or the first one of another.
    pub(super) fn step_ingest(&mut self) -> Check {
        match std::mem::take(&mut self.ingest) {
            Ingesting::No => self.begin_ingest(),
            Ingesting::Open(ingest, brought) => match self.ingests.below(10) {
                0 => {
                    drop(ingest);
                    self.hit("ingest.dropped");
                    Ok(())
                }
                1..=3 => self.seal_ingest(ingest, brought),
                _ => self.append_to(ingest, brought),
            },
            Ingesting::Sealed(sealed, brought) => {
                match self.ingests.below(8) {
                    0 => drop(sealed),
                    1 => self.ingest = Ingesting::Sealed(sealed, brought),
                    _ => self.ask_for_commit(sealed, brought),
                }
                Ok(())
            }
        }
    }

    /// The process ends as a crash ends it: nothing is cleaned up.
    pub(super) fn leave_ingest(&mut self) {
        match std::mem::take(&mut self.ingest) {
            Ingesting::No => {}
            Ingesting::Open(ingest, _) => ingest.leave(),
            Ingesting::Sealed(sealed, _) => sealed.leave(),
        }
        let asked = std::mem::take(&mut self.ops).into_values().filter_map(|op| match op {
            Op::Ingest { brought } => Some(brought),
            _ => None,
        });
        self.undecided.extend(asked);
    }

    /// A ledger that is here, and may be in limbo.
    fn ledger_to_fill(&self) -> Option<LedgerId> {
        let limbo = self.ghost.limbo_ledgers();
        let pick =
            |from: &[LedgerId]| from.get(self.ingests.below(from.len().max(1) as u64) as usize).copied();
        let ledger = match self.ingests.chance(0.5) {
            true if !limbo.is_empty() => pick(&limbo),
            _ => pick(&self.slots),
        };
        let engine = &self.machine().engine;
        ledger.filter(|ledger| {
            engine.presence(*ledger) == LedgerPresence::Known && !self.ghost.is_removed(*ledger)
        })
    }

    fn begin_ingest(&mut self) -> Check {
        let Some(ledger) = self.ledger_to_fill() else { return Ok(()) };
        match self.machine().engine.begin_ingest(ledger) {
            Ok(ingest) => self.append_to(ingest, Vec::new()),
            Err(IngestError::ReadOnly(_) | IngestError::TooMany) => Ok(()),
            Err(other) => Err(format!("an ingest could not begin: {other}")),
        }
    }

    fn append_to(&mut self, mut ingest: Ingest, mut brought: Vec<Brought>) -> Check {
        let Some(ledger) = self.ledger_to_fill() else {
            self.ingest = Ingesting::Open(ingest, brought);
            return Ok(());
        };
        let before = brought.iter().filter(|copy| copy.ledger == ledger).map(|copy| copy.entry).max();
        for copy in self.lacking(ledger, before.unwrap_or(-1)) {
            let entry = EntryId::new(copy.entry).expect("not negative");
            match ingest.append(ledger, entry, &copy.body) {
                Ok(()) => brought.push(copy),
                // Another ingest holds the ledger until its commit, or a removal of the ledger is not flushed yet.
                Err(IngestError::Busy(_) | IngestError::RemovalNotFlushed(_)) => self.hit("ingest.put_off"),
                Err(IngestError::BehindRemoval(_) | IngestError::LedgersOutOfOrder(_)) => break,
                Err(IngestError::Tiered { .. }) if copy.entry <= self.ghost.trimmed(ledger) => break,
                // The trim is on its way.
                Err(IngestError::Tiered { .. }) if self.profile.tier > 0.0 => break,
                // Full, or failed: it is over.
                Err(IngestError::ReadOnly(_) | IngestError::Io(_) | IngestError::Over) => return Ok(()),
                Err(other) => return Err(format!("{ledger}:{entry} could not be ingested: {other}")),
            }
        }
        self.ingest = Ingesting::Open(ingest, brought);
        Ok(())
    }

    /// Some entries behind `before` that are not here: such as were lost with a disk, and new ones.
    fn lacking(&mut self, ledger: LedgerId, before: i64) -> Vec<Brought> {
        let lost = self.ghost.lost(ledger).unwrap_or_default();
        let mut lacking: Vec<Brought> = lost
            .into_iter()
            .filter(|(entry, ..)| *entry > before)
            .map(|(entry, submission, lac, body)| {
                let was_lost = true;
                Brought { ledger, entry, submission, lac, body, was_lost }
            })
            .collect();
        if lacking.is_empty() || self.ingests.chance(0.3) {
            let highest = self.ghost.highest_sent(ledger);
            let first = match self.ingests.chance(0.6) {
                true => highest.max(before) + 1 + self.ingests.below(3) as i64,
                false => before + 1 + self.ingests.below(highest.max(0) as u64 + 1) as i64,
            };
            for entry in first..first + 1 + self.ingests.below(6) as i64 {
                if self.ingests.chance(0.8) && self.ghost.lacks(ledger, entry) {
                    lacking.push(self.new_copy(ledger, entry));
                }
            }
        }
        lacking.sort_by_key(|copy| copy.entry);
        lacking.dedup_by_key(|copy| copy.entry);
        lacking
    }

    fn new_copy(&mut self, ledger: LedgerId, entry: i64) -> Brought {
        let submission = self.ghost.next_submission();
        let lac = self.ingests.below(entry as u64 + 1) as i64 - 1;
        let size = [0, 17, 900, 3000][self.ingests.below(4) as usize];
        let mut body = [ledger.get(), entry, lac, size, submission as i64].map(i64::to_be_bytes).concat();
        body.extend((0..size).map(|i| (i ^ submission as i64) as u8));
        Brought { ledger, entry, submission, lac, body, was_lost: false }
    }

    fn seal_ingest(&mut self, ingest: Ingest, brought: Vec<Brought>) -> Check {
        match ingest.seal() {
            Ok(sealed) => {
                self.ingest = Ingesting::Sealed(sealed, brought);
                Ok(())
            }
            Err(IngestError::Held { ledger, entry }) => {
                self.hit("ingest.held");
                let entry = entry.get();
                let was_lost = brought.iter().any(|copy| copy.was_lost && copy.entry == entry);
                match self.ghost.lacks(ledger, entry) && entry > self.ghost.trimmed(ledger) && !was_lost {
                    true if self.profile.tier == 0.0 => {
                        Err(format!("IB7: {ledger}:{entry} is here for an ingest, and was never sent"))
                    }
                    _ => Ok(()),
                }
            }
            Err(
                IngestError::Empty | IngestError::NoLedger(_) | IngestError::Io(_) | IngestError::ReadOnly(_),
            ) => Ok(()),
            Err(other) => Err(format!("an ingest could not be sealed: {other}")),
        }
    }

    fn ask_for_commit(&mut self, sealed: SealedIngest, brought: Vec<Brought>) {
        self.ghost.on_ingest_asked(&brought);
        let op = self.op(Op::Ingest { brought });
        let inbox = self.inbox.clone();
        let answer = move |outcome| inbox.on_ingested(op, outcome);
        self.machine().engine.clone().commit_ingest(sealed, Box::new(answer));
    }

    /// The answer to a commit.
    pub(super) fn on_ingest_answered(&mut self, op: u64, outcome: Result<(), IngestError>) -> Check {
        let Some(Op::Ingest { brought }) = self.ops.remove(&op) else {
            return Err("IB22: an ingest was answered twice".into());
        };
        match outcome {
            Ok(()) => {
                self.ghost.on_ingested(&brought)?;
                self.hit("ingest.committed");
                if self.checks.chance(0.2) {
                    self.check_image(|sim, image| {
                        brought.iter().try_for_each(|copy| {
                            let id = EntryId::new(copy.entry).expect("not negative");
                            let result = read_now(&image.engine, copy.ledger, id);
                            let checked = sim.ghost.check_read(copy.ledger, copy.entry, &result);
                            checked.map_err(|what| format!("IB1: in the durable image: {what}"))
                        })
                    })?;
                }
                Ok(())
            }
            // It may be in force after a restart.
            Err(IngestError::Io(_)) => {
                self.undecided.push(brought);
                Ok(())
            }
            Err(_) => {
                self.hit("ingest.refused");
                self.ghost.on_ingest_refused(&brought)
            }
        }
    }

    /// After a restart: an ingest whose commit was not answered is there as a whole or not at all, and ledgers that were removed
    /// have nothing of it.
    pub(super) fn check_undecided(&mut self, machine: &Machine) -> Check {
        for brought in std::mem::take(&mut self.undecided) {
            if self.ghost.is_damaged {
                continue;
            }
            let mut found = [None, None];
            for copy in brought.iter().filter(|copy| self.ghost.is_alone(copy)) {
                let id = EntryId::new(copy.entry).expect("not negative");
                let is_there = match read_now(&machine.engine, copy.ledger, id) {
                    Ok(_) => true,
                    Err(Refusal::NoEntry | Refusal::NoLedger) => false,
                    Err(_) => continue,
                };
                found[usize::from(is_there)] = Some((copy.ledger, copy.entry));
            }
            match found {
                [Some((ledger, entry)), Some((of, other))] => {
                    return Err(format!(
                        "an ingest is in force in part: {of}:{other} is there, {ledger}:{entry} is not"
                    ));
                }
                [Some(_), None] => self.ghost.on_ingest_refused(&brought)?,
                _ => {}
            }
        }
        Ok(())
    }
}
