//! `bindery bookie list`: who is registered, and who belongs to the cluster and is away.

use crate::exit::Failure;
use crate::ledger::access::{store_failure, with_client};
use crate::ledger::args::BookieListArgs;
use crate::ledger::form;
use crate::output;
use crate::printable::within_line;
use bindery_client::{BookieInfo, Client, RegistrationMode};
use bindery_types::{BookieId, host_and_port};
use serde_json::{Value, json};

/// Lists the bookies.
pub fn run(args: BookieListArgs) -> Result<(), Failure> {
    let access = args.access.clone();
    with_client(&access, false, |client| list(client, args.json))
}

async fn list(client: Client, is_json: bool) -> Result<(), Failure> {
    let bookies = client.bookies().await.map_err(|error| store_failure(&error))?;
    let members = client.member_bookies().await.map_err(|error| store_failure(&error))?;
    let away: Vec<BookieId> =
        members.into_iter().filter(|member| bookies.iter().all(|bookie| bookie.id != *member)).collect();
    let ids = bookies.iter().map(|bookie| &bookie.id).chain(&away);
    let width = ids.map(|id| id.as_str().len()).max().unwrap_or(0);
    let mut text = Vec::new();
    for bookie in &bookies {
        match is_json {
            true => text.extend(form::line(&object(bookie))),
            false => text.extend(
                format!("{:<width$}  {:<9}  {}\n", bookie.id, state(bookie), within_line(&address(bookie)))
                    .into_bytes(),
            ),
        }
    }
    for id in &away {
        match is_json {
            true => text.extend(form::line(&json!({ "bookie_id": id.as_str(), "state": "away" }))),
            false => {
                text.extend(
                    format!("{id:<width$}  {:<9}  not registered, but has a cookie\n", "away").into_bytes(),
                );
            }
        }
    }
    if bookies.is_empty() && away.is_empty() {
        output::say("no bookie is registered: bindery bookie --data DIR starts one");
    }
    output::write_all(&text)
}

fn state(bookie: &BookieInfo) -> &'static str {
    match bookie.mode {
        RegistrationMode::Writable => "writable",
        RegistrationMode::ReadOnly => "read-only",
    }
}

/// Where clients connect to; an id of the old form says it itself.
fn address(bookie: &BookieInfo) -> String {
    let named = bookie.endpoints.iter().find(|endpoint| endpoint.id == "bookie");
    named.map_or_else(|| bookie.id.to_string(), |endpoint| host_and_port(&endpoint.host, endpoint.port))
}

fn object(bookie: &BookieInfo) -> Value {
    let endpoints: Vec<Value> = bookie
        .endpoints
        .iter()
        .map(|endpoint| {
            json!({
                "id": endpoint.id,
                "protocol": endpoint.protocol,
                "host": endpoint.host,
                "port": endpoint.port,
            })
        })
        .collect();
    json!({
        "bookie_id": bookie.id.as_str(),
        "state": state(bookie),
        "address": address(bookie),
        "endpoints": endpoints,
    })
}
