//! BookKeeper's v2 binary and v3 protobuf protocols, both directions: a bookie decodes requests and encodes responses,
//! a client does the reverse with the same types.
//!
//! # Data flow
//! ```text
//! bytes -> frame::split -> Protocol::of -> v2::Request::decode | v3::Request::decode -> ...
//!       ... -> v2::put_* | v3 encoders -> bytes
//! ```
//!
//! # Invariants
//! 1. Bytes from the wire give `Err`, never a panic, and never an allocation above a length already received.
//! 2. A frame's length is judged before anything is allocated for it (`frame`).
//! 3. Decoding a v2 request allocates nothing; entry bodies are borrowed from the frame (v2) or shared with it (v3).
//! 4. Codes of both protocols come from one function each, [`ErrorCode::v2`] and [`ErrorCode::v3`]; v2 never says 107.
//! 5. Encoding a decoded message and decoding it again gives the same value.
//!
//! # Limits     a frame: [`FrameLimit`]; an entry: [`FrameLimit::entry_size_bytes_max`]; a batch: [`BatchReadBudget`]
//! # Not here   sockets, permits, the meaning of a request (`server`, `engine`)

mod availability;
mod cursor;
mod error_code;
mod sniff;

pub mod entry;
pub mod frame;
pub mod v2;
pub mod v3;

pub use availability::{AvailabilityError, EntryAvailability};
pub use error_code::ErrorCode;
pub use frame::{FrameLimit, FrameTooLarge};
pub use sniff::Protocol;
pub use v2::BatchReadBudget;
