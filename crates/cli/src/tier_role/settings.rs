//! Keys of a bookie's configuration file, and its flags, that are about object storage (ours; BookKeeper has none).

use super::TierSettings;
use super::tuning::{Compress, TierTuning, Updates};
use crate::args::{BookieArgs, Switch};
use crate::sources::values::{Finding, Values};
use bindery_server::config::BookieConfig;
use bindery_server::tier::{TierConfig, TrimConfig};
use std::time::Duration;

/// The tierer of a bookie, and whether it has one; the settings for the bookie's own reads and trims go into `config`.
/// All keys are taken from the file, also without a store, so that none of them is called unknown.
pub fn of_bookie(
    args: &BookieArgs,
    file: &mut Values,
    config: &mut BookieConfig,
) -> Option<(TierSettings, bool)> {
    let tierer = tierer(args, file);
    let (memory_bytes, trim) = reading(args, file);
    config.tier = tierer.as_ref().map(|(tier, _)| TierConfig {
        memory_bytes,
        trim,
        ..TierConfig::new(tier.store.url().clone())
    });
    tierer
}

fn tierer(args: &BookieArgs, file: &mut Values) -> Option<(TierSettings, bool)> {
    let named = file.take("tierUrl").map(|url| ("tierUrl", url));
    let of_shell = args.tier_of_shell.clone().map(|url| ("BINDERY_TIER", url));
    let url = args.tier.clone().map(|url| ("--tier", url)).or(named).or(of_shell);
    let of_file = file.flag("tierRole").unwrap_or(true);
    let has_role = args.tier_role.map_or(of_file, |switch| switch == Switch::On);
    let mut choice = |key: &str, choices: [&str; 2]| {
        let value = file.take(key)?;
        let found = choices.iter().position(|choice| *choice == value);
        if found.is_none() {
            file.fault(key, format!("{key}={value}: give {} or {}", choices[0], choices[1]));
        }
        found
    };
    let compression =
        choice("tierCompression", ["none", "zstd"]).map(|at| [Compress::None, Compress::Zstd][at]);
    let update_mode =
        choice("tierUpdateMode", ["batched", "single"]).map(|at| [Updates::Batched, Updates::Single][at]);
    let tuning = TierTuning {
        memory_limit: file.counted("tierMemoryLimitMB", 48, 1 << 20).map(|mib| format!("{mib}MiB")),
        rate: file.counted("tierRateMB", 1, 1 << 20).map(|mib| format!("{mib}MiB")),
        object_size: file.counted("tierObjectSizeMB", 5, 4096).map(|mib| format!("{mib}MiB")),
        updates: file.counted("tierUpdatesInFlight", 1, 1024).map(|count| count as u16),
        delete_delay: file
            .counted("tierDeleteDelaySec", 0, 100_000_000)
            .map(|seconds| Duration::from_secs(seconds as u64)),
        rewrite_below: share(file, "tierRewriteBelow"),
        compression,
        update_mode,
    };
    let Some((option, url)) = url else {
        if args.tier_role == Some(Switch::On) {
            file.faults.push("--tier-role on: name the object store with --tier URL".to_owned().into());
        }
        return None;
    };
    match super::settings(option, &url, &tuning) {
        Ok(settings) => Some((settings.beside_bookies(), has_role)),
        Err(faults) => {
            file.faults.extend(faults.into_iter().map(Finding::from));
            None
        }
    }
}

fn share(file: &mut Values, key: &str) -> Option<f64> {
    let share = file.parsed::<f64>(key)?;
    if !(0.0..1.0).contains(&share) {
        file.fault(key, format!("{key}={share}: give a share from 0, below 1"));
        return None;
    }
    Some(share)
}

/// Memory for reads from the tier, and when local copies go.
fn reading(args: &BookieArgs, file: &mut Values) -> (Option<u64>, TrimConfig) {
    let memory_bytes = file.counted("tierReadMemoryMB", 16, 1 << 20).map(|mib| (mib as u64) << 20);
    let mut trim = TrimConfig::default();
    if let Some(is_on) = file.flag("tierTrim") {
        trim.is_on = is_on;
    }
    let seconds = |count: usize| Duration::from_secs(count as u64);
    let grace = file.counted("tierTrimGraceSec", 0, 100_000_000).map(seconds);
    if let Some(grace) = args.tier_grace.or(grace) {
        trim.set_grace(grace);
    }
    if let Some(grace) = file.counted("tierTrimGraceShortSec", 0, 100_000_000) {
        trim.grace_when_short = seconds(grace);
    }
    if let Some(interval) = file.counted("tierTrimIntervalSec", 1, 1_000_000) {
        trim.interval = seconds(interval);
    }
    if let Some(mib) = file.counted("tierLocalSizeMaxMB", 1, 1 << 40) {
        trim.local_bytes_max = Some((mib as u64) << 20);
    }
    if let Some(share) = share(file, "tierFreeShareMin") {
        trim.free_share_min = share;
    }
    match file.counted("tierTrimSamples", 0, 1_000_000) {
        Some(0) => trim.samples = None,
        Some(samples) => trim.samples = Some(samples),
        None => {}
    }
    if let Some(text) = file.take("tierTrimProperties") {
        for pair in text.split(',').map(str::trim) {
            match pair.split_once('=') {
                Some((name, value)) if !name.is_empty() => {
                    trim.properties.push((name.trim().to_owned(), value.trim().to_owned()));
                }
                _ => file.fault(
                    "tierTrimProperties",
                    format!(
                        "tierTrimProperties={text}: give properties of ledgers as NAME=VALUE, separated by commas"
                    ),
                ),
            }
        }
    }
    (memory_bytes, trim)
}
