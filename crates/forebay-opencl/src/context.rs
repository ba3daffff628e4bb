//! State shared by all devices with one number: the OpenCL context, idle queues and the memory in use.

use core::ptr;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cl3::command_queue::{
    CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, CL_QUEUE_PROFILING_ENABLE, create_command_queue,
    create_command_queue_with_properties,
};
use cl3::context::{CL_CONTEXT_PLATFORM, create_context};
use cl3::device::{CL_DEVICE_EXTENSIONS, CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, get_device_data};
use cl3::types::cl_context;
use forebay_core::Bytes;
use forebay_hal::{Asked, Call, MemoryInfo, Priority, Result};
use forebay_sync::fork::PerProcess;
use forebay_sync::lock;

use crate::code::{Made, Outcome};
use crate::decompression::Program;
use crate::driver::DeviceId;
use crate::info::{as_number, check_alignment, number, text};
use crate::object::{Event, Queue};
use crate::space::Allocation;
use crate::stream::{QueueOrder, StreamQueue};
use crate::{OpenClDeviceInfo, OpenClDriver};

/// `CL_QUEUE_PROPERTIES`, the name of the usual properties in a list.
const QUEUE_PROPERTIES: u64 = 0x1093;

/// `CL_QUEUE_PRIORITY_KHR` and its values, of the extension `cl_khr_priority_hints`.
const QUEUE_PRIORITY: u64 = 0x1096;
const PRIORITY_HIGH: u64 = 1;
const PRIORITY_LOW: u64 = 1 << 2;

/// `CL_DEVICE_GLOBAL_FREE_MEMORY_AMD`: what is free, in KiB.
const FREE_MEMORY_AMD: u32 = 0x4039;

/// The context of one device. Made once for a process and kept: others' objects may be in it.
#[derive(Debug)]
pub(crate) struct Context {
    raw: cl_context,
    id: DeviceId,
    pub(crate) info: &'static OpenClDeviceInfo,
    /// Whether queues take priorities.
    pub(crate) priorities: bool,
    /// Whether queues may run out of order.
    pub(crate) out_of_order: bool,
    /// For short work of the library's own, which never waits for a stream.
    pub(crate) upkeep: Queue,
    /// Queues that no stream has; their work may not be done.
    pub(crate) idle: Mutex<Vec<Arc<StreamQueue>>>,
    /// Held across calls that make and free shared virtual memory, on NVIDIA's platform alone, whose driver breaks
    /// where two threads are in them. By OpenCL's rules neither call waits for work.
    svm: Option<Mutex<()>>,
    /// Host memory of devices that went before the work that may use it.
    parked: Mutex<Vec<ParkedMemory>>,
    /// The kernel that decodes LZ4 blocks, or why there is none.
    lz4: OnceLock<core::result::Result<Program, String>>,
    /// The memory that all devices of this number have.
    used: Mutex<Bytes>,
}

// SAFETY: names of things that live as long as the process, which every thread may use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of the device of that number.
    pub(crate) fn of(ordinal: u32) -> Result<&'static Self> {
        static CONTEXTS: PerProcess<BTreeMap<u32, &'static Context>> = PerProcess::new();
        let (info, id) = OpenClDriver::load()?.device(ordinal)?;
        check_alignment(id.device)?;
        // Held while it is made: two who ask at once get the same.
        let mut contexts = CONTEXTS.lock();
        if let Some(context) = contexts.get(&ordinal) {
            return Ok(context);
        }
        let context = Self::create(info, id).map_err(|refusal| {
            let asked = Asked::of("ordinal", ordinal, "a device that OpenCL can use");
            refusal.error(Call::Open, &asked, MemoryInfo::default)
        })?;
        let context: &'static Self = Box::leak(Box::new(context));
        contexts.insert(ordinal, context);
        Ok(context)
    }

    fn create(info: &'static OpenClDeviceInfo, id: DeviceId) -> Outcome<Self> {
        let properties = [CL_CONTEXT_PLATFORM, id.platform.addr().cast_signed(), 0];
        let raw = create_context(&[id.device], properties.as_ptr(), None, ptr::null_mut())
            .made("clCreateContext")?;
        let queues = number(id.device, CL_DEVICE_QUEUE_ON_HOST_PROPERTIES);
        let extensions = text(id.device, CL_DEVICE_EXTENSIONS);
        let priorities = extensions.split(' ').any(|name| name == "cl_khr_priority_hints");
        let upkeep = create_queue(raw, id, 0, None)?;
        Ok(Self {
            raw,
            id,
            info,
            priorities,
            out_of_order: queues & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0,
            upkeep,
            idle: Mutex::default(),
            svm: info.platform.contains("NVIDIA").then(Mutex::default),
            parked: Mutex::default(),
            lz4: OnceLock::new(),
            used: Mutex::default(),
        })
    }

    pub(crate) const fn raw(&self) -> cl_context {
        self.raw
    }

    pub(crate) const fn id(&self) -> DeviceId {
        self.id
    }

    /// The kernel that decodes LZ4 blocks, compiled when it is first needed; or why there is none.
    pub(crate) fn lz4(&self) -> core::result::Result<&Program, &String> {
        self.lz4.get_or_init(|| Program::build(self)).as_ref()
    }

    /// The calling thread's turn to make or free shared virtual memory, where the driver takes one thread at a time.
    pub(crate) fn svm_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.svm.as_ref().map(lock)
    }

    /// Keeps host memory until everything up to `ends` is over. [`release_parked`](Self::release_parked) releases it.
    pub(crate) fn park(&self, memory: Vec<Arc<Allocation>>, ends: Vec<Event>) {
        lock(&self.parked).push(ParkedMemory { _memory: memory, ends });
    }

    /// Releases parked memory whose work is over. The driver is called without the lock.
    pub(crate) fn release_parked(&self) {
        let parked = core::mem::take(&mut *lock(&self.parked));
        let is_busy = |parked: &ParkedMemory| !parked.ends.iter().all(Event::is_over);
        let busy: Vec<_> = parked.into_iter().filter(is_busy).collect();
        lock(&self.parked).extend(busy);
    }

    /// A new queue for a stream.
    pub(crate) fn queue(&self, order: QueueOrder, priority: Priority) -> Outcome<Queue> {
        let out_of_order = match order {
            QueueOrder::InOrder => 0,
            QueueOrder::OutOfOrder => CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
        };
        let priority = match priority {
            Priority::Low => Some(PRIORITY_LOW),
            Priority::Normal => None,
            Priority::High => Some(PRIORITY_HIGH),
        };
        let priority = priority.filter(|_| self.priorities);
        create_queue(self.raw, self.id, CL_QUEUE_PROFILING_ENABLE | out_of_order, priority)
    }

    /// Counts memory as used until the value goes; what there is not is refused with what is free.
    pub(crate) fn reserve(&'static self, size: Bytes) -> core::result::Result<Reservation, Bytes> {
        let mut used = lock(&self.used);
        let free = self.info.total_memory.saturating_sub(*used);
        if size > free {
            return Err(free);
        }
        *used = used.saturating_add(size);
        Ok(Reservation { context: self, size })
    }

    /// What is free: less than what no device of this process has, where the driver knows of others.
    pub(crate) fn free(&self) -> Bytes {
        let ours = self.info.total_memory.saturating_sub(*lock(&self.used));
        let told = get_device_data(self.id.device, FREE_MEMORY_AMD).unwrap_or_default();
        // The answer is one or two numbers of the machine's width, the first of which counts.
        let kib = as_number(told.get(..size_of::<usize>()).unwrap_or_default());
        let theirs = Bytes::new(forebay_core::KIB).checked_mul(kib).filter(|free| !free.is_zero());
        theirs.map_or(ours, |theirs| theirs.min(ours))
    }
}

/// Host memory that the work of a device that went may use.
#[derive(Debug)]
struct ParkedMemory {
    _memory: Vec<Arc<Allocation>>,
    /// After which nothing uses it.
    ends: Vec<Event>,
}

/// Memory that counts as used.
#[derive(Debug)]
pub(crate) struct Reservation {
    context: &'static Context,
    size: Bytes,
}

impl Reservation {
    pub(crate) const fn size(&self) -> Bytes {
        self.size
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut used = lock(&self.context.used);
        *used = used.saturating_sub(self.size);
    }
}

/// A queue with `properties`, by the call that every version has unless a priority is asked for.
fn create_queue(
    context: cl_context,
    id: DeviceId,
    properties: u64,
    priority: Option<u64>,
) -> Outcome<Queue> {
    let raw = match priority {
        // SAFETY: the device is the one of the context.
        None => unsafe { create_command_queue(context, id.device, properties) }
            .made("clCreateCommandQueue")?,
        Some(priority) => {
            let list = [QUEUE_PROPERTIES, properties, QUEUE_PRIORITY, priority, 0];
            // SAFETY: as above; the list ends with a zero.
            unsafe { create_command_queue_with_properties(context, id.device, list.as_ptr()) }
                .made("clCreateCommandQueueWithProperties")?
        }
    };
    // SAFETY: just made.
    Ok(unsafe { Queue::new(raw) })
}
