//! The disk space that a benchmark takes on bookies: looked at before, and asked back afterwards.

use super::args::BenchCommonArgs;
use crate::admin_http::{Address, Words, ask_with, find_json};
use crate::exit::Failure;
use crate::ledger::form;
use crate::output;
use bindery_client::{Client, Quorum};
use serde::Deserialize;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long one bookie may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Bytes of an entry in log and index, besides its payload.
const ENTRY_OVERHEAD_BYTES: u64 = 80;
/// Adds that nothing limits write no faster than this to one bookie, on the machines of today.
const UNLIMITED_BYTES_PER_SECOND: u64 = 1 << 30;

const WORDS: Words = Words {
    command: "bindery bookie gc",
    whose: "bookie",
    nobody: "nobody listens there",
    missing: "does not say its space",
    starting: "is not ready",
};

/// `GET /api/v1/bookie/info`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Space {
    free_space: u64,
}

/// Bytes that so many entries take, all copies together.
pub fn bytes_of(entries: u64, common: &BenchCommonArgs, quorum: Quorum) -> u64 {
    let entry = u64::from(common.entry_size) + ENTRY_OVERHEAD_BYTES;
    entries.saturating_mul(entry).saturating_mul(quorum.write_quorum_size() as u64)
}

/// Refuses entries that do not fit on the bookies together. `None` for as many as are acknowledged within the time: that only warns.
pub async fn check(
    client: &Client,
    common: &BenchCommonArgs,
    quorum: Quorum,
    entries: Option<u64>,
) -> Result<(), Failure> {
    let free: Vec<u64> = spaces(client).await;
    if free.is_empty() {
        output::say("how much space the bookies have is not known: none has an admin port that says so");
        return Ok(());
    }
    let sum = free.iter().fold(0, |sum: u64, free| sum.saturating_add(*free));
    match (entries, verdict(&free, common, quorum, entries)) {
        (_, Verdict::Fits) => Ok(()),
        (Some(entries), Verdict::DoesNotFit) => Err(Failure::usage(format!(
            "{} and their copies take {} of the {} that are free on {}: lower --rate, --seconds, --entries or --entry-size",
            form::count(entries, "entry", "entries"),
            form::size(bytes_of(entries, common, quorum)),
            form::size(sum),
            form::count(free.len() as u64, "bookie", "bookies"),
        ))),
        (_, _) => {
            output::say(format!(
                "{} free on {}: as many entries as are acknowledged in {} s may fill that, and a bookie that is full takes no \
                 more; --rate limits them",
                form::size(sum),
                form::count(free.len() as u64, "bookie", "bookies"),
                common.warmup + common.seconds,
            ));
            Ok(())
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Fits,
    MayNotFit,
    DoesNotFit,
}

fn verdict(free: &[u64], common: &BenchCommonArgs, quorum: Quorum, entries: Option<u64>) -> Verdict {
    match entries {
        Some(entries) => {
            let sum = free.iter().fold(0, |sum: u64, free| sum.saturating_add(*free));
            if bytes_of(entries, common, quorum) > sum { Verdict::DoesNotFit } else { Verdict::Fits }
        }
        None => {
            let seconds = u64::from(common.warmup + common.seconds);
            let needed = UNLIMITED_BYTES_PER_SECOND.saturating_mul(seconds);
            let least = free.iter().min().copied().unwrap_or(0);
            if needed > least { Verdict::MayNotFit } else { Verdict::Fits }
        }
    }
}

/// The admin ports of the bookies, as far as they have some.
async fn ports(client: &Client) -> Vec<Address> {
    let bookies = client.bookies().await.unwrap_or_default();
    bookies.iter().filter_map(|bookie| Address::registered(&bookie.id, &bookie.endpoints).ok()).collect()
}

/// Free bytes of the bookies that say so.
async fn spaces(client: &Client) -> Vec<u64> {
    let mut asked = JoinSet::new();
    for port in ports(client).await {
        asked.spawn(async move {
            let found = timeout(ANSWER_MAX, find_json::<Space>(&port, "/api/v1/bookie/info", &WORDS)).await;
            found.ok()?.ok().flatten().map(|space| space.free_space)
        });
    }
    asked.join_all().await.into_iter().flatten().collect()
}

/// Says how much was written and where it is now. The bytes of deleted ledgers stay until bookies collect them. This asks the bookies to do so,
/// unless the result is for a program, which may measure again at once.
pub async fn leave(client: &Client, common: &BenchCommonArgs, written_bytes: u64) {
    if written_bytes == 0 {
        return;
    }
    let written = form::size(written_bytes);
    if common.keep {
        output::say(format!(
            "about {written} are kept on the bookies: bindery ledger delete, then bindery bookie gc"
        ));
        return;
    }
    if common.json {
        output::say(format!(
            "about {written} were written; bookies give them back at their next collection (bindery bookie gc --major)"
        ));
        return;
    }
    let mut asked = JoinSet::new();
    for port in ports(client).await {
        asked.spawn(async move {
            let body = r#"{"forceMajor":true,"forceMinor":true}"#;
            let asking = ask_with(&port, "PUT", "/api/v1/bookie/gc", body, &WORDS);
            matches!(timeout(ANSWER_MAX, asking).await, Ok(Ok(_)))
        });
    }
    let answers = asked.join_all().await;
    match !answers.is_empty() && answers.iter().all(|is_asked| *is_asked) {
        true => output::say(format!(
            "about {written} were written; the ledgers are deleted, and the bookies were asked to collect them now"
        )),
        false => output::say(format!(
            "about {written} were written; the ledgers are deleted, and bookies that could not be asked collect them within their \
             gcWaitTime (bindery bookie gc --major asks them)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::BenchCommand;
    use crate::command_line::{Cli, Command};
    use clap::Parser;

    fn common(line: &[&str]) -> BenchCommonArgs {
        let cli = Cli::try_parse_from([&["bindery", "bench", "add"], line].concat()).unwrap();
        match cli.command {
            Command::Bench(args) => match args.command {
                BenchCommand::Add(add) => add.common,
                BenchCommand::Read(read) => read.common,
            },
            _ => unreachable!(),
        }
    }

    #[test]
    fn what_cannot_fit_is_refused_and_what_may_not_is_said() {
        let three = Quorum::new(3, 3, 2).unwrap();
        let limited =
            common(&["--rate", "1000", "--seconds", "10s", "--warmup", "0", "--entry-size", "1000"]);
        assert_eq!(bytes_of(10_000, &limited, three), 3 * 10_000 * 1080);
        let verdict_of = |free, entries| verdict(&[free; 3], &limited, three, entries);
        assert_eq!(verdict_of(1080 * 10_000, Some(10_000)), Verdict::Fits);
        assert_eq!(verdict_of(1080 * 10_000 - 1, Some(10_000)), Verdict::DoesNotFit);
        assert_eq!(verdict_of(10 << 30, None), Verdict::Fits);
        assert_eq!(verdict_of((10 << 30) - 1, None), Verdict::MayNotFit);
    }
}
