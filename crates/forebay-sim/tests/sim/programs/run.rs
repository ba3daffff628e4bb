//! Running a program on the simulated device.

use std::cell::RefCell;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, PageSize, Span};
use forebay_hal::{
    Access, Copy, EventHandle, EventKind, Fill, Location, Memory, PageHandle, PageOptions, Pattern,
    Priority, StreamHandle, Streams, Transfers, VirtualMemory,
};
use forebay_sim::{Finding, Kernel, SimDevice, SimMachine};

use super::program::{FIRST_PAGE, MEMORIES, PLACES, Part, Program, SIZE, Step, compute};

const PAGE: PageSize = PageSize::HOST;

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) memory: Vec<Vec<u8>>,
    /// Races found, by the numbers of their operations.
    pub(crate) races: Vec<(u64, u64)>,
    /// The operations found to use what was taken away.
    pub(crate) taken: Vec<u64>,
}

/// The program's memories, streams and events on a device.
struct Stage {
    device: std::sync::Arc<SimDevice>,
    plain: Vec<Address>,
    region: Span,
    pages: Vec<PageHandle>,
    streams: RefCell<Vec<StreamHandle>>,
    events: Vec<EventHandle>,
}

impl Stage {
    /// Everything made, and every memory zeroed.
    fn set(machine: &SimMachine, program: &Program) -> Self {
        let device = machine.device(0).unwrap();
        let size = Bytes::new(SIZE as u64);
        let plain =
            (0..FIRST_PAGE).map(|_| device.allocate(size, Alignment::BLOCK).unwrap()).collect();
        let count = (MEMORIES - FIRST_PAGE) as u64;
        let places = Bytes::new(count * PLACES as u64 * PAGE.bytes().get());
        let region = device.reserve(places, PAGE.alignment()).unwrap();
        let page = || device.create_page(PAGE.bytes(), PageOptions::default()).unwrap();
        let pages = (0..count).map(|_| page()).collect();
        let stream = || device.create_stream(Priority::Normal).unwrap();
        let streams = RefCell::new((0..program.first_streams).map(|_| stream()).collect());
        let event = || device.create_event(EventKind::Order).unwrap();
        let events = (0..program.events).map(|_| event()).collect();
        let stage = Self { device, plain, region, pages, streams, events };
        for memory in FIRST_PAGE..MEMORIES {
            stage.map(memory, 0);
        }
        stage
    }

    fn address(&self, memory: usize, place: usize) -> Address {
        if memory < FIRST_PAGE {
            return self.plain[memory];
        }
        let index = (memory - FIRST_PAGE) * PLACES + place;
        let offset = PAGE.bytes().checked_mul(index as u64).unwrap();
        self.region.start().checked_add(offset).unwrap()
    }

    fn span(&self, part: Part) -> Span {
        let start = self.address(part.memory, part.place);
        let start = start.checked_add(Bytes::new(part.start as u64)).unwrap();
        Span::new(start, Bytes::new(part.size as u64)).unwrap()
    }

    fn page_span(&self, memory: usize, place: usize) -> Span {
        Span::new(self.address(memory, place), PAGE.bytes()).unwrap()
    }

    fn map(&self, memory: usize, place: usize) {
        let span = self.page_span(memory, place);
        self.device.map(span.start(), self.pages[memory - FIRST_PAGE]).unwrap();
        // SAFETY: access is granted, and none taken away.
        unsafe { self.device.set_access(span, Access::ReadWrite, DeviceOrdinal(0)) }.unwrap();
    }

    fn stream(&self, number: usize) -> StreamHandle {
        self.streams.borrow()[number]
    }

    fn take(&self, step: Step) {
        let device = &self.device;
        // SAFETY, for all of them: memory lives to the end of the test, on the device and on the
        // host; what a broken program takes away too early is what the checker is to find.
        match step {
            Step::Fill { stream, to, value } => {
                let span = self.span(to);
                let fill = Fill::linear(span.start(), span.size(), Pattern::U8(value)).unwrap();
                // SAFETY: as above.
                unsafe { device.fill(&fill, self.stream(stream)) }.unwrap();
            }
            Step::Copy { stream, to, from } => {
                let [to, from] = [self.span(to), self.span(from)];
                let place = |span: Span| Location::Device(span.start());
                let copy = Copy::linear(place(to), place(from), to.size()).unwrap();
                // SAFETY: as above.
                unsafe { device.copy(&copy, self.stream(stream)) }.unwrap();
            }
            Step::Kernel { stream, to, from, add } => {
                let [to, from] = [self.span(to), self.span(from)];
                let kernel = Kernel::new("compute").reads(from).writes(to).body(move |memory| {
                    let read = memory.read(from).unwrap();
                    assert!(memory.write(to, &compute(&read, add)));
                });
                // SAFETY: as above.
                unsafe { device.launch(kernel, self.stream(stream)) }.unwrap();
            }
            Step::Record { event, stream } => {
                device.record_event(self.events[event], self.stream(stream)).unwrap();
            }
            Step::Wait { stream, event } => {
                device.wait_event(self.stream(stream), self.events[event]).unwrap();
            }
            Step::SyncStream { stream } => {
                device.synchronize_stream(self.stream(stream)).unwrap();
            }
            Step::SyncEvent { event } => device.synchronize_event(self.events[event]).unwrap(),
            Step::SyncDevice => device.synchronize_device().unwrap(),
            Step::Map { memory, place } => self.map(memory, place),
            Step::Restart { old, new } => {
                device.destroy_stream(self.stream(old)).unwrap();
                let mut streams = self.streams.borrow_mut();
                assert_eq!(streams.len(), new);
                streams.push(device.create_stream(Priority::Normal).unwrap());
            }
            Step::Unmap { memory, place } => {
                // SAFETY: as above.
                unsafe { device.unmap(self.page_span(memory, place)) }.unwrap();
            }
        }
    }

    /// What the memories hold, through copies to the host.
    fn contents(&self, machine: &SimMachine) -> Vec<Vec<u8>> {
        let mut contents = Vec::new();
        for memory in 0..MEMORIES {
            let mapped = |place: &usize| {
                memory < FIRST_PAGE
                    || forebay_hal::Device::classify(&*self.device, self.address(memory, *place))
                        .unwrap()
                        .is_some_and(|class| class.kind == forebay_hal::PointerKind::Mapped)
            };
            let place = (0..PLACES).find(mapped).unwrap();
            let mut bytes = vec![0_u8; SIZE];
            let to = Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
            let from = Location::Device(self.address(memory, place));
            let copy = Copy::linear(to, from, Bytes::new(SIZE as u64)).unwrap();
            // SAFETY: the buffer is written before it is looked at, and lives until then.
            unsafe { self.device.copy(&copy, StreamHandle::DEFAULT) }.unwrap();
            self.device.synchronize_device().unwrap();
            contents.push(bytes);
        }
        assert_eq!(machine.census().queued, 0);
        contents
    }
}

/// Runs `program` with the order of work that `seed` gives.
pub(crate) fn run(program: &Program, seed: u64) -> Outcome {
    let machine = SimMachine::builder().seed(seed).granularity(PAGE).build().unwrap();
    let stage = Stage::set(&machine, program);
    for &step in &program.steps {
        stage.take(step);
    }
    stage.device.synchronize_device().unwrap();
    let mut outcome = Outcome { memory: Vec::new(), races: Vec::new(), taken: Vec::new() };
    for finding in machine.findings() {
        match finding {
            Finding::Race { first, second, .. } => {
                outcome.races.push((first.number, second.number));
            }
            Finding::TakenInUse { operation, .. } => outcome.taken.push(operation.number),
            other => panic!("{other}"),
        }
    }
    outcome.memory = stage.contents(&machine);
    outcome
}
