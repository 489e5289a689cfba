//! TLS of commands as a shell sees it: options, environment and profile, and what the errors say; the tierer of a process whose
//! bookie requires TLS.

#![allow(clippy::disallowed_methods, reason = "real processes on real files")]

#[path = "../../../server/tests/it/common/certificates.rs"]
mod certificates;

use std::path::Path;
use std::process::Output;

use self::certificates::{Authority, Files, Use};
use super::server::{Place, bindery, free_port};
use super::tiering::{PATIENCE, Tierer, until};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Writes a cluster's files into a directory, with another authority's beside them.
fn files(dir: &Path) -> (Files, String) {
    let authority = Authority::new("cluster");
    let files = Files::write(dir, &authority.issue(Use::Bookie), &authority.certificate);
    let stranger = dir.join("stranger.pem");
    std::fs::write(&stranger, Authority::new("others").certificate).unwrap();
    (files, stranger.display().to_string())
}

#[test]
fn commands_speak_tls_as_options_environment_and_profile_say() {
    let (data, pki, config) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (files, stranger) = files(pki.path());
    let [certificate, key, authority] =
        [&files.certificates, &files.key, &files.authorities].map(|path| path.display().to_string());
    let place = Place::new(data.path(), 1);
    let all = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-ca", &authority, "--tls-required"];
    let server = place.start_with(&all);
    assert!(server.said.contains(&format!("ledger append --tls-ca {authority} LEDGER")), "{}", server.said);

    let id = done(&place.run(&["ledger", "create"]));
    let appended = place.pipe(&["ledger", "append", "--tls-ca", &authority, &id], b"one\ntwo\n");
    assert_eq!(appended.status.code(), Some(0), "{}", said(&appended));
    let profiles = config.path().join("bindery/profiles");
    std::fs::create_dir_all(&profiles).unwrap();
    let profile = format!(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsTrustStoreType=PEM\ntlsTrustStore={authority}\n"
    );
    std::fs::write(profiles.join("prod.conf"), profile).unwrap();
    let read = |options: &[&str], variables: &[(&str, &str)]| {
        let metadata = place.metadata();
        let begin = ["ledger", "read", "--metadata", &metadata];
        let line = [&begin, options, &[&id]].concat();
        bindery(&line).envs(variables.iter().copied()).output().unwrap()
    };
    let home = config.path().display().to_string();
    for (options, variables) in [
        (&["--tls-ca", &authority][..], &[][..]),
        (&[], &[("BINDERY_TLS_CA", &authority[..])]),
        (&["--profile", "prod"], &[("XDG_CONFIG_HOME", &home)]),
        (&[], &[("XDG_CONFIG_HOME", &home), ("BINDERY_PROFILE", "prod")]),
        (&["--tls-ca", &authority, "--tls-skip-name-check"], &[]),
    ] {
        assert_eq!(done(&read(options, variables)), "one\ntwo", "{options:?}");
    }
    let missing = profiles.join("none.conf").display().to_string();
    for (options, code, words) in [
        (&[][..], 7, &["127.0.0.1", "Unauthorized", "--tls"][..]),
        (
            &["--tls-ca", &stranger],
            7,
            &["this client refuses the bookie's certificate", "none of the authorities", &stranger],
        ),
        (&["--tls-ca", "/none.pem"], 2, &["/none.pem"]),
        (&["--tls-cert", &certificate], 2, &["--tls-key"]),
        (&["--user", "hd"], 2, &["--user-password-file", "BINDERY_USER_PASSWORD"]),
        (&["--profile", &missing], 2, &["none.conf"]),
        (&["--user", "hd", "--user-password-file", &certificate, "--sasl", "plain"], 2, &["over TLS only"]),
    ] {
        let refused = read(options, &[]);
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(code), "{options:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{options:?}: {text}");
    }
    // A password is no argument.
    assert_eq!(read(&["--user-password", "tiger"], &[]).status.code(), Some(2));
    drop(server);
}

#[test]
fn the_admin_port_of_a_tierer_speaks_tls_and_asks_for_certificates() {
    let (data, pki, bucket) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let authority = Authority::new("cluster");
    let written = |name: &str, text: &str| {
        let path = pki.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let both = |name: &str, issued: certificates::Issued| {
        written(name, &format!("{}{}", issued.key, issued.certificate))
    };
    let key = both("admin.pem", authority.issue(Use::Bookie));
    let operator = both("operator.pem", authority.issue_to(Use::Client, "0:admin"));
    let authorities = written("authorities.pem", &authority.certificate);
    let keys = format!(
        "httpServerKeyStorePath={key}\nhttpServerTrustStorePath={authorities}\njournalDirectories=/j\n"
    );
    let config = written("bk_server.conf", &format!("httpServerTlsEnable=true\n{keys}"));

    let place = Place::new(data.path(), 1);
    let _server = place.start();
    let (metadata, port) = (place.metadata(), free_port());
    let (listen, url) = (format!("127.0.0.1:{port}"), format!("file://{}", bucket.path().display()));
    let run = [
        "tier",
        "run",
        "--metadata",
        &metadata,
        "--store",
        &url,
        "--memory-limit",
        "64MiB",
        "--admin",
        &listen,
    ];
    let plain = written("plain.conf", &keys);
    let refused = bindery(&[&run[..], &["--admin-config", &plain]].concat()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let why = said(&refused);
    assert!(why.contains("plain.conf") && why.contains("without httpServerTlsEnable=true"), "{why}");

    let _tierer = Tierer::spawn(&[&run[..], &["--admin-config", &config]].concat());
    let ask = |url: String, variables: &[(&str, &str)]| {
        let status = ["tier", "status", "--json", "--admin", &url];
        bindery(&status).envs(variables.iter().copied()).output().unwrap()
    };
    let (trust, own) = (("BINDERY_ADMIN_CA", &authorities[..]), ("BINDERY_ADMIN_CERT", &operator[..]));
    let asked = || ask(format!("https://localhost:{port}"), &[trust, own]);
    let begun = std::time::Instant::now();
    while !asked().status.success() {
        assert!(begun.elapsed() < PATIENCE, "{}", said(&asked()));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(said(&asked()).contains(&url));
    for (url, variables) in
        [(format!("https://localhost:{port}"), &[trust][..]), (format!("http://localhost:{port}"), &[])]
    {
        let refused = ask(url.clone(), variables);
        assert!(!refused.status.success(), "{url}: {}", said(&refused));
    }
}

#[test]
fn a_process_that_requires_tls_moves_ledgers_to_the_store() {
    let (data, pki, bucket) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (files, _) = files(pki.path());
    let [certificate, key, authority] =
        [&files.certificates, &files.key, &files.authorities].map(|path| path.display().to_string());
    let url = format!("file://{}", bucket.path().display());
    let place = Place::new(data.path(), 1);
    let all = [
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--tls-ca",
        &authority,
        "--tls-required",
        "--tier",
        &url,
    ];
    let server = place.start_with(&all);
    let admin = format!("http://127.0.0.1:{}", place.admin_port);
    until(&admin, "the tierer is there", |report| report["store"] == url.as_str());
    let id = done(&place.run(&["ledger", "create"]));
    let appended = place.pipe(&["ledger", "append", "--tls-ca", &authority, &id], b"one\ntwo\n");
    assert_eq!(appended.status.code(), Some(0), "{}", said(&appended));
    let moved = done(&bindery(&["tier", "now", &id, "--admin", &admin]).output().unwrap());
    assert!(moved.contains("2 of 2 entries are in the tier"), "{moved}");
    drop(server);
}
