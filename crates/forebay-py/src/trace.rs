//! Traces: recorded, saved and replayed.

use core::cell::Cell;
use std::path::PathBuf;
use std::str::FromStr;

use forebay::bindings::effective_settings;
use forebay::transfer::TransferEvent;
use forebay::{Bytes, Error, Pool, Settings, hal};
use forebay_cli::replay::{DeviceName, Policy, Row, open_device};
use forebay_cli::report::{default_path, page_of, page_of_moment};
use forebay_trace::format::{
    FormatError, Recorded, name_of, read_path, read_recorded, read_recorded_path, write_whole,
};
use forebay_trace::{
    ReadOptions, Recorder, ReplayOptions, Trace, Verifier, WorkBudget, replay as play,
    trace_of_pool,
};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::failure::Failure;
use crate::open_device::check_drivers;
use crate::pool::PyPool;
use crate::quantity::{Size, integer, items};
use crate::value::to_python;

/// The most passes: more than anybody has time for.
const MAX_PASSES: u32 = 1000;

/// Where and how a trace is replayed.
struct ReplaySetup {
    device: DeviceName,
    capacity: Option<Bytes>,
    passes: u32,
    verify: bool,
    /// Whether the caller named the policies.
    chosen: bool,
}

/// Replay a trace with forebay's pool and with models of other allocators, and measure each.
///
/// ``trace`` is a PyTorch memory snapshot, an RMM log, a CSV or a file of ``Pool.save_trace()``. ``policy``
/// is a name or several: "forebay", "torch", "torch-expandable", "pow2", "direct"; by default all that the
/// device can have: "torch-expandable" needs virtual memory.
/// Returns a row for each pass, as ``forebay replay --json`` prints them. ``capacity`` is the memory of the
/// device, and ``verify`` checks that blocks keep their contents.
#[pyfunction]
#[pyo3(signature = (trace, device = "sim", policy = None, passes = 2, capacity = None, verify = false))]
pub(crate) fn replay<'py>(
    py: Python<'py>,
    trace: PathBuf,
    device: &str,
    policy: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = integer::<u32>)] passes: u32,
    capacity: Option<Size>,
    verify: bool,
) -> Result<Bound<'py, PyList>, Failure> {
    let name = DeviceName::from_str(device).map_err(|said| {
        Failure::invalid(format!("a run cannot be played on {device:?}: {said}"))
    })?;
    if !(1..=MAX_PASSES).contains(&passes) {
        let said = format!("invalid passes {passes}: expected 1 to {MAX_PASSES}");
        return Err(Failure::invalid(said));
    }
    let (policies, chosen) = (policies_of(policy)?, policy.is_some());
    let settings = effective_settings()?;
    let capacity = capacity.map(Size::bytes);
    let setup = ReplaySetup { device: name, capacity, passes, verify, chosen };
    let rows = interruptible(py, |budget| {
        if name.is_hardware() {
            check_drivers()?;
        }
        let unread = |error| Failure::trace(format!("{}: {error}", trace.display()));
        let trace = read_path(&trace, &ReadOptions::default()).map_err(unread)?;
        let mut rows = Vec::new();
        for policy in policies {
            rows.extend(replay_policy(policy, &trace, &settings, &setup, budget)?);
        }
        Ok(rows)
    })?;
    let list = PyList::empty(py);
    for row in &rows {
        list.append(to_python(py, row)?)?;
    }
    Ok(list)
}

/// Does `work` with the GIL released, within a budget that a signal ends, such as Ctrl-C. What the signal's handler raised
/// is raised then.
fn interruptible<R: Send>(
    py: Python<'_>,
    work: impl FnOnce(&WorkBudget<'_>) -> Result<R, Failure> + Send,
) -> Result<R, Failure> {
    py.detach(|| {
        let raised = Cell::new(None);
        let is_interrupted = || match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                raised.set(Some(error));
                true
            }
        };
        let done = work(&WorkBudget::unlimited().interrupted_by(&is_interrupted));
        raised.take().map_or(done, |error| Err(error.into()))
    })
}

/// Write a page to a file, which appears when it is whole. A link at ``path`` is replaced.
#[pyfunction]
pub(crate) fn write_page(py: Python<'_>, path: PathBuf, page: &str) -> std::io::Result<()> {
    py.detach(|| {
        write_whole(&path, |out| out.write_all(page.as_bytes())).map_err(|error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })
    })
}

/// The page of a report as ``forebay.report()`` writes it, and the name of its file unless one is given. ``source`` is a
/// file or a pool.
#[pyfunction]
pub(crate) fn report_page(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    capacity: Option<Size>,
    quick: bool,
) -> Result<(String, PathBuf), Failure> {
    let capacity = capacity.map(Size::bytes);
    let settings = effective_settings()?;
    let of_pool = |pool: &PyPool| {
        let transfers = pool.open_device().transfer_history();
        Ok::<_, Failure>((pool.pool()?, pool.recorder().cloned(), transfers))
    };
    let pool = source.cast::<PyPool>().ok().map(|pool| of_pool(pool.get())).transpose()?;
    let path = match &pool {
        Some(_) => PathBuf::new(),
        None => source.extract::<PathBuf>()?,
    };
    interruptible(py, |budget| {
        let recorded = match pool {
            Some((pool, recorder, transfers)) => recorded_or_blocks(&pool, recorder, &transfers),
            None => read_recorded_path(&path, &ReadOptions::default()),
        };
        let recorded =
            recorded.map_err(|error| Failure::trace(format!("{}: {error}", path.display())))?;
        let file = Some(name_of(&path)).filter(|file| !file.is_empty());
        let file = file.as_deref();
        let (page, name) = match &recorded {
            Recorded::Run(trace) => {
                (page_of(trace, file, &settings, capacity, !quick, budget), trace.name())
            }
            Recorded::Moment(snapshot) => (page_of_moment(snapshot), snapshot.name.as_str()),
        };
        Ok((page.map_err(Failure::trace)?, default_path(file.unwrap_or(name))))
    })
}

/// The recording or else the history of a pool; without both, its blocks as they are.
fn recorded_or_blocks(
    pool: &Pool,
    recorder: Option<Recorder>,
    transfers: &[TransferEvent],
) -> Result<Recorded, FormatError> {
    let name = pool.id().to_string();
    let recorded = recorder.map(|recorder| recorder.copy_with(transfers));
    let trace = recorded
        .filter(|trace| !trace.is_empty())
        .unwrap_or_else(|| trace_of_pool(name.clone(), pool, None, transfers));
    if trace.is_empty() {
        let json = pool.snapshot().to_json();
        return read_recorded(json.as_bytes(), &name, &ReadOptions::default());
    }
    Ok(Recorded::Run(Box::new(trace)))
}

fn policies_of(given: Option<&Bound<'_, PyAny>>) -> Result<Vec<Policy>, Failure> {
    let Some(given) = given else { return Ok(Policy::ALL.to_vec()) };
    let names = match given.extract::<String>() {
        Ok(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
        Err(_) => items::<String>(given)?,
    };
    let found = names.iter().map(|name| {
        let found = Policy::ALL.iter().copied().find(|policy| policy.name() == name);
        found.ok_or_else(|| {
            let all: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
            Failure::invalid(format!("unknown policy {name:?}: expected one of {}", all.join(", ")))
        })
    });
    found.collect()
}

/// Replays a trace with one policy, on a device of its own, so that policies do not affect each other.
fn replay_policy(
    policy: Policy,
    trace: &Trace,
    settings: &Settings,
    setup: &ReplaySetup,
    budget: &WorkBudget<'_>,
) -> Result<Vec<Row>, Failure> {
    // Verification needs memory behind the addresses.
    let device =
        open_device(setup.device, setup.capacity, setup.verify).map_err(Failure::unsupported)?;
    let mut verifier = match setup.verify {
        true => {
            Some(Verifier::new(device.clone()).map_err(|error| Failure::trace(error.to_string()))?)
        }
        false => None,
    };
    let mut player = match policy.player(device, settings) {
        Err(Error::Device(hal::Error::Unsupported { .. })) if !setup.chosen => {
            return Ok(Vec::new());
        }
        player => player?,
    };
    let options =
        ReplayOptions::new().passes(setup.passes).budget(budget).verify(verifier.as_mut());
    let reports =
        play(trace, &mut *player, options).map_err(|error| Failure::trace(error.to_string()))?;
    let row = |report| Row::new(trace.name(), setup.device, (policy, settings), report);
    Ok(reports.iter().map(row).collect())
}
