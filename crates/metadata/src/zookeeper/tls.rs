//! TLS to ZooKeeper's servers.
//!
//! # Data flow
//! ```text
//! files -> configuration, again for each connection -> handshake -> stream
//! ```
//!
//! # Invariants
//! 1. Every connection is checked against the files as they are when it begins. Files that cannot be loaded leave those loaded
//!    before in use, with a warning; without any there is no connection.
//! 2. Sessions of TLS are not resumed, so no connection outlives a change of the authorities.

use super::connection::{Refused, is_end};
use super::files::Files;
use crate::fault::Fault;
use bindery_tls::client::{ClientContents, ClientFiles};
use bindery_tls::store::StoreError;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::warn;

/// Makes streams of TLS.
pub(super) struct Tls {
    options: ClientFiles,
    /// Made of files at one moment.
    loaded: Mutex<Option<(ClientContents, Arc<ClientConfig>)>>,
    /// Why they could not be loaded again, as it was logged last.
    warned_of: Mutex<Option<String>>,
    files: Files,
}

impl Tls {
    pub(super) fn new(options: ClientFiles, files: Files) -> Tls {
        Tls { options, loaded: Mutex::new(None), warned_of: Mutex::new(None), files }
    }

    /// A stream of TLS over `socket` to `server`, which is HOST:PORT. Cancelling it closes the socket.
    pub(super) async fn connect(
        self: Arc<Self>,
        server: &str,
        socket: TcpStream,
    ) -> Result<TlsStream<TcpStream>, Refused> {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let host = bindery_types::bare_host(host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Refused::untrusted(format!("{host:?} is no name that a certificate can have")))?;
        let loading = self.clone();
        let config = self.files.look(move || loading.config()).await?;
        let config = config.map_err(|error| Refused::untrusted(error.to_string()))?;
        let connecting = TlsConnector::from(config).connect(name, socket);
        connecting.await.map_err(|error| self.refused(&error))
    }

    /// The configuration of the files as they are now (invariant 1). Warns once of each reason why they cannot be loaded. Blocks.
    fn config(&self) -> Result<Arc<ClientConfig>, StoreError> {
        let error = match self.reload() {
            Ok(config) => {
                *self.warned_of.lock() = None;
                return Ok(config);
            }
            Err(error) => error,
        };
        let former = self.loaded.lock().as_ref().map(|(_, former)| former.clone());
        let Some(former) = former else { return Err(error) };
        let why = error.to_string();
        if self.warned_of.lock().replace(why.clone()).as_ref() != Some(&why) {
            warn!(%error, "cannot load the TLS files for the metadata store: those loaded earlier stay in use");
        }
        Ok(former)
    }

    fn reload(&self) -> Result<Arc<ClientConfig>, StoreError> {
        let contents = self.options.read()?;
        if let Some((former, config)) = &*self.loaded.lock()
            && *former == contents
        {
            return Ok(config.clone());
        }
        let mut config = self.options.configure(&contents)?;
        // Invariant 2.
        config.resumption = rustls::client::Resumption::disabled();
        let config = Arc::new(config);
        *self.loaded.lock() = Some((contents, config.clone()));
        Ok(config)
    }

    /// What an error of a stream means. A server of TLS 1.3 refuses our certificate after the handshake only.
    pub(super) fn refused(&self, error: &io::Error) -> Refused {
        let Some(cause) = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) else {
            return match is_end(error) {
                true => Refused::Fault(Fault::Closed(
                    "it closed the connection during the TLS handshake: is this the server's secure client port?".to_owned(),
                )),
                false => Refused::failed(error.to_string()),
            };
        };
        let authorities = &self.options.authorities;
        match cause {
            Error::InvalidCertificate(
                // The second is of an authority with the name of one that is trusted.
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => Refused::untrusted(format!(
                "none of the authorities in {}={} has signed its certificate",
                authorities.setting,
                authorities.path.display()
            )),
            Error::InvalidCertificate(
                error @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
            ) => Refused::untrusted(format!(
                "its certificate is for another name ({error}): use that name in the URI, or set \
                 zkTlsHostnameVerification=false"
            )),
            Error::InvalidCertificate(error) => {
                Refused::untrusted(format!("its certificate is not accepted: {error}"))
            }
            Error::InvalidMessage(_) => Refused::Fault(Fault::WrongProtocol(format!(
                "it does not speak TLS ({cause}): give the server's secure client port (secureClientPort), or set zkTlsEnable=false"
            ))),
            Error::AlertReceived(
                alert @ (AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::DecryptError
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied
                | AlertDescription::HandshakeFailure),
            ) => Refused::untrusted(match &self.options.identity {
                None => format!(
                    "it refuses a client without a certificate ({alert:?}): give one in zkTlsKeyStore"
                ),
                Some(identity) => format!(
                    "it refuses the certificate in {}={} ({alert:?})",
                    identity.setting,
                    identity.path.display()
                ),
            }),
            other => Refused::failed(format!("TLS: {other}")),
        }
    }
}
