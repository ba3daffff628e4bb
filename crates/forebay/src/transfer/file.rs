//! Files as one end of a transfer: several threads read into slots, or write from them.

use std::fs::File;
use std::sync::Arc;

use bytemuck::Pod;
use forebay_core::Bytes;
use forebay_core::transfer::{CopyShape, Item, Packing};
use forebay_hal::{self as hal, Call, NamedStream, invalid};

use super::builder::{Endpoints, Transfer};
use super::engine::TransferEngine;
use super::files::Files;
use super::job::{Direction, HostEnd, Job, PartSource};
use super::owned::{Begun, begun};
use super::worker::submit;
use crate::range::check_device;
use crate::{Allocate, DeviceArray, host_vec};

/// A transfer between a file and an array.
#[derive(Debug)]
pub struct FileTransfer<T: Pod, A: Allocate> {
    direction: Direction,
    file: Arc<File>,
    offset: u64,
    array: DeviceArray<T, A>,
}

impl TransferEngine {
    /// Uploads bytes of a file, from `offset` on, to all elements of `array` from [`at`](Transfer::at) on. Fails if the
    /// file is too short.
    ///
    /// ```
    /// # use forebay::transfer::TransferEngine;
    /// # use forebay::{HostDevice, Pool};
    /// # let device = HostDevice::open()?;
    /// # let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
    /// # let path = std::env::temp_dir().join(format!("forebay-{}.weights", std::process::id()));
    /// std::fs::write(&path, [7; 4096])?;
    /// let file = std::sync::Arc::new(std::fs::File::open(&path)?);
    /// let array = pool.default_stream().uninit::<u8>(1024)?;
    /// let array = engine.upload_file(&file, 2048, array).submit()?.wait()?;
    /// assert_eq!(array.to_vec()?, [7; 1024]);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upload_file<T, A>(
        &self,
        file: &Arc<File>,
        offset: u64,
        array: DeviceArray<T, A>,
    ) -> Transfer<'_, FileTransfer<T, A>>
    where
        T: Pod + Send,
        A: Allocate + Send + 'static,
    {
        let file = Arc::clone(file);
        Transfer::new(self, FileTransfer { direction: Direction::Up, file, offset, array })
    }

    /// Downloads all elements of `array` from [`at`](Transfer::at) on to a file, from `offset` on.
    pub fn download_file<T, A>(
        &self,
        array: DeviceArray<T, A>,
        file: &Arc<File>,
        offset: u64,
    ) -> Transfer<'_, FileTransfer<T, A>>
    where
        T: Pod + Send,
        A: Allocate + Send + 'static,
    {
        let file = Arc::clone(file);
        Transfer::new(self, FileTransfer { direction: Direction::Down, file, offset, array })
    }
}

impl<T, A> Endpoints for FileTransfer<T, A>
where
    T: Pod + Send,
    A: Allocate + Send + 'static,
{
    type Submitted = Begun<DeviceArray<T, A>>;

    fn begin(self, TransferEngine { engine }: &TransferEngine, job: Job) -> Self::Submitted {
        let Self { direction, file, offset, array } = self;
        let start = || {
            let earlier = array.block().stream_in_order()?;
            check_device(array.block().allocator().device(), &engine.device)?;
            if job.region.is_some() {
                let given = "a region of a file";
                return Err(invalid(Call::Copy, "region", given, "consecutive elements").into());
            }
            check_file(&file, direction)?;
            let count = array.len().saturating_sub(job.first);
            let device = array.check_range(job.first, count)?.get();
            let size = Bytes::of::<T>(count as u64)
                .map_err(|error| hal::Error::quantity(Call::Copy, "length", &error))?
                .get();
            if offset.checked_add(size).is_none() {
                let given = format!("{size} B from offset {offset} on");
                return Err(invalid(Call::Copy, "offset", given, "less than 2^64 B").into());
            }
            let shape = match direction {
                Direction::Up => CopyShape::linear(device, offset, size),
                Direction::Down => CopyShape::linear(offset, device, size),
            };
            let job = job.through_slots(
                &engine.options,
                direction,
                HostEnd::Files(Arc::new(Files::one(file))),
                &shape,
            );
            // SAFETY: the host's side is a file. The ticket owns the array until the transfer is settled, or gives it to
            // the engine until then.
            Ok((unsafe { submit(engine, job, &[earlier]) }?, earlier))
        };
        let started = start();
        begun(engine, started, array)
    }
}

/// Uploads from files to all of `memory`, which is used in the order of `stream`: to the array of each from the offset on
/// that `place` gives. Loads of a slot's size contain arrays that lie one after the other in the files.
pub(crate) fn upload_ranges<R: Send + 'static>(
    TransferEngine { engine }: &TransferEngine,
    job: Job,
    files: Arc<Files>,
    memory: Vec<R>,
    stream: NamedStream,
    place: fn(&R) -> (u64, &DeviceArray<u8>),
) -> Begun<Vec<R>> {
    let start = || {
        if job.first != 0 || job.region.is_some() {
            let given = "elements or a region";
            return Err(invalid(Call::Copy, "transfer", given, "all of each array").into());
        }
        let mut items = host_vec::with_capacity(memory.len(), Call::Copy)?;
        let mut total = 0_u64;
        for (offset, array) in memory.iter().map(place).filter(|(_, array)| !array.is_empty()) {
            check_device(array.block().allocator().device(), &engine.device)?;
            let own = array.block().stream_in_order()?.handle();
            if own != stream.handle() {
                let given = format!("an array of {own}");
                let allowed = format!("arrays of {}", stream.handle());
                return Err(invalid(Call::Copy, "stream", given, allowed).into());
            }
            let size = array.len() as u64;
            items.push(Item { host: offset, device: array.address().get(), size });
            total = total.saturating_add(size);
        }
        let packing = Packing::new(engine.options.load(total));
        let supply = PartSource::Items(items.into(), packing);
        let host = HostEnd::Files(files);
        let job = Job { direction: Direction::Up, host, supply, total, ..job };
        // SAFETY: the host's side are files. The ticket owns the arrays until the transfer is settled, or gives them to
        // the engine until then; their blocks stay where they are.
        Ok((unsafe { submit(engine, job, &[stream]) }?, stream))
    };
    let started = start();
    begun(engine, started, memory)
}

/// Fails for a file opened for appending, because the system would ignore the offset.
#[cfg(unix)]
fn check_file(file: &File, direction: Direction) -> crate::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file);
    if direction == Direction::Down
        && flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::APPEND))
    {
        let given = "one that is open for appending";
        return Err(invalid(Call::Copy, "file", given, "one that is written at offsets").into());
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_file(_: &File, _: Direction) -> crate::Result<()> {
    Ok(())
}
