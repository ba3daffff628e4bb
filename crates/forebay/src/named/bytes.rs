//! Shared buffers with element types known only at run time, for bindings.

use core::panic::Location;
use core::time::Duration;

use forebay_core::{Address, Bytes};
use forebay_hal::{Call, invalid};

use super::buffer::Creator;
use super::options::SharedOptions;
use super::raw::RawShared;
use super::request::{Element, Request};
use crate::Result;
use crate::buffer::{BufferManager, SharedRegistration};

/// Number types common to all languages, by their Rust names, with their sizes.
const NUMBERS: [(&str, u64); 10] = [
    ("u8", 1),
    ("i8", 1),
    ("u16", 2),
    ("i16", 2),
    ("u32", 4),
    ("i32", 4),
    ("f32", 4),
    ("u64", 8),
    ("i64", 8),
    ("f64", 8),
];

/// A shared buffer as bytes, with a lock that has no guard. A Rust program shares it by using the same type name:
/// numbers such as "f32" have their size; elements of any other name are single bytes.
#[derive(Debug)]
#[must_use = "this process leaves the shared buffer when it is dropped"]
pub struct SharedBytes {
    raw: RawShared,
    _entry: SharedRegistration,
    element: Element,
}

fn element(type_name: &str) -> Element {
    let size = NUMBERS.iter().find(|(name, _)| *name == type_name).map_or(1, |(_, size)| *size);
    Element { name: type_name.to_owned(), size, alignment: size }
}

fn request<'a>(options: &SharedOptions, name: &'a str, type_name: &str) -> Request<'a> {
    let SharedOptions { users, patience, .. } = *options;
    Request { name, element: element(type_name), users, patience }
}

/// The number of elements in `size` bytes.
fn length(element: &Element, size: u64) -> Result<u64> {
    if size.is_multiple_of(element.size) {
        return Ok(size / element.size);
    }
    let allowed = format!("a multiple of {} B, the size of {}", element.size, element.name);
    Err(invalid(Call::Allocate, "size", format!("{size} B"), allowed).into())
}

impl SharedBytes {
    #[track_caller]
    fn new(memory: &BufferManager, raw: RawShared) -> Self {
        let (element, entry) = (raw.element().clone(), raw.enter(memory, Location::caller()));
        Self { raw, _entry: entry, element }
    }

    /// As [`BufferManager::shared`].
    #[track_caller]
    pub fn create(
        memory: &BufferManager,
        options: &SharedOptions,
        name: &str,
        type_name: &str,
        size: u64,
    ) -> Result<Self> {
        let request = request(options, name, type_name);
        let length = length(&request.element, size)?;
        request.size_of(length)?;
        Ok(Self::new(memory, RawShared::create(memory.device(), &request, length)?))
    }

    /// As [`BufferManager::open_shared`]; without a type name, accepts any elements.
    #[track_caller]
    pub fn open(
        memory: &BufferManager,
        options: &SharedOptions,
        name: &str,
        type_name: Option<&str>,
    ) -> Result<Self> {
        let request = request(options, name, type_name.unwrap_or_default());
        let raw = match type_name {
            Some(_) => RawShared::open(memory.device(), &request, None)?,
            None => RawShared::open_any(memory.device(), &request)?,
        };
        Ok(Self::new(memory, raw))
    }

    /// As [`BufferManager::shared_or_open`].
    #[track_caller]
    pub fn create_or_open(
        memory: &BufferManager,
        options: &SharedOptions,
        name: &str,
        type_name: &str,
        size: u64,
    ) -> Result<Self> {
        let request = request(options, name, type_name);
        let length = length(&request.element, size)?;
        request.size_of(length)?;
        Ok(Self::new(memory, RawShared::create_or_open(memory.device(), &request, length)?))
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.raw.name()
    }

    /// The name of the element type, and the size of an element.
    pub fn element(&self) -> (&str, u64) {
        (&self.element.name, self.element.size)
    }

    /// The size of the elements in bytes.
    pub fn size(&self) -> Bytes {
        // Cannot overflow: checked when it was made or opened.
        Bytes::new(self.raw.length().saturating_mul(self.element.size))
    }

    /// The process and user that created it.
    pub fn creator(&self) -> Creator {
        let (pid, uid) = self.raw.creator();
        Creator { pid, uid }
    }

    /// The address of the elements on the device, as [`SharedBuffer::address`](super::SharedBuffer::address).
    pub fn address(&self) -> Address {
        self.raw.address()
    }

    /// Whether the host can reach the memory at its address.
    pub fn is_host(&self) -> bool {
        self.raw.pointer().is_some()
    }

    /// Copies bytes from `offset` on to `to`. Fails if the range is out of bounds.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.check(offset, to.len())?;
        self.raw.read(offset, to)
    }

    /// Copies `from` to the bytes from `offset` on. Fails, without writing anything, if the range is out of bounds.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        self.raw.write(offset, from)
    }

    /// Acquires the lock until [`unlock`](Self::unlock); returns `false` after waiting for `patience`.
    pub fn lock(&self, patience: Option<Duration>) -> Result<bool> {
        let held = self.raw.lock(patience)?;
        let locked = held.is_some();
        core::mem::forget(held);
        Ok(locked)
    }

    /// Releases the lock, which this thread must hold.
    pub fn unlock(&self) -> Result<()> {
        self.raw.unlock()
    }

    /// Releases the lock, whichever thread of this process acquired it.
    pub fn abandon_lock(&self) {
        self.raw.abandon_lock();
    }

    fn check(&self, offset: u64, count: usize) -> Result<()> {
        let size = self.size().get();
        if offset.checked_add(count as u64).is_some_and(|end| end <= size) {
            return Ok(());
        }
        let given = format!("{count} B from byte {offset} on");
        let room = size.saturating_sub(offset);
        let allowed = format!("at most {room} B from there on, as the buffer has {size} B");
        Err(invalid(Call::Copy, "range", given, allowed).into())
    }
}
