//! Tells the service manager that the bookie serves, that it is still alive, and that it stops (sd_notify(3), `Type=notify` and
//! `WatchdogSec=` of systemd). Without a service manager this does nothing.
//!
//! While a disk hangs, as liveness probes see it, the watchdog hears nothing, and the manager starts the bookie again.

use bindery_server::health::Health;
use bindery_server::latch::Latch;
use sd_notify::NotifyState;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The task that goes on telling; it ends with this.
pub struct Telling(JoinHandle<()>);

impl Telling {
    /// Says that the bookie serves, then, until `stop`, often enough for the watchdog that it goes on.
    pub fn begin(health: Arc<Health>, stop: &Arc<Latch>) -> Telling {
        let stop = stop.clone();
        Telling(tokio::spawn(async move {
            say(NotifyState::Ready).await;
            let interval = sd_notify::watchdog_enabled().map(|limit| limit / 3);
            loop {
                let due = async {
                    match interval {
                        Some(interval) => tokio::time::sleep(interval).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = stop.wait() => break,
                    () = due => match health.hang() {
                        None => say(NotifyState::Watchdog).await,
                        Some(why) => tracing::warn!("the watchdog is not told that the bookie goes on: {why}"),
                    },
                }
            }
            say(NotifyState::Stopping).await;
        }))
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The manager's socket may be full for a moment, so this is for a thread that may block.
async fn say(state: NotifyState<'static>) {
    let said = tokio::task::spawn_blocking(move || sd_notify::notify(&[state])).await;
    if let Ok(Err(error)) = said {
        tracing::warn!(%error, "the service manager was not told (NOTIFY_SOCKET)");
    }
}
