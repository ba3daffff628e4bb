//! The driver that both libraries load.

use std::ffi::{CString, c_char};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use cudarc::driver::CudaContext;
use forebay::cuda::DRIVER_VARIABLE;
use forebay::{CudaDevice, Pool};
use forebay_cudarc::{AdoptedStream, Slice};
use libloading::Library;

/// The file cargo builds the fake driver as.
const FILE: &str = "libforebay_cuda_fake_driver.so";

/// Where the copy of it is that this process was started with.
const COPY: &str = "FOREBAY_TEST_CUDARC_DRIVER";

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// The driver of the tests.
pub(crate) struct Driver {
    fake: Option<Library>,
    /// Shared by those that run beside others.
    turns: RwLock<()>,
}

/// The driver; else why there is none. cudarc finds its library by the loader's path, which is read when a process
/// starts: so this one starts itself again, with a copy of the fake driver under the name that cudarc looks for.
pub(crate) fn start() -> Result<&'static Driver, String> {
    let named = std::env::var("FOREBAY_TEST_DEVICES").unwrap_or_default();
    let fake = if named.split(',').any(|name| name == "cuda:0") {
        CudaDevice::open(0).map_err(|error| error.to_string())?;
        None
    } else {
        let Some(folder) = std::env::var_os(COPY).map(PathBuf::from) else {
            return Err(start_again());
        };
        let path = folder.join("libcuda.so");
        // SAFETY: the library has no start-up code but the language's own.
        let library = unsafe { Library::new(&path) }.map_err(|error| error.to_string())?;
        CudaDevice::open(0).map_err(|error| error.to_string())?;
        // SAFETY: it looks for the library alone, which then stays loaded as cudarc's.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(format!("cudarc does not find {}", path.display()));
        }
        cudarc::driver::result::init().map_err(|error| error.to_string())?;
        // Nothing is left of it but what is mapped.
        let _ = std::fs::remove_dir_all(&folder);
        Some(library)
    };
    Ok(DRIVER.get_or_init(|| Driver { fake, turns: RwLock::new(()) }))
}

/// Starts this program again. Returns only if that fails, with the reason.
fn start_again() -> String {
    let prepared = || -> std::io::Result<PathBuf> {
        let test = std::env::current_exe()?;
        let mut folders = test.ancestors().skip(1).take(2).map(|folder| folder.join(FILE));
        let built = folders.find(|path| path.exists());
        let built = built.ok_or_else(|| std::io::Error::other(format!("{FILE} was not built")))?;
        let folder = tempfile::Builder::new().prefix("forebay-cudarc-").tempdir()?.keep();
        std::fs::copy(built, folder.join("libcuda.so"))?;
        Ok(folder)
    };
    let folder = match prepared() {
        Ok(folder) => folder,
        Err(error) => return error.to_string(),
    };
    let error = again(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    error.to_string()
}

fn again(folder: &Path) -> std::io::Error {
    let test = match std::env::current_exe() {
        Ok(test) => test,
        Err(error) => return error,
    };
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut paths = vec![folder.to_owned()];
    paths.extend(std::env::split_paths(&before).filter(|path| !path.as_os_str().is_empty()));
    let paths = std::env::join_paths(paths).unwrap_or(before);
    Command::new(test)
        .args(std::env::args_os().skip(1))
        .env("LD_LIBRARY_PATH", paths)
        .env(DRIVER_VARIABLE, folder.join("libcuda.so"))
        .env(COPY, folder)
        .exec()
}

impl Driver {
    /// Whether it is the fake one.
    pub(crate) fn is_fake(&self) -> bool {
        self.fake.is_some()
    }

    pub(crate) fn beside_others<T>(&self, act: impl FnOnce() -> T) -> T {
        let _turn = self.turns.read().unwrap_or_else(PoisonError::into_inner);
        act()
    }

    pub(crate) fn alone<T>(&self, act: impl FnOnce() -> T) -> T {
        let _turn = self.turns.write().unwrap_or_else(PoisonError::into_inner);
        act()
    }
}

fn fake<T: Copy>(name: &str) -> T {
    let library = DRIVER.get().and_then(|driver| driver.fake.as_ref()).unwrap();
    // SAFETY: the callers below name functions with the signatures they are exported with.
    *unsafe { library.get::<T>(name.as_bytes()) }.unwrap()
}

/// Makes a later call of a function fail with CUDA's "unknown error".
pub(crate) fn fail(name: &str, after: u64) {
    let name = CString::new(name).unwrap();
    let fail: unsafe extern "C" fn(*const c_char, u64, u32) = fake("forebay_fake_fail");
    // SAFETY: a string that outlives the call, and a code of CUDA's.
    unsafe { fail(name.as_ptr(), after, 999) };
}

/// Forgets faults that were not due, and gives how many there were.
pub(crate) fn clear_faults() -> u64 {
    let clear: extern "C" fn() -> u64 = fake("forebay_fake_clear");
    clear()
}

/// How many calls of a function there were.
pub(crate) fn calls_of(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    let calls: unsafe extern "C" fn(*const c_char) -> u64 = fake("forebay_fake_calls_of");
    // SAFETY: a string that outlives the call.
    unsafe { calls(name.as_ptr()) }
}

/// A context of cudarc's, and a pool in it.
pub(crate) struct Bench {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) pool: Pool,
}

/// How many elements slices of tests have: enough that a copy is no single write.
pub(crate) const LENGTH: usize = 4096;

impl Bench {
    pub(crate) fn new() -> Self {
        let context = CudaContext::new(0).unwrap();
        let device = forebay_cudarc::device(&context).unwrap();
        let pool = Pool::new(&device).unwrap();
        Self { context, device, pool }
    }

    /// A new stream of cudarc's, adopted.
    pub(crate) fn stream(&self) -> Arc<AdoptedStream> {
        AdoptedStream::new(&self.device, &self.context.new_stream().unwrap()).unwrap()
    }

    /// A slice with this value everywhere.
    pub(crate) fn filled(&self, stream: &Arc<AdoptedStream>, value: u32) -> Slice<u32> {
        let mut slice = stream.slice(&self.pool, LENGTH).unwrap();
        stream.cuda().memcpy_htod(&[value; LENGTH], &mut slice).unwrap();
        slice
    }
}

/// Holds all later work of a stream back until the value is dropped.
pub(crate) fn hold(stream: &AdoptedStream) -> Sender<()> {
    let (open, gate) = channel::<()>();
    let task = move || {
        let _ = gate.recv_timeout(Duration::from_secs(20));
    };
    stream.stream().device().enqueue_host(Box::new(task), stream.handle()).unwrap();
    open
}
