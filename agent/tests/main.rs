//! All tests of the agent that need no root, but for `memory`, whose allocator counts.

mod binary;
mod cli;
#[path = "cri/main.rs"]
mod cri;
#[path = "docs/main.rs"]
mod docs;
mod http;
#[path = "kube/main.rs"]
mod kube;
mod leaks_cli;
#[path = "../core/tests/random/mod.rs"]
mod random;
#[path = "recording/main.rs"]
mod recording;
#[path = "replay/main.rs"]
mod replay;
mod rooms;
mod rust_files;
mod secrets;
mod server;
mod tls;
