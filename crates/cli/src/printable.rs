//! Text from outside (metadata, registrations, answers of other processes) as a terminal may show it.
//!
//! Whoever may write such text must not decide what its reader sees: with control characters it moves the cursor, sets the clipboard or
//! makes lines that look like ours, with marks of direction it reverses what stands beside it.

use std::borrow::Cow;

/// Text that is to stand within a line: characters that do not print are written as `\n`, `\u{1b}` and so on.
pub fn within_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful)
}

/// The same of text that has lines of its own.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_harmful(c))
}

/// True when [`within_line`] changes nothing.
pub fn is_printable(text: &str) -> bool {
    !text.contains(is_harmful)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool + Copy) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_escaped(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Control characters, separators of lines, and marks of direction.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_would_act_on_is_escaped() {
        for plain in ["", "b1:3181", "Grüße, 東京", "a\\n"] {
            assert!(is_printable(plain));
            assert!(matches!(within_line(plain), Cow::Borrowed(text) if text == plain));
        }
        let hostile = "\x1b]0;t\x07\r\nstate closed\u{9b}2J\u{202e}x";
        assert!(!is_printable(hostile));
        let shown = r"\u{1b}]0;t\u{7}\r\nstate closed\u{9b}2J\u{202e}x";
        assert_eq!(within_line(hostile), shown);
        assert_eq!(lines("one\n\ttwo\x1b\n"), "one\n\\ttwo\\u{1b}\n");
    }
}
