//! Container images of one static binary for one or more architectures, made without a daemon and without a registry.
//!
//! [`archive`] writes a tar that is two things at once: an OCI image layout (`oci-layout`,
//! `index.json`), which `ctr images import`, `podman load`, `skopeo` and Docker with containerd's image store
//! read, and what `docker save` used to write (`manifest.json`), for the other Dockers. The former names an index of
//! all architectures; the latter has no such thing, and names the first.
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
use std::{
    collections::BTreeMap,
    io::{self, Read as _},
};

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
pub struct ImageCommand {
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
    /// What is in it, for each architecture, as Go calls it: `amd64`, `arm64`.
    pub layers: Vec<(&'static str, &'a Layer)>,
    /// What is run.
    pub command: ImageCommand,
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
    /// `sha256:…` of each image's index, in their order: what a registry would call them.
    pub digests: Vec<String>,
}

/// The files of a gzipped tar, in the order of their names and changed last at `time`: it depends on them alone then.
///
/// # Errors
/// It is no such archive, or has names that do not fit into a tar header.
pub fn repack(archive: &[u8], time: Timestamp) -> io::Result<Vec<u8>> {
    let mut files = BTreeMap::new();
    for file in tar::Archive::new(flate2::read::GzDecoder::new(archive)).entries()? {
        let mut file = file?;
        let name = String::from_utf8_lossy(&file.path_bytes()).into_owned();
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        files.insert(name, content);
    }
    let files: Vec<_> =
        files.iter().map(|(name, content)| (name.as_str(), content.as_slice(), 0o644)).collect();
    Compression::Gzip.apply(tarball::of(&files, time)?)
}

/// Puts `images` into one archive; `time` is when its files were changed last.
///
/// # Errors
/// None that input could bring about: writing to memory does not fail.
pub fn archive(images: &[Image<'_>], time: Timestamp) -> io::Result<Archive> {
    let documents = images.iter().map(Documents::of).collect::<Result<Vec<_>, _>>()?;
    let named = || images.iter().zip(&documents);
    let index = index(named().flat_map(|(image, of)| of.entries(image)).collect());
    let docker: Vec<Value> = named().filter_map(|(image, of)| of.docker(image)).collect();
    // Sorted by name, and each once: images may share their layers.
    let mut files = BTreeMap::from([
        ("index.json".to_owned(), serde_json::to_vec(&index)?),
        ("manifest.json".to_owned(), serde_json::to_vec(&docker)?),
        ("oci-layout".to_owned(), serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?),
    ]);
    for (image, of) in named() {
        let layers = image.layers.iter().map(|(_, layer)| &layer.blob);
        let documents = of.variants.iter().flat_map(|one| [&one.manifest, &one.config]);
        for blob in layers.chain(documents).chain([&of.index]) {
            files.entry(path(blob)).or_insert_with(|| blob.clone());
        }
    }
    let files: Vec<_> =
        files.iter().map(|(name, content)| (name.as_str(), content.as_slice(), 0o644)).collect();
    Ok(Archive {
        bytes: tarball::of(&files, time)?,
        digests: documents.iter().map(|of| digest(&of.index)).collect(),
    })
}

fn index(manifests: Vec<Value>) -> Value {
    json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests })
}

/// An image's documents.
struct Documents {
    /// Of each architecture, in the order of the layers.
    variants: Vec<Variant>,
    index: Vec<u8>,
}

/// The documents of one architecture.
struct Variant {
    config: Vec<u8>,
    manifest: Vec<u8>,
}

impl Documents {
    fn of(image: &Image<'_>) -> Result<Self, serde_json::Error> {
        let variant = |(architecture, layer): &(&str, &Layer)| {
            let config = serde_json::to_vec(&json!({
                "created": image.created.to_string(),
                "architecture": architecture,
                "os": "linux",
                "config": container(image),
                "rootfs": { "type": "layers", "diff_ids": [layer.diff_id] },
            }))?;
            let manifest = annotated(
                image,
                json!({
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": descriptor(CONFIG, &config),
                    "layers": [descriptor(layer.compression.media_type(), &layer.blob)],
                }),
            );
            Ok(Variant { config, manifest: serde_json::to_vec(&manifest)? })
        };
        let variants = image.layers.iter().map(variant).collect::<Result<Vec<_>, _>>()?;
        let described = image.layers.iter().zip(&variants).map(|((architecture, _), of)| {
            let mut entry = descriptor(MANIFEST, &of.manifest);
            entry["platform"] = json!({ "architecture": architecture, "os": "linux" });
            entry
        });
        let index = annotated(image, index(described.collect()));
        Ok(Self { index: serde_json::to_vec(&index)?, variants })
    }

    /// Its lines in the archive's index, one a name. containerd and Docker take the name from containerd's
    /// annotation, other tools the tag from OCI's.
    fn entries(&self, image: &Image<'_>) -> impl Iterator<Item = Value> {
        image.names.iter().map(|name| {
            let mut entry = descriptor(INDEX, &self.index);
            entry["annotations"] = json!({
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": tag(name),
            });
            entry
        })
    }

    /// Its entry in Docker's own list, of the first architecture.
    fn docker(&self, image: &Image<'_>) -> Option<Value> {
        let ((_, layer), of) = image.layers.iter().zip(&self.variants).next()?;
        Some(json!({
            "Config": path(&of.config),
            "RepoTags": image.names,
            "Layers": [path(&layer.blob)],
        }))
    }
}

fn annotated(image: &Image<'_>, mut document: Value) -> Value {
    if !image.labels.is_empty() {
        document["annotations"] = json!(image.labels);
    }
    document
}

/// The configuration's part on containers.
fn container(image: &Image<'_>) -> Value {
    let ImageCommand { entrypoint, cmd, stop_signal, ports } = &image.command;
    // All programs are in the root, where `kubectl exec POD -- PROGRAM` is to find them.
    let env = ["PATH=/"];
    let mut of = json!({ "Entrypoint": entrypoint, "Cmd": cmd, "Env": env, "WorkingDir": "/" });
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
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Go's name of this machine's architecture, which is what images are labelled with.
pub fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
