//! Numbers of variable length: seven bits in a byte, the lowest first. Only for memory: no file has this encoding.

pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes the next number that [`put`] wrote off the front; 0 when none is left.
pub(crate) fn take(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    number
}

/// The id that is `distance` above `from`.
pub(crate) fn behind(from: i64, distance: u64) -> i64 {
    from.checked_add_unsigned(distance).expect("it was put as the distance of two ids")
}
