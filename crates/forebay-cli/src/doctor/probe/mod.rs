//! Probes the machine without changing it. The devices of this build are opened and tried with a small
//! piece of work; other machines' directories are only read.

mod cuda;
mod device;
mod drivers;
mod environment;
mod library;
mod machine;
mod trial;

use std::path::Path;

use forebay::Settings;
use forebay::config::Entry;
use forebay_host::system::System;

pub use environment::Environment;

use super::advice;
use super::report::{DeviceRow, MemorySection, Owner, Report, SCHEMA, Setting};

/// The machine's files and environment to examine, both replaceable in tests.
#[derive(Clone, Debug)]
pub struct Probe {
    system: System,
    environment: Environment,
}

impl Probe {
    /// Examines the machine this process runs on.
    pub fn here() -> Self {
        Self { system: System::here(), environment: Environment::here() }
    }

    /// Examines the files of a machine below `root`. Its devices are not opened.
    pub fn at(root: &Path) -> Self {
        Self { system: System::at(root), environment: Environment::here() }
    }

    /// The same with `environment` in place of the process's own.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Examines everything.
    pub fn report(&self) -> Report {
        // The machine first: a device that is being closed still holds files and threads.
        let memory = machine::memory(&self.system);
        let numa = machine::numa(&self.system);
        let huge_pages = machine::huge_pages(&self.system);
        let limits = machine::limits(&self.system);
        let examined = self.environment.sources().examine();
        let mut report = Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            well: false,
            verdict: String::new(),
            devices: self.devices(&memory),
            memory,
            numa,
            huge_pages,
            limits,
            settings: pool_settings(&examined.settings)
                .chain(self.environment.settings())
                .collect(),
            ignored_settings: self.environment.not_read(examined.ignored),
            problems: Vec::new(),
            running: Vec::new(),
            run: None,
        };
        report.problems = advice::problems(&report, &examined.refused);
        report.judge();
        report
    }

    /// A row for each kind of device that this build supports, and for each usable GPU.
    fn devices(&self, memory: &MemorySection) -> Vec<DeviceRow> {
        let mut rows = vec![device::host(&self.system, memory), device::sim()];
        rows.extend(cuda::cuda(&self.system, &self.environment));
        rows.extend(drivers::others(&self.system));
        rows
    }
}

/// Every key of the library, as it is in force.
fn pool_settings(settings: &Settings) -> impl Iterator<Item = Setting> {
    settings.entries().map(|Entry { key, value, source, .. }| Setting {
        name: key.name(),
        of: Owner::Pool,
        value: Some(value),
        source: source.name(),
        whence: source.to_string(),
        changeable: key.is_changeable(),
        effect: key.help(),
    })
}
