//! Counts the bytes between a client and its bookies: a stream of one's own around TCP. TLS is put in the same way, see
//! `Connector`.
//!
//! ```text
//! bindery standalone &
//! cargo run -p bindery-client --example connector -- zk://127.0.0.1:2181/ledgers
//! ```

use std::error::Error;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bindery_client::{
    BookieAddress, ByteStream, Client, Connecting, Connector, CreateOptions, EntryId, OpenMode, Quorum,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

#[derive(Default)]
struct Counts {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

struct Counted {
    socket: TcpStream,
    counts: Arc<Counts>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.socket).poll_read(context, buffer);
        let received = buffer.filled().len() - before;
        self.counts.received_bytes.fetch_add(received as u64, Ordering::Relaxed);
        outcome
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// The client writes many frames at once: a stream that can take them should.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(count)) = &outcome {
            self.counts.sent_bytes.fetch_add(*count as u64, Ordering::Relaxed);
        }
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

struct Counting(Arc<Counts>);

impl Connector for Counting {
    fn connect<'a>(&'a self, to: &'a BookieAddress) -> Connecting<'a> {
        Box::pin(async move {
            let socket = TcpStream::connect((to.host.as_str(), to.port)).await?;
            // The client does this for a plain socket only.
            socket.set_nodelay(true)?;
            println!("connected to {} at {}:{}", to.bookie, to.host, to.port);
            Ok(ByteStream::boxed(Counted { socket, counts: self.0.clone() }))
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let uri = std::env::args().nth(1).unwrap_or("zk://127.0.0.1:2181/ledgers".into());
    let counts = Arc::new(Counts::default());
    let client =
        Client::builder().metadata(uri.parse()?).connector(Counting(counts.clone())).connect().await?;

    let writer = client.create_ledger(CreateOptions::new(Quorum::new(1, 1, 1)?)).await?;
    let id = writer.id();
    for _ in 0..1000 {
        writer.enqueue(&[7; 1000]).await?;
    }
    writer.close().await?;
    println!("1000 entries of 1000 bytes: {} bytes sent", counts.sent_bytes.load(Ordering::Relaxed));

    let reader = client.open_ledger(id, b"", OpenMode::ReadOnly).await?;
    if let Some(last) = reader.last_add_confirmed() {
        let mut entries = reader.read(EntryId::FIRST..=last);
        while let Some(entry) = entries.next().await {
            assert_eq!(entry?.payload.len(), 1000);
        }
    }
    println!("read back: {} bytes received", counts.received_bytes.load(Ordering::Relaxed));
    client.delete_ledger(id).await?;
    client.close().await;
    Ok(())
}
