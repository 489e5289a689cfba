//! Ledgers that lack replicas: `underreplication/ledgers/<xxxx>/<xxxx>/<xxxx>/<xxxx>/urL<id>` (protocol reference,
//! section 5.6).
//!
//! An auditor, ours or BookKeeper's, marks ledgers of lost bookies so, and replication workers take them up from there. A
//! writer marks its own ledger when it stops sending entries to a bookie of the ensemble.
//!
//! # Invariants
//! 1. Marking keeps the replicas that others named; only whoever repaired the ledger removes a mark.
//! 2. A mark that gains a replica, or is marked again, has a new version: a worker that looked before cannot remove it.
//! 3. What a mark says of the danger is from its last writer: one who does not know removes it.
//! 4. A listing finds each mark. Where the store is not transactional a node may be deleted although a mark was just made below it. So of
//!    the nodes above a mark only the one that is this ledger's alone is removed; whoever removes it looks afterwards whether the mark is
//!    there, whoever makes a mark looks afterwards whether the nodes above it are there, and each makes again what is missing: of two that do
//!    this at once, one looks after both have written. A mark that is left when that one stops just then is listed when the ledger is marked
//!    again. So is one of Pulsar's driver, which looks for the node before it makes the mark and not afterwards. That driver makes the nodes
//!    above from the lowest on, and may leave some out when it is stopped: whoever makes a mark looks for all of them.
//!
//! The danger ([`Danger`]) stands in a comment, which Java's parser passes over and which goes when Java writes the mark again:
//! ```text
//! replica: "b1:3181"
//! ctime: 1700000000000
//! # danger 1: copies 1 bookies 00f3a2b1c4d5e6f7 members b2:3181 b3:3181
//! ```
//!
//! # Limits     a listing: the children of four nodes at a time, no more than 65,536 each; [`WATCHED_MAX`] watches

use std::sync::Arc;

use bindery_types::{BookieId, LedgerId};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::paths::create_parents;
use crate::codec::text::{self, Printer, TextError};
use crate::store::{CreateMode, MetadataStore, Op, StoreError, Version, Watch};

/// How often a mark may change under the one that adds to it.
const CONFLICTS_MAX: u32 = 16;

/// Nodes that a listing watches: those of the lowest ids, 65,536 ledgers each. Where there are more, a mark below the others is found by the
/// next listing alone.
const WATCHED_MAX: usize = 4096;

/// The marks of a cluster.
#[derive(Clone)]
pub struct UnderReplication {
    store: Arc<dyn MetadataStore>,
    root: String,
}

impl UnderReplication {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> UnderReplication {
        UnderReplication { store, root: root.into() }
    }

    /// The path of a ledger's mark: the id in four parts of 16 bits, then in decimal.
    pub fn path(&self, ledger: LedgerId) -> String {
        let id = ledger.get();
        format!("{}/urL{id:010}", self.parent(&parts(ledger)))
    }

    /// The node of these leading parts of an id.
    fn parent(&self, parts: &[u16]) -> String {
        let mut path = format!("{}/underreplication/ledgers", self.root);
        for part in parts {
            path.push_str(&format!("/{part:04x}"));
        }
        path
    }

    /// Marks a ledger as lacking what these bookies should have. Repeating it is harmless.
    ///
    /// # Errors
    /// Of the store; also [`StoreError::Protocol`] when the mark that is there cannot be read.
    pub async fn mark(&self, ledger: LedgerId, replicas: &[BookieId]) -> Result<(), StoreError> {
        self.mark_since(ledger, replicas, None).await
    }

    /// As [`mark`](Self::mark); a new mark says since when, as those of Java's auditor do, in milliseconds since the epoch.
    ///
    /// # Errors
    /// As [`mark`](Self::mark).
    pub async fn mark_since(
        &self,
        ledger: LedgerId,
        replicas: &[BookieId],
        since_ms: Option<i64>,
    ) -> Result<(), StoreError> {
        self.make(ledger, &NewMark { replicas, since_ms, danger: None }).await
    }

    /// Makes a mark, or adds to the one that is there.
    ///
    /// # Errors
    /// As [`mark`](Self::mark).
    pub async fn make(&self, ledger: LedgerId, mark: &NewMark<'_>) -> Result<(), StoreError> {
        let NewMark { replicas, since_ms, danger } = mark;
        let path = self.path(ledger);
        for _ in 0..CONFLICTS_MAX {
            // Most are marked for the first time, so this comes before a look.
            let first = Mark { ctime_ms: *since_ms, ..Mark::default() }.with(replicas, danger).write();
            match self.create_with_parent(ledger, &path, first.clone()).await {
                Ok(()) => return Ok(()),
                // Its mark is there, or one was removed and the node above it was left.
                Err(StoreError::NodeExists { .. }) => {}
                Err(StoreError::NoNode { .. }) => match create_parents(&*self.store, &path, &self.root).await
                {
                    // One was removed again, with the last mark below it: from the top.
                    Ok(()) | Err(StoreError::NoNode { .. }) => {}
                    Err(other) => return Err(other),
                },
                Err(other) => return Err(other),
            }
            let outcome = match self.get(&path).await? {
                // Written also when nothing is new: invariant 2.
                Some((mark, version)) => {
                    self.store.set(&path, mark.with(replicas, danger).write(), Some(version)).await.map(drop)
                }
                None => self.create(ledger, &path, first).await,
            };
            match outcome {
                // Another client marked it, or repaired it, meanwhile.
                Err(
                    StoreError::NodeExists { .. } | StoreError::BadVersion { .. } | StoreError::NoNode { .. },
                ) => {}
                outcome => return outcome,
            }
        }
        Err(StoreError::BadVersion { path })
    }

    /// Creates a mark and the node above it, which is new for most: ids follow one another.
    async fn create_with_parent(&self, ledger: LedgerId, path: &str, data: Bytes) -> Result<(), StoreError> {
        if !self.store.is_transactional() {
            return self.create(ledger, path, data).await;
        }
        let node = |path: String, data| Op::Create { path, data, mode: CreateMode::Persistent };
        let above = node(self.parent(&parts(ledger)), Bytes::new());
        self.store.multi(vec![above, node(path.to_owned(), data)]).await
    }

    /// Creates a mark below a node that is there (invariant 4).
    async fn create(&self, ledger: LedgerId, path: &str, data: Bytes) -> Result<(), StoreError> {
        self.store.create(path, data, CreateMode::Persistent).await?;
        self.keep_listed(ledger).await
    }

    /// Makes the nodes above a mark again where one is missing (invariant 4).
    async fn keep_listed(&self, ledger: LedgerId) -> Result<(), StoreError> {
        if self.store.is_transactional() {
            return Ok(());
        }
        let parts = parts(ledger);
        for count in (1..=parts.len()).rev() {
            if self.store.exists(&self.parent(&parts[..count])).await?.is_none() {
                return create_parents(&*self.store, &self.path(ledger), &self.root).await;
            }
        }
        Ok(())
    }

    /// The bookies that a ledger's mark names; `None` when it is not marked.
    ///
    /// # Errors
    /// As [`mark`](Self::mark).
    pub async fn replicas(&self, ledger: LedgerId) -> Result<Option<Vec<String>>, StoreError> {
        Ok(self.get(&self.path(ledger)).await?.map(|(mark, _)| mark.replicas))
    }

    /// A ledger's mark; `None` when it is not marked.
    ///
    /// # Errors
    /// As [`mark`](Self::mark).
    pub async fn marked(&self, ledger: LedgerId) -> Result<Option<Marked>, StoreError> {
        let found = self.get(&self.path(ledger)).await?;
        Ok(found.map(|(mark, version)| {
            let Mark { replicas, ctime_ms, danger } = mark;
            Marked { replicas, since_ms: ctime_ms, danger, version }
        }))
    }

    /// Removes the mark of a ledger that lacks nothing, unless it was marked again since `version` was read (invariant 2): then it is
    /// false. The node that only this mark is below goes, too; those above that stay for [`prune`](Self::prune).
    ///
    /// # Errors
    /// Of the store. A mark that is gone is no error.
    pub async fn unmark(&self, ledger: LedgerId, version: Version) -> Result<bool, StoreError> {
        match self.store.delete(&self.path(ledger), Some(version)).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => {}
            Err(StoreError::BadVersion { .. }) => {
                // An earlier call may have deleted the node above it, and its answer was lost.
                self.keep_listed(ledger).await?;
                return Ok(false);
            }
            Err(other) => return Err(other),
        }
        self.delete_empty(&parts(ledger)).await?;
        Ok(true)
    }

    /// Removes the node above a mark that is gone, as whoever removed the mark may have left it. Until then it is listed. Harmless where
    /// there is a mark.
    ///
    /// # Errors
    /// Of the store.
    pub async fn clear(&self, ledger: LedgerId) -> Result<(), StoreError> {
        self.delete_empty(&parts(ledger)).await.map(drop)
    }

    /// The operations that [`unmark`](Self::unmark) consists of, for a transaction with others.
    pub(super) fn unmarking(&self, ledger: LedgerId, version: Version) -> [Op; 2] {
        [
            Op::Delete { path: self.path(ledger), expected: Some(version) },
            Op::Delete { path: self.parent(&parts(ledger)), expected: None },
        ]
    }

    /// Removes the nodes above marks that have gone, as Java's workers do, so that one watch sees the next mark
    /// ([`list_and_watch`](Self::list_and_watch)). To be called when no mark is listed; it ends at the first node that is in use. Where the
    /// store is not transactional it leaves the upper ones (invariant 4).
    ///
    /// # Errors
    /// Of the store.
    pub async fn prune(&self) -> Result<(), StoreError> {
        for first in self.children(&[], 0).await? {
            for second in self.children(&[first], 0).await? {
                for third in self.children(&[first, second], 0).await? {
                    for fourth in self.children(&[first, second, third], 0).await? {
                        if !self.delete_empty(&[first, second, third, fourth]).await? {
                            return Ok(());
                        }
                    }
                    self.delete_empty(&[first, second, third]).await?;
                }
                self.delete_empty(&[first, second]).await?;
            }
            self.delete_empty(&[first]).await?;
        }
        Ok(())
    }

    /// Deletes a node above marks; false when something is below it, or may come to be (invariant 4).
    async fn delete_empty(&self, parts: &[u16]) -> Result<bool, StoreError> {
        if parts.len() < 4 && !self.store.is_transactional() {
            return Ok(false);
        }
        match self.store.delete(&self.parent(parts), None).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => {}
            Err(StoreError::NotEmpty { .. }) => return Ok(false),
            Err(other) => return Err(other),
        }
        if self.store.is_transactional() {
            return Ok(true);
        }
        // Another process may have made the mark after the store looked for it and before it deleted the node. Also where the node was
        // gone: an earlier call may have deleted it and not come this far.
        let ledger = <[u16; 4]>::try_from(parts).ok().and_then(of_parts);
        let Some(path) = ledger.map(|ledger| self.path(ledger)) else { return Ok(true) };
        if self.store.exists(&path).await?.is_none() {
            return Ok(true);
        }
        create_parents(&*self.store, &path, &self.root).await?;
        Ok(false)
    }

    /// Marked ledgers with ids above `after`, ascending, `max` at most; fewer only at the end. An id is what the nodes above a mark
    /// say, so the mark itself may be gone by now: [`marked`](Self::marked) tells.
    ///
    /// # Errors
    /// Of the store.
    pub async fn after(&self, after: Option<LedgerId>, max: usize) -> Result<Vec<LedgerId>, StoreError> {
        let (mut listing, mut found) = (self.list_after(after), Vec::new());
        while found.len() < max
            && let Some(page) = listing.next().await?
        {
            found.extend(page);
        }
        found.truncate(max);
        Ok(found)
    }

    /// All marked ledgers, ascending, in pages. Nothing is read before the first one is asked for.
    pub fn list(&self) -> MarkListing {
        self.list_after(None)
    }

    /// As [`list`](Self::list), those with ids above `after` alone.
    pub fn list_after(&self, after: Option<LedgerId>) -> MarkListing {
        let lowest = after.map_or(Some(0), |after| after.get().checked_add(1)).and_then(LedgerId::new);
        let pending = lowest.iter().map(|_| Vec::new()).collect();
        MarkListing {
            marks: self.clone(),
            lowest: parts(lowest.unwrap_or_else(zero)),
            pending,
            watches: None,
        }
    }

    /// As [`list`](Self::list). If it comes to its end without a mark, [`MarkListing::into_watch`] has a watch for the next one.
    pub fn list_and_watch(&self) -> MarkListing {
        let watches = Some(Watches { of_nodes: Vec::new(), see_all: true });
        MarkListing { watches, ..self.list() }
    }

    /// The parts below a node that are not below `lowest`, ascending. Of a node that is gone there are none.
    async fn children(&self, parent: &[u16], lowest: u16) -> Result<Vec<u16>, StoreError> {
        match self.store.children(&self.parent(parent)).await {
            Ok(names) => Ok(parts_of(&names, lowest)),
            Err(StoreError::NoNode { .. }) => Ok(Vec::new()),
            Err(other) => Err(other),
        }
    }

    /// All parts below a node, ascending, and a watch of them. A node that is gone has neither, except the root.
    async fn watched(&self, parent: &[u16]) -> Result<(Vec<u16>, Option<Watch>), StoreError> {
        let path = self.parent(parent);
        let (names, watch) = match self.store.children_and_watch(&path).await {
            Err(StoreError::NoNode { .. }) if !parent.is_empty() => return Ok((Vec::new(), None)),
            Err(StoreError::NoNode { .. }) => match self.store.exists_and_watch(&path).await? {
                // Nothing was ever marked.
                (None, watch) => return Ok((Vec::new(), Some(watch))),
                // It was made just now, and that watch tells nothing of its children.
                (Some(_), _) => self.store.children_and_watch(&path).await?,
            },
            listed => listed?,
        };
        Ok((parts_of(&names, 0), Some(watch)))
    }

    async fn get(&self, path: &str) -> Result<Option<(Mark, Version)>, StoreError> {
        match self.store.get(path).await {
            Ok(node) => match Mark::read(&node.data) {
                Ok(mark) => Ok(Some((mark, node.stat.version))),
                Err(error) => Err(StoreError::Protocol(format!("{path} holds no mark: {error}"))),
            },
            Err(StoreError::NoNode { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// Marked ledgers, see [`UnderReplication::list`]. Each node above them is read once.
pub struct MarkListing {
    marks: UnderReplication,
    /// Parts of the lowest id that is wanted.
    lowest: [u16; 4],
    /// Leading parts of ids that are still to be read, the lowest last.
    pending: Vec<Vec<u16>>,
    /// Of a listing that watches.
    watches: Option<Watches>,
}

/// What a listing armed so far.
struct Watches {
    of_nodes: Vec<Watch>,
    /// Nothing was marked, and the next mark fires one of them, or is below a node beyond [`WATCHED_MAX`].
    see_all: bool,
}

impl MarkListing {
    /// The next page, ids ascending and above those of the pages before: never empty, 65,536 at most. `None` at the end. The marks may be
    /// gone by now, see [`UnderReplication::after`].
    ///
    /// # Errors
    /// Of the store; the same page can be asked for again.
    pub async fn next(&mut self) -> Result<Option<Vec<LedgerId>>, StoreError> {
        while let Some(leading) = self.pending.last().cloned() {
            let below = self.below(&leading).await?;
            self.pending.pop();
            if let [first, second, third] = leading[..] {
                let of_last = |last| of_parts([first, second, third, last]);
                let page: Vec<LedgerId> = below.into_iter().filter_map(of_last).collect();
                if !page.is_empty() {
                    // Whoever knows a mark looks again without a watch.
                    self.watches = None;
                    return Ok(Some(page));
                }
                continue;
            }
            self.pending.extend(below.into_iter().rev().map(|part| [&leading[..], &[part]].concat()));
        }
        Ok(None)
    }

    /// The wanted parts below a node.
    async fn below(&mut self, leading: &[u16]) -> Result<Vec<u16>, StoreError> {
        let marks = &self.marks;
        if let Some(watches) = &mut self.watches {
            // Where nodes above marks go with the last one, the root's watch is enough, and servers keep no other one.
            watches.see_all &= leading.is_empty() || !marks.store.is_transactional();
            if watches.see_all && watches.of_nodes.len() < WATCHED_MAX {
                let (parts, watch) = marks.watched(leading).await?;
                watches.of_nodes.extend(watch);
                return Ok(parts);
            }
        }
        // Below nodes of higher ids nothing is left out.
        let is_lowest = *leading == self.lowest[..leading.len()];
        marks.children(leading, if is_lowest { self.lowest[leading.len()] } else { 0 }).await
    }

    /// The watch of a [listing that watches](UnderReplication::list_and_watch), at its end: it fires with the next mark. `None` where
    /// something was listed. Also where nodes are left that [`UnderReplication::prune`] is to remove first.
    pub fn into_watch(self) -> Option<MarksWatch> {
        let watches = self.watches.filter(|watches| watches.see_all && self.pending.is_empty())?;
        Some(MarksWatch(watches.of_nodes))
    }
}

/// Fires with the first mark, and when anything may have changed. It watches each node that was left above former marks.
pub struct MarksWatch(Vec<Watch>);

impl MarksWatch {
    /// Whether a ledger may have been marked since.
    pub fn has_fired(&mut self) -> bool {
        self.0.iter_mut().any(Watch::has_fired)
    }

    /// Waits until a ledger may have been marked.
    pub async fn changed(self) {
        let mut watches: FuturesUnordered<_> = self.0.into_iter().map(Watch::changed).collect();
        watches.next().await;
    }
}

/// The mark of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The bookies whose copies are missing, as whoever marked it said; text, as it came.
    pub replicas: Vec<String>,
    /// When it was made, in milliseconds since the epoch, if the mark says so.
    pub since_ms: Option<i64>,
    /// How endangered it was, if whoever marked it said so.
    pub danger: Option<Danger>,
    /// For [`UnderReplication::unmark`].
    pub version: Version,
}

/// A mark to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewMark<'a> {
    /// The bookies whose copies are missing.
    pub replicas: &'a [BookieId],
    /// The time that a first mark says, in milliseconds since the epoch.
    pub since_ms: Option<i64>,
    /// What is known of the danger.
    pub danger: Option<Danger>,
}

/// How endangered a ledger is, so that a worker need not read its metadata to order it. It holds for the bookies that were registered: by
/// other ones it is worthless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Danger {
    /// Live copies of the entry that has the fewest.
    pub copies: usize,
    /// A hash of the ids of the registered bookies.
    pub bookies: u64,
    /// Bookies that cannot take a missing copy, because they are members wherever one is missing: [`MEMBERS_MAX`](Self::MEMBERS_MAX)
    /// at most.
    pub members: Vec<BookieId>,
}

impl Danger {
    /// Members that a mark names.
    pub const MEMBERS_MAX: usize = 32;
    /// With the version of the line.
    const LINE: &'static str = "# danger 1: ";

    fn write(&self) -> String {
        let Danger { copies, bookies, members } = self;
        let mut line = format!("{}copies {copies} bookies {bookies:016x} members", Danger::LINE);
        for member in members {
            line.push(' ');
            line.push_str(member.as_str());
        }
        line.push('\n');
        line
    }

    /// Of the text of a mark. `None` where it does not say it in the form of this version: then metadata tell.
    fn read(text: &[u8]) -> Option<Danger> {
        let line = str::from_utf8(text).ok()?.lines().find_map(|line| line.strip_prefix(Danger::LINE))?;
        let mut words = line.split(' ');
        let mut value = |name| words.next().filter(|word| *word == name).and_then(|_| words.next());
        let copies = value("copies")?.parse().ok()?;
        let bookies = u64::from_str_radix(value("bookies")?, 16).ok()?;
        let members = words.next().filter(|word| *word == "members").map(|_| words)?;
        let members: Vec<BookieId> =
            members.take(Danger::MEMBERS_MAX + 1).map(BookieId::new).collect::<Result<_, _>>().ok()?;
        (members.len() <= Danger::MEMBERS_MAX).then_some(Danger { copies, bookies, members })
    }
}

/// The parts that nodes are named by, from `lowest` on, ascending.
fn parts_of(names: &[String], lowest: u16) -> Vec<u16> {
    let parts = names.iter().filter_map(|name| u16::from_str_radix(name, 16).ok());
    let mut parts: Vec<u16> = parts.filter(|part| *part >= lowest).collect();
    parts.sort_unstable();
    parts
}

fn zero() -> LedgerId {
    LedgerId::new(0).expect("an id")
}

/// The id in four parts of 16 bits.
fn parts(ledger: LedgerId) -> [u16; 4] {
    let id = ledger.get();
    [48, 32, 16, 0].map(|shift| u16::try_from((id >> shift) & 0xffff).expect("16 bits"))
}

/// `None` for parts of a negative id, which no ledger has.
fn of_parts(parts: [u16; 4]) -> Option<LedgerId> {
    let id = parts.iter().fold(0, |id: i64, part| (id << 16) | i64::from(*part));
    LedgerId::new(id)
}

/// What a mark says.
#[derive(Default)]
struct Mark {
    replicas: Vec<String>,
    /// When it was made, in ms, as Java's auditor writes it if it is told to. It may have an alarm by it, so it stays.
    ctime_ms: Option<i64>,
    danger: Option<Danger>,
}

impl Mark {
    /// Names these, too, and says what is known of the danger now (invariant 3).
    fn with(mut self, replicas: &[BookieId], danger: &Option<Danger>) -> Mark {
        self.danger.clone_from(danger);
        for replica in replicas {
            if !self.replicas.iter().any(|known| known == replica.as_str()) {
                self.replicas.push(replica.as_str().to_owned());
            }
        }
        self
    }

    fn write(&self) -> Bytes {
        let mut printer = Printer::default();
        for replica in &self.replicas {
            printer.bytes("replica", replica.as_bytes());
        }
        if let Some(ctime) = self.ctime_ms {
            printer.word("ctime", ctime);
        }
        let mut text = printer.finish();
        if let Some(danger) = &self.danger {
            text.push_str(&danger.write());
        }
        Bytes::from(text)
    }

    fn read(text: &[u8]) -> Result<Mark, TextError> {
        let mut mark = Mark { danger: Danger::read(text), ..Mark::default() };
        for field in &text::parse(text)? {
            match &*field.name {
                "replica" => mark.replicas.push(field.string()?),
                "ctime" => mark.ctime_ms = Some(field.number()?),
                _ => {}
            }
        }
        Ok(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::StoreLayer;
    use crate::memory::{Kind, MemoryCluster};
    use crate::store::{Created, StoreFuture};

    #[tokio::test]
    async fn a_mark_has_javas_path_and_keeps_what_others_marked() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let marks = UnderReplication::new(store.clone(), "/l");
            let ledger = LedgerId::new(0x1_0002_abcd).unwrap();
            let path = "/l/underreplication/ledgers/0000/0001/0002/abcd/urL4295142349";
            assert_eq!(marks.path(ledger), path);
            assert_eq!(
                marks.path(LedgerId::new(7).unwrap()),
                "/l/underreplication/ledgers/0000/0000/0000/0007/urL0000000007"
            );
            assert_eq!(marks.replicas(ledger).await.unwrap(), None);
            let id = |name: &str| BookieId::new(name).unwrap();
            marks.mark(ledger, &[id("b:1")]).await.unwrap();
            let node = store.get(path).await.unwrap();
            assert_eq!(node.data, "replica: \"b:1\"\n".as_bytes());
            // As Java writes it.
            let java = "replica: \"b:1\"\nreplica: \"b:9\"\nctime: 1700000000000\n";
            let version = store.set(path, java.into(), None).await.unwrap().version;
            marks.mark_since(ledger, &[id("b:2"), id("b:1")], Some(5)).await.unwrap();
            assert_eq!(marks.replicas(ledger).await.unwrap().unwrap(), ["b:1", "b:9", "b:2"], "invariant 1");
            let node = store.get(path).await.unwrap();
            assert!(node.data.ends_with(b"replica: \"b:2\"\nctime: 1700000000000\n"), "{:?}", node.data);
            assert_ne!(node.stat.version, version);
            marks.mark(ledger, &[id("b:2")]).await.unwrap();
            assert_ne!(store.get(path).await.unwrap().stat.version, node.stat.version, "invariant 2");
            store.set(path, "replica: {".into(), None).await.unwrap();
            assert!(matches!(marks.mark(ledger, &[id("b:2")]).await, Err(StoreError::Protocol(_))));
            // Never written over: somebody else knows what it says.
            assert_eq!(store.get(path).await.unwrap().data, "replica: {".as_bytes());
        }
    }

    #[tokio::test]
    async fn a_mark_says_the_danger_in_a_comment_that_its_next_writer_replaces() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let marks = UnderReplication::new(store.clone(), "/l");
            let ledger = LedgerId::new(7).unwrap();
            let id = |name: &str| BookieId::new(name).unwrap();
            let danger = Danger { copies: 1, bookies: 0xab, members: vec![id("b:2"), id("c_1.x-y:3")] };
            let replicas = [id("b:1")];
            let mark = |danger: &Danger| NewMark {
                replicas: &replicas,
                since_ms: Some(5),
                danger: Some(danger.clone()),
            };
            marks.make(ledger, &mark(&danger)).await.unwrap();
            let text = "replica: \"b:1\"\nctime: 5\n# danger 1: copies 1 bookies 00000000000000ab members b:2 c_1.x-y:3\n";
            let node = store.get(&marks.path(ledger)).await.unwrap();
            assert_eq!(node.data, text.as_bytes());
            let marked = async || marks.marked(ledger).await.unwrap().unwrap();
            assert_eq!(marked().await.danger, Some(danger.clone()));
            let none = Danger { copies: 2, members: Vec::new(), ..danger };
            marks.make(ledger, &mark(&none)).await.unwrap();
            assert_eq!(marked().await.danger, Some(none), "invariant 3");
            marks.mark(ledger, &[id("b:9")]).await.unwrap();
            let rest = marked().await;
            assert_eq!((rest.danger, rest.replicas.len(), rest.since_ms), (None, 2, Some(5)), "invariant 3");
            // Of another version, cut off, or not of bookies: nothing is said, and the mark is one.
            for comment in [
                "# danger 2: copies 1 bookies ab members",
                "# danger 1: copies 1 bookies ab",
                "# danger 1: copies x bookies ab members",
                "# danger 1: copies 1 bookies ab members a*b",
                "# lock-id: 7",
            ] {
                let text = format!("{comment}\nreplica: \"b:1\"\n");
                store.set(&marks.path(ledger), text.into(), None).await.unwrap();
                let marked = marked().await;
                assert_eq!((marked.danger, marked.replicas), (None, vec!["b:1".to_owned()]), "{comment}");
            }
        }
    }

    #[tokio::test]
    async fn a_mark_is_made_whatever_is_there_of_the_nodes_above_it() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let marks = UnderReplication::new(store.clone(), "/l");
            let lacks = [BookieId::new("b:1").unwrap()];
            let ledger = |id| LedgerId::new(id).unwrap();
            marks.mark(ledger(1), &lacks).await.unwrap();
            marks.mark(ledger(2), &lacks).await.unwrap();
            // As a worker leaves it that is killed between the two.
            store.delete(&marks.path(ledger(2)), None).await.unwrap();
            assert_eq!(marks.after(None, 9).await.unwrap(), [ledger(1), ledger(2)]);
            marks.clear(ledger(1)).await.unwrap();
            marks.clear(ledger(2)).await.unwrap();
            assert_eq!(marks.after(None, 9).await.unwrap(), [ledger(1)]);
            marks.mark(ledger(2), &lacks).await.unwrap();
            store.delete(&marks.path(ledger(2)), None).await.unwrap();
            marks.mark_since(ledger(2), &lacks, Some(7)).await.unwrap();
            let mark = marks.marked(ledger(2)).await.unwrap().unwrap();
            assert_eq!(mark.since_ms, Some(7));
            assert!(store.get(&marks.path(ledger(2))).await.unwrap().stat.version.is_initial());
            // Another client marks it in the last moment, and its replicas stay.
            marks.mark(ledger(3), &[BookieId::new("b:9").unwrap()]).await.unwrap();
            marks.mark_since(ledger(3), &lacks, Some(8)).await.unwrap();
            let mark = marks.marked(ledger(3)).await.unwrap().unwrap();
            assert_eq!((mark.replicas.len(), mark.since_ms), (2, None));
            assert!(!store.get(&marks.path(ledger(3))).await.unwrap().stat.version.is_initial());
        }
    }

    #[tokio::test]
    async fn marks_are_listed_by_pages_and_leave_nothing_behind() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let marks = UnderReplication::new(store.clone(), "/l");
            assert_eq!(marks.after(None, 9).await.unwrap(), [], "nothing was ever marked");
            let ids = [0, 7, 0xffff, 0x1_0000, 0x1_0002_abcd, i64::MAX].map(|id| LedgerId::new(id).unwrap());
            let lacks = [BookieId::new("b:1").unwrap()];
            for ledger in ids {
                marks.mark_since(ledger, &lacks, Some(12)).await.unwrap();
            }
            for page in 1..=ids.len() + 1 {
                let (mut found, mut after) = (Vec::new(), None);
                loop {
                    let more = marks.after(after, page).await.unwrap();
                    after = more.last().copied().or(after);
                    found.extend_from_slice(&more);
                    if more.len() < page {
                        break;
                    }
                }
                assert_eq!(found, ids, "in pages of {page}");
            }
            let (mut listing, mut found) = (marks.list(), Vec::new());
            while let Some(page) = listing.next().await.unwrap() {
                assert!(!page.is_empty());
                found.extend(page);
            }
            assert_eq!(found, ids);
            assert_eq!(marks.list_after(Some(ids[5])).next().await.unwrap(), None, "no id is higher");
            let old = marks.marked(ids[1]).await.unwrap().unwrap();
            assert_eq!((old.replicas.as_slice(), old.since_ms), (["b:1".to_owned()].as_slice(), Some(12)));
            marks.mark(ids[1], &lacks).await.unwrap();
            assert!(!marks.unmark(ids[1], old.version).await.unwrap(), "it was marked again");
            for ledger in ids {
                let mark = marks.marked(ledger).await.unwrap().unwrap();
                assert!(marks.unmark(ledger, mark.version).await.unwrap());
                assert_eq!(marks.marked(ledger).await.unwrap(), None);
            }
            assert!(marks.unmark(ids[1], old.version).await.unwrap(), "one that is gone is gone");
            let left = async || store.children("/l/underreplication/ledgers").await.unwrap();
            assert_eq!(left().await, ["0000", "7fff"], "what other marks may share");
            marks.prune().await.unwrap();
            match kind {
                Kind::OfZooKeeper => assert_eq!(left().await, Vec::<String>::new()),
                Kind::OfOxia => assert_eq!(left().await, ["0000", "7fff"], "invariant 4"),
            }
            assert_eq!(marks.after(None, 9).await.unwrap(), []);
        }
    }

    /// Another client marks a ledger between the look of a deletion and the deletion itself: of the mark, or of any node above it.
    #[tokio::test]
    async fn a_mark_that_is_made_while_a_node_above_it_is_deleted_is_listed() {
        let (ledger, bookie) = (LedgerId::new(0x1_0002_abcd).unwrap(), BookieId::new("b:1").unwrap());
        for remover in ["unmark", "clear", "prune"] {
            for write in 0..2 {
                let cluster = MemoryCluster::of(Kind::OfOxia);
                let (ours, theirs) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
                ours.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
                let (marks, other) =
                    (UnderReplication::new(ours.clone(), "/l"), UnderReplication::new(theirs.clone(), "/l"));
                marks.mark(ledger, std::slice::from_ref(&bookie)).await.unwrap();
                let version = marks.marked(ledger).await.unwrap().unwrap().version;
                if remover != "unmark" {
                    theirs.delete(&other.path(ledger), None).await.unwrap();
                }
                let made = Arc::new(std::sync::atomic::AtomicBool::new(false));
                ours.interleave_write(write, {
                    let (other, bookie, made) = (other.clone(), bookie.clone(), made.clone());
                    move || {
                        at_once(other.mark(ledger, &[bookie])).unwrap();
                        made.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                });
                match remover {
                    "unmark" => drop(marks.unmark(ledger, version).await.unwrap()),
                    "clear" => marks.clear(ledger).await.unwrap(),
                    _ => marks.prune().await.unwrap(),
                }
                if made.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(other.marked(ledger).await.unwrap().is_some());
                    assert_eq!(other.after(None, 9).await.unwrap(), [ledger], "{remover}, write {write}");
                } else {
                    assert!(remover != "unmark" && write > 0, "{remover} writes more than {write} times");
                }
            }
        }
    }

    /// The answer to the first removal is lost, so that its look for a newer mark did not happen.
    #[tokio::test]
    async fn a_removal_that_is_repeated_leaves_the_mark_that_was_made_within_it_listed() {
        let (ledger, bookie) = (LedgerId::new(0x1_0002_abcd).unwrap(), BookieId::new("b:1").unwrap());
        let cluster = MemoryCluster::of(Kind::OfOxia);
        let (ours, theirs) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
        ours.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let (marks, other) = (UnderReplication::new(ours.clone(), "/l"), UnderReplication::new(theirs, "/l"));
        marks.mark(ledger, std::slice::from_ref(&bookie)).await.unwrap();
        let version = marks.marked(ledger).await.unwrap().unwrap().version;
        ours.interleave_write(1, move || at_once(other.mark(ledger, &[bookie])).unwrap());
        ours.inject_at(1, crate::memory::Fault::LossAfterApply);
        assert_eq!(marks.unmark(ledger, version).await, Err(StoreError::ConnectionLoss));
        assert_eq!(marks.unmark(ledger, version).await, Ok(false), "it was marked again");
        assert_eq!(marks.after(None, 9).await.unwrap(), [ledger]);
        let version = marks.marked(ledger).await.unwrap().unwrap().version;
        assert_eq!(marks.unmark(ledger, version).await, Ok(true));
        assert_eq!(marks.after(None, 9).await.unwrap(), []);
    }

    /// As Pulsar's driver leaves it that is stopped after it made the lower ones.
    #[tokio::test]
    async fn upper_nodes_that_are_missing_are_made_with_a_mark() {
        let (ledger, bookie) = (LedgerId::new(0x1_0002_abcd).unwrap(), BookieId::new("b:1").unwrap());
        for count in 1..=4 {
            let cluster = MemoryCluster::of(Kind::OfOxia);
            let (ours, theirs) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
            ours.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let marks = UnderReplication::new(ours.clone(), "/l");
            create_parents(&*theirs, &marks.path(ledger), "/l").await.unwrap();
            let gone = marks.parent(&parts(ledger)[..count]);
            let lower: Vec<String> =
                (count + 1..=4).map(|count| marks.parent(&parts(ledger)[..count])).collect();
            // No node is made without its parent here: so the upper one is removed within the creation of the mark, and the lower ones are
            // there again before that deletion is applied.
            let third = cluster.open();
            theirs.interleave_write(lower.len(), {
                let lower = lower.clone();
                move || {
                    for path in lower {
                        at_once(third.create(&path, Bytes::new(), CreateMode::Persistent)).unwrap();
                    }
                }
            });
            ours.interleave_write(0, move || {
                for path in lower.iter().rev().chain([&gone]) {
                    at_once(theirs.delete(path, None)).unwrap();
                }
            });
            marks.mark(ledger, std::slice::from_ref(&bookie)).await.unwrap();
            assert_eq!(marks.after(None, 9).await.unwrap(), [ledger], "{count}");
        }
    }

    /// The memory driver answers at once.
    fn at_once<T>(request: impl Future<Output = T>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(request).poll(&mut context) {
            std::task::Poll::Ready(answer) => answer,
            std::task::Poll::Pending => panic!("the memory driver answers at once"),
        }
    }

    /// A store in which another client prunes each node above marks once, as soon as it is made.
    struct Pruned {
        beneath: Arc<dyn MetadataStore>,
        by: Arc<dyn MetadataStore>,
        pruned: parking_lot::Mutex<std::collections::BTreeSet<String>>,
    }

    impl StoreLayer for Pruned {
        fn beneath(&self) -> &dyn MetadataStore {
            &*self.beneath
        }
        fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
            let path = path.to_owned();
            Box::pin(async move {
                let created = self.beneath.create(&path, data, mode).await;
                if path.contains("/ledgers/") && self.pruned.lock().insert(path.clone()) {
                    UnderReplication::new(self.by.clone(), "/l").prune().await?;
                }
                created
            })
        }
    }

    #[tokio::test]
    async fn a_ledger_is_marked_although_workers_prune_meanwhile() {
        for kind in Kind::ALL {
            let cluster = MemoryCluster::of(kind);
            let (beneath, by) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
            beneath.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let store = Arc::new(Pruned { beneath, by, pruned: Default::default() });
            let marks = UnderReplication::new(store.clone(), "/l");
            let (ledger, bookie) = (LedgerId::new(0x1_0002_abcd).unwrap(), BookieId::new("b:1").unwrap());
            marks.mark(ledger, &[bookie]).await.unwrap();
            assert_eq!(marks.replicas(ledger).await.unwrap().unwrap(), ["b:1"]);
            assert!(store.pruned.lock().len() > 3, "each of them was pruned");
            assert_eq!(marks.after(None, 9).await.unwrap(), [ledger], "invariant 4");
        }
    }

    /// Lists everything, and what is there to wait for then.
    async fn watch(marks: &UnderReplication) -> Option<MarksWatch> {
        let mut listing = marks.list_and_watch();
        while listing.next().await.unwrap().is_some() {}
        listing.into_watch()
    }

    #[tokio::test]
    async fn a_watch_sees_the_next_mark_and_pruning_leaves_what_is_marked() {
        for kind in Kind::ALL {
            let store = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let marks = UnderReplication::new(store.clone(), "/l");
            let lacks = [BookieId::new("b:1").unwrap()];
            let unmark = async |ledger: LedgerId| {
                let version = marks.marked(ledger).await.unwrap().unwrap().version;
                assert!(marks.unmark(ledger, version).await.unwrap());
            };
            // In the second round nodes above the first two are left, in the others one of each level is new.
            let ids = [3, 0x2_0000, 7, 0x3_0000, 0x1_0000_0000, 1 << 48].map(|id| LedgerId::new(id).unwrap());
            for round in 0..2 {
                for (at, ledger) in ids.into_iter().enumerate() {
                    let mut watched = watch(&marks).await.expect("nothing is marked");
                    assert!(!watched.has_fired(), "{kind:?}, round {round}");
                    marks.mark(ledger, &lacks).await.unwrap();
                    let told =
                        tokio::time::timeout(std::time::Duration::from_secs(5), watched.changed()).await;
                    assert!(told.is_ok(), "{kind:?}, round {round}: {ledger} is marked");
                    assert!(watch(&marks).await.is_none(), "something is marked");
                    let other = ids[(at + 1) % ids.len()];
                    marks.mark(other, &lacks).await.unwrap();
                    unmark(ledger).await;
                    marks.prune().await.unwrap();
                    assert_eq!(marks.after(None, 9).await.unwrap(), [other], "round {round}");
                    unmark(other).await;
                    if kind == Kind::OfZooKeeper {
                        assert!(watch(&marks).await.is_none(), "nodes are left that no watch is armed for");
                    }
                    marks.prune().await.unwrap();
                }
            }
        }
    }

    #[tokio::test]
    async fn a_mark_that_is_made_during_a_listing_fires_its_watch_or_is_listed() {
        let bookie = BookieId::new("b:1").unwrap();
        for kind in Kind::ALL {
            for was_marked in [false, true] {
                for read in 0.. {
                    let cluster = MemoryCluster::of(kind);
                    let (ours, theirs) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
                    ours.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
                    let (marks, other) =
                        (UnderReplication::new(ours.clone(), "/l"), UnderReplication::new(theirs, "/l"));
                    let lacks = std::slice::from_ref(&bookie);
                    if was_marked {
                        let ledger = LedgerId::new(3).unwrap();
                        marks.mark(ledger, lacks).await.unwrap();
                        let version = marks.marked(ledger).await.unwrap().unwrap().version;
                        assert!(marks.unmark(ledger, version).await.unwrap());
                    }
                    let made = Arc::new(std::sync::atomic::AtomicBool::new(false));
                    ours.interleave(read, {
                        let (lacks, made) = ([bookie.clone()], made.clone());
                        move || {
                            at_once(other.mark(LedgerId::new(9).unwrap(), &lacks)).unwrap();
                            made.store(true, std::sync::atomic::Ordering::Relaxed);
                        }
                    });
                    let mut listing = marks.list_and_watch();
                    let is_listed = listing.next().await.unwrap().is_some();
                    let is_told = listing.into_watch().is_none_or(|mut watch| watch.has_fired());
                    if !made.load(std::sync::atomic::Ordering::Relaxed) {
                        assert!(read > 0 && !is_listed);
                        break;
                    }
                    assert!(is_listed || is_told, "{kind:?}, before read {read}");
                }
            }
        }
    }
}
