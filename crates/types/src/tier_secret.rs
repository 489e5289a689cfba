//! The proof, for a bookie without logins, that a request comes from a tierer of its cluster.
//!
//! # Invariants
//! 1. The secret stands in metadata only, and in no `Debug`, error or log line.
//! 2. Proofs are compared in constant time.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::BookieId;

/// Names the purpose of a proof, so that it counts for no other.
const PURPOSE: &[u8] = b"bindery RECONCILE_LEDGERS 1";

/// A secret that tierers and bookies of a cluster read from its metadata. Whoever reaches a bookie's port need not be able to.
#[derive(Clone, PartialEq, Eq)]
pub struct TierSecret([u8; TierSecret::SIZE_BYTES]);

impl TierSecret {
    /// Bytes of a secret.
    pub const SIZE_BYTES: usize = 32;
    /// Bytes of a proof.
    pub const PROOF_SIZE_BYTES: usize = 32;

    /// From bytes that were drawn at random.
    pub const fn from_bytes(bytes: [u8; TierSecret::SIZE_BYTES]) -> TierSecret {
        TierSecret(bytes)
    }

    /// As they stand in metadata.
    pub const fn as_bytes(&self) -> &[u8; TierSecret::SIZE_BYTES] {
        &self.0
    }

    /// The proof for a message, encoded without a proof, that is sent to this bookie. The message names the cluster.
    pub fn prove(&self, bookie: &BookieId, message: &[u8]) -> [u8; TierSecret::PROOF_SIZE_BYTES] {
        self.mac(bookie, message).finalize().into_bytes().into()
    }

    /// Whether this is the proof for the message.
    pub fn accepts(&self, bookie: &BookieId, message: &[u8], proof: &[u8]) -> bool {
        self.mac(bookie, message).verify_slice(proof).is_ok()
    }

    fn mac(&self, bookie: &BookieId, message: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        let id = bookie.as_str().as_bytes();
        mac.update(PURPOSE);
        // Its length keeps the id apart from the message.
        mac.update(&(id.len() as u64).to_be_bytes());
        mac.update(id);
        mac.update(message);
        mac
    }
}

impl fmt::Debug for TierSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TierSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_counts_for_its_secret_bookie_and_message() {
        let (secret, bookie) = (TierSecret::from_bytes([7; 32]), BookieId::new("b1").unwrap());
        let proof = secret.prove(&bookie, b"message");
        assert!(secret.accepts(&bookie, b"message", &proof));
        assert!(!TierSecret::from_bytes([8; 32]).accepts(&bookie, b"message", &proof));
        assert!(!secret.accepts(&BookieId::new("b2").unwrap(), b"message", &proof));
        assert!(!secret.accepts(&bookie, b"messagf", &proof));
        // The id ends where it ends.
        assert!(!secret.accepts(&BookieId::new("b").unwrap(), b"1message", &proof));
        for wrong in [&[][..], &proof[..31], &[0; 32]] {
            assert!(!secret.accepts(&bookie, b"message", wrong));
        }
        assert!(!format!("{secret:?}").contains('7'));
    }
}
