//! The engines of the process, as [`monitor`](crate::monitor) shows them.

use std::sync::{Arc, Weak};

use super::figures::{DirectionFigures, TransferFigures};
use crate::monitor::{DirectionTotals, Part, ProcessEngine, ProcessSnapshot, provide};
use crate::sync::fork::PerProcess;

/// An engine that snapshots show.
pub(super) trait Shown: Send + Sync {
    /// The kind of its device, its number within the kind, and the engine's statistics.
    fn shown(self: Arc<Self>) -> (String, u64, TransferFigures);
}

/// The live engines by number, and the last number used.
#[derive(Default)]
struct Engines {
    living: Vec<(u64, Weak<dyn Shown>)>,
    last: u64,
}

static ENGINES: PerProcess<Engines> = PerProcess::new();

/// Lists an engine in snapshots while it lives.
pub(super) fn enter(engine: Weak<dyn Shown>) {
    let mut engines = ENGINES.lock();
    engines.living.retain(|(_, engine)| engine.strong_count() > 0);
    engines.last += 1;
    let number = engines.last;
    engines.living.push((number, engine));
    drop(engines);
    provide(Part::Engines, read);
}

fn read(snapshot: &mut ProcessSnapshot) {
    // Unlock before taking references: dropping the last one waits for transfers.
    let living = ENGINES.lock().living.clone();
    let living = living.into_iter().filter_map(|(engine, living)| {
        let (kind, ordinal, figures) = living.upgrade()?.shown();
        Some(ProcessEngine {
            engine,
            kind,
            ordinal,
            under_way: figures.under_way,
            pinned_bytes: figures.pinned.get(),
            uploads: figures.uploads.into(),
            downloads: figures.downloads.into(),
        })
    });
    snapshot.engines.extend(living.take(ProcessSnapshot::MOST_OTHERS));
}

impl From<DirectionFigures> for DirectionTotals {
    fn from(figures: DirectionFigures) -> Self {
        Self {
            transfers: figures.transfers,
            failures: figures.failures,
            bytes: figures.bytes.get(),
            busy_ns: u64::try_from(figures.busy.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
