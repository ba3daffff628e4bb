//! Whose processes talk to each other: sockets without a file have no permissions, so each side checks the other's user.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

/// The user of this process.
pub(crate) fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user of the process at the other end of a socket: who connected, or who listens.
pub(crate) fn at_other_end(socket: impl AsFd) -> Result<u32, Errno> {
    Ok(socket_peercred(socket)?.uid.as_raw())
}
