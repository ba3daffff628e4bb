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
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let per_second = rustix::param::clock_ticks_per_second();
    Some(ticks(&stat).map_or(Duration::ZERO, |ticks| {
        Duration::from_millis(ticks.saturating_mul(1000) / per_second.max(1))
    }))
}

/// The sum of utime, stime, cutime and cstime in a line of `/proc/PID/stat`: the fields 14 to 17, of which
/// the second is a name in parentheses that may hold spaces and parentheses itself.
#[cfg(target_os = "linux")]
fn ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4).collect();
    (fields.len() == 4).then(|| fields.iter().filter_map(|field| field.parse::<u64>().ok()).sum())
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
