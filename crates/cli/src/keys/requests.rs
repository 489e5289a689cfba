//! Requests, connections and sockets.

use super::{Key, applied, millis, nothing, ours, seconds, translated};
use bindery_server::connection::StalledClose;
use bindery_server::sockets::Keepalive;
use std::time::Duration;

fn keepalive(view: &super::View<'_>, shown: fn(&Keepalive) -> String) -> String {
    view.config.limits.socket.keepalive.as_ref().map_or_else(String::new, shown)
}

/// Zero where there is no limit.
fn optional(time: Option<Duration>) -> String {
    seconds(time.unwrap_or_default())
}

const NETTY: &str = "buffers come from the inbound pools, which --memory-limit bounds";
const TICKS: &str = "timers of long polls have no ticks";

pub(super) const KEYS: &[Key] = &[
    applied("nettyMaxFrameSizeBytes", "5242880", "The largest frame, in either direction")
        .unit("bytes")
        .shown(|view| view.config.limits.frame.size_bytes().to_string()),
    applied("maxBatchReadSize", "5242880", "The largest answer to a batch read")
        .unit("bytes")
        .shown(|view| view.config.limits.batch_read_size_bytes_max.to_string()),
    ours("averageEntryBytes", "Bytes that an entry is taken to have where BookKeeper's keys count entries")
        .unit("bytes")
        .shown(|view| {
            let given = view.text("averageEntryBytes");
            given.unwrap_or_else(|| crate::request_limits::AVERAGE_ENTRY_BYTES.to_string())
        }),
    translated(
        "maxReadsInProgressLimit",
        "10000",
        "Reads under way in all",
        "times averageEntryBytes it bounds the outbound pool, which gets no more bytes than that",
    )
    .shown(|view| view.config.limits.outbound_bytes_max.map_or_else(String::new, |bytes| format!("{bytes} bytes"))),
    translated(
        "maxPendingReadRequestsPerThread",
        "10000",
        "Reads that wait",
        "reads wait for each connection, not for a thread: 100 to 1000000 of them; Java's default is for each thread",
    )
    .shown(|view| view.config.limits.read_queue_max.to_string()),
    translated(
        "maxAddsInProgressLimit",
        "0",
        "Adds that are not acknowledged",
        "times averageEntryBytes it bounds the groups that the journal writes",
    )
    .shown(|view| format!("{} bytes in a group", view.config.limits.group_bytes_max)),
    translated(
        "serverWriteBufferHighWaterMark",
        "524288",
        "Bytes of answers that a connection may hold",
        "64 KiB to 16 MiB of entries that the peer has not taken",
    )
    .unit("bytes")
    .shown(|view| view.config.limits.read_window_bytes.to_string()),
    translated(
        "waitTimeoutOnResponseBackpressureMs",
        "-1",
        "Patience with a peer that takes nothing",
        "nobody waits for a peer: after 10 to 60000 ms its answers give their memory back while others need it, and are loaded \
         again when it reads",
    )
    .unit("ms")
    .shown(|view| millis(view.config.limits.stall.drop_after)),
    translated(
        "closeChannelOnResponseTimeout",
        "false",
        "Close the connection of such a peer",
        "true is stalledConnectionClose=always",
    )
    .shown(|view| (view.config.limits.stall.close == StalledClose::Always).to_string()),
    ours("stalledConnectionClose", "When a peer that takes nothing is closed: never, pressure (others need what it holds) or always")
        .shown(|view| {
            let word = match view.config.limits.stall.close {
                StalledClose::Never => "never",
                StalledClose::UnderPressure => "pressure",
                StalledClose::Always => "always",
            };
            word.to_owned()
        }),
    ours("stalledConnectionTimeoutMillis", "How long it must have taken nothing; at least 100")
        .unit("ms")
        .shown(|view| millis(view.config.limits.stall.close_after)),
    ours("requestAgeMaxMillis", "Plain reads and adds are refused at this age; 0 for never")
        .unit("ms")
        .shown(|view| millis(view.config.limits.request_age_max)),
    ours("addBatchEntriesMax", "Adds that go to the engine at once")
        .shown(|view| view.config.limits.add_batch_entries_max.to_string()),
    ours("addBatchBytesMax", "Bytes of their entries")
        .unit("bytes")
        .shown(|view| view.config.limits.add_batch_bytes_max.to_string()),
    translated(
        "numReadWorkerThreads",
        "8",
        "Threads that read",
        "threads that read disks, spread over the ledger directories: 1 to 64, and one more for fencing in each directory",
    )
    .shown(|view| view.config.read_threads.to_string()),
    ours("maxConnections", "Connections in all; as many as fit the memory limit, at most 10000, when it is not set")
        .shown(|view| view.config.limits.connections_max.to_string()),
    ours("maxConnectionsPerAddress", "Connections of one address; half of all when it is not set, 0 for no limit")
        .shown(|view| match view.config.limits.connections_per_address_max {
            None => String::new(),
            Some(usize::MAX) => "0".to_owned(),
            Some(count) => count.to_string(),
        }),
    ours("firstRequestTimeoutSec", "Time for a peer's first request, from its first byte to its last")
        .unit("s")
        .shown(|view| seconds(view.config.limits.first_request_max)),
    ours("silentConnectionTimeoutSec", "Time a peer may be silent after it connected; 0 for any")
        .unit("s")
        .shown(|view| optional(view.config.limits.silent_max)),
    ours("shutdownDrainTimeoutSec", "Time for a stop to finish what was received")
        .unit("s")
        .shown(|view| seconds(view.config.limits.drain_max)),
    applied("serverTcpNoDelay", "true", "Send small packets at once")
        .shown(|view| view.config.limits.socket.no_delay.to_string()),
    applied("serverSockKeepalive", "true", "Ask silent peers whether they are there")
        .shown(|view| view.config.limits.socket.keepalive.is_some().to_string()),
    applied("serverTcpKeepIdle", "-1", "Silence before the first such question, since 4.18; tcpKeepaliveIdleSec wins")
        .unit("s")
        .shown(|view| keepalive(view, |keepalive| seconds(keepalive.idle))),
    applied("serverTcpKeepIntvl", "-1", "Time between two, since 4.18; tcpKeepaliveIntervalSec wins")
        .unit("s")
        .shown(|view| keepalive(view, |keepalive| seconds(keepalive.interval))),
    applied("serverTcpKeepCnt", "-1", "Questions without an answer, since 4.18; tcpKeepaliveProbes wins")
        .shown(|view| keepalive(view, |keepalive| keepalive.probes.to_string())),
    ours("tcpKeepaliveIdleSec", "The same as serverTcpKeepIdle")
        .unit("s")
        .shown(|view| keepalive(view, |keepalive| seconds(keepalive.idle))),
    ours("tcpKeepaliveIntervalSec", "The same as serverTcpKeepIntvl")
        .unit("s")
        .shown(|view| keepalive(view, |keepalive| seconds(keepalive.interval))),
    ours("tcpKeepaliveProbes", "The same as serverTcpKeepCnt")
        .shown(|view| keepalive(view, |keepalive| keepalive.probes.to_string())),
    ours("tcpUserTimeoutSec", "Time that sent bytes may stay without answer; as long as keepalive gives a silent peer when it is not set, 0 for any")
        .unit("s")
        .shown(|view| optional(view.config.limits.socket.unanswered_max)),
    ours("serverUnsentBytesMax", "Bytes that the kernel keeps beyond what is on its way")
        .unit("bytes")
        .shown(|view| view.config.limits.socket.unsent_bytes_max.to_string()),
    ours("serverSendBufferSizeBytes", "Send buffer of a socket; 0 lets the kernel choose")
        .unit("bytes")
        .shown(|view| view.config.limits.socket.send_buffer_bytes.to_string()),
    ours("serverReceiveBufferSizeBytes", "Receive buffer of a socket; 0 lets the kernel choose")
        .unit("bytes")
        .shown(|view| view.config.limits.socket.receive_buffer_bytes.to_string()),
    nothing(
        "serverTcpLinger",
        "0",
        "Wait for unsent bytes when a connection is closed",
        "nobody waits in a close; a stop waits for answers as long as shutdownDrainTimeoutSec says",
    )
    .unit("s"),
    nothing(
        "serverWriteBufferLowWaterMark",
        "393216",
        "Bytes below which a connection is served again",
        "loading goes on with each part of the window that the kernel takes: see serverWriteBufferHighWaterMark",
    )
    .unit("bytes"),
    nothing(
        "maxPendingAddRequestsPerThread",
        "10000",
        "Adds that wait for a thread",
        "adds do not wait for threads: those without room stay in the socket's buffer, which the inbound pool bounds",
    ),
    nothing(
        "readWorkerThreadsThrottlingEnabled",
        "true",
        "A read waits until its answer is sent",
        "reads hold bytes of the outbound pool until the kernel has them, and no thread waits for a peer",
    ),
    nothing("numAddWorkerThreads", "1", "Threads that add", "adds run where they are decoded"),
    nothing(
        "numHighPriorityWorkerThreads",
        "8",
        "Threads for fencing and recovery",
        "fencing and recovery have bytes and disk slots of their own, not threads",
    ),
    nothing(
        "numLongPollWorkerThreads",
        "0",
        "Threads for long polls",
        "a long poll that waits holds its descriptor and no thread",
    ),
    nothing("requestTimerTickDurationMs", "10", "Tick of the timer of long polls", TICKS).unit("ms"),
    nothing("requestTimerNumTicks", "1024", "Ticks of the timer of long polls", TICKS),
    nothing("serverNumIOThreads", "2 x processors", "Threads for sockets", "there is one for each processor"),
    nothing("serverNumAcceptorThreads", "1", "Threads that accept connections", "accepting takes no thread"),
    nothing("byteBufAllocatorSizeInitial", "65536", "First size of a receive buffer", NETTY).unit("bytes"),
    nothing("byteBufAllocatorSizeMin", "65536", "Least size of a receive buffer", NETTY).unit("bytes"),
    nothing("byteBufAllocatorSizeMax", "1048576", "Largest size of a receive buffer", NETTY).unit("bytes"),
];
