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
mod order;
mod sample;
mod serve;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;

use crate::Ending;
use crate::output::{self, Width};

use order::Order;
use sample::{Sample, Watch};
use text::NOBODY;

pub(crate) use nvml::VARIABLE as NVML_VARIABLE;
pub use order::SortKey;
pub use serve::Address;

/// The options of `forebay monitor`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct MonitorOptions {
    /// The process to watch [default: all of this user].
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,

    /// How many seconds pass between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,

    /// Look for one interval, print one table of it, and end.
    #[arg(long)]
    pub once: bool,

    /// Sort pools, those with the largest figure first.
    #[arg(long, value_name = "KEY", default_value = "process", conflicts_with = "serve")]
    pub sort: SortKey,

    /// Show only pools with this text in the number, name, script, rank or device.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "serve"
    )]
    pub filter: String,

    /// Answer web browsers and Prometheus at this address instead [default: 127.0.0.1:9470].
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "9470", conflicts_with_all = ["once", "json"])]
    pub serve: Option<Address>,

    /// Let --serve listen at an address that other machines can reach. Nothing asks who they are.
    #[arg(long, requires = "serve")]
    pub allow_remote: bool,

    /// Let --serve answer requests to this name too. It answers those to addresses and to the machine's own name, so that
    /// no page of another site can read it under a name of its own.
    #[arg(long, value_name = "NAME", requires = "serve")]
    pub allow_host: Vec<String>,

    /// Print one line of JSON for each look, with "schema": "forebay.monitor.v1".
    #[arg(long)]
    pub json: bool,
}

/// Parses seconds, from a tenth to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let wanted = "write seconds from 0.1 to 3600";
    seconds.map(Duration::from_secs_f64).ok_or_else(|| wanted.to_owned())
}

/// Watches until the user quits or the reader of the output goes away.
pub fn run(options: &MonitorOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    let mut watch = Watch::new(options.pid);
    let order = Order { sort: options.sort, filter: options.filter.clone() };
    if let Some(address) = &options.serve {
        return serve::run(address, (options.allow_remote, &options.allow_host), watch, out);
    }
    let mut first = watch.sample();
    // A named process that does not exist is a mistake. Otherwise processes may start later, and GPUs are shown without any.
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
        return view::run(watch, first, options.interval, order);
    }
    if options.once {
        first = watch.sample_over(options.interval);
    }
    let mut next = Instant::now();
    let mut sample = first;
    loop {
        order.apply(&mut sample);
        if options.json {
            sample.write_json(out)?;
        } else {
            text::write(&sample, width, out)?;
        }
        out.flush()?;
        if options.once || ended(&sample, options.pid) {
            return Ok(Ending::Well);
        }
        // Do not make up for looks that were missed while the program was stopped or its reader was slow.
        let now = Instant::now();
        next = (next + options.interval).max(now);
        std::thread::sleep(next.saturating_duration_since(now));
        sample = watch.sample();
    }
}

/// Shortages of this user's processes and of the GPUs.
pub(crate) fn warnings() -> Vec<String> {
    Watch::new(None).sample().warnings
}

/// Whether the named process has ended.
fn ended(sample: &Sample, pid: Option<u32>) -> bool {
    pid.is_some() && sample.processes.is_empty() && sample.unreadable.iter().any(|one| one.is_gone)
}
