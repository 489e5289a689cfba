//! The keys that say where the cluster's metadata is, and how connections to it are protected.

use super::{Key, View, applied, millis, nothing, ours};
use bindery_metadata::{SaslLogin, TlsOptions};
use bindery_tls::store::{PasswordSource, StoreFile};

const RECONNECTS: &str =
    "the metadata client connects again after pauses of its own, for as long as the bookie runs";
const STORED_LAYOUT: &str =
    "the layout is the one that the cluster was initialised with, or that metadataServiceUri names";
const CLASSES: &str = "it names a Java class, and the drivers here are built in";

/// A TLS setting in force, as `shown` prints it; empty without TLS.
fn tls(view: &View<'_>, shown: impl FnOnce(&TlsOptions) -> String) -> String {
    view.config.metadata_security.tls.as_ref().map_or_else(String::new, shown)
}

fn sasl<'a>(view: &View<'a>) -> Option<&'a SaslLogin> {
    view.config.metadata_security.sasl.as_ref()
}

/// What is printed instead of a password; empty if none is given, or it is in a file.
fn hidden(store: Option<&StoreFile>) -> String {
    match store.and_then(|store| store.password.as_ref()) {
        Some(PasswordSource::Given(_)) => "...".to_owned(),
        _ => String::new(),
    }
}

fn password_file(store: Option<&StoreFile>) -> String {
    match store.and_then(|store| store.password.as_ref()) {
        Some(PasswordSource::File { path, .. }) => path.display().to_string(),
        _ => String::new(),
    }
}

fn path(file: Option<&StoreFile>) -> String {
    file.map_or_else(String::new, |file| file.path.display().to_string())
}

pub(super) const KEYS: &[Key] = &[
    applied(
        "metadataServiceUri",
        "",
        "The cluster: zk://, zk+null://, zk+hierarchical:// or zk+longhierarchical://HOST:PORT/ROOT, or Pulsar's metadata-store:zk:HOST:PORT",
    )
    .shown(|view| view.metadata.map_or_else(String::new, ToString::to_string))
    .flag("--metadata", |args| args.metadata.is_some()),
    applied("zkServers", "localhost:2181", "ZooKeeper servers, when metadataServiceUri is not set")
        .shown(|view| view.metadata.map_or_else(String::new, |uri| uri.servers.join(",")))
        .flag("--metadata", |args| args.metadata.is_some()),
    applied("zkLedgersRootPath", "/ledgers", "Root of the cluster, when metadataServiceUri is not set")
        .shown(|view| view.metadata.map_or_else(|| "/ledgers".to_owned(), |uri| uri.root.clone()))
        .flag("--metadata", |args| args.metadata.is_some()),
    applied("zkTimeout", "10000", "Session timeout asked for; at least 1000")
        .unit("ms")
        .shown(|view| millis(view.config.session_timeout)),
    applied("zkEnableSecurity", "false", "Only our identity may read and change what is written to ZooKeeper")
        .shown(|view| view.config.metadata_security.is_restricted.to_string()),
    ours("zkTlsEnable", "TLS to ZooKeeper's secure client port; zookeeper.client.secure of Java")
        .shown(|view| view.config.metadata_security.tls.is_some().to_string()),
    ours("zkTlsTrustStore", "Store with the authorities of ZooKeeper's servers: PEM, PKCS12 or JKS")
        .shown(|view| tls(view, |tls| path(Some(&tls.authorities)))),
    ours("zkTlsTrustStoreType", "Form of that store, which the file says by itself")
        .shown(|view| view.text("zkTlsTrustStoreType").unwrap_or_default()),
    ours("zkTlsTrustStorePassword", "Its password")
        .shown(|view| tls(view, |tls| hidden(Some(&tls.authorities))))
        .secret(),
    ours("zkTlsTrustStorePasswordPath", "File with its password")
        .shown(|view| tls(view, |tls| password_file(Some(&tls.authorities)))),
    ours("zkTlsKeyStore", "Store with a key and its certificates, for servers that ask for them: PEM, PKCS12 or JKS")
        .shown(|view| tls(view, |tls| path(tls.identity.as_ref()))),
    ours("zkTlsKeyStoreType", "Form of that store, which the file says by itself")
        .shown(|view| view.text("zkTlsKeyStoreType").unwrap_or_default()),
    ours("zkTlsKeyStorePassword", "Its password")
        .shown(|view| tls(view, |tls| hidden(tls.identity.as_ref())))
        .secret(),
    ours("zkTlsKeyStorePasswordPath", "File with its password")
        .shown(|view| tls(view, |tls| password_file(tls.identity.as_ref()))),
    ours("zkTlsHostnameVerification", "A ZooKeeper server's certificate must have the name in the URI; true by default")
        .shown(|view| tls(view, |tls| tls.verifies_names.to_string())),
    ours("zkSaslEnable", "Log in to ZooKeeper with SASL; by default when there is somebody to log in as")
        .shown(|view| view.config.metadata_security.sasl.is_some().to_string()),
    ours("zkSaslUser", "User to log in to ZooKeeper as, without a JAAS file").shown(|view| match sasl(view) {
        Some(SaslLogin::User { name, .. }) => name.clone(),
        _ => String::new(),
    }),
    ours("zkSaslPasswordPath", "File with that user's password on its first line").shown(|view| match sasl(view) {
        Some(SaslLogin::User { password_file, .. }) => password_file.display().to_string(),
        _ => String::new(),
    }),
    ours("zkSaslSection", "Section of jaasFile to log in to ZooKeeper with, Client by default").shown(|view| {
        match sasl(view) {
            Some(SaslLogin::Jaas { section, .. }) => section.clone(),
            _ => String::new(),
        }
    }),
    nothing("zkRetryBackoffStartMs", "zkTimeout", "First pause before another attempt", RECONNECTS).unit("ms"),
    nothing("zkRetryBackoffMaxMs", "zkTimeout", "Longest pause before another attempt", RECONNECTS).unit("ms"),
    nothing("zkRetryBackoffMaxRetries", "2147483647", "Attempts to reach ZooKeeper", RECONNECTS),
    nothing(
        "zkRequestRateLimit",
        "0",
        "ZooKeeper requests of a second",
        "garbage collection, which sends most of them, has gcMetadataOpRateLimit",
    ),
    nothing("ledgerManagerFactoryClass", "", "Java class of the ledger layout", STORED_LAYOUT),
    nothing("ledgerManagerType", "", "Ledger layout", STORED_LAYOUT),
    nothing("ledgerManagerFactoryDisableClassCheck", "false", "Do not compare the layout's class", STORED_LAYOUT),
    nothing("allowShadedLedgerManagerFactoryClass", "false", "The layout's class may be shaded", STORED_LAYOUT),
    nothing("shadedLedgerManagerFactoryClassPrefix", "dlshade.", "Prefix of shaded classes", STORED_LAYOUT),
    nothing("registrationManagerClass", "", "Java class that registers the bookie", CLASSES),
    nothing("metastoreImplClass", "", "Java class of a metastore", CLASSES),
    nothing("metastoreMaxEntriesPerScan", "50", "Entries of a scan of a metastore", CLASSES),
    nothing(
        "ledgerMetadataVersion",
        "-1",
        "Version in which ledger metadata is written",
        "a bookie writes none: clients do",
    ),
    nothing(
        "storeSystemTimeAsLedgerCreationTime",
        "false",
        "Write the time into the metadata of new ledgers",
        "a bookie creates no ledgers: clients do",
    ),
];
