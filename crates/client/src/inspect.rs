//! Functions for an auditor's checks: they read one entry from one bookie, and compare ensembles with the placement policy.
//!
//! # Data flow
//! ```text
//! auditor --> Client::copy_at   one bookie's own copy of an entry, read in the background and verified
//!         --> Client::spread    the places of all bookies at one moment --> Spread::lacking
//! ```
//!
//! # Invariants
//! 1. Only the named bookie is read, never another replica.
//! 2. An ensemble with a bookie of which no place is known is not judged.
//!
//! # Limits     one entry for each call of [`Client::copy_at`]; a [`Spread`] has the places of the registered bookies

use std::collections::BTreeSet;

use bindery_metadata::StoreError;
use bindery_types::{BookieId, Digester, EntryId, LedgerId, LedgerSecret, Quorum};
use bindery_wire::ErrorCode;

use crate::client::Client;
use crate::entry::EntryCodec;
use crate::placement::{Candidates, Placement as _, Unmet};
use crate::transport::{BookieError, ReadRequest};

/// The state of one bookie's copy of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundCopy {
    /// A copy whose digest is right. Of a ledger without a password in its metadata: any bytes.
    Sound,
    /// Nothing.
    Missing,
    /// Bytes with a wrong digest, or of another entry.
    Damaged,
}

/// Where all registered bookies stand, for [`lacking`](Self::lacking).
pub struct Spread {
    client: Client,
    candidates: Candidates,
}

impl Spread {
    /// How an ensemble falls short of the spread that this client's policy wants. `None` when it does not, when the policy has no wishes,
    /// or when the place of a member is not known.
    pub fn lacking(&self, quorum: Quorum, ensemble: &[BookieId]) -> Option<Unmet> {
        let is_known = |bookie| self.candidates.locations.contains_key(bookie);
        let placement = &self.client.0.placement;
        ensemble.iter().all(is_known).then(|| placement.lacking(&self.candidates, quorum, ensemble)).flatten()
    }

    /// Why places may be unknown, or old, if they could not be looked up.
    pub fn error(&self) -> Option<String> {
        self.candidates.places_error.as_ref().map(ToString::to_string)
    }
}

impl Client {
    /// Reads a bookie's own copy of an entry, in the background, and verifies it with the ledger's password (`None`: metadata have none).
    ///
    /// # Errors
    /// Of the bookie: nothing is known of its copy then.
    pub async fn copy_at(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        entry: EntryId,
        secret: Option<&LedgerSecret>,
    ) -> Result<FoundCopy, BookieError> {
        let request = ReadRequest { ledger, entry: Some(entry), fence: None };
        let stored = match self.0.background.read(bookie, request).await {
            Ok(stored) => stored,
            Err(BookieError::Refused(ErrorCode::NoLedger | ErrorCode::NoEntry)) => {
                return Ok(FoundCopy::Missing);
            }
            Err(other) => return Err(other),
        };
        let Some(secret) = secret else { return Ok(FoundCopy::Sound) };
        let codec = EntryCodec::new(ledger, Digester::new(secret.digest_type, &secret.password));
        match codec.check(entry, &stored) {
            Some(_) => Ok(FoundCopy::Sound),
            None => Ok(FoundCopy::Damaged),
        }
    }

    /// Where the bookies stand that are registered now. Of a policy that does not look at places nothing is looked up.
    ///
    /// # Errors
    /// When the metadata store does not list the bookies.
    pub async fn spread(&self) -> Result<Spread, StoreError> {
        let members: BTreeSet<BookieId> = self.layout().registration().registered().await?;
        let members: Vec<BookieId> = members.into_iter().collect();
        Ok(Spread { client: self.clone(), candidates: self.0.candidates(&members).await? })
    }
}
