//! A request, as far as the outbox knows it.

use super::read_class::ReadClass;

/// A request.
#[derive(Debug, Default)]
pub struct ReadRequest {
    /// Room promised for its answer.
    pub promised: usize,
    /// Its class.
    pub class: ReadClass,
    /// Its entry came from object storage.
    pub is_from_tier: bool,
}
