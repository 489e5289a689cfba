//! Sizes, times and shares from text.

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

/// The bounds of a share.
#[derive(Debug, Clone, Copy)]
pub enum Share {
    /// Above zero, at most one.
    AboveZero,
    /// From zero, below one.
    BelowOne,
    /// Zero or less is none.
    OrNone,
}

/// A share within its bounds; the error says what to give.
pub fn share(text: &str, bounds: Share) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "give a number, for example 0.9".to_owned())?;
    let (is_fine, words) = match bounds {
        Share::AboveZero => (share > 0.0 && share <= 1.0, "give a share above 0, at most 1"),
        Share::BelowOne => ((0.0..1.0).contains(&share), "give a share from 0, below 1"),
        Share::OrNone => (share < 1.0, "give a share below 1"),
    };
    if is_fine { Ok(share) } else { Err(words.to_owned()) }
}
