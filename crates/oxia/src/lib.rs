//! Oxia's client protocol, for the driver of the metadata store and for the coordinator that answers it.
//!
//! # Parts
//! [`proto`] messages and service · [`codec`] what of a request is decoded · [`keys`] the order of keys, and which shard has a key ·
//! [`status`] reasons of failed calls

pub mod codec;
pub mod keys;
pub mod status;

/// Messages, client and server, generated from `proto/client.proto`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the comments are in the .proto file"
)]
pub mod proto {
    tonic::include_proto!("io.oxia.proto.v1");
}

/// The namespace that is meant when none is named.
pub const NAMESPACE_DEFAULT: &str = "default";
/// The expected version of a record that is not to exist.
pub const VERSION_NOT_EXISTS: i64 = -1;
/// Keys that the server keeps for itself begin so; clients see them only when they ask for them.
pub const INTERNAL_KEY_PREFIX: &str = "__oxia/";
