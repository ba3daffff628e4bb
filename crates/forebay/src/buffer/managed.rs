//! Buffers in managed memory, which the driver migrates to where it is used.

#[cfg(feature = "host")]
use std::sync::Arc;

use bytemuck::Pod;
use forebay_core::{Bytes, Replica, Span};
#[cfg(feature = "host")]
use forebay_hal::ToDevice;
use forebay_hal::{self as hal, Advice, Call, StreamHandle};

use super::access::Access;
#[cfg(feature = "host")]
use super::managed_source::ManagedSource;
use super::memory::BufferManager;
use super::replicas::Replicas;
use super::store::Migration;
use super::typed::Buffer;
use crate::Result;
#[cfg(feature = "host")]
use crate::{Pool, PoolOptions, Settings};

/// # Managed memory
impl BufferManager {
    /// Makes a manager of buffers in managed memory: one replica, which the driver migrates to where it is used. Fails
    /// with [`Unsupported`](hal::Error::Unsupported) if `device` has none.
    ///
    /// Use it if host and device each touch an unpredictable part of the data. If that part is known, ordinary
    /// buffers copy just that, at full bus speed.
    ///
    /// ```
    /// use forebay::buffer::{Advice, BufferManager, Replica};
    /// use forebay::{HostDevice, StreamHandle};
    ///
    /// let memory = BufferManager::managed(&HostDevice::open()?)?;
    /// let table = memory.buffer_from(&[1.0_f32; 1000])?;
    /// table.advise(Advice::ReadMostly)?;
    /// table.prefetch(Replica::Device, StreamHandle::DEFAULT)?;
    /// // ... launch kernels that read `table.on_device(stream)?`
    /// assert_eq!(table.host()?[7], 1.0);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[cfg(feature = "host")]
    pub fn managed(device: &impl ToDevice) -> Result<Self> {
        let device = device.to_device();
        let source = Arc::new(ManagedSource::new(Arc::clone(&device))?);
        // Other settings of the environment, such as guard pages, apply to memory that the pool maps itself.
        Settings::from_environment()?.switch_on_leak_aids();
        let pool = PoolOptions::new().build_from(&device, source)?;
        Ok(Self::with(&pool, Migration::Driver))
    }

    /// As [`managed`](Self::managed). On a device without managed memory, makes a manager of ordinary buffers instead,
    /// which copy whole ranges and ignore advice.
    #[cfg(feature = "host")]
    pub fn managed_or_emulated(device: &impl ToDevice) -> Result<Self> {
        let device = device.to_device();
        if device.managed_memory().is_some() {
            return Self::managed(&device);
        }
        Ok(Self::with(&Pool::new(&device)?, Migration::Emulated))
    }

    /// Whether the driver migrates the buffers' data. False for ordinary buffers, even if they
    /// [emulate](Self::managed_or_emulated) managed memory.
    pub fn is_managed(&self) -> bool {
        self.migration() == Migration::Driver
    }
}

/// # Managed memory
impl<T: Pod> Buffer<T> {
    /// Advises the driver how the buffer will be used, until it is dropped or resized. This affects where data lives,
    /// never its value. Fails with [`Unsupported`](hal::Error::Unsupported) unless the buffer is from
    /// [`BufferManager::managed`]; does nothing for one that emulates it.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        self.raw.shared()?.advise(advice)
    }

    /// Migrates the data to where it will be used next, in the order of `stream`. Does not wait.
    ///
    /// An ordinary buffer copies what the device lacks. Towards the host it does nothing: use [`fetch`](Self::fetch) to
    /// start that copy.
    pub fn prefetch(&self, to: Replica, stream: impl Into<StreamHandle>) -> Result<()> {
        self.raw.shared()?.prefetch(to, stream.into().resolved())
    }
}

impl Replicas {
    fn advise(&mut self, advice: Advice) -> Result<()> {
        self.check_process()?;
        match self.migration() {
            Migration::Emulated => Ok(()),
            Migration::Copies => {
                let missing =
                    "the buffer copies its data: advice is for buffers of BufferManager::managed";
                let call = Call::Advise;
                Err(hal::Error::Unsupported { call, missing: missing.into() }.into())
            }
            Migration::Driver if self.size() == 0 => Ok(()),
            Migration::Driver => self.device_side(StreamHandle::DEFAULT.resolved())?.advise(advice),
        }
    }

    fn prefetch(&mut self, to: Replica, stream: StreamHandle) -> Result<()> {
        self.check_process()?;
        let copies = self.migration() != Migration::Driver;
        if self.size() == 0 || (copies && to == Replica::Host) {
            return Ok(());
        }
        let address = self.acquire_device(0..self.size(), Access::Read, stream)?;
        let device = self.device_handle();
        if copies {
            return Ok(());
        }
        let Some(managed) = device.managed_memory() else { return Ok(()) };
        let span = Span::new(address, Bytes::new(self.size()))
            .map_err(|error| hal::Error::quantity(Call::Prefetch, "size", &error))?;
        let to = (to == Replica::Device).then_some(device.descriptor().ordinal);
        Ok(managed.prefetch(span, to, stream)?)
    }
}
