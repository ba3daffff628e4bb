//! A device in front of another that a script can interfere with: calls fail, calls are swallowed.
//!
//! The pool under trial stands on the front; the trial's own work goes to the device behind it. So
//! calls are counted and struck that the pool makes, and no others.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span, StreamId};
use forebay_hal::{
    Access, Call, Capabilities, Copy, Descriptor, Device, Error, EventHandle, EventKind, Fill,
    Granularity, HostTask, Memory, MemoryInfo, PageHandle, PageOptions, PointerClass, Priority,
    Progress, Result, StreamHandle, Streams, Transfers, VirtualMemory,
};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    /// There is no memory.
    OutOfMemory,
    /// For once.
    Transient,
    /// The device is gone from this call on: the machine behind loses it, and says so itself.
    Lost,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is made.
    Made,
    /// It fails, and nothing is done.
    Fails(Failing),
    /// Nothing is done, and it says that all is well.
    Swallowed,
}

/// Which calls are struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// None.
    Nothing,
    /// The call with this number among all, from 1.
    Number(u64),
    /// The call with this number among those of one kind, from 1.
    Of(Call, u64),
    /// Every call of one kind.
    Every(Call),
    /// Every call of several kinds.
    EveryOf(&'static [Call]),
    /// Every call of one kind on a thread's own default stream.
    OnThreadsStreams(Call),
}

/// What a front does to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// Which are struck.
    pub(crate) target: Target,
    /// What becomes of them.
    pub(crate) fate: Fate,
}

impl Script {
    /// Nothing is done to any call.
    pub(crate) const NONE: Self = Self { target: Target::Nothing, fate: Fate::Made };

    /// These fail.
    pub(crate) const fn fail(target: Target, failing: Failing) -> Self {
        Self { target, fate: Fate::Fails(failing) }
    }

    /// These are swallowed.
    pub(crate) const fn swallow(target: Target) -> Self {
        Self { target, fate: Fate::Swallowed }
    }
}

#[derive(Debug)]
struct Tally {
    script: Script,
    made: Vec<Call>,
    struck: u64,
    marked: Option<u64>,
}

/// What loses the device behind.
pub(crate) type Lose = Box<dyn Fn() + Send + Sync>;

/// Something to be done in the middle of a call of the pool's, once.
type Hook = Box<dyn FnOnce() + Send>;

/// The device in front.
pub(crate) struct Front {
    hook: Mutex<Option<(Call, Hook)>>,
    after: Mutex<Option<(Call, Hook)>>,
    behind: Arc<dyn Device>,
    lose: Lose,
    descriptor: Descriptor,
    tally: Mutex<Tally>,
}

impl Front {
    /// A front before `behind` that follows `script`, and loses the device by `lose`.
    pub(crate) fn new(behind: Arc<dyn Device>, lose: Lose, script: Script) -> Arc<Self> {
        // Only what a pool uses stands here; a group that is not given has no bit.
        let groups = Capabilities::DATA
            | Capabilities::HOST_VISIBLE
            | Capabilities::VIRTUAL_MEMORY
            | Capabilities::PRIORITIES
            | Capabilities::HOST_TASKS
            | Capabilities::TIMED_EVENTS
            | Capabilities::PER_THREAD_STREAMS
            | Capabilities::PROMPT_FREE;
        let capabilities = behind.descriptor().capabilities & groups;
        let descriptor = behind.descriptor().clone().capabilities(capabilities);
        let tally = Mutex::new(Tally { script, made: Vec::new(), struck: 0, marked: None });
        Arc::new(Self {
            hook: Mutex::default(),
            after: Mutex::default(),
            behind,
            lose,
            descriptor,
            tally,
        })
    }

    /// Does `act` within the next call of a kind, as another thread might just then.
    pub(crate) fn within(&self, call: Call, act: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some((call, Box::new(act)));
    }

    /// The same when the call is done at the device behind and has not returned to the pool.
    pub(crate) fn after(&self, call: Call, act: impl FnOnce() + Send + 'static) {
        *self.after.lock().unwrap_or_else(PoisonError::into_inner) = Some((call, Box::new(act)));
    }

    fn act(of: &Mutex<Option<(Call, Hook)>>, call: Call) {
        let mut hook = of.lock().unwrap_or_else(PoisonError::into_inner);
        let act = hook.take_if(|(kind, _)| *kind == call);
        // What it does may come by here again.
        drop(hook);
        if let Some((_, act)) = act {
            act();
        }
    }

    /// How many calls were made.
    pub(crate) fn calls(&self) -> u64 {
        self.with(|tally| tally.made.len() as u64)
    }

    /// How many calls of a kind were made.
    pub(crate) fn calls_of(&self, call: Call) -> u64 {
        self.with(|tally| tally.made.iter().filter(|&&made| made == call).count() as u64)
    }

    /// How many calls were struck.
    pub(crate) fn struck(&self) -> u64 {
        self.with(|tally| tally.struck)
    }

    /// Marks the end of the program.
    pub(crate) fn mark(&self) {
        self.with(|tally| tally.marked = Some(tally.made.len() as u64));
    }

    /// How many calls were made up to the mark; all where there is none.
    pub(crate) fn calls_to_mark(&self) -> u64 {
        self.with(|tally| tally.marked.unwrap_or(tally.made.len() as u64))
    }

    /// Strikes no call from now on; a lost device stays lost.
    pub(crate) fn relent(&self) {
        self.with(|tally| tally.script = Script::NONE);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Tally) -> T) -> T {
        act(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fate(&self, call: Call, on: Option<StreamHandle>) -> Fate {
        self.with(|tally| {
            tally.made.push(call);
            let of_kind = || tally.made.iter().filter(|&&made| made == call).count() as u64;
            let hit = match tally.script.target {
                Target::Nothing => false,
                Target::Number(number) => number == tally.made.len() as u64,
                Target::Of(kind, number) => kind == call && of_kind() == number,
                Target::Every(kind) => kind == call,
                Target::EveryOf(kinds) => kinds.contains(&call),
                Target::OnThreadsStreams(kind) => {
                    kind == call && on.is_some_and(StreamHandle::is_per_thread)
                }
            };
            if !hit {
                return Fate::Made;
            }
            tally.struck += 1;
            tally.script.fate
        })
    }

    /// Makes a call, or does to it what the script says; `swallowed` is what a swallowed one gives.
    fn through<T>(
        &self,
        call: Call,
        swallowed: impl FnOnce() -> Result<T>,
        make: impl FnOnce(&dyn Device) -> Result<T>,
    ) -> Result<T> {
        self.through_on(call, None, swallowed, make)
    }

    /// The same, of a call on a stream.
    fn through_on<T>(
        &self,
        call: Call,
        on: Option<StreamHandle>,
        swallowed: impl FnOnce() -> Result<T>,
        make: impl FnOnce(&dyn Device) -> Result<T>,
    ) -> Result<T> {
        Self::act(&self.hook, call);
        match self.fate(call, on) {
            Fate::Made => {
                let made = make(&*self.behind);
                Self::act(&self.after, call);
                made
            }
            Fate::Swallowed => swallowed(),
            Fate::Fails(Failing::OutOfMemory) => Err(Error::OutOfMemory {
                call,
                requested: Bytes::ZERO,
                free: Bytes::ZERO,
                total: Bytes::ZERO,
            }),
            Fate::Fails(Failing::Transient) => {
                Err(Error::Transient { call, reason: "on purpose".into() })
            }
            Fate::Fails(Failing::Lost) => {
                (self.lose)();
                make(&*self.behind)
            }
        }
    }

    /// A call that cannot be swallowed, since it gives something: it is made.
    fn giving<T>(&self, call: Call, make: impl Fn(&dyn Device) -> Result<T>) -> Result<T> {
        self.through(call, || make(&*self.behind), &make)
    }

    /// A call that gives nothing.
    fn plain(&self, call: Call, make: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        self.through(call, || Ok(()), make)
    }

    fn memory(&self, call: Call) -> Result<&dyn VirtualMemory> {
        let missing = || Error::Unsupported { call, missing: "the group behind the front".into() };
        self.behind.virtual_memory().ok_or_else(missing)
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({})", self.descriptor)
    }
}

// SAFETY: every promise is that of the device behind, passed on; breaking one on purpose is what
// some trials are about, on simulated devices, where a broken promise is a finding.
unsafe impl Device for Front {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.giving(Call::MemoryInfo, |behind| behind.memory_info())
    }

    fn classify(&self, address: Address) -> Result<Option<PointerClass>> {
        self.giving(Call::Classify, |behind| behind.classify(address))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.behind.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }
}

// SAFETY: as for `Device`.
unsafe impl Memory for Front {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        self.giving(Call::Allocate, |behind| behind.allocate(size, alignment))
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call.
        self.plain(Call::Free, |behind| unsafe { behind.free(address) })
    }
}

// SAFETY: as for `Device`.
unsafe impl Streams for Front {
    fn create_stream(&self, priority: Priority) -> Result<StreamHandle> {
        self.giving(Call::CreateStream, |behind| behind.create_stream(priority))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.plain(Call::DestroyStream, |behind| behind.destroy_stream(stream))
    }

    fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        self.giving(Call::StreamId, |behind| behind.stream_id(stream))
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<Progress> {
        let done = || Ok(Progress::Done);
        self.through(Call::QueryStream, done, |behind| behind.query_stream(stream))
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        self.plain(Call::SynchronizeStream, |behind| behind.synchronize_stream(stream))
    }

    fn synchronize_device(&self) -> Result<()> {
        self.plain(Call::SynchronizeDevice, |behind| behind.synchronize_device())
    }

    fn enqueue_host(&self, task: HostTask, stream: StreamHandle) -> Result<()> {
        // Swallowed, the task is dropped.
        self.plain(Call::EnqueueHost, |behind| behind.enqueue_host(task, stream))
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle> {
        self.giving(Call::CreateEvent, |behind| behind.create_event(kind))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.plain(Call::DestroyEvent, |behind| behind.destroy_event(event))
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let make = |behind: &dyn Device| behind.record_event(event, stream);
        self.through_on(Call::RecordEvent, Some(stream), || Ok(()), make)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.plain(Call::WaitEvent, |behind| behind.wait_event(stream, event))
    }

    fn query_event(&self, event: EventHandle) -> Result<Progress> {
        let done = || Ok(Progress::Done);
        self.through(Call::QueryEvent, done, |behind| behind.query_event(event))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.plain(Call::SynchronizeEvent, |behind| behind.synchronize_event(event))
    }

    fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<Duration> {
        self.giving(Call::Elapsed, |behind| behind.elapsed(start, end))
    }
}

// SAFETY: as for `Device`.
unsafe impl Transfers for Front {
    unsafe fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call.
        self.plain(Call::Copy, |behind| unsafe { behind.copy(copy, stream) })
    }

    unsafe fn fill(&self, fill: &Fill, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call.
        self.plain(Call::Fill, |behind| unsafe { behind.fill(fill, stream) })
    }
}

// SAFETY: as for `Device`.
unsafe impl VirtualMemory for Front {
    fn granularity(&self) -> Granularity {
        // The group is given only where the device behind has it.
        self.memory(Call::Reserve).expect("the device behind has it").granularity()
    }

    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span> {
        self.giving(Call::Reserve, |_| self.memory(Call::Reserve)?.reserve(size, alignment))
    }

    unsafe fn release_region(&self, start: Address) -> Result<()> {
        let call = Call::ReleaseRegion;
        // SAFETY: the caller keeps the contract of the call.
        self.plain(call, |_| unsafe { self.memory(call)?.release_region(start) })
    }

    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle> {
        let call = Call::CreatePage;
        self.giving(call, |_| self.memory(call)?.create_page(size, options))
    }

    fn release_page(&self, page: PageHandle) -> Result<()> {
        self.plain(Call::ReleasePage, |_| self.memory(Call::ReleasePage)?.release_page(page))
    }

    fn map(&self, at: Address, page: PageHandle) -> Result<()> {
        self.plain(Call::Map, |_| self.memory(Call::Map)?.map(at, page))
    }

    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()> {
        let call = Call::SetAccess;
        // SAFETY: the caller keeps the contract of the call.
        self.plain(call, |_| unsafe { self.memory(call)?.set_access(span, access, device) })
    }

    unsafe fn unmap(&self, span: Span) -> Result<()> {
        let call = Call::Unmap;
        // SAFETY: the caller keeps the contract of the call.
        self.plain(call, |_| unsafe { self.memory(call)?.unmap(span) })
    }
}
