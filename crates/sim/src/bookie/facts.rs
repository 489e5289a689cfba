//! The facts that a restart found, for comparing restarts: IB11 (replaying twice, or after tries that were cut short,
//! changes nothing) and IB25 (two restarts without traffic find the same).

use super::ghost::Check;
use super::watch::{Marks, marks};
use crate::disk::SimDisk;
use bindery_engine::{EntryRef, Lookup, Machine, Refusal};
use bindery_io::Disk;
use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::path::PathBuf;
use std::sync::Arc;

/// A body by its hash.
type Body = Result<u64, Refusal>;

/// One ledger, as every kind of request shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LedgerFacts {
    standing: String,
    is_fenced: bool,
    lac: Result<Option<EntryId>, Refusal>,
    explicit_lac: Result<Option<u64>, Refusal>,
    last: Body,
    /// Those listed.
    entries: Result<Vec<(i64, Body)>, Refusal>,
    /// Extents in object storage, and the trim.
    tier: Vec<(i64, i64, u64)>,
}

/// A bookie at rest. Nothing may be under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    ledgers: BTreeMap<LedgerId, LedgerFacts>,
    marks: Marks,
    /// Entry logs and their lengths.
    logs: BTreeMap<PathBuf, u64>,
}

fn read(machine: &Machine, ledger: LedgerId, which: EntryRef) -> Body {
    match machine.engine.read(ledger, which)? {
        Lookup::Memory(body) => Ok(hash(&body)),
        Lookup::Disk(read) => read.load().map(|body| hash(&body)),
        Lookup::Tiered(_) => Err(Refusal::Tiered),
        Lookup::Undurable(_) => Err(Refusal::TooManyRequests),
    }
}

fn hash(body: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

impl Facts {
    /// The facts that `machine` shows of these ledgers, and those on its disk.
    pub(super) fn of(
        machine: &Machine,
        disk: &SimDisk,
        dirs: &[PathBuf],
        ledgers: &[LedgerId],
    ) -> Result<Facts, String> {
        let engine = &machine.engine;
        let of_ledger = |ledger: LedgerId| {
            let runs = engine.list_entries(ledger);
            let entries = runs.map(|runs| {
                let ids = runs.iter().flat_map(|run| run.first.get()..=run.last.get());
                let body = |id| {
                    let entry = EntryId::new(id).expect("listed entries are not negative");
                    (id, read(machine, ledger, EntryRef::At(entry)))
                };
                ids.map(body).collect()
            });
            LedgerFacts {
                standing: format!("{:?}", engine.presence(ledger)),
                is_fenced: engine.is_fenced(ledger),
                lac: engine.last_add_confirmed(ledger),
                explicit_lac: engine.explicit_lac(ledger).map(|body| body.map(|body| hash(&body))),
                last: read(machine, ledger, EntryRef::Last),
                entries,
                tier: super::run::tier_facts(engine, ledger),
            }
        };
        let all = ledgers.iter().copied().chain(engine.ledgers());
        let ledgers = all.map(|ledger| (ledger, of_ledger(ledger))).collect();
        let image = Arc::new(disk.durable_image());
        let mut logs = BTreeMap::new();
        for dir in dirs {
            let files = image.list(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            let files = files.into_iter().filter(|file| file.name.ends_with(".elog"));
            logs.extend(files.map(|file| (dir.join(file.name), file.len)));
        }
        let image: Arc<dyn Disk> = image;
        Ok(Facts { ledgers, marks: marks(&image, dirs)?, logs })
    }

    /// IB11: clients see the same; how it is laid out may differ.
    pub(super) fn check_same_for_clients(&self, other: &Facts) -> Check {
        for ledger in self.ledgers.keys().chain(other.ledgers.keys()) {
            let (one, two) = (self.ledgers.get(ledger), other.ledgers.get(ledger));
            if one != two {
                return Err(format!("ledger {ledger} is {one:?} after one replay and {two:?} after another"));
            }
        }
        Ok(())
    }

    /// IB25: marks and files are the same as well.
    pub(super) fn check_same(&self, other: &Facts) -> Check {
        self.check_same_for_clients(other)?;
        if self.marks != other.marks {
            return Err(format!("the marks are {:?}, then {:?}", self.marks, other.marks));
        }
        if self.logs != other.logs {
            return Err(format!("the entry logs are {:?}, then {:?}", self.logs, other.logs));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn facts() -> Facts {
        let ledger = LedgerFacts {
            standing: "Known".into(),
            is_fenced: true,
            lac: Ok(None),
            explicit_lac: Ok(None),
            last: Err(Refusal::NoEntry),
            entries: Ok(vec![(0, Ok(1))]),
            tier: vec![(-1, -1, 0)],
        };
        Facts {
            ledgers: BTreeMap::from([(LedgerId::new(1).unwrap(), ledger)]),
            marks: Marks::from([((PathBuf::from("/l"), 0), 7)]),
            logs: BTreeMap::from([(PathBuf::from("/l/0.elog"), 4096)]),
        }
    }

    #[test]
    fn every_difference_is_found() {
        let (one, id) = (facts(), LedgerId::new(1).unwrap());
        assert_eq!(one.check_same(&facts()), Ok(()));
        let changes: [fn(&mut LedgerFacts); 7] = [
            |l| l.tier = vec![(0, 3, 1)],
            |l| l.standing = "Removed".into(),
            |l| l.is_fenced = false,
            |l| l.lac = Ok(EntryId::new(0)),
            |l| l.explicit_lac = Ok(Some(0)),
            |l| l.last = Ok(2),
            |l| l.entries = Ok(vec![(0, Err(Refusal::Io))]),
        ];
        for change in changes {
            let mut two = facts();
            change(two.ledgers.get_mut(&id).unwrap());
            assert!(one.check_same_for_clients(&two).is_err());
        }
        let changes: [fn(&mut Facts); 2] = [|f| f.ledgers.clear(), |f| f.marks.clear()];
        for change in changes {
            let mut two = facts();
            change(&mut two);
            assert!(one.check_same(&two).is_err());
        }
        let mut two = facts();
        two.logs.clear();
        assert!(one.check_same(&two).is_err() && one.check_same_for_clients(&two).is_ok());
    }
}
