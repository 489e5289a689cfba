//! The `auth` request: the identity that a connection claims.

use crate::tree::acl::Identity;
use sha1::{Digest, Sha1};

/// The identity that `auth` data of a scheme proves; `None` when it is refused.
///
/// `digest` takes `user:password` and accepts anything: the identity is the user and a hash of both, and matches only
/// rules made with the same password. `ip` gives the connection's address once more.
pub(super) fn identity(scheme: &str, auth: Option<&[u8]>, known: &[Identity]) -> Option<Identity> {
    match scheme {
        "digest" => {
            let text = String::from_utf8_lossy(auth?).into_owned();
            let user = text.split(':').next().unwrap_or_default();
            let hash = base64(&Sha1::digest(text.as_bytes()));
            Some(Identity { scheme: "digest", id: format!("{user}:{hash}") })
        }
        "ip" => known.iter().find(|identity| identity.scheme == "ip").cloned(),
        _ => None,
    }
}

/// What `whoAmI` shows of an identity: no hash.
pub(super) fn user(identity: &Identity) -> &str {
    match identity.scheme {
        "digest" => identity.id.split(':').next().unwrap_or_default(),
        _ => &identity.id,
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i) & 0x3f) as usize];
            out.push(if i <= chunk.len() { digit.into() } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_zookeepers() {
        // From ZooKeeper's programmer's guide.
        let identity = identity("digest", Some(b"super:superpw"), &[]).unwrap();
        assert_eq!(identity.id, "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=");
        assert_eq!(user(&identity), "super");
    }

    #[test]
    fn unknown_schemes_and_missing_data_are_refused() {
        assert_eq!(identity("sasl", Some(b"x"), &[]), None);
        assert_eq!(identity("digest", None, &[]), None);
        assert_eq!(identity("world", Some(b"anyone"), &[]), None);
    }

    #[test]
    fn base64_pads() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
