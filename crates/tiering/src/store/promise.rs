//! A store that was shown to break a promise stays refused, until an operator says otherwise.
//!
//! A race between creators turns out well now and then in a store that lets two of them win. So what one check found counts for all
//! later ones: a note in the store says so to other processes, and [`Gate`] to this one.

use bindery_io::{Clock, Random};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt, PutPayload};
use parking_lot::Mutex;

use super::check::{self, CheckError, CheckOptions, Checked};
use super::patient::Patient;
use super::{Store, StoreError};
use crate::ClusterId;

/// First line of a note, with the version of its form.
const HEAD: &str = "bindery: a broken promise, 1";
/// Longer notes are not read on.
const NOTE_BYTES_MAX: u64 = 4_096;

/// What was found about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// What it did.
    pub what: String,
    /// When that was found, in milliseconds since 1970, by the clock of the process that found it.
    pub found_ms: i64,
}

impl Broken {
    /// As it is kept in the store (docs/formats.md).
    fn encode(&self) -> Bytes {
        let what: Vec<&str> = self.what.split_whitespace().collect();
        Bytes::from(format!("{HEAD}\nfound-ms: {}\nwhat: {}\n", self.found_ms, what.join(" ")))
    }

    /// A note that cannot be read refuses, too.
    fn decode(bytes: &[u8]) -> Broken {
        let text = String::from_utf8_lossy(bytes);
        let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let is_ours = text.lines().next() == Some(HEAD);
        let what = of("what: ").filter(|_| is_ours);
        Broken {
            what: what.unwrap_or("a note says so which this release cannot read").to_owned(),
            found_ms: of("found-ms: ").and_then(|text| text.parse().ok()).unwrap_or(0),
        }
    }
}

/// What this process knows of a store's broken promises, for as long as it lives.
#[derive(Debug, Default)]
pub struct Gate {
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    broken: Broken,
    /// It is written down in the store.
    is_noted: bool,
}

/// Where a promise that was broken is written down: for one cluster, or for all that are below the prefix.
fn note(store: &Store, cluster: Option<ClusterId>) -> Path {
    match cluster {
        Some(cluster) => store.key(&format!("{cluster}/broken-promise")),
        None => store.key("broken-promise"),
    }
}

/// Tries the store out, unless it is known to have broken a promise: then it is refused without another trial. The finding is kept in
/// `gate`, and in the store.
///
/// # Errors
/// [`CheckError::Known`] when it is known, else as of the check.
pub async fn admit(
    store: &Store,
    options: &CheckOptions,
    gate: &Gate,
    clock: &dyn Clock,
    random: &dyn Random,
    seen: impl FnMut(&Checked),
) -> Result<(), CheckError> {
    if let Some(broken) = known(store, options.cluster, gate).await? {
        return Err(CheckError::Known(broken));
    }
    let outcome = check::check(store, options, clock, random, seen).await;
    if let Err(CheckError::Dishonoured { check, what }) = &outcome {
        let broken = Broken { what: format!("{check}: {what}"), found_ms: clock.wall_ms() };
        let is_noted = write(store, options.cluster, &broken).await.is_ok();
        *gate.known.lock() = Some(Known { broken, is_noted });
    }
    outcome
}

/// What is known, in this process or in the store. A note that was in the store and is gone was removed by an operator.
///
/// # Errors
/// The store did not say whether it has a note.
pub async fn known(
    store: &Store,
    cluster: Option<ClusterId>,
    gate: &Gate,
) -> Result<Option<Broken>, CheckError> {
    let failed = |error| CheckError::Failed { check: check::Check::Read, error };
    let found = match read(store, cluster).await.map_err(failed)? {
        Some(broken) => Some(broken),
        // Of all clusters below the prefix. A key that may not be read there is no obstacle: rights may end at the cluster.
        None if cluster.is_some() => match read(store, None).await {
            Ok(found) => found,
            Err(StoreError::Denied { .. }) => None,
            Err(error) => return Err(failed(error)),
        },
        None => None,
    };
    let before = gate.known.lock().clone();
    let known = match (found, before) {
        (Some(broken), _) => Some(Known { broken, is_noted: true }),
        (None, Some(Known { broken, is_noted: false })) => {
            let is_noted = write(store, cluster, &broken).await.is_ok();
            Some(Known { broken, is_noted })
        }
        (None, _) => None,
    };
    *gate.known.lock() = known.clone();
    Ok(known.map(|known| known.broken))
}

/// Removes the notes about a store: those of one cluster and those of all, or, without a cluster, of every cluster below the prefix.
/// How many there were.
///
/// # Errors
/// When the store does not let them be found or removed.
pub async fn forgive(store: &Store, cluster: Option<ClusterId>) -> Result<usize, StoreError> {
    let clusters = match cluster {
        Some(cluster) => vec![cluster],
        None => super::clusters(store).await?,
    };
    let mut removed = 0;
    for of in clusters.into_iter().map(Some).chain([None]) {
        if read(store, of).await?.is_some() {
            let key = note(store, of);
            Patient::new().ask(&key, || store.inner().delete(&key)).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

async fn read(store: &Store, cluster: Option<ClusterId>) -> Result<Option<Broken>, StoreError> {
    let key = note(store, cluster);
    let bytes = Patient::new()
        .ask(&key, || async {
            let found = store.inner().get_opts(&key, GetOptions::default()).await?;
            match found.meta.size {
                ..=NOTE_BYTES_MAX => found.bytes().await,
                _ => Ok(Bytes::new()),
            }
        })
        .await;
    match bytes {
        Ok(bytes) => Ok(Some(Broken::decode(&bytes))),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write(store: &Store, cluster: Option<ClusterId>, broken: &Broken) -> Result<(), StoreError> {
    let key = note(store, cluster);
    let mut patient = Patient::new();
    patient.expect_answers();
    patient.ask(&key, || store.inner().put(&key, PutPayload::from_bytes(broken.encode()))).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_as_it_was_written() {
        let broken = Broken { what: "conditional create: 3 winners".to_owned(), found_ms: 1_764_000_000_000 };
        assert_eq!(Broken::decode(&broken.encode()), broken);
        let in_lines = Broken { what: "two\nlines".to_owned(), ..broken.clone() };
        assert_eq!(Broken::decode(&in_lines.encode()).what, "two lines");
        for other in [&b""[..], b"bindery: a broken promise, 2\nwhat: x\n", &[0xFF; 9]] {
            assert!(Broken::decode(other).what.contains("cannot read"), "{other:?}");
        }
    }
}
