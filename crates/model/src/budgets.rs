//! Scenarios of the byte budget: nobody is forgotten, nobody passes, every byte comes back once (flow invariants 1-3).

use super::budget::{AcquireError, ByteBudget, Permit};
use crate::lock::Mutex;
use crate::world::poll_once;
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

type Acquire = Pin<Box<dyn Future<Output = Result<Permit, AcquireError>> + Send>>;

fn acquire(budget: &ByteBudget, bytes: u64) -> Acquire {
    let budget = budget.clone();
    Box::pin(async move { budget.acquire(bytes).await })
}

fn assert_empty(budget: &ByteBudget) {
    let gauge = budget.gauge();
    assert_eq!((gauge.used, gauge.waiting), (0, 0), "every byte came back, and nobody is left in line");
}

/// Clients that take, split, merge, shrink and cancel as they like: everybody is served in the end, and nothing is
/// left.
pub fn everybody_is_served() {
    const CAPACITY: u64 = 4;
    let budget = ByteBudget::new("model", CAPACITY);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let budget = budget.clone();
            thread::spawn(move || {
                for _ in 0..3 {
                    let bytes = thread_rng().gen_range(1..=CAPACITY);
                    let mut waiting = acquire(&budget, bytes);
                    match thread_rng().gen_range(0..4) {
                        // Cancelled: at once, or when it may have been granted already.
                        0 => {
                            drop(poll_once(&mut waiting));
                            thread::yield_now();
                            drop(waiting);
                        }
                        1 => {
                            let mut permit = block_on(waiting).expect("it is not too much");
                            let part = permit.split(bytes / 2);
                            thread::yield_now();
                            permit.merge(part);
                            permit.shrink_to(1);
                        }
                        2 => drop(budget.try_acquire(bytes)),
                        _ => drop(block_on(waiting)),
                    }
                    assert!(budget.gauge().used <= CAPACITY);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("a client that panics ends the run");
    }
    assert_empty(&budget);
}

/// The first request in line is served first, however much it asks for and however bytes come back.
pub fn nobody_passes() {
    let budget = ByteBudget::new("model", 4);
    let held: Vec<Permit> = (0..4).map(|_| budget.try_acquire(1).expect("it is empty")).collect();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut clients = Vec::new();
    // All of them need everything, so one is served after the other; between them are some that give up.
    for number in 0..3 {
        let mut waiting = acquire(&budget, 4);
        assert!(poll_once(&mut waiting).is_none());
        let mut fickle = acquire(&budget, 1);
        assert!(poll_once(&mut fickle).is_none(), "others are before it");
        let served = served.clone();
        clients.push(thread::spawn(move || {
            let permit = block_on(waiting).expect("it is not too much");
            served.lock().push(number);
            drop(permit);
        }));
        clients.push(thread::spawn(move || drop(fickle)));
    }
    for permit in held {
        clients.push(thread::spawn(move || drop(permit)));
    }
    let late = budget.clone();
    clients.push(thread::spawn(move || {
        let permit = block_on(acquire(&late, 1)).expect("it is not too much");
        assert_eq!(late.gauge().waiting, 0, "the last one passes nobody");
        drop(permit);
    }));
    for client in clients {
        client.join().expect("a client that panics ends the run");
    }
    assert_eq!(*served.lock(), [0, 1, 2]);
    assert_empty(&budget);
}

/// A large request in front of a small one that would fit gives up, and no byte comes back meanwhile: the small one goes.
pub fn who_gives_up_lets_the_next_go() {
    let budget = ByteBudget::new("model", 4);
    let held = budget.try_acquire(1).expect("it is empty");
    let mut large = acquire(&budget, 4);
    assert!(poll_once(&mut large).is_none());
    let small = thread::spawn({
        let waiting = acquire(&budget, 2);
        move || drop(block_on(waiting).expect("it is not too much"))
    });
    thread::yield_now();
    drop(large);
    small.join().expect("a client that panics ends the run");
    drop(held);
    assert_empty(&budget);
}

/// A budget of one byte and `clients` that want it, some of whom give up. Everybody else is served, in the order in
/// which they came, and one at a time.
pub fn one_byte_for_many(clients: usize) {
    let budget = ByteBudget::new("model", 1);
    let first = budget.try_acquire(1).expect("it is empty");
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..clients {
        let mut place = acquire(&budget, 1);
        assert!(poll_once(&mut place).is_none());
        waiting.push((number, place));
    }
    let mut tasks = Vec::new();
    for (number, place) in waiting {
        let served = served.clone();
        let gives_up = number % 7 == 3;
        tasks.push(shuttle::future::spawn(async move {
            if gives_up {
                return drop(place);
            }
            let permit = place.await.expect("it is not too much");
            served.lock().push(number);
            drop(permit);
        }));
    }
    drop(first);
    for task in tasks {
        block_on(task).expect("a client that panics ends the run");
    }
    let expected: Vec<usize> = (0..clients).filter(|number| number % 7 != 3).collect();
    assert_eq!(*served.lock(), expected, "all of them, in order");
    assert_empty(&budget);
}
