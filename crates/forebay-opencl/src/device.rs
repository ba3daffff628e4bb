//! The OpenCL device.

use core::mem::ManuallyDrop;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use cl3::types::{cl_command_queue, cl_context, cl_device_id, cl_event};
use forebay_core::{Address, Bytes, DeviceOrdinal};
use forebay_hal::address_book::Figures;
use forebay_hal::{
    Asked, Call, Capabilities, Descriptor, Device, DeviceKind, Error, MemoryInfo, PointerClass,
    Priority, Result, StreamHandle, StreamTable, fresh_handle, optional_groups,
};
use forebay_sync::fork::PerProcess;
use forebay_sync::lock;

use crate::code::{DriverError, Lost};
use crate::context::Context;
use crate::decompression::can_decompress;
use crate::event::EVENTS;
use crate::space::Space;
use crate::stream::{QueueOrder, StreamQueue, about};
use crate::{HostCopies, OpenClDeviceInfo, OpenClDeviceType, OpenClOptions};

/// A device behind OpenCL.
///
/// Devices with the same number share an OpenCL context, which is kept for the life of the process; each has its own
/// memory, tables and streams. In a forked child a device of the parent refuses all work and leaks on drop.
#[derive(Debug)]
pub struct OpenClDevice {
    pub(crate) context: &'static Context,
    /// Tells this device from others of the same number.
    pub(crate) serial: u64,
    pub(crate) descriptor: Descriptor,
    pub(crate) options: OpenClOptions,
    pub(crate) order: QueueOrder,
    pub(crate) host_copies: HostCopies,
    pub(crate) lost: Lost,
    pub(crate) space: ManuallyDrop<Mutex<Space>>,
    pub(crate) streams: ManuallyDrop<Mutex<StreamTable<StreamQueue>>>,
}

impl OpenClDevice {
    /// Opens a device by its number; see [`OpenClDriver::load`](crate::OpenClDriver::load) for the order.
    pub fn open(ordinal: u32) -> Result<Arc<Self>> {
        Self::open_with(ordinal, OpenClOptions::new())
    }

    /// Returns the process-wide device with that number: every caller gets the same object while any of them holds it.
    pub fn shared(ordinal: u32) -> Result<Arc<Self>> {
        static SHARED: PerProcess<BTreeMap<u32, Weak<OpenClDevice>>> = PerProcess::new();
        SHARED.get_or_open(ordinal, || Self::open(ordinal))
    }

    /// Opens a device by its number, with options.
    pub fn open_with(ordinal: u32, options: OpenClOptions) -> Result<Arc<Self>> {
        let call = Call::Open;
        let context = Context::of(ordinal)?;
        context.release_parked();
        let info = context.info;
        let lacks = |what: &str| {
            let missing = format!("{} has no {what}", info.name);
            Err(Error::Unsupported { call, missing: missing.into() })
        };
        if options.svm && !info.svm.coarse {
            return lacks("shared virtual memory (CL_DEVICE_SVM_COARSE_GRAIN_BUFFER)");
        }
        let order = match options.out_of_order {
            true if !context.out_of_order => return lacks("out-of-order queues"),
            true => QueueOrder::OutOfOrder,
            false => QueueOrder::InOrder,
        };
        let default = StreamQueue::take(context, order, Priority::Normal).map_err(|refusal| {
            refusal.error(call, &about(StreamHandle::DEFAULT), MemoryInfo::default)
        })?;
        let descriptor = Descriptor::new(DeviceKind::OpenCl, DeviceOrdinal(ordinal), &*info.name)
            .driver(format!("{} {}", info.platform, info.driver_version))
            .capabilities(capabilities(context))
            .alignment(info.alignment)
            .processor(info.device_type == OpenClDeviceType::Cpu);
        Ok(Arc::new(Self {
            context,
            serial: fresh_handle(),
            descriptor,
            options,
            order,
            lost: Lost::default(),
            host_copies: options.host_copies.unwrap_or(if is_pocl(context) {
                HostCopies::Driver
            } else {
                HostCopies::Thread
            }),
            space: ManuallyDrop::default(),
            streams: ManuallyDrop::new(Mutex::new(StreamTable::new(default))),
        }))
    }

    /// What OpenCL reports about the device.
    pub fn info(&self) -> &'static OpenClDeviceInfo {
        self.context.info
    }

    /// The context of its buffers and queues, for programs and kernels. It is never released.
    pub fn raw_context(&self) -> cl_context {
        self.context.raw()
    }

    /// The device, as OpenCL names it.
    pub fn raw_device(&self) -> cl_device_id {
        self.context.id().device
    }

    /// Enqueues a command of the caller, such as a kernel, in the order of `stream`.
    ///
    /// `enqueue` receives the queue and the events that the command must wait for, an empty list if the queue keeps the
    /// order by itself. It returns the command's event, with the reference that the call returned. It must not call
    /// this device: the stream is locked meanwhile, so that no other command comes between.
    ///
    /// # Safety
    ///
    /// * `enqueue` enqueues on that queue and waits for these events; the event it returns is that of its
    ///   last command, and the reference becomes the device's.
    /// * Memory that the command uses is not freed before it is done.
    pub unsafe fn launch(
        &self,
        stream: StreamHandle,
        enqueue: impl FnOnce(cl_command_queue, &[cl_event]) -> core::result::Result<cl_event, i32>,
    ) -> Result<()> {
        let call = Call::Launch;
        let queue = self.queue(call, stream)?;
        let mut submission = queue.begin();
        let mut enqueue = Some(enqueue);
        // SAFETY: as the caller promised.
        let launched = unsafe {
            submission.push_beside("the command", &mut |queue, count, events| {
                let wait: &[cl_event] = match usize::try_from(count) {
                    // SAFETY: the submission gives a list of that length.
                    Ok(count) if count > 0 => core::slice::from_raw_parts(events, count),
                    _ => &[],
                };
                let enqueue = enqueue.take().ok_or(cl3::error_codes::CL_INVALID_OPERATION)?;
                enqueue(queue, wait)
            })
        };
        let event = launched.map_err(self.refusing(call, || about(stream)))?;
        submission.advance(event);
        Ok(())
    }

    /// How much memory there is, by the driver and by the books.
    fn figures(&self) -> MemoryInfo {
        let total = self.context.info.total_memory;
        let Figures { held, managed, .. } = lock(&self.space).figures;
        // Others take and give back between the two looks: what is held is never free.
        let free = self.context.free().min(total.saturating_sub(held));
        MemoryInfo { total, free, held, managed }
    }

    /// The error of a call the driver refused.
    pub(crate) fn refused(&self, call: Call, refusal: DriverError, asked: &Asked) -> Error {
        refusal.error(call, asked, || self.figures())
    }

    /// What makes the error of a refusal: for `map_err`.
    pub(crate) fn refusing(
        &self,
        call: Call,
        asked: impl FnOnce() -> Asked,
    ) -> impl FnOnce(DriverError) -> Error {
        move |refusal| self.refused(call, refusal, &asked())
    }

    /// More than there is.
    pub(crate) fn out_of_memory(&self, call: Call, requested: Bytes) -> Error {
        self.figures().out_of_memory(call, requested)
    }
}

/// PoCL is known: its calls wait for nothing, and it releases buffers while kernels run. NVIDIA's driver waits
/// for both, and of others nothing is known.
fn is_pocl(context: &Context) -> bool {
    context.info.platform == "Portable Computing Language"
}

fn capabilities(context: &Context) -> Capabilities {
    let mut all = Capabilities::DATA
        | Capabilities::PINNED
        | Capabilities::HOST_TASKS
        | Capabilities::TIMED_EVENTS;
    all.set(Capabilities::MANAGED, context.info.svm.fine);
    all.set(Capabilities::PRIORITIES, context.priorities);
    all.set(Capabilities::PROMPT_FREE, is_pocl(context));
    all.set(Capabilities::DECOMPRESSION, can_decompress(context.id()));
    all
}

impl Drop for OpenClDevice {
    fn drop(&mut self) {
        // The parent's: its locks may be held for ever, and its driver is not for this process.
        if self.descriptor.is_from_parent() {
            return;
        }
        EVENTS.forget_all_of(self.serial);
        let queues = lock(&self.streams).all();
        let busy = queues.iter().filter_map(|queue| queue.tail()).filter(|end| !end.is_over());
        let busy: Vec<_> = busy.collect();
        if !busy.is_empty() {
            let memory = lock(&self.space).take_host_memory();
            self.context.park(memory, busy);
        }
        self.context.release_parked();
        // SAFETY: nobody uses them after this.
        unsafe {
            ManuallyDrop::drop(&mut self.space);
            ManuallyDrop::drop(&mut self.streams);
        }
        // Their work may not be done: `StreamQueue::take` gives out none whose work is not.
        lock(&self.context.idle).extend(queues);
    }
}

// SAFETY: the groups given are those whose bits are set, always. What is free is no more than what no device
// of this number holds. Dropping the device waits for nothing: commands keep the buffers they use, and host
// memory that work may use is kept until a later call finds that work over.
unsafe impl Device for OpenClDevice {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.descriptor.check_process(Call::MemoryInfo)?;
        Ok(self.figures())
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        self.descriptor.check_process(Call::Classify)?;
        Ok(lock(&self.space).book.classify(address))
    }

    optional_groups! {
        pinned_memory: PinnedMemory if PINNED;
        managed_memory: ManagedMemory if MANAGED;
        decompression: Decompression if DECOMPRESSION;
    }
}
