//! Stretches of a program, and what happened one by one.

use std::sync::Mutex;

use super::*;
use crate::Tag;
use crate::report::{EventAction, PoolEvent, Stack};

fn pool(options: PoolOptions) -> Pool {
    let (_, _, device) = open(SimMachine::builder().memory(MemoryModel::Phantom));
    options.build(&device).unwrap()
}

#[test]
fn scopes_nest_and_each_has_its_own_peak() {
    let pool = pool(PoolOptions::new());
    let of = |mib| pool.allocate(Bytes::mib(mib), DEFAULT).unwrap();
    let free = |block: Block| pool.free(block.address(), DEFAULT).unwrap();
    let before = of(1);
    let outer = pool.scope();
    let kept = of(4);
    let inner = pool.scope();
    let young = of(8);
    free(young);
    let inner = inner.end();
    let last = of(2);
    free(kept);
    let outer = outer.end();

    assert_eq!((inner.allocations, inner.frees), (1, 1));
    assert_eq!((inner.live_before, inner.live_after), (Bytes::mib(5), Bytes::mib(5)));
    assert_eq!(inner.peak, Bytes::mib(13));
    assert_eq!((outer.allocations, outer.frees), (3, 2));
    assert_eq!((outer.live_before, outer.live_after), (Bytes::mib(1), Bytes::mib(3)));
    assert_eq!(outer.peak, Bytes::mib(13), "what was inside the inner was inside the outer");
    assert!(outer.misses > inner.misses);
    // A later one knows nothing of the peak before.
    pool.trim(Bytes::ZERO).unwrap();
    let later = pool.scope();
    let more = of(3);
    let later = later.end();
    assert_eq!(later.peak, Bytes::mib(6));
    for block in [before, last, more] {
        free(block);
    }
}

#[test]
fn a_scope_that_is_dropped_measures_no_more() {
    let pool = pool(PoolOptions::new());
    let [one, two] = [(); 2].map(|()| pool.scope());
    drop(one);
    assert_eq!(pool.shared.heap().ledger.scopes.len(), 1);
    assert_eq!(two.end().allocations, 0);
    assert_eq!(pool.shared.heap().ledger.scopes.len(), 0);
}

#[test]
fn a_scope_measures_the_pool_and_not_the_thread() {
    let pool = pool(PoolOptions::new());
    let scope = pool.scope();
    std::thread::scope(|threads| {
        threads.spawn(|| pool.allocate(Bytes::mib(2), DEFAULT).unwrap());
    });
    let figures = scope.end();
    assert_eq!((figures.allocations, figures.live_after), (1, Bytes::mib(2)));
}

#[test]
fn history_is_bounded_and_in_order() {
    let pool = pool(PoolOptions::new().set(|settings| settings.history(5_u64)));
    let tag = Tag::named("tag of the history");
    let block = {
        let _tag = tag.enter();
        pool.allocate(Bytes::new(700), DEFAULT).unwrap()
    };
    let first = pool.history();
    assert_eq!(first.len(), 1);
    assert_eq!(
        (first[0].action, first[0].address, first[0].requested, first[0].stream, first[0].tag),
        (EventAction::Allocate, block.address(), Bytes::new(700), DEFAULT, tag)
    );
    for round in 1..=10_u64 {
        let block = pool.allocate(Bytes::new(round * 512), DEFAULT).unwrap();
        pool.free(block.address(), DEFAULT).unwrap();
    }
    let history = pool.history();
    let told: Vec<(EventAction, u64)> =
        history.iter().map(|event| (event.action, event.requested.get() / 512)).collect();
    use EventAction::{Allocate, Free};
    assert_eq!(told, [(Free, 8), (Allocate, 9), (Free, 9), (Allocate, 10), (Free, 10)]);
    assert!(history.windows(2).all(|pair| pair[0].time <= pair[1].time));
    // Fewer from now on: the newest stay. None: nothing is noted any more.
    pool.set("history", "2").unwrap();
    let of = |event: &PoolEvent| (event.action, event.address, event.thread);
    assert!(pool.history().iter().map(of).eq(history[3..].iter().map(of)));
    pool.set("history", "0").unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    assert_eq!(pool.history(), []);
    pool.set("history", "3").unwrap();
    pool.allocate(Bytes::new(1), DEFAULT).unwrap();
    assert_eq!(pool.history().len(), 1);
}

#[test]
fn a_refusal_is_an_event_and_the_free_of_another_tag_is_not() {
    let options = PoolOptions::new().set(|settings| settings.history(8_u64));
    let pool = pool(options.max_bytes(Bytes::mib(8)));
    let tag = Tag::named("tag of the history");
    let block = {
        let _tag = tag.enter();
        pool.allocate(Bytes::mib(1), DEFAULT).unwrap()
    };
    assert!(pool.allocate(Bytes::mib(64), DEFAULT).is_err());
    pool.free(block.address(), DEFAULT).unwrap();
    assert!(pool.free(block.address(), DEFAULT).is_err(), "and what is refused there is none");
    let [_, refused, freed] = pool.history()[..] else { panic!("{:?}", pool.history()) };
    assert_eq!((refused.action, refused.address), (EventAction::Refuse, Address::NULL));
    assert_eq!((refused.requested, refused.tag), (Bytes::mib(64), Tag::NONE));
    assert_eq!((freed.action, freed.tag), (EventAction::Free, tag), "of the block, not the thread");
}

#[test]
fn stacks_come_and_go_while_threads_allocate() {
    let pool = pool(PoolOptions::new().set(|settings| settings.history(10_000_u64)));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let pair = || {
        let block = pool.allocate(Bytes::kib(4), DEFAULT).unwrap();
        pool.free(block.address(), DEFAULT).unwrap();
    };
    let with_stack = |action| {
        let history = pool.history();
        history.iter().filter(|event| event.action == action && !event.stack.is_none()).count()
    };
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    pair();
                }
            });
        }
        for _ in 0..20 {
            pool.set("stacks", "on").unwrap();
            pair();
            pool.set("stacks", "off").unwrap();
            pair();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    pool.set("history", "0").unwrap();
    pool.set("history", "100").unwrap();
    pair();
    assert_eq!(with_stack(EventAction::Allocate), 0, "off");
    pool.set("stacks", "on").unwrap();
    for _ in 0..3 {
        pair();
    }
    assert!(pool.allocate(Bytes::gib(1 << 20), DEFAULT).is_err());
    let told = [EventAction::Allocate, EventAction::Refuse, EventAction::Free].map(with_stack);
    assert_eq!(told, [3, 1, 0]);
    let history = pool.history();
    let stacks: Vec<Stack> = history.iter().map(|event| event.stack).collect();
    assert_eq!((stacks[2], stacks[4]), (stacks[6], stacks[6]), "one place, one stack");
    assert!(stacks[2].to_string().contains("stacks_come_and_go"), "{}", stacks[2]);
}

/// Observers see every event, whichever thread it is of, with no lock held; for each address an
/// allocation and a free in turn.
#[test]
fn observers_see_every_event_and_addresses_take_turns() {
    let seen: Arc<Mutex<Vec<PoolEvent>>> = Arc::default();
    let see = Arc::clone(&seen);
    let pool = pool(PoolOptions::new().on_event(move |event| see.lock().unwrap().push(*event)));
    std::thread::scope(|threads| {
        for seed in 0..2 {
            let pool = &pool;
            threads.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..500 {
                    let size = Bytes::new(size_up_to(&mut random, 9, 12));
                    let block = pool.allocate(size, DEFAULT).unwrap();
                    pool.free(block.address(), DEFAULT).unwrap();
                }
            });
        }
    });
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2000);
    let mut live = std::collections::BTreeSet::new();
    for event in seen.iter() {
        let turned = match event.action {
            EventAction::Allocate => live.insert(event.address),
            _ => live.remove(&event.address),
        };
        assert!(turned, "{event:?}");
    }
    assert!(live.is_empty());
    assert_eq!(pool.history(), [], "observers do not make a history");
}
