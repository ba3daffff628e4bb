//! The devices of the process, by name: each is opened once, and everybody has the same.
//!
//! ```text
//!   "host"     this machine's memory and threads
//!   "cuda:0"   a GPU: the device object of the C functions, so that PyTorch's blocks and ours are of one pool
//!   "sim"      a simulated accelerator of 8 GiB
//! ```

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use forebay::cuda::CudaDriver;
use forebay::sim::SimMachine;
use forebay::{CudaDevice, Device, DeviceKind, HostDevice, Pool};
use forebay_cli::replay::Place;

use crate::fork::{Birth, Native};
use crate::refusal::Refusal;
use crate::stream::Course;

/// A device of the process.
pub(crate) struct Site {
    place: Place,
    born: Birth,
    /// There once it was needed: listing GPUs makes no context on any.
    opened: OnceLock<Native<Arc<dyn Device>>>,
    streams: Mutex<Streams>,
    /// Its default stream, once someone asked for it.
    default_course: OnceLock<Arc<Course>>,
}

/// The streams that are known by their numbers.
#[derive(Default)]
pub(crate) struct Streams {
    /// Those made here, as long as someone has them.
    pub(crate) own: HashMap<u64, Weak<Course>>,
    /// Those that other libraries made, until they are forgotten.
    pub(crate) adopted: HashMap<u64, Arc<Course>>,
}

impl Streams {
    /// The one of that number.
    pub(crate) fn known(&self, raw: u64) -> Option<Arc<Course>> {
        let own = self.own.get(&raw).and_then(Weak::upgrade);
        own.or_else(|| self.adopted.get(&raw).cloned())
    }
}

/// The sites of this process. Its lock is taken with Python's, and held for a moment: a process does not
/// fork meanwhile.
static SITES: Mutex<Vec<Arc<Site>>> = Mutex::new(Vec::new());

/// The process in which the CUDA driver was first asked for anything.
static CUDA: OnceLock<Birth> = OnceLock::new();

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is changed in one piece, so a panic elsewhere leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Site {
    /// The site of that name. Nothing is opened yet.
    pub(crate) fn named(name: &str) -> Result<Arc<Self>, Refusal> {
        let place = Place::from_str(name)
            .map_err(|said| Refusal::invalid(format!("there is no device {name:?}: {said}")))?;
        Ok(Self::at(place))
    }

    fn at(place: Place) -> Arc<Self> {
        let mut sites = lock(&SITES);
        sites.retain(|site| site.born.is_here());
        if let Some(site) = sites.iter().find(|site| site.place == place) {
            return Arc::clone(site);
        }
        let (born, opened, streams) = (Birth::here(), OnceLock::new(), Mutex::default());
        let default_course = OnceLock::new();
        let site = Arc::new(Self { place, born, opened, streams, default_course });
        sites.push(Arc::clone(&site));
        site
    }

    /// Every device of this machine: the host, its GPUs, and the simulated one.
    /// `gpus` says how many of those.
    pub(crate) fn all(gpus: u32) -> Vec<Arc<Self>> {
        let gpus = (0..gpus).map(Place::Cuda);
        [Place::Host].into_iter().chain(gpus).chain([Place::Sim]).map(Self::at).collect()
    }

    /// The device, opened where it was not yet. May take a while: not under Python's lock.
    pub(crate) fn device(&self) -> Result<&Arc<dyn Device>, Refusal> {
        self.born.check()?;
        if let Some(opened) = self.opened.get() {
            return opened.get();
        }
        // Two threads may both get here; the one that comes second lets its own go.
        let opened = Native::new(open(self.place)?);
        self.opened.get_or_init(|| opened).get()
    }

    /// The process's pools. In a child those of the devices it opened itself: the parent's are not its own.
    pub(crate) fn pools() -> Result<Vec<Pool>, Refusal> {
        let sites = lock(&SITES).clone();
        let open = |site: &&Arc<Self>| site.born.is_here() && site.opened.get().is_some();
        let ours = sites.iter().filter(open).map(|site| site.pool());
        let mut pools = ours.collect::<Result<Vec<Pool>, Refusal>>()?;
        if !Birth::here().is_forked() {
            for pool in Pool::process_pools() {
                if pools.iter().all(|known| known.id() != pool.id()) {
                    pools.push(pool);
                }
            }
        }
        Ok(pools)
    }

    /// The process's pool of the device.
    pub(crate) fn pool(&self) -> Result<Pool, Refusal> {
        Ok(Pool::of(self.device()?)?)
    }

    /// Its name, as "cuda:0".
    pub(crate) fn name(&self) -> String {
        self.place.to_string()
    }

    /// The kind.
    pub(crate) fn kind(&self) -> DeviceKind {
        match self.place {
            Place::Host => DeviceKind::Host,
            Place::Cuda(_) => DeviceKind::Cuda,
            _ => DeviceKind::Sim,
        }
    }

    /// Which of its kind.
    pub(crate) fn ordinal(&self) -> u32 {
        if let Place::Cuda(ordinal) = self.place { ordinal } else { 0 }
    }

    /// Whether the host reads and writes its blocks where they are.
    pub(crate) fn is_host(&self) -> bool {
        self.place == Place::Host
    }

    /// Its default stream. Sites live as long as the process, so that the two have each other harms nobody.
    pub(crate) fn default_course(&self, make: impl FnOnce() -> Arc<Course>) -> &Arc<Course> {
        self.default_course.get_or_init(make)
    }

    /// The streams that are known by their numbers.
    pub(crate) fn streams(&self) -> Result<MutexGuard<'_, Streams>, Refusal> {
        self.born.check()?;
        Ok(lock(&self.streams))
    }
}

/// An error where the CUDA driver was begun before this process was forked: it does not come along, and
/// calling it may never return.
pub(crate) fn cuda_here() -> Result<(), Refusal> {
    if CUDA.get_or_init(Birth::here).is_here() {
        return Ok(());
    }
    Err(Refusal::Unsupported(
        "CUDA was begun before the process forked, and a child cannot use it; start children with \
         multiprocessing's \"spawn\""
            .to_owned(),
    ))
}

/// How many GPUs there are: none where there is no driver, or none that can be used here.
pub(crate) fn gpus() -> u32 {
    let driver = cuda_here().ok().and_then(|()| CudaDriver::load().ok());
    driver.and_then(|driver| driver.device_count().ok()).unwrap_or(0)
}

fn open(place: Place) -> Result<Arc<dyn Device>, Refusal> {
    match place {
        Place::Host => Ok(HostDevice::open()?),
        Place::Cuda(ordinal) => {
            cuda_here()?;
            // The one that PyTorch and the C functions have.
            Ok(CudaDevice::shared(ordinal)?)
        }
        _ => {
            // The checker remembers every use of memory: for tests of the library, not for programs.
            let machine = SimMachine::builder().checked(false).build()?;
            let device = machine.device(0);
            Ok(device.ok_or_else(|| Refusal::invalid("the machine has no device"))?)
        }
    }
}
