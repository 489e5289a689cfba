//! Names of TLS versions and cipher suites as `bk_server.conf` spells them: the JDK's names, which are IANA's, and OpenSSL's.

use rustls::crypto::{CryptoProvider, ring};
use rustls::{CipherSuite, SupportedProtocolVersion, version};
use std::str::FromStr;

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// 1.2
    V1_2,
    /// 1.3
    V1_3,
}

/// A version that this build does not speak.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not spoken here: give TLSv1.2, TLSv1.3 or both")]
pub struct UnknownVersion(String);

impl FromStr for TlsVersion {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<TlsVersion, UnknownVersion> {
        match text {
            "TLSv1.2" => Ok(TlsVersion::V1_2),
            "TLSv1.3" => Ok(TlsVersion::V1_3),
            other => Err(UnknownVersion(other.to_owned())),
        }
    }
}

impl TlsVersion {
    /// The same version in rustls.
    pub fn supported(self) -> &'static SupportedProtocolVersion {
        match self {
            TlsVersion::V1_2 => &version::TLS12,
            TlsVersion::V1_3 => &version::TLS13,
        }
    }
}

/// A cipher suite that this build supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CipherName(CipherSuite);

/// A cipher suite that this build does not support.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not used here")]
pub struct UnknownCipher(String);

/// IANA's name, OpenSSL's name, and the suite in rustls.
const NAMES: [(&str, &str, CipherSuite); 9] = [
    ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

impl CipherName {
    /// IANA's names of all supported cipher suites.
    pub fn all() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(iana, _, _)| *iana)
    }

    /// The same suite in rustls.
    pub fn suite(self) -> CipherSuite {
        self.0
    }
}

impl FromStr for CipherName {
    type Err = UnknownCipher;

    fn from_str(text: &str) -> Result<CipherName, UnknownCipher> {
        let found = NAMES.iter().find(|(iana, openssl, _)| text == *iana || text == *openssl);
        found.map(|(.., suite)| CipherName(*suite)).ok_or_else(|| UnknownCipher(text.to_owned()))
    }
}

/// The configured versions in rustls; without any, all that are supported, 1.3 first.
pub fn versions(named: &[TlsVersion]) -> Vec<&'static SupportedProtocolVersion> {
    match named.is_empty() {
        true => vec![TlsVersion::V1_3.supported(), TlsVersion::V1_2.supported()],
        false => named.iter().map(|version| version.supported()).collect(),
    }
}

/// The ring provider of rustls, with only the configured cipher suites if any are configured. They keep the provider's order of
/// preference, not that of `named`.
pub fn provider(named: &[CipherName]) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if !named.is_empty() {
        let is_named = |suite| named.iter().any(|cipher| cipher.suite() == suite);
        provider.cipher_suites.retain(|supported| is_named(supported.suite()));
    }
    provider
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::ring::ALL_CIPHER_SUITES;

    #[test]
    fn every_cipher_of_the_library_has_a_name_and_no_other() {
        assert_eq!(NAMES.len(), ALL_CIPHER_SUITES.len());
        for suite in ALL_CIPHER_SUITES {
            let (iana, openssl, _) = NAMES.iter().find(|(.., named)| *named == suite.suite()).unwrap();
            assert_eq!(iana.parse::<CipherName>().unwrap().suite(), suite.suite());
            assert_eq!(openssl.parse::<CipherName>().unwrap().suite(), suite.suite());
        }
        let error = "TLS_RSA_WITH_AES_128_CBC_SHA".parse::<CipherName>().unwrap_err();
        assert!(error.to_string().contains("TLS_RSA_WITH_AES_128_CBC_SHA"), "{error}");
    }

    #[test]
    fn older_versions_are_not_spoken() {
        assert_eq!("TLSv1.2".parse(), Ok(TlsVersion::V1_2));
        assert_eq!("TLSv1.3".parse(), Ok(TlsVersion::V1_3));
        for old in ["TLSv1", "TLSv1.1", "SSLv3", ""] {
            assert!(old.parse::<TlsVersion>().is_err(), "{old}");
        }
    }
}
