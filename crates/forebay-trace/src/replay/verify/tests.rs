//! Verifying finds what it is for, and nothing where all is well.

use forebay_sim::{Fault, FaultKind, MemoryModel, SimMachine, When};

use super::*;
use crate::{DriverUse, Model, PassReport, PoolPlayer, ReplayOptions, Trace, TraceBuilder, replay};

fn machine(seed: u64) -> (SimMachine, Arc<dyn Device>) {
    let machine = SimMachine::builder().seed(seed).build().unwrap();
    let device = machine.device(0).unwrap();
    (machine, device)
}

fn verified(trace: &Trace, device: &Arc<dyn Device>, player: &mut dyn Player) -> Vec<PassReport> {
    let mut verifier = Verifier::new(Arc::clone(device)).unwrap();
    replay(trace, player, ReplayOptions::new().verify(&mut verifier)).unwrap()
}

/// So many blocks suffice to have all kinds of reuse; the checker notes every row of every copy.
const BLOCKS: u64 = 100;

/// Blocks of many sizes on three streams, some freed on another than they came from.
fn busy(seed: u64) -> Trace {
    let mut random = forebay_core::Random::new(seed);
    let mut builder = TraceBuilder::new("busy");
    let mut live: Vec<(u64, u64)> = Vec::new();
    for key in 0..BLOCKS {
        let size = match random.below(4) {
            0 => random.below(2000),
            1 => random.between(60_000, 70_000),
            2 => random.between(200_000, 300_000),
            _ => random.below(20_000),
        };
        let stream = random.below(3);
        builder.allocate(key, Bytes::new(size), stream).unwrap();
        live.push((key, stream));
        while live.len() > 12 {
            let index = random.index(live.len()).unwrap();
            let (key, stream) = live.swap_remove(index);
            let on = if random.chance(1, 4) { random.below(3) } else { stream };
            builder.free(key, on).unwrap();
        }
    }
    builder.finish()
}

#[test]
fn the_pool_keeps_what_is_written_on_late_streams() {
    for seed in 0..8 {
        let (machine, device) = machine(seed);
        let mut player = PoolPlayer::new(Arc::clone(&device)).unwrap();
        for report in verified(&busy(seed), &device, &mut player) {
            let verdict = report.verified.unwrap();
            assert_eq!((verdict.mismatches, verdict.blocks), (0, BLOCKS), "{:?}", verdict.first);
        }
        assert_eq!(machine.findings(), [], "nor was anything used out of order");
    }
}

#[test]
fn the_models_keep_what_is_written() {
    for &model in Model::ALL {
        let (machine, device) = machine(1);
        let mut player = model.player(Arc::clone(&device)).unwrap();
        for report in verified(&busy(5), &device, &mut *player) {
            let verdict = report.verified.unwrap();
            assert_eq!((verdict.mismatches, verdict.blocks), (0, BLOCKS), "{model}: {verdict:?}");
        }
        assert_eq!(machine.findings(), [], "{model}");
    }
}

#[test]
fn the_host_can_be_verified_too() {
    let device: Arc<dyn Device> = forebay_host::HostDevice::open().unwrap();
    let mut player = PoolPlayer::new(Arc::clone(&device)).unwrap();
    let reports = verified(&busy(2), &device, &mut player);
    assert!(reports.iter().all(|report| report.verified.as_ref().unwrap().mismatches == 0));
}

#[test]
fn memory_that_keeps_nothing_is_refused() {
    let machine = SimMachine::builder().memory(MemoryModel::Phantom).build().unwrap();
    let refused = Verifier::new(machine.device(0).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("no memory behind them"), "{refused}");
}

/// Hands out one piece of memory: each block begins `step` after the one before it, whatever their
/// sizes, and from the start again when the piece ends.
struct Careless {
    device: Arc<dyn Device>,
    piece: Address,
    step: u64,
    live: HashMap<BlockIndex, Address>,
}

const PIECE: u64 = 8 << 20;

impl Careless {
    fn new(device: &Arc<dyn Device>, step: u64) -> Self {
        let piece = device.allocate(Bytes::new(PIECE), forebay_core::Alignment::BLOCK).unwrap();
        Self { device: Arc::clone(device), piece, step, live: HashMap::new() }
    }
}

impl Drop for Careless {
    fn drop(&mut self) {
        self.device.synchronize_device().unwrap();
        // SAFETY: the device was waited for.
        unsafe { self.device.free(self.piece) }.unwrap();
    }
}

impl Player for Careless {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        _: StreamIndex,
    ) -> Result<(), ReplayError> {
        let offset = u64::from(block.0) * self.step % PIECE;
        assert!(offset + size.get() <= PIECE);
        self.live.insert(block, self.piece.checked_add(Bytes::new(offset)).unwrap());
        Ok(())
    }

    fn free(&mut self, block: BlockIndex, _: StreamIndex) -> Result<(), ReplayError> {
        self.live.remove(&block).unwrap();
        Ok(())
    }

    fn reserved(&self) -> Bytes {
        Bytes::new(PIECE)
    }

    fn driver(&self) -> DriverUse {
        DriverUse::default()
    }

    fn placed(&mut self) -> Option<&mut dyn AddressedPlayer> {
        Some(self)
    }
}

// SAFETY: that blocks lie in the piece is checked when they are allocated, and the piece stays. That
// each has its bytes to itself is what this player breaks; no reference to them is ever made.
unsafe impl AddressedPlayer for Careless {
    fn address(&self, block: BlockIndex) -> Option<Address> {
        self.live.get(&block).copied()
    }

    fn stream(&mut self, _: StreamIndex) -> Result<StreamHandle, ReplayError> {
        Ok(StreamHandle::DEFAULT)
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::Stream
    }
}

fn two(size: u64) -> Trace {
    let mut builder = TraceBuilder::new("two blocks");
    builder.allocate(0, Bytes::new(size), 0).unwrap();
    builder.allocate(1, Bytes::new(size), 0).unwrap();
    builder.free(0, 0).unwrap();
    builder.free(1, 0).unwrap();
    builder.finish()
}

#[test]
fn blocks_that_overlap_are_caught() {
    let (_machine, device) = machine(0);
    // By one byte, by half, wholly; blocks that are written whole, and blocks that are sampled.
    for (size, step, offset) in [
        (1000, 999, 999),
        (1000, 500, 500),
        (4096, 0, 0),
        (1 << 20, 0, 0),
        (1 << 20, 1 << 19, 1 << 19),
        (1 << 20, (1 << 20) - 64, (1 << 20) - 64),
    ] {
        let mut player = Careless::new(&device, step);
        let reports = verified(&two(size), &device, &mut player);
        let verdict = reports[0].verified.as_ref().unwrap();
        let first = verdict.first.as_ref().unwrap();
        assert_eq!((verdict.blocks, verdict.mismatches), (2, 1), "{size} {step}");
        assert_eq!((first.block, first.size.get()), (BlockIndex(0), size));
        // A byte in 256 is right by chance, so the first that is wrong may be a little later.
        let late = first.offset.get().checked_sub(offset).unwrap();
        assert!(late < 4, "{size} {step}: {first}");
        assert_ne!(first.expected, first.found);
        let said = first.to_string();
        for part in ["block 0", &format!("{} B", size), &format!("{:#04x}", first.found)] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
    let mut careful = Careless::new(&device, 1 << 20);
    let reports = verified(&two(1 << 20), &device, &mut careful);
    assert_eq!(reports[0].verified.as_ref().unwrap().mismatches, 0);
}

/// Blocks of two streams at one place, one after the other, without a wait in between: right on a
/// device that happens to run in order, wrong by the rules. Some seed runs it the other way round.
#[test]
fn a_forgotten_wait_is_caught_on_late_streams() {
    struct Hasty(Careless, Vec<forebay_hal::Stream>);
    impl Player for Hasty {
        fn allocate(
            &mut self,
            block: BlockIndex,
            size: Bytes,
            stream: StreamIndex,
        ) -> Result<(), ReplayError> {
            self.0.allocate(block, size, stream)
        }
        fn free(&mut self, block: BlockIndex, stream: StreamIndex) -> Result<(), ReplayError> {
            self.0.free(block, stream)
        }
        fn reserved(&self) -> Bytes {
            self.0.reserved()
        }
        fn driver(&self) -> DriverUse {
            self.0.driver()
        }
        fn placed(&mut self) -> Option<&mut dyn AddressedPlayer> {
            Some(self)
        }
    }
    // SAFETY: as for the careless one; the order of streams is what this one breaks.
    unsafe impl AddressedPlayer for Hasty {
        fn address(&self, block: BlockIndex) -> Option<Address> {
            self.0.address(block)
        }
        fn stream(&mut self, stream: StreamIndex) -> Result<StreamHandle, ReplayError> {
            Ok(self.1[usize::from(stream.0)].handle())
        }
        fn free_order(&self) -> FreeOrder {
            FreeOrder::Stream
        }
    }
    let mut builder = TraceBuilder::new("in turn");
    for key in 0..16 {
        builder.allocate(key, Bytes::new(4096), key % 2).unwrap();
        builder.free(key, key % 2).unwrap();
    }
    let trace = builder.finish();
    let mut caught = 0;
    for seed in 0..16 {
        let (_machine, device) = machine(seed);
        let stream = || forebay_hal::Stream::new(&device, forebay_hal::Priority::Normal).unwrap();
        let mut player = Hasty(Careless::new(&device, 0), vec![stream(), stream()]);
        let reports = verified(&trace, &device, &mut player);
        caught += u32::from(reports[0].verified.as_ref().unwrap().mismatches > 0);
    }
    assert!(caught > 8, "caught under {caught} seeds of 16");
}

#[test]
fn a_device_that_is_lost_ends_the_replay_and_nothing_else() {
    let (machine, device) = machine(3);
    let mut player = PoolPlayer::new(Arc::clone(&device)).unwrap();
    let mut verifier = Verifier::new(Arc::clone(&device)).unwrap();
    machine.plan(Fault::new(When::Kind(Call::Copy, 40), FaultKind::Lost));
    let options = ReplayOptions::new().verify(&mut verifier);
    let error = replay(&busy(1), &mut player, options).unwrap_err();
    assert!(matches!(error, ReplayError::Device(Error::Lost { .. })), "{error}");
}
