//! The main task: owns the core, starts what it wants done, and gives it the answers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bindery_client::transport::BookieError;
use bindery_client::{Client, LedgerStream, Reconcile, ReconcileError, TierSupport};
use bindery_flow::AdaptiveRate;
use bindery_io::Random;
use bindery_metadata::Layout;
use bindery_tiering::ObjectId;
use bindery_types::BookieId;
use bindery_wire::ErrorCode;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use super::desk::{Ask, View};
use super::object::{Source, build};
use super::report::{self, TierReport};
use super::tierers::{Membership, Notes, Registered, missing_text};
use super::upkeep::Hands;
use super::views::Views;
use super::{Command, Common, TiererConfig};
use crate::assembly::Limits;
use crate::core::updates::{Ability, RequestError, RequestId, UpdateRequest, UpdateResult, UpdateStatus};
use crate::core::upkeep::{Upkeep, UpkeepAction, UpkeepEvent};
use crate::core::{Action, Alarm, Core, Event, Settings};

/// Between two looks at who is registered.
const BOOKIES_INTERVAL: Duration = Duration::from_secs(3);
/// A change of the pause flag is seen at once by a watch, or else after this time.
const PAUSE_INTERVAL: Duration = Duration::from_secs(30);
/// Between two steps of the rate.
const TICK: Duration = Duration::from_secs(1);
/// Between two cleanings of views.
const CLEAN_INTERVAL: Duration = Duration::from_secs(10);
/// Alarms that are remembered.
const ALARMS_MAX: usize = 20;
/// Missing objects of which other tierers are told: enough for them to find out whether objects are missing.
const MISSING_TOLD_MAX: usize = 16;
/// How long building a rewritten object may take at the allowed rate: less than ids are reserved for. It is finished with what is in it
/// by then.
const REWRITE_TIME_MAX: Duration = Duration::from_secs(20 * 60);
/// How long it may wait for a block.
const REWRITE_SILENCE_MAX: Duration = Duration::from_secs(120);

/// The result of a task.
enum Ended {
    Event(Event),
    /// The listing comes back with its page.
    Listed(Option<LedgerStream>, Event),
    /// The registered bookies, and whether they take part in tiering; `None` if that could not be read.
    Bookies(Option<BTreeMap<BookieId, Ability>>),
    /// Whether tiering is paused, and a watch for its end; `None` when that could not be read.
    Pause(Option<(bool, bindery_metadata::store::Watch)>),
    /// The tierers that live, or why that is not known, and this one's registration, which looks again.
    Tierers(Registered, Result<Membership, String>),
    /// An action of the upkeep; the listing comes back with its page.
    Upkeep(Option<LedgerStream>, UpkeepEvent),
}

pub(super) struct Runner {
    registered: Registered,
    /// What other tierers are to be told.
    notes: watch::Sender<Notes>,
    core: Core,
    upkeep: Upkeep,
    hands: Hands,
    /// The listing of the upkeep, which goes through all ledgers again.
    upkeep_listing: Option<LedgerStream>,
    common: Arc<Common>,
    client: Client,
    layout: Layout,
    views: Arc<Views>,
    asks: mpsc::Sender<Ask>,
    desk: JoinHandle<()>,
    view: Arc<Mutex<View>>,
    tasks: JoinSet<Ended>,
    listing: Option<LedgerStream>,
    updates: HashMap<RequestId, AbortHandle>,
    building: HashMap<ObjectId, oneshot::Sender<()>>,
    /// Abandons the object that the upkeep builds; `None` while it builds none.
    rewriting: Option<oneshot::Sender<()>>,
    rate: AdaptiveRate,
    is_pressed: bool,
    /// How often the catalogue was replaced, as far as the cores know.
    reloads: u64,
    alarms: VecDeque<String>,
    request_timeout: Duration,
    stop_patience: Duration,
    is_stopped: bool,
    cleaned_at: Duration,
}

impl Runner {
    #[expect(clippy::too_many_arguments, reason = "made in one place, of parts that have nothing in common")]
    pub fn new(
        (registered, notes): (Registered, watch::Sender<Notes>),
        config: TiererConfig,
        settings: Settings,
        common: Arc<Common>,
        client: Client,
        layout: Layout,
        views: Arc<Views>,
        asks: mpsc::Sender<Ask>,
        desk: JoinHandle<()>,
        view: Arc<Mutex<View>>,
        random: Arc<dyn Random>,
    ) -> Runner {
        let now = common.now();
        let of_cluster = common.cluster.to_string();
        let target = settings.target_bytes();
        let mut upkeep = Upkeep::new(now, settings.upkeep.clone(), target, of_cluster, settings.canaries);
        // Nothing is removed before it is known whether tiering is paused: the cluster may be being restored from the bucket.
        upkeep.set_paused(true);
        let hands = Hands {
            common: common.clone(),
            layout: layout.clone(),
            asks: asks.clone(),
            random,
            reader: views.reader().clone(),
            // One reader: extents stay in their order. What was planned by estimates fits.
            rewrite_limits: Limits {
                target_bytes: settings.object_bytes_max,
                readers: 1,
                silence_max: REWRITE_SILENCE_MAX,
                time_max: REWRITE_TIME_MAX.min(settings.reservation_use),
                ..common.limits
            },
            kept: Arc::default(),
        };
        Runner {
            registered,
            notes,
            upkeep,
            hands,
            upkeep_listing: None,
            request_timeout: settings.updates.timeout,
            core: Core::new(now, settings),
            common,
            client,
            layout,
            views,
            asks,
            desk,
            view,
            tasks: JoinSet::new(),
            listing: None,
            updates: HashMap::new(),
            building: HashMap::new(),
            rewriting: None,
            rate: AdaptiveRate::new(now, config.bytes_per_second),
            is_pressed: false,
            reloads: 0,
            alarms: VecDeque::new(),
            stop_patience: config.stop_patience,
            is_stopped: false,
            cleaned_at: now,
        }
    }

    /// Runs until it is stopped, or nobody holds a handle any more.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        self.watch_bookies(Duration::ZERO);
        self.watch_pause(None);
        // The first listing is to know which tierers live.
        let first = self.registered.look(None).await;
        self.on_membership(first);
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut stop_at: Option<tokio::time::Instant> = None;
        while !self.is_stopped || self.rewriting.is_some() {
            self.keep_up();
            let now = self.common.now();
            let upkeep_at = self.upkeep.wake_at().unwrap_or(Duration::MAX);
            let wake_at = self.common.instant(self.core.wake_at(now).min(upkeep_at));
            let patience = stop_at.unwrap_or_else(|| tokio::time::Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                command = commands.recv(), if stop_at.is_none() => match command {
                    Some(Command::Stop) | None => {
                        stop_at = Some(tokio::time::Instant::now() + self.stop_patience);
                        self.upkeep.stop();
                        // Its id was reserved in vain; the next tierer begins again.
                        if let Some(abandon) = self.rewriting.take() {
                            let _ = abandon.send(());
                            self.rewriting = Some(oneshot::channel().0);
                        }
                        self.event(Event::Stop);
                    }
                    Some(command) => self.command(command),
                },
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => match ended {
                    Ok(ended) => self.ended(ended),
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                _ = tick.tick() => self.tick(),
                () = tokio::time::sleep_until(wake_at) => self.event(Event::Time),
                () = tokio::time::sleep_until(patience), if stop_at.is_some() => {
                    if self.tasks.is_empty() || self.is_stopped {
                        break;
                    }
                    stop_at = Some(tokio::time::Instant::now() + self.stop_patience);
                    tracing::warn!("objects under construction are taking too long to finish: giving them up");
                    self.event(Event::StopNow);
                }
            }
        }
        // The tasks that are left are of no use any more.
        self.tasks.shutdown().await;
        self.registered.leave().await;
        drop((self.asks, self.hands));
        // A request to the store that hangs must not keep the process.
        if tokio::time::timeout(self.stop_patience, &mut self.desk).await.is_err() {
            self.desk.abort();
        }
    }

    fn event(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.core.on_event(self.common.now(), event, &mut actions);
        for action in actions {
            self.perform(action);
        }
    }

    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Event(event) => {
                match &event {
                    Event::Updated { request, .. } => drop(self.updates.remove(request)),
                    Event::Built { object, .. } => drop(self.building.remove(object)),
                    _ => {}
                }
                self.event(event);
            }
            Ended::Listed(listing, event) => {
                self.listing = listing;
                self.event(event);
            }
            Ended::Bookies(found) => {
                self.watch_bookies(BOOKIES_INTERVAL);
                if let Some(abilities) = found {
                    self.event(Event::Bookies(abilities));
                }
            }
            Ended::Pause(found) => {
                let (is_paused, watch) = found.unzip();
                self.watch_pause(Some(watch));
                if let Some(is_paused) = is_paused {
                    self.upkeep.set_paused(is_paused);
                    self.event(Event::Paused(is_paused));
                }
            }
            Ended::Tierers(registered, found) => {
                self.registered = registered;
                self.on_membership(found);
            }
            Ended::Upkeep(listing, event) => {
                (self.upkeep_listing, self.rewriting) = (listing, None);
                let mut alarms = Vec::new();
                self.upkeep.on_event(self.common.now(), event, &mut alarms);
                alarms.into_iter().for_each(|alarm| self.alarm(&alarm));
            }
        }
    }

    /// Takes in which tierers live, and waits for a change of that. While it is not known, those count that lived before.
    fn on_membership(&mut self, found: Result<Membership, String>) {
        self.event(match &found {
            Ok(found) => Event::Tierers { team: found.team.clone(), doubts: found.doubts.clone() },
            Err(why) => Event::TierersUnknown(why.clone()),
        });
        let mut registered = self.registered.clone();
        self.tasks.spawn(async move {
            let found = registered.look(Some(found)).await;
            Ended::Tierers(registered, found)
        });
    }

    /// Tells other tierers what they have to know of this one: each asks bookies of its own ledgers alone, and does its own part.
    fn tell_others(&mut self) {
        let notes = Notes {
            doubt: self.core.own_doubt().or_else(|| self.upkeep.own_doubt()),
            missing: missing_text(&self.upkeep.own_missing(MISSING_TOLD_MAX)),
            unable: self.core.unable().map(ToOwned::to_owned),
            no_upkeep: self.upkeep.unable(),
        };
        self.notes.send_if_modified(|said| {
            let is_new = !said.are_those_of(&notes);
            if is_new {
                *said = notes;
            }
            is_new
        });
    }

    /// Begins the upkeep's next action, when there is one.
    fn keep_up(&mut self) {
        let now = self.common.now();
        let (fault, reloads) = {
            let view = self.view.lock();
            (view.fault.clone(), view.reloads)
        };
        if std::mem::replace(&mut self.reloads, reloads) != reloads {
            self.upkeep.on_catalogue_replaced();
            self.event(Event::CatalogueReplaced);
        }
        let (of_ledgers, unknown) = (self.core.doubt_of_ledgers(), self.core.unknown_doubt());
        self.upkeep.set_doubts(now, fault.as_deref(), of_ledgers, self.core.missing_elsewhere(), unknown);
        for alarm in self.upkeep.take_alarms() {
            self.alarm(&alarm);
        }
        self.tell_others();
        self.upkeep.set_reborn(self.core.reborn());
        self.upkeep.set_team(self.core.team());
        let Some(action) = self.upkeep.next(now) else { return };
        let listing = match &action {
            UpkeepAction::List { is_first: true } => Some(self.client.ledgers()),
            _ => self.upkeep_listing.take(),
        };
        let hands = self.hands.clone();
        let (abandon, abandoned) = oneshot::channel();
        self.rewriting = Some(abandon).filter(|_| matches!(action, UpkeepAction::Rewrite(_)));
        self.tasks.spawn(async move {
            let (listing, event) = hands.perform(action, listing, abandoned).await;
            Ended::Upkeep(listing, event)
        });
    }

    fn alarm(&mut self, alarm: &Alarm) {
        tracing::error!("{alarm}");
        if self.alarms.len() >= ALARMS_MAX {
            self.alarms.pop_front();
        }
        self.alarms.push_back(alarm.to_string());
    }

    fn command(&mut self, command: Command) {
        // The one who asked may have gone.
        match command {
            Command::Report(reply) => drop(reply.send(self.report())),
            Command::Ledger(ledger, reply) => {
                let now = self.common.now();
                self.core.keep(now, ledger);
                drop(reply.send(report::ledger(&self.core, now, ledger)));
            }
            Command::Now(ledger, reply) => {
                self.event(Event::Now(ledger));
                let _ = reply.send(());
            }
            Command::Stop => self.event(Event::Stop),
        }
    }

    /// The state of the tierer, its upkeep and its requests, as the admin port shows it.
    fn report(&self) -> TierReport {
        let now = self.common.now();
        let reads = report::Reads {
            counts: self.views.reader().counts(),
            bytes_per_second: self.rate.allowed(),
            is_slowed_down: self.rate.is_pressed(),
        };
        let alarms = self.alarms.iter().cloned().collect();
        report::report(&self.core.status(now), &self.upkeep, &self.common, reads, &self.view.lock(), alarms)
    }

    fn tick(&mut self) {
        let now = self.common.now();
        let is_busy = !self.client.busy_bookies(TICK).is_empty();
        let is_pressed = std::mem::take(&mut self.is_pressed) || is_busy;
        let read = self.views.reader().counts().bytes;
        if self.rate.step(now, read, is_pressed) {
            self.views.reader().set_bytes_per_second(self.rate.allowed());
        }
        if is_busy {
            self.event(Event::Pressure);
            // The core's answer to this event set it again: that is not another sign of pressure.
            self.is_pressed = false;
        }
        self.common.meter.look(now, self.core.is_idle());
        if now >= self.cleaned_at + CLEAN_INTERVAL {
            self.cleaned_at = now;
            self.views.retain(|ledger| self.core.is_watched(ledger));
        }
    }

    fn spawn(&mut self, task: impl Future<Output = Event> + Send + 'static) -> AbortHandle {
        self.tasks.spawn(async move { Ended::Event(task.await) })
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::List => {
                let listing = self.listing.take();
                let mut listing = listing.unwrap_or_else(|| self.client.ledgers());
                self.tasks.spawn(async move {
                    match listing.next_range().await {
                        Some(Ok(ledgers)) => {
                            Ended::Listed(Some(listing), Event::Listed { ledgers, is_last: false })
                        }
                        None => Ended::Listed(None, Event::Listed { ledgers: Vec::new(), is_last: true }),
                        Some(Err(error)) => {
                            Ended::Listed(None, Event::ListFailed(format!("list the ledgers: {error}")))
                        }
                    }
                });
            }
            Action::Look(ledger) => {
                let (views, wall_ms) = (self.views.clone(), self.common.clock.wall_ms());
                self.spawn(async move { Event::Looked { ledger, look: views.look(ledger, wall_ms).await } });
            }
            Action::Locate(ledgers) => {
                let asks = self.asks.clone();
                self.spawn(async move {
                    Event::Located(
                        ask(&asks, |reply| Ask::Locate(ledgers, reply)).await.unwrap_or_else(ended),
                    )
                });
            }
            Action::FindExtents { ledger, from } => {
                let asks = self.asks.clone();
                self.spawn(async move {
                    let extents = ask(&asks, |reply| Ask::Extents(ledger, from, reply)).await.flatten();
                    Event::Extents { ledger, extents }
                });
            }
            Action::Reserve(count) => {
                let asks = self.asks.clone();
                self.spawn(async move {
                    Event::Reserved(
                        ask(&asks, |reply| Ask::Reserve(count, reply)).await.unwrap_or_else(ended),
                    )
                });
            }
            Action::Build(order) => {
                let (abandon, abandoned) = oneshot::channel();
                self.building.insert(order.object, abandon);
                let (common, source) = (self.common.clone(), Source::Bookies(self.views.clone()));
                let (object, limits) = (order.object, common.limits);
                self.spawn(async move {
                    Event::Built { object, built: build(common, source, order, limits, abandoned).await }
                });
            }
            Action::Abandon(object) => {
                if let Some(abandon) = self.building.remove(&object) {
                    // It may have ended.
                    let _ = abandon.send(());
                }
            }
            Action::Commit { commit, objects, reserve } => {
                let asks = self.asks.clone();
                self.spawn(async move {
                    let outcome = ask(&asks, |reply| Ask::Commit(objects, reserve, reply)).await;
                    Event::Committed { commit, outcome: outcome.unwrap_or_else(ended) }
                });
            }
            Action::Update(request) => {
                let (client, common, timeout) =
                    (self.client.clone(), self.common.clone(), self.request_timeout);
                let id = request.id;
                let task = self.spawn(async move {
                    Event::Updated { request: id, answer: update(&client, &common, request, timeout).await }
                });
                self.updates.insert(id, task);
            }
            Action::GiveUp(request) => {
                if let Some(task) = self.updates.remove(&request) {
                    task.abort();
                }
            }
            Action::SlowDown => self.is_pressed = true,
            Action::Alarm(alarm) => self.alarm(&alarm),
            Action::Stopped => self.is_stopped = true,
        }
    }

    fn watch_bookies(&mut self, after: Duration) {
        let (client, layout) = (self.client.clone(), self.layout.clone());
        self.tasks.spawn(async move {
            tokio::time::sleep(after).await;
            Ended::Bookies(abilities(&client, &layout).await)
        });
    }

    /// Reads the pause flag: at once at first, then when the watch fires or after a while.
    fn watch_pause(&mut self, watch: Option<Option<bindery_metadata::store::Watch>>) {
        let pause = self.layout.tier_pause();
        self.tasks.spawn(async move {
            match watch {
                None => {}
                Some(Some(watch)) => drop(tokio::time::timeout(PAUSE_INTERVAL, watch.changed()).await),
                Some(None) => tokio::time::sleep(BOOKIES_INTERVAL).await,
            }
            Ended::Pause(pause.watch().await.ok())
        });
    }
}

async fn abilities(client: &Client, layout: &Layout) -> Option<BTreeMap<BookieId, Ability>> {
    let mut found = BTreeMap::new();
    for bookie in layout.registration().list().await.ok()? {
        let ability = match client.tier_support(&bookie.bookie_id).await.ok()? {
            TierSupport::Supported => Ability::Reconciles,
            TierSupport::KeepsEverything => Ability::KeepsEverything,
            // Not registered, or not known to this build.
            _ => Ability::Absent,
        };
        found.insert(bookie.bookie_id, ability);
    }
    Some(found)
}

/// Asks the desk, the task that owns the catalogue; `None` if it has ended.
pub(super) async fn ask<T>(
    asks: &mpsc::Sender<Ask>,
    of: impl FnOnce(oneshot::Sender<T>) -> Ask,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    asks.send(of(reply)).await.ok()?;
    answer.await.ok()
}

pub(super) fn ended<T>() -> Result<T, String> {
    Err("the tierer ends".to_owned())
}

/// Tells a bookie which entries are in the tier; returns its answer for each ledger.
pub(super) async fn update(
    client: &Client,
    common: &Common,
    request: UpdateRequest,
    timeout: Duration,
) -> Result<Vec<UpdateResult>, RequestError> {
    let message = Reconcile { cluster: common.cluster, ledgers: request.ledgers, is_restore: false };
    match client.reconcile(&request.bookie, message, timeout).await {
        Ok(results) => Ok(results
            .into_iter()
            .map(|result| UpdateResult {
                ledger: result.ledger,
                status: match result.code {
                    ErrorCode::Ok => UpdateStatus::Done,
                    ErrorCode::BadRequest => UpdateStatus::Behind,
                    ErrorCode::NoLedger => UpdateStatus::NoLedger,
                    ErrorCode::TooManyRequests => UpdateStatus::Busy,
                    _ => UpdateStatus::Failed,
                },
                register: result.last,
                // A bookie answers only once it is durable.
                is_durable: true,
            })
            .collect()),
        Err(ReconcileError::Bookie { error: BookieError::Refused(ErrorCode::TooManyRequests), .. }) => {
            Err(RequestError::Busy)
        }
        Err(error) => {
            tracing::debug!(bookie = %request.bookie, %error, "an update of last reconciled entries failed");
            Err(RequestError::Failed(error.to_string()))
        }
    }
}
