//! The OCI image of the lab, made from one static binary: no registry is needed. Its entrypoint is the workload and its
//! command `pause`, so that it is the sandboxes' image, too.

use anyhow::{Context as _, Result};
use coroner_image::{Compression, Image, ImageCommand, Layer, archive, host_architecture};
use jiff::Timestamp;
use std::{collections::BTreeMap, fs, path::Path};

/// The image's name, as the CRI resolves it. Its pull policy must be `Never`.
pub const NAME: &str = "docker.io/coroner/workload:lab";
/// The same image under another name: what `kubectl set image` changes to.
pub const NEXT: &str = "docker.io/coroner/workload:next";
/// The same, but for its `STOPSIGNAL SIGQUIT`.
pub const SIGQUIT: &str = "docker.io/coroner/workload:sigquit";
/// All names in the archive.
pub const NAMES: [&str; 3] = [NAME, NEXT, SIGQUIT];
/// Where the binary is in the image.
pub const PROGRAM: &str = "/workload";

/// Reads the static binary at `workload` and writes the image archive to `to`.
pub fn build(workload: &Path, to: &Path) -> Result<()> {
    let binary = fs::read(workload).with_context(|| {
        format!("cannot read {}: build it first (cargo xtask build)", workload.display())
    })?;
    let time = Timestamp::UNIX_EPOCH;
    let layer = Layer::of_program(&PROGRAM[1..], &binary, &[], time, Compression::None)?;
    let image = |names: &[&str], stop_signal: Option<&str>| Image {
        names: names.iter().copied().map(str::to_owned).collect(),
        layers: vec![(host_architecture(), &layer)],
        command: ImageCommand {
            entrypoint: vec![PROGRAM.to_owned()],
            cmd: vec!["pause".to_owned()],
            stop_signal: stop_signal.map(str::to_owned),
            ports: Vec::new(),
        },
        labels: BTreeMap::new(),
        created: time,
    };
    let images = [image(&[NAME, NEXT], None), image(&[SIGQUIT], Some("SIGQUIT"))];
    let bytes = archive(&images, time).context("cannot put the image together")?.bytes;
    fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))
}
