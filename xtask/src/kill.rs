//! Ending a command together with everything it started.
//!
//! A process group would not do: some test runners put each test in a group of its own. So the
//! tree of processes is read from the system; each is stopped before its children are looked up,
//! so that none starts another in between, and then all are killed.

use std::process::Child;

/// Ends `child` and its descendants, and collects it.
pub(crate) fn kill_with_descendants(child: &mut Child) {
    #[cfg(target_os = "linux")]
    linux::kill_tree(child.id());
    // Either fails only where it is over already.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::fs;

    use rustix::process::{Pid, Signal, kill_process};

    pub(super) fn kill_tree(root: u32) {
        // Nobody has waited for the root yet, and what is stopped does not exit by itself, so no
        // number in here can have passed to another process meanwhile.
        let mut stopped = BTreeSet::new();
        let mut fresh = BTreeSet::from([root]);
        while !fresh.is_empty() {
            for &process in &fresh {
                send(process, Signal::STOP);
            }
            stopped.append(&mut fresh);
            fresh = children_of(&stopped).difference(&stopped).copied().collect();
        }
        for &process in &stopped {
            send(process, Signal::KILL);
        }
    }

    fn send(process: u32, signal: Signal) {
        if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
            // It may have ended just before: then there is nothing left to do.
            let _ = kill_process(pid, signal);
        }
    }

    fn children_of(parents: &BTreeSet<u32>) -> BTreeSet<u32> {
        let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|process| {
                let stat = fs::read_to_string(format!("/proc/{process}/stat"));
                stat.ok().and_then(|stat| parent_in(&stat)).is_some_and(|up| parents.contains(&up))
            })
            .collect()
    }

    /// The parent in a line of `/proc/PID/stat`: the second word after the name, which stands in
    /// parentheses and may hold spaces and parentheses itself.
    fn parent_in(stat: &str) -> Option<u32> {
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_name_may_hold_anything() {
            assert_eq!(parent_in("42 (a) b) (c) S 17 42 42 0 -1"), Some(17));
            assert_eq!(parent_in("garbage"), None);
            assert_eq!(parent_in(""), None);
        }
    }
}
