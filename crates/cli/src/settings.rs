//! From flags and `bk_server.conf` to a bookie's settings. Flags win; all faults are reported at once.

use crate::args::{BookieArgs, MemoryUse, Switch};
use crate::conf_file;
use crate::request_limits;
use crate::tier;
use crate::tier::role::TierSettings;
use crate::tls_settings;
use bindery_engine::JOURNAL_FILES_MIN;
use bindery_engine::PoolMemory;
use bindery_metadata::MetadataUri;
use bindery_server::config::{AdminScope, BookieConfig};
use bindery_server::memory::machine_bytes;
use bindery_server::sockets::{KERNEL_BUFFER_BYTES_MIN, Keepalive};
use bindery_wire::FrameLimit;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Keys of `bk_server.conf` that BookKeeper knows and that have no meaning here: pools and limits of this bookie are
/// its own.
const WITHOUT_EFFECT: [&str; 37] = [
    "allowEphemeralPorts",
    "auditorPeriodicBookieCheckInterval",
    "auditorPeriodicCheckInterval",
    "autoRecoveryDaemonEnabled",
    "codahaleStatsOutputFrequencySeconds",
    "compactionRate",
    "compactionRateByEntries",
    "dbStorage_directIOEntryLogger",
    "dbStorage_maxThrottleTimeMs",
    "dbStorage_readAheadCacheBatchBytesSize",
    "dbStorage_readAheadCacheBatchSize",
    "dbStorage_readAheadCacheMaxSizeMb",
    "dbStorage_writeCacheMaxSizeMb",
    "enableStatistics",
    "httpServerClass",
    "indexDirectories",
    "journalAdaptiveGroupWrites",
    "journalAlignmentSize",
    "journalBufferedEntriesThreshold",
    "journalBufferedWritesThreshold",
    "journalFlushWhenQueueEmpty",
    "journalFormatVersionToWrite",
    "journalMaxBackups",
    "journalMaxGroupWaitMSec",
    "journalMaxMemorySizeMb",
    "journalPageCacheFlushIntervalMSec",
    "journalPreAllocSizeMB",
    "journalQueueSize",
    "journalRemoveFromPageCache",
    "journalReuseFiles",
    "journalWriteBufferSizeKB",
    "ledgerStorageClass",
    "numJournalCallbackThreads",
    "persistBookieStatusEnabled",
    "serverNumIOThreads",
    "serverTcpLinger",
    "statsProviderClass",
];

/// What the command line and the file ask for.
#[derive(Debug)]
pub struct Settings {
    /// The bookie's own.
    pub config: BookieConfig,
    /// Where the cluster is.
    pub metadata: MetadataUri,
    /// The object store that ledgers are kept in, and how they are moved there; the second is whether this process moves any.
    pub tier: Option<(TierSettings, bool)>,
    /// To be logged once the log is up.
    pub warnings: Vec<String>,
    /// The same: how settings were understood.
    pub notes: Vec<String>,
}

/// Reads values of the file and remembers which keys were used and what was wrong.
pub struct Values {
    /// What nobody has asked for yet.
    pub values: BTreeMap<String, conf_file::Value>,
    /// What is wrong, for the operator.
    pub faults: Vec<String>,
}

impl Values {
    /// The value of a key, unless it is empty.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.values.remove(key).map(|value| value.text).filter(|text| !text.is_empty())
    }

    /// The same, parsed; noted as a fault when it cannot be.
    pub fn parsed<T: FromStr>(&mut self, key: &str) -> Option<T> {
        let value = self.take(key)?;
        match value.parse() {
            Ok(parsed) => Some(parsed),
            Err(_) => {
                self.faults.push(format!("{key}={value} in the configuration file cannot be read"));
                None
            }
        }
    }

    /// True or false.
    pub fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.take(key)?;
        let flag = value.parse().ok();
        if flag.is_none() {
            self.faults.push(format!("{key}={value}: give true or false"));
        }
        flag
    }

    /// A whole number from `least` to `most`.
    pub fn counted(&mut self, key: &str, least: usize, most: usize) -> Option<usize> {
        let value = self.take(key)?;
        let number = value.parse::<usize>().ok().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            self.faults.push(format!("{key}={value}: give a whole number from {least} to {most}"));
        }
        number
    }
}

/// Settings that promise protection which this release does not have, and whether a value asks for it.
type Protection = (&'static str, fn(&str) -> bool);
const PROTECTIONS: [Protection; 5] = [
    ("bookieAuthProviderFactoryClass", |class| !class.ends_with("AuthenticationDisabledAuthProviderFactory")),
    ("authorizedRoles", |_| true),
    ("permittedStartupUsers", |_| true),
    ("zkEnableSecurity", |value| value != "false"),
    ("httpServerTlsEnable", |value| value != "false"),
];

/// Without the refusal, the bookie would serve strangers while its operator believes it protected.
fn refuse_what_is_not_kept(file: &mut Values) {
    for (key, asks) in PROTECTIONS {
        let line = file.values.get(key).map_or(0, |value| value.line);
        if let Some(value) = file.take(key).filter(|value| asks(value)) {
            file.faults.push(format!(
                "line {line} of the configuration file, {key}={value}: this release has no authentication, authorisation or access \
                 lists, and no TLS but for clients of its bookie port: it would serve everybody; remove the line if that is meant, behind a network that only \
                 clients reach"
            ));
        }
    }
}

/// Puts flags and the file's text together.
pub fn resolve(args: &BookieArgs, file: Option<&str>) -> Result<Settings, Vec<String>> {
    let mut file = Values { values: file.map(conf_file::parse).unwrap_or_default(), faults: Vec::new() };
    let mut warnings = Vec::new();
    let mut config = BookieConfig::default();

    refuse_what_is_not_kept(&mut file);
    directories(args, &mut file, &mut config);
    addresses(args, &mut file, &mut config);

    config.bookie_id = args.bookie_id.clone().or(file.take("bookieId"));
    config.allow_loopback = args.allow_loopback | file.flag("allowLoopback").unwrap_or(false);
    config.read_only = args.read_only | file.flag("forceReadOnlyBookie").unwrap_or(false);
    config.allow_storage_expansion = file.flag("allowStorageExpansion").unwrap_or(false);
    let is_checked = file.flag("dataIntegrityChecking").unwrap_or(false);
    let is_stamped = file.flag("dataIntegrityStampMissingCookies").unwrap_or(false);
    config.accept_lost_directories = is_checked && is_stamped;
    config.accept_journal_damage = args.accept_journal_damage;
    let file_sync = file.flag("journalSyncData").unwrap_or(true);
    config.journal_sync = args.journal_sync.map_or(file_sync, |switch| switch == Switch::On);
    if file.flag("journalWriteData") == Some(false) {
        file.faults.push(
            "journalWriteData=false is not supported: entries always go through the journal".to_owned(),
        );
    }
    if let Some(files) = args.preallocate {
        config.preallocate = files;
    }
    if let Some(mib) = file.parsed::<u64>("journalMaxSizeMB") {
        // Files are recycled and zero-filled here: Java's default of 2 GiB would only cost space.
        let taken = mib.clamp(16, 1024);
        config.journal_file_bytes = taken << 20;
        if taken != mib {
            warnings.push(format!(
                "journalMaxSizeMB={mib}: journal files are written full of zeros once and used again, so they have 16 to 1024 MB; \
                 {taken} is taken"
            ));
        }
    }
    if let Some(mib) = file.parsed::<u64>("journalDiskSizeMaxMB") {
        config.journal_bytes_max = mib.saturating_mul(1 << 20);
        let least = JOURNAL_FILES_MIN * config.journal_file_bytes;
        if config.journal_bytes_max < least {
            file.faults.push(format!(
                "journalDiskSizeMaxMB={mib}: give at least {} MB, for {JOURNAL_FILES_MIN} files of journalMaxSizeMB",
                least >> 20
            ));
        }
    }
    if let Some(ms) = file.parsed::<u64>("flushInterval") {
        config.flush_interval = Duration::from_millis(ms.max(100));
    }
    if let Some(ms) = file.parsed::<u64>("zkTimeout") {
        config.session_timeout = Duration::from_millis(ms.max(1000));
    }
    if let Some(threads) = file.parsed::<usize>("numReadWorkerThreads") {
        config.read_threads = threads.clamp(1, 64);
    }
    if let Some(bytes) = file.parsed::<u32>("nettyMaxFrameSizeBytes") {
        match FrameLimit::new(bytes) {
            Some(limit) => config.limits.frame = limit,
            None => file.faults.push(format!("nettyMaxFrameSizeBytes={bytes} is out of range")),
        }
    }
    if let Some(bytes) = file.parsed::<u32>("maxBatchReadSize") {
        config.limits.batch_read_size_bytes_max = bytes;
    }
    if let Some(entries) = file.parsed::<usize>("addBatchEntriesMax") {
        config.limits.add_batch_entries_max = entries.max(1);
    }
    if let Some(bytes) = file.parsed::<usize>("addBatchBytesMax") {
        config.limits.add_batch_bytes_max = bytes.max(1);
    }
    if let Some(text) = &args.memory_limit {
        match memory_limit(text, machine_bytes()) {
            Ok(bytes) => config.memory_limit = Some(bytes),
            Err(fault) => file.faults.push(fault),
        }
    }
    if args.memory == Some(MemoryUse::Lazy) {
        config.pool_memory = PoolMemory::Lazy;
    }
    if let Some(ms) = file.parsed::<u64>("slowRequestThresholdMSec") {
        config.limits.slow_request = Duration::from_millis(ms);
    }
    space(&mut file, &mut config, &mut warnings);
    disks(&mut file, &mut config);
    connections(&mut file, &mut config);
    config.tls = tls_settings::apply(&mut file, &mut warnings);
    let notes = request_limits::apply(&mut file, &mut config);
    let metadata = metadata(args, &mut file);
    let tier = tier::settings::of_bookie(args, &mut file, &mut config);
    if let (Some((_, true)), Some(tls)) = (&tier, &config.tls)
        && tls.is_required
    {
        file.faults.push(
            "TLS is required of clients (tlsRequired=true, or tlsClientAuthentication=true), and the tierer of this process does \
             not speak it yet, so no bookie would serve it: give --tier-role off or tierRole=false, which keeps reading from the \
             store; or tlsRequired=false, which serves everybody without TLS, too"
                .to_owned(),
        );
    }

    let without_effect: Vec<&str> =
        WITHOUT_EFFECT.iter().copied().filter(|key| file.values.remove(*key).is_some()).collect();
    if !without_effect.is_empty() {
        warnings
            .push(format!("these settings of BookKeeper have no effect here: {}", without_effect.join(", ")));
    }
    warnings.extend(file.values.keys().map(|key| format!("unknown key {key} in the configuration file")));
    match (metadata, file.faults.is_empty()) {
        (Some(metadata), true) => Ok(Settings { config, metadata, tier, warnings, notes }),
        _ => Err(file.faults),
    }
}

/// Garbage collection and compaction.
fn space(file: &mut Values, config: &mut BookieConfig, warnings: &mut Vec<String>) {
    if let Some(ms) = file.parsed::<u64>("gcWaitTime") {
        config.garbage.interval = Duration::from_millis(ms.max(1000));
        config.space.collection_interval = config.garbage.interval;
    }
    if let Some(ops) = file.parsed::<u32>("gcMetadataOpRateLimit") {
        config.garbage.ops_per_second = ops.max(1);
    }
    if let Some(ms) = file.parsed::<i64>("gcOverreplicatedLedgerWaitTime") {
        config.surplus.interval = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    }
    if let Some(reads) = file.parsed::<usize>("gcOverreplicatedLedgerMaxConcurrentRequests") {
        config.surplus.reads_max = reads.clamp(1, 10_000);
    }
    // As in BookKeeper, zero or less of either switches a compaction off.
    for (which, is_minor) in [("minor", true), ("major", false)] {
        let space = &mut config.space;
        let (threshold, interval) = if is_minor {
            (&mut space.minor_threshold, &mut space.minor_interval)
        } else {
            (&mut space.major_threshold, &mut space.major_interval)
        };
        if let Some(seconds) = file.parsed::<i64>(&format!("{which}CompactionInterval")) {
            *interval = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        }
        let key = format!("{which}CompactionThreshold");
        match file.parsed::<f64>(&key) {
            Some(share) if share <= 0.0 => *interval = Duration::ZERO,
            Some(share) if share < 1.0 => *threshold = share,
            Some(share) => file.faults.push(format!("{key}={share}: give a share below 1")),
            None => {}
        }
    }
    let rate = file.parsed::<u64>("compactionRateByBytes");
    let is_by_bytes = file.flag("isThrottleByBytes");
    if rate.is_some() && is_by_bytes == Some(false) {
        // Pulsar's file has both. BookKeeper then counts entries, which says nothing about bytes.
        warnings.push(format!(
            "isThrottleByBytes=false: compactionRateByBytes does not count, as in BookKeeper; compaction takes {} MiB in a second",
            config.space.bytes_per_second >> 20
        ));
    } else if let Some(bytes) = rate {
        config.space.bytes_per_second = bytes.max(1);
        config.space.step_bytes = config.space.step_bytes.min(bytes.max(1));
    }
    if let Some(bytes) = file.parsed::<u64>("logSizeLimit") {
        config.space.log_bytes_max = bytes.clamp(1 << 20, 4 << 30);
    }
    let space = &mut config.space;
    if let Some(logs) = file.parsed::<usize>("mergeFanIn") {
        space.merge_fan_in = logs.min(64);
    }
    if let Some(bytes) = file.parsed::<u64>("mergeLedgerBytes") {
        space.merge_ledger_bytes = bytes;
    }
    if let Some(bytes) = file.parsed::<u64>("mergeLogSizeLimit") {
        space.merge_log_bytes_max = bytes.clamp(1 << 20, 4 << 30);
    }
    if let Some(ms) = file.parsed::<u64>("replacedLogGraceTime") {
        space.replaced_grace = Duration::from_millis(ms);
    }
    if let Some(seconds) = file.parsed::<u64>("scrubPeriod") {
        space.scrub_period = Duration::from_secs(seconds);
    }
    if let Some(bytes) = file.parsed::<u64>("scrubRateByBytes") {
        space.scrub_bytes_per_second = bytes;
    }
}

/// Full and slow disks.
fn disks(file: &mut Values, config: &mut BookieConfig) {
    let disks = &mut config.disks;
    let mut share = |key: &str, into: &mut f64| match file.parsed::<f64>(key) {
        Some(share) if share > 0.0 && share <= 1.0 => {
            *into = share;
            true
        }
        Some(share) => {
            file.faults.push(format!("{key}={share}: give a share above 0, at most 1"));
            false
        }
        None => false,
    };
    share("diskUsageThreshold", &mut disks.usage);
    share("diskUsageWarnThreshold", &mut disks.warn);
    if !share("diskUsageLwmThreshold", &mut disks.low_water) {
        disks.low_water = disks.usage;
    }
    // The default of one may be above what was chosen for the other.
    disks.warn = disks.warn.min(disks.usage);
    if disks.low_water > disks.usage {
        file.faults.push("diskUsageLwmThreshold is above diskUsageThreshold".to_owned());
    }
    if let Some(ms) = file.parsed::<u64>("diskCheckInterval") {
        disks.interval = Duration::from_millis(ms.max(100));
    }
    if let Some(wanted) = file.flag("readOnlyModeOnAnyDiskFullEnabled") {
        disks.is_any_enough = wanted;
    }
    if let Some(wanted) = file.flag("readOnlyModeEnabled") {
        disks.may_be_read_only = wanted;
    }
    if let Some(wanted) = file.flag("isForceGCAllowWhenNoSpace") {
        disks.forces_collection = wanted;
    }
    let log_creation = file.parsed::<u64>("minUsableSizeForEntryLogCreation");
    let high_priority = file.parsed::<u64>("minUsableSizeForHighPriorityWrites");
    disks.high_priority_bytes_min = high_priority.or(log_creation).unwrap_or(config.space.log_bytes_max);
    disks.reserve_bytes = file.parsed::<u64>("diskReserveSizeMB").map(|mib| mib.min(1 << 20) << 20);
    if let Some(ms) = file.parsed::<u64>("journalSyncP99LimitMSec") {
        config.slow_journal.p99_max = Duration::from_millis(ms);
    }
    if let Some(seconds) = file.parsed::<u64>("journalSyncP99WindowSec") {
        config.slow_journal.window = Duration::from_secs(seconds.clamp(3, 3600));
    }
}

/// Connections: how many, how long they may be silent, what the kernel is told about their sockets.
fn connections(file: &mut Values, config: &mut BookieConfig) {
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
    // The kernel takes no more than these.
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
            Some(given) if given > 0 && given < KERNEL_BUFFER_BYTES_MIN => file.faults.push(format!(
                "{key}={given}: give at least {KERNEL_BUFFER_BYTES_MIN} bytes, or 0 to let the kernel choose"
            )),
            Some(given) => *bytes = given,
            None => {}
        }
    }
}

fn metadata(args: &BookieArgs, file: &mut Values) -> Option<MetadataUri> {
    let from_file = file.take("metadataServiceUri");
    let (servers, root) = (file.take("zkServers"), file.take("zkLedgersRootPath"));
    let former = servers.map(|servers| {
        format!("zk://{}{}", servers.replace(',', ";"), root.unwrap_or_else(|| "/ledgers".to_owned()))
    });
    let Some(uri) = args.metadata.clone().or(from_file).or(former).or(args.metadata_of_shell.clone()) else {
        file.faults.push(
            "no metadata store: give --metadata zk+hierarchical://HOST:PORT/ledgers, metadataServiceUri in the configuration file \
             or BINDERY_METADATA"
                .to_owned(),
        );
        return None;
    };
    match uri.parse() {
        Ok(uri) => Some(uri),
        Err(error) => {
            file.faults.push(bindery_metadata::UriError::to_string(&error));
            None
        }
    }
}

fn directories(args: &BookieArgs, file: &mut Values, config: &mut BookieConfig) {
    let (several, one) = (file.take("journalDirectories"), file.take("journalDirectory"));
    let journals = several.map(|text| ("journalDirectories", text));
    let journals = journals.or(one.map(|text| ("journalDirectory", text)));
    let ledgers = file.take("ledgerDirectories").map(|text| ("ledgerDirectories", text));
    let faults = &mut file.faults;
    if let Some(home) = &args.data {
        let home = absolute(home, faults);
        config.journal_dirs = vec![home.join("journal")];
        config.ledger_dirs = vec![home.join("ledgers")];
        config.home = Some(home);
    } else if !args.journal_dir.is_empty() {
        config.journal_dirs = args.journal_dir.iter().map(|dir| absolute(dir, faults)).collect();
        config.ledger_dirs = args.ledger_dir.iter().map(|dir| absolute(dir, faults)).collect();
    } else if let (Some(journals), Some(ledgers)) = (journals, ledgers) {
        config.journal_dirs = listed(journals, faults);
        config.ledger_dirs = listed(ledgers, faults);
    } else {
        faults.push(
            "no directories: give --data DIR, or --journal-dir DIR and --ledger-dir DIR, or journalDirectories and \
             ledgerDirectories in the configuration file"
                .to_owned(),
        );
    }
    for dir in config.journal_dirs.iter().filter(|dir| dir.to_string_lossy().contains(',')) {
        let dir = dir.display();
        faults.push(format!("journal directory {dir}: a comma separates directories, choose another name"));
    }
}

fn addresses(args: &BookieArgs, file: &mut Values, config: &mut BookieConfig) {
    let port = file.parsed::<u16>("bookiePort");
    let interface = file.take("listeningInterface");
    let advertised = file.take("advertisedAddress");
    let by_host_name = file.flag("useHostNameAsBookieID").unwrap_or(false);
    let admin_enabled = file.flag("httpServerEnabled").unwrap_or(false);
    let admin_host = file.take("httpServerHost");
    let admin_port = file.parsed::<u16>("httpServerPort").unwrap_or(8080);
    let metrics_port = file.parsed::<u16>("prometheusStatsHttpPort");
    let metrics_host = file.take("prometheusStatsHttpAddress");

    let port = port.unwrap_or(3181);
    match &interface {
        None => config.listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        Some(name) => match name.parse::<IpAddr>() {
            Ok(ip) => config.listen = SocketAddr::from((ip, port)),
            Err(_) if args.listen.is_some() => {}
            Err(_) => file.faults.push(format!(
                "listeningInterface={name}: names of interfaces are not supported, give its address with --listen IP:PORT"
            )),
        },
    }
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    // Java's port for metrics listens on all addresses and serves only metrics. A host that is named applies to the whole admin port.
    let is_for_metrics = args.admin.is_none() && !admin_enabled && admin_host.is_none();
    if is_for_metrics {
        config.admin_scope = AdminScope::Metrics;
    }
    config.admin = args.admin.or_else(|| {
        let port = if admin_enabled { Some(admin_port) } else { metrics_port }?;
        let (key, host) = match is_for_metrics {
            true => {
                ("prometheusStatsHttpAddress", Some(metrics_host.unwrap_or_else(|| "0.0.0.0".to_owned())))
            }
            false => ("httpServerHost", admin_host),
        };
        let ip = match host {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(host) => match host.parse() {
                Ok(ip) => ip,
                Err(_) => {
                    file.faults.push(format!("{key}={host}: give an IP address"));
                    return None;
                }
            },
        };
        Some(SocketAddr::from((ip, port)))
    });
    config.advertise = match &args.advertise {
        Some(text) => match text.rsplit_once(':').map(|(host, port)| (host.to_owned(), port.parse())) {
            Some((host, Ok(port))) if !host.is_empty() => {
                if port == 0 {
                    file.faults
                        .push(format!("--advertise {text}: give the port that clients connect to, not 0"));
                }
                if is_unspecified(&host) {
                    file.faults.push(format!("--advertise {text}: {UNSPECIFIED}"));
                }
                Some((host, port))
            }
            _ => {
                file.faults.push(format!("--advertise {text} is not HOST:PORT"));
                None
            }
        },
        None => advertised.map(|host| {
            if is_unspecified(&host) {
                file.faults.push(format!("advertisedAddress={host}: {UNSPECIFIED}"));
            }
            (host, config.listen.port())
        }),
    };
    if by_host_name && config.advertise.is_none() {
        file.faults
            .push("useHostNameAsBookieID=true: give the host name with --advertise HOST:PORT".to_owned());
    }
}

/// What is wrong with it as the address that clients are told.
const UNSPECIFIED: &str =
    "nobody can connect to this address, give the one that clients reach this machine at";

/// `0.0.0.0`, `::` or `[::]`.
fn is_unspecified(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

/// The directories that a key of the file lists. An empty name would be the directory that the bookie happens to be
/// started in.
fn listed((key, text): (&str, String), faults: &mut Vec<String>) -> Vec<PathBuf> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    if names.contains(&"") {
        faults.push(format!(
            "{key} has an empty name in {text:?}: remove the comma that nothing stands beside"
        ));
        return Vec::new();
    }
    names.into_iter().map(|name| absolute(Path::new(name), faults)).collect()
}

/// A path that does not depend on the directory this process is started in.
pub fn absolute(dir: &Path, faults: &mut Vec<String>) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|error| {
        faults.push(format!("the path {:?} cannot be used: {error}", dir.display().to_string()));
        dir.to_owned()
    })
}

/// The bytes of `--memory-limit` on a machine with this much memory, or what is wrong with it.
pub fn memory_limit(text: &str, machine_bytes: u64) -> Result<u64, String> {
    let Some(bytes) = parse_size(text) else {
        return Err(format!(
            "--memory-limit {text}: write a number with KiB, MiB or GiB, for example 512MiB"
        ));
    };
    // Pools beyond it would be promises that end in the kernel's killing, or in an allocation that aborts.
    if bytes > machine_bytes {
        return Err(format!(
            "--memory-limit {text} is more than the {} MiB of memory that this machine or its control group has",
            machine_bytes >> 20
        ));
    }
    Ok(bytes)
}

/// `512MiB`, `1G`, `1000000`: powers of two whatever the letter case, as memory is counted.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(line: &[&str]) -> BookieArgs {
        let cli = Cli::try_parse_from(["bindery", "bookie"].iter().chain(line)).unwrap();
        let Command::Bookie(args) = cli.command else { panic!("a bookie command") };
        args.run
    }

    #[test]
    fn the_documented_command_line_is_understood() {
        let line = [
            "--metadata",
            "zk+hierarchical://127.0.0.1:21810/ledgers",
            "--data",
            "/d",
            "--listen",
            "127.0.0.1:3181",
            "--admin",
            "127.0.0.1:8080",
            "--memory-limit",
            "512MiB",
            "--journal-sync",
            "off",
            "--preallocate",
            "--bookie-id",
            "b0",
            "--advertise",
            "h:1",
            "--allow-loopback",
            "--read-only",
            "--log-format",
            "json",
        ];
        let settings = resolve(&args(&line), None).unwrap();
        let config = settings.config;
        assert_eq!(config.journal_dirs, [PathBuf::from("/d/journal")]);
        assert_eq!(config.ledger_dirs, [PathBuf::from("/d/ledgers")]);
        assert_eq!(config.memory_limit, Some(512 << 20));
        assert_eq!(config.advertise, Some(("h".to_owned(), 1)));
        assert_eq!((config.preallocate, config.journal_sync, config.read_only), (4, false, true));
        assert_eq!(settings.metadata.root, "/ledgers");
        assert!(settings.warnings.is_empty());
    }

    #[test]
    fn flags_win_over_the_file_and_unknown_keys_are_named() {
        let file = "bookiePort=4000\nadvertisedAddress=other\nmetadataServiceUri=zk+null://z:1/l\nmadeUp=1\n\
                    journalSyncData=false\njournalQueueSize=10\nledgerDirectories=/l1,/l2\njournalDirectories=/j\n\
                    nettyMaxFrameSizeBytes=10485760\nhttpServerEnabled=true\n";
        let settings = resolve(&args(&["--listen", "10.0.0.1:5000"]), Some(file)).unwrap();
        let config = settings.config;
        assert_eq!(config.listen, "10.0.0.1:5000".parse().unwrap());
        assert_eq!(config.advertise, Some(("other".to_owned(), 5000)));
        assert_eq!(config.ledger_dirs.len(), 2);
        assert_eq!(config.limits.frame.size_bytes(), 10 << 20);
        assert_eq!(config.admin, Some("127.0.0.1:8080".parse().unwrap()));
        assert!(!config.journal_sync);
        assert_eq!(settings.metadata.root, "/l");
        assert_eq!(settings.warnings.len(), 2);
        assert!(settings.warnings[0].contains("journalQueueSize"), "{:?}", settings.warnings);
        assert!(settings.warnings[1].contains("madeUp"), "{:?}", settings.warnings);
        let on = resolve(&args(&["--journal-sync", "on"]), Some(file)).unwrap();
        assert!(on.config.journal_sync);
    }

    #[test]
    fn the_tier_is_named_by_a_flag_the_file_or_the_shell_in_this_order() {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: &str| {
            // It may be there from before.
            let _ = std::fs::create_dir(dir.path().join(name));
            format!("file://{}/{name}", dir.path().display())
        };
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let (flag, shell) = (url("flag"), url("shell"));
        let text = format!("tierUrl={}\ntierRole=false\ntierRateMB=5\ntierCompression=zstd\n", url("file"));
        let shown = |args: &BookieArgs, file| {
            let (tier, has_role) = resolve(args, file).unwrap().tier.unwrap();
            (tier.store.url().to_string(), has_role, tier.config.bytes_per_second)
        };
        let mut args = args(&line);
        assert!(resolve(&args, None).unwrap().tier.is_none());
        args.tier_of_shell = Some(shell.clone());
        assert_eq!(shown(&args, None), (shell, true, None));
        assert_eq!(shown(&args, Some(&text)), (url("file"), false, Some(5 << 20)));
        args.tier = Some(flag.clone());
        args.tier_role = Some(Switch::On);
        assert_eq!(shown(&args, Some(&text)), (flag, true, Some(5 << 20)));
        let text = "tierTrimGraceSec=60\ntierTrimProperties=application=pulsar, tier = yes\ntierTrimSamples=0\ntierTrim=false\n";
        let reading = resolve(&args, Some(text)).unwrap().config.tier.unwrap();
        assert_eq!(reading.url.to_string(), url("flag"));
        let trim = reading.trim;
        assert_eq!((trim.grace, trim.grace_when_short), (Duration::from_secs(60), Duration::from_secs(60)));
        assert_eq!((trim.is_on, trim.samples, trim.properties.len()), (false, None, 2));
        assert_eq!(trim.properties[1], ("tier".to_owned(), "yes".to_owned()));
        // All faults at once, each with its name.
        args.tier = Some("s3://a:1/b".to_owned());
        let faults = resolve(&args, Some("tierCompression=lz4\ntierUpdatesInFlight=0\n")).unwrap_err();
        for word in ["tierCompression=lz4", "tierUpdatesInFlight=0", "--tier: ", "AWS_ENDPOINT_URL"] {
            assert!(faults.iter().any(|fault| fault.contains(word)), "{word}: {faults:?}");
        }
    }

    #[test]
    fn garbage_collection_and_compaction_take_bookkeepers_keys() {
        let file = "gcWaitTime=60000\ngcMetadataOpRateLimit=50\nminorCompactionThreshold=0.3\n\
                    minorCompactionInterval=100\nmajorCompactionThreshold=-1\nmajorCompactionInterval=7\n\
                    compactionRateByBytes=1000000\nlogSizeLimit=2147483648\n\
                    gcOverreplicatedLedgerWaitTime=5000\ngcOverreplicatedLedgerMaxConcurrentRequests=9\n";
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let settings = resolve(&args(&line), Some(file)).unwrap();
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        let (garbage, space) = (settings.config.garbage, settings.config.space);
        let surplus = settings.config.surplus;
        assert_eq!((surplus.interval.as_secs(), surplus.reads_max), (5, 9));
        assert_eq!((garbage.interval.as_secs(), garbage.ops_per_second), (60, 50));
        assert_eq!((space.collection_interval.as_secs(), space.minor_interval.as_secs()), (60, 100));
        assert_eq!((space.minor_threshold, space.major_interval), (0.3, Duration::ZERO));
        assert_eq!((space.bytes_per_second, space.log_bytes_max), (1_000_000, 2 << 30));
        let faults = resolve(&args(&line), Some("minorCompactionThreshold=1.5")).unwrap_err();
        assert!(faults[0].contains("minorCompactionThreshold"), "{faults:?}");
    }

    #[test]
    fn batches_of_adds_have_caps_of_at_least_one() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let caps = |file: &str| {
            let limits = resolve(&args(&line), Some(file)).unwrap().config.limits;
            (limits.add_batch_entries_max, limits.add_batch_bytes_max)
        };
        assert_eq!(caps(""), (1000, 1 << 20));
        assert_eq!(caps("addBatchEntriesMax=1\naddBatchBytesMax=4096\n"), (1, 4096));
        assert_eq!(caps("addBatchEntriesMax=0\naddBatchBytesMax=0\n"), (1, 1));
    }

    #[test]
    fn losses_are_accepted_only_when_both_keys_say_so() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let accepts = |file: &str| resolve(&args(&line), Some(file)).unwrap().config.accept_lost_directories;
        let (checks, stamps) = ("dataIntegrityChecking=true\n", "dataIntegrityStampMissingCookies=true\n");
        assert_eq!([accepts(""), accepts(checks), accepts(stamps)], [false; 3]);
        assert!(accepts(&format!("{checks}{stamps}")));
        let flags = [&line[..], &["--accept-journal-damage"]].concat();
        assert!(resolve(&args(&flags), None).unwrap().config.accept_journal_damage);
    }

    #[test]
    fn thresholds_of_disks_take_bookkeepers_keys() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let file = "diskUsageThreshold=0.8\ndiskCheckInterval=2000\nreadOnlyModeOnAnyDiskFullEnabled=false\n\
                    readOnlyModeEnabled=false\nisForceGCAllowWhenNoSpace=true\nlogSizeLimit=2147483648\n\
                    diskReserveSizeMB=100\njournalSyncP99LimitMSec=0\njournalSyncP99WindowSec=60\n";
        let settings = resolve(&args(&line), Some(file)).unwrap();
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        let disks = settings.config.disks;
        assert_eq!((disks.usage, disks.warn, disks.low_water), (0.8, 0.8, 0.8));
        assert_eq!((disks.interval.as_secs(), disks.reserve_bytes), (2, Some(100 << 20)));
        assert!(!disks.is_any_enough && !disks.may_be_read_only && disks.forces_collection);
        assert_eq!(disks.high_priority_bytes_min, 2 << 30, "as large as an entry log");
        let slow = settings.config.slow_journal;
        assert_eq!((slow.p99_max, slow.window.as_secs()), (Duration::ZERO, 60));
        for bad in ["diskUsageThreshold=1.5", "diskUsageThreshold=0.5\ndiskUsageLwmThreshold=0.6"] {
            let faults = resolve(&args(&line), Some(bad)).unwrap_err();
            assert!(faults[0].contains("diskUsage"), "{faults:?}");
        }
    }

    #[test]
    fn several_journals_come_from_repeated_flags_or_a_list() {
        let metadata = ["--metadata", "zk+null://z:1/l"];
        let expected = [PathBuf::from("/j0"), PathBuf::from("/j1")];
        let file = "journalDirectories=/j0, /j1\nledgerDirectories=/l\n";
        assert_eq!(resolve(&args(&metadata), Some(file)).unwrap().config.journal_dirs, expected);
        let flags = ["--journal-dir", "/j0", "--journal-dir", "/j1", "--ledger-dir", "/l"];
        let line: Vec<&str> = metadata.iter().chain(&flags).copied().collect();
        assert_eq!(resolve(&args(&line), None).unwrap().config.journal_dirs, expected);
        let file = "journalMaxSizeMB=64\njournalDiskSizeMaxMB=256\n";
        let line: Vec<&str> = metadata.iter().chain(&["--data", "/d"]).copied().collect();
        assert_eq!(resolve(&args(&line), Some(file)).unwrap().config.journal_bytes_max, 256 << 20);
        let faults = resolve(&args(&line), Some("journalDiskSizeMaxMB=256")).unwrap_err();
        assert!(faults[0].contains("at least 1024 MB"), "{faults:?}");
        let line = ["--metadata", "zk+null://z:1/l", "--journal-dir", "/a,b", "--ledger-dir", "/l"];
        let faults = resolve(&args(&line), None).unwrap_err();
        assert!(faults[0].contains("comma"), "{faults:?}");
    }

    #[test]
    fn connections_and_sockets_take_bookkeepers_keys_and_some_of_their_own() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let file = "maxConnections=500\nmaxConnectionsPerAddress=20\nfirstRequestTimeoutSec=3\n\
                    silentConnectionTimeoutSec=0\nshutdownDrainTimeoutSec=7\nserverTcpNoDelay=false\n\
                    tcpKeepaliveIdleSec=5\ntcpKeepaliveIntervalSec=2\ntcpKeepaliveProbes=4\n\
                    serverSendBufferSizeBytes=131072\nserverReceiveBufferSizeBytes=0\nserverUnsentBytesMax=4096\n";
        let settings = resolve(&args(&line), Some(file)).unwrap();
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        assert!(settings.config.are_connections_set);
        let limits = settings.config.limits;
        assert_eq!((limits.connections_max, limits.connections_per_address_max), (500, Some(20)));
        assert_eq!((limits.first_request_max.as_secs(), limits.silent_max), (3, None));
        assert_eq!(limits.drain_max.as_secs(), 7);
        let socket = limits.socket;
        let (idle, interval) = (Duration::from_secs(5), Duration::from_secs(2));
        assert_eq!(socket.keepalive, Some(Keepalive { idle, interval, probes: 4 }));
        assert_eq!(socket.unanswered_max, Some(Duration::from_secs(13)), "as long as an idle peer has");
        assert_eq!(
            (socket.no_delay, socket.send_buffer_bytes, socket.unsent_bytes_max, socket.receive_buffer_bytes),
            (false, 131_072, 4096, 0)
        );

        let off =
            "serverSockKeepalive=false\ntcpUserTimeoutSec=0\nmaxConnectionsPerAddress=0\nserverTcpLinger=5\n";
        let settings = resolve(&args(&line), Some(off)).unwrap();
        assert!(settings.warnings[0].contains("serverTcpLinger"), "{:?}", settings.warnings);
        let limits = settings.config.limits;
        assert_eq!((limits.socket.keepalive, limits.socket.unanswered_max), (None, None));
        assert_eq!(limits.connections_of([10, 0, 0, 1].into()), usize::MAX, "zero: no limit");

        for (bad, advice) in [
            ("maxConnections=0", "from 1 to"),
            ("maxConnectionsPerAddress=-1", "from 0 to"),
            ("tcpKeepaliveProbes=1000", "from 1 to 127"),
            ("firstRequestTimeoutSec=soon", "from 1 to 3600"),
            ("serverSendBufferSizeBytes=100", "at least 16384 bytes, or 0"),
        ] {
            let faults = resolve(&args(&line), Some(bad)).unwrap_err();
            assert!(faults.len() == 1 && faults[0].contains(bad) && faults[0].contains(advice), "{faults:?}");
        }
    }

    #[test]
    fn merging_grace_and_scrub_have_keys_of_their_own() {
        let file = "mergeFanIn=8\nmergeLedgerBytes=1000\nmergeLogSizeLimit=2147483648\nreplacedLogGraceTime=500\n\
                    scrubPeriod=3600\nscrubRateByBytes=4096\n";
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let settings = resolve(&args(&line), Some(file)).unwrap();
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        let space = settings.config.space;
        assert_eq!(
            (space.merge_fan_in, space.merge_ledger_bytes, space.merge_log_bytes_max),
            (8, 1000, 2 << 30)
        );
        assert_eq!((space.replaced_grace, space.scrub_period.as_secs()), (Duration::from_millis(500), 3600));
        assert_eq!(space.scrub_bytes_per_second, 4096);
    }

    #[test]
    fn empty_names_of_directories_are_faults_and_not_the_current_directory() {
        let metadata = ["--metadata", "zk+null://z:1/l"];
        for (journals, ledgers, faulty) in [
            ("/j", "/l,", &["ledgerDirectories"][..]),
            ("/j", "/l,,/m", &["ledgerDirectories"]),
            ("/j", ",", &["ledgerDirectories"]),
            ("/j, ,/k", "/l", &["journalDirectories"]),
            (",/j", ",/l", &["journalDirectories", "ledgerDirectories"]),
        ] {
            let file = format!("journalDirectories={journals}\nledgerDirectories={ledgers}\n");
            let faults = resolve(&args(&metadata), Some(&file)).unwrap_err();
            assert_eq!(faults.len(), faulty.len(), "{faults:?}");
            for (fault, key) in faults.iter().zip(faulty) {
                assert!(fault.starts_with(&format!("{key} has an empty name")), "{faults:?}");
            }
        }
        let faults =
            resolve(&args(&metadata), Some("journalDirectory=,\nledgerDirectories=/l\n")).unwrap_err();
        assert!(faults[0].starts_with("journalDirectory has an empty name"), "{faults:?}");
        let mut faults = Vec::new();
        absolute(Path::new(""), &mut faults);
        assert_eq!(faults.len(), 1, "{faults:?}");
    }

    #[test]
    fn the_admin_host_must_be_an_ip_address() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let admin = |file: &str| resolve(&args(&line), Some(file)).map(|settings| settings.config.admin);
        let given = |address: &str| Ok(Some(address.parse().unwrap()));
        assert_eq!(admin("httpServerEnabled=true\n"), given("127.0.0.1:8080"));
        assert_eq!(admin("httpServerEnabled=true\nhttpServerHost=0.0.0.0\n"), given("0.0.0.0:8080"));
        let named = "httpServerEnabled=true\nhttpServerHost=monitor.example\n";
        assert_eq!(
            admin(named).unwrap_err(),
            ["httpServerHost=monitor.example: give an IP address".to_owned()]
        );
        // Not looked at where it means nothing.
        assert_eq!(admin("httpServerHost=monitor.example\n"), Ok(None));
        let flags = [&line[..], &["--admin", "127.0.0.1:9000"]].concat();
        assert!(resolve(&args(&flags), Some(named)).is_ok());
    }

    /// A bookie that serves everybody, with settings that say otherwise, is not started.
    #[test]
    fn settings_that_promise_protection_are_refused_all_at_once_with_their_lines() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let file = "bookiePort=3181\ntlsProvider=OpenSSL\n\
                    bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory\n\
                    authorizedRoles=a,b\npermittedStartupUsers=bk\nzkEnableSecurity=true\nhttpServerTlsEnable=true\n";
        let faults = resolve(&args(&line), Some(file)).unwrap_err();
        let begin: Vec<String> =
            faults.iter().map(|fault| fault.split('=').next().unwrap().to_owned()).collect();
        let expected = [(3, "bookieAuthProviderFactoryClass"), (4, "authorizedRoles")];
        let expected = expected.into_iter().chain([
            (5, "permittedStartupUsers"),
            (6, "zkEnableSecurity"),
            (7, "httpServerTlsEnable"),
        ]);
        let expected: Vec<String> =
            expected.map(|(line, key)| format!("line {line} of the configuration file, {key}")).collect();
        assert_eq!(begin, expected);
        assert!(faults.iter().all(|fault| fault.contains("remove the line")), "{faults:?}");
        // As they stand in files that ask for no protection.
        let file = "tlsProviderFactoryClass=\ntlsProvider=OpenSSL\ntlsKeyStoreType=JKS\nzkEnableSecurity=false\n\
                    bookieAuthProviderFactoryClass=org.apache.bookkeeper.auth.AuthProviderFactoryFactory$\
                    AuthenticationDisabledAuthProviderFactory\nhttpServerTlsEnable=false\npermittedStartupUsers=\n";
        let settings = resolve(&args(&line), Some(file)).unwrap();
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
    }

    #[test]
    fn a_tierer_that_no_bookie_would_serve_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tls = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\ntlsKeyStore=/k\n\
                   tlsCertificatePath=/c\n";
        let clients = "tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore=/a\n";
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let with = |more: &str| {
            let file = format!("{tls}tierUrl=file://{}\n{more}", dir.path().display());
            resolve(&args(&line), Some(&file)).map(|settings| settings.tier.unwrap().1)
        };
        assert_eq!(with(""), Ok(true));
        for required in ["tlsRequired=true\n", clients] {
            let faults = with(required).unwrap_err();
            assert!(faults.len() == 1 && faults[0].contains("tierRole=false"), "{faults:?}");
            assert_eq!(with(&format!("{required}tierRole=false\n")), Ok(false));
        }
        assert_eq!(with(&format!("{clients}tlsRequired=false\n")), Ok(true));
    }

    #[test]
    fn settings_mean_what_they_mean_in_bookkeeper_or_say_so() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let with = |file: &str| resolve(&args(&line), Some(file)).unwrap();
        let rate = with("").config.space.bytes_per_second;
        let settings = with("isThrottleByBytes=false\ncompactionRateByBytes=1000000\n");
        assert_eq!(settings.config.space.bytes_per_second, rate);
        assert!(settings.warnings[0].starts_with("isThrottleByBytes=false"), "{:?}", settings.warnings);
        let settings = with("isThrottleByBytes=true\ncompactionRateByBytes=1000000\n");
        assert_eq!((settings.config.space.bytes_per_second, settings.warnings.len()), (1_000_000, 0));
        assert!(with("isThrottleByBytes=false\n").warnings.is_empty());
        let settings = with("journalMaxSizeMB=2048\n");
        assert_eq!(settings.config.journal_file_bytes, 1 << 30);
        assert!(settings.warnings[0].contains("1024 is taken"), "{:?}", settings.warnings);
        let port = |file: &str| {
            let config = with(file).config;
            (config.admin.map(|address| address.to_string()), config.admin_scope)
        };
        let open = Some("0.0.0.0:8000".to_owned());
        assert_eq!(port("prometheusStatsHttpPort=8000\n"), (open, AdminScope::Metrics));
        let near = Some("127.0.0.1:8000".to_owned());
        let file = "prometheusStatsHttpPort=8000\nprometheusStatsHttpAddress=127.0.0.1\n";
        assert_eq!(port(file), (near.clone(), AdminScope::Metrics));
        assert_eq!(port("prometheusStatsHttpPort=8000\nhttpServerHost=127.0.0.1\n"), (near, AdminScope::All));
        let all = Some("127.0.0.1:8080".to_owned());
        assert_eq!(port("prometheusStatsHttpPort=8000\nhttpServerEnabled=true\n"), (all, AdminScope::All));
    }

    #[test]
    fn the_cluster_of_the_shell_counts_last() {
        let of = |line: &[&str], file: Option<&str>| {
            let mut args = args(line);
            args.metadata_of_shell = Some("zk+null://shell:1/l".to_owned());
            resolve(&args, file).unwrap().metadata.servers.join(",")
        };
        assert_eq!(of(&["--data", "/d"], None), "shell:1");
        assert_eq!(of(&["--data", "/d"], Some("metadataServiceUri=zk+null://file:1/l\n")), "file:1");
        assert_eq!(of(&["--data", "/d", "--metadata", "zk+null://flag:1/l"], None), "flag:1");
    }

    #[test]
    fn an_address_that_nobody_can_connect_to_is_not_advertised() {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        for (bad, advice) in [
            ("h:0", "not 0"),
            ("0.0.0.0:3181", "nobody can connect"),
            (":::3181", "nobody can connect"),
            ("[::]:3181", "nobody can connect"),
        ] {
            let flags = [&line[..], &["--advertise", bad]].concat();
            let faults = resolve(&args(&flags), None).unwrap_err();
            assert!(faults.len() == 1 && faults[0].contains(bad) && faults[0].contains(advice), "{faults:?}");
        }
        for bad in ["advertisedAddress=0.0.0.0", "advertisedAddress=::"] {
            let faults = resolve(&args(&line), Some(bad)).unwrap_err();
            assert!(faults.len() == 1 && faults[0].starts_with(bad), "{faults:?}");
        }
        assert!(resolve(&args(&line), Some("advertisedAddress=10.0.0.1")).is_ok());
    }

    #[test]
    fn a_memory_limit_is_at_most_what_the_machine_has() {
        assert_eq!(memory_limit("1GiB", 1 << 30), Ok(1 << 30));
        let fault = memory_limit("1025MiB", 1 << 30).unwrap_err();
        assert!(fault.contains("1025MiB") && fault.contains("the 1024 MiB of memory"), "{fault}");
        assert!(memory_limit("17179869183GiB", 1 << 30).is_err());
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let faults =
            resolve(&args(&["--memory-limit", "lots", "--metadata", "foo://x/y"]), Some("bookiePort=x"))
                .unwrap_err();
        assert_eq!(faults.len(), 4, "{faults:?}");
        for part in ["bookiePort", "lots", "foo", "--data DIR"] {
            assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
        }
    }

    #[test]
    fn sizes_are_powers_of_two() {
        let cases = [("512MiB", 512 << 20), ("1g", 1 << 30), ("1000", 1000), ("2 KB", 2048)];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for bad in ["", "MiB", "1.5GiB", "-1", "1TB", "99999999999999999999"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
