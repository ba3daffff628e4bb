//! The conformance suite: a named case for each promise of the contract.
//!
//! To test a device, write a [`Fixture`] that opens it, and a test file of a few lines:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use std::sync::Arc;
//!
//! use forebay_hal::conformance::{self, Fixture};
//! use forebay_hal::{Device, Result};
//!
//! struct MyDevice;
//!
//! impl Fixture for MyDevice {
//!     fn name(&self) -> &str {
//!         "mine"
//!     }
//!     fn open(&self) -> Result<Arc<dyn Device>> {
//!         // A device of its own for each case.
//! #       Err(forebay_hal::Error::Lost { call: forebay_hal::Call::Open, reason: "".into() })
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     conformance::main(MyDevice)
//! }
//! ```
//!
//! with, in its `Cargo.toml`,
//!
//! ```toml
//! [dev-dependencies]
//! forebay-hal = { version = "0.1", features = ["conformance"] }
//!
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! The file then takes the arguments of any Rust test: `cargo test --test conformance -- virtual/` runs one group.
//! Cases run one at a time by default (see `--test-threads`), because several compare memory figures that the devices
//! of one machine share. They compare many bytes: with `opt-level = 1` in the `test` profile the suite takes a tenth of
//! the time.
//!
//! # What a case may do
//!
//! * It has a device to itself, and accesses device memory only by copies on streams; a case that follows device
//!   addresses itself needs [`Capabilities::HOST_VISIBLE`].
//! * It names the requirements it has beyond the plain groups. If the device lacks one, the case is shown as ignored,
//!   with the reason.
//! * Its failure message has the figures. It never hangs: every case has a deadline, and everything that holds a stream
//!   back lets go by itself.
//! * After it passed, it has returned everything, and the device must hold nothing.

mod bench;
mod cases;
mod data;
mod gate;
mod runner;
mod verdict;

use core::fmt;
use std::sync::Arc;

pub use bench::Bench;
pub use runner::{main, run, run_within};
pub use verdict::{Failure, Verdict};

use crate::{CallGroup, Capabilities, Device, Result};

/// Two devices of one machine.
pub type Pair = (Arc<dyn Device>, Arc<dyn Device>);

/// Provides the suite with devices.
pub trait Fixture: Send + Sync + 'static {
    /// The device's name in the suite's output.
    fn name(&self) -> &str;

    /// Opens a device for exclusive use, with at least 256 MiB of memory free.
    fn open(&self) -> Result<Arc<dyn Device>>;

    /// Opens two devices of one kind that can access each other, if the machine has them.
    fn pair(&self) -> Option<Result<Pair>> {
        None
    }

    /// Opens a device and creates a stream on it through another library, if possible; returns both. The stream
    /// outlives the case.
    fn foreign_stream(&self) -> Option<Result<(Arc<dyn Device>, u64)>> {
        None
    }

    /// Whether the device can tell, when a copy or fill is enqueued, that an address is not its
    /// memory or may not be used so.
    ///
    /// The contract asks for a refusal only in that case. On other devices the work would run and break them, so the
    /// cases that try it are left out.
    fn checks_addresses(&self) -> bool {
        true
    }

    /// Identifies the calling thread's current device or context, for kinds that have one. Every case must leave it
    /// unchanged.
    fn current_context(&self) -> u64 {
        0
    }
}

/// What a case needs from the fixture, besides capabilities of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requirement {
    /// One device.
    Device,
    /// Two, from [`Fixture::pair`].
    Pair,
    /// One device and a stream that another library created, from [`Fixture::foreign_stream`].
    ForeignStream,
    /// One device for which [`Fixture::checks_addresses`] is true.
    AddressChecks,
}

/// A promise, and the code that tests it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// Group and promise, such as `memory/zero_bytes_is_null`. Unique.
    pub name: &'static str,
    /// The part of the contract it is about.
    pub group: CallGroup,
    /// The capabilities that the device needs.
    pub needs: Capabilities,
    /// What the fixture must provide.
    pub wants: Requirement,
    /// The test itself.
    pub run: fn(&Bench) -> Verdict,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("needs", &self.needs)
            .field("wants", &self.wants)
            .finish_non_exhaustive()
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The promise was kept.
    Passed,
    /// The promise was broken; describes what was observed.
    Failed(String),
    /// The device lacks the feature, for this reason.
    Skipped(String),
}

/// Every case, in the order they are run.
pub fn cases() -> Vec<&'static Case> {
    cases::ALL.iter().flat_map(|group| group.iter()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_given_once_and_begin_with_their_group() {
        let mut seen = BTreeSet::new();
        for case in cases() {
            assert!(seen.insert(case.name), "{} is there twice", case.name);
            let group = format!("{:?}/", case.group).to_ascii_lowercase();
            assert!(case.name.starts_with(&group), "{} is not in {group}", case.name);
        }
        assert!(seen.len() >= 75, "{} cases", seen.len());
    }
}
