//! Limits of requests in progress and of patience with peers: BookKeeper's keys count requests and threads, this bookie
//! counts bytes. Each key that is given is translated, and a note says how. Those that limit what is not here are in the table
//! of keys (`crate::keys`).

use crate::sources::values::Values;
use bindery_server::config::BookieConfig;
use bindery_server::connection::StalledClose;
use std::time::Duration;

/// Assumed size of an entry, to convert a limit given in entries into bytes (`averageEntryBytes`).
pub const AVERAGE_ENTRY_BYTES: u64 = 4096;
/// A descriptor of a read that waits, as the control pool counts it.
const READ_BYTES: u64 = 320;
/// The least that a group of adds may have: below that, syncs are what adds wait for.
const GROUP_BYTES_MIN: u64 = 1 << 20;
/// Windows for the reads of a connection: from one write to what a pool of 256 MiB bears.
const WINDOW_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(16 << 20);

/// Takes the keys; notes for each one given how it was understood.
pub fn apply(file: &mut Values, config: &mut BookieConfig) {
    let average = match file.parsed::<u64>("averageEntryBytes") {
        Some(0) => {
            file.fault("averageEntryBytes", "averageEntryBytes=0: give the size of a usual entry in bytes");
            AVERAGE_ENTRY_BYTES
        }
        given => given.unwrap_or(AVERAGE_ENTRY_BYTES),
    };
    reads(file, config, average);
    adds(file, config, average);
    patience(file, config);
}

fn reads(file: &mut Values, config: &mut BookieConfig, average: u64) {
    let key = "maxReadsInProgressLimit";
    match file.parsed::<i64>(key) {
        Some(reads @ 1..) => {
            let bytes = (reads as u64).saturating_mul(average);
            config.limits.outbound_bytes_max = Some(bytes);
            file.note(key, format!(
                "{key}={reads}: {reads} reads x {average} bytes (averageEntryBytes) = {bytes} bytes of loaded entries in \
                 all; the outbound pool gets no more than that, but two of the largest frames at least"
            ));
        }
        Some(none) => file
            .note(key, format!("{key}={none}: no limit of its own; the outbound pool bounds loaded entries")),
        None => {}
    }
    let key = "maxPendingReadRequestsPerThread";
    match file.parsed::<i64>(key) {
        Some(reads @ 1..) => {
            config.limits.read_queue_max = usize::try_from(reads).unwrap_or(usize::MAX).clamp(100, 1_000_000);
            let (held, bytes) =
                (config.limits.read_queue_max, config.limits.read_queue_max as u64 * READ_BYTES);
            file.note(key, format!(
                "{key}={reads}: reads wait for each connection, not for a thread; each connection may have {held}, \
                 {held} x {READ_BYTES} bytes of descriptors = {bytes} bytes"
            ));
        }
        Some(none) => {
            let held = config.limits.read_queue_max;
            file.note(
                key,
                format!(
                    "{key}={none}: there is always a limit; each connection may have {held} reads waiting"
                ),
            );
        }
        None => {}
    }
    let key = "serverWriteBufferHighWaterMark";
    if let Some(bytes) = file.parsed::<u64>(key) {
        let window = bytes.clamp(*WINDOW_BYTES.start(), *WINDOW_BYTES.end());
        config.limits.read_window_bytes = window as usize;
        file.note(
            key,
            format!(
                "{key}={bytes}: a connection may hold {window} bytes of entries that its peer has not taken"
            ),
        );
    }
}

fn adds(file: &mut Values, config: &mut BookieConfig, average: u64) {
    let key = "maxAddsInProgressLimit";
    match file.parsed::<i64>(key) {
        Some(adds @ 1..) => {
            let bytes = (adds as u64).saturating_mul(average);
            // One group is being written while the next one forms.
            let journals = config.journal_dirs.len().max(1) as u64;
            let most = config.limits.group_bytes_max as u64;
            let group = (bytes / 2 / journals).clamp(GROUP_BYTES_MIN, most.max(GROUP_BYTES_MIN));
            config.limits.group_bytes_max = group as usize;
            file.note(key, format!(
                "{key}={adds}: {adds} adds x {average} bytes (averageEntryBytes) = {bytes} bytes not acknowledged yet: \
                 groups of {group} bytes, two in each of {journals} journals (between {GROUP_BYTES_MIN} and {most}); \
                 further adds wait for room, then get too-many-requests"
            ));
        }
        Some(none) => {
            file.note(key, format!("{key}={none}: no limit of its own; groups and the write pool bound adds"))
        }
        None => {}
    }
}

fn patience(file: &mut Values, config: &mut BookieConfig) {
    let rules = &mut config.limits.stall;
    if let Some(ms) = file.parsed::<u64>("stalledConnectionTimeoutMillis") {
        rules.close_after = Duration::from_millis(ms.max(100));
    }
    let key = "waitTimeoutOnResponseBackpressureMs";
    match file.parsed::<i64>(key) {
        Some(ms @ 0..) => {
            rules.drop_after = Duration::from_millis((ms as u64).clamp(10, 60_000));
            let after = rules.drop_after.as_millis();
            file.note(key, format!(
                "{key}={ms}: nobody waits for a peer; responses of one that takes nothing for {after} ms give their memory \
                 back while others need it, and are loaded again when it reads"
            ));
        }
        Some(ms) => {
            let after = rules.drop_after.as_millis();
            file.note(
                key,
                format!("{key}={ms}: as without it: after {after} ms, and only while others need the memory"),
            );
        }
        None => {}
    }
    let key = "closeChannelOnResponseTimeout";
    if let Some(closes) = file.flag(key) {
        if closes {
            rules.close = StalledClose::Always;
        }
        let after = rules.close_after.as_millis();
        file.note(key, match closes {
            true => format!("{key}=true: a connection whose peer takes nothing for {after} ms is closed"),
            false => format!(
                "{key}=false: a connection whose peer takes nothing for {after} ms is closed only while others need what it \
                 holds (stalledConnectionClose=never: not even then)"
            ),
        });
    }
    let key = "stalledConnectionClose";
    match file.take(key).as_deref() {
        None => {}
        Some("never") => rules.close = StalledClose::Never,
        Some("pressure") => rules.close = StalledClose::UnderPressure,
        Some("always") => rules.close = StalledClose::Always,
        Some(other) => file.fault(key, format!("{key}={other}: write never, pressure or always")),
    }
    if let Some(ms) = file.parsed::<u64>("requestAgeMaxMillis") {
        config.limits.request_age_max = Duration::from_millis(ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::values::Finding;
    use std::path::PathBuf;

    fn applied(text: &str) -> (BookieConfig, Vec<String>, Vec<String>) {
        let mut file = Values::of(Some(text));
        let mut config =
            BookieConfig { journal_dirs: vec![PathBuf::from("/j"); 2], ..BookieConfig::default() };
        apply(&mut file, &mut config);
        let left = file.rest();
        assert!(left.is_empty(), "{left:?}");
        let texts = |found: &[Finding]| found.iter().map(|finding| finding.text.clone()).collect();
        (config, texts(&file.notes), texts(&file.faults))
    }

    #[test]
    fn numbers_of_requests_become_bytes_and_a_line_says_how() {
        let (config, lines, _) = applied(
            "maxReadsInProgressLimit=10000\nmaxAddsInProgressLimit=2000\naverageEntryBytes=8192\n\
             maxPendingReadRequestsPerThread=2500\nserverWriteBufferHighWaterMark=524288\n",
        );
        let limits = config.limits;
        assert_eq!(limits.outbound_bytes_max, Some(81_920_000));
        assert_eq!(limits.group_bytes_max, 2000 * 8192 / 2 / 2);
        assert_eq!((limits.read_queue_max, limits.read_window_bytes), (2500, 512 << 10));
        assert_eq!(lines.len(), 4, "a line for each");
        assert!(
            lines[0].contains("10000 reads x 8192 bytes") && lines[0].contains("81920000 bytes"),
            "{lines:?}"
        );
        assert!(lines.iter().any(|line| line.contains("2000 adds x 8192 bytes")), "{lines:?}");
    }

    #[test]
    fn no_number_lifts_the_bounds_in_bytes() {
        let (config, lines, _) = applied(
            "maxReadsInProgressLimit=0\nmaxAddsInProgressLimit=0\nmaxPendingReadRequestsPerThread=0\n\
             waitTimeoutOnResponseBackpressureMs=-1\n",
        );
        let default = BookieConfig::default().limits;
        assert_eq!(config.limits.outbound_bytes_max, None);
        assert_eq!(config.limits.group_bytes_max, default.group_bytes_max);
        assert_eq!(
            (config.limits.read_queue_max, config.limits.stall),
            (default.read_queue_max, default.stall)
        );
        assert_eq!(lines.len(), 4);
        let (config, _, _) = applied("maxAddsInProgressLimit=1\nserverWriteBufferHighWaterMark=1\n");
        assert_eq!(config.limits.group_bytes_max as u64, GROUP_BYTES_MIN);
        assert_eq!(config.limits.read_window_bytes, 64 << 10);
    }

    #[test]
    fn patience_with_peers_has_bookkeepers_keys_and_ours() {
        let (config, lines, _) =
            applied("closeChannelOnResponseTimeout=true\nwaitTimeoutOnResponseBackpressureMs=500\n");
        let stall = config.limits.stall;
        assert_eq!((stall.close, stall.drop_after.as_millis()), (StalledClose::Always, 500));
        assert_eq!(lines.len(), 2);
        let (config, lines, faults) = applied(
            "stalledConnectionClose=never\nstalledConnectionTimeoutMillis=30000\nrequestAgeMaxMillis=0\n",
        );
        let stall = config.limits.stall;
        assert_eq!((stall.close, stall.close_after.as_secs()), (StalledClose::Never, 30));
        assert_eq!(config.limits.request_age_max, Duration::ZERO);
        assert!(lines.is_empty() && faults.is_empty(), "our own keys need no translation");
        let (_, _, faults) = applied("stalledConnectionClose=perhaps\naverageEntryBytes=0\n");
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
