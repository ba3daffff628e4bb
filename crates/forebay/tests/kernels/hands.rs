//! Who writes to memory late and looks at it: kernels, or fills behind a task of the host.

use core::ffi::{CStr, c_void};
use core::fmt;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use forebay::cuda::sys::{DriverError, RawContext, RawFunction, RawModule, RawStream, Symbols};
use forebay::hal::{Copy, Fill, ForeignStreams, Location, Memory, Pattern, Streams, Transfers};
use forebay::{Address, Alignment, Bytes, CudaDevice, Device, Priority, Stream};

use crate::{Step, as_device};

/// The kernels, ending with a zero as the driver wants it.
const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Threads of a block, and blocks: few enough to be on the device all at once, so that the wait of
/// a kernel is the wait of each of its threads.
const THREADS: u32 = 256;
const BLOCKS: u32 = 64;

/// How work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// By kernels.
    Kernels,
    /// By fills and copies, made late by a task of the host before them.
    Fills,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernels => "kernels",
            Self::Fills => "fills",
        })
    }
}

/// The kernels of a context, and the word that mismatches are counted in.
struct Kernels {
    late_fill: RawFunction,
    count_others: RawFunction,
    counter: Address,
}

/// Someone who works on a device's memory, in the order of its streams.
pub(crate) struct Hands {
    pub(crate) device: Arc<CudaDevice>,
    /// Whether there is hardware behind the driver.
    pub(crate) real: bool,
    pub(crate) work: Work,
    kernels: Option<Kernels>,
}

/// Makes a row of calls in the device's context, and leaves the thread's own as it was.
fn within<T>(
    device: &CudaDevice,
    calls: impl FnOnce(&Symbols) -> Result<T, DriverError>,
) -> Step<T> {
    let table = device.driver().table();
    let said = |refusal: DriverError| format!("the driver refused: {refusal:?}");
    let mut popped = RawContext::NULL;
    // SAFETY: the device's context is live.
    unsafe { table.context_push(RawContext(device.raw_context())) }.map_err(said)?;
    let result = calls(table);
    // SAFETY: what was pushed above is popped, into a place of our own.
    unsafe { table.context_pop(&raw mut popped) }.map_err(said)?;
    Ok(result.map_err(said)?)
}

fn kernel(device: &CudaDevice, module: RawModule, name: &CStr) -> Step<RawFunction> {
    let mut function = RawFunction::NULL;
    // SAFETY: a loaded module, a name that ends with a zero, a place of our own.
    within(device, |table| unsafe {
        table.module_get_function(&raw mut function, module, name.as_ptr())
    })?;
    Ok(function)
}

impl Kernels {
    fn load(device: &Arc<CudaDevice>) -> Step<Self> {
        let mut module = RawModule::NULL;
        // SAFETY: text that ends with a zero, and a place of our own. The module stays to the end of
        // the process.
        within(device, |table| unsafe {
            table.module_load(&raw mut module, TEXT.as_ptr().cast())
        })?;
        Ok(Self {
            late_fill: kernel(device, module, c"late_fill")?,
            count_others: kernel(device, module, c"count_others")?,
            // Goes with the device: to free it here would wait for all work.
            counter: device.allocate(Bytes::new(4), Alignment::BLOCK)?,
        })
    }
}

impl Hands {
    pub(crate) fn new(device: &Arc<CudaDevice>, real: bool, work: Work) -> Step<Self> {
        let kernels = match work {
            Work::Kernels => Some(Kernels::load(device)?),
            Work::Fills => None,
        };
        Ok(Self { device: Arc::clone(device), real, work, kernels })
    }

    /// A new stream.
    pub(crate) fn stream(&self) -> Step<Stream> {
        Ok(Stream::new(&as_device(&self.device), Priority::Normal)?)
    }

    /// The default stream of whichever thread uses it.
    pub(crate) fn own_stream(&self) -> Step<Stream> {
        // SAFETY: such a stream is there as long as its thread.
        Ok(unsafe { Stream::foreign(&as_device(&self.device), RawStream::PER_THREAD.0) }?)
    }

    /// Runs a kernel whose last argument is `last`.
    fn launch(
        &self,
        function: RawFunction,
        stream: &Stream,
        (at, words, value): (Address, u64, u32),
        last: u64,
    ) -> Step {
        let (mut at, mut words, mut value, mut last) = (at.get(), words, value, last);
        let mut parameters: [*mut c_void; 4] = [
            (&raw mut at).cast(),
            (&raw mut words).cast(),
            (&raw mut value).cast(),
            (&raw mut last).cast(),
        ];
        let raw = RawStream(self.device.raw_stream(stream.handle()));
        // SAFETY: a kernel of this context with four arguments of these widths; what it writes to
        // is a block that the caller has, in the order of its stream.
        within(&self.device, |table| unsafe {
            table.launch_kernel(
                function,
                BLOCKS,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                raw,
                parameters.as_mut_ptr(),
                core::ptr::null_mut(),
            )
        })
    }

    /// Writes `value` to a block, `delay` after its turn has come on the stream.
    pub(crate) fn write(
        &self,
        stream: &Stream,
        (at, size): (Address, Bytes),
        value: u32,
        delay: Duration,
    ) -> Step {
        match &self.kernels {
            Some(kernels) => {
                let nanoseconds = u64::try_from(delay.as_nanos())?;
                self.launch(kernels.late_fill, stream, (at, size.get() / 4, value), nanoseconds)
            }
            None => {
                if !delay.is_zero() {
                    self.device.enqueue_host(Box::new(move || sleep(delay)), stream.handle())?;
                }
                let fill = Fill::linear(at, size, Pattern::U32(value))?;
                // SAFETY: the block is the caller's, in the order of its stream.
                Ok(unsafe { self.device.fill(&fill, stream.handle()) }?)
            }
        }
    }

    /// How many words of a block hold something else than `value`, in the order of the stream.
    pub(crate) fn others(
        &self,
        stream: &Stream,
        (at, size): (Address, Bytes),
        value: u32,
    ) -> Step<u64> {
        let Some(kernels) = &self.kernels else {
            let back = self.read(stream, at, size)?;
            let right = value.to_ne_bytes();
            return Ok(back.chunks(4).filter(|word| *word != right).count() as u64);
        };
        let zero = Fill::linear(kernels.counter, Bytes::new(4), Pattern::U32(0))?;
        // SAFETY: the counter is our own, and used on one stream at a time.
        unsafe { self.device.fill(&zero, stream.handle()) }?;
        let words = (at, size.get() / 4, value);
        self.launch(kernels.count_others, stream, words, kernels.counter.get())?;
        let count = self.read(stream, kernels.counter, Bytes::new(4))?;
        Ok(u64::from(u32::from_ne_bytes(count.as_slice().try_into()?)))
    }

    /// What memory holds when the stream has come so far.
    fn read(&self, stream: &Stream, at: Address, size: Bytes) -> Step<Vec<u8>> {
        let mut back = vec![0_u8; size.to_usize()?];
        let host = Location::Host(Address::of_pointer(back.as_mut_ptr()));
        let copy = Copy::linear(host, Location::Device(at), size)?;
        // SAFETY: the memory is the caller's; the bytes are waited for below, or given up.
        let copied = unsafe { self.device.copy(&copy, stream.handle()) };
        if let Err(error) = copied.and_then(|()| stream.synchronize()) {
            // A copy may still be on its way there: better lost than written to later.
            core::mem::forget(back);
            return Err(error.into());
        }
        Ok(back)
    }

    /// The device as a pool takes it.
    pub(crate) fn pool_device(&self) -> Arc<dyn Device> {
        as_device(&self.device)
    }
}
