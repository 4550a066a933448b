//! The ABI's types and the programs, as aya has them.

use aya::{
    Ebpf,
    programs::{ProgramError, RawTracePoint},
};
use coroner_ebpf::{Container, Layout, traffic::Traffic};
use std::io;

/// `bpf(2)`: the key must not be there yet.
pub(super) const BPF_NOEXIST: u64 = 1;

/// The ABI's types as aya wants them: newtypes, for the trait is foreign and so are they.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Value<T>(pub(super) T);
// SAFETY: both are `repr(C)` integers without padding, see the const assertions beside them.
unsafe impl aya::Pod for Value<Layout> {}
// SAFETY: as above.
unsafe impl aya::Pod for Value<Container> {}
// SAFETY: as above.
unsafe impl aya::Pod for Value<Traffic> {}

pub(super) fn raw_tracepoint<'e>(
    ebpf: &'e mut Ebpf,
    name: &str,
) -> Result<&'e mut RawTracePoint, ProgramError> {
    let program = ebpf.program_mut(name).ok_or_else(|| {
        ProgramError::IOError(io::Error::new(io::ErrorKind::NotFound, "not in the object"))
    })?;
    program.try_into()
}
