//! Ledgers of the cluster over the admin port, in Java's shapes (protocol reference, section 8.1): ids, metadata, entries, deletion.
//!
//! # Data flow
//! ```text
//! list, metadata, delete -> MetadataQuestions -> the metadata store, under the bookie's session
//! read -> one turn -> a part of the pool `outbound` -> EntrySource (a client of the cluster, which the process lends) -> text
//! ```
//!
//! # Invariants
//! 1. No answer has the password of a ledger, whoever asks.
//! 2. Reading changes nothing: an open ledger is neither fenced nor recovered, and read up to its LAC (last add confirmed).
//! 3. Entries and deletion are for those who may make changes ([`access`](super::access)).
//!
//! # Limits
//! A list ends after [`LIST_BYTES_MAX`] or [`LIST_TIME_MAX`], and the header [`MORE`] says how it goes on. It holds the metadata of one ledger,
//! which may be a megabyte, at a time. Entries: one request at a time,
//! whose memory is in the pool for loaded entries until the answer is built; [`ENTRIES_MAX`] in an answer, [`ENTRIES_TEXT_MAX`] of text,
//! [`READ_TIME_MAX`]. Of an entry that is larger its beginning is shown, and [`CUT`] names it.

use super::cluster::{LIST_BYTES_MAX, LIST_TIME_MAX, MORE, Refusal, bad_request, not_found, parameters};
use super::endpoints::Call;
use super::extension::Extending;
use super::shown::{ascii, base64, hex, push_member, text_or_base64};
use super::{AdminState, json};
use crate::limits::Limits;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::{Layout, StoreError};
use bindery_types::{DigestType, EntryId, LedgerId, LedgerState, MetadataFormatVersion};
use bytes::Bytes;
use serde_json::{Map, Value, json as value};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Ledgers on a page of a list with metadata, as in Java.
const PAGE: u64 = 100;
/// Entries on a page, as in Java, and in any answer.
const ENTRIES_MAX: u64 = 1000;
/// Bytes of an answer with entries.
const ENTRIES_TEXT_MAX: usize = 256 << 10;
/// How long the reading of entries may take: bookies that hang may take all of it.
const READ_TIME_MAX: Duration = Duration::from_secs(8);
/// How long a request waits for the one before it to have its entries.
const READ_TURN_MAX: Duration = Duration::from_secs(4);
/// The header that names the entry of which an answer has the beginning only, and its whole length.
const CUT: HeaderName = HeaderName::from_static("bindery-cut");

/// Entries that are wanted, those up to the LAC (last add confirmed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntriesWanted {
    /// Whose.
    pub ledger: LedgerId,
    /// The first one.
    pub first: EntryId,
    /// The last one; `None` for as far as the ledger goes.
    pub last: Option<EntryId>,
    /// No more of them.
    pub count_max: u64,
    /// No further one once those before have so many bytes.
    pub bytes_max: usize,
}

/// Entries that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntriesFound {
    /// In order, without a gap, from the first one that was wanted.
    pub entries: Vec<(EntryId, Bytes)>,
    /// The last entry of the ledger; the LAC (last add confirmed) of one that is open. `None` without any.
    pub end: Option<EntryId>,
}

/// Why there are no entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntriesRefused {
    /// There is no such ledger.
    NotFound(String),
    /// They cannot be read now.
    Unavailable(String),
}

/// Reads entries of any ledger of the cluster for an admin port. Reading fences and recovers nothing.
pub trait EntrySource: Send + Sync + 'static {
    /// Reads some; never more than the limits of `wanted` say. It may be dropped at any time.
    fn read(&self, wanted: EntriesWanted) -> Extending<'_, Result<EntriesFound, EntriesRefused>>;
}

/// Bytes that an [`EntrySource`] of a bookie with these limits may hold: they are in its pool for loaded entries while it reads. The
/// largest entry, and what a client keeps with it.
pub fn reading_bytes(limits: &Limits) -> u64 {
    let frame = limits.frame.size_bytes() as u64;
    frame + frame / 8
}

/// Reads of entries, one at a time.
pub(crate) struct EntryReads {
    source: OnceLock<Arc<dyn EntrySource>>,
    turn: Semaphore,
}

impl Default for EntryReads {
    fn default() -> EntryReads {
        EntryReads { source: OnceLock::new(), turn: Semaphore::new(1) }
    }
}

impl EntryReads {
    /// From here on there are some; the first source stays.
    pub(crate) fn open(&self, source: Arc<dyn EntrySource>) {
        let _ = self.source.set(source);
    }
}

/// Turns an error of the metadata store into a refusal for the client, where it is about the ledger.
fn refused(error: LedgerError) -> Result<Refusal, StoreError> {
    match error {
        LedgerError::NotFound(ledger) => {
            Ok((StatusCode::NOT_FOUND, format!("ledger {ledger} does not exist\n")))
        }
        LedgerError::Store(error) => Err(error),
        other => Ok((StatusCode::INTERNAL_SERVER_ERROR, format!("{other}\n"))),
    }
}

/// The ledger that a request names.
fn ledger_of(parameters: &HashMap<String, String>) -> Result<Option<LedgerId>, Refusal> {
    match parameters.get("ledger_id") {
        None => Ok(None),
        Some(text) => match text.parse().ok().and_then(LedgerId::new) {
            Some(ledger) => Ok(Some(ledger)),
            None => {
                Err(bad_request(format!("ledger_id={text}: give the id of a ledger, a number from 0 on")))
            }
        },
    }
}

/// A number from `least` on.
fn number(parameters: &HashMap<String, String>, name: &str, least: u64) -> Result<Option<u64>, Refusal> {
    let Some(text) = parameters.get(name) else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(number) if number >= least && i64::try_from(number).is_ok() => Ok(Some(number)),
        _ => Err(bad_request(format!("{name}={text}: give a whole number from {least} on"))),
    }
}

/// Metadata with Java's names, but for the password.
fn metadata_json(ledger: LedgerId, stored: &StoredLedger) -> Value {
    let metadata = &stored.metadata;
    let (state, last, length) = match metadata.state {
        LedgerState::Open => ("OPEN", -1, 0),
        LedgerState::InRecovery => ("IN_RECOVERY", -1, 0),
        LedgerState::Closed { last_entry, length_bytes } => {
            ("CLOSED", EntryId::to_wire(last_entry), length_bytes)
        }
    };
    let digest = metadata.secret.as_ref().map(|secret| match secret.digest_type {
        DigestType::Crc32 => "CRC32",
        DigestType::Crc32c => "CRC32C",
        DigestType::Hmac => "MAC",
        DigestType::Dummy => "DUMMY",
    });
    let version = match metadata.format_version {
        MetadataFormatVersion::V1 => 1,
        MetadataFormatVersion::V2 => 2,
        MetadataFormatVersion::V3 => 3,
    };
    let custom: Map<String, Value> =
        metadata.custom.iter().map(|(key, bytes)| (key.clone(), base64(bytes).into())).collect();
    let mut ensembles = String::new();
    for segment in metadata.segments() {
        let bookies: Vec<Value> =
            segment.ensemble.iter().map(|bookie| value!({ "id": bookie.as_str() })).collect();
        push_member(&mut ensembles, &segment.first_entry.to_string(), &bookies.into());
    }
    let ensembles = serde_json::from_str::<Value>(&format!("{{{ensembles}}}"));
    value!({
        "ledgerId": ledger.get(),
        "metadataFormatVersion": version,
        "ensembleSize": metadata.quorum.ensemble_size(),
        "writeQuorumSize": metadata.quorum.write_quorum_size(),
        "ackQuorumSize": metadata.quorum.ack_quorum_size(),
        "state": state,
        "closed": matches!(metadata.state, LedgerState::Closed { .. }),
        "lastEntryId": last,
        "length": length,
        "ctime": metadata.created_ms.unwrap_or(stored.created_ms),
        "digestType": digest,
        "password": Value::Null,
        "customMetadata": custom,
        "allEnsembles": ensembles.unwrap_or_default(),
        "ctoken": metadata.creation_token.unwrap_or(0),
    })
}

/// Metadata as the text of its second format, which the newer binary one has the fields of, but for the password.
fn metadata_text(stored: &StoredLedger) -> Value {
    let mut metadata = stored.metadata.clone();
    metadata.format_version = MetadataFormatVersion::V2;
    if let Some(secret) = &mut metadata.secret {
        secret.password = Vec::new();
    }
    String::from_utf8_lossy(&bindery_metadata::codec::ledger::encode(&metadata)).into_owned().into()
}

/// How ledgers are listed.
struct Listing {
    has_metadata: bool,
    is_decoded: bool,
    after: Option<LedgerId>,
    /// Ledgers that are passed over first, and those that are then shown.
    skips: u64,
    limit: u64,
}

impl Listing {
    fn of(parameters: &HashMap<String, String>) -> Result<Listing, Refusal> {
        let is = |name: &str| parameters.get(name).is_some_and(|given| given == "true");
        let has_metadata = is("print_metadata");
        let after = number(parameters, "after", 0)?.and_then(|raw| LedgerId::new(raw.try_into().ok()?));
        let limit = number(parameters, "limit", 1)?;
        let page = if has_metadata { number(parameters, "page", 1)? } else { None };
        Ok(Listing {
            has_metadata,
            is_decoded: is("decode_meta"),
            after,
            skips: page.map_or(0, |page| (page - 1).saturating_mul(PAGE)),
            limit: limit.unwrap_or(page.map_or(u64::MAX, |_| PAGE)),
        })
    }

    /// What is shown of a ledger: null where its metadata is not wanted or cannot be understood; `None` of one that is gone meanwhile.
    async fn shown(&self, layout: &Layout, ledger: LedgerId) -> Result<Option<Value>, StoreError> {
        if !self.has_metadata {
            return Ok(Some(Value::Null));
        }
        match layout.ledgers().get(ledger).await {
            Ok(stored) if self.is_decoded => Ok(Some(metadata_json(ledger, &stored))),
            Ok(stored) => Ok(Some(metadata_text(&stored))),
            Err(LedgerError::NotFound(_)) => Ok(None),
            Err(LedgerError::Store(error)) => Err(error),
            Err(_) => Ok(Some(Value::Null)),
        }
    }
}

/// A list, up to the place at which it ended.
struct Listed {
    /// The members of an object.
    text: String,
    /// The last ledger that was examined, if there may be more.
    more_after: Option<LedgerId>,
    /// Ledgers that were to be passed over and were not, because time was up.
    unskipped: u64,
}

/// `/api/v1/ledger/list`.
pub(super) async fn list(call: Call) -> Response {
    let listing = match parameters(&call.uri).and_then(|parameters| Listing::of(&parameters)) {
        Ok(listing) => listing,
        Err(refusal) => return refusal.into_response(),
    };
    let listed = match call.state.metadata.ask(|layout| list_some(layout, listing)).await {
        Ok(listed) => listed,
        Err(refusal) => return refusal.into_response(),
    };
    if listed.unskipped > 0 {
        let after = listed.more_after.map_or(0, LedgerId::get);
        let why = format!(
            "this page is too far behind: ask for after={after} with limit={PAGE}, and go on from there\n"
        );
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    }
    let body = format!("{{{}}}", listed.text);
    let kind = [(header::CONTENT_TYPE, "application/json")];
    match listed.more_after {
        Some(last) => (StatusCode::OK, kind, [(MORE, format!("after={last}"))], body).into_response(),
        None => (StatusCode::OK, kind, body).into_response(),
    }
}

async fn list_some(layout: Layout, listing: Listing) -> Result<Listed, StoreError> {
    let (mut ranges, until) = (layout.ledgers().list_after(listing.after), Instant::now() + LIST_TIME_MAX);
    let mut listed = Listed { text: String::new(), more_after: None, unskipped: listing.skips };
    let mut left = listing.limit;
    let mut looked_at = listing.after;
    while let Some(ids) = ranges.next().await? {
        let skipped = usize::try_from(listed.unskipped).unwrap_or(usize::MAX).min(ids.len());
        listed.unskipped -= skipped as u64;
        looked_at = ids[..skipped].last().copied().or(looked_at);
        for id in ids[skipped..].iter().copied() {
            if left == 0 || listed.text.len() >= LIST_BYTES_MAX || Instant::now() >= until {
                return Ok(Listed { more_after: looked_at, ..listed });
            }
            if let Some(shown) = listing.shown(&layout, id).await? {
                push_member(&mut listed.text, &id.to_string(), &shown);
            }
            left -= 1;
            looked_at = Some(id);
        }
        if left == 0 || Instant::now() >= until {
            return Ok(Listed { more_after: looked_at, ..listed });
        }
    }
    Ok(Listed { unskipped: 0, ..listed })
}

/// `/api/v1/ledger/metadata`.
pub(super) async fn metadata(call: Call) -> Response {
    let ledger = match parameters(&call.uri).and_then(|parameters| ledger_of(&parameters)) {
        Ok(ledger) => ledger,
        Err(refusal) => return refusal.into_response(),
    };
    let Some(ledger) = ledger else {
        return not_found("Not found method. Should be GET method, with ledger_id provided");
    };
    let asked = call.state.metadata.ask(async |layout| match layout.ledgers().get(ledger).await {
        Ok(stored) => Ok(Ok(stored)),
        Err(error) => refused(error).map(Err),
    });
    match asked.await {
        Ok(Ok(stored)) => json(&value!({ ledger.to_string(): metadata_json(ledger, &stored) })),
        Ok(Err(refusal)) | Err(refusal) => refusal.into_response(),
    }
}

/// `/api/v1/ledger/delete`.
pub(super) async fn delete(call: Call) -> Response {
    let ledger = match parameters(&call.uri).and_then(|parameters| ledger_of(&parameters)) {
        Ok(Some(ledger)) => ledger,
        Ok(None) => return not_found("Not ledger found. Should provide ledger_id=<id>"),
        Err(refusal) => return refusal.into_response(),
    };
    let changed =
        call.state.metadata.change(async |layout| match layout.ledgers().delete(ledger, None).await {
            Ok(()) => Ok(Ok(())),
            Err(error) => refused(error).map(Err),
        });
    match changed.await {
        Ok(Ok(())) => json(&Value::from(format!("Deleted ledger: {ledger}"))),
        Ok(Err(refusal)) | Err(refusal) => refusal.into_response(),
    }
}

/// How an entry is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As Java does it.
    Ascii,
    Text,
    Hex,
    Json,
}

impl Form {
    fn of(parameters: &HashMap<String, String>) -> Result<Form, Refusal> {
        match parameters.get("format").map(String::as_str) {
            None => Ok(Form::Ascii),
            Some("text") => Ok(Form::Text),
            Some("hex") => Ok(Form::Hex),
            Some("json") => Ok(Form::Json),
            Some(other) => Err(bad_request(format!("format={other}: give json, hex or text"))),
        }
    }

    /// The entry; or its beginning, and true, where that would be longer than `text_max`.
    fn show_within(self, entry: &[u8], text_max: usize) -> (Value, bool) {
        if entry.len() <= text_max {
            let whole = self.show(entry, entry.len());
            if whole.to_string().len() <= text_max {
                return (whole, false);
            }
        }
        // Escaped, a byte takes six.
        let mut head = entry.len().min(text_max / 8);
        if let Ok(text) = std::str::from_utf8(entry) {
            while !text.is_char_boundary(head) {
                head -= 1;
            }
        }
        (self.show(&entry[..head], entry.len()), true)
    }

    /// Of an entry of `length` bytes these ones.
    fn show(self, bytes: &[u8], length: usize) -> Value {
        match self {
            Form::Ascii => ascii(bytes).into(),
            Form::Text => String::from_utf8_lossy(bytes).into(),
            Form::Hex => hex(bytes).into(),
            Form::Json => {
                let (name, text) = text_or_base64(bytes);
                value!({ "length": length, name: text })
            }
        }
    }
}

/// Entries that a request wants.
struct Reading {
    form: Form,
    wanted: EntriesWanted,
    page: Option<u64>,
}

impl Reading {
    /// Java's rules: a page narrows the range.
    fn of(ledger: LedgerId, parameters: &HashMap<String, String>) -> Result<Reading, Refusal> {
        let form = Form::of(parameters)?;
        let mut first = number(parameters, "start_entry_id", 0)?.unwrap_or(0);
        // -1 is how Java says that there is no end.
        let mut last = match parameters.get("end_entry_id").map(String::as_str) {
            Some("-1") => None,
            _ => number(parameters, "end_entry_id", 0)?,
        };
        let page = number(parameters, "page", 1)?;
        if let Some(page) = page {
            let begin = (page - 1).saturating_mul(ENTRIES_MAX);
            let end = begin.saturating_add(ENTRIES_MAX - 1);
            first = first.max(begin);
            last = Some(last.map_or(end, |last| last.min(end)));
        }
        if let Some(last) = last
            && first > last
        {
            let page = page.map_or_else(|| "-1".to_owned(), |page| page.to_string());
            let why = format!(
                "parameter for start_entry_id: {first} and end_entry_id: {last} conflict with page={page}"
            );
            return Err((StatusCode::INTERNAL_SERVER_ERROR, why));
        }
        let entry =
            |raw: u64| EntryId::new(i64::try_from(raw).unwrap_or(i64::MAX)).expect("it is not negative");
        let wanted = EntriesWanted {
            ledger,
            first: entry(first),
            last: last.map(entry),
            count_max: ENTRIES_MAX,
            bytes_max: ENTRIES_TEXT_MAX,
        };
        Ok(Reading { form, wanted, page })
    }
}

/// `/api/v1/ledger/read`.
pub(super) async fn read(call: Call) -> Response {
    let reading = parameters(&call.uri).and_then(|parameters| match ledger_of(&parameters)? {
        Some(ledger) => Reading::of(ledger, &parameters).map(Some),
        None => Ok(None),
    });
    let reading = match reading {
        Ok(Some(reading)) => reading,
        Ok(None) => return not_found("Not found method. Should be GET method, with ledger_id provided"),
        Err(refusal) => return refusal.into_response(),
    };
    match entries(&call.state, reading.wanted).await {
        Ok((found, _held)) => shown(&reading, &found),
        Err(refusal) => refusal.into_response(),
    }
}

/// The entries, with what is held for them until the answer is built.
async fn entries(
    state: &AdminState,
    wanted: EntriesWanted,
) -> Result<(EntriesFound, impl Sized + use<'_>), Refusal> {
    let unavailable = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why + "\n");
    let reads = &state.entry_reads;
    let (Some(shared), Some(source)) = (state.shared.get(), reads.source.get()) else {
        return Err(unavailable("Bookie is not fully started yet".to_owned()));
    };
    let Ok(Ok(turn)) = tokio::time::timeout(READ_TURN_MAX, reads.turn.acquire()).await else {
        return Err(unavailable("other entries are being read: try again".to_owned()));
    };
    let Some(room) = shared.pools.outbound.try_acquire(reading_bytes(&shared.limits)) else {
        return Err(unavailable("clients take the memory for entries that are read: try again".to_owned()));
    };
    match tokio::time::timeout(READ_TIME_MAX, source.read(wanted)).await {
        Ok(Ok(found)) => Ok((found, (turn, room))),
        Ok(Err(EntriesRefused::NotFound(why))) => Err((StatusCode::NOT_FOUND, why + "\n")),
        Ok(Err(EntriesRefused::Unavailable(why))) => Err(unavailable(why)),
        Err(_) => {
            let seconds = READ_TIME_MAX.as_secs();
            Err(unavailable(format!(
                "bookies did not answer within {seconds} s: try again, or ask for fewer entries"
            )))
        }
    }
}

/// The answer with these entries, or with those that fit.
fn shown(reading: &Reading, found: &EntriesFound) -> Response {
    let EntriesWanted { ledger, first, last, .. } = reading.wanted;
    if reading.page.is_none() && first > EntryId::FIRST && found.end < Some(first) {
        let end =
            found.end.map_or_else(|| "it has none yet".to_owned(), |end| format!("the last one is {end}"));
        return (StatusCode::NOT_FOUND, format!("ledger {ledger} has no entry {first}: {end}\n"))
            .into_response();
    }
    let mut text = String::new();
    if let Some(page) = reading.page {
        push_member(&mut text, "Entries for page: ", &page.to_string().into());
    }
    let (mut next, mut headers) = (None, HeaderMap::new());
    for (at, (id, bytes)) in found.entries.iter().enumerate() {
        let (member, is_cut) = reading.form.show_within(bytes, ENTRIES_TEXT_MAX);
        if at > 0 && text.len() + member.to_string().len() > ENTRIES_TEXT_MAX {
            next = Some(*id);
            break;
        }
        push_member(&mut text, &id.to_string(), &member);
        if is_cut && let Ok(named) = HeaderValue::try_from(format!("{id}; length={}", bytes.len())) {
            headers.append(CUT, named);
        }
    }
    let end = last.map_or(found.end, |last| found.end.min(Some(last)));
    let behind = found.entries.last().and_then(|(id, _)| EntryId::new(id.get().saturating_add(1)));
    next = next.or(behind.filter(|behind| Some(*behind) <= end));
    if let Some(next) = next
        && let Ok(more) = HeaderValue::try_from(format!("start_entry_id={next}"))
    {
        headers.insert(MORE, more);
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (StatusCode::OK, headers, format!("{{{text}}}")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(payloads: &[&[u8]], end: i64) -> EntriesFound {
        let entries = payloads.iter().zip(0..).map(|(bytes, id)| (entry(id), Bytes::copy_from_slice(bytes)));
        EntriesFound { entries: entries.collect(), end: EntryId::new(end) }
    }

    fn entry(raw: i64) -> EntryId {
        EntryId::new(raw).unwrap()
    }

    fn reading(query: &str) -> Result<Reading, Refusal> {
        let parameters = parameters(&format!("/?{query}").parse().unwrap()).unwrap();
        Reading::of(LedgerId::new(5).unwrap(), &parameters)
    }

    async fn answer(query: &str, found: &EntriesFound) -> (u16, String, [Option<String>; 2]) {
        let response = shown(&reading(query).unwrap_or_else(|refusal| panic!("{refusal:?}")), found);
        let named = [MORE, "bindery-cut"]
            .map(|name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned()));
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap(), named)
    }

    #[tokio::test]
    async fn entries_are_shown_in_each_form() {
        let found = found(&[b"one", b"\xc3\xa9", b"\xff"], 2);
        for (query, body) in [
            ("", "{\"0\":\"one\",\"1\":\"\u{fffd}\u{fffd}\",\"2\":\"\u{fffd}\"}"),
            ("format=text", "{\"0\":\"one\",\"1\":\"é\",\"2\":\"\u{fffd}\"}"),
            ("format=hex", r#"{"0":"6f6e65","1":"c3a9","2":"ff"}"#),
            (
                "format=json",
                r#"{"0":{"length":3,"text":"one"},"1":{"length":2,"text":"é"},"2":{"base64":"/w==","length":1}}"#,
            ),
        ] {
            assert_eq!(answer(query, &found).await, (200, body.to_owned(), [None, None]), "{query}");
        }
    }

    /// The answer names what it leaves out.
    #[tokio::test]
    async fn answers_end_where_they_would_be_too_long_and_say_how_they_go_on() {
        let large = vec![b'x'; ENTRIES_TEXT_MAX / 3];
        let (status, body, [more, cut]) = answer("", &found(&[&large, &large, &large, b"y"], 9)).await;
        assert_eq!((status, more.as_deref(), cut), (200, Some("start_entry_id=2"), None));
        assert!(body.len() < ENTRIES_TEXT_MAX && body.contains("\"1\":"));
        let (_, _, [more, _]) = answer("end_entry_id=1", &found(&[b"a", b"b"], 9)).await;
        assert_eq!(more, None, "that was all that was wanted");
        let (_, _, [more, _]) = answer("", &found(&[b"a", b"b"], 9)).await;
        assert_eq!(more.as_deref(), Some("start_entry_id=2"), "the source had enough");
        let control = vec![0; ENTRIES_TEXT_MAX];
        for form in ["", "format=hex", "format=json", "format=text"] {
            let (_, body, [more, cut]) = answer(form, &found(&[&control], 0)).await;
            assert!(body.len() <= ENTRIES_TEXT_MAX, "{form}: {}", body.len());
            assert_eq!((more, cut), (None, Some(format!("0; length={ENTRIES_TEXT_MAX}"))), "{form}");
        }
        let accents = "é".repeat(ENTRIES_TEXT_MAX);
        let (_, body, [_, cut]) = answer("format=json", &found(&[accents.as_bytes()], 0)).await;
        assert!(body.contains("\"text\"") && cut.is_some(), "it is cut between characters");
    }

    #[tokio::test]
    async fn pages_narrow_the_range_as_in_java() {
        let range = |query: &str| {
            let wanted = reading(query).unwrap_or_else(|refusal| panic!("{refusal:?}")).wanted;
            (wanted.first.get(), wanted.last.map(EntryId::get))
        };
        assert_eq!(range(""), (0, None));
        assert_eq!(range("end_entry_id=-1"), (0, None));
        assert_eq!(range("page=1"), (0, Some(999)));
        assert_eq!(range("page=3"), (2000, Some(2999)));
        assert_eq!(range("page=1&start_entry_id=7&end_entry_id=20"), (7, Some(20)));
        for (query, status) in [
            ("start_entry_id=3&end_entry_id=2", 500),
            ("page=2&end_entry_id=2", 500),
            ("page=0", 400),
            ("start_entry_id=-1", 400),
            ("end_entry_id=x", 400),
            ("format=xml", 400),
            ("start_entry_id=9223372036854775808", 400),
        ] {
            let (refused, why) = reading(query).err().unwrap();
            assert_eq!(refused.as_u16(), status, "{query}: {why}");
        }
        let (status, body, _) = answer("page=1", &found(&[b"a"], 0)).await;
        assert_eq!((status, &*body), (200, r#"{"Entries for page: ":"1","0":"a"}"#));
        let (status, body, _) = answer("page=2", &found(&[], 0)).await;
        assert_eq!((status, &*body), (200, r#"{"Entries for page: ":"2"}"#));
        assert_eq!(answer("", &found(&[], -1)).await.1, "{}");
        let (status, why, _) = answer("start_entry_id=4", &found(&[], 3)).await;
        assert_eq!((status, &*why), (404, "ledger 5 has no entry 4: the last one is 3\n"));
    }
}
