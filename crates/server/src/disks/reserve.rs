//! The reserve: a file of allocated blocks on each volume, given up when the volume is full, so that a full bookie
//! still starts, fences, flushes what it has, deletes and compacts.
//!
//! ```text
//!            room for it twice                     no adds are taken, and space is short
//! lacking ----------------------> held  -----------------------------------------------> lacking
//!            (refill)                              (give up; also before a start's replay)
//! ```
//!
//! # Invariants
//! 1. It is given up only while the bookie takes no adds for want of space, or before it takes any: entries never eat it.
//! 2. It is taken back only when the volume keeps as much free as the reserve is large, so that taking it back does not
//!    make space short again.
//! 3. The length of the file alone says how much of it is held: there is no state to lose.
//! 4. A flush that waits for space gets half of it. The other half stays for fences, removals and rewrites, so that the space
//!    of what is deleted later can be given back.
//!
//! # Limits
//! One file a volume, [`default_bytes`] or what `diskReserveSizeMB` says.

pub use crate::data_dirs::RESERVE_NAME;
use bindery_io::{Disk, OpenMode, Space};
use std::io;
use std::path::{Path, PathBuf};

const BLOCK: u64 = bindery_io::BLOCK_SIZE_BYTES as u64;
const MIB: u64 = 1 << 20;

/// The default size of a reserve: bytes that a flush of a whole write pool needs, with its index, which is the most that a start can
/// have to write. At most a 32nd of the volume, at least 8 MiB. A start for which that is not enough waits for space.
pub fn default_bytes(volume_bytes: u64, write_pool_bytes: u64) -> u64 {
    let wanted = write_pool_bytes + 64 * MIB;
    let bytes = wanted.min(volume_bytes / 32).max(8 * MIB);
    bytes - bytes % BLOCK
}

/// The state of a volume when the reserve is decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// Free bytes of the volume.
    pub free: u64,
    /// Bytes of the reserve that are held.
    pub held: u64,
    /// Bytes that it should have.
    pub size: u64,
    /// A write was refused space just now.
    pub is_short: bool,
    /// The bookie takes adds.
    pub takes_adds: bool,
}

/// What to do with a reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Keep,
    /// Remove the file.
    GiveUp,
    /// Allocate what is lacking.
    Refill,
}

/// Decides what to do.
pub fn next_step(now: Situation) -> Step {
    let lacking = now.size.saturating_sub(now.held);
    if now.held > 0 && !now.takes_adds && (now.is_short || now.free < now.size / 8) {
        Step::GiveUp
    } else if lacking > 0 && !now.is_short && now.free >= lacking.saturating_add(now.size) {
        Step::Refill
    } else {
        Step::Keep
    }
}

/// The reserve of one volume. All calls block on the disk.
pub struct Reserve {
    path: PathBuf,
    size: u64,
}

impl Reserve {
    /// A reserve in `dir`, which must exist; `size` is rounded down to whole blocks.
    pub fn new(dir: &Path, size: u64) -> Reserve {
        Reserve { path: dir.join(RESERVE_NAME), size: size - size % BLOCK }
    }

    /// Bytes that it should have.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that are held now.
    ///
    /// # Errors
    /// The file cannot be opened, which does not say that there is none.
    pub fn held(&self, disk: &dyn Disk) -> io::Result<u64> {
        match disk.open(&self.path, OpenMode::Read).and_then(|file| file.len()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            found => found,
        }
    }

    /// The step that [`Reserve::tend`] would return.
    ///
    /// # Errors
    /// As [`Reserve::held`].
    pub fn step(&self, disk: &dyn Disk, space: Space, is_short: bool, takes_adds: bool) -> io::Result<Step> {
        let held = self.held(disk)?;
        Ok(next_step(Situation { free: space.free, held, size: self.size, is_short, takes_adds }))
    }

    /// Decides on a step, takes it, and returns it. With [`Step::Keep`] a file that is larger than it should be, as configured before, is
    /// removed nevertheless, and a later call makes a new one. If a refill fails the file is removed as well, and a later call tries again.
    pub fn tend(&self, disk: &dyn Disk, space: Space, is_short: bool, takes_adds: bool) -> io::Result<Step> {
        let step = self.step(disk, space, is_short, takes_adds)?;
        match step {
            Step::Keep if self.held(disk)? > self.size => self.give_up(disk)?,
            Step::Keep => {}
            Step::GiveUp => self.give_up(disk)?,
            Step::Refill => self.refill(disk)?,
        }
        Ok(step)
    }

    fn give_up(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.remove(&self.path)?;
        // Some file systems hand freed blocks out again only when their removal is durable.
        disk.sync_dir(self.path.parent().unwrap_or(&self.path))
    }

    fn refill(&self, disk: &dyn Disk) -> io::Result<()> {
        let file = disk.open(&self.path, OpenMode::CreateBuffered)?;
        file.allocate(self.size).inspect_err(|_| {
            // Others now lack the space that an unfinished fill took.
            let _ = self.give_up(disk);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::RealDisk;
    use proptest::prelude::*;

    proptest! {
        /// Reserve invariants 1 and 2: adds never have it, and a step is not undone by the next one.
        #[test]
        fn steps_do_not_chase_each_other(
            free in 0u64..4000, held in 0u64..=1000, size in 8u64..=1000, is_short: bool, takes_adds: bool,
        ) {
            let held = held.min(size);
            let now = Situation { free, held, size, is_short, takes_adds };
            match next_step(now) {
                Step::GiveUp => {
                    prop_assert!(!takes_adds);
                    let then = Situation { free: free + held, held: 0, is_short: false, ..now };
                    prop_assert!(next_step(then) == Step::Keep || free >= size);
                }
                Step::Refill => {
                    prop_assert!(!is_short);
                    let then = Situation { free: free - (size - held), held: size, ..now };
                    prop_assert!(then.free >= size);
                    prop_assert_eq!(next_step(then), Step::Keep);
                }
                Step::Keep => {}
            }
        }
    }

    #[test]
    fn a_writable_bookie_keeps_it_and_a_full_one_gives_it_up_and_takes_it_back() {
        let now = Situation { free: 0, held: 100, size: 100, is_short: true, takes_adds: true };
        assert_eq!(next_step(now), Step::Keep);
        let full = Situation { takes_adds: false, ..now };
        assert_eq!(next_step(full), Step::GiveUp);
        assert_eq!(
            next_step(Situation { is_short: false, ..full }),
            Step::GiveUp,
            "less than an eighth is left"
        );
        let given = Situation { free: 150, held: 0, is_short: false, ..full };
        assert_eq!(next_step(given), Step::Keep);
        assert_eq!(next_step(Situation { free: 200, ..given }), Step::Refill);
        assert_eq!(next_step(Situation { held: 0, ..full }), Step::Keep, "there is nothing to give up");
        let eighth = Situation { free: 12, held: 96, size: 96, is_short: false, takes_adds: false };
        assert_eq!(next_step(eighth), Step::Keep);
        assert_eq!(next_step(Situation { free: 11, ..eighth }), Step::GiveUp);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_not_taken_for_none() {
        let no_directory = tempfile::NamedTempFile::new().unwrap();
        assert!(Reserve::new(no_directory.path(), 5 << 20).held(&RealDisk::new()).is_err());
    }

    #[test]
    fn its_blocks_are_really_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, reserve) = (RealDisk::new(), Reserve::new(dir.path(), 5 << 20));
        let space = Space { total: 1 << 40, free: 1 << 39 };
        assert_eq!(reserve.held(&disk).unwrap(), 0);
        assert_eq!(reserve.tend(&disk, space, false, true).unwrap(), Step::Refill);
        assert_eq!(reserve.held(&disk).unwrap(), 5 << 20);
        let taken = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&reserve.path).unwrap()) * 512;
        assert!(taken >= 5 << 20, "{taken} bytes of blocks");
        assert_eq!(reserve.tend(&disk, space, false, true).unwrap(), Step::Keep);
        let full = Space { total: 1 << 40, free: 0 };
        assert_eq!(reserve.tend(&disk, full, true, false).unwrap(), Step::GiveUp);
        assert_eq!(reserve.held(&disk).unwrap(), 0);
    }

    /// One of the right size is left alone; of a larger one, which was configured before, the space comes back.
    #[test]
    fn it_has_the_size_that_is_configured_now() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let space = Space { total: 1 << 40, free: 1 << 39 };
        let (large, small) = (Reserve::new(dir.path(), 8 << 20), Reserve::new(dir.path(), (5 << 20) + 1));
        assert_eq!(small.size(), 5 << 20, "whole blocks");
        for _ in 0..2 {
            large.tend(&disk, space, false, true).unwrap();
            assert_eq!(large.held(&disk).unwrap(), 8 << 20);
        }
        small.tend(&disk, space, false, true).unwrap();
        assert_eq!(small.held(&disk).unwrap(), 0);
        small.tend(&disk, space, false, true).unwrap();
        assert_eq!(small.held(&disk).unwrap(), 5 << 20);
    }

    #[test]
    fn the_default_fits_a_write_pool_and_small_volumes() {
        assert_eq!(default_bytes(1 << 40, 512 * MIB), 576 * MIB);
        assert_eq!(default_bytes(3200 * MIB, 512 * MIB), 100 * MIB);
        assert_eq!(default_bytes(256 * MIB, 512 * MIB), 8 * MIB);
        assert_eq!(default_bytes(1 << 20, 512 * MIB), 8 * MIB);
        assert_eq!(default_bytes(1 << 40, 512 << 20), 576 << 20);
        let odd = default_bytes((1 << 30) + 32 * 1000, 1 << 30);
        assert_eq!(odd, 32 << 20, "whole blocks, not more than a 32nd");
    }
}
