//! Generates the modules from the `.proto` files without a `protoc` binary: protox parses them
//! and hands the descriptor set to tonic-prost-build.

use std::path::PathBuf;

/// The services of a server; its reflection describes them all.
const OF_THE_STORE: [&str; 5] = [
    "holdfast/v1/lock.proto",
    "holdfast/v1/cluster.proto",
    "holdfast/v1/scope.proto",
    "holdfast/v1/auth.proto",
    "holdfast/v1/peer.proto",
];
/// Services of other programs.
const OF_OTHERS: [&str; 1] = ["holdfast/v1/time.proto"];
/// The name of a field that no `Debug` shows: `src/secrets.rs` has that of each message with one.
const SECRET: &str = "secret";
/// A message whose secret has another name.
const NEW_TOKEN: &str = ".holdfast.v1.CreateTokenResponse";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = || OF_THE_STORE.into_iter().chain(OF_OTHERS);
    for file in files() {
        println!("cargo:rerun-if-changed={file}");
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // Kept beside the code for gRPC reflection.
    std::fs::write(
        out.join("holdfast_descriptor.bin"),
        prost::Message::encode_to_vec(&protox::compile(OF_THE_STORE, ["."])?),
    )?;
    let all = protox::compile(files(), ["."])?;
    let secret = all.file.iter().flat_map(|file| {
        let messages = file.message_type.iter();
        messages
            .filter(|message| message.field.iter().any(|field| field.name() == SECRET))
            .map(move |message| format!(".{}.{}", file.package(), message.name()))
    });
    let without_debug: Vec<String> = secret.chain([NEW_TOKEN.to_owned()]).collect();
    let code = tonic_prost_build::configure().bytes(".").skip_debug(without_debug);
    // Its events are encoded once for all watchers: `src/watch_response.rs`.
    code.extern_path(".holdfast.v1.WatchResponse", "crate::v1::WatchResponse").compile_fds(all)?;
    Ok(())
}
