//! What every access does in every state, and any sequence of them against a model of every byte.
#![allow(
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    reason = "small numbers, and a table"
)]

use proptest::prelude::*;

use super::*;

const LENGTH: u64 = 100;
const ALL: Range<u64> = 0..LENGTH;

/// What a buffer does with a whole replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read(Replica),
    /// Reads and writes.
    Update(Replica),
    /// Writes all of it, and reads nothing.
    Overwrite(Replica),
    /// Makes both current.
    Synchronize,
    /// Copies what the replica alone has, and frees its memory.
    Drop(Replica),
    Invalidate(Replica),
}

/// A step that moved bytes: to which replica, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    copies: u64,
    bytes: u64,
    zeroed: u64,
}

fn make_current(buffer: &mut Coherence, replica: Replica, range: Range<u64>, moved: &mut Moved) {
    if !buffer.is_present(replica) {
        // Host memory comes zeroed from the system, device memory does not.
        buffer.allocated(replica, replica == Replica::Host);
    }
    for Update { range, kind } in buffer.needs(replica, range) {
        match kind {
            UpdateKind::Copy => {
                moved.copies += 1;
                moved.bytes += range.end - range.start;
            }
            UpdateKind::Zero => moved.zeroed += range.end - range.start,
        }
        buffer.updated(replica, range);
    }
}

fn apply(buffer: &mut Coherence, operation: Operation, range: Range<u64>) -> Moved {
    let mut moved = Moved::default();
    match operation {
        Operation::Read(replica) => make_current(buffer, replica, range, &mut moved),
        Operation::Update(replica) => {
            make_current(buffer, replica, range.clone(), &mut moved);
            buffer.written(replica, range);
        }
        Operation::Overwrite(replica) => {
            if !buffer.is_present(replica) {
                buffer.allocated(replica, replica == Replica::Host);
            }
            buffer.written(replica, range);
        }
        Operation::Synchronize => {
            for replica in [Replica::Host, Replica::Device] {
                make_current(buffer, replica, range.clone(), &mut moved);
            }
        }
        Operation::Drop(replica) => {
            let lacks = buffer.needs(replica.other(), ALL);
            if lacks.iter().any(|update| update.kind == UpdateKind::Copy) {
                make_current(buffer, replica.other(), ALL, &mut moved);
            }
            buffer.dropped(replica);
        }
        Operation::Invalidate(replica) => buffer.invalidated(replica, range),
    }
    moved
}

/// A buffer in each state.
fn in_state(state: BufferState) -> Coherence {
    use Operation::{Overwrite, Synchronize};
    use Replica::{Device, Host};
    let mut buffer = Coherence::new(LENGTH);
    let mut apply = |operation, range| {
        apply(&mut buffer, operation, range);
    };
    match state {
        BufferState::Uninitialized => {}
        BufferState::HostOnly => apply(Overwrite(Host), ALL),
        BufferState::DeviceOnly => apply(Overwrite(Device), ALL),
        BufferState::Synchronized => {
            apply(Overwrite(Host), ALL);
            apply(Synchronize, ALL);
        }
        BufferState::HostDirty => {
            apply(Overwrite(Device), ALL);
            apply(Overwrite(Host), ALL);
        }
        BufferState::DeviceDirty => {
            apply(Overwrite(Host), ALL);
            apply(Overwrite(Device), ALL);
        }
        BufferState::Mixed => {
            apply(Overwrite(Host), ALL);
            apply(Synchronize, ALL);
            apply(Overwrite(Host), 0..30);
            apply(Overwrite(Device), 50..70);
        }
    }
    assert_eq!(buffer.state(), state);
    buffer
}

/// Every state with every operation: the state after it, the copies, the bytes copied and the bytes zeroed.
#[test]
fn every_cell_of_the_table() {
    use BufferState::*;
    use Operation::*;
    use Replica::{Device, Host};
    let states = [Uninitialized, HostOnly, DeviceOnly, Synchronized, HostDirty, DeviceDirty, Mixed];
    let none = (0, 0, 0);
    let all = (1, 100, 0);
    #[rustfmt::skip]
    let table: [(Operation, [(BufferState, (u64, u64, u64)); 7]); 11] = [
        //                   Uninitialized               HostOnly             DeviceOnly            Synchronized          HostDirty            DeviceDirty           Mixed
        (Read(Host),        [(Uninitialized, none),      (HostOnly, none),    (Synchronized, all),  (Synchronized, none), (HostDirty, none),   (Synchronized, all),  (HostDirty, (1, 20, 0))]),
        (Update(Host),      [(HostOnly, none),           (HostOnly, none),    (HostDirty, all),     (HostDirty, none),    (HostDirty, none),   (HostDirty, all),     (HostDirty, (1, 20, 0))]),
        (Overwrite(Host),   [(HostOnly, none),           (HostOnly, none),    (HostDirty, none),    (HostDirty, none),    (HostDirty, none),   (HostDirty, none),    (HostDirty, none)]),
        (Read(Device),      [(Uninitialized, (0, 0, 100)), (Synchronized, all), (DeviceOnly, none), (Synchronized, none), (Synchronized, all), (DeviceDirty, none),  (DeviceDirty, (1, 30, 0))]),
        (Update(Device),    [(DeviceOnly, (0, 0, 100)),  (DeviceDirty, all),  (DeviceOnly, none),   (DeviceDirty, none),  (DeviceDirty, all),  (DeviceDirty, none),  (DeviceDirty, (1, 30, 0))]),
        (Overwrite(Device), [(DeviceOnly, none),         (DeviceDirty, none), (DeviceOnly, none),   (DeviceDirty, none),  (DeviceDirty, none), (DeviceDirty, none),  (DeviceDirty, none)]),
        (Synchronize,       [(Uninitialized, (0, 0, 100)), (Synchronized, all), (Synchronized, all), (Synchronized, none), (Synchronized, all), (Synchronized, all), (Synchronized, (2, 50, 0))]),
        (Drop(Host),        [(Uninitialized, none),      (DeviceOnly, all),   (DeviceOnly, none),   (DeviceOnly, none),   (DeviceOnly, all),   (DeviceOnly, none),   (DeviceOnly, (1, 30, 0))]),
        (Drop(Device),      [(Uninitialized, none),      (HostOnly, none),    (HostOnly, all),      (HostOnly, none),     (HostOnly, none),    (HostOnly, all),      (HostOnly, (1, 20, 0))]),
        (Invalidate(Host),  [(Uninitialized, none),      (Uninitialized, none), (DeviceOnly, none), (DeviceDirty, none),  (Uninitialized, none), (DeviceDirty, none), (DeviceDirty, none)]),
        (Invalidate(Device), [(Uninitialized, none),     (HostOnly, none),    (Uninitialized, none), (HostDirty, none),   (HostDirty, none),   (Uninitialized, none), (HostDirty, none)]),
    ];
    for (operation, cells) in table {
        for (state, (after, (copies, bytes, zeroed))) in states.into_iter().zip(cells) {
            let mut buffer = in_state(state);
            let moved = apply(&mut buffer, operation, ALL);
            let cell = format!("{operation:?} of a buffer that is {state:?}");
            assert_eq!(moved, Moved { copies, bytes, zeroed }, "{cell}");
            assert_eq!(buffer.state(), after, "{cell}");
        }
    }
}

#[test]
fn writing_ten_of_a_million_moves_ten() {
    let mut buffer = Coherence::new(1_000_000);
    apply(&mut buffer, Operation::Overwrite(Replica::Host), 0..1_000_000);
    apply(&mut buffer, Operation::Synchronize, 0..1_000_000);
    apply(&mut buffer, Operation::Update(Replica::Host), 500..510);
    let moved = apply(&mut buffer, Operation::Read(Replica::Device), 0..1_000_000);
    assert_eq!(moved, Moved { copies: 1, bytes: 10, zeroed: 0 });
    assert_eq!(buffer.runs(0..1_000_000).count(), 1, "one run again");
}

#[test]
fn ranges_beyond_the_end_are_cut_and_empty_ones_are_nothing() {
    let mut buffer = Coherence::new(10);
    buffer.written(Replica::Host, 5..u64::MAX);
    buffer.written(Replica::Host, 20..30);
    buffer.written(Replica::Host, 3..3);
    let runs: Vec<_> = buffer.runs(0..u64::MAX).collect();
    assert_eq!(runs, [(0..5, Contents::UNTOUCHED), (5..10, Contents::Host)]);
    let empty = Coherence::new(0);
    assert_eq!((empty.runs(0..5).count(), empty.state()), (0, BufferState::Uninitialized));
}

/// A model of every byte: what each replica's memory has, and what it should have.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Byte {
    host: u8,
    device: u8,
    current: u8,
    /// Whether the byte was ever written, and which replicas have had what was written last.
    written: bool,
    on_host: bool,
    on_device: bool,
}

impl Byte {
    fn memory(&mut self, replica: Replica) -> (&mut u8, &mut bool) {
        match replica {
            Replica::Host => (&mut self.host, &mut self.on_host),
            Replica::Device => (&mut self.device, &mut self.on_device),
        }
    }
}

struct Model {
    bytes: Vec<Byte>,
    counter: u8,
}

impl Model {
    /// Performs what `needs` says, and checks that each step was needed and that all are.
    fn make_current(&mut self, buffer: &mut Coherence, replica: Replica, range: &Range<u64>) {
        if !buffer.is_present(replica) {
            buffer.allocated(replica, replica == Replica::Host);
            for byte in &mut self.bytes {
                // Fresh device memory has anything in it.
                *byte.memory(replica).0 = if replica == Replica::Host { 0 } else { 0xa5 };
            }
        }
        for Update { range, kind } in buffer.needs(replica, range.clone()) {
            for byte in &mut self.bytes[range.start as usize..range.end as usize] {
                let other = *byte.memory(replica.other()).0;
                let other_has = *byte.memory(replica.other()).1;
                let (memory, has) = byte.memory(replica);
                match kind {
                    UpdateKind::Copy => {
                        assert!(!*has && other_has, "a copy that was not needed, or of nothing");
                        *memory = other;
                        *has = true;
                    }
                    UpdateKind::Zero => *memory = 0,
                }
                assert!(kind == UpdateKind::Copy || !byte.written, "zeros over what was written");
            }
            buffer.updated(replica, range);
        }
        assert!(buffer.is_current(replica, range.clone()));
        for byte in &mut self.bytes[range.start as usize..range.end as usize] {
            let current = byte.current;
            assert_eq!(*byte.memory(replica).0, current);
        }
    }

    fn write(&mut self, buffer: &mut Coherence, replica: Replica, range: &Range<u64>) {
        self.counter = self.counter.wrapping_add(1).max(1);
        buffer.written(replica, range.clone());
        for byte in &mut self.bytes[range.start as usize..range.end as usize] {
            *byte = Byte {
                host: byte.host,
                device: byte.device,
                current: self.counter,
                written: true,
                ..Byte::default()
            };
            let (memory, has) = byte.memory(replica);
            (*memory, *has) = (self.counter, true);
        }
    }

    fn forget(&mut self, replica: Replica, range: &Range<u64>) {
        for byte in &mut self.bytes[range.start as usize..range.end as usize] {
            *byte.memory(replica).1 = false;
            if byte.written && !byte.on_host && !byte.on_device {
                *byte = Byte { host: 0x11, device: 0x22, ..Byte::default() };
            }
            *byte.memory(replica).0 = 0x77;
        }
    }
}

fn operations() -> impl Strategy<Value = Vec<(u8, bool, u64, u64)>> {
    prop::collection::vec((0..7_u8, any::<bool>(), 0..64_u64, 0..64_u64), 1..60)
}

proptest! {
    /// Contents are right on whichever replica is used, and no byte is copied that need not be.
    #[test]
    fn any_sequence_agrees_with_a_model_of_every_byte(operations in operations()) {
        let mut buffer = Coherence::new(64);
        let mut model = Model { bytes: vec![Byte::default(); 64], counter: 0 };
        for (operation, host, one, two) in operations {
            let replica = if host { Replica::Host } else { Replica::Device };
            let length = buffer.length();
            let range = one.min(two).min(length)..one.max(two).min(length);
            match operation {
                0 | 1 => model.make_current(&mut buffer, replica, &range),
                2 => {
                    model.make_current(&mut buffer, replica, &range);
                    model.write(&mut buffer, replica, &range);
                }
                3 => {
                    model.make_current(&mut buffer, replica, &(0..0));
                    model.write(&mut buffer, replica, &range);
                }
                4 => {
                    model.make_current(&mut buffer, replica.other(), &(0..length));
                    buffer.dropped(replica);
                    model.forget(replica, &(0..length));
                }
                5 => {
                    buffer.invalidated(replica, range.clone());
                    model.forget(replica, &range);
                }
                _ => {
                    buffer.cleared(range.clone());
                    for byte in &mut model.bytes[range.start as usize..range.end as usize] {
                        *byte = Byte { host: byte.host, device: byte.device, ..Byte::default() };
                    }
                }
            }
            // Neighbours differ, and the runs cover everything.
            let runs: Vec<_> = buffer.runs(0..u64::MAX).collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 != pair[1].1 && pair[0].0.end == pair[1].0.start));
            prop_assert_eq!(runs.iter().map(|(run, _)| run.end - run.start).sum::<u64>(), buffer.length());
        }
    }
}
