//! A maximum that is shown only as far as it is durable.
//!
//! LAC (last add confirmed) and last entry of a ledger grow with every record placed, but may be shown only once that
//! record is durable (architecture, "Visibility"). At most one group is being written and one forming, so three values
//! suffice: durable, in the group being written, in the group forming. They are resolved on reading, so that a finished
//! group touches no ledger without waiters.
//!
//! # Invariants
//! 1. The shown value never decreases.
//! 2. It is at least every value whose record is durable, provided that a group is cut only while none is being
//!    written and takes everything placed.

/// See the module docs. Values are wire numbers: -1 means none.
#[derive(Debug, Clone)]
pub(crate) struct Lagging {
    durable: i64,
    /// What is not durable yet, or was not when somebody looked last: most ledgers have none.
    pending: Option<Box<Pending>>,
}

/// (value, sequence of its record); sequence 0 means empty.
#[derive(Debug, Clone)]
struct Pending {
    writing: (i64, u64),
    forming: (i64, u64),
}

const EMPTY: (i64, u64) = (-1, 0);

impl Lagging {
    /// On the heap, while something is not durable.
    #[cfg(test)]
    pub(crate) const PENDING_BYTES: usize = size_of::<Pending>();

    /// A value that is durable already.
    pub(crate) fn durable(value: i64) -> Lagging {
        Lagging { durable: value, pending: None }
    }

    /// A record that carries `value` was placed at `sequence`. `cut` is the last sequence taken into a group,
    /// `durable` the last one durable.
    pub(crate) fn raise(&mut self, value: i64, sequence: u64, cut: u64, durable: u64) {
        debug_assert!(sequence > cut && cut >= durable, "{sequence} > {cut} >= {durable}");
        self.settle(durable);
        let pending =
            self.pending.get_or_insert_with(|| Box::new(Pending { writing: EMPTY, forming: EMPTY }));
        if pending.forming.1 != 0 && pending.forming.1 <= cut {
            pending.writing = (pending.writing.0.max(pending.forming.0), pending.forming.1);
            pending.forming = EMPTY;
        }
        pending.forming = (pending.forming.0.max(value), sequence);
    }

    /// A value whose proof is durable elsewhere than in the journal.
    pub(crate) fn raise_durable(&mut self, value: i64) {
        self.durable = self.durable.max(value);
    }

    /// What may be shown.
    pub(crate) fn shown(&self, durable: u64) -> i64 {
        let of = |(value, sequence): (i64, u64)| if sequence <= durable { value } else { -1 };
        self.pending
            .as_ref()
            .map_or(self.durable, |pending| self.durable.max(of(pending.writing)).max(of(pending.forming)))
    }

    /// What was placed, durable or not.
    pub(crate) fn placed(&self) -> i64 {
        let pending = self.pending.as_ref();
        pending.map_or(self.durable, |pending| self.durable.max(pending.writing.0).max(pending.forming.0))
    }

    /// Drops what is not durable: the journal failed.
    pub(crate) fn forget_above(&mut self, durable: u64) {
        *self = Lagging::durable(self.shown(durable));
    }

    /// Gives back what it takes while something is not durable, when everything is.
    pub(crate) fn rest(&mut self, durable: u64) {
        self.settle(durable);
        if self.pending.as_ref().is_some_and(|pending| pending.writing.1 == 0 && pending.forming.1 == 0) {
            self.pending = None;
        }
    }

    fn settle(&mut self, durable: u64) {
        let Some(pending) = &mut self.pending else { return };
        for slot in [&mut pending.writing, &mut pending.forming] {
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
                    3 if value < 10 => {
                        lagging.rest(durable);
                        prop_assert_eq!(lagging.pending.is_none(), durable == sequence);
                    }
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
