//! Recordings: written, read and played.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay::{Bytes, Pool, Settings};
use forebay_cli::replay::{Place, Policy, Row};
use forebay_trace::format::{check_ending, read_path, write_path};
use forebay_trace::{
    ReadOptions, Recorder, ReplayOptions, Trace, Verifier, replay as play, trace_of_history,
};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::quantity::{Size, whole};
use crate::refusal::Refusal;
use crate::settings;
use crate::site::cuda_here;
use crate::value::plain;

/// More passes than anybody has the time for.
const MOST_PASSES: u32 = 1000;

/// Writes what was asked of a pool; gives how many events.
pub(crate) fn save(
    pool: &Pool,
    recorder: Option<&Recorder>,
    path: &Path,
) -> Result<usize, Refusal> {
    check_ending(path).map_err(|error| Refusal::invalid(error.to_string()))?;
    let trace = match recorder {
        Some(recorder) => recorder.finish(),
        None => trace_of_history(path.display().to_string(), &pool.history()),
    };
    if trace.is_empty() {
        let said = match recorder {
            Some(_) => "nothing was recorded, or the recording was saved already",
            None => {
                "the pool remembers no events: make it with record=True, or with history=100000 for the \
                 last so many"
            }
        };
        return Err(Refusal::Trace(said.to_owned()));
    }
    let unwritten = |error| Refusal::Trace(format!("{}: {error}", path.display()));
    write_path(&trace, path).map_err(unwritten)?;
    Ok(trace.len())
}

/// Where and how a run is played.
struct Stage {
    place: Place,
    capacity: Option<Bytes>,
    passes: u32,
    verify: bool,
}

/// Play a recorded run on forebay's pool and on models of other allocators: what each takes.
///
/// ``trace`` is a PyTorch memory snapshot, an RMM log, a CSV or a file of ``Pool.save_trace()``. ``policy``
/// is a name or several: "forebay", "torch", "torch-expandable", "pow2", "direct"; all of them unless said.
/// Gives a row for each pass, as ``forebay replay --json`` prints them. ``capacity`` is the memory of the
/// device, and ``verify`` checks that blocks keep what is written to them.
#[pyfunction]
#[pyo3(signature = (trace, device = "sim", policy = None, passes = 2, capacity = None, verify = false))]
pub(crate) fn replay<'py>(
    py: Python<'py>,
    trace: PathBuf,
    device: &str,
    policy: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = whole::<u32>)] passes: u32,
    capacity: Option<Size>,
    verify: bool,
) -> Result<Bound<'py, PyList>, Refusal> {
    let place = Place::from_str(device).map_err(|said| {
        Refusal::invalid(format!("a run cannot be played on {device:?}: {said}"))
    })?;
    if !(1..=MOST_PASSES).contains(&passes) {
        let said = format!("{passes} passes: allowed are 1 to {MOST_PASSES}");
        return Err(Refusal::invalid(said));
    }
    let policies = policies_of(policy)?;
    let settings = settings::process()?;
    let stage = Stage { place, capacity: capacity.map(Size::bytes), passes, verify };
    let rows = py.detach(|| {
        if let Place::Cuda(_) = place {
            cuda_here()?;
        }
        let unread = |error| Refusal::Trace(format!("{}: {error}", trace.display()));
        let trace = read_path(&trace, &ReadOptions::default()).map_err(unread)?;
        let mut rows = Vec::new();
        for policy in policies {
            rows.extend(play_on(policy, &trace, &settings, &stage)?);
        }
        Ok::<_, Refusal>(rows)
    })?;
    let list = PyList::empty(py);
    for row in &rows {
        list.append(plain(py, row)?)?;
    }
    Ok(list)
}

fn policies_of(given: Option<&Bound<'_, PyAny>>) -> Result<Vec<Policy>, Refusal> {
    let Some(given) = given else { return Ok(Policy::ALL.to_vec()) };
    let names = match given.extract::<String>() {
        Ok(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
        Err(_) => given.extract::<Vec<String>>()?,
    };
    let found = names.iter().map(|name| {
        let found = Policy::ALL.iter().copied().find(|policy| policy.name() == name);
        found.ok_or_else(|| {
            let all: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
            Refusal::invalid(format!("there is no policy {name:?}: allowed are {}", all.join(", ")))
        })
    });
    found.collect()
}

/// Plays one run on one policy, on a device of its own: none finds what another left.
fn play_on(
    policy: Policy,
    trace: &Trace,
    settings: &Settings,
    stage: &Stage,
) -> Result<Vec<Row>, Refusal> {
    // What is verified needs memory behind its addresses.
    let device = stage.place.open(stage.capacity, stage.verify).map_err(Refusal::Unsupported)?;
    let mut verifier = match stage.verify {
        true => {
            Some(Verifier::new(device.clone()).map_err(|error| Refusal::Trace(error.to_string()))?)
        }
        false => None,
    };
    let mut player = policy.player(device, settings)?;
    let mut options = ReplayOptions::new().passes(stage.passes);
    options.verify = verifier.as_mut();
    let reports =
        play(trace, &mut *player, options).map_err(|error| Refusal::Trace(error.to_string()))?;
    let row = |report| Row::new(trace.name(), stage.place, (policy, settings), report);
    Ok(reports.iter().map(row).collect())
}
