//! A redb database's file: redb's pages after header blocks of our own, and a latch on the first failure. The state
//! table and the coordinator's tree keep their databases in such files.
//!
//! ```text
//! 0      magic (8, names the kind) | 8 version u32 | zeros | 4092 CRC32C of bytes 0..4092
//! 4096   seal 0: magic "BNDRSEAL" | 8 commit number u64 | 16 CRC32C of bytes 0..16    (even commits)
//! 8192   seal 1: the same                                                             (odd commits)
//! 12288  redb's first 512 bytes, slot 0: magic "BNDRHEAD" | 8 sequence u64 | 16 the bytes | 528 CRC32C of 0..528
//! 16384  the same, slot 1
//! 20480  the redb file; its own first 512 bytes are not used
//! ```
//! redb rewrites its header in place: magic, commit slots, which slot counts. A torn write of that one sector would
//! cost the whole database, so the header is kept here in two slots instead: the one that the last sync covered is
//! never overwritten before the next sync has succeeded (found by the simulator, which tears sectors into garbage).
//!
//! A file that grows takes its blocks before redb writes into them: on a full disk a commit then fails without a failed
//! write, and the file can be opened again when there is room. (On file systems that write in place, that is.)
//!
//! After a failed sync the kernel may mark the pages clean and go on showing what never reached the medium, to the next process as
//! well. So a file is synced when it is opened, because a killed process may have left dirty pages. When a block is first used, it is
//! read past the page cache as well, together with its neighbours, and its checksum is remembered. A block that the page cache shows
//! differently is taken from the medium. Where the file system has no direct I/O the kernel is asked, when the file is opened, to drop
//! the pages that it holds, so that the page cache shows what the medium has.
//!
//! redb verifies all pages when it opens a file, and trusts them afterwards: it panics over a page that rots later. So
//! the checksum of each block is kept, as the medium had it or as it was last written, and other bytes are an error.
//!
//! The header is written before redb sees the file and never changes. It is read first, so that a file of a newer
//! release is refused before anything is written (redb marks a file as soon as it opens it).

use crate::codec::{Put, Take, crc32c};
use crate::{Damaged, DiskError, NewerFormat, StateError};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, Shortage, open_uncached};
use parking_lot::Mutex;
use redb::StorageBackend;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which kind of database a file holds, in its first block.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// The first eight bytes of the file.
    pub magic: &'static [u8; 8],
    /// The version this build writes, and the newest it reads.
    pub version: u32,
    /// The kind of file, for error texts, with its article: "a state table".
    pub name: &'static str,
}

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
/// Header, seals and redb's header in two slots; redb's file follows.
pub const HEADER_SIZE: u64 = 5 * BLOCK;
const REDB_SLOT_AT: u64 = 3 * BLOCK;
/// The part of redb's file that is kept in the slots: its header takes 320 bytes and has its page to itself.
const REDB_HEADER_SIZE: usize = 512;
const REDB_SLOT_MAGIC: &[u8; 8] = b"BNDRHEAD";
const REDB_SLOT_SIZE: usize = 16 + REDB_HEADER_SIZE + 4;
const SEAL_SIZE: usize = 20;
const SEAL_MAGIC: &[u8; 8] = b"BNDRSEAL";
const CRC_AT: usize = BLOCK_SIZE_BYTES - 4;

/// Header, and blocks for the seals, still empty.
pub fn encode_header(format: &Format) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_SIZE as usize);
    Put(&mut out).bytes(format.magic).u32(format.version);
    out.resize(CRC_AT, 0);
    let crc = crc32c(&[&out]);
    Put(&mut out).u32(crc);
    out.resize(HEADER_SIZE as usize, 0);
    out
}

/// A file as the medium holds it, whatever the page cache shows.
#[derive(Clone)]
pub struct Medium(Arc<dyn DiskFile>);

impl Medium {
    /// The medium of `file`, which is open at `path`. Bytes that a killed process wrote and did not sync are made durable first.
    ///
    /// # Errors
    /// One of them is a failed sync: then the file must not be touched again.
    pub fn of(disk: &dyn Disk, file: &dyn DiskFile, path: &Path) -> io::Result<Medium> {
        file.sync()?;
        let medium = open_uncached(disk, path)?;
        medium.drop_cached();
        Ok(Medium(medium))
    }

    /// Exactly `buf.len()` bytes from `offset` on.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

/// Which commit was acknowledged last. The two seals are written in turn, so that a torn one leaves the other.
pub struct Seals {
    file: Arc<dyn DiskFile>,
    medium: Medium,
    latch: Arc<Latch>,
}

impl Seals {
    /// The seals of `file`.
    pub fn new(file: Arc<dyn DiskFile>, medium: Medium, latch: Arc<Latch>) -> Seals {
        Seals { file, medium, latch }
    }

    /// The highest number of a valid seal.
    pub fn read(&self) -> io::Result<Option<u64>> {
        let mut highest = None;
        for slot in 0..2 {
            let mut seal = [0; SEAL_SIZE];
            self.medium.read_exact_at(&mut seal, BLOCK + slot * BLOCK)?;
            let (head, crc) = seal.split_at(SEAL_SIZE - 4);
            let number = head.strip_prefix(SEAL_MAGIC).and_then(|number| Take(number).u64());
            if crc == crc32c(&[head]).to_le_bytes() && number.is_some_and(|number| number % 2 == slot) {
                highest = highest.max(number);
            }
        }
        Ok(highest)
    }

    /// Makes it durable that commit `number` is in force.
    pub fn write(&self, number: u64) -> io::Result<()> {
        let mut seal = Vec::with_capacity(SEAL_SIZE);
        Put(&mut seal).bytes(SEAL_MAGIC).u64(number);
        let crc = crc32c(&[&seal]);
        Put(&mut seal).u32(crc);
        self.latch.guard("seal a commit", || {
            self.file.write_all_durable_at(&mut [IoSlice::new(&seal)], BLOCK + number % 2 * BLOCK)
        })
    }
}

/// Checks the first block of a file.
///
/// # Errors
/// [`StateError::NewerFormat`] for a newer version, [`StateError::Damaged`] for anything but this format.
pub fn check_header(block: &[u8], format: &Format, path: &Path) -> Result<(), StateError> {
    let damaged = |what: &str| StateError::from(Damaged::new(path, 0, what));
    let (head, crc) = block.split_at_checked(CRC_AT).ok_or_else(|| damaged("the header is cut"))?;
    let Some(fields) = head.strip_prefix(format.magic) else {
        return Err(damaged(&format!("this is not {}", format.name)));
    };
    if crc != crc32c(&[head]).to_le_bytes() {
        return Err(damaged("the checksum of the header does not match"));
    }
    match Take(fields).u32() {
        None | Some(0) => Err(damaged("format version 0 never existed")),
        Some(found) if found <= format.version => Ok(()),
        Some(found) => {
            let supported = format.version;
            Err(NewerFormat { path: path.to_owned(), found, supported }.into())
        }
    }
}

/// The first failure on the file. Once set it stays (IB14). Only [`Latch::give_up`] replaces it, where a lack of space or a failed
/// read turned out not to be all that is wrong.
#[derive(Debug, Default)]
pub struct Latch(Mutex<Option<First>>);

#[derive(Debug)]
struct First {
    action: &'static str,
    why: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The file system had no blocks left to allocate. No write and no sync failed.
    WantOfSpace,
    /// A read failed, perhaps one that no commit depends on. redb refuses any further use of the file; it may be sound.
    Read,
    Other,
}

impl Latch {
    /// The first failure, as one sentence.
    pub fn reason(&self) -> Option<String> {
        self.0.lock().as_ref().map(|First { action, why, .. }| format!("cannot {action}: {why}"))
    }

    /// True when the first failure was that of a read: the file may be opened again, to find whether it is sound.
    pub fn is_for_a_read(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|first| first.kind == Kind::Read)
    }

    /// True when the first failure was that no blocks could be had: the file is as it was, and may be opened again.
    pub fn is_for_want_of_space(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|first| first.kind == Kind::WantOfSpace)
    }

    /// Has `file` take the blocks below `len`, before anything is written into them.
    fn allocate(&self, file: &dyn DiskFile, len: u64) -> io::Result<()> {
        file.allocate(len).inspect_err(|error| {
            let is_for_want_of_space = Shortage::of(error) == Some(Shortage::Space);
            let kind = if is_for_want_of_space { Kind::WantOfSpace } else { Kind::Other };
            self.set_first("allocate blocks", error, kind);
        })
    }

    /// Runs `act`, unless something failed before. If it fails, that is the first failure.
    fn guard<T>(&self, action: &'static str, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if let Some(reason) = self.reason() {
            return Err(io::Error::other(reason));
        }
        act().inspect_err(|error| self.set(action, error))
    }

    /// As [`Latch::guard`], for a read.
    fn guard_read<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if let Some(reason) = self.reason() {
            return Err(io::Error::other(reason));
        }
        act().inspect_err(|error| self.set_first("read", error, Kind::Read))
    }

    /// The file could not be opened again: that it lacked space, or a read failed, is not all that is wrong with it.
    pub fn give_up(&self, why: &dyn std::fmt::Display) {
        *self.0.lock() = Some(First { action: "open it again", why: why.to_string(), kind: Kind::Other });
    }

    /// Makes this the first failure, unless there was one.
    pub fn set(&self, action: &'static str, why: &dyn std::fmt::Display) {
        self.set_first(action, why, Kind::Other);
    }

    fn set_first(&self, action: &'static str, why: &dyn std::fmt::Display, kind: Kind) {
        self.0.lock().get_or_insert_with(|| First { action, why: why.to_string(), kind });
    }
}

/// redb's header as redb reads and writes it. The next sync stores it in a slot.
struct RedbHeader {
    bytes: [u8; REDB_HEADER_SIZE],
    /// The sequence of the newest slot that is known to be durable.
    sequence: u64,
    is_dirty: bool,
}

impl RedbHeader {
    /// The valid slot with the highest sequence; zeros when there is none, which redb takes for no database.
    fn load(medium: &Medium) -> io::Result<RedbHeader> {
        let mut newest = RedbHeader { bytes: [0; REDB_HEADER_SIZE], sequence: 0, is_dirty: false };
        for slot in 0..2 {
            let mut block = [0; REDB_SLOT_SIZE];
            medium.read_exact_at(&mut block, REDB_SLOT_AT + slot * BLOCK)?;
            let (head, crc) = block.split_at(REDB_SLOT_SIZE - 4);
            let sequence = head.strip_prefix(REDB_SLOT_MAGIC).and_then(|rest| Take(rest).u64());
            if let Some(sequence) = sequence
                && crc == crc32c(&[head]).to_le_bytes()
                && sequence % 2 == slot
                && sequence > newest.sequence
            {
                newest.sequence = sequence;
                newest.bytes.copy_from_slice(&head[16..]);
            }
        }
        Ok(newest)
    }

    /// Writes the changed header to the slot that the last sync did not cover.
    fn store(&self, file: &dyn DiskFile) -> io::Result<()> {
        let next = self.sequence + 1;
        let mut slot = Vec::with_capacity(REDB_SLOT_SIZE);
        Put(&mut slot).bytes(REDB_SLOT_MAGIC).u64(next).bytes(&self.bytes);
        let crc = crc32c(&[&slot]);
        Put(&mut slot).u32(crc);
        file.write_all_at(&mut [IoSlice::new(&slot)], REDB_SLOT_AT + next % 2 * BLOCK)
    }
}

/// Bytes that are read from the medium at a time. Each piece of the file is read once, when a block in it is first used.
const PIECE_BYTES: u64 = 64 << 10;

/// The CRC32C of each whole block as the medium has it or as it was written, by block number; 0 if it is not known. Takes 4 bytes
/// for a block of 4 KiB.
#[derive(Default)]
struct BlockSums(Vec<u32>);

impl BlockSums {
    /// The whole blocks in `bytes`, which lie at `offset` of redb's file, with their numbers; never the one of its header.
    fn blocks(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
        let skipped = (offset.next_multiple_of(BLOCK) - offset) as usize;
        let first = usize::try_from(offset.div_ceil(BLOCK)).unwrap_or(usize::MAX);
        let blocks = bytes.get(skipped..).unwrap_or_default().chunks_exact(BLOCK_SIZE_BYTES);
        (first..).zip(blocks).filter(|(number, _)| *number > 0)
    }

    fn set(&mut self, number: usize, sum: u32) {
        if self.0.len() <= number {
            self.0.resize(number + 1, 0);
        }
        self.0[number] = sum;
    }

    /// True if the sum of each block in the range is known. Of parts of blocks it never is.
    fn are_known(&self, offset: u64, len: usize) -> bool {
        let is_whole = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK_SIZE_BYTES);
        let blocks = (offset / BLOCK).max(1)..(offset + len as u64) / BLOCK;
        is_whole && { blocks }.all(|number| self.0.get(number as usize).is_some_and(|known| *known != 0))
    }

    /// True when the blocks in `read` are known to be what the medium has, or were written.
    fn are_of(&self, offset: u64, read: &[u8]) -> bool {
        let is_same = |(number, block): (usize, &[u8])| self.0.get(number) == Some(&crc32c(&[block]));
        self.are_known(offset, read.len()) && BlockSums::blocks(offset, read).all(is_same)
    }

    /// Learns the sums of blocks that are not known yet from the bytes of the medium.
    fn learn_unknown(&mut self, offset: u64, of_medium: &[u8]) {
        for (number, block) in BlockSums::blocks(offset, of_medium) {
            if self.0.get(number).is_none_or(|known| *known == 0) {
                self.set(number, crc32c(&[block]));
            }
        }
    }

    /// Checks blocks that were read from the medium against the known sums, and learns the sums that are not known.
    fn check(&mut self, offset: u64, read: &[u8]) -> io::Result<()> {
        for (number, block) in BlockSums::blocks(offset, read) {
            let sum = crc32c(&[block]);
            match self.0.get(number) {
                Some(known) if *known != 0 && *known != sum => {
                    let at = HEADER_SIZE + number as u64 * BLOCK;
                    let what = format!("the page at byte {at} is not what was there before");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                _ => self.set(number, sum),
            }
        }
        Ok(())
    }

    /// Learns the sums of blocks that were, or may have been, written: those written in part are no longer known.
    fn learn(&mut self, offset: u64, written: &[u8]) {
        let end = offset + written.len() as u64;
        for edge in [offset, end].into_iter().filter(|edge| edge % BLOCK != 0) {
            if let Some(known) = self.0.get_mut((edge / BLOCK) as usize) {
                *known = 0;
            }
        }
        for (number, block) in BlockSums::blocks(offset, written) {
            self.set(number, crc32c(&[block]));
        }
    }

    fn cut(&mut self, len: u64) {
        self.0.truncate((len / BLOCK) as usize);
    }
}

/// The file as redb sees it.
pub struct Backend {
    file: Arc<dyn DiskFile>,
    medium: Medium,
    path: PathBuf,
    latch: Arc<Latch>,
    header: Mutex<RedbHeader>,
    sums: Mutex<BlockSums>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Backend").field(&self.path).finish()
    }
}

impl Backend {
    /// Over a file that has its header block; see the module docs.
    pub fn new(
        file: Arc<dyn DiskFile>,
        medium: Medium,
        path: PathBuf,
        latch: Arc<Latch>,
    ) -> io::Result<Backend> {
        let header = Mutex::new(RedbHeader::load(&medium)?);
        Ok(Backend { file, medium, path, latch, header, sums: Mutex::default() })
    }

    /// Learns the sums of the blocks around a range from the medium. Where that cannot be read they stay unknown.
    fn learn(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = (offset + len as u64).next_multiple_of(PIECE_BYTES);
        let end = end.min(self.file.len()?.saturating_sub(HEADER_SIZE));
        let mut buffer = vec![0; PIECE_BYTES as usize];
        for at in (offset - offset % PIECE_BYTES..end).step_by(PIECE_BYTES as usize) {
            let piece = &mut buffer[..(end - at).min(PIECE_BYTES) as usize];
            if self.medium.read_exact_at(piece, Self::shifted(at)?).is_ok() {
                self.sums.lock().learn_unknown(at, piece);
            }
        }
        Ok(())
    }

    /// The part of `offset..offset + len` that lies in redb's header.
    fn in_header(offset: u64, len: usize) -> std::ops::Range<usize> {
        let start = offset.min(REDB_HEADER_SIZE as u64) as usize;
        start..(start + len).min(REDB_HEADER_SIZE)
    }

    /// Where `offset` of redb's file is in ours.
    fn shifted(offset: u64) -> io::Result<u64> {
        offset.checked_add(HEADER_SIZE).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.latch.guard("read the length", || {
            let len = self.file.len()?;
            len.checked_sub(HEADER_SIZE).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        })
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.latch.guard_read(|| {
            let at = Self::shifted(offset)?;
            self.file.read_exact_at(out, at)?;
            // Of the first block only redb's header is used, which is not kept there.
            let is_header = offset + out.len() as u64 <= BLOCK;
            if !is_header && !self.sums.lock().are_known(offset, out.len()) {
                self.learn(offset, out.len())?;
            }
            if !is_header && !self.sums.lock().are_of(offset, out) {
                self.medium.read_exact_at(out, at)?;
                self.sums.lock().check(offset, out)?;
            }
            let range = Self::in_header(offset, out.len());
            out[..range.len()].copy_from_slice(&self.header.lock().bytes[range]);
            Ok(())
        })
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.latch.guard("set the length", || {
            self.sums.lock().cut(len);
            let (old, len) = (self.file.len()?, Self::shifted(len)?);
            if len > old
                && let Err(error) = self.latch.allocate(&*self.file, len)
            {
                // Gives back the blocks that it did get; nothing depends on that.
                let _ = self.file.set_len(old);
                return Err(error);
            }
            self.file.set_len(len)
        })
    }
    fn sync_data(&self) -> io::Result<()> {
        self.latch.guard("sync", || {
            let mut header = self.header.lock();
            if header.is_dirty {
                header.store(&*self.file)?;
            }
            self.file.sync()?;
            if std::mem::take(&mut header.is_dirty) {
                header.sequence += 1;
            }
            Ok(())
        })
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.latch.guard("write", || {
            let range = Self::in_header(offset, data.len());
            let rest = &data[range.len()..];
            if !range.is_empty() {
                let mut header = self.header.lock();
                header.bytes[range.clone()].copy_from_slice(&data[..range.len()]);
                header.is_dirty = true;
            }
            if rest.is_empty() {
                return Ok(());
            }
            self.sums.lock().learn(offset + range.len() as u64, rest);
            let at = Self::shifted(offset)? + range.len() as u64;
            self.file.write_all_at(&mut [IoSlice::new(rest)], at)
        })
    }
}

/// The meaning of a redb error. The latch knows the first failure on the file; redb reports later ones its own way.
pub fn state_error(path: &Path, latch: &Latch, error: redb::Error) -> StateError {
    let path = path.to_owned();
    match (error, latch.reason()) {
        (redb::Error::Io(source), _) if source.kind() == io::ErrorKind::InvalidData => {
            Damaged { path, offset: 0, what: source.to_string() }.into()
        }
        (redb::Error::Io(source), _) if source.kind() == io::ErrorKind::UnexpectedEof => {
            Damaged { path, offset: 0, what: "the file ends inside a page".into() }.into()
        }
        (_, Some(reason)) => StateError::Latched { path, reason },
        (redb::Error::Io(source), None) => DiskError { path, action: "use database", source }.into(),
        (redb::Error::Corrupted(what), None) => Damaged { path, offset: 0, what }.into(),
        (error @ (redb::Error::TableDoesNotExist(_) | redb::Error::TableTypeMismatch { .. }), None) => {
            Damaged { path, offset: 0, what: error.to_string() }.into()
        }
        (error, None) => StateError::Database { path, reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemDisk;
    use bindery_io::OpenMode;
    use proptest::prelude::*;

    fn backend(memory: &MemDisk) -> Backend {
        let path = PathBuf::from("/table");
        let file = memory.disk().open(&path, OpenMode::CreateBuffered).unwrap();
        file.set_len(HEADER_SIZE + 8 * BLOCK).unwrap();
        let medium = Medium::of(&*memory.disk(), &*file, &path).unwrap();
        Backend::new(file, medium, path, Arc::default()).unwrap()
    }

    #[derive(Debug, Clone)]
    enum Act {
        Read(u64, usize),
        Write(u64, usize, u8),
        Cut(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..8u64, 0..9000usize).prop_map(|(block, len)| Act::Read(block * BLOCK, len)),
            (0..40_000u64, 1..9000usize, any::<u8>()).prop_map(|(at, len, byte)| Act::Write(at, len, byte)),
            (1..9u64).prop_map(|blocks| Act::Cut(blocks * BLOCK)),
        ]
    }

    proptest! {
        /// Reads return what was written, for any sequence of reads, writes and cuts; no sound page is refused.
        #[test]
        fn sound_pages_are_never_refused(acts in prop::collection::vec(act(), 1..40)) {
            let backend = backend(&MemDisk::default());
            let mut model = vec![0u8; 8 * BLOCK_SIZE_BYTES];
            for act in acts {
                match act {
                    Act::Read(at, len) if at as usize + len <= model.len() => {
                        let mut out = vec![0; len];
                        backend.read(at, &mut out).unwrap();
                        prop_assert!(out == model[at as usize..][..len]);
                    }
                    Act::Write(at, len, byte) if at as usize + len <= model.len() => {
                        let bytes = vec![byte; len];
                        backend.write(at, &bytes).unwrap();
                        model[at as usize..][..len].copy_from_slice(&bytes);
                    }
                    Act::Cut(len) => {
                        backend.set_len(len).unwrap();
                        model.resize(len as usize, 0);
                    }
                    _ => {}
                }
            }
        }
    }

    /// A page that rots while the file is open is an error to redb, which would panic over it, whether it was read or
    /// written before; and the file is latched.
    #[test]
    fn a_page_that_rots_is_damage() {
        for is_read in [false, true] {
            let memory = MemDisk::default();
            let backend = backend(&memory);
            let mut page = [7; BLOCK_SIZE_BYTES];
            backend.write(2 * BLOCK, &page).unwrap();
            if is_read {
                backend.read(2 * BLOCK, &mut page).unwrap();
            }
            let path = PathBuf::from("/table");
            let mut bytes = memory.bytes(&path);
            bytes[(HEADER_SIZE + 2 * BLOCK) as usize + 100] ^= 4;
            memory.overwrite(&path, bytes);
            let error = backend.read(2 * BLOCK, &mut page).unwrap_err();
            assert!(error.to_string().contains("byte 28672"), "{error}");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(backend.write(0, &[0; 600]).is_err(), "{:?}", backend.latch.reason());
        }
    }
}
