//! Shared by the C and Python bindings and the tools: the settings of the process's pools, reset blocks for pools of
//! graphs, values whose uses are counted, buffers with counted views, shared buffers of bytes, interpreter call stacks, and files that appear only
//! once complete. Not part of the stable interface.

mod counted;
mod object;

#[cfg(test)]
mod tests;

#[cfg(feature = "host")]
use std::sync::Arc;

#[cfg(feature = "host")]
use crate::Device;
use crate::config::{ConfigError, Source};
#[cfg(feature = "host")]
use crate::transfer::{TransferEngine, TransferOptions};
use crate::{Pool, PoolId, Result, Settings};
pub use forebay_core::address_space::Growth;

/// Vectors whose length the program chose: allocation failures are errors, not aborts.
pub mod host_vec {
    pub use crate::host_vec::{copied, with_capacity, zeroed};
}
pub use self::counted::{CountedBuffer, CountedStatistics, View};
pub use self::object::{Counted, CountedError, InUse};
pub use crate::named::bytes::SharedBytes;
pub use crate::pool::KeptBlock;
pub use crate::stack::{
    Interpreter, has_room_for_stacks, is_capturing, set_interpreter, with_stack,
};
pub use crate::whole_file::write_whole;

/// The settings of new pools: those last set by [`Pool::set_process_settings`], else the environment's.
pub fn effective_settings() -> core::result::Result<Settings, ConfigError> {
    match Pool::process_settings() {
        Some(settings) => Ok(settings),
        None => Settings::from_environment(),
    }
}

/// Number of transfers that an engine of C and Python records for recordings: at most 3 MB.
#[cfg(feature = "host")]
const TRANSFERS: usize = 1 << 16;

/// The transfer engine that C and Python use for a device.
#[cfg(feature = "host")]
pub fn transfer_engine(device: &Arc<dyn Device>) -> Result<TransferEngine> {
    TransferOptions::for_device(device)?.history(TRANSFERS).build(device)
}

/// A setting of a pool that [`SettingsChange::make`] changed.
#[derive(Debug)]
struct ChangedSetting {
    pool: Pool,
    key: String,
    previous: String,
}

/// A change of the settings of the process's pools.
#[derive(Debug)]
pub struct SettingsChange {
    /// The settings of new pools before it.
    before: Option<Settings>,
    keys: Vec<String>,
    /// The pools that existed.
    existing: Vec<PoolId>,
    changed: Vec<ChangedSetting>,
}

/// The keys and values of a text such as `FOREBAY_CONF` has.
pub fn entries_of(text: &str) -> Result<Vec<(String, String)>> {
    let given = Settings::parse_conf(text)?;
    let entries = given.entries().filter(|entry| matches!(entry.source, Source::Text { .. }));
    Ok(entries.map(|entry| (entry.key.name().to_owned(), entry.value)).collect())
}

/// Settings with these keys and values laid over them.
pub fn overlay(below: Settings, entries: &[(String, String)]) -> Result<Settings> {
    let mut builder = below.into_builder();
    for (name, value) in entries {
        builder = builder.set(name, value)?;
    }
    Ok(builder.build()?)
}

impl SettingsChange {
    /// Overrides settings of the environment for new pools, and changes them in all of `pools` or, on error, in none.
    /// Settings that a pool already has are left alone.
    pub fn make(pools: &[Pool], entries: &[(String, String)]) -> Result<Self> {
        let before = Pool::process_settings();
        let wanted = overlay(effective_settings()?, entries)?;
        let changed = change_settings(pools, entries, &wanted)?;
        Pool::set_process_settings(Some(wanted));
        let keys = entries.iter().map(|(key, _)| key.clone()).collect();
        Ok(Self { before, keys, existing: pools.iter().map(Pool::id).collect(), changed })
    }

    /// Reverts it. Those of `pools` that were created since keep settings that cannot change while they live.
    pub fn undo<'a>(self, pools: impl Iterator<Item = &'a Pool>) {
        Pool::set_process_settings(self.before);
        revert_settings(&self.changed);
        // Pools created since began with the settings that are reverted.
        let Ok(before) = effective_settings() else { return };
        for pool in pools.filter(|pool| !self.existing.contains(&pool.id())) {
            for before in self.keys.iter().filter_map(|key| before.get(key).ok()) {
                let _ = pool.set(before.key.name(), &before.value);
            }
        }
    }
}

fn change_settings(
    pools: &[Pool],
    entries: &[(String, String)],
    wanted: &Settings,
) -> Result<Vec<ChangedSetting>> {
    for pool in pools {
        // Try the change on a copy first: reverting one does not bring back a history that it dropped.
        let mut trial = pool.settings();
        for (key, value) in entries {
            if !is_same(&trial, key, wanted) {
                trial.change(key, value)?;
            }
        }
    }
    let mut changed = Vec::new();
    for pool in pools {
        for (key, value) in entries {
            let now = pool.settings();
            if is_same(&now, key, wanted) {
                continue;
            }
            let previous = now.get(key)?.value;
            if let Err(error) = pool.set(key, value) {
                revert_settings(&changed);
                return Err(error);
            }
            changed.push(ChangedSetting { pool: pool.clone(), key: key.clone(), previous });
        }
    }
    Ok(changed)
}

fn revert_settings(changed: &[ChangedSetting]) {
    // In reverse order: a setting may occur twice.
    for ChangedSetting { pool, key, previous } in changed.iter().rev() {
        // The pool accepts its previous value. A pool that is capturing may refuse, and then keeps the new one.
        let _ = pool.set(key, previous);
    }
}

fn is_same(now: &Settings, key: &str, wanted: &Settings) -> bool {
    match (now.get(key), wanted.get(key)) {
        (Ok(now), Ok(wanted)) => now.value == wanted.value,
        _ => false,
    }
}
