//! The agent's program of the container image (`cargo xtask image`) where there is nothing else. Needs root.

use crate::tools::image;
use serde_json::Value;
use std::{
    fs,
    net::UdpSocket,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};
use tempfile::TempDir;

const NAME: &str = "apiserver.coroner.test";
/// Of the loopback network, and nobody's.
const NAMESERVER: &str = "127.83.83.83";

/// A root with the program in it.
fn root() -> TempDir {
    let (root, archive) = (tempfile::tempdir().unwrap(), image());
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let program = root.path().join("coroner");
    let made = archive.with_file_name(format!("coroner-linux-{arch}"));
    fs::copy(&made, &program).unwrap_or_else(|error| panic!("{}: {error}", made.display()));
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    root
}

/// Runs the program with nothing but these variables.
fn coroner(root: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new("chroot");
    command.arg(root).arg("/coroner").args(args).stdin(Stdio::null()).env_clear();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(variables.iter().copied());
    command.output().unwrap()
}

#[test]
fn it_says_what_it_is_and_what_it_needs_instead_of_dying() {
    let root = root();
    let version = coroner(root.path(), &["--version"], &[]);
    assert!(version.status.success(), "{version:?}");
    let number = format!("coroner {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(version.stdout.starts_with(number.as_bytes()), "{version:?}");
    // No /proc, no /sys, no /etc: every check fails, by name.
    let doctor = coroner(root.path(), &["doctor"], &[]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    let output = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        output.starts_with("not ready\n") && output.contains("flags       FAILING"),
        "{output}"
    );
    assert_eq!(String::from_utf8(doctor.stderr).unwrap(), "");
}

/// A static glibc could want its libnss from the disk, where there is none.
#[test]
fn names_are_resolved_from_an_empty_root() {
    let root = root();
    let socket = UdpSocket::bind((NAMESERVER, 53)).unwrap();
    thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            let _ = socket.send_to(&answer(&packet[..length]), from);
        }
    });
    write(root.path(), "var/run/secrets/kubernetes.io/serviceaccount/token", "not.a.token");
    write(root.path(), "var/run/secrets/kubernetes.io/serviceaccount/namespace", "coroner");
    let certificate = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap().cert.pem();
    write(root.path(), "var/run/secrets/kubernetes.io/serviceaccount/ca.crt", &certificate);
    // As a kubelet writes them for a pod (dnsPolicy ClusterFirst).
    let resolver =
        format!("nameserver {NAMESERVER}\nsearch ns.svc.cluster.test\noptions ndots:5\n");
    for (file, content, found) in [
        ("etc/resolv.conf", "nameserver 127.83.83.84\noptions timeout:1 attempts:1\n", "dns error"),
        ("etc/resolv.conf", &resolver, "Connection refused"),
        ("etc/hosts", &format!("127.0.0.1\t{NAME}\n"), "Connection refused"),
    ] {
        write(root.path(), file, content);
        let output = coroner(
            root.path(),
            &["doctor", "--output=json", "--node=n", "--runtime-endpoint=/nowhere.sock"],
            &[("KUBERNETES_SERVICE_HOST", NAME), ("KUBERNETES_SERVICE_PORT", "1")],
        );
        let checks: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let mut checks = checks["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["name"] == "api").unwrap();
        assert!(check["found"].as_str().unwrap().contains(found), "{file}: {check}");
        fs::remove_file(root.path().join(file)).unwrap();
    }
}

/// RFC 1035, as far as a stub resolver's questions go: every name is at 127.0.0.1 and has no IPv6 address.
fn answer(question: &[u8]) -> Vec<u8> {
    // The root's empty label, type and class end the question.
    let end = question.iter().skip(12).position(|&byte| byte == 0).map_or(12, |at| 12 + at + 5);
    let wants_address = question[end - 4..end - 2] == [0, 1];
    let mut reply = question[..2].to_vec();
    reply.extend([0x85, 0x80, 0, 1, 0, u8::from(wants_address), 0, 0, 0, 0]);
    reply.extend(&question[12..end]);
    if wants_address {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    reply
}

fn write(root: &Path, file: &str, content: &str) {
    let file = root.join(file);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}
