//! Settings of a tierer: from the keys of a bookie (`crate::table`), or from the flags of a process that has one (`tuning`).

pub mod tuning;

use self::tuning::{Compress, TierTuning, Updates};
use crate::bookie_security::BookieSecurity;
use crate::parse::parse_size;
use bindery_reconciler::core::updates::UpdateMode;
use bindery_reconciler::{MEMORY_MIN, TiererConfig};
use bindery_tiering::object::Compression;
use bindery_tiering::store::{self, Store, StoreOptions, StoreUrl};
use std::time::Duration;

/// How long objects under construction may take when a process with bookies ends.
const BESIDE_BOOKIES_PATIENCE: Duration = Duration::from_secs(5);

/// Settings of a tierer of this process.
#[derive(Debug, Clone)]
pub struct TierSettings {
    /// The store, which is open.
    pub store: Store,
    /// How it works.
    pub config: TiererConfig,
    /// How it speaks to bookies.
    pub security: BookieSecurity,
}

impl TierSettings {
    /// The settings for a process that also runs bookies: when it stops, objects under construction get less time, since the bookies have
    /// to stop as well.
    pub fn beside_bookies(mut self) -> TierSettings {
        self.config.stop_patience = BESIDE_BOOKIES_PATIENCE;
        self
    }
}

/// The least memory of a tierer, in MiB.
pub(crate) const MEMORY_MIN_MIB: u64 = MEMORY_MIN >> 20;
/// The bounds of an object's size in MiB: at least a block, and at most what stores accept in one piece.
pub(crate) const OBJECT_MIB: (u64, u64) = (5, 4096);
/// The most bytes below which extents are joined: those of an object of the default size.
pub(crate) const JOIN_BYTES_MAX: u64 = 64 << 20;
/// The bounds of requests with last reconciled entries under way.
pub(crate) const UPDATES: (u16, u16) = (1, 1024);

/// Opens the store of this URL for a tierer. A fault names the option, key or variable that has the URL.
pub(crate) fn open(option: &str, url: &str, config: TiererConfig) -> Result<TierSettings, String> {
    let opened = url
        .parse::<StoreUrl>()
        .map_err(|error| error.to_string())
        .and_then(|url| store::open(&url, &StoreOptions::default()).map_err(|error| error.to_string()));
    let store = opened.map_err(|fault| format!("{option}: {fault}"))?;
    Ok(TierSettings { store, config, security: BookieSecurity::default() })
}

/// Puts a URL and flags together. Every fault names its option.
pub fn settings(option: &str, url: &str, tuning: &TierTuning) -> Result<TierSettings, Vec<String>> {
    let mut faults = Vec::new();
    let mut config = TiererConfig::default();
    let mut size = |option: &str, text: &Option<String>, (least, most): (u64, u64)| {
        let text = text.as_ref()?;
        let bytes = parse_size(text).filter(|bytes| (least << 20..=most << 20).contains(bytes));
        if bytes.is_none() {
            faults.push(format!(
                "{option} {text}: give a size from {least}MiB to {most}MiB, for example 256MiB"
            ));
        }
        bytes
    };
    if let Some(bytes) = size("--memory-limit", &tuning.memory_limit, (MEMORY_MIN_MIB, 1 << 20)) {
        config.memory_limit = bytes;
    }
    config.bytes_per_second = size("--rate", &tuning.rate, (1, 1 << 20));
    if let Some(bytes) = size("--object-size", &tuning.object_size, OBJECT_MIB) {
        config.settings.object_bytes_max = bytes;
    }
    if let Some(text) = &tuning.join_below {
        match parse_size(text).filter(|bytes| *bytes <= JOIN_BYTES_MAX) {
            Some(bytes) => config.settings.upkeep.join_below_bytes = bytes,
            None => faults.push(format!(
                "--join-below {text}: give a size up to 64MiB, for example 1MiB, or 0 for none"
            )),
        }
    }
    if let Some(updates) = tuning.updates {
        config.settings.updates.in_flight_max = usize::from(updates);
    }
    if let Some(delay) = tuning.delete_delay {
        config.settings.set_delete_delay(delay);
    }
    if let Some(share) = tuning.rewrite_below {
        config.settings.upkeep.rewrite_below = share;
    }
    config.settings.updates.mode = match tuning.update_mode {
        Some(Updates::Single) => UpdateMode::Single,
        Some(Updates::Batched) | None => UpdateMode::Batched,
    };
    config.compression = match tuning.compression {
        Some(Compress::Zstd) => Compression::Zstd,
        Some(Compress::None) | None => Compression::None,
    };
    let opened = open(option, url, config).map_err(|fault| faults.push(fault));
    match opened {
        Ok(settings) if faults.is_empty() => Ok(settings),
        _ => Err(faults),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_names_its_option() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let tuning = TierTuning {
            memory_limit: Some("1MiB".into()),
            rate: Some("much".into()),
            object_size: Some("1TiB".into()),
            join_below: Some("1GiB".into()),
            ..TierTuning::default()
        };
        let faults = settings("--store", "ftp://x", &tuning).unwrap_err();
        let options =
            ["--memory-limit 1MiB", "--rate much", "--object-size 1TiB", "--join-below 1GiB", "--store"];
        assert_eq!(faults.len(), options.len(), "{faults:?}");
        for (fault, word) in faults.iter().zip(options) {
            assert!(fault.contains(word), "{fault}");
        }
        let tuning = TierTuning {
            memory_limit: Some("64MiB".into()),
            rate: Some("5MiB".into()),
            compression: Some(Compress::Zstd),
            updates: Some(4),
            update_mode: Some(Updates::Single),
            object_size: Some("16MiB".into()),
            delete_delay: None,
            rewrite_below: Some(0.3),
            join_below: Some("256KiB".into()),
        };
        let config = settings("--store", &url, &tuning).unwrap().config;
        assert_eq!((config.memory_limit, config.bytes_per_second), (64 << 20, Some(5 << 20)));
        assert_eq!(config.settings.updates.in_flight_max, 4);
        assert_eq!(
            (config.settings.updates.mode, config.compression),
            (UpdateMode::Single, Compression::Zstd)
        );
        assert_eq!(config.settings.object_bytes_max, 16 << 20);
        assert_eq!(config.settings.upkeep.rewrite_below, 0.3);
        assert_eq!(config.settings.upkeep.join_below_bytes, 256 << 10);
    }
}
