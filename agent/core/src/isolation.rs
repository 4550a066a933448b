//! Runtimes that keep a container out of the host kernel's sight: in a virtual machine, or on a kernel in
//! user space. The host's records of such a container (a hypervisor's threads, a file server's exit) must not
//! be attributed to the container's program.

/// How the host is kept from seeing into a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isolation<'a> {
    /// In what it runs.
    pub within: &'static str,
    pub shown_by: &'static str,
    pub name: &'a str,
}

/// A way to find it by a name.
type By = fn(&str) -> Option<&'static str>;

impl<'a> Isolation<'a> {
    /// By the name of the sandbox's runtime handler, by the container's shim, or by the main process of the
    /// sandbox's own container.
    pub fn find(
        handler: Option<&'a str>,
        shim: Option<&'a str>,
        sandbox_process: Option<&'a str>,
    ) -> Option<Self> {
        let ways: [(By, _, _); 3] = [
            (by_handler, "runtime handler", handler),
            (by_shim, "runtime", shim),
            (by_sandbox_process, "process", sandbox_process),
        ];
        ways.into_iter().find_map(|(by, shown_by, name)| {
            Some(Self { within: by(name?)?, shown_by, name: name? })
        })
    }
}

/// System calls and signals end in gVisor's sentry.
const GVISOR: &str = "gVisor, a kernel in user space";
/// Kata Containers and other runtimes with a virtual machine per pod.
const VIRTUAL_MACHINE: &str = "a virtual machine (Kata Containers or the like)";

/// Administrators usually name the handler after the runtime: `kata-qemu`, `kata_clh`, `gvisor`, `runsc-kvm`.
fn by_handler(handler: &str) -> Option<&'static str> {
    let handler = handler.to_ascii_lowercase();
    handler.split(|c: char| !c.is_ascii_alphanumeric()).find_map(|word| match word {
        "gvisor" | "runsc" => Some(GVISOR),
        "firecracker" => Some(VIRTUAL_MACHINE),
        word if word.starts_with("kata") => Some(VIRTUAL_MACHINE),
        _ => None,
    })
}

/// `io.containerd.kata.v2`, `io.containerd.kata-qemu.v2`, `io.containerd.runsc.v1`.
fn by_shim(runtime: &str) -> Option<&'static str> {
    runtime.strip_prefix("io.containerd.").and_then(by_handler)
}

/// Other runtimes run `pause` there. In any other container these are ordinary programs. Names are cut to 15 bytes.
fn by_sandbox_process(comm: &str) -> Option<&'static str> {
    match comm {
        "runsc" | "runsc-sandbox" | "runsc-gofer" => Some(GVISOR),
        "cloud-hyperviso" | "firecracker" | "stratovirt" | "virtiofsd" => Some(VIRTUAL_MACHINE),
        comm if comm.starts_with("qemu-system") => Some(VIRTUAL_MACHINE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: Option<&str> = Some(VIRTUAL_MACHINE);
    const GVISOR: Option<&str> = Some(super::GVISOR);

    #[test]
    fn each_way_finds_its_names() {
        let table: [(By, Option<&str>, &[&str]); 9] = [
            (by_handler, None, &["", "runc", "crun", "nvidia", "sandboxed-by-akatani"]),
            (by_handler, VM, &["kata", "kata-qemu-snp", "KATA_clh", "katacontainers"]),
            (by_handler, GVISOR, &["my-gvisor", "runsc-kvm"]),
            (by_shim, None, &["io.containerd.runc.v2", "/opt/kata/bin/shim"]),
            (by_shim, VM, &["io.containerd.kata.v2", "io.containerd.kata-qemu.v2"]),
            (by_shim, GVISOR, &["io.containerd.runsc.v1"]),
            (by_sandbox_process, None, &["pause", "exe"]),
            (by_sandbox_process, VM, &["qemu-system-x86", "cloud-hyperviso"]),
            (by_sandbox_process, GVISOR, &["runsc-sandbox"]),
        ];
        for (by, expected, names) in table {
            names.iter().for_each(|name| assert_eq!(by(name), expected, "{name}"));
        }
    }
}
