//! Process limits that get in the way, and the smallest change that lifts each.

use forebay_core::{Bytes, GIB, MIB, counted};

use crate::doctor::report::{Fix, LimitRow, Problem, Report};

/// Below this much lockable memory a transfer's pinned buffers do not fit: several threads each
/// fill pieces of a few MiB ahead of the wire.
const LEAST_LOCKED: u64 = 64 * MIB;

/// Each page shared with other processes is an open file, and so are the system's own files while
/// they are read. 256 is what the strictest systems in use give by default.
const LEAST_FILES: u64 = 256;

/// Each stream is a thread, and the limit counts all of the user's, a desktop's few hundred among
/// them.
const LEAST_THREADS: u64 = 256;

/// Address space is used several times over: a page can be mapped in more than one place, and
/// ranges are reserved before they are filled.
const ADDRESSES_PER_BYTE: u64 = 4;

/// However little memory there is, the program, its libraries and its threads' stacks, which
/// reserve far more than they touch, want about this much.
const LEAST_ADDRESSES: u64 = 4 * GIB;

/// Every limit in the way, the gravest first.
pub(super) fn problems(report: &Report) -> impl Iterator<Item = Problem> {
    let of = &report.limits;
    let total = report.memory.usable_total_bytes.unwrap_or_default();
    let addresses = total.saturating_mul(ADDRESSES_PER_BYTE).max(LEAST_ADDRESSES);
    // What the limit is, its names, how much is enough, whether it does not apply to this user; then what is wrong, and why
    // that matters.
    type Row = (Option<LimitRow>, Name, Option<u64>, Option<bool>, fn(u64) -> String, String);
    let rows: [Row; 5] = [
        (
            of.file_size,
            Name { letter: 'f', item: "fsize", unit: 1024 },
            None,
            None,
            |soft| format!("the size of a file is limited to {}", Bytes::new(soft)),
            "pages are kept in a memory file, so this limits all of them together".to_owned(),
        ),
        (
            of.address_space,
            Name { letter: 'v', item: "as", unit: 1024 },
            Some(addresses),
            None,
            |soft| format!("a process is limited to {} of address space", Bytes::new(soft)),
            format!(
                "regions and stacks reserve more addresses than they use; {} of memory need {} or more",
                Bytes::new(total),
                Bytes::new(addresses).rounded_up()
            ),
        ),
        (
            of.open_files,
            Name { letter: 'n', item: "nofile", unit: 1 },
            Some(LEAST_FILES),
            None,
            |soft| format!("a process is limited to {}", counted(soft, "open file")),
            format!(
                "each page shared with other processes is an open file, and the program has others; \
                 {LEAST_FILES} or more are enough"
            ),
        ),
        (
            of.threads,
            Name { letter: 'u', item: "nproc", unit: 1 },
            Some(LEAST_THREADS),
            of.spawns_freely,
            |soft| {
                format!("this user is limited to {} over all processes", counted(soft, "thread"))
            },
            format!("each stream is a thread; {LEAST_THREADS} or more are enough"),
        ),
        (
            of.locked_memory,
            Name { letter: 'l', item: "memlock", unit: 1024 },
            Some(LEAST_LOCKED),
            of.locks_freely,
            |soft| format!("a process is limited to {} of locked memory", Bytes::new(soft)),
            format!(
                "pinned memory is locked memory; transfers need {} or more",
                Bytes::new(LEAST_LOCKED)
            ),
        ),
    ];
    rows.into_iter().filter_map(|(limit, name, enough, is_free, what, why)| {
        let limit = limit?;
        // Any limit is in the way where nothing is enough.
        let soft = limit.soft.filter(|&soft| enough.is_none_or(|enough| soft < enough))?;
        let cure = name.raised(report, limit, enough);
        (is_free != Some(true)).then(|| Problem { what: what(soft), why, cure, fault: false })
    })
}

/// What a limit is called where it is changed.
struct Name {
    /// To the shell.
    letter: char,
    /// In the files that set limits at login, and to what starts containers.
    item: &'static str,
    /// How many of what is limited both count as one.
    unit: u64,
}

impl Name {
    /// How to raise `limit` to `enough`, or to none: in this shell where that is allowed, else for
    /// this user alone.
    fn raised(&self, report: &Report, limit: LimitRow, enough: Option<u64>) -> Fix {
        let (letter, item) = (self.letter, self.item);
        let allowed = match (limit.hard, enough) {
            (None, _) => true,
            (Some(hard), Some(enough)) => hard >= enough,
            (Some(_), None) => false,
        };
        if allowed {
            return Fix::command(
                "for this shell and the programs it starts",
                format!("ulimit -{letter} {}", self.at_most(limit.hard)),
            );
        }
        if report.limits.raises_freely == Some(true) {
            return Fix::command(
                "for this shell and the programs it starts; root may exceed the hard limit",
                format!("ulimit -{letter} {}", self.at_least(enough)),
            );
        }
        // Where containers are started, that limit has no name.
        let container = match item {
            "as" => String::new(),
            _ => format!(
                "; in a container, start it with --ulimit {item}={}",
                number_or("-1", enough)
            ),
        };
        let Some(user) = &report.limits.user else {
            return Fix::advice(format!(
                "the hard limit is too low, and only root can raise it{container}"
            ));
        };
        let value = self.at_least(enough);
        Fix::command(
            format!(
                "the hard limit is too low; to raise it for {user} from the next login on{container}"
            ),
            format!(
                "echo '{user} - {item} {value}' | sudo tee -a /etc/security/limits.d/forebay.conf"
            ),
        )
    }

    /// A limit in the unit of shells and files of limits, rounded down: no more than is allowed.
    fn at_most(&self, limit: Option<u64>) -> String {
        number_or("unlimited", limit.map(|limit| limit / self.unit.max(1)))
    }

    /// The same rounded up: no less than is needed.
    fn at_least(&self, limit: Option<u64>) -> String {
        number_or("unlimited", limit.map(|limit| limit.div_ceil(self.unit.max(1))))
    }
}

fn number_or(none: &str, limit: Option<u64>) -> String {
    limit.map_or_else(|| none.to_owned(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_to_raise_to_are_rounded_up_and_those_that_are_allowed_down() {
        let addresses = Name { letter: 'v', item: "as", unit: 1024 };
        let said = [None, Some(4096), Some(4097)].map(|limit| addresses.at_least(limit));
        assert_eq!(said, ["unlimited", "4", "5"]);
        let said = [None, Some(4096), Some(4097)].map(|limit| addresses.at_most(limit));
        assert_eq!(said, ["unlimited", "4", "4"]);
    }
}
