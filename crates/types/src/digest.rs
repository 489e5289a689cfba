//! Keys and digests derived from a ledger's password (protocol reference, section 3.2).
//!
//! A digest covers the 32 bytes before it in an entry and the payload after it; in an explicit-LAC (last add confirmed)
//! body it covers the first 16 bytes. Bookies store digests and never check them; clients do.

use crc_fast::{CrcAlgorithm, Digest as Crc};
use hmac::{Hmac, Mac};
use sha1::{Digest as _, Sha1};

use crate::MasterKey;

/// Length of what an entry's digest covers before the payload: ledger id, entry id, LAC, ledger length.
pub const ENTRY_HEADER_SIZE_BYTES: usize = 32;

impl MasterKey {
    /// SHA-1("ledger" ‖ password), for every digest type and also for the empty password.
    pub fn from_password(password: &[u8]) -> MasterKey {
        MasterKey::new(Sha1::new().chain_update(b"ledger").chain_update(password).finalize().into())
    }
}

/// How a ledger's entries are digested.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DigestType {
    /// IEEE CRC-32, zero-extended to 8 bytes.
    Crc32,
    /// HMAC-SHA1, 20 bytes, with a key of its own derived from the password ("MAC" in the Java API).
    Hmac,
    /// Castagnoli CRC-32C, 4 bytes.
    Crc32c,
    /// Nothing, 0 bytes.
    Dummy,
}

impl DigestType {
    /// All types.
    pub const ALL: [DigestType; 4] =
        [DigestType::Crc32, DigestType::Hmac, DigestType::Crc32c, DigestType::Dummy];

    /// Length of the digest.
    pub const fn size_bytes(self) -> usize {
        match self {
            DigestType::Crc32 => 8,
            DigestType::Hmac => DIGEST_SIZE_BYTES_MAX,
            DigestType::Crc32c => 4,
            DigestType::Dummy => 0,
        }
    }
}

/// Length of the longest digest (HMAC-SHA1).
pub const DIGEST_SIZE_BYTES_MAX: usize = 20;

/// A computed digest: up to 20 bytes, without allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DigestValue {
    bytes: [u8; DIGEST_SIZE_BYTES_MAX],
    size: usize,
}

impl DigestValue {
    fn of(digest: &[u8]) -> DigestValue {
        let mut bytes = [0; DIGEST_SIZE_BYTES_MAX];
        bytes[..digest.len()].copy_from_slice(digest);
        DigestValue { bytes, size: digest.len() }
    }

    /// The digest as it stands in an entry.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

/// Computes and checks the digests of one ledger. The HMAC key is derived once.
#[derive(Clone)]
pub struct Digester {
    digest_type: DigestType,
    /// Keyed and empty; only for HMAC.
    hmac: Option<Hmac<Sha1>>,
}

impl Digester {
    /// For a ledger with this password.
    pub fn new(digest_type: DigestType, password: &[u8]) -> Digester {
        let hmac = (digest_type == DigestType::Hmac).then(|| {
            let key = Sha1::new().chain_update(b"mac").chain_update(password).finalize();
            Hmac::new_from_slice(&key).expect("HMAC takes keys of any length")
        });
        Digester { digest_type, hmac }
    }

    /// Which digest this is.
    pub fn digest_type(&self) -> DigestType {
        self.digest_type
    }

    /// The digest over `header` (32 bytes of an entry, 16 of an explicit-LAC body) followed by `payload`.
    pub fn compute(&self, header: &[u8], payload: &[u8]) -> DigestValue {
        let crc = |algorithm| {
            let mut crc = Crc::new(algorithm);
            crc.update(header);
            crc.update(payload);
            crc.finalize()
        };
        match self.digest_type {
            DigestType::Crc32 => DigestValue::of(&crc(CrcAlgorithm::Crc32IsoHdlc).to_be_bytes()),
            DigestType::Crc32c => {
                // The low half of the 64-bit result holds the 32-bit sum.
                DigestValue::of(&crc(CrcAlgorithm::Crc32Iscsi).to_be_bytes()[4..])
            }
            DigestType::Hmac => {
                let mut hmac = self.hmac.clone().expect("an HMAC digester is made with its key");
                hmac.update(header);
                hmac.update(payload);
                DigestValue::of(&hmac.finalize().into_bytes())
            }
            DigestType::Dummy => DigestValue::of(&[]),
        }
    }

    /// Whether `digest` is the digest of `header` and `payload`. The comparison takes the same time for every digest
    /// of the right length.
    pub fn verify(&self, header: &[u8], payload: &[u8], digest: &[u8]) -> bool {
        let computed = self.compute(header, payload);
        digest.len() == computed.size
            && computed.as_bytes().iter().zip(digest).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl std::fmt::Debug for Digester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Digester").field("digest_type", &self.digest_type).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Ledger 1, entry 0, LAC -1, length 5.
    fn header() -> Vec<u8> {
        [1i64, 0, -1, 5].iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    #[test]
    fn keys_and_digests_are_those_of_the_test_vectors() {
        let key = |password| hex(MasterKey::from_password(password).as_bytes());
        assert_eq!(key(b""), "850bf1071c5e3d8c24235676f8816ae0cbe2f14f");
        assert_eq!(key(b"secret"), "e793cbc379107648537183605cd361d3bb789a39");
        for (digest_type, expected) in [
            (DigestType::Crc32c, "e3a5f74d"),
            (DigestType::Crc32, "0000000030a56872"),
            (DigestType::Hmac, "00107b7f219e26462e04e16e6e7a7f41e046e090"),
            (DigestType::Dummy, ""),
        ] {
            let digester = Digester::new(digest_type, b"");
            let digest = digester.compute(&header(), b"hello");
            assert_eq!(hex(digest.as_bytes()), expected, "{digest_type:?}");
            assert_eq!(digest.as_bytes().len(), digest_type.size_bytes());
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_found() {
        for digest_type in [DigestType::Crc32, DigestType::Hmac, DigestType::Crc32c] {
            let digester = Digester::new(digest_type, b"secret");
            let (header, payload) = (header(), b"hello".to_vec());
            let digest = digester.compute(&header, &payload).as_bytes().to_vec();
            assert!(digester.verify(&header, &payload, &digest));
            for at in 0..header.len() + payload.len() + digest.len() {
                let mut parts = [header.clone(), payload.clone(), digest.clone()];
                let mut left = at;
                for part in &mut parts {
                    if left < part.len() {
                        part[left] ^= 1;
                        break;
                    }
                    left -= part.len();
                }
                assert!(!digester.verify(&parts[0], &parts[1], &parts[2]), "{digest_type:?} byte {at}");
            }
            assert!(!digester.verify(&header, &payload, &digest[1..]), "a short digest");
        }
        let other = Digester::new(DigestType::Hmac, b"other").compute(&header(), b"hello");
        assert!(!Digester::new(DigestType::Hmac, b"secret").verify(&header(), b"hello", other.as_bytes()));
    }
}
