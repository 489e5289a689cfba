//! A client that authenticates, and a bookie of some lines that wants it to: it asks for the sum of two numbers and a token.
//!
//! ```text
//! cargo run -p bindery-client --example authentication
//! ```

use std::error::Error;
use std::io;
use std::sync::Arc;

use bindery_client::{
    Authenticator, BookieAddress, BookieId, Client, CreateOptions, Exchange, Quorum, RegistrationMode, Turn,
};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, layout};
use bindery_wire::v3::{self, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PLUGIN: &str = "example.Sums";

/// The application's side: what it knows.
struct Sums {
    token: String,
}

/// One connection's.
struct Solving {
    token: String,
}

impl Authenticator for Sums {
    fn plugin_name(&self) -> &str {
        PLUGIN
    }

    fn begin(&self, to: &BookieAddress) -> Box<dyn Exchange> {
        println!("client: authenticating to {}", to.bookie);
        Box::new(Solving { token: self.token.clone() })
    }
}

impl Exchange for Solving {
    fn next(&mut self, received: Option<&[u8]>) -> Result<Turn, String> {
        let Some(received) = received else { return Ok(Turn::Send(b"hello".to_vec())) };
        let text = std::str::from_utf8(received).map_err(|error| error.to_string())?;
        if text == "welcome" {
            return Ok(Turn::Done);
        }
        let (a, b) = text.split_once('+').ok_or_else(|| format!("what is {text:?}?"))?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|error| error.to_string());
        Ok(Turn::Send(format!("{} {}", number(a)? + number(b)?, self.token).into_bytes()))
    }
}

/// The bookie's side: what it says to a message; nothing when it closes the connection.
fn challenge(said: &[u8]) -> Option<&'static [u8]> {
    match said {
        b"hello" => Some(b"3 + 4"),
        b"7 open-sesame" => Some(b"welcome"),
        _ => None,
    }
}

/// Serves one connection: authentication, and then adds, which it forgets.
async fn serve(mut socket: TcpStream) -> io::Result<()> {
    let mut is_known = false;
    loop {
        let mut payload = vec![0; socket.read_u32().await? as usize];
        socket.read_exact(&mut payload).await?;
        let mut out = BytesMut::new();
        match v2::Request::decode(&payload).map_err(io::Error::other)? {
            v2::Request::Auth(auth) => {
                let message = v3::decode_auth_message(auth.message).map_err(io::Error::other)?;
                let said = challenge(&message.payload).filter(|_| message.auth_plugin_name == PLUGIN);
                let said = said.ok_or_else(|| io::Error::other("a stranger"))?;
                is_known = said == b"welcome";
                println!("bookie: {:?}, then {:?}", message.payload, String::from_utf8_lossy(said));
                let mut framed = BytesMut::new();
                let message = proto::AuthMessage { auth_plugin_name: PLUGIN.into(), payload: said.into() };
                v3::put_frame(&message, &mut framed);
                v2::put_auth_response(auth.version, &framed[4..], &mut out);
            }
            v2::Request::Add(add) => {
                let code = if is_known { ErrorCode::Ok } else { ErrorCode::Unauthorized };
                v2::put_add_response(add.version, code, add.ledger_id, add.entry_id, &mut out);
            }
            _ => return Err(io::Error::other("this bookie only takes adds")),
        }
        socket.write_all(&out).await?;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let bookie = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if let Err(error) = serve(socket).await {
                println!("bookie: connection closed: {error}");
            }
        }
    });
    // A metadata store in this process, in which the bookie is registered.
    let store = Arc::new(MemoryCluster::new().open());
    layout::init_cluster(&*store, "/ledgers", LedgerLayout::Hierarchical, [0; 16]).await?;
    let layout = Layout::open(store, "/ledgers", None).await?;
    let info = BookieServiceInfo::of_bookie(("127.0.0.1", address.port()), None);
    let id = BookieId::new("bookie-0")?;
    layout.registration().register(&id, RegistrationMode::Writable, &info).await?;

    for token in ["open-sesame", "please"] {
        let authenticator = Sums { token: token.into() };
        let builder = Client::builder().layout(layout.clone()).authenticator(authenticator);
        let client = builder.explicit_lac_interval(std::time::Duration::ZERO).connect().await?;
        let writer = client.create_ledger(CreateOptions::new(Quorum::new(1, 1, 1)?)).await?;
        match writer.append(b"let me in").await {
            Ok(entry) => println!("client: entry {entry} of ledger {} is written", writer.id()),
            Err(error) => println!("client: {error}"),
        }
        client.close().await;
    }
    bookie.abort();
    Ok(())
}
