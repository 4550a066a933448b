//! The OCI image of the lab, made by hand from one static binary: no registry is reachable, and
//! none is needed.
//!
//! [`build`] writes an archive that `ctr images import` understands;
//! [`crate::containerd::Containerd::import`] brings it into the private containerd as [`NAME`],
//! which is also its sandbox image, as [`NEXT`], and with a STOPSIGNAL as [`SIGQUIT`]. Equal binaries give equal archives, byte by byte.
//!
//! The image's entrypoint is `/workload` and its command `pause`, so a sandbox pauses; a container
//! says `command: ["/workload", "handle", "--for", "2s"]`, and a hook the same.

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::{fmt::Write as _, fs, path::Path};

/// The image's name, as the CRI resolves it. Its pull policy must be `Never`.
pub const NAME: &str = "docker.io/coroner/workload:lab";

/// The same image under another name: what `kubectl set image` changes to.
pub const NEXT: &str = "docker.io/coroner/workload:next";

/// The same, but for its `STOPSIGNAL SIGQUIT`.
pub const SIGQUIT: &str = "docker.io/coroner/workload:sigquit";

/// All names in the archive.
pub const NAMES: [&str; 3] = [NAME, NEXT, SIGQUIT];

/// Where the binary is inside the image.
pub const PROGRAM: &str = "/workload";

/// Reads the static binary at `workload` and writes the image archive to `archive`.
///
/// # Errors
/// The binary cannot be read, or the archive cannot be written.
pub fn build(workload: &Path, archive: &Path) -> Result<()> {
    let binary = fs::read(workload).with_context(|| {
        format!("cannot read the workload binary {}: build it first", workload.display())
    })?;
    let bytes = archive_of(&binary).context("cannot put the image together")?;
    fs::write(archive, bytes)
        .with_context(|| format!("cannot write the image archive {}", archive.display()))
}

fn archive_of(binary: &[u8]) -> Result<Vec<u8>> {
    let layer = tar_of(&[(&PROGRAM[1..], binary, 0o755)])?;
    let plain = Image::new(&layer, None)?;
    let stopped_by_sigquit = Image::new(&layer, Some("SIGQUIT"))?;
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "manifests":
            [plain.entry(NAME), plain.entry(NEXT), stopped_by_sigquit.entry(SIGQUIT)],
    }))?;
    let layout = serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?;
    let mut files: Vec<(&str, &[u8], u32)> =
        vec![("oci-layout", &layout, 0o644), ("index.json", &index, 0o644)];
    let blobs: Vec<(String, &[u8])> = [&plain, &stopped_by_sigquit]
        .into_iter()
        .flat_map(|image| [&image.manifest, &image.config])
        .chain([&layer])
        .map(|content| (blob(content), content.as_slice()))
        .collect();
    files.extend(blobs.iter().map(|(name, content)| (name.as_str(), *content, 0o644)));
    tar_of(&files)
}

/// An image of one layer: its two documents.
struct Image {
    config: Vec<u8>,
    manifest: Vec<u8>,
}

impl Image {
    fn new(layer: &[u8], stop_signal: Option<&str>) -> Result<Self> {
        let mut of_container =
            json!({ "Entrypoint": [PROGRAM], "Cmd": ["pause"], "WorkingDir": "/" });
        if let Some(signal) = stop_signal {
            of_container["StopSignal"] = json!(signal);
        }
        let config = serde_json::to_vec(&json!({
            "architecture": architecture(),
            "os": "linux",
            "config": of_container,
            "rootfs": { "type": "layers", "diff_ids": [digest(layer)] },
        }))?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }))?;
        Ok(Self { config, manifest })
    }

    /// Its line in the index. containerd takes the image's name from its own annotation, other
    /// tools the tag from OCI's.
    fn entry(&self, name: &str) -> serde_json::Value {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &self.manifest);
        let tag = name.rsplit(':').next().unwrap_or(name);
        entry["platform"] = json!({ "architecture": architecture(), "os": "linux" });
        entry["annotations"] = json!({
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": tag,
        });
        entry
    }
}

/// A tar archive that depends on its content alone: no times, no owners.
fn tar_of(files: &[(&str, &[u8], u32)]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content, mode) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        archive.append_data(&mut header, name, *content)?;
    }
    Ok(archive.into_inner()?)
}

fn descriptor(media_type: &str, content: &[u8]) -> serde_json::Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

fn blob(content: &[u8]) -> String {
    format!("blobs/sha256/{}", hex(content))
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(content))
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Go's name of this machine's architecture, which is what images are labelled with.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, io::Read};

    fn unpack(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(name, content);
        }
        files
    }

    #[test]
    fn every_digest_leads_to_its_blob() {
        let files = unpack(&archive_of(b"a program").unwrap());
        let follow = |descriptor: &serde_json::Value| {
            let digest = descriptor["digest"].as_str().unwrap().replace("sha256:", "");
            let content = &files[&format!("blobs/sha256/{digest}")];
            assert_eq!(descriptor["size"], content.len());
            assert_eq!(hex(content), digest);
            content.clone()
        };
        let index: serde_json::Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let mut signals = Vec::new();
        for entry in index["manifests"].as_array().unwrap() {
            let manifest: serde_json::Value = serde_json::from_slice(&follow(entry)).unwrap();
            let config: serde_json::Value =
                serde_json::from_slice(&follow(&manifest["config"])).unwrap();
            signals.push(config["config"]["StopSignal"].clone());
            let layer = unpack(&follow(&manifest["layers"][0]));
            assert_eq!(layer["workload"], b"a program");
        }
        assert_eq!(signals, [json!(null), json!(null), json!("SIGQUIT")]);
    }

    #[test]
    fn equal_binaries_give_equal_images() {
        assert_eq!(archive_of(b"a").unwrap(), archive_of(b"a").unwrap());
        assert_ne!(archive_of(b"a").unwrap(), archive_of(b"b").unwrap());
    }
}
