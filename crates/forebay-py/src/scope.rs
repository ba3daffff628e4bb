//! `forebay.Scope`, which measures a part of a program.

use std::sync::Mutex;
use std::time::Instant;

use forebay::Pool;
use forebay::statistics::{Scope, ScopeStatistics};
use forebay_sync::fork::LeakOnFork;
use forebay_sync::lock;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::failure::Failure;
use crate::value::dict;

/// A measurement of a pool, from ``__enter__`` to ``__exit__``.
#[pyclass(name = "Scope", module = "forebay", frozen)]
pub(crate) struct PyScope {
    pool: LeakOnFork<Pool>,
    state: Mutex<Measurement>,
}

/// The state of a measurement.
enum Measurement {
    /// Not started.
    NotStarted,
    /// Running since that time.
    Running(Box<LeakOnFork<Scope>>, Instant),
    /// Done, with its figures and its seconds.
    Done(ScopeStatistics, f64),
}

impl PyScope {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool: LeakOnFork::new(pool), state: Mutex::new(Measurement::NotStarted) }
    }
}

#[pymethods]
impl PyScope {
    /// The figures, once it is done: ``allocations``, ``frees``, ``misses``, ``waits``,
    /// ``live_before_bytes``, ``live_after_bytes``, ``peak_bytes`` and ``seconds``. None until then.
    #[getter]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        // Without the lock: making objects may run any Python code, this method included.
        let (statistics, seconds) = match &*lock(&self.state) {
            Measurement::Done(statistics, seconds) => (*statistics, *seconds),
            _ => return Ok(None),
        };
        Ok(Some(dict!(py, {
            "allocations": statistics.allocations,
            "frees": statistics.frees,
            "misses": statistics.misses,
            "waits": statistics.waits,
            "live_before_bytes": statistics.live_before.get(),
            "live_after_bytes": statistics.live_after.get(),
            "peak_bytes": statistics.peak.get(),
            "seconds": seconds,
        })))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Result<Bound<'_, Self>, Failure> {
        let this = slf.get();
        let scope = slf.py().detach(|| Ok::<_, Failure>(this.pool.get()?.scope()))?;
        let mut state = lock(&this.state);
        if matches!(*state, Measurement::Running(..)) {
            return Err(Failure::invalid(
                "this measurement is already running; create another one",
            ));
        }
        *state = Measurement::Running(Box::new(LeakOnFork::new(scope)), Instant::now());
        drop(state);
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        let before = core::mem::replace(&mut *lock(&self.state), Measurement::NotStarted);
        let Measurement::Running(scope, began) = before else {
            return Err(Failure::invalid("the measurement was not started"));
        };
        let seconds = began.elapsed().as_secs_f64();
        let scope = scope.take()?;
        let statistics = py.detach(|| scope.end());
        *lock(&self.state) = Measurement::Done(statistics, seconds);
        Ok(())
    }
}
