//! Handles that come again for other streams.

use forebay_core::Bytes;
use forebay_hal::{Priority, StreamHandle, Streams};
use forebay_sim::{Finding, HandleReuse, SimMachine};

use super::{Change, DEFAULT, Stage, order, span_of};
use crate::PoolOptions;

fn stage(strict: bool, max_bytes: Bytes) -> Stage {
    let machine = SimMachine::builder().seed(1).handles(HandleReuse::AtOnce);
    let options = PoolOptions::new().max_bytes(max_bytes);
    Stage::new(machine, options.set(|settings| settings.strict_streams(strict)))
}

fn stream(stage: &Stage) -> StreamHandle {
    stage.device.create_stream(Priority::Normal).unwrap()
}

/// Frees a block that is being written on a stream, and has the handle become another stream's.
fn change_hands(stage: &Stage) -> StreamHandle {
    let old = stream(stage);
    let block = stage.pool.allocate(Bytes::mib(40), old).unwrap();
    stage.write(span_of(block), 1, old);
    stage.pool.free(block.address(), old).unwrap();
    stage.device.destroy_stream(old).unwrap();
    let new = stream(stage);
    assert_eq!(new, old, "the handle comes again");
    new
}

/// The mistake is the program's: it did not say that the stream goes. Without strict streams the
/// new stream gets memory that the old one is writing.
#[test]
fn a_stream_does_not_get_what_another_of_its_handle_is_using() {
    for strict in [false, true] {
        let stage = stage(strict, Bytes::gib(1));
        let new = change_hands(&stage);
        let held = stage.pool.held();
        let block = stage.pool.allocate(Bytes::mib(40), new).unwrap();
        assert_eq!(stage.pool.held(), held, "it is the same memory");
        stage.write(span_of(block), 2, new);
        stage.device.synchronize_device().unwrap();
        let findings = stage.machine.findings();
        assert_eq!(findings.is_empty(), strict, "{findings:?}");
        assert!(findings.iter().all(|finding| matches!(finding, Finding::Race { .. })));
    }
}

/// Nor does a third stream, which would wait for the wrong one.
#[test]
fn nobody_waits_for_a_stream_by_a_handle_that_is_anothers() {
    for strict in [false, true] {
        let stage = stage(strict, Bytes::mib(64));
        change_hands(&stage);
        let third = stream(&stage);
        let block = stage.pool.allocate(Bytes::mib(40), third).unwrap();
        stage.write(span_of(block), 2, third);
        stage.device.synchronize_device().unwrap();
        assert_eq!(stage.machine.findings().is_empty(), strict);
    }
}

/// A handle of a destroyed stream does not stand in the way of others.
#[test]
fn a_stream_that_went_without_a_word_leaves_its_memory_to_all() {
    for strict in [false, true] {
        let machine = SimMachine::builder();
        let options = PoolOptions::new().max_bytes(Bytes::mib(64));
        let options = options.set(|settings| settings.strict_streams(strict));
        let stage = Stage::new(machine, options);
        let old = stream(&stage);
        let block = stage.pool.allocate(Bytes::mib(40), old).unwrap();
        stage.write(span_of(block), 1, old);
        stage.pool.free(block.address(), old).unwrap();
        stage.device.destroy_stream(old).unwrap();
        // Where the pool is not told, it waits for the device before it refuses.
        let block = stage.pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
        stage.write(span_of(block), 2, DEFAULT);
        assert!(stage.pool.allocate(Bytes::new(1), old).is_err() || !strict);
        stage.assert_no_findings();
    }
}

/// A block used on a stream whose handle has become another's is not reused before the old one is
/// done.
#[test]
fn uses_on_a_stream_that_is_gone_are_waited_for() {
    for strict in [false, true] {
        let stage = stage(strict, Bytes::gib(1));
        let user = stream(&stage);
        // Known to the pool, as that of any stream it has served.
        let own = stage.pool.allocate(Bytes::new(512), user).unwrap();
        stage.pool.free(own.address(), user).unwrap();
        let block = stage.pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
        stage.pool.record_use(block.address(), user).unwrap();
        stage.write(span_of(block), 1, user);
        stage.device.destroy_stream(user).unwrap();
        assert_eq!(stream(&stage), user);
        stage.pool.free(block.address(), DEFAULT).unwrap();
        stage.device.synchronize_stream(user).unwrap();
        stage.pool.process_deferred().unwrap();
        let next = stage.pool.allocate(Bytes::mib(40), DEFAULT).unwrap();
        stage.write(span_of(next), 2, DEFAULT);
        stage.device.synchronize_device().unwrap();
        assert_eq!(next.address(), block.address());
        assert_eq!(stage.machine.findings().is_empty(), strict);
    }
}

/// What is in quarantine, and what was used on such a stream, does not need it any more.
#[test]
fn a_stream_that_went_without_a_word_is_missed_by_no_aid() {
    let stage = Stage::with(|settings| {
        settings.strict_streams(true).poison(true).canaries(true).quarantine(Bytes::mib(64))
    });
    let gone = stream(&stage);
    let freed = stage.pool.allocate(Bytes::new(3000), gone).unwrap();
    stage.write(span_of(freed), 1, gone);
    stage.pool.free(freed.address(), gone).unwrap();
    let used = stage.pool.allocate(Bytes::new(9000), DEFAULT).unwrap();
    order(&stage.device, DEFAULT, gone);
    stage.pool.record_use(used.address(), gone).unwrap();
    stage.write(span_of(used), 1, gone);
    stage.device.destroy_stream(gone).unwrap();
    stage.pool.free(used.address(), DEFAULT).unwrap();
    stage.pool.check().unwrap();
    stage.pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(stage.pool.held(), Bytes::ZERO);
    stage.assert_no_findings();
}

/// The quarantine outlives no stream: what was freed on one leaves when it is forgotten.
#[test]
fn a_forgotten_stream_leaves_nothing_in_quarantine() {
    let limit = PoolOptions::new().max_bytes(Bytes::mib(4));
    let options = limit.set(|settings| settings.poison(true).quarantine(Bytes::mib(64)));
    let stage = Stage::new(SimMachine::builder(), options);
    let [kept, gone] = [(); 2].map(|()| stream(&stage));
    let [of_kept, of_gone] = [kept, gone].map(|stream| {
        let block = stage.pool.allocate(Bytes::new(3000), stream).unwrap();
        stage.write(span_of(block), 1, stream);
        stage.pool.free(block.address(), stream).unwrap();
        block
    });
    stage.pool.forget_stream(gone).unwrap();
    stage.device.destroy_stream(gone).unwrap();
    assert_eq!(stage.pool.statistics().quarantined, of_kept.size());
    // The last finds no room beside the others and what is in quarantine.
    let next = [(); 11].map(|()| stage.pool.allocate(Bytes::kib(200), kept).unwrap());
    let last = span_of(next[10]);
    assert!(last.start() <= of_gone.address() && of_gone.address() < last.end(), "{last:?}");
    stage.pool.check().unwrap();
    stage.assert_no_findings();
}

/// A block that others still use when its own stream is forgotten comes back to everybody, not to a
/// stream that is gone.
#[test]
fn a_block_in_use_elsewhere_does_not_bring_a_forgotten_stream_back() {
    let changes: [Change; 2] = [|settings| settings, |settings| settings.poison(true)];
    for change in changes {
        let options = PoolOptions::new().max_bytes(Bytes::mib(64)).set(change);
        let stage = Stage::new(SimMachine::builder(), options);
        let [own, user, taker] = [(); 3].map(|()| stream(&stage));
        let block = stage.pool.allocate(Bytes::mib(40), own).unwrap();
        stage.pool.record_use(block.address(), user).unwrap();
        order(&stage.device, own, user);
        stage.write(span_of(block), 2, user);
        stage.pool.free(block.address(), own).unwrap();
        stage.pool.forget_stream(own).unwrap();
        stage.device.destroy_stream(own).unwrap();
        stage.device.synchronize_stream(user).unwrap();
        let next = stage.pool.allocate(Bytes::mib(40), taker).unwrap();
        stage.write(span_of(next), 3, taker);
        stage.assert_no_findings();
    }
}

/// While one thread looks at a block that leaves the quarantine, another forgets the stream it was freed
/// on: not before the block is the heap's, or the stream would be known again by it.
#[test]
fn a_stream_is_not_forgotten_while_a_block_of_it_leaves_the_quarantine() {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    let stage = Stage::with(|settings| settings.poison(true).quarantine(Bytes::new(64 << 10)));
    let Stage { device, pool, .. } = &stage;
    let gone = device.create_stream(Priority::Normal).unwrap();
    let old = pool.allocate(Bytes::new(32 << 10), gone).unwrap();
    let new = pool.allocate(Bytes::new(64 << 10), DEFAULT).unwrap();
    pool.free(old.address(), gone).unwrap();
    let (tell_in, is_in) = sync_channel(1);
    let (tell_forgotten, forgotten) = sync_channel::<()>(1);
    let task = move || {
        let _ = tell_in.send(());
        // As long as it takes to forget the stream, where nothing keeps that back.
        let _ = forgotten.recv_timeout(Duration::from_millis(500));
    };
    device.enqueue_host(Box::new(task), gone).unwrap();
    std::thread::scope(|scope| {
        // Drives the old one out, which is looked at after what its stream is doing.
        scope.spawn(|| pool.free(new.address(), DEFAULT).unwrap());
        is_in.recv().unwrap();
        pool.forget_stream(gone).unwrap();
        let _ = tell_forgotten.send(());
    });
    assert!(!pool.shared.heap().slots.knows(gone));
    device.destroy_stream(gone).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.held(), Bytes::ZERO);
    stage.assert_no_findings();
}
