//! Generates the Talos messages, clients and server stubs from `proto/`, without `protoc`.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "proto/status.proto",
        "proto/common.proto",
        "proto/machine.proto",
        "proto/state.proto",
        "proto/storage.proto",
        "proto/specs.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("talos.fds"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .include_file("talos.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
