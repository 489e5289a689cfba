//! What the failure of a call means.
//!
//! Oxia's servers name the reason in the details of a status (`google.rpc.ErrorInfo`, domain `oxia.io`); those before 0.16 in the message
//! alone, with codes that gRPC does not know.

use std::error::Error;

use bindery_oxia::status::Reason;
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
    /// The server has no room for the request: nothing was applied.
    Full(String),
    /// The server refuses the request for good: nothing was applied.
    Refused(String),
    /// It does not speak this protocol.
    NotOxia(String),
    /// Nobody knows whether it was applied.
    Unknown(String),
}

/// The words by which servers name a reason that give none in the details.
const WORDS: [(&str, Reason); 9] = [
    ("session not found", Reason::SessionNotFound),
    ("namespace not found", Reason::NamespaceNotFound),
    ("shard not found", Reason::ShardNotFound),
    ("node is not leader", Reason::NodeIsNotLeader),
    ("node is not a member", Reason::NodeIsNotMember),
    ("not initialized", Reason::NotInitialized),
    ("resource unavailable", Reason::ResourceUnavailable),
    // Of a server that ceases to lead a shard, in whatever state the request is.
    ("invalid status", Reason::ResourceUnavailable),
    ("invalid term", Reason::ResourceUnavailable),
];

/// The server's reason, if it gave one.
fn reason(status: &Status) -> Option<Reason> {
    let of_words =
        || WORDS.iter().find(|(words, _)| status.message().contains(words)).map(|(_, reason)| *reason);
    Reason::of(status).or_else(of_words)
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
    match reason(status) {
        Some(Reason::SessionNotFound) => Failure::NoSession,
        Some(Reason::NamespaceNotFound) => Failure::NoNamespace,
        Some(
            Reason::ShardNotFound
            | Reason::NodeIsNotLeader
            | Reason::NodeIsNotMember
            | Reason::NotInitialized,
        ) => Failure::NotHere(said()),
        Some(Reason::InvalidSessionTimeout | Reason::NotificationsNotEnabled) => Failure::Refused(said()),
        // A leader that ceases to be one says these also of writes that it began.
        Some(Reason::ResourceUnavailable | Reason::Aborted) => Failure::Unknown(said()),
        None => match status.code() {
            Code::Unimplemented => Failure::NotOxia(said()),
            Code::InvalidArgument
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::Unauthenticated => Failure::Refused(said()),
            Code::ResourceExhausted => Failure::Full(said()),
            _ => Failure::Unknown(said()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_counts_and_without_one_the_words() {
        let of = |reason: Reason| failure_of(&reason.status(""));
        assert_eq!(of(Reason::SessionNotFound), Failure::NoSession);
        assert_eq!(of(Reason::NamespaceNotFound), Failure::NoNamespace);
        for refused in [Reason::ShardNotFound, Reason::NodeIsNotLeader, Reason::NotInitialized] {
            assert!(matches!(of(refused), Failure::NotHere(_)), "{refused:?}");
        }
        for begun in [Reason::Aborted, Reason::ResourceUnavailable] {
            assert!(matches!(of(begun), Failure::Unknown(_)), "{begun:?} may have been applied");
        }
        assert!(matches!(of(Reason::NotificationsNotEnabled), Failure::Refused(_)));
        let both = failure_of(&Reason::NotInitialized.status("session not found"));
        assert!(matches!(both, Failure::NotHere(_)), "details count before words: {both:?}");
        let old = |message: &str| failure_of(&Status::new(Code::Unknown, message));
        assert_eq!(old("oxia: session not found"), Failure::NoSession);
        assert_eq!(
            old("oxia: node is not leader for shard 3"),
            Failure::NotHere("oxia: node is not leader for shard 3".into())
        );
        assert_eq!(old("oxia: invalid status"), Failure::Unknown("oxia: invalid status".into()));
        assert_eq!(old("disk"), Failure::Unknown("disk".into()));
        assert_eq!(failure_of(&Status::not_found("x")), Failure::Refused("x".into()));
        assert_eq!(failure_of(&Status::unimplemented("x")), Failure::NotOxia("x".into()));
        assert_eq!(failure_of(&Status::resource_exhausted("x")), Failure::Full("x".into()));
    }

    #[test]
    fn a_connection_that_was_not_made_sent_nothing() {
        let refused = ConnectError(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        assert!(matches!(failure_of(&Status::from_error(Box::new(refused))), Failure::NotSent(_)));
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(matches!(failure_of(&Status::from_error(Box::new(broken))), Failure::Unknown(_)));
    }
}
