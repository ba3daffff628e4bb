//! What a pool tells of slow calls: a report of a refusal in a file, events for `tracing`, and figures for `metrics`. All
//! only after the call, with no lock held, so that the listener may use the pool.

use core::fmt::Write as _;
use core::time::Duration;
use std::time::Instant;

use forebay_core::Bytes;

use crate::pool::shared::Shared;
use crate::pool::views::{snapshot, statistics};
use crate::report::Shortage;
use crate::{Block, Error, Request, Result};

/// How long after a report of a refusal the next is written, at the earliest. A program that goes on after refusals may
/// have thousands in a second.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// How many blocks a report lists.
const LISTED: usize = 20;

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

    /// After a request that took the slow path.
    pub(in crate::pool) fn tell_request(
        &self,
        begun: &Begun,
        request: Request,
        got: &Result<Block>,
    ) {
        if let Err(Error::OutOfMemory(shortage)) = got {
            self.report_refusal(shortage);
        }
        #[cfg(feature = "tracing")]
        {
            let (pool, requested) = (self.id.0, request.size.get());
            let (held, took) = (self.held.get(), begun.at.elapsed());
            match got {
                Err(error) => {
                    tracing::warn!(target: "forebay", pool, requested, ?took, %error, "refused");
                }
                Ok(_) if held != begun.held => {
                    let (from, to) = (begun.held.get(), held.get());
                    tracing::debug!(target: "forebay", pool, requested, from, to, ?took, "held memory changed");
                }
                Ok(_) => {
                    tracing::trace!(target: "forebay", pool, requested, ?took, "slow request");
                }
            }
        }
        #[cfg(feature = "metrics")]
        if got.is_err() || self.held.get() != begun.held {
            let pool = self.id.0.to_string();
            if got.is_err() {
                metrics::counter!("forebay_pool_refusals_total", "pool" => pool).increment(1);
            } else {
                let took = begun.at.elapsed().as_secs_f64();
                metrics::histogram!("forebay_pool_growth_seconds", "pool" => pool).record(took);
            }
            self.export_held();
        }
        let _ = (begun, request);
    }

    /// After memory was released on request or by age.
    pub(in crate::pool) fn tell_release(&self, begun: &Begun, released: &Result<Bytes>) {
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

    /// Writes the report of a refusal, if the setting `oom_report` says where. One that cannot be written is left out:
    /// the caller gets the refusal itself in any case.
    #[cold]
    fn report_refusal(&self, shortage: &Shortage) {
        let settings = self.settings().clone();
        let Some(path) = settings.oom_report().path() else { return };
        {
            let mut upkeep = self.upkeep();
            let is_early = |last: Instant| last.elapsed() < BETWEEN_REPORTS;
            if upkeep.last_report.is_some_and(is_early) {
                return;
            }
            upkeep.last_report = Some(Instant::now());
        }
        let taken = snapshot::of(self, &settings);
        let mut text = format!("forebay: {} refused a request\n\n{shortage}\n", self.id);
        let _ = write!(text, "\n{}\n\nlargest live blocks:\n", statistics::of(self));
        for block in taken.blocks.iter().take(LISTED) {
            let (size, tag) = (Bytes::new(block.requested_bytes), &block.tag);
            let _ = writeln!(text, "  {:#x}  {size}  {tag}", block.address);
        }
        let _ = std::fs::write(path, text);
        #[cfg(feature = "serde")]
        let _ = std::fs::write(beside(path), taken.to_json());
    }
}

/// The file of the snapshot that belongs to a report.
#[cfg(feature = "serde")]
fn beside(path: &std::path::Path) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".json");
    path.with_file_name(name)
}
