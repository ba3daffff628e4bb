//! `forebay report`, as built.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::replay::{data, forebay, text};

#[test]
fn a_page_is_written_from_each_kind_of_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "tests/data/rmm_log.csv",
        "tests/data/torch_snapshot.pickle",
        "tests/data/forebay_snapshot.pickle",
    ] {
        let page = folder.path().join("page.html");
        let run = forebay(&[
            "report",
            &data(name).display().to_string(),
            "-o",
            &page.display().to_string(),
        ]);
        assert_eq!(run.status.code(), Some(0), "{name}: {}", text(&run.stderr));
        assert!(text(&run.stdout).contains("written to"), "{}", text(&run.stdout));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(
            page.starts_with("<!doctype html>") && page.contains("forebay.report.v1"),
            "{name}"
        );
        assert!(page.len() < 5 << 20);
    }
}

/// The page of `monday.fbt` is `monday.report.html`, whatever the recorder called the run.
#[test]
fn a_page_is_named_after_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = forebay_trace::TraceBuilder::new("a pool of sim:0");
    builder.allocate(0, forebay_core::Bytes::mib(1), 0).unwrap();
    let file = folder.path().join("monday.fbt");
    forebay_trace::format::write_path(&builder.finish(), &file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let run = command.args(["report", "--quick"]).arg(&file).current_dir(&folder).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).starts_with("monday: 1 event;"), "{}", text(&run.stdout));
    let page = std::fs::read_to_string(folder.path().join("monday.report.html")).unwrap();
    assert!(page.contains("<h1>monday</h1>") && page.contains(r#""name":"a pool of sim:0""#));
}

#[test]
fn the_data_is_printed_and_has_the_stacks_of_a_snapshot() {
    let snapshot = data("tests/data/torch_snapshot.pickle").display().to_string();
    let run = forebay(&["report", &snapshot, "--json", "--quick"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["schema"], "forebay.report.v1");
    let first = report["labels"][0].as_str().unwrap();
    assert!(first.contains(".py:") && first.contains('\n'), "{first}");
    assert!(!report["owners"]["by_label"].as_array().unwrap().is_empty());
    assert_eq!(report["run"]["failed_allocations"], 1);
    let replayed = forebay(&["replay", &snapshot, "--json"]);
    let row: Value = serde_json::from_str(text(&replayed.stdout).lines().next().unwrap()).unwrap();
    for key in [
        "peak_reserved_bytes",
        "peak_requested_bytes",
        "ratio",
        "driver_calls",
        "driver_ns",
        "maps",
        "ops",
    ] {
        assert_eq!(report["policies"][0][key], row[key], "{key}");
    }
}

#[test]
fn bad_files_are_told_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv");
    let page = folder.path().join("page.html");
    let refused = |content: &[u8]| {
        std::fs::write(&path, content).unwrap();
        let run =
            forebay(&["report", &path.display().to_string(), "-o", &page.display().to_string()]);
        assert_eq!(run.status.code(), Some(1), "{}", text(&run.stdout));
        assert!(!page.exists());
        text(&run.stderr).to_owned()
    };
    let said = refused(b"op,id,bytes,stream\na,1,512,0\nf,2,,0\n");
    assert!(said.contains("line 3") && said.contains("never allocated"), "{said}");
    let whole = std::fs::read(data("tests/data/torch_snapshot.pickle")).unwrap();
    let said = refused(&whole[..whole.len() / 2]);
    assert!(said.contains("byte"), "{said}");
    refused(b"");
    let absent = forebay(&["report", "/nowhere/run.csv"]);
    assert_eq!(absent.status.code(), Some(1));
    let unwritable = forebay(&[
        "report",
        &data("tests/data/rmm_log.csv").display().to_string(),
        "--quick",
        "-o",
        "/nowhere/page.html",
    ]);
    assert_eq!(unwritable.status.code(), Some(1));
    assert!(text(&unwritable.stderr).contains("/nowhere/page.html"));
}

/// Sizes no device has, on standard input: refused by every allocator, and told.
#[test]
fn sizes_beyond_all_devices_bring_nothing_down() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["report", "-", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = b"op,id,bytes,stream\na,1,18446744073709551000,0\na,2,1,0\nf,1,,0\na,3,9223372036854775808,7\n";
    child.stdin.take().unwrap().write_all(lines).unwrap();
    let run = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["happenings"]["out_of_memory"], 2);
    assert_eq!(report["run"]["events"], 4);
}

/// A snapshot of a pool is no run: its page has no time line, calls nothing a leak and advises no other allocator.
#[test]
fn a_snapshot_of_a_pool_has_a_page_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html").display().to_string();
    let snapshot = data("../../fuzz/seeds/trace_files/pool.json").display().to_string();
    let run = forebay(&["report", &snapshot, "-o", &page]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert!(text(&run.stdout).starts_with("pool: pool 1 at one moment;"), "{}", text(&run.stdout));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("forebay.postmortem.v1"));
    for absent in ["Memory over time", "Suspected leak", "forebay.report.v1"] {
        assert!(!page.contains(absent), "{absent}");
    }
    let run = forebay(&["report", &snapshot, "--json"]);
    let found: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(
        (&found["schema"], &found["refusal"]),
        (&"forebay.postmortem.v1".into(), &Value::Null)
    );
    let figures = &found["figures"];
    assert_eq!((&figures["live_bytes"], &figures["held_bytes"]), (&1536.into(), &1536.into()));
    assert_eq!(found["owners"]["by_tag"][0]["owner"], "(no tag)");
    // What would advise on a run has nothing to say of a moment.
    let run = forebay(&["doctor", &snapshot]);
    for absent in ["Suspected leak", "larger batch", "Use forebay's pool"] {
        assert!(!text(&run.stdout).contains(absent), "{absent}: {}", text(&run.stdout));
    }
}
