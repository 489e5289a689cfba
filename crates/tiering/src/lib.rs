//! Tiering: ledgers move to object storage, and readers do not notice.
//!
//! # Parts
//! [`object`] the bytes of an object that holds extents of many ledgers: a streaming builder, decoders, a verifier
//! [`catalogue`] which objects there are, which extents they hold, what is reserved
//! [`store`] object stores by URL, and whether they do what is needed
//! [`fetch`] reading entries back, in few requests and bounded memory; checking objects before local copies go
//!
//! # Not here   copies on local disks (`bindery-storage`), reading ledgers from bookies (`bindery-client`)

pub mod catalogue;
pub mod fetch;
pub mod object;
pub mod store;

pub use bindery_types::tier::{ClusterId, InvalidId, ObjectId};
