//! BookKeeper's keys that count requests and threads, in bytes.

use super::*;
use bindery_server::connection::StalledClose;

/// The settings of a bookie with two journals, notes about them, and faults.
fn applied(text: &str) -> (BookieConfig, Vec<String>, Vec<String>) {
    let line = [
        "--metadata",
        "zk+null://z:1/l",
        "--journal-dir",
        "/j0",
        "--journal-dir",
        "/j1",
        "--ledger-dir",
        "/l",
    ];
    let examined = examine(&args(&line), Some(text), Vec::new(), &Fake::default());
    assert!(examined.without_effect.is_empty() && examined.warnings.is_empty(), "{:?}", examined.warnings);
    let texts = |found: Vec<Finding>| found.into_iter().map(|finding| finding.text).collect();
    (examined.draft.config, texts(examined.notes), texts(examined.faults))
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
    assert_eq!((config.limits.read_queue_max, config.limits.stall), (default.read_queue_max, default.stall));
    assert_eq!(lines.len(), 4);
    let (config, _, _) = applied("maxAddsInProgressLimit=1\nserverWriteBufferHighWaterMark=1\n");
    assert_eq!(config.limits.group_bytes_max as u64, 1 << 20);
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
