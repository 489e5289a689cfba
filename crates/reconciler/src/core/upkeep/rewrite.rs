//! Which objects are rewritten, and in which order what is live of them goes into a new one (T16).
//!
//! # Data flow
//! ```text
//! page of the scan ─► sparse objects ─► as many as fit one object ─► survey: live extents, metadata of their ledgers
//!                                       extents in their order, an id, built ◄─┘
//!                                                                └─► catalogue: each takes the place of exactly its range, or is dropped
//! ```
//!
//! # Invariants
//! 1. Only whole extents that the catalogue refers to are ordered, by ledger and first entry. Those that follow each other become one.
//! 2. The new object's id is above those of its sources: by it a bookie tells which of two objects it was told of later.
//! 3. An object that was deleted, or rewritten by somebody else, meanwhile leaves extents that the catalogue drops, and an object of
//!    nobody if it drops all of them. Nothing else happens.
//! 4. Sources of which something is left are left alone for a while, ever longer.
//! 5. An object that bookies may refuse, after the catalogue was rebuilt ([`StoredObject::is_outranked`]), is rewritten whatever is live of
//!    it, also while many objects wait, which may be for that.
//!
//! # Limits     sources of one object: [`SOURCES_MAX`]; objects in one pass: [`REWRITES_PER_PASS`]; candidates: [`CANDIDATES_MAX`]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{ExtentOutcome, NewExtent, NewObject, Refusal, StoredObject, Verdict};
use bindery_tiering::object::{FOOTER_BYTES_TARGET, TRAILER_SIZE_BYTES};
use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};

use super::event::{LiveExtent, Piece, RewriteOrder, Survey};
use super::{Phase, ScannedRow, Upkeep};
use crate::core::{BuildLedger, BuildOrder, Built};

/// Objects that go into one.
const SOURCES_MAX: usize = 16;
/// With so many objects waiting for bookies none is rewritten because of its size: they take space beside those that were made of them.
const WAITING_TO_REWRITE_MAX: u64 = 64;
/// Objects that are made in one pass: deletions wait for its end.
const REWRITES_PER_PASS: usize = 8;
/// Objects that are remembered until their turn, and those that are left alone.
const CANDIDATES_MAX: usize = 1000;
/// Extents of sources that become one: fewer than the catalogue takes.
const PIECES_MAX: usize = 1000;
/// The longest pause of a source.
const PAUSE_MAX: Duration = Duration::from_secs(24 * 3600);

/// What is going on.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// Sparse objects, as the scan saw them.
    candidates: BTreeMap<ObjectId, StoredObject>,
    /// Sources that are left alone until a time, and how often in a row.
    put_off: BTreeMap<ObjectId, (Duration, u32)>,
    /// Objects that may still be made in this pass,
    left: usize,
    /// and only of those that bookies may refuse.
    only_outranked: bool,
    sources: Vec<ObjectRef>,
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
    /// Objects of a page of the scan of which a smaller part than `below` is live, and those of invariant 5.
    pub fn note(&mut self, now: Duration, rows: &[ScannedRow], below: f64) {
        for stored in rows.iter().filter_map(|row| row.live) {
            let id = stored.object.id;
            let is_put_off = self.put_off.get(&id).is_some_and(|(until, _)| now < *until);
            let is_wanted = stored.is_outranked() || stored.live_ratio() < below;
            if stored.live_extents == 0 || !is_wanted || is_put_off {
                self.candidates.remove(&id);
            } else if self.candidates.len() < CANDIDATES_MAX {
                self.candidates.insert(id, stored);
            }
        }
    }

    /// The next sources: those with the smallest live part first, as many as fit.
    fn group(&mut self, target_bytes: u64) -> Vec<ObjectRef> {
        let may_be = |stored: &&StoredObject| !self.only_outranked || stored.is_outranked();
        let mut by_ratio: Vec<StoredObject> = self.candidates.values().filter(may_be).copied().collect();
        by_ratio.sort_unstable_by(|a, b| {
            a.live_ratio().total_cmp(&b.live_ratio()).then(a.object.id.cmp(&b.object.id))
        });
        let (mut bytes, mut footer) = (0, 0);
        let mut group: Vec<ObjectRef> = Vec::new();
        for stored in by_ratio {
            let more = (bytes + live_bytes(&stored), footer + footer_bytes(&stored));
            let fits = more.0 <= target_bytes && more.1 <= FOOTER_BYTES_TARGET;
            if group.len() < SOURCES_MAX && (group.is_empty() || fits) {
                (bytes, footer) = more;
                group.push(stored.object);
                self.candidates.remove(&stored.object.id);
            }
        }
        group
    }

    /// Puts live extents in their order. False: there is nothing to build.
    fn order(&mut self, mut live: Vec<(ObjectRef, LiveExtent)>) -> bool {
        live.sort_unstable_by_key(|(_, extent)| (extent.ledger, extent.first));
        self.ledgers.clear();
        self.pieces.clear();
        for (object, LiveExtent { ledger, first, last, bytes, metadata }) in live {
            let piece = Piece { object, first, last };
            let before = self.ledgers.last_mut().filter(|before| before.ledger == ledger);
            match (before, self.pieces.last_mut()) {
                // It was rewritten by somebody else between two looks: whoever has it twice has it in the other.
                (Some(before), _) if first <= before.last => {}
                (Some(before), Some(pieces))
                    if before.last.get() + 1 == first.get() && pieces.len() < PIECES_MAX =>
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

    fn put_off(&mut self, now: Duration, pause: Duration, source: ObjectId) {
        let times = self.put_off.get(&source).map_or(0, |(_, times)| *times);
        if self.put_off.len() >= CANDIDATES_MAX {
            self.put_off.retain(|_, (until, _)| now < *until);
        }
        if self.put_off.len() < CANDIDATES_MAX {
            let until = now + (pause * 2_u32.pow(times.min(10))).min(PAUSE_MAX);
            self.put_off.insert(source, (until, times + 1));
        }
    }

    /// Sources all of whose live extents are in `accepted`.
    fn finished(&self, accepted: &BTreeSet<(LedgerId, EntryId, EntryId)>) -> BTreeSet<ObjectId> {
        let mut finished: BTreeSet<ObjectId> = self.sources.iter().map(|source| source.id).collect();
        for (wanted, pieces) in self.ledgers.iter().zip(&self.pieces) {
            if !accepted.contains(&(wanted.ledger, wanted.first, wanted.last)) {
                for piece in pieces {
                    finished.remove(&piece.object.id);
                }
            }
        }
        finished
    }
}

impl Upkeep {
    /// The pass comes to rewriting.
    pub(super) fn go_to_rewriting(&mut self, now: Duration) -> Phase {
        self.rewriting.only_outranked = self.status.objects_waiting >= WAITING_TO_REWRITE_MAX;
        self.rewriting.left = REWRITES_PER_PASS;
        self.next_rewrite(now)
    }

    fn next_rewrite(&mut self, now: Duration) -> Phase {
        if self.rewriting.left == 0 {
            return self.end_pass(now);
        }
        self.rewriting.left -= 1;
        let group = self.rewriting.group(self.target_bytes);
        if group.is_empty() {
            return self.end_pass(now);
        }
        self.rewriting.sources = group.clone();
        Phase::Survey(group)
    }

    /// Nothing comes of this group for now.
    fn give_up_rewrite(&mut self, now: Duration, why: String) -> Phase {
        self.status.counts.rewrite_failures += 1;
        self.status.last_error = Some(why);
        let sources = std::mem::take(&mut self.rewriting.sources);
        for source in sources {
            self.rewriting.put_off(now, self.settings.rewrite_pause, source.id);
        }
        self.next_rewrite(now)
    }

    pub(super) fn on_surveyed(&mut self, now: Duration, found: Vec<Survey>) -> Phase {
        let mut live = Vec::new();
        for (object, of_object) in found {
            match of_object {
                Ok(extents) => live.extend(extents.into_iter().map(|extent| (object, extent))),
                Err(why) => {
                    self.status.last_error = Some(format!("object {}: {why}", object.id));
                    self.rewriting.sources.retain(|source| source.id != object.id);
                    self.rewriting.put_off(now, self.settings.rewrite_pause, object.id);
                }
            }
        }
        if self.rewriting.order(live) { Phase::Reserve } else { self.next_rewrite(now) }
    }

    pub(super) fn on_reserved(&mut self, now: Duration, object: Result<ObjectId, String>) -> Phase {
        match object {
            // Invariant 2: clocks of two tierers may differ.
            Ok(object) if self.rewriting.sources.iter().any(|source| source.id >= object) => {
                self.give_up_rewrite(now, format!("object {object}: its id is below that of a source"))
            }
            Ok(object) => {
                let order = BuildOrder { object, ledgers: self.rewriting.ledgers.clone() };
                Phase::Rewrite(RewriteOrder { order, pieces: self.rewriting.pieces.clone() })
            }
            Err(why) => self.give_up_rewrite(now, why),
        }
    }

    pub(super) fn on_rewritten(&mut self, now: Duration, built: Built) -> Phase {
        let new = match built.outcome {
            Ok(Some(new)) => new,
            Ok(None) => return self.give_up_rewrite(now, "no entry of any source could be read".to_owned()),
            Err(why) => return self.give_up_rewrite(now, why),
        };
        if let Some((ledger, left)) = built.left.first() {
            self.status.last_error = Some(format!("rewriting ledger {ledger}: {left:?}"));
        }
        let wanted = self.rewriting.ledgers.iter();
        let wanted: BTreeSet<_> = wanted.map(|wanted| (wanted.ledger, wanted.first, wanted.last)).collect();
        let is_whole = |extent: &NewExtent| wanted.contains(&(extent.ledger, extent.first, extent.last));
        if !new.extents.iter().any(is_whole) {
            return self.give_up_rewrite(now, "no extent of any source could be read whole".to_owned());
        }
        self.rewriting.built = Some(new.clone());
        let sources = self.rewriting.sources.iter().map(|source| source.id).collect();
        Phase::Replace(new, sources)
    }

    pub(super) fn on_replaced(
        &mut self,
        now: Duration,
        outcome: Result<Result<Vec<ExtentOutcome>, Refusal>, String>,
    ) -> Phase {
        let outcomes = match outcome {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(refusal)) => return self.give_up_rewrite(now, refusal.to_string()),
            // Whether it happened is not known: the scan sees.
            Err(why) => return self.give_up_rewrite(now, why),
        };
        let Some(new) = self.rewriting.built.take() else { return self.next_rewrite(now) };
        let mut accepted = BTreeSet::new();
        for (extent, outcome) in new.extents.iter().zip(outcomes) {
            if outcome.verdict == Verdict::Accepted {
                accepted.insert((extent.ledger, extent.first, extent.last));
                self.status.counts.rewritten_bytes += extent.bytes;
            }
        }
        let finished = self.rewriting.finished(&accepted);
        self.status.counts.rewrites += u64::from(!accepted.is_empty());
        self.status.counts.objects_rewritten += finished.len() as u64;
        for source in std::mem::take(&mut self.rewriting.sources) {
            match finished.contains(&source.id) {
                true => drop(self.rewriting.put_off.remove(&source.id)),
                false => self.rewriting.put_off(now, self.settings.rewrite_pause, source.id),
            }
        }
        self.next_rewrite(now)
    }
}
