//! The bookie on a simulated disk: scenarios, every power cut, the swarm and the bugs planted for it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod canaries;
mod explorer;
mod ingest;
mod journal_acceptance;
mod journal_damage;
mod scenarios;
mod space;
mod swarm;
mod tier;
