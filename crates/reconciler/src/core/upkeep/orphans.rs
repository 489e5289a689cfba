//! Objects without a row: which of them are of nobody, and whether there are so many that the catalogue is not believed.
//!
//! Age is no proof. The catalogue may be the one that is wrong: an older copy that was put back, or one that lost records, has no row for
//! objects that bookies have let their copies go for.
//!
//! # Data flow
//! ```text
//! scan: no row, older than the delay ─► footer ─► next pass: its ledgers are part of the proof of absence (T17)
//!                                                 ─► examined as garbage is ([`super::examine`]) ─► deleted
//! ```
//!
//! # Invariants
//! 1. An object without a row is deleted only when for each extent in its own footer either the ledger was proved to be deleted in
//!    this pass, or the catalogue has the range in other objects that are in the bucket and have the same entries
//!    ([`super::examine`], invariant 1).
//! 2. One whose footer cannot be read is kept, and is an alarm.
//! 3. More of them than the limit, in a page of the bucket or in a sweep, is a doubt about the catalogue ([`super::doubts`]): nothing
//!    is deleted until a whole sweep found fewer, or the doubt has held for so long that an operator could have put things right. From
//!    then on each of them is deleted that is proved to be needed by nobody: invariant 1 holds with any catalogue, and a large set
//!    of objects without a row may be as it should be.
//! 4. An orphan that got a row, or whose object is gone, is forgotten with the next look at its page.
//! 5. Those that are kept hold up no others: when there is no room, the next sweep goes on behind them.
//!
//! # Limits     objects whose footers are held: [`KNOWN_MAX`], with [`LEDGERS_MAX`] ledgers in all; unreadable ones: [`UNREADABLE_MAX`]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_engine::GarbageLimits;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::StoredObject;
use bindery_types::LedgerId;
use bindery_types::tier::ObjectRef;

use super::event::{Fault, SourceError};
use super::scan::ListedObject;
use crate::core::Alarm;

/// Objects that are examined before others have their turn.
const KNOWN_MAX: usize = 64;
/// Their ledgers, all together; a single object may have more.
const LEDGERS_MAX: usize = 100_000;
/// Unreadable objects that are remembered, and raise an alarm each.
const UNREADABLE_MAX: usize = 1000;

/// An object without a row, by its own footer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// The object.
    pub object: ObjectRef,
    /// Extents in it.
    pub extents: u32,
    /// Ledgers in it, ascending.
    pub ledgers: Vec<LedgerId>,
}

impl Orphan {
    /// The row that it is examined by: as if the catalogue had not referred to it for long.
    fn as_garbage(&self) -> StoredObject {
        StoredObject {
            object: self.object,
            crc: 0,
            extents: self.extents,
            bytes: 0,
            live_extents: 0,
            live_bytes: 0,
            committed_ms: 0,
            unreferenced_ms: Some(0),
            replaced: None,
        }
    }
}

/// What is known of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Orphans {
    known: BTreeMap<ObjectId, Orphan>,
    /// With the reason.
    unreadable: BTreeMap<ObjectId, String>,
    /// There was no room: others are taken first from this one on.
    next: Option<ObjectId>,
    /// Ledgers of theirs that were proved to be deleted in this pass.
    gone: BTreeSet<LedgerId>,
    /// Those of this sweep that are old enough, and objects that were listed in it.
    of_sweep: (u64, u64),
    /// A page of this sweep had too many, or the sweep itself has.
    has_too_many: bool,
    /// The catalogue is not believed.
    doubt: Option<TooMany>,
}

/// There are too many.
#[derive(Debug, Clone)]
struct TooMany {
    why: String,
    /// When that was noted.
    since: Option<Duration>,
    /// It was shown long enough, and stops nothing any more.
    is_over: bool,
}

impl Orphans {
    /// A pass begins.
    pub fn begin_pass(&mut self) {
        self.gone.clear();
    }

    /// Another catalogue is there.
    pub fn forget_all(&mut self) {
        let doubt = self.doubt.take().map(|doubt| TooMany { since: None, is_over: false, ..doubt });
        *self = Orphans { doubt, ..Orphans::default() };
    }

    /// Those of a page, old enough to go, and the number of all objects in it; `were_examined`: all that are known had their turn in this pass.
    /// Returns the ones whose footers are to be read.
    pub fn on_page(
        &mut self,
        (after, through): (Option<ObjectId>, Option<ObjectId>),
        found: &[ListedObject],
        listed: usize,
        limits: GarbageLimits,
        were_examined: bool,
    ) -> Vec<(ObjectId, u64)> {
        let is_gone = |id: &ObjectId| {
            let is_in_page = Some(*id) > after && through.is_none_or(|through| *id <= through);
            is_in_page && !found.iter().any(|found| found.object == *id)
        };
        self.known.retain(|id, _| !is_gone(id));
        self.unreadable.retain(|id, _| !is_gone(id));
        if after.is_none() {
            (self.of_sweep, self.has_too_many) = ((0, 0), false);
        }
        self.of_sweep = (self.of_sweep.0 + found.len() as u64, self.of_sweep.1 + listed as u64);
        for (orphans, of) in [(found.len() as u64, listed as u64), self.of_sweep] {
            if orphans > limits.always as u64 && orphans as f64 > limits.share_max * of as f64 {
                self.has_too_many = true;
                let why = format!(
                    "{orphans} of {of} objects in the bucket are not in the catalogue, which may be an older one, or have lost records"
                );
                match &mut self.doubt {
                    Some(doubt) => doubt.why = why,
                    None => self.doubt = Some(TooMany { why, since: None, is_over: false }),
                }
            }
        }
        if through.is_none() && !self.has_too_many {
            self.doubt = None;
        }
        if through.is_none() && were_examined {
            // Those that are known were examined in this pass, and are kept. Behind the last one it begins from the first again.
            self.next = self.known.keys().next_back().copied().filter(|_| self.known.len() >= KNOWN_MAX);
            if self.next.is_some() {
                self.known.clear();
            }
        }
        let is_new = |found: &&ListedObject| {
            let is_turn = self.next.is_none_or(|next| found.object > next);
            is_turn && !self.known.contains_key(&found.object) && !self.unreadable.contains_key(&found.object)
        };
        let room = KNOWN_MAX.saturating_sub(self.known.len());
        found.iter().filter(is_new).take(room).map(|found| (found.object, found.length_bytes)).collect()
    }

    /// Their footers.
    pub fn on_read(
        &mut self,
        read: Vec<(ObjectId, Result<Orphan, SourceError>)>,
        alarms: &mut Vec<Alarm>,
    ) -> Option<String> {
        let mut failed = None;
        for (object, outcome) in read {
            match outcome {
                Ok(orphan) => {
                    let held: usize = self.known.values().map(|orphan| orphan.ledgers.len()).sum();
                    if self.known.is_empty() || held + orphan.ledgers.len() <= LEDGERS_MAX {
                        self.known.insert(object, orphan);
                    }
                }
                Err(SourceError { fault: Fault::Gone, .. }) => {}
                Err(SourceError { why, fault: Fault::Passing }) => failed = Some(why),
                Err(SourceError { why, fault: Fault::Damage }) => {
                    if self.unreadable.len() < UNREADABLE_MAX {
                        self.unreadable.insert(object, why.clone());
                        alarms.push(Alarm::OrphanUnreadable { object, why });
                    }
                }
            }
        }
        failed
    }

    /// Its footer turned out to be unreadable later.
    pub fn damage(&mut self, object: ObjectId, why: String, alarms: &mut Vec<Alarm>) {
        if self.known.remove(&object).is_some() {
            let error = SourceError { why, fault: Fault::Damage };
            self.on_read(vec![(object, Err(error))], alarms);
        }
    }

    /// The ids of all their ledgers, to be proved together with those of the catalogue.
    pub fn ledgers(&self) -> BTreeSet<LedgerId> {
        self.known.values().flat_map(|orphan| &orphan.ledgers).copied().collect()
    }

    /// These ledgers were proved to be deleted.
    pub fn note_gone(&mut self, ledgers: &[LedgerId]) {
        let of_orphans = self.ledgers();
        self.gone.extend(ledgers.iter().filter(|ledger| of_orphans.contains(ledger)));
    }

    pub fn gone(&self) -> &BTreeSet<LedgerId> {
        &self.gone
    }

    /// Those that can be examined in this pass.
    pub fn to_examine(&self) -> Vec<StoredObject> {
        self.known.values().map(Orphan::as_garbage).collect()
    }

    /// It is not there any more.
    pub fn deleted(&mut self, object: ObjectId) -> bool {
        self.known.remove(&object).is_some()
    }

    /// Ends the doubt when it has held for so long.
    pub fn on_time(&mut self, now: Duration, hold: Duration) {
        if let Some(doubt) = &mut self.doubt {
            doubt.is_over |= now >= *doubt.since.get_or_insert(now) + hold;
        }
    }

    /// Why the catalogue is not believed (invariant 3).
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_ref().filter(|doubt| !doubt.is_over).map(|doubt| doubt.why.as_str())
    }

    /// How many are kept for want of a proof, and how many because they cannot be read.
    pub fn counts(&self) -> (u64, u64) {
        (self.known.len() as u64, self.unreadable.len() as u64)
    }

    /// One that cannot be read, and why.
    pub fn unreadable(&self) -> Option<(ObjectId, &str)> {
        self.unreadable.first_key_value().map(|(object, why)| (*object, why.as_str()))
    }

    /// Everything that decides what comes next.
    #[cfg(test)]
    pub fn essence(&self) -> impl std::fmt::Debug + '_ {
        (&self.known, &self.unreadable, &self.gone, self.has_too_many, &self.doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(n: u8) -> ListedObject {
        ListedObject { object: ObjectId::new(7, [n; 10]), modified_ms: 0, length_bytes: 10 }
    }

    fn orphan(n: u8, ledgers: &[i64]) -> (ObjectId, Result<Orphan, SourceError>) {
        let id = listed(n).object;
        let object = ObjectRef { id, length_bytes: 10, footer_offset: 1, footer_crc: 2, etag_crc: 0 };
        let ledgers = ledgers.iter().map(|id| LedgerId::new(*id).unwrap()).collect();
        (id, Ok(Orphan { object, extents: 1, ledgers }))
    }

    const LIMITS: GarbageLimits = GarbageLimits { share_max: 0.2, always: 2 };

    /// Invariant 3.
    #[test]
    fn too_many_are_a_doubt_until_a_whole_sweep_has_fewer() {
        let mut orphans = Orphans::default();
        let end = Some(listed(9).object);
        let many: Vec<_> = (1..=3).map(listed).collect();
        // All of an older catalogue's are at the end of the bucket: a page has them, the sweep hardly.
        orphans.on_page((None, end), &[], 1000, LIMITS, true);
        assert_eq!(orphans.doubt(), None);
        orphans.on_page((end, None), &many, 10, LIMITS, true);
        assert!(orphans.doubt().unwrap().starts_with("3 of 10 objects"), "{:?}", orphans.doubt());
        // The first page of the next sweep says nothing of the last one.
        orphans.on_page((None, end), &[], 1000, LIMITS, true);
        assert!(orphans.doubt().is_some());
        orphans.on_page((end, None), &many[..2], 10, LIMITS, true);
        assert_eq!(orphans.doubt(), None);
        // A few on each page.
        let page = |n: u8| (Some(listed(10 * n).object), Some(listed(10 * n + 9).object));
        orphans.on_page((None, page(0).1), &many[..2], 5, LIMITS, true);
        orphans.on_page(page(1), &[listed(11)], 5, LIMITS, true);
        assert!(orphans.doubt().unwrap().starts_with("3 of 10 objects"));
    }

    /// Invariant 3.
    #[test]
    fn too_many_stop_deletions_for_a_time() {
        let (mut orphans, hold) = (Orphans::default(), Duration::from_secs(100));
        let many: Vec<_> = (1..=3).map(listed).collect();
        let sweep = |orphans: &mut Orphans| drop(orphans.on_page((None, None), &many, 10, LIMITS, true));
        sweep(&mut orphans);
        for (at, is_doubtful) in [(7, true), (106, true), (107, false), (500, false)] {
            orphans.on_time(Duration::from_secs(at), hold);
            sweep(&mut orphans);
            assert_eq!(orphans.doubt().is_some(), is_doubtful, "at {at} s");
        }
        // Of another catalogue it is said anew.
        orphans.forget_all();
        orphans.on_time(Duration::from_secs(600), hold);
        assert!(orphans.doubt().is_some());
        orphans.on_page((None, None), &many[..2], 10, LIMITS, true);
        assert!(orphans.doubt().is_none());
        sweep(&mut orphans);
        orphans.on_time(Duration::from_secs(800), hold);
        assert!(orphans.doubt().is_some(), "nor does what was before count");
    }

    /// Invariants 2 and 4.
    #[test]
    fn footers_are_read_once_and_forgotten_with_their_objects() {
        let (mut orphans, mut alarms) = (Orphans::default(), Vec::new());
        let page = |orphans: &mut Orphans, found: &[u8]| {
            let found: Vec<_> = found.iter().map(|n| listed(*n)).collect();
            let read = orphans.on_page((None, None), &found, 100, LIMITS, true);
            read.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!(page(&mut orphans, &[1, 2]), [listed(1).object, listed(2).object]);
        let error = SourceError { why: "damaged".into(), fault: Fault::Damage };
        orphans.on_read(vec![orphan(1, &[4, 5]), (listed(2).object, Err(error))], &mut alarms);
        assert!(matches!(alarms[..], [Alarm::OrphanUnreadable { .. }]), "{alarms:?}");
        assert_eq!((page(&mut orphans, &[1, 2]), orphans.counts()), (Vec::new(), (1, 1)));
        orphans.note_gone(&[LedgerId::new(5).unwrap(), LedgerId::new(9).unwrap()]);
        assert_eq!(orphans.gone().len(), 1, "of its ledgers only");
        orphans.begin_pass();
        assert!(orphans.gone().is_empty(), "a proof holds for its pass");
        assert_eq!(orphans.to_examine().len(), 1);
        assert_eq!((page(&mut orphans, &[]), orphans.counts()), (Vec::new(), (0, 0)));
    }
}
