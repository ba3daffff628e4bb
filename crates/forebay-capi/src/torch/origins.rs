//! Where blocks come from: the GPU, the stream and the private pool of each block that is not of GPU 0's own pool
//! on its default stream. PyTorch frees a block by its address alone.
//!
//! Most programs use one GPU and its default stream, and then there is nothing here: a free reads one number. A
//! block that is noted costs one short lock of one of many tables at each end of its life.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use forebay_sync::lock;

/// Where a block comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) device: i32,
    /// The key of the private pool; 0 for the GPU's own pool.
    pub(super) private: u32,
    /// The driver's value of the stream.
    pub(super) stream: u64,
}

/// The number of tables: threads that free at once rarely meet.
const TABLES: usize = 64;

/// Hashes addresses: multiples of 512 that no attacker chooses.
#[derive(Debug, Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

type OriginMap = HashMap<u64, Origin, BuildHasherDefault<AddressHasher>>;

static ORIGINS: [Mutex<OriginMap>; TABLES] =
    [const { Mutex::new(HashMap::with_hasher(BuildHasherDefault::new())) }; TABLES];

/// How many blocks are noted.
static NOTED: AtomicUsize = AtomicUsize::new(0);

fn table(address: u64) -> MutexGuard<'static, OriginMap> {
    let mut hasher = AddressHasher::default();
    hasher.write_u64(address);
    // The low bits choose within the table.
    lock(&ORIGINS[(hasher.finish() >> 48) as usize % TABLES])
}

/// Notes where a new block comes from. Nobody but the caller knows the block yet.
#[inline(always)]
pub(super) fn note(address: u64, origin: Origin) {
    if origin != Origin::default() && address != 0 {
        note_other(address, origin);
    }
}

#[inline(never)]
fn note_other(address: u64, origin: Origin) {
    if table(address).insert(address, origin).is_none() {
        NOTED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a live block comes from. The caller got the block after it was noted, so the count includes it.
#[inline(always)]
pub(super) fn of(address: u64) -> Origin {
    if NOTED.load(Ordering::Relaxed) == 0 {
        return Origin::default();
    }
    table(address).get(&address).copied().unwrap_or_default()
}

/// Likewise for a block that is about to be freed, which is forgotten.
#[inline(always)]
pub(super) fn take(address: u64) -> Origin {
    if NOTED.load(Ordering::Relaxed) == 0 {
        return Origin::default();
    }
    take_noted(address)
}

#[inline(never)]
fn take_noted(address: u64) -> Origin {
    match table(address).remove(&address) {
        Some(origin) => {
            NOTED.fetch_sub(1, Ordering::Relaxed);
            origin
        }
        None => Origin::default(),
    }
}
