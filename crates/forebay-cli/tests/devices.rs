//! The built command on the devices of drivers: HIP over the fake CUDA driver, and OpenCL where a platform is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;

type Step = Result<(), Failed>;

/// Fails a case with what it says, unless something holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(Failed::from(format!($($words)+)));
        }
    };
}

const DEVICES: [&str; 2] = ["hip:0", "opencl:0"];

/// A case on a device of that name.
type Case = fn(&str) -> Step;

const CASES: [(&str, Case); 5] = [
    ("every allocator replays runs and keeps the data", replayed),
    ("an allocator that the device cannot have is left out", left_out),
    ("the benchmark of allocations has rows", allocations),
    ("bandwidths are measured by every way", bandwidths),
    ("the benchmark of transfers has rows", transfers),
];

/// A library that cargo has built for the tests: beside this one, or a folder up.
fn built(file: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let mut folders = test.ancestors().skip(1).take(2).map(|folder| folder.join(file));
    folders.find(|path| path.exists()).unwrap_or_else(|| file.into())
}

/// The command with the drivers that need no GPU.
fn forebay(arguments: &[&str]) -> Result<Output, Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("CLICOLOR_FORCE").args(arguments);
    command.env("FOREBAY_CUDA_DRIVER", built("libforebay_cuda_fake_driver.so"));
    command.env("FOREBAY_HIP_DRIVER", built("libforebay_hip_bridge.so"));
    // The largest workload takes 1.25 GiB.
    command.env("FOREBAY_FAKE_MEMORY_MIB", "2048");
    Ok(command.output()?)
}

/// The rows of a command that goes well.
fn rows(arguments: &[&str], device: &str) -> Result<Vec<Value>, Failed> {
    let run = forebay(&[arguments, &["--device", device, "--json"]].concat())?;
    let said = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{arguments:?}: {}: {said}", run.status);
    let rows = String::from_utf8_lossy(&run.stdout);
    let rows: Vec<Value> = rows.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(!rows.is_empty(), "{arguments:?}: no rows");
    let wrong = rows.iter().find(|row| row["device"] != device);
    ensure!(wrong.is_none(), "a row of another device: {wrong:?}");
    Ok(rows)
}

/// A recorded run of 46 MiB, and one of 118 MiB.
fn runs() -> [String; 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-trace/tests/data");
    ["rmm_log.csv", "torch_snapshot.pickle"].map(|name| folder.join(name).display().to_string())
}

fn replayed(device: &str) -> Step {
    let [log, snapshot] = runs();
    let policies = if device.starts_with("opencl") { 4 } else { 5 };
    for (arguments, count) in [
        (&["replay", &log, "--verify", "--passes", "2"][..], 2 * policies),
        (&["replay", &snapshot, "--verify", "--passes", "1", "--policy", "forebay"], 1),
    ] {
        let rows = rows(arguments, device)?;
        let wrong = rows.iter().find(|row| row["verified"] != true || row["ooms"] != 0);
        ensure!(wrong.is_none(), "{arguments:?}: {wrong:?}");
        ensure!(rows.len() == count, "{arguments:?}: {} rows", rows.len());
    }
    Ok(())
}

fn left_out(device: &str) -> Step {
    let [run, _] = runs();
    let has_pages = !device.starts_with("opencl");
    for (policies, code) in [("forebay,torch-expandable", 0), ("torch-expandable", 1)] {
        let run = forebay(&["replay", &run, "--device", device, "--policy", policies])?;
        let said = String::from_utf8_lossy(&run.stderr);
        let right = if has_pages { 0 } else { code };
        ensure!(run.status.code() == Some(right), "{policies}: {}: {said}", run.status);
        let reason = "torch-expandable is left out: opencl:0 has no virtual memory, which expandable segments are made of";
        ensure!(said.contains(reason) != has_pages, "{policies}: {said}");
        ensure!(has_pages || said.lines().count() == 1, "{policies}: {said}");
    }
    Ok(())
}

/// Every one of these numbers of a row is above zero.
fn positive(row: &Value, keys: &[&str]) -> Step {
    let wrong = keys.iter().find(|key| !row[**key].as_f64().is_some_and(|value| value > 0.0));
    ensure!(wrong.is_none(), "{wrong:?} of {row}");
    Ok(())
}

fn allocations(device: &str) -> Step {
    let rows = rows(&["bench", "alloc", "--quick"], device)?;
    rows.iter().try_for_each(|row| positive(row, &["ns_per_op"]))?;
    for allocator in ["forebay", "driver"] {
        ensure!(rows.iter().any(|row| row["allocator"] == allocator), "no row of {allocator}");
    }
    Ok(())
}

fn bandwidths(device: &str) -> Step {
    let rows = rows(&["bandwidth", "--quick"], device)?;
    rows.iter().try_for_each(|row| positive(row, &["gb_per_s", "bytes"]))?;
    // Four ways up and down at three sizes, and three at once.
    ensure!(rows.len() == 3 * 4 * 2 + 3, "{} rows", rows.len());
    Ok(())
}

fn transfers(device: &str) -> Step {
    let rows = rows(&["bench", "transfer", "--quick"], device)?;
    rows.iter().try_for_each(|row| positive(row, &["gb_per_s", "seconds"]))?;
    for workload in ["SMALL", "SCATTERED", "ZEROS-1M", "FILE", "OVERLAP", "DC-COPY", "DC-LOOP"] {
        ensure!(rows.iter().any(|row| row["workload"] == workload), "no row of {workload}");
    }
    Ok(())
}

/// Why there is no such device, if there is none: in the words of the command. HIP is there in any case.
fn missing(device: &str) -> Result<Option<String>, Failed> {
    if device.starts_with("hip") {
        return Ok(None);
    }
    let [run, _] = runs();
    let arguments = ["replay", &run, "--device", device, "--policy", "forebay", "--passes", "1"];
    let run = forebay(&arguments)?;
    let said = String::from_utf8_lossy(&run.stderr);
    Ok((!run.status.success()).then(|| said.trim().to_owned()))
}

fn main() -> ExitCode {
    let on_each = |&(name, case): &(&str, Case)| {
        DEVICES.map(|device| {
            Trial::ignorable_test(format!("{device}: {name}"), move || match missing(device)? {
                Some(reason) => Ok(Completion::ignored_with(format!("skipped: {reason}"))),
                None => case(device).map(|()| Completion::Completed),
            })
        })
    };
    let trials = CASES.iter().flat_map(on_each).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
