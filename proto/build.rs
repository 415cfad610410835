//! Generates the modules from the `.proto` files without a `protoc` binary: protox parses them
//! and hands the descriptor set to tonic-prost-build.

use std::path::PathBuf;

const FILES: [&str; 4] = [
    "holdfast/v1/lock.proto",
    "holdfast/v1/cluster.proto",
    "holdfast/v1/scope.proto",
    "holdfast/v1/peer.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // Kept beside the code for gRPC reflection.
    std::fs::write(
        out.join("holdfast_descriptor.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
