//! Runs seeds of the bookie simulator: `sim --seeds 2000`, `sim --seed 17 --trace`, `sim --canary M1`.

use anyhow::{Context, bail};
use bindery_io::canary::Canaries;
use bindery_sim::bookie::{MARKS, Outcome, Profile, run};
use clap::Parser;
use std::collections::BTreeSet;

/// A swarm of so many seeds meets every rare state, or fails.
const SEEDS_FOR_ALL_MARKS: u64 = 1000;

/// Drives the bookie's cores over a simulated disk and checks every answer.
#[derive(Parser)]
struct Args {
    /// Number of seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed, or the one to run.
    #[arg(long)]
    seed: Option<u64>,
    /// Show the last disk operations of the seed.
    #[arg(long)]
    trace: bool,
    /// A planted bug to be found (needs a build with debug assertions).
    #[arg(long)]
    canary: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let canaries = match &args.canary {
        None => Canaries::none(),
        Some(name) => canary(name)?,
    };
    let first = args.seed.unwrap_or(1);
    let count = if args.seed.is_some() && args.trace { 1 } else { args.seeds };
    let (mut restarts, mut compared, mut refused) = (0, 0, 0);
    let mut missing: BTreeSet<_> = MARKS.into_iter().collect();
    for seed in first..first + count {
        let report = run(Profile::draw(seed, canaries));
        restarts += report.restarts;
        compared += report.compared;
        missing.retain(|mark| !report.marks.contains_key(mark));
        if args.trace {
            println!("{:#?}", Profile::draw(seed, canaries));
            report.trace.iter().for_each(|line| println!("{line}"));
        }
        match report.outcome {
            Outcome::Kept => {}
            Outcome::RefusedDamage(_) => refused += 1,
            Outcome::Violated(what) if args.canary.is_some() => {
                println!("found by seed {seed} ({} seeds): {what}", seed - first + 1);
                return Ok(());
            }
            Outcome::Violated(what) => bail!("seed {seed}: {what}\nagain: sim --seed {seed} --trace"),
        }
    }
    println!(
        "{count} seeds, {restarts} restarts, {compared} reads compared, {refused} runs refused planted damage"
    );
    if count >= SEEDS_FOR_ALL_MARKS && args.canary.is_none() && !missing.is_empty() {
        bail!("{count} seeds never met {missing:?}: the swarm says nothing about them any more");
    }
    if let Some(name) = args.canary {
        bail!("canary {name} was not found in {count} seeds");
    }
    Ok(())
}

#[cfg(debug_assertions)]
fn canary(name: &str) -> anyhow::Result<Canaries> {
    let found = bindery_io::canary::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, canary)| Canaries::only(*canary)).with_context(|| format!("there is no canary {name}"))
}

#[cfg(not(debug_assertions))]
fn canary(name: &str) -> anyhow::Result<Canaries> {
    None.with_context(|| format!("canary {name} needs a build with debug assertions"))
}
