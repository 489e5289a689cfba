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

use super::security::TlsOptions;
use bindery_tls::store::{StoreContents, StoreError};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::warn;

/// Makes streams of TLS.
pub(super) struct Tls {
    options: TlsOptions,
    loaded: Mutex<Option<Loaded>>,
}

/// What was made of files at one moment.
struct Loaded {
    authorities: StoreContents,
    identity: Option<StoreContents>,
    config: Arc<ClientConfig>,
}

/// Why there is no stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The server may be fine at another moment.
    Failed(String),
    /// Somebody has to change a certificate or a setting.
    Untrusted(String),
    /// The server refuses the user or the password, or does not know the password itself.
    AuthFailed(String),
}

impl Tls {
    pub(super) fn new(options: TlsOptions) -> Tls {
        Tls { options, loaded: Mutex::new(None) }
    }

    /// A stream of TLS over `socket` to `server`, which is HOST:PORT. Cancelling it closes the socket.
    pub(super) async fn connect(
        self: Arc<Self>,
        server: &str,
        socket: TcpStream,
    ) -> Result<TlsStream<TcpStream>, Refused> {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Refused::Untrusted(format!("{host:?} is no name that a certificate can have")))?;
        let loading = self.clone();
        let config = tokio::task::spawn_blocking(move || loading.config()).await;
        let config = config.map_err(|error| Refused::Failed(error.to_string()))?;
        let config = config.map_err(|error| Refused::Untrusted(error.to_string()))?;
        let connecting = TlsConnector::from(config).connect(name, socket);
        connecting.await.map_err(|error| self.refused(&error))
    }

    /// The configuration of the files as they are now (invariant 1). Blocks.
    fn config(&self) -> Result<Arc<ClientConfig>, LoadError> {
        match self.reload() {
            Ok(config) => Ok(config),
            Err(error) => match &*self.loaded.lock() {
                Some(former) => {
                    warn!(%error, "files of TLS to the metadata store cannot be loaded: those loaded before stay in use");
                    Ok(former.config.clone())
                }
                None => Err(error),
            },
        }
    }

    fn reload(&self) -> Result<Arc<ClientConfig>, LoadError> {
        let authorities = self.options.authorities.read()?;
        let identity = self.options.identity.as_ref().map(|identity| identity.read()).transpose()?;
        if let Some(former) = &*self.loaded.lock()
            && (&former.authorities, &former.identity) == (&authorities, &identity)
        {
            return Ok(former.config.clone());
        }
        let config = Arc::new(configure(&self.options, &authorities, identity.as_ref())?);
        *self.loaded.lock() = Some(Loaded { authorities, identity, config: config.clone() });
        Ok(config)
    }

    /// What an error of a stream means. A server of TLS 1.3 refuses our certificate after the handshake only.
    pub(super) fn refused(&self, error: &io::Error) -> Refused {
        let Some(cause) = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) else {
            return Refused::Failed(format!("{error}; is this the server's secure client port?"));
        };
        let authorities = &self.options.authorities;
        match cause {
            Error::InvalidCertificate(
                // The second is of an authority with the name of one that is trusted.
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => Refused::Untrusted(format!(
                "none of the authorities in {}={} has signed its certificate",
                authorities.setting,
                authorities.path.display()
            )),
            Error::InvalidCertificate(
                error @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
            ) => Refused::Untrusted(format!(
                "its certificate is for another name ({error}): use that name in the URI, or set \
                 zkTlsHostnameVerification=false"
            )),
            Error::InvalidCertificate(error) => {
                Refused::Untrusted(format!("its certificate is not accepted: {error}"))
            }
            Error::InvalidMessage(_) => Refused::Failed(format!(
                "it does not speak TLS ({cause}): give the server's secure client port, or set zkTlsEnable=false"
            )),
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
            ) => Refused::Untrusted(match &self.options.identity {
                None => format!(
                    "it refuses a client without a certificate ({alert:?}): give one in zkTlsKeyStore"
                ),
                Some(identity) => format!(
                    "it refuses the certificate in {}={} ({alert:?})",
                    identity.setting,
                    identity.path.display()
                ),
            }),
            other => Refused::Failed(format!("TLS: {other}")),
        }
    }
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{setting}={path}: {why}")]
    Unusable { setting: &'static str, path: String, why: String },
}

fn configure(
    options: &TlsOptions,
    authorities: &StoreContents,
    identity: Option<&StoreContents>,
) -> Result<ClientConfig, LoadError> {
    let provider = Arc::new(ring::default_provider());
    let trust = &options.authorities;
    let unusable = |why: String| LoadError::Unusable {
        setting: trust.setting,
        path: trust.path.display().to_string(),
        why,
    };
    let mut roots = RootCertStore::empty();
    for certificate in trust.authorities(authorities)? {
        roots.add(certificate).map_err(|error| {
            unusable(format!("a certificate in it cannot be trusted: {error}. Remove or replace it"))
        })?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.build().map_err(|error| unusable(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?;
    let builder = match options.verifies_names {
        true => builder.with_webpki_verifier(verifier),
        false => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(verifier))),
    };
    let mut config = match (&options.identity, identity) {
        (Some(file), Some(contents)) => {
            let identity = file.identity(contents)?;
            builder.with_client_auth_cert(identity.certificates, identity.key).map_err(|error| {
                LoadError::Unusable {
                    setting: file.setting,
                    path: file.path.display().to_string(),
                    why: format!("its key and its first certificate cannot be used together: {error}"),
                }
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    // Invariant 2.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Checks all of a certificate but the name in it.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The library compares names last, when it has accepted all else.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
