//! OBJ-POOL: takes an object from a pool and returns it, on one thread and on several, compared with a box of the same
//! object. Uses no device.

use core::hint::black_box;

use forebay::objects::{ObjectPool, Pooled};
use forebay::{Bytes, Result};
use forebay_hal::{Call, Error, StreamHandle};

use super::hot::{Threaded, max_threads, on_more_threads, side_by_side};
use super::row::Row;
use super::setup::BenchSetup;
use super::subject::Subject;
use crate::progress::Progress;

/// The name of the workload.
pub(super) const OBJECTS: &str = "OBJ-POOL";

/// The object: 512 B, as mimalloc's block in the hot pair.
type Object = [u64; 64];

struct Objects<'p>(&'p ObjectPool<Object>);

impl<'p> Subject for Objects<'p> {
    type Held = Pooled<'p, Object>;

    #[inline]
    fn allocate(&self, _: Bytes, _: StreamHandle) -> Result<Self::Held> {
        self.0.get().map_err(|error| {
            let reason = error.to_string().into();
            Error::Transient { call: Call::Allocate, reason }.into()
        })
    }

    #[inline]
    fn free(&self, held: Self::Held, _: StreamHandle) -> Result<()> {
        drop(black_box(held));
        Ok(())
    }
}

/// A box for every object.
struct Boxes;

impl Subject for Boxes {
    type Held = Box<Object>;

    #[inline]
    fn allocate(&self, _: Bytes, _: StreamHandle) -> Result<Self::Held> {
        Ok(Box::new(black_box([0; 64])))
    }

    #[inline]
    fn free(&self, held: Self::Held, _: StreamHandle) -> Result<()> {
        drop(black_box(held));
        Ok(())
    }
}

/// Objects of a pool and boxes, on one thread and more; with the speed-up.
pub(super) fn against_boxes(setup: BenchSetup<'_>, progress: &Progress) -> Vec<Row> {
    let size = Bytes::new(size_of::<Object>() as u64);
    let pool = ObjectPool::new(|| [0; 64]);
    let streams = vec![StreamHandle::DEFAULT; max_threads()];
    let of = |count| streams.get(..count).unwrap_or_default();
    let ours = |count, pairs| side_by_side(&Objects(&pool), size, of(count), pairs);
    let boxes = |count, pairs| side_by_side(&Boxes, size, of(count), pairs);
    let subjects: [Threaded<'_>; 2] = [("forebay", size, &ours), ("Box", size, &boxes)];
    on_more_threads(OBJECTS, &subjects, setup, progress)
}
