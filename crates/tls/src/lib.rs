//! Files and names of TLS, for both ends of a connection: bookies and clients read the same PEM files, and configurations of
//! either name versions and ciphers in the same way.
//!
//! # Data flow
//! ```text
//! path ─► file::read ─► file::certificates, file::private_key ─► configuration of the TLS library (bindery-server, bindery-client)
//! ```
//!
//! # Invariants
//! 1. Bytes of a file are bounded before they are read, and never printed: a key may be among them.
//! 2. An error says what is wrong with the file and how to make one that can be used. Which setting named it is its caller's to say.
//!
//! # Limits     a file: [`file::FILE_BYTES_MAX`]
//! # Not here   reloads and alarms, and the configurations of bookies and of their clients (`bindery-server`, `bindery-client`)

pub mod client;
pub mod file;
mod names;
pub mod store;

pub use names::{CipherName, TlsVersion, UnknownCipher, UnknownVersion, provider, versions};
