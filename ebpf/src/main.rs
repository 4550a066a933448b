//! The kernel programs. They are built for `bpfel-unknown-none`; on the host this is a stub, so
//! that the workspace builds, and is checked, as a whole.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
// The compilers for BPF (cargo xtask setup) take features: one instruction is written as assembly.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(target_arch = "bpf")]
mod programs;

#[cfg(not(target_arch = "bpf"))]
fn main() {
    unreachable!("kernel programs: build them for bpfel-unknown-none, with `cargo xtask build`")
}
