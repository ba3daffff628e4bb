//! The source of buffer memory, and a parking place for host memory that copies still use.

use std::sync::{Arc, Mutex};

use forebay_hal::Device;

use super::host_memory::HostMemory;
use super::host_use::HostUse;
use crate::Pool;
use crate::sync::lock;

/// What moves data to where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "host"), expect(dead_code))]
pub(super) enum Migration {
    /// The buffers, by copying.
    Copies,
    /// The buffers, by copying, for a program that requested managed memory.
    Emulated,
    /// The driver, page by page.
    Driver,
}

/// The pool of a manager's buffers, and parked host memory.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) pool: Pool,
    pub(super) migration: Migration,
    parked: Mutex<Vec<Parked>>,
}

/// Host memory of a dropped buffer that copies still use.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) host: HostMemory,
    pub(super) uses: Vec<HostUse>,
}

impl Store {
    pub(super) fn new(pool: &Pool, migration: Migration) -> Self {
        Self { pool: pool.clone(), migration, parked: Mutex::default() }
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        self.pool.device()
    }

    /// Keeps host memory until the copies that use it are done.
    pub(super) fn park(&self, parked: Parked) {
        lock(&self.parked).push(parked);
    }

    /// Frees parked memory whose copies are done. Returns the bytes that remain parked.
    pub(super) fn sweep(&self) -> u64 {
        let mut parked = lock(&self.parked);
        let is_done = |one: &mut Parked| one.uses.iter().all(HostUse::is_done);
        let done: Vec<Parked> = parked.extract_if(.., is_done).collect();
        let left = parked.iter().map(|one| one.host.size() as u64).sum();
        drop(parked);
        drop(done);
        left
    }
}

impl Drop for Store {
    /// Waits for the copies that use parked memory.
    fn drop(&mut self) {
        let device = Arc::clone(self.pool.device());
        let parked = self.parked.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for one in parked.drain(..) {
            let inherited = device.descriptor().is_from_parent();
            if inherited || !one.uses.iter().all(|used| used.wait(&*device).is_ok()) {
                core::mem::forget(one.host);
            }
        }
    }
}
