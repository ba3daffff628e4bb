//! Strings, arrays, addresses and out parameters of C.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;

use forebay::Address;

use crate::error::{catch_panic, status_of};
use crate::status::{Failure, forebay_status as Status};

/// A string argument of C.
///
/// # Safety
///
/// * `text` is null, or ends with a zero byte and stays as it is for `'a`.
pub(crate) unsafe fn read_str<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(name, "null", "a text"));
    }
    // SAFETY: it is not null, and the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| {
        let at = format!("a text with byte {} that is not UTF-8", error.valid_up_to());
        Failure::argument(name, at, "UTF-8")
    })
}

/// Where C wants a result.
#[derive(Clone, Copy)]
pub(crate) struct Out<T> {
    to: *mut T,
    /// The parameter's name, to refuse null by; `None` where null means that the result is not wanted.
    name: Option<&'static str>,
}

impl<T> Out<T> {
    /// An out parameter that must not be null.
    ///
    /// # Safety
    ///
    /// * `to` is null, or a `T` can be written there until the function returns.
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

    /// Refuses null, before a call has effects that would have to be undone.
    pub(crate) fn check(self) -> Result<Self, Failure> {
        match self.name {
            Some(name) if self.to.is_null() => {
                Err(Failure::argument(name, "null", "where the result goes"))
            }
            _ => Ok(self),
        }
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: the caller of `new` promised it.
        unsafe { write_optional(self.to, value) };
    }

    /// Does a whole call as [`status_of`] does: the result of `work` is written where it is wanted.
    pub(crate) fn result(self, work: impl FnOnce() -> Result<T, Failure>) -> Status {
        status_of(|| {
            let to = self.check()?;
            to.set(work()?);
            Ok(())
        })
    }
}

impl Out<*mut c_void> {
    /// As [`result`](Self::result), for an address. Null on failure.
    pub(crate) fn pointer(self, work: impl FnOnce() -> Result<Address, Failure>) -> Status {
        self.result(|| {
            self.set(core::ptr::null_mut());
            Ok(pointer(work()?))
        })
    }
}

impl Out<*mut c_char> {
    /// As [`result`](Self::result), for a string that C frees by `forebay_string_free`.
    pub(crate) fn text(self, work: impl FnOnce() -> Result<String, Failure>) -> Status {
        self.result(|| into_c_string(work()?))
    }
}

/// Writes a result where the out parameter is not null.
///
/// # Safety
///
/// * `to` is null, or a `T` can be written there.
pub(crate) unsafe fn write_optional<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as the caller promises. C may pass memory that is not aligned for it.
        unsafe { to.write_unaligned(value) };
    }
}

/// The values of an array argument of C.
///
/// # Safety
///
/// * `first` is null, or the first of `count` values that stay as they are for `'a`.
pub(crate) unsafe fn array<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if !check_array(first, count, name)? {
        return Ok(&[]);
    }
    // SAFETY: not null, aligned, no larger than memory can be; the caller promises the values.
    Ok(unsafe { core::slice::from_raw_parts(first, count) })
}

/// Whether an array argument has any values; an error where the pointer or the count is impossible. Reads no
/// value.
pub(crate) fn check_array<T>(first: *const T, count: usize, name: &str) -> Result<bool, Failure> {
    if count == 0 {
        return Ok(false);
    }
    let most = isize::MAX.unsigned_abs() / size_of::<T>().max(1);
    if first.is_null() || !first.is_aligned() || count > most {
        let given = format!("{count} values at {first:p}");
        return Err(Failure::argument(name, given, "an array of so many values"));
    }
    Ok(true)
}

/// A device address as a pointer of C. It is never dereferenced here.
#[inline(always)]
pub(crate) fn pointer(address: Address) -> *mut c_void {
    // Addresses of a device of this process fit its pointers.
    #[allow(clippy::cast_possible_truncation)]
    core::ptr::without_provenance_mut(address.get() as usize)
}

/// Likewise the other way round.
#[inline(always)]
pub(crate) fn address(pointer: *const c_void) -> Address {
    Address::new(pointer.addr() as u64)
}

/// A string that C frees by `forebay_string_free`.
pub(crate) fn into_c_string(text: String) -> Result<*mut c_char, Failure> {
    CString::new(text)
        .map(CString::into_raw)
        .map_err(|_| Failure::new(Status::Defect, "a defect in forebay: a text with a zero in it"))
}

/// A string in a fixed array: truncated where it does not fit, and terminated by a zero byte.
pub(crate) fn fixed_c_string<const N: usize>(text: &str) -> [c_char; N] {
    let room = N.saturating_sub(1);
    let end = (0..=room.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    let mut field = [0; N];
    for (to, byte) in field.iter_mut().zip(text.as_bytes().iter().take(end.unwrap_or(0))) {
        *to = c_char::from_ne_bytes([*byte]);
    }
    field
}

/// Frees a string that a function of this library returned. Null is ignored.
///
/// # Safety
///
/// * `text` is null, or a string of a function that says to free it here, which was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_string_free(text: *mut c_char) {
    catch_panic((), || {
        if !text.is_null() {
            // SAFETY: it was made by `into_c_string`, as the caller promises.
            drop(unsafe { CString::from_raw(text) });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<const N: usize>(text: &str) -> String {
        let field: [c_char; N] = fixed_c_string(text);
        assert_eq!(field[N - 1], 0);
        // SAFETY: the last byte is zero.
        unsafe { CStr::from_ptr(field.as_ptr()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn what_does_not_fit_is_cut_between_letters() {
        assert_eq!(shown::<8>("short"), "short");
        assert_eq!(shown::<8>("1234567"), "1234567");
        assert_eq!(shown::<8>("12345678"), "1234567");
        assert_eq!(shown::<8>("123456\u{e9}"), "123456");
        assert_eq!(shown::<1>("a"), "");
    }

    #[test]
    fn arrays_that_cannot_be_are_refused() {
        let one = 7_u64;
        // SAFETY: nothing is read of what is refused, and one value is there.
        unsafe {
            assert_eq!(array(&raw const one, 1, "sizes").unwrap(), [7]);
            assert!(array::<u64>(core::ptr::null(), 0, "sizes").unwrap().is_empty());
            for (first, count) in [(core::ptr::null(), 1), (&raw const one, usize::MAX)] {
                assert!(array::<u64>(first, count, "sizes").is_err());
            }
        }
    }
}
