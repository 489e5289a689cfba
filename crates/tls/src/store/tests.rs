#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use super::*;
use crate::client::ClientFiles;
use proptest::prelude::*;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use std::path::Path;

/// Made by `testdata/make` with JDK 17 and OpenSSL 3.
const PASSWORD: &str = "words of a store";
const KEYS: [(&str, &[u8]); 5] = [
    ("key.jks", include_bytes!("../../testdata/key.jks")),
    ("key.p12", include_bytes!("../../testdata/key.p12")),
    ("key-old.p12", include_bytes!("../../testdata/key-old.p12")),
    ("openssl.p12", include_bytes!("../../testdata/openssl.p12")),
    ("openssl-old.p12", include_bytes!("../../testdata/openssl-old.p12")),
];
const TRUSTED: [(&str, &[u8]); 3] = [
    ("trust.jks", include_bytes!("../../testdata/trust.jks")),
    ("trust.p12", include_bytes!("../../testdata/trust.p12")),
    ("trust-openssl.p12", include_bytes!("../../testdata/trust-openssl.p12")),
];
const AUTHORITY: &[u8] = include_bytes!("../../testdata/authority.pem");
const OWN: &[u8] = include_bytes!("../../testdata/own.pem");

fn der(pem: &[u8]) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem).unwrap()
}

fn password(text: &str) -> Password {
    Password::new(text)
}

/// The library compares key and certificate.
fn fits(identity: Identity) -> bool {
    let key = default_provider().key_provider.load_private_key(identity.key).unwrap();
    rustls::sign::CertifiedKey::new(identity.certificates, key).keys_match().is_ok()
}

#[test]
fn keys_of_java_and_openssl_are_read_with_their_chains() {
    for (name, bytes) in KEYS {
        let identity = identity_of_java(bytes, Some(&password(PASSWORD)))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(identity.certificates, [der(OWN), der(AUTHORITY)], "{name}");
        assert!(fits(identity), "{name}");
    }
}

#[test]
fn a_trust_store_has_what_java_would_trust() {
    for (name, bytes) in TRUSTED {
        let found = authorities(bytes, Some(&password(PASSWORD)));
        assert_eq!(found.unwrap_or_else(|error| panic!("{name}: {error}")), [der(AUTHORITY)], "{name}");
        let none = identity_of_java(bytes, Some(&password(PASSWORD))).unwrap_err().to_string();
        assert!(none.contains("no private key"), "{name}: {none}");
    }
}

/// PKCS12 invariant 3: as Java, which trusts the certificate of a key, and not those that lead to its authority.
#[test]
fn a_key_store_as_a_trust_store_does_not_trust_the_authority_of_its_key() {
    for (name, bytes) in KEYS {
        let found = authorities(bytes, Some(&password(PASSWORD)));
        assert_eq!(found.unwrap_or_else(|error| panic!("{name}: {error}")), [der(OWN)], "{name}");
    }
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[tag, 0x82, len[0], len[1]], content].concat()
}

/// The store without its authentication code, which stands at the end.
fn without_code(store: &[u8]) -> Vec<u8> {
    assert_eq!((&store[..2], &store[7..9]), (&[0x30, 0x82][..], &[0x30, 0x82][..]));
    let contents = usize::from(store[9]) << 8 | usize::from(store[10]);
    element(0x30, &store[4..11 + contents])
}

/// A store of these bags, neither encrypted nor with an authentication code.
fn plain_store(bags: &[Vec<u8>]) -> Vec<u8> {
    let data = |content: &[u8]| {
        let kind = element(0x06, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01]);
        element(0x30, &[kind, element(0xa0, &element(0x04, content))].concat())
    };
    let parts = element(0x30, &data(&element(0x30, &bags.concat())));
    element(0x30, &[vec![0x02, 0x01, 0x03], data(&parts)].concat())
}

fn bag(kind: u8, content: &[u8]) -> Vec<u8> {
    let kind = element(0x06, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x0a, 0x01, kind]);
    element(0x30, &[kind, element(0xa0, content)].concat())
}

/// PKCS12 invariant 1.
#[test]
fn a_store_without_an_authentication_code_gives_plain_certificates_alone() {
    let words = password(PASSWORD);
    let refused = |store: &[u8], password| open(store, password).unwrap_err().to_string();
    for (name, bytes) in KEYS.into_iter().chain(TRUSTED).filter(|(name, _)| name.ends_with(".p12")) {
        let bare = without_code(bytes);
        for given in [None, Some(&words)] {
            let said = refused(&bare, given);
            assert!(said.contains("no authentication code"), "{name}: {said}");
        }
    }
    let x509 = element(0x06, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01]);
    let der_of_authority = element(0xa0, &element(0x04, &der(AUTHORITY)));
    let certificate = bag(3, &element(0x30, &[x509, der_of_authority].concat()));
    let plain = plain_store(std::slice::from_ref(&certificate));
    assert_eq!(authorities(&plain, None).unwrap(), [der(AUTHORITY)]);
    assert!(refused(&plain, Some(&words)).contains("no authentication code"));
    let with_key = plain_store(&[certificate, bag(1, &element(0x30, b"key"))]);
    assert!(refused(&with_key, None).contains("no authentication code"));
}

#[test]
fn a_wrong_password_is_named_and_a_line_break_behind_the_right_one_is_not_missed() {
    for (name, bytes) in KEYS.into_iter().chain(TRUSTED) {
        let said = |given: Option<&str>| {
            let given = given.map(password);
            authorities(bytes, given.as_ref()).err().map(|error| error.to_string())
        };
        assert!(said(Some("other words")).is_some_and(|said| said.contains("another one")), "{name}");
        assert!(said(None).is_some_and(|said| said.contains("needs a password")), "{name}");
        let written = format!("{PASSWORD}\n");
        assert!(open(bytes, Some(&password(&written))).is_ok(), "{name}");
    }
}

/// Invariant 2: the iterations of the key derivation are a number in the file, too.
#[test]
fn endless_key_derivation_is_refused() {
    let (_, bytes) = KEYS[3];
    // OpenSSL makes 2048 rounds.
    let rounds = [0x02, 0x02, 0x08, 0x00];
    let at = bytes.windows(4).rposition(|window| window == rounds).unwrap();
    let mut many = bytes.to_vec();
    many[at + 2] = 0x00;
    many[at + 3] = 0x00;
    let said = authorities(&many, Some(&password(PASSWORD))).unwrap_err().to_string();
    assert!(said.contains("0 rounds"), "{said}");
    const { assert!(pkcs12::ROUNDS_TOTAL_MAX >= 3 * pkcs12::ROUNDS_MAX) };
}

#[test]
fn a_client_takes_stores_of_java() {
    let dir = tempfile::tempdir().unwrap();
    let store = |(name, bytes): (&str, &[u8]), source: PasswordSource| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        StoreFile { setting: "someStore", path, password: Some(source) }
    };
    let words = dir.path().join("words");
    std::fs::write(&words, PASSWORD).unwrap();
    let file = PasswordSource::File { setting: "somePasswordPath", path: words.clone() };
    for key in KEYS {
        let files = ClientFiles {
            authorities: store(TRUSTED[0], file.clone()),
            identity: Some(store(key, PasswordSource::Given(password(PASSWORD)))),
            verifies_names: true,
        };
        assert!(files.configure(&files.read().unwrap()).is_ok(), "{}", key.0);
    }
    let authorities = store(TRUSTED[1], file);
    let before = authorities.read().unwrap();
    std::fs::write(&words, "other").unwrap();
    assert_ne!(before, authorities.read().unwrap(), "a new password is a change");
    std::fs::remove_file(&words).unwrap();
    let said = authorities.read().unwrap_err().to_string();
    assert!(said.starts_with("somePasswordPath=") && Path::new("words").ends_with("words"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Invariant 2.
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), of_jks in any::<bool>()) {
        let begin: &[u8] = if of_jks { &jks::MAGIC } else { &[0x30, 0x82] };
        let bytes = [begin, &bytes].concat();
        let _ = open(&bytes, Some(&password(PASSWORD)));
        let _ = der::names(&bytes);
    }

    /// Invariants 1 and 2.
    #[test]
    fn no_damaged_store_panics_or_shows_its_password(which in 0..8usize, at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0..3usize) {
        let (_, bytes) = KEYS.into_iter().chain(TRUSTED).nth(which).unwrap();
        let mut damaged = bytes[..bytes.len() - cut].to_vec();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        if let Err(error) = open(&damaged, Some(&password(PASSWORD))) {
            prop_assert!(!error.to_string().contains(PASSWORD));
        }
    }
}

/// Crate invariants 1 and 2.
#[test]
fn a_store_is_named_by_its_setting_and_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let store = StoreFile::new("someKeyStore", dir.path().join("mine.pem"));
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
