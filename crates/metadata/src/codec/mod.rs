//! The bytes BookKeeper keeps in metadata nodes (protocol reference, sections 5.2, 5.3 and 5.5).

pub mod ledger;
pub mod service_info;
pub mod text;

#[allow(missing_docs, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/bindery.metadata.rs"));
}
