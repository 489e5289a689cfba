//! Requests: how each is encoded, and how it is written in a transcript.

use super::jute::Writer;
use super::render;

/// Opcodes of the protocol that a client may send.
pub(super) mod op {
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
}

/// One access rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Acl {
    pub permissions: i32,
    pub scheme: String,
    pub id: String,
}

impl Acl {
    pub(super) fn new(permissions: i32, scheme: &str, id: &str) -> Acl {
        Acl { permissions, scheme: scheme.into(), id: id.into() }
    }
}

/// Everybody may do everything.
pub(super) fn open_acl() -> Vec<Acl> {
    vec![Acl::new(31, "world", "anyone")]
}

/// The lists of watches in setWatches and setWatches2: data, exist, child, persistent, recursive.
pub(super) type WatchLists = [Vec<String>; 5];

/// A request that a script can send.
#[derive(Clone)]
pub(super) enum Request {
    /// create, create2, createContainer or, with a time to live, createTTL.
    Create {
        opcode: i32,
        path: String,
        data: Option<Vec<u8>>,
        acl: Option<Vec<Acl>>,
        flags: i32,
        ttl: i64,
    },
    Delete {
        path: String,
        version: i32,
    },
    /// exists, getData, getChildren, getChildren2.
    Read {
        opcode: i32,
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Vec<u8>>,
        version: i32,
    },
    SetAcl {
        path: String,
        acl: Option<Vec<Acl>>,
        version: i32,
    },
    Check {
        path: String,
        version: i32,
    },
    /// A request that is a path alone: getACL, sync, getEphemerals, getAllChildrenNumber.
    OfPath {
        opcode: i32,
        path: String,
    },
    /// checkWatches, removeWatches.
    Watches {
        opcode: i32,
        path: String,
        kind: i32,
    },
    AddWatch {
        path: String,
        mode: i32,
    },
    /// `symbol` is how the transcript writes the zxid.
    SetWatches {
        opcode: i32,
        relative_zxid: i64,
        symbol: String,
        lists: WatchLists,
    },
    /// multi, multiRead.
    Multi {
        opcode: i32,
        steps: Vec<Request>,
    },
    Auth {
        scheme: String,
        credentials: Vec<u8>,
    },
    /// No record: ping, closeSession, whoAmI.
    Empty {
        opcode: i32,
    },
    /// Any bytes as the record.
    Raw {
        opcode: i32,
        record: Vec<u8>,
    },
}

impl Request {
    pub(super) fn create(path: &str, data: &str, flags: i32) -> Request {
        Request::creating(op::CREATE, path, data, flags)
    }

    pub(super) fn create2(path: &str, data: &str, flags: i32) -> Request {
        Request::creating(op::CREATE2, path, data, flags)
    }

    pub(super) fn creating(opcode: i32, path: &str, data: &str, flags: i32) -> Request {
        let (path, data) = (path.to_string(), Some(data.as_bytes().to_vec()));
        Request::Create { opcode, path, data, acl: Some(open_acl()), flags, ttl: 0 }
    }

    pub(super) fn create_with_acl(path: &str, acl: Vec<Acl>) -> Request {
        let (path, data) = (path.to_string(), Some(Vec::new()));
        Request::Create { opcode: op::CREATE, path, data, acl: Some(acl), flags: 0, ttl: 0 }
    }

    pub(super) fn create_ttl(path: &str, flags: i32, ttl: i64) -> Request {
        let (path, data) = (path.to_string(), Some(Vec::new()));
        Request::Create { opcode: op::CREATE_TTL, path, data, acl: Some(open_acl()), flags, ttl }
    }

    pub(super) fn delete(path: &str, version: i32) -> Request {
        Request::Delete { path: path.into(), version }
    }

    pub(super) fn exists(path: &str, watch: bool) -> Request {
        Request::Read { opcode: op::EXISTS, path: path.into(), watch }
    }

    pub(super) fn get(path: &str, watch: bool) -> Request {
        Request::Read { opcode: op::GET_DATA, path: path.into(), watch }
    }

    pub(super) fn children(path: &str, watch: bool) -> Request {
        Request::Read { opcode: op::GET_CHILDREN, path: path.into(), watch }
    }

    pub(super) fn children2(path: &str, watch: bool) -> Request {
        Request::Read { opcode: op::GET_CHILDREN2, path: path.into(), watch }
    }

    pub(super) fn set(path: &str, data: &str, version: i32) -> Request {
        Request::SetData { path: path.into(), data: Some(data.as_bytes().to_vec()), version }
    }

    pub(super) fn check(path: &str, version: i32) -> Request {
        Request::Check { path: path.into(), version }
    }

    pub(super) fn get_acl(path: &str) -> Request {
        Request::OfPath { opcode: op::GET_ACL, path: path.into() }
    }

    pub(super) fn set_acl(path: &str, acl: Vec<Acl>, version: i32) -> Request {
        Request::SetAcl { path: path.into(), acl: Some(acl), version }
    }

    pub(super) fn sync(path: &str) -> Request {
        Request::OfPath { opcode: op::SYNC, path: path.into() }
    }

    pub(super) fn ephemerals(prefix: &str) -> Request {
        Request::OfPath { opcode: op::GET_EPHEMERALS, path: prefix.into() }
    }

    pub(super) fn all_children_number(path: &str) -> Request {
        Request::OfPath { opcode: op::GET_ALL_CHILDREN_NUMBER, path: path.into() }
    }

    pub(super) fn add_watch(path: &str, mode: i32) -> Request {
        Request::AddWatch { path: path.into(), mode }
    }

    pub(super) fn remove_watches(path: &str, kind: i32) -> Request {
        Request::Watches { opcode: op::REMOVE_WATCHES, path: path.into(), kind }
    }

    pub(super) fn check_watches(path: &str, kind: i32) -> Request {
        Request::Watches { opcode: op::CHECK_WATCHES, path: path.into(), kind }
    }

    pub(super) fn multi(steps: Vec<Request>) -> Request {
        Request::Multi { opcode: op::MULTI, steps }
    }

    pub(super) fn multi_read(steps: Vec<Request>) -> Request {
        Request::Multi { opcode: op::MULTI_READ, steps }
    }

    pub(super) fn auth(scheme: &str, credentials: &str) -> Request {
        Request::Auth { scheme: scheme.into(), credentials: credentials.as_bytes().to_vec() }
    }

    pub(super) fn ping() -> Request {
        Request::Empty { opcode: op::PING }
    }

    pub(super) fn close() -> Request {
        Request::Empty { opcode: op::CLOSE_SESSION }
    }

    pub(super) fn who_am_i() -> Request {
        Request::Empty { opcode: op::WHO_AM_I }
    }

    pub(super) fn raw(opcode: i32, record: Vec<u8>) -> Request {
        Request::Raw { opcode, record }
    }

    pub(super) fn opcode(&self) -> i32 {
        match self {
            Request::Create { opcode, .. }
            | Request::Read { opcode, .. }
            | Request::OfPath { opcode, .. }
            | Request::Watches { opcode, .. }
            | Request::SetWatches { opcode, .. }
            | Request::Multi { opcode, .. }
            | Request::Empty { opcode }
            | Request::Raw { opcode, .. } => *opcode,
            Request::Delete { .. } => op::DELETE,
            Request::SetData { .. } => op::SET_DATA,
            Request::SetAcl { .. } => op::SET_ACL,
            Request::Check { .. } => op::CHECK,
            Request::AddWatch { .. } => op::ADD_WATCH,
            Request::Auth { .. } => op::AUTH,
        }
    }

    /// The xid that the Java client gives this kind of request; `None` takes the next of the connection.
    pub(super) fn fixed_xid(&self) -> Option<i32> {
        match self.opcode() {
            op::PING => Some(-2),
            op::AUTH => Some(-4),
            op::SET_WATCHES | op::SET_WATCHES2 => Some(-8),
            _ => None,
        }
    }

    fn put(&self, out: &mut Writer) {
        match self {
            Request::Create { opcode, path, data, acl, flags, ttl } => {
                out.string(path).buffer(data.as_deref());
                put_acl(out, acl.as_deref());
                out.i32(*flags);
                if *opcode == op::CREATE_TTL {
                    out.i64(*ttl);
                }
            }
            Request::Delete { path, version } | Request::Check { path, version } => {
                out.string(path).i32(*version);
            }
            Request::Read { path, watch, .. } => drop(out.string(path).bool(*watch)),
            Request::SetData { path, data, version } => {
                out.string(path).buffer(data.as_deref()).i32(*version);
            }
            Request::SetAcl { path, acl, version } => {
                out.string(path);
                put_acl(out, acl.as_deref());
                out.i32(*version);
            }
            Request::OfPath { path, .. } => drop(out.string(path)),
            Request::Watches { path, kind, .. } => drop(out.string(path).i32(*kind)),
            Request::AddWatch { path, mode } => drop(out.string(path).i32(*mode)),
            Request::SetWatches { opcode, relative_zxid, lists, .. } => {
                out.i64(*relative_zxid);
                let count = if *opcode == op::SET_WATCHES { 3 } else { 5 };
                for list in &lists[..count] {
                    out.strings(list);
                }
            }
            Request::Multi { steps, .. } => {
                for step in steps {
                    out.i32(step.opcode()).bool(false).i32(-1);
                    step.put(out);
                }
                out.i32(-1).bool(true).i32(-1);
            }
            Request::Auth { scheme, credentials } => {
                out.i32(0).string(scheme).buffer(Some(credentials));
            }
            Request::Empty { .. } => {}
            Request::Raw { record, .. } => out.0.extend_from_slice(record),
        }
    }

    /// Header and record, without the length in front.
    pub(super) fn encode(&self, xid: i32) -> Vec<u8> {
        let mut out = Writer::default();
        out.i32(xid).i32(self.opcode());
        self.put(&mut out);
        out.0
    }

    /// As the transcript writes it.
    pub(super) fn describe(&self) -> String {
        let name = render::opcode(self.opcode());
        match self {
            Request::Create { opcode, path, data, acl, flags, ttl } => {
                let mut text = format!("{name} {} {}", render::path(path), render::data(data.as_deref()));
                match acl {
                    Some(acl) if *acl == open_acl() => {}
                    Some(acl) => text += &format!(" acl={}", render::acl(acl)),
                    None => text += " acl=null",
                }
                text += &format!(" flags={flags}");
                if *opcode == op::CREATE_TTL {
                    text += &format!(" ttl={ttl}");
                }
                text
            }
            Request::Delete { path, version } | Request::Check { path, version } => {
                format!("{name} {} version={version}", render::path(path))
            }
            Request::Read { path, watch, .. } => {
                format!("{name} {}{}", render::path(path), if *watch { " watch" } else { "" })
            }
            Request::SetData { path, data, version } => {
                format!("{name} {} {} version={version}", render::path(path), render::data(data.as_deref()))
            }
            Request::SetAcl { path, acl, version } => {
                let acl = acl.as_ref().map_or("null".into(), |acl| render::acl(acl));
                format!("{name} {} acl={acl} version={version}", render::path(path))
            }
            Request::OfPath { path, .. } => format!("{name} {}", render::path(path)),
            Request::Watches { path, kind, .. } => {
                let kind = match kind {
                    1 => "children".to_string(),
                    2 => "data".into(),
                    3 => "any".into(),
                    other => other.to_string(),
                };
                format!("{name} {} kind={kind}", render::path(path))
            }
            Request::AddWatch { path, mode } => {
                let mode = match mode {
                    0 => "persistent".to_string(),
                    1 => "persistent-recursive".into(),
                    other => other.to_string(),
                };
                format!("{name} {} mode={mode}", render::path(path))
            }
            Request::SetWatches { symbol, lists, .. } => {
                let names = ["data", "exist", "child", "persistent", "recursive"];
                let mut text = format!("{name} relativeZxid={symbol}");
                for (name, list) in names.iter().zip(lists).filter(|(_, list)| !list.is_empty()) {
                    text += &format!(" {name}=[{}]", list.join(" "));
                }
                text
            }
            Request::Multi { steps, .. } => {
                let steps: Vec<String> =
                    steps.iter().map(|step| format!("\n     + {}", step.describe())).collect();
                format!("{name} of {}{}", steps.len(), steps.concat())
            }
            Request::Auth { scheme, credentials } => {
                format!("{name} {scheme} {}", render::data(Some(credentials)))
            }
            Request::Empty { .. } => name,
            Request::Raw { record, .. } => format!("{name} record={}", render::data(Some(record))),
        }
    }
}

fn put_acl(out: &mut Writer, acl: Option<&[Acl]>) {
    let Some(acl) = acl else {
        out.i32(-1);
        return;
    };
    out.i32(i32::try_from(acl.len()).unwrap_or(i32::MAX));
    for rule in acl {
        out.i32(rule.permissions).string(&rule.scheme).string(&rule.id);
    }
}
