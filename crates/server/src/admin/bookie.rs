//! Endpoints of the bookie itself: health, state, space, garbage collection, scrub, tiering, flow.
//!
//! # Limits     scrubs waited for: [`SCRUB_WAITS_MAX`]; looks at disks: [`SPACE_WAIT_MAX`], [`FILES_WAIT_MAX`]

use super::endpoints::Call;
use super::json;
use crate::disks::Cause;
use crate::flow_view::{self, CONNECTIONS_DEFAULT, CONNECTIONS_MAX, Sort};
use crate::maintenance::garbage::GarbageRequest;
use crate::shared::Shared;
use axum::extract::Query;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bindery_engine::{CompactionKinds, Engine};
use bindery_io::Disk;
use bindery_types::LedgerId;
use serde::Deserialize;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long the disks may take to say which files there are.
const FILES_WAIT_MAX: Duration = Duration::from_secs(2);

fn starting() -> Response {
    unavailable("Bookie is not fully started yet\n")
}

fn unavailable(why: impl Into<String>) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, why.into()).into_response()
}

fn bad_request(why: impl std::fmt::Display) -> Response {
    (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response()
}

pub(super) async fn heartbeat() -> Response {
    "OK\n".into_response()
}

pub(super) async fn is_ready(Call { state, .. }: Call) -> Response {
    let is = |flag: &std::sync::atomic::AtomicBool| flag.load(Ordering::Acquire);
    if !is(&state.is_running) {
        return unavailable("Bookie is not fully started yet");
    }
    if !is(&state.is_registered) {
        return unavailable("Bookie is not registered in the metadata store");
    }
    let failed = state.shared.get().and_then(|shared| shared.engine.status().failed);
    match failed.or_else(|| state.health.why()) {
        Some(why) => unavailable(within(why, REASON_MAX)),
        None => "OK".into_response(),
    }
}

/// Only a disk that hangs: a restart mends no other fault, and would end what still serves those who are connected.
pub(super) async fn is_alive(Call { state, .. }: Call) -> Response {
    match state.health.hang() {
        Some(why) => unavailable(why),
        None => "OK".into_response(),
    }
}

/// The longest reason that a probe is told, in bytes: answers of health need no memory of the port's pool.
const REASON_MAX: usize = 400;

fn within(mut text: String, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// The settings in force, which the process gave.
pub(super) async fn settings(Call { state, .. }: Call) -> Response {
    match state.settings.get() {
        Some(settings) => {
            (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], settings.clone()).into_response()
        }
        None => starting(),
    }
}

pub(super) async fn sanity(Call { state, .. }: Call) -> Response {
    let (Some(shared), Some((_, standing))) = (state.shared.get(), state.disks.get()) else {
        return starting();
    };
    let status = shared.engine.status();
    let passed = state.health.is_seen() && status.failed.is_none() && state.health.why().is_none();
    json(
        &serde_json::json!({ "passed": passed, "readOnly": status.is_read_only || !standing.reasons().is_empty() }),
    )
}

/// What `PUT /api/v1/bookie/state/readonly` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ReadOnlyOrder {
    read_only: bool,
}

/// PUT takes back only what a PUT did: other reasons go with their causes.
pub(super) async fn read_only(Call { state, peer, method, body, .. }: Call) -> Response {
    let (Some((_, reasons)), Some(standing)) = (state.disks.get(), state.standing.get()) else {
        return starting();
    };
    if method == Method::PUT {
        let order: ReadOnlyOrder = match serde_json::from_slice(&body) {
            Ok(order) => order,
            Err(error) => return bad_request(format!("{error}: give {{\"readOnly\": true}} or false")),
        };
        match order.read_only {
            true if !standing.may_be_read_only => {
                return bad_request(
                    "Bookie is disabled ReadOnly mode, cannot transit to readOnly mode (readOnlyModeEnabled=false)",
                );
            }
            true => {
                reasons.set(Cause::Ordered, Some(format!("{} asked for it over the admin port", peer.ip())))
            }
            false => {
                reasons.set(Cause::Ordered, None);
                let others = reasons.reasons();
                if others.contains_key(&Cause::Configured) {
                    return bad_request("Bookie is in forceReadOnly mode, cannot transit to writable mode");
                }
                if !others.is_empty() {
                    let why: Vec<String> =
                        others.into_iter().map(|(cause, why)| format!("{}: {why}", cause.name())).collect();
                    return bad_request(format!("the bookie stays read-only, because of {}", why.join("; ")));
                }
            }
        }
    }
    json(&serde_json::json!({ "readOnly": !reasons.reasons().is_empty() }))
}

/// Java's name for a journal and a place in it; ours are the file, and the group behind which a restart replays.
pub(super) async fn last_log_mark(Call { state, .. }: Call) -> Response {
    let Some(shared) = state.shared.get() else { return starting() };
    let marks = shared.engine.covered_marks();
    let member = |(file, group): (u64, u64)| {
        (format!("LastLogMark: Journal Id - {file}({file:x}.txn)"), Value::from(format!("Pos - {group}")))
    };
    json(&Value::Object(marks.into_iter().map(member).collect()))
}

/// Names of files by kind, with a tab behind each, as in Java.
pub(super) async fn list_disk_file(Call { state, uri, .. }: Call) -> Response {
    let Some(standing) = state.standing.get() else { return starting() };
    #[derive(Deserialize)]
    struct Wanted {
        file_type: Option<String>,
    }
    let wanted = Query::<Wanted>::try_from_uri(&uri).ok().and_then(|Query(wanted)| wanted.file_type);
    let (disk, journals, ledgers) =
        (standing.disk.clone(), standing.dirs.journal_files(), standing.dirs.ledger_files());
    let listing = tokio::task::spawn_blocking(move || {
        let of = |kind: &str, dirs: &[PathBuf], is: fn(&str) -> bool| -> std::io::Result<(String, Value)> {
            let mut names = String::new();
            for file in
                dirs.iter().map(|dir| disk.list(dir)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten()
            {
                if !file.is_dir && is(&file.name) {
                    names.push_str(&file.name);
                    names.push('\t');
                }
            }
            Ok((format!("{kind} files"), names.into()))
        };
        let kinds = [
            ("journal", &journals, bindery_journal::survey::is_journal_file as fn(&str) -> bool),
            ("entrylog", &ledgers, bindery_storage::usage::is_entry_log),
            ("index", &ledgers, bindery_storage::usage::is_state_table),
        ];
        let is_one = wanted.as_deref().is_some_and(|wanted| kinds.iter().any(|(kind, ..)| *kind == wanted));
        let listed = kinds.into_iter().filter(|(kind, ..)| !is_one || wanted.as_deref() == Some(*kind));
        listed.map(|(kind, dirs, is)| of(kind, dirs, is)).collect::<Result<serde_json::Map<_, _>, _>>()
    });
    match tokio::time::timeout(FILES_WAIT_MAX, listing).await {
        Ok(Ok(Ok(files))) => json(&Value::Object(files)),
        Ok(Ok(Err(error))) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot list a directory: {error}\n")).into_response()
        }
        Ok(Err(_)) | Err(_) => unavailable("the disks do not say in time which files there are: try again\n"),
    }
}

/// Compactions that a request names.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CompactionOrder {
    #[serde(alias = "suspendMajor", alias = "resumeMajor")]
    major: bool,
    #[serde(alias = "suspendMinor", alias = "resumeMinor")]
    minor: bool,
}

pub(super) async fn suspend_compaction(call: Call) -> Response {
    let Some(shared) = call.state.shared.get() else { return starting() };
    if call.method == Method::GET {
        let suspended = shared.engine.suspended_compactions();
        return json(&serde_json::json!({
            "isMajorGcSuspended": suspended.major.to_string(),
            "isMinorGcSuspended": suspended.minor.to_string(),
        }));
    }
    change_compactions(&call, "Suspend", "suspendMajor or suspendMinor", |engine, kinds| {
        engine.suspend_compactions(kinds)
    })
}

pub(super) async fn resume_compaction(call: Call) -> Response {
    change_compactions(&call, "Resume", "resumeMajor or resumeMinor", |engine, kinds| {
        engine.resume_compactions(kinds)
    })
}

fn change_compactions(
    call: &Call,
    word: &str,
    names: &str,
    change: fn(&Engine, CompactionKinds),
) -> Response {
    let (Some(shared), Some(bookie)) = (call.state.shared.get(), call.state.bookie_id.get()) else {
        return starting();
    };
    if call.body.is_empty() {
        return (StatusCode::BAD_REQUEST, "Empty request body").into_response();
    }
    let order: CompactionOrder = match serde_json::from_slice(&call.body) {
        Ok(order) => order,
        Err(error) => return bad_request(error),
    };
    if !order.major && !order.minor {
        return (StatusCode::BAD_REQUEST, format!("No {names} params found")).into_response();
    }
    change(&shared.engine, CompactionKinds { major: order.major, minor: order.minor });
    let said = [(order.major, "major"), (order.minor, "minor")].into_iter().filter(|(is_named, _)| *is_named);
    let said: Vec<String> =
        said.map(|(_, kind)| format!("{word} {kind}GC on BookieServer: {}", bookie)).collect();
    json(&Value::from(said.join(", ")))
}

/// The keys of Java, and what an operator must know besides.
pub(super) async fn state(Call { state, .. }: Call) -> Response {
    let status = state.shared.get().map(|shared| shared.engine.status());
    let takes_high_priority = status.as_ref().is_some_and(|status| status.takes_high_priority);
    let failed_directories: Vec<String> =
        status.iter().flat_map(|status| status.directories_failed.values().cloned()).collect();
    let is_refusing = status.as_ref().is_none_or(|status| status.is_read_only);
    let (mut reasons, mut volumes) = (serde_json::Map::new(), Vec::new());
    if let Some((desk, standing)) = state.disks.get() {
        reasons
            .extend(standing.reasons().into_iter().map(|(cause, why)| (cause.name().to_owned(), why.into())));
        volumes.extend(desk.volumes().iter().map(|volume| {
            serde_json::json!({
                "dir": volume.dir.display().to_string(),
                "totalBytes": volume.space.map(|space| space.total),
                "freeBytes": volume.space.map(|space| space.free),
                "reserveBytes": volume.reserve.0,
                "reserveBytesWanted": volume.reserve.1,
                "full": volume.is_full,
            })
        }));
    }
    let alarms: Vec<String> = state.shared.get().map_or_else(Vec::new, |shared| {
        let now_ms = u64::try_from(shared.clock.wall_ms()).unwrap_or(0);
        let of_tls = shared.tls.iter().chain(state.tls.get()).flat_map(|tls| tls.alarms(now_ms));
        let of_logins = shared.auth.iter().flat_map(|auth| auth.alarms());
        let of_tenants = shared.tenants.iter().flat_map(|tenants| tenants.alarms());
        let of_extensions =
            state.extensions.iter().filter_map(|extension| extension.fault()).map(|fault| fault.alarm);
        let of_data = state.health.why();
        of_tls
            .chain(of_logins)
            .chain(of_tenants)
            .chain(alarm_of_places(shared))
            .chain(of_extensions)
            .chain(of_data)
            .collect()
    });
    let body = serde_json::json!({
        "running": state.is_running.load(Ordering::Acquire),
        // As it is registered, which it may be while it takes adds.
        "readOnly": is_refusing || !reasons.is_empty(),
        "shuttingDown": state.is_shutting_down.load(Ordering::Acquire),
        "availableForHighPriorityWrites": takes_high_priority,
        "recoveryReserveBytes": status.as_ref().map(|status| status.recovery_reserve_bytes),
        "readOnlyBecause": reasons,
        // Faults that do not impair service yet.
        "alarms": alarms,
        "directoriesFailed": failed_directories,
        "volumes": volumes,
        "journalSync": status.as_ref().map(|status| status.journal_sync),
        "failed": status.and_then(|status| status.failed),
    });
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Newcomers cannot connect, because clients have all places.
fn alarm_of_places(shared: &Shared) -> Option<String> {
    let since_ns = shared.connections.door().crowded_since_ns()?;
    let waits_ms = shared.clock.monotonic_ns().saturating_sub(since_ns) / 1_000_000;
    Some(format!(
        "all {} places for connections (maxConnections) are taken by clients that are in use, and a new connection has waited for {waits_ms} ms",
        shared.limits.connections_max
    ))
}

/// What `PUT /api/v1/bookie/gc` may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct GcOrder {
    force_major: bool,
    force_minor: bool,
    /// Ours: one round without the checks that an operator may waive. From this machine only.
    waive_checks: bool,
    /// Ours: with a round over ledgers that should not be here.
    force_surplus: bool,
}

/// GET says whether a requested round is still to be done, PUT requests one.
pub(super) async fn gc(Call { state, peer, method, body, .. }: Call) -> Response {
    let Some(desk) = state.garbage.get() else {
        return starting();
    };
    match method {
        Method::GET => {
            let is_forced = desk.status().is_forced.to_string();
            json(&serde_json::json!({ "is_in_force_gc": is_forced }))
        }
        _ => {
            let order = if body.is_empty() { Ok(GcOrder::default()) } else { serde_json::from_slice(&body) };
            let order = match order {
                Ok(order) => order,
                Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
            };
            if order.waive_checks && !peer.ip().to_canonical().is_loopback() {
                let why = "waiveChecks is taken from this machine only\n";
                return (StatusCode::FORBIDDEN, why).into_response();
            }
            if order.waive_checks {
                tracing::warn!(%peer, "the next garbage collection runs without checking how much it removes");
            }
            desk.ask(GarbageRequest {
                minor: order.force_minor,
                major: order.force_major,
                is_waived: order.waive_checks,
                surplus: order.force_surplus,
            });
            (StatusCode::OK, "Triggered GC on BookieServer\n").into_response()
        }
    }
}

/// Java's keys, in a list as there; what is ours besides under "bindery".
pub(super) async fn gc_details(Call { state, .. }: Call) -> Response {
    let (Some(shared), Some(desk)) = (state.shared.get(), state.garbage.get()) else {
        return starting();
    };
    let (space, garbage) = (shared.engine.space_status(), desk.status());
    let skipped: Vec<_> =
        space.skipped.iter().map(|(log, why)| serde_json::json!({ "log": log, "why": why })).collect();
    json(&serde_json::json!([{
        "forceCompacting": garbage.is_forced,
        "majorCompacting": space.is_major_compacting,
        "minorCompacting": space.is_minor_compacting,
        "majorCompactionCounter": space.major_compactions,
        "minorCompactionCounter": space.minor_compactions,
        "gcCounter": desk.rounds.get(),
        "bindery": {
            "lastRoundEndMs": garbage.last_end_ms,
            "lastRoundLedgers": garbage.last_ledgers,
            "lastRoundRemoved": garbage.last_removed,
            "stoppedBecause": garbage.last_doubt,
            "unprovenLedgers": garbage.unproven,
            "toBeConfirmed": garbage.to_be_confirmed,
            "ledgersRemoved": desk.removed.get(),
            "surplusRounds": desk.surplus_rounds.get(),
            "surplusRemoved": desk.surplus_removed.get(),
            "surplusStoppedBecause": garbage.surplus_doubt,
            "logsDropped": space.logs_dropped,
            "logsRewritten": space.logs_rewritten,
            "merges": space.merges,
            "logsMerged": space.logs_merged,
            "bytesMerged": space.bytes_merged,
            "replacedBytes": space.replaced_bytes,
            "bytesCopied": space.bytes_copied,
            "logsSkipped": skipped,
            "errors": space.errors,
            "lastError": space.last_error,
        },
    }]))
}

/// What `PUT /api/v1/bookie/scrub` may say.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct ScrubOrder {
    /// Answer when the pass has ended, with its result.
    wait: bool,
    /// But not later than this.
    wait_seconds: u32,
}

impl Default for ScrubOrder {
    fn default() -> ScrubOrder {
        ScrubOrder { wait: false, wait_seconds: 3600 }
    }
}

/// Requests that may wait for a scrub to end: they keep places of the port for as long.
const SCRUB_WAITS_MAX: usize = 4;

/// A place among those that wait for a scrub.
struct ScrubWait<'a>(&'a AtomicUsize);

impl ScrubWait<'_> {
    fn begin(waits: &AtomicUsize) -> Option<ScrubWait<'_>> {
        let wait = (waits.fetch_add(1, Ordering::AcqRel) < SCRUB_WAITS_MAX, ScrubWait(waits));
        wait.0.then_some(wait.1)
    }
}

impl Drop for ScrubWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How long file systems may take to say their space.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Between two looks whether the pass has ended.
const SCRUB_LOOK: Duration = Duration::from_millis(100);

/// GET says how the scrub goes and what it found, PUT asks for a pass now. Ours: BookKeeper has none.
pub(super) async fn scrub(Call { state, method, body, .. }: Call) -> Response {
    let Some(shared) = state.shared.get() else {
        return starting();
    };
    let engine = &shared.engine;
    match method {
        Method::GET => json(&scrub_json(engine)),
        _ => {
            let order =
                if body.is_empty() { Ok(ScrubOrder::default()) } else { serde_json::from_slice(&body) };
            let order = match order {
                Ok(order) => order,
                Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
            };
            let request = engine.want_scrub();
            if !order.wait {
                return (StatusCode::OK, "Triggered a scrub of all entry logs\n").into_response();
            }
            let Some(_wait) = ScrubWait::begin(&state.scrub_waits) else {
                let why =
                    "a scrub is asked for, and as many wait for its end as may: ask for its state with GET\n";
                return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
            };
            // It begins within a flush interval.
            for _ in 0..u64::from(order.wait_seconds) * 10 {
                let status = engine.scrub_status();
                if status.answered >= request {
                    return json(&scrub_json(engine));
                }
                if state.is_shutting_down.load(Ordering::Acquire) {
                    return (StatusCode::SERVICE_UNAVAILABLE, "Bookie is shutting down\n").into_response();
                }
                tokio::time::sleep(SCRUB_LOOK).await;
            }
            let why = "the scrub goes on: ask for its state with GET\n";
            (StatusCode::GATEWAY_TIMEOUT, why).into_response()
        }
    }
}

/// Damaged ranges that are shown one by one.
const DAMAGE_SHOWN_MAX: usize = 100;

fn scrub_json(engine: &Engine) -> serde_json::Value {
    let (status, damage) = (engine.scrub_status(), engine.damage_summary());
    let waiting: Vec<_> = engine
        .damaged(None, DAMAGE_SHOWN_MAX)
        .iter()
        .take(DAMAGE_SHOWN_MAX)
        .map(|range| {
            let (ledger, first, last) = (range.ledger.get(), range.first.get(), range.last.get());
            serde_json::json!({ "ledger": ledger, "first": first, "last": last, "file": range.file })
        })
        .collect();
    let findings: Vec<_> = status
        .listed
        .iter()
        .map(|finding| {
            let affected = finding.affected.map(
                |(ledger, first, last)| serde_json::json!({ "ledger": ledger, "first": first, "last": last }),
            );
            serde_json::json!({
                "file": finding.file,
                "offset": finding.offset,
                "what": finding.what,
                "affected": affected,
                "advice": finding.advice,
            })
        })
        .collect();
    let last = status.last.as_ref().map(|pass| {
        serde_json::json!({
            "askedFor": pass.is_asked_for,
            "beginMs": pass.begin_ms,
            "endMs": pass.end_ms,
            "logs": pass.logs,
            "entries": pass.entries,
            "bytes": pass.bytes,
            "findings": pass.findings,
        })
    });
    serde_json::json!({
        "running": status.is_running,
        "bytesDone": status.progress.0,
        "bytesInPass": status.progress.1,
        "passes": status.passes,
        "findingsEver": status.findings,
        "damagedLogs": status.damaged_logs,
        "damagedLogsWithMore": damage.logs_with_more,
        "damagedLedgers": damage.ledgers,
        "damagedRanges": damage.ranges,
        "damagedRangesMadeGood": damage.made_good,
        "damagedLogsRenewed": damage.logs_renewed,
        "damaged": waiting,
        "lastPass": last,
        "findings": findings,
    })
}

/// Ledgers of which entries may be missing here, and what is known of them.
pub(super) async fn limbo(Call { state, .. }: Call) -> Response {
    let Some(desk) = state.garbage.get() else {
        return starting();
    };
    let ledgers: Vec<_> = desk
        .limbo()
        .iter()
        .map(|limbo| {
            serde_json::json!({
                "ledgerId": limbo.ledger.get(),
                "why": limbo.why,
                "firstMissing": limbo.first.map(bindery_types::EntryId::get),
                "missing": limbo.count,
            })
        })
        .collect();
    json(&serde_json::json!({
        "count": desk.limbo_count(),
        "ledgers": ledgers,
        "stoppedBecause": desk.status().limbo_doubt,
    }))
}

/// GET says how reading from object storage and letting local copies go are; PUT asks for a round of the latter now.
pub(super) async fn trimming(Call { state, method, .. }: Call) -> Response {
    let Some(shared) = state.shared.get() else {
        return starting();
    };
    let Some(tier) = &shared.tier else {
        return (StatusCode::NOT_FOUND, "this bookie has no object storage: give it one with --tier URL\n")
            .into_response();
    };
    match method {
        Method::GET => json(&crate::tier::json(tier)),
        _ => {
            tier.desk.ask();
            (StatusCode::OK, "Triggered a round of trimming\n").into_response()
        }
    }
}

/// What `GET /api/v1/bookie/tier/ledger` asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerQuery {
    id: i64,
}

/// How far one ledger is in object storage, as this bookie knows, and what it let go.
pub(super) async fn tiered_ledger(Call { state, uri, .. }: Call) -> Response {
    let Some(shared) = state.shared.get() else {
        return starting();
    };
    let Some(tier) = &shared.tier else {
        return (StatusCode::NOT_FOUND, "this bookie has no object storage: give it one with --tier URL\n")
            .into_response();
    };
    let query = Query::<LedgerQuery>::try_from_uri(&uri).ok();
    match query.and_then(|Query(query)| LedgerId::new(query.id)) {
        Some(ledger) => json(&crate::tier::ledger_json(tier, &shared.engine, ledger)),
        None => (StatusCode::BAD_REQUEST, "name a ledger: id=N\n").into_response(),
    }
}

/// What `GET /api/v1/bookie/flow` may say. Texts, so that an error names the value.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FlowOrder {
    sort: Option<String>,
    limit: Option<String>,
}

/// Which peers hold which bytes and which wait for what. Our own endpoint: BookKeeper has none.
pub(super) async fn flow(Call { state, uri, .. }: Call) -> Response {
    let Some(shared) = state.shared.get() else {
        return starting();
    };
    let wrong = |why: String| (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response();
    let order = match Query::<FlowOrder>::try_from_uri(&uri) {
        Ok(Query(order)) => order,
        Err(error) => return wrong(format!("{error}: give sort=held, for example, and limit=50")),
    };
    let sort = match order.sort.as_deref().map_or(Ok(Sort::default()), str::parse) {
        Ok(sort) => sort,
        Err(error) => return wrong(format!("sort: {error}")),
    };
    let limit = match order.limit.as_deref().map_or(Ok(CONNECTIONS_DEFAULT), str::parse) {
        Ok(limit) => limit,
        Err(_) => return wrong(format!("limit: give a number, at most {CONNECTIONS_MAX}")),
    };
    let mut view = flow_view::gather(shared, sort, limit).await;
    if let Some((_, standing)) = state.disks.get() {
        view.read_only_because = standing.reasons().into_values().collect();
    }
    match serde_json::to_value(&view) {
        Ok(body) => json(&body),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Free and total bytes of the file systems that hold ledgers.
pub(super) async fn space(Call { state, .. }: Call) -> Response {
    let Some(shared) = state.shared.get() else {
        return starting();
    };
    let volumes = shared.volumes.clone();
    let measuring = tokio::task::spawn_blocking(move || volumes.space());
    match tokio::time::timeout(SPACE_WAIT_MAX, measuring).await {
        Ok(Ok(Ok(space))) => json(&serde_json::json!({ "freeSpace": space.free, "totalSpace": space.total })),
        Ok(Ok(Err(error))) => {
            let why = format!("cannot read the free disk space: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        }
        Ok(Err(_)) | Err(_) => {
            let why = "the file systems do not say their space in time: try again\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}
