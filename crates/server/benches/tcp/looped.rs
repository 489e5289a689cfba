//! The bare loop: receive, append, checksum, sync, flush, reply. It has no index in memory, no look-ups, no fences, no
//! limits, no metrics.
//!
//! ```text
//! thread per connection: read -> frames -> [one lock for a read] copy, checksum, index
//! journal thread: take what formed -> one write with sync -> answers, one write for each connection
//! flush thread: each arena sorted into a log of its own, beside the next
//! ```

use bindery_io::chunk::{AlignedBuf, ChunkPool, ChunkSlice, Lane, OpenChunk};
use bindery_io::{Disk, DiskFile, OpenMode, RealDisk};
use bindery_journal::record::crc32c;
use bindery_wire::{ErrorCode, FrameLimit, frame, v2};
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};

const BLOCK: usize = 4096;
const CHUNK: usize = 4 << 20;
const READ: usize = 256 << 10;
const STAGING: usize = 1 << 20;

/// Ledger, entry, chunk, offset, length, checksum.
type Place = (i64, i64, u32, u32, u32, u32);

/// The contents of an arena: its chunks and the places of entries in them.
#[derive(Default)]
struct Arena {
    chunks: Vec<ChunkSlice>,
    places: Vec<Place>,
}

#[derive(Default)]
struct Forming {
    open: Option<OpenChunk>,
    /// Start of what is not in `parts` yet.
    part_start: usize,
    parts: Vec<ChunkSlice>,
    arena: Arena,
    /// Connection, ledger, entry.
    answers: Vec<(usize, i64, i64)>,
    is_over: bool,
}

struct Shared {
    forming: Mutex<Forming>,
    /// Something formed.
    formed: Condvar,
    /// A chunk came back.
    freed: Condvar,
    pool: ChunkPool,
}

/// A listener, its memory and its files.
pub struct Looped {
    dir: PathBuf,
    pool: ChunkPool,
    journal: Arc<dyn DiskFile>,
    journal_bytes: u64,
    arena_bytes: usize,
    next_log: u64,
}

impl Looped {
    /// `arena_bytes` of two arenas each.
    pub fn new(dir: &Path, arena_bytes: usize, journal_bytes: u64) -> Looped {
        let dir = dir.join("looped");
        let disk = RealDisk::new();
        disk.create_dir_all(&dir).unwrap();
        let journal = disk.open(&dir.join("journal"), OpenMode::CreateDirect).unwrap();
        let zeros = AlignedBuf::zeroed(STAGING);
        for at in (0..journal_bytes).step_by(STAGING) {
            journal.write_all_at(&mut [IoSlice::new(&zeros)], at).unwrap();
        }
        journal.sync().unwrap();
        let pool = ChunkPool::new(CHUNK, 2 * arena_bytes / CHUNK + 4, 0);
        while pool.warm_one() {}
        Looped { dir, pool, journal, journal_bytes, arena_bytes, next_log: 0 }
    }

    /// Serves `connections`, for as long as they are open, while `load` runs.
    pub fn serve<T>(&mut self, connections: usize, load: impl FnOnce(SocketAddr) -> T) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            forming: Mutex::default(),
            formed: Condvar::new(),
            freed: Condvar::new(),
            pool: self.pool.clone(),
        });
        let server = std::thread::spawn({
            let (shared, journal, dir) = (shared.clone(), self.journal.clone(), self.dir.clone());
            let (journal_bytes, arena_bytes, first_log) =
                (self.journal_bytes, self.arena_bytes, self.next_log);
            move || {
                let (mut sockets, mut receivers) = (Vec::new(), Vec::new());
                for index in 0..connections {
                    let (socket, _) = listener.accept().unwrap();
                    socket.set_nodelay(true).unwrap();
                    sockets.push(socket.try_clone().unwrap());
                    let shared = shared.clone();
                    receivers.push(std::thread::spawn(move || receive(&shared, index, socket)));
                }
                let (to_flush, flushing) = sync_channel(1);
                let flusher = std::thread::spawn({
                    let (shared, dir) = (shared.clone(), dir.clone());
                    move || flush(&shared, &dir, first_log, &flushing)
                });
                let journaling = std::thread::spawn({
                    let shared = shared.clone();
                    move || write_groups(&shared, &*journal, journal_bytes, arena_bytes, &sockets, &to_flush)
                });
                receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
                shared.forming.lock().unwrap().is_over = true;
                shared.formed.notify_one();
                journaling.join().unwrap();
                let next_log = flusher.join().unwrap();
                for log in first_log..next_log {
                    std::fs::remove_file(dir.join(format!("log{log}"))).unwrap();
                }
                next_log
            }
        });
        let outcome = load(address);
        self.next_log = server.join().unwrap();
        outcome
    }
}

fn receive(shared: &Shared, connection: usize, mut socket: TcpStream) {
    let (mut buffer, mut filled) = (vec![1; READ], 0);
    loop {
        let n = socket.read(&mut buffer[filled..]).unwrap();
        if n == 0 {
            return;
        }
        filled += n;
        let mut at = 0;
        let mut forming = shared.forming.lock().unwrap();
        while let Ok(frame::Split::Frame(payload)) = frame::split(&buffer[at..filled], FrameLimit::DEFAULT) {
            let Ok(v2::Request::Add(add)) =
                v2::Request::decode(&buffer[at + payload.start..at + payload.end])
            else {
                panic!("not an add")
            };
            while !forming.append(connection, &add, &shared.pool) {
                forming = shared.freed.wait(forming).unwrap();
            }
            at += payload.end;
        }
        drop(forming);
        shared.formed.notify_one();
        buffer.copy_within(at..filled, 0);
        filled -= at;
    }
}

impl Forming {
    /// False when there is no chunk.
    fn append(&mut self, connection: usize, add: &v2::Add<'_>, pool: &ChunkPool) -> bool {
        // A group ends with a whole block.
        let size = add.body.len();
        if self.open.as_ref().is_none_or(|open| open.remaining() < size + BLOCK) {
            let Some(next) = pool.take(Lane::Normal) else { return false };
            self.close_part();
            if let Some(full) = self.open.replace(next) {
                self.arena.chunks.push(full.slice(0..full.len()));
            }
            self.part_start = 0;
        }
        let open = self.open.as_mut().unwrap();
        let mut crc = 0;
        let at = open.append(size, |place| {
            place.copy_from_slice(add.body);
            crc = crc32c(place);
        });
        let chunk = self.arena.chunks.len() as u32;
        self.arena.places.push((add.ledger_id, add.entry_id, chunk, at as u32, size as u32, crc));
        self.answers.push((connection, add.ledger_id, add.entry_id));
        true
    }

    /// Pads what is open to whole blocks, which direct writes take.
    fn close_part(&mut self) {
        let Some(open) = &mut self.open else { return };
        let missing = open.len().next_multiple_of(BLOCK) - open.len();
        open.append(missing, |padding| padding.fill(0));
        if open.len() > self.part_start {
            self.parts.push(open.slice(self.part_start..open.len()));
        }
        self.part_start = open.len();
    }

    /// The arena, when it is full.
    fn take_full(&mut self, arena_bytes: usize) -> Option<Arena> {
        let is_full = self.arena.chunks.len() * CHUNK >= arena_bytes || self.is_over;
        if !is_full || self.arena.places.is_empty() {
            return None;
        }
        if let Some(open) = self.open.take() {
            self.arena.chunks.push(open.slice(0..open.len()));
        }
        self.part_start = 0;
        Some(std::mem::take(&mut self.arena))
    }
}

fn write_groups(
    shared: &Shared,
    journal: &dyn DiskFile,
    journal_bytes: u64,
    arena_bytes: usize,
    sockets: &[TcpStream],
    to_flush: &SyncSender<Arena>,
) {
    let (mut position, mut answers) = (0, Vec::new());
    let mut outs: Vec<Vec<u8>> = sockets.iter().map(|_| Vec::new()).collect();
    loop {
        let (parts, full, is_over) = {
            let mut forming = shared.forming.lock().unwrap();
            while forming.answers.is_empty() && !forming.is_over {
                forming = shared.formed.wait(forming).unwrap();
            }
            forming.close_part();
            std::mem::swap(&mut answers, &mut forming.answers);
            (std::mem::take(&mut forming.parts), forming.take_full(arena_bytes), forming.is_over)
        };
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if position + bytes as u64 > journal_bytes {
            position = 0;
        }
        if bytes > 0 {
            let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            journal.write_all_durable_at(&mut slices, position).unwrap();
            position += bytes as u64;
        }
        for (connection, ledger, entry) in answers.drain(..) {
            v2::put_add_response(2, ErrorCode::Ok, ledger, entry, &mut outs[connection]);
        }
        for (mut socket, out) in sockets.iter().zip(&mut outs) {
            if !out.is_empty() {
                socket.write_all(out).unwrap();
                out.clear();
            }
        }
        if let Some(arena) = full {
            to_flush.send(arena).unwrap();
        }
        if is_over {
            return;
        }
    }
}

/// Writes each arena sorted into a log of its own, with an index behind; returns the number of the next log.
fn flush(shared: &Shared, dir: &Path, first_log: u64, arenas: &Receiver<Arena>) -> u64 {
    let disk = RealDisk::new();
    let mut staging = AlignedBuf::zeroed(STAGING);
    let mut next_log = first_log;
    for Arena { chunks, mut places } in arenas {
        places.sort_unstable_by_key(|(ledger, entry, ..)| (*ledger, *entry));
        let file = disk.open(&dir.join(format!("log{next_log}")), OpenMode::CreateDirect).unwrap();
        next_log += 1;
        let (mut filled, mut position) = (0, 0);
        let mut push = |mut bytes: &[u8], is_last: bool| {
            loop {
                let n = bytes.len().min(STAGING - filled);
                staging[filled..filled + n].copy_from_slice(&bytes[..n]);
                (filled, bytes) = (filled + n, &bytes[n..]);
                if filled == STAGING || is_last {
                    let whole = filled.next_multiple_of(BLOCK);
                    file.write_all_at(&mut [IoSlice::new(&staging[..whole])], position).unwrap();
                    (filled, position) = (0, position + whole as u64);
                }
                if bytes.is_empty() {
                    break;
                }
            }
        };
        for (_, _, chunk, offset, length, _) in &places {
            push(&chunks[*chunk as usize][*offset as usize..(offset + length) as usize], false);
        }
        for (ledger, entry, chunk, offset, length, crc) in &places {
            let mut record = [0; 32];
            record[..8].copy_from_slice(&ledger.to_be_bytes());
            record[8..16].copy_from_slice(&entry.to_be_bytes());
            for (at, number) in [chunk, offset, length, crc].into_iter().enumerate() {
                record[16 + 4 * at..20 + 4 * at].copy_from_slice(&number.to_be_bytes());
            }
            push(&record, false);
        }
        push(&[], true);
        file.sync().unwrap();
        disk.sync_dir(dir).unwrap();
        drop(chunks);
        // Under the lock: no thread is between its check and its sleep.
        drop(shared.forming.lock().unwrap());
        shared.freed.notify_all();
    }
    next_log
}
