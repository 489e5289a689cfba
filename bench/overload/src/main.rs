//! One overload scenario against one bookie, whichever it is; `./run` starts bookies, alternates between them, and makes
//! a report of the results. Each run prints one line of JSON.
//!
//! # Data flow
//! ```text
//! scenario -> engine (one thread: flows in open or closed loop) ─┐
//!          -> consumers, heads (one thread: take or send little) ├─> JSON line -> report (Markdown, PNG)
//!          -> probes, watch (threads that mostly sleep)         ─┘
//! ```
//!
//! # Invariants
//! 1. Open loop: latency counts from when a request was due; one not answered in time counts with the timeout.
//! 2. The program ends whatever the bookie does: every wait has an end.
//! 3. The program's own cost, and its lateness, stand beside its results.

mod adds;
mod args;
mod big;
mod catchup;
mod check;
mod clock;
mod conn;
mod consumers;
mod engine;
mod fill;
mod flow;
mod heads;
mod idle;
mod link;
mod overrun;
mod plot;
mod probe;
mod proxy;
mod rates;
mod reads;
mod report;
mod stall;
mod stats;
mod watch;
mod work;

use anyhow::{Result, bail};
use args::Args;

const USAGE: &str =
    "overload SCENARIO --bookie HOST:PORT --pid PID --label NAME [--admin HOST:PORT] [--tls-ca FILE] [options]
scenarios: stall (D1 to D6, H1), idle (L1), rates (L2), overrun (F1), big (L6), catchup (L7), adds, reads
overload check [--rss-mib-max N] <RESULT: what must hold of our bookie on any machine
overload report RESULTS.json [--images DIR]: Markdown on standard output, plots in DIR
overload proxy --listen HOST:PORT --to HOST:PORT: stands before a bookie; pass, delay MS or refuse on standard input
--tls-ca FILE: all connections to the bookie's port over TLS, by START_TLS, with an authority of its certificate";

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let Some(scenario) = words.next() else { bail!("{USAGE}") };
    let args = Args::parse(words)?;
    clock::now();
    let result = match scenario.as_str() {
        "stall" => stall::run(args)?,
        "idle" => idle::run(args)?,
        "rates" => rates::run(args)?,
        "overrun" => overrun::run(args)?,
        "big" => big::run(args)?,
        "catchup" => catchup::run(args)?,
        "adds" => adds::run(args)?,
        "reads" => reads::run(args)?,
        "check" => return check::run(args),
        "proxy" => return proxy::run(args),
        "report" => return report::run(args),
        _ => bail!("{USAGE}"),
    };
    println!("{result}");
    Ok(())
}
