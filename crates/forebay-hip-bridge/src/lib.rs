//! HIP's functions over a CUDA driver.
//!
//! A library that exports what `libamdhip64` exports, as far as forebay uses it, so that all of `forebay-hip` runs without an
//! AMD GPU. It is for tests alone and is never shipped.
//!
//! ```text
//!   forebay-hip ── dlopen ──> hipMalloc, hipStreamQuery, ... ──> CUDA driver: the real one, or the fake one
//! ```
//!
//! The CUDA driver is the one that `forebay-cuda` finds: the system's, or the library that `FOREBAY_CUDA_DRIVER` names.
//! `FOREBAY_HIP_BRIDGE_VERSION` chooses which version of HIP it speaks, as in "5.7". A test that loads a copy of the file
//! calls `forebay_bridge_configure` for both, before any other function.
//!
//! Structures, numbers and rules are HIP's, written down here from its headers and not taken from `forebay-hip`: the two
//! must agree by themselves. A device is current in each thread, the first from the start; memory types and the
//! structure of copies in three dimensions are those of the version; a descriptor is imported by its address before 7.1.

#![allow(non_snake_case, reason = "the names are HIP's")]

mod copies;
mod devices;
mod memory;
mod runtime;
mod streams;
