//! Arenas over pools on the simulated device: what is kept stays, what is taken back is used again
//! in order, and nothing is lost when calls fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::{BumpStale, QuantityError, Random};
use forebay_hal::{Call, Device, Priority, Streams};
use forebay_sim::{Kernel, MemoryModel, SimDevice, SimMachine};

use super::*;
use crate::adaptor::{Counted, FailWhen, Failing, Limited};
use crate::{Block, Pool};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

fn open() -> (SimMachine, Arc<SimDevice>, Pool) {
    let machine = SimMachine::builder().seed(11).capacity(Bytes::mib(256)).build().unwrap();
    let device = machine.device(0).unwrap();
    let shared: Arc<dyn Device> = device.clone();
    let pool = Pool::new(&shared).unwrap();
    (machine, device, pool)
}

fn phantom() -> Pool {
    let machine = SimMachine::builder().memory(MemoryModel::Phantom).build().unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    Pool::new(&device).unwrap()
}

fn arena(capacity: u64) -> Arena<Pool> {
    Arena::new(phantom(), Bytes::new(capacity), DEFAULT).unwrap()
}

/// Writes and looks at blocks in the order of a stream, late.
struct Hand<'a> {
    device: &'a SimDevice,
    stream: StreamHandle,
    wrong: Arc<AtomicU64>,
}

impl Hand<'_> {
    fn write(&self, block: ArenaBlock<'_>, tag: u8) {
        let span = Span::new(block.address(), block.size()).unwrap();
        let bytes = vec![tag; usize::try_from(block.size().get()).unwrap()];
        let kernel = Kernel::new(format!("write {tag}"))
            .writes(span)
            .body(move |memory| assert!(memory.write(span, &bytes)));
        // SAFETY: the arena keeps its chunks until the stream is done, by the pool's order.
        unsafe { self.device.launch(kernel, self.stream) }.unwrap();
    }

    fn check(&self, block: ArenaBlock<'_>, tag: u8) {
        let span = Span::new(block.address(), block.size()).unwrap();
        let wrong = Arc::clone(&self.wrong);
        let kernel = Kernel::new(format!("check {tag}")).reads(span).body(move |memory| {
            let bad = memory.read(span).unwrap().iter().filter(|&&byte| byte != tag).count();
            wrong.fetch_add(bad as u64, Ordering::Relaxed);
        });
        // SAFETY: as for writing.
        unsafe { self.device.launch(kernel, self.stream) }.unwrap();
    }
}

/// Blocks and inner scopes at random; every block is looked at when its scope ends.
fn nest(scope: &mut Scope<'_, Pool>, hand: &Hand<'_>, random: &mut Random, depth: u32) {
    let begun = scope.usage().used;
    let mut kept = Vec::new();
    for _ in 0..random.between(1, 6) {
        if depth > 0 && random.chance(1, 3) {
            let before = scope.usage().used;
            scope.scope(|inner| nest(inner, hand, random, depth - 1));
            assert_eq!(scope.usage().used, before, "an inner scope left something");
        } else {
            let (size, shift) = (random.between(1, 3000), random.between(0, 12));
            let alignment = Alignment::new(1 << shift).unwrap();
            let block = scope.allocate_aligned(Bytes::new(size), alignment).unwrap();
            assert!(block.address().is_aligned_to(alignment));
            let tag = u8::try_from(random.below(256)).unwrap();
            hand.write(block, tag);
            kept.push((block, tag));
        }
    }
    assert!(scope.usage().used >= begun);
    kept.into_iter().for_each(|(block, tag)| hand.check(block, tag));
}

#[test]
fn scopes_keep_what_is_theirs_and_leave_the_rest_as_it_was() {
    let (machine, device, pool) = open();
    let wrong = Arc::new(AtomicU64::new(0));
    let mut random = Random::new(4);
    let growth = BumpGrowth::Doubling { most: Bytes::mib(1) };
    let options = ArenaOptions::new(Bytes::new(8 << 10)).growth(growth);
    let streams = [DEFAULT, device.create_stream(Priority::Normal).unwrap()];
    let mut arenas = streams.map(|stream| options.build(pool.clone(), stream).unwrap());
    for _ in 0..60 {
        for (arena, stream) in arenas.iter_mut().zip(streams) {
            let hand = Hand { device: &device, stream, wrong: Arc::clone(&wrong) };
            arena.scope(|scope| nest(scope, &hand, &mut random, 4));
            assert_eq!(arena.usage().used, Bytes::ZERO);
        }
    }
    assert!(arenas.iter().all(|arena| arena.usage().chunks > 1), "no arena had to grow");
    drop(arenas);
    device.synchronize_device().unwrap();
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "bytes of blocks were overwritten");
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert_eq!(pool.statistics().live, Bytes::ZERO);
}

#[test]
fn nothing_but_growing_calls_the_allocator_or_the_device() {
    let (machine, _, pool) = open();
    let counted = Arc::new(Counted::new(pool));
    let mut arena = Arena::new(Arc::clone(&counted), Bytes::mib(1), DEFAULT).unwrap();
    let (calls, counts) = (machine.calls(), counted.counts());
    for _ in 0..1000 {
        let mark = arena.checkpoint();
        for _ in 0..10 {
            let _ = arena.allocate(Bytes::new(100)).unwrap();
        }
        arena.rewind(mark).unwrap();
        arena.scope(|scope| scope.allocate(Bytes::new(5000)).map(|block| block.size())).unwrap();
        arena.reset();
    }
    assert_eq!((machine.calls(), counted.counts()), (calls, counts));
    assert_eq!(counts.live_blocks, 1);
    arena.close().unwrap();
    assert_eq!(counted.counts().live_blocks, 0);
}

#[test]
fn a_full_arena_says_how_full_and_changes_nothing() {
    let arena = ArenaOptions::new(Bytes::new(1000)).alignment(Alignment::ONE);
    let arena = arena.build(phantom(), DEFAULT).unwrap();
    let _ = arena.allocate(Bytes::new(700)).unwrap();
    let before = arena.usage();
    let error = arena.allocate(Bytes::new(301)).unwrap_err();
    let Error::ArenaFull(full) = error else { panic!("{error}") };
    let figures = [full.requested, full.used, full.available, full.capacity];
    assert_eq!(figures, [301, 700, 300, 1000].map(Bytes::new));
    assert!(error.to_string().contains("reset or rewind it, or make it larger, or let it grow"));
    assert_eq!(arena.usage(), before);
    let _ = arena.allocate(Bytes::new(300)).unwrap();
    assert_eq!(arena.usage().available, Bytes::ZERO);
    for absurd in [u64::MAX, u64::MAX - 511] {
        assert!(matches!(arena.allocate(Bytes::new(absurd)), Err(Error::ArenaFull(_))));
    }
}

#[test]
fn the_first_chunk_is_one_piece_from_the_base() {
    let arena = arena(1 << 20);
    let base = arena.base();
    assert!(base.is_aligned_to(Alignment::BLOCK));
    let mut next = base;
    for _ in 0..2048 {
        let block = arena.allocate(Bytes::new(512)).unwrap();
        assert_eq!(block.address(), next);
        next = next.checked_add(Bytes::new(512)).unwrap();
    }
    assert_eq!(arena.chunks(), [Span::new(base, Bytes::mib(1)).unwrap()]);
    assert!(arena.allocate(Bytes::new(1)).is_err());
}

#[test]
fn growth_doubles_and_makes_do_with_less_where_that_is_all_there_is() {
    let limited = Arc::new(Limited::new(phantom(), Bytes::mib(10)));
    let growth = BumpGrowth::Doubling { most: Bytes::mib(32) };
    let arena = ArenaOptions::new(Bytes::mib(2)).growth(growth);
    let mut arena = arena.build(Arc::clone(&limited), DEFAULT).unwrap();
    let fill = |arena: &Arena<_>, mib| arena.allocate(Bytes::mib(mib)).map(|_| ());
    fill(&arena, 2).unwrap();
    fill(&arena, 1).unwrap();
    assert_eq!(limited.used(), Bytes::mib(4), "the second chunk doubles");
    fill(&arena, 3).unwrap();
    assert_eq!(limited.used(), Bytes::mib(8), "the third too");
    let before = arena.usage();
    // Eight more is not there, and two is.
    fill(&arena, 2).unwrap();
    assert_eq!((limited.used(), arena.usage().chunks), (Bytes::mib(10), 4));
    assert!(arena.usage().used > before.used);
    let before = arena.usage();
    let error = fill(&arena, 2).unwrap_err();
    let Error::OutOfMemory(shortage) = error else { panic!("{error}") };
    assert_eq!((shortage.requested, shortage.limit), (Bytes::mib(2), Bytes::mib(10)));
    assert_eq!(arena.usage(), before);
    // Past the bound the allocator is not even asked.
    assert!(matches!(fill(&arena, 23), Err(Error::ArenaFull(_))));
    // Chunks stay over a reset, and serve in the same order.
    arena.reset();
    for mib in [2, 1, 3, 2] {
        fill(&arena, mib).unwrap();
    }
    assert_eq!((limited.used(), arena.usage()), (Bytes::mib(10), before));
    drop(arena);
    assert_eq!(limited.used(), Bytes::ZERO);
}

#[test]
fn a_chunk_that_cannot_be_had_changes_nothing() {
    let failing = Arc::new(Failing::new(phantom(), FailWhen::Number(1)));
    let build = || ArenaOptions::new(Bytes::mib(1)).build(Arc::clone(&failing), DEFAULT);
    assert!(matches!(build(), Err(Error::OutOfMemory(_))));
    let growth = BumpGrowth::Doubling { most: Bytes::mib(4) };
    let arena = ArenaOptions::new(Bytes::mib(1)).growth(growth);
    let arena = arena.build(Arc::clone(&failing), DEFAULT).unwrap();
    failing.plan(FailWhen::Every(1));
    let block = arena.allocate(Bytes::new(700 << 10)).unwrap();
    let before = arena.usage();
    assert!(matches!(arena.allocate(Bytes::new(700 << 10)), Err(Error::OutOfMemory(_))));
    assert_eq!(failing.failures(), 2, "once as the growth asks, once as the request needs");
    assert_eq!(arena.usage(), before);
    assert_eq!(arena.resolve(block.token()).unwrap(), block);
    failing.plan(FailWhen::Never);
    let _ = arena.allocate(Bytes::new(700 << 10)).unwrap();
}

#[test]
fn a_rewind_is_exact_and_what_lies_behind_it_lapses() {
    let mut arena = arena(64 << 10);
    let first = arena.allocate(Bytes::new(1000)).unwrap().token();
    let outer = arena.checkpoint();
    let used = arena.usage().used;
    let second = arena.allocate(Bytes::new(2000)).unwrap().token();
    let inner = arena.checkpoint();
    let third = arena.allocate(Bytes::new(3000)).unwrap().token();

    arena.rewind(inner).unwrap();
    assert!(arena.resolve(second).is_ok());
    assert!(matches!(arena.resolve(third), Err(Error::ArenaLapsed(BumpStale::Lapsed { .. }))));
    arena.rewind(outer).unwrap();
    assert_eq!(arena.usage().used, used);
    // The same place again, and not the same block.
    let again = arena.allocate(Bytes::new(2000)).unwrap().token();
    assert_eq!((again.offset, again.size), (second.offset, second.size));
    assert!(arena.resolve(again).is_ok() && arena.resolve(first).is_ok());
    assert!(matches!(arena.resolve(second), Err(Error::ArenaLapsed(_))));
    // The inner checkpoint would cut the new block in two.
    let _ = arena.allocate(Bytes::new(5000)).unwrap();
    assert!(matches!(arena.rewind(inner), Err(Error::ArenaLapsed(_))));
    arena.rewind(outer).unwrap();

    arena.reset();
    assert_eq!(arena.usage().used, Bytes::ZERO);
    assert!(matches!(arena.resolve(first), Err(Error::ArenaLapsed(_))));
    assert!(matches!(arena.rewind(outer), Err(Error::ArenaLapsed(_))));
}

#[test]
fn tokens_and_checkpoints_of_elsewhere_are_refused() {
    let (mut one, two) = (arena(4096), arena(4096));
    let theirs = two.allocate(Bytes::new(100)).unwrap().token();
    let _ = one.allocate(Bytes::new(100)).unwrap();
    let wrong = Error::WrongArena { arena: one.id(), owner: two.id() };
    assert_eq!(one.resolve(theirs), Err(wrong.clone()));
    assert_eq!(one.rewind(two.checkpoint()), Err(wrong));
    let forged = ArenaToken { arena: one.id(), offset: 50, size: Bytes::new(51), ..theirs };
    let refused = one.resolve(forged).unwrap_err();
    assert!(matches!(refused, Error::ArenaLapsed(BumpStale::NotAllocated { .. })), "{refused}");
    let forged = ArenaToken { size: Bytes::MAX, ..forged };
    assert!(one.resolve(forged).is_err());
}

#[test]
fn room_for_values_is_aligned_and_counted() {
    #[derive(Clone, Copy)]
    #[repr(align(4096))]
    struct Wide {
        _values: [u8; 4096],
    }
    let arena = ArenaOptions::new(Bytes::mib(1)).alignment(Alignment::ONE);
    let arena = arena.build(phantom(), DEFAULT).unwrap();
    let bytes = arena.allocate_of::<u8>(3).unwrap();
    let floats = arena.allocate_of::<f64>(100).unwrap();
    assert_eq!((bytes.size(), floats.size()), (Bytes::new(3), Bytes::new(800)));
    assert_eq!(floats.address().get() - bytes.address().get(), 8, "aligned to 8, not more");
    let wide = arena.allocate_of::<Wide>(2).unwrap();
    assert!(wide.address().is_aligned_to(Alignment::HOST_PAGE));
    assert_eq!((wide.len(), wide.size(), wide.is_empty()), (2, Bytes::new(8192), false));
    let coarse = self::arena(4096);
    let [one, two] = [(); 2].map(|()| coarse.allocate_of::<u8>(3).unwrap().address().get());
    assert_eq!(two - one, 512, "the arena's alignment counts too");
    let none = arena.allocate_of::<()>(7).unwrap();
    assert_eq!((none.len(), none.address()), (7, Address::NULL));
    let before = arena.usage();
    let error = arena.allocate_of::<u64>(u64::MAX).unwrap_err();
    assert!(matches!(error, Error::Quantity(QuantityError::Overflow { .. })), "{error}");
    assert_eq!(arena.usage(), before);
}

#[test]
fn no_bytes_are_no_memory() {
    let mut empty = arena(0);
    assert_eq!((empty.base(), empty.chunks()), (Address::NULL, Vec::new()));
    assert_eq!(empty.allocate(Bytes::ZERO).unwrap().address(), Address::NULL);
    assert!(matches!(empty.allocate(Bytes::new(1)), Err(Error::ArenaFull(_))));
    let token = empty.allocate(Bytes::ZERO).unwrap().token();
    assert_eq!(empty.resolve(token).unwrap().address(), Address::NULL);
    empty.reset();
    assert!(empty.resolve(token).is_err(), "a reset makes even these lapse");

    let growth = BumpGrowth::Doubling { most: Bytes::mib(1) };
    let arena = ArenaOptions::new(Bytes::ZERO).growth(growth).build(phantom(), DEFAULT).unwrap();
    assert_eq!(arena.allocate(Bytes::new(100)).unwrap().address(), arena.base());
}

#[test]
fn a_panic_in_a_scope_leaves_the_arena_as_it_was() {
    let mut arena = arena(4096);
    let _ = arena.allocate(Bytes::new(512)).unwrap();
    let before = arena.usage().used;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        arena.scope(|scope| {
            let _ = scope.allocate(Bytes::new(512)).unwrap();
            scope.scope(|inner| {
                let _ = inner.allocate(Bytes::new(512)).unwrap();
                panic!("on purpose");
            });
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(arena.usage().used, before);
}

/// An allocator whose frees fail, so many times, and which notes on what stream they were made.
struct Stubborn {
    inner: Pool,
    refusals: Mutex<u64>,
    frees: Mutex<Vec<StreamHandle>>,
}

impl Stubborn {
    fn new(inner: Pool, refusals: u64) -> Arc<Self> {
        Arc::new(Self { inner, refusals: Mutex::new(refusals), frees: Mutex::default() })
    }
}

// SAFETY: for tests, which touch no memory that is not theirs.
unsafe impl Allocate for Stubborn {
    fn allocate_request(&self, request: Request) -> crate::Result<Block> {
        Allocate::allocate_request(&self.inner, request)
    }

    fn free(&self, address: Address, stream: StreamHandle) -> crate::Result<()> {
        self.frees.lock().unwrap().push(stream);
        let mut left = self.refusals.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            let reason = "on purpose".into();
            return Err(forebay_hal::Error::Transient { call: Call::Free, reason }.into());
        }
        self.inner.free(address, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        self.inner.block_at(address)
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.inner.device()
    }
}

#[test]
fn chunks_go_back_on_the_stream_and_one_fault_loses_none() {
    let (_, device, pool) = open();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let growth = BumpGrowth::Doubling { most: Bytes::mib(8) };
    let options = ArenaOptions::new(Bytes::mib(1)).growth(growth);
    let filled = |stubborn: &Arc<Stubborn>| {
        let arena = options.build(Arc::clone(stubborn), stream).unwrap();
        let _ = arena.allocate(Bytes::mib(1)).unwrap();
        let _ = arena.allocate(Bytes::mib(1)).unwrap();
        assert_eq!(arena.usage().chunks, 2);
        arena
    };

    let stubborn = Stubborn::new(pool.clone(), 1);
    drop(filled(&stubborn));
    assert_eq!(*stubborn.frees.lock().unwrap(), [stream; 3], "one of them twice");
    assert_eq!(pool.statistics().live, Bytes::ZERO);

    let stubborn = Stubborn::new(pool.clone(), 2);
    let error = filled(&stubborn).close().unwrap_err();
    let Error::ChunksNotFreed { chunks, size, error } = error else { panic!("{error}") };
    assert_eq!((chunks, size), (1, Bytes::mib(1)));
    assert!(matches!(*error, Error::Device(_)), "{error}");
    assert!(pool.statistics().live >= Bytes::mib(1));
}

#[test]
fn an_arena_may_go_to_another_thread() {
    let arena = arena(4096);
    let used = std::thread::spawn(move || {
        let _ = arena.allocate(Bytes::new(512)).unwrap();
        arena.usage().used
    });
    assert_eq!(used.join().unwrap(), Bytes::new(512));
}
