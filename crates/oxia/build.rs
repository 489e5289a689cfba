//! Compiles messages and service. `protox` parses the file, so no `protoc` needs to be installed.

use std::error::Error;

const PROTO: &str = "proto/client.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".io.oxia.proto.v1.PutRequest.value")
        .bytes(".io.oxia.proto.v1.GetResponse.value")
        .btree_map(".")
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds(descriptors)?;
    Ok(())
}
