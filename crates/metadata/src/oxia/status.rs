//! What the failure of a call means.
//!
//! Oxia's servers name the reason in the details of a status (`google.rpc.ErrorInfo`, domain `oxia.io`); those before 0.16 in the message
//! alone, with codes that gRPC does not know.

use std::collections::HashMap;
use std::error::Error;

use prost::Message;
use tonic::{Code, ConnectError, Status};

/// What the failure of a call means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection was made: nothing was sent.
    NotSent(String),
    /// The server does not lead the shard, or not yet, or no longer: nothing was applied, and another server, or a later attempt, may do.
    NotHere(String),
    /// The session is gone.
    NoSession,
    /// There is no such namespace: nothing was applied.
    NoNamespace,
    /// The server refuses the request for good: nothing was applied.
    Refused(String),
    /// It does not speak this protocol.
    NotOxia(String),
    /// Nobody knows whether it was applied.
    Unknown(String),
}

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const DOMAIN: &str = "oxia.io";

/// Reasons, and the words of the messages that older servers send.
const REASONS: [(&str, &str); 9] = [
    ("SESSION_NOT_FOUND", "session not found"),
    ("NAMESPACE_NOT_FOUND", "namespace not found"),
    ("SHARD_NOT_FOUND", "shard not found"),
    ("NODE_IS_NOT_LEADER", "node is not leader"),
    ("NODE_IS_NOT_MEMBER", "node is not a member"),
    ("NOT_INITIALIZED", "not initialized"),
    // A leader that ceases to be one says these also of writes that it began.
    ("RESOURCE_UNAVAILABLE", "resource unavailable"),
    ("INVALID_STATUS", "invalid status"),
    ("INVALID_TERM", "invalid term"),
];

/// The server's reason, if it gave one that counts here.
fn reason(status: &Status) -> Option<&'static str> {
    let details = RpcStatus::decode(status.details()).map(|decoded| decoded.details).unwrap_or_default();
    let info = details
        .iter()
        .filter(|detail| detail.type_url == ERROR_INFO)
        .filter_map(|detail| ErrorInfo::decode(&detail.value[..]).ok())
        .find(|info| info.domain == DOMAIN);
    let is_given = |(reason, words): &&(&str, &str)| match &info {
        Some(info) => info.reason == *reason,
        None => status.message().contains(words),
    };
    REASONS.iter().find(is_given).map(|(reason, _)| *reason)
}

/// Whether no connection could be made.
fn is_unconnected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The innermost cause, which says most.
fn cause(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    if text.is_empty() { status.code().description().to_owned() } else { text }
}

pub(super) fn failure_of(status: &Status) -> Failure {
    if is_unconnected(status) {
        return Failure::NotSent(cause(status));
    }
    // A status of a server has no source: otherwise it is the connection that failed.
    if status.source().is_some() {
        return Failure::Unknown(cause(status));
    }
    let said = || status.message().chars().take(200).collect::<String>();
    match (reason(status), status.code()) {
        (Some("SESSION_NOT_FOUND"), _) => Failure::NoSession,
        (Some("NAMESPACE_NOT_FOUND"), _) => Failure::NoNamespace,
        (Some("RESOURCE_UNAVAILABLE" | "INVALID_STATUS" | "INVALID_TERM"), _) => Failure::Unknown(said()),
        (Some(_), _) => Failure::NotHere(said()),
        (None, Code::Unimplemented) => Failure::NotOxia(said()),
        (None, Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::OutOfRange) => {
            Failure::Refused(said())
        }
        (None, Code::PermissionDenied | Code::Unauthenticated | Code::ResourceExhausted) => {
            Failure::Refused(said())
        }
        (None, _) => Failure::Unknown(said()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detailed(code: Code, message: &str, reason: &str, domain: &str) -> Status {
        let info = ErrorInfo { reason: reason.into(), domain: domain.into(), metadata: HashMap::new() };
        let detail = Any { type_url: ERROR_INFO.into(), value: info.encode_to_vec() };
        let details = RpcStatus { details: vec![detail] }.encode_to_vec();
        Status::with_details(code, message, details.into())
    }

    #[test]
    fn the_reason_counts_and_without_one_the_words() {
        let of = |code, message: &str, reason: &str| failure_of(&detailed(code, message, reason, DOMAIN));
        assert_eq!(of(Code::NotFound, "x", "SESSION_NOT_FOUND"), Failure::NoSession);
        assert_eq!(of(Code::NotFound, "x", "NAMESPACE_NOT_FOUND"), Failure::NoNamespace);
        assert_eq!(of(Code::NotFound, "gone", "SHARD_NOT_FOUND"), Failure::NotHere("gone".into()));
        assert_eq!(of(Code::Aborted, "n", "NODE_IS_NOT_LEADER"), Failure::NotHere("n".into()));
        assert_eq!(of(Code::Unavailable, "n", "NOT_INITIALIZED"), Failure::NotHere("n".into()));
        // It may have been applied.
        assert_eq!(of(Code::FailedPrecondition, "n", "INVALID_STATUS"), Failure::Unknown("n".into()));
        assert_eq!(
            of(Code::Aborted, "session not found", "ABORTED"),
            Failure::Unknown("session not found".into())
        );
        let old = |message: &str| failure_of(&Status::new(Code::Unknown, message));
        assert_eq!(old("oxia: session not found"), Failure::NoSession);
        assert_eq!(
            old("oxia: node is not leader for shard 3"),
            Failure::NotHere("oxia: node is not leader for shard 3".into())
        );
        assert_eq!(old("disk"), Failure::Unknown("disk".into()));
        let foreign = detailed(Code::NotFound, "x", "SESSION_NOT_FOUND", "example.com");
        assert_eq!(failure_of(&foreign), Failure::Refused("x".into()));
        let garbage = Status::with_details(Code::NotFound, "x", vec![0xff; 9].into());
        assert_eq!(failure_of(&garbage), Failure::Refused("x".into()));
        assert_eq!(failure_of(&Status::unimplemented("x")), Failure::NotOxia("x".into()));
    }

    #[test]
    fn a_connection_that_was_not_made_sent_nothing() {
        let refused = ConnectError(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        assert!(matches!(failure_of(&Status::from_error(Box::new(refused))), Failure::NotSent(_)));
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(matches!(failure_of(&Status::from_error(Box::new(broken))), Failure::Unknown(_)));
    }
}
