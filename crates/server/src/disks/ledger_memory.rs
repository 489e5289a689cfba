//! Says when the memory of ledger states is nearly full. A core: the watch acts on it.

use bindery_engine::LedgerMemory;

/// Share of the limit, in percent, from which new ledgers are to go elsewhere: clients that know the bookie as writable still
/// begin some.
const FULL_PERCENT: u64 = 95;
/// Below it they may come again.
const FREE_PERCENT: u64 = 90;

/// See the module.
#[derive(Debug, Default)]
pub struct LedgerMemoryCore {
    is_full: bool,
    /// Refusals at the last look.
    refused: u64,
}

impl LedgerMemoryCore {
    /// Why new ledgers should go elsewhere, if they should.
    pub fn tick(&mut self, memory: LedgerMemory) -> Option<String> {
        let LedgerMemory { used_bytes, bytes_max, refused } = memory;
        // A map that would double may not, below the share that counts as full.
        self.is_full |= std::mem::replace(&mut self.refused, refused) < refused;
        let percent = if self.is_full { FREE_PERCENT } else { FULL_PERCENT };
        self.is_full = u128::from(used_bytes) * 100 >= u128::from(bytes_max) * u128::from(percent);
        self.is_full.then(|| {
            format!(
                "the states of ledgers take {} of {} KiB of memory: give more by ledgerMemoryMB or --memory-limit, or delete ledgers; \
                 those that metadata does not know go with garbage collection, which is requested",
                used_bytes >> 10,
                bytes_max >> 10
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_from_95_percent_on_until_it_is_below_90() {
        let mut core = LedgerMemoryCore::default();
        let mut is_full_at =
            |used_bytes| core.tick(LedgerMemory { used_bytes, bytes_max: 1000, refused: 0 }).is_some();
        let seen = [0, 949, 950, 1100, 900, 899, 949, 950].map(&mut is_full_at);
        assert_eq!(seen, [false, false, true, true, true, false, false, true]);
        let refusing = LedgerMemory { used_bytes: 910, bytes_max: 1000, refused: 1 };
        assert!(core.tick(refusing).is_some(), "it refuses already");
        let vast = LedgerMemory { used_bytes: u64::MAX / 2, bytes_max: u64::MAX, refused: 0 };
        assert_eq!(LedgerMemoryCore::default().tick(vast), None);
    }
}
