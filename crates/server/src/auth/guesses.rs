//! Slows down guesses of passwords: an address with several wrong logins waits before its next one is checked.
//!
//! # Limits
//! After [`FREE_MAX`] wrong logins in a row each waits for [`DELAY`]; [`WAITING_MAX`] of an address wait, more are refused. An address is
//! forgotten after [`FORGOTTEN_AFTER`], or a right login. Remembered: [`ADDRESSES_MAX`], beyond that those that are not waiting are forgotten.

use crate::turns::network_of;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Wrong logins of an address that cost it nothing: a client with an old password tries some times.
const FREE_MAX: u32 = 10;
/// Wait before each login that is checked after that.
const DELAY: Duration = Duration::from_millis(500);
/// Logins of an address that wait.
const WAITING_MAX: u32 = 8;
/// Since the last wrong login.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Addresses with wrong logins.
const ADDRESSES_MAX: usize = 4096;

struct Tries {
    failures: u32,
    last: Instant,
    waiting: u32,
}

/// See the module.
#[derive(Default)]
pub(super) struct Guesses(Mutex<HashMap<IpAddr, Tries>>);

struct Waiting<'a>(&'a Guesses, IpAddr);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(tries) = self.0.0.lock().get_mut(&self.1) {
            tries.waiting -= 1;
        }
    }
}

impl Guesses {
    /// Waits until a login of this address may be checked. False when too many of it wait. Cancel safe.
    pub(super) async fn wait(&self, address: IpAddr) -> bool {
        let address = network_of(address);
        let _waiting = {
            let mut known = self.0.lock();
            let Some(tries) = known.get_mut(&address) else { return true };
            if tries.failures < FREE_MAX || tries.last.elapsed() >= FORGOTTEN_AFTER {
                return true;
            }
            if tries.waiting >= WAITING_MAX {
                return false;
            }
            tries.waiting += 1;
            Waiting(self, address)
        };
        tokio::time::sleep(DELAY).await;
        true
    }

    /// Notes how a login of this address ended.
    pub(super) fn note(&self, address: IpAddr, is_right: bool) {
        let address = network_of(address);
        let mut known = self.0.lock();
        if is_right {
            if let Some(tries) = known.get_mut(&address) {
                tries.failures = 0;
            }
            return;
        }
        if known.len() >= ADDRESSES_MAX && !known.contains_key(&address) {
            known.retain(|_, tries| tries.waiting > 0);
        }
        let now = Instant::now();
        let tries = known.entry(address).or_insert(Tries { failures: 0, last: now, waiting: 0 });
        if tries.last.elapsed() >= FORGOTTEN_AFTER {
            tries.failures = 0;
        }
        (tries.failures, tries.last) = (tries.failures.saturating_add(1), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_address_of_wrong_logins_waits_and_others_do_not() {
        let (guesses, began) = (Guesses::default(), Instant::now());
        let [bad, good] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().unwrap());
        for _ in 0..FREE_MAX {
            assert!(guesses.wait(bad).await);
            guesses.note(bad, false);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(guesses.wait(good).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(guesses.wait(bad).await);
        assert_eq!(began.elapsed(), DELAY);
        // So many at once, and no more.
        let several = (0..=WAITING_MAX).map(|_| guesses.wait(bad));
        let let_in: Vec<bool> = futures_util::future::join_all(several).await;
        assert_eq!(let_in.iter().filter(|may| **may).count(), WAITING_MAX as usize);
        let then = Instant::now();
        guesses.note(bad, true);
        assert!(guesses.wait(bad).await);
        for _ in 0..FREE_MAX {
            guesses.note(bad, false);
        }
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert!(guesses.wait(bad).await);
        assert_eq!(then.elapsed(), FORGOTTEN_AFTER);
    }
}
