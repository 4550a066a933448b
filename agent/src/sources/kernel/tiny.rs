//! The smallest program: it exits with a code. The self-test and the tests exec it, for nothing
//! else can be relied upon to exist in the agent's image.

use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
};

const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;

/// `exit_group(code)` as a static executable of this machine.
pub fn program(code: u8) -> Vec<u8> {
    let text = exit_group(code);
    let size = HEADERS + text.len() as u64;
    let mut elf = Vec::with_capacity(size as usize);
    // e_ident: 64 bits, little endian, version 1, System V.
    elf.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    elf.extend(2u16.to_le_bytes()); // ET_EXEC
    elf.extend(MACHINE.to_le_bytes());
    elf.extend(1u32.to_le_bytes());
    elf.extend((BASE + HEADERS).to_le_bytes()); // entry
    elf.extend(64u64.to_le_bytes()); // program headers
    elf.extend(0u64.to_le_bytes()); // no section headers
    elf.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    // One segment: all of it, readable and executable.
    elf.extend(1u32.to_le_bytes());
    elf.extend(5u32.to_le_bytes());
    for word in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(text);
    elf
}

/// The program as a file without a name, executable for as long as this lives.
#[derive(Debug)]
pub struct Executable {
    path: CString,
    _file: File,
}

impl Executable {
    pub fn new(code: u8) -> io::Result<Self> {
        let mut file = File::from(memfd_create("coroner-tiny", MemfdFlags::CLOEXEC)?);
        file.write_all(&program(code))?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Self { path, _file: file })
    }

    /// What to exec, in this process or in a child of it. Not the descriptor itself (`fexecve`):
    /// TOMOYO, which Debian's kernels have, then wants `/dev/fd` to exist.
    pub fn path(&self) -> &CStr {
        &self.path
    }
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "x86_64")]
fn exit_group(code: u8) -> Vec<u8> {
    // mov edi, code; mov eax, 231; syscall
    vec![0xbf, code, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05]
}

#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(target_arch = "aarch64")]
fn exit_group(code: u8) -> Vec<u8> {
    // mov w0, #code; mov w8, #94; svc #0
    let words = [0x5280_0000 | u32::from(code) << 5, 0x5280_0008 | 94 << 5, 0xd400_0001];
    words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}
