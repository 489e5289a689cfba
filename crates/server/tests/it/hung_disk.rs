//! A disk that hangs, beside one that does not: what is read from the other one, and what needs no disk, is answered.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, OwnedV2, add_frame, body, fence_request, framed, framed_v3, read_request};
use crate::common::wire::{Bookie, Client, start_as};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, SystemClock};
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_types::LedgerId;
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The name of the ledger directory whose disk hangs.
const HANGS: &str = "hangs";
const ENTRIES: i64 = 50;

#[derive(Default)]
struct GateState {
    is_shut: bool,
    waiting: usize,
}

/// Where reads of one ledger directory wait.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<GateState>, Condvar)>);

impl Gate {
    fn shut(&self, is_shut: bool) {
        self.0.0.lock().unwrap().is_shut = is_shut;
        self.0.1.notify_all();
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.waiting += 1;
        let mut state = self.0.1.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
    }
}

/// Keeps no file in memory, so that every read of an entry is one of the disk.
struct ColdDisk(RealDisk, Gate);

impl DiskLayer for ColdDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let hangs = path.components().any(|part| part.as_os_str() == HANGS);
        let gate = if hangs { self.1.clone() } else { Gate::default() };
        Ok(Arc::new(ColdFile(self.0.open(path, mode)?, gate)))
    }
}

struct ColdFile(Arc<dyn DiskFile>, Gate);

impl FileLayer for ColdFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.0
    }

    fn read_cached_at(&self, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.pass();
        self.0.read_at(buf, offset)
    }

    fn begin_reading(&self, offset: u64, len: u64) {
        self.1.pass();
        self.0.begin_reading(offset, len);
    }
}

async fn until(is_so: impl Fn() -> bool) {
    let looks = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

/// A bookie with two ledger directories, and a ledger in each whose entries are on disk: that of the hanging one first.
async fn start() -> (Bookie, Gate, [i64; 2]) {
    let gate = Gate::default();
    let limits = Limits::default();
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    let disk = Arc::new(ColdDisk(RealDisk::new(), gate.clone()));
    let bookie = start_as(limits, plan, disk, Arc::new(SystemClock::new()), |config| {
        let parent = config.ledger_dirs[0].parent().unwrap().to_owned();
        config.ledger_dirs = vec![parent.join(HANGS), parent.join("sound")];
        config.flush_interval = Duration::from_millis(50);
    })
    .await;
    let engine = bookie.shared.engine.clone();
    let of = |directory| {
        let is_there = |id: &i64| engine.directory_of(LedgerId::new(*id).unwrap(), None) == directory;
        (1..).find(is_there).unwrap()
    };
    let ledgers = [of(0), of(1)];
    let mut client = Client::new(&bookie).await;
    for ledger in ledgers {
        for entry in 0..ENTRIES {
            client.send(&add_frame(ledger, entry, 1000, v2::Flags::NONE, KEY)).await;
            assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, entry));
        }
    }
    until(|| engine.stats().flushed_entries == 2 * ENTRIES as u64).await;
    // The last entry comes from disk, too, once the flush is over.
    until(|| {
        let reads = ledgers.map(|id| engine.read(LedgerId::new(id).unwrap(), bindery_engine::EntryRef::Last));
        reads.iter().all(|read| matches!(read, Ok(bindery_engine::Lookup::Disk(_))))
    })
    .await;
    (bookie, gate, ledgers)
}

fn list(ledger_id: i64) -> Operation {
    Operation::GetListOfEntries(proto::GetListOfEntriesOfLedgerRequest { ledger_id })
}

fn plain(ledger: i64, entry: i64) -> BytesMut {
    framed(v2::Request::Read(read_request(ledger, entry)))
}

fn fencing(ledger: i64, entry: i64) -> BytesMut {
    framed(v2::Request::Read(fence_request(ledger, entry, KEY)))
}

/// Everything that the sound disk has, and a look at the bookie, is answered on this connection.
async fn is_served(client: &mut Client, sound: i64) {
    client.send(&fencing(sound, -1)).await;
    let last = body(sound, ENTRIES - 1, ENTRIES - 2, 1000);
    assert_eq!(client.next_v2().await, OwnedV2::Read(ErrorCode::Ok, sound, -1, last), "a fence");
    client.send(&plain(sound, 7)).await;
    let seventh = body(sound, 7, 6, 1000);
    assert_eq!(client.next_v2().await, OwnedV2::Read(ErrorCode::Ok, sound, 7, seventh));
    assert_eq!(client.v3(1, list(sound)).await.status, ErrorCode::Ok.v3());
    let info = Operation::GetBookieInfo(proto::GetBookieInfoRequest { requested: Some(3) });
    assert_eq!(client.v3(2, info).await.status, ErrorCode::Ok.v3());
}

/// Reads of all kinds hang, more than there are threads and slots: the other disk is read, on connections of which reads
/// hang as on others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_holds_up_only_what_is_read_from_it() {
    let (bookie, gate, [hung, sound]) = start().await;
    let mut stuck = Client::new(&bookie).await;
    is_served(&mut stuck, sound).await;
    gate.shut(true);
    let mut requests = BytesMut::new();
    for entry in 0..ENTRIES {
        requests.extend_from_slice(&plain(hung, entry));
        requests.extend_from_slice(&fencing(hung, entry));
    }
    stuck.send(&requests).await;
    let mut lists = Client::new(&bookie).await;
    for txn in 0..20 {
        lists.send(&framed_v3(txn, list(hung))).await;
    }
    until(|| gate.waiting() >= 2).await;

    is_served(&mut stuck, sound).await;
    is_served(&mut Client::new(&bookie).await, sound).await;

    gate.shut(false);
    for _ in 0..2 * ENTRIES {
        assert_eq!(stuck.next_v2().await.code(), ErrorCode::Ok);
    }
    for _ in 0..20 {
        assert_eq!(lists.next_v3().await.status, ErrorCode::Ok.v3());
    }
    bookie.stop().await;
}
