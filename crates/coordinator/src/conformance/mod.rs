//! The differential wire suite: the same requests to any server that speaks ZooKeeper's client protocol, and what it
//! answered as text that can be compared.
//!
//! # Data flow
//! ```text
//! script -> raw client -> server -> raw client -> transcript (normalised) -> compared with the golden one
//! ```
//! The golden transcripts were recorded from ZooKeeper 3.9.5 with [`transcript`] itself and are held to be true by a
//! test that runs beside a real server (`tests/conformance.rs`, which also says how to record again).
//!
//! # Invariants
//! 1. A script is deterministic: two runs against two fresh servers that behave alike give equal transcripts.
//! 2. What a server chooses freely (zxids, session ids, times, orders of lists) is a symbol; how these relate (equal,
//!    before, after, owned by) is not.
//! 3. Every wait is bounded: a server that goes silent ends the script, and its transcript says so.
//! 4. Requests that our server does not support are in [`UNSUPPORTED`], get the reply Unimplemented, and are compared
//!    as such; any other difference that is accepted is in [`KNOWN_DIFFERENCES`] with its reason.
//!
//! # Limits     one server at a time, fresh and with no other client; a whole run takes about half a minute, most of
//! it spent on waiting for sessions to expire
//!
//! # Not here   durability and restarts (the crate's own tests), load, the Java client (`tests/interop`)

mod connection;
mod jute;
mod render;
mod request;
mod script;
mod scripts;

use self::script::Script;

/// Operations that the embedded coordinator answers with Unimplemented: opcode, name, reason.
pub const UNSUPPORTED: &[(i32, &str, &str)] = &[
    (16, "reconfig", "there is no ensemble whose members could change"),
    (102, "sasl", "the coordinator is reached on loopback only and has no accounts"),
];

/// Accepted differences to the golden transcripts: script, the golden line, the line of ours, reason.
pub const KNOWN_DIFFERENCES: &[(&str, &str, &str, &str)] = &[];

/// The names of all scripts, in the order in which they have to run.
pub fn names() -> Vec<&'static str> {
    scripts::ALL.iter().map(|(name, _)| *name).collect()
}

/// Runs one script against the server at `address` (host:port) and returns its transcript. Blocks the thread.
///
/// # Panics
/// When there is no script of that name.
pub fn transcript(address: &str, name: &str) -> String {
    let (name, body) =
        scripts::ALL.iter().find(|(known, _)| *known == name).expect("a name that names() returns");
    Script::run(address, name, *body)
}

/// Compares a transcript of ours with the golden one, `None` when it is what it has to be; otherwise the lines that
/// differ, with those around them.
pub fn differences(name: &str, golden: &str, ours: &str) -> Option<String> {
    let expected: Vec<String> = golden.lines().map(|line| expected_line(name, line)).collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    compare(&expected, &ours.lines().collect::<Vec<_>>())
}

/// Compares two transcripts that have to be equal to the letter.
pub fn exact_differences(golden: &str, got: &str) -> Option<String> {
    compare(&golden.lines().collect::<Vec<_>>(), &got.lines().collect::<Vec<_>>())
}

/// The line that our server must write where the real server wrote `golden`.
fn expected_line(script: &str, golden: &str) -> String {
    for (_, name, _) in UNSUPPORTED {
        if let Some((who, reply)) = golden.split_once("< ")
            && reply.split(' ').next() == Some(name)
        {
            return format!("{who}< {name} Unimplemented");
        }
    }
    let known = KNOWN_DIFFERENCES.iter().find(|(name, line, _, _)| *name == script && *line == golden);
    known.map_or(golden, |(_, _, ours, _)| ours).into()
}

/// A longest-common-subsequence diff with three lines of context; transcripts are short.
fn compare(expected: &[&str], got: &[&str]) -> Option<String> {
    if expected == got {
        return None;
    }
    let (rows, columns) = (expected.len(), got.len());
    let mut common = vec![vec![0_u32; columns + 1]; rows + 1];
    for i in (0..rows).rev() {
        for j in (0..columns).rev() {
            common[i][j] = match expected[i] == got[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < rows || j < columns {
        if i < rows && j < columns && expected[i] == got[j] {
            lines.push((' ', expected[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < rows && (j == columns || common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', expected[i]));
            i += 1;
        } else {
            lines.push(('+', got[j]));
            j += 1;
        }
    }
    let near = |at: usize| {
        lines[at.saturating_sub(3)..(at + 4).min(lines.len())].iter().any(|(mark, _)| *mark != ' ')
    };
    let mut text = String::new();
    for (at, (mark, line)) in lines.iter().enumerate() {
        if near(at) {
            text += &format!("{mark} {line}\n");
        } else if !text.is_empty() && !text.ends_with("...\n") {
            text += "...\n";
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_transcripts_do_not_differ_and_others_show_where() {
        assert_eq!(exact_differences("a\nb\n", "a\nb\n"), None);
        let found = exact_differences("a\nb\nc\n", "a\nx\nc\nd\n").unwrap();
        assert_eq!(found, "  a\n- b\n+ x\n  c\n+ d\n");
    }

    #[test]
    fn an_unsupported_operation_has_to_answer_unimplemented_and_nothing_else() {
        let golden = "a> reconfig record=\"\"\na< reconfig ReconfigDisabled zxid=now\n";
        assert!(differences("any", golden, golden).is_some());
        let ours = "a> reconfig record=\"\"\na< reconfig Unimplemented\n";
        assert_eq!(differences("any", golden, ours), None);
    }

    #[test]
    fn every_script_has_a_name_of_its_own() {
        let mut names = names();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
