//! Whose a ledger is, by a property in its metadata. The answer is looked up beside the requests and kept.
//!
//! # Data flow
//! ```text
//! request ─► LedgerTenants ─► known: its tenant
//!                │               not known: asked once; counts for the default tenant, and waits for no limit, until the answer is here
//!                └► LookUps (a task) ─► metadata ─► rules ─► LedgerTenants
//! ```
//!
//! # Invariants
//! 1. No request waits for a look-up, or for a limit before the look-up has ended. A ledger is looked up once as long as it is kept.
//! 2. A look-up that failed, or found no metadata, changes nothing of what was known. It is tried again after [`AGAIN`], with the next
//!    request.
//! 3. After a change of the rules an answer of the former ones counts until the next one is here.
//! 4. Only requests that may move bytes cause a look-up: adds, and reads of ledgers that are here.
//!
//! # Limits     ledgers: [`KEPT_MAX`], the least used go; look-ups that wait: [`WAITING_MAX`], at once: [`AT_ONCE`]

use super::{InForce, Owner, Tenant, Tenants};
use crate::latch::Latch;
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_types::LedgerId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Ledgers that are kept.
const KEPT_MAX: usize = 128 * 1024;
/// Look-ups that wait. Beyond that a ledger is the default tenant's, and has its look-up with a later request.
const WAITING_MAX: usize = 4096;
/// Look-ups under way.
const AT_ONCE: usize = 16;
/// One that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a failure, or where there is no metadata.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Known {
    tenant: Arc<Tenant>,
    /// Of the rules that it was found with.
    generation: u64,
    /// A look-up of it has ended.
    is_settled: bool,
    is_asked: bool,
    /// Ask again from then on.
    again_ns: Option<u64>,
}

/// Two generations: those used of late, and those used before.
#[derive(Default)]
struct Cache {
    young: HashMap<LedgerId, Known>,
    old: HashMap<LedgerId, Known>,
}

impl Cache {
    fn get(&mut self, ledger: LedgerId) -> Option<&mut Known> {
        if !self.young.contains_key(&ledger) {
            let known = self.old.remove(&ledger)?;
            self.put(ledger, known);
        }
        self.young.get_mut(&ledger)
    }

    fn put(&mut self, ledger: LedgerId, known: Known) {
        if self.young.len() >= KEPT_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ledger, known);
    }
}

/// See the module.
pub(super) struct LedgerTenants {
    cache: Mutex<Cache>,
    asks: mpsc::Sender<LedgerId>,
    asked: Mutex<Option<mpsc::Receiver<LedgerId>>>,
    pub(super) look_ups: AtomicU64,
    pub(super) failures: AtomicU64,
}

impl Default for LedgerTenants {
    fn default() -> LedgerTenants {
        let (asks, asked) = mpsc::channel(WAITING_MAX);
        LedgerTenants {
            cache: Mutex::default(),
            asks,
            asked: Mutex::new(Some(asked)),
            look_ups: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }
}

impl LedgerTenants {
    /// The tenant of a ledger, as far as that is known. `is_worth_it`: whether one that is not kept is to be looked up (invariant 4).
    pub(super) fn of(
        &self,
        ledger: LedgerId,
        rules: &InForce,
        now_ns: impl FnOnce() -> u64,
        is_worth_it: impl FnOnce() -> bool,
    ) -> Owner {
        if let Some(known) = self.cache.lock().get(ledger) {
            let is_stale = known.generation != rules.generation;
            let is_due = is_stale || known.again_ns.is_some_and(|again_ns| again_ns <= now_ns());
            if is_due && !known.is_asked {
                known.is_asked = self.asks.try_send(ledger).is_ok();
            }
            let tenant = if is_stale { rules.named(&known.tenant.name) } else { known.tenant.clone() };
            return Owner { tenant, is_known: known.is_settled };
        }
        let tenant = rules.default.clone();
        // Not under the lock: the answer takes the lock of a shard.
        if !is_worth_it() {
            return Owner { tenant, is_known: false };
        }
        let mut cache = self.cache.lock();
        // A client that floods the look-ups must not escape the limit of the default tenant by that.
        let is_asked = cache.get(ledger).is_some() || self.ask_first(&mut cache, ledger, rules);
        Owner { tenant, is_known: !is_asked }
    }

    fn ask_first(&self, cache: &mut Cache, ledger: LedgerId, rules: &InForce) -> bool {
        let is_asked = self.asks.try_send(ledger).is_ok();
        if is_asked {
            let known = Known {
                tenant: rules.default.clone(),
                generation: rules.generation,
                is_settled: false,
                is_asked,
                again_ns: None,
            };
            cache.put(ledger, known);
        }
        is_asked
    }

    /// Notes the end of a look-up: the tenant, or, without an answer, the time of the next attempt (invariant 2).
    fn settle(&self, ledger: LedgerId, rules: &InForce, found: Result<Arc<Tenant>, u64>) {
        let mut cache = self.cache.lock();
        let (tenant, again_ns) = match found {
            Ok(tenant) => (tenant, None),
            Err(again_ns) => {
                let before = cache.get(ledger).map(|known| rules.named(&known.tenant.name));
                (before.unwrap_or_else(|| rules.default.clone()), Some(again_ns))
            }
        };
        let known =
            Known { tenant, generation: rules.generation, is_settled: true, is_asked: false, again_ns };
        match cache.get(ledger) {
            Some(before) => *before = known,
            None => cache.put(ledger, known),
        }
    }

    /// Look-ups that wait.
    #[cfg(test)]
    pub(super) fn asked_now(&self) -> usize {
        WAITING_MAX - self.asks.capacity()
    }

    /// Ledgers that are known, or asked for.
    pub(super) fn len(&self) -> usize {
        let cache = self.cache.lock();
        cache.young.len() + cache.old.len()
    }
}

/// The task that looks ledgers up.
pub(crate) struct LookUps {
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) layout: Layout,
}

impl LookUps {
    /// Works until `stop`. There is one such task.
    pub(crate) async fn run(self, stop: Arc<Latch>) {
        let asked = self.tenants.ledgers.asked.lock().take();
        let Some(mut asked) = asked else { return };
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.wait() => return,
                Some(_) = under_way.join_next() => {}
                Some(ledger) = asked.recv(), if under_way.len() < AT_ONCE => {
                    under_way.spawn(look_up(self.tenants.clone(), self.layout.clone(), ledger));
                }
            }
        }
    }
}

/// Reads the metadata of a ledger, and notes whose it is.
pub(super) async fn look_up(tenants: Arc<Tenants>, layout: Layout, ledger: LedgerId) {
    let of_ledgers = &tenants.ledgers;
    of_ledgers.look_ups.fetch_add(1, Ordering::Relaxed);
    let answer = async {
        let ledgers = layout.ledgers();
        match ledgers.get(ledger).await {
            // A server that lags would not know a new ledger.
            Err(LedgerError::NotFound(_)) => ledgers.get_latest(ledger).await,
            answer => answer,
        }
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    let rules = tenants.in_force();
    let again_ns = || tenants.clock.monotonic_ns() + AGAIN.as_nanos() as u64;
    let found = match answer {
        Ok(Ok(stored)) => {
            Ok(rules.named(rules.rules.of_properties(&stored.metadata.custom).unwrap_or_default()))
        }
        Ok(Err(LedgerError::NotFound(_))) => Err(again_ns()),
        Ok(Err(_)) | Err(_) => {
            of_ledgers.failures.fetch_add(1, Ordering::Relaxed);
            Err(again_ns())
        }
    };
    of_ledgers.settle(ledger, &rules, found);
}
