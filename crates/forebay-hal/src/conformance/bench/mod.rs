//! The environment of a case: one device, with a record of everything taken from it, which is returned at the end.
//!
//! The bench makes the calls that must succeed; a case that expects an error calls the device itself. `take` allocates
//! and frees, `work` enqueues and waits.

mod take;
mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Address, Bytes, DeviceOrdinal, Span};

use super::Fixture;
use super::data::HostBytes;
use super::verdict::{Failure, Step, Verdict, ensure, ensure_equal};
use crate::{
    Call, Decompression, Device, EventHandle, ForeignStreams, ManagedMemory, MemoryInfo,
    PageHandle, Peers, PinnedMemory, StreamHandle, VirtualMemory,
};

/// The call a case made last, for the words of a deadline.
#[derive(Debug, Default)]
pub(super) struct LastCall(Mutex<Option<Call>>);

impl LastCall {
    fn set(&self, call: Call) {
        *locked(&self.0) = Some(call);
    }

    pub(super) fn name(&self) -> &'static str {
        locked(&self.0).map_or("a call of its own", Call::name)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is told by its own case; what the mutex guards is whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something the device gave, in the order in which it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Event(EventHandle),
    Stream(StreamHandle),
    Mapping(Span),
    Page(PageHandle),
    Region(Address),
    Memory(Address),
    Managed(Address),
    Registered(Address),
    Pinned(Address),
}

/// What a case works with.
pub struct Bench {
    device: Arc<dyn Device>,
    partner: Option<Box<Bench>>,
    foreign: Option<u64>,
    fixture: Arc<dyn Fixture>,
    last: Arc<LastCall>,
    things: Mutex<Vec<Resource>>,
    host: Mutex<Vec<HostBytes>>,
}

impl core::fmt::Debug for Bench {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bench").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Bench {
    pub(super) fn new(
        device: Arc<dyn Device>,
        partner: Option<Arc<dyn Device>>,
        fixture: Arc<dyn Fixture>,
        last: Arc<LastCall>,
    ) -> Self {
        let partner = partner.map(|device| {
            Box::new(Self::new(device, None, Arc::clone(&fixture), Arc::clone(&last)))
        });
        let (things, host) = (Mutex::default(), Mutex::default());
        Self { device, partner, foreign: None, fixture, last, things, host }
    }

    /// The device under test.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The same with a stream of another's making.
    pub(super) fn with_foreign(mut self, raw: Option<u64>) -> Self {
        self.foreign = raw;
        self
    }

    /// The device under test, to be shared.
    pub(super) fn shared(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// A stream of another's making, by the value its maker knows it by.
    pub(super) fn foreign(&self) -> Step<u64> {
        self.foreign.ok_or_else(|| Failure::new("the case did not ask for a foreign stream"))
    }

    /// The bench of the second device of a pair.
    pub(super) fn partner(&self) -> Step<&Self> {
        self.partner.as_deref().ok_or_else(|| Failure::new("the case did not ask for a pair"))
    }

    /// One device more, which the case alone knows.
    pub(super) fn another(&self) -> Step<Arc<dyn Device>> {
        Ok(self.fixture.open()?)
    }

    pub(super) fn ordinal(&self) -> DeviceOrdinal {
        self.device.descriptor().ordinal
    }

    fn group<T>(group: Option<T>, name: &str) -> Step<T> {
        group.ok_or_else(|| {
            Failure::new(format!("the capabilities promise {name}, and the device gives none"))
        })
    }

    pub(super) fn virtual_memory(&self) -> Step<&dyn VirtualMemory> {
        Self::group(self.device.virtual_memory(), "virtual memory")
    }

    pub(super) fn pinned_memory(&self) -> Step<&dyn PinnedMemory> {
        Self::group(self.device.pinned_memory(), "pinned memory")
    }

    pub(super) fn managed_memory(&self) -> Step<&dyn ManagedMemory> {
        Self::group(self.device.managed_memory(), "managed memory")
    }

    pub(super) fn foreign_streams(&self) -> Step<&dyn ForeignStreams> {
        Self::group(self.device.foreign_streams(), "foreign streams")
    }

    pub(super) fn decompression(&self) -> Step<&dyn Decompression> {
        Self::group(self.device.decompression(), "decompression")
    }

    pub(super) fn peers(&self) -> Step<&dyn Peers> {
        Self::group(self.device.peers(), "peers")
    }

    #[cfg(unix)]
    pub(super) fn sharing(&self) -> Step<&dyn crate::Sharing> {
        Self::group(self.device.sharing(), "sharing")
    }

    /// How much memory there is, seen to add up.
    pub(super) fn info(&self) -> Step<MemoryInfo> {
        let info = self.device.memory_info()?;
        let sum = info.free.checked_add(info.held);
        ensure!(
            sum.is_some_and(|sum| sum <= info.total),
            "{} B free and {} B held are more than the {} B there are",
            info.free.get(),
            info.held.get(),
            info.total.get()
        );
        Ok(info)
    }

    /// What the device has given out.
    pub(super) fn held(&self) -> Step<Bytes> {
        Ok(self.info()?.held)
    }

    fn record(&self, thing: Resource) {
        locked(&self.things).push(thing);
    }

    fn forget(&self, thing: Resource) {
        let mut things = locked(&self.things);
        if let Some(place) = things.iter().position(|&known| known == thing) {
            things.swap_remove(place);
        }
    }

    /// Gives everything back, which must succeed and leave the device holding nothing.
    pub(super) fn finish(self) -> Verdict {
        self.clear().map_err(|failure| failure.during("after the case, giving all back"))?;
        if let Some(partner) = &self.partner {
            partner.clear().map_err(|failure| failure.during("giving the partner's back"))?;
        }
        // Only now is no work left that could touch the host's bytes: a case that failed before
        // this line leaves them where they are.
        for bench in core::iter::once(&self).chain(self.partner.as_deref()) {
            locked(&bench.host).clear();
        }
        Ok(())
    }

    fn clear(&self) -> Verdict {
        self.last.set(Call::SynchronizeDevice);
        self.device.synchronize_device()?;
        let mut things = core::mem::take(&mut *locked(&self.things));
        things.sort_unstable();
        for thing in things {
            match thing {
                Resource::Event(event) => self.destroy_event(event)?,
                Resource::Stream(stream) => self.destroy_stream(stream)?,
                Resource::Mapping(span) => self.unmap(span)?,
                Resource::Page(page) => self.release_page(page)?,
                Resource::Region(start) => self.release_region(Span::new(start, Bytes::ZERO)?)?,
                Resource::Memory(address) => self.free(address)?,
                Resource::Managed(address) => self.free_managed(address)?,
                Resource::Registered(start) => self.unregister(start)?,
                Resource::Pinned(address) => self.free_pinned(address)?,
            }
        }
        let left = self.info()?;
        ensure_equal!("bytes held when all was given back", left.held, Bytes::ZERO);
        ensure_equal!("managed bytes when all was given back", left.managed, Bytes::ZERO);
        Ok(())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Bytes still here belong to a case that failed, and a device may yet write to them: they
        // are left to the process.
        core::mem::forget(core::mem::take(&mut *locked(&self.host)));
    }
}
