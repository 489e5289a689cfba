//! AutoRecovery, and the client that it uses.

use super::{Key, View, applied, millis, nothing, seconds};
use bindery_repair::RepairConfig;
use bindery_types::BookieId;

const NOT_DONE: &str = "the auditor and the replication worker here do not do this: BookKeeper's AutoRecovery does, run as a process of its own \
     (bookkeeper autorecovery) with its own configuration file";
const OTHERWISE: &str = "copies are read in ranges and bounded by memory here (bindery repair --help), not by these limits of Java's worker";
const CLIENT: &str = "it is for the client that AutoRecovery uses, which does not run here; clients have settings of their own";

fn repair(view: &View<'_>) -> RepairConfig {
    let own = BookieId::new("bookie").expect("a valid id");
    view.repair.cloned().unwrap_or_default().config(own)
}

pub(super) const KEYS: &[Key] = &[
    applied("autoRecoveryDaemonEnabled", "false", "Find and replace lost copies inside the bookie: auditor and replication worker")
        .shown(|view| view.repair.is_none_or(|repair| repair.is_on).to_string())
        .flag("--repair-role", |args| args.repair_role.is_some()),
    applied("auditorPeriodicBookieCheckInterval", "86400", "Time between two looks through all ledgers for lost bookies")
        .unit("s")
        .shown(|view| seconds(repair(view).auditor.scan_interval)),
    applied(
        "lostBookieRecoveryDelay",
        "0",
        "How long a bookie may be away before it is replaced, unless metadata says it; an entry that lost two copies and has one left waits \
         for nothing",
    )
    .unit("s")
    .shown(|view| seconds(repair(view).auditor.delay)),
    applied(
        "openLedgerRereplicationGracePeriod",
        "30000",
        "How long an open ledger that lost a bookie is left to its writer before it is closed; never while it is seen to be written to",
    )
    .unit("ms")
    .shown(|view| millis(repair(view).open_grace)),
    applied("replicationRateByBytes", "-1", "Bytes that the worker of this bookie copies in a second; -1 for no limit")
        .unit("bytes")
        .shown(|view| repair(view).bytes_per_second.map_or_else(|| "-1".to_owned(), |rate| rate.to_string())),
    nothing("auditorPeriodicCheckInterval", "604800", "Time between two checks of all ledgers", NOT_DONE)
        .unit("s"),
    nothing(
        "auditorPeriodicPlacementPolicyCheckInterval",
        "0",
        "Time between two checks of placement",
        NOT_DONE,
    )
    .unit("s"),
    nothing("auditorReplicasCheckInterval", "0", "Time between two checks of replicas", NOT_DONE)
        .unit("s"),
    nothing("auditorLedgerVerificationPercentage", "0", "Share of entries that a check reads", NOT_DONE)
        .unit("%"),
    nothing(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        "500",
        "Ledgers checked at once",
        NOT_DONE,
    ),
    nothing(
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec",
        "120000",
        "Wait for one of these places",
        NOT_DONE,
    )
    .unit("ms"),
    nothing("rereplicationEntryBatchSize", "10", "Entries copied at once", OTHERWISE),
    nothing("rwRereplicateBackoffMs", "5000", "Pause after a failed copy", NOT_DONE).unit("ms"),
    nothing(
        "lockReleaseOfFailedLedgerGracePeriod",
        "300000",
        "Time a failed ledger stays locked",
        NOT_DONE,
    )
    .unit("ms"),
    nothing(
        "underreplicatedLedgerRecoveryGracePeriod",
        "0",
        "Time after which a ledger that lacks copies is reported",
        NOT_DONE,
    )
    .unit("s"),
    nothing("inFlightReadEntryNumInLedgerChecker", "-1", "Reads under way in a check", NOT_DONE),
    nothing(
        "repairedPlacementPolicyNotAdheringBookieEnabled",
        "false",
        "Move copies that are badly placed",
        NOT_DONE,
    )
    .asks(super::is_true),
    nothing(
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime",
        "true",
        "Write the time into marks for repair",
        NOT_DONE,
    ),
    nothing(
        "zkReplicationTaskRateLimit",
        "0",
        "Ledgers taken for repair in a second (since 4.18)",
        NOT_DONE,
    ),
    nothing("enableHealthCheck", "true", "Watch the health of bookies", CLIENT),
    nothing("digestType", "CRC32", "Checksum of entries that are copied", CLIENT),
    nothing("passwd", "", "Password of ledgers that are copied", CLIENT).secret(),
    nothing("enableDigestTypeAutodetection", "true", "Take checksum and password from metadata", CLIENT),
    nothing("useV2WireProtocol", "false", "Copy with protocol version 2", CLIENT),
    nothing("bookieAddressResolverEnabled", "true", "Look up addresses of bookie ids", CLIENT),
    nothing("stickyReadSEnabled", "false", "Read a ledger from one bookie", CLIENT),
    nothing("reorderReadSequenceEnabled", "false", "Read from near bookies first", CLIENT),
    nothing("ensemblePlacementPolicy", "", "Java class that chooses bookies", CLIENT),
    nothing("reppDnsResolverClass", "", "Java class that names racks", CLIENT),
    nothing("networkTopologyScriptFileName", "", "Script that names racks", CLIENT),
    nothing("networkTopologyScriptNumberArgs", "100", "Addresses in one call of the script", CLIENT),
    nothing("minNumRacksPerWriteQuorum", "2", "Racks of a write quorum", CLIENT),
    nothing("enforceMinNumRacksPerWriteQuorum", "false", "Refuse ledgers on fewer racks", CLIENT),
    nothing(
        "enforceMinNumFaultDomainsForWrite",
        "false",
        "Wait for acknowledgements of several fault domains",
        CLIENT,
    ),
    nothing("minNumZonesPerWriteQuorum", "2", "Zones of a write quorum", CLIENT),
    nothing("desiredNumZonesPerWriteQuorum", "3", "Zones of a write quorum, if there are so many", CLIENT),
    nothing("enforceStrictZoneawarePlacement", "true", "Refuse ledgers on fewer zones", CLIENT),
    nothing("ignoreLocalNodeInPlacementPolicy", "false", "Do not prefer bookies nearby", CLIENT),
];
