//! Reading one journal file, whatever state it is in.

use crate::file::{FileHeader, HeaderProblem};
use crate::group::{FileIdentity, GroupHeader};
use crate::record::{Record, decode_part};
use bindery_io::chunk::AlignedBuf;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode, is_unreadable, open_ahead};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
/// Bytes read at a time when scanning for a group after a bad one.
const SCAN_STEP: usize = 1 << 20;

/// Bytes read ahead when a file is read past the page cache, and compared at a time by [`Reader::is_on_medium`].
const WINDOW_BYTES: usize = 1 << 20;

/// The description of a block that the medium cannot return.
pub(crate) const UNREADABLE: &str =
    "the disk does not give what is there (an I/O error), and nobody knows what it was";

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A call to the operating system failed.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// Verb phrase.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A later format.
    #[error("journal file {path} has {problem}")]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Always [`HeaderProblem::NewerFormat`].
        problem: HeaderProblem,
    },
    /// The file belongs to another journal of the bookie.
    #[error(
        "journal file {path} is of journal {found} of this bookie, and its directory is configured as journal \
         {expected}: name the journal directories in the order they had, and only take away from the end of the list"
    )]
    OtherJournal {
        /// The file.
        path: PathBuf,
        /// Number of the journal that wrote it.
        found: u16,
        /// Number by the configuration.
        expected: u16,
    },
    /// The file belongs to another bookie.
    #[error(
        "journal file {path} belongs to {found:?}, and this is {expected:?}: give each bookie its own directory"
    )]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// The id that is in the file.
        found: String,
        /// Our own id.
        expected: String,
    },
}

/// Acknowledged data may be missing at this place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "journal file {path} {} at offset {offset}: {what}. Nothing was changed. {}Look at it with \
     `bindery inspect journal {path}`; restore the file from a copy, or remove this bookie from the cluster and let \
     its ledgers be re-replicated, or start with --accept-journal-damage: what may be missing is then answered as \
     unknown",
    if *may_pass { "cannot be read" } else { "is damaged" },
    if *may_pass { "I/O errors may pass: start it again first. " } else { "" }
)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where the first bad byte may be.
    pub offset: u64,
    /// The damage, in words.
    pub what: String,
    /// A block of some file of this journal could not be read from the medium. A later start may be able to read it.
    pub may_pass: bool,
}

/// Why there is no good group at an offset.
pub(crate) struct BadGroup {
    pub(crate) text: String,
    /// A valid header of a group of this file use is here, so the write of that group was begun.
    pub(crate) is_torn: bool,
}

/// Reads one journal file.
pub(crate) struct Reader {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    pub(crate) path: PathBuf,
    length: u64,
    /// If set, blocks that the medium cannot return are read as zeros, and the flag is raised. Otherwise they are an error.
    patience: Option<Arc<AtomicBool>>,
    /// The end of the last block that was read as zeros for that reason; 0 if there was none.
    unreadable_end: Arc<AtomicU64>,
}

impl Reader {
    pub(crate) fn open(disk: &Arc<dyn Disk>, path: PathBuf) -> Result<Reader, OpenError> {
        let opened = disk.open(&path, OpenMode::Read).and_then(|file| Ok((file.len()?, file)));
        match opened {
            Ok((length, file)) => {
                let disk = disk.clone();
                Ok(Reader { disk, file, path, length, patience: None, unreadable_end: Arc::default() })
            }
            Err(source) => Err(OpenError::Io { action: "open", path, source }),
        }
    }

    /// As [`Reader::open`], but reads bypass the page cache: after a failed sync the cache may show bytes that never reached the medium.
    /// Syncs the file first, because what a killed process wrote may not be durable yet.
    pub(crate) fn of_medium(disk: &Arc<dyn Disk>, path: PathBuf) -> Result<Reader, OpenError> {
        let reader = Reader::open(disk, path)?;
        let synced = disk.open(&reader.path, OpenMode::CreateDirect).and_then(|file| file.sync());
        let opened = synced.and_then(|()| open_ahead(&**disk, &reader.path, WINDOW_BYTES));
        match opened {
            Ok(file) => {
                // Without direct I/O reads go through the page cache after all, so the kernel has to forget the file first.
                file.drop_cached();
                Ok(Reader { file, ..reader })
            }
            Err(source) => Err(OpenError::Io { action: "sync", path: reader.path, source }),
        }
    }

    /// As [`Reader::open`], but blocks that the medium cannot return are read as zeros.
    pub(crate) fn patient(disk: &Arc<dyn Disk>, path: PathBuf) -> Result<Reader, OpenError> {
        Ok(Reader { patience: Some(Arc::default()), ..Reader::open(disk, path)? })
    }

    /// Reads blocks that the medium cannot return as zeros; `noted` says whether there were any.
    pub(crate) fn with_patience(self, noted: Arc<AtomicBool>) -> Reader {
        Reader { patience: Some(noted), ..self }
    }

    /// Reads the header of the file. A header that the medium cannot return counts as damaged.
    pub(crate) fn header(&self) -> Result<Result<FileHeader, HeaderProblem>, OpenError> {
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        let n = self.read(0, &mut block)?;
        Ok(match self.last_unreadable() {
            Some(_) => Err(HeaderProblem::Damaged),
            None => FileHeader::decode(&block[..n]),
        })
    }

    /// Describes, for operators, why `group_at` found no good group at `offset`. If a block at or after `offset` could not be read, that
    /// is taken for the reason, because what `bad` says was then derived from zeros. Call it before anything else is read.
    pub(crate) fn why(&self, offset: u64, bad: BadGroup) -> String {
        match self.last_unreadable().filter(|at| *at >= offset) {
            Some(at) => format!("{UNREADABLE}, at {at}"),
            None => bad.text,
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, OpenError> {
        let mut done = 0;
        // Set by an error: the rest is read block by block, to find the blocks that cannot be read.
        let mut is_by_block = false;
        while done < buf.len() {
            let at = offset + done as u64;
            let end = match is_by_block {
                true => buf.len().min(done + (BLOCK - at % BLOCK) as usize),
                false => buf.len(),
            };
            match self.file.read_at(&mut buf[done..end], at) {
                Ok(0) => break,
                // A direct file ends inside a block only if it was truncated. The next read would not be aligned.
                Ok(n) if self.file.is_direct() && !n.is_multiple_of(BLOCK_SIZE_BYTES) => {
                    done += n;
                    break;
                }
                Ok(n) => done += n,
                Err(error) if is_unreadable(&error) && self.patience.is_some() => {
                    if !std::mem::replace(&mut is_by_block, true) {
                        continue;
                    }
                    let end = end.min(done + self.length.saturating_sub(at) as usize);
                    if end == done {
                        break;
                    }
                    buf[done..end].fill(0);
                    self.unreadable_end.fetch_max((at / BLOCK + 1) * BLOCK, Ordering::Relaxed);
                    if let Some(noted) = &self.patience {
                        noted.store(true, Ordering::Relaxed);
                    }
                    done = end;
                }
                Err(source) => return Err(OpenError::Io { action: "read", path: self.path.clone(), source }),
            }
        }
        Ok(done)
    }

    /// The offset of the last block that the medium could not return, in all reads so far.
    pub(crate) fn last_unreadable(&self) -> Option<u64> {
        self.unreadable_end.load(Ordering::Relaxed).checked_sub(BLOCK)
    }

    /// True if every block that it reads is zero, as in a file that was prepared and never used. Most files without a header are like
    /// that, and reading 256 MiB of zeros would take longer than the rest of a start. So it reads the places of the header and of the
    /// first groups, and one block in each MiB after them.
    pub(crate) fn seems_unused(&self) -> Result<bool, OpenError> {
        const DENSE: u64 = 16 * BLOCK;
        let sparse = (DENSE..self.length).step_by(1 << 20);
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        for offset in (0..DENSE.min(self.length)).step_by(BLOCK_SIZE_BYTES).chain(sparse) {
            let n = self.read(offset, &mut block)?;
            if block[..n].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the group at `offset` into `buffer` and verifies all of it. `identity` is the file use that the group must belong to;
    /// `None` accepts any.
    pub(crate) fn group_at(
        &self,
        offset: u64,
        identity: Option<FileIdentity>,
        buffer: &mut Vec<u8>,
    ) -> Result<Result<GroupHeader, BadGroup>, OpenError> {
        let bad = |text: &str, is_torn| Ok(Err(BadGroup { text: text.to_owned(), is_torn }));
        buffer.resize(BLOCK_SIZE_BYTES, 0);
        let n = self.read(offset, buffer)?;
        let Some(header) = GroupHeader::decode(&buffer[..n]) else { return bad("no group header", false) };
        if identity.is_some_and(|i| i != header.identity) || header.offset != offset {
            return bad("a group of an earlier use of the file", false);
        }
        if offset + header.total_bytes > self.length {
            return bad("a group that reaches beyond the file", true);
        }
        // The length is bounded by the file's, and the header's checksum holds.
        buffer.resize(header.total_bytes as usize, 0);
        if self.read(offset, buffer)? < buffer.len() {
            return bad("a group that reaches beyond the file", true);
        }
        match self.records(&header, buffer) {
            Ok(_) => Ok(Ok(header)),
            Err(text) => Ok(Err(BadGroup { text, is_torn: true })),
        }
    }

    /// Decodes the records of a group whose bytes are in `buffer`, part by part. The error says what does not verify.
    pub(crate) fn records<'a>(
        &self,
        header: &GroupHeader,
        buffer: &'a [u8],
    ) -> Result<Vec<Record<'a>>, String> {
        let mut records = Vec::new();
        for part in &header.parts {
            let data = buffer.get(part.offset as usize..).and_then(|b| b.get(..part.length as usize));
            let data = data.ok_or("a part beyond its group")?;
            let mut decoded =
                decode_part(data, part.record_count, part.headers_crc).map_err(|e| e.to_string())?;
            records.append(&mut decoded);
        }
        Ok(records)
    }

    /// Offset and sequence of the first group of this file use that begins after `offset`. Only its header is verified.
    pub(crate) fn next_group_behind(
        &self,
        offset: u64,
        identity: FileIdentity,
    ) -> Result<Option<(u64, u64)>, OpenError> {
        let found = self.scan(offset + BLOCK, |h| h.identity == identity)?;
        Ok(found.map(|(at, header)| (at, header.sequence)))
    }

    /// Finds the first block at or after `offset` with a group header that states this very offset and that `accept` takes.
    pub(crate) fn scan(
        &self,
        mut offset: u64,
        accept: impl Fn(&GroupHeader) -> bool,
    ) -> Result<Option<(u64, GroupHeader)>, OpenError> {
        // Bypasses the page cache, which a start should not fill with zeros. The kernel writes out dirty pages before a direct read.
        let failed = |source| OpenError::Io { action: "open", path: self.path.clone(), source };
        let direct = self.disk.open(&self.path, OpenMode::CreateDirect).map_err(failed)?;
        let direct = Reader {
            disk: self.disk.clone(),
            file: direct,
            path: self.path.clone(),
            length: self.length,
            patience: self.patience.clone(),
            unreadable_end: self.unreadable_end.clone(),
        };
        let mut buffer = AlignedBuf::zeroed(SCAN_STEP.min(self.length.saturating_sub(offset) as usize));
        while offset < self.length {
            let n = direct.read(offset, &mut buffer)?;
            for at in (0..n).step_by(BLOCK_SIZE_BYTES) {
                let block = &buffer[at..n.min(at + BLOCK_SIZE_BYTES)];
                if let Some(header) = GroupHeader::decode(block)
                    && header.offset == offset + at as u64
                    && accept(&header)
                {
                    return Ok(Some((header.offset, header)));
                }
            }
            if n < buffer.len() {
                break;
            }
            offset += n as u64;
        }
        Ok(None)
    }

    /// True if the medium holds the bytes that the page cache shows of this file.
    pub(crate) fn is_on_medium(&self) -> Result<bool, OpenError> {
        let mut window = vec![0; WINDOW_BYTES];
        let mut sums = |reader: &Reader| -> Result<Vec<u32>, OpenError> {
            let mut sums = Vec::new();
            for offset in (0..self.length).step_by(WINDOW_BYTES) {
                let n = reader.read(offset, &mut window)?;
                sums.push(crate::record::crc32c(&window[..n]));
            }
            Ok(sums)
        };
        // The cached bytes come first: reading from the medium may drop them from the cache.
        let shown = sums(self)?;
        let medium = Reader::of_medium(&self.disk, self.path.clone())?;
        Ok(sums(&medium)? == shown)
    }

    pub(crate) fn damage(&self, offset: u64, what: String) -> Damage {
        Damage { path: self.path.clone(), offset, what, may_pass: false }
    }
}
