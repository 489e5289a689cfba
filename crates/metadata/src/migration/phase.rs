//! The flag of a migration: its value, parsed.

use serde::Deserialize;

use crate::store::{Node, StoreError, Version};

/// Where a migration is. Its coordinator, a Pulsar broker, is the only one that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Phase {
    /// None was begun.
    NotStarted,
    /// Participants stop writing, connect to the target and say so.
    Preparation,
    /// The coordinator copies what is not ephemeral.
    Copying,
    /// The target has everything. Final.
    Completed,
    /// It was given up: the source goes on.
    Failed,
}

/// The value of the flag: a JSON object with `phase` and `targetUrl`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Migration {
    pub phase: Phase,
    /// As Pulsar writes it, `oxia://HOST:PORT/NAMESPACE`.
    #[serde(default)]
    pub target_url: Option<String>,
}

/// The flag as it was read.
pub(super) struct Flag {
    /// An error where its value is none.
    pub migration: Result<Migration, StoreError>,
    pub version: Version,
}

impl Flag {
    /// That of a cluster in which no move was ever begun.
    pub const MISSING: Flag = Flag {
        migration: Ok(Migration { phase: Phase::NotStarted, target_url: None }),
        version: Version::counted(0),
    };

    pub fn read(path: &str, node: &Node) -> Flag {
        Flag { migration: Migration::read(path, &node.data), version: node.stat.version }
    }
}

impl Migration {
    /// # Errors
    /// [`StoreError::Protocol`] for anything but such JSON; fields that are not known are passed over.
    pub fn read(path: &str, value: &[u8]) -> Result<Migration, StoreError> {
        serde_json::from_slice(value).map_err(|error| {
            StoreError::Protocol(format!("{path} does not describe a migration of metadata: {error}"))
        })
    }

    /// # Errors
    /// [`StoreError::Protocol`] when there is none.
    pub fn target(&self, path: &str) -> Result<&str, StoreError> {
        let target = self.target_url.as_deref().filter(|url| !url.is_empty());
        target.ok_or_else(|| StoreError::Protocol(format!("{path} names no targetUrl")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pulsar_writes_is_read() {
        let read = |text: &str| Migration::read("/p/m", text.as_bytes());
        let at = |phase, target_url: Option<&str>| {
            Ok(Migration { phase, target_url: target_url.map(str::to_owned) })
        };
        assert_eq!(
            read(r#"{"phase":"PREPARATION","targetUrl":"oxia://h:6648/broker"}"#),
            at(Phase::Preparation, Some("oxia://h:6648/broker"))
        );
        assert_eq!(read(r#"{"phase":"NOT_STARTED","targetUrl":null}"#), at(Phase::NotStarted, None));
        assert_eq!(
            read(r#"{"targetUrl":"oxia://h","phase":"COPYING","since":1}"#),
            at(Phase::Copying, Some("oxia://h"))
        );
        assert_eq!(read(r#"{"phase":"FAILED"}"#), at(Phase::Failed, None));
        for bad in ["", "{}", "[]", r#"{"phase":"STARTED"}"#, r#"{"phase":"copying"}"#, "\u{0}"] {
            assert!(matches!(read(bad), Err(StoreError::Protocol(why)) if why.starts_with("/p/m ")), "{bad}");
        }
        let nowhere = Migration { phase: Phase::Copying, target_url: Some(String::new()) };
        assert!(matches!(nowhere.target("/p/m"), Err(StoreError::Protocol(_))));
    }
}
