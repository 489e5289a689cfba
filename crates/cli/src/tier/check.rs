//! `bindery tier check`: whether a store can hold a tier.

use std::io::{self, Write};

use bindery_io::{SystemClock, SystemRandom};
use bindery_tiering::ClusterId;
use bindery_tiering::store::{self, CheckOptions, Checked, Gate, Verdict};

use super::args::TierCheckArgs;
use crate::bucket;
use crate::exit::Failure;
use crate::runtime;
use crate::tier_role::check_failure;

/// Runs the command; data goes to standard output.
pub fn run(args: &TierCheckArgs) -> Result<(), Failure> {
    let store = bucket::open_store(&args.url)?;
    let url = store.url().clone();
    let named = args
        .cluster
        .as_deref()
        .map(|text| text.parse::<ClusterId>().map_err(|error| Failure::usage(format!("--cluster: {error}"))));
    let options = CheckOptions { cluster: named.transpose()?, compare_and_swap: true };
    let runtime = runtime::start()?;
    let mut out = io::stdout().lock();
    if args.clear {
        let cleared = runtime.block_on(store::forgive(&store, options.cluster));
        let cleared = cleared.map_err(|error| bucket::failure(&store, &error))?;
        let notes = if cleared == 1 { "note" } else { "notes" };
        writeln!(out, "{cleared} {notes} about broken promises removed").map_err(Failure::new)?;
    }
    let mut written = Ok(());
    let (clock, gate) = (SystemClock::new(), Gate::default());
    let checking = store::admit(&store, &options, &gate, &clock, &SystemRandom, |checked| {
        if written.is_ok() {
            written = line(checked, &mut out);
        }
    });
    let checked = runtime.block_on(checking);
    // A request that hangs must not keep the process.
    runtime.shutdown_background();
    written.map_err(Failure::new)?;
    checked.map_err(|error| check_failure(&url, &error))?;
    writeln!(out, "{url} can hold a tier").map_err(Failure::new)
}

fn line(checked: &Checked, out: &mut impl Write) -> io::Result<()> {
    let (name, took) = (checked.check.to_string(), checked.took.as_secs_f64() * 1e3);
    let (verdict, why) = match &checked.verdict {
        Verdict::Honoured => ("ok", None),
        Verdict::NotOffered => ("not offered, and not needed", None),
        Verdict::NotKept(why) => ("not kept, and not needed", Some(why)),
        Verdict::NotPermitted(why) => ("not permitted: objects stay", Some(why)),
    };
    let requests = if checked.requests == 1 { "request" } else { "requests" };
    writeln!(out, "{name:<20}{verdict:<30}{:>4} {requests:<9}{took:>9.1} ms", checked.requests)?;
    why.map_or(Ok(()), |why| writeln!(out, "{:<20}{why}", ""))
}
