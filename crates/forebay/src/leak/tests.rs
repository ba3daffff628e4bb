//! What is live is listed, and suspicions name their reason.

use forebay_hal::StreamHandle;

use super::*;
use crate::buffer::{Buffer, BufferManager};

/// What is suspicious about buffers that a line of this file made.
fn about(line: u32) -> Vec<Suspicion> {
    let place = format!("leak/tests.rs:{line}:");
    let all = leaks().suspicions(Duration::ZERO);
    all.into_iter().filter(|one| one.to_string().contains(&place)).collect()
}

#[test]
fn buffers_blocks_and_host_memory_are_listed_until_they_are_freed() {
    let memory = BufferManager::host().unwrap();
    let buffer = memory.buffer::<u64>(1237).unwrap();
    let block = memory.pool().allocate(Bytes::kib(96), StreamHandle::DEFAULT).unwrap();
    let options = crate::host::HostOptions::new();
    let host = crate::host::HostAllocation::for_elements::<u8>(100, &options).unwrap();
    let report = leaks();
    assert!(!report.is_empty());
    assert!(report.buffers.iter().any(|buffer| buffer.length == 1237 && buffer.stack.is_none()));
    let of_pool = |report: &LeakReport| {
        report.pools.iter().find(|pool| pool.pool == memory.pool().id()).cloned()
    };
    let pool = of_pool(&report).unwrap();
    assert_eq!((pool.blocks, pool.bytes), (1, Bytes::kib(96)));
    assert_eq!(pool.largest[0].address, block.address());
    assert!(report.host.iter().any(|live| live.span == host.span()));
    let text = report.to_string();
    for word in ["1237 u64", "leak/tests.rs", &memory.pool().id().to_string(), "host allocation"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let span = host.span();
    memory.pool().free(block.address(), StreamHandle::DEFAULT).unwrap();
    drop((buffer, host));
    let report = leaks();
    assert!(!report.buffers.iter().any(|buffer| buffer.length == 1237));
    assert!(of_pool(&report).is_none() && !report.host.iter().any(|live| live.span == span));
}

#[test]
fn a_line_whose_buffers_grow_is_named_and_one_whose_buffers_go_is_not() {
    let memory = BufferManager::host().unwrap();
    let mut kept: Vec<Buffer<u8>> = Vec::new();
    let line = line!() + 1;
    let make = || memory.buffer_from(&[1_u8; 100]);
    (0..9).for_each(|_| drop(make().unwrap()));
    (0..7).for_each(|_| kept.push(make().unwrap()));
    let grows =
        |found: &[Suspicion]| found.iter().any(|one| matches!(one, Suspicion::Growing { .. }));
    assert!(!grows(&about(line)), "7 live of 16: most were dropped");
    (0..5).for_each(|_| kept.push(make().unwrap()));
    let found = about(line);
    let Some(Suspicion::Growing { live, made, bytes, .. }) = found.first() else {
        panic!("{found:?}")
    };
    assert_eq!((*live, *made, *bytes), (12, 21, Bytes::new(1200)));
    kept.pop();
    assert!(!grows(&about(line)), "there were more before");
}

#[test]
fn buffers_that_are_not_used_or_outlive_the_others_are_named() {
    let memory = BufferManager::host().unwrap();
    let line = line!() + 1;
    let make = || memory.buffer::<u8>(100).unwrap();
    let mut forgotten = make();
    let found = about(line);
    assert!(matches!(found[..], [Suspicion::NeverUsed { bytes, .. }] if bytes.get() == 100));
    assert!(leaks().suspicions(Duration::from_secs(3600)).is_empty(), "it is too young");
    forgotten.host_mut().unwrap().fill(1);
    assert!(about(line).is_empty(), "used, and the only one");
    (0..8).for_each(|_| drop(make()));
    std::thread::sleep(Duration::from_millis(50));
    let found = about(line);
    let [Suspicion::Outlived { id, dropped, longest, age, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((*id, *dropped), (forgotten.id(), 8));
    assert!(*age > *longest * 4);
}

#[cfg(target_os = "linux")]
#[test]
fn shared_buffers_are_a_kind_of_their_own_with_name_and_age() {
    let memory = BufferManager::host().unwrap();
    let name = format!("leak-{}", std::process::id());
    let created = memory.shared::<u16>(&name, 500).unwrap();
    let line = line!() + 1;
    let opened = memory.open_shared::<u16>(&name).unwrap();
    assert!(memory.shared::<u16>(&name, 500).is_err(), "refused, and so not listed");
    let totals = memory.totals();
    assert_eq!((totals.shared, totals.shared_bytes, totals.buffers), (2, 2000, 0));
    let of_name = || leaks().shared.into_iter().filter(|one| one.name == name).collect::<Vec<_>>();
    let [first, second] = &of_name()[..] else { panic!("two") };
    assert_eq!((&*first.element, first.length, first.bytes), ("u16", 500, 1000));
    assert!(second.created_at.contains(&format!("leak/tests.rs:{line}:")), "{second:?}");
    assert!(first.age >= second.age && first.age < Duration::from_secs(60));
    let text = leaks().to_string();
    assert!(text.contains(&format!("shared buffer \"{name}\" of 500 u16")), "{text}");
    // A manager may go before its shared buffers.
    drop((created, memory));
    assert_eq!(of_name().len(), 1);
    drop(opened);
    assert!(of_name().is_empty());
}
