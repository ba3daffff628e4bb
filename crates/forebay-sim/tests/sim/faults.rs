//! Every call failed in turn, in every way a call can fail: nothing leaks, nothing changes.
// A test that cannot go on says so by panicking.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::{
    Access, Advice, Call, Copy, Decompression, Device, Error, EventHandle, EventKind, Fill,
    ForeignStreams, Location, Lz4Blocks, ManagedMemory, Memory, PageHandle, PageOptions, Pattern,
    PeerCopy, PeerLocation, Peers, PinnedFlags, PinnedMemory, Priority, Result, Sharing,
    StreamHandle, Streams, Transfers, VirtualMemory,
};
use forebay_sim::{Census, Fault, FaultKind, Kernel, SimDevice, SimMachine, When};

const SIZE: Bytes = Bytes::mib(2);

/// What to do when a call fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Forget the fault and make the same call again: it must succeed.
    TryAgain,
    /// Give up, release everything.
    GiveUp,
}

/// A tour of every call of the contract, and what it has made so far.
struct Tour {
    machine: SimMachine,
    here: Arc<SimDevice>,
    there: Arc<SimDevice>,
    then: Then,
    failures: Vec<Error>,
    plain: Vec<(Arc<SimDevice>, Address)>,
    pinned: Vec<Address>,
    registered: Vec<Address>,
    managed: Vec<Address>,
    regions: Vec<Address>,
    pages: Vec<PageHandle>,
    mapped: Vec<Span>,
    streams: Vec<StreamHandle>,
    adopted: Vec<StreamHandle>,
    events: Vec<EventHandle>,
    peers: Vec<DeviceOrdinal>,
}

impl Tour {
    fn new(then: Then) -> Self {
        let machine = SimMachine::builder().devices(2).seed(3).build().unwrap();
        let here = machine.device(0).unwrap();
        let there = machine.device(1).unwrap();
        Self {
            machine,
            here,
            there,
            then,
            failures: Vec::new(),
            plain: Vec::new(),
            pinned: Vec::new(),
            registered: Vec::new(),
            managed: Vec::new(),
            regions: Vec::new(),
            pages: Vec::new(),
            mapped: Vec::new(),
            streams: Vec::new(),
            adopted: Vec::new(),
            events: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// Makes a call. Where it fails, the machine must be as it was before.
    fn call<T>(&mut self, call: impl Fn() -> Result<T>) -> Result<T> {
        let before = self.machine.census();
        let error = match call() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let taken_by_loss = matches!(error, Error::Lost { .. });
        if !taken_by_loss {
            assert_eq!(self.machine.census(), before, "{error} changed something");
        }
        self.failures.push(error.clone());
        if self.then == Then::GiveUp {
            return Err(error);
        }
        self.machine.clear_faults();
        call()
    }

    /// Every call there is, in an order that uses what came before.
    fn go(&mut self, host: &mut [u8]) -> Result<()> {
        let (here, there) = (Arc::clone(&self.here), Arc::clone(&self.there));
        let default = StreamHandle::DEFAULT;
        let stream = self.call(|| here.create_stream(Priority::High))?;
        self.streams.push(stream);
        self.call(|| here.stream_id(stream))?;
        let raw = here.make_foreign_stream();
        // SAFETY: nobody destroys the stream.
        let foreign = self.call(|| unsafe { here.adopt_stream(raw) })?;
        self.adopted.push(foreign);
        let plain = self.call(|| here.allocate(SIZE, Alignment::BLOCK))?;
        self.plain.push((Arc::clone(&here), plain));
        self.call(|| here.memory_info())?;
        self.call(|| here.classify(plain))?;

        let region = self.call(|| here.reserve(Bytes::mib(8), Alignment::DEVICE_PAGE))?;
        self.regions.push(region.start());
        let page = self.call(|| here.create_page(SIZE, PageOptions::shareable()))?;
        self.pages.push(page);
        self.call(|| here.map(region.start(), page))?;
        let mapping = Span::new(region.start(), SIZE).unwrap();
        self.mapped.push(mapping);
        // SAFETY: access is granted, and none taken away.
        self.call(|| unsafe { here.set_access(mapping, Access::ReadWrite, DeviceOrdinal(0)) })?;
        let sent = self.call(|| here.export_page(page))?;
        let same = self.call(|| here.import_page(std::os::fd::AsFd::as_fd(&sent), SIZE))?;
        self.pages.push(same);

        let pinned = self.call(|| here.allocate_pinned(SIZE, PinnedFlags::MAPPED))?;
        self.pinned.push(pinned);
        self.call(|| here.device_address(pinned))?;
        let span = Span::new(Address::of_pointer(host.as_ptr()), Bytes::new(host.len() as u64));
        let span = span.unwrap();
        // SAFETY: the buffer outlives the tour.
        self.call(|| unsafe { here.register(span, PinnedFlags::empty()) })?;
        self.registered.push(span.start());
        let managed = self.call(|| here.allocate_managed(SIZE))?;
        self.managed.push(managed);
        let managed = Span::new(managed, SIZE).unwrap();
        self.call(|| here.prefetch(managed, None, default))?;
        self.call(|| here.advise(managed, Advice::ReadMostly))?;

        let fill = Fill::linear(plain, SIZE, Pattern::U32(0x0102_0304))?;
        // SAFETY: the memory lives until the device was synchronised.
        self.call(|| unsafe { here.fill(&fill, stream) })?;
        let event = self.call(|| here.create_event(EventKind::Timed))?;
        self.events.push(event);
        self.call(|| here.record_event(event, stream))?;
        self.call(|| here.wait_event(default, event))?;
        let [to, from] = [Location::Device(region.start()), Location::Device(plain)];
        let copy = Copy::linear(to, from, SIZE)?;
        // SAFETY: as for the fill.
        self.call(|| unsafe { here.copy(&copy, default) })?;
        let kernel = || Kernel::new("sum").reads(mapping);
        // SAFETY: as for the fill.
        self.call(|| unsafe { here.launch(kernel(), default) })?;
        let at = |start: Address, offset| start.checked_add(Bytes::new(offset)).unwrap();
        let kib = |start| Span::new(start, Bytes::kib(1)).unwrap();
        let (table, statuses) = (at(region.start(), 2048), at(plain, 2048));
        let blocks = Lz4Blocks::new(kib(region.start()), table, kib(plain), 1024, statuses)?;
        // SAFETY: as for the fill.
        self.call(|| unsafe { here.decompress(&blocks, default) })?;
        let ran = Arc::new(AtomicU32::new(0));
        let task = || {
            let ran = Arc::clone(&ran);
            Box::new(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            })
        };
        self.call(|| here.enqueue_host(task(), default))?;

        self.call(|| here.can_reach(DeviceOrdinal(1)))?;
        self.call(|| here.enable_peer(DeviceOrdinal(1)))?;
        self.peers.push(DeviceOrdinal(1));
        let far = self.call(|| there.allocate(SIZE, Alignment::BLOCK))?;
        self.plain.push((Arc::clone(&there), far));
        let to = PeerLocation { device: DeviceOrdinal(1), address: far };
        let from = PeerLocation { device: DeviceOrdinal(0), address: region.start() };
        let copy = PeerCopy::new(to, from, SIZE)?;
        // SAFETY: as for the fill.
        self.call(|| unsafe { here.copy_peer(&copy, default) })?;

        let _ = self.call(|| here.query_event(event))?;
        let _ = self.call(|| here.query_stream(stream))?;
        self.call(|| here.synchronize_event(event))?;
        self.call(|| here.synchronize_stream(stream))?;
        self.call(|| here.elapsed(event, event))?;
        self.call(|| here.synchronize_device())?;
        assert_eq!(ran.load(Ordering::Relaxed), 1, "the host function runs once");
        let far = usize::try_from(far.get()).unwrap();
        // SAFETY: the device was synchronised, and the test kept the address to itself.
        let arrived = unsafe { core::ptr::with_exposed_provenance::<u32>(far).read() };
        assert_eq!(arrived, 0x0102_0304);
        Ok(())
    }

    /// Gives everything back, through calls that may fail too.
    fn release(&mut self) -> Result<()> {
        let here = Arc::clone(&self.here);
        // Where the other device was lost, this one still has work under way.
        if self.then == Then::GiveUp {
            let _ = here.synchronize_device();
        }
        macro_rules! release {
            ($things:ident, $thing:pat => $call:expr) => {
                for $thing in core::mem::take(&mut self.$things) {
                    // SAFETY: the device was synchronised, or is lost; nobody uses any of it.
                    #[allow(unused_unsafe)]
                    let done = self.call(|| unsafe { $call });
                    if self.then == Then::TryAgain {
                        done?;
                    }
                }
            };
        }
        release!(mapped, span => here.unmap(span));
        release!(pages, page => here.release_page(page));
        release!(regions, region => here.release_region(region));
        release!(plain, (ref device, address) => device.free(address));
        release!(pinned, address => here.free_pinned(address));
        release!(registered, address => here.unregister(address));
        release!(managed, address => here.free_managed(address));
        release!(events, event => here.destroy_event(event));
        release!(streams, stream => here.destroy_stream(stream));
        release!(adopted, stream => here.forget_stream(stream));
        release!(peers, peer => here.disable_peer(peer));
        Ok(())
    }
}

/// What a machine of two devices has when nobody uses it.
fn nothing() -> Census {
    SimMachine::builder().devices(2).build().unwrap().census()
}

/// Every call a device can be asked for: all but the one that makes it.
fn every_call() -> impl Iterator<Item = Call> {
    Call::ALL.iter().copied().filter(|&call| call != Call::Open)
}

/// How many calls the tour makes, and that it makes every call there is.
fn calls_of_a_tour() -> u64 {
    let mut host = vec![0_u8; 4096];
    let mut tour = Tour::new(Then::TryAgain);
    tour.go(&mut host).unwrap();
    tour.release().unwrap();
    assert_eq!(tour.machine.findings(), []);
    assert_eq!(tour.machine.census(), nothing());
    for call in every_call() {
        assert!(tour.machine.calls().of(call) > 0, "the tour leaves {call} out");
    }
    tour.machine.calls().total()
}

#[test]
fn a_failed_call_changes_nothing_and_succeeds_the_next_time() {
    let calls = calls_of_a_tour();
    for kind in [FaultKind::OutOfMemory, FaultKind::Transient] {
        for number in 1..=calls {
            let mut host = vec![0_u8; 4096];
            let mut tour = Tour::new(Then::TryAgain);
            tour.machine.plan(Fault::new(When::Call(number), kind));
            tour.go(&mut host).unwrap();
            tour.release().unwrap();
            let [failure] = tour.failures.as_slice() else {
                panic!("call {number}: {:?}", tour.failures)
            };
            let fits = match kind {
                FaultKind::OutOfMemory => matches!(failure, Error::OutOfMemory { .. }),
                _ => matches!(failure, Error::Transient { .. }),
            };
            assert!(fits && failure.may_pass(), "call {number}: {failure}");
            assert_eq!(tour.machine.findings(), [], "call {number}");
            assert_eq!(tour.machine.census(), nothing(), "call {number}, {failure}");
        }
    }
}

#[test]
fn a_device_lost_at_any_call_leaks_nothing() {
    let calls = calls_of_a_tour();
    for number in 1..=calls {
        let mut host = vec![0_u8; 4096];
        let mut tour = Tour::new(Then::GiveUp);
        tour.machine.plan(Fault::new(When::Call(number), FaultKind::Lost));
        if tour.go(&mut host).is_ok() {
            // Lost while releasing, then.
            assert!(tour.failures.is_empty());
        }
        tour.release().unwrap();
        assert!(!tour.failures.is_empty(), "call {number} did not fail");
        for failure in &tour.failures {
            assert!(matches!(failure, Error::Lost { .. }), "call {number}: {failure}");
        }
        assert_eq!(tour.machine.findings(), [], "call {number}");
        assert_eq!(tour.machine.census(), nothing(), "call {number}");
    }
}

#[test]
fn a_fault_by_kind_strikes_that_call_and_no_other() {
    for call in every_call() {
        let mut host = vec![0_u8; 4096];
        let mut tour = Tour::new(Then::TryAgain);
        tour.machine.plan(Fault::new(When::Kind(call, 1), FaultKind::Transient));
        tour.go(&mut host).unwrap();
        tour.release().unwrap();
        let [failure] = tour.failures.as_slice() else { panic!("{call}: {:?}", tour.failures) };
        assert_eq!(failure.call(), call);
    }
}

#[test]
fn a_lost_device_leaves_the_others_alone() {
    let machine = SimMachine::builder().devices(2).build().unwrap();
    machine.lose(0);
    let (lost, well) = (machine.device(0).unwrap(), machine.device(1).unwrap());
    assert!(matches!(lost.memory_info(), Err(Error::Lost { .. })));
    assert!(matches!(lost.synchronize_device(), Err(Error::Lost { .. })));
    assert!(well.memory_info().is_ok());
    assert!(well.synchronize_device().is_ok());
    machine.lose(7);
}

#[test]
fn chance_faults_follow_the_seed() {
    let struck = |seed| -> Vec<bool> {
        let machine = SimMachine::builder().seed(seed).build().unwrap();
        machine.plan(Fault::new(When::PerMillion(200_000), FaultKind::Transient));
        let device = machine.device(0).unwrap();
        (0..200).map(|_| device.memory_info().is_err()).collect()
    };
    let once = struck(5);
    assert_eq!(once, struck(5));
    assert_ne!(once, struck(6));
    let count = once.iter().filter(|&&failed| failed).count();
    assert!((20..60).contains(&count), "{count} of 200 at one in five");
}
