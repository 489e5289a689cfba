//! Replies and notifications, to bytes.

use super::request::Acl;
use super::{Code, NO_ZXID, XID_NOTIFICATION, opcode};
use bytes::{BufMut, Bytes, BytesMut};

/// Size of a [`Stat`] on the wire.
const STAT_SIZE: usize = 68;

/// A node's figures for clients, besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) ctime_ms: i64,
    pub(crate) mtime_ms: i64,
    pub(crate) version: i32,
    pub(crate) cversion: i32,
    pub(crate) aversion: i32,
    pub(crate) ephemeral_owner: i64,
    pub(crate) data_size: i32,
    pub(crate) children: i32,
    pub(crate) pzxid: i64,
}

/// What happened to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Created = 1,
    Deleted = 2,
    DataChanged = 3,
    ChildrenChanged = 4,
}

/// The result of one operation of a multi.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpResult {
    Created(String),
    CreatedWithStat(String, Stat),
    Deleted,
    Set(Stat),
    Checked,
    Children(Vec<String>),
    Data(Option<Bytes>, Stat),
    Error(Code),
}

/// A frame being filled.
pub(crate) struct Reply(BytesMut);

impl Reply {
    /// A reply's header; the record follows.
    pub(crate) fn new(xid: i32, zxid: i64, code: Code) -> Reply {
        let mut out = BytesMut::with_capacity(96);
        out.put_i32(0); // the size, filled in last
        out.put_i32(xid);
        out.put_i64(zxid);
        out.put_i32(code.number());
        Reply(out)
    }

    /// A reply that is its header only.
    pub(crate) fn bare(xid: i32, zxid: i64, code: Code) -> Bytes {
        Reply::new(xid, zxid, code).finish()
    }

    /// The frame.
    pub(crate) fn finish(mut self) -> Bytes {
        let size = u32::try_from(self.0.len() - 4).expect("a reply is far below 4 GiB");
        self.0[..4].copy_from_slice(&size.to_be_bytes());
        self.0.freeze()
    }

    pub(crate) fn i32(mut self, value: i32) -> Reply {
        self.0.put_i32(value);
        self
    }

    pub(crate) fn buffer(mut self, bytes: Option<&[u8]>) -> Reply {
        put_buffer(&mut self.0, bytes);
        self
    }

    pub(crate) fn string(self, text: &str) -> Reply {
        self.buffer(Some(text.as_bytes()))
    }

    pub(crate) fn strings<'a>(mut self, items: impl ExactSizeIterator<Item = &'a str>) -> Reply {
        self.0.put_i32(count(items.len()));
        for item in items {
            put_buffer(&mut self.0, Some(item.as_bytes()));
        }
        self
    }

    pub(crate) fn stat(mut self, stat: &Stat) -> Reply {
        put_stat(&mut self.0, stat);
        self
    }

    pub(crate) fn acl<'a>(mut self, acl: impl ExactSizeIterator<Item = &'a Acl>) -> Reply {
        self.0.put_i32(count(acl.len()));
        for rule in acl {
            self.0.put_i32(rule.perms);
            put_buffer(&mut self.0, Some(rule.scheme.as_bytes()));
            put_buffer(&mut self.0, Some(rule.id.as_bytes()));
        }
        self
    }

    /// Pairs of strings.
    pub(crate) fn identities<'a>(
        mut self,
        items: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    ) -> Reply {
        self.0.put_i32(count(items.len()));
        for (scheme, user) in items {
            put_buffer(&mut self.0, Some(scheme.as_bytes()));
            put_buffer(&mut self.0, Some(user.as_bytes()));
        }
        self
    }

    pub(crate) fn results(mut self, results: &[OpResult]) -> Reply {
        for result in results {
            let (kind, error) = match result {
                OpResult::Created(_) => (opcode::CREATE, 0),
                OpResult::CreatedWithStat(..) => (opcode::CREATE2, 0),
                OpResult::Deleted => (opcode::DELETE, 0),
                OpResult::Set(_) => (opcode::SET_DATA, 0),
                OpResult::Checked => (opcode::CHECK, 0),
                OpResult::Children(_) => (opcode::GET_CHILDREN, 0),
                OpResult::Data(..) => (opcode::GET_DATA, 0),
                OpResult::Error(code) => (opcode::ERROR, code.number()),
            };
            put_multi_header(&mut self.0, kind, false, error);
            self = match result {
                OpResult::Created(path) => self.string(path),
                OpResult::CreatedWithStat(path, stat) => self.string(path).stat(stat),
                OpResult::Deleted | OpResult::Checked => self,
                OpResult::Set(stat) => self.stat(stat),
                OpResult::Children(names) => self.strings(names.iter().map(String::as_str)),
                OpResult::Data(data, stat) => self.buffer(data.as_deref()).stat(stat),
                OpResult::Error(code) => self.i32(code.number()),
            };
        }
        put_multi_header(&mut self.0, -1, true, -1);
        self
    }
}

fn count(len: usize) -> i32 {
    i32::try_from(len).expect("a list has far fewer than 2^31 items")
}

fn put_multi_header(out: &mut BytesMut, kind: i32, is_done: bool, error: i32) {
    out.put_i32(kind);
    out.put_u8(is_done.into());
    out.put_i32(error);
}

fn put_buffer(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => out.put_i32(-1),
        Some(bytes) => {
            out.put_i32(count(bytes.len()));
            out.put_slice(bytes);
        }
    }
}

fn put_stat(out: &mut BytesMut, stat: &Stat) {
    out.reserve(STAT_SIZE);
    out.put_i64(stat.czxid);
    out.put_i64(stat.mzxid);
    out.put_i64(stat.ctime_ms);
    out.put_i64(stat.mtime_ms);
    out.put_i32(stat.version);
    out.put_i32(stat.cversion);
    out.put_i32(stat.aversion);
    out.put_i64(stat.ephemeral_owner);
    out.put_i32(stat.data_size);
    out.put_i32(stat.children);
    out.put_i64(stat.pzxid);
}

/// The answer to a connect request; `granted` is timeout (ms), session and password, `None` for "expired".
pub(crate) fn connect_response(granted: Option<(i32, i64, &[u8; 16])>, has_read_only: bool) -> Bytes {
    let (timeout_ms, session, password) = granted.unwrap_or((0, 0, &[0; 16]));
    let mut out = BytesMut::with_capacity(41);
    out.put_i32(if has_read_only { 37 } else { 36 });
    out.put_i32(0); // protocol version
    out.put_i32(timeout_ms);
    out.put_i64(session);
    put_buffer(&mut out, Some(password));
    if has_read_only {
        out.put_u8(0);
    }
    out.freeze()
}

/// A watch that fired. `zxid` is [`NO_ZXID`] for one that fires because it was set again too late.
pub(crate) fn notification(kind: EventKind, path: &str, zxid: Option<i64>) -> Bytes {
    // State 3: connected.
    Reply::new(XID_NOTIFICATION, zxid.unwrap_or(NO_ZXID), Code::Ok)
        .i32(kind as i32)
        .i32(3)
        .string(path)
        .finish()
}
