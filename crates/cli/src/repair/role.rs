//! Auditor and worker inside a bookie's process.

use crate::bookie_security::BookieSecurity;
use crate::own_client::{NotOpened, OwnClient};
use bindery_io::SystemClock;
use bindery_metadata::{MetadataUri, Security};
use bindery_repair::{CheckSettings, Repair, RepairConfig, Targets};
use bindery_server::bookie::LocalStore;
use bindery_server::latch::Latch;
use bindery_types::BookieId;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Settings of repair in a bookie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairRoleSettings {
    /// How long a bookie may be away, where metadata does not say it.
    pub lost_after: Option<Duration>,
    /// Time between two scans of all ledgers.
    pub scan_interval: Option<Duration>,
    /// Time that the writer of an open ledger has to replace a lost bookie.
    pub open_grace: Option<Duration>,
    /// Bytes copied in a second.
    pub bytes_per_second: Option<u64>,
    /// Checks that it makes as the auditor.
    pub checks: CheckSettings,
    /// Whether marks say since when.
    pub stamps_marks: Option<bool>,
    /// Older marks are counted.
    pub mark_grace: Option<Duration>,
}

impl RepairRoleSettings {
    /// For the worker of this bookie.
    pub fn config(&self, own: BookieId) -> RepairConfig {
        let mut config = RepairConfig::new(own.clone(), Targets::Own(own));
        let auditor = &mut config.auditor;
        auditor.delay = self.lost_after.unwrap_or(auditor.delay);
        auditor.scan_interval = self.scan_interval.unwrap_or(auditor.scan_interval);
        config.open_grace = self.open_grace.unwrap_or(config.open_grace);
        config.bytes_per_second = self.bytes_per_second;
        config.checks = self.checks.clone();
        config.stamps_marks = self.stamps_marks.unwrap_or(config.stamps_marks);
        config.mark_grace = self.mark_grace;
        config
    }
}

/// The first and the longest pause between two attempts to start.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// How long the end of the process waits for ledgers under way.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Repair beside a bookie.
pub struct RepairRole(JoinHandle<()>);

impl RepairRole {
    /// Runs until `stop`, and copies into the bookie whose `store` it is. A start that fails is tried again: the bookie does not depend on it. It has a session of its own with the
    /// metadata store, because locks of one session do not exclude each other.
    pub fn spawn(
        settings: &RepairRoleSettings,
        own: BookieId,
        store: LocalStore,
        metadata: (MetadataUri, Security),
        security: BookieSecurity,
        stop: &Arc<Latch>,
    ) -> RepairRole {
        let (config, stop) = (settings.config(own), stop.clone());
        RepairRole(tokio::spawn(async move {
            let mut pause = RETRY.0;
            loop {
                let opened = tokio::select! {
                    () = stop.wait() => return,
                    opened = OwnClient::open(&metadata, &security) => opened,
                };
                match opened {
                    Ok(own) => {
                        let (client, engine) = (own.client.clone(), Some(store.engine().clone()));
                        let repair = Repair::start(config, client, engine, Arc::new(SystemClock::new()));
                        tracing::info!("the bookie repairs ledgers of the cluster");
                        stop.wait().await;
                        repair.stop().await;
                        own.close().await;
                        return;
                    }
                    Err(NotOpened { failure, .. }) => {
                        tracing::warn!(
                            retry_s = pause.as_secs(),
                            "repair cannot start yet, retrying: {failure}"
                        );
                    }
                }
                tokio::select! {
                    () = stop.wait() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(RETRY.1);
            }
        }))
    }

    /// Waits for its end once it is told to stop, but not for long: locks go with the session, and another worker goes on.
    pub async fn ended(mut self) {
        if tokio::time::timeout(STOP_MAX, &mut self.0).await.is_err() {
            self.0.abort();
        }
    }
}
