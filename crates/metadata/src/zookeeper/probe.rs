//! Probes a port whose process accepts connections but does not answer: is it a ZooKeeper server that is not serving, or a port of
//! another kind?
//!
//! # Data flow
//! ```text
//! srvr                            -> text of a ZooKeeper server
//! a read of BookKeeper's protocol -> answer of a bookie
//! the first message of TLS        -> a record of TLS
//! ```
//! The answers decide only how an error is worded and whether to go on waiting. They are not trusted beyond that, so the questions are
//! sent in plain text even where the connection itself would use TLS.
//!
//! # Limits     [`ANSWER_BYTES_MAX`] of each answer; [`ANSWER_WAIT_MAX`] for each of at most three questions,
//! [`SECOND_ANSWER_WAIT_MAX`] for one that is repeated

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fault::Fault;

/// The first bytes of an answer are enough to tell one protocol from another.
const ANSWER_BYTES_MAX: usize = 64;

/// A port that takes longer counts as silent.
const ANSWER_WAIT_MAX: Duration = Duration::from_millis(300);

/// How long a server that speaks TLS may take when it is asked once more in plain text, before it is reported to speak TLS only: a
/// JVM that has just started is slow.
const SECOND_ANSWER_WAIT_MAX: Duration = Duration::from_secs(1);

/// A command that ZooKeeper answers in plain text whether or not it is serving, and even when its administrator forbids the command.
const FOUR_LETTER_WORD: &[u8] = b"srvr";

/// READ_ENTRY of protocol version 2, for the largest ledger id, which nobody uses. The answer repeats version and opcode.
const BOOKIE_READ: &[u8] = b"\0\0\0\x14\x02\x02\0\0\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0";

/// ClientHello of TLS 1.2 with one cipher suite. A TLS server accepts or refuses it, either way in a TLS record.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\0\x2d\x01\0\0\x29\x03\x03\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\xc0\x2f\x01\0";

/// What is found at a port that did not answer ZooKeeper's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    /// A ZooKeeper server that speaks plain text. It may speak TLS on the same port as well (`client.portUnification`): `has_tls` is
    /// `None` if it did not answer in time.
    ZooKeeper { is_serving: bool, has_tls: Option<bool> },
    /// A bookie's port for its clients.
    Bookie,
    /// The port of something that speaks another protocol.
    Other(Spoken),
    /// It answered none of the questions.
    Unknown,
}

/// A protocol that is recognised by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    Http,
    Tls,
}

/// Recognises another protocol by the first bytes that a server sent. None of them can begin a frame of ZooKeeper: read as a length,
/// each exceeds the limit.
pub(super) fn spoken(begin: &[u8]) -> Option<Spoken> {
    match begin {
        [b'H', b'T', b'T', b'P', ..] => Some(Spoken::Http),
        // A record of TLS: an alert, or a handshake.
        [0x15 | 0x16, 3, 0..=4, ..] => Some(Spoken::Tls),
        _ => None,
    }
}

impl Spoken {
    pub(super) fn fault(self) -> Fault {
        Fault::WrongProtocol(match self {
            Spoken::Http => {
                "it speaks HTTP: give the port of a ZooKeeper server for its clients (clientPort)".to_owned()
            }
            Spoken::Tls => {
                "it speaks TLS: set zkTlsEnable=true if it is the secure client port of a ZooKeeper server, or give the port \
                 for plain text (clientPort)"
                    .to_owned()
            }
        })
    }
}

/// Probes the port of `server` (HOST:PORT). Dropping the future closes the sockets.
pub(super) async fn look(server: &str) -> Port {
    // One question after the other, so that a server that limits connections sees one at a time.
    let text = exchange(server, FOUR_LETTER_WORD, ANSWER_WAIT_MAX).await;
    if let Some(is_serving) = zookeeper(&text.bytes) {
        let record = exchange(server, CLIENT_HELLO, ANSWER_WAIT_MAX).await;
        let has_tls = spoken(&record.bytes) == Some(Spoken::Tls);
        return Port::ZooKeeper { is_serving, has_tls: (has_tls || record.is_over).then_some(has_tls) };
    }
    if let Some(spoken) = spoken(&text.bytes) {
        return Port::Other(spoken);
    }
    let answer = exchange(server, BOOKIE_READ, ANSWER_WAIT_MAX).await;
    // Before TLS is tried, which a bookie may speak on the same port.
    if is_of_bookie(&answer.bytes) {
        return Port::Bookie;
    }
    if let Some(spoken) = spoken(&answer.bytes) {
        return Port::Other(spoken);
    }
    let record = exchange(server, CLIENT_HELLO, ANSWER_WAIT_MAX).await;
    match spoken(&record.bytes) {
        // Either a port for TLS alone, which waits for the rest of a record, or a slow ZooKeeper server with both on one port.
        Some(Spoken::Tls) if !text.is_over => {
            let text = exchange(server, FOUR_LETTER_WORD, SECOND_ANSWER_WAIT_MAX).await;
            match zookeeper(&text.bytes) {
                Some(is_serving) => Port::ZooKeeper { is_serving, has_tls: Some(true) },
                None => Port::Other(Spoken::Tls),
            }
        }
        spoken => spoken.map_or(Port::Unknown, Port::Other),
    }
}

/// Whether the ZooKeeper server that answered `srvr` with this text is serving; `None` if the text is not ZooKeeper's. A server that
/// forbids the command is taken to be serving.
fn zookeeper(text: &[u8]) -> Option<bool> {
    if text.starts_with(b"This ZooKeeper instance is not currently serving") {
        return Some(false);
    }
    (text.starts_with(b"Zookeeper version") || text.starts_with(b"srvr is not executed")).then_some(true)
}

fn is_of_bookie(answer: &[u8]) -> bool {
    // Length, version and opcode, code.
    answer.len() >= 12 && answer[..3] == [0; 3] && answer[4..6] == BOOKIE_READ[4..6]
}

/// The beginning of an answer.
struct Answer {
    /// The bytes that came.
    bytes: Vec<u8>,
    /// Whether it was over in time: the server answered or closed the connection, or there was none.
    is_over: bool,
}

async fn exchange(server: &str, question: &[u8], wait: Duration) -> Answer {
    let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
    let exchange = async {
        let mut socket = TcpStream::connect(server).await?;
        socket.write_all(question).await?;
        while answer.len() < ANSWER_BYTES_MAX && !is_enough(&answer) {
            let room = (ANSWER_BYTES_MAX - answer.len()) as u64;
            if (&mut socket).take(room).read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    // The error is dropped: the attempt at a session has reported as much.
    let is_over = timeout(wait, exchange).await.is_ok();
    Answer { bytes: answer, is_over }
}

fn is_enough(answer: &[u8]) -> bool {
    zookeeper(answer).is_some() || is_of_bookie(answer) || spoken(answer).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_told_by_what_they_answer() {
        assert_eq!(zookeeper(b"Zookeeper version: 3.9.3-, built on 2024"), Some(true));
        assert_eq!(zookeeper(b"srvr is not executed because it is not in the whitelist."), Some(true));
        assert_eq!(zookeeper(b"This ZooKeeper instance is not currently serving requests"), Some(false));
        assert_eq!(zookeeper(b"HTTP/1.1 400 Bad Request"), None);
        assert_eq!(spoken(b"HTTP/1.1 400 Bad Request"), Some(Spoken::Http));
        assert_eq!(spoken(&[0x15, 3, 3, 0, 2, 2, 70]), Some(Spoken::Tls));
        assert_eq!(spoken(&[0, 0, 0, 37]), None);
        // Lengths of the record and of the message in it.
        assert_eq!(CLIENT_HELLO.len(), 5 + 0x2d);
        assert_eq!(CLIENT_HELLO.len(), 9 + 0x29);
        let mut refusal = [0; 28];
        refusal[3] = 24;
        refusal[4..6].copy_from_slice(&[2, 2]);
        assert!(is_of_bookie(&refusal));
        assert!(!is_of_bookie(&refusal[..8]) && !is_of_bookie(b"HTTP/1.1 400 Bad Request"));
    }
}
