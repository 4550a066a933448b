//! Container images of one static binary, made without a daemon and without a registry.
//!
//! [`archive`] writes a tar that is two things at once: an OCI image layout (`oci-layout`,
//! `index.json`), which `ctr images import`, `podman load`, `skopeo` and Docker from 25 on read, and
//! what `docker save` used to write (`manifest.json`), for the Dockers before. Both name the same blobs.
//!
//! Everything depends on the input alone: entries are in order, without owners, and every time is
//! the one that the caller gives. Equal input, equal archive, equal digest.
//!
//! Sources: opencontainers/image-spec `image-layout.md`, `manifest.md`, `config.md`,
//! `annotations.md`; moby `image/tarexport/load.go`; containerd `core/images/archive/importer.go`.

mod tarball;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeMap, fmt::Write as _, io};

pub use tarball::Compression;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// The one layer of an image: one program, and what has to be read with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    blob: Vec<u8>,
    /// Of the tar before its compression.
    diff_id: String,
    compression: Compression,
}

impl Layer {
    /// A layer with nothing but the program `binary` as `/name` and the `texts`, changed last at `time`.
    ///
    /// # Errors
    /// A name does not fit into a tar header (100 bytes), or is not a relative path.
    pub fn of_program(
        name: &str,
        binary: &[u8],
        texts: &[(&str, &str)],
        time: Timestamp,
        compression: Compression,
    ) -> io::Result<Self> {
        let texts = texts.iter().map(|(name, text)| (*name, text.as_bytes(), 0o644));
        let mut files: Vec<_> = std::iter::once((name, binary, 0o755)).chain(texts).collect();
        files.sort_by_key(|(name, ..)| *name);
        let tar = tarball::of(&files, time)?;
        let diff_id = digest(&tar);
        Ok(Self { blob: compression.apply(tar)?, diff_id, compression })
    }
}

/// What a container of an image is started with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// What is always run.
    pub entrypoint: Vec<String>,
    /// Its arguments, where the container names no others.
    pub cmd: Vec<String>,
    /// The signal that stops it; SIGTERM where there is none.
    pub stop_signal: Option<String>,
    /// TCP ports that it listens on.
    pub ports: Vec<u16>,
}

/// An image.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    /// Its full names, with registry and tag: `docker.io/coroner/workload:lab`.
    pub names: Vec<String>,
    /// What is in it.
    pub layer: &'a Layer,
    /// What is run.
    pub command: Command,
    /// What it says of itself (`org.opencontainers.image.title`, …): labels of the configuration and
    /// annotations of the manifest.
    pub labels: BTreeMap<String, String>,
    /// When it was made, as far as anybody need know.
    pub created: Timestamp,
}

/// An archive that can be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    /// The tar.
    pub bytes: Vec<u8>,
    /// `sha256:…` of each image's manifest, in their order: what a registry would call them.
    pub digests: Vec<String>,
}

/// Puts `images` into one archive; `time` is when its files were changed last.
///
/// # Errors
/// None that input could bring about: writing to memory does not fail.
pub fn archive(images: &[Image<'_>], time: Timestamp) -> io::Result<Archive> {
    let documents = images.iter().map(Documents::of).collect::<Result<Vec<_>, _>>()?;
    let named = || images.iter().zip(&documents);
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": named().flat_map(|(image, files)| files.entries(image)).collect::<Vec<_>>(),
    });
    let docker: Vec<Value> = named().map(|(image, files)| files.docker(image)).collect();
    // Sorted by name, and each once: images may share their layer.
    let mut files = BTreeMap::from([
        ("index.json".to_owned(), serde_json::to_vec(&index)?),
        ("manifest.json".to_owned(), serde_json::to_vec(&docker)?),
        ("oci-layout".to_owned(), serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?),
    ]);
    for (image, of) in named() {
        for blob in [&of.manifest, &of.config, &image.layer.blob] {
            files.entry(path(blob)).or_insert_with(|| blob.clone());
        }
    }
    let files: Vec<_> =
        files.iter().map(|(name, content)| (name.as_str(), content.as_slice(), 0o644)).collect();
    Ok(Archive {
        bytes: tarball::of(&files, time)?,
        digests: documents.iter().map(|of| digest(&of.manifest)).collect(),
    })
}

/// An image's two documents.
struct Documents {
    config: Vec<u8>,
    manifest: Vec<u8>,
}

impl Documents {
    fn of(image: &Image<'_>) -> Result<Self, serde_json::Error> {
        let config = serde_json::to_vec(&json!({
            "created": image.created.to_string(),
            "architecture": architecture(),
            "os": "linux",
            "config": container(image),
            "rootfs": { "type": "layers", "diff_ids": [image.layer.diff_id] },
        }))?;
        let mut manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": [descriptor(image.layer.compression.media_type(), &image.layer.blob)],
        });
        if !image.labels.is_empty() {
            manifest["annotations"] = json!(image.labels);
        }
        Ok(Self { config, manifest: serde_json::to_vec(&manifest)? })
    }

    /// Its lines in the index, one a name. containerd and Docker take the name from containerd's
    /// annotation, other tools the tag from OCI's.
    fn entries(&self, image: &Image<'_>) -> impl Iterator<Item = Value> {
        image.names.iter().map(|name| {
            let mut entry = descriptor(MANIFEST, &self.manifest);
            entry["platform"] = json!({ "architecture": architecture(), "os": "linux" });
            entry["annotations"] = json!({
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": tag(name),
            });
            entry
        })
    }

    /// Its entry in Docker's own list.
    fn docker(&self, image: &Image<'_>) -> Value {
        json!({
            "Config": path(&self.config),
            "RepoTags": image.names,
            "Layers": [path(&image.layer.blob)],
        })
    }
}

/// The configuration's part on containers.
fn container(image: &Image<'_>) -> Value {
    let Command { entrypoint, cmd, stop_signal, ports } = &image.command;
    let mut of = json!({ "Entrypoint": entrypoint, "Cmd": cmd, "WorkingDir": "/" });
    if let Some(signal) = stop_signal {
        of["StopSignal"] = json!(signal);
    }
    if !ports.is_empty() {
        let ports: Map<String, Value> =
            ports.iter().map(|port| (format!("{port}/tcp"), json!({}))).collect();
        of["ExposedPorts"] = Value::Object(ports);
    }
    if !image.labels.is_empty() {
        of["Labels"] = json!(image.labels);
    }
    of
}

/// The tag of a full name. A colon before the last slash is that of a registry's port.
fn tag(name: &str) -> &str {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.rsplit_once(':').map_or("latest", |(_, tag)| tag)
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

fn path(content: &[u8]) -> String {
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
