#![cfg_attr(target_arch = "bpf", no_std, no_main)]
fn main() {}
