//! Commands about the bookie that the configuration describes.

use super::Shell;
use super::cluster::on_cluster;
use super::options::{Given, Known};
use crate::admin_http::{self, Address, Words};
use crate::exit::Failure;
use crate::ledger::access::ledger_failure;
use crate::metadata_failure::cookie_failure;
use crate::output;
use crate::repair::check_stopped;
use bindery_config::sources::host::{Host, ThisMachine};
use bindery_repair::for_each_ledger;
use bindery_types::BookieId;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The wording of errors.
const WORDS: Words = Words {
    command: "bindery shell bookiesanity",
    whose: "bookie",
    nobody: "nobody listens there: the bookie does not run, or has no admin port (httpServerEnabled=true)",
    missing: "has no check of itself: it is not a bindery bookie, or one of an older version",
    starting: "belongs to a bookie that is still starting",
};

/// `bookieformat`: prepares the start of a new bookie, and deletes no entries. A cookie is deleted only if no ledger refers to its bookie;
/// else the bookie starts with empty directories under its old cookie, and fetches what metadata say that it has.
pub(super) async fn format(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    let known =
        [Known::flag("n", "nonInteractive"), Known::flag("f", "force"), Known::flag("d", "deleteCookie")];
    let given = Given::options("bookieformat", words, &known)?;
    let config = &shell.config;
    let directories: Vec<&PathBuf> = config.journal_dirs.iter().chain(&config.ledger_dirs).collect();
    for directory in &directories {
        if let Some(file) = first_file(directory)
            .map_err(|error| Failure::new(format!("cannot look into {}: {error}", directory.display())))?
        {
            return Err(Failure::new(format!(
                "{} is there: these are the files of a bookie, and bindery does not delete entries; nothing was changed. A bookie \
                 starts with them as they are. If they are to go, stop it and empty {} yourself",
                file.display(),
                directory.display()
            )));
        }
    }
    if !given.has("deleteCookie") {
        return output::write_text("the directories are empty; nothing was changed\n");
    }
    let id = config.identity(config.listen, &ThisMachine.name()).map_err(Failure::usage)?.bookie_id;
    on_cluster(shell, async |opened| {
        let cookies = opened.layout.cookies();
        let Some((version, _)) = cookies.raw(&id).await.map_err(|error| cookie_failure(&error))? else {
            return output::write_text(&format!("bookie {id} has no cookie; nothing was changed\n"));
        };
        check_stopped(&opened.layout, &BTreeSet::from([id.clone()])).await?;
        let mut referring = 0u64;
        let unreadable = for_each_ledger(&opened.client, |_, metadata| {
            let is_member = |segment: &bindery_types::Segment| segment.ensemble.contains(&id);
            referring += u64::from(metadata.segments().iter().any(is_member));
        });
        let unreadable = unreadable.await.map_err(|error| ledger_failure(&error))?;
        if referring > 0 || !unreadable.is_empty() {
            return output::write_text(&kept(&id, referring, unreadable.len()));
        }
        cookies.delete(&id, Some(version)).await.map_err(|error| cookie_failure(&error))?;
        output::write_text(&format!("{id}: nothing refers to it; cookie deleted\n"))
    })
    .await
}

fn kept(id: &BookieId, referring: u64, unreadable: usize) -> String {
    let unknown = match unreadable {
        0 => String::new(),
        count => format!(", and {count} whose metadata cannot be read"),
    };
    format!(
        "{id}: its cookie stays, because {referring} ledgers refer to it{unknown}. With dataIntegrityChecking=true and \
         dataIntegrityStampMissingCookies=true it starts with empty directories, and fetches what they lack while it serves\n"
    )
}

/// A file below a directory, if there is one; a directory that is missing has none.
fn first_file(directory: &Path) -> std::io::Result<Option<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        // A file system of its own has it.
        if entry.file_name() == "lost+found" {
            continue;
        }
        let found = if entry.file_type()?.is_dir() { first_file(&path)? } else { Some(path) };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What the admin port says.
#[derive(Debug, Deserialize)]
struct Sanity {
    passed: bool,
    #[serde(rename = "readOnly")]
    is_read_only: bool,
}

/// `bookiesanity`: whether the bookie writes and reads.
pub(super) async fn sanity(shell: &Shell, words: &[String]) -> Result<(), Failure> {
    let known = [Known::value("e", "entries"), Known::value("t", "timeout")];
    Given::options("bookiesanity", words, &known)?;
    let admin = shell.config.admin.ok_or_else(|| {
        Failure::usage(
            "bookiesanity asks the bookie's admin port: set httpServerEnabled=true and httpServerPort",
        )
    })?;
    let address = Address::parse(&on_this_machine(admin).to_string())?.over(admin_http::tls_if_named()?);
    let found: Sanity = admin_http::ask_json(&address, "GET", "/api/v1/bookie/sanity", &WORDS).await?;
    match (found.passed, found.is_read_only) {
        (true, false) => output::write_text("Bookie sanity test succeeded\n"),
        (true, true) => output::write_text("Bookie is in readonly mode; it serves reads\n"),
        (false, _) => Err(Failure::new("the bookie did not write an entry and read it back in time")),
    }
}

/// Where a port that listens on all addresses is reached.
fn on_this_machine(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator has there")]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_below_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert_eq!(first_file(&path.join("missing")).unwrap(), None);
        std::fs::create_dir_all(path.join("current/a")).unwrap();
        std::fs::create_dir_all(path.join("lost+found")).unwrap();
        std::fs::write(path.join("lost+found/x"), "").unwrap();
        assert_eq!(first_file(path).unwrap(), None);
        std::fs::write(path.join("current/a/1.log"), "").unwrap();
        assert_eq!(first_file(path).unwrap(), Some(path.join("current/a/1.log")));
    }

    #[test]
    fn a_port_on_all_addresses_is_asked_on_loopback() {
        for (listens, asked) in
            [("[::]:80", "[::1]:80"), ("0.0.0.0:80", "127.0.0.1:80"), ("10.0.0.1:80", "10.0.0.1:80")]
        {
            assert_eq!(on_this_machine(listens.parse().unwrap()).to_string(), asked);
        }
    }
}
