//! The process's pool of each GPU, and the streams that others made.

use core::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay::{CudaDevice, Device, Pool, StreamHandle};

/// As many GPUs as one machine has, and more.
const MOST: usize = 64;

/// A GPU's pool, made when it is first asked for.
struct Seat {
    pool: OnceLock<Pool>,
    /// Streams of other libraries that its device was told of.
    known: Mutex<BTreeSet<StreamHandle>>,
}

static SEATS: [Seat; MOST] =
    [const { Seat { pool: OnceLock::new(), known: Mutex::new(BTreeSet::new()) } }; MOST];

/// Held while a pool is made.
static MAKING: Mutex<()> = Mutex::new(());

thread_local! {
    /// The GPU and stream this thread was sure of last.
    static SURE: Cell<(usize, u64)> = const { Cell::new((usize::MAX, 0)) };
}

/// The pool of a GPU, and a stream of it as the pool knows it.
#[inline(always)]
pub(crate) fn at(ordinal: i32, stream: u64) -> Result<(&'static Pool, StreamHandle), String> {
    // What is below zero becomes a number that no GPU has.
    let number = usize::try_from(ordinal).unwrap_or(usize::MAX);
    if SURE.try_with(Cell::get) == Ok((number, stream))
        && let Some(pool) = SEATS.get(number).and_then(|seat| seat.pool.get())
    {
        return Ok((pool, StreamHandle(stream)));
    }
    find(number, stream)
}

#[cold]
#[inline(never)]
fn find(number: usize, stream: u64) -> Result<(&'static Pool, StreamHandle), String> {
    let beyond = || format!("there is no GPU {number}: ordinals are 0 to {}", MOST - 1);
    let seat = SEATS.get(number).ok_or_else(beyond)?;
    let pool = match seat.pool.get() {
        Some(pool) => pool,
        None => make(seat, number)?,
    };
    let handle = know(seat, pool, stream)?;
    // The default stream has two names; only under its first the next call may skip the question.
    if handle.0 == stream {
        let _ = SURE.try_with(|sure| sure.set((number, stream)));
    }
    Ok((pool, handle))
}

fn make(seat: &'static Seat, number: usize) -> Result<&'static Pool, String> {
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = seat.pool.get() {
        return Ok(pool);
    }
    let ordinal = u32::try_from(number).map_err(|error| error.to_string())?;
    let device: Arc<dyn Device> = CudaDevice::open(ordinal).map_err(|error| error.to_string())?;
    let pool = Pool::of(&device).map_err(|error| error.to_string())?;
    Ok(seat.pool.get_or_init(|| pool))
}

/// Tells the device of a stream that it has not seen.
fn know(seat: &Seat, pool: &Pool, stream: u64) -> Result<StreamHandle, String> {
    let mut known = seat.known.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = StreamHandle(stream);
    if handle == StreamHandle::DEFAULT || known.contains(&handle) {
        return Ok(handle);
    }
    let foreign = pool.device().foreign_streams().ok_or("the device takes no foreign streams")?;
    // SAFETY: whoever calls through C promises that the stream is one of that GPU, and lives as long
    // as the pool has blocks of it.
    let adopted = unsafe { foreign.adopt_stream(stream) }.map_err(|error| error.to_string())?;
    known.insert(adopted);
    Ok(adopted)
}
