//! RECONCILE_LEDGERS: the messages as domain types and back.
//!
//! # Invariants
//! 1. What decodes has valid ids, extents that ascend without gaps and end at the ledger's last reconciled entry, and every
//!    object it names. A ledger occurs once.
//! 2. A message that violates this is refused as a whole: no tierer sends one.

use bindery_types::tier::{ClusterId, ObjectId, ObjectRef, Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};

use super::proto::{self, reconcile_ledgers_request as message};

/// A request in domain types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconcile {
    /// The cluster that the tierer works for.
    pub cluster: ClusterId,
    /// Each ledger once, in the order of the request.
    pub ledgers: Vec<Reconciliation>,
}

/// A request that no tierer sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("RECONCILE_LEDGERS: {0}")]
pub struct InvalidReconcile(pub &'static str);

impl Reconcile {
    /// The message to send. Each object is written once.
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
        proto::ReconcileLedgersRequest {
            cluster: Bytes::copy_from_slice(self.cluster.as_bytes()),
            objects,
            ledgers,
        }
    }

    /// Checks a message (invariant 1).
    pub fn from_message(request: &proto::ReconcileLedgersRequest) -> Result<Reconcile, InvalidReconcile> {
        let cluster = <[u8; 16]>::try_from(&request.cluster[..])
            .map_err(|_| InvalidReconcile("the cluster's id is not 16 bytes long"))?;
        let objects = request.objects.iter().map(object).collect::<Result<Vec<_>, _>>()?;
        let mut seen = HashSet::with_capacity(request.ledgers.len());
        let mut ledgers = Vec::with_capacity(request.ledgers.len());
        for entry in &request.ledgers {
            let reconciliation = reconciliation(entry, &objects)?;
            if !seen.insert(reconciliation.ledger) {
                return Err(InvalidReconcile("a ledger occurs twice"));
            }
            ledgers.push(reconciliation);
        }
        Ok(Reconcile { cluster: ClusterId::from_bytes(cluster), ledgers })
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
    if message.last_reconciled < -1 {
        return Err(InvalidReconcile("a last reconciled entry is below -1"));
    }
    let last = EntryId::new(message.last_reconciled);
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
    Ok(Reconciliation { ledger, last, extents })
}
