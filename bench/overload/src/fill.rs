//! Entries to read, written over the wire: a bookie takes any ledger with its first add, no metadata needed.

use crate::args::Target;
use crate::clock::{SECOND, now};
use crate::engine::Engine;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::work::{Filled, Work};
use anyhow::{Result, bail};

/// Writes all entries of `filled` and waits for every acknowledgement.
pub fn fill(target: &Target, filled: Filled, entry_size_bytes: usize) -> Result<()> {
    let begin = now();
    let mut engine = Engine::new(&target.bookie, begin, vec![("fill", u64::MAX)])?;
    let connections = (filled.ledgers as usize).min(4);
    engine.add(FlowSpec {
        name: "fill",
        work: Work::Add { ledgers: filled.ledgers },
        pace: Pace::Fill {
            each: filled.each,
            under_way: (2 << 20) / entry_size_bytes.clamp(1024, 1 << 20) / connections,
        },
        is_v3: false,
        connections,
        first: filled.first,
        filled,
        entry_size_bytes,
        timeout: 30 * SECOND,
        window: ALWAYS,
    })?;
    engine.run(0)?;
    let wanted = filled.ledgers * filled.each;
    let stats = &engine.flows[0].stats;
    if stats.ok() != wanted {
        bail!("filled {} of {wanted} entries: {}", stats.ok(), stats.json()["phases"]["fill"]);
    }
    let seconds = (now() - begin) as f64 / 1e9;
    eprintln!("  filled {wanted} entries of {entry_size_bytes} bytes in {seconds:.1} s");
    Ok(())
}
