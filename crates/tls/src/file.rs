//! Files of an operator: how those of certificates, keys and other secrets are read, and certificates and keys in PEM files.

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A bundle of all public authorities has a quarter of it.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Why a file cannot be used. The caller adds its name.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{0}. Give a PEM file that this process may read")]
    Read(io::Error),
    /// It is too long to be what it should be.
    #[error("the file has more than {FILE_BYTES_MAX} bytes. Give a PEM file")]
    TooLong,
    /// It holds something else; the text says what to do.
    #[error("{0}")]
    Content(String),
}

/// Reads a file of certificates or a key. Blocks.
///
/// # Errors
/// [`FileError::Read`] and [`FileError::TooLong`].
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let bytes = open(path).and_then(|file| read_at_most(file, FILE_BYTES_MAX));
    bytes.map_err(FileError::Read)?.ok_or(FileError::TooLong)
}

/// Opens a file of an operator's, of certificates or of other secrets. Blocks. It may be a link, as orchestrators mount secrets.
///
/// # Errors
/// Those of the system, and one for what is no regular file.
#[allow(clippy::disallowed_methods, reason = "the files of an operator")]
pub fn open(path: &Path) -> io::Result<File> {
    match std::fs::metadata(path)?.is_file() {
        true => File::open(path),
        // Opening a pipe would wait for a writer.
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Rights of users of the machine who are neither the owner nor in the group: to read, to write, and to enter.
const READ_OR_WRITTEN_BY_OTHERS: u32 = 0o006;
const ENTERED_BY_OTHERS: u32 = 0o001;

/// True when every user of the machine may read or change a file: by its mode, in directories that everybody may enter. Blocks.
pub fn is_open_to_all(path: &Path) -> bool {
    // Links lead elsewhere, and the directories there decide.
    let Ok(path) = path.canonicalize() else { return false };
    let has = |path: &Path, bits| path.metadata().is_ok_and(|found| found.mode() & bits != 0);
    has(&path, READ_OR_WRITTEN_BY_OTHERS) && path.ancestors().skip(1).all(|dir| has(dir, ENTERED_BY_OTHERS))
}

/// All of a file, unless it has more bytes than this. Blocks.
///
/// # Errors
/// Those of the system.
pub fn read_at_most(file: File, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok((read as u64 <= bytes_max).then_some(bytes))
}

/// The text of such a file, unless it has more bytes than this. Blocks.
///
/// # Errors
/// Those of [`open`] and of the system, and one for what is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let text = read_at_most(open(path)?, bytes_max)?.map(String::from_utf8).transpose();
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// The certificates in the contents of a file, at least one.
///
/// # Errors
/// [`FileError::Content`].
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    Err(FileError::Content(match found {
        Ok(found) if !found.is_empty() => return Ok(found),
        Ok(_) => format!("no certificate in it. {}", pem_advice(pem)),
        Err(error) => format!("it cannot be read: {error}. {}", pem_advice(pem)),
    }))
}

/// Adds authorities to those that are trusted.
///
/// # Errors
/// [`FileError::Content`] for one that the library cannot use.
pub fn trust(roots: &mut RootCertStore, authorities: Vec<CertificateDer<'static>>) -> Result<(), FileError> {
    for certificate in authorities {
        roots.add(certificate).map_err(|error| {
            FileError::Content(format!(
                "a certificate in it cannot be trusted: {error}. Remove or replace it"
            ))
        })?;
    }
    Ok(())
}

/// The private key in the contents of a file: PKCS#8, PKCS#1 or SEC1, without a password. `path` is for the advice.
///
/// # Errors
/// [`FileError::Content`].
pub fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    let has = |text: &str| pem.windows(text.len()).any(|window| window == text.as_bytes());
    Err(FileError::Content(match PrivateKeyDer::from_pem_slice(pem) {
        _ if has("ENCRYPTED") => format!(
            "the key in it is encrypted, which is not supported: write it without a password with `openssl pkey -in {} -out \
             key.pem`, in a directory that only the user of this process may read",
            path.display()
        ),
        Ok(key) => return Ok(key),
        Err(error) => format!("no private key can be read from it: {error}. {}", pem_advice(pem)),
    }))
}

/// How to turn this file into PEM.
fn pem_advice(content: &[u8]) -> &'static str {
    const JKS: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];
    match content {
        _ if content.starts_with(&JKS) => {
            "It is a JKS store: make it a PKCS12 store with `keytool -importkeystore -srckeystore FILE -destkeystore store.p12 \
             -deststoretype PKCS12`, and PEM files of that with `openssl pkcs12`"
        }
        [0x30, ..] => {
            "It looks like a PKCS12 store: take the key out with `openssl pkcs12 -in FILE -nocerts -nodes -out key.pem` and the \
             certificates with `openssl pkcs12 -in FILE -nokeys -out certificates.pem`"
        }
        _ => "Give a PEM file",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

    use super::*;

    /// Crate invariant 1.
    #[test]
    fn a_long_file_or_none_is_not_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long.pem");
        std::fs::write(&path, vec![b'\n'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(read(&path), Err(FileError::TooLong)));
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(read(&path).unwrap(), b"short");
        assert!(matches!(read(dir.path()), Err(FileError::Read(_))));
    }

    #[test]
    fn a_file_is_open_to_all_where_its_directories_are() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let set =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let (path, link) = (dir.path().join("key.pem"), dir.path().join("link"));
        std::fs::write(&path, b"secret").unwrap();
        symlink(&path, &link).unwrap();
        set(dir.path(), 0o755);
        for (mode, is_open) in [(0o644, true), (0o602, true), (0o640, false), (0o440, false), (0o600, false)]
        {
            set(&path, mode);
            assert_eq!((is_open_to_all(&path), is_open_to_all(&link)), (is_open, is_open), "{mode:o}");
        }
        set(&path, 0o644);
        set(dir.path(), 0o750);
        assert!(!is_open_to_all(&path), "nobody else gets there");
        assert!(!is_open_to_all(&dir.path().join("none")));
    }

    /// Crate invariants 1 and 2.
    #[test]
    fn other_contents_get_advice_and_are_not_printed() {
        let cases: [(&[u8], &str); 4] = [
            (b"my secret", "Give a PEM file"),
            (&[0xfe, 0xed, 0xfe, 0xed, 0, 0], "keytool -importkeystore"),
            (&[0x30, 0x82, 1, 2], "openssl pkcs12 -in"),
            (
                b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
                "openssl pkey -in my.key",
            ),
        ];
        for (content, advice) in cases {
            let said = private_key(Path::new("my.key"), content).unwrap_err().to_string();
            assert!(said.contains(advice) && !said.contains("secret"), "{said}");
        }
        let said = certificates(b"my secret").unwrap_err().to_string();
        assert!(said.contains("no certificate in it") && !said.contains("secret"), "{said}");
    }
}
