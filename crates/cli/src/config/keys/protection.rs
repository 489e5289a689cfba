//! TLS; and authentication and authorisation, of which this release has the refusal to start without. Otherwise the bookie would
//! serve strangers while its operator believes it protected.

use super::{Key, View, always, applied, is_named, is_true, nothing, ours, refused, seconds, translated};
use bindery_server::tls::TlsConfig;

const SERVES_ALL: &str = "this release has no authentication, authorisation or access lists, and no TLS but for clients of its bookie port: it \
     would serve everybody; remove the line if that is meant, behind a network that only clients reach";
const NO_PASSWORDS: &str = "key and certificates are read from PEM files, whose key is not encrypted: keep its file readable by the bookie alone";
const NO_HTTPS: &str = "nothing reads it without httpServerTlsEnable, which asks for TLS on the HTTP port; this release has none there, and \
     refuses that";

/// Of the TLS that is in force; empty without any.
fn tls(view: &View<'_>, shown: impl FnOnce(&TlsConfig) -> String) -> String {
    view.config.tls.as_ref().map_or_else(String::new, shown)
}

fn is_authentication(class: &str) -> bool {
    is_named(class) && !class.ends_with("AuthenticationDisabledAuthProviderFactory")
}

pub(super) const KEYS: &[Key] = &[
    applied("tlsProviderFactoryClass", "", "Switches TLS on: org.apache.bookkeeper.tls.TLSContextFactory")
        .shown(|view| tls(view, |_| "org.apache.bookkeeper.tls.TLSContextFactory".to_owned())),
    ours(
        "tlsRequired",
        "Refuse requests of connections without TLS; true by default with tlsClientAuthentication",
    )
    .shown(|view| tls(view, |tls| tls.is_required.to_string())),
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
    nothing("tlsProvider", "OpenSSL", "Library that TLS is taken from", "there is one here, rustls"),
    applied("tlsClientAuthentication", "false", "Clients must have a certificate")
        .shown(|view| tls(view, |tls| tls.client_authorities.is_some().to_string())),
    applied("tlsKeyStoreType", "JKS", "Form of the key store: only PEM is read")
        .shown(|view| tls(view, |_| "PEM".to_owned())),
    applied("tlsKeyStore", "", "File with the private key")
        .shown(|view| tls(view, |tls| tls.key.display().to_string())),
    nothing("tlsKeyStorePasswordPath", "", "File with the key store's password", NO_PASSWORDS),
    applied("tlsTrustStoreType", "JKS", "Form of the trust store: only PEM is read").shown(|view| {
        tls(view, |tls| tls.client_authorities.as_ref().map_or_else(String::new, |_| "PEM".to_owned()))
    }),
    applied("tlsTrustStore", "", "File with the certificates that sign those of clients, and of bookies for the tierer").shown(|view| {
        tls(view, |tls| {
            tls.client_authorities.as_ref().map_or_else(String::new, |file| file.display().to_string())
        })
    }),
    nothing("tlsTrustStorePasswordPath", "", "File with the trust store's password", NO_PASSWORDS),
    applied("tlsCertificatePath", "", "File with the certificate chain")
        .shown(|view| tls(view, |tls| tls.certificates.display().to_string())),
    applied("tlsCertFilesRefreshDurationSeconds", "0", "Time between two looks at these files; 0 for none")
        .unit("s")
        .shown(|view| tls(view, |tls| tls.refresh.map_or_else(|| "0".to_owned(), seconds))),
    applied("tlsEnabledCipherSuites", "", "Cipher suites; all without it")
        .shown(|view| view.text("tlsEnabledCipherSuites").unwrap_or_default()),
    applied("tlsEnabledProtocols", "", "Versions of TLS; TLSv1.2 and TLSv1.3 without it")
        .shown(|view| view.text("tlsEnabledProtocols").unwrap_or_default()),
    translated(
        "tlsHostnameVerificationEnabled",
        "false",
        "Clients compare the name in a bookie's certificate",
        "the tierer of this bookie compares it unless this is false; nothing else in a bookie connects to bookies",
    )
    .shown(|view| view.text("tlsHostnameVerificationEnabled").unwrap_or_else(|| "true".to_owned())),
    applied(
        "clientAuthProviderFactoryClass",
        "",
        "Class by which the bookie's own client, the tierer, proves its user to bookies",
    )
    .shown(|view| view.text("clientAuthProviderFactoryClass").unwrap_or_default()),
    applied("saslJaasClientSectionName", "BookKeeper", "Section of the JAAS file with that user")
        .shown(|view| view.text("saslJaasClientSectionName").unwrap_or_else(|| "BookKeeper".to_owned())),
    ours("saslUser", "That user, without a JAAS file")
        .shown(|view| view.text("saslUser").unwrap_or_default()),
    ours("saslPasswordFile", "File with the password of saslUser in its first line")
        .shown(|view| view.text("saslPasswordFile").unwrap_or_default()),
    ours("saslMechanism", "How the user is proved: DIGEST-MD5, or PLAIN over TLS")
        .shown(|view| view.text("saslMechanism").unwrap_or_else(|| "DIGEST-MD5".to_owned())),
    nothing("httpServerKeyStorePath", "", "Key store of the HTTP port", NO_HTTPS),
    nothing("httpServerKeyStorePassword", "", "Its password", NO_HTTPS).secret(),
    nothing("httpServerTrustStorePath", "", "Trust store of the HTTP port", NO_HTTPS),
    nothing("httpServerTrustStorePassword", "", "Its password", NO_HTTPS).secret(),
];
