//! Faults of the device, on the simulated one, and a hostile party. What processes do to each other is in `tests/named`.

use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;

use forebay_hal::{Call, Capabilities, Device};
use forebay_sim::{Fault, FaultKind, SimMachine, When};
use rustix::fs::{OFlags, fcntl_setfl};

use super::request::Users;
use super::socket::{Address, accept};
use crate::buffer::Memory;

/// A machine whose memory the host cannot reach, and a manager on it.
fn accelerator() -> (SimMachine, Memory) {
    let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    (machine, Memory::new(&device).unwrap())
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
    let memory = Memory::new(&device).unwrap();
    let refused = memory.shared::<u8>(&name("unable"), 1).unwrap_err();
    assert!(refused.to_string().contains("cannot share memory"), "{refused}");
}

#[test]
fn accepting_does_not_wait_though_another_party_has_made_the_socket_wait() {
    let memory = Memory::host().unwrap();
    let name = name("hostile");
    let buffer = memory.shared::<u8>(&name, 1).unwrap();
    // The other party has the socket as any party does, and with it the flag that all share.
    let address = Address::new(&name, Users::Same).unwrap();
    let parts = address.ask(Duration::from_secs(5)).unwrap();
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
