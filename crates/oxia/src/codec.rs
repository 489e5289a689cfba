//! Messages between bytes and memory. A request whose elements would take far more memory than its bytes is refused before it is decoded.
//!
//! # Limits     [`ELEMENTS_MAX`] of a request

use crate::proto;
use prost::Message;
use prost::bytes::Buf;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

/// Elements of all repeated fields of a request. An operation of two bytes is some hundred bytes in memory, and four mebibytes have two
/// million of them. Oxia's clients put a thousand operations into a request unless told otherwise.
pub const ELEMENTS_MAX: usize = 10_000;

/// A repeated field whose elements take more memory than bytes.
#[derive(Debug, Clone, Copy)]
pub struct Repeated {
    number: u32,
    elements: Elements,
}

#[derive(Debug, Clone, Copy)]
enum Elements {
    /// With such fields of their own.
    Messages(&'static [Repeated]),
    /// Of variable length. Many may lie in one field.
    Numbers,
}

const fn messages(number: u32, fields: &'static [Repeated]) -> Repeated {
    Repeated { number, elements: Elements::Messages(fields) }
}

/// A message that is decoded.
pub trait Bounded {
    /// Its fields that count; none of an answer, whose sender was chosen.
    const REPEATED: &'static [Repeated] = &[];
}

impl Bounded for proto::WriteRequest {
    const REPEATED: &'static [Repeated] = &[
        messages(2, &[Repeated { number: 7, elements: Elements::Numbers }, messages(8, &[])]),
        messages(3, &[]),
        messages(4, &[]),
    ];
}

impl Bounded for proto::ReadRequest {
    const REPEATED: &'static [Repeated] = &[messages(2, &[])];
}

// Requests without repeated fields.
impl Bounded for proto::CloseSessionRequest {}
impl Bounded for proto::CreateSessionRequest {}
impl Bounded for proto::GetSequenceUpdatesRequest {}
impl Bounded for proto::ListRequest {}
impl Bounded for proto::NotificationsRequest {}
impl Bounded for proto::RangeScanRequest {}
impl Bounded for proto::SessionHeartbeat {}
impl Bounded for proto::ShardAssignmentsRequest {}

// Answers.
impl Bounded for proto::CloseSessionResponse {}
impl Bounded for proto::CreateSessionResponse {}
impl Bounded for proto::GetSequenceUpdatesResponse {}
impl Bounded for proto::KeepAliveResponse {}
impl Bounded for proto::ListResponse {}
impl Bounded for proto::NotificationBatch {}
impl Bounded for proto::RangeScanResponse {}
impl Bounded for proto::ReadResponse {}
impl Bounded for proto::ShardAssignments {}
impl Bounded for proto::WriteResponse {}

/// The codec of client and server.
#[derive(Debug, Clone)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> BoundedCodec<T, U> {
        BoundedCodec(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Bounded + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(PhantomData)
    }
}

/// Decodes what [`BoundedCodec`] allows.
#[derive(Debug, Clone)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Message + Bounded + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        let mut left = ELEMENTS_MAX;
        count(&message, U::REPEATED, &mut left).map_err(|refused| match refused {
            Refused::Malformed => Status::invalid_argument("the message is malformed"),
            Refused::TooMany => Status::invalid_argument(format!(
                "a request has at most {ELEMENTS_MAX} operations and their parts"
            )),
        })?;
        let decoded = U::decode(message).map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Some(decoded))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Malformed,
    TooMany,
}

/// Takes the elements of an encoded message from those that are left. Nothing is allocated.
fn count(message: &[u8], repeated: &[Repeated], left: &mut usize) -> Result<(), Refused> {
    if repeated.is_empty() {
        return Ok(());
    }
    let mut rest = message;
    while !rest.is_empty() {
        let field = Field::take(&mut rest).ok_or(Refused::Malformed)?;
        let Some(of) = repeated.iter().find(|of| of.number == field.number) else { continue };
        let elements = match (of.elements, field.packed) {
            // Each number ends with a byte below 0x80.
            (Elements::Numbers, Some(numbers)) => numbers.iter().filter(|byte| **byte < 0x80).count(),
            (Elements::Numbers, None) | (Elements::Messages(_), _) => 1,
        };
        *left = left.checked_sub(elements).ok_or(Refused::TooMany)?;
        if let (Elements::Messages(inner), Some(message)) = (of.elements, field.packed) {
            count(message, inner, left)?;
        }
    }
    Ok(())
}

/// A field of an encoded message.
struct Field<'a> {
    number: u32,
    /// The bytes of a field that begins with its length.
    packed: Option<&'a [u8]>,
}

impl<'a> Field<'a> {
    /// Takes the first field off `rest`. `None` if it is cut off, or of a wire type that proto3 does not have.
    fn take(rest: &mut &'a [u8]) -> Option<Field<'a>> {
        let key = u32::try_from(take_number(rest)?).ok()?;
        let mut packed = None;
        match key & 7 {
            0 => drop(take_number(rest)?),
            1 => drop(take_bytes(rest, 8)?),
            2 => {
                let size = usize::try_from(take_number(rest)?).ok()?;
                packed = Some(take_bytes(rest, size)?);
            }
            5 => drop(take_bytes(rest, 4)?),
            _ => return None,
        }
        Some(Field { number: key >> 3, packed })
    }
}

/// A number of variable length: seven bits of each byte, the lowest first. Bits beyond 64 are lost, as in prost.
fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take_bytes<'a>(rest: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(size)?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{
        DeleteRangeRequest, DeleteRequest, GetRequest, PutRequest, ReadRequest, SecondaryIndex, WriteRequest,
    };
    use proptest::prelude::*;

    fn elements<T: Bounded>(message: &[u8]) -> Result<usize, Refused> {
        let mut left = ELEMENTS_MAX;
        count(message, T::REPEATED, &mut left).map(|()| ELEMENTS_MAX - left)
    }

    #[test]
    fn elements_of_all_depths_count() {
        let put = PutRequest {
            key: "k".into(),
            value: vec![0x3a; 300].into(),
            sequence_key_delta: vec![1, 1 << 40, 3],
            secondary_indexes: vec![SecondaryIndex::default(); 5],
            override_version_id: Some(-7),
            ..PutRequest::default()
        };
        let request = WriteRequest {
            shard: Some(0),
            puts: vec![put, PutRequest::default()],
            deletes: vec![DeleteRequest::default(); 3],
            delete_ranges: vec![DeleteRangeRequest::default(); 4],
        };
        assert_eq!(elements::<WriteRequest>(&request.encode_to_vec()), Ok(2 + 3 + 5 + 3 + 4));
        let request = ReadRequest { shard: None, gets: vec![GetRequest::default(); 6] };
        assert_eq!(elements::<ReadRequest>(&request.encode_to_vec()), Ok(6));
        // Numbers that are not packed: a put of 4 bytes with two of them.
        assert_eq!(elements::<WriteRequest>(&[0x12, 4, 0x38, 1, 0x38, 2]), Ok(3));
    }

    /// Two bytes each: in memory they would be some hundred times as large.
    #[test]
    fn too_many_elements_are_refused() {
        for (element, is_nested) in
            [([0x12, 0], false), ([0x1a, 0], false), ([0x22, 0], false), ([0x42, 0], true)]
        {
            let of = |elements: usize| {
                let elements = element.repeat(elements);
                let head = [&[0x12][..], &number(elements.len() as u64)].concat();
                if is_nested { [head, elements].concat() } else { elements }
            };
            let most = ELEMENTS_MAX - usize::from(is_nested);
            assert_eq!(elements::<WriteRequest>(&of(most)), Ok(ELEMENTS_MAX));
            assert_eq!(elements::<WriteRequest>(&of(most + 1)), Err(Refused::TooMany));
        }
        let packed = vec![1; ELEMENTS_MAX];
        let put = [&[0x3a][..], &number(packed.len() as u64), &packed].concat();
        let request = [&[0x12][..], &number(put.len() as u64), &put].concat();
        assert_eq!(elements::<WriteRequest>(&request), Err(Refused::TooMany));
    }

    fn number(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    #[test]
    fn malformed_messages_are_refused() {
        let too_long = [&[0x0a][..], &[0xff; 9], &[1]].concat();
        for bad in [
            &[0x80][..],
            &[0xff; 11],
            &[0x12],
            &[0x12, 5, 0],
            &[0x12, 2, 0x42, 7],
            &[0x0d, 1, 2, 3],
            &[0x09, 1, 2, 3, 4, 5, 6, 7],
            &[0x13, 0x14],
            &[0x16],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 1, 0],
            &too_long[..],
        ] {
            assert_eq!(elements::<WriteRequest>(bad), Err(Refused::Malformed), "{bad:x?}");
            assert!(WriteRequest::decode(bad).is_err(), "{bad:x?}");
        }
        assert_eq!(elements::<WriteRequest>(&[]), Ok(0));
    }

    proptest! {
        /// Decoding gives as many elements as were counted, whatever the bytes are.
        #[test]
        fn the_count_is_what_decoding_gives(
            bytes in prop::collection::vec(prop_oneof![
                prop::sample::select(vec![0x08u8, 0x12, 0x1a, 0x22, 0x3a, 0x38, 0x42, 0, 1, 2, 4]),
                any::<u8>(),
            ], 0..60),
        ) {
            let Ok(decoded) = WriteRequest::decode(&bytes[..]) else { return Ok(()) };
            let of_put = |put: &PutRequest| 1 + put.sequence_key_delta.len() + put.secondary_indexes.len();
            let all = decoded.puts.iter().map(of_put).sum::<usize>() + decoded.deletes.len() + decoded.delete_ranges.len();
            match elements::<WriteRequest>(&bytes) {
                Ok(counted) => prop_assert_eq!(counted, all),
                // Groups, which prost passes over.
                Err(refused) => prop_assert_eq!(refused, Refused::Malformed),
            }
        }
    }
}
