//! Builds one object: streams of ledgers in, parts out, as [`Assembly`] says.

use std::collections::HashMap;
use std::sync::Arc;

use bindery_client::{LedgerView, ReadError, StoredBatch, StoredStream};
use bindery_tiering::catalogue::object_key;
use bindery_types::{EntryId, LedgerId};
use futures_util::future::{BoxFuture, FutureExt, OptionFuture};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use super::upload::Upload;
use super::{Common, views::Views};
use crate::assembly::{Assembly, Input, Output};
use crate::core::{BuildOrder, Built, Event};

/// What a read of a ledger gave: its stream comes back with it.
type Read = (usize, Option<(StoredStream, Option<Result<StoredBatch, ReadError>>)>, Option<ReadError>);

/// A write under way gives the upload back.
type Write = BoxFuture<'static, (Upload, Input)>;

struct Site {
    common: Arc<Common>,
    views: Arc<Views>,
    reads: JoinSet<Read>,
    readers: HashMap<usize, AbortHandle>,
    /// Streams that are not reading.
    streams: HashMap<usize, StoredStream>,
    upload: Option<Upload>,
    write: Option<Write>,
    is_aborting: bool,
}

/// Builds the object that was ordered, unless `abandon` fires.
pub(super) async fn build(
    common: Arc<Common>,
    views: Arc<Views>,
    order: BuildOrder,
    mut abandon: oneshot::Receiver<()>,
) -> Event {
    let object = order.object;
    let name = object_key(common.cluster, object);
    let upload = Upload::new(common.store.clone(), &name, common.meter.clone());
    let mut site = Site {
        common: common.clone(),
        views,
        reads: JoinSet::new(),
        readers: HashMap::new(),
        streams: HashMap::new(),
        upload: Some(upload),
        write: None,
        is_aborting: false,
    };
    let built_ms = u64::try_from(common.clock.wall_ms()).unwrap_or(0);
    let mut assembly = Assembly::new(common.now(), order, common.cluster, built_ms, common.limits);
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
    site.end(built, object).await
}

impl Site {
    fn perform(&mut self, output: Output) {
        match output {
            Output::Open { index, ledger, first, last } => {
                let views = self.views.clone();
                let read = self.reads.spawn(async move {
                    match open(&views, ledger, first, last).await {
                        Ok(mut stream) => {
                            let next = stream.next().await;
                            (index, Some((stream, next)), None)
                        }
                        Err(error) => (index, None, Some(error)),
                    }
                });
                self.readers.insert(index, read);
            }
            Output::Next(index) => {
                let Some(mut stream) = self.streams.remove(&index) else { return };
                let read = self.reads.spawn(async move {
                    let next = stream.next().await;
                    (index, Some((stream, next)), None)
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

    fn input_of(&mut self, (index, read, error): Read) -> Input {
        self.readers.remove(&index);
        let (stream, next) = match (read, error) {
            (Some(read), _) => read,
            (None, error) => {
                let why = error.map_or_else(|| "it cannot be opened".to_owned(), |error| error.to_string());
                return Input::Ended { index, why };
            }
        };
        match next {
            Some(Ok(batch)) => {
                self.streams.insert(index, stream);
                let (entries, _permit) = batch.into_parts();
                let unverified = entries.iter().filter(|entry| !entry.is_verified).count() as u64;
                self.common.count_unverified(unverified);
                let first = entries.first().map_or(EntryId::FIRST, |entry| entry.id);
                // From here on the bytes are in the part that is being filled, which has a limit of its own.
                Input::Batch { index, first, entries: entries.into_iter().map(|entry| entry.bytes).collect() }
            }
            Some(Err(error)) => Input::Ended { index, why: error.to_string() },
            None => Input::Ended { index, why: "the ledger ended before its last entry".to_owned() },
        }
    }

    async fn end(mut self, built: Built, object: bindery_tiering::ObjectId) -> Event {
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
        Event::Built { object, built }
    }
}

async fn open(
    views: &Views,
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
) -> Result<StoredStream, ReadError> {
    let view: LedgerView = views.get(ledger).await?;
    Ok(view.read(first, last))
}
