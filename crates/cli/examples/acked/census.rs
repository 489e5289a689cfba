//! Questions to one bookie, past the replication: which entries it has, how it answers later, whether its fences hold.

use super::Common;
use super::log::{self, Log, hash};
use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{
    AddAnswer, AddRequest, AddSink, AddTag, BookieError, ReadRequest, Transport,
};
use bindery_client::{BookieId, EntryId, LedgerId};
use bindery_types::MasterKey;
use bindery_wire::ErrorCode;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Questions in flight.
const OUTSTANDING: usize = 128;

/// Whom to ask, and where the answers are kept.
#[derive(clap::Args, Clone)]
pub struct CensusArgs {
    #[command(flatten)]
    common: Common,
    /// The bookie's id
    #[arg(long)]
    bookie: String,
    /// What it had: a line "ledger entry hash" each
    #[arg(long)]
    census: PathBuf,
    /// A recheck may leave out so many questions in a row: every n-th is asked
    #[arg(long, default_value_t = 1)]
    every: usize,
}

/// Whom to ask.
#[derive(clap::Args, Clone)]
pub struct FenceArgs {
    #[command(flatten)]
    common: Common,
    /// The bookie's id
    #[arg(long)]
    bookie: String,
    /// Does not fence: fences granted before must be in force
    #[arg(long)]
    check: bool,
}

async fn bookies(common: &Common) -> Bookies {
    let layout = bindery_metadata::connect(&common.uri(), Default::default()).await.unwrap();
    let request_timeout = Duration::from_millis(common.timeout_ms);
    Bookies::new(layout.registration(), ConnectionOptions { request_timeout, ..ConnectionOptions::default() })
}

/// Asks for all of these, some at a time.
async fn ask(
    bookies: &Bookies,
    bookie: &BookieId,
    questions: &[(i64, i64)],
    mut answered: impl FnMut((i64, i64), Result<Bytes, BookieError>),
) {
    for part in questions.chunks(OUTSTANDING) {
        let waiting: Vec<_> = part
            .iter()
            .map(|&(ledger, entry)| {
                let (ledger, entry) = (LedgerId::new(ledger).unwrap(), EntryId::new(entry));
                bookies.read(bookie, ReadRequest { ledger, entry, fence: None })
            })
            .collect();
        for (question, answer) in part.iter().zip(waiting) {
            answered(*question, answer.await);
        }
    }
}

/// Writes the census.
pub async fn take(args: CensusArgs) -> bool {
    let (bookies, bookie) = (bookies(&args.common).await, BookieId::new(args.bookie.clone()).unwrap());
    let (ledgers, _) = log::read(&args.common.log);
    let questions: Vec<_> = ledgers
        .iter()
        .flat_map(|(&ledger, it)| it.entries.keys().map(move |&entry| (ledger, entry)))
        .collect();
    let (mut text, mut has, mut errors) = (String::new(), 0, 0);
    ask(&bookies, &bookie, &questions, |(ledger, entry), answer| match answer {
        Ok(body) => {
            has += 1;
            writeln!(text, "{ledger} {entry} {:016x}", hash(&body)).unwrap();
        }
        Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)) => {}
        Err(_) => errors += 1,
    })
    .await;
    std::fs::write(&args.census, text).unwrap();
    println!("census: bookie={bookie} acknowledged={} has={has} errors={errors}", questions.len());
    has > 0 && errors == 0
}

/// Asks again; false on a negative answer or other bytes.
pub async fn recheck(args: CensusArgs) -> bool {
    let (bookies, bookie) = (bookies(&args.common).await, BookieId::new(args.bookie.clone()).unwrap());
    let text = std::fs::read_to_string(&args.census).unwrap();
    let mut known = BTreeMap::new();
    for line in text.lines().step_by(args.every) {
        let words: Vec<&str> = line.split(' ').collect();
        known.insert(
            (words[0].parse().unwrap(), words[1].parse().unwrap()),
            u64::from_str_radix(words[2], 16).unwrap(),
        );
    }
    let questions: Vec<_> = known.keys().copied().collect();
    let (mut same, mut changed, mut negative, mut errors, mut unreachable) = (0, 0, 0, 0, 0);
    ask(&bookies, &bookie, &questions, |question, answer| match answer {
        Ok(body) if hash(&body) == known[&question] => same += 1,
        Ok(_) => {
            changed += 1;
            println!("FAULT ledger {} entry {} has other bytes", question.0, question.1);
        }
        Err(BookieError::Refused(code @ (ErrorCode::NoEntry | ErrorCode::NoLedger))) => {
            negative += 1;
            if negative <= 5 {
                println!(
                    "FAULT ledger {} entry {} is here, and the answer is {code:?}",
                    question.0, question.1
                );
            }
        }
        Err(BookieError::Refused(_)) => errors += 1,
        Err(_) => unreachable += 1,
    })
    .await;
    println!(
        "recheck: bookie={bookie} asked={} same={same} changed={changed} negative={negative} errors={errors} \
         unreachable={unreachable}",
        questions.len()
    );
    changed == 0 && negative == 0
}

struct Sink(mpsc::Sender<Result<(), BookieError>>);

impl AddSink for Sink {
    fn added(self: Arc<Self>, _bookie: &BookieId, answers: &[AddAnswer]) {
        for answer in answers {
            let _ = self.0.try_send(answer.result.clone());
        }
    }
}

/// An add of a writer that does not know of the fence.
async fn add(
    bookies: &Bookies,
    bookie: &BookieId,
    ledger: LedgerId,
    key: MasterKey,
) -> Result<(), BookieError> {
    let entry = EntryId::new(1_000_000_000).unwrap();
    let mut body = Vec::new();
    for word in [ledger.get(), entry.get(), -1, 1] {
        body.extend_from_slice(&word.to_be_bytes());
    }
    body.extend_from_slice(&[0; 5]);
    let (sender, mut receiver) = mpsc::channel(1);
    let sink: Arc<dyn AddSink> = Arc::new(Sink(sender));
    let (body, tag) = (body.into(), AddTag(0));
    bookies.add(
        bookie,
        AddRequest {
            ledger,
            entry,
            body,
            master_key: key,
            is_recovery: false,
            is_background: false,
            is_deferred: false,
            tag,
        },
        &sink,
    );
    bookies.flush();
    receiver.recv().await.unwrap_or(Err(BookieError::Closed))
}

/// Fences, or checks fences; false when an answer stays out or a fence is forgotten.
pub async fn fence(args: FenceArgs) -> bool {
    let (bookies, bookie) = (bookies(&args.common).await, BookieId::new(args.bookie.clone()).unwrap());
    let (ledgers, _) = log::read(&args.common.log);
    let log = Log::open(&args.common.log);
    let key = MasterKey::from_password(b"");
    let (mut asked, mut granted, mut refused, mut silent, mut forgotten, mut kept) = (0, 0, 0, 0, 0, 0);
    for (&id, promised) in &ledgers {
        let ledger = LedgerId::new(id).unwrap();
        if args.check {
            if !promised.fenced_by.contains(&args.bookie) {
                continue;
            }
            asked += 1;
            match add(&bookies, &bookie, ledger, key).await {
                Err(BookieError::Refused(ErrorCode::Fenced)) => kept += 1,
                Ok(()) => {
                    forgotten += 1;
                    println!("FAULT ledger {ledger} was fenced, and an add of its old writer was taken");
                }
                Err(BookieError::Refused(_)) => refused += 1,
                Err(_) => silent += 1,
            }
            continue;
        }
        if promised.closed.is_some() {
            continue;
        }
        asked += 1;
        match bookies.read(&bookie, ReadRequest { ledger, entry: None, fence: Some(key) }).await {
            Ok(_) | Err(BookieError::Refused(ErrorCode::NoEntry)) => {
                granted += 1;
                log.add(&format!("Z {ledger} {bookie}\n"));
            }
            Err(BookieError::Refused(_)) => refused += 1,
            Err(_) => silent += 1,
        }
    }
    println!(
        "fence: asked={asked} granted={granted} refused={refused} silent={silent} kept={kept} forgotten={forgotten}"
    );
    silent == 0 && forgotten == 0
}
