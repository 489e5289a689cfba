//! TLS, authentication and authorisation. Values that ask for protection which this release lacks are refused: otherwise the bookie would
//! serve strangers while its operator believes it protected.

use super::{Key, View, applied, nothing, ours, seconds, translated};
use crate::auth_settings::{CERTIFICATES, SASL};
use bindery_metadata::SaslLogin;
use bindery_server::auth::{AuthConfig, JaasConfig, Provider};
use bindery_server::tls::TlsConfig;
use bindery_tls::store::PasswordSource;

const OF_JAVAS_CLIENTS: &str = "it is for BookKeeper's clients, also those inside its AutoRecovery";

/// The form of a store, as it was given, or BookKeeper's default.
fn form(is_pem: bool, given: Option<String>) -> String {
    if is_pem { "PEM".to_owned() } else { given.unwrap_or_else(|| "JKS".to_owned()) }
}

fn password_file(source: Option<&PasswordSource>) -> String {
    match source {
        Some(PasswordSource::File { path, .. }) => path.display().to_string(),
        _ => String::new(),
    }
}

fn hidden(source: Option<&PasswordSource>) -> String {
    source.map_or_else(String::new, |_| "...".to_owned())
}

/// The same of the HTTP port.
fn admin_tls(view: &View<'_>, shown: impl FnOnce(&TlsConfig) -> String) -> String {
    view.config.admin_tls.as_ref().map_or_else(String::new, shown)
}

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
    nothing("saslJaasAuditorSectionName", "Auditor", "Section of the JAAS file for the auditor", OF_JAVAS_CLIENTS),
    applied("authorizedRoles", "", "Roles of certificates that may connect, for BookieAuthZFactory").shown(roles),
    applied("permittedStartupUsers", "", "Users of the system that may start the bookie")
        .shown(|view| view.text("permittedStartupUsers").unwrap_or_default()),
    nothing("tlsProvider", "OpenSSL", "Library that TLS is taken from", "there is one here, rustls"),
    applied("tlsClientAuthentication", "false", "Clients must have a certificate")
        .shown(|view| tls(view, |tls| tls.client_authorities.is_some().to_string())),
    applied("tlsKeyStoreType", "JKS", "Form of the key store: PEM, PKCS12 or JKS; the file says which of the last two")
        .shown(|view| tls(view, |tls| form(tls.key != tls.certificates, view.text("tlsKeyStoreType")))),
    applied("tlsKeyStore", "", "File with the private key")
        .shown(|view| tls(view, |tls| tls.key.display().to_string())),
    applied("tlsKeyStorePasswordPath", "", "File with the key store's password, for JKS and PKCS12")
        .shown(|view| tls(view, |tls| password_file(tls.key_password.as_ref()))),
    applied("tlsTrustStoreType", "JKS", "Form of the trust store: PEM, PKCS12 or JKS").shown(|view| {
        let of_clients = |tls: &TlsConfig| tls.client_authorities.is_some();
        tls(view, |tls| match of_clients(tls) {
            true => form(false, view.text("tlsTrustStoreType")),
            false => String::new(),
        })
    }),
    applied("tlsTrustStore", "", "File with the certificates that sign those of clients, and of bookies for the tierer").shown(|view| {
        tls(view, |tls| {
            tls.client_authorities.as_ref().map_or_else(String::new, |file| file.display().to_string())
        })
    }),
    applied("tlsTrustStorePasswordPath", "", "File with the trust store's password, for JKS and PKCS12")
        .shown(|view| tls(view, |tls| password_file(tls.client_authorities_password.as_ref()))),
    applied("tlsCertificatePath", "", "File with the certificate chain, beside a key in PEM")
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
        "the tierer, which is all that connects to bookies here, compares it unless this is false",
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
    applied("httpServerTlsEnable", "false", "TLS on the HTTP port, and nothing without it there")
        .shown(|view| view.config.admin_tls.is_some().to_string()),
    applied("httpServerKeyStorePath", "", "Store with the key and the certificates of the HTTP port: PEM, PKCS12 or JKS")
        .shown(|view| admin_tls(view, |tls| tls.key.display().to_string())),
    applied("httpServerKeyStorePassword", "", "Its password, for JKS and PKCS12")
        .shown(|view| admin_tls(view, |tls| hidden(tls.key_password.as_ref())))
        .secret(),
    applied(
        "httpServerTrustStorePath",
        "",
        "Store with the authorities of clients of the HTTP port: PEM, PKCS12 or JKS. With it clients need a certificate",
    )
    .shown(|view| {
        admin_tls(view, |tls| {
            tls.client_authorities.as_ref().map_or_else(String::new, |file| file.display().to_string())
        })
    }),
    applied("httpServerTrustStorePassword", "", "Its password, for JKS and PKCS12")
        .shown(|view| admin_tls(view, |tls| hidden(tls.client_authorities_password.as_ref())))
        .secret(),
    ours(
        "httpServerClientCertificates",
        "optional: clients of the HTTP port without a certificate may look, too; required by default with httpServerTrustStorePath",
    )
    .shown(|view| {
        admin_tls(view, |tls| match (&tls.client_authorities, tls.serves_without_certificate) {
            (None, _) => String::new(),
            (Some(_), false) => "required".to_owned(),
            (Some(_), true) => "optional".to_owned(),
        })
    }),
];
