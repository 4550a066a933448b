//! The image archive, taken apart.

use flate2::read::GzDecoder;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The files of the image's one layer.
pub(crate) struct Image(BTreeMap<String, Vec<u8>>);

impl Image {
    /// Reads CORONER_IMAGE, or what `cargo xtask image` made in this checkout.
    pub(crate) fn read() -> Self {
        let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/image/coroner.tar");
        let file = std::env::var_os("CORONER_IMAGE").map_or(made, PathBuf::from);
        let archive = fs::read(&file).unwrap_or_else(|error| {
            panic!("{}: {error}: make it with `cargo xtask image`", file.display())
        });
        let files = unpack(&archive);
        let json = |name: &str| -> Value { serde_json::from_slice(&files[name]).unwrap() };
        let blob = |of: &Value| {
            format!("blobs/sha256/{}", of["digest"].as_str().unwrap().trim_start_matches("sha256:"))
        };
        // The name leads to an index, whose first manifest is for this machine's architecture.
        let index = json(&blob(&json("index.json")["manifests"][0]));
        let manifest = json(&blob(&index["manifests"][0]));
        let layer = &files[&blob(&manifest["layers"][0])];
        let mut tar = Vec::new();
        GzDecoder::new(layer.as_slice()).read_to_end(&mut tar).unwrap();
        Self(unpack(&tar))
    }

    /// By name.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, content)| (name.as_str(), content.as_slice()))
    }

    /// Writes them below `root`.
    pub(crate) fn write(&self, root: &Path) {
        for (name, content) in self.files() {
            let file = root.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

fn unpack(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(tar).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        files.insert(name, content);
    }
    files
}
