//! Any metadata survives its bytes, and no bytes panic the decoders.

use std::collections::BTreeMap;

use bindery_metadata::codec::ledger;
use bindery_metadata::codec::service_info::{BookieServiceInfo, Endpoint};
use bindery_metadata::cookie::Cookie;
use bindery_types::{
    BookieId, DigestType, EntryId, LedgerMetadata, LedgerSecret, LedgerState, MetadataFormatVersion, Quorum,
    Segment,
};
use proptest::prelude::*;

fn bookie() -> impl Strategy<Value = BookieId> {
    "[a-z0-9.:_-]{1,12}".prop_filter_map("a bookie id", |name| BookieId::new(name).ok())
}

fn state() -> impl Strategy<Value = LedgerState> {
    prop_oneof![
        Just(LedgerState::Open),
        Just(LedgerState::InRecovery),
        (-1..i64::MAX, 0..=i64::MAX as u64).prop_map(|(last, length_bytes)| LedgerState::Closed {
            last_entry: EntryId::new(last),
            length_bytes
        }),
    ]
}

fn metadata() -> impl Strategy<Value = LedgerMetadata> {
    let sizes =
        (1..5usize).prop_flat_map(|e| (Just(e), 1..=e)).prop_flat_map(|(e, w)| (Just(e), Just(w), 1..=w));
    let digest_type = prop::sample::select(DigestType::ALL.to_vec());
    let version = prop::sample::select(vec![
        MetadataFormatVersion::V1,
        MetadataFormatVersion::V2,
        MetadataFormatVersion::V3,
    ]);
    let custom = prop::collection::btree_map(any::<String>(), any::<Vec<u8>>(), 0..4);
    let firsts = prop::collection::btree_set(0..i64::MAX, 0..5);
    let names = prop::collection::vec(bookie(), 32);
    (
        sizes,
        version,
        state(),
        (digest_type, any::<Vec<u8>>()),
        any::<Option<i64>>(),
        any::<Option<i64>>(),
        custom,
        firsts,
        names,
    )
        .prop_map(
            |(
                (e, w, a),
                version,
                state,
                (digest_type, password),
                created_ms,
                token,
                custom,
                firsts,
                names,
            )| {
                let v1 = version == MetadataFormatVersion::V1;
                let quorum = Quorum::new(e, w, if v1 { w } else { a }).expect("ordered sizes");
                let mut metadata = LedgerMetadata::new(quorum, LedgerSecret { digest_type, password });
                metadata.format_version = version;
                metadata.state = state;
                // Fields that a version cannot hold are absent.
                metadata.created_ms = created_ms.filter(|_| !v1);
                metadata.creation_token = token.filter(|_| version == MetadataFormatVersion::V3);
                metadata.custom = if v1 { BTreeMap::new() } else { custom };
                metadata.secret = metadata.secret.filter(|_| !v1);
                for (index, first) in firsts.into_iter().enumerate() {
                    let ensemble = names.iter().cycle().skip(index * 3).take(e).cloned().collect();
                    metadata
                        .push_segment(Segment {
                            first_entry: EntryId::new(first).expect("not negative"),
                            ensemble,
                        })
                        .expect("ascending, whole ensembles");
                }
                metadata
            },
        )
}

proptest! {
    #[test]
    fn ledger_metadata_survives_its_bytes_in_every_version(metadata in metadata()) {
        prop_assert_eq!(ledger::decode(&ledger::encode(&metadata)), Ok(metadata));
    }

    #[test]
    fn damage_to_ledger_metadata_never_panics(metadata in metadata(), at: prop::sample::Index, byte: u8) {
        let mut bytes = ledger::encode(&metadata);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(other) = ledger::decode(&bytes) {
            prop_assert_eq!(ledger::decode(&ledger::encode(&other)), Ok(other));
        }
    }

    #[test]
    fn no_bytes_panic_a_decoder(bytes: Vec<u8>, version in 1..5u8) {
        let with_header = [format!("BookieMetadataFormatVersion\t{version}\n").as_bytes(), &bytes[..]].concat();
        let _ = ledger::decode(&with_header);
        let _ = Cookie::parse(&[b"5\n", &bytes[..]].concat());
        let _ = BookieServiceInfo::decode(&bytes);
    }

    #[test]
    fn cookies_survive_their_text(
        dirs in prop::collection::vec("[^\t,\u{0}]{1,20}", 1..4), instance_id: Option<u64>, index in any::<bool>()
    ) {
        let instance_id = instance_id.map(|id| id.to_string());
        let id = BookieId::new("b:1").unwrap();
        let index = index.then_some(&dirs[..]);
        let cookie = Cookie::new(&id, &dirs, &dirs, index, instance_id.as_deref());
        prop_assert_eq!(Cookie::parse(cookie.to_text().as_bytes()), Ok(cookie));
    }

    #[test]
    fn service_info_survives_its_bytes(
        endpoints in prop::collection::vec((any::<[String; 3]>(), any::<u16>(), any::<Vec<String>>()), 0..3),
        properties: BTreeMap<String, String>,
    ) {
        let endpoints = endpoints.into_iter().map(|([id, host, protocol], port, extensions)| Endpoint {
            id, port, host, protocol, auth: extensions.clone(), extensions,
        });
        let info = BookieServiceInfo { endpoints: endpoints.collect(), properties };
        prop_assert_eq!(BookieServiceInfo::decode(&info.encode()), Ok(info));
    }
}
