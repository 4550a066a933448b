//! An archive, read the way those who load it do: through OCI's index, with another library's idea of
//! the format, and through Docker's own list.

use coroner_image::{Archive, Compression, Image, ImageCommand, Layer, archive};
use flate2::read::GzDecoder;
use jiff::Timestamp;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, OciLayout};
use serde_json::Value;
use std::{collections::BTreeMap, io::Read};

const NAME: &str = "registry.example:5000/a/b:v1";
/// The program for the other architecture.
const OTHER: &[u8] = b"another program";
const TITLE: &str = "org.opencontainers.image.title";

fn time() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn made_of(binary: &[u8], compression: Compression) -> Archive {
    let texts = [("licenses/text", "free")];
    let of = |binary| Layer::of_program("program", binary, &texts, time(), compression).unwrap();
    let (layer, other) = (of(binary), of(OTHER));
    let command = ImageCommand {
        entrypoint: vec!["/program".into()],
        cmd: vec!["run".into()],
        stop_signal: None,
        ports: vec![9470],
    };
    let plain = Image {
        names: vec![NAME.into(), "a/b:next".into()],
        layers: vec![("amd64", &layer), ("arm64", &other)],
        command: command.clone(),
        labels: BTreeMap::from([(TITLE.into(), "a program".into())]),
        created: time(),
    };
    let quit = Image {
        names: vec!["a/b:quit".into()],
        command: ImageCommand { stop_signal: Some("SIGQUIT".into()), ..command },
        layers: vec![("amd64", &layer)],
        labels: BTreeMap::new(),
        ..plain.clone()
    };
    archive(&[plain, quit], time()).unwrap()
}

type ArchivedFiles = BTreeMap<String, Vec<u8>>;

/// The files of a tar; also that they are in order, of nobody in particular, and of that time.
fn unpack(tar: &[u8]) -> ArchivedFiles {
    let mut files = ArchivedFiles::new();
    for entry in tar::Archive::new(tar).entries().unwrap() {
        let mut entry = entry.unwrap();
        let header = entry.header();
        let about = (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap());
        assert_eq!(about, (0, 0, u64::try_from(time().as_second()).unwrap()));
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        assert!(files.last_key_value().is_none_or(|(last, _)| *last < name), "{name} is too late");
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        files.insert(name, content);
    }
    files
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

/// What a descriptor points at, which must be what it says.
fn follow<'a>(files: &'a ArchivedFiles, to: &Descriptor) -> &'a [u8] {
    let content = &files[&format!("blobs/sha256/{}", to.digest().digest())];
    assert_eq!(to.size(), content.len() as u64);
    content
}

#[test]
fn oci_leads_from_each_name_to_the_program_of_each_architecture() {
    let files = unpack(&made_of(b"a program", Compression::Gzip).bytes);
    OciLayout::from_reader(files["oci-layout"].as_slice()).unwrap();
    let index = ImageIndex::from_reader(files["index.json"].as_slice()).unwrap();
    let mut told = Vec::new();
    let each = index.manifests().iter().flat_map(|named| {
        let index = ImageIndex::from_reader(follow(&files, named)).unwrap();
        let of: Vec<_> = index.manifests().iter().map(|one| (named, one.clone())).collect();
        of
    });
    for (named, entry) in each {
        let manifest = ImageManifest::from_reader(follow(&files, &entry)).unwrap();
        let config = ImageConfiguration::from_reader(follow(&files, manifest.config())).unwrap();
        let architecture = config.architecture().to_string();
        assert_eq!(entry.platform().as_ref().unwrap().architecture(), config.architecture());
        assert_eq!(config.created().as_deref(), Some("2026-11-21T12:00:00Z"));
        let [layer] = manifest.layers().as_slice() else { panic!("{manifest:?}") };
        let tar = gunzip(follow(&files, layer));
        let program = if architecture == "amd64" { &b"a program"[..] } else { OTHER };
        let wanted = [("licenses/text", &b"free"[..]), ("program", program)];
        let wanted = wanted.map(|(name, content)| (name.to_owned(), content.to_vec()));
        assert_eq!(unpack(&tar), ArchivedFiles::from(wanted));

        let of = config.config().clone().unwrap();
        assert_eq!(of.entrypoint().as_deref(), Some(["/program".into()].as_slice()));
        assert_eq!(of.cmd().as_deref(), Some(["run".into()].as_slice()));
        assert_eq!(of.exposed_ports().as_deref(), Some(["9470/tcp".into()].as_slice()));
        let title = |from: &Option<std::collections::HashMap<String, String>>| {
            from.as_ref().and_then(|labels| labels.get(TITLE).cloned())
        };
        assert_eq!(title(of.labels()), title(manifest.annotations()));
        let names = named.annotations().clone().unwrap();
        told.push((
            names["io.containerd.image.name"].clone(),
            names["org.opencontainers.image.ref.name"].clone(),
            architecture,
            of.stop_signal().clone(),
            title(of.labels()),
        ));
    }
    let told: Vec<_> = told
        .iter()
        .map(|(name, tag, of, signal, title)| {
            (&**name, &**tag, &**of, signal.as_deref(), title.as_deref())
        })
        .collect();
    let title = Some("a program");
    let wanted = [
        (NAME, "v1", "amd64", None, title),
        (NAME, "v1", "arm64", None, title),
        ("a/b:next", "next", "amd64", None, title),
        ("a/b:next", "next", "arm64", None, title),
        ("a/b:quit", "quit", "amd64", Some("SIGQUIT"), None),
    ];
    assert_eq!(told, wanted);
}

/// What `image/tarexport/load.go` of Dockers before 25 reads, and what it compares.
#[test]
fn dockers_own_list_leads_to_the_first_architectures_program() {
    for compression in [Compression::None, Compression::Gzip] {
        let files = unpack(&made_of(b"a program", compression).bytes);
        let list: Vec<Value> = serde_json::from_slice(&files["manifest.json"]).unwrap();
        let names: Vec<&Value> = list.iter().map(|image| &image["RepoTags"]).collect();
        assert_eq!(
            names,
            [&serde_json::json!([NAME, "a/b:next"]), &serde_json::json!(["a/b:quit"])]
        );
        for image in &list {
            let config = &files[image["Config"].as_str().unwrap()];
            let config = ImageConfiguration::from_reader(config.as_slice()).unwrap();
            let layer = &files[image["Layers"][0].as_str().unwrap()];
            let tar = match compression {
                Compression::None => layer.clone(),
                Compression::Gzip => gunzip(layer),
            };
            assert_eq!(unpack(&tar)["program"], b"a program");
            // The diff id is of the tar, whatever the layer is packed with.
            let packed_not_at_all = made_of(b"a program", Compression::None);
            let diff_id = config.rootfs().diff_ids()[0].replace("sha256:", "blobs/sha256/");
            assert_eq!(unpack(&packed_not_at_all.bytes)[&diff_id], tar);
        }
    }
}

#[test]
fn equal_input_gives_equal_archives_and_other_input_others() {
    for compression in [Compression::None, Compression::Gzip] {
        let of = |binary: &[u8]| made_of(binary, compression);
        assert_eq!(of(b"a"), of(b"a"));
        assert_ne!(of(b"a").digests, of(b"b").digests);
    }
}

#[test]
fn an_images_digest_is_that_of_its_index() {
    let made = made_of(b"a", Compression::Gzip);
    let files = unpack(&made.bytes);
    let index = ImageIndex::from_reader(files["index.json"].as_slice()).unwrap();
    let mut digests: Vec<_> = index.manifests().iter().map(|of| of.digest().to_string()).collect();
    digests.dedup();
    assert_eq!(made.digests, digests);
}
