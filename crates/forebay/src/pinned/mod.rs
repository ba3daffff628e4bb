//! Pools of pinned host memory, which a device copies from and to at full bus speed.
//!
//! Pinning is the most expensive call of a driver (31 ms for 64 MiB on an H200), so a program should pin once and reuse
//! the memory. A [`PinnedPool`] is a [`Pool`](crate::Pool) over pinned memory: blocks have the requested size, rounded
//! up to 512 B, are cut from larger pieces and merged with their neighbours when freed. A cached allocation costs about
//! the same as one of device memory: an array takes 64 ns and one of device memory 50 ns; through C a pair of calls
//! takes 19 and 16 ns (64 KiB; simulated device, two shared cores, 2026-11-17: `hot_pair` of `forebay-bench` with
//! `pinned` and `array`, and of `forebay-capi/tests/c` with `pinned` and `default`).
//!
//! ```text
//!   PinnedArray ── host(), host_mut()          wait for the work that uses the memory, then lend it to the host
//!       │       ── copy_to(), ...              enqueue a copy, and note the event at which it is done
//!       │ drop                                 done: free now.  Not done: free when its events are reached
//!       v
//!   Pool of PinnedSource                       every block is free in the order of one idle stream, the host's
//!       v
//!   pinned pages, or else pinned segments      from the driver
//! ```
//!
//! # How much is pinned
//!
//! On a device with [`PINNED_PAGES`](forebay_hal::Capabilities::PINNED_PAGES), which includes CUDA devices whose driver
//! creates pages of host memory, free pages serve any request, and a pool holds hardly more than the program's peak:
//! 1.02 to 1.05 times for data loaders with batches of random sizes that keep a few hundred MiB ready, where powers of
//! two hold 1.1 to 2.5 times as much (generated loaders on the simulated device, tests `pinned::tests::workload`). On
//! other devices, and for [portable](PinnedOptions::portable) and [write-combined](PinnedOptions::write_combined)
//! memory, a block cannot span two segments: with a few fixed batch sizes a program pins just what it needs, but with
//! random sizes a pool pins 1.3 to 3 times as much.
//!
//! # Order
//!
//! A pool of device memory reuses a block at once on the stream that freed it, because the stream keeps the order. The
//! host is not a stream: it would write to the memory while an earlier copy still reads it. So pinned memory is reused
//! only when all work that used it is done; memory that no stream used is reused at once.
//!
//! ```
//! use forebay::{HostDevice, PinnedPool, Pool};
//!
//! let device = HostDevice::open()?; // CudaDevice::open(0)? for the first GPU
//! let (pool, pinned) = (Pool::new(&device)?, PinnedPool::new(&device)?);
//! let mut array = pool.default_stream().uninit::<f32>(1000)?;
//!
//! let mut batch = pinned.array::<f32>(1000)?;
//! batch.host_mut()?.fill(1.5);
//! batch.copy_to(&mut array)?; // returns at once
//! drop(batch); // its memory is reused when the copy is done
//!
//! let mut back = pinned.array::<f32>(1000)?;
//! back.copy_from(&array)?;
//! assert_eq!(back.host()?, [1.5; 1000]); // waits for the copy
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # NUMA placement and first touch
//!
//! Pinned pages are always present, so pinning touches every page; there is no option to touch them beforehand. A CUDA
//! device allocates pinned memory of 4 MiB and more itself, in huge pages that up to 16 threads touch at once, and has
//! the driver register it; `docs/performance.md` has the gain. Segments of that size use this; pages come from the
//! driver alone.
//!
//! A host device places its pinned memory by the NUMA policy that it was opened with. Pages of a CUDA device, and
//! segments of 4 MiB and more, lie on the nearest NUMA node, unless the process has its own policy. Smaller segments
//! lie where the system places memory of the thread that grows the pool.

mod array;
mod pool;
mod source;

#[cfg(test)]
mod tests;

pub use self::array::PinnedArray;
pub use self::pool::{PinnedOptions, PinnedPool};
