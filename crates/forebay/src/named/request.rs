//! What a caller wants: a name, elements, users, and how long to wait.

use core::any::type_name;
use core::fmt;
use core::time::Duration;

use forebay_core::Alignment;
use forebay_hal::{Call, invalid};

use crate::Result;

/// Who may open a buffer, and who may have created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Users {
    /// The user of the process.
    Same,
    /// Every user of the machine.
    Any,
}

/// How elements look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) alignment: u64,
}

impl Element {
    /// A type, under its own name or another.
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

/// What a caller wants.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) element: Element,
    pub(super) users: Users,
    /// How long to wait for an answer.
    pub(super) patience: Duration,
}

impl Request<'_> {
    /// The bytes of so many elements. Fails if they are more than a process can address, or elements have no bytes.
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
