//! The loopback interface of a network namespace, which is down when that is new.

use std::{
    fs::File,
    io::{Error, Result},
    mem,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::Path,
};

/// Moves the calling thread into the network namespace and sets `lo` up there.
pub fn enter_and_bring_up(namespace: &Path) -> Result<()> {
    enter(&File::open(namespace)?)?;
    bring_up()
}

/// Moves the calling thread into the network namespace.
pub fn enter(namespace: &File) -> Result<()> {
    // SAFETY: setns(2) on a descriptor that is open.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Moves the calling thread into a new network namespace and sets `lo` up there. Threads and
/// processes that it starts from now on are in it too.
pub fn make_and_bring_up() -> Result<()> {
    // SAFETY: unshare(2) takes no pointers, and only this thread changes its namespace.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    bring_up()
}

/// Sets `lo` up: netdevice(7).
pub(crate) fn bring_up() -> Result<()> {
    // SAFETY: socket(2) takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(socket)?;
    // SAFETY: socket(2) made it, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all of its fields may be zero.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    // SAFETY: both calls take a pointer to an ifreq; the flags are what the first one fills in.
    unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request))
    }
}

fn check(returned: libc::c_int) -> Result<()> {
    if returned < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
