//! The client: one metadata session, one way to the bookies, one set of budgets, shared by all ledgers opened with it.

mod claimed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bindery_flow::ByteBudget;
use bindery_io::canary::Canaries;
use bindery_io::{Random, SystemRandom};
use bindery_metadata::layout::{CookiesError, IdError, LedgerError};
use bindery_metadata::store::Version;
use bindery_metadata::{
    ConnectOptions, Endpoint, Layout, MetadataUri, RegistrationMode, Security, StoreError, WaitFor,
};
use bindery_types::{
    BookieId, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum, QuorumSizes, Segment,
};
use bindery_wire::FrameLimit;
use tokio::sync::oneshot;

use self::claimed::Claimed;
use crate::claims::Claims;
use crate::connection::hooks::{Authenticator, Connector, Hooks};
use crate::connection::{Bookies, ConnectionOptions};
use crate::credentials::Credentials;
use crate::error::{AppendOpenError, ConnectError, CreateError, OpenError};
use crate::handover::{
    CONTINUES_PROPERTY, HANDOVER_PROPERTY, Handover, RESERVED_PREFIX, claimed, continued_in, needs_marks,
};
use crate::health::{BookieHealth, BusyBookie, NodeHealth, Prober, ReadHealth, ask};
use crate::kept_bytes::KeptBytes;
use crate::listing::LedgerStream;
use crate::options::{CreateOptions, Limits, OpenMode, WRITE_QUORUM_SIZE_MAX};
use crate::own_writers::OwnWriters;
use crate::placement::{
    Counted, DiskWeights, Here, Location, Placement, Places, RandomPlacement, Survey, choose_ensemble,
};
use crate::reader::LedgerReader;
use crate::resolver::NetworkResolver;
use crate::retry::Retry;
use crate::shared::{Shared, check_password};
use crate::slow::SlowReplicas;
use crate::stragglers::Stragglers;
use crate::tier_secret::KnownSecret;
use crate::tier_support::Supports;
use crate::tls::{Tls, TlsError, TlsOptions};
use crate::transport::Transport;
use crate::write_counts::{WriteCounts, WriteHealth};
use crate::writer::{LedgerWriter, TakenOver};

/// A ledger's metadata as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerInfo {
    /// The ledger.
    pub id: LedgerId,
    /// Its metadata.
    pub metadata: LedgerMetadata,
    /// Version of the node.
    pub version: Version,
    /// Creation time in milliseconds since the epoch: the one in the metadata, else that of the node.
    pub created_ms: i64,
}

impl LedgerInfo {
    /// Of these parts: for tests of programs that show it.
    pub fn new(id: LedgerId, metadata: LedgerMetadata, version: Version, created_ms: i64) -> LedgerInfo {
        LedgerInfo { id, metadata, version, created_ms }
    }
}

/// A registered bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BookieInfo {
    /// Its id.
    pub id: BookieId,
    /// Whether it takes writes.
    pub mode: RegistrationMode,
    /// Where it listens. Empty when its registration cannot be read.
    pub endpoints: Vec<Endpoint>,
}

/// Bytes that a client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInUse {
    /// Of entries that bookies have not all acknowledged.
    pub adds_bytes: u64,
    /// Of entries read ahead, and room for those on their way.
    pub read_ahead_bytes: u64,
}

/// How a client is made.
#[derive(Default)]
pub struct ClientBuilder {
    uri: Option<MetadataUri>,
    layout: Option<Layout>,
    transport: Option<Arc<dyn Transport>>,
    session_timeout: Option<Duration>,
    metadata_connect: (Option<Duration>, WaitFor),
    metadata_security: Security,
    placement: Option<Box<dyn Placement>>,
    resolver: Option<Arc<dyn NetworkResolver>>,
    disk_weights: Option<DiskWeights>,
    location: Option<Location>,
    hooks: Hooks,
    tls: Option<TlsOptions>,
    limits: Limits,
    canaries: Canaries,
}

impl ClientBuilder {
    /// Where the cluster's metadata is.
    pub fn metadata(mut self, uri: MetadataUri) -> Self {
        self.uri = Some(uri);
        self
    }

    /// A metadata store that is open already, instead of a URI: for tests and for processes that embed a cluster.
    /// Closing the client leaves it open.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Another way to the bookies than the network: for tests and simulation.
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// TLS with bookies, which must be set up for it (`tlsProviderFactoryClass`): no request is sent without. Off by default. Files
    /// are read when the client connects to the metadata store, and again for new connections when they have changed. The connection
    /// to the metadata store stays as it is. Not used beside [`transport`](Self::transport).
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// How connections to bookies are made, instead of by TCP: for proxies, counting, or TLS of another library than
    /// [`tls`](Self::tls)'s. Not used beside [`transport`](Self::transport).
    pub fn connector(mut self, connector: impl Connector) -> Self {
        self.hooks.connector = Some(Arc::new(connector));
        self
    }

    /// The user that this client proves to be to each bookie, on every new connection. Bookies that let everybody in do not care. Not
    /// used beside [`transport`](Self::transport).
    pub fn credentials(self, credentials: Credentials) -> Self {
        self.authenticator(credentials)
    }

    /// Proves to each bookie who this client is in another way than with [`credentials`](Self::credentials). Not used beside
    /// [`transport`](Self::transport).
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.hooks.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// TLS and SASL to the metadata store, and who may use the nodes that are written there. None by default.
    pub fn metadata_security(mut self, security: Security) -> Self {
        self.metadata_security = security;
        self
    }

    /// Session timeout to ask the metadata store for, 10 s by default.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// How long [`connect`](Self::connect) tries for a session, in place of the session timeout, and which servers it waits for
    /// meanwhile: [`WaitFor::Down`] by default, which suits a service that may start before its metadata store does.
    pub fn metadata_wait(mut self, timeout: Duration, wait_for: WaitFor) -> Self {
        self.metadata_connect = (Some(timeout), wait_for);
        self
    }

    /// How long a bookie has to answer a request, 5 s by default. Then another one is asked, or takes its place.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.limits.request_timeout = timeout;
        self
    }

    /// How long an operation that needs the metadata store waits for one that does not answer before it fails, 30 s by
    /// default. A writer needs the store to replace a bookie that failed, and to close. With an ack quorum of other
    /// bookies it goes on without a replacement, and catches up when the store is back; without one, or when the store
    /// failed with the replacement half written, it stops.
    pub fn metadata_patience(mut self, patience: Duration) -> Self {
        self.limits.metadata_patience = patience;
        self
    }

    /// How long a writer waits for bookies when fewer than its ack quorum can be written to and none can take their place.
    /// Zero by default, as in BookKeeper: it stops at once. Meanwhile its entries stay in flight and it tries again, so that it
    /// goes on after a restart of its bookies. Time counts from the first failure after an entry was confirmed.
    pub fn bookie_patience(mut self, patience: Duration) -> Self {
        self.limits.bookie_patience = patience;
        self
    }

    /// Bytes of entries in flight to bookies, 64 MiB by default; as much again, apart from it, for entries read ahead, so
    /// that writers and readers do not take each other's room. An entry counts once, however many bookies it goes to,
    /// from the call until no bookie's queue and no writer refers to it, with 160 bytes of its own and 192 for each
    /// replica besides. One entry can be no larger than all of it. When it is used up [`LedgerWriter::enqueue`] waits, in
    /// the order of the calls of each ledger, and [`LedgerWriter::try_enqueue`] refuses. A ledger one of whose bookies is being replaced
    /// takes no more than leaves half of it to the others. Up to a quarter of it holds confirmed entries that a bookie lacks, until it
    /// is back and gets them, or for 15 s without an answer of it.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.limits.memory_limit = bytes;
        self
    }

    /// The bookies' limit of a frame, `nettyMaxFrameSizeBytes`, either direction. An answer above it fails the request that it
    /// answers; the largest entry is some 500 bytes smaller. If it is not set, entries are written that bookies with
    /// BookKeeper's default take, 5 MiB, and those of Pulsar's bookies, 5,253,120 bytes, are read.
    pub fn frame_limit(mut self, limit: FrameLimit) -> Self {
        self.limits.frame_limit = Some(limit);
        self
    }

    /// How far a bookie may be behind the others, in bytes over all ledgers of this client: half of the memory limit by
    /// default. The client keeps up to this many bytes that the others acknowledged and the bookie did not. If it holds
    /// up more, and at the rate of the last half second would need longer than the
    /// [`request_timeout`](Self::request_timeout) to catch up, it is replaced before requests fail. Where there is no
    /// spare bookie it gets nothing more, the ledger is marked as under-replicated in the metadata, and the writer goes
    /// on with its ack quorum. It looks for a replacement again, or for the bookie itself, after 1 s, then 2 s, up to
    /// every 60 s. The same happens to a bookie that fails and cannot be replaced.
    pub fn slow_replica_bytes_max(mut self, bytes: u64) -> Self {
        self.limits.slow_replica_bytes_max = Some(bytes);
        self
    }

    /// How long a confirmed entry of an idle ledger may stay unannounced, 100 ms by default: then the LAC (last add
    /// confirmed) is written to the bookies by itself. Zero turns this off, for [`LedgerWriter::drain`] as well: readers of other
    /// clients see an entry when the next one follows, or the ledger is closed or handed over.
    pub fn explicit_lac_interval(mut self, interval: Duration) -> Self {
        self.limits.explicit_lac_interval = interval;
        self
    }

    /// How bookies are chosen for ledgers: at random by default. [`RackAware`](crate::RackAware) and
    /// [`RegionAware`](crate::RegionAware) want a [`network_resolver`](Self::network_resolver).
    pub fn placement(mut self, placement: impl Placement) -> Self {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Who knows where bookies stand: a [script](crate::resolver::ScriptResolver), a
    /// [map file](crate::resolver::TableResolver), or the application itself. Without one all bookies are in
    /// `/default-region/default-rack`. Bookies are looked up when they are first seen and every 5 minutes from then on.
    pub fn network_resolver(mut self, resolver: impl NetworkResolver) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    /// Where this process stands. Of replicas that are equally well and about as fast, those of its rack are read first,
    /// then those of its region. Wants a [`network_resolver`](Self::network_resolver), too. Slow, busy and ill bookies come
    /// behind the others, however near they are. Not set by default: then the least busy is read.
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Chooses bookies with more free disk space more often, whatever the placement. A background task asks them for
    /// it. Off by default.
    pub fn disk_weights(mut self, weights: DiskWeights) -> Self {
        self.disk_weights = Some(weights);
        self
    }

    /// How long new ledgers and replacements do without a bookie after it was found unhealthy, while there are enough
    /// others: 30 minutes by default (`bookieQuarantineTimeSeconds`). Zero is until it is well again. Reads do not
    /// care.
    pub fn bookie_quarantine_time(mut self, time: Duration) -> Self {
        self.limits.bookie_quarantine_time = time;
        self
    }

    /// With a planted bug.
    #[cfg(test)]
    pub(crate) fn plant(mut self, canaries: Canaries) -> Self {
        self.canaries = canaries;
        self
    }

    /// Connects to the metadata store. Bookies are connected to when they are first needed.
    ///
    /// # Errors
    /// When there is no URI, no metadata server opens a session in time (see [`metadata_wait`](Self::metadata_wait)), there is no cluster, files of TLS cannot be
    /// used, or credentials need TLS and there is none.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let mut hooks = self.hooks;
        let has_tls =
            self.tls.is_some() || hooks.connector.as_ref().is_some_and(|connector| connector.starts_tls());
        if !has_tls && hooks.authenticator.as_ref().is_some_and(|authenticator| authenticator.needs_tls()) {
            return Err(ConnectError::NeedsTls);
        }
        if let Some(options) = self.tls {
            // Before a session is opened that would have to be closed.
            let opened = tokio::task::spawn_blocking(move || Tls::open(options)).await;
            let tls = opened.unwrap_or_else(|error| Err(TlsError::NotRead(error.to_string())))?;
            hooks.tls = Some(Arc::new(tls));
        }
        let (layout, is_session_ours) = match (self.layout, self.uri) {
            (Some(layout), _) => (layout, false),
            (None, Some(uri)) => {
                let (connect_timeout, wait_for) = self.metadata_connect;
                let mut options = ConnectOptions {
                    security: self.metadata_security,
                    connect_timeout,
                    wait_for,
                    ..ConnectOptions::default()
                };
                if let Some(timeout) = self.session_timeout {
                    options.session_timeout = timeout;
                }
                (bindery_metadata::connect(&uri, options).await?, true)
            }
            (None, None) => return Err(ConnectError::NoMetadata),
        };
        let (transport, bookies) = match self.transport {
            Some(transport) => (transport, None),
            None => {
                let request_timeout = self.limits.request_timeout;
                // A bookie that is back is found by its next probe but one.
                let options = ConnectionOptions {
                    request_timeout,
                    frame_limit: self.limits.frame_taken(),
                    reconnect_pause_max: Duration::from_secs(1),
                    ..ConnectionOptions::default()
                };
                let bookies = Arc::new(Bookies::with_hooks(layout.registration(), options, hooks));
                (bookies.clone() as Arc<dyn Transport>, Some(bookies))
            }
        };
        // Transports for tests know no classes.
        let background = bookies.as_ref().map_or_else(|| transport.clone(), |bookies| bookies.background());
        let health = NodeHealth::new(SystemRandom.next_u64());
        let health = Arc::new(health.with_quarantine(self.limits.bookie_quarantine_time));
        let placement = self.placement.unwrap_or_else(|| Box::new(RandomPlacement(SystemRandom)));
        let placement = Counted::new(placement);
        let are_for_candidates = placement.wants_locations();
        let here = self.location.map(|location| Here { location, health: health.clone() });
        let resolver = self.resolver.filter(|_| are_for_candidates || here.is_some());
        let places = Places { resolver, are_for_candidates, here };
        let survey = Survey::start(layout.registration(), transport.clone(), places, self.disk_weights);
        Ok(Client(Arc::new(Shared {
            _prober: Prober::start(health.clone(), transport.clone(), layout.registration()),
            stragglers: Stragglers::new(),
            layout,
            is_session_ours,
            transport,
            background,
            bookies,
            supports: Supports::default(),
            tier_secret: KnownSecret::default(),
            placement,
            survey,
            health,
            add_budget: ByteBudget::new("adds", self.limits.memory_limit),
            read_budget: ByteBudget::new("read-ahead", self.limits.memory_limit),
            slow: SlowReplicas::new(self.limits.slow_replica_bytes_max(), self.limits.request_timeout),
            writes: Arc::new(WriteCounts::new()),
            kept: Arc::new(KeptBytes::new(self.limits.memory_limit)),
            limits: self.limits,
            canaries: self.canaries,
            claims: Claims::new(),
            own_writers: OwnWriters::default(),
            is_closed: AtomicBool::new(false),
        })))
    }
}

/// A client of a cluster. Clones share everything.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Shared>);

impl Client {
    /// How to make one.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Creates a ledger with this process as its writer.
    pub async fn create_ledger(&self, options: CreateOptions) -> Result<LedgerWriter, CreateError> {
        let secret = LedgerSecret { digest_type: options.digest, password: options.password.clone() };
        let is_deferred = options.deferred_sync;
        let (id, metadata, version) = self.create(options, None, None).await?;
        Ok(LedgerWriter::start(self.0.clone(), id, metadata, version, secret, None, is_deferred))
    }

    /// Creates an empty ledger for writers that follow one another, in this or other processes: each takes it with
    /// [`Client::open_for_append`] and leaves it with [`LedgerWriter::hand_over`] or [`LedgerWriter::close`].
    pub async fn create_handed_over(&self, options: CreateOptions) -> Result<LedgerId, CreateError> {
        if options.deferred_sync {
            return Err(CreateError::DeferredSyncHandedOver);
        }
        let idle = Handover::Idle { next: EntryId::FIRST, length_bytes: 0, is_whole: false };
        Ok(self.create(options, Some(idle), None).await?.0)
    }

    /// The same, of a ledger that continues another one.
    pub(crate) async fn create_continuing(
        &self,
        options: CreateOptions,
        former: LedgerId,
    ) -> Result<LedgerId, CreateError> {
        let idle = Handover::Idle { next: EntryId::FIRST, length_bytes: 0, is_whole: false };
        Ok(self.create(options, Some(idle), Some(former)).await?.0)
    }

    async fn create(
        &self,
        options: CreateOptions,
        handover: Option<Handover>,
        continues: Option<LedgerId>,
    ) -> Result<(LedgerId, LedgerMetadata, Version), CreateError> {
        let shared = &self.0;
        if shared.is_closed() {
            return Err(CreateError::ClientClosed);
        }
        if let Some(name) = options.custom.keys().find(|name| name.starts_with(RESERVED_PREFIX)) {
            return Err(CreateError::ReservedProperty(name.clone()));
        }
        let candidates = shared.patiently(StoreError::is_transient, || shared.candidates(&[])).await?;
        let quorum = options.sizes.fill(candidates.writable.len())?;
        let write_quorum_size = quorum.write_quorum_size();
        if write_quorum_size > WRITE_QUORUM_SIZE_MAX {
            return Err(CreateError::WriteQuorumTooLarge { write_quorum_size, max: WRITE_QUORUM_SIZE_MAX });
        }
        let ensemble = choose_ensemble(&shared.placement, &candidates, quorum)?;
        let secret = LedgerSecret { digest_type: options.digest, password: options.password };
        let mut metadata = LedgerMetadata::new(quorum, secret);
        metadata.custom = options.custom;
        if let Some(handover) = handover {
            handover.set(&mut metadata);
        }
        if let Some(former) = continues {
            metadata.custom.insert(CONTINUES_PROPERTY.to_owned(), former.to_string().into_bytes());
        }
        metadata
            .push_segment(Segment { first_entry: EntryId::FIRST, ensemble })
            .expect("the first segment, with a whole ensemble");
        // The creation time is the store's: clocks of clients differ.
        metadata.creation_token = Some(i64::from_ne_bytes(SystemRandom.next_u64().to_ne_bytes()));
        let (ids, ledgers) = (shared.layout.ids(), shared.layout.ledgers());
        loop {
            // Cancelled between id and creation, or an id whose answer was lost: it is skipped.
            let id = shared.patiently(IdError::is_transient, || ids.next()).await?;
            match shared.patiently(LedgerError::is_transient, || ledgers.create(id, &metadata)).await {
                Ok(version) => return Ok((id, metadata, version)),
                // Somebody chose this id by hand; each turn takes a fresh one.
                Err(LedgerError::Exists(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// These sizes, filled in as they would be for a ledger created now.
    pub async fn quorum(&self, sizes: QuorumSizes) -> Result<Quorum, CreateError> {
        let registration = self.0.layout.registration();
        let registered = self.0.patiently(StoreError::is_transient, || registration.list()).await?;
        let writable = registered.iter().filter(|bookie| bookie.mode == RegistrationMode::Writable);
        Ok(sizes.fill(writable.count())?)
    }

    /// Takes a ledger that was handed over, and goes on where the last writer stopped. A call that is dropped midway hands
    /// it over again, in the background, if it was taken; [`close`](Self::close) waits for that.
    ///
    /// # Errors
    /// [`AppendOpenError::Busy`] when somebody else has it, or died having it. Of several that try at once one gets it.
    pub async fn open_for_append(
        &self,
        id: LedgerId,
        password: &[u8],
    ) -> Result<LedgerWriter, AppendOpenError> {
        let (sender, receiver) = oneshot::channel();
        let (client, password, under_way) = (self.clone(), password.to_vec(), self.0.claims.begin());
        tokio::spawn(async move {
            let writer = client.claim(id, &password, || !sender.is_closed()).await;
            let claimed = writer.map(|writer| Claimed::new(writer, under_way));
            let outcome = match client.0.is_closed() {
                // Taken for nobody, who could not use it: dropped.
                true => claimed.and(Err(AppendOpenError::ClientClosed)),
                false => claimed,
            };
            drop(sender.send(outcome));
        });
        // Its task ends without an answer when the runtime ends.
        receiver.await.unwrap_or(Err(AppendOpenError::ClientClosed)).map(Claimed::take)
    }

    /// As [`open_for_append`](Self::open_for_append), to its end once something may have been written, and otherwise as
    /// long as it `is_wanted`.
    async fn claim(
        &self,
        id: LedgerId,
        password: &[u8],
        is_wanted: impl Fn() -> bool,
    ) -> Result<LedgerWriter, AppendOpenError> {
        let shared = &self.0;
        let ledgers = shared.layout.ledgers();
        let token = SystemRandom.next_u64();
        let mut retry = Retry::new(shared.limits.metadata_patience);
        // Where to go on, of a claim whose outcome is unknown.
        let mut claim = None;
        loop {
            // A claim that was sent may have gone through: this goes on until its outcome is known.
            if claim.is_none() && (shared.is_closed() || !is_wanted()) {
                return Err(AppendOpenError::ClientClosed);
            }
            let stored = match ledgers.get(id).await {
                Ok(stored) => stored,
                // A claim may have gone through: given up here, it would leave a ledger that looks taken.
                Err(error) if error.is_transient() && retry.pause().await => continue,
                Err(error) => return Err(append_open_error(id, error)),
            };
            let metadata = stored.metadata;
            let secret = check_password(&metadata, password).ok_or(AppendOpenError::WrongPassword(id))?;
            match metadata.state {
                LedgerState::Open => {}
                LedgerState::InRecovery => return Err(AppendOpenError::InRecovery(id)),
                LedgerState::Closed { last_entry, .. } => {
                    return Err(match continued_in(&metadata) {
                        Some(successor) => AppendOpenError::Continued { ledger: id, successor },
                        None => AppendOpenError::Closed { ledger: id, last_entry },
                    });
                }
            }
            let (next, length_bytes) = match (Handover::of(&metadata), claim) {
                (None, _) => return Err(AppendOpenError::NotHandedOver(id)),
                (Some(Err(text)), _) => {
                    return Err(AppendOpenError::UnknownHandover { ledger: id, text: text.0 });
                }
                (Some(Ok(Handover::Busy { token: found })), Some((next, length_bytes))) if found == token => {
                    let start = Some(TakenOver { token, next, length_bytes });
                    let (shared, version) = (shared.clone(), stored.version);
                    return Ok(LedgerWriter::start(shared, id, metadata, version, secret, start, false));
                }
                (Some(Ok(Handover::Busy { .. })), _) => return Err(AppendOpenError::Busy(id)),
                (Some(Ok(Handover::Idle { next, length_bytes, .. })), _) => (next, length_bytes),
            };
            if !is_writable_from(&metadata, next, length_bytes) {
                let text = metadata.custom.get(HANDOVER_PROPERTY).map(|text| String::from_utf8_lossy(text));
                let text = text.unwrap_or_default().into_owned();
                return Err(AppendOpenError::UnknownHandover { ledger: id, text });
            }
            let marked = match needs_marks(&metadata, next) {
                true => self.marked_as_far_as_known(id, &metadata).await?,
                false => Vec::new(),
            };
            let claimed = claimed(&metadata, token, next, &marked);
            match ledgers.update(id, &claimed, stored.version).await {
                Ok(version) => {
                    let start = Some(TakenOver { token, next, length_bytes });
                    return Ok(LedgerWriter::start(
                        shared.clone(),
                        id,
                        claimed,
                        version,
                        secret,
                        start,
                        false,
                    ));
                }
                Err(LedgerError::Changed(_)) => {}
                Err(LedgerError::Store(error)) if error.is_transient() => {
                    claim = Some((next, length_bytes));
                    if !retry.pause().await {
                        return Err(AppendOpenError::Metadata(LedgerError::Store(error)));
                    }
                }
                Err(error) => return Err(append_open_error(id, error)),
            }
        }
    }

    /// The bookies on which a ledger is marked. A client that may not read marks can still append: it treats all bookies of
    /// the last segment as marked.
    async fn marked_as_far_as_known(
        &self,
        id: LedgerId,
        metadata: &LedgerMetadata,
    ) -> Result<Vec<String>, AppendOpenError> {
        match self.under_replicated_on(id).await {
            Ok(bookies) => Ok(bookies),
            Err(error) if error.is_transient() || error == StoreError::Closed => {
                Err(append_open_error(id, LedgerError::Store(error)))
            }
            Err(error) => {
                tracing::debug!(ledger_id = %id, %error, "whether the ledger is marked cannot be read");
                Ok(metadata.segments().last().map_or_else(Vec::new, all_of))
            }
        }
    }

    /// The bookies on which a ledger is marked as under-replicated: its auditor or its writer found that they lack entries, and
    /// nobody has repaired it since.
    pub async fn under_replicated_on(&self, id: LedgerId) -> Result<Vec<String>, StoreError> {
        let marks = self.0.layout.under_replication();
        let found = self.0.patiently(StoreError::is_transient, || marks.replicas(id)).await?;
        Ok(found.unwrap_or_default())
    }

    /// Opens a ledger that has no password for reading, and leaves its writer alone: [`open_ledger`](Self::open_ledger) in short.
    pub async fn open(&self, id: LedgerId) -> Result<LedgerReader, OpenError> {
        self.open_ledger(id, b"", OpenMode::ReadOnly).await
    }

    /// Opens a ledger for reading.
    pub async fn open_ledger(
        &self,
        id: LedgerId,
        password: &[u8],
        how: OpenMode,
    ) -> Result<LedgerReader, OpenError> {
        LedgerReader::open(self.0.clone(), id, password, how).await
    }

    /// Deletes a ledger's metadata; its bookies then drop the entries by themselves. There is no way back.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`] when there is no such ledger.
    pub async fn delete_ledger(&self, id: LedgerId) -> Result<(), LedgerError> {
        let ledgers = self.0.layout.ledgers();
        let mut retry = Retry::new(self.0.limits.metadata_patience);
        let mut may_be_gone = false;
        loop {
            match ledgers.delete(id, None).await {
                // By an attempt whose answer was lost.
                Err(LedgerError::NotFound(_)) if may_be_gone => return Ok(()),
                Err(error) if error.is_transient() && !self.0.is_closed() => {
                    may_be_gone |= !matches!(
                        error,
                        LedgerError::Store(StoreError::Unreachable { .. } | StoreError::Moving)
                    );
                    if !retry.pause().await {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// A ledger's metadata as the metadata store has it.
    pub async fn metadata(&self, id: LedgerId) -> Result<LedgerInfo, LedgerError> {
        let stored = self.0.stored(id).await?;
        let created_ms = stored.metadata.created_ms.unwrap_or(stored.created_ms);
        Ok(LedgerInfo { id, metadata: stored.metadata, version: stored.version, created_ms })
    }

    /// The ids of all ledgers, ascending. Nothing is read before the stream is polled.
    pub fn ledgers(&self) -> LedgerStream {
        LedgerStream::new(self.0.layout.ledgers().list())
    }

    /// All registered bookies, sorted by id. One that changes between writable and read-only counts as read-only.
    pub async fn bookies(&self) -> Result<Vec<BookieInfo>, StoreError> {
        let (shared, registration) = (&self.0, self.0.layout.registration());
        let mut found = BTreeMap::new();
        for bookie in shared.patiently(StoreError::is_transient, || registration.list()).await? {
            // Writable ones come first.
            found.insert(bookie.bookie_id, bookie.mode);
        }
        let mut bookies = Vec::with_capacity(found.len());
        for (id, mode) in found {
            let info = shared.patiently(StoreError::is_transient, || registration.service_info(&id));
            let endpoints = match info.await? {
                Some(Ok(info)) => info.endpoints,
                Some(Err(_)) => Vec::new(),
                // Gone meanwhile.
                None => continue,
            };
            bookies.push(BookieInfo { id, mode, endpoints });
        }
        Ok(bookies)
    }

    /// The ids of all bookies that have a cookie, ascending: those that belong to the cluster, whether they are registered now or away.
    pub async fn member_bookies(&self) -> Result<Vec<BookieId>, StoreError> {
        let cookies = self.0.layout.cookies();
        let listed = self.0.patiently(is_transient, || cookies.list()).await;
        let mut bookies = listed.map_err(|error| match error {
            CookiesError::Store(error) => error,
            _ => unreachable!("a listing reads no cookie"),
        })?;
        bookies.sort();
        Ok(bookies)
    }

    /// How the bookies do, sorted by id: those of ledgers that this client opened for reading, and those that failed. A client
    /// that only writes sees what becomes of that in [`write_health`](Self::write_health).
    pub fn bookie_health(&self) -> Vec<BookieHealth> {
        self.0.health.bookies()
    }

    /// The bookies that refused a read, an add or a [`reconcile`](Self::reconcile) with "too many requests" within `within`,
    /// sorted by id. As long as there are any, work that can wait had better wait.
    pub fn busy_bookies(&self, within: Duration) -> Vec<BusyBookie> {
        self.0.health.busy(within)
    }

    /// Asks each of `bookies` for an entry that does not exist, and waits for the answers, a second at most. The
    /// request counts as a read, so that [`bookie_health`](Self::bookie_health) also works in a client that does not
    /// read.
    pub async fn ask_bookies(&self, bookies: &[BookieId]) {
        ask(&self.0.health, &self.0.transport, bookies).await;
    }

    /// Reads of this client that were sent to more than one replica.
    pub fn read_health(&self) -> ReadHealth {
        self.0.health.reads()
    }

    /// What became of this client's writes, and how they do now.
    pub fn write_health(&self) -> WriteHealth {
        self.0.writes.view(self.0.placement.unmet())
    }

    /// The memory that this client holds now; each figure is limited by [`memory_limit`](ClientBuilder::memory_limit).
    pub fn memory_in_use(&self) -> MemoryInUse {
        MemoryInUse {
            adds_bytes: self.0.add_budget.gauge().used,
            read_ahead_bytes: self.0.read_budget.gauge().used,
        }
    }

    /// Ends the client: its metadata session, and with it every handle. Writers that are not closed stay open for
    /// recovery.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

fn is_transient(error: &CookiesError) -> bool {
    matches!(error, CookiesError::Store(error) if error.is_transient())
}

/// The bookies of a segment.
fn all_of(segment: &Segment) -> Vec<String> {
    segment.ensemble.iter().map(ToString::to_string).collect()
}

/// Whether a writer can go on at `next`. Always true after a hand-over by a writer, but stored metadata may contain
/// anything.
fn is_writable_from(metadata: &LedgerMetadata, next: EntryId, length_bytes: u64) -> bool {
    metadata.segments().last().is_some_and(|last| last.first_entry <= next)
        && metadata.quorum.write_quorum_size() <= WRITE_QUORUM_SIZE_MAX
        && i64::try_from(length_bytes).is_ok()
}

fn append_open_error(id: LedgerId, error: LedgerError) -> AppendOpenError {
    match error {
        LedgerError::NotFound(_) => AppendOpenError::NotFound(id),
        LedgerError::Store(StoreError::Closed) => AppendOpenError::ClientClosed,
        other => AppendOpenError::Metadata(other),
    }
}
