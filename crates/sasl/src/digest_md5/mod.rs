//! The mechanism DIGEST-MD5 (RFC 2831) with quality of protection `auth`, as the JDK's client and server speak it.
//!
//! # Data flow
//! ```text
//! client                                        server
//!   (empty, or nothing) ───────────────────────►  Server::step
//!   Client::step  ◄──────── challenge ──────────  nonce, realm
//!   response with cnonce ──────────────────────►  Server::step: looks the user up, verifies
//!   Client::step  ◄──────── rspauth ────────────  Accepted
//!   Done: the server knows the secret, too
//! ```
//!
//! # Invariants
//! 1. Each side adds random bits of its own, and a nonce is good for one response (`nc=00000001`).
//! 2. A server compares the user's proof in constant time. Everything that does not depend on the secret is checked before
//!    the user is looked up, and an unknown user is compared with a decoy (crate invariant 3).
//! 3. After an error, or at the end, a side takes no further message.
//!
//! Facts about the JDK are from `com.sun.security.sasl.digest` of OpenJDK 17 to 25. Names and passwords are hashed in ISO 8859-1
//! when they can be, else in UTF-8 (RFC 2831, section 2.1.2.1). The JDK's client sends the user as authorization identity, too, because
//! BookKeeper and ZooKeeper give it one, so [`Client`] does the same.

mod client;
mod directives;
mod server;

pub use client::{Client, Step};
pub use server::{Accepted, Server, ServerStep};

use crate::Secret;
use md5::{Digest, Md5};
use std::borrow::Cow;
use std::fmt;

/// The longest challenge that a client takes, in bytes (RFC 2831, section 2.1.1).
pub const CHALLENGE_BYTES_MAX: usize = 2047;
/// The longest response that a server takes, in bytes (RFC 2831, section 2.1.2).
pub const RESPONSE_BYTES_MAX: usize = 4095;

/// The service of BookKeeper (`SaslConstants.SASL_BOOKKEEPER_PROTOCOL`).
pub const BOOKKEEPER_SERVICE: &str = "bookkeeper";
/// The host, and the realm, that BookKeeper gives instead of its own (`SaslConstants.SASL_MD5_DUMMY_HOSTNAME`).
pub const BOOKKEEPER_HOST: &str = "bookkeeper";
/// The service of ZooKeeper (`SaslServerCallbackHandler` is made for it by `ZooKeeperSaslServer`).
pub const ZOOKEEPER_SERVICE: &str = "zookeeper";
/// The host that ZooKeeper gives instead of its own (`SecurityUtils.createSaslClient`).
pub const ZOOKEEPER_HOST: &str = "zk-sasl-md5";

/// Why an exchange failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Longer than the RFC allows.
    #[error("a DIGEST-MD5 message of {size} bytes: at most {max} are taken")]
    TooLong {
        /// Its length in bytes.
        size: usize,
        /// The most.
        max: usize,
    },
    /// Not a list of directives.
    #[error("not a DIGEST-MD5 message: {0}")]
    Malformed(&'static str),
    /// A directive that must be there.
    #[error("the DIGEST-MD5 message lacks {0}")]
    Missing(&'static str),
    /// A directive that may stand there once.
    #[error("the DIGEST-MD5 message has {0} more than once")]
    Repeated(&'static str),
    /// A directive with a value that this side cannot accept.
    #[error("the DIGEST-MD5 message has another {0} than it must have")]
    Unexpected(&'static str),
    /// The server's verdict: there is no such user, or the secret is wrong.
    #[error("unknown user or wrong password")]
    Refused,
    /// The client's verdict: the server proved nothing.
    #[error("the server does not know the password of this user: it is not the server it claims to be")]
    ServerRefused,
    /// A name or password that the server's character set cannot express.
    #[error("the server takes ISO 8859-1 only: use a user and a password without other characters")]
    Unencodable,
    /// A message after the end (invariant 3).
    #[error("the DIGEST-MD5 exchange is over")]
    Over,
}

const NONCE_BITS: usize = 30;

/// Random bits that make an exchange unique, as the JDK writes them: 30 bytes in Base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nonce(String);

impl Nonce {
    /// Takes its bits from `next`, which must return bits that nobody can guess.
    pub fn draw(mut next: impl FnMut() -> u64) -> Nonce {
        let mut bytes = [0; NONCE_BITS];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
        }
        Nonce(base64(&bytes))
    }
}

/// Base64 of bytes whose number divides by three.
fn base64(bytes: &[u8; NONCE_BITS]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups =
        bytes.chunks(3).map(|group| group.iter().fold(0, |bits, &byte| bits << 8 | usize::from(byte)));
    groups.flat_map(|bits| [18, 12, 6, 0].map(|shift| char::from(DIGITS[bits >> shift & 63]))).collect()
}

/// MD5 of `user:realm:password`. A server needs no more than this, and for logging in it is as good as the password.
#[derive(Clone, Copy)]
pub struct Ha1([u8; 16]);

impl Ha1 {
    /// From the password itself.
    pub fn new(user: &str, realm: &str, secret: &Secret) -> Ha1 {
        let parts = [user, realm, secret.expose()].map(latin1_or_utf8);
        let mut hash = Md5::new();
        hash.update(&parts[0]);
        hash.update(b":");
        hash.update(&parts[1]);
        hash.update(b":");
        hash.update(&parts[2]);
        Ha1(hash.finalize().into())
    }

    /// From the bytes that [`Ha1::as_bytes`] gave.
    pub const fn from_bytes(bytes: [u8; 16]) -> Ha1 {
        Ha1(bytes)
    }

    /// The bytes, for a file of users.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Ha1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ha1(…)")
    }
}

/// ISO 8859-1 where that is possible, else UTF-8.
fn latin1_or_utf8(text: &str) -> Cow<'_, [u8]> {
    match latin1(text) {
        Some(bytes) => Cow::Owned(bytes),
        None => Cow::Borrowed(text.as_bytes()),
    }
}

fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect()
}

/// Whose proof a response is.
#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
}

/// The input of both proofs of an exchange.
struct Proofs<'a> {
    ha1: Ha1,
    nonce: &'a [u8],
    cnonce: &'a [u8],
    digest_uri: &'a [u8],
    authzid: Option<&'a [u8]>,
}

/// The use count of a nonce; see invariant 1.
const NONCE_COUNT: &[u8] = b"00000001";
const QOP: &[u8] = b"auth";

impl Proofs<'_> {
    /// `response-value` of RFC 2831, section 2.1.2.1, or that of section 2.1.3.
    fn of(&self, side: Side) -> [u8; 32] {
        let method: &[u8] = match side {
            Side::Client => b"AUTHENTICATE",
            Side::Server => b"",
        };
        let a2 = hex(&md5(&[method, self.digest_uri]));
        let a1 = match self.authzid {
            Some(authzid) => md5(&[self.ha1.as_bytes(), self.nonce, self.cnonce, authzid]),
            None => md5(&[self.ha1.as_bytes(), self.nonce, self.cnonce]),
        };
        hex(&md5(&[&hex(&a1), self.nonce, NONCE_COUNT, self.cnonce, QOP, &a2]))
    }
}

/// MD5 of the parts with colons between them.
fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            hash.update(b":");
        }
        hash.update(part);
    }
    hash.finalize().into()
}

fn hex(bytes: &[u8; 16]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_mut(2).zip(bytes) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    digits
}

#[cfg(test)]
mod tests;
