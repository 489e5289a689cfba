use super::tests::{PATIENCE, is_empty, plain, read};
use super::*;
use crate::certificates::{Authority, Files, Use};
use crate::tls::limits::HELD_BYTES_MAX;
use crate::tls::{Tls, TlsConfig};
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, SupportedProtocolVersion, version};
use std::io::{Read, Write};
use std::time::Duration;
use tls::RECORD_BYTES;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A TLS client whose records go nowhere by themselves.
struct Peer {
    tls: ClientConnection,
    socket: TcpStream,
}

impl Peer {
    /// The records of some plaintext.
    fn encrypt(&mut self, plaintext: &[u8]) -> Vec<u8> {
        self.tls.writer().write_all(plaintext).unwrap();
        self.take_records()
    }

    fn take_records(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records).unwrap();
        }
        records
    }

    async fn send(&mut self, records: &[u8]) {
        self.socket.write_all(records).await.unwrap();
    }

    /// Reads from the socket and decrypts, until so much plaintext is there.
    async fn read(&mut self, bytes: usize) -> Vec<u8> {
        let mut plaintext = Vec::new();
        while plaintext.len() < bytes {
            let mut some = vec![0; 16 << 10];
            let got = tokio::time::timeout(PATIENCE, self.socket.read(&mut some)).await.unwrap().unwrap();
            assert!(got > 0, "the stream goes on");
            let mut some = &some[..got];
            while !some.is_empty() {
                self.tls.read_tls(&mut some).unwrap();
                self.tls.process_new_packets().unwrap();
                let _ = self.tls.reader().read_to_end(&mut plaintext);
            }
        }
        plaintext
    }

    /// Its steps of the handshake; true when it has nothing more to do.
    async fn shake(&mut self) -> bool {
        let records = self.take_records();
        self.send(&records).await;
        if !self.tls.is_handshaking() {
            return true;
        }
        let mut some = vec![0; 16 << 10];
        let got = self.socket.read(&mut some).await.unwrap();
        let mut some = &some[..got];
        while !some.is_empty() {
            self.tls.read_tls(&mut some).unwrap();
            self.tls.process_new_packets().unwrap();
        }
        false
    }
}

/// A transport that became TLS, with the handshake made.
async fn encrypted(versions: &[&'static SupportedProtocolVersion]) -> (Arc<Transport>, Inlet, Peer) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let files = Files::write(dir.path(), &authority.issue(Use::Bookie), "");
    let config = TlsConfig { refresh: None, ..TlsConfig::new(files.certificates, files.key) };
    let session = Tls::open(config, crate::turns::Turns::new(1)).unwrap().begin().unwrap();
    let (transport, mut inlet, socket) = plain().await;
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(authority.client(None, versions), name).unwrap();
    let mut peer = Peer { tls, socket };
    inlet.upgrade(session, RECORDS_MAX);
    let served = async {
        while transport.is_handshaking() {
            inlet.readable().await.unwrap();
            if inlet.receive_handshake().unwrap().is_some() {
                let processed = transport.process_handshake().unwrap();
                inlet.processed(processed);
            }
            assert!(transport.push_pending().unwrap());
        }
    };
    let shaken = async { while !peer.shake().await {} };
    tokio::time::timeout(PATIENCE, async { tokio::join!(served, shaken) }).await.unwrap();
    inlet.finish_handshake();
    (transport, inlet, peer)
}

/// Keys in these tests are good for so many records.
const RECORDS_MAX: u64 = 10_000;

/// Waits until the kernel has delivered so much that nobody has read.
async fn delivered(transport: &Transport, bytes: usize) {
    let all_here = async {
        while (rustix::io::ioctl_fionread(&transport.socket).unwrap() as usize) < bytes {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all_here).await.expect("loopback delivers");
}

const BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

#[tokio::test]
async fn both_sides_read_what_the_other_wrote() {
    for version in BOTH {
        let (transport, mut inlet, mut peer) = encrypted(&[version]).await;
        assert!(transport.is_tls() && !transport.is_handshaking());
        let records = peer.encrypt(b"request");
        peer.send(&records).await;
        assert_eq!(read(&mut inlet, 100).await, b"request");
        let slices = [IoSlice::new(b"ans"), IoSlice::new(b"wer")];
        assert_eq!(transport.try_write_vectored(&slices).unwrap(), 6);
        assert!(!transport.has_pending());
        assert_eq!(peer.read(6).await, b"answer");
    }
}

/// Transport invariant 4: the kernel has nothing any more of what was decrypted.
#[tokio::test]
async fn decrypted_bytes_wake_the_reader_although_the_kernel_has_none() {
    let (transport, mut inlet, mut peer) = encrypted(&[]).await;
    let records = peer.encrypt(&[7; 1000]);
    peer.send(&records).await;
    assert_eq!(read(&mut inlet, 400).await.len(), 400);
    assert_eq!(rustix::io::ioctl_fionread(&transport.socket).unwrap(), 0);
    tokio::time::timeout(PATIENCE, inlet.readable()).await.expect("no wait for the kernel").unwrap();
    assert_eq!(read(&mut inlet, 400).await.len(), 400);
    assert_eq!(read(&mut inlet, 400).await.len(), 200);
    assert!(is_empty(&mut inlet).await);
    let readable = tokio::time::timeout(Duration::from_millis(20), inlet.readable()).await;
    assert!(readable.is_err(), "nothing is here");
}

/// However a record is cut into pieces, its bytes are read once it is complete, and the next record with its own last piece.
#[tokio::test]
async fn a_record_that_comes_in_pieces_is_read_when_it_is_whole() {
    for version in BOTH {
        let (_transport, mut inlet, mut peer) = encrypted(&[version]).await;
        let records = peer.encrypt(b"first");
        let second = peer.encrypt(b"second");
        let (head, last) = records.split_at(records.len() - 1);
        for byte in head {
            peer.send(&[*byte]).await;
            assert!(is_empty(&mut inlet).await);
        }
        // The last byte of one and half of the next.
        let (half, rest) = second.split_at(second.len() / 2);
        peer.send(&[last, half].concat()).await;
        assert_eq!(read(&mut inlet, 100).await, b"first");
        assert!(is_empty(&mut inlet).await);
        peer.send(rest).await;
        assert_eq!(read(&mut inlet, 100).await, b"second");
    }
}

/// Inlet invariant 4, and that records larger than a read are not lost.
#[tokio::test]
async fn reads_of_any_size_take_a_stream_apart() {
    let (transport, mut inlet, mut peer) = encrypted(&[]).await;
    let sent: Vec<u8> = (0..400_000u32).map(|at| (at / 7) as u8).collect();
    let expected = sent.clone();
    let sending = tokio::spawn(async move {
        for piece in sent.chunks(30_000) {
            let records = peer.encrypt(piece);
            peer.send(&records).await;
        }
        peer
    });
    let mut received = Vec::new();
    for most in [1, 5, 2048, 16 << 10, 100_000].into_iter().cycle() {
        received.extend(read(&mut inlet, most).await);
        if received.len() == expected.len() {
            break;
        }
    }
    assert!(received == expected);
    let mut peer = sending.await.unwrap();
    let records = peer.encrypt(&vec![9; 50_000]);
    peer.send(&records).await;
    delivered(&transport, records.len()).await;
    assert_eq!(read(&mut inlet, 100_000).await.len(), 50_000, "in one read");
}

/// TLS invariant 2: a peer that takes nothing costs one record, whatever is offered.
#[tokio::test]
async fn a_peer_that_never_drains_holds_one_record() {
    let (transport, _inlet, mut peer) = encrypted(&[]).await;
    sockopt::set_socket_send_buffer_size(&transport.socket, 16 << 10).unwrap();
    let bytes = vec![7; 1 << 20];
    let mut taken = 0;
    let mut blocked = 0;
    while blocked < 100 {
        match transport.try_write_vectored(&[IoSlice::new(&bytes)]) {
            Ok(some) => {
                assert!(some <= RECORD_BYTES, "one record at a time");
                assert_eq!(blocked, 0, "nothing is encrypted while something is pending");
                taken += some;
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(transport.has_pending() && !transport.push_pending().unwrap());
                blocked += 1;
            }
        }
    }
    let sent = transport.pending_progress();
    assert!(taken as u64 <= sent + RECORD_BYTES as u64, "{taken} encrypted, {sent} with the kernel");
    // It reads at last: all of it arrives, in order.
    let received = tokio::spawn(async move { (peer.read(taken).await, peer) });
    while !transport.push_pending().unwrap() {
        tokio::time::timeout(PATIENCE, transport.writable()).await.unwrap().unwrap();
    }
    assert!(transport.pending_progress() > sent && !transport.has_pending());
    let (received, _peer) = received.await.unwrap();
    assert!(received.len() == taken && received.iter().all(|byte| *byte == 7));
}

/// TLS invariant 3: bytes received and not read are bounded, and the rest stays with the kernel.
#[tokio::test]
async fn nothing_is_received_while_plaintext_waits() {
    let (transport, mut inlet, mut peer) = encrypted(&[]).await;
    let records: Vec<u8> = (0..8).flat_map(|_| peer.encrypt(&[3; RECORD_BYTES])).collect();
    peer.send(&records).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(read(&mut inlet, 1).await.len(), 1);
    let left = rustix::io::ioctl_fionread(&transport.socket).unwrap() as usize;
    let here = records.len() - left;
    assert!(here <= HELD_BYTES_MAX / 2, "{here} bytes were received");
    for _ in 0..100 {
        inlet.readable().await.unwrap();
    }
    assert_eq!(rustix::io::ioctl_fionread(&transport.socket).unwrap() as usize, left);
}

/// Inlet invariant 3, over TLS: counted as ciphertext, and ended by what that decrypts to, whatever follows and however much
/// would fit.
#[tokio::test]
async fn a_drain_over_tls_ends_behind_the_last_byte_that_had_come() {
    for most in [3, 100] {
        let (transport, mut inlet, mut peer) = encrypted(&[]).await;
        let before = peer.encrypt(b"before");
        peer.send(&before).await;
        delivered(&transport, before.len()).await;
        inlet.begin_drain();
        assert!(!inlet.is_drained());
        let behind = peer.encrypt(b"behind");
        peer.send(&behind).await;
        delivered(&transport, before.len() + behind.len()).await;
        transport.socket.readable().await.unwrap();
        let mut drained = Vec::new();
        while !inlet.is_drained() {
            drained.extend(read(&mut inlet, most).await);
        }
        assert_eq!(drained, b"before");
        let left = rustix::io::ioctl_fionread(&transport.socket).unwrap() as usize;
        assert_eq!(left, behind.len(), "the rest stays with the kernel");
    }
}

/// A drain has an end also when plaintext is here as it begins, and its peer goes on.
#[tokio::test]
async fn a_drain_that_finds_plaintext_here_reads_that_and_no_more() {
    let (transport, mut inlet, mut peer) = encrypted(&[]).await;
    let before = peer.encrypt(b"before");
    peer.send(&before).await;
    delivered(&transport, before.len()).await;
    assert_eq!(read(&mut inlet, 3).await, b"bef");
    inlet.begin_drain();
    assert!(!inlet.is_drained(), "the rest is decrypted, and not read");
    let behind = peer.encrypt(b"behind");
    peer.send(&behind).await;
    delivered(&transport, behind.len()).await;
    // The runtime knows of it, too.
    transport.socket.readable().await.unwrap();
    assert_eq!(read(&mut inlet, 100).await, b"ore");
    assert!(inlet.is_drained());
}

/// What a peer sends that hardly says anything, and what reading it ends with.
async fn barren(version: &'static SupportedProtocolVersion, piece: impl Fn(&mut Peer) -> Vec<u8>) -> String {
    let (_transport, mut inlet, mut peer) = encrypted(&[version]).await;
    let (mut plaintext, mut ciphertext) = (0, 0);
    let mut target = vec![0; 1 << 20];
    loop {
        let records = piece(&mut peer);
        ciphertext += records.len();
        peer.send(&records).await;
        match tokio::time::timeout(PATIENCE, inlet.read(&mut target)).await.unwrap() {
            Ok(read) => plaintext += read,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                let allowed = tls::BARREN_BYTES_MAX + tls::PLAINTEXT_WEIGHT * plaintext;
                assert!(ciphertext <= allowed + 8192, "{ciphertext} bytes for {plaintext}");
                return error.to_string();
            }
        }
        assert!(plaintext < 100_000, "it is never given up");
    }
}

/// TLS invariant 3: records that cost much more than they bring are taken for a while and no longer.
#[tokio::test]
async fn ciphertext_with_hardly_any_plaintext_is_taken_up_to_a_bound() {
    for version in BOTH {
        let said = barren(version, |peer| peer.encrypt(&[1])).await;
        assert!(said.contains("hardly anything of a request"), "{said}");
    }
    // New keys as often as the library lets them be between two bytes.
    let said = barren(&version::TLS13, |peer| {
        let mut records = Vec::new();
        for _ in 0..30 {
            peer.tls.refresh_traffic_keys().unwrap();
            records.extend(peer.take_records());
        }
        records.extend(peer.encrypt(&[1]));
        records
    })
    .await;
    assert!(said.contains("hardly anything of a request"), "{said}");
}

/// The same bound is none for the shortest requests, each in two records, for as long as they come.
#[tokio::test]
async fn requests_in_short_records_are_read_for_ever() {
    for version in BOTH {
        let (_transport, mut inlet, mut peer) = encrypted(&[version]).await;
        for _ in 0..200 {
            let mut records = Vec::new();
            for _ in 0..20 {
                records.extend(peer.encrypt(&[1; 4]));
                records.extend(peer.encrypt(&[2; 20]));
            }
            peer.send(&records).await;
            let mut left = 20 * 24;
            while left > 0 {
                left -= read(&mut inlet, 100_000).await.len();
            }
        }
    }
}

/// Inlet invariant 5: however much is there, in one buffer or in many small reads, the task leaves others their turn.
#[tokio::test]
async fn a_peer_that_sends_without_end_leaves_others_their_turn() {
    // Bytes of a record, bytes of a read, and how much may be decrypted in one turn.
    for (record, most, turn_max) in
        [(16_384, 1 << 20, 4 << 20), (8, 1 << 20, 64 << 10), (16_384, 100, 16 << 10)]
    {
        let (_transport, mut inlet, mut peer) = encrypted(&[&version::TLS13]).await;
        let total = if record < 100 { 400_000 } else { 24 << 20 };
        let total = if most == 100 { 400_000 } else { total };
        let sending = tokio::spawn(async move {
            let mut sent = 0;
            while sent < total {
                let mut records = Vec::new();
                while records.len() < 200_000 {
                    records.extend(peer.encrypt(&vec![5; record]));
                    sent += record;
                }
                if peer.socket.write_all(&records).await.is_err() {
                    break;
                }
            }
            peer
        });
        let (mut read, mut in_turn) = (0, 0);
        let mut target = vec![0; most];
        // Polled by hand: a turn lasts as long as the read is ready.
        while read < total {
            let got = std::future::poll_fn(|context| {
                let mut reading = std::pin::pin!(inlet.read(&mut target));
                match reading.as_mut().poll(context) {
                    std::task::Poll::Ready(got) => std::task::Poll::Ready(Some(got)),
                    std::task::Poll::Pending => std::task::Poll::Ready(None),
                }
            })
            .await;
            match got {
                Some(got) => {
                    let got = got.unwrap();
                    (read, in_turn) = (read + got, in_turn + got);
                    assert!(
                        in_turn <= turn_max,
                        "{in_turn} bytes in one turn, in records of {record}, by {most}"
                    );
                }
                None => {
                    in_turn = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
        sending.await.unwrap();
    }
}

/// Inlet invariant 6: an error behind plaintext is neither lost nor delayed.
#[tokio::test]
async fn an_error_behind_plaintext_is_the_end_of_every_read_after_it() {
    for version in BOTH {
        let (transport, mut inlet, mut peer) = encrypted(&[version]).await;
        let mut records = peer.encrypt(&[7; 5000]);
        let mut broken = peer.encrypt(&[7; 5000]);
        *broken.last_mut().unwrap() ^= 1;
        records.extend(&broken);
        peer.send(&records).await;
        delivered(&transport, records.len()).await;
        assert_eq!(read(&mut inlet, 100_000).await, [7; 5000]);
        for _ in 0..3 {
            tokio::time::timeout(PATIENCE, inlet.readable())
                .await
                .expect("no wait for a dead session")
                .unwrap();
            let mut target = [0; 100];
            let error = tokio::time::timeout(PATIENCE, inlet.read(&mut target)).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}

/// TLS invariant 5: at the end of its keys nothing counts as sent that was not encrypted.
#[tokio::test]
async fn keys_that_are_used_up_encrypt_no_more_and_say_so_before() {
    for version in BOTH {
        let (transport, _inlet, mut peer) = encrypted(&[version]).await;
        let mut taken = 0;
        let mut was_worn = 0;
        let kind = loop {
            if transport.has_worn_keys() {
                was_worn += 1;
            }
            match transport.try_write_vectored(&[IoSlice::new(b"answer")]) {
                Ok(some) => {
                    taken += some;
                    assert_eq!(peer.read(some).await.len(), some, "all that was taken arrives");
                }
                Err(error) => break error.kind(),
            }
        };
        assert_eq!(kind, io::ErrorKind::ConnectionAborted);
        assert!(
            was_worn > 100 && taken / 6 > 9000,
            "{was_worn} records after the first sign, {taken} bytes in all"
        );
        assert!(transport.try_write_vectored(&[IoSlice::new(b"answer")]).is_err());
        transport.end();
    }
}

#[tokio::test]
async fn an_end_that_is_said_differs_from_one_that_is_not() {
    for version in BOTH {
        let (_transport, mut inlet, mut peer) = encrypted(&[version]).await;
        let mut records = peer.encrypt(b"last");
        peer.tls.send_close_notify();
        records.extend(peer.take_records());
        peer.send(&records).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(read(&mut inlet, 100).await, b"last");
        inlet.readable().await.unwrap();
        assert_eq!(read(&mut inlet, 100).await, b"", "the end");

        let (_transport, mut inlet, mut peer) = encrypted(&[version]).await;
        let records = peer.encrypt(b"cut off");
        peer.send(&records[..records.len() - 2]).await;
        drop(peer);
        let mut target = [0; 100];
        let error = inlet.read(&mut target).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}

/// This side says so, too.
#[tokio::test]
async fn the_peer_is_told_of_the_end() {
    let (transport, _inlet, mut peer) = encrypted(&[]).await;
    transport.try_write_vectored(&[IoSlice::new(b"bye")]).unwrap();
    transport.end();
    assert_eq!(peer.read(3).await, b"bye");
    let mut some = [0; 100];
    let got = peer.socket.read(&mut some).await.unwrap_or(0);
    let mut some = &some[..got];
    if got > 0 {
        peer.tls.read_tls(&mut some).unwrap();
    }
    assert!(peer.tls.process_new_packets().unwrap().peer_has_closed());
}

#[tokio::test]
async fn what_is_no_tls_is_an_error_of_tls() {
    let (transport, mut inlet, mut peer) = encrypted(&[]).await;
    peer.send(b"\x00\x00\x00\x10 a frame without TLS").await;
    let mut target = [0; 100];
    let error = inlet.read(&mut target).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.get_ref().unwrap().is::<rustls::Error>(), "{error}");
    assert!(transport.has_pending(), "the alert");
}
