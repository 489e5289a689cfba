//! The side that logs in.

use super::directives::{Directives, put_quoted};
use super::{
    CHALLENGE_BYTES_MAX, Error, Ha1, NONCE_COUNT, Nonce, Proofs, QOP, RESPONSE_BYTES_MAX, Side, latin1,
};
use crate::Credentials;
use bindery_types::are_equal_secrets;
use std::fmt;

/// The buffer size that the JDK announces for a security layer, which is never agreed on.
const MAXBUF: &str = "65536";

/// The client's side of an exchange, as the JDK's `DigestMD5Client` does it.
///
/// The mechanism has no initial response: where the protocol wants a first message, it is empty. After [`Step::Done`] BookKeeper's
/// client sends one more empty message, and ZooKeeper's does not.
pub struct Client {
    credentials: Credentials,
    digest_uri: String,
    cnonce: Nonce,
    stage: Stage,
}

enum Stage {
    /// Waits for the challenge.
    Begun,
    /// Waits for this proof of the server.
    Replied([u8; 32]),
    Over,
}

/// The client's next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sends this response.
    Reply(Vec<u8>),
    /// Nothing: both sides have proved that they know the secret.
    Done,
}

impl Client {
    /// Logs in to `service` at `host`; see [`super::BOOKKEEPER_SERVICE`] and the constants beside it.
    pub fn new(credentials: Credentials, service: &str, host: &str, cnonce: Nonce) -> Client {
        Client { credentials, digest_uri: format!("{service}/{host}"), cnonce, stage: Stage::Begun }
    }

    /// Takes the server's next message.
    ///
    /// # Errors
    /// The message makes no sense, asks for what this client does not do, or does not prove that the server knows the secret. The
    /// exchange is over then.
    pub fn step(&mut self, challenge: &[u8]) -> Result<Step, Error> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun => {
                let (response, proof) = self.respond(challenge)?;
                self.stage = Stage::Replied(proof);
                Ok(Step::Reply(response))
            }
            Stage::Replied(expected) => {
                let directives = Directives::parse(challenge, CHALLENGE_BYTES_MAX)?;
                let proof = directives.one("rspauth")?;
                let is_right =
                    proof.try_into().is_ok_and(|proof: &[u8; 32]| are_equal_secrets(proof, &expected));
                if is_right { Ok(Step::Done) } else { Err(Error::ServerRefused) }
            }
            Stage::Over => Err(Error::Over),
        }
    }

    /// The response to a challenge, and the proof that the server must give.
    fn respond(&self, challenge: &[u8]) -> Result<(Vec<u8>, [u8; 32]), Error> {
        let directives = Directives::parse(challenge, CHALLENGE_BYTES_MAX)?;
        let charset = directives.at_most_one("charset")?;
        if charset.is_some_and(|charset| charset != b"utf-8") {
            return Err(Error::Unexpected("charset"));
        }
        if directives.one("algorithm")? != b"md5-sess" {
            return Err(Error::Unexpected("algorithm"));
        }
        let offers_auth = |qop: &[u8]| {
            qop.split(|byte| b", \t\n".contains(byte)).any(|offer| offer.eq_ignore_ascii_case(QOP))
        };
        if !directives.at_most_one("qop")?.is_none_or(offers_auth) {
            return Err(Error::Unexpected("qop"));
        }
        let nonce = directives.one("nonce")?;
        let Credentials { user, secret } = &self.credentials;
        let (user_bytes, realm) = match charset {
            Some(_) => {
                let realm = directives.all("realm").next().unwrap_or_default();
                let realm = std::str::from_utf8(realm).map_err(|_| Error::Unexpected("realm"))?;
                (user.clone().into_bytes(), realm.to_owned())
            }
            None => {
                let encoded = latin1(user).filter(|_| latin1(secret.expose()).is_some());
                let realm = directives.all("realm").next().unwrap_or_default();
                (encoded.ok_or(Error::Unencodable)?, realm.iter().map(|&byte| char::from(byte)).collect())
            }
        };
        let proofs = Proofs {
            ha1: Ha1::new(user, &realm, secret),
            nonce,
            cnonce: self.cnonce.0.as_bytes(),
            digest_uri: self.digest_uri.as_bytes(),
            // In UTF-8 whatever the server's character set is (RFC 2831, section 2.1.2).
            authzid: Some(user.as_bytes()),
        };
        let mut response = Vec::new();
        if charset.is_some() {
            response.extend_from_slice(b"charset=utf-8,");
        }
        put_quoted(&mut response, "username", &user_bytes);
        // As received: the server knows it by these bytes.
        if let Some(realm) = directives.all("realm").next().filter(|realm| !realm.is_empty()) {
            put_quoted(&mut response, "realm", realm);
        }
        put_quoted(&mut response, "nonce", nonce);
        put(&mut response, "nc", NONCE_COUNT);
        put_quoted(&mut response, "cnonce", self.cnonce.0.as_bytes());
        put_quoted(&mut response, "digest-uri", self.digest_uri.as_bytes());
        put(&mut response, "maxbuf", MAXBUF.as_bytes());
        put(&mut response, "response", &proofs.of(Side::Client));
        put(&mut response, "qop", QOP);
        put_quoted(&mut response, "authzid", user.as_bytes());
        response.pop();
        if response.len() > RESPONSE_BYTES_MAX {
            return Err(Error::TooLong { size: response.len(), max: RESPONSE_BYTES_MAX });
        }
        Ok((response, proofs.of(Side::Server)))
    }
}

fn put(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b',');
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Client { credentials, digest_uri, .. } = self;
        f.debug_struct("Client").field("user", &credentials.user).field("digest_uri", digest_uri).finish()
    }
}
