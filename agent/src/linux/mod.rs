//! What Linux has and Rust's library lacks: /proc, cgroups, privileges, clocks, calls that may hang.

pub(crate) mod allocator;
pub(crate) mod blocking;
pub mod cgroupfs;
pub mod clock;
pub mod landlock;
pub(crate) mod mountinfo;
pub mod privileges;
pub mod procfs;
pub mod restrictions;
pub mod seccomp;
pub mod socket_file;
