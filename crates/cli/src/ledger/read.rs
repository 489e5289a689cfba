//! `bindery ledger read` and `tail`: entries to standard output, byte for byte.
//!
//! # Invariants
//! 1. The output is the entries in order from the first requested one, without a gap; an error ends it.
//! 2. `read` writes nothing when a requested entry does not exist.
//! 3. `tail` passes on what it has before it waits for more.
//! 4. `read` says when there may be more than it wrote: the ledger is open and has a writer, or goes on in another one.

use super::access::{ledger_failure, open_failure, read_failure};
use super::args::{Delimiter, OutputArgs, ReadArgs, TailArgs};
use super::{confirm, form, list};
use crate::exit::{self, Failure};
use crate::output::{self, Output, OutputEnded};
use crate::progress::{Progress, Unit};
use bindery_client::{
    Client, Entry, EntryId, EntryStream, LedgerId, LedgerInfo, LedgerReader, LedgerState, OpenMode,
    ReadError, continued_in,
};
use serde_json::json;

/// `bindery ledger read`.
pub async fn read(client: Client, args: ReadArgs) -> Result<(), Failure> {
    if args.recover && !args.yes {
        let info = client.metadata(args.ledger).await.map_err(|error| ledger_failure(&error))?;
        if !matches!(info.metadata.state, LedgerState::Closed { .. }) {
            let described = [format!("{} ({})", info.id, list::state_for_people(&info))];
            confirm("This closes, for good:", "close it", "closed", &described)?;
        }
    }
    let how = if args.recover { OpenMode::Recover } else { OpenMode::ReadOnly };
    let reader = client.open_ledger(args.ledger, args.password.password.as_bytes(), how).await;
    let reader = reader.map_err(|error| open_failure(&error))?;
    if args.unconfirmed {
        return read_unconfirmed(&reader, &args).await;
    }
    let end = reader.last_add_confirmed();
    let first = args.entry.or(args.first).unwrap_or(EntryId::FIRST);
    let is_asked = args.entry.is_some() || args.first.is_some() || args.last.is_some();
    let last = match (args.entry.or(args.last), end) {
        (Some(last), _) => last,
        (None, Some(end)) => end.max(first),
        // All of an empty ledger.
        (None, None) if !is_asked => return say_what_may_follow(&client, &reader).await,
        (None, None) => first,
    };
    if first > last {
        return Err(Failure::usage(format!("--first {first} is behind --last {last}")));
    }
    if Some(last) > end {
        return Err(beyond_end(args.ledger, first.max(next_of(end)), end, reader.is_closed()));
    }
    let count = (last.get() - first.get()).unsigned_abs() + 1;
    // To the end, wherever that is when it comes there.
    let is_to_end = args.entry.is_none() && args.last.is_none();
    let mut entries = if is_to_end { reader.read(first..) } else { reader.read(first..=last) };
    let (done, failed) = write_all(&mut entries, &args.output, Some(count)).await?;
    match failed {
        None if done == count || (is_to_end && done > count) => match is_to_end {
            true => say_what_may_follow(&client, &reader).await,
            false => Ok(()),
        },
        None => Err(Failure::new(format!("only {done} of {count} entries came: this is a bug"))),
        Some(error) => Err(read_failure(&error)),
    }
}

/// Invariant 4.
async fn say_what_may_follow(client: &Client, reader: &LedgerReader) -> Result<(), Failure> {
    let info = client.metadata(reader.id()).await.map_err(|error| ledger_failure(&error))?;
    if let Some(text) = what_may_follow(&info, reader.last_add_confirmed()) {
        output::say(text);
    }
    Ok(())
}

fn what_may_follow(info: &LedgerInfo, end: Option<EntryId>) -> Option<String> {
    let id = info.id;
    if let Some(successor) = continued_in(&info.metadata) {
        return Some(format!("ledger {id} goes on in ledger {successor}"));
    }
    let known = match end {
        Some(end) => format!("entries up to {end} are known to be acknowledged"),
        None => "no entry is known to be acknowledged".to_owned(),
    };
    let state = match (list::writer(info), info.metadata.state) {
        (Some("busy" | "other"), _) => "is open",
        (None, LedgerState::InRecovery) => "is being recovered",
        _ => return None,
    };
    Some(format!(
        "ledger {id} {state}: {known}, and there may be more. bindery ledger tail {id} waits for it; if the writer is gone, bindery \
         ledger close {id} finds the end"
    ))
}

fn next_of(entry: Option<EntryId>) -> EntryId {
    EntryId::new(EntryId::to_wire(entry).saturating_add(1)).unwrap_or(EntryId::FIRST)
}

fn beyond_end(ledger: LedgerId, entry: EntryId, end: Option<EntryId>, is_closed: bool) -> Failure {
    let there = match end {
        None => "it is empty".into(),
        Some(end) => format!("it has entries 0 to {end}"),
    };
    let more = if is_closed { "and is closed" } else { "so far; bindery ledger tail waits for more" };
    Failure::with_code(exit::NOT_FOUND, format!("ledger {ledger} has no entry {entry}: {there} {more}"))
}

/// Up to the first entry that is not there, or to the last requested one.
async fn read_unconfirmed(reader: &LedgerReader, args: &ReadArgs) -> Result<(), Failure> {
    let first = args.entry.or(args.first).unwrap_or(EntryId::FIRST);
    let wanted = args.entry.or(args.last);
    let last = match wanted {
        Some(last) if first > last => {
            return Err(Failure::usage(format!("--first {first} is behind --last {last}")));
        }
        Some(last) => last,
        // There is nothing behind the end of a closed ledger.
        None if reader.is_closed() => match reader.last_add_confirmed() {
            Some(end) if first <= end => end,
            _ => return Ok(()),
        },
        None => EntryId::new(i64::MAX).expect("not negative"),
    };
    let mut entries = reader.read_unconfirmed(first, last);
    let total = wanted.map(|last| (last.get() - first.get()).unsigned_abs() + 1);
    let (_, failed) = write_all(&mut entries, &args.output, total).await?;
    match failed {
        None => Ok(()),
        // The end, when no end was named.
        Some(ReadError::NoEntry { .. } | ReadError::BeyondEnd { .. }) if wanted.is_none() => Ok(()),
        Some(error @ (ReadError::NoEntry { .. } | ReadError::BeyondEnd { .. })) => {
            Err(Failure::with_code(exit::NOT_FOUND, error))
        }
        Some(error) => Err(read_failure(&error)),
    }
}

/// `bindery ledger tail`.
pub async fn tail(client: Client, args: TailArgs) -> Result<(), Failure> {
    let password = args.password.password.as_bytes();
    let reader = client.open_ledger(args.ledger, password, OpenMode::ReadOnly).await;
    let reader = reader.map_err(|error| open_failure(&error))?;
    let end = reader.last_add_confirmed();
    let from = match args.from {
        Some(from) if reader.is_closed() && from > next_of(end) => {
            return Err(beyond_end(args.ledger, from, end, true));
        }
        Some(from) => from,
        None if args.from_start => EntryId::FIRST,
        None => {
            let count = i64::try_from(args.entries).unwrap_or(i64::MAX);
            EntryId::new(next_of(end).get().saturating_sub(count)).unwrap_or(EntryId::FIRST)
        }
    };
    let mut writer = EntryWriter::start(&args.output)?;
    let mut entries = reader.tail(from);
    let failed = loop {
        let next = tokio::select! {
            biased;
            next = entries.next() => next,
            // Nothing is there at once: invariant 3.
            () = std::future::ready(()), if writer.output.is_pending() => {
                if writer.output.flush().await.is_err() {
                    break None;
                }
                continue;
            }
        };
        match next {
            None => break None,
            Some(Err(error)) => break Some(error),
            Some(Ok(entry)) => {
                if writer.write(&entry).await.is_err() {
                    break None;
                }
            }
        }
    };
    writer.output.finish().await?;
    failed.map_or(Ok(()), |error| Err(read_failure(&error)))
}

/// Writes entries until they end or one cannot be read, and shows the progress towards `total` of them. Returns how many were written, and
/// why reading failed.
async fn write_all(
    entries: &mut EntryStream,
    args: &OutputArgs,
    total: Option<u64>,
) -> Result<(u64, Option<ReadError>), Failure> {
    let mut writer = EntryWriter::start(args)?;
    let mut progress = Progress::start("", Unit::Entries, total, true);
    let mut done = 0;
    let failed = loop {
        match entries.next().await {
            None => break None,
            Some(Err(error)) => break Some(error),
            Some(Ok(entry)) => {
                if writer.write(&entry).await.is_err() {
                    // The output has ended, and `finish` says why.
                    break None;
                }
            }
        }
        done += 1;
        progress.set(done);
    };
    progress.clear();
    writer.output.finish().await?;
    Ok((done, failed))
}

struct EntryWriter {
    output: Output,
    delimiter: Delimiter,
    is_json: bool,
}

impl EntryWriter {
    fn start(args: &OutputArgs) -> Result<EntryWriter, Failure> {
        Ok(EntryWriter { output: Output::start()?, delimiter: args.delimiter, is_json: args.json })
    }

    async fn write(&mut self, entry: &Entry) -> Result<(), OutputEnded> {
        let payload = &entry.payload;
        if self.is_json {
            let (key, value) = form::text_or_base64(payload);
            let object = json!({ "entry_id": entry.id.get(), "size_bytes": payload.len(), key: value });
            return self.output.write(&form::line(&object)).await;
        }
        match self.delimiter {
            Delimiter::None => self.output.write(payload).await,
            Delimiter::Newline => {
                self.output.write(payload).await?;
                self.output.write(b"\n").await
            }
            Delimiter::Length => {
                let length = u32::try_from(payload.len()).expect("an entry is smaller than 4 GiB");
                self.output.write(&length.to_be_bytes()).await?;
                self.output.write(payload).await
            }
        }
    }
}
