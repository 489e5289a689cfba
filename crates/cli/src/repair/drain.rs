//! `bindery bookie drain`: empties a bookie that runs, and takes it out of the cluster.
//!
//! ```text
//! its node --> it is read-only --> ledgers that have copies there are marked --> workers copy, it is a source --> none is left
//!                                        '---- what was closed meanwhile, or unmarked by others <----'             |
//!                                                                      its cookie goes <-- proof: metadata of all ledgers is read again
//! ```
//! Progress is kept in metadata, so a command that was interrupted and is repeated continues where it stopped.

use super::args::{CopyArgs, DrainArgs};
use super::decommission::{check_known, prove};
use super::recover::{LOOKING, repair, report};
use crate::exit::{self, Failure};
use crate::ledger::access::{ledger_failure, store_failure, with_tuned_client};
use crate::ledger::form;
use crate::metadata_failure::cookie_failure;
use crate::output;
use crate::progress::{Progress, Unit};
use bindery_client::Client;
use bindery_io::{Clock as _, SystemClock};
use bindery_metadata::layout::{DrainStanding, LedgerError, RegistrationMode};
use bindery_repair::core::drain::{Holding, holding};
use bindery_repair::{for_each_ledger, mark_ledgers};
use bindery_types::{BookieId, LedgerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How long the bookie has to become read-only, and between two looks whether it is.
const READ_ONLY_MAX: Duration = Duration::from_secs(30);
const READ_ONLY_LOOK: Duration = Duration::from_millis(200);
/// Between two looks at ledgers that wait for their writers.
const WRITERS_LOOK: Duration = Duration::from_secs(2);
/// Rounds in a row after which as much is there as before, and all marks are gone.
const IDLE_ROUNDS_MAX: u32 = 5;
/// Ledgers that a message names.
const NAMED_MAX: usize = 5;

/// Empties the bookie, proves that nothing refers to it, and removes its cookie.
pub fn run(args: DrainArgs) -> Result<(), Failure> {
    let bookie = BookieId::new(args.bookie_id).map_err(Failure::usage)?;
    let tune = args.worker.placement.tune()?;
    let copies = args.worker.copies.clone();
    let (is_dry_run, is_cancelled, writers_max) = (args.dry_run, args.cancel, args.writers_max);
    with_tuned_client(&args.worker.access, true, tune, |client| async move {
        let drain = Drain { alone: BTreeSet::from([bookie.clone()]), client, bookie, copies, writers_max };
        if is_cancelled {
            return drain.cancel().await;
        }
        drain.check_running().await?;
        let found = drain.look().await?;
        if is_dry_run {
            return drain.show(&found);
        }
        drain.check_possible(&found).await?;
        drain.begin().await?;
        drain.empty().await?;
        drain.finish().await
    })
}

/// Ledgers with copies on the bookie.
struct Found {
    /// Of each ledger that has anything there.
    holdings: BTreeMap<LedgerId, Holding>,
    /// Bookies that take writes, without it.
    writable: usize,
}

impl Found {
    fn with_copies(&self) -> BTreeSet<LedgerId> {
        self.those(|holding| holding.segments > 0)
    }

    fn open(&self) -> BTreeSet<LedgerId> {
        self.those(|holding| holding.is_open)
    }

    fn those(&self, is_one: impl Fn(&Holding) -> bool) -> BTreeSet<LedgerId> {
        self.holdings.iter().filter(|(_, holding)| is_one(holding)).map(|(ledger, _)| *ledger).collect()
    }
}

struct Drain {
    client: Client,
    bookie: BookieId,
    /// The bookie, as a set.
    alone: BTreeSet<BookieId>,
    copies: CopyArgs,
    writers_max: Duration,
}

impl Drain {
    async fn cancel(&self) -> Result<(), Failure> {
        let bookie = &self.bookie;
        match self.client.layout().draining().end(bookie).await.map_err(|error| store_failure(&error))? {
            true => output::write_text(&format!("{bookie}: takes writes again\n")),
            false => Err(Failure::new(format!("bookie {bookie} is not being emptied: nothing was changed"))),
        }
    }

    /// Refuses what is only for a bookie that runs.
    async fn check_running(&self) -> Result<(), Failure> {
        let bookie = &self.bookie;
        if self.mode().await?.is_some() {
            return Ok(());
        }
        check_known(&self.client, bookie, &self.alone).await?;
        Err(Failure::new(format!(
            "bookie {bookie} is not running, so it is no source: start it, or take it out as it is with bindery bookie decommission \
             {bookie} --wait; nothing was changed"
        )))
    }

    /// How the bookie is registered.
    async fn mode(&self) -> Result<Option<RegistrationMode>, Failure> {
        let registered = self.client.layout().registration().list().await;
        let registered = registered.map_err(|error| store_failure(&error))?;
        Ok(registered.iter().find(|found| found.bookie_id == self.bookie).map(|found| found.mode))
    }

    /// Looks through all ledgers.
    async fn look(&self) -> Result<Found, Failure> {
        let registered = self.client.layout().registration().list().await;
        let registered = registered.map_err(|error| store_failure(&error))?;
        let writable: BTreeSet<BookieId> = registered
            .into_iter()
            .filter(|found| found.mode == RegistrationMode::Writable && found.bookie_id != self.bookie)
            .map(|found| found.bookie_id)
            .collect();
        let progress = Progress::start(LOOKING, Unit::Ledgers, None, false);
        let (mut holdings, mut looked_at) = (BTreeMap::new(), 0);
        let scanned = for_each_ledger(&self.client, |ledger, metadata| {
            looked_at += 1;
            progress.set(looked_at);
            if let Some(found) = holding(metadata, &self.bookie, &writable) {
                holdings.insert(ledger, found);
            }
        });
        // Those whose metadata cannot be read are in the way of the proof at the end.
        scanned.await.map_err(|error| ledger_failure(&error))?;
        Ok(Found { holdings, writable: writable.len() })
    }

    /// What a dry run prints.
    fn show(&self, found: &Found) -> Result<(), Failure> {
        if found.holdings.is_empty() {
            output::say("no ledger has entries there");
        }
        let text: String = found
            .holdings
            .iter()
            .map(|(ledger, holding)| {
                let segments = form::count(holding.segments as u64, "segment", "segments");
                let open = if holding.is_open { "  open: waits for its writer" } else { "" };
                let stuck = if holding.is_stuck { "  no bookie could take its copies" } else { "" };
                format!("{ledger}  {segments}{open}{stuck}\n")
            })
            .collect();
        output::write_text(&text)
    }

    /// Refuses what could not end well, before anything is changed.
    async fn check_possible(&self, found: &Found) -> Result<(), Failure> {
        let settings = self.client.layout().repair_settings();
        if settings.is_disabled().await.map_err(|error| store_failure(&error))? {
            return Err(Failure::new(
                "repair is disabled in this cluster: bindery cluster repair enable; nothing was changed",
            ));
        }
        let mut stuck = found.holdings.iter().filter(|(_, holding)| holding.is_stuck);
        let Some((ledger, holding)) = stuck.next() else { return Ok(()) };
        Err(Failure::new(format!(
            "the copies of {} could go nowhere, for example of ledger {ledger} with its ensemble of {}: beside {} {} writes. Add a bookie; \
             nothing was changed",
            form::count(1 + stuck.count() as u64, "ledger", "ledgers"),
            holding.ensemble_size,
            self.bookie,
            form::count(found.writable as u64, "bookie takes", "bookies take"),
        )))
    }

    /// Makes the bookie read-only for as long as this takes, also when it restarts.
    async fn begin(&self) -> Result<(), Failure> {
        let (layout, bookie) = (self.client.layout(), &self.bookie);
        let why = format!("since {}", form::utc(SystemClock::new().wall_ms()));
        let begun = layout.draining().begin(bookie, &why).await.map_err(|error| store_failure(&error))?;
        match begun {
            true => output::say(format!(
                "{bookie} takes no writes from now on, and serves reads; --cancel ends that"
            )),
            false => output::say(format!("{bookie} is being emptied already: going on")),
        }
        let end = Instant::now() + READ_ONLY_MAX;
        let _progress = Progress::wait("waiting until it is read-only");
        while self.mode().await? == Some(RegistrationMode::Writable) {
            if Instant::now() >= end {
                return Err(Failure::new(format!(
                    "bookie {bookie} takes writes still: it is of an earlier version, or Java's. Tell it over its admin port (PUT \
                     /api/v1/bookie/state/readonly with {{\"readOnly\":true}}, of Java's) or restart it with forceReadOnlyBookie=true, and \
                     repeat the command"
                )));
            }
            tokio::time::sleep(READ_ONLY_LOOK).await;
        }
        Ok(())
    }

    /// Copies until no ledger has anything there.
    async fn empty(&self) -> Result<(), Failure> {
        let (mut before, mut idle_rounds) = (usize::MAX, 0);
        let mut waits_until = None;
        loop {
            self.standing().await?;
            let found = self.look().await?;
            let with_copies = found.with_copies();
            if !with_copies.is_empty() {
                idle_rounds = if with_copies.len() < before { 0 } else { idle_rounds + 1 };
                if idle_rounds >= IDLE_ROUNDS_MAX {
                    return Err(self.unmarked(&with_copies));
                }
                before = with_copies.len();
                let marking = Progress::wait("marking ledgers");
                let marked =
                    mark_ledgers(&self.client, &SystemClock::new(), &self.bookie, &with_copies).await;
                drop(marking);
                marked.map_err(|error| ledger_failure(&error))?;
                let stuck = repair(&self.client, &self.copies, &with_copies).await?;
                report(&with_copies, &stuck)?;
                continue;
            }
            let open = found.open();
            if open.is_empty() {
                return Ok(());
            }
            let end = *waits_until.get_or_insert_with(|| {
                output::say(format!(
                    "waiting for the writers of {} ({}): each leaves {} with its next add, or closes its ledger",
                    form::count(open.len() as u64, "ledger", "ledgers"),
                    some_of(&open),
                    self.bookie
                ));
                Instant::now() + self.writers_max
            });
            if !self.wait_for_writers(&open, end).await? {
                return Err(Failure::with_code(
                    exit::FAILURE,
                    format!(
                        "{} open, and not written to since ({}): where a writer is gone, bindery ledger close closes its ledger; then repeat \
                         the command. {} stays read-only",
                        form::count(open.len() as u64, "ledger is", "ledgers are"),
                        some_of(&open),
                        self.bookie
                    ),
                ));
            }
        }
    }

    /// Waits until one of these open ledgers is closed, or its writer leaves the bookie; false when that takes too long.
    async fn wait_for_writers(&self, open: &BTreeSet<LedgerId>, end: Instant) -> Result<bool, Failure> {
        let _progress = Progress::wait("waiting for writers");
        loop {
            for ledger in open {
                let is_open = match self.client.layout().ledgers().get(*ledger).await {
                    Ok(stored) => holding(&stored.metadata, &self.bookie, &BTreeSet::new())
                        .is_some_and(|holding| holding.is_open && holding.segments == 0),
                    Err(LedgerError::NotFound(_)) => false,
                    Err(error) => return Err(ledger_failure(&error)),
                };
                if !is_open {
                    return Ok(true);
                }
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            tokio::time::sleep(WRITERS_LOOK).await;
        }
    }

    /// Marks go without a copy: a worker that does not know of this takes the bookie, which is there, for a sound one.
    fn unmarked(&self, ledgers: &BTreeSet<LedgerId>) -> Failure {
        Failure::new(format!(
            "the marks of {} ({}) go without their copies being replaced: BookKeeper's AutoRecovery, or a worker of an earlier version, takes \
             {} for sound because it is there. Stop it, and repeat the command",
            form::count(ledgers.len() as u64, "ledger", "ledgers"),
            some_of(ledgers),
            self.bookie
        ))
    }

    /// Proves that nothing refers to the bookie, and takes it out.
    async fn finish(&self) -> Result<(), Failure> {
        let before = self.standing().await?;
        prove(&self.client, &self.bookie, &self.alone).await?;
        self.take_out(before).await?;
        output::write_text(&format!(
            "{}: emptied; no ledger refers to it, and its cookie is removed: stop it now\n",
            self.bookie
        ))
    }

    /// What keeps the bookie from writes now: a failure when nothing does.
    async fn standing(&self) -> Result<DrainStanding, Failure> {
        let (bookie, draining) = (&self.bookie, self.client.layout().draining());
        let now = draining.standing(bookie).await.map_err(|error| store_failure(&error))?;
        if now.begun.is_none() {
            return Err(self.ended());
        }
        if let Some((RegistrationMode::Writable, _)) = now.registered {
            return Err(Failure::new(format!(
                "bookie {bookie} takes writes again: it is of an earlier version, or Java's, and was read-only for a reason of its own, for \
                 example a full disk. Restart it with forceReadOnlyBookie=true, and repeat the command; its cookie is kept"
            )));
        }
        Ok(now)
    }

    /// Removes the cookie, if the bookie took no writes since `before`, which was before the proof.
    async fn take_out(&self, before: DrainStanding) -> Result<(), Failure> {
        let (bookie, layout) = (&self.bookie, self.client.layout());
        let now = self.standing().await?;
        let Some(begun) = now.begun.filter(|_| now == before) else {
            return Err(Failure::new(format!(
                "while all ledgers were looked at, bookie {bookie} registered anew or stopped, or its emptying was ended and begun again: it may \
                 have taken writes. Repeat the command; its cookie is kept"
            )));
        };
        let cookie = layout.cookies().raw(bookie).await.map_err(|error| cookie_failure(&error))?;
        let Some((version, _)) = cookie else { return Ok(()) };
        let removed = layout.draining().remove_cookie(bookie, version, begun).await;
        match removed.map_err(|error| store_failure(&error))? {
            true => Ok(()),
            false => Err(self.ended()),
        }
    }

    /// The node of this drain has gone.
    fn ended(&self) -> Failure {
        Failure::new(format!(
            "bookie {} is not being emptied any more: somebody ended that (--cancel), and it takes writes. Repeat the command if it is to go; \
             its cookie is kept",
            self.bookie
        ))
    }
}

/// The first of them, for a message.
fn some_of(ledgers: &BTreeSet<LedgerId>) -> String {
    let named: Vec<String> = ledgers.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if ledgers.len() > NAMED_MAX { ", ..." } else { "" };
    format!("{}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_client::Client;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::store::{CreateMode, MetadataStore};
    use bindery_metadata::{Layout, LedgerLayout, layout};
    use bytes::Bytes;
    use clap::Parser;
    use std::sync::Arc;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        copies: CopyArgs,
    }

    const COOKIE: &str = "/l/cookies/b1:3181";
    const WRITABLE: &str = "/l/available/b1:3181";
    const READ_ONLY: &str = "/l/available/readonly/b1:3181";

    /// A bookie that is empty and read-only.
    async fn emptied() -> (Drain, Arc<dyn MetadataStore>) {
        let cluster = MemoryCluster::new();
        let store: Arc<dyn MetadataStore> = Arc::new(cluster.open());
        layout::init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        for path in ["/l/available/readonly", "/l/cookies", COOKIE, READ_ONLY] {
            match store.create(path, Bytes::new(), CreateMode::Persistent).await {
                Ok(_) | Err(bindery_client::StoreError::NodeExists { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let layout = Layout::open(store.clone(), "/l", None).await.unwrap();
        let client = Client::builder().layout(layout).connect().await.unwrap();
        let bookie = BookieId::new("b1:3181").unwrap();
        let drain = Drain {
            client,
            alone: BTreeSet::from([bookie.clone()]),
            bookie,
            copies: Line::parse_from(["x"]).copies,
            writers_max: Duration::ZERO,
        };
        drain.begin().await.unwrap();
        drain.empty().await.unwrap();
        (drain, store)
    }

    async fn has_cookie(store: &Arc<dyn MetadataStore>) -> bool {
        store.exists(COOKIE).await.unwrap().is_some()
    }

    async fn moved(store: &Arc<dyn MetadataStore>, from: &str, to: &str) {
        store.delete(from, None).await.unwrap();
        store.create(to, Bytes::new(), CreateMode::Persistent).await.unwrap();
    }

    #[tokio::test]
    async fn the_cookie_of_a_bookie_that_took_no_writes_goes() {
        let (drain, store) = emptied().await;
        drain.finish().await.unwrap();
        assert!(!has_cookie(&store).await);
        // Repeated after it was killed at the very end.
        drain.finish().await.unwrap();
    }

    #[tokio::test]
    async fn a_drain_that_is_ended_while_ledgers_are_looked_at_keeps_the_cookie() {
        let (drain, store) = emptied().await;
        let before = drain.standing().await.unwrap();
        drain.cancel().await.unwrap();
        let said = drain.take_out(before).await.unwrap_err().to_string();
        assert!(said.contains("not being emptied any more"), "{said}");
        assert!(drain.empty().await.is_err() && drain.finish().await.is_err() && has_cookie(&store).await);
        drain.begin().await.unwrap();
        let said = drain.take_out(before).await.unwrap_err().to_string();
        assert!(said.contains("begun again") && has_cookie(&store).await, "{said}");
        drain.finish().await.unwrap();
        assert!(!has_cookie(&store).await);
    }

    #[tokio::test]
    async fn a_bookie_that_becomes_writable_by_itself_keeps_its_cookie() {
        let (drain, store) = emptied().await;
        let before = drain.standing().await.unwrap();
        moved(&store, READ_ONLY, WRITABLE).await;
        let said = drain.take_out(before).await.unwrap_err().to_string();
        assert!(said.contains("takes writes again") && has_cookie(&store).await, "{said}");
        assert!(drain.finish().await.is_err() && has_cookie(&store).await);
        // It was writable for a moment only.
        moved(&store, WRITABLE, READ_ONLY).await;
        let said = drain.take_out(before).await.unwrap_err().to_string();
        assert!(said.contains("registered anew") && has_cookie(&store).await, "{said}");
        drain.finish().await.unwrap();
        assert!(!has_cookie(&store).await);
    }
}
