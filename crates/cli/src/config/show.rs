//! `bindery config show`.

use super::args::ShowArgs;
use crate::args::BookieArgs;
use crate::exit::Failure;
use crate::ledger::form;
use crate::output;
use bindery_config::settings::Examined;
use bindery_config::sources::values::Place;
use bindery_config::table::flags::MemoryUse;
use bindery_config::table::{self, Key};
use bindery_engine::PoolMemory;
use bindery_server::memory::{default_limit, machine_bytes};
use serde_json::json;

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

/// The settings in force, as the object that the admin port shows.
pub fn as_json(args: &BookieArgs, examined: &Examined) -> String {
    let rows = rows(args, examined, false).into_iter();
    serde_json::Value::Object(rows.map(|row| (row.name.to_owned(), row.value.into())).collect()).to_string()
}

fn rows(args: &BookieArgs, examined: &Examined, all: bool) -> Vec<Row> {
    let mut rows = of_flags(args, examined);
    for key in table::all() {
        let given = examined.draft.given.get(key.name);
        // What an alias says stands at the other key.
        if !all && (!key.has_effect() || key.alias_of.is_some()) {
            continue;
        }
        let (value, origin) = match (key.value_in(&examined.draft), given) {
            (Some(value), _) => {
                let origin = origin(args, examined, key, !value.is_empty());
                (value, origin)
            }
            // Said as it was written; nothing comes of it.
            (None, Some(given)) => (key.printable(&given.text).to_owned(), origin(args, examined, key, true)),
            (None, None) => (String::new(), "not set".to_owned()),
        };
        rows.push(Row { name: key.name, value, origin, status: key.status.word() });
    }
    rows
}

fn origin(args: &BookieArgs, examined: &Examined, key: &Key, has_value: bool) -> String {
    if let Some((flag, true)) = key.flag_in(args) {
        let is_home = args.data.is_some() && ["--journal-dir", "--ledger-dir"].contains(&flag);
        return if is_home { "--data" } else { flag }.to_owned();
    }
    let gives_it =
        |other: &&Key| other.alias_of == Some(key.name) || has_value && other.leads_to == Some(key.name);
    let names = std::iter::once(key.name).chain(table::all().filter(gives_it).map(|other| other.name));
    let is_set = |name: &str| examined.draft.given.get(name).filter(|given| !given.text.is_empty());
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
    let config = &examined.draft.config;
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
