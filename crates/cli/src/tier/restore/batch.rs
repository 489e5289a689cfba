//! Some ledgers at a time: their bookies say that they have nothing of them, their metadata is created, bookies take them over, one of
//! them is read. A bookie takes over only what metadata has.

use super::metadata::{self, End};
use crate::bucket::catalogue_failure;
use crate::exit::{self, Failure};
use crate::ledger::access::ledger_failure;
use bindery_client::{Client, OpenMode, Reconcile};
use bindery_metadata::codec;
use bindery_metadata::layout::{Layout, LedgerError, StoredLedger};
use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{Catalogue, LedgerRow};
use bindery_tiering::footers::{FooterError, Footers};
use bindery_tiering::store::StoreError;
use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata};
use bindery_wire::ErrorCode;
use bindery_wire::entry::ledger_length_bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::task::JoinSet;

/// Ledgers of one batch.
pub const LEDGERS_MAX: usize = 500;
/// Extents of one batch, and of one request.
pub const EXTENTS_MAX: usize = 2048;
/// For one request to a bookie.
const DEADLINE: Duration = Duration::from_secs(30);
/// A bookie that has no room at the moment is asked again so often, with such a pause.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(200);

/// Ledgers with their rows in the catalogue.
#[derive(Default)]
pub struct Batch {
    ledgers: Vec<(LedgerId, LedgerRow)>,
    extents: u64,
}

impl Batch {
    /// Whether one more ledger fits into the requests.
    pub fn has_room_for(&self, row: &LedgerRow) -> bool {
        self.ledgers.is_empty()
            || (self.ledgers.len() < LEDGERS_MAX && self.extents + row.extents <= EXTENTS_MAX as u64)
    }

    /// Adds one.
    pub fn push(&mut self, ledger: LedgerId, row: LedgerRow) {
        self.extents += row.extents;
        self.ledgers.push((ledger, row));
    }
}

/// The outcome for a ledger.
#[derive(Debug)]
pub enum Step {
    /// It can be read.
    Restored {
        /// How it ends.
        end: End,
        /// Something to know about it.
        note: Option<String>,
    },
    /// It was there before.
    There,
    /// Another ledger has its id.
    Taken(String),
    /// It was deleted, and is on its way out of the bucket.
    Deleted,
    /// It could not be.
    Failed(String),
}

/// The outcome of one ledger.
#[derive(Debug)]
pub struct Done {
    /// The ledger.
    pub ledger: LedgerId,
    /// Its outcome.
    pub step: Step,
    /// Its last entry in the tier.
    last: Option<EntryId>,
}

impl Done {
    /// Of a ledger that got no further.
    pub fn without_entries(ledger: LedgerId, step: Step) -> Done {
        Done { ledger, step, last: None }
    }

    /// Its last entry in the tier.
    pub fn last(&self) -> Option<EntryId> {
        self.last
    }
}

/// A ledger on its way.
struct Job {
    ledger: LedgerId,
    metadata: LedgerMetadata,
    original: LedgerMetadata,
    last: EntryId,
    end: End,
    note: Option<String>,
    is_there: bool,
}

impl Job {
    fn bookies(&self) -> impl Iterator<Item = &BookieId> {
        self.metadata.segments().iter().flat_map(|segment| &segment.ensemble)
    }
}

/// The parts that restoring needs.
pub struct Restorer<'a> {
    /// The metadata store.
    pub layout: &'a Layout,
    /// Asks bookies.
    pub client: &'a Client,
    /// The cluster, and that of the objects.
    pub cluster: ClusterId,
    /// Bookies that may be named, one at least.
    pub bookies: &'a [BookieId],
    /// When the cluster was made, by the metadata store.
    pub cluster_ms: Option<i64>,
    /// Reads the metadata of ledgers.
    pub footers: Footers,
}

impl Restorer<'_> {
    /// Restores the ledgers of a batch. An error is one that stops everything: the stores, not a ledger.
    pub async fn run(&mut self, catalogue: &mut Catalogue, batch: Batch) -> Result<Vec<Done>, Failure> {
        let (mut done, mut jobs) = (Vec::new(), Vec::new());
        for (ledger, row) in batch.ledgers {
            match self.job(catalogue, ledger, &row).await? {
                Ok(job) => jobs.push(job),
                Err(why) => done.push(Done { ledger, step: Step::Failed(why), last: None }),
            }
        }
        // Those that exist already are told to their bookies below, like those that are made now.
        self.look(&mut jobs, &mut done).await?;
        let mut failed = self.ask(&jobs).await?;
        drop_failed(&mut jobs, &mut failed, &mut done);
        self.create(&mut jobs, &mut done).await?;
        let mut failed = self.tell(catalogue, &jobs).await?;
        drop_failed(&mut jobs, &mut failed, &mut done);
        if let Some(job) = jobs.iter().find(|job| !job.is_there) {
            self.read(job).await?;
        }
        done.extend(jobs.into_iter().map(|job| {
            let step = match job.is_there {
                true => Step::There,
                false => Step::Restored { end: job.end, note: job.note },
            };
            Done { ledger: job.ledger, step, last: Some(job.last) }
        }));
        done.sort_by_key(|done| done.ledger);
        Ok(done)
    }

    /// The job for a ledger, or why it cannot be restored.
    async fn job(
        &mut self,
        catalogue: &mut Catalogue,
        ledger: LedgerId,
        row: &LedgerRow,
    ) -> Result<Result<Job, String>, Failure> {
        let Some(last) = row.next.get().checked_sub(1).and_then(EntryId::new) else {
            return Ok(Err("the tier has none of its entries".to_owned()));
        };
        if let Some(gap) = gap(catalogue, ledger, row).await? {
            return Ok(Err(gap));
        }
        let rows = catalogue.extents(ledger, last, 1).await;
        let rows = rows.map_err(|error| catalogue_failure(catalogue.store(), &error))?;
        let Some((first, extent)) = rows.first() else {
            return Ok(Err(format!("no object is known to have entry {last}")));
        };
        let extent = extent.tier_extent(*first);
        let footer = match self.footers.of(&extent.object).await {
            Ok(footer) => footer,
            Err(error) => return of_footer(error),
        };
        let Some(bytes) = footer.ledgers.get(&ledger) else {
            return Ok(Err(format!("object {} has no metadata of it", extent.object.id)));
        };
        let original = match codec::ledger::decode(bytes) {
            Ok(original) => original,
            Err(error) => return Ok(Err(format!("its metadata in object {}: {error}", extent.object.id))),
        };
        let (end, length) = match metadata::end(&original, last) {
            Ok(end) => end,
            Err(unfit) => return Ok(Err(unfit.to_string())),
        };
        let length = match length {
            Some(length) => length,
            None => match self.footers.entry(ledger, &extent, last).await {
                // Every entry says how long the ledger is with it.
                Ok(entry) => {
                    let length = ledger_length_bytes(&entry).and_then(|length| u64::try_from(length).ok());
                    length.unwrap_or(row.bytes)
                }
                Err(error) => return of_footer(error),
            },
        };
        let metadata = metadata::restored(ledger, &original, (last, length), self.bookies);
        let (was, is) = (original.quorum.ensemble_size(), metadata.quorum.ensemble_size());
        let note = (is < was).then(|| format!("on {is} of the {was} bookies it had, for there are no more"));
        Ok(Ok(Job { ledger, metadata, original, last, end, note, is_there: false }))
    }

    /// Which of them exist.
    async fn look(&self, jobs: &mut Vec<Job>, done: &mut Vec<Done>) -> Result<(), Failure> {
        let mut kept = Vec::with_capacity(jobs.len());
        for mut job in jobs.drain(..) {
            match self.layout.ledgers().get(job.ledger).await {
                Err(LedgerError::NotFound(_)) => kept.push(job),
                Ok(stored) => match self.is_same(&mut job, stored) {
                    Ok(()) => kept.push(job),
                    Err(why) => done.push(Done { ledger: job.ledger, step: Step::Taken(why), last: None }),
                },
                Err(error @ LedgerError::Malformed { .. }) => {
                    done.push(Done { ledger: job.ledger, step: Step::Taken(error.to_string()), last: None });
                }
                Err(error) => return Err(ledger_failure(&error)),
            }
        }
        *jobs = kept;
        Ok(())
    }

    /// Takes the metadata that a ledger has, when it is that ledger (invariant 2).
    fn is_same(&self, job: &mut Job, stored: StoredLedger) -> Result<(), String> {
        if stored.creation(self.cluster_ms).is_anothers(job.original.created_ms) {
            return Err(
                "a ledger of this id exists, and was created at another time; it stays as it is".to_owned()
            );
        }
        let there = stored.metadata;
        match metadata::difference(&there, &job.original, job.last) {
            Some(difference) => Err(format!("{difference}; it stays as it is")),
            None => {
                (job.metadata, job.is_there) = (there, true);
                Ok(())
            }
        }
    }

    async fn create(&self, jobs: &mut Vec<Job>, done: &mut Vec<Done>) -> Result<(), Failure> {
        let mut kept = Vec::with_capacity(jobs.len());
        for mut job in jobs.drain(..) {
            if job.is_there {
                kept.push(job);
                continue;
            }
            match self.layout.ledgers().create(job.ledger, &job.metadata).await {
                Ok(_) => kept.push(job),
                // Somebody was faster, maybe another restore.
                Err(LedgerError::Exists(_)) => {
                    let stored = self.layout.ledgers().get_latest(job.ledger).await;
                    let stored = stored.map_err(|error| ledger_failure(&error))?;
                    match self.is_same(&mut job, stored) {
                        Ok(()) => kept.push(job),
                        Err(why) => {
                            done.push(Done { ledger: job.ledger, step: Step::Taken(why), last: None })
                        }
                    }
                }
                Err(error) => return Err(ledger_failure(&error)),
            }
        }
        *jobs = kept;
        Ok(())
    }

    /// Asks bookies whether they have entries of ledgers that are to be created: metadata would make these count. Returns those ledgers, and
    /// why they are not restored.
    async fn ask(&self, jobs: &[Job]) -> Result<BTreeMap<LedgerId, String>, Failure> {
        let new: Vec<&Job> = jobs.iter().filter(|job| !job.is_there).collect();
        let bookies: BTreeSet<&BookieId> = new.iter().flat_map(|job| job.bookies()).collect();
        let mut failed = BTreeMap::new();
        for bookie in bookies {
            let of_bookie = new.iter().filter(|job| job.bookies().any(|named| named == bookie));
            let ledgers = of_bookie
                .map(|job| Reconciliation {
                    ledger: job.ledger,
                    last: None,
                    extents: Vec::new(),
                    created_ms: job.metadata.created_ms,
                })
                .collect();
            let request = Reconcile { cluster: self.cluster, ledgers, is_restore: false };
            let answers = self.client.reconcile(bookie, request, DEADLINE).await;
            for answer in answers.map_err(|error| Failure::with_code(exit::UNREACHABLE, error))? {
                // With a register it was taken over before, or has it from a tierer: the request that takes it over finds out.
                if answer.code == ErrorCode::Ok && answer.last.is_none() {
                    failed.entry(answer.ledger).or_insert_with(|| has_entries(bookie));
                }
            }
        }
        Ok(failed)
    }

    /// Has bookies take ledgers over. Returns those that failed, and why.
    async fn tell(
        &self,
        catalogue: &mut Catalogue,
        jobs: &[Job],
    ) -> Result<BTreeMap<LedgerId, String>, Failure> {
        let mut failed = BTreeMap::new();
        let mut some: Vec<(&Job, Vec<TierExtent>)> = Vec::new();
        let mut extents = 0;
        for job in jobs {
            let mut next = EntryId::FIRST;
            while next <= job.last && !failed.contains_key(&job.ledger) {
                let page = catalogue.extents(job.ledger, next, EXTENTS_MAX).await;
                let page = page.map_err(|error| catalogue_failure(catalogue.store(), &error))?;
                let page: Vec<TierExtent> = page
                    .into_iter()
                    .map(|(first, row)| row.tier_extent(first))
                    .take_while(|extent| extent.first <= job.last)
                    .collect();
                let Some(end) = page.last().map(|extent| extent.last) else { break };
                if extents + page.len() > EXTENTS_MAX || some.len() == LEDGERS_MAX {
                    self.send(std::mem::take(&mut some), &mut failed).await?;
                    extents = 0;
                }
                extents += page.len();
                some.push((job, page));
                if end < job.last {
                    // The next part of the same ledger is another request's.
                    self.send(std::mem::take(&mut some), &mut failed).await?;
                    extents = 0;
                }
                next = EntryId::new(end.get().saturating_add(1)).unwrap_or(EntryId::MAX);
            }
        }
        self.send(some, &mut failed).await?;
        Ok(failed)
    }

    /// One request to each bookie.
    async fn send(
        &self,
        jobs: Vec<(&Job, Vec<TierExtent>)>,
        failed: &mut BTreeMap<LedgerId, String>,
    ) -> Result<(), Failure> {
        let bookies: BTreeSet<&BookieId> = jobs.iter().flat_map(|(job, _)| job.bookies()).collect();
        let mut requests = JoinSet::new();
        for bookie in bookies {
            let of_bookie = jobs.iter().filter(|(job, _)| job.bookies().any(|named| named == bookie));
            let ledgers: Vec<Reconciliation> = of_bookie
                .map(|(job, extents)| Reconciliation {
                    ledger: job.ledger,
                    last: extents.last().map(|extent| extent.last),
                    extents: extents.clone(),
                    created_ms: job.metadata.created_ms,
                })
                .collect();
            let (client, bookie, cluster) = (self.client.clone(), bookie.clone(), self.cluster);
            requests.spawn(async move { take_over(&client, &bookie, cluster, ledgers).await });
        }
        let there: BTreeSet<LedgerId> =
            jobs.iter().filter(|(job, _)| job.is_there).map(|(job, _)| job.ledger).collect();
        while let Some(refused) = requests.join_next().await {
            for (ledger, refusal) in refused.map_err(Failure::new)?? {
                match refusal {
                    // It is a bookie that has the ledger as it always had: nothing was lost here.
                    Refused::HasCopies(_) if there.contains(&ledger) => {}
                    Refused::HasCopies(why) | Refused::Other(why) => {
                        failed.entry(ledger).or_insert(why);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the last entry of a ledger: what a reader would find.
    async fn read(&self, job: &Job) -> Result<(), Failure> {
        let why = |error: &dyn std::fmt::Display| {
            Failure::new(format!(
                "ledger {} was restored, and cannot be read: {error}. Bookies have to run with --tier URL, the same as --store, \
                 and with credentials that read it",
                job.ledger
            ))
        };
        let password =
            job.metadata.secret.as_ref().map(|secret| secret.password.as_slice()).unwrap_or_default();
        let opened = self.client.open_ledger(job.ledger, password, OpenMode::ReadOnly).await;
        let reader = opened.map_err(|error| why(&error))?;
        reader.read_entry(job.last).await.map_err(|error| why(&error)).map(drop)
    }
}

fn drop_failed(jobs: &mut Vec<Job>, failed: &mut BTreeMap<LedgerId, String>, done: &mut Vec<Done>) {
    jobs.retain(|job| match failed.remove(&job.ledger) {
        None => true,
        Some(why) => {
            done.push(Done { ledger: job.ledger, step: Step::Failed(why), last: None });
            false
        }
    });
}

/// An object that cannot be read concerns its ledgers; a store that does not answer, all.
fn of_footer<T>(error: FooterError) -> Result<Result<T, String>, Failure> {
    match error {
        FooterError::Store(error @ StoreError::Unavailable { .. }) => {
            Err(Failure::with_code(exit::UNREACHABLE, error))
        }
        FooterError::Store(error @ StoreError::Denied { .. }) => Err(Failure::new(error)),
        other => Ok(Err(other.to_string())),
    }
}

/// The first entry that no object has.
async fn gap(
    catalogue: &mut Catalogue,
    ledger: LedgerId,
    row: &LedgerRow,
) -> Result<Option<String>, Failure> {
    let mut next = EntryId::FIRST;
    while next < row.next {
        let page = catalogue.extents(ledger, next, EXTENTS_MAX).await;
        let page = page.map_err(|error| catalogue_failure(catalogue.store(), &error))?;
        if page.is_empty() {
            return Ok(Some(format!("no object has entry {next}")));
        }
        for (first, extent) in page {
            if first != next {
                return Ok(Some(format!("no object has entries {next} to {}", first.get() - 1)));
            }
            next = EntryId::new(extent.last.get().saturating_add(1)).unwrap_or(EntryId::MAX);
        }
    }
    Ok(None)
}

enum Refused {
    HasCopies(String),
    Other(String),
}

fn has_entries(bookie: &BookieId) -> String {
    format!("bookie {bookie} has entries of it, which are not touched")
}

/// Has one bookie take ledgers over, with patience for one that has no room; those that it does not take.
async fn take_over(
    client: &Client,
    bookie: &BookieId,
    cluster: ClusterId,
    mut ledgers: Vec<Reconciliation>,
) -> Result<Vec<(LedgerId, Refused)>, Failure> {
    let mut refused = Vec::new();
    for attempt in 1..=ATTEMPTS {
        let request = Reconcile { cluster, ledgers: ledgers.clone(), is_restore: true };
        let results = client.reconcile(bookie, request, DEADLINE).await;
        let results = results.map_err(|error| Failure::with_code(exit::UNREACHABLE, error))?;
        let mut again = BTreeSet::new();
        for result in results {
            let other = |why: &str| (result.ledger, Refused::Other(format!("bookie {bookie}: {why}")));
            match result.code {
                ErrorCode::Ok => {}
                ErrorCode::TooManyRequests if attempt < ATTEMPTS => drop(again.insert(result.ledger)),
                ErrorCode::BadRequest => {
                    refused.push((result.ledger, Refused::HasCopies(has_entries(bookie))));
                }
                ErrorCode::NoLedger => {
                    refused.push(other("its release cannot take a ledger over: upgrade it"));
                }
                ErrorCode::UnknownLedgerState => {
                    refused.push(other("it lost data, and does not know whether it had the ledger"));
                }
                code => refused.push(other(&format!("{code:?}"))),
            }
        }
        ledgers.retain(|ledger| again.contains(&ledger.ledger));
        if ledgers.is_empty() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(refused)
}
