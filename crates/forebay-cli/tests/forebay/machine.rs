//! A machine laid out in a directory, for tests.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// The head of a shared library for programs of this word size, which is all that is looked at.
pub(crate) const LIBRARY: &[u8] =
    if cfg!(target_pointer_width = "64") { b"\x7fELF\x02\x01" } else { b"\x7fELF\x01\x01" };
/// The head of a library of the other word size.
pub(crate) const OTHER_LIBRARY: &[u8] =
    if cfg!(target_pointer_width = "64") { b"\x7fELF\x01\x01" } else { b"\x7fELF\x02\x01" };

/// A machine in a directory that goes with it.
pub(crate) struct Machine {
    directory: TempDir,
}

impl Machine {
    /// A sound machine with 4 GiB of memory, generous limits, and no accelerator.
    pub(crate) fn sound() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
            .file(
                "/proc/meminfo",
                "MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            )
            .file("/proc/self/cgroup", "0::/\n")
            .file("/proc/self/mountinfo", "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
            .limits("unlimited", "unlimited")
            .user(1000, "0000000000000000")
            .file("/proc/self/uid_map", "0 0 4294967295\n")
            .file("/etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/:/bin/sh\n")
            .file("/proc/sys/vm/max_map_count", "65530\n")
            .file("/proc/sys/vm/overcommit_memory", "0\n")
            .file("/sys/devices/system/node/online", "0\n")
            .file("/sys/devices/system/node/node0/cpulist", "0-7\n")
            .file("/sys/devices/system/node/node0/distance", "10\n")
            .file(
                "/sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: 4194304 kB\nNode 0 MemFree: 1048576 kB\n",
            )
            .file("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n")
            .file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never\n")
            .file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4\n")
            .file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3\n")
            .file("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "1\n")
            .file("/sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "0\n")
            .file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "0\n")
    }

    /// The same with a file.
    pub(crate) fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let place = self.root().join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
        self
    }

    /// The same with a limit on locked memory, soft and hard.
    pub(crate) fn limits(self, soft: &str, hard: &str) -> Self {
        self.file(
            "/proc/self/limits",
            format!(
                "Max open files            1024                 4096                 files\n\
                 Max locked memory         {soft} {hard} bytes\n\
                 Max address space         unlimited            unlimited            bytes\n\
                 Max file size             unlimited            unlimited            bytes\n\
                 Max processes             4096                 4096                 processes\n"
            ),
        )
    }

    /// The same with one limit changed: its name as the system writes it, soft and hard.
    pub(crate) fn limit(self, name: &str, soft: &str, hard: &str) -> Self {
        let path = "/proc/self/limits";
        let text = fs::read_to_string(self.root().join(path.trim_start_matches('/'))).unwrap();
        assert!(text.contains(name), "{text}");
        let lines = text.lines().map(|line| {
            if line.starts_with(name) { format!("{name} {soft} {hard} any") } else { line.into() }
        });
        let lines: Vec<String> = lines.collect();
        self.file(path, lines.join("\n"))
    }

    /// The same for the user with that number and these capabilities.
    pub(crate) fn user(self, user: u32, capabilities: &str) -> Self {
        self.file(
            "/proc/self/status",
            format!(
                "Uid:\t{user}\t{user}\t{user}\t{user}\nCpus_allowed_list:\t0-7\n\
                 CapEff:\t{capabilities}\n"
            ),
        )
    }

    /// The same with a card on the bus.
    pub(crate) fn card(self, slot: &str, vendor: &str, class: &str) -> Self {
        let directory = format!("/sys/bus/pci/devices/{slot}");
        self.file(&format!("{directory}/vendor"), format!("{vendor}\n"))
            .file(&format!("{directory}/class"), format!("{class}\n"))
            .file(&format!("{directory}/device"), "0x2335\n")
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }
}
