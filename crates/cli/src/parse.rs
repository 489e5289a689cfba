//! Values of flags and keys from text.

pub use bindery_config::parse::{duration, parse_size};
use bindery_types::LedgerId;

/// Seconds between two looks: a number above zero, or a [time](duration) with its unit.
pub fn seconds(text: &str) -> Result<f64, String> {
    if text.ends_with(|last: char| last.is_ascii_alphabetic()) {
        return duration(text).map(|time| time.as_secs_f64());
    }
    text.parse::<f64>()
        .ok()
        .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
        .ok_or_else(|| "give a number of seconds above zero".to_owned())
}

/// Whole seconds, as a number or as a [time](duration) with its unit.
pub fn whole_seconds(text: &str) -> Result<u32, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| "give a number of seconds, for example 10 or 10s".to_owned());
    }
    let time = duration(text)?;
    match (time.subsec_nanos(), u32::try_from(time.as_secs())) {
        (0, Ok(seconds)) => Ok(seconds),
        _ => Err("give whole seconds, for example 10 or 10s".to_owned()),
    }
}

/// As [`whole_seconds`], at least one.
pub fn some_seconds(text: &str) -> Result<u32, String> {
    match whole_seconds(text)? {
        0 => Err("give at least one second".to_owned()),
        seconds => Ok(seconds),
    }
}

/// The id of a ledger.
pub fn ledger_id(text: &str) -> Result<LedgerId, String> {
    let raw = text.parse::<i64>().ok();
    raw.and_then(LedgerId::new).ok_or_else(|| "a ledger id is a number from 0 to 2^63-1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_taken_with_and_without_their_unit() {
        assert_eq!(
            ["5", "5s", "1m", "0"].map(whole_seconds),
            [Ok(5), Ok(5), Ok(60), Ok(0)],
            "as --timeout takes 3s"
        );
        assert!(
            whole_seconds("500ms").is_err() && whole_seconds("x").is_err() && whole_seconds("-1").is_err()
        );
        assert!(some_seconds("0").is_err() && some_seconds("1s") == Ok(1));
        assert_eq!(["0.5", "500ms", "2s"].map(seconds), [Ok(0.5), Ok(0.5), Ok(2.0)]);
        assert!(seconds("0").is_err() && seconds("5 parsecs").is_err());
    }
}
