//! Tests of the address map and its slots.

#[cfg(loom)]
mod model;

#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod slot;
