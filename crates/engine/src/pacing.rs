//! When a flush writes on, and how much room adds are offered meanwhile. Arithmetic only: no clock, no lock.
//!
//! Journal and ledger storage share disks and processors. A flush that writes as fast as it can makes the adds beside
//! it wait; one that is too slow fills the pool, and then adds wait for its end. So the flush follows the adds, and when
//! it cannot, the adds follow the flush.
//!
//! # Data flow
//! ```text
//! Load (bytes active, frozen, written; chunks) -> FlushPace::wait -> the flush pauses before its next write
//!                                             \-> Room::offer    -> bytes that the group forming next may take
//! ```
//!
//! # Invariants
//! 1. A frozen set is written before the active one is frozen, as long as the disk can: at each moment the share that
//!    is written is at least the share of the next set that has filled.
//! 2. A flush is spread over `spread` at most, whatever the adds do; and it never pauses while the pool is half full, while
//!    no chunk is left for adds, or while a journal waits for a file. Only its end gives these back: a flush that paused for adds to come,
//!    while they wait for it, would take its whole spread, and the bookie would stand still meanwhile.
//! 3. The offer shrinks with the room that is left, from `group_bytes_max` to nothing, and each byte that the flush
//!    writes gives a byte back at once, not at its end.
//! 4. Only ordinary adds are held back, and only while a flush is under way, whose end opens the room again.
//!
//! # Limits
//! The sets of an engine that takes more than its disks do grow to half of the pool's chunks, and no further.

use std::time::Duration;

/// A pause is reconsidered after this long: adds may have come, or a stop.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Shorter pauses cost more than they give.
const PAUSE_MIN: Duration = Duration::from_micros(100);

/// One group may take this share of the room that is left, so that room is left while a flush commits.
const SHARE_OF_ROOM: u64 = 16;

/// Less is not worth a group of its own: adds wait for the next write of the flush.
const OFFER_MIN: u64 = 64 << 10;

/// The load of the write caches, in bytes of records and of their index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Not frozen.
    pub(crate) active: u64,
    /// Frozen, with a flush that is not committed.
    pub(crate) frozen: u64,
    /// Of the frozen ones, written to an entry log already.
    pub(crate) written: u64,
    /// Only the end of the flush gives adds what they need: no chunk is left for them, or a journal waits for a file.
    pub(crate) blocks_adds: bool,
}

impl Load {
    /// Bytes that still have to be written.
    fn unwritten(&self) -> u64 {
        self.active + self.frozen.saturating_sub(self.written)
    }
}

/// The room of the write pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes that may be unwritten: half of what fits, as written bytes keep their chunks until the commit.
    pub(crate) unwritten_max: u64,
    /// Bytes at which the active caches are frozen.
    pub(crate) freeze_at: u64,
    /// Most bytes of a group.
    pub(crate) group_bytes_max: u64,
}

impl Room {
    /// Bytes that the next group may take, while a flush is under way (invariant 3).
    pub(crate) fn offer(&self, load: Load) -> u64 {
        let used = load.unwritten();
        if used <= self.unwritten_max / 5 * 4 {
            return self.group_bytes_max;
        }
        let left = self.unwritten_max.saturating_sub(used);
        let least = OFFER_MIN.min(self.unwritten_max / 64).max(1);
        if left < least { 0 } else { (left / SHARE_OF_ROOM).max(least).min(self.group_bytes_max) }
    }

    /// True when a flush has no time to lose.
    fn is_scarce(&self, load: Load) -> bool {
        load.blocks_adds || load.unwritten() > (self.unwritten_max / 2).max(self.freeze_at / 4 * 5)
    }
}

/// The course of one flush.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushPace {
    room: Room,
    /// Bytes it has to write.
    total: u64,
    begun_ns: u64,
    spread_ns: u64,
}

impl FlushPace {
    /// A flush of `total` bytes that begins at `now_ns` and takes `spread` at most; zero for one that never pauses.
    pub(crate) fn begin(room: Room, total: u64, now_ns: u64, spread: Duration) -> FlushPace {
        let spread_ns = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX);
        FlushPace { room, total, begun_ns: now_ns, spread_ns }
    }

    /// How long to wait before the next write; ask again after it. Zero: write.
    pub(crate) fn wait(&self, now_ns: u64, load: Load) -> Duration {
        let elapsed = now_ns.saturating_sub(self.begun_ns);
        if elapsed >= self.spread_ns || load.written >= self.total || self.room.is_scarce(load) {
            return Duration::ZERO;
        }
        // Done when the next set is full to seven eighths: the rest is for index, sync and commit.
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        let due = share(load.active, self.room.freeze_at / 8 * 7).max(share(elapsed, self.spread_ns));
        let ahead = share(load.written, self.total) - due;
        if ahead <= 0.0 {
            return Duration::ZERO;
        }
        // At the rate so far; at the start nothing is known of it.
        let wait = elapsed as f64 * ahead / due.max(f64::EPSILON);
        Duration::from_nanos(wait.min(PAUSE_MAX.as_nanos() as f64) as u64).max(PAUSE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const ROOM: Room = Room { unwritten_max: 224 * MIB, freeze_at: 64 * MIB, group_bytes_max: 16 * MIB };
    const SPREAD: Duration = Duration::from_secs(1);

    /// A disk that the flush has for itself, adds at a rate, in steps of simulated time.
    struct Model {
        now_ns: u64,
        load: Load,
        /// Bytes of the flush under way.
        total: u64,
        pace: FlushPace,
        /// Sets frozen so far, and the time each flush took.
        flushes_ns: Vec<u64>,
        paused_ns: u64,
    }

    impl Model {
        fn new(set: u64) -> Model {
            let load = Load { frozen: set, ..Load::default() };
            let pace = FlushPace::begin(ROOM, set, 0, SPREAD);
            Model { now_ns: 0, load, total: set, pace, flushes_ns: Vec::new(), paused_ns: 0 }
        }

        /// Adds for `ns`, held back by what is offered in groups of a millisecond. Returns bytes taken.
        fn fill(&mut self, ns: u64, bytes_per_ms: u64) -> u64 {
            let mut left = ns;
            let mut taken = 0;
            while left > 0 {
                let step = left.min(1_000_000);
                let wanted = bytes_per_ms * step / 1_000_000;
                let got = wanted.min(ROOM.offer(self.load));
                self.load.active += got;
                taken += got;
                left -= step;
            }
            self.now_ns += ns;
            taken
        }

        /// One pause or one write of a MiB at `disk_bytes_per_ms`. Returns bytes that adds brought meanwhile.
        fn step(&mut self, bytes_per_ms: u64, disk_bytes_per_ms: u64) -> u64 {
            let wait = u64::try_from(self.pace.wait(self.now_ns, self.load).as_nanos()).unwrap();
            if wait > 0 {
                self.paused_ns += wait;
                return self.fill(wait, bytes_per_ms);
            }
            let taken = self.fill(MIB * 1_000_000 / disk_bytes_per_ms, bytes_per_ms);
            self.load.written += MIB;
            if self.load.written >= self.total {
                self.flushes_ns.push(self.now_ns - self.pace.begun_ns);
                if self.load.active >= ROOM.freeze_at {
                    let total = self.load.active;
                    self.load = Load { frozen: total, ..Load::default() };
                    self.pace = FlushPace::begin(ROOM, total, self.now_ns, SPREAD);
                    self.total = total;
                } else {
                    self.load = Load { active: self.load.active, ..Load::default() };
                }
            }
            taken
        }
    }

    /// Invariant 1: at a steady rate each set is written just before the next one is full.
    #[test]
    fn a_flush_takes_the_time_that_the_next_set_takes_to_fill() {
        let mut model = Model::new(64 * MIB);
        let rate = MIB / 5; // a set in 320 ms; the disk writes one in 64 ms
        while model.flushes_ns.is_empty() {
            model.step(rate, MIB);
        }
        let took_ms = model.flushes_ns[0] / 1_000_000;
        assert!((230..320).contains(&took_ms), "{took_ms} ms");
        assert!(model.load.active < ROOM.freeze_at, "the next set is not full");
        assert!(model.paused_ns > 150_000_000, "paused {} ns", model.paused_ns);
    }

    /// Invariant 2: without adds a flush ends, in its spread.
    #[test]
    fn without_adds_a_flush_takes_its_spread_and_no_longer() {
        let mut model = Model::new(64 * MIB);
        while model.flushes_ns.is_empty() {
            model.step(0, MIB);
        }
        let took_ms = model.flushes_ns[0] / 1_000_000;
        assert!((900..=1_010).contains(&took_ms), "{took_ms} ms");
        let unpaced = FlushPace::begin(ROOM, 64 * MIB, 0, Duration::ZERO);
        assert_eq!(
            unpaced.wait(1, Load { frozen: 64 * MIB, written: 32 * MIB, ..Load::default() }),
            Duration::ZERO
        );
    }

    /// Invariant 3: adds that come faster than the disk writes are slowed to its rate, with no gap as long as a flush.
    #[test]
    fn adds_that_overrun_the_disk_follow_its_rate_without_a_stop() {
        let mut model = Model::new(64 * MIB);
        let (rate, disk) = (3 * MIB, MIB);
        while model.flushes_ns.len() < 8 {
            model.step(rate, disk);
        }
        let (mut taken, mut gap, mut longest) = (0, 0, 0);
        let begun = model.now_ns;
        while model.now_ns < begun + 2_000_000_000 {
            let before = model.now_ns;
            let got = model.step(rate, disk);
            taken += got;
            gap = if got == 0 { gap + model.now_ns - before } else { 0 };
            longest = longest.max(gap);
        }
        let share = taken as f64 / (2_000 * disk) as f64;
        assert!((0.95..1.05).contains(&share), "adds got {share} of the disk's rate");
        assert!(longest <= 2_000_000, "adds stood still for {longest} ns");
        assert!(model.total <= ROOM.unwritten_max, "a set of {} bytes", model.total);
    }

    proptest! {
        /// Invariants 1, 2 and 3 at every load.
        #[test]
        fn waits_and_offers_are_bounded_and_monotonic(
            active in 0u64..400, frozen in 0u64..400, written in 0u64..400, elapsed_ms in 0u64..3_000,
        ) {
            let (active, frozen, written) = (active * MIB, frozen * MIB, written.min(frozen) * MIB);
            let load = Load { active, frozen, written, blocks_adds: false };
            let offer = ROOM.offer(load);
            prop_assert!(offer <= ROOM.group_bytes_max);
            prop_assert!(load.unwritten() + offer <= ROOM.unwritten_max.max(load.unwritten()));
            let more = Load { active: load.active + MIB, ..load };
            prop_assert!(ROOM.offer(more) <= offer, "more entries never make more room");
            if load.written < load.frozen {
                let further = Load { written: load.written + MIB, ..load };
                prop_assert!(ROOM.offer(further) >= offer, "written bytes make room");
            }
            let pace = FlushPace::begin(ROOM, load.frozen, 0, SPREAD);
            let wait = pace.wait(elapsed_ms * 1_000_000, load);
            prop_assert!(wait <= PAUSE_MAX);
            let lacking = Load { blocks_adds: true, ..load };
            prop_assert_eq!(pace.wait(elapsed_ms * 1_000_000, lacking), Duration::ZERO);
            let is_late = load.written * (ROOM.freeze_at / 8 * 7) < load.active * load.frozen;
            if is_late || elapsed_ms >= 1_000 || offer < ROOM.group_bytes_max {
                prop_assert_eq!(wait, Duration::ZERO);
            }
        }
    }
}
