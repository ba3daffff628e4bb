//! The host device itself.

use core::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use forebay_core::{Address, Alignment, DeviceOrdinal};
use forebay_hal::{
    Call, Capabilities, Descriptor, Device, DeviceKind, MemoryInfo, PointerClass, Result,
    StreamTable, fresh_handle, optional_groups,
};

use crate::backing::{Backing, MapError};
use crate::settings::Settings;
use crate::space::Space;
use crate::stream::{EVENTS, Queue};
use crate::system::System;
use crate::{HostOptions, errno};

/// The host's memory and threads, as a device.
///
/// Several may be open at once, each with its own memory, tables and streams; events order work across all of them.
/// Dropping one frees its memory once the enqueued work has run, without waiting for it. In a forked child a device of
/// the parent refuses work and leaks on drop: its memory belongs to the parent, and its tables may be half changed.
#[derive(Debug)]
pub struct HostDevice {
    pub(crate) descriptor: Descriptor,
    pub(crate) space: ManuallyDrop<Arc<Space>>,
    /// Tells its events from those of other host devices.
    pub(crate) serial: u64,
    pub(crate) streams: ManuallyDrop<Mutex<StreamTable<Queue>>>,
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        if !self.descriptor.is_from_parent() {
            EVENTS.forget_all_of(self.serial);
            // Every worker ends after its last command, and is not waited for.
            self.streams().all().iter().for_each(|queue| queue.close());
            // SAFETY: nobody uses them after this.
            unsafe {
                ManuallyDrop::drop(&mut self.space);
                ManuallyDrop::drop(&mut self.streams);
            }
        }
    }
}

impl HostOptions {
    /// Opens the host as a device. The error names the options that the system does not grant.
    pub fn open(&self) -> Result<Arc<HostDevice>> {
        HostDevice::open_on(self, &System::here())
    }
}

impl HostDevice {
    /// Opens the host with all its memory; see [`HostOptions`] for less.
    pub fn open() -> Result<Arc<Self>> {
        HostOptions::new().open()
    }

    /// Opens the host with `options` held against what `system` shows of itself.
    pub(crate) fn open_on(options: &HostOptions, system: &System) -> Result<Arc<Self>> {
        let settings = Settings::resolve(options, system)?;
        if !settings.numa.nodes().is_empty() {
            try_policy(&settings)?;
        }
        let mut capabilities = Capabilities::DATA
            | Capabilities::PROMPT_FREE
            | Capabilities::HOST_VISIBLE
            | Capabilities::VIRTUAL_MEMORY
            | Capabilities::PINNED
            | Capabilities::PINNED_MAPPED
            | Capabilities::REGISTER
            | Capabilities::MANAGED
            | Capabilities::SHARE_BY_FD
            | Capabilities::HOST_TASKS
            | Capabilities::DECOMPRESSION
            | Capabilities::TIMED_EVENTS;
        capabilities.set(Capabilities::HUGE_PAGES, settings.huge_granted);
        let descriptor = Descriptor::new(DeviceKind::Host, DeviceOrdinal(0), name(system))
            .driver(driver(system))
            .capabilities(capabilities)
            .alignment(Alignment::CACHE_LINE)
            .processor(true);
        let space = ManuallyDrop::new(Arc::new(Space::new(settings)));
        let streams = ManuallyDrop::new(Mutex::new(StreamTable::new(Arc::new(Queue::new()))));
        Ok(Arc::new(Self { descriptor, space, serial: fresh_handle(), streams }))
    }
}

/// Finds out whether the system takes the policy before anyone counts on it: a container may be
/// forbidden to set one.
fn try_policy(settings: &Settings) -> Result<()> {
    use forebay_hal::Call::Open;
    let unit = settings.unit();
    match Backing::create(unit.bytes(), unit, settings) {
        Ok(_) => Ok(()),
        Err(MapError::Policy(errno)) => Err(settings.numa.refused(Open, errno)),
        Err(MapError::Memory(errno)) => {
            let figures = MemoryInfo { total: settings.limit, ..MemoryInfo::default() };
            Err(errno::no_memory(Open, unit.bytes(), figures, errno))
        }
    }
}

/// The processor's name where the system tells it, as people know the machine by it.
fn name(system: &System) -> String {
    let text = system.text("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        let value = value.trim();
        (key.trim() == "model name" && !value.is_empty()).then(|| value.to_owned())
    });
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The system and its version.
fn driver(system: &System) -> String {
    let release = system.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {}", std::env::consts::OS, release.trim()).trim().to_owned()
}

// SAFETY: the groups given are those whose bits are set, always. What is free is worked out from
// what is held under one lock, so their sum is never above the limit. Dropping the device closes
// its queues and waits for nothing; the space goes with the last worker, and unmapped addresses are
// the system's again, not this device's to give.
unsafe impl Device for HostDevice {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.descriptor.check_process(Call::MemoryInfo)?;
        Ok(self.space.info())
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        self.descriptor.check_process(Call::Classify)?;
        Ok(self.space.table().book.classify(address))
    }

    optional_groups! {
        virtual_memory: VirtualMemory if VIRTUAL_MEMORY;
        pinned_memory: PinnedMemory if PINNED;
        managed_memory: ManagedMemory if MANAGED;
        decompression: Decompression if DECOMPRESSION;
        sharing: Sharing if SHARE_BY_FD;
    }
}

#[cfg(test)]
mod tests;
