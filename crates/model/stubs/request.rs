//! What the outbox knows of a request.

/// A request.
#[derive(Debug, Default)]
pub struct ReadRequest {
    /// Room promised for its answer.
    pub promised: usize,
    /// It belongs to the fencing lane.
    pub is_high: bool,
    /// Its entry came from object storage.
    pub is_from_tier: bool,
}
