//! When a certificate expires, and the first organisational unit of its subject. No other fields of X.509 are read here, and these are
//! because the library that checks certificates does not expose them.
//!
//! ```text
//! Certificate ::= SEQUENCE { tbsCertificate SEQUENCE {
//!     [0] version OPTIONAL, serial INTEGER, signature SEQUENCE, issuer SEQUENCE, validity SEQUENCE { notBefore, notAfter },
//!     subject SEQUENCE OF SET OF SEQUENCE { type OBJECT IDENTIFIER, value }, … } … }
//! ```

/// DER's tags.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// UTF8String, PrintableString, IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// 2.5.4.11
const ORGANISATIONAL_UNIT: [u8; 3] = [0x55, 0x04, 0x0b];

/// Unix time at which the certificate expires; `None` when the bytes are no certificate.
pub(super) fn expires_s(certificate: &[u8]) -> Option<u64> {
    let (validity, _) = tagged(from_validity(certificate)?, SEQUENCE)?;
    let (_, not_after) = any_time(validity)?;
    let ((tag, text), _) = any_time(not_after)?;
    unix_s(tag, text)
}

/// The first organisational unit of the subject, in the order in which they are encoded. `None` when it is not text, or is one of several
/// attributes that stand together (a multi-valued RDN), whatever follows; or when there is none, or the bytes are no certificate.
pub(crate) fn first_subject_unit(certificate: &[u8]) -> Option<String> {
    let (_, rest) = tagged(from_validity(certificate)?, SEQUENCE)?;
    let (subject, _) = tagged(rest, SEQUENCE)?;
    first_unit(subject)
}

/// The same of a name's content.
fn first_unit(mut name: &[u8]) -> Option<String> {
    while !name.is_empty() {
        let (mut set, behind) = tagged(name, SET)?;
        name = behind;
        let (mut attributes, mut unit) = (0, None);
        while !set.is_empty() {
            let (pair, behind) = tagged(set, SEQUENCE)?;
            set = behind;
            attributes += 1;
            let (kind, value) = tagged(pair, OBJECT_IDENTIFIER)?;
            if kind == ORGANISATIONAL_UNIT {
                unit = Some(value);
            }
        }
        if let Some(value) = unit {
            return if attributes == 1 { text_of(value) } else { None };
        }
    }
    None
}

fn text_of(value: &[u8]) -> Option<String> {
    let tag = *value.first().filter(|tag| TEXTS.contains(tag))?;
    let (text, _) = tagged(value, tag)?;
    std::str::from_utf8(text).ok().map(str::to_owned)
}

/// What stands in a certificate from its validity on.
fn from_validity(certificate: &[u8]) -> Option<&[u8]> {
    let (mut rest, _) = tagged(certificate, SEQUENCE)?;
    (rest, _) = tagged(rest, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        (_, rest) = tagged(rest, VERSION)?;
    }
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, rest) = tagged(rest, tag)?;
    }
    Some(rest)
}

/// Content of the element of this tag that `der` begins with, and what follows it.
fn tagged(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    if *found != tag {
        return None;
    }
    let (first, mut rest) = rest.split_first()?;
    let len = match first {
        0..=0x7f => usize::from(*first),
        0x81..=0x84 => {
            let (bytes, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = behind;
            bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte))
        }
        _ => return None,
    };
    rest.split_at_checked(len)
}

type Time<'a> = (u8, &'a [u8]);

fn any_time(der: &[u8]) -> Option<(Time<'_>, &[u8])> {
    let tag = *der.first().filter(|tag| matches!(**tag, UTC_TIME | GENERALIZED_TIME))?;
    let (text, rest) = tagged(der, tag)?;
    Some(((tag, text), rest))
}

/// `YYMMDDhhmmssZ` of UTCTime, `YYYYMMDDhhmmssZ` of GeneralizedTime, as certificates write them (RFC 5280, 4.1.2.5).
fn unix_s(tag: u8, text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z")?;
    let is_right =
        digits.iter().all(u8::is_ascii_digit) && digits.len() == if tag == UTC_TIME { 12 } else { 14 };
    if !is_right {
        return None;
    }
    let number = |digits: &[u8]| digits.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0'));
    let (year, rest) = digits.split_at(digits.len() - 10);
    let year = match (tag, number(year)) {
        (UTC_TIME, year) if year < 50 => 2000 + year,
        (UTC_TIME, year) => 1900 + year,
        (_, year) => year,
    };
    let mut parts = rest.chunks(2).map(number);
    let [month, day, hour, minute, second] = std::array::from_fn(|_| parts.next().unwrap_or(0));
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_before(year) - days_before(1970) + days_of_months(year, month) + day - 1;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days from the year 1 to the first of January of `year`.
fn days_before(year: u64) -> u64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400
}

/// Days of the months before `month`.
fn days_of_months(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    days.iter().take(month as usize - 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let cases: [(u8, &str, u64); 6] = [
            (UTC_TIME, "700101000000Z", 0),
            (UTC_TIME, "491231235959Z", 2_524_607_999),
            (GENERALIZED_TIME, "20500101000000Z", 2_524_608_000),
            (UTC_TIME, "240229120000Z", 1_709_208_000),
            (UTC_TIME, "000301000000Z", 951_868_800),
            (GENERALIZED_TIME, "99991231235959Z", 253_402_300_799),
        ];
        for (tag, text, expected) in cases {
            assert_eq!(unix_s(tag, text.as_bytes()), Some(expected), "{text}");
        }
        for bad in ["700101000000", "7001010000Z", "70010100000xZ", "701301000000Z", "700100000000Z", "Z"] {
            assert_eq!(unix_s(UTC_TIME, bad.as_bytes()), None, "{bad}");
        }
    }

    fn certificate() -> (Vec<u8>, u64) {
        let mut params = rcgen::CertificateParams::new(vec!["bookie".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 7, 9);
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().der().to_vec(), 1_941_321_600)
    }

    #[test]
    fn a_certificate_says_when_it_expires() {
        let (der, expected) = certificate();
        assert_eq!(expires_s(&der), Some(expected));
    }

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn attribute(kind: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        der(SEQUENCE, &[der(OBJECT_IDENTIFIER, kind), der(tag, text)].concat())
    }

    #[test]
    fn the_first_unit_decides_whatever_it_is() {
        let unit = |tag, text: &[u8]| attribute(&ORGANISATIONAL_UNIT, tag, text);
        let alone = |attribute: Vec<u8>| der(SET, &attribute);
        let common_name = || attribute(&[0x55, 0x04, 0x03], TEXTS[0], b"c");
        let second = || alone(unit(TEXTS[0], b"second"));
        for (first, expected) in [
            (alone(unit(TEXTS[0], b"first")), Some("first")),
            (alone(unit(TEXTS[1], b"first")), Some("first")),
            (alone(unit(TEXTS[0], b"")), Some("")),
            (alone(common_name()), Some("second")),
            // BMPString, no UTF-8, and beside another attribute.
            (alone(unit(0x1e, b"\0f")), None),
            (alone(unit(TEXTS[0], &[0xff])), None),
            (der(SET, &[common_name(), unit(TEXTS[0], b"first")].concat()), None),
            (der(SET, &[unit(TEXTS[0], b"first"), common_name()].concat()), None),
        ] {
            let name = [alone(common_name()), first, second()].concat();
            assert_eq!(first_unit(&name).as_deref(), expected);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(der in proptest::collection::vec(any::<u8>(), 0..200)) {
            expires_s(&der);
            first_subject_unit(&der);
        }

        #[test]
        fn no_damaged_certificate_panics(at in 0usize..200, byte in any::<u8>(), len in 0usize..400) {
            let (mut der, _) = certificate();
            der[at] = byte;
            der.truncate(len.max(1));
            expires_s(&der);
            first_subject_unit(&der);
        }
    }
}
