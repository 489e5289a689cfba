//! Collects where bookies stand and how much room their disks have, in the background, for policies that ask for it.
//!
//! # Data flow
//! ```text
//! list of bookies --> wanted --> locate task: registration -> host -> resolver -> location --+--> Candidates
//!                           '--> weigh task:  GET_BOOKIE_INFO -> free bytes ---------------- '
//! ledgers that are read --> wanted --> locate task --> Here: how far away they are, for the order of reads
//! ```
//! # Invariants
//! 1. A caller that needs candidates waits only for bookies that were never asked about, and for a bounded time: for places of the
//!    candidates and of those beside which they are to stand, for free bytes of candidates alone, and for nothing of one that new
//!    ensembles avoid. So a dead member is replaced without waiting for it. Known values are used while they are refreshed.
//!    Readers never wait.
//! 2. A bookie whose place cannot be found keeps the one last known, or none, which is the default rack. A failed
//!    look-up is tried again after [`RETRY`].
//! 3. The tasks end with the survey. One that nobody needs asks nobody: bookies unasked for since [`FORGET_AFTER`] are
//!    forgotten.
//!
//! # Limits     an entry for each bookie listed or in an ensemble that changed; [`WEIGH_AT_ONCE`] questions under way

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::codec::service_info::PROTOCOL_BOOKIE_RPC;
use bindery_metadata::layout::Registration;
use bindery_types::{BookieId, bare_host};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::weight::weights;
use super::{Candidates, Here, Location};
use crate::resolver::{NetworkResolver, ResolveError};
use crate::transport::Transport;

/// How old a place may be.
const LOCATION_REFRESH: Duration = Duration::from_secs(300);
/// When what failed is tried again.
const RETRY: Duration = Duration::from_secs(10);
const FORGET_AFTER: Duration = Duration::from_secs(3600);
/// How long the registration may take to say where bookies listen.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a new ledger waits for places: longer than a script may take.
const PATIENCE_NEW: Duration = Duration::from_secs(12);
/// How long a replacement does: a writer waits for it.
const PATIENCE_REPLACE: Duration = Duration::from_secs(2);
/// How long anybody waits for free bytes: one that does not answer counts as the median.
const PATIENCE_WEIGHT: Duration = Duration::from_secs(1);
const WEIGH_AT_ONCE: usize = 16;

/// Default of [`DiskWeights::multiple_max`].
pub const WEIGHT_MULTIPLE_MAX_DEFAULT: u32 = 3;
/// Default of [`DiskWeights::interval`].
pub const BOOKIE_INFO_INTERVAL_DEFAULT: Duration = Duration::from_secs(300);

/// How free disk space steers the choice of bookies (`diskWeightBasedPlacementEnabled`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskWeights {
    /// No bookie counts more than so many times the median; 0 for no bound
    /// (`bookieMaxWeightMultipleForWeightBasedPlacement`).
    pub multiple_max: u32,
    /// How often bookies are asked (`getBookieInfoIntervalSeconds`).
    pub interval: Duration,
}

impl Default for DiskWeights {
    fn default() -> DiskWeights {
        DiskWeights { multiple_max: WEIGHT_MULTIPLE_MAX_DEFAULT, interval: BOOKIE_INFO_INTERVAL_DEFAULT }
    }
}

impl DiskWeights {
    /// The same as the default.
    pub fn new() -> DiskWeights {
        DiskWeights::default()
    }

    /// Another [`multiple_max`](Self::multiple_max).
    pub fn multiple_max(mut self, multiple: u32) -> DiskWeights {
        self.multiple_max = multiple;
        self
    }

    /// Another [`interval`](Self::interval).
    pub fn interval(mut self, interval: Duration) -> DiskWeights {
        self.interval = interval;
        self
    }
}

/// What is known of a bookie.
struct Known {
    wanted_at: Instant,
    location: Option<Location>,
    /// When to ask for it again; `None` until the first attempt is over.
    locate_at: Option<Instant>,
    free_bytes: Option<u64>,
    weigh_at: Option<Instant>,
}

impl Known {
    fn new(now: Instant) -> Known {
        Known { wanted_at: now, location: None, locate_at: None, free_bytes: None, weigh_at: None }
    }
}

/// Who may want to know where bookies stand.
#[derive(Default)]
pub(crate) struct Places {
    /// Who knows it.
    pub resolver: Option<Arc<dyn NetworkResolver>>,
    /// Whether candidates for ensembles wait for it.
    pub are_for_candidates: bool,
    /// Whether reads are to go to what is near.
    pub here: Option<Here>,
}

struct Inner {
    registration: Registration,
    transport: Arc<dyn Transport>,
    places: Places,
    disks: Option<DiskWeights>,
    known: Mutex<BTreeMap<BookieId, Known>>,
    /// Of the last attempt to find places.
    places_error: Mutex<Option<ResolveError>>,
    wake_locate: Notify,
    wake_weigh: Notify,
    /// Counts what was found out.
    rounds: watch::Sender<u64>,
}

/// See the module.
pub(crate) struct Survey {
    inner: Arc<Inner>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Survey {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Survey {
    /// Without a resolver it asks for no bookie's place, without `disks` for no bookie's space.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(
        registration: Registration,
        transport: Arc<dyn Transport>,
        places: Places,
        disks: Option<DiskWeights>,
    ) -> Survey {
        let inner = Arc::new(Inner {
            registration,
            transport,
            places,
            disks,
            known: Mutex::default(),
            places_error: Mutex::default(),
            wake_locate: Notify::new(),
            wake_weigh: Notify::new(),
            rounds: watch::Sender::new(0),
        });
        let mut tasks = Vec::new();
        if let Some(resolver) = inner.places.resolver.clone() {
            tasks.push(tokio::spawn(locate(inner.clone(), resolver)));
        }
        if let Some(disks) = inner.disks {
            tasks.push(tokio::spawn(weigh(inner.clone(), disks)));
        }
        Survey { inner, tasks }
    }

    /// Adds what is known of the candidates, of whom `avoided` are said already, and of `members`.
    pub async fn complete(&self, candidates: &mut Candidates, members: &[BookieId]) {
        let inner = &*self.inner;
        if self.tasks.is_empty() {
            return;
        }
        let started = Instant::now();
        {
            let mut known = inner.known.lock();
            for bookie in candidates.writable.iter().chain(members) {
                known.entry(bookie.clone()).or_insert_with(|| Known::new(started)).wanted_at = started;
            }
        }
        let patience = if members.is_empty() { PATIENCE_NEW } else { PATIENCE_REPLACE };
        if inner.places.resolver.is_some() && inner.places.are_for_candidates {
            let is_done = |known: &Known| known.locate_at.is_some();
            let of = candidates.writable.iter().chain(members);
            let of = of.filter(|bookie| !candidates.avoided.contains(*bookie)).collect();
            inner.wait(&inner.wake_locate, started + patience, of, is_done).await;
        }
        if inner.disks.is_some() {
            let is_done = |known: &Known| known.weigh_at.is_some();
            let is_out = |bookie: &BookieId| members.contains(bookie) || candidates.avoided.contains(bookie);
            let of = candidates.writable.iter().filter(|bookie| !is_out(bookie)).collect();
            inner.wait(&inner.wake_weigh, started + PATIENCE_WEIGHT, of, is_done).await;
        }
        candidates.places_error = inner.places_error.lock().clone();
        let known = inner.known.lock();
        let places =
            known.iter().filter_map(|(bookie, known)| Some((bookie.clone(), known.location.clone()?)));
        candidates.locations = places.collect();
        if let Some(disks) = inner.disks {
            let writable = candidates.writable.iter();
            let free = writable.filter_map(|bookie| Some((bookie.clone(), known.get(bookie)?.free_bytes?)));
            candidates.weights = weights(&free.collect(), disks.multiple_max);
        }
    }

    /// Bookies that are read from: how far away they are is told now, if it is known, and whenever it changes.
    pub fn look_for<'a>(&self, bookies: impl Iterator<Item = &'a BookieId>) {
        let inner = &*self.inner;
        let (Some(here), Some(_)) = (&inner.places.here, &inner.places.resolver) else { return };
        let now = Instant::now();
        let mut known = inner.known.lock();
        let mut is_any_new = false;
        for bookie in bookies {
            let known = known.entry(bookie.clone()).or_insert_with(|| Known::new(now));
            known.wanted_at = now;
            is_any_new |= known.locate_at.is_none();
            if known.location.is_some() {
                here.tell(bookie, known.location.as_ref());
            }
        }
        drop(known);
        if is_any_new {
            inner.wake_locate.notify_one();
        }
    }
}

impl Inner {
    /// Until these bookies have been asked about once (invariant 1).
    async fn wait(
        &self,
        wake: &Notify,
        deadline: Instant,
        of: Vec<&BookieId>,
        is_done: impl Fn(&Known) -> bool,
    ) {
        let mut rounds = self.rounds.subscribe();
        let are_done = || {
            let known = self.known.lock();
            of.iter().all(|bookie| known.get(bookie).is_none_or(&is_done))
        };
        while !are_done() {
            wake.notify_one();
            if timeout_at(deadline, rounds.changed()).await.is_err() {
                tracing::debug!("not waiting any longer for what is asked about bookies");
                return;
            }
        }
    }

    /// The bookies that are to be asked about now, or when there will be some.
    fn due(&self, at: impl Fn(&Known) -> Option<Instant>) -> (Vec<BookieId>, Option<Instant>) {
        let now = Instant::now();
        let mut known = self.known.lock();
        known.retain(|_, known| now.saturating_duration_since(known.wanted_at) < FORGET_AFTER);
        let is_due = |known: &Known| at(known).is_none_or(|due| due <= now);
        let due = known.iter().filter(|(_, known)| is_due(known)).map(|(bookie, _)| bookie.clone());
        (due.collect(), known.values().filter_map(at).min())
    }

    fn note(&self, change: impl FnOnce(&mut BTreeMap<BookieId, Known>)) {
        change(&mut self.known.lock());
        self.rounds.send_modify(|rounds| *rounds += 1);
    }

    /// The bookies' names in the network: the host of the registration, else of the id.
    async fn hosts(&self, bookies: &[BookieId]) -> Vec<String> {
        let deadline = Instant::now() + LOOK_UP_TIMEOUT;
        let mut hosts = Vec::with_capacity(bookies.len());
        for bookie in bookies {
            let info = timeout_at(deadline, self.registration.service_info(bookie)).await;
            let endpoint = match info {
                Ok(Ok(Some(Ok(info)))) => {
                    info.endpoints.into_iter().find(|known| known.protocol == PROTOCOL_BOOKIE_RPC)
                }
                _ => None,
            };
            hosts.push(endpoint.map_or_else(|| host_of_id(bookie), |endpoint| endpoint.host));
        }
        hosts
    }
}

/// Of an id that is `host:port`; else the id itself.
fn host_of_id(bookie: &BookieId) -> String {
    let id = bookie.as_str();
    let host =
        id.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(id, |(host, _)| host);
    bare_host(host).into()
}

async fn rest(wake: &Notify, next: Option<Instant>) {
    match next {
        Some(next) => tokio::select! {
            () = wake.notified() => {}
            () = sleep_until(next) => {}
        },
        None => wake.notified().await,
    }
}

async fn locate(inner: Arc<Inner>, resolver: Arc<dyn NetworkResolver>) {
    loop {
        let (bookies, next) = inner.due(|known| known.locate_at);
        if bookies.is_empty() {
            rest(&inner.wake_locate, next).await;
            continue;
        }
        let hosts = inner.hosts(&bookies).await;
        let found = match resolver.resolve(&hosts).await {
            Ok(found) if found.len() != hosts.len() => {
                let (expected, found) = (hosts.len(), found.len());
                Err(ResolveError::Other(format!("a resolver gave {found} answers for {expected} hosts")))
            }
            found => found,
        };
        let after = if found.is_ok() { LOCATION_REFRESH } else { RETRY };
        let due = Instant::now() + after;
        match found {
            Ok(found) => {
                *inner.places_error.lock() = None;
                inner.note(|known| {
                    for ((bookie, host), location) in bookies.iter().zip(&hosts).zip(found) {
                        let Some(known) = known.get_mut(bookie) else { continue };
                        if location.is_none() && (known.locate_at.is_none() || known.location.is_some()) {
                            tracing::warn!(bookie_id = %bookie, host, "rack unknown: treating the bookie as being in \
                             {}",
                                Location::default());
                        }
                        if let Some(here) = &inner.places.here {
                            here.tell(bookie, location.as_ref());
                        }
                        (known.location, known.locate_at) = (location, Some(due));
                    }
                });
            }
            Err(error) => {
                // Once, not every time.
                let last = inner.places_error.lock().replace(error.clone());
                if last.as_ref() != Some(&error) {
                    tracing::warn!(%error, "cannot resolve racks: bookies keep their last known racks, or count as \
                     being in {}", Location::default());
                }
                // Invariant 2.
                inner.note(|known| {
                    for bookie in &bookies {
                        if let Some(known) = known.get_mut(bookie) {
                            known.locate_at = Some(due);
                        }
                    }
                });
            }
        }
    }
}

async fn weigh(inner: Arc<Inner>, disks: DiskWeights) {
    loop {
        let (bookies, next) = inner.due(|known| known.weigh_at);
        if bookies.is_empty() {
            rest(&inner.wake_weigh, next).await;
            continue;
        }
        // Dropped with this future: no question outlives it.
        let mut questions = JoinSet::new();
        let mut waiting = bookies.into_iter();
        loop {
            while questions.len() < WEIGH_AT_ONCE
                && let Some(bookie) = waiting.next()
            {
                let transport = inner.transport.clone();
                questions.spawn(async move {
                    let answer = transport.disk_space(&bookie).await;
                    (bookie, answer)
                });
            }
            let (bookie, answer) = match questions.join_next().await {
                None => break,
                Some(Ok(answered)) => answered,
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            };
            let interval = disks.interval.max(Duration::from_secs(1));
            let after = if answer.is_ok() { interval } else { RETRY.min(interval) };
            inner.note(|known| {
                let Some(known) = known.get_mut(&bookie) else { return };
                known.weigh_at = Some(Instant::now() + after);
                match answer {
                    Ok(space) => known.free_bytes = Some(space.free_bytes),
                    Err(error) => {
                        tracing::debug!(bookie_id = %bookie, %error, "its free disk space is not known")
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::NodeHealth;
    use crate::location::Distance;
    use crate::resolver::Resolution;
    use crate::transport::{
        AddRequest, AddSink, Answer, BatchReadRequest, BookieError, DiskSpace, LacAnswer, PollRequest,
        ReadRequest,
    };
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, RegistrationMode, layout};
    use bindery_types::{EntryId, LedgerId, MasterKey};
    use bytes::Bytes;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::time::{advance, sleep};

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    /// Says what a host is called, fails, or hangs; counts.
    struct Racks {
        says: Mutex<Option<Result<&'static str, &'static str>>>,
        asked: Mutex<Vec<Vec<String>>>,
    }

    impl NetworkResolver for Arc<Racks> {
        fn resolve<'a>(&'a self, hosts: &'a [String]) -> Resolution<'a> {
            self.asked.lock().push(hosts.to_vec());
            let says = *self.says.lock();
            Box::pin(async move {
                match says {
                    Some(Ok("")) => Ok(vec![None; hosts.len()]),
                    Some(Ok(prefix)) => {
                        let place = |host: &String| Location::new(&format!("{prefix}{host}")).ok();
                        Ok(hosts.iter().map(place).collect())
                    }
                    Some(Err(error)) => Err(ResolveError::Other(error.into())),
                    None => std::future::pending().await,
                }
            })
        }
    }

    /// Bookies that know of nothing but their disks: `b1` has 1 GiB, `b2` 2 GiB, `dead` never answers, the others do not say.
    #[derive(Default)]
    struct Disks(AtomicU32);

    impl Transport for Disks {
        fn add(&self, _: &BookieId, _: AddRequest, _: &Arc<dyn AddSink>) {
            unreachable!()
        }
        fn read(&self, _: &BookieId, _: ReadRequest) -> Answer<'_, Bytes> {
            unreachable!()
        }
        fn batch_read(&self, _: &BookieId, _: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
            unreachable!()
        }
        fn read_lac(&self, _: &BookieId, _: LedgerId) -> Answer<'_, LacAnswer> {
            unreachable!()
        }
        fn write_lac(&self, _: &BookieId, _: LedgerId, _: MasterKey, _: EntryId, _: Bytes) -> Answer<'_, ()> {
            unreachable!()
        }
        fn poll_lac(&self, _: &BookieId, _: PollRequest) -> Answer<'_, Option<EntryId>> {
            unreachable!()
        }
        fn disk_space(&self, bookie: &BookieId) -> Answer<'_, DiskSpace> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let free_bytes = match bookie.as_str() {
                "b1" => 1 << 30,
                "b2" => 2 << 30,
                "dead" => return Box::pin(std::future::pending()),
                _ => return Box::pin(async { Err(BookieError::Lost) }),
            };
            Box::pin(async move { Ok(DiskSpace { total_bytes: 4 << 30, free_bytes }) })
        }
    }

    struct Setup {
        layout: Layout,
        racks: Arc<Racks>,
        disks: Arc<Disks>,
    }

    impl Setup {
        /// `b1` listens on host `h1`, and so on.
        async fn new(says: Option<Result<&'static str, &'static str>>) -> Setup {
            let metadata = MemoryCluster::new();
            let store = metadata.open();
            layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
            let layout = Layout::open(Arc::new(metadata.open()), "/ledgers", None).await.unwrap();
            for index in 1..4 {
                let host = format!("h{index}");
                let info = BookieServiceInfo::of_bookie((&host, 3181), None);
                let name = id(&format!("b{index}"));
                layout.registration().register(&name, RegistrationMode::Writable, &info).await.unwrap();
            }
            let racks = Arc::new(Racks { says: Mutex::new(says), asked: Mutex::default() });
            Setup { layout, racks, disks: Arc::default() }
        }

        fn survey(&self, disks: Option<DiskWeights>) -> Survey {
            self.survey_from(disks, true, None)
        }

        fn survey_from(
            &self,
            disks: Option<DiskWeights>,
            are_for_candidates: bool,
            here: Option<Here>,
        ) -> Survey {
            let resolver: Option<Arc<dyn NetworkResolver>> = Some(Arc::new(self.racks.clone()));
            let places = Places { resolver, are_for_candidates, here };
            Survey::start(self.layout.registration(), self.disks.clone(), places, disks)
        }
    }

    async fn complete(survey: &Survey, names: &str, members: &[BookieId]) -> Candidates {
        let writable = names.split(' ').map(id).collect();
        let mut candidates = Candidates { writable, ..Candidates::default() };
        survey.complete(&mut candidates, members).await;
        candidates
    }

    fn racks(candidates: &Candidates) -> Vec<&str> {
        candidates.locations.values().map(Location::rack).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn new_bookies_are_waited_for_and_known_ones_are_asked_about_in_the_background() {
        let setup = Setup::new(Some(Ok("/eu/"))).await;
        let survey = setup.survey(None);
        let found = complete(&survey, "b1 b2", &[id("10.0.0.9:3181")]).await;
        assert_eq!(racks(&found), ["/eu/10.0.0.9", "/eu/h1", "/eu/h2"], "one that is gone, by its id");
        let again = complete(&survey, "b1 b2", &[]).await;
        assert_eq!((racks(&again), setup.racks.asked.lock().len()), (racks(&found), 1), "invariant 1: known");
        complete(&survey, "b1 b2 b3", &[]).await;
        assert_eq!(setup.racks.asked.lock().last().unwrap(), &["h3"], "the new one alone");
        *setup.racks.says.lock() = Some(Ok("/us/"));
        advance(LOCATION_REFRESH + Duration::from_secs(1)).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(racks(&complete(&survey, "b1", &[]).await)[1], "/us/h1");
        let asked = setup.racks.asked.lock().len();
        advance(FORGET_AFTER * 2).await;
        sleep(Duration::from_secs(1)).await;
        let then = setup.racks.asked.lock().len();
        assert!(then <= asked + 1, "invariant 3: nobody needs it: {then}");
        sleep(FORGET_AFTER).await;
        assert_eq!(setup.racks.asked.lock().len(), then, "invariant 3");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_keeps_the_last_place_and_is_tried_again() {
        // Invariant 2.
        let setup = Setup::new(Some(Err("no database"))).await;
        let survey = setup.survey(None);
        let found = complete(&survey, "b1", &[]).await;
        assert!(racks(&found).is_empty());
        assert_eq!(found.places_error, Some(ResolveError::Other("no database".into())));
        *setup.racks.says.lock() = Some(Ok("/eu/"));
        sleep(RETRY + Duration::from_secs(1)).await;
        assert_eq!(racks(&complete(&survey, "b1", &[]).await), ["/eu/h1"]);
        *setup.racks.says.lock() = Some(Err("no database"));
        sleep(LOCATION_REFRESH + RETRY).await;
        assert_eq!(racks(&complete(&survey, "b1", &[]).await), ["/eu/h1"]);
        *setup.racks.says.lock() = Some(Ok(""));
        sleep(RETRY * 2).await;
        assert!(racks(&complete(&survey, "b1", &[]).await).is_empty(), "it is in no rack any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_hangs_is_waited_for_a_bounded_time() {
        let setup = Setup::new(None).await;
        let survey = setup.survey(None);
        let started = Instant::now();
        complete(&survey, "b1", &[id("b2")]).await;
        assert_eq!(started.elapsed(), PATIENCE_REPLACE, "a writer waits");
        complete(&survey, "b1", &[]).await;
        assert_eq!(started.elapsed(), PATIENCE_REPLACE + PATIENCE_NEW, "invariant 1");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_are_told_how_far_away_bookies_are_and_nobody_waits() {
        let setup = Setup::new(None).await;
        let health = Arc::new(NodeHealth::new(1));
        let nodes = ["b1", "b2"].map(|name| health.node(&id(name)));
        let distances = || nodes.each_ref().map(|node| node.distance());
        let here = Here { location: Location::new("/eu/h1").unwrap(), health: health.clone() };
        let survey = setup.survey_from(None, false, Some(here));
        let started = Instant::now();
        survey.look_for([&id("b1")].into_iter());
        complete(&survey, "b1 b2", &[]).await;
        assert_eq!(started.elapsed(), Duration::ZERO, "invariant 1: a placement that does not care");
        assert_eq!(distances(), [Distance::Far; 2], "the resolver hangs");

        let setup = Setup::new(Some(Ok("/eu/"))).await;
        let here = Here { location: Location::new("/eu/h1").unwrap(), health: health.clone() };
        let survey = setup.survey_from(None, false, Some(here));
        survey.look_for([id("b1"), id("b2")].iter());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(distances(), [Distance::Rack, Distance::Region]);
        // A bookie whose node was forgotten meanwhile, and one that moved.
        health.is_at(&id("b1"), Distance::Far);
        survey.look_for([&id("b1")].into_iter());
        assert_eq!(distances(), [Distance::Rack, Distance::Region], "known: at once");
        *setup.racks.says.lock() = Some(Ok("/us/"));
        sleep(LOCATION_REFRESH + Duration::from_secs(1)).await;
        assert_eq!(distances(), [Distance::Far; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_bookie_is_not_waited_for_when_it_is_replaced_avoided_or_only_read_from() {
        let setup = Setup::new(Some(Ok("/"))).await;
        let here = Here { location: Location::new("/h1").unwrap(), health: Arc::new(NodeHealth::new(1)) };
        let survey = setup.survey_from(Some(DiskWeights::default()), true, Some(here));
        let (started, dead) = (Instant::now(), id("dead"));
        survey.look_for([&dead].into_iter());
        complete(&survey, "b1 b2", &[]).await;
        complete(&survey, "b1 b2 dead", &[id("b1"), dead.clone()]).await;
        let writable = ["b1", "dead"].map(id).into();
        let mut candidates =
            Candidates { writable, avoided: [dead].into_iter().collect(), ..Candidates::default() };
        survey.complete(&mut candidates, &[]).await;
        assert_eq!(started.elapsed(), Duration::ZERO, "invariant 1");
        complete(&survey, "b1 dead", &[]).await;
        assert_eq!(started.elapsed(), PATIENCE_WEIGHT, "a candidate of which nothing is known yet");
    }

    #[tokio::test(start_paused = true)]
    async fn free_bytes_become_weights() {
        let setup = Setup::new(Some(Ok("/"))).await;
        let survey =
            setup.survey(Some(DiskWeights { interval: Duration::from_secs(60), ..DiskWeights::default() }));
        let found = complete(&survey, "b1 b2 b3", &[]).await;
        let expected = [(id("b1"), 1 << 30), (id("b2"), 2 << 30)];
        assert_eq!(found.weights, expected.into_iter().collect(), "b3 did not say");
        assert_eq!(setup.disks.0.load(Ordering::Relaxed), 3);
        sleep(Duration::from_secs(61)).await;
        // b1 and b2 once more, b3 every 10 s.
        assert_eq!(setup.disks.0.load(Ordering::Relaxed), 3 + 2 + 6);
        drop(survey);
        sleep(Duration::from_secs(600)).await;
        assert_eq!(setup.disks.0.load(Ordering::Relaxed), 11, "invariant 3");
    }
}
