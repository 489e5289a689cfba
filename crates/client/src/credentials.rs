//! The user that a client proves to be: SASL as bookies speak it (protocol reference, section 2.5).
//!
//! # Data flow
//! ```text
//! Credentials ─► Authenticator::begin, once for each connection ─► Exchange ─► AUTH messages of the plugin
//! ```
//!
//! | mechanism | plugin | bookies |
//! |---|---|---|
//! | [`Mechanism::DigestMd5`] | `sasl` | Java's and ours with `SASLBookieAuthProviderFactory` |
//! | [`Mechanism::Plain`] | `sasl-plain` | ours |
//!
//! # Invariants
//! 1. The secret appears in no error, log line or output of `Debug`.
//! 2. PLAIN, whose message is the secret, is sent over TLS only.
//! 3. With DIGEST-MD5 a bookie that sends a challenge must prove that it knows the secret, too, before the connection is used. One
//!    whose first answer says that it authenticates nobody is taken as it is: only TLS tells whether it is the right one.
//!
//! # Not here   the mechanisms (`bindery_sasl`); GSSAPI

use bindery_io::{Random, SystemRandom};
use bindery_sasl::digest_md5::{self, BOOKKEEPER_HOST, BOOKKEEPER_SERVICE, Nonce, Step};
use bindery_sasl::plain;

pub use bindery_sasl::Secret;

use crate::hooks::{Authenticator, BookieAddress, Exchange, Turn};

/// `SaslConstants.PLUGIN_NAME` of BookKeeper.
const DIGEST_MD5_PLUGIN: &str = "sasl";
/// Ours: BookKeeper has no PLAIN.
const PLAIN_PLUGIN: &str = "sasl-plain";

/// How a user proves itself to bookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// SASL DIGEST-MD5 (RFC 2831), as BookKeeper's `SASLClientProviderFactory` has it: the secret is not sent. Only use it inside
    /// TLS where others can listen, because they could try out secrets.
    DigestMd5,
    /// SASL PLAIN (RFC 4616): the secret is sent, so it needs TLS. Bookies can keep hashes of secrets that are hard to try out.
    Plain,
}

/// A user of the bookies. `Debug` hides the secret.
#[derive(Debug, Clone)]
pub struct Credentials {
    known: bindery_sasl::Credentials,
    mechanism: Mechanism,
}

impl Credentials {
    /// A user that proves itself with DIGEST-MD5.
    pub fn digest_md5(user: impl Into<String>, secret: Secret) -> Credentials {
        Credentials::new(user, secret, Mechanism::DigestMd5)
    }

    /// A user that proves itself with PLAIN, inside TLS.
    pub fn plain(user: impl Into<String>, secret: Secret) -> Credentials {
        Credentials::new(user, secret, Mechanism::Plain)
    }

    /// A user that proves itself in this way.
    pub fn new(user: impl Into<String>, secret: Secret, mechanism: Mechanism) -> Credentials {
        Credentials { known: bindery_sasl::Credentials::new(user, secret), mechanism }
    }
}

impl Authenticator for Credentials {
    fn plugin_name(&self) -> &str {
        match self.mechanism {
            Mechanism::DigestMd5 => DIGEST_MD5_PLUGIN,
            Mechanism::Plain => PLAIN_PLUGIN,
        }
    }

    fn needs_tls(&self) -> bool {
        self.mechanism == Mechanism::Plain
    }

    fn begin(&self, _: &BookieAddress) -> Box<dyn Exchange> {
        match self.mechanism {
            Mechanism::DigestMd5 => {
                let nonce = Nonce::draw(|| SystemRandom.next_u64());
                let known = self.known.clone();
                Box::new(Digesting(digest_md5::Client::new(
                    known,
                    BOOKKEEPER_SERVICE,
                    BOOKKEEPER_HOST,
                    nonce,
                )))
            }
            Mechanism::Plain => Box::new(Telling(plain::encode(&self.known))),
        }
    }
}

/// An exchange of DIGEST-MD5.
struct Digesting(digest_md5::Client);

impl Exchange for Digesting {
    fn next(&mut self, received: Option<&[u8]>) -> Result<Turn, String> {
        // It has no initial response, and AUTH begins with a message of the client.
        let Some(received) = received else { return Ok(Turn::Send(Vec::new())) };
        match self.0.step(received) {
            Ok(Step::Reply(reply)) => Ok(Turn::Send(reply)),
            // The bookie is done, too. Java's client sends another message, empty, to which nothing depends on.
            Ok(Step::Done) => Ok(Turn::Done),
            Err(error) => Err(format!("this client refuses the bookie: {error}")),
        }
    }
}

/// An exchange of PLAIN: its only message, until it is sent.
struct Telling(Vec<u8>);

impl Exchange for Telling {
    fn next(&mut self, received: Option<&[u8]>) -> Result<Turn, String> {
        match received {
            None => Ok(Turn::Send(std::mem::take(&mut self.0))),
            // A bookie that refuses closes the connection or says so in its status.
            Some(_) => Ok(Turn::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_sasl::digest_md5::{Ha1, Server, ServerStep};
    use bindery_types::BookieId;

    fn begin(credentials: &Credentials) -> Box<dyn Exchange> {
        let bookie = BookieId::new("b").unwrap();
        credentials.begin(&BookieAddress { bookie, host: "b".into(), port: 1 })
    }

    fn sent(turn: Result<Turn, String>) -> Vec<u8> {
        match turn.unwrap() {
            Turn::Send(message) => message,
            other => panic!("{other:?}"),
        }
    }

    /// Invariant 3.
    #[test]
    fn digest_md5_ends_when_both_sides_know_the_secret() {
        let credentials = Credentials::digest_md5("hd", Secret::new("tiger"));
        for (known, is_right) in [("tiger", true), ("lion", false)] {
            let nonce = Nonce::draw(|| 7);
            let mut server = Server::new(BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, BOOKKEEPER_HOST, nonce);
            let lookup = |user: &str| {
                assert_eq!(user, "hd");
                Some(Ha1::new(user, BOOKKEEPER_HOST, &Secret::new(known)))
            };
            let mut exchange = begin(&credentials);
            let first = sent(exchange.next(None));
            assert!(first.is_empty(), "as Java's client begins");
            let Ok(ServerStep::Challenge(challenge)) = server.step(&first, lookup) else { panic!() };
            let response = sent(exchange.next(Some(&challenge)));
            match server.step(&response, lookup) {
                Ok(ServerStep::Accepted(accepted)) if is_right => {
                    assert_eq!(exchange.next(Some(&accepted.reply)), Ok(Turn::Done));
                }
                Err(_) if !is_right => {
                    // A server that accepts anybody cannot prove that it knows the secret.
                    let proof = [&b"rspauth="[..], &[b'0'; 32]].concat();
                    let refusal = exchange.next(Some(&proof)).unwrap_err();
                    assert!(refusal.contains("this client refuses the bookie"), "{refusal}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn plain_is_one_message_which_needs_tls() {
        let credentials = Credentials::plain("hd", Secret::new("tiger"));
        assert!(credentials.needs_tls() && !Credentials::digest_md5("hd", Secret::new("tiger")).needs_tls());
        let mut exchange = begin(&credentials);
        assert_eq!(sent(exchange.next(None)), b"\0hd\0tiger");
        assert_eq!(exchange.next(Some(b"")), Ok(Turn::Done));
    }

    /// Invariant 1.
    #[test]
    fn the_secret_is_not_shown() {
        let shown = format!("{:?}", Credentials::plain("hd", Secret::new("tiger")));
        assert!(shown.contains("hd") && !shown.contains("tiger"), "{shown}");
    }
}
