//! Other vendors' allocators, through the two functions that PyTorch's pluggable allocator calls.

use core::ffi::{c_int, c_void};
use std::fmt;
use std::str::FromStr;

use forebay::Result;
use forebay_core::Bytes;
use forebay_hal::{Call, Error, StreamHandle};
use libloading::Library;

use super::subject::Subject;

type Allocate = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);

/// An allocator as it is named on the command line: NAME=LIBRARY:ALLOCATE:FREE.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Against {
    /// What it is called in the output.
    pub name: &'static str,
    library: String,
    allocate: String,
    free: String,
}

impl FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parts = || {
            let (name, rest) = text.split_once('=')?;
            let (rest, free) = rest.rsplit_once(':')?;
            let (library, allocate) = rest.rsplit_once(':')?;
            let parts = [name, library, allocate, free];
            parts.iter().all(|part| !part.is_empty()).then_some(parts)
        };
        let wanted = "write NAME=LIBRARY:ALLOCATE:FREE, where ALLOCATE and FREE are functions with the \
                      signatures of PyTorch's pluggable allocator";
        let [name, library, allocate, free] = parts().ok_or_else(|| wanted.to_owned())?;
        Ok(Self {
            // There are a few, for as long as the command runs.
            name: Box::leak(name.to_owned().into_boxed_str()),
            library: library.to_owned(),
            allocate: allocate.to_owned(),
            free: free.to_owned(),
        })
    }
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}:{}", self.name, self.library, self.allocate, self.free)
    }
}

/// The same, loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign {
    pub(crate) name: &'static str,
    allocate: Allocate,
    free: Free,
    ordinal: c_int,
}

impl Foreign {
    /// Loads an allocator for GPU `ordinal`. It stays loaded: nobody knows what it has left to do.
    pub(crate) fn load(against: &Against, ordinal: u32) -> std::result::Result<Self, String> {
        let said = |error: libloading::Error| format!("{against}: {error}");
        // SAFETY: the library is the user's choice, and its start-up code with it.
        let library: &'static Library =
            Box::leak(Box::new(unsafe { Library::new(&against.library) }.map_err(said)?));
        // SAFETY: that the functions have these signatures is what the user says by naming them here.
        let (allocate, free) = unsafe {
            let allocate = library.get::<Allocate>(against.allocate.as_bytes()).map_err(said)?;
            (*allocate, *library.get::<Free>(against.free.as_bytes()).map_err(said)?)
        };
        let ordinal = c_int::try_from(ordinal).map_err(|error| error.to_string())?;
        Ok(Self { name: against.name, allocate, free, ordinal })
    }
}

/// A block of theirs. It is not followed.
pub(crate) struct ForeignBlock(*mut c_void, isize);

// SAFETY: device memory may be freed by any thread; the pointer is never followed here.
unsafe impl Send for ForeignBlock {}

fn raw(stream: StreamHandle) -> *mut c_void {
    // A handle of CUDA's is a pointer of this process.
    #[allow(clippy::cast_possible_truncation)]
    core::ptr::without_provenance_mut(stream.0 as usize)
}

impl Subject for Foreign {
    type Held = ForeignBlock;

    #[inline]
    fn allocate(&self, size: Bytes, stream: StreamHandle) -> Result<ForeignBlock> {
        let bytes = size.to_usize().ok().and_then(|size| isize::try_from(size).ok());
        let bytes = bytes.unwrap_or(isize::MAX);
        // SAFETY: a size, a GPU that is there and a stream of it that lives.
        let block = unsafe { (self.allocate)(bytes, self.ordinal, raw(stream)) };
        if block.is_null() {
            let reason = format!("{} returned no block for {size}", self.name);
            return Err(Error::Transient { call: Call::Allocate, reason: reason.into() }.into());
        }
        Ok(ForeignBlock(block, bytes))
    }

    #[inline]
    fn free(&self, held: ForeignBlock, stream: StreamHandle) -> Result<()> {
        // SAFETY: a block of theirs, given back once, since what stands for it cannot be copied.
        unsafe { (self.free)(held.0, held.1, self.ordinal, raw(stream)) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_is_named_in_four_parts() {
        let against: Against = "torch=/lib/a:b.so:alloc:free".parse().unwrap();
        assert_eq!((against.name, against.library.as_str()), ("torch", "/lib/a:b.so"));
        assert_eq!(against.to_string(), "torch=/lib/a:b.so:alloc:free");
        for wrong in ["", "torch", "torch=lib", "torch=lib:alloc", "=lib:alloc:free", "x=:a:f"] {
            assert!(wrong.parse::<Against>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let against: Against = "other=/no/such.so:alloc:free".parse().unwrap();
        let error = Foreign::load(&against, 0).unwrap_err();
        assert!(error.contains("/no/such.so"), "{error}");
    }
}
