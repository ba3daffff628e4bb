//! `forebay replay --record` and `--analyse`, as built.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn forebay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("CLICOLOR_FORCE").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn gpt2() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    crates.join("forebay-trace/data/gpt2_train.csv.gz").display().to_string()
}

/// The rows of a run, without the times and the name, which are another's each time.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let run = forebay(arguments);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let rows = text(&run.stdout).lines().map(|line| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        let keys = row.as_object_mut().unwrap();
        for key in ["mean_ns", "p50_ns", "p99_ns", "max_ns", "trace"] {
            assert!(keys.remove(key).is_some(), "{key} is no key");
        }
        row
    });
    rows.collect()
}

#[test]
fn what_is_recorded_plays_as_the_run_does() {
    let folder = tempfile::tempdir().unwrap();
    for ending in ["fbt", "csv", "csv.gz"] {
        let out = folder.path().join(format!("out.{ending}")).display().to_string();
        let replay = |run: &str, more: &[&str]| {
            rows(&[&["replay", run, "--json", "--policy", "forebay,torch"], more].concat())
        };
        let plain = replay(&gpt2(), &[]);
        let watched = replay(&gpt2(), &["--record", &out]);
        assert_eq!(watched, plain, "watching changes what it sees");
        assert_eq!(plain.len(), 4);
        assert_eq!(plain[0]["ops"], 28_751);
        assert_eq!(replay(&out, &[]), plain, "{ending}");
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_before_anything_is_played() {
    let (run, good) = (gpt2(), "no/such/folder/out.csv");
    for (arguments, why) in [
        (&["replay", &run, "--record", "out.zip"][..], ".csv, .fbt, .pickle"),
        (&["replay", &run, &run, "--record", good], "2 runs are given"),
        (&["replay", &run, "--record", good, "--policy", "torch"], "add forebay to --policy"),
    ] {
        let run = forebay(arguments);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}");
        assert!(text(&run.stderr).contains(why), "{}", text(&run.stderr));
        assert!(run.stdout.is_empty());
    }
    // Where the file cannot be written, the rows are there, and the exit status says it.
    let run = forebay(&["replay", &run, "--record", good, "--policy=forebay", "--json"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("no/such/folder"), "{}", text(&run.stderr));
    assert_eq!(text(&run.stdout).lines().count(), 2);
}

#[test]
fn patterns_are_told_in_text_and_in_a_row() {
    let arguments = ["replay", &gpt2(), "--analyse", "--policy=forebay", "--passes=1"];
    let run = forebay(&arguments);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    for part in ["sizes", "requests", "lifetimes", "peak", "streams", "* ", "forebay "] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(part)), "{part}: {said}");
    }
    let run = forebay(&[&arguments[..], &["--json"]].concat());
    let lines: Vec<Value> =
        text(&run.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [patterns, pass] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(patterns["schema"], "forebay.analysis.v1");
    assert_eq!(pass["schema"], "forebay.replay.v1");
    assert_eq!((&patterns["trace"], &patterns["requests"]), (&"gpt2_train".into(), &14_377.into()));
    assert_eq!(patterns["peak_bytes"], pass["peak_requested_bytes"]);
    let mut keys: Vec<&str> = patterns.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = "advice at_peak freed_elsewhere frees hottest lifetime_longest_ops \
                    lifetime_median_ops lifetime_p99_ops near_peak_ops never_freed peak_blocks \
                    peak_bytes peak_lasting_blocks peak_lasting_bytes peak_op peak_small_bytes \
                    repeats repeats_in_classes requests schema sizes small_requests streams trace";
    assert_eq!(keys, expected.split(' ').collect::<Vec<_>>());
    let sum: u64 = patterns["at_peak"]
        .as_array()
        .unwrap()
        .iter()
        .map(|size| size["size_bytes"].as_u64().unwrap() * size["at_peak"].as_u64().unwrap())
        .sum();
    assert!(sum <= patterns["peak_bytes"].as_u64().unwrap());
}
