//! Generates the protobuf messages with protox, so that no `protoc` needs to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/metadata.proto");
    let files = protox::compile(["metadata.proto"], ["proto"])?;
    prost_build::Config::new().btree_map(["."]).compile_fds(files)?;
    Ok(())
}
