//! From files to the configuration of the TLS library.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bindery_tls::client::verifier;
use bindery_tls::file::{self, FileError};
use bindery_tls::{provider, versions};
use rustls::client::Resumption;
use rustls::{ClientConfig, RootCertStore};

use super::TlsOptions;

/// Why TLS cannot be spoken. Each says which file and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("the {what} in {}: {why}", .path.display())]
    Unreadable {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said, in a word.
        kind: ErrorKind,
        /// And in full, with what to do.
        why: String,
    },
    /// A file holds something else.
    #[error("the {what} in {}: {why}", .path.display())]
    File {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Certificate and key do not belong together, or cannot be used.
    #[error(
        "the client's certificate in {} and its key in {} cannot be used together: {why}. Compare what `openssl x509 -noout \
         -pubkey -in {}` and `openssl pkey -pubout -in {}` print",
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
    /// No authorities were named, and the system has none.
    #[error(
        "this system has no certificates of authorities to trust ({0}): name a file of the bookies' authority \
         (TlsOptions::authority, --tls-ca FILE)"
    )]
    NoSystemAuthorities(String),
    /// Versions and ciphers leave nothing.
    #[error("the versions and ciphers that were chosen leave nothing to speak: {0}")]
    Settings(String),
    /// The thread that reads the files failed.
    #[error("the files of TLS were not read: {0}")]
    NotRead(String),
}

const AUTHORITIES: &str = "authorities to trust";
const CERTIFICATES: &str = "client's certificate";
const KEY: &str = "client's key";

/// The contents of all files at one moment.
#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    authorities: Vec<Vec<u8>>,
    /// Certificates and key.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Contents {
    /// Reads all files. Blocks.
    pub(super) fn read(options: &TlsOptions) -> Result<Contents, TlsError> {
        let read = |what, path: &PathBuf| file::read(path).map_err(|error| unusable(what, path, &error));
        let authorities =
            options.authorities.iter().map(|path| read(AUTHORITIES, path)).collect::<Result<_, _>>()?;
        let identity = match &options.identity {
            Some(files) => Some((read(CERTIFICATES, &files.certificates)?, read(KEY, &files.key)?)),
            None => None,
        };
        Ok(Contents { authorities, identity })
    }
}

fn unusable(what: &'static str, path: &Path, error: &FileError) -> TlsError {
    let (path, why) = (path.to_owned(), error.to_string());
    match error {
        FileError::Read(source) => TlsError::Unreadable { what, path, kind: source.kind(), why },
        FileError::TooLong | FileError::Content(_) => TlsError::File { what, path, why },
    }
}

/// Checks the contents of the files and builds the configuration. Without files of authorities it reads the system's, which blocks.
pub(super) fn load(options: &TlsOptions, contents: &Contents) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(provider(&options.ciphers));
    let roots = roots(options, contents)?;
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions(&options.versions))
        .map_err(|error| TlsError::Settings(error.to_string()))?;
    let verifier = verifier(roots, provider, !options.skips_name_check)
        .map_err(|error| TlsError::Settings(error.to_string()))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match (&options.identity, &contents.identity) {
        (Some(files), Some((certificates, key))) => {
            let unusable_file = |what, path| move |error: FileError| unusable(what, path, &error);
            let certificates =
                file::certificates(certificates).map_err(unusable_file(CERTIFICATES, &files.certificates))?;
            let key = file::private_key(&files.key, key).map_err(unusable_file(KEY, &files.key))?;
            builder.with_client_auth_cert(certificates, key).map_err(|error| TlsError::Pair {
                certificates: files.certificates.clone(),
                key: files.key.clone(),
                why: error.to_string(),
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    // Tls invariant 3.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn roots(options: &TlsOptions, contents: &Contents) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    if options.authorities.is_empty() {
        let found = rustls_native_certs::load_native_certs();
        // Some systems carry certificates that are no longer well-formed.
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
            let why = if why.is_empty() { "none were found".to_owned() } else { why.join("; ") };
            return Err(TlsError::NoSystemAuthorities(why));
        }
    }
    for (path, pem) in options.authorities.iter().zip(&contents.authorities) {
        file::certificates(pem)
            .and_then(|certificates| file::trust(&mut roots, certificates))
            .map_err(|error| unusable(AUTHORITIES, path, &error))?;
    }
    Ok(roots)
}
