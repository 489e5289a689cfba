//! The side that is logged in to.

use super::directives::{Directives, put_quoted};
use super::{Error, Ha1, NONCE_COUNT, Nonce, Proofs, QOP, RESPONSE_BYTES_MAX, Side};
use bindery_types::are_equal_secrets;
use std::fmt;

/// The server's side of an exchange, as the JDK's `DigestMD5Server` does it. For one connection and one attempt.
pub struct Server {
    digest_uri: String,
    realm: String,
    nonce: Nonce,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begun,
    Challenged,
    Over,
}

/// The server's next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerStep {
    /// Sends this challenge and waits for the response.
    Challenge(Vec<u8>),
    /// The client knows the secret.
    Accepted(Accepted),
}

/// A client that has proved who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The user.
    pub user: String,
    /// The server's proof (`rspauth`), to be sent to the client.
    pub reply: Vec<u8>,
}

impl Server {
    /// Offers `service` at `host` with the users of `realm`. The JDK's server takes its host for its realm.
    pub fn new(service: &str, host: &str, realm: &str, nonce: Nonce) -> Server {
        let digest_uri = format!("{service}/{host}");
        Server { digest_uri, realm: realm.to_owned(), nonce, stage: Stage::Begun }
    }

    /// Takes the client's next message. `lookup` gives what is known of a user of the realm; it is called at most once.
    ///
    /// The content of the first message does not matter: a client without an initial response sends an empty one, and the JDK's
    /// server ignores any other, too.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown user and for a wrong secret; others say what is wrong with the message. The exchange is
    /// over then.
    pub fn step(
        &mut self,
        message: &[u8],
        lookup: impl FnOnce(&str) -> Option<Ha1>,
    ) -> Result<ServerStep, Error> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun if message.len() > RESPONSE_BYTES_MAX => {
                Err(Error::TooLong { size: message.len(), max: RESPONSE_BYTES_MAX })
            }
            Stage::Begun => {
                self.stage = Stage::Challenged;
                Ok(ServerStep::Challenge(self.challenge()))
            }
            Stage::Challenged => self.verify(message, lookup).map(ServerStep::Accepted),
            Stage::Over => Err(Error::Over),
        }
    }

    fn challenge(&self) -> Vec<u8> {
        let mut challenge = Vec::new();
        put_quoted(&mut challenge, "realm", self.realm.as_bytes());
        put_quoted(&mut challenge, "nonce", self.nonce.0.as_bytes());
        challenge.extend_from_slice(b"charset=utf-8,algorithm=md5-sess");
        challenge
    }

    fn verify(&self, response: &[u8], lookup: impl FnOnce(&str) -> Option<Ha1>) -> Result<Accepted, Error> {
        let directives = Directives::parse(response, RESPONSE_BYTES_MAX)?;
        let expect =
            |is_right: bool, directive| if is_right { Ok(()) } else { Err(Error::Unexpected(directive)) };
        expect(directives.at_most_one("charset")?.is_none_or(|charset| charset == b"utf-8"), "charset")?;
        let user =
            std::str::from_utf8(directives.one("username")?).map_err(|_| Error::Unexpected("username"))?;
        expect(directives.at_most_one("realm")?.unwrap_or_default() == self.realm.as_bytes(), "realm")?;
        expect(directives.one("nonce")? == self.nonce.0.as_bytes(), "nonce")?;
        expect(directives.one("nc")? == NONCE_COUNT, "nc")?;
        expect(directives.at_most_one("qop")?.is_none_or(|qop| qop == QOP), "qop")?;
        let cnonce = directives.one("cnonce")?;
        let digest_uri = directives.one("digest-uri")?;
        expect(digest_uri.eq_ignore_ascii_case(self.digest_uri.as_bytes()), "digest-uri")?;
        // No user may act for another (`SaslServerState` of BookKeeper refuses that, too).
        let authzid = directives.at_most_one("authzid")?;
        expect(authzid.is_none_or(|authzid| authzid == user.as_bytes()), "authzid")?;
        directives.at_most_one("maxbuf")?;
        directives.at_most_one("cipher")?;
        let response = directives.one("response")?;
        let response: &[u8; 32] = response.try_into().map_err(|_| Error::Unexpected("response"))?;

        // Invariant 2.
        let known = lookup(user);
        let ha1 = known.unwrap_or(Ha1::from_bytes([0; 16]));
        let proofs = Proofs { ha1, nonce: self.nonce.0.as_bytes(), cnonce, digest_uri, authzid };
        let is_right = are_equal_secrets(response, &proofs.of(Side::Client));
        let reply = [b"rspauth=", &proofs.of(Side::Server)[..]].concat();
        if is_right & known.is_some() {
            Ok(Accepted { user: user.to_owned(), reply })
        } else {
            Err(Error::Refused)
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Server { digest_uri, realm, stage, .. } = self;
        f.debug_struct("Server")
            .field("digest_uri", digest_uri)
            .field("realm", realm)
            .field("stage", stage)
            .finish()
    }
}
