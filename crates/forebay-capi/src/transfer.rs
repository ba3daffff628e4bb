//! Copies and fills, in the order of streams.

use core::ffi::c_void;

use forebay::hal::{Copy, Extent, Fill, Location, Pattern, Pitch};
use forebay::{Address, Bytes};

use crate::device::forebay_device;
use crate::error::status_of;
use crate::sized::{self, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::stream::{self, forebay_stream};
use crate::table;
use crate::text::address;

/// On which side an end of a copy lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum forebay_side {
    /// Host memory.
    Host = 0,
    /// Memory of the device.
    Device = 1,
}

/// A copy of any shape: rows in slices, each side with its own distances. Where there is one row, or
/// one slice, its distance is not looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_copy_shape {
    /// `sizeof(forebay_copy_shape)`.
    pub struct_size: u32,
    /// Where to: a `forebay_side`.
    pub to_side: u32,
    /// Where from: a `forebay_side`.
    pub from_side: u32,
    /// Zero.
    pub reserved: u32,
    /// The first byte written.
    pub to: u64,
    /// From a row to the next, there.
    pub to_row_bytes: u64,
    /// From a slice to the next, there.
    pub to_slice_bytes: u64,
    /// The first byte read.
    pub from: u64,
    /// From a row to the next, there.
    pub from_row_bytes: u64,
    /// From a slice to the next, there.
    pub from_slice_bytes: u64,
    /// The bytes of a row.
    pub width_bytes: u64,
    /// The rows of a slice.
    pub rows: u64,
    /// The slices.
    pub slices: u64,
}

versioned_struct!(forebay_copy_shape: 88);

/// Enqueues a copy of `size` contiguous bytes.
///
/// # Safety
///
/// * An end that is the host's is `size` bytes that stay, and that nobody else uses, until the copy is
///   done.
unsafe fn copy_linear(
    device: forebay_device,
    ends: (Location, Location),
    size: u64,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let entry = table::find(device)?;
        let stream = stream::on_device(stream, &entry)?;
        let (to, from) = ends;
        for (name, end) in [("to", to), ("from", from)] {
            if end.address() == Address::NULL && size > 0 {
                return Err(Failure::argument(name, "null", "memory of so many bytes"));
            }
        }
        let copy = Copy::linear(to, from, Bytes::new(size))?;
        // SAFETY: the caller's own caller promises the host's side; the device refuses what is not
        // its memory.
        Ok(unsafe { entry.device().copy(&copy, stream) }?)
    })
}

/// Enqueues a copy of `size` bytes from the host to the device.
///
/// # Safety
///
/// * `from` can be read until the copy is done, and is not written meanwhile: synchronise the stream
///   before it is changed or goes.
/// * `to` is memory of the device until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_copy_to_device(
    device: forebay_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
    stream: forebay_stream,
) -> forebay_status {
    let ends = (Location::Device(address(to)), Location::Host(address(from)));
    // SAFETY: as the caller promises.
    unsafe { copy_linear(device, ends, size, stream) }
}

/// Enqueues a copy of `size` bytes from the device to the host.
///
/// # Safety
///
/// * `to` can be written until the copy is done, and nobody else uses it meanwhile: synchronise the
///   stream before it is read or goes.
/// * `from` is memory of the device until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_copy_to_host(
    device: forebay_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
    stream: forebay_stream,
) -> forebay_status {
    let ends = (Location::Host(address(to)), Location::Device(address(from)));
    // SAFETY: as the caller promises.
    unsafe { copy_linear(device, ends, size, stream) }
}

/// Enqueues a copy of `size` bytes within the device. The two must not overlap.
///
/// # Safety
///
/// * Both are memory of the device until the copy is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_copy_on_device(
    device: forebay_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
    stream: forebay_stream,
) -> forebay_status {
    let ends = (Location::Device(address(to)), Location::Device(address(from)));
    // SAFETY: as the caller promises.
    unsafe { copy_linear(device, ends, size, stream) }
}

/// Enqueues a copy of any shape.
///
/// # Safety
///
/// * The rows on the host's side can be read, or written and are used by nobody else, until the copy is
///   done; those on the device's side are its memory until then; no row written shares a byte with one
///   read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_copy(
    device: forebay_device,
    shape: *const forebay_copy_shape,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises; zeros are a shape.
        let shape = unsafe { sized::read(shape, "shape") }?;
        let entry = table::find(device)?;
        let stream = stream::on_device(stream, &entry)?;
        let extent =
            Extent { width: Bytes::new(shape.width_bytes), rows: shape.rows, slices: shape.slices };
        let pitch = |row, slice| Pitch { row: Bytes::new(row), slice: Bytes::new(slice) };
        let copy = Copy::volumes(
            end("to", shape.to_side, shape.to, extent)?,
            pitch(shape.to_row_bytes, shape.to_slice_bytes),
            end("from", shape.from_side, shape.from, extent)?,
            pitch(shape.from_row_bytes, shape.from_slice_bytes),
            extent,
        )?;
        // SAFETY: the caller promises the host's side and that rows do not overlap; the device refuses
        // what is not its memory.
        Ok(unsafe { entry.device().copy(&copy, stream) }?)
    })
}

impl forebay_side {
    /// Whether a parameter names the device's side.
    pub(crate) fn is_device(name: &str, side: u32) -> Result<bool, Failure> {
        match side {
            0 | 1 => Ok(side == Self::Device as u32),
            _ => Err(Failure::argument(name, side, "0 (host) or 1 (device)")),
        }
    }
}

/// An end of a copy.
fn end(name: &str, side: u32, at: u64, extent: Extent) -> Result<Location, Failure> {
    if at == 0 && !extent.is_empty() {
        return Err(Failure::argument(name, "null", "memory of so many bytes"));
    }
    let at = Address::new(at);
    let is_device = forebay_side::is_device(&format!("{name}_side"), side)?;
    Ok(if is_device { Location::Device(at) } else { Location::Host(at) })
}

/// Enqueues a fill of `size` bytes with the low `width` bytes of `pattern`, repeated. `width` is
/// 1, 2 or 4; address and size must be multiples of it.
///
/// # Safety
///
/// * `to` is memory of the device until the fill is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_fill(
    device: forebay_device,
    to: *mut c_void,
    size: u64,
    pattern: u32,
    width: u32,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let entry = table::find(device)?;
        let stream = stream::on_device(stream, &entry)?;
        // What is above the width does not count.
        #[allow(clippy::cast_possible_truncation)]
        let pattern = match width {
            1 => Pattern::U8(pattern as u8),
            2 => Pattern::U16(pattern as u16),
            4 => Pattern::U32(pattern),
            other => return Err(Failure::argument("width", other, "1, 2 or 4 bytes")),
        };
        if to.is_null() && size > 0 {
            return Err(Failure::argument("to", "null", "memory of so many bytes"));
        }
        let fill = Fill::linear(address(to), Bytes::new(size), pattern)?;
        // SAFETY: the device refuses what is not its memory; the caller promises that it stays.
        Ok(unsafe { entry.device().fill(&fill, stream) }?)
    })
}
