//! TLS to bookies: which of them are trusted, and how this client identifies itself.
//!
//! # Data flow
//! ```text
//! TlsOptions ─► Tls::open ─► load ─► ClientConfig ─► Tls::upgrade, once for each connection, after START_TLS
//!                              ▲                        │
//!                              └── files that changed ◄─┘ looked at before a handshake, at most once a second
//! ```
//!
//! # Invariants
//! 1. A bookie is trusted when its certificate leads to an authority of the options, is valid now, and is for the host that
//!    the bookie advertises, a name or an IP address. Only [`TlsOptions::skip_name_check`] leaves the last of these out.
//! 2. A reload takes all files or none. A failed one keeps what was loaded before, and warns once for each reason.
//! 3. A connection keeps what it began with. Sessions are never resumed, so every connection checks the bookie again.
//! 4. No private key appears in an error, a log line or the output of `Debug`.
//!
//! # Limits     what a connection holds beside [`crate::connection`]'s own: [`OUT_BYTES`] on the way out, which are copies of
//! requests whose bytes their callers have permits for; on the way in one record of 18 KiB and its contents of 16 KiB; during the
//! handshake up to 64 KiB of the bookie's certificates instead; some 10 KiB for keys and state. None of it grows with the number of
//! requests, and it is not part of [`ClientBuilder::memory_limit`](crate::ClientBuilder::memory_limit). A file:
//! [`bindery_tls::file::FILE_BYTES_MAX`]
//! # Not here   START_TLS (`connection::handshake`), files (`bindery_tls`)

mod load;
mod refusal;
#[cfg(test)]
mod tests;

pub use self::load::TlsError;
pub use bindery_tls::{CipherName, TlsVersion, UnknownCipher, UnknownVersion};

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use self::load::Contents;
use self::refusal::Refusals;
use crate::hooks::{BookieAddress, ByteStream};

/// Encrypted bytes that a connection keeps until the kernel takes them: a few records, so that one write of the connection makes
/// one write to the socket.
pub const OUT_BYTES: usize = 64 * 1024;
/// Shortest time between two checks of the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How a client speaks TLS with bookies. The default trusts the authorities that this system trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    authorities: Vec<PathBuf>,
    identity: Option<Identity>,
    skips_name_check: bool,
    versions: Vec<TlsVersion>,
    ciphers: Vec<CipherName>,
}

/// Files of the client's own certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    certificates: PathBuf,
    key: PathBuf,
}

impl TlsOptions {
    /// The same as the default.
    pub fn new() -> TlsOptions {
        TlsOptions::default()
    }

    /// A PEM file of authorities: one of them must have signed the certificates of bookies. May be called again for more files.
    /// The system's authorities are not trusted then.
    pub fn authority(mut self, file: impl Into<PathBuf>) -> TlsOptions {
        self.authorities.push(file.into());
        self
    }

    /// Trusts the system's authorities again, until files are named.
    pub fn without_authorities(mut self) -> TlsOptions {
        self.authorities.clear();
        self
    }

    /// PEM files of this client's certificate, followed by those that lead from it to its authority, and of its private key (PKCS#8,
    /// PKCS#1 or SEC1, without a password): for bookies with `tlsClientAuthentication=true`.
    pub fn identity(mut self, certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> TlsOptions {
        self.identity = Some(Identity { certificates: certificates.into(), key: key.into() });
        self
    }

    /// Takes a certificate of any name for any bookie, as BookKeeper's client does with `tlsHostnameVerificationEnabled=false`.
    /// Anybody who has a certificate of a trusted authority, and its key, can then pass for every bookie: use an authority that
    /// signs certificates of bookies only. The client logs a warning when it is made.
    pub fn skip_name_check(mut self) -> TlsOptions {
        self.skips_name_check = true;
        self
    }

    /// The versions that are spoken, instead of TLS 1.2 and 1.3.
    pub fn versions(mut self, versions: impl IntoIterator<Item = TlsVersion>) -> TlsOptions {
        self.versions = versions.into_iter().collect();
        self
    }

    /// The ciphers that are used, instead of all that the library has.
    pub fn ciphers(mut self, ciphers: impl IntoIterator<Item = CipherName>) -> TlsOptions {
        self.ciphers = ciphers.into_iter().collect();
        self
    }

    fn has_files(&self) -> bool {
        !self.authorities.is_empty() || self.identity.is_some()
    }
}

/// The files in use, and why newer ones are not.
struct State {
    contents: Contents,
    looked_at: Instant,
    is_looking: bool,
    reload_failed: Option<String>,
}

/// A client's side of TLS, shared by its connections. See the module.
pub struct Tls {
    options: TlsOptions,
    current: RwLock<Arc<ClientConfig>>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Tls {
    /// Loads the files. Blocks.
    ///
    /// # Errors
    /// A file that is missing or cannot be used, or a system without authorities; each says what to do.
    pub fn open(options: TlsOptions) -> Result<Tls, TlsError> {
        let contents = Contents::read(&options)?;
        let config = load::load(&options, &contents)?;
        if options.skips_name_check {
            tracing::warn!(
                "the names in bookies' certificates are not checked: anyone with a certificate from a trusted \
                 authority can impersonate any bookie"
            );
        }
        let state = State { contents, looked_at: Instant::now(), is_looking: false, reload_failed: None };
        Ok(Tls { options, current: RwLock::new(config), state: Mutex::new(state) })
    }

    /// The handshake with a bookie that agreed to START_TLS. Bounded by its caller's time; may be dropped at any point.
    ///
    /// # Errors
    /// Why there is no TLS, which side refused it, and what to do.
    pub(crate) async fn upgrade(
        self: &Arc<Self>,
        stream: ByteStream,
        to: &BookieAddress,
    ) -> Result<ByteStream, String> {
        self.look_at_files().await;
        let connector = TlsConnector::from(self.current.read().clone());
        let name = ServerName::try_from(to.host.clone()).map_err(|_| {
            format!(
                "the bookie advertises {:?}, which no certificate can be for: let it advertise a host name or an IP address",
                to.host
            )
        })?;
        let connected = match stream {
            ByteStream::Tcp(socket) => {
                let bounded = |tls: &mut rustls::ClientConnection| tls.set_buffer_limit(Some(OUT_BYTES));
                connector.connect_with(name, socket, bounded).await.map(ByteStream::boxed)
            }
            ByteStream::Boxed(boxed) => {
                let bounded = |tls: &mut rustls::ClientConnection| tls.set_buffer_limit(Some(OUT_BYTES));
                connector.connect_with(name, boxed.into_inner(), bounded).await.map(ByteStream::boxed)
            }
        };
        connected.map_err(|error| self.refusals().of_handshake(&error, &to.host))
    }

    /// A bookie that speaks TLS 1.3 checks the client's certificate after the handshake is over for the client: what it says then
    /// comes with the first read. `None` when the error is no such refusal.
    pub(crate) fn late_refusal(&self, error: &io::Error) -> Option<String> {
        self.refusals().of_first_read(error)
    }

    /// The likely meaning of a connection that ends without an answer: over TLS 1.3, Java's bookies with OpenSSL may refuse
    /// certificates of clients so.
    pub(crate) fn silent_refusal(&self) -> String {
        self.refusals().of_silence()
    }

    fn refusals(&self) -> Refusals<'_> {
        Refusals { options: &self.options }
    }

    /// Loads files that have changed (invariant 2). Cancel safe: a look that was begun goes on without this.
    async fn look_at_files(self: &Arc<Self>) {
        if !self.begin_look(Instant::now()) {
            return;
        }
        let tls = self.clone();
        let looked = tokio::task::spawn_blocking(move || tls.reload()).await;
        if let Err(error) = looked {
            tracing::error!(%error, "reloading the TLS files failed: those loaded earlier stay in use");
        }
    }

    /// True when it is time to look, and nobody does: a file system that hangs holds one thread, not one for each connection.
    fn begin_look(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_due = self.options.has_files()
            && !state.is_looking
            && now.saturating_duration_since(state.looked_at) >= LOOK_INTERVAL;
        state.is_looking |= is_due;
        is_due
    }

    /// Reads the files and loads them if they have changed. Blocks.
    fn reload(&self) {
        let loaded = match Contents::read(&self.options) {
            Ok(contents) if contents == self.state.lock().contents => Ok(None),
            Ok(contents) => load::load(&self.options, &contents).map(|config| Some((contents, config))),
            Err(error) => Err(error),
        };
        let mut state = self.state.lock();
        (state.looked_at, state.is_looking) = (Instant::now(), false);
        let failed = match loaded {
            Ok(None) => None,
            Ok(Some((contents, config))) => {
                *self.current.write() = config;
                state.contents = contents;
                tracing::info!("TLS files reloaded for new connections");
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = failed.as_ref().filter(|_| state.reload_failed != failed) {
            tracing::warn!(error, "cannot reload the TLS files: those loaded earlier stay in use");
        }
        state.reload_failed = failed;
    }
}
