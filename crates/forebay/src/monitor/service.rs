//! The thread that answers readers. It lives as long as the process; a forked child starts its own with its first pool.

use core::time::Duration;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags, accept_with, getsockname, send};

use super::snapshot;
use crate::sync::fork::{PerProcess, ProcessFd};
use crate::sync::thread::spawn;
use crate::user;

/// The prefix of all socket names. The user, the process and a number follow: a process may contain several copies of
/// forebay, for example in a Python module and a C library.
pub(super) const PREFIX: &str = "forebay.monitor/";

/// The most readable copies of forebay in one process.
const MAX_COPIES: u32 = 8;

/// How long a peer may take to read its answer.
const LONGEST_ANSWER: Duration = Duration::from_millis(250);

/// How long a snapshot serves all readers.
const SHORTEST_AGE: Duration = Duration::from_millis(50);

/// The length of the connection backlog.
const BACKLOG: u32 = 128;

/// The pause after a system failure, and after a full backlog of other users' peers: it bounds what they cost, without
/// a wait for each.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether this process has tried to start its thread.
static STARTED: PerProcess<bool> = PerProcess::new();

/// Starts the thread, unless that was tried before. If it cannot start, the process is just not readable.
pub(crate) fn start() {
    let mut started = STARTED.lock();
    // Miri has no sockets.
    if core::mem::replace(&mut *started, true) || cfg!(miri) {
        return;
    }
    super::program::here();
    if let Ok((listener, name)) = listen() {
        let _ = spawn("forebay-monitor", move || serve(&listener, &name));
    }
}

/// Makes the socket, under the first free number. Another user may have taken the first numbers of a future process,
/// but cannot predict a random one.
fn listen() -> io::Result<(ProcessFd, String)> {
    let process = format!("{PREFIX}{}/{}", user::own(), std::process::id());
    let mut taken = io::ErrorKind::AddrInUse.into();
    let [high, low, ..] = RandomState::new().hash_one(()).to_ne_bytes();
    let drawn = 1000 + u32::from(u16::from_ne_bytes([high, low]));
    for number in (0..MAX_COPIES).chain([drawn]) {
        let name = format!("{process}/{number}");
        let address = SocketAddr::from_abstract_name(&name)?;
        let bound =
            ProcessFd::make(|bound| UnixListener::bind_addr(&address).map(|it| bound(it.into())));
        match bound {
            Ok(listener) => {
                if let Ok(socket) = listener.get() {
                    rustix::net::listen(socket, BACKLOG.cast_signed())?;
                }
                return Ok((listener, name));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken = error,
            Err(error) => return Err(error),
        }
    }
    Err(taken)
}

fn serve(listener: &ProcessFd, name: &str) {
    let mut last: Option<(Instant, String)> = None;
    let mut strangers = 0_u32;
    loop {
        let Ok(listener) = listener.get() else { return };
        // A program that closes foreign descriptors may have reused this number for another socket.
        if !is_named(listener, name) {
            return;
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(peer) if user::at_other_end(&peer).is_ok_and(|peer| peer.uid == user::own()) => {
                // Closed only if it is still the peer then; never left open in a forked child.
                let peer = ProcessFd::new(peer);
                let fresh = last.take().filter(|(taken, _)| taken.elapsed() < SHORTEST_AGE);
                let (_, text) = last.insert(fresh.unwrap_or_else(|| {
                    let taken = Instant::now();
                    (taken, snapshot().to_json() + "\n")
                }));
                if let Ok(peer) = peer.get() {
                    answer(peer, text.as_bytes());
                }
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Ok(_) => {
                strangers = strangers.wrapping_add(1);
                if strangers.is_multiple_of(BACKLOG) {
                    std::thread::sleep(PAUSE);
                }
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Whether a descriptor is the socket with that name.
fn is_named(listener: BorrowedFd<'_>, name: &str) -> bool {
    let address = getsockname(listener).ok().and_then(|any| SocketAddrUnix::try_from(any).ok());
    address.is_some_and(|address| address.abstract_name() == Some(name.as_bytes()))
}

/// Sends as much of the text as the peer takes in time. The final newline tells the peer that it is complete.
pub(super) fn answer(peer: BorrowedFd<'_>, mut text: &[u8]) {
    let begun = Instant::now();
    while let Some(rest) = LONGEST_ANSWER.checked_sub(begun.elapsed()).filter(|_| !text.is_empty())
    {
        // Without a timeout the thread might wait forever, and a zero timeout means none.
        let limit = Some(rest.max(Duration::from_millis(1)));
        if set_socket_timeout(peer, Timeout::Send, limit).is_err() {
            return;
        }
        match send(peer, text, SendFlags::NOSIGNAL) {
            Ok(sent) => text = text.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // The peer is gone or does not read.
            Err(_) => return,
        }
    }
}
