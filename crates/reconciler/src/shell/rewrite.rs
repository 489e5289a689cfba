//! Does what the upkeep decided about objects that are rewritten: reads footers, asks the catalogue and the metadata store, builds.
//!
//! # Limits     footers of one group of sources, as the core bounds them; the windows of a store that reads ahead; extents in one question to
//! the catalogue: [`EXTENTS_ASKED`], so that others have their turn; requests at once: [`REQUESTS_AT_ONCE`]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::layout::LedgerError;
use bindery_tiering::ObjectId;
use bindery_tiering::footers::Footers;
use bindery_tiering::object::Footer;
use bindery_types::tier::ObjectRef;
use bindery_types::{LedgerId, LedgerMetadata};
use futures_util::StreamExt;
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

/// The metadata of a ledger, as far as there is one.
enum FoundMetadata {
    Metadata(Arc<LedgerMetadata>),
    Absent,
    /// What is there is no metadata: a person has to mend it.
    Malformed(String),
    /// The metadata store does not answer.
    Unknown(String),
}

/// Metadata of ledgers.
type Metadata = BTreeMap<LedgerId, FoundMetadata>;

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

/// Ledgers of the extents at these places in a footer.
fn ledgers_at((footer, places): &(Arc<Footer>, Vec<usize>)) -> impl Iterator<Item = LedgerId> {
    places.iter().map(|place| footer.extents[*place].ledger)
}

/// The extents at these places in a footer, with the metadata of their ledgers.
fn live_extents(
    footer: &Footer,
    places: &[usize],
    metadata: &Metadata,
    is_partial: bool,
) -> Result<Vec<LiveExtent>, String> {
    let mut live = Vec::with_capacity(places.len());
    for extent in places.iter().map(|place| &footer.extents[*place]) {
        let ledger = extent.ledger;
        match metadata.get(&ledger) {
            Some(FoundMetadata::Metadata(metadata)) => live.push(LiveExtent {
                ledger,
                first: extent.first,
                last: extent.last,
                bytes: extent.body_bytes,
                metadata: metadata.clone(),
            }),
            Some(FoundMetadata::Unknown(why)) => {
                return Err(format!("the metadata of ledger {ledger}: {why}"));
            }
            Some(FoundMetadata::Absent | FoundMetadata::Malformed(_)) | None if is_partial => {}
            Some(FoundMetadata::Malformed(why)) => {
                return Err(format!("the metadata of ledger {ledger}: {why}"));
            }
            Some(FoundMetadata::Absent) | None => {
                return Err(format!("ledger {ledger} is about to leave the catalogue"));
            }
        }
    }
    Ok(live)
}

impl Hands {
    pub(super) async fn footer(&self, object: &ObjectRef) -> Result<Arc<Footer>, SourceError> {
        let footers = Footers::new(self.common.store.clone(), self.common.cluster);
        let bytes = object.length_bytes.saturating_sub(object.footer_offset);
        self.reader.charge(bytes).await;
        self.common.meter.got(bytes);
        match timeout(FOOTER_TIMEOUT, footers.of(object)).await {
            Ok(read) => read.map_err(|error| source_error(&error)),
            Err(_) => {
                let why = format!("its footer cannot be read within {FOOTER_TIMEOUT:?}");
                Err(SourceError { why, fault: Fault::Passing })
            }
        }
    }

    async fn metadata(&self, ledgers: BTreeSet<LedgerId>) -> Result<Metadata, String> {
        let of_metadata = self.layout.ledgers();
        let cluster_ms = self.layout.made_ms().await.map_err(|error| error.to_string())?;
        let read = futures_util::stream::iter(ledgers).map(|ledger| {
            let of_metadata = &of_metadata;
            async move {
                let found = match of_metadata.get(ledger).await {
                    Ok(stored) => {
                        let creation = stored.creation(cluster_ms);
                        let mut metadata = stored.metadata;
                        // The new object keeps it: another ledger that gets the id is told from this one.
                        metadata.created_ms = Some(creation.ms);
                        FoundMetadata::Metadata(Arc::new(metadata))
                    }
                    Err(LedgerError::NotFound(_)) => FoundMetadata::Absent,
                    Err(error @ LedgerError::Malformed { .. }) => FoundMetadata::Malformed(error.to_string()),
                    Err(error) => FoundMetadata::Unknown(error.to_string()),
                };
                (ledger, found)
            }
        });
        Ok(read.buffer_unordered(REQUESTS_AT_ONCE).collect().await)
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

    /// The live extents of objects: those that the catalogue refers to. Those of a ledger without metadata are left out, or an error of their
    /// object.
    pub(super) async fn survey(&self, objects: Vec<ObjectRef>, is_partial: bool) -> Vec<Survey> {
        let passing = |why| SourceError { why, fault: Fault::Passing };
        let mut found = Vec::with_capacity(objects.len());
        for object in objects {
            let live = match self.kept_footer(&object).await {
                Ok(footer) => {
                    self.live_places(&object, &footer).await.map(|live| (footer, live)).map_err(passing)
                }
                Err(error) => Err(error),
            };
            found.push((object, live));
        }
        // Objects that are joined have the same ledgers.
        let read = found.iter().filter_map(|(_, live)| live.as_ref().ok());
        let ledgers: BTreeSet<LedgerId> = read.flat_map(ledgers_at).collect();
        let metadata = self.metadata(ledgers).await.map_err(passing);
        let survey = |live: Result<(Arc<Footer>, Vec<usize>), SourceError>| {
            let (footer, live) = live?;
            live_extents(&footer, &live, metadata.as_ref().map_err(Clone::clone)?, is_partial)
                .map_err(passing)
        };
        found.into_iter().map(|(object, live)| (object, survey(live))).collect()
    }

    /// Places in the footer of the extents that the catalogue refers to.
    async fn live_places(&self, object: &ObjectRef, footer: &Footer) -> Result<Vec<usize>, String> {
        let mut live = Vec::new();
        for (from, extents) in (0..).step_by(EXTENTS_ASKED).zip(footer.extents.chunks(EXTENTS_ASKED)) {
            let places = extents.iter().map(|extent| (extent.ledger, extent.first)).collect();
            let asked = ask(&self.asks, |reply| Ask::Live(object.id, places, reply));
            let are_live = asked.await.unwrap_or_else(ended)?;
            live.extend((from..).zip(are_live).filter(|(_, is_live)| *is_live).map(|(place, _)| place));
        }
        Ok(live)
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
        let (store, extents) = (self.store_with_read_ahead(), Arc::new(extents));
        let source = Source::Objects { store, extents, unread: unread.clone() };
        let built = build(self.common.clone(), source, order.order, limits, abandon).await;
        let unread = std::mem::take(&mut *unread.lock());
        (built, unread.into_iter().collect())
    }

    /// The extents of the order, looked up in the footers of their objects.
    async fn sources(&self, order: &RewriteOrder) -> Result<Vec<Vec<ExtentSource>>, (ObjectId, SourceError)> {
        let mut sources = Vec::with_capacity(order.pieces.len());
        for (wanted, pieces) in order.order.ledgers.iter().zip(&order.pieces) {
            let mut extents = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let footer = self.kept_footer(&piece.object).await;
                let footer = footer.map_err(|error| (piece.object.id, error))?;
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
