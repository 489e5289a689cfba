//! How the clients of this process speak to bookies, from the options of a command: `args`. The settings themselves are
//! `bindery_config::bookie_security`.

pub mod args;

pub use bindery_config::bookie_security::BookieSecurity;
