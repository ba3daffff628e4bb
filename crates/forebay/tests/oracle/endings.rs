//! Ends: of pools with blocks still live, of streams, of threads.

use std::sync::Arc;

use forebay::{Block, Pool};
use forebay_core::Bytes;
use forebay_hal::{Device, Priority, StreamHandle, Streams};
use forebay_sim::{HandleReuse, MemoryModel, SimMachine};

use crate::trial::{Program, Run, Script, Setting};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A pool dropped with blocks live and their work still to come waits for it, crashes nothing and
/// leaves nothing: the blocks' memory goes with it.
#[test]
fn a_pool_dropped_with_live_blocks_leaves_nothing() {
    let mut abandoned = 0;
    for seed in 0..40 {
        for setting in [Setting::tight(seed), Setting::mixed(seed)] {
            let program = Program::of_seed(seed, 60 + usize::try_from(seed).unwrap(), setting.most);
            let run = Run::new(setting, setting.sim(), Script::NONE).unwrap();
            let ended = run.play_and_abandon(&program);
            let outcome = ended.unwrap_or_else(|failure| panic!("{setting:?}: {failure}"));
            abandoned += u32::from(!outcome.statistics.live.is_zero());
        }
    }
    assert!(abandoned > 60, "only {abandoned} of 80 pools had live blocks when they went");
}

/// Streams come and go without end, also where each is served at once from what is idle: a pool
/// that tells a limited number apart must notice that the old ones are over.
#[test]
fn streams_come_and_go_without_end() {
    for reuse in [HandleReuse::Never, HandleReuse::AtOnce] {
        let options = SimMachine::builder().memory(MemoryModel::Phantom).handles(reuse);
        let machine = options.build().unwrap();
        let device = machine.device(0).unwrap();
        let shared: Arc<dyn Device> = device.clone();
        let pool = Pool::new(&shared).unwrap();
        let block = |_| pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
        let blocks: Vec<Block> = (0..400).map(block).collect();
        for block in blocks.iter().step_by(2) {
            pool.free(block.address(), DEFAULT).unwrap();
        }
        // Two hundred holes of 1 MiB, and no two of them are neighbours.
        let held = pool.held();
        for round in 0..400 {
            let stream = device.create_stream(Priority::Normal).unwrap();
            let block = pool.allocate(Bytes::mib(1), stream);
            let block = block.unwrap_or_else(|error| panic!("{reuse:?}, round {round}: {error}"));
            pool.free(block.address(), stream).unwrap();
            pool.forget_stream(stream).unwrap();
            device.destroy_stream(stream).unwrap();
            device.synchronize_device().unwrap();
        }
        assert!(pool.held() <= held.saturating_add(Bytes::mib(64)), "{} held", pool.held());
    }
}

/// Threads come and go without end: what a pool keeps for one is not lost with it.
#[test]
fn threads_come_and_go_without_end() {
    let machine = SimMachine::builder().memory(MemoryModel::Phantom).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    let pool = Pool::new(&device).unwrap();
    for _ in 0..200 {
        let pool = pool.clone();
        let thread = std::thread::spawn(move || {
            let blocks = [(); 8].map(|()| pool.allocate(Bytes::mib(3), DEFAULT).unwrap());
            for block in blocks {
                pool.free(block.address(), DEFAULT).unwrap();
            }
        });
        thread.join().unwrap();
    }
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    // Eight blocks of 3 MiB are live at once; each thread's own eight would be 4.8 GB.
    assert!(pool.statistics().peak_held <= Bytes::mib(64), "{}", pool.statistics().peak_held);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
}

/// A clone is the same pool: the last one to go takes it along.
#[test]
fn the_last_clone_ends_the_pool() {
    let stage = Setting::large(0).sim();
    let pool = Pool::new(&stage.device()).unwrap();
    let clone = pool.clone();
    let block = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
    drop(pool);
    clone.free(block.address(), DEFAULT).unwrap();
    assert!(stage.left().is_some());
    drop(clone);
    assert_eq!(stage.left(), None);
}
