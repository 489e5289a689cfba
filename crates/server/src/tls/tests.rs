use super::*;
use crate::certificates::{Authority, Files, Issued, Use};
use std::path::Path;

fn config(dir: &Path, bookie: &Issued, authority: Option<&Authority>) -> TlsConfig {
    let files = Files::write(dir, bookie, authority.map_or("", |authority| &authority.certificate));
    TlsConfig {
        client_authorities: authority.map(|_| files.authorities),
        refresh: None,
        ..TlsConfig::new(files.certificates, files.key)
    }
}

fn refused(config: TlsConfig) -> String {
    Tls::open(config, crate::turns::Turns::new(1)).map(|_| ()).unwrap_err().to_string()
}

#[test]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
fn files_that_cannot_be_used_are_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let bookie = authority.issue(Use::Bookie);
    let good = config(dir.path(), &bookie, Some(&authority));
    assert!(Tls::open(good.clone(), crate::turns::Turns::new(1)).is_ok());
    let at = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };

    let missing = TlsConfig { key: dir.path().join("none.key"), ..good.clone() };
    let said = refused(missing);
    assert!(said.contains("tlsKeyStore=") && said.contains("none.key"), "{said}");

    let directory = TlsConfig { certificates: dir.path().to_owned(), ..good.clone() };
    let said = refused(directory);
    assert!(said.contains("tlsCertificatePath=") && said.contains("not a regular file"), "{said}");

    let long = at("long.pem", &vec![b'\n'; bindery_tls::file::FILE_BYTES_MAX as usize + 1]);
    let said = refused(TlsConfig { client_authorities: Some(long), ..good.clone() });
    assert!(said.contains("tlsTrustStore=") && said.contains("more than"), "{said}");

    let cases: [(&[u8], &str); 4] = [
        (b"hello", "Give a PEM file"),
        (&[0xfe, 0xed, 0xfe, 0xed, 0, 0], "damaged"),
        (&[0x30, 0x82, 1, 2], "damaged"),
        (
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "openssl pkey",
        ),
    ];
    for (content, advice) in cases {
        let said = refused(TlsConfig { key: at("other.key", content), ..good.clone() });
        assert!(said.contains("tlsKeyStore=") && said.contains(advice), "{advice}: {said}");
    }
    let said = refused(TlsConfig { certificates: at("other.pem", b"hello"), ..good.clone() });
    assert!(said.contains("no certificate in it"), "{said}");

    // Every handshake would send all of it.
    let many = bookie.certificate.repeat(load::OFFER_BYTES_MAX / 300);
    let said = refused(TlsConfig { certificates: at("many.pem", many.as_bytes()), ..good.clone() });
    assert!(said.contains("tlsCertificatePath=") && said.contains("keep only"), "{said}");

    let other = at("second.key", authority.issue(Use::Bookie).key.as_bytes());
    let said = refused(TlsConfig { key: other, ..good.clone() });
    assert!(said.contains("cannot be used together") && said.contains("openssl x509"), "{said}");

    // A cipher of TLS 1.2 alone, and only TLS 1.3.
    let ciphers = vec!["ECDHE-RSA-AES128-GCM-SHA256".parse().unwrap()];
    let said = refused(TlsConfig { ciphers, versions: vec![TlsVersion::V1_3], ..good });
    assert!(said.contains("leave nothing to speak"), "{said}");
}

/// A bundle of authorities is trusted, and named only as far as every connection can hold the names.
#[test]
fn names_of_many_authorities_are_not_sent() {
    let authorities: Vec<Authority> = (0..300).map(|at| Authority::new(&format!("{at:0>64}"))).collect();
    for (many, named) in [(3, 3), (300, 0)] {
        let pem: String = authorities[..many].iter().map(|authority| &authority.certificate[..]).collect();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let verifier = load::client_verifier(
            &TlsConfig::new("c", "k"),
            bindery_tls::file::certificates(pem.as_bytes()).unwrap(),
            provider,
            1000,
        );
        assert_eq!(verifier.unwrap().root_hint_subjects().len(), named);
    }
}

/// Invariant 2.
#[test]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
fn a_reload_takes_all_files_or_none_and_failures_are_an_alarm() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let first = config(dir.path(), &authority.issue_until(Use::Bookie, 2040), None);
    let tls = Tls::open(first.clone(), crate::turns::Turns::new(1)).unwrap();
    let now_ms = 1_800_000_000_000;
    let in_use = || tls.current.read().clone();
    let (before, expires_2040) = (in_use(), Some(2_208_988_800));
    assert_eq!((tls.expires_s(), tls.reloads(), tls.alarms(now_ms).len()), (expires_2040, 0, 0));

    assert!(!tls.reload(false), "nothing has changed");
    assert!(Arc::ptr_eq(&before, &in_use()) && tls.reloads() == 0);

    // One file of two: what an operator's copy looks like in between.
    let next = authority.issue_until(Use::Bookie, 2041);
    std::fs::write(&first.certificates, &next.certificate).unwrap();
    assert!(tls.reload(false), "it is to be tried again");
    assert!(tls.alarms(now_ms).is_empty() && !tls.is_reload_failed());
    assert!(tls.reload(true));
    assert!(tls.is_reload_failed() && Arc::ptr_eq(&before, &in_use()));
    let alarms = tls.alarms(now_ms);
    assert!(alarms.len() == 1 && alarms[0].contains("cannot be used together"), "{alarms:?}");

    std::fs::write(&first.key, &next.key).unwrap();
    assert!(!tls.reload(false));
    assert!(!Arc::ptr_eq(&before, &in_use()) && tls.reloads() == 1);
    assert!(tls.alarms(now_ms).is_empty() && tls.expires_s() > expires_2040);

    std::fs::remove_file(&first.key).unwrap();
    assert!(tls.reload(true));
    assert!(tls.alarms(now_ms)[0].contains("tlsKeyStore"), "{:?}", tls.alarms(now_ms));
    // As it was: the alarm ends, and there is nothing to load.
    std::fs::write(&first.key, &next.key).unwrap();
    assert!(!tls.reload(false));
    assert!(tls.alarms(now_ms).is_empty() && tls.reloads() == 1);
}

#[test]
fn a_certificate_that_expires_is_an_alarm_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let tls = Tls::open(
        config(dir.path(), &authority.issue_until(Use::Bookie, 2040), None),
        crate::turns::Turns::new(1),
    )
    .unwrap();
    let expires_ms = tls.expires_s().unwrap() * 1000;
    let day_ms = 24 * 3600 * 1000;
    assert!(tls.alarms(expires_ms - 8 * day_ms).is_empty());
    let soon = tls.alarms(expires_ms - 2 * day_ms);
    assert!(soon.len() == 1 && soon[0].contains("in 48 hours"), "{soon:?}");
    let late = tls.alarms(expires_ms + 1000);
    assert!(late.len() == 1 && late[0].contains("has expired"), "{late:?}");
}
