//! The real disk, with counts of what goes through it, by what it is for; and written journal files to be used again.

use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, zero_fill};
use std::io::{self, IoSlice};
use std::ops::{Index, Sub};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A thing that is counted: bytes written to some kind of file, or calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Headers and groups of journal files.
    Journal,
    /// Zeros that make a journal file ahead of its use.
    Zeroing,
    /// Indexes of kept journal files.
    Index,
    /// Entry logs.
    Log,
    /// State tables.
    Table,
    /// Bytes that were allocated and not written.
    Allocated,
    /// Calls that read.
    Reads,
    ReadBytes,
    /// Calls that ask the kernel to begin a read.
    Asked,
}

const COUNTS: usize = What::Asked as usize + 1;

/// Counts at a moment, or between two.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted([u64; COUNTS]);

impl Index<What> for Counted {
    type Output = u64;
    fn index(&self, what: What) -> &u64 {
        &self.0[what as usize]
    }
}

impl Sub for Counted {
    type Output = Counted;
    fn sub(mut self, before: Counted) -> Counted {
        self.0.iter_mut().zip(before.0).for_each(|(now, before)| *now -= before);
        self
    }
}

impl Counted {
    /// Bytes written, to whatever.
    pub fn written(&self) -> u64 {
        [What::Journal, What::Zeroing, What::Index, What::Log, What::Table]
            .iter()
            .map(|what| self[*what])
            .sum()
    }
}

#[derive(Default)]
struct Counts([AtomicU64; COUNTS]);

impl Counts {
    fn add(&self, what: What, n: u64) {
        self.0[what as usize].fetch_add(n, Relaxed);
    }
}

/// The real disk, counted.
#[derive(Default)]
pub struct CountingDisk {
    beneath: RealDisk,
    counts: Arc<Counts>,
}

impl CountingDisk {
    pub fn now(&self) -> Counted {
        Counted(std::array::from_fn(|what| self.counts.0[what].load(Relaxed)))
    }
}

impl DiskLayer for CountingDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.beneath
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let name = path.file_name().unwrap().to_str().unwrap();
        let what = match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "elog" => What::Log,
            "jidx" => What::Index,
            "bjl" if name.starts_with("spare") => What::Zeroing,
            "bjl" | "jlog" => What::Journal,
            _ => What::Table,
        };
        let beneath = Disk::open(&self.beneath, path, mode)?;
        Ok(Arc::new(CountingFile { beneath, what, counts: self.counts.clone() }))
    }
}

struct CountingFile {
    beneath: Arc<dyn DiskFile>,
    what: What,
    counts: Arc<Counts>,
}

impl FileLayer for CountingFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.beneath
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.beneath.read_at(buf, offset)?;
        self.counts.add(What::Reads, 1);
        self.counts.add(What::ReadBytes, read as u64);
        Ok(read)
    }
    fn begin_reading(&self, offset: u64, len: u64) {
        self.counts.add(What::Asked, 1);
        self.beneath.begin_reading(offset, len);
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let written = self.beneath.write_at(slices, offset)?;
        self.counts.add(self.what, written as u64);
        Ok(written)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let written = self.beneath.write_durable_at(slices, offset)?;
        self.counts.add(self.what, written as u64);
        Ok(written)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        let before = self.beneath.len()?;
        self.beneath.allocate(len)?;
        self.counts.add(What::Allocated, len.saturating_sub(before));
        Ok(())
    }
}

/// How a file comes about that takes the place of a journal file that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    /// One whose entries are all deleted, or sorted: its blocks were written before.
    Recycled,
    /// Its blocks are allocated and were never written.
    Allocated,
    /// It is filled with zeros first, as the files are that a bookie makes at its start.
    Zeroed,
}

/// Journal files of one length that are no longer needed.
pub struct Spares {
    disk: Arc<CountingDisk>,
    dir: PathBuf,
    length: u64,
    written: Vec<PathBuf>,
    next: u64,
}

impl Spares {
    pub fn new(disk: &Arc<CountingDisk>, dir: PathBuf, length: u64) -> Spares {
        disk.create_dir_all(&dir).unwrap();
        Spares { disk: disk.clone(), dir, length, written: Vec::new(), next: 0 }
    }

    fn name(&mut self) -> PathBuf {
        self.next += 1;
        self.dir.join(format!("spare-{:06}.bjl", self.next))
    }

    fn make(&mut self, fresh: Fresh) -> PathBuf {
        let path = self.name();
        let file = Disk::open(&*self.disk, &path, OpenMode::CreateDirect).unwrap();
        match fresh {
            Fresh::Allocated => file.allocate(self.length).unwrap(),
            Fresh::Recycled | Fresh::Zeroed => zero_fill(&*file, 0, self.length).unwrap(),
        }
        file.sync().unwrap();
        path
    }

    /// Has so many at hand that were written before.
    pub fn stock(&mut self, count: usize) {
        while self.written.len() < count {
            let path = self.make(Fresh::Recycled);
            self.written.push(path);
        }
    }

    /// A file for a journal; the caller renames it.
    ///
    /// # Panics
    /// When none is left that was written before: a round would pay for what a steady state has.
    pub fn take(&mut self, fresh: Fresh) -> PathBuf {
        match fresh {
            Fresh::Recycled => self.written.pop().unwrap(),
            Fresh::Allocated | Fresh::Zeroed => self.make(fresh),
        }
    }

    /// Takes a file that was written, all of it.
    pub fn put(&mut self, path: &Path) {
        let name = self.name();
        Disk::rename(&*self.disk, path, &name).unwrap();
        self.written.push(name);
    }
}
