//! Which bookies take part in tiering, as their registrations say.
//!
//! # Invariants
//! 1. A registration that changed, or may have changed, is read again.
//! 2. A registration that cannot be read counts as none, because the bookie may have a tier.
//!
//! # Limits     remembered: the registered bookies among those of earlier calls

use std::collections::HashMap;

use bindery_metadata::StoreError;
use bindery_metadata::layout::Registration;
use bindery_metadata::store::Watch;
use bindery_types::BookieId;
use parking_lot::Mutex;

/// Name of the property by which a bookie advertises the operation.
pub const TIER_PROPERTY: &str = "bindery.tier";
/// Its value: the version of the operation.
pub const TIER_PROPERTY_VALUE: &str = "1";

/// Whether a bookie keeps the last reconciled entries of its ledgers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierSupport {
    /// It does, and may drop its copies of what is in object storage.
    Supported,
    /// It keeps everything: it has no tier configured, or is another program.
    KeepsEverything,
    /// Not known now: it is not registered, or its registration cannot be read.
    NotRegistered,
}

/// What a registered bookie advertises, and the watch that says when that is old.
struct Advertised {
    support: TierSupport,
    watch: Watch,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Supports {
    known: Mutex<HashMap<BookieId, Advertised>>,
}

impl Supports {
    /// Cancelled, it leaves nothing behind.
    pub async fn of(
        &self,
        registration: &Registration,
        bookie: &BookieId,
    ) -> Result<TierSupport, StoreError> {
        {
            let mut known = self.known.lock();
            if let Some(advertised) = known.get_mut(bookie) {
                // Invariant 1.
                match advertised.watch.has_fired() {
                    true => drop(known.remove(bookie)),
                    false => return Ok(advertised.support),
                }
            }
        }
        let Some((info, watch)) = registration.service_info_and_watch(bookie).await? else {
            return Ok(TierSupport::NotRegistered);
        };
        let support = match info {
            Ok(info) => match info.properties.get(TIER_PROPERTY).map(String::as_str) {
                Some(TIER_PROPERTY_VALUE) => TierSupport::Supported,
                Some(_) | None => TierSupport::KeepsEverything,
            },
            // Invariant 2.
            Err(_) => TierSupport::NotRegistered,
        };
        self.known.lock().insert(bookie.clone(), Advertised { support, watch });
        Ok(support)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::store::{CreateMode, MetadataStore};
    use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, layout};
    use bytes::Bytes;

    use super::*;

    /// Invariants 1 and 2. A bookie of which nothing is known may have let copies go, so "it keeps everything" would be the wrong guess.
    #[tokio::test]
    async fn a_registration_that_does_not_decode_counts_as_none() {
        let metadata = MemoryCluster::new();
        let store = metadata.open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(metadata.open()), "/ledgers", None).await.unwrap();
        let (registration, supports) = (layout.registration(), Supports::default());
        let bookie = BookieId::new("b1").unwrap();
        let support = async || supports.of(&registration, &bookie).await.unwrap();
        assert_eq!(support().await, TierSupport::NotRegistered);

        let mut info = BookieServiceInfo::of_bookie(("h1", 3181), None);
        let nothing_said = info.encode();
        info.properties.insert(TIER_PROPERTY.into(), TIER_PROPERTY_VALUE.into());
        let with_tier = info.encode();
        let cut_short = with_tier[..with_tier.len() - 1].to_vec();
        let path = "/ledgers/available/b1";
        store.create(path, Bytes::from(cut_short.clone()), CreateMode::Ephemeral).await.unwrap();
        // Asked twice: once read, once remembered.
        for _ in 0..2 {
            assert_eq!(support().await, TierSupport::NotRegistered);
        }
        for (bytes, expected) in [
            (with_tier, TierSupport::Supported),
            (b"\xff\xff".to_vec(), TierSupport::NotRegistered),
            (nothing_said, TierSupport::KeepsEverything),
            (cut_short, TierSupport::NotRegistered),
        ] {
            store.set(path, Bytes::from(bytes), None).await.unwrap();
            for _ in 0..2 {
                assert_eq!(support().await, expected);
            }
        }
        store.delete(path, None).await.unwrap();
        assert_eq!(support().await, TierSupport::NotRegistered);
    }
}
