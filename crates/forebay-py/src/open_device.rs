//! The devices of the process, by name, and their streams. Each device is opened once and shared. A device knows its
//! streams by their handles, and a stream keeps its device.
//!
//! ```text
//!   "host"     this machine's memory and threads
//!   "cuda:0"   a GPU: the device of the C functions too, so that PyTorch and Python share one pool
//!   "hip:0", "opencl:0", "metal:0"   other drivers' devices
//!   "sim"      a simulated accelerator of 8 GiB
//! ```

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use forebay::bindings::transfer_engine;
use forebay::devices::{self, DeviceName};
use forebay::hal::{DeviceKind, Event, EventKind, Progress};
use forebay::transfer::{TransferEngine, TransferEvent};
use forebay::{Device, Pool, Priority, Stream, StreamHandle};
use forebay_sync::fork::{ForkGeneration, ForkSafeMutex, LeakOnFork, PerProcess};
use forebay_sync::lock;
use pyo3::prelude::*;

use crate::failure::{Failure, shown};

/// A device of the process, opened when it is first used.
pub(crate) struct OpenDevice {
    name: DeviceName,
    fork_generation: ForkGeneration,
    /// Set by the first use: listing GPUs creates no context on any.
    opened: OnceLock<LeakOnFork<Arc<dyn Device>>>,
    /// Its transfer engine, made by the first transfer.
    transfers: OnceLock<LeakOnFork<TransferEngine>>,
    streams: Mutex<Streams>,
    /// Its default stream, once it was asked for. The two refer to each other, but devices live as long as the process.
    default_stream: OnceLock<Arc<StreamRef>>,
}

/// The known streams by the driver's handle.
#[derive(Default)]
pub(crate) struct Streams {
    /// Streams created here, while references exist.
    pub(crate) own: HashMap<u64, Weak<StreamRef>>,
    /// Streams of other libraries, until they are forgotten.
    pub(crate) adopted: HashMap<u64, Arc<StreamRef>>,
}

impl Streams {
    /// The stream with that handle.
    pub(crate) fn find(&self, raw: u64) -> Option<Arc<StreamRef>> {
        let own = self.own.get(&raw).and_then(Weak::upgrade);
        own.or_else(|| self.adopted.get(&raw).cloned())
    }
}

/// The devices of this process. A forked child begins with none.
static DEVICES: PerProcess<Vec<Arc<OpenDevice>>> = PerProcess::new();

/// The process that first called a driver.
static DRIVERS: ForkSafeMutex<Option<ForkGeneration>> = ForkSafeMutex::new(None);

impl OpenDevice {
    /// The device of that name, not opened yet.
    pub(crate) fn named(name: &str) -> Result<Arc<Self>, Failure> {
        let name = DeviceName::from_str(name).map_err(|said| Failure::invalid(said.to_string()))?;
        Ok(Self::shared(name))
    }

    fn shared(name: DeviceName) -> Arc<Self> {
        let mut devices = DEVICES.lock();
        if let Some(device) = devices.iter().find(|device| device.name == name) {
            return Arc::clone(device);
        }
        let (fork_generation, opened, streams) =
            (ForkGeneration::here(), OnceLock::new(), Mutex::default());
        let (transfers, default_stream) = (OnceLock::new(), OnceLock::new());
        let device =
            Arc::new(Self { name, fork_generation, opened, transfers, streams, default_stream });
        devices.push(Arc::clone(&device));
        device
    }

    /// Every device of this machine: the host, what drivers show, and the simulated one.
    pub(crate) fn all(hardware: Vec<DeviceName>) -> Vec<Arc<Self>> {
        hardware.into_iter().chain([DeviceName::SIM]).map(Self::shared).collect()
    }

    /// An error in a process that was forked since.
    pub(crate) fn check_process(&self) -> Result<(), Failure> {
        Ok(self.fork_generation.check()?)
    }

    /// The device of the HAL, opened by the first call. May take long: call it with the GIL released.
    pub(crate) fn opened(&self) -> Result<&Arc<dyn Device>, Failure> {
        self.fork_generation.check()?;
        if let Some(opened) = self.opened.get() {
            return Ok(opened.get()?);
        }
        // Two threads may both get here; the second drops the device that it opened.
        let opened = LeakOnFork::new(open(self.name)?);
        Ok(self.opened.get_or_init(|| opened).get()?)
    }

    /// Its transfer engine, made by the first call. Call it with the GIL released.
    pub(crate) fn transfers(&self) -> Result<&TransferEngine, Failure> {
        self.fork_generation.check()?;
        if let Some(engine) = self.transfers.get() {
            return Ok(engine.get()?);
        }
        // Of two threads that get here, one drops the engine that it made.
        let engine = LeakOnFork::new(transfer_engine(self.opened()?)?);
        Ok(self.transfers.get_or_init(|| engine).get()?)
    }

    /// The last transfers of its engine that are over; none if there is no engine.
    pub(crate) fn transfer_history(&self) -> Vec<TransferEvent> {
        let engine = self.transfers.get().and_then(|engine| engine.get().ok());
        engine.map(TransferEngine::history).unwrap_or_default()
    }

    /// The process's pools. A forked child sees only its own.
    pub(crate) fn pools() -> Result<Vec<Pool>, Failure> {
        let devices = DEVICES.lock().clone();
        let open = |device: &&Arc<Self>| device.opened.get().is_some();
        let ours = devices.iter().filter(open).map(|device| device.pool());
        let mut pools = ours.collect::<Result<Vec<Pool>, Failure>>()?;
        for pool in Pool::process_pools() {
            if pools.iter().all(|known| known.id() != pool.id()) {
                pools.push(pool);
            }
        }
        Ok(pools)
    }

    /// The process's pool of the device.
    pub(crate) fn pool(&self) -> Result<Pool, Failure> {
        Ok(Pool::of(self.opened()?)?)
    }

    /// Its name, such as "cuda:0".
    pub(crate) fn name(&self) -> String {
        self.name.to_string()
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> DeviceKind {
        self.name.kind()
    }

    /// Its number among devices of its kind.
    pub(crate) fn ordinal(&self) -> u32 {
        self.name.ordinal()
    }

    /// Whether the host reads and writes its blocks directly.
    pub(crate) fn is_host(&self) -> bool {
        self.name == DeviceName::HOST
    }

    /// The known streams by the driver's handle.
    pub(crate) fn streams(&self) -> Result<MutexGuard<'_, Streams>, Failure> {
        self.fork_generation.check()?;
        Ok(lock(&self.streams))
    }
}

/// A reference-counted stream. Before it ends, or is forgotten, the pools that use it are told: the end by [`Stream`].
pub(crate) struct StreamRef {
    device: Arc<OpenDevice>,
    handle: StreamHandle,
    /// `None` for the default stream, which never ends, and once it was forgotten: the device does not know
    /// it then either.
    stream: Mutex<Option<LeakOnFork<Stream>>>,
    /// Set before its maker destroys it: nothing is enqueued there any more.
    forgotten: AtomicBool,
    /// The other library's stream object, kept alive.
    _maker: Option<Py<PyAny>>,
}

impl StreamRef {
    /// The default stream of a device.
    pub(crate) fn default_of(device: &Arc<OpenDevice>) -> Arc<Self> {
        let make = || Arc::new(Self::of(device, StreamHandle::DEFAULT, None, None));
        Arc::clone(device.default_stream.get_or_init(make))
    }

    /// A new stream.
    pub(crate) fn new(device: &Arc<OpenDevice>, priority: Priority) -> Result<Arc<Self>, Failure> {
        let stream = Stream::new(device.opened()?, priority)?;
        let handle = stream.handle();
        let stream_ref = Arc::new(Self::of(device, handle, Some(stream), None));
        let mut streams = device.streams()?;
        streams.own.retain(|_, stream_ref| stream_ref.strong_count() > 0);
        streams.own.insert(handle.0, Arc::downgrade(&stream_ref));
        drop(streams);
        Ok(stream_ref)
    }

    /// The stream with the driver's handle `raw`: one of ours, or one of another library, whose object is
    /// `maker`.
    pub(crate) fn adopt(
        device: &Arc<OpenDevice>,
        raw: u64,
        maker: Option<Py<PyAny>>,
    ) -> Result<Arc<Self>, Failure> {
        if raw == StreamHandle::DEFAULT.0 {
            return Ok(Self::default_of(device));
        }
        let mut streams = device.streams()?;
        if let Some(stream_ref) = streams.find(raw) {
            return Ok(stream_ref);
        }
        // SAFETY: the program promises that a stream of another library belongs to this device and lives
        // until it is forgotten. The driver cannot check that.
        let stream = unsafe { Stream::foreign(device.opened()?, raw) }?;
        let stream_ref = Self::adopted(device, stream, maker);
        if !stream_ref.is_default() {
            streams.adopted.insert(raw, Arc::clone(&stream_ref));
        }
        Ok(stream_ref)
    }

    /// The stream with the driver's handle `raw`, and whether it is known here. One that is not known is
    /// adopted only until the reference is dropped.
    pub(crate) fn find_or_borrow(
        device: &Arc<OpenDevice>,
        raw: u64,
    ) -> Result<(Arc<Self>, bool), Failure> {
        if raw == StreamHandle::DEFAULT.0 {
            return Ok((Self::default_of(device), true));
        }
        // A statement of its own: a match would hold the lock to its end.
        let known = device.streams()?.find(raw);
        if let Some(stream_ref) = known {
            return Ok((stream_ref, true));
        }
        // SAFETY: as in `adopt`, for this one call, in which no pool is given it.
        let stream = unsafe { Stream::borrowed(device.opened()?, raw) }?;
        let stream_ref = Self::adopted(device, stream, None);
        let known = stream_ref.is_default();
        Ok((stream_ref, known))
    }

    fn adopted(device: &Arc<OpenDevice>, stream: Stream, maker: Option<Py<PyAny>>) -> Arc<Self> {
        let handle = stream.handle();
        if handle == StreamHandle::DEFAULT {
            return Self::default_of(device);
        }
        Arc::new(Self::of(device, handle, Some(stream), maker))
    }

    fn of(
        device: &Arc<OpenDevice>,
        handle: StreamHandle,
        stream: Option<Stream>,
        maker: Option<Py<PyAny>>,
    ) -> Self {
        let (device, stream) = (Arc::clone(device), Mutex::new(stream.map(LeakOnFork::new)));
        Self { device, handle, stream, forgotten: AtomicBool::new(false), _maker: maker }
    }

    /// The handle, for calls of the device.
    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// The driver's handle, for other libraries.
    pub(crate) fn raw(&self) -> Result<u64, Failure> {
        let streams = self.device.opened()?.foreign_streams();
        Ok(streams.map_or(self.handle.0, |streams| streams.raw_stream(self.handle)))
    }

    /// Its device.
    pub(crate) fn device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    fn is_default(&self) -> bool {
        self.handle == StreamHandle::DEFAULT
    }

    /// Waits until all its work is done.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        Ok(self.device.opened()?.synchronize_stream(self.handle)?)
    }

    /// This stream, or the default stream once this one was forgotten.
    /// Whether all its work is done.
    pub(crate) fn is_done(&self) -> Result<bool, Failure> {
        Ok(self.device.opened()?.query_stream(self.handle())? == Progress::Done)
    }

    pub(crate) fn live_or_default(self: &Arc<Self>) -> Arc<Self> {
        if self.is_forgotten() { Self::default_of(&self.device) } else { Arc::clone(self) }
    }

    /// An error once it was forgotten.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_forgotten() {
            return Err(Failure::closed("the stream was forgotten; adopt() takes it again"));
        }
        Ok(())
    }

    fn is_forgotten(&self) -> bool {
        // Relaxed: the program that destroys the stream synchronises with the threads that use it.
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Stops using the stream before its maker destroys it, even while references exist: the default stream
    /// waits for all its work and replaces it. An error leaves the stream as it was.
    pub(crate) fn forget(&self) -> Result<(), Failure> {
        Self::default_of(&self.device).wait_for(self)?;
        for pool in Pool::all_of(self.device.opened()?) {
            pool.forget_stream(self.handle)?;
        }
        self.forgotten.store(true, Ordering::Relaxed);
        // Otherwise a device-wide synchronisation would use the destroyed stream. Dropped without the lock,
        // since the device takes its own.
        let known = lock(&self.stream).take();
        drop(known);
        Ok(())
    }

    /// Makes later work of this stream wait, on the device, for all work that `earlier` has now.
    pub(crate) fn wait_for(&self, earlier: &Self) -> Result<(), Failure> {
        if self.handle == earlier.handle {
            return Ok(());
        }
        let device = self.device.opened()?;
        let event = Event::new(device, EventKind::Order)?;
        device.record_event(event.handle(), earlier.handle)?;
        Ok(device.wait_event(self.handle, event.handle())?)
    }
}

/// An error where a driver was initialised before this process was forked: a child cannot use it, and
/// calling it may never return.
pub(crate) fn check_drivers() -> Result<(), Failure> {
    let fork_generation = *DRIVERS.lock().get_or_insert_with(ForkGeneration::here);
    if !fork_generation.is_stale() {
        return Ok(());
    }
    Err(Failure::unsupported(
        "CUDA was initialised before the process forked, and a child cannot use it; start children with \
         multiprocessing's \"spawn\""
            .to_owned(),
    ))
}

/// The host, and the devices that drivers show to this process: none without a driver, or where this process cannot use
/// it.
pub(crate) fn present() -> Vec<DeviceName> {
    check_drivers().map_or_else(|_| vec![DeviceName::HOST], |()| devices::all())
}

/// PyTorch, the C functions and Python share the devices of drivers.
fn open(name: DeviceName) -> Result<Arc<dyn Device>, Failure> {
    if name.is_hardware() {
        check_drivers()?;
    }
    Ok(name.open()?)
}

/// Somewhere memory lives and work runs. The same name is the same device, for the whole process.
#[pyclass(name = "Device", module = "forebay", frozen)]
pub(crate) struct PyDevice {
    pub(crate) device: Arc<OpenDevice>,
}

impl PyDevice {
    pub(crate) fn new(device: Arc<OpenDevice>) -> Self {
        Self { device }
    }
}

/// The device that an argument names, by name or as a `Device`.
pub(crate) fn device_argument(argument: &Bound<'_, PyAny>) -> Result<Arc<OpenDevice>, Failure> {
    if let Ok(device) = argument.cast::<PyDevice>() {
        return Ok(Arc::clone(&device.get().device));
    }
    let name: String = argument.extract().map_err(|_| {
        let given = shown(argument);
        Failure::wrong_type(format!(
            "{given} is not a device: expected a forebay.Device or a name such as \"host\", \"cuda:0\", \"opencl:0\" or \
             \"sim\""
        ))
    })?;
    OpenDevice::named(&name)
}

/// The same; the host where none is named.
pub(crate) fn device_or_host(
    argument: Option<&Bound<'_, PyAny>>,
) -> Result<Arc<OpenDevice>, Failure> {
    argument.map_or_else(|| OpenDevice::named("host"), device_argument)
}
