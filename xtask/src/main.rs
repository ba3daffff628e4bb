//! Checks and chores of this repository: `cargo xtask test`, `layers`, `soak`, `instructions`, `python`,
//! `header`, `kernels`, `dist`, `wheel`, `gpu-bundle`, `record`.
//!
//! ```text
//!   test ── the plan: which steps, in which order, what each means
//!    ├── setup     what a step needs that a fresh machine may lack
//!    ├── python    the same for the Python package: an interpreter and its environments
//!    ├── count     the runners' own words, turned into numbers
//!    ├── ignored   why a test that was not started was not
//!    ├── layers    which crate may use which     (also a command of its own)
//!    │    └── rooms  the same for the modules of a crate
//!    ├── shape     how sources and manifests must look
//!    │    └── allocations  lengths that a caller chose are allocated fallibly
//!    ├── packages  whether crates can be published
//!    ├── header    the C header            (also a command of its own)
//!    ├── hot_pair  instructions and time of a hit  (also a command of its own)
//!    └── step      what came of a step, and the sum at the end
//!   kernels ── what the device runs, from its source
//!   bundle ── what goes to a machine with a GPU
//!   dist ── what is installed: the command, libforebay, its headers
//!   wheel ── the Python package as it is published
//!   record ── what came back from a machine with a GPU
//!
//!   dashboard ── where all of these run commands
//!    ├── run       one command, its output kept; ended if it hangs
//!    │    └── processes  its processor time, and its end with all that it started
//!    └── screen    everything a person sees goes through here
//!   files ── files, with their names in what goes wrong
//! ```
#![forbid(unsafe_code)]

mod allocations;
mod bundle;
mod count;
mod dashboard;
mod dist;
mod files;
mod header;
mod hot_pair;
mod ignored;
mod kernels;
mod layers;
mod packages;
mod processes;
mod python;
mod record;
mod rooms;
mod run;
mod screen;
mod setup;
mod shape;
mod step;
mod test;
mod wheel;
mod workplace;

use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

use crate::bundle::Bundle;
use crate::dashboard::Dashboard;
use crate::dist::Dist;
use crate::header::Header;
use crate::record::Record;
use crate::screen::{BAD, Screen, styled};
use crate::test::Plan;
use crate::wheel::Wheel;
use crate::workplace::Workplace;

/// Checks and chores of the forebay repository.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Run every check and every test, and say what was left out and why.
    ///
    /// Gets what it needs by itself (rustfmt, clippy, Miri, packages of Python's) where that can be had, and
    /// skips what cannot, with the reason. Packages of the system (valgrind, python3-venv, libamdhip64-5, PoCL) are
    /// installed only with --install, or where the environment says CI=true. The last line is "N passed, M failed, K skipped":
    /// tests and checks together. Exits with 0 only where nothing failed.
    Test {
        /// For the inner loop: format, clippy without test code, layers, and unit tests but the longest.
        /// Random tests try 32 cases unless PROPTEST_CASES says otherwise.
        #[arg(long)]
        quick: bool,
        /// Install packages of the system that are missing, with apt-get.
        #[arg(long)]
        install: bool,
    },
    /// Check that each crate uses only those above it, and each module of forebay only its own room and earlier ones; draw both.
    Layers,
    /// Run millions of random operations on the pool, with an oracle looking on; --help has the options.
    ///
    /// On the simulated device, with memory that is addresses alone: blocks of all sizes, streams
    /// that come and go, frees by other threads, wrong frees. A hundred million take some minutes.
    /// Exits with 1 at the first block that is not as it must be, and says how to have that again.
    #[command(disable_help_flag = true)]
    Soak {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Count the instructions of an allocation and a free of what was just freed, with callgrind.
    ///
    /// Exits with 1 where a pair takes more than it may.
    Instructions,
    /// Build the Python package as a wheel, install it where there is nothing else, and test it.
    Python,
    /// Write the C header anew from the sources of forebay-capi, or look whether it is up to date.
    Header(Header),
    /// Write the PTX of the kernels anew from their sources. Needs clang; CLANG names another.
    Kernels,
    /// Build what is installed, and lay it out under a prefix.
    ///
    /// The command, libforebay as a shared and a static library, forebay.h and forebay.hpp, what
    /// pkg-config and CMake read, and the documentation.
    Dist(Dist),
    /// Build the Python package as it is published: a wheel with adapters for every known PyTorch.
    ///
    /// Fetches PyTorch's headers, some 4 MB of each version, and CUDA's, and needs a C++ compiler.
    Wheel(Wheel),
    /// Build one folder that runs on a machine with an NVIDIA driver and no Rust.
    ///
    /// Test programs, the command, the library for PyTorch, and a script that runs all of it, prints
    /// a short table and leaves a record in JSON. At most 60 MiB.
    GpuBundle(Bundle),
    /// File what came back from a machine with a GPU, under benches/records.
    Record(Record),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let screen = Screen::stdout();
    let place = Workplace::here();
    let dashboard = |name| Dashboard::new(name, &place, &screen);
    let done = match arguments.chore {
        Chore::Test { quick, install } => {
            let plan = if quick { Plan::quick() } else { Plan::whole() };
            plan.carry_out(&place.installing(install), &screen)
        }
        Chore::Python => Plan::python().carry_out(&place, &screen),
        Chore::Layers => test::show_layers(&mut dashboard("layers")),
        Chore::Soak { options } => soak(&place, options),
        Chore::Header(header) => header.run(&place),
        Chore::Kernels => kernels::write(&place),
        Chore::Dist(dist) => dist.make(&mut dashboard("dist")),
        Chore::Wheel(wheel) => wheel.make(&mut dashboard("wheel")),
        Chore::GpuBundle(bundle) => bundle.make(&mut dashboard("bundle")),
        Chore::Record(record) => record.file(&place),
        Chore::Instructions => test::show_instructions(&place, &screen),
    };
    match done {
        Ok(said) => {
            screen.line(said);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            screen.line(styled(BAD, reason));
            ExitCode::FAILURE
        }
    }
}

/// Builds the soak and runs it, with options that it knows itself.
fn soak(place: &Workplace, mut options: Vec<String>) -> Result<String, String> {
    // cargo runs it in the folder of its crate.
    if let Some(record) = options.iter().position(|option| option == "--record")
        && let Some(path) = options.get_mut(record + 1)
        && let Ok(absolute) = std::path::absolute(&*path)
    {
        *path = absolute.display().to_string();
    }
    let mut cargo = Command::new(place.cargo_program());
    cargo.args(["bench", "--quiet", "--package=forebay-bench", "--bench=soak", "--"]);
    let status = cargo.args(options).current_dir(place.root()).status();
    match status.map_err(|error| format!("cargo could not be started: {error}"))? {
        status if status.success() => Ok(String::new()),
        status => Err(format!("the soak ended with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn bad_usage_is_told_apart() {
        for bad in [&["xtask"][..], &["xtask", "tests"], &["xtask", "layers", "--quick"]] {
            assert_eq!(Arguments::try_parse_from(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
        let quick = Arguments::try_parse_from(["xtask", "test", "--quick"]).unwrap();
        assert!(matches!(quick.chore, Chore::Test { quick: true, install: false }));
        let soak = Arguments::try_parse_from(["xtask", "soak", "--seed", "7", "--help"]).unwrap();
        assert!(
            matches!(soak.chore, Chore::Soak { options } if options == ["--seed", "7", "--help"])
        );
    }
}
