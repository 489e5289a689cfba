//! Work that a bookie does beside requests, each by asking the metadata store: removal of deleted ledgers
//! ([`garbage`]), of replicas that no ensemble names ([`surplus`]), and the search for ledgers that may have lost
//! entries here ([`integrity`]). [`crate::cluster_record`] is what a bookie remembers about the cluster between starts.

pub mod garbage;
pub mod integrity;
pub mod surplus;
