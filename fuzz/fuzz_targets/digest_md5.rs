#![no_main]

use bindery_sasl::digest_md5::{Client, Ha1, Nonce, Server};
use bindery_sasl::{Credentials, Secret};

// A message to each side, at each point of an exchange. None of them knows the secret.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let secret = Secret::new("secret");
    let client = || Client::new(Credentials::new("user", secret.clone()), "a", "b", Nonce::draw(|| 1));
    let mut server = Server::new("a", "b", "b", Nonce::draw(|| 2));
    let known = |_: &str| Some(Ha1::new("user", "b", &secret));
    let _ = client().step(data);
    let challenge = server.step(data, known);
    assert_eq!(challenge.is_ok(), data.len() < 4096);
    assert!(server.step(data, known).is_err());
});
