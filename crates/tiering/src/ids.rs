//! Names of clusters and objects.

use std::fmt;
use std::str::FromStr;

/// The cluster that an object belongs to: its INSTANCEID, a UUID that `cluster init` (and Java's `metaformat`) draws once.
/// Clusters that share a bucket are told apart by it (T18).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId([u8; 16]);

/// A text that is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidId {
    text: String,
    expected: &'static str,
}

impl ClusterId {
    /// From the 16 bytes of the UUID.
    pub const fn from_bytes(bytes: [u8; 16]) -> ClusterId {
        ClusterId(bytes)
    }

    /// The 16 bytes of the UUID.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Where the hyphens of a UUID stand.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl FromStr for ClusterId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<ClusterId, InvalidId> {
        let invalid = || InvalidId { text: text.into(), expected: "an INSTANCEID (a UUID)" };
        let is_uuid = text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == HYPHENS.contains(&at));
        let digits: String = text.chars().filter(|char| *char != '-').collect();
        if is_uuid { from_hex(&digits).map(ClusterId).ok_or_else(invalid) } else { Err(invalid()) }
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// An object: 48 bits of the time at which its id was reserved (milliseconds since the epoch, big-endian), then 80 random
/// bits. Ids ascend with time, and two tierers never draw the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId([u8; 16]);

impl ObjectId {
    /// A new id. Times beyond the year 10889 are cut to their lower 48 bits.
    pub fn new(reserved_ms: u64, random: [u8; 10]) -> ObjectId {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&reserved_ms.to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&random);
        ObjectId(bytes)
    }

    /// As it stands in an object.
    pub const fn from_bytes(bytes: [u8; 16]) -> ObjectId {
        ObjectId(bytes)
    }

    /// As it stands in an object.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// When the id was reserved, in milliseconds since the epoch by the clock of the tierer that did it.
    pub fn reserved_ms(&self) -> u64 {
        self.0[..6].iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte))
    }
}

impl FromStr for ObjectId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<ObjectId, InvalidId> {
        let invalid = || InvalidId { text: text.into(), expected: "an object id (32 hexadecimal digits)" };
        from_hex(text).map(ObjectId).ok_or_else(invalid)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

/// 32 lower-case digits.
fn from_hex(text: &str) -> Option<[u8; 16]> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_with_time_and_come_back_from_text() {
        let older = ObjectId::new(1_700_000_000_000, [255; 10]);
        let newer = ObjectId::new(1_700_000_000_001, [0; 10]);
        assert!(older < newer && older.to_string() < newer.to_string());
        assert_eq!(older.reserved_ms(), 1_700_000_000_000);
        assert_eq!(older.to_string().parse(), Ok(older));
        for text in ["", "00", "0123456789abcdef0123456789abcdeF", "+123456789abcdef0123456789abcdef"] {
            assert!(text.parse::<ObjectId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_cluster_is_a_uuid() {
        let text = "6c2c5a2f-0f5c-4f0c-9d0e-1a2b3c4d5e6f";
        assert_eq!(text.parse::<ClusterId>().unwrap().to_string(), text);
        for text in ["", "6c2c5a2f0f5c4f0c9d0e1a2b3c4d5e6f", "6c2c5a2f-0f5c-4f0c-9d0e-1a2b3c4d5e6-"] {
            assert!(text.parse::<ClusterId>().is_err(), "{text}");
        }
    }
}
