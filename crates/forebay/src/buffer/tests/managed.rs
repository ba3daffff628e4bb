//! Buffers in managed memory.

use forebay_hal as hal;

use super::*;

#[test]
fn managed_memory_is_refused_or_emulated_where_there_is_none() {
    let options = SimMachine::builder();
    let without = Capabilities::MANAGED | Capabilities::HOST_VISIBLE;
    let (_machine, _, ordinary) = open_any(options.without(without));
    let refused = BufferManager::managed(ordinary.device()).unwrap_err();
    assert!(matches!(refused, Error::Device(hal::Error::Unsupported { .. })), "{refused}");
    let emulated = BufferManager::managed_or_emulated(ordinary.device()).unwrap();
    assert!(!emulated.is_managed());
    let buffer = emulated.buffer_from(&[7_u8; 100]).unwrap();
    buffer.advise(Advice::ReadMostly).unwrap();
    buffer.prefetch(Replica::Device, DEFAULT).unwrap();
    assert_eq!(buffer.statistics().to_device.bytes, 100, "it copies, since the driver does not");
    let told = ordinary.buffer::<u8>(1).unwrap().advise(Advice::ReadMostly).unwrap_err();
    assert!(told.to_string().contains("BufferManager::managed"), "{told}");
}

#[test]
fn advice_ends_with_the_buffer_and_an_empty_one_takes_any() {
    let options = SimMachine::builder().without(Capabilities::HOST_VISIBLE);
    let (machine, _, ordinary) = open_any(options);
    let memory = BufferManager::managed(ordinary.device()).unwrap();
    assert!(memory.is_managed());
    let advised = |machine: &SimMachine| machine.calls().of(Call::Advise);
    let buffer = memory.buffer_from(&[1_u8; 10_000]).unwrap();
    let here = memory.device().descriptor().ordinal;
    for advice in
        [Advice::ReadMostly, Advice::PreferredLocation(None), Advice::AccessedBy(Some(here))]
    {
        buffer.advise(advice).unwrap();
    }
    assert_eq!(advised(&machine), 3);
    buffer.prefetch(Replica::Device, DEFAULT).unwrap();
    buffer.prefetch(Replica::Host, DEFAULT).unwrap();
    assert_eq!(machine.calls().of(Call::Prefetch), 2);
    assert_eq!(buffer.host().unwrap(), [1; 10_000]);
    assert_eq!(buffer.statistics().to_device.bytes, 0, "nothing is copied");
    drop(buffer);
    assert_eq!(advised(&machine), 6, "each was taken back");
    let empty = memory.buffer::<u8>(0).unwrap();
    empty.advise(Advice::ReadMostly).unwrap();
    empty.prefetch(Replica::Device, DEFAULT).unwrap();
    assert_eq!(advised(&machine), 6);
}
