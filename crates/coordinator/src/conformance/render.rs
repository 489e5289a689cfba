//! Replies as text: what a server chooses freely becomes a symbol, everything else stays exact.
//!
//! - zxids of nodes and of successful writes: marked here, numbered `Z1`, `Z2`, .. in ascending order at the end of a
//!   script, so that equal, smaller and greater survive;
//! - session ids: `S1`, `S2`, .. as they are granted;
//! - times: `mtime` against `ctime`. Scripts let a few milliseconds pass before they set data;
//! - lists whose order the protocol leaves open: sorted.

use super::jute::{Reader, Short};
use super::request::{Acl, Request, op};

/// Values seen in one script.
#[derive(Default)]
pub(super) struct Symbols {
    zxids: std::collections::BTreeSet<i64>,
    sessions: Vec<i64>,
    /// The zxid of the latest successful write or of the newest node seen.
    newest: i64,
}

const MARK_BEGIN: char = '\u{2}';
const MARK_END: char = '\u{3}';

impl Symbols {
    /// A zxid of a node or of a successful write.
    pub(super) fn zxid(&mut self, zxid: i64) -> String {
        if zxid == 0 {
            return "0".into();
        }
        self.zxids.insert(zxid);
        self.newest = self.newest.max(zxid);
        format!("{MARK_BEGIN}{zxid}{MARK_END}")
    }

    /// The zxid of a read or of a failed write: only that it never goes back matters.
    fn read_zxid(&mut self, zxid: i64) -> &'static str {
        if zxid >= self.newest { "now" } else { "IN THE PAST" }
    }

    pub(super) fn session(&mut self, id: i64) -> String {
        if id == 0 {
            return "0".into();
        }
        let index = self.sessions.iter().position(|known| *known == id).unwrap_or_else(|| {
            self.sessions.push(id);
            self.sessions.len() - 1
        });
        format!("S{}", index + 1)
    }

    /// The symbol of a session that was granted before.
    pub(super) fn known_session(&self, id: i64) -> Option<String> {
        let index = self.sessions.iter().position(|known| *known == id);
        if id == 0 { Some("0".into()) } else { index.map(|index| format!("S{}", index + 1)) }
    }

    fn owner(&mut self, owner: i64) -> String {
        match owner.cast_unsigned() >> 56 {
            0x80 if owner == i64::MIN => "container".into(),
            0xff => format!("ttl({})", owner & 0xff_ffff_ffff),
            _ => self.session(owner),
        }
    }

    /// Replaces the marks by their symbols.
    pub(super) fn resolve(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, marked)) = rest.split_once(MARK_BEGIN) {
            let (number, after) = marked.split_once(MARK_END).unwrap_or((marked, ""));
            let rank = number.parse::<i64>().map_or(0, |zxid| self.zxids.range(..=zxid).count());
            out.push_str(before);
            out.push_str(&format!("Z{rank}"));
            rest = after;
        }
        out + rest
    }
}

const UNIMPLEMENTED: i32 = -6;

pub(super) fn opcode(code: i32) -> String {
    let name = match code {
        op::CREATE => "create",
        op::DELETE => "delete",
        op::EXISTS => "exists",
        op::GET_DATA => "getData",
        op::SET_DATA => "setData",
        op::GET_ACL => "getACL",
        op::SET_ACL => "setACL",
        op::GET_CHILDREN => "getChildren",
        op::SYNC => "sync",
        op::PING => "ping",
        op::GET_CHILDREN2 => "getChildren2",
        op::CHECK => "check",
        op::MULTI => "multi",
        op::CREATE2 => "create2",
        op::RECONFIG => "reconfig",
        op::CHECK_WATCHES => "checkWatches",
        op::REMOVE_WATCHES => "removeWatches",
        op::CREATE_CONTAINER => "createContainer",
        op::CREATE_TTL => "createTTL",
        op::MULTI_READ => "multiRead",
        op::AUTH => "auth",
        op::SET_WATCHES => "setWatches",
        op::SASL => "sasl",
        op::GET_EPHEMERALS => "getEphemerals",
        op::GET_ALL_CHILDREN_NUMBER => "getAllChildrenNumber",
        op::SET_WATCHES2 => "setWatches2",
        op::ADD_WATCH => "addWatch",
        op::WHO_AM_I => "whoAmI",
        op::CLOSE_SESSION => "closeSession",
        other => return format!("opcode({other})"),
    };
    name.into()
}

pub(super) fn error(code: i32) -> String {
    let name = match code {
        0 => "ok",
        -1 => "SystemError",
        -2 => "RuntimeInconsistency",
        -3 => "DataInconsistency",
        -4 => "ConnectionLoss",
        -5 => "MarshallingError",
        -6 => "Unimplemented",
        -7 => "OperationTimeout",
        -8 => "BadArguments",
        -12 => "UnknownSession",
        -13 => "NewConfigNoQuorum",
        -14 => "ReconfigInProgress",
        -100 => "APIError",
        -101 => "NoNode",
        -102 => "NoAuth",
        -103 => "BadVersion",
        -108 => "NoChildrenForEphemerals",
        -110 => "NodeExists",
        -111 => "NotEmpty",
        -112 => "SessionExpired",
        -113 => "InvalidCallback",
        -114 => "InvalidACL",
        -115 => "AuthFailed",
        -118 => "SessionMoved",
        -119 => "NotReadOnly",
        -120 => "EphemeralOnLocalSession",
        -121 => "NoWatcher",
        -122 => "RequestTimeout",
        -123 => "ReconfigDisabled",
        -124 => "SessionClosedRequireSaslAuth",
        -125 => "QuotaExceeded",
        -127 => "ThrottledOp",
        other => return format!("error({other})"),
    };
    name.into()
}

/// Up to 64 bytes as text, more by length and checksum.
pub(super) fn data(bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else { return "null".into() };
    if bytes.len() <= 64 {
        return format!("\"{}\"", bytes.escape_ascii());
    }
    let sum = bytes.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    format!("({} bytes, sum {sum:08x})", bytes.len())
}

/// A path, quoted if it is empty or has characters that would not show.
pub(super) fn path(path: &str) -> String {
    match path.chars().all(|c| c.is_ascii_graphic()) && !path.is_empty() {
        true => path.into(),
        false => format!("\"{}\"", path.escape_debug()),
    }
}

pub(super) fn acl(rules: &[Acl]) -> String {
    let mut rules: Vec<String> = rules
        .iter()
        .map(|rule| {
            let letters = ['r', 'w', 'c', 'd', 'a'];
            let mut permissions: String =
                (0..5).filter(|bit| rule.permissions >> bit & 1 == 1).map(|bit| letters[bit]).collect();
            if !(0..32).contains(&rule.permissions) || rule.permissions == 0 {
                permissions = rule.permissions.to_string();
            }
            format!("{permissions}:{}:{}", rule.scheme, rule.id)
        })
        .collect();
    rules.sort();
    format!("[{}]", rules.join(" "))
}

fn read_acl(input: &mut Reader<'_>) -> Result<String, Short> {
    let count = input.i32()?.max(0);
    let mut rules = Vec::new();
    for _ in 0..count {
        rules.push(Acl { permissions: input.i32()?, scheme: input.string()?, id: input.string()? });
    }
    Ok(acl(&rules))
}

fn list(mut names: Vec<String>) -> String {
    names.sort();
    let names: Vec<String> = names.iter().map(|name| path(name)).collect();
    format!("[{}]", names.join(" "))
}

/// A node's stat, all eleven fields.
pub(super) fn stat(input: &mut Reader<'_>, symbols: &mut Symbols) -> Result<String, Short> {
    let (czxid, mzxid) = (symbols.zxid(input.i64()?), symbols.zxid(input.i64()?));
    let (ctime, mtime) = (input.i64()?, input.i64()?);
    let (version, cversion, aversion) = (input.i32()?, input.i32()?, input.i32()?);
    let owner = symbols.owner(input.i64()?);
    let (data_length, children) = (input.i32()?, input.i32()?);
    let pzxid = symbols.zxid(input.i64()?);
    let relation = match mtime.cmp(&ctime) {
        std::cmp::Ordering::Less => "mtime<ctime",
        std::cmp::Ordering::Equal => "mtime=ctime",
        std::cmp::Ordering::Greater => "mtime>ctime",
    };
    // A time before 2020 cannot have come from a clock.
    let born = if ctime == 0 {
        " ctime=0"
    } else if ctime < 1_577_836_800_000 {
        " ctime=WRONG"
    } else {
        ""
    };
    Ok(format!(
        "{{czxid={czxid} mzxid={mzxid} pzxid={pzxid} {relation}{born} version={version} cversion={cversion} \
         aversion={aversion} owner={owner} dataLength={data_length} numChildren={children}}}"
    ))
}

/// Whether the reply to this request has a zxid of its own. A transaction that failed, or only checks, may have none.
fn is_write(request: &Request, record: &[u8]) -> bool {
    if let Request::Multi { steps, .. } = request {
        let failed = record.starts_with(&[0xff; 4]);
        return !failed
            && steps.iter().any(|step| step.opcode() != op::CHECK)
            && request.opcode() == op::MULTI;
    }
    matches!(
        request.opcode(),
        op::CREATE
            | op::CREATE2
            | op::CREATE_CONTAINER
            | op::CREATE_TTL
            | op::DELETE
            | op::SET_DATA
            | op::SET_ACL
    )
}

/// The body of a successful reply.
fn body(opcode: i32, input: &mut Reader<'_>, symbols: &mut Symbols) -> Result<String, Short> {
    Ok(match opcode {
        op::CREATE => format!(" path={}", path(&input.string()?)),
        op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => {
            format!(" path={} {}", path(&input.string()?), stat(input, symbols)?)
        }
        op::EXISTS | op::SET_DATA | op::SET_ACL => format!(" {}", stat(input, symbols)?),
        op::GET_DATA => format!(" {} {}", data(input.buffer()?), stat(input, symbols)?),
        op::GET_ACL => format!(" {} {}", read_acl(input)?, stat(input, symbols)?),
        op::GET_CHILDREN => format!(" {}", list(input.strings()?)),
        op::GET_CHILDREN2 => format!(" {} {}", list(input.strings()?), stat(input, symbols)?),
        op::SYNC => format!(" path={}", path(&input.string()?)),
        op::GET_EPHEMERALS => format!(" {}", list(input.strings()?)),
        op::GET_ALL_CHILDREN_NUMBER => format!(" {}", input.i32()?),
        op::SASL => format!(" token={}", data(input.buffer()?)),
        op::WHO_AM_I => {
            let count = input.i32()?.max(0);
            let mut ids = Vec::new();
            for _ in 0..count {
                ids.push(format!("{}:{}", input.string()?, input.string()?));
            }
            ids.sort();
            format!(" [{}]", ids.join(" "))
        }
        op::ADD_WATCH => format!(" err={}", input.i32()?),
        op::MULTI | op::MULTI_READ => multi(input, symbols)?,
        _ => String::new(),
    })
}

/// The results of a multi or multiRead, a line each. On the wire each has a header (opcode, end mark, error code), with opcode -1 for an
/// operation that failed; a header with the end mark ends them. Codes in headers are shown only where they are unusual.
fn multi(input: &mut Reader<'_>, symbols: &mut Symbols) -> Result<String, Short> {
    let mut text = String::new();
    loop {
        let (kind, done, code) = (input.i32()?, input.u8()?, input.i32()?);
        if done != 0 {
            let plain = kind == -1 && code == -1;
            return Ok(
                text + &if plain { String::new() } else { format!("\n     end type={kind} err={code}") }
            );
        }
        match kind {
            -1 => {
                let inner = input.i32()?;
                text += &format!("\n     - {}", error(inner));
                if inner != code {
                    text += &format!(" (header {code})");
                }
            }
            _ => {
                text += &format!("\n     - {}", opcode(kind));
                if code != 0 {
                    text += &format!(" (header {code})");
                }
                text += &body(kind, input, symbols)?;
            }
        }
    }
}

/// A whole reply to `request`, after its xid.
pub(super) fn reply(request: &Request, zxid: i64, code: i32, record: &[u8], symbols: &mut Symbols) -> String {
    let kind = request.opcode();
    let mut input = Reader(record);
    let zxid = if code == 0 && is_write(request, record) {
        format!(" zxid={}", symbols.zxid(zxid))
    } else if kind == op::AUTH || code == UNIMPLEMENTED {
        String::new() // answered before the ordered part of the server: its zxid means nothing
    } else {
        format!(" zxid={}", symbols.read_zxid(zxid))
    };
    let rest = match code {
        0 => body(kind, &mut input, symbols).unwrap_or_else(|Short| " TOO SHORT".into()),
        _ => String::new(),
    };
    let extra =
        if input.0.is_empty() { String::new() } else { format!(" EXTRA BYTES {}", data(Some(input.0))) };
    format!("{} {}{zxid}{rest}{extra}", opcode(kind), error(code))
}

/// A notification: event, path, and the zxid of the change (-1 when there is none).
pub(super) fn event(record: &[u8], zxid: i64, symbols: &mut Symbols) -> String {
    let mut input = Reader(record);
    let parsed = (|| Ok::<_, Short>((input.i32()?, input.i32()?, input.string()?)))();
    let Ok((kind, state, at)) = parsed else { return "TOO SHORT".into() };
    let kind = match kind {
        -1 => "None".into(),
        1 => "NodeCreated".into(),
        2 => "NodeDeleted".into(),
        3 => "NodeDataChanged".into(),
        4 => "NodeChildrenChanged".into(),
        5 => "DataWatchRemoved".into(),
        6 => "ChildWatchRemoved".into(),
        7 => "PersistentWatchRemoved".into(),
        other => format!("event({other})"),
    };
    let state = if state == 3 { String::new() } else { format!(" state={state}") };
    let zxid = if zxid > 0 { symbols.zxid(zxid) } else { zxid.to_string() };
    format!("{kind} {}{state} zxid={zxid}", path(&at))
}
