//! Auditor and worker inside a process that serves as a bookie.

use super::admin::{RepairAdmin, Standing};
use crate::bookie_security::BookieSecurity;
use crate::exit::Failure;
use crate::ledger::access::store_failure;
use crate::own_client::{NotOpened, OwnClient};
use bindery_client::transport::BookieError;
use bindery_client::{ErrorCode, LedgerId};
use bindery_io::SystemClock;
use bindery_metadata::{MetadataUri, Security};
use bindery_repair::{OwnBookie, OwnTier, Repair, RepairConfig};
use bindery_server::admin::extension::AdminExtension;
use bindery_server::bookie::LocalStore;
use bindery_server::latch::Latch;
use bindery_types::BookieId;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The first and the longest pause between two attempts to start.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// How long the end of the process waits for ledgers under way.
const STOP_MAX: Duration = Duration::from_secs(5);

/// It is of no cluster: bookies answer that they have nothing of it.
const NO_LEDGER: LedgerId = LedgerId::new(i64::MAX).expect("it is not negative");
/// Bookies that are asked whether they serve the client, this one first.
const ASKED_MAX: usize = 3;

/// The bookie, as a worker in it knows it.
fn own_bookie(store: &LocalStore) -> OwnBookie {
    let tier = store.tier().map(|tier| OwnTier {
        cluster: tier.cluster(),
        reader: tier.reader(),
        lets_go: {
            let tier = tier.clone();
            Arc::new(move |metadata| tier.lets_go(metadata))
        },
    });
    let engine = store.engine().clone();
    let store = store.clone();
    OwnBookie { engine, adds: Arc::new(move || store.add_times()), tier }
}

/// Repair beside a bookie, or beside those of a process.
pub struct RepairRole {
    task: JoinHandle<()>,
    admin: Arc<RepairAdmin>,
}

impl RepairRole {
    /// Runs until `stop`, and copies into the bookie whose `store` it is. A start that fails is tried again: bookies do not depend on it.
    /// It has a session of its own with the metadata store, because locks of one session do not exclude each other.
    pub fn spawn(
        config: RepairConfig,
        store: Option<LocalStore>,
        metadata: (MetadataUri, Security),
        security: BookieSecurity,
        stop: &Arc<Latch>,
    ) -> RepairRole {
        let stop = stop.clone();
        let admin = Arc::new(RepairAdmin::default());
        let shown = admin.clone();
        let task = tokio::spawn(async move {
            let mut pause = RETRY.0;
            let mut said = None;
            loop {
                let opened = tokio::select! {
                    () = stop.wait() => return,
                    opened = open(&config.name, &metadata, &security) => opened,
                };
                match opened {
                    Ok(own) => {
                        let bookie = store.as_ref().map(own_bookie);
                        let client = own.client.clone();
                        let config = match store.as_ref().map(LocalStore::repair_bytes) {
                            Some(bytes) if bytes > 0 => config.within(bytes),
                            _ => config,
                        };
                        let repair = Repair::start(config, client, bookie, Arc::new(SystemClock::new()));
                        tracing::info!("the bookie repairs ledgers of the cluster");
                        shown.set(Standing::Runs(repair.handle(), own.client.clone()));
                        stop.wait().await;
                        shown.set(Standing::Ended);
                        repair.stop().await;
                        own.close().await;
                        return;
                    }
                    Err(failure) => {
                        let why = failure.to_string();
                        shown.set(Standing::Failed(why.clone()));
                        // Once for each reason: it may last until an operator comes.
                        if said.as_ref() != Some(&why) {
                            tracing::warn!(
                                "the bookie does not repair ledgers of the cluster yet, and goes on trying: {why}"
                            );
                            said = Some(why);
                        }
                    }
                }
                tokio::select! {
                    () = stop.wait() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(RETRY.1);
            }
        });
        RepairRole { task, admin }
    }

    /// What an admin port shows where repair is left out, and why.
    pub fn left_out(why: String) -> Arc<dyn AdminExtension> {
        let admin = RepairAdmin::default();
        admin.set(Standing::LeftOut(why));
        Arc::new(admin)
    }

    /// The part that an admin port shows.
    pub fn admin(&self) -> Arc<dyn AdminExtension> {
        self.admin.clone()
    }

    /// Waits for its end once it is told to stop, but not for long: locks go with the session, and another worker goes on.
    pub async fn ended(mut self) {
        if tokio::time::timeout(STOP_MAX, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Opens session and client, once bookies are known to serve that client: without that, each marked ledger would be tried, and fail.
async fn open(
    own: &BookieId,
    metadata: &(MetadataUri, Security),
    security: &BookieSecurity,
) -> Result<OwnClient, Failure> {
    let not_opened = |NotOpened { failure, .. }| failure;
    let opened = OwnClient::open(metadata, security).await.map_err(not_opened)?;
    if let Err(failure) = check(&opened, own).await {
        opened.close().await;
        return Err(failure);
    }
    // The connections of the check are not kept: a worker that has nothing to do has none.
    opened.renew(security).await.map_err(not_opened)
}

async fn check(opened: &OwnClient, own: &BookieId) -> Result<(), Failure> {
    if opened.layout.repair_settings().delay().await.is_ok_and(|delay| delay == Some(Duration::ZERO)) {
        tracing::warn!(
            "lostBookieRecoveryDelay in the cluster's metadata is 0: all copies of a bookie that is away are replaced at once, also while \
             it restarts. bindery cluster repair delay 15m makes it wait"
        );
    }
    let registered =
        opened.layout.registration().registered().await.map_err(|error| store_failure(&error))?;
    let others = registered.iter().filter(|bookie| *bookie != own);
    let mut refused = None;
    // One that cannot be reached from here may be reached by all others; a refusal is the same on all, most often.
    for bookie in std::iter::once(own).chain(others).take(ASKED_MAX) {
        match opened.client.entries_of(bookie, NO_LEDGER).await {
            Err(why @ BookieError::Refused(ErrorCode::Unauthorized)) => {
                return Err(Failure::new(format!(
                    "bookie {bookie} does not serve its client ({why}): give saslUser and saslPasswordFile, a user with the roles writer and \
                     reader, or what TLS needs; or autoRecoveryDaemonEnabled=false (--repair-role off)"
                )));
            }
            Err(why @ (BookieError::Unreachable(_) | BookieError::LostUnanswered(_))) => {
                refused.get_or_insert_with(|| Failure::new(format!("bookie {bookie}: {why}")));
            }
            // It answered, or is slow.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
    refused.map_or(Ok(()), Err)
}
