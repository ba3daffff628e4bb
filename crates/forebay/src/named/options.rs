//! Options of shared buffers.

use core::panic::Location;
use core::time::Duration;

use bytemuck::Pod;

use super::buffer::SharedBuffer;
use super::raw::RawShared;
use super::request::{Element, Request, Users};
use crate::Result;
use crate::buffer::BufferManager;

/// How long an opener waits for an answer, which takes microseconds unless all that could give one are stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// Options of shared buffers, beyond what [`BufferManager::shared`] offers. Creator and openers must use the same.
///
/// ```
/// use forebay::buffer::BufferManager;
/// use forebay::named::SharedOptions;
/// use std::time::Duration;
///
/// let memory = BufferManager::host()?;
/// let options = SharedOptions::new().type_name("samples.v2").patience(Duration::from_secs(1));
/// let name = format!("options-{}", std::process::id());
/// let created = options.create::<f32>(&memory, &name, 1000)?;
/// let opened = options.open::<f32>(&memory, &name)?;
/// assert_eq!(opened.len(), 1000);
/// # drop(created);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedOptions {
    pub(super) users: Users,
    pub(super) patience: Duration,
    type_name: Option<String>,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self { users: Users::Same, patience: PATIENCE, type_name: None }
    }
}

impl SharedOptions {
    /// The defaults: same user only, five seconds of patience, and the type's own name.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets every user of the machine create and open the buffer. These names are separate from those of single users.
    ///
    /// Only for users that trust each other: anyone can take the name first, write to the memory, and hold the lock.
    #[must_use]
    pub fn any_user(mut self) -> Self {
        self.users = Users::Any;
        self
    }

    /// Whether any user may open the buffer.
    #[must_use]
    pub fn is_for_any_user(&self) -> bool {
        self.users == Users::Any
    }

    /// Sets how long opening waits for a process that has the name but does not answer.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the name of the element type, for programs that each define the type: `std::any::type_name` includes crate
    /// and module, and may differ between compilers. Include a version in the name, and change it with the type.
    #[must_use]
    pub fn type_name(mut self, name: impl Into<String>) -> Self {
        self.type_name = Some(name.into());
        self
    }

    /// As [`BufferManager::shared`].
    #[track_caller]
    pub fn create<T: Pod>(
        &self,
        memory: &BufferManager,
        name: &str,
        length: usize,
    ) -> Result<SharedBuffer<T>> {
        let request = self.request::<T>(name);
        let length = length as u64;
        request.size_of(length)?;
        let raw = RawShared::create(memory.device(), &request, length)?;
        SharedBuffer::new(memory, raw, Location::caller())
    }

    /// As [`BufferManager::open_shared`].
    #[track_caller]
    pub fn open<T: Pod>(&self, memory: &BufferManager, name: &str) -> Result<SharedBuffer<T>> {
        let raw = RawShared::open(memory.device(), &self.request::<T>(name), None)?;
        SharedBuffer::new(memory, raw, Location::caller())
    }

    /// As [`BufferManager::shared_or_open`].
    #[track_caller]
    pub fn create_or_open<T: Pod>(
        &self,
        memory: &BufferManager,
        name: &str,
        length: usize,
    ) -> Result<SharedBuffer<T>> {
        let request = self.request::<T>(name);
        let length = length as u64;
        request.size_of(length)?;
        let raw = RawShared::create_or_open(memory.device(), &request, length)?;
        SharedBuffer::new(memory, raw, Location::caller())
    }

    fn request<'a, T>(&self, name: &'a str) -> Request<'a> {
        let element = Element::of::<T>(self.type_name.as_deref());
        Request { name, element, users: self.users, patience: self.patience }
    }
}

impl BufferManager {
    /// Creates a buffer of `length` zeroed elements that other processes open by its name. If several processes create
    /// one name at the same time, one succeeds; the others get
    /// [`SharedError::Taken`](crate::named::SharedError::Taken).
    ///
    /// Names have 1 to 80 characters of `A-Z a-z 0-9 . _ -`, and are separate for each user. A name lives as long as
    /// any process has the buffer.
    #[track_caller]
    pub fn shared<T: Pod>(&self, name: &str, length: usize) -> Result<SharedBuffer<T>> {
        SharedOptions::new().create(self, name, length)
    }

    /// Opens a buffer created by another process of this user, or by this one. Fails if its elements are of another
    /// type, or its memory is of another kind of device.
    #[track_caller]
    pub fn open_shared<T: Pod>(&self, name: &str) -> Result<SharedBuffer<T>> {
        SharedOptions::new().open(self, name)
    }

    /// Opens a buffer of exactly `length` elements, or creates it if no process has the name.
    #[track_caller]
    pub fn shared_or_open<T: Pod>(&self, name: &str, length: usize) -> Result<SharedBuffer<T>> {
        SharedOptions::new().create_or_open(self, name, length)
    }
}
