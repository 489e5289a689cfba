//! AutoRecovery, and the client that it uses.

use super::{Key, View, applied, millis, nothing, seconds};
use bindery_repair::{CheckSettings, RepairConfig};
use bindery_types::BookieId;
use std::time::Duration;

const PAUSES: &str = "a ledger that could not be repaired is given back at once and tried again after 2 s to 5 min here, and holds up no other meanwhile";
const OTHERWISE: &str = "copies are read in ranges and bounded by memory here (bindery repair --help), not by these limits of Java's worker";
const NO_PLACES: &str = "a check asks one bookie of a ledger after the other for one entry at a time, so nothing waits for such a place";
const NO_RACKS: &str = "the client inside a bookie knows no racks; bindery repair counts them (--placement, --placement-check-interval)";
const NO_MOVES: &str = "copies that are badly placed are counted (bindery repair --placement-check-interval) and not moved, because a move takes a \
     sound copy away. BookKeeper's AutoRecovery moves them";
const CLIENT: &str = "it is for the client that AutoRecovery uses, which does not run here; clients have settings of their own";

fn repair(view: &View<'_>) -> RepairConfig {
    let own = BookieId::new("bookie").expect("a valid id");
    view.repair.cloned().unwrap_or_default().config(own)
}

/// An interval of which 0 says that there is none.
fn or_never(interval: Option<Duration>) -> String {
    seconds(interval.unwrap_or_default())
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
    applied("replicationRateByBytes", "-1", "Bytes that the worker of this bookie copies in a second, fewer while adds of clients take longer than without copies; -1 for no limit")
        .unit("bytes")
        .shown(|view| repair(view).bytes_per_second.map_or_else(|| "-1".to_owned(), |rate| rate.to_string())),
    applied(
        "auditorPeriodicCheckInterval",
        "604800",
        "Time between two checks of all ledgers: lists of entries, and the first and the last one, of each bookie; 0 for never",
    )
    .unit("s")
    .shown(|view| or_never(repair(view).checks.interval)),
    nothing(
        "auditorPeriodicPlacementPolicyCheckInterval",
        "0",
        "Time between two counts of ledgers whose copies are badly placed",
        NO_RACKS,
    )
    .unit("s"),
    applied(
        "auditorReplicasCheckInterval",
        "0",
        "The same as auditorPeriodicCheckInterval, whose check compares lists of entries, too: the shorter one counts; 0 leaves it to that",
    )
    .unit("s")
    .shown(|view| match repair(view).checks {
        CheckSettings { covers_replicas: true, interval, .. } => or_never(interval),
        _ => or_never(None),
    }),
    applied(
        "auditorLedgerVerificationPercentage",
        "0",
        "Share of the entries between the first and the last one of a bookie that a check of all ledgers reads",
    )
    .unit("%")
    .shown(|view| repair(view).checks.read_percent.to_string()),
    applied(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        "500",
        "Ledgers checked at once, at most 500; the check sends no more than 1,000 requests in a second, however many they are",
    )
    .shown(|view| repair(view).checks.parallel.to_string()),
    nothing(
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec",
        "120000",
        "Wait for one of these places",
        NO_PLACES,
    )
    .unit("ms"),
    nothing("rereplicationEntryBatchSize", "10", "Entries copied at once", OTHERWISE),
    nothing("rwRereplicateBackoffMs", "5000", "Pause after a failed copy", PAUSES).unit("ms"),
    nothing(
        "lockReleaseOfFailedLedgerGracePeriod",
        "300000",
        "Time a failed ledger stays locked",
        PAUSES,
    )
    .unit("ms"),
    applied(
        "underreplicatedLedgerRecoveryGracePeriod",
        "0",
        "Ledgers that have been marked for longer than this are counted in reports of repair (overdue); 0 counts none",
    )
    .unit("s")
    .shown(|view| or_never(repair(view).mark_grace)),
    nothing("inFlightReadEntryNumInLedgerChecker", "-1", "Reads under way in a check", NO_PLACES),
    nothing(
        "repairedPlacementPolicyNotAdheringBookieEnabled",
        "false",
        "Move copies that are badly placed",
        NO_MOVES,
    )
    .asks(super::is_true),
    applied(
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime",
        "true",
        "Write into marks for repair since when; of equally endangered ledgers the oldest mark comes first",
    )
    .shown(|view| repair(view).stamps_marks.to_string()),
    nothing(
        "zkReplicationTaskRateLimit",
        "0",
        "Ledgers taken for repair in a second (since 4.18)",
        "workers here learn of marks by a watch, and end the repair of a ledger with one request to the metadata store",
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
