//! `forebay replay` and `forebay convert`, as built.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) fn forebay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("CLICOLOR_FORCE").args(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A file of the crate that reads recordings.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-trace").join(name)
}

pub(crate) fn gpt2() -> String {
    data("data/gpt2_train.csv.gz").display().to_string()
}

pub(crate) fn rows(run: &Output) -> Vec<Value> {
    text(&run.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_replay_says_what_each_allocator_takes() {
    let run = forebay(&["replay", &gpt2()]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    assert!(said.starts_with("gpt2_train  14377 allocations on 1 stream, 12.38 GiB"), "{said}");
    // As measured with the real ones: PyTorch, with expandable segments, and cudaMalloc.
    for (policy, ratio) in
        [("torch ", "1.1263"), ("torch-expandable", "1.0721"), ("direct", "1.0187")]
    {
        let lines = said.lines().filter(|line| line.trim_start().starts_with(policy));
        assert!(lines.clone().count() == 2 && lines.clone().all(|l| l.contains(ratio)), "{said}");
    }
    assert!(text(&run.stderr).is_empty(), "no bar where nobody looks");
}

/// The pool takes less than the allocator it is measured against, pays the driver less for it, and
/// in a second pass pays it nothing.
#[test]
fn the_pool_beats_what_it_is_measured_against() {
    let run = forebay(&["replay", &gpt2(), "--json", "--policy", "forebay,torch-expandable"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let rows = rows(&run);
    let [first, second, other, _] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(
        (&first["policy"], &other["policy"]),
        (&"forebay".into(), &"torch-expandable".into())
    );
    let figure = |row: &Value, key: &str| row[key].as_f64().unwrap();
    assert!(figure(first, "ratio") < 1.02, "{first}");
    assert!(figure(first, "ratio") < figure(other, "ratio") - 0.05, "{first} {other}");
    assert!(figure(first, "driver_ns") < figure(other, "driver_ns"), "{first} {other}");
    assert_eq!((figure(second, "maps"), figure(second, "driver_ns")), (0.0, 0.0), "{second}");
}

#[test]
fn json_is_one_object_a_pass_with_the_documented_keys() {
    let run = forebay(&["replay", &gpt2(), "--json", "--policy", "torch,direct", "--passes", "3"]);
    assert_eq!(run.status.code(), Some(0));
    let rows = rows(&run);
    assert_eq!(rows.len(), 6);
    for row in &rows {
        let mut keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "device",
                "driver_calls",
                "driver_ns",
                "maps",
                "max_ns",
                "mean_ns",
                "ooms",
                "ops",
                "p50_ns",
                "p99_ns",
                "pass",
                "peak_requested_bytes",
                "peak_reserved_bytes",
                "policy",
                "ratio",
                "schema",
                "trace",
                "verified",
            ]
        );
        assert_eq!((&row["schema"], &row["device"]), (&"forebay.replay.v1".into(), &"sim".into()));
        assert_eq!((&row["ops"], &row["ooms"]), (&28_751.into(), &0.into()));
        assert!(row["p50_ns"].as_u64() <= row["p99_ns"].as_u64());
        assert!(row["p99_ns"].as_u64() <= row["max_ns"].as_u64());
    }
    assert_eq!(rows[1]["driver_calls"], 0, "torch is warm in its second pass");
    assert_eq!(rows[5]["driver_calls"], 28_751, "direct never is");
}

#[test]
fn memory_that_runs_out_is_counted_and_in_the_exit_status() {
    let run = forebay(&[
        "replay",
        &gpt2(),
        "--json",
        "--policy",
        "torch",
        "--capacity",
        "8GiB",
        "--passes=1",
    ]);
    assert_eq!(run.status.code(), Some(1));
    let rows = rows(&run);
    assert!(rows[0]["ooms"].as_u64() > Some(0), "{rows:?}");
    assert!(rows[0]["peak_reserved_bytes"].as_u64() <= Some(8 << 30));
    let said = text(&run.stderr);
    assert!(said.contains("allocations ran out of memory; the first: out of memory:"), "{said}");
    let enough = forebay(&["replay", &gpt2(), "--policy", "torch", "--capacity", "14GiB"]);
    assert_eq!(enough.status.code(), Some(0), "{}", text(&enough.stderr));
}

/// The pool's own limit is not the device's capacity, and each is named where it is in the way.
#[test]
fn the_true_cause_of_a_shortage_is_named() {
    let run = |conf: &str, capacity: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["replay", &gpt2(), "--policy=forebay,torch", "--passes=1"]);
        command.args(["--capacity", capacity]).env("FOREBAY_CONF", conf);
        command.env_remove("CLICOLOR_FORCE").output().unwrap()
    };
    let limited = run("max_bytes:8GiB", "24GiB");
    assert_eq!(limited.status.code(), Some(1));
    let why = text(&limited.stderr);
    assert!(why.contains("the pool's limit is 8.00 GiB, of which it holds 7."), "{why}");
    assert!(why.contains("set max_bytes to ") && !why.contains("larger device"), "{why}");
    assert_eq!(why.lines().count(), 1, "the model goes by no settings\n{why}");
    let head = "forebay is not at its defaults: max_bytes:8GiB (FOREBAY_CONF, entry 1)";
    assert!(text(&limited.stdout).contains(head), "{}", text(&limited.stdout));
    let full = run("", "8GiB");
    assert_eq!(full.status.code(), Some(1));
    let why = text(&full.stderr);
    assert!(why.contains("a larger device would help") && !why.contains("limit"), "{why}");
    assert!(!text(&full.stdout).contains("defaults"), "{}", text(&full.stdout));
    let enough = run("max_bytes:13GiB", "24GiB");
    assert_eq!(enough.status.code(), Some(0), "{}", text(&enough.stderr));
}

#[test]
fn the_settings_in_force_are_in_the_rows_of_the_pool() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["replay", &gpt2(), "--policy=forebay,torch", "--passes=1", "--json"]);
    let run = command.env("FOREBAY_CONF", "max_bytes:13GiB").output().unwrap();
    let rows = rows(&run);
    assert_eq!(rows[0]["settings"], serde_json::json!({"max_bytes": "13GiB"}));
    assert!(rows[1].get("settings").is_none(), "{}", rows[1]);
}

#[test]
fn the_host_can_be_played_on() {
    let log = data("tests/data/rmm_log.csv").display().to_string();
    let run = forebay(&["replay", &log, "--device", "host", "--json"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let rows = rows(&run);
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().all(|row| row["device"] == "host" && row["ooms"] == 0));
    assert!(rows[0]["driver_ns"].as_u64() > Some(0));
}

#[test]
fn what_blocks_hold_is_verified_where_there_is_memory() {
    let log = data("tests/data/rmm_log.csv").display().to_string();
    for place in [&["--device", "host"][..], &["--device", "sim", "--backed"]] {
        let arguments = [&["replay", &log, "--verify", "--json"], place].concat();
        let run = forebay(&arguments);
        assert_eq!(run.status.code(), Some(0), "{place:?}: {}", text(&run.stderr));
        let rows = rows(&run);
        assert_eq!(rows.len(), 10);
        assert!(rows.iter().all(|row| row["verified"] == true), "{place:?}: {rows:?}");
    }
    let plain = rows(&forebay(&["replay", &log, "--json", "--passes=1"]));
    assert!(plain.iter().all(|row| row["verified"].is_null()), "nothing is claimed unasked");
    let said = forebay(&["replay", &log, "--verify", "--device=host", "--policy=forebay"]);
    assert!(text(&said.stdout).lines().filter(|line| line.ends_with("verified")).count() == 2);
}

#[test]
fn what_has_no_memory_is_not_verified() {
    let run = forebay(&["replay", &gpt2(), "--verify"]);
    assert_eq!(run.status.code(), Some(2));
    let said = text(&run.stderr);
    assert!(said.contains("addresses and no memory") && said.contains("--backed"), "{said}");
    assert!(said.contains("--device host"), "{said}");
    assert!(run.stdout.is_empty());
}

#[test]
fn one_bad_file_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    std::fs::write(&bad, "op,id,bytes,stream\na,1,2,0\nf,2,,0\n").unwrap();
    let snapshot = data("tests/data/torch_snapshot.pickle").display().to_string();
    let run = forebay(&["replay", bad.to_str().unwrap(), "no/such.csv", &snapshot]);
    assert_eq!(run.status.code(), Some(1));
    let (said, complained) = (text(&run.stdout), text(&run.stderr));
    assert!(said.starts_with("torch_snapshot  244 allocations on 2 streams"), "{said}");
    assert!(said.contains("1 allocation failed when it was recorded"), "{said}");
    assert!(complained.contains("bad.csv: CSV, line 3: frees 2"), "{complained}");
    assert!(complained.contains("no/such.csv: "), "{complained}");
}

#[test]
fn bad_usage_is_told_what_is_allowed() {
    for (arguments, allowed) in [
        (&["replay"][..], "<TRACE>"),
        (&["replay", "a", "--policy", "jemalloc"], "torch-expandable, pow2, direct"),
        (&["replay", "a", "--device", "tpu"], "host, sim"),
        (&["convert", "a"], "<OUT>"),
        (&["convert", "a.csv", "b.zip"], "end it with .csv, .fbt, .pickle, .log"),
    ] {
        let run = forebay(arguments);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}");
        assert!(text(&run.stderr).contains(allowed), "{arguments:?}: {}", text(&run.stderr));
        assert!(run.stdout.is_empty());
    }
}

#[test]
fn what_is_converted_is_the_same_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let snapshot = data("tests/data/torch_snapshot.pickle").display().to_string();
    for (from, to) in [
        (snapshot.clone(), path("run.fbt")),
        (path("run.fbt"), path("run.csv")),
        (path("run.fbt"), path("again.pickle")),
        (path("again.pickle"), path("run.log")),
        (path("run.log"), path("run.json")),
        (path("run.log"), path("run.csv.gz")),
    ] {
        let run = forebay(&["convert", &from, &to]);
        assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        assert!(text(&run.stdout).contains("458 events"), "{}", text(&run.stdout));
    }
    let peaks = |file: &str| {
        let rows = rows(&forebay(&["replay", file, "--json"]));
        rows.iter().map(|row| row["peak_reserved_bytes"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let before = peaks(&snapshot);
    assert_eq!(before.len(), 10);
    assert_eq!(peaks(&path("run.csv.gz")), before);
    let json = forebay(&["convert", &snapshot, &path("again.fbt"), "--json"]);
    let objects = rows(&json);
    assert_eq!((objects.len(), &objects[0]["schema"]), (1, &"forebay.convert.v1".into()));
    let written = std::fs::metadata(path("again.fbt")).unwrap().len();
    assert_eq!(objects[0]["written_bytes"], written);
    let missing = forebay(&["convert", "no/such.csv", &path("x.csv")]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(!Path::new(&path("x.csv")).exists());
}

#[test]
fn a_gpu_that_is_not_there_is_told_of_once() {
    let run = forebay(&["replay", &gpt2(), "--device", "cuda:0"]);
    // Where there is one this machine plays on it.
    if run.status.code() != Some(0) {
        assert_eq!(run.status.code(), Some(1), "{}", text(&run.stderr));
        assert_eq!(text(&run.stderr).lines().count(), 1, "{}", text(&run.stderr));
        assert!(run.stdout.is_empty());
    }
}

/// With a driver that is certainly not there: what was looked for, and what to do instead.
#[test]
fn a_missing_driver_is_told_with_what_to_do() {
    for arguments in [&["replay", &gpt2()][..], &["bench", "alloc", "--quick"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(arguments).args(["--device", "cuda:0"]);
        let run = command.env("FOREBAY_CUDA_DRIVER", "/no/such/libcuda.so").output().unwrap();
        assert_eq!(run.status.code(), Some(1), "{arguments:?}");
        let said = text(&run.stderr);
        for part in [
            "cuda:0: no CUDA driver: tried /no/such/libcuda.so (",
            "library in FOREBAY_CUDA_DRIVER",
            "--device host and --device sim",
            "forebay doctor",
        ] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
        assert!(!said.contains("capabilities"), "{said}");
        assert_eq!((said.lines().count(), run.stdout.len()), (1, 0), "{said}");
    }
}

#[test]
fn a_gpu_beyond_the_last_is_told_with_those_that_are_there() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["replay", &gpt2(), "--device", "cuda:7"]);
    let run = command.env("FOREBAY_CUDA_DRIVER", crate::doctor::fake_driver()).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    let said = text(&run.stderr);
    assert!(
        said.contains("cuda:7: open: invalid ordinal: device 7; expected devices 0 to 1"),
        "{said}"
    );
}

/// Runs the command with a file as its standard input, through a pipe.
fn piped(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("CLICOLOR_FORCE").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = std::fs::read(input).unwrap();
    // A command that does not read leaves a broken pipe, which is not under test.
    let feeder = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

#[test]
fn a_dash_reads_standard_input_in_any_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let peaks = |run: &Output| {
        assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        let figure = |row: Value| row["peak_reserved_bytes"].as_u64().unwrap();
        rows(run).into_iter().map(figure).collect::<Vec<_>>()
    };
    let snapshot = data("tests/data/torch_snapshot.pickle").display().to_string();
    let expected = peaks(&forebay(&["replay", &snapshot, "--json"]));
    for name in ["run.fbt", "run.csv", "run.csv.gz"] {
        assert_eq!(forebay(&["convert", &snapshot, &path(name)]).status.code(), Some(0));
    }
    for input in [snapshot.clone(), path("run.fbt"), path("run.csv"), path("run.csv.gz")] {
        let run = piped(&["replay", "-", "--json"], &input);
        assert_eq!(peaks(&run), expected, "{input}");
        // forebay's own form holds the name of the run.
        let name = if input.ends_with(".fbt") { "torch_snapshot" } else { "stdin" };
        assert!(rows(&run).iter().all(|row| row["trace"] == name), "{input}");
        // The same through convert, which tells how much it read.
        let run = piped(&["convert", "-", &path("again.csv"), "--json"], &input);
        assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        let told = rows(&run).remove(0);
        assert_eq!(told["read_bytes"], std::fs::metadata(&input).unwrap().len());
        assert_eq!((&told["input"], &told["events"]), (&"-".into(), &458.into()));
    }
    // Beside files, and before options.
    let both = piped(&["replay", "--json", "--passes=1", &snapshot, "-"], &path("run.fbt"));
    assert_eq!(rows(&both).len(), 10, "{}", text(&both.stderr));
}

#[test]
fn what_cannot_be_read_from_standard_input_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let empty = piped(&["replay", "-"], &path("empty", ""));
    assert_eq!(empty.status.code(), Some(1));
    assert!(text(&empty.stderr).contains("standard input: "), "{}", text(&empty.stderr));
    let bad = path("bad.csv", "op,id,bytes,stream\na,1,2,0\nf,2,,0\n");
    let run = piped(&["convert", "-", "out.csv"], &bad);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("standard input: CSV, line 3: frees 2"));
    let twice = piped(&["replay", "-", "-"], &bad);
    assert_eq!((twice.status.code(), twice.stdout.len()), (Some(2), 0));
    assert!(text(&twice.stderr).contains("only once"), "{}", text(&twice.stderr));
}

#[test]
fn tables_fit_the_terminal() {
    let snapshot = data("tests/data/torch_snapshot.pickle").display().to_string();
    let log = data("tests/data/rmm_log.csv").display().to_string();
    let lines = |columns: Option<&str>, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("replay").args(arguments).env_remove("CLICOLOR_FORCE").env_remove("COLUMNS");
        command.envs(columns.map(|columns| ("COLUMNS", columns)));
        let run = command.output().unwrap();
        assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        text(&run.stdout).to_owned()
    };
    let runs: [&[&str]; 3] = [
        &[&gpt2(), &snapshot, &log, "--analyse"],
        &[&log, "--verify", "--device=host"],
        &[&gpt2(), "--passes", "3", "--policy", "forebay,direct"],
    ];
    for (columns, most) in [(Some("80"), 80), (Some("60"), 60), (Some("132"), 132)] {
        for arguments in runs {
            let said = lines(columns, arguments);
            let wide = said.lines().find(|line| line.chars().count() > most);
            assert_eq!(wide, None, "{columns:?} {arguments:?}\n{said}");
            assert!(said.contains("ratio"), "{said}");
        }
    }
    let wide = lines(Some("132"), runs[0]);
    assert!(wide.contains("maps") && !wide.contains("Left out to fit"), "{wide}");
    assert!(lines(Some("60"), runs[0]).contains("Left out to fit"), "what is left out is named");
    // A pipe has no width, so its tables have every column; words still take 80.
    for arguments in runs {
        let said = lines(None, arguments);
        assert!(said.contains("p99 ns") && !said.contains("Left out to fit"), "{said}");
        let is_of_table = |line: &&str| line.contains("iB") && line.starts_with("  ");
        let words = said.lines().filter(|line| !is_of_table(line) && !line.contains("p99 ns"));
        assert_eq!(words.clone().find(|line| line.chars().count() > 80), None, "{said}");
    }
}
