//! Stores of certificates and keys: files that settings name, and what is taken out of them. A store is PEM, or PKCS12 or JKS with a
//! password, as Java has them. Its first bytes say which, so that a store of Java may be either, as for the JDK.
//!
//! # Invariants
//! 1. No password, key or content of a store appears in an error or in a `Debug`.
//! 2. Whatever the bytes are, reading them ends with a store or an error.

mod der;
mod jks;
mod pkcs12;

use crate::file::{self, FileError};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;
use std::path::PathBuf;

/// The password of a store.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Wraps it.
    pub fn new(password: impl Into<String>) -> Password {
        Password(password.into())
    }

    fn text(&self) -> &str {
        &self.0
    }

    /// As Java's `char`s, big-endian.
    fn utf16(&self) -> Vec<u8> {
        self.0.encode_utf16().flat_map(u16::to_be_bytes).collect()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// Where the password of a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PasswordSource {
    /// The whole content of a file, as Java's bookies read it. A line break at the end counts for them, and may be there or not for us.
    File {
        /// The setting, for errors.
        setting: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Given in the settings.
    Given(Password),
}

/// A file that a setting names: certificates of authorities, or a key with its certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFile {
    /// The setting, for errors.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Its password; PEM files have none.
    pub password: Option<PasswordSource>,
}

/// The bytes of a store at one moment.
#[derive(PartialEq, Eq)]
pub struct StoreContents {
    bytes: Vec<u8>,
    password: Option<Password>,
}

impl StoreContents {
    /// Those of a store that is no file.
    pub fn new(bytes: impl Into<Vec<u8>>, password: Option<Password>) -> StoreContents {
        StoreContents { bytes: bytes.into(), password }
    }

    /// Whether it is a JKS or a PKCS12 store.
    pub fn is_of_java(&self) -> bool {
        is_of_java(&self.bytes)
    }

    /// All of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
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
    /// Its fault.
    pub error: FileError,
}

impl StoreFile {
    /// A store without a password.
    pub fn new(setting: &'static str, path: impl Into<PathBuf>) -> StoreFile {
        StoreFile { setting, path: path.into(), password: None }
    }

    /// Opened with a password; with none a store is read as it is.
    pub fn password(mut self, password: impl Into<Option<PasswordSource>>) -> StoreFile {
        self.password = password.into();
        self
    }

    /// Reads the file, and that of the password. Blocks.
    ///
    /// # Errors
    /// When one of them cannot be read, or is too long.
    pub fn read(&self) -> Result<StoreContents, StoreError> {
        let bytes = file::read(&self.path).map_err(|error| self.unusable(error))?;
        let password = match &self.password {
            None => None,
            Some(PasswordSource::Given(password)) => Some(password.clone()),
            Some(PasswordSource::File { setting, path }) => {
                let unusable = |error| StoreError { setting, path: path.clone(), error };
                let text = String::from_utf8(file::read(path).map_err(unusable)?);
                let no_text = |_| unusable(FileError::Content("a password is text in UTF-8".to_owned()));
                Some(Password(text.map_err(no_text)?))
            }
        };
        Ok(StoreContents { bytes, password })
    }

    /// The certificates in the store, at least one. Of a store of Java those that Java trusts.
    ///
    /// # Errors
    /// When there is none.
    pub fn authorities(&self, contents: &StoreContents) -> Result<Vec<CertificateDer<'static>>, StoreError> {
        let found = authorities(&contents.bytes, contents.password.as_ref());
        found.map_err(|error| self.unusable(error))
    }

    /// The key and its certificates, all in one file.
    ///
    /// # Errors
    /// When one of them is missing.
    pub fn identity(&self, contents: &StoreContents) -> Result<Identity, StoreError> {
        if is_of_java(&contents.bytes) {
            let found = identity_of_java(&contents.bytes, contents.password.as_ref());
            return found.map_err(|error| self.unusable(error));
        }
        let unusable = |error| self.unusable(error);
        let key = file::private_key(&self.path, &contents.bytes).map_err(unusable)?;
        let certificates = file::certificates(&contents.bytes).map_err(unusable)?;
        Ok(Identity { certificates, key })
    }

    pub(crate) fn unfit(&self, why: String) -> StoreError {
        self.unusable(FileError::Content(why))
    }

    pub(crate) fn unusable(&self, error: FileError) -> StoreError {
        StoreError { setting: self.setting, path: self.path.clone(), error }
    }
}

/// Whether these are the first bytes of a JKS or a PKCS12 store. No PEM file begins so.
fn is_of_java(bytes: &[u8]) -> bool {
    bytes.starts_with(&jks::MAGIC) || bytes.first() == Some(&der::SEQUENCE)
}

/// The certificates of authorities in a store of any form.
fn authorities(bytes: &[u8], password: Option<&Password>) -> Result<Vec<CertificateDer<'static>>, FileError> {
    if !is_of_java(bytes) {
        return file::certificates(bytes);
    }
    let Contained { key, trusted } = open(bytes, password)?;
    // As Java's trust managers, which take the certificate of a key for trusted.
    let of_key = key.and_then(|(_, chain)| chain.into_iter().next());
    let found: Vec<_> = trusted.into_iter().chain(of_key).map(CertificateDer::from).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(content(
            "no certificate in it that Java would trust: add some with keytool -importcert".to_owned(),
        )),
    }
}

/// The key and its certificates in a JKS or a PKCS12 store.
fn identity_of_java(bytes: &[u8], password: Option<&Password>) -> Result<Identity, FileError> {
    let (key, chain) = open(bytes, password)?
        .key
        .ok_or_else(|| content("no private key in it: it may be a trust store".to_owned()))?;
    if chain.is_empty() {
        return Err(content("no certificate of its key in it".to_owned()));
    }
    Ok(Identity {
        certificates: chain.into_iter().map(CertificateDer::from).collect(),
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key)),
    })
}

/// The contents of a Java store.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contained {
    /// A key (PKCS#8) and its chain.
    key: Option<(Vec<u8>, Vec<Vec<u8>>)>,
    trusted: Vec<Vec<u8>>,
}

/// The one key of a store.
#[derive(Default)]
struct OneKey(Option<(Vec<u8>, Vec<Vec<u8>>)>);

impl OneKey {
    fn set(&mut self, key: Vec<u8>, chain: Vec<Vec<u8>>) -> Result<(), Unreadable> {
        match self.0.replace((key, chain)) {
            None => Ok(()),
            Some(_) => Err(Unreadable::SeveralKeys),
        }
    }
}

/// Why a store of Java cannot be read.
#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    Malformed,
    WrongPassword,
    WrongKeyPassword,
    SeveralKeys,
    /// No authentication code where one is needed.
    Unauthenticated,
    Unsupported(String),
}

impl From<der::Malformed> for Unreadable {
    fn from(_: der::Malformed) -> Unreadable {
        Unreadable::Malformed
    }
}

fn content(why: String) -> FileError {
    FileError::Content(why)
}

/// Opens a store of Java.
fn open(bytes: &[u8], password: Option<&Password>) -> Result<Contained, FileError> {
    let none = Password(String::new());
    let given = password.unwrap_or(&none);
    let read = if bytes.starts_with(&jks::MAGIC) { jks::read } else { pkcs12::read };
    let opened = match (read(bytes, given), given.text().trim_end_matches(['\r', '\n'])) {
        (Err(Unreadable::WrongPassword), trimmed) if trimmed != given.text() => {
            read(bytes, &Password(trimmed.to_owned()))
        }
        (opened, _) => opened,
    };
    opened.map_err(|error| {
        content(match error {
            Unreadable::WrongPassword if password.is_none() => {
                "it needs a password: give the setting for it, too".to_owned()
            }
            Unreadable::WrongPassword => "its password is another one, or it is damaged".to_owned(),
            Unreadable::WrongKeyPassword => {
                "its key has another password than the store: give it the same with keytool -keypasswd"
                    .to_owned()
            }
            Unreadable::SeveralKeys => {
                "it holds several keys: keep the one to be used, and delete the others with keytool -delete"
                    .to_owned()
            }
            Unreadable::Unauthenticated => {
                "it has no authentication code, so anybody could have changed it; without one, and without a password in the \
                 settings, only certificates that are not encrypted are read: make another of it with keytool -importkeystore \
                 -deststoretype PKCS12"
                    .to_owned()
            }
            Unreadable::Malformed => {
                "it is damaged, or neither a PEM file nor a JKS or PKCS12 store".to_owned()
            }
            Unreadable::Unsupported(what) => format!(
                "it has {what}: make another of it with keytool -importkeystore -deststoretype PKCS12"
            ),
        })
    })
}

#[cfg(test)]
mod tests;
