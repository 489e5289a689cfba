//! Requests, from bytes.

use super::input::{Input, Malformed};
use super::opcode;
use bytes::Bytes;

/// The first message of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectRequest {
    /// Highest zxid the client has seen from any server.
    pub(crate) last_zxid: i64,
    /// Session timeout wished for, in ms.
    pub(crate) timeout_ms: i32,
    /// 0 asks for a new session.
    pub(crate) session: i64,
    /// Of the session to be resumed.
    pub(crate) password: Bytes,
    /// Clients since 3.4 send one byte more, and expect one more in the answer.
    pub(crate) has_read_only: bool,
}

impl ConnectRequest {
    pub(crate) fn parse(frame: Bytes) -> Result<ConnectRequest, Malformed> {
        let mut input = Input(frame);
        let _protocol = input.i32()?;
        Ok(ConnectRequest {
            last_zxid: input.i64()?,
            timeout_ms: input.i32()?,
            session: input.i64()?,
            password: input.buffer()?.unwrap_or_default(),
            has_read_only: input.bool().is_ok(),
        })
    }
}

/// In front of every later request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Comes back in the reply.
    pub(crate) xid: i32,
    /// The operation.
    pub(crate) opcode: i32,
}

impl Header {
    /// Takes the header off a frame. A frame without one ends the connection.
    pub(crate) fn split(frame: Bytes) -> Result<(Header, Bytes), Malformed> {
        let mut input = Input(frame);
        let header = Header { xid: input.i32()?, opcode: input.i32()? };
        Ok((header, input.0))
    }
}

/// One access rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Acl {
    /// Bits: read 1, write 2, create 4, delete 8, admin 16.
    pub(crate) perms: i32,
    /// `world`, `digest`, `ip`, or `auth` for the identities of the connection.
    pub(crate) scheme: String,
    /// Whom the rule is for, in the scheme's notation.
    pub(crate) id: String,
}

/// Flags of a create: how the node lives and gets its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CreateFlags {
    pub(crate) is_ephemeral: bool,
    pub(crate) is_sequential: bool,
    pub(crate) is_container: bool,
    pub(crate) is_ttl: bool,
}

impl CreateFlags {
    /// `None` for a number that means nothing.
    pub(crate) fn from_number(number: i32) -> Option<CreateFlags> {
        (0..=6).contains(&number).then_some(CreateFlags {
            is_ephemeral: matches!(number, 1 | 3),
            is_sequential: matches!(number, 2 | 3 | 6),
            is_container: number == 4,
            is_ttl: matches!(number, 5 | 6),
        })
    }
}

/// The nodes that an added watch covers, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchMode {
    /// This node and its children, until removed.
    Persistent,
    /// This node and everything below, until removed.
    Recursive,
}

/// Which watches a check or removal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchTarget {
    Children,
    Data,
    Any,
    Persistent,
    Recursive,
}

/// One operation of a multi or multiRead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MultiOp {
    /// `opcode` says the kind of create, which decides the kind of result too.
    Create {
        opcode: i32,
        path: String,
        data: Option<Bytes>,
        acl: Vec<Acl>,
        flags: i32,
        ttl_ms: i64,
    },
    Delete {
        path: String,
        version: i32,
    },
    SetData {
        path: String,
        data: Option<Bytes>,
        version: i32,
    },
    Check {
        path: String,
        version: i32,
    },
    GetChildren {
        path: String,
    },
    GetData {
        path: String,
    },
}

impl MultiOp {
    fn is_read(&self) -> bool {
        matches!(self, MultiOp::GetChildren { .. } | MultiOp::GetData { .. })
    }
}

/// A request, decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// create, create2, createContainer or createTTL.
    Create {
        opcode: i32,
        path: String,
        data: Option<Bytes>,
        acl: Vec<Acl>,
        flags: i32,
        ttl_ms: i64,
    },
    Delete {
        path: String,
        version: i32,
    },
    DeleteContainer {
        path: String,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Bytes>,
        version: i32,
    },
    GetAcl {
        path: String,
    },
    SetAcl {
        path: String,
        acl: Vec<Acl>,
        version: i32,
    },
    GetChildren {
        path: String,
        watch: bool,
        with_stat: bool,
    },
    GetAllChildrenNumber {
        path: String,
    },
    GetEphemerals {
        prefix: String,
    },
    Sync {
        path: String,
    },
    Ping,
    Multi(Vec<MultiOp>),
    MultiRead(Vec<MultiOp>),
    CheckWatches {
        path: String,
        target: WatchTarget,
    },
    RemoveWatches {
        path: String,
        target: WatchTarget,
    },
    AddWatch {
        path: String,
        mode: WatchMode,
    },
    SetWatches {
        relative_zxid: i64,
        data: Vec<String>,
        exist: Vec<String>,
        children: Vec<String>,
        persistent: Vec<String>,
        recursive: Vec<String>,
    },
    Auth {
        scheme: String,
        auth: Option<Bytes>,
    },
    WhoAmI,
    CloseSession,
    Sasl,
    Reconfig,
    /// An opcode that no client may send, or none at all.
    Unknown,
}

impl Request {
    /// Decodes the record of an operation. Bytes behind its fields are ignored, as ZooKeeper does.
    pub(crate) fn parse(opcode: i32, record: Bytes) -> Result<Request, Malformed> {
        let mut input = Input(record);
        let input = &mut input;
        Ok(match opcode {
            opcode::CREATE | opcode::CREATE2 | opcode::CREATE_CONTAINER | opcode::CREATE_TTL => {
                let (path, data, acl) = (input.string()?, input.buffer()?, acls(input)?);
                let flags = input.i32()?;
                let ttl_ms = if opcode == opcode::CREATE_TTL { input.i64()? } else { -1 };
                Request::Create { opcode, path, data, acl, flags, ttl_ms }
            }
            opcode::DELETE => Request::Delete { path: input.string()?, version: input.i32()? },
            opcode::DELETE_CONTAINER => Request::DeleteContainer { path: input.string()? },
            opcode::EXISTS => Request::Exists { path: input.string()?, watch: input.bool()? },
            opcode::GET_DATA => Request::GetData { path: input.string()?, watch: input.bool()? },
            opcode::SET_DATA => {
                Request::SetData { path: input.string()?, data: input.buffer()?, version: input.i32()? }
            }
            opcode::GET_ACL => Request::GetAcl { path: input.string()? },
            opcode::SET_ACL => {
                Request::SetAcl { path: input.string()?, acl: acls(input)?, version: input.i32()? }
            }
            opcode::GET_CHILDREN | opcode::GET_CHILDREN2 => Request::GetChildren {
                path: input.string()?,
                watch: input.bool()?,
                with_stat: opcode == opcode::GET_CHILDREN2,
            },
            opcode::GET_ALL_CHILDREN_NUMBER => Request::GetAllChildrenNumber { path: input.string()? },
            opcode::GET_EPHEMERALS => {
                Request::GetEphemerals { prefix: input.string_or_null()?.unwrap_or_default() }
            }
            opcode::SYNC => Request::Sync { path: input.string()? },
            opcode::PING => Request::Ping,
            opcode::MULTI => Request::Multi(multi(input, false)?),
            opcode::MULTI_READ => Request::MultiRead(multi(input, true)?),
            opcode::CHECK_WATCHES => Request::CheckWatches { path: input.string()?, target: target(input)? },
            opcode::REMOVE_WATCHES => {
                Request::RemoveWatches { path: input.string()?, target: target(input)? }
            }
            opcode::ADD_WATCH => Request::AddWatch { path: input.string()?, mode: mode(input)? },
            opcode::SET_WATCHES | opcode::SET_WATCHES2 => {
                let has_persistent = opcode == opcode::SET_WATCHES2;
                Request::SetWatches {
                    relative_zxid: input.i64()?,
                    data: input.strings()?,
                    exist: input.strings()?,
                    children: input.strings()?,
                    persistent: if has_persistent { input.strings()? } else { Vec::new() },
                    recursive: if has_persistent { input.strings()? } else { Vec::new() },
                }
            }
            opcode::AUTH => {
                let _type = input.i32()?;
                Request::Auth { scheme: input.string_or_null()?.unwrap_or_default(), auth: input.buffer()? }
            }
            opcode::WHO_AM_I => Request::WhoAmI,
            opcode::CLOSE_SESSION => Request::CloseSession,
            opcode::SASL => Request::Sasl,
            opcode::RECONFIG => Request::Reconfig,
            _ => Request::Unknown,
        })
    }
}

fn acls(input: &mut Input) -> Result<Vec<Acl>, Malformed> {
    input.vector(12, |input| {
        Ok(Acl {
            perms: input.i32()?,
            scheme: input.string_or_null()?.unwrap_or_default(),
            id: input.string_or_null()?.unwrap_or_default(),
        })
    })
}

fn target(input: &mut Input) -> Result<WatchTarget, Malformed> {
    match input.i32()? {
        1 => Ok(WatchTarget::Children),
        2 => Ok(WatchTarget::Data),
        3 => Ok(WatchTarget::Any),
        4 => Ok(WatchTarget::Persistent),
        5 => Ok(WatchTarget::Recursive),
        _ => Err(Malformed),
    }
}

fn mode(input: &mut Input) -> Result<WatchMode, Malformed> {
    match input.i32()? {
        0 => Ok(WatchMode::Persistent),
        1 => Ok(WatchMode::Recursive),
        _ => Err(Malformed),
    }
}

/// The operations up to the header that says "done". Reads and writes never mix.
fn multi(input: &mut Input, reads: bool) -> Result<Vec<MultiOp>, Malformed> {
    let mut ops = Vec::new();
    loop {
        let opcode = input.i32()?;
        let is_done = input.bool()?;
        let _error = input.i32()?;
        if is_done {
            return Ok(ops);
        }
        let op = multi_op(opcode, input)?;
        if op.is_read() != reads {
            return Err(Malformed);
        }
        ops.push(op);
    }
}

fn multi_op(opcode: i32, input: &mut Input) -> Result<MultiOp, Malformed> {
    Ok(match opcode {
        opcode::CREATE | opcode::CREATE2 | opcode::CREATE_CONTAINER => {
            let (path, data, acl) = (input.string()?, input.buffer()?, acls(input)?);
            let flags = input.i32()?;
            // A time to live needs its own opcode; the flags of a container make it one.
            let opcode = match CreateFlags::from_number(flags) {
                None | Some(CreateFlags { is_ttl: true, .. }) => return Err(Malformed),
                Some(CreateFlags { is_container: true, .. }) => opcode::CREATE_CONTAINER,
                Some(_) => opcode,
            };
            MultiOp::Create { opcode, path, data, acl, flags, ttl_ms: -1 }
        }
        opcode::CREATE_TTL => {
            let (path, data, acl) = (input.string()?, input.buffer()?, acls(input)?);
            let (flags, ttl_ms) = (input.i32()?, input.i64()?);
            // Without the flag for it the time is forgotten.
            let (opcode, ttl_ms) = match CreateFlags::from_number(flags) {
                Some(CreateFlags { is_ttl: true, .. }) => (opcode::CREATE_TTL, ttl_ms),
                Some(CreateFlags { is_container: true, .. }) => (opcode::CREATE_CONTAINER, -1),
                _ => (opcode::CREATE, -1),
            };
            MultiOp::Create { opcode, path, data, acl, flags, ttl_ms }
        }
        opcode::DELETE => MultiOp::Delete { path: input.string()?, version: input.i32()? },
        opcode::SET_DATA => {
            MultiOp::SetData { path: input.string()?, data: input.buffer()?, version: input.i32()? }
        }
        opcode::CHECK => MultiOp::Check { path: input.string()?, version: input.i32()? },
        opcode::GET_CHILDREN => {
            let (path, _watch) = (input.string()?, input.bool()?);
            MultiOp::GetChildren { path }
        }
        opcode::GET_DATA => {
            let (path, _watch) = (input.string()?, input.bool()?);
            MultiOp::GetData { path }
        }
        _ => return Err(Malformed),
    })
}
