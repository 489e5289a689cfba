//! Of all settings together.

mod operators;
mod requests;

use super::*;
use crate::sources::host::tests::Fake;
use crate::table::flags::Switch;
use bindery_client::TlsOptions;
use bindery_repair::CheckSettings;
use bindery_server::config::AdminScope;
use bindery_server::sockets::Keepalive;
use clap::Parser;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Of a machine that is called `machine`, without variables.
fn resolve(args: &BookieArgs, file: Option<&str>) -> Result<Settings, Vec<String>> {
    examine(args, file, Vec::new(), &Fake::default()).settings()
}

/// The command line of a bookie.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    run: BookieArgs,
}

fn args(line: &[&str]) -> BookieArgs {
    Line::try_parse_from(["bookie"].iter().chain(line)).unwrap().run
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
    assert!(settings.warnings[0].contains("madeUp"), "{:?}", settings.warnings);
    assert!(settings.warnings[1].contains("journalQueueSize"), "{:?}", settings.warnings);
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
    assert_eq!((space.merge_fan_in, space.merge_ledger_bytes, space.merge_log_bytes_max), (8, 1000, 2 << 30));
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
    let faults = resolve(&args(&metadata), Some("journalDirectory=,\nledgerDirectories=/l\n")).unwrap_err();
    assert!(faults[0].starts_with("journalDirectory has an empty name"), "{faults:?}");
    let mut file = Values::default();
    crate::sources::values::absolute(Path::new(""), &mut file);
    assert_eq!(file.faults.len(), 1, "{:?}", file.faults);
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
        ["httpServerHost=monitor.example: give an IP address (line 2 of the configuration file)".to_owned()]
    );
    // Not checked where it means nothing.
    assert_eq!(admin("httpServerHost=monitor.example\n"), Ok(None));
    let flags = [&line[..], &["--admin", "127.0.0.1:9000"]].concat();
    assert!(resolve(&args(&flags), Some(named)).is_ok());
}

/// Its own TLS is that of its tierer, too.
#[test]
fn a_bookie_that_requires_tls_has_a_tierer_that_speaks_it() {
    let dir = tempfile::tempdir().unwrap();
    let tls = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\ntlsKeyStore=/k\n\
               tlsCertificatePath=/c\n";
    let clients = "tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore=/a\n";
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let with = |more: &str| {
        let file = format!("{tls}tierUrl=file://{}\n{more}", dir.path().display());
        let settings = resolve(&args(&line), Some(&file))?;
        let (tier, has_role) = settings.tier.unwrap();
        Ok::<_, Vec<String>>((tier.security.tls, has_role))
    };
    let plain = TlsOptions::new();
    let with_certificate = TlsOptions::new().authority("/a").identity("/c", "/k");
    assert_eq!(with(""), Ok((Some(plain.clone()), true)));
    assert_eq!(with("tlsRequired=true\n"), Ok((Some(plain), true)));
    assert_eq!(with(clients), Ok((Some(with_certificate), true)));
    assert_eq!(with("tierTls=false\n"), Ok((None, true)));
    assert_eq!(with(&format!("{clients}tierRole=false\n")), Ok((None, false)));
    let faults = with(&format!("{clients}tierTls=false\n")).unwrap_err();
    assert!(faults.len() == 1 && faults[0].contains("tierTls=false"), "{faults:?}");
}

/// A bookie that serves everybody, with settings that say otherwise, is not started.
#[test]
fn settings_that_promise_protection_are_refused_all_at_once_with_their_lines() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let file = "bookiePort=3181\n# one\n# two\nbookieAuthProviderFactoryClass=my.Provider\n\
                permittedStartupUsers=bk\nzkEnableSecurity=true\nhttpServerTlsEnable=true\n";
    let faults = resolve(&args(&line), Some(file)).unwrap_err();
    let expected = [
        (4, "bookieAuthProviderFactoryClass"),
        (5, "permittedStartupUsers"),
        (6, "zkEnableSecurity"),
        (7, "httpServerTlsEnable"),
    ];
    assert_eq!(faults.len(), expected.len(), "{faults:?}");
    for (fault, (line, key)) in faults.iter().zip(expected) {
        let place = format!("(line {line} of the configuration file)");
        assert!(fault.starts_with(&format!("{key}=")) && fault.ends_with(&place), "{fault}");
    }
    // As they stand in files that ask for no protection.
    let file = "tlsProviderFactoryClass=\ntlsProvider=OpenSSL\ntlsKeyStoreType=JKS\nzkEnableSecurity=false\n\
                bookieAuthProviderFactoryClass=org.apache.bookkeeper.auth.AuthProviderFactoryFactory$\
                AuthenticationDisabledAuthProviderFactory\nhttpServerTlsEnable=false\npermittedStartupUsers=\n";
    let warnings = resolve(&args(&line), Some(file)).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].ends_with(": tlsProvider"), "{warnings:?}");
}

#[test]
fn a_tierer_that_cannot_log_in_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let with = |more: &str| {
        let file = format!("usersFile=/u\ntierUrl=file://{}\n{more}", dir.path().display());
        resolve(&args(&line), Some(&file)).map(|settings| settings.config.auth.is_some())
    };
    let faults = with("").unwrap_err();
    assert!(faults.len() == 1 && faults[0].contains("tierRole=false"), "{faults:?}");
    assert_eq!(with("tierRole=false\n"), Ok(true));
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
    assert!(settings.notes[0].contains("1024 is taken"), "{:?}", settings.notes);
    let port = |file: &str| {
        let config = with(file).config;
        (config.admin.map(|address| address.to_string()), config.admin_scope)
    };
    let open = Some("[::]:8000".to_owned());
    assert_eq!(port("prometheusStatsHttpPort=8000\n"), (open, AdminScope::Metrics));
    let near = Some("127.0.0.1:8000".to_owned());
    let file = "prometheusStatsHttpPort=8000\nprometheusStatsHttpAddress=127.0.0.1\n";
    assert_eq!(port(file), (near.clone(), AdminScope::Metrics));
    assert_eq!(port("prometheusStatsHttpPort=8000\nhttpServerHost=127.0.0.1\n"), (near, AdminScope::All));
    let all = Some("127.0.0.1:8080".to_owned());
    assert_eq!(port("prometheusStatsHttpPort=8000\nhttpServerEnabled=true\n"), (all, AdminScope::All));
}

/// A port that is switched off in so many words is not opened by another key.
#[test]
fn switches_of_the_admin_port_switch() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let config = |file: &str| resolve(&args(&line), Some(file)).unwrap().config;
    let off = config("prometheusStatsHttpEnable=false\nprometheusStatsHttpPort=8000\n");
    assert_eq!((off.admin, off.metrics_enabled), (None, false));
    let port = Some("[::]:8000".parse().unwrap());
    let on = config("prometheusStatsHttpEnable=true\nprometheusStatsHttpPort=8000\n");
    assert_eq!((on.admin, on.metrics_enabled, on.admin_scope), (port, true, AdminScope::Metrics));
    let rest = "httpServerHost=0.0.0.0\nprometheusStatsHttpPort=8000\n";
    let off = config(&format!("httpServerEnabled=false\n{rest}"));
    assert_eq!((off.admin, off.admin_scope), (port, AdminScope::Metrics), "not the whole of it");
    let named = config(rest);
    let whole = Some("0.0.0.0:8000".parse().unwrap());
    assert_eq!((named.admin, named.admin_scope), (whole, AdminScope::All));
    assert_eq!(config("httpServerEnabled=false\nhttpServerHost=0.0.0.0\n").admin, None);
}

/// The settings name files where they are, for whoever reads them in another directory.
#[test]
fn a_file_of_tokens_is_named_from_the_root_on() {
    // Any file with lines has tokens. Tests run in the directory of this crate.
    let from_root = Some(std::env::current_dir().unwrap().join("Cargo.toml"));
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let tokens = |line: &[&str], file: &str| resolve(&args(line), Some(file)).unwrap().config.admin_tokens;
    assert_eq!(tokens(&line, "httpServerTokensFile=Cargo.toml\n"), from_root);
    assert_eq!(tokens(&[&line[..], &["--admin-tokens", "Cargo.toml"]].concat(), ""), from_root);
    assert_eq!(tokens(&line, ""), None);
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

/// As BookKeeper: an IPv6 address that clients are told is one that is listened on.
#[test]
fn without_an_address_both_kinds_are_listened_on_and_a_named_one_alone() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let config = |file: &str| resolve(&args(&line), Some(file)).unwrap().config;
    let told = config("advertisedAddress=::1\nallowLoopback=true\n");
    assert_eq!(
        (told.listen.to_string().as_str(), told.advertise),
        ("[::]:3181", Some(("::1".to_owned(), 3181)))
    );
    for (file, listen) in [
        ("bookiePort=5\n", "[::]:5"),
        ("listeningInterface=0.0.0.0\n", "0.0.0.0:3181"),
        ("listeningInterface=::\n", "[::]:3181"),
        ("listeningInterface=[2001:db8::1]\n", "[2001:db8::1]:3181"),
    ] {
        assert_eq!(config(file).listen.to_string(), listen, "{file}");
    }
    let admin = config("httpServerEnabled=true\nhttpServerHost=[::1]\n").admin;
    assert_eq!(admin.unwrap().to_string(), "[::1]:8080");
    assert_eq!(config("advertisedAddress=[2001:db8::1]\n").advertise.unwrap().0, "2001:db8::1");
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
    let faults = resolve(&args(&["--memory-limit", "lots", "--metadata", "foo://x/y"]), Some("bookiePort=x"))
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

/// Rules take exactly the keys whose rows leave it to them: one that is taken besides would lose its place, and one that is not would be
/// accepted and do nothing.
#[test]
fn rules_take_by_name_exactly_the_keys_whose_rows_say_so() {
    let mut file = Values::default();
    rules::apply(&args(&[]), &mut file, &mut Draft::default(), &Fake::default());
    let table: BTreeSet<&str> = table::all().filter(|key| key.is_of_rule()).map(|key| key.name).collect();
    let taken: BTreeSet<&str> = file.asked().iter().map(String::as_str).collect();
    let only = |left: &BTreeSet<&str>, right: &BTreeSet<&str>| {
        left.difference(right).map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(only(&taken, &table), [""; 0], "taken, and the row has a place");
    assert_eq!(only(&table, &taken), [""; 0], "left to a rule, and not taken");
}

#[test]
fn a_flag_takes_the_place_of_a_value_that_is_checked_all_the_same() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let with = |flags: &[&str], file: &str| {
        let line = [&line[..], flags].concat();
        resolve(&args(&line), Some(file)).map(|settings| settings.config)
    };
    let on =
        with(&["--journal-sync", "on", "--bookie-id", "b1"], "journalSyncData=false\nbookieId=b0\n").unwrap();
    assert!(on.journal_sync && on.bookie_id.as_deref() == Some("b1"));
    let faults = with(&["--read-only"], "forceReadOnlyBookie=perhaps\n").unwrap_err();
    assert!(faults[0].starts_with("forceReadOnlyBookie=perhaps: give true or false"), "{faults:?}");
    // A short grace in the file would shorten others with it.
    let dir = tempfile::tempdir().unwrap();
    let tier = format!("file://{}", dir.path().display());
    let flags = ["--tier", &tier, "--tier-grace", "60m"];
    let trim = with(&flags, "tierTrimGraceSec=5\n").unwrap().tier.unwrap().trim;
    assert_eq!((trim.grace.as_secs(), trim.grace_when_short.as_secs()), (3600, 600));
}

#[test]
fn what_has_no_effect_is_named_once_and_what_asks_for_more_by_itself() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let file = "journalMaxBackups=0\nrepairedPlacementPolicyNotAdheringBookieEnabled=true\nopenFileLimit=\njournalDirectores=/x\n";
    let warnings = resolve(&args(&line), Some(file)).unwrap().warnings;
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(
        warnings[1].starts_with("repairedPlacementPolicyNotAdheringBookieEnabled=true has no effect: "),
        "{warnings:?}"
    );
    assert!(warnings[0].contains("journalDirectores") && warnings[0].contains("journalDirectories is near"));
    assert!(warnings[2].ends_with(": journalMaxBackups"), "{warnings:?}");
    let quiet = "repairedPlacementPolicyNotAdheringBookieEnabled=false\nextraServerComponents=\n";
    let quiet = resolve(&args(&line), Some(quiet)).unwrap();
    let name = ": repairedPlacementPolicyNotAdheringBookieEnabled";
    assert!(quiet.warnings[0].ends_with(name), "{:?}", quiet.warnings);
}

#[test]
fn a_bookie_repairs_unless_its_file_or_a_flag_says_otherwise() {
    let with = |flags: &[&str], file: &str| {
        let line = [&["--metadata", "zk+null://z:1/l", "--data", "/d"][..], flags].concat();
        resolve(&args(&line), Some(file)).map(|settings| settings.repair.0)
    };
    let is_on = |flags: &[&str], file: &str| with(flags, file).unwrap().is_on;
    assert!(is_on(&[], "") && is_on(&[], "autoRecoveryDaemonEnabled=true\n"));
    assert!(!is_on(&[], "autoRecoveryDaemonEnabled=false\nlostBookieRecoveryDelay=5\n"));
    assert!(!is_on(&["--repair-role", "off"], "autoRecoveryDaemonEnabled=true\n"));
    assert!(is_on(&["--repair-role", "on"], "autoRecoveryDaemonEnabled=false\n"));
    let found = with(
        &[],
        "lostBookieRecoveryDelay=5\nauditorPeriodicBookieCheckInterval=0\nopenLedgerRereplicationGracePeriod=1500\n\
         replicationRateByBytes=-1\n",
    );
    let found = found.unwrap();
    assert_eq!(found.work.auditor.delay, Duration::from_secs(5));
    assert!(found.work.auditor.scan_interval > Duration::from_secs(1 << 30), "0 is never");
    assert_eq!((found.work.open_grace, found.work.bytes_per_second), (Duration::from_millis(1500), None));
    assert_eq!((found.work.checks, found.work.mark_grace), (CheckSettings::default(), None));
    let found = with(
        &[],
        "auditorPeriodicCheckInterval=0\nauditorReplicasCheckInterval=50\nauditorLedgerVerificationPercentage=10\n\
         auditorMaxNumberOfConcurrentOpenLedgerOperations=1000\nunderreplicatedLedgerRecoveryGracePeriod=60\n\
         storeSystemTimeAsLedgerUnderreplicatedMarkTime=false\n",
    )
    .unwrap();
    assert_eq!((found.work.stamps_marks, found.work.mark_grace), (false, Some(Duration::from_secs(60))));
    let CheckSettings { interval, covers_replicas, read_percent, parallel, .. } = found.work.checks;
    assert_eq!((interval, covers_replicas), (Some(Duration::from_secs(50)), true));
    assert_eq!((read_percent, parallel), (10, 500));
    assert_eq!(with(&[], "auditorPeriodicCheckInterval=0\n").unwrap().work.checks.interval, None);
    let faults = with(&["--repair-role", "on"], "auditorLedgerVerificationPercentage=101\n").unwrap_err();
    assert!(faults[0].contains("=101: give a whole number from 0 to 100"), "{faults:?}");
    assert_eq!(with(&[], "").unwrap().work.bytes_per_second, Some(40 << 20));
    let fast = with(&[], "replicationRateByBytes=1000000\n").unwrap();
    assert_eq!(fast.work.bytes_per_second, Some(1_000_000));
    let faults = with(&["--repair-role", "on"], "replicationRateByBytes=fast\n").unwrap_err();
    assert!(faults[0].contains("replicationRateByBytes=fast: give a whole number"), "{faults:?}");
}

/// A bookie starts with wrong values of keys that had no effect before, unless repair is switched on explicitly.
#[test]
fn a_wrong_value_of_repair_is_ignored_with_a_warning_unless_repair_was_asked_for() {
    let with = |file: &str| {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        resolve(&args(&line), Some(file)).map(|settings| (settings.repair.0, settings.warnings))
    };
    let default = with("").unwrap().0;
    // Java takes an interval below zero for never.
    for key in [
        "auditorPeriodicCheckInterval",
        "auditorReplicasCheckInterval",
        "underreplicatedLedgerRecoveryGracePeriod",
    ] {
        for asked in ["", "autoRecoveryDaemonEnabled=true\n"] {
            assert_eq!(
                with(&format!("{key}=-1\n{asked}")),
                with(&format!("{key}=0\n{asked}")),
                "{key} {asked}"
            );
        }
    }
    assert_eq!(
        with("auditorPeriodicBookieCheckInterval=-1\n"),
        with("auditorPeriodicBookieCheckInterval=0\n")
    );
    for wrong in [
        "auditorPeriodicCheckInterval=weekly",
        "auditorLedgerVerificationPercentage=101",
        "auditorMaxNumberOfConcurrentOpenLedgerOperations=-1",
        "replicationRateByBytes=fast",
        "lostBookieRecoveryDelay=-1",
        "openLedgerRereplicationGracePeriod=-1",
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime=perhaps",
    ] {
        let (settings, warnings) = with(wrong).unwrap();
        assert_eq!(settings, default, "{wrong}: repair goes on with its default");
        assert!(warnings.len() == 1 && warnings[0].starts_with(wrong), "{warnings:?}");
        assert!(warnings[0].contains("ignored: its default counts"), "{warnings:?}");
        let (settings, warnings) = with(&format!("{wrong}\nautoRecoveryDaemonEnabled=false\n")).unwrap();
        assert!(!settings.is_on && warnings.len() == 1, "{warnings:?}");
        assert!(warnings[0].contains("ignored: repair is off on this bookie"), "{warnings:?}");
        let faults = with(&format!("{wrong}\nautoRecoveryDaemonEnabled=true\n")).unwrap_err();
        assert!(faults.len() == 1 && faults[0].starts_with(wrong), "{faults:?}");
    }
    // A wrong value of the switch itself is always an error.
    assert!(with("autoRecoveryDaemonEnabled=perhaps\n").is_err());
}

#[test]
fn a_bookie_waits_for_one_that_restarts_unless_it_is_told_not_to_and_says_so_then() {
    let with = |file: &str| {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        let settings = resolve(&args(&line), Some(file)).unwrap();
        let config = settings.repair.0.config(bindery_types::BookieId::new("b").unwrap());
        (config.auditor.delay, settings.warnings)
    };
    assert_eq!(with(""), (Duration::from_secs(900), vec![]));
    let (delay, warnings) = with("lostBookieRecoveryDelay=0\n");
    assert_eq!(delay, Duration::ZERO, "it is honoured");
    assert!(warnings.len() == 1 && warnings[0].contains("while it restarts"), "{warnings:?}");
    assert_eq!(with("lostBookieRecoveryDelay=0\nautoRecoveryDaemonEnabled=false\n").1, [""; 0]);
}

/// A bookie starts although its default repair cannot log in. With repair switched on explicitly it does not.
#[test]
fn repair_whose_client_could_not_log_in_is_left_out_with_a_warning_or_refused() {
    let with = |file: &str| {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        resolve(&args(&line), Some(file)).map(|settings| (settings.repair.0.is_on, settings.warnings))
    };
    let users = "usersFile=/u\n";
    let (is_on, warnings) = with(users).unwrap();
    assert!(!is_on && warnings.len() == 1, "{warnings:?}");
    let left_out = |file: &str| {
        let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
        resolve(&args(&line), Some(file)).unwrap().repair.0.left_out
    };
    assert!(left_out(users).unwrap().contains("has no user"), "the admin port says why");
    assert_eq!(left_out(&format!("{users}autoRecoveryDaemonEnabled=false\n")), None, "it is meant");
    assert!(
        warnings[0].starts_with("this bookie does not repair ledgers") && warnings[0].contains("saslUser")
    );
    let faults = with(&format!("{users}autoRecoveryDaemonEnabled=true\n")).unwrap_err();
    assert!(faults.len() == 1 && faults[0].contains("--repair-role off"), "{faults:?}");
    assert_eq!(with(&format!("{users}autoRecoveryDaemonEnabled=false\n")), Ok((false, vec![])));
    let user = "saslUser=repair\nsaslPasswordFile=/p\n";
    assert_eq!(with(&format!("{users}{user}")), Ok((true, vec![])));
    // A file of Java's whose store the client cannot read.
    let jks = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\ntlsKeyStore=/b.key\n\
         tlsCertificatePath=/b.pem\ntlsTrustStore=/t.jks\n";
    let (is_on, warnings) = with(jks).unwrap();
    assert!(
        !is_on && warnings.iter().any(|warning| warning.contains("tlsTrustStoreType=PEM")),
        "{warnings:?}"
    );
    assert!(with(&format!("{jks}autoRecoveryDaemonEnabled=true\n")).is_err());
}
