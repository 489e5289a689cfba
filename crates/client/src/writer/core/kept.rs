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
//! 1. A copy that is filled is counted once. Those that are let go of are in [`Gaps`](crate::gaps::Gaps).
//! 2. A bookie gets what it lacks in the order of the entries, and behind one that it refused nothing but what was on its way
//!    already: a fill that ends early leaves one gap at the end.
//! 3. An entry is kept once, with its part of the budget, however many bookies lack it.
//! 4. From the first entry that is let go of, nothing more is kept for that member: behind it a fill would leave a gap.
//! 5. An entry on its way to a bookie is kept until it is answered or withdrawn, also when the bookie is given up: its bytes
//!    are in the queue to that bookie.
//!
//! # Limits     bytes: the caller's, see [`Kept::keep`]; under way to a bookie: [`FILL_ENTRIES_MAX`]; time:
//! [`GRACE_TICKS`] without an answer

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_flow::Permit;
use bindery_types::{BookieId, EntryId};
use bytes::Bytes;

use super::in_flight::{Held, LetGo};
use crate::transport::{AddTag, BookieError};
use crate::window::Lack;
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
    /// It refused an entry since the last tick (invariant 2).
    is_stalled: bool,
    /// Invariant 4.
    is_given_up: bool,
    /// It was among those that something was let go of for.
    is_lost: bool,
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
            bookie,
            lacks: BTreeSet::new(),
            sent: BTreeSet::new(),
            ticks_left: GRACE_TICKS,
            answers: false,
            is_stalled: false,
            is_given_up: false,
            is_lost: false,
        });
        if member.is_given_up || !has_room {
            member.is_given_up = true;
            member.tell_lost(&mut self.lost);
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
                member.is_stalled = false;
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
        if member.sent.remove(&entry.get()) && !member.lacks.contains(&entry.get()) {
            self.no_longer_wanted(entry.get());
        }
        match result {
            Ok(()) => {
                self.has(tag, entry);
                if let Some(member) = self.members.get_mut(&tag.0) {
                    member.answers = true;
                    if !member.is_stalled {
                        self.send(tag.0, FILL_ENTRIES_MAX);
                    }
                }
            }
            // Somebody recovers the ledger, or may not write it: it takes nothing any more.
            Err(BookieError::Refused(ErrorCode::Fenced | ErrorCode::Unauthorized) | BookieError::Closed) => {
                self.give_up(tag.0);
            }
            // Tried again with the next tick, from the first one on (invariant 2).
            Err(_) => {
                if let Some(member) = self.members.get_mut(&tag.0) {
                    member.is_stalled = true;
                    let unsent = unsent(&mut self.fills, tag.0);
                    unsent.into_iter().for_each(|id| self.is_not_sent(tag.0, id));
                }
            }
        }
        self.forget(tag.0);
        result.is_ok()
    }

    /// A member has an entry, however it came there.
    pub fn has(&mut self, tag: AddTag, entry: EntryId) {
        let Some(member) = self.members.get_mut(&tag.0) else { return };
        if member.lacks.remove(&entry.get()) {
            self.filled_count += 1;
            if !member.sent.contains(&entry.get()) {
                self.no_longer_wanted(entry.get());
            }
            self.forget(tag.0);
        }
    }

    /// A member that is complete is of no interest any more. One that something was let go of for is remembered (invariant 4).
    fn forget(&mut self, tag: u64) {
        let is_over =
            |member: &Member| member.lacks.is_empty() && member.sent.is_empty() && !member.is_given_up;
        if self.members.get(&tag).is_some_and(is_over) {
            self.members.remove(&tag);
        }
    }

    /// An entry is not on its way to a member any more.
    fn is_not_sent(&mut self, tag: u64, entry: i64) {
        let Some(member) = self.members.get_mut(&tag) else { return };
        if member.sent.remove(&entry) && !member.lacks.contains(&entry) {
            self.no_longer_wanted(entry);
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

    /// Lets go of what is kept for a member, and keeps nothing more for it.
    pub fn give_up(&mut self, tag: u64) {
        let unsent = unsent(&mut self.fills, tag);
        unsent.into_iter().for_each(|id| self.is_not_sent(tag, id));
        let Some(member) = self.members.get_mut(&tag) else { return };
        member.is_given_up = true;
        let lacks = std::mem::take(&mut member.lacks);
        if !lacks.is_empty() {
            member.tell_lost(&mut self.lost);
        }
        // Invariant 5.
        let unwanted: Vec<i64> = lacks.difference(&member.sent).copied().collect();
        unwanted.into_iter().for_each(|entry| self.no_longer_wanted(entry));
    }

    /// Lets go of everything: the writer ends.
    pub fn give_up_all(&mut self) {
        let tags: Vec<u64> = self.members.keys().copied().collect();
        tags.into_iter().for_each(|tag| self.give_up(tag));
    }

    /// Bookies that something is on its way to.
    pub fn filling(&self) -> impl Iterator<Item = &BookieId> {
        self.members.values().filter(|member| !member.sent.is_empty()).map(|member| &member.bookie)
    }

    /// The queue to a bookie was emptied: requests in it will not be answered.
    pub fn on_withdrawn(&mut self, bookie: &BookieId) {
        self.fills.retain(|fill| fill.bookie != *bookie);
        let members = self.members.iter().filter(|(_, member)| member.bookie == *bookie);
        let sent: Vec<(u64, Vec<i64>)> =
            members.map(|(tag, member)| (*tag, member.sent.iter().copied().collect())).collect();
        for (tag, entries) in sent {
            entries.into_iter().for_each(|entry| self.is_not_sent(tag, entry));
            self.forget(tag);
        }
    }

    /// Bookies that something was let go of for, since this was called last.
    pub fn take_lost(&mut self) -> BTreeSet<BookieId> {
        std::mem::take(&mut self.lost)
    }

    /// Puts what is not kept any more into `let_go`.
    pub fn release(&mut self, let_go: &mut LetGo) {
        let_go.append(std::mem::take(&mut self.let_go));
    }

    /// Copies that are kept.
    pub fn copies(&self) -> u64 {
        self.members.values().map(|member| member.lacks.len() as u64).sum()
    }

    /// Copies that came late, since the writer began.
    pub fn filled(&self) -> u64 {
        self.filled_count
    }
}

impl Member {
    /// Something is let go of: said once of a member.
    fn tell_lost(&mut self, lost: &mut BTreeSet<BookieId>) {
        if !std::mem::replace(&mut self.is_lost, true) {
            lost.insert(self.bookie.clone());
        }
    }
}

/// Takes back what was to be sent to a member and was not taken yet; the entries.
fn unsent(fills: &mut Vec<Fill>, tag: u64) -> Vec<i64> {
    let tag = AddTag(tag | FILL_BIT);
    let unsent = fills.iter().filter(|fill| fill.tag == tag).map(|fill| fill.entry.get()).collect();
    fills.retain(|fill| fill.tag != tag);
    unsent
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
        assert_eq!((kept.bytes(), kept.filled(), kept.take_lost().len()), (0, 40, 0));
    }

    #[test]
    fn a_bookie_that_stays_away_is_given_up_and_nothing_more_is_kept_for_it() {
        let mut kept = Kept::default();
        keep(&mut kept, 0, 0..3, u64::MAX);
        keep(&mut kept, 1, 2..4, u64::MAX);
        assert_eq!(kept.bytes(), 40, "invariant 3");
        for tick in 0..GRACE_TICKS {
            assert!(kept.take_lost().is_empty(), "{tick}");
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
        assert_eq!((kept.copies(), kept.filled(), kept.bytes()), (1, 1, 10), "the other answered on the way");
        assert_eq!(kept.take_lost().into_iter().map(|id| id.to_string()).collect::<Vec<_>>(), ["a"]);
        keep(&mut kept, 0, 5..6, u64::MAX);
        assert_eq!((kept.copies(), kept.bytes()), (1, 10), "invariant 4");
        assert!(kept.take_lost().is_empty(), "said already");
        kept.give_up_all();
        assert_eq!((kept.copies(), kept.bytes()), (0, 10), "invariant 5: it is on its way");
        assert_eq!(kept.filling().map(ToString::to_string).collect::<Vec<_>>(), ["b"]);
        kept.on_withdrawn(&BookieId::new("b").unwrap());
        assert!(kept.is_empty() && !kept.is_filling());
        let mut let_go = LetGo::default();
        kept.release(&mut let_go);
        assert_eq!(let_go.bodies.len(), 4);
    }

    #[test]
    fn nothing_follows_an_entry_that_was_refused() {
        let mut kept = Kept::default();
        keep(&mut kept, 2, 0..40, u64::MAX);
        kept.tick(true);
        answer(&mut kept, 2, 0, Ok(()));
        assert_eq!(sent(&mut kept).len(), 1 + FILL_ENTRIES_MAX);
        answer(&mut kept, 2, 1, Err(BookieError::Refused(ErrorCode::TooManyRequests)));
        for entry in 2..17 {
            assert!(answer(&mut kept, 2, entry, Ok(())));
            kept.tick(true);
            let expected: &[i64] = if entry == 16 { &[1] } else { &[] };
            assert_eq!(
                sent(&mut kept).into_iter().map(|(_, id)| id).collect::<Vec<_>>(),
                expected,
                "{entry}"
            );
        }
        answer(&mut kept, 2, 1, Ok(()));
        assert_eq!(sent(&mut kept)[..2], [("c".into(), 17), ("c".into(), 18)]);

        // Not even what was to be sent with the same batch of answers.
        answer(&mut kept, 2, 17, Ok(()));
        answer(&mut kept, 2, 18, Err(BookieError::Lost));
        assert_eq!(sent(&mut kept), []);
    }

    #[test]
    fn what_is_on_its_way_is_kept_until_it_is_answered() {
        let mut kept = Kept::default();
        keep(&mut kept, 2, 0..3, u64::MAX);
        kept.tick(true);
        assert_eq!(sent(&mut kept), [("c".into(), 0)]);
        kept.has(AddTag(2), EntryId::FIRST);
        assert_eq!((kept.bytes(), kept.copies()), (30, 2), "acknowledged late");
        kept.give_up(2);
        assert_eq!((kept.bytes(), kept.copies(), kept.is_filling()), (10, 0, true));
        assert!(answer(&mut kept, 2, 0, Ok(())));
        assert_eq!((kept.bytes(), kept.filled(), kept.is_filling()), (0, 1, false));
    }

    #[test]
    fn without_room_the_first_ones_are_kept() {
        let mut kept = Kept::default();
        keep(&mut kept, 2, 0..5, 25);
        assert_eq!((kept.bytes(), kept.copies()), (20, 2));
        assert_eq!(kept.take_lost().len(), 1);
        kept.tick(true);
        answer(&mut kept, 2, 0, Ok(()));
        keep(&mut kept, 2, 5..6, 25);
        assert_eq!(
            (kept.bytes(), kept.copies(), kept.filled()),
            (10, 1, 1),
            "there is room, and a gap before it (invariant 4)"
        );
        sent(&mut kept);
        kept.on_withdrawn(&BookieId::new("c").unwrap());
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
