//! Commands about the cluster's metadata.

use super::Shell;
use super::options::{Given, Known};
use crate::cluster::create;
use crate::exit::{self, Failure};
use crate::ledger::access::store_failure;
use crate::output;
use crate::own_client::OwnClient;
use crate::printable::within_line;
use bindery_client::{BookieInfo, RegistrationMode};
use bindery_io::SystemRandom;
use bindery_metadata::{InitOutcome, StoreError};
use bindery_types::BookieId;
use std::time::Duration;

/// Runs `work` on the metadata of the cluster.
pub(super) async fn on_cluster(
    shell: &Shell,
    work: impl AsyncFnOnce(&OwnClient) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let opened = shell.open().await?;
    let outcome = work(&opened).await;
    opened.close().await;
    outcome
}

/// `whatisinstanceid`.
pub(super) async fn instance_id(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    Given::options("whatisinstanceid", words, &[])?;
    on_cluster(shell, async |opened| {
        let id = opened.layout.instance_id().await.map_err(|error| store_failure(&error))?;
        let id = id.ok_or_else(|| {
            Failure::new(format!("{} has no INSTANCEID: bindery cluster init mends it", shell.metadata))
        })?;
        output::write_text(&format!(
            "Metadata Service Uri: {} InstanceId: {}\n",
            shell.metadata,
            within_line(&id)
        ))
    })
    .await
}

/// `initnewcluster`: as Java's, it fails where a cluster is.
pub(super) async fn init(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    Given::options("initnewcluster", words, &[])?;
    match create(&shell.metadata, &shell.options(), None, &SystemRandom).await? {
        InitOutcome::AlreadyInitialised => {
            Err(Failure::new(format!("{} is initialised already; nothing was changed", shell.metadata)))
        }
        _ => output::write_text(&format!("{}: initialised\n", shell.metadata)),
    }
}

/// `metaformat`: it creates what is missing, and deletes nothing.
pub(super) async fn format(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    let known = [Known::flag("n", "nonInteractive"), Known::flag("f", "force")];
    let given = Given::options("metaformat", words, &known)?;
    match create(&shell.metadata, &shell.options(), None, &SystemRandom).await? {
        InitOutcome::AlreadyInitialised if given.has("force") => Err(Failure::new(format!(
            "{} has the metadata of a cluster, and with it go all its ledgers: bindery does not delete it; nothing was changed",
            shell.metadata
        ))),
        InitOutcome::AlreadyInitialised => {
            output::write_text(&format!("{}: initialised already, nothing changed\n", shell.metadata))
        }
        _ => output::write_text(&format!("{}: initialised\n", shell.metadata)),
    }
}

/// `listbookies`, with lines that begin as those of Java's log, for scripts that look for them.
pub(super) async fn list_bookies(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    let known = [
        Known::flag("rw", "readwrite"),
        Known::flag("ro", "readonly"),
        Known::flag("a", "all"),
        Known::flag("h", "help"),
    ];
    let given = Given::options("listbookies", words, &known)?;
    let (writable, read_only, all) = (given.has("readwrite"), given.has("readonly"), given.has("all"));
    if !(writable || read_only || all) {
        return Err(Failure::usage("listbookies: give one or more of -rw, -ro and -a"));
    }
    on_cluster(shell, async |opened| {
        let failure = |error: StoreError| store_failure(&error);
        let bookies = opened.client.bookies().await.map_err(failure)?;
        let mut text = String::new();
        for (is_wanted, mode, title) in [
            (writable, RegistrationMode::Writable, "ReadWrite Bookies :"),
            (read_only, RegistrationMode::ReadOnly, "Readonly Bookies :"),
        ] {
            if is_wanted {
                text.push_str(&line(title));
                text.extend(
                    bookies
                        .iter()
                        .filter(|bookie| bookie.mode == mode)
                        .map(|bookie| line(&described(bookie))),
                );
            }
        }
        if all {
            let is_away = |id: &BookieId| bookies.iter().all(|bookie| bookie.id != *id);
            let members = opened.client.member_bookies().await.map_err(failure)?;
            text.push_str(&line("All Bookies :"));
            text.extend(bookies.iter().map(|bookie| line(&described(bookie))));
            text.extend(members.iter().filter(|id| is_away(id)).map(|id| line(&format!("BookieID:{id}"))));
        }
        output::write_text(&text)
    })
    .await
}

fn line(text: &str) -> String {
    format!("ListBookiesCommand - {text}\n")
}

/// As Java describes a bookie.
fn described(bookie: &BookieInfo) -> String {
    match bookie.endpoints.iter().find(|endpoint| endpoint.id == "bookie") {
        Some(end) => {
            format!("BookieID:{}, IP:{}, Port:{}, Hostname:{}", bookie.id, end.host, end.port, end.host)
        }
        None => format!("BookieID:{}", bookie.id),
    }
}

/// `listunderreplicated`: ids, one on each line.
pub(super) async fn under_replicated(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    Given::options("listunderreplicated", words, &[])?;
    on_cluster(shell, async |opened| {
        let mut marked = opened.layout.under_replication().list();
        while let Some(page) = marked.next().await.map_err(|error| store_failure(&error))? {
            let text: String = page.iter().map(|ledger| format!("{ledger}\n")).collect();
            output::write_text(&text)?;
        }
        Ok(())
    })
    .await
}

/// `lostbookierecoverydelay`.
pub(super) async fn delay(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    let known = [Known::flag("g", "get"), Known::value("s", "set")];
    let given = Given::options("lostbookierecoverydelay", words, &known)?;
    let wanted = match (given.has("get"), given.value("set")) {
        (true, None) => None,
        (false, Some(text)) => Some(text.parse::<u32>().map_err(|_| {
            Failure::usage(format!(
                "lostbookierecoverydelay -set {text}: give whole seconds, for example 900"
            ))
        })?),
        _ => return Err(Failure::usage("lostbookierecoverydelay: give -get, or -set SECONDS")),
    };
    on_cluster(shell, async |opened| {
        let settings = opened.layout.repair_settings();
        let failure = |error: StoreError| store_failure(&error);
        if let Some(seconds) = wanted {
            settings.set_delay(Duration::from_secs(u64::from(seconds))).await.map_err(failure)?;
        }
        let text = match settings.delay().await.map_err(failure)? {
            Some(delay) => format!("LostBookieRecoveryDelay value in ZK: {}\n", delay.as_secs()),
            None => "LostBookieRecoveryDelay is not set: the auditor's own setting counts\n".to_owned(),
        };
        output::write_text(&text)
    })
    .await
}

/// `whoisauditor`.
pub(super) async fn auditor(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    Given::options("whoisauditor", words, &[])?;
    on_cluster(shell, async |opened| {
        let auditors =
            opened.layout.auditor_votes().auditors().await.map_err(|error| store_failure(&error))?;
        match auditors.is_empty() {
            true => Err(Failure::with_code(exit::FAILURE, "no auditor is elected: no bookie repairs")),
            false => {
                let names: Vec<_> = auditors.iter().map(|name| within_line(name)).collect();
                output::write_text(&format!("Auditor: {}\n", names.join(", ")))
            }
        }
    })
    .await
}

/// `autorecovery`.
pub(super) async fn switch(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    let known = [Known::flag("e", "enable"), Known::flag("d", "disable")];
    let given = Given::options("autorecovery", words, &known)?;
    let (enable, disable) = (given.has("enable"), given.has("disable"));
    if enable && disable {
        return Err(Failure::usage("autorecovery: give one of -enable and -disable"));
    }
    on_cluster(shell, async |opened| {
        let settings = opened.layout.repair_settings();
        let failure = |error: StoreError| store_failure(&error);
        if enable {
            settings.enable().await.map_err(failure)?;
        } else if disable {
            settings.disable().await.map_err(failure)?;
        }
        let is_disabled = settings.is_disabled().await.map_err(failure)?;
        output::write_text(&format!("Autorecovery is {}\n", if is_disabled { "disabled" } else { "enabled" }))
    })
    .await
}
