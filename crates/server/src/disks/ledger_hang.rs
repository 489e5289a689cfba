//! A ledger disk that hangs without an error, as a device that stops answering, a frozen file system or a hard-mounted network
//! share do.
//!
//! One thread flushes to all ledger directories. While one of them holds it, memory fills, and each add is refused after
//! the time it may wait. The directories that are well cannot be flushed to either, so clients must be sent elsewhere.
//!
//! # Data flow
//! ```text
//! silence of each directory, do adds wait? -> LedgerHangCore -> reason to be read-only
//! ```
//!
//! # Invariants
//! 1. A directory hangs when calls are under way, none has ended for [`HANGS`] and adds wait; or none has ended for [`HANGS_ANYHOW`] and
//!    no add waits yet: its entries cannot be read then, and memory will fill.
//! 2. A disk that is slow or busy does not hang, however long one of its calls lasts: others end. But where no *change* ends for
//!    [`HANGS_ANYHOW`] the directory hangs although it is read: a frozen file system is.
//! 3. It ends by itself, [`CALM`] after such a silence is over: not because no add waits any more, which is what being read-only
//!    brings about.
//!
//! # Limits
//! Directories that hang are as many as there are.

use super::calls::Silence;
use std::path::PathBuf;
use std::time::Duration;

/// A disk that is silent for so long holds up adds that wait.
pub const HANGS: Duration = Duration::from_secs(5);
/// A disk that is silent for so long is no slow one, whoever waits. Linux gives a command to a disk up before.
pub const HANGS_ANYHOW: Duration = Duration::from_secs(30);
/// How long a disk must have answered before adds are taken again.
pub const CALM: Duration = Duration::from_secs(5);

/// Judges the ledger directories of a bookie.
#[derive(Debug, Default)]
pub struct LedgerHangCore {
    /// The directories that hang or did a moment ago, and since when they are calm again.
    hanging: Vec<(PathBuf, Option<Duration>)>,
}

impl LedgerHangCore {
    /// Called several times in a second. `now` counts from any origin; `silences` has the directories with calls under way. Returns why
    /// the bookie must be read-only, while it must.
    pub fn tick(&mut self, now: Duration, silences: &[Silence<'_>], adds_wait: bool) -> Option<String> {
        for silence in silences {
            let hangs = silence.of_all.max(silence.of_changes) >= HANGS_ANYHOW
                || (silence.of_all >= HANGS && adds_wait);
            if hangs && !self.hanging.iter().any(|(known, _)| known == silence.dir) {
                self.hanging.push((silence.dir.to_owned(), None));
            }
        }
        self.hanging.retain_mut(|(dir, calm_since)| {
            let is_silent =
                |silence: &Silence<'_>| silence.dir == dir && silence.of_all.max(silence.of_changes) >= HANGS;
            match silences.iter().any(is_silent) {
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
                "the disk of ledger directory {} does not answer{others}: calls to it have been under way for more than {HANGS:?}, and \
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
    use std::path::Path;

    /// Nothing ends.
    fn silent(dir: &Path, seconds: u64) -> Silence<'_> {
        Silence { dir, of_all: at(seconds), of_changes: at(seconds) }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_directory_hangs_when_adds_wait_for_it_and_is_back_when_it_answers() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/mnt/2"));
        assert_eq!(core.tick(at(0), &[], true), None, "adds wait, and the disk answers");
        assert_eq!(core.tick(at(4), &[silent(dir, 4)], true), None);
        assert_eq!(core.tick(at(6), &[silent(dir, 6)], false), None, "nobody waits yet");
        let reason = core.tick(at(7), &[silent(dir, 7)], true).unwrap();
        assert!(reason.contains("/mnt/2 does not answer"), "{reason}");
        // No add waits, because all were refused.
        assert!(core.tick(at(60), &[silent(dir, 60)], false).is_some());
        let reason = core.tick(at(61), &[], false).unwrap();
        assert!(reason.contains("does again"), "{reason}");
        assert!(core.tick(at(64), &[silent(dir, 1)], false).is_some());
        assert_eq!(core.tick(at(66), &[silent(dir, 1)], false), None);
        assert_eq!(core.tick(at(67), &[], true), None);
    }

    #[test]
    fn it_stays_while_the_disk_hangs_again_and_again() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/l"));
        assert!(core.tick(at(6), &[silent(dir, 6)], true).is_some());
        for second in 7..11 {
            assert!(core.tick(at(second), &[], false).is_some());
        }
        assert!(core.tick(at(18), &[silent(dir, 7)], false).is_some(), "it began to hang again at 11");
        assert!(core.tick(at(19), &[], false).is_some());
        assert_eq!(core.tick(at(24), &[], false), None);
    }

    #[test]
    fn one_that_hangs_for_long_counts_although_nobody_waits() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/l"));
        assert_eq!(core.tick(at(29), &[silent(dir, 29)], false), None);
        assert!(core.tick(at(30), &[silent(dir, 30)], false).is_some());
    }

    /// One call lasts and lasts, and others end.
    #[test]
    fn a_slow_disk_does_not_hang() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/l"));
        for second in 0..300 {
            let busy = Silence { dir, of_all: at(4), of_changes: at(4) };
            assert_eq!(core.tick(at(second), &[busy], true), None);
            let is_read = Silence { dir, of_all: at(1), of_changes: at(29) };
            assert_eq!(core.tick(at(second), &[is_read], true), None);
        }
    }

    #[test]
    fn one_that_is_read_and_takes_no_change_hangs_until_it_takes_one() {
        let (mut core, dir) = (LedgerHangCore::default(), Path::new("/l"));
        let frozen = |seconds| Silence { dir, of_all: at(0), of_changes: at(seconds) };
        assert_eq!(core.tick(at(29), &[frozen(29)], false), None);
        assert!(core.tick(at(30), &[frozen(30)], false).is_some());
        // One that began to hang while nothing was read is read now.
        assert!(core.tick(at(90), &[frozen(90)], false).unwrap().contains("does not answer:"));
        assert!(core.tick(at(91), &[frozen(0)], false).is_some());
        assert_eq!(core.tick(at(96), &[frozen(0)], false), None);
    }

    #[test]
    fn each_directory_is_judged_alone_and_all_are_counted() {
        let (mut core, one, two) = (LedgerHangCore::default(), Path::new("/1"), Path::new("/2"));
        let reason = core.tick(at(9), &[silent(one, 9), silent(two, 9)], true).unwrap();
        assert!(reason.contains("/1") && reason.contains("1 more"), "{reason}");
        let reason = (10..16).map(|s| core.tick(at(s), &[silent(two, s)], false).unwrap()).last().unwrap();
        assert!(reason.contains("/2 does not answer:"), "{reason}");
    }
}
