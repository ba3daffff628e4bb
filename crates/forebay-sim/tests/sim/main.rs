//! The simulated device: what is particular to it, its checker, and whether the conformance suite and the checker tell
//! what is wrong. One program, because each costs a link.

mod behaviour;
mod checker;
mod faults;
mod programs;
mod sabotage;
