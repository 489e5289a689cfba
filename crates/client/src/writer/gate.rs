//! The way of a ledger's callers to room for their entries: in line, and no more than leaves others their part.
//!
//! While a ledger waits for an ensemble change, the room that it takes is given back only when the change is complete,
//! which may be as long as the metadata store is out of reach.
//!
//! # Invariants
//! 1. A ledger that waits for a change takes nothing that leaves less than half of the budget.
//! 2. Callers that wait go on in the order in which they came, one when the one before it has its id; later ones stay
//!    behind them. Came is first polled: one that is polled no more, and not dropped, keeps all behind it waiting.
//! 3. A caller that waits for the change holds nothing.
//!
//! # Limits     one caller of a ledger at a time waits for the budget: ledgers take turns there, however many callers
//! they have
//!
//! # Not here   what the ledger took before, which may be all of it

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bindery_flow::{AcquireError, ByteBudget, Permit};
use tokio::sync::{Mutex, MutexGuard, Notify};

/// See the module; one for each ledger.
#[derive(Default)]
pub(super) struct Gate {
    awaits_change: AtomicBool,
    /// It waits no more.
    ended: Notify,
    /// The first of those that wait has it. It is fair.
    line: Mutex<()>,
    /// How many they are.
    in_line: AtomicUsize,
}

/// A place among those that waited, until the entry has its id.
pub(super) struct Place<'a> {
    gate: &'a Gate,
    turn: Option<MutexGuard<'a, ()>>,
}

impl<'a> Place<'a> {
    fn new(gate: &'a Gate) -> Place<'a> {
        gate.in_line.fetch_add(1, Ordering::AcqRel);
        Place { gate, turn: None }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Before the count: whoever finds it at zero is behind nobody.
        self.turn = None;
        self.gate.in_line.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Gate {
    /// Whether the ledger waits for an ensemble change, as of now.
    pub(super) fn set(&self, awaits_change: bool) {
        if self.awaits_change.swap(awaits_change, Ordering::AcqRel) && !awaits_change {
            self.ended.notify_waiters();
        }
    }

    /// With what is in permits now.
    fn is_too_much(&self, budget: &ByteBudget) -> bool {
        self.awaits_change.load(Ordering::Acquire) && {
            let gauge = budget.gauge();
            gauge.used > gauge.capacity / 2
        }
    }

    /// A permit at once, or none.
    pub(super) fn try_acquire(&self, budget: &ByteBudget, bytes: u64) -> Option<Permit> {
        if self.in_line.load(Ordering::Acquire) > 0 {
            return None;
        }
        budget.try_acquire(bytes).filter(|_| !self.is_too_much(budget))
    }

    /// Waits for its turn, for a permit, and for the change if it must. Cancel safe.
    ///
    /// # Errors
    /// [`AcquireError::TooLarge`].
    pub(super) async fn acquire(
        &self,
        budget: &ByteBudget,
        bytes: u64,
    ) -> Result<(Permit, Place<'_>), AcquireError> {
        let mut place = Place::new(self);
        place.turn = Some(self.line.lock().await);
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // From here on no end is missed.
            ended.as_mut().enable();
            if !self.is_too_much(budget) {
                let permit = budget.acquire(bytes).await?;
                if !self.is_too_much(budget) {
                    return Ok((permit, place));
                }
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Acquiring<'a> = Pin<Box<dyn Future<Output = (u64, Place<'a>, Permit)> + 'a>>;

    fn start<'a>(gate: &'a Gate, budget: &'a ByteBudget, bytes: u64) -> Acquiring<'a> {
        Box::pin(async move {
            let (permit, place) = gate.acquire(budget, bytes).await.unwrap();
            (permit.bytes(), place, permit)
        })
    }

    fn poll<'a>(acquiring: &mut Acquiring<'a>) -> Option<(u64, Place<'a>, Permit)> {
        match acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(acquired) => Some(acquired),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_ledger_that_waits_for_a_change_leaves_half() {
        let (gate, budget) = (Gate::default(), ByteBudget::new("test", 100));
        gate.set(true);
        let held = gate.try_acquire(&budget, 40).unwrap();
        assert!(gate.try_acquire(&budget, 11).is_none(), "invariant 1");
        assert_eq!(budget.gauge().used, 40, "and nothing is kept");
        let mut first = start(&gate, &budget, 11);
        let mut second = start(&gate, &budget, 1);
        assert!(poll(&mut first).is_none() && poll(&mut second).is_none(), "invariant 2");
        assert!(gate.try_acquire(&budget, 1).is_none(), "invariant 2: behind those that wait");
        assert_eq!((budget.gauge().used, budget.gauge().waiting), (40, 0), "invariant 3");
        // Another ledger takes what it likes.
        let other = Gate::default();
        let theirs = other.try_acquire(&budget, 60).unwrap();
        drop(theirs);
        gate.set(false);
        assert!(poll(&mut second).is_none(), "invariant 2");
        let (bytes, place, _permit) = poll(&mut first).unwrap();
        assert_eq!(bytes, 11);
        assert!(poll(&mut second).is_none(), "the first has no id yet");
        drop(place);
        assert!(poll(&mut second).is_some());
        drop((first, second));
        assert!(gate.try_acquire(&budget, 40).is_some(), "nobody is in line any more");
        drop(held);
    }

    #[test]
    fn there_is_room_for_all_and_they_take_it_in_the_order_in_which_they_came() {
        let (gate, budget) = (Gate::default(), ByteBudget::new("test", 100));
        let held = budget.try_acquire(100).unwrap();
        let mut callers: Vec<Acquiring<'_>> = (1..=5).map(|bytes| start(&gate, &budget, bytes)).collect();
        assert!(callers.iter_mut().all(|caller| poll(caller).is_none()));
        drop(held);
        for first in 0..5 {
            // Whoever is woken first.
            assert!(
                callers[first + 1..].iter_mut().rev().all(|caller| poll(caller).is_none()),
                "invariant 2"
            );
            assert!(gate.try_acquire(&budget, 1).is_none(), "invariant 2: behind those that wait");
            let (bytes, place, _permit) = poll(&mut callers[first]).unwrap();
            assert_eq!(bytes, first as u64 + 1);
            assert!(callers[first + 1..].iter_mut().all(|caller| poll(caller).is_none()), "it has no id yet");
            drop(place);
        }
        assert!(gate.try_acquire(&budget, 100).is_some());
    }

    #[test]
    fn who_waited_for_room_when_the_change_began_gives_it_back() {
        let (gate, another_gate, budget) = (Gate::default(), Gate::default(), ByteBudget::new("test", 100));
        let held = budget.try_acquire(95).unwrap();
        let mut waiting = start(&gate, &budget, 60);
        let mut small = start(&gate, &budget, 5);
        let mut another = start(&another_gate, &budget, 30);
        assert!([&mut waiting, &mut small, &mut another].into_iter().all(|caller| poll(caller).is_none()));
        gate.set(true);
        drop(held);
        assert!(poll(&mut waiting).is_none(), "invariant 1");
        assert!(poll(&mut small).is_none(), "invariant 2: not past the one before it");
        assert_eq!(budget.gauge().used, 30, "invariant 3: what another ledger was granted");
        assert_eq!(poll(&mut another).unwrap().0, 30);
        gate.set(false);
        assert_eq!(poll(&mut waiting).unwrap().0, 60);
        assert_eq!(poll(&mut small).unwrap().0, 5);
        assert_eq!(budget.gauge().used, 0);
    }

    #[test]
    fn a_cancelled_caller_leaves_no_place_behind() {
        let (gate, budget) = (Gate::default(), ByteBudget::new("test", 100));
        gate.set(true);
        let (mut first, mut second) = (start(&gate, &budget, 51), start(&gate, &budget, 51));
        assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
        drop(first);
        gate.set(false);
        assert!(poll(&mut second).is_some());
        let third = start(&gate, &budget, 51);
        drop((second, third));
        assert!(gate.try_acquire(&budget, 100).is_some());
        let mut large = Box::pin(gate.acquire(&budget, 101));
        let refused = large.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(refused, Poll::Ready(Err(AcquireError::TooLarge { .. }))), "it would wait for ever");
    }
}
