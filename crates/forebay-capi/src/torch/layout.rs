//! Where everything lies: segments and blocks, for PyTorch's snapshots and its graph trees.

use core::ffi::{c_int, c_void};
use std::collections::{BTreeMap, BTreeSet};

use forebay::bindings::KeptBlock;
use forebay::snapshot::Side;
use forebay::{Address, Bytes, Pool, StreamHandle};

use super::allocate::TORCH;
use super::origins::{self, Origin};
use super::private::{self, PoolNumber};
use super::sharing;
use crate::device_pools;
use crate::error::code_of;
use crate::status::Failure;
use crate::text::{array, write_optional};

/// A live block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlockInfo {
    /// Where it begins.
    pub address: u64,
    /// How large it is.
    pub size: u64,
    /// The size that was asked for.
    pub requested: u64,
    /// The stream it was allocated for, as CUDA names it.
    pub stream: u64,
    /// Its pool: 0 and 0 for the GPU's own.
    pub pool: PoolNumber,
    /// Its GPU.
    pub device: i32,
    /// Not used.
    pub reserved: i32,
}

/// Memory that was taken from the device at once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SegmentInfo {
    /// Where it begins.
    pub address: u64,
    /// How large it is.
    pub size: u64,
    /// Its pool: 0 and 0 for the GPU's own.
    pub pool: PoolNumber,
    /// Its GPU.
    pub device: i32,
    /// Whether large blocks are in it: 1, or 0.
    pub large: i32,
}

/// Called for each segment, with the blocks in it.
pub type Visit =
    unsafe extern "C" fn(context: *mut c_void, *const SegmentInfo, *const BlockInfo, usize);

/// All pools of a GPU with their numbers, its own first.
fn pools(device: c_int) -> Vec<(PoolNumber, Pool)> {
    let own = device_pools::existing_pool(device);
    let own = own.map(|pool| (PoolNumber::default(), pool.clone()));
    let private = private::pools_of(device).into_iter().map(|(_, number, pool)| (number, pool));
    own.into_iter().chain(private).collect()
}

/// The segments of a pool, each with the blocks in it.
fn segments(device: c_int, number: PoolNumber, pool: &Pool) -> Vec<(SegmentInfo, Vec<BlockInfo>)> {
    let layout = pool.memory_map();
    let mut blocks = layout.blocks.iter().peekable();
    let mut segments = Vec::with_capacity(layout.spans.len());
    for span in &layout.spans {
        let (address, size) = (span.start().get(), span.size().get());
        let end = address.saturating_add(size);
        let mut within = Vec::new();
        while let Some(block) = blocks.next_if(|block| block.address < end) {
            if block.address < address {
                continue;
            }
            let stream = origins::of(block.address).stream;
            within.push(BlockInfo {
                address: block.address,
                size: block.size_bytes,
                requested: block.requested_bytes,
                stream,
                pool: number,
                device,
                reserved: 0,
            });
        }
        let large = i32::from(span.side == Side::Large);
        segments.push((SegmentInfo { address, size, pool: number, device, large }, within));
    }
    segments
}

/// Calls `visit` for each segment of the pools of GPU `device`, the lowest address of each pool first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_walk(
    device: c_int,
    visit: Visit,
    context: *mut c_void,
) -> c_int {
    code_of(|| {
        for (number, pool) in pools(device) {
            for (segment, blocks) in segments(device, number, &pool) {
                // SAFETY: as the caller promised; both live until it returns.
                unsafe { visit(context, &raw const segment, blocks.as_ptr(), blocks.len()) };
            }
        }
        Ok(())
    })
}

/// Tells the live block that begins at `address`, or, unless `exact`, the one that `address` is in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_find(
    address: *const c_void,
    exact: c_int,
    block: *mut BlockInfo,
) -> c_int {
    code_of(|| {
        let at = address.addr() as u64;
        let found = beginning_at(at).or_else(|| if exact == 0 { around(at) } else { None });
        let found =
            found.ok_or_else(|| format!("{address:p} is not in a live block of forebay"))?;
        // SAFETY: as the caller promised.
        unsafe { write_optional(block, found) };
        Ok(())
    })
}

fn beginning_at(address: u64) -> Option<BlockInfo> {
    let origin = origins::of(address);
    let (number, pool) = if origin.private == 0 {
        (PoolNumber::default(), device_pools::existing_pool(origin.device)?.clone())
    } else {
        private::of_key(origin.private)?
    };
    let block = pool.block_at(Address::new(address))?;
    let requested = pool.requested_at(Address::new(address))?.get();
    Some(BlockInfo {
        address,
        size: block.size().get(),
        requested,
        stream: origin.stream,
        pool: number,
        device: origin.device,
        reserved: 0,
    })
}

fn around(address: u64) -> Option<BlockInfo> {
    let all = device_pools::existing().flat_map(|(device, _)| {
        pools(device).into_iter().map(move |(number, pool)| (device, number, pool))
    });
    all.flat_map(|(device, number, pool)| segments(device, number, &pool))
        .flat_map(|(_, blocks)| blocks)
        .find(|block| block.address <= address && address - block.address < block.size)
}

/// Makes the given blocks the live blocks of a private pool, and no others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_restore(
    device: c_int,
    number: PoolNumber,
    blocks: *const BlockInfo,
    count: usize,
) -> c_int {
    // SAFETY: as the caller promised.
    code_of(|| restore(device, number, unsafe { array(blocks, count, "blocks") }?))
}

fn restore(device: c_int, number: PoolNumber, blocks: &[BlockInfo]) -> Result<(), Failure> {
    let pools = private::pools_of(device).into_iter();
    let found = pools.into_iter().find(|(_, of, _)| *of == number);
    let (private, _, pool) = found.ok_or("there is no such pool any more")?;
    let handle = |stream| device_pools::pool_and_stream(device, stream).map(|(_, handle)| handle);
    let kept = blocks.iter().map(|block| {
        Ok(KeptBlock {
            address: Address::new(block.address),
            size: Bytes::new(block.size),
            requested: Bytes::new(block.requested),
            tag: TORCH.tag(),
            stream: handle(block.stream)?,
        })
    });
    let kept: Vec<KeptBlock> = kept.collect::<Result<_, Failure>>()?;
    let stay: BTreeSet<(u64, u64)> =
        blocks.iter().map(|block| (block.address, block.size)).collect();
    let mut removed = pool.memory_map().blocks;
    removed.retain(|block| !stay.contains(&(block.address, block.size_bytes)));
    // Before the blocks are freed: right after, another thread may have and note one at such an address.
    let removed: BTreeMap<u64, Origin> =
        removed.iter().map(|block| (block.address, origins::take(block.address))).collect();
    let stream_of = |address: Address| {
        let origin = removed.get(&address.get()).copied();
        let origin = origin.unwrap_or_else(|| origins::of(address.get()));
        handle(origin.stream).unwrap_or(StreamHandle::DEFAULT)
    };
    if let Err(error) = pool.restore(&kept, &stream_of) {
        removed.into_iter().for_each(|(address, origin)| origins::note(address, origin));
        return Err(error.into());
    }
    removed.into_keys().for_each(sharing::forget);
    for block in blocks {
        origins::note(block.address, Origin { device, private, stream: block.stream });
    }
    Ok(())
}
