//! Scenario of the line of adds that wait for room: no wake-up is lost, nobody passes, and turns come back (line
//! invariants 2 and 3).

use super::line::{Line, Turn};
use super::signal::Signal;
use crate::lock::Mutex;
use shuttle::sync::mpsc::channel;
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;

/// What a group offers.
const OFFERED: usize = 8;

/// What a client does with its turn.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// Adds what it is worth, and says so.
    All,
    /// Its peer is gone: drops it and says nothing.
    Nothing,
    /// It gave up before the turn came.
    GaveUp,
}

const CLIENTS: [(usize, Use); 5] =
    [(3, Use::All), (8, Use::Nothing), (5, Use::All), (20, Use::GaveUp), (2, Use::Nothing)];

/// A journal thread that gives turns whenever it is woken, and clients that wait for room, use it, or are gone when it
/// comes. Each gets its turn, in the order of the line, and never is more given than there is.
pub fn everybody_gets_a_turn() {
    let signal: Arc<Signal> = Arc::default();
    let line = Arc::new(Line::new(signal.clone()));
    let order = Arc::new(Mutex::new(Vec::new()));
    let is_over = Arc::new(Mutex::new(false));
    let (given, turns_given) = channel();

    let journal = thread::spawn({
        let (signal, line, is_over) = (signal.clone(), line.clone(), is_over.clone());
        move || {
            while !*is_over.lock() {
                signal.wait(Duration::ZERO);
                let mut turns = Vec::new();
                line.give_turns(OFFERED - line.reserved(), true, &mut turns);
                assert!(line.reserved() <= OFFERED, "line invariant 2");
                for (waiter, turn) in turns {
                    waiter(turn);
                }
            }
        }
    });
    let clients = CLIENTS.iter().enumerate().map(|(number, &(cost, what))| {
        let (line, signal, order, given) = (line.clone(), signal.clone(), order.clone(), given.clone());
        thread::spawn(move || {
            let (told, turn) = channel::<Turn>();
            {
                // The place and the note of it are one step for the others.
                let mut order = order.lock();
                order.push(number);
                let waiter = Box::new(move |turn: Turn| {
                    given.send(number).expect("the scenario waits for all of them");
                    // Comes back when nobody listens.
                    drop(told.send(turn));
                });
                assert!(line.wait(cost, false, waiter).is_none());
            }
            signal.raise();
            if what == Use::GaveUp {
                return;
            }
            let turn = turn.recv().expect("a waiter is called");
            assert!(turn.cost() >= 1 && turn.cost() <= cost);
            thread::yield_now();
            drop(turn);
            if what == Use::All {
                signal.raise();
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let turns: Vec<usize> = (0..CLIENTS.len()).map(|_| turns_given.recv().expect("everybody has its turn")).collect();
    for client in clients {
        client.join().expect("a client that panics ends the run");
    }
    assert_eq!(turns, *order.lock(), "in the order of the line");
    *is_over.lock() = true;
    signal.raise();
    journal.join().expect("the journal thread");
    assert_eq!(line.reserved(), 0, "every turn came back (line invariant 3)");
}
