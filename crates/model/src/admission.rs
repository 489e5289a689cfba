//! Scenario of the admission queue: no wake-up is lost, no add overtakes another, and grants are returned
//! (admission_queue invariants 2 and 3).

use super::admission_queue::{AdmissionGrant, AdmissionQueue};
use super::fair_queue::Share;
use super::signal::Signal;
use crate::lock::Mutex;
use shuttle::sync::mpsc::channel;
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;

/// The room that a group offers.
const OFFERED: usize = 8;

/// How a client uses its grant.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// Adds what it is worth, and says so.
    All,
    /// Its peer is gone: drops it and says nothing.
    Nothing,
    /// It gave up before the grant came.
    GaveUp,
}

const CLIENTS: [(usize, Use); 5] =
    [(3, Use::All), (8, Use::Nothing), (5, Use::All), (20, Use::GaveUp), (2, Use::Nothing)];

/// A journal thread that gives grants whenever it is woken, and clients that wait for room, use it, or are gone when it
/// comes. Each gets its grant, in the order of arrival, and never is more given than there is.
pub fn every_add_gets_a_grant() {
    let signal: Arc<Signal> = Arc::default();
    let queue = Arc::new(AdmissionQueue::new(signal.clone()));
    let order = Arc::new(Mutex::new(Vec::new()));
    let is_over = Arc::new(Mutex::new(false));
    let (given, grants_given) = channel();

    let journal = thread::spawn({
        let (signal, queue, is_over) = (signal.clone(), queue.clone(), is_over.clone());
        move || {
            while !*is_over.lock() {
                signal.wait(Duration::ZERO);
                let mut grants = Vec::new();
                queue.give_grants(OFFERED - queue.reserved(), true, &mut grants);
                assert!(queue.reserved() <= OFFERED, "admission_queue invariant 2");
                for (waiter, grant) in grants {
                    waiter(grant);
                }
            }
        }
    });
    let clients = CLIENTS.iter().enumerate().map(|(number, &(cost, what))| {
        let (queue, signal, order, given) = (queue.clone(), signal.clone(), order.clone(), given.clone());
        thread::spawn(move || {
            let (told, grant) = channel::<AdmissionGrant>();
            {
                // The place and the note of it are one step for the others.
                let mut order = order.lock();
                order.push(number);
                let waiter = Box::new(move |grant: AdmissionGrant| {
                    given.send(number).expect("the scenario waits for all of them");
                    // Returned when the receiver is gone.
                    drop(told.send(grant));
                });
                assert!(queue.wait(Share::DEFAULT, cost, false, waiter).is_none());
            }
            signal.raise();
            if what == Use::GaveUp {
                return;
            }
            let grant = grant.recv().expect("a waiter is called");
            assert!(grant.cost() >= 1 && grant.cost() <= cost);
            thread::yield_now();
            drop(grant);
            if what == Use::All {
                signal.raise();
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let grants: Vec<usize> = (0..CLIENTS.len()).map(|_| grants_given.recv().expect("every client gets a grant")).collect();
    for client in clients {
        client.join().expect("a client that panics ends the run");
    }
    assert_eq!(grants, *order.lock(), "in the order of arrival");
    *is_over.lock() = true;
    signal.raise();
    journal.join().expect("the journal thread");
    assert_eq!(queue.reserved(), 0, "every grant was returned (admission_queue invariant 3)");
}
