//! Clocks and random sources: the real ones, and the ones that tests and the simulator turn by hand.
//!
//! # Invariants
//! 1. The same seed gives the same numbers for ever, on every machine: recorded seeds must stay useful.
//! 2. A child generator depends on its parent's seed and its name only, not on how much was drawn from the parent,
//!    so that a new consumer does not shift the others.

use crate::{Clock, Random};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic origin is now.
    pub fn new() -> SystemClock {
        SystemClock { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn monotonic_ns(&self) -> u64 {
        // 2^64 ns are 584 years.
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wall_ms(&self) -> i64 {
        let ms = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => ms(since),
            Err(before) => -ms(before.duration()),
        }
    }
}

/// The kernel's random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0u8; 8];
        let mut filled = 0;
        while filled < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            let got = rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes[filled..], flags));
            // Without flags the call waits for the pool at boot and then always succeeds (Linux 3.17 and later).
            filled += got.expect("the kernel has getrandom");
        }
        u64::from_le_bytes(bytes)
    }
}

/// A clock that moves only when told to, or also by a little whenever it is read.
#[derive(Debug, Default)]
pub struct ManualClock {
    monotonic_ns: AtomicU64,
    wall_ms: AtomicI64,
    /// By how much each reading moves the monotonic time.
    tick_ns: u64,
}

impl ManualClock {
    /// Monotonic time 0, wall time as given.
    pub fn new(wall_ms: i64) -> ManualClock {
        ManualClock { monotonic_ns: AtomicU64::new(0), wall_ms: AtomicI64::new(wall_ms), tick_ns: 0 }
    }

    /// Whatever code looks at the clock for takes time: each reading moves the monotonic time by `tick`.
    pub fn ticking(self, tick: Duration) -> ManualClock {
        ManualClock { tick_ns: u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX), ..self }
    }

    /// Moves both times forward; the wall clock by whole milliseconds of `by`.
    pub fn advance(&self, by: Duration) {
        self.monotonic_ns.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        self.wall_ms.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Makes the wall clock jump, in either direction.
    pub fn set_wall_ms(&self, wall_ms: i64) {
        self.wall_ms.store(wall_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.fetch_add(self.tick_ns, Ordering::SeqCst)
    }
    fn wall_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst)
    }
}

/// The increment of splitmix64 (Steele, Lea, Flood 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn splitmix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// splitmix64: every number comes from the seed. For tests, the simulator, and choices that anybody may guess; never for
/// secrets.
#[derive(Debug)]
pub struct SeededRandom {
    seed: u64,
    state: AtomicU64,
}

impl SeededRandom {
    /// A generator.
    pub fn new(seed: u64) -> SeededRandom {
        SeededRandom { seed, state: AtomicU64::new(seed) }
    }

    /// The generator for a named purpose, for example `disk/b3`. See invariant 2.
    pub fn child(&self, name: &str) -> SeededRandom {
        let seed = name.bytes().fold(splitmix(self.seed ^ GOLDEN), |h, b| splitmix(h ^ u64::from(b)));
        SeededRandom::new(seed)
    }

    /// The seed it was made from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A number below `bound`, evenly (to one part in 2^64 / `bound`).
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in 0..1.
    pub fn unit(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with the given probability. Draws nothing when the answer is certain.
    pub fn chance(&self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.unit() < probability)
    }
}

impl Clone for SeededRandom {
    /// A generator that goes on exactly as this one will.
    fn clone(&self) -> Self {
        SeededRandom { seed: self.seed, state: AtomicU64::new(self.state.load(Ordering::SeqCst)) }
    }
}

impl Random for SeededRandom {
    fn next_u64(&self) -> u64 {
        splitmix(self.state.fetch_add(GOLDEN, Ordering::SeqCst).wrapping_add(GOLDEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // First outputs of the reference implementation for seed 1234567.
        let random = SeededRandom::new(1_234_567);
        let got: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn a_child_depends_on_seed_and_name_only() {
        let root = SeededRandom::new(7);
        let before = root.child("disk/b1").next_u64();
        root.next_u64();
        assert_eq!(root.child("disk/b1").next_u64(), before);
        assert_ne!(root.child("disk/b2").next_u64(), before);
        assert_ne!(SeededRandom::new(8).child("disk/b1").next_u64(), before);
    }

    #[test]
    fn below_and_chance_stay_in_their_bounds() {
        let random = SeededRandom::new(1);
        let mut seen = [0u32; 5];
        for _ in 0..5000 {
            seen[random.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert!(!random.chance(0.0));
        assert!(random.chance(1.0));
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2200..2800).contains(&hits), "{hits}");
    }

    #[test]
    fn clocks_move_as_their_contracts_say() {
        let system = SystemClock::new();
        let first = system.monotonic_ns();
        assert!(system.monotonic_ns() >= first);
        assert!(system.wall_ms() > 1_600_000_000_000, "after the year 2020");
        let manual = ManualClock::new(1_000);
        manual.advance(Duration::from_millis(1500));
        manual.set_wall_ms(-5);
        assert_eq!((manual.monotonic_ns(), manual.wall_ms()), (1_500_000_000, -5));
        assert_ne!(SystemRandom.next_u64(), SystemRandom.next_u64());
    }
}
