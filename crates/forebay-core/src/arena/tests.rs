//! The bump against a model that knows every byte and forgets nothing.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Take { size: u64, shift: u32 },
    Mark,
    Rewind(prop::sample::Index),
    Reset,
    Chunk { gap: u64, size: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u64..70, 0_u32..6).prop_map(|(size, shift)| Op::Take { size, shift }),
        3 => Just(Op::Mark),
        3 => any::<prop::sample::Index>().prop_map(Op::Rewind),
        1 => Just(Op::Reset),
        2 => (1_u64..50, 0_u64..120).prop_map(|(gap, size)| Op::Chunk { gap, size }),
    ]
}

/// Something handed out, and whether it is still there.
struct Given<T> {
    what: T,
    end: u64,
    alive: bool,
}

/// Every byte in order, by chunk and address; where a block goes is tried out byte by byte.
#[derive(Default)]
struct Model {
    bytes: Vec<(usize, u64)>,
    chunks: usize,
    position: u64,
    high_water: u64,
    blocks: Vec<Given<(BumpBlock, Bytes)>>,
    marks: Vec<Given<BumpMark>>,
}

impl Model {
    /// Where a block would begin.
    fn find(&self, size: u64, align: u64) -> Option<u64> {
        (self.position..self.bytes.len() as u64).find(|&start| {
            let begin = usize::try_from(start).unwrap();
            let Some(bytes) = self.bytes.get(begin..begin + usize::try_from(size).unwrap()) else {
                return false;
            };
            bytes[0].1 % align == 0 && bytes.iter().all(|byte| byte.0 == bytes[0].0)
        })
    }

    fn back_to(&mut self, position: u64, all: bool) {
        self.position = position;
        self.blocks.iter_mut().for_each(|block| block.alive &= !all && block.end <= position);
        self.marks.iter_mut().for_each(|mark| mark.alive &= !all && mark.end <= position);
    }
}

/// Where the next chunk begins, so that some touch and some do not, at odd addresses.
struct MemoryBelow {
    next: u64,
}

impl MemoryBelow {
    fn chunk(&mut self, gap: u64, size: u64) -> Span {
        let start = Address::new(self.next + gap);
        self.next = start.get() + size;
        Span::new(start, Bytes::new(size)).unwrap()
    }
}

fn run(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut bump = Bump::new(BumpGrowth::Fixed);
    let mut model = Model::default();
    let mut memory = MemoryBelow { next: 4096 };
    for op in ops {
        let before = bump.usage();
        match op {
            Op::Take { size: 0, shift } => {
                let place = bump.take(Bytes::ZERO, Alignment::new(1 << shift).unwrap()).unwrap();
                prop_assert!(place.address.is_null());
                prop_assert_eq!(bump.usage(), before);
            }
            Op::Take { size, shift } => {
                let taken = bump.take(Bytes::new(size), Alignment::new(1 << shift).unwrap());
                match model.find(size, 1 << shift) {
                    Some(start) => {
                        let place = taken.unwrap();
                        let address = model.bytes[usize::try_from(start).unwrap()].1;
                        prop_assert_eq!((place.offset, place.address.get()), (start, address));
                        model.position = start + size;
                        model.high_water = model.high_water.max(model.position);
                        let what = (place, Bytes::new(size));
                        model.blocks.push(Given { what, end: model.position, alive: true });
                    }
                    None => {
                        let full = taken.unwrap_err();
                        prop_assert_eq!(full.requested.get(), size);
                        prop_assert_eq!(full.available, before.available);
                        prop_assert!(full.largest <= full.available);
                        // The padding is what may make a piece that is long enough too short.
                        prop_assert!(full.largest.get() < size + (1 << shift) - 1 || size == 0);
                        prop_assert_eq!(bump.usage(), before, "a refusal changed something");
                    }
                }
            }
            Op::Mark => {
                let (what, end) = (bump.mark(), model.position);
                model.marks.push(Given { what, end, alive: true });
            }
            Op::Rewind(_) if model.marks.is_empty() => {}
            Op::Rewind(index) => {
                let mark = &model.marks[index.index(model.marks.len())];
                let (what, end, alive) = (mark.what, mark.end, mark.alive);
                prop_assert_eq!(bump.rewind(what).is_ok(), alive, "a mark at {}", end);
                if alive {
                    model.back_to(end, false);
                } else {
                    prop_assert_eq!(bump.usage(), before);
                }
            }
            Op::Reset => {
                bump.reset();
                model.back_to(0, true);
            }
            Op::Chunk { gap, size } => {
                let span = memory.chunk(gap, size);
                bump.add_chunk(span).unwrap();
                if size > 0 {
                    let (chunk, start) = (model.chunks, span.start().get());
                    model.bytes.extend((0..size).map(|byte| (chunk, start + byte)));
                    model.chunks += 1;
                }
            }
        }
        let usage = bump.usage();
        prop_assert_eq!(usage.used.get(), model.position);
        prop_assert_eq!(usage.capacity.get(), model.bytes.len() as u64);
        prop_assert_eq!(usage.used.checked_add(usage.available), Some(usage.capacity));
        prop_assert_eq!(usage.high_water.get(), model.high_water);
        prop_assert_eq!(usage.chunks, model.chunks);
        for Given { what: (place, size), alive, .. } in &model.blocks {
            let resolved = bump.resolve(place.offset, *size, place.generation);
            prop_assert_eq!(resolved.ok(), alive.then_some(place.address));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 2000 }))]

    #[test]
    fn places_marks_and_generations_are_those_of_the_model(
        ops in prop::collection::vec(op(), 0..80),
    ) {
        run(ops)?;
    }

    #[test]
    fn no_figures_bring_it_down(
        base: u64, chunk: u64, size: u64, shift in 0_u32..64, offset: u64, generation: u64,
    ) {
        let growth = BumpGrowth::Doubling { most: Bytes::new(offset) };
        let mut bump = Bump::new(growth);
        if let Ok(span) = Span::new(Address::new(base), Bytes::new(chunk)) {
            bump.add_chunk(span).unwrap();
            let _ = bump.add_chunk(span);
        }
        let alignment = Alignment::new(1 << shift).unwrap();
        let size = Bytes::new(size);
        let (taken, grow) = (bump.take(size, alignment), bump.next_chunk(size, alignment));
        if let Ok(grow) = grow {
            prop_assert!(size <= grow);
            let total = grow.checked_add(bump.usage().capacity).unwrap();
            prop_assert!(total.get() <= offset);
        }
        // Whatever is said to be there, only what was handed out is found.
        if let Ok(address) = bump.resolve(offset, size, generation)
            && !address.is_null()
        {
            prop_assert!(taken.is_ok() && bump.usage().used.get() >= offset + size.get());
        }
    }
}

fn one_chunk(growth: BumpGrowth, size: u64) -> Bump {
    let mut bump = Bump::new(growth);
    bump.add_chunk(Span::new(Address::new(1 << 20), Bytes::new(size)).unwrap()).unwrap();
    bump
}

#[test]
fn growth_doubles_up_to_its_bound_and_never_past_it() {
    let mut bump = one_chunk(BumpGrowth::Doubling { most: Bytes::new(10_000) }, 1000);
    let mut sizes = Vec::new();
    let mut next = 1 << 30;
    while let Ok(grow) = bump.next_chunk(Bytes::new(10), Alignment::ONE) {
        sizes.push(grow.get());
        bump.add_chunk(Span::new(Address::new(next), grow).unwrap()).unwrap();
        next += 1 << 20;
    }
    assert_eq!(sizes, [1000, 2000, 4000, 2000]);
    assert_eq!(bump.usage().capacity, Bytes::new(10_000));

    let bump = one_chunk(BumpGrowth::Doubling { most: Bytes::new(10_000) }, 1000);
    let grow = bump.next_chunk(Bytes::new(7000), Alignment::ONE).unwrap();
    assert_eq!(grow.get(), 7000);
    assert!(bump.next_chunk(Bytes::new(9001), Alignment::ONE).is_err());
}

#[test]
fn a_full_bump_gives_its_figures() {
    let mut bump = one_chunk(BumpGrowth::Fixed, 1000);
    bump.take(Bytes::new(600), Alignment::ONE).unwrap();
    let full = bump.take(Bytes::new(500), Alignment::FOUR).unwrap_err();
    assert_eq!(bump.next_chunk(Bytes::new(500), Alignment::FOUR), Err(full));
    let text = full.to_string();
    for figure in
        ["500 B", "4 B", "600 B used", "400 B available", "of 1000 B", "not grow", "let it grow"]
    {
        assert!(text.contains(figure), "{figure} is missing in: {text}");
    }
}

/// A long run that keeps a little of every step does not keep a note for what was overtaken.
#[test]
fn notes_of_the_past_are_let_go() {
    let mut bump = one_chunk(BumpGrowth::Fixed, 1 << 20);
    let start = bump.mark();
    for _ in 0..1000 {
        bump.take(Bytes::new(16), Alignment::ONE).unwrap();
        let mark = bump.mark();
        for _ in 0..10 {
            bump.take(Bytes::new(64), Alignment::ONE).unwrap();
            bump.rewind(mark).unwrap();
        }
    }
    assert_eq!(bump.floors.len(), 1000);
    bump.rewind(start).unwrap();
    assert_eq!(bump.floors.len(), 1);
    bump.reset();
    assert_eq!(bump.floors.len(), 0);
}

#[test]
fn what_was_never_handed_out_is_not_found() {
    let mut bump = one_chunk(BumpGrowth::Fixed, 100);
    bump.add_chunk(Span::new(Address::new(1 << 21), Bytes::new(100)).unwrap()).unwrap();
    bump.take(Bytes::new(60), Alignment::ONE).unwrap();
    let second = bump.take(Bytes::new(80), Alignment::ONE).unwrap();
    assert_eq!((second.offset, second.address), (100, Address::new(1 << 21)));
    for (offset, size) in [(60, 80), (170, 20), (180, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let refused = bump.resolve(offset, Bytes::new(size), 0);
        let size = Bytes::new(size);
        assert_eq!(refused, Err(BumpStale::NotAllocated { offset, size, used: Bytes::new(180) }));
    }
    let refused = bump.resolve(100, Bytes::new(80), 1);
    assert_eq!(refused, Err(BumpStale::Lapsed { generation: 1, current: 0 }));
    assert_eq!(bump.resolve(100, Bytes::new(80), 0), Ok(second.address));
    // A mark of another bump that got further.
    let mut other = one_chunk(BumpGrowth::Fixed, 100);
    assert!(matches!(other.rewind(bump.mark()), Err(BumpStale::NotAllocated { offset: 180, .. })));
}
