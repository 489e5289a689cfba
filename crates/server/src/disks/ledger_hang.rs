//! A ledger disk that hangs without an error, as a device that stops answering, a frozen file system or a hard-mounted network
//! share do.
//!
//! One thread flushes to all ledger directories. While one of them holds it, memory fills, and each add is refused after
//! the time it may wait: nothing can be done for the directories that are well, but clients must be sent elsewhere.
//!
//! # Data flow
//! ```text
//! oldest call of each directory, do adds wait? -> LedgerHangCore -> reason to be read-only
//! ```
//!
//! # Invariants
//! 1. A directory hangs when a call has lasted [`HANGS`] and adds wait, or [`HANGS_ANYHOW`] and nobody waits yet: entries of
//!    it cannot be read then, and memory will fill.
//! 2. It ends by itself, [`CALM`] after the last call that lasted so long came back: not because no add waits any more, which is
//!    what being read-only brings about.
//!
//! # Limits
//! Directories that hang are as many as there are.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A call that lasts so long holds up adds that wait.
pub const HANGS: Duration = Duration::from_secs(5);
/// A call that lasts so long is no slow one, whoever waits. Linux gives a command to a disk up before.
pub const HANGS_ANYHOW: Duration = Duration::from_secs(30);
/// How long all calls must have been short before adds are taken again.
pub const CALM: Duration = Duration::from_secs(5);

/// Judges the ledger directories of a bookie.
#[derive(Debug, Default)]
pub struct LedgerHangCore {
    /// The directories that hang or did a moment ago, and since when they are calm again.
    hanging: Vec<(PathBuf, Option<Duration>)>,
}

impl LedgerHangCore {
    /// Called several times in a second. `now` counts from any origin; `oldest` has the directories with calls under way, and how long
    /// the oldest call of each has lasted. Returns why the bookie must be read-only, while it must.
    pub fn tick(&mut self, now: Duration, oldest: &[(&Path, Duration)], adds_wait: bool) -> Option<String> {
        for (dir, lasted) in oldest {
            let hangs = *lasted >= HANGS_ANYHOW || (*lasted >= HANGS && adds_wait);
            if hangs && !self.hanging.iter().any(|(known, _)| known == dir) {
                self.hanging.push(((*dir).to_owned(), None));
            }
        }
        self.hanging.retain_mut(|(dir, calm_since)| {
            let is_long = |(other, lasted): &(&Path, Duration)| other == dir && *lasted >= HANGS;
            match oldest.iter().any(is_long) {
                true => *calm_since = None,
                false => _ = calm_since.get_or_insert(now),
            }
            calm_since.is_none_or(|since| now.saturating_sub(since) < CALM)
        });
        let (dir, calm_since) = self.hanging.first()?;
        let others = match self.hanging.len() - 1 {
            0 => String::new(),
            others => format!(" ({others} more do as well)"),
        };
        Some(match calm_since {
            None => format!(
                "the disk of ledger directory {} does not answer{others}: a call to it has been under way for more than {HANGS:?}, and \
                 nothing can be flushed, to no directory: check that disk; this cause clears once it answers",
                dir.display()
            ),
            Some(_) => format!(
                "the disk of ledger directory {} did not answer{others} and does again: this cause clears when it went on answering for \
                 {CALM:?}",
                dir.display()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_directory_hangs_when_adds_wait_for_it_and_is_back_when_it_answers() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/mnt/2"));
        assert_eq!(core.tick(at(0), &[], true), None, "adds wait, and the disk answers");
        assert_eq!(core.tick(at(4), &[(dir, at(4))], true), None);
        assert_eq!(core.tick(at(6), &[(dir, at(6))], false), None, "nobody waits yet");
        let reason = core.tick(at(7), &[(dir, at(7))], true).unwrap();
        assert!(reason.contains("/mnt/2 does not answer"), "{reason}");
        // Nobody waits, because everybody was refused.
        assert!(core.tick(at(60), &[(dir, at(60))], false).is_some());
        let reason = core.tick(at(61), &[], false).unwrap();
        assert!(reason.contains("does again"), "{reason}");
        assert!(core.tick(at(64), &[(dir, at(1))], false).is_some());
        assert_eq!(core.tick(at(66), &[(dir, at(1))], false), None);
        assert_eq!(core.tick(at(67), &[], true), None);
    }

    #[test]
    fn it_stays_while_the_disk_hangs_again_and_again() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/l"));
        assert!(core.tick(at(6), &[(dir, at(6))], true).is_some());
        for second in 7..11 {
            assert!(core.tick(at(second), &[], false).is_some());
        }
        assert!(core.tick(at(18), &[(dir, at(7))], false).is_some(), "it began to hang again at 11");
        assert!(core.tick(at(19), &[], false).is_some());
        assert_eq!(core.tick(at(24), &[], false), None);
    }

    #[test]
    fn one_that_hangs_for_long_counts_although_nobody_waits() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/l"));
        assert_eq!(core.tick(at(29), &[(dir, at(29))], false), None);
        assert!(core.tick(at(30), &[(dir, at(30))], false).is_some());
    }

    #[test]
    fn each_directory_is_judged_alone_and_all_are_counted() {
        let (mut core, one, two) = (LedgerHangCore::default(), Path::new("/1"), Path::new("/2"));
        let reason = core.tick(at(9), &[(one, at(9)), (two, at(9))], true).unwrap();
        assert!(reason.contains("/1") && reason.contains("1 more"), "{reason}");
        let reason = (10..16).map(|s| core.tick(at(s), &[(two, at(s))], false).unwrap()).last().unwrap();
        assert!(reason.contains("/2 does not answer:"), "{reason}");
    }
}
