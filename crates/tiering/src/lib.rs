//! Tiering: ledgers move to object storage, and readers do not notice.
//!
//! # Parts
//! [`object`] the bytes of an object that holds extents of many ledgers: a streaming builder, decoders, a verifier
//! [`catalogue`] which objects there are, which extents they hold, what is reserved
//! [`store`] object stores by URL, and whether they do what is needed
//! [`fetch`] reading entries back, in few requests and bounded memory; checking objects before local copies go
//! [`footers`] the metadata of ledgers, as objects have it
//! [`entries`] the entries of one extent, for an object that takes them over
//! [`scrub`] everything in a store read back and compared with the catalogue
//!
//! # Not here   copies on local disks (`bindery-storage`), reading ledgers from bookies (`bindery-client`)

pub mod catalogue;
pub mod cover;
pub mod entries;
pub mod fetch;
pub mod footers;
pub mod object;
pub mod scrub;
pub mod store;

pub use bindery_types::tier::{ClusterId, InvalidId, ObjectId};
