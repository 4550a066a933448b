//! The tools: programs of Debian's packages, whatever the machine's own distribution is.

use super::debian::{Libraries, Tool};
use crate::host::AARCH64;

/// Programs that need no library but the machine's C library.
pub(crate) const ALONE: Tool = Tool {
    name: "",
    suite: "bookworm",
    foreign: None,
    packages: &[],
    line: "",
    libraries: Libraries::Machine,
    programs: &[],
    is_on_path: true,
    arguments: &[],
};
const WITH_LIBRARIES: Tool = Tool { libraries: Libraries::Unpacked, ..ALONE };

/// A compiler with `core` for BPF, and its clippy. clippy-driver is called in rustc's place with `rustc` as its first
/// argument, so the compiler must have that name.
pub(crate) static BPF_RUST: Tool = Tool {
    name: "bpf-rust",
    packages: &["rustc-web", "libstd-rust-web-dev-bpf", "rust-web-clippy"],
    line: "1.96.", // of LLVM 22, as rustup's compiler, whose LLVM bpf-linker loads
    programs: &["usr/bin/rustc", "usr/bin/clippy-driver"],
    is_on_path: false,
    libraries: Libraries::UnpackedForItselfOnly,
    ..ALONE
};

const CONTAINERD: Tool = Tool {
    packages: &["containerd"],
    programs: &["usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"],
    is_on_path: false,
    ..ALONE
};
/// What the lab runs by default.
pub(crate) static CONTAINERD_2: Tool =
    Tool { name: "containerd-2", suite: "sid", line: "2.", ..CONTAINERD };
/// The other line that nodes have. It also stands in where the C library is older than containerd 2 wants.
pub(crate) static CONTAINERD_1_7: Tool =
    Tool { name: "containerd-1.7", suite: "trixie", line: "1.7.", ..CONTAINERD };

/// The lab's OCI runtime. Later ones want a newer C library than Debian 12 has.
pub(crate) static RUNC: Tool =
    Tool { name: "runc", packages: &["runc"], programs: &["usr/sbin/runc"], ..WITH_LIBRARIES };
/// The other OCI runtime, which CRI-O starts by default.
pub(crate) static CRUN: Tool =
    Tool { name: "crun", packages: &["crun"], programs: &["usr/bin/crun"], ..WITH_LIBRARIES };
/// The lab's network: containerd looks for these plugins in their folder.
pub(crate) static CNI: Tool = Tool {
    name: "cni",
    packages: &["containernetworking-plugins"],
    programs: &["usr/lib/cni/bridge", "usr/lib/cni/host-local", "usr/lib/cni/loopback"],
    is_on_path: false,
    ..ALONE
};
/// What makes the cgroups on most clusters.
pub(crate) static SYSTEMD: Tool = Tool {
    name: "systemd",
    packages: &["systemd"],
    programs: &["lib/systemd/systemd", "bin/systemctl"],
    ..WITH_LIBRARIES
};

/// The machine of foreign kernels. It looks for its firmware in the folders of its packages.
pub(crate) static QEMU: Tool = Tool {
    name: "qemu",
    packages: &["qemu-system-x86"],
    programs: &["usr/bin/qemu-system-x86_64"],
    arguments: &[
        "-L",
        "{}/usr/share/qemu",
        "-L",
        "{}/usr/share/seabios",
        "-L",
        "{}/usr/lib/ipxe/qemu",
    ],
    ..WITH_LIBRARIES
};
/// The same of kernels for arm64.
pub(crate) static QEMU_ARM64: Tool = Tool {
    name: "qemu-arm64",
    packages: &["qemu-system-arm"],
    programs: &["usr/bin/qemu-system-aarch64"],
    arguments: &["-L", "{}/usr/share/qemu"],
    ..WITH_LIBRARIES
};
/// The user space of that machine.
pub(crate) static BUSYBOX: Tool =
    Tool { name: "busybox", packages: &["busybox-static"], programs: &["bin/busybox"], ..ALONE };
pub(crate) static BUSYBOX_ARM64: Tool = Tool {
    name: "busybox-arm64",
    suite: "trixie", // has it in usr/bin
    foreign: Some(&AARCH64),
    packages: &["busybox-static"],
    programs: &["usr/bin/busybox"],
    is_on_path: false,
    ..ALONE
};
/// Loads AppArmor profiles, in guests.
pub(crate) static APPARMOR: Tool = Tool {
    name: "apparmor",
    packages: &["apparmor"],
    programs: &["sbin/apparmor_parser"],
    ..ALONE
};

/// Compiles and links for arm64: some dependencies are of C and assembly.
pub(crate) static GCC_ARM64: Tool = Tool {
    name: "gcc-arm64",
    packages: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    programs: &[
        "usr/bin/aarch64-linux-gnu-gcc",
        "usr/bin/aarch64-linux-gnu-ar",
        "usr/bin/aarch64-linux-gnu-strip",
    ],
    ..WITH_LIBRARIES
};
/// Runs programs for arm64.
pub(crate) static QEMU_USER: Tool = Tool {
    name: "qemu-user",
    packages: &["qemu-user"],
    programs: &["usr/bin/qemu-aarch64"],
    ..WITH_LIBRARIES
};

/// Runs the generators of dashboards, and fetches what PyPI has.
pub(crate) static PYTHON: Tool = Tool {
    name: "python",
    packages: &["python3", "python3-pip-whl"],
    line: "3.",
    programs: &["usr/bin/python3"],
    is_on_path: false,
    ..WITH_LIBRARIES
};
/// Checks and tests the alert rules.
pub(crate) static PROMTOOL: Tool = Tool {
    name: "promtool",
    suite: "sid",
    packages: &["promtool"],
    line: "3.",
    programs: &["usr/bin/promtool"],
    ..ALONE
};
/// The oldest that docs/alerts.md names.
pub(crate) static PROMTOOL_OLDEST: Tool = Tool {
    name: "promtool-2.42",
    packages: &["prometheus"],
    line: "2.42.",
    programs: &["usr/bin/promtool"],
    is_on_path: false,
    ..ALONE
};
/// Answers the queries of dashboards and rules.
pub(crate) static PROMETHEUS: Tool = Tool {
    name: "prometheus",
    suite: "sid",
    packages: &["prometheus"],
    line: "3.",
    programs: &["usr/bin/prometheus"],
    ..ALONE
};

/// What coroner is measured beside: tools that print signals and exits.
pub(crate) static LIBBPF_TOOLS: Tool = Tool {
    name: "libbpf-tools",
    packages: &["libbpf-tools"],
    programs: &["usr/sbin/sigsnoop", "usr/sbin/exitsnoop"],
    ..WITH_LIBRARIES
};

/// Programs whose response to SIGTERM is audited, and then tried.
pub(crate) static STOPPERS: Tool = Tool {
    name: "stoppers",
    packages: &[
        "tini",
        "dumb-init",
        "s6",
        "bash",
        "dash",
        "busybox-static",
        "python3",
        "nodejs",
        "openjdk-17-jre-headless",
        "nginx-light",
    ],
    programs: &["usr/bin/tini"],
    is_on_path: false,
    ..WITH_LIBRARIES
};

/// Makes the root of `cargo xtask bare`. It is one program of perl's.
pub(crate) static MMDEBSTRAP: Tool = Tool {
    name: "mmdebstrap",
    packages: &["mmdebstrap"],
    programs: &["usr/bin/mmdebstrap"],
    is_on_path: false,
    ..ALONE
};
