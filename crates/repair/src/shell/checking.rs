//! The periodic checks of an elected auditor: of all ledgers against their bookies, and of ensembles against the placement policy.
//!
//! # Data flow
//! ```text
//! time of the last check, in metadata --due--> ledgers --> one task each --> bookies, one after the other --> Outcome --> marks
//!        '------------------------------- end of the check --------------------------------------------------------'
//! ```
//!
//! # Invariants
//! 1. A ledger is marked only when a bookie lacks something at two looks by the same metadata: what a repair moved, and a copy that
//!    came late, is no lack.
//! 2. A bookie that did not answer, or is busy, is left alone for [`SILENT_PAUSE`]: it holds up no check, and no check burdens it.
//! 3. While repair is disabled nothing is asked; the check goes on where it was.
//! 4. One ledger that cannot be checked is named and holds up no other.
//!
//! # Limits     [`CheckSettings::parallel`](super::CheckSettings::parallel) ledgers, [`LISTS_MAX`] lists of entries at a time, each
//! within the client's frame limit

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::transport::BookieError;
use bindery_client::{EntryAvailability, ErrorCode, FoundCopy};
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, PeriodicCheck};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, LedgerId, LedgerMetadata};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::auditing::Looks;
use super::report::{CheckReport, StuckLedger};
use super::{Common, is_of_one_ledger};
use crate::core::audit::{SegmentEnd, segments};
use crate::core::check::{Comparison, Outcome, PROBLEMS_MAX, Pace, Progress, Share, due_in, shares};

/// Lists of entries in memory at a time.
const LISTS_MAX: usize = 4;
/// How long a bookie is left alone that did not answer.
const SILENT_PAUSE: Duration = Duration::from_secs(60);
/// Between two looks at whether a check is due, or repair is enabled again.
const DUE_LOOK: Duration = Duration::from_secs(60);
const DISABLED_LOOK: Duration = Duration::from_secs(1);
/// After a failure of the metadata store.
const RETRY: Duration = Duration::from_secs(10);
/// How often a ledger is looked at, while it changes.
const LOOKS_MAX: u32 = 5;

/// Runs for as long as this process is the auditor; dropped, it ends between any two requests.
pub(super) async fn run(common: Arc<Common>) -> Infallible {
    loop {
        let pause = match turn(&common).await {
            Ok(pause) => pause,
            Err(error) => {
                common.note_error("the periodic check of ledgers", &error);
                RETRY
            }
        };
        common.state.lock().check.is_running = false;
        tokio::time::sleep(pause).await;
    }
}

/// Makes the checks that are due. Returns when to look again.
async fn turn(common: &Arc<Common>) -> Result<Duration, LedgerError> {
    if common.state.lock().is_disabled {
        return Ok(DISABLED_LOOK);
    }
    let settings = common.layout().repair_settings();
    let checks = &common.config.checks;
    let mut next = DUE_LOOK;
    if let Some(interval) = checks.interval {
        let ended_ms = settings.check_ended(PeriodicCheck::AllLedgers).await?;
        let due_in = due_in(interval, ended_ms, common.clock.wall_ms());
        common.state.lock().check.ended_ms = ended_ms;
        if due_in.is_zero() {
            if !check_all(common).await? {
                return Ok(DISABLED_LOOK);
            }
            let ended_ms = common.clock.wall_ms();
            settings.set_check_ended(PeriodicCheck::AllLedgers, ended_ms).await?;
            if checks.covers_replicas {
                settings.set_check_ended(PeriodicCheck::Replicas, ended_ms).await?;
            }
            let mut state = common.state.lock();
            let report = &mut state.check;
            (report.ended, report.ended_ms) = (report.ended + 1, Some(ended_ms));
            let CheckReport { whole, lacking, unchecked, .. } = report;
            tracing::info!(whole, lacking, unchecked, "all ledgers were checked");
        }
        // The next one is of all ledgers, also when another auditor ended the one that was interrupted here.
        *common.progress.lock() = Progress::default();
        next = next.min(due_in.max(DISABLED_LOOK));
    }
    if let Some(interval) = checks.placement_interval {
        let ended_ms = settings.check_ended(PeriodicCheck::Placement).await?;
        let due_in = due_in(interval, ended_ms, common.clock.wall_ms());
        if due_in.is_zero() {
            check_placement(common).await?;
            settings.set_check_ended(PeriodicCheck::Placement, common.clock.wall_ms()).await?;
        }
        next = next.min(due_in.max(DISABLED_LOOK));
    }
    Ok(next)
}

/// Checks all ledgers, or those behind the last one of a check that was interrupted. False when repair was disabled meanwhile.
async fn check_all(common: &Arc<Common>) -> Result<bool, LedgerError> {
    let mut after = common.progress.lock().resume();
    common.state.lock().check.is_running = true;
    let check = Arc::new(Check::new(common.clone()));
    check.tell();
    let mut listing = common.layout().ledgers().list();
    let mut listed = Vec::new().into_iter();
    let mut tasks: JoinSet<Result<(LedgerId, Outcome), LedgerError>> = JoinSet::new();
    let mut is_listed = false;
    loop {
        while tasks.len() < common.config.checks.parallel.max(1) && !is_listed {
            let Some(ledger) = listed.next() else {
                match listing.next().await? {
                    Some(page) => listed = page.into_iter(),
                    None => is_listed = true,
                }
                continue;
            };
            if after.is_some_and(|after| ledger <= after) {
                continue;
            }
            after = None;
            common.progress.lock().begin(ledger);
            let check = check.clone();
            tasks.spawn(async move { Ok((ledger, check.ledger(ledger).await?)) });
        }
        let Some(ended) = tasks.join_next().await else { return Ok(true) };
        let (ledger, outcome) = match ended {
            Ok(ended) => ended?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        // Tasks that are dropped here are repeated.
        if common.state.lock().is_disabled {
            return Ok(false);
        }
        common.progress.lock().end(ledger, outcome);
        check.tell();
    }
}

/// What the ledgers of a check share.
struct Check {
    common: Arc<Common>,
    began: Instant,
    pace: Mutex<Pace>,
    lists: Semaphore,
    /// Bookies that are left alone until then, and why.
    silent: Mutex<BTreeMap<BookieId, (Instant, String)>>,
}

/// What is known of one bookie's copies.
enum Found {
    Whole,
    Lacking,
    /// Nothing, for this reason.
    Unknown(String),
}

impl Check {
    fn new(common: Arc<Common>) -> Check {
        let pace = Pace::new(common.config.checks.requests_per_second);
        Check {
            common,
            began: Instant::now(),
            pace: Mutex::new(pace),
            lists: Semaphore::new(LISTS_MAX),
            silent: Mutex::default(),
        }
    }

    /// Waits for this request's turn.
    async fn turn(&self) {
        let at = self.pace.lock().next(self.began.elapsed());
        tokio::time::sleep_until(self.began + at).await;
    }

    /// Puts into the report how far it is.
    fn tell(&self) {
        let progress = self.common.progress.lock();
        let mut state = self.common.state.lock();
        let check = &mut state.check;
        (check.whole, check.lacking, check.unchecked) =
            (progress.whole, progress.lacking, progress.unchecked);
        if check.problems.len() != progress.problems.len() {
            let named = progress.problems.iter();
            let named =
                named.map(|problem| StuckLedger { ledger: problem.ledger.get(), why: problem.why.clone() });
            check.problems = named.collect();
        }
    }

    /// Checks a ledger, and marks it for those that lack something.
    async fn ledger(&self, ledger: LedgerId) -> Result<Outcome, LedgerError> {
        let mut found: Option<(Version, Vec<BookieId>)> = None;
        for _ in 0..LOOKS_MAX {
            self.turn().await;
            let ledgers = self.common.layout().ledgers();
            let stored = match found.is_none() {
                true => ledgers.get(ledger).await,
                false => ledgers.get_latest(ledger).await,
            };
            let stored = match stored {
                Ok(stored) => stored,
                Err(LedgerError::NotFound(_)) => return Ok(Outcome::Gone),
                Err(error) if is_of_one_ledger(&error) => {
                    return Ok(Outcome::Unchecked(error.to_string()));
                }
                Err(error) => return Err(error),
            };
            let (lacking, unknown) = self.members(ledger, &stored.metadata).await?;
            // Invariant 1.
            if let Some((version, before)) = &found
                && *version == stored.version
            {
                let still: Vec<BookieId> =
                    lacking.iter().filter(|bookie| before.contains(bookie)).cloned().collect();
                if !still.is_empty() {
                    return self.mark(ledger, &still).await;
                }
            }
            match (lacking.is_empty(), unknown) {
                (false, _) => found = Some((stored.version, lacking)),
                (true, Some(why)) => return Ok(Outcome::Unchecked(why)),
                (true, None) => return Ok(Outcome::Whole),
            }
        }
        Ok(Outcome::Unchecked("it keeps changing".into()))
    }

    /// The bookies of a ledger that lack something, and why nothing is known of others.
    async fn members(
        &self,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
    ) -> Result<(Vec<BookieId>, Option<String>), LedgerError> {
        let (mut lacking, mut unknown) = (Vec::new(), None);
        for (bookie, shares) in shares(metadata) {
            // What is lost with those that are away is looked at by the scan of lost bookies.
            if !self.common.bookies().await?.ids.contains(&bookie) {
                continue;
            }
            match self.bookie(ledger, metadata, &bookie, &shares).await {
                Found::Whole => {}
                Found::Lacking => lacking.push(bookie),
                Found::Unknown(why) => unknown = Some(why),
            }
        }
        Ok((lacking, unknown))
    }

    /// Asks a bookie for its list and some of its entries.
    async fn bookie(
        &self,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        bookie: &BookieId,
        shares: &[Share],
    ) -> Found {
        if let Some(why) = self.is_silent(bookie) {
            return Found::Unknown(why);
        }
        match self.lacks_listed(ledger, metadata, bookie, shares).await {
            Ok(true) => return Found::Lacking,
            Ok(false) => {}
            Err(error) if cannot_list(&error) => {}
            Err(error) => return self.unknown(bookie, &error),
        }
        let percent = self.common.config.checks.read_percent;
        for share in shares {
            for entry in share.probes(metadata.quorum, percent) {
                self.turn().await;
                let copy = self.common.client.copy_at(bookie, ledger, entry, metadata.secret.as_ref()).await;
                match copy {
                    Ok(FoundCopy::Sound) => {}
                    Ok(FoundCopy::Missing | FoundCopy::Damaged) => {
                        tracing::info!(%ledger, %bookie, %entry, ?copy, "the check found a bad copy");
                        return Found::Lacking;
                    }
                    Err(error) => return self.unknown(bookie, &error),
                }
            }
        }
        Found::Whole
    }

    /// Whether a bookie's list lacks entries that it should have.
    async fn lacks_listed(
        &self,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        bookie: &BookieId,
        shares: &[Share],
    ) -> Result<bool, BookieError> {
        let _room = self.lists.acquire().await.expect("it is never closed");
        self.turn().await;
        let list: EntryAvailability =
            self.common.client.entries_of(bookie, ledger).await?.unwrap_or_default();
        let mut comparison = Comparison::new(metadata.quorum, shares, &list);
        loop {
            if let Some(lacks) = comparison.step() {
                return Ok(lacks);
            }
            tokio::task::yield_now().await;
        }
    }

    fn is_silent(&self, bookie: &BookieId) -> Option<String> {
        let mut silent = self.silent.lock();
        silent.retain(|_, (until, _)| *until > Instant::now());
        silent.get(bookie).map(|(_, why)| why.clone())
    }

    fn unknown(&self, bookie: &BookieId, error: &BookieError) -> Found {
        let why = match error {
            BookieError::Refused(ErrorCode::UnknownLedgerState) => {
                format!("{bookie} has it in limbo, and marks by itself what it lacks")
            }
            error => format!("{bookie} does not say what it has: {error}"),
        };
        if is_silence(error) {
            let until = Instant::now() + SILENT_PAUSE;
            self.silent.lock().insert(bookie.clone(), (until, why.clone()));
        }
        Found::Unknown(why)
    }

    async fn mark(&self, ledger: LedgerId, lacking: &[BookieId]) -> Result<Outcome, LedgerError> {
        // A look of its own: the answer of the auditor's watch may be on its way.
        if self.common.layout().repair_settings().is_disabled().await? {
            self.common.state.lock().is_disabled = true;
            return Ok(Outcome::Unchecked("repair was disabled meanwhile".into()));
        }
        let marks = self.common.layout().under_replication();
        match marks.mark_since(ledger, lacking, self.common.mark_time()).await {
            Ok(()) => {}
            Err(error @ StoreError::Protocol(_)) => return Ok(Outcome::Unchecked(error.to_string())),
            Err(error) => return Err(error.into()),
        }
        self.common.state.lock().marked += 1;
        tracing::warn!(%ledger, ?lacking, "the check found that entries are missing; it is marked for repair");
        Ok(Outcome::Lacking(lacking.to_vec()))
    }
}

/// Whether a bookie does not know the request for a list, or its list is too long to be sent: entries are read then.
fn cannot_list(error: &BookieError) -> bool {
    matches!(
        error,
        BookieError::Refused(ErrorCode::BadRequest | ErrorCode::BadVersion | ErrorCode::Io)
            | BookieError::Unexpected(_)
            | BookieError::AnswerTooLarge { .. }
    )
}

/// Whether the bookie is away or busy, and the next ledger would learn no more of it.
fn is_silence(error: &BookieError) -> bool {
    matches!(
        error,
        BookieError::Refused(ErrorCode::TooManyRequests)
            | BookieError::NotRegistered
            | BookieError::Unreachable(_)
            | BookieError::Lost
            | BookieError::LostUnanswered(_)
            | BookieError::TimedOut(_)
    )
}

/// Counts closed ledgers with an ensemble that is not spread as the policy of this process wants it.
async fn check_placement(common: &Arc<Common>) -> Result<(), LedgerError> {
    let spread = common.client.spread().await?;
    if let Some(error) = spread.error() {
        common.note_error("places of bookies", &error);
    }
    let (mut judged, mut badly, mut problems) = (0, 0, Vec::new());
    let mut looks = Looks::all(common.layout().clone());
    while let Some((ledger, stored)) = looks.next().await? {
        let metadata = &stored.metadata;
        judged += 1;
        let settled = segments(metadata).filter(|(_, end)| matches!(end, SegmentEnd::At(_)));
        let mut lacking =
            settled.filter_map(|(segment, _)| spread.lacking(metadata.quorum, &segment.ensemble));
        let Some(unmet) = lacking.next() else { continue };
        badly += 1;
        if problems.len() < PROBLEMS_MAX {
            let why = format!(
                "its write sets should be on {} {}, and one is on {}",
                unmet.needed, unmet.domain, unmet.available
            );
            problems.push(StuckLedger { ledger: ledger.get(), why });
        }
    }
    tracing::info!(judged, badly_placed = badly, "the placement of all ledgers was checked");
    let mut state = common.state.lock();
    let report = &mut state.placement;
    report.ended += 1;
    (report.judged, report.badly_placed, report.problems) = (judged, badly, problems);
    Ok(())
}
