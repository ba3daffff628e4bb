//! The driver as models see it: counts and prices its calls, and counts memory in its units.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{
    Access, Call, Device, DeviceKind, Error, PageHandle, PageOptions, Result, VirtualMemory,
};
use forebay_sim::CostModel;

use super::packing::{FreeOutcome, Packing, UNIT};
use crate::DriverUse;

/// Where the time of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CostSource {
    /// The cost table: the device is simulated, and the clock would tell of the simulation.
    Table(CostModel),
    /// The clock.
    Clock,
}

/// A device behind a counter.
///
/// On a simulated device plain memory counts as CUDA's driver takes it: in units of 2 MiB that smaller allocations
/// share. On other devices it counts in pages of the processor.
#[derive(Debug)]
pub struct Driver {
    device: Arc<dyn Device>,
    price: CostSource,
    used: DriverUse,
    packing: Packing,
    /// Plain allocations that take whole units, by address.
    whole: BTreeMap<Address, Bytes>,
    reserved: Bytes,
    capacity: Bytes,
}

impl Driver {
    /// Wraps the driver of `device`.
    pub fn new(device: Arc<dyn Device>) -> Result<Self> {
        let price = match device.descriptor().kind {
            DeviceKind::Sim => CostSource::Table(CostModel::H200),
            _ => CostSource::Clock,
        };
        let capacity = device.memory_info()?.total;
        Ok(Self {
            device,
            price,
            used: DriverUse::default(),
            packing: Packing::default(),
            whole: BTreeMap::new(),
            reserved: Bytes::ZERO,
            capacity,
        })
    }

    /// The memory taken from the device.
    pub fn reserved(&self) -> Bytes {
        self.reserved
    }

    /// The memory that the device has.
    pub fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// The driver calls made so far.
    pub fn used(&self) -> DriverUse {
        self.used
    }

    /// Allocates plain memory.
    pub fn allocate(&mut self, size: Bytes) -> Result<Address> {
        self.used.creates += 1;
        self.priced(Call::Allocate, size, |driver| match driver.price {
            CostSource::Table(_) if Packing::packs(size) => driver.allocate_packed(size),
            CostSource::Table(_) => driver.allocate_whole(size, UNIT),
            CostSource::Clock => driver.allocate_whole(size, Alignment::HOST_PAGE),
        })
    }

    /// Frees plain memory, by its address and requested size.
    pub fn free(&mut self, at: Address, size: Bytes) -> Result<()> {
        self.priced(Call::Free, size, |driver| match driver.packing.free(at) {
            FreeOutcome::Kept => Ok(()),
            FreeOutcome::Emptied(unit) => driver.free_whole(unit),
            FreeOutcome::NotPacked => driver.free_whole(at),
        })
    }

    /// Reserves addresses.
    pub fn reserve(&mut self, size: Bytes) -> Result<Span> {
        self.priced(Call::Reserve, size, |driver| {
            driver.virtual_memory(Call::Reserve)?.reserve(size, UNIT)
        })
    }

    /// Creates a page and maps it at `at`, without access.
    pub fn back(&mut self, at: Address, size: Bytes) -> Result<PageHandle> {
        self.used.creates += 1;
        let page = self.priced(Call::CreatePage, size, |driver| {
            driver.virtual_memory(Call::CreatePage)?.create_page(size, PageOptions::default())
        })?;
        let mapped =
            self.priced(Call::Map, size, |driver| driver.virtual_memory(Call::Map)?.map(at, page));
        if let Err(error) = mapped {
            self.virtual_memory(Call::ReleasePage)?.release_page(page)?;
            return Err(error);
        }
        self.used.maps += 1;
        self.reserved = self.reserved.saturating_add(size);
        Ok(page)
    }

    /// Grants access to adjacent pages of `page` bytes each in `span`: one call, which costs by the page.
    pub fn grant(&mut self, span: Span, page: Bytes) -> Result<()> {
        let pages = span.size().get() / page.get().max(1);
        self.used.time = self.used.time.saturating_add(
            self.tabled(Call::SetAccess, page)
                .saturating_mul(u32::try_from(pages.saturating_sub(1)).unwrap_or(u32::MAX)),
        );
        self.priced(Call::SetAccess, page, |driver| {
            let ordinal = driver.device.descriptor().ordinal;
            let memory = driver.virtual_memory(Call::SetAccess)?;
            // SAFETY: access is granted, not taken away.
            unsafe { memory.set_access(span, Access::ReadWrite, ordinal) }
        })
    }

    /// Unmaps the page that fills `span` and releases it.
    pub fn unback(&mut self, span: Span, page: PageHandle) -> Result<()> {
        let size = span.size();
        self.priced(Call::Unmap, size, |driver| {
            // SAFETY: models run no work of their own, and whoever works on their blocks waits for
            // that before a free, as their order of frees asks: nobody uses the span.
            unsafe { driver.virtual_memory(Call::Unmap)?.unmap(span) }
        })?;
        self.priced(Call::ReleasePage, size, |driver| {
            driver.virtual_memory(Call::ReleasePage)?.release_page(page)
        })?;
        self.reserved = self.reserved.saturating_sub(size);
        Ok(())
    }

    /// The virtual memory calls, or why there are none.
    fn virtual_memory(&self, call: Call) -> Result<&dyn VirtualMemory> {
        self.device.virtual_memory().ok_or_else(|| Error::Unsupported {
            call,
            missing: "virtual memory calls, which this policy is built on".into(),
        })
    }

    /// Packs a small allocation, in a fresh unit where no hole holds it.
    fn allocate_packed(&mut self, size: Bytes) -> Result<Address> {
        if let Some(at) = self.packing.take(size) {
            return Ok(at);
        }
        let unit = self.allocate_whole(UNIT.bytes(), UNIT)?;
        self.packing.add_unit(unit);
        self.packing.take(size).ok_or(Error::OutOfMemory {
            call: Call::Allocate,
            requested: size,
            free: self.capacity.saturating_sub(self.reserved),
            total: self.capacity,
        })
    }

    fn allocate_whole(&mut self, size: Bytes, unit: Alignment) -> Result<Address> {
        let whole = size
            .max(Bytes::new(1))
            .align_up(unit)
            .map_err(|error| Error::quantity(Call::Allocate, "size", &error))?;
        let at = self.device.allocate(whole, unit)?;
        self.whole.insert(at, whole);
        self.reserved = self.reserved.saturating_add(whole);
        Ok(at)
    }

    fn free_whole(&mut self, at: Address) -> Result<()> {
        // SAFETY: models run no work of their own, and whoever works on their blocks waits for that
        // before a free, as their order of frees asks: nobody uses it.
        unsafe { self.device.free(at) }?;
        let size = self.whole.remove(&at).unwrap_or_default();
        self.reserved = self.reserved.saturating_sub(size);
        Ok(())
    }

    /// Makes a call, counts it and what it took.
    fn priced<T>(
        &mut self,
        call: Call,
        size: Bytes,
        make: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.used.calls += 1;
        let began = (self.price == CostSource::Clock).then(Instant::now);
        let made = make(self);
        let took = began.map_or_else(|| self.tabled(call, size), |began| began.elapsed());
        self.used.time = self.used.time.saturating_add(took);
        made
    }

    /// What the table says of a call; nothing where the clock tells.
    fn tabled(&self, call: Call, size: Bytes) -> Duration {
        match self.price {
            CostSource::Table(costs) => costs.call(call, size),
            CostSource::Clock => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::{KIB, MIB};
    use forebay_sim::{MemoryModel, SimMachine};

    use super::*;

    fn driver(capacity: Bytes) -> (SimMachine, Driver) {
        let machine = SimMachine::builder()
            .memory(MemoryModel::Phantom)
            .capacity(capacity)
            .checked(false)
            .build()
            .unwrap();
        let driver = Driver::new(machine.device(0).unwrap()).unwrap();
        (machine, driver)
    }

    #[test]
    fn small_memory_shares_units_and_every_request_is_a_call() {
        let (machine, mut driver) = driver(Bytes::mib(8));
        let size = Bytes::new(700 * KIB);
        let spots: Vec<Address> = (0..4).map(|_| driver.allocate(size).unwrap()).collect();
        assert_eq!(driver.reserved(), Bytes::mib(4), "two to a unit");
        assert_eq!((driver.used().calls, driver.used().creates), (4, 4));
        assert_eq!(driver.used().time, CostModel::H200.call(Call::Allocate, size) * 4);
        let large = driver.allocate(Bytes::new(2 * MIB + 1)).unwrap();
        assert_eq!(driver.reserved(), Bytes::mib(8));
        assert!(matches!(driver.allocate(Bytes::mib(2)), Err(Error::OutOfMemory { .. })));
        driver.free(large, Bytes::new(2 * MIB + 1)).unwrap();
        for at in spots {
            driver.free(at, size).unwrap();
        }
        assert_eq!((driver.reserved(), machine.census().blocks), (Bytes::ZERO, 0));
    }

    #[test]
    fn pages_are_priced_by_the_page_and_leave_nothing_behind() {
        let (machine, mut driver) = driver(Bytes::mib(8));
        let span = driver.reserve(Bytes::mib(64)).unwrap();
        let page = Bytes::mib(4);
        let second = span.start().checked_add(page).unwrap();
        let first = driver.back(span.start(), page).unwrap();
        let next = driver.back(second, page).unwrap();
        let both = Span::new(span.start(), Bytes::mib(8)).unwrap();
        let before = driver.used();
        driver.grant(both, page).unwrap();
        let granted = driver.used().since(before);
        assert_eq!(granted.calls, 1);
        assert_eq!(granted.time, CostModel::H200.call(Call::SetAccess, page) * 2);
        let beyond = second.checked_add(page).unwrap();
        assert!(matches!(driver.back(beyond, page), Err(Error::OutOfMemory { .. })));
        assert_eq!(driver.reserved(), Bytes::mib(8));
        driver.unback(Span::new(span.start(), page).unwrap(), first).unwrap();
        driver.unback(Span::new(second, page).unwrap(), next).unwrap();
        assert_eq!((driver.reserved(), machine.census().pages), (Bytes::ZERO, 0));
    }
}
