//! The device over the fake driver, and its declarations beside others'. One program, because each costs a link; what the
//! process has pinned is counted in one of its own.

#[path = "../fake_driver/mod.rs"]
mod fake_driver;
#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../rounds/mod.rs"]
mod rounds;

mod batches;
mod drivers;
mod halfway;
mod neighbours;
mod oracle;
mod own;
mod pools;
