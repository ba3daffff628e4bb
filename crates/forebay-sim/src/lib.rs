//! A simulated accelerator.
