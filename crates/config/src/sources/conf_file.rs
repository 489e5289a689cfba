//! Reads `bk_server.conf`: a Java properties file (protocol reference, section 9).

use std::collections::BTreeMap;

/// A value, and the line on which its key stands, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The text after the separator.
    pub text: String,
    /// The line.
    pub line: usize,
}

/// Keys and values of a properties file; the last of equal keys counts.
///
/// Comments start with `#` or `!`, a key ends at `=`, `:` or a blank, a backslash at the end of a line joins the next.
/// Blanks around keys and values are dropped, as Commons Configuration does for BookKeeper. Escapes in values other than
/// `\\`, `\:`, `\=` and joined lines stay as they are.
pub fn parse(text: &str) -> BTreeMap<String, Value> {
    entries(text).into_iter().collect()
}

/// Keys that occur more than once, with their first and their last line.
pub fn repeated(text: &str) -> Vec<(String, usize, usize)> {
    let mut lines: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (key, value) in entries(text) {
        lines.entry(key).and_modify(|(_, last)| *last = value.line).or_insert((value.line, value.line));
    }
    let several = lines.into_iter().filter(|(_, (first, last))| first != last);
    several.map(|(key, (first, last))| (key, first, last)).collect()
}

fn entries(text: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = line.trim_end().to_owned();
        while ends_in_joint(&whole) {
            whole.pop();
            match lines.next() {
                Some((next, _)) => whole.push_str(next.trim()),
                None => break,
            }
        }
        let end = whole.find(['=', ':', ' ', '\t']).unwrap_or(whole.len());
        let (key, rest) = whole.split_at(end);
        let rest = rest.trim_start();
        let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim();
        found.push((key.to_owned(), Value { text: unescape(value), line: number }));
    }
    found
}

/// Whether the next line continues this one: it ends in an odd number of backslashes.
fn ends_in_joint(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Resolves the escapes that are known in a value: `\:`, `\=` and `\\`.
fn unescape(value: &str) -> String {
    value.replace("\\:", ":").replace("\\=", "=").replace("\\\\", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_separators_and_joined_lines_read_as_java_reads_them() {
        let text = "# comment\n! other\n\n bookiePort=3181\njournalDirectories = /a,\\\n   /b\nzkTimeout: 5000\n\
                    key value with blanks\nempty=\nbookiePort=3182\nuri=zk+null://a:1/l\nescaped=a\\:b\n";
        let found = parse(text);
        let expect = [
            ("bookiePort", "3182"),
            ("empty", ""),
            ("escaped", "a:b"),
            ("journalDirectories", "/a,/b"),
            ("key", "value with blanks"),
            ("uri", "zk+null://a:1/l"),
            ("zkTimeout", "5000"),
        ];
        assert_eq!(found.len(), expect.len());
        for (key, value) in expect {
            assert_eq!(found.get(key).map(|found| &*found.text), Some(value), "{key}");
        }
        let line = |key| found.get(key).map(|found| found.line);
        assert_eq!(
            (line("journalDirectories"), line("zkTimeout"), line("bookiePort")),
            (Some(5), Some(7), Some(10))
        );
        assert_eq!(repeated(text), [("bookiePort".to_owned(), 4, 10)]);
    }
}
