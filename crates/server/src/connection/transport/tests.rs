use super::*;
use bindery_io::SystemClock;
use rustix::net::sockopt;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A transport, its reading side, and its peer.
pub(super) async fn plain() -> (Arc<Transport>, Inlet, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let transport = Arc::new(Transport::new(socket, Arc::default(), Arc::default()));
    let inlet = Inlet::new(transport.clone(), Arc::new(SystemClock::new()));
    (transport, inlet, peer)
}

pub(super) async fn read(inlet: &mut Inlet, most: usize) -> Vec<u8> {
    let mut target = vec![0; most];
    let read = tokio::time::timeout(PATIENCE, inlet.read(&mut target)).await.expect("bytes are there");
    target.truncate(read.unwrap());
    target
}

/// True when nothing can be read without waiting.
pub(super) async fn is_empty(inlet: &mut Inlet) -> bool {
    let mut target = [0; 16];
    tokio::select! {
        biased;
        _ = inlet.read(&mut target) => false,
        () = std::future::ready(()) => true,
    }
}

#[tokio::test]
async fn a_read_takes_what_is_there_and_waits_for_more() {
    let (_transport, mut inlet, mut peer) = plain().await;
    assert!(is_empty(&mut inlet).await);
    peer.write_all(b"abcdef").await.unwrap();
    assert_eq!(read(&mut inlet, 4).await, b"abcd");
    assert_eq!(read(&mut inlet, 4).await, b"ef", "a read that was filled leaves the rest to the next");
    assert!(is_empty(&mut inlet).await);
    drop(peer);
    assert_eq!(read(&mut inlet, 4).await, b"");
}

/// Inlet invariant 3.
#[tokio::test]
async fn a_drain_ends_behind_the_last_byte_that_had_come_when_it_began() {
    let (_transport, mut inlet, mut peer) = plain().await;
    assert!(!inlet.is_draining() && !inlet.is_drained());
    peer.write_all(b"before").await.unwrap();
    inlet.readable().await.unwrap();
    inlet.begin_drain();
    peer.write_all(b"behind").await.unwrap();
    inlet.begin_drain();
    assert!(inlet.is_draining() && !inlet.is_drained());
    assert_eq!(read(&mut inlet, 4).await, b"befo");
    assert!(!inlet.is_drained());
    assert_eq!(read(&mut inlet, 2).await, b"re");
    assert!(inlet.is_drained());
}

#[tokio::test]
async fn writing_stops_when_the_kernel_takes_no_more_and_goes_on_when_the_peer_reads() {
    let (transport, _inlet, mut peer) = plain().await;
    sockopt::set_socket_send_buffer_size(&transport.socket, 16 << 10).unwrap();
    let bytes = vec![7; 64 << 10];
    let mut written = 0;
    let kind = loop {
        match transport.try_write_vectored(&[IoSlice::new(&bytes)]) {
            Ok(some) => written += some,
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(kind, io::ErrorKind::WouldBlock);
    let mut received = vec![0; written];
    peer.read_exact(&mut received).await.unwrap();
    tokio::time::timeout(PATIENCE, transport.writable()).await.unwrap().unwrap();
    assert!(transport.try_write_vectored(&[IoSlice::new(&bytes)]).unwrap() > 0);
}
