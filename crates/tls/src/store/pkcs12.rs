//! PKCS12 stores (RFC 7292), as `keytool` and `openssl pkcs12` make them.
//!
//! ```text
//! PFX := version, contents (data), mac        contents := SEQUENCE OF (data | encrypted data) := bags
//! bag := kind, [0] content, attributes        kinds: key, key under a password, certificate
//! ```
//!
//! # Invariants
//! 1. The authentication code is compared before anything is decrypted. A store without one is read only when it is given no
//!    password, and then only for certificates that are not encrypted.
//! 2. Rounds of key derivation are bounded by [`ROUNDS_MAX`] each time and by [`ROUNDS_TOTAL_MAX`] for a store: a damaged store must
//!    not keep a start busy. Reading ends at a second key, before it is decrypted.
//! 3. The certificates beside a key are its chain. They are trusted only when Java marks them.
//!
//! # Limits     a chain: [`CHAIN_MAX`] certificates
//!
//! # Not here   stores signed or encrypted with certificates, BER, PBMAC1 (RFC 9579)

use super::der::{self, CONTEXT_0, CONTEXT_0_PRIMITIVE, Malformed, OCTET_STRING, OID, Reader, SEQUENCE, SET};
use super::{Contained, Password, Unreadable};
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, KeyIvInit};
use ring::{digest, hmac, pbkdf2};
use std::num::NonZeroU32;

/// `keytool` makes 10,000, `openssl` 2048.
pub(super) const ROUNDS_MAX: u32 = 1_000_000;
/// Enough for an authentication code, certificates and a key with the most rounds each.
pub(super) const ROUNDS_TOTAL_MAX: u32 = 4 * ROUNDS_MAX;
/// Longer chains do not occur.
pub(super) const CHAIN_MAX: usize = 16;

// RFC 7292, appendix D, and RFC 8018, appendix A.
const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
const ENCRYPTED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x06];
const BAG: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x0a, 0x01];
const KEY_BAG: u8 = 1;
const SHROUDED_KEY_BAG: u8 = 2;
const CERTIFICATE_BAG: u8 = 3;
const X509: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
const LOCAL_KEY_ID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x15];
/// 2.16.840.1.113894.746875.1.1: Java trusts a certificate that has it.
const TRUSTED_KEY_USAGE: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf9, 0x66, 0xad, 0xca, 0x7b, 0x01, 0x01];
const PBE_SHA1_3DES: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x01, 0x03];
const PBE_SHA1_RC2_40: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x01, 0x06];
const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d];
const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0c];
const HMAC: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02];
const AES: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01];
const DES_EDE3: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x03, 0x07];
const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
const SHA2: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];

/// The use of bytes derived from a password (RFC 7292, appendix B.3).
#[derive(Clone, Copy)]
enum Purpose {
    Key = 1,
    Iv = 2,
    Mac = 3,
}

/// A certificate, and what connects it to a key or makes it trusted.
struct Certificate {
    der: Vec<u8>,
    key_id: Option<Vec<u8>>,
    is_trusted: bool,
}

#[derive(Default)]
struct Found {
    key: Option<(Vec<u8>, Option<Vec<u8>>)>,
    certificates: Vec<Certificate>,
}

/// The password of an authenticated store, and the rounds of key derivation that are left for it (invariant 2).
struct Unlocking<'a> {
    password: &'a Password,
    rounds_left: u32,
    is_authenticated: bool,
}

impl Unlocking<'_> {
    /// Takes rounds off those left.
    fn spend(&mut self, rounds: u32) -> Result<NonZeroU32, Unreadable> {
        let Some(asked) = NonZeroU32::new(rounds).filter(|rounds| rounds.get() <= ROUNDS_MAX) else {
            return Err(Unreadable::Unsupported(format!(
                "{rounds} rounds of key derivation, where 1 to {ROUNDS_MAX} are done"
            )));
        };
        self.rounds_left = self.rounds_left.checked_sub(rounds).ok_or_else(|| {
            Unreadable::Unsupported(format!("more than {ROUNDS_TOTAL_MAX} rounds of key derivation in all"))
        })?;
        Ok(asked)
    }

    /// Invariant 1.
    fn require_authenticated(&self) -> Result<(), Unreadable> {
        match self.is_authenticated {
            true => Ok(()),
            false => Err(Unreadable::Unauthenticated),
        }
    }
}

pub(super) fn read(bytes: &[u8], password: &Password) -> Result<Contained, Unreadable> {
    let mut store = Reader::new(bytes).enter(SEQUENCE)?;
    if store.number()? != 3 {
        return Err(Malformed.into());
    }
    let mut contents = store.enter(SEQUENCE)?;
    if contents.take(OID)? != DATA {
        return Err(Unreadable::Unsupported("a store that is signed with a certificate".to_owned()));
    }
    let contents = contents.enter(CONTEXT_0)?.take(OCTET_STRING)?;
    let mut unlocking =
        Unlocking { password, rounds_left: ROUNDS_TOTAL_MAX, is_authenticated: !store.is_empty() };
    if unlocking.is_authenticated {
        authenticate(contents, store.enter(SEQUENCE)?, &mut unlocking)?;
    } else if !password.text().is_empty() {
        return Err(Unreadable::Unauthenticated);
    }
    let mut found = Found::default();
    let mut parts = Reader::new(contents).enter(SEQUENCE)?;
    while !parts.is_empty() {
        let mut part = parts.enter(SEQUENCE)?;
        match part.take(OID)? {
            kind if kind == DATA => {
                bags(part.enter(CONTEXT_0)?.take(OCTET_STRING)?, &mut unlocking, &mut found)?
            }
            kind if kind == ENCRYPTED_DATA => {
                unlocking.require_authenticated()?;
                let mut encrypted = part.enter(CONTEXT_0)?.enter(SEQUENCE)?;
                encrypted.number()?;
                let mut encrypted = encrypted.enter(SEQUENCE)?;
                encrypted.take(OID)?;
                let algorithm = encrypted.enter(SEQUENCE)?;
                let plain = decrypt(algorithm, encrypted.take(CONTEXT_0_PRIMITIVE)?, &mut unlocking)?;
                bags(&plain, &mut unlocking, &mut found)?;
            }
            _ => {
                return Err(Unreadable::Unsupported("a part that is encrypted for a certificate".to_owned()));
            }
        }
    }
    contained(found)
}

/// Invariant 1.
fn authenticate(
    contents: &[u8],
    mut mac: Reader<'_>,
    unlocking: &mut Unlocking<'_>,
) -> Result<(), Unreadable> {
    let mut info = mac.enter(SEQUENCE)?;
    let algorithm = info.enter(SEQUENCE)?.take(OID)?;
    let expected = info.take(OCTET_STRING)?;
    let salt = mac.take(OCTET_STRING)?;
    let rounds = if mac.is_empty() { 1 } else { mac.number()? };
    let (hash, keyed) = match algorithm {
        SHA1 => (&digest::SHA1_FOR_LEGACY_USE_ONLY, hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
        [prefix @ .., 1] if prefix == SHA2 => (&digest::SHA256, hmac::HMAC_SHA256),
        [prefix @ .., 2] if prefix == SHA2 => (&digest::SHA384, hmac::HMAC_SHA384),
        [prefix @ .., 3] if prefix == SHA2 => (&digest::SHA512, hmac::HMAC_SHA512),
        other => return Err(unsupported("authentication code", other)),
    };
    let key = derive(hash, unlocking, salt, rounds, Purpose::Mac, hash.output_len())?;
    hmac::verify(&hmac::Key::new(keyed, &key), contents, expected).map_err(|_| Unreadable::WrongPassword)
}

fn bags(contents: &[u8], unlocking: &mut Unlocking<'_>, found: &mut Found) -> Result<(), Unreadable> {
    let mut bags = Reader::new(contents).enter(SEQUENCE)?;
    while !bags.is_empty() {
        let mut bag = bags.enter(SEQUENCE)?;
        let kind = match bag.take(OID)?.split_last() {
            Some((kind, prefix)) if prefix == BAG => *kind,
            _ => continue,
        };
        let mut content = bag.enter(CONTEXT_0)?;
        let (key_id, is_trusted) = attributes(bag)?;
        if matches!(kind, KEY_BAG | SHROUDED_KEY_BAG) {
            unlocking.require_authenticated()?;
            if found.key.is_some() {
                return Err(Unreadable::SeveralKeys);
            }
        }
        match kind {
            KEY_BAG => found.key = Some((content.whole()?.to_vec(), key_id)),
            SHROUDED_KEY_BAG => {
                let mut info = content.enter(SEQUENCE)?;
                let algorithm = info.enter(SEQUENCE)?;
                let key = decrypt(algorithm, info.take(OCTET_STRING)?, unlocking)?;
                found.key = Some((key, key_id));
            }
            CERTIFICATE_BAG => {
                let mut certificate = content.enter(SEQUENCE)?;
                if certificate.take(OID)? == X509 {
                    let der = certificate.enter(CONTEXT_0)?.take(OCTET_STRING)?.to_vec();
                    found.certificates.push(Certificate { der, key_id, is_trusted });
                }
            }
            // Revocation lists, secrets, further bags.
            _ => {}
        }
    }
    Ok(())
}

/// The id that connects a key and its certificate, and whether Java trusts the certificate.
fn attributes(mut bag: Reader<'_>) -> Result<(Option<Vec<u8>>, bool), Malformed> {
    let (mut key_id, mut is_trusted) = (None, false);
    if !bag.is_empty() {
        let mut attributes = bag.enter(SET)?;
        while !attributes.is_empty() {
            let mut attribute = attributes.enter(SEQUENCE)?;
            match attribute.take(OID)? {
                kind if kind == LOCAL_KEY_ID => key_id = Some(attribute.take(SET)?.to_vec()),
                kind if kind == TRUSTED_KEY_USAGE => is_trusted = true,
                _ => {}
            }
        }
    }
    Ok((key_id, is_trusted))
}

/// Puts the key and its chain together, and tells which certificates are trusted: those that Java marks, or all in a store without
/// marks and without a key, as `openssl` makes it (invariant 3).
fn contained(found: Found) -> Result<Contained, Unreadable> {
    let Found { key, certificates } = found;
    let key = match key {
        None => None,
        Some((own, key_id)) => {
            let of_key =
                certificates.iter().position(|certificate| key_id.is_some() && certificate.key_id == key_id);
            Some((own, chain(&certificates, of_key.unwrap_or(0))?))
        }
    };
    let marks = certificates.iter().any(|certificate| certificate.is_trusted);
    let trusts_all = !marks && key.is_none();
    let trusted = certificates.into_iter().filter(|certificate| certificate.is_trusted || trusts_all);
    Ok(Contained { key, trusted: trusted.map(|certificate| certificate.der).collect() })
}

/// The certificates that lead from one to its authority, as far as they are there.
fn chain(certificates: &[Certificate], first: usize) -> Result<Vec<Vec<u8>>, Unreadable> {
    let mut chain: Vec<usize> = Vec::new();
    let mut next = (!certificates.is_empty()).then_some(first);
    while let Some(at) = next {
        if chain.len() == CHAIN_MAX {
            return Err(Unreadable::Unsupported(format!("a chain of more than {CHAIN_MAX} certificates")));
        }
        chain.push(at);
        let (issuer, subject) = der::names(&certificates[at].der)?;
        next = None;
        if issuer != subject {
            for (candidate, certificate) in certificates.iter().enumerate() {
                if !chain.contains(&candidate) && der::names(&certificate.der)?.1 == issuer {
                    next = Some(candidate);
                    break;
                }
            }
        }
    }
    Ok(chain.into_iter().map(|at| certificates[at].der.clone()).collect())
}

fn decrypt(
    mut algorithm: Reader<'_>,
    encrypted: &[u8],
    unlocking: &mut Unlocking<'_>,
) -> Result<Vec<u8>, Unreadable> {
    let kind = algorithm.take(OID)?;
    if kind == PBES2 {
        return decrypt_pbes2(algorithm.enter(SEQUENCE)?, encrypted, unlocking);
    }
    let key_len = match kind {
        PBE_SHA1_3DES => 24,
        PBE_SHA1_RC2_40 => 5,
        other => return Err(unsupported("cipher", other)),
    };
    let mut parameters = algorithm.enter(SEQUENCE)?;
    let (salt, rounds) = (parameters.take(OCTET_STRING)?, parameters.number()?);
    let sha1 = &digest::SHA1_FOR_LEGACY_USE_ONLY;
    let key = derive(sha1, unlocking, salt, rounds, Purpose::Key, key_len)?;
    let iv = derive(sha1, unlocking, salt, rounds, Purpose::Iv, 8)?;
    match key_len {
        24 => decrypt_with::<cbc::Decryptor<des::TdesEde3>>(&key, &iv, encrypted),
        _ => {
            let cipher = rc2::Rc2::new_with_eff_key_len(&key, 40);
            let cipher = <cbc::Decryptor<rc2::Rc2> as cbc::cipher::InnerIvInit>::inner_iv_init(
                cipher,
                iv.as_slice().into(),
            );
            cipher.decrypt_padded_vec_mut::<Pkcs7>(encrypted).map_err(|_| Unreadable::WrongKeyPassword)
        }
    }
}

fn decrypt_pbes2(
    mut scheme: Reader<'_>,
    encrypted: &[u8],
    unlocking: &mut Unlocking<'_>,
) -> Result<Vec<u8>, Unreadable> {
    let mut derivation = scheme.enter(SEQUENCE)?;
    let kind = derivation.take(OID)?;
    if kind != PBKDF2 {
        return Err(unsupported("key derivation", kind));
    }
    let mut parameters = derivation.enter(SEQUENCE)?;
    let (salt, rounds) = (parameters.take(OCTET_STRING)?, unlocking.spend(parameters.number()?)?);
    if parameters.peek() == Some(der::INTEGER) {
        parameters.number()?; // the length of the key, which the cipher says, too
    }
    let hash = match parameters.is_empty() {
        true => pbkdf2::PBKDF2_HMAC_SHA1,
        false => match parameters.enter(SEQUENCE)?.take(OID)? {
            [prefix @ .., 7] if prefix == HMAC => pbkdf2::PBKDF2_HMAC_SHA1,
            [prefix @ .., 9] if prefix == HMAC => pbkdf2::PBKDF2_HMAC_SHA256,
            [prefix @ .., 10] if prefix == HMAC => pbkdf2::PBKDF2_HMAC_SHA384,
            [prefix @ .., 11] if prefix == HMAC => pbkdf2::PBKDF2_HMAC_SHA512,
            other => return Err(unsupported("key derivation", other)),
        },
    };
    let mut cipher = scheme.enter(SEQUENCE)?;
    let (kind, iv) = (cipher.take(OID)?, cipher.take(OCTET_STRING)?);
    let mut key = [0; 32];
    let mut derive = |len: usize| {
        pbkdf2::derive(hash, rounds, salt, unlocking.password.text().as_bytes(), &mut key[..len]);
        key[..len].to_vec()
    };
    match kind {
        [prefix @ .., 2] if prefix == AES => {
            decrypt_with::<cbc::Decryptor<aes::Aes128>>(&derive(16), iv, encrypted)
        }
        [prefix @ .., 22] if prefix == AES => {
            decrypt_with::<cbc::Decryptor<aes::Aes192>>(&derive(24), iv, encrypted)
        }
        [prefix @ .., 42] if prefix == AES => {
            decrypt_with::<cbc::Decryptor<aes::Aes256>>(&derive(32), iv, encrypted)
        }
        DES_EDE3 => decrypt_with::<cbc::Decryptor<des::TdesEde3>>(&derive(24), iv, encrypted),
        other => Err(unsupported("cipher", other)),
    }
}

fn decrypt_with<C: KeyIvInit + BlockDecryptMut>(
    key: &[u8],
    iv: &[u8],
    encrypted: &[u8],
) -> Result<Vec<u8>, Unreadable> {
    let cipher = C::new_from_slices(key, iv).map_err(|_| Malformed)?;
    cipher.decrypt_padded_vec_mut::<Pkcs7>(encrypted).map_err(|_| Unreadable::WrongKeyPassword)
}

/// Derives bytes from the password (RFC 7292, appendix B.2).
fn derive(
    hash: &'static digest::Algorithm,
    unlocking: &mut Unlocking<'_>,
    salt: &[u8],
    rounds: u32,
    purpose: Purpose,
    len: usize,
) -> Result<Vec<u8>, Unreadable> {
    let rounds = unlocking.spend(rounds)?.get();
    let block = hash.block_len();
    let repeated = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().copied().cycle().take(bytes.len().div_ceil(block) * block).collect()
    };
    // As a string of UTF-16 that ends with a zero.
    let password = [&unlocking.password.utf16()[..], &[0, 0]].concat();
    let mut input = [repeated(salt), repeated(&password)].concat();
    let diversifier = vec![purpose as u8; block];
    let mut derived = Vec::with_capacity(len + hash.output_len());
    loop {
        let mut context = digest::Context::new(hash);
        context.update(&diversifier);
        context.update(&input);
        let mut output = context.finish();
        for _ in 1..rounds {
            output = digest::digest(hash, output.as_ref());
        }
        derived.extend_from_slice(output.as_ref());
        if derived.len() >= len {
            derived.truncate(len);
            return Ok(derived);
        }
        let addend: Vec<u8> = output.as_ref().iter().copied().cycle().take(block).collect();
        for chunk in input.chunks_mut(block) {
            let mut carry = 1;
            for (byte, added) in chunk.iter_mut().zip(&addend).rev() {
                let sum = u16::from(*byte) + u16::from(*added) + carry;
                *byte = sum as u8;
                carry = sum >> 8;
            }
        }
    }
}

fn unsupported(what: &str, oid: &[u8]) -> Unreadable {
    let hex: String = oid.iter().map(|byte| format!("{byte:02x}")).collect();
    Unreadable::Unsupported(format!("a {what} that is not known here (object identifier {hex})"))
}
