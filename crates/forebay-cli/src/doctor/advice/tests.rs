//! Causes that a test cannot lay out in files, as nobody forbids root anything.

use super::*;

fn unread(file: &str, cause: &'static str) -> Unread {
    Unread { file: file.to_owned(), reason: "no".to_owned(), cause }
}

#[test]
fn what_is_forbidden_is_one_problem_and_the_cure_says_so() {
    let problems = unread_memory(&[
        unread("/a/memory.max", Unread::FORBIDDEN),
        unread("/a/memory.stat", "malformed"),
        unread("/a/it's", Unread::FORBIDDEN),
    ]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].what.contains("/a/memory.max: no, /a/it's: no"), "{problems:?}");
    assert!(problems[0].cure.how.contains("a user who may read it"), "{problems:?}");
    assert_eq!(problems[0].cure.commands, [r"ls -ld /a/memory.max '/a/it'\''s'"]);
    assert_eq!(problems[1].cure.commands, ["cat /a/memory.stat"]);
}

#[test]
fn a_missing_proc_is_to_be_mounted() {
    let problems = unread_memory(&[unread("/proc/meminfo", Unread::ABSENT)]);
    assert_eq!(problems[0].cure.commands, ["sudo mount -t proc proc /proc"]);
    assert!(!problems[0].cure.how.contains("memory limit"), "the command has no such option");
}
