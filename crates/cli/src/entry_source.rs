//! Entries of ledgers for the admin port of a bookie of this process.
//!
//! # Data flow
//! ```text
//! /api/v1/ledger/read -> ClientEntries -> a client, made for the first request, over the bookie's session with the metadata store
//! ```
//!
//! # Limits
//! One client, of the bytes that the bookie allows; it is closed when nobody has asked for [`IDLE_MAX`].

use crate::bookie_security::BookieSecurity;
use bindery_client::{Client, LedgerError, OpenError, OpenMode, ReadError};
use bindery_metadata::Layout;
use bindery_server::admin::extension::Extending;
use bindery_server::admin::ledgers::{EntriesFound, EntriesRefused, EntriesWanted, EntrySource};
use bindery_server::bookie::Bookie;
use bindery_types::EntryId;
use bindery_wire::FrameLimit;
use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A client that nobody has used for so long is closed.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a bookie may take for an answer before another one is asked.
const REQUEST_MAX: Duration = Duration::from_secs(3);

/// The client and the time of its last use; `None` while no client is open.
type Kept = Mutex<Option<(Client, Instant)>>;

/// See the module.
pub struct ClientEntries {
    layout: Layout,
    security: BookieSecurity,
    frame: FrameLimit,
    bytes: u64,
    kept: Arc<Kept>,
    closer: parking_lot::Mutex<Option<AbortHandle>>,
}

impl Drop for ClientEntries {
    fn drop(&mut self) {
        if let Some(closer) = self.closer.get_mut() {
            closer.abort();
        }
    }
}

impl ClientEntries {
    /// Lets the admin port of `bookie` show entries, which a client reads with `security`. No client is made yet.
    pub fn lend(bookie: &Bookie, security: BookieSecurity) {
        let (frame, bytes) = bookie.entry_limits();
        let layout = bookie.layout().clone();
        let (kept, closer) = Default::default();
        bookie.show_entries(Arc::new(ClientEntries { layout, security, frame, bytes, kept, closer }));
    }

    async fn client(&self) -> Result<Client, EntriesRefused> {
        let mut kept = self.kept.lock().await;
        let client = match kept.take() {
            Some((client, _)) => client,
            None => {
                let mut builder = Client::builder()
                    .layout(self.layout.clone())
                    .memory_limit(self.bytes)
                    .request_timeout(REQUEST_MAX)
                    .metadata_patience(REQUEST_MAX);
                // Otherwise what bookies of any kind may have stored is read.
                if self.frame.size_bytes() > FrameLimit::PULSAR.size_bytes() {
                    builder = builder.frame_limit(self.frame);
                }
                let secured = self.security.apply(builder).await.map_err(unavailable)?;
                let client = secured.connect().await.map_err(unavailable)?;
                let closer = tokio::spawn(close_when_idle(Arc::downgrade(&self.kept)));
                // One that was there before has closed its client, and ends.
                *self.closer.lock() = Some(closer.abort_handle());
                client
            }
        };
        *kept = Some((client.clone(), Instant::now()));
        Ok(client)
    }

    async fn read_some(&self, wanted: EntriesWanted) -> Result<EntriesFound, EntriesRefused> {
        let client = self.client().await?;
        let info = client.metadata(wanted.ledger).await.map_err(of_metadata)?;
        let password = info.metadata.secret.map(|secret| secret.password).unwrap_or_default();
        let opened = client.open_ledger(wanted.ledger, &password, OpenMode::ReadOnly).await;
        let reader = opened.map_err(|error| match error {
            OpenError::NotFound(ledger) => not_found(LedgerError::NotFound(ledger)),
            OpenError::Metadata(error) => of_metadata(error),
            other => unavailable(other),
        })?;
        let end = reader.last_add_confirmed();
        let mut found = EntriesFound { entries: Vec::new(), end };
        let last = wanted.last.map_or(end, |last| end.min(Some(last)));
        let Some(last) = last.filter(|last| wanted.first <= *last) else { return Ok(found) };
        let most = wanted.first.get().saturating_add_unsigned(wanted.count_max - 1);
        let last = EntryId::new(most).map_or(last, |most| most.min(last));
        let (mut entries, mut bytes) = (reader.read(wanted.first..=last), 0);
        while bytes < wanted.bytes_max {
            match entries.next().await {
                None => break,
                Some(Ok(entry)) => {
                    bytes += entry.payload.len();
                    found.entries.push((entry.id, entry.payload));
                }
                // The page shows the entries before the failure, and a request for the next ones says why it ends there.
                Some(Err(_)) if !found.entries.is_empty() => break,
                Some(Err(ReadError::Deleted(ledger))) => {
                    return Err(not_found(LedgerError::NotFound(ledger)));
                }
                Some(Err(error)) => return Err(unavailable(error)),
            }
        }
        Ok(found)
    }
}

fn not_found(why: impl Display) -> EntriesRefused {
    EntriesRefused::NotFound(why.to_string())
}

fn unavailable(why: impl Display) -> EntriesRefused {
    EntriesRefused::Unavailable(why.to_string())
}

fn of_metadata(error: LedgerError) -> EntriesRefused {
    match error {
        LedgerError::NotFound(_) => not_found(error),
        other => unavailable(other),
    }
}

/// Closes the client once it has been idle for [`IDLE_MAX`], and ends. It also ends at the next look after the bookie is gone.
async fn close_when_idle(kept: Weak<Kept>) {
    loop {
        tokio::time::sleep(IDLE_MAX / 4).await;
        let Some(kept) = kept.upgrade() else { return };
        let mut client = kept.lock().await;
        if client.as_ref().is_some_and(|(_, used)| used.elapsed() < IDLE_MAX) {
            continue;
        }
        let Some((client, _)) = client.take() else { return };
        client.close().await;
        return;
    }
}

impl EntrySource for ClientEntries {
    fn read(&self, wanted: EntriesWanted) -> Extending<'_, Result<EntriesFound, EntriesRefused>> {
        Box::pin(self.read_some(wanted))
    }
}
