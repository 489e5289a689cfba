//! Where a ledger is in object storage: what its bookies say, and the catalogue. For `bindery ledger show`.
//!
//! # Data flow
//! ```text
//! bookies of the ledger ─► registered with a tier? ─► admin port: last reconciled entry, trim, alarm
//!                                                        └ none ─► RECONCILE_LEDGERS asks for the register alone
//! --store URL ─► catalogue ─► extents, objects
//! ```
//! A bookie that cannot be asked does not fail the command: its line says that its part is unknown.
//!
//! # Invariants
//! 1. The admin port that is asked is that of [`Address::registered`].

use super::access::store_failure;
use super::form::{count, size};
use crate::admin_http::{self, Address, Words};
use crate::bucket::{catalogue_failure, open_store, read_catalogue};
use crate::exit::Failure;
use bindery_client::{Client, LedgerId, LedgerInfo, Reconcile, TierSupport};
use bindery_tiering::ClusterId;
use bindery_tiering::catalogue::{ExtentRow, LedgerRow};
use bindery_types::tier::Reconciliation;
use bindery_types::{BookieId, EntryId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// For one answer of a bookie.
const DEADLINE: Duration = Duration::from_secs(5);
/// Extents that are taken from the catalogue at a time.
const PAGE: usize = 1_000;
/// Extents that are shown.
const SHOWN_MAX: usize = 100_000;

const WORDS: Words = Words {
    command: "bindery ledger show",
    whose: "bookie",
    nobody: "nobody listens there",
    missing: "is of a release that does not say",
    starting: "belongs to a bookie that is still starting",
};

/// The answer of one bookie.
pub struct OfBookie {
    bookie: BookieId,
    state: State,
}

enum State {
    /// It has no tier, or is another program.
    KeepsEverything,
    /// Not registered, or it did not answer.
    Unknown(String),
    /// Its register, and the answer of its admin port.
    Tiered { lre: Option<EntryId>, more: Result<More, String> },
}

/// `GET /api/v1/bookie/tier/ledger`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct More {
    last_reconciled: Option<i64>,
    trimmed_below: Option<i64>,
    differs: Option<String>,
}

/// A ledger as the catalogue has it.
pub struct OfCatalogue {
    row: LedgerRow,
    extents: Vec<(EntryId, ExtentRow)>,
    objects: usize,
}

/// Asks the bookies of a ledger. Empty when none of them takes part in tiering.
pub async fn of_bookies(client: &Client, info: &LedgerInfo) -> Result<Vec<OfBookie>, Failure> {
    let segments = info.metadata.segments().iter();
    let bookies: BTreeSet<BookieId> = segments.flat_map(|segment| segment.ensemble.iter().cloned()).collect();
    let registered = client.bookies().await.map_err(|error| store_failure(&error))?;
    let cluster = client.instance_id().await.map_err(|error| store_failure(&error))?;
    let cluster: Option<ClusterId> = cluster.and_then(|text| text.parse().ok());
    let mut found = Vec::with_capacity(bookies.len());
    for bookie in bookies {
        let endpoints = registered.iter().find(|known| known.id == bookie).map(|known| &known.endpoints[..]);
        let admin = Address::registered(&bookie, endpoints.unwrap_or_default());
        let state = match (client.tier_support(&bookie).await, cluster) {
            (Err(error), _) => State::Unknown(error.to_string()),
            (Ok(TierSupport::KeepsEverything), _) | (Ok(TierSupport::Supported), None) => {
                State::KeepsEverything
            }
            (Ok(TierSupport::Supported), Some(cluster)) => {
                ask(client, &bookie, admin, cluster, info.id).await
            }
            (Ok(_), _) => State::Unknown("it is not registered".to_owned()),
        };
        found.push(OfBookie { bookie, state });
    }
    let is_tiered = found.iter().any(|of| matches!(of.state, State::Tiered { .. }));
    Ok(if is_tiered { found } else { Vec::new() })
}

async fn ask(
    client: &Client,
    bookie: &BookieId,
    admin: Result<Address, String>,
    cluster: ClusterId,
    ledger: LedgerId,
) -> State {
    let more = match admin {
        Err(why) => Err(why),
        Ok(address) => {
            let path = format!("/api/v1/bookie/tier/ledger?id={ledger}");
            let answer = admin_http::ask_json::<More>(&address, "GET", &path, &WORDS).await;
            answer.map_err(|failure| failure.to_string())
        }
    };
    if let Ok(said) = &more {
        return State::Tiered { lre: said.last_reconciled.and_then(EntryId::new), more };
    }
    // Without extents it asks for the register, and changes nothing.
    let asked = Reconciliation { ledger, last: None, extents: Vec::new(), created_ms: None };
    let request = Reconcile { cluster, ledgers: vec![asked], is_restore: false };
    let answer = client.reconcile(bookie, request, DEADLINE).await;
    match answer {
        Ok(results) => State::Tiered { lre: results.first().and_then(|result| result.last), more },
        Err(error) => State::Unknown(error.to_string()),
    }
}

/// Reads a ledger's rows in the catalogue of a store.
pub async fn of_catalogue(
    client: &Client,
    url: &str,
    ledger: LedgerId,
) -> Result<Option<OfCatalogue>, Failure> {
    let store = open_store(url)?;
    let cluster = client.instance_id().await.map_err(|error| store_failure(&error))?;
    let cluster = cluster.and_then(|text| text.parse().ok());
    let cluster =
        cluster.ok_or_else(|| Failure::new("the cluster has no INSTANCEID: run bindery cluster init"))?;
    let mut catalogue =
        read_catalogue(&store, cluster).await.map_err(|error| catalogue_failure(&store, &error))?;
    let row = catalogue.ledger(ledger).await.map_err(|error| catalogue_failure(&store, &error))?;
    let Some(row) = row else { return Ok(None) };
    let (mut extents, mut next) = (Vec::new(), row.first);
    while extents.len() < SHOWN_MAX {
        let page = catalogue.extents(ledger, next, PAGE).await;
        let page = page.map_err(|error| catalogue_failure(&store, &error))?;
        let Some((_, last)) = page.last() else { break };
        next = EntryId::new(last.last.get().saturating_add(1)).unwrap_or(EntryId::MAX);
        let is_all = page.len() < PAGE;
        extents.extend(page);
        if is_all {
            break;
        }
    }
    let objects = extents.iter().map(|(_, extent)| extent.object.id).collect::<BTreeSet<_>>().len();
    Ok(Some(OfCatalogue { row, extents, objects }))
}

/// Lines for people.
pub fn lines(
    bookies: &[OfBookie],
    catalogue: Option<&Option<OfCatalogue>>,
    is_long: bool,
) -> Vec<(&'static str, String)> {
    let mut lines: Vec<(&'static str, String)> =
        bookies.iter().map(|of| ("tier", format!("{}: {}", of.bookie, of.state.words()))).collect();
    for of in bookies {
        if let State::Tiered { more: Ok(More { differs: Some(why), .. }), .. } = &of.state {
            lines.push((
                "ALARM",
                format!("{}: copies stay, for the one in the bucket is not good: {why}", of.bookie),
            ));
        }
    }
    match catalogue {
        None => {}
        Some(None) => lines.push(("bucket", "nothing of it".to_owned())),
        Some(Some(OfCatalogue { row, extents, objects })) => {
            let removed = if row.is_removed { ", being removed" } else { "" };
            lines.push((
                "bucket",
                format!(
                    "entries {} to {}, {} in {} of {}{removed}",
                    row.first,
                    row.next.get() - 1,
                    size(row.bytes),
                    count(row.extents, "extent", "extents"),
                    count(*objects as u64, "object", "objects"),
                ),
            ));
            for (first, extent) in extents.iter().filter(|_| is_long) {
                let text = format!(
                    "entries {first} to {}: object {}, {}",
                    extent.last,
                    extent.object.id,
                    size(extent.bytes)
                );
                lines.push(("extent", text));
            }
        }
    }
    lines
}

impl State {
    fn words(&self) -> String {
        match self {
            State::KeepsEverything => "has no tier, and keeps everything".to_owned(),
            State::Unknown(why) => format!("not known: {why}"),
            State::Tiered { lre: None, .. } => "knows of nothing in the bucket".to_owned(),
            State::Tiered { lre: Some(lre), more } => {
                let trimmed = match more {
                    Ok(More { trimmed_below: Some(entry), .. }) => {
                        format!("copies up to entry {entry} were let go")
                    }
                    Ok(_) => "copies are here, too".to_owned(),
                    Err(why) => format!("whether copies were let go is not known: {why}"),
                };
                format!("up to entry {lre} in the bucket, {trimmed}")
            }
        }
    }
}

/// The fields of `--json`, which never change their meaning.
pub fn object(bookies: &[OfBookie], catalogue: Option<&Option<OfCatalogue>>, is_long: bool) -> Value {
    let of_bookies: Vec<Value> = bookies.iter().map(|of| of.object()).collect();
    let catalogue = catalogue.and_then(Option::as_ref).map(|of| {
        let extent = |(first, extent): &(EntryId, ExtentRow)| {
            json!({
                "first_entry": first.get(), "last_entry": extent.last.get(), "entry_bytes": extent.bytes,
                "object": extent.object.id.to_string(),
            })
        };
        json!({
            "first_entry": of.row.first.get(), "last_entry": of.row.next.get() - 1, "entry_bytes": of.row.bytes,
            "extents": of.row.extents, "objects": of.objects, "removed": of.row.is_removed,
            "extent_list": is_long.then(|| of.extents.iter().map(extent).collect::<Vec<_>>()),
        })
    });
    json!({ "bookies": of_bookies, "catalogue": catalogue })
}

impl OfBookie {
    fn object(&self) -> Value {
        let (state, lre, more, why) = match &self.state {
            State::KeepsEverything => ("keeps-everything", None, None, None),
            State::Unknown(why) => ("unknown", None, None, Some(why)),
            State::Tiered { lre, more } => ("tiered", *lre, more.as_ref().ok(), more.as_ref().err()),
        };
        json!({
            "bookie_id": self.bookie.as_str(),
            "state": state,
            "last_reconciled": lre.map(EntryId::get),
            "trimmed_below": more.and_then(|more| more.trimmed_below),
            "alarm": more.and_then(|more| more.differs.as_ref()),
            "error": why,
        })
    }
}
