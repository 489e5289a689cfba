//! Which tierers live: this one's registration, those of other tierers, and what each tells the rest. Which tierer owns what may be known late and wrongly. What is
//! said of the catalogue has to be known, or known not to be ([`Event::TierersUnknown`](crate::core::Event::TierersUnknown)).
//!
//! # Invariants
//! 1. What this tierer has in the metadata store is what a listing shows, not what it remembers to have written: a request whose answer was lost, or a
//!    session that ended, leaves nothing behind that the next listing does not put right.

use std::time::Duration;

use bindery_io::Random;
use bindery_metadata::layout::{LiveTierers, Note, Tierers};
use bindery_metadata::store::{StoreError, Watch};
use bindery_tiering::ObjectId;
use tokio::sync::watch;

use crate::core::{HeardDoubts, Member, Team};

/// A change is seen at once by a watch, or else after this time.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two attempts while the metadata store fails.
const RETRY: Duration = Duration::from_secs(3);
/// A listing that takes longer failed.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Missing objects that are read of one tierer.
const MISSING_READ_MAX: usize = 100;
/// A tierer that ends waits no longer for its node to go: it goes with the session.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// What this tierer tells other tierers, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// It doubts the catalogue.
    pub doubt: Option<String>,
    /// Objects that are missing in the bucket ([`missing_text`]).
    pub missing: Option<String>,
    /// It cannot do its work.
    pub unable: Option<String>,
    /// It cannot do its part of the upkeep.
    pub no_upkeep: Option<String>,
}

impl Notes {
    fn of(&self, note: Note) -> Option<&str> {
        match note {
            Note::Doubt => self.doubt.as_deref(),
            Note::Missing => self.missing.as_deref(),
            Note::Unable => self.unable.as_deref(),
            Note::NoUpkeep => self.no_upkeep.as_deref(),
        }
    }

    /// Whether other tierers are told the same, whatever the reasons: these may have other numbers with each look. Which objects are missing counts.
    pub fn are_those_of(&self, other: &Notes) -> bool {
        let is_the_same = |note| self.of(note).is_some() == other.of(note).is_some();
        Note::ALL.into_iter().all(is_the_same) && self.missing == other.missing
    }
}

/// What the metadata store says of the tierers.
pub(super) struct Membership {
    /// The team of this tierer.
    pub team: Team,
    /// What other tierers say against the catalogue.
    pub doubts: HeardDoubts,
    watch: Watch,
    /// Not all that is to be said could be said.
    is_unsaid: bool,
}

/// This tierer's registration.
#[derive(Clone)]
pub(super) struct Registered {
    tierers: Tierers,
    /// Drawn for this start: two processes never have one name.
    name: String,
    notes: watch::Receiver<Notes>,
}

impl Registered {
    pub fn new(tierers: Tierers, random: &dyn Random, notes: watch::Receiver<Notes>) -> Registered {
        Registered { tierers, name: format!("{:016x}", random.next_u64()), notes }
    }

    /// Waits until there may be something new since the last look, looks, and says what is to be said. An error: the metadata store could not be
    /// asked.
    pub async fn look(&mut self, last: Option<Result<Membership, String>>) -> Result<Membership, String> {
        match last {
            None => {}
            Some(Ok(last)) => {
                let pause = if last.is_unsaid { RETRY } else { INTERVAL };
                tokio::select! {
                    _ = last.watch.changed() => {}
                    // Without a sender the tierer ends.
                    Ok(()) = self.notes.changed() => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
            Some(Err(_)) => tokio::time::sleep(RETRY).await,
        }
        let found = match tokio::time::timeout(LOOK_MAX, self.membership()).await {
            Ok(found) => found.map_err(|error| error.to_string()),
            Err(_) => Err("the metadata store does not answer".to_owned()),
        };
        found.inspect_err(|error| tracing::debug!(error, "the tierers could not be listed"))
    }

    async fn membership(&mut self) -> Result<Membership, StoreError> {
        let notes = self.notes.borrow_and_update().clone();
        let (mut live, mut watch) = self.tierers.watch().await?;
        let said = self.say(&live, &notes).await;
        if !matches!(said, Ok(false)) {
            (live, watch) = self.tierers.watch().await?;
        }
        let doubts = self.doubts(&live).await;
        Ok(Membership { team: self.team(live), doubts, watch, is_unsaid: said.is_err() })
    }

    /// What other tierers that were listed say against the catalogue.
    async fn doubts(&self, live: &LiveTierers) -> HeardDoubts {
        let mut doubts = HeardDoubts::default();
        for (name, note) in live.notes.iter().filter(|(name, _)| *name != self.name) {
            match note {
                Note::Doubt if doubts.of_catalogue.is_none() => {
                    doubts.of_catalogue = Some(doubt_of(name, self.tierers.why(name, *note).await));
                }
                Note::Missing => {
                    let text = self.tierers.why(name, *note).await;
                    doubts
                        .missing_objects
                        .extend(text.ok().flatten().iter().flat_map(|text| missing_of(text)));
                    let why = || format!("tierer {name}: objects of the catalogue are not in the bucket");
                    doubts.missing.get_or_insert_with(why);
                }
                Note::Doubt | Note::Unable | Note::NoUpkeep => {}
            }
        }
        doubts
    }

    /// Registers this tierer, and gives or withdraws its notes, where the listing shows that it has to. True: something was changed.
    async fn say(&self, live: &LiveTierers, notes: &Notes) -> Result<bool, StoreError> {
        let mut outcome = Ok(false);
        let mut note_outcome = |done: Result<(), StoreError>| match done {
            Ok(()) if outcome.is_ok() => outcome = Ok(true),
            Ok(()) => {}
            Err(error) => outcome = Err(error),
        };
        if !live.names.contains(&self.name) {
            // The first time, or its session ended. One that may not register does its part beside other tierers nevertheless.
            let about = format!("process {}", std::process::id());
            let joined = self.tierers.join(&self.name, &about).await;
            note_outcome(joined.inspect_err(|error| {
                tracing::warn!(%error, "this tierer is not registered, so others do its part as well");
            }));
        }
        for note in Note::ALL {
            let done = match (live.has(&self.name, note), notes.of(note)) {
                (false, Some(why)) => self.tierers.give(&self.name, note, why).await,
                // By its text others know which objects to look up.
                (true, Some(why)) if note == Note::Missing => {
                    match self.tierers.why(&self.name, note).await {
                        Ok(Some(given)) if given == why => continue,
                        Ok(_) => self.give_anew(note, why).await,
                        Err(error) => Err(error),
                    }
                }
                (true, None) => self.tierers.withdraw(&self.name, note).await,
                (false, None) | (true, Some(_)) => continue,
            };
            note_outcome(done.inspect_err(|error| {
                tracing::debug!(%error, ?note, "other tierers could not be told");
            }));
        }
        outcome
    }

    async fn give_anew(&self, note: Note, why: &str) -> Result<(), StoreError> {
        self.tierers.withdraw(&self.name, note).await?;
        self.tierers.give(&self.name, note, why).await
    }

    fn team(&self, live: LiveTierers) -> Team {
        let member = |name: &String| Member {
            name: name.clone(),
            is_unable: live.has(name, Note::Unable),
            is_without_upkeep: live.has(name, Note::NoUpkeep),
        };
        Team::new(&self.name, live.names.iter().map(member))
    }

    /// Leaves the ledgers to other tierers.
    pub async fn leave(&self) {
        match tokio::time::timeout(LEAVE_MAX, self.tierers.leave(&self.name)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the tierer's registration goes with its session"),
            Err(_) => tracing::debug!("the tierer's registration goes with its session"),
        }
    }
}

/// The doubt of a tierer that was listed with one: it counts whether or not its reason can be read.
fn doubt_of(name: &str, why: Result<Option<String>, StoreError>) -> String {
    match why {
        Ok(Some(why)) => format!("tierer {name}: {why}"),
        Ok(None) => format!("tierer {name} doubted the catalogue a moment ago"),
        Err(error) => format!("tierer {name} doubts the catalogue, and its reason cannot be read: {error}"),
    }
}

/// Missing objects as the text of a note: on each line an id, and the length that was committed. `None`: there is none.
pub(super) fn missing_text(objects: &[(ObjectId, u64)]) -> Option<String> {
    let lines: Vec<String> = objects.iter().map(|(object, length)| format!("{object} {length}")).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The objects in such a text. Lines that are none say nothing.
fn missing_of(text: &str) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
    text.lines().take(MISSING_READ_MAX).filter_map(|line| {
        let (object, length) = line.split_once(' ')?;
        Some((object.parse().ok()?, length.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SeededRandom;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::{Layout, LedgerLayout, layout};
    use std::sync::Arc;

    async fn registered(seed: u64) -> (Registered, watch::Sender<Notes>, Tierers) {
        let store = MemoryCluster::new().open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(store), "/ledgers", None).await.unwrap();
        let (said, notes) = watch::channel(Notes::default());
        let registered = Registered::new(layout.tierers(), &SeededRandom::new(seed), notes);
        (registered, said, layout.tierers())
    }

    /// A request may be done without an answer, and a session may end: what is listed decides.
    #[tokio::test(start_paused = true)]
    async fn what_is_listed_becomes_what_is_to_be_said() {
        let (mut registered, said, tierers) = registered(1).await;
        let name = registered.name.clone();
        // As after creations whose answers were lost, of a tierer that has changed its mind since.
        tierers.give(&name, Note::Doubt, "a gap").await.unwrap();
        tierers.give(&name, Note::Unable, "503").await.unwrap();
        let found = registered.look(None).await.unwrap();
        let live = tierers.watch().await.unwrap().0;
        assert_eq!((&live.names[..], live.notes.len(), found.team.count()), (&[name.clone()][..], 0, 1));
        assert_eq!(found.doubts, HeardDoubts::default());
        // What is new is said at once.
        said.send_replace(Notes { doubt: Some("a gap".into()), ..Notes::default() });
        let before = tokio::time::Instant::now();
        let found = registered.look(Some(Ok(found))).await.unwrap();
        assert!(before.elapsed() < Duration::from_secs(1));
        assert_eq!(tierers.watch().await.unwrap().0.notes, [(name.clone(), Note::Doubt)]);
        assert_eq!(found.doubts, HeardDoubts::default(), "it is its own");
        // Its nodes went with a session.
        tierers.leave(&name).await.unwrap();
        let found = registered.look(Some(Ok(found))).await.unwrap();
        let live = tierers.watch().await.unwrap().0;
        assert!(live.names == [name.clone()] && live.has(&name, Note::Doubt), "{live:?}");
        said.send_replace(Notes::default());
        registered.look(Some(Ok(found))).await.unwrap();
        assert!(tierers.watch().await.unwrap().0.notes.is_empty());
        registered.leave().await;
        assert_eq!(tierers.watch().await.unwrap().0, LiveTierers::default());
    }

    /// Which objects are missing is told anew when that changes, and heard of others alone.
    #[tokio::test(start_paused = true)]
    async fn missing_objects_are_told() {
        let (mut registered, said, tierers) = registered(3).await;
        let (name, ids) = (registered.name.clone(), [1, 2].map(|n| ObjectId::new(7, [n; 10])));
        let text = |objects: &[(ObjectId, u64)]| missing_text(objects);
        assert_eq!(text(&[]), None);
        let mut found = registered.look(None).await;
        for objects in [&[(ids[0], 10)][..], &[(ids[0], 10), (ids[1], 20)], &[(ids[1], 20)]] {
            said.send_replace(Notes { missing: text(objects), ..Notes::default() });
            found = registered.look(Some(found)).await;
            let given = tierers.why(&name, Note::Missing).await.unwrap();
            assert_eq!(given.as_deref().map(|text| missing_of(text).collect()), Some(objects.to_vec()));
        }
        assert_eq!(found.unwrap().doubts, HeardDoubts::default(), "they are its own");
        tierers.join("aa", "another one").await.unwrap();
        tierers.give("aa", Note::Missing, &format!("{} 30\nsomething else", ids[0])).await.unwrap();
        let doubts = registered.look(None).await.unwrap().doubts;
        assert_eq!((doubts.missing_objects, doubts.of_catalogue), (vec![(ids[0], 30)], None));
        assert!(doubts.missing.unwrap().starts_with("tierer aa: objects"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_listed_doubt_counts_also_without_its_reason() {
        let (mut registered, _said, tierers) = registered(2).await;
        tierers.join("aa", "another one").await.unwrap();
        tierers.give("aa", Note::Doubt, "a gap").await.unwrap();
        tierers.give("aa", Note::NoUpkeep, "403").await.unwrap();
        let found = registered.look(None).await.unwrap();
        assert_eq!(found.doubts.of_catalogue.as_deref(), Some("tierer aa: a gap"));
        assert!(found.team.count() == 2 && found.team.owns_upkeep());
        for why in [Ok(None), Err(StoreError::NoNode { path: "/x".into() })] {
            assert!(doubt_of("aa", why).starts_with("tierer aa doubt"));
        }
    }
}
