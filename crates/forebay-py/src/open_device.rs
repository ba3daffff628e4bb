//! The devices of the process, by name. Each is opened once and shared.
//!
//! ```text
//!   "host"     this machine's memory and threads
//!   "cuda:0"   a GPU: the device of the C functions too, so that PyTorch and Python share one pool
//!   "hip:0", "opencl:0", "metal:0"   other drivers' devices
//!   "sim"      a simulated accelerator of 8 GiB
//! ```

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use forebay::bindings::transfer_engine;
use forebay::devices::{self, DeviceName};
use forebay::hal::DeviceKind;
use forebay::transfer::{TransferEngine, TransferEvent};
use forebay::{Device, Pool};
use forebay_sync::fork::{Birth, ForkSafeMutex, LeakOnFork, PerProcess};
use forebay_sync::lock;

use crate::failure::Failure;
use crate::stream::StreamRef;

/// A device of the process, opened when it is first used.
pub(crate) struct OpenDevice {
    name: DeviceName,
    birth: Birth,
    /// Set by the first use: listing GPUs creates no context on any.
    opened: OnceLock<LeakOnFork<Arc<dyn Device>>>,
    /// Its transfer engine, made by the first transfer.
    transfers: OnceLock<LeakOnFork<TransferEngine>>,
    streams: Mutex<Streams>,
    /// Its default stream, once it was asked for.
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
static DRIVERS: ForkSafeMutex<Option<Birth>> = ForkSafeMutex::new(None);

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
        let (birth, opened, streams) = (Birth::here(), OnceLock::new(), Mutex::default());
        let (transfers, default_stream) = (OnceLock::new(), OnceLock::new());
        let device = Arc::new(Self { name, birth, opened, transfers, streams, default_stream });
        devices.push(Arc::clone(&device));
        device
    }

    /// Every device of this machine: the host, what drivers show, and the simulated one.
    pub(crate) fn all(hardware: Vec<DeviceName>) -> Vec<Arc<Self>> {
        hardware.into_iter().chain([DeviceName::SIM]).map(Self::shared).collect()
    }

    /// The device of the HAL, opened by the first call. May take long: call it with the GIL released.
    pub(crate) fn opened(&self) -> Result<&Arc<dyn Device>, Failure> {
        self.birth.check()?;
        if let Some(opened) = self.opened.get() {
            return Ok(opened.get()?);
        }
        // Two threads may both get here; the second drops the device that it opened.
        let opened = LeakOnFork::new(open(self.name)?);
        Ok(self.opened.get_or_init(|| opened).get()?)
    }

    /// Its transfer engine, made by the first call. Call it with the GIL released.
    pub(crate) fn transfers(&self) -> Result<&TransferEngine, Failure> {
        self.birth.check()?;
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

    /// Its default stream. The two refer to each other, but devices live as long as the process.
    pub(crate) fn default_stream(&self, make: impl FnOnce() -> Arc<StreamRef>) -> &Arc<StreamRef> {
        self.default_stream.get_or_init(make)
    }

    /// The known streams by the driver's handle.
    pub(crate) fn streams(&self) -> Result<MutexGuard<'_, Streams>, Failure> {
        self.birth.check()?;
        Ok(lock(&self.streams))
    }
}

/// An error where a driver was initialised before this process was forked: a child cannot use it, and
/// calling it may never return.
pub(crate) fn check_drivers() -> Result<(), Failure> {
    let birth = *DRIVERS.lock().get_or_insert_with(Birth::here);
    if !birth.is_elsewhere() {
        return Ok(());
    }
    Err(Failure::Unsupported(
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
