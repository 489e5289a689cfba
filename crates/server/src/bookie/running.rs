//! A bookie that serves, until it stops: registration kept up, modes, and the order of the stop (see the module above).

use super::{Bookie, Ended};
use crate::disks::Cause;
use crate::latch::Latch;
use bindery_engine::StopError;
use bindery_metadata::{RegistrationEvent, RegistrationMode};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Bound of what a stop does beside draining connections (`drain_max`).
pub const STOP_REST_MAX: Duration = Duration::from_secs(5);
/// How long a stop waits until the metadata store shows the bookie as read-only.
const ANNOUNCE_MAX: Duration = Duration::from_secs(1);
/// How long the stop waits for the metadata store.
const UNREGISTER_MAX: Duration = Duration::from_secs(2);
/// Read buffers that were not needed for so long go back to the system.
const BUFFER_TRIM_INTERVAL: Duration = Duration::from_secs(30);

impl Bookie {
    /// Serves until `stop`, or until the registration is refused; then shuts down.
    pub async fn run(mut self, stop: &Latch) -> Ended {
        let mut lost = None;
        let mut full = None;
        let mut mode = self.standing.mode();
        // A change during the registration of the bookie counts too.
        mode.mark_changed();
        let mut trim = tokio::time::interval(BUFFER_TRIM_INTERVAL);
        let mut gone_at = None;
        loop {
            tokio::select! {
                () = stop.wait() => break,
                _ = trim.tick() => self.shared.buffers.trim(),
                event = self.events.recv() => match event {
                    Some(RegistrationEvent::Registered { mode, session }) => {
                        gone_at = None;
                        self.on_registered(mode);
                        tracing::info!(?mode, %session, "registered again with the metadata store");
                    }
                    Some(RegistrationEvent::Lost) => {
                        gone_at = Some(Instant::now() + self.session_timeout);
                        tracing::warn!(
                            servers = self.metadata_servers,
                            "lost the connection to the metadata store, reconnecting: adds and reads continue, and \
                             this bookie stays registered for the session timeout of {:?}",
                            self.session_timeout
                        );
                    }
                    Some(RegistrationEvent::Expired) => {
                        gone_at = None;
                        self.on_unregistered();
                        tracing::warn!(
                            "the metadata session expired: registering again; connected clients are served meanwhile"
                        );
                    }
                    Some(RegistrationEvent::Refused(error)) => {
                        lost = Some(error.to_string());
                        break;
                    }
                    None => {
                        lost = Some("the registrar ended".to_owned());
                        break;
                    }
                },
                () = tokio::time::sleep_until(gone_at.unwrap_or_else(Instant::now)), if gone_at.is_some() => {
                    gone_at = None;
                    self.on_unregistered();
                    tracing::warn!("no connection to the metadata store for the whole session timeout: clients may \
                     not find this bookie");
                }
                Ok(()) = mode.changed() => {
                    let mode = *mode.borrow_and_update();
                    let reasons = self.standing.reasons();
                    let why = reasons.get(&Cause::DiskFull).or(reasons.get(&Cause::NoSpace));
                    if let (false, Some(why)) = (self.may_be_read_only, why) {
                        full = Some(why.clone());
                        break;
                    }
                    self.registrar.set_mode(mode);
                }
            }
        }
        if let Some(why) = &lost {
            tracing::error!(why, "registration refused: stopping");
        }
        if let Some(why) = &full {
            tracing::error!(why, "stopping, because readOnlyModeEnabled is false");
        }
        let unclean = self.shut_down().await;
        match (lost, full, unclean) {
            (Some(why), ..) => Ended::RegistrationLost(why),
            (None, Some(why), _) => Ended::DiskFull(why),
            (None, None, Some(why)) => Ended::Unclean(why),
            (None, None, None) => Ended::Stopped,
        }
    }

    fn on_unregistered(&self) {
        self.shared.metrics.server_status.set(-1);
        self.state.is_registered.store(false, Ordering::Release);
    }

    /// Lets clients that look for bookies find this one as read-only, if the metadata store answers in time.
    async fn announce_read_only(&mut self) {
        self.registrar.set_mode(RegistrationMode::ReadOnly);
        let announced = async {
            while let Some(event) = self.events.recv().await {
                if matches!(event, RegistrationEvent::Registered { mode: RegistrationMode::ReadOnly, .. }) {
                    return true;
                }
            }
            false
        };
        match tokio::time::timeout(ANNOUNCE_MAX, announced).await {
            Ok(true) => tracing::info!("registered as read-only"),
            Ok(false) | Err(_) => {
                tracing::warn!("cannot register as read-only, stopping anyway")
            }
        }
    }

    /// Ends everything within the bounds of the stop; says what could not be ended in order.
    pub(super) async fn shut_down(mut self) -> Option<String> {
        let drain_max = self.shared.limits.drain_max;
        tracing::info!(?drain_max, "stopping");
        self.state.is_shutting_down.store(true, Ordering::Release);
        self.state.is_running.store(false, Ordering::Release);
        let was_writable = *self.standing.mode().borrow() == RegistrationMode::Writable;
        self.standing.set(Cause::Stopping, Some("the bookie was asked to stop".to_owned()));
        if was_writable {
            self.announce_read_only().await;
        }
        let Bookie {
            shared,
            layout,
            registrar,
            engine,
            stop_serving,
            stop_metadata_checks,
            serving,
            garbage,
            trim,
            file_watches,
            metadata_checker,
            drain_watch,
            watch,
            health_watch,
            stop_admin,
            admin,
            dirs,
            ..
        } = self;
        let orderly = async {
            stop_serving.set();
            if serving.await.is_err() {
                tracing::error!("the listener panicked");
            }
            stop_metadata_checks.set();
            registrar.stop(UNREGISTER_MAX).await;
            shared.metrics.server_status.set(-1);
            if garbage.await.is_err() {
                tracing::error!("the garbage collector panicked");
            }
            if let Some(trim) = trim
                && trim.await.is_err()
            {
                tracing::error!("the trimmer panicked");
            }
            for watch in file_watches {
                if watch.await.is_err() {
                    tracing::error!("a task that watches TLS or user files panicked");
                }
            }
            if metadata_checker.await.is_err() {
                tracing::error!(
                    "the task that reads ledger metadata for adds panicked, which is a bug: the stop \
                 continues"
                );
            }
            if health_watch.await.is_err() {
                tracing::error!("the task that tries out disks and journals panicked");
            }
            if drain_watch.await.is_err() {
                tracing::error!("the task that looks whether the bookie is being emptied panicked");
            }
            // It may be waiting for a disk that does not answer; it holds nothing that a stop needs.
            watch.abort();
            let stopped = tokio::task::spawn_blocking(move || {
                shared.io.stop();
                engine.stop()
            })
            .await
            .unwrap_or(Err(StopError::Panicked("stopping")));
            // Ended last: until here the session, and so the identity, is this process's.
            if let Ok(Ok(())) = tokio::time::timeout(UNREGISTER_MAX, layout.store().close()).await {
                // The next start need not ask for a session that is known to be gone.
                let dirs = dirs.clone();
                let _ = tokio::task::spawn_blocking(move || dirs.forget_session()).await;
            }
            stop_admin.set();
            drop(admin);
            stopped
        };
        let stop_max = drain_max + STOP_REST_MAX;
        let unclean = match tokio::time::timeout(stop_max, orderly).await {
            Ok(Ok(())) => {
                tracing::info!("stopped");
                return None;
            }
            Ok(Err(StopError::Waits(why))) => {
                tracing::warn!(
                    why,
                    "stopped; what could not be flushed is in the journal, and the next start replays it"
                );
                return None;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not everything ended within {stop_max:?}"),
        };
        tracing::error!(
            why = unclean,
            "stopped uncleanly: acknowledged entries are safe; the next start replays the journal"
        );
        Some(unclean)
    }
}
