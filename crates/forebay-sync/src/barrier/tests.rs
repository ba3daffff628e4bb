/// What a system without the sandbox of the test says.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri), not(loom))))]
#[test]
fn a_sandbox_that_comes_late_stops_nobody() {
    println!(
        "skipped: the filter of system calls is for x86-64 Linux, and Miri and loom have none"
    );
}

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri), not(loom)))]
mod sandbox {
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use crate::barrier;
    use crate::gates::Gates;

    /// Set for the process that goes into the sandbox: the error that it answers with.
    const ERROR: &str = "FOREBAY_TEST_MEMBARRIER_ERROR";

    #[repr(C)]
    struct Filter {
        code: u16,
        jump_true: u8,
        jump_false: u8,
        k: u32,
    }

    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const Filter,
    }

    unsafe extern "C" {
        fn prctl(option: i32, ...) -> i32;
    }

    /// Has `membarrier` fail with `error` from here on, in this thread and those it starts.
    fn forbid_membarrier(error: u32) {
        const MEMBARRIER: u32 = 324;
        const NO_NEW_PRIVILEGES: i32 = 38;
        const SET_SECCOMP: i32 = 22;
        let filter = [
            Filter { code: 0x20, jump_true: 0, jump_false: 0, k: 0 },
            Filter { code: 0x15, jump_true: 0, jump_false: 1, k: MEMBARRIER },
            Filter { code: 0x06, jump_true: 0, jump_false: 0, k: 0x0005_0000 | error },
            Filter { code: 0x06, jump_true: 0, jump_false: 0, k: 0x7fff_0000 },
        ];
        let program = Program { len: 4, filter: filter.as_ptr() };
        // SAFETY: the calls read the program and the filter, which outlive them, and write nothing.
        unsafe {
            assert_eq!(prctl(NO_NEW_PRIVILEGES, 1_u64, 0_u64, 0_u64, 0_u64), 0);
            assert_eq!(prctl(SET_SECCOMP, 2_u64, &raw const program), 0);
        }
    }

    /// Stops the owners, by a panic too.
    struct StopAtTheEnd<'a>(&'a AtomicBool);

    impl Drop for StopAtTheEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Owners at work on the light side while the visitor loses `membarrier`: nothing is lost, and what
    /// is made afterwards begins with full barriers.
    fn lose_membarrier(error: u32) {
        let gates: Gates<[u64; 2]> = Gates::new(2);
        assert!(barrier::one_sided(), "skipped: the system has no membarrier");
        // Both are there from the first visit on: one that finds no gate needs no barrier.
        for owner in 0..2 {
            gates.get_or_make(owner, || [0; 2]).unwrap();
        }
        let stop = AtomicBool::new(false);
        let (mut collected, mut added) = (0, 0);
        std::thread::scope(|scope| {
            let owners: Vec<_> = (0..2)
                .map(|owner| {
                    let (gates, stop) = (&gates, &stop);
                    scope.spawn(move || {
                        let gate = gates.get_or_make(owner, || [0; 2]).unwrap();
                        let mut added = 0_u64;
                        while !stop.load(Ordering::Relaxed) {
                            // SAFETY: this thread alone has this number.
                            if let Some(mut passed) = unsafe { gate.pass() } {
                                passed.data().iter_mut().for_each(|sum| *sum += 1);
                                passed.leave();
                                added += 1;
                                continue;
                            }
                            let add =
                                |sums: &mut [u64; 2]| sums.iter_mut().for_each(|sum| *sum += 1);
                            // SAFETY: likewise.
                            while unsafe { gate.enter(add) }.is_none() {
                                gates.wait();
                            }
                            added += 1;
                        }
                        added
                    })
                })
                .collect();
            let at_the_end = StopAtTheEnd(&stop);
            let mut collect = || {
                gates.each(|sums| {
                    assert_eq!(sums[0], sums[1], "seen half way");
                    collected += core::mem::take(sums)[0];
                });
            };
            (0..100).for_each(|_| collect());
            forbid_membarrier(error);
            let begun = Instant::now();
            (0..100).for_each(|_| collect());
            assert!(!barrier::one_sided());
            println!("100 visits without membarrier: {:?}", begun.elapsed());
            drop(at_the_end);
            added = owners.into_iter().map(|owner| owner.join().unwrap()).sum();
            collect();
        });
        assert_eq!(collected, added);
        let after: Gates<u32> = Gates::new(1);
        let gate = after.get_or_make(0, || 0).unwrap();
        // SAFETY: there is one thread here.
        assert!(unsafe { gate.pass() }.is_none(), "a new gate trusts the light side");
        barrier::prepare();
        assert!(!barrier::one_sided(), "for good");
    }

    /// In a process of its own: a sandbox cannot be left.
    #[test]
    fn a_sandbox_that_comes_late_stops_nobody() {
        if let Ok(error) = std::env::var(ERROR) {
            return lose_membarrier(error.parse().unwrap());
        }
        let name = "barrier::tests::sandbox::a_sandbox_that_comes_late_stops_nobody";
        for error in ["1", "38"] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact", "--nocapture", "--test-threads=1"])
                .env(ERROR, error)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            let ended = loop {
                match child.try_wait().unwrap() {
                    Some(ended) => break ended,
                    None if begun.elapsed() > Duration::from_secs(60) => {
                        child.kill().unwrap();
                        child.wait().unwrap();
                        panic!("error {error}: the process hangs");
                    }
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            assert!(ended.success(), "error {error}: {ended}");
        }
    }
}
