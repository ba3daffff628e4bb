//! Pools that call the program back: before a request is refused, and when the memory pressure changes.

use core::ffi::{c_char, c_void};

use forebay::PoolOptions;
use forebay::report::Shortage;

use crate::device::forebay_device;
use crate::pool::{self, forebay_pool, forebay_pressure};
use crate::status::forebay_status;

/// The figures of a request that is about to be refused.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_shortage {
    /// How many bytes of this structure the library fills: read no field beyond.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// The requested bytes.
    pub requested_bytes: u64,
    /// The contiguous bytes that the request needs, after rounding and with its alignment.
    pub needed_bytes: u64,
    /// The most bytes that the pool may hold.
    pub limit_bytes: u64,
    /// The bytes that the pool holds.
    pub held_bytes: u64,
    /// Those in live blocks.
    pub live_bytes: u64,
    /// Those in free blocks that threads have cached.
    pub cached_bytes: u64,
    /// Those in no live block, cached blocks included.
    pub free_bytes: u64,
    /// The largest free piece for this request.
    pub largest_free_bytes: u64,
    /// The bytes that the device has free.
    pub device_free_bytes: u64,
    /// The bytes of the device that are neither free nor held by this pool.
    pub held_elsewhere_bytes: u64,
}

const _: () = assert!(size_of::<forebay_shortage>() == 88);

impl From<&Shortage> for forebay_shortage {
    #[allow(clippy::cast_possible_truncation, reason = "88")]
    fn from(shortage: &Shortage) -> Self {
        Self {
            struct_size: size_of::<Self>() as u32,
            reserved: 0,
            requested_bytes: shortage.requested.get(),
            needed_bytes: shortage.needed.get(),
            limit_bytes: shortage.limit.get(),
            held_bytes: shortage.held.get(),
            live_bytes: shortage.live.get(),
            cached_bytes: shortage.cached.get(),
            free_bytes: shortage.free.get(),
            largest_free_bytes: shortage.largest_free.get(),
            device_free_bytes: shortage.device_free.get(),
            held_elsewhere_bytes: shortage.held_elsewhere.get(),
        }
    }
}

/// Called before a request is refused, to free memory of the pool or to raise its limit. Returns whether it did:
/// other than 0 if so, and the request is tried again. It is called until the request fits or it returns 0, so it may
/// free one entry of a cache at a time; after 16 calls that made no room, the request is refused. The structure is
/// valid until the callback returns.
pub type forebay_on_shortage =
    Option<unsafe extern "C" fn(context: *mut c_void, shortage: *const forebay_shortage) -> i32>;

/// Called when the memory pressure of a pool changes, from moderate up and back, with the bytes that the pool
/// holds.
pub type forebay_on_pressure =
    Option<unsafe extern "C" fn(context: *mut c_void, level: forebay_pressure, held_bytes: u64)>;

/// The program's pointer, which is handed back to its callbacks and never followed here.
#[derive(Clone, Copy)]
struct Context(*mut c_void);

// SAFETY: the caller of `forebay_pool_create_with_callbacks` promises that any thread may use it.
unsafe impl Send for Context {}
// SAFETY: likewise.
unsafe impl Sync for Context {}

impl Context {
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// As `forebay_pool_create`, with functions that the pool calls: `on_shortage` before it refuses a request,
/// `on_pressure` when its memory pressure changes. Each may be null, and gets `context`. A shortage is told on the
/// thread that allocates, pressure on any thread whose call changed the bytes held, and with the setting
/// `upkeep:on` on the library's own thread too. No lock is held: a callback may allocate, free, and close the
/// pool. Several threads may call at once.
///
/// # Safety
///
/// * The functions can be called with `context` from any thread, until the pool was closed and every call of it
///   has returned; with `upkeep:on`, as long as the process runs, since closing does not wait for that thread.
/// * They return: they neither throw nor jump out.
#[must_use = "there is no pool where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_create_with_callbacks(
    device: forebay_device,
    settings: *const c_char,
    on_shortage: forebay_on_shortage,
    on_pressure: forebay_on_pressure,
    context: *mut c_void,
    pool: *mut forebay_pool,
) -> forebay_status {
    let context = Context(context);
    let add_callbacks = move |mut options: PoolOptions| {
        if let Some(call) = on_shortage {
            options = options.on_shortage(move |shortage| {
                let figures = forebay_shortage::from(shortage);
                // SAFETY: the caller promises that any thread may call it with the context.
                unsafe { call(context.get(), &raw const figures) != 0 }
            });
        }
        if let Some(call) = on_pressure {
            options = options.on_pressure(move |level, held| {
                // SAFETY: likewise.
                unsafe { call(context.get(), level.into(), held.get()) };
            });
        }
        options
    };
    // SAFETY: as the caller promises.
    unsafe { pool::create(device, settings, pool, add_callbacks) }
}
