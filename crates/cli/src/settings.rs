//! From flags, `bk_server.conf` and the environment to a bookie's settings. Flags win; all faults are reported at once.

mod addresses;
mod clients;
mod connections;
mod disks;
pub(crate) mod metadata_security;
mod places;
mod space;
#[cfg(test)]
mod tests;

use crate::admin_tls;
use crate::args::{BookieArgs, MemoryUse, Switch};
use crate::auth_settings;
use crate::bookie_security::BookieSecurity;
use crate::keys::{self, Status, View};
use crate::parse::parse_size;
use crate::repair::RepairRoleSettings;
use crate::request_limits;
use crate::sources::environment::{self, Naming};
use crate::sources::host::Host;
use crate::sources::values::{Finding, Given, Place, Values};
use crate::tier_role::TierSettings;
use crate::tls_settings;
use bindery_engine::JOURNAL_FILES_MIN;
use bindery_engine::PoolMemory;
use bindery_metadata::MetadataUri;
use bindery_server::config::BookieConfig;
use bindery_server::memory::machine_bytes;
use bindery_types::BookieId;
use bindery_wire::FrameLimit;
use std::collections::BTreeMap;
use std::time::Duration;

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
    /// The bookie's settings, as far as they could be read.
    pub config: BookieConfig,
    /// Where the cluster is, if that is known.
    pub metadata: Option<MetadataUri>,
    /// See [`Settings::tier`].
    pub tier: Option<(TierSettings, bool)>,
    /// See [`Settings::repair`].
    pub repair: (RepairRoleSettings, BookieSecurity),
    /// The values in the file or in the environment.
    pub given: BTreeMap<String, Given>,
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
    /// For the table of keys.
    pub fn view(&self) -> View<'_> {
        View {
            config: &self.config,
            metadata: self.metadata.as_ref(),
            tier: self.tier.as_ref(),
            repair: Some(&self.repair.0),
            given: Some(&self.given),
        }
    }

    /// The settings that a bookie starts with, or the faults in them.
    pub fn settings(self) -> Result<Settings, Vec<String>> {
        let Examined { config, metadata, tier, repair, .. } = self;
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
                Ok(Settings { config, metadata, tier, repair, warnings, notes })
            }
            _ => Err(self.faults.iter().map(Finding::to_string).collect()),
        }
    }
}

/// Settings whose neglect would weaken a promise: with a value that asks for it, the bookie does not start.
fn refuse_what_is_not_kept(file: &mut Values) {
    for key in keys::all() {
        let Status::Refused(why) = key.status else { continue };
        let asks = key.asks.unwrap_or(|_| true);
        if let Some(value) = file.take(key.name).filter(|value| asks(value)) {
            let value = if key.is_secret { "..." } else { &value };
            file.fault(key.name, format!("{}={value}: {why}", key.name));
        }
    }
}

/// Reports the keys that were not taken: those without effect here, and unknown ones.
fn name_the_rest(file: &mut Values) -> Vec<Finding> {
    let mut without_effect = Vec::new();
    for (name, given) in file.rest() {
        let Some(key) = keys::find(&name) else {
            let hint = keys::nearest(&name).map_or_else(String::new, |near| format!("; {near} is near"));
            file.warn(&name, format!("{name} is no key of BookKeeper or Bindery, and has no effect{hint}"));
            continue;
        };
        let Status::NoMeaning(why) = key.status else { continue };
        if given.text.is_empty() {
            continue;
        }
        let value = if key.is_secret { "..." } else { &given.text };
        if key.asks.is_some_and(|asks| asks(&given.text)) {
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
        let key = keys::find(name).filter(|key| key.has_effect() && given.text.contains("${"))?;
        let shown = if key.is_secret { "..." } else { &given.text };
        Some((name.clone(), shown.to_owned()))
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
        let is_key = |key: &str| keys::find(key).is_some() || file.given().contains_key(key);
        let is_given = |key: &str| file.given().get(key).is_some_and(|given| !given.text.is_empty());
        let (chosen, strange) = environment::select(args.config_env, variables, is_key, is_given);
        file.overlay(chosen);
        for name in strange {
            let hint = name.split_once('_').and_then(|(_, key)| keys::nearest(key));
            let hint = hint.map_or_else(String::new, |near| format!("; {near} is near"));
            file.warnings
                .push(format!("{name} in the environment names no key, and has no effect{hint}").into());
        }
    }
    let mut config = BookieConfig::default();

    refuse_what_is_not_kept(&mut file);
    let Taken { metadata, tier, repair } = take_all(args, &mut file, &mut config, host);
    refuse_interpolation(&mut file);
    let without_effect = name_the_rest(&mut file);
    let given = file.given().clone();
    let Values { mut faults, warnings, notes, .. } = file;
    // In the order of the file, whatever the order in which they were found.
    faults.sort_by_key(|fault| match fault.place {
        Some(Place::Line(line)) => line,
        Some(Place::Variable(_)) => usize::MAX - 1,
        None => usize::MAX,
    });
    Examined { config, metadata, tier, repair, given, faults, warnings, notes, without_effect }
}

/// What is beside the bookie's own settings.
struct Taken {
    metadata: Option<MetadataUri>,
    tier: Option<(TierSettings, bool)>,
    repair: (RepairRoleSettings, BookieSecurity),
}

/// Takes every key that has an effect, whatever the others say, so that none of them is called unknown.
fn take_all(args: &BookieArgs, file: &mut Values, config: &mut BookieConfig, host: &dyn Host) -> Taken {
    places::directories(args, file, config);
    config.allow_loopback = args.allow_loopback | file.flag("allowLoopback").unwrap_or(false);
    addresses::apply(args, file, config, host);
    basics(args, file, config);
    space::apply(file, config);
    disks::apply(file, config);
    connections::apply(file, config);
    config.tls = tls_settings::apply(file);
    config.admin_tls = admin_tls::apply(file, config.admin.is_some());
    config.auth = auth_settings::apply(args, file, config.tls.as_ref(), host);
    request_limits::apply(file, config);
    let metadata = places::metadata(args, file);
    config.metadata_security = metadata_security::apply(file, args.jaas_file.as_deref());
    let (tier, repair) = clients::apply(args, file, config);
    Taken { metadata, tier, repair }
}

/// Settings that belong to no other part.
fn basics(args: &BookieArgs, file: &mut Values, config: &mut BookieConfig) {
    bookie_id(args, file, config);
    config.read_only = args.read_only | file.flag("forceReadOnlyBookie").unwrap_or(false);
    config.allow_storage_expansion = file.flag("allowStorageExpansion").unwrap_or(false);
    let is_checked = file.flag("dataIntegrityChecking").unwrap_or(false);
    let is_stamped = file.flag("dataIntegrityStampMissingCookies").unwrap_or(false);
    config.accept_lost_directories = is_checked && is_stamped;
    config.accept_journal_damage = args.accept_journal_damage;
    let file_sync = file.flag("journalSyncData").unwrap_or(true);
    config.journal_sync = args.journal_sync.map_or(file_sync, |switch| switch == Switch::On);
    if let Some(files) = args.preallocate {
        config.preallocate = files;
    }
    if let Some(mib) = file.parsed::<u64>("journalMaxSizeMB") {
        // Files are recycled and zero-filled here: Java's default of 2 GiB would only cost space.
        let taken = mib.clamp(16, 1024);
        config.journal_file_bytes = taken << 20;
        if taken != mib {
            file.note(
                "journalMaxSizeMB",
                format!(
                    "journalMaxSizeMB={mib}: journal files are written full of zeros once and used again, so they have 16 to 1024 \
                     MB; {taken} is taken"
                ),
            );
        }
    }
    if let Some(mib) = file.parsed::<u64>("journalDiskSizeMaxMB") {
        config.journal_bytes_max = mib.saturating_mul(1 << 20);
        let least = JOURNAL_FILES_MIN * config.journal_file_bytes;
        if config.journal_bytes_max < least {
            let least = least >> 20;
            file.fault(
                "journalDiskSizeMaxMB",
                format!(
                    "journalDiskSizeMaxMB={mib}: give at least {least} MB, for {JOURNAL_FILES_MIN} files of journalMaxSizeMB"
                ),
            );
        }
    }
    if let Some(ms) = file.parsed::<u64>("flushInterval") {
        config.flush_interval = Duration::from_millis(ms.max(100));
    }
    if let Some(ms) = file.parsed::<u64>("zkTimeout") {
        config.session_timeout = Duration::from_millis(ms.max(1000));
    }
    if let Some(threads) = file.parsed::<usize>("numReadWorkerThreads") {
        config.read_threads = threads.clamp(1, 64);
    }
    if let Some(bytes) = file.parsed::<u32>("nettyMaxFrameSizeBytes") {
        match FrameLimit::new(bytes) {
            Some(limit) => config.limits.frame = limit,
            None => file.fault(
                "nettyMaxFrameSizeBytes",
                format!("nettyMaxFrameSizeBytes={bytes} is out of range: BookKeeper's default is 5242880"),
            ),
        }
    }
    if let Some(bytes) = file.parsed::<u32>("maxBatchReadSize") {
        config.limits.batch_read_size_bytes_max = bytes;
    }
    if let Some(entries) = file.parsed::<usize>("addBatchEntriesMax") {
        config.limits.add_batch_entries_max = entries.max(1);
    }
    if let Some(bytes) = file.parsed::<usize>("addBatchBytesMax") {
        config.limits.add_batch_bytes_max = bytes.max(1);
    }
    if let Some(text) = &args.memory_limit {
        match memory_limit(text, machine_bytes()) {
            Ok(bytes) => config.memory_limit = Some(bytes),
            Err(fault) => file.faults.push(fault.into()),
        }
    }
    if let Some(mib) = file.counted("ledgerMemoryMB", 1, 1 << 20) {
        config.ledger_memory = Some((mib as u64) << 20);
    }
    if args.memory == Some(MemoryUse::Lazy) {
        config.pool_memory = PoolMemory::Lazy;
    }
    if let Some(ms) = file.parsed::<u64>("slowRequestThresholdMSec") {
        config.limits.slow_request = Duration::from_millis(ms);
    }
}

fn bookie_id(args: &BookieArgs, file: &mut Values, config: &mut BookieConfig) {
    let of_file = file.take("bookieId");
    match (&args.bookie_id, &of_file) {
        (Some(id), _) => {
            if let Err(error) = BookieId::new(id.clone()) {
                file.faults.push(format!("--bookie-id: {error}").into());
            }
        }
        (None, Some(id)) => {
            if let Err(error) = BookieId::new(id.clone()) {
                file.fault("bookieId", format!("bookieId: {error}"));
            }
        }
        (None, None) => {}
    }
    config.bookie_id = args.bookie_id.clone().or(of_file);
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
