//! `bindery tier restore`: ledgers of a bucket, readable again in a cluster that has nothing of them.
//!
//! # Data flow
//! ```text
//! catalogue (rebuilt from footers when it is lost) ─► ledgers, extents ─► footer of the last object ─► metadata
//!      bookies take the extents over ─► metadata is created ─► bookies are told once more ─► one ledger of the batch is read
//! ```
//! [`metadata`] decides what a ledger becomes; [`batch`] does it for some ledgers at a time.
//!
//! # Invariants
//! 1. Bookies take a ledger over before it exists, so that one that exists can be read; and they are told again when it exists: a
//!    bookie may have cleared away meanwhile what no metadata named.
//! 2. A ledger that exists is never changed. If it is the same ledger, its own bookies are told again; if it is another one, it is
//!    reported.
//! 3. Tiering is paused as long as ledgers of the bucket are missing from the cluster: to a tierer they look deleted.
//! 4. Before anything else, the generator of ids is moved behind every id in the bucket, whichever ledgers are restored: otherwise a
//!    client that creates ledgers meanwhile takes the ids of those that come later.
//! 5. Everything may be repeated, whenever it was interrupted.
//!
//! # Limits
//! Memory: [`batch::EXTENTS_MAX`] extents and [`batch::LEDGERS_MAX`] metadata at a time.

mod batch;
mod metadata;

use super::args::TierRestoreArgs;
use super::rebuild;
use crate::args::LogFormat;
use crate::bucket::{catalogue_failure, cluster_of, failure, is_lost, open_store, read_catalogue};
use crate::exit::{self, Failure};
use crate::ledger::form::{self, count};
use crate::logging;
use crate::metadata_failure::store_failure;
use crate::metadata_session::with_session;
use crate::output;
use crate::printable::within_line;
use crate::progress::{Progress, Unit};
use crate::runtime;
use crate::status_line;
use batch::{Batch, Done, Restorer, Step};
use bindery_client::{Client, TierSupport};
use bindery_metadata::RegistrationMode;
use bindery_metadata::layout::{Ids, Layout};
use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{Catalogue, LedgerRow};
use bindery_tiering::footers::Footers;
use bindery_tiering::store::{self, Store};
use bindery_types::{BookieId, LedgerId};
use metadata::End;
use serde_json::json;

/// The reason of a pause begins with this if a restore may end the pause by itself.
pub const PAUSE_REASON: &str = "bindery tier restore";
/// Ledgers taken from the catalogue at a time.
const PAGE: usize = 500;

/// Runs the command.
pub fn run(args: &TierRestoreArgs) -> Result<(), Failure> {
    logging::start_at(LogFormat::Text, "warn");
    let store = open_store(&args.store)?;
    let work = async |layout: &Layout| with_layout(&store, layout, args).await;
    runtime::for_data()?.block_on(with_session(&args.metadata, work))
}

/// Finds the cluster, and restores its ledgers through a client of its own.
async fn with_layout(store: &Store, layout: &Layout, args: &TierRestoreArgs) -> Result<(), Failure> {
    let cluster = cluster(store, layout, args).await?;
    let security = args.security.security()?;
    let builder = security.apply(Client::builder().layout(layout.clone())).await.map_err(Failure::usage)?;
    let client = builder.connect().await.map_err(Failure::new)?;
    let restored = restore(store, layout, &client, cluster, args).await;
    client.close().await;
    restored
}

/// The cluster to restore into. Its INSTANCEID has to be that of the objects: bookies look for objects only below their own (T18).
async fn cluster(store: &Store, layout: &Layout, args: &TierRestoreArgs) -> Result<ClusterId, Failure> {
    let own = cluster_of(layout).await?;
    let wanted = match &args.from {
        Some(from) => from.parse().map_err(|error| Failure::usage(format!("--from: {error}")))?,
        None => own,
    };
    let found = store::clusters(store).await.map_err(|error| failure(store, &error))?;
    let advice = |from: &ClusterId| {
        format!(
            "bookies read only objects below the INSTANCEID of their own cluster, which is {own} here. Make an empty cluster with \
             bindery cluster init --instance-id {from} (or bindery standalone --instance-id {from}) and restore into that one"
        )
    };
    if wanted != own {
        return Err(Failure::usage(format!("--from {wanted}: {}", advice(&wanted))));
    }
    if found.contains(&own) {
        return Ok(own);
    }
    match found.first() {
        None => Err(Failure::with_code(
            exit::NOT_FOUND,
            format!("{}: there is nothing of a cluster here: check the URL and the prefix", store.url()),
        )),
        Some(other) => {
            let all: Vec<String> = found.iter().map(ToString::to_string).collect();
            Err(Failure::usage(format!(
                "{} holds objects of {}, and nothing of this cluster: {}",
                store.url(),
                all.join(", "),
                advice(other)
            )))
        }
    }
}

/// Bookies that take writes and read from object storage.
async fn bookies(layout: &Layout, client: &Client) -> Result<Vec<BookieId>, Failure> {
    let failed = |error: bindery_metadata::StoreError| store_failure(&error, error.to_string());
    let registered = layout.registration().list().await.map_err(failed)?;
    let mut found = Vec::new();
    for bookie in registered.into_iter().filter(|bookie| bookie.mode == RegistrationMode::Writable) {
        let id = bookie.bookie_id;
        if client.tier_support(&id).await.map_err(failed)? == TierSupport::Supported {
            found.push(id);
        }
    }
    if found.is_empty() {
        return Err(Failure::with_code(
            exit::UNREACHABLE,
            "no bookie of the cluster takes writes and reads from object storage: start bookies with --tier URL, the same as \
             --store, and look with bindery bookie list",
        ));
    }
    Ok(found)
}

async fn restore(
    store: &Store,
    layout: &Layout,
    client: &Client,
    cluster: ClusterId,
    args: &TierRestoreArgs,
) -> Result<(), Failure> {
    let bookies = bookies(layout, client).await?;
    let pause = layout.tier_pause();
    let failed = |error: bindery_metadata::StoreError| store_failure(&error, error.to_string());
    let is_new_pause = pause.pause(PAUSE_REASON).await.map_err(failed)?;
    let is_our_pause = pause.get().await.map_err(failed)?.is_some_and(|why| why.starts_with(PAUSE_REASON));

    let mut report = Report::new(args.json);
    let mut catalogue = open_catalogue(store, cluster, args.rebuild, &mut report).await?;
    let cluster_ms = layout.made_ms().await.map_err(failed)?;
    let mut restorer = Restorer {
        cluster_ms,
        layout,
        client,
        cluster,
        bookies: &bookies,
        footers: Footers::new(store.clone(), cluster),
    };
    let outcome = all(&mut catalogue, &mut restorer, args, &mut report).await;
    report.progress =
        Progress::start("comparing with the bucket", Unit::Ledgers, Some(catalogue.totals().ledgers), true);
    let missing = match outcome {
        Ok(()) => missing(&mut catalogue, layout, &report.progress).await,
        Err(failure) => Err(failure),
    };
    report.progress.clear();
    let missing = missing.map_err(|failure| report.ended_early(failure))?;
    // In a cluster that was tiering before, other ledgers of the same ids are its own affair.
    let is_resumed = missing == 0 && is_our_pause && (is_new_pause || report.taken == 0);
    if is_resumed {
        pause.resume().await.map_err(failed)?;
    }
    report.finish(store, missing, is_resumed)
}

/// Opens the catalogue, after rebuilding it from the objects if it is lost. Tiering is already paused.
async fn open_catalogue(
    store: &Store,
    cluster: ClusterId,
    is_rebuilt: bool,
    report: &mut Report,
) -> Result<Catalogue, Failure> {
    let why = match read_catalogue(store, cluster).await {
        // A tierer that started before this command makes an empty one.
        Ok(catalogue) if catalogue.totals().objects == 0 => "the catalogue knows no object".to_owned(),
        Ok(catalogue) if !is_rebuilt => return Ok(catalogue),
        Ok(_) => "--rebuild".to_owned(),
        Err(error) if is_lost(&error) => error.to_string(),
        Err(error) => return Err(catalogue_failure(store, &error)),
    };
    report.say(&format!("the catalogue is rebuilt from the objects: {why}"));
    let rebuilt = rebuild::catalogue(store, cluster).await?;
    rebuild::say(&rebuilt, |line| report.say(line));
    report.say(&format!(
        "{} with {} found; {} could not be read",
        count(rebuilt.totals.objects, "object", "objects"),
        count(rebuilt.totals.ledgers, "ledger", "ledgers"),
        count(rebuilt.unreadable_count, "object", "objects")
    ));
    read_catalogue(store, cluster).await.map_err(|error| catalogue_failure(store, &error))
}

async fn all(
    catalogue: &mut Catalogue,
    restorer: &mut Restorer<'_>,
    args: &TierRestoreArgs,
    report: &mut Report,
) -> Result<(), Failure> {
    let of_catalogue = |catalogue: &Catalogue, error| catalogue_failure(catalogue.store(), &error);
    if let Some(highest) = highest(catalogue).await? {
        let advanced = restorer.layout.ids().advance(highest).await;
        advanced.map_err(|error| {
            let code = if error.is_transient() { exit::UNREACHABLE } else { exit::FAILURE };
            Failure::with_code(code, error)
        })?;
    }
    report.progress = Progress::start("restoring", Unit::Ledgers, Some(catalogue.totals().ledgers), true);
    if !args.ledgers.is_empty() {
        let rows = catalogue.ledgers(&args.ledgers).await;
        let mut rows = rows.map_err(|error| of_catalogue(catalogue, error))?;
        let wanted = args.ledgers.iter();
        let (found, absent): (Vec<_>, Vec<_>) =
            wanted.map(|ledger| (*ledger, rows.remove(ledger))).partition(|(_, row)| row.is_some());
        for (ledger, _) in absent {
            report
                .done(&Done::without_entries(ledger, Step::Failed("the tier has nothing of it".to_owned())));
        }
        let found = found.into_iter().filter_map(|(ledger, row)| Some((ledger, row?))).collect();
        return some(catalogue, restorer, found, report).await;
    }
    let mut after = None;
    loop {
        let page = catalogue.ledgers_after(after, PAGE).await;
        let page = page.map_err(|error| of_catalogue(catalogue, error))?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(*last);
        some(catalogue, restorer, page, report).await?;
    }
}

/// The highest id in the bucket that the generator can get beyond. Ids above that were chosen by hand: it never reaches them.
async fn highest(catalogue: &mut Catalogue) -> Result<Option<LedgerId>, Failure> {
    let (mut after, mut highest) = (None, None);
    loop {
        let page = catalogue.ledgers_after(after, PAGE).await;
        let page = page.map_err(|error| catalogue_failure(catalogue.store(), &error))?;
        let Some((last, _)) = page.last() else { return Ok(highest) };
        after = Some(*last);
        let reachable = page.iter().rev().find(|(ledger, _)| Ids::can_advance_beyond(*ledger));
        highest = reachable.map(|(ledger, _)| *ledger).or(highest);
    }
}

/// Restores some ledgers, in batches of what one request carries.
async fn some(
    catalogue: &mut Catalogue,
    restorer: &mut Restorer<'_>,
    ledgers: Vec<(LedgerId, LedgerRow)>,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut batch = Batch::default();
    for (ledger, row) in ledgers {
        if row.is_removed {
            report.done(&Done::without_entries(ledger, Step::Deleted));
            continue;
        }
        if !batch.has_room_for(&row) {
            let done = restorer.run(catalogue, std::mem::take(&mut batch)).await?;
            done.iter().for_each(|done| report.done(done));
        }
        batch.push(ledger, row);
    }
    let done = restorer.run(catalogue, batch).await?;
    done.iter().for_each(|done| report.done(done));
    Ok(())
}

/// Ledgers of the bucket that the cluster does not have (invariant 3).
async fn missing(catalogue: &mut Catalogue, layout: &Layout, progress: &Progress) -> Result<u64, Failure> {
    let (mut after, mut missing, mut looked_at) = (None, 0, 0);
    loop {
        let page = catalogue.ledgers_after(after, PAGE).await;
        let page = page.map_err(|error| catalogue_failure(catalogue.store(), &error))?;
        let Some((last, _)) = page.last() else { return Ok(missing) };
        after = Some(*last);
        looked_at += page.len() as u64;
        progress.set(looked_at);
        for (ledger, _) in page.iter().filter(|(_, row)| !row.is_removed) {
            let exists = layout.ledgers().exists(*ledger).await;
            missing += u64::from(!exists.map_err(|error| crate::ledger::access::ledger_failure(&error))?);
        }
    }
}

/// What became of a ledger, for people. Metadata, footers and answers of bookies have a part in it.
fn line(ledger: LedgerId, state: &str, what: &str) -> String {
    format!("ledger {ledger}: {state}: {}\n", within_line(what))
}

/// Prints and counts what becomes of ledgers.
struct Report {
    is_json: bool,
    progress: Progress,
    looked_at: u64,
    restored: u64,
    there: u64,
    cut: u64,
    taken: u64,
    deleted: u64,
    failed: u64,
    /// The first error of standard output.
    broken: Option<Failure>,
}

impl Report {
    fn new(is_json: bool) -> Report {
        let progress = Progress::wait("reading the catalogue");
        Report {
            is_json,
            progress,
            looked_at: 0,
            restored: 0,
            there: 0,
            cut: 0,
            taken: 0,
            deleted: 0,
            failed: 0,
            broken: None,
        }
    }

    fn say(&self, line: &str) {
        output::say(line);
    }

    fn print(&mut self, text: &[u8]) {
        if self.broken.is_none() {
            self.broken = status_line::beside(|| output::write_all(text)).err();
        }
    }

    fn done(&mut self, done: &Done) {
        self.looked_at += 1;
        self.progress.set(self.looked_at);
        let ledger = done.ledger;
        let (state, what) = match &done.step {
            Step::Restored { end, note } => {
                let cut = match end {
                    End::Whole => None,
                    End::WasOpen => Some("it was open: closed behind its last entry in the tier".to_owned()),
                    End::Cut { was } => Some(format!(
                        "it ended with entry {was}: closed behind its last entry in the tier, the rest is lost"
                    )),
                };
                self.restored += 1;
                self.cut += u64::from(cut.is_some());
                let what: Vec<String> = cut.into_iter().chain(note.clone()).collect();
                ("restored", (!what.is_empty()).then(|| what.join("; ")))
            }
            Step::There => {
                self.there += 1;
                ("there", None)
            }
            Step::Taken(why) => {
                self.taken += 1;
                ("left", Some(why.clone()))
            }
            Step::Deleted => {
                self.deleted += 1;
                (
                    "left",
                    Some("it was deleted, and its entries are on their way out of the bucket".to_owned()),
                )
            }
            Step::Failed(why) => {
                self.failed += 1;
                ("failed", Some(why.clone()))
            }
        };
        let last = match &done.step {
            Step::Restored { .. } | Step::There => done.last().map(|entry| entry.get()),
            Step::Taken(_) | Step::Deleted | Step::Failed(_) => None,
        };
        if self.is_json {
            let line = json!({
                "type": "ledger", "ledger_id": ledger.get(), "state": state, "last_entry": last, "what": what,
            });
            self.print(&form::line(&line));
        } else if let Some(what) = what {
            self.print(line(ledger, state, &what).as_bytes());
        }
    }

    fn ended_early(&self, failure: Failure) -> Failure {
        let restored = count(self.restored, "ledger was", "ledgers were");
        let text =
            format!("{failure} ({restored} restored; repeat the command, it goes on; tiering stays paused)");
        Failure::with_code(failure.code, text)
    }

    fn finish(mut self, store: &Store, missing: u64, is_resumed: bool) -> Result<(), Failure> {
        let Report { restored, there, cut, taken, deleted, failed, .. } = self;
        let text = match self.is_json {
            true => form::line(&json!({
                "type": "summary", "restored": restored, "there": there, "closed_early": cut, "left": taken + deleted, "failed": failed,
                "missing": missing, "tiering_paused": !is_resumed,
            })),
            false => format!(
                "{} restored from {}, {there} there already, {} left alone, {failed} failed\n",
                count(restored, "ledger", "ledgers"),
                store.url(),
                taken + deleted,
            )
            .into_bytes(),
        };
        self.print(&text);
        if !is_resumed {
            let why = match (missing, taken) {
                (0, 0) => "it was paused before this command".to_owned(),
                (0, _) => "ledgers of this cluster have the ids of others that are in the bucket".to_owned(),
                (missing, _) => format!(
                    "{} of the bucket are not in the cluster, and tierers take what is not in the cluster for deleted: restore them \
                     first",
                    count(missing, "ledger", "ledgers")
                ),
            };
            output::say(format!("tiering stays paused: {why}; bindery tier resume ends it"));
        }
        if failed + taken > 0 {
            let sum = count(failed + taken, "ledger was", "ledgers were");
            return Err(Failure::new(format!("{sum} not restored, see above")));
        }
        self.broken.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bookies_and_footers_say_does_nothing_to_the_terminal() {
        let ledger = LedgerId::new(7).unwrap();
        let hostile = "refused: \x1b]0;t\x07\nledger 8: restored";
        assert_eq!(
            line(ledger, "failed", hostile),
            "ledger 7: failed: refused: \\u{1b}]0;t\\u{7}\\nledger 8: restored\n"
        );
    }
}
