//! The users of communicating processes: abstract sockets have no permissions, so each side checks the other's user.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The user of this process.
pub(crate) fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A process, according to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its process id; 0 if it is in a pid namespace that this process does not see.
    pub(crate) pid: u32,
    /// Its user id.
    pub(crate) uid: u32,
}

impl Peer {
    /// This process.
    pub(crate) fn here() -> Self {
        Self { pid: std::process::id(), uid: own() }
    }
}

/// The process at the other end of a socket: the one that connected or, at the connecting end, the one that made the
/// socket listen.
pub(crate) fn at_other_end(socket: impl AsFd) -> Result<Peer, Errno> {
    // Without rustix, whose process ids are never 0, as that of a process in another namespace is.
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    let (socket, to) = (socket.as_fd().as_raw_fd(), (&raw mut found).cast());
    // SAFETY: the system writes credentials, as many bytes as `size` says, to a place of this function's own.
    let code =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut size) };
    if code != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    Ok(Peer { pid: u32::try_from(found.pid).unwrap_or(0), uid: found.uid })
}
