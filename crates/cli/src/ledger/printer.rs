//! Ids of acknowledged entries on standard output, as they are acknowledged.
//!
//! # Invariants
//! 1. An id is written after its entry was confirmed, each once, in order.
//! 2. The ids that one acknowledgement confirms are written at once and not held back in any buffer.
//!
//! # Limits     a slow reader of the pipe delays printing only: waiting ids are kept as a number, not as a queue

use crate::exit::Failure;
use crate::output;
use bindery_client::{EntryId, ProgressWatch};
use std::io::{self, Write};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Ids written in one go, at most.
const IDS_EACH_WRITE_MAX: i64 = 8192;

/// A thread that prints. It ends when it is told to, or with the first error.
pub struct IdPrinter {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<io::Result<()>>,
    outcome: Option<io::Result<()>>,
}

impl IdPrinter {
    /// Starts behind entry `printed`.
    pub fn start(progress: ProgressWatch, printed: Option<EntryId>) -> Result<IdPrinter, Failure> {
        let out = output::raw_stdout().map_err(|error| output::failure(&error))?;
        let (done, ended) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let runtime = Handle::current();
        let print = move || {
            // The receiver is gone only when the process ends.
            let _ = done.send(print_all(&runtime, progress, stopped, EntryId::to_wire(printed), out));
        };
        let started = std::thread::Builder::new().name("bindery-stdout".into()).spawn(print);
        started.map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
        Ok(IdPrinter { stop, ended, outcome: None })
    }

    /// Returns when the thread of a printer has ended early; never without a printer. Cancel safe.
    pub async fn ended(printer: &mut Option<IdPrinter>) {
        match printer {
            Some(printer) if printer.outcome.is_none() => {
                printer.outcome = Some(outcome(&mut printer.ended).await)
            }
            Some(_) => {}
            None => std::future::pending().await,
        }
    }

    /// Waits until all that is confirmed by now is printed.
    pub async fn finish(self) -> Result<(), Failure> {
        let IdPrinter { stop, mut ended, outcome: known } = self;
        // A thread that has ended already needs no word.
        let _ = stop.send(());
        let outcome = match known {
            Some(outcome) => outcome,
            None => outcome(&mut ended).await,
        };
        outcome.map_err(|error| output::failure(&error))
    }
}

async fn outcome(ended: &mut oneshot::Receiver<io::Result<()>>) -> io::Result<()> {
    ended.await.unwrap_or_else(|_| Err(io::Error::other("the thread that prints ids failed")))
}

fn print_all(
    runtime: &Handle,
    mut progress: ProgressWatch,
    mut stopped: oneshot::Receiver<()>,
    mut printed: i64,
    mut out: impl Write,
) -> io::Result<()> {
    let mut text = Vec::new();
    loop {
        let is_last = runtime.block_on(async {
            tokio::select! {
                _ = &mut stopped => true,
                changed = progress.changed() => changed.is_err(),
            }
        });
        let confirmed = EntryId::to_wire(progress.borrow_and_update().confirmed);
        while printed < confirmed {
            let until = confirmed.min(printed + IDS_EACH_WRITE_MAX);
            text.clear();
            for id in printed + 1..=until {
                writeln!(text, "{id}")?;
            }
            out.write_all(&text)?;
            printed = until;
        }
        if is_last {
            return out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_client::Progress;
    use std::io::ErrorKind;
    use tokio::sync::watch;

    #[test]
    fn ids_are_printed_once_in_order_and_the_last_ones_when_told_to_stop() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, receiver) = watch::channel(Progress::default());
        let (read, write) = std::io::pipe().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || print_all(&handle, receiver.into(), stopped, 4, write));
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(read));
        let mut expected = 5;
        for confirmed in [5, 9, 9, 30_000] {
            sender.send_modify(|progress| progress.confirmed = EntryId::new(confirmed));
            while expected <= confirmed {
                // Invariant 2: this would hang if ids waited for more.
                assert_eq!(lines.next().unwrap().unwrap(), expected.to_string(), "invariant 1");
                expected += 1;
            }
        }
        sender.send_modify(|progress| progress.confirmed = EntryId::new(30_001));
        stop.send(()).unwrap();
        assert_eq!(lines.map(Result::unwrap).collect::<Vec<_>>(), ["30001"]);
        assert!(thread.join().unwrap().is_ok());
    }

    #[test]
    fn a_reader_that_goes_away_ends_the_printing() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, receiver) = watch::channel(Progress::default());
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        sender.send_modify(|progress| progress.confirmed = EntryId::new(1));
        let (_stop, stopped) = oneshot::channel();
        let ended = print_all(runtime.handle(), receiver.into(), stopped, -1, write);
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
