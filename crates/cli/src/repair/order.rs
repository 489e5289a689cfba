//! Orders that an admin port takes for lost bookies: bring back their copies, and remove their cookies.
//!
//! # Data flow
//! ```text
//! PUT --> Order --> ledgers that refer to them are marked --> workers of the cluster copy --> (no ledger refers to them) --> cookies go
//! ```
//! The order ends with the process, when one of its bookies runs again, and when no ledger becomes whole for [`Pace::standstill`]; its marks
//! stay, and it can be given again.

use super::decommission::remove;
use crate::exit::Failure;
use crate::ledger::access::{ledger_failure, store_failure};
use crate::ledger::form;
use bindery_client::{Client, StoreError};
use bindery_io::SystemClock;
use bindery_repair::mark_ledgers_of;
use bindery_types::{BookieId, LedgerId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// How an order waits.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between two looks whether a ledger is still marked, and its bookies stopped.
    pub mark_look: Duration,
    /// The first and the longest pause after which ledgers are looked through again, when some refer to the bookies still.
    pub scan_pause: (Duration, Duration),
    /// How long no ledger may become whole.
    pub standstill: Duration,
}

/// That of orders.
pub const PACE: Pace = Pace {
    mark_look: Duration::from_secs(2),
    scan_pause: (Duration::from_secs(5), Duration::from_secs(300)),
    standstill: Duration::from_secs(600),
};

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The word of its path: `bookie` or `decommission`.
    pub path: &'static str,
    /// The lost bookies. The order is refused while one of them runs.
    pub bookies: BTreeSet<BookieId>,
    /// Whether their cookies go when no ledger refers to them.
    pub deletes_cookies: bool,
}

/// Why a body is no order: a status and a text.
type Wrong = (u16, String);

impl Order {
    /// From the body of `PUT /api/v1/autorecovery/bookie`, as Java reads it.
    pub fn of_recovery(body: &[u8]) -> Result<Order, Wrong> {
        #[derive(Deserialize)]
        struct Body {
            bookie_src: Vec<String>,
            #[serde(default)]
            delete_cookie: bool,
        }
        if body.is_empty() {
            return Err((404, "No request body provide.".to_owned()));
        }
        let wrong = |why: String| (404, format!("ERROR parameters: {why}"));
        let order: Body = serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?;
        if order.bookie_src.is_empty() {
            return Err(wrong("bookie_src names no bookie".to_owned()));
        }
        let ids = order.bookie_src.iter().map(BookieId::new);
        let bookies = ids.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
        Ok(Order { path: "bookie", bookies, deletes_cookies: order.delete_cookie })
    }

    /// From the body of `PUT /api/v1/autorecovery/decommission`, as Java reads it.
    pub fn of_decommission(body: &[u8]) -> Result<Order, Wrong> {
        if body.is_empty() {
            return Err((404, "Null request body for DecommissionService.".to_owned()));
        }
        let order: Value = serde_json::from_slice(body).map_err(|error| (400, error.to_string()))?;
        let Some(bookie) = order.get("bookie_src") else {
            return Err((404, "Request body not contains bookie_src.".to_owned()));
        };
        let wrong = |why: String| (404, format!("Exception when send decommission command.{why}"));
        let text = bookie.as_str().ok_or_else(|| wrong("bookie_src is to be a text".to_owned()))?;
        let id = BookieId::new(text).map_err(|error| wrong(error.to_string()))?;
        let deletes_cookies = match order.get("delete_cookie") {
            None => false,
            Some(Value::Bool(given)) => *given,
            Some(Value::String(given)) if given.eq_ignore_ascii_case("true") => true,
            Some(Value::String(given)) if given.eq_ignore_ascii_case("false") => false,
            Some(other) => return Err(wrong(format!("delete_cookie {other}: give true or false"))),
        };
        Ok(Order { path: "decommission", bookies: BTreeSet::from([id]), deletes_cookies })
    }

    /// The answer to an order that is accepted, in Java's words.
    pub fn taken(&self) -> String {
        match (self.path, self.bookies.first()) {
            ("decommission", Some(bookie)) => format!("Success send decommission Bookie command {bookie}"),
            _ => "Success send recovery request command.".to_owned(),
        }
    }

    /// For the report.
    pub fn shown(&self, state: &str) -> Value {
        let bookies: Vec<&str> = self.bookies.iter().map(BookieId::as_str).collect();
        json!({ "what": self.path, "bookies": bookies, "deletes_cookies": self.deletes_cookies, "state": state })
    }

    /// Carries the order out and returns its outcome. `say` gets its progress; `why` gives the reason why a ledger cannot be repaired.
    pub async fn carry_out(
        &self,
        client: &Client,
        pace: Pace,
        why: impl Fn(LedgerId) -> Option<String>,
        say: impl Fn(String),
    ) -> Result<String, Failure> {
        say("looks through the metadata of all ledgers".to_owned());
        let mut pause = pace.scan_pause.0;
        let (mut fewest, mut moved_at) = (usize::MAX, Instant::now());
        loop {
            self.check_still_stopped(client).await?;
            let found = mark_ledgers_of(client, &SystemClock::new(), &self.bookies, false).await;
            let found = found.map_err(|error| ledger_failure(&error))?;
            let marked: BTreeSet<LedgerId> = found.lacking.into_iter().map(|(ledger, _)| ledger).collect();
            let count = marked.len() as u64;
            if !self.deletes_cookies {
                return Ok(match count {
                    0 => "no ledger has entries there".to_owned(),
                    _ => {
                        let ledgers = form::count(count, "ledger is", "ledgers are");
                        format!("{ledgers} marked, and the cluster's workers copy them")
                    }
                });
            }
            if marked.is_empty() {
                return self.end(client).await;
            }
            if marked.len() < fewest {
                (fewest, moved_at) = (marked.len(), Instant::now());
            } else if moved_at.elapsed() >= pace.standstill {
                return Err(stands_still(client, &marked, pace, why).await);
            }
            self.wait(client, marked, pace.mark_look, moved_at + pace.standstill, &say).await?;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(pace.scan_pause.1);
        }
    }

    /// Waits until none of the ledgers is marked any more, or until the end.
    async fn wait(
        &self,
        client: &Client,
        mut marked: BTreeSet<LedgerId>,
        look: Duration,
        end: Instant,
        say: &impl Fn(String),
    ) -> Result<(), Failure> {
        let marks = client.layout().under_replication();
        while let Some(ledger) = marked.first().copied() {
            let left = form::count(marked.len() as u64, "ledger", "ledgers");
            say(format!("waits for workers: at most {left} left, for example ledger {ledger}"));
            match marks.replicas(ledger).await {
                Ok(None) => {
                    marked.pop_first();
                    continue;
                }
                // A mark that cannot be read is one.
                Ok(Some(_)) | Err(StoreError::Protocol(_)) => {}
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(store_failure(&error)),
            }
            if Instant::now() >= end {
                return Ok(());
            }
            tokio::time::sleep(look).await;
            self.check_still_stopped(client).await?;
        }
        Ok(())
    }

    /// A bookie that runs again is no lost one. A metadata store that does not answer says nothing of it.
    async fn check_still_stopped(&self, client: &Client) -> Result<(), Failure> {
        let registered = match client.layout().registration().registered().await {
            Ok(registered) => registered,
            Err(error) if error.is_transient() => return Ok(()),
            Err(error) => return Err(store_failure(&error)),
        };
        match registered.intersection(&self.bookies).next() {
            None => Ok(()),
            Some(running) => Err(Failure::new(format!(
                "bookie {running} runs again: its cookie is kept, and what is marked stays so. Stop it, and give the order again, if it is to go"
            ))),
        }
    }

    /// Removes the cookies, when it is proven that no ledger refers to the bookies.
    async fn end(&self, client: &Client) -> Result<String, Failure> {
        let mut removed = 0;
        for bookie in &self.bookies {
            removed += u64::from(remove(client, bookie, &self.bookies).await?);
        }
        Ok(match removed {
            0 => "no ledger refers to them, and there was no cookie".to_owned(),
            some => {
                format!("no ledger refers to them; {} removed", form::count(some, "cookie is", "cookies are"))
            }
        })
    }
}

/// The failure of an order under which no ledger became whole for too long.
async fn stands_still(
    client: &Client,
    marked: &BTreeSet<LedgerId>,
    pace: Pace,
    why: impl Fn(LedgerId) -> Option<String>,
) -> Failure {
    let known = marked.iter().find_map(|ledger| Some((*ledger, why(*ledger)?)));
    let example = match (known, marked.first()) {
        (Some((ledger, why)), _) => format!(", for example ledger {ledger}: {why}"),
        (None, Some(ledger)) => format!(", for example ledger {ledger}"),
        (None, None) => String::new(),
    };
    let disabled = match client.layout().repair_settings().is_disabled().await {
        Ok(true) => "; repair is disabled in this cluster",
        Ok(false) | Err(_) => "",
    };
    Failure::new(format!(
        "no ledger became whole for {} minutes, and {} to the bookies still{example}{disabled}. They stay marked, and the cookies are kept: \
         remove the cause, and give the order again",
        pace.standstill.as_secs() / 60,
        form::count(marked.len() as u64, "ledger refers", "ledgers refer"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::layout::init_cluster;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::store::{CreateMode, MetadataStore};
    use bindery_metadata::{Layout, LedgerLayout};
    use bindery_types::{DigestType, EntryId, LedgerMetadata, LedgerSecret, LedgerState, Quorum, Segment};
    use bytes::Bytes;
    use std::sync::Arc;

    const QUICK: Pace = Pace {
        mark_look: Duration::from_millis(5),
        scan_pause: (Duration::from_millis(5), Duration::from_millis(5)),
        standstill: Duration::from_millis(100),
    };

    /// A cluster in which the only copy of ledger 7 was on `b:1`, and an order for that.
    async fn hopeless() -> (Client, Arc<dyn MetadataStore>, Order) {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
        init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(store.clone(), "/l", None).await.unwrap();
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
        let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        let ensemble = bookies(&["b:1"]).into_iter().collect();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        metadata.state = LedgerState::Closed { last_entry: Some(EntryId::FIRST), length_bytes: 5 };
        layout.ledgers().create(LedgerId::new(7).unwrap(), &metadata).await.unwrap();
        let client = Client::builder().layout(layout).connect().await.unwrap();
        let order = Order { path: "bookie", bookies: bookies(&["b:1"]), deletes_cookies: true };
        (client, store, order)
    }

    #[tokio::test]
    async fn an_order_of_which_nothing_becomes_whole_ends_and_says_why() {
        let (client, _store, order) = hopeless().await;
        let why = |ledger: LedgerId| (ledger.get() == 7).then(|| "no bookie has a copy".to_owned());
        let said = order.carry_out(&client, QUICK, why, drop).await.unwrap_err().to_string();
        assert!(
            said.contains("1 ledger refers") && said.contains("ledger 7: no bookie has a copy"),
            "{said}"
        );
        assert!(!said.contains("disabled"), "{said}");
        client.layout().repair_settings().disable().await.unwrap();
        let said = order.carry_out(&client, QUICK, |_| None, drop).await.unwrap_err().to_string();
        assert!(said.contains("repair is disabled"), "{said}");
        let marks = client.layout().under_replication();
        assert!(marks.replicas(LedgerId::new(7).unwrap()).await.unwrap().is_some(), "it stays marked");
    }

    #[tokio::test]
    async fn an_order_ends_when_its_bookie_runs_again() {
        let (client, store, order) = hopeless().await;
        let pace = Pace { standstill: Duration::from_secs(3600), ..QUICK };
        let comes_back = async {
            tokio::time::sleep(pace.mark_look * 4).await;
            store.create("/l/available/b:1", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
        };
        let (carried, ()) = tokio::join!(order.carry_out(&client, pace, |_| None, drop), comes_back);
        let said = carried.unwrap_err().to_string();
        assert!(said.contains("bookie b:1 runs again"), "{said}");
    }

    fn bookies(names: &[&str]) -> BTreeSet<BookieId> {
        names.iter().map(|name| BookieId::new(*name).unwrap()).collect()
    }

    #[test]
    fn bodies_are_read_as_java_reads_them() {
        let order = Order::of_recovery(br#"{"bookie_src": ["b:1", "a:1"], "delete_cookie": true}"#).unwrap();
        assert_eq!((order.bookies.clone(), order.deletes_cookies), (bookies(&["a:1", "b:1"]), true));
        assert_eq!(order.taken(), "Success send recovery request command.");
        assert!(!Order::of_recovery(br#"{"bookie_src": ["b:1"]}"#).unwrap().deletes_cookies);
        for (body, why) in [
            ("", "No request body provide."),
            ("{}", "ERROR parameters: missing field `bookie_src`"),
            (r#"{"bookie_src": []}"#, "ERROR parameters: bookie_src names no bookie"),
            (r#"{"bookie_src": ["a/b"]}"#, "ERROR parameters: "),
        ] {
            let (status, said) = Order::of_recovery(body.as_bytes()).unwrap_err();
            assert!(status == 404 && said.starts_with(why), "{body}: {said}");
        }

        for (value, deletes_cookies) in
            [("true", true), ("\"True\"", true), ("false", false), ("\"false\"", false)]
        {
            let body = format!("{{\"bookie_src\": \"b:1\", \"delete_cookie\": {value}}}");
            let order = Order::of_decommission(body.as_bytes()).unwrap();
            assert_eq!(
                (&order.bookies, order.deletes_cookies),
                (&bookies(&["b:1"]), deletes_cookies),
                "{value}"
            );
            assert_eq!(order.taken(), "Success send decommission Bookie command b:1");
        }
        for (body, code, why) in [
            ("", 404, "Null request body for DecommissionService."),
            ("{}", 404, "Request body not contains bookie_src."),
            ("{", 400, ""),
            (r#"{"bookie_src": ["b:1"]}"#, 404, "Exception when send decommission command."),
            (
                r#"{"bookie_src": "b:1", "delete_cookie": 1}"#,
                404,
                "Exception when send decommission command.",
            ),
        ] {
            let (status, said) = Order::of_decommission(body.as_bytes()).unwrap_err();
            assert!(status == code && said.starts_with(why), "{body}: {status} {said}");
        }
    }
}
