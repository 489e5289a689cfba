//! Loading: from PEM files to the configuration of the TLS library.

use super::validity;
use super::{TlsConfig, TlsVersion};
use bindery_tls::file::{self, FILE_BYTES_MAX, FileError};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Certificates, and names of authorities, that every handshake sends: each connection holds them until its peer takes them.
pub(crate) const OFFER_BYTES_MAX: usize = 16 * 1024;

/// Why TLS cannot be spoken. Each says which file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{key}={}: {source}. Give a PEM file that this process may read", .path.display())]
    Read {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is too long to be what it should be.
    #[error("{key}={}: the file has more than {FILE_BYTES_MAX} bytes. Give a PEM file", .path.display())]
    TooLong {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A file holds something else.
    #[error("{key}={}: {why}", .path.display())]
    Content {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Certificate and key do not belong together, or cannot be used.
    #[error(
        "the certificate in tlsCertificatePath={} and the key in tlsKeyStore={} cannot be used together: {why}. Compare what \
         `openssl x509 -noout -pubkey -in {}` and `openssl pkey -pubout -in {}` print",
        .certificates.display(), .key.display(), .certificates.display(), .key.display()
    )]
    Pair {
        /// The certificates.
        certificates: PathBuf,
        /// The key.
        key: PathBuf,
        /// What the library says.
        why: String,
    },
    /// Versions and ciphers leave nothing.
    #[error("tlsEnabledProtocols and tlsEnabledCipherSuites leave nothing to speak: {0}")]
    Settings(String),
}

/// The contents of all files at one moment.
#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    certificates: Vec<u8>,
    key: Vec<u8>,
    client_authorities: Option<Vec<u8>>,
}

impl Contents {
    /// Reads all files. Blocks.
    pub(super) fn read(config: &TlsConfig) -> Result<Contents, TlsError> {
        Ok(Contents {
            certificates: read("tlsCertificatePath", &config.certificates)?,
            key: read("tlsKeyStore", &config.key)?,
            client_authorities: match &config.client_authorities {
                Some(path) => Some(read("tlsTrustStore", path)?),
                None => None,
            },
        })
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    file::read(path).map_err(|error| unusable(key, path, error))
}

/// Names the setting that a file is of.
fn unusable(key: &'static str, path: &Path, error: FileError) -> TlsError {
    let path = path.to_owned();
    match error {
        FileError::Read(source) => TlsError::Read { key, path, source },
        FileError::TooLong => TlsError::TooLong { key, path },
        FileError::Content(why) => TlsError::Content { key, path, why },
    }
}

/// Everything that is used from the files.
pub(super) struct Loaded {
    pub(super) server: Arc<ServerConfig>,
    /// Unix time at which the first of this bookie's certificates expires.
    pub(super) expires_s: Option<u64>,
}

/// Checks the contents of the files and builds the configuration.
pub(super) fn load(config: &TlsConfig, contents: &Contents) -> Result<Loaded, TlsError> {
    let certificates = certificates("tlsCertificatePath", &config.certificates, &contents.certificates)?;
    let key = private_key(&config.key, &contents.key)?;
    let chain_bytes: usize = certificates.iter().map(|certificate| certificate.len() + 5).sum();
    if chain_bytes > OFFER_BYTES_MAX {
        return Err(TlsError::Content {
            key: "tlsCertificatePath",
            path: config.certificates.clone(),
            why: format!(
                "its certificates have {chain_bytes} bytes, of which every connection would hold a copy, and {OFFER_BYTES_MAX} is \
                 the most: keep only the bookie's certificate and those that lead from it to the authority"
            ),
        });
    }
    let expires_s = certificates.iter().filter_map(|certificate| validity::expires_s(certificate)).min();

    let provider = Arc::new(provider(config));
    let versions: Vec<_> = match config.versions.is_empty() {
        true => vec![TlsVersion::V1_3.supported(), TlsVersion::V1_2.supported()],
        false => config.versions.iter().map(|version| version.supported()).collect(),
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| TlsError::Settings(error.to_string()))?;
    let builder = match (&config.client_authorities, &contents.client_authorities) {
        (Some(path), Some(pem)) => {
            builder.with_client_cert_verifier(client_verifier(path, pem, provider, chain_bytes)?)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut server = builder.with_single_cert(certificates, key).map_err(|error| TlsError::Pair {
        certificates: config.certificates.clone(),
        key: config.key.clone(),
        why: error.to_string(),
    })?;
    // Tls invariant 3.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    Ok(Loaded { server: Arc::new(server), expires_s })
}

/// What checks the certificates of clients: against the authorities in `pem`. `chain_bytes` are sent beside their names.
pub(super) fn client_verifier(
    path: &Path,
    pem: &[u8],
    provider: Arc<CryptoProvider>,
    chain_bytes: usize,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let failed = |why: String| TlsError::Content { key: "tlsTrustStore", path: path.to_owned(), why };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tlsTrustStore", path, pem)? {
        roots.add(certificate).map_err(|error| {
            failed(format!("a certificate in it cannot be trusted: {error}. Remove or replace it"))
        })?;
    }
    let name_bytes: usize = roots.subjects().iter().map(|name| name.as_ref().len() + 4).sum();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    // Only a hint: without it a client offers what it has.
    let verifier = match chain_bytes + name_bytes <= OFFER_BYTES_MAX {
        true => verifier,
        false => verifier.clear_root_hint_subjects(),
    };
    verifier.build().map_err(|error| failed(error.to_string()))
}

/// The built-in implementation of ciphers, reduced to the configured ones, in the library's order.
fn provider(config: &TlsConfig) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if !config.ciphers.is_empty() {
        let is_wanted = |suite| config.ciphers.iter().any(|cipher| cipher.suite() == suite);
        provider.cipher_suites.retain(|supported| is_wanted(supported.suite()));
    }
    provider
}

fn certificates(
    key: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    file::certificates(pem).map_err(|error| unusable(key, path, error))
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    file::private_key(path, pem).map_err(|error| unusable("tlsKeyStore", path, error))
}
