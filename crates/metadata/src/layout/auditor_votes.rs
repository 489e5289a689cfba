//! Who is the cluster's auditor: `underreplication/auditorelection/V_<sequence>` (protocol reference, section 5.6), as BookKeeper's
//! driver elects it. The lowest vote is the auditor's; each other one watches the vote before it.
//!
//! Where the store is not transactional, a vote's number is drawn before the vote is written: one that is lower than those that are there may
//! come. So the auditor watches all votes there, and ceases to be it when one comes before its own ([`AuditorVotes::is_over`]). Until then
//! there may be two for a moment.
//!
//! Pulsar's driver elects at another place (`underreplication/leader`), and its auditors do not see these votes. Two auditors of one
//! cluster do no harm, as what they write is idempotent and workers share locks, but both look through all ledgers.

use bindery_types::BookieId;
use bytes::Bytes;

use super::paths::{Root, create_parents};
use crate::codec::text::{self, Printer};
use crate::store::{CreateMode, SessionId, StoreError, Watch};

pub(super) const ELECTION: &str = "underreplication/auditorelection";
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
    /// It is the lowest: this process is the auditor until [`AuditorVotes::is_over`] says otherwise or the session ends. The watch fires when
    /// that may have changed.
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
        Ok(AuditorVote { path: created?.path, session })
    }

    /// Where the vote stands. When it is elected, the election's own node says so for people to see, as Java's auditor has it.
    ///
    /// # Errors
    /// Of the store.
    pub async fn place(&self, vote: &AuditorVote, candidate: &BookieId) -> Result<AuditorPlace, StoreError> {
        let place = self.look(vote).await?;
        if let AuditorPlace::Elected(_) = place {
            self.0.store.set(&self.path(), of(candidate), None).await?;
        }
        Ok(place)
    }

    /// Whether a vote that was elected is so no more. It costs nothing until the watch of [`AuditorPlace::Elected`] fired, which is replaced
    /// where the vote still is the lowest.
    ///
    /// # Errors
    /// Of the store.
    pub async fn is_over(&self, vote: &AuditorVote, elected: &mut Watch) -> Result<bool, StoreError> {
        if !elected.has_fired() {
            return Ok(false);
        }
        // That watch is of the own vote alone: it is gone, or the connection was.
        if self.0.store.is_transactional() {
            return Ok(true);
        }
        match self.look(vote).await? {
            AuditorPlace::Elected(watch) => {
                *elected = watch;
                Ok(false)
            }
            AuditorPlace::Behind(_) | AuditorPlace::Gone => Ok(true),
        }
    }

    async fn look(&self, vote: &AuditorVote) -> Result<AuditorPlace, StoreError> {
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
                (0, Some(_)) if self.0.store.is_transactional() => return Ok(AuditorPlace::Elected(watch)),
                (0, Some(_)) => {
                    let (votes, watch) = self.watch_all().await?;
                    if votes.first().is_some_and(|lowest| lowest == own) {
                        return Ok(AuditorPlace::Elected(watch));
                    }
                }
                // The vote before it was deleted after they were listed.
                (_, None) => {}
                // That one is this session's, too: a call whose answer was lost made it late. It would never go while this one waits.
                (_, Some(stat)) if stat.owner == Some(vote.session) => {
                    self.withdraw(vote).await?;
                    return Ok(AuditorPlace::Gone);
                }
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
    use crate::memory::{Fault, Kind, MemoryCluster};
    use crate::store::MetadataStore as _;
    use std::sync::Arc;

    #[tokio::test]
    async fn the_lowest_vote_is_the_auditors_and_the_next_takes_over() {
        for kind in Kind::ALL {
            let cluster = MemoryCluster::of(kind);
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
    }

    /// Its number was drawn before that of a vote that was elected meanwhile.
    #[tokio::test]
    async fn an_auditor_gives_way_to_a_lower_vote_that_comes_late_and_to_no_higher_one() {
        let cluster = MemoryCluster::of(Kind::OfOxia);
        let (one, two, three) =
            (Arc::new(cluster.open()), Arc::new(cluster.open()), Arc::new(cluster.open()));
        create_parents(&*one, "/l/underreplication/auditorelection/V_", "").await.unwrap();
        let votes_of = |store: &Arc<crate::memory::MemoryStore>| AuditorVotes(Root::new(store.clone(), "/l"));
        let (late, early, third) = (votes_of(&one), votes_of(&two), votes_of(&three));
        let id = |name: &str| BookieId::new(name).unwrap();
        let elected = Arc::new(parking_lot::Mutex::new(None));
        one.interleave_write(0, {
            let (early, two, elected) = (early.clone(), id("b:2"), elected.clone());
            move || {
                let work = async {
                    let vote = early.vote(&two).await.unwrap();
                    match early.place(&vote, &two).await.unwrap() {
                        AuditorPlace::Elected(watch) => *elected.lock() = Some((vote, watch)),
                        place => panic!("{place:?}"),
                    }
                };
                // The memory driver answers at once.
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(std::pin::pin!(work).poll(&mut context).is_ready());
            }
        });
        let first = late.vote(&id("b:1")).await.unwrap();
        let (second, mut second_watch) = elected.lock().take().expect("the other one was elected meanwhile");
        assert!(first.name() < second.name(), "{first:?} {second:?}");
        let AuditorPlace::Elected(mut first_watch) = late.place(&first, &id("b:1")).await.unwrap() else {
            panic!("it is the lowest")
        };
        assert_eq!(early.is_over(&second, &mut second_watch).await, Ok(true), "there is one auditor");
        assert!(matches!(early.place(&second, &id("b:2")).await.unwrap(), AuditorPlace::Behind(_)));
        for _ in 0..2 {
            let higher = third.vote(&id("b:3")).await.unwrap();
            assert_eq!(late.is_over(&first, &mut first_watch).await, Ok(false), "one that comes behind");
            third.withdraw(&higher).await.unwrap();
            assert_eq!(late.is_over(&first, &mut first_watch).await, Ok(false), "and goes");
        }
        late.withdraw(&first).await.unwrap();
        assert_eq!(late.is_over(&first, &mut first_watch).await, Ok(true));
        assert!(matches!(early.place(&second, &id("b:2")).await.unwrap(), AuditorPlace::Elected(_)));
    }

    /// Its session waits for no vote of its own.
    #[tokio::test]
    async fn a_vote_whose_write_came_after_its_answer_was_given_up_is_taken_up() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            create_parents(&*store, "/l/underreplication/auditorelection/V_", "").await.unwrap();
            let (votes, id) = (AuditorVotes(Root::new(store.clone(), "/l")), BookieId::new("b:1").unwrap());
            let vote = votes.vote(&id).await.unwrap();
            let lower = format!("{}/V_-000000001", votes.path());
            store.create(&lower, of(&id), CreateMode::Ephemeral).await.unwrap();
            assert!(matches!(votes.place(&vote, &id).await.unwrap(), AuditorPlace::Gone));
            let vote = votes.vote(&id).await.unwrap();
            assert!(matches!(votes.place(&vote, &id).await.unwrap(), AuditorPlace::Elected(_)));
            assert_eq!(votes.votes().await.unwrap().len(), 1);
        }
    }

    #[tokio::test]
    async fn a_vote_whose_answer_was_lost_is_found_again() {
        for kind in Kind::ALL {
            let cluster = MemoryCluster::of(kind);
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
}
