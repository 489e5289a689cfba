//! Bytes and times as JSON and tables show them.

pub use crate::figure::{size, span};
use crate::printable::is_printable;
use bindery_server::admin::shown::base64;
pub use bindery_server::admin::shown::text_or_base64;
use serde_json::Value;

/// As [`text_or_base64`], for people: bytes that a terminal would not show as they are stand as base64, too.
pub fn printable_or_base64(bytes: &[u8]) -> (&'static str, String) {
    match text_or_base64(bytes) {
        (_, text) if !is_printable(&text) => ("base64", base64(bytes)),
        shown => shown,
    }
}

/// Milliseconds since the epoch as `2026-01-31T23:59:59Z`.
pub fn utc(ms: i64) -> String {
    let seconds = ms.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Civil date of a day number: years begin in March, so that the leap day is a year's last.
    let day = days + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// `1 entry`, `2 entries`.
pub fn count(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// With a capital letter.
pub fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// One object on one line.
pub fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_or_base64() {
        assert_eq!(text_or_base64("héllo".as_bytes()), ("text", "héllo".to_owned()));
        assert_eq!(printable_or_base64("héllo".as_bytes()), ("text", "héllo".to_owned()));
        assert_eq!(text_or_base64(b"\x1b\n"), ("text", "\x1b\n".to_owned()));
        assert_eq!(printable_or_base64(b"\x1b\n"), ("base64", "Gwo=".to_owned()));
        assert_eq!(printable_or_base64(b"\xff"), ("base64", "/w==".to_owned()));
    }

    #[test]
    fn times_are_calendar_dates() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(ms), expected);
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([size(0), size(1023), size(1536), size(3 << 30)], ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}
