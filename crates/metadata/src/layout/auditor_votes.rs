//! Who is the cluster's auditor: `underreplication/auditorelection/V_<sequence>` (protocol reference, section 5.6), as BookKeeper's
//! driver elects it. The lowest vote is the auditor's; each other one watches the vote before it.
//!
//! Pulsar's driver elects at another place (`underreplication/leader`), and its auditors do not see these votes. Two auditors of one
//! cluster do no harm, as what they write is idempotent and workers share locks, but both look through all ledgers.

use bindery_types::BookieId;
use bytes::Bytes;

use super::paths::{Root, create_parents};
use crate::codec::text::{self, Printer};
use crate::store::{CreateMode, SessionId, StoreError, Watch};

const ELECTION: &str = "underreplication/auditorelection";
const PREFIX: &str = "V_";
/// Where Pulsar's driver elects.
const PULSARS: &str = "underreplication/leader";

/// The election of a cluster.
#[derive(Clone)]
pub struct AuditorVotes(pub(super) Root);

/// A vote of this session. It goes with the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditorVote {
    path: String,
    session: SessionId,
}

impl AuditorVote {
    /// Its name among the votes.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Where a vote stands.
#[derive(Debug)]
pub enum AuditorPlace {
    /// It is the lowest: this process is the auditor until the watch fires or the session ends. It fires when the vote is deleted.
    Elected(Watch),
    /// Another is before it; look again when the watch fires.
    Behind(Watch),
    /// The vote is gone: vote again.
    Gone,
}

impl AuditorVotes {
    fn path(&self) -> String {
        format!("{}/{ELECTION}", self.0.path)
    }

    /// Votes, for a bookie or whatever has this id. A vote of this session that an earlier call made, and whose answer was lost, is
    /// found again.
    ///
    /// # Errors
    /// Of the store.
    pub async fn vote(&self, candidate: &BookieId) -> Result<AuditorVote, StoreError> {
        let session = self.0.store.session().borrow().clone().connected()?;
        for name in self.votes().await? {
            let path = format!("{}/{name}", self.path());
            if self.0.store.exists(&path).await?.is_some_and(|stat| stat.owner == Some(session)) {
                return Ok(AuditorVote { path, session });
            }
        }
        let prefix = format!("{}/{PREFIX}", self.path());
        let mut created = self.0.store.create(&prefix, of(candidate), CreateMode::EphemeralSequential).await;
        if matches!(created, Err(StoreError::NoNode { .. })) {
            create_parents(&*self.0.store, &prefix, &self.0.path).await?;
            created = self.0.store.create(&prefix, of(candidate), CreateMode::EphemeralSequential).await;
        }
        Ok(AuditorVote { path: created?, session })
    }

    /// Where the vote stands. When it is elected, the election's own node says so for people to see, as Java's auditor has it.
    ///
    /// # Errors
    /// Of the store.
    pub async fn place(&self, vote: &AuditorVote, candidate: &BookieId) -> Result<AuditorPlace, StoreError> {
        let own = vote.name();
        loop {
            let votes = self.votes().await?;
            let Some(index) = votes.iter().position(|name| name == own) else {
                return Ok(AuditorPlace::Gone);
            };
            let path = format!("{}/{}", self.path(), votes[index.saturating_sub(1)]);
            let (found, watch) = self.0.store.exists_and_watch(&path).await?;
            match (index, found) {
                (0, None) => return Ok(AuditorPlace::Gone),
                // A vote of the same name in another session cannot be: names are never given twice.
                (0, Some(_)) => {
                    self.0.store.set(&self.path(), of(candidate), None).await?;
                    return Ok(AuditorPlace::Elected(watch));
                }
                // The vote before it was deleted after they were listed.
                (_, None) => {}
                (_, Some(_)) => return Ok(AuditorPlace::Behind(watch)),
            }
        }
    }

    /// Takes a vote back.
    ///
    /// # Errors
    /// Of the store.
    pub async fn withdraw(&self, vote: &AuditorVote) -> Result<(), StoreError> {
        match self.0.store.delete(&vote.path, None).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// The names of all votes, the lowest first, with a watch for the next that comes or goes. Each process that repairs has one, ours and
    /// Java's.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch_all(&self) -> Result<(Vec<String>, Watch), StoreError> {
        let path = self.path();
        match self.0.store.children_and_watch(&path).await {
            Ok((names, watch)) => Ok((in_order(names), watch)),
            // Nobody ever voted.
            Err(StoreError::NoNode { .. }) => Ok((Vec::new(), self.0.store.exists_and_watch(&path).await?.1)),
            Err(other) => Err(other),
        }
    }

    /// The ids of the auditors: of BookKeeper's election and of Pulsar's. None when there is no auditor.
    ///
    /// # Errors
    /// Of the store.
    pub async fn auditors(&self) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        if let Some(lowest) = self.votes().await?.first() {
            found.extend(self.read(&format!("{}/{lowest}", self.path())).await?);
        }
        found.extend(self.read(&format!("{}/{PULSARS}", self.0.path)).await?);
        Ok(found)
    }

    async fn read(&self, path: &str) -> Result<Option<String>, StoreError> {
        let Some(data) = self.0.find(path).await? else { return Ok(None) };
        // Pulsar's driver keeps the id as a JSON string.
        let plain = || String::from_utf8_lossy(&data).trim_matches('"').to_owned();
        let fields = text::parse(&data).unwrap_or_default();
        let id = fields.iter().find(|field| field.name == "bookieId").and_then(|field| field.string().ok());
        Ok(Some(id.unwrap_or_else(plain)))
    }

    /// Names of the votes, the lowest first.
    async fn votes(&self) -> Result<Vec<String>, StoreError> {
        let names = match self.0.store.children(&self.path()).await {
            Ok(names) => names,
            Err(StoreError::NoNode { .. }) => return Ok(Vec::new()),
            Err(other) => return Err(other),
        };
        Ok(in_order(names))
    }
}

/// Those that are votes, the lowest first.
fn in_order(names: Vec<String>) -> Vec<String> {
    let number = |name: &str| name.strip_prefix(PREFIX).and_then(|digits| digits.parse::<i64>().ok());
    let mut votes: Vec<(i64, String)> =
        names.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
    votes.sort_unstable();
    votes.into_iter().map(|(_, name)| name).collect()
}

/// A vote's text: AuditorVoteFormat.
fn of(candidate: &BookieId) -> Bytes {
    let mut printer = Printer::default();
    printer.bytes("bookieId", candidate.as_str().as_bytes());
    Bytes::from(printer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Fault, MemoryCluster};
    use crate::store::MetadataStore as _;
    use std::sync::Arc;

    #[tokio::test]
    async fn the_lowest_vote_is_the_auditors_and_the_next_takes_over() {
        let cluster = MemoryCluster::new();
        let (one, two) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
        one.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let (ours, theirs) =
            (AuditorVotes(Root::new(one.clone(), "/l")), AuditorVotes(Root::new(two.clone(), "/l")));
        let id = |name: &str| BookieId::new(name).unwrap();
        assert_eq!(ours.auditors().await.unwrap(), Vec::<String>::new());
        let (votes, mut votes_watch) = ours.watch_all().await.unwrap();
        assert!(votes.is_empty() && !votes_watch.has_fired());
        let first = ours.vote(&id("b:1")).await.unwrap();
        assert!(matches!(ours.place(&first, &id("b:1")).await.unwrap(), AuditorPlace::Elected(_)));
        assert!(votes_watch.has_fired());
        let (votes, mut votes_watch) = ours.watch_all().await.unwrap();
        assert_eq!(votes, [first.name()]);
        let second = theirs.vote(&id("b:2")).await.unwrap();
        assert!(votes_watch.has_fired());
        assert_eq!(ours.watch_all().await.unwrap().0, [first.name(), second.name()]);
        let place = theirs.place(&second, &id("b:2")).await.unwrap();
        let AuditorPlace::Behind(mut watch) = place else { panic!("{place:?}") };
        assert!(!watch.has_fired());
        assert_eq!(ours.auditors().await.unwrap(), ["b:1"]);
        let node = one.get("/l/underreplication/auditorelection").await.unwrap();
        assert_eq!(node.data, "bookieId: \"b:1\"\n".as_bytes());
        assert_eq!(ours.vote(&id("b:1")).await.unwrap(), first, "one vote of a session");
        one.close().await.unwrap();
        assert!(watch.has_fired());
        assert!(matches!(theirs.place(&second, &id("b:2")).await.unwrap(), AuditorPlace::Elected(_)));
        assert_eq!(theirs.auditors().await.unwrap(), ["b:2"]);
        two.create("/l/underreplication/leader", "\"b:9\"".into(), CreateMode::Ephemeral).await.unwrap();
        assert_eq!(theirs.auditors().await.unwrap(), ["b:2", "b:9"], "Pulsar's driver elects elsewhere");
        theirs.withdraw(&second).await.unwrap();
        assert!(matches!(theirs.place(&second, &id("b:2")).await.unwrap(), AuditorPlace::Gone));
    }

    #[tokio::test]
    async fn a_vote_whose_answer_was_lost_is_found_again() {
        let cluster = MemoryCluster::new();
        let store = Arc::new(cluster.open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let votes = AuditorVotes(Root::new(store.clone(), "/l"));
        let id = BookieId::new("b:1").unwrap();
        let early = votes.vote(&id).await.unwrap();
        votes.withdraw(&early).await.unwrap();
        store.inject(Fault::LossAfterApply);
        assert_eq!(votes.vote(&id).await, Err(StoreError::ConnectionLoss));
        let vote = votes.vote(&id).await.unwrap();
        assert_eq!(votes.votes().await.unwrap().len(), 1);
        assert!(matches!(votes.place(&vote, &id).await.unwrap(), AuditorPlace::Elected(_)));
    }
}
