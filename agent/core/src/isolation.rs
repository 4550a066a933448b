//! Runtimes that keep a container out of the host kernel's sight: in a virtual machine, or on a kernel in
//! user space. The host's records of such a container (a hypervisor's threads, a file server's exit) must not
//! be attributed to the container's program.

/// System calls and signals end in gVisor's sentry.
const GVISOR: &str = "gVisor, a kernel in user space";
/// Kata Containers and other runtimes with a virtual machine per pod.
const VIRTUAL_MACHINE: &str = "a virtual machine (Kata Containers or the like)";

/// By the name of the sandbox's runtime handler, which administrators usually name after the runtime:
/// `kata-qemu`, `kata_clh`, `gvisor`, `runsc-kvm`.
pub fn by_handler(handler: &str) -> Option<&'static str> {
    let handler = handler.to_ascii_lowercase();
    handler.split(|c: char| !c.is_ascii_alphanumeric()).find_map(|word| match word {
        "gvisor" | "runsc" => Some(GVISOR),
        "firecracker" => Some(VIRTUAL_MACHINE),
        word if word.starts_with("kata") => Some(VIRTUAL_MACHINE),
        _ => None,
    })
}

/// By the container's shim: `io.containerd.kata.v2`, `io.containerd.kata-qemu.v2`,
/// `io.containerd.runsc.v1`.
pub fn by_runtime_type(runtime: &str) -> Option<&'static str> {
    runtime.strip_prefix("io.containerd.").and_then(by_handler)
}

/// By the main process of the sandbox's own container, which other runtimes run as `pause`. In any other
/// container these are ordinary programs. Names are cut to 15 bytes.
pub fn by_sandbox_process(comm: &str) -> Option<&'static str> {
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
    fn handlers() {
        for (handler, expected) in [
            ("", None),
            ("runc", None),
            ("crun", None),
            ("nvidia", None),
            ("sandboxed-by-akatani", None),
            ("kata", VM),
            ("kata-qemu-snp", VM),
            ("KATA_clh", VM),
            ("katacontainers", VM),
            ("my-gvisor", GVISOR),
            ("runsc-kvm", GVISOR),
        ] {
            assert_eq!(by_handler(handler), expected, "{handler}");
        }
    }

    #[test]
    fn runtime_types() {
        for (runtime, expected) in [
            ("io.containerd.runc.v2", None),
            ("io.containerd.kata.v2", VM),
            ("io.containerd.kata-qemu.v2", VM),
            ("io.containerd.runsc.v1", GVISOR),
            ("/opt/kata/bin/shim", None),
        ] {
            assert_eq!(by_runtime_type(runtime), expected, "{runtime}");
        }
    }

    #[test]
    fn processes() {
        for (comm, expected) in [
            ("pause", None),
            ("exe", None),
            ("qemu-system-x86", VM),
            ("cloud-hyperviso", VM),
            ("runsc-sandbox", GVISOR),
        ] {
            assert_eq!(by_sandbox_process(comm), expected, "{comm}");
        }
    }
}
