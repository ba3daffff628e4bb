//! Changing the settings of a living pool, and beginning captures, which some settings exclude.

use crate::config::Key;
use crate::pool::calls::{registry, upkeep};
use crate::pool::common::capture::Capture;
use crate::pool::debug;
use crate::pool::shared::{Shared, growth_of, magazine_units};
use crate::{Error, Result};

impl Shared {
    /// Changes a setting of the living pool.
    pub(in crate::pool) fn change(&self, key: &str, value: &str) -> Result<()> {
        self.birth.check()?;
        let total = self.device.memory_info()?.total;
        let mut settings = self.settings();
        let mut changed = settings.clone();
        changed.change(key, value)?;
        if let Some(setting) = debug::conflicts_with_capture(&changed)
            && self.captures.any()
        {
            return Err(Error::CaptureRefused { setting });
        }
        *settings = changed;
        self.set_hits(&settings);
        self.history.set(&settings);
        if key == Key::History.name() && settings.history() == 0 {
            self.front.drop_events();
        }
        registry::set_upkeep(self.id, settings.upkeep());
        if settings.upkeep() {
            upkeep::start();
        }
        if self.leads_group {
            self.group.limits.set(total, self.granule, &settings);
        }
        drop(settings);
        // Repeated until the settings did not change meanwhile, so that two concurrent changes both end with the later
        // values.
        loop {
            let settings = self.settings().clone();
            let units = magazine_units(&settings);
            self.backing().growth = growth_of(&settings, self.options.growth);
            if self.front.set_full(units) {
                self.update_magazine_bounds();
            }
            self.bound_quarantine(settings.quarantine());
            if *self.settings() == settings {
                break;
            }
        }
        self.read_pressure();
        Ok(())
    }

    /// Begins a capture. Holds the backing lock, so that no thread is inside the driver when it begins, and the
    /// settings lock, so that no conflicting setting is turned on meanwhile.
    pub(in crate::pool) fn capture(&self) -> Result<Capture> {
        self.birth.check()?;
        let backing = self.backing();
        let settings = self.settings();
        match debug::conflicts_with_capture(&settings) {
            Some(setting) => Err(Error::CaptureRefused { setting }),
            None => Ok(backing.captures.begin()),
        }
    }
}
