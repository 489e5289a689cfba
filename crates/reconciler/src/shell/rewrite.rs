//! Does what the upkeep decided about objects that are rewritten: reads footers, asks the catalogue and the metadata store, builds.
//!
//! # Limits     footers of one object's sources: [`FOOTER_BYTES_TARGET`](bindery_tiering::object::FOOTER_BYTES_TARGET) or one footer; extents in one question to the catalogue:
//! [`EXTENTS_ASKED`], so that others have their turn; requests at once: [`REQUESTS_AT_ONCE`]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::layout::LedgerError;
use bindery_tiering::ObjectId;
use bindery_tiering::footers::Footers;
use bindery_tiering::object::{Extent, Footer};
use bindery_types::tier::ObjectRef;
use bindery_types::{LedgerId, LedgerMetadata};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::desk::Ask;
use super::object::{ExtentSource, Source, Unread, build, source_error};
use super::run::{ask, ended};
use super::upkeep::{Hands, REQUESTS_AT_ONCE};
use crate::assembly::Limits;
use crate::core::Built;
use crate::core::measure::BuildTimes;
use crate::core::upkeep::{Fault, LiveExtent, Orphan, RewriteOrder, SourceError, Survey};

/// Extents in one question to the catalogue.
pub(super) const EXTENTS_ASKED: usize = 256;
/// How long reading a footer may take.
const FOOTER_TIMEOUT: Duration = Duration::from_secs(75);

/// Metadata of ledgers; `None`: there is no such ledger.
type Metadata = BTreeMap<LedgerId, Option<Arc<LedgerMetadata>>>;

/// An object with a single source may exceed the limit for new objects, since the source may, and would never fit otherwise: its live
/// bytes are the limit instead. Ids are reserved for more than twice the time, too.
fn limits_for(order: &RewriteOrder, limits: Limits) -> Limits {
    let mut sources = order.pieces.iter().flatten().map(|piece| piece.object.id);
    let first = sources.next();
    let is_alone = sources.all(|source| Some(source) == first);
    Limits {
        target_bytes: if is_alone { u64::MAX } else { limits.target_bytes },
        time_max: limits.time_max * if order.has_more_time { 2 } else { 1 },
        ..limits
    }
}

impl Hands {
    pub(super) async fn footer(&self, object: &ObjectRef) -> Result<Arc<Footer>, SourceError> {
        let footers = Footers::new(self.common.store.clone(), self.common.cluster);
        self.common.meter.got(object.length_bytes.saturating_sub(object.footer_offset));
        match timeout(FOOTER_TIMEOUT, footers.of(object)).await {
            Ok(read) => read.map_err(|error| source_error(&error)),
            Err(_) => {
                let why = format!("its footer cannot be read within {FOOTER_TIMEOUT:?}");
                Err(SourceError { why, fault: Fault::Passing })
            }
        }
    }

    async fn metadata(&self, ledgers: impl Iterator<Item = LedgerId>) -> Result<Metadata, String> {
        let of_metadata = self.layout.ledgers();
        let cluster_ms = self.layout.made_ms().await.map_err(|error| error.to_string())?;
        // In the order of an object's footer, so that those of one ledger are adjacent.
        let mut ledgers: Vec<LedgerId> = ledgers.collect();
        ledgers.dedup();
        let read = futures_util::stream::iter(ledgers).map(|ledger| {
            let of_metadata = &of_metadata;
            async move {
                match of_metadata.get(ledger).await {
                    Ok(stored) => {
                        let creation = stored.creation(cluster_ms);
                        let mut metadata = stored.metadata;
                        // The new object keeps it: another ledger that gets the id is told from this one.
                        metadata.created_ms = Some(creation.ms);
                        Ok((ledger, Some(Arc::new(metadata))))
                    }
                    Err(LedgerError::NotFound(_)) => Ok((ledger, None)),
                    Err(error) => Err(format!("the metadata of ledger {ledger}: {error}")),
                }
            }
        });
        read.buffer_unordered(REQUESTS_AT_ONCE).try_collect().await
    }

    /// Footers of objects that have no row, of these lengths.
    pub(super) async fn read_footers(
        &self,
        objects: Vec<(ObjectId, u64)>,
    ) -> Vec<(ObjectId, Result<Orphan, SourceError>)> {
        let read = futures_util::stream::iter(objects).map(|(object, length_bytes)| async move {
            let footers = Footers::new(self.common.store.clone(), self.common.cluster);
            self.common.meter.get();
            let found = match timeout(FOOTER_TIMEOUT, footers.of_found(object, length_bytes)).await {
                Ok(found) => found.map_err(|error| source_error(&error)),
                Err(_) => {
                    let why = format!("object {object}: its footer cannot be read within {FOOTER_TIMEOUT:?}");
                    Err(SourceError { why, fault: Fault::Passing })
                }
            };
            let orphan = found.map(|(object, footer)| {
                let mut ledgers: Vec<LedgerId> = footer.extents.iter().map(|extent| extent.ledger).collect();
                ledgers.dedup();
                let extents = u32::try_from(footer.extents.len()).unwrap_or(u32::MAX);
                Orphan { object, extents, ledgers }
            });
            (object, orphan)
        });
        read.buffer_unordered(REQUESTS_AT_ONCE).collect().await
    }

    /// The live extents of objects: those that the catalogue refers to.
    pub(super) async fn survey(&self, objects: Vec<ObjectRef>) -> Vec<Survey> {
        let mut found = Vec::with_capacity(objects.len());
        for object in objects {
            found.push((object, self.live_extents(&object).await));
        }
        found
    }

    async fn live_extents(&self, object: &ObjectRef) -> Result<Vec<LiveExtent>, SourceError> {
        let footer = self.footer(object).await?;
        let live = self.live_extents_of(object, &footer).await;
        live.map_err(|why| SourceError { why, fault: Fault::Passing })
    }

    async fn live_extents_of(&self, object: &ObjectRef, footer: &Footer) -> Result<Vec<LiveExtent>, String> {
        let mut live = Vec::new();
        for extents in footer.extents.chunks(EXTENTS_ASKED) {
            let places = extents.iter().map(|extent| (extent.ledger, extent.first)).collect();
            let asked = ask(&self.asks, |reply| Ask::Live(object.id, places, reply));
            let are_live = asked.await.unwrap_or_else(ended)?;
            live.extend(
                extents.iter().zip(are_live).filter(|(_, is_live)| *is_live).map(|(extent, _)| extent),
            );
        }
        let metadata = self.metadata(live.iter().map(|extent| extent.ledger)).await?;
        let of_extent = |extent: &&Extent| {
            let metadata = metadata.get(&extent.ledger).cloned().flatten();
            let metadata = metadata
                .ok_or_else(|| format!("ledger {} is about to leave the catalogue", extent.ledger))?;
            Ok(LiveExtent {
                ledger: extent.ledger,
                first: extent.first,
                last: extent.last,
                bytes: extent.body_bytes,
                metadata,
            })
        };
        live.iter().map(of_extent).collect()
    }

    /// Builds and uploads an object, unless `abandon` fires. Also returns the sources that could not be read.
    pub(super) async fn rewrite(
        &self,
        order: RewriteOrder,
        abandon: oneshot::Receiver<()>,
    ) -> (Built, Vec<(ObjectId, SourceError)>) {
        let extents = match self.sources(&order).await {
            Ok(extents) => extents,
            Err((object, error)) => {
                let outcome = Err(format!("object {object}: {}", error.why));
                let built = Built { outcome, left: Vec::new(), times: BuildTimes::default() };
                return (built, vec![(object, error)]);
            }
        };
        let unread = Unread::default();
        let limits = limits_for(&order, self.rewrite_limits);
        let (reader, extents) = (self.reader.clone(), Arc::new(extents));
        let source = Source::Objects { reader, extents, unread: unread.clone() };
        let built = build(self.common.clone(), source, order.order, limits, abandon).await;
        let unread = std::mem::take(&mut *unread.lock());
        (built, unread.into_iter().collect())
    }

    /// The extents of the order, looked up in the footers of their objects.
    async fn sources(&self, order: &RewriteOrder) -> Result<Vec<Vec<ExtentSource>>, (ObjectId, SourceError)> {
        let mut footers: BTreeMap<ObjectId, Arc<Footer>> = BTreeMap::new();
        let mut sources = Vec::with_capacity(order.pieces.len());
        for (wanted, pieces) in order.order.ledgers.iter().zip(&order.pieces) {
            let mut extents = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let footer = match footers.get(&piece.object.id) {
                    Some(footer) => footer.clone(),
                    None => {
                        let footer = self.footer(&piece.object).await;
                        let footer = footer.map_err(|error| (piece.object.id, error))?;
                        footers.entry(piece.object.id).or_insert(footer).clone()
                    }
                };
                let mut of_ledger = footer.extents_of(wanted.ledger);
                let extent =
                    of_ledger.find(|extent| (extent.first, extent.last) == (piece.first, piece.last));
                let extent = extent.ok_or_else(|| {
                    let why = format!("it has no extent of ledger {} there", wanted.ledger);
                    (piece.object.id, SourceError { why, fault: Fault::Damage })
                })?;
                extents.push((piece.object, Arc::new(extent.clone())));
            }
            sources.push(extents);
        }
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use bindery_types::EntryId;

    use super::*;
    use crate::core::BuildOrder;
    use crate::core::upkeep::Piece;

    #[test]
    fn one_source_alone_fits_however_long_it_is() {
        let piece = |n: u8| {
            let id = ObjectId::new(7, [n; 10]);
            let object = ObjectRef { id, length_bytes: 9, footer_offset: 8, footer_crc: 0, etag_crc: 0 };
            Piece { object, first: EntryId::FIRST, last: EntryId::FIRST }
        };
        let target = |pieces: Vec<Vec<Piece>>| {
            let order = BuildOrder { object: ObjectId::new(8, [0; 10]), ledgers: Vec::new() };
            limits_for(&RewriteOrder { order, pieces, has_more_time: false }, Limits::default()).target_bytes
        };
        assert_eq!(target(vec![vec![piece(1), piece(1)], vec![piece(1)]]), u64::MAX);
        assert_eq!(target(vec![vec![piece(1)], vec![piece(1), piece(2)]]), Limits::default().target_bytes);
    }
}
