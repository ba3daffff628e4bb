//! Where control groups are mounted, from the list of mounts.

use std::path::{Component, Path, PathBuf};

use super::{Reading, System, Unknown};

/// The list of this process's mounts.
const MOUNTS: &str = "/proc/self/mountinfo";

/// One mount of a control group hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupMount {
    /// Which directory of the hierarchy is mounted; "/" is all this process's namespace shows.
    pub(super) root: PathBuf,
    /// Where.
    pub(super) point: PathBuf,
    /// "cgroup2", or "cgroup" for the first version.
    kind: String,
    /// The controllers, for the first version.
    controllers: Vec<String>,
}

impl GroupMount {
    /// Whether this is the one hierarchy of the second version.
    pub(super) fn is_unified(&self) -> bool {
        self.kind == "cgroup2"
    }

    /// Whether this is the first version's hierarchy of `controller`.
    pub(super) fn controls(&self, controller: &str) -> bool {
        self.kind == "cgroup" && self.controllers.iter().any(|name| name == controller)
    }

    /// The directory of group `path`, as /proc/self/cgroup names it, where it lies below this
    /// mount.
    pub(super) fn directory(&self, path: &str) -> Option<PathBuf> {
        let inside = Path::new(path).strip_prefix(&self.root).ok()?;
        // A path with ".." names a group outside the namespace, which no mount here shows.
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| self.point.join(inside))
    }
}

impl System {
    /// The mounts of control groups, in the order of the list.
    pub(super) fn group_mounts(&self) -> Reading<Vec<GroupMount>> {
        let text = self.text(MOUNTS)?;
        if text.trim().is_empty() {
            return Err(Unknown::malformed(Path::new(MOUNTS), "is empty"));
        }
        Ok(text.lines().filter_map(parse_mount).collect())
    }

    /// The directory of group `path` in the first of `mounts` that shows it.
    ///
    /// In a namespace of its own a process may be told a path that exists only outside; what is
    /// mounted then is the process's own group, so the mount's root stands for it.
    pub(super) fn group_directory<'a>(
        &self,
        mounts: impl Iterator<Item = &'a GroupMount>,
        path: &str,
    ) -> Option<GroupPath> {
        let mut fallback = None;
        for mount in mounts {
            if let Some(directory) = mount.directory(path)
                && self.place(&directory).is_dir()
            {
                return Some(GroupPath { top: mount.point.clone(), directory });
            }
            fallback.get_or_insert_with(|| GroupPath {
                top: mount.point.clone(),
                directory: mount.point.clone(),
            });
        }
        fallback
    }
}

/// Where the files of the process's group are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupPath {
    /// The highest directory that can be seen.
    pub(super) top: PathBuf,
    /// The group's own.
    pub(super) directory: PathBuf,
}

impl GroupPath {
    /// The group and all its ancestors that can be seen, from the group upwards.
    pub(super) fn upwards(&self) -> impl Iterator<Item = &Path> {
        self.directory.ancestors().take_while(|directory| directory.starts_with(&self.top))
    }
}

/// A line "id parent device root point options... - kind source options" of a control group.
fn parse_mount(line: &str) -> Option<GroupMount> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut system = system.split(' ');
    let kind = system.next()?;
    if kind != "cgroup" && kind != "cgroup2" {
        return None;
    }
    let options = system.nth(1).unwrap_or_default();
    Some(GroupMount {
        root: PathBuf::from(unescaped(root)),
        point: PathBuf::from(unescaped(point)),
        kind: kind.to_owned(),
        controllers: options.split(',').map(str::to_owned).collect(),
    })
}

/// A path with the system's octal escapes (`\040` for a space) undone.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(octal_byte);
        match (octal, tail.get(3..)) {
            (Some(byte), Some(after)) => {
                bytes.push(byte);
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The byte that octal digits stand for.
fn octal_byte(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |byte, digit| match digit {
        b'0'..=b'7' => byte.checked_mul(8)?.checked_add(digit - b'0'),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_optional_fields_and_spaces_is_read() {
        let line = r"36 35 98:0 /docker/ab /mnt/my\040groups rw,noatime master:1 shared:2 - cgroup cgroup rw,cpu,memory";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt/my groups"));
        assert!(mount.controls("memory") && mount.controls("cpu") && !mount.is_unified());
        assert_eq!(mount.directory("/docker/ab/x").unwrap(), Path::new("/mnt/my groups/x"));
        assert_eq!(mount.directory("/docker/ab").unwrap(), Path::new("/mnt/my groups/"));
        assert_eq!(mount.directory("/docker/other"), None);
        assert_eq!(mount.directory("/docker/ab/../../x"), None);
    }

    #[test]
    fn escapes_that_are_none_stay() {
        for text in [r"\", r"a\04", r"\999", r"\+12x", "ä\\"] {
            assert_eq!(unescaped(text), text, "{text}");
        }
        assert_eq!(unescaped(r"\040\134\011"), " \\\t");
    }
}
