//! The driver's functions: one list that defines the table and how it is loaded.
//!
//! Each entry has the version that introduced the signature declared here, for `cuGetProcAddress`, and the name under
//! which that version is exported, for `dlsym`. A function the driver lacks returns [`Code::MISSING`].

use core::ffi::{c_char, c_int, c_void};

use super::{
    AccessDescription, AllocationProperties, CUDA, Code, Copy2d, Copy3d, CopyAttributes, Interface,
    MemoryLocation, RawContext, RawEvent, RawFunction, RawMemoryPool, RawModule, RawPage,
    RawStream,
};

/// A function that the driver calls in stream order.
pub type HostFunction = unsafe extern "C" fn(data: *mut c_void);

/// Whether forebay can do without a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Required by every device.
    Required,
    /// Without it, the device lacks the capabilities that depend on it.
    Optional,
}

/// The name of a driver function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The interface it belongs to.
    pub interface: &'static Interface,
    /// Its name in the vendor's documentation.
    pub name: &'static str,
    /// The name under which the version declared here is exported.
    pub export: &'static str,
    /// The interface version that introduced it, as `cuDriverGetVersion` counts.
    pub version: c_int,
    /// Whether forebay can do without it.
    pub need: Need,
}

impl Symbol {
    /// The interface and version that introduced it, as in "CUDA 11.7".
    pub fn since(&self) -> String {
        let (major, minor) = (self.version / 1000, self.version % 1000 / 10);
        format!("{} {major}.{minor}", self.interface.name)
    }
}

/// A function in a table.
#[derive(Clone, Copy, Debug)]
pub struct Function<F> {
    /// The function, if the driver has it.
    address: Option<F>,
    /// The name of the function.
    pub symbol: &'static Symbol,
}

impl<F: Copy> Function<F> {
    /// The driver's function by that name, or `None` if the driver lacks it.
    pub const fn new(address: Option<F>, symbol: &'static Symbol) -> Self {
        Self { address, symbol }
    }

    /// The function, or an error if the driver lacks it.
    pub const fn get(&self) -> Result<F, DriverError> {
        match self.address {
            Some(function) => Ok(function),
            None => Err(DriverError { symbol: self.symbol, code: Code::MISSING }),
        }
    }
}

impl<F> Function<F> {
    /// A function that the driver lacks.
    pub const fn absent(symbol: &'static Symbol) -> Self {
        Self { address: None, symbol }
    }

    /// Whether the driver has it.
    pub const fn is_some(&self) -> bool {
        self.address.is_some()
    }

    /// Whether the driver lacks it.
    pub const fn is_none(&self) -> bool {
        self.address.is_none()
    }

    /// Returns an error for 0 from a function that reported success in allocating memory or creating a stream.
    pub const fn check_allocated(&self, given: u64) -> Outcome {
        if given == 0 {
            return Err(DriverError { symbol: self.symbol, code: Code::ERROR_OUT_OF_MEMORY });
        }
        Ok(())
    }

    /// A function that calls this one: same name, and present if this one is.
    pub fn through<G>(&self, caller: G) -> Function<G> {
        let address = if self.is_some() { Some(caller) } else { None };
        Function { address, symbol: self.symbol }
    }
}

/// A failed driver call: its function and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The function.
    pub symbol: &'static Symbol,
    /// Its answer.
    pub code: Code,
}

impl DriverError {
    /// CUDA's code for what was answered.
    pub fn understood(self) -> Code {
        self.symbol.interface.understood(self.code)
    }
}

impl From<DriverError> for Code {
    fn from(refusal: DriverError) -> Self {
        refusal.code
    }
}

/// What a function gives, or why it was refused.
pub type Outcome<T = ()> = Result<T, DriverError>;

/// Makes a table of functions from a list: `Need field = "name" version (arguments);`, with `as "export"` after the name
/// where that version is exported by another.
#[doc(hidden)]
#[macro_export]
macro_rules! driver_functions {
    ($interface:expr; $(
        $(#[$doc:meta])*
        $need:ident $name:ident = $symbol:literal $(as $export:literal)? $version:literal
            ($($argument:ident: $type:ty),* $(,)?);
    )+) => {
        /// Every function forebay uses, in the order of the table.
        pub const SYMBOLS: &[$crate::sys::Symbol] = &[$(
            $crate::driver_functions!(@symbol $interface, $need $version $symbol $($export)?),
        )+];

        /// The driver's functions, found at run time.
        #[derive(Clone, Copy, Debug)]
        pub struct Symbols {
            $(
                $(#[$doc])*
                pub $name: $crate::sys::Function<
                    unsafe extern "C" fn($($type),*) -> $crate::sys::Code
                >,
            )+
        }

        impl Symbols {
            /// Fills the table with what `find` finds; returns the first required function that is missing as an error.
            ///
            /// # Safety
            ///
            /// * What `find` gives for a symbol is the address of a function with the signature the
            ///   table declares for it, and stays one for the rest of the process.
            pub unsafe fn load(
                find: impl Fn(
                    &'static $crate::sys::Symbol,
                ) -> Option<core::ptr::NonNull<core::ffi::c_void>>,
            ) -> Result<Self, &'static $crate::sys::Symbol> {
                Ok(Self {$(
                    $name: {
                        const SYMBOL: &$crate::sys::Symbol = &$crate::driver_functions!(
                            @symbol $interface, $need $version $symbol $($export)?
                        );
                        let address = find(SYMBOL).map(|function| {
                            // SAFETY: a pointer to a function of this type, as the caller
                            // promised; both are one pointer wide.
                            unsafe {
                                core::mem::transmute::<
                                    core::ptr::NonNull<core::ffi::c_void>,
                                    unsafe extern "C" fn($($type),*) -> $crate::sys::Code,
                                >(function)
                            }
                        });
                        if address.is_none() && SYMBOL.need == $crate::sys::Need::Required {
                            return Err(SYMBOL);
                        }
                        $crate::sys::Function::new(address, SYMBOL)
                    },
                )+})
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                ///
                /// * As the vendor's documentation asks of the caller of the function: what is
                ///   pointed to is there, and handles are live.
                #[allow(clippy::too_many_arguments, reason = "the vendor chose how many")]
                pub unsafe fn $name(&self, $($argument: $type),*) -> $crate::sys::Outcome {
                    let (function, symbol) = (self.$name.get()?, self.$name.symbol);
                    // SAFETY: as the caller promised; the function is of this type, as whoever
                    // filled the table promised.
                    match unsafe { function($($argument),*) } {
                        $crate::sys::Code::SUCCESS => Ok(()),
                        code => Err($crate::sys::DriverError { symbol, code }),
                    }
                }
            )+
        }
    };
    (@symbol $interface:expr, $need:ident $version:literal $symbol:literal) => {
        $crate::driver_functions!(@symbol $interface, $need $version $symbol $symbol)
    };
    (@symbol $interface:expr, $need:ident $version:literal $symbol:literal $export:literal) => {
        $crate::sys::Symbol {
            interface: $interface,
            name: $symbol,
            export: $export,
            version: $version,
            need: $crate::sys::Need::$need,
        }
    };
}

driver_functions! {
    &CUDA;
    /// Initialises the driver; must be the first call.
    Required init = "cuInit" 2000 (flags: u32);
    /// The version of CUDA the driver speaks.
    Required driver_get_version = "cuDriverGetVersion" 2020 (version: *mut c_int);
    /// The name of a code.
    Optional get_error_name = "cuGetErrorName" 6000 (code: Code, name: *mut *const c_char);

    /// The number of devices.
    Required device_get_count = "cuDeviceGetCount" 2000 (count: *mut c_int);
    /// A device by its number.
    Required device_get = "cuDeviceGet" 2000 (device: *mut c_int, ordinal: c_int);
    /// The name of the device.
    Required device_get_name = "cuDeviceGetName" 2000
        (name: *mut c_char, length: c_int, device: c_int);
    /// An attribute of the device.
    Required device_get_attribute = "cuDeviceGetAttribute" 2000
        (value: *mut c_int, attribute: u32, device: c_int);
    /// Whether it reaches a peer's memory.
    Optional device_can_access_peer = "cuDeviceCanAccessPeer" 4000
        (can: *mut c_int, device: c_int, peer: c_int);

    /// The context that all libraries of the process share.
    Required primary_context_retain = "cuDevicePrimaryCtxRetain" 7000
        (context: *mut RawContext, device: c_int);
    /// The calling thread's context.
    Required context_get_current = "cuCtxGetCurrent" 4000 (context: *mut RawContext);
    /// Pushes a context as the calling thread's current one.
    Required context_push = "cuCtxPushCurrent" as "cuCtxPushCurrent_v2" 4000 (context: RawContext);
    /// Undoes that.
    Required context_pop = "cuCtxPopCurrent" as "cuCtxPopCurrent_v2" 4000
        (context: *mut RawContext);
    /// The device of the calling thread's context.
    Required context_get_device = "cuCtxGetDevice" 2000 (device: *mut c_int);
    /// Waits for all work of the calling thread's context.
    Optional context_synchronize = "cuCtxSynchronize" 2000 ();
    /// The priorities streams may have.
    Optional context_priority_range = "cuCtxGetStreamPriorityRange" 5050
        (least: *mut c_int, greatest: *mut c_int);
    /// Lets the current context reach another's memory.
    Optional context_enable_peer = "cuCtxEnablePeerAccess" 4000 (peer: RawContext, flags: u32);
    /// Undoes that.
    Optional context_disable_peer = "cuCtxDisablePeerAccess" 4000 (peer: RawContext);

    /// The free and total memory.
    Required mem_get_info = "cuMemGetInfo" as "cuMemGetInfo_v2" 3020
        (free: *mut u64, total: *mut u64);
    /// Plain memory.
    Required mem_alloc = "cuMemAlloc" as "cuMemAlloc_v2" 3020 (address: *mut u64, size: u64);
    /// Gives plain or managed memory back. Waits for all work of the device.
    Required mem_free = "cuMemFree" as "cuMemFree_v2" 3020 (address: u64);
    /// Pinned memory.
    Optional mem_host_alloc = "cuMemHostAlloc" 2020 (address: *mut u64, size: u64, flags: u32);
    /// Frees pinned memory. Waits for all work of the device.
    Optional mem_free_host = "cuMemFreeHost" 2000 (address: u64);
    /// Pins existing memory in place.
    Optional mem_host_register = "cuMemHostRegister" as "cuMemHostRegister_v2" 6050
        (address: u64, size: u64, flags: u32);
    /// Undoes that.
    Optional mem_host_unregister = "cuMemHostUnregister" 4000 (address: u64);
    /// The device address of pinned memory.
    Optional mem_host_device_pointer = "cuMemHostGetDevicePointer" as "cuMemHostGetDevicePointer_v2" 3020
        (device: *mut u64, host: u64, flags: u32);
    /// Managed memory.
    Optional mem_alloc_managed = "cuMemAllocManaged" 6000
        (address: *mut u64, size: u64, flags: u32);
    /// Moves managed memory, to a device by number or -1.
    Optional mem_prefetch_v1 = "cuMemPrefetchAsync" 8000
        (address: u64, size: u64, device: c_int, stream: RawStream);
    /// Moves managed memory to a location.
    Optional mem_prefetch_v2 = "cuMemPrefetchAsync" as "cuMemPrefetchAsync_v2" 12020
        (address: u64, size: u64, location: MemoryLocation, flags: u32, stream: RawStream);
    /// Says how managed memory will be used, with a device by number or -1.
    Optional mem_advise_v1 = "cuMemAdvise" 8000
        (address: u64, size: u64, advice: u32, device: c_int);
    /// Says how managed memory will be used, with a location.
    Optional mem_advise_v2 = "cuMemAdvise" as "cuMemAdvise_v2" 12020
        (address: u64, size: u64, advice: u32, location: MemoryLocation);
    /// The attributes of an address.
    Required pointer_get_attributes = "cuPointerGetAttributes" 7000
        (count: u32, attributes: *const u32, values: *const *mut c_void, address: u64);

    /// Reserves addresses.
    Optional mem_address_reserve = "cuMemAddressReserve" 10020
        (address: *mut u64, size: u64, alignment: u64, hint: u64, flags: u64);
    /// Frees reserved addresses.
    Optional mem_address_free = "cuMemAddressFree" 10020 (address: u64, size: u64);
    /// A page.
    Optional mem_create = "cuMemCreate" 10020
        (page: *mut RawPage, size: u64, properties: *const AllocationProperties, flags: u64);
    /// Releases a page.
    Optional mem_release = "cuMemRelease" 10020 (page: RawPage);
    /// Maps a page.
    Optional mem_map = "cuMemMap" 10020
        (address: u64, size: u64, offset: u64, page: RawPage, flags: u64);
    /// Unmaps pages.
    Optional mem_unmap = "cuMemUnmap" 10020 (address: u64, size: u64);
    /// Sets access.
    Optional mem_set_access = "cuMemSetAccess" 10020
        (address: u64, size: u64, descriptions: *const AccessDescription, count: u64);
    /// The granularity of pages.
    Optional mem_granularity = "cuMemGetAllocationGranularity" 10020
        (granularity: *mut u64, properties: *const AllocationProperties, option: u32);
    /// A page as something another process can import.
    Optional mem_export = "cuMemExportToShareableHandle" 10020
        (handle: *mut c_void, page: RawPage, kind: u32, flags: u64);
    /// A page another process exported.
    Optional mem_import = "cuMemImportFromShareableHandle" 10020
        (page: *mut RawPage, handle: *mut c_void, kind: u32);

    /// A stream.
    Required stream_create = "cuStreamCreateWithPriority" 5050
        (stream: *mut RawStream, flags: u32, priority: c_int);
    /// Whether its work is done.
    Required stream_query = "cuStreamQuery" 2000 (stream: RawStream);
    /// Waits for its work.
    Required stream_synchronize = "cuStreamSynchronize" 2000 (stream: RawStream);
    /// Makes later work wait for an event.
    Required stream_wait_event = "cuStreamWaitEvent" 3020
        (stream: RawStream, event: RawEvent, flags: u32);
    /// The unique id of a stream.
    Optional stream_get_id = "cuStreamGetId" 12000 (stream: RawStream, id: *mut u64);
    /// The context a stream belongs to.
    Optional stream_get_context = "cuStreamGetCtx" 9020
        (stream: RawStream, context: *mut RawContext);
    /// Whether a stream is being captured into a graph.
    Optional stream_is_capturing = "cuStreamIsCapturing" 10000
        (stream: RawStream, status: *mut u32);
    /// Exchanges this thread's capture mode: how strict the driver is while streams are captured.
    Optional thread_exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" 10010
        (mode: *mut c_int);
    /// Calls a function in stream order.
    Optional launch_host_function = "cuLaunchHostFunc" 10000
        (stream: RawStream, function: HostFunction, data: *mut c_void);
    /// Makes later work wait for a word in memory.
    Optional stream_wait_value = "cuStreamWaitValue32" as "cuStreamWaitValue32_v2" 11070
        (stream: RawStream, address: u64, value: u32, flags: u32);

    /// An event.
    Required event_create = "cuEventCreate" 2000 (event: *mut RawEvent, flags: u32);
    /// Records it after all work of a stream.
    Required event_record = "cuEventRecord" 2000 (event: RawEvent, stream: RawStream);
    /// Whether it was reached.
    Required event_query = "cuEventQuery" 2000 (event: RawEvent);
    /// Waits until it is.
    Required event_synchronize = "cuEventSynchronize" 2000 (event: RawEvent);
    /// The time between two, in milliseconds.
    Required event_elapsed = "cuEventElapsedTime" 2000
        (milliseconds: *mut f32, start: RawEvent, end: RawEvent);

    /// Copies bytes in a row.
    Required memcpy = "cuMemcpyAsync" 4000 (to: u64, from: u64, size: u64, stream: RawStream);
    /// Copies rows.
    Required memcpy_2d = "cuMemcpy2DAsync" as "cuMemcpy2DAsync_v2" 3020
        (copy: *const Copy2d, stream: RawStream);
    /// Copies slices.
    Required memcpy_3d = "cuMemcpy3DAsync" as "cuMemcpy3DAsync_v2" 3020
        (copy: *const Copy3d, stream: RawStream);
    /// Copies many times.
    Optional memcpy_batch = "cuMemcpyBatchAsync" 12080
        (to: *const u64, from: *const u64, sizes: *const u64, count: u64,
         attributes: *const CopyAttributes, first_of_attributes: *const u64, attribute_count: u64,
         failed: *mut u64, stream: RawStream);
    /// Copies between contexts.
    Optional memcpy_peer = "cuMemcpyPeerAsync" 4000
        (to: u64, to_context: RawContext, from: u64, from_context: RawContext, size: u64,
         stream: RawStream);
    /// Fills with one byte.
    Required memset_8 = "cuMemsetD8Async" 3020
        (address: u64, value: u8, count: u64, stream: RawStream);
    /// Fills with two bytes.
    Required memset_16 = "cuMemsetD16Async" 3020
        (address: u64, value: u16, count: u64, stream: RawStream);
    /// Fills with four bytes.
    Required memset_32 = "cuMemsetD32Async" 3020
        (address: u64, value: u32, count: u64, stream: RawStream);
    /// Fills rows with one byte.
    Required memset_2d_8 = "cuMemsetD2D8Async" 3020
        (address: u64, pitch: u64, value: u8, width: u64, height: u64, stream: RawStream);
    /// Fills rows with two bytes.
    Required memset_2d_16 = "cuMemsetD2D16Async" 3020
        (address: u64, pitch: u64, value: u16, width: u64, height: u64, stream: RawStream);
    /// Fills rows with four bytes.
    Required memset_2d_32 = "cuMemsetD2D32Async" 3020
        (address: u64, pitch: u64, value: u32, width: u64, height: u64, stream: RawStream);

    /// The driver's own pool of a device.
    Optional mem_pool_default = "cuDeviceGetDefaultMemPool" 11020
        (pool: *mut RawMemoryPool, device: c_int);
    /// Reads an attribute of such a pool.
    Optional mem_pool_get_attribute = "cuMemPoolGetAttribute" 11020
        (pool: RawMemoryPool, attribute: u32, value: *mut c_void);
    /// Sets an attribute of such a pool.
    Optional mem_pool_set_attribute = "cuMemPoolSetAttribute" 11020
        (pool: RawMemoryPool, attribute: u32, value: *mut c_void);
    /// Returns its free memory to the system.
    Optional mem_pool_trim = "cuMemPoolTrimTo" 11020 (pool: RawMemoryPool, keep: u64);

    /// Loads code.
    Optional module_load = "cuModuleLoadData" 2000 (module: *mut RawModule, image: *const c_void);
    /// A kernel in it.
    Optional module_get_function = "cuModuleGetFunction" 2000
        (function: *mut RawFunction, module: RawModule, name: *const c_char);
    /// Runs a kernel.
    Optional launch_kernel = "cuLaunchKernel" 4000
        (function: RawFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
         block_z: u32, shared: u32, stream: RawStream, parameters: *mut *mut c_void,
         extra: *mut *mut c_void);
}

#[cfg(test)]
mod tests;
