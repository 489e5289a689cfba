//! What the admin port says of the cluster, and changes there, beside the texts and JSON of BookKeeper 4.18.0.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::whole::{Running, cluster, config, id, start};
use bindery_metadata::store::{CreateMode, MetadataStore as _};
use bindery_metrics::{Exposition, Row, Table};
use bindery_server::admin::extension::{
    AdminExtension, Extending, ExtensionAnswer, ExtensionFault, ExtensionRequest, Part,
};
use bindery_server::bookie::{Bookie, Components, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::latch::Latch;
use bindery_types::BookieId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const AUTORECOVERY: &str = "/api/v1/autorecovery";

async fn started() -> (Running, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (start(config(dir.path()), &cluster().await).await, dir)
}

fn bookie(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

/// The status and the body of an answer.
async fn said(running: &Running, method: &str, path: &str, body: &str) -> (u16, String) {
    let (line, body) = running.http(method, path, body).await;
    (line.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

async fn repair(running: &Running, method: &str, path: &str, body: &str) -> (u16, String) {
    said(running, method, &format!("{AUTORECOVERY}/{path}"), body).await
}

fn text(status: u16, body: &str) -> (u16, String) {
    (status, body.to_owned())
}

#[tokio::test]
async fn the_settings_of_repair_are_read_and_changed_as_java_does() {
    let (running, _dir) = started().await;
    let settings = running.layout.repair_settings();
    assert_eq!(repair(&running, "GET", "status", "").await, text(200, r#"{"enabled":true}"#));
    let put = async |query: &str| repair(&running, "PUT", &format!("status?{query}"), "").await;
    assert_eq!(put("enabled=FALSE").await, text(200, r#"{"enabled":false}"#));
    assert!(settings.is_disabled().await.unwrap());
    assert_eq!(put("enabled=false").await, text(200, r#"{"enabled":false}"#));
    // Java takes anything but true for false.
    assert_eq!(put("enabled=yes").await.0, 400);
    assert_eq!(put("enable=true").await, text(500, "Param 'enabled' not found in {enable=true}"));
    assert!(settings.is_disabled().await.unwrap());

    let trigger = async || repair(&running, "PUT", "trigger_audit", "").await;
    let refused = "Exception when do operation.Autorecovery is disabled. So giving up!";
    assert_eq!(trigger().await, text(404, refused));
    assert_eq!(put("enabled=true").await, text(200, r#"{"enabled":true}"#));
    assert!(!settings.is_disabled().await.unwrap());
    let refused =
        "Exception when do operation.No auditor elected, though Autorecovery is enabled. So giving up.";
    assert_eq!(trigger().await, text(404, refused));
    assert_eq!(repair(&running, "GET", "who_is_auditor", "").await, text(404, "No auditor elected"));
    running.layout.auditor_votes().vote(&bookie("10.0.0.7:3181")).await.unwrap();
    let auditor = "Auditor: 10.0.0.7:3181";
    assert_eq!(repair(&running, "GET", "who_is_auditor", "").await, text(200, auditor));

    let delay = "lost_bookie_recovery_delay";
    let get = async || repair(&running, "GET", delay, "").await;
    assert_eq!(get().await.0, 404);
    assert_eq!(trigger().await.0, 404, "there is nothing to write again");
    let put = async |body: &str| repair(&running, "PUT", delay, body).await;
    let set = "Success set lostBookieRecoveryDelay to 90";
    assert_eq!(put(r#"{"delay_seconds": 90}"#).await, text(200, set));
    assert_eq!(get().await, text(200, "lostBookieRecoveryDelay value: 90"));
    assert_eq!(settings.delay().await.unwrap(), Some(Duration::from_secs(90)));
    assert_eq!(put("").await, text(404, "Null request body for lostBookieRecoveryDelay."));
    assert_eq!(put("{}").await, text(404, "Request body not contains lostBookieRecoveryDelay."));
    for wrong in
        ["90", "{\"delay_seconds\": -1}", "{\"delay_seconds\": 1.5}", "{\"delay_seconds\": 2147483648}", "x"]
    {
        let (status, why) = put(wrong).await;
        assert!(matches!(status, 400 | 404), "{wrong}: {status} {why}");
    }
    // The auditor sees that the node is another version.
    let before = settings.watch_delay().await.unwrap().0.unwrap();
    assert_eq!(trigger().await, text(200, "Success trigger audit."));
    let after = settings.watch_delay().await.unwrap().0.unwrap();
    assert!(
        after.delay == before.delay && after.version.is_later_than(before.version),
        "{before:?} {after:?}"
    );
    running.stop().await;
}

/// Whoever may only look keeps nobody from a change, and a store that is silent keeps metrics from nobody.
#[tokio::test]
async fn questions_that_the_store_does_not_answer_hold_up_neither_changes_nor_metrics() {
    let (running, _dir) = started().await;
    // The delay is read, what `disable` writes is not.
    running.store.hang();
    let looks = async {
        let look = || repair(&running, "GET", "lost_bookie_recovery_delay", "");
        tokio::join!(look(), look(), look())
    };
    let others = async {
        for _ in 0..20 {
            assert_eq!(said(&running, "GET", "/metrics", "").await.0, 200);
            let disabled = repair(&running, "PUT", "status?enabled=false", "").await;
            assert_eq!(disabled, text(200, r#"{"enabled":false}"#));
        }
    };
    tokio::select! {
        biased;
        looks = looks => panic!("answered before the others: {looks:?}"),
        () = others => {}
    }
    running.stop().await;
}

#[tokio::test]
async fn other_methods_are_not_found_as_in_java() {
    let (running, _dir) = started().await;
    let (get, put) = ("Not found method. Should be GET method", "Not found method. Should be PUT method");
    for (method, path, why) in [
        ("DELETE", "autorecovery/status", "Not found method. Should be GET or PUT method"),
        ("PUT", "autorecovery/who_is_auditor", get),
        ("PUT", "autorecovery/list_under_replicated_ledger", get),
        ("GET", "autorecovery/trigger_audit", put),
        ("DELETE", "autorecovery/lost_bookie_recovery_delay", put),
        ("PUT", "bookie/list_bookies", get),
        ("PUT", "bookie/cluster_info", "Only GET is supported."),
        ("PUT", "bookie/info", "Only GET is supported."),
    ] {
        assert_eq!(said(&running, method, &format!("/api/v1/{path}"), "").await, text(404, why), "{path}");
    }
    for (method, path) in [("PUT", "bookie"), ("PUT", "decommission"), ("GET", "report")] {
        let (status, why) = repair(&running, method, path, "{}").await;
        assert!(status == 404 && why.contains("autoRecoveryDaemonEnabled"), "{path}: {status} {why}");
    }
    running.stop().await;
}

#[tokio::test]
async fn marked_ledgers_are_listed_as_java_does() {
    let (running, _dir) = started().await;
    let list = async |query: &str| {
        repair(&running, "GET", &format!("list_under_replicated_ledger{query}"), "").await
    };
    assert_eq!(list("").await, text(404, "No under replicated ledgers found"));
    let marks = running.layout.under_replication();
    for (ledger, bookies) in [(5, &["a:1"][..]), (70_000, &["a:1", "b:1"]), (7, &["b:1"])] {
        let bookies: Vec<BookieId> = bookies.iter().map(|name| bookie(name)).collect();
        marks.mark(id(ledger), &bookies).await.unwrap();
    }
    assert_eq!(list("").await, text(200, "[5,7,70000]"));
    assert_eq!(list("?missingreplica=b:1").await, text(200, "[7,70000]"));
    assert_eq!(list("?excludingmissingreplica=b:1").await, text(200, "[5]"));
    assert_eq!(list("?missingreplica=a:1&excludingmissingreplica=b:1").await, text(200, "[5]"));
    assert_eq!(list("?missingreplica=c:1").await, text(404, "No under replicated ledgers found"));
    let (status, body) = list("?printmissingreplica=true").await;
    let expected = json!({ "5": ["a:1"], "7": ["b:1"], "70000": ["a:1", "b:1"] });
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (200, expected));
    assert_eq!(
        list("?missingreplica=a:1&printmissingreplica=false").await.1,
        r#"{"5":["a:1"],"70000":["a:1","b:1"]}"#
    );
    assert_eq!(list("?after=5").await, text(200, "[7,70000]"));
    assert_eq!(list("?after=x").await.0, 400);
    // One that cannot be read keeps nobody from seeing the others.
    running.store.set(&marks.path(id(7)), "{{".into(), None).await.unwrap();
    assert_eq!(
        list("?printmissingreplica=true&after=5").await,
        text(200, r#"{"7":[],"70000":["a:1","b:1"]}"#)
    );
    running.stop().await;
}

/// A list ends where it would become too long, and says how it goes on.
#[tokio::test]
async fn a_long_list_comes_in_parts() {
    let (running, _dir) = started().await;
    let marks = running.layout.under_replication();
    let names: Vec<BookieId> = (0..20).map(|n| bookie(&format!("{n:02}{}", "b".repeat(50)))).collect();
    let count = 600;
    for ledger in 0..count {
        marks.mark(id(ledger), &names).await.unwrap();
    }
    let (mut found, mut parts, mut after) = (Vec::new(), 0, String::new());
    loop {
        let path = format!("{AUTORECOVERY}/list_under_replicated_ledger?printmissingreplica=true{after}");
        let answer = whole_answer(&running, &path).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let ledgers: Value = serde_json::from_str(body).unwrap();
        assert!(body.len() < 300 << 10, "{}", body.len());
        found.extend(ledgers.as_object().unwrap().keys().map(|id| id.parse::<i64>().unwrap()));
        parts += 1;
        let Some(more) = head.lines().find_map(|line| line.strip_prefix("bindery-more: ")) else { break };
        after = format!("&{more}");
    }
    found.sort_unstable();
    assert_eq!(found, (0..count).collect::<Vec<_>>());
    assert!(parts > 1, "{parts}");
    running.stop().await;
}

async fn whole_answer(running: &Running, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut socket = tokio::net::TcpStream::connect(running.admin).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_cluster_is_counted_and_bookies_are_listed() {
    let (running, _dir) = started().await;
    let info = running.json("/api/v1/bookie/cluster_info").await;
    let whole = json!({
        "auditorElected": false, "auditorId": "", "clusterUnderReplicated": false, "ledgerReplicationEnabled": true,
        "totalBookiesCount": 1, "writableBookiesCount": 1, "readonlyBookiesCount": 0, "unavailableBookiesCount": 0,
    });
    assert_eq!(info, whole);
    for (path, mode) in [
        ("/ledgers/available/readonly/ro:1", CreateMode::Ephemeral),
        ("/ledgers/cookies/ro:1", CreateMode::Persistent),
        ("/ledgers/cookies/gone:1", CreateMode::Persistent),
    ] {
        running.store.create(path, Default::default(), mode).await.unwrap();
    }
    running.layout.under_replication().mark(id(3), &[bookie("gone:1")]).await.unwrap();
    running.layout.auditor_votes().vote(&bookie("bookie-0")).await.unwrap();
    running.layout.repair_settings().disable().await.unwrap();
    let info = running.json("/api/v1/bookie/cluster_info").await;
    let lacking = json!({
        "auditorElected": true, "auditorId": "bookie-0", "clusterUnderReplicated": true, "ledgerReplicationEnabled": false,
        "totalBookiesCount": 3, "writableBookiesCount": 1, "readonlyBookiesCount": 1, "unavailableBookiesCount": 1,
    });
    assert_eq!(info, lacking);

    let list = async |query: &str| running.json(&format!("/api/v1/bookie/list_bookies{query}")).await;
    assert_eq!(list("").await, json!({ "bookie-0": null }));
    assert_eq!(list("?type=ro").await, json!({ "ro:1": null }));
    assert_eq!(list("?type=ro&print_hostnames=true").await, json!({ "ro:1": "ro" }));
    assert_eq!(list("?type=rw&print_hostnames=true").await, json!({ "bookie-0": "127.0.0.1" }));
    let space = running.json("/api/v1/bookie/info").await;
    let bytes = |name: &str| space[name].as_u64().unwrap();
    assert!(0 < bytes("freeSpace") && bytes("freeSpace") <= bytes("totalSpace"), "{space}");
    running.stop().await;
}

/// A question that the store does not answer ends, and the next one has its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_to_a_silent_metadata_store_ends_and_others_have_their_turn() {
    let (running, _dir) = started().await;
    running.layout.auditor_votes().vote(&bookie("b:1")).await.unwrap();
    // No node is read from now on; that one is there is still said.
    running.store.hang();
    let (first, second) =
        tokio::join!(repair(&running, "GET", "who_is_auditor", ""), repair(&running, "GET", "status", ""));
    assert!(first.0 == 503 && first.1.contains("does not answer within"), "{first:?}");
    assert_eq!(second, text(200, r#"{"enabled":true}"#));
    running.stop().await;
}

/// Says what it was asked.
struct Echo(&'static str);

impl AdminExtension for Echo {
    fn fault(&self) -> Option<ExtensionFault> {
        Some(ExtensionFault { alarm: format!("{} ails", self.0), is_of_store: false })
    }

    fn answer<'a>(&'a self, request: ExtensionRequest<'a>) -> Extending<'a, ExtensionAnswer> {
        let body = String::from_utf8_lossy(request.body);
        let text = format!("{} {} {} {} {body}", self.0, request.method, request.name, request.query);
        Box::pin(async { ExtensionAnswer::Text(text) })
    }

    fn expose<'a>(&'a self, out: &'a mut Exposition) -> Extending<'a, ()> {
        const HERE: Table<()> = Table::by("part", &[Row::gauge("echo_here", "For the test.", |()| 1)]);
        HERE.expose_each([(self.0, &())], out);
        Box::pin(async {})
    }
}

/// Tierer and repair of one process have their own paths, and both have metrics and alarms.
#[tokio::test]
async fn parts_of_the_process_have_paths_of_their_own() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let layout = crate::common::whole::open(&cluster).await;
    let components = Components {
        disk: Arc::new(bindery_io::RealDisk::new()),
        clock: Arc::new(bindery_io::SystemClock::new()),
        random: Arc::new(bindery_io::SystemRandom),
        metadata: Metadata::Layout(layout.clone()),
    };
    let started = Bookie::start(BookieConfig { ..config(dir.path()) }, components).await.unwrap();
    started.extend_admin(Part::Tier, Arc::new(Echo("tier")));
    started.extend_admin(Part::Repair, Arc::new(Echo("repair")));
    let (address, admin) = (started.address(), started.admin_address().unwrap());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { started.run(&stop).await }
    });
    let running = Running { address, admin, stop, task, store: Arc::new(cluster.open()), layout };
    assert_eq!(said(&running, "PUT", "/api/v1/tier/now?id=3", "").await, text(200, "tier PUT now id=3 "));
    assert_eq!(repair(&running, "PUT", "bookie", "{1}").await, text(200, "repair PUT bookie  {1}"));
    assert_eq!(
        repair(&running, "GET", "status", "").await,
        text(200, r#"{"enabled":true}"#),
        "it is the bookie's"
    );
    assert_eq!(
        (
            running.metric("echo_here{part=\"tier\"}").await,
            running.metric("echo_here{part=\"repair\"}").await
        ),
        (1, 1)
    );
    let alarms = running.json("/api/v1/bookie/state").await["alarms"].clone();
    assert_eq!(alarms, json!(["tier ails", "repair ails"]));
    running.stop().await;
}
