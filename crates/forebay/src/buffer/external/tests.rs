//! Buffers over memory of the program: released once and late enough, never moved, and read-only where it is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use forebay_hal::{Capabilities, Priority, StreamHandle, Streams};
use forebay_sim::{Fault, FaultKind, SimMachine, When};

use super::*;
use crate::Error;
use crate::buffer::tests::{launch_write, open, open_any};
use crate::buffer::{Buffer, BufferState, Replica};
use crate::host::{FileMode, HostAllocation, HostOptions};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// Memory that counts its releases.
struct Counted {
    bytes: Vec<u8>,
    released: Arc<AtomicUsize>,
}

impl AsMut<[u8]> for Counted {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

fn counted(size: usize) -> (Counted, Arc<AtomicUsize>) {
    let released = Arc::new(AtomicUsize::new(0));
    (Counted { bytes: vec![3; size], released: Arc::clone(&released) }, released)
}

#[test]
fn memory_of_the_program_is_used_in_place_and_released_once() {
    for options in
        [SimMachine::builder(), SimMachine::builder().without(Capabilities::HOST_VISIBLE)]
    {
        let (machine, device, memory) = open_any(options);
        let (owner, released) = counted(4096);
        let place = owner.bytes.as_ptr();
        let mut buffer = memory.wrap(owner).unwrap();
        assert_eq!(
            (buffer.state(), buffer.host().unwrap().as_ptr()),
            (BufferState::HostOnly, place)
        );
        launch_write(&device, &buffer.on_device_mut(DEFAULT).unwrap(), 8).unwrap();
        assert_eq!(buffer.state(), BufferState::DeviceDirty);
        assert_eq!(buffer.host().unwrap(), [8; 4096]);
        assert_eq!(
            buffer.host().unwrap().as_ptr(),
            place,
            "what the device wrote comes back there"
        );
        // It stays whatever is asked.
        assert!(buffer.resize(1).is_err() && buffer.resize(1 << 20).is_err());
        assert!(buffer.compact(Replica::Host, DEFAULT).unwrap().is_zero());
        assert_eq!((buffer.host().unwrap().as_ptr(), buffer.len()), (place, 4096));
        buffer.compact(Replica::Device, DEFAULT).unwrap();
        assert_eq!((buffer.state(), released.load(Ordering::SeqCst)), (BufferState::HostOnly, 0));
        drop(buffer);
        drop(memory);
        assert_eq!(released.load(Ordering::SeqCst), 1);
        assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
    }
}

#[test]
fn memory_that_a_copy_uses_is_released_after_it() {
    let (machine, device, memory) = open(SimMachine::builder());
    let (owner, released) = counted(4096);
    let buffer = memory.wrap(owner).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    device.enqueue_host(Box::new(move || _ = wait.recv()), stream).unwrap();
    let _ = buffer.on_device(stream).unwrap();
    drop(buffer);
    assert_eq!((memory.totals().parked_bytes, released.load(Ordering::SeqCst)), (4096, 0));
    go.send(()).unwrap();
    device.synchronize_device().unwrap();
    assert_eq!((memory.totals().parked_bytes, released.load(Ordering::SeqCst)), (0, 1));
    // And the manager waits for the rest.
    let (owner, released) = counted(4096);
    let buffer = memory.wrap(owner).unwrap();
    let _ = buffer.on_device(DEFAULT).unwrap();
    drop((buffer, memory));
    assert_eq!(released.load(Ordering::SeqCst), 1);
    assert_eq!(machine.finding_count(), 0);
}

#[test]
fn raw_memory_is_released_once_also_if_the_buffer_is_refused_or_the_callback_panics() {
    let memory = BufferManager::host().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let release = || {
        let calls = Arc::clone(&calls);
        move || _ = calls.fetch_add(1, Ordering::SeqCst)
    };
    let mut lent = [1_u32; 100];
    let start = NonNull::from(&mut lent).cast::<u32>();
    // SAFETY: the array outlives the buffer, which is dropped below.
    let mut buffer = unsafe { memory.wrap_raw_parts(start, 100, release()) }.unwrap();
    buffer.fill(0).unwrap();
    buffer.slice_mut(3..5).unwrap().host_mut().unwrap().fill(7);
    drop(buffer);
    assert_eq!(
        (lent[2], lent[3], calls.load(Ordering::SeqCst)),
        (0, 7, 1),
        "zeros are written too"
    );
    let odd = start.cast::<u8>().map_addr(|addr| addr.saturating_add(1)).cast::<u32>();
    // SAFETY: refused before they are used.
    let refused = unsafe {
        [
            memory.wrap_raw_parts(odd, 10, release()),
            memory.wrap_raw_parts(start, usize::MAX, release()),
        ]
    };
    assert!(refused.iter().all(Result::is_err));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    // SAFETY: as above.
    let buffer = unsafe { memory.wrap_raw_parts(start, 100, || panic!("on purpose")) }.unwrap();
    drop(buffer);
    assert!(memory.live_buffers().is_empty());
}

#[test]
fn types_are_checked_against_where_the_memory_lies() {
    let memory = BufferManager::host().unwrap();
    let mut bytes = vec![[0_u8; 16]; 9];
    // Aligned to 16 B and no more.
    let start = bytes.as_mut_ptr().cast::<u8>();
    let start = start.map_addr(|addr| addr.next_multiple_of(32) + 16);
    // SAFETY: 64 bytes from there are in the vector, which outlives the buffer.
    let made =
        unsafe { memory.wrap_raw_parts(NonNull::new(start).unwrap(), 64, move || drop(bytes)) };
    let buffer = made.unwrap();
    assert_eq!(buffer.as_slice().cast::<u64>().unwrap().host().unwrap().len(), 8);
    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, align(32))]
    struct Wide([u8; 32]);
    assert!(buffer.as_slice().cast::<Wide>().is_err());
    let own = memory.buffer::<u8>(64).unwrap();
    assert_eq!(own.as_slice().cast::<Wide>().unwrap().host().unwrap().len(), 2);
}

/// Everything that writes is refused, and the elements stay.
fn check_read_only(buffer: &mut Buffer<u8>, other: &mut Buffer<u8>) {
    let due = buffer.to_vec().unwrap();
    let mut refused = vec![
        buffer.host_mut().map(drop),
        buffer.host_overwrite().map(drop),
        buffer.fill(0),
        buffer.fill(1),
        buffer.copy_from_slice(&due),
        buffer.on_device_mut(DEFAULT).map(|_| ()),
        buffer.on_device_overwrite(DEFAULT).map(|_| ()),
        buffer.slice_mut(1..3).unwrap().on_device_mut(DEFAULT).map(|_| ()),
        buffer.slice_mut(1..3).unwrap().host_mut().map(drop),
    ];
    let _ = other.on_device_mut(DEFAULT).unwrap();
    refused.push(buffer.copy_from(other, DEFAULT));
    for (index, result) in refused.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::ReadOnly { .. })), "{index}");
    }
    let _ = buffer.on_device(DEFAULT).unwrap();
    let view = crate::handle::tests::task::block_on(buffer.fetch()).unwrap();
    assert_eq!(view[..], due);
    assert_eq!(*buffer.slice(1..3).unwrap().host().unwrap(), due[1..3]);
    assert_eq!(buffer.state(), BufferState::Synchronized, "no view has marked a write");
    buffer.invalidate(Replica::Host);
    buffer.invalidate(Replica::Device);
    buffer.compact(Replica::Host, DEFAULT).unwrap();
    buffer.synchronize(DEFAULT).unwrap();
    assert_eq!(buffer.host().unwrap(), due);
    assert_eq!(buffer.statistics().to_host.copies, 0);
}

#[test]
fn memory_that_may_only_be_read_is_not_written_by_either_side() {
    let (machine, _, memory) = open(SimMachine::builder());
    let shared: Arc<[u8]> = (0..200).collect();
    let mut buffer = memory.wrap_read_only(Arc::clone(&shared)).unwrap();
    check_read_only(&mut buffer, &mut memory.buffer(200).unwrap());
    assert_eq!(buffer.host().unwrap().as_ptr(), shared.as_ptr());
    drop((buffer, memory));
    assert_eq!(Arc::strong_count(&shared), 1);
    assert_eq!(machine.finding_count(), 0);
}

#[test]
fn a_failed_call_leaves_the_memory_to_its_owner() {
    let (machine, device, memory) = open(SimMachine::builder());
    let (owner, released) = counted(4096);
    let mut buffer = memory.wrap(owner).unwrap();
    launch_write(&device, &buffer.on_device_mut(DEFAULT).unwrap(), 8).unwrap();
    device.synchronize_device().unwrap();
    machine.plan(Fault::new(When::Every(forebay_hal::Call::Copy), FaultKind::Lost));
    assert!(buffer.host().is_err());
    drop((buffer, memory));
    assert_eq!(released.load(Ordering::SeqCst), 0, "the lost device may still write it");
}

#[test]
fn files_are_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let content: Vec<u8> = (0..=255).cycle().take(5000).collect();
    for options in
        [SimMachine::builder(), SimMachine::builder().without(Capabilities::HOST_VISIBLE)]
    {
        let (_machine, device, memory) = open_any(options);
        std::fs::write(&path, &content).unwrap();
        // SAFETY: here and below, this test alone uses the file.
        let map = |mode| unsafe { memory.map_file::<u8>(&path, mode) }.unwrap();
        let mut read = map(FileMode::ReadOnly);
        assert_eq!(read.host().unwrap(), content);
        check_read_only(&mut read, &mut memory.buffer(5000).unwrap());
        drop(read);

        let mut private = map(FileMode::CopyOnWrite);
        private.host_mut().unwrap()[17] = 99;
        launch_write(&device, &private.slice_mut(..5).unwrap().on_device_mut(DEFAULT).unwrap(), 9)
            .unwrap();
        assert_eq!(private.host().unwrap()[..6], [9, 9, 9, 9, 9, 5]);
        assert_eq!(private.host().unwrap()[17], 99);
        drop(private);
        assert_eq!(std::fs::read(&path).unwrap(), content, "the file stays as it is");

        let mut shared = map(FileMode::Shared);
        shared.slice_mut(4000..).unwrap().fill(0).unwrap();
        launch_write(&device, &shared.slice_mut(..5).unwrap().on_device_mut(DEFAULT).unwrap(), 9)
            .unwrap();
        shared.synchronize(DEFAULT).unwrap();
        drop(shared);
        let now = std::fs::read(&path).unwrap();
        assert_eq!(
            (&now[..5], &now[5..4000], &now[4000..]),
            (&[9; 5][..], &content[5..4000], &[0; 1000][..])
        );

        // SAFETY: as above.
        let odd = unsafe { memory.map_file::<[u8; 3]>(&path, FileMode::ReadOnly) }.unwrap_err();
        assert!(odd.to_string().contains("5000 B") && odd.to_string().contains("3 B"), "{odd}");
        std::fs::write(&path, []).unwrap();
        assert!(map(FileMode::Shared).host().unwrap().is_empty());
        let gone = folder.path().join("none");
        // SAFETY: as above.
        let error = unsafe { memory.map_file::<u8>(&gone, FileMode::ReadOnly) }.unwrap_err();
        assert!(matches!(&error, Error::File { path, .. } if *path == gone), "{error}");
        assert!(memory.live_buffers().is_empty());
    }
}

#[test]
fn host_allocations_back_buffers_and_pools_have_the_pages_they_asked_for() {
    use crate::host::{HugePages, system::System};
    let owner = HostAllocation::for_elements::<u8>(1 << 20, &HostOptions::new()).unwrap();
    let span = owner.span();
    let memory = BufferManager::host().unwrap();
    let buffer: Buffer<u8> = memory.wrap(owner).unwrap();
    assert!(HostAllocation::live().iter().any(|live| live.span == span));
    drop(buffer);
    assert!(!HostAllocation::live().iter().any(|live| live.span == span));

    let huge = System::here().huge_pages();
    for wish in [HugePages::Never, HugePages::Transparent] {
        let device = HostOptions::new().huge_pages(wish).open().unwrap();
        let pool = crate::Pool::new(&device).unwrap();
        let mut array = pool.on(DEFAULT).uninit::<u8>(64 << 20).unwrap();
        array.fill(1).unwrap();
        device.synchronize_device().unwrap();
        let block = forebay_core::Span::new(array.address(), forebay_core::Bytes::mib(64)).unwrap();
        let Ok(got) = System::here().residence(block) else { continue };
        assert!(got.resident >= forebay_core::Bytes::mib(64), "{got:?}");
        // Pages of a pool are memory files.
        let granted = huge.shmem.as_ref().is_ok_and(|setting| setting.grants());
        println!("{wish:?}, memory files {:?}: {got:?}", huge.shmem);
        if wish == HugePages::Never || !granted {
            assert_eq!(got.huge, forebay_core::Bytes::ZERO);
        }
    }
}
