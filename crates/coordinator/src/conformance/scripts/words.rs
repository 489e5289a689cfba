//! Four-letter words: asked on a connection of their own, answered as text, then closed.

use super::super::script::{Done, Script};

/// Replaces numbers and versions by `N`, which leaves the names and their order.
fn shape(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        // One line for each open connection: how many there are is the server's business for a moment after a close.
        if line.starts_with(" /") && out.contains("\n /") {
            continue;
        }
        if let Some(("Zookeeper version", _)) = line.split_once(": ") {
            out += "Zookeeper version: N\n";
            continue;
        }
        // Values stand after a colon; the lines of clients have none and are all value.
        let (key, value) = line.split_once(": ").map_or(("", line), |(key, value)| (key, value));
        let value = value.replace("0x", "");
        let hex = key == "Zxid";
        let mut shaped = if key.is_empty() { String::new() } else { format!("{key}: ") };
        let mut rest = value.as_str();
        while let Some(first) = rest.chars().next() {
            let digit = |c: char| c.is_ascii_digit() || (hex && c.is_ascii_hexdigit());
            if digit(first) {
                shaped.push('N');
                rest = rest.trim_start_matches(|c| digit(c) || c == '.');
            } else {
                shaped.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        out += &shaped;
        out.push('\n');
    }
    out
}

// Which words are answered is a server's setting. `mntr`, a list that each version lengthens, is not compared.
pub(super) fn words(s: &mut Script) -> Done {
    for word in ["ruok", "srvr", "stat", "isro", "ruok\n", "stat\n", "dump", "envi", "conf", "cons", "wchs"] {
        s.open("a")?;
        s.send_bytes("a", &word.escape_debug().to_string(), word.as_bytes());
        let text = String::from_utf8_lossy(&s.read_to_end("a")?).into_owned();
        for line in shape(&text).lines() {
            s.said("a", line);
        }
        s.said("a", if text.ends_with('\n') { "(end of line, end)" } else { "(end)" });
    }
    s.note("no words: lengths that are too large");
    for word in ["abcd", "RUOK", "GET ", "ruo"] {
        s.open("a")?;
        s.send_bytes("a", word, word.as_bytes());
        s.end_sending("a");
        let size = s.read_to_end("a")?.len();
        s.said("a", &format!("{size} bytes, then the end"));
    }
    s.note("a word in a session is a length");
    s.connect("a")?;
    s.send_bytes("a", "ruok", b"ruok");
    s.closed("a")
}
