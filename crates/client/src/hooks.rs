//! What is between a client and the bookies: another stream than TCP, TLS, authentication. TLS and the usual ways of
//! authentication are built in ([`crate::tls`], [`crate::credentials`]); an application may bring its own.
//!
//! # Data flow
//! ```text
//! Connector::connect --> [START_TLS --> Connector::upgrade] --> [AUTH, until Exchange says Done] --> requests
//! ```
//!
//! # Invariants
//! 1. Nothing but START_TLS and AUTH is sent before both are through, on any connection (protocol reference, section 2.5).
//! 2. All of it ends with the connect timeout, and authentication after [`AUTH_ROUNDS_MAX`] messages, as long as
//!    [`Exchange::next`] does not block, as it must not.
//! 3. A failure of a hook is a connection that could not be made: nothing was sent, requests fail as unreachable, and the
//!    next attempt waits for the pause like any other.

use std::future::Future;
use std::io;
use std::pin::Pin;

use bindery_metadata::fault::connect_tcp as connect_tcp_to;
use bindery_types::BookieId;
use tokio::net::TcpStream;

pub use crate::stream::{BoxedStream, ByteStream, Stream};

/// How many messages of authentication a connection sends, at most.
pub const AUTH_ROUNDS_MAX: u32 = 32;

/// Where a connection goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookieAddress {
    /// Whose it is.
    pub bookie: BookieId,
    /// Name or IP address that the certificate must be for.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// A stream that is being made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<ByteStream>> + Send + 'a>>;

/// How connections to bookies are made: by TCP, unless a method says otherwise.
///
/// For TLS of another library than the client's own ([`ClientBuilder::tls`](crate::ClientBuilder::tls)), `starts_tls` is true and
/// `upgrade` is the handshake. The bookies have `tlsProviderFactoryClass` set.
pub trait Connector: Send + Sync + 'static {
    /// Makes a connection. Errors and delays are those of an unreachable bookie. May be dropped at any point.
    fn connect<'a>(&'a self, to: &'a BookieAddress) -> Connecting<'a> {
        Box::pin(async move { connect_tcp(to).await.map(ByteStream::Tcp) })
    }

    /// Whether to ask the bookie for TLS (START_TLS, which v2 connections send as well) before anything else.
    fn starts_tls(&self) -> bool {
        false
    }

    /// Begins TLS on a stream whose bookie agreed to START_TLS.
    fn upgrade<'a>(&'a self, stream: ByteStream, to: &'a BookieAddress) -> Connecting<'a> {
        let _ = to;
        Box::pin(async move { Ok(stream) })
    }
}

pub(crate) async fn connect_tcp(to: &BookieAddress) -> io::Result<TcpStream> {
    connect_tcp_to((to.host.as_str(), to.port)).await.map_err(io::Error::other)
}

/// Proves to bookies who this client is: the other side of a bookie's `bookieAuthProviderFactoryClass`. A bookie without a
/// provider lets anybody in, and its answer ends the exchange.
pub trait Authenticator: Send + Sync + 'static {
    /// The name of the plugin, which must be the bookie's (`AuthMessage.authPluginName`).
    fn plugin_name(&self) -> &str;

    /// Whether its messages may be sent only over TLS, because they tell a secret. Without TLS nothing is sent then, and the
    /// connection fails.
    fn needs_tls(&self) -> bool {
        false
    }

    /// Authentication of one new connection.
    fn begin(&self, to: &BookieAddress) -> Box<dyn Exchange>;
}

/// The messages of one connection's authentication.
pub trait Exchange: Send {
    /// What to do after a message of the bookie, or at the beginning, when there is none. It must not block.
    ///
    /// # Errors
    /// Why the bookie cannot be authenticated to, or is not who it should be: the connection is closed.
    fn next(&mut self, received: Option<&[u8]>) -> Result<Turn, String>;
}

/// What an [`Exchange`] does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Sends this, and waits for an answer.
    Send(Vec<u8>),
    /// Sends this and ends the exchange: the bookie's answer to it does not matter.
    SendLast(Vec<u8>),
    /// Authenticated.
    Done,
}
