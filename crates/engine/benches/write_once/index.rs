//! The index of a kept journal file: as an entry log has it, less the bodies. Little-endian.
//!
//! ```text
//! header   0 magic "BNDJIX01" | 8 file id u64 | zeros to the block
//! record   0 entry i64 | 8 offset u64 | 16 length u32 | 20 body CRC32C u32
//!          24 CRC32C of (file id u64, ledger i64, place in the run u32, bytes 0..24)          28 bytes
//! run      0 ledger i64 | 8 first i64 | 16 last i64 | 24 largest LAC i64 | 32 stride u64
//!          40 records offset u64 | 48 entries u32 | 52 CRC32C of the records u32              56 bytes
//! trailer  0 magic "BNDJIXTL" | 8 file id u64 | 16 group u64 | 24 runs offset u64 | 32 runs u64 | 40 entries u64
//!          48 CRC32C of the runs u32 | 52 CRC32C of bytes 0..52                               56 bytes
//! ```

use bindery_io::chunk::AlignedBuf;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode};
use bindery_types::codec::{Crc32c, Put, Take, crc32c};
use bindery_types::{EntryId, LedgerId};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

pub const RECORD_BYTES: usize = 28;
const RUN_BYTES: usize = 56;
const TRAILER_BYTES: usize = 56;
const STAGING_BYTES: usize = 1 << 20;

/// Where a body stands in its journal file.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub entry: i64,
    pub offset: u64,
    pub length: u32,
    pub crc32c: u32,
}

/// Consecutive lines of one ledger.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub ledger: LedgerId,
    pub first: i64,
    pub last: i64,
    /// Distance of neighbours, 0 when it varies.
    pub stride: u64,
    pub records_offset: u64,
    pub count: u32,
    pub records_crc: u32,
}

fn record_crc(file_id: u64, ledger: LedgerId, place: u32, head: &[u8]) -> u32 {
    let mut identity = [0; 20];
    identity[..8].copy_from_slice(&file_id.to_le_bytes());
    identity[8..16].copy_from_slice(&ledger.get().to_le_bytes());
    identity[16..].copy_from_slice(&place.to_le_bytes());
    crc32c(&[&identity, head])
}

/// Reads one line, verified.
pub fn decode_record(bytes: &[u8], file_id: u64, run: &Run, place: u32) -> Found {
    let (head, crc) = bytes.split_at(RECORD_BYTES - 4);
    assert_eq!(crc, record_crc(file_id, run.ledger, place, head).to_le_bytes());
    let mut take = Take(head);
    let mut decode =
        || Some(Found { entry: take.i64()?, offset: take.u64()?, length: take.u32()?, crc32c: take.u32()? });
    decode().unwrap()
}

/// Writes an index in one pass.
pub struct IndexWriter {
    file: Arc<dyn DiskFile>,
    staging: AlignedBuf,
    filled: usize,
    written: u64,
    file_id: u64,
    records: Vec<u8>,
    runs: Vec<u8>,
    run_count: u64,
    entries: u64,
}

impl IndexWriter {
    pub fn create(disk: &dyn Disk, path: &Path, file_id: u64) -> IndexWriter {
        let file = disk.open(path, OpenMode::CreateDirect).unwrap();
        let (records, runs) = (Vec::new(), Vec::new());
        let staging = AlignedBuf::zeroed(STAGING_BYTES);
        let mut writer = IndexWriter {
            file,
            staging,
            filled: 0,
            written: 0,
            file_id,
            records,
            runs,
            run_count: 0,
            entries: 0,
        };
        let mut header = Vec::with_capacity(BLOCK_SIZE_BYTES);
        Put(&mut header).bytes(b"BNDJIX01").u64(file_id);
        header.resize(BLOCK_SIZE_BYTES, 0);
        writer.push(&header);
        writer
    }

    /// Adds the entries of a ledger, ascending.
    pub fn run(&mut self, ledger: LedgerId, max_lac: i64, found: impl Iterator<Item = Found>) {
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        let (mut first, mut last, mut stride, mut count) = (0, 0, 1, 0u32);
        for Found { entry, offset, length, crc32c } in found {
            assert!(count == 0 || entry > last, "{ledger}:{entry} does not ascend");
            let step = entry.abs_diff(last);
            match count {
                0 => first = entry,
                1 => stride = step,
                _ if stride != step => stride = 0,
                _ => {}
            }
            let start = records.len();
            Put(&mut records).i64(entry).u64(offset).u32(length).u32(crc32c);
            let crc = record_crc(self.file_id, ledger, count, &records[start..]);
            Put(&mut records).u32(crc);
            (last, count) = (entry, count + 1);
        }
        let records_offset = self.written + self.filled as u64;
        let mut put = Put(&mut self.runs);
        put.i64(ledger.get()).i64(first).i64(last).i64(max_lac).u64(stride).u64(records_offset);
        put.u32(count).u32(crc32c(&[&records]));
        self.run_count += 1;
        self.entries += u64::from(count);
        self.push(&records);
        self.records = records;
    }

    /// Makes it durable; the name is for the caller. Returns its length.
    pub fn finish(mut self, group: u64) -> u64 {
        let runs = std::mem::take(&mut self.runs);
        let runs_offset = self.written + self.filled as u64;
        self.push(&runs);
        let end = self.written + (self.filled + TRAILER_BYTES) as u64;
        let padding = end.next_multiple_of(BLOCK_SIZE_BYTES as u64) - end;
        self.push(&vec![0; padding as usize]);
        let mut trailer = Vec::with_capacity(TRAILER_BYTES);
        let mut put = Put(&mut trailer);
        put.bytes(b"BNDJIXTL").u64(self.file_id).u64(group).u64(runs_offset).u64(self.run_count);
        put.u64(self.entries).u32(crc32c(&[&runs]));
        let crc = crc32c(&[&trailer]);
        Put(&mut trailer).u32(crc);
        self.push(&trailer);
        self.write_staging();
        self.file.sync().unwrap();
        self.written
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = bytes.len().min(STAGING_BYTES - self.filled);
            self.staging[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
            if self.filled == STAGING_BYTES {
                self.write_staging();
            }
        }
    }

    fn write_staging(&mut self) {
        self.file.write_all_at(&mut [IoSlice::new(&self.staging[..self.filled])], self.written).unwrap();
        self.written += self.filled as u64;
        self.filled = 0;
    }
}

/// The runs of an index, verified, and the number of its entries.
pub fn open(file: &(dyn DiskFile + 'static), file_id: u64) -> (Vec<Run>, u64) {
    let length = file.len().unwrap();
    let mut block = vec![0; BLOCK_SIZE_BYTES];
    file.read_exact_at(&mut block, 0).unwrap();
    assert_eq!(block[..16], [&b"BNDJIX01"[..], &file_id.to_le_bytes()].concat());
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, length - TRAILER_BYTES as u64).unwrap();
    assert_eq!(crc32c(&[&trailer[..52]]).to_le_bytes(), trailer[52..]);
    let mut take = Take(&trailer[24..]);
    let mut fields = || Some((take.u64()?, take.u64()?, take.u64()?, take.u32()?));
    let (mut offset, count, entries, runs_crc) = fields().unwrap();
    let (mut runs, mut crc) = (Vec::with_capacity(count as usize), Crc32c::new());
    let mut buffer = vec![0; 816 * RUN_BYTES];
    while runs.len() < count as usize {
        let bytes = (count as usize - runs.len()).min(816) * RUN_BYTES;
        file.read_exact_at(&mut buffer[..bytes], offset).unwrap();
        offset += bytes as u64;
        crc.update(&buffer[..bytes]);
        for bytes in buffer[..bytes].chunks_exact(RUN_BYTES) {
            let mut take = Take(bytes);
            let mut decode = || {
                let (ledger, first, last) = (LedgerId::new(take.i64()?)?, take.i64()?, take.i64()?);
                let (max_lac, stride, records_offset) = (take.i64()?, take.u64()?, take.u64()?);
                let (count, records_crc) = (take.u32()?, take.u32()?);
                let is_sound = EntryId::new(first).is_some() && last >= first && max_lac < last;
                is_sound.then_some(Run { ledger, first, last, stride, records_offset, count, records_crc })
            };
            runs.push(decode().unwrap());
        }
    }
    assert_eq!(crc.value(), runs_crc);
    (runs, entries)
}
