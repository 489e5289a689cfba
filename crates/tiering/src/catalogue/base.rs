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

    /// The first block with a key at or behind `key`; behind the last one when there is none.
    fn block_from(&self, key: Key) -> usize {
        self.index.blocks.partition_point(|block| block.last < key)
    }
}

type BlockKey = (RunName, usize);

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

    /// The blocks of one run, from the cache or the store.
    async fn blocks(
        &mut self,
        run: usize,
        wanted: &BTreeSet<usize>,
    ) -> Result<HashMap<usize, Arc<Block>>, CatalogueError> {
        let name = self.runs[run].reference.name;
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for at in wanted {
            match self.cache.get((name, *at)) {
                Some(block) => drop(found.insert(*at, block)),
                None => missing.push(*at),
            }
        }
        let (bucket, open) = (&self.bucket, &self.runs[run]);
        let loaded: Vec<(usize, Arc<Block>)> = futures_util::stream::iter(missing)
            .map(|at| async move {
                let place = open.index.blocks[at];
                let key = bucket.run(name);
                let stored = bucket.get_range(&key, place.offset, u64::from(place.stored_size_bytes)).await?;
                let block = Block::decode(&stored, &place).map_err(|damage| damaged(&key, damage))?;
                Ok::<_, CatalogueError>((at, Arc::new(block)))
            })
            .buffer_unordered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        for (at, block) in loaded {
            self.cache.put((name, at), block.clone());
            found.insert(at, block);
        }
        Ok(found)
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
                let blocks = self.blocks(run, &part.iter().map(|(_, block)| *block).collect()).await?;
                for (key, at) in part {
                    let block = &blocks[at];
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
        let mut places: Vec<Option<(usize, Arc<Block>, usize)>> = Vec::with_capacity(self.runs.len());
        for run in 0..self.runs.len() {
            let block = self.runs[run].block_from(from);
            places.push(self.place(run, block, from, through).await?);
        }
        let mut rows = Vec::new();
        loop {
            let key_of = |place: &(usize, Arc<Block>, usize)| place.1.key(place.2);
            let Some(key) = places.iter().flatten().map(key_of).min() else {
                return Ok(Scanned { rows, is_cut: false });
            };
            if rows.len() == limit {
                return Ok(Scanned { rows, is_cut: true });
            }
            let mut is_newest = true;
            for (run, slot) in places.iter_mut().enumerate() {
                let Some((block, bytes, row)) = slot.take_if(|place| key_of(place) == key) else { continue };
                if std::mem::take(&mut is_newest)
                    && let Some(value) = bytes.value(row)
                {
                    rows.push((key, value.to_vec()));
                }
                *slot = match row + 1 < bytes.len() {
                    true => Some((block, bytes, row + 1)).filter(|place| key_of(place) <= through),
                    false => self.place(run, block + 1, from, through).await?,
                };
            }
        }
    }

    /// The first row at or behind `from` in a block, if the block is not behind `through`.
    async fn place(
        &mut self,
        run: usize,
        block: usize,
        from: Key,
        through: Key,
    ) -> Result<Option<(usize, Arc<Block>, usize)>, CatalogueError> {
        let is_wanted = self.runs[run].index.blocks.get(block).is_some_and(|place| place.first <= through);
        if !is_wanted {
            return Ok(None);
        }
        let bytes =
            self.blocks(run, &BTreeSet::from([block])).await?.remove(&block).expect("the block just loaded");
        let row = bytes.seek(from);
        let is_in = row < bytes.len() && bytes.key(row) <= through;
        Ok(is_in.then_some((block, bytes, row)))
    }

    /// The last row in `from..=at`.
    pub(super) async fn floor(&mut self, from: Key, mut at: Key) -> Result<Option<Key>, CatalogueError> {
        loop {
            let mut best: Option<(Key, bool)> = None;
            for run in 0..self.runs.len() {
                let places = &self.runs[run].index.blocks;
                let Some(block) = places.partition_point(|block| block.first <= at).checked_sub(1) else {
                    continue;
                };
                if places[block].last < from {
                    continue;
                }
                let bytes = self.blocks(run, &BTreeSet::from([block])).await?.remove(&block);
                let bytes = bytes.expect("the block just loaded");
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
