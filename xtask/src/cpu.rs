//! How much processor time a command took, with everything it started and waited for.
//!
//! Steps run side by side and machines have other work to do, so wall time says little about what a step
//! costs. Processor time does, and it can be compared from run to run.

use std::process::{Child, ExitStatus};
use std::time::Duration;

/// Collects `child` if it has ended: how it ended, and its processor time (zero where the system does not
/// tell).
pub(crate) fn try_wait(child: &mut Child) -> std::io::Result<Option<(ExitStatus, Duration)>> {
    // The figures are gone as soon as the process is collected.
    let Some(spent) = ended_time(child) else { return Ok(None) };
    Ok(child.try_wait()?.map(|status| (status, spent)))
}

#[cfg(not(target_os = "linux"))]
fn ended_time(_child: &Child) -> Option<Duration> {
    Some(Duration::ZERO)
}

/// The processor time of a child that has ended and is not collected yet; `None` while it runs.
#[cfg(target_os = "linux")]
fn ended_time(child: &Child) -> Option<Duration> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // Where the system does not tell, asking for the status has to.
    let asked = pid.and_then(|pid| waitid(WaitId::Pid(pid), options).ok());
    if matches!(asked, Some(None)) {
        return None;
    }
    Some(time_of(child.id()).unwrap_or_default())
}

/// The processor time of a process, and of those it has waited for.
#[cfg(target_os = "linux")]
fn time_of(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    ticks(&stat).map(duration)
}

#[cfg(target_os = "linux")]
fn duration(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_millis(ticks.saturating_mul(1000) / per_second.max(1))
}

/// The processor time of a process and its descendants; `None` where the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn time_of_tree(root: u32) -> Option<Duration> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let stats = entries.filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((process, parent, ticks(&stat)?))
    });
    let stats: Vec<(u32, u32, u64)> = stats.collect();
    let (mut tree, mut sum) = (vec![root], 0_u64);
    while let Some(process) = tree.pop() {
        tree.extend(stats.iter().filter(|stat| stat.1 == process).map(|stat| stat.0));
        sum += stats.iter().filter(|stat| stat.0 == process).map(|stat| stat.2).sum::<u64>();
    }
    Some(duration(sum))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn time_of_tree(_root: u32) -> Option<Duration> {
    None
}

/// The sum of utime, stime, cutime and cstime in a line of `/proc/PID/stat`: the fields 14 to 17, of which
/// the second is a name in parentheses that may hold spaces and parentheses itself.
#[cfg(target_os = "linux")]
fn ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4).collect();
    (fields.len() == 4).then(|| fields.iter().filter_map(|field| field.parse::<u64>().ok()).sum())
}

/// What the processors did since the machine started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineTicks {
    busy: u64,
    /// Wanted, and given to other machines on the same processors.
    stolen: u64,
}

impl MachineTicks {
    /// How many percent of the time that was wanted since `before` others got.
    pub(crate) fn stolen_since(self, before: Self) -> u64 {
        let stolen = self.stolen.saturating_sub(before.stolen);
        let wanted = self.busy.saturating_sub(before.busy).saturating_add(stolen);
        stolen.saturating_mul(100).checked_div(wanted).unwrap_or(0)
    }
}

/// What the processors did so far; `None` where the system does not tell.
pub(crate) fn machine_ticks() -> Option<MachineTicks> {
    machine_ticks_in(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine_ticks_in(stat: &str) -> Option<MachineTicks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    match ticks.as_slice() {
        [user, nice, system, _, _, irq, softirq, stolen, ..] => {
            Some(MachineTicks { busy: user + nice + system + irq + softirq, stolen: *stolen })
        }
        _ => None,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_line_of_the_system_is_understood() {
        let stat = "42 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0";
        assert_eq!(ticks(stat), Some(127));
        assert_eq!(ticks(""), None);
        assert_eq!(ticks("42 (short) S 1"), None);
    }

    #[test]
    fn what_others_took_is_a_part_of_what_was_wanted() {
        let at = |line: &str| machine_ticks_in(line).unwrap();
        let before = at("cpu  100 20 30 4000 5 0 1 40 0 0\ncpu0 1 2 3\n");
        let after = at("cpu  160 20 40 9000 5 2 4 65 0 0\n");
        assert_eq!(after.stolen_since(before), 25, "25 of 75 + 25");
        assert_eq!(before.stolen_since(before), 0);
        assert_eq!(machine_ticks_in("cpu  1 2 3"), None);
        assert!(machine_ticks().is_some());
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
