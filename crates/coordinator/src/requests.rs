//! How many requests clients made since the start, by protocol and kind. `mntr` shows them.

use crate::wire::{Header, opcode};
use bindery_oxia::proto::WriteRequest;
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// A protocol's kind of request. A request of Oxia's with several records counts as many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    ZooKeeperCreate,
    ZooKeeperDelete,
    ZooKeeperExists,
    ZooKeeperGet,
    ZooKeeperSet,
    ZooKeeperChildren,
    ZooKeeperSync,
    ZooKeeperMulti,
    ZooKeeperSession,
    ZooKeeperPing,
    ZooKeeperOther,
    OxiaPut,
    OxiaDelete,
    OxiaDeleteRange,
    /// A write of nothing: it is answered when what was written before is seen.
    OxiaSync,
    OxiaGet,
    OxiaList,
    OxiaScan,
    OxiaSession,
    OxiaKeepAlive,
    OxiaSubscription,
}

impl Kind {
    /// All kinds in the order of the counts, with the names that `mntr` gives them.
    const NAMED: [(Kind, &str); 21] = [
        (Kind::ZooKeeperCreate, "zookeeper_create"),
        (Kind::ZooKeeperDelete, "zookeeper_delete"),
        (Kind::ZooKeeperExists, "zookeeper_exists"),
        (Kind::ZooKeeperGet, "zookeeper_get"),
        (Kind::ZooKeeperSet, "zookeeper_set"),
        (Kind::ZooKeeperChildren, "zookeeper_children"),
        (Kind::ZooKeeperSync, "zookeeper_sync"),
        (Kind::ZooKeeperMulti, "zookeeper_multi"),
        (Kind::ZooKeeperSession, "zookeeper_session"),
        (Kind::ZooKeeperPing, "zookeeper_ping"),
        (Kind::ZooKeeperOther, "zookeeper_other"),
        (Kind::OxiaPut, "oxia_put"),
        (Kind::OxiaDelete, "oxia_delete"),
        (Kind::OxiaDeleteRange, "oxia_delete_range"),
        (Kind::OxiaSync, "oxia_sync"),
        (Kind::OxiaGet, "oxia_get"),
        (Kind::OxiaList, "oxia_list"),
        (Kind::OxiaScan, "oxia_scan"),
        (Kind::OxiaSession, "oxia_session"),
        (Kind::OxiaKeepAlive, "oxia_keep_alive"),
        (Kind::OxiaSubscription, "oxia_subscription"),
    ];

    /// The kind of a frame of ZooKeeper's protocol that is not the first one of its connection.
    pub(crate) fn of_frame(frame: &Bytes) -> Kind {
        match Header::split(frame.clone()).map_or(0, |(header, _)| header.opcode) {
            opcode::CREATE | opcode::CREATE2 | opcode::CREATE_CONTAINER | opcode::CREATE_TTL => {
                Kind::ZooKeeperCreate
            }
            opcode::DELETE | opcode::DELETE_CONTAINER => Kind::ZooKeeperDelete,
            opcode::EXISTS => Kind::ZooKeeperExists,
            opcode::GET_DATA => Kind::ZooKeeperGet,
            opcode::SET_DATA => Kind::ZooKeeperSet,
            opcode::GET_CHILDREN | opcode::GET_CHILDREN2 => Kind::ZooKeeperChildren,
            opcode::SYNC => Kind::ZooKeeperSync,
            opcode::MULTI | opcode::MULTI_READ => Kind::ZooKeeperMulti,
            opcode::CLOSE_SESSION => Kind::ZooKeeperSession,
            opcode::PING => Kind::ZooKeeperPing,
            _ => Kind::ZooKeeperOther,
        }
    }
}

/// The counts. Tasks of all connections add to them.
#[derive(Debug)]
pub(crate) struct Requests([AtomicU64; Kind::NAMED.len()]);

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests([const { AtomicU64::new(0) }; Kind::NAMED.len()])
    }

    /// Counts `count` requests of a kind.
    pub(crate) fn count(&self, kind: Kind, count: usize) {
        self.0[kind as usize].fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts the records of a write of Oxia's protocol.
    pub(crate) fn count_write(&self, request: &WriteRequest) {
        let counts = [
            (Kind::OxiaPut, request.puts.len()),
            (Kind::OxiaDelete, request.deletes.len()),
            (Kind::OxiaDeleteRange, request.delete_ranges.len()),
        ];
        if counts.iter().all(|(_, count)| *count == 0) {
            return self.count(Kind::OxiaSync, 1);
        }
        for (kind, count) in counts {
            self.count(kind, count);
        }
    }

    /// Names and counts.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Kind::NAMED.iter().map(|(kind, name)| (*name, self.0[*kind as usize].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kind_has_a_count_and_a_name_of_its_own() {
        let requests = Requests::new();
        for (index, (kind, _)) in Kind::NAMED.iter().enumerate() {
            assert_eq!(*kind as usize, index, "{kind:?}");
            requests.count(*kind, index + 1);
        }
        let counts: Vec<u64> = requests.all().map(|(_, count)| count).collect();
        assert_eq!(counts, (1..=Kind::NAMED.len() as u64).collect::<Vec<_>>());
        assert_eq!(requests.all().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), Kind::NAMED.len());
    }

    #[test]
    fn a_frame_that_is_too_short_is_of_another_kind() {
        assert_eq!(Kind::of_frame(&Bytes::from_static(&[0; 7])), Kind::ZooKeeperOther);
        assert_eq!(Kind::of_frame(&Bytes::from_static(&[0, 0, 0, 1, 0, 0, 0, 4])), Kind::ZooKeeperGet);
    }
}
