//! Confirmed entries that members lack, kept for a while so that a bookie that is back soon gets them from its writer.
//!
//! # Data flow
//! ```text
//! Lack -> room, and the bookie is not given up? -> kept -- tick: the first one is sent -- acknowledged --> the others
//!              | no                                  |                                          |
//!              +--> let go of <-- GRACE_TICKS over --+                                          +--> filled
//! ```
//!
//! # Invariants
//! 1. A copy that is let go of is counted once, and so is one that is filled.
//! 2. A bookie gets what it lacks in the order of the entries, so that a fill which ends early leaves one gap at the end.
//! 3. An entry is kept once, with its part of the budget, however many bookies lack it.
//! 4. From the first entry that is let go of, nothing more is kept for that member: behind it a fill would leave a gap.
//!
//! # Limits     bytes: the caller's, see [`Kept::keep`]; under way to a bookie: [`FILL_ENTRIES_MAX`]; time:
//! [`GRACE_TICKS`] without an answer

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_flow::Permit;
use bindery_types::{BookieId, EntryId};
use bytes::Bytes;

use super::in_flight::{Held, LetGo};
use crate::gaps::Lack;
use crate::transport::{AddTag, BookieError};
use bindery_wire::ErrorCode;

/// The time between ticks.
pub(crate) const FILL_INTERVAL: Duration = Duration::from_secs(1);

/// A bookie that answers nothing for so many ticks is given up. That is as long as a bookie needs to start again, and shorter
/// than the 30 s after which Java's AutoRecovery closes an open ledger with a gap.
pub(crate) const GRACE_TICKS: u32 = 15;

/// Entries under way to a bookie that is back.
const FILL_ENTRIES_MAX: usize = 16;

/// Tells answers to fills from others; the rest of the tag is the member's.
const FILL_BIT: u64 = 1 << 63;

/// An entry to be sent to a bookie that lacks it, and that need not be a member any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fill {
    pub bookie: BookieId,
    pub entry: EntryId,
    pub body: Bytes,
    pub tag: AddTag,
}

#[cfg_attr(test, derive(Clone, Debug))]
struct KeptEntry {
    body: Bytes,
    cost_bytes: u64,
    /// How many bookies lack it.
    wanting: usize,
}

#[cfg_attr(test, derive(Clone, Debug))]
struct Member {
    bookie: BookieId,
    lacks: BTreeSet<i64>,
    sent: BTreeSet<i64>,
    ticks_left: u32,
    /// It answered well since the last tick.
    answers: bool,
    /// Invariant 4.
    is_given_up: bool,
}

/// See the module; of one ledger.
#[cfg_attr(test, derive(Clone, Debug))]
#[derive(Default)]
pub(super) struct Kept {
    entries: BTreeMap<i64, KeptEntry>,
    bytes: u64,
    permit: Held,
    /// By the tag of the member.
    members: BTreeMap<u64, Member>,
    fills: Vec<Fill>,
    /// Bookies that something was let go of for, since it was asked last.
    lost: BTreeSet<BookieId>,
    let_go_count: u64,
    filled_count: u64,
    /// Waits to be dropped by the caller.
    let_go: LetGo,
}

/// The member that an answer to a fill is from.
pub(super) fn filled_member(tag: AddTag) -> Option<AddTag> {
    (tag.0 & FILL_BIT != 0).then_some(AddTag(tag.0 & !FILL_BIT))
}

impl Kept {
    /// Keeps an entry for a member that lacks it, with its part of `permit`; or lets go of it, if more than `bytes_max` would
    /// be kept then.
    pub fn keep(&mut self, lack: Lack, bytes_max: u64, permit: &mut Option<Permit>) {
        let Lack { tag, bookie, entry, body, cost_bytes } = lack;
        let entry = entry.get();
        let is_known = self.entries.contains_key(&entry);
        let has_room = is_known || self.bytes.saturating_add(cost_bytes) <= bytes_max;
        let member = self.members.entry(tag.0).or_insert_with(|| Member {
            bookie: bookie.clone(),
            lacks: BTreeSet::new(),
            sent: BTreeSet::new(),
            ticks_left: GRACE_TICKS,
            answers: false,
            is_given_up: false,
        });
        if member.is_given_up || !has_room {
            member.is_given_up = true;
            self.let_go_count += 1;
            self.lost.insert(bookie);
            return;
        }
        member.lacks.insert(entry);
        if !is_known {
            self.permit.merge(permit.as_mut().map(|permit| permit.split(cost_bytes)));
            self.bytes += cost_bytes;
        }
        let kept = self.entries.entry(entry).or_insert_with(|| KeptEntry {
            // A copy: the block that it lies in, with others, is let go of.
            body: Bytes::copy_from_slice(&body),
            cost_bytes,
            wanting: 0,
        });
        kept.wanting += 1;
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether no entry is kept.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether something is on its way to a bookie that lacks it.
    pub fn is_filling(&self) -> bool {
        self.members.values().any(|member| !member.sent.is_empty())
    }

    /// Looks whether bookies are back, and gives up those that were away for too long. `counts`: the time between ticks is
    /// over.
    pub fn tick(&mut self, counts: bool) {
        let tags: Vec<u64> = self.members.keys().copied().collect();
        for tag in tags {
            let Some(member) = self.members.get_mut(&tag).filter(|member| !member.lacks.is_empty()) else {
                continue;
            };
            if std::mem::take(&mut member.answers) {
                member.ticks_left = GRACE_TICKS;
            } else if counts {
                member.ticks_left -= 1;
            }
            if member.ticks_left == 0 {
                self.give_up(tag);
            } else if member.sent.is_empty() {
                // One is enough to tell.
                self.send(tag, 1);
            }
        }
    }

    /// Sends what the member lacks, up to so many entries at a time.
    fn send(&mut self, tag: u64, entries_max: usize) {
        let Some(member) = self.members.get_mut(&tag) else { return };
        let behind = member.sent.last().map_or(i64::MIN, |last| last + 1);
        let room = entries_max.saturating_sub(member.sent.len());
        let more: Vec<i64> = member.lacks.range(behind..).take(room).copied().collect();
        for id in more {
            let (Some(kept), Some(entry)) = (self.entries.get(&id), EntryId::new(id)) else { continue };
            member.sent.insert(id);
            let tag = AddTag(tag | FILL_BIT);
            self.fills.push(Fill { bookie: member.bookie.clone(), entry, body: kept.body.clone(), tag });
        }
    }

    /// To be sent now.
    pub fn take_fills(&mut self) -> Vec<Fill> {
        std::mem::take(&mut self.fills)
    }

    /// Counts an answer to a fill. True when the member has the entry now.
    pub fn on_answer(&mut self, tag: AddTag, entry: EntryId, result: &Result<(), BookieError>) -> bool {
        let Some(member) = self.members.get_mut(&tag.0) else { return result.is_ok() };
        member.sent.remove(&entry.get());
        match result {
            Ok(()) => {
                member.answers = true;
                self.has(tag, entry);
                self.send(tag.0, FILL_ENTRIES_MAX);
                true
            }
            // Somebody recovers the ledger, or may not write it: it takes nothing any more.
            Err(BookieError::Refused(ErrorCode::Fenced | ErrorCode::Unauthorized) | BookieError::Closed) => {
                self.give_up(tag.0);
                false
            }
            // Tried again with the next tick, from the first one on (invariant 2).
            Err(_) => false,
        }
    }

    /// A member has an entry, however it came there.
    pub fn has(&mut self, tag: AddTag, entry: EntryId) {
        let Some(member) = self.members.get_mut(&tag.0) else { return };
        if member.lacks.remove(&entry.get()) {
            // One that something was let go of for is remembered (invariant 4).
            if member.lacks.is_empty() && !member.is_given_up {
                self.members.remove(&tag.0);
            }
            self.filled_count += 1;
            self.no_longer_wanted(entry.get());
        }
    }

    fn no_longer_wanted(&mut self, entry: i64) {
        let Some(kept) = self.entries.get_mut(&entry) else { return };
        kept.wanting -= 1;
        if kept.wanting == 0
            && let Some(kept) = self.entries.remove(&entry)
        {
            self.bytes -= kept.cost_bytes;
            self.let_go.add(kept.body, self.permit.split(kept.cost_bytes));
        }
    }

    fn give_up(&mut self, tag: u64) {
        let Some(member) = self.members.get_mut(&tag) else { return };
        member.is_given_up = true;
        let lacks = std::mem::take(&mut member.lacks);
        if !lacks.is_empty() {
            self.lost.insert(member.bookie.clone());
        }
        self.let_go_count += lacks.len() as u64;
        lacks.into_iter().for_each(|entry| self.no_longer_wanted(entry));
    }

    /// Lets go of everything: the writer ends.
    pub fn give_up_all(&mut self) {
        let tags: Vec<u64> = self.members.keys().copied().collect();
        tags.into_iter().for_each(|tag| self.give_up(tag));
        self.fills.clear();
    }

    /// The queue to a bookie was emptied: requests in it will not be answered.
    pub fn on_withdrawn(&mut self, bookie: &BookieId) {
        self.fills.retain(|fill| fill.bookie != *bookie);
        let members = self.members.values_mut().filter(|member| member.bookie == *bookie);
        members.for_each(|member| member.sent.clear());
    }

    /// Bookies that something was let go of for, since this was called last.
    pub fn take_lost(&mut self) -> BTreeSet<BookieId> {
        std::mem::take(&mut self.lost)
    }

    /// Puts what is not kept any more into `let_go`.
    pub fn release(&mut self, let_go: &mut LetGo) {
        let_go.append(std::mem::take(&mut self.let_go));
    }

    /// Copies of entries that were let go of, and that were filled, since the writer began.
    pub fn counts(&self) -> (u64, u64) {
        (self.let_go_count, self.filled_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lack(tag: u64, bookie: &str, entry: i64) -> Lack {
        let (bookie, entry) = (BookieId::new(bookie).unwrap(), EntryId::new(entry).unwrap());
        Lack { tag: AddTag(tag), bookie, entry, body: Bytes::from_static(b"entry"), cost_bytes: 10 }
    }

    fn keep(kept: &mut Kept, tag: u64, entries: impl IntoIterator<Item = i64>, bytes_max: u64) {
        for entry in entries {
            kept.keep(lack(tag, ["a", "b", "c"][tag as usize], entry), bytes_max, &mut None);
        }
    }

    fn sent(kept: &mut Kept) -> Vec<(String, i64)> {
        kept.take_fills().into_iter().map(|fill| (fill.bookie.to_string(), fill.entry.get())).collect()
    }

    fn answer(kept: &mut Kept, tag: u64, entry: i64, result: Result<(), BookieError>) -> bool {
        kept.on_answer(AddTag(tag), EntryId::new(entry).unwrap(), &result)
    }

    #[test]
    fn the_first_entry_asks_whether_the_bookie_is_back_and_the_others_follow_in_order() {
        let mut kept = Kept::default();
        keep(&mut kept, 2, 0..40, u64::MAX);
        assert_eq!(kept.bytes(), 400);
        kept.tick(true);
        assert_eq!(sent(&mut kept), [("c".into(), 0)]);
        kept.tick(true);
        assert_eq!(sent(&mut kept), [], "it has not answered yet");
        assert!(!answer(&mut kept, 2, 0, Err(BookieError::Lost)));
        kept.tick(true);
        assert_eq!(sent(&mut kept), [("c".into(), 0)]);
        for entry in 0..40 {
            assert!(answer(&mut kept, 2, entry, Ok(())));
            let expected: Vec<i64> = match entry {
                0 => (1..17).collect(),
                _ => (entry + 16..(entry + 17).min(40)).collect(),
            };
            assert_eq!(sent(&mut kept).into_iter().map(|(_, id)| id).collect::<Vec<_>>(), expected);
        }
        assert!(kept.is_empty());
        assert_eq!((kept.bytes(), kept.counts(), kept.take_lost().len()), (0, (0, 40), 0));
    }

    #[test]
    fn a_bookie_that_stays_away_is_given_up_and_nothing_more_is_kept_for_it() {
        let mut kept = Kept::default();
        keep(&mut kept, 0, 0..3, u64::MAX);
        keep(&mut kept, 1, 2..4, u64::MAX);
        assert_eq!(kept.bytes(), 40, "invariant 3");
        for tick in 0..GRACE_TICKS {
            assert_eq!(kept.counts().0, 0, "{tick}");
            kept.tick(true);
            kept.tick(false);
            let asked = sent(&mut kept);
            if asked.contains(&("a".into(), 0)) {
                answer(&mut kept, 0, 0, Err(BookieError::Lost));
            }
            if tick == 3 {
                answer(&mut kept, 1, 2, Ok(()));
                kept.take_fills();
            }
        }
        assert_eq!((kept.counts(), kept.bytes()), ((3, 1), 10), "the other answered on the way");
        assert_eq!(kept.take_lost().into_iter().map(|id| id.to_string()).collect::<Vec<_>>(), ["a"]);
        keep(&mut kept, 0, 5..6, u64::MAX);
        assert_eq!((kept.counts().0, kept.bytes()), (4, 10), "invariant 4");
        kept.give_up_all();
        assert!(kept.is_empty());
        assert_eq!(kept.counts(), (5, 1));
        let mut let_go = LetGo::default();
        kept.release(&mut let_go);
        assert_eq!(let_go.bodies.len(), 4);
    }

    #[test]
    fn without_room_the_first_ones_are_kept() {
        let mut kept = Kept::default();
        keep(&mut kept, 2, 0..5, 25);
        assert_eq!((kept.bytes(), kept.counts()), (20, (3, 0)));
        kept.tick(true);
        answer(&mut kept, 2, 0, Ok(()));
        keep(&mut kept, 2, 5..6, 25);
        assert_eq!(
            (kept.bytes(), kept.counts()),
            (10, (4, 1)),
            "there is room, and a gap before it (invariant 4)"
        );
        kept.has(AddTag(2), EntryId::new(1).unwrap());
        assert!(kept.is_empty(), "acknowledged late");
        // Fenced: somebody recovers the ledger.
        keep(&mut kept, 1, 0..2, u64::MAX);
        answer(&mut kept, 1, 0, Err(BookieError::Refused(ErrorCode::Fenced)));
        assert!(kept.is_empty());
    }

    #[test]
    fn what_was_withdrawn_is_sent_again() {
        let mut kept = Kept::default();
        keep(&mut kept, 2, 0..2, u64::MAX);
        kept.tick(true);
        kept.on_withdrawn(&BookieId::new("c").unwrap());
        assert_eq!(sent(&mut kept), []);
        kept.tick(true);
        assert_eq!(sent(&mut kept), [("c".into(), 0)]);
    }
}
