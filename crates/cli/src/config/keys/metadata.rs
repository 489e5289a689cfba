//! Where the cluster's metadata is.

use super::{Key, applied, is_true, millis, nothing, refused};

const RECONNECTS: &str =
    "the metadata client connects again after pauses of its own, for as long as the bookie runs";
const STORED_LAYOUT: &str =
    "the layout is the one that the cluster was initialised with, or that metadataServiceUri names";
const CLASSES: &str = "it names a Java class, and the drivers here are built in";

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
    refused(
        "zkEnableSecurity",
        "false",
        "Set access lists on everything written to ZooKeeper",
        is_true,
        "this release sets no access lists, and everybody could change the metadata; remove the line if that is meant, behind a \
         network that only clients reach",
    ),
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
