//! Faults of the device, on the simulated one, and a hostile party. What processes do to each other is in `tests/named`.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use forebay_hal::{self as hal, Call, Capabilities, Device};
use forebay_sim::{Fault, FaultKind, SimMachine, When};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_setfl};
use rustix::net::{Shutdown, shutdown};

use super::header::Header;
use super::request::{Element, Users};
use super::socket::{Address, Parts, accept, answer, start};
use crate::buffer::BufferManager;
use crate::{Error, user};

/// A machine whose memory the host cannot reach, and a manager on it.
fn accelerator() -> (SimMachine, BufferManager) {
    let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    (machine, BufferManager::new(&device).unwrap())
}

fn name(what: &str) -> String {
    format!("unit-{}-{what}", std::process::id())
}

#[test]
fn any_call_of_the_device_may_fail_and_nothing_is_left() {
    let (machine, memory) = accelerator();
    let name = name("faults");
    let before = machine.census();
    for kind in [FaultKind::Transient, FaultKind::OutOfMemory] {
        let mut refused = 0;
        for ahead in 1..40 {
            machine.plan(Fault::new(When::Call(machine.calls().total() + ahead), kind));
            let made = memory.shared::<u32>(&name, 1000);
            refused += u32::from(made.is_err());
            if let Ok(made) = made {
                let opened = memory.open_shared::<u32>(&name);
                refused += u32::from(opened.is_err());
                let wrote = made.write(5, &[7; 20]);
                let read = made.to_vec();
                refused += u32::from(wrote.is_err()) + u32::from(read.is_err());
                machine.clear_faults();
                let found = made.to_vec().unwrap();
                assert!(wrote.is_err() || found[5..25] == [7; 20], "ahead {ahead}");
                assert!(found[..5] == [0; 5] && found[25..] == [0; 975], "ahead {ahead}");
            }
            machine.clear_faults();
            assert_eq!(machine.census(), before, "{kind} ahead {ahead}");
            drop(memory.shared::<u32>(&name, 10).unwrap());
            assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings().first());
        }
        assert!(refused > 8, "the faults hit {refused} calls");
    }
}

#[test]
fn a_lost_device_keeps_what_it_may_still_use() {
    let (machine, memory) = accelerator();
    let name = name("lost");
    let buffer = memory.shared::<u32>(&name, 1000).unwrap();
    machine.plan(Fault::new(When::Every(Call::Copy), FaultKind::Lost));
    assert!(buffer.write(0, &[1; 10]).is_err());
    assert!(buffer.to_vec().is_err());
    drop(buffer);
    assert!(memory.open_shared::<u32>(&name).is_err(), "the name is gone");
    assert_eq!(machine.census().mappings, 1, "the memory is not");
}

#[test]
fn a_device_that_cannot_share_says_so() {
    let machine = SimMachine::builder().without(Capabilities::SHARE_BY_FD).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    let memory = BufferManager::new(&device).unwrap();
    let refused = memory.shared::<u8>(&name("unable"), 1).unwrap_err();
    assert!(refused.to_string().contains("cannot share memory"), "{refused}");
}

#[test]
fn accepting_does_not_wait_though_another_party_has_made_the_socket_wait() {
    let memory = BufferManager::host().unwrap();
    let name = name("hostile");
    let buffer = memory.shared::<u8>(&name, 1).unwrap();
    // The other party has the socket as any party does, and with it the flag that all share.
    let address = Address::new(&name, Users::Same).unwrap();
    let (parts, _) = address.ask(Duration::from_secs(5)).unwrap();
    fcntl_setfl(parts.listener.get().unwrap(), OFlags::empty()).unwrap();
    let (sent, received) = mpsc::channel();
    thread::spawn(move || {
        let opener = accept(parts.listener.get().unwrap()).unwrap();
        sent.send(opener.is_none()).unwrap();
    });
    assert_eq!(received.recv_timeout(Duration::from_secs(5)), Ok(true), "nobody opens it");
    assert_eq!(memory.open_shared::<u8>(&name).unwrap().len(), 1);
    drop(buffer);
    assert!(memory.open_shared::<u8>(&name).is_err(), "the name is gone");
}

/// How long the thread that answers openers was on a processor.
fn time_of_service() -> Duration {
    let of = |task: std::fs::DirEntry| {
        let read = |what: &str| std::fs::read_to_string(task.path().join(what)).ok();
        read("comm").filter(|name| name.trim() == "forebay-shared")?;
        read("schedstat")?.split(' ').next()?.parse::<u64>().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(tasks.filter_map(|task| of(task.ok()?)).sum())
}

#[test]
fn a_socket_that_a_party_shuts_down_costs_its_name_and_nothing_else() {
    let memory = BufferManager::host().unwrap();
    let (name, other) = (name("shut"), name("open"));
    let kept = memory.shared::<u8>(&other, 1).unwrap();
    for how in [Shutdown::Both, Shutdown::Read] {
        let buffer = memory.shared::<u8>(&name, 100).unwrap();
        let opened = memory.open_shared::<u8>(&name).unwrap();
        assert!(buffer.is_reachable() && opened.is_reachable());
        let (parts, _) =
            Address::new(&name, Users::Same).unwrap().ask(Duration::from_secs(5)).unwrap();
        shutdown(parts.listener.get().unwrap(), how).unwrap();
        let begun = Instant::now();
        while buffer.is_reachable() || opened.is_reachable() {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody has noticed");
            thread::sleep(Duration::from_millis(1));
        }
        let before = time_of_service();
        thread::sleep(Duration::from_millis(300));
        let spent = time_of_service().saturating_sub(before);
        assert!(spent < Duration::from_millis(30), "the thread ran for {spent:?} of 300 ms");
        // The buffer works on, and so do the others.
        buffer.write(5, &[7]).unwrap();
        drop(opened.lock().unwrap());
        assert_eq!(opened.to_vec().unwrap()[5], 7);
        assert_eq!(memory.open_shared::<u8>(&other).unwrap().len(), 1);
        assert!(memory.open_shared::<u8>(&name).is_err());
        // Free as soon as the party that did it has let go of it too.
        assert!(memory.shared::<u8>(&name, 1).is_err());
        drop(parts);
        drop(memory.shared::<u8>(&name, 1).unwrap());
        drop((buffer, opened));
    }
    assert!(kept.is_reachable());
}

/// Answers one opener with a header and memory of its own making.
fn serve_once(name: &str, header: Header, memory: OwnedFd) -> thread::JoinHandle<()> {
    let listener = Address::new(name, Users::Same).unwrap().claim().unwrap();
    start(listener.get().unwrap()).unwrap();
    thread::spawn(move || {
        let header = header.write().unwrap();
        let listener = listener.get().unwrap();
        let mut ready = [PollFd::new(&listener, PollFlags::IN)];
        rustix::event::poll(&mut ready, None).unwrap();
        let opener = accept(listener).unwrap().unwrap();
        let parts = Parts { header: header.as_fd(), memory: memory.as_fd(), listener };
        answer(opener.as_fd(), &parts, Users::Same).unwrap();
    })
}

#[test]
fn a_buffer_larger_than_the_host_is_an_error_to_copy() {
    let memory = BufferManager::host().unwrap();
    let name = name("huge");
    let size = 1_u64 << 43;
    let element = Element { name: "u8".to_owned(), size: 1, alignment: 1 };
    let header = Header { element, length: size, mapped: size, kind: "host".to_owned() };
    let file = rustix::fs::memfd_create(c"sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = file.unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).unwrap();
    let served = serve_once(&name, header, file);
    let buffer = memory.open_shared::<u8>(&name).unwrap();
    served.join().unwrap();
    assert_eq!(buffer.len() as u64, size);
    assert_eq!((buffer.creator().pid, buffer.creator().uid), (std::process::id(), user::own()));
    let refused = buffer.to_vec().unwrap_err();
    let found = matches!(refused, Error::Device(hal::Error::OutOfMemory { requested, .. }) if requested.get() == size);
    assert!(found, "{refused}");
}
