use std::sync::mpsc::channel;

use core::mem::MaybeUninit;

use super::{spawn, spawn_scoped};

#[test]
fn work_is_done_and_a_panic_ends_with_its_thread() {
    spawn("panics", || std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
    let (send, receive) = channel();
    spawn("forebay-a-long-name\0", move || send.send(7).unwrap()).unwrap();
    assert_eq!(receive.recv(), Ok(7));
    assert!(receive.recv().is_err(), "what the thread had is dropped");
}

/// Whether this thread blocks a signal.
fn blocks(signal: libc::c_int) -> bool {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call writes the mask of this thread, and changes nothing.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), mask.as_mut_ptr());
        libc::sigismember(mask.as_ptr(), signal) == 1
    }
}

#[test]
fn threads_take_no_signals_from_their_beginning_and_their_maker_keeps_its_own() {
    const SIGNALS: [libc::c_int; 5] =
        [libc::SIGTERM, libc::SIGUSR1, libc::SIGPROF, libc::SIGSEGV, libc::SIGTRAP];
    let expected = [true, true, true, false, false];
    let (send, receive) = channel();
    let scoped = send.clone();
    spawn("quiet", move || send.send(SIGNALS.map(blocks)).unwrap()).unwrap();
    assert_eq!(receive.recv(), Ok(expected));
    std::thread::scope(|scope| {
        let work = move || scoped.send(SIGNALS.map(blocks)).unwrap();
        spawn_scoped(scope, "quiet", work).unwrap();
    });
    assert_eq!(receive.recv(), Ok(expected));
    assert_eq!(SIGNALS.map(blocks), [false; 5]);
}
