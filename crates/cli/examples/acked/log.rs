//! The log of promises, and what an entry holds.
//!
//! ```text
//! A <ledger> <entry> <hash>   acknowledged
//! C <ledger> <entry>          closed with this last entry (-1: none); may never be another
//! Z <ledger> <bookie>         this bookie granted a fence
//! D <ledger>                  about to be deleted: promises of it are void
//! ```

use bindery_io::{Random, SeededRandom};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What entry `entry` of a ledger holds: mostly small, now and then up to 64 KiB.
pub fn payload(ledger: i64, entry: i64) -> Vec<u8> {
    let rng = SeededRandom::new((ledger as u64).wrapping_mul(0x1_0000_0001).wrapping_add(entry as u64));
    let size = match rng.below(100) {
        0 => rng.below(65_536),
        1..10 => rng.below(8192),
        _ => rng.below(600),
    };
    let mut bytes = format!("ledger {ledger} entry {entry} ").into_bytes();
    while (bytes.len() as u64) < size {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes
}

/// The hash in the log.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The log, open for more.
pub struct Log(Mutex<std::fs::File>);

impl Log {
    /// Opens or makes it.
    pub fn open(path: &Path) -> Log {
        Log(Mutex::new(std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap()))
    }

    /// Adds whole lines with one write.
    pub fn add(&self, lines: &str) {
        self.0.lock().unwrap().write_all(lines.as_bytes()).unwrap();
    }
}

/// What the log says of one ledger.
#[derive(Debug, Default, Clone)]
pub struct Promised {
    /// Hash of each acknowledged entry.
    pub entries: BTreeMap<i64, u64>,
    /// The end it was closed with.
    pub closed: Option<i64>,
    /// Who granted a fence.
    pub fenced_by: BTreeSet<String>,
}

/// Reads a log: ledgers that were not deleted, and faults of the log itself (two ends of one ledger).
pub fn read(path: &Path) -> (BTreeMap<i64, Promised>, Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (mut ledgers, mut deleted, mut faults) =
        (BTreeMap::<i64, Promised>::new(), BTreeSet::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<i64>().unwrap();
        let ledger = ledgers.entry(number(1)).or_default();
        match words[0] {
            "A" => {
                ledger.entries.insert(number(2), u64::from_str_radix(words[3], 16).unwrap());
            }
            "C" => {
                let end = number(2);
                if ledger.closed.is_some_and(|before| before != end) {
                    faults.push(format!(
                        "ledger {} was closed with {:?} and with {end}",
                        words[1], ledger.closed
                    ));
                }
                ledger.closed = Some(end);
            }
            "Z" => {
                ledger.fenced_by.insert(words[2].to_owned());
            }
            "D" => {
                deleted.insert(number(1));
            }
            other => panic!("{}: a line that begins with {other}", path.display()),
        }
    }
    ledgers.retain(|id, _| !deleted.contains(id));
    (ledgers, faults)
}

/// What to do to a file.
#[derive(clap::Args)]
pub struct DamageArgs {
    /// The file
    file: PathBuf,
    /// Inverts this bit, counted from the file's first
    #[arg(long, conflicts_with = "sector")]
    bit: Option<u64>,
    /// Overwrites this sector of 512 bytes with noise
    #[arg(long)]
    sector: Option<u64>,
    /// Changes nothing, prints how many bytes there are up to the last one that is not zero
    #[arg(long)]
    used: bool,
}

/// Does it.
pub fn damage(args: &DamageArgs) -> bool {
    if args.used {
        let bytes = std::fs::read(&args.file).unwrap();
        println!("{}", bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        return true;
    }
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&args.file).unwrap();
    if let Some(bit) = args.bit {
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8).unwrap();
    }
    if let Some(sector) = args.sector {
        let rng = SeededRandom::new(sector);
        let len = file.metadata().unwrap().len();
        let end = len.min(sector * 512 + 512);
        let noise: Vec<u8> = (sector * 512..end).map(|_| rng.next_u64() as u8).collect();
        assert!(!noise.is_empty(), "sector {sector} is behind the end of {}", args.file.display());
        file.write_all_at(&noise, sector * 512).unwrap();
    }
    args.bit.is_some() || args.sector.is_some()
}
