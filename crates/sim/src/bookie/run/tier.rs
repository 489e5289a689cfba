//! A tierer that says which entries are in object storage, and a server that lets copies go. The contents of objects are not
//! simulated: an object stands for the update that named it.

use super::{Op, Sim};
use crate::bookie::ghost::{Check, SentUpdate, number_of};
use crate::disk::FaultPlan;
use bindery_engine::{Compared, DiskRead, Engine, Machine, Reconciled, Refusal, TieredRead, TrimError};
use bindery_types::tier::{ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeSet;

/// Extents of a ledger: more than any run has.
const EXTENTS_MAX: usize = 10_000;

fn entry(id: i64) -> EntryId {
    EntryId::new(id).expect("not negative")
}

/// The object of an update, by its number.
fn object(number: u64) -> ObjectRef {
    let id = ObjectId::new(number, [0; 10]);
    ObjectRef { id, length_bytes: number + 1, footer_offset: number, footer_crc: 0, etag_crc: 0 }
}

impl Sim {
    pub(super) fn step_tier(&mut self) -> Check {
        match self.tier.below(10) {
            0..=5 => self.submit_reconcile(),
            6..=8 => self.trim()?,
            _ => self.check_tiered(self.profile.faults == FaultPlan::default())?,
        }
        Ok(())
    }

    /// Updates of some ledgers in one request: most go on where the last one ended, some say more, some say what was said,
    /// some leave a gap, some ask.
    fn submit_reconcile(&mut self) {
        let mut requests = Vec::new();
        let mut sent: Vec<SentUpdate> = Vec::new();
        let ledgers: BTreeSet<LedgerId> = (0..1 + self.tier.below(4)).map(|_| self.tiers_ledger()).collect();
        for ledger in ledgers {
            let (lre, highest) = (self.ghost.lre(ledger), self.ghost.highest_sent(ledger));
            let from = match self.tier.below(10) {
                0 => -1,
                1 => lre + 2 + self.tier.below(3) as i64,
                2..=3 => self.tier.below((lre + 2) as u64) as i64,
                _ => lre + 1,
            };
            if from < 0 || from > highest + 3 {
                sent.push(self.ghost.on_reconcile(ledger, 0, 0, -1));
                requests.push(Reconciliation { ledger, last: None, extents: Vec::new(), created_ms: None });
                continue;
            }
            self.updates += 1;
            let number = self.updates;
            let mut extents: Vec<TierExtent> = Vec::new();
            let mut first = from;
            for _ in 0..1 + self.tier.below(3) {
                let last = first + self.tier.below(6) as i64;
                extents.push(TierExtent { first: entry(first), last: entry(last), object: object(number) });
                first = last + 1;
            }
            if from <= lre {
                self.hit("tier.said_again");
            }
            sent.push(self.ghost.on_reconcile(ledger, number, from, first - 1));
            requests.push(Reconciliation { ledger, last: Some(entry(first - 1)), extents, created_ms: None });
        }
        let op = self.op(Op::Reconcile { sent });
        let inbox = self.inbox.clone();
        let done = Box::new(move |results| inbox.on_reconciled(op, results));
        let engine = self.machine().engine.clone();
        let compared = |reconciliation: Reconciliation| {
            let seen = engine.tiered(reconciliation.ledger).map_or(0, |tiered| tiered.update);
            Compared { reconciliation, seen, is_new_life: false }
        };
        engine.reconcile_compared(requests.into_iter().map(compared).collect(), done);
    }

    /// Chosen by a generator of its own, so that requests of clients come as without a tier.
    fn tiers_ledger(&self) -> LedgerId {
        let all = self.slots.len() + self.retired.len();
        let place = self.tier.below(all as u64) as usize;
        *self.slots.iter().chain(&self.retired).nth(place).expect("it is below their number")
    }

    /// T1: answered registers are in the durable image, with their extents.
    pub(super) fn on_reconciled(&mut self, sent: &[SentUpdate], results: &[Reconciled]) -> Check {
        if sent.len() != results.len() {
            return Err(format!("IB22: {} results for {} ledgers", results.len(), sent.len()));
        }
        for (sent, result) in sent.iter().zip(results) {
            self.ghost.on_reconciled(sent, result)?;
            match result.result {
                Ok(()) if result.lre.is_some() => self.hit("tier.reconciled"),
                Err(Refusal::TooManyRequests) => self.hit("tier.no_room"),
                Err(Refusal::BadRequest) => self.hit("tier.gap_refused"),
                _ => {}
            }
        }
        if !self.ghost.is_sync || !self.tier.chance(0.1) {
            return Ok(());
        }
        let told: Vec<LedgerId> =
            results.iter().filter(|result| result.result.is_ok()).map(|r| r.ledger).collect();
        self.check_image(|sim, image| {
            for ledger in told {
                let mut ghost = sim.ghost.clone();
                ghost.settle_trims();
                let extents = image.engine.tier_extents(ledger, EntryId::FIRST, EXTENTS_MAX);
                let tiered = image.engine.tiered(ledger);
                ghost.adopt_trim(ledger, tiered);
                ghost
                    .check_tier(ledger, tiered, extents.ok().as_deref())
                    .map_err(|what| format!("in the durable image: {what}"))?;
            }
            Ok(())
        })
    }

    /// Lets copies go, as a server does that has compared them. T9: never beyond the register.
    fn trim(&mut self) -> Check {
        let engine = self.machine().engine.clone();
        let untrimmed = engine.untrimmed(None, 100);
        if untrimmed.is_empty() || self.disk.is_off() {
            return Ok(());
        }
        let (ledger, tiered) = untrimmed[self.tier.below(untrimmed.len() as u64) as usize];
        let lre = tiered.lre.get();
        let below = if self.tier.chance(0.5) { lre } else { self.tier.below((lre + 3) as u64) as i64 };
        match engine.trim(ledger, &tiered, entry(below)) {
            Ok(()) if below > lre => Err(format!("T9: {ledger} was trimmed to {below} of {lre}")),
            Ok(()) => {
                self.ghost.on_trimmed(ledger, below);
                self.hit("tier.trimmed");
                Ok(())
            }
            Err(TrimError::AboveLre(_)) if below > lre => Ok(()),
            Err(TrimError::Io) if self.profile.faults != FaultPlan::default() || self.disk.is_off() => Ok(()),
            Err(TrimError::Io) if self.ghost.is_damaged => Ok(()),
            Err(error) => Err(format!("T9: a trim of {ledger} to {below} of {lre} is refused: {error}")),
        }
    }

    /// Checks the bookie's account of all ledgers. A fault in a state table fails all later reads from it.
    fn check_tiered(&mut self, is_sound: bool) -> Check {
        let engine = self.machine().engine.clone();
        for ledger in self.ghost.ledgers() {
            if self.disk.is_off() {
                return Ok(());
            }
            let tiered = engine.tiered(ledger);
            let extents = engine.tier_extents(ledger, EntryId::FIRST, EXTENTS_MAX);
            if extents.is_err() && is_sound && !self.ghost.is_damaged && !self.disk.is_off() {
                return Err(format!("T9: the extents of {ledger} cannot be read on a sound disk"));
            }
            // In general it may have moved in between; in this simulation no other task moves it.
            self.ghost.check_tier(ledger, tiered, extents.ok().as_deref())?;
        }
        Ok(())
    }

    /// After a start: T1, T9.
    pub(super) fn check_tier_of(&mut self, machine: &Machine) -> Check {
        self.ghost.settle_trims();
        for ledger in self.ghost.ledgers() {
            let tiered = machine.engine.tiered(ledger);
            self.ghost.adopt_trim(ledger, tiered);
            let extents = machine.engine.tier_extents(ledger, EntryId::FIRST, EXTENTS_MAX);
            if extents.is_err() && !self.ghost.is_damaged {
                return Err(format!("T9: the extents of {ledger} cannot be read after a start"));
            }
            self.ghost.check_tier(ledger, tiered, extents.ok().as_deref())?;
        }
        Ok(())
    }

    /// A read ended in object storage: it finds the extent there, unless the ledger is gone or the disk failed.
    pub(super) fn on_tiered(&mut self, engine: &Engine, read: &TieredRead) -> Result<Vec<u8>, Refusal> {
        let (ledger, at) = (read.ledger(), read.entry().get());
        match engine.tier_extent(read) {
            Ok(extent) => {
                self.hit("tier.read");
                if let Err(violation) = self.ghost.check_tiered_read(ledger, at, &extent) {
                    self.broken.get_or_insert(violation);
                }
            }
            Err(Refusal::Io) if self.ghost.is_damaged || self.disk.is_off() => {}
            Err(Refusal::Io) if self.profile.faults != FaultPlan::default() => {}
            Err(error) => {
                self.broken.get_or_insert(format!(
                    "T9: {ledger}:{at} is in object storage, and finding it fails: {error}"
                ));
            }
        }
        Err(Refusal::Tiered)
    }

    /// As [`Sim::on_tiered`], of a read that looked on disk first.
    pub(super) fn on_tiered_after_all(&mut self, read: DiskRead) -> Result<Vec<u8>, Refusal> {
        let engine = self.machine().engine.clone();
        match read.into_tiered() {
            Some(read) => self.on_tiered(&engine, &read),
            None => {
                self.broken.get_or_insert("T9: a read ended in object storage without a place there".into());
                Err(Refusal::Tiered)
            }
        }
    }
}

/// The extents of a ledger, for comparing restarts.
pub(in crate::bookie) fn tier_facts(engine: &Engine, ledger: LedgerId) -> Vec<(i64, i64, u64)> {
    let extents = engine.tier_extents(ledger, EntryId::FIRST, EXTENTS_MAX).unwrap_or_default();
    let trimmed = engine.tiered(ledger).and_then(|tiered| tiered.trimmed_below);
    let extents = extents.iter().map(|extent| (extent.first.get(), extent.last.get(), number_of(extent)));
    extents.chain([(-1, EntryId::to_wire(trimmed), 0)]).collect()
}
