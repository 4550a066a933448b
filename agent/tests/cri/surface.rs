//! What the adapter may ask of a runtime at all.

use crate::rust_files::rust_files;
use std::path::Path;

/// Its client is generated from `read.proto`, whose calls only read; the lab's could do everything.
#[test]
fn all_calls_that_can_be_made_only_read() {
    let calls: Vec<_> = include_str!("../../../cri-api/proto/read.proto")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next())
        .collect();
    let reading = [
        "Version",
        "ListPodSandbox",
        "ListContainers",
        "ContainerStatus",
        "PodSandboxStatus",
        "ImageStatus",
    ];
    assert_eq!(calls, reading);
    for path in rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = std::fs::read_to_string(&path).unwrap();
        // The export is to another server, by calls of its own.
        let is_export = path.ends_with("outputs/otlp/client.rs");
        for other in ["cri_api::v1", "client::Grpc", "RuntimeService/", "ImageService/"] {
            let is_its_own = is_export && other == "client::Grpc";
            assert!(!text.contains(other) || is_its_own, "{}: {other}", path.display());
        }
    }
}
