//! What a case works with: one device, everything taken from it on record, all given back at the
//! end.
//!
//! The calls here are those that have to succeed; a case that wants to see a refusal calls the
//! device itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};

use super::Fixture;
use super::data::HostBytes;
use super::verdict::{Failure, Step, Verdict, ensure, ensure_equal};
use crate::{
    Access, Call, Copy, Device, EventHandle, EventKind, Fill, ManagedMemory, MemoryInfo,
    PageHandle, PageOptions, Pattern, Peers, PinnedFlags, PinnedMemory, Place, Priority, Progress,
    StreamHandle, VirtualMemory,
};

/// How long work that nothing holds back may take before a case gives up on it. Less than a gate's
/// patience, so that work that wrongly waits for a gate is told from work that is slow.
const SOON: Duration = Duration::from_secs(2);

/// How long a case watches for something that must not happen. A device that lets it happen does
/// so within microseconds; the rest is for a loaded machine.
const WATCH: Duration = Duration::from_millis(30);

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
enum Thing {
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
    fixture: Arc<dyn Fixture>,
    last: Arc<LastCall>,
    things: Mutex<Vec<Thing>>,
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
        Self { device, partner, fixture, last, things: Mutex::default(), host: Mutex::default() }
    }

    /// The device under test.
    pub fn device(&self) -> &dyn Device {
        &*self.device
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

    fn record(&self, thing: Thing) {
        locked(&self.things).push(thing);
    }

    fn forget(&self, thing: Thing) {
        let mut things = locked(&self.things);
        if let Some(place) = things.iter().position(|&known| known == thing) {
            things.swap_remove(place);
        }
    }

    // Memory.

    pub(super) fn allocate(&self, size: u64) -> Step<Address> {
        self.allocate_aligned(size, Alignment::ONE)
    }

    pub(super) fn allocate_aligned(&self, size: u64, alignment: Alignment) -> Step<Address> {
        self.last.set(Call::Allocate);
        let address = self.device.allocate(Bytes::new(size), alignment)?;
        self.record(Thing::Memory(address));
        Ok(address)
    }

    /// Gives memory back; the case has synchronized what used it.
    pub(super) fn free(&self, address: Address) -> Verdict {
        self.last.set(Call::Free);
        self.forget(Thing::Memory(address));
        // SAFETY: the case has synchronized the streams that used the memory, and drops the
        // address.
        Ok(unsafe { self.device.free(address) }?)
    }

    pub(super) fn allocate_pinned(&self, size: u64, flags: PinnedFlags) -> Step<Address> {
        self.last.set(Call::AllocatePinned);
        let address = self.pinned_memory()?.allocate_pinned(Bytes::new(size), flags)?;
        self.record(Thing::Pinned(address));
        Ok(address)
    }

    pub(super) fn free_pinned(&self, address: Address) -> Verdict {
        self.last.set(Call::FreePinned);
        self.forget(Thing::Pinned(address));
        // SAFETY: as for `free`.
        Ok(unsafe { self.pinned_memory()?.free_pinned(address) }?)
    }

    /// Pins host memory of this bench, which stays to the end of the case.
    pub(super) fn register(&self, bytes: &HostBytes) -> Step<Span> {
        self.last.set(Call::Register);
        let span = Span::new(bytes.address(), bytes.size())?;
        // SAFETY: the bench keeps the bytes until `finish` has unregistered them.
        unsafe { self.pinned_memory()?.register(span, PinnedFlags::empty()) }?;
        self.record(Thing::Registered(span.start()));
        Ok(span)
    }

    pub(super) fn unregister(&self, start: Address) -> Verdict {
        self.last.set(Call::Unregister);
        self.forget(Thing::Registered(start));
        // SAFETY: as for `free`.
        Ok(unsafe { self.pinned_memory()?.unregister(start) }?)
    }

    pub(super) fn allocate_managed(&self, size: u64) -> Step<Address> {
        self.last.set(Call::AllocateManaged);
        let address = self.managed_memory()?.allocate_managed(Bytes::new(size))?;
        self.record(Thing::Managed(address));
        Ok(address)
    }

    pub(super) fn free_managed(&self, address: Address) -> Verdict {
        self.last.set(Call::FreeManaged);
        self.forget(Thing::Managed(address));
        // SAFETY: as for `free`.
        Ok(unsafe { self.managed_memory()?.free_managed(address) }?)
    }

    // Virtual memory.

    /// The least size of a page, and what mapping addresses are multiples of.
    pub(super) fn grain(&self) -> Step<u64> {
        Ok(self.virtual_memory()?.granularity().minimum.bytes().get())
    }

    /// Reserves `size` addresses.
    pub(super) fn region(&self, size: u64) -> Step<Span> {
        self.last.set(Call::Reserve);
        let region = self.virtual_memory()?.reserve(Bytes::new(size), Alignment::ONE)?;
        self.record(Thing::Region(region.start()));
        Ok(region)
    }

    pub(super) fn release_region(&self, region: Span) -> Verdict {
        self.last.set(Call::ReleaseRegion);
        self.forget(Thing::Region(region.start()));
        // SAFETY: as for `free`.
        Ok(unsafe { self.virtual_memory()?.release_region(region.start()) }?)
    }

    pub(super) fn page(&self, size: u64) -> Step<PageHandle> {
        self.page_with(size, PageOptions::default())
    }

    pub(super) fn page_with(&self, size: u64, options: PageOptions) -> Step<PageHandle> {
        self.last.set(Call::CreatePage);
        let page = self.virtual_memory()?.create_page(Bytes::new(size), options)?;
        self.record(Thing::Page(page));
        Ok(page)
    }

    /// Takes note of a page that a call of the case's own gave.
    #[cfg(unix)]
    pub(super) fn adopt(&self, page: PageHandle) -> PageHandle {
        self.record(Thing::Page(page));
        page
    }

    pub(super) fn release_page(&self, page: PageHandle) -> Verdict {
        self.last.set(Call::ReleasePage);
        self.forget(Thing::Page(page));
        Ok(self.virtual_memory()?.release_page(page)?)
    }

    /// Maps a page of `size` bytes, with no access yet.
    pub(super) fn map(&self, at: Address, page: PageHandle, size: u64) -> Step<Span> {
        self.last.set(Call::Map);
        let span = Span::new(at, Bytes::new(size))?;
        self.virtual_memory()?.map(at, page)?;
        self.record(Thing::Mapping(span));
        Ok(span)
    }

    /// Maps a page of `size` bytes for reading and writing.
    pub(super) fn map_open(&self, at: Address, page: PageHandle, size: u64) -> Step<Span> {
        let span = self.map(at, page, size)?;
        self.grant(span, Access::ReadWrite)?;
        Ok(span)
    }

    /// Sets this device's access.
    pub(super) fn grant(&self, span: Span, access: Access) -> Verdict {
        self.last.set(Call::SetAccess);
        // SAFETY: the case has synchronized the work that used the span.
        Ok(unsafe { self.virtual_memory()?.set_access(span, access, self.ordinal()) }?)
    }

    /// Takes away one mapping, or several side by side.
    pub(super) fn unmap(&self, span: Span) -> Verdict {
        self.last.set(Call::Unmap);
        locked(&self.things)
            .retain(|thing| !matches!(thing, Thing::Mapping(known) if span.contains_span(*known)));
        // SAFETY: the case has synchronized the work that used the span.
        Ok(unsafe { self.virtual_memory()?.unmap(span) }?)
    }

    // Streams and events.

    pub(super) fn stream(&self) -> Step<StreamHandle> {
        self.stream_of(Priority::Normal)
    }

    pub(super) fn stream_of(&self, priority: Priority) -> Step<StreamHandle> {
        self.last.set(Call::CreateStream);
        let stream = self.device.create_stream(priority)?;
        self.record(Thing::Stream(stream));
        Ok(stream)
    }

    pub(super) fn destroy_stream(&self, stream: StreamHandle) -> Verdict {
        self.last.set(Call::DestroyStream);
        self.forget(Thing::Stream(stream));
        Ok(self.device.destroy_stream(stream)?)
    }

    pub(super) fn event(&self) -> Step<EventHandle> {
        self.event_of(EventKind::Order)
    }

    pub(super) fn event_of(&self, kind: EventKind) -> Step<EventHandle> {
        self.last.set(Call::CreateEvent);
        let event = self.device.create_event(kind)?;
        self.record(Thing::Event(event));
        Ok(event)
    }

    pub(super) fn destroy_event(&self, event: EventHandle) -> Verdict {
        self.last.set(Call::DestroyEvent);
        self.forget(Thing::Event(event));
        Ok(self.device.destroy_event(event)?)
    }

    /// Makes what comes on `after` wait for what is on `before`, by a new event.
    pub(super) fn order(&self, before: StreamHandle, after: StreamHandle) -> Step<EventHandle> {
        let event = self.event()?;
        self.device.record_event(event, before)?;
        self.device.wait_event(after, event)?;
        Ok(event)
    }

    pub(super) fn synchronize(&self, stream: StreamHandle) -> Verdict {
        self.last.set(Call::SynchronizeStream);
        Ok(self.device.synchronize_stream(stream)?)
    }

    /// Polls until `is_so`; fails with `what` where it is not so soon.
    pub(super) fn soon(&self, what: &str, mut is_so: impl FnMut() -> Step<bool>) -> Verdict {
        let begin = Instant::now();
        loop {
            if is_so()? {
                return Ok(());
            }
            let waited = begin.elapsed();
            ensure!(waited < SOON, "{what}: not so after {} ms", waited.as_millis());
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The stream's work is done before long.
    pub(super) fn done_soon(&self, what: &str, stream: StreamHandle) -> Verdict {
        self.last.set(Call::QueryStream);
        self.soon(what, || Ok(self.device.query_stream(stream)? == Progress::Done))
    }

    /// The stream's work is pending, and stays so while nobody lets it go on.
    pub(super) fn stays_pending(&self, what: &str, stream: StreamHandle) -> Verdict {
        self.last.set(Call::QueryStream);
        let begin = Instant::now();
        while begin.elapsed() < WATCH {
            ensure!(
                self.device.query_stream(stream)? == Progress::Pending,
                "{what}: done after {} ms, before what it waits for",
                begin.elapsed().as_millis()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    // Data.

    /// Host memory that stays to the end of the case.
    pub(super) fn host(&self, bytes: &[u8]) -> HostBytes {
        let bytes = HostBytes::new(bytes);
        locked(&self.host).push(bytes.clone());
        bytes
    }

    /// Host memory of `size` equal bytes.
    pub(super) fn blank(&self, size: u64, byte: u8) -> Step<HostBytes> {
        Ok(self.host(&vec![byte; Bytes::new(size).to_usize()?]))
    }

    /// Enqueues a copy of any shape.
    pub(super) fn enqueue(&self, copy: &Copy, stream: StreamHandle) -> Verdict {
        self.last.set(Call::Copy);
        // SAFETY: host sides are bytes of this bench, kept to the end of the case; device sides
        // are memory the case has and gives back only when the device is done with it.
        Ok(unsafe { self.device.copy(copy, stream) }?)
    }

    /// Enqueues a copy of `size` bytes in a row.
    pub(super) fn copy(&self, to: Place, from: Place, size: u64, stream: StreamHandle) -> Verdict {
        self.enqueue(&Copy::linear(to, from, Bytes::new(size))?, stream)
    }

    /// Enqueues a fill of any shape.
    pub(super) fn enqueue_fill(&self, fill: &Fill, stream: StreamHandle) -> Verdict {
        self.last.set(Call::Fill);
        // SAFETY: as for `enqueue`.
        Ok(unsafe { self.device.fill(fill, stream) }?)
    }

    /// Enqueues a fill of `size` equal bytes.
    pub(super) fn fill(&self, to: Address, size: u64, byte: u8, stream: StreamHandle) -> Verdict {
        self.enqueue_fill(&Fill::linear(to, Bytes::new(size), Pattern::U8(byte))?, stream)
    }

    /// Puts bytes into device memory, and waits.
    pub(super) fn write(&self, to: Address, bytes: &[u8]) -> Verdict {
        let from = self.host(bytes);
        self.copy(Place::Device(to), from.place(), from.size().get(), StreamHandle::DEFAULT)?;
        self.synchronize(StreamHandle::DEFAULT)
    }

    /// What device memory holds, when all that was enqueued on the default stream is done.
    pub(super) fn read(&self, from: Address, size: u64) -> Step<Vec<u8>> {
        let to = self.blank(size, 0x5a)?;
        self.copy(to.place(), Place::Device(from), size, StreamHandle::DEFAULT)?;
        self.synchronize(StreamHandle::DEFAULT)?;
        Ok(to.read())
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
                Thing::Event(event) => self.destroy_event(event)?,
                Thing::Stream(stream) => self.destroy_stream(stream)?,
                Thing::Mapping(span) => self.unmap(span)?,
                Thing::Page(page) => self.release_page(page)?,
                Thing::Region(start) => self.release_region(Span::new(start, Bytes::ZERO)?)?,
                Thing::Memory(address) => self.free(address)?,
                Thing::Managed(address) => self.free_managed(address)?,
                Thing::Registered(start) => self.unregister(start)?,
                Thing::Pinned(address) => self.free_pinned(address)?,
            }
        }
        ensure_equal!("bytes held when all was given back", self.held()?, Bytes::ZERO);
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
