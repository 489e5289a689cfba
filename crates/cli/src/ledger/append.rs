//! `bindery ledger append`.
//!
//! # Data flow
//! ```text
//! input thread -> chunks -> enqueue (waits for room) -> bookies
//!                                                          |
//!              standard output <- printing thread <- confirmed entries
//! ```
//!
//! # Invariants
//! 1. An entry is enqueued once: nothing is ever sent a second time by this command.
//! 2. An id is printed, and counted in any message, only when the entry is confirmed.
//! 3. Every way out but a second signal waits for what was enqueued, says what became of it, and leaves the ledger to the
//!    next append if it still can be written.
//!
//! # Limits     entries in flight: the client's memory limit; after a signal: [`STOP_TIMEOUT`]

use super::access::{append_open_failure, stopped_code, take_over_failure};
use super::args::AppendArgs;
use super::form;
use super::input::{Chunk, Form, Input, InputError, Source};
use super::printer::IdPrinter;
use crate::exit::{self, Failure};
use crate::output;
use crate::progress::{Progress, Unit};
use crate::signals;
use bindery_client::{
    AppendError, AppendOpenError, Client, CloseError, EntryId, LedgerId, LedgerWriter, Stopped,
};
use serde_json::json;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind};
use tokio::time::Instant;

/// How long a stop by signal waits for acknowledgements.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Appends until the end of input, a signal, or an error.
pub async fn run(client: Client, args: AppendArgs) -> Result<(), Failure> {
    let form = match (args.form.length_delimited, args.form.whole) {
        (false, false) => Form::Lines { chomp: args.chomp },
        (true, _) => Form::LengthDelimited,
        (_, true) => Form::Whole,
    };
    let sources = Source::of(&args.files);
    let size_bytes = size_of(&sources)?;
    let mut signals = Signals::new()?;
    let (writer, stopped) = take(&client, &args, &mut signals).await?;
    let before = writer.progress().borrow().confirmed;
    let mut append = Append {
        client: client.clone(),
        writer,
        sent: Sent { form, sources, starts: Vec::new(), entries: 0, bytes: 0, before },
        printer: None,
        progress: Progress::start("", Unit::Bytes, size_bytes, args.print_ids),
        signals,
        begin: Instant::now(),
    };
    let why = match stopped {
        Some(number) => Why::Signal(number),
        None => match append.start(args.print_ids) {
            Ok(input) => append.send_all(input).await,
            Err(failure) => Why::NotStarted(failure),
        },
    };
    append.end(why, &args).await
}

/// Takes the ledger. A signal waits for the outcome and is returned with it: ended in between, this process would leave
/// a ledger that looks taken. A second signal does not wait.
async fn take(
    client: &Client,
    args: &AppendArgs,
    signals: &mut Signals,
) -> Result<(LedgerWriter, Option<i32>), Failure> {
    let opening = open(client, args);
    tokio::pin!(opening);
    let number = tokio::select! {
        biased;
        opened = &mut opening => return Ok((opened?, None)),
        number = signals.next() => number,
    };
    tokio::select! {
        biased;
        opened = &mut opening => return Ok((opened?, Some(number))),
        _ = signals.next() => {}
        () = tokio::time::sleep(STOP_TIMEOUT) => {}
    }
    let ledger = args.ledger;
    Err(Failure::with_code(
        exit::UNCLEAN_STOP,
        format!(
            "stopped by signal {number} before the metadata store answered; nothing was appended. If the next append \
             says that ledger {ledger} has a writer: bindery ledger append --take-over {ledger} goes on"
        ),
    ))
}

/// The writer of the ledger, or with --take-over of the one in which it goes on.
async fn open(client: &Client, args: &AppendArgs) -> Result<LedgerWriter, Failure> {
    let password = args.password.password.as_bytes();
    let error = match client.open_for_append(args.ledger, password).await {
        Ok(writer) => return Ok(writer),
        Err(error) => error,
    };
    let may_go_on = matches!(
        error,
        AppendOpenError::Busy(_) | AppendOpenError::InRecovery(_) | AppendOpenError::Continued { .. }
    );
    if !args.take_over || !may_go_on {
        return Err(append_open_failure(&error));
    }
    let taken = client.take_over(args.ledger, password).await.map_err(|error| take_over_failure(&error))?;
    for (ledger, last) in &taken.recovered {
        let end = last.map_or("it has no entries".to_owned(), |last| format!("its last entry is {last}"));
        output::say(format!("ledger {ledger} was recovered and closed: {end}"));
    }
    output::say(format!("going on in ledger {}, which continues ledger {}", taken.ledger, args.ledger));
    client.open_for_append(taken.ledger, password).await.map_err(|error| append_open_failure(&error))
}

/// Sum of the sources, when all of them are files. A file that is not there is found before anything is appended.
fn size_of(sources: &[Source]) -> Result<Option<u64>, Failure> {
    let mut sum = Some(0);
    for source in sources {
        let size = source.size_bytes().map_err(|error| {
            Failure::new(format!("cannot read {}: {error}; nothing was appended", source.name()))
        })?;
        sum = sum.zip(size).map(|(sum, size)| sum + size);
    }
    Ok(sum)
}

/// Why no more is read.
enum Why {
    /// All was read.
    InputEnded,
    /// The input cannot be read on.
    Input(InputError),
    /// SIGINT or SIGTERM.
    Signal(i32),
    /// No thread for input or output: nothing was read.
    NotStarted(Failure),
    /// This entry is refused; the ledger lives on.
    TooLarge { size_bytes: u64, max_bytes: u64 },
    /// The writer said so; the wait for acknowledgements says the same again.
    WriterStopped,
    /// The output for the ids has ended.
    OutputEnded,
}

/// The entries handed to the writer, and where they came from.
struct Sent {
    form: Form,
    sources: Vec<Source>,
    /// For each source that something was sent of: how many entries were sent before, and its index.
    starts: Vec<(u64, usize)>,
    entries: u64,
    bytes: u64,
    /// The last entry before this command.
    before: Option<EntryId>,
}

impl Sent {
    /// Where entry number `index` (from 0) of this run came from, as people count.
    fn place(&self, index: u64) -> String {
        let noun = self.form.noun();
        let found = self.starts.iter().rev().find(|(begin, _)| *begin <= index);
        match (found, self.form) {
            (Some((_, source)), Form::Whole) => self.sources[*source].name(),
            (Some((begin, source)), _) => {
                format!("{noun} {} of {}", index - begin + 1, self.sources[*source].name())
            }
            (None, _) => format!("{noun} {}", index + 1),
        }
    }

    /// Entries of this run up to `confirmed`.
    fn confirmed_count(&self, confirmed: Option<EntryId>) -> u64 {
        let count = EntryId::to_wire(confirmed) - EntryId::to_wire(self.before);
        u64::try_from(count).expect("confirmed entries do not become fewer")
    }

    /// The last acknowledged entry, for a message.
    fn acknowledged(&self, confirmed: Option<EntryId>) -> String {
        match (self.confirmed_count(confirmed), confirmed) {
            (0, None) => "nothing was acknowledged, the ledger has no acknowledged entry".into(),
            (0, Some(entry)) => {
                format!(
                    "nothing of this input was acknowledged; the last acknowledged entry is {entry}, from before"
                )
            }
            (count, Some(entry)) => {
                format!("the last acknowledged entry is {entry} ({})", self.place(count - 1))
            }
            (_, None) => unreachable!("a count above zero has a last one"),
        }
    }
}

struct Append {
    client: Client,
    writer: LedgerWriter,
    sent: Sent,
    printer: Option<IdPrinter>,
    progress: Progress,
    signals: Signals,
    begin: Instant,
}

impl Append {
    /// Starts the threads.
    fn start(&mut self, prints_ids: bool) -> Result<Input, Failure> {
        if prints_ids {
            self.printer = Some(IdPrinter::start(self.writer.progress(), self.sent.before)?);
        }
        let input = Input::start(self.sent.sources.clone(), self.sent.form);
        input.map_err(|error| Failure::new(format!("cannot start a thread: {error}")))
    }

    async fn send_all(&mut self, mut input: Input) -> Why {
        let mut watched = self.writer.progress();
        let stopped = async move {
            // An error means that the writer is gone, which it is not while this runs.
            let _ = watched.wait_for(|progress| progress.failure.is_some()).await;
        };
        tokio::pin!(stopped);
        loop {
            // Cancelling a branch here loses only input that was not yet enqueued.
            let received = tokio::select! {
                biased;
                number = self.signals.next() => return Why::Signal(number),
                () = IdPrinter::ended(&mut self.printer) => return Why::OutputEnded,
                () = &mut stopped => return Why::WriterStopped,
                received = input.next() => received,
            };
            let chunk = match received {
                None => return Why::InputEnded,
                Some(Err(error)) => return Why::Input(error),
                Some(Ok(chunk)) => chunk,
            };
            let sending = send(&self.writer, &mut self.sent, &chunk);
            let outcome = tokio::select! {
                biased;
                outcome = sending => outcome,
                number = self.signals.next() => return Why::Signal(number),
                () = IdPrinter::ended(&mut self.printer) => return Why::OutputEnded,
            };
            match outcome {
                Ok(()) => {}
                Err(AppendError::TooLarge { size_bytes, max_bytes }) => {
                    return Why::TooLarge { size_bytes, max_bytes };
                }
                Err(_) => return Why::WriterStopped,
            }
            self.progress.set(self.sent.bytes);
            input.give_back(chunk);
        }
    }

    /// Waits for the acknowledgements, leaves the ledger to the next one, and reports.
    async fn end(self, why: Why, args: &AppendArgs) -> Result<(), Failure> {
        let Append { client, writer, sent, printer, mut progress, mut signals, begin } = self;
        let ledger = writer.id();
        let confirmed = writer.progress();
        let is_closing = args.close && matches!(why, Why::InputEnded);
        let release = async {
            let released = match is_closing {
                true => writer.close().await.map(|closed| closed.last_entry),
                false => writer.hand_over().await,
            };
            let printed = match printer {
                Some(printer) => printer.finish().await,
                None => Ok(()),
            };
            (released, printed)
        };
        // Without a request to stop: as long as it takes, or until a signal.
        let deadline = matches!(why, Why::Signal(_)).then(|| Instant::now() + STOP_TIMEOUT);
        let late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            outcome = release => Ok(outcome),
            number = signals.next() => Err(number),
            () = late => Err(if let Why::Signal(number) = why { number } else { 0 }),
        };
        progress.clear();
        let last = confirmed.borrow().confirmed;
        let (released, printed) = outcome.map_err(|number| stopped_early(&sent, last, number))?;
        let last = released.map_err(|error| not_released(&sent, ledger, &error))?;
        let health = client.write_health();
        let copies_missing = health.copies_missing;
        let missing =
            (copies_missing > 0).then(|| missing(ledger, copies_missing, health.ledgers_unmarked > 0));
        let is_told_by_summary = printed.is_ok() && matches!(why, Why::InputEnded);
        if let Some(missing) = missing.as_ref().filter(|_| !is_told_by_summary) {
            output::say(missing);
        }
        if let Err(failure) = printed {
            let why = match failure.is_silent() {
                true => "the reader of standard output closed it".to_owned(),
                false => failure.to_string(),
            };
            let said = format!("{why}; all that was sent is acknowledged: {}", sent.acknowledged(last));
            return Err(Failure::with_code(failure.code, said));
        }
        let is_closed = is_closing;
        let summary = Summary { ledger, sent: &sent, last, is_closed, copies_missing, missing, begin };
        match why {
            Why::InputEnded => summary.print(args),
            Why::Input(error) => {
                Err(Failure::new(format!("{error}. All before it is appended: {}", sent.acknowledged(last))))
            }
            Why::TooLarge { size_bytes, max_bytes } => Err(Failure::new(format!(
                "{} has {size_bytes} bytes, above the limit of {max_bytes} for an entry: split it. All before it is appended: {}",
                sent.place(sent.entries),
                sent.acknowledged(last)
            ))),
            Why::Signal(number) => Err(Failure::with_code(
                exit::SIGNALLED + number as u8,
                format!(
                    "stopped by a signal; all that was sent is acknowledged: {}",
                    sent.acknowledged(last)
                ),
            )),
            Why::NotStarted(failure) => Err(failure),
            // The writer stopped and yet released the ledger, or the output ended and yet was written.
            Why::WriterStopped | Why::OutputEnded => {
                Err(Failure::new(format!("the append stopped early: {}", sent.acknowledged(last))))
            }
        }
    }
}

/// Invariant 1: an entry for which this returns an error was not enqueued, and `sent` counts those that were.
async fn send(writer: &LedgerWriter, sent: &mut Sent, chunk: &Chunk) -> Result<(), AppendError> {
    for entry in chunk.entries() {
        if sent.starts.last().is_none_or(|(_, source)| *source != chunk.source) {
            sent.starts.push((sent.entries, chunk.source));
        }
        writer.enqueue(entry).await?;
        sent.entries += 1;
        sent.bytes += entry.len() as u64;
    }
    Ok(())
}

fn stopped_early(sent: &Sent, confirmed: Option<EntryId>, number: i32) -> Failure {
    Failure::with_code(
        exit::UNCLEAN_STOP,
        format!(
            "stopped by signal {number} before all was acknowledged: {}. Entries after it may or may not be stored, and \
             the ledger was not handed over: bindery ledger append --take-over goes on behind what is stored",
            sent.acknowledged(confirmed)
        ),
    )
}

/// The ledger ended under us.
fn not_released(sent: &Sent, ledger: LedgerId, error: &CloseError) -> Failure {
    let confirmed = error.last_confirmed();
    let code = match error {
        CloseError::GivenBack(stopped) => {
            let Stopped { why, .. } = stopped;
            let said = format!(
                "ledger {ledger}: {why}. Nothing of this input is stored, and the ledger was left as it was: append again with what is missing"
            );
            return Failure::with_code(stopped_code(stopped), said);
        }
        CloseError::Stopped(stopped) => stopped_code(stopped),
        _ => exit::LEDGER_ENDED,
    };
    let what = match error {
        CloseError::Stopped(Stopped { why, .. }) => {
            format!("ledger {ledger} can no longer be written: {why}")
        }
        _ => error.to_string(),
    };
    let first_unknown = EntryId::to_wire(confirmed) + 1;
    Failure::with_code(
        code,
        format!(
            "{what}. {}. Entries after it may or may not be stored, and were not sent again: bindery ledger close \
             {ledger} settles it, then bindery ledger read {ledger} --first {first_unknown} shows what else is there",
            form::sentence(&sent.acknowledged(confirmed))
        ),
    )
}

/// Copies that bookies lack, of entries that are all acknowledged.
fn missing(ledger: LedgerId, copies: u64, is_unmarked: bool) -> String {
    let copies = form::count(copies, "copy of them is", "copies of them are");
    let mark = match is_unmarked {
        false => format!(
            "The ledger is marked as under-replicated there, for the cluster to repair: bindery ledger show {ledger}"
        ),
        true => format!(
            "The ledger could not be marked as under-replicated there, so nobody repairs it unasked: bindery ledger verify \
             {ledger}"
        ),
    };
    format!(
        "ledger {ledger}: all entries are acknowledged, and {copies} missing on bookies that were away or too slow. {mark}"
    )
}

struct Summary<'a> {
    ledger: LedgerId,
    sent: &'a Sent,
    last: Option<EntryId>,
    is_closed: bool,
    /// Copies of its entries that bookies lack.
    copies_missing: u64,
    /// The same for people.
    missing: Option<String>,
    begin: Instant,
}

impl Summary<'_> {
    fn print(&self, args: &AppendArgs) -> Result<(), Failure> {
        let Summary { ledger, sent, last, is_closed, copies_missing, missing, begin } = self;
        let seconds = begin.elapsed().as_secs_f64();
        let first = (sent.entries > 0).then(|| EntryId::to_wire(sent.before) + 1);
        if !args.quiet && !args.json {
            let range = match (first, last) {
                (Some(first), Some(last)) => format!(", {first} to {last}"),
                _ => String::new(),
            };
            let per_second = sent.entries as f64 / seconds.max(1e-9);
            output::say(format!(
                "ledger {ledger}: {}{range}, {} in {seconds:.2} s ({per_second:.0} entries/s, {}/s){}",
                form::count(sent.entries, "entry", "entries"),
                form::size(sent.bytes),
                form::size((sent.bytes as f64 / seconds.max(1e-9)) as u64),
                if *is_closed { ", closed" } else { "" },
            ));
        }
        if let Some(missing) = missing.as_ref().filter(|_| !args.json) {
            output::say(missing);
        }
        if args.json {
            return output::write_all(&form::line(&json!({
                "ledger_id": ledger.get(),
                "first_entry": first,
                "last_entry": first.and(last.map(EntryId::get)),
                "entries": sent.entries,
                "bytes": sent.bytes,
                "seconds": seconds,
                "closed": is_closed,
                "copies_missing": copies_missing,
            })));
        }
        Ok(())
    }
}

/// SIGINT and SIGTERM. Once caught, they no longer end the process by themselves.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        Ok(Signals {
            interrupt: signals::catch(SignalKind::interrupt())?,
            terminate: signals::catch(SignalKind::terminate())?,
        })
    }

    /// Number of the next one. Cancel safe.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_was_not_made_is_not_spoken_of_as_made() {
        let ledger = LedgerId::new(7).unwrap();
        let marked = missing(ledger, 2, false);
        assert!(marked.contains("2 copies of them are missing") && marked.contains("is marked"), "{marked}");
        let unmarked = missing(ledger, 1, true);
        assert!(unmarked.contains("1 copy of them is missing"), "{unmarked}");
        assert!(unmarked.contains("could not be marked") && !unmarked.contains("is marked"), "{unmarked}");
    }
}
