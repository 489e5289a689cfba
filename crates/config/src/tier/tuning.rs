//! Flags of whatever has a tierer in it.

use super::UPDATES;
use crate::parse::{self, Share, duration};
use clap::{Args, ValueEnum};
use std::time::Duration;

/// How a tierer works.
#[derive(Debug, Clone, Default, Args)]
pub struct TierTuning {
    /// Bytes of entries and parts in memory, for example 256MiB; at least 48MiB [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Bytes read from bookies in a second, for example 50MiB [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<String>,
    /// Compress blocks that become shorter by a tenth or more [default: none]
    #[arg(long, value_name = "none|zstd")]
    pub compression: Option<Compress>,
    /// Bytes of an object; it is finished at four fifths of that [default: 80MiB]
    #[arg(long, value_name = "SIZE")]
    pub object_size: Option<String>,
    /// Requests to bookies with last reconciled entries in flight, from 1 to 1024 [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(i64::from(UPDATES.0)..=i64::from(UPDATES.1)))]
    pub updates: Option<u16>,
    /// How last reconciled entries travel: batched, many ledgers in a request; single, one [default: batched]
    #[arg(long, value_name = "batched|single")]
    pub update_mode: Option<Updates>,
    /// Objects go this long after nothing refers to them any more; longer than any read takes [default: 60m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub delete_delay: Option<Duration>,
    /// Objects of whose entries a smaller share than this is left are rewritten; 0: none [default: 0.5]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub rewrite_below: Option<f64>,
    /// Objects whose extents are shorter than this on average are joined, for example 256KiB; 0: none [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    pub join_below: Option<String>,
}

fn share(text: &str) -> Result<f64, String> {
    parse::share(text, Share::BelowOne)
}

/// Compression of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "clap would print them beside each word")]
pub enum Compress {
    None,
    Zstd,
}

/// How last reconciled entries travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "clap would print them beside each word")]
pub enum Updates {
    Batched,
    Single,
}
