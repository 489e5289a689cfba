//! Which objects are rewritten, and in which order what is live of them goes into a new one (T16).
//!
//! # Data flow
//! ```text
//! page of the scan ─► sparse objects ─► as many as fit one object ─┐
//!                 └─► objects of small extents ([`super::join`]) ──┴─► survey: live extents, metadata of their ledgers
//!                                  ┌─────────────────────────────────────────────┘
//!                                  └─► extents in their order, as many as one object takes ◄─────────────────┐
//!                                       └─► an id, built ─► catalogue: each takes the place of exactly its range, or is dropped ─► the rest
//! ```
//!
//! # Invariants
//! 1. Only whole extents that the catalogue refers to are ordered, by ledger and first entry. Those that follow each other become one.
//! 2. The new object's id is above those of its sources: by it a bookie tells which of two objects it was told of later. If bookies may
//!    refuse a source (invariant 5), it is not known which object they were told of, and the new id is above those of all objects of the
//!    catalogue. Until then such a source waits.
//! 3. If a source was deleted, or rewritten by another tierer, meanwhile, the catalogue drops its extents of the new
//!    object; if it drops all of them, the new object is unreferenced. There are no other effects.
//! 4. Sources of which something is left are left alone for a while, ever longer. A source that could not be read is the only one: the others of
//!    its group come again at once, without it. Where a failure names none, the next group with one of them is half as large: so one
//!    damaged object is alone before long, and keeps no other.
//! 5. An object that bookies may refuse, after the catalogue was rebuilt ([`StoredObject::is_outranked`]), is rewritten whatever is live of
//!    it, also while many objects are kept.
//! 6. An object that takes too long is cut where it is. Sources of which it took something are next in the following pass; of the others
//!    the extents stay apart from then on, so that each that is whole counts. A source of which not one can be copied while it is alone is an
//!    alarm, and has twice the time from then on.
//! 7. Objects that are joined become as many objects as they need, each with a stretch of their ledgers, within one survey. Sources whose
//!    extents hardly follow each other are in no group for a while. An object that takes too long is followed by shorter ones. What a group
//!    leaves when the time of a pass is up is joined in the next one, and is sparse for nobody until then.
//!
//! # Limits     sources of one object: [`SOURCES_MAX`]; work of one pass: [`Budget`]; candidates: [`CANDIDATES_MAX`]; objects
//! that are left alone: [`PUT_OFF_MAX`]. Of more, those come again early whose turn is next, and every second group is chosen by its
//! place in the order of ids, so that the others have their turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{ExtentOutcome, NewObject, Refusal, StoredObject, Verdict};
use bindery_tiering::object::{FOOTER_BYTES_TARGET, TRAILER_SIZE_BYTES};
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};

use super::event::{Fault, Garbage, LiveExtent, Piece, RewriteOrder, SourceError, Survey};
use super::join::{Joins, has_small_extents};
use super::{Orphan, Phase, ScannedRow, Upkeep, UpkeepSettings};
use crate::core::plan::LEDGERS_PER_OBJECT_MAX;
use crate::core::{Alarm, BuildLedger, BuildOrder, Built, Left, Team};

/// Objects that go into one.
pub(super) const SOURCES_MAX: usize = 16;
/// With so many undamaged objects kept that nothing refers to, none is rewritten because of its size: they take space beside those that were made of them.
const KEPT_TO_REWRITE_MAX: u64 = 64;
/// Bytes that one pass takes over: of a tierer's own sources, so more tierers rewrite more.
const BYTES_PER_PASS: u64 = 4 << 30;
/// Requests to the store for that, about.
const REQUESTS_PER_PASS: u64 = 10_000;
/// The length of a part of an object that is written, about.
const PART_BYTES: u64 = 8 << 20;
/// What a request for extents that lie one behind the other brings, about.
const READ_BYTES: u64 = 256 << 10;
/// Bytes of an object that others are joined in, at least, however long that takes.
const JOINED_BYTES_MIN: u64 = 1 << 20;
/// Objects that are remembered until their turn.
const CANDIDATES_MAX: usize = 1000;
/// Objects that are left alone.
const PUT_OFF_MAX: usize = 16_384;
/// They are forgotten so long after their turn came: the scan has been there meanwhile.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Extents of sources that become one: fewer than the catalogue takes.
const PIECES_MAX: usize = 1000;
/// The longest pause of a source.
const PAUSE_MAX: Duration = Duration::from_secs(24 * 3600);

/// An object of which something is left.
#[derive(Debug, Clone)]
struct PutOff {
    /// It is left alone until then.
    until: Duration,
    /// How often it failed by itself.
    times: u32,
    /// With how many others it may be in a group, itself included.
    group_max: usize,
    /// In which way it is damaged.
    damage: Option<String>,
    /// An object that it was to be in took too long.
    lacked_time: bool,
    /// So it did alone, and not one extent was copied.
    is_too_slow: bool,
    /// It is in no group that is joined until then,
    join_until: Duration,
    /// after so many in which extents hardly followed each other.
    joins_in_vain: u32,
}

impl PutOff {
    fn new(now: Duration) -> PutOff {
        PutOff {
            until: now,
            times: 0,
            group_max: SOURCES_MAX,
            damage: None,
            lacked_time: false,
            is_too_slow: false,
            join_until: now,
            joins_in_vain: 0,
        }
    }
}

/// What a pass may still rewrite. Deletions wait for its end, so its time is limited, too: to that between two passes.
#[derive(Debug, Clone, Copy, Default)]
struct Budget {
    bytes: u64,
    requests: u64,
    until: Duration,
}

impl Budget {
    /// Of a pass that comes to rewriting now.
    fn new(now: Duration, time: Duration) -> Budget {
        Budget { bytes: BYTES_PER_PASS, requests: REQUESTS_PER_PASS, until: now + time }
    }

    /// Nothing more is rewritten in this pass.
    fn end(&mut self) {
        *self = Budget::default();
    }

    /// Whether other objects may be made of other sources,
    fn has_some(&self, now: Duration) -> bool {
        self.bytes > 0 && self.requests > 0 && self.has_time(now)
    }

    /// and of those that are being joined, for which it was spent.
    fn has_time(&self, now: Duration) -> bool {
        now < self.until
    }

    /// These become one object: each has a footer, and its live extents are read one by one, or many with a request when they
    /// lie one behind the other; what is live is written in parts.
    fn spend(&mut self, sources: &[StoredObject]) {
        let bytes = sources.iter().map(live_bytes).sum::<u64>();
        let reads_of = |source: &StoredObject| {
            let read_ahead = 2 + live_bytes(source) / READ_BYTES;
            1 + u64::from(source.live_extents).min(read_ahead)
        };
        let reads = sources.iter().map(reads_of).sum::<u64>();
        self.bytes = self.bytes.saturating_sub(bytes);
        self.requests = self.requests.saturating_sub(reads + bytes / PART_BYTES + 2);
    }
}

/// What is going on.
#[derive(Debug, Clone, Default)]
pub(super) struct Rewriting {
    /// Sparse objects, as the scan saw them,
    candidates: BTreeMap<ObjectId, StoredObject>,
    /// and those of small extents.
    joins: Joins,
    put_off: BTreeMap<ObjectId, PutOff>,
    /// Where the last group began that was chosen by the order of ids,
    last_by_id: Option<ObjectId>,
    /// and whether the next one is.
    is_by_id: bool,
    /// What may still be rewritten in this pass,
    budget: Budget,
    /// and only of those that bookies may refuse.
    only_outranked: bool,
    sources: Vec<StoredObject>,
    /// They are joined (invariant 7),
    is_joining: bool,
    /// in objects of so many bytes at most, after one took too long,
    joined_bytes_max: Option<u64>,
    /// what of them comes behind the object that is made now,
    rest: Vec<(BuildLedger, Vec<Piece>)>,
    /// and those of which an object before did not take all that it was to take.
    unfinished: BTreeSet<ObjectId>,
    /// Extents that follow each other are not joined (invariant 6).
    are_apart: bool,
    /// The object took too long.
    is_late: bool,
    /// Those of them that could not be read.
    unread: BTreeSet<ObjectId>,
    ledgers: Vec<BuildLedger>,
    pieces: Vec<Vec<Piece>>,
    built: Option<NewObject>,
}

/// Bytes that an object with this one's live extents would have.
fn live_bytes(stored: &StoredObject) -> u64 {
    (stored.object.length_bytes as f64 * stored.live_ratio()) as u64
}

/// Bytes of the footer for these.
fn footer_bytes(stored: &StoredObject) -> u64 {
    let footer = stored.object.length_bytes.saturating_sub(stored.object.footer_offset);
    let footer = footer.saturating_sub(TRAILER_SIZE_BYTES as u64);
    footer / u64::from(stored.extents.max(1)) * u64::from(stored.live_extents)
}

impl Rewriting {
    /// Takes account of a page of the scan: of sparse objects, and those of invariant 5, each of which has one owner in the team, so that no
    /// two tierers choose the same one; and of objects of small extents, all of them for the tierer that has the upkeep, because only
    /// together they can be joined. `now_ms` is the log's time of the page.
    pub fn note(
        &mut self,
        (now, now_ms): (Duration, u64),
        rows: &[ScannedRow],
        settings: &UpkeepSettings,
        team: &Team,
    ) {
        let has_passed =
            |since_ms: u64, time: Duration| u128::from(now_ms.saturating_sub(since_ms)) >= time.as_millis();
        for row in rows {
            let Some(stored) = row.live.filter(|stored| stored.live_extents > 0) else {
                self.candidates.remove(&row.object);
                self.joins.forget(&row.object);
                self.put_off.remove(&row.object);
                continue;
            };
            let id = stored.object.id;
            let put_off = self.put_off.get(&id);
            let is_put_off = put_off.is_some_and(|put_off| now < put_off.until);
            let is_small = has_small_extents(&stored, settings.join_below_bytes);
            let is_left_apart = put_off.is_some_and(|put_off| now < put_off.join_until);
            match is_small && team.owns_upkeep() && !is_put_off && !is_left_apart {
                true => self.joins.note(stored, has_passed(stored.committed_ms, settings.join_after)),
                false => self.joins.remove(&id),
            }
            // The rest of it follows, with the next pass of the tierer that has the upkeep.
            let is_being_joined = is_small
                && stored.replaced.is_some_and(|replaced| !has_passed(replaced.at_ms, 3 * settings.interval));
            let is_sparse = stored.is_outranked() || stored.live_ratio() < settings.rewrite_below;
            let is_wanted = is_sparse && !is_being_joined && team.owns_object(&id);
            if !is_wanted || is_put_off {
                self.candidates.remove(&id);
                continue;
            }
            if self.candidates.len() >= CANDIDATES_MAX && stored.is_outranked() {
                // The others may wait for this one (invariant 5).
                let other = self.candidates.values().rev().find(|other| !other.is_outranked());
                if let Some(other) = other.map(|other| other.object.id) {
                    self.candidates.remove(&other);
                }
            }
            if self.candidates.len() < CANDIDATES_MAX {
                self.candidates.insert(id, stored);
            }
        }
    }

    /// The next sources, as many as fit: those with the smallest live part first, or by turns those that follow in the order of ids.
    fn group(&mut self, target_bytes: u64) -> Vec<StoredObject> {
        let may_be = |stored: &&StoredObject| !self.only_outranked || stored.is_outranked();
        let mut ordered: Vec<StoredObject> = self.candidates.values().filter(may_be).copied().collect();
        match self.is_by_id {
            true => ordered.sort_by_key(|stored| Some(stored.object.id) <= self.last_by_id),
            false => ordered.sort_by(|a, b| a.live_ratio().total_cmp(&b.live_ratio())),
        }
        let (mut bytes, mut footer, mut group_max) = (0, 0, SOURCES_MAX);
        let mut group: Vec<StoredObject> = Vec::new();
        for stored in ordered {
            let id = stored.object.id;
            let more = (bytes + live_bytes(&stored), footer + footer_bytes(&stored));
            let fits = more.0 <= target_bytes && more.1 <= FOOTER_BYTES_TARGET;
            let max = self.put_off.get(&id).map_or(SOURCES_MAX, |put_off| put_off.group_max).min(group_max);
            if group.len() < max && (group.is_empty() || fits) {
                (bytes, footer) = more;
                group_max = max;
                group.push(stored);
                self.candidates.remove(&id);
                self.joins.remove(&id);
            }
        }
        if self.is_by_id {
            self.last_by_id = group.first().map(|stored| stored.object.id);
        }
        self.is_by_id = !self.is_by_id;
        group
    }

    /// The next objects that are joined.
    fn group_to_join(&mut self) -> Vec<StoredObject> {
        if self.only_outranked {
            return Vec::new();
        }
        let put_off = &self.put_off;
        let group = self.joins.group(|id| put_off.get(id).map_or(SOURCES_MAX, |put_off| put_off.group_max));
        for stored in &group {
            self.candidates.remove(&stored.object.id);
        }
        group
    }

    /// Takes the next sources.
    fn begin(&mut self, sources: Vec<StoredObject>, is_joining: bool) {
        (self.sources, self.is_joining) = (sources, is_joining);
        self.unread.clear();
        self.rest.clear();
        self.unfinished.clear();
    }

    /// These sources come again in this pass, or the next.
    fn put_back(&mut self, sources: impl IntoIterator<Item = StoredObject>) {
        match self.is_joining {
            true => self.joins.put_back(sources),
            false => self.candidates.extend(sources.into_iter().map(|source| (source.object.id, source))),
        }
    }

    /// Whether as many extents follow others as stand alone (invariant 7).
    fn is_worth_joining(&self) -> bool {
        let joined: usize = self.pieces.iter().map(Vec::len).filter(|count| *count > 1).sum();
        2 * joined >= self.pieces.iter().map(Vec::len).sum()
    }

    /// Leaves what one object does not take for the next ones.
    fn cut(&mut self, target_bytes: u64) {
        let most = self.joined_bytes_max.unwrap_or(target_bytes).min(target_bytes);
        let mut bytes = 0;
        let fits = |ledger: &&BuildLedger| {
            bytes += ledger.bytes;
            bytes <= most
        };
        let count = self.ledgers.iter().take_while(fits).count().clamp(1, LEDGERS_PER_OBJECT_MAX);
        let count = count.min(self.ledgers.len());
        let behind = self.ledgers.split_off(count).into_iter().zip(self.pieces.split_off(count));
        self.rest.splice(0..0, behind);
    }

    /// Comes to what the objects before left.
    fn go_on(&mut self, target_bytes: u64) {
        (self.ledgers, self.pieces) = std::mem::take(&mut self.rest).into_iter().unzip();
        self.cut(target_bytes);
    }

    /// The object was full before it had all: the next one takes what is not whole in `read`, by ledger and first entry the last one.
    fn leave_to_next(&mut self, full: &BTreeSet<LedgerId>, read: &BTreeMap<(LedgerId, EntryId), EntryId>) {
        let ledgers = std::mem::take(&mut self.ledgers).into_iter();
        let (mut left, mut kept) = (Vec::new(), Vec::new());
        for (ledger, mut pieces) in ledgers.zip(std::mem::take(&mut self.pieces)) {
            let is_taken = |piece: &Piece| Self::is_taken(read, ledger.ledger, piece);
            if !full.contains(&ledger.ledger) || pieces.iter().all(is_taken) {
                kept.push((ledger, pieces));
                continue;
            }
            // What is whole of it is taken over, and what comes behind is a range of its own.
            let behind = pieces.split_off(pieces.iter().take_while(|piece| is_taken(piece)).count());
            let part = |pieces: &[Piece], bytes| {
                let (first, last) = (pieces.first()?.first, pieces.last()?.last);
                Some(BuildLedger { first, last, bytes, ..ledger.clone() })
            };
            let of_piece = ledger.bytes / (pieces.len() + behind.len()).max(1) as u64;
            if let Some(whole) = part(&pieces, of_piece * pieces.len() as u64) {
                kept.push((whole, pieces));
            }
            if let Some(rest) = part(&behind, of_piece * behind.len() as u64) {
                left.push((rest, behind));
            }
        }
        (self.ledgers, self.pieces) = kept.into_iter().unzip();
        self.rest.splice(0..0, left);
    }

    /// Puts live extents in their order. False: there is nothing to build.
    fn order(&mut self, mut live: Vec<(ObjectRef, LiveExtent)>, target_bytes: u64) -> bool {
        live.sort_unstable_by_key(|(_, extent)| (extent.ledger, extent.first));
        self.ledgers.clear();
        self.pieces.clear();
        let lacked_time = |source: &StoredObject| {
            self.put_off.get(&source.object.id).is_some_and(|put_off| put_off.lacked_time)
        };
        self.are_apart = !self.is_joining && self.sources.iter().any(lacked_time);
        let pieces_max = if self.are_apart { 1 } else { PIECES_MAX };
        for (object, LiveExtent { ledger, first, last, bytes, metadata }) in live {
            let piece = Piece { object, first, last };
            let before = self.ledgers.last_mut().filter(|before| before.ledger == ledger);
            match (before, self.pieces.last_mut()) {
                // It was rewritten by somebody else between two looks: whoever has it twice has it in the other.
                (Some(before), _) if first <= before.last => {}
                // An object has to have room for all of the range.
                (Some(before), Some(pieces))
                    if before.last.get() + 1 == first.get()
                        && pieces.len() < pieces_max
                        && (!self.is_joining || before.bytes + bytes <= target_bytes) =>
                {
                    before.last = last;
                    before.bytes += bytes;
                    pieces.push(piece);
                }
                _ => {
                    self.ledgers.push(BuildLedger { ledger, first, last, metadata, bytes });
                    self.pieces.push(vec![piece]);
                }
            }
        }
        !self.ledgers.is_empty()
    }

    /// What is remembered of a source.
    fn remember(&mut self, now: Duration, source: ObjectId) -> &mut PutOff {
        if self.put_off.len() >= PUT_OFF_MAX && !self.put_off.contains_key(&source) {
            let next = self.put_off.iter().min_by_key(|(_, put_off)| put_off.until).map(|(id, _)| *id);
            if let Some(next) = next {
                self.put_off.remove(&next);
            }
        }
        self.put_off.entry(source).or_insert_with(|| PutOff::new(now))
    }

    /// The object that these sources were to be in took too long.
    fn note_late(&mut self, now: Duration) {
        if self.is_joining {
            let bytes = self.ledgers.iter().map(|ledger| ledger.bytes).sum::<u64>();
            self.joined_bytes_max = Some((bytes / 2).max(JOINED_BYTES_MIN));
            return;
        }
        for at in 0..self.sources.len() {
            let source = self.sources[at].object.id;
            self.remember(now, source).lacked_time = true;
        }
    }

    /// Not one extent of the only source was copied in time: the source, if that is new.
    fn note_too_slow(&mut self, now: Duration) -> Option<ObjectId> {
        let [source] = self.sources[..] else { return None };
        let id = source.object.id;
        let is_known = std::mem::replace(&mut self.remember(now, id).is_too_slow, true);
        (!is_known).then_some(id)
    }

    /// Leaves a source alone that failed in a group of so many.
    fn put_off(&mut self, now: Duration, pause: Duration, source: ObjectId, of: usize) {
        // One object alone cannot be joined, so the pauses of two that fail together grow instead.
        let least = if self.is_joining { 2 } else { 1 };
        let put_off = self.remember(now, source);
        put_off.until = now + (pause * 2_u32.pow(put_off.times.min(10))).min(PAUSE_MAX);
        if of <= least {
            put_off.times += 1;
        } else {
            // It may be innocent.
            put_off.group_max = put_off.group_max.min(of / 2).max(least);
        }
    }

    /// These sources, of a group of so many, were not rewritten (invariant 4).
    fn fail(&mut self, now: Duration, pause: Duration, failed: Vec<StoredObject>, of: usize) {
        let unread = std::mem::take(&mut self.unread);
        for source in failed {
            let id = source.object.id;
            match unread.is_empty() {
                true => self.put_off(now, pause, id, of),
                // That is put off already.
                false if unread.contains(&id) => {}
                false => self.put_back([source]),
            }
        }
    }

    /// A source cannot be read. True: it is damaged, which was not known.
    fn note_unread(&mut self, now: Duration, pause: Duration, source: ObjectId, error: &SourceError) -> bool {
        self.put_off(now, pause, source, 1);
        let damage = self.put_off.get_mut(&source).map(|put_off| &mut put_off.damage);
        match damage {
            Some(damage) if error.fault == Fault::Damage => damage.replace(error.why.clone()).is_none(),
            _ => false,
        }
    }

    /// Pieces of which an accepted extent has all.
    fn is_taken(accepted: &BTreeMap<(LedgerId, EntryId), EntryId>, ledger: LedgerId, piece: &Piece) -> bool {
        let before = accepted.range((ledger, EntryId::FIRST)..=(ledger, piece.first)).next_back();
        before.is_some_and(|(_, last)| *last >= piece.last)
    }

    /// Sources of which some extent is in `accepted`.
    fn advanced(&self, accepted: &BTreeMap<(LedgerId, EntryId), EntryId>) -> BTreeSet<ObjectId> {
        let pieces = self.ledgers.iter().zip(&self.pieces);
        let pieces = pieces.flat_map(|(of, pieces)| pieces.iter().map(|piece| (of.ledger, piece)));
        let taken = pieces.filter(|(ledger, piece)| Self::is_taken(accepted, *ledger, piece));
        taken.map(|(_, piece)| piece.object.id).collect()
    }

    /// Extents that became others' parts in `accepted`.
    fn joined(&self, accepted: &BTreeMap<(LedgerId, EntryId), EntryId>) -> u64 {
        let ranges = self.ledgers.iter().zip(&self.pieces);
        let is_one = |(of, pieces): &(&BuildLedger, &Vec<Piece>)| {
            accepted.get(&(of.ledger, of.first)).is_some_and(|last| *last == of.last) && pieces.len() > 1
        };
        ranges.filter(is_one).map(|(_, pieces)| pieces.len() as u64).sum()
    }

    /// All sources but these are not to be finished by the objects that follow.
    fn note_unfinished(&mut self, finished: &BTreeSet<ObjectId>) {
        let others = self.sources.iter().map(|source| source.object.id);
        self.unfinished.extend(others.filter(|source| !finished.contains(source)));
    }

    /// Sources all of whose live extents are in `accepted`: by ledger and first entry, the last one.
    fn finished(&self, accepted: &BTreeMap<(LedgerId, EntryId), EntryId>) -> BTreeSet<ObjectId> {
        let mut finished: BTreeSet<ObjectId> = self.sources.iter().map(|source| source.object.id).collect();
        for (wanted, pieces) in self.ledgers.iter().zip(&self.pieces) {
            for piece in pieces.iter().filter(|piece| !Self::is_taken(accepted, wanted.ledger, piece)) {
                finished.remove(&piece.object.id);
            }
        }
        finished
    }
}

impl Upkeep {
    /// The pass comes to rewriting.
    pub(super) fn go_to_rewriting(&mut self, now: Duration) -> Phase {
        let kept = match self.is_whole {
            true => self.examining.kept_undamaged(),
            false => {
                self.kept_elsewhere.values().filter(|is_damaged| **is_damaged != Some(true)).count() as u64
            }
        };
        self.rewriting.only_outranked = kept >= KEPT_TO_REWRITE_MAX;
        self.rewriting.budget = Budget::new(now, self.settings.interval);
        self.rewriting.candidates.retain(|object, _| self.team.owns_object(object));
        if !self.team.owns_upkeep() {
            self.rewriting.joins.clear();
        }
        self.rewriting.put_off.retain(|_, put_off| now < put_off.until.max(put_off.join_until) + KEPT_FOR);
        self.show_damaged();
        self.next_rewrite(now)
    }

    /// Takes in what the tierer with the upkeep has not deleted. Whether that is damaged is asked where it decides something: damaged objects wait for an
    /// operator, and must not keep others from being rewritten.
    pub(super) fn note_kept_elsewhere(&mut self, found: &[Garbage]) -> Phase {
        let before = std::mem::take(&mut self.kept_elsewhere);
        let mut unread = Vec::new();
        for stored in found.iter().filter_map(|garbage| garbage.stored) {
            let id = stored.object.id;
            let is_damaged = before.get(&id).copied().flatten();
            self.kept_elsewhere.insert(id, is_damaged);
            if is_damaged.is_none() {
                unread.push((id, stored.object.length_bytes));
            }
        }
        let are_few = (self.kept_elsewhere.len() as u64) < KEPT_TO_REWRITE_MAX;
        if are_few || unread.is_empty() { Phase::Scan } else { Phase::CheckKept(unread) }
    }

    pub(super) fn on_kept_checked(&mut self, read: &[(ObjectId, Result<Orphan, SourceError>)]) {
        for (object, outcome) in read {
            let is_damaged = match outcome {
                Ok(_) => Some(false),
                Err(SourceError { fault: Fault::Damage, .. }) => Some(true),
                Err(SourceError { fault: Fault::Passing | Fault::Gone, .. }) => None,
            };
            if let Some(kept) = self.kept_elsewhere.get_mut(object) {
                *kept = is_damaged;
            }
        }
    }

    fn next_rewrite(&mut self, now: Duration) -> Phase {
        let (mut group, mut is_joining) = (Vec::new(), false);
        if self.rewriting.budget.has_some(now) {
            group = self.rewriting.group(self.target_bytes);
            if group.is_empty() {
                (group, is_joining) = (self.rewriting.group_to_join(), true);
            }
        }
        if group.is_empty() {
            self.rewriting.budget.end();
            return self.end_pass(now);
        }
        self.rewriting.budget.spend(&group);
        let objects = group.iter().map(|source| source.object).collect();
        self.rewriting.begin(group, is_joining);
        Phase::Survey(objects, is_joining)
    }

    /// The extents of these sources, of a group of so many, hardly follow each other: by their spans they may be in other groups later.
    fn leave_apart(&mut self, now: Duration, of: usize) -> Phase {
        let sources = std::mem::take(&mut self.rewriting.sources);
        let knows_all = sources.iter().all(|source| !self.rewriting.joins.lacks_span(&source.object.id));
        if knows_all && (of == 1 || sources.len() < of) {
            // It was to be known which ledgers it has, or those that could not be read are missing.
            self.rewriting.put_back(sources);
            return self.next_rewrite(now);
        }
        for source in sources {
            let put_off = self.rewriting.remember(now, source.object.id);
            let pause = self.settings.rewrite_pause * 2_u32.pow(put_off.joins_in_vain.min(10));
            put_off.join_until = now + pause.min(PAUSE_MAX);
            put_off.joins_in_vain += 1;
        }
        self.next_rewrite(now)
    }

    /// Nothing comes of this group for now, and that is not its fault.
    fn put_off_rewrite(&mut self, now: Duration, why: String) -> Phase {
        self.status.counts.rewrite_failures += 1;
        self.status.last_error = Some(why);
        for source in std::mem::take(&mut self.rewriting.sources) {
            self.rewriting.put_off(now, self.settings.rewrite_pause, source.object.id, 1);
        }
        self.next_rewrite(now)
    }

    /// Nothing comes of this group for now.
    fn give_up_rewrite(&mut self, now: Duration, why: String) -> Phase {
        self.status.counts.rewrite_failures += 1;
        self.status.last_error = Some(why);
        let sources = std::mem::take(&mut self.rewriting.sources);
        let of = sources.len();
        self.rewriting.fail(now, self.settings.rewrite_pause, sources, of);
        self.next_rewrite(now)
    }

    /// No extent of this group was copied in time (invariant 6).
    fn give_up_late(&mut self, now: Duration, alarms: &mut Vec<Alarm>) -> Phase {
        let why = "rewriting took too long, and no extent of any source was copied by then".to_owned();
        if self.rewriting.is_joining {
            return self.give_up_rewrite(now, why);
        }
        if !self.rewriting.are_apart {
            // Single ones may be.
            self.status.last_error = Some(why);
            let sources = std::mem::take(&mut self.rewriting.sources);
            self.rewriting.put_back(sources);
            return self.next_rewrite(now);
        }
        if let Some(object) = self.rewriting.note_too_slow(now) {
            alarms.push(Alarm::RewriteTooSlow { object, why: why.clone() });
        }
        self.give_up_rewrite(now, why)
    }

    /// An operator is to know of an object that is damaged.
    fn show_damaged(&mut self) {
        let put_off = self.rewriting.put_off.iter();
        let of_sources = put_off.filter_map(|(id, put_off)| Some((id, put_off.damage.as_ref()?)));
        let mut damaged = of_sources.chain(self.examining.damaged());
        self.status.damaged = damaged.next().map(|(object, why)| format!("object {object}: {why}"));
        self.status.objects_damaged = u64::from(self.status.damaged.is_some()) + damaged.count() as u64;
    }

    fn note_unread(&mut self, now: Duration, object: ObjectId, error: SourceError, alarms: &mut Vec<Alarm>) {
        let pause = self.settings.rewrite_pause;
        if self.rewriting.note_unread(now, pause, object, &error) {
            alarms.push(Alarm::ObjectDamaged { object, why: error.why.clone() });
        }
        self.status.last_error = Some(format!("object {object}: {}", error.why));
        self.show_damaged();
    }

    pub(super) fn on_surveyed(
        &mut self,
        now: Duration,
        found: Vec<Survey>,
        alarms: &mut Vec<Alarm>,
    ) -> Phase {
        let of = found.len();
        let mut live = Vec::new();
        for (object, of_object) in found {
            match of_object {
                Ok(extents) => {
                    if self.rewriting.is_joining {
                        let ledgers = extents.iter().map(|extent| extent.ledger);
                        self.rewriting.joins.note_span(object.id, ledgers);
                    }
                    live.extend(extents.into_iter().map(|extent| (object, extent)));
                }
                Err(error) => {
                    self.rewriting.sources.retain(|source| source.object.id != object.id);
                    self.note_unread(now, object.id, error, alarms);
                }
            }
        }
        let has_some = self.rewriting.order(live, self.target_bytes);
        if self.rewriting.is_joining {
            if !has_some || of == 1 || !self.rewriting.is_worth_joining() {
                return self.leave_apart(now, of);
            }
            self.rewriting.cut(self.target_bytes);
        }
        if has_some { Phase::Reserve } else { self.next_rewrite(now) }
    }

    /// With an object of the catalogue that has a later id, if there is one.
    pub(super) fn on_reserved(
        &mut self,
        now: Duration,
        reserved: Result<(ObjectId, Option<ObjectId>), String>,
    ) -> Phase {
        let sources = &self.rewriting.sources;
        match reserved {
            // Invariant 2: clocks of two tierers may differ.
            Ok((object, _)) if sources.iter().any(|source| source.object.id >= object) => {
                self.put_off_rewrite(now, format!("object {object}: its id is below that of a source"))
            }
            Ok((object, Some(later))) if sources.iter().any(StoredObject::is_outranked) => {
                let why = format!(
                    "object {object}: its id is below that of object {later}, of which bookies may know: clocks differ, or did"
                );
                self.put_off_rewrite(now, why)
            }
            Ok((object, _)) => {
                let order = BuildOrder { object, ledgers: self.rewriting.ledgers.clone() };
                let is_too_slow = |source: &StoredObject| {
                    let put_off = self.rewriting.put_off.get(&source.object.id);
                    put_off.is_some_and(|put_off| put_off.is_too_slow)
                };
                let has_more_time = sources.iter().any(is_too_slow);
                Phase::Rewrite(RewriteOrder { order, pieces: self.rewriting.pieces.clone(), has_more_time })
            }
            Err(why) => self.put_off_rewrite(now, why),
        }
    }

    pub(super) fn on_rewritten(
        &mut self,
        now: Duration,
        built: Built,
        unread: Vec<(ObjectId, SourceError)>,
        alarms: &mut Vec<Alarm>,
    ) -> Phase {
        for (object, error) in unread {
            self.note_unread(now, object, error, alarms);
            self.rewriting.unread.insert(object);
        }
        self.rewriting.is_late = built.left.iter().any(|(_, left)| *left == Left::OutOfTime);
        if self.rewriting.is_late {
            self.rewriting.note_late(now);
            // Deletions wait for the end of the pass.
            self.rewriting.budget.end();
        }
        let new = match built.outcome {
            Ok(Some(new)) => new,
            Ok(None) if self.rewriting.is_late => return self.give_up_late(now, alarms),
            Ok(None) => return self.give_up_rewrite(now, "no entry of any source could be read".to_owned()),
            Err(why) => return self.give_up_rewrite(now, why),
        };
        if let Some((ledger, left)) = built.left.first() {
            self.status.last_error = Some(format!("rewriting ledger {ledger}: {left:?}"));
        }
        // The catalogue drops what ends within an extent.
        let ranges = self.rewriting.ledgers.iter().zip(&self.rewriting.pieces);
        let ends: BTreeSet<_> =
            ranges.flat_map(|(of, pieces)| pieces.iter().map(|piece| (of.ledger, piece.last))).collect();
        let whole = new.extents.iter().filter(|extent| ends.contains(&(extent.ledger, extent.last)));
        let read: BTreeMap<_, _> = whole.map(|extent| ((extent.ledger, extent.first), extent.last)).collect();
        if self.rewriting.is_joining && !read.is_empty() {
            let full = built.left.iter().filter(|(_, left)| *left == Left::Full);
            self.rewriting.leave_to_next(&full.map(|(ledger, _)| *ledger).collect(), &read);
        }
        let ranges = self.rewriting.ledgers.iter().zip(&self.rewriting.pieces);
        let mut pieces =
            ranges.flat_map(|(wanted, pieces)| pieces.iter().map(|piece| (wanted.ledger, piece)));
        if !pieces.any(|(ledger, piece)| Rewriting::is_taken(&read, ledger, piece)) {
            if self.rewriting.is_late {
                return self.give_up_late(now, alarms);
            }
            return self.give_up_rewrite(now, "no extent of any source could be read whole".to_owned());
        }
        self.rewriting.built = Some(new.clone());
        let sources = self.rewriting.sources.iter().map(|source| source.object.id).collect();
        Phase::Replace(new, sources)
    }

    pub(super) fn on_replaced(
        &mut self,
        now: Duration,
        outcome: Result<Result<Vec<ExtentOutcome>, Refusal>, String>,
    ) -> Phase {
        let outcomes = match outcome {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(refusal)) => return self.put_off_rewrite(now, refusal.to_string()),
            // Whether it happened is not known: the scan sees.
            Err(why) => return self.put_off_rewrite(now, why),
        };
        let Some(new) = self.rewriting.built.take() else { return self.next_rewrite(now) };
        let is_joining = self.rewriting.is_joining;
        let mut accepted = BTreeMap::new();
        for (extent, outcome) in new.extents.iter().zip(outcomes) {
            if outcome.verdict == Verdict::Accepted {
                accepted.insert((extent.ledger, extent.first), extent.last);
                self.status.counts.rewritten_bytes += extent.bytes;
            }
        }
        self.status.counts.rewrites += u64::from(!accepted.is_empty());
        if is_joining {
            self.status.counts.extents_joined += self.rewriting.joined(&accepted);
            let ledgers = new.extents.iter().map(|extent| extent.ledger);
            self.rewriting.joins.note_span(new.object.id, ledgers);
        }
        let mut finished = self.rewriting.finished(&accepted);
        if !self.rewriting.rest.is_empty() {
            self.rewriting.note_unfinished(&finished);
            // A source that cannot be read is asked once.
            let may_go_on = self.rewriting.budget.has_time(now) && self.rewriting.unread.is_empty();
            if may_go_on && !self.rewriting.is_late && !accepted.is_empty() {
                if let Some(bytes) = &mut self.rewriting.joined_bytes_max {
                    *bytes = bytes.saturating_mul(2);
                }
                self.rewriting.go_on(self.target_bytes);
                return Phase::Reserve;
            }
            let of_rest = self.rewriting.rest.iter().flat_map(|(_, pieces)| pieces);
            self.rewriting.unfinished.extend(of_rest.map(|piece| piece.object.id));
        }
        finished.retain(|source| !self.rewriting.unfinished.contains(source));
        self.status.counts.objects_rewritten += finished.len() as u64;
        let sources = std::mem::take(&mut self.rewriting.sources);
        let of = sources.len();
        let (done, failed): (Vec<StoredObject>, Vec<StoredObject>) =
            sources.into_iter().partition(|source| finished.contains(&source.object.id));
        done.iter().for_each(|source| drop(self.rewriting.put_off.remove(&source.object.id)));
        let is_cut = self.rewriting.is_late || !self.rewriting.rest.is_empty();
        let advanced = match is_cut {
            true => self.rewriting.advanced(&accepted),
            false => BTreeSet::new(),
        };
        let (advanced, failed): (Vec<StoredObject>, Vec<StoredObject>) =
            failed.into_iter().partition(|source| advanced.contains(&source.object.id));
        // They have less left each time (invariant 6).
        self.rewriting.put_back(advanced);
        self.rewriting.fail(now, self.settings.rewrite_pause, failed, of);
        self.show_damaged();
        self.next_rewrite(now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stored;
    use super::*;

    const PAUSE: Duration = Duration::from_secs(600);

    fn note(rewriting: &mut Rewriting, now: Duration, rows: &[ScannedRow]) {
        let settings = UpkeepSettings { join_below_bytes: 0, ..UpkeepSettings::default() };
        rewriting.note((now, 0), rows, &settings, &Team::alone());
    }

    fn object(n: usize) -> ObjectId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&(n as u64).to_be_bytes());
        ObjectId::new(7, random)
    }

    /// More objects cannot be rewritten than are remembered, and look as if they were most worth it: another one has its turn, and those that
    /// failed most often are not forgotten.
    #[test]
    fn many_objects_that_cannot_be_rewritten_block_no_other() {
        let mut rewriting = Rewriting::default();
        let now = Duration::from_secs(1000);
        let worst = object(PUT_OFF_MAX * 2);
        (0..8).for_each(|_| rewriting.put_off(now, PAUSE, worst, 1));
        for n in 0..PUT_OFF_MAX + 500 {
            rewriting.put_off(now + Duration::from_secs(n as u64 / 100), PAUSE, object(n), 1);
        }
        assert_eq!(rewriting.put_off.len(), PUT_OFF_MAX);
        assert_eq!(rewriting.put_off[&worst].times, 8);
        assert!(rewriting.put_off.contains_key(&object(PUT_OFF_MAX + 499)), "the last one is put off");
        let row = |of: &StoredObject| ScannedRow { object: of.object.id, live: Some(*of) };
        let good = stored(object(PUT_OFF_MAX * 3), 64 << 20, 0.4);
        let mut groups = 0;
        loop {
            // They come again and again, as if they had been forgotten at once.
            let bad: Vec<_> =
                (0..400).map(|n| row(&stored(object(PUT_OFF_MAX + 1000 + n), 640 << 20, 0.1))).collect();
            note(&mut rewriting, now, &bad);
            note(&mut rewriting, now, &[row(&good)]);
            let group = rewriting.group(64 << 20);
            if group.iter().any(|stored| stored.object.id == good.object.id) {
                break;
            }
            groups += 1;
            assert!(groups < 2000, "it never has its turn");
        }
    }

    /// Invariant 5.
    #[test]
    fn an_object_that_bookies_may_refuse_finds_room_among_the_candidates() {
        let mut rewriting = Rewriting { only_outranked: true, ..Rewriting::default() };
        let now = Duration::from_secs(1000);
        let row = |of: &StoredObject| ScannedRow { object: of.object.id, live: Some(*of) };
        let sparse: Vec<_> = (0..CANDIDATES_MAX).map(|n| row(&stored(object(n), 100, 0.1))).collect();
        note(&mut rewriting, now, &sparse);
        let replaced = Some(bindery_tiering::catalogue::Replaced { number: 3, at_ms: 0 });
        let refused = StoredObject { replaced, ..stored(object(CANDIDATES_MAX * 2), 100, 1.0) };
        note(&mut rewriting, now, &[row(&refused)]);
        assert_eq!((rewriting.candidates.len(), rewriting.group(1000)), (CANDIDATES_MAX, vec![refused]));
    }

    #[test]
    fn an_object_that_is_not_referred_to_any_more_is_forgotten() {
        let mut rewriting = Rewriting::default();
        let now = Duration::from_secs(1000);
        // Two at least are joined, however often an upload fails.
        let mut joining = Rewriting { is_joining: true, ..Rewriting::default() };
        [8, 4, 2, 2].into_iter().for_each(|of| joining.put_off(now, PAUSE, object(1), of));
        assert_eq!((joining.put_off[&object(1)].group_max, joining.put_off[&object(1)].times), (2, 2));
        rewriting.put_off(now, PAUSE, object(1), 4);
        assert_eq!((rewriting.put_off[&object(1)].group_max, rewriting.put_off[&object(1)].times), (2, 0));
        rewriting.put_off(now, PAUSE, object(1), 2);
        rewriting.put_off(now, PAUSE, object(1), 1);
        assert_eq!((rewriting.put_off[&object(1)].group_max, rewriting.put_off[&object(1)].times), (1, 1));
        note(&mut rewriting, now, &[ScannedRow { object: object(1), live: None }]);
        assert!(rewriting.put_off.is_empty());
    }
}
