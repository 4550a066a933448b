//! The agent's container image (`cargo xtask image`): its program where there is nothing else.
//! Needs root and the archive, which `cargo xtask test` builds and names in CORONER_IMAGE.

mod dns;
mod node;
mod unpacked;

use node::{NAME, NodeNetwork, Pod};
use unpacked::Image;

/// A static glibc could want its libnss from the disk, where there is none.
#[test]
fn an_apiserver_given_by_name_is_found_from_an_empty_root() {
    let image = Image::read();
    NodeNetwork::within(|network| {
        // As a kubelet writes it for a pod (dnsPolicy ClusterFirst).
        let resolver = "nameserver 127.0.0.1\nsearch ns.svc.cluster.test svc.cluster.test\n\
                        options ndots:5\n";
        let hosts = format!("127.0.0.1\tlocalhost\n127.0.0.1\t{NAME}\n");
        for (resolv_conf, hosts) in [(None, Some(hosts.as_str())), (Some(resolver), None)] {
            let said = Pod::of(&image, resolv_conf, hosts).apiserver(network);
            assert_eq!(
                said,
                ("ok".into(), "1 pods on node here".into()),
                "{resolv_conf:?} {hosts:?}"
            );
            assert_eq!(network.questions() > 0, hosts.is_none(), "who was asked");
        }
        // Where nobody knows the name it is the name that is said not to be known.
        let nobody = "nameserver 127.0.0.2\noptions timeout:1 attempts:1\n";
        let (outcome, found) = Pod::of(&image, Some(nobody), None).apiserver(network);
        assert_eq!(outcome, "failed");
        assert!(found.contains("dns error"), "{found}");
    });
}

#[test]
fn it_says_what_it_is_and_what_it_needs_instead_of_dying() {
    let image = Image::read();
    let pod = Pod::of(&image, None, None);
    let version = pod.coroner(&["--version"]);
    assert!(version.status.success(), "{version:?}");
    assert_eq!(version.stdout, format!("coroner {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    // No /proc, no /sys, no /etc: every check fails, by name.
    let doctor = pod.coroner(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    let said = String::from_utf8(doctor.stdout).unwrap();
    assert!(said.contains('✘') && said.contains("will not work on this node"), "{said}");
    assert_eq!(String::from_utf8(doctor.stderr).unwrap(), "");
}

#[test]
fn it_is_one_program_and_the_licences_of_what_is_linked_into_it() {
    let image = Image::read();
    let files: Vec<_> = image.files().collect();
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["coroner", "licenses/third-party.txt"]);
    let licenses = String::from_utf8_lossy(files[1].1);
    assert!(licenses.contains("\ntokio 1.") && licenses.contains("Permission is hereby granted"));
}
