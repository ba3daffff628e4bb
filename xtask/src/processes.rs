//! What the system says of processes: their processor time, and which started which.
//!
//! Steps run side by side and machines have other work to do, so wall time says little about what a step
//! costs. Processor time does, and it can be compared from run to run. Read from `/proc`; where there is none, all is 0.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Collects `child` if it has ended: how it ended, and its processor time with that of all it waited for.
pub(crate) fn try_wait(child: &mut Child) -> std::io::Result<Option<(ExitStatus, Duration)>> {
    // The figures are gone as soon as the process is collected.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if matches!(pid(child.id()).map(|pid| waitid(WaitId::Pid(pid), options)), Some(Ok(None))) {
        return Ok(None);
    }
    let ticks = stat_of(child.id()).map_or(0, |stat| stat.ticks);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let spent = Duration::from_millis(ticks.saturating_mul(1000) / per_second);
    Ok(child.try_wait()?.map(|status| (status, spent)))
}

/// Ends `child` and its descendants, and collects it.
///
/// A process group would not do: some test runners put each test in a group of its own. Each process is stopped before its
/// children are looked up, so that none starts another in between, and then all are killed. Nobody has waited for the root
/// yet, and what is stopped does not exit by itself, so no number can have passed to another process meanwhile.
pub(crate) fn kill_with_descendants(child: &mut Child) {
    // A signal fails only where the process has ended just before.
    let send = |process: u32, signal| pid(process).map(|pid| kill_process(pid, signal));
    let (mut stopped, mut fresh) = (BTreeSet::new(), BTreeSet::from([child.id()]));
    while !fresh.is_empty() {
        for &process in &fresh {
            let _ = send(process, Signal::STOP);
        }
        stopped.append(&mut fresh);
        fresh = children_of(&stopped).difference(&stopped).copied().collect();
    }
    for process in stopped {
        let _ = send(process, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

fn children_of(parents: &BTreeSet<u32>) -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child =
        |process: &u32| stat_of(*process).is_some_and(|stat| parents.contains(&stat.parent));
    processes.filter(is_child).collect()
}

/// A line of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// The sum of utime, stime, cutime and cstime.
    ticks: u64,
}

fn stat_of(process: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// The parent is field 4 and the times are 14 to 17; field 2 is a name in parentheses that may hold spaces and parentheses.
fn parse_stat(line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let times = fields.get(11..15)?;
    let ticks = times.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, ticks })
}

/// What the processors did since the machine started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineTicks {
    busy: u64,
    /// Wanted, and given to other machines on the same processors.
    stolen: u64,
}

impl MachineTicks {
    /// Now; `None` where the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, _, _, irq, softirq, stolen, ..] = ticks[..] else { return None };
        Some(Self { busy: user + nice + system + irq + softirq, stolen })
    }

    /// How many percent of the time that was wanted since `before` others got.
    pub(crate) fn stolen_since(self, before: Self) -> u64 {
        let stolen = self.stolen.saturating_sub(before.stolen);
        let wanted = self.busy.saturating_sub(before.busy).saturating_add(stolen);
        stolen.saturating_mul(100).checked_div(wanted).unwrap_or(0)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_line_of_the_system_is_understood() {
        let line = "42 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0";
        assert_eq!(parse_stat(line), Some(Stat { parent: 1, ticks: 127 }));
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("42 (short) S 1"), None);
    }

    #[test]
    fn what_others_took_is_a_part_of_what_was_wanted() {
        let at = |line: &str| MachineTicks::parse(line).unwrap();
        let before = at("cpu  100 20 30 4000 5 0 1 40 0 0\ncpu0 1 2 3\n");
        let after = at("cpu  160 20 40 9000 5 2 4 65 0 0\n");
        assert_eq!(after.stolen_since(before), 25, "25 of 75 + 25");
        assert_eq!(before.stolen_since(before), 0);
        assert_eq!(MachineTicks::parse("cpu  1 2 3"), None);
        assert!(MachineTicks::now().is_some());
    }

    #[test]
    fn the_time_of_what_a_command_started_is_in_it() {
        // The outer shell waits; the inner one works.
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; true";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let started = Instant::now();
        let (status, spent) = loop {
            if let Some(ended) = try_wait(&mut child).unwrap() {
                break ended;
            }
            assert!(started.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success());
        assert!(spent >= Duration::from_millis(20), "{spent:?}");
        assert!(spent <= started.elapsed() + Duration::from_millis(50), "{spent:?}");
    }
}
