//! State that all handles of a client share: its way to metadata and bookies, its budgets, the health of bookies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_flow::ByteBudget;
use bindery_io::canary::Canaries;
use bindery_metadata::layout::{LedgerError, RegisteredBookie, StoredLedger};
use bindery_metadata::{Layout, RegistrationMode, StoreError};
use bindery_types::{BookieId, DigestType, LedgerId, LedgerMetadata, LedgerSecret, MasterKey};

use crate::claims::Claims;
use crate::connection::Bookies;
use crate::health::{NodeHealth, Prober};
use crate::kept_bytes::KeptBytes;
use crate::options::Limits;
use crate::own_writers::OwnWriters;
use crate::placement::{Candidates, Counted, Survey};
use crate::retry::Retry;
use crate::slow::SlowReplicas;
use crate::stragglers::Stragglers;
use crate::tier_secret::KnownSecret;
use crate::tier_support::Supports;
use crate::transport::Transport;
use crate::write_counts::WriteCounts;

/// See the module.
pub(crate) struct Shared {
    pub layout: Layout,
    /// Opened by the builder, so closed with the client.
    pub is_session_ours: bool,
    pub transport: Arc<dyn Transport>,
    /// The same bookies, for reads in the background, which must not slow down others.
    pub background: Arc<dyn Transport>,
    /// The same as `transport`, when it is the network.
    pub bookies: Option<Arc<Bookies>>,
    /// Which bookies take part in tiering.
    pub supports: Supports,
    /// By which bookies know this client as a tierer.
    pub tier_secret: KnownSecret,
    pub placement: Counted,
    pub survey: Survey,
    pub health: Arc<NodeHealth>,
    /// Probes bookies that are not healthy, until it is dropped.
    pub _prober: Prober,
    /// Reads that were answered by another replica.
    pub stragglers: Stragglers,
    /// Stored bytes of entries that some bookie has not answered for yet.
    pub add_budget: ByteBudget,
    /// Entries read and not yet taken.
    pub read_budget: ByteBudget,
    /// Bytes that each bookie holds up, which tell which replicas are slow.
    pub slow: SlowReplicas,
    pub writes: Arc<WriteCounts>,
    /// Bytes that writers keep for bookies that lack them.
    pub kept: Arc<KeptBytes>,
    pub limits: Limits,
    pub canaries: Canaries,
    /// What readers learn from writers.
    pub own_writers: OwnWriters,
    /// Ledgers that are being taken for appending.
    pub claims: Claims,
    pub is_closed: AtomicBool,
}

impl Shared {
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Sends a request to the metadata store, and repeats it within `metadata_patience` while it fails for a reason that may
    /// pass. It must be safe to repeat after an unknown outcome.
    pub async fn patiently<T, E, F>(
        &self,
        is_transient: impl Fn(&E) -> bool,
        mut request: impl FnMut() -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut retry = Retry::new(self.limits.metadata_patience);
        loop {
            match request().await {
                Err(error) if is_transient(&error) && !self.is_closed() && retry.pause().await => {}
                outcome => return outcome,
            }
        }
    }

    /// A ledger's metadata, read [patiently](Self::patiently).
    pub async fn stored(&self, id: LedgerId) -> Result<StoredLedger, LedgerError> {
        let ledgers = self.layout.ledgers();
        self.patiently(LedgerError::is_transient, || ledgers.get(id)).await
    }

    /// The same, and no older than this call. Old metadata does not prove that something is absent.
    pub async fn stored_latest(&self, id: LedgerId) -> Result<StoredLedger, LedgerError> {
        let ledgers = self.layout.ledgers();
        self.patiently(LedgerError::is_transient, || ledgers.get_latest(id)).await
    }

    /// The bookies that are registered now and what placement knows of them: locations, also those of `members`, the ensemble that is to
    /// be changed (empty for a new one), weights, and which to avoid. Tells the health of bookies who is registered. One try: fails if
    /// the metadata store does not list the bookies.
    pub async fn candidates(&self, members: &[BookieId]) -> Result<Candidates, StoreError> {
        Ok(self.candidates_of(self.layout.registration().list().await?, members).await)
    }

    /// As [`candidates`](Self::candidates), where these bookies are registered.
    pub async fn candidates_of(&self, registered: Vec<RegisteredBookie>, members: &[BookieId]) -> Candidates {
        self.health.refresh(&registered.iter().map(|bookie| bookie.bookie_id.clone()).collect());
        let (writable, read_only): (Vec<_>, Vec<_>) =
            registered.into_iter().partition(|bookie| bookie.mode == RegistrationMode::Writable);
        let writable: Vec<_> = writable.into_iter().map(|bookie| bookie.bookie_id).collect();
        // One that changes its registration is listed twice for a moment.
        let read_only = read_only.into_iter().map(|bookie| bookie.bookie_id);
        let read_only = read_only.filter(|bookie| !writable.contains(bookie)).collect();
        let avoided = self.health.avoided();
        let mut candidates = Candidates { writable, read_only, avoided, ..Candidates::default() };
        self.survey.complete(&mut candidates, members).await;
        candidates
    }

    /// Closes the client, and with it every handle: waits a while for ledgers that are being claimed, then closes the connections to
    /// bookies, and the metadata session if the client opened it.
    pub async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.claims.ended().await;
        if let Some(bookies) = &self.bookies {
            bookies.close().await;
        }
        if self.is_session_ours
            && let Err(error) = self.layout.store().close().await
        {
            tracing::debug!(%error, "the metadata session will time out by itself");
        }
    }
}

/// The ledger's secret, if this is its password. Metadata of version 1 has no password to compare with, so any is taken.
pub(crate) fn check_password(metadata: &LedgerMetadata, password: &[u8]) -> Option<LedgerSecret> {
    match &metadata.secret {
        Some(secret) if secret.master_key() == MasterKey::from_password(password) => Some(secret.clone()),
        Some(_) => None,
        None => Some(LedgerSecret { digest_type: DigestType::Crc32, password: password.to_vec() }),
    }
}
