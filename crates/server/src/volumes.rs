//! The file systems that hold ledgers.

use bindery_io::{Disk, Space};
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One directory of each file system that holds ledgers.
#[derive(Clone)]
pub struct Volumes {
    disk: Arc<dyn Disk>,
    dirs: Vec<PathBuf>,
    measured: Arc<Measured>,
}

#[derive(Default)]
struct Measured {
    /// A measurement is under way, perhaps on a disk that does not answer.
    is_under_way: AtomicBool,
    last: Mutex<Option<Space>>,
}

/// The measurement under way ends with this.
struct UnderWay<'a>(&'a AtomicBool);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Volumes {
    /// `dirs` must be on different file systems, so that nothing is counted twice.
    pub fn new(disk: Arc<dyn Disk>, dirs: Vec<PathBuf>) -> Volumes {
        Volumes { disk, dirs, measured: Arc::default() }
    }

    /// Size and free bytes over all of them. Blocks, but for those who ask while a measurement is under way and have an earlier one:
    /// a disk that hangs holds one thread, however many ask.
    pub fn space(&self) -> io::Result<Space> {
        let is_under_way = self.measured.is_under_way.swap(true, Ordering::AcqRel);
        let _under_way = match is_under_way {
            false => Some(UnderWay(&self.measured.is_under_way)),
            true => match *self.measured.last.lock() {
                Some(last) => return Ok(last),
                None => None,
            },
        };
        let mut sum = Space { total: 0, free: 0 };
        for dir in &self.dirs {
            let space = self.disk.space(dir)?;
            sum.total = sum.total.saturating_add(space.total);
            sum.free = sum.free.saturating_add(space.free);
        }
        *self.measured.last.lock() = Some(sum);
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::{DiskLayer, RealDisk};
    use std::path::Path;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// Has one byte more each time; the second measurement ends when the test says so.
    struct Hanging(RealDisk, AtomicU64, SyncSender<()>, Mutex<Receiver<()>>);

    impl DiskLayer for Hanging {
        fn beneath(&self) -> &dyn Disk {
            &self.0
        }
        fn space(&self, _: &Path) -> io::Result<Space> {
            let free = self.1.fetch_add(1, Ordering::SeqCst);
            if free == 1 {
                self.2.send(()).unwrap();
                self.3.lock().recv().unwrap();
            }
            Ok(Space { total: 9, free })
        }
    }

    #[test]
    fn a_volume_that_hangs_holds_one_who_asks() {
        let ((begins, begun), (go_on, waits)) = (sync_channel(0), sync_channel(0));
        let disk = Hanging(RealDisk::new(), AtomicU64::new(0), begins, Mutex::new(waits));
        let volumes = Volumes::new(Arc::new(disk), vec![PathBuf::from("/l")]);
        let free = || volumes.space().unwrap().free;
        assert_eq!(free(), 0);
        std::thread::scope(|scope| {
            let hangs = scope.spawn(free);
            begun.recv().unwrap();
            assert_eq!((free(), volumes.clone().space().unwrap().free), (0, 0), "the last that is known");
            go_on.send(()).unwrap();
            assert_eq!(hangs.join().unwrap(), 1);
        });
        assert_eq!(free(), 2);
    }
}
