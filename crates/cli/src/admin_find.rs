//! The admin port to ask when nobody names one: bookies register theirs in the metadata store.
//!
//! # Invariants
//! 1. A port found so is that of [`Address::registered`], and is sent no token: whoever may write metadata learns no secret.

use crate::admin_http::{self, Address, Words};
use crate::args::MetadataArgs;
use crate::exit::{self, Failure};
use crate::metadata_failure::{open_failure, store_failure};
use crate::metadata_session;
use crate::output;
use bindery_metadata::{ConnectOptions, Layout, WaitFor};
use bindery_types::BookieId;
use clap::Args;
use serde_json::Value;
use std::time::Duration;

/// How long a person waits for a metadata server that says nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Where a process listens whose admin port was not placed elsewhere.
const ADMIN_DEFAULT: &str = "http://127.0.0.1:8080";
/// Bookies that are named in a message.
const NAMED_MAX: usize = 10;

/// Which admin port.
#[derive(Debug, Clone, Args)]
pub struct FindAdminArgs {
    /// The admin port [default: the one that the bookie has registered]
    #[arg(long, value_name = "URL", env = "BINDERY_ADMIN")]
    pub admin: Option<String>,
    /// The bookie, where there are several
    #[arg(long = "bookie", value_name = "ID")]
    pub bookie: Option<String>,
    #[command(flatten)]
    pub metadata: MetadataArgs,
}

/// A registered bookie, and its admin port or why that is not asked.
pub struct Registered {
    /// The bookie.
    pub bookie: BookieId,
    /// Its port.
    pub admin: Result<Address, String>,
}

/// All that are registered, by id.
pub async fn registered(metadata: &MetadataArgs) -> Result<Vec<Registered>, Failure> {
    let uri = metadata_session::uri(metadata)?;
    let options = ConnectOptions {
        connect_timeout: Some(CONNECT_TIMEOUT),
        wait_for: WaitFor::Silent,
        ..metadata.options()?
    };
    let opened = bindery_metadata::connect(&uri, options).await;
    let layout = opened.map_err(|error| open_failure(&metadata.metadata, &error))?;
    let found = list(&layout).await;
    // It would end by its timeout.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, layout.store().close()).await;
    let found = found?;
    match found.is_empty() {
        true => Err(Failure::with_code(
            exit::UNREACHABLE,
            format!("no bookie is registered in {}: bindery bookie --data DIR starts one", metadata.metadata),
        )),
        false => Ok(found),
    }
}

async fn list(layout: &Layout) -> Result<Vec<Registered>, Failure> {
    let failure = |error: bindery_metadata::StoreError| store_failure(&error, error.to_string());
    let (registration, tls) = (layout.registration(), admin_http::tls_if_named()?);
    let mut bookies: Vec<_> = registration.list().await.map_err(failure)?;
    bookies.sort_by(|one, other| one.bookie_id.cmp(&other.bookie_id));
    bookies.dedup_by(|one, other| one.bookie_id == other.bookie_id);
    let mut found = Vec::with_capacity(bookies.len());
    for bookie in bookies {
        let id = bookie.bookie_id;
        let admin = match registration.service_info(&id).await.map_err(failure)? {
            Some(Ok(info)) => Address::registered(&id, &info.endpoints).map(|port| port.over(tls.clone())),
            Some(Err(error)) => Err(error.to_string()),
            // Gone meanwhile.
            None => continue,
        };
        found.push(Registered { bookie: id, admin });
    }
    Ok(found)
}

/// The admin port of one bookie: the one that is named, that of the bookie that is named, or that of the first one, and then it says
/// which others there are. Where the metadata store cannot be reached, the port that a bookie has by default.
pub async fn of_bookie(args: &FindAdminArgs, words: &Words) -> Result<Address, Failure> {
    if let Some(admin) = &args.admin {
        return Address::parse(admin);
    }
    let found = match registered(&args.metadata).await {
        Ok(found) => found,
        Err(failure) if args.bookie.is_none() && failure.code == exit::UNREACHABLE => {
            output::say(format!("{failure}. Asking {ADMIN_DEFAULT}"));
            return Address::parse(ADMIN_DEFAULT);
        }
        Err(failure) => return Err(failure),
    };
    let chosen = chosen(&found, args.bookie.as_deref(), words)?;
    if args.bookie.is_none() && found.len() > 1 {
        output::say(format!(
            "{} bookies are registered, this is {}; --bookie ID chooses another: {}",
            found.len(),
            chosen.bookie,
            named(&found)
        ));
    }
    chosen.admin.clone().map_err(|why| no_port(&chosen.bookie, &why, words))
}

fn chosen<'a>(
    found: &'a [Registered],
    wanted: Option<&str>,
    words: &Words,
) -> Result<&'a Registered, Failure> {
    let chosen = match wanted {
        Some(wanted) => found.iter().find(|one| one.bookie.as_str() == wanted),
        None => found.iter().find(|one| one.admin.is_ok()).or(found.first()),
    };
    chosen.ok_or_else(|| {
        let wanted = wanted.unwrap_or_default();
        Failure::with_code(
            exit::NOT_FOUND,
            format!(
                "no bookie {wanted} is registered, but {}. {} --admin http://HOST:PORT asks a port that you name",
                named(found),
                words.command
            ),
        )
    })
}

fn named(found: &[Registered]) -> String {
    let mut names: Vec<_> = found.iter().take(NAMED_MAX).map(|one| one.bookie.to_string()).collect();
    if found.len() > NAMED_MAX {
        names.push(format!("{} more (bindery bookie list)", found.len() - NAMED_MAX));
    }
    names.join(", ")
}

fn no_port(bookie: &BookieId, why: &str, words: &Words) -> Failure {
    Failure::with_code(exit::UNREACHABLE, format!("bookie {bookie}: {why}: {}", words.nobody))
}

/// The admin port that is named, or the first registered one that answers at `path`, which is that of a part that not every bookie has.
pub async fn of_part(
    admin: Option<&str>,
    metadata: &MetadataArgs,
    path: &str,
    words: &Words,
) -> Result<Address, Failure> {
    if let Some(admin) = admin {
        return Address::parse(admin);
    }
    let mut troubles = Vec::new();
    for Registered { bookie, admin } in registered(metadata).await? {
        match admin {
            Err(why) => troubles.push(format!("{bookie}: {why}")),
            Ok(address) => match admin_http::find_json::<Value>(&address, path, words).await {
                Ok(Some(_)) => return Ok(address),
                Ok(None) => {}
                Err(failure) => troubles.push(format!("{bookie}: {failure}")),
            },
        }
    }
    let troubles = match troubles.is_empty() {
        true => String::new(),
        false => format!(" ({})", troubles.join("; ")),
    };
    Err(Failure::with_code(
        exit::UNREACHABLE,
        format!(
            "no registered bookie has a {}{troubles}; --admin http://HOST:PORT names the port of another process that has one",
            words.whose
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Words = Words {
        command: "bindery flow",
        whose: "bookie",
        nobody: "nobody listens there",
        missing: "lacks it",
        starting: "starts",
    };

    fn found() -> Vec<Registered> {
        let of = |name: &str, port: Option<&str>| Registered {
            bookie: BookieId::new(name).unwrap(),
            admin: match port {
                Some(port) => Ok(Address::parse(port).unwrap()),
                None => Err("it has no admin port".to_owned()),
            },
        };
        vec![of("a:1", None), of("b:1", Some("http://b:8080")), of("c:1", Some("http://c:8080"))]
    }

    #[test]
    fn the_bookie_that_is_named_is_asked_or_the_first_one_that_can_be() {
        let found = found();
        assert_eq!(chosen(&found, None, &WORDS).unwrap().bookie.as_str(), "b:1");
        assert_eq!(chosen(&found, Some("c:1"), &WORDS).unwrap().bookie.as_str(), "c:1");
        assert!(chosen(&found, Some("a:1"), &WORDS).unwrap().admin.is_err());
        let failure = chosen(&found, Some("d:1"), &WORDS).err().unwrap();
        assert_eq!(failure.code, exit::NOT_FOUND);
        assert!(failure.to_string().contains("a:1, b:1, c:1"), "{failure}");
    }
}
