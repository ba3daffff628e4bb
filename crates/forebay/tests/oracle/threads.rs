//! Many threads at once: own streams and shared ones, blocks freed by others than had them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use forebay::{Block, Error, Pool};
use forebay_core::{Bytes, Random};
use forebay_hal::{EventKind, Priority, StreamHandle};

use crate::claims::Claims;
use crate::trial::{Given, Oracle, Setting, Stage, free_by};

const THREADS: usize = 8;
const STEPS: usize = 250;

/// A block on its way from one thread to another: nothing waits for its stream but the stream.
struct Parcel {
    block: Block,
    requested: Bytes,
    tag: u8,
    stream: StreamHandle,
}

/// What all threads share.
struct Yard {
    stage: Stage,
    pool: Pool,
    /// Without a lock, so that the threads do not wait for each other here.
    claims: Claims,
    wrong: Arc<AtomicU64>,
    shared: Vec<StreamHandle>,
}

impl Yard {
    fn new(setting: Setting, stage: Stage) -> Self {
        let device = stage.device();
        let shared = (0..2).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
        let pool = setting.pool(&device).unwrap();
        Self { stage, pool, claims: Claims::default(), wrong: Arc::default(), shared }
    }

    /// A block, entered and written; `None` where memory is short.
    fn allocate(&self, requested: Bytes, tag: u8, stream: StreamHandle) -> Option<Parcel> {
        let block = match self.pool.allocate(requested, stream) {
            Ok(block) => block,
            Err(Error::OutOfMemory { .. }) => return None,
            Err(error) => panic!("{error}"),
        };
        // Entered after it is had and taken out before it is given back: between the two it is
        // this thread's, whatever the others do.
        // The block alone, whatever else is live, and then among the others.
        Oracle::default().allocated(requested, &block).unwrap_or_else(|wrong| panic!("{wrong}"));
        let claimed = self.claims.claim(block.address().get(), block.size().get());
        claimed.unwrap_or_else(|conflict| panic!("{block:?}: {conflict}"));
        self.stage.write(&block, tag, stream, &self.wrong).unwrap();
        Some(Parcel { block, requested, tag, stream })
    }

    /// Looks at a block and frees it on `stream`, which waits for the block's own where it is
    /// another.
    fn free(&self, parcel: Parcel, stream: StreamHandle, way: u8) {
        if stream != parcel.stream {
            let device = self.stage.device();
            let event = device.create_event(EventKind::Order).unwrap();
            device.record_event(event, parcel.stream).unwrap();
            device.wait_event(stream, event).unwrap();
            device.destroy_event(event).unwrap();
        }
        self.stage.check(&parcel.block, parcel.tag, stream, &self.wrong).unwrap();
        let address = parcel.block.address();
        self.claims.release(address.get(), parcel.block.size().get()).unwrap();
        let (block, requested) = (Some(parcel.block), parcel.requested);
        free_by(way, &self.pool, Given { address, block, requested, stream }).unwrap();
    }

    /// One thread's part: half of its blocks it frees itself, the others go on to the next.
    fn work(&self, seed: u64, next: &Sender<Parcel>, arriving: &Receiver<Parcel>) {
        let mut random = Random::new(seed);
        let device = self.stage.device();
        let own = device.create_stream(Priority::Normal).unwrap();
        let streams = [own, own, self.shared[0], self.shared[1]];
        let mut live: VecDeque<Parcel> = VecDeque::new();
        for step in 0..STEPS {
            let stream = *random.pick(&streams).unwrap();
            let tag = u8::try_from((step * 7 + usize::try_from(seed).unwrap()) % 251).unwrap();
            if live.len() < 10 && random.chance(3, 5) {
                let magnitude = random.between(4, 18);
                let size = Bytes::new(1 + random.below(1 << magnitude));
                live.extend(self.allocate(size, tag, stream));
            } else if let Some(parcel) = live.pop_front() {
                if random.chance(1, 2) {
                    next.send(parcel).unwrap();
                } else {
                    let its = parcel.stream;
                    let stream = if random.chance(3, 4) { its } else { stream };
                    self.free(parcel, stream, tag);
                }
            }
            for parcel in arriving.try_iter() {
                let its = parcel.stream;
                let stream = if random.chance(1, 2) { its } else { own };
                self.free(parcel, stream, tag);
            }
            if random.chance(1, 60) {
                self.pool.trim(Bytes::new(random.below(4 << 20))).unwrap();
            }
            if random.chance(1, 30) {
                device.synchronize_stream(stream).unwrap();
            }
        }
        for parcel in live {
            next.send(parcel).unwrap();
        }
    }

    /// All threads at once, each with a line to the next.
    fn run(&self) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        thread::scope(|scope| {
            for (number, arriving) in receivers.into_iter().enumerate() {
                let next = senders[(number + 1) % THREADS].clone();
                scope.spawn(move || {
                    self.work(number as u64, &next, &arriving);
                    drop(next);
                    // What still comes until the thread before is done.
                    for parcel in arriving {
                        let stream = parcel.stream;
                        self.free(parcel, stream, 0);
                    }
                });
            }
            drop(senders);
        });
    }

    /// Everything was freed, nothing raced, nothing was overwritten, nothing is left.
    fn close(self) {
        self.stage.device().synchronize_device().unwrap();
        let statistics = self.pool.statistics();
        assert!(self.claims.is_empty());
        assert_eq!((statistics.live, statistics.requested), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(statistics.allocations, statistics.frees);
        assert!(statistics.waits > 0, "no stream ever took from another");
        self.pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(self.pool.held(), Bytes::ZERO);
        drop(self.pool);
        assert_eq!(self.stage.findings(), None);
        assert_eq!(self.wrong.load(Ordering::Relaxed), 0, "blocks were overwritten");
        assert_eq!(self.stage.left(), None);
    }
}

#[test]
fn eight_threads_on_the_simulated_device() {
    for seed in 0..4 {
        let setting = Setting::mixed(seed);
        let yard = Yard::new(setting, setting.sim());
        yard.run();
        yard.close();
    }
}

#[test]
fn eight_threads_in_pages_of_one_granule() {
    let setting = Setting::tight(5);
    let yard = Yard::new(setting, setting.sim());
    yard.run();
    yard.close();
}

#[test]
fn eight_threads_on_the_host() {
    let setting = Setting { capacity: Bytes::mib(64), ..Setting::mixed(0) };
    let yard = Yard::new(setting, setting.host());
    yard.run();
    yard.close();
}
