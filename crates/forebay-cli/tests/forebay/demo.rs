//! `forebay demo`, as built.

use std::process::{Command, Output};

use serde_json::Value;

fn forebay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("CLICOLOR_FORCE").env_remove("COLUMNS").env_remove("CARGO");
    command.args(arguments).output().unwrap()
}

/// Removes the page that a demo wrote.
fn without_page(said: &str) -> &str {
    let path = said.lines().last().unwrap();
    let object: Option<Value> = serde_json::from_str(path).ok();
    let path = object.as_ref().and_then(|object| object["report"].as_str()).unwrap_or(path.trim());
    assert!(std::fs::read_to_string(path).unwrap().contains("gpt2_train"), "{path}");
    std::fs::remove_file(path).unwrap();
    said
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_story_is_told_in_one_command() {
    let run = forebay(&["demo"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert!(run.stderr.is_empty(), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    for part in [
        "14377 allocations",
        "Replayed here",
        "On an H200",
        "PyTorch expandable",
        "powers of two",
        "driver, each time",
        "What forebay saves",
        "A hot pair",
        "x mimalloc",
        "forebay replay SNAPSHOT.pickle",
    ] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
    // It ends with the path of a page that shows the run.
    without_page(said);
    // The longest bar is that of whoever takes most, and forebay's is shorter.
    let bar = |name: &str| {
        let line = said.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.chars().filter(|&column| column == '█').count()
    };
    assert!(bar("powers of two") > bar("PyTorch "), "{said}");
    let bars = said.lines().find(|line| line.contains('█')).unwrap();
    assert!(bars.trim_start().starts_with("forebay"), "{said}");
    assert_eq!(said.lines().find(|line| line.chars().count() > 80), None);
}

/// The story is that of the defaults: what the environment sets changes no figure, and is named.
#[test]
fn settings_of_the_environment_are_left_aside_and_named() {
    let told = |conf: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("demo").args(more).env("FOREBAY_CONF", conf).env_remove("CLICOLOR_FORCE");
        let run = command.output().unwrap();
        assert_eq!(run.status.code(), Some(0), "{conf}: {}", text(&run.stderr));
        without_page(text(&run.stdout)).to_owned()
    };
    let said = told("max_bytes:8GiB", &[]);
    let left =
        "ignored, because the demo runs at the defaults: max_bytes:8GiB (FOREBAY_CONF, entry 1)";
    assert!(said.replace("\n  ", " ").contains(left), "{said}");
    assert!(!said.contains("failed") && said.contains("forebay leaves 1."), "{said}");
    // One that no pool could be made with is left aside too.
    let rows: Vec<Value> = told("max_bytes:much", &["--json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let summary = rows.last().unwrap();
    let left = summary["settings_left_aside"][0].as_str().unwrap();
    assert!(left.starts_with("max_bytes cannot be \"much\""), "{left}");
    let ours = rows.iter().filter(|row| row["policy"] == "forebay");
    assert!(ours.clone().all(|row| row["ooms"] == 0 && row.get("settings").is_none()), "{rows:?}");
    assert!(summary["savings"][0]["bytes"].as_i64() > Some(0), "{summary}");
}

#[test]
fn whoever_comes_by_cargo_is_told_how_to_go_on_by_cargo() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let run = command.arg("demo").env("CARGO", "cargo").env_remove("COLUMNS").output().unwrap();
    assert!(without_page(text(&run.stdout)).contains("cargo run --release -- bench alloc"));
    let wide = text(&run.stdout).lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None);
}

#[test]
fn json_has_the_rows_and_a_summary_that_agrees_with_them() {
    let run = forebay(&["demo", "--json"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let objects: Vec<Value> = without_page(text(&run.stdout))
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |schema: &str| {
        objects.iter().filter(|object| object["schema"] == schema).cloned().collect::<Vec<_>>()
    };
    let (replays, pairs, summary) =
        (of("forebay.replay.v1"), of("forebay.bench.v1"), of("forebay.demo.v1"));
    // Two passes here, and two for each of five policies there.
    assert_eq!((replays.len(), pairs.len(), summary.len()), (12, 2, 1));
    assert_eq!(objects.len(), 15, "and nothing else");
    let peak = |policy: &str| {
        let row = replays.iter().skip(2).find(|row| row["policy"] == policy).unwrap();
        row["peak_reserved_bytes"].as_i64().unwrap()
    };
    let savings = summary[0]["savings"].as_array().unwrap();
    assert_eq!(savings.len(), 4);
    for saving in savings {
        let policy = saving["policy"].as_str().unwrap();
        assert_eq!(saving["bytes"].as_i64().unwrap(), peak(policy) - peak("forebay"), "{policy}");
    }
    assert!(savings.iter().all(|saving| saving["bytes"].as_i64() > Some(0)), "{savings:?}");
    assert_eq!(summary[0]["hot_pair_ns"], pairs[1]["ns_per_op"]);
    assert!(summary[0]["quotient"].as_f64() > Some(0.0));
}

#[test]
fn bad_usage_is_2() {
    for arguments in [&["demo", "extra"][..], &["demo", "--quick"]] {
        let run = forebay(arguments);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}");
        assert!(run.stdout.is_empty());
    }
}
