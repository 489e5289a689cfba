//! Sessions: who is alive, and until when. No I/O, no clock of its own.
//!
//! # Invariants
//! 1. A session's id is never 0 and never given to another session while it lives.
//! 2. A session ends by [`Sessions::remove`] only; [`Sessions::expired`] names those whose time is up, in whole ticks.
//! 3. Time in which this server stood still is not counted against its clients: see [`Sessions::expired`].
//! 4. At most one connection has a session. One of Oxia's has none, and no connection can resume it.

use crate::watches::ConnectionId;
use bindery_io::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Size of a session's secret.
pub(crate) const PASSWORD_SIZE: usize = 16;

/// What is kept of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionRecord {
    pub(crate) timeout_ms: u32,
    pub(crate) password: [u8; PASSWORD_SIZE],
    /// A session of Oxia's has its client's name for itself, and neither secret nor connection.
    pub(crate) identity: Option<Arc<str>>,
}

#[derive(Debug)]
struct Session {
    record: SessionRecord,
    expires_ms: u64,
    connection: Option<ConnectionId>,
}

/// A session a client was given, or given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) id: i64,
    pub(crate) record: SessionRecord,
    /// The connection that had it until now.
    pub(crate) moved_from: Option<ConnectionId>,
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    by_id: BTreeMap<i64, Session>,
    changed: BTreeSet<i64>,
    tick_ms: u64,
    last_scan_ms: u64,
    next_id: i64,
}

impl Sessions {
    /// No sessions. Ids begin where `wall_ms` puts them, so that an earlier run's are not used again.
    pub(crate) fn new(tick_ms: u64, now_ms: u64, wall_ms: i64) -> Sessions {
        // As ZooKeeper: server number in the highest byte, then milliseconds, then a counter.
        let next_id = (1 << 56) | ((wall_ms & 0xff_ffff_ffff) << 16) | 1;
        let (by_id, changed) = (BTreeMap::new(), BTreeSet::new());
        Sessions { by_id, changed, tick_ms: tick_ms.max(1), last_scan_ms: now_ms, next_id }
    }

    /// Takes in a session read from disk. It has its whole timeout from now.
    pub(crate) fn restore(&mut self, id: i64, record: SessionRecord, now_ms: u64) {
        let expires_ms = self.expiry(now_ms, record.timeout_ms);
        self.next_id = self.next_id.max(id.saturating_add(1));
        self.by_id.insert(id, Session { record, expires_ms, connection: None });
    }

    /// Number of sessions.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True while the session lives.
    pub(crate) fn contains(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// A new session for `connection`.
    pub(crate) fn create(
        &mut self,
        connection: ConnectionId,
        timeout_ms: u32,
        now_ms: u64,
        random: &dyn Random,
    ) -> Granted {
        let mut password = [0; PASSWORD_SIZE];
        for part in password.chunks_mut(8) {
            part.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        let record = SessionRecord { timeout_ms, password, identity: None };
        let id = self.add(record.clone(), Some(connection), now_ms);
        Granted { id, record, moved_from: None }
    }

    /// A new session of Oxia's; gives its id.
    pub(crate) fn create_for_oxia(&mut self, timeout_ms: u32, identity: Arc<str>, now_ms: u64) -> i64 {
        let record = SessionRecord { timeout_ms, password: [0; PASSWORD_SIZE], identity: Some(identity) };
        self.add(record, None, now_ms)
    }

    fn add(&mut self, record: SessionRecord, connection: Option<ConnectionId>, now_ms: u64) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        let expires_ms = self.expiry(now_ms, record.timeout_ms);
        let before = self.by_id.insert(id, Session { record, expires_ms, connection });
        assert!(before.is_none(), "sessions invariant 1: {id:#x} is given out once");
        self.changed.insert(id);
        id
    }

    /// True for a living session of Oxia's.
    pub(crate) fn is_oxias(&self, id: i64) -> bool {
        self.by_id.get(&id).is_some_and(|session| session.record.identity.is_some())
    }

    /// Gives a living session to `connection`, when the secret is right.
    pub(crate) fn resume(
        &mut self,
        id: i64,
        password: &[u8],
        connection: ConnectionId,
        timeout_ms: u32,
        now_ms: u64,
    ) -> Option<Granted> {
        let expires_ms = self.expiry(now_ms, timeout_ms);
        let session = self.by_id.get_mut(&id)?;
        // Sessions invariant 4.
        if session.record.identity.is_some() || session.record.password != password {
            return None;
        }
        if session.record.timeout_ms != timeout_ms {
            session.record.timeout_ms = timeout_ms;
            self.changed.insert(id);
        }
        session.expires_ms = session.expires_ms.max(expires_ms);
        let moved_from = session.connection.replace(connection).filter(|before| *before != connection);
        Some(Granted { id, record: session.record.clone(), moved_from })
    }

    /// Something was heard from the session's client; false when there is no such session.
    pub(crate) fn touch(&mut self, id: i64, now_ms: u64) -> bool {
        let tick_ms = self.tick_ms;
        let Some(session) = self.by_id.get_mut(&id) else { return false };
        let expires_ms = rounded_up(now_ms + u64::from(session.record.timeout_ms), tick_ms);
        session.expires_ms = session.expires_ms.max(expires_ms);
        true
    }

    /// The connection is gone; its session waits for another.
    pub(crate) fn disconnect(&mut self, id: i64, connection: ConnectionId) {
        if let Some(session) = self.by_id.get_mut(&id)
            && session.connection == Some(connection)
        {
            session.connection = None;
        }
    }

    /// Ends a session; gives its connection.
    pub(crate) fn remove(&mut self, id: i64) -> Option<ConnectionId> {
        let session = self.by_id.remove(&id)?;
        self.changed.insert(id);
        session.connection
    }

    /// The sessions whose time is up. To be called once a tick: when the last call is more than two ticks ago, or
    /// `was_stalled`, requests that would have kept sessions alive may lie unread, and everybody gets that time back.
    pub(crate) fn expired(&mut self, now_ms: u64, was_stalled: bool) -> Vec<i64> {
        let since = now_ms.saturating_sub(self.last_scan_ms);
        self.last_scan_ms = now_ms;
        if was_stalled || since > 2 * self.tick_ms {
            let lost = since.max(self.tick_ms);
            for session in self.by_id.values_mut() {
                session.expires_ms += lost;
            }
        }
        let is_up = |(_, session): &(&i64, &Session)| session.expires_ms <= now_ms;
        self.by_id.iter().filter(is_up).map(|(id, _)| *id).collect()
    }

    /// True when [`Sessions::take_changed`] would give something.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What changed since the last call; `None` for a session that ended.
    pub(crate) fn take_changed(&mut self) -> BTreeMap<i64, Option<SessionRecord>> {
        let changed = std::mem::take(&mut self.changed);
        changed
            .into_iter()
            .map(|id| (id, self.by_id.get(&id).map(|session| session.record.clone())))
            .collect()
    }

    fn expiry(&self, now_ms: u64, timeout_ms: u32) -> u64 {
        rounded_up(now_ms + u64::from(timeout_ms), self.tick_ms)
    }
}

/// The next multiple of `tick_ms` behind `at_ms`.
fn rounded_up(at_ms: u64, tick_ms: u64) -> u64 {
    (at_ms / tick_ms + 1) * tick_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SeededRandom;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    fn sessions() -> (Sessions, SeededRandom) {
        (Sessions::new(100, 0, 1_700_000_000_000), SeededRandom::new(7))
    }

    #[test]
    fn a_session_expires_a_tick_after_its_timeout_unless_touched() {
        let (mut sessions, random) = sessions();
        let id = sessions.create(A, 1000, 0, &random).id;
        for now in (100..=1000).step_by(100) {
            assert_eq!(sessions.expired(now, false), [] as [i64; 0], "at {now}");
        }
        assert!(sessions.touch(id, 1000));
        assert_eq!(sessions.expired(1100, false), [] as [i64; 0]);
        let first = (1200..).step_by(100).find(|now| sessions.expired(*now, false) == [id]);
        assert_eq!(first, Some(2100), "sessions invariant 2");
        assert_eq!(sessions.remove(id), Some(A));
        assert!(!sessions.touch(id, 2100));
        assert_eq!(sessions.take_changed(), BTreeMap::from([(id, None)]));
    }

    #[test]
    fn time_in_which_the_server_stood_still_does_not_count() {
        let (mut sessions, random) = sessions();
        let id = sessions.create(A, 1000, 0, &random).id;
        assert_eq!(sessions.expired(50_000, false), [] as [i64; 0], "sessions invariant 3");
        assert_eq!(sessions.expired(50_100, true), [] as [i64; 0]);
        let first = (50_200..).step_by(100).find(|now| sessions.expired(*now, false) == [id]);
        assert_eq!(first, Some(51_200), "its timeout, as it stood when the pause began");
    }

    #[test]
    fn a_session_moves_with_its_secret_only() {
        let (mut sessions, random) = sessions();
        let granted = sessions.create(A, 1000, 0, &random);
        assert_eq!(granted.moved_from, None);
        sessions.take_changed();
        assert_eq!(sessions.resume(granted.id, &[0; 16], B, 1000, 0), None);
        assert_eq!(sessions.resume(granted.id + 1, &granted.record.password, B, 1000, 0), None);
        let moved = sessions.resume(granted.id, &granted.record.password, B, 1000, 0).unwrap();
        assert_eq!(moved.moved_from, Some(A), "sessions invariant 4");
        assert!(!sessions.has_changed(), "nothing of it is kept");
        sessions.disconnect(granted.id, A);
        assert_eq!(sessions.remove(granted.id), Some(B), "the old connection's end means nothing any more");
    }

    #[test]
    fn restored_sessions_keep_ids_apart_and_have_a_whole_timeout() {
        let (mut sessions, random) = sessions();
        let granted = sessions.create(A, 1000, 0, &random);
        let mut restarted = Sessions::new(100, 5000, 1_600_000_000_000);
        restarted.restore(granted.id, granted.record.clone(), 5000);
        assert!(restarted.create(B, 1000, 5000, &random).id > granted.id, "sessions invariant 1");
        assert_eq!(restarted.expired(5100, false), [] as [i64; 0]);
        assert_eq!(restarted.expired(5200, false), [] as [i64; 0]);
        let first = (5300..).step_by(100).find(|now| restarted.expired(*now, false).contains(&granted.id));
        assert_eq!(first, Some(6100));
    }
}
