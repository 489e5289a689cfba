//! One simulated file: what readers see, what is durable, and what lies between them.
//!
//! # Invariants
//! 1. Without pending versions and lengths, the cache differs from the durable content only where a fault (failed
//!    sync, lost write) made them differ.
//! 2. A sync moves pending sectors only: what an earlier failed sync dropped never becomes durable by a later one.
//! 3. A cut is atomic: with it go all older versions behind it.

use super::content::{Content, PAGE, PAGE_U64, Page, pages_of};
use bindery_io::{Random, SeededRandom};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// Older versions of a page beyond this many are merged: a crash then finds one of the newest four, or the old one.
const VERSIONS_MAX: usize = 4;
/// Length changes remembered one by one; further growth is merged.
const LENGTHS_MAX: usize = 64;

/// The unit that a device writes as a whole (most of the time).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectorSize {
    /// 512 bytes: a 4 KiB block can come out of a crash half written.
    Bytes512,
    /// 4096 bytes.
    Bytes4096,
}

impl SectorSize {
    /// The size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            SectorSize::Bytes512 => 512,
            SectorSize::Bytes4096 => PAGE,
        }
    }

    /// One bit for each sector of a page that a byte range touches.
    fn mask(self, range: &Range<usize>) -> u8 {
        if range.is_empty() {
            return 0;
        }
        let (first, last) = (range.start / self.bytes(), (range.end - 1) / self.bytes());
        (first..=last).fold(0, |mask, sector| mask | 1 << sector)
    }

    fn sectors(self, mask: u8) -> impl Iterator<Item = Range<usize>> {
        let size = self.bytes();
        (0..PAGE / size)
            .filter(move |sector| mask & (1 << sector) != 0)
            .map(move |s| s * size..(s + 1) * size)
    }
}

/// A page after a write that touched the sectors in `mask`.
#[derive(Clone)]
struct Version {
    sequence: u64,
    mask: u8,
    page: Arc<Page>,
}

/// Where the bytes of a write go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Into the cache, and to the medium with the next sync.
    Medium,
    /// Into the cache only: the device lost them.
    CacheOnly,
    /// Nowhere; the length grows.
    Nowhere,
}

/// How a crash treats what is pending in one file.
#[derive(Debug, Clone, Copy)]
pub(super) struct CrashDraw {
    /// Probability that a pending sector holds something new.
    pub(super) new: f64,
    /// Probability that a pending sector is torn.
    pub(super) torn: f64,
    /// Probability that a torn sector is nonsense.
    pub(super) garbage: f64,
}

#[derive(Clone)]
pub(super) struct Inode {
    pub(super) cache: Content,
    pub(super) durable: Content,
    sector: SectorSize,
    sequence: u64,
    pending: BTreeMap<u64, Vec<Version>>,
    /// Length changes since the last sync, in order, with their sequence.
    lengths: Vec<(u64, u64)>,
    /// Pages that cannot be read until they are written again.
    unreadable: BTreeSet<u64>,
    /// The content of overwritten pages before the last sync that touched them.
    former: BTreeMap<u64, Arc<Page>>,
}

impl Inode {
    pub(super) fn new(sector: SectorSize) -> Inode {
        Inode {
            cache: Content::default(),
            durable: Content::default(),
            sector,
            sequence: 0,
            pending: BTreeMap::new(),
            lengths: Vec::new(),
            unreadable: BTreeSet::new(),
            former: BTreeMap::new(),
        }
    }

    /// The file after a restart with this content on the medium.
    fn restarted(&self, durable: Content) -> Inode {
        let (unreadable, former) = (self.unreadable.clone(), self.former.clone());
        Inode { cache: durable.clone(), durable, unreadable, former, ..Inode::new(self.sector) }
    }

    /// The file when nothing pending survived.
    pub(super) fn durable_image(&self) -> Inode {
        let mut durable = self.durable.clone();
        durable.cut(durable.len());
        self.restarted(durable)
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || !self.lengths.is_empty()
    }

    /// Reads past the cache. The kernel writes dirty pages out before such a read, so pending sectors are seen, and everything
    /// else as the medium has it.
    pub(super) fn read_uncached(&self, buf: &mut [u8], offset: u64) -> usize {
        let n = self.cache.read(buf, offset);
        let mut rest = &mut buf[..n];
        for (index, range) in pages_of(offset, n) {
            let (part, after) = rest.split_at_mut(range.len());
            let mut page = *self.durable.page(index);
            // The durable content does not know of a cut that is still pending.
            cut_page(&mut page, index, self.pending_cut());
            let versions = self.pending.get(&index).into_iter().flatten();
            let mask = versions.fold(0, |mask, version| mask | version.mask);
            for sector in self.sector.sectors(mask) {
                page[sector.clone()].copy_from_slice(&self.cache.page(index)[sector]);
            }
            part.copy_from_slice(&page[range]);
            rest = after;
        }
        n
    }

    /// Forgets the pages that nothing is pending of: they read as the medium has them. Those with pending sectors stay.
    pub(super) fn drop_cached(&mut self) {
        let indices: Vec<u64> = self.cache.pages().map(|(index, _)| index).collect();
        for index in indices.into_iter().filter(|index| !self.pending.contains_key(index)) {
            let mut page = [0; PAGE];
            let n = self.read_uncached(&mut page, index * PAGE_U64);
            if self.cache.page(index)[..n] != page[..n] {
                self.cache.page_mut(index)[..n].copy_from_slice(&page[..n]);
            }
        }
    }

    /// The lowest length that the file was cut to since the last sync.
    fn pending_cut(&self) -> u64 {
        let durable = self.durable.len();
        self.lengths.iter().map(|&(_, len)| len).filter(|len| *len < durable).min().unwrap_or(u64::MAX)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn push_length(&mut self, len: u64) {
        let sequence = self.next_sequence();
        if let [.., (_, before), (_, last)] = self.lengths[..]
            && self.lengths.len() >= LENGTHS_MAX
            && (before..=len).contains(&last)
        {
            self.lengths.pop();
        }
        self.lengths.push((sequence, len));
    }

    /// Writes the first `n` bytes of the slices.
    pub(super) fn write(&mut self, slices: &[IoSlice<'_>], n: usize, offset: u64, reach: Reach) {
        let mut at = offset;
        let mut left = n;
        for slice in slices {
            let part = &slice[..slice.len().min(left)];
            left -= part.len();
            if reach != Reach::Nowhere {
                self.write_one(part, at, reach);
            }
            at += part.len() as u64;
        }
        if n > 0 && at > self.cache.len() {
            self.cache.grow(at);
            self.push_length(at);
        }
    }

    fn write_one(&mut self, mut bytes: &[u8], offset: u64, reach: Reach) {
        for (index, range) in pages_of(offset, bytes.len()) {
            let (part, rest) = bytes.split_at(range.len());
            bytes = rest;
            self.cache.page_mut(index)[range.clone()].copy_from_slice(part);
            if reach == Reach::Medium {
                self.unreadable.remove(&index);
                let (sequence, mask) = (self.next_sequence(), self.sector.mask(&range));
                let version = Version { sequence, mask, page: self.cache.share_page(index) };
                let versions = self.pending.entry(index).or_default();
                versions.push(version);
                if versions.len() > VERSIONS_MAX {
                    versions[1].mask |= versions[0].mask;
                    versions.remove(0);
                }
            }
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len != self.cache.len() {
            self.cache.cut(len);
            self.cache.grow(len);
            self.push_length(len);
        }
    }

    /// A sync that worked.
    pub(super) fn commit(&mut self) {
        if let Some(cut) = self.lengths.iter().map(|&(_, len)| len).min() {
            self.durable.cut(cut);
            self.durable.grow(self.cache.len());
            self.lengths.clear();
        }
        for (index, versions) in std::mem::take(&mut self.pending) {
            let mask = versions.iter().fold(0, |mask, version| mask | version.mask);
            if index * PAGE_U64 < self.cache.len() {
                self.persist(index, mask);
            }
        }
    }

    /// A durable write of `n` bytes that worked: those sectors, and the length changes so far, as a file system
    /// that journals its metadata does. It makes nothing more durable.
    pub(super) fn commit_range(&mut self, offset: u64, n: usize) {
        self.commit_lengths(offset + n as u64);
        for (index, mask) in self.take_pending(offset, n) {
            self.persist(index, mask);
        }
    }

    fn commit_lengths(&mut self, end: u64) {
        let Some(cut) = self.lengths.iter().map(|&(_, len)| len).min() else { return };
        let lengths = std::mem::take(&mut self.lengths);
        self.pending.retain(|&index, versions| {
            for version in versions.iter_mut() {
                let cut = cut_after(&lengths, version.sequence);
                if cut < (index + 1) * PAGE_U64 {
                    cut_page(Arc::make_mut(&mut version.page), index, cut);
                }
            }
            index * PAGE_U64 < self.cache.len()
        });
        self.durable.cut(cut);
        self.durable.grow(end.min(self.cache.len()));
        if self.durable.len() != self.cache.len() {
            self.push_length(self.cache.len());
        }
    }

    /// Takes the pending sectors that a byte range touches out of the pending ones.
    fn take_pending(&mut self, offset: u64, n: usize) -> Vec<(u64, u8)> {
        let mut taken = Vec::new();
        for (index, range) in pages_of(offset, n) {
            let Some(versions) = self.pending.get_mut(&index) else { continue };
            let asked = self.sector.mask(&range);
            let mask = versions.iter().fold(0, |mask, version| mask | version.mask) & asked;
            versions.retain_mut(|version| {
                version.mask &= !asked;
                version.mask != 0
            });
            if versions.is_empty() {
                self.pending.remove(&index);
            }
            taken.push((index, mask));
        }
        taken
    }

    fn persist(&mut self, index: u64, mask: u8) {
        if self.durable.has_page(index) {
            self.former.insert(index, self.durable.share_page(index));
        }
        let page = self.durable.page_mut(index);
        for sector in self.sector.sectors(mask) {
            page[sector.clone()].copy_from_slice(&self.cache.page(index)[sector]);
        }
    }

    /// A sync that failed: the pending data counts as clean from now on, though most of it never reached the medium.
    /// The lengths stay pending: they are metadata, and another failure.
    pub(super) fn drop_pending(&mut self, random: &SeededRandom) {
        for (index, versions) in std::mem::take(&mut self.pending) {
            let mask = versions.iter().fold(0, |mask, version| mask | version.mask);
            self.persist_some(index, mask, random);
        }
    }

    /// As `drop_pending`, for the sectors of a durable write.
    pub(super) fn drop_pending_range(&mut self, offset: u64, n: usize, random: &SeededRandom) {
        for (index, mask) in self.take_pending(offset, n) {
            self.persist_some(index, mask, random);
        }
    }

    fn persist_some(&mut self, index: u64, mask: u8, random: &SeededRandom) {
        // A failed sync wrote part of what it had: one sector in four.
        let reached = (random.next_u64() & random.next_u64()) as u8;
        if index * PAGE_U64 < self.cache.len() && mask & reached != 0 {
            self.persist(index, mask & reached);
        }
    }

    /// The cache forgets everything that is not durable.
    pub(super) fn revert(&mut self) {
        self.lengths.clear();
        self.pending.clear();
        self.durable.cut(self.durable.len());
        self.cache = self.durable.clone();
    }

    /// The cache forgets what is not durable in the sectors of a range.
    pub(super) fn revert_range(&mut self, offset: u64, n: usize) {
        for (index, range) in pages_of(offset, n) {
            for sector in self.sector.sectors(self.sector.mask(&range)) {
                let old = self.durable.page(index)[sector.clone()].to_vec();
                self.cache.page_mut(index)[sector].copy_from_slice(&old);
            }
        }
        // Bytes of the durable content may lie behind the end that readers see.
        self.cache.cut(self.cache.len());
    }

    /// The file as a restart after a power cut finds it.
    pub(super) fn crash(&self, draw: CrashDraw, random: &SeededRandom) -> Inode {
        let applied = match random.below(3) {
            0 => 0,
            1 => self.lengths.len(),
            _ => random.below(self.lengths.len() as u64 + 1) as usize,
        };
        let lengths = &self.lengths[..applied];
        let mut found = self.durable.clone();
        let len = match lengths.last() {
            Some(&(_, len)) => len,
            None => found.len(),
        };
        if let Some(cut) = lengths.iter().map(|&(_, len)| len).min() {
            found.cut(cut);
        }
        for (&index, versions) in &self.pending {
            let mask = versions.iter().fold(0, |mask, version| mask | version.mask);
            for sector in self.sector.sectors(mask) {
                let torn = random.chance(draw.torn);
                if !torn && !random.chance(draw.new) {
                    continue;
                }
                let candidates: Vec<&Version> =
                    versions.iter().filter(|v| v.mask & self.sector.mask(&sector) != 0).collect();
                let newest = candidates.len() - 1;
                let chosen =
                    if random.chance(0.5) { newest } else { random.below(newest as u64 + 1) as usize };
                let mut page = *candidates[chosen].page;
                cut_page(&mut page, index, cut_after(lengths, candidates[chosen].sequence));
                let target = &mut found.page_mut(index)[sector.clone()];
                if torn {
                    tear(target, &page[sector], draw.garbage, random);
                } else {
                    target.copy_from_slice(&page[sector]);
                }
            }
        }
        found.cut(len);
        found.grow(len);
        self.restarted(found)
    }

    /// The file of a restart that finds each pending sector new or old, and the new length or the old one, as `keep`
    /// says.
    pub(super) fn crash_choosing(&self, keep: &mut dyn FnMut() -> bool) -> Inode {
        let lengths = if !self.lengths.is_empty() && keep() { &self.lengths[..] } else { &[] };
        let mut found = self.durable.clone();
        let len = lengths.last().map_or(found.len(), |&(_, len)| len);
        if let Some(cut) = lengths.iter().map(|&(_, len)| len).min() {
            found.cut(cut);
        }
        for (&index, versions) in &self.pending {
            let mask = versions.iter().fold(0, |mask, version| mask | version.mask);
            for sector in self.sector.sectors(mask) {
                let newest = versions.iter().rev().find(|v| v.mask & self.sector.mask(&sector) != 0);
                let Some(version) = newest else { continue };
                let mut page = *version.page;
                cut_page(&mut page, index, cut_after(lengths, version.sequence));
                // No draw for a sector that is the same either way.
                if page[sector.clone()] != found.page(index)[sector.clone()] && keep() {
                    found.page_mut(index)[sector.clone()].copy_from_slice(&page[sector]);
                }
            }
        }
        found.cut(len);
        found.grow(len);
        self.restarted(found)
    }

    /// Puts bytes on the medium, where no writer of this file wanted them. Pending writes are not affected.
    pub(super) fn overwrite(&mut self, mut bytes: &[u8], offset: u64) {
        for (index, range) in pages_of(offset, bytes.len()) {
            let (part, rest) = bytes.split_at(range.len());
            bytes = rest;
            for content in [&mut self.cache, &mut self.durable] {
                if index * PAGE_U64 + range.end as u64 <= content.len() {
                    content.page_mut(index)[range.clone()].copy_from_slice(part);
                }
            }
        }
    }

    /// Makes the pages of a range unreadable until they are written again.
    pub(super) fn fail_reads(&mut self, offset: u64, n: usize) {
        self.unreadable.extend(pages_of(offset, n).map(|(index, _)| index));
    }

    /// Puts what a page held before into what was read from `offset` on.
    pub(super) fn read_stale(&self, page: u64, buf: &mut [u8], offset: u64) {
        let Some(former) = self.former.get(&page) else { return };
        let mut rest = &mut buf[..];
        for (index, range) in pages_of(offset, rest.len()) {
            let (part, after) = rest.split_at_mut(range.len());
            if index == page {
                part.copy_from_slice(&former[range]);
            }
            rest = after;
        }
    }

    pub(super) fn is_readable(&self, offset: u64, n: usize) -> bool {
        self.unreadable.is_empty() || pages_of(offset, n).all(|(index, _)| !self.unreadable.contains(&index))
    }

    /// Inverts `count` bits from bit 0 of the byte at `offset` on, wherever the bytes are held.
    pub(super) fn flip_bits(&mut self, offset: u64, count: u32) {
        for bit in 0..u64::from(count) {
            let at = offset + bit / 8;
            let (index, byte, mask) = (at / PAGE_U64, (at % PAGE_U64) as usize, 1u8 << (bit % 8));
            if at < self.cache.len() {
                self.cache.page_mut(index)[byte] ^= mask;
            }
            if at < self.durable.len() {
                self.durable.page_mut(index)[byte] ^= mask;
            }
            for version in self.pending.get_mut(&index).into_iter().flatten() {
                Arc::make_mut(&mut version.page)[byte] ^= mask;
            }
        }
    }
}

/// The lowest length that was set after `sequence`: content of that age ends there.
fn cut_after(lengths: &[(u64, u64)], sequence: u64) -> u64 {
    lengths.iter().filter(|&&(at, _)| at > sequence).map(|&(_, len)| len).min().unwrap_or(u64::MAX)
}

fn cut_page(page: &mut Page, index: u64, len: u64) {
    let keep = len.saturating_sub(index * PAGE_U64).min(PAGE_U64) as usize;
    page[keep..].fill(0);
}

/// A sector that the power cut met while it was written: part old, part new, or nonsense.
fn tear(target: &mut [u8], new: &[u8], garbage: f64, random: &SeededRandom) {
    let at = random.below(target.len() as u64 - 1) as usize + 1;
    if random.chance(garbage) {
        target.fill_with(|| random.next_u64() as u8);
    } else if random.chance(0.7) {
        target[..at].copy_from_slice(&new[..at]);
    } else {
        target[at..].copy_from_slice(&new[at..]);
    }
}
