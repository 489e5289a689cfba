//! AutoRecovery, and the client that it uses.

use super::{Key, Place, applied, at, nothing};
use crate::repair::{CHECKED_AT_ONCE_MAX, INTERVAL_MAX};
use bindery_repair::CheckSettings;

const PAUSES: &str = "a ledger that could not be repaired is given back at once and tried again after 2 s to 5 min here, and holds up no other meanwhile";
const OTHERWISE: &str = "copies are read in ranges and bounded by memory here (bindery repair --help), not by these limits of Java's worker";
const NO_PLACES: &str = "a check asks one bookie of a ledger after the other for one entry at a time, so nothing waits for such a place";
const NO_RACKS: &str = "the client inside a bookie knows no racks; bindery repair counts them (--placement, --placement-check-interval)";
const NO_MOVES: &str = "copies that are badly placed are counted (bindery repair --placement-check-interval) and not moved, because a move takes a \
     sound copy away. BookKeeper's AutoRecovery moves them";
const CLIENT: &str = "it is for the client that AutoRecovery uses, which does not run here; clients have settings of their own";

/// The longest interval, in seconds.
const SECONDS_MAX: i128 = INTERVAL_MAX.as_secs() as i128;
const U32_MAX: i128 = u32::MAX as i128;

/// The key that repair in the bookie is switched with.
pub(crate) const SWITCH: &str = "autoRecoveryDaemonEnabled";

#[rustfmt::skip]
pub(crate) const KEYS: &[Key] = &[
    applied(SWITCH, "false", "Find and replace lost copies inside the bookie: auditor and replication worker")
        .switch(
            Place::new(
                |draft, is_on| (draft.repair.is_asked, draft.repair.is_on) = (is_on, is_on),
                |draft| Some(draft.repair.is_on),
            )
            .flag("--repair-role", |args| args.repair_role.map(bool::from)),
        ),
    applied("auditorPeriodicBookieCheckInterval", "86400", "Time between two looks through all ledgers for lost bookies; 0 for never")
        .seconds(Place::new(
            // No process lives for so long.
            |draft, time| draft.repair.work.auditor.scan_interval = if time.is_zero() { INTERVAL_MAX } else { time },
            |draft| Some(draft.repair.work.auditor.scan_interval),
        ))
        .signed().taken_as(0, SECONDS_MAX),
    applied("lostBookieRecoveryDelay", "0",
        "How long a bookie may be away before it is replaced, unless metadata says it; an entry that lost two copies and has one left \
         waits for nothing").seconds(at!(repair.work.auditor.delay)).within(0, U32_MAX),
    applied("openLedgerRereplicationGracePeriod", "30000",
        "How long an open ledger that lost a bookie is left to its writer before it is closed; never while it is seen to be written to")
        .millis(at!(repair.work.open_grace)).within(0, U32_MAX),
    applied("replicationRateByBytes", "-1",
        "Bytes that the worker of this bookie copies in a second, fewer while adds of clients take longer than without copies; -1 for no \
         limit")
        .bytes(Place::new(
            // Java takes what is not above zero for no limit.
            |draft, rate| draft.repair.work.bytes_per_second = u64::try_from(rate).ok().filter(|rate| *rate > 0),
            |draft| Some(draft.repair.work.bytes_per_second.map_or(-1, i128::from)),
        ))
        .signed().advice("give a whole number, or -1 for no limit"),
    applied("auditorPeriodicCheckInterval", "604800",
        "Time between two checks of all ledgers: lists of entries, and the first and the last one, of each bookie; 0 for never")
        .seconds(at!(repair.work.checks.interval, or never)).signed().taken_as(0, SECONDS_MAX),
    nothing("auditorPeriodicPlacementPolicyCheckInterval", "0", "Time between two counts of ledgers whose copies are badly placed", NO_RACKS)
        .unit("s"),
    applied("auditorReplicasCheckInterval", "0",
        "The same as auditorPeriodicCheckInterval, whose check compares lists of entries, too: the shorter one counts; 0 leaves it to that")
        .seconds(Place::new(
            |draft, every| {
                let checks = &mut draft.repair.work.checks;
                if !every.is_zero() {
                    checks.covers_replicas = true;
                    checks.interval = Some(checks.interval.map_or(every, |interval| interval.min(every)));
                }
            },
            |draft| match draft.repair.work.checks {
                CheckSettings { covers_replicas: true, interval, .. } => Some(interval.unwrap_or_default()),
                _ => Some(Default::default()),
            },
        ))
        .signed().taken_as(0, SECONDS_MAX),
    applied("auditorLedgerVerificationPercentage", "0",
        "Share of the entries between the first and the last one of a bookie that a check of all ledgers reads")
        .number(at!(repair.work.checks.read_percent as u32)).within(0, 100).unit("%"),
    applied("auditorMaxNumberOfConcurrentOpenLedgerOperations", "500",
        "Ledgers checked at once, at most 500; the check sends no more than 1,000 requests in a second, however many they are")
        .number(at!(repair.work.checks.parallel as usize)).within(0, U32_MAX).taken_as(1, CHECKED_AT_ONCE_MAX as i128),
    nothing("auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec", "120000", "Wait for one of these places", NO_PLACES).unit("ms"),
    nothing("rereplicationEntryBatchSize", "10", "Entries copied at once", OTHERWISE),
    nothing("rwRereplicateBackoffMs", "5000", "Pause after a failed copy", PAUSES).unit("ms"),
    nothing("lockReleaseOfFailedLedgerGracePeriod", "300000", "Time a failed ledger stays locked", PAUSES).unit("ms"),
    applied("underreplicatedLedgerRecoveryGracePeriod", "0",
        "Ledgers that have been marked for longer than this are counted in reports of repair (overdue); 0 counts none")
        .seconds(at!(repair.work.mark_grace, or never)).signed().taken_as(0, SECONDS_MAX),
    nothing("inFlightReadEntryNumInLedgerChecker", "-1", "Reads under way in a check", NO_PLACES),
    nothing("repairedPlacementPolicyNotAdheringBookieEnabled", "false", "Move copies that are badly placed", NO_MOVES).asks(super::is_true),
    applied("storeSystemTimeAsLedgerUnderreplicatedMarkTime", "true",
        "Write into marks for repair since when; of equally endangered ledgers the oldest mark comes first")
        .switch(at!(repair.work.stamps_marks)),
    nothing("zkReplicationTaskRateLimit", "0", "Ledgers taken for repair in a second (since 4.18)",
        "workers here learn of marks by a watch, and end the repair of a ledger with one request to the metadata store"),
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
    nothing("enforceMinNumFaultDomainsForWrite", "false", "Wait for acknowledgements of several fault domains", CLIENT),
    nothing("minNumZonesPerWriteQuorum", "2", "Zones of a write quorum", CLIENT),
    nothing("desiredNumZonesPerWriteQuorum", "3", "Zones of a write quorum, if there are so many", CLIENT),
    nothing("enforceStrictZoneawarePlacement", "true", "Refuse ledgers on fewer zones", CLIENT),
    nothing("ignoreLocalNodeInPlacementPolicy", "false", "Do not prefer bookies nearby", CLIENT),
];
