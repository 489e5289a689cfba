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
//!
//! The danger ([`Danger`]) stands in a comment, which Java's parser passes over and which goes when Java writes the mark again:
//! ```text
//! replica: "b1:3181"
//! ctime: 1700000000000
//! # danger 1: copies 1 bookies 00f3a2b1c4d5e6f7 members b2:3181 b3:3181
//! ```
//!
//! # Limits     a listing: the children of four nodes at a time, no more than 65,536 each

use std::sync::Arc;

use bindery_types::{BookieId, LedgerId};
use bytes::Bytes;

use super::paths::create_parents;
use crate::codec::text::{self, Printer, TextError};
use crate::store::{CreateMode, MetadataStore, Op, StoreError, Version, Watch};

/// How often a mark may change under the one that adds to it.
const CONFLICTS_MAX: u32 = 16;

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
                None => self.store.create(&path, first, CreateMode::Persistent).await.map(drop),
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
        let node = |path: String, data| Op::Create { path, data, mode: CreateMode::Persistent };
        let above = node(self.parent(&parts(ledger)), Bytes::new());
        self.store.multi(vec![above, node(path.to_owned(), data)]).await
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
            Err(StoreError::BadVersion { .. }) => return Ok(false),
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

    /// Removes the nodes above marks that have gone, as Java's workers do, so that [`watch`](Self::watch) sees the next mark. To be
    /// called when no mark is listed; it ends at the first node that is in use.
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

    /// Deletes a node above marks; false when something is below it.
    async fn delete_empty(&self, parts: &[u16]) -> Result<bool, StoreError> {
        match self.store.delete(&self.parent(parts), None).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => Ok(true),
            Err(StoreError::NotEmpty { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Whether any ledger may be marked, with a watch. Where none is, and [`prune`](Self::prune) left nothing, it fires with the first
    /// mark; where some are, it need not fire with another one.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch(&self) -> Result<(bool, Watch), StoreError> {
        let root = self.parent(&[]);
        match self.store.children_and_watch(&root).await {
            Ok((children, watch)) => Ok((!children.is_empty(), watch)),
            // Nothing was ever marked.
            Err(StoreError::NoNode { .. }) => Ok((false, self.store.exists_and_watch(&root).await?.1)),
            Err(other) => Err(other),
        }
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
        MarkListing { marks: self.clone(), lowest: parts(lowest.unwrap_or_else(zero)), pending }
    }

    /// The parts below a node that are not below `lowest`, ascending. Of a node that is gone there are none.
    async fn children(&self, parent: &[u16], lowest: u16) -> Result<Vec<u16>, StoreError> {
        let names = match self.store.children(&self.parent(parent)).await {
            Ok(names) => names,
            Err(StoreError::NoNode { .. }) => return Ok(Vec::new()),
            Err(other) => return Err(other),
        };
        let mut parts: Vec<u16> =
            names.iter().filter_map(|name| u16::from_str_radix(name, 16).ok()).collect();
        parts.retain(|part| *part >= lowest);
        parts.sort_unstable();
        Ok(parts)
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
}

impl MarkListing {
    /// The next page, ids ascending and above those of the pages before: never empty, 65,536 at most. `None` at the end. The marks may be
    /// gone by now, see [`UnderReplication::after`].
    ///
    /// # Errors
    /// Of the store; the same page can be asked for again.
    pub async fn next(&mut self) -> Result<Option<Vec<LedgerId>>, StoreError> {
        while let Some(leading) = self.pending.last() {
            // Below nodes of higher ids nothing is left out.
            let is_lowest = *leading == self.lowest[..leading.len()];
            let from = if is_lowest { self.lowest[leading.len()] } else { 0 };
            let below = self.marks.children(leading, from).await?;
            let leading = self.pending.pop().expect("it was just looked at");
            if let [first, second, third] = leading[..] {
                let of_last = |last| of_parts([first, second, third, last]);
                let page: Vec<LedgerId> = below.into_iter().filter_map(of_last).collect();
                if !page.is_empty() {
                    return Ok(Some(page));
                }
                continue;
            }
            self.pending.extend(below.into_iter().rev().map(|part| [&leading[..], &[part]].concat()));
        }
        Ok(None)
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
    use crate::memory::MemoryCluster;
    use crate::store::StoreFuture;

    #[tokio::test]
    async fn a_mark_has_javas_path_and_keeps_what_others_marked() {
        let store = Arc::new(MemoryCluster::new().open());
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
        assert!(node.stat.version > version);
        marks.mark(ledger, &[id("b:2")]).await.unwrap();
        assert!(store.get(path).await.unwrap().stat.version > node.stat.version, "invariant 2");
        store.set(path, "replica: {".into(), None).await.unwrap();
        assert!(matches!(marks.mark(ledger, &[id("b:2")]).await, Err(StoreError::Protocol(_))));
        // Never written over: somebody else knows what it says.
        assert_eq!(store.get(path).await.unwrap().data, "replica: {".as_bytes());
    }

    #[tokio::test]
    async fn a_mark_says_the_danger_in_a_comment_that_its_next_writer_replaces() {
        let store = Arc::new(MemoryCluster::new().open());
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

    #[tokio::test]
    async fn a_mark_is_made_whatever_is_there_of_the_nodes_above_it() {
        let store = Arc::new(MemoryCluster::new().open());
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
        assert_eq!((mark.since_ms, mark.version), (Some(7), Version(0)));
        // Another client marks it in the last moment, and its replicas stay.
        marks.mark(ledger(3), &[BookieId::new("b:9").unwrap()]).await.unwrap();
        marks.mark_since(ledger(3), &lacks, Some(8)).await.unwrap();
        let mark = marks.marked(ledger(3)).await.unwrap().unwrap();
        assert_eq!((mark.replicas.len(), mark.since_ms, mark.version), (2, None, Version(1)));
    }

    #[tokio::test]
    async fn marks_are_listed_by_pages_and_leave_nothing_behind() {
        let store = Arc::new(MemoryCluster::new().open());
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
        assert_eq!(left().await, Vec::<String>::new());
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
        fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, String> {
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
        let cluster = MemoryCluster::new();
        let (beneath, by) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
        beneath.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let store = Arc::new(Pruned { beneath, by, pruned: Default::default() });
        let marks = UnderReplication::new(store.clone(), "/l");
        let (ledger, bookie) = (LedgerId::new(0x1_0002_abcd).unwrap(), BookieId::new("b:1").unwrap());
        marks.mark(ledger, &[bookie]).await.unwrap();
        assert_eq!(marks.replicas(ledger).await.unwrap().unwrap(), ["b:1"]);
        assert!(store.pruned.lock().len() > 3, "each of them was pruned");
    }

    #[tokio::test]
    async fn a_watch_sees_the_first_mark_and_pruning_leaves_what_is_marked() {
        let store = Arc::new(MemoryCluster::new().open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let marks = UnderReplication::new(store.clone(), "/l");
        let lacks = [BookieId::new("b:1").unwrap()];
        let (one, two) = (LedgerId::new(3).unwrap(), LedgerId::new(0x2_0000).unwrap());
        for round in 0..3 {
            let (is_marked, mut watch) = marks.watch().await.unwrap();
            assert!(!is_marked && !watch.has_fired(), "round {round}");
            marks.mark(one, &lacks).await.unwrap();
            if round == 0 {
                // Its root was made. From then on marks are seen below that.
                assert!(watch.has_fired());
                (_, watch) = marks.watch().await.unwrap();
            }
            marks.mark(two, &lacks).await.unwrap();
            assert!(round == 0 || watch.has_fired(), "round {round}");
            assert!(marks.watch().await.unwrap().0);
            let version = marks.marked(one).await.unwrap().unwrap().version;
            assert!(marks.unmark(one, version).await.unwrap());
            marks.prune().await.unwrap();
            assert_eq!(marks.after(None, 9).await.unwrap(), [two], "round {round}");
            let version = marks.marked(two).await.unwrap().unwrap().version;
            assert!(marks.unmark(two, version).await.unwrap());
            marks.prune().await.unwrap();
        }
    }
}
