//! The mechanism PLAIN (RFC 4616): one message with the password in it. To be used inside TLS only.

use crate::{Credentials, Secret};

/// A longer message is refused, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// A message that is not of PLAIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Above [`MESSAGE_BYTES_MAX`].
    #[error("a PLAIN message of {0} bytes: at most {MESSAGE_BYTES_MAX} are taken")]
    TooLong(usize),
    /// Not three parts with a NUL between them, or a part is missing or not UTF-8.
    #[error(
        "not a PLAIN message: it must be an optional identity, NUL, a user, NUL, and a password, in UTF-8"
    )]
    Malformed,
    /// The user wants to act as somebody else.
    #[error("the PLAIN message asks for the rights of another user: leave the authorization identity out")]
    OtherIdentity,
}

/// The message for these credentials. A name or password with a NUL cannot be sent; the server will refuse it.
pub fn encode(credentials: &Credentials) -> Vec<u8> {
    let (user, password) = (credentials.user.as_bytes(), credentials.secret.expose().as_bytes());
    [&b"\0"[..], user, b"\0", password].concat()
}

/// The credentials in a message.
///
/// # Errors
/// See [`Error`].
pub fn decode(message: &[u8]) -> Result<Credentials, Error> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Error::TooLong(message.len()));
    }
    let mut parts = message.split(|&byte| byte == 0).map(|part| std::str::from_utf8(part));
    let (Some(Ok(identity)), Some(Ok(user)), Some(Ok(password)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Error::Malformed);
    };
    if user.is_empty() || password.is_empty() {
        return Err(Error::Malformed);
    }
    if !identity.is_empty() && identity != user {
        return Err(Error::OtherIdentity);
    }
    Ok(Credentials::new(user, Secret::new(password)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The examples of RFC 4616, section 4.
    #[test]
    fn messages_of_the_rfc() {
        let tim = decode(b"\0tim\0tanstaaftanstaaf").unwrap();
        assert_eq!((&*tim.user, tim.secret.expose()), ("tim", "tanstaaftanstaaf"));
        assert_eq!(decode(b"Ursel\0Kurt\0xipj3plmq").unwrap_err(), Error::OtherIdentity);
        assert!(decode(b"Kurt\0Kurt\0xipj3plmq").is_ok());
    }

    #[test]
    fn other_messages_are_refused() {
        for message in
            [&b""[..], b"\0", b"\0\0", b"\0a\0", b"\0\0b", b"a\0b", b"\0a\0b\0", b"\0a\0b\0c", b"\0\xff\0b"]
        {
            assert_eq!(decode(message).unwrap_err(), Error::Malformed, "{message:?}");
        }
        let long = vec![b'a'; MESSAGE_BYTES_MAX + 1];
        assert_eq!(decode(&long).unwrap_err(), Error::TooLong(long.len()));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(user in "[^\0]{1,40}", password in "[^\0]{1,40}") {
            let decoded = decode(&encode(&Credentials::new(user.clone(), Secret::new(password.clone())))).unwrap();
            prop_assert_eq!((decoded.user.as_str(), decoded.secret.expose()), (&*user, &*password));
        }

        /// Crate invariant 2.
        #[test]
        fn no_bytes_make_it_panic(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&message);
        }
    }
}
