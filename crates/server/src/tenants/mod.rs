//! Tenants: the owners of requests, their limits in bytes a second of adds and of reads, and their shares where there is not enough for all.
//!
//! # Data flow
//! ```text
//! file of tenants ─► Rules ─► InForce ◄─ user or role of a connection, property of a ledger (`ledgers`)
//!                                └► Tenant: meters (`meter`), weight, numbers
//! adds:  ingest ─► paid? ─► shard, its admission queue by weight ─► taken: the meter        not paid: LateAdds waits
//! reads: sender ─► paid? ─► a turn by weight ─► answered: the meter                          not paid: set aside
//! ```
//!
//! # Invariants
//! 1. A tenant over its limit waits, and is not refused for that except by invariant 3. The bounds are as before: adds stay in the buffer that they
//!    were read into, reads are descriptors.
//! 2. Adds of recoveries, fencing and recovery reads, and what repair brings past the journal are counted and never wait for a limit. Other
//!    requests of the tenant pay for them, up to a second of its rate ([`meter`]), so that a flag is no way round a limit.
//! 3. Held back adds leave memory to others: those of a tenant wait in the memory of a pool while that leaves as many of its bytes as they
//!    have, and none wait in the pools of strangers. Beyond that a connection's adds are placed, and it is not read before they are paid.
//!    On a connection that has paid for no add yet they are refused instead: otherwise each new connection would get a buffer of adds past the limit.
//! 4. A file that is not understood changes nothing: the rules before stay in force, with an alarm.
//! 5. Without a file there is no tenant, and no request costs more.

pub(crate) mod ledgers;
pub mod meter;
pub mod rules;

use crate::auth::Identity;
use crate::reload::{LoadFailure, Reload, Wording};
use crate::shares::Shares;
use bindery_engine::Share;
use bindery_flow::ByteBudget;
use bindery_io::Clock;
use bindery_metrics::{About, Counter, Exposition, Gauge, Row, Table};
use bindery_types::LedgerId;
use ledgers::LedgerTenants;
use meter::{Meter, Position};
use parking_lot::{Mutex, RwLock};
use rules::{Allowance, DEFAULT, Peer, Rules, RulesError, WEIGHT_DEFAULT};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The most that a limited tenant takes at once, in time at its rate: larger takings would delay others, smaller ones cost wake-ups.
const TAKING: Duration = Duration::from_millis(50);
/// And at least so many bytes.
const TAKING_MIN: u64 = 8 * 1024;

/// The least that a turn brings, in bytes. A large entry saves up turns, and each of them costs a wake-up; above this, weights would not hold
/// between tenants with few and with hundreds of connections.
const QUANTUM_MIN: u64 = 256;

/// Settings of tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantsConfig {
    /// The file of tenants (`tenantsFile`).
    pub file: PathBuf,
    /// How often to look at it for changes.
    pub refresh: Duration,
}

impl TenantsConfig {
    /// The default time between two looks at the file.
    pub const REFRESH_DEFAULT: Duration = Duration::from_secs(10);
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of entries that are added.
    Adds,
    /// Bytes of entries that are read.
    Reads,
}

/// One direction of a tenant.
#[derive(Default)]
struct Flow {
    meter: Mutex<Meter>,
    /// Bytes a second; 0 without a limit. For those who need not look at the meter.
    limit: AtomicU64,
    bytes: Counter,
    requests: Counter,
    waiting: Gauge,
    waits: Counter,
    waited_ns: Counter,
}

/// One tenant. It lives as long as its name stands in the rules.
pub struct Tenant {
    id: u32,
    name: String,
    weight: AtomicU32,
    adds: Flow,
    reads: Flow,
    /// Connections that stand in line for memory for its reads.
    in_line: AtomicUsize,
}

impl Tenant {
    fn new(id: u32, name: &str) -> Tenant {
        Tenant {
            id,
            name: name.to_owned(),
            weight: AtomicU32::new(WEIGHT_DEFAULT),
            adds: Flow::default(),
            reads: Flow::default(),
            in_line: AtomicUsize::new(0),
        }
    }

    fn allow(&self, allowance: Allowance, now_ns: u64) {
        self.weight.store(allowance.weight, Ordering::Relaxed);
        for (flow, limit) in [(&self.adds, allowance.adds), (&self.reads, allowance.reads)] {
            flow.meter.lock().set_rate(limit, now_ns);
            flow.limit.store(limit.unwrap_or(0), Ordering::Relaxed);
        }
    }

    fn flow(&self, kind: Kind) -> &Flow {
        match kind {
            Kind::Adds => &self.adds,
            Kind::Reads => &self.reads,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place among tenants that wait.
    pub fn share(&self) -> Share {
        Share { tenant: self.id, weight: self.weight.load(Ordering::Relaxed) }
    }

    fn limit(&self, kind: Kind) -> Option<u64> {
        Some(self.flow(kind).limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
    }

    /// Bytes that a connection takes at once.
    pub(crate) fn taking(&self, kind: Kind) -> u64 {
        let of_rate = |rate: u64| rate / (1000 / TAKING.as_millis() as u64);
        self.limit(kind).map_or(u64::MAX, |rate| of_rate(rate).max(TAKING_MIN))
    }

    /// Something of it begins to wait for its limit.
    pub(crate) fn waits(self: &Arc<Self>, kind: Kind, now_ns: u64) -> LimitWait {
        self.flow(kind).waiting.add(1);
        LimitWait { tenant: self.clone(), kind, since_ns: now_ns }
    }

    /// A connection stands in line for memory for its reads from now on.
    pub(crate) fn stand_in_line(self: &Arc<Self>) -> InLine {
        self.in_line.fetch_add(1, Ordering::Relaxed);
        InLine(self.clone())
    }

    /// The bytes of a turn of one more of its connections: together they get by weight what turns bring.
    pub(crate) fn quantum(&self, base: usize) -> usize {
        let weighed =
            base as u64 * u64::from(self.weight.load(Ordering::Relaxed)) / u64::from(WEIGHT_DEFAULT);
        let connections = self.in_line.load(Ordering::Relaxed) as u64 + 1;
        (weighed / connections).clamp(QUANTUM_MIN, 16 * base as u64) as usize
    }
}

/// Kept while something of a tenant waits for its limit; counts how long when it is ended.
pub(crate) struct LimitWait {
    tenant: Arc<Tenant>,
    kind: Kind,
    since_ns: u64,
}

impl LimitWait {
    pub(crate) fn end(self, now_ns: u64) {
        let flow = self.tenant.flow(self.kind);
        flow.waits.add(1);
        flow.waited_ns.add(now_ns.saturating_sub(self.since_ns));
    }
}

impl Drop for LimitWait {
    fn drop(&mut self) {
        self.tenant.flow(self.kind).waiting.add(-1);
    }
}

/// Kept while a connection stands in line for memory for a tenant's reads.
pub(crate) struct InLine(Arc<Tenant>);

impl Drop for InLine {
    fn drop(&mut self) {
        self.0.in_line.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The tenant of a request, and whether its limit applies.
#[derive(Clone)]
pub(crate) struct Owner {
    /// The tenant that the request counts for.
    pub(crate) tenant: Arc<Tenant>,
    /// False during the look-up of the ledger's tenant, when the request waits for no limit.
    pub(crate) is_known: bool,
}

impl Owner {
    /// True when both are of one tenant, and wait for its limit, or both do not.
    pub(crate) fn is(&self, other: &Owner) -> bool {
        Arc::ptr_eq(&self.tenant, &other.tenant) && self.is_known == other.is_known
    }
}

/// Rules and the tenants they name.
pub struct InForce {
    generation: u64,
    rules: Rules,
    by_name: BTreeMap<String, Arc<Tenant>>,
    default: Arc<Tenant>,
}

impl InForce {
    /// The tenant of this name, or the default one.
    fn named(&self, name: &str) -> Arc<Tenant> {
        self.by_name.get(name).unwrap_or(&self.default).clone()
    }
}

#[derive(Default)]
struct State {
    text: String,
    reload_failed: LoadFailure,
    reloads: u64,
    next_id: u32,
}

/// See the module.
pub struct Tenants {
    config: TenantsConfig,
    clock: Arc<dyn Clock>,
    in_force: RwLock<Arc<InForce>>,
    /// Of the rules in force; for those who have looked.
    generation: AtomicU64,
    state: Mutex<State>,
    ledgers: LedgerTenants,
    /// Bytes that wait with adds of tenants, by the name of their pool.
    held: Mutex<BTreeMap<&'static str, Shares<u32>>>,
}

impl Tenants {
    /// Loads the file. Blocks.
    ///
    /// # Errors
    /// A file that cannot be read or is not understood, with the line, and what to write.
    pub fn open(config: TenantsConfig, clock: Arc<dyn Clock>) -> Result<Tenants, RulesError> {
        let text = rules::read(&config.file)?;
        let rules = Rules::of_text(&config.file, &text)?;
        let mut state = State { text, ..State::default() };
        let in_force = in_force_of(rules, None, &mut state, clock.monotonic_ns());
        tracing::info!(
            tenants = in_force.by_name.len(),
            rules = in_force.rules.count(),
            "requests are counted and limited by tenant"
        );
        Ok(Tenants {
            config,
            clock,
            generation: AtomicU64::new(in_force.generation),
            in_force: RwLock::new(Arc::new(in_force)),
            state: Mutex::new(state),
            ledgers: LedgerTenants::default(),
            held: Mutex::default(),
        })
    }

    fn in_force(&self) -> Arc<InForce> {
        self.in_force.read().clone()
    }

    /// Lets adds wait in so many bytes of a pool; `None` when the tenant may have no more of it (invariant 3).
    pub(crate) fn hold(
        self: &Arc<Self>,
        tenant: &Tenant,
        pool: &ByteBudget,
        bytes: u64,
    ) -> Option<HeldMemory> {
        let mut held = self.held.lock();
        let is_held = held.entry(pool.name()).or_default().take(tenant.id, bytes, pool.capacity());
        is_held.then(|| HeldMemory { tenants: self.clone(), tenant: tenant.id, pool: pool.name(), bytes })
    }

    /// Problems that an operator must know about.
    pub fn alarms(&self) -> Vec<String> {
        self.state.lock().reload_failed.alarm(&Self::WORDING).into_iter().collect()
    }

    /// All tenants, for operators.
    pub fn view(&self) -> Vec<TenantFlow> {
        let in_force = self.in_force();
        in_force.by_name.values().map(|tenant| TenantFlow::of(tenant)).collect()
    }

    /// The names of its metrics.
    pub(crate) fn about_numbers() -> Vec<About> {
        [NUMBERS.about(), BY_TENANT.about()].concat()
    }

    /// Metrics.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        NUMBERS.expose(self, out);
        let in_force = self.in_force();
        let tenants = in_force.by_name.values();
        BY_TENANT.expose_each(tenants.map(|tenant| (tenant.name.as_str(), &**tenant)), out);
    }
}

impl Reload for Tenants {
    const WORDING: Wording =
        Wording { files: "the file of tenants", kept: "the rules loaded earlier stay in force" };

    fn reload(&self, is_last_try: bool) -> bool {
        let read = rules::read(&self.config.file).and_then(|text| {
            if text == self.state.lock().text {
                return Ok(None);
            }
            let rules = Rules::of_text(&self.config.file, &text)?;
            Ok(Some((text, rules)))
        });
        let mut state = self.state.lock();
        let failed = match read {
            Ok(changed) => {
                if let Some((text, rules)) = changed {
                    let before = self.in_force();
                    let now = in_force_of(rules, Some(&before), &mut state, self.clock.monotonic_ns());
                    tracing::info!(
                        tenants = now.by_name.len(),
                        rules = now.rules.count(),
                        "file of tenants reloaded"
                    );
                    *self.in_force.write() = Arc::new(now);
                    self.generation.store(before.generation + 1, Ordering::Release);
                    state.text = text;
                    state.reloads += 1;
                }
                None
            }
            Err(error) if is_last_try => Some(error.to_string()),
            Err(_) => return true,
        };
        state.reload_failed.note(failed, &Self::WORDING)
    }
}

/// Tenants that were there keep what they have taken and what they are counted for.
fn in_force_of(rules: Rules, before: Option<&InForce>, state: &mut State, now_ns: u64) -> InForce {
    let mut by_name = BTreeMap::new();
    for (name, allowance) in &rules.tenants {
        let known = before.and_then(|before| before.by_name.get(name)).cloned();
        let tenant = known.unwrap_or_else(|| {
            state.next_id += 1;
            Arc::new(Tenant::new(state.next_id, name))
        });
        tenant.allow(*allowance, now_ns);
        by_name.insert(name.clone(), tenant);
    }
    let gone = before.into_iter().flat_map(|before| before.by_name.values());
    for tenant in gone.filter(|tenant| !by_name.contains_key(&tenant.name)) {
        // Its limit ends with it, also for those that wait.
        tenant.allow(Allowance::default(), now_ns);
    }
    let default = by_name.get(DEFAULT).cloned().expect("rules have it always");
    InForce { generation: before.map_or(1, |before| before.generation + 1), rules, by_name, default }
}

/// Bytes of a pool that wait with a tenant's adds.
pub(crate) struct HeldMemory {
    tenants: Arc<Tenants>,
    tenant: u32,
    pool: &'static str,
    bytes: u64,
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        let mut held = self.tenants.held.lock();
        held.entry(self.pool).or_default().give_back(self.tenant, self.bytes);
    }
}

/// A tenant as one connection meets it.
struct Stand {
    tenant: Arc<Tenant>,
    adds: Position,
    reads: Position,
    /// An add was taken that had to be paid.
    has_added: bool,
}

/// The tenants of one connection, and what it took of each.
#[derive(Default)]
pub(crate) struct Tenancy {
    /// Of the rules that `of_peer` was found with; 0 for none.
    generation: u64,
    of_peer: Option<Arc<Tenant>>,
    wants_properties: bool,
    in_force: Option<Arc<InForce>>,
    stands: Vec<Stand>,
    /// Those that are to be paid before the connection is read again (invariant 3).
    paused_for: Vec<Arc<Tenant>>,
}

impl Tenancy {
    fn look(&mut self, tenants: &Tenants, identity: Option<&Identity>) {
        if self.generation == tenants.generation.load(Ordering::Acquire) && self.in_force.is_some() {
            return;
        }
        let in_force = tenants.in_force();
        self.of_peer = identity.and_then(|identity| {
            let peer = match identity.is_user() {
                true => Peer::User(identity.name()),
                false => Peer::Role(identity.name()),
            };
            in_force.rules.of_peer(peer).map(|name| in_force.named(name))
        });
        self.wants_properties = in_force.rules.wants_properties();
        self.generation = in_force.generation;
        self.stands.retain(|stand| in_force.by_name.contains_key(&stand.tenant.name));
        self.in_force = Some(in_force);
    }

    /// Whose a request to this ledger is. `is_worth_it`: whether the ledger is to be looked up for it.
    pub(crate) fn owner_of(
        &mut self,
        tenants: &Tenants,
        identity: Option<&Identity>,
        ledger: LedgerId,
        is_worth_it: impl FnOnce() -> bool,
    ) -> Owner {
        self.look(tenants, identity);
        if let Some(tenant) = &self.of_peer {
            return Owner { tenant: tenant.clone(), is_known: true };
        }
        let in_force = self.in_force.as_ref().expect("it was looked up");
        match self.wants_properties {
            true => tenants.ledgers.of(ledger, in_force, || tenants.clock.monotonic_ns(), is_worth_it),
            false => Owner { tenant: in_force.default.clone(), is_known: true },
        }
    }

    fn stand(&mut self, tenant: &Arc<Tenant>) -> &mut Stand {
        let at = self.stands.iter().position(|stand| Arc::ptr_eq(&stand.tenant, tenant));
        let at = at.unwrap_or_else(|| {
            let place = |kind| tenant.flow(kind).meter.lock().position();
            let (adds, reads) = (place(Kind::Adds), place(Kind::Reads));
            self.stands.push(Stand { tenant: tenant.clone(), adds, reads, has_added: false });
            self.stands.len() - 1
        });
        &mut self.stands[at]
    }

    /// How long until this connection may take more for a tenant; `None` when it may.
    pub(crate) fn until_paid(&mut self, tenant: &Arc<Tenant>, kind: Kind, now_ns: u64) -> Option<Duration> {
        tenant.limit(kind)?;
        let stand = self.stand(tenant);
        let position = match kind {
            Kind::Adds => stand.adds,
            Kind::Reads => stand.reads,
        };
        tenant.flow(kind).meter.lock().until_paid(position, now_ns)
    }

    /// True when an add of this connection was taken, for this tenant, that had to be paid.
    pub(crate) fn has_added(&mut self, tenant: &Arc<Tenant>) -> bool {
        self.stand(tenant).has_added
    }

    /// Counts what was taken for a tenant; what `is_free` waits for no limit (invariant 2).
    pub(crate) fn take(
        &mut self,
        tenant: &Arc<Tenant>,
        kind: Kind,
        bytes: u64,
        requests: u64,
        is_free: bool,
        now_ns: u64,
    ) {
        let flow = tenant.flow(kind);
        flow.bytes.add(bytes);
        flow.requests.add(requests);
        if tenant.limit(kind).is_none() {
            return;
        }
        let position = match is_free {
            true => flow.meter.lock().take_free(bytes, now_ns),
            false => flow.meter.lock().take(bytes, now_ns),
        };
        let stand = self.stand(tenant);
        match kind {
            Kind::Adds => {
                stand.adds = position;
                stand.has_added |= !is_free;
            }
            Kind::Reads => stand.reads = position,
        }
    }

    /// The connection is not to be read before what it took for this tenant is paid.
    pub(crate) fn pause_for(&mut self, tenant: &Arc<Tenant>) {
        if !self.paused_for.iter().any(|paused| Arc::ptr_eq(paused, tenant)) {
            self.paused_for.push(tenant.clone());
        }
    }

    /// How long the connection is not to be read, at least, and for whom.
    pub(crate) fn paused(&mut self, now_ns: u64) -> Option<(Duration, Arc<Tenant>)> {
        while let Some(tenant) = self.paused_for.last().cloned() {
            if let Some(wait) = self.until_paid(&tenant, Kind::Adds, now_ns) {
                return Some((wait, tenant));
            }
            self.paused_for.pop();
        }
        None
    }
}

/// One direction of a tenant, for operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectionFlow {
    /// Bytes of entries since the start.
    pub bytes: u64,
    /// Requests since the start.
    pub requests: u64,
    /// Its limit in bytes a second, if it has one.
    pub limit: Option<u64>,
    /// Batches of adds, or connections with reads, that wait for the limit now.
    pub waiting: u64,
    /// Waits that ended.
    pub waits: u64,
    /// How long those were, together.
    pub waited_ms: u64,
}

/// A tenant, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantFlow {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: u32,
    /// What it adds.
    pub adds: DirectionFlow,
    /// What it reads.
    pub reads: DirectionFlow,
}

impl TenantFlow {
    fn of(tenant: &Tenant) -> TenantFlow {
        let direction = |kind| {
            let flow = tenant.flow(kind);
            DirectionFlow {
                bytes: flow.bytes.get(),
                requests: flow.requests.get(),
                limit: tenant.limit(kind),
                waiting: u64::try_from(flow.waiting.get()).unwrap_or(0),
                waits: flow.waits.get(),
                waited_ms: flow.waited_ns.get() / 1_000_000,
            }
        };
        TenantFlow {
            name: tenant.name.clone(),
            weight: tenant.weight.load(Ordering::Relaxed),
            adds: direction(Kind::Adds),
            reads: direction(Kind::Reads),
        }
    }
}

const NUMBERS: Table<Tenants> = Table::new(&[
    Row::counter("bindery_tenants_reloads", "Times a changed file of tenants was loaded.", |tenants| {
        tenants.state.lock().reloads
    }),
    Row::flag(
        "bindery_tenants_reload_failed",
        "1 while the file of tenants cannot be loaded: rules loaded earlier stay in force.",
        |tenants| tenants.state.lock().reload_failed.is_some(),
    ),
    Row::counter(
        "bindery_tenants_look_ups",
        "Ledgers whose metadata was read to know their tenant.",
        |tenants| tenants.ledgers.look_ups.load(Ordering::Relaxed),
    ),
    Row::counter("bindery_tenants_look_ups_failed", "Of these, those that got no answer.", |tenants| {
        tenants.ledgers.failures.load(Ordering::Relaxed)
    }),
    Row::gauge("bindery_tenants_ledgers_known", "Ledgers whose tenant is known or asked for.", |tenants| {
        tenants.ledgers.len() as u64
    }),
]);

const BY_TENANT: Table<Tenant> = Table::by(
    "tenant",
    &[
        Row::gauge("bindery_tenant_weight", "Its weight where there is not enough for all.", |tenant| {
            u64::from(tenant.weight.load(Ordering::Relaxed))
        }),
        Row::counter(
            "bindery_tenant_add_bytes",
            "Bytes of entries added, those of recoveries included.",
            |tenant| tenant.adds.bytes.get(),
        ),
        Row::counter("bindery_tenant_adds", "Adds.", |tenant| tenant.adds.requests.get()),
        Row::gauge(
            "bindery_tenant_add_limit_bytes",
            "Bytes that it may add in a second; 0: no limit.",
            |tenant| tenant.limit(Kind::Adds).unwrap_or(0),
        ),
        Row::gauge("bindery_tenant_adds_waiting", "Batches of adds that wait for the limit now.", |tenant| {
            u64::try_from(tenant.adds.waiting.get()).unwrap_or(0)
        }),
        Row::counter("bindery_tenant_add_waits", "Waits of adds for the limit that ended.", |tenant| {
            tenant.adds.waits.get()
        }),
        Row::counter("bindery_tenant_add_waited_ms", "Milliseconds of these waits.", |tenant| {
            tenant.adds.waited_ns.get() / 1_000_000
        }),
        Row::counter(
            "bindery_tenant_read_bytes",
            "Bytes of entries that reads were answered with.",
            |tenant| tenant.reads.bytes.get(),
        ),
        Row::counter("bindery_tenant_reads", "Reads of entries.", |tenant| tenant.reads.requests.get()),
        Row::gauge(
            "bindery_tenant_read_limit_bytes",
            "Bytes that it may read in a second; 0: no limit.",
            |tenant| tenant.limit(Kind::Reads).unwrap_or(0),
        ),
        Row::gauge(
            "bindery_tenant_reads_waiting",
            "Connections whose reads wait for the limit now.",
            |tenant| u64::try_from(tenant.reads.waiting.get()).unwrap_or(0),
        ),
        Row::counter("bindery_tenant_read_waits", "Waits of reads for the limit that ended.", |tenant| {
            tenant.reads.waits.get()
        }),
        Row::counter("bindery_tenant_read_waited_ms", "Milliseconds of these waits.", |tenant| {
            tenant.reads.waited_ns.get() / 1_000_000
        }),
    ],
);

#[cfg(test)]
mod tests;
