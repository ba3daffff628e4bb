//! Adaptors over the plainest allocator, which knows the truth: alone, in every order, and from
//! many threads.

mod direct;
mod stack;

use std::io::{self, Write};
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, Random};
use forebay_hal::{Device, StreamHandle};
use forebay_sim::{MemoryModel, SimMachine};

use self::direct::Direct;
use super::*;
use crate::{Allocate, Block, Error, Request, Result};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;
const OTHER: StreamHandle = StreamHandle(0x51);

fn bytes(size: u64) -> Request {
    Request::new(Bytes::new(size), DEFAULT)
}

fn roomy() -> Arc<Direct> {
    Direct::of(Bytes::gib(64))
}

#[test]
fn a_limit_is_met_exactly_and_told() {
    let limited = Limited::new(roomy(), Bytes::new(1000));
    let first = limited.allocate_request(bytes(999)).unwrap();
    let error = limited.allocate_request(bytes(2)).unwrap_err();
    let Error::OutOfMemory(shortage) = error else { panic!("{error}") };
    let figures = [shortage.requested, shortage.limit, shortage.live, shortage.largest_free];
    assert_eq!(figures, [2, 1000, 999, 1].map(Bytes::new));
    let last = limited.allocate_request(bytes(1)).unwrap();
    assert_eq!(limited.available(), Bytes::ZERO);
    assert_eq!(limited.allocate_request(bytes(0)).unwrap().address(), Address::NULL);
    assert!(limited.allocate_request(bytes(u64::MAX)).is_err());
    limited.free(first.address(), DEFAULT).unwrap();
    limited.free(last.address(), DEFAULT).unwrap();
    assert_eq!((limited.used(), limited.limit()), (Bytes::ZERO, Bytes::new(1000)));
}

/// A limit set to the figure in units is high enough.
#[test]
fn the_limit_to_raise_to_is_rounded_up() {
    let limited = Limited::new(roomy(), Bytes::mib(20));
    let _ = limited.allocate_request(bytes(16 << 20)).unwrap();
    let said = limited.allocate_request(bytes((4 << 20) + 4000)).unwrap_err().to_string();
    assert!(said.ends_with("raise the limit to 20975520 B (20.01 MiB) or more"), "{said}");
    assert!(said.contains("holds 16.00 MiB of at most 20.00 MiB"), "{said}");
}

#[test]
fn counts_are_what_happened() {
    let counted = Counted::new(Direct::of(Bytes::mib(1)));
    let blocks: Vec<Block> =
        [100, 600, 1000].map(|size| counted.allocate_request(bytes(size)).unwrap()).to_vec();
    assert!(counted.allocate_request(bytes(2 << 20)).is_err());
    counted.free(blocks[1].address(), OTHER).unwrap();
    counted.free(Address::NULL, DEFAULT).unwrap();
    let _ = counted.allocate_request(bytes(0)).unwrap();
    assert!(counted.free(blocks[1].address(), DEFAULT).is_err());
    let last = counted.allocate_request(bytes(50)).unwrap();
    let expected = Counts {
        allocations: 4,
        frees: 1,
        failed_allocations: 1,
        failed_frees: 1,
        live_blocks: 3,
        peak_blocks: 3,
        live: Bytes::new(512 + 1024 + 512),
        peak: Bytes::new(512 + 1024 + 1024),
        requested: Bytes::new(1150),
        peak_requested: Bytes::new(1700),
        total: Bytes::new(512 + 1024 + 1024 + 512),
    };
    assert_eq!(counted.counts(), expected);
    for block in [blocks[0], blocks[2], last] {
        counted.free(block.address(), DEFAULT).unwrap();
    }
    let counts = counted.counts();
    assert_eq!((counts.live_blocks, counts.live, counts.requested), (0, Bytes::ZERO, Bytes::ZERO));
}

/// The lines of a log after its first, in parts.
fn lines(log: &[u8]) -> Vec<Vec<String>> {
    let text = core::str::from_utf8(log).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Thread,Time,Action,Pointer,Size,Stream"));
    lines.map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn a_log_has_a_line_for_everything_that_changed_something() {
    let logged = Logged::new(Direct::of(Bytes::mib(1)), Vec::new());
    let block = logged.allocate_request(bytes(700)).unwrap();
    let other = logged.allocate_request(Request::new(Bytes::new(5), OTHER)).unwrap();
    assert!(logged.allocate_request(bytes(2 << 20)).is_err());
    logged.free(block.address(), OTHER).unwrap();
    assert!(logged.free(block.address(), DEFAULT).is_err());
    logged.free(other.address(), DEFAULT).unwrap();
    let (_, log) = logged.into_parts();
    let [one, two] = [block, other].map(|block| block.address().to_string());
    let seen = lines(&log);
    let tails: Vec<String> = seen.iter().map(|line| line[2..].join(",")).collect();
    let expected = [
        format!("allocate,{one},700,0"),
        format!("allocate,{two},5,0x51"),
        format!("allocate failure,0x0,{},0", 2 << 20),
        format!("free,{one},700,0x51"),
        format!("free,{two},5,0"),
    ];
    assert_eq!(tails, expected);
    for line in &seen {
        assert!(line[0].parse::<u64>().unwrap() > 0);
        let time: Vec<&str> = line[1].split([':', '.']).collect();
        assert_eq!(time.iter().map(|part| part.len()).collect::<Vec<_>>(), [2, 2, 2, 6]);
        let limits = [24, 60, 60, 1_000_000];
        assert!(time.iter().zip(limits).all(|(part, limit)| part.parse::<u32>().unwrap() < limit));
    }
}

/// A writer that fails every so often, in the middle of a line.
struct Flaky {
    written: Vec<u8>,
    writes: u64,
}

impl Write for Flaky {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        match self.writes % 4 {
            // The header, and then half of every second line.
            1 => self.written.write(bytes),
            2 => self.written.write(&bytes[..bytes.len() / 2]),
            3 => Err(io::Error::other("full")),
            _ => self.written.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_log_that_cannot_be_written_fails_no_allocation() {
    let logged = Logged::new(roomy(), Flaky { written: Vec::new(), writes: 0 });
    for _ in 0..6 {
        logged.allocate_request(bytes(700)).unwrap();
    }
    assert_eq!(logged.lost_lines(), 2);
    assert_eq!(logged.take_error().unwrap().to_string(), "full");
    assert!(logged.take_error().is_none());
    logged.flush().unwrap();
    let (_, Flaky { written, .. }) = logged.into_parts();
    // A line that was cut is alone on its line: all others are whole.
    let whole = lines(&written).iter().filter(|line| line.len() == 6 && line[5] == "0").count();
    assert_eq!(whole, 4);
}

#[test]
fn leaks_are_named() {
    let tracked = Tracked::new(roomy()).with_stacks();
    let outer = crate::tag("outer");
    let kept = tracked.allocate_request(bytes(700)).unwrap();
    let inner = crate::tag("inner");
    let _ = tracked.allocate_request(Request::new(Bytes::new(1), OTHER)).unwrap();
    drop(inner);
    drop(outer);
    let freed = tracked.allocate_request(bytes(3)).unwrap();
    tracked.free(freed.address(), DEFAULT).unwrap();
    let _ = tracked.allocate_request(bytes(2)).unwrap();
    let leaks = tracked.leaks();
    let tags: Vec<String> = leaks.blocks().iter().map(|live| live.tag.name()).collect();
    assert_eq!(tags, ["outer", "inner", "untagged"]);
    assert_eq!(leaks.blocks()[0].block, kept);
    assert_eq!(leaks.blocks().iter().map(|live| live.number).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!((leaks.blocks()[1].stream, leaks.size()), (OTHER, Bytes::new(1024 + 512 + 512)));
    let text = leaks.to_string();
    assert!(text.starts_with("3 blocks of 2.00 KiB (2048 B) together are live\n"), "{text}");
    assert!(text.contains(&format!("block 1 at {}: 700 B (700 B) on ", kept.address())), "{text}");
    assert_eq!(text.lines().count(), 4);
    // With the places where they were asked for.
    let long = format!("{leaks:#}");
    assert!(long.contains("leaks_are_named"), "{long}");

    for _ in 0..40 {
        let _ = tracked.allocate_request(bytes(1)).unwrap();
    }
    assert!(tracked.leaks().to_string().ends_with("\n  and 11 more"));
    assert_eq!(Leaks::default().to_string(), "no blocks are live");
}

#[test]
fn a_tag_ends_with_its_scope_even_where_that_panics() {
    let tracked = Tracked::new(roomy());
    let panicked = std::panic::catch_unwind(|| {
        let _scope = crate::tag("gone");
        panic!("on purpose")
    });
    assert!(panicked.is_err());
    let _ = tracked.allocate_request(bytes(1)).unwrap();
    assert_eq!(tracked.leaks().blocks()[0].tag, crate::Tag::NONE);
    let text = tracked.leaks().to_string();
    assert!(text.starts_with("1 block of 512 B (512 B) is live\n"), "{text}");
}

/// Which of the first `count` requests for so many bytes fail.
fn failed(when: FailWhen, size: u64, count: u64) -> Vec<u64> {
    let failing = Failing::new(roomy(), when);
    let failed: Vec<u64> =
        (1..=count).filter(|_| failing.allocate_request(bytes(size)).is_err()).collect();
    assert_eq!((failing.requests(), failing.failures()), (count, failed.len() as u64));
    assert_eq!(failing.inner().truth().live.len() as u64, count - failed.len() as u64);
    failed
}

#[test]
fn what_is_to_fail_fails_and_nothing_else() {
    const NONE: [u64; 0] = [];
    assert_eq!(failed(FailWhen::Never, 1, 20), NONE);
    assert_eq!(failed(FailWhen::Number(7), 1, 20), [7]);
    assert_eq!(failed(FailWhen::Every(6), 1, 20), [6, 12, 18]);
    assert_eq!(failed(FailWhen::Every(0), 1, 20), NONE);
    assert_eq!(failed(FailWhen::Above(Bytes::new(100)), 100, 5), NONE);
    assert_eq!(failed(FailWhen::Above(Bytes::new(100)), 101, 3), [1, 2, 3]);
    let chance = |times, seed| failed(FailWhen::PerMillion { times, seed }, 1, 1000);
    assert_eq!(chance(0, 1), NONE);
    assert_eq!(chance(1_000_000, 1).len(), 1000);
    let quarter = chance(250_000, 1);
    assert!((200..300).contains(&quarter.len()), "{}", quarter.len());
    assert_eq!(quarter, chance(250_000, 1));
    assert_ne!(quarter, chance(250_000, 2));

    let failing = Failing::new(roomy(), FailWhen::Every(1));
    assert!(failing.allocate_request(bytes(0)).is_ok());
    let error = failing.allocate_request(bytes(9)).unwrap_err();
    assert!(
        matches!(&error, Error::OutOfMemory(shortage) if shortage.requested == Bytes::new(9)),
        "{error}"
    );
    failing.plan(FailWhen::Never);
    assert!(failing.allocate_request(bytes(9)).is_ok());
    let failing = Failing::new(roomy(), FailWhen::Every(1)).fail_as(FailAs::Transient);
    let error = failing.allocate_request(bytes(9)).unwrap_err();
    assert!(matches!(&error, Error::Device(error) if error.may_pass()), "{error}");
}

/// An allocator that looks at no alignment.
struct Careless(Arc<Direct>);

// SAFETY: for tests, which touch no memory that is not theirs.
unsafe impl Allocate for Careless {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        self.0.allocate_request(request.aligned_to(Alignment::BLOCK))
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.0.free(address, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        self.0.block_at(address)
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.0.device()
    }
}

#[test]
fn every_block_is_aligned_or_refused() {
    let aligned = Aligned::new(roomy(), Alignment::HOST_PAGE);
    for size in [1, 700, 5000, 4096] {
        let block = aligned.allocate_request(bytes(size)).unwrap();
        assert!(block.address().is_aligned_to(Alignment::HOST_PAGE));
        let block = aligned.allocate_request(bytes(size).aligned_to(Alignment::MIB)).unwrap();
        assert!(block.address().is_aligned_to(Alignment::MIB), "more was asked for");
    }
    let truth = roomy();
    let aligned = Aligned::new(Careless(Arc::clone(&truth)), Alignment::DEVICE_PAGE);
    let refused = (0..20).filter(|_| aligned.allocate_request(bytes(700)).is_err()).count();
    assert!(refused > 0, "the allocator beneath happened to align everything");
    assert_eq!(truth.truth().live.len(), 20 - refused, "what is refused is given back");
}
