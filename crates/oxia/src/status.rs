//! Errors of calls: reasons that clients tell apart, in the details of a gRPC status.

use prost::Message;
use std::collections::BTreeMap;
use tonic::{Code, Status};

/// Whose reasons they are.
const DOMAIN: &str = "oxia.io";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// Why a call failed, as Oxia's servers name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Another try may succeed.
    Aborted,
    /// The timeout of a session is below two seconds or above five minutes.
    InvalidSessionTimeout,
    /// The session has ended, or never was.
    SessionNotFound,
    /// There is no such namespace.
    NamespaceNotFound,
    /// There is no such shard.
    ShardNotFound,
    /// The namespace has no notifications.
    NotificationsNotEnabled,
    /// Another server leads the shard. Another try, after new assignments, may succeed.
    NodeIsNotLeader,
    /// The server is no member of the shard's group. Another try, after new assignments, may succeed.
    NodeIsNotMember,
    /// The server has no assignments yet. Another try may succeed.
    NotInitialized,
    /// The server is stopping, or cannot serve. Another try may succeed.
    ResourceUnavailable,
}

/// Each reason with its name, its code and its words.
const TABLE: [(Reason, &str, Code, &str); 10] = [
    (Reason::Aborted, "ABORTED", Code::Aborted, "oxia: operation was aborted"),
    (
        Reason::InvalidSessionTimeout,
        "INVALID_SESSION_TIMEOUT",
        Code::InvalidArgument,
        "oxia: invalid session timeout",
    ),
    (Reason::SessionNotFound, "SESSION_NOT_FOUND", Code::NotFound, "oxia: session not found"),
    (Reason::NamespaceNotFound, "NAMESPACE_NOT_FOUND", Code::NotFound, "oxia: namespace not found"),
    (Reason::ShardNotFound, "SHARD_NOT_FOUND", Code::NotFound, "oxia: shard not found"),
    (
        Reason::NotificationsNotEnabled,
        "NOTIFICATIONS_NOT_ENABLED",
        Code::FailedPrecondition,
        "oxia: notifications not enabled on namespace",
    ),
    (Reason::NodeIsNotLeader, "NODE_IS_NOT_LEADER", Code::Aborted, "oxia: node is not leader"),
    (Reason::NodeIsNotMember, "NODE_IS_NOT_MEMBER", Code::Aborted, "oxia: node is not a member"),
    (Reason::NotInitialized, "NOT_INITIALIZED", Code::Unavailable, "oxia: server not initialized yet"),
    (Reason::ResourceUnavailable, "RESOURCE_UNAVAILABLE", Code::Unavailable, "oxia: resource unavailable"),
];

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

impl Reason {
    /// The status of a call that fails for this reason. `about` comes before the usual words, unless it is empty.
    pub fn status(self, about: &str) -> Status {
        let (_, name, code, words) = self.row();
        let message = if about.is_empty() { words.to_owned() } else { format!("{about}: {words}") };
        let info =
            ErrorInfo { reason: name.to_owned(), domain: DOMAIN.to_owned(), metadata: BTreeMap::new() };
        let detail = Any { type_url: ERROR_INFO.to_owned(), value: info.encode_to_vec() };
        let status = RpcStatus { code: code.into(), message: message.clone(), details: vec![detail] };
        Status::with_details(code, message, status.encode_to_vec().into())
    }

    /// The reason of a failed call, when its server gave one that is known.
    pub fn of(status: &Status) -> Option<Reason> {
        let details = RpcStatus::decode(status.details()).ok()?.details;
        let infos = details.iter().filter(|detail| detail.type_url == ERROR_INFO);
        let mut infos = infos.filter_map(|detail| ErrorInfo::decode(&*detail.value).ok());
        let info = infos.find(|info| info.domain == DOMAIN)?;
        TABLE.iter().find(|(_, name, ..)| *name == info.reason).map(|(reason, ..)| *reason)
    }

    /// True when the same call may succeed later, or on another server.
    pub fn is_transient(self) -> bool {
        match self {
            Reason::Aborted
            | Reason::NodeIsNotLeader
            | Reason::NodeIsNotMember
            | Reason::NotInitialized
            | Reason::ResourceUnavailable => true,
            Reason::InvalidSessionTimeout
            | Reason::SessionNotFound
            | Reason::NamespaceNotFound
            | Reason::ShardNotFound
            | Reason::NotificationsNotEnabled => false,
        }
    }

    fn row(self) -> (Reason, &'static str, Code, &'static str) {
        *TABLE.iter().find(|(reason, ..)| *reason == self).expect("the table has every reason")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_survives_its_status() {
        for (reason, _, code, words) in TABLE {
            let status = reason.status("");
            assert_eq!((Reason::of(&status), status.code(), status.message()), (Some(reason), code, words));
        }
        assert_eq!(
            Reason::InvalidSessionTimeout.status("timeoutMs=1").message(),
            "timeoutMs=1: oxia: invalid session timeout"
        );
        assert_eq!(Reason::of(&Status::aborted("oxia: operation was aborted")), None);
        assert_eq!(Reason::of(&Status::with_details(Code::Aborted, "", vec![0xff].into())), None);
    }

    /// `google.rpc.Status` with an `ErrorInfo`, field by field.
    #[test]
    fn the_bytes_are_those_of_googles_messages() {
        let details = Reason::Aborted.status("").details().to_vec();
        let info = [&b"\x0a\x07ABORTED"[..], b"\x12\x07oxia.io"].concat();
        let any = [&b"\x0a\x28"[..], ERROR_INFO.as_bytes(), &[0x12, info.len() as u8], &info].concat();
        let expected =
            [&b"\x08\x0a\x12\x1boxia: operation was aborted\x1a"[..], &[any.len() as u8], &any].concat();
        assert_eq!(details, expected);
    }
}
