//! Connections: their number, how long they may be silent, and the options of their sockets.

use crate::sources::values::Values;
use bindery_server::config::BookieConfig;
use bindery_server::sockets::{KERNEL_BUFFER_BYTES_MIN, Keepalive};
use std::time::Duration;

/// Connections: their number, how long they may be silent, and the options of their sockets.
pub(super) fn apply(file: &mut Values, config: &mut BookieConfig) {
    let limits = &mut config.limits;
    if let Some(count) = file.counted("maxConnections", 1, 1_000_000) {
        limits.connections_max = count;
        config.are_connections_set = true;
    }
    limits.connections_per_address_max = match file.counted("maxConnectionsPerAddress", 0, 1_000_000) {
        Some(0) => Some(usize::MAX),
        other => other,
    };
    if let Some(seconds) = file.counted("firstRequestTimeoutSec", 1, 3600) {
        limits.first_request_max = Duration::from_secs(seconds as u64);
    }
    if let Some(seconds) = file.counted("silentConnectionTimeoutSec", 0, 1_000_000) {
        limits.silent_max = (seconds > 0).then(|| Duration::from_secs(seconds as u64));
    }
    if let Some(seconds) = file.counted("shutdownDrainTimeoutSec", 0, 3600) {
        limits.drain_max = Duration::from_secs(seconds as u64);
    }
    let socket = &mut limits.socket;
    if let Some(wanted) = file.flag("serverTcpNoDelay") {
        socket.no_delay = wanted;
    }
    let mut keepalive = socket.keepalive.unwrap_or(Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(10),
        probes: 3,
    });
    // BookKeeper's keys since 4.18 come first, and leave it to the kernel at -1; the kernel takes no more than these.
    let mut java = |key: &str, most: i64| {
        let value = file.parsed::<i64>(key)?;
        if value > most {
            file.fault(key, format!("{key}={value}: give a whole number up to {most}, or -1"));
        }
        (1..=most).contains(&value).then_some(value as u32)
    };
    if let Some(seconds) = java("serverTcpKeepIdle", 32_767) {
        keepalive.idle = Duration::from_secs(u64::from(seconds));
    }
    if let Some(seconds) = java("serverTcpKeepIntvl", 32_767) {
        keepalive.interval = Duration::from_secs(u64::from(seconds));
    }
    if let Some(probes) = java("serverTcpKeepCnt", 127) {
        keepalive.probes = probes;
    }
    if let Some(seconds) = file.counted("tcpKeepaliveIdleSec", 1, 32_767) {
        keepalive.idle = Duration::from_secs(seconds as u64);
    }
    if let Some(seconds) = file.counted("tcpKeepaliveIntervalSec", 1, 32_767) {
        keepalive.interval = Duration::from_secs(seconds as u64);
    }
    if let Some(probes) = file.counted("tcpKeepaliveProbes", 1, 127) {
        keepalive.probes = probes as u32;
    }
    socket.keepalive = file.flag("serverSockKeepalive").unwrap_or(true).then_some(keepalive);
    // As long as an idle peer has, unless it is set.
    let patience = keepalive.idle + keepalive.interval * keepalive.probes;
    socket.unanswered_max = match file.counted("tcpUserTimeoutSec", 0, 1_000_000) {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds as u64)),
        None => Some(patience),
    };
    if let Some(bytes) = file.counted("serverUnsentBytesMax", 0, 1 << 30) {
        socket.unsent_bytes_max = bytes as u32;
    }
    for (key, bytes) in [
        ("serverSendBufferSizeBytes", &mut socket.send_buffer_bytes),
        ("serverReceiveBufferSizeBytes", &mut socket.receive_buffer_bytes),
    ] {
        match file.counted(key, 0, 1 << 30) {
            Some(given) if given > 0 && given < KERNEL_BUFFER_BYTES_MIN => file.fault(key, format!(
                "{key}={given}: give at least {KERNEL_BUFFER_BYTES_MIN} bytes, or 0 to let the kernel choose"
            )),
            Some(given) => *bytes = given,
            None => {}
        }
    }
}
