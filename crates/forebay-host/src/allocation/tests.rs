//! What memory was asked to be, read back from the kernel.

use std::sync::Mutex;

use forebay_hal::Error;
use forebay_sync::lock;

use super::*;
use crate::HugePages;
use crate::system::TransparentHuge;

/// The tests of this file count what is live in the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn memory_is_zeroed_aligned_and_of_the_size_asked_for() {
    let _alone = lock(&ONE_AT_A_TIME);
    for shift in [0, 6, 12, 16, 21, 26, 32] {
        let alignment = Alignment::new(1 << shift).unwrap();
        let mut memory =
            HostAllocation::new(Bytes::new(5000), alignment, &HostOptions::new()).unwrap();
        assert!(memory.span().start().is_aligned_to(alignment), "2^{shift}");
        assert_eq!((memory.size(), memory.as_slice().len()), (Bytes::new(5000), 5000));
        assert!(memory.as_slice().iter().all(|&byte| byte == 0));
        memory.as_mut_slice().fill(9);
        assert!(memory.as_slice().iter().all(|&byte| byte == 9));
    }
    let none = HostAllocation::new(Bytes::ZERO, Alignment::ONE, &HostOptions::new()).unwrap();
    assert!(none.as_slice().is_empty() && none.node_of(Bytes::ZERO).is_err());
}

#[test]
fn more_than_there_is_is_refused_with_the_figures() {
    let _alone = lock(&ONE_AT_A_TIME);
    let before = HostAllocation::totals();
    let options = HostOptions::new();
    for size in [Bytes::MAX, Bytes::gib(1 << 20)] {
        let error = HostAllocation::new(size, Alignment::ONE, &options).unwrap_err();
        let Error::OutOfMemory { requested, total, .. } = error else { panic!("{error}") };
        assert!(requested == size && !total.is_zero());
    }
    for count in [usize::MAX, usize::MAX / 8 + 1, 1 << 60] {
        let error = HostAllocation::for_elements::<u64>(count, &options).unwrap_err();
        assert!(error.to_string().contains(&count.to_string()), "{error}");
    }
    let bad = options.numa(NumaPolicy::Bind(vec![4000]));
    assert!(HostAllocation::new(Bytes::kib(4), Alignment::ONE, &bad).is_err());
    assert_eq!(HostAllocation::totals(), before, "nothing was changed");
}

#[test]
fn huge_pages_are_there_where_the_system_grants_them_and_not_where_it_does_not() {
    let _alone = lock(&ONE_AT_A_TIME);
    let granted = System::here().huge_pages().transparent;
    for (wish, huge) in [
        (HugePages::Never, false),
        (
            HugePages::Transparent,
            granted.as_ref().is_ok_and(|huge| *huge != TransparentHuge::Never),
        ),
    ] {
        let options = HostOptions::new().huge_pages(wish);
        let make = || HostAllocation::new(Bytes::mib(32), Alignment::ONE, &options).unwrap();
        // Neighbours of the same kind, which the system must not count as one.
        let (mut first, untouched, mut third) = (make(), make(), make());
        for memory in [&mut first, &mut third] {
            memory.touch(3);
            let Ok(got) = memory.residence() else { continue };
            assert_eq!((got.mapped, got.resident), (Bytes::mib(32), Bytes::mib(32)), "{wish:?}");
            assert!(got.page < Bytes::mib(2), "transparent pages are made of small ones");
            println!("{wish:?} ({granted:?}): {} of {} in huge pages", got.huge, got.resident);
            // A system that is short of contiguous memory makes fewer than all.
            assert_eq!(!got.huge.is_zero(), huge, "{wish:?} ({granted:?})");
            assert!(got.huge <= got.resident);
        }
        if let Ok(got) = untouched.residence() {
            assert_eq!((got.resident, got.huge), (Bytes::ZERO, Bytes::ZERO), "nobody touched it");
        }
    }
}

#[test]
fn explicit_huge_pages_are_what_the_kernel_shows_or_a_refusal_that_says_how_to_get_them() {
    let _alone = lock(&ONE_AT_A_TIME);
    for (wish, page) in
        [(HugePages::Explicit2M, Bytes::mib(2)), (HugePages::Explicit1G, Bytes::gib(1))]
    {
        match HostAllocation::new(page, Alignment::ONE, &HostOptions::new().huge_pages(wish)) {
            Ok(memory) => {
                let got = memory.residence().unwrap();
                assert_eq!((got.page, got.huge, got.mapped), (page, page, page));
            }
            Err(error) => {
                println!("not on this machine: {error}");
                let plain = matches!(error, Error::Unsupported { .. } | Error::OutOfMemory { .. });
                assert!(
                    plain && error.to_string().contains("GiB") | error.to_string().contains("MiB")
                );
            }
        }
    }
}

#[test]
fn a_numa_policy_and_the_node_of_a_byte_are_what_the_kernel_says() {
    let _alone = lock(&ONE_AT_A_TIME);
    let topology = System::here().topology();
    println!("nodes of this machine: {}; uniform: {}", topology.nodes.len(), topology.is_uniform());
    let all: Vec<u32> = topology.nodes.iter().map(|node| node.id).collect();
    let last = *all.last().unwrap();
    for policy in [
        NumaPolicy::Default,
        NumaPolicy::Prefer(last),
        NumaPolicy::Bind(vec![last]),
        NumaPolicy::Interleave(all.clone()),
    ] {
        let options = HostOptions::new().numa(policy.clone()).huge_pages(HugePages::Never);
        let made = HostAllocation::new(Bytes::mib(4), Alignment::ONE, &options);
        let mut memory = match made {
            Ok(memory) => memory,
            // A container may forbid it: then the refusal must say so, and that is the test.
            Err(error) => {
                println!("not on this machine: {error}");
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                continue;
            }
        };
        match memory.policy() {
            Ok(in_force) => assert_eq!(in_force, policy),
            Err(error) => println!("this system does not tell the policy: {error}"),
        }
        match memory.node_of(Bytes::mib(1)) {
            Ok(node) => assert_eq!(node, None, "nobody touched it"),
            Err(error) => {
                println!("this system does not tell nodes: {error}");
                continue;
            }
        }
        memory.touch(2);
        let nodes: Vec<Option<u32>> =
            (0..1024).map(|page| memory.node_of(Bytes::kib(4 * page)).unwrap()).collect();
        match &policy {
            NumaPolicy::Bind(_) => assert!(nodes.iter().all(|&node| node == Some(last))),
            NumaPolicy::Interleave(_) => assert!(all.iter().all(|&id| nodes.contains(&Some(id)))),
            _ => assert!(nodes.iter().all(|node| node.is_some_and(|id| all.contains(&id)))),
        }
    }
}

#[test]
fn totals_and_the_list_follow_what_is_made_and_dropped() {
    let _alone = lock(&ONE_AT_A_TIME);
    let before = HostAllocation::totals();
    let options = HostOptions::new();
    let first = HostAllocation::new(Bytes::kib(10), Alignment::ONE, &options).unwrap();
    let second = HostAllocation::for_elements::<u64>(1024, &options).unwrap();
    let size = |memory: &HostAllocation| memory.span().size();
    let bytes = before.bytes.saturating_add(size(&first)).saturating_add(size(&second));
    let now = HostAllocation::totals();
    assert_eq!((now.live, now.bytes), (before.live + 2, bytes));
    assert!(now.peak >= bytes && now.created == before.created + 2);
    let live = HostAllocation::live();
    let mine = live.iter().find(|one| one.span == second.span()).unwrap();
    assert!(mine.created_at.file().ends_with("tests.rs"));
    drop((first, second));
    let after = HostAllocation::totals();
    assert_eq!((after.live, after.bytes), (before.live, before.bytes));
    assert_eq!(after.peak, now.peak);
}
