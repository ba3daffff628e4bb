//! The rules of each model, one by one, and all of them under memory that runs out.

use forebay_core::{Bytes, KIB, MIB};
use forebay_sim::{MemoryModel, SimMachine};
use proptest::prelude::*;

use super::*;
use crate::{ReplayOptions, StreamIndex, TraceBuilder, replay};

const S0: StreamIndex = StreamIndex(0);
const S1: StreamIndex = StreamIndex(1);

/// A player with the machine it is on, and names for blocks given by hand.
struct Table {
    machine: SimMachine,
    player: Box<dyn Player>,
}

impl Table {
    fn of(model: Model, capacity: Bytes) -> Self {
        let machine = SimMachine::builder()
            .memory(MemoryModel::Phantom)
            .capacity(capacity)
            .checked(false)
            .build()
            .unwrap();
        let player = model.player(machine.device(0).unwrap()).unwrap();
        Self { machine, player }
    }

    fn large(model: Model) -> Self {
        Self::of(model, Bytes::gib(64))
    }

    fn get(&mut self, block: u32, size: u64, stream: StreamIndex) -> u64 {
        self.player.allocate(BlockIndex(block), Bytes::new(size), stream).unwrap();
        self.reserved()
    }

    fn give(&mut self, block: u32) {
        self.player.free(BlockIndex(block), S0).unwrap();
    }

    /// In MiB.
    fn reserved(&self) -> u64 {
        assert_eq!(self.player.reserved(), self.machine.census().held, "the device's own count");
        assert_eq!(self.player.reserved().get() % MIB, 0);
        self.player.reserved().get() / MIB
    }
}

#[test]
fn torch_cuts_small_blocks_from_2_mib_and_middling_ones_from_20() {
    let mut table = Table::large(Model::Torch);
    assert_eq!(table.get(0, 1, S0), 2);
    assert_eq!(table.get(1, MIB, S0), 2, "the rest of the segment");
    assert_eq!(table.get(2, MIB, S0), 4, "512 B short");
    assert_eq!(table.get(3, MIB + 1, S0), 24);
    assert_eq!(table.get(4, 10 * MIB - 512, S0), 24);
    assert_eq!(table.get(5, 10 * MIB, S0), 34, "a segment of its own");
    assert_eq!(table.get(6, 20 * MIB + 1, S0), 56, "in units of 2 MiB");
}

#[test]
fn torch_leaves_up_to_1_mib_of_a_large_block_unused() {
    for (size, reserved) in [(5 * MIB, 40), (5 * MIB - 512, 20)] {
        let mut table = Table::large(Model::Torch);
        table.get(0, 6 * MIB, S0);
        table.get(1, 9 * MIB, S0);
        assert_eq!(table.get(2, 5 * MIB, S0), 20, "one segment, full");
        table.give(0);
        table.get(3, size, S0);
        table.give(1);
        // What was cut off behind block 3 has merged with what block 1 had; 1 MiB is not cut off.
        assert_eq!(table.get(4, 9 * MIB + 512, S0), reserved, "{size}");
    }
}

#[test]
fn torch_keeps_streams_and_pools_apart() {
    for model in [Model::Torch, Model::TorchExpandable] {
        let mut table = Table::large(model);
        table.get(0, 20 * MIB, S0);
        table.give(0);
        assert_eq!(table.get(1, 20 * MIB, S1), 40, "{model}: another stream's is not taken");
        assert_eq!(table.get(2, 512, S0), 42, "{model}: nor another pool's");
    }
}

#[test]
fn expandable_segments_grow_by_pages_and_use_the_hole_at_their_end() {
    let mut table = Table::large(Model::TorchExpandable);
    assert_eq!(table.get(0, 512, S0), 2);
    assert_eq!(table.get(1, 3 * MIB, S0), 22);
    assert_eq!(table.get(2, 30 * MIB, S0), 42, "17 MiB were left, one page more is enough");
    assert_eq!(table.player.driver().maps, 3);
    table.give(2);
    assert_eq!(table.get(3, 37 * MIB, S0), 42);
    table.give(1);
    table.give(3);
    assert_eq!(table.get(4, 60 * MIB, S0), 62, "everything merged, and grew");
}

#[test]
fn expandable_segments_spare_the_end_that_can_grow() {
    let mut table = Table::large(Model::TorchExpandable);
    // A hole of 6 MiB, a live block, and 5 MiB at the end of the range.
    table.get(0, 6 * MIB, S0);
    table.get(1, 9 * MIB, S0);
    table.give(0);
    assert_eq!(table.get(2, 5 * MIB, S0), 20, "fits at the end exactly, but goes to the hole");
    assert_eq!(table.get(3, 25 * MIB, S0), 40, "so the end is whole");
}

#[test]
fn pow2_never_shares_between_classes() {
    let mut table = Table::large(Model::PowersOfTwo);
    assert_eq!(table.get(0, 5 * MIB, S0), 8);
    table.give(0);
    assert_eq!(table.get(1, 3 * MIB, S0), 12);
    assert_eq!(table.get(2, 8 * MIB, S1), 12, "streams it does not know");
    assert_eq!(table.get(3, (2 << 30) + 1, S0), 12 + 2048 + 2, "too large for any class");
    table.give(3);
    assert_eq!(table.reserved(), 12);
}

#[test]
fn direct_gives_everything_back() {
    let mut table = Table::large(Model::Direct);
    assert_eq!(table.get(0, 600 * KIB, S0), 2);
    assert_eq!(table.get(1, 600 * KIB, S0), 2);
    assert_eq!(table.get(2, 3 * MIB, S0), 6);
    assert_eq!(table.get(3, 1100 * KIB, S0), 8);
    assert_eq!(table.get(4, 940 * KIB, S0), 8, "below 2 MiB everything shares");
    (0..5).for_each(|block| table.give(block));
    assert_eq!(table.reserved(), 0);
    assert_eq!(table.player.driver().calls, 10);
}

#[test]
fn what_is_cached_goes_back_before_memory_runs_out() {
    for (model, size, reserved) in [
        (Model::Torch, 24, 20 + 24),
        (Model::TorchExpandable, 24, 20 + 20),
        (Model::PowersOfTwo, 16, 2 + 16),
    ] {
        let mut table = Table::of(model, Bytes::mib(48));
        table.get(0, 20 * MIB, S0);
        table.give(0);
        table.get(1, MIB + 512, S1);
        assert_eq!(table.get(2, size * MIB, S1), reserved, "{model}: what block 0 had went back");
        let refused = table.player.allocate(BlockIndex(3), Bytes::mib(40), S0).unwrap_err();
        let ReplayError::OutOfMemory { requested, capacity, .. } = refused else {
            panic!("{model}: {refused}")
        };
        assert_eq!((requested, capacity), (Bytes::mib(40), Bytes::mib(48)));
    }
}

#[test]
fn expandable_segments_give_back_whole_pages_alone_and_take_them_again() {
    let mut table = Table::of(Model::TorchExpandable, Bytes::mib(80));
    table.get(0, 70 * MIB, S0);
    table.give(0);
    table.get(1, 30 * MIB, S0);
    // 80 MiB are backed, 50 of them free: of those the last two pages can go, 10 MiB cannot.
    assert_eq!(table.reserved(), 80);
    assert_eq!(table.get(2, 40 * MIB, S1), 80);
    assert_eq!(table.get(3, 10 * MIB, S0), 80, "the half page that stayed");
    table.give(2);
    assert_eq!(table.get(4, 40 * MIB, S0), 80, "and back to the first stream");
}

#[test]
fn a_size_beyond_all_memory_is_an_answer() {
    for &model in Model::ALL {
        let mut table = Table::large(model);
        let refused = table.player.allocate(BlockIndex(0), Bytes::MAX, S0).unwrap_err();
        let known = matches!(refused, ReplayError::OutOfMemory { .. } | ReplayError::Device(_));
        assert!(known, "{model}: {refused}");
        assert_eq!(table.get(1, MIB, S0), 2, "{model}: and goes on");
        let lost = table.player.free(BlockIndex(7), S0).unwrap_err();
        assert!(matches!(lost, ReplayError::Inconsistent { .. }), "{model}: {lost}");
    }
}

#[test]
fn names_read_back_and_others_are_told_what_is_allowed() {
    for &model in Model::ALL {
        assert_eq!(model.name().parse(), Ok(model));
    }
    let said = "tcmalloc".parse::<Model>().unwrap_err().to_string();
    assert!(said.contains("\"tcmalloc\"") && said.contains("torch-expandable"), "{said}");
}

#[test]
fn models_run_on_the_host_as_well() {
    let mut builder = TraceBuilder::new("small");
    for key in 0..40 {
        builder.allocate(key, Bytes::new(1 + key * 100 * KIB), key % 3).unwrap();
        if key % 2 == 1 {
            builder.free(key - 1, 0).unwrap();
        }
    }
    let trace = builder.finish();
    for &model in Model::ALL {
        let device = forebay_host::HostDevice::open().unwrap();
        let mut player = model.player(device).unwrap();
        let reports = replay(&trace, &mut *player, ReplayOptions::new()).unwrap();
        assert!(reports.iter().all(|pass| pass.ratio() >= 1.0 && pass.out_of_memory == 0));
        assert!(reports[0].driver.calls > 0, "{model}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, the player's count is the device's, live blocks are backed, and when all
    /// is freed and everything cached is forced out, nothing is left.
    #[test]
    fn no_run_makes_a_model_lose_count(
        steps in prop::collection::vec((0_u8..6, 0_u64..24, 0_u16..3, any::<prop::sample::Index>()), 1..200),
        capacity in 40_u64..200,
    ) {
        for &model in Model::ALL {
            let mut table = Table::of(model, Bytes::mib(capacity));
            let mut live: Vec<(u32, u64)> = Vec::new();
            for (number, &(op, size, stream, pick)) in steps.iter().enumerate() {
                let block = u32::try_from(number).unwrap();
                if op < 4 {
                    // From bytes to tens of MiB.
                    let size = (size + 1) << (op * 7);
                    let got = table.player.allocate(
                        BlockIndex(block), Bytes::new(size), StreamIndex(stream),
                    );
                    match got {
                        Ok(()) => live.push((block, size)),
                        Err(error) => {
                            let memory = matches!(error, ReplayError::OutOfMemory { .. });
                            prop_assert!(memory, "{model}: {error}");
                        }
                    }
                } else if !live.is_empty() {
                    let (block, _) = live.swap_remove(pick.index(live.len()));
                    table.give(block);
                }
                let asked: u64 = live.iter().map(|&(_, size)| size).sum();
                prop_assert_eq!(table.player.reserved(), table.machine.census().held);
                prop_assert!(table.player.reserved().get() >= asked);
                prop_assert!(table.player.reserved() <= Bytes::mib(capacity));
            }
            for (block, _) in live {
                table.give(block);
            }
            // Nothing holds it back now: all of the device can be had, but for a page that does
            // not divide it.
            let all = Bytes::new(capacity / 20 * 20 * MIB / 2);
            let got = table.player.allocate(BlockIndex(u32::MAX), all, StreamIndex(9));
            prop_assert!(got.is_ok(), "{model}: {got:?}");
        }
    }
}
