use forebay_core::{Address, DeviceOrdinal, StreamId};

use super::*;

/// Where the memory is mapped.
const HERE: Address = Address::new(4096);

/// Two streams and one memory, driven by hand.
struct Bench {
    checker: Checker,
    shadow: Shadow,
    clocks: [VectorClock; 2],
    number: u64,
}

impl Bench {
    fn new() -> Self {
        Self {
            checker: Checker::default(),
            shadow: Shadow::default(),
            clocks: Default::default(),
            number: 0,
        }
    }

    fn act(&mut self, stream: usize) -> Actor {
        self.number += 1;
        let slot = ClockSlot(stream);
        let number = self.clocks[stream].advance(slot);
        let operation = Operation {
            number: self.number,
            name: "kernel".into(),
            device: DeviceOrdinal(0),
            stream: StreamId(stream as u64),
        };
        Actor { operation: Arc::new(operation), slot, number, manner: OverlapRule::Moves }
    }

    fn touch(&mut self, stream: usize, bytes: (u64, u64), effect: Effect) -> u64 {
        let actor = self.act(stream);
        let clock = self.clocks[stream].clone();
        self.checker.touch(&mut self.shadow, bytes, effect, (&actor, HERE), &clock);
        self.checker.findings().1
    }

    /// Stream `to` waits for all that `from` has so far.
    fn wait(&mut self, to: usize, from: usize) {
        let past = self.clocks[from].clone();
        self.clocks[to].join(&past);
    }
}

#[test]
fn two_writes_without_order_race_and_are_named() {
    let mut bench = Bench::new();
    assert_eq!(bench.touch(0, (0, 100), Effect::Writes), 0);
    assert_eq!(bench.touch(1, (99, 200), Effect::Writes), 1);
    let (findings, _) = bench.checker.findings();
    let Finding::Race { first, second, offset, .. } = &findings[0] else { panic!("{findings:?}") };
    assert_eq!((first.number, second.number, offset.get()), (1, 2, 99));
    let text = findings[0].to_string();
    assert!(
        text.contains("operation 1, stream 0") && text.contains("operation 2, stream 1"),
        "{text}"
    );
}

#[test]
fn neighbours_and_readers_do_not_race() {
    let mut bench = Bench::new();
    bench.touch(0, (0, 100), Effect::Writes);
    assert_eq!(bench.touch(1, (100, 200), Effect::Writes), 0);
    bench.wait(1, 0);
    bench.wait(0, 1);
    bench.touch(0, (0, 200), Effect::Reads);
    assert_eq!(bench.touch(1, (0, 200), Effect::Reads), 0);
}

#[test]
fn a_wait_orders_and_a_later_write_still_races() {
    let mut bench = Bench::new();
    bench.touch(0, (0, 8), Effect::Writes);
    bench.wait(1, 0);
    assert_eq!(bench.touch(1, (0, 8), Effect::Reads), 0);
    assert_eq!(bench.touch(0, (4, 5), Effect::Writes), 1, "the read on stream 1 is not waited for");
}

#[test]
fn every_unordered_reader_is_remembered() {
    let mut bench = Bench::new();
    bench.touch(0, (0, 8), Effect::Reads);
    bench.touch(1, (0, 8), Effect::Reads);
    bench.wait(1, 0);
    assert_eq!(bench.touch(1, (0, 8), Effect::Writes), 0);
    let mut bench = Bench::new();
    bench.touch(0, (0, 8), Effect::Reads);
    bench.touch(1, (0, 8), Effect::Reads);
    assert_eq!(bench.touch(1, (0, 8), Effect::Writes), 1, "stream 0 may still be reading");
}

#[test]
fn one_operation_that_reads_what_it_writes_is_an_overlap() {
    let mut bench = Bench::new();
    let actor = bench.act(0);
    let clock = bench.clocks[0].clone();
    for (bytes, effect) in
        [((0, 10), Effect::Reads), ((10, 20), Effect::Writes), ((15, 25), Effect::Writes)]
    {
        bench.checker.touch(&mut bench.shadow, bytes, effect, (&actor, HERE), &clock);
    }
    assert_eq!(bench.checker.findings().1, 0);
    bench.checker.touch(&mut bench.shadow, (5, 6), Effect::Writes, (&actor, HERE), &clock);
    assert!(matches!(bench.checker.findings().0, [Finding::Overlap { .. }]));
}

#[test]
fn an_update_in_place_is_no_overlap_unless_through_another_mapping() {
    for (through, findings) in [(HERE, 0), (Address::new(1 << 30), 1)] {
        let mut bench = Bench::new();
        let actor = Actor { manner: OverlapRule::Computes, ..bench.act(0) };
        let clock = bench.clocks[0].clone();
        let touch = |bench: &mut Bench, bytes, effect, through| {
            bench.checker.touch(&mut bench.shadow, bytes, effect, (&actor, through), &clock);
        };
        touch(&mut bench, (0, 100), Effect::Reads, HERE);
        touch(&mut bench, (0, 50), Effect::Writes, through);
        assert_eq!(bench.checker.findings().1, findings);
    }
}

#[test]
fn what_is_covered_is_forgotten_and_what_is_taken_must_be_covered() {
    let mut bench = Bench::new();
    bench.touch(0, (0, 8), Effect::Writes);
    bench.touch(1, (8, 16), Effect::Writes);
    assert_eq!(bench.shadow.len(), 2);
    let past = bench.clocks[0].clone();
    bench.shadow.forget(&past);
    assert_eq!(bench.shadow.len(), 1);

    let mut uses = Uses::default();
    uses.note(Effect::Reads, &bench.act(1));
    let span = Span::new(Address::new(64), Bytes::new(8)).unwrap();
    let covering = bench.clocks[1].clone();
    bench.checker.take(Call::Free, (span, Removal::All), &uses, &covering);
    assert_eq!(bench.checker.findings().1, 0);
    bench.checker.take(Call::SetAccess, (span, Removal::Writing), &uses, &past);
    assert_eq!(bench.checker.findings().1, 0, "it only reads");
    bench.checker.take(Call::Unmap, (span, Removal::All), &uses, &past);
    let (findings, _) = bench.checker.findings();
    assert!(findings[0].to_string().contains("unmap took 0x40..0x48"), "{}", findings[0]);
}
