//! The rows of the admin port's table: see [`endpoints`](super::endpoints).

use super::endpoints::{Answer, Call, Endpoint, Operation, Parameter, Turn};
use super::extension::{Part, of_part};
use super::{bookie, cluster, console, ledgers, openapi};
use axum::response::Response;
use std::future::Future;
use std::pin::Pin;

const fn required(name: &'static str, example: &'static str, says: &'static str) -> Parameter {
    Parameter { name, says, example, is_required: true }
}

const fn optional(name: &'static str, example: &'static str, says: &'static str) -> Parameter {
    Parameter { name, says, example, is_required: false }
}

const LEDGER_ID: Parameter = required("ledger_id", "7", "the ledger");
/// What Java says to other methods.
const GET_ONLY: (u16, &str) = (404, "Not found method. Should be GET method");
const PUT_ONLY: (u16, &str) = (404, "Not found method. Should be PUT method");
const GET_OR_PUT: (u16, &str) = (404, "Not found method. Should be GET or PUT method");
const NO_LEDGER: (u16, &str) = (404, "there is no such ledger");
const WRONG: (u16, &str) = (400, "a parameter or the body makes no sense; the text says what to give");
const STARTING: (u16, &str) = (503, "the bookie is starting");
const STORE: (u16, &str) =
    (503, "the metadata store does not answer, or others are being answered: try again");
const NO_TIER: (u16, &str) = (404, "the bookie has no object storage");
const NO_TIERER: (u16, &str) = (404, "no tierer runs in this process");
const NO_REPAIR: (u16, &str) = (404, "repair is off on this bookie");
const BEGINS: (u16, &str) = (503, "it is starting, or cannot start; the text says why");

/// One ledger, in Java's names. Its password is never shown.
const METADATA: &str = r#"{"<ledger>": {"ledgerId": 7, "metadataFormatVersion": 3, "ensembleSize": 3, "writeQuorumSize": 3,
    "ackQuorumSize": 2, "state": "CLOSED", "closed": true, "lastEntryId": 41, "length": 4200, "ctime": 1700000000000,
    "digestType": "CRC32C", "password": null, "customMetadata": {"<name>": "YmFzZTY0"},
    "allEnsembles": {"<first entry>": [{"id": "10.0.0.1:3181"}]}, "ctoken": 1}}"#;

type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

fn boxed(answering: impl Future<Output = Response> + Send + 'static) -> Answering {
    Box::pin(answering)
}

/// The handler of a row that answers 501 alone.
fn nothing(_: Call) -> Answering {
    unreachable!("dispatch answers for it")
}

/// All of them. Paths that begin with the same part stand together.
pub(crate) static TABLE: &[Endpoint] = &[
    Endpoint {
        path: "/heartbeat",
        is_javas: true,
        operations: &[Operation::get("the process lives", Answer::Text("OK"))],
        otherwise: (200, "OK\n"),
        turn: Turn::Health,
        handler: |_| boxed(bookie::heartbeat()),
    },
    Endpoint {
        path: "/metrics",
        is_javas: true,
        operations: &[Operation::get("Prometheus text, format 0.0.4", Answer::Text("# TYPE bookie_SERVER_STATUS gauge"))],
        otherwise: (403, "this method is forbidden\n"),
        turn: Turn::Answer,
        handler: |call| boxed(super::metrics(call.state)),
    },
    Endpoint {
        path: "/api/v1/openapi.json",
        is_javas: false,
        operations: &[Operation::get("this description, as OpenAPI 3.0", Answer::Json(r#"{"openapi": "3.0.3", "info": {}, "paths": {}, "components": {}}"#))],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |_| boxed(openapi::serve()),
    },
    Endpoint {
        path: "/api/v1/console/bookies",
        is_javas: false,
        operations: &[Operation::get(
            "the bookies of the cluster, those that are away too, each with the address of its console or null; and how many are left out",
            Answer::Json(r#"{"bookies": [{"id": "10.0.0.1:3181", "state": "writable", "console": null}], "leftOut": 0}"#),
        )
        .refusing(&[STORE])],
        otherwise: GET_ONLY,
        turn: Turn::Elsewhere,
        handler: |call| boxed(console::bookies(call)),
    },
    Endpoint {
        path: "/api/v1/config/server_config",
        is_javas: true,
        operations: &[
            Operation::get(
                "the settings in force, each as text; secrets as three dots",
                Answer::Json(r#"{"<key>": "value"}"#),
            )
            .refusing(&[STARTING]),
            Operation::put(
                "Java changes settings in memory, most of them without effect",
                Answer::Instead(
                    "settings are not changed while the bookie runs: write them into bk_server.conf and restart it (bindery config check \
                     tells what is wrong first). What may change meanwhile has an endpoint: state/readonly, gc, and those below autorecovery",
                ),
            ),
        ],
        otherwise: GET_OR_PUT,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::settings(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/is_ready",
        is_javas: true,
        operations: &[Operation::get(
            "readiness: it serves, it is registered, and data passes; a bookie that is read-only and serves reads is ready",
            Answer::Text("OK"),
        )
        .refusing(&[(503, "it does not; the text says why")])],
        otherwise: (404, "Only support GET method check if bookie is ready."),
        turn: Turn::Health,
        handler: |call| boxed(bookie::is_ready(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/is_alive",
        is_javas: false,
        operations: &[Operation::get(
            "liveness: no disk hangs, or it is still starting",
            Answer::Text("OK"),
        )
        .refusing(&[(503, "a disk hangs, and a restart may help; the text says which")])],
        otherwise: GET_ONLY,
        turn: Turn::Health,
        handler: |call| boxed(bookie::is_alive(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/state",
        is_javas: true,
        operations: &[Operation::get(
            "how it stands: Java's four, and what an operator must know besides",
            Answer::Json(
                r#"{"running": true, "readOnly": false, "shuttingDown": false, "availableForHighPriorityWrites": true,
                "recoveryReserveBytes": null, "readOnlyBecause": {"<cause>": "why"}, "alarms": ["why"], "directoriesFailed": ["why"],
                "volumes": [{"dir": "/data", "totalBytes": null, "freeBytes": null, "reserveBytes": 1, "reserveBytesWanted": 1, "full": false}],
                "journalSync": null, "failed": null}"#,
            ),
        )],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::state(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/state/readonly",
        is_javas: true,
        operations: &[
            Operation::get("whether it takes no new entries, for whatever reason", Answer::Json(r#"{"readOnly": false}"#))
                .refusing(&[STARTING]),
            Operation::put(
                "makes it read-only until it is told otherwise or restarted, and says how it stands then",
                Answer::Json(r#"{"readOnly": true}"#),
            )
            .taking(r#"{"readOnly": true}"#)
            .refusing(&[(400, "no such body; or it has to stay as it is, and the text says why"), STARTING]),
        ],
        otherwise: (404, "Unsupported method. Should be GET or PUT method"),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::read_only(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/info",
        is_javas: true,
        operations: &[Operation::get(
            "bytes of the file systems that hold ledgers",
            Answer::Json(r#"{"freeSpace": 1, "totalSpace": 2}"#),
        )
        .refusing(&[(503, "the bookie is starting, or a file system does not answer")])],
        otherwise: (404, "Only GET is supported."),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::space(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/sanity",
        is_javas: true,
        operations: &[Operation::get(
            "whether data passes: writes are synced and read back every two seconds",
            Answer::Json(r#"{"passed": true, "readOnly": false}"#),
        )
        .refusing(&[STARTING])],
        otherwise: (404, "Only support GET method to retrieve bookie sanity state."),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::sanity(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/list_bookies",
        is_javas: true,
        operations: &[Operation::get(
            "the bookies that are registered, each with its host or null",
            Answer::Json(r#"{"<bookie>": null}"#),
        )
        .with(&[
            optional("type", "ro", "`ro`: those that take no writes; else those that do"),
            optional("print_hostnames", "true", "with their hosts"),
        ])
        .refusing(&[STORE])],
        otherwise: GET_ONLY,
        turn: Turn::Elsewhere,
        handler: |call| boxed(cluster::list_bookies(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/list_bookie_info",
        is_javas: true,
        operations: &[Operation::get(
            "Java asks every bookie for its space",
            Answer::Instead(
                "one bookie does not ask all others here: bindery cluster status shows the space of each, and \
                 GET /api/v1/bookie/info of each bookie, or its metrics bindery_volume_free_bytes and bindery_volume_total_bytes, its own",
            ),
        )],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: nothing,
    },
    Endpoint {
        path: "/api/v1/bookie/cluster_info",
        is_javas: true,
        operations: &[Operation::get(
            "bookies and repair of the cluster; bookies are counted by their cookies",
            Answer::Json(
                r#"{"auditorElected": true, "auditorId": "10.0.0.1:3181", "clusterUnderReplicated": false, "ledgerReplicationEnabled": true,
                "totalBookiesCount": 3, "writableBookiesCount": 3, "readonlyBookiesCount": 0, "unavailableBookiesCount": 0}"#,
            ),
        )
        .refusing(&[STORE])],
        otherwise: (404, "Only GET is supported."),
        turn: Turn::Elsewhere,
        handler: |call| boxed(cluster::cluster_info(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/last_log_mark",
        is_javas: true,
        operations: &[Operation::get(
            "up to which file and group each journal is in entry logs",
            Answer::Json(r#"{"<LastLogMark: Journal Id - 1(1.txn)>": "Pos - 2"}"#),
        )
        .refusing(&[STARTING])],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::last_log_mark(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/list_disk_file",
        is_javas: true,
        operations: &[Operation::get(
            "names of files, with a tab behind each",
            Answer::Json(r#"{"<kind of files>": "name\t"}"#),
        )
        .with(&[optional("file_type", "journal", "`journal`, `entrylog` or `index`; all without it")])
        .refusing(&[(503, "the bookie is starting, or a disk does not answer")])],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::list_disk_file(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/expand_storage",
        is_javas: true,
        operations: &[Operation::put(
            "Java adds empty directories to the cookie, and needs a restart to use them",
            Answer::Instead(
                "directories are added at the start: write the new ones behind the others in ledgerDirectories and restart the bookie, which \
                 adds them to its cookie and uses them",
            ),
        )],
        otherwise: PUT_ONLY,
        turn: Turn::Answer,
        handler: nothing,
    },
    Endpoint {
        path: "/api/v1/bookie/gc",
        is_javas: true,
        operations: &[
            Operation::get(
                "whether a round of garbage collection that was asked for is still to be done",
                Answer::Json(r#"{"is_in_force_gc": "false"}"#),
            )
            .refusing(&[STARTING]),
            Operation::put(
                "asks for a round of garbage collection now; `waiveChecks` is taken from this machine only",
                Answer::Text("Triggered GC on BookieServer"),
            )
            .taking(r#"{"forceMajor": true, "forceMinor": true, "forceSurplus": false, "waiveChecks": false}"#)
            .refusing(&[WRONG, STARTING]),
        ],
        otherwise: (405, "Not found method. Should be PUT to trigger GC, Or GET to get Force GC state.\n"),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::gc(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/gc_details",
        is_javas: true,
        operations: &[Operation::get(
            "compactions, and under `bindery` what the last round did and why it stopped",
            Answer::Json(
                r#"[{"forceCompacting": false, "majorCompacting": false, "minorCompacting": false, "majorCompactionCounter": 0,
                "minorCompactionCounter": 0, "gcCounter": 0, "bindery": {}}]"#,
            ),
        )
        .refusing(&[STARTING])],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::gc_details(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/gc/suspend_compaction",
        is_javas: true,
        operations: &[
            Operation::get(
                "whether compactions are suspended",
                Answer::Json(r#"{"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}"#),
            )
            .refusing(&[STARTING]),
            Operation::put(
                "begins no more compactions of a kind, until they are resumed, the bookie restarts, or space runs short",
                Answer::Json(r#""Suspend majorGC on BookieServer: 10.0.0.1:3181""#),
            )
            .taking(r#"{"suspendMajor": true, "suspendMinor": true}"#)
            .refusing(&[WRONG, STARTING]),
        ],
        otherwise: (404, "Not found method. Should be PUT to suspend major or minor compaction, Or GET to get compaction state."),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::suspend_compaction(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/gc/resume_compaction",
        is_javas: true,
        operations: &[Operation::put(
            "lets compactions of a kind begin again",
            Answer::Json(r#""Resume majorGC on BookieServer: 10.0.0.1:3181""#),
        )
        .taking(r#"{"resumeMajor": true, "resumeMinor": true}"#)
        .refusing(&[WRONG, STARTING])],
        otherwise: (404, "Not found method. Should be PUT to resume major or minor compaction, Or GET to get compaction state."),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::resume_compaction(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/entry_location_compact",
        is_javas: true,
        operations: &[
            Operation::get("Java says which of its RocksDB indexes are being compacted", Answer::Instead(NO_ROCKSDB)),
            Operation::put("Java compacts its RocksDB indexes", Answer::Instead(NO_ROCKSDB)),
        ],
        otherwise: (405, "Not found method. Should be PUT to trigger entry location compact, Or GET to get entry location compact state."),
        turn: Turn::Answer,
        handler: nothing,
    },
    Endpoint {
        path: "/api/v1/bookie/scrub",
        is_javas: false,
        operations: &[
            Operation::get(
                "how the check of all entry logs goes, and what it found",
                Answer::Json(
                    r#"{"running": false, "bytesDone": 0, "bytesInPass": 0, "passes": 0, "findingsEver": 0, "damagedLogs": 0,
                    "damagedLogsWithMore": 0, "damagedLedgers": 0, "damagedRanges": 0, "damagedRangesMadeGood": 0, "damagedLogsRenewed": 0,
                    "damaged": [], "lastPass": null, "findings": []}"#,
                ),
            )
            .refusing(&[STARTING]),
            Operation::put(
                "asks for a pass now; with `wait` the answer is its result, when it has ended",
                Answer::Text("Triggered a scrub of all entry logs"),
            )
            .taking(r#"{"wait": false, "waitSeconds": 60}"#)
            .refusing(&[WRONG, (503, "the bookie is starting, or as many wait as may"), (504, "it goes on")]),
        ],
        otherwise: (405, "Not found method. Should be PUT to trigger a scrub, Or GET to get its state.\n"),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::scrub(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/limbo",
        is_javas: false,
        operations: &[Operation::get(
            "ledgers of which entries may be missing here",
            Answer::Json(
                r#"{"count": 0, "ledgers": [{"ledgerId": 7, "why": "why", "firstMissing": null, "missing": 1}], "stoppedBecause": null}"#,
            ),
        )
        .refusing(&[STARTING])],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::limbo(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/tier",
        is_javas: false,
        operations: &[
            Operation::get(
                "reads from object storage, trimming, and ledgers whose copy there differs",
                Answer::Json(r#"{"url": "s3://bucket", "reachable": true, "reads": {}, "requests": {}, "trim": {}}"#),
            )
            .refusing(&[NO_TIER, STARTING]),
            Operation::put("asks for a round of trimming now", Answer::Text("Triggered a round of trimming"))
                .refusing(&[NO_TIER, STARTING]),
        ],
        otherwise: (405, "Not found method. Should be PUT to trigger trimming, Or GET to get its state.\n"),
        turn: Turn::Answer,
        handler: |call| boxed(bookie::trimming(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/tier/ledger",
        is_javas: false,
        operations: &[Operation::get(
            "how far a ledger is in object storage, and what was let go",
            Answer::Json(
                r#"{"ledgerId": 7, "lastReconciled": null, "trimmedBelow": null, "differs": null, "differsSinceMs": null}"#,
            ),
        )
        .with(&[required("id", "7", "the ledger")])
        .refusing(&[WRONG, NO_TIER, STARTING])],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::tiered_ledger(call)),
    },
    Endpoint {
        path: "/api/v1/bookie/flow",
        is_javas: false,
        operations: &[Operation::get(
            "pools, adds on their way in, and connections with what each holds",
            Answer::Json(
                r#"{"nowMs": 1, "monotonicMs": 1, "readOnlyBecause": ["why"],
                "pools": [{"name": "write", "capacityBytes": 2, "usedBytes": 1, "waiting": 0, "waits": 0, "waitedMs": 0}],
                "admission": {"<number>": 0}, "totals": {"<number>": 0},
                "tenants": [], "sort": "held", "connections": [], "rest": {"<number>": 0}}"#,
            ),
        )
        .with(&[
            optional("sort", "held", "the order of the connections"),
            optional("limit", "50", "how many of them are listed, at most 1000"),
        ])
        .refusing(&[WRONG, STARTING])],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(bookie::flow(call)),
    },
    Endpoint {
        path: "/api/v1/ledger/list",
        is_javas: true,
        operations: &[Operation::get(
            "ids of the cluster's ledgers, ascending, each with its metadata or null; `bindery-more` says how a list goes on that is not whole",
            Answer::Json(r#"{"<ledger>": null}"#),
        )
        .with(&[
            optional("print_metadata", "true", "with the metadata of each, as text, but for its password"),
            optional("decode_meta", "true", "as JSON"),
            optional("page", "1", "with metadata: a hundred ledgers, from 1 on"),
            optional("after", "7", "only ids above this one"),
            optional("limit", "100", "no more ledgers"),
        ])
        .refusing(&[WRONG, STORE])],
        otherwise: GET_ONLY,
        turn: Turn::Elsewhere,
        handler: |call| boxed(ledgers::list(call)),
    },
    Endpoint {
        path: "/api/v1/ledger/metadata",
        is_javas: true,
        operations: &[Operation::get("the metadata of a ledger, but for its password", Answer::Json(METADATA))
            .with(&[LEDGER_ID])
            .refusing(&[WRONG, NO_LEDGER, (500, "its metadata cannot be read"), STORE])],
        otherwise: GET_ONLY,
        turn: Turn::Elsewhere,
        handler: |call| boxed(ledgers::metadata(call)),
    },
    Endpoint {
        path: "/api/v1/ledger/read",
        is_javas: true,
        operations: &[Operation::get(
            "entries up to the last confirmed one, a thousand or 256 KiB of text at most: `bindery-more` says how they go on, and \
             `bindery-cut` names one of which the beginning is shown. The ledger is neither fenced nor closed",
            Answer::Json(r#"{"<entry>": null}"#),
        )
        .with(&[
            LEDGER_ID,
            optional("start_entry_id", "0", "the first one"),
            optional("end_entry_id", "9", "the last one"),
            optional("page", "1", "of a thousand entries, from 1 on"),
            optional("format", "json", "`text` (UTF-8), `hex`, or `json` (length, and text or base64); without it ASCII, as Java does it"),
        ])
        .refusing(&[WRONG, (404, "there is no such ledger, or no such entry"), (500, "the range and the page have nothing in common"), (503, "bookies do not answer, or there is no memory for entries: try again")])
        .private()],
        otherwise: (404, "Not found method. Should be GET method, with ledger_id provided"),
        turn: Turn::Elsewhere,
        handler: |call| boxed(ledgers::read(call)),
    },
    Endpoint {
        path: "/api/v1/ledger/delete",
        is_javas: true,
        operations: &[Operation::delete(
            "deletes a ledger, for good: its bookies drop the entries by themselves",
            Answer::Json(r#""Deleted ledger: 7""#),
        )
        .with(&[LEDGER_ID])
        .refusing(&[WRONG, NO_LEDGER, STORE])],
        otherwise: (404, "Not found method. Should be DELETE method"),
        turn: Turn::Elsewhere,
        handler: |call| boxed(ledgers::delete(call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/status",
        is_javas: true,
        operations: &[
            Operation::get("whether repair is on in the cluster", Answer::Json(r#"{"enabled": true}"#)).refusing(&[STORE]),
            Operation::put("switches it on or off", Answer::Json(r#"{"enabled": true}"#))
                .with(&[required("enabled", "true", "`true` or `false`")])
                .refusing(&[WRONG, (500, "`enabled` is missing"), STORE]),
        ],
        otherwise: GET_OR_PUT,
        turn: Turn::Elsewhere,
        handler: |call| boxed(cluster::status(call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/bookie",
        is_javas: true,
        operations: &[Operation::put(
            "repairs what lost bookies had; only bookies that do not run",
            Answer::Text("Success send recovery request command."),
        )
        .taking(r#"{"bookie_src": ["10.0.0.3:3181"], "delete_cookie": false}"#)
        .refusing(&[WRONG, NO_REPAIR, (409, "such a bookie runs, or another order is being carried out"), BEGINS])],
        otherwise: PUT_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(of_part(Part::Repair, call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/decommission",
        is_javas: true,
        operations: &[Operation::put(
            "repairs what a bookie had that is stopped for good, and deletes its cookie",
            Answer::Text("Success send decommission Bookie command 10.0.0.3:3181"),
        )
        .taking(r#"{"bookie_src": "10.0.0.3:3181"}"#)
        .refusing(&[WRONG, NO_REPAIR, (409, "the bookie runs, or another order is being carried out"), BEGINS])],
        otherwise: PUT_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(of_part(Part::Repair, call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/report",
        is_javas: false,
        operations: &[Operation::get("what auditor and worker of this bookie do, and the last order", Answer::Json("{}"))
            .refusing(&[NO_REPAIR, BEGINS])],
        otherwise: GET_ONLY,
        turn: Turn::Answer,
        handler: |call| boxed(of_part(Part::Repair, call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/list_under_replicated_ledger",
        is_javas: true,
        operations: &[Operation::get(
            "the ledgers that wait for repair, as a list, or as an object with the bookies that lack them; `bindery-more` says how a list goes \
             on that is not whole",
            Answer::Json("null"),
        )
        .with(&[
            optional("missingreplica", "10.0.0.3:3181", "only those that this bookie lacks"),
            optional("excludingmissingreplica", "10.0.0.4:3181", "only those that this bookie does not lack"),
            optional("printmissingreplica", "true", "with the bookies that lack them"),
            optional("after", "7", "only ids above this one"),
        ])
        .refusing(&[WRONG, (404, "there is none"), STORE])],
        otherwise: GET_ONLY,
        turn: Turn::Elsewhere,
        handler: |call| boxed(cluster::list_under_replicated(call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/who_is_auditor",
        is_javas: true,
        operations: &[Operation::get("the bookie that is the auditor", Answer::Text("Auditor: 10.0.0.1:3181"))
            .refusing(&[(404, "there is none"), STORE])],
        otherwise: GET_ONLY,
        turn: Turn::Elsewhere,
        handler: |call| boxed(cluster::who_is_auditor(call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/trigger_audit",
        is_javas: true,
        operations: &[Operation::put("asks the auditor for a look at all ledgers now", Answer::Text("Success trigger audit."))
            .refusing(&[(404, "repair is off, there is no auditor, or no delay is set"), STORE])],
        otherwise: PUT_ONLY,
        turn: Turn::Elsewhere,
        handler: |call| boxed(cluster::trigger_audit(call)),
    },
    Endpoint {
        path: "/api/v1/autorecovery/lost_bookie_recovery_delay",
        is_javas: true,
        operations: &[
            Operation::get(
                "how long a bookie may be away before its ledgers are repaired",
                Answer::Text("lostBookieRecoveryDelay value: 900"),
            )
            .refusing(&[(404, "it is not set"), STORE]),
            Operation::put("sets it, for the whole cluster", Answer::Text("Success set lostBookieRecoveryDelay to 900"))
                .taking(r#"{"delay_seconds": 900}"#)
                .refusing(&[WRONG, (404, "there is no body, or no such field"), STORE]),
        ],
        otherwise: (404, "Not found method. Should be PUT method"),
        turn: Turn::Elsewhere,
        handler: |call| boxed(cluster::delay(call)),
    },
    Endpoint {
        path: "/api/v1/tier/status",
        is_javas: false,
        operations: &[Operation::get("what the tierer of this process does", Answer::Json("{}")).refusing(&[NO_TIERER, BEGINS])],
        otherwise: (405, "GET status, GET ledger?id=N, PUT now?id=N\n"),
        turn: Turn::Answer,
        handler: |call| boxed(of_part(Part::Tier, call)),
    },
    Endpoint {
        path: "/api/v1/tier/ledger",
        is_javas: false,
        operations: &[Operation::get("how far a ledger is", Answer::Json("{}"))
            .with(&[required("id", "7", "the ledger")])
            .refusing(&[WRONG, NO_TIERER, BEGINS])],
        otherwise: (405, "GET status, GET ledger?id=N, PUT now?id=N\n"),
        turn: Turn::Answer,
        handler: |call| boxed(of_part(Part::Tier, call)),
    },
    Endpoint {
        path: "/api/v1/tier/now",
        is_javas: false,
        operations: &[Operation::put("moves a ledger without waiting for its age", Answer::Json("{}"))
            .with(&[required("id", "7", "the ledger")])
            .refusing(&[WRONG, NO_TIERER, BEGINS])],
        otherwise: (405, "GET status, GET ledger?id=N, PUT now?id=N\n"),
        turn: Turn::Answer,
        handler: |call| boxed(of_part(Part::Tier, call)),
    },
];

const NO_ROCKSDB: &str = "there is no RocksDB here: the index of an entry log is written with it, and goes with it. PUT /api/v1/bookie/gc with \
                          {\"forceMajor\": true} compacts both";
