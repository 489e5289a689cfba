//! The file systems that hold ledgers.

use bindery_io::{Disk, Space};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// One directory of each file system that holds ledgers.
#[derive(Clone)]
pub struct Volumes {
    disk: Arc<dyn Disk>,
    dirs: Vec<PathBuf>,
}

impl Volumes {
    /// `dirs` must be on different file systems, so that nothing is counted twice.
    pub fn new(disk: Arc<dyn Disk>, dirs: Vec<PathBuf>) -> Volumes {
        Volumes { disk, dirs }
    }

    /// Size and free bytes over all of them. Blocks.
    pub fn space(&self) -> io::Result<Space> {
        let mut sum = Space { total: 0, free: 0 };
        for dir in &self.dirs {
            let space = self.disk.space(dir)?;
            sum.total = sum.total.saturating_add(space.total);
            sum.free = sum.free.saturating_add(space.free);
        }
        Ok(sum)
    }
}
