//! A block with one owner.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use forebay_core::{Address, Bytes, round_by_an_eighth};
use forebay_hal::{self as hal, Call, NamedStream, StreamHandle};

use super::lost::{self, LostFree};
use super::{Refused, order};
use crate::sync::lock;
use crate::{Allocate, Block, Error, Pool, RecordedUse, Request, Result};

/// A block that is freed, in the order of its stream, on drop.
///
/// The [module's documentation](super) explains how to order several streams that use the block, and how drops handle
/// errors.
///
/// ```
/// use forebay::{Bytes, HostDevice, OwnedBlock, Pool, Priority, Request, Stream};
///
/// let device = HostDevice::open()?;
/// let pool = Pool::new(&device)?;
/// let [compute, copies] = [(); 2].map(|()| Stream::new(&device, Priority::Normal));
/// let (compute, copies) = (compute?, copies?);
///
/// let block = OwnedBlock::new(&pool, Request::new(Bytes::new(1000), &compute))?;
/// assert_eq!((block.requested(), block.size()), (Bytes::new(1000), Bytes::new(1024)));
/// block.used_on(&copies); // a kernel there reads it
/// drop(block); // the memory is used again after that kernel; nothing waits for it
/// assert_eq!(pool.statistics().live, Bytes::ZERO);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the block is freed when this is dropped"]
pub struct OwnedBlock<A: Allocate = Pool> {
    allocator: A,
    /// Null once it was given up or freed; the drop then does nothing.
    block: Block,
    requested: Bytes,
    stream: NamedStream,
    /// Locked so that all owners of a shared block can record uses.
    uses: Mutex<Uses>,
}

/// Another stream that uses a block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Use {
    stream: NamedStream,
    /// How often the handle itself left work there that its stream does not yet wait for. A count, since other threads
    /// may leave more while one makes the stream wait.
    left: u32,
}

/// The other streams that use a block.
#[derive(Default)]
struct Uses {
    /// A list, since there are few.
    list: Vec<Use>,
    /// The number of streams at which ended ones are passed on to the allocator.
    full_at: u32,
    /// Whether any were passed on.
    passed_on: bool,
    /// How often the handle left work on one of these.
    left_passed_on: u32,
}

impl Uses {
    /// Below this number, it is not worth looking for ended streams.
    const FEW: usize = 8;

    fn streams(&self) -> impl Iterator<Item = NamedStream> {
        self.list.iter().map(|used| used.stream)
    }
}

impl<A: Allocate> OwnedBlock<A> {
    /// Allocates a block from any allocator. [`OnStream::owned`](super::OnStream::owned) is a shorthand.
    pub fn new(allocator: &A, request: Request) -> Result<Self>
    where
        A: Clone,
    {
        let block = allocator.allocate_owned(request)?;
        Ok(Self::of(allocator.clone(), block, request.size(), request.stream()))
    }

    /// As [`new`](Self::new), rounded up by at most an eighth, so that the next request of about this size finds the
    /// freed block. [`OnStream::rent`](super::OnStream::rent) is a shorthand.
    pub fn rent(allocator: &A, least: Bytes, stream: impl Into<StreamHandle>) -> Result<Self>
    where
        A: Clone,
    {
        let (size, stream) = (round_by_an_eighth(least).unwrap_or(least), stream.into());
        let block = allocator.allocate_owned(Request::new(size, stream))?;
        Ok(Self::of(allocator.clone(), block, least, stream))
    }

    /// Makes a handle for a block that has none. It frees the block in the order of `stream`.
    ///
    /// The requested size is unknown: [`requested`](Self::requested) returns the block's size.
    ///
    /// # Safety
    ///
    /// * `block` is a live block of `allocator`, or one of no bytes.
    /// * No other handle owns it, and nothing else frees it.
    /// * The work that uses it is ordered before what is enqueued on `stream` from now on.
    pub unsafe fn from_raw(allocator: A, block: Block, stream: impl Into<StreamHandle>) -> Self {
        // The caller promises that it is live and has no owner.
        let _ = allocator.own(block);
        let stream = stream.into();
        allocator.watch_stream(stream.resolved());
        Self::of(allocator, block, block.size(), stream)
    }

    pub(super) fn of(allocator: A, block: Block, requested: Bytes, stream: StreamHandle) -> Self {
        let (stream, uses) = (NamedStream::now(stream), Mutex::new(Uses::default()));
        Self { allocator, block, requested, stream, uses }
    }

    /// Returns the block, which the caller must free, in the order of any stream: the handle's stream and the recorded
    /// ones become [uses](Allocate::record_use) with the allocator. If it records none, the host waits for their work.
    /// An error returns the handle.
    pub fn into_raw(mut self) -> core::result::Result<Block, Refused<Self>> {
        let passed_on = match self.allocator.device().descriptor().check_process(Call::Free) {
            Ok(()) => self.pass_on_for_all(),
            Err(error) => Err(error.into()),
        };
        match passed_on {
            Ok(()) => Ok(self.disown()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// As [`into_raw`](Self::into_raw), without uses to pass on.
    ///
    /// # Safety
    ///
    /// * No work that uses the block was enqueued.
    #[doc(hidden)]
    pub unsafe fn into_raw_unused(mut self) -> Block {
        self.disown()
    }

    /// Ends the ownership of the block.
    fn disown(&mut self) -> Block {
        // SAFETY: this handle owns it, and knows it no more after this.
        unsafe { self.allocator.disown(self.block) };
        self.give_up()
    }

    /// Marks the handle's stream as one that never ends.
    #[cfg(feature = "host")]
    pub(crate) fn on_lasting_stream(mut self) -> Self {
        self.stream = NamedStream::lasting(self.stream.handle());
        self
    }

    /// Takes the block out of the handle.
    fn give_up(&mut self) -> Block {
        let none = Block { address: Address::NULL, size: Bytes::ZERO, ..self.block };
        core::mem::replace(&mut self.block, none)
    }

    /// The address of the first byte; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.block.address()
    }

    /// The size: the requested one, rounded up.
    pub fn size(&self) -> Bytes {
        self.block.size()
    }

    /// The requested size.
    pub fn requested(&self) -> Bytes {
        self.requested
    }

    /// The block as plain data. The handle keeps owning it.
    pub fn block(&self) -> Block {
        self.block
    }

    /// The stream that the handle belongs to.
    pub fn stream(&self) -> StreamHandle {
        self.stream.handle()
    }

    /// The allocator of the block.
    pub fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Records that work on `stream` uses the block too. After the handle is dropped, the memory is reused only after
    /// the work enqueued there by then, or before the stream ended; no stream waits for it.
    ///
    /// This orders nothing by itself: order the work on `stream` after the work whose results it reads.
    ///
    /// Does nothing in a forked child, for the parent's block.
    pub fn used_on(&self, stream: impl Into<StreamHandle>) {
        self.note_use(stream.into(), 0);
    }

    /// As [`used_on`](Self::used_on), for work that a call of the handle has enqueued: later calls come after it.
    pub(super) fn leave_work_on(&self, stream: StreamHandle) {
        self.note_use(stream, 1);
    }

    fn note_use(&self, stream: StreamHandle, left: u32) {
        if self.is_from_parent() {
            return;
        }
        let (stream, device) = (NamedStream::now(stream), self.allocator.device());
        let is_it =
            |known: NamedStream| known.handle() == stream.handle() && !known.has_ended(device);
        if is_it(self.stream) {
            return;
        }
        // A list of plain values is always consistent, even after a panic of another thread.
        let mut uses = lock(&self.uses);
        if let Some(known) = uses.list.iter_mut().find(|used| is_it(used.stream)) {
            known.left = known.left.saturating_add(left);
            return;
        }
        self.add_use(&mut uses, Use { stream, left });
        drop(uses);
        self.allocator.watch_stream(stream.handle());
    }

    /// The number of other streams recorded here.
    #[cfg(test)]
    pub(super) fn recorded_uses(&self) -> usize {
        lock(&self.uses).list.len()
    }

    fn add_use(&self, uses: &mut Uses, used: Use) {
        if uses.list.len() >= (uses.full_at as usize).max(Uses::FEW) {
            self.pass_on_ended(uses);
        }
        uses.list.push(used);
    }

    /// Passes uses on ended streams on to the allocator, which knows when their work is done. This keeps a handle that
    /// outlives many streams from growing.
    #[cold]
    fn pass_on_ended(&self, uses: &mut Uses) {
        let (device, address) = (self.allocator.device(), self.block.address());
        let (mut passed_on, mut left_passed_on) = (uses.passed_on, uses.left_passed_on);
        uses.list.retain(|&Use { stream, left }| {
            let is_passed_on = stream.has_ended(device)
                && matches!(self.allocator.record_use(address, stream), Ok(RecordedUse::Recorded));
            passed_on |= is_passed_on;
            left_passed_on = left_passed_on.saturating_add(if is_passed_on { left } else { 0 });
            !is_passed_on
        });
        (uses.passed_on, uses.left_passed_on) = (passed_on, left_passed_on);
        // Doubling makes the amortised cost of the search constant per use.
        uses.full_at = u32::try_from(2 * uses.list.len()).unwrap_or(u32::MAX);
    }

    /// The stream to enqueue work on that uses the block, after the work that the handle left on other streams. If the
    /// handle's own stream has ended, waits for the whole device, and uses whichever stream has its handle now as a
    /// further stream.
    pub(crate) fn stream_to_use(&self) -> Result<StreamHandle> {
        let stream = self.stream_in_order()?;
        let device = self.allocator.device();
        if stream.has_ended(device) {
            device.synchronize_device()?;
            self.leave_work_on(stream.handle());
        }
        Ok(stream.handle())
    }

    /// Makes the handle's stream wait, on the device, for the work that the handle left on other streams. Fails during
    /// a capture: the wait would become part of the graph.
    pub(crate) fn stream_in_order(&self) -> Result<NamedStream> {
        let (left, left_passed_on) = {
            let uses = lock(&self.uses);
            let left: Vec<Use> = uses.list.iter().filter(|used| used.left > 0).copied().collect();
            (left, uses.left_passed_on)
        };
        if left.is_empty() && left_passed_on == 0 {
            return Ok(self.stream);
        }
        if self.allocator.is_capturing() {
            let missing = "order after the stream that the handle was on before a capture".into();
            return Err(hal::Error::Unsupported { call: Call::RecordEvent, missing }.into());
        }
        let device = self.allocator.device();
        if left_passed_on > 0 || self.stream.has_ended(device) {
            device.synchronize_device()?;
        } else {
            order::after(device, self.stream.handle(), left.iter().map(|used| used.stream))?;
        }
        // Another thread may have left more meanwhile, which the stream does not wait for.
        let mut uses = lock(&self.uses);
        if uses.left_passed_on == left_passed_on {
            uses.left_passed_on = 0;
        }
        for used in uses.list.iter_mut().filter(|used| left.contains(used)) {
            used.left = 0;
        }
        Ok(self.stream)
    }

    /// Whether this is a forked child that inherited its parent's block.
    pub(super) fn is_from_parent(&self) -> bool {
        self.allocator.device().descriptor().is_from_parent()
    }

    /// Makes the handle's stream wait, on the device, for the recorded streams, and forgets them. After an error they
    /// stay recorded. This records events, so do not call it while these streams are captured.
    pub fn settle(&mut self) -> Result<()> {
        self.hand_over_to(self.stream.handle())
    }

    /// Makes `stream` wait, on the device, for the handle's stream and the recorded ones, and moves the handle to
    /// `stream`. The host waits for the whole device if one of them has ended or is another thread's default stream.
    /// After an error the handle is not moved. Like [`settle`](Self::settle), this records events.
    pub fn hand_over_to(&mut self, stream: impl Into<StreamHandle>) -> Result<()> {
        let stream = stream.into();
        let device = self.allocator.device();
        device.descriptor().check_process(Call::RecordEvent)?;
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        if uses.passed_on {
            device.synchronize_device()?;
        } else {
            let earlier = uses.streams().chain([self.stream]);
            order::after(device, stream, earlier)?;
        }
        self.reset_to(stream);
        Ok(())
    }

    /// Moves the handle to `stream`, without making it wait: the previous stream is recorded as one that
    /// [uses](Self::used_on) the block. The next fill, copy or transfer of the handle makes `stream` wait for it first.
    /// During a capture that fails; call [`hand_over_to`](Self::hand_over_to) before the capture to avoid it.
    pub fn set_stream(&mut self, stream: impl Into<StreamHandle>) {
        let (before, device) = (self.stream, self.allocator.device());
        let stream = NamedStream::now(stream.into());
        if before.handle() == stream.handle() && !before.has_ended(device) {
            return;
        }
        let mut uses = lock(&self.uses);
        // Back on a previously recorded stream, whose work is now the handle's own again.
        let is_it = |used: NamedStream| used.handle() == stream.handle() && !used.has_ended(device);
        uses.list.retain(|used| !is_it(used.stream));
        self.add_use(&mut uses, Use { stream: before, left: 1 });
        drop(uses);
        self.stream = stream;
        self.allocator.watch_stream(stream.handle());
    }

    /// Moves the handle to `stream` and forgets the recorded streams: their work is done, or `stream` waits for it.
    pub(crate) fn reset_to(&mut self, stream: StreamHandle) {
        *self.uses.get_mut().unwrap_or_else(PoisonError::into_inner) = Uses::default();
        let stream = NamedStream::now(stream);
        if stream != self.stream {
            self.allocator.watch_stream(stream.handle());
        }
        self.stream = stream;
    }

    /// Frees the block in the order of its stream. Unlike a drop, returns any error.
    pub fn free(self) -> core::result::Result<(), Refused<Self>> {
        self.free_on_its_own()
    }

    /// Frees the block in the order of `stream`: [`set_stream`](Self::set_stream) and [`free`](Self::free). An error
    /// returns the handle, which then belongs to `stream`.
    pub fn free_on(
        mut self,
        stream: impl Into<StreamHandle>,
    ) -> core::result::Result<(), Refused<Self>> {
        self.set_stream(stream);
        self.free_on_its_own()
    }

    fn free_on_its_own(mut self) -> core::result::Result<(), Refused<Self>> {
        match self.give_back() {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// Frees the block after the work of the recorded streams. An error changes nothing, except that the stream may
    /// wait for some of them.
    fn give_back(&mut self) -> Result<()> {
        if self.block.address().is_null() {
            return Ok(());
        }
        self.allocator.device().descriptor().check_process(Call::Free)?;
        self.give_back_here()
    }

    /// Passes the recorded uses on to the allocator. Returns the stream to free the block on: the handle's, or, if that
    /// has ended, the default stream, with the ended one as a use.
    #[cold]
    fn pass_on_uses(&mut self) -> Result<StreamHandle> {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let device = self.allocator.device();
        let own = Some(self.stream).filter(|own| own.has_ended(device));
        let stream = own.map_or(self.stream.handle(), |_| StreamHandle::DEFAULT);
        let used = uses.streams().chain(own);
        let left = Self::pass_on(&self.allocator, self.block, used)?;
        if !left.is_empty() {
            order::after(device, stream, left)?;
        }
        Ok(stream)
    }

    /// Passes uses on to the allocator. Returns those that it does not record, which the caller must order.
    fn pass_on(
        allocator: &A,
        block: Block,
        uses: impl Iterator<Item = NamedStream>,
    ) -> Result<Vec<NamedStream>> {
        let mut left = Vec::new();
        for used in uses {
            match allocator.record_use(block.address(), used)? {
                RecordedUse::Recorded => {}
                RecordedUse::Unsupported if allocator.is_capturing() => {
                    // During a capture, an event would become part of the graph.
                    let missing = "an allocator that records further uses of its blocks".into();
                    return Err(hal::Error::Unsupported { call: Call::RecordEvent, missing }.into());
                }
                RecordedUse::Unsupported => left.push(used),
            }
        }
        Ok(left)
    }

    /// Passes all uses on to the allocator, including the handle's stream, so that the block may be freed in any order.
    fn pass_on_for_all(&mut self) -> Result<()> {
        if self.block.address().is_null() {
            return Ok(());
        }
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let device = self.allocator.device();
        let used = uses.streams().chain([self.stream]);
        for left in Self::pass_on(&self.allocator, self.block, used)? {
            if left.has_ended(device) || left.handle().is_of_another_thread() {
                device.synchronize_device()?;
            } else {
                device.synchronize_stream(left.handle())?;
            }
        }
        Ok(())
    }

    /// As [`give_back`](Self::give_back), for a block of this process.
    fn give_back_here(&mut self) -> Result<()> {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let stream = if uses.list.is_empty() && self.stream.is_fresh() {
            Ok(self.stream.handle())
        } else {
            self.pass_on_uses()
        };
        // SAFETY: this handle owns it. While it does not, nobody can touch the memory by it: it is borrowed
        // here until it owns the block again, or has none.
        let given =
            stream.and_then(|stream| unsafe { self.allocator.free_owned(self.block, stream) });
        let Err(error) = given else {
            self.give_up();
            return Ok(());
        };
        // If passing on its uses failed, this handle still owns it, unless it was freed meanwhile.
        let freed = self.allocator.own(self.block).is_err_and(|error| {
            use Error::{DoubleFree, NotABlock, StaleBlock};
            matches!(error, DoubleFree { .. } | NotABlock { .. } | StaleBlock { .. })
        });
        if freed {
            // Just freed by its address: this handle must not touch it any more.
            self.give_up();
        }
        Err(error)
    }
}

impl<A: Allocate> Drop for OwnedBlock<A> {
    fn drop(&mut self) {
        if self.is_from_parent() {
            // The block is the parent's. Leak the list: another thread may have been changing it.
            let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(core::mem::take(uses));
            return;
        }
        if self.block.address().is_null() {
            return;
        }
        let mut given = self.give_back_here();
        if matches!(&given, Err(Error::Device(error)) if error.may_pass()) {
            given = self.give_back();
        }
        if let Err(error) = given {
            // So that a reader of the report can free it by its address.
            // SAFETY: this handle owns it, and is going.
            unsafe { self.allocator.disown(self.block) };
            lost::note(LostFree { block: self.block, stream: self.stream.handle(), error });
        }
    }
}

impl<A: Allocate> fmt::Debug for OwnedBlock<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBlock")
            .field("block", &self.block)
            .field("requested", &self.requested)
            .field("stream", &self.stream.handle())
            .finish_non_exhaustive()
    }
}
