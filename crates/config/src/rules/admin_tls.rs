//! TLS of the admin port: BookKeeper's `httpServer` keys, and one of ours.
//!
//! Nothing is read here but the settings: the files are loaded when the bookie starts.

use super::switches::refuse_without;
use crate::sources::values::{Finding, Values};
use crate::table::draft::AdminTlsKeys;
use crate::table::flags::BookieArgs;
use crate::table::protection::ADMIN_TLS;
use crate::table::{self, Key};
use bindery_server::tls::{TlsConfig, TlsSettings};
use std::path::Path;

/// What the keys say together; `None`: the port speaks plain HTTP.
pub(super) fn apply(file: &mut Values, keys: &AdminTlsKeys, has_port: bool) -> Option<TlsConfig> {
    if keys.is_on != Some(true) {
        if has_port {
            refuse_without(file, &ADMIN_TLS);
        }
        return None;
    }
    if !has_port {
        file.warn("httpServerTlsEnable", "httpServerTlsEnable=true has no effect without an admin port");
    }
    if keys.serves_without_certificate.is_some() && keys.authorities.path.is_none() {
        file.fault(
            "httpServerClientCertificates",
            "httpServerClientCertificates needs httpServerTrustStorePath, the authorities that sign these certificates",
        );
    }
    let Some(key) = keys.key.path.clone() else {
        file.fault(
            "httpServerTlsEnable",
            "httpServerTlsEnable=true needs httpServerKeyStorePath, a PEM file or a store of Java's with the key and the certificates of the admin port",
        );
        return None;
    };
    Some(TlsConfig {
        key_password: keys.key.password.clone(),
        client_authorities: keys.authorities.path.clone(),
        client_authorities_password: keys.authorities.password.clone(),
        serves_without_certificate: keys.serves_without_certificate == Some(true),
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
pub fn of_file(path: &Path) -> Result<(TlsConfig, bool), Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| vec![error.to_string()])?;
    let mut file = Values::of(Some(&text));
    let is_wanted =
        |key: &Key| key.is_for(&ADMIN_TLS) || [ADMIN_TLS.key, "httpServerTokenRequired"].contains(&key.name);
    let draft = table::read(&BookieArgs::default(), &mut file, is_wanted);
    let tls = apply(&mut file, &draft.admin_tls, true);
    let faults: Vec<String> = file.faults.iter().map(Finding::to_string).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    let tls = tls.ok_or_else(|| {
        vec!["it has no httpServerTlsEnable=true, so the admin port would speak plain HTTP".to_owned()]
    })?;
    Ok((tls, draft.config.admin_token_required))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_tls::store::{Password, PasswordSource};

    fn tls_of(file: &mut Values, has_port: bool) -> Option<TlsConfig> {
        let keys = table::read(&BookieArgs::default(), file, |_| true).admin_tls;
        apply(file, &keys, has_port)
    }

    fn applied(text: &str) -> (Option<TlsConfig>, Vec<String>, Vec<String>) {
        let mut file = Values::of(Some(text));
        let tls = tls_of(&mut file, true);
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
        assert_eq!(tls_of(&mut Values::of(Some(off)), false), None);
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
        assert_eq!(tls_of(&mut Values::of(Some(on)), false).map(|tls| tls.key), Some("/k".into()));
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
            let faults = of(text).unwrap_err();
            assert!(faults.len() == 1 && faults[0].contains(why), "{faults:?}");
        }
        assert_eq!(of_file(&dir.path().join("none")).unwrap_err().len(), 1);
    }
}
