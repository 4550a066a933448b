//! Generates messages and clients from `proto/`; protox is a protoc in Rust.

use std::{env, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // The fake runtime of the agent's tests serves what the agent reads; nothing serves the rest.
    for (proto, server) in [("v1", false), ("read", true)] {
        let out = PathBuf::from(env::var("OUT_DIR")?).join(proto);
        fs::create_dir_all(&out)?;
        let descriptors = protox::compile([format!("{proto}.proto")], ["proto"])?;
        tonic_prost_build::configure()
            .out_dir(out)
            .bytes(".runtime.v1.ListPodSandboxResponse")
            .bytes(".runtime.v1.ListContainersResponse")
            .bytes(".runtime.v1.PodSandbox")
            .bytes(".runtime.v1.Container")
            .build_server(server)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
