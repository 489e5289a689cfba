//! Settings as operators' files and images have them.

use super::*;

#[test]
fn an_interface_is_found_by_its_name() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let config = resolve(&args(&line), Some("listeningInterface=eth0\nbookiePort=4000\n")).unwrap().config;
    assert_eq!(config.listen, "10.0.0.7:4000".parse().unwrap());
    let faults = resolve(&args(&line), Some("listeningInterface=eth1\n")).unwrap_err();
    assert!(faults[0].contains("lo (127.0.0.1), eth0 (10.0.0.7)"), "{faults:?}");
    let faults = resolve(&args(&line), Some("listeningInterface=lo\n")).unwrap_err();
    assert!(faults[0].contains("allowLoopback=true"), "{faults:?}");
    let lo = resolve(&args(&line), Some("listeningInterface=lo\nallowLoopback=true\n")).unwrap();
    assert_eq!(lo.config.listen, "127.0.0.1:3181".parse().unwrap());
    let flags = [&line[..], &["--listen", "127.0.0.1:1"]].concat();
    assert!(resolve(&args(&flags), Some("listeningInterface=eth1\n")).is_ok(), "the flag wins");
}

#[test]
fn a_bookie_is_called_as_its_host_when_that_is_asked_for() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let told = |host: &Fake, file: &str| {
        let examined = examine(&args(&line), Some(file), Vec::new(), host).settings();
        examined.map(|settings| settings.config.advertise.unwrap())
    };
    let pod = Fake { name: "bk-0", listed: Some("bk-0.bk.ns.svc"), ..Fake::default() };
    let file = "useHostNameAsBookieID=true\n";
    assert_eq!(told(&pod, file), Ok(("bk-0.bk.ns.svc".to_owned(), 3181)));
    assert_eq!(told(&pod, &format!("{file}useShortHostName=true\n")), Ok(("bk-0".to_owned(), 3181)));
    assert_eq!(told(&pod, &format!("{file}advertisedAddress=a.b\n")), Ok(("a.b".to_owned(), 3181)));
    assert_eq!(told(&Fake::default(), file), Ok(("machine".to_owned(), 3181)));
    let lost = Fake { address: None, ..Fake::default() };
    assert!(told(&lost, file).unwrap_err()[0].contains("resolves to no address"));
    let near = Fake { address: Some("127.0.1.1"), ..Fake::default() };
    assert!(told(&near, file).unwrap_err()[0].contains("127.0.1.1"));
    assert!(told(&near, &format!("{file}allowLoopback=true\n")).is_ok());
    let faults = told(&pod, "advertisedAddress=host:3181\n").unwrap_err();
    assert!(faults[0].contains("without a port"), "{faults:?}");
}

#[test]
fn one_directory_may_hold_journal_and_ledgers() {
    let line = ["--metadata", "zk+null://z:1/l"];
    let config = resolve(&args(&line), Some("journalDirectory=/d\nledgerDirectories=/d\n")).unwrap().config;
    assert_eq!(
        (&config.journal_dirs[0], &config.ledger_dirs[0]),
        (&"/d/journal".into(), &"/d/ledgers".into())
    );
    assert_eq!(config.home, Some("/d".into()), "as with --data");
    for (journals, ledgers) in [("/a,/b", "/b,/c"), ("/a,/a", "/b"), ("/a", "/b,/b")] {
        let file = format!("journalDirectories={journals}\nledgerDirectories={ledgers}\n");
        let faults = resolve(&args(&line), Some(&file)).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
    }
}

#[test]
fn pulsars_uri_and_empty_servers_are_understood() {
    let line = ["--data", "/d"];
    let settings = resolve(&args(&line), Some("metadataServiceUri=metadata-store:zk:h:2181/p\n")).unwrap();
    assert_eq!(settings.metadata.root, "/p/ledgers");
    assert!(settings.notes[0].contains("/p/ledgers"), "{:?}", settings.notes);
    let file = "metadataServiceUri=\nzkServers=a:1,b:2\nzkLedgersRootPath=\n";
    assert_eq!(resolve(&args(&line), Some(file)).unwrap().metadata.to_string(), "zk://a:1;b:2/ledgers");
    let faults = resolve(&args(&line), Some("metadataServiceUri=\nzkServers=\n")).unwrap_err();
    assert!(faults[0].starts_with("no metadata store"), "{faults:?}");
}

#[test]
fn the_environment_counts_when_it_is_asked_for_and_wins_over_the_file() {
    let variables = || {
        let pairs = [("BK_bookiePort", "4000"), ("BK_gcWaitTime", "x"), ("bookiePort", "5000")];
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
    };
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let of = |naming: &str, variables| {
        let flags = [&line[..], &["--config-env", naming]].concat();
        examine(&args(&flags), Some("bookiePort=3000\n"), variables, &Fake::default()).settings()
    };
    assert_eq!(of("none", variables()).unwrap().config.listen.port(), 3000);
    assert_eq!(of("pulsar", variables()).unwrap().config.listen.port(), 5000);
    let faults = of("bk", variables()).unwrap_err();
    assert_eq!(faults, ["gcWaitTime=x: give a whole number, not below 0 (BK_gcWaitTime in the environment)"]);
}

#[test]
fn keepalive_has_bookkeepers_keys_too() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let of = |file: &str| {
        resolve(&args(&line), Some(file)).map(|settings| settings.config.limits.socket.keepalive)
    };
    let keepalive = |idle, interval, probes| {
        let (idle, interval) = (Duration::from_secs(idle), Duration::from_secs(interval));
        Ok(Some(Keepalive { idle, interval, probes }))
    };
    assert_eq!(of("serverTcpKeepIdle=5\nserverTcpKeepIntvl=2\nserverTcpKeepCnt=4\n"), keepalive(5, 2, 4));
    assert_eq!(
        of("serverTcpKeepIdle=-1\nserverTcpKeepIntvl=-1\nserverTcpKeepCnt=-1\n"),
        keepalive(60, 10, 3)
    );
    assert_eq!(of("serverTcpKeepIdle=5\ntcpKeepaliveIdleSec=7\n"), keepalive(7, 10, 3));
    assert!(of("serverTcpKeepCnt=1000\n").unwrap_err()[0].contains("up to 127"));
}

#[test]
fn no_fault_shows_a_secret() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d"];
    let file =
        "zkTlsKeyStorePassword=tiger${x}\nhttpServerKeyStorePassword=tiger${x}\nzkTlsTrustStore=/a${x}\n";
    let faults = resolve(&args(&line), Some(file)).unwrap_err().join("\n");
    assert!(faults.contains("zkTlsKeyStorePassword=...: ${...} is not replaced here"), "{faults}");
    assert!(faults.contains("zkTlsTrustStore=/a${x}") && !faults.contains("tiger"), "{faults}");
}

#[test]
fn the_file_wins_over_system_properties_and_variables_over_the_file() {
    let line = ["--metadata", "zk+null://z:1/l", "--data", "/d", "--config-env", "bk"];
    let file = "zkTlsEnable=true\nzkTlsTrustStore=/file.pem\n";
    let options = "-Dzookeeper.client.secure=false -Dzookeeper.ssl.trustStore.location=/property.pem \
                   -Dzookeeper.ssl.keyStore.location=/key.pem";
    let told = |more: &[(&str, &str)]| {
        let variables = [&[("BOOKIE_EXTRA_OPTS", options)], more].concat();
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let examined = examine(&args(&line), Some(file), variables.collect(), &Fake::default());
        examined.settings().unwrap().config.metadata_security.tls.unwrap()
    };
    let tls = told(&[]);
    assert_eq!(tls.authorities.path, std::path::Path::new("/file.pem"));
    assert_eq!(tls.identity.unwrap().path, std::path::Path::new("/key.pem"), "the file does not have it");
    let tls = told(&[("BK_zkTlsTrustStore", "/variable.pem")]);
    assert_eq!(tls.authorities.path, std::path::Path::new("/variable.pem"));
}
