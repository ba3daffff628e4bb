//! Handles: numbers for things, which say of themselves whether the thing is still there.
//!
//! ```text
//!   63          28 27   20 19 18       5 4       0
//!   | generation  | kind  | 0 | slot     | 0       |        0 is no handle
//! ```
//!
//! A slot is used again, its generation never: a handle that was closed is not that of the next thing
//! in its slot. There are two ways to what a handle names:
//!
//! * **The books**: a lock, and a count of references taken. For all calls but a few.
//! * **The slots**: no lock and nothing written that other threads write. For allocating and freeing;
//!   where the system has no one-sided barriers they go by the books as well.
//!
//! Invariants of the second way, each with who keeps it:
//!
//! 1. A slot's `id` is that of the thing in it, or 0. It is written under the lock of the books; the
//!    other words of a slot are written while its `id` is 0: the pointer is null where the thing is no
//!    pool, the device 0 where it is no stream. The first slot is never used, so that no handle's slot
//!    has the `id` 0 with anything in it.
//! 2. A thread that follows a slot's pointer has written the handle down in its place before it read
//!    the slot's `id` (`visit.rs`), and takes it out when it has done.
//! 3. A pool that is closed has its `id` set to 0, then the thread that closes passes a heavy barrier,
//!    then looks at all places. So a visitor has seen the 0, or is seen. One that is seen is inside:
//!    then the pool goes to the graves, where it stays whole, and its slot unused.
//! 4. A visitor that leaves clears its place, passes a light barrier and looks whether there are
//!    graves; whoever digs one says so and passes a heavy barrier before it looks at places. So one of
//!    the two finds the other: no pool stays in its grave for want of someone to look.
//!
//! Nobody waits for anybody, so a pool can be closed from a function that a pool calls.

mod barrier;
mod visit;

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::StreamHandle;

use crate::arena::ArenaEntry;
use crate::device::DeviceEntry;
use crate::fork;
use crate::pool::PoolEntry;
use crate::status::{Failure, forebay_status as Status};
use crate::stream::StreamEntry;

/// How many things can be open at once.
const MOST: usize = 1 << 14;
/// A slot's place in a handle is its distance in bytes from the first, so that finding it is a mask.
const SLOT_SHIFT: u32 = size_of::<Slot>().trailing_zeros();
const SLOT: u64 = (MOST as u64 - 1) << SLOT_SHIFT;
const KIND_SHIFT: u32 = 20;
const GENERATION_SHIFT: u32 = 28;
const _: () = assert!(size_of::<Slot>().is_power_of_two() && SLOT < 1 << KIND_SHIFT);
/// The last generation of a slot; after it the slot is not used any more.
const LAST_GENERATION: u64 = u64::MAX >> GENERATION_SHIFT;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A device.
    Device = 1,
    /// A pool.
    Pool = 2,
    /// A stream.
    Stream = 3,
    /// An arena.
    Arena = 4,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Pool => "pool",
            Self::Stream => "stream",
            Self::Arena => "arena",
        }
    }

    const fn numbered(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Device),
            2 => Some(Self::Pool),
            3 => Some(Self::Stream),
            4 => Some(Self::Arena),
            _ => None,
        }
    }
}

const fn kind_of(id: u64) -> u64 {
    (id >> KIND_SHIFT) & 0xff
}

#[allow(clippy::cast_possible_truncation, reason = "at most MOST - 1")]
const fn slot_of(id: u64) -> usize {
    ((id & SLOT) >> SLOT_SHIFT) as usize
}

/// A thing that is open.
#[derive(Clone)]
pub(crate) enum Thing {
    /// A device.
    Device(Arc<DeviceEntry>),
    /// A pool.
    Pool(Arc<PoolEntry>),
    /// A stream.
    Stream(Arc<StreamEntry>),
    /// An arena.
    Arena(Arc<ArenaEntry>),
}

impl Thing {
    const fn kind(&self) -> Kind {
        match self {
            Self::Device(_) => Kind::Device,
            Self::Pool(_) => Kind::Pool,
            Self::Stream(_) => Kind::Stream,
            Self::Arena(_) => Kind::Arena,
        }
    }
}

/// What handles of one kind name.
pub(crate) trait Named: Sized {
    /// The kind.
    const KIND: Kind;

    /// The same, of a thing.
    fn of(thing: &Thing) -> Option<&Arc<Self>>;
}

macro_rules! named {
    ($($entry:ty: $kind:ident),*) => {
        $(impl Named for $entry {
            const KIND: Kind = Kind::$kind;

            fn of(thing: &Thing) -> Option<&Arc<Self>> {
                match thing {
                    Thing::$kind(entry) => Some(entry),
                    _ => None,
                }
            }
        })*
    };
}

named!(DeviceEntry: Device, PoolEntry: Pool, StreamEntry: Stream, ArenaEntry: Arena);

/// What the quick way reads.
struct Slot {
    id: AtomicU64,
    /// A pool.
    pool: AtomicPtr<PoolEntry>,
    /// A stream, as its device knows it.
    stream: AtomicU64,
    /// The number of the stream's device.
    device: AtomicU64,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        id: AtomicU64::new(0),
        pool: AtomicPtr::new(core::ptr::null_mut()),
        stream: AtomicU64::new(0),
        device: AtomicU64::new(0),
    }
}; MOST];

/// How many slots were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// What was closed while someone was inside.
struct Grave {
    id: u64,
    /// Kept whole until nobody is.
    _thing: Thing,
}

/// What is open.
struct Books {
    things: Vec<Option<Thing>>,
    /// By slot, the generation of what is or was last there.
    generations: Vec<u64>,
    /// Slots that can be used again: those that rest the longest first.
    free: VecDeque<usize>,
    graves: Vec<Grave>,
}

static BOOKS: Mutex<Books> = Mutex::new(Books {
    things: Vec::new(),
    generations: Vec::new(),
    free: VecDeque::new(),
    graves: Vec::new(),
});

/// Whether there are graves.
static GRAVES: AtomicBool = AtomicBool::new(false);

fn books() -> MutexGuard<'static, Books> {
    BOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a thing; gives its handle.
pub(crate) fn open(thing: Thing) -> Result<u64, Failure> {
    fork::watch();
    let mut books = books();
    if books.things.is_empty() {
        // The one that is never used.
        books.things.push(None);
        books.generations.push(0);
    }
    let slot = match books.free.pop_front() {
        Some(slot) => slot,
        None if books.things.len() < MOST => {
            books.things.push(None);
            books.generations.push(0);
            books.things.len() - 1
        }
        None => {
            return Err(Failure::new(
                Status::TooMany,
                format!("{} handles are open, and there can be no more: close some", MOST - 1),
            ));
        }
    };
    let Books { things, generations, .. } = &mut *books;
    let (Some(place), Some(generation), Some(words)) =
        (things.get_mut(slot), generations.get_mut(slot), SLOTS.get(slot))
    else {
        return Err(Failure::new(Status::Defect, format!("there is no slot {slot}")));
    };
    *generation += 1;
    let id = (slot as u64) << SLOT_SHIFT
        | (thing.kind() as u64) << KIND_SHIFT
        | *generation << GENERATION_SHIFT;
    let (pool, stream, device) = match &thing {
        Thing::Pool(pool) => (Arc::as_ptr(pool).cast_mut(), 0, 0),
        Thing::Stream(stream) => {
            (core::ptr::null_mut(), stream.handle().0, stream.device().number())
        }
        Thing::Device(_) | Thing::Arena(_) => (core::ptr::null_mut(), 0, 0),
    };
    words.pool.store(pool, Ordering::Release);
    words.stream.store(stream, Ordering::Release);
    words.device.store(device, Ordering::Release);
    *place = Some(thing);
    USED.fetch_max(slot + 1, Ordering::Relaxed);
    // Last: whoever sees it sees what was written before.
    words.id.store(id, Ordering::Release);
    Ok(id)
}

/// What a handle names, for as long as the caller has it.
pub(crate) fn find<N: Named>(id: u64) -> Result<Arc<N>, Failure> {
    fork::refuse()?;
    visit::settle();
    let books = books();
    books.check::<N>(id)?;
    let thing = books.things.get(slot_of(id)).and_then(Option::as_ref).and_then(N::of);
    thing.cloned().ok_or_else(|| Failure::new(Status::Defect, "a handle without its thing"))
}

/// Closes a handle; gives what it named. A pool that some thread is inside goes when that leaves.
pub(crate) fn close<N: Named>(id: u64) -> Result<Arc<N>, Failure> {
    fork::refuse()?;
    let mut books = books();
    books.check::<N>(id)?;
    let slot = slot_of(id);
    let thing = books.things.get_mut(slot).and_then(Option::take);
    if let Some(words) = SLOTS.get(slot) {
        words.id.store(0, Ordering::Release);
    }
    let named = thing.as_ref().and_then(N::of).cloned();
    match thing {
        Some(thing @ Thing::Pool(_)) => {
            books.graves.push(Grave { id, _thing: thing });
            GRAVES.store(true, Ordering::Relaxed);
        }
        _ => books.rest(slot),
    }
    drop(books);
    sweep();
    named.ok_or_else(|| Failure::new(Status::Defect, "a handle without its thing"))
}

/// Everything of a kind that is open.
pub(crate) fn all<N: Named>() -> Vec<Arc<N>> {
    books().things.iter().flatten().filter_map(N::of).cloned().collect()
}

impl Books {
    /// Whether a handle is that of a thing of this kind that is open.
    fn check<N: Named>(&self, id: u64) -> Result<(), Failure> {
        let slot = slot_of(id);
        let open = SLOTS.get(slot).is_some_and(|words| words.id.load(Ordering::Relaxed) == id);
        if id != 0 && open && kind_of(id) == N::KIND as u64 {
            return Ok(());
        }
        let wanted = N::KIND.name();
        let generation = id >> GENERATION_SHIFT;
        let last = self.generations.get(slot).copied().unwrap_or(0);
        let given_out = generation > 0 && generation <= last;
        let words = match Kind::numbered(kind_of(id)) {
            _ if id == 0 => format!("the {wanted} handle is null: open one first"),
            Some(kind) if given_out && kind != N::KIND => {
                format!("the {wanted} handle {id:#x} is that of a {}", kind.name())
            }
            Some(_) if given_out => {
                format!("the {wanted} handle {id:#x} was closed, and nothing is behind it any more")
            }
            _ => format!("{id:#x} is no handle that was ever given out: is it set at all?"),
        };
        Err(Failure::new(Status::InvalidHandle, words))
    }

    /// Lets a slot be used again, unless its generations are used up.
    fn rest(&mut self, slot: usize) {
        if self.generations.get(slot).is_some_and(|&generation| generation < LAST_GENERATION) {
            self.free.push_back(slot);
        }
    }
}

/// Ends what was closed and nobody is inside of.
#[cold]
#[inline(never)]
fn sweep() {
    let mut gone = Vec::new();
    {
        let mut books = books();
        barrier::heavy();
        let graves = core::mem::take(&mut books.graves);
        for grave in graves {
            if visit::anyone_in(grave.id) {
                books.graves.push(grave);
            } else {
                books.rest(slot_of(grave.id));
                gone.push(grave);
            }
        }
        GRAVES.store(!books.graves.is_empty(), Ordering::Relaxed);
    }
    // Apart from the lock: the last of a pool waits for its device.
    drop(gone);
}

/// Looks whether there are graves that have to wait no longer.
#[inline(always)]
fn look_for_graves() {
    if GRAVES.load(Ordering::Relaxed) {
        sweep();
    }
}

/// Does `work` with the pool of a handle, by the quick way. `None` where that is not open: there is no
/// such pool, or the thread is inside something already, or has no place, or nobody can have one here.
#[inline(always)]
pub(crate) fn in_pool<R>(id: u64, work: impl FnOnce(&PoolEntry) -> R) -> Option<R> {
    let place = visit::mine()?;
    let _visit = place.enter(id);
    let slot = SLOTS.get(slot_of(id))?;
    if slot.id.load(Ordering::Acquire) != id {
        return None;
    }
    // SAFETY: it is null, or the slot had this id after the visit was written down, so the pool in it
    // is not ended before the visit is: invariants 2 and 3. The pointer is that pool's: it was written
    // before the id, and is written again when the slot is given to another, which invariant 3 puts
    // off as well.
    let pool = unsafe { slot.pool.load(Ordering::Relaxed).as_ref() }?;
    Some(work(pool))
}

/// A stream as its device knows it, and the number of that device, which is 0 where the handle is not a
/// stream's; `None` where nothing is open by that handle.
#[inline(always)]
pub(crate) fn stream(id: u64) -> Option<(StreamHandle, u64)> {
    let slot = SLOTS.get(slot_of(id))?;
    if slot.id.load(Ordering::Acquire) != id {
        return None;
    }
    let stream = slot.stream.load(Ordering::Acquire);
    let device = slot.device.load(Ordering::Acquire);
    // Still the same: then both words were those of this stream, since an id never comes back.
    (slot.id.load(Ordering::Relaxed) == id).then_some((StreamHandle(stream), device))
}

/// Marks everything as closed, and ends nothing: for a forked child. Stores and nothing else.
pub(crate) fn close_all_at_once() {
    for slot in SLOTS.iter().take(USED.load(Ordering::Relaxed)) {
        slot.id.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
