//! Values of flags and keys from text.

use bindery_types::LedgerId;
use std::time::Duration;

/// `512MiB`, `1G`, `1000000`: powers of two whatever the letter case, as memory is counted.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Seconds between two looks: a number above zero.
pub fn seconds(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
        .ok_or_else(|| "give a number of seconds above zero".to_owned())
}

/// A time: a number with ms, s or m; seconds without a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let scale_ms = match unit {
        "ms" => 1.0,
        "" | "s" => 1_000.0,
        "m" => 60_000.0,
        _ => return Err(format!("unknown unit {unit:?}: use ms, s or m, for example 500ms")),
    };
    let number: f64 =
        number.trim().parse().map_err(|_| "not a time: for example 500ms, 3s or 2m".to_owned())?;
    let ms = number * scale_ms;
    // A day bounds it, so that no sum of times overflows.
    if !(1.0..=86_400_000.0).contains(&ms) {
        return Err("out of range: 1ms to 1440m".to_owned());
    }
    Ok(Duration::from_micros((ms * 1000.0) as u64))
}

/// The id of a ledger.
pub fn ledger_id(text: &str) -> Result<LedgerId, String> {
    let raw = text.parse::<i64>().ok();
    raw.and_then(LedgerId::new).ok_or_else(|| "a ledger id is a number from 0 to 2^63-1".to_owned())
}
