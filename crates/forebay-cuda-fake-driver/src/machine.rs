//! The machine behind the driver, and what its handles stand for.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{
    Device, EventHandle, PageHandle, PointerClass, PointerKind, StreamHandle, Streams,
};
use forebay_sim::{SimDevice, SimMachine};
use forebay_sync::thread::spawn;

use crate::answer::{Answer, said};
use crate::control::settings;

/// Handles begin here, so that none is one of the values with a meaning of its own.
const FIRST_HANDLE: u64 = 0x5000_0000;

/// How often work is looked after. The simulated device works only while somebody asks it; a real
/// one works by itself.
const PACE: Duration = Duration::from_micros(200);

/// All there is.
pub(crate) struct Machine {
    pub(crate) sim: SimMachine,
    pub(crate) devices: Vec<Arc<SimDevice>>,
    tables: Mutex<Tables>,
}

/// What handles stand for.
#[derive(Default)]
pub(crate) struct Tables {
    last: u64,
    /// Handles of destroyed streams, which new ones get, as drivers do.
    pub(crate) ended: Vec<u64>,
    pub(crate) streams: HashMap<u64, StreamEntry>,
    pub(crate) events: HashMap<u64, EventEntry>,
    pub(crate) pages: HashMap<u64, PageEntry>,
    /// Regions by their first address: whose they are, and how long.
    pub(crate) regions: HashMap<u64, (u32, u64)>,
}

#[derive(Clone, Copy)]
pub(crate) struct StreamEntry {
    pub(crate) device: u32,
    pub(crate) context: u64,
    pub(crate) stream: StreamHandle,
    pub(crate) tie: LegacySync,
    pub(crate) priority: c_int,
}

/// How a stream stands to the legacy default stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegacySync {
    /// It is that stream.
    Legacy,
    /// Its work waits for earlier work of that stream, and the other way round.
    Blocking,
    /// The two have nothing to do with each other.
    NonBlocking,
}

#[derive(Clone, Copy)]
pub(crate) struct EventEntry {
    pub(crate) device: u32,
    pub(crate) context: u64,
    pub(crate) event: EventHandle,
}

#[derive(Clone, Copy)]
pub(crate) struct PageEntry {
    pub(crate) device: u32,
    pub(crate) page: PageHandle,
    pub(crate) size: Bytes,
}

impl Tables {
    /// A handle nobody has.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 16;
        FIRST_HANDLE + self.last
    }
}

static MACHINE: OnceLock<Machine> = OnceLock::new();

/// The machine, once `cuInit` was called.
pub(crate) fn machine() -> Answer<&'static Machine> {
    MACHINE.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

/// A number that the environment gives.
fn chosen(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Builds the machine.
pub(crate) fn start() -> Answer {
    if MACHINE.get().is_some() {
        return Ok(());
    }
    let count = chosen("FOREBAY_FAKE_GPUS").unwrap_or(settings().devices);
    let memory =
        chosen("FOREBAY_FAKE_MEMORY_MIB").map_or(Bytes::gib(1), |mib| Bytes::mib(mib.into()));
    if count == 0 {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    let sim = SimMachine::builder().devices(count).capacity(memory).checked(false);
    let sim = said(sim.build())?;
    let devices = (0..count).filter_map(|ordinal| sim.device(ordinal)).collect();
    MACHINE.get_or_init(|| Machine { sim, devices, tables: Mutex::default() });
    // It ends with the process, and takes no signals, as the real driver's threads take none.
    spawn("fake-pump", || {
        loop {
            std::thread::sleep(PACE);
            if let Ok(machine) = machine() {
                for device in &machine.devices {
                    let _ = device.query_stream(StreamHandle::DEFAULT);
                }
            }
        }
    })
    .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    Ok(())
}

impl Machine {
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn device(&self, ordinal: u32) -> Answer<&Arc<SimDevice>> {
        let device = usize::try_from(ordinal).ok().and_then(|index| self.devices.get(index));
        device.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Whose memory an address is, and of what kind.
    pub(crate) fn find(&self, address: u64) -> Option<(u32, PointerClass)> {
        (0..).zip(&self.devices).find_map(|(ordinal, device)| {
            let class = device.classify(Address::new(address)).ok()??;
            (class.kind != PointerKind::Reserved).then_some((ordinal, class))
        })
    }
}

/// A span of the caller's.
pub(crate) fn span(start: u64, size: u64) -> Answer<Span> {
    Span::new(Address::new(start), Bytes::new(size)).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
}
