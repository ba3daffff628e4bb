//! Derives what to fix from the findings. Covers only what hinders forebay now: a machine without an accelerator is not a
//! problem, and neither is a default that could be faster.
//!
//! A problem has one cause, and its cure is the smallest one that works for this user. Commands are kept apart from the
//! words about them, so that they can be copied.

mod limits;
mod settings;

#[cfg(test)]
mod tests;

use forebay::config::ConfigError;
use forebay::devices::{self, DeviceName};
use forebay_core::{Bytes, PageSize, counted};

use self::settings::shell_word;
use super::report::{Fix, Problem, Report, Status, Unread};

/// Free memory is scarce below this part of the total: 1/20.
const SCARCE_PART: u64 = 20;

/// All problems, the gravest first. `refused` are the invalid settings.
pub(super) fn problems(report: &Report, refused: &[ConfigError]) -> Vec<Problem> {
    let mut causes = unread_memory(&report.memory.unknown);
    causes.extend(limits::problems(report));
    let mut problems: Vec<Problem> = refused.iter().map(settings::problem).collect();
    problems.extend(unusable_device(report));
    problems.extend(broken(report, &causes));
    problems.extend(causes);
    problems.extend(scarce_memory(report));
    problems.extend(mappings(report));
    problems
}

/// The device that the environment names, if it cannot be opened. A broken one is a problem of its own.
fn unusable_device(report: &Report) -> Option<Problem> {
    let setting = report.settings.iter().find(|setting| setting.name == devices::VARIABLE)?;
    let value = setting.value.as_deref().filter(|value| !value.is_empty())?;
    let reason = match value.parse::<DeviceName>() {
        Err(error) => error.to_string(),
        Ok(name) => {
            let row = report.devices.iter().find(|row| row.name() == name.to_string());
            match row.map(|row| row.status) {
                Some(Status::Ready | Status::Broken) => return None,
                _ => format!("{name} is not on this machine"),
            }
        }
    };
    Some(Problem {
        what: format!("{}={value}: {reason}", devices::VARIABLE),
        why: "programs that ask for the best device fail".to_owned(),
        cure: Fix::command("name no device, or another", format!("unset {}", devices::VARIABLE)),
        fault: true,
    })
}

/// The broken devices, except those whose cause is a separate problem.
fn broken(report: &Report, causes: &[Problem]) -> Vec<Problem> {
    let unopened = report.memory.usable_total_bytes.is_none();
    let rows = report.devices.iter().filter(|row| row.status == Status::Broken);
    rows.filter(|row| !(unopened && row.kind == "host"))
        .map(|row| Problem {
            what: format!("the {} device does not work", row.name()),
            why: row.summary.clone(),
            cure: Fix::advice(match causes {
                [] => "follow the advice in the message; the figures are below",
                _ => "fix the next problem first, as it is the likely cause; otherwise follow the advice in the message",
            }),
            fault: true,
        })
        .collect()
}

/// Memory figures that could not be read: one problem for all files without permission, which share one cure, and one for
/// each of the others.
fn unread_memory(unread: &[Unread]) -> Vec<Problem> {
    let (forbidden, others): (Vec<Unread>, Vec<Unread>) =
        unread.iter().cloned().partition(|unread| unread.cause == Unread::FORBIDDEN);
    let groups = (!forbidden.is_empty()).then_some(forbidden).into_iter();
    groups
        .chain(others.into_iter().map(|one| vec![one]))
        .map(|group| {
            let names: Vec<String> = group.iter().map(ToString::to_string).collect();
            Problem {
                what: format!("memory is not fully known: {}", names.join(", ")),
                why: "forebay cannot keep to a limit that it cannot read".to_owned(),
                cure: unreadable(&group),
                fault: false,
            }
        })
        .collect()
}

/// The cure for files that could not be read, all for one cause.
fn unreadable(unread: &[Unread]) -> Fix {
    let files: Vec<String> = unread.iter().map(|unread| shell_word(&unread.file)).collect();
    let files = files.join(" ");
    let cause = unread.first().map(|unread| unread.cause);
    match cause {
        Some(Unread::FORBIDDEN) => Fix::command(
            "run forebay as a user who may read it, or get permission; to see who may",
            format!("ls -ld {files}"),
        ),
        Some(Unread::ABSENT) if files.starts_with("/proc/") => Fix::command(
            "forebay reads the state of the system from /proc, which is not mounted here; start a \
             container with its own /proc; elsewhere, mount it",
            "sudo mount -t proc proc /proc",
        ),
        Some(Unread::ABSENT) => Fix::command("to see what is there", format!("ls -ld {files}")),
        _ => Fix::command("to see what it holds", format!("cat {files}")),
    }
}

fn scarce_memory(report: &Report) -> Option<Problem> {
    let (total, free) = (report.memory.usable_total_bytes?, report.memory.usable_free_bytes?);
    if free >= total / SCARCE_PART {
        return None;
    }
    let whence = report.memory.usable_free_whence.as_deref().unwrap_or_default();
    Some(Problem {
        what: format!("{} of {} are free ({whence})", Bytes::new(free), Bytes::new(total)),
        why: "requests will fail, or the system will end a process".to_owned(),
        cure: Fix::command("to see which processes hold it", "ps aux --sort=-rss | head"),
        fault: false,
    })
}

fn mappings(report: &Report) -> Option<Problem> {
    let maps = report.limits.max_map_count?;
    let needed = pages_of(report.memory.usable_total_bytes?);
    if maps >= needed {
        return None;
    }
    // Holes between mapped pages count too, and a power of two is easy to recognise later.
    let ample = needed.saturating_mul(2).checked_next_power_of_two().unwrap_or(needed);
    Some(Problem {
        what: format!("the system limits a process to {}", counted(maps, "memory mapping")),
        why: format!(
            "each mapped page may need one, so only {} of {} can certainly be mapped",
            in_pages(maps),
            Bytes::new(report.memory.usable_total_bytes?)
        ),
        cure: Fix::command(
            "to allow more until the next restart",
            format!("sudo sysctl vm.max_map_count={ample}"),
        ),
        fault: false,
    })
}

/// How many pages of the device's usual size `bytes` fill.
fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PageSize::DEVICE.bytes().get())
}

fn in_pages(pages: u64) -> Bytes {
    PageSize::DEVICE.bytes().checked_mul(pages).unwrap_or(Bytes::MAX)
}
