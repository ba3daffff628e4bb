//! What the doctor says of machines laid out in a directory.

use std::ffi::OsString;
use std::process::{Command, Output};

use forebay::config::Key;
use forebay_cli::doctor::probe::{Environment, Probe};
use forebay_cli::doctor::report::{DeviceRow, Fix, Owner, Report, Setting, Status};
use forebay_cli::output::Width;
use proptest::prelude::*;
use serde_json::Value;

use crate::command::NO_PLATFORMS;
use crate::machine::{LIBRARY, Machine, OTHER_LIBRARY};

fn report(machine: &Machine) -> Report {
    Probe::at(machine.root()).environment(Environment::default()).report()
}

fn row(machine: &Machine, kind: &str) -> DeviceRow {
    report(machine).devices.into_iter().find(|row| row.kind == kind).unwrap()
}

/// The commands of the first problem's cure, where there is a problem.
fn first_cure(machine: &Machine) -> Option<Fix> {
    report(machine).problems.into_iter().next().map(|problem| problem.cure)
}

const CUDA: &str = "/usr/lib64/libcuda.so.1";

#[test]
fn a_machine_without_accelerators_is_well() {
    let report = report(&Machine::sound());
    assert!(report.well);
    assert_eq!(report.problems, []);
    let kinds = report.devices.iter().map(|row| (row.kind, row.status));
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [
            ("host", Status::NotHere),
            ("sim", Status::Ready),
            ("cuda", Status::Missing),
            ("hip", Status::NotHere),
            ("opencl", Status::NotHere),
            ("metal", Status::NotHere),
        ]
    );
    assert_eq!(report.huge_pages.pools[0].obtainable, Some(2));
}

#[test]
fn an_nvidia_card_is_followed_from_bare_to_whole() {
    let machine = Machine::sound();
    let none = "no CUDA driver: no NVIDIA card seen";
    assert_eq!(row(&machine, "cuda").summary, none);

    let machine = machine.card("0000:01:00.1", "0x10de", "0x040300");
    assert_eq!(row(&machine, "cuda").summary, none, "its sound device is no card");

    let machine = machine
        .card("0000:01:00.0", "0x10de", "0x030200")
        .file("/etc/os-release", "NAME=\"Ubuntu\"\nID=ubuntu\n");
    let bare = row(&machine, "cuda");
    assert!(bare.summary.contains("card is in this machine, but no driver"), "{bare:?}");
    assert_eq!(bare.seen, ["NVIDIA card 10de:2335 in 0000:01:00.0"]);
    assert_eq!(bare.cure.unwrap().commands, ["sudo ubuntu-drivers install"]);

    let machine =
        machine.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX 570.1\nGCC: 13\n");
    let no_node = row(&machine, "cuda");
    assert!(no_node.summary.contains("device files are not here"), "{no_node:?}");
    assert!(no_node.cure.as_ref().unwrap().how.contains("--gpus all"));
    assert_eq!(no_node.cure.unwrap().commands, ["sudo nvidia-modprobe -u -c=0"]);

    let machine = machine.file("/dev/nvidia0", "").file("/dev/nvidiactl", "");
    let no_library = row(&machine, "cuda");
    assert_eq!(no_library.status, Status::Missing);
    assert_eq!(no_library.missing, ["libcuda.so.1 in the loader's directories"]);

    let machine = machine.file(CUDA, OTHER_LIBRARY);
    assert_eq!(row(&machine, "cuda").status, Status::Missing, "the 32-bit twin is no help");

    let machine = machine.file(CUDA, LIBRARY);
    let whole = row(&machine, "cuda");
    assert_eq!(whole.status, Status::Found);
    assert!(whole.summary.contains("not opened: the files below"), "{whole:?}");
    assert!(whole.seen.contains(&CUDA.to_owned()), "{whole:?}");
    assert_eq!((whole.missing.len(), whole.cure), (0, None));
}

#[test]
fn a_library_is_found_where_the_loader_is_told_to_look() {
    let machine = Machine::sound().file("/dev/nvidia0", "");
    let with_library = |path: &str| Machine::sound().file("/dev/nvidia0", "").file(path, LIBRARY);
    assert_eq!(row(&machine, "cuda").status, Status::Missing);

    let configured = with_library("/opt/driver/lib/libcuda.so.1")
        .file(
            "/etc/ld.so.conf",
            "# ours\ninclude /etc/ld.so.conf.d/*.conf\ninclude /etc/ld.so.conf\n",
        )
        .file("/etc/ld.so.conf.d/driver.conf", "/opt/driver/lib # here\n");
    assert_eq!(row(&configured, "cuda").status, Status::Found);
    let elsewhere = configured.file("/etc/ld.so.conf.d/driver.conf", "/opt/other\n");
    assert_eq!(row(&elsewhere, "cuda").status, Status::Missing);

    let variable = (OsString::from("LD_LIBRARY_PATH"), OsString::from(":relative:/opt/driver/lib"));
    let found =
        Probe::at(elsewhere.root()).environment(Environment::from_iter([variable])).report();
    assert_eq!(found.devices[2].status, Status::Found);
    assert_eq!(found.settings.iter().filter(|it| it.source == "environment").count(), 1);
}

/// Where cargo has put the driver made of the simulated device: beside the test, or a folder up.
pub(crate) fn fake_driver() -> String {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut paths = folders.map(|folder| folder.join("libforebay_cuda_fake_driver.so"));
    paths.find(|path| path.exists()).unwrap().display().to_string()
}

/// What the built command says of this machine, with this CUDA driver.
fn with_driver(library: &str) -> (Value, String) {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("doctor").args(arguments).env("FOREBAY_CUDA_DRIVER", library);
        command.env(NO_PLATFORMS.0, NO_PLATFORMS.1);
        command.output().unwrap().stdout
    };
    let said = String::from_utf8(run(&[])).unwrap();
    (serde_json::from_slice(&run(&["--json"])).unwrap(), said)
}

#[test]
fn where_the_cuda_driver_loads_each_gpu_is_opened_and_tried() {
    let library = fake_driver();
    let (report, said) = with_driver(&library);
    let rows: Vec<&Value> =
        report["devices"].as_array().unwrap().iter().filter(|row| row["kind"] == "cuda").collect();
    assert_eq!(rows.len(), 2, "the fake driver has two: {report}");
    for (ordinal, row) in rows.iter().enumerate() {
        assert_eq!((&row["status"], &row["ordinal"]), (&"ready".into(), &ordinal.into()), "{row}");
        let (total, free) = (row["total_bytes"].as_u64(), row["free_bytes"].as_u64());
        assert!(total.unwrap() > 0 && free.unwrap() <= total.unwrap(), "{row}");
        let can = row["capabilities"].as_array().unwrap();
        assert!(can.contains(&Value::from("virtual_memory")), "{row}");
        assert!(row["summary"].as_str().unwrap().contains("CUDA 13.0"), "{row}");
        assert_eq!(row["cure"], Value::Null);
        let transfers = &row["transfers"];
        for figure in ["upload", "download", "upload_limit", "download_limit"] {
            assert!(transfers[format!("{figure}_bytes_per_s")].as_u64().unwrap() > 0, "{row}");
        }
        let threads = transfers["threads"].as_u64().unwrap();
        assert!(threads.is_power_of_two() && threads <= 16, "{row}");
    }
    assert!(said.contains("transfers: ordinary memory "), "{said}");
    let verdict = report["verdict"].as_str().unwrap();
    assert!(verdict.contains("cuda:0 and cuda:1 devices are ready"), "{verdict}");
    let row = said.lines().find(|line| line.starts_with("  cuda:1")).unwrap();
    assert!(row.contains("ready"), "{said}");
    assert_eq!(report["ignored_settings"], serde_json::json!([]), "the variable is read");
}

#[test]
fn where_no_cuda_driver_loads_the_reason_and_the_cure_are_told() {
    let (report, said) = with_driver("/no/such/libcuda.so.1");
    let row = report["devices"].as_array().unwrap().iter().find(|row| row["kind"] == "cuda");
    let row = row.unwrap();
    let summary = row["summary"].as_str().unwrap();
    assert!(summary.starts_with("no CUDA driver: "), "{row}");
    assert!(summary.contains("tried /no/such/libcuda.so.1 (/no/such/"), "{row}");
    assert!(!summary.contains("does not drive"), "{row}");
    // What helps depends on what this machine has; that something does is said in any case.
    assert!(row["status"] == "broken" || !row["cure"].is_null(), "{row}");
    assert!(said.contains("no CUDA driver: "), "{said}");
}

#[test]
fn a_library_that_is_no_driver_is_told_with_what_it_lacks() {
    // A library of this machine's that is certainly there, and certainly no driver.
    let (report, _) = with_driver("libc.so.6");
    let row = report["devices"].as_array().unwrap().iter().find(|row| row["kind"] == "cuda");
    let row = row.unwrap();
    assert_eq!(row["status"], "missing", "{row}");
    let summary = row["summary"].as_str().unwrap();
    assert!(summary.starts_with("no CUDA driver: libc.so.6 has no cu"), "{row}");
}

#[test]
fn limits_in_the_way_are_problems_with_a_cure_that_can_work() {
    let commands =
        |soft, hard| first_cure(&Machine::sound().limits(soft, hard)).map(|cure| cure.commands);
    assert_eq!(commands("8388608", "unlimited").unwrap(), ["ulimit -l unlimited"]);
    assert_eq!(commands("8388608", "1073741824").unwrap(), ["ulimit -l 1048576"]);
    assert_eq!(
        commands("8388608", "8388608").unwrap(),
        ["echo 'ada - memlock 65536' | sudo tee -a /etc/security/limits.d/forebay.conf"]
    );
    assert_eq!(commands("67108864", "67108864"), None, "64 MiB are enough");

    let privileged = Machine::sound().limits("8388608", "8388608").user(1000, "4000");
    assert_eq!(report(&privileged).problems, [], "the limit does not apply");

    let few_maps = Machine::sound().file("/proc/sys/vm/max_map_count", "1000\n");
    let problems = report(&few_maps).problems;
    assert_eq!(problems.len(), 1);
    // 4 GiB are 2048 pages of 2 MiB.
    assert_eq!(problems[0].cure.commands, ["sudo sysctl vm.max_map_count=4096"]);
}

#[test]
fn each_limit_that_leaves_no_room_is_one_problem() {
    for (name, soft, hard, command) in [
        ("Max open files", "4", "4096", "ulimit -n 4096"),
        ("Max processes", "10", "unlimited", "ulimit -u unlimited"),
        ("Max file size", "1048576", "unlimited", "ulimit -f unlimited"),
        ("Max address space", "1073741824", "unlimited", "ulimit -v unlimited"),
        (
            "Max open files",
            "4",
            "4",
            "echo 'ada - nofile 256' | sudo tee -a /etc/security/limits.d/forebay.conf",
        ),
        (
            "Max file size",
            "4096",
            "4096",
            "echo 'ada - fsize unlimited' | sudo tee -a /etc/security/limits.d/forebay.conf",
        ),
    ] {
        let problems = report(&Machine::sound().limit(name, soft, hard)).problems;
        assert_eq!(problems.len(), 1, "{name}: {problems:?}");
        assert_eq!(problems[0].cure.commands, [command], "{name}");
        assert!(!problems[0].cure.how.is_empty());
    }
    let nameless = Machine::sound().limit("Max open files", "4", "4").user(77, "0");
    assert!(first_cure(&nameless).unwrap().commands[0].contains("'77:77 - nofile 256'"));
    // Root may raise its hard limits, and is not held to the limit on threads.
    let root = Machine::sound().limit("Max open files", "4", "4").user(0, "1000000");
    assert_eq!(first_cure(&root).unwrap().commands, ["ulimit -n 256"]);
    let root = Machine::sound().limit("Max processes", "10", "10").user(0, "0");
    assert_eq!(first_cure(&root), None);
    let strange = Machine::sound()
        .limit("Max open files", "4", "4")
        .file("/etc/passwd", "$(reboot):x:1000:1000::/:/bin/sh\n");
    assert!(first_cure(&strange).unwrap().commands[0].contains("'1000:1000 - "));
}

#[test]
fn a_container_is_named_and_its_want_is_a_problem() {
    let machine = Machine::sound()
        .file("/sys/fs/cgroup/memory.max", "1073741824\n")
        .file("/sys/fs/cgroup/memory.current", "1053741824\n")
        .file("/sys/fs/cgroup/memory.stat", "inactive_file 0\n");
    let report = report(&machine);
    assert!(report.memory.contained);
    assert_eq!(report.memory.usable_total_bytes, Some(1 << 30));
    let whence = report.memory.usable_free_whence.unwrap();
    assert_eq!(whence, "the container's limit in /sys/fs/cgroup/memory.max");
    assert!(report.problems[0].what.contains("of 1.00 GiB are free"), "{:?}", report.problems);
}

#[test]
fn what_cannot_be_read_is_unknown_and_said() {
    let report = report(&Machine::sound().file("/sys/fs/cgroup/memory.max", "lots\n"));
    assert_eq!(report.problems[0].cure.commands, ["cat /sys/fs/cgroup/memory.max"]);
    let empty = tempfile::tempdir().unwrap();
    let report = Probe::at(empty.path()).report();
    assert_eq!(report.memory.usable_total_bytes, None);
    assert_eq!(report.memory.unknown[0].file, "/proc/meminfo");
    assert_eq!(report.problems.len(), 1, "one cause: {:?}", report.problems);
    assert_eq!(report.problems[0].cure.commands, ["sudo mount -t proc proc /proc"]);
    assert!(report.numa.assumed);
}

/// A sound machine with these variables.
fn with_variables(variables: &[(&str, &str)]) -> Report {
    let variables = variables.iter().map(|&(name, value)| (name.into(), value.into()));
    Probe::at(Machine::sound().root()).environment(variables.collect()).report()
}

fn setting(report: &Report, name: &str) -> Setting {
    report.settings.iter().find(|setting| setting.name == name).unwrap().clone()
}

#[test]
fn every_key_is_shown_with_its_value_and_where_that_came_from() {
    let report = with_variables(&[
        ("FOREBAY_CONF", "preset:debug, max_bytes:8 GiB, history:7"),
        ("FOREBAY_HISTORY", "9"),
        ("FOREBAY_TRACES", "/data"),
    ]);
    assert!(report.well);
    assert_eq!(report.problems, []);
    let keys = report.settings.iter().filter(|setting| setting.of == Owner::Pool);
    let names = keys.map(|setting| (setting.name, setting.changeable, setting.effect));
    let expected = Key::ALL.iter().map(|key| (key.name(), key.is_changeable(), key.help()));
    assert_eq!(names.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    for (name, value, source, whence) in [
        ("preset", "debug", "conf", "FOREBAY_CONF, entry 1"),
        ("max_bytes", "8GiB", "conf", "FOREBAY_CONF, entry 2"),
        ("history", "9", "environment", "FOREBAY_HISTORY"),
        ("poison", "on", "preset", "preset debug"),
        ("upkeep", "off", "default", "default"),
    ] {
        let shown = setting(&report, name);
        assert_eq!(
            (shown.value.as_deref(), shown.source, shown.whence.as_str()),
            (Some(value), source, whence),
            "{name}"
        );
    }
    assert_eq!(report.ignored_settings, ["FOREBAY_TRACES"]);
    assert_eq!(setting(&report, "TERM").of, Owner::Command);
}

#[test]
fn a_file_of_settings_is_read_where_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my settings.toml");
    let name = path.to_str().unwrap();
    std::fs::write(&path, "# ours\nupkeep = true\n").unwrap();
    let report = with_variables(&[("FOREBAY_CONFIG", name)]);
    assert_eq!(setting(&report, "upkeep").value.as_deref(), Some("on"));
    assert_eq!(setting(&report, "upkeep").whence, format!("{name}, line 2"));

    std::fs::write(&path, "upkeep = true\nupkep = true\n").unwrap();
    let report = with_variables(&[("FOREBAY_CONFIG", name)]);
    assert!(!report.well);
    assert!(report.problems[0].what.ends_with("did you mean upkeep?"), "{:?}", report.problems);
    assert_eq!(report.problems[0].cure.commands, [format!("sed -n 2p '{name}'")]);

    std::fs::write(&path, "\n\nupkeep = = 1\n").unwrap();
    let report = with_variables(&[("FOREBAY_CONFIG", name)]);
    assert_eq!(report.problems[0].cure.commands, [format!("sed -n 3p '{name}'")]);

    let missing = with_variables(&[("FOREBAY_CONFIG", "/no/such.toml")]);
    assert!(!missing.well);
    assert_eq!(missing.problems[0].cure.commands, ["ls -ld /no/such.toml"]);
}

#[test]
fn a_device_that_cannot_be_opened_is_a_problem() {
    let report = with_variables(&[("FOREBAY_DEVICE", "nonsense")]);
    assert!(!report.well);
    assert!(report.problems[0].what.contains("nonsense"), "{:?}", report.problems);
    assert_eq!(report.problems[0].cure.commands, ["unset FOREBAY_DEVICE"]);
}

#[test]
fn each_setting_that_is_refused_is_a_problem_with_its_own_cure() {
    let report = with_variables(&[
        ("FOREBAY_CONF", "max_bytes:lots,upkeep:on,nonsense"),
        ("FOREBAY_HISTORY", "-1"),
        ("FOREBAY_POISN", "on"),
    ]);
    assert!(!report.well);
    let problems: Vec<(&str, &str)> = report
        .problems
        .iter()
        .map(|problem| (problem.what.as_str(), problem.cure.commands[0].as_str()))
        .collect();
    let [lots, nonsense, history, poison] = problems.as_slice() else { panic!("{problems:?}") };
    assert!(lots.0.starts_with("max_bytes cannot be \"lots\" (FOREBAY_CONF, entry 1): expected"));
    assert_eq!(lots.1, "echo \"$FOREBAY_CONF\"");
    assert_eq!(nonsense.0, "\"nonsense\" is not key:value (FOREBAY_CONF, entry 3)");
    assert_eq!(history.1, "unset FOREBAY_HISTORY");
    assert_eq!(poison.1, "export FOREBAY_POISON=\"$FOREBAY_POISN\"; unset FOREBAY_POISN");
    assert!(report.problems.iter().all(|problem| problem.fault));
    assert_eq!(setting(&report, "upkeep").value.as_deref(), Some("on"), "the good ones are shown");
    assert_eq!(setting(&report, "max_bytes").source, "default");

    let apart = with_variables(&[("FOREBAY_PRESSURE_LOW", "0.85")]);
    assert_eq!(apart.problems[0].cure.commands, ["unset FOREBAY_PRESSURE_LOW"]);
    assert!(apart.problems[0].what.starts_with("pressure_low must be less than pressure_moderate"));
}

/// The built command on a sound machine, with these variables and no other settings.
fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let machine = Machine::sound();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.env_remove("COLUMNS").env_remove("CLICOLOR_FORCE");
    command.envs(variables.iter().copied()).arg("doctor").arg("--root").arg(machine.root());
    command.args(arguments).output().unwrap()
}

#[test]
fn settings_stand_in_columns_and_their_cure_is_beside_the_complaint() {
    let good = doctor(&[], &[("FOREBAY_CONF", "max_bytes:8GiB,collect_after:never")]);
    let said = String::from_utf8(good.stdout).unwrap();
    assert_eq!(good.status.code(), Some(0), "{said}");
    for line in [
        "Settings in force",
        "  max_bytes           8GiB                FOREBAY_CONF, entry 1",
        "  collect_after       never               FOREBAY_CONF, entry 2",
        "  pressure_critical   0.95                default",
    ] {
        assert!(said.lines().any(|it| it == line), "{line} is missing in\n{said}");
    }
    assert!(!said.contains("Problems and how to fix them"), "{said}");
    assert!(said.lines().nth(2).unwrap().ends_with("; nothing to fix"), "{said}");

    let bad = doctor(&[], &[("FOREBAY_CONF", "max_byte:8GiB")]);
    assert_eq!(bad.status.code(), Some(1), "a setting that is refused is a fault");
    let said = String::from_utf8(bad.stdout).unwrap();
    assert!(
        said.contains("  1.  unknown setting \"max_byte\" (FOREBAY_CONF, entry 1): did you mean")
    );
    assert!(said.contains("\n          echo \"$FOREBAY_CONF\"\n"), "{said}");
    assert!(said.lines().any(|it| it == "  max_bytes           none                default"));
}

#[test]
fn settings_in_json_carry_what_programs_ask_for() {
    let run = doctor(&["--json"], &[("FOREBAY_MAX_BYTES", "8GiB"), ("FOREBAY_HISTORY", "many")]);
    assert_eq!(run.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = report["settings"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "max_bytes").unwrap();
    assert_eq!(
        *row,
        serde_json::json!({
            "name": "max_bytes",
            "of": "pool",
            "value": "8GiB",
            "source": "environment",
            "whence": "FOREBAY_MAX_BYTES",
            "changeable": true,
            "effect": "The most a pool takes from its device, rounded up to a whole page.",
        })
    );
    assert_eq!(report["problems"][0]["fault"], true);
    assert!(report["problems"][0]["what"].as_str().unwrap().starts_with("history cannot be"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Nothing that a file holds brings the doctor down or steers the terminal.
    #[test]
    fn no_content_brings_it_down(
        contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 7),
    ) {
        let paths = [
            "/proc/driver/nvidia/version",
            "/etc/ld.so.conf",
            "/sys/bus/pci/devices/0/class",
            "/sys/bus/pci/devices/0/vendor",
            "/etc/os-release",
            "/usr/lib/libcuda.so.1",
            "/proc/meminfo",
        ];
        let files = paths.iter().zip(&contents);
        let machine = files.fold(Machine::sound(), |machine, (path, content)| machine.file(path, content));
        let options = {
            let root = machine.root().as_os_str().to_owned();
            let words = ["forebay".into(), "doctor".into(), "--root".into(), root];
            let forebay = <forebay_cli::command::Forebay as clap::Parser>::try_parse_from(words);
            match forebay.unwrap().command {
                forebay_cli::command::Command::Doctor(options) => options,
                other => panic!("{other:?}"),
            }
        };
        let mut out = Vec::new();
        forebay_cli::doctor::run(&options, Width::new(80), &mut out).unwrap();
        let said = anstream::adapter::strip_bytes(&out).into_vec();
        let said = String::from_utf8(said).unwrap();
        prop_assert!(said.chars().all(|letter| letter == '\n' || !letter.is_control()), "{said:?}");
    }
}

/// A recorded run is advised on as in a report, with gains; a file that cannot be read is a fault.
#[test]
fn a_run_is_advised_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leaking.csv");
    let mut lines = "op,id,bytes,stream\n".to_owned();
    for step in 1..=100 {
        lines += &format!("a,0,31457280,0\na,{step},3145728,0\nf,0,,0\n");
    }
    std::fs::write(&path, lines).unwrap();
    let path = path.display().to_string();
    let root = Machine::sound();
    let root = root.root().display().to_string();
    let run = crate::replay::forebay(&["doctor", &path, "--json", "--root", &root]);
    assert_eq!(run.status.code(), Some(0), "{}", crate::replay::text(&run.stderr));
    let found: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(found["run"]["trace"], "leaking");
    let advice = found["run"]["advice"].as_array().unwrap();
    let leak = advice.iter().find(|advice| advice["title"] == "Suspected leak").unwrap();
    assert!(leak["gain"].as_str().unwrap().starts_with("without them: "), "{leak}");
    let reported = crate::replay::forebay(&["report", &path, "--json"]);
    let reported: Value = serde_json::from_slice(&reported.stdout).unwrap();
    let expected = reported["advice"].as_array().unwrap();
    assert!(expected.contains(leak), "{expected:?}");
    let said = crate::replay::forebay(&["doctor", &path, "--root", &root]);
    let said = crate::replay::text(&said.stdout);
    assert!(said.contains("Advice on leaking") && said.contains("measured by replay"), "{said}");
    let absent = crate::replay::forebay(&["doctor", "/nowhere/run.csv", "--root", &root]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(crate::replay::text(&absent.stdout).contains("Settings in force"), "the rest is told");
}

/// A process whose pool is at its limit is named.
#[test]
fn a_running_process_that_is_short_is_named() {
    let device = forebay::HostDevice::open().unwrap();
    let limit = forebay_core::Bytes::mib(8);
    let options = forebay::PoolOptions::new().max_bytes(limit).set(|set| set.monitor(true));
    let pool = options.build(&device).unwrap();
    let _block = pool.allocate(limit, forebay::StreamHandle::DEFAULT).unwrap();
    let run = crate::replay::forebay(&["doctor", "--json"]);
    let found: Value = serde_json::from_slice(&run.stdout).unwrap();
    let ours = format!("process {}, pool", std::process::id());
    let named = found["running"].as_array().unwrap().iter().filter_map(Value::as_str);
    let named: Vec<&str> = named.filter(|warning| warning.starts_with(&ours)).collect();
    assert!(
        named.iter().any(|warning| warning.ends_with("100 % of its limit of 8.00 MiB is held")),
        "{found}"
    );
}
