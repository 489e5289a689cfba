//! Stores of certificates and keys: files that settings name, and what is taken out of them.

use crate::file::{self, FileError};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::PathBuf;

/// A file that a setting names: certificates of authorities, or a key with its certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFile {
    /// The setting, for errors.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// The bytes of a store at one moment.
#[derive(PartialEq, Eq)]
pub struct StoreContents {
    bytes: Vec<u8>,
}

impl fmt::Debug for StoreContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key may be among them.
        f.debug_struct("StoreContents").field("size_bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// A private key, and the certificates that lead from its owner's to an authority.
#[derive(Debug)]
pub struct Identity {
    /// The owner's certificate comes first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The key.
    pub key: PrivateKeyDer<'static>,
}

/// Why a store cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{setting}={}: {error}", .path.display())]
pub struct StoreError {
    /// The setting that names the file.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub error: FileError,
}

impl StoreFile {
    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// When it cannot be read, or is too long.
    pub fn read(&self) -> Result<StoreContents, StoreError> {
        let bytes = file::read(&self.path).map_err(|error| self.unusable(error))?;
        Ok(StoreContents { bytes })
    }

    /// The certificates in the store, at least one.
    ///
    /// # Errors
    /// When there is none.
    pub fn authorities(&self, contents: &StoreContents) -> Result<Vec<CertificateDer<'static>>, StoreError> {
        file::certificates(&contents.bytes).map_err(|error| self.unusable(error))
    }

    /// The key and its certificates, both in one PEM file.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn identity(&self, contents: &StoreContents) -> Result<Identity, StoreError> {
        let unusable = |error| self.unusable(error);
        let key = file::private_key(&self.path, &contents.bytes).map_err(unusable)?;
        let certificates = file::certificates(&contents.bytes).map_err(unusable)?;
        Ok(Identity { certificates, key })
    }

    fn unusable(&self, error: FileError) -> StoreError {
        StoreError { setting: self.setting, path: self.path.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

    use super::*;

    /// Crate invariants 1 and 2.
    #[test]
    fn a_store_is_named_by_its_setting_and_never_printed() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFile { setting: "someKeyStore", path: dir.path().join("mine.pem") };
        let missing = store.read().unwrap_err().to_string();
        assert!(missing.starts_with("someKeyStore=") && missing.contains("mine.pem"), "{missing}");
        std::fs::write(&store.path, b"my secret").unwrap();
        let contents = store.read().unwrap();
        assert!(!format!("{contents:?}").contains("109"), "{contents:?}");
        for said in [
            store.identity(&contents).unwrap_err().to_string(),
            store.authorities(&contents).unwrap_err().to_string(),
        ] {
            assert!(said.starts_with("someKeyStore=") && !said.contains("secret"), "{said}");
        }
    }
}
