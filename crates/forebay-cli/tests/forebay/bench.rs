//! `forebay bench`, as built.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

fn forebay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("CLICOLOR_FORCE").env_remove("COLUMNS").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn rows(run: &Output) -> Vec<Value> {
    text(&run.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const WORKLOADS: [&str; 20] = [
    "COLAB-MIX",
    "DC-ALLOC",
    "DC-HIT",
    "GE-ACCUM",
    "GE-LARGE",
    "GE-PRESSURE",
    "GE-SAME",
    "GE-TRANSFORMER",
    "GE-VARIABLE",
    "HOST-VIEW",
    "HOT",
    "HOT-STATISTICS",
    "HOT-THREADS",
    "MP-CONC",
    "MP-LAT",
    "MP-MIX",
    "MP-REUSE",
    "MP-T",
    "MP-THR",
    "OBJ-POOL",
];

fn positive(row: &Value, key: &str) {
    assert!(row[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {row}");
}

fn complete(rows: &[Value], device: &str) {
    let benches: BTreeSet<&str> = rows.iter().map(|row| row["bench"].as_str().unwrap()).collect();
    assert_eq!(benches.into_iter().collect::<Vec<_>>(), WORKLOADS);
    for row in rows {
        assert_eq!((&row["schema"], &row["device"]), (&"forebay.bench.v1".into(), &device.into()));
        assert!(!row["case"].as_str().unwrap().is_empty(), "{row}");
        for key in ["threads", "ops", "rounds", "ns_per_op"] {
            positive(row, key);
        }
        assert!(row.get("error").is_none(), "{row}");
        let allocator = row["allocator"].as_str().unwrap();
        let clock = if device == "sim" && allocator == "driver" { "model" } else { "host" };
        assert_eq!(row["clock"], clock, "{row}");
        match row["bench"].as_str().unwrap() {
            "MP-LAT" => {
                let figures: Vec<u64> = ["min_ns", "p50_ns", "p99_ns", "p99_9_ns"]
                    .map(|key| row[key].as_u64().unwrap())
                    .to_vec();
                assert!(figures.is_sorted(), "{row}");
                assert!(row["clock_ns"].is_u64(), "{row}");
            }
            "HOT" | "HOT-STATISTICS" => positive(row, "quotient"),
            "HOT-THREADS" | "OBJ-POOL" => positive(row, "speed_up"),
            _ => assert!(row.get("p50_ns").is_none() && row.get("quotient").is_none(), "{row}"),
        }
    }
    let of = |bench: &str, allocator: &str| {
        let found =
            rows.iter().filter(|row| row["bench"] == bench && row["allocator"] == allocator);
        found.map(|row| row["case"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let has_driver = |bench: &&&str| !bench.starts_with("HO") && **bench != "OBJ-POOL";
    for bench in WORKLOADS.iter().filter(has_driver) {
        assert_eq!(of(bench, "forebay"), of(bench, "driver"), "{bench}");
    }
    assert_eq!(of("HOT", "forebay"), ["512 B", "64 KiB", "1 MiB", "16 MiB", "256 MiB"]);
    assert_eq!(of("HOT", "mimalloc"), ["512 B"]);
    assert_eq!(of("OBJ-POOL", "Box"), of("OBJ-POOL", "forebay"));
    assert_eq!(of("HOT-STATISTICS", "uncounted"), of("HOT-STATISTICS", "forebay"));
    assert_eq!(of("MP-LAT", "mimalloc"), ["512 B"], "the yardstick is for 512 B");
    let threads = |row: &&Value| row["bench"] == "HOT-THREADS" && row["allocator"] == "forebay";
    let threads: Vec<u64> =
        rows.iter().filter(threads).map(|row| row["threads"].as_u64().unwrap()).collect();
    assert!(threads.starts_with(&[1, 2]), "{threads:?}");
}

#[test]
fn every_workload_has_its_rows_on_the_simulated_device() {
    let began = Instant::now();
    let run = forebay(&["bench", "alloc", "--quick", "--json"]);
    let took = began.elapsed();
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert!(text(&run.stderr).is_empty(), "no bar where nobody looks");
    complete(&rows(&run), "sim");
    assert!(took < Duration::from_secs(30), "quick took {took:?}");
}

#[test]
fn every_workload_has_its_rows_on_the_host() {
    let run = forebay(&["bench", "alloc", "--quick", "--json", "--device", "host"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    complete(&rows(&run), "host");
}

#[test]
fn workloads_can_be_named() {
    let run = forebay(&["bench", "alloc", "hot", "MP-T", "HOT", "--quick", "--json"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let rows = rows(&run);
    let mut benches: Vec<&str> = rows.iter().map(|row| row["bench"].as_str().unwrap()).collect();
    benches.dedup();
    assert_eq!(benches, ["MP-T", "HOT"], "each once, in the usual order");
    let said = forebay(&["bench", "alloc", "DC-HIT", "--quick"]);
    let titles = text(&said.stdout)
        .lines()
        .filter(|line| WORKLOADS.iter().any(|workload| line.starts_with(&format!("{workload}  "))));
    assert_eq!(titles.count(), 1, "{}", text(&said.stdout));
}

/// Figures of a pool with other settings say so, and are those of such a pool.
#[test]
fn settings_of_the_environment_are_in_force_and_told() {
    let with = |conf: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["bench", "alloc", "MP-REUSE", "--quick"]).args(more);
        command.env("FOREBAY_CONF", conf).env_remove("CLICOLOR_FORCE").output().unwrap()
    };
    let set = with("history:7,upkeep:off", &["--json"]);
    assert_eq!(set.status.code(), Some(0), "{}", text(&set.stderr));
    for row in rows(&set) {
        let settings = match row["allocator"].as_str() {
            Some("forebay") => serde_json::json!({"history": "7"}),
            _ => Value::Null,
        };
        assert_eq!(row.get("settings").unwrap_or(&Value::Null), &settings, "{row}");
    }
    let said = with("history:7", &[]);
    let first = text(&said.stdout).lines().next().unwrap();
    assert_eq!(first, "forebay is not at its defaults: history:7 (FOREBAY_CONF, entry 1)");
    let plain = with("", &[]);
    assert!(text(&plain.stdout).starts_with("MP-REUSE  "), "{}", text(&plain.stdout));
    // 1000 blocks of 1 MiB do not fit there: the limit holds.
    let short = with("max_bytes:512MiB", &["--json"]);
    assert_eq!(short.status.code(), Some(1));
    assert!(text(&short.stderr).contains("of at most 512.00 MiB"), "{}", text(&short.stderr));
    let failed = rows(&short);
    assert!(failed.iter().any(|row| row["error"].is_string() && row["ns_per_op"].is_null()));
}

#[test]
fn people_get_a_table_with_what_it_means() {
    let run = forebay(&["bench", "alloc", "--quick"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    for workload in WORKLOADS {
        assert!(said.lines().any(|line| line.starts_with(&format!("{workload}  "))), "{workload}");
    }
    assert!(said.contains("mimalloc's 512 B"), "{said}");
    assert!(said.replace('\n', " ").contains("by the cost table of one H200"), "{said}");
    assert!(!said.contains("failed") && !said.contains('\x1b'), "{said}");
    let mut forebay = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let run = forebay.env("COLUMNS", "80").args(["bench", "alloc", "--quick"]).output().unwrap();
    let wide = text(&run.stdout).lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "nothing runs out of a terminal");
}

const STRESS: [&str; 10] = [
    "STRESS-SEATS",
    "STRESS-STREAMS",
    "STRESS-HOLES",
    "STRESS-USES",
    "STRESS-CROWD",
    "STRESS-PROBE",
    "STRESS-REFUSE",
    "STRESS-SNAPSHOT",
    "STRESS-POOLS",
    "STRESS-CLIFFS",
];

#[test]
fn every_stress_workload_has_valid_rows() {
    let run = forebay(&["bench", "alloc", "STRESS", "--quick", "--json"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let rows = rows(&run);
    let mut benches: Vec<&str> = rows.iter().map(|row| row["bench"].as_str().unwrap()).collect();
    benches.dedup();
    assert_eq!(benches, STRESS, "each once, in the usual order");
    for row in &rows {
        assert_eq!(row["schema"], "forebay.bench.v1");
        assert!(matches!(row["device"].as_str(), Some("sim" | "host")), "{row}");
        assert!(matches!(row["allocator"].as_str(), Some("forebay" | "control")), "{row}");
        assert!(row.get("error").is_none(), "{row}");
        for key in ["threads", "ops", "rounds", "ns_per_op"] {
            positive(row, key);
        }
        if row.get("p50_ns").is_some() {
            let figures = ["min_ns", "p50_ns", "p99_ns", "p99_9_ns", "max_ns"];
            let figures = figures.map(|key| row[key].as_u64().unwrap());
            assert!(figures.is_sorted(), "{row}");
        }
        let none = Vec::new();
        let targets = row.get("targets").map_or(&none, |targets| targets.as_array().unwrap());
        let met: Option<Vec<bool>> = targets
            .iter()
            .map(|target| {
                assert!(!target["what"].as_str().unwrap().is_empty(), "{row}");
                Some(target["value"].as_f64()? <= target["at_most"].as_f64().unwrap())
            })
            .collect();
        let ok = met.filter(|met| !met.is_empty()).map(|met| !met.contains(&false));
        assert_eq!(row["ok"].as_bool(), ok, "{row}");
        assert!(
            row.as_object().unwrap().contains_key("ok"),
            "null where there is no target: {row}"
        );
    }
    let has = |bench: &str, key: &str| {
        let mut rows = rows.iter().filter(|row| row["bench"] == bench);
        assert!(rows.all(|row| row[key].as_f64().is_some()), "{bench} {key}");
    };
    for (bench, keys) in [
        ("STRESS-STREAMS", &["p50_ns", "p99_ns", "host_waits"][..]),
        ("STRESS-HOLES", &["p50_ns"]),
        ("STRESS-USES", &["query_events_per_op"]),
        ("STRESS-CROWD", &["p50_ns", "p99_ns"]),
        ("STRESS-PROBE", &["driver_calls_per_op", "driver_ns_per_op"]),
        ("STRESS-REFUSE", &["driver_calls_per_op", "held_before_bytes", "held_after_bytes"]),
        ("STRESS-REFUSE", &["device_free_before_bytes", "device_free_after_bytes"]),
        ("STRESS-SNAPSHOT", &["max_ns"]),
        ("STRESS-POOLS", &["pools", "reserved_bytes_per_pool"]),
        ("STRESS-CLIFFS", &["p50_ns", "max_ns"]),
    ] {
        keys.iter().for_each(|key| has(bench, key));
    }
}

/// In words: a target with its bound, nothing too wide, and what is missed is not a failure.
#[test]
fn people_get_the_targets_of_stress() {
    let run = forebay(&["bench", "alloc", "stress", "--quick"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    for workload in STRESS {
        assert!(said.lines().any(|line| line.starts_with(&format!("{workload}  "))), "{workload}");
    }
    assert!(said.contains("thread 258 / first thread: "), "{said}");
    assert!(said.contains("(at most 1.50)"), "{said}");
    let words = said.replace('\n', " ");
    assert!(words.contains("does not change the exit status"), "{said}");
    let mut forebay = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let stress = ["bench", "alloc", "stress", "--quick"];
    let run = forebay.env("COLUMNS", "80").args(stress).output().unwrap();
    let wide = text(&run.stdout).lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "nothing runs out of a terminal");
}

#[test]
fn stress_chooses_its_devices() {
    let run = forebay(&["bench", "alloc", "STRESS-HOLES", "--quick", "--device", "host"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("leave --device out"), "{}", text(&run.stderr));
    assert!(run.stdout.is_empty());
}

#[test]
fn bad_usage_is_told_what_is_allowed() {
    for (arguments, allowed) in [
        (&["bench"][..], "<WHAT>"),
        (&["bench", "copies"], "[possible values: alloc, transfer]"),
        (&["bench", "all"], "[possible values: alloc, transfer]"),
        (&["bench", "alloc", "--device", "gpu"], "a device is host, sim, or cuda:N"),
        (&["bench", "alloc", "--rounds", "3"], "--rounds"),
        (&["bench", "alloc", "MP-TT"], "[possible values: MP-T, "),
    ] {
        let run = forebay(arguments);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}");
        assert!(text(&run.stderr).contains(allowed), "{arguments:?}: {}", text(&run.stderr));
        assert!(run.stdout.is_empty());
    }
}

#[test]
fn bandwidth_has_every_direction_and_way() {
    for device in ["host", "sim"] {
        let run = forebay(&["bandwidth", "--device", device, "--quick", "--json"]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        let rows = rows(&run);
        let mut ways = BTreeSet::new();
        for row in &rows {
            assert_eq!(
                (&row["schema"], &row["device"]),
                (&"forebay.bandwidth.v1".into(), &device.into())
            );
            assert!(row["gb_per_s"].as_f64().unwrap() > 0.0, "{row}");
            ways.insert((row["direction"].to_string(), row["way"].to_string()));
        }
        // Four ways up and down, and three at once.
        assert_eq!((rows.len(), ways.len()), (3 * 4 * 2 + 3, 11));
    }
    let told = forebay(&["bandwidth", "--device", "sim", "--quick"]);
    assert!(text(&told.stdout).contains("ordinary, engine"), "{}", text(&told.stdout));
    assert_eq!(forebay(&["bandwidth", "--device", "cuda:9"]).status.code(), Some(1));
}

#[test]
fn on_a_gpu_the_drivers_own_copies_stand_beside() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["bandwidth", "--device", "cuda:0", "--quick", "--json"]);
    let run = command.env("FOREBAY_CUDA_DRIVER", crate::doctor::fake_driver()).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let found: BTreeSet<(String, String)> = rows(&run)
        .iter()
        .map(|row| (row["direction"].as_str().unwrap().into(), row["way"].as_str().unwrap().into()))
        .collect();
    for direction in ["up", "down"] {
        for way in ["pinned", "pinned_driver", "pinned_engine", "engine", "contract", "driver"] {
            assert!(found.contains(&(direction.into(), way.into())), "{direction}, {way}");
        }
    }
}

#[test]
fn transfers_have_workloads_of_their_own() {
    let run = forebay(&["bench", "transfer", "--device", "host", "--quick", "--json"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let rows = rows(&run);
    let found: Vec<&str> = rows.iter().map(|row| row["workload"].as_str().unwrap()).collect();
    for name in
        ["SMALL", "SCATTERED", "ZEROS-1M", "ZEROS-4K", "FILE", "OVERLAP", "DC-COPY", "DC-LOOP"]
    {
        assert!(found.contains(&name), "{name}");
    }
    for row in &rows {
        assert_eq!(row["schema"], "forebay.bandwidth.v1");
        for key in ["seconds", "gb_per_s", "bytes", "rounds"] {
            positive(row, key);
        }
    }
    let refused = forebay(&["bench", "transfer", "DC-HIT"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}
