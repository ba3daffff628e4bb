//! A block with one owner.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use forebay_core::{Address, Bytes};
use forebay_hal::{Call, StreamHandle};

use super::failure::may_pass;
use super::lost::{self, LostFree};
use super::{Refused, order};
use crate::sync::lock;
use crate::{Allocate, Block, Error, Pool, Request, Result};

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
/// drop(block); // `compute` waits for that kernel before it uses the memory again
/// assert_eq!(pool.statistics().live, Bytes::ZERO);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the block is freed when this is dropped"]
pub struct OwnedBlock<A: Allocate = Pool> {
    allocator: A,
    /// Null once it was given up or freed: then there is nothing to do in the drop.
    block: Block,
    requested: Bytes,
    stream: StreamHandle,
    /// Further streams that use the block. Few, so a list; under a lock so that those who share a
    /// block can all note theirs.
    uses: Mutex<Vec<StreamHandle>>,
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
        Self::of(allocator, block, block.size(), stream)
    }

    fn of(allocator: A, block: Block, requested: Bytes, stream: StreamHandle) -> Self {
        Self { allocator, block, requested, stream, uses: Mutex::new(Vec::new()) }
    }

    /// Returns the block, which the caller has to free.
    ///
    /// Streams that [`used_on`](Self::used_on) recorded are passed on to the allocator
    /// ([`record_use`](Allocate::record_use)), and forgotten if it notes none: call [`settle`](Self::settle) first then.
    #[must_use = "a block that is dropped is not freed"]
    pub fn into_raw(mut self) -> Block {
        if !self.is_inherited() && !self.block.address().is_null() {
            // Copies that were enqueued by safe code may be among the uses, and the caller may free the block in the
            // order of any stream.
            let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
            for &mut stream in uses {
                let _ = self.allocator.record_use(self.block.address(), stream);
            }
        }
        // SAFETY: this handle owns it, and knows it no more after this.
        unsafe { self.allocator.disown(self.block) };
        self.give_up()
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
        self.stream
    }

    /// The allocator of the block.
    pub fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Records that work on `stream` uses the block too. The device waits for the work enqueued there until the drop
    /// before it reuses the memory.
    ///
    /// This orders nothing by itself: order the work on `stream` after the work whose results it reads.
    ///
    /// Does nothing in a forked child, for the parent's block.
    pub fn used_on(&self, stream: StreamHandle) {
        if self.is_inherited() {
            return;
        }
        // A list of plain values is whole at any time, so a thread that panicked harms nothing.
        let mut uses = lock(&self.uses);
        if !uses.contains(&stream) {
            uses.push(stream);
        }
    }

    /// Whether this is a forked child, and the block its parent's.
    pub(super) fn is_inherited(&self) -> bool {
        self.allocator.device().descriptor().is_inherited()
    }

    /// Whether the handle's stream need not wait for others before the block is used there again.
    pub(super) fn is_settled(&mut self) -> bool {
        let stream = self.stream;
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        uses.iter().all(|&other| other == stream)
    }

    /// Makes the handle's stream wait, on the device, for the recorded streams, and forgets them. After an error they
    /// stay recorded. This records events, so do not call it while these streams are captured.
    pub fn settle(&mut self) -> Result<()> {
        self.hand_over_to(self.stream)
    }

    /// Makes `stream` wait, on the device, for the handle's stream and the recorded ones, and moves the handle to
    /// `stream`. After an error the handle stays where it was. Like [`settle`](Self::settle), this records events.
    pub fn hand_over_to(&mut self, stream: StreamHandle) -> Result<()> {
        self.allocator.device().descriptor().check_process(Call::RecordEvent)?;
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let earlier = uses.iter().copied().chain([self.stream]);
        order::after(self.allocator.device(), stream, earlier)?;
        uses.clear();
        self.stream = stream;
        Ok(())
    }

    /// Moves the handle to `stream` without ordering anything: the caller has made `stream` wait for the work that used
    /// the block, or knows that it is done.
    pub fn set_stream(&mut self, stream: StreamHandle) {
        self.stream = stream;
    }

    /// Moves the handle to `stream` and forgets the recorded streams: all work that uses the block is done.
    pub(crate) fn reset_to(&mut self, stream: StreamHandle) {
        self.uses.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.stream = stream;
    }

    /// Frees the block in the order of its stream, and returns the error that a drop could not.
    pub fn free(self) -> core::result::Result<(), Refused<Self>> {
        let stream = self.stream;
        self.free_on(stream)
    }

    /// Frees the block in the order of `stream`: [`set_stream`](Self::set_stream) and [`free`](Self::free). An error
    /// returns the handle, which then belongs to `stream`.
    pub fn free_on(mut self, stream: StreamHandle) -> core::result::Result<(), Refused<Self>> {
        self.stream = stream;
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

    /// As [`give_back`](Self::give_back), of a block of this process.
    fn give_back_here(&mut self) -> Result<()> {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        if uses.is_empty() {
            // Nothing to order.
        } else if self.allocator.is_capturing() {
            // An event would be part of the graph. The allocator keeps the block until it knows by itself
            // that these streams are done.
            for &other in uses.iter().filter(|&&other| other != self.stream) {
                self.allocator.record_use(self.block.address(), other)?;
            }
        } else {
            order::after(self.allocator.device(), self.stream, uses.iter().copied())?;
        }
        // SAFETY: this handle owns it. While it does not, nobody can touch the memory by it: it is borrowed
        // here until it owns the block again, or has none.
        let Err(error) = (unsafe { self.allocator.free_owned(self.block, self.stream) }) else {
            self.give_up();
            return Ok(());
        };
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
            lost::note(LostFree { block: self.block, stream: self.stream, error });
        }
    }
}

impl<A: Allocate> fmt::Debug for OwnedBlock<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBlock")
            .field("block", &self.block)
            .field("requested", &self.requested)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
