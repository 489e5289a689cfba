//! The keys that say where the cluster's metadata is, and how connections to it are protected.

use super::draft::{StoreKeys, ZooKeeperKeys};
use super::{Draft, Key, Protection, applied, at, nothing, ours};
use bindery_metadata::{SaslLogin, TlsOptions};
use bindery_tls::store::StoreFile;

const RECONNECTS: &str =
    "the metadata client connects again after pauses of its own, for as long as the bookie runs";
const STORED_LAYOUT: &str =
    "the layout is the one that the cluster was initialised with, or that metadataServiceUri names";
const CLASSES: &str = "it names a Java class, and the drivers here are built in";

/// TLS to ZooKeeper.
pub(crate) const ZOOKEEPER_TLS: Protection = Protection {
    key: "zkTlsEnable",
    on: "true",
    off: Some("false"),
    harm: "logins and ledger passwords go to ZooKeeper in plain text",
};

fn tls(draft: &Draft) -> Option<&TlsOptions> {
    draft.config.metadata_security.tls.as_ref()
}

fn identity(draft: &Draft) -> Option<&StoreFile> {
    tls(draft)?.identity.as_ref()
}

fn sasl(draft: &Draft) -> Option<&SaslLogin> {
    draft.config.metadata_security.sasl.as_ref()
}

/// The file itself says what it is.
fn form(_: &mut Draft, text: &str) -> Result<(), String> {
    let is_known = ["PEM", "PKCS12", "JKS"].iter().any(|known| text.eq_ignore_ascii_case(known));
    if is_known { Ok(()) } else { Err("give PEM, PKCS12 or JKS".to_owned()) }
}

/// Whether a store is used.
fn is_used(keys: &ZooKeeperKeys, store: &StoreKeys) -> bool {
    keys.has_tls == Some(true) && store.path.is_some()
}

#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    applied("metadataServiceUri", "",
        "The cluster: zk://, zk+null://, zk+hierarchical:// or zk+longhierarchical://HOST:PORT/ROOT, or Pulsar's \
         metadata-store:zk:HOST:PORT or metadata-store:oxia://HOST:PORT/NAMESPACE; several servers are separated by ; or ,")
        .text(at!(places.metadata => |draft| draft.metadata.as_ref().map(ToString::to_string)))
        .flag("--metadata", |args| args.metadata.is_some()),
    applied("zkServers", "localhost:2181", "ZooKeeper servers, when metadataServiceUri is not set")
        .text(at!(places.servers => |draft| draft.metadata.as_ref().map(|uri| uri.servers.join(",")))).alias_of("metadataServiceUri")
        .flag("--metadata", |args| args.metadata.is_some()),
    applied("zkLedgersRootPath", "/ledgers", "Root of the cluster, when metadataServiceUri is not set")
        .text(at!(places.root => |draft| Some(draft.metadata.as_ref().map_or("/ledgers", |uri| &uri.root).to_owned())))
        .alias_of("metadataServiceUri").flag("--metadata", |args| args.metadata.is_some()),
    applied("zkTimeout", "10000", "Session timeout asked for; at least 1000").millis(at!(config.session_timeout)).at_least(1000),
    applied("zkEnableSecurity", "false", "Only our identity may read and change what is written to ZooKeeper")
        .switch(at!(config.metadata_security.is_restricted)),
    ours("zkTlsEnable", "TLS to ZooKeeper's secure client port; zookeeper.client.secure of Java")
        .switch(at!(zookeeper.has_tls => |draft| Some(tls(draft).is_some()))),
    ours("zkTlsTrustStore", "Store with the authorities of ZooKeeper's servers: PEM, PKCS12 or JKS")
        .path(at!(zookeeper.authorities.path, from root => |draft| Some(tls(draft)?.authorities.path.clone()))).wants(&ZOOKEEPER_TLS),
    ours("zkTlsTrustStoreType", "Form of that store, which the file says by itself")
        .form(form, |draft| draft.text("zkTlsTrustStoreType")).only_if(|draft| is_used(&draft.zookeeper, &draft.zookeeper.authorities)),
    ours("zkTlsTrustStorePassword", "Its password")
        .password(at!(zookeeper.authorities.password => |draft| tls(draft)?.authorities.password.clone())).wants(&ZOOKEEPER_TLS),
    ours("zkTlsTrustStorePasswordPath", "File with its password")
        .password_file(at!(zookeeper.authorities.password => |draft| tls(draft)?.authorities.password.clone())).wants(&ZOOKEEPER_TLS),
    ours("zkTlsKeyStore", "Store with a key and its certificates, for servers that ask for them: PEM, PKCS12 or JKS")
        .path(at!(zookeeper.identity.path, from root => |draft| Some(identity(draft)?.path.clone()))).wants(&ZOOKEEPER_TLS),
    ours("zkTlsKeyStoreType", "Form of that store, which the file says by itself")
        .form(form, |draft| draft.text("zkTlsKeyStoreType")).only_if(|draft| is_used(&draft.zookeeper, &draft.zookeeper.identity)),
    ours("zkTlsKeyStorePassword", "Its password")
        .password(at!(zookeeper.identity.password => |draft| identity(draft)?.password.clone())).wants(&ZOOKEEPER_TLS),
    ours("zkTlsKeyStorePasswordPath", "File with its password")
        .password_file(at!(zookeeper.identity.password => |draft| identity(draft)?.password.clone())).wants(&ZOOKEEPER_TLS),
    ours("zkTlsHostnameVerification", "A ZooKeeper server's certificate must have the name in the URI; true by default")
        .switch(at!(zookeeper.verifies_names => |draft| Some(tls(draft)?.verifies_names))),
    ours("zkSaslEnable", "Log in to ZooKeeper with SASL; by default when there is somebody to log in as")
        .switch(at!(zookeeper.logs_in => |draft| Some(sasl(draft).is_some()))),
    ours("zkSaslUser", "User to log in to ZooKeeper as, without a JAAS file")
        .text(at!(zookeeper.user => |draft| match sasl(draft)? {
            SaslLogin::User { name, .. } => Some(name.clone()),
            _ => None,
        })),
    ours("zkSaslPasswordPath", "File with that user's password on its first line")
        .path(at!(zookeeper.password_file, from root => |draft| match sasl(draft)? {
            SaslLogin::User { password_file, .. } => Some(password_file.clone()),
            _ => None,
        })),
    ours("zkSaslSection", "Section of jaasFile to log in to ZooKeeper with, Client by default")
        .text(at!(zookeeper.section => |draft| match sasl(draft)? {
            SaslLogin::Jaas { section, .. } => Some(section.clone()),
            _ => None,
        })),
    nothing("zkRetryBackoffStartMs", "zkTimeout", "First pause before another attempt", RECONNECTS).unit("ms"),
    nothing("zkRetryBackoffMaxMs", "zkTimeout", "Longest pause before another attempt", RECONNECTS).unit("ms"),
    nothing("zkRetryBackoffMaxRetries", "2147483647", "Attempts to reach ZooKeeper", RECONNECTS),
    nothing("zkRequestRateLimit", "0", "ZooKeeper requests of a second",
        "garbage collection, which sends most of them, has gcMetadataOpRateLimit"),
    nothing("ledgerManagerFactoryClass", "", "Java class of the ledger layout", STORED_LAYOUT),
    nothing("ledgerManagerType", "", "Ledger layout", STORED_LAYOUT),
    nothing("ledgerManagerFactoryDisableClassCheck", "false", "Do not compare the layout's class", STORED_LAYOUT),
    nothing("allowShadedLedgerManagerFactoryClass", "false", "The layout's class may be shaded", STORED_LAYOUT),
    nothing("shadedLedgerManagerFactoryClassPrefix", "dlshade.", "Prefix of shaded classes", STORED_LAYOUT),
    nothing("registrationManagerClass", "", "Java class that registers the bookie", CLASSES),
    nothing("metastoreImplClass", "", "Java class of a metastore", CLASSES),
    nothing("metastoreMaxEntriesPerScan", "50", "Entries of a scan of a metastore", CLASSES),
    nothing("ledgerMetadataVersion", "-1", "Version in which ledger metadata is written", "a bookie writes none: clients do"),
    nothing("storeSystemTimeAsLedgerCreationTime", "false", "Write the time into the metadata of new ledgers",
        "a bookie creates no ledgers: clients do"),
];
