//! Requests, connections and sockets.
//!
//! BookKeeper counts requests and threads, this bookie counts bytes: such keys are translated, and a note says how.

use super::{Draft, Key, Place, applied, at, nothing, ours, translated};
use bindery_server::connection::StalledClose;
use bindery_server::sockets::{KERNEL_BUFFER_BYTES_MIN, Keepalive};
use bindery_wire::FrameLimit;
use std::time::Duration;

const NETTY: &str = "buffers come from the inbound pools, which --memory-limit bounds";
const TICKS: &str = "timers of long polls have no ticks";
/// A descriptor of a read that waits, as the control pool counts it.
const READ_BYTES: usize = 320;
/// Windows for the reads of a connection: from one write to what a pool of 256 MiB bears.
const WINDOW_BYTES: (i128, i128) = (64 << 10, 16 << 20);
/// The longest time that the kernel takes for keepalive, in seconds, and its largest number of questions.
const KEEPALIVE_MAX: (i128, i128) = (32_767, 127);
/// A socket buffer, in bytes. Zero is accepted, too.
const BUFFER_BYTES: (i128, i128) = (KERNEL_BUFFER_BYTES_MIN as i128, 1 << 30);
const SMALL_BUFFER: &str = "give at least 16384 bytes, or 0 to let the kernel choose";
const _: () = assert!(KERNEL_BUFFER_BYTES_MIN == 16_384, "the advice about it");

/// For a number that a key of BookKeeper gives; it may be switched off by another one.
fn keepalive(draft: &mut Draft) -> &mut Keepalive {
    let default = Keepalive { idle: Duration::from_secs(60), interval: Duration::from_secs(10), probes: 3 };
    draft.config.limits.socket.keepalive.get_or_insert(default)
}

const KEEPALIVE_IDLE: Place<Duration> = Place::new(
    |draft, time| keepalive(draft).idle = if time.is_zero() { keepalive(draft).idle } else { time },
    |draft| draft.config.limits.socket.keepalive.as_ref().map(|keepalive| keepalive.idle),
);
const KEEPALIVE_INTERVAL: Place<Duration> = Place::new(
    |draft, time| keepalive(draft).interval = if time.is_zero() { keepalive(draft).interval } else { time },
    |draft| draft.config.limits.socket.keepalive.as_ref().map(|keepalive| keepalive.interval),
);
const KEEPALIVE_PROBES: Place<i128> = Place::new(
    |draft, probes| {
        keepalive(draft).probes = if probes == 0 { keepalive(draft).probes } else { probes as u32 }
    },
    |draft| draft.config.limits.socket.keepalive.as_ref().map(|keepalive| keepalive.probes.into()),
);

/// Whether a number that BookKeeper takes zero and less of for no limit is one.
fn is_limit(text: &str) -> bool {
    text.parse::<i128>().is_ok_and(|number| number > 0)
}

const CLOSES: [StalledClose; 3] = [StalledClose::Never, StalledClose::UnderPressure, StalledClose::Always];

#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    applied("nettyMaxFrameSizeBytes", "5242880", "The largest frame, in either direction")
        .bytes(Place::new(
            |draft, bytes| draft.config.limits.frame = FrameLimit::new(bytes as u32).unwrap_or_default(),
            |draft| Some(draft.config.limits.frame.size_bytes() as i128),
        ))
        .within(FrameLimit::MIN.size_bytes() as i128, FrameLimit::MAX.size_bytes() as i128)
        .advice("it is out of range: BookKeeper's default is 5242880"),
    applied("maxBatchReadSize", "5242880", "The largest answer to a batch read")
        .bytes(at!(config.limits.batch_read_size_bytes_max as u32)).within(0, u32::MAX as i128),
    ours("averageEntryBytes", "Bytes that an entry is taken to have where BookKeeper's keys count entries")
        .bytes(at!(limits.average_entry_bytes as u64 => |draft| Some(draft.limits.average_entry_bytes().into()))).within(1, u64::MAX as i128)
        .advice("give the size of a usual entry in bytes"),
    translated("maxReadsInProgressLimit", "10000", "Reads under way in all",
        "times averageEntryBytes it bounds the outbound pool, which gets no more bytes than that")
        .number(Place::new(
            |draft, reads| {
                let bytes = (reads.max(0) as u64).saturating_mul(draft.limits.average_entry_bytes());
                draft.config.limits.outbound_bytes_max = (bytes > 0).then_some(bytes);
            },
            |_| None,
        ))
        .signed().shown(|draft| draft.config.limits.outbound_bytes_max.map_or_else(String::new, |bytes| format!("{bytes} bytes")))
        .note(|draft, reads| {
            let average = draft.limits.average_entry_bytes();
            Some(match draft.config.limits.outbound_bytes_max {
                Some(bytes) => format!(
                    "{reads} reads x {average} bytes (averageEntryBytes) = {bytes} bytes of loaded entries in all; the outbound pool gets no \
                     more than that, but two of the largest frames at least"
                ),
                None => "no limit of its own; the outbound pool bounds loaded entries".to_owned(),
            })
        }),
    translated("maxPendingReadRequestsPerThread", "10000", "Reads that wait",
        "reads wait for each connection, not for a thread: 100 to 1000000 of them; Java's default is for each thread")
        .number(Place::new(
            |draft, reads| {
                if reads > 0 {
                    draft.config.limits.read_queue_max = reads.clamp(100, 1_000_000) as usize;
                }
            },
            |draft| Some(draft.config.limits.read_queue_max as i128),
        ))
        .signed()
        .note(|draft, reads| {
            let held = draft.config.limits.read_queue_max;
            Some(match is_limit(reads) {
                true => format!(
                    "reads wait for each connection, not for a thread; each connection may have {held}, {held} x {READ_BYTES} bytes of \
                     descriptors = {} bytes",
                    held * READ_BYTES
                ),
                false => format!("there is always a limit; each connection may have {held} reads waiting"),
            })
        }),
    translated("maxAddsInProgressLimit", "0", "Adds that are not acknowledged",
        "times averageEntryBytes it bounds the groups that the journal writes")
        .number(at!(limits.adds_in_progress => |_| None)).signed()
        .shown(|draft| format!("{} bytes in a group", draft.config.limits.group_bytes_max)),
    translated("serverWriteBufferHighWaterMark", "524288", "Bytes of answers that a connection may hold",
        "64 KiB to 16 MiB of entries that the peer has not taken")
        .bytes(at!(config.limits.read_window_bytes as usize)).taken_as(WINDOW_BYTES.0, WINDOW_BYTES.1)
        .note(|draft, _| {
            let window = draft.config.limits.read_window_bytes;
            Some(format!("a connection may hold {window} bytes of entries that its peer has not taken"))
        }),
    ours("stalledConnectionTimeoutMillis", "How long a peer that is closed must have taken nothing; at least 100")
        .millis(at!(config.limits.stall.close_after)).at_least(100),
    translated("waitTimeoutOnResponseBackpressureMs", "-1", "Patience with a peer that takes nothing",
        "nobody waits for a peer: after 10 to 60000 ms its answers give their memory back while others need it, and are loaded again when \
         it reads")
        .number(Place::new(
            |draft, ms| {
                if let Ok(ms) = u64::try_from(ms) {
                    draft.config.limits.stall.drop_after = Duration::from_millis(ms.clamp(10, 60_000));
                }
            },
            |draft| Some(draft.config.limits.stall.drop_after.as_millis() as i128),
        ))
        .signed().unit("ms")
        .note(|draft, ms| {
            let after = draft.config.limits.stall.drop_after.as_millis();
            Some(match ms.starts_with('-') {
                false => format!(
                    "nobody waits for a peer; responses of one that takes nothing for {after} ms give their memory back while others need \
                     it, and are loaded again when it reads"
                ),
                true => format!("as without it: after {after} ms, and only while others need the memory"),
            })
        }),
    translated("closeChannelOnResponseTimeout", "false", "Close the connection of such a peer", "true is stalledConnectionClose=always")
        .switch(Place::new(
            |draft, closes| {
                if closes {
                    draft.config.limits.stall.close = StalledClose::Always;
                }
            },
            |draft| Some(draft.config.limits.stall.close == StalledClose::Always),
        ))
        .note(|draft, _| {
            let after = draft.config.limits.stall.close_after.as_millis();
            Some(match draft.config.limits.stall.close {
                StalledClose::Always => format!("a connection whose peer takes nothing for {after} ms is closed"),
                _ => format!(
                    "a connection whose peer takes nothing for {after} ms is closed only while others need what it holds \
                     (stalledConnectionClose=never: not even then)"
                ),
            })
        }),
    ours("stalledConnectionClose", "When a peer that takes nothing is closed: never, pressure (others need what it holds) or always")
        .word(
            &["never", "pressure", "always"],
            Place::new(
                |draft, at| draft.config.limits.stall.close = CLOSES[at],
                |draft| CLOSES.iter().position(|close| *close == draft.config.limits.stall.close),
            ),
        ),
    ours("requestAgeMaxMillis", "Plain reads and adds are refused at this age; 0 for never").millis(at!(config.limits.request_age_max)),
    ours("addBatchEntriesMax", "Adds that go to the engine at once").number(at!(config.limits.add_batch_entries_max as usize)).at_least(1),
    ours("addBatchBytesMax", "Bytes of their entries").bytes(at!(config.limits.add_batch_bytes_max as usize)).at_least(1),
    translated("numReadWorkerThreads", "8", "Threads that read",
        "threads that read disks, spread over the ledger directories: 1 to 64, and one more for fencing in each directory")
        .number(at!(config.read_threads as usize)).taken_as(1, 64),
    ours("maxConnections", "Connections in all; as many as fit the memory limit, at most 10000, when it is not set")
        .number(Place::new(
            |draft, count| {
                draft.config.limits.connections_max = count as usize;
                draft.config.are_connections_set = true;
            },
            |draft| Some(draft.config.limits.connections_max as i128),
        ))
        .within(1, 1_000_000),
    ours("maxConnectionsPerAddress", "Connections of one address; half of all when it is not set, 0 for no limit")
        .number(Place::new(
            |draft, count| {
                let count = if count == 0 { usize::MAX } else { count as usize };
                draft.config.limits.connections_per_address_max = Some(count);
            },
            |draft| match draft.config.limits.connections_per_address_max {
                Some(usize::MAX) => Some(0),
                count => count.map(|count| count as i128),
            },
        ))
        .within(0, 1_000_000),
    ours("firstRequestTimeoutSec", "Time for a peer's first request, from its first byte to its last")
        .seconds(at!(config.limits.first_request_max)).within(1, 3600),
    ours("silentConnectionTimeoutSec", "Time a peer may be silent after it connected; 0 for any")
        .seconds(at!(config.limits.silent_max, or never)).within(0, 1_000_000),
    ours("shutdownDrainTimeoutSec", "Time for a stop to finish what was received").seconds(at!(config.limits.drain_max)).within(0, 3600),
    applied("serverTcpNoDelay", "true", "Send small packets at once").switch(at!(config.limits.socket.no_delay)),
    applied("serverSockKeepalive", "true", "Ask silent peers whether they are there")
        .switch(at!(limits.has_keepalive => |draft| Some(draft.config.limits.socket.keepalive.is_some()))),
    // BookKeeper's keys since 4.18 leave it to the kernel at -1; ours, below, win.
    applied("serverTcpKeepIdle", "-1", "Silence before the first such question, since 4.18; tcpKeepaliveIdleSec wins")
        .seconds(KEEPALIVE_IDLE).within(i64::MIN as i128, KEEPALIVE_MAX.0).taken_as(0, KEEPALIVE_MAX.0)
        .advice("give a whole number up to 32767, or -1"),
    applied("serverTcpKeepIntvl", "-1", "Time between two, since 4.18; tcpKeepaliveIntervalSec wins")
        .seconds(KEEPALIVE_INTERVAL).within(i64::MIN as i128, KEEPALIVE_MAX.0).taken_as(0, KEEPALIVE_MAX.0)
        .advice("give a whole number up to 32767, or -1"),
    applied("serverTcpKeepCnt", "-1", "Questions without an answer, since 4.18; tcpKeepaliveProbes wins")
        .number(KEEPALIVE_PROBES).within(i64::MIN as i128, KEEPALIVE_MAX.1).taken_as(0, KEEPALIVE_MAX.1)
        .advice("give a whole number up to 127, or -1"),
    ours("tcpKeepaliveIdleSec", "The same as serverTcpKeepIdle")
        .seconds(KEEPALIVE_IDLE).within(1, KEEPALIVE_MAX.0).alias_of("serverTcpKeepIdle"),
    ours("tcpKeepaliveIntervalSec", "The same as serverTcpKeepIntvl")
        .seconds(KEEPALIVE_INTERVAL).within(1, KEEPALIVE_MAX.0).alias_of("serverTcpKeepIntvl"),
    ours("tcpKeepaliveProbes", "The same as serverTcpKeepCnt")
        .number(KEEPALIVE_PROBES).within(1, KEEPALIVE_MAX.1).alias_of("serverTcpKeepCnt"),
    ours("tcpUserTimeoutSec",
        "Time that sent bytes may stay without answer; as long as keepalive gives a silent peer when it is not set, 0 for any")
        .seconds(at!(limits.unanswered => |draft| Some(draft.config.limits.socket.unanswered_max.unwrap_or_default()))).within(0, 1_000_000),
    ours("serverUnsentBytesMax", "Bytes that the kernel keeps beyond what is on its way; 0 for no limit but the buffer")
        .bytes(at!(config.limits.socket.unsent_bytes_max as u32)).within(0, 1 << 30),
    ours("serverSendBufferSizeBytes", "Send buffer of a socket; 0 lets the kernel choose")
        .bytes(at!(config.limits.socket.send_buffer_bytes as usize)).within(BUFFER_BYTES.0, BUFFER_BYTES.1).or_zero().advice(SMALL_BUFFER),
    ours("serverReceiveBufferSizeBytes", "Receive buffer of a socket; 0 lets the kernel choose")
        .bytes(at!(config.limits.socket.receive_buffer_bytes as usize)).within(BUFFER_BYTES.0, BUFFER_BYTES.1).or_zero().advice(SMALL_BUFFER),
    nothing("serverTcpLinger", "0", "Wait for unsent bytes when a connection is closed",
        "nobody waits in a close; a stop waits for answers as long as shutdownDrainTimeoutSec says").unit("s"),
    nothing("serverWriteBufferLowWaterMark", "393216", "Bytes below which a connection is served again",
        "loading goes on with each part of the window that the kernel takes: see serverWriteBufferHighWaterMark").unit("bytes"),
    nothing("maxPendingAddRequestsPerThread", "10000", "Adds that wait for a thread",
        "adds do not wait for threads: those without room stay in the socket's buffer, which the inbound pool bounds"),
    nothing("readWorkerThreadsThrottlingEnabled", "true", "A read waits until its answer is sent",
        "reads hold bytes of the outbound pool until the kernel has them, and no thread waits for a peer"),
    nothing("numAddWorkerThreads", "1", "Threads that add", "adds run where they are decoded"),
    nothing("numHighPriorityWorkerThreads", "8", "Threads for fencing and recovery",
        "fencing and recovery have bytes and disk slots of their own, not threads"),
    nothing("numLongPollWorkerThreads", "0", "Threads for long polls", "a long poll that waits holds its descriptor and no thread"),
    nothing("requestTimerTickDurationMs", "10", "Tick of the timer of long polls", TICKS).unit("ms"),
    nothing("requestTimerNumTicks", "1024", "Ticks of the timer of long polls", TICKS),
    nothing("serverNumIOThreads", "2 x processors", "Threads for sockets", "there is one for each processor"),
    nothing("serverNumAcceptorThreads", "1", "Threads that accept connections", "accepting takes no thread"),
    nothing("byteBufAllocatorSizeInitial", "65536", "First size of a receive buffer", NETTY).unit("bytes"),
    nothing("byteBufAllocatorSizeMin", "65536", "Least size of a receive buffer", NETTY).unit("bytes"),
    nothing("byteBufAllocatorSizeMax", "1048576", "Largest size of a receive buffer", NETTY).unit("bytes"),
];
