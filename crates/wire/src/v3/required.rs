//! Checks what the generated decoder does not: that required fields are there.
//!
//! Without this an add that lacks its entry id would read as an add of entry 0. The check walks the wire format once,
//! as deep as the shapes below, allocates nothing, and refuses protobuf groups, which no message of the protocol has.
//!
//! Stricter than the Java parser in one corner: each occurrence of a repeated body must be complete by itself, where
//! protobuf would merge them. No client splits a message so.

use super::DecodeError;

/// The required fields of one message.
pub(super) struct Shape {
    name: &'static str,
    /// Bit n - 1 for required field n; no required field has a number above 8.
    required: u8,
    nested: &'static [(u32, &'static Shape)],
}

const fn flat(name: &'static str, required: u8) -> Shape {
    Shape { name, required, nested: &[] }
}

const FIELD_1: u8 = 0b1;
const FIELDS_1_2: u8 = 0b11;
const FIELDS_1_3: u8 = 0b111;
const FIELDS_1_4: u8 = 0b1111;
const FIELDS_1_5: u8 = 0b11111;

pub(super) static AUTH_MESSAGE: Shape = flat("AuthMessage", FIELDS_1_2);
pub(super) static HEADER: Shape = flat("BKPacketHeader", FIELDS_1_3);

static RECONCILE_REQUEST: Shape = Shape {
    name: "ReconcileLedgersRequest",
    required: FIELD_1,
    nested: &[
        (2, &flat("ReconcileLedgersRequest.Object", FIELDS_1_5)),
        (
            3,
            &Shape {
                name: "ReconcileLedgersRequest.Ledger",
                required: FIELDS_1_2,
                nested: &[(3, &flat("ReconcileLedgersRequest.Extent", FIELDS_1_3))],
            },
        ),
    ],
};

static RECONCILE_RESPONSE: Shape = Shape {
    name: "ReconcileLedgersResponse",
    required: FIELD_1,
    nested: &[(2, &flat("ReconcileLedgersResponse.Result", FIELDS_1_3))],
};

pub(super) static REQUEST: Shape = Shape {
    name: "Request",
    required: FIELD_1,
    nested: &[
        (1, &HEADER),
        (100, &flat("ReadRequest", FIELDS_1_2)),
        (101, &flat("AddRequest", FIELDS_1_4)),
        (102, &AUTH_MESSAGE),
        (103, &flat("WriteLacRequest", FIELDS_1_4)),
        (104, &flat("ReadLacRequest", FIELD_1)),
        (107, &flat("ForceLedgerRequest", FIELD_1)),
        (108, &flat("GetListOfEntriesOfLedgerRequest", FIELD_1)),
        (200, &flat("ContextPair", FIELDS_1_2)),
        (1001, &RECONCILE_REQUEST),
    ],
};

pub(super) static RESPONSE: Shape = Shape {
    name: "Response",
    required: FIELDS_1_2,
    nested: &[
        (1, &HEADER),
        (100, &flat("ReadResponse", FIELDS_1_3)),
        (101, &flat("AddResponse", FIELDS_1_3)),
        (102, &AUTH_MESSAGE),
        (103, &flat("WriteLacResponse", FIELDS_1_2)),
        (104, &flat("ReadLacResponse", FIELDS_1_2)),
        (105, &flat("GetBookieInfoResponse", FIELD_1)),
        (107, &flat("ForceLedgerResponse", FIELDS_1_2)),
        (108, &flat("GetListOfEntriesOfLedgerResponse", FIELDS_1_2)),
        (1001, &RECONCILE_RESPONSE),
    ],
};

/// How many bytes the bodies with number `field` of a well-formed message have, all occurrences together.
pub(super) fn body_size_bytes(message: &[u8], field: u32) -> usize {
    bodies(message, field).map(<[u8]>::len).sum()
}

/// The last body with number `field` of a well-formed message.
pub(super) fn last_body(message: &[u8], field: u32) -> Option<&[u8]> {
    bodies(message, field).last()
}

/// The bodies with number `field`; what is not well-formed ends them.
fn bodies(message: &[u8], field: u32) -> impl Iterator<Item = &[u8]> {
    let mut rest = message;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let key = take_varint(&mut rest)?;
            let value = take_value((key & 7) as u8, &mut rest)?;
            if let (true, Some(bytes)) = (key >> 3 == u64::from(field), value) {
                return Some(bytes);
            }
        }
        None
    })
}

/// Errors unless `message` is well-formed down to the bodies and has every required field.
pub(super) fn check(message: &[u8], shape: &Shape) -> Result<(), DecodeError> {
    let malformed = DecodeError::Malformed { message: shape.name };
    let mut rest = message;
    let mut missing = shape.required;
    while !rest.is_empty() {
        let key = take_varint(&mut rest).ok_or(malformed.clone())?;
        let field = u32::try_from(key >> 3).map_err(|_| malformed.clone())?;
        let value = take_value((key & 7) as u8, &mut rest).ok_or(malformed.clone())?;
        if let 1..=8 = field {
            missing &= !(1 << (field - 1));
        }
        if let (Some(bytes), Some((_, nested))) = (value, shape.nested.iter().find(|(n, _)| *n == field)) {
            check(bytes, nested)?;
        }
    }
    if missing != 0 {
        return Err(DecodeError::MissingField { message: shape.name, field: missing.trailing_zeros() + 1 });
    }
    Ok(())
}

/// Skips a field's value; the bytes of a length-delimited one. Outer `None` when malformed.
fn take_value<'a>(wire_type: u8, rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    match wire_type {
        0 => take_varint(rest).map(|_| None),
        1 => take(8, rest).map(|_| None),
        2 => {
            let size_bytes = usize::try_from(take_varint(rest)?).ok()?;
            take(size_bytes, rest).map(Some)
        }
        5 => take(4, rest).map(|_| None),
        _ => None,
    }
}

fn take<'a>(size_bytes: usize, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(size_bytes)?;
    *rest = tail;
    Some(head)
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (index, byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *rest = &rest[index + 1..];
            return Some(value);
        }
    }
    None
}
