//! Requests of Oxia's clients, on the tree that ZooKeeper's clients see, too. One namespace, one shard.
//!
//! # Data flow
//! ```text
//! write           -> one transaction -> tree -> watches, history of notifications -> answer
//! get, list, scan -> tree
//! ```
//!
//! # Invariants
//! 1. A write request is one transaction. An operation whose condition does not hold has a status of its own and keeps none of the others
//!    from happening; a request that fails changes nothing.
//! 2. Each put has a zxid of its own, which is the record's version: it is never used twice, also after a restart.
//! 3. The offset of a notification is the zxid of its transaction, also of one that a client of ZooKeeper began.
//!
//! # Limits
//! [`IDENTITY_BYTES_MAX`], [`HIDDEN_MAX`]; the tree's, the sessions' and the history's; pages have the size that the caller asks for.

mod history;
#[cfg(test)]
mod tests;
mod write;

pub(super) use history::History;
pub(crate) use history::{parts, readable};

use super::{Core, Now, Output, REQUEST_OVERHEAD_BYTES};
use crate::tree::NodeRecord;
use crate::tree::acl::{self, Identity, PERM_READ};
use crate::tree::secondary::{Entry, IndexRange};
use bindery_oxia::proto::{GetRequest, GetResponse, KeyComparisonType, Status, Version};
use bindery_oxia::{INTERNAL_KEY_PREFIX, keys};
use bytes::Bytes;
use std::ops::Bound;

/// The only shard.
pub(crate) const SHARD: i64 = 0;

/// Shortest and longest timeout of a session, in ms, as on Oxia's servers.
const SESSION_TIMEOUTS_MS: std::ops::RangeInclusive<u32> = 2000..=300_000;
/// Records beside a key at which one read looks for one that its client may read.
const HIDDEN_MAX: usize = 1000;
/// Longest name of a client: it is kept with each record.
const IDENTITY_BYTES_MAX: usize = 1 << 10;

/// Why a request fails as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It cannot be, whatever the tree holds.
    Invalid(&'static str),
    /// The rules of ZooKeeper's side do not allow it.
    NotAllowed,
    /// The tree is full.
    NoRoom,
    /// There are as many sessions as may be.
    TooManySessions,
    /// The timeout of a session, in ms, is too short or too long.
    SessionTimeout(u32),
    /// There is no such session.
    NoSession,
}

/// A range of keys, of records or in a secondary index.
#[derive(Debug, Clone)]
pub(crate) enum KeyRange {
    /// Of records.
    Records(Bound<String>, Bound<String>),
    /// In an index.
    Index(IndexRange),
}

impl KeyRange {
    /// As a request gives it: an empty end is none.
    pub(crate) fn new(start: String, end: String, with_internal: bool, index: Option<&str>) -> KeyRange {
        match index {
            Some(index) => KeyRange::Index(IndexRange::new(index, &start, &end)),
            None => {
                let (from, to) = bounds(start, end, with_internal);
                KeyRange::Records(from, to)
            }
        }
    }
}

fn bounds(start: String, end: String, with_internal: bool) -> (Bound<String>, Bound<String>) {
    let mut to = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
    // Internal keys are the last ones.
    let reaches_internal = match &to {
        Bound::Excluded(end) => keys::compare(end, INTERNAL_KEY_PREFIX).is_gt(),
        Bound::Included(_) | Bound::Unbounded => true,
    };
    if !with_internal && reaches_internal {
        to = Bound::Excluded(INTERNAL_KEY_PREFIX.to_owned());
    }
    let from = if start.is_empty() { Bound::Unbounded } else { Bound::Included(start) };
    (from, to)
}

fn as_str(bound: &Bound<String>) -> Bound<&str> {
    bound.as_ref().map(String::as_str)
}

/// Part of an answer.
#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// What is left of the range.
    pub(crate) rest: Option<KeyRange>,
}

/// A page that is being filled.
struct Filling<T> {
    items: Vec<T>,
    /// Bytes that it may still take.
    left: usize,
}

impl<T> Filling<T> {
    fn new(bytes: usize) -> Filling<T> {
        Filling { items: Vec::new(), left: bytes }
    }

    /// Takes the next record, as an item with its size; of one that is not readable only the key counts. True when the page is full.
    fn add(&mut self, key: &str, is_readable: bool, item: impl FnOnce() -> (T, usize)) -> bool {
        let size = match is_readable {
            true => {
                let (item, size) = item();
                self.items.push(item);
                size
            }
            false => key.len(),
        };
        self.left = self.left.saturating_sub(size.max(1));
        self.left == 0
    }
}

impl Core {
    /// One read.
    pub(crate) fn oxia_get(&self, identities: &[Identity], get: &GetRequest) -> Result<GetResponse, Failure> {
        let comparison = KeyComparisonType::try_from(get.comparison_type)
            .map_err(|_| Failure::Invalid("unknown type of comparison"))?;
        if let Some(index) = &get.secondary_index_name {
            return self.get_indexed(identities, index, comparison, get);
        }
        let key = get.key.as_str();
        let found = match (comparison, self.tree.record(key)) {
            (KeyComparisonType::Equal | KeyComparisonType::Floor, Some(record)) => Some((key, record)),
            (KeyComparisonType::Equal, None) => None,
            (KeyComparisonType::Floor | KeyComparisonType::Lower, _) => {
                let end = if keys::is_internal(key) { INTERNAL_KEY_PREFIX } else { key };
                let below = self.tree.records(Bound::Unbounded, Bound::Excluded(end)).rev();
                first_readable(below, |(_, record)| record.is_readable(identities))?
            }
            (KeyComparisonType::Ceiling | KeyComparisonType::Higher, _) => {
                let from = match comparison {
                    KeyComparisonType::Ceiling => Bound::Included(key),
                    _ => Bound::Excluded(key),
                };
                let above = self.tree.records(from, Bound::Excluded(INTERNAL_KEY_PREFIX));
                first_readable(above, |(_, record)| record.is_readable(identities))?
            }
        };
        let Some((found, record)) = found else { return Ok(not_found()) };
        if !record.is_readable(identities) {
            return Err(Failure::NotAllowed);
        }
        let key = (comparison != KeyComparisonType::Equal).then_some(found);
        Ok(answer(key, record, get.include_value))
    }

    /// One read by a secondary index: the first record of a key above, the last one of a key below.
    fn get_indexed(
        &self,
        identities: &[Identity],
        index: &str,
        comparison: KeyComparisonType,
        get: &GetRequest,
    ) -> Result<GetResponse, Failure> {
        let key = get.key.as_str();
        let of_key = IndexRange::of_key(index, key);
        let (above, below) = (IndexRange::above(index, key), IndexRange::below(index, key));
        let is_readable = |found: &(&Entry, &str, &NodeRecord)| found.2.is_readable(identities);
        let of_key = || first_readable(self.tree.indexed(&of_key), is_readable);
        let above = || first_readable(self.tree.indexed(&above), is_readable);
        let below = || first_readable(self.tree.indexed(&below).rev(), is_readable);
        let found = match comparison {
            KeyComparisonType::Equal => of_key()?,
            KeyComparisonType::Higher => above()?,
            KeyComparisonType::Lower => below()?,
            KeyComparisonType::Ceiling => match of_key()? {
                None => above()?,
                found => found,
            },
            KeyComparisonType::Floor => match of_key()? {
                None => below()?,
                found => found,
            },
        };
        let Some((entry, found, record)) = found else { return Ok(not_found()) };
        let secondary_index_key = Some(entry.key().to_owned());
        Ok(GetResponse { secondary_index_key, ..answer(Some(found), record, get.include_value) })
    }

    /// The next keys of a range: so many bytes of them, one at least. Records that a client may not read are left out, but their keys count: no
    /// page takes long, and one may have nothing although others follow.
    pub(crate) fn oxia_list(&self, identities: &[Identity], range: &KeyRange, bytes: usize) -> Page<String> {
        let KeyRange::Records(from, to) = range else {
            return self.page(identities, range, bytes, |key, _| (key.to_owned(), key.len()));
        };
        let mut filling = Filling::new(bytes);
        let mut keys = self.tree.keys(as_str(from), as_str(to));
        let last = keys.find(|(key, rules)| {
            let is_readable = acl::allows(rules, PERM_READ, identities);
            filling.add(key, is_readable, || ((*key).to_owned(), key.len()))
        });
        let rest = last.map(|(key, _)| KeyRange::Records(Bound::Excluded(key.to_owned()), to.clone()));
        Page { items: filling.items, rest }
    }

    /// The next records of a range, in pages as those of [`Core::oxia_list`].
    pub(crate) fn oxia_scan(
        &self,
        identities: &[Identity],
        range: &KeyRange,
        bytes: usize,
    ) -> Page<GetResponse> {
        self.page(identities, range, bytes, |key, record| {
            let response = answer(Some(key), record, true);
            let size = key.len() + response.value.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES;
            (response, size)
        })
    }

    fn page<T>(
        &self,
        identities: &[Identity],
        range: &KeyRange,
        bytes: usize,
        item: impl Fn(&str, &NodeRecord) -> (T, usize),
    ) -> Page<T> {
        let mut filling = Filling::new(bytes);
        let mut add = |key: &str, record: &NodeRecord| {
            filling.add(key, record.is_readable(identities), || item(key, record))
        };
        let rest = match range {
            KeyRange::Records(from, to) => {
                let mut records = self.tree.records(as_str(from), as_str(to));
                let last = records.find(|(key, record)| add(key, record));
                last.map(|(key, _)| KeyRange::Records(Bound::Excluded(key.to_owned()), to.clone()))
            }
            KeyRange::Index(range) => {
                let last = self.tree.indexed(range).find(|(_, key, record)| add(key, record));
                last.map(|(entry, ..)| KeyRange::Index(range.behind(entry)))
            }
        };
        Page { items: filling.items, rest }
    }

    /// The highest key of a sequence; `None` also when a client may not read its record.
    pub(crate) fn oxia_highest_in_sequence(&self, identities: &[Identity], prefix: &str) -> Option<String> {
        let (first, last) = (format!("{prefix}-{:020}", 0), format!("{prefix}-{:020}", i64::MAX));
        let range = (Bound::Included(first.as_str()), Bound::Excluded(last.as_str()));
        let highest = self.tree.records(range.0, range.1).next_back();
        highest.filter(|(_, record)| record.is_readable(identities)).map(|(key, _)| key.to_owned())
    }

    /// The offset of everything that has happened.
    pub(crate) fn oxia_offset(&self) -> i64 {
        self.zxid
    }

    /// The next batches of notifications behind an offset, encoded: so many bytes of them, one at least. Those that are no longer kept are
    /// passed over, as on Oxia's servers. [`readable`] says what of them a client may know.
    pub(crate) fn oxia_notifications(&self, offset: i64, bytes: usize) -> Vec<(i64, Bytes)> {
        self.history.after(offset, bytes)
    }

    /// Opens a session; gives its id.
    pub(crate) fn oxia_create_session(
        &mut self,
        now: Now,
        timeout_ms: u32,
        identity: &str,
    ) -> Result<i64, Failure> {
        if !SESSION_TIMEOUTS_MS.contains(&timeout_ms) {
            return Err(Failure::SessionTimeout(timeout_ms));
        }
        check_identity(identity)?;
        if self.sessions.len() >= self.config.sessions_max {
            tracing::warn!(sessions = self.sessions.len(), "too many sessions, refused a new one");
            return Err(Failure::TooManySessions);
        }
        self.zxid += 1;
        self.pending_bytes += REQUEST_OVERHEAD_BYTES;
        Ok(self.sessions.create_for_oxia(timeout_ms, identity.into(), now.monotonic_ms))
    }

    /// A session's client is alive.
    pub(crate) fn oxia_keep_alive(&mut self, now: Now, session: i64) -> Result<(), Failure> {
        if !self.sessions.is_oxias(session) {
            return Err(Failure::NoSession);
        }
        self.sessions.touch(session, now.monotonic_ms);
        Ok(())
    }

    /// Ends a session and its records.
    pub(crate) fn oxia_close_session(
        &mut self,
        now: Now,
        session: i64,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        if !self.sessions.is_oxias(session) {
            return Err(Failure::NoSession);
        }
        self.end_session(now, session, out);
        self.pending_bytes += REQUEST_OVERHEAD_BYTES;
        Ok(())
    }
}

/// What a record costs in an answer besides key and value, roughly.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// The first record that a client may read. Where very many are none that it may, it is not allowed to know: one look must not go through
/// all records while everybody waits.
fn first_readable<T>(
    mut found: impl Iterator<Item = T>,
    is_readable: impl Fn(&T) -> bool,
) -> Result<Option<T>, Failure> {
    match found.by_ref().take(HIDDEN_MAX).find(is_readable) {
        None if found.next().is_some() => Err(Failure::NotAllowed),
        first => Ok(first),
    }
}

fn check_identity(identity: &str) -> Result<(), Failure> {
    match identity.len() <= IDENTITY_BYTES_MAX {
        true => Ok(()),
        false => Err(Failure::Invalid("the client's identity is longer than 1 KiB")),
    }
}

fn not_found() -> GetResponse {
    GetResponse { status: Status::KeyNotFound.into(), ..GetResponse::default() }
}

fn answer(key: Option<&str>, record: &NodeRecord, with_value: bool) -> GetResponse {
    GetResponse {
        status: Status::Ok.into(),
        version: Some(version(record)),
        value: with_value.then(|| record.data.clone().unwrap_or_default()),
        key: key.map(str::to_owned),
        secondary_index_key: None,
    }
}

fn version(record: &NodeRecord) -> Version {
    let ms = |time_ms: i64| u64::try_from(time_ms).unwrap_or(0);
    Version {
        version_id: record.version_id,
        modifications_count: record.modifications,
        created_timestamp: ms(record.ctime_ms),
        modified_timestamp: ms(record.mtime_ms),
        session_id: record.session(),
        client_identity: record.identity.as_deref().map(str::to_owned),
    }
}
