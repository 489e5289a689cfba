//! The places that settings come from: a configuration file and variables ([`values`], [`environment`]), and this machine ([`host`]).

mod conf_file;
pub mod environment;
pub mod host;
pub mod values;
