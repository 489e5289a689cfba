//! The auditor: stands for election, and looks through all ledgers when its core says so.
//!
//! # Limits     metadata of [`LOOKS_MAX`] ledgers under way

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::Client;
use bindery_metadata::layout::{AuditorPlace, AuditorVote, LedgerError, StoredLedger};
use bindery_metadata::store::{SessionId, SessionState, Version, Watch};
use bindery_metadata::{Layout, StoreError};
use bindery_types::{BookieId, LedgerId, LedgerMetadata};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Common, named, pause, stops};
use crate::core::audit::audit;
use crate::core::auditor::AuditorCore;

/// Ledgers whose metadata is read at a time.
const LOOKS_MAX: usize = 32;
/// Ledgers whose metadata cannot be read that are named.
const UNREADABLE_MAX: usize = 100;
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

/// Reads what the core is told, and arms watches for changes. `seen`: the version of the delay that was read last, `None` before the first
/// time.
async fn learn(
    common: &Common,
    core: &mut AuditorCore,
    seen: &mut Option<Option<Version>>,
) -> Result<Facts, StoreError> {
    let settings = common.layout().repair_settings();
    let (is_disabled, disabled) = settings.watch_disabled().await?;
    let (delay, delay_watch) = settings.watch_delay().await?;
    if seen.is_none() && delay.is_none() {
        // BookKeeper's tools ask for a scan by writing it again, and fail where it is not.
        settings.set_delay(common.config.auditor.delay).await?;
    }
    if delay.is_some_and(|stored| stored.delay.is_none()) {
        let default = common.config.auditor.delay;
        common.note_error(
            "lostBookieRecoveryDelay",
            &format_args!("holds no number of seconds; {default:?} is taken"),
        );
    }
    let version = delay.map(|stored| stored.version);
    // Also one that was written during a scan, and with the same value.
    let is_asked = seen.is_some_and(|seen| version.is_some() && version != seen);
    *seen = Some(version);
    let (bookies, read_only) = common.layout().registration().watch_lists().await?;
    // Read here: the watch of `common.facts` may fire a moment after the one above.
    let live = common.layout().registration().registered().await?;
    let now = common.now();
    let wall_ms = common.clock.wall_ms();
    core.on_disabled(is_disabled);
    core.on_delay(delay.and_then(|stored| stored.delay), is_asked);
    core.on_bookies(now, live);
    let mut state = common.state.lock();
    state.is_disabled = is_disabled;
    let since_ms = |since: Duration| i64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(i64::MAX);
    let away = core.away().iter();
    state.away =
        away.map(|(bookie, since)| (bookie.to_string(), wall_ms.saturating_sub(since_ms(*since)))).collect();
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
    let mut seen = None;
    loop {
        let Facts { disabled, delay, bookies, read_only } = learn(common, &mut core, &mut seen).await?;
        if elected.has_fired() || *stopped.borrow() {
            return Ok(());
        }
        if core.begin_scan(common.now()) {
            let outcome = scan(common, &mut core, &mut elected, &session, stopped).await;
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
        tokio::select! {
            () = stops(stopped) => return Ok(()),
            () = is_left(&mut session, own) => return Ok(()),
            () = tokio::time::sleep(wait) => {}
            _ = disabled.changed() => {}
            _ = delay.changed() => {}
            _ = bookies.changed() => {}
            _ = read_only.changed() => {}
        }
    }
}

/// Waits until the session `own` is lost or suspended. From then on another process may be elected.
async fn is_left(session: &mut watch::Receiver<SessionState>, own: SessionId) {
    let _other = session.wait_for(|state| *state != SessionState::Connected(own)).await;
}

/// Judges all ledgers, and marks those that lack copies: how many were looked at.
async fn scan(
    common: &Arc<Common>,
    core: &mut AuditorCore,
    elected: &mut Watch,
    session: &watch::Receiver<SessionState>,
    stopped: &watch::Receiver<bool>,
) -> Result<u64, LedgerError> {
    let wall_ms = common.clock.wall_ms();
    let own = session.borrow().clone();
    let mut scanned = 0;
    let mut looks = Looks::new(common.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        if elected.has_fired() || *stopped.borrow() || *session.borrow() != own {
            return Err(LedgerError::Store(StoreError::SessionExpired));
        }
        if common.state.lock().is_disabled {
            return Err(LedgerError::Store(StoreError::Protocol("repair was disabled meanwhile".into())));
        }
        scanned += 1;
        let lost = core.judge(common.now(), &stored.metadata);
        if lost.is_empty() {
            continue;
        }
        let marks = common.layout().under_replication();
        match marks.mark_since(ledger, &lost, Some(wall_ms)).await {
            Ok(()) => {}
            // A mark that cannot be read is no reason to mark no others.
            Err(error @ StoreError::Protocol(_)) => {
                common.note_error(&named(ledger), &error);
                continue;
            }
            Err(error) => return Err(LedgerError::Store(error)),
        }
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
    /// Ledgers that were passed over, because their metadata cannot be read.
    unreadable: Vec<LedgerId>,
}

impl Looks {
    fn new(layout: Layout) -> Looks {
        let listing = layout.ledgers().list();
        Looks {
            layout,
            listing,
            listed: Vec::new().into_iter(),
            is_listed: false,
            tasks: JoinSet::new(),
            unreadable: Vec::new(),
        }
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
                    if self.unreadable.len() < UNREADABLE_MAX {
                        self.unreadable.push(ledger);
                    }
                }
                Some(Ok((_, Err(error)))) => return Err(error),
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}

/// Calls `look` with the metadata of every ledger, in no order. Returns those whose metadata cannot be read, some of them if there are many:
/// nothing is known of their copies.
///
/// # Errors
/// Of the metadata store.
pub async fn for_each_ledger(
    client: &Client,
    mut look: impl FnMut(LedgerId, &LedgerMetadata),
) -> Result<Vec<LedgerId>, LedgerError> {
    let mut looks = Looks::new(client.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        look(ledger, &stored.metadata);
    }
    Ok(looks.unreadable)
}

/// Which ledgers refer to bookies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgersOf {
    /// Those that lack copies when the bookies do not count, ascending, and of which bookies.
    pub lacking: Vec<(LedgerId, Vec<BookieId>)>,
    /// Those whose metadata cannot be read: they may refer to the bookies.
    pub unreadable: Vec<LedgerId>,
}

/// Finds every ledger that lacks copies when the bookies `lost` do not count, whatever the delay, and marks it unless it is a dry run.
///
/// # Errors
/// Of the metadata store; marks that were made stay.
pub async fn mark_ledgers_of(
    client: &Client,
    clock: &dyn bindery_io::Clock,
    lost: &BTreeSet<BookieId>,
    is_dry_run: bool,
) -> Result<LedgersOf, LedgerError> {
    let mut found = LedgersOf::default();
    let mut looks = Looks::new(client.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        let lacking: Vec<BookieId> =
            audit(&stored.metadata, |bookie| !lost.contains(bookie)).lacking().cloned().collect();
        if lacking.is_empty() {
            continue;
        }
        if !is_dry_run {
            let marks = client.layout().under_replication();
            let marked = marks.mark_since(ledger, &lacking, Some(clock.wall_ms())).await;
            marked.map_err(LedgerError::Store)?;
        }
        found.lacking.push((ledger, lacking));
    }
    found.lacking.sort_unstable_by_key(|(ledger, _)| *ledger);
    found.unreadable = looks.unreadable;
    Ok(found)
}
