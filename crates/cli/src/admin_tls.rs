//! TLS of the admin port: BookKeeper's `httpServer` keys, and one of ours.
//!
//! Nothing is read here but the settings: the files are loaded when the bookie starts.

use crate::exit::{self, Failure};
use crate::sources::values::{Finding, Values, absolute};
use crate::switches::{Switch, refuse_without};
use bindery_server::tls::{TlsConfig, TlsSettings};
use bindery_tls::store::{Password, PasswordSource};
use std::path::Path;

/// What switches all of them on. BookKeeper's file has it with false.
const SWITCH: Switch = Switch {
    key: "httpServerTlsEnable",
    on: "true",
    off: None,
    harm: "the admin port speaks plain HTTP, and asks nobody for a certificate",
};
const ASKS: [&str; 5] = [
    "httpServerTrustStorePath",
    "httpServerClientCertificates",
    "httpServerKeyStorePath",
    "httpServerKeyStorePassword",
    "httpServerTrustStorePassword",
];

/// Reads the keys; `None`: the port speaks plain HTTP.
pub fn apply(file: &mut Values, has_port: bool) -> Option<TlsConfig> {
    let is_on = file.flag("httpServerTlsEnable").unwrap_or(false);
    let key = file.take("httpServerKeyStorePath").map(|path| absolute(Path::new(&path), file));
    let authorities = file.take("httpServerTrustStorePath").map(|path| absolute(Path::new(&path), file));
    let password = |text: String| PasswordSource::Given(Password::new(text));
    let key_password = file.take("httpServerKeyStorePassword").map(password);
    let client_authorities_password = file.take("httpServerTrustStorePassword").map(password);
    let clients = file.take("httpServerClientCertificates");
    if !is_on {
        if has_port {
            refuse_without(file, &SWITCH, &ASKS);
        }
        return None;
    }
    if !has_port {
        file.warn("httpServerTlsEnable", "httpServerTlsEnable=true has no effect without an admin port");
    }
    let serves_without_certificate = match clients.as_deref() {
        None | Some("required") => false,
        Some("optional") => true,
        Some(other) => {
            let text = format!("httpServerClientCertificates={other}: give required or optional");
            file.fault("httpServerClientCertificates", text);
            false
        }
    };
    if clients.is_some() && authorities.is_none() {
        file.fault(
            "httpServerClientCertificates",
            "httpServerClientCertificates needs httpServerTrustStorePath, the authorities that sign these certificates",
        );
    }
    let Some(key) = key else {
        file.fault(
            "httpServerTlsEnable",
            "httpServerTlsEnable=true needs httpServerKeyStorePath, a PEM file or a store of Java's with the key and the certificates of the admin port",
        );
        return None;
    };
    Some(TlsConfig {
        key_password,
        client_authorities: authorities,
        client_authorities_password,
        serves_without_certificate,
        settings: TlsSettings::ADMIN,
        ..TlsConfig::new(key.clone(), key)
    })
}

/// TLS of an admin port that has no bookie, from a file of `--admin-config`, and whether this machine needs a token, too
/// (`httpServerTokenRequired`). Others of its keys are a bookie's.
///
/// # Errors
/// The file cannot be read, its keys are faulty, or it does not switch TLS on: a port that was to be encrypted is not opened in
/// plain text.
pub fn of_file(path: &Path) -> Result<(TlsConfig, bool), Failure> {
    let shown = path.display();
    let failed = |why: String| Failure::usage(format!("--admin-config {shown}: {why}"));
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let mut file = Values::of(Some(&text));
    let tls = apply(&mut file, true);
    let is_token_required = file.flag("httpServerTokenRequired").unwrap_or(false);
    let faults: Vec<String> = file.faults.iter().map(Finding::to_string).collect();
    if !faults.is_empty() {
        return Err(failed(faults.join(exit::BETWEEN_FAULTS)));
    }
    let tls = tls.ok_or_else(|| {
        failed("it has no httpServerTlsEnable=true, so the admin port would speak plain HTTP".to_owned())
    })?;
    Ok((tls, is_token_required))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str) -> (Option<TlsConfig>, Vec<String>, Vec<String>) {
        let mut file = Values::of(Some(text));
        let tls = apply(&mut file, true);
        let texts = |found: Vec<Finding>| found.into_iter().map(|finding| finding.text).collect();
        (tls, texts(file.faults), texts(file.warnings))
    }

    #[test]
    fn clients_need_certificates_where_authorities_are_named_as_in_java() {
        let plain = TlsConfig { settings: TlsSettings::ADMIN, ..TlsConfig::new("/k", "/k") };
        let on = "httpServerTlsEnable=true\nhttpServerKeyStorePath=/k\n";
        assert_eq!(applied(on), (Some(plain.clone()), Vec::new(), Vec::new()));
        let mutual = TlsConfig { client_authorities: Some("/a".into()), ..plain };
        let trust = format!("{on}httpServerTrustStorePath=/a\n");
        assert_eq!(applied(&trust).0, Some(mutual.clone()));
        let stores = format!("{trust}httpServerKeyStorePassword=one\nhttpServerTrustStorePassword=two\n");
        let given = |text: &str| Some(PasswordSource::Given(Password::new(text)));
        let expected = TlsConfig {
            key_password: given("one"),
            client_authorities_password: given("two"),
            ..mutual.clone()
        };
        let (tls, faults, _) = applied(&stores);
        assert!(!format!("{tls:?}{faults:?}").contains("one\""));
        assert_eq!(tls, Some(expected));
        let optional = TlsConfig { serves_without_certificate: true, ..mutual };
        assert_eq!(applied(&format!("{trust}httpServerClientCertificates=optional\n")).0, Some(optional));
        let off = "httpServerTlsEnable=false\nhttpServerKeyStorePath=/k.jks\n";
        assert_eq!(apply(&mut Values::of(Some(off)), false), None);
        let of_sample = "httpServerTlsEnable=false\nhttpServerKeyStorePath=\nhttpServerTrustStorePassword=\n";
        assert_eq!(applied(of_sample), (None, Vec::new(), Vec::new()));
        for (text, why) in [
            ("httpServerTlsEnable=true\n".to_owned(), "needs httpServerKeyStorePath"),
            (off.to_owned(), "without httpServerTlsEnable=true"),
            ("httpServerTrustStorePath=/a\n".to_owned(), "without httpServerTlsEnable=true"),
            ("httpServerClientCertificates=required\n".to_owned(), "without httpServerTlsEnable=true"),
            (format!("{on}httpServerClientCertificates=optional\n"), "needs httpServerTrustStorePath"),
            (format!("{trust}httpServerClientCertificates=some\n"), "required or optional"),
        ] {
            let faults = applied(&text).1;
            assert!(faults.len() == 1 && faults[0].contains(why), "{text}: {faults:?}");
        }
        assert_eq!(apply(&mut Values::of(Some(on)), false).map(|tls| tls.key), Some("/k".into()));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
    fn a_file_of_its_own_has_to_switch_tls_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.conf");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            of_file(&path)
        };
        let on = "httpServerTlsEnable=true\nhttpServerKeyStorePath=/k\njournalDirectories=/j\n";
        let (tls, is_token_required) = of(on).unwrap();
        assert!(tls.key == Path::new("/k") && !is_token_required);
        assert!(of(&format!("{on}httpServerTokenRequired=true\n")).unwrap().1);
        for (text, why) in [
            ("httpServerKeyStorePath=/k\n", "without httpServerTlsEnable=true"),
            ("journalDirectories=/j\n", "plain HTTP"),
            ("httpServerTlsEnable=true\n", "needs httpServerKeyStorePath"),
        ] {
            let failure = of(text).unwrap_err();
            assert!(failure.code == exit::USAGE && failure.to_string().contains(why), "{failure}");
            assert!(failure.to_string().contains("admin.conf"), "{failure}");
        }
        assert!(of_file(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}
