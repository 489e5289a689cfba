//! Loading: from files to the configuration of the TLS library.

use super::validity;
use super::{TlsConfig, TlsSettings};
use bindery_tls::file::{self, FILE_BYTES_MAX, FileError};
use bindery_tls::store::{Identity, StoreContents, StoreError, StoreFile};
use bindery_tls::{provider, versions};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
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
        "the certificate in {}={} and the key in {}={} cannot be used together: {why}. Compare what \
         `openssl x509 -noout -pubkey -in {}` and `openssl pkey -pubout -in {}` print",
        .settings.certificates, .certificates.display(), .settings.key, .key.display(), .certificates.display(), .key.display()
    )]
    Pair {
        /// Names of their settings.
        settings: TlsSettings,
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
    key: StoreContents,
    client_authorities: Option<StoreContents>,
}

impl Contents {
    /// Reads all files. Blocks.
    pub(super) fn read(config: &TlsConfig) -> Result<Contents, TlsError> {
        Ok(Contents {
            certificates: read(config.settings.certificates, &config.certificates)?,
            key: key_store(config).read()?,
            client_authorities: authorities_store(config).map(|store| store.read()).transpose()?,
        })
    }
}

/// The file with the key.
fn key_store(config: &TlsConfig) -> StoreFile {
    let (setting, path) = (config.settings.key, config.key.clone());
    StoreFile::new(setting, path).password(config.key_password.clone())
}

/// The file with the authorities of clients, if they need a certificate.
fn authorities_store(config: &TlsConfig) -> Option<StoreFile> {
    let (setting, path) = (config.settings.client_authorities, config.client_authorities.clone()?);
    Some(StoreFile::new(setting, path).password(config.client_authorities_password.clone()))
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    file::read(path).map_err(|error| unusable(key, path, error))
}

impl From<StoreError> for TlsError {
    fn from(StoreError { setting, path, error }: StoreError) -> TlsError {
        unusable(setting, &path, error)
    }
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
    let settings = config.settings;
    let Identity { certificates, key } = match contents.key.is_of_java() {
        true => key_store(config).identity(&contents.key)?,
        false => Identity {
            certificates: file::certificates(&contents.certificates)
                .map_err(|error| unusable(settings.certificates, &config.certificates, error))?,
            key: file::private_key(&config.key, contents.key.bytes())
                .map_err(|error| unusable(settings.key, &config.key, error))?,
        },
    };
    let chain_bytes: usize = certificates.iter().map(|certificate| certificate.len() + 5).sum();
    if chain_bytes > OFFER_BYTES_MAX {
        return Err(TlsError::Content {
            key: settings.certificates,
            path: config.certificates.clone(),
            why: format!(
                "its certificates have {chain_bytes} bytes, of which every connection would hold a copy, and {OFFER_BYTES_MAX} is \
                 the most: keep only the bookie's certificate and those that lead from it to the authority"
            ),
        });
    }
    let expires_s = certificates.iter().filter_map(|certificate| validity::expires_s(certificate)).min();

    let provider = Arc::new(provider(&config.ciphers));
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions(&config.versions))
        .map_err(|error| TlsError::Settings(error.to_string()))?;
    let builder = match (authorities_store(config), &contents.client_authorities) {
        (Some(store), Some(contents)) => {
            let authorities = store.authorities(contents)?;
            builder.with_client_cert_verifier(client_verifier(config, authorities, provider, chain_bytes)?)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut server = builder.with_single_cert(certificates, key).map_err(|error| TlsError::Pair {
        settings,
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

/// Checks the certificates of clients, against these authorities. `chain_bytes` are sent beside their names.
pub(super) fn client_verifier(
    config: &TlsConfig,
    authorities: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    chain_bytes: usize,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let key = config.settings.client_authorities;
    let path = config.client_authorities.as_deref().unwrap_or(Path::new(""));
    let mut roots = RootCertStore::empty();
    file::trust(&mut roots, authorities).map_err(|error| unusable(key, path, error))?;
    let name_bytes: usize = roots.subjects().iter().map(|name| name.as_ref().len() + 4).sum();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    // Only a hint: without it a client offers what it has.
    let verifier = match chain_bytes + name_bytes <= OFFER_BYTES_MAX {
        true => verifier,
        false => verifier.clear_root_hint_subjects(),
    };
    let verifier = match config.serves_without_certificate {
        true => verifier.allow_unauthenticated(),
        false => verifier,
    };
    verifier.build().map_err(|error| unusable(key, path, FileError::Content(error.to_string())))
}
