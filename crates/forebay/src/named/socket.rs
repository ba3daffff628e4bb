//! The name: a listening socket, and the protocol spoken over it.
//!
//! ```text
//!   opener ── connect ──> \0forebay/UID/NAME        any party accepts
//!   opener <── answer ─── header file, memory, the listening socket itself
//! ```
//!
//! An abstract socket has no file. The system gives its address to one socket at a time, and frees it once no process
//! has a descriptor of that socket. Every party has one.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, getsockname, listen, recvmsg, sendmsg, socket_with,
};

use super::error::SharedError;
use super::header::{MAGIC, VERSION};
use super::request::Users;
use crate::sync::fork::ProcessFd;
use crate::user::{self, Peer};

/// The length of the backlog. Openers beyond it are told to retry, and do.
const BACKLOG: i32 = 128;
/// How long an opener waits for one answer, which takes microseconds. If a stopped party accepted the connection,
/// another attempt reaches another party.
const ATTEMPT: Duration = Duration::from_millis(250);
/// The pause between a failed attempt and the next.
const PAUSE: Duration = Duration::from_millis(1);

/// Values of the third word of an answer.
const ACCEPTED: u64 = 0;
const OTHER_USER: u64 = 1;

/// A name and its socket address.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) name: Box<str>,
    users: Users,
    socket: SocketAddrUnix,
}

/// The descriptors that a party sends to an opener.
#[derive(Debug)]
pub(super) struct Parts<D> {
    pub(super) header: D,
    pub(super) memory: D,
    pub(super) listener: D,
}

/// The error of a system call.
pub(super) fn failed(call: &'static str) -> impl Fn(Errno) -> SharedError {
    move |errno| SharedError::System { call, message: errno.to_string().into() }
}

fn new_socket() -> Result<OwnedFd, SharedError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed("socket"))
}

impl Address {
    pub(super) fn new(name: &str, users: Users) -> Result<Self, SharedError> {
        let invalid = || SharedError::InvalidName { name: name.into() };
        let path = match users {
            Users::Same => format!("forebay/{}/{name}", user::own()),
            Users::Any => format!("forebay/any/{name}"),
        };
        let socket = SocketAddrUnix::new_abstract_name(path.as_bytes());
        let socket = socket.ok().filter(|_| super::name::is_valid(name)).ok_or_else(invalid)?;
        Ok(Self { name: name.into(), users, socket })
    }

    /// Claims the name. No process can open it until [`start`].
    pub(super) fn claim(&self) -> Result<ProcessFd, SharedError> {
        let socket = ProcessFd::make(|bound| new_socket().map(bound))?;
        let Ok(fd) = socket.get() else { return Err(failed("fork")(Errno::PERM)) };
        match bind(fd, &self.socket) {
            Ok(()) => Ok(socket),
            Err(Errno::ADDRINUSE) => Err(SharedError::Taken { name: self.name.clone() }),
            Err(errno) => Err(failed("bind")(errno)),
        }
    }

    /// Requests the parts of the buffer for up to `patience`. Also returns the process that created the name.
    pub(super) fn ask(&self, patience: Duration) -> Result<(Parts<ProcessFd>, Peer), SharedError> {
        let (begun, mut attempts) = (Instant::now(), 0_u32);
        loop {
            let waited = begun.elapsed();
            if attempts > 0 && waited >= patience {
                return Err(SharedError::NoAnswer { name: self.name.clone(), waited, attempts });
            }
            attempts = attempts.saturating_add(1);
            let socket = new_socket()?;
            match connect(&socket, &self.socket) {
                Ok(()) => {
                    let creator = self.check_owner(socket.as_fd())?;
                    let rest = patience.saturating_sub(waited).min(ATTEMPT);
                    if let Some(parts) = self.receive(socket.as_fd(), rest)? {
                        return Ok((parts, creator));
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(Errno::CONNREFUSED) => {
                    return Err(SharedError::NotFound { name: self.name.clone() });
                }
                // The backlog is full, or the socket was closed at this moment.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNRESET) => std::thread::sleep(PAUSE),
                Err(errno) => return Err(failed("connect")(errno)),
            }
        }
    }

    /// Checks who took the name: abstract sockets have no permissions, so anyone can. The system stores the creator
    /// with the socket, whichever party answers.
    fn check_owner(&self, socket: BorrowedFd<'_>) -> Result<Peer, SharedError> {
        let owner = user::at_other_end(socket).map_err(failed("SO_PEERCRED"))?;
        if self.users == Users::Any || owner.uid == user::own() {
            return Ok(owner);
        }
        Err(self.other_user(owner))
    }

    fn other_user(&self, owner: Peer) -> SharedError {
        SharedError::OtherUser { name: self.name.clone(), owner: owner.uid, user: user::own() }
    }

    /// Receives an answer; `None` if none came in time, or the party ended before it answered.
    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        patience: Duration,
    ) -> Result<Option<Parts<ProcessFd>>, SharedError> {
        let mut ready = [PollFd::new(&socket, PollFlags::IN)];
        match rustix::event::poll(&mut ready, Timespec::try_from(patience).ok().as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(failed("poll")(errno)),
        }
        let mut words = [0; 24];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let (received, bound) = ProcessFd::make(|bound| {
            let received = recvmsg(socket, &mut [IoSliceMut::new(&mut words)], &mut control, flags);
            let bound: Vec<ProcessFd> = control
                .drain()
                .flat_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
                    _ => Vec::new(),
                })
                .map(bound)
                .collect();
            (received, bound)
        });
        let received = match received {
            Ok(received) if received.bytes == 0 => return Ok(None),
            Ok(received) => received,
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(failed("recvmsg")(errno)),
        };
        let mut descriptors = bound.into_iter();
        let parts = (descriptors.next(), descriptors.next(), descriptors.next());
        let foreign = |what| Err(SharedError::Foreign { name: self.name.clone(), what });
        let [magic, version, answer] = [0, 8, 16].map(|at| {
            let word = words.get(at..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        });
        if received.bytes != words.len() || magic != MAGIC {
            return foreign("its answer is not one of forebay's");
        }
        if version != VERSION {
            let (name, expected) = (self.name.clone(), VERSION);
            return Err(SharedError::WrongVersion { name, expected, found: version });
        }
        match (answer, parts) {
            (ACCEPTED, (Some(header), Some(memory), Some(listener))) => {
                if !listener.get().is_ok_and(|listener| self.is_name(listener)) {
                    return foreign("its answer has another socket");
                }
                Ok(Some(Parts { header, memory, listener }))
            }
            (OTHER_USER, _) => {
                let owner = user::at_other_end(socket).map_err(failed("SO_PEERCRED"))?;
                Err(self.other_user(owner))
            }
            _ => foreign("its answer has descriptors missing"),
        }
    }

    /// Whether a descriptor is the listening socket with this name.
    fn is_name(&self, listener: BorrowedFd<'_>) -> bool {
        let address = getsockname(listener).ok().and_then(|any| SocketAddrUnix::try_from(any).ok());
        address.is_some_and(|address| address.abstract_name() == self.socket.abstract_name())
            && socket_acceptconn(listener) == Ok(true)
    }
}

/// Lets openers connect to a name.
pub(super) fn start(listener: BorrowedFd<'_>) -> Result<(), SharedError> {
    listen(listener, BACKLOG).map_err(failed("listen"))
}

/// Accepts an opener, if one is waiting. Blocks only if another party clears the non-blocking flag, which all parties
/// share, at this very moment.
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    rustix::fs::fcntl_setfl(listener, OFlags::NONBLOCK)?;
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(opener) => Ok(Some(opener)),
        // Another party was faster, or the opener is gone.
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Answers an opener without waiting. An opener that gets no answer retries.
pub(super) fn answer(
    opener: BorrowedFd<'_>,
    parts: &Parts<BorrowedFd<'_>>,
    users: Users,
) -> Result<(), Errno> {
    let accepted = users == Users::Any || user::at_other_end(opener)?.uid == user::own();
    let words = [MAGIC, VERSION, if accepted { ACCEPTED } else { OTHER_USER }];
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [parts.header, parts.memory, parts.listener];
    if accepted && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(opener, &[IoSlice::new(&words)], &mut control, flags) {
        // The opener is gone.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(errno),
    }
}
