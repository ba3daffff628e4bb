//! Tunes the driver's own pool, for programs that keep using `cudaMallocAsync`: how much it retains, when it reuses
//! memory, and its statistics.
//!
//! forebay's own pool uses none of this.

use core::ffi::c_int;

use forebay_core::Bytes;
use forebay_hal::{Asked, Call, Error, Result};

use crate::device::CudaDevice;
use crate::refusal::words;
use crate::sys::values::{attribute, memory_pool};
use crate::sys::{DriverError, RawMemoryPool, Symbols};

/// Settings for the driver's default pool of a device. Unset ones stay unchanged.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_cuda::{CudaDevice, PoolTuning, tune_default_pool};
///
/// if let Ok(device) = CudaDevice::open(0) {
///     // Keep up to 2 GiB of what is free, where the default is to give all back at every wait.
///     let tuning = PoolTuning::new().release_threshold(Bytes::gib(2));
///     println!("{:?}", tune_default_pool(&device, tuning)?);
/// }
/// # Ok::<(), forebay_hal::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "it does nothing until a pool is tuned with it"]
pub struct PoolTuning {
    release_threshold: Option<Bytes>,
    follow_events: Option<bool>,
    opportunistic: Option<bool>,
    internal_dependencies: Option<bool>,
}

impl PoolTuning {
    /// Changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how much free memory the pool keeps when a stream, event or context is synchronised. The driver's default
    /// is none: all goes back to the system at every synchronisation, and is allocated again afterwards.
    pub fn release_threshold(mut self, keep: Bytes) -> Self {
        self.release_threshold = Some(keep);
        self
    }

    /// Whether a stream may reuse memory that another stream freed, if it waits for an event after the free.
    pub fn follow_events(mut self, follow: bool) -> Self {
        self.follow_events = Some(follow);
        self
    }

    /// Whether a stream may reuse memory that another stream freed, once the free was seen to have run. Addresses then
    /// depend on timing.
    pub fn opportunistic(mut self, allow: bool) -> Self {
        self.opportunistic = Some(allow);
        self
    }

    /// Whether the driver may make a stream wait for another to reuse what it freed.
    pub fn internal_dependencies(mut self, allow: bool) -> Self {
        self.internal_dependencies = Some(allow);
        self
    }

    /// What was said, as the driver takes it: the attribute and its value.
    fn changes(&self) -> impl Iterator<Item = (u32, Value)> {
        let flag = |number, value: Option<bool>| {
            value.map(|value| (number, Value::Flag(c_int::from(value))))
        };
        let threshold = self.release_threshold.map(|keep| Value::Bytes(keep.get()));
        [
            threshold.map(|value| (memory_pool::RELEASE_THRESHOLD, value)),
            flag(memory_pool::REUSE_FOLLOW_EVENTS, self.follow_events),
            flag(memory_pool::REUSE_OPPORTUNISTIC, self.opportunistic),
            flag(memory_pool::REUSE_INTERNAL_DEPENDENCIES, self.internal_dependencies),
        ]
        .into_iter()
        .flatten()
    }
}

/// The state of the driver's default pool of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DefaultPool {
    /// The bytes that the program uses.
    pub used: Bytes,
    /// The peak of `used` since its last reset.
    pub used_high: Bytes,
    /// The bytes that the pool holds.
    pub reserved: Bytes,
    /// The peak of `reserved` since its last reset.
    pub reserved_high: Bytes,
    /// The bytes it keeps at a synchronisation.
    pub release_threshold: Bytes,
    /// See [`PoolTuning::follow_events`].
    pub follow_events: bool,
    /// See [`PoolTuning::opportunistic`].
    pub opportunistic: bool,
    /// See [`PoolTuning::internal_dependencies`].
    pub internal_dependencies: bool,
}

/// A value of an attribute, by the width the driver reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Flag(c_int),
    Bytes(u64),
}

impl Value {
    /// A place for the value of an attribute.
    const fn place(number: u32) -> Self {
        match number {
            memory_pool::REUSE_FOLLOW_EVENTS
            | memory_pool::REUSE_OPPORTUNISTIC
            | memory_pool::REUSE_INTERNAL_DEPENDENCIES => Self::Flag(0),
            _ => Self::Bytes(0),
        }
    }

    fn pointer(&mut self) -> *mut core::ffi::c_void {
        match self {
            Self::Flag(flag) => (&raw mut *flag).cast(),
            Self::Bytes(bytes) => (&raw mut *bytes).cast(),
        }
    }

    const fn bytes(self) -> Bytes {
        match self {
            Self::Bytes(bytes) => Bytes::new(bytes),
            Self::Flag(_) => Bytes::ZERO,
        }
    }

    const fn is_set(self) -> bool {
        matches!(self, Self::Flag(1..))
    }
}

/// The default pool of a device, in whose context calls are made.
struct Handle<'a> {
    device: &'a CudaDevice,
    raw: RawMemoryPool,
}

impl<'a> Handle<'a> {
    fn of(device: &'a CudaDevice) -> Result<Self> {
        let table = device.context.table();
        if table.mem_pool_default.is_some() && device.attribute(attribute::MEMORY_POOLS) == 0 {
            let missing = format!("{} has no pool of the driver's", device.descriptor);
            return Err(Error::Unsupported { call: Call::MemoryInfo, missing: missing.into() });
        }
        let mut raw = RawMemoryPool::NULL;
        let number = device.context.device;
        // SAFETY: the pool is written to a place of our own.
        let asked = |table: &Symbols| unsafe { table.mem_pool_default(&raw mut raw, number) };
        match device.context.call(asked) {
            Ok(()) => Ok(Self { device, raw }),
            Err(refusal) => Err(refused(device, refusal, "device")),
        }
    }

    fn ask(&self, number: u32) -> Result<Value> {
        let mut value = Value::place(number);
        // SAFETY: a device's default pool lives as long as the driver; the place is our own, and as
        // wide as the attribute.
        let asked = |table: &Symbols| unsafe {
            table.mem_pool_get_attribute(self.raw, number, value.pointer())
        };
        let told = self.device.context.call(asked);
        told.map(|()| value).map_err(|refusal| refused(self.device, refusal, "attribute"))
    }

    fn set(&self, number: u32, mut value: Value) -> Result<()> {
        // SAFETY: as above; the driver reads the value.
        let asked = |table: &Symbols| unsafe {
            table.mem_pool_set_attribute(self.raw, number, value.pointer())
        };
        let told = self.device.context.call(asked);
        told.map_err(|refusal| refused(self.device, refusal, "value"))
    }

    fn stand(&self) -> Result<DefaultPool> {
        let bytes = |number| Ok::<_, Error>(self.ask(number)?.bytes());
        let flag = |number| Ok::<_, Error>(self.ask(number)?.is_set());
        Ok(DefaultPool {
            used: bytes(memory_pool::USED_CURRENT)?,
            used_high: bytes(memory_pool::USED_HIGH)?,
            reserved: bytes(memory_pool::RESERVED_CURRENT)?,
            reserved_high: bytes(memory_pool::RESERVED_HIGH)?,
            release_threshold: bytes(memory_pool::RELEASE_THRESHOLD)?,
            follow_events: flag(memory_pool::REUSE_FOLLOW_EVENTS)?,
            opportunistic: flag(memory_pool::REUSE_OPPORTUNISTIC)?,
            internal_dependencies: flag(memory_pool::REUSE_INTERNAL_DEPENDENCIES)?,
        })
    }
}

fn refused(device: &CudaDevice, refusal: DriverError, argument: &'static str) -> Error {
    let given = words(refusal, Some(device.context.table()));
    let asked = Asked::of(argument, given, "what the driver's default pool takes");
    device.refused(Call::MemoryInfo, refusal, &asked)
}

/// Reads the state of the driver's default pool of `device`.
pub fn default_pool(device: &CudaDevice) -> Result<DefaultPool> {
    Handle::of(device)?.stand()
}

/// Changes the driver's default pool of `device`, which serves `cudaMallocAsync`, for the whole process, and returns
/// its new state. A call that fails changes nothing.
pub fn tune_default_pool(device: &CudaDevice, tuning: PoolTuning) -> Result<DefaultPool> {
    let pool = Handle::of(device)?;
    let mut before = Vec::new();
    for (number, value) in tuning.changes() {
        let changed = pool.ask(number).and_then(|old| pool.set(number, value).map(|()| old));
        match changed {
            Ok(old) => before.push((number, old)),
            Err(error) => {
                for (number, old) in before.into_iter().rev() {
                    // The driver took this value before. Where it does not now, the first error is
                    // still the one to tell.
                    let _ = pool.set(number, old);
                }
                return Err(error);
            }
        }
    }
    pool.stand()
}

/// Resets the peaks of the driver's default pool to the current figures.
pub fn reset_default_pool_peaks(device: &CudaDevice) -> Result<()> {
    let pool = Handle::of(device)?;
    // The driver takes no value but 0 here, and it means that.
    pool.set(memory_pool::USED_HIGH, Value::Bytes(0))?;
    pool.set(memory_pool::RESERVED_HIGH, Value::Bytes(0))
}

/// Returns free memory of the driver's default pool to the system, until it holds `keep` bytes. Does not wait: memory
/// that work may still use stays.
pub fn trim_default_pool(device: &CudaDevice, keep: Bytes) -> Result<()> {
    let pool = Handle::of(device)?;
    // SAFETY: a device's default pool lives as long as the driver.
    let asked = |table: &Symbols| unsafe { table.mem_pool_trim(pool.raw, keep.get()) };
    device.context.call(asked).map_err(|refusal| refused(device, refusal, "keep"))
}
