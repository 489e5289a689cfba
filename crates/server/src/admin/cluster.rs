//! What the admin port says of the cluster, and changes there, in Java's shapes (protocol reference, section 8.1): what any bookie can,
//! with metadata alone. Paths of the auditor and the replication worker are an extension's ([`Part::Repair`](super::extension::Part)).
//!
//! Where Java answers 404 with the text of an exception because the metadata store failed, this answers 503.
//!
//! # Limits
//! One question at a time, and beside it one change ([`MetadataQuestions`]), for [`WAIT_MAX`] at most, so that a store that is silent keeps
//! metrics and state from nobody, and whoever may only look keeps no change from being made. Others wait their turn for [`TURN_MAX`] at most,
//! those who came first first. A list of marked ledgers: [`LIST_BYTES_MAX`] and [`LIST_TIME_MAX`]; the header [`MORE`] says how to go on.

use super::endpoints::Call;
use super::json;
use axum::extract::Query;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bindery_metadata::layout::CookiesError;
use bindery_metadata::{Layout, RegistrationMode, StoreError};
use bindery_types::LedgerId;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long the metadata store may take for the answer to a question.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// How long a question waits for those before it.
const TURN_MAX: Duration = Duration::from_secs(5);
/// Bytes of a list of ledgers, and the time it may take: it ends after either, and says so.
pub(super) const LIST_BYTES_MAX: usize = 256 << 10;
pub(super) const LIST_TIME_MAX: Duration = Duration::from_secs(2);
/// Marked ledgers of which the ids are read at a time, and of which the marks are.
const PAGE: usize = 1000;
const MARK_READS_MAX: usize = 32;
/// The header of a list that is not whole: `after=ID`, the query that continues it.
pub(super) const MORE: &str = "bindery-more";

/// Questions to the metadata store, one at a time, and changes, one at a time.
pub(crate) struct MetadataQuestions {
    layout: OnceLock<Layout>,
    looks: Semaphore,
    /// Apart, because fewer may make them than may look.
    changes: Semaphore,
}

impl Default for MetadataQuestions {
    fn default() -> MetadataQuestions {
        MetadataQuestions { layout: OnceLock::new(), looks: Semaphore::new(1), changes: Semaphore::new(1) }
    }
}

impl MetadataQuestions {
    /// From here on they are answered.
    pub(crate) fn open(&self, layout: Layout) {
        let _ = self.layout.set(layout);
    }

    /// Asks; or the answer to a request that cannot be answered.
    pub(super) async fn ask<T, F>(&self, question: impl FnOnce(Layout) -> F) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.in_turn(&self.looks, question).await
    }

    /// Changes; or the answer to a request that cannot be answered.
    pub(super) async fn change<T, F>(&self, change: impl FnOnce(Layout) -> F) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.in_turn(&self.changes, change).await
    }

    async fn in_turn<T, F>(&self, turns: &Semaphore, question: impl FnOnce(Layout) -> F) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let unavailable = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why);
        let Some(layout) = self.layout.get() else {
            return Err(unavailable("Bookie is not fully started yet\n".to_owned()));
        };
        let Ok(Ok(_turn)) = tokio::time::timeout(TURN_MAX, turns.acquire()).await else {
            let seconds = TURN_MAX.as_secs();
            return Err(unavailable(format!(
                "other questions about the cluster were being answered for {seconds} s: try again\n"
            )));
        };
        match tokio::time::timeout(WAIT_MAX, question(layout.clone())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(unavailable(format!("the metadata store: {error}\n"))),
            Err(_) => {
                let seconds = WAIT_MAX.as_secs();
                Err(unavailable(format!("the metadata store does not answer within {seconds} s\n")))
            }
        }
    }
}

/// What is said of auditor and worker where this process has none.
pub(super) const NO_REPAIR: &str = "Repair is off on this bookie: ask one with autoRecoveryDaemonEnabled=true, or run bindery bookie recover or decommission\n";

/// The answer to a request that is not carried out.
pub(super) type Refusal = (StatusCode, String);

fn refused_as_absent(text: impl Into<String>) -> Refusal {
    (StatusCode::NOT_FOUND, text.into())
}

pub(super) fn not_found(text: impl Into<String>) -> Response {
    refused_as_absent(text).into_response()
}

pub(super) fn bad_request(text: String) -> Refusal {
    (StatusCode::BAD_REQUEST, text + "\n")
}

/// JSON, or the refusal.
fn answered(asked: Result<Value, Refusal>) -> Response {
    asked.map_or_else(IntoResponse::into_response, |body| json(&body))
}

/// The parameters behind the question mark.
pub(super) fn parameters(uri: &Uri) -> Result<HashMap<String, String>, Refusal> {
    match Query::try_from_uri(uri) {
        Ok(Query(parameters)) => Ok(parameters),
        Err(error) => Err(bad_request(error.to_string())),
    }
}

/// The first auditor, as Java names one.
async fn auditor(layout: &Layout) -> Result<Option<String>, StoreError> {
    Ok(layout.auditor_votes().auditors().await?.into_iter().next())
}

pub(super) async fn cluster_info(Call { state, .. }: Call) -> Response {
    let asked = state.metadata.ask(async |layout| {
        let auditor = auditor(&layout).await?;
        let is_disabled = layout.repair_settings().is_disabled().await?;
        let is_under_replicated = !layout.under_replication().after(None, 1).await?.is_empty();
        let cookies = layout.cookies().list().await.map_err(|error| match error {
            CookiesError::Store(error) => error,
            other => StoreError::Protocol(other.to_string()),
        })?;
        let registered = layout.registration().list().await?;
        let of = |mode| registered.iter().filter(|bookie| bookie.mode == mode).count();
        let (writable, read_only) = (of(RegistrationMode::Writable), of(RegistrationMode::ReadOnly));
        Ok(serde_json::json!({
            "auditorElected": auditor.is_some(),
            "auditorId": auditor.unwrap_or_default(),
            "clusterUnderReplicated": is_under_replicated,
            "ledgerReplicationEnabled": !is_disabled,
            "totalBookiesCount": cookies.len(),
            "writableBookiesCount": writable,
            "readonlyBookiesCount": read_only,
            "unavailableBookiesCount": cookies.len().saturating_sub(writable + read_only),
        }))
    });
    answered(asked.await)
}

pub(super) async fn list_bookies(Call { state, uri, .. }: Call) -> Response {
    let parameters = match parameters(&uri) {
        Ok(parameters) => parameters,
        Err(refusal) => return refusal.into_response(),
    };
    let is = |name: &str, value: &str| parameters.get(name).is_some_and(|given| given == value);
    let mode = if is("type", "ro") { RegistrationMode::ReadOnly } else { RegistrationMode::Writable };
    let has_hosts = is("print_hostnames", "true");
    let asked = state.metadata.ask(async |layout| {
        let registration = layout.registration();
        let mut bookies = Map::new();
        for bookie in registration.list().await?.into_iter().filter(|bookie| bookie.mode == mode) {
            let host = match has_hosts {
                // A registration that is gone meanwhile, or that cannot be read, has the host that its id begins with.
                true => match registration.service_info(&bookie.bookie_id).await {
                    Ok(Some(Ok(info))) => info.endpoints.first().map(|endpoint| endpoint.host.clone()),
                    Ok(Some(Err(_)) | None) => None,
                    Err(error) if error.is_transient() => return Err(error),
                    Err(_) => None,
                }
                .or_else(|| bookie.bookie_id.as_str().rsplit_once(':').map(|(host, _)| host.to_owned())),
                false => None,
            };
            bookies.insert(bookie.bookie_id.to_string(), host.into());
        }
        Ok(Value::Object(bookies))
    });
    answered(asked.await)
}

/// Whether repair is enabled in the cluster; PUT changes it.
pub(super) async fn status(Call { state, method, uri, .. }: Call) -> Response {
    let wanted = match method {
        Method::GET => None,
        _ => {
            let parameters = match parameters(&uri) {
                Ok(parameters) => parameters,
                Err(refusal) => return refusal.into_response(),
            };
            match parameters.get("enabled").map(|given| given.to_ascii_lowercase()).as_deref() {
                Some("true") => Some(true),
                Some("false") => Some(false),
                Some(other) => {
                    return bad_request(format!("enabled={other}: give true or false")).into_response();
                }
                None => {
                    let why = format!("Param 'enabled' not found in {{{}}}", uri.query().unwrap_or(""));
                    return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
                }
            }
        }
    };
    let is_disabled = match wanted {
        None => state.metadata.ask(async |layout| layout.repair_settings().is_disabled().await).await,
        Some(is_enabled) => {
            let set = state.metadata.change(async |layout| {
                let settings = layout.repair_settings();
                match is_enabled {
                    true => settings.enable().await?,
                    false => settings.disable().await?,
                };
                settings.is_disabled().await
            });
            set.await
        }
    };
    answered(is_disabled.map(|is_disabled| serde_json::json!({ "enabled": !is_disabled })))
}

pub(super) async fn who_is_auditor(Call { state, .. }: Call) -> Response {
    match state.metadata.ask(async |layout| auditor(&layout).await).await {
        Ok(Some(auditor)) => (StatusCode::OK, format!("Auditor: {auditor}")).into_response(),
        Ok(None) => not_found("No auditor elected"),
        Err(refusal) => refusal.into_response(),
    }
}

/// Asks the auditor for a look through all ledgers, by writing the delay again.
pub(super) async fn trigger_audit(Call { state, .. }: Call) -> Response {
    let asked = state.metadata.change(async |layout| {
        let settings = layout.repair_settings();
        if settings.is_disabled().await? {
            return Ok(Err("Autorecovery is disabled. So giving up!"));
        }
        if auditor(&layout).await?.is_none() {
            return Ok(Err("No auditor elected, though Autorecovery is enabled. So giving up."));
        }
        match settings.delay().await? {
            Some(delay) => settings.set_delay(delay).await.map(Ok),
            None => Ok(Err("lostBookieRecoveryDelay is not set: set it, which triggers an audit, too")),
        }
    });
    match asked.await {
        Ok(Ok(())) => (StatusCode::OK, "Success trigger audit.").into_response(),
        Ok(Err(why)) => not_found(format!("Exception when do operation.{why}")),
        Err(refusal) => refusal.into_response(),
    }
}

/// How long a bookie may be away before its ledgers are repaired; PUT changes it for the whole cluster.
pub(super) async fn delay(Call { state, method, body, .. }: Call) -> Response {
    match method {
        Method::GET => {
            match state.metadata.ask(async |layout| layout.repair_settings().delay().await).await {
                Ok(Some(delay)) => {
                    (StatusCode::OK, format!("lostBookieRecoveryDelay value: {}", delay.as_secs()))
                        .into_response()
                }
                Ok(None) => not_found("Exception when get lostBookieRecoveryDelay.it is not set"),
                Err(refusal) => refusal.into_response(),
            }
        }
        _ => {
            let seconds = match seconds_of(&body) {
                Ok(seconds) => seconds,
                Err(refusal) => return refusal.into_response(),
            };
            let delay = Duration::from_secs(seconds.into());
            let set = state.metadata.change(async |layout| layout.repair_settings().set_delay(delay).await);
            match set.await {
                Ok(()) => (StatusCode::OK, format!("Success set lostBookieRecoveryDelay to {seconds}"))
                    .into_response(),
                Err(refusal) => refusal.into_response(),
            }
        }
    }
}

/// `{"delay_seconds": 900}`.
fn seconds_of(body: &[u8]) -> Result<u32, Refusal> {
    if body.is_empty() {
        return Err(refused_as_absent("Null request body for lostBookieRecoveryDelay."));
    }
    let order: Value = serde_json::from_slice(body).map_err(|error| bad_request(error.to_string()))?;
    let Some(given) = order.get("delay_seconds") else {
        return Err(refused_as_absent("Request body not contains lostBookieRecoveryDelay."));
    };
    let seconds = given.as_i64().and_then(|seconds| i32::try_from(seconds).ok());
    seconds.and_then(|seconds| u32::try_from(seconds).ok()).ok_or_else(|| {
        bad_request(format!("delay_seconds {given}: give whole seconds, from 0 to {}", i32::MAX))
    })
}

/// Which marked ledgers are listed, and how.
struct Wanted {
    lacking: Option<String>,
    not_lacking: Option<String>,
    has_replicas: bool,
    after: Option<LedgerId>,
}

impl Wanted {
    fn of(parameters: &HashMap<String, String>) -> Result<Wanted, Refusal> {
        let named = |name: &str| parameters.get(name).filter(|given| !given.trim().is_empty()).cloned();
        let after = match parameters.get("after") {
            None => None,
            Some(text) => match text.parse().ok().and_then(LedgerId::new) {
                Some(ledger) => Some(ledger),
                None => return Err(bad_request(format!("after={text}: give the id of a ledger"))),
            },
        };
        Ok(Wanted {
            lacking: named("missingreplica"),
            not_lacking: named("excludingmissingreplica"),
            has_replicas: parameters.contains_key("printmissingreplica"),
            after,
        })
    }

    /// Whether marks have to be read, and not only their names.
    fn reads_marks(&self) -> bool {
        self.has_replicas || self.lacking.is_some() || self.not_lacking.is_some()
    }

    fn takes(&self, replicas: &[String]) -> bool {
        let names = |wanted: &Option<String>| wanted.as_ref().map(|wanted| replicas.contains(wanted));
        names(&self.lacking).unwrap_or(true) && !names(&self.not_lacking).unwrap_or(false)
    }
}

/// A list of marked ledgers.
struct Listed {
    /// The elements of an array, or of an object.
    text: String,
    /// The last ledger that was looked at, if there are more.
    more_after: Option<LedgerId>,
}

/// The marked ledgers, the lowest id first.
pub(super) async fn list_under_replicated(Call { state, uri, .. }: Call) -> Response {
    let wanted = match parameters(&uri).and_then(|parameters| Wanted::of(&parameters)) {
        Ok(wanted) => wanted,
        Err(refusal) => return refusal.into_response(),
    };
    let has_replicas = wanted.has_replicas;
    let listed = match state.metadata.ask(|layout| list(layout, wanted)).await {
        Ok(listed) => listed,
        Err(refusal) => return refusal.into_response(),
    };
    if listed.text.is_empty() && listed.more_after.is_none() {
        return not_found("No under replicated ledgers found");
    }
    let body = if has_replicas { format!("{{{}}}", listed.text) } else { format!("[{}]", listed.text) };
    let json = (header::CONTENT_TYPE, "application/json".to_owned());
    match listed.more_after {
        None => (StatusCode::OK, [json], body).into_response(),
        Some(last) => {
            let more = [(MORE, format!("after={last}"))];
            (StatusCode::OK, [json], more, body).into_response()
        }
    }
}

async fn list(layout: Layout, wanted: Wanted) -> Result<Listed, StoreError> {
    let (marks, until) = (layout.under_replication(), Instant::now() + LIST_TIME_MAX);
    let mut listed = Listed { text: String::new(), more_after: None };
    let mut after = wanted.after;
    loop {
        let page = marks.after(after, PAGE).await?;
        for ledgers in page.chunks(MARK_READS_MAX) {
            let replicas = match wanted.reads_marks() {
                true => replicas_of(&layout, ledgers).await?,
                false => ledgers.iter().map(|ledger| (*ledger, Vec::new())).collect(),
            };
            for (ledger, replicas) in replicas {
                if !wanted.takes(&replicas) {
                    continue;
                }
                let gap = if listed.text.is_empty() { "" } else { "," };
                listed.text.push_str(&match wanted.has_replicas {
                    true => format!("{gap}\"{ledger}\":{}", Value::from(replicas)),
                    false => format!("{gap}{ledger}"),
                });
            }
            after = ledgers.last().copied();
            if listed.text.len() >= LIST_BYTES_MAX || Instant::now() >= until {
                let is_last = page.len() < PAGE && after == page.last().copied();
                listed.more_after = after.filter(|_| !is_last);
                return Ok(listed);
            }
        }
        if page.len() < PAGE {
            return Ok(listed);
        }
    }
}

/// The bookies that the marks of some ledgers name. A mark that cannot be read names none; one that is gone is left out.
async fn replicas_of(
    layout: &Layout,
    ledgers: &[LedgerId],
) -> Result<Vec<(LedgerId, Vec<String>)>, StoreError> {
    let mut reads = JoinSet::new();
    for ledger in ledgers.iter().copied() {
        let marks = layout.under_replication();
        reads.spawn(async move { (ledger, marks.replicas(ledger).await) });
    }
    let mut found = Vec::with_capacity(ledgers.len());
    while let Some(read) = reads.join_next().await {
        match read {
            Ok((ledger, Ok(Some(replicas)))) => found.push((ledger, replicas)),
            Ok((_, Ok(None))) => {}
            Ok((ledger, Err(StoreError::Protocol(_)))) => found.push((ledger, Vec::new())),
            Ok((_, Err(error))) => return Err(error),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    found.sort_unstable_by_key(|(ledger, _)| *ledger);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::{LedgerLayout, layout};
    use std::sync::Arc;

    async fn questions() -> MetadataQuestions {
        let store = Arc::new(MemoryCluster::new().open());
        layout::init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let questions = MetadataQuestions::default();
        questions.open(Layout::open(store, "/l", None).await.unwrap());
        questions
    }

    /// Takes as long as a question may.
    async fn slow(_: Layout) -> Result<(), StoreError> {
        tokio::time::sleep(WAIT_MAX - Duration::from_millis(1)).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_made_while_questions_are_answered() {
        let questions = questions().await;
        let (looks, changed) = tokio::join!(
            async {
                let both = tokio::join!(questions.ask(slow), questions.ask(slow));
                (both, Instant::now())
            },
            async {
                let disabled = questions.change(async |layout| layout.repair_settings().disable().await);
                (disabled.await, Instant::now())
            }
        );
        assert_eq!((looks.0, changed.0), ((Ok(()), Ok(())), Ok(true)), "the second question waited its turn");
        assert!(changed.1 < looks.1, "the change waited for nobody");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_waits_its_turn_for_a_bounded_time() {
        let questions = questions().await;
        let (first, second, third) =
            tokio::join!(questions.ask(slow), questions.ask(slow), questions.ask(slow));
        assert_eq!((first, second), (Ok(()), Ok(())));
        let (status, why) = third.unwrap_err();
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && why.contains("try again"), "{why}");
        assert_eq!(questions.ask(slow).await, Ok(()));
    }
}
