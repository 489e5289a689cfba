//! What bookies say on their admin ports: each is asked by a task of its own, and what it said last stays until it says something else.
//!
//! # Limits     [`ASKED_AT_ONCE`] bookies at a time, each for [`ANSWER_MAX`], once at a time

use crate::admin_http::{Address, Words, ask_json, find_json};
use bindery_repair::RepairReport;
use bindery_types::BookieId;
use rustls::ClientConfig;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Bookies asked at a time.
const ASKED_AT_ONCE: usize = 32;
/// How long one bookie may take for all that it is asked.
const ANSWER_MAX: Duration = Duration::from_secs(3);

const WORDS: Words = Words {
    command: "bindery cluster status",
    whose: "bookie",
    nobody: "nobody listens there",
    missing: "does not say its state",
    starting: "is not ready",
};

/// `GET /api/v1/bookie/state`; a Java bookie's has less.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct State {
    read_only_because: BTreeMap<String, String>,
    alarms: Vec<String>,
    failed: Option<String>,
}

/// `GET /api/v1/bookie/info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Space {
    /// Bytes.
    pub free_space: u64,
    /// Bytes.
    pub total_space: u64,
}

/// What one bookie said.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Its state.
    pub state: State,
    /// Of the file systems that hold ledgers, if it says that.
    pub space: Option<Space>,
    /// Of its auditor and worker, if it has any.
    pub report: Option<RepairReport>,
    /// Why its auditor and worker do not run, though it should have them.
    pub not_repairing: Option<String>,
}

impl Answer {
    /// Faults, in one line each.
    pub fn alarms(&self) -> impl Iterator<Item = &str> {
        self.state.failed.iter().chain(&self.state.alarms).map(String::as_str)
    }

    /// Why it takes no adds; empty when it does.
    pub fn read_only_because(&self) -> impl Iterator<Item = &str> {
        self.state.read_only_because.values().map(String::as_str)
    }
}

/// What is known of a bookie.
#[derive(Debug, Clone, Default)]
pub struct Polled {
    /// What it said last.
    pub answer: Option<Answer>,
    /// Why that is not of this look.
    pub trouble: Option<String>,
}

/// Bookies that are asked, and what they said.
pub struct Polls {
    tls: Option<Arc<ClientConfig>>,
    room: Arc<Semaphore>,
    tasks: JoinSet<(BookieId, Result<Answer, String>)>,
    under_way: BTreeMap<BookieId, Instant>,
    known: BTreeMap<BookieId, Polled>,
}

impl Polls {
    /// With `tls` ports are asked over TLS.
    pub fn new(tls: Option<Arc<ClientConfig>>) -> Polls {
        Polls {
            tls,
            room: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
            tasks: JoinSet::new(),
            under_way: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// What is known of a bookie.
    pub fn of(&self, bookie: &BookieId) -> Polled {
        self.known.get(bookie).cloned().unwrap_or_default()
    }

    /// The reports of all that gave one.
    pub fn reports(&self) -> impl Iterator<Item = &RepairReport> {
        self.known.values().filter_map(|known| known.answer.as_ref()?.report.as_ref())
    }

    /// Asks all that are registered, at their admin ports, but for those that have not answered yet, and takes in what comes within
    /// `patience`. Of one whose port is not asked the reason is said.
    pub async fn ask(&mut self, registered: BTreeMap<BookieId, Result<Address, String>>, patience: Duration) {
        let there: BTreeSet<BookieId> = registered.keys().cloned().collect();
        self.known.retain(|bookie, _| there.contains(bookie));
        for (bookie, port) in registered {
            if self.under_way.contains_key(&bookie) {
                continue;
            }
            match port {
                Err(why) => {
                    self.known.insert(bookie, Polled { answer: None, trouble: Some(why) });
                }
                Ok(address) => {
                    let (address, room) = (address.over(self.tls.clone()), self.room.clone());
                    self.under_way.insert(bookie.clone(), Instant::now());
                    self.tasks.spawn(async move {
                        let _room = room.acquire().await;
                        (bookie, ask_within(&address, ANSWER_MAX).await)
                    });
                }
            }
        }
        let collecting = async {
            while let Some(ended) = self.tasks.join_next().await {
                let (bookie, answer) = match ended {
                    Ok(ended) => ended,
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                };
                self.under_way.remove(&bookie);
                if there.contains(&bookie) {
                    let known = self.known.entry(bookie).or_default();
                    match answer {
                        Ok(answer) => *known = Polled { answer: Some(answer), trouble: None },
                        Err(why) => known.trouble = Some(why),
                    }
                }
            }
        };
        let is_over = tokio::time::timeout(patience, collecting).await.is_ok();
        for (bookie, since) in self.under_way.iter().filter(|(bookie, _)| !is_over && there.contains(bookie))
        {
            let waited = since.elapsed().as_secs_f64();
            self.known.entry(bookie.clone()).or_default().trouble =
                Some(format!("no answer for {waited:.1} s"));
        }
    }
}

async fn ask_within(address: &Address, most: Duration) -> Result<Answer, String> {
    match tokio::time::timeout(most, ask(address)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("{address} does not answer within {} s", most.as_secs())),
    }
}

async fn ask(address: &Address) -> Result<Answer, String> {
    let state: State =
        ask_json(address, "GET", "/api/v1/bookie/state", &WORDS).await.map_err(|error| error.to_string())?;
    // A bookie that is starting, or an older one, does not say these.
    let space = find_json(address, "/api/v1/bookie/info", &WORDS).await.ok().flatten();
    let (report, not_repairing) = match find_json(address, "/api/v1/autorecovery/report", &WORDS).await {
        Ok(report) => (report, None),
        Err(failure) => (None, Some(failure.to_string())),
    };
    Ok(Answer { state, space, report, not_repairing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::codec::service_info::BookieServiceInfo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn registered(ports: [(&str, Option<u16>); 4]) -> BTreeMap<BookieId, Result<Address, String>> {
        let of = |(name, port): (&str, Option<u16>)| {
            let id = BookieId::new(name).unwrap();
            let info = BookieServiceInfo::of_bookie(("127.0.0.1", 1), port.map(|port| ("127.0.0.1", port)));
            (id.clone(), Address::registered(&id, &info.endpoints))
        };
        ports.into_iter().map(of).collect()
    }

    /// An admin port that answers these paths, each connection once.
    async fn port(answers: &'static [(&'static str, &'static str)]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut head = vec![0; 4096];
                let len = socket.read(&mut head).await.unwrap();
                let head = String::from_utf8_lossy(&head[..len]).into_owned();
                assert!(!head.contains("Authorization"), "invariant 2 of the module above: {head}");
                let found = answers.iter().find(|(path, _)| head.starts_with(&format!("GET {path} ")));
                let answer = match found {
                    Some((_, body)) => {
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                    }
                    None => "HTTP/1.1 404 Not Found\r\n\r\n".to_owned(),
                };
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        port
    }

    /// Invariant 1 of the module above; and a bookie of Java says less.
    #[tokio::test]
    async fn each_is_asked_and_one_that_is_silent_holds_up_no_other() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = port(&[
            (
                "/api/v1/bookie/state",
                r#"{"running":true,"alarms":["old\u001b certificate"],"readOnlyBecause":{"disk_full":"full"},"failed":null}"#,
            ),
            ("/api/v1/bookie/info", r#"{"freeSpace":5,"totalSpace":9}"#),
            (
                "/api/v1/autorecovery/report",
                r#"{"bytes":7,"waiting":{"1":2},"away":{"b:9":5},"a field of a later version":1}"#,
            ),
        ]);
        let javas = port(&[
            (
                "/api/v1/bookie/state",
                r#"{"running":true,"readOnly":false,"shuttingDown":false,"availableForHighPriorityWrites":true}"#,
            ),
            ("/api/v1/bookie/info", r#"{"freeSpace":1,"totalSpace":2}"#),
        ]);
        let (ours, javas) = tokio::join!(ours, javas);
        let silent_port = silent.local_addr().unwrap().port();
        let registered = registered([
            ("ours", Some(ours)),
            ("javas", Some(javas)),
            ("none", None),
            ("silent", Some(silent_port)),
        ]);
        let mut polls = Polls::new(None);
        let of = |polls: &Polls, name: &str| polls.of(&BookieId::new(name).unwrap());
        while of(&polls, "ours").answer.is_none() || of(&polls, "javas").answer.is_none() {
            polls.ask(registered.clone(), Duration::from_millis(50)).await;
        }
        let answer = of(&polls, "ours").answer.unwrap();
        assert_eq!(answer.space, Some(Space { free_space: 5, total_space: 9 }));
        assert_eq!(answer.alarms().collect::<Vec<_>>(), ["old\\u{1b} certificate"]);
        assert_eq!(answer.read_only_because().collect::<Vec<_>>(), ["full"]);
        let report = answer.report.unwrap();
        assert_eq!((report.bytes, report.waiting[&1], report.away["b:9"]), (7, 2, 5));
        let answer = of(&polls, "javas").answer.unwrap();
        assert_eq!((answer.space.unwrap().free_space, answer.report, answer.not_repairing), (1, None, None));
        assert_eq!(of(&polls, "none").trouble.as_deref(), Some("it has no admin port"));
        let silent = of(&polls, "silent");
        assert!(silent.answer.is_none() && silent.trouble.unwrap().contains("answer"));
        // Bookies that are gone are forgotten.
        polls.ask(BTreeMap::new(), Duration::from_millis(50)).await;
        assert!(of(&polls, "javas").answer.is_none());
    }
}
