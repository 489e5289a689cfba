//! Certificates and keys: how a bookie identifies itself over TLS, and which clients it accepts. They come from files that may
//! change while it runs.
//!
//! # Data flow
//! ```text
//! files ─► load ─► ServerConfig ─► Tls::begin, once for each connection that asks for TLS
//!   └──── watch: reads them again at intervals; files that cannot be loaded only raise an alarm
//! ```
//!
//! # Invariants
//! 1. A reload closes no connection: each keeps the certificates that it began with.
//! 2. A reload takes all files or none. A failed reload keeps the previous files, is logged once per reason, and is an alarm
//!    until the files can be loaded again.
//! 3. Sessions are never resumed: every connection is checked against the certificates that are trusted now.
//! 4. The number of handshakes that compute at once is bounded ([`Tls::turn`]); they run on threads that no other connection
//!    needs.
//!
//! # Limits     a file: [`bindery_tls::file::FILE_BYTES_MAX`]; certificates that are sent: [`OFFER_BYTES_MAX`]; handshakes: `first_request_max`
//! and 20 KiB
//! # Not here   the sessions of connections ([`crate::connection`]'s transport)

pub(crate) mod limits;
mod load;
mod validity;

pub use bindery_tls::{CipherName, TlsVersion, UnknownCipher, UnknownVersion};
pub(crate) use load::OFFER_BYTES_MAX;
pub use load::TlsError;
pub(crate) use validity::first_subject_unit;

use crate::log_limit::LogLimit;
use crate::reload::{LoadFailure, Reload, Wording};
use crate::turns::Turns;
use bindery_metrics::{About, Exposition, Kind, Row, Table};
use bindery_tls::store::PasswordSource;
use limits::{CLIENT_AUTH_BYTES, HELD_BYTES_MAX};
use load::{Contents, Loaded};
use parking_lot::{Mutex, RwLock};
use rustls::{ServerConfig, ServerConnection};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::SemaphorePermit;

/// One log line in this time about handshakes that fail.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// A certificate that expires sooner than this is an alarm.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// Settings of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM file of this bookie's certificate and those that lead from it to an authority (`tlsCertificatePath`). Where `key` is a
    /// store of Java's, the certificates in that store count instead.
    pub certificates: PathBuf,
    /// PEM file of its private key, or a JKS or PKCS12 store with that and its certificates (`tlsKeyStore`).
    pub key: PathBuf,
    /// The password of that store.
    pub key_password: Option<PasswordSource>,
    /// File of the authorities one of which must have signed a client's certificate (`tlsTrustStore` with
    /// `tlsClientAuthentication=true`); `None`: clients need no certificate.
    pub client_authorities: Option<PathBuf>,
    /// The password, where that is a store of Java's.
    pub client_authorities_password: Option<PasswordSource>,
    /// Versions that are spoken (`tlsEnabledProtocols`); empty for all.
    pub versions: Vec<TlsVersion>,
    /// Ciphers that are used (`tlsEnabledCipherSuites`); empty for all.
    pub ciphers: Vec<CipherName>,
    /// How often to check the files for changes (`tlsCertFilesRefreshDurationSeconds`); `None` for never.
    pub refresh: Option<Duration>,
    /// A connection that does not begin with START_TLS is refused (`tlsRequired`).
    pub is_required: bool,
    /// With `client_authorities`: a client without a certificate is served, too, without the rights that one would give.
    pub serves_without_certificate: bool,
    /// Names of the settings with the files, for errors.
    pub settings: TlsSettings,
}

/// Names of the settings that name files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsSettings {
    /// The setting with the certificates.
    pub certificates: &'static str,
    /// The setting with the key.
    pub key: &'static str,
    /// The setting with the authorities of clients.
    pub client_authorities: &'static str,
}

impl TlsSettings {
    /// Those of the port for clients.
    pub const BOOKIE: TlsSettings = TlsSettings {
        certificates: "tlsCertificatePath",
        key: "tlsKeyStore",
        client_authorities: "tlsTrustStore",
    };
    /// Those of the admin port, whose key and certificates are in one file.
    pub const ADMIN: TlsSettings = TlsSettings {
        certificates: "httpServerKeyStorePath",
        key: "httpServerKeyStorePath",
        client_authorities: "httpServerTrustStorePath",
    };
}

impl TlsConfig {
    /// The default interval of these checks. The files are small.
    pub const REFRESH_DEFAULT: Duration = Duration::from_secs(10);

    /// TLS for all clients, with these files and defaults for all else.
    pub fn new(certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> TlsConfig {
        TlsConfig {
            certificates: certificates.into(),
            key: key.into(),
            key_password: None,
            client_authorities: None,
            client_authorities_password: None,
            versions: Vec::new(),
            ciphers: Vec::new(),
            refresh: Some(TlsConfig::REFRESH_DEFAULT),
            is_required: false,
            serves_without_certificate: false,
            settings: TlsSettings::BOOKIE,
        }
    }

    /// Bytes that each connection may hold for TLS.
    pub fn connection_bytes(&self) -> u64 {
        let of_clients = if self.client_authorities.is_some() { CLIENT_AUTH_BYTES } else { 0 };
        (HELD_BYTES_MAX + of_clients) as u64
    }
}

/// The files in use, and why newer ones are not.
struct State {
    contents: Contents,
    /// Unix time at which the first of this bookie's certificates expires, if it could be read.
    expires_s: Option<u64>,
    reload_failed: LoadFailure,
    reloads: u64,
}

/// Of the files.
const NUMBERS: Table<Tls> = Table::by(
    "port",
    &[
        Row::counter("bindery_tls_reloads", "Times changed TLS files were loaded.", |tls| {
            tls.state.lock().reloads
        }),
        Row::flag(
            "bindery_tls_reload_failed",
            "1 while the TLS files cannot be loaded: certificates loaded earlier stay in use.",
            |tls| tls.state.lock().reload_failed.is_some(),
        ),
        Row::each(
            Kind::Gauge,
            "bindery_tls_certificate_expires_seconds",
            &[],
            "Seconds since 1970 at which the first of the certificates expires.",
            |tls, series| {
                if let Some(expires_s) = tls.state.lock().expires_s {
                    series.count(&[], expires_s);
                }
            },
        ),
    ],
);

/// See the module.
pub struct Tls {
    config: TlsConfig,
    current: RwLock<Arc<ServerConfig>>,
    state: Mutex<State>,
    turns: Turns,
    log: Mutex<LogLimit>,
    records_max: u64,
}

impl Tls {
    /// Loads the files. Blocks. Handshakes compute in `turns`.
    ///
    /// # Errors
    /// A file that is missing or cannot be used, and how to make it so.
    pub fn open(config: TlsConfig, turns: Turns) -> Result<Tls, TlsError> {
        let contents = Contents::read(&config)?;
        let Loaded { server, expires_s } = load::load(&config, &contents)?;
        Ok(Tls {
            config,
            current: RwLock::new(server),
            state: Mutex::new(State {
                contents,
                expires_s,
                reload_failed: LoadFailure::default(),
                reloads: 0,
            }),
            turns,
            log: Mutex::new(LogLimit::new(LOG_INTERVAL)),
            records_max: u64::MAX,
        })
    }

    /// The same, with keys that encrypt fewer records than their cipher allows: for tests, which cannot send that many.
    #[doc(hidden)]
    #[must_use]
    pub fn with_records_max(self, records_max: u64) -> Tls {
        Tls { records_max, ..self }
    }

    /// Most records that a connection encrypts, if its cipher does not allow fewer, before it is closed: its keys are not good for more.
    /// Unbounded, but for tests: then the cipher alone decides.
    pub(crate) fn records_max(&self) -> u64 {
        self.records_max
    }

    /// True when connections that do not begin with START_TLS are refused (`tlsRequired`).
    pub fn is_required(&self) -> bool {
        self.config.is_required
    }

    /// How often to look at the files; `None` for never.
    pub(crate) fn refresh(&self) -> Option<Duration> {
        self.config.refresh
    }

    /// The configuration for a new connection.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.current.read().clone()
    }

    /// The server's side of a new connection.
    pub(crate) fn begin(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(self.current())
    }

    /// A turn to compute a step of a handshake. First come, first served; cancel safe.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        self.turns.handshake().await
    }

    /// `Some` when a failed connection may be logged now: how many were left out since the last one that was.
    pub(crate) fn may_log(&self, now_ns: u64) -> Option<u64> {
        self.log.lock().admit(now_ns)
    }

    fn take(&self, contents: Contents, loaded: Loaded) {
        *self.current.write() = loaded.server;
        let mut state = self.state.lock();
        state.contents = contents;
        state.expires_s = loaded.expires_s;
        state.reloads += 1;
        tracing::info!(expires_unix = loaded.expires_s, "TLS files reloaded");
    }

    /// Unix time at which the first of this bookie's certificates expires, if it could be read.
    #[cfg(test)]
    fn expires_s(&self) -> Option<u64> {
        self.state.lock().expires_s
    }

    /// How often changed files were loaded.
    #[cfg(test)]
    fn reloads(&self) -> u64 {
        self.state.lock().reloads
    }

    /// True while changed files cannot be loaded.
    #[cfg(test)]
    fn is_reload_failed(&self) -> bool {
        self.state.lock().reload_failed.is_some()
    }

    /// The names of its metrics.
    pub(crate) fn about_numbers() -> Vec<About> {
        NUMBERS.about()
    }

    /// Metrics of the files, for some ports by their names: the port for clients has none.
    pub(crate) fn expose<'a>(ports: impl IntoIterator<Item = (&'a str, &'a Tls)>, out: &mut Exposition) {
        NUMBERS.expose_each(ports.into_iter().collect::<Vec<_>>(), out);
    }

    /// Problems that an operator must know about, at `now_ms` of the wall clock.
    pub fn alarms(&self, now_ms: u64) -> Vec<String> {
        let state = self.state.lock();
        let mut alarms: Vec<String> = state.reload_failed.alarm(&Self::WORDING).into_iter().collect();
        let now_s = now_ms / 1000;
        match state.expires_s.map(|expires_s| expires_s.checked_sub(now_s)) {
            Some(None) => alarms.push("a TLS certificate of this bookie has expired".to_owned()),
            Some(Some(left_s)) if left_s < EXPIRES_SOON.as_secs() => {
                alarms.push(format!("a TLS certificate of this bookie expires in {} hours", left_s / 3600));
            }
            _ => {}
        }
        alarms
    }
}

impl Reload for Tls {
    const WORDING: Wording =
        Wording { files: "the TLS files", kept: "the certificates loaded earlier stay in use" };

    /// Invariant 2.
    fn reload(&self, is_last_try: bool) -> bool {
        let failed = match Contents::read(&self.config) {
            Ok(contents) if contents == self.state.lock().contents => None,
            Ok(contents) => match load::load(&self.config, &contents) {
                Ok(loaded) => {
                    self.take(contents, loaded);
                    None
                }
                Err(error) => Some(error),
            },
            Err(error) => Some(error),
        };
        if failed.is_some() && !is_last_try {
            return true;
        }
        let failed = failed.map(|error| error.to_string());
        self.state.lock().reload_failed.note(failed, &Self::WORDING)
    }
}

#[cfg(test)]
mod tests;
