//! The conformance suite: a named case for each promise of the contract.
//!
//! Whoever writes a device writes a [`Fixture`] that opens it, and a test file of a few lines:
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
//! The file then takes the arguments of any Rust test: `cargo test --test conformance -- virtual/`
//! runs one group. Cases run one at a time unless `--test-threads` says otherwise, because several
//! compare figures of memory that the devices of one machine share. They compare many bytes: with
//! `opt-level = 1` in the profile `test` the suite takes a tenth of the time.
//!
//! # What a case may do
//!
//! * It gets a device nobody else uses, and reads and writes device memory by copies on streams
//!   alone; a case that follows device addresses itself needs
//!   [`Capabilities::HOST_VISIBLE`].
//! * What it needs beyond the plain groups it names, and it is shown as ignored, with the reason,
//!   where the device has it not.
//! * It fails with a text that has the figures. It never hangs: every case has a deadline, and
//!   everything that holds a stream back lets go by itself.
//! * When it passed, all it took is given back, and the device must hold nothing any more.

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

/// How the suite gets devices.
pub trait Fixture: Send + Sync + 'static {
    /// What the device is called in the suite's output.
    fn name(&self) -> &str;

    /// A device nobody else uses, with at least 256 MiB of memory free.
    fn open(&self) -> Result<Arc<dyn Device>>;

    /// Two devices of one kind that can reach each other, where there are two.
    fn pair(&self) -> Option<Result<Pair>> {
        None
    }

    /// A device, and the value of a stream on it that another library made, where there can be one.
    /// The stream outlives the case.
    fn foreign_stream(&self) -> Option<Result<(Arc<dyn Device>, u64)>> {
        None
    }

    /// Whether the device can tell, when a copy or fill is enqueued, that an address is not its
    /// memory or may not be used so.
    ///
    /// The contract asks for a refusal only where this is so. On other devices the work would run
    /// and break them, so the cases that try it are left out.
    fn checks_addresses(&self) -> bool {
        true
    }

    /// What names the calling thread's current device or context, for kinds that have such a thing.
    /// Every case must leave it as it was.
    fn current_context(&self) -> u64 {
        0
    }
}

/// What a case needs of the fixture, besides capabilities of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requirement {
    /// One device.
    Device,
    /// Two, from [`Fixture::pair`].
    Pair,
    /// One device and a stream of another's making, from [`Fixture::foreign_stream`].
    ForeignStream,
    /// One device, of which [`Fixture::checks_addresses`] is true.
    AddressChecks,
}

/// One promise, and the code that puts it to the test.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// Group and promise, as `memory/zero_bytes_is_null`. Each name is given once.
    pub name: &'static str,
    /// The part of the contract it is about.
    pub group: CallGroup,
    /// What the device must be capable of.
    pub needs: Capabilities,
    /// What the fixture must offer.
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
    /// It was not, and this is what was seen.
    Failed(String),
    /// The device has no such thing to test, for this reason.
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
