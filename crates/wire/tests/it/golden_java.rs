//! Captures of Java clients and bookies: every frame decodes, and encodes again to the same bytes.
//!
//! One difference is allowed, in v3 only. We write the fields of a message in order of their numbers, as Java does up to
//! 4.17. Java 4.18 writes `flag = 100` first, where its schema mentions it. Protobuf gives the order no meaning, so those
//! frames are compared after sorting the fields of the captured one.

use crate::common::golden::{Capture, Direction, captures};
use bindery_wire::v3::{self, DecodeError, Request};
use bindery_wire::{Protocol, v2};
use bytes::{Bytes, BytesMut};
use prost::Message;

/// The frame our encoder makes of a payload's meaning.
fn encoded_again(direction: Direction, payload: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = BytesMut::new();
    match (Protocol::of(payload), direction) {
        (None, _) => return Err("empty frame".to_owned()),
        (Some(Protocol::V2), Direction::ClientToServer) => {
            let request = v2::Request::decode(payload).map_err(|error| error.to_string())?;
            if let v2::Request::Auth(auth) = request {
                v3::decode_auth_message(auth.message).map_err(|error| error.to_string())?;
            }
            request.encode(&mut out);
        }
        (Some(Protocol::V2), Direction::ServerToClient) => {
            let response = v2::Response::decode(payload).map_err(|error| error.to_string())?;
            if let v2::Response::Auth { message, .. } = response {
                v3::decode_auth_message(message).map_err(|error| error.to_string())?;
            }
            response.encode(&mut out);
        }
        (Some(Protocol::V3), Direction::ClientToServer) => {
            match Request::decode(Bytes::copy_from_slice(payload)) {
                Ok(_) | Err(DecodeError::Refused(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
            let message = v3::proto::Request::decode(payload).map_err(|error| error.to_string())?;
            v3::put_frame(&message, &mut out);
        }
        (Some(Protocol::V3), Direction::ServerToClient) => {
            let response =
                v3::decode_response(Bytes::copy_from_slice(payload)).map_err(|error| error.to_string())?;
            v3::put_frame(&response, &mut out);
        }
    }
    Ok(out.to_vec())
}

/// A protobuf message with its fields in order of their numbers, and those of the messages directly inside it.
fn in_field_order(message: &[u8], are_messages: bool) -> Vec<u8> {
    let mut fields: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let key = prost::decode_length_delimiter(&mut rest).expect("a decoded message has whole keys") as u64;
        let mut field = Vec::new();
        prost::encode_length_delimiter(key as usize, &mut field).expect("a Vec grows");
        let mut ahead = rest;
        let value = prost::decode_length_delimiter(&mut ahead).expect("a decoded message has whole values");
        field.extend_from_slice(&rest[..rest.len() - ahead.len()]);
        rest = ahead;
        match key & 7 {
            0 => {}
            2 => {
                let (bytes, tail) = rest.split_at(value);
                field.extend(if are_messages { in_field_order(bytes, false) } else { bytes.to_vec() });
                rest = tail;
            }
            other => panic!("the protocol has no field of wire type {other}"),
        }
        fields.push((key >> 3, field));
    }
    fields.sort_by_key(|(number, _)| *number);
    fields.into_iter().flat_map(|(_, field)| field).collect()
}

/// How many frames of a capture came in another order of fields than ours.
fn check(capture: &Capture) -> usize {
    let payloads = capture.payloads();
    assert!(!payloads.is_empty(), "{} is empty", capture.name);
    let mut reordered = 0;
    for (index, payload) in payloads.iter().enumerate() {
        let at = format!("{}, frame {index}", capture.name);
        let again = encoded_again(capture.direction, payload).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(again[..4], u32::to_be_bytes(payload.len() as u32), "{at}");
        if again[4..] != **payload {
            assert_eq!(Protocol::of(payload), Some(Protocol::V3), "{at}");
            assert_eq!(again[4..], in_field_order(payload, true), "{at}");
            reordered += 1;
        }
    }
    reordered
}

#[test]
fn every_captured_frame_encodes_to_the_bytes_it_came_as() {
    let all = captures();
    let frames: usize = all.iter().map(|capture| capture.payloads().len()).sum();
    let reordered: usize = all.iter().map(check).sum();
    println!("{} captures, {frames} frames, {reordered} with fields in another order", all.len());
}

/// Up to Java 4.17 even the order of fields is ours.
#[test]
fn frames_of_java_417_clients_are_identical_to_ours() {
    let all = captures();
    let older: Vec<&Capture> = all.iter().filter(|capture| capture.name.starts_with("client-4.17")).collect();
    assert!(!older.is_empty(), "no capture of a 4.17 client");
    for capture in older {
        assert_eq!(check(capture), 0, "{}", capture.name);
    }
}

/// Requests of Java clients on the hot path are not left to the slow way.
#[test]
fn adds_and_plain_reads_of_java_clients_are_read_by_hand() {
    let (mut adds, mut reads) = (0, 0);
    for capture in captures() {
        if capture.direction != Direction::ClientToServer {
            continue;
        }
        for payload in capture.payloads() {
            if Protocol::of(payload) != Some(Protocol::V3) {
                continue;
            }
            let Ok(request) = Request::decode(Bytes::copy_from_slice(payload)) else { continue };
            let by_hand = v3::HotRequest::parse(payload);
            assert_eq!(by_hand, crate::common::checks::hot_form(&request), "{}", capture.name);
            match by_hand {
                Some(v3::HotRequest::Add(_)) => adds += 1,
                Some(v3::HotRequest::Read(_)) => reads += 1,
                None => {}
            }
        }
    }
    assert!(adds > 5 && reads > 0, "{adds} adds, {reads} reads");
}
