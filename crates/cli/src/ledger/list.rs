//! `bindery ledger list` and `show`: what the metadata says, and [`tiered`] of one ledger.
//!
//! # Limits     listing: one directory of ids, and [`METADATA_READ_MAX`] ledgers' metadata at once

use super::access::{ledger_failure, store_failure};
use super::args::{Digest, ListArgs, ShowArgs};
use super::{form, tiered};
use crate::exit::Failure;
use crate::output::{self, Output};
use crate::printable::within_line;
use crate::progress::{Progress, Unit};
use bindery_client::{Client, EntryId, Handover, LedgerError, LedgerId, LedgerInfo, LedgerState, StoreError};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

/// Ledgers whose metadata is read at once.
const METADATA_READ_MAX: usize = 64;

/// `bindery ledger list`.
pub async fn list(client: Client, args: ListArgs) -> Result<(), Failure> {
    let mut out = Output::start()?;
    let listed = list_to(&client, &args, &mut out).await;
    // The ledgers listed so far are written even after an error.
    out.finish().await?;
    listed
}

/// `Ok` also when the output ended: finishing it says why.
async fn list_to(client: &Client, args: &ListArgs, out: &mut Output) -> Result<(), Failure> {
    let mut listing = client.ledgers();
    let mut table = Table::default();
    let (progress, mut listed) = (Progress::start("listing", Unit::Ledgers, None, true), 0);
    if args.long && !args.json && out.write(table.heads().as_bytes()).await.is_err() {
        return Ok(());
    }
    while let Some(ids) = listing.next_range().await.transpose().map_err(|error| store_failure(&error))? {
        for ids in ids.chunks(METADATA_READ_MAX) {
            let text = match (args.long, args.json) {
                (true, false) => table.lines(&rows(client, ids).await?).into_bytes(),
                _ => objects(client, args, ids).await?,
            };
            if out.write(&text).await.is_err() {
                return Ok(());
            }
            listed += ids.len() as u64;
            progress.set(listed);
        }
        if out.flush().await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// The ids, or an object for each ledger.
async fn objects(client: &Client, args: &ListArgs, ids: &[LedgerId]) -> Result<Vec<u8>, Failure> {
    if !args.long {
        let text = |id: &LedgerId| match args.json {
            true => form::line(&json!({ "ledger_id": id.get() })),
            false => format!("{id}\n").into_bytes(),
        };
        return Ok(ids.iter().flat_map(text).collect());
    }
    let read = read(ids, |id| {
        let client = client.clone();
        async move { (client.metadata(id).await, client.under_replicated_on(id).await.ok()) }
    });
    let mut text = Vec::new();
    for (info, marked) in read.await? {
        if let Some(info) = found(info)? {
            text.extend(form::line(&object(&info, marked.as_deref())));
        }
    }
    Ok(text)
}

async fn rows(client: &Client, ids: &[LedgerId]) -> Result<Vec<[String; COLUMNS]>, Failure> {
    let read = read(ids, |id| {
        let client = client.clone();
        async move { client.metadata(id).await }
    });
    let mut rows = Vec::with_capacity(ids.len());
    for info in read.await? {
        rows.extend(found(info)?.as_ref().map(row));
    }
    Ok(rows)
}

/// What is read of each ledger, all at once, in the order of the ids.
async fn read<T, F>(ids: &[LedgerId], of: impl Fn(LedgerId) -> F) -> Result<Vec<T>, Failure>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut reads = JoinSet::new();
    for (index, id) in ids.iter().enumerate() {
        let read = of(*id);
        reads.spawn(async move { (index, read.await) });
    }
    let mut all: Vec<(usize, T)> = Vec::with_capacity(ids.len());
    while let Some(read) = reads.join_next().await {
        all.push(read.map_err(|error| Failure::new(format!("reading metadata failed: {error}")))?);
    }
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, read)| read).collect())
}

/// `None` for a ledger that is not to be shown.
fn found(info: Result<LedgerInfo, LedgerError>) -> Result<Option<LedgerInfo>, Failure> {
    match info {
        Ok(info) => Ok(Some(info)),
        // Deleted since it was listed.
        Err(LedgerError::NotFound(_)) => Ok(None),
        // One that cannot be read must not hide the others.
        Err(error @ LedgerError::Malformed { .. }) => {
            output::say(format!("bindery: {error}"));
            Ok(None)
        }
        Err(error) => Err(ledger_failure(&error)),
    }
}

const COLUMNS: usize = 7;
const HEADS: [&str; COLUMNS] = ["LEDGER", "STATE", "LAST ENTRY", "BYTES", "E/Qw/Qa", "CREATED", "BOOKIES"];

/// Columns that are as wide as the longest cell so far. Where one becomes wider the heads stand again: a listing is written while it is
/// read, and ledgers with long ids come last.
struct Table {
    widths: [usize; COLUMNS],
}

impl Default for Table {
    fn default() -> Table {
        Table { widths: [10, 11, 10, 11, 7, 20, 0] }
    }
}

impl Table {
    fn heads(&self) -> String {
        self.line(&HEADS.map(str::to_owned))
    }

    fn lines(&mut self, rows: &[[String; COLUMNS]]) -> String {
        let before = self.widths;
        for row in rows {
            // The last column has no end.
            for (width, cell) in self.widths.iter_mut().zip(&row[..COLUMNS - 1]) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let heads = if self.widths == before { String::new() } else { self.heads() };
        heads + &rows.iter().map(|row| self.line(row)).collect::<String>()
    }

    fn line(&self, [ledger, state, last, bytes, sizes, created, bookies]: &[String; COLUMNS]) -> String {
        let [of_ledger, of_state, of_last, of_bytes, of_sizes, of_created, _] = self.widths;
        format!(
            "{ledger:>of_ledger$}  {state:<of_state$}  {last:>of_last$}  {bytes:>of_bytes$}  {sizes:<of_sizes$}  \
             {created:<of_created$}  {bookies}\n"
        )
    }
}

fn row(info: &LedgerInfo) -> [String; COLUMNS] {
    let (last, length) = end(info);
    let dash = |number: Option<String>| number.unwrap_or_else(|| "-".into());
    let quorum = info.metadata.quorum;
    [
        info.id.to_string(),
        state(info).to_owned(),
        dash(last.map(|entry| entry.to_string())),
        dash(length.map(|bytes| bytes.to_string())),
        format!("{}/{}/{}", quorum.ensemble_size(), quorum.write_quorum_size(), quorum.ack_quorum_size()),
        form::utc(info.created_ms),
        current_ensemble(info).join(","),
    ]
}

/// The state as JSON has it.
pub fn state(info: &LedgerInfo) -> &'static str {
    match info.metadata.state {
        LedgerState::Open => "open",
        LedgerState::InRecovery => "in-recovery",
        LedgerState::Closed { .. } => "closed",
    }
}

/// Last entry and length, as far as the metadata knows them: of a closed ledger, and of one that no writer has.
fn end(info: &LedgerInfo) -> (Option<EntryId>, Option<u64>) {
    match info.metadata.state {
        LedgerState::Closed { last_entry, length_bytes } => (last_entry, Some(length_bytes)),
        LedgerState::Open => match Handover::of(&info.metadata) {
            Some(Ok(Handover::Idle { next, length_bytes, .. })) => {
                (EntryId::new(next.get() - 1), Some(length_bytes))
            }
            _ => (None, None),
        },
        LedgerState::InRecovery => (None, None),
    }
}

/// Which kind of writer has the ledger: `idle` (the next append takes it), `busy`, or a program that hands nothing over.
pub fn writer(info: &LedgerInfo) -> Option<&'static str> {
    match (info.metadata.state, Handover::of(&info.metadata)) {
        (LedgerState::Open, Some(Ok(Handover::Idle { .. }))) => Some("idle"),
        (LedgerState::Open, Some(Ok(Handover::Busy { .. }))) => Some("busy"),
        (LedgerState::Open, _) => Some("other"),
        (LedgerState::InRecovery | LedgerState::Closed { .. }, _) => None,
    }
}

/// The state, and whether somebody writes.
pub fn state_for_people(info: &LedgerInfo) -> &'static str {
    match writer(info) {
        Some("idle") => "open, no writer",
        Some("busy") => "open, has a writer",
        Some(_) => "open, of a program that keeps it to itself",
        None => state(info),
    }
}

fn current_ensemble(info: &LedgerInfo) -> Vec<String> {
    let last = info.metadata.segments().last();
    last.map(|segment| segment.ensemble.iter().map(ToString::to_string).collect()).unwrap_or_default()
}

/// The fields of `--json`, which never change their meaning. `marked`: `None` when that cannot be read.
fn object(info: &LedgerInfo, marked: Option<&[String]>) -> Value {
    let metadata = &info.metadata;
    let (last_entry, length_bytes) = end(info);
    let segments: Vec<Value> = metadata
        .segments()
        .iter()
        .map(|segment| {
            let bookies: Vec<&str> = segment.ensemble.iter().map(|bookie| bookie.as_str()).collect();
            json!({ "first_entry": segment.first_entry.get(), "bookies": bookies })
        })
        .collect();
    let mut properties = Map::new();
    for (key, value) in &metadata.custom {
        let (form, text) = form::text_or_base64(value);
        properties.insert(key.clone(), json!({ form: text }));
    }
    json!({
        "ledger_id": info.id.get(),
        "state": state(info),
        "writer": writer(info),
        "last_entry": last_entry.map(EntryId::get),
        "length_bytes": length_bytes,
        "ensemble_size": metadata.quorum.ensemble_size(),
        "write_quorum_size": metadata.quorum.write_quorum_size(),
        "ack_quorum_size": metadata.quorum.ack_quorum_size(),
        "digest": metadata.secret.as_ref().map(|secret| Digest::name_of(secret.digest_type)),
        "has_password": metadata.secret.as_ref().map(|secret| !secret.password.is_empty()),
        "created_ms": info.created_ms,
        "metadata_format": format!("{:?}", metadata.format_version).to_lowercase(),
        "metadata_version": info.version.id(),
        "segments": segments,
        "properties": properties,
        "under_replicated_on": marked,
    })
}

/// `bindery ledger show`.
pub async fn show(client: Client, args: ShowArgs) -> Result<(), Failure> {
    let info = client.metadata(args.ledger).await.map_err(|error| ledger_failure(&error))?;
    // Marks are for repair, and this client may not be allowed to read them: the rest is shown without them.
    let marked = client.under_replicated_on(args.ledger).await;
    let bookies = tiered::of_bookies(&client, &info).await?;
    let catalogue = match args.store.as_deref().filter(|url| !url.is_empty()) {
        Some(url) => Some(tiered::of_catalogue(&client, url, args.ledger).await?),
        None => None,
    };
    match args.json {
        true => {
            let mut shown = object(&info, marked.ok().as_deref());
            if !bookies.is_empty() || catalogue.is_some() {
                shown["tier"] = tiered::object(&bookies, catalogue.as_ref(), args.long);
            }
            output::write_all(&form::line(&shown))
        }
        false => {
            let more = tiered::lines(&bookies, catalogue.as_ref(), args.long);
            let more: String =
                more.iter().map(|(key, value)| format!("{key:<13} {}\n", within_line(value))).collect();
            output::write_text(&(text(&info, &marked) + &more))
        }
    }
}

fn text(info: &LedgerInfo, marked: &Result<Vec<String>, StoreError>) -> String {
    let metadata = &info.metadata;
    let (last_entry, length_bytes) = end(info);
    let unknown = "not known while it is written".to_owned();
    let secret = metadata.secret.as_ref();
    let mut lines = vec![
        ("ledger", info.id.to_string()),
        ("state", state_for_people(info).to_owned()),
        (
            "last entry",
            match (last_entry, length_bytes) {
                (Some(entry), _) => entry.to_string(),
                (None, Some(_)) => "none".to_owned(),
                (None, None) => unknown.clone(),
            },
        ),
        ("bytes", length_bytes.map_or(unknown, |bytes| bytes.to_string())),
        ("ensemble", metadata.quorum.ensemble_size().to_string()),
        ("write quorum", metadata.quorum.write_quorum_size().to_string()),
        ("ack quorum", metadata.quorum.ack_quorum_size().to_string()),
        ("digest", secret.map_or("not stored", |secret| Digest::name_of(secret.digest_type)).to_owned()),
        (
            "password",
            secret
                .map_or("not stored", |secret| if secret.password.is_empty() { "none" } else { "set" })
                .to_owned(),
        ),
        ("created", form::utc(info.created_ms)),
        ("metadata", format!("{:?}, version {}", metadata.format_version, info.version.id()).to_lowercase()),
    ];
    for segment in metadata.segments() {
        let bookies: Vec<&str> = segment.ensemble.iter().map(|bookie| bookie.as_str()).collect();
        lines.push(("segment", format!("from entry {}: {}", segment.first_entry, bookies.join(", "))));
    }
    match marked {
        Ok(marked) if marked.is_empty() => {}
        Ok(marked) => {
            let marked: Vec<_> = marked.iter().map(|bookie| within_line(bookie)).collect();
            lines.push(("marked", format!("as under-replicated on {}", marked.join(", "))));
        }
        Err(error) => lines.push(("marked", format!("unknown: {}", within_line(&error.to_string())))),
    }
    for (key, value) in &metadata.custom {
        let (form, value) = form::printable_or_base64(value);
        let key = within_line(key);
        let form = if form == "text" { String::new() } else { format!(" ({form})") };
        lines.push(("property", format!("{key}{form} = {value}")));
    }
    lines.iter().map(|(key, value)| format!("{key:<13} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerMetadata, LedgerSecret, Quorum};

    #[test]
    fn columns_grow_with_their_cells_under_heads_that_fit() {
        let row = |id: i64, last: &str| {
            [&*id.to_string(), "closed", last, "5", "1/1/1", "2026-11-21T13:02:08Z", "b1,b2"]
                .map(str::to_owned)
        };
        let mut table = Table::default();
        let heads =
            "    LEDGER  STATE        LAST ENTRY        BYTES  E/Qw/Qa  CREATED               BOOKIES\n";
        assert_eq!(table.heads(), heads);
        let first =
            "         7  closed                3            5  1/1/1    2026-11-21T13:02:08Z  b1,b2\n";
        assert_eq!(table.lines(&[row(7, "3")]), first);
        let shown = table.lines(&[row(8, "3"), row(i64::MAX, "12345678901")]);
        let begins: Vec<Vec<usize>> = shown
            .lines()
            .map(|line| ["E/Qw/Qa", "1/1/1"].iter().filter_map(|part| line.find(part)).collect())
            .collect();
        assert_eq!(begins, [[60], [60], [60]], "{shown}");
        assert!(shown.starts_with("             LEDGER  STATE  "), "{shown}");
        assert!(!table.lines(&[row(9, "3")]).contains("LEDGER"), "they fit");
    }

    #[test]
    fn what_others_wrote_into_metadata_makes_no_lines_and_moves_nothing() {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        let hostile = "\x1b]0;t\x07\nstate         closed";
        metadata.custom.insert("x".to_owned(), hostile.into());
        metadata.custom.insert(hostile.to_owned(), b"plain".to_vec());
        let version = bindery_metadata::store::Version::counted(0);
        let info = LedgerInfo::new(LedgerId::new(7).unwrap(), metadata, version, 0);
        let shown = text(&info, &Ok(vec![hostile.to_owned()]));
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        assert_eq!(shown.lines().filter(|line| line.starts_with("state ")).count(), 1, "{shown}");
        assert_eq!(shown.lines().filter(|line| line.starts_with("property ")).count(), 2, "{shown}");
        assert_eq!(object(&info, None)["properties"]["x"]["text"], hostile, "JSON has it as it is");
    }

    #[test]
    fn a_mark_is_called_one_and_what_cannot_be_read_is_unknown() {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        let version = bindery_metadata::store::Version::counted(0);
        let info = LedgerInfo::new(LedgerId::new(7).unwrap(), metadata, version, 0);
        let marked = Ok(vec!["b1".to_owned(), "b2".to_owned()]);
        assert!(text(&info, &marked).contains("\nmarked        as under-replicated on b1, b2\n"));
        assert!(!text(&info, &Ok(Vec::new())).contains("marked"));
        let refused = Err(StoreError::NoAuth { path: "/ledgers/underreplication".into() });
        assert!(text(&info, &refused).contains("\nmarked        unknown: the metadata store refuses access"));
        assert_eq!(object(&info, refused.ok().as_deref())["under_replicated_on"], Value::Null);
    }
}
