//! Which tierers run: `underreplication/bindery-tierers/<name>` (protocol reference, section 6.1), an ephemeral node for each. By these they
//! divide the ledgers among them. The node is below `underreplication` for the reason that the marks of bookies are.
//!
//! Beside its node a tierer has one for each [`Note`] that it gives the others, ephemeral too: `<name>-doubt`, `<name>-missing`,
//! `<name>-unable`, `<name>-no-upkeep`. The text says why. So one listing of names tells everything that changes.

use bytes::Bytes;

use super::paths::{Root, create_parents};
use crate::store::{CreateMode, StoreError, Watch};

/// Below the root.
const PARENT: &str = "underreplication/bindery-tierers";

/// What a tierer tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// It doubts the catalogue: nobody deletes anything meanwhile.
    Doubt,
    /// Objects of the catalogue are not in the bucket: nobody deletes objects meanwhile. Ledgers are removed, because that is the remedy.
    Missing,
    /// It cannot do its work.
    Unable,
    /// It cannot do its part of the upkeep.
    NoUpkeep,
}

impl Note {
    /// All of them.
    pub const ALL: [Note; 4] = [Note::Doubt, Note::Missing, Note::Unable, Note::NoUpkeep];

    const fn name(self) -> &'static str {
        match self {
            Note::Doubt => "doubt",
            Note::Missing => "missing",
            Note::Unable => "unable",
            Note::NoUpkeep => "no-upkeep",
        }
    }
}

/// The tierers of a cluster.
#[derive(Clone)]
pub struct Tierers(pub(super) Root);

/// Who was there when the names were listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveTierers {
    /// Names of tierers, ascending.
    pub names: Vec<String>,
    /// Their notes, by name, ascending.
    pub notes: Vec<(String, Note)>,
}

impl LiveTierers {
    /// Whether the tierer gives this note.
    pub fn has(&self, name: &str, note: Note) -> bool {
        self.notes.iter().any(|(of, given)| of == name && *given == note)
    }
}

impl Tierers {
    fn path(&self, name: &str) -> String {
        format!("{}/{PARENT}/{name}", self.0.path)
    }

    fn note_path(&self, name: &str, note: Note) -> String {
        self.path(&format!("{name}-{}", note.name()))
    }

    /// Registers a tierer, until the session ends. A node of this name that is there counts: names are drawn at random, for one start of
    /// one tierer. One of a session that has ended goes with it, and the tierer registers again when it misses its name in the list.
    ///
    /// # Errors
    /// Of the store.
    pub async fn join(&self, name: &str, about: &str) -> Result<(), StoreError> {
        self.put(&self.path(name), about).await
    }

    /// Removes a tierer, and its notes.
    ///
    /// # Errors
    /// Of the store; the nodes go with the session then.
    pub async fn leave(&self, name: &str) -> Result<(), StoreError> {
        self.remove(&self.path(name)).await?;
        for note in Note::ALL {
            self.withdraw(name, note).await?;
        }
        Ok(())
    }

    /// Gives a note, with its reason. One that is there stays.
    ///
    /// # Errors
    /// Of the store.
    pub async fn give(&self, name: &str, note: Note, why: &str) -> Result<(), StoreError> {
        self.put(&self.note_path(name, note), why).await
    }

    /// Withdraws a note.
    ///
    /// # Errors
    /// Of the store.
    pub async fn withdraw(&self, name: &str, note: Note) -> Result<(), StoreError> {
        self.remove(&self.note_path(name, note)).await
    }

    /// The reason of a note; `None` when it is not there.
    ///
    /// # Errors
    /// Of the store.
    pub async fn why(&self, name: &str, note: Note) -> Result<Option<String>, StoreError> {
        let found = self.0.find(&self.note_path(name, note)).await?;
        Ok(found.map(|why| String::from_utf8_lossy(&why).into_owned()))
    }

    /// Who is there, with a watch for the next change of that.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch(&self) -> Result<(LiveTierers, Watch), StoreError> {
        let parent = format!("{}/{PARENT}", self.0.path);
        let mut found = self.0.store.children_and_watch(&parent).await;
        if matches!(found, Err(StoreError::NoNode { .. })) {
            create_parents(&*self.0.store, &format!("{parent}/"), &self.0.path).await?;
            found = self.0.store.children_and_watch(&parent).await;
        }
        let (mut children, watch) = found?;
        children.sort_unstable();
        let mut live = LiveTierers::default();
        for child in children {
            match child.split_once('-') {
                None => live.names.push(child),
                // A note that is not known here is of a later version.
                Some((name, note)) => {
                    let note = Note::ALL.into_iter().find(|of| of.name() == note);
                    live.notes.extend(note.map(|note| (name.to_owned(), note)));
                }
            }
        }
        Ok((live, watch))
    }

    async fn put(&self, path: &str, text: &str) -> Result<(), StoreError> {
        let text = Bytes::copy_from_slice(text.as_bytes());
        let mut created = self.0.store.create(path, text.clone(), CreateMode::Ephemeral).await;
        if matches!(created, Err(StoreError::NoNode { .. })) {
            create_parents(&*self.0.store, path, &self.0.path).await?;
            created = self.0.store.create(path, text, CreateMode::Ephemeral).await;
        }
        match created {
            Ok(_) | Err(StoreError::NodeExists { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    async fn remove(&self, path: &str) -> Result<(), StoreError> {
        match self.0.store.delete(path, None).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Kind, MemoryCluster};
    use crate::store::MetadataStore;
    use std::sync::Arc;

    /// On every kind of store: tierers see each other come and go, with their sessions and without.
    #[tokio::test]
    async fn tierers_see_who_is_there() {
        for kind in Kind::ALL {
            let cluster = MemoryCluster::of(kind);
            let stores: [Arc<dyn MetadataStore>; 2] = [Arc::new(cluster.open()), Arc::new(cluster.open())];
            stores[0].create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let [one, two] = stores.clone().map(|store| Tierers(Root::new(store, "/l")));
            assert_eq!(one.watch().await.unwrap().0, LiveTierers::default());
            one.join("aa", "first").await.unwrap();
            one.join("aa", "first, again").await.unwrap();
            let (live, watch) = one.watch().await.unwrap();
            assert_eq!(live.names, ["aa"]);
            two.join("bb", "second").await.unwrap();
            watch.changed().await;
            let (live, watch) = one.watch().await.unwrap();
            assert_eq!(
                (&live.names[..], &live.notes[..]),
                (&["aa".to_owned(), "bb".to_owned()][..], &[][..])
            );
            // A note is seen, read, and withdrawn.
            assert_eq!(one.why("bb", Note::Doubt).await, Ok(None));
            two.give("bb", Note::Doubt, "a gap").await.unwrap();
            watch.changed().await;
            let (live, watch) = one.watch().await.unwrap();
            assert_eq!((live.names.len(), &live.notes[..]), (2, &[("bb".to_owned(), Note::Doubt)][..]));
            two.give("bb", Note::NoUpkeep, "403").await.unwrap();
            watch.changed().await;
            let (live, watch) = one.watch().await.unwrap();
            assert!(live.has("bb", Note::Doubt) && live.has("bb", Note::NoUpkeep), "{live:?}");
            assert!(!live.has("bb", Note::Unable) && !live.has("aa", Note::Doubt), "{live:?}");
            assert_eq!(one.why("bb", Note::NoUpkeep).await, Ok(Some("403".to_owned())));
            two.withdraw("bb", Note::Doubt).await.unwrap();
            two.withdraw("bb", Note::Doubt).await.unwrap();
            watch.changed().await;
            let (live, watch) = one.watch().await.unwrap();
            assert_eq!(live.notes, [("bb".to_owned(), Note::NoUpkeep)]);
            // Its nodes go with the session.
            stores[1].close().await.unwrap();
            drop(watch);
            let live = loop {
                let (live, watch) = one.watch().await.unwrap();
                if live.names.len() == 1 && live.notes.is_empty() {
                    break live;
                }
                watch.changed().await;
            };
            assert_eq!(live.names, ["aa"]);
            // A later version's note is nobody's name.
            one.put(&one.path("aa-hungry"), "").await.unwrap();
            assert_eq!(one.watch().await.unwrap().0, live);
            one.remove(&one.path("aa-hungry")).await.unwrap();
            one.give("aa", Note::Unable, "503").await.unwrap();
            one.leave("aa").await.unwrap();
            one.leave("aa").await.unwrap();
            assert_eq!(one.watch().await.unwrap().0, LiveTierers::default());
        }
    }
}
