//! A simulated machine: its devices, seed, faults, and findings.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Bytes, DeviceOrdinal, PageSize};
use forebay_hal::{Call, Capabilities, Result, invalid, setters};

use crate::cost::CostModel;
use crate::device::SimDevice;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::finding::Finding;

/// The most devices of one machine. More than any real one has, so that a mistyped count is told.
const MAX_DEVICES: u32 = 64;

/// The memory of a simulated device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryModel {
    /// Real bytes, which keep what is written and which the host can inspect.
    #[default]
    Backed,
    /// Only addresses: a replay of hundreds of gigabytes takes no memory.
    Phantom,
}

/// Whether handles of destroyed streams are reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleReuse {
    /// Handles are never reused.
    #[default]
    Never,
    /// The next stream gets the handle, as with drivers: a trap for caches keyed by handle.
    AtOnce,
}

/// The options of a machine. Created by [`SimMachine::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct SimOptions {
    pub(crate) seed: u64,
    pub(crate) devices: u32,
    pub(crate) capacity: Bytes,
    pub(crate) memory: MemoryModel,
    pub(crate) costs: CostModel,
    pub(crate) checked: bool,
    pub(crate) granularity: PageSize,
    pub(crate) handles: HandleReuse,
    pub(crate) without: Capabilities,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            devices: 1,
            capacity: Bytes::gib(8),
            memory: MemoryModel::Backed,
            costs: CostModel::H200,
            checked: true,
            granularity: PageSize::DEVICE,
            handles: HandleReuse::Never,
            without: Capabilities::empty(),
        }
    }
}

impl SimOptions {
    setters! {
        /// Sets the seed that decides the order of work where events leave a choice. The same calls with the same seed
        /// give the same order.
        seed: u64;
        /// Sets the number of devices: 1 by default, 64 at most.
        devices: u32;
        /// Sets the memory of each device: 8 GiB by default. Backed memory is taken from the system only when touched.
        capacity: Bytes;
        /// Sets the memory model.
        memory: MemoryModel;
        /// Sets the cost model.
        costs: CostModel;
        /// Enables or disables the ordering checker, which is enabled by default.
        checked: bool;
        /// Sets the smallest page: 2 MiB by default, 4 KiB at least.
        granularity: PageSize;
        /// Sets whether handles of destroyed streams are reused.
        handles: HandleReuse;
    }

    /// Removes capabilities, as on older hardware.
    pub fn without(mut self, capabilities: Capabilities) -> Self {
        self.without |= capabilities;
        self
    }

    /// Builds the machine. Fails if an option is out of range.
    pub fn build(self) -> Result<SimMachine> {
        let call = Call::Open;
        if self.devices == 0 || self.devices > MAX_DEVICES {
            return Err(invalid(call, "devices", self.devices, format!("1 to {MAX_DEVICES}")));
        }
        if self.granularity < PageSize::HOST || self.granularity.bytes() > Bytes::gib(1) {
            let given = self.granularity;
            return Err(invalid(call, "granularity", given, "a power of two, 4 KiB to 1 GiB"));
        }
        let devices = self.devices;
        let options = self.clone();
        let engine = Arc::new(Engine::new(self));
        let device = |ordinal| {
            Arc::new(SimDevice::new(Arc::clone(&engine), DeviceOrdinal(ordinal), &options))
        };
        Ok(SimMachine { devices: (0..devices).map(device).collect(), engine })
    }
}

/// The number of calls of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    total: u64,
    by_kind: BTreeMap<Call, u64>,
}

impl CallCounts {
    /// All calls.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number of calls of this kind.
    pub fn of(&self, call: Call) -> u64 {
        self.by_kind.get(&call).copied().unwrap_or(0)
    }

    /// Counts one more; gives its number among all and among its kind.
    pub(crate) fn count(&mut self, call: Call) -> (u64, u64) {
        self.total += 1;
        let of_kind = self.by_kind.entry(call).or_default();
        *of_kind += 1;
        (self.total, *of_kind)
    }
}

/// Counts of a machine's live objects. All zero except default streams if nothing leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Plain, pinned, managed and registered memory.
    pub blocks: usize,
    /// Reserved ranges.
    pub regions: usize,
    /// Physical pages, including released ones that are still mapped.
    pub pages: usize,
    /// Mappings.
    pub mappings: usize,
    /// Streams that accept work, including one default stream for each device.
    pub streams: usize,
    /// Adopted foreign streams.
    pub adopted: usize,
    /// Events.
    pub events: usize,
    /// Pieces of work that have not run.
    pub queued: usize,
    /// Bytes of device memory given out.
    pub held: Bytes,
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} blocks, {} regions, {} pages, {} mappings, {} streams, {} adopted, {} events, {} \
             pieces of work, {} held",
            self.blocks,
            self.regions,
            self.pages,
            self.mappings,
            self.streams,
            self.adopted,
            self.events,
            self.queued,
            self.held
        )
    }
}

/// A machine with simulated devices.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_hal::Device;
/// use forebay_sim::SimMachine;
///
/// let machine = SimMachine::builder().seed(7).devices(2).capacity(Bytes::gib(24)).build()?;
/// let device = machine.device(1).ok_or("no such device")?;
/// assert_eq!(device.memory_info()?.free, Bytes::gib(24));
/// assert!(machine.findings().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimMachine {
    engine: Arc<Engine>,
    devices: Vec<Arc<SimDevice>>,
}

impl SimMachine {
    /// Returns options with defaults.
    pub fn builder() -> SimOptions {
        SimOptions::default()
    }

    /// The device with this ordinal, counted from 0; `None` if there is no such device.
    pub fn device(&self, ordinal: u32) -> Option<Arc<SimDevice>> {
        self.devices.get(ordinal as usize).cloned()
    }

    /// Plans a fault.
    pub fn plan(&self, fault: Fault) {
        self.engine.lock().faults().plan(fault);
    }

    /// Forgets the faults planned; a lost device stays lost.
    pub fn clear_faults(&self) {
        self.engine.lock().faults().clear();
    }

    /// Loses a device now. Does nothing for an ordinal without a device.
    pub fn lose(&self, ordinal: u32) {
        self.engine.lose(DeviceOrdinal(ordinal));
    }

    /// The number of calls of each kind, including failed ones.
    pub fn calls(&self) -> CallCounts {
        self.engine.lock().counts.clone()
    }

    /// The host time spent in calls so far, by the cost model.
    pub fn driver_time(&self) -> Duration {
        self.engine.lock().driver_time
    }

    /// The host's clock by the cost model: time spent in calls and in waits.
    pub fn host_time(&self) -> Duration {
        self.engine.lock().host_time
    }

    /// The ordering errors found so far; the first thousand in full.
    pub fn findings(&self) -> Vec<Finding> {
        self.engine.lock().checker.findings().0.to_vec()
    }

    /// The number of ordering errors found so far.
    pub fn finding_count(&self) -> u64 {
        self.engine.lock().checker.findings().1
    }

    /// Forgets the findings.
    pub fn clear_findings(&self) {
        self.engine.lock().checker.clear();
    }

    /// Counts live objects.
    pub fn census(&self) -> Census {
        let state = self.engine.lock();
        let sum = |count: fn(&crate::engine::Space) -> usize| state.spaces.iter().map(count).sum();
        Census {
            blocks: sum(|space| space.book.entries().len() - space.regions().count()),
            regions: sum(|space| space.regions().count()),
            pages: sum(|space| space.book.pages().len()),
            mappings: sum(|space| space.regions().map(|region| region.mappings().len()).sum()),
            streams: state.handles.len(),
            adopted: state.adopted.len(),
            events: state.events.len(),
            queued: state.lanes.values().map(|lane| lane.queue.len()).sum(),
            held: state
                .spaces
                .iter()
                .fold(Bytes::ZERO, |sum, space| sum.saturating_add(space.figures.held)),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
