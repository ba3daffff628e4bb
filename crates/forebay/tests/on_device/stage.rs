//! A device to test on, and hands that write to its memory and look at it.

use std::sync::Arc;

use forebay::devices::DeviceName;
use forebay::hal::{self, Copy, DeviceKind, Fill, Location, Pattern};
use forebay::hip::HipDevice;
use forebay::opencl::OpenClDevice;
use forebay::{Address, Bytes, CudaDevice, Device, Priority, Stream, StreamHandle};
use forebay_sim::SimMachine;

use crate::{Step, ensure};

/// Of a block that is larger, the first and the last so many bytes are looked at.
const LOOK: u64 = 4096;

/// A device.
pub(crate) struct Stage {
    pub(crate) device: Arc<dyn Device>,
    /// The simulated machine, whose checker is asked in the end.
    machine: Option<SimMachine>,
}

/// A device of that name that no other case has.
fn fresh(name: DeviceName) -> hal::Result<Arc<dyn Device>> {
    match name.kind() {
        DeviceKind::Cuda => Ok(CudaDevice::open(name.ordinal())?),
        DeviceKind::Hip => Ok(HipDevice::open(name.ordinal())?),
        DeviceKind::OpenCl => Ok(OpenClDevice::open(name.ordinal())?),
        _ => name.open(),
    }
}

impl Stage {
    /// The device of that name, or why there is none.
    pub(crate) fn open(name: &str) -> Result<Self, String> {
        let said = |error: hal::Error| error.to_string();
        let (device, machine) = if name == "sim" {
            let machine = SimMachine::builder().capacity(Bytes::gib(1)).build().map_err(said)?;
            let device = machine.device(0).ok_or("the simulated machine has no device 0")?;
            (device as Arc<dyn Device>, Some(machine))
        } else {
            (
                fresh(name.parse::<DeviceName>().map_err(hal::Error::from).map_err(said)?)
                    .map_err(said)?,
                None,
            )
        };
        Ok(Self { device, machine })
    }

    /// A new stream.
    pub(crate) fn stream(&self) -> Step<Stream> {
        Ok(Stream::new(&self.device, Priority::Normal)?)
    }

    /// Several.
    pub(crate) fn streams(&self, count: usize) -> Step<Vec<Stream>> {
        (0..count).map(|_| self.stream()).collect()
    }

    /// Writes `value` all over a block, in the order of `stream`.
    pub(crate) fn write(&self, at: Address, size: Bytes, value: u32, stream: StreamHandle) -> Step {
        let fill = Fill::linear(at, whole_words(size), Pattern::U32(value))?;
        // SAFETY: the block is the caller's, in the order of the stream.
        Ok(unsafe { self.device.fill(&fill, stream) }?)
    }

    /// Enqueues a look at a block, which [`Look::check`] ends after the stream was waited for.
    pub(crate) fn look(
        &self,
        at: Address,
        size: Bytes,
        value: u32,
        stream: StreamHandle,
    ) -> Step<Look> {
        let size = whole_words(size);
        let part = size.min(Bytes::new(LOOK));
        let last = at.get() + size.get() - part.get();
        let length = part.to_usize()?;
        let look = Look { value, bytes: [vec![0; length].leak(), vec![0; length].leak()] };
        for (start, to) in [at.get(), last].into_iter().zip(&look.bytes) {
            let to = Location::Host(Address::of_pointer(to.as_ptr()));
            let copy = Copy::linear(to, Location::Device(Address::new(start)), part)?;
            // SAFETY: the block is the caller's, and the bytes are never given back: where a case
            // fails, a copy may still be on its way there.
            unsafe { self.device.copy(&copy, stream) }?;
        }
        Ok(look)
    }

    /// Waits for a stream and looks at a block.
    pub(crate) fn check(&self, at: Address, size: Bytes, value: u32, stream: StreamHandle) -> Step {
        let look = self.look(at, size, value, stream)?;
        self.device.synchronize_stream(stream)?;
        look.check()
    }

    /// What the simulated device's checker has found; nothing elsewhere.
    pub(crate) fn no_findings(&self) -> Step {
        let Some(machine) = &self.machine else { return Ok(()) };
        let findings = machine.findings();
        ensure!(findings.is_empty(), "the checker found {findings:?}");
        Ok(())
    }
}

/// Fills are of whole words; no block is so small that it has none.
fn whole_words(size: Bytes) -> Bytes {
    Bytes::new((size.get() & !3).max(4))
}

/// Bytes on their way to the host, and what they must be.
pub(crate) struct Look {
    value: u32,
    bytes: [&'static mut [u8]; 2],
}

impl Look {
    /// Whether they are. The stream must have been waited for.
    pub(crate) fn check(&self) -> Step {
        let right = self.value.to_ne_bytes();
        for bytes in &self.bytes {
            // Read anew: the device has written there behind the compiler's back.
            let bytes = std::hint::black_box(&bytes[..]);
            let wrong = bytes.chunks(4).position(|word| word != right);
            ensure!(
                wrong.is_none(),
                "word {} of {} is {:02x?} and not {right:02x?}",
                wrong.unwrap_or(0),
                bytes.len() / 4,
                bytes.chunks(4).nth(wrong.unwrap_or(0))
            );
        }
        Ok(())
    }
}

/// Numbers that are the same in every run: splitmix64.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end as u64)).unwrap_or(0)
    }

    /// A size: each power of two from 512 B up to `most` as likely as any other.
    pub(crate) fn size(&mut self, most: Bytes) -> Bytes {
        let octaves = most.get().ilog2().saturating_sub(9);
        let octave = 9 + u32::try_from(self.below(octaves as usize)).unwrap_or(0);
        Bytes::new((1 << octave) + self.next() % (1 << octave))
    }

    /// A value to write.
    pub(crate) fn value(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap_or(0)
    }
}
