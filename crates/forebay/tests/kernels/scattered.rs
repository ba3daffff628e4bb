//! Many small copies between pinned memory and scattered places of the device: by the kernel that copies where there is
//! hardware, by what stands for it elsewhere.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use forebay::cuda::CudaDriver;
use forebay::hal::{
    Copy, Fill, Location, Memory, Pattern, PinnedFlags, PinnedMemory, Priority, StreamHandle,
    Streams, Transfers,
};
use forebay::{Address, Alignment, Bytes, CudaDevice};

use crate::{Step, ensure};

const COUNT: u64 = 10_000;

/// How often each way is timed.
const ROUNDS: usize = 5;

/// Memory for copies of one size: on the device each begins `apart` bytes after the one before and in another order than
/// on the host, where they lie side by side.
struct Bench {
    device: Arc<CudaDevice>,
    stream: StreamHandle,
    memory: Address,
    from: Address,
    back: Address,
    size: u64,
    apart: u64,
}

impl Bench {
    fn new(driver: &'static CudaDriver, size: u64, apart: u64) -> Step<Self> {
        let device = CudaDevice::open_with(driver, 0)?;
        let stream = device.create_stream(Priority::Normal)?;
        let memory = device.allocate(Bytes::new(COUNT * apart), Alignment::BLOCK)?;
        let pinned = || device.allocate_pinned(Bytes::new(COUNT * size), PinnedFlags::empty());
        let (from, back) = (pinned()?, pinned()?);
        Ok(Self { device, stream, memory, from, back, size, apart })
    }

    fn copies(
        &self,
        copy: impl Fn(Address, Address) -> Step<Copy>,
        host: Address,
    ) -> Step<Vec<Copy>> {
        let at = |start: Address, offset| Address::new(start.get() + offset);
        // 7919 has no factor in common with the count, so each place is used once.
        let place = |number: u64| number * 7919 % COUNT * self.apart;
        let numbers = 0..COUNT;
        numbers.map(|n| copy(at(self.memory, place(n)), at(host, n * self.size))).collect()
    }

    fn uploads(&self) -> Step<Vec<Copy>> {
        let size = Bytes::new(self.size);
        let copy =
            |device, host| Ok(Copy::linear(Location::Device(device), Location::Host(host), size)?);
        self.copies(copy, self.from)
    }

    fn downloads(&self) -> Step<Vec<Copy>> {
        let size = Bytes::new(self.size);
        let copy =
            |device, host| Ok(Copy::linear(Location::Host(host), Location::Device(device), size)?);
        self.copies(copy, self.back)
    }

    /// Makes the copies, in one call or one by one, and waits. Returns the time.
    fn make(&self, copies: &[Copy], at_once: bool) -> Step<Duration> {
        let begin = Instant::now();
        // SAFETY: memory of the bench, which is given back when all work is done.
        unsafe {
            if at_once {
                self.device.copy_all(copies, self.stream)?;
            } else {
                copies.iter().try_for_each(|copy| self.device.copy(copy, self.stream))?;
            }
        }
        self.device.synchronize_stream(self.stream)?;
        Ok(begin.elapsed())
    }

    /// The least time of some rounds.
    fn least_time(&self, copies: &[Copy], at_once: bool) -> Step<Duration> {
        let mut least = Duration::MAX;
        for _ in 0..ROUNDS {
            least = least.min(self.make(copies, at_once)?);
        }
        Ok(least)
    }

    /// What is in pinned memory of this bench, while no work uses it.
    fn host(&self, start: Address, size: u64) -> &[u8] {
        let length = usize::try_from(size).unwrap_or(0);
        let pointer = usize::try_from(start.get()).unwrap_or(0);
        // SAFETY: pinned memory of this length, which lives as long as the bench and was written.
        unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(pointer), length) }
    }

    fn fill_host(&self, start: Address, byte: impl Fn(u64) -> u8) {
        for at in 0..COUNT * self.size {
            let place = usize::try_from(start.get() + at).unwrap_or(0);
            // SAFETY: a byte of the pinned memory, which no work uses meanwhile.
            unsafe { core::ptr::with_exposed_provenance_mut::<u8>(place).write(byte(at)) };
        }
    }

    /// There and back by one call each; whether every byte came back.
    fn comes_back(&self) -> Step<bool> {
        self.fill_host(self.from, |at| (at % 251).to_le_bytes()[0] ^ (at >> 12).to_le_bytes()[0]);
        self.fill_host(self.back, |_| 0);
        self.make(&self.uploads()?, true)?;
        self.make(&self.downloads()?, true)?;
        let size = COUNT * self.size;
        Ok(self.host(self.from, size) == self.host(self.back, size))
    }

    /// Uploads over a fill; whether the bytes between the copies are those of the fill.
    fn writes_nothing_else(&self) -> Step<bool> {
        const GROUND: u8 = 0xee;
        let whole = Bytes::new(COUNT * self.apart);
        let fill = Fill::linear(self.memory, whole, Pattern::U8(GROUND))?;
        // SAFETY: memory of the bench, which is given back when all work is done.
        unsafe { self.device.fill(&fill, self.stream) }?;
        self.make(&self.uploads()?, true)?;
        let found = self.device.allocate_pinned(whole, PinnedFlags::empty())?;
        let copy = Copy::linear(Location::Host(found), Location::Device(self.memory), whole)?;
        self.make(&[copy], false)?;
        let (size, apart) = (usize::try_from(self.size)?, usize::try_from(self.apart)?);
        let places = self.host(found, whole.get()).chunks(apart);
        let is_right = places.flat_map(|place| place.iter().skip(size)).all(|&byte| byte == GROUND);
        // SAFETY: all work is done, and nothing above is used any more.
        unsafe { self.device.free_pinned(found) }?;
        Ok(is_right)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let device = &self.device;
        let _ = device.synchronize_device();
        // SAFETY: all work is done. For all three.
        unsafe {
            let _ = device.free(self.memory);
            let _ = device.free_pinned(self.from);
            let _ = device.free_pinned(self.back);
        }
        let _ = device.destroy_stream(self.stream);
    }
}

/// Copies of a page to and from scattered places, and ones that begin at odd places.
pub(crate) fn arrives(driver: &'static CudaDriver) -> Step {
    for (size, apart) in [(4096, 8192), (4096, 4099), (777, 780), (5, 7)] {
        let bench = Bench::new(driver, size, apart)?;
        ensure!(bench.comes_back()?, "{COUNT} copies of {size} B, {apart} B apart: other bytes");
        ensure!(
            bench.writes_nothing_else()?,
            "{COUNT} copies of {size} B, {apart} B apart: bytes between them were written"
        );
    }
    Ok(())
}

/// How fast it is beside one call for each, on hardware.
pub(crate) fn figures(driver: &'static CudaDriver) -> Step {
    for (size, apart) in [(64, 512), (512, 1024), (4096, 8192), (4097, 8192), (32_768, 65_536)] {
        let bench = Bench::new(driver, size, apart)?;
        ensure!(bench.comes_back()?, "{COUNT} copies of {size} B: other bytes");
        for (direction, copies) in [("up", bench.uploads()?), ("down", bench.downloads()?)] {
            let (at_once, each) =
                (bench.least_time(&copies, true)?, bench.least_time(&copies, false)?);
            println!(
                "record: {{\"case\":\"scattered\",\"direction\":\"{direction}\",\"copies\":{COUNT},\"bytes\":{size},\"at_once_us\":{:.1},\"loop_us\":{:.1},\"at_once_gbps\":{:.2}}}",
                at_once.as_secs_f64() * 1e6,
                each.as_secs_f64() * 1e6,
                (COUNT * size) as f64 / at_once.as_secs_f64() / 1e9
            );
        }
    }
    Ok(())
}
