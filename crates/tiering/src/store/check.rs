//! Tries out whether a store does what tiering rests on.
//!
//! Commits to the catalogue are conditional creates of numbered keys: the order of the keys is what keeps two tierers from
//! writing over each other. Several servers that call themselves compatible with S3 let more than one creator of a key win, so
//! that is tried with races, not asked for.

use std::fmt;
use std::time::Duration;

use bindery_io::{Clock, Random};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};

use super::{Store, StoreError};

/// Races of creators for one key each.
const RACES: usize = 8;
/// Creators in a race.
const CREATORS: usize = 16;
/// Writers that count up one value by compare and swap, and how far each counts.
const COUNTERS: usize = 4;
const COUNTS: usize = 4;

/// One promise of a store that is tried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Write a key.
    Write,
    /// Read it back, whole and in part.
    Read,
    /// List it.
    List,
    /// Create a key that exists, and have one winner in each race of creators.
    ConditionalCreate,
    /// Replace a value only as it was read; lose no update.
    CompareAndSwap,
    /// Delete.
    Delete,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Write => "write",
            Check::Read => "read",
            Check::List => "list",
            Check::ConditionalCreate => "conditional create",
            Check::CompareAndSwap => "compare and swap",
            Check::Delete => "delete",
        })
    }
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As it should.
    Honoured,
    /// The store does not offer it, and tiering does without.
    NotOffered,
}

/// A check that was passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Which.
    pub check: Check,
    /// How it went.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
    /// Requests that were sent.
    pub requests: u32,
}

/// Why a store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A request failed.
    #[error("{check}: {error}")]
    Failed {
        /// What was tried.
        check: Check,
        /// What came of it.
        error: StoreError,
    },
    /// It answered that something was done which was not, or the other way round.
    #[error(
        "{check}: {what}; two tierers would write over each other there, and ledgers would be lost: use another store"
    )]
    Dishonoured {
        /// What was tried.
        check: Check,
        /// What happened.
        what: String,
    },
}

/// Tries everything below a fresh key of `store`, and removes what it wrote. `seen` is called after each check that was passed.
/// On an error some keys below `check/` may be left: they hold nothing.
pub async fn check(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    mut seen: impl FnMut(&Checked),
) -> Result<(), CheckError> {
    let name = format!("check/{:016x}{:016x}", random.next_u64(), random.next_u64());
    let run = Run { store: &**store.inner(), under: store.key(&name) };
    for check in [
        Check::Write,
        Check::Read,
        Check::List,
        Check::ConditionalCreate,
        Check::CompareAndSwap,
        Check::Delete,
    ] {
        let began = clock.monotonic_ns();
        let (verdict, requests) = run.check(check).await?;
        let took = Duration::from_nanos(clock.monotonic_ns().saturating_sub(began));
        seen(&Checked { check, verdict, took, requests });
    }
    Ok(())
}

struct Run<'a> {
    store: &'a dyn ObjectStore,
    under: Path,
}

impl Run<'_> {
    fn key(&self, name: &str) -> Path {
        self.under.clone().join(name)
    }

    async fn check(&self, check: Check) -> Result<(Verdict, u32), CheckError> {
        let failed = |(key, error): (Path, object_store::Error)| CheckError::Failed {
            check,
            error: StoreError::of(&key, &error),
        };
        let dishonoured = |what: String| CheckError::Dishonoured { check, what };
        let key = self.key("value");
        match check {
            Check::Write => {
                let payload = PutPayload::from_bytes(value());
                self.store.put(&key, payload).await.map_err(|error| failed((key, error)))?;
                Ok((Verdict::Honoured, 1))
            }
            Check::Read => {
                let whole = self.store.get(&key).await.map_err(|error| failed((key.clone(), error)))?;
                let whole = whole.bytes().await.map_err(|error| failed((key.clone(), error)))?;
                let part = self
                    .store
                    .get_range(&key, 100..228)
                    .await
                    .map_err(|error| failed((key.clone(), error)))?;
                if whole != value() || part != value().slice(100..228) {
                    return Err(dishonoured("other bytes were read than were written".into()));
                }
                Ok((Verdict::Honoured, 2))
            }
            Check::List => {
                let listed: Vec<Path> = self
                    .store
                    .list(Some(&self.under))
                    .map_ok(|found| found.location)
                    .try_collect()
                    .await
                    .map_err(|error| failed((self.under.clone(), error)))?;
                match listed == [key] {
                    true => Ok((Verdict::Honoured, 1)),
                    false => {
                        Err(dishonoured(format!("one key was written, and the list has {}", listed.len())))
                    }
                }
            }
            Check::ConditionalCreate => {
                match self.create(&key, value()).await {
                    Ok(()) => return Err(dishonoured("a key that existed was created again".into())),
                    Err(error) if matches!(StoreError::of(&key, &error), StoreError::Exists { .. }) => {}
                    Err(error) => return Err(failed((key, error))),
                }
                for race in 0..RACES {
                    self.race(&self.key(&format!("race-{race}"))).await.map_err(|problem| match problem {
                        Problem::Failed(key, error) => failed((key, error)),
                        Problem::Dishonoured(what) => dishonoured(what),
                    })?;
                }
                Ok((Verdict::Honoured, 1 + (RACES * (CREATORS + 1)) as u32))
            }
            Check::CompareAndSwap => self.count().await.map_err(|problem| match problem {
                Problem::Failed(key, error) => failed((key, error)),
                Problem::Dishonoured(what) => dishonoured(what),
            }),
            Check::Delete => {
                let mut deleted = 0;
                let mut keys = self.store.list(Some(&self.under));
                while let Some(found) = keys.next().await {
                    let key = found.map_err(|error| failed((self.under.clone(), error)))?.location;
                    self.store.delete(&key).await.map_err(|error| failed((key.clone(), error)))?;
                    deleted += 1;
                }
                drop(keys);
                match self.store.get_opts(&key, GetOptions { head: true, ..GetOptions::default() }).await {
                    Ok(_) => Err(dishonoured("a key that was deleted is still there".into())),
                    Err(object_store::Error::NotFound { .. }) => Ok((Verdict::Honoured, deleted + 2)),
                    Err(error) => Err(failed((key, error))),
                }
            }
        }
    }

    async fn create(&self, key: &Path, value: Bytes) -> object_store::Result<()> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        self.store.put_opts(key, PutPayload::from_bytes(value), options).await.map(drop)
    }

    /// Creators of one key at the same time: one of them wins, and its value stays.
    async fn race(&self, key: &Path) -> Result<(), Problem> {
        let creators = (0..CREATORS).map(|number| self.create(key, Bytes::from(format!("creator {number}"))));
        let (mut winners, mut unknown) = (Vec::new(), None);
        for (number, outcome) in join_all(creators).await.into_iter().enumerate() {
            match outcome.as_ref().map_err(|error| StoreError::of(key, error)) {
                Ok(()) => winners.push(number),
                Err(StoreError::Exists { .. }) => {}
                Err(_) => unknown = outcome.err(),
            }
        }
        // A creator whose outcome is unknown may have won: that is no proof of anything.
        if let Some(error) = unknown {
            return Err(Problem::Failed(key.clone(), error));
        }
        if winners.len() > 1 {
            let what = format!(
                "of {CREATORS} creators of one key, {} were told that they created it",
                winners.len()
            );
            return Err(Problem::Dishonoured(what));
        }
        let found = self.read(key).await?;
        let is_of = |number: usize| found == format!("creator {number}");
        // Without a winner, the winner's answer was lost, and its next try found the key.
        let is_right = winners.first().map_or_else(|| (0..CREATORS).any(is_of), |winner| is_of(*winner));
        match is_right {
            true => Ok(()),
            false => Err(Problem::Dishonoured("the value of a creator that was refused was stored".into())),
        }
    }

    async fn read(&self, key: &Path) -> Result<Bytes, Problem> {
        let failed = |error| Problem::Failed(key.clone(), error);
        self.store.get(key).await.map_err(failed)?.bytes().await.map_err(failed)
    }

    /// Writers that count one value up, each update conditional on what it read. Every success counts.
    async fn count(&self) -> Result<(Verdict, u32), Problem> {
        let key = self.key("count");
        let failed = |error| Problem::Failed(key.clone(), error);
        self.store.put(&key, PutPayload::from_bytes(Bytes::from_static(b"0"))).await.map_err(failed)?;
        let counted: Vec<Option<u32>> =
            futures_util::future::try_join_all((0..COUNTERS).map(|_| self.count_up(&key))).await?;
        if counted.contains(&None) {
            return Ok((Verdict::NotOffered, 2));
        }
        let found = self.read(&key).await?;
        let (expected, found) = (COUNTERS * COUNTS, number(&found)?);
        // More are there when an update's answer was lost.
        match found >= expected {
            true => Ok((Verdict::Honoured, 2 + counted.iter().flatten().sum::<u32>())),
            false => Err(Problem::Dishonoured(format!(
                "{expected} updates were acknowledged, and {found} are there"
            ))),
        }
    }

    /// Requests that it took; `None` when the store has no such operation.
    async fn count_up(&self, key: &Path) -> Result<Option<u32>, Problem> {
        let failed = |error| Problem::Failed(key.clone(), error);
        let (mut done, mut requests) = (0, 0);
        while done < COUNTS {
            let read = self.store.get(key).await.map_err(failed)?;
            let version =
                UpdateVersion { e_tag: read.meta.e_tag.clone(), version: read.meta.version.clone() };
            let value = read.bytes().await.map_err(failed)?;
            let value = number(&value)?;
            let options = PutOptions { mode: PutMode::Update(version), ..PutOptions::default() };
            let next = PutPayload::from_bytes(Bytes::from((value + 1).to_string()));
            requests += 2;
            match self.store.put_opts(key, next, options).await {
                Ok(_) => done += 1,
                Err(
                    object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. },
                ) => {
                    return Ok(None);
                }
                Err(error) if matches!(StoreError::of(key, &error), StoreError::Exists { .. }) => {}
                Err(error) => return Err(Problem::Failed(key.clone(), error)),
            }
        }
        Ok(Some(requests))
    }
}

enum Problem {
    Failed(Path, object_store::Error),
    Dishonoured(String),
}

fn number(value: &[u8]) -> Result<usize, Problem> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Problem::Dishonoured("a value was read that was never written".into()))
}

/// 1 KiB in which each place is told from its neighbours.
fn value() -> Bytes {
    (0..1024_u32).map(|place| ((place * 31) >> 3) as u8).collect()
}
