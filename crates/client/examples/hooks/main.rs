//! A client over TLS that proves who it is, on both protocols: with the client's own ways, or with a hook as an application would
//! fill it.
//!
//! ```text
//! cargo run -p bindery-client --example hooks -- zk+hierarchical://127.0.0.1:2181/ledgers --tls-ca ca.pem \
//!   [--tls-cert client.pem --tls-key client.key] [--user NAME --password-file FILE | --secret FILE] [--ensemble N]
//! ```
//! Without `--tls-ca` there is no TLS. `--user` is SASL DIGEST-MD5; `--secret` is a plugin of one's own ([`secret`]). It writes a
//! ledger and reads it, one with deferred sync as well, and ends with 1 unless both went well. `tests/interop/java-bookies` and
//! `tests/interop/tls-client` run it against Java bookies.

mod secret;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use bindery_client::{
    Client, CreateOptions, Credentials, EntryId, LedgerWriter, OpenMode, Quorum, Secret, TlsOptions,
};

/// The largest entry takes many TLS records.
const SIZES_BYTES: [usize; 6] = [0, 1, 100, 20_000, 1_000_000, 3_000_000];
const ENTRIES: usize = 300;

/// Entry `index`, which is like no other.
fn payload(index: usize) -> Vec<u8> {
    let size_bytes = if index < SIZES_BYTES.len() { SIZES_BYTES[index] } else { 1000 };
    (0..size_bytes).map(|at| (index * 31 + at * 7 + at / 251) as u8).collect()
}

/// Writes a ledger and reads it: adds without deferred sync go over a v2 connection, those with it and forces over a v3 one.
async fn use_ledger(client: &Client, copies: usize, deferred_sync: bool) -> Result<(), Box<dyn Error>> {
    let options = CreateOptions::new(Quorum::new(copies, copies, copies)?).deferred_sync(deferred_sync);
    let writer = client.create_ledger(options).await?;
    let id = writer.id();
    let outcome = write_and_read(client, writer).await;
    client.delete_ledger(id).await?;
    outcome
}

async fn write_and_read(client: &Client, writer: LedgerWriter) -> Result<(), Box<dyn Error>> {
    let id = writer.id();
    for index in 0..ENTRIES {
        writer.enqueue(&payload(index)).await?;
    }
    writer.close().await?;
    let reader = client.open_ledger(id, b"", OpenMode::ReadOnly).await?;
    let last = reader.last_add_confirmed().ok_or("the ledger is empty")?;
    let mut entries = reader.read(EntryId::FIRST..=last);
    let mut count = 0;
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        if entry.payload[..] != payload(count) {
            return Err(format!("entry {} of ledger {id} is not what was written", entry.id).into());
        }
        count += 1;
    }
    match count {
        ENTRIES => Ok(()),
        _ => Err(format!("ledger {id} has {count} entries instead of {ENTRIES}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut builder = Client::builder();
    let (mut tls, mut certificate, mut user, mut copies) = (None, PathBuf::new(), String::new(), 1);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} VALUE"));
        match argument.as_str() {
            "--tls-ca" => tls = Some(TlsOptions::new().authority(value()?)),
            "--tls-cert" => certificate = value()?.into(),
            "--tls-key" => tls = Some(tls.unwrap_or_default().identity(&certificate, value()?)),
            "--user" => user = value()?,
            "--password-file" => {
                let secret = Secret::new(std::fs::read_to_string(value()?)?.trim_end());
                builder = builder.credentials(Credentials::digest_md5(&user, secret));
            }
            "--secret" => {
                let secret = secret::Secret(std::fs::read_to_string(value()?)?.into_bytes());
                builder = builder.authenticator(secret);
            }
            "--ensemble" => copies = value()?.parse()?,
            uri => builder = builder.metadata(uri.parse()?),
        }
    }
    if let Some(tls) = tls {
        builder = builder.tls(tls);
    }
    let client = builder.connect().await?;
    let mut is_well = true;
    for (protocol, deferred_sync) in [("v2", false), ("v3", true)] {
        match use_ledger(&client, copies, deferred_sync).await {
            Ok(()) => println!("{protocol}: {ENTRIES} entries written and read"),
            Err(error) => {
                println!("{protocol}: {error}");
                is_well = false;
            }
        }
    }
    client.close().await;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
