//! `bindery tier now`: asks for a ledger, and waits until it is in the tier.

use super::WORDS;
use super::args::TierNowArgs;
use crate::admin_http::{Address, ask_json};
use crate::exit::{self, Failure};
use crate::output;
use crate::progress::Progress;
use crate::runtime;
use bindery_reconciler::LedgerReport;
use bindery_types::LedgerId;
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command.
pub fn run(args: &TierNowArgs) -> Result<(), Failure> {
    runtime::single()?.block_on(async {
        let address = args.admin.find().await?;
        wait(args, &address).await
    })
}

async fn report(
    address: &Address,
    method: &str,
    name: &str,
    ledger: LedgerId,
) -> Result<LedgerReport, Failure> {
    ask_json(address, method, &format!("/api/v1/tier/{name}?id={ledger}"), &WORDS).await
}

async fn wait(args: &TierNowArgs, address: &Address) -> Result<(), Failure> {
    let mut found = report(address, "PUT", "now", args.ledger).await?;
    if args.timeout == 0.0 {
        return output::write_all(format!("ledger {} was asked for\n", args.ledger).as_bytes());
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs_f64(args.timeout.clamp(0.1, 86_400.0));
    let progress = Progress::wait("");
    loop {
        progress.say(|| line(&found));
        let end = |code: u8, text: String| Err(Failure::with_code(code, text));
        match found.state.as_str() {
            "tiered" => {
                drop(progress);
                return output::write_all(format!("{}\n", line(&found)).as_bytes());
            }
            "stopped" | "failing" => {
                let why = found.why.clone().unwrap_or_default();
                return end(exit::FAILURE, format!("ledger {}: {why}", args.ledger));
            }
            // The tierer has looked since it was asked. Earlier versions say that it is unknown.
            "gone" | "unknown" => {
                return end(exit::NOT_FOUND, format!("there is no ledger {}", args.ledger));
            }
            // It has started again since.
            "elsewhere" => {
                return end(exit::FAILURE, format!("{}; this one does not watch it any more", line(&found)));
            }
            _ => {}
        }
        if tokio::time::Instant::now() >= deadline {
            let state = line(&found);
            return end(
                exit::FAILURE,
                format!("{state} after {} s; it goes on: look with bindery tier status", args.timeout),
            );
        }
        tokio::time::sleep(LOOK).await;
        found = report(address, "GET", "ledger", args.ledger).await?;
    }
}

fn line(report: &LedgerReport) -> String {
    let LedgerReport { ledger, state, tiered, available, owner, .. } = report;
    // From the last entry, which may be the last number that an entry can have.
    let up_to = |last: i64| i128::from(last) + 1;
    let mut line = format!("ledger {ledger}: {state}");
    if let Some(available) = available {
        let tiered = tiered.map_or(0, up_to);
        line.push_str(&format!(", {tiered} of {} entries are in the tier", up_to(*available)));
    }
    if let Some(owner) = owner {
        line.push_str(&format!(" (tierer {owner} moves it)"));
    }
    line
}
