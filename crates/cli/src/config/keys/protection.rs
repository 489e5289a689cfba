//! TLS, authentication and authorisation: all that this release has of them is the refusal to start without. Without it, the
//! bookie would serve strangers while its operator believes it protected.

use super::{Key, always, is_named, is_true, nothing, refused};

const SERVES_ALL: &str = "this release has no TLS, authentication, authorisation or access lists, and would serve everybody; remove the line \
     if that is meant, behind a network that only clients reach";
const NO_TLS: &str = "nothing reads it without tlsProviderFactoryClass, which asks for TLS; this release has none, and refuses that";
const NO_HTTPS: &str = "nothing reads it without httpServerTlsEnable, which asks for TLS; this release has none, and refuses that";

fn is_authentication(class: &str) -> bool {
    is_named(class) && !class.ends_with("AuthenticationDisabledAuthProviderFactory")
}

pub(super) const KEYS: &[Key] = &[
    refused("tlsProviderFactoryClass", "", "Java class that provides TLS", is_named, SERVES_ALL),
    refused(
        "bookieAuthProviderFactoryClass",
        "",
        "Java class that authenticates clients",
        is_authentication,
        SERVES_ALL,
    ),
    refused("authorizedRoles", "", "Roles of certificates that may connect", always, SERVES_ALL),
    refused("permittedStartupUsers", "", "Users of the system that may start the bookie", always, SERVES_ALL),
    refused("httpServerTlsEnable", "false", "TLS on the HTTP port", is_true, SERVES_ALL),
    nothing("tlsProvider", "OpenSSL", "Library that TLS is taken from", NO_TLS),
    nothing("tlsClientAuthentication", "false", "Clients must have a certificate", NO_TLS),
    nothing("tlsKeyStoreType", "JKS", "Form of the key store", NO_TLS),
    nothing("tlsKeyStore", "", "File with the private key", NO_TLS),
    nothing("tlsKeyStorePasswordPath", "", "File with the key store's password", NO_TLS),
    nothing("tlsTrustStoreType", "JKS", "Form of the trust store", NO_TLS),
    nothing("tlsTrustStore", "", "File with trusted certificates", NO_TLS),
    nothing("tlsTrustStorePasswordPath", "", "File with the trust store's password", NO_TLS),
    nothing("tlsCertificatePath", "", "File with the certificate, for a key store in PEM form", NO_TLS),
    nothing("tlsCertFilesRefreshDurationSeconds", "0", "Time between two looks at these files", NO_TLS)
        .unit("s"),
    nothing("tlsEnabledCipherSuites", "", "Cipher suites", NO_TLS),
    nothing("tlsEnabledProtocols", "", "Versions of TLS", NO_TLS),
    nothing("tlsHostnameVerificationEnabled", "false", "Clients compare the name in the certificate", NO_TLS),
    nothing("httpServerKeyStorePath", "", "Key store of the HTTP port", NO_HTTPS),
    nothing("httpServerKeyStorePassword", "", "Its password", NO_HTTPS).secret(),
    nothing("httpServerTrustStorePath", "", "Trust store of the HTTP port", NO_HTTPS),
    nothing("httpServerTrustStorePassword", "", "Its password", NO_HTTPS).secret(),
];
