//! ZooKeeper's client protocol, seen from the server: jute records inside length-prefixed frames.
//!
//! ```text
//! frame    := size(4) body                      size 0..=FRAME_SIZE_BYTES_MAX
//! request  := xid(4) opcode(4) record           connect: the record alone
//! reply    := xid(4) zxid(8) error(4) record    connect: the record alone; an error has no record
//! buffer, string := size(4, -1 = null) bytes;   vector := count(4, -1 = null) items;   all big-endian
//! ```
//!
//! # Invariants
//! 1. Decoding allocates no more than the frame holds: each length and count is checked against the bytes at hand.
//! 2. Nothing decoded keeps the receive buffer alive: values that outlive the request are copied by who keeps them.

mod code;
mod input;
mod reply;
mod request;

pub(crate) use code::Code;
pub(crate) use input::Malformed;
pub(crate) use reply::{EventKind, OpResult, Reply, Stat, connect_response, notification};
pub(crate) use request::{
    Acl, ConnectRequest, CreateFlags, Header, MultiOp, Request, WatchMode, WatchTarget,
};

/// Largest frame accepted, ZooKeeper's `jute.maxbuffer` default.
pub(crate) const FRAME_SIZE_BYTES_MAX: usize = 0xf_ffff;

/// Transaction id of a header that belongs to no transaction.
pub(crate) const NO_ZXID: i64 = -1;

const XID_NOTIFICATION: i32 = -1;
/// What a reply to a ping carries, whatever the ping did.
pub(crate) const XID_PING: i32 = -2;

/// The numbers of the operations.
pub(crate) mod opcode {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const SET_ACL: i32 = 7;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN2: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE2: i32 = 15;
    pub(crate) const RECONFIG: i32 = 16;
    pub(crate) const CHECK_WATCHES: i32 = 17;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const DELETE_CONTAINER: i32 = 20;
    pub(crate) const CREATE_TTL: i32 = 21;
    pub(crate) const MULTI_READ: i32 = 22;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    pub(crate) const SASL: i32 = 102;
    pub(crate) const GET_EPHEMERALS: i32 = 103;
    pub(crate) const GET_ALL_CHILDREN_NUMBER: i32 = 104;
    pub(crate) const SET_WATCHES2: i32 = 105;
    pub(crate) const ADD_WATCH: i32 = 106;
    pub(crate) const WHO_AM_I: i32 = 107;
    pub(crate) const CLOSE_SESSION: i32 = -11;
    /// Stands for a failed operation in the result of a multi.
    pub(crate) const ERROR: i32 = -1;
}
