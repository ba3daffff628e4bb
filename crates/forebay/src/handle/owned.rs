//! A block with one owner.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, NamedStream, StreamHandle};

use super::failure::may_pass;
use super::lost::{self, LostFree};
use super::{Refused, order};
use crate::sync::lock;
use crate::{Allocate, Block, Error, Pool, RecordedUse, Request, Result};

/// A block that is freed in the order of its stream when it is dropped.
///
/// The [module's documentation](super) says how to keep the order when several streams use the block, and what happens
/// to errors in a drop.
///
/// ```
/// use forebay::{Bytes, HostDevice, OwnedBlock, Pool, Priority, Request, Stream};
///
/// let device = HostDevice::open()?;
/// let pool = Pool::new(&device)?;
/// let [compute, copies] = [(); 2].map(|()| Stream::new(&device, Priority::Normal));
/// let (compute, copies) = (compute?, copies?);
///
/// let block = OwnedBlock::new(&pool, Request::new(Bytes::new(1000), compute.handle()))?;
/// assert_eq!((block.requested(), block.size()), (Bytes::new(1000), Bytes::new(1024)));
/// block.used_on(copies.handle()); // a kernel there reads it
/// drop(block); // the memory is used again after that kernel; nothing waits for it
/// assert_eq!(pool.statistics().live, Bytes::ZERO);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the block is freed when this is dropped"]
pub struct OwnedBlock<A: Allocate = Pool> {
    allocator: A,
    /// Null once it was given up or freed: then there is nothing to do in the drop.
    block: Block,
    requested: Bytes,
    stream: NamedStream,
    /// Under a lock so that those who share a block can all note theirs.
    uses: Mutex<Uses>,
}

/// A further stream that uses a block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Use {
    stream: NamedStream,
    /// Whether the handle itself left work there that its stream does not wait for yet.
    is_left: bool,
}

/// Further streams that use a block.
#[derive(Default)]
struct Uses {
    /// Few, so a list.
    list: Vec<Use>,
    /// The number of streams at which those that have ended are passed on to the allocator.
    full_at: u32,
    /// Whether some were.
    passed_on: bool,
    /// Whether the handle left work on one of those.
    left_passed_on: bool,
}

impl Uses {
    /// Below this number, looking for streams that have ended is not worth it.
    const FEW: usize = 8;

    fn is_empty(&self) -> bool {
        self.list.is_empty() && !self.passed_on
    }

    fn streams(&self) -> impl Iterator<Item = NamedStream> {
        self.list.iter().map(|used| used.stream)
    }
}

impl<A: Allocate> OwnedBlock<A> {
    /// Allocates a block from any allocator. [`Pool::owned`] is the short way.
    pub fn new(allocator: &A, request: Request) -> Result<Self>
    where
        A: Clone,
    {
        let block = allocator.allocate_owned(request)?;
        Ok(Self::of(allocator.clone(), block, request.size(), request.stream()))
    }

    /// Makes a handle of a block without one, to be freed in the order of `stream`.
    ///
    /// The requested size is no longer known: [`requested`](Self::requested) returns the block's size.
    ///
    /// # Safety
    ///
    /// * `block` is a live block of `allocator`, or one of no bytes.
    /// * No other handle owns it, and nobody frees it but this one.
    /// * The work that uses it is ordered before what is enqueued on `stream` from now on.
    pub unsafe fn from_raw(allocator: A, block: Block, stream: StreamHandle) -> Self {
        // By the caller's promise it is live and nobody's.
        let _ = allocator.own(block);
        allocator.watch_stream(stream.resolved());
        Self::of(allocator, block, block.size(), stream)
    }

    fn of(allocator: A, block: Block, requested: Bytes, stream: StreamHandle) -> Self {
        let (stream, uses) = (NamedStream::now(stream), Mutex::new(Uses::default()));
        Self { allocator, block, requested, stream, uses }
    }

    /// Returns the block, which the caller has to free, in the order of any stream: the handle's stream and the
    /// recorded ones are passed on to the allocator as [uses](Allocate::record_use). If the allocator records none, the
    /// host waits for their work. An error returns the handle.
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

    /// As [`into_raw`](Self::into_raw), with nothing to pass on.
    ///
    /// # Safety
    ///
    /// * No work was enqueued that uses the block.
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

    /// The handle of a block on a stream that never ends.
    #[cfg(feature = "host")]
    pub(crate) fn on_lasting_stream(mut self) -> Self {
        self.stream = NamedStream::lasting(self.stream.handle());
        self
    }

    /// The block, leaving none.
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

    /// Records that work on `stream` uses the block too. After the handle is dropped, the memory is reused only after the
    /// work that is enqueued there by then; no stream waits for it. If the stream ends before, it is the work until its
    /// end.
    ///
    /// This orders nothing by itself: order the work on `stream` after the work whose results it reads.
    ///
    /// Does nothing in a forked child, for the parent's block.
    pub fn used_on(&self, stream: StreamHandle) {
        self.note_use(stream, false);
    }

    fn note_use(&self, stream: StreamHandle, is_left: bool) {
        if self.is_inherited() {
            return;
        }
        let (stream, device) = (NamedStream::now(stream), self.allocator.device());
        let is_it =
            |known: NamedStream| known.handle() == stream.handle() && !known.has_ended(device);
        if is_it(self.stream) {
            return;
        }
        // A list of plain values is whole at any time, so a thread that panicked harms nothing.
        let mut uses = lock(&self.uses);
        if let Some(known) = uses.list.iter_mut().find(|used| is_it(used.stream)) {
            known.is_left |= is_left;
            return;
        }
        self.add_use(&mut uses, Use { stream, is_left });
        drop(uses);
        self.allocator.watch_stream(stream.handle());
    }

    /// The number of further streams that are recorded here.
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

    /// Passes uses on streams that have ended on to the allocator, which knows when their work is done: a handle that
    /// outlives many streams does not grow.
    #[cold]
    fn pass_on_ended(&self, uses: &mut Uses) {
        let (device, address) = (self.allocator.device(), self.block.address());
        let (mut passed_on, mut left_passed_on) = (uses.passed_on, uses.left_passed_on);
        uses.list.retain(|&Use { stream, is_left }| {
            let is_passed_on = stream.has_ended(device)
                && matches!(self.allocator.record_use(address, stream), Ok(RecordedUse::Recorded));
            passed_on |= is_passed_on;
            left_passed_on |= is_passed_on && is_left;
            !is_passed_on
        });
        (uses.passed_on, uses.left_passed_on) = (passed_on, left_passed_on);
        // Doubling makes the look cost each use a constant on average.
        uses.full_at = u32::try_from(2 * uses.list.len()).unwrap_or(u32::MAX);
    }

    /// The stream to enqueue work on that uses the block, after the work that the handle left on other streams. If the
    /// handle's own has ended, it is whichever stream has that handle now, after a wait for the whole device, and one more
    /// that uses the block.
    pub(crate) fn stream_to_use(&self) -> Result<StreamHandle> {
        let stream = self.stream_in_order()?;
        let device = self.allocator.device();
        if stream.has_ended(device) {
            device.synchronize_device()?;
            self.note_use(stream.handle(), true);
        }
        Ok(stream.handle())
    }

    /// The handle's stream, which waits, on the device, for the work that the handle left on other streams. During a
    /// capture that is an error: the wait would become part of the graph.
    pub(crate) fn stream_in_order(&self) -> Result<NamedStream> {
        let (left, left_passed_on) = {
            let uses = lock(&self.uses);
            let left: Vec<NamedStream> =
                uses.list.iter().filter(|used| used.is_left).map(|used| used.stream).collect();
            (left, uses.left_passed_on)
        };
        if left.is_empty() && !left_passed_on {
            return Ok(self.stream);
        }
        if self.allocator.is_capturing() {
            let missing = "order after the stream that the handle was on before a capture".into();
            return Err(hal::Error::Unsupported { call: Call::RecordEvent, missing }.into());
        }
        let device = self.allocator.device();
        if left_passed_on || self.stream.has_ended(device) {
            device.synchronize_device()?;
        } else {
            order::after(device, self.stream.handle(), left.iter().copied())?;
        }
        // Until the handle is moved, which takes it alone, no more is left anywhere.
        let mut uses = lock(&self.uses);
        uses.left_passed_on = false;
        for used in &mut uses.list {
            used.is_left &= !left.contains(&used.stream);
        }
        Ok(self.stream)
    }

    /// Whether this is a forked child, and the block its parent's.
    pub(super) fn is_inherited(&self) -> bool {
        self.allocator.device().descriptor().is_inherited()
    }

    /// Whether no other stream uses the block.
    pub(super) fn is_settled(&mut self) -> bool {
        self.uses.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Puts the block in order for its stream, if that takes no wait of the host. Returns `false`, and changes nothing,
    /// if one of its streams has ended, or events must not be recorded now.
    pub(super) fn put_in_order(&mut self) -> bool {
        let device = self.allocator.device();
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let is_in_reach = |stream: &NamedStream| {
            !stream.has_ended(device) && !stream.handle().is_of_another_thread()
        };
        if uses.is_empty() {
            return !self.stream.has_ended(device);
        }
        let can_be_ordered = !uses.passed_on
            && !self.allocator.is_capturing()
            && uses.streams().chain([self.stream]).all(|stream| is_in_reach(&stream));
        can_be_ordered && self.settle().is_ok()
    }

    /// Makes the handle's stream wait, on the device, for the recorded streams, and forgets them. After an error they
    /// stay recorded. This records events, so do not call it while these streams are captured.
    pub fn settle(&mut self) -> Result<()> {
        self.hand_over_to(self.stream.handle())
    }

    /// Makes `stream` wait, on the device, for the handle's stream and the recorded ones, and moves the handle to
    /// `stream`. The host waits, for the whole device, if one of them has ended or is another thread's own. After an error
    /// the handle stays where it was. Like [`settle`](Self::settle), this records events.
    pub fn hand_over_to(&mut self, stream: StreamHandle) -> Result<()> {
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

    /// Moves the handle to `stream`, without making it wait: the stream before is recorded as one that
    /// [uses](Self::used_on) the block. The next fill, copy or transfer of the handle makes `stream` wait for it first;
    /// during a capture that is an error, and [`hand_over_to`](Self::hand_over_to) before the capture avoids it.
    pub fn set_stream(&mut self, stream: StreamHandle) {
        let (before, device) = (self.stream, self.allocator.device());
        let stream = NamedStream::now(stream);
        if before.handle() == stream.handle() && !before.has_ended(device) {
            return;
        }
        let mut uses = lock(&self.uses);
        // Back on a stream that was recorded before: its work is the handle's own again.
        let is_it = |used: NamedStream| used.handle() == stream.handle() && !used.has_ended(device);
        uses.list.retain(|used| !is_it(used.stream));
        self.add_use(&mut uses, Use { stream: before, is_left: true });
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

    /// Frees the block in the order of its stream, and returns the error that a drop could not.
    pub fn free(self) -> core::result::Result<(), Refused<Self>> {
        self.free_on_its_own()
    }

    /// Frees the block in the order of `stream`: [`set_stream`](Self::set_stream) and [`free`](Self::free). An error
    /// returns the handle, which then belongs to `stream`.
    pub fn free_on(mut self, stream: StreamHandle) -> core::result::Result<(), Refused<Self>> {
        self.set_stream(stream);
        self.free_on_its_own()
    }

    fn free_on_its_own(mut self) -> core::result::Result<(), Refused<Self>> {
        match self.give_back() {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// Frees the block after the work of the recorded streams. After an error nothing has changed
    /// but that the stream may wait for some of them.
    fn give_back(&mut self) -> Result<()> {
        if self.block.address().is_null() {
            return Ok(());
        }
        self.allocator.device().descriptor().check_process(Call::Free)?;
        self.give_back_here()
    }

    /// Passes the recorded uses on to the allocator. Returns the stream in whose order the block is freed: the handle's,
    /// or, if that has ended, the default stream, with the ended one as a use.
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

    /// Passes uses on to the allocator. Returns those that it does not record, which are for the caller to order.
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
                    // An event would be part of the graph.
                    let missing = "an allocator that records further uses of its blocks".into();
                    return Err(hal::Error::Unsupported { call: Call::RecordEvent, missing }.into());
                }
                RecordedUse::Unsupported => left.push(used),
            }
        }
        Ok(left)
    }

    /// Passes all uses on to the allocator, that of the handle's stream too, so that the block may be freed in any order.
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

    /// As [`give_back`](Self::give_back), of a block of this process.
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
        // If its uses could not be passed on, this handle owns it still, unless it was freed.
        let freed = self.allocator.own(self.block).is_err_and(|error| {
            use Error::{DoubleFree, NotABlock, StaleBlock};
            matches!(error, DoubleFree { .. } | NotABlock { .. } | StaleBlock { .. })
        });
        if freed {
            // By its address, just now. It is not this handle's to touch any more.
            self.give_up();
        }
        Err(error)
    }
}

impl<A: Allocate> Drop for OwnedBlock<A> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The block is the parent's. Its list is leaked: another thread may have been changing it.
            let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(core::mem::take(uses));
            return;
        }
        if self.block.address().is_null() {
            return;
        }
        let mut given = self.give_back_here();
        if given.as_ref().is_err_and(may_pass) {
            given = self.give_back();
        }
        if let Err(error) = given {
            // So that whoever reads of it can free it by its address.
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
