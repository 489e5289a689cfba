//! `bindery config`: files as operators have them are accepted, broken ones are refused with all that is wrong.
//!
//! The fixtures are the settings of BookKeeper's and Pulsar's distributed files, without their prose.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FIXTURES: [(&str, &str); 3] = [
    ("bk_server-4.17.2.conf", include_str!("../fixtures/bk_server-4.17.2.conf")),
    ("bk_server-4.18.0.conf", include_str!("../fixtures/bk_server-4.18.0.conf")),
    ("pulsar-4.0-bookkeeper.conf", include_str!("../fixtures/pulsar-4.0-bookkeeper.conf")),
];

fn bindery(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bindery"));
    command.args(args).env_clear().envs(variables.iter().copied());
    command.output().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a file of the test's")]
fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Checks a file; gives the exit code, and each finding as level, line or variable, and text.
fn check(path: &Path, flags: &[&str], variables: &[(&str, &str)]) -> (i32, Vec<(String, String, String)>) {
    let args = [&["config", "check", path.to_str().unwrap(), "--json"], flags].concat();
    let output = bindery(&args, variables);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let found = stdout.lines().map(|line| {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        let place = match (&object["line"], &object["variable"]) {
            (serde_json::Value::Number(line), _) => line.to_string(),
            (_, serde_json::Value::String(name)) => name.clone(),
            _ => String::new(),
        };
        let word = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        (word("level"), place, word("text"))
    });
    let found = found.collect();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let code = output.status.code().unwrap_or_else(|| panic!("{stderr}"));
    (code, found)
}

fn texts(found: &[(String, String, String)], level: &str) -> Vec<String> {
    found.iter().filter(|(of, _, _)| of == level).map(|(_, _, text)| text.clone()).collect()
}

#[test]
fn distributed_files_are_accepted_with_correct_warnings_only() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in FIXTURES {
        let path = file(dir.path(), name, text);
        let (code, found) = check(&path, &[], &[]);
        assert_eq!((code, texts(&found, "fault")), (0, Vec::new()), "{name}");
        let warnings = texts(&found, "warning");
        let begin: &[&str] = match name.starts_with("pulsar") {
            true => &["isThrottleByBytes=false: compactionRateByBytes", "lostBookieRecoveryDelay=0: "],
            false => &[],
        };
        assert_eq!(warnings.len(), begin.len(), "{name}: {warnings:?}");
        for begin in begin {
            assert!(warnings.iter().any(|warning| warning.starts_with(begin)), "{begin}: {warnings:?}");
        }
    }
}

/// With every commented line in force, too: nothing is unknown, and only what is not here at all is refused.
#[test]
fn every_line_of_the_distributed_files_is_known() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in FIXTURES {
        let uncommented: String =
            text.lines().skip(1).map(|line| format!("{}\n", line.trim_start_matches('#'))).collect();
        let path = file(dir.path(), name, &uncommented);
        let (code, found) = check(&path, &["--listen", "127.0.0.1:1"], &[]);
        let faults = texts(&found, "fault");
        assert_eq!(code, 2, "{name}: {faults:?}");
        for fault in &faults {
            let key = fault.split(['=', ':']).next().unwrap();
            assert!(key.starts_with("tls"), "{name}: {fault}");
        }
        let warnings = texts(&found, "warning");
        assert!(warnings.iter().all(|warning| !warning.contains("is no key")), "{name}: {warnings:?}");
    }
}

#[test]
fn the_environment_of_the_official_images_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    // The settings of the Pulsar chart for a bookie.
    let path = file(dir.path(), "bookkeeper.conf", FIXTURES[2].1);
    let chart = [
        ("zkServers", "pulsar-zookeeper:2181"),
        ("zkLedgersRootPath", "/ledgers"),
        ("httpServerEnabled", "true"),
        ("httpServerPort", "8000"),
        ("statsProviderClass", "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"),
        ("useHostNameAsBookieID", "true"),
        ("advertisedAddress", "bookie-0.pulsar"),
        ("autoRecoveryDaemonEnabled", "false"),
        ("PULSAR_MEM", "-Xms128m"),
        ("PULSAR_GC", "-XX:+UseG1GC"),
        ("PULSAR_PREFIX_journalDirectories", "/pulsar/data/bookkeeper/journal"),
        ("journalMaxBackups", "0"),
        ("ledgerDirectories", "/pulsar/data/bookkeeper/ledgers"),
        ("BINDERY_CONFIG_ENV", "pulsar"),
    ];
    let (code, found) = check(&path, &[], &chart);
    assert_eq!((code, texts(&found, "fault")), (0, Vec::new()));
    // One about both keys for the journal, one about the pace of compaction; the file asks for AutoRecovery, the chart does not.
    assert_eq!(texts(&found, "warning").len(), 2, "{found:?}");
    let args = ["config", "show", "--config", path.to_str().unwrap()];
    let shown = String::from_utf8(bindery(&args, &chart).stdout).unwrap();
    let row = |key: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("metadataServiceUri"), ["zk://pulsar-zookeeper:2181/ledgers", "zkServers"]);
    assert_eq!(
        row("journalDirectories"),
        ["/pulsar/data/bookkeeper/journal", "PULSAR_PREFIX_journalDirectories"]
    );
    assert_eq!(row("advertisedAddress"), ["bookie-0.pulsar", "advertisedAddress"]);
    assert_eq!(row("httpServerPort"), ["8000", "httpServerPort"]);

    let path = file(dir.path(), "bk_server.conf", FIXTURES[1].1);
    let image = [
        ("BK_HOME", "/opt/bookkeeper"),
        ("BK_zkServers", "zk1:2181,zk2:2181"),
        ("BK_bookiePort", "3182"),
        ("BK_httpServerEnabled", "true"),
        ("BK_ledgerDirectories", "/data/ledgers"),
        ("BK_dlogRootPath", "/distributedlog"),
        ("BK_NUM_STORAGE_CONTAINERS", "32"),
    ];
    let args = ["config", "show", "--json", "--config-env", "bk", "--config", path.to_str().unwrap()];
    let shown = String::from_utf8(bindery(&args, &image).stdout).unwrap();
    for (key, value, origin) in [
        ("bookiePort", "3182", "BK_bookiePort"),
        ("metadataServiceUri", "zk://zk1:2181;zk2:2181/ledgers", "BK_zkServers"),
        ("httpServerHost", "0.0.0.0", "line"),
    ] {
        let line = shown.lines().find(|line| line.contains(&format!("\"key\":\"{key}\""))).unwrap();
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(object["value"], value, "{line}");
        assert!(object["origin"].as_str().unwrap().starts_with(origin), "{line}");
    }
}

#[test]
fn values_come_from_flags_lines_and_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "bk.conf",
        "\ngcWaitTime=60000\nmetadataServiceUri=zk+null://z:1/l\nopenFileLimit=1\n",
    );
    let args =
        ["config", "show", "--config", path.to_str().unwrap(), "--data", "/d", "--memory-limit", "256MiB"];
    let shown = String::from_utf8(bindery(&args, &[]).stdout).unwrap();
    let has = |text: &str, expected: &[&str]| {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        text.lines().any(|line| words(line) == expected)
    };
    for expected in [
        &["gcWaitTime", "60000", "line", "2"][..],
        &["journalDirectories", "/d/journal", "--data"],
        &["flushInterval", "10000", "default"],
        &["--memory-limit", "256", "MiB", "--memory-limit"],
    ] {
        assert!(has(&shown, expected), "{expected:?} in\n{shown}");
    }
    assert!(!shown.contains("openFileLimit"), "no effect");
    let all = String::from_utf8(bindery(&[&args[..], &["--all"]].concat(), &[]).stdout).unwrap();
    assert!(has(&all, &["openFileLimit", "1", "line", "4"]), "{all}");
}

#[test]
fn a_key_is_explained_and_a_wrong_one_is_led_to_the_nearest() {
    let output = bindery(&["config", "explain", "rwRereplicateBackoffMs"], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no effect") && text.contains("2 s to 5 min"), "{text}");
    let output = bindery(&["config", "explain", "--json", "gcWaitTime"], &[]);
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&object["default"], &object["bookkeeper_default"]), (&"900000".into(), &"600000".into()));
    let output = bindery(&["config", "explain", "gcWaitTme"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("gcWaitTime is near"));
}

/// A file that works, so that each line below is the only thing wrong.
const SOUND: &str = "metadataServiceUri=zk+null://z:1/l\njournalDirectories=/j\nledgerDirectories=/l\n";

/// Faulty settings, and the text of the one fault of each.
const BROKEN: [(&str, &str); 50] = [
    ("bookiePort=bookie", "give a whole number from 0 to 65535"),
    ("bookiePort=70000", "give a whole number from 0 to 65535"),
    ("bookiePort=${PORT}", "is not replaced here"),
    ("bookiePort=-1", "give a whole number from 0 to 65535"),
    ("httpServerEnabled=maybe", "give true or false"),
    ("httpServerEnabled=true\nhttpServerHost=host.example", "give an IP address"),
    ("prometheusStatsHttpPort=x", "give a whole number"),
    ("listeningInterface=nosuch0", "is no network interface of this machine"),
    ("advertisedAddress=0.0.0.0", "nobody can connect"),
    ("advertisedAddress=host:3181", "without a port"),
    ("advertisedAddress=two words", "without a port"),
    ("bookieId=with space", "bookieId"),
    ("metadataServiceUri=etcd://e:2379/l", "etcd"),
    ("metadataServiceUri=zk://host/a//b", "ledgers root"),
    ("metadataServiceUri=zk+cubic://h/l", "unknown metadata scheme"),
    ("metadataServiceUri=metadata-store:oxia://o:6648/l/ledgers", "name of a namespace"),
    ("metadataServiceUri=metadata-store:rocksdb:/d", "ZooKeeper is supported"),
    ("metadataServiceUri=zk://h:notaport/l", "HOST:PORT"),
    ("zkTimeout=10s", "give a whole number"),
    ("zkEnableSecurity=true", "remove the line"),
    ("journalDirectories=/a,,/b", "has an empty name"),
    ("journalDirectories=/a,/a", "twice"),
    ("journalDirectories=/l,/b", "stands in journalDirectories and in ledgerDirectories"),
    ("ledgerDirectories=,", "has an empty name"),
    ("ledgerDirectories=${BK_DATA}/ledgers", "is not replaced here"),
    ("journalWriteData=false", "always go through the journal"),
    ("journalSyncData=perhaps", "give true or false"),
    ("journalMaxSizeMB=1GB", "give a whole number"),
    ("journalDiskSizeMaxMB=10", "give at least"),
    ("nettyMaxFrameSizeBytes=12", "out of range"),
    ("nettyMaxFrameSizeBytes=5MB", "give a whole number"),
    ("maxBatchReadSize=-5", "give a whole number"),
    ("numReadWorkerThreads=eight", "give a whole number"),
    ("maxConnections=0", "from 1 to"),
    ("serverSendBufferSizeBytes=12", "at least"),
    ("serverTcpKeepCnt=500", "up to 127"),
    ("stalledConnectionClose=sometimes", "never, pressure or always"),
    ("averageEntryBytes=0", "size of a usual entry"),
    ("minorCompactionThreshold=2", "a share below 1"),
    ("gcWaitTime=15m", "give a whole number"),
    ("diskUsageThreshold=95", "give a share above 0, at most 1"),
    ("diskUsageThreshold=0.5\ndiskUsageLwmThreshold=0.6", "never be writable again"),
    ("tlsRequired=true", "tlsRequired=true without TLS"),
    (
        "bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
        "there are no users",
    ),
    ("bookieAuthProviderFactoryClass=my.Provider", "is not known here"),
    ("authorizedRoles=a", "which nobody compares"),
    ("requireReaderRole=true", "nobody has a role"),
    ("permittedStartupUsers=somebody-else", "start the bookie as one of those"),
    ("disableServerSocketBind=true", "over the network only"),
    ("include=other.conf", "put all settings into one file"),
];

#[test]
fn each_broken_file_has_one_clear_fault_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    for (broken, advice) in BROKEN {
        let path = file(dir.path(), "broken.conf", &format!("{SOUND}# a comment\n{broken}\n"));
        let (code, found) = check(&path, &[], &[]);
        let faults: Vec<_> = found.iter().filter(|(level, _, _)| level == "fault").collect();
        assert_eq!((code, faults.len()), (2, 1), "{broken}: {found:?}");
        let (_, line, text) = faults[0];
        assert!(text.contains(advice), "{broken}: {text}");
        let last = 4 + broken.lines().count();
        assert!(*line == last.to_string() || *line == "3", "{broken}: line {line}");
        // The start says the same.
        let bookie = bindery(&["bookie", "--config", path.to_str().unwrap()], &[]);
        let stderr = String::from_utf8(bookie.stderr).unwrap();
        assert!(bookie.status.code() == Some(2) && stderr.contains(text), "{broken}: {stderr}");
    }
}

#[test]
fn all_faults_are_shown_at_once_in_the_order_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let text = "gcWaitTime=x\nbookiePrt=1\nbookiePort=y\nbookiePort=z\nzkEnableSecurity=true\n";
    let path = file(dir.path(), "bad.conf", text);
    let name = path.display().to_string();
    let output = bindery(&["config", "check", &name], &[]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = stdout.lines().map(|line| line.strip_prefix(&name).unwrap()).collect();
    let begin = [
        ":1: fault: gcWaitTime=x",
        ":2: warning: bookiePrt is no key of BookKeeper or Bindery, and has no effect; bookiePort is near",
        ":4: fault: bookiePort=z",
        ":4: warning: bookiePort stands on line 3 and again on line 4",
        ":5: fault: zkEnableSecurity=true",
        ": fault: no directories",
        ": fault: no metadata store",
    ];
    assert_eq!(lines.len(), begin.len(), "{stdout}");
    for (line, begin) in lines.iter().zip(begin) {
        assert!(line.starts_with(begin), "{line}");
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("bindery: {name}: 5 faults, 2 warnings, 0 settings without effect\n"));
    let missing = bindery(&["config", "check", "/nowhere/bk.conf"], &[]);
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn protection_that_is_not_switched_on_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let start = ["bookie", "--metadata", "zk+null://127.0.0.1:1/ledgers", "--data"];
    let data = dir.path().join("data");
    for (text, key) in [
        (
            "tlsClientAuthentication=true\ntlsKeyStore=/k.jks\ntlsTrustStore=/t.jks\n",
            "tlsProviderFactoryClass=",
        ),
        ("httpServerEnabled=true\nhttpServerTrustStorePath=/t.pem\n", "httpServerTlsEnable=true"),
        ("httpServerEnabled=true\nhttpServerClientCertificates=required\n", "httpServerTlsEnable=true"),
        ("zkTlsTrustStore=/t.pem\n", "zkTlsEnable=true"),
    ] {
        let path = file(dir.path(), "bookie.conf", text);
        let (code, found) = check(&path, &["--metadata", start[2], "--data", data.to_str().unwrap()], &[]);
        let faults = texts(&found, "fault");
        assert_eq!((code, faults.len()), (2, 1), "{text}: {faults:?}");
        assert!(faults[0].contains(&format!(" without {key}")), "{text}: {faults:?}");
        let args = [&start[..], &[data.to_str().unwrap(), "--config", path.to_str().unwrap()]].concat();
        let started = bindery(&args, &[]);
        let stderr = String::from_utf8(started.stderr).unwrap();
        assert_eq!(started.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&faults[0]) && !data.exists(), "{stderr}");
    }
}

#[test]
fn files_of_secrets_that_everybody_may_read_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    set(dir.path(), 0o755);
    let secret = |name: &str| file(dir.path(), name, "secret\n");
    let (key, tokens) = (secret("bookie.key"), secret("tokens"));
    let text = format!(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\ntlsKeyStore={}\n\
         tlsCertificatePath=/c.pem\nhttpServerTokensFile={}\n",
        key.display(),
        tokens.display()
    );
    let path = file(dir.path(), "bookie.conf", &text);
    let named = |modes: [u32; 2]| {
        set(&key, modes[0]);
        set(&tokens, modes[1]);
        let (_, found) = check(&path, &["--metadata", "zk+null://127.0.0.1:1/ledgers", "--data", "/d"], &[]);
        let found = found.into_iter().filter(|(_, _, text)| text.contains("every user of this machine"));
        found.map(|(level, line, _)| (level, line)).collect::<Vec<_>>()
    };
    let warning = |line: &str| ("warning".to_owned(), line.to_owned());
    assert_eq!(named([0o640, 0o440]), []);
    assert_eq!(named([0o644, 0o640]), [warning("3")]);
    assert_eq!(named([0o644, 0o644]), [warning("3"), warning("5")]);
    let inside = format!(
        "{text}httpServerEnabled=true\nhttpServerTlsEnable=true\nhttpServerKeyStorePath=/a.p12\n\
                          httpServerKeyStorePassword=secret\n"
    );
    file(dir.path(), "bookie.conf", &inside);
    set(&path, 0o644);
    assert_eq!(named([0o600, 0o600]), [warning("")], "the password is in the configuration itself");
}
