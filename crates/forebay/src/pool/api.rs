//! The public methods of a pool, in the order of use. Each calls the part of the pool that does the work.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::pressure::Level;
use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Device, StreamHandle};

use crate::pool::Pool;
use crate::pool::calls::block_pages::PagePart;
use crate::pool::calls::checked::quarantine;
use crate::pool::calls::observe::Observation;
use crate::pool::calls::{
    allocate, block_pages, flush, free, settings, stream_end, trim, upkeep, uses,
};
use crate::pool::common::capture::Capture;
use crate::pool::common::group::GroupStatistics;
use crate::pool::front::claimed::FreeClaim;
use crate::pool::views::memory_map::{self, MemoryMap};
use crate::pool::views::scope::Scope;
use crate::pool::views::snapshot::{self, Snapshot};
use crate::pool::views::statistics::{self, Statistics};
use crate::report::PoolEvent;
use crate::sync::tracked::lock;
use crate::{Block, Error, MemoryClass, PoolId, Request, Result, Tag};

/// # The pool itself
impl Pool {
    /// The pool's device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// The pool's number, which the process never reuses.
    pub fn id(&self) -> PoolId {
        self.shared.id
    }

    /// The pool's memory class.
    pub fn class(&self) -> MemoryClass {
        self.shared.options.class
    }
}

/// # Allocating
// The hot calls are always inlined: the call site gets the cache hit, about eighty instructions, and a call of the slow
// path that is not taken. Left alone, the compiler sometimes adds another call.
impl Pool {
    /// Allocates at least `size` bytes for use in the order of `stream`. The contents are undefined. A request for 0
    /// bytes returns the null address and takes no memory.
    ///
    /// ```
    /// use forebay::{Bytes, Pool, StreamHandle};
    ///
    /// let pool = Pool::open("host")?;
    /// let block = pool.allocate(Bytes::new(1000), StreamHandle::DEFAULT)?;
    /// assert_eq!(block.size(), Bytes::new(1024), "rounded up to 512 B");
    /// # pool.free_block(block, StreamHandle::DEFAULT)?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[inline(always)]
    pub fn allocate(&self, size: Bytes, stream: impl Into<StreamHandle>) -> Result<Block> {
        allocate::allocate::<true>(&self.shared, size, stream.into(), Tag::NONE)
    }

    /// Like [`allocate`](Self::allocate), but under `tag` unless the thread has already entered a tag. For libraries
    /// that allocate on behalf of a program, whose own tag says more.
    ///
    /// ```
    /// use forebay::{Bytes, Pool, StreamHandle, Tag};
    ///
    /// let pool = Pool::open("host")?;
    /// let library = Tag::named("library");
    /// let block = pool.allocate_for(Bytes::mib(1), StreamHandle::DEFAULT, library)?;
    /// # pool.free_block(block, StreamHandle::DEFAULT)?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[inline(always)]
    pub fn allocate_for(
        &self,
        size: Bytes,
        stream: impl Into<StreamHandle>,
        tag: Tag,
    ) -> Result<Block> {
        allocate::allocate::<true>(&self.shared, size, stream.into(), tag)
    }

    /// Allocates a block with a specific alignment or memory class.
    ///
    /// ```
    /// use forebay::{Alignment, Bytes, Pool, Request, StreamHandle};
    ///
    /// let pool = Pool::open("host")?;
    /// let request = Request::new(Bytes::mib(1), StreamHandle::DEFAULT).aligned_to(Alignment::HOST_PAGE);
    /// let block = pool.allocate_request(request)?;
    /// assert!(block.address().is_aligned_to(Alignment::HOST_PAGE));
    /// # pool.free_block(block, StreamHandle::DEFAULT)?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn allocate_request(&self, request: Request) -> Result<Block> {
        let (wanted, offered) = (request.class, self.class());
        if !offered.contains(wanted) {
            return Err(Error::WrongClass { wanted, offered });
        }
        if request.alignment <= Alignment::BLOCK && !request.is_retried {
            return self.allocate(request.size, request.stream);
        }
        allocate::allocate_request(&self.shared, request, self.shared.sizes.round(request.size))
    }

    /// The live block that begins at `address`.
    ///
    /// ```
    /// use forebay::{Bytes, Pool, StreamHandle};
    ///
    /// let pool = Pool::open("host")?;
    /// let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
    /// assert_eq!(pool.block_at(block.address()), Some(block));
    /// pool.free_block(block, StreamHandle::DEFAULT)?;
    /// assert_eq!(pool.block_at(block.address()), None);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn block_at(&self, address: Address) -> Option<Block> {
        self.shared.block_at(address).map(|(block, _)| block)
    }

    /// The size that was requested for the live block at `address`, before rounding.
    pub fn requested_at(&self, address: Address) -> Option<Bytes> {
        self.shared.block_at(address).map(|(_, requested)| requested)
    }
}

/// # Freeing
///
/// A free takes effect at its point in the stream's order: work enqueued on the stream afterwards may reuse the memory
/// at once. A free that fails changes nothing, unless [`Error::is_finding`] says otherwise.
impl Pool {
    /// Frees the block at `address`, in the order of `stream`. Ignores the null address.
    ///
    /// ```
    /// use forebay::{Bytes, Error, Pool, StreamHandle};
    ///
    /// let pool = Pool::open("host")?;
    /// let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
    /// pool.free(block.address(), StreamHandle::DEFAULT)?;
    /// let again = pool.free(block.address(), StreamHandle::DEFAULT);
    /// assert!(matches!(again, Err(Error::DoubleFree { .. })));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[inline(always)]
    pub fn free(&self, address: Address, stream: impl Into<StreamHandle>) -> Result<()> {
        free::free::<true>(&self.shared, address, stream.into(), FreeClaim::Any)
    }

    /// Like [`free`](Self::free), but refuses a block of another size. `size` may be the requested or the rounded size.
    ///
    /// ```
    /// use forebay::{Bytes, Pool, StreamHandle};
    ///
    /// let pool = Pool::open("host")?;
    /// let block = pool.allocate(Bytes::new(1000), StreamHandle::DEFAULT)?;
    /// assert!(pool.free_sized(block.address(), Bytes::new(4096), StreamHandle::DEFAULT).is_err());
    /// pool.free_sized(block.address(), Bytes::new(1000), StreamHandle::DEFAULT)?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[inline(always)]
    pub fn free_sized(
        &self,
        address: Address,
        size: Bytes,
        stream: impl Into<StreamHandle>,
    ) -> Result<()> {
        free::free::<true>(&self.shared, address, stream.into(), FreeClaim::Sized(size))
    }

    /// Like [`free`](Self::free), but refuses a block of another pool, or one whose address has been reallocated.
    ///
    /// ```
    /// use forebay::{Bytes, Error, Pool, StreamHandle};
    ///
    /// let pool = Pool::open("host")?;
    /// let old = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
    /// pool.free_block(old, StreamHandle::DEFAULT)?;
    /// let new = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
    /// assert_eq!(new.address(), old.address());
    /// let stale = pool.free_block(old, StreamHandle::DEFAULT);
    /// assert!(matches!(stale, Err(Error::StaleBlock { .. })));
    /// # pool.free_block(new, StreamHandle::DEFAULT)?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[inline(always)]
    pub fn free_block(&self, block: Block, stream: impl Into<StreamHandle>) -> Result<()> {
        let Block { address, pool: owner, generation, .. } = block;
        if owner != self.shared.id {
            return Err(Error::WrongPool { address, pool: self.shared.id, owner });
        }
        free::free::<true>(&self.shared, address, stream.into(), FreeClaim::Exact(generation))
    }
}

/// # Streams
impl Pool {
    /// Records that the block at `address` is also used on `stream`. Its memory is then reused only after the work that
    /// both streams have enqueued by the time it is freed.
    ///
    /// ```
    /// use forebay::{Bytes, HostDevice, Pool, Priority, Stream};
    ///
    /// let device = HostDevice::open()?;
    /// let pool = Pool::new(&device)?;
    /// let (compute, copies) =
    ///     (Stream::new(&device, Priority::Normal)?, Stream::new(&device, Priority::Normal)?);
    /// let block = pool.allocate(Bytes::mib(1), &compute)?;
    /// // ... enqueue a copy of the block on `copies` ...
    /// pool.record_use(block.address(), &copies)?;
    /// pool.free_block(block, &compute)?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn record_use(&self, address: Address, stream: impl Into<StreamHandle>) -> Result<()> {
        uses::record_use(&self.shared, address, stream.into().resolved())
    }

    /// Forgets a stream that is about to be destroyed; call this first. Memory freed on the stream serves all streams
    /// once its work so far is done. Dropping a [`Stream`](crate::Stream) does this if it was created by
    /// [`new`](crate::Stream::new), or by [`foreign`](crate::Stream::foreign) and is the last value of its stream, but
    /// not if it was [`borrowed`](crate::Stream::borrowed).
    ///
    /// A driver may reuse the handle of a destroyed stream. Handles that own blocks learn of it through this call; a
    /// plain block freed with the old handle afterwards counts as freed on whichever stream has that handle by then.
    pub fn forget_stream(&self, stream: impl Into<StreamHandle>) -> Result<()> {
        stream_end::forget_stream(&self.shared, stream.into().resolved())
    }

    /// Takes back blocks that were freed while other streams used them, if those streams are done, and runs other
    /// deferred work, such as the rest of a [`collect`](Self::collect). Does not wait. The pool takes blocks back on
    /// its own before it grows.
    ///
    /// ```
    /// # use forebay::{Bytes, Pool, Priority, Stream, StreamHandle};
    /// let pool = Pool::open("host")?;
    /// let (copies, own) = (Stream::new(pool.device(), Priority::Normal)?, StreamHandle::DEFAULT);
    /// let block = pool.allocate(Bytes::mib(1), own)?;
    /// pool.record_use(block.address(), &copies)?;
    /// pool.free(block.address(), own)?; // reused only after the copies
    /// copies.synchronize()?;
    /// pool.process_deferred()?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn process_deferred(&self) -> Result<()> {
        upkeep::process_deferred(&self.shared)
    }
}

/// # Limits and trimming
impl Pool {
    /// The most memory that the pool may take from the device. Does not wait.
    ///
    /// ```
    /// # use forebay::{Bytes, HostDevice, PoolOptions};
    /// let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&HostDevice::open()?)?;
    /// assert_eq!(pool.limit(), Bytes::mib(64));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn limit(&self) -> Bytes {
        self.shared.group.limits.limit()
    }

    /// How much memory the pool has taken from the device. Does not wait.
    pub fn held(&self) -> Bytes {
        self.shared.held.get()
    }

    /// How close the pool is to its limit. Does not wait.
    pub fn pressure(&self) -> Level {
        self.shared.pressure()
    }

    /// Releases free memory to the device until the pool holds `keep` bytes, and returns how much it released. Waits
    /// for the device if work may still use the memory.
    ///
    /// ```
    /// use forebay::{Bytes, Pool};
    ///
    /// let pool = Pool::open("host")?;
    /// drop(pool.default_stream().owned(Bytes::mib(8))?);
    /// assert!(pool.held() >= Bytes::mib(8));
    /// pool.trim(Bytes::ZERO)?;
    /// assert_eq!(pool.held(), Bytes::ZERO);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        trim::trim(&self.shared, keep)
    }

    /// Releases memory that was not needed in the last `age` to the device, and returns how much it released. The pool
    /// knows what was needed from earlier calls to `collect`, and from its upkeep thread if that is on. Other threads
    /// can use the pool meanwhile; the memory they need stays.
    ///
    /// Does not wait for work: memory that work may still use stays in the pool. The upkeep thread, the next `collect`
    /// and [`process_deferred`](Self::process_deferred) release it once the work is done.
    ///
    /// ```
    /// # use forebay::Pool;
    /// let pool = Pool::open("host")?;
    /// let returned = pool.collect(std::time::Duration::from_secs(60))?; // what lay idle for a minute
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn collect(&self, age: Duration) -> Result<Bytes> {
        upkeep::collect(&self.shared, age)
    }

    /// Merges free memory into holes as few and as large as possible without waiting: flushes the thread caches, runs
    /// deferred work that is due, removes unused mappings, and makes holes of idle streams available to all streams.
    /// The upkeep thread does the same, if it is on.
    ///
    /// Moves no pages. A wholly free page can already serve any request: if no hole is large enough, the pool maps such
    /// pages behind one address range when a request needs them. Free memory within a page in use stays where it is,
    /// because blocks do not move.
    pub fn defragment(&self) -> Result<()> {
        upkeep::defragment(&self.shared)
    }
}

/// # Figures
impl Pool {
    /// The pool's statistics at one moment. Briefly stops threads that are in the pool. In a forked child, all figures
    /// of the parent's pool are 0.
    ///
    /// ```
    /// use forebay::{Bytes, Pool, StreamHandle};
    ///
    /// let pool = Pool::open("host")?;
    /// let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
    /// let statistics = pool.statistics();
    /// assert_eq!((statistics.allocations, statistics.live), (1, Bytes::mib(1)));
    /// println!("{statistics}");
    /// # pool.free_block(block, StreamHandle::DEFAULT)?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn statistics(&self) -> Statistics {
        statistics::of(&self.shared)
    }

    /// What all pools that [share the limit](crate::PoolOptions::sharing_limit_with) hold together, and the peaks of
    /// these sums. A pool that shares its limit with no other is a group of one. In a forked child, all figures of the
    /// parent's pool are 0.
    ///
    /// ```
    /// use forebay::{Bytes, Pool};
    ///
    /// let pool = Pool::open("host")?;
    /// drop(pool.default_stream().owned(Bytes::mib(1))?);
    /// assert_eq!(pool.group_statistics().large_out.peak, Bytes::mib(1));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn group_statistics(&self) -> GroupStatistics {
        if self.shared.is_from_parent() {
            GroupStatistics::default()
        } else {
            self.shared.group.statistics()
        }
    }

    /// Counts `bytes` of device memory, held by an allocator beside the pool, against the limit of the pool and of
    /// those that share it. Replaces the bytes of the last call. No figure includes them.
    #[doc(hidden)]
    pub fn count_outside(&self, bytes: Bytes) {
        if !self.shared.is_from_parent() {
            self.shared.group.set_outside(bytes);
        }
    }

    /// Resets the peaks of [`group_statistics`](Self::group_statistics) to the current figures. Flushes this pool's thread
    /// caches first, so that cached blocks count in no peak.
    pub fn reset_group_peaks(&self) {
        if self.shared.is_from_parent() {
            return;
        }
        flush::flush_all_caches(&self.shared, &mut self.shared.backing());
        self.shared.group.reset_peaks();
    }

    /// Measures allocations and peaks until [`Scope::end`]. Scopes nest. In a forked child, all figures of the
    /// parent's pool are 0.
    ///
    /// ```
    /// use forebay::{Bytes, Pool};
    ///
    /// let pool = Pool::open("host")?;
    /// let scope = pool.scope();
    /// drop(pool.default_stream().owned(Bytes::mib(1))?);
    /// let statistics = scope.end();
    /// assert_eq!((statistics.allocations, statistics.frees), (1, 1));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn scope(&self) -> Scope {
        Scope::new(&self.shared)
    }

    /// The last events, oldest first, as many as the setting `history` keeps. Events of one block are in order. So are
    /// events of one thread, except those that are moved behind another thread's event at the same address. On the fast
    /// path, up to sixteen events of a thread share a timestamp. In a forked child, the history of the parent's pool is
    /// empty.
    ///
    /// ```
    /// use forebay::{Bytes, HostDevice, PoolOptions};
    ///
    /// let options = PoolOptions::new().set(|settings| settings.history(100_u64));
    /// let pool = options.build(&HostDevice::open()?)?;
    /// drop(pool.default_stream().owned(Bytes::mib(1))?);
    /// assert_eq!(pool.history().len(), 2, "an allocation and a free");
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn history(&self) -> Vec<PoolEvent> {
        self.shared.history()
    }

    /// When the pool was created. The times of its events count from here.
    pub fn made_at(&self) -> Instant {
        self.shared.history.begun
    }

    /// Calls `observer` with every allocation, free and refusal until the guard is dropped. Meanwhile every call of the
    /// pool takes the slow path. [`PoolOptions::on_event`](crate::PoolOptions::on_event) does the same for the whole
    /// life of a pool.
    ///
    /// The observer first sees the blocks that are live now, as allocations on the default stream: the pool does not
    /// know their streams. It may miss a call that another thread makes while it is being attached, or see that
    /// allocation twice, or that free without its allocation. The guard keeps the pool alive.
    ///
    /// The observer may use the pool; its own calls are recorded, but not passed to observers. It runs on the thread
    /// that uses the pool, with no lock held. Events of different threads may reach it at the same time, and the last
    /// ones after the guard is dropped.
    ///
    /// ```
    /// use std::sync::mpsc;
    ///
    /// use forebay::{Bytes, Pool};
    ///
    /// let pool = Pool::open("host")?;
    /// let weights = pool.default_stream().owned(Bytes::mib(8))?;
    /// let (events, seen) = mpsc::channel();
    /// let observation = pool.observe(move |event| drop(events.send(*event)))?;
    /// drop(pool.default_stream().owned(Bytes::mib(1))?);
    /// drop(observation);
    /// drop(weights);
    /// let sizes: Vec<Bytes> = seen.iter().map(|event| event.requested).collect();
    /// assert_eq!(sizes, [Bytes::mib(8), Bytes::mib(1), Bytes::mib(1)]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn observe(
        &self,
        observer: impl Fn(&PoolEvent) + Send + Sync + 'static,
    ) -> Result<Observation> {
        Observation::new(&self.shared, Arc::new(observer))
    }
}

/// # Looking inside
impl Pool {
    /// The whole visible state of the pool, as plain data. The counters are from one moment; if other threads use the
    /// pool, the blocks are from a moment later. Reads every block slot ever used, so call it now and then, not at
    /// every step. In a forked child, all counters of the parent's pool are 0, and no blocks are listed.
    pub fn snapshot(&self) -> Snapshot {
        snapshot::of(&self.shared, &self.settings())
    }

    /// The addresses of the pool's memory, and every block in it. If other threads use the pool, the blocks are from a
    /// moment later than the memory. Reads every page and every block slot ever used, so call it now and then, not at
    /// every step.
    ///
    /// With the setting `guard_pages`, each block has pages of its own, which the spans do not include. In a forked
    /// child, the map of the parent's pool is empty.
    pub fn memory_map(&self) -> MemoryMap {
        memory_map::of(&self.shared)
    }

    /// The number of pages the pool holds, or of segments on a device that maps no pages. In a forked child, 0 for the
    /// parent's pool.
    pub fn page_count(&self) -> u64 {
        if self.shared.is_from_parent() {
            return 0;
        }
        let heap = self.shared.heap();
        heap.spaces.both().map(|space| space.page_table().page_count() as u64).iter().sum()
    }

    /// The pages behind the live block at `address`, in address order; empty if its memory does not consist of pages.
    /// Other blocks may share these pages.
    ///
    /// The block keeps these pages while it is live. In a pool of [`MemoryClass::SHAREABLE`](crate::MemoryClass) they
    /// can be exported ([`Sharing`](forebay_hal::Sharing)), and stay behind these addresses even afterwards. The
    /// importing process maps a page and finds the block at the offset.
    pub fn pages_of(&self, address: Address) -> Result<Vec<PagePart>> {
        block_pages::pages_of(&self.shared, address)
    }

    /// Checks everything the debugging aids watch: the canaries of live blocks, and the quarantine. Returns the first
    /// mistake found; [`findings`](Self::findings) lists them all. Waits for the device. Does nothing without debugging
    /// aids.
    ///
    /// A live block with a damaged canary stays live. A quarantined block that was written to is retired.
    ///
    /// ```
    /// use forebay::{Bytes, HostDevice, PoolOptions, StreamHandle};
    ///
    /// let pool = PoolOptions::new().set(|settings| settings.canaries(true)).build(&HostDevice::open()?)?;
    /// let block = pool.allocate(Bytes::new(4096), StreamHandle::DEFAULT)?;
    /// pool.check()?;
    /// pool.free(block.address(), StreamHandle::DEFAULT)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<()> {
        quarantine::check(&self.shared)
    }

    /// The program's mistakes that the debugging aids have found so far, each once, at most a thousand. A call also
    /// returns the first mistake it finds as an error, unless it was found in the background or by a
    /// [`change`](Self::change). Empty if the pool was created before a fork.
    pub fn findings(&self) -> Vec<Error> {
        if self.shared.is_from_parent() {
            return Vec::new();
        }
        lock(&self.shared.debug.findings).clone()
    }
}

/// # Capturing graphs
impl Pool {
    /// Makes the pool safe to use while work on its streams is captured into a graph. Until the guard is dropped, the
    /// pool enqueues nothing, records and queries no events, and waits for nothing. It serves requests from memory that
    /// is free in the order of their own stream, and by growing; trimming releases nothing. Blocks used on several
    /// streams, and memory of forgotten streams, come back with a [`trim`](Self::trim) afterwards.
    ///
    /// Fails with [`Error::CaptureRefused`] if a setting makes the pool enqueue work or wait on its own: filling
    /// blocks, or any debugging aid except exact statistics and history. Such a setting cannot be turned on during a
    /// capture either.
    ///
    /// ```
    /// use forebay::{Bytes, Pool, StreamHandle};
    ///
    /// let pool = Pool::open("host")?; // for this graph alone
    /// let capture = pool.capture()?;
    /// let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
    /// // ... capture kernels that use the block ...
    /// pool.free_block(block, StreamHandle::DEFAULT)?;
    /// drop(capture);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    ///
    /// # Graphs
    ///
    /// Every launch of a graph uses the addresses it was captured with, even if the blocks there have since been freed.
    /// So **a pool that was captured from must serve nothing else while any of its graphs lives**: create a private
    /// pool for captures, and drop it after its graphs. Within the graph, the order of the streams is the order of the
    /// graph, and memory freed in one part of it serves the next. Another graph captured from the same pool uses the
    /// same memory, so the two must not run at once. A pool of [`MemoryClass::STABLE`] keeps the memory behind the
    /// addresses; it does not keep the addresses from being allocated again.
    pub fn capture(&self) -> Result<Capture> {
        settings::capture(&self.shared)
    }
}
