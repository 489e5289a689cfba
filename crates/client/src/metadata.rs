//! The metadata store, as far as a client's settings and errors have to do with it.
//!
//! A client connects by URI ([`ClientBuilder::metadata`](crate::ClientBuilder::metadata)). To a secured store it does so with
//! TLS, a login, or both:
//! ```no_run
//! use bindery_client::Client;
//! use bindery_client::metadata::{SaslLogin, Security, StoreFile, TlsOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let authorities = StoreFile::new("trust", "/etc/bookkeeper/authority.pem");
//! let login = SaslLogin::User {
//!     name: "bookkeeper".into(),
//!     password_file: "/etc/bookkeeper/password".into(),
//! };
//! let client = Client::builder()
//!     .metadata("zk://zk1:2281;zk2:2281/ledgers".parse()?)
//!     .metadata_security(Security::new().tls(TlsOptions::new(authorities)).sasl(login).restricted(true))
//!     .connect()
//!     .await?;
//! # Ok(()) }
//! ```
//! A process that embeds a cluster opens a [`Layout`] itself ([`connect`]), and gives it to
//! [`ClientBuilder::layout`](crate::ClientBuilder::layout). What the methods of a `Layout` return (cookies, locks, marks of
//! under-replication), and what a [`StoreFile`] or [`TlsOptions`] reads, is not re-exported: that is for programs which depend on
//! `bindery-metadata` and `bindery-tls` themselves.

pub use bindery_metadata::layout::{IdError, LayoutError, LedgerError, Registration};
pub use bindery_metadata::store::SessionId;
pub use bindery_metadata::{
    ConnectOptions, Endpoint, Fault as MetadataFault, InitError, InitOutcome, Layout, LedgerLayout,
    MetadataUri, OpenError, RegistrationMode, SaslLogin, Security, ServerFaults, SessionCredentials,
    StoreError, TlsOptions, UriError, Version, WaitFor, connect, init,
};
pub use bindery_tls::store::{Password, PasswordSource, StoreFile};
