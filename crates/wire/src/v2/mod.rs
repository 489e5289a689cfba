//! The v2 binary protocol (protocol reference, sections 1.3 to 1.5).
//!
//! Every packet, in both directions, starts with four bytes:
//!
//! ```text
//!  31      24 23      16 15              0
//!  +---------+----------+----------------+
//!  | version | opcode   | flags          |     version 1, 2 (and, refused, anything else)
//!  +---------+----------+----------------+
//!  | 0       | opcode                    |     version 0: no flags
//!  +---------+---------------------------+
//! ```
//!
//! # Invariants
//! 1. A response carries its request's version and opcode, and the request's ids as they were sent: a read of entry -1 is
//!    answered with entry -1. Its flags are 0, but for [`Flags::STRIDE`] where a batch has that.
//! 2. A packet that cannot be decoded is either answered ([`DecodeError::refusal`]) or closes the connection, as a Java
//!    bookie would.
//! 3. Trailing bytes are ignored.

mod batch;
mod request;
mod response;

pub use batch::BatchReadBudget;
pub use request::{Add, Auth, BatchRead, DecodeError, Read, Refusal, Request};
pub use response::{
    ADD_RESPONSE_SIZE_BYTES, BATCH_READ_ENTRY_OVERHEAD_BYTES, BATCH_READ_RESPONSE_OVERHEAD_BYTES,
    BatchEntries, Correlation, READ_RESPONSE_OVERHEAD_BYTES, RESPONSE_HEAD_SIZE_BYTES_MAX, Response,
    ResponseError, put_add_response, put_auth_response, put_batch_entry_size, put_batch_read_response,
    put_batch_read_response_header, put_error_response, put_read_response, put_read_response_header,
};

/// The version current clients speak. Versions 0 and 1 are accepted too.
pub const VERSION_CURRENT: i8 = 2;

/// First version whose fencing reads carry the master key.
const VERSION_WITH_FENCING_KEY: i8 = 2;

/// Where the stored entry starts in an ADD packet: after header and master key. With the frame in a `Bytes`,
/// `frame.slice(ADD_BODY_OFFSET_BYTES..)` shares the body without a copy.
pub const ADD_BODY_OFFSET_BYTES: usize = 24;

const fn is_supported(version: i8) -> bool {
    version >= 0 && version <= VERSION_CURRENT
}

/// The operations v2 has. Opcodes 4, 5 and 6 exist as constants only and are never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// ADDENTRY
    Add = 1,
    /// READENTRY
    Read = 2,
    /// AUTH
    Auth = 3,
    /// BATCH_READ_ENTRY, since BookKeeper 4.17
    BatchRead = 7,
}

impl Opcode {
    const fn from_wire(raw: u32) -> Option<Opcode> {
        match raw {
            1 => Some(Opcode::Add),
            2 => Some(Opcode::Read),
            3 => Some(Opcode::Auth),
            7 => Some(Opcode::BatchRead),
            _ => None,
        }
    }
}

/// Request flags. Unknown bits are carried along and mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u16);

impl Flags {
    /// No flag set.
    pub const NONE: Flags = Flags(0);
    /// On reads and batch reads: fence the ledger first.
    pub const DO_FENCING: Flags = Flags(0x0001);
    /// On adds: part of ledger recovery or re-replication, allowed on a fenced ledger.
    pub const RECOVERY_ADD: Flags = Flags(0x0002);
    /// On adds and reads: serve ahead of ordinary traffic.
    pub const HIGH_PRIORITY: Flags = Flags(0x0004);
    /// Ours, on batch reads: a stride stands behind the other fields. On their answers: the entries follow it. The highest bit, far
    /// from those that BookKeeper uses.
    pub const STRIDE: Flags = Flags(0x8000);

    /// All 16 bits as they stand in the header.
    pub const fn from_bits(bits: u16) -> Flags {
        Flags(bits)
    }

    /// All 16 bits as they stand in the header.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether every flag of `other` is set here.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The four header bytes. `opcode` stays a number until `Opcode` knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    version: i8,
    opcode: u32,
    flags: Flags,
}

impl Header {
    const fn decode(raw: u32) -> Header {
        let version = (raw >> 24) as u8 as i8;
        if version == 0 {
            return Header { version, opcode: raw, flags: Flags::NONE };
        }
        Header { version, opcode: (raw >> 16) & 0xff, flags: Flags(raw as u16) }
    }

    const fn encode(version: i8, opcode: Opcode, flags: Flags) -> u32 {
        if version == 0 {
            return opcode as u32;
        }
        ((version as u8 as u32) << 24) | ((opcode as u32) << 16) | flags.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_zero_has_an_opcode_and_no_flags() {
        assert_eq!(Header::decode(2), Header { version: 0, opcode: 2, flags: Flags::NONE });
        assert_eq!(Header::encode(0, Opcode::Read, Flags::DO_FENCING), 2);
        // The bits of version 1's flags are part of version 0's opcode.
        assert_eq!(Header::decode(0x0001_0001).opcode, 0x0001_0001);
    }

    #[test]
    fn header_bits_are_where_the_reference_says() {
        let fencing = Flags::DO_FENCING.with(Flags::HIGH_PRIORITY);
        assert_eq!(Header::encode(2, Opcode::Read, fencing), 0x0202_0005);
        assert_eq!(Header::decode(0x0207_0005), Header { version: 2, opcode: 7, flags: fencing });
        assert_eq!(Header::decode(0xff01_0000).version, -1);
        assert_eq!(Header::encode(-1, Opcode::Add, Flags::NONE), 0xff01_0000);
    }
}
