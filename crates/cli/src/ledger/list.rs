//! `bindery ledger list` and `show`: what the metadata says, and [`tiered`] of one ledger.
//!
//! # Limits     listing: one directory of ids, and [`METADATA_READ_MAX`] ledgers' metadata at once

use super::access::{ledger_failure, store_failure};
use super::args::{Digest, ListArgs, ShowArgs};
use super::{form, tiered};
use crate::exit::Failure;
use crate::output::{self, Output};
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
    if args.long && !args.json && out.write(HEADER.as_bytes()).await.is_err() {
        return Ok(());
    }
    while let Some(ids) = listing.next_range().await.transpose().map_err(|error| store_failure(&error))? {
        for ids in ids.chunks(METADATA_READ_MAX) {
            for text in texts(client, args, ids).await? {
                if out.write(&text).await.is_err() {
                    return Ok(());
                }
            }
        }
        if out.flush().await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn texts(client: &Client, args: &ListArgs, ids: &[LedgerId]) -> Result<Vec<Vec<u8>>, Failure> {
    if !args.long {
        let text = |id: &LedgerId| match args.json {
            true => form::line(&json!({ "ledger_id": id.get() })),
            false => format!("{id}\n").into_bytes(),
        };
        return Ok(ids.iter().map(text).collect());
    }
    let mut reads = JoinSet::new();
    for (index, id) in ids.iter().enumerate() {
        let (client, id, is_json) = (client.clone(), *id, args.json);
        reads.spawn(async move {
            let info = client.metadata(id).await;
            let marked = match is_json {
                true => Some(client.under_replicated_on(id).await),
                false => None,
            };
            (index, info, marked)
        });
    }
    let mut texts = vec![Vec::new(); ids.len()];
    while let Some(read) = reads.join_next().await {
        let (index, info, marked) =
            read.map_err(|error| Failure::new(format!("reading metadata failed: {error}")))?;
        texts[index] = match (info, marked) {
            (Ok(info), Some(marked)) => form::line(&object(&info, marked.ok().as_deref())),
            (Ok(info), None) => row(&info).into_bytes(),
            // Deleted since it was listed.
            (Err(LedgerError::NotFound(_)), _) => Vec::new(),
            // One that cannot be read must not hide the others.
            (Err(error @ LedgerError::Malformed { .. }), _) => {
                output::say(format!("bindery: {error}"));
                Vec::new()
            }
            (Err(error), _) => return Err(ledger_failure(&error)),
        };
    }
    Ok(texts)
}

const HEADER: &str =
    "    LEDGER  STATE        LAST ENTRY        BYTES  E/Qw/Qa  CREATED               BOOKIES\n";

fn row(info: &LedgerInfo) -> String {
    let (last, length) = end(info);
    let dash = |number: Option<String>| number.unwrap_or_else(|| "-".into());
    let quorum = info.metadata.quorum;
    let sizes =
        format!("{}/{}/{}", quorum.ensemble_size(), quorum.write_quorum_size(), quorum.ack_quorum_size());
    format!(
        "{:>10}  {:<11}  {:>10}  {:>11}  {:<7}  {}  {}\n",
        info.id,
        state(info),
        dash(last.map(|entry| entry.to_string())),
        dash(length.map(|bytes| bytes.to_string())),
        sizes,
        form::utc(info.created_ms),
        current_ensemble(info).join(","),
    )
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
        "metadata_version": info.version.0,
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
            let more: String = more.iter().map(|(key, value)| format!("{key:<13} {value}\n")).collect();
            output::write_all((text(&info, &marked) + &more).as_bytes())
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
        ("metadata", format!("{:?}, version {}", metadata.format_version, info.version.0).to_lowercase()),
    ];
    for segment in metadata.segments() {
        let bookies: Vec<&str> = segment.ensemble.iter().map(|bookie| bookie.as_str()).collect();
        lines.push(("segment", format!("from entry {}: {}", segment.first_entry, bookies.join(", "))));
    }
    match marked {
        Ok(marked) if marked.is_empty() => {}
        Ok(marked) => lines.push(("marked", format!("as under-replicated on {}", marked.join(", ")))),
        Err(error) => lines.push(("marked", format!("unknown: {error}"))),
    }
    for (key, value) in &metadata.custom {
        let (form, value) = form::text_or_base64(value);
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
    fn a_mark_is_called_one_and_what_cannot_be_read_is_unknown() {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        let version = bindery_metadata::store::Version(0);
        let info = LedgerInfo::new(LedgerId::new(7).unwrap(), metadata, version, 0);
        let marked = Ok(vec!["b1".to_owned(), "b2".to_owned()]);
        assert!(text(&info, &marked).contains("\nmarked        as under-replicated on b1, b2\n"));
        assert!(!text(&info, &Ok(Vec::new())).contains("marked"));
        let refused = Err(StoreError::NoAuth { path: "/ledgers/underreplication".into() });
        assert!(text(&info, &refused).contains("\nmarked        unknown: the metadata store refuses access"));
        assert_eq!(object(&info, refused.ok().as_deref())["under_replicated_on"], Value::Null);
    }
}
