//! TLS, authentication and authorisation. What is not there is refused: otherwise the bookie would serve strangers while its operator
//! believes it protected.

use super::{Key, View, applied, is_true, nothing, ours, refused, seconds};
use crate::auth_settings::{CERTIFICATES, SASL};
use bindery_metadata::SaslLogin;
use bindery_server::auth::{AuthConfig, JaasConfig, Provider};
use bindery_server::tls::TlsConfig;

const NO_HTTP_TLS: &str = "this release has no TLS on the HTTP port: remove the line, and let the port listen on loopback, behind a proxy that has \
     TLS, or in a network that only operators reach";
const OF_CLIENTS: &str = "it is for clients of BookKeeper: a bookie compares no name";
const OF_JAVAS_CLIENTS: &str = "it is for BookKeeper's clients, also those inside its AutoRecovery";
const NO_PASSWORDS: &str = "key and certificates are read from PEM files, whose key is not encrypted: keep its file readable by the bookie alone";
const NO_HTTPS: &str = "nothing reads it without httpServerTlsEnable, which asks for TLS on the HTTP port; this release has none there, and \
     refuses that";

/// Of the TLS that is in force; empty without any.
fn tls(view: &View<'_>, shown: impl FnOnce(&TlsConfig) -> String) -> String {
    view.config.tls.as_ref().map_or_else(String::new, shown)
}

/// Of the authentication that is in force; empty without any.
fn auth(view: &View<'_>, shown: impl FnOnce(&AuthConfig) -> String) -> String {
    view.config.auth.as_ref().map_or_else(String::new, shown)
}

/// Of the JAAS file that is in use; empty without one.
fn jaas(view: &View<'_>, shown: impl FnOnce(&JaasConfig) -> String) -> String {
    auth(view, |auth| auth.jaas().map_or_else(String::new, shown))
}

fn provider(view: &View<'_>) -> String {
    auth(view, |auth| match auth.provider {
        Provider::Sasl { .. } => SASL.to_owned(),
        Provider::Certificates { .. } => CERTIFICATES.to_owned(),
    })
}

fn roles(view: &View<'_>) -> String {
    auth(view, |auth| match &auth.provider {
        Provider::Sasl { .. } => String::new(),
        Provider::Certificates { roles } => roles.join(","),
    })
}

pub(super) const KEYS: &[Key] = &[
    applied("tlsProviderFactoryClass", "", "Switches TLS on: org.apache.bookkeeper.tls.TLSContextFactory")
        .shown(|view| tls(view, |_| "org.apache.bookkeeper.tls.TLSContextFactory".to_owned())),
    ours(
        "tlsRequired",
        "Refuse requests of connections without TLS; true by default with tlsClientAuthentication",
    )
    .shown(|view| tls(view, |tls| tls.is_required.to_string())),
    applied(
        "bookieAuthProviderFactoryClass",
        "",
        "How clients say who they are: org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory for names and passwords, \
         org.apache.bookkeeper.tls.BookieAuthZFactory for roles in certificates; without it everybody is served",
    )
    .shown(provider),
    ours(
        "jaasFile",
        "JAAS file with the users who may log in, and with the login to ZooKeeper (section Client), which Java finds by \
         -Djava.security.auth.login.config; with --config-env that is found in BOOKIE_EXTRA_OPTS and OPTS, too",
    )
    .shown(|view| match &view.config.metadata_security.sasl {
        Some(SaslLogin::Jaas { file, .. }) => file.display().to_string(),
        _ => jaas(view, |jaas| jaas.file.display().to_string()),
    })
    .flag("--jaas-file", |args| args.jaas_file.is_some()),
    applied("saslJaasBookieSectionName", "Bookie", "Section of the JAAS file that has these users")
        .shown(|view| jaas(view, |jaas| jaas.section.clone())),
    applied(
        "saslJaasClientAllowedIds",
        ".*bookkeeper.*",
        "Regular expression that the name of such a user must match as a whole",
    )
    .shown(|view| jaas(view, |jaas| jaas.allowed_ids.clone())),
    ours(
        "usersFile",
        "File of users with roles and hashed passwords (bindery user hash); it switches authentication on by itself",
    )
    .shown(|view| auth(view, AuthConfig::users_shown))
    .flag("--users-file", |args| args.users_file.is_some()),
    ours(
        "requireReaderRole",
        "Reading needs the role reader, too; BookKeeper lets everybody read who is served",
    )
    .shown(|view| auth(view, |auth| auth.requires_reader.to_string())),
    nothing("saslJaasClientSectionName", "BookKeeper", "Section of the JAAS file for clients", OF_JAVAS_CLIENTS),
    nothing("saslJaasAuditorSectionName", "Auditor", "Section of the JAAS file for the auditor", OF_JAVAS_CLIENTS),
    applied("authorizedRoles", "", "Roles of certificates that may connect, for BookieAuthZFactory").shown(roles),
    applied("permittedStartupUsers", "", "Users of the system that may start the bookie")
        .shown(|view| view.text("permittedStartupUsers").unwrap_or_default()),
    refused("httpServerTlsEnable", "false", "TLS on the HTTP port", is_true, NO_HTTP_TLS),
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
    applied("tlsTrustStore", "", "File with the certificates that sign those of clients").shown(|view| {
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
    nothing(
        "tlsHostnameVerificationEnabled",
        "false",
        "Clients compare the name in the certificate",
        OF_CLIENTS,
    ),
    nothing("httpServerKeyStorePath", "", "Key store of the HTTP port", NO_HTTPS),
    nothing("httpServerKeyStorePassword", "", "Its password", NO_HTTPS).secret(),
    nothing("httpServerTrustStorePath", "", "Trust store of the HTTP port", NO_HTTPS),
    nothing("httpServerTrustStorePassword", "", "Its password", NO_HTTPS).secret(),
];
