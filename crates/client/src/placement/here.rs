//! Where this process stands: those who choose which replica to read from are told how far away bookies are.

use std::sync::Arc;

use bindery_types::BookieId;

use super::Location;
use crate::health::NodeHealth;

/// See the module.
pub(crate) struct Here {
    /// Of this process.
    pub location: Location,
    /// Who is told.
    pub health: Arc<NodeHealth>,
}

impl Here {
    /// Records where a bookie stands, or that its place is unknown.
    pub fn tell(&self, bookie: &BookieId, location: Option<&Location>) {
        self.health.is_at(bookie, self.location.distance(location));
    }
}
