//! A ledger that goes on in another one, because its writer died having it: bookies that a recovery has fenced take nothing more of
//! it, so what follows needs a ledger of its own.
//!
//! # Data flow
//! ```text
//! busy ledger -> a new one, which names it -> conditional write: it names the new one -> recovery closes it -> the end of the chain
//! ```
//!
//! # Invariants
//! 1. A ledger is continued in one other: the write that names it is conditional, and who finds one named uses that.
//! 2. It is named before the recovery. Whoever dies in between leaves a chain that the next one follows, and recovers what is open.
//! 3. A ledger that was closed without one is closed for good.

use std::collections::BTreeSet;

use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_types::{EntryId, LedgerId, LedgerState};

use crate::client::Client;
use crate::error::{AppendOpenError, TakeOverError};
use crate::handover::{CONTINUED_PROPERTY, Handover, RESERVED_PREFIX, continued_in};
use crate::options::{CreateOptions, OpenMode};
use crate::shared::check_password;

/// What [`Client::take_over`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TakeOver {
    /// The end of the chain: it has no writer, and can be opened for appending.
    pub ledger: LedgerId,
    /// The ledgers that were recovered and closed, each with its last entry.
    pub recovered: Vec<(LedgerId, Option<EntryId>)>,
}

impl Client {
    /// Finds the ledger in which appends to `id` go on, if its writer died: a [handed-over](Self::create_handed_over) ledger that has a
    /// writer is recovered and closed, and continued in a new ledger with the same sizes, digest, password and properties; one that was
    /// continued before is followed. A writer that lives after all is fenced. One without a writer is left as it is.
    ///
    /// # Errors
    /// [`AppendOpenError::Closed`] when the chain ends with a ledger that was closed for good, [`AppendOpenError::NotHandedOver`] when
    /// a program keeps it to itself.
    pub async fn take_over(&self, id: LedgerId, password: &[u8]) -> Result<TakeOver, TakeOverError> {
        let (mut ledger, mut recovered, mut seen) = (id, Vec::new(), BTreeSet::new());
        loop {
            if self.0.is_closed() {
                return Err(AppendOpenError::ClientClosed.into());
            }
            let stored = self.0.stored(ledger).await.map_err(|error| failure(ledger, error))?;
            let metadata = &stored.metadata;
            check_password(metadata, password).ok_or(AppendOpenError::WrongPassword(ledger))?;
            let next = continued_in(metadata);
            match (metadata.state, next) {
                (LedgerState::Closed { .. }, Some(next)) => {
                    if !seen.insert(ledger) {
                        return Err(TakeOverError::Circle { ledger });
                    }
                    ledger = next;
                    continue;
                }
                (LedgerState::Closed { last_entry, .. }, None) => {
                    return Err(AppendOpenError::Closed { ledger, last_entry }.into());
                }
                (LedgerState::Open, None) => match Handover::of(metadata) {
                    None => return Err(AppendOpenError::NotHandedOver(ledger).into()),
                    Some(Err(text)) => {
                        return Err(AppendOpenError::UnknownHandover { ledger, text: text.0 }.into());
                    }
                    Some(Ok(Handover::Idle { .. })) => return Ok(TakeOver { ledger, recovered }),
                    Some(Ok(Handover::Busy { .. })) => {}
                },
                (LedgerState::InRecovery, None) if Handover::of(metadata).is_none() => {
                    return Err(AppendOpenError::NotHandedOver(ledger).into());
                }
                (LedgerState::Open | LedgerState::InRecovery, _) => {}
            }
            // Invariant 2.
            if next.is_none() && !self.name_successor(ledger, stored).await? {
                continue;
            }
            let reader = self.open_ledger(ledger, password, OpenMode::Recover).await;
            let reader = reader.map_err(|error| TakeOverError::Recovery { ledger, error })?;
            recovered.push((ledger, reader.last_add_confirmed()));
        }
    }

    /// Creates the ledger that continues this one, and names it there. False when the ledger is not what it was.
    async fn name_successor(&self, ledger: LedgerId, stored: StoredLedger) -> Result<bool, TakeOverError> {
        let StoredLedger { mut metadata, version, .. } = stored;
        let mut options = CreateOptions::new(metadata.quorum);
        if let Some(secret) = &metadata.secret {
            options = options.digest(secret.digest_type).password(secret.password.clone());
        }
        let properties = metadata.custom.iter().filter(|(name, _)| !name.starts_with(RESERVED_PREFIX));
        options.custom = properties.map(|(name, value)| (name.clone(), value.clone())).collect();
        let successor = self.create_continuing(options, ledger).await.map_err(TakeOverError::Create)?;
        metadata.custom.insert(CONTINUED_PROPERTY.to_owned(), successor.to_string().into_bytes());
        let ledgers = self.0.layout.ledgers();
        let outcome =
            self.0.patiently(LedgerError::is_transient, || ledgers.update(ledger, &metadata, version)).await;
        let Err(error) = outcome else { return Ok(true) };
        // An attempt whose answer was lost may be what changed it.
        let now = self.0.stored_latest(ledger).await.map_err(|error| failure(ledger, error))?;
        if continued_in(&now.metadata) == Some(successor) {
            return Ok(true);
        }
        let LedgerError::Changed(_) = error else {
            // The write may still be applied, and others then append to the successor: it must not go.
            tracing::warn!(%ledger, %successor, %error, "an empty ledger may be left that was to continue this one");
            return Err(failure(ledger, error));
        };
        if let Err(error) = self.delete_ledger(successor).await {
            tracing::warn!(%ledger, %successor, %error, "an empty ledger is left that was to continue this one");
        }
        Ok(false)
    }
}

fn failure(ledger: LedgerId, error: LedgerError) -> TakeOverError {
    TakeOverError::Open(match error {
        LedgerError::NotFound(_) => AppendOpenError::NotFound(ledger),
        LedgerError::Store(StoreError::Closed) => AppendOpenError::ClientClosed,
        other => AppendOpenError::Metadata(other),
    })
}
