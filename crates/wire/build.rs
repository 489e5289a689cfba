//! Compiles the v3 messages. `protox` parses the file, so no `protoc` needs to be installed.

use std::error::Error;

const PROTO: &str = "proto/bookkeeper_protocol.proto";

/// Their `Debug` is written by hand in `v3/mod.rs`: they hold a master key or an authentication payload.
const WITH_SECRETS: [&str; 4] = ["ReadRequest", "AddRequest", "WriteLacRequest", "AuthMessage"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    prost_build::Config::new()
        .bytes(["."])
        .skip_debug(WITH_SECRETS)
        .default_package_filename("bookkeeper_protocol")
        .compile_fds(descriptors)?;
    Ok(())
}
