//! Trials of the pool: every way an allocator dies, looked for.
//!
//! An oracle knows what is live; programs of random operations, threads, failing calls and wrong
//! frees are played against it on the simulated device, whose streams are late and whose checker
//! names what races, and on the host. That the trials can fail is tried too: see `mutations`.

// This file and its modules are tests alone, where a failed assumption should end the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod claims;
mod claims_tests;
mod endings;
mod episodes;
mod faults;
mod frees;
mod host;
mod mutations;
mod pressure;
mod programs;
mod refusals;
mod stress;
mod threads;
mod trial;
