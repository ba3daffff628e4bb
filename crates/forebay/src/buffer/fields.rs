//! Structure of arrays: copies one field of a buffer of structures to a buffer of its own, and back.
//!
//! ```text
//!   array of structures     |x y z m|x y z m|x y z m|...      Buffer<Particle>
//!                              |       |       |              copy_field_to, copy_field_from
//!   structure of arrays     |y y y ...|                       Buffer<f32>
//! ```

use core::fmt;
use core::marker::PhantomData;

use bytemuck::Pod;
use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, Location, StreamHandle, invalid};

use super::access::Access;
use super::replicas::offset;
use super::typed::Buffer;
use crate::Result;
use crate::range::check_length;

/// A field of the structure `S`, of type `T`, by its offset.
///
/// ```
/// use core::mem::offset_of;
/// use forebay::buffer::Field;
///
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
/// #[repr(C)]
/// struct Particle {
///     position: [f32; 3],
///     mass: f32,
/// }
/// let mass = Field::<Particle, f32>::at(offset_of!(Particle, mass))?;
/// let particles = [Particle { position: [0.0; 3], mass: 2.0 }; 100];
/// let mut masses = [0.0; 100];
/// mass.gather(&particles, &mut masses)?;
/// assert_eq!(masses, [2.0; 100]);
/// assert!(Field::<Particle, f64>::at(offset_of!(Particle, mass)).is_err());
/// # Ok::<(), forebay::Error>(())
/// ```
pub struct Field<S, T> {
    offset: usize,
    types: PhantomData<fn(S) -> T>,
}

impl<S, T> Clone for Field<S, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, T> Copy for Field<S, T> {}

impl<S, T> fmt::Debug for Field<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Field").field("offset", &self.offset).finish()
    }
}

impl<S: Pod, T: Pod> Field<S, T> {
    /// The field at `offset` bytes (`core::mem::offset_of!`). Fails if it does not fit within the structure.
    pub fn at(offset: usize) -> Result<Self> {
        if size_of::<T>() == 0
            || offset.checked_add(size_of::<T>()).is_none_or(|end| end > size_of::<S>())
        {
            let given = format!("{offset} B, for a field of {} B", size_of::<T>());
            let allowed =
                format!("a field with bytes, within the {} B of the structure", size_of::<S>());
            return Err(invalid(Call::Copy, "offset", given, allowed).into());
        }
        Ok(Self { offset, types: PhantomData })
    }

    /// Copies the field of every structure to `to`. Fails if the lengths differ.
    pub fn gather(&self, from: &[S], to: &mut [T]) -> Result<()> {
        check_length("to", to.len(), from.len())?;
        let rows = bytemuck::cast_slice::<S, u8>(from).chunks_exact(size_of::<S>());
        for (row, to) in rows.zip(to) {
            let field = row.get(self.offset..).and_then(|rest| rest.get(..size_of::<T>()));
            *to = field.map_or_else(T::zeroed, bytemuck::pod_read_unaligned);
        }
        Ok(())
    }

    /// Copies `from` to the field of every structure and leaves other fields alone. Fails if the lengths differ.
    pub fn scatter(&self, from: &[T], to: &mut [S]) -> Result<()> {
        check_length("from", from.len(), to.len())?;
        let rows = bytemuck::cast_slice_mut::<S, u8>(to).chunks_exact_mut(size_of::<S>());
        for (row, from) in rows.zip(from) {
            let field = row.get_mut(self.offset..).and_then(|rest| rest.get_mut(..size_of::<T>()));
            if let Some(field) = field {
                field.copy_from_slice(bytemuck::bytes_of(from));
            }
        }
        Ok(())
    }

    /// The copy of one field in each of `rows` structures at `structures`: to consecutive elements, or from them.
    fn copy(
        &self,
        structures: Address,
        elements: Address,
        rows: usize,
        to: bool,
    ) -> Result<hal::Copy> {
        let field = Location::Device(offset(structures, self.offset as u64)?);
        let elements = Location::Device(elements);
        let (pitch, width) = (Bytes::new(size_of::<S>() as u64), Bytes::new(size_of::<T>() as u64));
        let extent = (width, rows as u64);
        Ok(match to {
            true => hal::Copy::planes(elements, width, field, pitch, extent)?,
            false => hal::Copy::planes(field, pitch, elements, width, extent)?,
        })
    }
}

/// # Structure of arrays
impl<S: Pod> Buffer<S> {
    /// Copies one field of every structure to `to`: on the device, on `stream`, if both buffers share a device and the
    /// structures are current there; else on the host. Fails if `to` has another length.
    ///
    /// ```
    /// # use forebay::buffer::{BufferManager, Field};
    /// # use forebay::StreamHandle;
    /// let memory = BufferManager::host()?;
    /// let points = memory.buffer_from(&[[1.0_f32, 2.0], [3.0, 4.0]])?;
    /// let mut second = memory.buffer::<f32>(2)?;
    /// points.copy_field_to(Field::at(4)?, &mut second, StreamHandle::DEFAULT)?;
    /// assert_eq!(second.host()?, [2.0, 4.0]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn copy_field_to<T: Pod>(
        &self,
        field: Field<S, T>,
        to: &mut Buffer<T>,
        stream: StreamHandle,
    ) -> Result<()> {
        check_length("to", to.len(), self.len())?;
        let rows = self.len();
        let gather = |from, to| field.copy(from, to, rows, true);
        let mut source = self.raw.shared()?;
        if to.raw.exclusive().copy_on_device(&mut source, Access::Overwrite, stream, gather)? {
            return Ok(());
        }
        drop(source);
        // Get the host's structures first: if that fails, nothing has changed.
        let from = self.host()?;
        field.gather(from, &mut to.host_overwrite()?)
    }

    /// Copies `from` to one field of every structure and leaves other fields alone: on the device, on `stream`, if both
    /// buffers share a device and `from` is current there; else on the host. Fails if `from` has another length.
    pub fn copy_field_from<T: Pod>(
        &mut self,
        field: Field<S, T>,
        from: &Buffer<T>,
        stream: StreamHandle,
    ) -> Result<()> {
        check_length("from", from.len(), self.len())?;
        let rows = self.len();
        let scatter = |from, to| field.copy(to, from, rows, false);
        let mut source = from.raw.shared()?;
        if self.raw.exclusive().copy_on_device(&mut source, Access::Update, stream, scatter)? {
            return Ok(());
        }
        drop(source);
        let from = from.host()?;
        field.scatter(from, &mut self.host_mut()?)
    }
}

#[cfg(test)]
mod tests;
