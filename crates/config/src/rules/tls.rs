//! TLS as `bk_server.conf` configures it: BookKeeper's keys, and `tlsRequired`.
//!
//! Nothing is read here but the settings: the files are loaded when the bookie starts.

use super::switches::refuse_without;
use crate::sources::values::Values;
use crate::table::draft::{StoreKeys, TlsKeys};
use crate::table::protection::{TLS, TLS_FACTORY};
use bindery_server::tls::{CipherName, TlsConfig, TlsSettings};
use bindery_tls::store::PasswordSource;
use std::path::PathBuf;
use std::str::FromStr;

/// What the keys of TLS say together; `None` when TLS is off.
pub(super) fn apply(file: &mut Values, keys: &TlsKeys) -> Option<TlsConfig> {
    let Some(factory) = &keys.factory else {
        if keys.is_required == Some(true) {
            file.fault(
                "tlsRequired",
                format!(
                    "tlsRequired=true without TLS: give tlsProviderFactoryClass={TLS_FACTORY}, tlsCertificatePath and tlsKeyStore"
                ),
            );
        }
        refuse_without(file, &TLS);
        return None;
    };
    if factory != TLS_FACTORY {
        let text = format!("tlsProviderFactoryClass={factory}: give {TLS_FACTORY}, no other is known");
        file.fault("tlsProviderFactoryClass", text);
    }
    let has_clients = keys.asks_for_certificates == Some(true);
    // Both before anything is refused: all faults are reported at once.
    let key = store(file, "tlsKeyStoreType", "tlsKeyStore", &keys.key);
    let authorities = match has_clients {
        true => store(file, "tlsTrustStoreType", "tlsTrustStore", &keys.authorities),
        // Clients present no certificate.
        false => None,
    };
    // A store of Java's has them beside the key.
    let certificates = match &key {
        Some(key) if !key.is_pem => Some(key.path.clone()),
        _ => required(file, "tlsCertificatePath", keys.certificates.as_ref()),
    };
    let versions =
        listed(file, "tlsEnabledProtocols", keys.versions.as_deref(), || "TLSv1.2, TLSv1.3".to_owned());
    let ciphers = listed(file, "tlsEnabledCipherSuites", keys.ciphers.as_deref(), || {
        CipherName::all().collect::<Vec<_>>().join(", ")
    });
    if has_clients && keys.is_required == Some(false) {
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
        refresh: Some(keys.refresh.unwrap_or(TlsConfig::REFRESH_DEFAULT)).filter(|time| !time.is_zero()),
        // An operator who asks for certificates means that no client is served without one.
        is_required: keys.is_required.unwrap_or(has_clients),
        serves_without_certificate: false,
        settings: TlsSettings::BOOKIE,
    })
}

fn required(file: &mut Values, key: &str, path: Option<&PathBuf>) -> Option<PathBuf> {
    if path.is_none() {
        file.fault(key, format!("{key} is missing: tlsProviderFactoryClass needs it"));
    }
    path.cloned()
}

/// A file of `tlsKeyStore` or `tlsTrustStore`, as the keys beside it describe it.
struct Store {
    path: PathBuf,
    is_pem: bool,
    password: Option<PasswordSource>,
}

/// The file in `key`; a fault when `form_key` names a form that is not read here.
fn store(file: &mut Values, form_key: &str, key: &str, keys: &StoreKeys) -> Option<Store> {
    let path = required(file, key, keys.path.as_ref());
    let is_pem = match keys.form_or_default() {
        "PEM" => true,
        "JKS" | "PKCS12" => false,
        other => {
            file.fault(
                form_key,
                format!("{form_key}={other}: give PEM, PKCS12 or JKS, which is the default"),
            );
            return None;
        }
    };
    Some(Store { path: path?, is_pem, password: keys.password.clone().filter(|_| !is_pem) })
}

/// The names of a list that are known. Others are named in a warning; when none is left, that is a fault.
fn listed<T: FromStr>(
    file: &mut Values,
    key: &str,
    text: Option<&str>,
    known: impl FnOnce() -> String,
) -> Vec<T> {
    let Some(text) = text else { return Vec::new() };
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
    use crate::table;
    use crate::table::flags::BookieArgs;
    use bindery_server::tls::TlsVersion;
    use std::time::Duration;

    const PEM: &str = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\n\
                       tlsKeyStore=/k.pem\ntlsCertificatePath=/c.pem\n";

    struct Applied {
        tls: Option<TlsConfig>,
        faults: Vec<String>,
        warnings: Vec<String>,
    }

    fn applied(text: &str) -> Applied {
        let mut file = Values::of(Some(text));
        let keys = table::read(&BookieArgs::default(), &mut file, |_| true).tls;
        let tls = apply(&mut file, &keys);
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
