//! Tells v2 from v3, frame by frame (protocol reference, section 1.2).

/// The protocol of one frame. A response is encoded in the protocol of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The binary protocol: [`crate::v2`].
    V2,
    /// The protobuf protocol: [`crate::v3`].
    V3,
}

impl Protocol {
    /// Judges a frame's payload by its first byte; `None` for an empty payload, which no protocol has (close).
    ///
    /// A v2 packet starts with its version, 0 to 2. Read as a protobuf tag, 0 to 7 would be field number 0, which does
    /// not exist, so no v3 message starts like that: versions 3 to 7 reach the v2 decoder, which answers that they are
    /// bad, as the Java bookie does. Anything else must parse as v3 or the connection is closed.
    pub const fn of(payload: &[u8]) -> Option<Protocol> {
        match payload.first() {
            None => None,
            Some(0x00..=0x07) => Some(Protocol::V2),
            Some(_) => Some(Protocol::V3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_decides() {
        assert_eq!(Protocol::of(&[]), None);
        for byte in 0..=u8::MAX {
            let expected = if byte <= 7 { Protocol::V2 } else { Protocol::V3 };
            assert_eq!(Protocol::of(&[byte, 0xff]), Some(expected), "{byte:#04x}");
        }
    }
}
