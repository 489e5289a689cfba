//! Proves that the client knows a secret, without telling it. The bookie's side of it is `SecretAuth` in `tests/interop/peer`.
//!
//! ```text
//! client                                 bookie
//!   hello ------------------------------>
//!         <------------------------------ challenge: random bytes
//!   HMAC-SHA1(secret, challenge) -------->
//!         <------------------------------ welcome; if it is not, it refuses
//! ```

use bindery_client::{Authenticator, BookieAddress, Exchange, Turn};
use hmac::{Hmac, Mac};
use sha1::Sha1;

/// What the client knows.
pub struct Secret(pub Vec<u8>);

/// One connection's authentication.
enum Proving {
    Begin { secret: Vec<u8> },
    Challenged { secret: Vec<u8> },
    Answered,
}

impl Authenticator for Secret {
    fn plugin_name(&self) -> &str {
        "peer.SecretAuth"
    }

    fn begin(&self, _: &BookieAddress) -> Box<dyn Exchange> {
        Box::new(Proving::Begin { secret: self.0.clone() })
    }
}

impl Exchange for Proving {
    fn next(&mut self, received: Option<&[u8]>) -> Result<Turn, String> {
        match (std::mem::replace(self, Proving::Answered), received) {
            (Proving::Begin { secret }, None) => {
                *self = Proving::Challenged { secret };
                Ok(Turn::Send(b"hello".to_vec()))
            }
            (Proving::Challenged { secret }, Some(challenge)) => {
                let mut mac = Hmac::<Sha1>::new_from_slice(&secret).map_err(|error| error.to_string())?;
                mac.update(challenge);
                Ok(Turn::Send(mac.finalize().into_bytes().to_vec()))
            }
            (Proving::Answered, Some(b"welcome")) => Ok(Turn::Done),
            (_, received) => {
                Err(format!("the bookie says {:?}", received.map(|bytes| bytes.escape_ascii().to_string())))
            }
        }
    }
}
