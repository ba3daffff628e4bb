//! Changes the settings of a living pool, and begins captures, which some settings exclude.

use crate::config::{ConfigError, Settings};
use crate::pool::calls::checked::quarantine;
use crate::pool::calls::{registry, upkeep};
use crate::pool::common::capture::Capture;
use crate::pool::debug;
use crate::pool::inner::{PoolInner, growth_of, magazine_units};
use crate::{Error, Result};

pub(in crate::pool) fn change(
    pool: &PoolInner,
    change: impl FnOnce(&mut Settings) -> core::result::Result<(), ConfigError>,
) -> Result<()> {
    pool.fork_generation.check()?;
    let total = pool.source.memory_info()?.total;
    let mut settings = pool.settings();
    let mut changed = settings.clone();
    change(&mut changed)?;
    if let Some(setting) = debug::conflicts_with_capture(&changed)
        && pool.captures.any()
    {
        return Err(Error::CaptureRefused { setting });
    }
    let forgets_events = settings.history() > 0 && changed.history() == 0;
    *settings = changed;
    pool.set_hits(&settings);
    pool.history.set(&settings);
    if forgets_events {
        pool.front.all.drop_events();
    }
    registry::set_upkeep(pool.id, settings.upkeep());
    if settings.upkeep() {
        upkeep::start();
    }
    if pool.leads_group {
        pool.group.limits.set(total, pool.granule, &settings);
    }
    drop(settings);
    // Repeated until the settings did not change meanwhile, so that two concurrent changes both end with the later
    // values.
    loop {
        let settings = pool.settings().clone();
        let units = magazine_units(&settings);
        pool.backing().growth = growth_of(&settings, pool.options.growth);
        if pool.front.set_full(units) {
            upkeep::update_magazine_bounds(pool);
        }
        quarantine::bound_quarantine(pool, settings.quarantine());
        if *pool.settings() == settings {
            break;
        }
    }
    upkeep::read_pressure(pool);
    Ok(())
}

/// Begins a capture. Holds the backing lock, so that no thread is inside the driver when it begins, and the
/// settings lock, so that no conflicting setting is turned on meanwhile.
pub(in crate::pool) fn capture(pool: &PoolInner) -> Result<Capture> {
    pool.fork_generation.check()?;
    let backing = pool.backing();
    let settings = pool.settings();
    match debug::conflicts_with_capture(&settings) {
        Some(setting) => Err(Error::CaptureRefused { setting }),
        None => Ok(backing.captures.begin()),
    }
}
