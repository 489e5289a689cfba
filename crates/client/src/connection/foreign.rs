//! Answers that no bookie gives: a port of another kind was connected to.

/// Says what the port speaks, by the first bytes that it sent; `None` when they may be a bookie's. As lengths of frames all of them
/// are above 300 MB.
pub(super) fn protocol(begin: &[u8]) -> Option<&'static str> {
    match begin {
        // A record of TLS: an alert, or a handshake.
        [0x15 | 0x16, 3, 0..=4, ..] => Some(
            "what answers speaks TLS from the first byte, and bookies' clients ask for it with START_TLS: connect to the port \
             that the bookie registers for clients",
        ),
        [b'H', b'T', b'T', b'P', ..] => Some(
            "what answers speaks HTTP: connect to the port that the bookie registers for clients, not to its admin port",
        ),
        _ => None,
    }
}

/// The likely meaning of a connection that ends without a byte.
pub(super) const SILENCE: &str =
    "a bookie that went away, or a port that is none of a bookie for its clients";

/// The same of one whose first bytes are no answer.
pub(super) const STRANGER: &str = ", as from a port that is none of a bookie for its clients";

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_wire::FrameLimit;
    use bindery_wire::frame::split;

    #[test]
    fn other_protocols_are_told_from_answers() {
        let alert = [0x15, 3, 3, 0, 2, 2, 70];
        for (begin, word) in [(&alert[..], "TLS"), (b"HTTP/1.1 400 Bad Request", "HTTP")] {
            assert!(protocol(begin).unwrap().contains(word));
            assert!(split(begin, FrameLimit::PULSAR).is_err(), "no answer begins so");
        }
        for begin in [&[][..], &[0, 0, 0, 24], &[0x15], &[0x15, 4, 0, 0], b"HTT"] {
            assert_eq!(protocol(begin), None, "{begin:?}");
        }
    }
}
