//! Protobuf text format, as far as BookKeeper uses it: cookies and version 2 ledger metadata.
//!
//! The reader takes what Java's printers and older versions write: `name: value`, `name { ... }`, comments, strings in
//! either quote with every escape, numbers in base 10. The writer prints like Java's `TextFormat`: one field per line,
//! two blanks per level, bytes outside printable ASCII in octal.
//!
//! # Limits     nesting: `DEPTH_MAX`; the input is a metadata value and thus bounded by the store

use std::fmt::Write as _;

/// The deepest nesting of messages; BookKeeper's formats have two levels.
const DEPTH_MAX: usize = 8;

/// One field of the text. Fields are kept in their order, and a repeated field occurs several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub name: String,
    pub value: Value,
}

/// A value whose type the schema decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A number or an enum's name.
    Word(String),
    /// A quoted string, unescaped.
    Bytes(Vec<u8>),
    /// A nested message.
    Message(Vec<Field>),
}

/// Why a text is not protobuf text format, or not of the message expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The grammar is violated.
    #[error("byte {offset}: expected {expected}")]
    Syntax {
        /// Offset in the text.
        offset: usize,
        /// What should stand there.
        expected: &'static str,
    },
    /// A field has a value of another type.
    #[error("field {name} is not {expected}")]
    WrongType {
        /// Name of the field.
        name: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A required field is missing.
    #[error("field {name} is missing")]
    Missing {
        /// Name of the field.
        name: &'static str,
    },
}

/// Reads a whole text into its fields. Every error is a [`TextError::Syntax`]; the fields' types are checked when they are taken.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Field>, TextError> {
    let mut parser = Parser { text, at: 0 };
    let fields = parser.fields(None, 0)?;
    Ok(fields)
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn error(&self, expected: &'static str) -> TextError {
        TextError::Syntax { offset: self.at, expected }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'#' => {
                    while self.peek().is_some_and(|byte| byte != b'\n') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, expected: &'static str) -> Result<String, TextError> {
        self.skip_blanks();
        let begin = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'+' | b'.'))
        {
            self.at += 1;
        }
        if begin == self.at {
            return Err(self.error(expected));
        }
        Ok(String::from_utf8_lossy(&self.text[begin..self.at]).into_owned())
    }

    fn fields(&mut self, close: Option<u8>, depth: usize) -> Result<Vec<Field>, TextError> {
        if depth > DEPTH_MAX {
            return Err(self.error("no deeper nesting"));
        }
        let mut fields = Vec::new();
        loop {
            self.skip_blanks();
            match (self.peek(), close) {
                (None, None) => return Ok(fields),
                (None, Some(_)) => return Err(self.error("the end of the message")),
                (Some(byte), Some(close)) if byte == close => {
                    self.at += 1;
                    return Ok(fields);
                }
                (Some(b',' | b';'), _) => {
                    self.at += 1;
                    continue;
                }
                _ => {}
            }
            let name = self.word("a field name")?;
            let colon = self.take(b':');
            let value = if self.take(b'{') {
                Value::Message(self.fields(Some(b'}'), depth + 1)?)
            } else if self.take(b'<') {
                Value::Message(self.fields(Some(b'>'), depth + 1)?)
            } else if !colon {
                return Err(self.error("':' or '{'"));
            } else {
                self.scalar()?
            };
            fields.push(Field { name, value });
        }
    }

    fn scalar(&mut self) -> Result<Value, TextError> {
        self.skip_blanks();
        if !matches!(self.peek(), Some(b'"' | b'\'')) {
            return Ok(Value::Word(self.word("a value")?));
        }
        let mut bytes = Vec::new();
        // Adjacent strings are one value.
        while let Some(quote @ (b'"' | b'\'')) = self.peek() {
            self.at += 1;
            self.string(quote, &mut bytes)?;
            self.skip_blanks();
        }
        Ok(Value::Bytes(bytes))
    }

    fn string(&mut self, quote: u8, out: &mut Vec<u8>) -> Result<(), TextError> {
        loop {
            let byte = self.peek().ok_or_else(|| self.error("the end of the string"))?;
            self.at += 1;
            match byte {
                b'\\' => self.escape(out)?,
                byte if byte == quote => return Ok(()),
                byte => out.push(byte),
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<(), TextError> {
        let byte = self.peek().ok_or_else(|| self.error("an escape"))?;
        self.at += 1;
        let plain = match byte {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'v' => 11,
            b'\\' | b'\'' | b'"' | b'?' => byte,
            b'0'..=b'7' => {
                self.at -= 1;
                let code = self.digits(8, 1, 3)?;
                u8::try_from(code).map_err(|_| self.error("an octal escape of at most \\377"))?
            }
            b'x' | b'X' => self.digits(16, 1, 2)? as u8,
            b'u' | b'U' => {
                let size = if byte == b'u' { 4 } else { 8 };
                let code = self.digits(16, size, size)?;
                let character = char::from_u32(code).ok_or_else(|| self.error("a Unicode character"))?;
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(self.error("a known escape")),
        };
        out.push(plain);
        Ok(())
    }

    fn digits(&mut self, radix: u32, min: usize, max: usize) -> Result<u32, TextError> {
        let (mut code, mut count) = (0u32, 0);
        while count < max {
            let Some(digit) = self.peek().and_then(|byte| (byte as char).to_digit(radix)) else { break };
            code = code.wrapping_mul(radix).wrapping_add(digit);
            self.at += 1;
            count += 1;
        }
        if count < min { Err(self.error("digits")) } else { Ok(code) }
    }
}

impl Field {
    pub(crate) fn number<T: std::str::FromStr>(&self) -> Result<T, TextError> {
        let wrong = || TextError::WrongType { name: self.name.clone(), expected: "a number in range" };
        match &self.value {
            Value::Word(word) => word.parse().map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }

    pub(crate) fn bytes(&self) -> Result<&[u8], TextError> {
        match &self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(TextError::WrongType { name: self.name.clone(), expected: "a string" }),
        }
    }

    pub(crate) fn string(&self) -> Result<String, TextError> {
        let wrong = |_| TextError::WrongType { name: self.name.clone(), expected: "UTF-8 text" };
        String::from_utf8(self.bytes()?.to_vec()).map_err(wrong)
    }

    /// The text of a value without quotes: the name of an enum's value, or a number.
    pub(crate) fn word(&self) -> Result<&str, TextError> {
        match &self.value {
            Value::Word(word) => Ok(word),
            _ => Err(TextError::WrongType { name: self.name.clone(), expected: "a name" }),
        }
    }

    pub(crate) fn message(&self) -> Result<&[Field], TextError> {
        match &self.value {
            Value::Message(fields) => Ok(fields),
            _ => Err(TextError::WrongType { name: self.name.clone(), expected: "a message" }),
        }
    }
}

/// Prints fields one per line.
#[derive(Default)]
pub(crate) struct Printer {
    out: String,
    level: usize,
}

impl Printer {
    fn indent(&mut self) {
        self.out.extend(std::iter::repeat_n("  ", self.level));
    }

    pub(crate) fn word(&mut self, name: &str, value: impl std::fmt::Display) {
        self.indent();
        writeln!(self.out, "{name}: {value}").expect("writing to a String cannot fail");
    }

    pub(crate) fn bytes(&mut self, name: &str, value: &[u8]) {
        self.indent();
        self.out.push_str(name);
        self.out.push_str(": \"");
        for &byte in value {
            match byte {
                b'\n' => self.out.push_str("\\n"),
                b'\r' => self.out.push_str("\\r"),
                b'\t' => self.out.push_str("\\t"),
                7 => self.out.push_str("\\a"),
                8 => self.out.push_str("\\b"),
                11 => self.out.push_str("\\v"),
                12 => self.out.push_str("\\f"),
                b'"' | b'\'' | b'\\' => {
                    self.out.push('\\');
                    self.out.push(byte as char);
                }
                b' '..=b'~' => self.out.push(byte as char),
                _ => write!(self.out, "\\{byte:03o}").expect("writing to a String cannot fail"),
            }
        }
        self.out.push_str("\"\n");
    }

    pub(crate) fn message(&mut self, name: &str, fields: impl FnOnce(&mut Printer)) {
        self.indent();
        self.out.push_str(name);
        self.out.push_str(" {\n");
        self.level += 1;
        fields(self);
        self.level -= 1;
        self.indent();
        self.out.push_str("}\n");
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_a_value_is_read() {
        let text =
            b"a: 1 # note\nb { c: 'x' \"y\"; d <e: F> } g: { } s: \"\\303\\244\\x41\\u00e4\\n\\\\\\\"\"";
        let fields = parse(text).unwrap();
        assert_eq!(fields[0].number::<i64>(), Ok(1));
        let nested = fields[1].message().unwrap();
        assert_eq!(nested[0].bytes().unwrap(), b"xy");
        assert_eq!(nested[1].message().unwrap()[0].word(), Ok("F"));
        assert_eq!(fields[2].message().unwrap(), []);
        assert_eq!(fields[3].string().unwrap(), "\u{e4}A\u{e4}\n\\\"");
    }

    #[test]
    fn what_is_not_text_format_is_an_error_with_its_place() {
        for bad in
            ["a", "a 1", "a: ", "a {", "a: \"x", "a: \"\\q\"", "a: \"\\400\"", "a: \"\\ud800\"", "{", "}"]
        {
            assert!(matches!(parse(bad.as_bytes()), Err(TextError::Syntax { .. })), "{bad}");
        }
        assert!(parse("a{".repeat(100_000).as_bytes()).is_err());
        assert!(parse(b"a: x").unwrap()[0].number::<i32>().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_survive_the_printer(value: Vec<u8>, number: i64) {
            let mut printer = Printer::default();
            printer.message("m", |printer| {
                printer.bytes("b", &value);
                printer.word("n", number);
            });
            let fields = parse(printer.finish().as_bytes()).unwrap();
            let inner = fields[0].message().unwrap();
            prop_assert_eq!(inner[0].bytes().unwrap(), &value[..]);
            prop_assert_eq!(inner[1].number::<i64>().unwrap(), number);
        }

        #[test]
        fn no_input_panics(text: Vec<u8>) {
            let _ = parse(&text);
        }
    }
}
