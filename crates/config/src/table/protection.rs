//! TLS, authentication and authorisation. Values that ask for protection which this release lacks are refused: otherwise the bookie would
//! serve strangers while its operator believes it protected.

use super::key::from_root;
use super::{Draft, Key, Place, Protection, applied, at, nothing, ours, translated};
use bindery_metadata::SaslLogin;
use bindery_server::auth::{AuthConfig, JaasConfig, Provider};
use bindery_server::tenants::TenantsConfig;
use bindery_server::tls::TlsConfig;
use std::path::PathBuf;

/// BookKeeper's provider of names and passwords.
pub(crate) const SASL: &str = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory";
/// BookKeeper's provider of roles in certificates.
pub(crate) const CERTIFICATES: &str = "org.apache.bookkeeper.tls.BookieAuthZFactory";

/// The one implementation of TLS that BookKeeper has.
pub(crate) const TLS_FACTORY: &str = "org.apache.bookkeeper.tls.TLSContextFactory";
/// TLS with clients.
pub(crate) const TLS: Protection = Protection {
    key: "tlsProviderFactoryClass",
    on: TLS_FACTORY,
    off: Some("null"),
    harm: "clients are served in plain text, and without certificates",
};
/// TLS of the admin port. BookKeeper's file has its key with false.
pub(crate) const ADMIN_TLS: Protection = Protection {
    key: "httpServerTlsEnable",
    on: "true",
    off: None,
    harm: "the admin port speaks plain HTTP, and asks nobody for a certificate",
};

const OF_JAVAS_CLIENTS: &str = "it is for BookKeeper's clients, also those inside its AutoRecovery";

/// As in BookKeeper's sample file, "null" stands for none.
fn unless_null(path: PathBuf) -> Option<PathBuf> {
    Some(path).filter(|path| path.as_os_str() != "null").map(from_root)
}

/// The TLS that is in force.
fn tls(draft: &Draft) -> Option<&TlsConfig> {
    draft.config.tls.as_ref()
}

/// The same of the HTTP port.
fn admin_tls(draft: &Draft) -> Option<&TlsConfig> {
    draft.config.admin_tls.as_ref()
}

/// The authentication that is in force.
fn auth(draft: &Draft) -> Option<&AuthConfig> {
    draft.config.auth.as_ref()
}

/// The JAAS file whose users log in.
fn jaas(draft: &Draft) -> Option<&JaasConfig> {
    auth(draft)?.jaas()
}

#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    applied("tlsProviderFactoryClass", "", "Switches TLS on: org.apache.bookkeeper.tls.TLSContextFactory")
        .text(Place::new(
            |draft, class| draft.tls.factory = Some(class).filter(|class| class != "null"),
            |draft| tls(draft).map(|_| TLS_FACTORY.to_owned()),
        )),
    ours("tlsRequired", "Refuse requests of connections without TLS; true by default with tlsClientAuthentication")
        .switch(at!(tls.is_required => |draft| Some(tls(draft)?.is_required))),
    applied("bookieAuthProviderFactoryClass", "",
        "How clients say who they are: org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory for names and passwords, \
         org.apache.bookkeeper.tls.BookieAuthZFactory for roles in certificates; without it everybody is served")
        .text(at!(auth.class => |draft| Some(match auth(draft)?.provider {
            Provider::Sasl { .. } => SASL.to_owned(),
            Provider::Certificates { .. } => CERTIFICATES.to_owned(),
        }))),
    ours("jaasFile",
        "JAAS file with the users who may log in (bookieAuthProviderFactoryClass), and with the login to ZooKeeper (section Client), which \
         Java finds by -Djava.security.auth.login.config; with --config-env that is found in BOOKIE_EXTRA_OPTS and OPTS, too")
        .path(
            at!(jaas_file, from root => |draft| match &draft.config.metadata_security.sasl {
                Some(SaslLogin::Jaas { file, .. }) => Some(file.clone()),
                _ => Some(jaas(draft)?.file.clone()),
            })
            .flag("--jaas-file", |args| args.jaas_file.clone()),
        ),
    applied("saslJaasBookieSectionName", "Bookie", "Section of the JAAS file that has these users")
        .text(at!(auth.section => |draft| Some(jaas(draft)?.section.clone()))),
    applied("saslJaasClientAllowedIds", ".*bookkeeper.*", "Regular expression that the name of such a user must match as a whole")
        .text(at!(auth.allowed_ids => |draft| Some(jaas(draft)?.allowed_ids.clone()))),
    ours("usersFile", "File of users with roles and hashed passwords (bindery user hash); it switches authentication on by itself")
        .path(
            at!(auth.users, from root => |draft| match &auth(draft)?.provider {
                Provider::Sasl { users, .. } => users.clone(),
                Provider::Certificates { .. } => None,
            })
            .flag("--users-file", |args| args.users_file.clone()),
        ),
    ours("requireReaderRole", "Reading needs the role reader, too; BookKeeper lets everybody read who is served")
        .switch(at!(auth.requires_reader => |draft| Some(auth(draft)?.requires_reader))),
    ours("tenantsFile", "File of tenants: limits in bytes a second, weights, and whose ledgers and connections are (docs/guide/tenants.md)")
        .path(
            Place::new(
                |draft, file| {
                    let refresh = TenantsConfig::REFRESH_DEFAULT;
                    draft.config.tenants = Some(TenantsConfig { file: from_root(file), refresh });
                },
                |draft| Some(draft.config.tenants.as_ref()?.file.clone()),
            )
            .flag("--tenants-file", |args| args.tenants_file.clone()),
        ),
    nothing("saslJaasAuditorSectionName", "Auditor", "Section of the JAAS file for the auditor", OF_JAVAS_CLIENTS),
    applied("authorizedRoles", "", "Roles of certificates that may connect, for BookieAuthZFactory")
        .text(at!(auth.roles => |draft| match &auth(draft)?.provider {
            Provider::Sasl { .. } => None,
            Provider::Certificates { roles } => Some(roles.join(",")),
        })),
    applied("permittedStartupUsers", "", "Users of the system that may start the bookie").text(at!(auth.startup_users, if given)),
    nothing("tlsProvider", "OpenSSL", "Library that TLS is taken from", "there is one here, rustls"),
    applied("tlsClientAuthentication", "false", "Clients must have a certificate")
        .switch(at!(tls.asks_for_certificates => |draft| Some(tls(draft)?.client_authorities.is_some())))
        .only_if(|draft| draft.tls.factory.is_some()).wants(&TLS),
    applied("tlsKeyStoreType", "JKS", "Form of the key store: PEM, PKCS12 or JKS; the file says which of the last two")
        .text(at!(tls.key.form => |draft| tls(draft).map(|_| draft.tls.key.form_or_default().to_owned()))),
    applied("tlsKeyStore", "", "File with the private key")
        .path(Place::new(|draft, path| draft.tls.key.path = unless_null(path), |draft| Some(tls(draft)?.key.clone()))).wants(&TLS),
    applied("tlsKeyStorePasswordPath", "", "File with the key store's password, for JKS and PKCS12")
        .password_file(at!(tls.key.password => |draft| tls(draft)?.key_password.clone())).wants(&TLS),
    applied("tlsTrustStoreType", "JKS", "Form of the trust store: PEM, PKCS12 or JKS")
        .text(at!(tls.authorities.form => |draft| {
            tls(draft)?.client_authorities.as_ref().map(|_| draft.tls.authorities.form_or_default().to_owned())
        })),
    applied("tlsTrustStore", "", "File with the certificates that sign those of clients, and of bookies for the tierer")
        .path(Place::new(
            |draft, path| draft.tls.authorities.path = unless_null(path),
            |draft| tls(draft)?.client_authorities.clone(),
        ))
        .wants(&TLS),
    applied("tlsTrustStorePasswordPath", "", "File with the trust store's password, for JKS and PKCS12")
        .password_file(at!(tls.authorities.password => |draft| tls(draft)?.client_authorities_password.clone())).wants(&TLS),
    applied("tlsCertificatePath", "", "File with the certificate chain, beside a key in PEM")
        .path(Place::new(|draft, path| draft.tls.certificates = unless_null(path), |draft| Some(tls(draft)?.certificates.clone())))
        .wants(&TLS),
    applied("tlsCertFilesRefreshDurationSeconds", "0", "Time between two looks at these files; 0 for none")
        .seconds(at!(tls.refresh => |draft| Some(tls(draft)?.refresh.unwrap_or_default()))).within(0, 1_000_000)
        .only_if(|draft| draft.tls.factory.is_some()),
    applied("tlsEnabledCipherSuites", "", "Cipher suites; all without it").text(at!(tls.ciphers, if given)).wants(&TLS),
    applied("tlsEnabledProtocols", "", "Versions of TLS; TLSv1.2 and TLSv1.3 without it").text(at!(tls.versions, if given)).wants(&TLS),
    translated("tlsHostnameVerificationEnabled", "false", "Clients compare the name in a bookie's certificate",
        "the tierer, which is all that connects to bookies here, compares it unless this is false").as_given("true"),
    applied("clientAuthProviderFactoryClass", "", "Class by which the bookie's own client, the tierer, proves its user to bookies")
        .as_given(""),
    applied("saslJaasClientSectionName", "BookKeeper", "Section of the JAAS file with that user").as_given("BookKeeper"),
    ours("saslUser", "That user, without a JAAS file").as_given(""),
    ours("saslPasswordFile", "File with the password of saslUser in its first line").as_given(""),
    ours("saslMechanism", "How the user is proved: DIGEST-MD5, or PLAIN over TLS").as_given("DIGEST-MD5"),
    applied("httpServerTlsEnable", "false", "TLS on the HTTP port, and nothing without it there")
        .switch(at!(admin_tls.is_on => |draft| Some(admin_tls(draft).is_some()))),
    applied("httpServerKeyStorePath", "", "Store with the key and the certificates of the HTTP port: PEM, PKCS12 or JKS")
        .path(at!(admin_tls.key.path, from root => |draft| Some(admin_tls(draft)?.key.clone()))).wants(&ADMIN_TLS),
    applied("httpServerKeyStorePassword", "", "Its password, for JKS and PKCS12")
        .password(at!(admin_tls.key.password => |draft| admin_tls(draft)?.key_password.clone())).wants(&ADMIN_TLS),
    applied("httpServerTrustStorePath", "",
        "Store with the authorities of clients of the HTTP port: PEM, PKCS12 or JKS. With it clients need a certificate")
        .path(at!(admin_tls.authorities.path, from root => |draft| admin_tls(draft)?.client_authorities.clone())).wants(&ADMIN_TLS),
    applied("httpServerTrustStorePassword", "", "Its password, for JKS and PKCS12")
        .password(at!(admin_tls.authorities.password => |draft| admin_tls(draft)?.client_authorities_password.clone())).wants(&ADMIN_TLS),
    ours("httpServerClientCertificates",
        "optional: clients of the HTTP port without a certificate may look, too; required by default with httpServerTrustStorePath")
        .word(
            &["required", "optional"],
            Place::new(
                |draft, at| draft.admin_tls.serves_without_certificate = Some(at == 1),
                |draft| {
                    let tls = admin_tls(draft)?;
                    tls.client_authorities.as_ref().map(|_| usize::from(tls.serves_without_certificate))
                },
            ),
        )
        .only_if(|draft| draft.admin_tls.is_on == Some(true)).wants(&ADMIN_TLS),
];
