//! `bindery tier check`: whether a store can hold a tier.

use std::io::{self, Write};

use bindery_io::{SystemClock, SystemRandom};
use bindery_tiering::store::{self, Checked, StoreOptions, StoreUrl, Verdict};

use crate::exit::Failure;
use crate::runtime;
use crate::tier_role::check_failure;

/// Runs the command; data goes to standard output.
pub fn run(url: &str) -> Result<(), Failure> {
    // Not by the parser of the command line, whose message repeats the value: a password may be in it.
    let url: &StoreUrl = &url.parse().map_err(Failure::usage)?;
    let store = store::open(url, &StoreOptions::default()).map_err(Failure::usage)?;
    let runtime = runtime::start()?;
    let mut written = Ok(());
    let checked = runtime.block_on(store::check(&store, &SystemClock::new(), &SystemRandom, |checked| {
        if written.is_ok() {
            written = line(checked, &mut io::stdout().lock());
        }
    }));
    written.map_err(Failure::new)?;
    checked.map_err(|error| check_failure(url, &error))?;
    writeln!(io::stdout().lock(), "{url} can hold a tier").map_err(Failure::new)
}

fn line(checked: &Checked, out: &mut impl Write) -> io::Result<()> {
    let (name, took) = (checked.check.to_string(), checked.took.as_secs_f64() * 1e3);
    let verdict = match checked.verdict {
        Verdict::Honoured => "ok",
        Verdict::NotOffered => "not offered, and not needed",
    };
    let requests = if checked.requests == 1 { "request" } else { "requests" };
    writeln!(out, "{name:<20}{verdict:<30}{:>4} {requests:<9}{took:>9.1} ms", checked.requests)
}
