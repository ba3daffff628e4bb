//! The `forebay` command, as built and as a library, on this machine and on others laid out in
//! directories.

// What tests share stands outside the functions that the lint knows as tests.
#![allow(clippy::unwrap_used)]

mod bench;
mod command;
mod demo;
mod doctor;
mod fit;
mod foreign;
mod machine;
mod record;
mod replay;
mod report;
