//! A second v2 decoder, written from the tables of the protocol reference (sections 1.3 to 1.5) with offsets instead of
//! a cursor, to compare the real one with. It shares no code with the crate.

/// The meaning of a packet, as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// No answer exists.
    Close,
    /// Answer with this code: version, opcode, ids, code.
    Refuse(Vec<i128>),
    /// A request or a response: version, opcode, flags or code, then numbers in order of their offsets.
    Packet { numbers: Vec<i128>, key: Option<Vec<u8>>, parts: Vec<Vec<u8>> },
}

fn signed(packet: &[u8], offset: usize, size: usize) -> Option<i128> {
    let bytes = packet.get(offset..offset + size)?;
    let unsigned = bytes.iter().fold(0i128, |value, byte| value * 256 + i128::from(*byte));
    let half = 1i128 << (8 * size - 1);
    Some(if unsigned >= half { unsigned - 2 * half } else { unsigned })
}

/// Version, opcode, flags.
fn header(packet: &[u8]) -> Option<(i128, i128, i128)> {
    let version = signed(packet, 0, 1)?;
    let (high, low) = (signed(packet, 1, 1)? & 0xff, signed(packet, 2, 2)? & 0xffff);
    Some(if version == 0 { (0, high * 0x10000 + low, 0) } else { (version, high, low) })
}

pub fn request(packet: &[u8]) -> Seen {
    request_or_short(packet).unwrap_or(Seen::Close)
}

fn request_or_short(packet: &[u8]) -> Option<Seen> {
    let (version, opcode, flags) = header(packet)?;
    let key_at = |offset: usize| {
        if version >= 2 && flags % 2 == 1 { packet.get(offset..offset + 20).map(Some) } else { Some(None) }
    };
    let mut parts = Vec::new();
    let (ids, more, key) = match opcode {
        1 => {
            let key = packet.get(4..24)?;
            parts.push(packet[24..].to_vec());
            let ledger = signed(packet, 24, 8).unwrap_or(-1);
            let entry = signed(packet, 32, 8).unwrap_or(-1);
            let lac = signed(packet, 40, 8);
            if (0..=2).contains(&version) && lac.is_none() {
                return Some(Seen::Refuse(vec![version, opcode, ledger, entry, 100]));
            }
            (vec![ledger, entry], vec![lac.unwrap_or(-1)], Some(key))
        }
        2 => (vec![signed(packet, 4, 8)?, signed(packet, 12, 8)?], vec![], key_at(20)?),
        3 => {
            parts.push(packet[4..].to_vec());
            return Some(Seen::Packet { numbers: vec![version, opcode, flags], key: None, parts });
        }
        7 => {
            let key = key_at(40)?;
            let has_stride = version != 0 && flags >= 0x8000;
            let behind = 40 + key.map_or(0, <[u8]>::len);
            let stride = if has_stride { signed(packet, behind, 4)? } else { 1 };
            let ids = vec![signed(packet, 4, 8)?, signed(packet, 12, 8)?, signed(packet, 20, 8)?];
            let more = vec![signed(packet, 28, 4)?, signed(packet, 32, 8)?, stride];
            if stride < 1 && (0..=2).contains(&version) {
                return Some(Seen::Refuse([vec![version, opcode], ids, vec![100]].concat()));
            }
            (ids, more, key)
        }
        _ => return None,
    };
    if !(0..=2).contains(&version) {
        return Some(Seen::Refuse([vec![version, opcode], ids, vec![103]].concat()));
    }
    let numbers = [vec![version, opcode, flags], ids, more].concat();
    Some(Seen::Packet { numbers, key: key.map(<[u8]>::to_vec), parts })
}

pub fn response(packet: &[u8]) -> Seen {
    response_or_short(packet).unwrap_or(Seen::Close)
}

fn response_or_short(packet: &[u8]) -> Option<Seen> {
    let (version, opcode, flags) = header(packet)?;
    let mut parts = Vec::new();
    if opcode == 3 {
        parts.push(packet[4..].to_vec());
        return Some(Seen::Packet { numbers: vec![version, opcode], key: None, parts });
    }
    if ![1, 2, 7].contains(&opcode) {
        return None;
    }
    let code = signed(packet, 4, 4)?;
    if ![0, 1, 2].contains(&code) && !(100..=107).contains(&code) {
        return None;
    }
    let mut numbers = vec![version, opcode, code, signed(packet, 8, 8)?, signed(packet, 16, 8)?];
    if opcode == 7 {
        numbers.push(signed(packet, 24, 8)?);
        numbers.push(i128::from(code == 0 && flags >= 0x8000));
        let mut at = 32;
        while code == 0 && at < packet.len() {
            let size = usize::try_from(signed(packet, at, 4)?).ok()?;
            parts.push(packet.get(at + 4..at + 4 + size)?.to_vec());
            at += 4 + size;
        }
    }
    if opcode == 2 {
        parts.push(if code == 0 { packet[24..].to_vec() } else { Vec::new() });
    }
    Some(Seen::Packet { numbers, key: None, parts })
}
