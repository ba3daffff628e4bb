//! OBJ-POOL: takes an object from a pool and returns it, on one thread and on several, compared with a box of the same
//! object. Uses no device.

use core::hint::black_box;

use forebay::objects::{ObjectPool, Pooled};
use forebay::{Bytes, Result};
use forebay_hal::{Call, Error, StreamHandle};
use forebay_trace::workload::size_name;

use super::ground::BenchSetup;
use super::hot::{Contestant, contest, side_by_side, thread_counts, with_speed_ups};
use super::row::Row;
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
    let counts = thread_counts();
    let size = Bytes::new(size_of::<Object>() as u64);
    let pool = ObjectPool::new(|| [0; 64]);
    let objects = Objects(&pool);
    let contestant = |allocator, count: usize| {
        let mut row = Row::of(OBJECTS, size_name(size), setup, allocator);
        row.threads = count as u64;
        let streams = vec![StreamHandle::DEFAULT; count];
        (row, streams)
    };
    let ours = counts.iter().map(|&count| {
        let (row, streams) = contestant("forebay", count);
        let objects = &objects;
        Contestant::new(row, move |pairs| side_by_side(objects, size, &streams, pairs))
    });
    let boxes = counts.iter().map(|&count| {
        let (row, streams) = contestant("Box", count);
        Contestant::new(row, move |pairs| side_by_side(&Boxes, size, &streams, pairs))
    });
    with_speed_ups(contest(ours.chain(boxes).collect(), setup.effort.threaded(), progress))
}
