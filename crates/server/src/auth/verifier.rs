//! What is kept of a user's secret, and how a secret is compared with it.
//!
//! ```text
//! digest-md5:HEX                        MD5(user:bookkeeper:password), for DIGEST-MD5, and for PLAIN, too
//! pbkdf2-sha256:ITERATIONS:SALT:HASH    for PLAIN only, in hexadecimal digits
//! ```
//!
//! # Invariants
//! 1. Comparing takes the same work whatever the user's verifier is, and whether there is such a user.

use bindery_sasl::Secret;
use bindery_sasl::digest_md5::{BOOKKEEPER_HOST, Ha1};
use bindery_types::are_equal_secrets;
use ring::pbkdf2;
use std::fmt;
use std::num::NonZeroU32;

/// Prefixes of the two forms.
const DIGEST_MD5: &str = "digest-md5:";
const PBKDF2: &str = "pbkdf2-sha256:";
/// Iterations of new verifiers: they take a core some 50 ms.
pub const ITERATIONS_DEFAULT: u32 = 120_000;
/// More would let a login keep a core for seconds.
pub const ITERATIONS_MAX: u32 = 1_000_000;
/// Fewer protect nothing.
pub const ITERATIONS_MIN: u32 = 1000;
/// Length of new salts.
pub const SALT_BYTES: usize = 16;
const SALT_BYTES_MAX: usize = 64;

/// Derived from a password slowly, so that guessing the password from it takes too long.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Slow {
    iterations: u32,
    salt: Vec<u8>,
    hash: [u8; 32],
}

/// What is known of a user's secret.
#[derive(Clone, Default)]
pub(super) struct Verifier {
    /// For DIGEST-MD5.
    pub(super) ha1: Option<Ha1>,
    pub(super) slow: Option<Slow>,
}

impl Verifier {
    /// From the password itself.
    pub(super) fn of_password(user: &str, secret: &Secret) -> Verifier {
        Verifier { ha1: Some(Ha1::new(user, BOOKKEEPER_HOST, secret)), slow: None }
    }

    /// Parses one of the two forms, and adds it.
    ///
    /// # Errors
    /// What is wrong, without any part of the text, which may be secret.
    pub(super) fn read(&mut self, text: &str) -> Result<(), &'static str> {
        if let Some(digits) = text.strip_prefix(DIGEST_MD5) {
            let bytes = unhex(digits, 16).ok_or("behind digest-md5: there must be 32 hexadecimal digits")?;
            let ha1 = bytes.try_into().map(Ha1::from_bytes).map_err(|_| "a digest of another length")?;
            return if self.ha1.replace(ha1).is_none() {
                Ok(())
            } else {
                Err("digest-md5: stands there twice")
            };
        }
        let Some(rest) = text.strip_prefix(PBKDF2) else {
            return Err("a verifier begins with digest-md5: or pbkdf2-sha256: (bindery user hash writes it)");
        };
        let why = "behind pbkdf2-sha256: there must be iterations (1000 to 1000000), a salt and a hash of 64 hexadecimal digits";
        let mut parts = rest.split(':');
        let (Some(iterations), Some(salt), Some(hash), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(why);
        };
        let iterations = iterations.parse().map_err(|_| why)?;
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return Err(why);
        }
        let salt = unhex(salt, salt.len() / 2).filter(|salt| (8..=SALT_BYTES_MAX).contains(&salt.len()));
        let hash = unhex(hash, 32).and_then(|hash| hash.try_into().ok());
        let slow = Slow { iterations, salt: salt.ok_or(why)?, hash: hash.ok_or(why)? };
        if self.slow.replace(slow).is_none() { Ok(()) } else { Err("pbkdf2-sha256: stands there twice") }
    }

    /// True when nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.ha1.is_none() && self.slow.is_none()
    }

    /// Iterations of the slow derivation; 0 if there is none.
    pub(super) fn iterations(&self) -> u32 {
        self.slow.as_ref().map_or(0, |slow| slow.iterations)
    }

    /// True if `secret` is that of `user`, whose verifier is `known`, if there is such a user. `work` is the highest
    /// [`Verifier::iterations`] of all users: each call computes for as long as these take (invariant 1).
    pub(super) fn matches(known: Option<&Verifier>, user: &str, secret: &Secret, work: u32) -> bool {
        let presented = Ha1::new(user, BOOKKEEPER_HOST, secret);
        let none = Verifier::default();
        let verifier = known.unwrap_or(&none);
        let iterations = verifier.iterations();
        let by_slow = match &verifier.slow {
            Some(slow) => are_equal_secrets(&derive(iterations, &slow.salt, secret), &slow.hash),
            None => false,
        };
        if let Some(rest) = work.checked_sub(iterations).filter(|rest| *rest > 0) {
            derive(rest, &[0; SALT_BYTES], secret);
        }
        let by_digest = match &verifier.ha1 {
            Some(ha1) => are_equal_secrets(presented.as_bytes(), ha1.as_bytes()),
            None => false,
        };
        // If there are both, the slow one counts, which is stronger: the other is for DIGEST-MD5 then.
        if verifier.slow.is_some() { by_slow } else { by_digest }
    }
}

impl PartialEq for Verifier {
    fn eq(&self, other: &Verifier) -> bool {
        let ha1 = |verifier: &Verifier| verifier.ha1.map(|ha1| *ha1.as_bytes());
        ha1(self) == ha1(other) && self.slow == other.slow
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(…)")
    }
}

fn derive(iterations: u32, salt: &[u8], secret: &Secret) -> [u8; 32] {
    let mut hash = [0; 32];
    let iterations = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, secret.expose().as_bytes(), &mut hash);
    hash
}

/// Makes the verifier of a secret for DIGEST-MD5, as a file of users has it. It holds for this name of the user only.
pub fn digest_md5_of(user: &str, secret: &Secret) -> String {
    format!("{DIGEST_MD5}{}", hex(Ha1::new(user, BOOKKEEPER_HOST, secret).as_bytes()))
}

/// Makes the verifier of a secret for PLAIN alone, as a file of users has it. The salt must be random.
pub fn pbkdf2_of(secret: &Secret, iterations: u32, salt: &[u8; SALT_BYTES]) -> String {
    format!("{PBKDF2}{iterations}:{}:{}", hex(salt), hex(&derive(iterations, salt, secret)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str, len: usize) -> Option<Vec<u8>> {
    if digits.len() != 2 * len || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Result<Verifier, &'static str> {
        let mut verifier = Verifier::default();
        texts.iter().try_for_each(|text| verifier.read(text)).map(|()| verifier)
    }

    /// The first with Python's `hashlib.md5(b"hd:bookkeeper:tiger")`, the second with its `hashlib.pbkdf2_hmac`.
    const OF_TIGER: [&str; 2] = [
        "digest-md5:7957634445e6622e148e8736d188eee2",
        "pbkdf2-sha256:1000:000102030405060708090a0b0c0d0e0f:17858316b87c99ccccfa17bb961a0970af10b126484842e732a00c116d38f2ae",
    ];

    #[test]
    fn verifiers_are_those_that_others_compute() {
        let secret = Secret::new("tiger");
        assert_eq!(digest_md5_of("hd", &secret), OF_TIGER[0]);
        let salt = std::array::from_fn(|at| at as u8);
        assert_eq!(pbkdf2_of(&secret, 1000, &salt), OF_TIGER[1]);
    }

    /// Invariant 1, as far as results go.
    #[test]
    fn a_secret_matches_its_own_verifier_and_no_other() {
        for texts in [&OF_TIGER[..1], &OF_TIGER[1..], &OF_TIGER[..]] {
            let verifier = read(texts).unwrap();
            for work in [0, 1000, 3000] {
                let matches =
                    |known, user, secret| Verifier::matches(known, user, &Secret::new(secret), work);
                assert!(matches(Some(&verifier), "hd", "tiger"));
                assert!(!matches(Some(&verifier), "hd", "lion"));
                assert!(!matches(None, "hd", "tiger"));
                let is_of_user = texts.len() == 1 && texts[0].starts_with(DIGEST_MD5);
                assert_eq!(matches(Some(&verifier), "other", "tiger"), !is_of_user);
            }
        }
        assert!(
            !Verifier::matches(Some(&Verifier::default()), "hd", &Secret::new(""), 0),
            "nothing is known"
        );
        assert!(!format!("{:?}", read(&OF_TIGER).unwrap()).contains("0001"));
    }

    #[test]
    fn what_is_no_verifier_is_refused() {
        let hash = "0".repeat(64);
        for wrong in [
            "tiger".to_owned(),
            "digest-md5:".to_owned(),
            "digest-md5:00".to_owned(),
            format!("digest-md5:{}", "g".repeat(32)),
            format!("digest-md5:{}", "+0".repeat(16)),
            "pbkdf2-sha256:1000".to_owned(),
            format!("pbkdf2-sha256:999:0011223344556677:{hash}"),
            format!("pbkdf2-sha256:1000001:0011223344556677:{hash}"),
            format!("pbkdf2-sha256:1000:00112233445566:{hash}"),
            format!("pbkdf2-sha256:1000:{}:{hash}", "00".repeat(65)),
            format!("pbkdf2-sha256:1000:001122334455667:{hash}"),
            format!("pbkdf2-sha256:1000:0011223344556677:{hash}:"),
        ] {
            let error = read(&[&wrong]).unwrap_err();
            let secret = wrong.trim_start_matches(DIGEST_MD5).trim_start_matches(PBKDF2);
            assert!(secret.len() < 5 || !error.contains(secret), "{wrong}");
        }
        assert!(read(&[OF_TIGER[0], OF_TIGER[0]]).is_err() && read(&[OF_TIGER[1], OF_TIGER[1]]).is_err());
    }
}
