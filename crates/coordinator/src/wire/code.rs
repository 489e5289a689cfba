//! The error codes that this server sends.

/// What a reply's header, or a result inside a multi, says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Done.
    Ok = 0,
    /// An operation of a multi that comes after the one that failed.
    RuntimeInconsistency = -2,
    /// The record does not fit its opcode.
    Marshalling = -5,
    /// Not supported. After an opcode that means nothing the connection closes, too.
    Unimplemented = -6,
    /// An impossible path or flag.
    BadArguments = -8,
    /// There is no such node, or no such parent.
    NoNode = -101,
    /// The access rules forbid it.
    NoAuth = -102,
    /// The node has another version.
    BadVersion = -103,
    /// An ephemeral node has no children.
    NoChildrenForEphemerals = -108,
    /// There is such a node.
    NodeExists = -110,
    /// The node has children.
    NotEmpty = -111,
    /// The access rules given are invalid.
    InvalidAcl = -114,
    /// The credentials are refused; the connection closes.
    AuthFailed = -115,
    /// There is no such watch.
    NoWatcher = -121,
    /// The tree has reached its size limit.
    QuotaExceeded = -125,
}

impl Code {
    /// The number on the wire.
    pub(crate) fn number(self) -> i32 {
        self as i32
    }
}
