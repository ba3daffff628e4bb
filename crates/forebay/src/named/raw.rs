//! A shared buffer without its element type: assembles the parts.

use core::panic::Location;
use core::time::Duration;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::Address;
use forebay_hal::{Call, Device};

use super::error::SharedError;
use super::header::Header;
use super::lock::{FileLock, Held};
use super::mapping::Mapping;
use super::request::{Element, Request};
use super::service::Registration;
use super::socket::{self, Parts, failed, start};
use crate::buffer::{BufferManager, SharedRegistration};
use crate::sync::fork::ProcessFd;
use crate::user::Peer;
use crate::{Error, Result};

/// The pause of a call that creates or opens while another process is partway through creating or dropping the buffer.
const PAUSE: Duration = Duration::from_millis(1);

/// A party of a shared buffer. Fields are dropped in this order: the name first.
#[derive(Debug)]
pub(super) struct RawShared {
    registration: Registration,
    lock: FileLock,
    mapping: Mapping,
    header: Header,
    creator: Peer,
    name: Box<str>,
}

/// The guard of a lock.
pub(super) type RawLock<'a> = Held<'a>;

impl RawShared {
    pub(super) fn create(
        device: &Arc<dyn Device>,
        request: &Request<'_>,
        length: u64,
    ) -> Result<Self> {
        device.descriptor().check_process(Call::Allocate)?;
        let address = socket::Address::new(request.name, request.users)?;
        // Claim the name first: if two creators race, the loser allocates no memory.
        let listener = address.claim()?;
        let (mapping, memory) =
            Mapping::create(device, request.size_of(length)?, request.element.alignment())?;
        let header = Header {
            element: request.element.clone(),
            length,
            mapped: mapping.size(),
            kind: device.descriptor().kind.name().to_owned(),
        };
        let file = header.write().map_err(failed("memfd_create"))?;
        start(listener.get()?)?;
        let parts =
            Parts { header: ProcessFd::new(file), memory: ProcessFd::new(memory), listener };
        Self::join(request, (parts, Peer::here()), mapping, header)
    }

    pub(super) fn open(
        device: &Arc<dyn Device>,
        request: &Request<'_>,
        length: Option<u64>,
    ) -> Result<Self> {
        Self::attach(device, request, |header, kind| {
            header.check(request.name, &request.element, length, kind)
        })
    }

    /// Opens a buffer with any elements.
    pub(super) fn open_any(device: &Arc<dyn Device>, request: &Request<'_>) -> Result<Self> {
        Self::attach(device, request, |header, kind| {
            header.check(request.name, &header.element, None, kind)
        })
    }

    /// Opens a buffer if `check` accepts its header for the kind of device.
    fn attach(
        device: &Arc<dyn Device>,
        request: &Request<'_>,
        check: impl FnOnce(&Header, &str) -> core::result::Result<(), SharedError>,
    ) -> Result<Self> {
        device.descriptor().check_process(Call::Allocate)?;
        let address = socket::Address::new(request.name, request.users)?;
        let (parts, creator) = address.ask(request.patience)?;
        let header = Header::read(request.name, parts.header.get()?)?;
        check(&header, device.descriptor().kind.name())?;
        let (memory, alignment) = (parts.memory.get()?, header.element.alignment());
        let mapping = Mapping::open(device, memory, header.mapped, alignment)?;
        Self::join(request, (parts, creator), mapping, header)
    }

    /// Creates the buffer, or opens an existing one, whichever succeeds first.
    pub(super) fn create_or_open(
        device: &Arc<dyn Device>,
        request: &Request<'_>,
        length: u64,
    ) -> Result<Self> {
        let (begun, mut attempts) = (Instant::now(), 0_u32);
        let is = |error: &Error, found: fn(&SharedError) -> bool| matches!(error, Error::Shared(error) if found(error));
        loop {
            match Self::create(device, request, length) {
                Err(error) if is(&error, |error| matches!(error, SharedError::Taken { .. })) => {}
                done => return done,
            }
            match Self::open(device, request, Some(length)) {
                Err(error) if is(&error, |error| matches!(error, SharedError::NotFound { .. })) => {
                }
                done => return done,
            }
            // Its creator has the name but not yet the memory, or its last party has just left.
            attempts = attempts.saturating_add(1);
            let waited = begun.elapsed();
            if waited >= request.patience {
                let name = request.name.into();
                return Err(SharedError::NoAnswer { name, waited, attempts }.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn join(
        request: &Request<'_>,
        (parts, creator): (Parts<ProcessFd>, Peer),
        mapping: Mapping,
        header: Header,
    ) -> Result<Self> {
        let lock = FileLock::new(parts.header.get()?.as_fd());
        let registration = Registration::new(parts, request.users)?;
        let name = request.name.into();
        Ok(Self { registration, lock, mapping, header, creator, name })
    }

    /// Registers it with the manager's live buffers.
    pub(super) fn enter(
        &self,
        memory: &BufferManager,
        created_at: &'static Location<'static>,
    ) -> SharedRegistration {
        let element = self.element();
        // Cannot overflow: checked when it was made or opened.
        let bytes = self.length().saturating_mul(element.size);
        memory.enter_shared((self.name(), &element.name), (self.length(), bytes), created_at)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn element(&self) -> &Element {
        &self.header.element
    }

    pub(super) fn length(&self) -> u64 {
        self.header.length
    }

    /// The process and user that created it, according to the system.
    pub(super) fn creator(&self) -> (u32, u32) {
        (self.creator.pid, self.creator.uid)
    }

    /// Whether openers can still be answered.
    pub(super) fn is_reachable(&self) -> bool {
        self.registration.is_reachable()
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        self.mapping.device()
    }

    pub(super) fn address(&self) -> Address {
        self.mapping.address()
    }

    pub(super) fn pointer(&self) -> Option<*mut u8> {
        self.mapping.pointer()
    }

    pub(super) fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.mapping.read(offset, to)
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.mapping.write(offset, from)
    }

    pub(super) fn lock(&self, patience: Option<Duration>) -> Result<Option<RawLock<'_>>> {
        self.lock.acquire(patience)
    }

    /// Releases a lock whose guard was forgotten, on the thread that acquired it.
    pub(super) fn unlock(&self) -> Result<()> {
        self.lock.release()
    }

    /// Releases the lock, whichever thread of this process holds it.
    pub(super) fn abandon_lock(&self) {
        self.lock.abandon();
    }
}
