//! An embedded coordinator: answers ZooKeeper 3.9's client protocol and Oxia's on loopback, for a bookie and its clients on one
//! machine. Clusters use a ZooKeeper ensemble.
//!
//! # Data flow
//! ```text
//! connection -> core (tree, sessions, watches; under one lock) -> outboxes ------------> connection
//!                    |                                               ^ let go when durable
//!                    +-> changes -> commit thread -> store (redb) ---+
//! ```
//!
//! # Invariants
//! 1. A change is acknowledged, shown to a reader or told to a watch only when it is durable: neither kill -9 nor a
//!    power cut takes back what anybody saw. Changes that come together share one commit.
//! 2. Requests of a connection are executed and answered in order; all changes happen in one order, and every read
//!    sees all changes before it.
//! 3. A notification reaches a connection before any reply that shows its change.
//! 4. Sessions survive a restart with their ids, secrets and ephemeral nodes, and have a whole timeout from then.
//! 5. It listens on loopback only.
//! 6. After the store failed nothing is acknowledged: connections and port close, [`Coordinator::failed`] says why.
//! 7. No zxid is used twice. After a restart they go on some ten thousand higher.
//!
//! # What clients can do
//! All operations of ZooKeeper 3.9's clients: create and create2 with the four modes, containers, nodes
//! with a time to live (as a ZooKeeper with `extendedTypesEnabled`; both looked after each minute), delete, exists, getData, setData, getACL, setACL, getChildren and getChildren2, getAllChildrenNumber,
//! getEphemerals, sync, ping, multi with check, multiRead, one-time, persistent and recursive watches, checkWatches,
//! removeWatches, setWatches and setWatches2, auth (digest, ip), whoAmI, closeSession. Access rules are enforced for
//! `world`, `digest` and `ip`. The words `ruok`, `stat`, `srvr`, `mntr` and `isro` are answered; their counters do not
//! wait for the disk.
//!
//! Not supported:
//! - reconfig, sasl and nodes below `/zookeeper/quota` (which `setquota` of ZooKeeper's shell makes): Unimplemented (-6);
//! - check and createSession as requests of their own, and unknown opcodes: Unimplemented, and the connection closes;
//! - the super user, schemes other than the above (InvalidACL, AuthFailed), TLS, read-only mode, the admin
//!   server and the other four letter words.
//!
//! Known differences: a wrong password does not disconnect the session's client; children come sorted; the total size
//! of the tree has a limit, beyond which creations and larger values get QuotaExceeded (-125); a node has at most 1000
//! access rules (more: InvalidACL), a connection 64 identities with credentials of 4 KiB each (more: AuthFailed), and a
//! multiRead answers with at most 4 MiB of values and names (more: MarshallingError).
//!
//! # Limits
//! [`CoordinatorConfig`] has them; a frame is below 1 MiB, as in ZooKeeper. The tree is in memory.
//!
//! # Not here   ensembles, leader election, snapshots (`bindery cluster export` copies a tree to an ensemble)

mod config;
pub mod conformance;
mod connection;
mod coordinator;
mod core;
mod error;
mod outbox;
mod oxia;
mod requests;
mod sessions;
mod shared;
mod store;
mod tree;
mod watches;
mod wire;

pub use config::CoordinatorConfig;
pub use coordinator::Coordinator;
pub use error::StartError;
