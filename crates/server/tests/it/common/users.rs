//! Users of a bookie, and a client's side of their exchanges.

#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use super::wire::Client;
use bindery_sasl::digest_md5::{self, BOOKKEEPER_HOST, BOOKKEEPER_SERVICE, Nonce, Step};
use bindery_sasl::{Credentials, Secret};
use bindery_server::auth::verifier::digest_md5_of;
use bindery_server::auth::{AuthConfig, Provider, SASL_PLUGIN};
use bindery_wire::v2;
use bindery_wire::v3::{self, Operation, proto};
use bytes::Bytes;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// A line of a file of users.
pub fn digest_line(name: &str, roles: &str, password: &str) -> String {
    format!("{name} {roles} {}\n", digest_md5_of(name, &Secret::new(password)))
}

/// Settings with these lines as the file of users, in a directory.
pub fn config(dir: &Path, lines: &str, requires_reader: bool) -> AuthConfig {
    let file = dir.join("users");
    std::fs::write(&file, lines).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let provider = Provider::Sasl { jaas: None, users: Some(file) };
    AuthConfig { provider, requires_reader, refresh: Duration::from_millis(50) }
}

/// A message of the plugin of BookKeeper's SASL provider.
pub fn sasl_message(token: &[u8]) -> proto::AuthMessage {
    proto::AuthMessage { auth_plugin_name: SASL_PLUGIN.to_owned(), payload: Bytes::copy_from_slice(token) }
}

/// The client's side of DIGEST-MD5.
pub fn sasl_client(user: &str, password: &str) -> digest_md5::Client {
    let credentials = Credentials::new(user, Secret::new(password));
    digest_md5::Client::new(credentials, BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, Nonce::draw(|| 3))
}

fn reply(client: &mut digest_md5::Client, challenge: &[u8]) -> Vec<u8> {
    match client.step(challenge) {
        Ok(Step::Reply(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

/// Logs in over v3; the answer that refuses it, or `None` for a close, when it is refused.
pub async fn exchange_v3(
    client: &mut Client,
    user: &str,
    password: &str,
) -> Result<(), Option<proto::Response>> {
    let mut sasl = sasl_client(user, password);
    let challenge = client.v3(1001, Operation::Auth(sasl_message(b""))).await.auth_response.unwrap();
    let response = reply(&mut sasl, &challenge.payload);
    let answer = client.v3(1002, Operation::Auth(sasl_message(&response))).await;
    let Some(message) = answer.auth_response.clone() else { return Err(Some(answer)) };
    assert_eq!((answer.status, &*message.auth_plugin_name), (0, SASL_PLUGIN));
    assert_eq!(sasl.step(&message.payload), Ok(Step::Done));
    Ok(())
}

/// The same over v2.
pub async fn exchange_v2(
    client: &mut Client,
    user: &str,
    password: &str,
) -> Result<(), Option<proto::Response>> {
    let mut sasl = sasl_client(user, password);
    let challenge = v2_step(client, b"").await.unwrap();
    let response = reply(&mut sasl, &challenge);
    let proof = v2_step(client, &response).await.ok_or(None)?;
    assert_eq!(sasl.step(&proof), Ok(Step::Done));
    Ok(())
}

async fn v2_step(client: &mut Client, token: &[u8]) -> Option<Bytes> {
    let message = v3::encode_auth_message(&sasl_message(token));
    let auth = v2::Auth { version: 2, flags: v2::Flags::NONE, message: &message };
    client.send(&super::frames::framed(v2::Request::Auth(auth))).await;
    let payload = client.next().await?;
    let v2::Response::Auth { message, .. } = v2::Response::decode(&payload).unwrap() else {
        panic!("an answer to AUTH")
    };
    let message = v3::decode_auth_message(message).unwrap();
    assert_eq!(message.auth_plugin_name, SASL_PLUGIN);
    Some(message.payload)
}
