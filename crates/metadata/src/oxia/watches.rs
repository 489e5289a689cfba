//! The armed watches, and what the notifications of the shards mean for them. Synchronous: whoever calls has the clock and the network.
//!
//! # Invariants
//! 1. A watch is armed only while the notifications of every shard come in.
//! 2. Between arming and the end of the read nothing fires. What came in meanwhile is weighed then: it fires the watch unless the read saw it.
//! 3. An event that the read saw may still come in later. That of the very version that was read is passed over; another one fires the watch,
//!    which costs a read and nothing else.
//!
//! # Limits     events kept for a listing under way: [`PENDING_MAX`]; then it fires at its end

use std::collections::{BTreeMap, BTreeSet};

use bindery_oxia::INTERNAL_KEY_PREFIX;
use bindery_oxia::proto::{Notification, NotificationType};
use tokio::sync::oneshot;

use crate::store::{Watch, WatchEvent, parent_of};

/// Children that come and go while a node is listed.
const PENDING_MAX: usize = 64;
/// Dead watches are swept when the table has doubled since the last sweep, at the earliest at this size.
const SWEEP_MIN: usize = 256;

/// A watch whose node is being read.
pub(super) struct Armed {
    path: String,
    is_of_children: bool,
    id: u64,
}

/// What was read.
pub(super) enum Read<'a> {
    /// A node of this version, or none.
    Version(Option<i64>),
    /// Children, sorted.
    Names(&'a [String]),
}

/// What came in while the node was read.
#[derive(Default)]
struct Pending {
    /// The last event, with its version, of the node.
    node: Option<(WatchEvent, Option<i64>)>,
    /// Children, and whether they were created.
    children: Vec<(String, bool)>,
    is_overfull: bool,
}

enum Stage {
    Reading(Pending),
    /// With the version that was read.
    Settled(Option<i64>),
}

struct Entry {
    id: u64,
    stage: Stage,
    sender: oneshot::Sender<WatchEvent>,
}

/// All watches of a store.
#[derive(Default)]
pub(super) struct Watches {
    data: BTreeMap<String, Vec<Entry>>,
    children: BTreeMap<String, Vec<Entry>>,
    last_id: u64,
    count: usize,
    sweep_at: usize,
    /// Shards whose notifications are wanted, and those whose come in.
    wanted: BTreeSet<i64>,
    live: BTreeSet<i64>,
}

impl Watches {
    /// From now on the notifications of these shards are wanted; none come in yet.
    pub(super) fn begin(&mut self, shards: BTreeSet<i64>) {
        self.lose();
        self.wanted = shards;
        self.live.clear();
    }

    /// The notifications of a shard come in. Whether those of all do.
    pub(super) fn on_live(&mut self, shard: i64) -> bool {
        if self.wanted.contains(&shard) {
            self.live.insert(shard);
        }
        self.are_live()
    }

    /// Those of a shard broke off.
    pub(super) fn on_broken(&mut self, shard: i64) {
        if self.live.remove(&shard) {
            self.lose();
        }
    }

    /// Whether the notifications of all shards come in.
    pub(super) fn are_live(&self) -> bool {
        !self.wanted.is_empty() && self.live == self.wanted
    }

    /// Fires all of them.
    fn lose(&mut self) {
        // A dropped sender says that it is lost.
        (self.data, self.children, self.count) = (BTreeMap::new(), BTreeMap::new(), 0);
    }

    /// Arms a watch of a node's value, creation and deletion; `None` against invariant 1.
    pub(super) fn arm_data(&mut self, path: &str) -> Option<(Armed, Watch)> {
        self.arm(path, false)
    }

    /// Arms a watch of a node's children, and of its deletion; `None` against invariant 1.
    pub(super) fn arm_children(&mut self, path: &str) -> Option<(Armed, Watch)> {
        self.arm(path, true)
    }

    fn arm(&mut self, path: &str, is_of_children: bool) -> Option<(Armed, Watch)> {
        if !self.are_live() {
            return None;
        }
        if self.count >= self.sweep_at.max(SWEEP_MIN) {
            self.sweep();
        }
        let (sender, watch) = Watch::new();
        self.last_id += 1;
        self.count += 1;
        let entry = Entry { id: self.last_id, stage: Stage::Reading(Pending::default()), sender };
        self.table(is_of_children).entry(path.to_owned()).or_default().push(entry);
        Some((Armed { path: path.to_owned(), is_of_children, id: self.last_id }, watch))
    }

    fn table(&mut self, is_of_children: bool) -> &mut BTreeMap<String, Vec<Entry>> {
        if is_of_children { &mut self.children } else { &mut self.data }
    }

    /// Forgets watches that were dropped.
    fn sweep(&mut self) {
        self.count = 0;
        for table in [&mut self.data, &mut self.children] {
            table.retain(|_, entries| {
                entries.retain(|entry| !entry.sender.is_closed());
                self.count += entries.len();
                !entries.is_empty()
            });
        }
        self.sweep_at = self.count * 2;
    }

    /// The read has ended, and saw this (invariant 2).
    pub(super) fn settle(&mut self, armed: Armed, read: Read<'_>) {
        let Armed { path, is_of_children, id } = armed;
        // Not there: it was lost meanwhile.
        let Some(entries) = self.table(is_of_children).get_mut(&path) else { return };
        let Some(at) = entries.iter().position(|entry| entry.id == id) else { return };
        let Stage::Reading(pending) = &entries[at].stage else { return };
        match missed(pending, &read) {
            Some(event) => {
                let entry = entries.swap_remove(at);
                self.count -= 1;
                let _ = entry.sender.send(event);
            }
            None => {
                entries[at].stage = Stage::Settled(match read {
                    Read::Version(version) => version,
                    Read::Names(_) => None,
                });
            }
        }
    }

    /// A change of a shard came in.
    pub(super) fn notify(&mut self, key: &str, notification: &Notification) {
        if key.starts_with(INTERNAL_KEY_PREFIX) {
            return;
        }
        let version = notification.version_id;
        let event = match NotificationType::try_from(notification.r#type) {
            Ok(NotificationType::KeyCreated) => WatchEvent::Created,
            Ok(NotificationType::KeyModified) => WatchEvent::DataChanged,
            Ok(NotificationType::KeyDeleted) => WatchEvent::Deleted,
            // Pulsar's driver and ours delete no ranges, and a kind of a later version is not known. Anything may have changed.
            Ok(NotificationType::KeyRangeDeleted) | Err(_) => return self.lose(),
        };
        fire(&mut self.data, key, &mut self.count, |stage| match stage {
            Stage::Reading(pending) => {
                pending.node = Some((event, version));
                None
            }
            // Invariant 3.
            Stage::Settled(read) if read.is_some() && *read == version => None,
            Stage::Settled(_) => Some(event),
        });
        if event == WatchEvent::DataChanged {
            return;
        }
        let (parent, is_created) = (parent_of(key), event == WatchEvent::Created);
        let name = key.rsplit('/').next().unwrap_or_default();
        fire(&mut self.children, parent, &mut self.count, |stage| match stage {
            Stage::Reading(pending) if pending.children.len() < PENDING_MAX => {
                pending.children.push((name.to_owned(), is_created));
                None
            }
            Stage::Reading(pending) => {
                pending.is_overfull = true;
                None
            }
            Stage::Settled(_) => Some(WatchEvent::ChildrenChanged),
        });
        if event == WatchEvent::Deleted {
            fire(&mut self.children, key, &mut self.count, |stage| match stage {
                Stage::Reading(pending) => {
                    pending.node = Some((event, version));
                    None
                }
                Stage::Settled(_) => Some(event),
            });
        }
    }
}

/// Fires the watches of a path for which `judge` has an event.
fn fire(
    table: &mut BTreeMap<String, Vec<Entry>>,
    path: &str,
    count: &mut usize,
    judge: impl Fn(&mut Stage) -> Option<WatchEvent>,
) {
    let Some(entries) = table.get_mut(path) else { return };
    for mut entry in std::mem::take(entries) {
        match judge(&mut entry.stage) {
            Some(event) => {
                *count -= 1;
                let _ = entry.sender.send(event);
            }
            None => entries.push(entry),
        }
    }
    if entries.is_empty() {
        table.remove(path);
    }
}

/// The event that came in during a read and that the read did not see.
fn missed(pending: &Pending, read: &Read<'_>) -> Option<WatchEvent> {
    match read {
        Read::Version(read) => match pending.node? {
            (WatchEvent::Deleted, _) if read.is_none() => None,
            // All before the last one are of older values.
            (_, version) if read.is_some() && *read == version => None,
            (event, _) => Some(event),
        },
        Read::Names(names) => {
            // The node was listed, and may have been deleted before it was created again, or afterwards.
            if let Some((event, _)) = pending.node {
                return Some(event);
            }
            let is_seen =
                |(name, is_created): &(String, bool)| names.binary_search(name).is_ok() == *is_created;
            let all_are_seen = !pending.is_overfull && pending.children.iter().all(is_seen);
            (!all_are_seen).then_some(WatchEvent::ChildrenChanged)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Watches {
        let mut watches = Watches::default();
        watches.begin([1, 2].into());
        assert!(watches.arm_data("/a").is_none() && !watches.on_live(1) && !watches.on_live(9));
        assert!(watches.arm_data("/a").is_none(), "invariant 1");
        assert!(watches.on_live(2));
        watches
    }

    fn notify(watches: &mut Watches, key: &str, kind: NotificationType, version: Option<i64>) {
        let notification =
            Notification { r#type: kind.into(), version_id: version, ..Notification::default() };
        watches.notify(key, &notification);
    }

    const CREATED: NotificationType = NotificationType::KeyCreated;
    const MODIFIED: NotificationType = NotificationType::KeyModified;
    const DELETED: NotificationType = NotificationType::KeyDeleted;

    fn settled(watches: &mut Watches, path: &str, version: Option<i64>) -> Watch {
        let (armed, watch) = watches.arm_data(path).unwrap();
        watches.settle(armed, Read::Version(version));
        watch
    }

    #[test]
    fn a_watch_fires_for_what_the_read_did_not_see() {
        let mut watches = live();
        let mut watch = settled(&mut watches, "/a", Some(7));
        notify(&mut watches, "/a", CREATED, Some(7));
        notify(&mut watches, "/b", MODIFIED, Some(8));
        notify(&mut watches, "__oxia/session/1", CREATED, Some(9));
        assert!(!watch.has_fired(), "its own version, and other nodes");
        notify(&mut watches, "/a", MODIFIED, Some(3));
        assert!(watch.has_fired(), "numbers may be set back");

        // What comes in during the read, and whether it is news for the version that is read.
        for (kind, version, read, is_news) in [
            (CREATED, Some(7), Some(7), false),
            (MODIFIED, Some(7), Some(7), false),
            (MODIFIED, Some(8), Some(7), true),
            (DELETED, None, None, false),
            (DELETED, None, Some(7), true),
            (CREATED, Some(7), None, true),
        ] {
            let (armed, mut watch) = watches.arm_data("/a").unwrap();
            notify(&mut watches, "/a", kind, version);
            assert!(!watch.has_fired(), "invariant 2");
            watches.settle(armed, Read::Version(read));
            assert_eq!(watch.has_fired(), is_news, "{kind:?} {version:?}, read {read:?}");
        }
        // The last event decides.
        let (armed, mut watch) = watches.arm_data("/a").unwrap();
        notify(&mut watches, "/a", DELETED, None);
        notify(&mut watches, "/a", CREATED, Some(20));
        watches.settle(armed, Read::Version(Some(20)));
        assert!(!watch.has_fired());
    }

    #[tokio::test]
    async fn the_event_is_named() {
        let mut watches = live();
        let watch = settled(&mut watches, "/a", None);
        let (armed, listed) = watches.arm_children("/").unwrap();
        watches.settle(armed, Read::Names(&[]));
        notify(&mut watches, "/a", CREATED, Some(1));
        assert_eq!(
            (watch.changed().await, listed.changed().await),
            (WatchEvent::Created, WatchEvent::ChildrenChanged)
        );
        let watch = settled(&mut watches, "/a", Some(1));
        notify(&mut watches, "/a", MODIFIED, Some(2));
        assert_eq!(watch.changed().await, WatchEvent::DataChanged);
        let watch = settled(&mut watches, "/a", Some(2));
        let (armed, listed) = watches.arm_children("/a").unwrap();
        watches.settle(armed, Read::Names(&[]));
        notify(&mut watches, "/a", DELETED, None);
        assert_eq!(
            (watch.changed().await, listed.changed().await),
            (WatchEvent::Deleted, WatchEvent::Deleted)
        );
        let watch = settled(&mut watches, "/a", None);
        watches.on_broken(2);
        assert_eq!(watch.changed().await, WatchEvent::Lost);
        assert!(watches.arm_data("/a").is_none(), "invariant 1");
        assert!(watches.on_live(2) && watches.arm_data("/a").is_some());
        let watch = settled(&mut watches, "/a", None);
        notify(&mut watches, "/x", NotificationType::KeyRangeDeleted, None);
        assert_eq!(watch.changed().await, WatchEvent::Lost);
        assert!(!settled(&mut watches, "/a", None).has_fired());
    }

    #[test]
    fn children_that_were_listed_are_no_news() {
        let mut watches = live();
        let names = ["a", "b"].map(String::from);
        let mut listed = |events: &[(&str, NotificationType)]| {
            let (armed, mut watch) = watches.arm_children("/p").unwrap();
            for (key, kind) in events {
                notify(&mut watches, key, *kind, Some(1));
            }
            watches.settle(armed, Read::Names(&names));
            watch.has_fired()
        };
        assert!(!listed(&[]));
        assert!(!listed(&[("/p/a", CREATED), ("/p/z", DELETED), ("/p/a", MODIFIED), ("/p/a/x", CREATED)]));
        assert!(listed(&[("/p/c", CREATED)]));
        assert!(listed(&[("/p/a", DELETED)]));
        assert!(listed(&[("/p", DELETED)]));
        let many: Vec<_> = (0..=PENDING_MAX).map(|_| ("/p/a", CREATED)).collect();
        assert!(!listed(&many[1..]) && listed(&many), "more than is kept");
    }

    #[test]
    fn watches_that_were_dropped_are_forgotten() {
        let mut watches = live();
        let kept = settled(&mut watches, "/kept", None);
        for number in 0..10 * SWEEP_MIN {
            drop(settled(&mut watches, &format!("/{number}"), None));
        }
        assert!(watches.count <= 2 * SWEEP_MIN && watches.data.len() == watches.count, "{}", watches.count);
        assert!(watches.data.contains_key("/kept"));
        drop(kept);
    }
}
