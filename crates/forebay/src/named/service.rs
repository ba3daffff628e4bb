//! The thread that answers openers, one for all shared buffers of the process. It starts with the first buffer and ends
//! with the last.
//!
//! It waits with epoll rather than poll: a waiting `poll` keeps its sockets open, so a name would outlive its buffer
//! until the thread wakes up. For the same reason it sends answers under the lock of the list; that takes microseconds
//! and never waits. It accepts openers without the lock: all parties share the socket's flags, so any of them can make
//! `accept` block. Then only this thread hangs; a dropped buffer waits, for a limited time, until its socket is not
//! being accepted on.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;

use super::error::SharedError;
use super::request::Users;
use super::socket::{Parts, accept, answer, failed};
use crate::Result;
use crate::sync::fork::{ForkGeneration, PerProcess, ProcessFd};
use crate::sync::thread::spawn;

/// The pause after an answer failed because the process has no descriptor or memory left. The opener stays in the
/// backlog, and another party may answer it meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a drop waits for a running `accept`, which takes a microsecond unless another party makes it block.
const LONGEST_ACCEPT: Duration = Duration::from_millis(50);

/// The events of a socket that no longer listens.
const SHUT_DOWN: epoll::EventFlags =
    epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);

/// The id of the event that ends the thread; no buffer has it.
const END: u64 = 0;

static SERVICE: PerProcess<Service> = PerProcess::new();

#[derive(Debug, Default)]
struct Service {
    thread: Option<Arc<Wait>>,
    buffers: BTreeMap<u64, Answerable>,
    last: u64,
}

/// A buffer that can be opened.
#[derive(Debug)]
struct Answerable {
    parts: Parts<Arc<ProcessFd>>,
    users: Users,
}

/// The descriptors the thread waits on.
#[derive(Debug)]
struct Wait {
    epoll: ProcessFd,
    end: ProcessFd,
    /// The buffer whose socket the thread is accepting on, and keeps open meanwhile; [`END`] for none. Set under the
    /// lock of the list.
    accepting: AtomicU64,
}

/// Keeps a buffer's openers answered. Dropping it closes the process's last descriptor of the name.
#[derive(Debug)]
pub(super) struct Registration {
    id: u64,
    fork_generation: ForkGeneration,
}

impl Registration {
    pub(super) fn new(parts: Parts<ProcessFd>, users: Users) -> Result<Self> {
        let mut service = SERVICE.lock();
        let id = service.last.wrapping_add(1);
        let wait = match &service.thread {
            Some(wait) => Arc::clone(wait),
            None => Arc::clone(service.thread.insert(Wait::start()?)),
        };
        if let Err(error) = wait.add(&parts.listener, id) {
            service.end_if_idle();
            return Err(error);
        }
        service.last = id;
        let Parts { header, memory, listener } = parts;
        let [header, memory, listener] = [header, memory, listener].map(Arc::new);
        let parts = Parts { header, memory, listener };
        service.buffers.insert(id, Answerable { parts, users });
        Ok(Self { id, fork_generation: ForkGeneration::here() })
    }
}

impl Registration {
    /// Whether openers are still being answered here.
    pub(super) fn is_reachable(&self) -> bool {
        !self.fork_generation.is_stale() && SERVICE.lock().buffers.contains_key(&self.id)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a forked child the list is a new one, and the descriptors are closed.
        if self.fork_generation.is_stale() {
            return;
        }
        let mut service = SERVICE.lock();
        let Some(buffer) = service.buffers.remove(&self.id) else { return };
        service.stop_waiting(&buffer);
        drop(buffer);
        let wait = service.thread.clone();
        service.end_if_idle();
        drop(service);
        if let Some(wait) = wait {
            wait.end_accept(self.id);
        }
    }
}

impl Service {
    /// Releases a buffer whose socket a party has shut down. The shutdown is permanent, for all parties, and epoll
    /// would report it again and again. Once every party has released the socket, the name is free.
    fn lose(&mut self, id: u64) {
        let Some(lost) = self.buffers.remove(&id) else { return };
        self.stop_waiting(&lost);
        self.end_if_idle();
    }

    /// Removes a buffer's socket from the epoll set. Closing it is not enough, because the other parties keep the
    /// socket open.
    fn stop_waiting(&self, buffer: &Answerable) {
        if let (Some(wait), Ok(listener)) = (&self.thread, buffer.parts.listener.get())
            && let Ok(epoll) = wait.epoll.get()
        {
            let _ = epoll::delete(epoll, listener);
        }
    }

    fn end_if_idle(&mut self) {
        if !self.buffers.is_empty() {
            return;
        }
        if let Some(Ok(end)) = self.thread.take().as_ref().map(|wait| wait.end.get()) {
            // The event's counter is 0, so the write cannot block.
            let _ = rustix::io::write(end, &1_u64.to_ne_bytes());
        }
    }
}

impl Wait {
    /// Starts the thread.
    fn start() -> Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let end = rustix::event::eventfd(0, flags).map_err(failed("eventfd"))?;
        let (epoll, end) = (ProcessFd::new(epoll), ProcessFd::new(end));
        let wait = Arc::new(Self { epoll, end, accepting: AtomicU64::new(END) });
        wait.add(&wait.end, END)?;
        let of_thread = Arc::clone(&wait);
        spawn("forebay-shared", move || of_thread.serve()).map_err(|error| {
            SharedError::System { call: "pthread_create", message: error.to_string().into() }
        })?;
        Ok(wait)
    }

    fn add(&self, descriptor: &ProcessFd, id: u64) -> Result<()> {
        // Without EPOLLEXCLUSIVE: the single process that it would wake may be stopped.
        let data = epoll::EventData::new_u64(id);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let added = epoll::add(self.epoll.get()?, descriptor.get()?, data, flags);
        Ok(added.map_err(failed("epoll_ctl"))?)
    }

    fn serve(&self) {
        let mut events = Vec::with_capacity(16);
        loop {
            events.clear();
            let Ok(epoll) = self.epoll.get() else { return };
            match epoll::wait(epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            for event in &events {
                let (id, flags) = (event.data.u64(), event.flags);
                if id == END {
                    return;
                }
                if flags.intersects(SHUT_DOWN) {
                    SERVICE.lock().lose(id);
                } else if self.answer_next(id).is_err() {
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Answers one opener of a buffer.
    fn answer_next(&self, id: u64) -> core::result::Result<(), Errno> {
        let Some(opener) = self.accept_next(id)? else { return Ok(()) };
        let service = SERVICE.lock();
        // The buffer may have been dropped meanwhile; the opener retries.
        let Some(Answerable { parts, users }) = service.buffers.get(&id) else { return Ok(()) };
        let (Ok(header), Ok(memory), Ok(listener)) =
            (parts.header.get(), parts.memory.get(), parts.listener.get())
        else {
            return Ok(());
        };
        answer(opener.as_fd(), &Parts { header, memory, listener }, *users)
    }

    /// Accepts an opener of a buffer, if one is waiting.
    fn accept_next(&self, id: u64) -> core::result::Result<Option<OwnedFd>, Errno> {
        let listener = {
            let service = SERVICE.lock();
            let Some(buffer) = service.buffers.get(&id) else { return Ok(None) };
            self.accepting.store(id, Ordering::Relaxed);
            Arc::clone(&buffer.parts.listener)
        };
        let opener = listener.get().map_or(Ok(None), accept);
        drop(listener);
        // After closing the socket, in case this was its last descriptor.
        self.accepting.store(END, Ordering::Release);
        opener
    }

    /// Waits until the thread has released the socket of a buffer that was removed from the list.
    fn end_accept(&self, id: u64) {
        let begun = Instant::now();
        while self.accepting.load(Ordering::Acquire) == id && begun.elapsed() < LONGEST_ACCEPT {
            std::thread::yield_now();
        }
    }
}
