//! Refusals: what their errors, and the report that `oom_report` writes, say is true.

use forebay_hal::Capabilities;

use super::*;
use crate::pool::calls::report;
use crate::report::{RefusalCause, Shortage};

fn refused(pool: &Pool, size: Bytes) -> Box<Shortage> {
    match pool.allocate(size, DEFAULT) {
        Err(Error::OutOfMemory(shortage)) => shortage,
        other => panic!("{size} were not refused: {other:?}"),
    }
}

/// The setting `oom_report`: the figures as text, and a snapshot beside it; no more than one in a second.
#[test]
fn a_refusal_is_described_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oom.txt");
    let machine = SimMachine::builder().capacity(Bytes::mib(64)).build().unwrap();
    let pool = Pool::new(&machine.device(0).unwrap()).unwrap();
    assert!(pool.allocate(Bytes::mib(100), DEFAULT).is_err());
    assert!(!path.exists(), "off by default");
    pool.set("oom_report", path.to_str().unwrap()).unwrap();
    let scope = crate::tag("<script>hoarder");
    let _kept = pool.on(DEFAULT).owned(Bytes::mib(40)).unwrap();
    drop(scope);
    assert!(pool.allocate(Bytes::mib(50), DEFAULT).is_err());
    let text = std::fs::read_to_string(&path).unwrap();
    for part in ["out of memory: 50.00 MiB", "<script>hoarder (40.00 MiB)", "largest live blocks"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    {
        let json = std::fs::read_to_string(folder.path().join("oom.txt.json")).unwrap();
        assert!(
            json.starts_with("{\"schema\":\"forebay.pool.v1\"") && json.contains("<script>hoarder")
        );
    }
    std::fs::remove_file(&path).unwrap();
    assert!(pool.allocate(Bytes::mib(50), DEFAULT).is_err());
    assert!(!path.exists(), "the last one is less than a second old");
}

/// The error says which file describes it, or why there is none.
#[test]
fn an_error_names_the_file_that_describes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oom.txt");
    let device = open(SimMachine::builder().capacity(Bytes::mib(64))).2;
    let pool = Pool::new(&device).unwrap();
    assert_eq!(refused(&pool, Bytes::mib(100)).report, None);
    pool.set("oom_report", path.to_str().unwrap()).unwrap();
    let shortage = refused(&pool, Bytes::mib(100));
    let said = shortage.to_string();
    assert!(said.ends_with(&format!("{} describes this refusal", path.display())), "{said}");
    let other = Pool::new(&device).unwrap();
    other.set("oom_report", "/no/such/folder/oom.txt").unwrap();
    let shortage = refused(&other, Bytes::mib(100));
    assert!(shortage.report.as_ref().unwrap().failure.is_some());
    let said = shortage.to_string();
    assert!(
        said.contains("could not be written to /no/such/folder/oom.txt: No such file"),
        "{said}"
    );
}

/// The error names the file that could not be written, which may be the snapshot's.
#[test]
fn an_error_names_the_file_that_could_not_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let (path, json) = (folder.path().join("oom.txt"), folder.path().join("oom.txt.json"));
    std::fs::create_dir(&json).unwrap();
    let pool = Pool::new(&open(SimMachine::builder().capacity(Bytes::mib(64))).2).unwrap();
    pool.set("oom_report", path.to_str().unwrap()).unwrap();
    let shortage = refused(&pool, Bytes::mib(100));
    let report = shortage.report.as_ref().unwrap();
    assert_eq!((report.path.as_path(), report.failure.is_some()), (json.as_path(), true));
    assert!(shortage.to_string().contains(&format!("written to {}: ", json.display())));
    assert!(path.is_file());
}

/// A link where the report goes is replaced: another user of the folder may have put it there.
#[cfg(unix)]
#[test]
fn a_report_follows_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let (path, far) = (folder.path().join("oom.txt"), folder.path().join("far"));
    std::fs::write(&far, "far").unwrap();
    std::os::unix::fs::symlink(&far, &path).unwrap();
    let pool = Pool::new(&open(SimMachine::builder().capacity(Bytes::mib(64))).2).unwrap();
    pool.set("oom_report", path.to_str().unwrap()).unwrap();
    assert_eq!(refused(&pool, Bytes::mib(100)).report.unwrap().failure, None);
    assert_eq!(std::fs::read_to_string(&far).unwrap(), "far");
    assert!(!path.is_symlink() && path.is_file());
}

/// A pool of 16 MiB with 1 MiB blocks, every other one freed: 8 MiB free in holes of 1 MiB that cannot move.
fn full_of_holes(device: &Arc<dyn Device>) -> (Pool, Vec<Block>) {
    let options = PoolOptions::new().max_bytes(Bytes::mib(16));
    let pool = options.set(|set| set.stacks(true)).build(device).unwrap();
    let _tag = crate::tag("tag of the post-mortem");
    let blocks: Vec<Block> =
        (0..16).map(|_| pool.allocate(Bytes::mib(1), DEFAULT).unwrap()).collect();
    let (freed, kept): (Vec<_>, Vec<_>) = (0..).zip(blocks).partition(|(index, _)| index % 2 == 0);
    for (_, block) in freed {
        pool.free_block(block, DEFAULT).unwrap();
    }
    (pool, kept.into_iter().map(|(_, block)| block).collect())
}

fn holes_machine() -> SimOptions {
    SimMachine::builder().capacity(Bytes::mib(64)).granularity(PageSize::new(2 << 20).unwrap())
}

/// The post-mortem has what was asked, by whom, who has the memory since when, and where the holes are.
#[test]
fn a_post_mortem_has_the_request_the_owners_and_the_holes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oom.txt");
    let device = open(holes_machine()).2;
    let (pool, kept) = full_of_holes(&device);
    pool.set("oom_report", path.to_str().unwrap()).unwrap();
    let scope = crate::tag("tag of the refused");
    let shortage = refused(&pool, Bytes::mib(4));
    drop(scope);
    assert_eq!(shortage.cause, RefusalCause::Fragmented);
    let text = std::fs::read_to_string(&path).unwrap();
    for part in ["tag of the refused", "8 holes", "what would have helped", "full_of_holes", " old"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = std::fs::read_to_string(folder.path().join("oom.txt.json")).unwrap();
    let taken: serde_json::Value = serde_json::from_str(&json).unwrap();
    let refusal = &taken["refusal"];
    assert_eq!(refusal["requested_bytes"], 4 << 20);
    assert_eq!(
        (&refusal["tag"], &refusal["cause"]),
        (&"tag of the refused".into(), &"fragmented".into())
    );
    assert_eq!(
        (&refusal["limit_bytes"], &refusal["largest_free_bytes"]),
        (&(16 << 20).into(), &(1 << 20).into())
    );
    let stack = |index: &serde_json::Value| {
        let index = usize::try_from(index.as_u64().unwrap()).unwrap();
        taken["stacks"][index].as_str().unwrap().to_owned()
    };
    assert!(stack(&refusal["stack"]).contains("a_post_mortem_has_the_request"));
    let mut at: Vec<u64> = kept.iter().map(|block| block.address().get()).collect();
    at.sort_unstable();
    let mut listed = Vec::new();
    for block in taken["blocks"].as_array().unwrap() {
        listed.push(block["address"].as_u64().unwrap());
        assert_eq!(
            (&block["tag"], &block["stream"]),
            (&"tag of the post-mortem".into(), &0.into())
        );
        assert!(stack(&block["stack"]).contains("full_of_holes") && block["age_ms"].is_u64());
    }
    listed.sort_unstable();
    assert_eq!(listed, at, "true addresses");
    // Spans less holes are the live blocks: the picture adds up.
    let sum = |key: &str| -> u64 {
        let all = taken[key].as_array().unwrap().iter();
        all.map(|range| range["size_bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("spans"), sum("holes"), sum("blocks")), (16 << 20, 8 << 20, 8 << 20));
    for hole in taken["holes"].as_array().unwrap() {
        assert_eq!(hole["size_bytes"], 1 << 20);
        assert!(!at.contains(&hole["address"].as_u64().unwrap()));
    }
    // With the holes, the error advises a higher limit, which is enough.
    let enough = shortage.enough_limit.unwrap();
    assert!(shortage.to_string().contains(&format!("raise the limit to {} B", enough.get())));
    pool.set("max_bytes", &enough.get().to_string()).unwrap();
    pool.allocate(Bytes::mib(4), DEFAULT).unwrap();
}

/// Stacks of live blocks are kept without a history, and those of freed blocks are not.
#[test]
fn the_origins_of_live_blocks_outlast_the_history() {
    let device = open(holes_machine()).2;
    let pool =
        PoolOptions::new().set(|set| set.stacks(true).history(4_u64)).build(&device).unwrap();
    let old = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    for _ in 0..2000 {
        let block = pool.allocate(Bytes::kib(1), DEFAULT).unwrap();
        pool.free_block(block, DEFAULT).unwrap();
    }
    let snapshot = pool.snapshot();
    let [block] = &snapshot.blocks[..] else { panic!("{:?}", snapshot.blocks) };
    assert_eq!(block.address, old.address().get());
    assert!(snapshot.stacks[block.stack.unwrap()].contains("the_origins_of_live_blocks"));
    // With a history alone, as far as it reaches; without both, nothing is known.
    for (history, known) in [(100_u64, true), (0, false)] {
        let pool = PoolOptions::new().set(|set| set.history(history)).build(&device).unwrap();
        pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
        let snapshot = pool.snapshot();
        let block = &snapshot.blocks[0];
        assert_eq!(
            (block.age_ms.is_some(), block.stream.is_some(), block.stack),
            (known, known, None)
        );
    }
}

/// Random programs near their limit. What a refusal says would fit is served, and the limit that it names is enough.
fn claims_hold(seed: u64, options: SimOptions, class: MemoryClass) -> [u64; 2] {
    let options =
        options.memory(MemoryModel::Phantom).capacity(Bytes::mib(48)).granularity(PageSize::HOST);
    let device = open(options.seed(seed)).2;
    let mut growth = Growth::default();
    growth.largest_page = Bytes::new(256 << 10);
    let options = PoolOptions::new().growth(growth).class(class).max_bytes(Bytes::mib(12));
    let pool = options.build(&device).unwrap();
    let mut random = Random::new(seed);
    let mut live: Vec<Block> = Vec::new();
    let mut checked = [0; 2];
    for step in 0..400 {
        if random.below(17) < 10 {
            let size = Bytes::new(size_up_to(&mut random, 9, 23));
            let Err(error) = pool.allocate(size, DEFAULT).map(|block| live.push(block)) else {
                continue;
            };
            let Error::OutOfMemory(shortage) = &error else { panic!("{error}") };
            assert!(shortage.fits < size, "seed {seed}, step {step}: {shortage}");
            if !shortage.fits.is_zero() {
                checked[0] += 1;
                let block = pool.allocate(shortage.fits, DEFAULT).unwrap_or_else(|refused| {
                    panic!(
                        "seed {seed}, step {step}: {} should fit: {shortage}\n{refused}",
                        shortage.fits
                    )
                });
                pool.free_block(block, DEFAULT).unwrap();
                pool.trim(Bytes::ZERO).unwrap();
            }
            if let Some(enough) = shortage.enough_limit {
                checked[1] += 1;
                assert!(enough > shortage.limit, "{shortage}");
                pool.set("max_bytes", &enough.get().to_string()).unwrap();
                let block = pool.allocate(size, DEFAULT).unwrap_or_else(|refused| {
                    panic!(
                        "seed {seed}, step {step}: {enough} should be enough: {shortage}\n{refused}"
                    )
                });
                pool.free_block(block, DEFAULT).unwrap();
                pool.trim(Bytes::ZERO).unwrap();
                pool.set("max_bytes", "12MiB").unwrap();
            }
        } else if let Some(index) = random.index(live.len()) {
            pool.free_block(live.swap_remove(index), DEFAULT).unwrap();
        }
    }
    checked
}

#[test]
fn what_a_refusal_claims_is_so() {
    let mut sums = [0; 2];
    for seed in 0..6 {
        let segments = || SimMachine::builder().without(Capabilities::VIRTUAL_MEMORY);
        for checked in [
            claims_hold(seed, SimMachine::builder(), MemoryClass::STITCHED),
            claims_hold(seed, SimMachine::builder(), MemoryClass::STABLE),
            claims_hold(seed, segments(), MemoryClass::PLAIN),
        ] {
            sums = [sums[0] + checked[0], sums[1] + checked[1]];
        }
    }
    assert!(sums.iter().all(|&sum| sum > 200), "{sums:?} claims were checked");
}

/// Where the device is full, no limit is advised; where others hold the memory, they are named.
#[test]
fn a_limit_that_does_not_help_is_not_advised() {
    let device = open(SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(1))).2;
    let other = Pool::new(&device).unwrap();
    let theirs = other.allocate(Bytes::mib(600), DEFAULT).unwrap();
    let pool = PoolOptions::new().max_bytes(Bytes::mib(300)).build(&device).unwrap();
    let shortage = refused(&pool, Bytes::mib(500));
    assert_eq!((shortage.cause, shortage.enough_limit), (RefusalCause::Limit, None));
    let said = shortage.to_string();
    assert!(
        !said.contains("raise the limit") && said.contains("a higher limit does not help"),
        "{said}"
    );
    other.free_block(theirs, DEFAULT).unwrap();
    let pool = Pool::new(&device).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oom");
    pool.set("oom_report", path.to_str().unwrap()).unwrap();
    assert_eq!(refused(&pool, Bytes::mib(500)).cause, RefusalCause::DeviceFull);
    let text = std::fs::read_to_string(path).unwrap();
    let idle = format!("Pool {} holds 600.00 MiB in no live block", other.id().0);
    assert!(text.contains(&idle), "{text}");
}

/// The tags of a refusal sum up to what is live, however many there are.
#[test]
fn the_owners_of_a_refusal_are_all_that_is_live() {
    let device = open(SimMachine::builder().capacity(Bytes::mib(64))).2;
    let pool = Pool::new(&device).unwrap();
    for name in 0..9 {
        let _tag = crate::tag(&format!("owner {name} of a refusal"));
        pool.allocate(Bytes::mib(name + 1), DEFAULT).unwrap();
    }
    pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    let shortage = refused(&pool, Bytes::mib(60));
    let sum = shortage.owners.iter().map(|(_, bytes)| bytes.get()).sum::<u64>();
    assert_eq!(Bytes::new(sum), shortage.live);
    assert_eq!(shortage.owners.last().unwrap().0, "6 other tags");
    let report = report::drop_report(&pool.shared).unwrap();
    assert_eq!(report.owners.iter().map(|(_, bytes)| bytes.get()).sum::<u64>(), report.bytes.get());
}
