//! Base64 (RFC 4648, section 4), as HTTP's Basic scheme has it.

/// The bytes that `text` stands for, `None` when it is longer than `max` or no Base64. Padding may be missing.
pub(super) fn decode(text: &[u8], max: usize) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    if text.len() > max
        || digits.len() % 4 == 1
        || (digits.len() < text.len() && !text.len().is_multiple_of(4))
    {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits: u32 = 0;
        for &digit in group {
            bits = bits << 6 | value(digit)?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The examples of RFC 4648, section 10.
    #[test]
    fn examples_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(decode(text.as_bytes(), 100).unwrap(), bytes.as_bytes());
            assert_eq!(decode(text.trim_end_matches('=').as_bytes(), 100).unwrap(), bytes.as_bytes());
        }
        assert_eq!(decode(b"+/+/", 4).unwrap(), [0xfb, 0xff, 0xbf]);
        for wrong in ["Z", "Zg=", "Zm9v=", "Zm9vY", "Zm9\n", "=", "Zg==Zg=="] {
            assert_eq!(decode(wrong.as_bytes(), 100), None, "{wrong}");
        }
        assert_eq!(decode(b"Zm9v", 3), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = decode(&text, 30);
        }
    }
}
