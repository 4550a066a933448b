//! An archive, read as those who load it do: through OCI's index, with another library's idea of the format, and
//! through Docker's own list.

use coroner_image::{Archive, Compression, Image, ImageCommand, Layer, archive};
use flate2::read::GzDecoder;
use jiff::Timestamp;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, OciLayout};
use serde_json::Value;
use std::{collections::BTreeMap, io::Read};

const NAME: &str = "registry.example:5000/a/b:v1";
const TITLE: &str = "org.opencontainers.image.title";
/// The programs for both architectures.
const PROGRAMS: [&[u8]; 2] = [b"a program", b"another program"];

fn made_of(programs: [&[u8]; 2], compression: Compression) -> Archive {
    let time: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
    let texts = [("licenses/text", "free")];
    let [amd64, arm64] =
        programs.map(|one| Layer::of_program("program", one, &texts, time, compression).unwrap());
    let image = Image {
        names: vec![NAME.into()],
        layers: vec![("amd64", &amd64), ("arm64", &arm64)],
        command: ImageCommand {
            entrypoint: vec!["/program".into()],
            cmd: vec!["run".into()],
            stop_signal: Some("SIGQUIT".into()),
            ports: vec![9470],
        },
        labels: BTreeMap::from([(TITLE.into(), "a program".into())]),
        created: time,
    };
    archive(&[image], time).unwrap()
}

type ArchivedFiles = BTreeMap<String, Vec<u8>>;

/// The files of a tar, which are root's.
fn unpack(tar: &[u8]) -> ArchivedFiles {
    let mut files = ArchivedFiles::new();
    for entry in tar::Archive::new(tar).entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        files.insert(entry.path().unwrap().to_string_lossy().into_owned(), content);
    }
    files
}

/// What a descriptor points at, which must be what it says.
fn follow<'a>(files: &'a ArchivedFiles, to: &Descriptor) -> &'a [u8] {
    let content = &files[&format!("blobs/sha256/{}", to.digest().digest())];
    assert_eq!(to.size(), content.len() as u64);
    content
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

#[test]
fn oci_leads_from_the_name_to_the_program_of_each_architecture() {
    let made = made_of(PROGRAMS, Compression::Gzip);
    let files = unpack(&made.bytes);
    OciLayout::from_reader(files["oci-layout"].as_slice()).unwrap();
    let index = ImageIndex::from_reader(files["index.json"].as_slice()).unwrap();
    let [named] = index.manifests().as_slice() else { panic!("{index:?}") };
    assert_eq!(made.digests, [named.digest().to_string()]);
    let names = named.annotations().clone().unwrap();
    assert_eq!(names["io.containerd.image.name"], NAME);
    assert_eq!(names["org.opencontainers.image.ref.name"], "v1");
    let index = ImageIndex::from_reader(follow(&files, named)).unwrap();
    assert_eq!(index.manifests().len(), PROGRAMS.len());
    for (entry, program) in index.manifests().iter().zip(PROGRAMS) {
        let manifest = ImageManifest::from_reader(follow(&files, entry)).unwrap();
        let config = ImageConfiguration::from_reader(follow(&files, manifest.config())).unwrap();
        assert_eq!(entry.platform().as_ref().unwrap().architecture(), config.architecture());
        assert_eq!(config.created().as_deref(), Some("2026-11-21T12:00:00Z"));
        let [layer] = manifest.layers().as_slice() else { panic!("{manifest:?}") };
        let wanted = [("licenses/text", &b"free"[..]), ("program", program)];
        let wanted = wanted.map(|(name, content)| (name.to_owned(), content.to_vec()));
        assert_eq!(unpack(&gunzip(follow(&files, layer))), ArchivedFiles::from(wanted));
        let of = config.config().clone().unwrap();
        assert_eq!(of.entrypoint().as_deref(), Some(["/program".into()].as_slice()));
        assert_eq!(of.cmd().as_deref(), Some(["run".into()].as_slice()));
        assert_eq!(of.exposed_ports().as_deref(), Some(["9470/tcp".into()].as_slice()));
        assert_eq!(of.stop_signal().as_deref(), Some("SIGQUIT"));
        assert_eq!(of.labels().as_ref().unwrap()[TITLE], "a program");
        assert_eq!(manifest.annotations().as_ref().unwrap()[TITLE], "a program");
    }
}

/// What `image/tarexport/load.go` of Dockers before 25 reads, and what it compares.
#[test]
fn dockers_own_list_leads_to_the_first_architectures_program() {
    let files = unpack(&made_of(PROGRAMS, Compression::Gzip).bytes);
    let list: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
    assert_eq!(list[0]["RepoTags"], serde_json::json!([NAME]));
    let config = &files[list[0]["Config"].as_str().unwrap()];
    let config = ImageConfiguration::from_reader(config.as_slice()).unwrap();
    let tar = gunzip(&files[list[0]["Layers"][0].as_str().unwrap()]);
    assert_eq!(unpack(&tar)["program"], PROGRAMS[0]);
    // The diff id is of the tar, whatever the layer is packed with.
    let plain = unpack(&made_of(PROGRAMS, Compression::None).bytes);
    let diff_id = config.rootfs().diff_ids()[0].replace("sha256:", "blobs/sha256/");
    assert_eq!(plain[&diff_id], tar);
}

#[test]
fn equal_input_gives_equal_archives_and_other_input_others() {
    let made = |programs| made_of(programs, Compression::Gzip);
    assert_eq!(made(PROGRAMS), made(PROGRAMS));
    assert_ne!(made(PROGRAMS).digests, made([b"b", PROGRAMS[1]]).digests);
}
