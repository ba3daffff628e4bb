//! The built command: exit status, what it prints and where.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::machine::{LIBRARY, Machine};

/// The command with an environment that says nothing of colours.
fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "FOREBAY_TEST"] {
        command.env_remove(name);
    }
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
    for section in [
        "Devices",
        "Memory",
        "NUMA",
        "Huge pages",
        "Limits",
        "Settings in force",
        "Problems and their cure",
    ] {
        assert!(said.lines().any(|line| line == section), "{section} is missing in\n{said}");
    }
    for kind in ["host", "sim", "cuda", "hip", "opencl", "metal"] {
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
            "schema",
            "settings",
            "version",
        ]
    );
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
        (&["doctor", "extra"], "Usage: forebay doctor"),
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
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = forebay().arg("doctor").stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).starts_with("forebay: cannot write the output"));
}

#[test]
fn variables_that_look_like_ours_are_named_as_not_read() {
    let run = forebay().arg("doctor").env("FOREBAY_TEST", "1").output().unwrap();
    assert!(text(&run.stdout).contains("FOREBAY_TEST: this version reads no FOREBAY_ names"));
}

#[test]
fn another_machines_files_can_be_looked_at() {
    let machine = Machine::sound();
    let root = machine.root().to_str().unwrap();
    let run = output(&["doctor", "--root", root]);
    assert_eq!(run.status.code(), Some(0));
    let said = text(&run.stdout);
    assert!(said.contains("4.00 GiB"), "{said}");
    assert!(said.ends_with("Problems and their cure\n  none\n"), "{said}");
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
