//! `forebay demo`: shows what forebay does, on a recorded run.
//!
//! ```text
//!   the run that ships ──┬──► on this machine, under forebay
//!                        └──► on a simulated H200, under forebay and models of others ──► what is saved
//!   a hot pair ─────────────► beside mimalloc, and the driver by its cost table
//! ```
//!
//! The pool uses its defaults and ignores the environment, because a limit would change the results: they should be
//! comparable everywhere. Ignored settings are named.
//!
//! Everything it reports is measured while it runs, except the driver's times on the simulated device, which a table
//! prices, and the output says so.

mod story;
mod text;

pub use story::{Saving, Story};

use std::io::{self, Write};

use clap::Args;

use crate::Ending;
use crate::output::{Width, complain};
use crate::progress::Progress;

/// The options of `forebay demo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct DemoOptions {
    /// Print lines of JSON: one for each replayed pass, one for each timed pair, and a summary with
    /// "schema": "forebay.demo.v1".
    #[arg(long)]
    pub json: bool,
}

/// Replays the run, times a pair, and writes the results to `out`, which strips escape sequences if needed.
pub fn run(options: &DemoOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    let progress = Progress::of("demo", story::STEPS);
    let story = match Story::live(&progress) {
        Ok(story) => story,
        Err(error) => {
            drop(progress);
            complain(error);
            return Ok(Ending::Fault);
        }
    };
    drop(progress);
    let mut text = Vec::new();
    if options.json {
        story.json(&mut text)?;
    } else {
        text::tell(&story, width, &mut text)?;
    }
    out.write_all(&text)?;
    out.flush()?;
    let faults = story.faults();
    faults.iter().for_each(complain);
    Ok(if faults.is_empty() { Ending::Well } else { Ending::Fault })
}
