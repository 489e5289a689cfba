//! A session of the store: the sessions of all shards that stand for it.
//!
//! # Limits     shards whose sessions can be taken up again: [`RESUMED_SHARDS_MAX`]

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};

use super::identity_of;
use super::shards::Shards;
use crate::store::{SessionCredentials, SessionId};

/// Shards whose sessions fit into credentials.
pub(super) const RESUMED_SHARDS_MAX: usize = 60;
/// What credentials of this driver begin with: ZooKeeper's have 16 bytes of no form.
const CREDENTIALS_MAGIC: &[u8] = b"oxia 1\n";

/// The sessions of all shards that stand for one of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenSession {
    /// The store's.
    pub id: SessionId,
    /// By the shards' ids.
    pub of_shards: BTreeMap<i64, i64>,
}

impl OpenSession {
    /// A session of the store without any of a shard, under an id that no other has.
    pub(super) fn new() -> OpenSession {
        // The standard library seeds its hash maps from the system's randomness.
        let random = RandomState::new().hash_one(0x6f78_6961);
        let id = i64::try_from(random >> 1).unwrap_or(1).max(1);
        OpenSession { id: SessionId(id), of_shards: BTreeMap::new() }
    }

    /// The session of a shard.
    pub(super) fn of_shard(&self, shard: i64) -> Option<i64> {
        self.of_shards.get(&shard).copied()
    }

    /// What its clients call themselves.
    pub(super) fn identity(&self) -> String {
        identity_of(self.id)
    }

    /// Whether it is of these shards.
    pub(super) fn is_for(&self, shards: &Shards) -> bool {
        self.of_shards.keys().copied().collect::<BTreeSet<_>>() == shards.ids().collect()
    }

    /// The credentials for a later process; `None` for more than [`RESUMED_SHARDS_MAX`] shards.
    pub(super) fn credentials(&self) -> Option<SessionCredentials> {
        if self.of_shards.len() > RESUMED_SHARDS_MAX {
            return None;
        }
        let mut password = CREDENTIALS_MAGIC.to_vec();
        for (shard, session) in &self.of_shards {
            password.extend_from_slice(&shard.to_be_bytes());
            password.extend_from_slice(&session.to_be_bytes());
        }
        Some(SessionCredentials { id: self.id, password })
    }

    /// `None` for credentials of another driver.
    pub(super) fn of_credentials(credentials: &SessionCredentials) -> Option<OpenSession> {
        let pairs = credentials.password.strip_prefix(CREDENTIALS_MAGIC)?;
        let number = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_be_bytes);
        if pairs.len() % 16 != 0 || credentials.id.0 <= 0 {
            return None;
        }
        let of_shards = pairs
            .chunks_exact(16)
            .map(|pair| Some((number(&pair[..8])?, number(&pair[8..])?)))
            .collect::<Option<BTreeMap<_, _>>>()?;
        Some(OpenSession { id: credentials.id, of_shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_survive_their_credentials_and_those_of_others_are_not_taken_up() {
        let mut session = OpenSession::new();
        assert!(session.id.0 > 0);
        assert_ne!(session.id, OpenSession::new().id);
        session.of_shards = [(0, 17), (-3, i64::MAX)].into();
        let credentials = session.credentials().unwrap();
        let text = credentials.to_text();
        let kept = SessionCredentials::from_text(&text).unwrap();
        assert_eq!(OpenSession::of_credentials(&kept), Some(session.clone()));
        // ZooKeeper's, one that was cut short, and an id that none of ours has.
        let zookeeper = SessionCredentials { id: SessionId(7), password: vec![7; 16] };
        let mut short = credentials.clone();
        short.password.pop();
        let foreign = SessionCredentials { id: SessionId(-7), ..credentials };
        for other in [zookeeper, short, foreign] {
            assert_eq!(OpenSession::of_credentials(&other), None, "{other:?}");
        }
        // As many as fit into their text.
        session.of_shards = (0..RESUMED_SHARDS_MAX as i64).map(|shard| (shard, shard)).collect();
        let most = session.credentials().unwrap();
        assert_eq!(SessionCredentials::from_text(&most.to_text()), Some(most));
        session.of_shards.insert(-1, 0);
        assert_eq!(session.credentials(), None);
    }
}
