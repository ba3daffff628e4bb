//! What to mend, from what was found. Only what hinders forebay here and now: that a machine has
//! no accelerator is no problem, and neither is a default that merely could be faster.

use forebay_core::{Bytes, MIB, PageSize};

use super::report::{Problem, Report, Status};

/// Below this much lockable memory a transfer's pinned buffers do not fit: several threads each
/// fill pieces of a few MiB ahead of the wire.
const LEAST_LOCKED: u64 = 64 * MIB;

/// Free memory below this part of the total is soon none: 1/20.
const SCARCE_PART: u64 = 20;

/// Address space is used several times over: a page can be mapped in more than one place, and
/// ranges are reserved before they are filled.
const ADDRESSES_PER_BYTE: u64 = 4;

/// Everything worth mending, the gravest first.
pub(super) fn problems(report: &Report) -> Vec<Problem> {
    let broken = report.devices.iter().filter(|row| row.status == Status::Broken);
    let broken = broken.map(|row| Problem {
        what: format!("the {} device cannot be opened", row.kind),
        why: row.summary.clone(),
        cure: "what the message says; the figures are above".to_owned(),
    });
    let rest =
        [scarce_memory(report), mappings(report), address_space(report), locked_memory(report)];
    let unread = report.memory.unknown.iter().map(|reason| Problem {
        what: format!("memory is not fully known: {reason}"),
        why: "a limit that cannot be read cannot be kept".to_owned(),
        cure: match reason.split_once(": ") {
            Some((file, _)) => format!("look at it: cat {file}"),
            None => "look at the file it names".to_owned(),
        },
    });
    broken.chain(rest.into_iter().flatten()).chain(unread).collect()
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
        cure: "see who holds it: ps aux --sort=-rss | head".to_owned(),
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
        what: format!("a process may have {maps} mappings"),
        why: format!(
            "each mapped page may take one: {} of {} are sure to find room",
            in_pages(maps),
            Bytes::new(report.memory.usable_total_bytes?)
        ),
        cure: format!("sudo sysctl vm.max_map_count={ample}"),
    })
}

fn address_space(report: &Report) -> Option<Problem> {
    let space = report.limits.address_space?;
    let soft = space.soft?;
    let total = report.memory.usable_total_bytes?;
    if soft >= total.saturating_mul(ADDRESSES_PER_BYTE) {
        return None;
    }
    Some(Problem {
        what: format!("a process may use {} of addresses", Bytes::new(soft)),
        why: format!(
            "regions reserve more than they hold; {} of memory ask for {} or more",
            Bytes::new(total),
            Bytes::new(total.saturating_mul(ADDRESSES_PER_BYTE))
        ),
        cure: match space.hard {
            None => "ulimit -v unlimited".to_owned(),
            Some(_) => lift("as"),
        },
    })
}

fn locked_memory(report: &Report) -> Option<Problem> {
    let locked = report.limits.locked_memory?;
    let soft = locked.soft?;
    if report.limits.locks_freely == Some(true) || soft >= LEAST_LOCKED {
        return None;
    }
    Some(Problem {
        what: format!("a process may lock {} of memory", Bytes::new(soft)),
        why: format!(
            "pinned memory is locked memory; transfers want {} or more",
            Bytes::new(LEAST_LOCKED)
        ),
        cure: match locked.hard {
            None => "ulimit -l unlimited".to_owned(),
            // The shell counts KiB.
            Some(hard) if hard >= LEAST_LOCKED => format!("ulimit -l {}", hard / 1024),
            Some(_) => lift("memlock"),
        },
    })
}

/// How to lift a limit whose hard part is in the way.
fn lift(name: &str) -> String {
    let container = match name {
        "memlock" => "; in a container start it with --ulimit memlock=-1",
        _ => "",
    };
    format!(
        "echo '* - {name} unlimited' | sudo tee -a /etc/security/limits.d/forebay.conf \
         and log in again{container}"
    )
}

/// How many pages of the device's usual size `bytes` fill.
fn pages_of(bytes: u64) -> u64 {
    PageSize::DEVICE.pages_for(Bytes::new(bytes)).get()
}

fn in_pages(pages: u64) -> Bytes {
    PageSize::DEVICE.bytes().checked_mul(pages).unwrap_or(Bytes::MAX)
}
