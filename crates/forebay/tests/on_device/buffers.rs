//! Buffers: coherent whichever side is used, in ordinary, wrapped and managed memory.

use forebay::buffer::{Advice, Buffer, BufferManager, Field, Replica};
use forebay::hal::Capabilities;
use forebay::{Bytes, PinnedPool, Pool, StreamHandle};

use crate::stage::Stage;
use crate::{Step, ensure};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;
const LENGTH: usize = 300_000;

/// Host and device write and check parts in turn.
fn take_turns(stage: &Stage, buffer: &mut Buffer<u8>) -> Step {
    let whole = Bytes::new(LENGTH as u64);
    for round in 0..8_u8 {
        let (first, part) = (usize::from(round) * 1000, Bytes::new(5000));
        buffer.slice_mut(first..first + 5000)?.host_mut()?.fill(round + 1);
        let start = buffer.on_device(DEFAULT)?.address();
        let at = start.checked_add(Bytes::new(first as u64)).ok_or("past the last address")?;
        stage.check(at, part, u32::from_ne_bytes([round + 1; 4]), DEFAULT)?;
        let word = 0x0102_0304 + u32::from(round);
        let start = buffer.on_device_mut(DEFAULT)?.address();
        stage.write(start, whole, word, DEFAULT)?;
        let right = word.to_ne_bytes();
        ensure!(buffer.host()?.chunks(4).all(|found| found == right), "the host reads {word:x}");
        let start = buffer.on_device(DEFAULT)?.address();
        stage.check(start, whole, word, DEFAULT)?;
    }
    Ok(())
}

pub(crate) fn coherent(stage: &Stage) -> Step {
    let memory = BufferManager::new(&stage.device)?;
    take_turns(stage, &mut memory.buffer::<u8>(LENGTH)?)?;
    take_turns(stage, &mut memory.wrap(vec![0_u8; LENGTH])?)?;
    stage.no_findings()
}

pub(crate) fn managed(stage: &Stage) -> Step {
    let capabilities = stage.device.descriptor().capabilities;
    let memory = BufferManager::managed_or_emulated(&stage.device)?;
    let has = capabilities.contains(Capabilities::MANAGED);
    ensure!(memory.is_managed() == has, "managed memory: {has}");
    let mut buffer = memory.buffer::<u8>(LENGTH)?;
    for advice in [Advice::PreferredLocation(None), Advice::ReadMostly, Advice::NotReadMostly] {
        buffer.advise(advice)?;
    }
    buffer.prefetch(Replica::Device, DEFAULT)?;
    take_turns(stage, &mut buffer)?;
    buffer.prefetch(Replica::Host, DEFAULT)?;
    take_turns(stage, &mut buffer)?;
    let copies = buffer.statistics().to_device.copies;
    ensure!(!has || copies == 0, "{copies} copies of managed memory");
    stage.no_findings()
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Particle {
    position: [f32; 3],
    id: u32,
}

pub(crate) fn fields(stage: &Stage) -> Step {
    let memory = BufferManager::new(&stage.device)?;
    let all: Vec<Particle> = (0..10_000_u16)
        .map(|id| Particle { position: [f32::from(id); 3], id: id.into() })
        .collect();
    let mut particles = memory.buffer_from(&all)?;
    let mut ids = memory.buffer::<u32>(all.len())?;
    let field = Field::<Particle, u32>::at(12)?;
    particles.prefetch(Replica::Device, DEFAULT)?;
    particles.copy_field_to(field, &mut ids, DEFAULT)?;
    ensure!(ids.host()?.iter().zip(0..).all(|(&id, right)| id == right), "the field is right");
    ids.host_mut()?.fill(7);
    particles.copy_field_from(field, &ids, DEFAULT)?;
    let back = particles.to_vec()?;
    ensure!(back.iter().all(|one| one.id == 7), "the field came back");
    ensure!(
        back.iter().zip(&all).all(|(one, was)| one.position == was.position),
        "the others stayed"
    );
    stage.no_findings()
}

pub(crate) fn pinned(stage: &Stage) -> Step {
    let (pool, pinned) = (Pool::new(&stage.device)?, PinnedPool::new(&stage.device)?);
    for round in 0..200_u8 {
        let length = 1000 + 7919 * usize::from(round);
        let mut device = pool.on(DEFAULT).uninit::<u8>(length)?;
        let mut batch = pinned.array::<u8>(length)?;
        batch.host_mut()?.fill(round);
        batch.copy_to(&mut device)?;
        // Its memory must not be another's before the copy is done.
        drop(batch);
        let mut other = pinned.array::<u8>(length)?;
        other.host_mut()?.fill(255);
        let mut back = pinned.array::<u8>(length)?;
        back.copy_from(&device)?;
        ensure!(back.host()?.iter().all(|&byte| byte == round), "round {round} kept its data");
    }
    stage.no_findings()
}
