//! `bindery bookie gc`: has bookies look now for ledgers that were deleted, and give back their space.

use crate::admin_find::{Registered, registered};
use crate::admin_http::{Address, Words, ask_json, ask_with};
use crate::args::MetadataArgs;
use crate::exit::{self, Failure};
use crate::ledger::form;
use crate::output;
use crate::parse::seconds;
use crate::progress::Progress;
use crate::runtime;
use clap::Args;
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

const WORDS: Words = Words {
    command: "bindery bookie gc",
    whose: "bookie",
    nobody: "nobody listens there. A bookie has an admin port with --admin IP:PORT or httpServerEnabled=true",
    missing: "collects no garbage on request: it is no bookie",
    starting: "belongs to a bookie that is still starting: try again when /api/v1/bookie/is_ready says OK",
};

/// Flags of `bindery bookie gc`.
#[derive(Debug, Args)]
pub struct BookieGcArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// Ask this admin port alone. The token in BINDERY_ADMIN_TOKEN is sent to it; a bookie on another machine takes no order without
    #[arg(long, value_name = "URL", env = "BINDERY_ADMIN")]
    pub admin: Option<String>,
    /// Compact as well, whatever share of a log is dead: frees the most, and writes the most
    #[arg(long)]
    pub major: bool,
    /// Longest wait for a bookie to be done; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = wait_seconds)]
    pub timeout: f64,
    /// An object for each bookie, on a line
    #[arg(long)]
    pub json: bool,
    /// The bookies [default: all that are registered]
    #[arg(value_name = "BOOKIE", conflicts_with = "admin")]
    pub bookies: Vec<String>,
}

fn wait_seconds(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { seconds(text) }
}

/// `GET /api/v1/bookie/gc`.
#[derive(Debug, Deserialize)]
struct Order {
    /// "true" or "false".
    is_in_force_gc: String,
}

/// `GET /api/v1/bookie/gc_details`, as much as is shown.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    last_round_ledgers: u64,
    ledgers_removed: u64,
    to_be_confirmed: u64,
    stopped_because: Option<String>,
}

/// A bookie's own come under "bindery"; one of Java says less.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Space {
    bindery: Option<Details>,
}

/// What a bookie did.
struct Done {
    removed: u64,
    ledgers: u64,
    why: Option<String>,
    is_over: bool,
}

/// Runs the command.
pub fn run(args: &BookieGcArgs) -> Result<(), Failure> {
    runtime::single()?.block_on(async {
        let mut ports: Vec<(String, Result<Address, String>)> = match &args.admin {
            Some(admin) => vec![(admin.clone(), Ok(Address::parse(admin)?))],
            None => {
                let found = registered(&args.metadata).await?;
                found.into_iter().map(|Registered { bookie, admin }| (bookie.to_string(), admin)).collect()
            }
        };
        if !args.bookies.is_empty() {
            let unknown = args.bookies.iter().find(|name| ports.iter().all(|(known, _)| known != *name));
            if let Some(unknown) = unknown {
                return Err(Failure::with_code(
                    exit::NOT_FOUND,
                    format!("no bookie {unknown} is registered: bindery bookie list shows those that are"),
                ));
            }
            ports.retain(|(name, _)| args.bookies.contains(name));
        }
        let mut failed = None;
        for (name, port) in ports {
            let outcome = match port {
                Ok(address) => {
                    let _progress = Progress::wait(format!("bookie {name} collects"));
                    collect(&address, args).await
                }
                Err(why) => Err(Failure::with_code(exit::UNREACHABLE, why)),
            };
            match outcome {
                Ok(done) => output::write_all(&said(&name, &done, args))?,
                // The others have garbage, too.
                Err(failure) => {
                    let failure = Failure::with_code(failure.code, format!("bookie {name}: {failure}"));
                    if let Some(before) = failed.replace(failure) {
                        crate::logging::say_failure(&before);
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    })
}

async fn details(address: &Address) -> Result<Details, Failure> {
    let found: Vec<Space> = ask_json(address, "GET", "/api/v1/bookie/gc_details", &WORDS).await?;
    Ok(found.into_iter().next().unwrap_or_default().bindery.unwrap_or_default())
}

async fn collect(address: &Address, args: &BookieGcArgs) -> Result<Done, Failure> {
    let before = details(address).await?;
    let body = if args.major { r#"{"forceMajor":true,"forceMinor":true}"# } else { "" };
    ask_with(address, "PUT", "/api/v1/bookie/gc", body, &WORDS).await?;
    let deadline = tokio::time::Instant::now() + Duration::from_secs_f64(args.timeout);
    loop {
        let order: Order = ask_json(address, "GET", "/api/v1/bookie/gc", &WORDS).await?;
        let now = details(address).await?;
        let is_over = order.is_in_force_gc == "false" && now.to_be_confirmed == 0;
        if is_over || tokio::time::Instant::now() >= deadline {
            return Ok(Done {
                removed: now.ledgers_removed.saturating_sub(before.ledgers_removed),
                ledgers: now.last_round_ledgers,
                why: now.stopped_because,
                is_over,
            });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn said(name: &str, done: &Done, args: &BookieGcArgs) -> Vec<u8> {
    if args.json {
        return form::line(&json!({
            "bookie_id": name,
            "removed": done.removed,
            "ledgers": done.ledgers,
            "stopped_because": done.why,
            "done": done.is_over,
        }));
    }
    let Done { removed, ledgers, why, is_over } = done;
    let state = match (why, is_over) {
        (Some(why), _) => format!("stopped, nothing more is removed until this is resolved: {why}"),
        (None, true) => match removed {
            0 => format!("no ledger of {ledgers} here was deleted"),
            removed => format!("{} removed", form::count(*removed, "deleted ledger", "deleted ledgers")),
        },
        (None, false) => "asked for; it goes on".to_owned(),
    };
    format!("{name}  {state}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bookie_did_is_said() {
        let args = BookieGcArgs {
            metadata: MetadataArgs { metadata: String::new(), metadata_config: None },
            admin: None,
            major: false,
            timeout: 1.0,
            json: false,
            bookies: Vec::new(),
        };
        let said = |removed, why: Option<&str>, is_over| {
            let done = Done { removed, ledgers: 7, why: why.map(str::to_owned), is_over };
            String::from_utf8(said("b:1", &done, &args)).unwrap()
        };
        assert_eq!(said(1, None, true), "b:1  1 deleted ledger removed\n");
        assert_eq!(said(0, None, true), "b:1  no ledger of 7 here was deleted\n");
        assert_eq!(said(0, None, false), "b:1  asked for; it goes on\n");
        assert!(said(0, Some("a doubt"), true).contains("resolved: a doubt"));
        let found: Vec<Space> = serde_json::from_str(r#"[{"gcCounter":1}]"#).unwrap();
        assert!(found[0].bindery.is_none(), "a Java bookie");
    }
}
