//! Big-endian reads off the front of a slice. `None` means the slice is too short; nothing is consumed then.

pub(crate) fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

pub(crate) fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take_array(rest).map(u32::from_be_bytes)
}

pub(crate) fn take_i32(rest: &mut &[u8]) -> Option<i32> {
    take_array(rest).map(i32::from_be_bytes)
}

pub(crate) fn take_i64(rest: &mut &[u8]) -> Option<i64> {
    take_array(rest).map(i64::from_be_bytes)
}
