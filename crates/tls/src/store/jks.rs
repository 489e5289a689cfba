//! JKS, the store that `keytool` created by default before Java 9. The format is that of `sun.security.provider.JavaKeyStore`, the
//! protection of keys that of `sun.security.provider.KeyProtector`.
//!
//! ```text
//! store := magic(4) version(4: 1 or 2) count(4) entry*  SHA-1(password, "Mighty Aphrodite", all before)
//! entry := tag(4: 1 key, 2 certificate) alias(text) time(8) content
//! key   := bytes(EncryptedPrivateKeyInfo) count(4) certificate*        certificate := [version 2: type(text)] bytes
//! text  := length(2) bytes;  bytes := length(4) bytes;  all big-endian; a password is UTF-16
//! ```
//!
//! # Invariants
//! 1. A length is checked against the bytes at hand before it is used.
//! 2. The digest at the end is compared before anything is decrypted.

use super::der::{self, Malformed, Reader};
use super::{Contained, OneKey, Password, Unreadable};
use bindery_types::are_equal_secrets;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

pub(super) const MAGIC: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];
const DIGEST_BYTES: usize = 20;
const SALT_BYTES: usize = 20;
/// Hashed between the password and the contents for the digest at the end.
const WHITENER: &[u8] = b"Mighty Aphrodite";
/// The OID of `KeyProtector`'s algorithm, 1.3.6.1.4.1.42.2.17.1.1.
const KEY_PROTECTOR: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x2a, 0x02, 0x11, 0x01, 0x01];

/// Reads a whole store: its trusted certificates, and its key with its certificates if it has one; a second key is an error. The digest
/// at the end cannot tell a wrong password from a store that was changed: both give `WrongPassword`.
pub(super) fn read(bytes: &[u8], password: &Password) -> Result<Contained, Unreadable> {
    let (signed, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or(Malformed)?;
    let password = password.utf16();
    if !are_equal_secrets(&sha1(&[&password, WHITENER, signed]), digest) {
        return Err(Unreadable::WrongPassword);
    }
    let mut input = Input(signed);
    if input.take(4)? != MAGIC {
        return Err(Malformed.into());
    }
    let has_types = match input.u32()? {
        1 => false,
        2 => true,
        _ => return Err(Malformed.into()),
    };
    let mut key = OneKey::default();
    let mut trusted = Vec::new();
    for _ in 0..input.u32()? {
        let tag = input.u32()?;
        input.text()?; // alias
        input.take(8)?; // time
        match tag {
            1 => {
                let encrypted = input.bytes()?;
                let chain =
                    (0..input.u32()?).map(|_| input.certificate(has_types)).collect::<Result<_, _>>()?;
                key.set(unprotect(encrypted, &password)?, chain)?;
            }
            2 => trusted.push(input.certificate(has_types)?),
            _ => return Err(Malformed.into()),
        }
    }
    match input.0.is_empty() {
        true => Ok(Contained { key: key.0, trusted }),
        false => Err(Malformed.into()),
    }
}

/// Decrypts the private key in an `EncryptedPrivateKeyInfo` of `KeyProtector`: the key XOR a stream of SHA-1 digests. `password` is
/// UTF-16, as in the file.
fn unprotect(info: &[u8], password: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut info = Reader::new(info).enter(der::SEQUENCE)?;
    if info.enter(der::SEQUENCE)?.take(der::OID)? != KEY_PROTECTOR {
        return Err(Unreadable::Unsupported("a key that is not protected as JKS does it".to_owned()));
    }
    let (salt, rest) = info.take(der::OCTET_STRING)?.split_at_checked(SALT_BYTES).ok_or(Malformed)?;
    let (encrypted, check) = rest.split_last_chunk::<DIGEST_BYTES>().ok_or(Malformed)?;
    let mut key = encrypted.to_vec();
    let mut hash: [u8; DIGEST_BYTES] = salt.try_into().map_err(|_| Malformed)?;
    for chunk in key.chunks_mut(DIGEST_BYTES) {
        hash = sha1(&[password, &hash]);
        chunk.iter_mut().zip(hash).for_each(|(byte, mask)| *byte ^= mask);
    }
    match are_equal_secrets(&sha1(&[password, &key]), check) {
        true => Ok(key),
        // Java allows the key a password of its own; BookKeeper uses the store's for both.
        false => Err(Unreadable::WrongKeyPassword),
    }
}

fn sha1(parts: &[&[u8]]) -> [u8; DIGEST_BYTES] {
    let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    parts.iter().for_each(|part| hash.update(part));
    hash.finish().as_ref().try_into().expect("SHA-1 has 20 bytes")
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()?;
        self.take(usize::try_from(len).map_err(|_| Malformed)?)
    }

    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.take(2)?;
        self.take(usize::from(len[0]) << 8 | usize::from(len[1]))
    }

    fn certificate(&mut self, has_type: bool) -> Result<Vec<u8>, Malformed> {
        if has_type {
            self.text()?;
        }
        self.bytes().map(<[u8]>::to_vec)
    }
}
