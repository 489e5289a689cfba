//! Bytes written by Java BookKeeper are read as what they mean, and written again byte for byte (see `vectors/README.md`).

use bindery_metadata::codec::ledger::{self, LedgerMetadataError};
use bindery_metadata::codec::service_info::{BookieServiceInfo, PROTOCOL_BOOKIE_RPC};
use bindery_metadata::cookie::{Cookie, CookieError};
use bindery_types::{
    BookieId, DigestType, EntryId, LedgerMetadata, LedgerSecret, LedgerState, MetadataFormatVersion, Quorum,
    Segment,
};

macro_rules! vector {
    ($name:literal) => {
        (&include_bytes!(concat!("../vectors/", $name))[..], $name)
    };
}

const V3_CRC32_OPEN: &[u8] = include_bytes!("../vectors/v3-CRC32-open");

fn expected(
    version: MetadataFormatVersion,
    digest_type: DigestType,
    name: &str,
    closed: bool,
) -> LedgerMetadata {
    let password = match digest_type {
        DigestType::Dummy => Vec::new(),
        _ => format!("se\"cr\u{e9}t\t{name}").into_bytes(),
    };
    let mut metadata = LedgerMetadata::new(
        Quorum::new(1, 1, 1).expect("valid in this test"),
        LedgerSecret { digest_type, password },
    );
    metadata.format_version = version;
    if version == MetadataFormatVersion::V1 {
        metadata.secret = None;
    } else {
        metadata.custom.insert("application".into(), b"pulsar".to_vec());
        metadata.custom.insert("binary".into(), b"\x00\xff\n\"'\\".to_vec());
    }
    if closed {
        metadata.state = LedgerState::Closed { last_entry: EntryId::new(1), length_bytes: 11 };
    }
    let ensemble = vec![BookieId::new("127.0.0.1:31870").expect("valid in this test")];
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).expect("valid in this test");
    metadata
}

#[test]
fn ledgers_of_the_java_client_are_read_and_written_again_byte_for_byte() {
    use MetadataFormatVersion::{V1, V2, V3};
    let vectors = [
        (vector!("v1-CRC32-open"), V1, DigestType::Crc32),
        (vector!("v1-CRC32-closed"), V1, DigestType::Crc32),
        (vector!("v2-CRC32-open"), V2, DigestType::Crc32),
        (vector!("v2-CRC32-closed"), V2, DigestType::Crc32),
        (vector!("v2-MAC-open"), V2, DigestType::Hmac),
        (vector!("v2-MAC-closed"), V2, DigestType::Hmac),
        (vector!("v2-CRC32C-open"), V2, DigestType::Crc32c),
        (vector!("v2-CRC32C-closed"), V2, DigestType::Crc32c),
        (vector!("v2-DUMMY-open"), V2, DigestType::Dummy),
        (vector!("v2-DUMMY-closed"), V2, DigestType::Dummy),
        (vector!("v3-CRC32-open"), V3, DigestType::Crc32),
        (vector!("v3-CRC32-closed"), V3, DigestType::Crc32),
        (vector!("v3-MAC-open"), V3, DigestType::Hmac),
        (vector!("v3-MAC-closed"), V3, DigestType::Hmac),
        (vector!("v3-CRC32C-open"), V3, DigestType::Crc32c),
        (vector!("v3-CRC32C-closed"), V3, DigestType::Crc32c),
        (vector!("v3-DUMMY-open"), V3, DigestType::Dummy),
        (vector!("v3-DUMMY-closed"), V3, DigestType::Dummy),
    ];
    for ((bytes, name), version, digest_type) in vectors {
        let decoded = ledger::decode(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut expected =
            expected(version, digest_type, name.split('-').nth(1).unwrap(), name.ends_with("closed"));
        assert_eq!(decoded.created_ms.is_some(), version == V3, "{name}");
        assert_eq!(decoded.creation_token.is_some(), version == V3, "{name}");
        (expected.created_ms, expected.creation_token) = (decoded.created_ms, decoded.creation_token);
        assert_eq!(decoded, expected, "{name}");
        assert_eq!(ledger::encode(&decoded), bytes, "{name}");
    }
}

/// Version 1 and 2 by hand, from the protocol reference: several segments, in recovery, no ack quorum, no password.
#[test]
fn metadata_of_old_clients_is_read() {
    let v1 = "BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta:1\tb:1\tc:1\n7\ta:1\td:1\tc:1\n-102\tCLOSED";
    let metadata = ledger::decode(v1.as_bytes()).unwrap();
    assert_eq!(metadata.state, LedgerState::InRecovery);
    assert_eq!((metadata.quorum, metadata.segments().len()), (Quorum::new(3, 2, 2).unwrap(), 2));
    assert_eq!(ledger::encode(&metadata), v1.as_bytes());
    let v2 = "BookieMetadataFormatVersion\t2\nquorumSize: 2 ensembleSize: 2 length: 9 state: CLOSED lastEntryId: -1\n\
              segment { firstEntryId: 0 ensembleMember: \"a:1\" ensembleMember: 'b:1' } digestType: HMAC new: 1";
    let metadata = ledger::decode(v2.as_bytes()).unwrap();
    assert_eq!(metadata.quorum, Quorum::new(2, 2, 2).unwrap(), "an absent ack quorum is the write quorum");
    assert_eq!(metadata.secret, None, "a digest type without a password does not count");
    assert_eq!(metadata.state, LedgerState::Closed { last_entry: None, length_bytes: 9 });
}

#[test]
fn damaged_metadata_is_an_error() {
    let text = |text: &str| ledger::decode(text.as_bytes()).unwrap_err();
    assert_eq!(text(""), LedgerMetadataError::NoHeader);
    assert_eq!(text("BookieMetadataFormatVersion\tx\n"), LedgerMetadataError::NoHeader);
    assert_eq!(text("BookieMetadataFormatVersion\t4\n"), LedgerMetadataError::Version(4));
    assert_eq!(text("BookieMetadataFormatVersion\t1\n1\n1\n"), LedgerMetadataError::Truncated);
    let header = "BookieMetadataFormatVersion\t1\n";
    assert!(matches!(text(&format!("{header}1\n-1\n0\n")), LedgerMetadataError::Quorum(_)));
    assert!(matches!(text(&format!("{header}1\n1\n0\n-1\ta:1")), LedgerMetadataError::Value { .. }));
    assert!(matches!(text(&format!("{header}1\n1\n0\n0\ta:1\tb:1")), LedgerMetadataError::Segment(_)));
    assert!(matches!(text(&format!("{header}1\n1\n0\n0\ta b")), LedgerMetadataError::Bookie(_)));
    for size in 0..V3_CRC32_OPEN.len() {
        assert!(ledger::decode(&V3_CRC32_OPEN[..size]).is_err(), "cut at {size}");
    }
    let bomb = b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\x07";
    assert_eq!(ledger::decode(bomb), Err(LedgerMetadataError::Truncated));
}

#[test]
fn cookies_of_java_are_read_and_written_again_byte_for_byte() {
    let id = BookieId::new("bookie-1:3181").unwrap();
    let dirs = |dirs: &[&str]| dirs.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (journal, ledger) = (dirs(&["/data/j1", "/data/j 2"]), dirs(&["/data/l1", "/data/\u{e4}\"2"]));
    let plain = Cookie::new(&id, &journal, &ledger, None, None);
    let index = dirs(&["/data/i1"]);
    let full =
        Cookie::new(&id, &journal, &ledger, Some(&index), Some("d7bb00d0-7908-4e9f-8fbe-f76db8e07af4"));
    for (cookie, (bytes, name)) in [(plain, vector!("cookie-plain")), (full, vector!("cookie-index-dirs"))] {
        assert_eq!(Cookie::parse(bytes).as_ref(), Ok(&cookie), "{name}");
        assert_eq!(cookie.to_text().as_bytes(), bytes, "{name}");
    }
}

#[test]
fn older_cookies_are_read_and_others_refused() {
    let three = Cookie::parse(b"3\nb:1\n/j\n1\t/l\n").unwrap();
    let id = BookieId::new("b:1").unwrap();
    assert_eq!(three, Cookie::new(&id, &["/j".into()], &["/l".into()], None, None));
    let four =
        Cookie::parse(b"4\nbookieHost: \"b:1\" journalDir: \"/j\" ledgerDirs: \"1\\t/l\" instanceId: \"\"")
            .unwrap();
    assert_eq!(four, three, "an empty instance id is none");
    assert_eq!(Cookie::parse(b"2\nb:1\n/j\n/l\n"), Err(CookieError::Version(2)));
    assert_eq!(Cookie::parse(b"6\n"), Err(CookieError::Version(6)));
    assert_eq!(Cookie::parse(b"3\nb:1\n"), Err(CookieError::Truncated));
    assert_eq!(Cookie::parse(b""), Err(CookieError::NoVersion(String::new())));
    assert_eq!(Cookie::parse(b"\xff"), Err(CookieError::NotText));
    assert!(matches!(Cookie::parse(b"5\nbookieHost: \"b\""), Err(CookieError::Text(_))));
}

#[test]
fn service_info_of_a_java_bookie_is_read_and_written_again() {
    let (bytes, _) = vector!("service-info");
    let info = BookieServiceInfo::decode(bytes).unwrap();
    let [endpoint] = &info.endpoints[..] else { panic!("{info:?}") };
    assert_eq!((endpoint.host.as_str(), endpoint.port), ("127.0.0.1", 31870));
    assert_eq!((endpoint.id.as_str(), endpoint.protocol.as_str()), ("bookie", PROTOCOL_BOOKIE_RPC));
    assert_eq!(info.encode(), bytes);
    assert_eq!(BookieServiceInfo::of_bookie(("127.0.0.1", 31870), None).encode(), bytes);
}
