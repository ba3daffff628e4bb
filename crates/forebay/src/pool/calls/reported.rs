//! What a pool reports about slow calls: a file on a refusal (`post_mortem.rs`), events for `tracing`, and figures for
//! `metrics`. All with no lock held, so that the listener may use the pool.

#[cfg(any(feature = "tracing", feature = "metrics"))]
use std::time::Instant;

use forebay_core::Bytes;

use crate::pool::calls::post_mortem;
use crate::pool::inner::PoolInner;
use crate::pool::turn;
use crate::{Error, Request, Result};

/// The state when a slow call began.
pub(super) struct Begun {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    held: Bytes,
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    at: Instant,
}

pub(super) fn begin_reported(pool: &PoolInner) -> Begun {
    let _ = pool;
    Begun {
        #[cfg(any(feature = "tracing", feature = "metrics"))]
        held: pool.held.get(),
        #[cfg(any(feature = "tracing", feature = "metrics"))]
        at: Instant::now(),
    }
}

/// Runs `work` for a request that no hole served, and reports it.
pub(in crate::pool) fn reported<R>(
    pool: &PoolInner,
    request: Request,
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let begun = begin_reported(pool);
    let mut got = work();
    if request.is_refused_for_now(&got) {
        return got;
    }
    if let Err(Error::OutOfMemory(shortage)) = &mut got {
        shortage.report = post_mortem::report_refusal(pool, request, shortage);
    }
    tell_listeners_of_request(pool, &begun, request, got.as_ref().err());
    got
}

fn tell_listeners_of_request(
    pool: &PoolInner,
    begun: &Begun,
    request: Request,
    error: Option<&Error>,
) {
    #[cfg(feature = "tracing")]
    {
        let (id, requested) = (pool.id.0, request.size.get());
        let (held, took) = (pool.held.get(), begun.at.elapsed());
        match error {
            Some(error) => {
                tracing::warn!(target: "forebay", pool = id, requested, ?took, %error, "refused");
            }
            None if held != begun.held => {
                let (from, to) = (begun.held.get(), held.get());
                tracing::debug!(target: "forebay", pool = id, requested, from, to, ?took, "held memory changed");
            }
            None => {
                tracing::trace!(target: "forebay", pool = id, requested, ?took, "slow request");
            }
        }
    }
    #[cfg(feature = "metrics")]
    if error.is_some() || pool.held.get() != begun.held {
        let id = pool.id.0.to_string();
        if error.is_some() {
            metrics::counter!("forebay_pool_refusals_total", "pool" => id).increment(1);
        } else {
            let took = begun.at.elapsed().as_secs_f64();
            metrics::histogram!("forebay_pool_growth_seconds", "pool" => id).record(took);
        }
        export_held(pool);
    }
    let _ = (pool, begun, request, error);
}

/// Reports memory that was released on request or by age.
pub(super) fn tell_release(pool: &PoolInner, begun: &Begun, released: &Result<Bytes>) {
    turn::in_program(|| tell_listeners_of_release(pool, begun, released));
}

fn tell_listeners_of_release(pool: &PoolInner, begun: &Begun, released: &Result<Bytes>) {
    #[cfg(feature = "tracing")]
    {
        let (id, took) = (pool.id.0, begun.at.elapsed());
        match released {
            Ok(bytes) => {
                let bytes = bytes.get();
                tracing::debug!(target: "forebay", pool = id, bytes, ?took, "released");
            }
            Err(error) => {
                tracing::warn!(target: "forebay", pool = id, ?took, %error, "not released");
            }
        }
    }
    #[cfg(feature = "metrics")]
    if let Ok(bytes) = released {
        let id = pool.id.0.to_string();
        metrics::counter!("forebay_pool_released_bytes_total", "pool" => id).increment(bytes.get());
        export_held(pool);
    }
    let _ = (pool, begun, released);
}

/// Gives exporters what the pool holds now.
#[cfg(feature = "metrics")]
fn export_held(pool: &PoolInner) {
    metrics::gauge!("forebay_pool_held_bytes", "pool" => pool.id.0.to_string())
        .set(pool.held.get().get() as f64);
}
