//! `bindery shell`: commands of BookKeeper's shell, and of the images' other tools, for the scripts, charts and runbooks that call them.
//! The images of `deploy` call it under the names `bookkeeper` and `pulsar`.
//!
//! Settings are those of a bookie: a `bk_server.conf` and the environment ([`crate::settings`]). Only what names the cluster and how to
//! reach it has to be right here.
//!
//! # Invariants
//! 1. Exit codes: 0 where Java's shell has it, and the codes of `bindery help exit-codes` otherwise.
//! 2. Nothing here deletes entries or the metadata of ledgers, whatever `-force` says.

pub mod args;
mod autorecovery;
mod bookie;
mod cluster;
mod options;
mod zookeeper;

use self::args::ShellArgs;
use crate::args::BookieArgs;
use crate::bookie_security::BookieSecurity;
use crate::config;
use crate::exit::Failure;
use crate::own_client::{NotOpened, OwnClient};
use crate::{logging, runtime};
use bindery_config::repair::RepairRoleSettings;
use bindery_metadata::{ConnectOptions, MetadataUri};
use bindery_server::config::BookieConfig;

/// A command of Java's shell that has another name here, and that.
const ELSEWHERE: [(&str, &str); 22] = [
    ("bookieinfo", "bindery bookie list, and GET /api/v1/bookie/info at its admin port"),
    ("cookie_create", "bindery bookie, which makes its cookie itself"),
    ("cookie_delete", "bindery cluster cookie delete"),
    ("cookie_get", "bindery cluster cookie show"),
    ("decommissionbookie", "bindery bookie decommission --wait"),
    ("deleteledger", "bindery ledger delete"),
    ("forceauditchecks", "PUT /api/v1/autorecovery/trigger_audit at the admin port of a bookie"),
    ("help", "bindery shell --help"),
    ("lastmark", "bindery inspect journal"),
    ("ledger", "bindery disk"),
    ("ledgermetadata", "bindery ledger show"),
    ("listfilesondisc", "bindery disk"),
    ("listledgers", "bindery ledger list"),
    ("localconsistencycheck", "bindery verify, for a stopped bookie, or PUT /api/v1/bookie/scrub"),
    ("nukeexistingcluster", "a tool of the metadata store: Bindery never deletes the metadata of a cluster"),
    ("readjournal", "bindery inspect journal"),
    ("readledger", "bindery ledger read"),
    ("readlog", "bindery inspect log"),
    ("recover", "bindery bookie recover"),
    ("simpletest", "bindery bench add"),
    ("triggeraudit", "PUT /api/v1/autorecovery/trigger_audit at the admin port of a bookie"),
    ("updatecookie", "nothing: a bookie keeps its id by --bookie-id"),
];

/// The settings that commands use.
struct Shell {
    config: BookieConfig,
    metadata: MetadataUri,
    repair: (RepairRoleSettings, BookieSecurity),
}

impl Shell {
    /// Reads file and environment.
    fn new(args: &ShellArgs) -> Result<Shell, Failure> {
        let mut bookie = BookieArgs {
            config: args.config.clone(),
            config_env: args.config_env,
            jaas_file: args.jaas_file.clone(),
            ..BookieArgs::default()
        };
        let examined = config::examine(&mut bookie)?;
        let faults: Vec<String> = examined.faults.iter().map(ToString::to_string).collect();
        match examined.draft.metadata {
            Some(metadata) => Ok(Shell {
                config: examined.draft.config,
                metadata,
                repair: (examined.draft.repair, examined.draft.security),
            }),
            None => Err(Failure::usage_of(&faults)),
        }
    }

    /// How the metadata store is reached.
    fn options(&self) -> ConnectOptions {
        let security = self.config.metadata_security.clone();
        ConnectOptions { security, session_timeout: self.config.session_timeout, ..ConnectOptions::default() }
    }

    /// A client of the cluster. Its end is the caller's.
    async fn open(&self) -> Result<OwnClient, Failure> {
        let metadata = (self.metadata.clone(), self.config.metadata_security.clone());
        OwnClient::open(&metadata, &self.repair.1).await.map_err(|NotOpened { failure, .. }| failure)
    }
}

/// Runs one command.
pub fn run(args: ShellArgs) -> Result<(), Failure> {
    let (command, words) = args.words.split_first().expect("the command line requires one");
    if command == "autorecovery-daemon" {
        logging::start(args.log_format);
        return autorecovery::run(Shell::new(&args)?, words);
    }
    logging::start_at(args.log_format, "warn");
    // An unknown command is refused whatever the settings are.
    let shell = || Shell::new(&args);
    runtime::single()?.block_on(async {
        match &command[..] {
            "whatisinstanceid" => cluster::instance_id(&shell()?, words).await,
            "initnewcluster" => cluster::init(&shell()?, words).await,
            "metaformat" => cluster::format(&shell()?, words).await,
            "listbookies" => cluster::list_bookies(&shell()?, words).await,
            "listunderreplicated" => cluster::under_replicated(&shell()?, words).await,
            "lostbookierecoverydelay" => cluster::delay(&shell()?, words).await,
            "whoisauditor" => cluster::auditor(&shell()?, words).await,
            "autorecovery" => cluster::switch(&shell()?, words).await,
            "bookieformat" => bookie::format(&shell()?, words).await,
            "bookiesanity" => bookie::sanity(&shell()?, words).await,
            "zookeeper" => zookeeper::run(words).await,
            other => Err(unknown(other)),
        }
    })
}

fn unknown(command: &str) -> Failure {
    match ELSEWHERE.iter().find(|(name, _)| *name == command) {
        Some((_, instead)) => Failure::usage(format!("{command} has another name here: {instead}")),
        None => Failure::usage(format!(
            "{command} is no command of bindery shell; bindery shell --help lists them"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_another_name_is_named() {
        assert_eq!(unknown("recover").to_string(), "recover has another name here: bindery bookie recover");
        assert!(unknown("listbooks").to_string().contains("no command"));
        assert!(ELSEWHERE.is_sorted_by_key(|(name, _)| *name));
    }
}
