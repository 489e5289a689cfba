//! ZooKeeper's client protocol: jute records inside length-prefixed frames.
//!
//! ```text
//! frame    := size(4) body
//! request  := xid(4) opcode(4) record          connect: the record alone
//! reply    := xid(4) zxid(8) error(4) record   connect: the record alone
//! buffer, string := size(4, -1 = null) bytes;  vector := count(4) items;  all big-endian
//! ```
//!
//! Every decoder checks a length against the bytes at hand before using it.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::security::Access;
use crate::store::{CreateMode, Op, SessionId, Stat, StoreError, Version};

/// Largest reply accepted. A listing of a million children of 20 bytes fits.
pub(super) const FRAME_SIZE_BYTES_MAX: usize = 64 << 20;

pub(super) const XID_NOTIFICATION: i32 = -1;
pub(super) const XID_PING: i32 = -2;

pub(super) const OP_DELETE: i32 = 2;
pub(super) const OP_EXISTS: i32 = 3;
pub(super) const OP_GET_DATA: i32 = 4;
pub(super) const OP_SET_DATA: i32 = 5;
pub(super) const OP_GET_CHILDREN: i32 = 8;
pub(super) const OP_SYNC: i32 = 9;
pub(super) const OP_PING: i32 = 11;
const OP_CHECK: i32 = 13;
pub(super) const OP_MULTI: i32 = 14;
pub(super) const OP_CREATE: i32 = 1;
pub(super) const OP_SASL: i32 = 102;
pub(super) const OP_CLOSE_SESSION: i32 = -11;
const OP_ERROR: i32 = -1;

pub(super) const OK: i32 = 0;
pub(super) const ERR_NO_NODE: i32 = -101;
const ERR_RUNTIME_INCONSISTENCY: i32 = -2;

/// What went wrong while reading a reply; becomes [`StoreError::Protocol`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Truncated;

impl From<Truncated> for StoreError {
    fn from(_: Truncated) -> StoreError {
        StoreError::Protocol("a reply is shorter than its contents say".into())
    }
}

pub(super) fn put_buffer(out: &mut BytesMut, bytes: &[u8]) {
    out.put_i32(i32::try_from(bytes.len()).expect("paths and values are bounded far below 2 GiB"));
    out.put_slice(bytes);
}

pub(super) fn get_i32(input: &mut Bytes) -> Result<i32, Truncated> {
    input.try_get_i32().map_err(|_| Truncated)
}

pub(super) fn get_i64(input: &mut Bytes) -> Result<i64, Truncated> {
    input.try_get_i64().map_err(|_| Truncated)
}

pub(super) fn get_buffer(input: &mut Bytes) -> Result<Bytes, Truncated> {
    let size = get_i32(input)?;
    let Ok(size) = usize::try_from(size) else { return Ok(Bytes::new()) };
    if size > input.len() {
        return Err(Truncated);
    }
    Ok(input.split_to(size))
}

pub(super) fn get_string(input: &mut Bytes) -> Result<String, StoreError> {
    let bytes = get_buffer(input)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| StoreError::Protocol("a name is not UTF-8".into()))
}

pub(super) fn get_strings(input: &mut Bytes) -> Result<Vec<String>, StoreError> {
    let count = usize::try_from(get_i32(input)?).unwrap_or(0);
    // Each string takes at least its length: a larger count lies.
    if count > input.len() / 4 {
        return Err(Truncated.into());
    }
    (0..count).map(|_| get_string(input)).collect()
}

pub(super) fn get_stat(input: &mut Bytes) -> Result<Stat, Truncated> {
    let _created_zxid = get_i64(input)?;
    let _modified_zxid = get_i64(input)?;
    let created_ms = get_i64(input)?;
    let _modified_ms = get_i64(input)?;
    let version = get_i32(input)?;
    let children_version = get_i32(input)?;
    let _acl_version = get_i32(input)?;
    let owner = get_i64(input)?;
    let _data_size = get_i32(input)?;
    let children_count = u32::try_from(get_i32(input)?).unwrap_or(0);
    let _children_zxid = get_i64(input)?;
    let owner = (owner != 0).then_some(SessionId(owner));
    // The version that is shown counts creations and deletions: twice the creations, less the present children. It wraps around.
    let next_sequence = children_version.cast_unsigned().wrapping_add(children_count) / 2;
    Ok(Stat {
        version: Version::counted(version.into()),
        owner,
        created_ms,
        children_count: Some(children_count),
        next_sequence,
    })
}

/// The first message on a connection.
pub(super) struct ConnectRequest<'a> {
    pub last_zxid: i64,
    pub timeout_ms: i32,
    /// 0 asks for a new session.
    pub session_id: i64,
    pub password: &'a [u8],
}

impl ConnectRequest<'_> {
    pub(super) fn frame(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(64);
        out.put_i32(0);
        out.put_i32(0); // protocol version
        out.put_i64(self.last_zxid);
        out.put_i32(self.timeout_ms);
        out.put_i64(self.session_id);
        put_buffer(&mut out, self.password);
        out.put_u8(0); // a read-only server is of no use
        finish_frame(&mut out);
        out
    }
}

/// The first reply on a connection. A timeout of 0 says that the session is expired.
pub(super) struct ConnectResponse {
    pub timeout_ms: i32,
    pub session_id: i64,
    pub password: Bytes,
}

impl ConnectResponse {
    /// False: there is no such session, or no longer.
    pub(super) fn is_open(&self) -> bool {
        self.timeout_ms > 0 && self.session_id != 0
    }

    pub(super) fn parse(mut frame: Bytes) -> Result<ConnectResponse, StoreError> {
        let version = get_i32(&mut frame)?;
        if version != 0 {
            return Err(StoreError::Protocol(format!("its protocol version is {version}, not 0")));
        }
        Ok(ConnectResponse {
            timeout_ms: get_i32(&mut frame)?,
            session_id: get_i64(&mut frame)?,
            password: get_buffer(&mut frame)?,
        })
    }
}

/// Header of every later reply.
pub(super) struct ReplyHeader {
    pub xid: i32,
    pub zxid: i64,
    pub error: i32,
}

impl ReplyHeader {
    pub(super) fn parse(frame: &mut Bytes) -> Result<ReplyHeader, Truncated> {
        Ok(ReplyHeader { xid: get_i32(frame)?, zxid: get_i64(frame)?, error: get_i32(frame)? })
    }
}

/// A frame with its length still to be filled in by [`finish_frame`].
pub(super) fn begin_frame(xid: i32, opcode: i32) -> BytesMut {
    let mut out = BytesMut::with_capacity(128);
    out.put_i32(0);
    out.put_i32(xid);
    out.put_i32(opcode);
    out
}

/// Writes the length into a frame begun with four bytes for it.
pub(super) fn finish_frame(frame: &mut BytesMut) {
    let size = u32::try_from(frame.len() - 4).expect("requests are bounded far below 4 GiB");
    frame[..4].copy_from_slice(&size.to_be_bytes());
}

/// All that one may do with a node: read, write, create, delete, administer.
const PERMISSIONS_ALL: i32 = 31;

fn put_create(out: &mut BytesMut, path: &str, data: &[u8], mode: CreateMode, access: Access) {
    put_buffer(out, path.as_bytes());
    put_buffer(out, data);
    out.put_i32(1); // one access rule
    out.put_i32(PERMISSIONS_ALL);
    let (scheme, id): (&[u8], &[u8]) = match access {
        Access::Anybody => (b"world", b"anyone"),
        Access::Creator => (b"auth", b""),
    };
    put_buffer(out, scheme);
    put_buffer(out, id);
    out.put_i32(match mode {
        CreateMode::Persistent => 0,
        CreateMode::Ephemeral => 1,
        CreateMode::PersistentSequential => 2,
        CreateMode::EphemeralSequential => 3,
    });
}

fn put_expected(out: &mut BytesMut, expected: Option<Version>) {
    // Another store's version is none of any node here, and must not become the -1 that stands for any of them.
    let number = |version: Version| {
        i32::try_from(version.id()).ok().filter(|number| *number != -1).unwrap_or(i32::MIN)
    };
    out.put_i32(expected.map_or(-1, number));
}

fn opcode_of(op: &Op) -> i32 {
    match op {
        Op::Create { .. } => OP_CREATE,
        Op::Set { .. } => OP_SET_DATA,
        Op::Delete { .. } => OP_DELETE,
        Op::Check { .. } => OP_CHECK,
    }
}

pub(super) fn path_of(op: &Op) -> &str {
    match op {
        Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. } | Op::Check { path, .. } => {
            path
        }
    }
}

fn put_op(out: &mut BytesMut, op: &Op, access: Access) {
    match op {
        Op::Create { path, data, mode } => put_create(out, path, data, *mode, access),
        Op::Set { path, data, expected } => {
            put_buffer(out, path.as_bytes());
            put_buffer(out, data);
            put_expected(out, *expected);
        }
        Op::Delete { path, expected } => {
            put_buffer(out, path.as_bytes());
            put_expected(out, *expected);
        }
        Op::Check { path, expected } => {
            put_buffer(out, path.as_bytes());
            put_expected(out, Some(*expected));
        }
    }
}

/// Opcode and record of a single write; `access` is for a node that it creates.
pub(super) fn write_request(op: &Op, access: Access) -> (i32, BytesMut) {
    let mut out = BytesMut::new();
    put_op(&mut out, op, access);
    (opcode_of(op), out)
}

/// Record of a multi; `access` is for nodes that it creates.
pub(super) fn multi_request(ops: &[Op], access: Access) -> BytesMut {
    let mut out = BytesMut::new();
    for op in ops {
        out.put_i32(opcode_of(op));
        out.put_u8(0);
        out.put_i32(-1);
        put_op(&mut out, op, access);
    }
    out.put_i32(-1);
    out.put_u8(1);
    out.put_i32(-1);
    out
}

/// The index and code of the operation that made a multi fail, if one did.
pub(super) fn multi_failure(mut body: Bytes) -> Result<Option<(usize, i32)>, StoreError> {
    for index in 0.. {
        let opcode = get_i32(&mut body)?;
        let done = body.try_get_u8().map_err(|_| Truncated)? != 0;
        let _error = get_i32(&mut body)?;
        if done {
            break;
        }
        match opcode {
            OP_CREATE => drop(get_string(&mut body)?),
            OP_SET_DATA => drop(get_stat(&mut body)?),
            OP_DELETE | OP_CHECK => {}
            OP_ERROR => {
                let code = get_i32(&mut body)?;
                // Operations before the failed one carry 0, those after it "inconsistency".
                if code != OK && code != ERR_RUNTIME_INCONSISTENCY {
                    return Ok(Some((index, code)));
                }
            }
            other => return Err(StoreError::Protocol(format!("result {other} in the reply to a multi"))),
        }
    }
    Ok(None)
}

/// The error for a non-zero code of the server.
pub(super) fn error_of(code: i32, path: &str) -> StoreError {
    let path = path.to_string();
    match code {
        ERR_NO_NODE => StoreError::NoNode { path },
        -102 => StoreError::NoAuth { path },
        -114 => StoreError::NoIdentity { path },
        -103 => StoreError::BadVersion { path },
        -108 => StoreError::NoChildrenForEphemerals { path },
        -110 => StoreError::NodeExists { path },
        -111 => StoreError::NotEmpty { path },
        -112 => StoreError::SessionExpired,
        -115 => StoreError::AuthFailed { why: "it refuses our credentials".into() },
        -124 => StoreError::AuthFailed { why: "it serves only clients that have logged in".into() },
        // Moved: another connection of this session answered first; throttled, timeout, loss: the outcome is unknown.
        -118 | -127 | -7 | -4 => StoreError::ConnectionLoss,
        -125 => StoreError::Full { path },
        -6 => StoreError::Unsupported("this operation (server without it)"),
        other => StoreError::Protocol(format!("error code {other} for {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_beyond_the_reply_is_an_error() {
        let mut lying = Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff, 1, 2]);
        assert_eq!(get_buffer(&mut lying.clone()), Err(Truncated));
        assert!(get_strings(&mut lying).is_err());
        assert!(get_stat(&mut Bytes::from_static(&[0; 67])).is_err());
        assert!(multi_failure(Bytes::from_static(&[0, 0, 0, 1, 0])).is_err());
    }

    /// `OPEN_ACL_UNSAFE` and `CREATOR_ALL_ACL` of ZooKeeper's `ZooDefs.Ids`.
    #[test]
    fn a_create_has_the_access_list_of_java() {
        let op = Op::Create { path: "/a".into(), data: Bytes::new(), mode: CreateMode::Ephemeral };
        let begin = b"\0\0\0\x02/a\0\0\0\0\0\0\0\x01\0\0\0\x1f";
        for (access, list) in [
            (Access::Anybody, &b"\0\0\0\x05world\0\0\0\x06anyone"[..]),
            (Access::Creator, b"\0\0\0\x04auth\0\0\0\0"),
        ] {
            let (opcode, record) = write_request(&op, access);
            assert_eq!((opcode, record), (OP_CREATE, [begin, list, b"\0\0\0\x01"].concat()[..].into()));
        }
    }

    #[test]
    fn a_connect_request_has_the_documented_bytes() {
        let frame = ConnectRequest { last_zxid: 1, timeout_ms: 2, session_id: 3, password: &[9; 2] }.frame();
        let expected = [
            &[0, 0, 0, 31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2][..],
            &[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 9, 9, 0],
        ];
        assert_eq!(frame, expected.concat());
    }
}
