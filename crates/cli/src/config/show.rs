//! `bindery config show`.

use super::args::ShowArgs;
use crate::args::{BookieArgs, MemoryUse};
use crate::exit::Failure;
use crate::keys::{self, Key};
use crate::ledger::form;
use crate::output;
use crate::settings::Examined;
use crate::sources::values::Place;
use bindery_engine::PoolMemory;
use bindery_server::memory::{default_limit, machine_bytes};
use serde_json::json;

/// Keys that say the same as another one, which is the one to show; what they say stands there.
const ALIASES: [(&str, &str); 7] = [
    ("zkServers", "metadataServiceUri"),
    ("zkLedgersRootPath", "metadataServiceUri"),
    ("journalDirectory", "journalDirectories"),
    ("minUsableSizeForEntryLogCreation", "minUsableSizeForHighPriorityWrites"),
    ("tcpKeepaliveIdleSec", "serverTcpKeepIdle"),
    ("tcpKeepaliveIntervalSec", "serverTcpKeepIntvl"),
    ("tcpKeepaliveProbes", "serverTcpKeepCnt"),
];

/// Keys that lead to the value of another one.
const SOURCES: [(&str, &str); 1] = [("useHostNameAsBookieID", "advertisedAddress")];

/// A setting, and where it comes from.
struct Row {
    name: &'static str,
    value: String,
    origin: String,
    status: &'static str,
}

/// Prints the settings in force.
pub fn run(args: ShowArgs) -> Result<(), Failure> {
    let ShowArgs { all, json, run: mut bookie } = args;
    let examined = super::examine(&mut bookie)?;
    if !examined.faults.is_empty() {
        let faults: Vec<String> = examined.faults.iter().map(ToString::to_string).collect();
        return Err(Failure::usage_of(&faults));
    }
    let rows = rows(&bookie, &examined, all);
    let width = |of: fn(&Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let (names, values) = (width(|row| row.name.len()), width(|row| row.value.len()).min(40));
    let mut text = Vec::new();
    for row in &rows {
        let Row { name, value, origin, status } = row;
        text.extend(match json {
            true => form::line(&json!({ "key": name, "value": value, "origin": origin, "status": status })),
            false => format!("{name:<names$}  {value:<values$}  {origin}\n").into_bytes(),
        });
    }
    output::write_all(&text)
}

fn rows(args: &BookieArgs, examined: &Examined, all: bool) -> Vec<Row> {
    let mut rows = of_flags(args, examined);
    for key in keys::all() {
        let is_alias = ALIASES.iter().any(|(alias, _)| *alias == key.name);
        let given = examined.given.get(key.name);
        if !all && (!key.has_effect() || is_alias) {
            continue;
        }
        let (value, origin) = match key.shown {
            Some(shown) => {
                let value = shown(&examined.view());
                let origin = origin(args, examined, key, !value.is_empty());
                (value, origin)
            }
            // Said as it was written; nothing comes of it.
            None => match given {
                Some(_) if key.is_secret => ("...".to_owned(), origin(args, examined, key, true)),
                Some(given) => (given.text.clone(), origin(args, examined, key, true)),
                None => (String::new(), "not set".to_owned()),
            },
        };
        rows.push(Row { name: key.name, value, origin, status: key.status.word() });
    }
    rows
}

fn origin(args: &BookieArgs, examined: &Examined, key: &Key, has_value: bool) -> String {
    if let Some(flag) = key.flag.filter(|flag| (flag.is_given)(args)) {
        let is_home = args.data.is_some() && ["--journal-dir", "--ledger-dir"].contains(&flag.name);
        return if is_home { "--data" } else { flag.name }.to_owned();
    }
    let sources = SOURCES.iter().filter(|_| has_value);
    let others = ALIASES.iter().chain(sources).filter(|(_, main)| *main == key.name).map(|(other, _)| *other);
    let names = std::iter::once(key.name).chain(others);
    let is_set = |name: &str| examined.given.get(name).filter(|given| !given.text.is_empty());
    if let Some(given) = names.filter_map(is_set).next() {
        return match &given.place {
            Place::Line(line) => format!("line {line}"),
            Place::Variable(name) => name.clone(),
        };
    }
    let of_shell = match key.name {
        "metadataServiceUri" => args.metadata_of_shell.as_ref().map(|_| "BINDERY_METADATA"),
        "tierUrl" => args.tier_of_shell.as_ref().map(|_| "BINDERY_TIER"),
        _ => None,
    };
    of_shell.unwrap_or("default").to_owned()
}

/// Settings that only flags give.
fn of_flags(args: &BookieArgs, examined: &Examined) -> Vec<Row> {
    let config = &examined.config;
    let memory = config.memory_limit.unwrap_or_else(|| default_limit(machine_bytes()));
    let use_of_it = match config.pool_memory {
        PoolMemory::Lazy => MemoryUse::Lazy,
        PoolMemory::Touched => MemoryUse::Touched,
    };
    let row = |name: &'static str, value: String, is_given: bool| Row {
        name,
        value,
        origin: if is_given { name.to_owned() } else { "default".to_owned() },
        status: "flag",
    };
    vec![
        row("--memory-limit", format!("{} MiB", memory >> 20), args.memory_limit.is_some()),
        row("--memory", format!("{use_of_it:?}").to_lowercase(), args.memory.is_some()),
        row("--preallocate", config.preallocate.to_string(), args.preallocate.is_some()),
        row("--accept-journal-damage", config.accept_journal_damage.to_string(), args.accept_journal_damage),
    ]
}
