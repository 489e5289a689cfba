//! The auditor: stands for election, and looks through all ledgers when its core says so.
//!
//! # Limits     metadata of [`LOOKS_MAX`] ledgers under way

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::Client;
use bindery_metadata::layout::{AuditorPlace, AuditorVote, LedgerError, StoredLedger};
use bindery_metadata::store::{SessionId, SessionState, Watch, WatchEvent};
use bindery_metadata::{Layout, StoreError};
use bindery_types::{BookieId, LedgerId, LedgerMetadata};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Common, named, pause, stops};
use crate::core::audit::audit;
use crate::core::auditor::AuditorCore;

/// Ledgers whose metadata is read at a time.
const LOOKS_MAX: usize = 32;
/// After a failure of the metadata store.
const RETRY: Duration = Duration::from_secs(2);
/// How often bookies are listed beside the watches.
const LIST_INTERVAL: Duration = Duration::from_secs(10);

/// Runs until it is told to stop.
pub(super) async fn run(common: Arc<Common>, mut stopped: watch::Receiver<bool>) {
    let votes = common.layout().auditor_votes();
    let mut vote: Option<AuditorVote> = None;
    while !*stopped.borrow() {
        match stand(&common, &mut vote, &mut stopped).await {
            Ok(()) => {}
            Err(StoreError::Closed) => break,
            Err(error) => {
                common.note_error("the auditor's election", &error);
                if pause(&mut stopped, RETRY).await {
                    break;
                }
            }
        }
        common.state.lock().is_auditor = false;
    }
    if let Some(vote) = vote
        && let Err(error) = votes.withdraw(&vote).await
    {
        tracing::debug!(%error, "the vote goes with the session");
    }
}

/// Votes, and is the auditor or waits for its turn. Ends when the vote has to be cast again, and at a stop.
async fn stand(
    common: &Arc<Common>,
    vote: &mut Option<AuditorVote>,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), StoreError> {
    let (votes, name) = (common.layout().auditor_votes(), &common.config.name);
    let cast = votes.vote(name).await?;
    *vote = Some(cast.clone());
    match votes.place(&cast, name).await? {
        AuditorPlace::Gone => Ok(()),
        AuditorPlace::Behind(watch) => {
            tokio::select! {
                () = stops(stopped) => {}
                _ = watch.changed() => {}
            }
            Ok(())
        }
        AuditorPlace::Elected(watch) => {
            tracing::info!(name = %name, "this process is the cluster's auditor");
            common.state.lock().is_auditor = true;
            audit_while_elected(common, watch, stopped).await
        }
    }
}

/// Watches of what the auditor's core is told.
struct Facts {
    disabled: Watch,
    delay: Watch,
    bookies: Watch,
    read_only: Watch,
}

/// Reads what the core is told, and arms watches for changes.
async fn learn(common: &Common, core: &mut AuditorCore, is_first: bool) -> Result<Facts, StoreError> {
    let settings = common.layout().repair_settings();
    let (is_disabled, disabled) = settings.watch_disabled().await?;
    let (delay, delay_watch) = settings.watch_delay().await?;
    if is_first && delay.is_none() {
        // BookKeeper's tools ask for a scan by writing it again, and fail where it is not.
        settings.set_delay(common.config.auditor.delay).await?;
    }
    let (bookies, read_only) = common.layout().registration().watch_lists().await?;
    let live = common.live_now().await?;
    let now = common.now();
    core.on_disabled(is_disabled);
    core.on_delay(delay, false);
    core.on_bookies(now, (*live).clone());
    let mut state = common.state.lock();
    state.is_disabled = is_disabled;
    state.away = core.away().keys().map(|bookie| bookie.to_string()).collect();
    Ok(Facts { disabled, delay: delay_watch, bookies, read_only })
}

async fn audit_while_elected(
    common: &Arc<Common>,
    mut elected: Watch,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), StoreError> {
    let mut core = AuditorCore::new(common.now(), common.config.auditor.clone());
    let mut session = common.layout().store().session();
    let own = session.borrow().clone().connected()?;
    let mut is_first = true;
    loop {
        let Facts { disabled, delay, bookies, read_only } = learn(common, &mut core, is_first).await?;
        is_first = false;
        if elected.has_fired() || *stopped.borrow() {
            return Ok(());
        }
        if core.begin_scan(common.now()) {
            let outcome = scan(common, &mut core, &mut elected, stopped).await;
            core.end_scan(common.now(), outcome.is_ok());
            match outcome {
                Ok(scanned) => {
                    let mut state = common.state.lock();
                    state.scans += 1;
                    state.scanned = scanned;
                }
                Err(error) => common.note_error("the scan of all ledgers", &error),
            }
            continue;
        }
        let wait = core.wake_at(common.now()).saturating_sub(common.now()).min(LIST_INTERVAL);
        let is_asked = tokio::select! {
            () = stops(stopped) => return Ok(()),
            () = is_left(&mut session, own) => return Ok(()),
            () = tokio::time::sleep(wait) => false,
            _ = disabled.changed() => false,
            _ = bookies.changed() => false,
            _ = read_only.changed() => false,
            // Also when the value is the same: that is how a scan is asked for.
            event = delay.changed() => matches!(event, WatchEvent::DataChanged | WatchEvent::Created),
        };
        if is_asked {
            core.on_delay(common.layout().repair_settings().delay().await?, true);
        }
    }
}

/// Waits until a session is not the current one: one that is lost, or only suspended, is not the auditor's any more.
async fn is_left(session: &mut watch::Receiver<SessionState>, own: SessionId) {
    let _other = session.wait_for(|state| *state != SessionState::Connected(own)).await;
}

/// Judges all ledgers, and marks those that lack copies: how many were looked at.
async fn scan(
    common: &Arc<Common>,
    core: &mut AuditorCore,
    elected: &mut Watch,
    stopped: &watch::Receiver<bool>,
) -> Result<u64, LedgerError> {
    let wall_ms = common.clock.wall_ms();
    let mut scanned = 0;
    let mut looks = Looks::new(common.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        if elected.has_fired() || *stopped.borrow() {
            return Err(LedgerError::Store(StoreError::SessionExpired));
        }
        scanned += 1;
        let lost = core.judge(common.now(), &stored.metadata);
        if lost.is_empty() {
            continue;
        }
        let marks = common.layout().under_replication();
        marks.mark_since(ledger, &lost, Some(wall_ms)).await.map_err(LedgerError::Store)?;
        common.state.lock().marked += 1;
        tracing::debug!(%ledger, ?lost, "marked as under-replicated");
    }
    Ok(scanned)
}

/// Metadata of all ledgers, some read ahead.
struct Looks {
    layout: Layout,
    listing: bindery_metadata::layout::LedgerListing,
    listed: std::vec::IntoIter<LedgerId>,
    is_listed: bool,
    tasks: JoinSet<(LedgerId, Result<StoredLedger, LedgerError>)>,
}

impl Looks {
    fn new(layout: Layout) -> Looks {
        let listing = layout.ledgers().list();
        Looks { layout, listing, listed: Vec::new().into_iter(), is_listed: false, tasks: JoinSet::new() }
    }

    /// The next ledger that is not deleted meanwhile, in no order.
    async fn next(&mut self) -> Result<Option<(LedgerId, StoredLedger)>, LedgerError> {
        loop {
            while self.tasks.len() < LOOKS_MAX {
                if let Some(ledger) = self.listed.next() {
                    let ledgers = self.layout.ledgers();
                    self.tasks.spawn(async move { (ledger, ledgers.get(ledger).await) });
                } else if self.is_listed {
                    break;
                } else {
                    match self.listing.next().await.map_err(LedgerError::Store)? {
                        Some(page) => self.listed = page.into_iter(),
                        None => self.is_listed = true,
                    }
                }
            }
            match self.tasks.join_next().await {
                None => return Ok(None),
                Some(Ok((ledger, Ok(stored)))) => return Ok(Some((ledger, stored))),
                Some(Ok((_, Err(LedgerError::NotFound(_))))) => {}
                // Nothing is known of its copies, and its writers cannot read it either.
                Some(Ok((ledger, Err(error @ LedgerError::Malformed { .. })))) => {
                    tracing::warn!(%error, "repair: {} is passed over", named(ledger));
                }
                Some(Ok((_, Err(error)))) => return Err(error),
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}

/// Calls `look` with the metadata of every ledger, in no order.
///
/// # Errors
/// Of the metadata store.
pub async fn for_each_ledger(
    client: &Client,
    mut look: impl FnMut(LedgerId, &LedgerMetadata),
) -> Result<(), LedgerError> {
    let mut looks = Looks::new(client.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        look(ledger, &stored.metadata);
    }
    Ok(())
}

/// Marks every ledger that lacks copies when the bookies `lost` do not count, whatever the delay: the ledgers, and of which bookies.
///
/// # Errors
/// Of the metadata store; marks that were made stay.
pub async fn mark_ledgers_of(
    client: &Client,
    clock: &dyn bindery_io::Clock,
    lost: &BTreeSet<BookieId>,
    is_dry_run: bool,
) -> Result<Vec<(LedgerId, Vec<BookieId>)>, LedgerError> {
    let mut marked = Vec::new();
    let mut looks = Looks::new(client.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        let found = audit(&stored.metadata, |bookie| !lost.contains(bookie));
        let lacking = found.lacks.into_iter().map(|lack| lack.bookie).chain(found.open);
        let lacking: BTreeSet<BookieId> = lacking.collect();
        if lacking.is_empty() {
            continue;
        }
        let lacking: Vec<BookieId> = lacking.into_iter().collect();
        if !is_dry_run {
            let marks = client.layout().under_replication();
            marks.mark_since(ledger, &lacking, Some(clock.wall_ms())).await.map_err(LedgerError::Store)?;
        }
        marked.push((ledger, lacking));
    }
    marked.sort_unstable_by_key(|(ledger, _)| *ledger);
    Ok(marked)
}
