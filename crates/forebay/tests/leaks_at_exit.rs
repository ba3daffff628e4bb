//! The report at exit: printed once, by the process that asked for it, and not by a child that it forks. Runs itself.
#![cfg(all(unix, feature = "host"))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use forebay::HostDevice;
use forebay::buffer::BufferManager;
use forebay::host::{HostAllocation, HostOptions};

const ROLE: &str = "LEAK_TEST_ROLE";

/// Not a test of its own: what the other one starts.
#[test]
fn leaking_program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let by_settings = role.starts_with("settings");
    if !by_settings {
        forebay::leak::report_at_exit();
        forebay::leak::report_at_exit();
        forebay::leak::capture_stacks(role == "stacks");
    }
    let memory = match role.as_str() {
        "settings, managed" => BufferManager::managed(&HostDevice::open().unwrap()).unwrap(),
        _ => BufferManager::host().unwrap(),
    };
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

fn ended(role: &str, settings: &[(&str, &str)]) -> String {
    let arguments = ["--exact", "leaking_program", "--nocapture", "--test-threads=1"];
    let mut program = Command::new(std::env::current_exe().unwrap());
    let program = program.args(arguments).env(ROLE, role).envs(settings.iter().copied());
    let ended = program.output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{text}");
    text
}

#[test]
fn what_is_live_at_exit_is_reported_once_and_not_by_a_forked_child() {
    for (role, reports, stacks) in [("leak", 1, false), ("stacks", 1, true), ("clean", 0, false)] {
        let text = ended(role, &[]);
        assert_eq!(text.matches("forebay: live at exit").count(), reports, "{role}: {text}");
        assert_eq!(text.matches("4321 u32").count(), reports, "{role}: {text}");
        assert_eq!(text.contains("leaks_at_exit::leaking_program"), stacks, "{role}: {text}");
        assert_eq!(text.contains("was never used"), reports > 0, "{role}: {text}");
    }
}

#[test]
fn the_environment_switches_the_report_and_the_stacks_on() {
    let (report, stacks) = (("FOREBAY_LEAK_REPORT", "on"), ("FOREBAY_CONF", "leak_stacks:on"));
    for role in ["settings", "settings, managed"] {
        assert!(!ended(role, &[stacks]).contains("forebay: live at exit"));
        for (settings, has_stacks) in [(vec![report], false), (vec![report, stacks], true)] {
            let text = ended(role, &settings);
            assert_eq!(text.matches("forebay: live at exit").count(), 1, "{role}: {text}");
            assert_eq!(text.contains("leaks_at_exit::leaking_program"), has_stacks, "{text}");
        }
    }
}
