//! The transfer engine: uploads and downloads of ordinary memory by several threads, and tickets for those under way.
//!
//! Each open device has an engine, made by the first transfer. It is an engine of Rust (`docs/transfers.md`); a ticket here
//! keeps no memory, so closing it waits.

use core::ffi::c_void;
use std::sync::Arc;

use forebay::bindings::{host_vec, transfer_engine};
use forebay::hal::{Call, Copy, Location};
use forebay::transfer::TransferEngine;
use forebay::transfer::raw::RawTicket;
use forebay::{Address, Bytes, Priority};

use crate::device::{DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::sized::{self, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::stream::{self, StreamEntry, forebay_stream, priority_of};
use crate::table::{self, entry};
use crate::text::{Out, address, array, check_array, write_optional};

/// A transfer under way, or done. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_transfer {
    /// Not to be looked at.
    pub id: u64,
}

/// How a transfer is made. All zeros but the size is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_transfer_options {
    /// `sizeof(forebay_transfer_options)`.
    pub struct_size: u32,
    /// Above 0 for high, below 0 for low: of several transfers, a piece of the most urgent one begins first.
    pub priority: i32,
}

versioned_struct!(forebay_transfer_options: 8);

/// One transfer of a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_transfer_item {
    /// Where to.
    pub to: *mut c_void,
    /// Where from.
    pub from: *const c_void,
    /// How many bytes.
    pub size: u64,
}

/// The object of a transfer's handle.
pub(crate) struct TransferEntry {
    /// Dropped first: it waits for the transfer.
    ticket: RawTicket,
    _stream: Option<Arc<StreamEntry>>,
    _device: Arc<DeviceEntry>,
}

entry!(forebay_transfer: TransferEntry, Transfer);

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// The device's engine, made by the first call. Not locked while the engine is used.
fn engine(entry: &DeviceEntry) -> Result<TransferEngine, Failure> {
    let mut engine = entry.transfers();
    match &*engine {
        Some(engine) => Ok(engine.clone()),
        None => Ok(engine.insert(transfer_engine(entry.device())?).clone()),
    }
}

/// A copy of consecutive bytes.
fn copy_of(direction: Direction, item: forebay_transfer_item) -> Result<Copy, Failure> {
    let forebay_transfer_item { to, from, size } = item;
    for (name, end) in [("to", to.cast_const()), ("from", from)] {
        if end.is_null() && size > 0 {
            return Err(Failure::argument(name, "null", "memory of so many bytes"));
        }
    }
    // The threads of the engine follow the address of the host's side.
    let (to, from) = match direction {
        Direction::Up => (Location::Device(address(to)), Location::Host(Address::of_pointer(from))),
        Direction::Down => {
            (Location::Host(Address::of_pointer(to)), Location::Device(address(from)))
        }
    };
    Ok(Copy::linear(to, from, Bytes::new(size))?)
}

/// Begins a transfer.
///
/// # Safety
///
/// * Both sides are memory until the transfer is done: readable where read, and where written, used by nobody else.
/// * `options` is null, or a `forebay_transfer_options` whose `struct_size` is set.
unsafe fn begin(
    device: forebay_device,
    direction: Direction,
    item: forebay_transfer_item,
    stream: forebay_stream,
    options: *const forebay_transfer_options,
) -> Result<TransferEntry, Failure> {
    let priority = if options.is_null() {
        Priority::Normal
    } else {
        // SAFETY: as the caller promises; zeros are options.
        priority_of(unsafe { sized::read(options, "options") }?.priority)
    };
    let device = table::find(device)?;
    let (kept, handle) = (stream::entry(stream)?, stream::on_device(stream, &device)?);
    let copy = copy_of(direction, item)?;
    let engine = engine(&device)?;
    // SAFETY: as the caller promises. The entry keeps the stream open.
    let transfer = unsafe { engine.copy_raw(copy, handle) };
    let ticket = transfer.priority(priority).submit()?;
    Ok(TransferEntry { ticket, _stream: kept, _device: device })
}

/// Makes a transfer, and waits.
///
/// # Safety
///
/// * As for [`begin`].
unsafe fn transfer(
    device: forebay_device,
    direction: Direction,
    item: forebay_transfer_item,
    stream: forebay_stream,
    options: *const forebay_transfer_options,
) -> forebay_status {
    // SAFETY: as the caller promises.
    status_of(|| Ok(unsafe { begin(device, direction, item, stream, options) }?.ticket.wait()?))
}

/// Begins a transfer, and gives out a handle.
///
/// # Safety
///
/// * As for [`begin`], and `transfer` is null, or a handle can be written there.
unsafe fn transfer_async(
    device: forebay_device,
    direction: Direction,
    item: forebay_transfer_item,
    stream: forebay_stream,
    options: *const forebay_transfer_options,
    transfer: *mut forebay_transfer,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(transfer, "transfer") };
    to.result(|| {
        // SAFETY: likewise.
        let entry = Arc::new(unsafe { begin(device, direction, item, stream, options) }?);
        // Where there are too many handles, the transfer ends with the entry.
        table::open(Arc::clone(&entry)).inspect_err(|_| {
            entry.ticket.cancel();
        })
    })
}

/// Copies `size` bytes from the host to the device by several threads, after the work that was enqueued on `stream`, and
/// waits. Meant for ordinary memory, which a driver copies with one thread; the device copies pinned memory itself,
/// whichever library pinned it. Refused with `FOREBAY_STATUS_UNSUPPORTED` if the device lacks `FOREBAY_CAN_PINNED`.
///
/// # Safety
///
/// * Until the call returns: `from` has `size` readable bytes, which nothing writes; `to` has `size` bytes of the device's
///   memory, which nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_upload(
    device: forebay_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
    stream: forebay_stream,
    options: *const forebay_transfer_options,
) -> forebay_status {
    let item = forebay_transfer_item { to, from, size };
    // SAFETY: as the caller promises.
    unsafe { transfer(device, Direction::Up, item, stream, options) }
}

/// Copies `size` bytes from the device to the host by several threads, after the work that was enqueued on `stream`, and
/// waits. See `forebay_upload`.
///
/// # Safety
///
/// * Until the call returns: `to` has `size` writable bytes, which nothing else uses; `from` has `size` bytes of the
///   device's memory, which nothing writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_download(
    device: forebay_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
    stream: forebay_stream,
    options: *const forebay_transfer_options,
) -> forebay_status {
    let item = forebay_transfer_item { to, from, size };
    // SAFETY: as the caller promises.
    unsafe { transfer(device, Direction::Down, item, stream, options) }
}

/// As `forebay_upload`, and does not wait. `transfer` gets a handle, which has to be closed. Work that is enqueued on
/// `stream` from now on does not wait for the transfer: `forebay_transfer_order` makes it.
///
/// # Safety
///
/// * As for `forebay_upload`, until `forebay_transfer_wait` or `forebay_transfer_close` of the handle has returned; for the
///   source, unless it is pinned memory, also until `forebay_transfer_order` has.
/// * After `forebay_transfer_order` and a close, `to` is used and freed in the order of `stream`.
#[must_use = "there is no transfer where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_upload_async(
    device: forebay_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
    stream: forebay_stream,
    options: *const forebay_transfer_options,
    transfer: *mut forebay_transfer,
) -> forebay_status {
    let item = forebay_transfer_item { to, from, size };
    // SAFETY: as the caller promises.
    unsafe { transfer_async(device, Direction::Up, item, stream, options, transfer) }
}

/// As `forebay_download`, and does not wait. `transfer` gets a handle, which has to be closed.
///
/// # Safety
///
/// * As for `forebay_download`, until `forebay_transfer_wait` or `forebay_transfer_close` of the handle has returned.
#[must_use = "there is no transfer where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_download_async(
    device: forebay_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
    stream: forebay_stream,
    options: *const forebay_transfer_options,
    transfer: *mut forebay_transfer,
) -> forebay_status {
    let item = forebay_transfer_item { to, from, size };
    // SAFETY: as the caller promises.
    unsafe { transfer_async(device, Direction::Down, item, stream, options, transfer) }
}

/// Makes all transfers of a batch, and waits.
///
/// # Safety
///
/// * As for [`begin`], for each item.
/// * `items` is null, or has `count` items; `results` is null, or has room for `count` statuses.
unsafe fn transfer_batch(
    device: forebay_device,
    direction: Direction,
    items: *const forebay_transfer_item,
    count: usize,
    stream: forebay_stream,
    results: *mut forebay_status,
) -> forebay_status {
    let mut is_told = results.is_null();
    let status = status_of(|| {
        // SAFETY: as the caller promises.
        let items = unsafe { array(items, count, "items") }?;
        let wants_results = !results.is_null() && check_array(results, count, "results")?;
        let device = table::find(device)?;
        let (_kept, handle) = (stream::entry(stream)?, stream::on_device(stream, &device)?);
        let mut outcomes = host_vec::with_capacity::<Result<(), Failure>>(count, Call::Copy)?;
        let mut copies = host_vec::with_capacity(count, Call::Copy)?;
        for item in items {
            let copy = copy_of(direction, *item);
            outcomes.push(copy.map(|copy| copies.push(Ok(copy))));
        }
        // SAFETY: as the caller promises.
        let made = unsafe { engine(&device)?.copy_all_raw(copies, handle) }?;
        for (outcome, made) in outcomes.iter_mut().filter(|outcome| outcome.is_ok()).zip(made) {
            *outcome = made.map_err(Failure::from);
        }
        is_told = true;
        let mut first = Ok(());
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let status =
                outcome.as_ref().map_or_else(|failure| failure.status, |()| forebay_status::Ok);
            if wants_results {
                // SAFETY: there is room for `count` statuses, of which this is one.
                unsafe { results.add(index).write(status) };
            }
            if let (Ok(()), Err(failure)) = (&first, outcome) {
                let said = format!("item {index} of {count}: {failure}");
                first = Err(Failure::new(failure.status, said));
            }
        }
        first
    });
    if !is_told {
        // It failed as a whole: each item has.
        for index in 0..count {
            // SAFETY: there is room for `count` statuses, as the caller promises.
            unsafe { results.add(index).write(status) };
        }
    }
    status
}

/// Copies many pieces of ordinary memory from the host to the device, after the work that was enqueued on `stream`, and
/// waits. Small ones share calls of the device. An item that fails leaves the others alone: `results`, where it is not null,
/// gets the status of each, and the call's own is that of the first that failed.
///
/// # Safety
///
/// * Each item is as for `forebay_upload`; no two write the same byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_upload_batch(
    device: forebay_device,
    items: *const forebay_transfer_item,
    count: usize,
    stream: forebay_stream,
    results: *mut forebay_status,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { transfer_batch(device, Direction::Up, items, count, stream, results) }
}

/// Copies many pieces of device memory to ordinary memory, after the work that was enqueued on `stream`, and waits. See
/// `forebay_upload_batch`.
///
/// # Safety
///
/// * Each item is as for `forebay_download`; no two write the same byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_download_batch(
    device: forebay_device,
    items: *const forebay_transfer_item,
    count: usize,
    stream: forebay_stream,
    results: *mut forebay_status,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { transfer_batch(device, Direction::Down, items, count, stream, results) }
}

/// Copies `size` bytes from one device to another, of any two kinds, through host memory, after the work that was enqueued
/// on the streams of both, and waits: one part goes up while the next comes down. Refused with
/// `FOREBAY_STATUS_UNSUPPORTED` where a device has no `FOREBAY_CAN_PINNED`. If it fails in the middle, a part of `to` is
/// written.
///
/// # Safety
///
/// * Until the call returns: `from` has `size` bytes of `from_device`, which nothing writes; `to` has `size` bytes of
///   `to_device`, which nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_copy_between(
    to_device: forebay_device,
    to: *mut c_void,
    to_stream: forebay_stream,
    from_device: forebay_device,
    from: *const c_void,
    from_stream: forebay_stream,
    size: u64,
) -> forebay_status {
    status_of(|| {
        for (name, end) in [("to", to.cast_const()), ("from", from)] {
            if end.is_null() && size > 0 {
                return Err(Failure::argument(name, "null", "memory of so many bytes"));
            }
        }
        let [sink, source] = [to_device, from_device].map(table::find);
        let (sink, source) = (sink?, source?);
        let _kept = (stream::entry(to_stream)?, stream::entry(from_stream)?);
        let to = (address(to), stream::on_device(to_stream, &sink)?);
        let from = (address(from), stream::on_device(from_stream, &source)?);
        let (there, here) = (engine(&sink)?, engine(&source)?);
        // SAFETY: as the caller promises. The streams and devices are kept open.
        Ok(unsafe { here.copy_between_raw(from, &there, to, Bytes::new(size)) }?)
    })
}

/// Waits until a transfer is done. The thread helps to copy meanwhile. The status is that of the transfer, for each thread
/// that waits and each time; the memory is the caller's again, whatever it is.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_transfer_wait(transfer: forebay_transfer) -> forebay_status {
    status_of(|| Ok(table::find(transfer)?.ticket.wait()?))
}

/// Waits until all of a transfer was handed to the device, and makes later work on its stream wait for it there: so a
/// transfer overlaps with kernels. From then on the host memory is the caller's again, unless it is pinned.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_transfer_order(transfer: forebay_transfer) -> forebay_status {
    status_of(|| Ok(table::find(transfer)?.ticket.order()?))
}

/// Whether a transfer is done, or has failed: 1 if so, else 0. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_transfer_is_done(
    transfer: forebay_transfer,
    done: *mut i32,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { Out::new(done, "done") }
        .result(|| Ok(i32::from(table::find(transfer)?.ticket.is_done())))
}

/// How many bytes of a transfer were copied on the host and handed over, and how many there are. Each may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_transfer_progress(
    transfer: forebay_transfer,
    moved: *mut u64,
    total: *mut u64,
) -> forebay_status {
    status_of(|| {
        let progress = table::find(transfer)?.ticket.progress();
        // SAFETY: as the caller promises.
        unsafe {
            write_optional(moved, progress.moved.get());
            write_optional(total, progress.total.get());
        }
        Ok(())
    })
}

/// Ends a transfer early: no further piece begins, and waiting for it gives `FOREBAY_STATUS_CANCELLED`. What was copied
/// stays. `cancelled`, where it is not null, gets 1, or 0 if all was handed over already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_transfer_cancel(
    transfer: forebay_transfer,
    cancelled: *mut i32,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(cancelled) };
    to.result(|| {
        let ended = table::find(transfer)?.ticket.cancel();
        Ok(i32::from(ended))
    })
}

/// Closes a transfer. **Waits until it is done**, since its memory may be freed next; does not wait for the device where
/// `forebay_transfer_order` has returned and the host memory is not pinned. The handle is closed in any case; the status is
/// that of the transfer. Cancel it first to end it early.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_transfer_close(transfer: forebay_transfer) -> forebay_status {
    // Not by the drop alone: another thread may be in a call with the transfer.
    status_of(|| Ok(table::close(transfer)?.ticket.finish()?))
}
