//! Sparse bytes of a file: pages that are shared until somebody writes them, so that an image of a disk is cheap.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(super) const PAGE: usize = 4096;
pub(super) const PAGE_U64: u64 = PAGE as u64;

pub(super) type Page = [u8; PAGE];

static ZERO_PAGE: Page = [0; PAGE];

/// Pages and a length. A missing page reads as zero. Pages may reach behind the length only in a durable content
/// whose length change is still pending.
#[derive(Clone, Default)]
pub(super) struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
    len: u64,
}

/// The parts of a byte range, page by page: page index, range inside the page.
pub(super) fn pages_of(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len as u64;
    let pages = if len == 0 { 0..0 } else { offset / PAGE_U64..end.div_ceil(PAGE_U64) };
    pages.map(move |index| {
        let start = index * PAGE_U64;
        let from = offset.max(start) - start;
        let to = end.min(start + PAGE_U64) - start;
        (index, from as usize..to as usize)
    })
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(super) fn has_page(&self, index: u64) -> bool {
        self.pages.contains_key(&index)
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.iter().map(|(&index, page)| (index, &**page))
    }

    pub(super) fn page(&self, index: u64) -> &Page {
        self.pages.get(&index).map_or(&ZERO_PAGE, |page| page)
    }

    /// The page as a shared value, made when it is a hole.
    pub(super) fn share_page(&mut self, index: u64) -> Arc<Page> {
        self.pages.entry(index).or_insert_with(|| Arc::new(ZERO_PAGE)).clone()
    }

    pub(super) fn page_mut(&mut self, index: u64) -> &mut Page {
        Arc::make_mut(self.pages.entry(index).or_insert_with(|| Arc::new(ZERO_PAGE)))
    }

    /// Reads what lies before the end.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let n = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let mut rest = &mut buf[..n];
        for (index, range) in pages_of(offset, n) {
            let (part, after) = rest.split_at_mut(range.len());
            part.copy_from_slice(&self.page(index)[range]);
            rest = after;
        }
        n
    }

    /// Removes all bytes from `len` on, also those of pages behind the length.
    pub(super) fn cut(&mut self, len: u64) {
        self.len = self.len.min(len);
        self.pages.split_off(&len.div_ceil(PAGE_U64));
        let tail = (len % PAGE_U64) as usize;
        if tail > 0
            && let Some(page) = self.pages.get_mut(&(len / PAGE_U64))
        {
            Arc::make_mut(page)[tail..].fill(0);
        }
    }

    /// Extends to at least `len`.
    pub(super) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }
}
