//! Snapshots, merges, and the removal of what they leave behind. Each is harmless when several processes do it, and when it is
//! cut off between any two requests.
//!
//! A job is made by the catalogue, run beside it, and installed: only making and installing need the catalogue.

use bytes::Bytes;
use object_store::path::Path;

use super::base::{OpenRun, RunReader};
use super::bucket::{Bucket, Created, number_of, run_name_of};
use super::manifest::{Manifest, RunName, RunRef};
use super::row::rows_of;
use super::run::{Row, RunBuilder, RunShape};
use super::shell::manifest;
use super::{Catalogue, CatalogueError, Position, Totals};

/// Manifests by which a run that is not named may still be named by a process that began it: it is not deleted before.
const RUN_FLOOR_LAG: u64 = 64;
/// The newest manifests whose runs are kept, for readers that are not as far.
const MANIFESTS_OF_READERS: u64 = 3;
/// Stored bytes of the smallest class of runs. Each class is so many times as large as [`super::CatalogueOptions::merged_runs`].
const RUN_BYTES_BASE: u64 = 4 << 20;
/// Keys that one cleaning deletes.
const CLEANED_MAX: usize = 1000;

/// The kinds of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpkeepKind {
    /// The tail becomes a run.
    Snapshot,
    /// Several runs become one.
    Merge,
}

/// Work that is due, apart from its catalogue: it may run for a while, in a task of its own.
pub struct UpkeepJob {
    bucket: Bucket,
    name: RunName,
    work: Work,
}

enum Work {
    Snapshot { rows: Vec<Row>, covered: Position, totals: Totals },
    Merge { runs: Vec<OpenRun>, is_oldest_in: bool },
}

/// A run that was written and counts when it is installed.
pub struct UpkeepDone {
    name: RunName,
    shape: RunShape,
    work: Written,
}

enum Written {
    Snapshot { covered: Position, totals: Totals },
    Merge { inputs: Vec<RunName> },
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// A manifest names the run.
    Counts,
    /// Somebody else was faster; the run was deleted.
    Discarded,
}

/// What a cleaning deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Records of the log that snapshots cover.
    pub records: usize,
    /// Runs that no manifest names.
    pub runs: usize,
}

impl UpkeepJob {
    /// Its kind.
    pub fn kind(&self) -> UpkeepKind {
        match self.work {
            Work::Snapshot { .. } => UpkeepKind::Snapshot,
            Work::Merge { .. } => UpkeepKind::Merge,
        }
    }

    /// Writes the run. Cancelled or failed, it leaves a run that counts for nothing, and that a cleaning deletes.
    pub async fn run(self) -> Result<UpkeepDone, CatalogueError> {
        let UpkeepJob { bucket, name, work } = self;
        match work {
            Work::Snapshot { rows, covered, totals } => {
                let mut builder = RunBuilder::new(bucket.cluster());
                rows.iter().for_each(|(key, value)| builder.push(*key, value.as_deref()));
                let (chunks, shape) = builder.finish();
                bucket.put(&bucket.run(name), Bytes::from(chunks.concat())).await?;
                Ok(UpkeepDone { name, shape, work: Written::Snapshot { covered, totals } })
            }
            Work::Merge { runs, is_oldest_in } => {
                let inputs = runs.iter().map(|run| run.reference.name).collect();
                let shape = merge(&bucket, name, runs, is_oldest_in).await?;
                Ok(UpkeepDone { name, shape, work: Written::Merge { inputs } })
            }
        }
    }
}

/// Merges runs, the newest first, in the memory of a few blocks of each.
async fn merge(
    bucket: &Bucket,
    name: RunName,
    runs: Vec<OpenRun>,
    is_oldest_in: bool,
) -> Result<RunShape, CatalogueError> {
    let key = bucket.run(name);
    let mut readers: Vec<RunReader> =
        runs.into_iter().map(|run| RunReader::new(bucket.clone(), run)).collect();
    let mut builder = RunBuilder::new(bucket.cluster());
    let mut upload = bucket.upload(&key);
    let outcome = async {
        loop {
            for reader in &mut readers {
                reader.load().await?;
            }
            // Until one of them has to load again.
            while readers.iter().all(|reader| reader.key().is_some() || reader.is_at_end()) {
                let Some(key) = readers.iter().filter_map(RunReader::key).min() else {
                    let (rest, shape) = builder.finish();
                    upload.push(rest).await?;
                    return Ok(shape);
                };
                let mut is_newest = true;
                for reader in readers.iter_mut().filter(|reader| reader.key() == Some(key)) {
                    if std::mem::take(&mut is_newest) {
                        let value = reader.value();
                        // Below the oldest run there is nothing that would have to be hidden.
                        if value.is_some() || !is_oldest_in {
                            builder.push(key, value);
                        }
                    }
                    reader.advance();
                }
            }
            if builder.ready_bytes() > 0 {
                upload.push(builder.take()).await?;
            }
            tokio::task::yield_now().await;
        }
    };
    match outcome.await {
        Ok(shape) => {
            upload.finish().await?;
            Ok(shape)
        }
        Err(error) => {
            upload.abort().await;
            Err(error)
        }
    }
}

impl Catalogue {
    /// What is due: a snapshot when the tail is long, else a merge when there are several runs of about one size. One at a
    /// time.
    pub fn upkeep_due(&self) -> Option<UpkeepJob> {
        let behind = self.core.position().number - self.base.manifest.covered.number;
        // Of several tierers the first to be due does it for all.
        let share = self.writer()?.0 % 8;
        let late = |limit: u64| limit + limit / 16 * share;
        let is_due = self.core.tail_rows() as u64 >= late(self.options.snapshot_rows as u64)
            || behind >= late(self.options.snapshot_records);
        if is_due && behind > 0 { self.snapshot() } else { self.merge_due() }
    }

    /// A snapshot of the tail, due or not; `None` when there is no tail, or the catalogue was opened for reading.
    pub fn snapshot(&self) -> Option<UpkeepJob> {
        self.writer()?;
        let (covered, totals) = (self.core.position(), self.core.totals());
        (covered.number > self.base.manifest.covered.number).then(|| UpkeepJob {
            bucket: self.bucket.clone(),
            name: self.new_name(),
            work: Work::Snapshot { rows: rows_of(self.core.tail()).collect(), covered, totals },
        })
    }

    /// When there are several runs of one class, those and all that are newer. So a row is written once for each class.
    fn merge_due(&self) -> Option<UpkeepJob> {
        self.writer()?;
        let width = self.options.merged_runs.max(2);
        let runs = self.base.runs();
        let class = |run: &OpenRun| {
            let mut limit = RUN_BYTES_BASE;
            let mut class = 0;
            while run.reference.shape.size_bytes > limit {
                limit = limit.saturating_mul(width as u64);
                class += 1;
            }
            class
        };
        let largest = runs.iter().map(class).max()?;
        (0..=largest).find_map(|limit| {
            let count = runs.iter().take_while(|run| class(run) <= limit).count();
            let of_class = runs[..count].iter().filter(|run| class(run) == limit).count();
            (of_class >= width).then(|| UpkeepJob {
                bucket: self.bucket.clone(),
                name: self.new_name(),
                work: Work::Merge { runs: runs[..count].to_vec(), is_oldest_in: count == runs.len() },
            })
        })
    }

    fn new_name(&self) -> RunName {
        RunName { manifest: self.base.manifest.number, nonce: self.random.next_u64() }
    }

    /// Lets a run count, by creating the next manifest.
    pub async fn install(&mut self, done: UpkeepDone) -> Result<Installed, CatalogueError> {
        let mut pause = self.options.retry_pause;
        for _ in 0..self.options.attempts_max {
            let Some(next) = self.next_manifest(&done) else {
                // Nobody can name it any more: it may be gone already.
                self.bucket.delete(&self.bucket.run(done.name)).await?;
                return Ok(Installed::Discarded);
            };
            let key = self.bucket.manifest(next.number);
            match self.bucket.create(&key, Bytes::from(next.encode())).await? {
                Created::Own => {
                    self.adopt(next).await?;
                    return Ok(Installed::Counts);
                }
                Created::Other(_) => drop(self.adopt_newer().await?),
                Created::Unknown(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(self.options.retry_pause * 16);
                    // The bytes of the next try are the same unless another manifest is there: then either may be ours.
                    if let Some(found) = manifest(&self.bucket, next.number).await? {
                        let is_ours = found == next;
                        self.adopt_newer().await?;
                        if is_ours {
                            return Ok(Installed::Counts);
                        }
                    }
                }
            }
        }
        Err(CatalogueError::Contended { attempts: self.options.attempts_max })
    }

    /// The manifest behind the newest one that names this run; `None` when there is no place for it.
    fn next_manifest(&self, done: &UpkeepDone) -> Option<Manifest> {
        let newest = &self.base.manifest;
        // From this number on, a cleaning may have deleted it.
        if done.name.manifest < newest.run_floor {
            return None;
        }
        let run = RunRef { name: done.name, shape: done.shape };
        let mut next = Manifest { number: newest.number + 1, ..newest.clone() };
        match &done.work {
            Written::Snapshot { covered, totals } => {
                // Rows of a snapshot are whole values, so it may overlap the one before (invariant 6).
                if covered.number <= newest.covered.number {
                    return None;
                }
                (next.covered, next.totals) = (*covered, *totals);
                next.log_floor = newest.log_floor.max(covered.number.saturating_sub(self.options.log_kept));
                if done.shape.rows > 0 {
                    next.runs.insert(0, run);
                }
            }
            Written::Merge { inputs } => {
                let names: Vec<RunName> = newest.runs.iter().map(|run| run.name).collect();
                let at = names.windows(inputs.len()).position(|window| window == inputs)?;
                let merged = (done.shape.rows > 0).then_some(run);
                next.runs.splice(at..at + inputs.len(), merged);
            }
        }
        next.run_floor = newest.run_floor.max(next.number.saturating_sub(RUN_FLOOR_LAG));
        Some(next)
    }

    /// Deletes records that snapshots cover, and runs that no manifest names and none can name any more.
    pub async fn clean(&mut self) -> Result<Cleaned, CatalogueError> {
        self.writer().ok_or(CatalogueError::ReadOnly)?;
        while self.adopt_newer().await? {}
        let mut cleaned = Cleaned::default();
        let log_floor = self.base.manifest.log_floor;
        let listed =
            self.bucket.list(&self.bucket.log(), None).await?.into_iter().map(|found| found.location);
        let is_covered = |key: &Path| number_of(key).is_some_and(|number| number <= log_floor);
        let old: Vec<Path> = listed.filter(is_covered).take(CLEANED_MAX).collect();
        cleaned.records = old.len();
        self.bucket.delete_all(old).await?;
        let newest = self.base.manifest.number;
        let run_floor = self.base.manifest.run_floor;
        let mut named: Vec<RunName> = self.base.manifest.runs.iter().map(|run| run.name).collect();
        for number in newest.saturating_sub(MANIFESTS_OF_READERS).max(1)..newest {
            let older = manifest(&self.bucket, number).await?;
            named.extend(older.iter().flat_map(|older| &older.runs).map(|run| run.name));
        }
        let listed =
            self.bucket.list(&self.bucket.runs(), None).await?.into_iter().map(|found| found.location);
        let oldest_kept = newest.saturating_sub(MANIFESTS_OF_READERS);
        let is_gone = |key: &Path| {
            run_name_of(key).is_some_and(|name| {
                let is_over = name.manifest < run_floor || self.base.was_dropped(name, oldest_kept);
                is_over && !named.contains(&name)
            })
        };
        let old: Vec<Path> = listed.filter(is_gone).take(CLEANED_MAX).collect();
        cleaned.runs = old.len();
        self.bucket.delete_all(old).await?;
        Ok(cleaned)
    }

    /// Does everything that is due, and cleans up behind it.
    pub async fn maintain(&mut self) -> Result<(), CatalogueError> {
        let mut is_done = false;
        while let Some(job) = self.upkeep_due() {
            let done = job.run().await?;
            self.install(done).await?;
            is_done = true;
        }
        if is_done {
            self.clean().await?;
        }
        Ok(())
    }
}
