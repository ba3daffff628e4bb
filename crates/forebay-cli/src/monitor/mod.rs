//! `forebay monitor`: watches this user's processes that use forebay, and the GPUs.
//!
//! ```text
//!   forebay::monitor  one snapshot a process ─┐            ┌─ view     a terminal
//!   nvml              the GPUs as a whole ────┴─ Sample ───┼─ text     lines, for pipes and --once
//!                                                          ├─ serve    a web page and its JSON
//!                                                          └─ metrics  Prometheus
//! ```

mod metrics;
mod nvml;
mod sample;
mod serve;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use crate::command::MonitorOptions;
use crate::output::{self, Width};
use crate::{Ending, layout};

use sample::{Sample, Watch};

pub(crate) use nvml::VARIABLE as NVML_VARIABLE;
pub use serve::Address;

/// What is said where nothing can be watched.
const NOBODY: &str = "no process of this user can be watched. Start the program with FOREBAY_MONITOR=on, or set \
                      monitor in its code or file of settings; it appears once it has made a pool";

/// Watches until the user or the reader of the output has seen enough.
pub fn run(options: &MonitorOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    let mut watch = Watch::new(options.pid);
    if let Some(address) = &options.serve {
        return serve::run(address, (options.allow_remote, &options.allow_host), watch, out);
    }
    let first = watch.sample();
    // A process that was named and is not there is a mistake; others may start later, and GPUs are shown without any.
    let shows_nothing = options.once && first.devices.is_empty();
    if first.processes.is_empty() && (options.pid.is_some() || shows_nothing) {
        if options.json {
            first.write_json(out)?;
        }
        let reason = first.unreadable.first().map_or(NOBODY, |one| one.reason.as_str());
        output::complain(reason);
        return Ok(Ending::Fault);
    }
    if !options.once && !options.json && io::stdout().is_terminal() {
        return view::run(watch, first, options.interval);
    }
    let mut next = Instant::now();
    let mut sample = first;
    loop {
        if options.json {
            sample.write_json(out)?;
        } else {
            text::write(&sample, width, out)?;
        }
        out.flush()?;
        if options.once || ended(&sample, options.pid) {
            return Ok(Ending::Well);
        }
        // Looks that were missed, while the program was stopped or its reader was slow, are not made up for.
        let now = Instant::now();
        next = (next + options.interval).max(now);
        std::thread::sleep(next.saturating_duration_since(now));
        sample = watch.sample();
    }
}

/// What processes of this user and GPUs are short of now.
pub(crate) fn warnings() -> Vec<String> {
    Watch::new(None).sample().warnings
}

/// Whether the process that was asked for has ended.
fn ended(sample: &Sample, pid: Option<u32>) -> bool {
    pid.is_some() && sample.processes.is_empty() && sample.unreadable.iter().any(|one| one.is_gone)
}

/// A name from another process, fit for a terminal.
fn plain(name: &str) -> String {
    layout::plain(name)
}
