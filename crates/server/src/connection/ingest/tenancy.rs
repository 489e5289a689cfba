//! Adds of tenants: which may be handed over now, which wait until earlier ones are paid, and what was taken.
//!
//! # Invariants
//! 1. Adds of recoveries never wait here, but for ordinary adds of their ledger that came before them.
//! 2. Adds that are held back come after those that are not. Adds of one ledger keep their order, even when a look-up finds the ledger's
//!    tenant between two of them.
//! 3. An add is counted once, when the engine placed it, or it was parked until metadata is read. An add that the engine refuses counts for no
//!    tenant: otherwise a client without a ledger's key could use up the limit of its tenant.

use super::CloseReason;
use super::frames::Frames;
use super::late_adds::Lane;
use crate::connection::Connection;
use crate::connection::activity::Wait;
use crate::shared::Shared;
use crate::tenants::{HeldMemory, Kind, Owner, Tenant, Tenants};
use bindery_engine::{Add, Unplaced};
use bindery_flow::ByteBudget;
use bindery_types::LedgerId;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// How often a waiting connection checks for a changed limit, and for memory to look ahead with.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// True while the connection is not to be read, because its adds were placed before they were paid.
pub(super) fn is_paused(shared: &Shared, connection: &Connection) -> bool {
    shared.tenants.is_some()
        && connection.tenancy.lock().paused(shared.clock.monotonic_ns()).is_some()
        && !connection.draining.is_set()
}

/// Waits, without memory, until what a paused connection took is paid.
pub(super) async fn wait_until_paid(
    shared: &Arc<Shared>,
    connection: &Connection,
) -> Result<(), CloseReason> {
    if shared.tenants.is_none() {
        return Ok(());
    }
    let now_ns = || shared.clock.monotonic_ns();
    let paused = connection.tenancy.lock().paused(now_ns());
    let Some((mut wait, tenant)) = paused else { return Ok(()) };
    let _waiting = connection.activity.waits(Wait::Tenant);
    let waiting = tenant.waits(Kind::Adds, now_ns());
    loop {
        tokio::select! {
            () = connection.closed.wait() => return Err(CloseReason::Ours),
            () = connection.draining.wait() => break,
            () = tokio::time::sleep(wait.min(LOOK)) => {}
        }
        match connection.tenancy.lock().paused(now_ns()) {
            Some((left, _)) => wait = left,
            None => break,
        }
    }
    waiting.end(now_ns());
    Ok(())
}

/// The memory that adds keep while they wait, pool by pool; none where they may not wait for a limit.
pub(super) type Kept<'a> = [Option<(&'a ByteBudget, u64)>; 2];

fn bytes_of(adds: &[Add<'_>]) -> u64 {
    adds.iter().map(|add| add.body.len() as u64).sum()
}

impl<'f> Frames<'_, 'f> {
    /// Whose an add to this ledger is, where there are tenants.
    pub(super) fn owner_of(&self, ledger: LedgerId) -> Option<Owner> {
        self.shared.tenants.as_ref().map(|tenants| self.owner_among(tenants, ledger))
    }

    fn owner_among(&self, tenants: &Tenants, ledger: LedgerId) -> Owner {
        let connection = self.connection;
        connection.tenancy.lock().owner_of(tenants, connection.identity(), ledger, || true)
    }

    fn until_paid(&self, owner: &Owner) -> Option<Duration> {
        if !owner.is_known || self.connection.draining.is_set() {
            return None;
        }
        let now_ns = self.shared.clock.monotonic_ns();
        self.connection.tenancy.lock().until_paid(&owner.tenant, Kind::Adds, now_ns)
    }

    /// Bytes that may be taken now for an owner who need not wait.
    fn taking(owner: &Owner) -> u64 {
        if owner.is_known { owner.tenant.taking(Kind::Adds) } else { u64::MAX }
    }

    /// True where there are tenants, and an add to this ledger need not wait for its tenant's limit.
    pub(super) fn may_take(&self, ledger: LedgerId) -> bool {
        self.owner_of(ledger).is_some_and(|owner| self.until_paid(&owner).is_none())
    }

    /// Removes the adds of a shard that have to wait for the limits of their tenants.
    pub(super) fn take_out_held(&self, adds: &mut Vec<Add<'f>>) -> Vec<Add<'f>> {
        let Some(tenants) = &self.shared.tenants else { return Vec::new() };
        // Bytes that each owner may still take in this batch. A batch has few owners, so a list is enough.
        let mut left: Vec<(Owner, u64)> = Vec::new();
        let mut last: Option<(LedgerId, usize)> = None;
        let mut held_ledgers: HashSet<LedgerId> = HashSet::new();
        let mut held = Vec::new();
        adds.retain(|add| {
            let at = match last {
                Some((ledger, at)) if ledger == add.ledger => at,
                _ => {
                    let owner = self.owner_among(tenants, add.ledger);
                    let known = left.iter().position(|(known, _)| known.is(&owner));
                    known.unwrap_or_else(|| {
                        let taking = match self.until_paid(&owner) {
                            None => Self::taking(&owner),
                            Some(_) => 0,
                        };
                        left.push((owner, taking));
                        left.len() - 1
                    })
                }
            };
            last = Some((add.ledger, at));
            // A look-up may have found the ledger's tenant between two of its adds.
            let is_behind_held = held_ledgers.contains(&add.ledger);
            let is_free = !is_behind_held && (add.is_recovery || left[at].1 > 0);
            if !is_free {
                held_ledgers.insert(add.ledger);
                held.push(*add);
            } else if !add.is_recovery && left[at].1 < u64::MAX {
                // The last one may be larger than what was left.
                left[at].1 = left[at].1.saturating_sub(add.body.len() as u64);
            }
            is_free
        });
        held
    }

    /// Counts adds that the engine took, for their tenants, but for those that it did not place.
    pub(super) fn take_placed(&self, adds: &[Add<'_>], unplaced: &[(usize, Unplaced)]) {
        let mut from = 0;
        for at in unplaced.iter().map(|(at, _)| *at).chain([adds.len()]) {
            self.take(&adds[from..at]);
            from = at + 1;
        }
    }

    /// Counts adds for their tenants.
    pub(super) fn take(&self, adds: &[Add<'_>]) {
        let Some(tenants) = self.shared.tenants.as_ref().filter(|_| !adds.is_empty()) else { return };
        let now_ns = self.shared.clock.monotonic_ns();
        for run in adds.chunk_by(|one, next| (one.ledger, one.is_recovery) == (next.ledger, next.is_recovery))
        {
            let (ledger, is_free) = (run[0].ledger, run[0].is_recovery);
            let mut tenancy = self.connection.tenancy.lock();
            let owner = tenancy.owner_of(tenants, self.connection.identity(), ledger, || true);
            tenancy.take(&owner.tenant, Kind::Adds, bytes_of(run), run.len() as u64, is_free, now_ns);
        }
    }

    /// How long a lane is held back, or until the next look, and its tenant.
    pub(super) fn held_for(&self, lane: &Lane<'_>) -> Option<(Duration, Arc<Tenant>)> {
        let owner = lane.owner()?;
        if lane.adds().first()?.is_recovery {
            return None;
        }
        self.until_paid(owner).map(|wait| (wait.min(LOOK), owner.tenant.clone()))
    }

    /// Has adds of this tenant wait in the memory that they are in; `None` when they may not (tenants invariant 3).
    pub(super) fn hold(&self, tenant: &Arc<Tenant>) -> Option<Vec<HeldMemory>> {
        let tenants = self.shared.tenants.as_ref().filter(|_| self.kept[0].is_some())?;
        let held = self.kept.iter().flatten().map(|(pool, bytes)| tenants.hold(tenant, pool, *bytes));
        held.collect()
    }

    /// For adds of this tenant there is no memory to wait in: true when they are placed, and the connection is not read before they are
    /// paid; false when they are to be refused.
    pub(super) fn is_placed_unpaid(&self, tenant: &Arc<Tenant>) -> bool {
        let mut tenancy = self.connection.tenancy.lock();
        let has_paid = tenancy.has_added(tenant);
        if has_paid {
            tenancy.pause_for(tenant);
        }
        has_paid
    }

    /// The adds of a lane that may be handed over now; `is_paid`: whether or not they are paid.
    pub(super) fn free_of<'l>(&self, lane: &'l Lane<'f>, is_paid: bool) -> &'l [Add<'f>] {
        let adds = lane.adds();
        let Some(owner) = lane.owner().filter(|_| !is_paid) else { return adds };
        let recovery = adds.iter().take_while(|add| add.is_recovery).count();
        if self.until_paid(owner).is_some() {
            return &adds[..recovery];
        }
        let mut left = Self::taking(owner);
        let goes = |add: &&Add<'_>| {
            let goes = add.is_recovery || left > 0;
            if !add.is_recovery {
                left = left.saturating_sub(add.body.len() as u64);
            }
            goes
        };
        &adds[..adds.iter().take_while(goes).count()]
    }
}
