//! The inputs that the repository keeps of each target.

use flate2::read::GzDecoder;
use std::{collections::BTreeMap, fs::File, io::Read as _, path::Path};
use tar::Archive;

/// Those of a target, by name.
pub(crate) fn inputs(target: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    let archive = File::open(folder.join(format!("{target}.tar.gz"))).expect("an archive");
    let mut archive = Archive::new(GzDecoder::new(archive));
    let mut inputs = BTreeMap::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        if entry.header().entry_type().is_file() {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("an input");
            let path = entry.path().expect("a path");
            inputs.insert(path.file_name().expect("a name").display().to_string(), bytes);
        }
    }
    inputs
}
