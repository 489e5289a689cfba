use super::*;
use crate::sources::values::Values;
use bindery_server::tls::TlsConfig;

const JAAS: &str = "BookKeeper {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n    username=\"hd\"\n    \
                    password=\"tiger\";\n};\nOther { x.Y required; };\n";

#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
fn write(dir: &Path, name: &str, content: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// The credentials as `Debug` shows them, which hides the secret.
fn read_login(login: Login) -> Result<String, String> {
    let user = User { mechanism: Mechanism::DigestMd5, login };
    user.read().map(|credentials| format!("{credentials:?}"))
}

/// Module invariant 1.
#[test]
fn secrets_are_read_from_files_and_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let password = write(dir.path(), "password", "tiger\nnot this\n");
    assert_eq!(secret_in(&password).unwrap().expose(), "tiger");
    let jaas = write(dir.path(), "jaas.conf", JAAS);
    let login = login_in(&jaas, "BookKeeper").unwrap();
    assert_eq!((&*login.user, login.secret.expose()), ("hd", "tiger"));
    for login in [
        Login::Given("hd".into(), Secret::new("tiger")),
        Login::File("hd".into(), password),
        Login::Jaas(jaas.clone(), "BookKeeper".into()),
    ] {
        assert!(!format!("{login:?}").contains("tiger"));
        let shown = read_login(login).unwrap();
        assert!(shown.contains("hd") && !shown.contains("tiger"), "{shown}");
    }
    let empty = write(dir.path(), "empty", "\ntiger\n");
    let long = write(dir.path(), "long", &"x".repeat(5000));
    for (login, word) in [
        (Login::File("hd".into(), dir.path().join("none")), "none"),
        (Login::File("hd".into(), dir.path().to_owned()), "not a regular file"),
        (Login::File("hd".into(), empty), "first line is empty"),
        (Login::File("hd".into(), long), "more than 4096 bytes"),
        (Login::Jaas(jaas.clone(), "Client".into()), "BookKeeper, Other"),
        (Login::Jaas(jaas, "Other".into()), "needs username"),
        (Login::Jaas(write(dir.path(), "bad", "password=\"tiger\""), "X".into()), "line 1"),
    ] {
        let refused = read_login(login).unwrap_err();
        assert!(refused.contains(word) && !refused.contains("tiger"), "{word}: {refused}");
    }
}

fn own(wants_certificates: bool, is_required: bool) -> TlsConfig {
    let client_authorities = wants_certificates.then(|| "/ca.pem".into());
    TlsConfig { client_authorities, is_required, ..TlsConfig::new("/b.pem", "/b.key") }
}

fn of_bookie(text: &str, own: Option<&TlsConfig>) -> (BookieSecurity, Vec<String>) {
    let mut file = Values::of(Some(text));
    let security = keys::of_bookie(&mut file, own, true);
    (security, file.faults.into_iter().map(|fault| fault.text).collect())
}

/// As BookKeeper's bookie does with the client of its AutoRecovery.
#[test]
fn the_tierer_of_a_bookie_has_the_bookies_tls() {
    let trust = "tlsTrustStoreType=PEM\ntlsTrustStore=/ca.pem\ntlsKeyStoreType=PEM\n";
    let (security, faults) = of_bookie(trust, Some(&own(true, true)));
    assert_eq!(
        (security.tls, faults),
        (Some(TlsOptions::new().authority("/ca.pem").identity("/b.pem", "/b.key")), vec![])
    );
    let (security, _) = of_bookie(trust, Some(&own(false, false)));
    assert_eq!(security.tls, Some(TlsOptions::new().authority("/ca.pem")));
    // The type of the store counts, not that there is one file for both.
    let one_file = TlsConfig { client_authorities: Some("/ca.pem".into()), ..TlsConfig::new("/b", "/b") };
    let (security, faults) = of_bookie(trust, Some(&one_file));
    assert_eq!(
        (security.tls, faults),
        (Some(TlsOptions::new().authority("/ca.pem").identity("/b", "/b")), vec![])
    );
    for kind in ["", "tlsKeyStoreType=PKCS12\n"] {
        let (_, faults) =
            of_bookie(&format!("tlsTrustStoreType=PEM\ntlsTrustStore=/ca.pem\n{kind}"), Some(&one_file));
        assert!(faults.len() == 1 && faults[0].contains("from PEM files only"), "{faults:?}");
    }
    let skipping = format!("{trust}tlsHostnameVerificationEnabled=false\n");
    let (security, _) = of_bookie(&skipping, Some(&own(false, false)));
    assert_eq!(security.tls, Some(TlsOptions::new().authority("/ca.pem").skip_name_check()));
    // Those of the system.
    assert_eq!(of_bookie("", Some(&own(false, true))).0.tls, Some(TlsOptions::new()));
    assert_eq!(of_bookie(trust, None).0.tls, None);
    assert_eq!(of_bookie("tierTls=false\n", Some(&own(false, false))).0.tls, None);
    for (text, own, word) in [
        ("tierTls=true\n", None, "tlsProviderFactoryClass"),
        ("tierTls=false\n", Some(own(false, true)), "could not talk to this bookie"),
        ("tlsTrustStore=/t.jks\n", Some(own(false, true)), "tlsTrustStoreType=PEM"),
    ] {
        let (_, faults) = of_bookie(text, own.as_ref());
        assert!(faults.len() == 1 && faults[0].contains(word), "{word}: {faults:?}");
    }
}

#[test]
fn the_tierer_of_a_bookie_is_the_user_that_the_file_names() {
    let class = "clientAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLClientProviderFactory\n";
    let (security, faults) = of_bookie(&format!("{class}jaasFile=/jaas.conf\n"), None);
    assert!(faults.is_empty(), "{faults:?}");
    let login = security.user.unwrap().login;
    assert!(
        matches!(&login, Login::Jaas(file, section) if file == Path::new("/jaas.conf") && section == "BookKeeper")
    );
    let (security, _) = of_bookie("saslUser=tier\nsaslPasswordFile=/p\n", None);
    assert!(matches!(&security.user.unwrap().login, Login::File(name, _) if name == "tier"));
    // A bookie without a tierer has no client.
    let mut file = Values::of(Some("saslUser=tier\n"));
    assert!(keys::of_bookie(&mut file, None, false).user.is_none() && file.faults.is_empty());
}
