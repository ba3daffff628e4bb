//! The handle table. A handle is a number that tells whether its object is still open.
//!
//! ```text
//!   63          28 27   20 19       6 5       0
//!   | generation  | kind  | slot     | 0       |        0 is no handle
//! ```
//!
//! Slots are reused, but a generation of a slot is not: a closed handle never names the next object in its
//! slot. The table knows no type of object: each implements [`Entry`] in its own file. There are two ways from a handle to
//! its object:
//!
//! * **Slow path, the registry**: takes a lock and a reference count. For all calls but a few.
//! * **Fast path, the slots**: takes no lock and writes nothing that other threads write. For allocating and
//!   freeing, which name a pool, or a device for pinned memory, where the system has one-sided barriers.
//!
//! The fast path is a hazard-pointer scheme. Its invariants, each with who keeps it:
//!
//! 1. A slot's `id` is the handle of its object, or 0. It is written under the registry's lock. The other words
//!    of a slot are written while `id` is 0: each pointer is null unless the object is of its kind, of which there is
//!    one type ([`FastEntry`]), and the device number 0 unless it is a stream. The first slot is never used, so no
//!    handle matches an empty slot.
//! 2. A thread that follows a slot's pointer has published the handle in its hazard record before it read the
//!    slot's `id` (`hazard.rs`), and clears the record when it is done.
//! 3. Closing a pool or a device sets `id` to 0, passes a heavy barrier, and then reads all hazard records. So a
//!    thread on the fast path has seen the 0, or its record is seen. An object that is in a record is retired:
//!    it stays alive, and its slot unused.
//! 4. A thread that clears its record passes a light barrier and checks for retired objects. A thread that
//!    retires one sets [`ANY_RETIRED`] and passes a heavy barrier before it reads records. So one of the two
//!    sees the other, and no retired object is left behind.
//!
//! No thread waits for another, so a callback of a pool may close the pool.

mod barrier;
mod hazard;

use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay::StreamHandle;
use forebay_sync::lock;

use crate::status::{Failure, forebay_status as Status};

/// The number of slots. The first is never used.
const MAX_SLOTS: usize = 1 << 14;
/// A slot's place in a handle is its distance in bytes from the first, so that finding it is a mask.
const SLOT_SHIFT: u32 = size_of::<FastSlot>().trailing_zeros();
const SLOT: u64 = (MAX_SLOTS as u64 - 1) << SLOT_SHIFT;
const KIND_SHIFT: u32 = 20;
const GENERATION_SHIFT: u32 = 28;
const _: () = assert!(size_of::<FastSlot>().is_power_of_two() && SLOT < 1 << KIND_SHIFT);
/// The last generation of a slot; after it the slot is not used any more.
const LAST_GENERATION: u64 = u64::MAX >> GENERATION_SHIFT;

/// What an owner of forebay.hpp has that owns nothing. No handle has this value: their lowest bits are 0.
const NO_HANDLE: u64 = u64::MAX - 1;

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Device = 1,
    Pool,
    Stream,
    Arena,
    Event,
    BufferManager,
    Buffer,
    Shared,
    Transfer,
}

/// The names of the kinds, by number.
const KIND_NAMES: [&str; 9] =
    ["device", "pool", "stream", "arena", "event", "memory", "buffer", "shared buffer", "transfer"];

impl Kind {
    const fn name(self) -> &'static str {
        KIND_NAMES[self as usize - 1]
    }

    /// Which of a slot's pointers is to objects of this kind, where the fast path finds them.
    const fn fast_place(self) -> Option<usize> {
        match self {
            Self::Device => Some(0),
            Self::Pool => Some(1),
            _ => None,
        }
    }
}

/// The name of the kind of a handle that may be made up.
fn kind_name(id: u64) -> Option<&'static str> {
    KIND_NAMES.get(usize::try_from(kind_of(id)).ok()?.checked_sub(1)?).copied()
}

const fn kind_of(id: u64) -> u64 {
    (id >> KIND_SHIFT) & 0xff
}

#[allow(clippy::cast_possible_truncation, reason = "at most MAX_SLOTS - 1")]
const fn slot_of(id: u64) -> usize {
    ((id & SLOT) >> SLOT_SHIFT) as usize
}

/// An open object.
type Object = Arc<dyn Any + Send + Sync>;

/// A handle, as C has it.
pub(crate) trait Handle: Copy {
    /// The type of object that it names.
    type Entry: Entry<Handle = Self>;

    fn new(id: u64) -> Self;
    fn id(self) -> u64;
}

/// A type of object with handles.
pub(crate) trait Entry: Any + Send + Sync {
    /// What names it in C.
    type Handle: Handle<Entry = Self>;
    /// The kind.
    const KIND: Kind;

    /// For a stream, its device's handle of it and the number of the device, for [`stream`].
    fn stream_words(&self) -> (StreamHandle, u64) {
        (StreamHandle::DEFAULT, 0)
    }
}

/// Implements [`Handle`] and [`Entry`]: a handle of C, and the object that it names.
macro_rules! entry {
    ($handle:ident: $entry:ident, $kind:ident $(, $more:item)?) => {
        impl $crate::table::Handle for $handle {
            type Entry = $entry;

            #[inline(always)]
            fn new(id: u64) -> Self {
                Self { id }
            }

            #[inline(always)]
            fn id(self) -> u64 {
                self.id
            }
        }

        impl $crate::table::Entry for $entry {
            type Handle = $handle;
            const KIND: $crate::table::Kind = $crate::table::Kind::$kind;
            $($more)?
        }
    };
}

pub(crate) use entry;

/// A type of object that the fast path finds.
///
/// # Safety
///
/// * No other type has this kind, which has a [place](Kind::fast_place) in a slot.
pub(crate) unsafe trait FastEntry: Entry {
    /// Which of a slot's pointers is to it.
    const PLACE: usize = match Self::KIND.fast_place() {
        Some(place) => place,
        None => panic!("the fast path finds no object of this kind"),
    };
}

/// What the fast path reads. A line of the cache, since finding a slot needs a power of two.
#[repr(align(64))]
pub(crate) struct FastSlot {
    id: AtomicU64,
    /// The object, in the [place](Kind::fast_place) of its kind.
    objects: [AtomicPtr<()>; 2],
    /// A stream, as its device knows it.
    stream: AtomicU64,
    /// The number of the stream's device.
    device: AtomicU64,
}

static SLOTS: [FastSlot; MAX_SLOTS] = [const {
    FastSlot {
        id: AtomicU64::new(0),
        objects: [const { AtomicPtr::new(core::ptr::null_mut()) }; 2],
        stream: AtomicU64::new(0),
        device: AtomicU64::new(0),
    }
}; MAX_SLOTS];

/// How many slots were ever in use.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);

/// A pool or device that was closed while a thread used it.
struct Retired {
    id: u64,
    /// Kept alive until no hazard record has its handle.
    _object: Object,
}

/// The open objects.
struct Registry {
    objects: Vec<Option<Object>>,
    /// The generation of each slot's last object.
    generations: Vec<u64>,
    /// The free slots, the one that was freed first at the front.
    free: VecDeque<usize>,
    retired: Vec<Retired>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    objects: Vec::new(),
    generations: Vec::new(),
    free: VecDeque::new(),
    retired: Vec::new(),
});

/// Whether any object is retired.
static ANY_RETIRED: AtomicBool = AtomicBool::new(false);

fn registry() -> MutexGuard<'static, Registry> {
    lock(&REGISTRY)
}

/// Adds an object; returns its handle.
pub(crate) fn open<E: Entry>(entry: Arc<E>) -> Result<E::Handle, Failure> {
    let pointer = Arc::as_ptr(&entry).cast_mut().cast::<()>();
    let words = entry.stream_words();
    add(entry, E::KIND, pointer, words).map(E::Handle::new)
}

/// Adds an object of this kind, which is at `pointer`.
fn add(
    object: Object,
    kind: Kind,
    pointer: *mut (),
    (stream, device): (StreamHandle, u64),
) -> Result<u64, Failure> {
    let mut registry = registry();
    if registry.objects.is_empty() {
        // The first slot is never used.
        registry.objects.push(None);
        registry.generations.push(0);
    }
    let slot = match registry.free.pop_front() {
        Some(slot) => slot,
        None if registry.objects.len() < MAX_SLOTS => {
            registry.objects.push(None);
            registry.generations.push(0);
            registry.objects.len() - 1
        }
        None => {
            return Err(Failure::new(
                Status::TooMany,
                format!("{} handles are open, and there can be no more: close some", MAX_SLOTS - 1),
            ));
        }
    };
    let Registry { objects, generations, .. } = &mut *registry;
    let (Some(place), Some(generation), Some(words)) =
        (objects.get_mut(slot), generations.get_mut(slot), SLOTS.get(slot))
    else {
        return Err(Failure::new(Status::Defect, format!("there is no slot {slot}")));
    };
    *generation += 1;
    let id =
        (slot as u64) << SLOT_SHIFT | (kind as u64) << KIND_SHIFT | *generation << GENERATION_SHIFT;
    for (index, place) in words.objects.iter().enumerate() {
        let is_its_place = kind.fast_place() == Some(index);
        place.store(if is_its_place { pointer } else { core::ptr::null_mut() }, Ordering::Release);
    }
    words.stream.store(stream.0, Ordering::Release);
    words.device.store(device, Ordering::Release);
    *place = Some(object);
    SLOTS_USED.fetch_max(slot + 1, Ordering::Relaxed);
    // Last: a thread that sees the id sees the other words.
    words.id.store(id, Ordering::Release);
    Ok(id)
}

/// The object of a handle.
pub(crate) fn find<H: Handle>(handle: H) -> Result<Arc<H::Entry>, Failure> {
    hazard::register_thread();
    let registry = registry();
    registry.check::<H::Entry>(handle.id())?;
    entry_of(registry.objects.get(slot_of(handle.id())).cloned().flatten())
}

/// Closes a handle; returns its object. A pool or device that another thread uses is dropped when that thread is
/// done.
pub(crate) fn close<H: Handle>(handle: H) -> Result<Arc<H::Entry>, Failure> {
    let mut registry = registry();
    let id = handle.id();
    registry.check::<H::Entry>(id)?;
    let slot = slot_of(id);
    let object = registry.objects.get_mut(slot).and_then(Option::take);
    if let Some(words) = SLOTS.get(slot) {
        words.id.store(0, Ordering::Release);
    }
    match &object {
        Some(object) if H::Entry::KIND.fast_place().is_some() => {
            registry.retired.push(Retired { id, _object: Arc::clone(object) });
            ANY_RETIRED.store(true, Ordering::Relaxed);
        }
        _ => registry.release_slot(slot),
    }
    drop(registry);
    reclaim();
    entry_of(object)
}

/// An object as its type.
fn entry_of<E: Entry>(object: Option<Object>) -> Result<Arc<E>, Failure> {
    let entry = object.and_then(|object| object.downcast().ok());
    entry.ok_or_else(|| Failure::new(Status::Defect, "a handle without its object"))
}

/// All open objects of a type.
pub(crate) fn all<E: Entry>() -> Vec<Arc<E>> {
    let registry = registry();
    let objects = registry.objects.iter().flatten().filter(|object| object.is::<E>());
    objects.filter_map(|object| Arc::clone(object).downcast().ok()).collect()
}

impl Registry {
    /// An error where a handle is not that of an open object of this type.
    fn check<E: Entry>(&self, id: u64) -> Result<(), Failure> {
        let slot = slot_of(id);
        let open = SLOTS.get(slot).is_some_and(|words| words.id.load(Ordering::Relaxed) == id);
        if id != 0 && open && kind_of(id) == E::KIND as u64 {
            return Ok(());
        }
        let wanted = E::KIND.name();
        let generation = id >> GENERATION_SHIFT;
        let last = self.generations.get(slot).copied().unwrap_or(0);
        let given_out = generation > 0 && generation <= last;
        let words = match kind_name(id) {
            _ if id == 0 => format!("the {wanted} handle is null: open one first"),
            _ if id == NO_HANDLE => {
                format!("there is no {wanted}: its owner was moved from, closed, or never had one")
            }
            Some(kind) if given_out && kind != wanted => {
                format!("expected a {wanted} handle, but {id:#x} is the handle of a {kind}")
            }
            Some(_) if given_out => format!("the {wanted} handle {id:#x} was closed"),
            _ => format!("{id:#x} is not a handle of forebay; is the variable initialised?"),
        };
        Err(Failure::new(Status::InvalidHandle, words))
    }

    /// Frees a slot for reuse, unless its generations are used up.
    fn release_slot(&mut self, slot: usize) {
        if self.generations.get(slot).is_some_and(|&generation| generation < LAST_GENERATION) {
            self.free.push_back(slot);
        }
    }
}

/// Drops the retired objects that no thread uses any more.
#[cold]
#[inline(never)]
fn reclaim() {
    let mut gone = Vec::new();
    {
        let mut registry = registry();
        barrier::heavy();
        let retired = core::mem::take(&mut registry.retired);
        for grave in retired {
            if hazard::is_protected(grave.id) {
                registry.retired.push(grave);
            } else {
                registry.release_slot(slot_of(grave.id));
                gone.push(grave);
            }
        }
        ANY_RETIRED.store(!registry.retired.is_empty(), Ordering::Relaxed);
    }
    // Without the lock: dropping the last handle of a pool waits for its device.
    drop(gone);
}

/// Reclaims retired objects, where there are any.
#[inline(always)]
pub(crate) fn reclaim_if_any() {
    if any_retired() {
        reclaim();
    }
}

/// Does so when dropped, by a panic too.
struct ReclaimAtEnd;

impl Drop for ReclaimAtEnd {
    #[inline(always)]
    fn drop(&mut self) {
        reclaim_if_any();
    }
}

/// Whether there are retired objects, to be reclaimed.
#[inline(always)]
pub(crate) fn any_retired() -> bool {
    ANY_RETIRED.load(Ordering::Relaxed)
}

/// Calls `work` with the object of a handle, by the fast path. `None` where that is not possible: the object is not
/// open, or the thread uses one already, or it has no hazard record.
#[inline(always)]
pub(crate) fn with<H, R>(handle: H, work: impl FnOnce(&H::Entry) -> R) -> Option<R>
where
    H: Handle<Entry: FastEntry>,
{
    let record = hazard::current()?;
    // Dropped after the guard: this thread may have been the last that kept an object.
    let _reclaim = ReclaimAtEnd;
    let _guard = record.protect(handle.id());
    // SAFETY: the guard lives until the function ends.
    Some(work(unsafe { protected(handle.id()) }?))
}

/// As [`with`], and leaves it to the caller to [reclaim](reclaim_if_any) what was retired meanwhile: so nothing
/// is called here that `work` does not call. Whether `work` was called and says so.
#[inline(always)]
pub(crate) fn visit<H>(handle: H, work: impl FnOnce(&H::Entry) -> bool) -> bool
where
    H: Handle<Entry: FastEntry>,
{
    let Some(record) = hazard::current() else { return false };
    let _guard = record.protect(handle.id());
    // SAFETY: the guard lives until the function ends.
    unsafe { protected(handle.id()) }.is_some_and(work)
}

/// The object of a handle.
///
/// # Safety
///
/// * This thread's hazard record protects `id` for as long as the reference is used.
#[inline(always)]
unsafe fn protected<'a, E: FastEntry>(id: u64) -> Option<&'a E> {
    let slot = SLOTS.get(slot_of(id))?;
    if slot.id.load(Ordering::Acquire) != id {
        return None;
    }
    let pointer = slot.objects[E::PLACE].load(Ordering::Relaxed).cast::<E>();
    // SAFETY: the pointer is null, or the slot had this id after the hazard record was published, so the object
    // lives as long as it is protected: invariants 2 and 3. The pointer is that object's, whose type is the only one of its
    // kind: it was written before the id, and it changes only when the slot is reused, which invariant 3 delays as well.
    unsafe { pointer.as_ref() }
}

/// The device's handle of a stream, and the number of its device, which is 0 where the object is no stream;
/// `None` where the handle is not open.
#[inline(always)]
pub(crate) fn stream(id: u64) -> Option<(StreamHandle, u64)> {
    let slot = SLOTS.get(slot_of(id))?;
    if slot.id.load(Ordering::Acquire) != id {
        return None;
    }
    let stream = slot.stream.load(Ordering::Acquire);
    let device = slot.device.load(Ordering::Acquire);
    // An id never comes back: where it is still the same, both words were this stream's.
    (slot.id.load(Ordering::Relaxed) == id).then_some((StreamHandle(stream), device))
}

/// Makes every handle invalid without dropping its object: for a forked child. Only stores to atomics.
pub(crate) fn invalidate_all() {
    for slot in SLOTS.iter().take(SLOTS_USED.load(Ordering::Relaxed)) {
        slot.id.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
