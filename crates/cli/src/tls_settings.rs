//! TLS as `bk_server.conf` configures it: BookKeeper's keys, and `tlsRequired`.
//!
//! Nothing is read here but the settings: the files are loaded when the bookie starts.

use crate::settings::{Values, absolute};
use bindery_server::tls::{CipherName, TlsConfig};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The one implementation of TLS that BookKeeper has.
const FACTORY: &str = "org.apache.bookkeeper.tls.TLSContextFactory";
/// Without a meaning here: which library is used, whose certificate a *client* checks, passwords of stores that are refused.
const WITHOUT_EFFECT: [&str; 4] =
    ["tlsProvider", "tlsHostnameVerificationEnabled", "tlsKeyStorePasswordPath", "tlsTrustStorePasswordPath"];

/// Reads the keys of TLS; `None` when TLS is off.
pub fn apply(file: &mut Values, warnings: &mut Vec<String>) -> Option<TlsConfig> {
    let is_required = file.flag("tlsRequired");
    let Some(factory) = file.take("tlsProviderFactoryClass") else {
        if is_required == Some(true) {
            file.faults.push(format!(
                "tlsRequired=true without TLS: give tlsProviderFactoryClass={FACTORY}, tlsCertificatePath and tlsKeyStore"
            ));
        }
        // Of files and protocols, without the class that uses them: no effect in BookKeeper either.
        file.values.retain(|key, _| !is_about_tls(key));
        return None;
    };
    if factory != FACTORY {
        file.faults.push(format!("tlsProviderFactoryClass={factory}: give {FACTORY}, no other is known"));
    }
    for key in WITHOUT_EFFECT {
        file.values.remove(key);
    }
    let has_clients = file.flag("tlsClientAuthentication").unwrap_or(false);
    // Both before anything is refused: all faults are reported at once.
    let key = pem_path(file, "tlsKeyStoreType", "tlsKeyStore");
    let authorities = match has_clients {
        true => pem_path(file, "tlsTrustStoreType", "tlsTrustStore"),
        false => None,
    };
    let certificates = required_path(file, "tlsCertificatePath");
    for key in ["tlsTrustStoreType", "tlsTrustStore"] {
        file.values.remove(key);
    }
    let versions = listed(file, warnings, "tlsEnabledProtocols", || "TLSv1.2, TLSv1.3".to_owned());
    let ciphers =
        listed(file, warnings, "tlsEnabledCipherSuites", || CipherName::all().collect::<Vec<_>>().join(", "));
    let refresh = match file.counted("tlsCertFilesRefreshDurationSeconds", 0, 1_000_000) {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds as u64)),
        None => Some(TlsConfig::REFRESH_DEFAULT),
    };
    if has_clients && is_required == Some(false) {
        warnings.push(
            "tlsRequired=false with tlsClientAuthentication=true: a client that does not ask for TLS is served without a \
             certificate, fencing included; remove tlsRequired=false unless that is meant"
                .to_owned(),
        );
    }
    if has_clients && authorities.is_none() {
        return None;
    }
    Some(TlsConfig {
        certificates: certificates?,
        key: key?,
        client_authorities: authorities,
        versions,
        ciphers,
        refresh,
        // Whoever asks for certificates means that nobody is served without one.
        is_required: is_required.unwrap_or(has_clients),
    })
}

fn is_about_tls(key: &str) -> bool {
    key.strip_prefix("tls").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

fn required_path(file: &mut Values, key: &str) -> Option<PathBuf> {
    match file.take(key) {
        Some(path) => Some(absolute(Path::new(&path), &mut file.faults)),
        None => {
            file.faults.push(format!("{key} is missing: tlsProviderFactoryClass needs it, a PEM file"));
            None
        }
    }
}

/// The PEM file in `key`; a fault when `type_key` says that it is none, which is BookKeeper's default.
fn pem_path(file: &mut Values, type_key: &str, key: &str) -> Option<PathBuf> {
    let (kind, path) = (file.take(type_key), required_path(file, key));
    let kind = kind.as_deref().unwrap_or("JKS");
    if kind == "PEM" {
        return path;
    }
    let store = path.as_deref().unwrap_or(Path::new("FILE")).display();
    let (first, store) = match kind {
        "JKS" => (
            format!(
                "`keytool -importkeystore -srckeystore {store} -destkeystore store.p12 -deststoretype PKCS12`, then "
            ),
            "store.p12".to_owned(),
        ),
        _ => (String::new(), store.to_string()),
    };
    let then = match key {
        "tlsKeyStore" => format!(
            "`openssl pkcs12 -in {store} -nodes -nocerts -out key.pem` for tlsKeyStore and `openssl pkcs12 -in {store} -nokeys \
             -out certificates.pem` for tlsCertificatePath"
        ),
        _ => format!("`openssl pkcs12 -in {store} -nokeys -out authorities.pem` for {key}"),
    };
    file.faults.push(format!(
        "{type_key}={kind}: only PEM files are read (JKS is the default where it is not set): convert it with {first}{then}, and \
         set {type_key}=PEM"
    ));
    None
}

/// The names of a list that are known. Others are named in a warning; when none is left, that is a fault.
fn listed<T: FromStr>(
    file: &mut Values,
    warnings: &mut Vec<String>,
    key: &str,
    known: impl FnOnce() -> String,
) -> Vec<T> {
    let Some(text) = file.take(key) else { return Vec::new() };
    let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let found: Vec<T> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let others: Vec<&str> = names.into_iter().filter(|name| name.parse::<T>().is_err()).collect();
    if found.is_empty() {
        file.faults.push(format!("{key}={text}: none of these is spoken here; give some of {}", known()));
    } else if !others.is_empty() {
        warnings.push(format!("{key}: {} is not spoken here and is left out", others.join(", ")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf_file;
    use bindery_server::tls::TlsVersion;

    const PEM: &str = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\n\
                       tlsKeyStore=/k.pem\ntlsCertificatePath=/c.pem\n";

    struct Applied {
        tls: Option<TlsConfig>,
        faults: Vec<String>,
        warnings: Vec<String>,
        left: Vec<String>,
    }

    fn applied(text: &str) -> Applied {
        let mut file = Values { values: conf_file::parse(text), faults: Vec::new() };
        let mut warnings = Vec::new();
        let tls = apply(&mut file, &mut warnings);
        Applied { tls, faults: file.faults, warnings, left: file.values.into_keys().collect() }
    }

    #[test]
    fn the_keys_of_bookkeeper_mean_what_they_mean_there() {
        let Applied { tls, faults, warnings, left } = applied(PEM);
        assert_eq!((faults, warnings, left), (Vec::new(), Vec::new(), Vec::new()));
        let expected = TlsConfig {
            certificates: PathBuf::from("/c.pem"),
            key: PathBuf::from("/k.pem"),
            client_authorities: None,
            versions: Vec::new(),
            ciphers: Vec::new(),
            refresh: Some(Duration::from_secs(10)),
            is_required: false,
        };
        assert_eq!(tls.unwrap(), expected);

        let more = "tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore=/ca.pem\ntlsProvider=OpenSSL\n\
                    tlsCertFilesRefreshDurationSeconds=300\ntlsEnabledProtocols=TLSv1.2,TLSv1.1\n\
                    tlsEnabledCipherSuites=ECDHE-RSA-AES256-GCM-SHA384, TLS_RSA_WITH_AES_128_CBC_SHA\n\
                    tlsHostnameVerificationEnabled=true\ntlsKeyStorePasswordPath=\ntlsRequired=true\ntlsMadeUp=1\n";
        let Applied { tls, faults, warnings, left } = applied(&format!("{PEM}{more}"));
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(left, ["tlsMadeUp"], "an unknown key is one");
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
        // Nobody is asked for a certificate, so nobody is believed for one.
        let unused = applied(&format!("{PEM}tlsTrustStore=/trust.jks\n"));
        assert_eq!((unused.tls.unwrap().client_authorities, unused.left.len()), (None, 0));
    }

    #[test]
    fn who_asks_for_certificates_serves_nobody_without_unless_told_to() {
        let clients =
            format!("{PEM}tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore=/ca.pem\n");
        let required = |text: &str| {
            let Applied { tls, faults, warnings, .. } = applied(text);
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
    fn without_the_class_the_other_keys_have_no_effect() {
        let Applied { tls, faults, warnings, left } =
            applied("tlsProviderFactoryClass=\ntlsKeyStore=/k.jks\ntlsClientAuthentication=true\n");
        assert_eq!((tls, faults, warnings, left), (None, Vec::new(), Vec::new(), Vec::new()));
        let faults = applied("tlsRequired=true\n").faults;
        assert!(faults.len() == 1 && faults[0].contains("tlsRequired=true without TLS"), "{faults:?}");
    }

    #[test]
    fn stores_of_java_are_refused_with_the_commands_that_convert_them() {
        let class = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsCertificatePath=/c.pem\n";
        // JKS by default.
        for kind in ["", "tlsKeyStoreType=JKS\n"] {
            let applied = applied(&format!("{class}tlsKeyStore=/k.jks\n{kind}"));
            assert!(applied.tls.is_none() && applied.faults.len() == 1, "{:?}", applied.faults);
            let fault = &applied.faults[0];
            assert!(fault.contains("keytool -importkeystore -srckeystore /k.jks"), "{fault}");
            assert!(fault.contains("openssl pkcs12 -in store.p12 -nodes -nocerts"), "{fault}");
        }
        let text = format!(
            "{class}tlsKeyStore=/k.p12\ntlsKeyStoreType=PKCS12\ntlsClientAuthentication=true\ntlsTrustStore=/t.p12\n\
             tlsTrustStoreType=PKCS12\n"
        );
        let faults = applied(&text).faults;
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("openssl pkcs12 -in /k.p12 -nodes"), "{faults:?}");
        assert!(faults[1].contains("openssl pkcs12 -in /t.p12 -nokeys -out authorities.pem"), "{faults:?}");
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
