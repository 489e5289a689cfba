//! A maximum that is shown only as far as it is durable.
//!
//! LAC (last add confirmed) and last entry of a ledger grow with every record placed, but may be shown only once that
//! record is durable (architecture, "Visibility"). At most one group is being written and one forming, so three
//! values suffice: durable, in the group being written, in the group forming. They are resolved when somebody looks,
//! so that a finished group touches no ledger that nobody waits for.
//!
//! # Invariants
//! 1. The shown value never decreases.
//! 2. It is at least every value whose record is durable, provided that a group is cut only while none is being
//!    written and takes everything placed.

/// See the module docs. Values are wire numbers: -1 means none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lagging {
    durable: i64,
    /// (value, sequence of its record); sequence 0 means empty.
    writing: (i64, u64),
    forming: (i64, u64),
}

const EMPTY: (i64, u64) = (-1, 0);

impl Lagging {
    /// A value that is durable already.
    pub(crate) fn durable(value: i64) -> Lagging {
        Lagging { durable: value, writing: EMPTY, forming: EMPTY }
    }

    /// A record that carries `value` was placed at `sequence`. `cut` is the last sequence taken into a group,
    /// `durable` the last one durable.
    pub(crate) fn raise(&mut self, value: i64, sequence: u64, cut: u64, durable: u64) {
        debug_assert!(sequence > cut && cut >= durable, "{sequence} > {cut} >= {durable}");
        self.settle(durable);
        if self.forming.1 != 0 && self.forming.1 <= cut {
            self.writing = (self.writing.0.max(self.forming.0), self.forming.1);
            self.forming = EMPTY;
        }
        self.forming = (self.forming.0.max(value), sequence);
    }

    /// What may be shown.
    pub(crate) fn shown(&self, durable: u64) -> i64 {
        let of = |(value, sequence): (i64, u64)| if sequence <= durable { value } else { -1 };
        self.durable.max(of(self.writing)).max(of(self.forming))
    }

    /// What was placed, durable or not.
    pub(crate) fn placed(&self) -> i64 {
        self.durable.max(self.writing.0).max(self.forming.0)
    }

    /// Drops what is not durable: the journal failed.
    pub(crate) fn forget_above(&mut self, durable: u64) {
        *self = Lagging::durable(self.shown(durable));
    }

    fn settle(&mut self, durable: u64) {
        for slot in [&mut self.writing, &mut self.forming] {
            if slot.1 <= durable {
                self.durable = self.durable.max(slot.0);
                *slot = EMPTY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Lagging invariants 1 and 2, against the list of all records.
        #[test]
        fn shows_exactly_what_is_durable(steps in prop::collection::vec((0u8..4, 0i64..50), 1..200)) {
            let mut lagging = Lagging::durable(-1);
            let (mut placed, mut sequence, mut cut, mut durable) = (Vec::new(), 0u64, 0u64, 0u64);
            for (step, value) in steps {
                match step {
                    0 | 1 => {
                        sequence += 1;
                        lagging.raise(value, sequence, cut, durable);
                        placed.push((value, sequence));
                    }
                    2 if cut == durable => cut = sequence,
                    _ => durable = cut,
                }
                let expected = placed.iter().filter(|(_, s)| *s <= durable).map(|(v, _)| *v).max().unwrap_or(-1);
                let shown = lagging.shown(durable);
                prop_assert!(shown >= expected, "{} < {}", shown, expected);
                let highest = placed.iter().map(|(v, _)| *v).max().unwrap_or(-1);
                prop_assert!(shown <= highest);
                prop_assert!(shown == expected, "{} shown, {} durable", shown, expected);
                prop_assert_eq!(lagging.placed(), highest);
            }
        }
    }
}
