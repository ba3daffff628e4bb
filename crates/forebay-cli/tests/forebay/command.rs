//! The built command: exit status, what it prints and where.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::machine::{LIBRARY, Machine};

/// Where OpenCL's loader finds no platform: what the machine has is then the same everywhere.
pub(crate) const NO_PLATFORMS: (&str, &str) = ("OCL_ICD_VENDORS", "/no/such/directory");

/// The command with an environment that says nothing of colours, on a machine without OpenCL.
fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "COLUMNS", "FOREBAY_TEST"] {
        command.env_remove(name);
    }
    command.env(NO_PLATFORMS.0, NO_PLATFORMS.1);
    command
}

fn output(arguments: &[&str]) -> Output {
    forebay().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_doctor_is_content_without_a_gpu() {
    let run = output(&["doctor"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    for section in ["Devices", "Memory", "NUMA", "Huge pages", "Limits", "Settings in force"] {
        assert!(said.lines().any(|line| line == section), "{section} is missing in\n{said}");
    }
    let verdict = "forebay works here: the host and sim devices are ready; nothing to fix";
    assert_eq!(said.lines().nth(2), Some(verdict), "first of all\n{said}");
    for kind in ["host", "sim", "cuda", "hip", "opencl", "metal", "this build supports"] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(kind)), "{kind}\n{said}");
    }
    assert!(run.stderr.is_empty(), "{}", text(&run.stderr));
}

#[test]
fn json_is_one_object_on_one_line_with_the_documented_keys() {
    let run = output(&["doctor", "--json"]);
    assert_eq!(run.status.code(), Some(0));
    let said = text(&run.stdout);
    assert_eq!(said.lines().count(), 1);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["schema"], "forebay.doctor.v1");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let mut keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "devices",
            "huge_pages",
            "ignored_settings",
            "limits",
            "memory",
            "numa",
            "problems",
            "running",
            "schema",
            "settings",
            "verdict",
            "version",
            "well",
        ]
    );
    assert_eq!(report["well"], true);
    assert!(report["verdict"].as_str().unwrap().starts_with("forebay works here"), "{report}");
    let kinds: Vec<&str> = report["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["host", "sim", "cuda", "hip", "opencl", "metal"]);
}

#[test]
fn the_host_and_the_simulation_are_opened() {
    let report: Value = serde_json::from_slice(&output(&["doctor", "--json"]).stdout).unwrap();
    for index in [0, 1] {
        let row = &report["devices"][index];
        assert_eq!(row["status"], "ready", "{row}");
        let (total, free) = (row["total_bytes"].as_u64(), row["free_bytes"].as_u64());
        assert!(total.unwrap() > 0 && free.unwrap() <= total.unwrap(), "{row}");
        let can = row["capabilities"].as_array().unwrap();
        assert!(can.contains(&Value::from("virtual_memory")), "{row}");
    }
}

#[test]
fn colours_come_only_where_wanted() {
    assert!(!text(&output(&["doctor"]).stdout).contains('\x1b'));
    let forced = forebay().arg("doctor").env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(text(&forced.stdout).contains('\x1b'));
    let refused =
        forebay().arg("doctor").env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!text(&refused.stdout).contains('\x1b'));
    let json = forebay().args(["doctor", "--json"]).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(!text(&json.stdout).contains('\x1b'));
}

#[test]
fn bad_usage_is_2_and_says_what_is_allowed() {
    for (arguments, allowed) in [
        (&["docter"][..], "doctor"),
        (&["doctor", "--jsn"], "--json"),
        (&["doctor", "run.csv", "extra"], "Usage: forebay doctor"),
        (&["doctor", "--root"], "<DIR>"),
        (&[], "doctor"),
    ] {
        let run = output(arguments);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}");
        let said = text(&run.stderr);
        assert!(said.contains(allowed), "{arguments:?} said\n{said}");
        assert!(run.stdout.is_empty());
    }
}

/// A setting that is refused is bad usage of the commands that go by it, before anything is done.
#[test]
fn settings_that_are_refused_are_bad_usage() {
    let run = |arguments: &[&str]| {
        forebay().args(arguments).env("FOREBAY_CONF", "max_bytes=8GiB").output().unwrap()
    };
    for arguments in [&["bench", "alloc", "--quick"][..], &["replay", "no/such.csv"]] {
        let refused = run(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        let said = text(&refused.stderr);
        assert!(said.contains("write max_bytes:8GiB"), "{arguments:?} said\n{said}");
        assert!(refused.stdout.is_empty());
    }
    // The doctor looks for such things: it found one.
    let doctor = run(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(text(&doctor.stdout).replace("\n      ", " ").contains("write max_bytes:8GiB"));
}

#[test]
fn help_says_how_to_go_on() {
    for (arguments, part) in [
        (&["--help"][..], "2 for bad usage"),
        (&["replay", "--help"], "_record_memory_history()"),
        (&["replay", "--help"], "no pool: every request goes to the driver"),
        (&["replay", "--help"], "\"-\" reads standard input"),
        (&["convert", "--help"], "\"-\" reads standard input"),
        (&["bench", "--help"], "forebay bench alloc HOT MP-T"),
        (&["demo", "--help"], "at its defaults"),
    ] {
        let said = text(&output(arguments).stdout).replace("\n", " ");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

#[test]
fn help_and_version_are_no_mistake() {
    let version = output(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(text(&version.stdout), format!("forebay {}\n", env!("CARGO_PKG_VERSION")));
    let help = output(&["doctor", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("--json"));
    assert!(!text(&help.stdout).contains("--root"), "for tests alone");
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    for arguments in [&["doctor"][..], &["doctor", "--json"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = forebay().args(arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(run.status.code(), Some(0), "{arguments:?}");
        assert_eq!(text(&run.stderr), "", "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_fault_that_is_said() {
    for argument in ["doctor", "--help", "--version"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let run = forebay().arg(argument).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(run.status.code(), Some(1), "{argument}");
        assert!(text(&run.stderr).starts_with("forebay: cannot write the output"), "{argument}");
    }
}

#[test]
fn variables_that_look_like_ours_are_named_as_not_read() {
    let run = forebay().arg("doctor").env("FOREBAY_TEST", "1").output().unwrap();
    assert!(text(&run.stdout).contains("FOREBAY_TEST: not a setting of this version"));
}

/// Runs the doctor in a shell that first does as `limit` says.
#[cfg(target_os = "linux")]
fn limited(limit: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.env(NO_PLATFORMS.0, NO_PLATFORMS.1);
    shell.args(["-c", &format!("{limit} && exec \"$0\" doctor"), env!("CARGO_BIN_EXE_forebay")]);
    shell.env_remove("COLUMNS").output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_host_that_cannot_work_is_not_called_ready() {
    let few = text(&limited("ulimit -n 8").stdout);
    assert!(few.contains("1.  a process is limited to 8 open files"), "{few}");
    let (problem, devices) = (few.find("Problems and how to fix them"), few.find("\nDevices"));
    assert!(problem < devices, "what to mend comes before the details\n{few}");
    // A page of the host fits under this limit, one of the simulation does not; a file that grows
    // past it would end the doctor by a signal.
    let short = limited("ulimit -f 1000");
    assert_eq!(short.status.code(), Some(1), "{:?}", short.status);
    let said = text(&short.stdout);
    let verdict = said.lines().nth(2).unwrap();
    assert!(verdict.starts_with("forebay does not work here as it is set up"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("  host      ready")), "{said}");
    assert!(said.lines().any(|line| line.starts_with("  sim       broken")), "{said}");
    assert!(
        said.contains("ulimit -f") && said.contains("the size of a file is limited to"),
        "{said}"
    );
    let narrow = text(&limited("ulimit -v 400000").stdout);
    assert!(narrow.contains("a process is limited to 390.63 MiB of address space"), "{narrow}");
}

#[test]
fn lines_are_as_wide_as_asked_and_commands_are_whole() {
    let machine = Machine::sound().limits("4096", "4096");
    let root = machine.root().to_str().unwrap();
    for (columns, most) in [(None, 80), (Some("20"), 60), (Some("70"), 70), (Some("500"), 100)] {
        let mut command = forebay();
        command.args(["doctor", "--root", root]).env("LD_LIBRARY_PATH", "/a/path:".repeat(40));
        if let Some(columns) = columns {
            command.env("COLUMNS", columns);
        }
        let said = text(&command.output().unwrap().stdout);
        let command =
            "echo 'ada - memlock 65536' | sudo tee -a /etc/security/limits.d/forebay.conf";
        assert!(said.lines().any(|line| line.trim() == command), "{said}");
        // The directory of the machine is one word, and as long as the system likes.
        let long = |line: &&str| {
            line.chars().count() > most && !line.contains("sudo ") && !line.contains(root)
        };
        assert_eq!(said.lines().find(long), None, "{columns:?}");
        assert!(said.lines().any(|line| line.chars().count() > most - 12), "{columns:?}: {said}");
        assert!(said.contains(":/a/p"), "{said}");
    }
}

#[test]
fn settings_are_plain_values_in_json() {
    let path = "/opt/\"quoted\":".repeat(20);
    let mut command = forebay();
    command.args(["doctor", "--json"]).env("LD_LIBRARY_PATH", &path).env_remove("TERM");
    let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let setting = |name: &str| {
        let all = report["settings"].as_array().unwrap();
        all.iter().find(|setting| setting["name"] == name).unwrap().clone()
    };
    assert_eq!(setting("LD_LIBRARY_PATH")["value"], path, "whole, and without quotes around it");
    assert_eq!(setting("LD_LIBRARY_PATH")["source"], "environment");
    assert_eq!(setting("TERM")["value"], Value::Null);
    assert_eq!(setting("TERM")["source"], "default");
}

#[test]
fn another_machines_files_can_be_looked_at() {
    let machine = Machine::sound();
    let root = machine.root().to_str().unwrap();
    let run = output(&["doctor", "--root", root]);
    assert_eq!(run.status.code(), Some(0));
    let said = text(&run.stdout);
    assert!(said.contains("4.00 GiB"), "{said}");
    let verdict = "forebay works here: the sim device is ready; nothing to fix";
    assert_eq!(said.lines().nth(2), Some(verdict), "{said}");
}

#[test]
fn names_are_shown_as_they_are() {
    let machine = Machine::sound()
        .file("/etc/ld.so.conf", "/opt/my_driver\n")
        .file("/opt/my_driver/libcuda.so.1", LIBRARY);
    let run = output(&["doctor", "--root", machine.root().to_str().unwrap()]);
    let said = text(&run.stdout);
    assert!(said.contains("/opt/my_driver/libcuda.so.1"), "{said}");
}
