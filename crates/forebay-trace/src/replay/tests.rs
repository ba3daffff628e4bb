//! What a replay does with a player, seen by a player that writes everything down.

use super::*;
use crate::{StreamIndex, TraceBuilder};

/// Takes what it is asked for, up to a limit, and notes it.
#[derive(Default)]
struct Notebook {
    notes: Vec<String>,
    live: Vec<(BlockIndex, Bytes)>,
    limit: u64,
    fail: bool,
    driver: DriverUse,
}

impl Player for Notebook {
    fn allocate(
        &mut self,
        block: BlockIndex,
        size: Bytes,
        stream: StreamIndex,
    ) -> Result<(), ReplayError> {
        if self.fail {
            return Err(ReplayError::Inconsistent { block, what: "is not wanted" });
        }
        self.driver.calls += 1;
        if self.reserved().get() + size.get() > self.limit {
            let (reserved, capacity) = (self.reserved(), Bytes::new(self.limit));
            return Err(ReplayError::OutOfMemory { requested: size, reserved, capacity });
        }
        self.notes.push(format!("a{}:{} {stream}", block.0, size.get()));
        self.live.push((block, size));
        Ok(())
    }

    fn free(&mut self, block: BlockIndex, stream: StreamIndex) -> Result<(), ReplayError> {
        let before = self.live.len();
        self.live.retain(|(live, _)| *live != block);
        assert_eq!(self.live.len() + 1, before, "{block} was not live");
        self.notes.push(format!("f{} {stream}", block.0));
        Ok(())
    }

    fn reserved(&self) -> Bytes {
        Bytes::new(self.live.iter().map(|(_, size)| size.get()).sum())
    }

    fn driver(&self) -> DriverUse {
        self.driver
    }

    fn end_pass(&mut self) -> Result<(), ReplayError> {
        assert!(self.live.is_empty(), "a pass ends with everything freed");
        self.notes.push("end".to_owned());
        Ok(())
    }
}

fn trace() -> Trace {
    let mut builder = TraceBuilder::new("three blocks");
    builder.allocate(5, Bytes::new(100), 70).unwrap();
    builder.allocate(6, Bytes::new(30), 80).unwrap();
    builder.free(5, 80).unwrap();
    builder.allocate(7, Bytes::new(60), 70).unwrap();
    builder.finish()
}

#[test]
fn an_observer_sees_the_moment_after_every_event() {
    let mut builder = TraceBuilder::new("observed");
    builder.allocate(0, Bytes::new(60), 0).unwrap();
    builder.allocate(1, Bytes::new(50), 0).unwrap();
    builder.free(1, 0).unwrap();
    builder.free(0, 0).unwrap();
    let trace = builder.finish();
    let mut seen = Vec::new();
    let mut observe = |moment: Moment<'_>| {
        let (requested, reserved) = (moment.requested.get(), moment.player.reserved().get());
        seen.push((moment.pass, moment.index, requested, reserved, moment.is_refused));
    };
    let mut player = Notebook { limit: 100, ..Notebook::default() };
    let options = ReplayOptions::new().passes(2).observe(&mut observe);
    replay(&trace, &mut player, options).unwrap();
    let pass = |pass| {
        [(60, 60, false), (110, 60, true), (60, 60, false), (0, 0, false)]
            .into_iter()
            .enumerate()
            .map(move |(index, (requested, held, refused))| (pass, index, requested, held, refused))
    };
    assert_eq!(seen, pass(1).chain(pass(2)).collect::<Vec<_>>());
}

#[test]
fn every_pass_plays_all_and_frees_the_rest_on_its_own_stream() {
    let mut player = Notebook { limit: 1000, ..Notebook::default() };
    let reports = replay(&trace(), &mut player, ReplayOptions::new().passes(2)).unwrap();
    let pass = [
        "a0:100 stream 0",
        "a1:30 stream 1",
        "f0 stream 1",
        "a2:60 stream 0",
        "f1 stream 1",
        "f2 stream 0",
        "end",
    ];
    assert_eq!(player.notes, [pass, pass].concat());
    for (number, report) in reports.iter().enumerate() {
        assert_eq!(report.pass as usize, number + 1);
        assert_eq!(report.operations, 4, "freeing the rest is not played");
        assert_eq!(report.peak_requested, Bytes::new(130));
        assert_eq!(report.peak_reserved, Bytes::new(130));
        assert_eq!(report.ratio(), 1.0);
        assert_eq!(report.driver.calls, 3, "of this pass alone");
        assert_eq!(report.out_of_memory, 0);
    }
}

#[test]
fn what_was_not_got_is_counted_and_not_freed() {
    let mut player = Notebook { limit: 95, ..Notebook::default() };
    let reports = replay(&trace(), &mut player, ReplayOptions::new().passes(1)).unwrap();
    assert_eq!(
        player.notes,
        ["a1:30 stream 1", "a2:60 stream 0", "f1 stream 1", "f2 stream 0", "end"]
    );
    assert_eq!((reports[0].out_of_memory, reports[0].operations), (1, 3));
    let first = reports[0].first_out_of_memory.as_ref().unwrap().to_string();
    assert!(first.contains("100 B requested with 0 B of 95 B"), "{first}");
    assert_eq!(reports[0].peak_requested, Bytes::new(130), "the program's, not the allocator's");
}

#[test]
fn any_other_failure_ends_it() {
    let mut player = Notebook { fail: true, ..Notebook::default() };
    let failed = replay(&trace(), &mut player, ReplayOptions::new()).unwrap_err();
    assert!(matches!(failed, ReplayError::Inconsistent { .. }));
}

#[test]
fn progress_adds_up() {
    let mut builder = TraceBuilder::new("many");
    for key in 0..20_000 {
        builder.allocate(key, Bytes::ZERO, 0).unwrap();
    }
    let trace = builder.finish();
    let mut player = Notebook::default();
    let (mut told, mut times) = (0, 0);
    let mut tell = |more| {
        told += more;
        times += 1;
    };
    replay(&trace, &mut player, ReplayOptions::new().passes(1).progress(&mut tell)).unwrap();
    assert_eq!(told, 20_000);
    assert!((3..10).contains(&times), "{times}");
}

/// The limit, the device, or neither: whichever was in the way is named, and the others are not.
#[test]
fn a_shortage_names_its_true_cause() {
    let said = |limit, device_free| {
        let (held, live) = (Bytes::mib(7), Bytes::mib(6));
        let (requested, largest_free) = (Bytes::mib(2), Bytes::kib(512));
        let error =
            ReplayError::Shortage { requested, limit, held, live, largest_free, device_free };
        assert!(error.is_out_of_memory());
        error.to_string()
    };
    let limited = said(Bytes::mib(7), Bytes::gib(1));
    assert!(limited.contains("the pool's limit is 7.00 MiB"), "{limited}");
    assert!(limited.contains("set max_bytes to 8388608 (8.00 MiB) or more"), "{limited}");
    // A limit that is all of the device, as it is unless set, is not to blame.
    for limit in [Bytes::mib(7), Bytes::gib(1)] {
        let full = said(limit, Bytes::ZERO);
        assert!(full.contains("a larger device") && !full.contains("limit"), "{full}");
    }
    let pieces = said(Bytes::gib(1), Bytes::mib(1));
    assert!(pieces.contains("the largest free piece is 512.00 KiB"), "{pieces}");
}

#[test]
fn a_budget_ends_a_replay_between_events_whatever_an_event_takes() {
    /// Takes a while for each block.
    struct Slow;
    impl Player for Slow {
        fn allocate(&mut self, _: BlockIndex, _: Bytes, _: StreamIndex) -> Result<(), ReplayError> {
            std::thread::sleep(core::time::Duration::from_millis(5));
            Ok(())
        }
        fn free(&mut self, _: BlockIndex, _: StreamIndex) -> Result<(), ReplayError> {
            Ok(())
        }
        fn reserved(&self) -> Bytes {
            Bytes::ZERO
        }
        fn driver(&self) -> DriverUse {
            DriverUse::default()
        }
    }
    let mut builder = TraceBuilder::new("slow");
    for key in 0..10_000 {
        builder.allocate(key, Bytes::new(1), 0).unwrap();
    }
    let trace = builder.finish();
    let asked = core::cell::Cell::new(0);
    let hook = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    let budget = WorkBudget::unlimited().interrupted_by(&hook);
    let played = replay(&trace, &mut Slow, ReplayOptions::new().budget(&budget));
    assert!(matches!(played, Err(ReplayError::Interrupted)), "{played:?}");
    let limit = core::time::Duration::from_millis(50);
    let budget = WorkBudget::of(limit);
    let began = Instant::now();
    let played = replay(&trace, &mut Slow, ReplayOptions::new().budget(&budget));
    assert!(matches!(played, Err(ReplayError::TooLong { .. })), "{played:?}");
    assert!(began.elapsed() < core::time::Duration::from_secs(10), "all of it takes 50 s");
}
