//! `bindery config explain`.

use crate::exit::Failure;
use crate::ledger::form;
use crate::output;
use bindery_config::table::{self, Key};
use serde_json::json;

/// Says what a key does here.
pub fn run(name: &str, is_json: bool) -> Result<(), Failure> {
    let Some(key) = table::find(name) else {
        let hint = table::nearest(name).map_or_else(String::new, |near| format!("; {near} is near"));
        return Err(Failure::usage(format!("{name} is no key of BookKeeper or Bindery{hint}")));
    };
    let text = if is_json { form::line(&object(key)) } else { page(key).into_bytes() };
    output::write_all(&text)
}

/// Begins a sentence, unless it begins with the name of a key.
pub fn capital(text: &str) -> String {
    let word = text.split([' ', ',', ':', '.']).next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if !word.contains(char::is_uppercase) => first.to_uppercase().chain(letters).collect(),
        _ => text.to_owned(),
    }
}

fn page(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" (in {})", key.unit) };
    let mut text = format!("{}{unit}: {}\n  {}.\n", key.name, key.status.word(), capital(key.about));
    let (here, java) = (key.default(), key.java);
    match (here.is_empty(), java.is_empty()) {
        (false, false) => text.push_str(&format!("  Default: {here}; in BookKeeper {java}.\n")),
        (false, true) => text.push_str(&format!("  Default: {here}.\n")),
        (true, false) => text.push_str(&format!("  Default in BookKeeper: {java}.\n")),
        (true, true) => {}
    }
    if let Some(flag) = key.flag_name() {
        text.push_str(&format!("  {flag} wins over it.\n"));
    }
    if let Some(reason) = key.status.reason() {
        text.push_str(&format!("  {}.\n", capital(reason)));
    }
    text
}

fn object(key: &Key) -> serde_json::Value {
    let some = |text: String| if text.is_empty() { None } else { Some(text) };
    json!({
        "key": key.name,
        "status": key.status.word(),
        "about": key.about,
        "unit": some(key.unit.to_owned()),
        "default": some(key.default()),
        "bookkeeper_default": some(key.java.to_owned()),
        "flag": key.flag_name(),
        "reason": key.status.reason(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_explained_in_sentences() {
        let text = page(table::find("journalMaxSizeMB").unwrap());
        assert!(
            text.starts_with("journalMaxSizeMB (in MB): translated\n  Length of a journal file.\n"),
            "{text}"
        );
        assert!(text.contains("Default: 256; in BookKeeper 2048."), "{text}");
        let text = page(table::find("dbStorage_rocksDB_blockSize").unwrap());
        assert!(text.contains("no effect") && text.contains("There is no RocksDB"), "{text}");
        assert_eq!(capital("scrubPeriod says"), "scrubPeriod says");
    }
}
