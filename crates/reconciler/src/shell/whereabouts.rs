//! Where the entries of an object that is to go are by now: what its footer, the catalogue, the metadata store and other objects say.
//!
//! # Data flow
//! ```text
//! footer, some of its extents ─► catalogue: extents that cover each range ─► are their objects there? ─► compared with the footer's tables
//!                                └─► ledgers that it does not have ─► metadata store: whether they are there
//! ```
//!
//! # Invariants
//! 1. A ledger counts as absent when the catalogue and the metadata store do not have it, asked in this order: a ledger is in metadata before
//!    anything of it is in the catalogue. It is absent, too, when another one has its id, in metadata and in the catalogue, by the time or the
//!    token of its creation. Where neither is noted, the other one is taken for it: the object stays until that one is deleted.
//! 2. Ranges that the catalogue covers are compared ([`Covers`]); the others are named as they are.
//! 3. What may pass, like a store that does not answer, is an error of the whole answer, never "absent" or "the same".
//!
//! # Limits     the footer of one object, between two windows of its extents; of those that took them over what [`Covers`] keeps, and the windows of one store that reads
//! ahead; extents in one question to the catalogue: [`EXTENTS_ASKED`];
//! comparisons at once: [`REQUESTS_AT_ONCE`], each with two tables and two blocks

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bindery_metadata::codec::ledger as ledger_codec;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_tiering::ObjectId;
use bindery_tiering::cover::{CoverError, Covers};
use bindery_tiering::footers::FooterError;
use bindery_tiering::object::{Extent, Footer};
use bindery_tiering::store::Store;
use bindery_types::tier::{ObjectRef, TierExtent};
use bindery_types::{LedgerId, LedgerMetadata};
use futures_util::{FutureExt, StreamExt};

use super::desk::{Ask, Covering};
use super::rewrite::EXTENTS_ASKED;
use super::run::{ask, ended};
use super::upkeep::{Hands, REQUESTS_AT_ONCE};
use crate::core::upkeep::{Fault, Moved, SourceError, Whereabouts};

/// What the catalogue knows of a ledger.
#[derive(Debug, Clone, Copy)]
enum CatalogueLedger {
    /// It does not have the ledger.
    Absent,
    /// It has it, with the time of its creation as far as that is known.
    Present { created_ms: Option<i64> },
}

/// Ledgers that are gone.
#[derive(Debug, Default)]
struct Gone {
    /// Neither the catalogue nor the metadata store has them.
    absent: BTreeSet<LedgerId>,
    /// Other ledgers have their ids.
    reborn: BTreeSet<LedgerId>,
}

/// The metadata of a ledger as the footer has it, where it can be read.
fn noted(footer: &Footer, ledger: LedgerId) -> Option<LedgerMetadata> {
    ledger_codec::decode(footer.ledgers.get(&ledger)?).ok()
}

/// Whether the ledger of this metadata is another one than the one that the footer noted: created at another time, or by another creation.
fn is_another(stored: &StoredLedger, cluster_ms: Option<i64>, noted: Option<&LedgerMetadata>) -> bool {
    let Some(noted) = noted else { return false };
    let tokens = stored.metadata.creation_token.zip(noted.creation_token);
    stored.creation(cluster_ms).is_anothers(noted.created_ms)
        || tokens.is_some_and(|(one, other)| one != other)
}

impl Hands {
    /// Where extents of an object are by now. `places` are their indexes in its footer.
    pub(super) async fn where_to(
        &self,
        object: ObjectRef,
        places: Vec<u32>,
    ) -> Result<Whereabouts, SourceError> {
        let footer = self.kept_footer(&object).await?;
        let passing = |why| SourceError { why, fault: Fault::Passing };
        let of_place = |place: u32| {
            let extent = footer.extents.get(place as usize);
            extent.ok_or_else(|| SourceError {
                why: format!("its footer has {} extents only", footer.extents.len()),
                fault: Fault::Damage,
            })
        };
        let extents: Vec<&Extent> = places.into_iter().map(of_place).collect::<Result<_, _>>()?;
        let mut covered = self.covering(&extents).await.map_err(passing)?;
        let objects: BTreeMap<ObjectId, u64> = covered
            .iter()
            .flatten()
            .flat_map(|covering| &covering.extents)
            .map(|extent| (extent.object.id, extent.object.length_bytes))
            .collect();
        // The catalogue alone is no proof: the objects that it names have to be there.
        let missing = self.not_there(objects).await.map_err(passing)?;
        for covering in covered.iter_mut().flatten() {
            covering.extents.retain(|extent| missing.binary_search(&extent.object.id).is_err());
        }
        let covers = self.covers();
        let mut compared = Vec::with_capacity(covered.len());
        // The items are owned: the compiler does not find futures of borrowed ones to be `Send`.
        let wanted: Vec<(usize, Option<Covering>)> = covered.into_iter().enumerate().collect();
        let looks = futures_util::stream::iter(wanted)
            .map(|(at, covering)| self.compare(&covers, &object, &footer, extents[at], covering).boxed());
        let mut looks = looks.buffered(REQUESTS_AT_ONCE);
        while let Some(look) = looks.next().await {
            compared.push(look?);
        }
        drop(looks);
        // Ledgers that may be gone, since others do not have what the footer has of them.
        let is_doubtful = |moved: &Moved| !moved.is_covered() || moved.differs.is_some();
        let doubtful: BTreeMap<LedgerId, CatalogueLedger> = compared
            .iter()
            .filter(|(moved, _)| is_doubtful(moved))
            .map(|(moved, known)| (moved.ledger, *known))
            .collect();
        let Gone { absent, reborn } = self.gone(&footer, &doubtful).await.map_err(passing)?;
        let moved = compared.into_iter().map(|(moved, _)| moved);
        let moved = moved
            .filter(|moved| !absent.contains(&moved.ledger) && !reborn.contains(&moved.ledger))
            .collect();
        let extents = footer.extents.len();
        Ok(Whereabouts { extents, moved, absent: absent.into_iter().collect() })
    }

    /// Compares one extent with what the catalogue has of its range; returns what the catalogue knows of the ledger, too.
    async fn compare(
        &self,
        covers: &Covers,
        object: &ObjectRef,
        footer: &Footer,
        extent: &Extent,
        covering: Option<Covering>,
    ) -> Result<(Moved, CatalogueLedger), SourceError> {
        let Extent { ledger, first, last, .. } = *extent;
        let (extents, known) = match covering {
            Some(Covering { extents, created_ms }) => (extents, CatalogueLedger::Present { created_ms }),
            None => (Vec::new(), CatalogueLedger::Absent),
        };
        let mut moved = Moved { ledger, first, last, extents, differs: None };
        if moved.is_covered() {
            moved.differs = self.difference(covers, object, footer, extent, &moved.extents).await?;
        }
        Ok((moved, known))
    }

    /// Objects that go one after the other were taken over by the same others.
    fn covers(&self) -> Arc<Covers> {
        let mut kept = self.kept.lock();
        let new = || Arc::new(Covers::new(self.store_with_read_ahead(), self.common.cluster));
        kept.covers.get_or_insert_with(new).clone()
    }

    /// A store that reads ahead, at the rate that holds for bookies, too, and counts its requests.
    pub(super) fn store_with_read_ahead(&self) -> Store {
        let (meter, reader) = (self.common.meter.clone(), self.reader.clone());
        self.common.store.with_read_ahead(move |bytes| {
            let (meter, reader) = (meter.clone(), reader.clone());
            async move {
                reader.charge(bytes).await;
                meter.got(bytes);
            }
            .boxed()
        })
    }

    /// The footer of an object that is rewritten, or that is to go: kept while actions on it follow each other.
    pub(super) async fn kept_footer(&self, object: &ObjectRef) -> Result<Arc<Footer>, SourceError> {
        let kept = self.kept.lock().footers.get(&object.id).cloned();
        if let Some((_, footer)) = kept.filter(|(kept, _)| kept == object) {
            return Ok(footer);
        }
        let footer = self.footer(object).await?;
        self.kept.lock().footers.insert(object.id, (*object, footer.clone()));
        Ok(footer)
    }

    /// For each extent what the catalogue has of its range; `None`: it does not have the ledger.
    async fn covering(&self, extents: &[&Extent]) -> Result<Vec<Option<Covering>>, String> {
        let mut covered = Vec::with_capacity(extents.len());
        for extents in extents.chunks(EXTENTS_ASKED) {
            let ranges = extents.iter().map(|extent| (extent.ledger, extent.first, extent.last)).collect();
            let found = ask(&self.asks, |reply| Ask::Covering(ranges, reply)).await.unwrap_or_else(ended)?;
            covered.extend(found);
        }
        Ok(covered)
    }

    /// Which of these ledgers are gone (invariant 1).
    async fn gone(
        &self,
        footer: &Footer,
        doubtful: &BTreeMap<LedgerId, CatalogueLedger>,
    ) -> Result<Gone, String> {
        let mut gone = Gone::default();
        if doubtful.is_empty() {
            return Ok(gone);
        }
        let ledgers = self.layout.ledgers();
        let cluster_ms = self.layout.made_ms().await.map_err(|error| error.to_string())?;
        let all: Vec<LedgerId> = doubtful.keys().copied().collect();
        let found = ledgers.exist(&all).await.map_err(|error| error.to_string())?;
        for (ledger, known) in doubtful {
            let stored = match found.contains(ledger) {
                true => ledgers.get(*ledger).await,
                false => Err(LedgerError::NotFound(*ledger)),
            };
            match (stored, *known) {
                (Err(LedgerError::NotFound(_)), CatalogueLedger::Absent) => drop(gone.absent.insert(*ledger)),
                // It is about to leave the catalogue, with proof (T17).
                (Err(LedgerError::NotFound(_)), CatalogueLedger::Present { .. }) => {}
                // It is there, whatever it is.
                (Err(LedgerError::Malformed { .. }), _) => {}
                (Err(error), _) => return Err(error.to_string()),
                (Ok(stored), known) => {
                    // The catalogue may still have the one that is gone: then it needs its proof.
                    let is_catalogues = match known {
                        CatalogueLedger::Absent => true,
                        CatalogueLedger::Present { created_ms } => {
                            !stored.creation(cluster_ms).is_anothers(created_ms)
                        }
                    };
                    if is_catalogues && is_another(&stored, cluster_ms, noted(footer, *ledger).as_ref()) {
                        gone.reborn.insert(*ledger);
                    }
                }
            }
        }
        Ok(gone)
    }

    /// In which way other objects have something else for the range of an extent; `None`: they have the same.
    async fn difference(
        &self,
        covers: &Covers,
        object: &ObjectRef,
        footer: &Footer,
        extent: &Extent,
        others: &[TierExtent],
    ) -> Result<Option<String>, SourceError> {
        let secret = noted(footer, extent.ledger).and_then(|noted| noted.secret);
        let digest_bytes = secret.map(|secret| secret.digest_type.size_bytes());
        let error = match covers.check(object, extent, others, digest_bytes).await {
            Ok(()) => return Ok(None),
            Err(error) => error,
        };
        let why = error.to_string();
        match error {
            CoverError::Read(FooterError::Store(_)) => Err(SourceError { why, fault: Fault::Passing }),
            CoverError::Read(
                FooterError::Object { object: of, .. } | FooterError::Other { object: of, .. },
            ) if of == object.id => Err(SourceError { why, fault: Fault::Damage }),
            CoverError::Read(_) | CoverError::Differs { .. } => Ok(Some(why)),
        }
    }
}
