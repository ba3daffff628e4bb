//! The report for people: sections, aligned, with the cure beside the complaint.
//!
//! Styles are written as escape sequences; the stream below drops them where nobody sees colours.

use std::fmt::Display;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use forebay_core::Bytes;

use super::report::{
    DeviceRow, HugePageSection, LimitRow, LimitSection, MemorySection, NumaSection, Report, Status,
};

const TITLE: Style = Style::new().bold();
const QUIET: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const FAIR: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// How wide the first column is: its longest label, "transparent, files", and a gap.
const LABEL: usize = 20;
/// How wide the kind of a device is within it.
const KIND: usize = 8;
/// How wide values are, so that the remarks behind them line up.
const VALUE: usize = 24;
/// How wide a line may become. Terminals show eighty at least; paths and commands are not cut.
const WIDTH: usize = 96;

/// Writes the report.
pub(super) fn render(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{TITLE}forebay {}{TITLE:#}  what this machine offers", report.version)?;
    title(out, "Devices")?;
    for row in &report.devices {
        device(out, row)?;
    }
    title(out, "Memory")?;
    memory(out, &report.memory)?;
    title(out, "NUMA")?;
    numa(out, &report.numa)?;
    title(out, "Huge pages")?;
    huge_pages(out, &report.huge_pages)?;
    title(out, "Limits")?;
    limits(out, &report.limits)?;
    title(out, "Settings in force")?;
    for setting in &report.settings {
        let value = format!("{} ({})", setting.value, setting.whence);
        line(out, setting.name, &value, setting.effect)?;
    }
    if !report.ignored_settings.is_empty() {
        let names = report.ignored_settings.join(", ");
        paragraph(
            out,
            FAIR,
            "not read",
            &format!("{names}: this version reads no FOREBAY_ names"),
        )?;
    }
    title(out, "Problems and their cure")?;
    problems(out, report)
}

fn device(out: &mut impl Write, row: &DeviceRow) -> io::Result<()> {
    let style = match row.status {
        Status::Ready => GOOD,
        Status::Found => FAIR,
        Status::Broken => BAD,
        Status::Missing | Status::NotHere => QUIET,
    };
    // The label by hand, as wide as all others: a style inside a padded one would count as letters.
    let (kind, status) = (row.kind, row.status.name());
    let status_width = LABEL - KIND;
    for (index, part) in wrapped(&row.summary).iter().enumerate() {
        match index {
            0 => writeln!(out, "  {kind:KIND$}{style}{status:status_width$}{style:#}{part}")?,
            _ => note(out, Style::new(), part)?,
        }
    }
    if let (Some(total), Some(free)) = (row.total_bytes, row.free_bytes) {
        note(out, QUIET, &format!("memory: {} free of {}", Bytes::new(free), Bytes::new(total)))?;
    }
    let can: Vec<String> = row.capabilities.iter().map(|name| name.replace('_', " ")).collect();
    for (name, list) in [("can", &can), ("seen", &row.seen), ("missing", &row.missing)] {
        if !list.is_empty() {
            note(out, QUIET, &format!("{name}: {}", list.join(", ")))?;
        }
    }
    match &row.cure {
        Some(cure) => note(out, QUIET, &format!("to get it: {cure}")),
        None => Ok(()),
    }
}

fn memory(out: &mut impl Write, memory: &MemorySection) -> io::Result<()> {
    let whence = |whence: &Option<String>| whence.clone().unwrap_or_default();
    let usable = [
        ("usable", memory.usable_total_bytes, whence(&memory.usable_total_whence)),
        ("usable now", memory.usable_free_bytes, whence(&memory.usable_free_whence)),
    ];
    for (label, bytes, remark) in usable {
        line(out, label, &size(bytes), &remark)?;
    }
    if memory.contained {
        line(out, "machine", &size(memory.machine_total_bytes), "more than the container may use")?;
        line(out, "machine, available", &size(memory.machine_available_bytes), "")?;
    }
    match (memory.swap_total_bytes, memory.swap_free_bytes) {
        (Some(0), _) => line(out, "swap", "none", "")?,
        (total, free) => line(out, "swap", &size(total), &format!("{} free", size(free)))?,
    }
    unknown(out, &memory.unknown)
}

fn numa(out: &mut impl Write, numa: &NumaSection) -> io::Result<()> {
    for node in &numa.nodes {
        let cpus = match node.cpus.as_deref() {
            Some("") => "no processors".to_owned(),
            Some(cpus) => format!("processors {cpus}"),
            None => "processors unknown".to_owned(),
        };
        let mut remark = format!("{} free of {}", size(node.free_bytes), size(node.total_bytes));
        if let Some(distances) = node.distances.as_ref().filter(|_| numa.nodes.len() > 1) {
            let distances: Vec<String> = distances.iter().map(u32::to_string).collect();
            remark.push_str(&format!(", distances {}", distances.join(" ")));
        }
        line(out, &format!("node {}", node.id), &cpus, &remark)?;
    }
    if numa.assumed {
        note(out, QUIET, "the machine shows no nodes: taken as one")?;
    }
    unknown(out, &numa.unknown)
}

fn huge_pages(out: &mut impl Write, huge: &HugePageSection) -> io::Result<()> {
    for pool in &huge.pools {
        let value = format!("{} of {} pages free", number(pool.free), number(pool.total));
        let remark = format!("{} can be had now", number(pool.obtainable));
        line(out, &format!("pool of {}", Bytes::new(pool.page_bytes)), &value, &remark)?;
    }
    let setting = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    line(out, "transparent", &setting(&huge.transparent), "for a process's own memory")?;
    line(
        out,
        "transparent, files",
        &setting(&huge.shmem),
        "for memory files: pages of host memory",
    )?;
    paragraph(out, if huge.granted { GOOD } else { FAIR }, "explicit", &huge.summary)?;
    unknown(out, &huge.unknown)
}

fn limits(out: &mut impl Write, limits: &LimitSection) -> io::Result<()> {
    let bytes = |value: u64| Bytes::new(value).to_string();
    let locked = match limits.locks_freely {
        Some(true) => "pinned memory; this process may lock more",
        _ => "what pinned memory is taken from",
    };
    line(out, "locked memory", &limit(limits.locked_memory, bytes), locked)?;
    let files = limit(limits.open_files, |value| value.to_string());
    line(out, "open files", &files, "one a page shared with other processes")?;
    let space = limit(limits.address_space, bytes);
    line(out, "address space", &space, "what regions are reserved from")?;
    line(out, "mappings", &number(limits.max_map_count), "each mapped page may take one")?;
    let overcommit = limits.overcommit.unwrap_or("unknown");
    line(out, "overcommit", overcommit, "how the system promises memory")?;
    let mut remark = match &limits.processors_allowed {
        Some(list) => format!("may run on {list}"),
        None => String::new(),
    };
    if let Some(quota) = limits.processor_quota_hundredths {
        let (whole, part) = (quota / 100, quota % 100);
        remark.push_str(&format!("; the container allows the time of {whole}.{part:02}"));
    }
    line(out, "processors", &number(limits.processors), &remark)?;
    unknown(out, &limits.unknown)
}

fn problems(out: &mut impl Write, report: &Report) -> io::Result<()> {
    if report.problems.is_empty() {
        return writeln!(out, "  {GOOD}none{GOOD:#}");
    }
    for (index, problem) in report.problems.iter().enumerate() {
        let number = format!("{}.", index + 1);
        for (index, part) in wrapped(&problem.what).iter().enumerate() {
            let number = if index == 0 { number.as_str() } else { "" };
            writeln!(out, "  {BAD}{number:3}{BAD:#} {part}")?;
        }
        for part in wrapped(&problem.why) {
            writeln!(out, "      {part}")?;
        }
        // Not broken into lines: it is there to be copied.
        writeln!(out, "      {TITLE}cure:{TITLE:#} {}", plain(&problem.cure))?;
    }
    Ok(())
}

fn title(out: &mut impl Write, name: &str) -> io::Result<()> {
    writeln!(out, "\n{TITLE}{name}{TITLE:#}")
}

/// A label, a value, and a remark in quiet letters; below a value too long to stand beside it.
fn line(out: &mut impl Write, label: &str, value: &str, remark: &str) -> io::Result<()> {
    let value = plain(value);
    if remark.is_empty() || value.chars().count() > VALUE {
        writeln!(out, "  {label:LABEL$}{value}")?;
        return if remark.is_empty() { Ok(()) } else { note(out, QUIET, remark) };
    }
    writeln!(out, "  {label:LABEL$}{value:VALUE$}  {QUIET}{}{QUIET:#}", plain(remark))
}

/// A label and a text that may take several lines.
fn paragraph(out: &mut impl Write, style: Style, label: &str, text: &str) -> io::Result<()> {
    for (index, part) in wrapped(text).iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        writeln!(out, "  {label:LABEL$}{style}{part}{style:#}")?;
    }
    Ok(())
}

/// A text below the values, that may take several lines.
fn note(out: &mut impl Write, style: Style, text: &str) -> io::Result<()> {
    paragraph(out, style, "", text)
}

fn unknown(out: &mut impl Write, reasons: &[String]) -> io::Result<()> {
    reasons.iter().try_for_each(|reason| paragraph(out, FAIR, "unknown", reason))
}

/// The text in lines that fit beside the labels, broken at spaces. Never empty.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in plain(text).split(' ') {
        let Some(last) = lines.last_mut() else { break };
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= WIDTH - LABEL {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// The text without control characters: what a file or a name holds must not steer the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| Bytes::new(bytes).to_string())
}

fn number(value: Option<impl Display>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

/// "1024 of 4096", "8.00 MiB", "unlimited".
fn limit(row: Option<LimitRow>, show: impl Fn(u64) -> String) -> String {
    let shown = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), &show);
    match row {
        None => "unknown".to_owned(),
        Some(LimitRow { soft, hard }) if soft == hard => shown(soft),
        Some(LimitRow { soft, hard }) => format!("{}, hard {}", shown(soft), shown(hard)),
    }
}
