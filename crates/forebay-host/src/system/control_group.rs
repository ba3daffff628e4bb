//! Container limits on memory and processors: control groups, both versions.
//!
//! A group's limit also applies to everything below it, so this reads the process's own group and every visible
//! ancestor:
//!
//! ```text
//!   /sys/fs/cgroup                  no limit at the root
//!     └─ kubepods     max 12 GiB    used 11 GiB, 3 of them page cache that can be dropped
//!          └─ pod     max  8 GiB    used  2 GiB
//!               └─ us max -         total: 8 GiB by "pod"; free: 4 GiB by "kubepods"
//! ```

use std::path::{Path, PathBuf};

use forebay_core::Bytes;

use super::file::quoted;
use super::mounts::{GroupMount, GroupPath};
use super::{Reading, System, Unknown};

/// The groups this process is in.
const GROUPS: &str = "/proc/self/cgroup";

/// From here on a figure of the first version means "no limit". The kernel writes the largest
/// count of pages there is, which depends on the page size but is always near 2^63; no machine has
/// 2^62 bytes.
const NO_LIMIT: u64 = 1 << 62;

/// The version of the control group interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GroupVersion {
    /// One hierarchy for each controller.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// The memory figures of one control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// The directory of its files.
    pub directory: PathBuf,
    /// The interface version.
    pub version: GroupVersion,
    /// The system kills processes above this; `None` for no limit.
    pub limit: Reading<Option<Bytes>>,
    /// The system slows the group to a crawl above this; `None` for no limit.
    pub throttle: Reading<Option<Bytes>>,
    /// The memory that the group and its descendants hold, including page cache.
    pub used: Reading<Bytes>,
    /// The part that the system drops before it refuses memory: page cache not recently used.
    pub reclaimable: Reading<Bytes>,
}

impl GroupMemory {
    /// The tighter of limit and throttle, with its file; `None` if neither is set.
    ///
    /// The throttle counts because memory beyond it is too slow to be useful.
    pub fn ceiling(&self) -> Option<(Bytes, PathBuf)> {
        let limit_file = match self.version {
            GroupVersion::V1 => "memory.limit_in_bytes",
            GroupVersion::V2 => "memory.max",
        };
        // Only the second version has a throttle.
        [(&self.limit, limit_file), (&self.throttle, "memory.high")]
            .into_iter()
            .filter_map(|(value, file)| Some(((*value.as_ref().ok()?)?, self.directory.join(file))))
            .min_by_key(|(bytes, _)| *bytes)
    }

    /// The memory left below the ceiling, or the ceiling itself if usage is unknown.
    pub fn room(&self) -> Option<(Bytes, PathBuf)> {
        let (ceiling, file) = self.ceiling()?;
        let used = self.used.as_ref().copied().unwrap_or_default();
        let reclaimable = self.reclaimable.as_ref().copied().unwrap_or_default();
        Some((ceiling.saturating_sub(used.saturating_sub(reclaimable)), file))
    }

    /// The values that are not known.
    fn unknown(&self) -> impl Iterator<Item = &Unknown> {
        let limits = [&self.limit, &self.throttle].into_iter().filter_map(|it| it.as_ref().err());
        // Where nothing is limited, what is used does not matter.
        let figures =
            [&self.used, &self.reclaimable].into_iter().filter_map(|it| it.as_ref().err());
        limits.chain(figures.filter(|_| self.ceiling().is_some()))
    }
}

/// The memory groups above this process, its own first, and what could not be read of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryGroups {
    pub(super) groups: Vec<GroupMemory>,
    pub(super) unknown: Vec<Unknown>,
}

impl System {
    pub(super) fn memory_groups(&self) -> MemoryGroups {
        let mut found = MemoryGroups::default();
        let (mounts, paths) = match (self.group_mounts(), self.text(GROUPS)) {
            (Ok(mounts), Ok(paths)) => (mounts, paths),
            (mounts, paths) => {
                // A system without control groups has neither file: nothing limits us there.
                let errors = [mounts.err(), paths.err()].into_iter().flatten();
                found.unknown.extend(errors.filter(|error| !error.is_absent()));
                return found;
            }
        };
        if let Some(place) = self.unified_place(&mounts, &paths) {
            found.groups.extend(place.upwards().map(|directory| self.memory_group_v2(directory)));
        }
        if let Some(place) = self.controller_place(&mounts, &paths, "memory") {
            found.groups.extend(
                place
                    .upwards()
                    .filter(|directory| {
                        *directory == place.directory || self.binds_those_below(directory)
                    })
                    .map(|directory| self.memory_group_v1(directory, directory == place.top)),
            );
        }
        found.unknown = found.groups.iter().flat_map(GroupMemory::unknown).cloned().collect();
        found
    }

    fn memory_group_v2(&self, directory: &Path) -> GroupMemory {
        GroupMemory {
            directory: directory.to_owned(),
            version: GroupVersion::V2,
            limit: self.limit_v2(&directory.join("memory.max")),
            throttle: self.limit_v2(&directory.join("memory.high")),
            used: self.number(directory.join("memory.current")).map(Bytes::new),
            reclaimable: self.statistic(directory, "inactive_file"),
        }
    }

    /// `top` is whether higher groups, if any, cannot be seen: then the group's own account of
    /// what limits it from above is all there is.
    fn memory_group_v1(&self, directory: &Path, top: bool) -> GroupMemory {
        let file = directory.join("memory.limit_in_bytes");
        let mut limit = present(self.number(&file)).map(v1_limit);
        if top
            && let Ok(above) = self.statistic(directory, "hierarchical_memory_limit")
            && let Some(above) = v1_limit(Some(above.get()))
        {
            limit = limit.map(|own| Some(own.map_or(above, |own| own.min(above))));
        }
        GroupMemory {
            directory: directory.to_owned(),
            version: GroupVersion::V1,
            limit,
            // The first version's soft limit only says where reclaim starts when the machine runs
            // out; it slows nobody.
            throttle: Ok(None),
            used: self.number(directory.join("memory.usage_in_bytes")).map(Bytes::new),
            reclaimable: self
                .statistic(directory, "total_inactive_file")
                .or_else(|_| self.statistic(directory, "inactive_file")),
        }
    }

    /// Whether a group of the first version limits its descendants, as it does unless told not to.
    fn binds_those_below(&self, directory: &Path) -> bool {
        self.number::<u64>(directory.join("memory.use_hierarchy")) != Ok(0)
    }

    fn limit_v2(&self, file: &Path) -> Reading<Option<Bytes>> {
        let Some(text) = present(self.text(file))? else { return Ok(None) };
        match text.trim() {
            "max" => Ok(None),
            number => number.parse().map(|bytes| Some(Bytes::new(bytes))).map_err(|_| {
                let found = quoted(number);
                Unknown::malformed(file, format!("expected a number or \"max\", found {found}"))
            }),
        }
    }

    /// A line "name value" of a group's memory.stat.
    fn statistic(&self, directory: &Path, name: &str) -> Reading<Bytes> {
        let file = directory.join("memory.stat");
        let text = self.text(&file)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.ok_or_else(|| Unknown::malformed(&file, format!("has no \"{name}\"")))?;
        value.trim().parse().map(Bytes::new).map_err(|_| {
            Unknown::malformed(&file, format!("{name}: expected a number, found {}", quoted(value)))
        })
    }

    /// How many processors' worth of time the groups above this process allow it, in hundredths;
    /// `None` for no limit.
    pub(super) fn processor_quota(&self) -> Option<u64> {
        let (mounts, paths) = (self.group_mounts().ok()?, self.text(GROUPS).ok()?);
        let unified = self.unified_place(&mounts, &paths);
        let unified = unified.iter().flat_map(GroupPath::upwards).filter_map(|directory| {
            let text = self.text(directory.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            hundredths(quota.parse().ok()?, period.parse().ok()?)
        });
        let own = self.controller_place(&mounts, &paths, "cpu");
        let own = own.iter().flat_map(GroupPath::upwards).filter_map(|directory| {
            // "-1" for no limit is no unsigned number.
            let quota = self.number(directory.join("cpu.cfs_quota_us")).ok()?;
            hundredths(quota, self.number(directory.join("cpu.cfs_period_us")).ok()?)
        });
        unified.chain(own).min()
    }

    fn unified_place(&self, mounts: &[GroupMount], paths: &str) -> Option<GroupPath> {
        let path = paths.lines().find_map(|line| line.strip_prefix("0::"))?;
        self.group_directory(mounts.iter().filter(|mount| mount.is_unified()), path)
    }

    fn controller_place(
        &self,
        mounts: &[GroupMount],
        paths: &str,
        controller: &str,
    ) -> Option<GroupPath> {
        let path = paths.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then_some(path)
        })?;
        self.group_directory(mounts.iter().filter(|mount| mount.controls(controller)), path)
    }
}

/// `None` for a file that is not there: the root group has no limits, nor has one whose controller
/// is off.
fn present<T>(reading: Reading<T>) -> Reading<Option<T>> {
    match reading {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

fn v1_limit(bytes: Option<u64>) -> Option<Bytes> {
    bytes.filter(|&bytes| bytes < NO_LIMIT).map(Bytes::new)
}

fn hundredths(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(100)?.checked_div(period)
}
