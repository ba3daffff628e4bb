//! Memory, and who keeps it.
//!
//! ```text
//!   Buffer ──────────┐            ┌── a block of a pool, to be freed in the order of a stream
//!   View ───── Pin ──┤            ├── a part of an arena, good until that goes back
//!   memoryview Pin ──┼─► Lot ─────┼── pinned memory of the host
//!   DLPack ─── Pin ──┤            ├── memory of another library, lent by DLPack
//!   a copy ─── Pin ──┘            └── nothing any more: it was freed
//! ```
//!
//! A [`Pin`] is one use of the memory. While there is one the memory is not freed: `free` says so, and
//! a buffer that goes leaves its memory to the last pin.

use std::sync::{Arc, Mutex};

use forebay::arena::ArenaToken;
use forebay::hal::PinnedFlags;
use forebay::{Address, Bytes, OwnedBlock, Pool};

use crate::arena::Ground;
use crate::dlpack::Lent;
use crate::fork::{Birth, Ending, Native};
use crate::ledger::{self, Life, Origin};
use crate::refusal::Refusal;
use crate::site::{Site, lock};
use crate::stream::Course;

/// A stretch of memory.
pub(crate) struct Lot {
    /// The first to go: what it keeps is given back in the order of `course`, which may end with this.
    state: Mutex<State>,
    course: Arc<Course>,
    site: Arc<Site>,
    address: Address,
    size: Bytes,
    reach: Reach,
    born: Birth,
}

/// Who can use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The host; to the device it is memory of the host.
    Host,
    /// Both: it is memory of the host as a device.
    Both,
    /// The device alone.
    Device,
}

struct State {
    keep: Keep,
    /// Streams whose work uses a block beside its own: they do not end before it was freed.
    uses: Vec<Arc<Course>>,
    pins: usize,
}

/// Whose the memory is.
enum Keep {
    /// A block of a pool.
    Block(Native<OwnedBlock<Pool>>),
    /// A part of an arena.
    Arena(Arc<Ground>, ArenaToken),
    /// Pinned memory of the host.
    Pinned(Native<Pinned>),
    /// Memory of another library. Never looked at: it is here to be given back.
    Lent(#[allow(dead_code)] Lent),
    /// Nobody's: it was freed.
    Freed,
}

/// Pinned memory, given back when it goes.
struct Pinned {
    site: Arc<Site>,
    address: Address,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(device) = self.site.device() else { return };
        // Copies to and from it may be under way on streams that nobody waited for.
        let idle = device.synchronize_device();
        if let (Ok(()), Some(pinned)) = (idle, device.pinned_memory()) {
            // SAFETY: the memory is this value's own, which goes, and all work that could use it is done.
            // Where the device says no, the memory stays its own.
            let _ = unsafe { pinned.free_pinned(self.address) };
        }
    }
}

impl Lot {
    /// A block of a pool, in the order of a stream.
    pub(crate) fn block(
        site: &Arc<Site>,
        course: &Arc<Course>,
        block: OwnedBlock<Pool>,
        origin: Option<Origin>,
    ) -> Arc<Self> {
        let pool = block.allocator().id();
        course.used_by(pool);
        ledger::enter(pool, block.address(), Life::beginning(origin));
        let reach = if site.is_host() { Reach::Both } else { Reach::Device };
        let (address, size) = (block.address(), block.requested());
        Self::new(site, course, (address, size, reach), Keep::Block(Native::new(block)))
    }

    /// A part of an arena.
    pub(crate) fn part(ground: &Arc<Ground>, address: Address, token: ArenaToken) -> Arc<Self> {
        let (site, course) = (ground.site(), ground.course());
        let reach = if site.is_host() { Reach::Both } else { Reach::Device };
        let keep = Keep::Arena(Arc::clone(ground), token);
        Self::new(site, course, (address, token.size, reach), keep)
    }

    /// Pinned memory of the host.
    pub(crate) fn pinned(
        site: &Arc<Site>,
        size: Bytes,
        flags: PinnedFlags,
    ) -> Result<Arc<Self>, Refusal> {
        let device = site.device()?;
        let memory = device.pinned_memory().ok_or_else(|| {
            Refusal::Unsupported(format!("{} has no pinned memory", device.descriptor()))
        })?;
        let address = memory.allocate_pinned(size, flags)?;
        let pinned = Native::new(Pinned { site: Arc::clone(site), address });
        let course = Course::default_of(site);
        Ok(Self::new(site, &course, (address, size, Reach::Host), Keep::Pinned(pinned)))
    }

    /// Memory of another library.
    pub(crate) fn lent(
        site: &Arc<Site>,
        (address, size, reach): (Address, Bytes, Reach),
        lent: Lent,
    ) -> Arc<Self> {
        let course = Course::default_of(site);
        Self::new(site, &course, (address, size, reach), Keep::Lent(lent))
    }

    fn new(
        site: &Arc<Site>,
        course: &Arc<Course>,
        (address, size, reach): (Address, Bytes, Reach),
        keep: Keep,
    ) -> Arc<Self> {
        let (site, course) = (Arc::clone(site), Arc::clone(course));
        let state = Mutex::new(State { keep, uses: Vec::new(), pins: 0 });
        Arc::new(Self { state, course, site, address, size, reach, born: Birth::here() })
    }

    /// The device it is of.
    pub(crate) fn site(&self) -> &Arc<Site> {
        &self.site
    }

    /// The stream in whose order it is used.
    pub(crate) fn course(&self) -> Arc<Course> {
        self.course.standing()
    }

    /// Where it begins; null for no bytes. Good while it is pinned.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// How large it is.
    pub(crate) fn size(&self) -> Bytes {
        self.size
    }

    /// Who can use its address.
    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Whether `free` was called. What an arena took back was not freed.
    pub(crate) fn is_freed(&self) -> bool {
        self.born.is_here() && matches!(lock(&self.state).keep, Keep::Freed)
    }

    /// Begins a use of the memory; an error where it is not there any more.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<Pin, Refusal> {
        // Before the lock: a thread that the fork left behind may hold it. So in all that follows.
        self.born.check()?;
        let mut state = lock(&self.state);
        match &state.keep {
            Keep::Block(block) => {
                block.get()?;
            }
            Keep::Arena(ground, token) => {
                let (ground, token) = (Arc::clone(ground), *token);
                drop(state);
                return self.pin_part(&ground, token);
            }
            Keep::Pinned(pinned) => {
                pinned.get()?;
            }
            Keep::Lent(_) => {}
            Keep::Freed => return Err(freed()),
        }
        state.pins = state.pins.saturating_add(1);
        Ok(Pin { lot: Arc::clone(self) })
    }

    /// The same for a part of an arena: the arena first, apart from the lock here, as whoever has the
    /// arena's may be waiting for Python.
    fn pin_part(self: &Arc<Self>, ground: &Ground, token: ArenaToken) -> Result<Pin, Refusal> {
        ground.pin(token)?;
        let mut state = lock(&self.state);
        if matches!(state.keep, Keep::Freed) {
            ground.unpin();
            return Err(freed());
        }
        state.pins = state.pins.saturating_add(1);
        Ok(Pin { lot: Arc::clone(self) })
    }

    fn unpin(&self) {
        if !self.born.is_here() {
            return;
        }
        let mut state = lock(&self.state);
        state.pins = state.pins.saturating_sub(1);
        if let Keep::Arena(ground, _) = &state.keep {
            ground.unpin();
        }
    }

    /// Notes that work of another stream uses the memory: it is waited for before it is used again. Of
    /// memory that is no block of its own, work that is there now.
    pub(crate) fn used_on(&self, other: &Arc<Course>) -> Result<(), Refusal> {
        self.born.check()?;
        let own = self.course();
        if own.handle() == other.handle() {
            return Ok(());
        }
        {
            let State { keep, uses, .. } = &mut *lock(&self.state);
            if matches!(keep, Keep::Block(_)) {
                if uses.iter().all(|known| !Arc::ptr_eq(known, other)) {
                    uses.push(Arc::clone(other));
                }
                return Ok(());
            }
        }
        other.lead(&own)
    }

    /// Gives the memory back in the order of `course`, once its own stream and those that use it are done.
    /// Refused while anything uses it.
    pub(crate) fn free(&self, course: &Course) -> Result<(), Refusal> {
        self.born.check()?;
        let mut state = lock(&self.state);
        if matches!(state.keep, Keep::Freed) {
            return Err(freed());
        }
        if state.pins > 0 {
            let (count, of) = (state.pins, if state.pins == 1 { "view" } else { "views" });
            return Err(Refusal::InUse(format!(
                "{count} {of} of the buffer of {} B at {} still live, as arrays, memoryviews or DLPack \
                 tensors: let them go first, or let the buffer go and leave its memory to them",
                self.size.get(),
                self.address
            )));
        }
        match core::mem::replace(&mut state.keep, Keep::Freed) {
            Keep::Block(block) => self.give_back(&mut state, block, course),
            Keep::Arena(..) => Ok(()),
            Keep::Pinned(pinned) => {
                drop(state);
                drop(pinned.take()?);
                Ok(())
            }
            Keep::Lent(lent) => {
                drop(state);
                drop(lent);
                Ok(())
            }
            Keep::Freed => Err(freed()),
        }
    }

    fn give_back(
        &self,
        state: &mut State,
        block: Native<OwnedBlock<Pool>>,
        course: &Course,
    ) -> Result<(), Refusal> {
        let mut block = block.take()?;
        let pool = block.allocator().id();
        course.used_by(pool);
        self.note_uses(&mut block, &state.uses);
        // Before the free: the address may be another's right after it.
        let life = ledger::leave(pool, self.address);
        let refused = match block.free_on(course.handle()) {
            Ok(()) => {
                state.uses.clear();
                return Ok(());
            }
            Err(refused) => refused,
        };
        let (mut block, error) = refused.into_parts();
        if gone(&error) {
            // Nothing is left to give back: another freed it, or a debugging aid kept it.
            let _ = block.into_raw();
        } else {
            ledger::enter(pool, self.address, life.unwrap_or_else(|| Life::beginning(None)));
            // `course` may end before the next try.
            block.set_stream(self.course().handle());
            state.keep = Keep::Block(Native::new(block));
        }
        Err(error.into())
    }

    /// Has a block wait, when it is freed, for its own stream and for the others that use it: those that
    /// stand for them now.
    fn note_uses(&self, block: &mut OwnedBlock<Pool>, uses: &[Arc<Course>]) {
        block.set_stream(self.course().handle());
        for course in uses.iter().chain([&self.course]) {
            block.used_on(course.standing().handle());
        }
    }
}

/// Whether a block that could not be freed is not the handle's any more.
fn gone(error: &forebay::Error) -> bool {
    use forebay::Error;
    error.is_finding()
        || matches!(
            error,
            Error::NotABlock { .. }
                | Error::DoubleFree { .. }
                | Error::Outlived { .. }
                | Error::PoolGone { .. }
                | Error::WrongPool { .. }
        )
}

fn freed() -> Refusal {
    Refusal::closed(
        "the buffer was freed; a buffer is good until free(), close() or the end of its with",
    )
}

impl Drop for Lot {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !matches!(state.keep, Keep::Block(_)) {
            return;
        }
        let uses = core::mem::take(&mut state.uses);
        let Keep::Block(block) = core::mem::replace(&mut state.keep, Keep::Freed) else { return };
        let Ok(mut block) = block.take() else { return };
        ledger::leave(block.allocator().id(), self.address);
        self.note_uses(&mut block, &uses);
        // Counted as lost where it cannot be freed. Before the streams, which may end with `uses`.
        drop(block);
    }
}

impl Ending for Arc<Lot> {
    fn may_wait(&self) -> bool {
        // Others have it otherwise. What was freed may still be the last that needs its stream.
        Self::strong_count(self) == 1 && !(self.is_freed() && Arc::strong_count(&self.course) > 1)
    }
}

impl Ending for Pin {
    fn may_wait(&self) -> bool {
        self.lot.may_wait()
    }
}

/// One use of a [`Lot`], until it is dropped.
pub(crate) struct Pin {
    lot: Arc<Lot>,
}

impl Pin {
    /// The memory.
    pub(crate) fn lot(&self) -> &Arc<Lot> {
        &self.lot
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.lot.unpin();
    }
}
