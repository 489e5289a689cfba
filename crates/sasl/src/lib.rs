//! SASL without a network: the mechanisms DIGEST-MD5 and PLAIN, and the JAAS files in which Java keeps their secrets.
//!
//! # Data flow
//! ```text
//! JAAS file ─► jaas::Configuration ─► Credentials, users ─► digest_md5::{Client, Server} ◄─► the peer's messages
//! ```
//! A mechanism takes the message that came and returns the one to send. Its owner carries the messages, bounds their number
//! and gives it random bits.
//!
//! # Invariants
//! 1. No secret is shown: [`Secret`] and [`digest_md5::Ha1`] have a `Debug` that hides them, and no error quotes a message or a
//!    value of a file.
//! 2. Bytes of peers and files give an error, never a panic, and are copied only after their length was checked.
//! 3. A server cannot be asked who exists: an unknown user and a wrong secret give the same error, after the same work.
//!
//! # Limits
//! [`digest_md5::CHALLENGE_BYTES_MAX`], [`digest_md5::RESPONSE_BYTES_MAX`], [`plain::MESSAGE_BYTES_MAX`], [`jaas::FILE_BYTES_MAX`].
//!
//! # Not here
//! The security layers of DIGEST-MD5 (`auth-int`, `auth-conf`): use TLS. GSSAPI.

pub mod digest_md5;
pub mod jaas;
pub mod plain;
mod secret;

pub use secret::{Credentials, Secret};
