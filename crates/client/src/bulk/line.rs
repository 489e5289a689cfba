//! Bounds the requests to each bookie: ranges take turns, and a bookie that refuses gets a pause.
//!
//! # Invariants
//! 1. No more ranges are under way to a bookie than its limit; a range counts until it was answered, also when nobody
//!    waits for it any more.
//! 2. Whoever waits is served before those who came later and would take the same bookie.
//! 3. After "too many requests" a bookie is asked nothing for a pause, which doubles up to [`PAUSE_MAX`], and fewer ranges at
//!    a time; both recover after [`FINE_TO_RECOVER`] answers.
//! 4. Whoever stays with a bookie waits for its turn there while others are idle, and goes on to the next one during a pause, and
//!    while a range of that bookie is late.
//!
//! # Limits     waiting: the ranges that streams read ahead; a line for each bookie ever asked

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bindery_types::BookieId;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Answers in a row after which a bookie gets one range more, and the next pause is the shortest.
const FINE_TO_RECOVER: u32 = 16;

/// What a range came to, as far as the line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    /// Too many requests.
    Refused,
    /// Failed, or given up.
    Other,
}

/// Which of its candidates a range may have a turn at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    FirstWithRoom,
    /// The first that is not in a pause and has nothing late, as soon as it has room (invariant 4).
    FirstThatIsWell,
}

/// Names a turn.
#[derive(Debug, Clone)]
pub(super) struct TurnId {
    bookie: BookieId,
    number: u64,
}

#[derive(Debug)]
struct Line {
    limit: usize,
    under_way: usize,
    /// Turns under way that are late.
    late: BTreeSet<u64>,
    fine: u32,
    pause: Duration,
    refused_at: Option<Duration>,
    paused_until: Duration,
}

/// A range that waits.
struct Waiting<G> {
    /// The best first.
    candidates: Vec<BookieId>,
    wanted: Wanted,
    grant: G,
}

/// Synchronous: `now` counts from any moment, `G` says whom a turn belongs to.
struct Core<G> {
    limit_max: usize,
    lines: HashMap<BookieId, Line>,
    waiting: BTreeMap<u64, Waiting<G>>,
    next: u64,
}

/// A turn: index into the candidates, and its name, whose number is that of the place in the queue.
struct Turn {
    index: usize,
    id: TurnId,
}

impl<G> Core<G> {
    fn new(limit_max: usize) -> Core<G> {
        Core { limit_max: limit_max.max(1), lines: HashMap::new(), waiting: BTreeMap::new(), next: 0 }
    }

    fn line(&mut self, bookie: &BookieId) -> &mut Line {
        let limit = self.limit_max;
        self.lines.entry(bookie.clone()).or_insert_with(|| Line {
            limit,
            under_way: 0,
            late: BTreeSet::new(),
            fine: 0,
            pause: Duration::ZERO,
            refused_at: None,
            paused_until: Duration::ZERO,
        })
    }

    /// Joins the queue; its number there.
    fn wait(&mut self, candidates: Vec<BookieId>, wanted: Wanted, grant: G) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, Waiting { candidates, wanted, grant });
        number
    }

    fn leave(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Which of `candidates` has a turn to give now.
    fn with_turn(&mut self, candidates: &[BookieId], wanted: Wanted, now: Duration) -> Option<usize> {
        let has_room = |line: &Line| line.under_way < line.limit;
        let is_paused = |line: &Line| line.paused_until > now;
        match wanted {
            Wanted::FirstWithRoom => candidates.iter().position(|bookie| {
                let line = self.line(bookie);
                has_room(line) && !is_paused(line)
            }),
            Wanted::FirstThatIsWell => {
                let is_well = |line: &Line| !is_paused(line) && line.late.is_empty();
                let first = candidates.iter().position(|bookie| is_well(self.line(bookie)));
                // With none well the best that has room: it is not asked again for what is late there.
                match first {
                    Some(first) => has_room(self.line(&candidates[first])).then_some(first),
                    None => self.with_turn(candidates, Wanted::FirstWithRoom, now),
                }
            }
        }
    }

    /// Gives turns to all that can have one (invariants 1 and 2).
    fn serve(&mut self, now: Duration) -> Vec<(G, Turn)> {
        let mut served = Vec::new();
        let numbers: Vec<u64> = self.waiting.keys().copied().collect();
        for number in numbers {
            let waiting = self.waiting.get_mut(&number).expect("listed");
            let (candidates, wanted) = (std::mem::take(&mut waiting.candidates), waiting.wanted);
            let Some(index) = self.with_turn(&candidates, wanted, now) else {
                self.waiting.get_mut(&number).expect("listed").candidates = candidates;
                continue;
            };
            let bookie = candidates[index].clone();
            let waiting = self.waiting.remove(&number).expect("listed");
            self.line(&bookie).under_way += 1;
            served.push((waiting.grant, Turn { index, id: TurnId { bookie, number } }));
        }
        served
    }

    /// When a pause ends that somebody may wait for.
    fn next_pause_end(&self, now: Duration) -> Option<Duration> {
        let ends = self.lines.values().map(|line| line.paused_until);
        ends.filter(|until| *until > now).min()
    }

    fn ended(&mut self, now: Duration, turn: &TurnId, begun: Duration, end: End) {
        let limit_max = self.limit_max;
        let line = self.line(&turn.bookie);
        line.late.remove(&turn.number);
        line.under_way = line.under_way.checked_sub(1).expect("invariant 1: each turn ends once");
        match end {
            End::Answered => {
                line.fine += 1;
                if line.fine >= FINE_TO_RECOVER {
                    line.fine = 0;
                    line.pause = Duration::ZERO;
                    line.limit = limit_max.min(line.limit + 1);
                }
            }
            // Of several that were under way the first one counts.
            End::Refused if line.refused_at.is_none_or(|at| at < begun) || line.paused_until <= now => {
                line.fine = 0;
                line.limit = (line.limit / 2).max(1);
                line.pause = (line.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                line.refused_at = Some(now);
                line.paused_until = now + line.pause;
            }
            End::Refused => {}
            End::Other => line.fine = 0,
        }
    }
}

type Grant = oneshot::Sender<Slot>;

struct Shared {
    origin: Instant,
    core: Mutex<Core<Grant>>,
    /// Somebody is left alone for a while: those who wait have another moment to wake up at.
    paused: Notify,
}

impl Shared {
    fn serve(self: &Arc<Self>) {
        let now = self.origin.elapsed();
        let served = self.core.lock().serve(now);
        for (grant, Turn { index, id }) in served {
            let slot = Slot { shared: self.clone(), id, index, begun: now, end: End::Other };
            // One whose waiter has gone comes back when it is dropped, outside the lock.
            drop(grant.send(slot));
        }
    }
}

/// The lines of all bookies.
pub(super) struct Lines(Arc<Shared>);

/// Leaves the queue, on every path.
struct Place<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.core.lock().leave(self.number);
    }
}

/// A turn at a bookie; it ends with this.
pub(super) struct Slot {
    shared: Arc<Shared>,
    id: TurnId,
    /// Which of the candidates it is.
    pub(super) index: usize,
    begun: Duration,
    end: End,
}

impl Slot {
    pub(super) fn id(&self) -> TurnId {
        self.id.clone()
    }

    /// What came of it.
    pub(super) fn ends(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let now = self.shared.origin.elapsed();
        self.shared.core.lock().ended(now, &self.id, self.begun, self.end);
        self.shared.serve();
        if self.end == End::Refused {
            self.shared.paused.notify_waiters();
        }
    }
}

impl Lines {
    pub(super) fn new(limit_max: usize) -> Lines {
        let core = Mutex::new(Core::new(limit_max));
        Lines(Arc::new(Shared { origin: Instant::now(), core, paused: Notify::new() }))
    }

    /// The answer of this turn, which has not ended, is late: those who stay with its bookie go on to the next until it comes.
    pub(super) fn is_late(&self, turn: &TurnId) {
        self.0.core.lock().line(&turn.bookie).late.insert(turn.number);
        self.0.serve();
    }

    /// Waits for a turn at the one of `candidates` that is wanted. Cancelled, it leaves the queue, and a turn that was given to it
    /// goes to the next.
    pub(super) async fn turn(&self, candidates: Vec<BookieId>, wanted: Wanted) -> Slot {
        let shared = &self.0;
        let (grant, mut granted) = oneshot::channel();
        let place = Place { shared, number: shared.core.lock().wait(candidates, wanted, grant) };
        shared.serve();
        loop {
            // Before the look, so that no pause is missed.
            let paused = shared.paused.notified();
            let pause_end = {
                let now = shared.origin.elapsed();
                shared.core.lock().next_pause_end(now).map(|end| end - now)
            };
            tokio::select! {
                biased;
                slot = &mut granted => {
                    drop(place);
                    return slot.expect("a place is left by a grant only, while it is held");
                }
                () = paused => {}
                () = sleep(pause_end.unwrap_or_default()), if pause_end.is_some() => shared.serve(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn ids(names: &str) -> Vec<BookieId> {
        names.split(' ').map(id).collect()
    }

    fn turn_at(bookie: &str, number: u64) -> TurnId {
        TurnId { bookie: id(bookie), number }
    }

    fn served(core: &mut Core<u32>, now: Duration) -> Vec<(u32, String)> {
        core.serve(now).into_iter().map(|(who, turn)| (who, turn.id.bookie.to_string())).collect()
    }

    #[test]
    fn turns_are_bounded_and_come_in_the_order_of_the_calls() {
        // Invariants 1 and 2.
        let mut core = Core::new(1);
        for (who, candidates) in [(1, "a b"), (2, "a b"), (3, "a b"), (4, "b"), (5, "c a")] {
            core.wait(ids(candidates), Wanted::FirstWithRoom, who);
        }
        let of = |pairs: &[(u32, &str)]| {
            pairs.iter().map(|(who, bookie)| (*who, (*bookie).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(served(&mut core, MS), of(&[(1, "a"), (2, "b"), (5, "c")]));
        assert_eq!(served(&mut core, MS), []);
        core.ended(2 * MS, &turn_at("b", 0), MS, End::Answered);
        assert_eq!(served(&mut core, 2 * MS), of(&[(3, "b")]), "it came before the one that wants b only");
        core.ended(3 * MS, &turn_at("b", 0), MS, End::Other);
        assert_eq!(served(&mut core, 3 * MS), of(&[(4, "b")]));
        assert!(core.waiting.is_empty());
    }

    #[test]
    fn one_who_refuses_is_left_alone_and_gets_less() {
        // Invariant 3.
        let mut core = Core::new(4);
        let a = id("a");
        let take = |core: &mut Core<u32>, now| {
            for who in 0..8 {
                core.wait(ids("a"), Wanted::FirstWithRoom, who);
            }
            let turns = served(core, now).len();
            core.waiting.clear();
            turns
        };
        assert_eq!(take(&mut core, MS), 4);
        for _ in 0..4 {
            core.ended(2 * MS, &turn_at("a", 0), MS, End::Refused);
        }
        assert_eq!(take(&mut core, 51 * MS), 0, "four refusals at once are one");
        assert_eq!(core.next_pause_end(51 * MS), Some(52 * MS));
        assert_eq!(take(&mut core, 52 * MS), 2);
        for _ in 0..2 {
            core.ended(60 * MS, &turn_at("a", 0), 52 * MS, End::Refused);
        }
        assert_eq!(take(&mut core, 159 * MS), 0, "twice as long");
        assert_eq!(take(&mut core, 160 * MS), 1);
        let mut now = 160 * MS;
        for turn in 0..10 {
            core.ended(now, &turn_at("a", 0), now - MS, End::Refused);
            let pause = core.line(&a).paused_until - now;
            assert!(pause <= PAUSE_MAX && (turn < 8 || pause == PAUSE_MAX), "{turn}: {pause:?}");
            now += pause;
            assert_eq!(take(&mut core, now), 1, "never nothing at all");
        }
        for _ in 0..FINE_TO_RECOVER * 3 {
            core.ended(now, &turn_at("a", 0), now, End::Answered);
            core.line(&a).under_way += 1;
        }
        core.line(&a).under_way = 0;
        assert_eq!(take(&mut core, now), 4, "one more after each {FINE_TO_RECOVER} answers");
    }

    #[test]
    fn who_stays_waits_for_the_first_unless_it_is_late_or_refuses() {
        // Invariant 4.
        let mut core = Core::new(1);
        let stay = |core: &mut Core<u32>, who| core.wait(ids("a b c"), Wanted::FirstThatIsWell, who);
        let first = stay(&mut core, 1);
        stay(&mut core, 2);
        let of = |who: u32, bookie: &str| vec![(who, bookie.to_owned())];
        assert_eq!(served(&mut core, MS), of(1, "a"), "the second one waits, although b and c are idle");
        core.line(&id("a")).late.insert(first);
        assert_eq!(served(&mut core, 2 * MS), of(2, "b"));
        core.ended(3 * MS, &turn_at("a", first), MS, End::Answered);
        stay(&mut core, 3);
        assert_eq!(served(&mut core, 3 * MS), of(3, "a"), "nothing is late any more");
        core.ended(4 * MS, &turn_at("a", 0), 3 * MS, End::Refused);
        core.ended(4 * MS, &turn_at("b", 0), 2 * MS, End::Answered);
        stay(&mut core, 4);
        assert_eq!(served(&mut core, 4 * MS), of(4, "b"), "a is in a pause");
        // None is well: the best that has room.
        core.line(&id("b")).late.insert(7);
        core.line(&id("c")).late.insert(8);
        stay(&mut core, 5);
        assert_eq!(served(&mut core, 4 * MS), of(5, "c"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_nobody_takes_goes_to_the_next() {
        let lines = Arc::new(Lines::new(1));
        let first = lines.turn(ids("a"), Wanted::FirstWithRoom).await;
        let (one, other) = (lines.clone(), lines.clone());
        let gone = tokio::spawn(async move { one.turn(ids("a"), Wanted::FirstWithRoom).await.index });
        tokio::task::yield_now().await;
        let next = tokio::spawn(async move { other.turn(ids("b a"), Wanted::FirstWithRoom).await.index });
        assert_eq!(next.await.unwrap(), 0, "b is free");
        let other = lines.clone();
        let next = tokio::spawn(async move { other.turn(ids("a"), Wanted::FirstWithRoom).await.index });
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        drop(first);
        assert_eq!(next.await.unwrap(), 0);
        let mut refused = lines.turn(ids("a"), Wanted::FirstWithRoom).await;
        refused.ends(End::Refused);
        drop(refused);
        assert_eq!(lines.turn(ids("a b"), Wanted::FirstWithRoom).await.index, 1, "a is left alone");
        let begin = Instant::now();
        let _b = lines.turn(ids("b"), Wanted::FirstWithRoom).await;
        assert_eq!(lines.turn(ids("b a"), Wanted::FirstWithRoom).await.index, 1);
        assert_eq!(begin.elapsed(), PAUSE_MIN, "of the simulated clock");
    }
}
