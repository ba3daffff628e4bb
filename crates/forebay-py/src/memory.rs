//! What a `Buffer` or an `Array` refers to: a whole allocation, or elements in a part of one.

use std::sync::{Arc, Mutex};

use forebay::buffer::Access;
use forebay::{Address, Pool};
use forebay_sync::lock;
use pyo3::prelude::*;

use crate::allocation::{Allocation, Pin};
use crate::array_view::ArrayView;
use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::open_device::{OpenDevice, StreamRef};
use crate::replica::Unified;
use crate::stack;
use crate::stream::stream_argument;

/// The base class of ``Buffer`` and ``Array``.
#[pyclass(name = "_Memory", module = "forebay", frozen, subclass, weakref)]
pub(crate) struct Memory {
    device: Arc<OpenDevice>,
    /// Locked for moments in which nothing waits and nothing of Python's runs.
    state: Mutex<State>,
}

struct State {
    array: ArrayView,
    backing: Backing,
}

/// One use of memory, which calls share.
pub(crate) type HeldPin = DropDetached<Arc<Pin>>;

/// Memory that is pinned, with its elements.
pub(crate) type Pinned = (HeldPin, ArrayView);

/// What keeps the memory.
enum Backing {
    /// A buffer: a whole allocation, pinned for the time of each call.
    Whole(DropDetached<Arc<Allocation>>),
    /// An array: a part of an allocation, pinned as long as the array lives.
    Part(HeldPin),
    /// A `UnifiedBuffer`.
    Unified(Unified),
    /// Nothing: its `with` ended, or it was freed.
    Gone,
}

/// How a call uses memory.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// Reads it where it is; of a unified buffer on the host.
    Read,
    /// Writes part of it.
    Update,
    /// Writes all of it.
    Overwrite,
}

impl Use {
    fn access(self) -> Access {
        match self {
            Self::Read => Access::Read,
            Self::Update => Access::Update,
            Self::Overwrite => Access::Overwrite,
        }
    }
}

impl Memory {
    /// The memory of a buffer.
    pub(crate) fn buffer(allocation: Arc<Allocation>) -> Self {
        let (device, array) = (Arc::clone(allocation.device()), ArrayView::whole(&allocation));
        Self::new(device, array, Backing::Whole(DropDetached::new(allocation)))
    }

    /// The memory of an array.
    pub(crate) fn part(pin: Pin, array: ArrayView) -> Self {
        Self::shared(DropDetached::new(Arc::new(pin)), array)
    }

    /// The memory of an array that shares the pin of another.
    pub(crate) fn shared(pin: HeldPin, array: ArrayView) -> Self {
        let device = Arc::clone(pin.allocation().device());
        Self::new(device, array, Backing::Part(pin))
    }

    /// The memory of a unified buffer of a device.
    pub(crate) fn unified(device: Arc<OpenDevice>, array: ArrayView, unified: Unified) -> Self {
        Self::new(device, array, Backing::Unified(unified))
    }

    fn new(device: Arc<OpenDevice>, array: ArrayView, backing: Backing) -> Self {
        Self { device, state: Mutex::new(State { array, backing }) }
    }

    /// Whether it is a buffer's.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(lock(&self.state).backing, Backing::Whole(_))
    }

    /// Its device.
    pub(crate) fn open_device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    /// Its elements; of a buffer all bytes.
    pub(crate) fn array(&self) -> ArrayView {
        lock(&self.state).array.clone()
    }

    /// Gives it other elements, in the same memory.
    pub(crate) fn set_array(&self, array: ArrayView) {
        lock(&self.state).array = array;
    }

    /// The unified buffer, with the elements; `None` of other memory.
    pub(crate) fn as_unified(&self) -> Option<(Unified, ArrayView)> {
        let state = lock(&self.state);
        match &state.backing {
            Backing::Unified(unified) => Some((unified.share(), state.array.clone())),
            _ => None,
        }
    }

    /// The allocation it is part of. An error of a unified buffer, whose memory moves, and of what is gone.
    pub(crate) fn allocation(&self) -> Result<DropDetached<Arc<Allocation>>, Failure> {
        match &lock(&self.state).backing {
            Backing::Whole(allocation) => Ok(DropDetached::new(Arc::clone(allocation))),
            Backing::Part(pin) => Ok(DropDetached::new(Arc::clone(pin.allocation()))),
            Backing::Unified(_) => Err(Failure::unsupported(
                "the memory of a unified buffer may move: on_device() is an array of it that stays",
            )),
            Backing::Gone => Err(gone()),
        }
    }

    /// Its first address; null for no bytes. An error where it was freed.
    pub(crate) fn first_address(&self, py: Python<'_>) -> Result<Address, Failure> {
        let (pin, array) = self.pinned(py)?;
        Ok(array.address(pin.allocation()))
    }

    /// A pin of the memory, and its elements. Not of a unified buffer.
    pub(crate) fn pinned(&self, py: Python<'_>) -> Result<(HeldPin, ArrayView), Failure> {
        self.device.check_process()?;
        let state = lock(&self.state);
        let array = state.array.clone();
        if let Backing::Part(pin) = &state.backing {
            return Ok((DropDetached::new(Arc::clone(pin)), array));
        }
        drop(state);
        let allocation = self.allocation()?;
        // May wait.
        let pin = py.detach(|| allocation.pin())?;
        Ok((DropDetached::new(Arc::new(pin)), array))
    }

    /// A pin of the memory for a use of this kind, and its elements. Of a unified buffer it is that of the host's replica.
    pub(crate) fn pinned_for(
        &self,
        py: Python<'_>,
        used: Use,
    ) -> Result<(HeldPin, ArrayView), Failure> {
        let Some((unified, array)) = self.as_unified() else {
            let (pin, array) = self.pinned(py)?;
            if !matches!(used, Use::Read) && !array.writable() {
                return Err(Failure::invalid("the memory is read-only"));
            }
            return Ok((pin, array));
        };
        // Bytes between rows are not overwritten.
        let access = if array.contiguous().is_ok() { used } else { Use::Update }.access();
        let access = if matches!(used, Use::Read) { Access::Read } else { access };
        let (pin, array) = stack::detach(py, || unified.on_host(&array, access))?;
        Ok((DropDetached::new(Arc::new(pin)), array))
    }

    /// A pin of the memory for another library, and its elements. Of a unified buffer it is that of the device's replica,
    /// to be written, for work on the default stream.
    pub(crate) fn pinned_for_device(
        &self,
        py: Python<'_>,
    ) -> Result<(HeldPin, ArrayView), Failure> {
        let Some((unified, array)) = self.as_unified() else { return self.pinned(py) };
        let stream = StreamRef::default_of(&self.device);
        let export = || unified.on_device(&self.device, &array, Access::Update, &stream);
        let (pin, array) = stack::detach(py, export)?;
        Ok((DropDetached::new(Arc::new(pin)), array))
    }

    /// Waits for copies that were recorded for it.
    pub(crate) fn settle(&self, py: Python<'_>) -> Result<(), Failure> {
        let Ok(allocation) = self.allocation() else { return Ok(()) };
        if allocation.is_pinned()
            && let Some(array) = allocation.pool_array()
        {
            py.detach(|| array.wait())?;
        }
        Ok(())
    }

    /// The pool that its memory is from, or else the process's of its device.
    pub(crate) fn pool(&self) -> Result<Pool, Failure> {
        let own = self.allocation().ok().and_then(|allocation| allocation.pool());
        own.map_or_else(|| self.device.pool(), Ok)
    }

    /// The stream in whose order it is used; of a unified buffer the default stream.
    pub(crate) fn stream_ref(&self) -> Result<Arc<StreamRef>, Failure> {
        match self.as_unified() {
            Some(_) => Ok(StreamRef::default_of(&self.device)),
            None => Ok(self.allocation()?.stream_ref()),
        }
    }

    /// Lets go of the memory: it is freed at once, or with the last view of it.
    pub(crate) fn let_go(&self) {
        let backing = core::mem::replace(&mut lock(&self.state).backing, Backing::Gone);
        drop(backing);
    }

    /// Whether it has no memory any more.
    pub(crate) fn is_gone(&self) -> bool {
        let allocation = match &lock(&self.state).backing {
            Backing::Whole(allocation) => Arc::clone(allocation),
            Backing::Part(pin) => Arc::clone(pin.allocation()),
            Backing::Unified(_) => return false,
            Backing::Gone => return true,
        };
        DropDetached::new(allocation).is_freed()
    }

    /// Frees the memory in the order of `stream`, by default its own. Fails while anything else uses it.
    pub(crate) fn free(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        if let Some((unified, _)) = self.as_unified() {
            py.detach(|| Ok::<_, Failure>(unified.whole()?.close()?))?;
            self.let_go();
            return Ok(());
        }
        let allocation = self.allocation()?;
        let stream_ref = stream_or_own(&allocation, stream)?;
        // An array's own pin ends first, and is taken again where others keep the memory.
        let own = self.take_pin();
        let was_part = own.is_some();
        drop(own);
        let (freed, pin) = py.detach(|| {
            let freed = allocation.free(&stream_ref);
            let pin = if freed.is_err() && was_part { allocation.pin().ok() } else { None };
            (freed, pin)
        });
        if let Some(pin) = pin {
            lock(&self.state).backing = Backing::Part(DropDetached::new(Arc::new(pin)));
        }
        freed
    }

    /// The pin of an array, which has no memory then.
    fn take_pin(&self) -> Option<HeldPin> {
        let mut state = lock(&self.state);
        match core::mem::replace(&mut state.backing, Backing::Gone) {
            Backing::Part(pin) => Some(pin),
            other => {
                state.backing = other;
                None
            }
        }
    }

    /// The end of a `with`: a buffer that nothing else uses is freed, and all other memory goes with the last use of it.
    pub(crate) fn leave(&self, py: Python<'_>) -> Result<(), Failure> {
        if self.is_gone() {
            return Ok(());
        }
        let is_buffer = self.is_whole() || self.as_unified().is_some_and(|(it, _)| !it.is_slice());
        let freed = if is_buffer { self.free(py, None) } else { Ok(()) };
        match freed {
            Err(failure) if !failure.is_in_use() => Err(failure),
            _ => {
                self.let_go();
                Ok(())
            }
        }
    }
}

fn gone() -> Failure {
    Failure::closed("the memory was freed; it is good until free(), close() or the end of its with")
}

/// The stream of a call: the one that is named, or the memory's own.
pub(crate) fn stream_or_own(
    allocation: &Allocation,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<Arc<StreamRef>, Failure> {
    match stream.filter(|stream| !stream.is_none()) {
        Some(stream) => stream_argument(allocation.device(), Some(stream)),
        None => Ok(allocation.stream_ref()),
    }
}
