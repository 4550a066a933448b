//! `cargo xtask image`: the agent's container image, made here, without a daemon.
//!
//! One static binary on nothing for each architecture, with the licences of what is linked into it. An equal commit,
//! compiler and C library give an equal digest, wherever the checkout is: its path is mapped away ([`crate::build::agent_for_release`]), and the only time in the
//! image is `SOURCE_DATE_EPOCH`, or else that of the last commit.

mod licenses;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use coroner_image::{Compression, Image, ImageCommand, Layer, archive};
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    build::{self, Profile},
    host::Arch,
    steps::output,
    toolchain::metadata,
    workspace::Workspace,
};

/// Where the image would be pulled from.
const REPOSITORY: &str = "ghcr.io/coroner-dev/coroner";
/// Where the agent serves: `DEFAULT_PORT` of agent/src/config/args.rs.
const PORT: u16 = 9470;
/// What it does where the container says nothing else.
const COMMAND: &str = "run";
/// The program's name inside the image.
const PROGRAM: &str = "coroner";

/// The static program for an architecture, beside the archive: a release publishes both.
pub(crate) fn program_file(workspace: &Workspace, arch: &Arch) -> PathBuf {
    workspace.target(&format!("image/{PROGRAM}-linux-{}", arch.debian))
}

/// An image archive that was made.
#[derive(Debug)]
pub(crate) struct Made {
    /// The archive.
    pub(crate) file: PathBuf,
    /// The image's name.
    pub(crate) name: String,
    /// `sha256:…` of its index.
    pub(crate) digest: String,
    /// Size of the archive, bytes.
    pub(crate) size: usize,
}

/// Where the archive is, unless a person says otherwise.
pub(crate) fn default_file(workspace: &Workspace) -> PathBuf {
    workspace.target("image/coroner.tar")
}

/// Makes the archive `file` of the agent for these architectures: as a release ships it, built here, or the one
/// that the tests run, which is there. Both are linked statically; the latter is larger and slower.
///
/// # Errors
/// When something does not compile, or the archive cannot be written.
pub(crate) fn make(
    workspace: &Workspace,
    file: &Path,
    profile: Profile,
    arches: &[&'static Arch],
) -> Result<Made> {
    if profile == Profile::Release {
        build::kernel_programs(workspace)?;
    }
    let metadata = metadata(&["--no-deps"])?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let agent = packages.find(|package| package["name"] == PROGRAM).context("no such package")?;
    let source = SourceState::of(workspace)?;
    let mut layers = Vec::new();
    for arch in arches {
        layers.push((arch.debian, layer(workspace, profile, arch, &source)?));
    }
    let version = agent["version"].as_str().context("the agent has no version")?;
    let name = format!("{REPOSITORY}:v{version}");
    let image = Image {
        names: vec![name.clone()],
        layers: layers.iter().map(|(arch, layer)| (*arch, layer)).collect(),
        command: ImageCommand {
            entrypoint: vec![format!("/{PROGRAM}")],
            cmd: vec![COMMAND.to_owned()],
            stop_signal: None,
            ports: vec![PORT],
        },
        labels: labels(agent, &source),
        created: source.time,
    };
    let archive = archive(&[image], source.time)?;
    make_folder_of(file)?;
    fs::write(file, &archive.bytes).with_context(|| format!("cannot write {}", file.display()))?;
    let digest = archive.digests.into_iter().next().context("an archive without an image")?;
    Ok(Made { file: file.to_owned(), name, digest, size: archive.bytes.len() })
}

/// What is in the image for one architecture.
fn layer(
    workspace: &Workspace,
    profile: Profile,
    arch: &Arch,
    source: &SourceState,
) -> Result<Layer> {
    let copy = program_file(workspace, arch);
    make_folder_of(&copy)?;
    match profile {
        Profile::Release => {
            let built = build::agent_for_release(workspace, arch)?;
            fs::copy(&built, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        }
        // Lines of source for backtraces are three quarters of it.
        Profile::Dev => {
            let built = workspace.built_for(arch, "debug/coroner");
            build::stripped(workspace, arch, &built, &copy)?;
        }
    }
    let binary = fs::read(&copy).with_context(|| format!("cannot read {}", copy.display()))?;
    let licenses = licenses::third_party(arch)?;
    let texts = [(licenses::FILE, licenses.as_str())];
    Ok(Layer::of_program(PROGRAM, &binary, &texts, source.time, Compression::Gzip)?)
}

fn make_folder_of(file: &Path) -> Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// OCI's pre-defined annotation keys, opencontainers/image-spec `annotations.md`, by what the agent's manifest says.
fn labels(agent: &Value, source: &SourceState) -> BTreeMap<String, String> {
    let text = |field: &str| agent[field].as_str().map(str::to_owned);
    let pairs = [
        ("title", Some(PROGRAM.to_owned())),
        ("description", text("description")),
        ("version", text("version")),
        ("source", text("repository")),
        ("licenses", text("license")),
        ("created", Some(source.time.to_string())),
        ("revision", source.revision.clone()),
    ];
    let key = |name| format!("org.opencontainers.image.{name}");
    pairs.into_iter().filter_map(|(name, value)| Some((key(name), value?))).collect()
}

/// Which sources these are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SourceState {
    /// When they were changed last, as far as is known.
    pub(crate) time: Timestamp,
    /// The commit; `…-dirty` where files differ from it.
    revision: Option<String>,
}

impl SourceState {
    /// Of the checkout.
    ///
    /// # Errors
    /// When SOURCE_DATE_EPOCH is no number.
    pub(crate) fn of(workspace: &Workspace) -> Result<Self> {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(workspace.root()).args(arguments);
            output(&mut git).map(|text| text.trim().to_owned())
        };
        let epoch = env::var("SOURCE_DATE_EPOCH").ok();
        let committed = git(&["log", "-1", "--format=%ct"]);
        let revision = git(&["rev-parse", "HEAD"]);
        let dirty = git(&["status", "--porcelain"]).is_some_and(|files| !files.is_empty());
        let seconds = match (epoch, committed) {
            (Some(text), _) => text.parse().ok().with_context(|| {
                format!("SOURCE_DATE_EPOCH={text:?}: give seconds since 1970, or leave it out")
            })?,
            (None, Some(text)) => text.parse().context("git shows no commit time")?,
            (None, None) => 0,
        };
        let revision = revision.map(|commit| if dirty { commit + "-dirty" } else { commit });
        Ok(Self { time: Timestamp::from_second(seconds)?, revision })
    }
}
