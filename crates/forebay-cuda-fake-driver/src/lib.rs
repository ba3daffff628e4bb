//! A CUDA driver made of the simulated device.
//!
//! A library that exports the CUDA driver's functions, so that all of `forebay-cuda` runs where there
//! is no GPU. It is for tests alone and is never shipped. Signatures and structures come from
//! independent bindings; what the functions do is the simulated device's work:
//!
//! ```text
//!   forebay-cuda ── dlopen ──> cuMemAlloc_v2, cuStreamQuery, ... ──> forebay-sim
//! ```
//!
//! It is strict where the real driver is: most calls want a current context, an event is recorded
//! only on streams of its own context, a page maps whole or not at all, and functions of the host
//! run one after another, so that one that blocks holds back all others. The legacy default stream and
//! the blocking streams of its context, each thread's own among them, wait for each other as they do
//! there.
//!
//! It compiles no kernels. It knows the one that forebay loads by its name, and does what that does.
//!
//! `FOREBAY_FAKE_GPUS` and `FOREBAY_FAKE_MEMORY_MIB` choose how many devices there are and how much memory
//! each has.
//!
//! Each file that the system loads is a driver of its own: a test that wants another version or
//! broken functions copies the library and calls what `control` exports before `cuInit`.

#![allow(non_snake_case, reason = "the names are CUDA's")]

mod answer;
mod captures;
mod context;
mod control;
mod cudarc_calls;
mod kernels;
mod machine;
mod memory;
mod pages;
mod pools;
mod streams;
mod work;
