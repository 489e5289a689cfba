//! Bytes of users as JSON shows them.

use serde_json::Value;
use std::fmt::Write as _;

/// RFC 4648, section 4, with padding.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = 0u32;
        for at in 0..3 {
            bits = bits << 8 | u32::from(group.get(at).copied().unwrap_or(0));
        }
        for digit in 0..4 {
            let is_padding = digit > group.len();
            let value = (bits >> (18 - 6 * digit) & 63) as usize;
            out.push(if is_padding { '=' } else { char::from(DIGITS[value]) });
        }
    }
    out
}

/// Text as it is; anything else as base64. The name says which.
pub fn text_or_base64(bytes: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(bytes) {
        Ok(text) => ("text", text.to_owned()),
        Err(_) => ("base64", base64(bytes)),
    }
}

/// Two digits for each byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// As Java reads bytes as US-ASCII: each byte that is none becomes U+FFFD.
pub(super) fn ascii(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '\u{fffd}' }).collect()
}

/// Appends a member to the text of a JSON object. Maps of `serde_json` sort their keys as text, which is no order for ids.
pub(super) fn push_member(object: &mut String, key: &str, value: &Value) {
    let gap = if object.is_empty() { "" } else { "," };
    let _ = write!(object, "{gap}{}:{value}", Value::from(key));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_or_base64() {
        assert_eq!(text_or_base64("héllo".as_bytes()), ("text", "héllo".to_owned()));
        assert_eq!(text_or_base64(b"\x1b\n"), ("text", "\x1b\n".to_owned()));
        for (bytes, expected) in [
            (&b"\xff"[..], "/w=="),
            (b"\xff\xfe", "//4="),
            (b"\xff\xfe\xfd", "//79"),
            (b"\xff\x00\x01\x02", "/wABAg=="),
        ] {
            assert_eq!(text_or_base64(bytes), ("base64", expected.to_owned()));
        }
        assert_eq!((hex(b"\x00\xab"), ascii(b"a\xc3\xa9\n")), ("00ab".into(), "a\u{fffd}\u{fffd}\n".into()));
    }

    #[test]
    fn members_stand_in_the_order_in_which_they_came() {
        let mut object = String::new();
        push_member(&mut object, "10", &Value::Null);
        push_member(&mut object, "9\"", &Value::from("x"));
        assert_eq!(object, r#""10":null,"9\"":"x""#);
    }
}
