//! The endpoints of the admin port. One table ([`table`](super::table)) has the routes, the needs of each, the answers to other
//! methods, the description that programs read ([`openapi`](super::openapi)) and the page for people
//! (`docs/reference/admin-endpoints.md`).
//!
//! # Invariants
//! 1. A path is compared as a whole, and leads to a row of the table or is not found. Files and history of the console alone are routes beside
//!    it: ports without a bookie have them, too ([`console`](super::console)).
//! 2. HEAD is answered wherever GET is ([`port`](super::port) makes one of the other).
//! 3. What BookKeeper has and this does not is a row, too: it answers 501 and says what to use instead.

use super::AdminState;
use super::table::TABLE;
use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

/// A request for an endpoint.
pub(crate) struct Call {
    /// What the port knows.
    pub(crate) state: Arc<AdminState>,
    /// One of those that the endpoint has.
    pub(crate) method: Method,
    /// With the query.
    pub(crate) uri: Uri,
    /// Empty without one.
    pub(crate) body: Bytes,
    /// Who asks.
    pub(crate) peer: SocketAddr,
}

/// Answers a request.
pub(crate) type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Response> + Send>>;

/// The methods that endpoints have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Put,
    Delete,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }
}

/// The wait of a request before it is answered ([`port`](super::port), invariant 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing: it costs nothing, and tells nothing but health.
    Health,
    /// Its turn among the answers that are computed.
    Answer,
    /// What it asks others for: the metadata store has turns of its own.
    Elsewhere,
}

/// The answer of an operation that succeeds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// JSON, as in this example: a key in angle brackets stands for any number of members, null for anything.
    Json(&'static str),
    /// Text, as in this example.
    Text(&'static str),
    /// 501, and this to use instead.
    Instead(&'static str),
}

/// What may stand behind the question mark.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) says: &'static str,
    /// A value that it may have.
    pub(crate) example: &'static str,
    pub(crate) is_required: bool,
}

/// A method at a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) verb: Verb,
    pub(crate) says: &'static str,
    pub(crate) parameters: &'static [Parameter],
    /// A body, as an example.
    pub(crate) body: Option<&'static str>,
    pub(crate) answer: Answer,
    /// Statuses besides 200, and when: beside those that any request may meet.
    pub(crate) refusals: &'static [(u16, &'static str)],
    /// It shows what users stored.
    pub(crate) is_private: bool,
}

impl Operation {
    pub(super) const fn get(says: &'static str, answer: Answer) -> Operation {
        Operation::new(Verb::Get, says, answer)
    }

    pub(super) const fn put(says: &'static str, answer: Answer) -> Operation {
        Operation::new(Verb::Put, says, answer)
    }

    pub(super) const fn delete(says: &'static str, answer: Answer) -> Operation {
        Operation::new(Verb::Delete, says, answer)
    }

    const fn new(verb: Verb, says: &'static str, answer: Answer) -> Operation {
        Operation { verb, says, parameters: &[], body: None, answer, refusals: &[], is_private: false }
    }

    pub(super) const fn with(self, parameters: &'static [Parameter]) -> Operation {
        Operation { parameters, ..self }
    }

    pub(super) const fn taking(self, body: &'static str) -> Operation {
        Operation { body: Some(body), ..self }
    }

    pub(super) const fn refusing(self, refusals: &'static [(u16, &'static str)]) -> Operation {
        Operation { refusals, ..self }
    }

    pub(super) const fn private(self) -> Operation {
        Operation { is_private: true, ..self }
    }

    /// Whether a client needs the right to make changes.
    pub(crate) fn needs_rights(&self) -> bool {
        self.is_private || self.verb != Verb::Get
    }
}

/// A row of the table.
pub(crate) struct Endpoint {
    pub(crate) path: &'static str,
    /// BookKeeper 4.18 has it.
    pub(crate) is_javas: bool,
    pub(crate) operations: &'static [Operation],
    /// The answer to other methods.
    pub(crate) otherwise: (u16, &'static str),
    pub(crate) turn: Turn,
    pub(crate) handler: Handler,
}

/// The endpoint of a path.
pub(crate) fn find(path: &str) -> Option<&'static Endpoint> {
    TABLE.iter().find(|endpoint| endpoint.path == path)
}

/// Whether it tells health alone, and so is answered to anybody by whatever name.
pub(super) fn is_health(path: &str) -> bool {
    find(path).is_some_and(|endpoint| endpoint.turn == Turn::Health)
}

/// Whether it shows what users stored.
pub(super) fn is_private(path: &str) -> bool {
    find(path).is_some_and(|endpoint| endpoint.operations.iter().any(|operation| operation.is_private))
}

/// Whether a look waits elsewhere, and not among the answers that are computed here.
pub(super) fn waits_elsewhere(path: &str) -> bool {
    find(path).is_some_and(|endpoint| endpoint.turn == Turn::Elsewhere)
}

/// Answers a request of a port that serves these endpoints.
pub(super) async fn dispatch(call: Call, is_served: fn(&Endpoint) -> bool) -> Response {
    let Some(endpoint) = find(call.uri.path()).filter(|endpoint| is_served(endpoint)) else {
        return (
            StatusCode::NOT_FOUND,
            "there is no such path: GET /api/v1/openapi.json lists those there are\n",
        )
            .into_response();
    };
    let operation =
        endpoint.operations.iter().find(|operation| operation.verb.name() == call.method.as_str());
    match operation.map(|operation| operation.answer) {
        None => {
            let (status, why) = endpoint.otherwise;
            (StatusCode::from_u16(status).unwrap_or(StatusCode::NOT_FOUND), why).into_response()
        }
        Some(Answer::Instead(what)) => (StatusCode::NOT_IMPLEMENTED, format!("{what}\n")).into_response(),
        Some(Answer::Json(_) | Answer::Text(_)) => (endpoint.handler)(call).await,
    }
}
