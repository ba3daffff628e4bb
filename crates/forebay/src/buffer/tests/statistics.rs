//! What the figures of copies say.

use std::time::Instant;

use super::*;

#[test]
fn copies_are_timed_on_the_device_whenever_anybody_looks() {
    let (_machine, device, memory) = open(SimMachine::builder());
    let begun = Instant::now();
    let mut buffer = memory.buffer_from(&vec![1_u8; 1 << 20]).unwrap();
    assert_eq!(buffer.statistics().to_device, CopyStatistics::default());
    assert_eq!(buffer.statistics().last_copy(), None, "nothing was copied");
    launch_write(&device, &buffer.on_device_mut(DEFAULT).unwrap(), 2).unwrap();
    let under_way = buffer.statistics().to_device;
    assert_eq!((under_way.copies, under_way.bytes, under_way.timed_bytes), (1, 1 << 20, 0));
    assert!(under_way.bandwidth().is_none() && under_way.utilization(1).is_none());
    assert!(under_way.last.is_some_and(|last| last >= begun && last <= Instant::now()));
    device.synchronize_device().unwrap();
    // Far longer than the copy takes.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(buffer.host().unwrap()[7], 2);
    let statistics = buffer.statistics();
    for copies in [statistics.to_device, statistics.to_host] {
        assert_eq!((copies.copies, copies.timed_bytes), (1, 1 << 20));
        // As the simulated device has it: 1 MiB of pageable memory at some GB/s.
        let time = Duration::from_micros(20)..Duration::from_millis(10);
        assert!(time.contains(&copies.time), "{copies:?}");
        assert_eq!(copies.bandwidth(), Some(copies.fastest), "of one copy");
    }
    assert_eq!(statistics.last_copy(), statistics.to_host.last, "the later of the two");
}

#[test]
fn the_limit_of_a_manager_is_its_fastest_copy_also_of_buffers_that_are_gone() {
    let (_machine, device, memory) = open(SimMachine::builder());
    let large = memory.buffer_from(&vec![1_u8; 8 << 20]).unwrap();
    let _ = large.on_device(DEFAULT).unwrap();
    device.synchronize_device().unwrap();
    drop(large);
    let limit = memory.totals().statistics.to_device.fastest;
    assert!(limit > 0, "the end was seen when the buffer was dropped");
    let mut small = memory.buffer_from(&[1_u8; 4096]).unwrap();
    let _ = small.on_device(DEFAULT).unwrap();
    small.host_mut().unwrap().fill(2);
    let part = small.statistics().to_device.utilization(limit).unwrap();
    assert!(part > 0.0 && part < 0.5, "a small copy is mostly latency: {part}");
    let totals = memory.totals().statistics.to_device;
    assert_eq!((totals.copies, totals.timed_bytes, totals.fastest), (2, (8 << 20) + 4096, limit));
}

#[test]
fn small_copies_are_counted_and_not_timed() {
    let (machine, _, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer_from(&[1_u8; 100]).unwrap();
    let _ = buffer.on_device_mut(DEFAULT).unwrap();
    assert_eq!(buffer.host().unwrap(), [1; 100]);
    let statistics = buffer.statistics();
    assert_eq!((statistics.to_device.copies, statistics.to_host.copies), (1, 1));
    assert_eq!((statistics.to_device.timed_bytes, statistics.to_host.timed_bytes), (0, 0));
    assert_eq!(machine.calls().of(Call::Elapsed), 0);
}

#[test]
fn a_copy_that_cannot_be_timed_is_made_all_the_same() {
    let (machine, _, memory) = open(SimMachine::builder());
    let mut buffer = memory.buffer_from(&[1_u8; 4096]).unwrap();
    for call in [Call::CreateEvent, Call::Elapsed] {
        machine.plan(Fault::new(When::Every(call), FaultKind::Transient));
        buffer.host_mut().unwrap().fill(3);
        let _ = buffer.on_device_mut(DEFAULT).unwrap();
        assert_eq!(buffer.host().unwrap(), [3; 4096]);
        machine.clear_faults();
    }
    let statistics = buffer.statistics();
    assert_eq!((statistics.to_device.copies, statistics.to_device.timed_bytes), (2, 0));
    assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
}
