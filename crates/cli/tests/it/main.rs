//! The `bindery` command as a shell sees it: data, messages, exit codes; whole servers, stopped and killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster_status;
mod command;
mod config;
mod errors;
mod flow;
mod frozen;
mod ledger;
mod restore;
mod secrets;
mod server;
mod standalone;
mod terminal;
mod tiering;
mod tls;
mod verify;
