//! The machine's memory, nodes, huge pages and limits, as rows of the report.

use forebay_core::Bytes;
use forebay_host::system::{Bound, Reading, ResourceLimit, System};

use crate::doctor::report::{
    Fix, HugePageSection, LimitRow, LimitSection, MemorySection, NodeRow, NumaSection, PoolRow,
    Unread,
};

/// Keeps the reasons of what is not known while a section is put together.
#[derive(Debug, Default)]
struct Reasons {
    unknown: Vec<Unread>,
}

impl Reasons {
    /// The value, or `None` with the reason kept, once.
    fn known<T>(&mut self, reading: Reading<T>) -> Option<T> {
        let error = match reading {
            Ok(value) => return Some(value),
            Err(error) => Unread::from(error),
        };
        if !self.unknown.contains(&error) {
            self.unknown.push(error);
        }
        None
    }

    fn bytes(&mut self, reading: Reading<Bytes>) -> Option<u64> {
        self.known(reading).map(Bytes::get)
    }
}

/// Host memory.
pub(super) fn memory(system: &System) -> MemorySection {
    let memory = system.memory();
    let mut reasons = Reasons::default();
    let split = |bound: Option<Bound>| match bound {
        Some(bound) => (Some(bound.bytes.get()), Some(bound.whence.to_string())),
        None => (None, None),
    };
    let (usable_total_bytes, usable_total_whence) = split(reasons.known(memory.total_bound()));
    let (usable_free_bytes, usable_free_whence) = split(reasons.known(memory.free_bound()));
    MemorySection {
        usable_total_bytes,
        usable_total_whence,
        usable_free_bytes,
        usable_free_whence,
        contained: memory.is_contained(),
        machine_total_bytes: reasons.bytes(memory.total),
        machine_available_bytes: reasons.bytes(memory.available),
        swap_total_bytes: reasons.bytes(memory.swap_total),
        swap_free_bytes: reasons.bytes(memory.swap_free),
        unknown: {
            for unknown in memory.unknown {
                reasons.known::<()>(Err(unknown));
            }
            reasons.unknown
        },
    }
}

/// NUMA nodes.
pub(super) fn numa(system: &System) -> NumaSection {
    let topology = system.topology();
    let mut reasons = Reasons::default();
    let assumed = topology.assumed.is_some();
    if let Some(unknown) = topology.assumed {
        reasons.known::<()>(Err(unknown));
    }
    let nodes = topology.nodes.into_iter().map(|node| NodeRow {
        id: node.id,
        cpus: reasons.known(node.cpus).map(|cpus| list(&cpus)),
        total_bytes: reasons.bytes(node.total),
        free_bytes: reasons.bytes(node.free),
        distances: reasons.known(node.distances),
    });
    NumaSection { nodes: nodes.collect(), assumed, unknown: reasons.unknown }
}

/// Huge pages.
pub(super) fn huge_pages(system: &System) -> HugePageSection {
    let huge = system.huge_pages();
    let mut reasons = Reasons::default();
    let summary = huge.in_words();
    let granted = huge.explicit_granted();
    // A machine with pools of other sizes alone has no such setting.
    let cure = (!granted && huge.pool(Bytes::mib(2)).is_some())
        .then(|| Fix::command("set 1 GiB aside", "sudo sysctl vm.nr_hugepages=512"));
    let transparent_granted = huge.transparent.as_ref().ok().map(|setting| setting.grants());
    let shmem_granted = huge.shmem.as_ref().ok().map(|setting| setting.grants());
    let pools = reasons.known(huge.pools).unwrap_or_default().into_iter().map(|pool| PoolRow {
        page_bytes: pool.page.get(),
        obtainable: pool.obtainable().ok(),
        total: reasons.known(pool.total),
        free: reasons.known(pool.free),
        reserved: reasons.known(pool.reserved),
        surplus: reasons.known(pool.surplus),
        overcommit: reasons.known(pool.overcommit),
    });
    let pools = pools.collect();
    HugePageSection {
        summary,
        granted,
        cure,
        pools,
        transparent_granted,
        shmem_granted,
        transparent: reasons.known(huge.transparent).map(|setting| setting.to_string()),
        shmem: reasons.known(huge.shmem).map(|setting| setting.to_string()),
        unknown: reasons.unknown,
    }
}

/// What one process may have.
pub(super) fn limits(system: &System) -> LimitSection {
    let limits = system.limits();
    let mut reasons = Reasons::default();
    let processors = limits.processors.usable();
    let mut row = |ceiling: Reading<ResourceLimit>| {
        reasons.known(ceiling).map(|ResourceLimit { soft, hard }| LimitRow { soft, hard })
    };
    LimitSection {
        locked_memory: row(limits.locked_memory),
        open_files: row(limits.open_files),
        address_space: row(limits.address_space),
        file_size: row(limits.file_size),
        threads: row(limits.threads),
        spawns_freely: reasons.known(limits.spawns_freely),
        raises_freely: reasons.known(limits.raises_freely),
        user: reasons.known(system.user()).map(|user| limits_name(system, user)),
        locks_freely: reasons.known(limits.locks_freely),
        max_map_count: reasons.known(limits.max_maps),
        overcommit: reasons.known(limits.overcommit).map(|setting| setting.name()),
        processors,
        processors_allowed: reasons.known(limits.processors.allowed).map(|cpus| list(&cpus)),
        processor_quota_hundredths: limits.processors.quota_hundredths,
        unknown: reasons.unknown,
    }
}

/// How a file of limits names the user with the number `user`.
fn limits_name(system: &System, user: u32) -> String {
    let plain = |name: &String| {
        let sound = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(sound)
    };
    // A range of numbers stands for a user without a name, or with one a shell would not leave be.
    system.user_name(user).filter(plain).unwrap_or_else(|| format!("{user}:{user}"))
}

/// Numbers in order as "0-3,7".
fn list(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let parts: Vec<String> = runs
        .filter_map(|run| match run {
            [] => None,
            [only] => Some(only.to_string()),
            [first, .., last] => Some(format!("{first}-{last}")),
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn lists_are_written_as_the_system_writes_them() {
        assert_eq!(list(&[0, 1, 2, 3, 7]), "0-3,7");
        assert_eq!(list(&[5]), "5");
        assert_eq!(list(&[]), "");
        assert_eq!(list(&[0, 2, 4, 5, u32::MAX]), "0,2,4-5,4294967295");
    }
}
