//! `bindery inspect`: raw files in words, without a server. Only reads, except that it opens the state table of a ledger directory as a
//! bookie does ([`state_of`]).

use crate::args::InspectCommand;
use crate::bucket::{self, open_store};
use crate::exit::{self, DAMAGED, Failure};
use crate::offline::{CURRENT, LOCK};
use crate::runtime;
use bindery_io::{Disk, OpenMode, RealDisk};
use bindery_journal::inspect::Item;
use bindery_journal::record::Record;
use bindery_storage::{EntryLog, Extent, StateTable, TierRecord, TierView};
use bindery_tiering::object::{self, VerifyError, ahead};
use bindery_types::{EntryId, LedgerId};
use bytes::Bytes;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// Runs one command; data goes to standard output.
pub fn run(command: InspectCommand) -> Result<(), Failure> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let mut out = io::BufWriter::new(io::stdout().lock());
    let result = match command {
        InspectCommand::Journal { file } => journal(&disk, &file, &mut out),
        InspectCommand::EntryLog { file } => entry_log(&disk, &file, &mut out),
        InspectCommand::Object { file } => match file.to_str().filter(|text| text.contains("://")) {
            Some(url) => object_in_store(url, &mut out),
            None => object(&disk, &file, &mut out),
        },
        InspectCommand::Ledger { dir, ledger } => match LedgerId::new(ledger) {
            Some(ledger) => ledger_in(&disk, &dir, ledger, &mut out),
            None => Err(Failure::usage(format!("--ledger {ledger}: ledger ids are not negative"))),
        },
    };
    result.and_then(|()| finished(out.flush()))
}

/// A closed pipe (`| head`) is the reader's decision, not a failure.
fn finished(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(error)),
        _ => Ok(()),
    }
}

/// Prints the header and the groups of a journal file, then where and why they end: a damaged group is an end, not a failure.
fn journal(disk: &Arc<dyn Disk>, file: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let mut written = Ok(());
    let walked = bindery_journal::inspect::walk(disk, file, |item| {
        if written.is_ok() {
            written = journal_item(&item, out);
        }
    });
    finished(written)?;
    walked.map_err(Failure::new)
}

fn journal_item(item: &Item<'_>, out: &mut impl Write) -> io::Result<()> {
    match item {
        Item::Header(Ok(header)) => writeln!(
            out,
            "journal file id={} nonce={:016x} journal={} owner={:?}",
            header.identity.file_id, header.identity.nonce, header.journal, header.owner
        ),
        Item::Header(Err(problem)) => writeln!(out, "journal file with an unusable header: {problem:?}"),
        Item::Group(group, records) => {
            writeln!(
                out,
                "group sequence={} offset={} bytes={} parts={} records={}",
                group.sequence,
                group.offset,
                group.total_bytes,
                group.parts.len(),
                records.len()
            )?;
            for record in *records {
                let entry = record.entry().map_or(String::new(), |entry| format!(" entry={entry}"));
                let lac = EntryId::to_wire(record.last_add_confirmed());
                writeln!(
                    out,
                    "  {:?} ledger={}{entry} lac={lac} bytes={} crc32c={:08x}{}",
                    record.kind,
                    record.ledger,
                    record.body.len(),
                    record.crc32c,
                    reconciled(record)
                )?;
            }
            Ok(())
        }
        Item::End { offset, why, file_length } => {
            writeln!(out, "end offset={offset} of={file_length} because={why:?}")
        }
    }
}

/// For a record about entries in object storage, which update it is and which entries it is about; empty for any other.
fn reconciled(record: &Record<'_>) -> String {
    let Some((stamp, created_ms, extents)) = record.reconciled() else { return String::new() };
    let ends = extents.first().zip(extents.last()).map(|(first, last)| (first.first, last.last));
    let ends = ends.map_or(String::new(), |(first, last)| format!(" first={first} last={last}"));
    let created = created_ms.map_or(String::new(), |ms| format!(" created_ms={ms}"));
    format!(" epoch={} update={}{created}{ends} extents={}", stamp.epoch, stamp.update, extents.len())
}

fn entry_log(disk: &Arc<dyn Disk>, file: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let (log, extents) = EntryLog::open_file(disk, file).map_err(Failure::new)?;
    let about = log.describe();
    finished((|| {
        writeln!(
            out,
            "entry log id={} format={} generation={} bytes={} entries={} extents={} footer_bytes={}",
            about.log_id,
            about.format_version,
            about.generation,
            about.size,
            about.entries,
            about.extents,
            about.footer_bytes
        )?;
        extents.iter().try_for_each(|extent| extent_line(extent, out))
    })())
}

fn object(disk: &Arc<dyn Disk>, path: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let file = disk.open(path, OpenMode::Read).map_err(|error| named(&error))?;
    let size = file.len().map_err(|error| named(&error))?;
    let read = |offset, length: u64| {
        // Never more than the file has: lengths in an object that was cut short are longer than the rest of it.
        let left = size.saturating_sub(offset).min(length);
        let mut bytes = vec![0; usize::try_from(left).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, offset)?;
        Ok::<_, io::Error>(Bytes::from(bytes))
    };
    object_of(&path.display().to_string(), size, read, |error| named(error), out)
}

/// An object in its store. Messages name the key.
fn object_in_store(url: &str, out: &mut impl Write) -> Result<(), Failure> {
    let (folder, name) = url.rsplit_once('/').unwrap_or((url, ""));
    if name.is_empty() || folder.ends_with('/') {
        return Err(Failure::usage("name an object: s3://bucket/prefix/INSTANCEID/objects/ID, for example"));
    }
    let store = open_store(folder)?;
    let runtime = runtime::single()?;
    let size = runtime.block_on(store.size_bytes(name));
    let size = size.map_err(|error| bucket::failure(&store, &error))?;
    let read = ahead(size, |range| runtime.block_on(store.read(name, range)));
    object_of(&format!("{}/{name}", store.url()), size, read, |error| bucket::failure(&store, error), out)
}

/// Verifies an object, and shows what is in it.
fn object_of<E: std::error::Error + 'static>(
    name: &str,
    size: u64,
    read: impl FnMut(u64, u64) -> Result<Bytes, E>,
    unread: impl Fn(&E) -> Failure,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (mut written, mut entries) = (Ok(()), 0);
    let verified = object::verify(size, read, |extent| {
        entries += extent.entries();
        if written.is_ok() {
            written = object_extent(extent, out);
        }
    });
    finished(written)?;
    let verified = verified.map_err(|error| match error {
        // The extents that were printed are sound; nothing is known of the rest.
        VerifyError::Object(error) => {
            Failure::with_code(DAMAGED, format!("{name}: {error} ({entries} entries before it are sound)"))
        }
        VerifyError::Read(error) => unread(&error),
    })?;
    finished({
        let header = verified.header;
        writeln!(
            out,
            "object id={} format={} cluster={} built_ms={} bytes={size} entries={entries} ledgers={} extents={} footer_bytes={}",
            header.object,
            object::FORMAT_VERSION,
            header.cluster,
            header.built_ms,
            verified.footer.ledgers.len(),
            verified.footer.extents.len(),
            verified.trailer.footer_size_bytes
        )
    })
}

fn object_extent(extent: &object::Extent, out: &mut impl Write) -> io::Result<()> {
    let stored: u64 = extent.blocks.iter().map(|block| u64::from(block.stored_size_bytes)).sum();
    writeln!(
        out,
        "  extent ledger={} first={} last={} entries={} bytes={} stored_bytes={stored} blocks={} offset={}",
        extent.ledger,
        extent.first,
        extent.last,
        extent.entries(),
        extent.body_bytes,
        extent.blocks.len(),
        extent.blocks.first().map_or(extent.table_offset, |block| block.offset)
    )
}

fn extent_line(extent: &Extent, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "  extent ledger={} first={} last={} entries={} max_lac={} log={} generation={}",
        extent.ledger,
        extent.first,
        extent.last,
        extent.count,
        EntryId::to_wire(extent.max_lac),
        extent.log_id,
        extent.generation
    )
}

fn ledger_in(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    ledger: LedgerId,
    out: &mut impl Write,
) -> Result<(), Failure> {
    // The directory as it is configured, or the inner one itself.
    let current = dir.join(CURRENT);
    let (dir, files) = match disk.list(&current) {
        Ok(files) => (current, files),
        Err(_) => {
            let failed = |error| Failure::new(format!("cannot list {}: {error}", dir.display()));
            (dir.to_owned(), disk.list(dir).map_err(failed)?)
        }
    };
    finished(state_of(disk, &dir, ledger, out))?;
    let mut found = 0u64;
    let mut damaged = Vec::new();
    for file in files.iter().filter(|file| file.name.ends_with(".elog")) {
        match EntryLog::open_file(disk, &dir.join(&file.name)) {
            Ok((_, extents)) => {
                for extent in extents.iter().filter(|extent| extent.ledger == ledger) {
                    found += u64::from(extent.count);
                    finished(extent_line(extent, out))?;
                }
            }
            Err(error) => damaged.push(error.to_string()),
        }
    }
    let total =
        writeln!(out, "total entries={found} (copies counted; entries still in the journal are not here)");
    finished(total)?;
    if damaged.is_empty() { Ok(()) } else { Err(Failure::new(damaged.join(exit::BETWEEN_FAULTS))) }
}

/// Prints the state table's record of a ledger. The table belongs to one process, so it is opened only with the directory's lock, whose
/// file is made if it is missing. Opening it is not without effect: a commit that a crash left without its seal is sealed.
fn state_of(disk: &Arc<dyn Disk>, dir: &Path, ledger: LedgerId, out: &mut impl Write) -> io::Result<()> {
    let outer = dir.parent().unwrap_or(dir);
    let _lock = match disk.lock(&outer.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::WouldBlock => "a running bookie holds the directory".to_owned(),
                _ => format!("the directory cannot be locked: {error}"),
            };
            return writeln!(out, "state of ledger {ledger}: not shown, {why}");
        }
    };
    match StateTable::open(disk, dir) {
        Ok((table, recovered)) => match recovered.ledgers.iter().find(|record| record.ledger == ledger) {
            Some(record) => {
                writeln!(
                    out,
                    "state of ledger {ledger}: removed={} fenced={} has_explicit_lac={}",
                    record.is_removed(),
                    record.is_fenced,
                    record.explicit_lac.is_some()
                )?;
                record.tier.as_ref().map_or(Ok(()), |tier| tier_of(&table.tier(), ledger, tier, out))
            }
            None => writeln!(out, "state of ledger {ledger}: none"),
        },
        Err(error) => writeln!(out, "state of ledger {ledger}: {error}"),
    }
}

/// Prints the state table's record of a ledger's entries in object storage. Other directories of the bookie may have more of it.
fn tier_of(view: &TierView, ledger: LedgerId, tier: &TierRecord, out: &mut impl Write) -> io::Result<()> {
    const ROWS_READ: usize = 1024;
    writeln!(
        out,
        "in object storage: last_reconciled={} trimmed_below={} epoch={} update={}",
        tier.lre,
        EntryId::to_wire(tier.trimmed_below),
        tier.stamp.epoch,
        tier.stamp.update
    )?;
    let mut next = Some(EntryId::FIRST);
    while let Some(from) = next {
        let rows = match view.rows(ledger, from, ROWS_READ) {
            Ok(rows) => rows,
            Err(error) => return writeln!(out, "  {error}"),
        };
        for row in &rows {
            let object = &row.extent.object;
            writeln!(
                out,
                "  first={} last={} object={} object_bytes={} footer_offset={} epoch={} update={}",
                row.extent.first,
                row.extent.last,
                object.id,
                object.length_bytes,
                object.footer_offset,
                row.stamp.epoch,
                row.stamp.update
            )?;
        }
        let last = rows.last().filter(|_| rows.len() == ROWS_READ).map(|row| row.extent.last.get());
        next = last.and_then(|last| last.checked_add(1)).and_then(EntryId::new);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use bindery_journal::record::Kind;
    use bindery_storage::{Checkpoint, ExtentChange, ExtentUpdate, LedgerRecord};
    use bindery_types::tier::{ObjectId, ObjectRef, TierExtent, TierStamp};

    fn update() -> ExtentUpdate {
        let id = ObjectId::new(7, [1; 10]);
        let object = ObjectRef { id, length_bytes: 90, footer_offset: 40, footer_crc: 1, etag_crc: 2 };
        let extent = |first, last| TierExtent {
            first: EntryId::new(first).unwrap(),
            last: EntryId::new(last).unwrap(),
            object,
        };
        ExtentUpdate { stamp: TierStamp { epoch: 2, update: 5 }, extents: vec![extent(0, 4), extent(5, 9)] }
    }

    #[test]
    fn a_record_about_object_storage_says_which_entries() {
        let mut body = 3i64.to_be_bytes().to_vec();
        update().stamp.encode(&mut body);
        update().extents.iter().for_each(|extent| extent.encode(&mut body));
        let ledger = LedgerId::new(3).unwrap();
        let record = Record { kind: Kind::Reconciled, ledger, crc32c: 0, body: &body };
        assert_eq!(reconciled(&record), " epoch=2 update=5 first=0 last=9 extents=2");
        assert_eq!(reconciled(&Record { kind: Kind::Limbo, ..record }), "");
    }

    #[test]
    fn the_state_of_a_ledger_says_where_its_entries_are_in_object_storage() {
        let dir = tempfile::tempdir().unwrap();
        let current = dir.path().join("current");
        std::fs::create_dir(&current).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
        let ledger = LedgerId::new(3).unwrap();
        let tier = TierRecord {
            lre: EntryId::new(9).unwrap(),
            trimmed_below: EntryId::new(4),
            stamp: update().stamp,
            created_ms: None,
        };
        let record = LedgerRecord { tier: Some(tier), ..LedgerRecord::new(ledger) };
        let change = ExtentChange { ledger, is_cleared: false, updates: vec![update()] };
        let (mut table, _) = StateTable::create(&disk, &current).unwrap();
        table
            .commit(&Checkpoint { ledgers: &[&[record]], extents: &[change], ..Checkpoint::default() })
            .unwrap();
        drop(table);
        let mut out = Vec::new();
        ledger_in(&disk, dir.path(), ledger, &mut out).map_err(|_| "not readable").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("last_reconciled=9 trimmed_below=4 epoch=2 update=5"), "{text}");
        assert!(text.contains("first=0 last=4 object=00000000000701010101010101010101"), "{text}");
        assert!(text.contains("first=5 last=9 object="), "{text}");
    }
}
