//! From flags to what is started: directories, ports, memory. Reads and writes nothing.

use super::args::StandaloneArgs;
use crate::args::Switch;
use crate::bookie_security::BookieSecurity;
use crate::cluster::named_cluster;
use crate::ledger::form;
use crate::tier_role::{self, TierSettings};
use bindery_client::TlsOptions;
use bindery_config::settings::memory_limit;
use bindery_config::tier::tuning::TierTuning;
use bindery_engine::PoolMemory;
use bindery_server::config::{BookieConfig, OptionNames};
use bindery_server::disks::DiskLimits;
use bindery_server::limits::Limits;
use bindery_server::memory::{MemoryPlan, MemoryPlanError, Surroundings, default_limit};
use bindery_server::tier::TierConfig;
use bindery_server::tls::TlsConfig;
use bindery_tiering::ClusterId;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Journal files are short and few: a newcomer's disk is not filled with zeros, and what is zero-filled at start
/// (256 MiB for each bookie) is what a flush cycle with the default memory needs.
const JOURNAL_FILE_BYTES: u64 = 64 << 20;
const JOURNAL_FILES_PREALLOCATED: usize = 4;
/// Kept free on the disk for each bookie, so that a full one still starts.
const RESERVE_BYTES: u64 = 16 << 20;

/// The part of each bookie's share for entries that it reads from the tier.
const TIER_READ_BYTES: u64 = 16 << 20;

/// Of the tierer, beside the memory limit.
const TIER_MEMORY: &str = "96MiB";

/// The coordinator's part of the memory limit: an eighth, within these bounds. Its tree takes most of it.
const COORDINATOR_SHARE: u64 = 8;
const COORDINATOR_BYTES_MIN: u64 = 32 << 20;
const COORDINATOR_BYTES_MAX: u64 = 1 << 30;

/// The parts to start.
#[derive(Debug)]
pub struct Plan {
    /// The directory of everything.
    pub home: PathBuf,
    /// Where the coordinator keeps its tree.
    pub coordinator_dir: PathBuf,
    /// Where the coordinator listens.
    pub coordinator: SocketAddr,
    /// Where it listens for clients of Oxia.
    pub oxia: SocketAddr,
    /// Bytes of the memory limit that are the coordinator's.
    pub coordinator_bytes: u64,
    /// The bookies, the first one first.
    pub bookies: Vec<BookieConfig>,
    /// The INSTANCEID of a cluster that is made now, if it is not drawn by lot.
    pub instance_id: Option<ClusterId>,
    /// The object store, if ledgers are kept in one.
    pub tier: Option<TierSettings>,
    /// How clients of this process speak to the bookies.
    pub security: BookieSecurity,
    /// Whether ledgers are repaired.
    pub has_repair: bool,
}

/// Name of a bookie's directory, counted from 1.
pub fn bookie_name(number: usize) -> String {
    format!("bookie-{number}")
}

/// Works out what to start on a machine with this much memory; all faults at once.
pub fn plan(args: &StandaloneArgs, machine_bytes: u64) -> Result<Plan, Vec<String>> {
    let mut faults = Vec::new();
    let home = std::path::absolute(&args.data).unwrap_or_else(|_| args.data.clone());
    let count = usize::from(args.bookies);
    let bookie_ports = consecutive("--bookie-port", args.bookie_port, args.bookies, &mut faults);
    let admin_ports = consecutive("--admin-port", args.admin_port, args.bookies, &mut faults);
    let taken = [
        ("--coordinator-port", vec![args.coordinator_port]),
        ("--oxia-port", vec![args.oxia_port]),
        ("--bookie-port", bookie_ports.clone()),
        ("--admin-port", admin_ports.clone()),
    ];
    for (index, (option, ports)) in taken.iter().enumerate() {
        for (other, others) in &taken[..index] {
            if let Some(port) = ports.iter().find(|port| **port != 0 && others.contains(port)) {
                faults.push(format!("{other} and {option} both lead to port {port}: choose another one"));
            }
        }
    }
    let instance_id = match args.instance_id.as_deref().map(named_cluster).transpose() {
        Ok(named) => named,
        Err(fault) => {
            faults.push(fault.to_string());
            None
        }
    };
    let limits = Limits::default();
    let (coordinator_bytes, share) = match memory_shares(args, machine_bytes, count, &limits) {
        Ok(shares) => shares,
        Err(fault) => {
            faults.push(fault);
            (0, 0)
        }
    };
    let tls = tls_config(args);
    let tier = tier_url(args).map(|url| {
        // A newcomer's machine has other things to do.
        let tuning = TierTuning { memory_limit: Some(TIER_MEMORY.to_owned()), ..TierTuning::default() };
        tier_role::settings("--tier", url, &tuning).map(TierSettings::beside_bookies)
    });
    let tier = tier.and_then(|tier| tier.map_err(|more| faults.extend(more)).ok());
    if !faults.is_empty() {
        return Err(faults);
    }
    let client_tls = tls.as_ref().map(|_| {
        let authority = args.tls_ca.as_deref().map(absolute);
        authority.map_or_else(TlsOptions::new, |file| TlsOptions::new().authority(file))
    });
    let tier = tier.map(|mut tier| {
        tier.security.tls.clone_from(&client_tls);
        tier
    });
    let reading = tier.as_ref().map(|tier| {
        let mut reading = TierConfig::new(tier.store.url().clone());
        reading.memory_bytes = Some(TIER_READ_BYTES);
        if let Some(grace) = args.tier_grace {
            reading.trim.set_grace(grace);
        }
        reading
    });
    let bookies = bookie_ports
        .iter()
        .zip(&admin_ports)
        .enumerate()
        .map(|(index, (port, admin))| {
            let dir = home.join(bookie_name(index + 1));
            BookieConfig {
                listen: loopback(*port),
                admin: Some(loopback(*admin)),
                memory_limit: Some(share),
                journal_sync: args.journal_sync == Switch::On,
                limits: limits.clone(),
                tier: reading.clone(),
                tls: tls.clone(),
                ..of_directory(&dir)
            }
        })
        .collect();
    Ok(Plan {
        coordinator_dir: home.join("coordinator"),
        home,
        coordinator: loopback(args.coordinator_port),
        oxia: loopback(args.oxia_port),
        coordinator_bytes,
        bookies,
        instance_id,
        tier: tier.filter(|_| args.tier_role == Switch::On),
        // There is nowhere else to copy to with one bookie, and nothing to copy from.
        has_repair: args.repair_role == Switch::On && count > 1,
        security: BookieSecurity { tls: client_tls, user: None },
    })
}

/// Of the bookies; clap sees to it that the options go together.
fn tls_config(args: &StandaloneArgs) -> Option<TlsConfig> {
    let (certificates, key) = args.tls_cert.as_ref().zip(args.tls_key.as_ref())?;
    Some(TlsConfig {
        is_required: args.tls_required,
        ..TlsConfig::new(absolute(certificates), absolute(key))
    })
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// An empty variable of the environment names no store.
fn tier_url(args: &StandaloneArgs) -> Option<&str> {
    args.tier.as_deref().filter(|url| !url.is_empty())
}

fn of_directory(dir: &Path) -> BookieConfig {
    BookieConfig {
        home: Some(dir.to_owned()),
        may_move: true,
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers")],
        option_names: OptionNames { listen: "--bookie-port", admin: "--admin-port" },
        pool_memory: PoolMemory::Lazy,
        preallocate: JOURNAL_FILES_PREALLOCATED,
        journal_file_bytes: JOURNAL_FILE_BYTES,
        allow_loopback: true,
        disks: DiskLimits { reserve_bytes: Some(RESERVE_BYTES), ..DiskLimits::default() },
        ..BookieConfig::default()
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn consecutive(option: &str, first: u16, count: u8, faults: &mut Vec<String>) -> Vec<u16> {
    if first == 0 {
        return vec![0; usize::from(count)];
    }
    let last = u32::from(first) + u32::from(count).saturating_sub(1);
    if last > u32::from(u16::MAX) {
        faults.push(format!("{option} {first}: {count} ports from there on go beyond 65535"));
        return Vec::new();
    }
    (0..u16::from(count)).map(|index| first + index).collect()
}

/// Bytes of the coordinator, and of each bookie.
fn memory_shares(
    args: &StandaloneArgs,
    machine_bytes: u64,
    count: usize,
    limits: &Limits,
) -> Result<(u64, u64), String> {
    let count = count as u64;
    // Asked for nothing, the plan says what it needs at least.
    let tier_bytes = if tier_url(args).is_some() { TIER_READ_BYTES } else { 0 };
    let tls_connection_bytes = tls_config(args).map_or(0, |tls| tls.connection_bytes());
    let around = Surroundings { tier_bytes, tls_connection_bytes, ..Surroundings::default() };
    let least = match MemoryPlan::of(0, limits, around) {
        Ok(_) | Err(MemoryPlanError::Connections { .. }) => 0,
        Err(MemoryPlanError::TooSmall { least, .. }) => least,
    };
    let shares = |all: u64| {
        let coordinator = (all / COORDINATOR_SHARE).clamp(COORDINATOR_BYTES_MIN, COORDINATOR_BYTES_MAX);
        (coordinator, all.saturating_sub(coordinator) / count.max(1))
    };
    let Some(text) = &args.memory_limit else {
        let (coordinator, each) = shares(default_limit(machine_bytes));
        return Ok((coordinator, each.max(least)));
    };
    let bytes = memory_limit(text, machine_bytes)?;
    let (coordinator, each) = shares(bytes);
    if coordinator > bytes {
        let all = coordinator >> 20;
        return Err(format!(
            "--memory-limit {text} is too small for the coordinator: give at least {all}MiB"
        ));
    }
    // Without bookies there is nothing to share.
    if count > 0 && each < least {
        let all = (least * count + COORDINATOR_BYTES_MIN)
            .max((least * count * COORDINATOR_SHARE).div_ceil(COORDINATOR_SHARE - 1));
        let (each, all) = (least >> 20, all.div_ceil(1 << 20));
        return Err(format!(
            "--memory-limit {text} is too small for {} of at least {each} MiB and the coordinator: give at least \
             {all}MiB, or fewer --bookies",
            form::count(count, "bookie", "bookies")
        ));
    }
    Ok((coordinator, each))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Cli, Command};
    use clap::Parser;

    fn args(options: &[&str]) -> StandaloneArgs {
        let line = ["bindery", "standalone"].into_iter().chain(options.iter().copied());
        match Cli::try_parse_from(line).unwrap().command {
            Command::Standalone(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    const MACHINE: u64 = 1 << 30;

    #[test]
    fn ports_and_directories_are_consecutive() {
        let plan = plan(&args(&["--data", "/d", "--bookies", "3"]), MACHINE).unwrap();
        assert_eq!(plan.coordinator, "127.0.0.1:2181".parse().unwrap());
        assert_eq!(plan.coordinator_dir, Path::new("/d/coordinator"));
        let third = &plan.bookies[2];
        assert_eq!(third.listen, "127.0.0.1:3183".parse().unwrap());
        assert_eq!(third.admin, Some("127.0.0.1:8082".parse().unwrap()));
        assert_eq!(third.journal_dirs, [Path::new("/d/bookie-3/journal")]);
    }

    #[test]
    fn each_bookie_gets_a_share_that_works_or_the_fault_says_how_much() {
        for (count, machine) in [("1", MACHINE), ("3", MACHINE), ("16", 512 << 20), ("3", 64 << 30)] {
            let plan = plan(&args(&["--bookies", count]), machine).unwrap();
            for bookie in &plan.bookies {
                MemoryPlan::new(bookie.memory_limit.unwrap(), &bookie.limits).unwrap();
            }
        }
        let given = plan(&args(&["--bookies", "3", "--memory-limit", "600MiB"]), MACHINE).unwrap();
        assert_eq!((given.coordinator_bytes, given.bookies[0].memory_limit), (75 << 20, Some(175 << 20)));
        let faults = plan(&args(&["--bookies", "3", "--memory-limit", "300MiB"]), MACHINE).unwrap_err();
        assert!(faults[0].contains("439MiB"), "{faults:?}");
        assert!(plan(&args(&["--bookies", "3", "--memory-limit", "439MiB"]), MACHINE).is_ok());
        let faults = plan(&args(&["--memory-limit", "2GiB"]), MACHINE).unwrap_err();
        assert!(faults[0].contains("--memory-limit 2GiB is more than the 1024 MiB"), "{faults:?}");
    }

    #[test]
    fn without_bookies_the_limit_needs_to_hold_the_coordinator_only() {
        let none = plan(&args(&["--bookies", "0", "--memory-limit", "128MiB"]), MACHINE).unwrap();
        assert_eq!((none.coordinator_bytes, none.bookies.len()), (COORDINATOR_BYTES_MIN, 0));
        let faults = plan(&args(&["--bookies", "0", "--memory-limit", "1MiB"]), MACHINE).unwrap_err();
        assert!(faults[0].contains("the coordinator: give at least 32MiB"), "{faults:?}");
    }

    #[test]
    fn tls_is_that_of_bookies_and_tierer() {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("file://{}", dir.path().display());
        let files = ["--tls-cert", "/b.pem", "--tls-key", "/b.key", "--tls-ca", "/ca.pem", "--tls-required"];
        let all = [&files[..], &["--tier", &store, "--bookies", "2"]].concat();
        let plan = plan(&args(&all), MACHINE).unwrap();
        for bookie in &plan.bookies {
            let tls = bookie.tls.as_ref().unwrap();
            assert!(tls.is_required && tls.key == Path::new("/b.key"));
            let around = Surroundings {
                tier_bytes: TIER_READ_BYTES,
                tls_connection_bytes: tls.connection_bytes(),
                ..Surroundings::default()
            };
            MemoryPlan::of(bookie.memory_limit.unwrap(), &bookie.limits, around).unwrap();
        }
        assert_eq!(plan.tier.unwrap().security.tls, Some(TlsOptions::new().authority("/ca.pem")));
        assert_eq!(plan.security.tls, Some(TlsOptions::new().authority("/ca.pem")));
        for half in [["--tls-cert", "/b.pem"], ["--tls-key", "/b.key"], ["--tls-ca", "/ca.pem"]] {
            assert!(
                Cli::try_parse_from([&["bindery", "standalone"][..], &half].concat()).is_err(),
                "{half:?}"
            );
        }
    }

    #[test]
    fn several_bookies_repair_their_ledgers_unless_it_is_switched_off() {
        for (options, has_repair) in [
            (&["--bookies", "3"][..], true),
            (&["--bookies", "3", "--repair-role", "off"], false),
            (&["--bookies", "1"], false),
        ] {
            assert_eq!(plan(&args(options), MACHINE).unwrap().has_repair, has_repair, "{options:?}");
        }
    }

    #[test]
    fn ports_that_meet_or_end_are_named_with_their_options() {
        let options = ["--bookies", "3", "--bookie-port", "8079", "--coordinator-port", "8081"];
        let faults = plan(&args(&options), MACHINE).unwrap_err();
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(
            faults[0].contains("--coordinator-port and --bookie-port both lead to port 8081"),
            "{faults:?}"
        );
        let faults = plan(&args(&["--bookies", "2", "--admin-port", "65535"]), MACHINE).unwrap_err();
        assert!(faults[0].contains("--admin-port 65535"), "{faults:?}");
        let chosen =
            ["--bookie-port", "0", "--coordinator-port", "0", "--admin-port", "0", "--oxia-port", "0"];
        assert!(plan(&args(&[&["--bookies", "2"], &chosen[..]].concat()), MACHINE).is_ok());
        let faults = plan(&args(&["--oxia-port", "2181"]), MACHINE).unwrap_err();
        assert!(
            faults[0].contains("--coordinator-port and --oxia-port both lead to port 2181"),
            "{faults:?}"
        );
    }
}
