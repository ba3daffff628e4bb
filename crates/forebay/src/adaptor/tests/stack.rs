//! Adaptors upon adaptors, mistakes that pass through them, and threads.

use std::collections::{HashMap, HashSet};
use std::sync::{Barrier, Mutex};

use super::*;

/// A log that can be read while it is written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Any = Arc<dyn Allocate>;

/// All six, in some order, each still within reach.
struct Stack {
    top: Any,
    limited: Arc<Limited<Any>>,
    counted: Arc<Counted<Any>>,
    tracked: Arc<Tracked<Any>>,
    failing: Arc<Failing<Any>>,
    log: Shared,
}

const LIMIT: Bytes = Bytes::mib(4);

impl Stack {
    fn new(bottom: Any, order: &[usize]) -> Self {
        let (mut top, log) = (bottom, Shared::default());
        let (mut limited, mut counted, mut tracked, mut failing) = (None, None, None, None);
        for which in order {
            top = match which {
                0 => limited.insert(Arc::new(Limited::new(top, LIMIT))).clone(),
                1 => counted.insert(Arc::new(Counted::new(top))).clone(),
                2 => tracked.insert(Arc::new(Tracked::new(top))).clone(),
                3 => failing.insert(Arc::new(Failing::new(top, FailWhen::Every(5)))).clone(),
                4 => Arc::new(Logged::new(top, log.clone())),
                _ => Arc::new(Aligned::new(top, Alignment::HOST_PAGE)),
            };
        }
        Self {
            top,
            limited: limited.unwrap(),
            counted: counted.unwrap(),
            tracked: tracked.unwrap(),
            failing: failing.unwrap(),
            log,
        }
    }

    /// Everything that may not change when a call fails.
    fn figures(&self) -> (Bytes, Counts, Vec<Address>) {
        let mut counts = self.counted.counts();
        (counts.failed_allocations, counts.failed_frees) = (0, 0);
        let live = self.tracked.leaks().blocks().iter().map(|live| live.block.address()).collect();
        (self.limited.used(), counts, live)
    }
}

/// Every order of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let longer = shorter.iter().flat_map(|order| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, count - 1);
            order
        })
    });
    longer.collect()
}

/// That a log is one of a run that can have been: nothing is given out twice, nor freed when it is
/// not out, and sizes agree. Gives how many lines there are.
fn follow(log: &Shared) -> usize {
    let lines = lines(&log.0.lock().unwrap());
    let mut live = HashSet::new();
    for line in &lines {
        let block = (line[3].clone(), line[4].clone());
        if block.0 == "0x0" {
            continue;
        }
        match line[2].as_str() {
            "allocate" => assert!(live.insert(block), "{line:?} is out already"),
            "free" => assert!(live.remove(&block), "{line:?} is not out"),
            other => assert_eq!(other, "allocate failure"),
        }
    }
    assert!(live.is_empty(), "{live:?}");
    lines.len()
}

#[test]
fn they_stack_in_any_order() {
    let orders = orders(6);
    assert_eq!(orders.len(), 720);
    for (seed, order) in orders.iter().enumerate() {
        let direct = roomy();
        let stack = Stack::new(direct.clone(), order);
        let mut random = Random::new(seed as u64);
        let mut live: Vec<Address> = Vec::new();
        for _ in 0..40 {
            let before = stack.figures();
            if random.chance(2, 3) {
                let size = random.between(1, 512 << 10);
                match stack.top.allocate_request(bytes(size)) {
                    Ok(block) => {
                        assert!(block.address().is_aligned_to(Alignment::HOST_PAGE));
                        live.push(block.address());
                    }
                    Err(Error::OutOfMemory { .. }) => assert_eq!(stack.figures(), before),
                    Err(error) => panic!("{order:?}: {error}"),
                }
            } else if let Some(index) = random.index(live.len()) {
                stack.top.free(live.swap_remove(index), DEFAULT).unwrap();
            }
            let truth = direct.truth();
            assert_eq!(stack.limited.used().get(), truth.requested, "{order:?}");
            let counts = stack.counted.counts();
            assert_eq!(counts.requested.get(), truth.requested);
            assert_eq!(counts.peak_requested.get(), truth.peak_requested);
            assert_eq!(counts.live_blocks, live.len() as u64);
            drop(truth);
            assert_eq!(stack.tracked.leaks().blocks().len(), live.len());
        }
        assert!(stack.failing.failures() > 0);
        live.into_iter().for_each(|block| stack.top.free(block, OTHER).unwrap());
        assert_eq!((stack.limited.used(), stack.tracked.leaks().is_empty()), (Bytes::ZERO, true));
        let counts = stack.counted.counts();
        assert_eq!((counts.live, counts.allocations), (Bytes::ZERO, counts.frees));
        assert!(follow(&stack.log) as u64 >= counts.allocations + counts.frees);
    }
}

/// Wrong frees get the error of the allocator beneath, whatever is in between, and change nothing.
#[test]
fn mistakes_pass_through_and_change_nothing() {
    for order in orders(6).iter().step_by(37) {
        let direct = roomy();
        let stack = Stack::new(direct.clone(), order);
        let kept = stack.top.allocate_request(bytes(700)).unwrap();
        let freed = stack.top.allocate_request(bytes(700)).unwrap();
        stack.top.free(freed.address(), DEFAULT).unwrap();
        let before = stack.figures();
        let lines = stack.log.0.lock().unwrap().len();
        let inside = kept.address().checked_add(Bytes::new(512)).unwrap();
        for unknown in [inside, Address::new(4096), Address::new(u64::MAX)] {
            let error = stack.top.free(unknown, DEFAULT).unwrap_err();
            assert_eq!(error, Error::NotABlock { address: unknown });
        }
        let (address, size) = (freed.address(), freed.size());
        let error = stack.top.free(address, DEFAULT).unwrap_err();
        assert_eq!(error, Error::DoubleFree { address, size });
        stack.top.free(Address::NULL, DEFAULT).unwrap();
        assert_eq!(stack.figures(), before, "{order:?}");
        let written = stack.log.0.lock().unwrap()[lines..].to_vec();
        assert!(String::from_utf8(written).unwrap().contains(",free,0x0,0,0"));

        // A block that came another way is freed, and counts for nothing.
        let foreign = direct.allocate_request(bytes(700)).unwrap();
        assert_eq!(stack.top.block_at(foreign.address()), Some(foreign));
        stack.top.free(foreign.address(), DEFAULT).unwrap();
        assert_eq!(stack.figures(), before, "{order:?}");
        assert_eq!(direct.truth().live.len(), 1);

        // One that is freed past the adaptors is found to be gone when its address comes again.
        direct.free(kept.address(), DEFAULT).unwrap();
        assert!(stack.tracked.leaks().is_empty());
        let stranger = direct.allocate_request(bytes(700)).unwrap();
        assert_eq!(stranger.address(), kept.address());
        assert!(stack.tracked.leaks().is_empty(), "a stranger's block is taken for the old one");
        direct.free(stranger.address(), DEFAULT).unwrap();
        let again = stack.top.allocate_request(bytes(100)).unwrap();
        assert_eq!(again.address(), kept.address());
        assert_eq!(stack.limited.used(), Bytes::new(100));
        assert_eq!(stack.counted.counts().live_blocks, 1);
        stack.top.free(again.address(), DEFAULT).unwrap();
        assert_eq!(stack.limited.used(), Bytes::ZERO);
        // Given out three times, and the first of them freed by hearsay.
        assert_eq!(follow(&stack.log), 7, "{order:?}");
    }
}

#[test]
fn a_failure_beneath_leaves_all_figures_unchanged() {
    let stack = Stack::new(Direct::of(Bytes::mib(1)), &[0, 1, 2, 4, 5, 3]);
    stack.failing.plan(FailWhen::Never);
    let block = stack.top.allocate_request(bytes(600 << 10)).unwrap();
    let before = stack.figures();
    for number in 1..=3 {
        let error = stack.top.allocate_request(bytes(600 << 10)).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
        assert_eq!(stack.figures(), before);
        assert_eq!(stack.counted.counts().failed_allocations, number);
    }
    stack.top.free(block.address(), DEFAULT).unwrap();
    assert_eq!(stack.limited.used(), Bytes::ZERO);
}

#[test]
fn many_threads_never_exceed_the_limit_and_count_exactly() {
    let direct = roomy();
    let stack = Stack::new(direct.clone(), &[4, 5, 2, 3, 0, 1]);
    stack.failing.plan(FailWhen::PerMillion { times: 50_000, seed: 3 });
    let refused: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|thread| {
                let top = &stack.top;
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let mut live = Vec::new();
                    let mut refused = 0;
                    for _ in 0..2000 {
                        if random.chance(3, 5) {
                            match top.allocate_request(bytes(random.between(1, 256 << 10))) {
                                Ok(block) => live.push(block.address()),
                                Err(_) => refused += 1,
                            }
                        } else if let Some(index) = random.index(live.len()) {
                            top.free(live.swap_remove(index), DEFAULT).unwrap();
                        }
                    }
                    live.into_iter().for_each(|block| top.free(block, DEFAULT).unwrap());
                    refused
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let counts = stack.counted.counts();
    assert!(refused > 100, "the limit was hardly met: {refused}");
    assert_eq!(counts.failed_allocations, refused);
    assert_eq!((counts.live, counts.live_blocks), (Bytes::ZERO, 0));
    assert_eq!(counts.allocations, counts.frees);
    assert_eq!(stack.limited.used(), Bytes::ZERO);
    assert!(direct.truth().peak_requested <= LIMIT.get());
    assert!(stack.tracked.leaks().is_empty());
    assert!(follow(&stack.log) as u64 >= 2 * counts.allocations);
    // Each thread freed its own, and the log says so: no line is where another thread's belongs.
    let mut owners = HashMap::new();
    for line in lines(&stack.log.0.lock().unwrap()) {
        let [thread, _, action, pointer, ..] = line.as_slice() else { panic!("{line:?}") };
        match action.as_str() {
            "allocate" => drop(owners.insert(pointer.clone(), thread.clone())),
            "free" => assert_eq!(owners.remove(pointer).as_ref(), Some(thread), "{line:?}"),
            _ => {}
        }
    }
    assert!(direct.truth().addresses() * 4 < counts.allocations, "addresses seldom came again");
}

/// An allocator on which one of two threads is late.
struct Uneven(Arc<Direct>);

// SAFETY: for tests, which touch no memory that is not theirs.
unsafe impl Allocate for Uneven {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        self.0.allocate_request(request)
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        if stream == OTHER {
            (0..20).for_each(|_| std::thread::yield_now());
        }
        self.0.free(address, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        self.0.block_at(address)
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.0.device()
    }
}

/// Two threads that free the same block by mistake: one does, one is told, and it counts once.
#[test]
fn a_block_freed_twice_at_once_counts_once() {
    const ROUNDS: u64 = 1000;
    // Without a log, which would keep the two threads apart.
    let stack = Stack::new(Arc::new(Uneven(roomy())), &[0, 1, 2, 5, 3]);
    stack.failing.plan(FailWhen::Never);
    let kept = stack.top.allocate_request(bytes(100)).unwrap();
    let before = stack.figures();
    let (barrier, target) = (Barrier::new(2), Mutex::new(Address::NULL));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut freed = 0;
            for _ in 0..ROUNDS {
                barrier.wait();
                let address = *target.lock().unwrap();
                freed += u64::from(stack.top.free(address, OTHER).is_ok());
                barrier.wait();
            }
            freed
        });
        let (mut freed, mut wrong) = (0, 0);
        for _ in 0..ROUNDS {
            let address = stack.top.allocate_request(bytes(700)).unwrap().address();
            *target.lock().unwrap() = address;
            barrier.wait();
            freed += u64::from(stack.top.free(address, DEFAULT).is_ok());
            barrier.wait();
            // Counted, not asserted: a panic here would leave the other at the barrier for ever.
            let (used, counts, live) = stack.figures();
            wrong += u64::from((used, counts.live_blocks, &live) != (before.0, 1, &before.2));
        }
        assert_eq!(wrong, 0);
        assert_eq!(freed + other.join().unwrap(), ROUNDS);
    });
    assert_eq!(stack.counted.counts().frees, ROUNDS);
    stack.top.free(kept.address(), DEFAULT).unwrap();
    assert_eq!(stack.limited.used(), Bytes::ZERO);
}
