//! A request to create or open: a name, elements, users, and how long to wait.

use core::any::type_name;
use core::fmt;
use core::time::Duration;

use forebay_core::Alignment;
use forebay_hal::{Call, invalid};

use crate::Result;

/// Who may open a buffer, and whose buffers may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Users {
    /// Only the user of the process.
    Same,
    /// Any user of the machine.
    Any,
}

/// The layout of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) alignment: u64,
}

impl Element {
    /// The layout of a type, under its own name or another.
    pub(super) fn of<T>(name: Option<&str>) -> Self {
        let (size, alignment) = (size_of::<T>() as u64, align_of::<T>() as u64);
        Self { name: name.unwrap_or(type_name::<T>()).to_owned(), size, alignment }
    }

    pub(super) fn alignment(&self) -> Alignment {
        Alignment::new(self.alignment).unwrap_or(Alignment::ONE)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} B, aligned to {} B", self.name, self.size, self.alignment)
    }
}

/// A request to create or open a buffer.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) element: Element,
    pub(super) users: Users,
    /// How long to wait for an answer.
    pub(super) patience: Duration,
}

impl Request<'_> {
    /// The size of `length` elements. Fails if a process cannot address that many, or if elements have no bytes.
    pub(super) fn size_of(&self, length: u64) -> Result<u64> {
        let size = length
            .checked_mul(self.element.size)
            .filter(|&size| self.element.size != 0 && isize::try_from(size).is_ok());
        size.ok_or_else(|| {
            let given = format!("{length} elements of {} B", self.element.size);
            let allowed = "elements with bytes, fewer than half of all addresses";
            invalid(Call::Allocate, "length", given, allowed).into()
        })
    }
}
