//! RECONCILE_LEDGERS: the messages as domain types and back.
//!
//! # Data flow
//! ```text
//! tierer: Reconcile -> message -> frame        bookie: frame -> message -> Reconcile
//! bookie: Vec<Reconciled> -> results -> frame  tierer: frame -> results -> Vec<Reconciled>
//! tierer: message + secret -> proof            bookie: message without its proof + secret -> is_proven
//! ```
//!
//! # Invariants
//! 1. A decoded message has valid ids, extents that ascend without gaps and end at the ledger's last reconciled entry,
//!    and every object that it names. A ledger occurs once. Creation times are those of all its ledgers, or there are none.
//! 2. A message that violates this or a limit is refused as a whole: no tierer sends one.
//! 3. The memory that decoding takes is bounded by the bytes of the message, and those by [`MESSAGE_SIZE_BYTES_MAX`], before
//!    anything is decoded. The smallest part is a ledger of 6 bytes, for which 40 are kept, and up to 80 while the list of
//!    ledgers grows. Nothing of a message above [`LEDGERS_MAX`] or [`EXTENTS_MAX`] is kept in domain types.
//! 4. A proof is over every field that both sides know, and over the bookie's id. A bookie that does not know all fields of a message
//!    therefore refuses it.
//!
//! # Limits   [`LEDGERS_MAX`], [`EXTENTS_MAX`], [`MESSAGE_SIZE_BYTES_MAX`], which follows from the others

use bindery_types::tier::{ClusterId, ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{BookieId, EntryId, LedgerId, TierSecret};
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, HashSet};

use super::proto::{self, reconcile_ledgers_request as message, reconcile_ledgers_response as answer};
use crate::ErrorCode;

/// The most ledgers in one request.
pub const LEDGERS_MAX: usize = 4096;

/// The most extents in one request, of all its ledgers together.
pub const EXTENTS_MAX: usize = 4096;

/// The largest message that is decoded. A request within the other limits is smaller, whatever its numbers are.
pub const MESSAGE_SIZE_BYTES_MAX: usize = 512 * 1024;

/// The cluster's id, and whether ledgers are restored.
const CLUSTER_SIZE_BYTES: usize = 2 + 16 + 2;
/// Key and length of a proof, and the proof.
const PROOF_FIELD_SIZE_BYTES: usize = 2 + TierSecret::PROOF_SIZE_BYTES;
/// Key, length, two numbers of 10 bytes with theirs. Keys and lengths of extents are counted with them.
const LEDGER_SIZE_BYTES_MAX: usize = 1 + 3 + 2 * 11;
/// Key, length, two ids of 9 bytes and an index with theirs.
const EXTENT_SIZE_BYTES_MAX: usize = 2 + 2 * 10 + 6;
/// Of each ledger, in one packed field, whose key and length are counted with the ledgers'.
const CREATION_SIZE_BYTES: usize = 8;
/// Key, length, id, two numbers of 10 bytes, two checksums with theirs.
const OBJECT_SIZE_BYTES_MAX: usize = 2 + 18 + 2 * 11 + 2 * 5;

const _: () = assert!(
    CLUSTER_SIZE_BYTES
        + PROOF_FIELD_SIZE_BYTES
        + LEDGERS_MAX * (LEDGER_SIZE_BYTES_MAX + CREATION_SIZE_BYTES)
        + EXTENTS_MAX * (EXTENT_SIZE_BYTES_MAX + OBJECT_SIZE_BYTES_MAX)
        <= MESSAGE_SIZE_BYTES_MAX,
    "what the limits on counts admit can be sent"
);

// Invariant 3: the memory of each part, next to its least size on the wire.
const _: () = assert!(size_of::<message::Ledger>() <= 7 * 6, "a ledger has 6 bytes");
const _: () = assert!(size_of::<message::Extent>() <= 3 * 8, "an extent has 8 bytes");
const _: () = assert!(size_of::<message::Object>() <= 4 * 18, "an object has 18 bytes");

/// The creation time of a ledger whose own is not known.
const UNKNOWN: i64 = i64::MIN;

/// A request in domain types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconcile {
    /// The cluster that the tierer works for.
    pub cluster: ClusterId,
    /// Each ledger once, in the order of the request.
    pub ledgers: Vec<Reconciliation>,
    /// The bookie takes the ledgers over from object storage: it has no copies of them, and reads their entries from there. It
    /// refuses a ledger of which it has copies (`BadRequest`), and one that it must not have forgotten
    /// (`UnknownLedgerState`). Sending it again changes nothing. A bookie that does not know of this answers `NoLedger`.
    pub is_restore: bool,
}

/// A request that no tierer sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("RECONCILE_LEDGERS: {0}")]
pub struct InvalidReconcile(pub &'static str);

/// The answer of a bookie for one ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconciled {
    /// The ledger.
    pub ledger: LedgerId,
    /// Of this ledger alone. `Ok`: everything up to the entry of the request is durable here. `BadRequest`: the extents begin above
    /// the register. `NoLedger`: nothing of the ledger is here, so nothing has to be told.
    pub code: ErrorCode,
    /// The register after the request, durable; nothing when no entry is reconciled, or the bookie cannot tell.
    pub last: Option<EntryId>,
    /// In the answer to a question: up to this entry the bookie let its copies go and reads from object storage; nothing when there is no
    /// such entry, or the bookie does not say.
    pub let_go: Option<EntryId>,
}

impl Reconciled {
    /// The part of the message.
    pub fn into_message(self) -> answer::Result {
        answer::Result {
            ledger_id: self.ledger.get(),
            status: self.code.v3(),
            last_reconciled: EntryId::to_wire(self.last),
            let_go: self.let_go.map(EntryId::get),
        }
    }

    /// Checks a part of an answer.
    pub fn from_message(message: &answer::Result) -> Result<Reconciled, InvalidReconcile> {
        let ledger = LedgerId::new(message.ledger_id).ok_or(InvalidReconcile("a ledger's id is negative"))?;
        let code =
            ErrorCode::from_v3(message.status).ok_or(InvalidReconcile("a ledger's status is unknown"))?;
        let last = register(message.last_reconciled)?;
        let let_go = message.let_go.map(register).transpose()?.flatten();
        if let_go > last {
            return Err(InvalidReconcile("entries were let go above the last reconciled one"));
        }
        Ok(Reconciled { ledger, code, last, let_go })
    }
}

impl Reconcile {
    /// The message to send. Each object is written once. Whether the request is within the limits is the caller's check.
    pub fn into_message(self) -> proto::ReconcileLedgersRequest {
        let mut objects = Vec::new();
        let mut index_of = HashMap::new();
        let mut index = |object: &ObjectRef| {
            *index_of.entry(*object).or_insert_with(|| {
                objects.push(message::Object {
                    id: Bytes::copy_from_slice(object.id.as_bytes()),
                    length: object.length_bytes,
                    footer_offset: object.footer_offset,
                    footer_crc: object.footer_crc,
                    etag_crc: object.etag_crc,
                });
                u32::try_from(objects.len() - 1).expect("a frame has fewer objects than 2^32")
            })
        };
        let mut ledger = |entry: &Reconciliation| message::Ledger {
            ledger_id: entry.ledger.get(),
            last_reconciled: EntryId::to_wire(entry.last),
            extents: entry
                .extents
                .iter()
                .map(|extent| message::Extent {
                    first: extent.first.get(),
                    last: extent.last.get(),
                    object: index(&extent.object),
                })
                .collect(),
        };
        let ledgers = self.ledgers.iter().map(&mut ledger).collect();
        let created = match self.ledgers.iter().any(|ledger| ledger.created_ms.is_some()) {
            true => self.ledgers.iter().map(|ledger| ledger.created_ms.unwrap_or(UNKNOWN)).collect(),
            false => Vec::new(),
        };
        proto::ReconcileLedgersRequest {
            cluster: Bytes::copy_from_slice(self.cluster.as_bytes()),
            objects,
            ledgers,
            restore: self.is_restore.then_some(true),
            created,
            proof: None,
        }
    }

    /// Checks a message (invariant 1).
    pub fn from_message(request: &proto::ReconcileLedgersRequest) -> Result<Reconcile, InvalidReconcile> {
        let cluster = <[u8; 16]>::try_from(&request.cluster[..])
            .map_err(|_| InvalidReconcile("the cluster's id is not 16 bytes long"))?;
        if request.ledgers.len() > LEDGERS_MAX {
            return Err(InvalidReconcile("more ledgers than one request may carry"));
        }
        let extents = request.ledgers.iter().map(|entry| entry.extents.len()).sum::<usize>();
        if extents > EXTENTS_MAX || request.objects.len() > EXTENTS_MAX {
            return Err(InvalidReconcile("more extents or objects than one request may carry"));
        }
        let objects = request.objects.iter().map(object).collect::<Result<Vec<_>, _>>()?;
        let mut seen = HashSet::with_capacity(request.ledgers.len());
        let mut ledgers = Vec::with_capacity(request.ledgers.len());
        if !request.created.is_empty() && request.created.len() != request.ledgers.len() {
            return Err(InvalidReconcile("not as many creation times as ledgers"));
        }
        for (at, entry) in request.ledgers.iter().enumerate() {
            let mut reconciliation = reconciliation(entry, &objects)?;
            reconciliation.created_ms = request.created.get(at).copied().filter(|ms| *ms != UNKNOWN);
            if !seen.insert(reconciliation.ledger) {
                return Err(InvalidReconcile("a ledger occurs twice"));
            }
            ledgers.push(reconciliation);
        }
        Ok(Reconcile { cluster: ClusterId::from_bytes(cluster), ledgers, is_restore: request.restore() })
    }
}

impl proto::ReconcileLedgersRequest {
    /// Adds the proof that it comes from a tierer of the cluster, for a bookie whose peers do not log in.
    pub fn prove(&mut self, secret: &TierSecret, bookie: &BookieId) {
        self.proof = None;
        self.proof = Some(Bytes::copy_from_slice(&secret.prove(bookie, &self.encode_to_vec())));
    }

    /// Whether it comes from a tierer of the cluster and is meant for this bookie.
    pub fn is_proven(&self, secret: &TierSecret, bookie: &BookieId) -> bool {
        let proof = self.proof();
        if proof.len() != TierSecret::PROOF_SIZE_BYTES {
            return false;
        }
        // The field with the highest number is encoded last.
        let mut message = self.encode_to_vec();
        message.truncate(message.len() - PROOF_FIELD_SIZE_BYTES);
        secret.accepts(bookie, &message, proof)
    }
}

fn object(message: &message::Object) -> Result<ObjectRef, InvalidReconcile> {
    let id = <[u8; 16]>::try_from(&message.id[..])
        .map_err(|_| InvalidReconcile("an object's id is not 16 bytes long"))?;
    if message.footer_offset >= message.length {
        return Err(InvalidReconcile("an object's footer lies beyond its end"));
    }
    Ok(ObjectRef {
        id: ObjectId::from_bytes(id),
        length_bytes: message.length,
        footer_offset: message.footer_offset,
        footer_crc: message.footer_crc,
        etag_crc: message.etag_crc,
    })
}

fn reconciliation(
    message: &message::Ledger,
    objects: &[ObjectRef],
) -> Result<Reconciliation, InvalidReconcile> {
    let ledger = LedgerId::new(message.ledger_id).ok_or(InvalidReconcile("a ledger's id is negative"))?;
    let last = register(message.last_reconciled)?;
    let mut extents: Vec<TierExtent> = Vec::with_capacity(message.extents.len());
    for extent in &message.extents {
        let bounds = EntryId::new(extent.first).zip(EntryId::new(extent.last));
        let (first, last) = bounds
            .filter(|(first, last)| first <= last)
            .ok_or(InvalidReconcile("an extent is empty or negative"))?;
        if extents.last().is_some_and(|before| before.last.get().checked_add(1) != Some(first.get())) {
            return Err(InvalidReconcile("extents overlap or leave a gap"));
        }
        let object = usize::try_from(extent.object).ok().and_then(|index| objects.get(index));
        let object = *object.ok_or(InvalidReconcile("an extent names an object that is not listed"))?;
        extents.push(TierExtent { first, last, object });
    }
    if extents.last().map(|extent| extent.last) != last {
        return Err(InvalidReconcile("the extents do not end at the last reconciled entry"));
    }
    Ok(Reconciliation { ledger, last, extents, created_ms: None })
}

fn register(raw: i64) -> Result<Option<EntryId>, InvalidReconcile> {
    if raw < -1 {
        return Err(InvalidReconcile("a last reconciled entry is below -1"));
    }
    Ok(EntryId::new(raw))
}
