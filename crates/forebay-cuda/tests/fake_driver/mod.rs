//! The fake driver, and what can be set of it.

#![allow(clippy::unwrap_used, reason = "a test's own tool fails the test")]

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use forebay_cuda::sys::Code;
use forebay_cuda::{CudaDevice, CudaDriver};
use forebay_hal::{StreamHandle, Streams};
use libloading::{Library, Symbol};

/// The file cargo builds it as.
const FILE: &str = "libforebay_cuda_fake_driver.so";

/// A driver of its own, with its own devices.
#[allow(dead_code, reason = "not every test looks at the driver")]
pub(crate) struct FakeDriver {
    /// The driver that is tested: this one, or one that calls it.
    pub(crate) driver: &'static CudaDriver,
    pub(crate) library: &'static Library,
}

/// Where cargo has put a library: beside the test, or a folder up.
pub(crate) fn built(file: &str) -> Result<PathBuf, String> {
    let test = std::env::current_exe().map_err(|error| error.to_string())?;
    let folders = test.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(file)).find(|path| path.exists());
    found.ok_or_else(|| format!("{file} is not beside {}", test.display()))
}

/// A file for a copy of a library, which the system takes for another one; it goes with the value.
pub(crate) struct CopyFile(pub(crate) PathBuf);

impl CopyFile {
    /// A copy with these bytes.
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("forebay-fake-{}", std::process::id()));
        let path = folder.join(format!("lib{name}.so"));
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&path, bytes))
            .map_err(|error| format!("no copy at {}: {error}", path.display()))?;
        Ok(Self(path))
    }

    /// The path, as the system's loader wants it.
    pub(crate) fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for CopyFile {
    fn drop(&mut self) {
        // It is loaded for good, as any driver: nothing is left of the file but what is mapped.
        let _ = std::fs::remove_file(&self.0);
        if let Some(folder) = self.0.parent() {
            // Another test of this process may still have its own there.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[allow(dead_code, reason = "tests of other crates load it by their own")]
impl FakeDriver {
    /// The driver as it is.
    pub(crate) fn load(name: &str) -> Result<Self, String> {
        Self::load_with(name, 13_000, 2, &[])
    }

    /// A driver of this version of CUDA, with so many devices, that lacks these functions.
    pub(crate) fn load_with(
        name: &str,
        version: i32,
        devices: u32,
        lacks: &[&str],
    ) -> Result<Self, String> {
        let (file, library) = prepare(name, version, devices, lacks)?;
        let driver = CudaDriver::load_from(&file.path()).map_err(|missing| missing.to_string())?;
        Ok(Self { driver, library })
    }
}

/// A copy of the fake driver, set so and loaded by nobody yet.
pub(crate) fn prepare(
    name: &str,
    version: i32,
    devices: u32,
    lacks: &[&str],
) -> Result<(CopyFile, &'static Library), String> {
    let bytes = std::fs::read(built(FILE)?).map_err(|error| error.to_string())?;
    let file = CopyFile::new(name, &bytes)?;
    // SAFETY: the library has no start-up code but the language's own.
    let library = unsafe { Library::new(&file.0) }.map_err(|error| error.to_string())?;
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the signature is the one it is exported with, here and below.
    unsafe {
        let configure: Symbol<'_, unsafe extern "C" fn(i32, u32)> =
            symbol(library, "forebay_fake_configure")?;
        configure(version, devices);
        let lack: Symbol<'_, unsafe extern "C" fn(*const c_char)> =
            symbol(library, "forebay_fake_lack")?;
        for name in lacks {
            let name = CString::new(*name).map_err(|error| error.to_string())?;
            lack(name.as_ptr());
        }
    }
    Ok((file, library))
}

/// # Safety
///
/// * The library exports it as a `T`.
pub(crate) unsafe fn symbol<'a, T>(
    library: &'a Library,
    name: &str,
) -> Result<Symbol<'a, T>, String> {
    // SAFETY: as the caller promised.
    unsafe { library.get(name.as_bytes()) }.map_err(|error| error.to_string())
}

#[allow(dead_code, reason = "the conformance suite sets no faults")]
impl FakeDriver {
    fn call<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the callers below name functions with the signatures they are exported with.
        *unsafe { symbol::<T>(self.library, name) }.unwrap()
    }

    /// Makes a later call of a function fail; of any for `None`.
    pub(crate) fn fail(&self, name: Option<&str>, after: u64, code: Code) {
        let name = name.map(|name| CString::new(name).unwrap());
        let pointer = name.as_ref().map_or(core::ptr::null(), |name| name.as_ptr());
        let fail: unsafe extern "C" fn(*const c_char, u64, u32) = self.call("forebay_fake_fail");
        // SAFETY: a string that outlives the call, and a code of CUDA's.
        unsafe { fail(pointer, after, code.0) };
    }

    /// Forgets faults that were not due; gives how many.
    pub(crate) fn clear(&self) -> u64 {
        let clear: extern "C" fn() -> u64 = self.call("forebay_fake_clear");
        clear()
    }

    /// How many calls there were.
    pub(crate) fn calls(&self) -> u64 {
        let calls: extern "C" fn() -> u64 = self.call("forebay_fake_calls");
        calls()
    }

    /// How many calls of a function there were.
    pub(crate) fn calls_of(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        let calls: unsafe extern "C" fn(*const c_char) -> u64 = self.call("forebay_fake_calls_of");
        // SAFETY: a string that outlives the call.
        unsafe { calls(name.as_ptr()) }
    }

    /// Begins to capture a stream, in the strictest mode.
    pub(crate) fn begin_capture(&self, stream: u64) {
        let begin: unsafe extern "C" fn(u64, u32) -> Code = self.call("cuStreamBeginCapture_v2");
        // SAFETY: the driver looks the stream up.
        assert_eq!(unsafe { begin(stream, 0) }, Code::SUCCESS);
    }

    /// Ends the capture of a stream.
    pub(crate) fn end_capture(&self, stream: u64) -> Code {
        let end: unsafe extern "C" fn(u64, *mut u64) -> Code = self.call("cuStreamEndCapture");
        let mut graph = 0;
        // SAFETY: the driver looks the stream up, and the place is our own.
        unsafe { end(stream, &raw mut graph) }
    }

    /// Destroys a stream, as another library does.
    pub(crate) fn destroy_stream(&self, stream: u64) {
        let destroy: unsafe extern "C" fn(u64) -> Code = self.call("cuStreamDestroy_v2");
        // SAFETY: the driver looks the stream up.
        assert_eq!(unsafe { destroy(stream) }, Code::SUCCESS);
    }

    /// Sets the largest pitch of copies, for devices that are opened from now on.
    pub(crate) fn max_pitch(&self, pitch: i32) {
        let set: extern "C" fn(i32) = self.call("forebay_fake_max_pitch");
        set(pitch);
    }

    /// Loses a device.
    pub(crate) fn lose(&self, ordinal: u32) {
        let lose: extern "C" fn(u32) = self.call("forebay_fake_lose");
        lose(ordinal);
    }

    /// A context beside the primary one.
    pub(crate) fn make_context(&self, ordinal: u32) -> u64 {
        let make: extern "C" fn(u32) -> u64 = self.call("forebay_fake_make_context");
        make(ordinal)
    }

    /// Sets what the driver's own pool of a device holds, and what of it is used.
    pub(crate) fn use_pool(&self, ordinal: u32, reserved: u64, used: u64) {
        let set: extern "C" fn(u32, u64, u64) = self.call("forebay_fake_use_pool");
        set(ordinal, reserved, used);
    }

    /// How many allocations, pages and regions there are.
    pub(crate) fn alive(&self) -> u64 {
        let alive: extern "C" fn() -> u64 = self.call("forebay_fake_alive");
        alive()
    }
}

/// Holds a stream until the sender is used or gone.
#[allow(dead_code, reason = "not every test holds streams")]
pub(crate) fn hold(device: &CudaDevice, stream: StreamHandle) -> Sender<()> {
    let (open, gate) = channel::<()>();
    let task = move || {
        let _ = gate.recv_timeout(Duration::from_secs(20));
    };
    device.enqueue_host(Box::new(task), stream).unwrap();
    open
}
