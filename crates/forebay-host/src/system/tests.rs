//! Machines laid out in a directory: containers of both versions, none, broken files.

use std::fs;
use std::path::Path;

use forebay_core::{Bytes, MIB};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A machine in a directory that goes with it.
struct Fake {
    directory: TempDir,
}

impl Fake {
    /// 8 GiB of memory, 6 of them available; no control groups.
    fn machine() -> Self {
        let fake = Self { directory: tempfile::tempdir().unwrap() };
        fake.file(
            "/proc/meminfo",
            "MemTotal:        8388608 kB\nMemFree:         1048576 kB\n\
             MemAvailable:    6291456 kB\nSwapTotal:       2097152 kB\nSwapFree:              0 kB\n",
        )
    }

    fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let place = self.system().place(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
        self
    }

    /// The second version mounted at its usual place, the process in `group`.
    fn unified(self, group: &str) -> Self {
        self.file(
            "/proc/self/mountinfo",
            "22 1 0:20 / / rw - ext4 /dev/sda rw\n\
             31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
        .file("/proc/self/cgroup", format!("0::{group}\n"))
    }

    /// A group of the second version with its limit and use in MiB; page cache in `cache` of them.
    fn group(self, path: &str, limit: &str, used: u64, cache: u64) -> Self {
        let directory = format!("/sys/fs/cgroup{path}");
        self.file(&format!("{directory}/memory.max"), format!("{limit}\n"))
            .file(&format!("{directory}/memory.high"), "max\n")
            .file(&format!("{directory}/memory.current"), format!("{}\n", used * MIB))
            .file(
                &format!("{directory}/memory.stat"),
                format!("anon 7\nfile 9\ninactive_file {}\nactive_file 3\n", cache * MIB),
            )
    }

    fn system(&self) -> System {
        System::at(self.directory.path())
    }
}

fn mib(count: u64) -> String {
    (count * MIB).to_string()
}

/// What binds and from which file, in MiB.
fn bound(bound: Reading<Bound>) -> (u64, BoundSource) {
    let bound = bound.unwrap();
    (bound.bytes.get() / MIB, bound.whence)
}

fn container(file: &str) -> BoundSource {
    BoundSource::Container(file.into())
}

#[test]
fn without_groups_the_machine_binds() {
    let memory = Fake::machine().system().memory();
    assert_eq!(bound(memory.total_bound()), (8192, BoundSource::Machine));
    assert_eq!(bound(memory.free_bound()), (6144, BoundSource::Machine));
    assert_eq!(memory.swap_total, Ok(Bytes::gib(2)));
    assert_eq!(memory.swap_free, Ok(Bytes::ZERO));
    assert!(memory.unknown.is_empty() && !memory.is_contained());
}

#[test]
fn no_more_is_free_than_there_is() {
    // The two are not read in one moment; memory may be plugged in between.
    let fake = Fake::machine().file("/proc/meminfo", "MemTotal: 4 kB\nMemAvailable: 8 kB\n");
    assert_eq!(fake.system().memory().usable_free(), Ok(Bytes::new(4096)));
}

#[test]
fn the_tightest_ancestor_binds_and_total_and_free_may_differ_in_whence() {
    let fake = Fake::machine()
        .unified("/kubepods/pod/us")
        .group("/kubepods", &mib(6000), 5500, 1500)
        .group("/kubepods/pod", &mib(4000), 1000, 0)
        .group("/kubepods/pod/us", "max", 900, 0);
    let memory = fake.system().memory();
    assert_eq!(memory.groups.len(), 4, "the process's own group, two above, and the root");
    let pod = container("/sys/fs/cgroup/kubepods/pod/memory.max");
    assert_eq!(bound(memory.total_bound()), (4000, pod));
    // 6000 - (5500 - 1500) is less than 4000 - 1000.
    let kubepods = container("/sys/fs/cgroup/kubepods/memory.max");
    assert_eq!(bound(memory.free_bound()), (2000, kubepods));
    assert!(memory.is_contained());
}

#[test]
fn a_limit_above_the_machine_is_none_and_a_throttle_is_one() {
    let fake = Fake::machine().unified("/us").group("/us", &mib(100_000), 100, 0);
    assert_eq!(bound(fake.system().memory().total_bound()), (8192, BoundSource::Machine));
    let fake = fake.file("/sys/fs/cgroup/us/memory.high", mib(512));
    let high = container("/sys/fs/cgroup/us/memory.high");
    assert_eq!(bound(fake.system().memory().total_bound()), (512, high.clone()));
    assert_eq!(bound(fake.system().memory().free_bound()), (412, high));
}

#[test]
fn use_above_the_limit_leaves_nothing_and_unknown_use_leaves_the_limit() {
    let fake = Fake::machine().unified("/us").group("/us", &mib(100), 300, 0);
    assert_eq!(fake.system().memory().usable_free(), Ok(Bytes::ZERO));
    let fake = fake.file("/sys/fs/cgroup/us/memory.current", "lots");
    let memory = fake.system().memory();
    assert_eq!(memory.usable_free(), Ok(Bytes::mib(100)));
    assert!(memory.unknown[0].to_string().contains("memory.current: expected a number"));
}

#[test]
fn in_a_namespace_the_mount_stands_for_the_group() {
    for told in ["/docker/0123abcd", "/../../elsewhere", "/"] {
        let fake = Fake::machine().unified(told).group("", &mib(256), 56, 0);
        let memory = fake.system().memory();
        let limit = container("/sys/fs/cgroup/memory.max");
        assert_eq!(bound(memory.total_bound()), (256, limit), "{told}");
        assert_eq!(memory.usable_free(), Ok(Bytes::mib(200)), "{told}");
    }
}

#[test]
fn of_several_mounts_the_one_that_shows_the_group_counts() {
    let fake = Fake::machine().unified("/us").group("/us", &mib(256), 0, 0).file(
        "/proc/self/mountinfo",
        "30 23 0:28 / /mnt/partial rw - cgroup2 cgroup2 rw\n\
         31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    let limit = container("/sys/fs/cgroup/us/memory.max");
    assert_eq!(bound(fake.system().memory().total_bound()), (256, limit));
}

/// A machine with the first version, of which `root` is mounted; the process is in `group`.
fn first_version(root: &str, group: &str) -> Fake {
    Fake::machine()
        .file(
            "/proc/self/mountinfo",
            format!(
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                 32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                 35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
        )
        .file(
            "/proc/self/cgroup",
            format!("4:memory:{group}\n3:cpu,cpuacct:{group}\n1:name=systemd:/\n0::/\n"),
        )
}

/// The files of a group of the first version, with figures in MiB.
fn first_version_group(fake: Fake, path: &str, limit: u64, used: u64, stat: &str) -> Fake {
    let directory = format!("/sys/fs/cgroup/memory{path}");
    fake.file(&format!("{directory}/memory.limit_in_bytes"), limit.to_string())
        .file(&format!("{directory}/memory.usage_in_bytes"), mib(used))
        .file(&format!("{directory}/memory.stat"), stat)
}

/// What the kernel writes for no limit, with pages of 4 KiB.
const UNLIMITED: u64 = 9_223_372_036_854_771_712;

#[test]
fn the_first_version_is_read_with_its_ancestors() {
    let mut fake = first_version("/", "/docker/us");
    let stat = format!("inactive_file 5\ntotal_inactive_file {}\n", mib(100));
    fake = first_version_group(fake, "", UNLIMITED, 5000, &stat);
    fake = first_version_group(fake, "/docker", 2048 * MIB, 1100, &stat);
    fake = first_version_group(fake, "/docker/us", UNLIMITED, 500, &stat);
    let memory = fake.system().memory();
    let docker = container("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes");
    assert_eq!(bound(memory.total_bound()), (2048, docker.clone()));
    assert_eq!(bound(memory.free_bound()), (1048, docker));
    assert_eq!(memory.unknown, []);
    assert_eq!(memory.groups.last().unwrap().limit, Ok(None), "the kernel's largest is no limit");
    // Told not to bind those below, the ancestor does not.
    let fake = fake.file("/sys/fs/cgroup/memory/docker/memory.use_hierarchy", "0\n");
    assert_eq!(bound(fake.system().memory().total_bound()), (8192, BoundSource::Machine));
}

#[test]
fn what_binds_from_above_the_visible_top_counts() {
    let mut fake = first_version("/docker/us", "/docker/us");
    let stat = format!("hierarchical_memory_limit {}\ninactive_file 0\n", mib(700));
    fake = first_version_group(fake, "", UNLIMITED, 200, &stat);
    let memory = fake.system().memory();
    assert_eq!(memory.usable_total(), Ok(Bytes::mib(700)));
    assert_eq!(memory.usable_free(), Ok(Bytes::mib(500)));
}

#[test]
fn broken_files_are_unknown_with_their_name_and_do_not_hide_the_rest() {
    let fake = Fake::machine()
        .file("/proc/meminfo", "MemTotal: many kB\nMemAvailable: 99999999999999999999 kB\n\0\n")
        .unified("/us")
        .group("/us", "minus one", 1, 0);
    let memory = fake.system().memory();
    assert!(memory.total.unwrap_err().to_string().starts_with("/proc/meminfo: MemTotal: expected"));
    assert!(memory.available.is_err());
    assert!(memory.swap_free.unwrap_err().reason.contains("no line \"SwapFree:\""));
    assert_eq!(memory.unknown.len(), 1);
    assert!(memory.unknown[0].reason.contains("number or \"max\", found \"minus one\""));
    let nothing = Fake { directory: tempfile::tempdir().unwrap() };
    assert!(nothing.system().memory().usable_free().unwrap_err().is_absent());
    assert_eq!(nothing.system().limits().locked_bytes(), None);
    assert!(nothing.system().huge_pages().in_words().contains("no pools"));
}

#[test]
fn huge_pages_are_counted_and_put_in_words() {
    let pool = |fake: Fake, kilobytes: u64, figures: [u64; 5]| {
        let directory = format!("/sys/kernel/mm/hugepages/hugepages-{kilobytes}kB");
        let names = ["nr", "free", "resv", "surplus", "nr_overcommit"];
        names.iter().zip(figures).fold(fake, |fake, (name, figure)| {
            fake.file(&format!("{directory}/{name}_hugepages"), format!("{figure}\n"))
        })
    };
    let settings = |fake: Fake, private: &str, shared: &str| {
        fake.file("/sys/kernel/mm/transparent_hugepage/enabled", private)
            .file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared)
    };
    let fake = settings(Fake::machine(), "always [madvise] never", "always advise [never] deny");
    let fake = pool(pool(fake, 1_048_576, [0; 5]), 2048, [0; 5]);
    let huge = fake.system().huge_pages();
    assert_eq!(huge.transparent, Ok(TransparentHuge::Madvise));
    assert_eq!(huge.shmem, Ok(ShmemHuge::Never));
    let sizes: Vec<u64> = huge.pools.as_ref().unwrap().iter().map(|it| it.page.get()).collect();
    assert_eq!(sizes, [2 * MIB, 1024 * MIB], "smallest first");
    assert!(!huge.explicit_granted());
    assert_eq!(huge.in_words(), "not granted: the pools are empty");
    // 10 free of which 4 are promised, and 3 more may be made of which 1 is.
    let fake = pool(fake, 2048, [12, 10, 4, 1, 3]);
    let huge = fake.system().huge_pages();
    assert_eq!(huge.pool(Bytes::mib(2)).unwrap().obtainable(), Ok(8));
    assert!(huge.in_words().starts_with("granted: 8 pages of 2.00 MiB"), "{}", huge.in_words());
    let fake = settings(fake, "sometimes", "[nearly]");
    let huge = fake.system().huge_pages();
    assert!(huge.transparent.is_err());
    assert!(huge.shmem.unwrap_err().reason.contains("nearly"));
}

#[test]
fn nodes_have_their_own_processors_memory_and_distances() {
    let mut fake = Fake::machine().file("/sys/devices/system/node/online", "0-1,7\n");
    for (id, cpus, total) in [(0, "0-3,8-11", 4096), (1, "4-7", 2048), (7, "", 2048)] {
        let directory = format!("/sys/devices/system/node/node{id}");
        fake = fake
            .file(&format!("{directory}/cpulist"), format!("{cpus}\n"))
            .file(
                &format!("{directory}/meminfo"),
                format!("Node {id} MemTotal:  {} kB\nNode {id} MemFree:  1024 kB\n", total * 1024),
            )
            .file(&format!("{directory}/distance"), "10 21 31\n");
    }
    let topology = fake.system().topology();
    assert!(!topology.is_uniform() && topology.assumed.is_none());
    assert_eq!(topology.nodes[0].cpus, Ok(vec![0, 1, 2, 3, 8, 9, 10, 11]));
    assert_eq!(topology.nodes[1].total, Ok(Bytes::mib(2048)));
    assert_eq!(topology.nodes[1].free, Ok(Bytes::mib(1)));
    assert_eq!(topology.nodes[2].cpus, Ok(vec![]), "a node may be memory alone");
    assert_eq!(topology.distance(1, 7), Some(31));
    assert_eq!(topology.distance(1, 2), None);
    let fake = fake.file("/sys/devices/system/node/node1/distance", "10 20\n");
    assert!(fake.system().topology().nodes[1].distances.is_err(), "one distance is missing");
}

#[test]
fn a_machine_that_shows_no_nodes_is_one() {
    let fake = Fake::machine().file("/sys/devices/system/cpu/online", "0-15\n");
    let topology = fake.system().topology();
    assert!(topology.is_uniform() && topology.assumed.is_some_and(|why| why.is_absent()));
    assert_eq!(topology.nodes[0].cpus.as_ref().unwrap().len(), 16);
    assert_eq!(topology.nodes[0].total, Ok(Bytes::gib(8)));
    let broken = fake.file("/sys/devices/system/node/online", "3-0");
    assert!(broken.system().topology().assumed.unwrap().reason.contains("3-0"));
}

#[test]
fn limits_are_read_from_the_root_given() {
    let fake = Fake::machine()
        .file(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max open files            1024                 4096                 files\n\
             Max locked memory         65536                unlimited            bytes\n\
             Max address space         unlimited\n",
        )
        .file("/proc/sys/vm/max_map_count", "65530\n")
        .file("/proc/sys/vm/overcommit_memory", "2\n")
        .file("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-2,5\n");
    let limits = fake.system().limits();
    assert_eq!(limits.locked_bytes(), Some(Bytes::new(65_536)));
    assert_eq!(limits.locked_memory.as_ref().unwrap().hard, None);
    assert!(limits.address_space.as_ref().unwrap_err().reason.contains("two limits"));
    assert_eq!(limits.open_files, Ok(ResourceLimit { soft: Some(1024), hard: Some(4096) }));
    assert_eq!(limits.max_maps, Ok(65_530));
    assert_eq!(limits.overcommit, Ok(Overcommit::Never));
    assert_eq!(limits.processors.usable(), Some(4));
    // A container that gets one and a half processors' time can run two threads at once.
    let fake = fake.unified("/a/b").file("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    let fake = fake.file("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_eq!(fake.system().limits().processors.quota_hundredths, Some(150));
    assert_eq!(fake.system().limits().processors.usable(), Some(2));
    let fake = fake.file("/sys/fs/cgroup/a/cpu.max", "150000 0\n");
    assert_eq!(fake.system().limits().processors.quota_hundredths, None);
}

#[test]
fn the_right_to_lock_counts_only_in_the_first_namespace() {
    let fake = Fake::machine()
        .file("/proc/self/limits", "Max locked memory         65536      65536      bytes\n")
        .file("/proc/self/status", "CapEff:\t000001ffffffffff\n")
        .file("/proc/self/uid_map", "         0          0 4294967295\n");
    assert_eq!(fake.system().limits().locks_freely, Ok(true));
    assert_eq!(fake.system().limits().locked_bytes(), None);
    let contained = fake.file("/proc/self/uid_map", "         0     100000      65536\n");
    assert_eq!(contained.system().limits().locked_bytes(), Some(Bytes::new(65_536)));
    let plain = contained.file("/proc/self/status", "CapEff:\t0000000000000000\n");
    assert_eq!(plain.system().limits().locks_freely, Ok(false));
    let broken = plain.file("/proc/self/status", "CapEff:\tno\n");
    assert!(broken.system().limits().locks_freely.is_err());
    assert_eq!(broken.system().limits().locked_bytes(), Some(Bytes::new(65_536)));
}

#[test]
fn threads_are_limited_for_all_but_the_first_root_and_the_capable() {
    let status = |fake: Fake, user: u32, capabilities: &str| {
        let text = format!("Uid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{capabilities}\n");
        fake.file("/proc/self/status", text)
    };
    let fake = Fake::machine()
        .file(
            "/proc/self/limits",
            "Max file size             1048576   unlimited   bytes\n\
             Max processes             100       200         processes\n",
        )
        .file("/proc/self/uid_map", "0 0 4294967295\n")
        .file("/etc/passwd", "root:x:0:0::/root:/bin/sh\nbroken\nada:x:1000:1000::/:/bin/sh\n");
    let plain = status(fake, 1000, "0");
    let limits = plain.system().limits();
    assert_eq!(limits.threads, Ok(ResourceLimit { soft: Some(100), hard: Some(200) }));
    assert_eq!(limits.file_size, Ok(ResourceLimit { soft: Some(1 << 20), hard: None }));
    assert_eq!((limits.spawns_freely, limits.raises_freely), (Ok(false), Ok(false)));
    assert_eq!(plain.system().user(), Ok(1000));
    assert_eq!(plain.system().user_name(1000).as_deref(), Some("ada"));
    assert_eq!(plain.system().user_name(7), None);
    let capable = status(plain, 1000, "1000000");
    assert_eq!(capable.system().limits().spawns_freely, Ok(true));
    assert_eq!(capable.system().limits().raises_freely, Ok(true));
    let root = status(capable, 0, "0");
    assert_eq!(root.system().limits().spawns_freely, Ok(true));
    let contained = root.file("/proc/self/uid_map", "0 100000 65536\n");
    assert_eq!(contained.system().limits().spawns_freely, Ok(false));
    let nonsense = contained.file("/proc/self/status", "Uid:\tx\n");
    assert!(nonsense.system().user().unwrap_err().reason.contains("found \"x\""));
}

#[test]
fn a_file_that_is_there_is_told_from_one_that_is_not() {
    let fake = Fake::machine();
    std::os::unix::fs::symlink("loop", fake.system().place("/loop")).unwrap();
    assert_eq!(fake.system().text("/loop").unwrap_err().cause, Cause::Unreadable);
    assert_eq!(fake.system().text("/none").unwrap_err().cause, Cause::Absent);
    assert_eq!(fake.system().number::<u64>("/proc/meminfo").unwrap_err().cause, Cause::Malformed);
    let forbidden = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let unknown = Unknown::unreadable(Path::new("/any"), &forbidden);
    assert_eq!(unknown.cause, Cause::Forbidden, "nobody forbids root anything, so by hand");
}

#[test]
fn processor_quotas_of_the_first_version_count() {
    let fake = first_version("/", "/us")
        .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
        .file("/sys/fs/cgroup/cpu,cpuacct/us/cpu.cfs_quota_us", "300000\n")
        .file("/sys/fs/cgroup/cpu,cpuacct/us/cpu.cfs_period_us", "100000\n");
    assert_eq!(fake.system().limits().processors.quota_hundredths, Some(300));
}

#[test]
fn this_machine_makes_sense() {
    let system = System::here();
    let memory = system.memory();
    let (total, free) = (memory.usable_total().unwrap(), memory.usable_free().unwrap());
    assert!(!total.is_zero() && free <= total && total <= memory.total.unwrap());
    assert!(system.limits().open_files.is_ok_and(|files| files.soft != Some(0)));
    assert!(!system.topology().nodes.is_empty());
    assert!(system.limits().processors.usable().is_some_and(|count| count >= 1));
}

#[test]
fn lists_are_strict_and_bounded() {
    use super::file::parse_list;
    assert_eq!(parse_list("0-3,7\n"), Some(vec![0, 1, 2, 3, 7]));
    assert_eq!(parse_list("7,1-2,2"), Some(vec![1, 2, 7]));
    assert_eq!(parse_list("\n"), Some(vec![]));
    for bad in ["a", "1-", "-1", "3-1", "0-4294967295", "1 2", "1--2"] {
        assert_eq!(parse_list(bad), None, "{bad}");
    }
}

#[test]
fn a_path_stays_below_the_root() {
    let system = System::at("/somewhere");
    assert_eq!(system.place("/proc/meminfo"), Path::new("/somewhere/proc/meminfo"));
    assert_eq!(System::here().place("/proc/meminfo"), Path::new("/proc/meminfo"));
}

/// Every file this module reads, below the groups that [`content`] can name.
const FILES: &[&str] = &[
    "/proc/meminfo",
    "/proc/self/cgroup",
    "/proc/self/limits",
    "/proc/self/mountinfo",
    "/proc/self/status",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/node/node0/cpulist",
    "/sys/devices/system/node/node0/distance",
    "/sys/devices/system/node/node0/meminfo",
    "/sys/devices/system/node/online",
    "/sys/fs/cgroup/a/cpu.max",
    "/sys/fs/cgroup/a/memory.current",
    "/sys/fs/cgroup/a/memory.max",
    "/sys/fs/cgroup/a/memory.stat",
    "/sys/fs/cgroup/a/memory.limit_in_bytes",
    "/sys/fs/cgroup/a/memory.usage_in_bytes",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
    "/sys/kernel/mm/hugepages/hugepages-99999999999999999kB/nr_hugepages",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

/// Bytes of any kind, and texts near enough to the real ones to get past the first check.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "0",
        "1",
        "18446744073709551615",
        "99999999999999999999",
        "-1",
        "max",
        "kB",
        ":",
        "::",
        "-",
        " - ",
        "/",
        "/a",
        "/../a",
        "0::/a\n",
        "5:memory:/a\n",
        "\n",
        " ",
        ",",
        "[",
        "]",
        "[never]",
        "MemTotal:",
        "MemAvailable:",
        "Node 0 MemFree:",
        "Max open files",
        "unlimited",
        "cgroup",
        "1 2 0:1 / /sys/fs/cgroup rw - cgroup2 x rw\n",
        "\\040",
        "\\",
        "3 2 0:2 / /sys/fs/cgroup rw - cgroup x rw,memory\n",
        "Cpus_allowed_list:",
        "inactive_file ",
        "hierarchical_memory_limit ",
    ]);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        prop::collection::vec(words, 0..12).prop_map(|words| words.concat().into_bytes()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_content_of_any_file_brings_us_down(
        contents in prop::collection::vec(prop::option::of(content()), FILES.len()),
    ) {
        let mut fake = Fake { directory: tempfile::tempdir().unwrap() };
        for (path, content) in FILES.iter().zip(contents) {
            if let Some(content) = content {
                fake = fake.file(path, content);
            }
        }
        let system = fake.system();
        let memory = system.memory();
        if let (Ok(free), Ok(total)) = (memory.usable_free(), memory.usable_total()) {
            prop_assert!(free <= total);
        }
        prop_assert!(!system.topology().nodes.is_empty());
        prop_assert!(!system.huge_pages().in_words().is_empty());
        prop_assert!(system.limits().processors.usable() != Some(0));
    }
}
