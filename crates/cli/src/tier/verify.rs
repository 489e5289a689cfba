//! `bindery tier verify`: everything that the tier holds, read back and compared with the catalogue.
//! [`bindery_tiering::scrub`] decides what is compared and what counts as damage.

use super::args::TierVerifyArgs;
use crate::args::{LogFormat, MetadataArgs};
use crate::bucket::{
    catalogue_failure, cluster_in, cluster_of, failure, is_lost, open_store, read_catalogue,
};
use crate::exit::{self, Failure};
use crate::ledger::form::{self, count};
use crate::logging;
use crate::metadata_session::with_session;
use crate::offline::size;
use crate::output;
use crate::printable;
use crate::progress::{Progress, Unit};
use crate::runtime;
use crate::status_line;
use bindery_tiering::ClusterId;
use bindery_tiering::scrub::{Event, Fault, Finding, ScrubError, ScrubOptions, Scrubbed, Severity, scrub};
use bindery_tiering::store::Store;
use serde_json::{Value, json};

/// Runs the command.
pub fn run(args: &TierVerifyArgs) -> Result<(), Failure> {
    logging::start_at(LogFormat::Text, "warn");
    let store = open_store(&args.store)?;
    let runtime = runtime::for_data()?;
    runtime.block_on(async {
        let cluster = match (&args.metadata, &args.cluster) {
            (Some(metadata), None) => {
                let metadata = MetadataArgs {
                    metadata: metadata.clone(),
                    metadata_config: args.metadata_config.clone(),
                };
                with_session(&metadata, cluster_of).await?
            }
            (_, named) => cluster_in(&store, named.as_deref(), "--cluster").await?,
        };
        verify(&store, cluster, args).await
    })
}

async fn verify(store: &Store, cluster: ClusterId, args: &TierVerifyArgs) -> Result<(), Failure> {
    let mut report = Report::new(args.json);
    let mut catalogue = match read_catalogue(store, cluster).await {
        Ok(catalogue) => Some(catalogue),
        Err(error) if is_lost(&error) => {
            let what = format!("{error}. Objects are compared with themselves alone");
            let key = Some(format!("{cluster}/catalogue"));
            let (severity, fault) = (Severity::Damage, Fault::Damaged);
            report.lost_catalogue = true;
            report.find(&Finding { severity, fault, key, entries: None, what });
            None
        }
        Err(error) => return Err(catalogue_failure(store, &error)),
    };
    let options = ScrubOptions { at_once: args.at_once, ..ScrubOptions::default() };
    let outcome = scrub(store, cluster, catalogue.as_mut(), options, |event| report.on(&event)).await;
    report.finish(store, cluster, outcome)
}

/// Prints findings as they come, and the sums.
struct Report {
    is_json: bool,
    progress: Progress,
    read: u64,
    counts: [u64; 3],
    lost_catalogue: bool,
    failed: Option<Failure>,
}

impl Report {
    fn new(is_json: bool) -> Report {
        let progress = Progress::start("listing the objects", Unit::Wait, None, false);
        Report { is_json, progress, read: 0, counts: [0; 3], lost_catalogue: false, failed: None }
    }

    fn on(&mut self, event: &Event<'_>) {
        match event {
            Event::Total(bytes) => self.progress = Progress::start("", Unit::Bytes, Some(*bytes), false),
            Event::Bytes(bytes) => {
                self.read += bytes;
                self.progress.set(self.read);
            }
            Event::Found(finding) => self.find(finding),
        }
    }

    fn find(&mut self, finding: &Finding) {
        self.counts[finding.severity as usize] += 1;
        let text = match self.is_json {
            true => form::line(&object(finding)),
            false => printable::lines(&text(finding)).into_owned().into_bytes(),
        };
        self.print(&text);
    }

    /// The first error of standard output is kept: the look goes on, for its exit code.
    fn print(&mut self, text: &[u8]) {
        if self.failed.is_none() {
            self.failed = status_line::beside(|| output::write_all(text)).err();
        }
    }

    fn finish(
        mut self,
        store: &Store,
        cluster: ClusterId,
        outcome: Result<Scrubbed, ScrubError>,
    ) -> Result<(), Failure> {
        self.progress.clear();
        let [damage, unchecked, _] = self.counts;
        let verdict = match (damage, unchecked, &outcome) {
            (0, 0, Ok(_)) => "sound",
            (0, ..) => "not all could be checked",
            _ => "damaged",
        };
        if let Ok(sums) = &outcome {
            let sums = match self.is_json {
                true => form::line(&summary(cluster, verdict, self.counts, sums)),
                false => sentence(cluster, verdict, self.counts, sums).into_bytes(),
            };
            self.print(&sums);
        }
        if damage > 0 {
            let ended = outcome.err().map_or(String::new(), |error| format!("; it ended early: {error}"));
            let advice = match self.lost_catalogue {
                true => {
                    "bindery tier rebuild rebuilds the catalogue of a cluster that lives, and bindery tier restore --rebuild that of one \
                     that is gone"
                }
                false => "docs/guide/tiering.md says what to do about each; nothing was changed",
            };
            return Err(Failure::with_code(
                exit::DAMAGED,
                format!("{} found: {advice}{ended}", count(damage, "damage", "damages")),
            ));
        }
        match outcome {
            Err(ScrubError::Store(error)) => return Err(failure(store, &error)),
            Err(ScrubError::Catalogue(error)) => return Err(catalogue_failure(store, &error)),
            Ok(_) if unchecked > 0 => {
                return Err(Failure::with_code(
                    exit::UNREACHABLE,
                    format!(
                        "{} could not be read: each says why; try again",
                        count(unchecked, "object", "objects")
                    ),
                ));
            }
            Ok(_) => {}
        }
        self.failed.map_or(Ok(()), Err)
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Damage => "damage",
        Severity::Unchecked => "unchecked",
        Severity::Leftover => "leftover",
    }
}

fn fault(fault: Fault) -> &'static str {
    match fault {
        Fault::Damaged => "damaged",
        Fault::Missing => "missing",
        Fault::Foreign => "foreign",
        Fault::Contradiction => "contradiction",
        Fault::Unreferenced => "unreferenced",
        Fault::Unreachable => "unreachable",
    }
}

fn text(finding: &Finding) -> String {
    let entries =
        finding.entries.map(|(ledger, first, last)| format!("ledger {ledger}, entries {first} to {last}"));
    let places: Vec<String> = finding.key.clone().into_iter().chain(entries).collect();
    format!(
        "{:<10}{:<14}{}: {}\n",
        severity(finding.severity),
        fault(finding.fault),
        places.join(", "),
        finding.what
    )
}

/// The fields of `--json`, which never change their meaning.
fn object(finding: &Finding) -> Value {
    json!({
        "type": "finding",
        "severity": severity(finding.severity),
        "fault": fault(finding.fault),
        "key": finding.key,
        "ledger_id": finding.entries.map(|(ledger, ..)| ledger.get()),
        "first_entry": finding.entries.map(|(_, first, _)| first.get()),
        "last_entry": finding.entries.map(|(.., last)| last.get()),
        "what": finding.what,
    })
}

fn summary(cluster: ClusterId, verdict: &str, counts: [u64; 3], sums: &Scrubbed) -> Value {
    let [damage, unchecked, leftover] = counts;
    json!({
        "type": "summary", "verdict": verdict, "cluster": cluster.to_string(),
        "damage": damage, "unchecked": unchecked, "leftover": leftover,
        "objects": sums.objects, "object_bytes": sums.object_bytes, "extents": sums.extents, "entries": sums.entries,
        "ledgers": sums.ledgers, "ledgers_damaged": sums.ledgers_damaged, "reserved": sums.reserved,
    })
}

fn sentence(cluster: ClusterId, verdict: &str, counts: [u64; 3], sums: &Scrubbed) -> String {
    let [damage, unchecked, leftover] = counts;
    format!(
        "cluster {cluster}: {} with {} read, {} in {} sound; {}, {} of them with damage\n{verdict}: {damage} damage, \
         {unchecked} unchecked, {leftover} leftover\n",
        count(sums.objects, "object", "objects"),
        size(sums.object_bytes),
        count(sums.entries, "entry", "entries"),
        count(sums.extents, "extent", "extents"),
        count(sums.ledgers, "ledger", "ledgers"),
        sums.ledgers_damaged,
    )
}
