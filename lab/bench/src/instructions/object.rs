//! The kernel programs as the compiler made them.

use anyhow::Context as _;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};
use std::{collections::BTreeMap, fs, path::Path};

/// Bytes of a BPF instruction (`struct bpf_insn`).
const INSTRUCTION: u64 = 8;
/// The section of raw tracepoint programs.
const PROGRAMS: &str = "raw_tp";
/// The section of what they call.
const CALLED: &str = ".text";

/// What an object holds.
#[derive(Debug)]
pub(super) struct ProgramObject {
    /// Instructions of each program, and of each function of ours that they call.
    pub(super) instructions: BTreeMap<String, u64>,
    /// Who made it, as its debugging information says.
    pub(super) compiler: String,
}

pub(super) fn read(file: &Path) -> anyhow::Result<ProgramObject> {
    let bytes = fs::read(file)
        .with_context(|| format!("cannot read {}: `cargo xtask build` makes it", file.display()))?;
    parse(&bytes).with_context(|| file.display().to_string())
}

fn parse(bytes: &[u8]) -> anyhow::Result<ProgramObject> {
    let elf = object::File::parse(bytes)?;
    let programs = elf.section_by_name(PROGRAMS).context("it holds no programs")?.index();
    let called = elf.section_by_name(CALLED).map(|section| section.index());
    let instructions = elf
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| {
            let (name, section) = (symbol.name().ok()?, symbol.section_index()?);
            let name = match section == programs {
                true => name,
                false if Some(section) == called => function(name)?,
                false => return None,
            };
            Some((name.to_owned(), symbol.size() / INSTRUCTION))
        })
        .collect();
    let strings = elf.section_by_name(".debug_str").and_then(|section| section.data().ok());
    let compiler = strings.and_then(producer).unwrap_or("an unknown compiler").to_owned();
    Ok(ProgramObject { instructions, compiler })
}

/// The last part of a mangled path, as `7process6exited` ends (RFC 2603). `None` for what is not
/// Rust's (the compiler's own `memcpy`), and for a name with digits in it.
fn function(symbol: &str) -> Option<&str> {
    let path = symbol.strip_prefix("_R")?;
    let start = path.rfind(|c: char| c.is_ascii_digit())? + 1;
    let (path, name) = path.split_at(start);
    path.ends_with(&name.len().to_string()).then_some(name)
}

/// The compiler's name among the strings of the debugging information.
fn producer(strings: &[u8]) -> Option<&str> {
    strings
        .split(|byte| *byte == 0)
        .filter_map(|text| std::str::from_utf8(text).ok())
        .find(|text| text.contains("rustc version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_among_the_strings() {
        let strings = b"core\0clang LLVM (rustc version 1.95.0)\0u8\0";
        assert_eq!(producer(strings), Some("clang LLVM (rustc version 1.95.0)"));
        assert_eq!(producer(b"\0core\0"), None);
    }

    #[test]
    fn a_function_is_named_as_in_the_source() {
        let exited = "_RNvNtNtCs4cgc4xXCzqN_11coroner_bpf8programs7process6exited";
        assert_eq!(function(exited), Some("exited"));
        for other in ["memcpy", "_R", "_RNvCs1_3bpf5exit2", "_RNvCs1_3bpf7exited"] {
            assert_eq!(function(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        assert!(parse(b"#!/bin/sh\n").is_err());
    }
}
