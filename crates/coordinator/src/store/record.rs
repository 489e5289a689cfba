//! The values of the store, encode beside decode. Little-endian; redb's pages carry the checksums.
//!
//! ```text
//! node     version u8 | czxid mzxid pzxid ctime_ms mtime_ms owner i64 | version cversion aversion i32
//!          | has_data u8, size u32, bytes | rules u32, each: perms i32, scheme, id (size u32, bytes)
//!          only in version 2: version_id modifications counted i64 | sequence i32 | flags u8: 1 implied, 2 has a writer's name | name (size u32, bytes)
//!          | keys in indexes u32, each: index, key (size u32, bytes)
//! session  version u8 (1) | timeout_ms u32 | password 16 bytes
//!          version u8 (2) | timeout_ms u32 | name of Oxia's client (size u32, bytes)
//! ```
//!
//! Version 1 of a node is written as long as it says everything: the version id is the mzxid, the changes are the version, nothing was counted,
//! and the sequence is the cversion.

use crate::sessions::{PASSWORD_SIZE, SessionRecord};
use crate::tree::NodeRecord;
use crate::tree::secondary::IndexKey;
use crate::wire::Acl;
use bytes::{Buf, BufMut, Bytes};
use std::sync::Arc;

const VERSION: u8 = 1;
/// Of records that Oxia's clients have to do with.
const VERSION_OXIA: u8 = 2;

const FLAG_IMPLIED: u8 = 1;
const FLAG_IDENTITY: u8 = 2;

pub(super) fn encode_node(node: &NodeRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + node.data.as_ref().map_or(0, Bytes::len));
    let is_plain = node.version_id == node.mzxid
        && node.modifications == i64::from(node.version)
        && node.sequence == node.cversion
        && node.counted == 0
        && node.identity.is_none()
        && node.index_keys.is_none()
        && !node.is_implied;
    out.put_u8(if is_plain { VERSION } else { VERSION_OXIA });
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
    if !is_plain {
        out.put_i64_le(node.version_id);
        out.put_i64_le(node.modifications);
        out.put_i64_le(node.counted);
        out.put_i32_le(node.sequence);
        let implied = if node.is_implied { FLAG_IMPLIED } else { 0 };
        out.put_u8(implied | node.identity.as_ref().map_or(0, |_| FLAG_IDENTITY));
        put_bytes(&mut out, node.identity.as_deref().unwrap_or_default().as_bytes());
        let index_keys = node.index_keys.as_deref().unwrap_or_default();
        out.put_u32_le(u32::try_from(index_keys.len()).expect("they come from one request"));
        for of in index_keys {
            put_bytes(&mut out, of.index.as_bytes());
            put_bytes(&mut out, of.key.as_bytes());
        }
    }
    out
}

pub(super) fn decode_node(value: &[u8]) -> Option<NodeRecord> {
    let mut input = value;
    let is_plain = match input.try_get_u8().ok()? {
        VERSION => true,
        VERSION_OXIA => false,
        _ => return None,
    };
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
    let (version_id, modifications, counted, sequence, flags, identity) = match is_plain {
        true => (longs[1], i64::from(ints[0]), 0, ints[1], 0, "".into()),
        false => (
            input.try_get_i64_le().ok()?,
            input.try_get_i64_le().ok()?,
            input.try_get_i64_le().ok()?,
            input.try_get_i32_le().ok()?,
            input.try_get_u8().ok()?,
            take_str(&mut input)?,
        ),
    };
    let mut index_keys = Vec::new();
    if !is_plain {
        for _ in 0..input.try_get_u32_le().ok()? {
            index_keys.push(IndexKey { index: take_str(&mut input)?, key: take_str(&mut input)? });
        }
    }
    if flags & !(FLAG_IMPLIED | FLAG_IDENTITY) != 0 {
        return None;
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
        sequence,
        counted,
        aversion,
        owner,
        version_id,
        modifications,
        identity: (flags & FLAG_IDENTITY != 0).then_some(identity),
        index_keys: (!index_keys.is_empty()).then(|| index_keys.into()),
        is_implied: flags & FLAG_IMPLIED != 0,
    })
}

pub(super) fn encode_session(session: &SessionRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + PASSWORD_SIZE);
    out.put_u8(if session.identity.is_none() { VERSION } else { VERSION_OXIA });
    out.put_u32_le(session.timeout_ms);
    match &session.identity {
        None => out.put_slice(&session.password),
        Some(identity) => put_bytes(&mut out, identity.as_bytes()),
    }
    out
}

pub(super) fn decode_session(value: &[u8]) -> Option<SessionRecord> {
    let mut input = value;
    let version = input.try_get_u8().ok()?;
    let timeout_ms = input.try_get_u32_le().ok()?;
    match version {
        VERSION => Some(SessionRecord { timeout_ms, password: input.try_into().ok()?, identity: None }),
        VERSION_OXIA => {
            let (password, identity) = ([0; PASSWORD_SIZE], Some(take_str(&mut input)?));
            input.is_empty().then_some(SessionRecord { timeout_ms, password, identity })
        }
        _ => None,
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).expect("values come from one frame"));
    out.put_slice(bytes);
}

fn take_str(input: &mut &[u8]) -> Option<Arc<str>> {
    std::str::from_utf8(take_bytes(input)?).ok().map(Arc::from)
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
            oxias in prop::option::of((any::<[i64; 3]>(), any::<i32>(), prop::option::of("\\PC{0,9}"), any::<bool>())),
            index_keys in prop::collection::vec(("[a-z]{0,4}", "\\PC{0,9}"), 0..3),
        ) -> NodeRecord {
            let acl = acl.into_iter().map(|(perms, scheme, id)| Acl { perms, scheme, id }).collect();
            let [czxid, mzxid, pzxid, ctime_ms, mtime_ms, owner] = longs;
            let [version, cversion, aversion] = ints;
            let data = data.map(Bytes::from);
            let ([version_id, modifications, counted], sequence, identity, is_implied) =
                oxias.unwrap_or(([mzxid, version.into(), 0], cversion, None, false));
            let identity = identity.map(Arc::from);
            let index_keys: Vec<IndexKey> =
                index_keys.into_iter().map(|(index, key)| IndexKey { index: index.into(), key: key.into() }).collect();
            let index_keys = (!index_keys.is_empty()).then(|| index_keys.into());
            NodeRecord {
                data, acl, czxid, mzxid, pzxid, ctime_ms, mtime_ms, version, cversion, sequence, counted, aversion, owner,
                version_id, modifications, identity, index_keys, is_implied,
            }
        }
    }

    /// A record of version 1 says nothing of numbers: all of them may have been given to sequential children.
    #[test]
    fn a_record_without_oxias_fields_has_given_all_numbers_below_its_counter() {
        let mut value = vec![1];
        value.extend([7i64; 6].iter().flat_map(|number| number.to_le_bytes()));
        value.extend([3i32, 41, 0].iter().flat_map(|number| number.to_le_bytes()));
        value.extend([0; 5 + 4]);
        let node = decode_node(&value).unwrap();
        assert_eq!((node.version, node.cversion, node.sequence), (3, 41, 41));
        assert_eq!((node.version_id, node.modifications, node.is_implied), (7, 3, false));
        assert_eq!(encode_node(&node), value, "it is written as it was");
    }

    proptest! {
        #[test]
        fn records_round_trip_and_refuse_other_lengths(
            node in node(),
            timeout_ms: u32,
            password: [u8; 16],
            identity in prop::option::of("\\PC{0,9}"),
        ) {
            let value = encode_node(&node);
            prop_assert_eq!(decode_node(&value), Some(node));
            for len in 0..value.len() {
                prop_assert_eq!(decode_node(&value[..len]), None);
            }
            prop_assert_eq!(decode_node(&[&value[..], &[0]].concat()), None);
            let password = if identity.is_some() { [0; 16] } else { password };
            let session = SessionRecord { timeout_ms, password, identity: identity.map(Arc::from) };
            let value = encode_session(&session);
            prop_assert_eq!(decode_session(&value), Some(session));
            prop_assert_eq!(decode_session(&value[1..]), None);
            prop_assert_eq!(decode_session(&[&value[..], &[0]].concat()), None);
        }
    }
}
