//! Blocks: allocated and freed in the order of streams. Every request takes this path, so it finds its pool
//! without a lock.

use core::ffi::c_void;

use forebay::handle::allocate_batch;
use forebay::{Address, Alignment, Bytes, Pool, Request, StreamHandle};

use crate::error::{catch_panic, fail, status_of};
use crate::fork;
use crate::pool::{PoolEntry, forebay_pool};
use crate::sized::{SizedOut, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::stream::{self, forebay_stream};
use crate::table;
use crate::text::{Out, array, check_array};

/// What is known of a block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_block_info {
    /// `sizeof(forebay_block_info)`, set before the call; after it, how much of it was filled.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// How often its address was given out, this time included: tells it from every other block that was
    /// or will be at the same address.
    pub generation: u64,
    /// Where it begins.
    pub address: u64,
    /// How large it is: what was asked for, rounded up.
    pub size_bytes: u64,
    /// What was asked for.
    pub requested_bytes: u64,
}

versioned_struct!(forebay_block_info: 40);

/// A device address as a pointer of C. It is never dereferenced here.
#[inline(always)]
pub(crate) fn pointer(address: Address) -> *mut c_void {
    // Addresses of a device of this process fit its pointers.
    #[allow(clippy::cast_possible_truncation)]
    core::ptr::without_provenance_mut(address.get() as usize)
}

#[inline(always)]
pub(crate) fn address(pointer: *const c_void) -> Address {
    Address::new(pointer.addr() as u64)
}

/// Calls `work` with a pool and a stream of its device, by the fast path; else calls `slow`, which finds out
/// what is wrong. What `work` captures stays in registers: no reference to it reaches a call that is not
/// inlined.
#[inline(always)]
fn fast_path(
    pool: forebay_pool,
    stream: forebay_stream,
    work: impl FnOnce(&Pool, StreamHandle) -> forebay_status,
    slow: impl FnOnce() -> forebay_status,
) -> forebay_status {
    catch_panic(forebay_status::Defect, || {
        let done = table::with_pool(pool.id, |entry| {
            Some(work(entry.pool(), stream::fast_lookup(stream, entry.device())?))
        });
        done.flatten().unwrap_or_else(slow)
    })
}

/// Calls `work` with a pool and a stream of its device, by the registry's lock.
fn slow_path(
    pool: forebay_pool,
    stream: forebay_stream,
    work: impl FnOnce(&Pool, StreamHandle) -> forebay::Result<()>,
) -> forebay_status {
    status_of(|| {
        let entry = table::find::<PoolEntry>(pool.id)?;
        let stream = stream::on_device(stream, entry.device())?;
        Ok(work(entry.pool(), stream)?)
    })
}

#[cold]
#[inline(never)]
fn fail_with(error: forebay::Error) -> forebay_status {
    fail(&Failure::from(error))
}

#[cold]
#[inline(never)]
fn allocate_slow(
    pool: forebay_pool,
    size: u64,
    stream: forebay_stream,
    to: Out<*mut c_void>,
) -> forebay_status {
    slow_path(pool, stream, |pool, stream| {
        to.set(pointer(pool.allocate(Bytes::new(size), stream)?.address()));
        Ok(())
    })
}

#[cold]
#[inline(never)]
fn free_slow(pool: forebay_pool, block: Address, stream: forebay_stream) -> forebay_status {
    slow_path(pool, stream, |pool, stream| pool.free(block, stream))
}

#[cold]
#[inline(never)]
fn free_sized_slow(
    pool: forebay_pool,
    block: Address,
    size: Bytes,
    stream: forebay_stream,
) -> forebay_status {
    slow_path(pool, stream, |pool, stream| pool.free_sized(block, size, stream))
}

#[cold]
#[inline(never)]
fn null_out_pointer() -> forebay_status {
    fail(&Failure::argument("block", "null", "where the block's address goes"))
}

/// At least `size` bytes, to be used in the order of `stream`. `block` gets the address, a multiple of
/// 512; null where there are none, and where `size` is 0. What the block holds is not defined.
///
/// # Safety
///
/// * `block` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_alloc(
    pool: forebay_pool,
    size: u64,
    stream: forebay_stream,
    block: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let Ok(to) = (unsafe { Out::new(block, "block") }) else { return null_out_pointer() };
    let status = fast_path(
        pool,
        stream,
        |pool, stream| match pool.allocate(Bytes::new(size), stream) {
            Ok(block) => {
                to.set(pointer(block.address()));
                forebay_status::Ok
            }
            Err(error) => fail_with(error),
        },
        || allocate_slow(pool, size, stream, to),
    );
    if status != forebay_status::Ok {
        to.set(core::ptr::null_mut());
    }
    status
}

/// As `forebay_alloc`, at a multiple of `alignment`, a power of two.
///
/// # Safety
///
/// * `block` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_alloc_aligned(
    pool: forebay_pool,
    size: u64,
    alignment: u64,
    stream: forebay_stream,
    block: *mut *mut c_void,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let to = unsafe { Out::new(block, "block") }?;
        to.set(core::ptr::null_mut());
        let entry = table::find::<PoolEntry>(pool.id)?;
        let stream = stream::on_device(stream, entry.device())?;
        let request = Request::new(Bytes::new(size), stream).aligned_to(Alignment::new(alignment)?);
        to.set(pointer(entry.pool().allocate_as(request)?.address()));
        Ok(())
    })
}

/// Blocks of all these sizes, or none of them: `blocks` gets as many addresses as there are sizes.
///
/// # Safety
///
/// * `sizes` is null, or has `count` sizes; `blocks` is null, or has room for `count` addresses.
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
        let entry = table::find::<PoolEntry>(pool.id)?;
        let stream = stream::on_device(stream, entry.device())?;
        let sizes: Vec<Bytes> = sizes.iter().copied().map(Bytes::new).collect();
        let given = allocate_batch(entry.pool(), &sizes, stream)?;
        for (index, block) in given.into_iter().enumerate() {
            // SAFETY: there is room for `count` addresses, and no more blocks than sizes.
            unsafe { blocks.add(index).write(pointer(block.into_raw().address())) };
        }
        Ok(())
    })
}

/// Gives back the block that begins at `block`, in the order of `stream`: its memory may be used again
/// by what is enqueued there from now on. Null is ignored.
///
/// # Safety
///
/// * Nothing but what was enqueued on `stream` before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free(
    pool: forebay_pool,
    block: *mut c_void,
    stream: forebay_stream,
) -> forebay_status {
    let block = address(block);
    fast_path(
        pool,
        stream,
        |pool, stream| pool.free(block, stream).map_or_else(fail_with, |()| forebay_status::Ok),
        || free_slow(pool, block, stream),
    )
}

/// As `forebay_free`, where the caller knows how much was asked for, or how large the block is:
/// anything else is refused.
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
    fast_path(
        pool,
        stream,
        |pool, stream| {
            pool.free_sized(block, size, stream).map_or_else(fail_with, |()| forebay_status::Ok)
        },
        || free_sized_slow(pool, block, size, stream),
    )
}

/// Gives back a block to whichever pool of the process it is of, for who was handed an address alone.
/// Looks through the pools one by one. The stream must be of the block's device.
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
        fork::check()?;
        let kept = stream::entry(stream)?;
        let block = address(block);
        let Some(stream) = kept else { return Ok(forebay::free(block, StreamHandle::DEFAULT)?) };
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
        Ok(forebay::free(block, stream.handle())?)
    })
}

/// Gives back a block whose stream was closed: waits until the device has done all its work, then frees
/// the block in the order of the default stream. For owners that outlive their stream; `forebay_free`
/// does not wait, and is the way wherever a stream is there. What is no live block of the pool is refused
/// without a wait. Null is ignored.
///
/// Where the device cannot be waited for, as while a graph is captured, nothing is changed: the block
/// stays live and can be freed later.
///
/// # Safety
///
/// * Nothing but work that was enqueued on the device before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free_synchronized(
    pool: forebay_pool,
    block: *mut c_void,
) -> forebay_status {
    status_of(|| {
        let entry = table::find::<PoolEntry>(pool.id)?;
        let (pool, block) = (entry.pool(), address(block));
        if pool.block_at(block).is_some() {
            entry.device().device().synchronize_device()?;
        }
        Ok(pool.free(block, StreamHandle::DEFAULT)?)
    })
}

/// Says that a block is used on `stream` too, beside the one it will be freed on: its memory is used
/// again only after what is enqueued on both by then.
///
/// # Safety
///
/// * None: an address that is no block's is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_record_use(
    pool: forebay_pool,
    block: *mut c_void,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let entry = table::find::<PoolEntry>(pool.id)?;
        let stream = stream::on_device(stream, entry.device())?;
        Ok(entry.pool().record_use(address(block), stream)?)
    })
}

/// Says that nothing more is allocated or freed on a stream here: what was freed on it becomes everybody's
/// once its work so far is done. This tells one pool. A stream that is about to be destroyed by its maker
/// is closed before that, as the device follows it while its handle is open; `forebay_stream_close` tells
/// all pools by itself.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_forget_stream(
    pool: forebay_pool,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let entry = table::find::<PoolEntry>(pool.id)?;
        let stream = stream::on_device(stream, entry.device())?;
        Ok(entry.pool().forget_stream(stream)?)
    })
}

/// What is known of the live block that begins at `block`.
///
/// # Safety
///
/// * `info` is null, or a `forebay_block_info` whose `struct_size` is set, which can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_block_query(
    pool: forebay_pool,
    block: *const c_void,
    info: *mut forebay_block_info,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let to = unsafe { SizedOut::new(info, "info") }?;
        let entry = table::find::<PoolEntry>(pool.id)?;
        let (pool, address) = (entry.pool(), address(block));
        let found = pool.block_at(address).zip(pool.requested_at(address));
        let (known, requested) = found.ok_or(forebay::Error::NotABlock { address })?;
        to.set(forebay_block_info {
            struct_size: 0,
            reserved: 0,
            generation: known.generation(),
            address: known.address().get(),
            size_bytes: known.size().get(),
            requested_bytes: requested.get(),
        });
        Ok(())
    })
}
