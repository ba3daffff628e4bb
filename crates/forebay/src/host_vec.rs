//! Vectors with fallible allocation, for sizes that come from a caller, a file or another process. A failure is an
//! error with figures, where `vec!` would end the process.

use bytemuck::Pod;
use forebay_core::Bytes;
use forebay_hal::{self as hal, Call};

use crate::{Error, Result};

/// A vector of `length` zeros, for a call.
pub fn zeroed<T: Pod>(length: usize, call: Call) -> Result<Vec<T>> {
    may_be_granted::<T>(length, call)?;
    // Zero pages from the system: none is touched before it is written.
    bytemuck::allocation::try_zeroed_vec(length).map_err(|()| refusal::<T>(length, call))
}

/// A copy of `elements`, for a call.
pub fn copied<T: Copy>(elements: &[T], call: Call) -> Result<Vec<T>> {
    let mut copy = with_capacity(elements.len(), call)?;
    copy.extend_from_slice(elements);
    Ok(copy)
}

/// An empty vector with room for `length` elements, for a call.
pub fn with_capacity<T>(length: usize, call: Call) -> Result<Vec<T>> {
    may_be_granted::<T>(length, call)?;
    let mut elements = Vec::new();
    elements.try_reserve_exact(length).map_err(|_| refusal::<T>(length, call))?;
    Ok(elements)
}

/// A copy of a text, for a call.
pub(crate) fn text(text: &str, call: Call) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| refusal::<u8>(text.len(), call))?;
    copy.push_str(text);
    Ok(copy)
}

/// Adds an element, for a call.
pub(crate) fn push<T>(elements: &mut Vec<T>, element: T, call: Call) -> Result<()> {
    elements.try_reserve(1).map_err(|_| refusal::<T>(elements.len().saturating_add(1), call))?;
    elements.push(element);
    Ok(())
}

/// Fails if the size exceeds the host's total memory. If the system overcommits any size (vm.overcommit_memory is 1),
/// touching that much would end the process.
fn may_be_granted<T>(length: usize, call: Call) -> Result<()> {
    if size_of_elements::<T>(length) > memory().1 {
        return Err(refusal::<T>(length, call));
    }
    Ok(())
}

fn size_of_elements<T>(length: usize) -> Bytes {
    Bytes::new((length as u64).saturating_mul(size_of::<T>() as u64))
}

fn refusal<T>(length: usize, call: Call) -> Error {
    let (requested, (free, total)) = (size_of_elements::<T>(length), memory());
    hal::Error::OutOfMemory { call, requested, free, total }.into()
}

/// The free and the total memory of the host, including swap.
#[cfg(all(target_os = "linux", not(miri)))]
fn memory() -> (Bytes, Bytes) {
    let found = rustix::system::sysinfo();
    // The fields have 32 bits on some targets.
    #[allow(clippy::useless_conversion)]
    let bytes = |memory, swap| {
        let parts = u64::from(memory).saturating_add(u64::from(swap));
        Bytes::new(parts.saturating_mul(found.mem_unit.into()))
    };
    (bytes(found.freeram, found.freeswap), bytes(found.totalram, found.totalswap))
}

/// Unknown on this system.
#[cfg(any(not(target_os = "linux"), miri))]
fn memory() -> (Bytes, Bytes) {
    (Bytes::ZERO, Bytes::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_cannot_have_is_refused_with_figures() {
        assert_eq!(zeroed::<u32>(3, Call::Copy).unwrap(), [0; 3]);
        assert_eq!(copied(&[1, 2], Call::Copy).unwrap(), [1, 2]);
        assert_eq!(zeroed::<()>(usize::MAX, Call::Copy).unwrap().len(), usize::MAX);
        for length in [usize::MAX, isize::MAX.cast_unsigned(), 1 << 50] {
            let refused = [
                zeroed::<u64>(length, Call::Copy).unwrap_err(),
                with_capacity::<u64>(length, Call::Copy).unwrap_err(),
            ];
            for refused in refused {
                let Error::Device(hal::Error::OutOfMemory { requested, total, .. }) = refused
                else {
                    panic!("{refused}")
                };
                assert!(
                    requested.get() >= 1 << 53 && total > Bytes::ZERO,
                    "{requested} of {total}"
                );
            }
        }
    }
}
