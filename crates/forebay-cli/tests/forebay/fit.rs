//! `forebay fit`, as built.

use std::process::Command;

use serde_json::Value;

use crate::replay::{data, forebay, gpt2, rows, text};

/// What users ask for: the run fits a device that is hardly larger than what it asks for, less than any other policy
/// needs, and with a hundredth more it comes to ask nothing of the driver.
#[test]
fn a_run_fits_hardly_more_than_it_asks_for() {
    let run = forebay(&["fit", &gpt2(), "--passes", "3", "--json"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let rows = rows(&run);
    let [ours, others @ ..] = rows.as_slice() else { panic!("{rows:?}") };
    let figure = |row: &Value, key: &str| row[key].as_f64().unwrap();
    assert_eq!((&ours["schema"], &ours["policy"]), (&"forebay.fit.v1".into(), &"forebay".into()));
    assert!(figure(ours, "ratio") < 1.005, "{ours}");
    assert_eq!(others.len(), 2);
    for other in others {
        assert!(figure(other, "ratio") > figure(ours, "ratio"), "{other}");
    }
    assert_eq!(ours["smallest_bytes"].as_u64().unwrap() % (2 << 20), 0);
    assert_eq!(ours["maps"].as_array().unwrap().len(), 3, "one figure a pass");
    assert_eq!(ours["advice"], others[0]["advice"], "of the run, whichever allocator");
    assert!(!ours["advice"].as_array().unwrap().is_empty(), "{ours}");
    let larger = ours["larger"].as_array().unwrap();
    let maps = |larger: &Value, pass: usize| larger["maps"][pass].as_u64().unwrap();
    // A few pages find their last place in the second pass.
    let settles = |larger: &Value| maps(larger, 1) < 50 && maps(larger, 2) == 0;
    assert!(larger.iter().all(|larger| larger["fits"] == true && settles(larger)), "{ours}");
    assert_eq!(ours.get("fits"), None, "nobody asked");
}

/// "Smallest" holds for as many passes as it says: replayed as often on a device of that size, nothing is refused.
#[test]
fn what_is_promised_is_served_in_ten_passes() {
    for trace in [gpt2(), data("tests/data/rmm_log.csv").display().to_string()] {
        for row in rows(&forebay(&["fit", &trace, "--json"])) {
            assert_eq!(row["passes"], 10, "{row}");
            let capacity = row["smallest_bytes"].as_u64().unwrap().to_string();
            let policy = row["policy"].as_str().unwrap();
            let words = ["replay", &trace, "--passes", "10", "--policy", policy, "--json"];
            let run = forebay(&[&words[..], &["--capacity", &capacity]].concat());
            assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        }
    }
    let said = forebay(&["fit", &data("tests/data/rmm_log.csv").display().to_string()]);
    let said = text(&said.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("the smallest device on which 10 passes in a row went through"),
        "{said}"
    );
}

#[test]
fn whether_it_fits_is_told_with_the_margin() {
    let log = data("tests/data/rmm_log.csv").display().to_string();
    let ask = |capacity: &str, more: &[&str]| {
        let words = ["fit", &log, "--policy", "forebay,direct", "--capacity", capacity];
        // A table takes all the room it needs where there is no terminal; this one is told of one.
        let mut forebay = Command::new(env!("CARGO_BIN_EXE_forebay"));
        forebay.env_remove("CLICOLOR_FORCE").env("COLUMNS", "80");
        forebay.args([&words, more].concat()).output().unwrap()
    };
    let enough = ask("24GiB", &[]);
    assert_eq!(enough.status.code(), Some(0), "{}", text(&enough.stderr));
    let said = text(&enough.stdout);
    assert_eq!(said.lines().filter(|line| line.contains("fits, 23.")).count(), 2, "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    let short = ask("2MiB", &["--json"]);
    assert_eq!(short.status.code(), Some(1));
    for row in rows(&short) {
        let margin = row["margin_bytes"].as_i64().unwrap();
        assert!(row["fits"] == false && margin < 0, "{row}");
        assert_eq!(row["smallest_bytes"].as_i64().unwrap(), (2 << 20) - margin);
    }
}

#[test]
fn what_cannot_be_read_is_a_failure_and_hides_nothing_else() {
    let log = data("tests/data/rmm_log.csv").display().to_string();
    let run = forebay(&["fit", "/nowhere/run.csv", &log, "--policy", "forebay", "--json"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("/nowhere/run.csv"), "{}", text(&run.stderr));
    assert_eq!(rows(&run).len(), 1);
    let none = forebay(&["fit"]);
    assert_eq!(none.status.code(), Some(2));
}
