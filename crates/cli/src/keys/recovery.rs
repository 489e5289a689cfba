//! AutoRecovery, and the client that it uses.

use super::{Key, nothing};

const NO_RECOVERY: &str = "this release does not repair ledgers: BookKeeper's AutoRecovery does, run as a process of its own (bookkeeper \
     autorecovery) with its own configuration file";
const CLIENT: &str = "it is for the client that AutoRecovery uses, which does not run here; clients have settings of their own";

pub(super) const KEYS: &[Key] = &[
    nothing("autoRecoveryDaemonEnabled", "false", "Run AutoRecovery inside the bookie", NO_RECOVERY)
        .asks(super::is_true),
    nothing(
        "auditorPeriodicBookieCheckInterval",
        "86400",
        "Time between two looks for lost bookies",
        NO_RECOVERY,
    )
    .unit("s"),
    nothing("auditorPeriodicCheckInterval", "604800", "Time between two checks of all ledgers", NO_RECOVERY)
        .unit("s"),
    nothing(
        "auditorPeriodicPlacementPolicyCheckInterval",
        "0",
        "Time between two checks of placement",
        NO_RECOVERY,
    )
    .unit("s"),
    nothing("auditorReplicasCheckInterval", "0", "Time between two checks of replicas", NO_RECOVERY)
        .unit("s"),
    nothing("auditorLedgerVerificationPercentage", "0", "Share of entries that a check reads", NO_RECOVERY)
        .unit("%"),
    nothing(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        "500",
        "Ledgers checked at once",
        NO_RECOVERY,
    ),
    nothing(
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec",
        "120000",
        "Wait for one of these places",
        NO_RECOVERY,
    )
    .unit("ms"),
    nothing("lostBookieRecoveryDelay", "0", "Wait before a lost bookie is replaced", NO_RECOVERY).unit("s"),
    nothing(
        "openLedgerRereplicationGracePeriod",
        "30000",
        "Wait before an open ledger is recovered",
        NO_RECOVERY,
    )
    .unit("ms"),
    nothing("rereplicationEntryBatchSize", "10", "Entries copied at once", NO_RECOVERY),
    nothing("replicationRateByBytes", "-1", "Bytes copied in a second", NO_RECOVERY).unit("bytes"),
    nothing("rwRereplicateBackoffMs", "5000", "Pause after a failed copy", NO_RECOVERY).unit("ms"),
    nothing(
        "lockReleaseOfFailedLedgerGracePeriod",
        "300000",
        "Time a failed ledger stays locked",
        NO_RECOVERY,
    )
    .unit("ms"),
    nothing(
        "underreplicatedLedgerRecoveryGracePeriod",
        "0",
        "Time after which a ledger that lacks copies is reported",
        NO_RECOVERY,
    )
    .unit("s"),
    nothing("inFlightReadEntryNumInLedgerChecker", "-1", "Reads under way in a check", NO_RECOVERY),
    nothing(
        "repairedPlacementPolicyNotAdheringBookieEnabled",
        "false",
        "Move copies that are badly placed",
        NO_RECOVERY,
    ),
    nothing(
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime",
        "true",
        "Write the time into marks for repair",
        NO_RECOVERY,
    ),
    nothing(
        "zkReplicationTaskRateLimit",
        "0",
        "Ledgers taken for repair in a second (since 4.18)",
        NO_RECOVERY,
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
