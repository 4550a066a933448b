//! Generates the messages and the client from `proto/v1.proto`; protox is a protoc in Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["v1.proto"], ["proto"])?;
    // No servers: nothing uses them, and they would be a third of the code.
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
