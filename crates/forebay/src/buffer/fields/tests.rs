//! Fields are copied on the device where the data is there, on the host else, and to nobody else's bytes.

use core::mem::offset_of;

use forebay_hal::{Call, Capabilities, StreamHandle};
use forebay_sim::{Fault, FaultKind, SimMachine, When};

use super::*;
use crate::buffer::tests::{open, open_any};
use crate::buffer::{BufferState, Replica};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    kind: u32,
    charge: [u16; 2],
    mass: f32,
}

fn particles(count: u16) -> Vec<Particle> {
    let particle = |index: u16| {
        let value = f32::from(index);
        let position = [value, value + 0.25, value + 0.5];
        Particle { position, kind: index.into(), charge: [index, !index], mass: -value }
    };
    (0..count).map(particle).collect()
}

#[test]
fn a_field_goes_out_and_comes_back_on_either_side() {
    let options =
        [SimMachine::builder(), SimMachine::builder().without(Capabilities::HOST_VISIBLE)];
    for (options, own) in options.into_iter().zip([false, true]) {
        for on_device in [false, true] {
            let (machine, _, memory) = open_any(options.clone());
            let due = particles(1000);
            let mut structures = memory.buffer_from(&due).unwrap();
            let charge = Field::<Particle, [u16; 2]>::at(offset_of!(Particle, charge)).unwrap();
            let position = Field::<Particle, [f32; 3]>::at(0).unwrap();
            let mut charges = memory.buffer(1000).unwrap();
            let mut positions = memory.buffer(1000).unwrap();
            if on_device {
                let _ = structures.on_device_mut(DEFAULT).unwrap();
                structures.compact(Replica::Host, DEFAULT).unwrap();
            }
            structures.copy_field_to(charge, &mut charges, DEFAULT).unwrap();
            structures.copy_field_to(position, &mut positions, DEFAULT).unwrap();
            let copied = structures.statistics().to_host.copies;
            let expected =
                if own && on_device { BufferState::DeviceOnly } else { BufferState::HostOnly };
            assert_eq!((charges.state(), copied), (expected, 0), "{own} {on_device}");
            for (index, particle) in due.iter().enumerate() {
                assert_eq!(charges.host().unwrap()[index], particle.charge);
                assert_eq!(positions.host().unwrap()[index], particle.position);
            }
            // Back into structures that are current on the other side, too.
            charges.host_mut().unwrap().fill([7, 8]);
            if on_device {
                let _ = charges.on_device(DEFAULT).unwrap();
            }
            structures.copy_field_from(charge, &charges, DEFAULT).unwrap();
            let changed = due.iter().map(|&particle| Particle { charge: [7, 8], ..particle });
            assert_eq!(structures.to_vec().unwrap(), changed.collect::<Vec<_>>());
            assert_eq!(machine.finding_count(), 0, "{:?}", machine.findings());
        }
    }
}

#[test]
fn fields_and_lengths_that_do_not_fit_are_refused() {
    assert!(Field::<Particle, u64>::at(20).is_err() && Field::<Particle, u32>::at(20).is_ok());
    assert!(Field::<Particle, u8>::at(usize::MAX).is_err());
    assert!(Field::<Particle, [u8; 0]>::at(0).is_err());
    let (_machine, _, memory) = open(SimMachine::builder());
    let mut structures = memory.buffer_from(&particles(10)).unwrap();
    let mass = Field::<Particle, f32>::at(offset_of!(Particle, mass)).unwrap();
    let mut short = memory.buffer::<f32>(9).unwrap();
    assert!(structures.copy_field_to(mass, &mut short, DEFAULT).is_err());
    assert!(structures.copy_field_from(mass, &short, DEFAULT).is_err());
    assert!(mass.gather(&particles(3), &mut [0.0; 4]).is_err());
    assert!(mass.scatter(&[0.0; 4], &mut particles(3)).is_err());
    let mut empty = (memory.buffer::<Particle>(0).unwrap(), memory.buffer::<f32>(0).unwrap());
    assert!(empty.0.copy_field_to(mass, &mut empty.1, DEFAULT).is_ok());
    let mut constant = memory.wrap_read_only(particles(10)).unwrap();
    let mut masses = memory.buffer::<f32>(10).unwrap();
    constant.copy_field_to(mass, &mut masses, DEFAULT).unwrap();
    assert!(constant.copy_field_from(mass, &masses, DEFAULT).is_err());
}

#[test]
fn a_copy_that_fails_leaves_what_the_host_has() {
    let (machine, _, memory) = open(SimMachine::builder());
    let due = particles(100);
    let mut structures = memory.buffer_from(&due).unwrap();
    let masses = memory.buffer_from(&[5.0_f32; 100]).unwrap();
    structures.synchronize(DEFAULT).unwrap();
    masses.synchronize(DEFAULT).unwrap();
    let mass = Field::at(offset_of!(Particle, mass)).unwrap();
    machine.plan(Fault::new(When::Every(Call::Copy), FaultKind::Transient));
    assert!(structures.copy_field_from(mass, &masses, DEFAULT).is_err());
    machine.clear_faults();
    assert_eq!(structures.to_vec().unwrap(), due);
    structures.copy_field_from(mass, &masses, DEFAULT).unwrap();
    assert!(structures.host().unwrap().iter().all(|particle| particle.mass == 5.0));
}
