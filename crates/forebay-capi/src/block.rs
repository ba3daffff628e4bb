//! Blocks: allocated and freed in the order of streams. Every request takes this path, so it finds its pool
//! without a lock.

use core::ffi::c_void;

use forebay::bindings::host_vec;
use forebay::hal::Call;
use forebay::handle::allocate_batch;
use forebay::{Address, Alignment, Bytes, Pool, Request, StreamHandle};

use crate::error::{catch_panic, fail, status_of};
use crate::pool::{self, PoolEntry, forebay_pool};
use crate::sized::{SizedOut, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::stream::{self, forebay_stream};
use crate::table::{self, FastEntry, Handle};
use crate::text::{Out, address, array, check_array, pointer};

/// The description of a live block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_block_info {
    /// `sizeof(forebay_block_info)`, set before the call; after it, how many bytes were filled.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// How often its address was allocated, this time included. Distinguishes it from every other block at the
    /// same address, past or future.
    pub generation: u64,
    /// Its first address.
    pub address: u64,
    /// Its size: the requested size, rounded up.
    pub size_bytes: u64,
    /// The requested size.
    pub requested_bytes: u64,
}

versioned_struct!(forebay_block_info: 40);

/// Calls `hit` with the object of a handle; where that is not possible or `hit` does not succeed, calls `otherwise`. A hit
/// calls no function, and `otherwise` is called last of all: so a function of C that consists of this keeps nothing
/// across a call.
#[inline(always)]
pub(crate) fn hit_or<H: Handle<Entry: FastEntry>>(
    handle: H,
    hit: impl FnOnce(&H::Entry) -> bool,
    otherwise: impl FnOnce() -> forebay_status,
) -> forebay_status {
    if !catch_panic(false, || table::visit(handle, hit)) {
        return otherwise();
    }
    if table::any_retired() {
        return reclaim();
    }
    forebay_status::Ok
}

/// A hit with a pool and a stream of its device.
#[inline(always)]
fn on_stream(
    stream: forebay_stream,
    hit: impl FnOnce(&Pool, StreamHandle) -> bool,
) -> impl FnOnce(&PoolEntry) -> bool {
    move |entry| match stream::fast_lookup(stream, entry.device()) {
        Some(stream) => hit(entry.pool(), stream),
        None => false,
    }
}

#[cold]
#[inline(never)]
fn reclaim() -> forebay_status {
    catch_panic(forebay_status::Defect, || {
        table::reclaim_if_any();
        forebay_status::Ok
    })
}

/// Calls `work` with a pool and a stream of its device, without a lock where that is possible.
#[inline(always)]
fn with_pool(
    pool: forebay_pool,
    stream: forebay_stream,
    work: impl Fn(&Pool, StreamHandle) -> forebay::Result<()>,
) -> forebay_status {
    catch_panic(forebay_status::Defect, || {
        table::reclaim_if_any();
        let done = table::with(pool, |entry| {
            Some(work(entry.pool(), stream::fast_lookup(stream, entry.device())?))
        });
        match done.flatten() {
            Some(Ok(())) => forebay_status::Ok,
            Some(Err(error)) => fail(&Failure::from(error)),
            // Finds out what is wrong.
            None => slow_path(pool, stream, work),
        }
    })
}

/// Calls `work` with a pool and a stream of its device, by the registry's lock.
fn slow_path(
    pool: forebay_pool,
    stream: forebay_stream,
    work: impl FnOnce(&Pool, StreamHandle) -> forebay::Result<()>,
) -> forebay_status {
    status_of(|| {
        let (entry, stream) = pool::with_stream(pool, stream)?;
        Ok(work(entry.pool(), stream)?)
    })
}

#[inline(never)]
fn allocate_missed(
    pool: forebay_pool,
    size: u64,
    stream: forebay_stream,
    block: *mut *mut c_void,
) -> forebay_status {
    // The hit before this one may have been the last that kept a closed pool.
    table::reclaim_if_any();
    // SAFETY: as the caller of `forebay_alloc` promises.
    let to = match unsafe { Out::new(block, "block") }.check() {
        Ok(to) => to,
        Err(failure) => return fail(&failure),
    };
    to.set(core::ptr::null_mut());
    with_pool(pool, stream, |pool, stream| {
        to.set(pointer(pool.allocate(Bytes::new(size), stream)?.address()));
        Ok(())
    })
}

#[inline(never)]
fn free_missed(pool: forebay_pool, block: Address, stream: forebay_stream) -> forebay_status {
    with_pool(pool, stream, |pool, stream| pool.free(block, stream))
}

#[inline(never)]
fn free_sized_missed(
    pool: forebay_pool,
    block: Address,
    size: Bytes,
    stream: forebay_stream,
) -> forebay_status {
    with_pool(pool, stream, |pool, stream| pool.free_sized(block, size, stream))
}

/// Allocates at least `size` bytes, to be used in the order of `stream`. `block` gets the address, a multiple
/// of 512; null on failure, and where `size` is 0. The contents of the block are undefined.
#[must_use = "there is no block where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_alloc(
    pool: forebay_pool,
    size: u64,
    stream: forebay_stream,
    block: *mut *mut c_void,
) -> forebay_status {
    hit_or(
        pool,
        on_stream(stream, |pool, stream| {
            if block.is_null() {
                return false;
            }
            let Some(hit) = pool.allocate_hit(Bytes::new(size), stream) else { return false };
            // SAFETY: it is not null, so the caller promises that a pointer can be written there. C may pass memory
            // that is not aligned for it.
            unsafe { block.write_unaligned(pointer(hit)) };
            true
        }),
        || allocate_missed(pool, size, stream, block),
    )
}

/// As `forebay_alloc`, but the address is a multiple of `alignment`, which must be a power of two.
#[must_use = "there is no block where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_alloc_aligned(
    pool: forebay_pool,
    size: u64,
    alignment: u64,
    stream: forebay_stream,
    block: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(block, "block") };
    to.pointer(|| {
        let (entry, stream) = pool::with_stream(pool, stream)?;
        let request = Request::new(Bytes::new(size), stream).aligned_to(Alignment::new(alignment)?);
        Ok(entry.pool().allocate_request(request)?.address())
    })
}

/// Allocates blocks of all these sizes, or none of them. `blocks` gets as many addresses as there are sizes.
#[must_use = "there are no blocks where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_alloc_batch(
    pool: forebay_pool,
    sizes: *const u64,
    count: usize,
    stream: forebay_stream,
    blocks: *mut *mut c_void,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let sizes = unsafe { array(sizes, count, "sizes") }?;
        check_array(blocks.cast_const(), count, "blocks")?;
        let (entry, stream) = pool::with_stream(pool, stream)?;
        let mut wanted = host_vec::with_capacity(count, Call::Allocate)?;
        wanted.extend(sizes.iter().copied().map(Bytes::new));
        let given = allocate_batch(entry.pool(), &wanted, stream)?;
        for (index, block) in given.into_iter().enumerate() {
            // SAFETY: there is room for `count` addresses, and no more blocks than sizes. Nothing was enqueued yet.
            unsafe { blocks.add(index).write(pointer(block.into_raw_unused().address())) };
        }
        Ok(())
    })
}

/// Frees the block that begins at `block`, in the order of `stream`: work that is enqueued there from now on
/// may reuse its memory. Null is ignored.
///
/// # Safety
///
/// * Only work that was enqueued on `stream` before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free(
    pool: forebay_pool,
    block: *mut c_void,
    stream: forebay_stream,
) -> forebay_status {
    let block = address(block);
    hit_or(pool, on_stream(stream, |pool, stream| pool.free_hit(block, None, stream)), || {
        free_missed(pool, block, stream)
    })
}

/// As `forebay_free`, with the requested size or the size of the block as a check: any other size is refused.
///
/// # Safety
///
/// * As for `forebay_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free_sized(
    pool: forebay_pool,
    block: *mut c_void,
    size: u64,
    stream: forebay_stream,
) -> forebay_status {
    let (block, size) = (address(block), Bytes::new(size));
    hit_or(pool, on_stream(stream, |pool, stream| pool.free_hit(block, Some(size), stream)), || {
        free_sized_missed(pool, block, size, stream)
    })
}

/// Frees a block of any pool of the process, for callers that have only its address. Searches the pools one
/// by one. The stream must belong to the block's device.
///
/// # Safety
///
/// * As for `forebay_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free_anywhere(
    block: *mut c_void,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let kept = stream::entry(stream)?;
        let block = address(block);
        let Some(stream) = kept else {
            return Ok(forebay::process::free(block, StreamHandle::DEFAULT)?);
        };
        let pools = table::all::<PoolEntry>();
        let owner = pools.iter().find(|entry| entry.pool().block_at(block).is_some());
        if let Some(owner) =
            owner.filter(|owner| owner.device().number() != stream.device().number())
        {
            return Err(Failure::new(
                forebay_status::WrongDevice,
                format!(
                    "the block at {block} is on {}, and the stream is of {}",
                    owner.device().descriptor(),
                    stream.device().descriptor()
                ),
            ));
        }
        Ok(forebay::process::free(block, stream.handle())?)
    })
}

/// Frees a block whose stream was closed: waits until the device has done all its work, then frees the block
/// in the order of the default stream. For owners that outlive their stream; with a stream, use
/// `forebay_free`, which does not wait. An address that is no live block of the pool is refused without a
/// wait. Null is ignored.
///
/// Where the device cannot be synchronised, such as while a graph is captured, nothing changes: the block
/// stays live and can be freed later.
///
/// # Safety
///
/// * Only work that was enqueued on the device before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free_synchronized(
    pool: forebay_pool,
    block: *mut c_void,
) -> forebay_status {
    status_of(|| {
        let entry = table::find(pool)?;
        let (pool, block) = (entry.pool(), address(block));
        if pool.block_at(block).is_some() {
            entry.device().device().synchronize_device()?;
        }
        Ok(pool.free(block, StreamHandle::DEFAULT)?)
    })
}

/// Records that `stream` uses a block, besides the stream that it will be freed on: its memory is reused only
/// after all work that both have when it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_record_use(
    pool: forebay_pool,
    block: *mut c_void,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let (entry, stream) = pool::with_stream(pool, stream)?;
        Ok(entry.pool().record_use(address(block), stream)?)
    })
}

/// Makes one pool forget a stream, on which nothing more is allocated or freed: memory that was freed on it
/// serves all streams once its work so far is done. Close an adopted stream before its maker destroys it,
/// since the device uses it while its handle is open; `forebay_stream_close` makes all pools forget it.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_forget_stream(
    pool: forebay_pool,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let (entry, stream) = pool::with_stream(pool, stream)?;
        Ok(entry.pool().forget_stream(stream)?)
    })
}

/// Describes the live block that begins at `block`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_block_query(
    pool: forebay_pool,
    block: *const c_void,
    info: *mut forebay_block_info,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { SizedOut::new(info, "info") };
    to.result(|| {
        let entry = table::find(pool)?;
        let (pool, address) = (entry.pool(), address(block));
        let found = pool.block_at(address).zip(pool.requested_at(address));
        let (known, requested) = found.ok_or(forebay::Error::NotABlock { address })?;
        Ok(forebay_block_info {
            struct_size: 0,
            reserved: 0,
            generation: known.generation(),
            address: known.address().get(),
            size_bytes: known.size().get(),
            requested_bytes: requested.get(),
        })
    })
}
