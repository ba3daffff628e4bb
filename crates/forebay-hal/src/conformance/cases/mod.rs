//! The cases, a file for each subject. A case's name is its group and the name of its function.

mod access;
mod copies;
mod decompression;
mod elapsed;
mod endings;
mod events;
mod fills;
mod foreign;
mod garbage;
mod info;
mod managed;
mod mapping;
mod memory;
mod own;
mod pages;
mod peers;
mod pinned;
mod prelude;
mod regions;
mod shapes;
#[cfg(unix)]
mod sharing;
mod streams;
mod tasks;
mod threads;

use super::Case;

/// All, subject by subject.
pub(super) const ALL: &[&[Case]] = &[
    info::CASES,
    garbage::CASES,
    memory::CASES,
    copies::CASES,
    shapes::CASES,
    fills::CASES,
    decompression::CASES,
    streams::CASES,
    foreign::CASES,
    own::CASES,
    events::CASES,
    elapsed::CASES,
    tasks::CASES,
    regions::CASES,
    pages::CASES,
    mapping::CASES,
    access::CASES,
    pinned::CASES,
    managed::CASES,
    peers::CASES,
    #[cfg(unix)]
    sharing::CASES,
    threads::CASES,
    endings::CASES,
];
