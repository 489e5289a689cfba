//! Decides which ledgers' local copies may go, and in which order. Synchronous, without I/O and clock.
//!
//! # Data flow
//! ```text
//! ledgers with something in object storage ─► observe ─► due (age, or a disk that is short of space) ─► judge (metadata)
//!     ─► checked by the caller (T19) ─► trimmed, or blocked until another check goes well
//! ```
//!
//! # Invariants
//! 1. A ledger is trimmed as a whole, once its metadata says that it is closed and that its last entry is the last one that
//!    object storage has (T9); and only what the metadata store still has.
//! 2. It has not changed for as long as the grace says, so that its copies are on disk and readers that chose them are
//!    through with them.
//! 3. Of ledgers that are due, those come first that were not considered since they changed, the oldest first, then those whose
//!    turn was longest ago: however many may not go, the others come. When a disk is short of space, only as many go before their time
//!    as that takes.
//! 4. A ledger whose copy in object storage differs is left alone until it is checked again, soon at first and then ever more
//!    rarely, and shown until a check succeeds (T19).
//! 5. Space that does not come back within [`BACK_WITHIN`] counts as lacking again: how much came back cannot be measured while
//!    clients write.
//!
//! # Limits
//! Ledgers remembered: [`REMEMBERED_MAX`]; those that differ and are shown: [`BLOCKED_MAX`].

use bindery_io::canary::{Canaries, Canary};
use bindery_types::{EntryId, LedgerId, LedgerMetadata, LedgerState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Ledgers whose age is known. More wait until some of these have gone.
pub const REMEMBERED_MAX: usize = 1 << 20;
/// Ledgers that differ and are shown one by one.
pub const BLOCKED_MAX: usize = 1_000;
/// A ledger that differed is checked again after this, doubled each time up to [`TrimConfig::recheck`].
const RECHECK_FIRST: Duration = Duration::from_secs(60);
/// Copies that go within this time are counted together, so that few numbers are kept.
const GOING_TOGETHER: Duration = Duration::from_secs(60);
/// Space of copies that were let go comes back with garbage collection and compaction, within this.
pub const BACK_WITHIN: Duration = Duration::from_secs(3600);

/// When local copies go.
#[derive(Debug, Clone, PartialEq)]
pub struct TrimConfig {
    /// False: nothing goes.
    pub is_on: bool,
    /// How long local copies of a ledger stay after all of it is in object storage. Default: 4 h.
    pub grace: Duration,
    /// The same while a disk is short of space. Default: 10 min.
    pub grace_when_short: Duration,
    /// Entry logs may take so many bytes before that counts as short of space; `None`: any number.
    pub local_bytes_max: Option<u64>,
    /// A disk with less than this share free is short of space. Default: 0.2.
    pub free_share_min: f64,
    /// Custom properties of ledgers that may be trimmed (`application=pulsar`); one of them must be there. Empty: all ledgers.
    pub properties: Vec<(String, String)>,
    /// Blocks of each extent that are read back before its ledger goes; `None`: all of them. Default: 3.
    pub samples: Option<usize>,
    /// Time between two rounds. Default: 60 s.
    pub interval: Duration,
    /// Ledgers looked at in a second. Default: 20.
    pub ledgers_per_second: u32,
    /// A ledger that differed is checked again after this at the latest. Default: 1 h.
    pub recheck: Duration,
}

impl Default for TrimConfig {
    fn default() -> TrimConfig {
        TrimConfig {
            is_on: true,
            grace: Duration::from_secs(4 * 3600),
            grace_when_short: Duration::from_secs(600),
            local_bytes_max: None,
            free_share_min: 0.2,
            properties: Vec::new(),
            samples: Some(3),
            interval: Duration::from_secs(60),
            ledgers_per_second: 20,
            recheck: Duration::from_secs(3600),
        }
    }
}

impl TrimConfig {
    /// Local copies go this long after all of a ledger is in object storage. A short grace shortens the one of a full disk, and the
    /// time between two rounds, too.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
        self.grace_when_short = self.grace_when_short.min(grace);
        self.interval = self.interval.min(grace.max(Duration::from_secs(1)));
    }

    /// Whether a ledger has one of the properties, if there are any.
    pub fn wants(&self, metadata: &LedgerMetadata) -> bool {
        let has = |(name, value): &(String, String)| {
            metadata.custom.get(name).is_some_and(|found| found[..] == *value.as_bytes())
        };
        self.properties.is_empty() || self.properties.iter().any(has)
    }
}

/// A ledger of which something is in object storage and not trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The ledger.
    pub ledger: LedgerId,
    /// Which life of it.
    pub life: u32,
    /// The last entry in object storage.
    pub lre: EntryId,
}

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// Bytes of entry logs.
    pub local_bytes: u64,
    /// Bytes of the disks that hold them.
    pub disk_bytes: u64,
    /// Bytes of these that are free.
    pub free_bytes: u64,
}

/// What metadata says about trimming a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All of it is in object storage.
    MayGo,
    /// It is still written to, or its end is not there yet.
    NotYet,
    /// It has none of the properties that the configuration names.
    NotWanted,
    /// Object storage is said to have entries that the ledger does not: one of the two is wrong (T2).
    Beyond {
        /// The last entry, by the metadata.
        last: Option<EntryId>,
    },
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    life: u32,
    lre: EntryId,
    since_ns: u64,
    /// Not to be considered before then: its metadata said that it may not go, or its check failed.
    not_before_ns: u64,
    /// When it was considered last; 0 when it was not.
    turn_ns: u64,
    /// Checks in a row that found a difference.
    differed: u32,
}

/// A ledger whose copy in object storage was found to differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// In which way.
    pub why: String,
    /// Time of day, in milliseconds since 1970, when that was found first.
    pub since_ms: i64,
}

/// See the module.
pub struct Trimmer {
    config: TrimConfig,
    canaries: Canaries,
    seen: BTreeMap<LedgerId, Seen>,
    /// By the time since which they wait.
    oldest: BTreeSet<(u64, LedgerId)>,
    blocked: BTreeMap<LedgerId, Blocked>,
    blocked_count: usize,
    /// Bytes of copies that were let go and whose space has not come back, as far as that shows, with the time of each, ascending.
    going: VecDeque<(u64, u64)>,
    /// Bytes of entry logs when they were last measured.
    local_bytes: u64,
}

impl Trimmer {
    /// One that has seen nothing.
    pub fn new(config: TrimConfig, canaries: Canaries) -> Trimmer {
        Trimmer {
            config,
            canaries,
            seen: BTreeMap::new(),
            oldest: BTreeSet::new(),
            blocked: BTreeMap::new(),
            blocked_count: 0,
            going: VecDeque::new(),
            local_bytes: 0,
        }
    }

    /// Its settings.
    pub fn config(&self) -> &TrimConfig {
        &self.config
    }

    /// Takes all ledgers that have something to be trimmed, ascending. Others are forgotten; for one that changed the grace
    /// starts again.
    pub fn observe(&mut self, now_ns: u64, candidates: impl Iterator<Item = Candidate>) {
        let mut before = std::mem::take(&mut self.seen);
        let mut blocked = std::mem::take(&mut self.blocked);
        self.oldest.clear();
        for candidate in candidates {
            let Candidate { ledger, life, lre } = candidate;
            let known = before.remove(&ledger).filter(|seen| (seen.life, seen.lre) == (life, lre));
            if known.is_none() && self.seen.len() >= REMEMBERED_MAX {
                continue;
            }
            let seen = known.unwrap_or(Seen {
                life,
                lre,
                since_ns: now_ns,
                not_before_ns: 0,
                turn_ns: 0,
                differed: 0,
            });
            self.seen.insert(ledger, seen);
            self.oldest.insert((seen.since_ns, ledger));
            if let Some(entry) = blocked.remove(&ledger) {
                self.blocked.insert(ledger, entry);
            }
        }
        self.blocked_count = self.blocked.len();
    }

    /// How many bytes are to go before their time; nothing when there is room enough.
    pub fn lacking(&mut self, now_ns: u64, room: Room) -> u64 {
        let mut back = self.local_bytes.saturating_sub(room.local_bytes);
        let expired = now_ns.saturating_sub(BACK_WITHIN.as_nanos() as u64);
        while let Some((at_ns, bytes)) = self.going.front_mut() {
            let came_back = back.min(*bytes);
            (*bytes, back) = (*bytes - came_back, back - came_back);
            if *bytes > 0 && *at_ns >= expired {
                break;
            }
            self.going.pop_front();
        }
        let going_bytes: u64 = self.going.iter().map(|(_, bytes)| bytes).sum();
        self.local_bytes = room.local_bytes;
        let too_many = self.config.local_bytes_max.map_or(0, |max| room.local_bytes.saturating_sub(max));
        let free_min = (room.disk_bytes as f64 * self.config.free_share_min) as u64;
        let too_few = free_min.saturating_sub(room.free_bytes);
        too_many.max(too_few).saturating_sub(going_bytes)
    }

    /// Ledgers that may be considered now, `max` at most (invariant 3).
    pub fn due(&self, now_ns: u64, is_short: bool, max: usize) -> Vec<Candidate> {
        if !self.config.is_on {
            return Vec::new();
        }
        let grace = if is_short { self.config.grace_when_short } else { self.config.grace };
        let grace_ns = grace.min(self.config.grace).as_nanos() as u64;
        let is_over = |(since_ns, _): &&(u64, LedgerId)| now_ns.saturating_sub(*since_ns) >= grace_ns;
        let old = self.oldest.iter().take_while(is_over).map(|(_, ledger)| (ledger, &self.seen[ledger]));
        let mut due: Vec<(u64, u64, Candidate)> = old
            .filter(|(_, seen)| seen.not_before_ns <= now_ns)
            .map(|(ledger, seen)| {
                let candidate = Candidate { ledger: *ledger, life: seen.life, lre: seen.lre };
                (seen.turn_ns, seen.since_ns, candidate)
            })
            .collect();
        // Stable: of one time, by id.
        due.sort_by_key(|(turn_ns, since_ns, _)| (*turn_ns, *since_ns));
        due.into_iter().take(max).map(|(_, _, candidate)| candidate).collect()
    }

    /// Considers ledgers that differ with the next round, whenever they are due: an operator has put something right.
    pub fn recheck(&mut self) {
        self.seen.values_mut().filter(|seen| seen.differed > 0).for_each(|seen| {
            (seen.not_before_ns, seen.turn_ns, seen.differed) = (0, 0, 1);
        });
    }

    /// True when a ledger has waited for the whole grace, whatever the room.
    pub fn is_of_age(&self, now_ns: u64, ledger: LedgerId) -> bool {
        let grace_ns = self.config.grace.as_nanos() as u64;
        self.seen.get(&ledger).is_some_and(|seen| now_ns.saturating_sub(seen.since_ns) >= grace_ns)
    }

    /// Whether a ledger may go, by its metadata (invariant 1).
    pub fn judge(&self, candidate: &Candidate, metadata: &LedgerMetadata) -> Verdict {
        if !self.config.wants(metadata) {
            return Verdict::NotWanted;
        }
        match &metadata.state {
            LedgerState::Closed { last_entry, .. } => {
                let last = *last_entry;
                if Some(candidate.lre) > last {
                    return Verdict::Beyond { last };
                }
                if Some(candidate.lre) == last || self.canaries.has(Canary::T9TrimsBeforeTheEnd) {
                    return Verdict::MayGo;
                }
                Verdict::NotYet
            }
            _ if self.canaries.has(Canary::T9TrimsBeforeTheEnd) => Verdict::MayGo,
            _ => Verdict::NotYet,
        }
    }

    /// Leaves a ledger alone for a while. It had its turn.
    pub fn put_off(&mut self, now_ns: u64, ledger: LedgerId, time: Duration) {
        if let Some(seen) = self.seen.get_mut(&ledger) {
            seen.turn_ns = now_ns.max(1);
            seen.not_before_ns = now_ns.saturating_add(time.as_nanos() as u64);
        }
    }

    /// A check found a difference (invariant 4). True when that is new, or not known to be old because [`BLOCKED_MAX`] others are shown.
    pub fn block(&mut self, now_ns: u64, now_ms: i64, ledger: LedgerId, why: String) -> bool {
        let differed = self.seen.get(&ledger).map_or(0, |seen| seen.differed);
        let pause = RECHECK_FIRST.saturating_mul(2_u32.saturating_pow(differed));
        self.put_off(now_ns, ledger, pause.min(self.config.recheck));
        if let Some(seen) = self.seen.get_mut(&ledger) {
            seen.differed = differed + 1;
        }
        match self.blocked.get_mut(&ledger) {
            Some(blocked) => {
                blocked.why = why;
                false
            }
            None => {
                self.blocked_count += 1;
                if self.blocked.len() < BLOCKED_MAX {
                    self.blocked.insert(ledger, Blocked { why, since_ms: now_ms });
                }
                true
            }
        }
    }

    /// Whether the outcome of a check allows a trim (T19).
    pub fn allows(&self, is_same: bool) -> bool {
        is_same || self.canaries.has(Canary::T19DifferenceIgnored)
    }

    /// The copies of a ledger were let go, about so many bytes. It is forgotten.
    pub fn trimmed(&mut self, now_ns: u64, ledger: LedgerId, bytes: u64) {
        match self.going.back_mut() {
            // One number for all of a round.
            Some((at_ns, going)) if now_ns.saturating_sub(*at_ns) < GOING_TOGETHER.as_nanos() as u64 => {
                *going = going.saturating_add(bytes);
            }
            _ => self.going.push_back((now_ns, bytes)),
        }
        self.unblock(ledger);
        if let Some(seen) = self.seen.remove(&ledger) {
            self.oldest.remove(&(seen.since_ns, ledger));
        }
    }

    /// A check went well.
    pub fn unblock(&mut self, ledger: LedgerId) {
        if self.blocked.remove(&ledger).is_some() {
            self.blocked_count -= 1;
        }
    }

    /// Ledgers that differ, as far as they are shown.
    pub fn blocked(&self) -> &BTreeMap<LedgerId, Blocked> {
        &self.blocked
    }

    /// How many ledgers differ, and how many have something to be trimmed, due or not, those that differ among them. Of those that differ,
    /// [`Trimmer::observe`] forgets the ones that are not shown, until their next check.
    pub fn counts(&self) -> (usize, usize) {
        (self.blocked_count, self.seen.len())
    }
}
