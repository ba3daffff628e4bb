//! Code that is written once, for every type with elements on a device.

use forebay_hal::{Fill, Pattern};

use super::*;
use crate::pinned::PinnedOptions;

/// Host writes, device writes in the order of a stream, host reads; and what does not fit.
fn check(buffer: &mut impl DeviceBuffer<Element = u32>, device: &dyn Device, what: &str) {
    let length = buffer.len();
    let mut back = vec![0; length];
    buffer.fill_all(7).unwrap();
    buffer.write(3, &[1, 2]).unwrap();
    buffer.read(2, &mut back[..4]).unwrap();
    assert_eq!(back[..4], [7, 1, 2, 7], "{what}");
    let stream = device.create_stream(Priority::Normal).unwrap();
    let filled = buffer.with_device(Access::Overwrite, stream, |on_device| {
        let span = span_of(&on_device);
        let fill = Fill::linear(span.start(), span.size(), Pattern::U32(9)).unwrap();
        // SAFETY: the buffer keeps the memory in the order of the stream.
        unsafe { device.fill(&fill, on_device.stream()) }?;
        Ok(span.size())
    });
    assert_eq!(filled.unwrap(), buffer.size(), "{what}");
    buffer.read(0, &mut back).unwrap();
    let waited = back.iter().all(|&element| element == 9);
    assert!(waited, "{what}: the host's copy did not wait for the device");
    buffer.write(0, &[5]).unwrap();
    assert!(buffer.write(length - 1, &[1, 1]).is_err(), "{what}");
    assert!(buffer.write(usize::MAX, &[1]).is_err(), "{what}");
    assert!(buffer.read(length, &mut back[..1]).is_err(), "{what}");
    buffer.read(0, &mut back).unwrap();
    assert_eq!((back[0], back[length - 1]), (5, 9), "{what}: a refused call has written");
    device.synchronize_device().unwrap();
    device.destroy_stream(stream).unwrap();
}

/// More than the provided methods copy at once.
const MANY: usize = (1 << 18) + 100;

#[test]
fn every_buffer_of_the_library_keeps_the_promises_of_the_trait() {
    let (machine, device, memory) = open(SimMachine::builder());
    let sound = |what| assert_eq!(machine.finding_count(), 0, "{what}: {:?}", machine.findings());
    check(&mut memory.buffer(MANY).unwrap(), &*device, "buffer");
    sound("buffer");
    let managed = BufferManager::managed(memory.device()).unwrap();
    check(&mut managed.buffer(MANY).unwrap(), &*device, "managed");
    sound("managed");
    check(&mut memory.pool().on(DEFAULT).uninit(MANY).unwrap(), &*device, "array");
    sound("array");
    #[cfg(target_os = "linux")]
    {
        let name = format!("generic-{}", std::process::id());
        check(&mut memory.shared(&name, MANY).unwrap(), &*device, "shared");
        sound("shared");
    }
}

#[test]
fn pinned_arrays_keep_them_where_the_device_reaches_them() {
    let host = HostDevice::open().unwrap();
    let pinned = PinnedOptions::new().mapped().build(&host).unwrap();
    check(&mut pinned.array(MANY).unwrap(), &*host, "pinned");
}

#[test]
fn elements_go_from_any_buffer_to_any_other_of_the_same_length() {
    let (_machine, _, memory) = open(SimMachine::builder());
    let from = memory.buffer_from(&(0_u32..).take(MANY).collect::<Vec<_>>()).unwrap();
    let mut to = memory.pool().on(DEFAULT).uninit::<u32>(MANY).unwrap();
    to.copy_all_from(&from).unwrap();
    assert_eq!(to.to_vec().unwrap(), from.to_vec().unwrap());
    let refused = memory.buffer::<u32>(3).unwrap().copy_all_from(&from).unwrap_err();
    assert!(refused.to_string().contains("3 elements"), "{refused}");
    let mut empty = memory.buffer::<u32>(0).unwrap();
    assert!(DeviceBuffer::is_empty(&empty));
    empty.fill_all(1).unwrap();
    empty.copy_all_from(&memory.buffer(0).unwrap()).unwrap();
}
