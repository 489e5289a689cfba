//! A placement that says when a spread cannot be had, and counts how often: each search, the repeated ones too.

use std::sync::atomic::{AtomicU64, Ordering};

use bindery_types::{BookieId, Quorum};

use super::{Candidates, Choice, Placement, Unmet, Wanted};

/// See the module.
pub(crate) struct Counted {
    placement: Box<dyn Placement>,
    unmet: AtomicU64,
}

impl Counted {
    pub fn new(placement: Box<dyn Placement>) -> Counted {
        Counted { placement, unmet: AtomicU64::new(0) }
    }

    /// Choices whose spread could not be had.
    pub fn unmet(&self) -> u64 {
        self.unmet.load(Ordering::Relaxed)
    }
}

impl Placement for Counted {
    fn choose(&self, candidates: &Candidates, wanted: Wanted<'_>) -> Choice {
        let choice = self.placement.choose(candidates, wanted);
        if let Some(unmet) = &choice.unmet {
            self.unmet.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(ensemble = ?wanted.ensemble, %unmet, "bookies cannot be spread as they should be");
        }
        choice
    }

    fn lacking(&self, candidates: &Candidates, quorum: Quorum, ensemble: &[BookieId]) -> Option<Unmet> {
        self.placement.lacking(candidates, quorum, ensemble)
    }

    fn wants_locations(&self) -> bool {
        self.placement.wants_locations()
    }
}
