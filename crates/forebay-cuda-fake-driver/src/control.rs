//! What tests set: the version, what is missing, which call fails and how.

use core::ffi::{CStr, c_char, c_int};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;
use forebay_hal::Streams;

use crate::answer::Answer;
use crate::{captures, machine};

/// What tests have set.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The version of CUDA it says it speaks.
    pub(crate) version: c_int,
    /// How many devices there are.
    pub(crate) devices: u32,
    /// The largest pitch its copies take.
    pub(crate) max_pitch: c_int,
    /// Functions it says it has not.
    pub(crate) missing: Vec<String>,
    faults: Vec<Fault>,
    calls: u64,
    /// How often each function was called.
    calls_of: BTreeMap<String, u64>,
    /// Whether a test claims that a stream is being captured, as far as calls for memory are concerned.
    capturing: bool,
}

/// A call that fails.
#[derive(Debug)]
struct Fault {
    /// The function; any for none.
    name: Option<String>,
    /// How many such calls are still to go before it.
    after: u64,
    code: u32,
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings {
    version: 13_000,
    devices: 2,
    max_pitch: c_int::MAX,
    missing: Vec::new(),
    faults: Vec::new(),
    calls: 0,
    calls_of: BTreeMap::new(),
    capturing: false,
});

pub(crate) fn settings() -> MutexGuard<'static, Settings> {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a call, and fails it where that was set.
pub(crate) fn before(name: &str) -> Answer {
    let mut settings = settings();
    settings.calls += 1;
    *settings.calls_of.entry(name.to_owned()).or_default() += 1;
    captures::refuse_unsafe_call(name, settings.capturing)?;
    let due = settings.faults.iter_mut().position(|fault| {
        let meant = fault.name.as_deref().is_none_or(|wanted| wanted == name);
        let due = meant && fault.after == 0;
        if meant && !due {
            fault.after -= 1;
        }
        due
    });
    match due.map(|place| settings.faults.swap_remove(place).code) {
        // SAFETY: tests give codes of the enumeration, which is as wide as a number.
        Some(code) => Err(unsafe { core::mem::transmute::<u32, CUresult>(code) }),
        None => Ok(()),
    }
}

/// A string of the caller's; empty for null.
///
/// # Safety
///
/// * `text` is null or ends with a zero.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promised.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Sets the version of CUDA and the number of devices. Before `cuInit`.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_configure(version: c_int, devices: u32) {
    let mut settings = settings();
    settings.version = version;
    settings.devices = devices;
}

/// Sets the largest pitch of copies. Before the device is opened by forebay.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_max_pitch(pitch: c_int) {
    settings().max_pitch = pitch;
}

/// Says of a function that the driver has it not. Before the driver is loaded by forebay.
///
/// # Safety
///
/// * `name` ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_fake_lack(name: *const c_char) {
    // SAFETY: as the caller promised.
    let name = unsafe { text(name) };
    settings().missing.push(name);
}

/// Makes the call after `after` more of the function fail with `code`; of any function for null.
///
/// # Safety
///
/// * `name` is null or ends with a zero.
/// * `code` is one of CUDA's.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_fake_fail(name: *const c_char, after: u64, code: u32) {
    // SAFETY: as the caller promised.
    let name = (!name.is_null()).then(|| unsafe { text(name) });
    settings().faults.push(Fault { name, after, code });
}

/// Forgets faults that were not due, and gives how many there were.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_clear() -> u64 {
    core::mem::take(&mut settings().faults).len() as u64
}

/// From now on a stream is being captured, or no longer is: calls for memory are refused to threads that
/// are not relaxed.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_capture(capturing: bool) {
    settings().capturing = capturing;
}

/// How many calls there were.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_calls() -> u64 {
    settings().calls
}

/// How many calls of a function there were.
///
/// # Safety
///
/// * `name` ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_fake_calls_of(name: *const c_char) -> u64 {
    // SAFETY: as the caller promised.
    let name = unsafe { text(name) };
    settings().calls_of.get(&name).copied().unwrap_or(0)
}

/// Loses a device, as a kernel does that writes where it must not.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_lose(ordinal: u32) {
    if let Ok(machine) = machine::machine() {
        machine.sim.lose(ordinal);
    }
}

/// Waits for the work of all devices, also while a stream is captured. The stand-in runtime frees memory after it,
/// as the real driver does.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_wait() {
    if let Ok(machine) = machine::machine() {
        for device in &machine.devices {
            let _ = device.synchronize_device();
        }
    }
}

/// A context beside the primary one of a device.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_make_context(ordinal: u32) -> u64 {
    crate::context::make(ordinal)
}

/// How many allocations, pages and regions there are.
#[unsafe(no_mangle)]
extern "C" fn forebay_fake_alive() -> u64 {
    machine::machine().map_or(0, |machine| {
        let census = machine.sim.census();
        (census.blocks + census.pages + census.regions) as u64
    })
}
