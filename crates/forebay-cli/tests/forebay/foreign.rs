//! Recordings of others: what they can make the command do, and what they cannot.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::replay::{data, forebay, rows, text};

/// A recording in a file of `folder`.
fn recording(folder: &Path, name: &str, lines: impl IntoIterator<Item = String>) -> String {
    let mut csv = "op,id,bytes,stream\n".to_owned();
    lines.into_iter().for_each(|line| writeln!(csv, "{line}").unwrap());
    let path = folder.join(name);
    std::fs::write(&path, csv).unwrap();
    path.display().to_string()
}

/// A few hundred bytes that stand for minutes of work: blocks of 900 GiB, each of its own size.
fn terabytes(folder: &Path) -> String {
    let block = |number: u64| {
        let size = (900_u64 << 30) + (number << 21);
        [format!("a,{number},{size},{}", number % 7), format!("f,{number},,{}", number % 7)]
    };
    recording(folder, "tib.csv", (0..2000).flat_map(block))
}

#[test]
fn work_beyond_the_limit_is_stopped_early_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let trace = terabytes(folder.path());
    let page = folder.path().join("page.html").display().to_string();
    for command in [
        &["replay", &trace, "--limit", "2s"][..],
        &["fit", &trace, "--limit", "2s"],
        &["report", &trace, "--limit", "2s", "-o", &page],
        &["doctor", &trace, "--limit", "2s"],
    ] {
        let began = Instant::now();
        let run = forebay(command);
        assert_eq!(run.status.code(), Some(1), "{command:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{command:?}: {:?}", began.elapsed());
        let said = text(&run.stderr);
        let is_said = ["this recording would take about", "this recording has taken"];
        assert!(is_said.iter().any(|words| said.contains(words)), "{command:?}: {said}");
        assert!(said.contains("longer than the limit of 2 s"), "{command:?}: {said}");
        assert_eq!(said.matches("--limit").count(), 1, "said once, {command:?}: {said}");
    }
    assert!(!Path::new(&page).exists());
}

#[test]
fn thousands_of_streams_are_replayed_in_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let lines = (0..1500).map(|number| format!("a,{number},{},{number}", 512 * (number % 7 + 1)));
    let trace = recording(folder.path(), "streams.csv", lines);
    let run = forebay(&["replay", &trace, "--json", "--limit", "60s"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert_eq!(rows(&run).len(), 10);
}

#[test]
fn more_events_than_allowed_are_refused_before_they_are_read() {
    let log = data("tests/data/rmm_log.csv").display().to_string();
    for command in [&["replay", &log][..], &["fit", &log], &["report", &log], &["doctor", &log]] {
        let run = forebay(&[command, &["--max-events", "100"]].concat());
        assert_eq!(run.status.code(), Some(1), "{command:?}");
        let said = text(&run.stderr);
        assert!(said.contains("more than 100 events") && said.contains("--max-events"), "{said}");
    }
}

/// A recording whose name, as the file's own, would clear the screen and set the title.
#[test]
fn names_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let name = "\u{1b}]0;pwned\u{7}\u{1b}[2Jn\u{9b}5name";
    let lines = ["a,1,1048576,0", "f,1,,0"].map(str::to_owned);
    let evil = recording(folder.path(), &format!("{name}.csv"), lines);
    let fbt = folder.path().join(format!("{name}.fbt")).display().to_string();
    let missing = folder.path().join(format!("{name}.gone")).display().to_string();
    for command in [
        &["convert", &evil, &fbt][..],
        &["convert", &fbt, &evil],
        &["convert", &fbt, &evil, "--json"],
        &["replay", &fbt, "--analyse"],
        &["replay", &fbt, "--json"],
        &["replay", &fbt, "--capacity", "2MiB", "--policy", "torch"],
        &["fit", &fbt],
        &["fit", &missing],
        &["report", &fbt, "--quick"],
        &["report", &fbt, "--quick", "--json"],
        &["doctor", &fbt],
        &["replay", &fbt, name],
        &["replay", &format!("--{name}")],
    ] {
        let mut forebay = Command::new(env!("CARGO_BIN_EXE_forebay"));
        let run = forebay.env("CLICOLOR_FORCE", "1").current_dir(folder.path()).args(command);
        let run = run.output().unwrap();
        for said in [text(&run.stdout), text(&run.stderr)] {
            for bad in ["\u{1b}]", "\u{1b}[2J", "\u{7}", "\u{9b}"] {
                assert!(!said.contains(bad), "{bad:?} after {command:?}: {said:?}");
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn a_planted_link_is_replaced_and_not_followed() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("victim"), "precious").unwrap();
    let log = data("tests/data/rmm_log.csv").display().to_string();
    let [page, csv, record] = ["page.html", "run.csv", "run.fbt"].map(|name| {
        symlink("victim", at(name)).unwrap();
        at(name).display().to_string()
    });
    for command in [
        &["report", &log, "--quick", "-o", &page][..],
        &["convert", &log, &csv],
        &["replay", &log, "--record", &record],
    ] {
        let run = forebay(command);
        assert_eq!(run.status.code(), Some(0), "{command:?}: {}", text(&run.stderr));
    }
    assert_eq!(std::fs::read_to_string(at("victim")).unwrap(), "precious");
    for name in ["page.html", "run.csv", "run.fbt"] {
        assert!(at(name).symlink_metadata().unwrap().is_file(), "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "no partial files");
    // Without a folder to write to nothing is left behind either.
    let nowhere = at("no/page.html").display().to_string();
    assert_eq!(forebay(&["report", &log, "--quick", "-o", &nowhere]).status.code(), Some(1));
}

#[test]
fn a_pipe_gets_every_column() {
    let log = data("tests/data/rmm_log.csv").display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let run = command.env_remove("COLUMNS").args(["replay", &log]).output().unwrap();
    let said = text(&run.stdout);
    for column in ["calls", "driver", "maps", "ns/op", "p99 ns"] {
        let headings = said.lines().find(|line| line.contains("policy")).unwrap();
        assert!(headings.contains(column), "{column}\n{said}");
    }
    assert!(!said.contains("Left out"), "{said}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let run = command.env("COLUMNS", "60").args(["replay", &log]).output().unwrap();
    assert!(text(&run.stdout).contains("Left out to fit the width"), "{}", text(&run.stdout));
}
