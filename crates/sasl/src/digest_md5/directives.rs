//! The list of directives that challenges and responses consist of (RFC 2831, section 7.1), read as the JDK reads it.

use super::Error;

/// Directives in the order in which they came; keys without regard to case.
pub(super) struct Directives {
    list: Vec<(Vec<u8>, Vec<u8>)>,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

impl Directives {
    /// Splits a message of at most `max` bytes. Takes what the JDK takes, for instance empty elements and space instead of commas.
    pub(super) fn parse(message: &[u8], max: usize) -> Result<Directives, Error> {
        if message.len() > max {
            return Err(Error::TooLong { size: message.len(), max });
        }
        let mut rest = message.trim_ascii_start();
        let mut list = Vec::new();
        loop {
            while let [byte, behind @ ..] = rest
                && (is_space(*byte) || *byte == b',')
            {
                rest = behind;
            }
            if rest.is_empty() {
                return Ok(Directives { list });
            }
            let (key, behind) = key(rest)?;
            let (value, behind) = match behind {
                [b'"', quoted @ ..] => quoted_value(quoted)?,
                _ => {
                    let end = behind.iter().position(|&byte| is_space(byte) || byte == b',');
                    let (value, behind) = behind.split_at(end.unwrap_or(behind.len()));
                    (value.to_vec(), behind)
                }
            };
            list.push((key.to_ascii_lowercase(), value));
            rest = behind;
        }
    }

    /// The value of a directive that may be there once.
    pub(super) fn at_most_one(&self, key: &'static str) -> Result<Option<&[u8]>, Error> {
        let mut found = self.all(key);
        match (found.next(), found.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => Err(Error::Repeated(key)),
        }
    }

    /// The value of a directive that must be there once.
    pub(super) fn one(&self, key: &'static str) -> Result<&[u8], Error> {
        self.at_most_one(key)?.ok_or(Error::Missing(key))
    }

    /// The values of a directive.
    pub(super) fn all(&self, key: &'static str) -> impl Iterator<Item = &[u8]> {
        self.list.iter().filter(move |(found, _)| found == key.as_bytes()).map(|(_, value)| &**value)
    }
}

/// The key at the front of `text`, and what follows the `=` and the space around it.
fn key(text: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let end = text.iter().position(|&byte| is_space(byte) || byte == b',' || byte == b'=');
    let (key, behind) = text.split_at(end.unwrap_or(text.len()));
    let [b'=', behind @ ..] = behind.trim_ascii_start() else {
        return Err(Error::Malformed("a directive without '='"));
    };
    if key.is_empty() {
        return Err(Error::Malformed("a value without a directive"));
    }
    match behind.trim_ascii_start() {
        [] => Err(Error::Malformed("a directive without a value")),
        behind => Ok((key, behind)),
    }
}

/// The value whose opening quote was taken, and what follows the closing one.
fn quoted_value(text: &[u8]) -> Result<(Vec<u8>, &[u8]), Error> {
    let mut value = Vec::new();
    let mut rest = text;
    loop {
        match rest {
            [b'\\', byte, behind @ ..] => {
                value.push(*byte);
                rest = behind;
            }
            [b'"', behind @ ..] => {
                if behind.first().is_some_and(|&byte| !is_space(byte) && byte != b',') {
                    return Err(Error::Malformed("a quoted value that is not followed by a comma"));
                }
                return Ok((value, behind));
            }
            [] | [b'\\'] => return Err(Error::Malformed("a quote that is not closed")),
            [byte, behind @ ..] => {
                value.push(*byte);
                rest = behind;
            }
        }
    }
}

/// Appends `key="value",` with the escapes of RFC 2831, section 7.2.
pub(super) fn put_quoted(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"=\"");
    for &byte in value {
        let is_control = byte < 32 && !matches!(byte, b'\r' | b'\n' | b'\t');
        if matches!(byte, b'"' | b'\\' | 127) || is_control {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.extend_from_slice(b"\",");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Vec<(String, String)>, Error> {
        let text_of = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
        let parsed = Directives::parse(text.as_bytes(), 100)?;
        Ok(parsed.list.iter().map(|(key, value)| (text_of(key), text_of(value))).collect())
    }

    #[test]
    fn directives_are_split_as_the_jdk_splits_them() {
        for (text, expected) in [
            ("", &[][..]),
            (" ,, ,", &[]),
            ("a=b", &[("a", "b")]),
            ("A=b,c=\"d\"", &[("a", "b"), ("c", "d")]),
            ("a = b c=d", &[("a", "b"), ("c", "d")]),
            (r#"a="b\"c\\, d" , e=f,"#, &[("a", r#"b"c\, d"#), ("e", "f")]),
            ("a=\"\",b=\r\n \"c\"", &[("a", ""), ("b", "c")]),
            ("a=b=c,d=e\"f", &[("a", "b=c"), ("d", "e\"f")]),
            ("a=,b=c", &[("a", ""), ("b", "c")]),
        ] {
            let parsed = parse(text).unwrap();
            let parsed: Vec<_> = parsed.iter().map(|(key, value)| (&**key, &**value)).collect();
            assert_eq!(parsed, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_directive_is_refused() {
        for text in ["a", "a b", "=b", "a=", "a= ", "a=\"b", "a=\"b\\", "a=\"b\"c", "a=b,c"] {
            assert!(matches!(parse(text), Err(Error::Malformed(_))), "{text}");
        }
        assert!(matches!(parse(&"x".repeat(101)), Err(Error::TooLong { size: 101, max: 100 })));
    }

    proptest! {
        #[test]
        fn a_quoted_value_is_read_back(value in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut out = Vec::new();
            put_quoted(&mut out, "first", &value);
            put_quoted(&mut out, "second", b"other");
            let parsed = Directives::parse(&out, 1000).unwrap();
            prop_assert_eq!(parsed.one("first").unwrap(), &*value);
            prop_assert_eq!(parsed.one("second").unwrap(), b"other");
        }

        /// Crate invariant 2.
        #[test]
        fn no_bytes_make_it_panic(message in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Directives::parse(&message, 100);
        }

        #[test]
        fn no_text_of_its_alphabet_makes_it_panic(message in "[ab=\", \\\\\t]{0,40}") {
            let _ = Directives::parse(message.as_bytes(), 100);
        }
    }
}
