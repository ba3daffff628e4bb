//! What a pool tells of slow calls: a report of a refusal in a file (`post_mortem.rs`), events for `tracing`, and figures
//! for `metrics`. All only after the call, with no lock held, so that the listener may use the pool.

#[cfg(any(feature = "tracing", feature = "metrics"))]
use std::time::Instant;

use forebay_core::Bytes;

use crate::pool::shared::Shared;
use crate::pool::turn;
use crate::{Error, Request, Result};

/// What a slow call began with.
pub(in crate::pool) struct Begun {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    held: Bytes,
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    at: Instant,
}

impl Shared {
    /// Before a slow call.
    pub(in crate::pool) fn begin_told(&self) -> Begun {
        Begun {
            #[cfg(any(feature = "tracing", feature = "metrics"))]
            held: self.held.get(),
            #[cfg(any(feature = "tracing", feature = "metrics"))]
            at: Instant::now(),
        }
    }

    /// Does `work` for a request that no hole served, and tells of it.
    pub(in crate::pool) fn told<R>(
        &self,
        request: Request,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let begun = self.begin_told();
        let mut got = work();
        if let Err(Error::OutOfMemory(shortage)) = &mut got {
            shortage.report = self.report_refusal(request, shortage);
        }
        self.tell_listeners_of_request(&begun, request, got.as_ref().err());
        got
    }

    fn tell_listeners_of_request(&self, begun: &Begun, request: Request, error: Option<&Error>) {
        #[cfg(feature = "tracing")]
        {
            let (pool, requested) = (self.id.0, request.size.get());
            let (held, took) = (self.held.get(), begun.at.elapsed());
            match error {
                Some(error) => {
                    tracing::warn!(target: "forebay", pool, requested, ?took, %error, "refused");
                }
                None if held != begun.held => {
                    let (from, to) = (begun.held.get(), held.get());
                    tracing::debug!(target: "forebay", pool, requested, from, to, ?took, "held memory changed");
                }
                None => {
                    tracing::trace!(target: "forebay", pool, requested, ?took, "slow request");
                }
            }
        }
        #[cfg(feature = "metrics")]
        if error.is_some() || self.held.get() != begun.held {
            let pool = self.id.0.to_string();
            if error.is_some() {
                metrics::counter!("forebay_pool_refusals_total", "pool" => pool).increment(1);
            } else {
                let took = begun.at.elapsed().as_secs_f64();
                metrics::histogram!("forebay_pool_growth_seconds", "pool" => pool).record(took);
            }
            self.export_held();
        }
        let _ = (begun, request, error);
    }

    /// After memory was released on request or by age.
    pub(in crate::pool) fn tell_release(&self, begun: &Begun, released: &Result<Bytes>) {
        turn::in_program(|| self.tell_listeners_of_release(begun, released));
    }

    fn tell_listeners_of_release(&self, begun: &Begun, released: &Result<Bytes>) {
        #[cfg(feature = "tracing")]
        {
            let (pool, took) = (self.id.0, begun.at.elapsed());
            match released {
                Ok(bytes) => {
                    let bytes = bytes.get();
                    tracing::debug!(target: "forebay", pool, bytes, ?took, "released");
                }
                Err(error) => {
                    tracing::warn!(target: "forebay", pool, ?took, %error, "not released");
                }
            }
        }
        #[cfg(feature = "metrics")]
        if let Ok(bytes) = released {
            let pool = self.id.0.to_string();
            metrics::counter!("forebay_pool_released_bytes_total", "pool" => pool)
                .increment(bytes.get());
            self.export_held();
        }
        let _ = (begun, released);
    }

    /// Gives exporters what the pool holds now.
    #[cfg(feature = "metrics")]
    fn export_held(&self) {
        metrics::gauge!("forebay_pool_held_bytes", "pool" => self.id.0.to_string())
            .set(self.held.get().get() as f64);
    }
}
