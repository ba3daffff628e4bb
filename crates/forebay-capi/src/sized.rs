//! Structures that may grow from one version of the library to the next.
//!
//! Each begins with `struct_size`, which the caller sets to the size that its own header has. What
//! the caller's header does not know is not written, and what this library does not know is zeroed:
//! so an old program runs with a new library, and a new one with an old library sees zeros.

use crate::error::status_of;
use crate::status::{Failure, forebay_status as Status};

/// A structure that begins with its size.
///
/// # Safety
///
/// An implementation promises that it is `repr(C)`, begins with a `u32` that is its size, consists of
/// integers alone, and has no padding.
pub(crate) unsafe trait VersionedStruct: Copy {
    /// Its size in the first version of the ABI.
    const FIRST_SIZE: usize;

    /// The same with its `struct_size` set.
    fn filled(self, size: u32) -> Self;
}

/// Implements [`VersionedStruct`] for structures that have not grown yet.
macro_rules! versioned_struct {
    ($($name:ty: $first:literal),* $(,)?) => {
        $(
            const _: () = assert!(size_of::<$name>() >= $first, "structures only grow");
            const _: () = assert!(core::mem::offset_of!($name, struct_size) == 0);
            // SAFETY: declared beside this line as the trait demands.
            unsafe impl $crate::sized::VersionedStruct for $name {
                const FIRST_SIZE: usize = $first;

                fn filled(mut self, size: u32) -> Self {
                    self.struct_size = size;
                    self
                }
            }
        )*
    };
}

pub(crate) use versioned_struct;

/// Where C wants a structure, which has the size that its header has for it.
#[derive(Clone, Copy)]
pub(crate) struct SizedOut<T> {
    to: *mut T,
    /// The parameter's name; `None` where null means that the result is not wanted.
    name: Option<&'static str>,
}

impl<T: VersionedStruct> SizedOut<T> {
    /// An out parameter that must not be null.
    ///
    /// # Safety
    ///
    /// * `to` is null, or begins with a `u32`, and as many bytes as that says can be written there
    ///   until the function returns.
    pub(crate) unsafe fn new(to: *mut T, name: &'static str) -> Self {
        Self { to, name: Some(name) }
    }

    /// An out parameter that may be null.
    ///
    /// # Safety
    ///
    /// * As for [`new`](Self::new).
    pub(crate) unsafe fn optional(to: *mut T) -> Self {
        Self { to, name: None }
    }

    /// Does a whole call as [`status_of`] does, with a structure as its result.
    pub(crate) fn result(self, work: impl FnOnce() -> Result<T, Failure>) -> Status {
        status_of(|| self.fill(work))
    }

    /// Checks the pointer and `struct_size`, then writes the result of `work`.
    pub(crate) fn fill(self, work: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
        if self.to.is_null() && self.name.is_none() {
            return work().map(drop);
        }
        // SAFETY: the caller of `new` promised it.
        let room = unsafe { room(self.to, self.name.unwrap_or("result")) }?;
        let known = room.min(size_of::<T>());
        let value = work()?.filled(u32::try_from(known).unwrap_or(u32::MAX));
        // SAFETY: the caller of `new` promised `room` bytes there, and no more than `room` are written; the
        // value has the bytes that are copied, and none of them is padding.
        unsafe {
            let to = self.to.cast::<u8>();
            core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to, known);
            to.add(known).write_bytes(0, room - known);
        }
        Ok(())
    }
}

/// How many bytes C has for a structure, by its `struct_size`.
///
/// # Safety
///
/// * `at` is null, or a `u32` can be read there.
unsafe fn room<T: VersionedStruct>(at: *const T, name: &str) -> Result<usize, Failure> {
    if at.is_null() {
        return Err(Failure::argument(name, "null", "a structure with its struct_size"));
    }
    // SAFETY: the caller promises that it begins so. It may not be aligned.
    let room = unsafe { at.cast::<u32>().read_unaligned() };
    let (least, room) = (T::FIRST_SIZE, usize::try_from(room).unwrap_or(usize::MAX));
    // A size far beyond any version is uninitialised memory.
    let most = size_of::<T>().saturating_mul(16);
    if room < least || room > most {
        let given = format!("a structure whose struct_size is {room}");
        let allowed = format!("its sizeof, {least} to {most}: set it before the call");
        return Err(Failure::argument(name, given, allowed));
    }
    Ok(room)
}

/// A structure that C gave: what its header does not know is zero.
///
/// # Safety
///
/// * `from` is null, or begins with a `u32`, and as many bytes as that says can be read there.
/// * Zeros are a value of `T`.
pub(crate) unsafe fn read<T: VersionedStruct>(from: *const T, name: &str) -> Result<T, Failure> {
    // SAFETY: as the caller promises.
    let room = unsafe { room(from, name) }?;
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    let known = room.min(size_of::<T>());
    // SAFETY: so many bytes can be read, and there is room for them; a T consists of integers, of
    // which all bytes are values.
    unsafe {
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known);
        Ok(value.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Now {
        struct_size: u32,
        one: u32,
        two: u64,
    }

    versioned_struct!(Now: 8);

    fn ask(room: u32) -> Result<[u64; 4], Failure> {
        let mut memory = [u64::MAX; 4];
        let to = memory.as_mut_ptr();
        // SAFETY: four words are there, and no room beyond them is said.
        unsafe {
            to.cast::<u32>().write(room);
            SizedOut::new(to.cast::<Now>(), "to")
                .fill(|| Ok(Now { struct_size: 0, one: 1, two: 2 }))?;
        }
        Ok(memory)
    }

    #[test]
    fn old_and_new_headers_get_what_they_know() {
        let one = |size: u64| size | 1 << 32;
        assert_eq!(ask(8).unwrap(), [one(8), u64::MAX, u64::MAX, u64::MAX]);
        assert_eq!(ask(16).unwrap(), [one(16), 2, u64::MAX, u64::MAX]);
        assert_eq!(ask(24).unwrap(), [one(16), 2, 0, u64::MAX]);
        for wrong in [0, 7, 257, u32::MAX] {
            assert!(ask(wrong).unwrap_err().to_string().contains("struct_size"));
        }
    }

    #[test]
    fn what_an_old_header_does_not_know_reads_as_zero() {
        let given = Now { struct_size: 8, one: 5, two: 6 };
        // SAFETY: it begins with its size, and zeros are a value.
        let read = unsafe { read(&raw const given, "given") }.unwrap();
        assert_eq!(read, Now { struct_size: 8, one: 5, two: 0 });
    }
}
