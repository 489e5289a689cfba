//! Copies the sources under test, with locks and atomics exchanged for those of the scheduler, once as they are and once
//! for each planted bug. A bug whose text is not in the source any more is listed in `STALE`, and a test fails on it.

#![allow(clippy::disallowed_methods, reason = "a build script reads and writes files")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// A file under test: the module it becomes, and where it is.
const SUBJECTS: [(&str, &str); 4] = [
    ("budget", "../flow/src/budget.rs"),
    ("fair_queue", "../engine/src/fair_queue.rs"),
    ("signal", "../engine/src/signal.rs"),
    ("admission_queue", "../engine/src/admission_queue.rs"),
];
/// The outbox. The parts of the server that it depends on are stubs.
const OUTBOX: [(&str, &str); 5] = [
    ("outbox", "../server/src/connection/output/outbox/mod.rs"),
    ("outbox/segment", "../server/src/connection/output/outbox/segment.rs"),
    ("outbox/part", "stubs/part.rs"),
    ("request", "stubs/request.rs"),
    ("read_class", "../server/src/read_class.rs"),
];

/// Replacements made in all of them.
const SHIMS: [(&str, &str); 5] = [
    ("parking_lot::", "crate::lock::"),
    ("std::sync::atomic::", "crate::atomic::"),
    ("tokio::time::sleep(", "crate::world::never("),
    ("crate::signal::", "super::signal::"),
    ("crate::fair_queue::", "super::fair_queue::"),
];

/// A scenario: the module, and the subjects it needs.
const SCENARIOS: [(&str, &[&str]); 3] = [
    ("budgets", &["budget"]),
    ("outboxes", OUTBOX_NEEDS),
    ("admission", &["signal", "fair_queue", "admission_queue"]),
];
const OUTBOX_NEEDS: &[&str] = &["budget", "outbox", "outbox/segment", "outbox/part", "request", "read_class"];

/// A planted bug: name, subject, and what is exchanged in it.
type Bug = (&'static str, &'static str, &'static str, &'static str);

fn main() {
    let crate_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=bugs.rs");
    let sources: Vec<(&str, String)> = SUBJECTS
        .iter()
        .chain(&OUTBOX)
        .map(|(module, path)| {
            println!("cargo::rerun-if-changed={path}");
            let text =
                fs::read_to_string(crate_dir.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            // Their own tests know the real locks.
            let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            let up = if module.contains('/') { "super::super" } else { "super" };
            let text = text
                .replace("bindery_flow::", &format!("{up}::budget::"))
                .replace("crate::connection::request::", &format!("{up}::request::"))
                .replace("crate::read_class::", &format!("{up}::read_class::"))
                .replace("#[cfg(test)]\nmod tests;\n", "");
            (*module, SHIMS.iter().fold(text, |text, (from, to)| text.replace(from, to)))
        })
        .collect();

    let mut root = String::new();
    let mut stale = Vec::new();
    let all: Vec<&str> = SCENARIOS.iter().map(|(scenario, _)| *scenario).collect();
    variant(&mut root, &out, &crate_dir, "sound", &sources, &all);
    let mut names: Vec<&str> = BUGS.iter().map(|(name, ..)| *name).collect();
    names.dedup();
    for name in names {
        let shimmed = |from: &str| SHIMS.iter().fold(from.to_owned(), |text, (a, b)| text.replace(a, b));
        let place = BUGS.iter().filter(|bug| bug.0 == name).find_map(|(_, subject, from, to)| {
            let at = sources.iter().position(|(module, _)| module == subject)?;
            let from = shimmed(from);
            (sources[at].1.matches(&from).count() == 1).then_some((at, from, to))
        });
        let mut changed = sources.clone();
        match place {
            Some((at, from, to)) => changed[at].1 = changed[at].1.replacen(&from, to, 1),
            None => stale.push(name),
        }
        let subject = BUGS.iter().find(|bug| bug.0 == name).map_or("", |bug| bug.1);
        let scenarios: Vec<&str> =
            SCENARIOS.iter().filter(|(_, needs)| needs.contains(&subject)).map(|(name, _)| *name).collect();
        variant(&mut root, &out, &crate_dir, name, &changed, &scenarios);
    }
    writeln!(
        root,
        "/// Planted bugs whose text is not in the source any more: they plant nothing.\npub const STALE: &[&str] = &{stale:?};"
    )
    .expect("a String grows");
    fs::write(out.join("variants.rs"), root).expect("OUT_DIR is writable");
}

/// Writes a module tree: the subjects that the scenarios need, and the scenarios.
fn variant(
    root: &mut String,
    out: &Path,
    crate_dir: &Path,
    name: &str,
    sources: &[(&str, String)],
    scenarios: &[&str],
) {
    let dir = out.join(name);
    fs::create_dir_all(&dir).expect("OUT_DIR is writable");
    let title =
        if name == "sound" { "The sources as they are." } else { "The sources with this bug planted." };
    write!(root, "/// {title}\n#[allow(missing_docs, unused, clippy::all)]\npub mod {name} {{\n")
        .expect("a String grows");
    for (module, text) in sources {
        let is_needed =
            SCENARIOS.iter().any(|(scenario, needs)| scenarios.contains(scenario) && needs.contains(module));
        if is_needed {
            // A folder's files stand beside its own.
            let has_parts = sources.iter().any(|(other, _)| other.starts_with(&format!("{module}/")));
            let path = dir.join(if has_parts { format!("{module}/mod.rs") } else { format!("{module}.rs") });
            fs::create_dir_all(path.parent().expect("it has a folder")).expect("OUT_DIR is writable");
            fs::write(&path, text).expect("OUT_DIR is writable");
            if !module.contains('/') {
                writeln!(root, "    #[path = {path:?}]\n    pub mod {module};").expect("a String grows");
            }
        }
    }
    for scenario in scenarios {
        let path = crate_dir.join(format!("src/{scenario}.rs"));
        writeln!(root, "    #[path = {path:?}]\n    pub mod {scenario};").expect("a String grows");
    }
    root.push_str("}\n");
}

include!("bugs.rs");
