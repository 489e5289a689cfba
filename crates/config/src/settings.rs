//! From flags, `bk_server.conf` and the environment to a bookie's settings. Flags win; all faults are reported at once.
//!
//! ```text
//! file, environment ─► Values ─► rows of the table, flags ─► Draft ─► rules ─► Examined ─► Settings
//! ```

#[cfg(test)]
mod tests;

use crate::bookie_security::BookieSecurity;
use crate::parse::parse_size;
use crate::repair::RepairRoleSettings;
use crate::rules;
use crate::sources::environment::{self, Naming};
use crate::sources::host::Host;
use crate::sources::values::{Finding, Given, Place, Values};
use crate::table::flags::{BookieArgs, MemoryUse};
use crate::table::{self, Draft, Status};
use crate::tier::TierSettings;
use bindery_engine::PoolMemory;
use bindery_metadata::MetadataUri;
use bindery_server::config::BookieConfig;
use bindery_server::memory::machine_bytes;

/// Settings from the command line, the file and the environment.
#[derive(Debug)]
pub struct Settings {
    /// The bookie's own.
    pub config: BookieConfig,
    /// Where the cluster is.
    pub metadata: MetadataUri,
    /// The object store that ledgers are kept in, and how they are moved there; the second is whether this process moves any.
    pub tier: Option<(TierSettings, bool)>,
    /// Auditor and replication worker of this process, and how they speak to bookies.
    pub repair: (RepairRoleSettings, BookieSecurity),
    /// To be logged once the log is up.
    pub warnings: Vec<String>,
    /// The same: how settings were understood.
    pub notes: Vec<String>,
}

/// All that can be said of a command line, a file and an environment.
#[derive(Debug)]
pub struct Examined {
    /// The settings, as far as they could be read.
    pub draft: Draft,
    /// Any keeps the bookie from starting.
    pub faults: Vec<Finding>,
    /// Settings that do not do what their owner may expect.
    pub warnings: Vec<Finding>,
    /// How settings were understood.
    pub notes: Vec<Finding>,
    /// Keys in the file that have no effect.
    pub without_effect: Vec<Finding>,
}

impl Examined {
    /// The settings that a bookie starts with, or the faults in them.
    pub fn settings(self) -> Result<Settings, Vec<String>> {
        let Draft { config, metadata, tier, repair, security, .. } = self.draft;
        let mut warnings: Vec<String> = self.warnings.iter().map(Finding::to_string).collect();
        if !self.without_effect.is_empty() {
            let names: Vec<&str> =
                self.without_effect.iter().filter_map(|finding| finding.key.as_deref()).collect();
            warnings.push(format!(
                "these settings have no effect here, and bindery config explain KEY says why: {}",
                names.join(", ")
            ));
        }
        match metadata {
            Some(metadata) if self.faults.is_empty() => {
                let notes = self.notes.iter().map(Finding::to_string).collect();
                Ok(Settings { config, metadata, tier, repair: (repair, security), warnings, notes })
            }
            _ => Err(self.faults.iter().map(Finding::to_string).collect()),
        }
    }
}

/// Settings whose neglect would weaken a promise: with a value that asks for it, the bookie does not start.
fn refuse_what_is_not_kept(file: &mut Values) {
    for key in table::all() {
        let Status::Refused(why) = key.status else { continue };
        if let Some(value) = file.take(key.name).filter(|value| key.asks_for_more(value)) {
            file.fault(key.name, format!("{}={}: {why}", key.name, key.printable(&value)));
        }
    }
}

/// Reports the keys that were not taken: those without effect here, and unknown ones.
fn name_the_rest(file: &mut Values) -> Vec<Finding> {
    let mut without_effect = Vec::new();
    for (name, given) in file.rest() {
        let Some(key) = table::find(&name) else {
            let hint = table::nearest(&name).map_or_else(String::new, |near| format!("; {near} is near"));
            file.warn(&name, format!("{name} is no key of BookKeeper or Bindery, and has no effect{hint}"));
            continue;
        };
        let Status::NoMeaning(why) = key.status else { continue };
        if given.text.is_empty() {
            continue;
        }
        let value = key.printable(&given.text);
        if key.asks_for_more(&given.text) {
            file.warn(&name, format!("{name}={value} has no effect: {why}"));
        } else {
            let text = format!("{name}={value} has no effect: {why}");
            without_effect.push(Finding { key: Some(name), place: Some(given.place), text });
        }
    }
    without_effect
}

/// Commons Configuration, which reads the file for BookKeeper, puts other values into a value. Where that matters, it must not
/// be taken for a name.
fn refuse_interpolation(file: &mut Values) {
    let has_it = |(name, given): (&String, &Given)| {
        let key = table::find(name).filter(|key| key.has_effect() && given.text.contains("${"))?;
        Some((name.clone(), key.printable(&given.text).to_owned()))
    };
    let found: Vec<(String, String)> = file.given().iter().filter_map(has_it).collect();
    for (name, text) in found {
        // Any other fault of this key has the same cause.
        file.faults.retain(|fault| fault.key.as_ref() != Some(&name));
        file.fault(&name, format!("{name}={text}: ${{...}} is not replaced here, write the value itself"));
    }
}

/// Puts flags, the file's text and variables of the environment together.
pub fn examine(
    args: &BookieArgs,
    file: Option<&str>,
    variables: Vec<(String, String)>,
    host: &dyn Host,
) -> Examined {
    let mut file = Values::of(file);
    if args.config_env != Naming::None {
        let is_key = |key: &str| table::find(key).is_some() || file.given().contains_key(key);
        let is_given = |key: &str| file.given().get(key).is_some_and(|given| !given.text.is_empty());
        let (chosen, strange) = environment::select(args.config_env, variables, is_key, is_given);
        file.overlay(chosen);
        for name in strange {
            let hint = name.split_once('_').and_then(|(_, key)| table::nearest(key));
            let hint = hint.map_or_else(String::new, |near| format!("; {near} is near"));
            file.warnings
                .push(format!("{name} in the environment names no key, and has no effect{hint}").into());
        }
    }
    refuse_what_is_not_kept(&mut file);
    let mut draft = table::read(args, &mut file, |_| true);
    rules::apply(args, &mut file, &mut draft, host);
    flags_alone(args, &mut file, &mut draft.config);
    refuse_interpolation(&mut file);
    let without_effect = name_the_rest(&mut file);
    let Values { mut faults, warnings, notes, .. } = file;
    // In the order of the file, whatever the order in which they were found.
    faults.sort_by_key(|fault| match fault.place {
        Some(Place::Line(line)) => line,
        Some(Place::Variable(_)) => usize::MAX - 1,
        None => usize::MAX,
    });
    Examined { draft, faults, warnings, notes, without_effect }
}

/// Settings that only flags give.
fn flags_alone(args: &BookieArgs, file: &mut Values, config: &mut BookieConfig) {
    config.accept_journal_damage = args.accept_journal_damage;
    config.preallocate = args.preallocate.unwrap_or(config.preallocate);
    if args.memory == Some(MemoryUse::Lazy) {
        config.pool_memory = PoolMemory::Lazy;
    }
    if let Some(text) = &args.memory_limit {
        match memory_limit(text, machine_bytes()) {
            Ok(bytes) => config.memory_limit = Some(bytes),
            Err(fault) => file.faults.push(fault.into()),
        }
    }
}

/// The bytes of `--memory-limit` on a machine with this much memory, or what is wrong with it.
pub fn memory_limit(text: &str, machine_bytes: u64) -> Result<u64, String> {
    let Some(bytes) = parse_size(text) else {
        return Err(format!(
            "--memory-limit {text}: write a number with KiB, MiB or GiB, for example 512MiB"
        ));
    };
    // Pools beyond it would be promises that end in the kernel's killing, or in an allocation that aborts.
    if bytes > machine_bytes {
        return Err(format!(
            "--memory-limit {text} is more than the {} MiB of memory that this machine or its control group has",
            machine_bytes >> 20
        ));
    }
    Ok(bytes)
}
