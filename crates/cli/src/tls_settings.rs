//! TLS as `bk_server.conf` configures it: BookKeeper's keys, and `tlsRequired`.
//!
//! Nothing is read here but the settings: the files are loaded when the bookie starts.

use crate::sources::values::{Values, absolute};
use crate::switches::{Switch, refuse_without};
use bindery_server::tls::{CipherName, TlsConfig, TlsSettings};
use bindery_tls::store::PasswordSource;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The one implementation of TLS that BookKeeper has.
const FACTORY: &str = "org.apache.bookkeeper.tls.TLSContextFactory";
/// Files, protocols and times of the class.
const OF_THE_CLASS: [&str; 11] = [
    "tlsClientAuthentication",
    "tlsKeyStoreType",
    "tlsKeyStore",
    "tlsKeyStorePasswordPath",
    "tlsTrustStoreType",
    "tlsTrustStore",
    "tlsTrustStorePasswordPath",
    "tlsCertificatePath",
    "tlsEnabledProtocols",
    "tlsEnabledCipherSuites",
    "tlsCertFilesRefreshDurationSeconds",
];

/// What switches all of them on.
const SWITCH: Switch = Switch {
    key: "tlsProviderFactoryClass",
    on: FACTORY,
    off: Some("null"),
    harm: "clients are served in plain text, and without certificates",
};
/// Those that somebody gives who wants TLS. Pulsar's file gives the time between two looks as well.
const ASKS: [&str; 8] = [
    "tlsClientAuthentication",
    "tlsKeyStore",
    "tlsKeyStorePasswordPath",
    "tlsTrustStore",
    "tlsTrustStorePasswordPath",
    "tlsCertificatePath",
    "tlsEnabledProtocols",
    "tlsEnabledCipherSuites",
];

/// Reads the keys of TLS; `None` when TLS is off.
pub fn apply(file: &mut Values) -> Option<TlsConfig> {
    let is_required = file.flag("tlsRequired");
    let Some(factory) = file.take("tlsProviderFactoryClass").filter(|class| class != "null") else {
        if is_required == Some(true) {
            file.fault(
                "tlsRequired",
                format!(
                    "tlsRequired=true without TLS: give tlsProviderFactoryClass={FACTORY}, tlsCertificatePath and tlsKeyStore"
                ),
            );
        }
        refuse_without(file, &SWITCH, &ASKS);
        for key in OF_THE_CLASS {
            file.take(key);
        }
        return None;
    };
    if factory != FACTORY {
        let text = format!("tlsProviderFactoryClass={factory}: give {FACTORY}, no other is known");
        file.fault("tlsProviderFactoryClass", text);
    }
    let has_clients = file.flag("tlsClientAuthentication").unwrap_or(false);
    // Both before anything is refused: all faults are reported at once.
    let key = store(file, "tlsKeyStoreType", "tlsKeyStore", "tlsKeyStorePasswordPath");
    let authorities = match has_clients {
        true => store(file, "tlsTrustStoreType", "tlsTrustStore", "tlsTrustStorePasswordPath"),
        false => {
            // Clients present no certificate.
            for key in ["tlsTrustStoreType", "tlsTrustStore", "tlsTrustStorePasswordPath"] {
                file.take(key);
            }
            None
        }
    };
    // A store of Java's has them beside the key.
    let certificates = match &key {
        Some(key) if !key.is_pem => {
            file.take("tlsCertificatePath");
            Some(key.path.clone())
        }
        _ => required_path(file, "tlsCertificatePath"),
    };
    let versions = listed(file, "tlsEnabledProtocols", || "TLSv1.2, TLSv1.3".to_owned());
    let ciphers = listed(file, "tlsEnabledCipherSuites", || CipherName::all().collect::<Vec<_>>().join(", "));
    let refresh = match file.counted("tlsCertFilesRefreshDurationSeconds", 0, 1_000_000) {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds as u64)),
        None => Some(TlsConfig::REFRESH_DEFAULT),
    };
    if has_clients && is_required == Some(false) {
        file.warn(
            "tlsRequired",
            "tlsRequired=false with tlsClientAuthentication=true: a client that does not ask for TLS is served without a \
             certificate, fencing included; remove tlsRequired=false unless that is meant",
        );
    }
    if has_clients && authorities.is_none() {
        return None;
    }
    let key = key?;
    let (client_authorities, client_authorities_password) =
        authorities.map_or((None, None), |store| (Some(store.path), store.password));
    Some(TlsConfig {
        certificates: certificates?,
        key: key.path,
        key_password: key.password,
        client_authorities,
        client_authorities_password,
        versions,
        ciphers,
        refresh,
        // An operator who asks for certificates means that no client is served without one.
        is_required: is_required.unwrap_or(has_clients),
        serves_without_certificate: false,
        settings: TlsSettings::BOOKIE,
    })
}

/// As in BookKeeper's sample file, "null" stands for none.
fn required_path(file: &mut Values, key: &str) -> Option<PathBuf> {
    match file.take(key).filter(|path| path != "null") {
        Some(path) => Some(absolute(Path::new(&path), file)),
        None => {
            file.fault(key, format!("{key} is missing: tlsProviderFactoryClass needs it"));
            None
        }
    }
}

/// A file of `tlsKeyStore` or `tlsTrustStore`, as the keys beside it describe it.
struct Store {
    path: PathBuf,
    is_pem: bool,
    password: Option<PasswordSource>,
}

/// The file in `key`; a fault when `type_key` names a form that is not read here.
fn store(file: &mut Values, type_key: &str, key: &str, password_key: &'static str) -> Option<Store> {
    let (kind, path) = (file.take(type_key), required_path(file, key));
    let password = file
        .take(password_key)
        .map(|path| PasswordSource::File { setting: password_key, path: absolute(Path::new(&path), file) });
    let is_pem = match kind.as_deref() {
        Some("PEM") => true,
        None | Some("JKS" | "PKCS12") => false,
        Some(other) => {
            file.fault(
                type_key,
                format!("{type_key}={other}: give PEM, PKCS12 or JKS, which is the default"),
            );
            return None;
        }
    };
    Some(Store { path: path?, is_pem, password: password.filter(|_| !is_pem) })
}

/// The names of a list that are known. Others are named in a warning; when none is left, that is a fault.
fn listed<T: FromStr>(file: &mut Values, key: &str, known: impl FnOnce() -> String) -> Vec<T> {
    let Some(text) = file.take(key) else { return Vec::new() };
    let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let found: Vec<T> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let others: Vec<&str> = names.into_iter().filter(|name| name.parse::<T>().is_err()).collect();
    if found.is_empty() {
        file.fault(key, format!("{key}={text}: none of these is spoken here; give some of {}", known()));
    } else if !others.is_empty() {
        file.warn(key, format!("{key}: {} is not spoken here and is left out", others.join(", ")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::values::Finding;
    use bindery_server::tls::TlsVersion;

    const PEM: &str = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\n\
                       tlsKeyStore=/k.pem\ntlsCertificatePath=/c.pem\n";

    struct Applied {
        tls: Option<TlsConfig>,
        faults: Vec<String>,
        warnings: Vec<String>,
    }

    fn applied(text: &str) -> Applied {
        let mut file = Values::of(Some(text));
        let tls = apply(&mut file);
        let texts = |found: Vec<Finding>| found.into_iter().map(|finding| finding.text).collect();
        Applied { tls, faults: texts(file.faults), warnings: texts(file.warnings) }
    }

    #[test]
    fn the_keys_of_bookkeeper_mean_what_they_mean_there() {
        let Applied { tls, faults, warnings } = applied(PEM);
        assert_eq!((faults, warnings), (Vec::new(), Vec::new()));
        let expected = TlsConfig::new("/c.pem", "/k.pem");
        assert_eq!(tls.unwrap(), expected);

        let more = "tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore=/ca.pem\ntlsProvider=OpenSSL\n\
                    tlsCertFilesRefreshDurationSeconds=300\ntlsEnabledProtocols=TLSv1.2,TLSv1.1\n\
                    tlsEnabledCipherSuites=ECDHE-RSA-AES256-GCM-SHA384, TLS_RSA_WITH_AES_128_CBC_SHA\n\
                    tlsHostnameVerificationEnabled=true\ntlsKeyStorePasswordPath=\ntlsRequired=true\n";
        let Applied { tls, faults, warnings } = applied(&format!("{PEM}{more}"));
        assert!(faults.is_empty(), "{faults:?}");
        let expected = TlsConfig {
            client_authorities: Some(PathBuf::from("/ca.pem")),
            versions: vec![TlsVersion::V1_2],
            ciphers: vec!["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384".parse().unwrap()],
            refresh: Some(Duration::from_secs(300)),
            is_required: true,
            ..expected
        };
        assert_eq!(tls.unwrap(), expected);
        assert!(warnings.len() == 2 && warnings[0].contains("TLSv1.1 is not spoken"), "{warnings:?}");
        assert!(warnings[1].contains("TLS_RSA_WITH_AES_128_CBC_SHA"), "{warnings:?}");

        let never = applied(&format!("{PEM}tlsCertFilesRefreshDurationSeconds=0\n"));
        assert_eq!(never.tls.unwrap().refresh, None);
        // Clients present no certificate, so no authority is needed.
        let unused = applied(&format!("{PEM}tlsTrustStore=/trust.jks\n"));
        assert_eq!(unused.tls.unwrap().client_authorities, None);
    }

    #[test]
    fn asking_for_certificates_serves_nobody_without_unless_told_to() {
        let clients =
            format!("{PEM}tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore=/ca.pem\n");
        let required = |text: &str| {
            let Applied { tls, faults, warnings } = applied(text);
            assert!(faults.is_empty(), "{faults:?}");
            (tls.unwrap().is_required, warnings)
        };
        assert_eq!(required(PEM), (false, Vec::new()));
        assert_eq!(required(&clients), (true, Vec::new()));
        assert_eq!(required(&format!("{clients}tlsRequired=true\n")), (true, Vec::new()));
        let (is_required, warnings) = required(&format!("{clients}tlsRequired=false\n"));
        assert!(!is_required && warnings.len() == 1, "{warnings:?}");
        assert!(warnings[0].contains("served without a certificate"), "{warnings:?}");
        assert_eq!(required(&format!("{PEM}tlsRequired=false\n")), (false, Vec::new()));
    }

    #[test]
    fn without_the_class_nothing_may_ask_for_tls() {
        for class in ["", "tlsProviderFactoryClass=\n"] {
            for ask in ["tlsClientAuthentication=true\n", "tlsKeyStore=/k.jks\n", "tlsTrustStore=/t.jks\n"] {
                let Applied { tls, faults, warnings } = applied(&format!("{class}{ask}"));
                assert_eq!((tls, warnings, faults.len()), (None, Vec::new(), 1), "{class}{ask}");
                assert!(faults[0].contains("without tlsProviderFactoryClass=org.apache"), "{faults:?}");
            }
        }
        let meant =
            applied("tlsProviderFactoryClass=null\ntlsKeyStore=/k.jks\ntlsClientAuthentication=true\n");
        assert_eq!((meant.tls, meant.faults, meant.warnings.len()), (None, Vec::new(), 1));
        let of_samples = "tlsClientAuthentication=false\ntlsKeyStoreType=JKS\ntlsKeyStore=null\ntlsTrustStore=\n\
                          tlsCertFilesRefreshDurationSeconds=300\n";
        let Applied { tls, faults, warnings } = applied(of_samples);
        assert_eq!((tls, faults, warnings), (None, Vec::new(), Vec::new()));
        let faults = applied("tlsRequired=true\n").faults;
        assert!(faults.len() == 1 && faults[0].contains("tlsRequired=true without TLS"), "{faults:?}");
    }

    #[test]
    fn stores_of_java_have_their_certificates_and_a_password_file() {
        let class = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n";
        // JKS by default; the first bytes of the file say which of the two it is.
        for kind in ["", "tlsKeyStoreType=JKS\n", "tlsKeyStoreType=PKCS12\n"] {
            let text = format!("{class}{kind}tlsKeyStore=/k.jks\ntlsKeyStorePasswordPath=/p\n");
            let Applied { tls, faults, warnings } = applied(&text);
            assert_eq!((faults, warnings), (Vec::new(), Vec::new()), "{kind}");
            let file = |setting, path: &str| Some(PasswordSource::File { setting, path: path.into() });
            let expected = TlsConfig {
                key_password: file("tlsKeyStorePasswordPath", "/p"),
                ..TlsConfig::new("/k.jks", "/k.jks")
            };
            assert_eq!(tls.unwrap(), expected, "{kind}");
            let trust = "tlsClientAuthentication=true\ntlsTrustStore=/t.jks\ntlsTrustStorePasswordPath=/q\n";
            let mutual = TlsConfig {
                client_authorities: Some("/t.jks".into()),
                client_authorities_password: file("tlsTrustStorePasswordPath", "/q"),
                is_required: true,
                ..expected
            };
            assert_eq!(applied(&format!("{text}{trust}")).tls.unwrap(), mutual, "{kind}");
        }
        let other = applied(&format!("{class}tlsKeyStore=/k\ntlsKeyStoreType=BCFKS\n"));
        assert!(
            other.tls.is_none() && other.faults[0].contains("BCFKS: give PEM, PKCS12 or JKS"),
            "{:?}",
            other.faults
        );
    }

    #[test]
    fn all_that_is_missing_is_said_at_once() {
        let text = "tlsProviderFactoryClass=my.Factory\ntlsKeyStoreType=PEM\ntlsClientAuthentication=true\n\
                    tlsTrustStoreType=PEM\ntlsEnabledProtocols=TLSv1\n";
        let faults = applied(text).faults;
        let expected =
            ["my.Factory", "tlsKeyStore is", "tlsTrustStore is", "tlsCertificatePath is", "TLSv1:"];
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, part) in faults.iter().zip(expected) {
            assert!(fault.contains(part), "{part}: {faults:?}");
        }
    }
}
