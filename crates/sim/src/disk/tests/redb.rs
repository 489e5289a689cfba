//! A real database on the simulated disk: every transaction that was committed is there after a crash anywhere.

use super::*;
use ::redb::{Database, Durability, ReadableDatabase, StorageBackend, TableDefinition};
use std::fmt;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("t");

/// redb's file, as the storage crate gives it one.
struct Backend(Arc<dyn DiskFile>);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(&mut [IoSlice::new(data)], offset)
    }
}

fn open_file(disk: &SimDisk, path: &Path) -> Option<Database> {
    let file = disk.open(path, OpenMode::CreateBuffered).ok()?;
    Database::builder().set_cache_size(1 << 20).create_with_backend(Backend(file)).ok()
}

/// Opens the database. redb refuses the file that a crash inside its creation leaves (the magic number comes last),
/// so it is created under another name.
fn open(disk: &SimDisk) -> Option<Database> {
    let (path, fresh) = (Path::new("/d/db"), Path::new("/d/db.fresh"));
    if !disk.exists(path).ok()? {
        if disk.exists(fresh).ok()? {
            disk.remove(fresh).ok()?;
        }
        drop(open_file(disk, fresh)?);
        disk.rename(fresh, path).ok()?;
        disk.sync_dir(Path::new("/d")).ok()?;
    }
    open_file(disk, path)
}

/// Commits transaction `number`: rows whose size and place vary, and a row that names it.
fn commit(db: &Database, number: u64) -> Result<(), ::redb::Error> {
    let mut transaction = db.begin_write()?;
    transaction.set_durability(Durability::Immediate).expect("no savepoint is held");
    {
        let mut table = transaction.open_table(TABLE)?;
        for row in 0..4 {
            let key = 1 + (number * 7 + row * 13) % 50;
            table.insert(key, vec![number as u8; 100 + 700 * row as usize].as_slice())?;
        }
        table.insert(0, number.to_le_bytes().as_slice())?;
    }
    transaction.commit()?;
    Ok(())
}

fn last_committed(db: &Database) -> u64 {
    let Ok(table) = db.begin_read().unwrap().open_table(TABLE) else { return 0 };
    let value = table.get(0).unwrap().map(|v| u64::from_le_bytes(v.value().try_into().unwrap()));
    value.unwrap_or(0)
}

#[test]
fn redb_keeps_what_it_committed_through_a_crash_at_any_change() {
    let mut deepest = 0;
    for seed in 0..120 {
        let random = SeededRandom::new(seed);
        let garbage_spares = vec!["db".into(), "db.fresh".into()];
        let mut disk = new_disk(SimDiskConfig { garbage_spares, ..SimDiskConfig::draw(&random) });
        let mut committed = 0;
        for _ in 0..3 {
            disk.crash_after(random.below(120));
            let mut attempted = committed;
            if let Some(db) = open(&disk) {
                assert!(last_committed(&db) >= committed, "seed {seed}: a commit was lost while running");
                while attempted < committed + 40 {
                    attempted += 1;
                    if commit(&db, attempted).is_err() {
                        break;
                    }
                    committed = attempted;
                }
            }
            disk = disk.crash(&random);
            let db = open(&disk).unwrap_or_else(|| panic!("seed {seed}: the database does not open"));
            let found = last_committed(&db);
            assert!(found >= committed, "seed {seed}: {committed} was committed, {found} is there");
            assert!(found <= attempted, "seed {seed}: {found} was never written");
            committed = found;
            deepest = deepest.max(found);
        }
    }
    assert!(deepest > 15, "crashes come too early to prove anything: {deepest}");
}
