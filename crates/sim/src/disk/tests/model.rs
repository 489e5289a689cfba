//! The crash model against an independent one, over random operations.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Write { at: usize, len: usize, durable: bool },
    Sync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0usize..20_000, 1usize..9_000, prop::bool::weighted(0.2))
        .prop_map(|(at, len, durable)| Step::Write { at, len, durable });
    prop::collection::vec(prop_oneof![4 => write, 1 => Just(Step::Sync)], 1..25)
}

/// An independent model of a file: bytes that readers see, and for each sector every content that may
/// be on the medium.
struct Model {
    sector: usize,
    cache: Vec<u8>,
    allowed: Vec<BTreeSet<Vec<u8>>>,
    lengths: BTreeSet<usize>,
}

impl Model {
    fn sector_of_cache(&self, index: usize) -> Vec<u8> {
        let from = (index * self.sector).min(self.cache.len());
        let to = ((index + 1) * self.sector).min(self.cache.len());
        let mut bytes = self.cache[from..to].to_vec();
        bytes.resize(self.sector, 0);
        bytes
    }

    fn touched(&mut self, at: usize, len: usize) -> std::ops::Range<usize> {
        let touched = at / self.sector..(at + len).div_ceil(self.sector);
        while self.allowed.len() < touched.end {
            self.allowed.push(BTreeSet::from([vec![0; self.sector]]));
        }
        touched
    }

    fn apply(&mut self, step: &Step, number: u8) {
        match *step {
            Step::Write { at, len, durable } => {
                self.cache.resize(self.cache.len().max(at + len), 0);
                self.cache[at..at + len].fill(number);
                for index in self.touched(at, len) {
                    if durable {
                        self.allowed[index].clear();
                    }
                    let now = self.sector_of_cache(index);
                    self.allowed[index].insert(now);
                }
                if durable {
                    self.lengths.retain(|&known| known >= at + len);
                    self.lengths.insert(at + len);
                }
                self.lengths.insert(self.cache.len());
            }
            Step::Sync => {
                for index in 0..self.allowed.len() {
                    self.allowed[index] = BTreeSet::from([self.sector_of_cache(index)]);
                }
                self.lengths = BTreeSet::from([self.cache.len()]);
            }
        }
    }

    fn check(&self, found: &[u8]) -> Result<(), TestCaseError> {
        prop_assert!(self.lengths.contains(&found.len()), "length {} not in {:?}", found.len(), self.lengths);
        for (index, sector) in found.chunks(self.sector).enumerate() {
            let allowed =
                self.allowed.get(index).is_some_and(|a| a.iter().any(|v| v[..sector.len()] == *sector));
            prop_assert!(
                allowed,
                "sector {index} holds what was never there: {:?}",
                &sector[..8.min(sector.len())]
            );
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Simulated disk invariants 2 and 3: synced sectors survive, and each other one holds something that was written
    /// there since the last sync, or what was there before. Two crashes in a row, so images count as disks too.
    #[test]
    fn a_crash_keeps_what_is_synced_and_invents_nothing(
        rounds in prop::collection::vec(steps(), 2),
        seed: u64,
        small: bool,
    ) {
        let sector = if small { SectorSize::Bytes512 } else { SectorSize::Bytes4096 };
        let (mut disk, _) = disk_with_file(config(sector, 0.0), 0);
        let random = SeededRandom::new(seed);
        for steps in rounds {
            let cache = read_all(&disk, FILE);
            let mut model = Model { sector: sector.bytes(), lengths: BTreeSet::new(), allowed: Vec::new(), cache };
            model.touched(0, model.cache.len());
            model.apply(&Step::Sync, 0);
            let file = disk.open(Path::new(FILE), OpenMode::CreateBuffered).unwrap();
            for (number, step) in steps.iter().enumerate() {
                let number = number as u8 + 2;
                match *step {
                    Step::Write { at, len, durable: true } => put_durable(&*file, at as u64, &vec![number; len]),
                    Step::Write { at, len, durable: false } => put(&*file, at as u64, &vec![number; len]),
                    Step::Sync => file.sync().unwrap(),
                }
                model.apply(step, number);
                prop_assert!(read_all(&disk, FILE) == model.cache, "readers see their own writes");
            }
            model.check(&read_all(&disk.durable_image(), FILE))?;
            disk = disk.crash(&random);
            model.check(&read_all(&disk, FILE))?;
        }
    }

    /// Everything that the checked disk calls durable is in the durable image, and survives a crash.
    #[test]
    fn the_checked_disk_calls_durable_only_what_is(
        steps in prop::collection::vec((steps(), prop::option::of(0u64..20_000)), 1..4),
        seed: u64,
    ) {
        let (disk, _) = disk_with_file(config(SectorSize::Bytes512, 0.3), 6_000);
        let disk = CheckedDisk::new(disk);
        let file = disk.open(Path::new(FILE), OpenMode::CreateBuffered).unwrap();
        for (number, (steps, len)) in steps.iter().enumerate() {
            for (at, step) in steps.iter().enumerate() {
                let byte = (number * 30 + at) as u8 + 2;
                match *step {
                    Step::Write { at, len, durable: true } => put_durable(&*file, at as u64, &vec![byte; len]),
                    Step::Write { at, len, durable: false } => put(&*file, at as u64, &vec![byte; len]),
                    Step::Sync => file.sync().unwrap(),
                }
            }
            if let Some(len) = len {
                file.set_len(*len).unwrap();
            }
            let now = read_all(disk.inner(), FILE);
            let image = read_all(&disk.inner().durable_image(), FILE);
            for (block, bytes) in now.chunks(100).enumerate() {
                let at = block as u64 * 100;
                if disk.is_durable(Path::new(FILE), at..at + bytes.len() as u64) {
                    prop_assert_eq!(image.get(at as usize..at as usize + bytes.len()), Some(bytes), "at {}", at);
                }
            }
        }
        let now = read_all(disk.inner(), FILE);
        let found = read_all(&disk.inner().crash(&SeededRandom::new(seed)), FILE);
        // A torn sector may take durable neighbours with it, so whole sectors are compared: the part of one at the end
        // of a file that was cut may have had a write behind the cut.
        for (sector, bytes) in now.chunks_exact(512).enumerate() {
            let at = sector as u64 * 512;
            if disk.is_durable(Path::new(FILE), at..at + bytes.len() as u64) {
                prop_assert_eq!(found.get(at as usize..at as usize + bytes.len()), Some(bytes), "at {}", at);
            }
        }
    }

    /// The same bytes whatever was cut and extended before, once a sync worked; and a cut file never shows old bytes.
    #[test]
    fn a_synced_file_survives_cuts_and_growth(
        lens in prop::collection::vec((0u64..20_000, 0u64..20_000, any::<bool>()), 1..12),
        seed: u64,
    ) {
        let (disk, file) = disk_with_file(config(SectorSize::Bytes512, 0.5), 10_000);
        let random = SeededRandom::new(seed);
        let mut model = vec![1u8; 10_000];
        for (number, &(len, at, durable)) in lens.iter().enumerate() {
            let number = number as u8 + 2;
            file.set_len(len).unwrap();
            model.resize(len as usize, 0);
            if durable {
                put_durable(&*file, at, &[number; 700]);
                let image = read_all(&disk.durable_image(), FILE);
                prop_assert_eq!(&image[at as usize..][..700], &[number; 700][..]);
            } else {
                put(&*file, at, &[number; 700]);
            }
            model.resize(model.len().max(at as usize + 700), 0);
            model[at as usize..][..700].fill(number);
            prop_assert!(read_all(&disk, FILE) == model);
        }
        file.sync().unwrap();
        prop_assert!(read_all(&disk.durable_image(), FILE) == model);
        prop_assert!(read_all(&disk.crash(&random), FILE) == model);
    }
}
