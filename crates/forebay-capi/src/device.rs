//! Devices: somewhere memory lives and work runs.

use core::ffi::c_char;
use core::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use forebay::devices::{self, DeviceName};
use forebay::hal::{Descriptor, DeviceKind};
use forebay::sim::{MemoryModel, SimMachine};
use forebay::transfer::TransferEngine;
use forebay::{Bytes, Device, Pool};
use forebay_sync::lock;

use crate::error::status_of;
use crate::fork;
use crate::page_pool::PagePool;
use crate::sized::{SizedOut, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::table::{self, FastEntry, entry};
use crate::text::{self, Out, fixed_c_string};

/// A device. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_device {
    /// Not to be looked at.
    pub id: u64,
}

/// The kinds of device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum forebay_device_kind {
    /// One that this header does not know.
    Other = 0,
    /// The host's own memory and threads.
    Host = 1,
    /// A simulated accelerator.
    Sim = 2,
    /// An NVIDIA GPU.
    Cuda = 3,
    /// An AMD GPU.
    Hip = 4,
    /// A device behind OpenCL.
    Opencl = 5,
    /// An Apple GPU.
    Metal = 6,
}

/// Memory keeps what is written to it.
pub const FOREBAY_CAN_DATA: u64 = 1;
/// The host may read and write device addresses directly.
pub const FOREBAY_CAN_HOST_VISIBLE: u64 = 1 << 1;
/// Addresses can be had apart from the memory behind them.
pub const FOREBAY_CAN_VIRTUAL_MEMORY: u64 = 1 << 2;
/// Host memory can be pinned.
pub const FOREBAY_CAN_PINNED: u64 = 1 << 3;
/// There is memory that moves by itself.
pub const FOREBAY_CAN_MANAGED: u64 = 1 << 7;
/// Other devices' memory can be reached.
pub const FOREBAY_CAN_PEERS: u64 = 1 << 8;
/// Streams of other libraries can be adopted.
pub const FOREBAY_CAN_FOREIGN_STREAMS: u64 = 1 << 14;
/// Giving memory back never waits for work under way.
pub const FOREBAY_CAN_PROMPT_FREE: u64 = 1 << 15;
/// Each thread has a default stream of its own.
pub const FOREBAY_CAN_PER_THREAD_STREAMS: u64 = 1 << 16;

/// What a device is, and how much memory it has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_device_info {
    /// `sizeof(forebay_device_info)`, set before the call; after it, how much of it was filled.
    pub struct_size: u32,
    /// A `forebay_device_kind`.
    pub kind: u32,
    /// Which of its kind.
    pub ordinal: u32,
    /// Zero.
    pub reserved: u32,
    /// What it can do: the sum of `FOREBAY_CAN_...`, and perhaps of others.
    pub capabilities: u64,
    /// The alignment of its allocations.
    pub alignment: u64,
    /// All its memory.
    pub total_bytes: u64,
    /// The memory that is still free.
    pub free_bytes: u64,
    /// The memory that this process holds through forebay.
    pub held_bytes: u64,
    /// The name the vendor or system gives it.
    pub name: [c_char; 128],
    /// The version of the driver or system, for people.
    pub driver: [c_char; 128],
}

versioned_struct!(forebay_device_info: 312);

/// The name of a device. The same name is the same device for the whole process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    /// A simulated accelerator by its number; each is a machine of its own.
    Sim(u32, Option<Bytes>, MemoryModel),
    /// Another device.
    Real(DeviceName),
}

impl Name {
    fn parse(name: &str) -> Result<Self, Failure> {
        let numbered = |rest: &str| match rest.strip_prefix(':') {
            Some(number) => number.parse().ok(),
            None => rest.is_empty().then_some(0),
        };
        let simulated = |rest: &str, memory| {
            let (number, size) = rest.split_once('@').map_or((rest, None), |(n, s)| (n, Some(s)));
            let capacity = size.map(str::parse::<Bytes>).transpose()?;
            Ok::<_, Failure>(numbered(number).map(|number| Self::Sim(number, capacity, memory)))
        };
        let parsed = if let Some(rest) = name.strip_prefix("sim") {
            simulated(rest, MemoryModel::Backed)?
        } else if let Some(rest) = name.strip_prefix("phantom") {
            simulated(rest, MemoryModel::Phantom)?
        } else {
            name.parse().ok().map(Self::Real)
        };
        let allowed = "host, cuda, hip, opencl or metal, with :1 and up for others than the first, sim, sim:1 and \
                       up, sim@1GiB, phantom";
        parsed.ok_or_else(|| Failure::argument("name", format!("\"{name}\""), allowed))
    }

    fn open(self) -> Result<Arc<dyn Device>, Failure> {
        match self {
            Self::Real(name) => Ok(name.open()?),
            Self::Sim(_, capacity, memory) => {
                // C has no access to the checker's findings, so it is off.
                let machine = SimMachine::builder().memory(memory).checked(false);
                let machine = match capacity {
                    Some(capacity) => machine.capacity(capacity),
                    None => machine,
                };
                Ok(machine.build()?.device(0).ok_or_else(|| {
                    Failure::new(forebay_status::Defect, "a simulated machine without a device")
                })?)
            }
        }
    }
}

/// The object of a device handle.
pub(crate) struct DeviceEntry {
    device: Arc<dyn Device>,
    /// Identifies the device: streams and pools of one device have the same number.
    number: u64,
    /// The device's pool of pinned memory, once it was asked for.
    pinned: OnceLock<PagePool>,
    /// Held while that is made, so that there is one.
    making_pinned: Mutex<()>,
    /// The device's transfer engine, once it was asked for.
    transfers: Mutex<Option<TransferEngine>>,
}

impl DeviceEntry {
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        self.device.descriptor()
    }

    /// The device's pool of pinned memory, if it was asked for.
    #[inline(always)]
    pub(crate) fn pinned(&self) -> Option<&PagePool> {
        self.pinned.get()
    }

    /// The device's pool of pinned memory, made by the first call.
    pub(crate) fn pinned_or_new(&self) -> Result<&PagePool, Failure> {
        let _making = lock(&self.making_pinned);
        if let Some(pool) = self.pinned.get() {
            return Ok(pool);
        }
        let made = PagePool::new(&self.device)?;
        Ok(self.pinned.get_or_init(|| made))
    }

    pub(crate) fn transfers(&self) -> MutexGuard<'_, Option<TransferEngine>> {
        lock(&self.transfers)
    }
}

entry!(forebay_device: DeviceEntry, Device);

// SAFETY: no other type is a device.
unsafe impl FastEntry for DeviceEntry {}

impl fmt::Debug for DeviceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor().fmt(f)
    }
}

/// A device that is or was open, by its name.
struct KnownDevice {
    name: Name,
    entry: Weak<DeviceEntry>,
    /// Keeps the device open where the process has a pool of it, even when all handles are closed.
    kept_open: Option<Arc<DeviceEntry>>,
}

static KNOWN_DEVICES: Mutex<Vec<KnownDevice>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<KnownDevice>> {
    lock(&KNOWN_DEVICES)
}

/// The device of a name, opened by the first call.
fn open_shared(name: Name) -> Result<Arc<DeviceEntry>, Failure> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Held while a device is opened, so that two threads that ask at once get the same.
    let mut known = known();
    known.retain(|known| known.entry.strong_count() > 0);
    let found = known.iter().find(|known| known.name == name);
    if let Some(entry) = found.and_then(|known| known.entry.upgrade()) {
        return Ok(entry);
    }
    // Before anything is opened that a forked child must not use.
    fork::register();
    let device = name.open()?;
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let entry = Arc::new(DeviceEntry {
        device,
        number,
        pinned: OnceLock::new(),
        making_pinned: Mutex::new(()),
        transfers: Mutex::new(None),
    });
    known.push(KnownDevice { name, entry: Arc::downgrade(&entry), kept_open: None });
    Ok(entry)
}

/// The process's pool of a device, created by the first call. From then on the process keeps the device open.
pub(crate) fn process_pool(entry: &Arc<DeviceEntry>) -> Result<Pool, Failure> {
    let pool = Pool::of(&entry.device)?;
    keep_open(entry, Some(entry));
    Ok(pool)
}

/// Drops the process's pool of a device; returns whether there was one.
pub(crate) fn forget_process_pool(entry: &Arc<DeviceEntry>) -> bool {
    keep_open(entry, None);
    Pool::forget(&entry.device)
}

fn keep_open(entry: &Arc<DeviceEntry>, kept: Option<&Arc<DeviceEntry>>) {
    for known in known().iter_mut().filter(|known| known.entry.as_ptr() == Arc::as_ptr(entry)) {
        known.kept_open = kept.cloned();
    }
}

/// Opens a device by name: "host", "cuda", "hip", "opencl", "metal", "sim", or with a number "cuda:1", "sim:1". A simulated one
/// has 8 GiB, or as much as the name says: "sim@1GiB"; "phantom" is one with addresses but no memory behind
/// them. Opening the same name again gives the same device, as long as it is open.
#[must_use = "there is no device where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_device_open(
    name: *const c_char,
    device: *mut forebay_device,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let (name, to) = unsafe { (text::read_str(name, "name"), Out::new(device, "device")) };
    to.result(|| table::open(open_shared(Name::parse(name?)?)?))
}

/// Opens the best device of this machine: the one that FOREBAY_DEVICE names, else the first GPU, else the host.
#[must_use = "there is no device where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_device_best(device: *mut forebay_device) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(device, "device") };
    to.result(|| {
        // Before anything is opened that a forked child must not use.
        fork::register();
        // Kept until the entry has it, or a driver's device would be opened twice.
        let (best, _opened) = devices::open_best()?;
        let entry = open_shared(Name::parse(&best.to_string())?)?;
        table::open(entry)
    })
}

/// The devices of this machine, the host last.
fn present() -> Vec<DeviceName> {
    let mut names = devices::all();
    if names.len() > 1 {
        // A child cannot use a driver that its parent has started.
        fork::register();
    }
    names.rotate_left(1);
    names
}

/// The number of devices of this machine: those that drivers show, and the host. Simulated devices do not count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_device_count(count: *mut u32) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { Out::new(count, "count") }
        .result(|| Ok(u32::try_from(present().len()).unwrap_or(u32::MAX)))
}

/// Opens a device of this machine by its index, below `forebay_device_count`: those of drivers first, by
/// kind and ordinal, then the host. `forebay_device_describe` tells what it is. Opening a GPU takes some of its memory
/// for the driver.
#[must_use = "there is no device where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_device_at(
    index: u32,
    device: *mut forebay_device,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(device, "device") };
    to.result(|| {
        let names = present();
        let name = usize::try_from(index).ok().and_then(|index| names.get(index));
        let last = names.len().saturating_sub(1);
        let name = name.ok_or_else(|| Failure::argument("index", index, format!("0 to {last}")))?;
        table::open(open_shared(Name::Real(*name))?)
    })
}

/// Describes a device and its memory. Calls the driver, so it is too slow for every step of a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_device_describe(
    device: forebay_device,
    info: *mut forebay_device_info,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { SizedOut::new(info, "info") };
    to.result(|| {
        let entry = table::find(device)?;
        let (descriptor, memory) = (entry.descriptor(), entry.device.memory_info()?);
        Ok(forebay_device_info {
            struct_size: 0,
            kind: kind_of(descriptor.kind) as u32,
            ordinal: descriptor.ordinal.0,
            reserved: 0,
            capabilities: u64::from(descriptor.capabilities.bits()),
            alignment: descriptor.alignment.get(),
            total_bytes: memory.total.get(),
            free_bytes: memory.free.get(),
            held_bytes: memory.held.get(),
            name: fixed_c_string(&descriptor.name),
            driver: fixed_c_string(&descriptor.driver),
        })
    })
}

fn kind_of(kind: DeviceKind) -> forebay_device_kind {
    match kind {
        DeviceKind::Host => forebay_device_kind::Host,
        DeviceKind::Sim => forebay_device_kind::Sim,
        DeviceKind::Cuda => forebay_device_kind::Cuda,
        DeviceKind::Hip => forebay_device_kind::Hip,
        DeviceKind::OpenCl => forebay_device_kind::Opencl,
        DeviceKind::Metal => forebay_device_kind::Metal,
        _ => forebay_device_kind::Other,
    }
}

/// Waits until all work of all streams of a device is done.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_device_synchronize(device: forebay_device) -> forebay_status {
    status_of(|| Ok(table::find(device)?.device.synchronize_device()?))
}

/// Closes a handle of a device. Pools, streams and arenas of the device keep it open.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_device_close(device: forebay_device) -> forebay_status {
    status_of(|| table::close(device).map(drop))
}

#[cfg(test)]
mod tests {
    use forebay::hal::Capabilities;

    use super::*;

    #[test]
    fn the_bits_are_those_of_the_contract() {
        for (ours, theirs) in [
            (FOREBAY_CAN_DATA, Capabilities::DATA),
            (FOREBAY_CAN_HOST_VISIBLE, Capabilities::HOST_VISIBLE),
            (FOREBAY_CAN_VIRTUAL_MEMORY, Capabilities::VIRTUAL_MEMORY),
            (FOREBAY_CAN_PINNED, Capabilities::PINNED),
            (FOREBAY_CAN_MANAGED, Capabilities::MANAGED),
            (FOREBAY_CAN_PEERS, Capabilities::PEERS),
            (FOREBAY_CAN_FOREIGN_STREAMS, Capabilities::FOREIGN_STREAMS),
            (FOREBAY_CAN_PROMPT_FREE, Capabilities::PROMPT_FREE),
            (FOREBAY_CAN_PER_THREAD_STREAMS, Capabilities::PER_THREAD_STREAMS),
        ] {
            assert_eq!(ours, u64::from(theirs.bits()), "{theirs}");
        }
    }

    #[test]
    fn names_are_read_and_others_refused() {
        assert!(
            matches!(Name::parse("cuda:12"), Ok(Name::Real(name)) if name == DeviceName::cuda(12))
        );
        assert!(matches!(Name::parse("sim"), Ok(Name::Sim(0, None, MemoryModel::Backed))));
        let large = Name::Sim(2, Some(Bytes::gib(24)), MemoryModel::Phantom);
        assert!(Name::parse("phantom:2@24GiB").is_ok_and(|name| name == large));
        for wrong in [
            "", "cuda:", "cuda:x", "cuda0", "HOST", "vulkan:0", "host:0", "sim:-1", "sim@", "sim@x",
        ] {
            assert!(Name::parse(wrong).is_err(), "{wrong}");
        }
    }
}
