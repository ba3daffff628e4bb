//! The report at exit: printed once, by the process that asked for it, and not by a child that it forks. Runs itself.
#![cfg(all(unix, feature = "host"))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use forebay::buffer::Memory;
use forebay::host::{HostAllocation, HostOptions};

const ROLE: &str = "LEAK_TEST_ROLE";

/// Not a test of its own: what the other one starts.
#[test]
fn leaking_program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    forebay::leak::report_at_exit();
    forebay::leak::report_at_exit();
    forebay::leak::capture_stacks(role == "stacks");
    let memory = Memory::host().unwrap();
    let buffer = memory.buffer::<u32>(4321).unwrap();
    // The child has a copy of this, and would list it.
    let host = HostAllocation::for_elements::<u8>(1000, &HostOptions::new()).unwrap();
    // SAFETY: the child does nothing but exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: the status is written there.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if role == "clean" {
        drop((buffer, host));
    } else {
        std::mem::forget((buffer, host));
    }
    std::process::exit(0);
}

#[test]
fn what_is_live_at_exit_is_reported_once_and_not_by_a_forked_child() {
    for (role, reports, stacks) in [("leak", 1, false), ("stacks", 1, true), ("clean", 0, false)] {
        let arguments = ["--exact", "leaking_program", "--nocapture", "--test-threads=1"];
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(arguments).env(ROLE, role).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{text}");
        assert_eq!(text.matches("forebay: live at exit").count(), reports, "{role}: {text}");
        assert_eq!(text.matches("4321 u32").count(), reports, "{role}: {text}");
        assert_eq!(text.contains("leaks_at_exit::leaking_program"), stacks, "{role}: {text}");
        assert_eq!(text.contains("was never used"), reports > 0, "{role}: {text}");
    }
}
