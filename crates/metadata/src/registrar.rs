//! The registrar: keeps a bookie registered through lost connections and expired sessions.
//!
//! # Data flow
//! ```text
//! wanted mode (bookie) ---+
//! session state (store) --+-> task -> register / move -> events (bounded) -> bookie
//! own node (watch) -------+
//! cluster id, own cookie --+   (once for each session)
//! ```
//!
//! # Invariants
//! 1. At most one registration of this bookie is in progress, always under the current session.
//! 2. The session's credentials are saved before the first node is created under it, so that a bookie killed at any
//!    moment can take its own session up again.
//! 3. [`RegistrationEvent::Registered`] is sent only for a node that the named session owns; when that stops being true,
//!    `Lost` or `Expired` follows.
//! 4. After [`RegistrationEvent::Refused`] the task has ended: the bookie must stop serving and exit, because somebody
//!    else may serve under its identity.
//! 5. Nothing is registered under a session whose store was not asked whether it is still the cluster, with the cookie,
//!    that the bookie started with ([`Membership`]).
//!
//! # Limits     events: [`EVENTS_QUEUED_MAX`], the task waits while the bookie does not take them

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bindery_types::BookieId;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::codec::service_info::BookieServiceInfo;
use crate::layout::{Membership, Registration, RegistrationError, RegistrationMode};
use crate::store::{SessionCredentials, SessionId, SessionState, StoreError, Watch};

/// Events waiting for the bookie.
pub const EVENTS_QUEUED_MAX: usize = 16;

/// Pause before a registration that failed for a passing reason is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Where a session's credentials are kept between processes, for example a file of mode 0600 in the data directory.
/// Both calls may block; the registrar makes them off the async threads.
pub trait SessionStore: Send + Sync + 'static {
    /// What [`save`](Self::save) kept last, `None` when there is nothing usable.
    fn load(&self) -> io::Result<Option<SessionCredentials>>;

    /// Keeps credentials, durably enough to survive a killed process.
    fn save(&self, credentials: &SessionCredentials) -> io::Result<()>;
}

/// What happened to the registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationEvent {
    /// The bookie is registered in this mode; clients find it.
    Registered {
        /// Which node it has.
        mode: RegistrationMode,
        /// The session that owns the node.
        session: SessionId,
    },
    /// The connection is lost. The node may still be there; the registrar goes on by itself.
    Lost,
    /// The session is gone and with it the node: clients no longer find the bookie until `Registered` follows.
    Expired,
    /// The bookie cannot be registered, or its identity is somebody else's. Nothing more follows: exit.
    Refused(RegistrationError),
}

/// Owns the task that keeps a bookie registered. Dropping it stops the task and leaves the node to the session;
/// [`stop`](Self::stop) removes the node first.
pub struct BookieRegistrar {
    wanted: watch::Sender<Wanted>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Mode(RegistrationMode),
    Gone,
}

impl BookieRegistrar {
    /// Starts registering. `session_store` = `None` gives up taking the session up again after a crash.
    pub fn start(
        membership: Membership,
        info: BookieServiceInfo,
        mode: RegistrationMode,
        session_store: Option<Arc<dyn SessionStore>>,
    ) -> (BookieRegistrar, mpsc::Receiver<RegistrationEvent>) {
        let (wanted, wanted_receiver) = watch::channel(Wanted::Mode(mode));
        let (events, receiver) = mpsc::channel(EVENTS_QUEUED_MAX);
        let registration = membership.layout().registration();
        let session = registration.store().session();
        let task = Task {
            registration,
            bookie_id: membership.bookie_id().clone(),
            membership,
            checked: None,
            info,
            wanted: wanted_receiver,
            session,
            session_store,
            saved: None,
            registered: None,
            events,
        };
        let task = tokio::spawn(task.run());
        (BookieRegistrar { wanted, task: Some(task) }, receiver)
    }

    /// Asks for the other mode (or the same). The outcome arrives as [`RegistrationEvent::Registered`].
    pub fn set_mode(&self, mode: RegistrationMode) {
        self.wanted.send_replace(Wanted::Mode(mode));
    }

    /// Removes the node, if the store can be reached, and joins the task. Waits at most `patience`; after that the
    /// node goes with the session.
    pub async fn stop(mut self, patience: Duration) {
        self.wanted.send_replace(Wanted::Gone);
        let Some(mut task) = self.task.take() else { return };
        if tokio::time::timeout(patience, &mut task).await.is_err() {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for BookieRegistrar {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Task {
    registration: Registration,
    bookie_id: BookieId,
    membership: Membership,
    /// The session under which the cluster was found to be the bookie's own.
    checked: Option<SessionId>,
    info: BookieServiceInfo,
    wanted: watch::Receiver<Wanted>,
    session: watch::Receiver<SessionState>,
    session_store: Option<Arc<dyn SessionStore>>,
    /// Credentials in the session store.
    saved: Option<SessionCredentials>,
    /// What `Registered` said last and is still believed true.
    registered: Option<(RegistrationMode, SessionId)>,
    events: mpsc::Sender<RegistrationEvent>,
}

/// Nobody listens for events any more: the owner is gone.
struct Abandoned;

impl Task {
    async fn run(mut self) {
        let end = self.keep_registered().await;
        if end.is_err() {
            return;
        }
        let gone = self.registration.unregister(&self.bookie_id).await;
        match gone {
            Ok(()) => info!(bookie_id = %self.bookie_id, "registration removed"),
            Err(error) => {
                warn!(bookie_id = %self.bookie_id, %error, "cannot remove the registration: it goes when \
             its session expires")
            }
        }
    }

    /// Returns `Ok` when the bookie is to be unregistered.
    async fn keep_registered(&mut self) -> Result<(), Abandoned> {
        // A registration was begun and not ended: which nodes there are is not known.
        let (mut suspended, mut is_unsure) = (false, false);
        loop {
            // Marked seen before they are acted upon: a change during the action is found at the next wait.
            let wanted = *self.wanted.borrow_and_update();
            let state = self.session.borrow_and_update().clone();
            let mode = match wanted {
                Wanted::Mode(mode) => mode,
                Wanted::Gone => return Ok(()),
            };
            match state {
                SessionState::Connected(session) => {
                    if self.registered.is_some_and(|(_, registered)| registered != session) {
                        self.forget_expired().await?;
                    }
                    if suspended || is_unsure || self.registered != Some((mode, session)) {
                        is_unsure = true;
                        match self.register(session, mode).await? {
                            // Told now; until then whoever heard of the loss has to hear of it.
                            true => (suspended, is_unsure) = (false, false),
                            // Failed for a passing reason: again, unless something changes first.
                            false => {
                                self.wait(None, Some(RETRY_PAUSE)).await?;
                                continue;
                            }
                        }
                    }
                    self.hold(mode).await?;
                }
                SessionState::Suspended(_) | SessionState::Connecting => {
                    if !std::mem::replace(&mut suspended, true) && self.registered.is_some() {
                        self.send(RegistrationEvent::Lost).await?;
                    }
                    self.wait(None, None).await?;
                }
                SessionState::Expired(_) => {
                    self.forget_expired().await?;
                    self.wait(None, None).await?;
                }
                SessionState::AuthFailed(why) => {
                    return self.refuse(RegistrationError::Store(StoreError::AuthFailed { why })).await;
                }
                SessionState::Closed => {
                    return self.refuse(RegistrationError::Store(StoreError::Closed)).await;
                }
            }
        }
    }

    /// Watches the own node until something changes.
    async fn hold(&mut self, mode: RegistrationMode) -> Result<(), Abandoned> {
        let Some((_, session)) = self.registered else { return Ok(()) };
        match self.registration.watch(&self.bookie_id, mode).await {
            Ok((Some(stat), watch)) if stat.owner == Some(session) => self.wait(Some(watch), None).await,
            // Deleted by hand, or taken by another: registering again finds out which.
            Ok(_) => {
                warn!(bookie_id = %self.bookie_id, "the registration node is no longer ours, registering again");
                self.registered = None;
                self.send(RegistrationEvent::Expired).await
            }
            Err(_) => self.wait(None, Some(RETRY_PAUSE)).await,
        }
    }

    /// `Ok(false)`: try again later.
    async fn register(&mut self, session: SessionId, mode: RegistrationMode) -> Result<bool, Abandoned> {
        if self.checked != Some(session) {
            if let Err(error) = self.membership.check().await {
                return self.not_registered(error).await;
            }
            self.checked = Some(session);
        }
        self.save_session().await;
        let outcome = tokio::select! {
            outcome = self.registration.register(&self.bookie_id, mode, &self.info) => outcome,
            // Waiting for a foreign node takes long; another wish or the end of the owner must not wait for it. A
            // registration that is dropped half-way is completed by the next one, or removed at the end.
            _ = self.wanted.changed() => return Ok(false),
            // A node that is foreign to one session may be our own under the next.
            _ = self.session.changed() => return Ok(false),
        };
        match outcome {
            // Another session than the one that was asked: it is asked before anything is said.
            Ok(registered) if registered != session => Ok(false),
            Ok(_) => {
                if self.registered != Some((mode, session)) {
                    info!(bookie_id = %self.bookie_id, ?mode, %session, "registered");
                }
                self.registered = Some((mode, session));
                self.send(RegistrationEvent::Registered { mode, session }).await?;
                Ok(true)
            }
            Err(error) => self.not_registered(error).await,
        }
    }

    /// Tried again when the reason passes, else the end.
    async fn not_registered(&mut self, error: RegistrationError) -> Result<bool, Abandoned> {
        if is_passing(&error) {
            info!(bookie_id = %self.bookie_id, %error, "registration failed, retrying");
            return Ok(false);
        }
        self.refuse(error).await?;
        Err(Abandoned)
    }

    /// Invariant 2. A failure to save costs only the quick restart, so it is logged and not fatal.
    async fn save_session(&mut self) {
        let (Some(store), Some(credentials)) =
            (self.session_store.clone(), self.registration.store().session_credentials())
        else {
            return;
        };
        if self.saved.as_ref() == Some(&credentials) {
            return;
        }
        let copy = credentials.clone();
        let outcome = tokio::task::spawn_blocking(move || store.save(&copy)).await;
        match outcome {
            Ok(Ok(())) => self.saved = Some(credentials),
            Ok(Err(error)) => {
                warn!(%error, "cannot save the metadata session; a restart will have to wait until it expires")
            }
            Err(error) => {
                warn!(%error, "cannot save the metadata session; a restart will have to wait until it \
             expires")
            }
        }
    }

    async fn forget_expired(&mut self) -> Result<(), Abandoned> {
        match self.registered.take() {
            Some(_) => self.send(RegistrationEvent::Expired).await,
            None => Ok(()),
        }
    }

    /// Always ends the task.
    async fn refuse(&mut self, error: RegistrationError) -> Result<(), Abandoned> {
        self.registered = None;
        self.send(RegistrationEvent::Refused(error)).await?;
        Err(Abandoned)
    }

    /// Until the wish, the session or the node changes, or the pause is over. Cancellation safe.
    async fn wait(&mut self, node: Option<Watch>, pause: Option<Duration>) -> Result<(), Abandoned> {
        let node_changed = async {
            match node {
                Some(watch) => drop(watch.changed().await),
                None => std::future::pending().await,
            }
        };
        let paused = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.wanted.changed() => changed.map_err(|_| Abandoned),
            changed = self.session.changed() => changed.map_err(|_| Abandoned),
            () = node_changed => Ok(()),
            () = paused => Ok(()),
        }
    }

    async fn send(&self, event: RegistrationEvent) -> Result<(), Abandoned> {
        self.events.send(event).await.map_err(|_| Abandoned)
    }
}

fn is_passing(error: &RegistrationError) -> bool {
    match error {
        RegistrationError::SessionChanged => true,
        RegistrationError::Store(error) => {
            error.is_transient() || matches!(error, StoreError::BadVersion { .. } | StoreError::Full { .. })
        }
        RegistrationError::Owned { .. }
        | RegistrationError::NotEphemeral { .. }
        | RegistrationError::OtherCluster { .. }
        | RegistrationError::CookieChanged { .. }
        | RegistrationError::NotInitialised { .. } => false,
    }
}
