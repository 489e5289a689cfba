//! The auditor: stands for election, and looks through all ledgers when its core says so.
//!
//! # Limits     metadata of [`LOOKS_MAX`] ledgers under way, as many marks, and the ids of [`HELD_MAX`] ledgers whose marks wait for those
//! of others

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::Client;
use bindery_metadata::layout::{
    AuditorPlace, AuditorVote, AuditorVotes, Danger, LedgerError, NewMark, StoredLedger, UnderReplication,
};
use bindery_metadata::store::{SessionId, SessionState, Version, Watch};
use bindery_metadata::{Layout, StoreError};
use bindery_types::{BookieId, LedgerId, LedgerMetadata};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Common, checking, is_of_one_ledger, named, pause, stops};
use crate::core::audit::audit;
use crate::core::auditor::AuditorCore;
use crate::core::danger::{danger, hash_of};

/// Ledgers whose metadata is read at a time, and that are marked at a time.
const LOOKS_MAX: usize = 32;
/// Ledgers that lack copies and wait until those with fewer are marked: 4 MB. More of them are marked as they come.
const HELD_MAX: usize = 500_000;
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
    *common.vote.lock() = Some(cast.name().to_owned());
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
            // Dropped with the election.
            tokio::select! {
                outcome = audit_while_elected(common, Elected { votes, vote: cast, watch }, stopped) => outcome,
                never = checking::run(common.clone()) => match never {},
            }
        }
    }
}

/// A vote that was elected.
struct Elected {
    votes: AuditorVotes,
    vote: AuditorVote,
    watch: Watch,
}

impl Elected {
    /// Whether another process may be the auditor by now.
    async fn is_over(&mut self) -> Result<bool, StoreError> {
        self.votes.is_over(&self.vote, &mut self.watch).await
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
    let (mut delay, mut delay_watch) = settings.watch_delay().await?;
    if seen.is_none() && delay.is_none() {
        // BookKeeper's tools ask for a scan by writing it again, and fail where it is not.
        settings.set_delay(common.config.auditor.delay).await?;
        // Read again: this writing asks for no scan.
        (delay, delay_watch) = settings.watch_delay().await?;
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
    mut elected: Elected,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), StoreError> {
    let mut core = AuditorCore::new(common.now(), common.config.auditor.clone());
    let mut session = common.layout().store().session();
    let own = session.borrow().clone().connected()?;
    let mut seen = None;
    loop {
        let Facts { disabled, delay, bookies, read_only } = learn(common, &mut core, &mut seen).await?;
        if *stopped.borrow() || elected.is_over().await? {
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

/// Judges all ledgers, and marks those that lack copies: how many were looked at. Where several bookies are away, those that are to be
/// marked and have more copies left than others may have are judged again and marked at the end.
async fn scan(
    common: &Arc<Common>,
    core: &mut AuditorCore,
    elected: &mut Elected,
    session: &watch::Receiver<SessionState>,
    stopped: &watch::Receiver<bool>,
) -> Result<u64, LedgerError> {
    let own = session.borrow().clone();
    let mut scanned = 0;
    let mut held = Vec::new();
    let mut marking = Marking::new(common.layout());
    let mut looks = Looks::all(common.layout().clone());
    let mut is_first_pass = true;
    loop {
        // Marks of a pass are of one time: then each worker has an order of its own for them.
        let since_ms = common.mark_time();
        while let Some((ledger, stored)) = looks.next().await? {
            let is_over = elected.is_over().await.map_err(LedgerError::Store)?;
            if is_over || *stopped.borrow() || *session.borrow() != own {
                return Err(LedgerError::Store(StoreError::SessionExpired));
            }
            if common.state.lock().is_disabled {
                return Err(LedgerError::Store(StoreError::Protocol("repair was disabled meanwhile".into())));
            }
            scanned += u64::from(is_first_pass);
            let verdict = core.judge(common.now(), &stored.metadata);
            if verdict.lost.is_empty() {
                continue;
            }
            if verdict.may_wait && is_first_pass && held.len() < HELD_MAX {
                held.push(ledger);
                continue;
            }
            count(common, marking.mark(ledger, verdict.lost, since_ms, verdict.danger).await)?;
        }
        // The marks of the first pass are made before those of the second.
        while let Some(made) = marking.next().await {
            count(common, Some(made))?;
        }
        if held.is_empty() {
            return Ok(scanned);
        }
        is_first_pass = false;
        looks = Looks::of(common.layout().clone(), std::mem::take(&mut held));
    }
}

/// Marks that are being made.
struct Marking {
    marks: UnderReplication,
    tasks: JoinSet<(LedgerId, Result<(), StoreError>)>,
}

impl Marking {
    fn new(layout: &Layout) -> Marking {
        Marking { marks: layout.under_replication(), tasks: JoinSet::new() }
    }

    /// Begins to mark a ledger. While many are under way it waits for one, which is returned.
    async fn mark(
        &mut self,
        ledger: LedgerId,
        lost: Vec<BookieId>,
        since_ms: Option<i64>,
        danger: Option<Danger>,
    ) -> Option<Made> {
        let made = if self.tasks.len() < LOOKS_MAX { None } else { self.next().await };
        let marks = self.marks.clone();
        self.tasks.spawn(async move {
            let marked = marks.make(ledger, &NewMark { replicas: &lost, since_ms, danger }).await;
            tracing::debug!(%ledger, ?lost, ?marked, "marked as under-replicated");
            (ledger, marked)
        });
        made
    }

    /// Waits for one that is under way; `None` when there is none.
    async fn next(&mut self) -> Option<Made> {
        self.tasks.join_next().await.map(|made| match made {
            Ok(made) => made,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        })
    }
}

/// A mark that was made, or could not be.
type Made = (LedgerId, Result<(), StoreError>);

/// Counts a mark of a scan.
fn count(common: &Common, made: Option<Made>) -> Result<(), LedgerError> {
    match made {
        None => {}
        Some((_, Ok(()))) => common.state.lock().marked += 1,
        // A mark that cannot be read is no reason to mark no others.
        Some((ledger, Err(error @ StoreError::Protocol(_)))) => common.note_error(&named(ledger), &error),
        Some((_, Err(error))) => return Err(LedgerError::Store(error)),
    }
    Ok(())
}

/// Metadata of ledgers, some read ahead.
pub(super) struct Looks {
    layout: Layout,
    listing: bindery_metadata::layout::LedgerListing,
    listed: std::vec::IntoIter<LedgerId>,
    is_listed: bool,
    tasks: JoinSet<(LedgerId, Result<StoredLedger, LedgerError>)>,
    /// Ledgers that were passed over, because their metadata cannot be read.
    unreadable: Vec<LedgerId>,
}

impl Looks {
    /// Of all ledgers.
    pub(super) fn all(layout: Layout) -> Looks {
        Looks { is_listed: false, ..Looks::of(layout, Vec::new()) }
    }

    /// Of these.
    fn of(layout: Layout, ledgers: Vec<LedgerId>) -> Looks {
        let listing = layout.ledgers().list();
        Looks {
            layout,
            listing,
            listed: ledgers.into_iter(),
            is_listed: true,
            tasks: JoinSet::new(),
            unreadable: Vec::new(),
        }
    }

    /// The next ledger that is not deleted meanwhile, in no order.
    pub(super) async fn next(&mut self) -> Result<Option<(LedgerId, StoredLedger)>, LedgerError> {
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
                Some(Ok((ledger, Err(error)))) if is_of_one_ledger(&error) => {
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
    let mut looks = Looks::all(client.layout().clone());
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
    let mut marking = Marking::new(client.layout());
    let since_ms = clock.wall_ms();
    let live = client.layout().registration().registered().await.map_err(LedgerError::Store)?;
    let bookies = hash_of(&live);
    let mut looks = Looks::all(client.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        let lacking: Vec<BookieId> =
            audit(&stored.metadata, |bookie| !lost.contains(bookie)).lacking().cloned().collect();
        if lacking.is_empty() {
            continue;
        }
        if !is_dry_run {
            let there = audit(&stored.metadata, |bookie| live.contains(bookie));
            let danger = danger(&stored.metadata, &there, bookies);
            if let Some((_, made)) = marking.mark(ledger, lacking.clone(), Some(since_ms), danger).await {
                made?;
            }
        }
        found.lacking.push((ledger, lacking));
    }
    while let Some((_, made)) = marking.next().await {
        made?;
    }
    found.lacking.sort_unstable_by_key(|(ledger, _)| *ledger);
    found.unreadable = looks.unreadable;
    Ok(found)
}

/// Marks ledgers as lacking the copies that one bookie has.
///
/// # Errors
/// Of the metadata store; marks that were made stay.
pub async fn mark_ledgers(
    client: &Client,
    clock: &dyn bindery_io::Clock,
    bookie: &BookieId,
    ledgers: &BTreeSet<LedgerId>,
) -> Result<(), LedgerError> {
    let mut marking = Marking::new(client.layout());
    let since_ms = clock.wall_ms();
    for ledger in ledgers {
        if let Some((_, made)) = marking.mark(*ledger, vec![bookie.clone()], Some(since_ms), None).await {
            made?;
        }
    }
    while let Some((_, made)) = marking.next().await {
        made?;
    }
    Ok(())
}
