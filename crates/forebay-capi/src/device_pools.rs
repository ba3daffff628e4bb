//! The process's pool of each GPU, and the streams that others made.

use core::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::fork;
use forebay::{CudaDevice, Device, Pool, PoolId, PoolOptions, Settings, StreamHandle};

/// As many GPUs as one machine has, and more.
const MOST: usize = 64;

/// A GPU's pool, made when it is first asked for.
struct Seat {
    pool: OnceLock<Pool>,
    /// Streams of other libraries that its device was told of, by the driver's values. Two of those
    /// are no handles: 1 is the default stream as well, and 2 the calling thread's own.
    known: Mutex<BTreeMap<u64, StreamHandle>>,
    /// Requests of PyTorch, CuPy and the others that were refused for want of memory.
    refusals: AtomicU64,
}

static SEATS: [Seat; MOST] = [const {
    Seat { pool: OnceLock::new(), known: Mutex::new(BTreeMap::new()), refusals: AtomicU64::new(0) }
}; MOST];

/// Held while a pool is made, and while what pools are to be is changed.
static MAKING: Mutex<()> = Mutex::new(());

/// What a thread was sure of last: a stream that the GPU's device knows, by the driver's value and as
/// the pool knows it, and the GPU's pool.
struct Sure {
    /// How many streams had been forgotten by then.
    forgotten: Cell<u64>,
    ordinal: Cell<i32>,
    stream: Cell<u64>,
    handle: Cell<StreamHandle>,
    pool: Cell<Option<&'static Pool>>,
}

thread_local! {
    static SURE: Sure = const {
        Sure {
            forgotten: Cell::new(0),
            ordinal: Cell::new(0),
            stream: Cell::new(0),
            handle: Cell::new(StreamHandle::DEFAULT),
            pool: Cell::new(None),
        }
    };
}

/// How many streams were forgotten. What a thread was sure of before the last of them it is no longer: the
/// driver may have given the value to another stream.
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a GPU. What is below zero becomes one that no GPU has.
fn numbered(ordinal: i32) -> usize {
    usize::try_from(ordinal).unwrap_or(usize::MAX)
}

/// The pool of a GPU and a stream as the pool knows it, where this thread was sure of both last.
#[inline(always)]
pub(crate) fn sure(ordinal: i32, stream: u64) -> Option<(&'static Pool, StreamHandle)> {
    let look = |sure: &Sure| {
        let same = sure.ordinal.get() == ordinal && sure.stream.get() == stream;
        if same && sure.forgotten.get() == FORGOTTEN.load(Ordering::Relaxed) {
            Some((sure.pool.get()?, sure.handle.get()))
        } else {
            None
        }
    };
    SURE.try_with(look).ok().flatten()
}

/// The pool of a GPU, and a stream of it as the pool knows it.
pub(crate) fn at(ordinal: i32, stream: u64) -> Result<(&'static Pool, StreamHandle), String> {
    match sure(ordinal, stream) {
        Some(known) => Ok(known),
        None => find(ordinal, stream),
    }
}

#[cold]
#[inline(never)]
fn find(ordinal: i32, stream: u64) -> Result<(&'static Pool, StreamHandle), String> {
    let forgotten = FORGOTTEN.load(Ordering::Acquire);
    let number = numbered(ordinal);
    let seat = seat(number)?;
    let pool = pool_of(seat, number)?;
    let handle = know(seat, pool, stream)?;
    let _ = SURE.try_with(|sure| {
        sure.forgotten.set(forgotten);
        sure.ordinal.set(ordinal);
        sure.stream.set(stream);
        sure.handle.set(handle);
        sure.pool.set(Some(pool));
    });
    Ok((pool, handle))
}

/// The pool of a GPU, made where there is none yet.
pub(crate) fn of(ordinal: i32) -> Result<&'static Pool, String> {
    let number = numbered(ordinal);
    pool_of(seat(number)?, number)
}

/// The pools that were made, with the numbers of their GPUs.
pub(crate) fn made() -> impl Iterator<Item = (i32, &'static Pool)> {
    (0..).zip(&SEATS).filter_map(|(number, seat)| Some((number, seat.pool.get()?)))
}

/// Counts a request that was refused for want of memory.
pub(crate) fn count_refusal(ordinal: i32) {
    if let Ok(seat) = seat(numbered(ordinal)) {
        seat.refusals.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many requests were refused for want of memory.
pub(crate) fn refusals(ordinal: i32) -> u64 {
    seat(numbered(ordinal)).map_or(0, |seat| seat.refusals.load(Ordering::Relaxed))
}

/// What `configure` changed last, for `take_back`.
struct Change {
    /// What the process's pools went by before.
    before: Option<Settings>,
    keys: Vec<String>,
    /// The pools that were there.
    there: Vec<PoolId>,
    /// What was changed of them: the pool, the key, the value it had.
    had: Vec<(PoolId, String, String)>,
}

static LAST: Mutex<Option<Change>> = Mutex::new(None);

/// Puts settings above those of the environment, for pools that are made from now on. Where there are
/// pools already, each setting changes there too. Where one is refused, nothing is changed.
pub(crate) fn configure(text: &str) -> Result<(), String> {
    let settings = Settings::parse_conf(text).map_err(|error| error.to_string())?;
    let _making = lock(&MAKING);
    let before = Pool::process_settings();
    let whole = wanted()?.overlay(settings);
    whole.check().map_err(|error| error.to_string())?;
    let entries: Vec<(&str, &str)> = text
        .split(',')
        .filter_map(|entry| entry.split_once(':'))
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect();
    let keys = entries.iter().map(|&(key, _)| key.to_owned()).collect();
    let there = made().map(|(_, pool)| pool.id()).collect();
    let mut change = Change { before, keys, there, had: Vec::new() };
    for (key, value) in entries {
        if let Err(reason) = change_pools(key, value, &whole, &mut change.had) {
            undo(&change);
            return Err(reason);
        }
    }
    Pool::set_process_settings(Some(whole));
    *lock(&LAST) = Some(change);
    Ok(())
}

/// Changes one setting of the pools that are there, and notes what each had.
fn change_pools(
    key: &str,
    value: &str,
    wanted: &Settings,
    had: &mut Vec<(PoolId, String, String)>,
) -> Result<(), String> {
    for (_, pool) in made() {
        let values = (pool.settings().get(key), wanted.get(key));
        let (Ok(now), Ok(wanted)) = values else { continue };
        if now.value != wanted.value {
            pool.change(key, value).map_err(|error| error.to_string())?;
            had.push((pool.id(), key.to_owned(), now.value));
        }
    }
    Ok(())
}

/// Takes the last `configure` back, once: for whoever installs something in several steps, of which a
/// later one failed. Settings that cannot change any more stay with a pool that was made since.
pub(crate) fn take_back() {
    let _making = lock(&MAKING);
    let last = lock(&LAST).take();
    if let Some(change) = last {
        Pool::set_process_settings(change.before.clone());
        undo(&change);
    }
}

fn undo(change: &Change) {
    // The latest change first: a setting may be there twice.
    for (id, key, value) in change.had.iter().rev() {
        if let Some((_, pool)) = made().find(|(_, pool)| pool.id() == *id) {
            // What could change could be this before.
            let _ = pool.change(key, value);
        }
    }
    // Pools that were made since began with what is taken back.
    let Ok(before) = wanted() else { return };
    for (_, pool) in made().filter(|(_, pool)| !change.there.contains(&pool.id())) {
        for before in change.keys.iter().filter_map(|key| before.get(key).ok()) {
            let _ = pool.change(before.key.name(), &before.value);
        }
    }
}

/// Settings as the environment and the program say.
pub(crate) fn options() -> Result<PoolOptions, String> {
    Ok(PoolOptions::with(wanted()?))
}

fn wanted() -> Result<Settings, String> {
    match Pool::process_settings() {
        Some(settings) => Ok(settings),
        None => Settings::from_environment().map_err(|error| error.to_string()),
    }
}

fn seat(number: usize) -> Result<&'static Seat, String> {
    // The way of everybody who is not sure; in a forked child nobody is.
    fork::refuse().map_err(|failure| failure.to_string())?;
    let beyond = || format!("there is no GPU {number}: ordinals are 0 to {}", MOST - 1);
    SEATS.get(number).ok_or_else(beyond)
}

fn pool_of(seat: &'static Seat, number: usize) -> Result<&'static Pool, String> {
    match seat.pool.get() {
        Some(pool) => Ok(pool),
        None => make(seat, number),
    }
}

fn make(seat: &'static Seat, number: usize) -> Result<&'static Pool, String> {
    // Before anything is opened that a child must not use.
    fork::watch();
    let _making = lock(&MAKING);
    if let Some(pool) = seat.pool.get() {
        return Ok(pool);
    }
    let ordinal = u32::try_from(number).map_err(|error| error.to_string())?;
    // The process's own, as the other faces and Rust programs ask for it too.
    let device: Arc<dyn Device> = CudaDevice::shared(ordinal).map_err(|error| error.to_string())?;
    let pool = Pool::of(&device).map_err(|error| error.to_string())?;
    Ok(seat.pool.get_or_init(|| pool))
}

/// Tells the device of a stream that it has not seen.
fn know(seat: &Seat, pool: &Pool, stream: u64) -> Result<StreamHandle, String> {
    if stream == StreamHandle::DEFAULT.0 {
        return Ok(StreamHandle::DEFAULT);
    }
    let mut known = lock(&seat.known);
    if let Some(&handle) = known.get(&stream) {
        return Ok(handle);
    }
    let foreign = pool.device().foreign_streams().ok_or("the device takes no foreign streams")?;
    // SAFETY: whoever calls through C promises that the stream is one of that GPU, and lives as long
    // as the pool has blocks of it.
    let adopted = unsafe { foreign.adopt_stream(stream) }.map_err(|error| error.to_string())?;
    known.insert(stream, adopted);
    Ok(adopted)
}

/// Says that a stream of a GPU will be destroyed: what was freed on it becomes everybody's, and the device
/// knows it no longer. Another stream may come to have its value.
pub(crate) fn forget_stream(ordinal: i32, stream: u64) -> Result<(), String> {
    let (pool, handle) = find(ordinal, stream)?;
    pool.forget_stream(handle).map_err(|error| error.to_string())?;
    if handle == StreamHandle::DEFAULT || handle.is_per_thread() {
        // The driver never destroys these.
        return Ok(());
    }
    let seat = seat(numbered(ordinal))?;
    let mut known = lock(&seat.known);
    // Two threads that forget it at once: the device hears of it from one.
    let was_known = known.remove(&stream).is_some();
    FORGOTTEN.fetch_add(1, Ordering::Release);
    match pool.device().foreign_streams().filter(|_| was_known) {
        Some(foreign) => foreign.forget_stream(handle).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}
