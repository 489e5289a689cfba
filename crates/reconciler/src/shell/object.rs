//! Builds one object: streams of ledgers in, parts out, as [`Assembly`] says. They come from bookies, or from other objects.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bindery_client::{LedgerView, ReadError, StoredBatch, StoredStream};
use bindery_tiering::catalogue::object_key;
use bindery_tiering::entries::{Entries, ExtentEntries};
use bindery_tiering::footers::FooterError;
use bindery_tiering::store::{Store, StoreError};
use bindery_tiering::{ClusterId, ObjectId};
use bindery_types::{EntryId, LedgerId};
use futures_util::future::{BoxFuture, FutureExt, OptionFuture};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use super::upload::Upload;
use super::{Common, views::Views};
use crate::assembly::{Assembly, Input, Limits, Output};
use crate::core::measure::BuildTimes;
use crate::core::upkeep::{Fault, SourceError};
use crate::core::{BuildOrder, Built};

/// Where entries come from.
#[derive(Clone)]
pub(super) enum Source {
    /// Bookies, through the client.
    Bookies(Arc<Views>),
    /// Extents of other objects, for each place in the order. The store reads ahead, at the rate that holds for bookies, too.
    Objects { store: Store, extents: Arc<Vec<Vec<ExtentSource>>>, unread: Unread },
}

/// Objects that could not be read, of those that go into one.
pub(super) type Unread = Arc<Mutex<BTreeMap<ObjectId, SourceError>>>;

/// Whether waiting helps.
pub(super) fn source_error(error: &FooterError) -> SourceError {
    let fault = match error {
        FooterError::Store(StoreError::NotFound { .. }) => Fault::Gone,
        FooterError::Store(_) => Fault::Passing,
        FooterError::Object { .. } | FooterError::Other { .. } => Fault::Damage,
    };
    SourceError { why: error.to_string(), fault }
}

/// An extent to be read.
pub(super) type ExtentSource = (bindery_types::tier::ObjectRef, Arc<bindery_tiering::object::Extent>);

/// One that is open.
enum Stream {
    Ledger(StoredStream),
    Extents(Box<ExtentStream>),
}

/// Extents of objects, one after the other.
struct ExtentStream {
    store: Store,
    cluster: ClusterId,
    open: Option<(ObjectId, ExtentEntries)>,
    rest: VecDeque<ExtentSource>,
    unread: Unread,
}

/// What it gave.
enum Batch {
    Stored(StoredBatch),
    Block(Entries),
}

impl Stream {
    async fn open(
        common: &Arc<Common>,
        source: &Source,
        index: usize,
        (ledger, first, last): (LedgerId, EntryId, EntryId),
    ) -> Result<Stream, ReadError> {
        match source {
            Source::Bookies(views) => {
                let view: LedgerView = views.get(ledger).await?;
                Ok(Stream::Ledger(view.read(first, last)))
            }
            Source::Objects { store, extents, unread } => {
                let rest = extents.get(index).cloned().unwrap_or_default().into();
                let (store, unread) = (store.clone(), unread.clone());
                let cluster = common.cluster;
                let stream = ExtentStream { store, cluster, open: None, rest, unread };
                Ok(Stream::Extents(Box::new(stream)))
            }
        }
    }

    async fn next(&mut self) -> Option<Result<Batch, String>> {
        match self {
            Stream::Ledger(stream) => {
                let next = stream.next().await?;
                Some(next.map(Batch::Stored).map_err(|error| error.to_string()))
            }
            Stream::Extents(stream) => Some(stream.next().await?.map(Batch::Block)),
        }
    }
}

impl ExtentStream {
    /// The next block. An object that cannot be read is noted.
    async fn next(&mut self) -> Option<Result<Entries, String>> {
        loop {
            if let Some((object, entries)) = &mut self.open
                && let Some(next) = entries.next().await
            {
                return Some(next.map_err(|error: FooterError| {
                    self.unread.lock().insert(*object, source_error(&error));
                    error.to_string()
                }));
            }
            let (object, extent) = self.rest.pop_front()?;
            let entries = ExtentEntries::new(self.store.clone(), self.cluster, object, extent);
            self.open = Some((object.id, entries));
        }
    }
}

/// What a read gave: its stream comes back with it, or why it cannot be opened.
type Read = (usize, Result<(Stream, Option<Result<Batch, String>>), String>);

/// A write under way gives the upload back.
type Write = BoxFuture<'static, (Upload, Input)>;

struct Site {
    common: Arc<Common>,
    source: Source,
    reads: JoinSet<Read>,
    readers: HashMap<usize, AbortHandle>,
    /// Streams that are not reading.
    streams: HashMap<usize, Stream>,
    upload: Option<Upload>,
    write: Option<Write>,
    is_aborting: bool,
}

/// Builds the object that was ordered, unless `abandon` fires, once there is room for it.
pub(super) async fn build(
    common: Arc<Common>,
    source: Source,
    order: BuildOrder,
    limits: Limits,
    mut abandon: oneshot::Receiver<()>,
) -> Built {
    let object = order.object;
    let _place = tokio::select! {
        place = common.sites.acquire() => place,
        _ = &mut abandon => {
            let outcome = Err("it was given up".to_owned());
            return Built { outcome, left: Vec::new(), times: BuildTimes::default() };
        }
    };
    let name = object_key(common.cluster, object);
    let upload = Upload::new(common.store.clone(), &name, common.meter.clone());
    let mut site = Site {
        common: common.clone(),
        source,
        reads: JoinSet::new(),
        readers: HashMap::new(),
        streams: HashMap::new(),
        upload: Some(upload),
        write: None,
        is_aborting: false,
    };
    let built_ms = u64::try_from(common.clock.wall_ms()).unwrap_or(0);
    let mut assembly = Assembly::new(common.now(), order, common.cluster, built_ms, limits);
    let mut input = Input::Time;
    let mut is_abandonable = true;
    let built = loop {
        // Checksums and compression of a MiB: not on a thread that serves.
        let (now, clock) = (common.now(), common.clock.clone());
        let worked = tokio::task::spawn_blocking(move || {
            let began = clock.monotonic_ns();
            let mut out = Vec::new();
            assembly.on_input(now, input, &mut out);
            let took = clock.monotonic_ns().saturating_sub(began);
            assembly.worked(std::time::Duration::from_nanos(took));
            (assembly, out)
        });
        let (back, outputs) = match worked.await {
            Ok(worked) => worked,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        assembly = back;
        let mut done = None;
        for output in outputs {
            if let Output::Done(built) = output {
                done = Some(built);
            } else {
                site.perform(output);
            }
        }
        if let Some(built) = done {
            break built;
        }
        let wake_at = assembly.wake_at().map(|at| common.instant(at));
        let sleep: OptionFuture<_> = wake_at.map(tokio::time::sleep_until).into();
        input = tokio::select! {
            _ = &mut abandon, if is_abandonable => {
                is_abandonable = false;
                Input::Abandoned
            }
            Some((upload, input)) = OptionFuture::from(site.write.as_mut()) => {
                site.write = None;
                site.upload = Some(upload);
                input
            }
            Some(read) = site.reads.join_next(), if !site.reads.is_empty() => match read {
                Ok(read) => site.input_of(read),
                Err(error) if error.is_cancelled() => Input::Time,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            Some(()) = sleep => Input::Time,
        };
    };
    site.end(built).await
}

impl Site {
    fn perform(&mut self, output: Output) {
        match output {
            Output::Open { index, ledger, first, last } => {
                let (common, source) = (self.common.clone(), self.source.clone());
                let read = self.reads.spawn(async move {
                    let read = match Stream::open(&common, &source, index, (ledger, first, last)).await {
                        Ok(mut stream) => {
                            let next = stream.next().await;
                            Ok((stream, next))
                        }
                        Err(error) => Err(error.to_string()),
                    };
                    (index, read)
                });
                self.readers.insert(index, read);
            }
            Output::Next(index) => {
                let Some(mut stream) = self.streams.remove(&index) else { return };
                let read = self.reads.spawn(async move {
                    let next = stream.next().await;
                    (index, Ok((stream, next)))
                });
                self.readers.insert(index, read);
            }
            Output::Close(index) => {
                self.streams.remove(&index);
                if let Some(read) = self.readers.remove(&index) {
                    read.abort();
                }
            }
            Output::Part(chunks) => self.write(move |mut upload| async move {
                let input = match upload.part(chunks).await {
                    Ok(()) => Input::Written,
                    Err(error) => Input::WriteFailed(error.to_string()),
                };
                (upload, input)
            }),
            Output::LastPart(chunks) => self.write(move |mut upload| async move {
                let input = match upload.last_part(chunks).await {
                    Ok(tag) => Input::Completed { tag },
                    Err(error) => Input::WriteFailed(error.to_string()),
                };
                (upload, input)
            }),
            Output::Whole(chunks) => self.write(move |mut upload| async move {
                let input = match upload.whole(chunks).await {
                    Ok(tag) => Input::Completed { tag },
                    Err(error) => Input::WriteFailed(error.to_string()),
                };
                (upload, input)
            }),
            Output::Abort => self.is_aborting = true,
            Output::Done(_) => {}
        }
    }

    fn write<F>(&mut self, write: impl FnOnce(Upload) -> F)
    where
        F: Future<Output = (Upload, Input)> + Send + 'static,
    {
        let upload = self.upload.take().expect("one write at a time");
        self.write = Some(write(upload).boxed());
    }

    fn input_of(&mut self, (index, read): Read) -> Input {
        self.readers.remove(&index);
        let (stream, next) = match read {
            Ok(read) => read,
            Err(why) => return Input::Ended { index, why },
        };
        let (first, entries) = match next {
            Some(Ok(Batch::Block(entries))) => entries,
            Some(Ok(Batch::Stored(batch))) => {
                let (entries, _permit) = batch.into_parts();
                let unverified = entries.iter().filter(|entry| !entry.is_verified).count() as u64;
                self.common.count_unverified(unverified);
                let first = entries.first().map_or(EntryId::FIRST, |entry| entry.id);
                (first, entries.into_iter().map(|entry| entry.bytes).collect())
            }
            Some(Err(why)) => return Input::Ended { index, why },
            None => return Input::Ended { index, why: "the ledger ended before its last entry".to_owned() },
        };
        self.streams.insert(index, stream);
        // From here on the bytes are in the part that is being filled, which has a limit of its own.
        Input::Batch { index, first, entries }
    }

    async fn end(mut self, built: Built) -> Built {
        if self.is_aborting {
            // The write under way has to end before the upload can be given up.
            if let Some(write) = self.write.take() {
                let (upload, _) = write.await;
                self.upload = Some(upload);
            }
            if let Some(upload) = &mut self.upload {
                upload.abort().await;
            }
        }
        built
    }
}
