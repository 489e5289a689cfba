//! The rows below the tail: runs, of which the indexes are in memory, and a bounded cache of blocks.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};

use super::bucket::{Bucket, damaged};
use super::manifest::{Manifest, RunName, RunRef};
use super::row::Key;
use super::run::{Block, BlockPlace, RunIndex};
use super::{CatalogueError, REQUESTS_AT_ONCE};
use crate::store::StoreError;

/// Stored bytes that one sequential read of a run takes: blocks that lie together.
const SEQUENTIAL_BYTES: u64 = 512 << 10;

/// Blocks that are loaded at once: 4 MiB.
const BLOCKS_AT_ONCE: usize = 64;

/// Runs that are remembered to be deleted.
const DROPPED_MAX: usize = 1000;

/// A run that can be read.
#[derive(Debug, Clone)]
pub(super) struct OpenRun {
    pub reference: RunRef,
    pub index: RunIndex,
}

impl OpenRun {
    /// The block that has `key`, if there is one.
    fn block_of(&self, key: Key) -> Option<usize> {
        let at = self.index.blocks.partition_point(|block| block.first <= key).checked_sub(1)?;
        (key <= self.index.blocks[at].last).then_some(at)
    }

    /// The first block with a key in `from..=through`. `run` is the number of this run.
    fn start(&self, run: usize, from: Key, through: Key) -> Option<BlockAt> {
        let block = self.index.blocks.partition_point(|block| block.last < from);
        let is_wanted = self.index.blocks.get(block).is_some_and(|place| place.first <= through);
        is_wanted.then_some(BlockAt { run, block })
    }

    /// The last block with a key in `from..=through`. `run` is the number of this run.
    fn end(&self, run: usize, from: Key, through: Key) -> Option<BlockAt> {
        let block = self.index.blocks.partition_point(|block| block.first <= through).checked_sub(1)?;
        (self.index.blocks[block].last >= from).then_some(BlockAt { run, block })
    }
}

/// A row of a run, where a scan stands.
struct Place {
    at: BlockAt,
    rows: Arc<Block>,
    row: usize,
}

impl Place {
    fn key(&self) -> Key {
        self.rows.key(self.row)
    }
}

/// The first row in `from..=through` of a block.
fn placed(at: BlockAt, rows: Arc<Block>, from: Key, through: Key) -> Option<Place> {
    let row = rows.seek(from);
    let is_in = row < rows.len() && rows.key(row) <= through;
    is_in.then_some(Place { at, rows, row })
}

type BlockKey = (RunName, usize);

/// A block of one of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct BlockAt {
    run: usize,
    block: usize,
}

/// Blocks by run and place; those that were not used for longest go first.
#[derive(Debug)]
struct Cache {
    size_bytes_max: usize,
    size_bytes: usize,
    clock: u64,
    blocks: HashMap<BlockKey, (u64, Arc<Block>)>,
    by_use: BTreeMap<u64, BlockKey>,
}

impl Cache {
    fn get(&mut self, key: BlockKey) -> Option<Arc<Block>> {
        let (used, block) = self.blocks.get_mut(&key)?;
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, key);
        Some(block.clone())
    }

    fn put(&mut self, key: BlockKey, block: Arc<Block>) {
        self.clock += 1;
        self.size_bytes += block.size_bytes();
        if let Some((used, before)) = self.blocks.insert(key, (self.clock, block)) {
            self.by_use.remove(&used);
            self.size_bytes -= before.size_bytes();
        }
        self.by_use.insert(self.clock, key);
        while self.size_bytes > self.size_bytes_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some((_, block)) = self.blocks.remove(&oldest) {
                self.size_bytes -= block.size_bytes();
            }
        }
    }

    fn keep_runs(&mut self, runs: &[OpenRun]) {
        let names: BTreeSet<RunName> = runs.iter().map(|run| run.reference.name).collect();
        let gone: Vec<(BlockKey, u64)> = self
            .blocks
            .iter()
            .filter(|((name, _), _)| !names.contains(name))
            .map(|(key, (used, _))| (*key, *used))
            .collect();
        for (key, used) in gone {
            self.by_use.remove(&used);
            if let Some((_, block)) = self.blocks.remove(&key) {
                self.size_bytes -= block.size_bytes();
            }
        }
    }
}

/// Rows that a scan found.
#[derive(Debug)]
pub(super) struct Scanned {
    pub rows: Vec<(Key, Vec<u8>)>,
    /// There may be more behind the last one.
    pub is_cut: bool,
}

/// The state that a manifest names.
#[derive(Debug)]
pub(super) struct Base {
    bucket: Bucket,
    pub manifest: Manifest,
    runs: Vec<OpenRun>,
    /// Runs that were named, and are not any more since the manifest of this number: none will name them again. What is not
    /// remembered here goes by the run floor.
    dropped: VecDeque<(u64, RunName)>,
    cache: Cache,
}

impl Base {
    /// Of the empty catalogue.
    pub(super) fn new(bucket: Bucket, cache_bytes_max: usize) -> Base {
        let manifest = Manifest::empty(bucket.cluster());
        let cache = Cache {
            size_bytes_max: cache_bytes_max,
            size_bytes: 0,
            clock: 0,
            blocks: HashMap::new(),
            by_use: BTreeMap::new(),
        };
        Base { bucket, manifest, runs: Vec::new(), dropped: VecDeque::new(), cache }
    }

    /// Takes a newer manifest, and loads the indexes of runs that are new in it. On an error everything is as it was.
    pub(super) async fn adopt(&mut self, manifest: Manifest) -> Result<(), CatalogueError> {
        let known: HashMap<RunName, &OpenRun> =
            self.runs.iter().map(|run| (run.reference.name, run)).collect();
        let (bucket, known) = (&self.bucket, &known);
        let runs: Vec<OpenRun> = futures_util::stream::iter(manifest.runs.iter().copied())
            .map(|reference| async move {
                match known.get(&reference.name) {
                    Some(run) => Ok((*run).clone()),
                    None => open_run(bucket, reference).await,
                }
            })
            .buffered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        for run in std::mem::replace(&mut self.runs, runs) {
            if !manifest.runs.iter().any(|kept| kept.name == run.reference.name) {
                self.dropped.push_back((manifest.number, run.reference.name));
            }
        }
        self.dropped.drain(..self.dropped.len().saturating_sub(DROPPED_MAX));
        self.manifest = manifest;
        self.cache.keep_runs(&self.runs);
        Ok(())
    }

    /// Whether this run was named before the manifest of this number, and was not named in it.
    pub(super) fn was_dropped(&self, name: RunName, manifest: u64) -> bool {
        self.dropped.iter().any(|(since, dropped)| *since <= manifest && *dropped == name)
    }

    /// Bytes of indexes and cached blocks.
    pub(super) fn held_bytes(&self) -> usize {
        self.cache.size_bytes + self.runs.iter().map(|run| run.index.size_bytes()).sum::<usize>()
    }

    pub(super) fn runs(&self) -> &[OpenRun] {
        &self.runs
    }

    /// Blocks of runs, from the cache or, several at once, from the store.
    async fn blocks(
        &mut self,
        wanted: impl IntoIterator<Item = BlockAt>,
    ) -> Result<HashMap<BlockAt, Arc<Block>>, CatalogueError> {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for wanted in wanted {
            match self.cache.get((self.runs[wanted.run].reference.name, wanted.block)) {
                Some(block) => drop(found.insert(wanted, block)),
                None => missing.push(wanted),
            }
        }
        let (bucket, runs) = (&self.bucket, &self.runs);
        let loaded: Vec<(BlockAt, Arc<Block>)> = futures_util::stream::iter(missing)
            .map(|wanted| async move {
                let OpenRun { reference, index } = &runs[wanted.run];
                let place = index.blocks[wanted.block];
                let key = bucket.run(reference.name);
                let stored = bucket.get_range(&key, place.offset, u64::from(place.stored_size_bytes)).await?;
                let block = Block::decode(&stored, &place).map_err(|damage| damaged(&key, damage))?;
                Ok::<_, CatalogueError>((wanted, Arc::new(block)))
            })
            .buffer_unordered(BLOCKS_AT_ONCE)
            .try_collect()
            .await?;
        for (wanted, block) in loaded {
            self.cache.put((self.runs[wanted.run].reference.name, wanted.block), block.clone());
            found.insert(wanted, block);
        }
        Ok(found)
    }

    /// Loads the last block of each range in each run into the cache, all at once.
    pub(super) async fn preload(
        &mut self,
        ranges: impl Iterator<Item = (Key, Key)>,
    ) -> Result<(), CatalogueError> {
        let of_range = |(from, at): (Key, Key)| {
            self.runs.iter().enumerate().filter_map(move |(run, open)| open.end(run, from, at))
        };
        let wanted: BTreeSet<BlockAt> = ranges.flat_map(of_range).collect();
        self.blocks(wanted).await.map(drop)
    }

    /// The values of rows; keys that are missing in the result have none. Runs are asked from the newest on, each for all
    /// keys that no newer one has.
    pub(super) async fn lookup(
        &mut self,
        mut keys: BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, Vec<u8>>, CatalogueError> {
        let mut values = BTreeMap::new();
        for run in 0..self.runs.len() {
            let places: Vec<(Key, usize)> = keys
                .iter()
                .filter_map(|key| self.runs[run].block_of(*key).map(|block| (*key, block)))
                .collect();
            // A few blocks at once, so that many keys do not hold many blocks.
            for part in places.chunk_by(|(_, a), (_, b)| a / REQUESTS_AT_ONCE == b / REQUESTS_AT_ONCE) {
                let wanted: BTreeSet<usize> = part.iter().map(|(_, block)| *block).collect();
                let blocks = self.blocks(wanted.into_iter().map(|block| BlockAt { run, block })).await?;
                for (key, at) in part {
                    let block = &blocks[&BlockAt { run, block: *at }];
                    let row = block.seek(*key);
                    if row < block.len() && block.key(row) == *key {
                        keys.remove(key);
                        if let Some(value) = block.value(row) {
                            values.insert(*key, value.to_vec());
                        }
                    }
                }
            }
            if keys.is_empty() {
                break;
            }
        }
        Ok(values)
    }

    /// The first `limit` rows in `from..=through`.
    pub(super) async fn scan(
        &mut self,
        from: Key,
        through: Key,
        limit: usize,
    ) -> Result<Scanned, CatalogueError> {
        let starts: Vec<Option<BlockAt>> =
            self.runs.iter().enumerate().map(|(run, open)| open.start(run, from, through)).collect();
        // One round trip loads the first block of every run.
        let blocks = self.blocks(starts.iter().flatten().copied()).await?;
        let placed = |at: BlockAt| placed(at, blocks[&at].clone(), from, through);
        let mut places: Vec<Option<Place>> = starts.iter().map(|at| at.and_then(placed)).collect();
        let mut rows = Vec::new();
        loop {
            let Some(key) = places.iter().flatten().map(Place::key).min() else {
                return Ok(Scanned { rows, is_cut: false });
            };
            if rows.len() == limit {
                return Ok(Scanned { rows, is_cut: true });
            }
            let mut is_newest = true;
            for slot in &mut places {
                let Some(place) = slot.take_if(|place| place.key() == key) else { continue };
                if std::mem::take(&mut is_newest)
                    && let Some(value) = place.rows.value(place.row)
                {
                    rows.push((key, value.to_vec()));
                }
                *slot = match place.row + 1 < place.rows.len() {
                    true => {
                        Some(Place { row: place.row + 1, ..place }).filter(|place| place.key() <= through)
                    }
                    false => self.next_block(place.at, from, through).await?,
                };
            }
        }
    }

    /// The first row of the block behind this one, if it is not behind `through`.
    async fn next_block(
        &mut self,
        BlockAt { run, block }: BlockAt,
        from: Key,
        through: Key,
    ) -> Result<Option<Place>, CatalogueError> {
        let at = BlockAt { run, block: block + 1 };
        let is_wanted = self.runs[run].index.blocks.get(at.block).is_some_and(|next| next.first <= through);
        if !is_wanted {
            return Ok(None);
        }
        let rows = self.blocks([at]).await?.remove(&at).expect("the block just loaded");
        Ok(placed(at, rows, from, through))
    }

    /// The last row in `from..=at`.
    pub(super) async fn floor(&mut self, from: Key, mut at: Key) -> Result<Option<Key>, CatalogueError> {
        loop {
            let mut best: Option<(Key, bool)> = None;
            let ends: Vec<BlockAt> =
                self.runs.iter().enumerate().filter_map(|(run, open)| open.end(run, from, at)).collect();
            // One round trip loads the last block of every run.
            let blocks = self.blocks(ends.iter().copied()).await?;
            for end in &ends {
                let bytes = &blocks[end];
                let row = at.successor().map_or(bytes.len(), |behind| bytes.seek(behind));
                let Some(row) = row.checked_sub(1) else { continue };
                let key = bytes.key(row);
                if key >= from && best.is_none_or(|(other, _)| other < key) {
                    best = Some((key, bytes.value(row).is_some()));
                }
            }
            match best {
                None => return Ok(None),
                Some((key, true)) => return Ok(Some(key)),
                // The newest run says that it is gone: look before it.
                Some((key, false)) => match key.predecessor().filter(|before| *before >= from) {
                    Some(before) => at = before,
                    None => return Ok(None),
                },
            }
        }
    }
}

async fn open_run(bucket: &Bucket, reference: RunRef) -> Result<OpenRun, CatalogueError> {
    let key = bucket.run(reference.name);
    let shape = &reference.shape;
    let end = bucket.get_range(&key, shape.index_offset, shape.size_bytes - shape.index_offset).await?;
    let index = RunIndex::decode(&end, shape, bucket.cluster()).map_err(|damage| damaged(&key, damage))?;
    Ok(OpenRun { reference, index })
}

/// Reads a run from its beginning to its end, some blocks at a time, past the cache.
pub(super) struct RunReader {
    bucket: Bucket,
    run: OpenRun,
    next: usize,
    ready: VecDeque<Block>,
    row: usize,
}

impl RunReader {
    pub(super) fn new(bucket: Bucket, run: OpenRun) -> RunReader {
        RunReader { bucket, run, next: 0, ready: VecDeque::new(), row: 0 }
    }

    /// Loads what comes next, if nothing is loaded. False: the run has ended.
    pub(super) async fn load(&mut self) -> Result<bool, CatalogueError> {
        if !self.ready.is_empty() {
            return Ok(true);
        }
        let mut places: Vec<BlockPlace> = Vec::new();
        let mut size = 0;
        while let Some(place) = self.run.index.blocks.get(self.next) {
            if size > 0 && size + u64::from(place.stored_size_bytes) > SEQUENTIAL_BYTES {
                break;
            }
            size += u64::from(place.stored_size_bytes);
            places.push(*place);
            self.next += 1;
        }
        let Some(first) = places.first() else { return Ok(false) };
        let key = self.bucket.run(self.run.reference.name);
        let mut stored: Bytes = self.bucket.get_range(&key, first.offset, size).await?;
        for place in &places {
            let length = place.stored_size_bytes as usize;
            if stored.len() < length {
                let key = key.to_string();
                return Err(StoreError::Unavailable { key, reason: "the answer was cut short".into() }.into());
            }
            let block =
                Block::decode(&stored.split_to(length), place).map_err(|damage| damaged(&key, damage))?;
            self.ready.push_back(block);
        }
        Ok(true)
    }

    /// Whether all rows were taken.
    pub(super) fn is_at_end(&self) -> bool {
        self.ready.is_empty() && self.next == self.run.index.blocks.len()
    }

    /// The key of the next row that is loaded.
    pub(super) fn key(&self) -> Option<Key> {
        self.ready.front().map(|block| block.key(self.row))
    }

    /// Its value; `None`: the row is gone.
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.ready.front().and_then(|block| block.value(self.row))
    }

    /// Goes on to the row behind it.
    pub(super) fn advance(&mut self) {
        self.row += 1;
        if self.ready.front().is_some_and(|block| self.row == block.len()) {
            self.ready.pop_front();
            self.row = 0;
        }
    }
}
