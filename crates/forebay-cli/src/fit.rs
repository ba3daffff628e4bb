//! `forebay fit`: finds the smallest device on which recorded runs succeed.
//!
//! ```text
//!   files ──► Trace ──► for each policy: the smallest capacity, by bisection on simulated devices
//!                         └─ the driver's work there, and with 1, 2 and 5 % more
//! ```
//!
//! One row for each run and policy: "forebay.fit.v1" for programs, a table line for people.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, value_parser};
use forebay::Settings;
use forebay_core::{Bytes, counted};
use forebay_trace::{Fit, Model, PassReport, Trace, WorkBudget, replay};
use serde::Serialize;

use crate::Ending;
use crate::capacity::capacity;
use crate::layout::{
    BAD, Cell, Column, GOOD, QUIET, TITLE, Table, WhenNarrow, paragraph, write_hanging,
};
use crate::limit::{ReadingOptions, WorkOptions};
use crate::output::{Width, complain, json_lines, nanos};
use crate::progress::Progress;
use crate::replay::{DeviceName, Policy, heading, no_room_for, open_device, time};
use crate::report::{ADVICE_PASSES, LARGER, advice_on, passes_of_search};
use crate::settings::{Named, changed};
use crate::source::{Source, read_trace};

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.fit.v1";

/// The memory that one run needs under one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// Always "forebay.fit.v1".
    pub schema: &'static str,
    /// The run.
    pub trace: String,
    /// The allocator.
    pub policy: &'static str,
    /// The peak of requested bytes.
    pub asked_bytes: u64,
    /// The smallest capacity in which it succeeds, a multiple of 2 MiB.
    pub smallest_bytes: u64,
    /// The smallest capacity divided by the requested bytes.
    pub ratio: f64,
    /// How many passes in a row succeed there.
    pub passes: u32,
    /// Pages mapped there, in each pass.
    pub maps: Vec<u64>,
    /// The driver's time there, in each pass, by the cost table of one H200.
    pub driver_ns: Vec<u64>,
    /// The same on larger devices.
    pub larger: Vec<Larger>,
    /// The capacity in question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Whether the run fits in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    /// Its margin over the smallest capacity; negative if it is too small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin_bytes: Option<i64>,
    /// The pool's non-default settings. Absent if there are none, and for models.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub settings: Named,
    /// Advice, as `forebay report` gives it.
    pub advice: Vec<String>,
}

/// The driver's work on a device that is larger than the smallest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Larger {
    /// How much larger, in hundredths of the smallest.
    pub percent: u64,
    /// Its capacity.
    pub capacity_bytes: u64,
    /// Whether the run succeeds there too.
    pub fits: bool,
    /// Pages mapped, in each pass.
    pub maps: Vec<u64>,
    /// The driver's time, in each pass.
    pub driver_ns: Vec<u64>,
}

/// The options of `forebay fit`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct FitOptions {
    /// The recordings to replay; "-" reads standard input.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,

    /// The allocators to compare, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [Policy::Forebay, Policy::Model(Model::TorchExpandable), Policy::Model(Model::Torch)]
    )]
    pub policy: Vec<Policy>,

    /// Answer whether the runs fit on a device with this much memory, such as 24GiB, and by what margin.
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<Bytes>,

    /// How many times in a row a run has to go through on the same allocator: what "smallest" promises.
    #[arg(long, value_name = "N", default_value_t = Fit::PASSES, value_parser = value_parser!(u32).range(1..=1000))]
    pub passes: u32,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Print a line of JSON for each run and allocator, with "schema": "forebay.fit.v1".
    #[arg(long)]
    pub json: bool,
}

/// Finds the memory that every run needs under every policy and writes it to `out`, text in lines of `width`. `out`
/// strips escape sequences if needed.
pub fn run(options: &FitOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    if let Some(refusal) = Source::conflict(&options.traces) {
        complain(refusal);
        return Ok(Ending::BadUsage);
    }
    let Ok(settings) = Policy::settings(&options.policy).inspect_err(|error| complain(error))
    else {
        return Ok(Ending::BadUsage);
    };
    let reading = options.reading.options();
    let mut ending = Ending::Well;
    let mut left_out = Vec::new();
    let mut tables = 0_usize;
    for path in &options.traces {
        let Some(trace) = read_trace(path, &reading) else {
            ending = Ending::Fault;
            continue;
        };
        let searches = options.policy.len() as u64 * passes_of_search(options.passes);
        let budget = options.work.budget(&trace, searches + ADVICE_PASSES);
        let (mut rows, found) = rows(&trace, options, &settings, &budget);
        ending = ending.max(found);
        match advice_on(&trace, &settings, &budget) {
            Some(advice) => {
                let advice: Vec<String> = advice.iter().map(ToString::to_string).collect();
                rows.iter_mut().for_each(|row| row.advice.clone_from(&advice));
            }
            None => ending = Ending::Fault,
        }
        let mut text = Vec::new();
        if options.json {
            json_lines(&rows, &mut text)?;
        } else if !rows.is_empty() {
            if tables > 0 {
                writeln!(text)?;
            }
            heading(&trace, &settings, width, &mut text)?;
            left_out.extend(table(&rows, width, &mut text)?);
            for advice in rows.first().map_or(&[][..], |row| &row.advice) {
                let advice = Cell::from(advice.clone());
                write_hanging(&[Cell::styled("*", TITLE), advice], (2, 4), width, &mut text)?;
            }
            tables += 1;
        }
        out.write_all(&text)?;
        out.flush()?;
    }
    if tables > 0 {
        left_out.sort_unstable();
        left_out.dedup();
        reading_aid(options.passes, &left_out, width, out)?;
        out.flush()?;
    }
    Ok(ending)
}

/// The memory that one run needs under every policy.
fn rows(
    trace: &Trace,
    options: &FitOptions,
    settings: &Settings,
    budget: &WorkBudget<'_>,
) -> (Vec<Row>, Ending) {
    let mut ending = Ending::Well;
    let mut rows = Vec::new();
    // The bar counts policies, because the number of devices that a search tries is unknown.
    let progress = Progress::of(trace.name(), options.policy.len() as u64);
    for &policy in &options.policy {
        progress.doing(policy.name());
        let mut said = |what: &dyn core::fmt::Display| {
            ending = Ending::Fault;
            progress.aside(|| complain(format_args!("{}: {policy}: {what}", trace.name())));
        };
        match row(trace, policy, options, settings, budget) {
            Ok(Some(row)) => {
                if row.fits == Some(false) {
                    ending = Ending::Fault;
                }
                rows.push(row);
            }
            Ok(None) => said(&format_args!(
                "does not fit on a device of 64 times the requested bytes, or not on one of {}, the largest that is \
                 simulated",
                Fit::MAX_CAPACITY
            )),
            // The time is up for all of them. The advice comes last and reports it once.
            Err(_) if budget.check().is_err() => {
                ending = Ending::Fault;
                break;
            }
            Err(error) => said(&error),
        }
        progress.advance(1);
    }
    (rows, ending)
}

fn row(
    trace: &Trace,
    policy: Policy,
    options: &FitOptions,
    settings: &Settings,
    budget: &WorkBudget<'_>,
) -> Result<Option<Row>, Box<dyn Error>> {
    let open = |capacity: Bytes| {
        let device = open_device(DeviceName::SIM, Some(capacity), false)?;
        Ok(policy.player(device, settings)?)
    };
    let Some(fit) = Fit::find(trace, options.passes, budget, open)? else {
        return Ok(None);
    };
    let mut larger = Vec::new();
    for percent in LARGER {
        let capacity = fit.smallest.saturating_add(Bytes::new(fit.smallest.get() / 100 * percent));
        let playing = forebay_trace::ReplayOptions::new().passes(options.passes).budget(budget);
        let reports = replay(trace, &mut *open(capacity)?, playing)?;
        larger.push(Larger {
            percent,
            capacity_bytes: capacity.get(),
            fits: reports.iter().all(|report| report.out_of_memory == 0),
            maps: maps(&reports),
            driver_ns: driver_ns(&reports),
        });
    }
    let signed = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
    Ok(Some(Row {
        schema: SCHEMA,
        trace: trace.name().to_owned(),
        policy: policy.name(),
        asked_bytes: fit.requested.get(),
        smallest_bytes: fit.smallest.get(),
        ratio: fit.ratio(),
        passes: options.passes,
        maps: maps(&fit.passes),
        driver_ns: driver_ns(&fit.passes),
        larger,
        capacity_bytes: options.capacity.map(Bytes::get),
        fits: options.capacity.map(|capacity| fit.smallest <= capacity),
        margin_bytes: options.capacity.map(|capacity| signed(capacity) - signed(fit.smallest)),
        settings: match policy {
            Policy::Forebay => changed(settings),
            Policy::Model(_) => Named::new(),
        },
        advice: Vec::new(),
    }))
}

fn maps(reports: &[PassReport]) -> Vec<u64> {
    reports.iter().map(|report| report.driver.maps).collect()
}

fn driver_ns(reports: &[PassReport]) -> Vec<u64> {
    reports.iter().map(|report| nanos(report.driver.time)).collect()
}

const COLUMNS: [Column; 8] = [
    Column::words("policy", WhenNarrow::Break),
    Column::figures("smallest", WhenNarrow::Keep),
    Column::figures("ratio", WhenNarrow::Keep),
    Column::figures("driver", WhenNarrow::Drop(1)),
    Column::figures("+1 %", WhenNarrow::Drop(4)),
    Column::figures("+2 %", WhenNarrow::Drop(2)),
    Column::figures("+5 %", WhenNarrow::Drop(3)),
    Column::words("", WhenNarrow::Keep),
];

/// One line for each policy, with the least memory highlighted. Returns the headings that did not fit.
fn table(rows: &[Row], width: Width, out: &mut dyn Write) -> io::Result<Vec<&'static str>> {
    let least = rows.iter().map(|row| row.smallest_bytes).min();
    let mut table = Table::new(COLUMNS);
    for row in rows {
        let style = if least == Some(row.smallest_bytes) { GOOD } else { Default::default() };
        let last = |times: &[u64]| time(times.last().copied().unwrap_or(0));
        let mut cells: Vec<Cell> = vec![
            row.policy.into(),
            Bytes::new(row.smallest_bytes).to_string().into(),
            Cell::styled(format!("{:.4}", row.ratio), style),
            last(&row.driver_ns).into(),
        ];
        cells.extend(row.larger.iter().map(|larger| match larger.fits {
            true => last(&larger.driver_ns).into(),
            false => Cell::styled("fails", BAD),
        }));
        let margin = row.margin_bytes.unwrap_or(0).unsigned_abs();
        let margin = Bytes::new(margin);
        cells.push(match row.fits {
            Some(true) => Cell::styled(format!("fits, {margin} to spare"), GOOD),
            Some(false) => Cell::styled(format!("does not fit, {margin} short"), BAD),
            None => Cell::default(),
        });
        table.row(cells);
    }
    table.write(width, out)
}

/// What the figures mean, and which columns did not fit.
fn reading_aid(
    passes: u32,
    left_out: &[&str],
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let text = format!(
        "smallest: the smallest device on which {} in a row went through, to 2 MiB; --passes changes that. ratio: that over the most \
         memory requested; 1 is the best possible. driver: the driver's time in the last pass there, by the \
         cost table of one H200; +1 %, +2 %, +5 %: the same on a device larger by that much.{}",
        counted(passes, "pass"),
        no_room_for(left_out)
    );
    writeln!(out)?;
    paragraph(QUIET, &text, 0, width, out)
}
