use loom::sync::Arc;
use loom::thread;

use super::*;

/// A visitor that takes what it finds, or asks the owner for it.
fn take_or_ask(gate: &Gate<u32>) -> (u32, bool) {
    // SAFETY: the tests have one visitor.
    let shut = [unsafe { ShutGate::new(gate) }];
    ShutGate::pass_barrier(&shut);
    let mut taken = 0;
    let take = |sum: &mut u32| {
        taken = core::mem::take(sum);
        AfterVisit::Empty
    };
    // SAFETY: the barrier was passed.
    let visited = unsafe { shut[0].visit(take) };
    if !visited {
        shut[0].gate.ask();
    }
    (taken, !visited)
}

/// The owner and a visitor that waits, in every order the memory model allows: never both inside,
/// and what one wrote the other sees.
#[test]
fn loom_owner_and_visitor_are_never_both_inside() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(0_u32));
        let owner = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            // SAFETY: this thread is the owner.
            let once = unsafe { owner.enter(|sum| *sum += 1) };
            // SAFETY: likewise.
            let twice = unsafe { owner.pass() }.map(|mut passed| {
                *passed.data() += 1;
                passed.leave();
            });
            u32::from(once.is_some()) + u32::from(twice.is_some())
        });
        // SAFETY: there is one visitor.
        let shut = [unsafe { ShutGate::new(&gate) }];
        ShutGate::pass_barrier(&shut);
        let mut seen = 0;
        // SAFETY: the barrier was passed.
        while !unsafe {
            shut[0].visit(|sum| {
                seen = *sum;
                AfterVisit::NotEmpty
            })
        } {
            thread::yield_now();
        }
        drop(shut);
        let entered = thread.join().unwrap();
        assert!(seen <= entered);
        // SAFETY: the owner's thread has ended.
        assert_eq!(unsafe { with(&gate.data, |sum| *sum) }, entered);
    });
}

/// The owner and a visitor that does not wait: what the visitor passes over, the owner is asked for
/// at its next entry, and what it takes is not there any more. Nothing is lost or had twice.
#[test]
fn loom_a_request_is_never_lost() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(1_u32));
        let owner = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            let mut added = 0;
            // SAFETY: this thread is the owner.
            if let Some(mut passed) = unsafe { owner.pass() } {
                *passed.data() += 1;
                added += 1;
                passed.leave();
            }
            // SAFETY: likewise.
            if let Some(mut passed) = unsafe { owner.pass() } {
                *passed.data() += 1;
                added += 1;
                passed.leave();
            }
            added
        });
        let (taken, asked) = take_or_ask(&gate);
        let added = thread.join().unwrap();
        // The owner's thread, after the visitor: it must be told, and the fast path is closed.
        assert_eq!(gate.is_asked(), asked);
        assert_eq!(gate.is_emptied(), !asked);
        // SAFETY: the owner's thread has ended; this is the next owner.
        assert!(unsafe { gate.pass() }.is_none());
        let drain = |sum: &mut u32| {
            gate.take_request();
            core::mem::take(sum)
        };
        // SAFETY: likewise.
        let drained = unsafe { gate.enter(drain) }.unwrap();
        assert!(!asked || taken == 0);
        assert_eq!(taken + drained, 1 + added);
        // SAFETY: likewise.
        assert!(unsafe { gate.pass() }.is_some(), "the fast path is open again");
    });
}

/// A request that comes while the owner serves another is served with it, or stays for the next entry.
#[test]
fn loom_a_request_that_comes_while_one_is_served_stays_or_is_served() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(0_u32));
        gate.state.fetch_or(ASKED, Ordering::Relaxed);
        let owner = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            let mut drained = 0;
            let serve = |sum: &mut u32| {
                owner.take_request();
                drained = core::mem::take(sum);
                *sum += 1;
            };
            // SAFETY: this thread is the owner.
            let entered = unsafe { owner.enter(serve) };
            (drained, u32::from(entered.is_some()))
        });
        let (taken, asked) = take_or_ask(&gate);
        let (drained, added) = thread.join().unwrap();
        // SAFETY: the owner's thread has ended.
        let rest = unsafe { with(&gate.data, |sum| *sum) };
        assert_eq!(taken + drained + rest, added);
        assert!(!asked || gate.is_asked() || added == 1, "the request is lost");
    });
}
