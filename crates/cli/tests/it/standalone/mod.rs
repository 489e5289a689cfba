//! `bindery standalone` as its user sees it: start, connect, stop, kill -9, and everything that refuses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

mod life;
mod outputs;
mod pipe_kill;
mod start_times;
