//! The values of the store, encode beside decode. Little-endian; redb's pages carry the checksums.
//!
//! ```text
//! node     version u8 (1) | czxid mzxid pzxid ctime_ms mtime_ms owner i64 | version cversion aversion i32
//!          | has_data u8, size u32, bytes | rules u32, each: perms i32, scheme, id (size u32, bytes)
//! session  version u8 (1) | timeout_ms u32 | password 16 bytes
//! ```

use crate::sessions::{PASSWORD_SIZE, SessionRecord};
use crate::tree::NodeRecord;
use crate::wire::Acl;
use bytes::{Buf, BufMut, Bytes};

const VERSION: u8 = 1;

pub(super) fn encode_node(node: &NodeRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + node.data.as_ref().map_or(0, Bytes::len));
    out.put_u8(VERSION);
    for number in [node.czxid, node.mzxid, node.pzxid, node.ctime_ms, node.mtime_ms, node.owner] {
        out.put_i64_le(number);
    }
    for number in [node.version, node.cversion, node.aversion] {
        out.put_i32_le(number);
    }
    out.put_u8(node.data.is_some().into());
    put_bytes(&mut out, node.data.as_deref().unwrap_or_default());
    out.put_u32_le(u32::try_from(node.acl.len()).expect("rules come from one frame"));
    for rule in node.acl.iter() {
        out.put_i32_le(rule.perms);
        put_bytes(&mut out, rule.scheme.as_bytes());
        put_bytes(&mut out, rule.id.as_bytes());
    }
    out
}

pub(super) fn decode_node(value: &[u8]) -> Option<NodeRecord> {
    let mut input = value;
    (input.try_get_u8().ok()? == VERSION).then_some(())?;
    let mut longs = [0; 6];
    for number in &mut longs {
        *number = input.try_get_i64_le().ok()?;
    }
    let mut ints = [0; 3];
    for number in &mut ints {
        *number = input.try_get_i32_le().ok()?;
    }
    let has_data = input.try_get_u8().ok()? != 0;
    let data = Bytes::copy_from_slice(take_bytes(&mut input)?);
    let rules = input.try_get_u32_le().ok()? as usize;
    let mut acl = Vec::new();
    for _ in 0..rules {
        let perms = input.try_get_i32_le().ok()?;
        let scheme = String::from_utf8(take_bytes(&mut input)?.to_vec()).ok()?;
        let id = String::from_utf8(take_bytes(&mut input)?.to_vec()).ok()?;
        acl.push(Acl { perms, scheme, id });
    }
    let [czxid, mzxid, pzxid, ctime_ms, mtime_ms, owner] = longs;
    let [version, cversion, aversion] = ints;
    input.is_empty().then(|| NodeRecord {
        data: has_data.then_some(data),
        acl: acl.into(),
        czxid,
        mzxid,
        pzxid,
        ctime_ms,
        mtime_ms,
        version,
        cversion,
        aversion,
        owner,
    })
}

pub(super) fn encode_session(session: &SessionRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + PASSWORD_SIZE);
    out.put_u8(VERSION);
    out.put_u32_le(session.timeout_ms);
    out.put_slice(&session.password);
    out
}

pub(super) fn decode_session(value: &[u8]) -> Option<SessionRecord> {
    let mut input = value;
    (input.try_get_u8().ok()? == VERSION).then_some(())?;
    let timeout_ms = input.try_get_u32_le().ok()?;
    Some(SessionRecord { timeout_ms, password: input.try_into().ok()? })
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).expect("values come from one frame"));
    out.put_slice(bytes);
}

fn take_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let size = input.try_get_u32_le().ok()? as usize;
    let (head, tail) = input.split_at_checked(size)?;
    *input = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn node()(
            data in prop::option::of(prop::collection::vec(any::<u8>(), 0..50)),
            acl in prop::collection::vec((any::<i32>(), "[a-z]{0,6}", "\\PC{0,9}"), 0..4),
            longs in any::<[i64; 6]>(),
            ints in any::<[i32; 3]>(),
        ) -> NodeRecord {
            let acl = acl.into_iter().map(|(perms, scheme, id)| Acl { perms, scheme, id }).collect();
            let [czxid, mzxid, pzxid, ctime_ms, mtime_ms, owner] = longs;
            let [version, cversion, aversion] = ints;
            let data = data.map(Bytes::from);
            NodeRecord { data, acl, czxid, mzxid, pzxid, ctime_ms, mtime_ms, version, cversion, aversion, owner }
        }
    }

    proptest! {
        #[test]
        fn records_round_trip_and_refuse_other_lengths(node in node(), timeout_ms: u32, password: [u8; 16]) {
            let value = encode_node(&node);
            prop_assert_eq!(decode_node(&value), Some(node));
            for len in 0..value.len() {
                prop_assert_eq!(decode_node(&value[..len]), None);
            }
            prop_assert_eq!(decode_node(&[&value[..], &[0]].concat()), None);
            let session = SessionRecord { timeout_ms, password };
            let value = encode_session(&session);
            prop_assert_eq!(decode_session(&value), Some(session));
            prop_assert_eq!(decode_session(&value[1..]), None);
            prop_assert_eq!(decode_session(&[&value[..], &[0]].concat()), None);
        }
    }
}
