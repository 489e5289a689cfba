//! A write request: puts, deletes, ranges, in this order.

use super::{Failure, as_str, bounds, check_identity, version};
use crate::core::{Core, Now, Output, REQUEST_OVERHEAD_BYTES};
use crate::tree::Txn;
use crate::tree::acl::Identity;
use crate::tree::records::{Put, Refused};
use crate::tree::secondary::IndexKey;
use bindery_oxia::proto::{
    DeleteRangeRequest, DeleteRangeResponse, DeleteRequest, DeleteResponse, PutRequest, PutResponse,
    SecondaryIndex, Status, WriteRequest, WriteResponse,
};
use bytes::Bytes;
use prost::Message;
use std::ops::Bound;
use std::sync::Arc;

/// Numbers of a sequential key.
const SEQUENCES_MAX: usize = 16;
/// Keys of a record in secondary indexes.
const INDEX_KEYS_MAX: usize = 100;
/// Highest count of changes that a writer may choose: no record gets there by being written, and it can still be counted on from there.
const CHOSEN_COUNT_MAX: i64 = 1 << 62;

impl Core {
    /// Puts, deletes and deletions of ranges (invariant 1 of [`super`]).
    pub(crate) fn oxia_write(
        &mut self,
        now: Now,
        identities: &[Identity],
        request: WriteRequest,
        out: &mut Vec<Output>,
    ) -> Result<WriteResponse, Failure> {
        let bytes = request.encoded_len();
        let mut txn = self.begin(now);
        let mut ranges = Vec::new();
        match self.apply(&mut txn, identities, request, &mut ranges) {
            Ok(response) => {
                // Each node that it brings, changes or deletes waits, too: there can be many to a byte.
                let steps = 1 + txn.steps();
                self.commit_with(txn, ranges, out);
                if self.has_changes() {
                    self.pending_bytes += bytes + steps * REQUEST_OVERHEAD_BYTES;
                }
                Ok(response)
            }
            Err(failure) => {
                self.tree.rollback(txn);
                Err(failure)
            }
        }
    }

    fn apply(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        request: WriteRequest,
        ranges: &mut Vec<(String, String)>,
    ) -> Result<WriteResponse, Failure> {
        let mut response = WriteResponse::default();
        for put in request.puts {
            response.puts.push(self.apply_put(txn, identities, put)?);
        }
        for delete in &request.deletes {
            response.deletes.push(self.apply_delete(txn, identities, delete)?);
        }
        for range in request.delete_ranges {
            self.apply_delete_range(txn, identities, &range)?;
            ranges.push((range.start_inclusive, range.end_exclusive));
            response.delete_ranges.push(DeleteRangeResponse { status: Status::Ok.into() });
        }
        Ok(response)
    }

    fn apply_put(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        put: PutRequest,
    ) -> Result<PutResponse, Failure> {
        let is = |status: Status| Ok(PutResponse { status: status.into(), ..PutResponse::default() });
        if put.secondary_indexes.len() > INDEX_KEYS_MAX {
            return Err(Failure::Invalid("a record has at most 100 keys in secondary indexes"));
        }
        check_identity(put.client_identity.as_deref().unwrap_or_default())?;
        check_overrides(&put)?;
        let is_sequential = !put.sequence_key_delta.is_empty();
        if is_sequential && put.partition_key.is_none() {
            return Err(Failure::Invalid("oxia: sequential key operation requires partition key"));
        }
        if is_sequential && put.expected_version_id.is_some() {
            return is(Status::UnexpectedVersionId);
        }
        let key = match is_sequential {
            true => self.next_in_sequence(&put.key, &put.sequence_key_delta)?,
            false => put.key,
        };
        self.tree.check_put(identities, &key).map_err(failure_of)?;
        if self.tree.expect(&key, put.expected_version_id).is_err() {
            return is(Status::UnexpectedVersionId);
        }
        if put.session_id.is_some_and(|session| !self.sessions.is_oxias(session)) {
            return is(Status::SessionDoesNotExist);
        }
        self.zxid += 1;
        txn.zxid = self.zxid;
        let put = Put {
            // Copied, so that the record does not keep the receive buffer.
            value: Bytes::copy_from_slice(&put.value),
            session: put.session_id,
            identity: put.client_identity.map(Into::into),
            index_keys: index_keys(put.secondary_indexes),
            version_id: put.override_version_id,
            modifications: put.override_modifications_count,
        };
        let record = self.tree.put(txn, identities, &key, put).map_err(failure_of)?;
        Ok(PutResponse {
            status: Status::Ok.into(),
            version: Some(version(record)),
            key: is_sequential.then_some(key),
        })
    }

    fn apply_delete(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        delete: &DeleteRequest,
    ) -> Result<DeleteResponse, Failure> {
        self.zxid += 1;
        txn.zxid = self.zxid;
        self.tree.check_delete(identities, &delete.key).map_err(failure_of)?;
        let expected = self.tree.expect(&delete.key, delete.expected_version_id);
        let status = match expected.and_then(|()| self.tree.delete_record(txn, identities, &delete.key)) {
            Ok(()) => Status::Ok,
            Err(Refused::NotFound) => Status::KeyNotFound,
            Err(Refused::UnexpectedVersion) => Status::UnexpectedVersionId,
            Err(other @ (Refused::NoRoom | Refused::NoAuth)) => return Err(failure_of(other)),
        };
        Ok(DeleteResponse { status: status.into() })
    }

    fn apply_delete_range(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        range: &DeleteRangeRequest,
    ) -> Result<(), Failure> {
        self.zxid += 1;
        txn.zxid = self.zxid;
        let (from, to) = bounds(range.start_inclusive.clone(), range.end_exclusive.clone(), false);
        let records = self.tree.records(as_str(&from), as_str(&to));
        let keys: Vec<String> = records.map(|(key, _)| key.to_owned()).collect();
        // The range stands for its records where subscribers are told.
        let told = txn.changes.len();
        for key in keys {
            self.tree.delete_record(txn, identities, &key).map_err(failure_of)?;
        }
        txn.changes.truncate(told);
        Ok(())
    }

    /// The next key of a sequence: the numbers of the last one, each with what is to be added.
    fn next_in_sequence(&self, prefix: &str, deltas: &[u64]) -> Result<String, Failure> {
        if deltas.first() == Some(&0) {
            return Err(Failure::Invalid("oxia: sequential key operation requires first delta do be > 0"));
        }
        if deltas.len() > SEQUENCES_MAX {
            return Err(Failure::Invalid("a sequential key has at most 16 numbers"));
        }
        let end = format!("{prefix}-{:020}", u64::MAX);
        let last = self.tree.records(Bound::Unbounded, Bound::Excluded(&end)).next_back();
        let last = last.and_then(|(key, _)| key.strip_prefix(prefix)).unwrap_or_default();
        let mut numbers = last.split('-').skip(1);
        let mut key = prefix.to_owned();
        for delta in deltas {
            let number = match numbers.next() {
                Some(number) => number.parse::<u64>().map_err(|_| {
                    Failure::Invalid("the last key of the sequence does not end with numbers")
                })?,
                None => 0,
            };
            let next = number.checked_add(*delta).ok_or(Failure::Invalid("the sequence is at its end"))?;
            key.push_str(&format!("-{next:020}"));
        }
        match numbers.next() {
            None => Ok(key),
            Some(_) => Err(Failure::Invalid("oxia: sequential key operation missing some sequence deltas")),
        }
    }
}

/// Refuses versions and counts that no migration may choose.
fn check_overrides(put: &PutRequest) -> Result<(), Failure> {
    // Conditions use negative versions for a record that does not exist.
    if put.override_version_id.is_some_and(|version_id| version_id < 0) {
        return Err(Failure::Invalid("the version of a record is not negative"));
    }
    if put.override_modifications_count.is_some_and(|count| !(0..=CHOSEN_COUNT_MAX).contains(&count)) {
        return Err(Failure::Invalid("the changes of a record are between 0 and 2^62"));
    }
    Ok(())
}

/// Each once: the index has one entry for a key and a record.
fn index_keys(wanted: Vec<SecondaryIndex>) -> Option<Arc<[IndexKey]>> {
    let mut keys: Vec<(String, String)> =
        wanted.into_iter().map(|wanted| (wanted.index_name, wanted.secondary_key)).collect();
    keys.sort();
    keys.dedup();
    let keys = keys.into_iter().map(|(index, key)| IndexKey { index: index.into(), key: key.into() });
    Some(keys.collect::<Arc<[IndexKey]>>()).filter(|keys| !keys.is_empty())
}

fn failure_of(refused: Refused) -> Failure {
    match refused {
        Refused::NoRoom => Failure::NoRoom,
        Refused::NoAuth => Failure::NotAllowed,
        Refused::NotFound | Refused::UnexpectedVersion => unreachable!("the caller has looked"),
    }
}
