//! The file: lines of text, fields separated by tabs, version first, checksum last.
//!
//! ```text
//! bindery-cluster <tab> 1
//! root            <tab> /ledgers                        where the source had it; the target may differ
//! node            <tab> <path> <tab> <data>             relative to the root, which is the empty path; parents first
//! counter         <tab> /idgen <tab> <number>           the next number of a ledger id generator
//! end             <tab> <nodes> <tab> <counters>
//! crc32c          <tab> <8 hex digits>                  of every byte before this line
//! ```
//! Bytes that are no printable ASCII, and the backslash, are written as `\xNN` (`\n`, `\r`, `\t`, `\\` for these).

use std::collections::HashSet;
use std::io::{BufRead, Read};

use bindery_types::codec::Crc32c;
use bytes::Bytes;

use crate::store::VALUE_SIZE_BYTES_MAX;

/// Largest file that is read: it is held in memory while it is checked. Some five million ledgers.
pub const DUMP_SIZE_BYTES_MAX: u64 = 2 << 30;

/// A line holds one node, each byte of its value four characters at most.
const LINE_SIZE_BYTES_MAX: u64 = 4 * VALUE_SIZE_BYTES_MAX as u64 + (1 << 16);

const VERSION: u32 = 1;
const MAGIC: &str = "bindery-cluster";

/// Why a file is refused. Nothing was written anywhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// It does not begin as an export does.
    #[error("this is no file that bindery cluster export wrote")]
    NoDump,
    /// Written by a later version.
    #[error("the export has format version {0}; this version reads {VERSION}: use a newer bindery")]
    Version(String),
    /// It ends in the middle.
    #[error("the export is incomplete: it ends after line {0} without its checksum; export again")]
    Truncated(usize),
    /// The bytes are not those that were written.
    #[error("the export is damaged: its checksum is {stored}, its content has {computed}; export again")]
    Checksum {
        /// In the file.
        stored: String,
        /// Of its content.
        computed: String,
    },
    /// A line that makes no sense although the checksum is right.
    #[error("line {number} of the export: {why}")]
    Line {
        /// Counted from 1.
        number: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// Larger than what is held in memory.
    #[error("the export is larger than {DUMP_SIZE_BYTES_MAX} bytes")]
    TooLarge,
    /// Reading failed.
    #[error("read the export: {0}")]
    Read(String),
}

/// A whole export, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The ledgers root of the source.
    pub root: String,
    /// Nodes by path relative to the root (the root itself is ""), parents before children.
    pub(super) nodes: Vec<(String, Bytes)>,
    /// The next number of each generator of ledger ids.
    pub(super) counters: Vec<(String, i64)>,
    /// Identifies the content.
    pub(super) checksum: String,
}

pub(super) fn escape(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x20..=0x7e => out.push(char::from(*byte)),
            other => out.push_str(&format!("\\x{other:02x}")),
        }
    }
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                    u8::try_from(high * 16 + low).ok()?
                }
                _ => return None,
            },
            0x20..=0x7e => byte,
            _ => return None,
        });
    }
    Some(out)
}

/// Writes lines and sums them up.
pub(super) struct Writer {
    digest: Crc32c,
    nodes: u64,
    counters: u64,
}

impl Writer {
    pub(super) fn new() -> Writer {
        Writer { digest: Crc32c::new(), nodes: 0, counters: 0 }
    }

    fn line(&mut self, fields: &[&str]) -> String {
        let text = fields.join("\t") + "\n";
        self.digest.update(text.as_bytes());
        text
    }

    pub(super) fn begin(&mut self, root: &str) -> String {
        let mut escaped = String::new();
        escape(root.as_bytes(), &mut escaped);
        self.line(&[MAGIC, &VERSION.to_string()]) + &self.line(&["root", &escaped])
    }

    pub(super) fn node(&mut self, path: &str, data: &[u8]) -> String {
        self.nodes += 1;
        let (mut escaped_path, mut escaped) = (String::new(), String::new());
        escape(path.as_bytes(), &mut escaped_path);
        escape(data, &mut escaped);
        self.line(&["node", &escaped_path, &escaped])
    }

    pub(super) fn counter(&mut self, path: &str, next: i64) -> String {
        self.counters += 1;
        self.line(&["counter", path, &next.to_string()])
    }

    pub(super) fn end(&mut self) -> String {
        let (nodes, counters) = (self.nodes.to_string(), self.counters.to_string());
        let text = self.line(&["end", &nodes, &counters]);
        text + &format!("crc32c\t{}\n", self.checksum())
    }

    fn checksum(&self) -> String {
        format!("{:08x}", self.digest.value())
    }
}

impl Dump {
    /// Reads and checks a whole export. Blocks while `input` does.
    pub fn read(input: &mut dyn BufRead) -> Result<Dump, DumpError> {
        let mut digest = Crc32c::new();
        let mut dump =
            Dump { root: String::new(), nodes: Vec::new(), counters: Vec::new(), checksum: String::new() };
        let (mut line, mut number, mut total) = (Vec::new(), 0, 0_u64);
        let mut counts = None;
        let mut at = HashSet::new();
        // The checksum decides first, at the end: an error in a damaged line is no mistake of the export.
        let mut fault = None;
        loop {
            line.clear();
            let size = input.take(LINE_SIZE_BYTES_MAX).read_until(b'\n', &mut line);
            total += size.map_err(|error| DumpError::Read(error.to_string()))? as u64;
            if total > DUMP_SIZE_BYTES_MAX {
                return Err(DumpError::TooLarge);
            }
            if number == 0 {
                let begins = line.starts_with(MAGIC.as_bytes()) && line.get(MAGIC.len()) == Some(&b'\t');
                if !begins {
                    return Err(DumpError::NoDump);
                }
            }
            if line.pop() != Some(b'\n') {
                return Err(DumpError::Truncated(number));
            }
            number += 1;
            if let Some(stored) = line.strip_prefix(b"crc32c\t") {
                let computed = format!("{:08x}", digest.value());
                let stored = String::from_utf8_lossy(stored).into_owned();
                if computed != stored {
                    return Err(DumpError::Checksum { stored, computed });
                }
                dump.checksum = computed;
                break;
            }
            digest.update(&line);
            digest.update(b"\n");
            match dump.take_line(&line, number, &mut counts, &mut at) {
                // This version cannot judge the lines that a later version writes behind it.
                Err(error @ DumpError::Version(_)) => return Err(error),
                Err(error) => fault = fault.or(Some(error)),
                Ok(()) => {}
            }
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        let bad = |why| DumpError::Line { number, why };
        if counts != Some((Some(dump.nodes.len()), Some(dump.counters.len()))) {
            return Err(bad("the numbers of nodes and counters are others than the end says"));
        }
        let mut rest = [0];
        if input.read(&mut rest).map_err(|error| DumpError::Read(error.to_string()))? != 0 {
            return Err(bad("something follows the checksum"));
        }
        if dump.data("/LAYOUT").is_none() || dump.data("").is_none() {
            return Err(bad("no cluster: the root or its LAYOUT is missing"));
        }
        Ok(dump)
    }

    /// One line between the first byte and the checksum.
    fn take_line(
        &mut self,
        line: &[u8],
        number: usize,
        counts: &mut Option<(Option<usize>, Option<usize>)>,
        at: &mut HashSet<String>,
    ) -> Result<(), DumpError> {
        let bad = |why| DumpError::Line { number, why };
        let text = std::str::from_utf8(line).map_err(|_| bad("not text"))?;
        let fields: Vec<&str> = text.split('\t').collect();
        match (fields.as_slice(), number) {
            ([_, version], 1) => {
                if *version != VERSION.to_string() {
                    return Err(DumpError::Version((*version).into()));
                }
            }
            (["root", root], 2) => self.root = string(root).ok_or(bad("a root that is none"))?,
            (["node", path, data], _) if counts.is_none() => {
                let path = string(path).ok_or(bad("a path that is none"))?;
                let data = unescape(data).ok_or(bad("data that is not escaped"))?;
                check_node(&path, &data, at).map_err(bad)?;
                at.insert(path.clone());
                self.nodes.push((path, data.into()));
            }
            (["counter", path, next], _) if counts.is_none() => {
                let next =
                    next.parse().ok().filter(|next| *next >= 0).ok_or(bad("a counter that is none"))?;
                self.counters.push(((*path).into(), next));
            }
            (["end", nodes, counters], _) if counts.is_none() => {
                *counts = Some((nodes.parse::<usize>().ok(), counters.parse::<usize>().ok()));
            }
            _ => return Err(bad("neither a node nor a counter nor the end")),
        }
        Ok(())
    }

    /// The number of nodes.
    pub fn nodes_count(&self) -> usize {
        self.nodes.len()
    }

    /// The value of a node of the file.
    pub(super) fn data(&self, path: &str) -> Option<&Bytes> {
        self.nodes.iter().find(|(known, _)| known == path).map(|(_, data)| data)
    }
}

fn string(escaped: &str) -> Option<String> {
    String::from_utf8(unescape(escaped)?).ok()
}

fn check_node(path: &str, data: &[u8], known: &HashSet<String>) -> Result<(), &'static str> {
    if data.len() > VALUE_SIZE_BYTES_MAX {
        return Err("a value larger than a metadata store takes");
    }
    if known.contains(path) {
        return Err("a node that was there before");
    }
    let Some((parent, name)) = path.rsplit_once('/') else {
        return if path.is_empty() { Ok(()) } else { Err("a path that does not begin with /") };
    };
    if name.is_empty() || name == "." || name == ".." {
        return Err("a path that no store takes");
    }
    if known.contains(parent) { Ok(()) } else { Err("a node before its parent") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> String {
        let mut writer = Writer::new();
        let mut text = writer.begin("/ledgers");
        text += &writer.node("", b"");
        text += &writer.node("/LAYOUT", b"2\nfactory:1");
        text += &writer.node("/x", &[0, 9, 10, 92, 127, 255]);
        text += &writer.counter("/idgen", 42);
        text + &writer.end()
    }

    fn read(text: &str) -> Result<Dump, DumpError> {
        Dump::read(&mut text.as_bytes())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = file();
        assert!(text.contains("node\t/LAYOUT\t2\\nfactory:1\n"), "{text}");
        assert!(text.contains("node\t/x\t\\x00\\t\\n\\\\\\x7f\\xff\n"), "{text}");
        let dump = read(&text).unwrap();
        assert_eq!((dump.root.as_str(), dump.nodes_count()), ("/ledgers", 3));
        assert_eq!(dump.data("/x").unwrap()[..], [0, 9, 10, 92, 127, 255]);
        assert_eq!(dump.counters, [("/idgen".to_string(), 42)]);
    }

    #[test]
    fn an_end_anywhere_and_any_changed_byte_are_found() {
        let text = file();
        for size in 0..text.len() {
            assert!(read(&text[..size]).is_err(), "cut at {size}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(Dump::read(&mut bytes.as_slice()).is_err(), "byte {at}");
        }
        // A word that is none is damage first: the checksum tells it from a wrong export.
        assert!(matches!(read(&text.replace("node", "nude")), Err(DumpError::Checksum { .. })));
        assert!(matches!(read(&(text.clone() + "x")), Err(DumpError::Line { .. })));
        assert_eq!(read("PNG"), Err(DumpError::NoDump));
        assert_eq!(read(""), Err(DumpError::NoDump));
        assert_eq!(read("bindery-cluster\t2\n"), Err(DumpError::Version("2".into())));
    }

    #[test]
    fn a_wrong_file_with_a_right_checksum_is_refused() {
        let build = |nodes: &[(&str, &[u8])]| {
            let mut writer = Writer::new();
            let mut text = writer.begin("/l");
            for (path, data) in nodes {
                text += &writer.node(path, data);
            }
            text + &writer.end()
        };
        let layout: (&str, &[u8]) = ("/LAYOUT", b"x");
        assert!(read(&build(&[("", b""), layout])).is_ok());
        let bad: [&[(&str, &[u8])]; 6] = [
            &[("", b"")],
            &[layout],
            &[("", b""), layout, ("/a/b", b"")],
            &[("", b""), layout, layout],
            &[("", b""), layout, ("/..", b"")],
            &[("", b""), layout, ("a", b"")],
        ];
        for nodes in bad {
            assert!(matches!(read(&build(nodes)), Err(DumpError::Line { .. })), "{nodes:?}");
        }
    }
}
