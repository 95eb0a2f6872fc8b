//! Generates the Talos messages, clients and server stubs from `proto/`, without `protoc`.

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
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .include_file("talos.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
