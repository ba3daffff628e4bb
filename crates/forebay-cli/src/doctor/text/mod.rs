//! The report for people: aligned sections, with the cure beside each problem.
//!
//! Styles are written as escape sequences; the underlying stream drops them if the output shows no colours.

mod sheet;

use std::fmt::Display;
use std::io::{self, Write};

use forebay_core::Bytes;

use super::report::{
    DeviceRow, HugePageSection, LimitRow, LimitSection, MemorySection, NumaSection, Owner, Report,
    Setting, Status, Unread,
};
use crate::layout::{BAD, GOOD, NOTE, QUIET, TITLE, paragraph, plain, shortened};
use crate::output::Width;
use sheet::Sheet;

/// Writes the report in lines of `width`.
pub(super) fn render(report: &Report, width: Width, out: &mut dyn Write) -> io::Result<()> {
    // The verdict, and what to do; then what it was drawn from.
    writeln!(out, "{TITLE}forebay {}{TITLE:#}  report on this machine\n", report.version)?;
    paragraph(if report.well { GOOD } else { BAD }, &report.verdict, 0, width, out)?;
    let sheet = &mut Sheet { out, width };
    problems(sheet, report)?;
    if !report.running.is_empty() {
        sheet.title("Processes and GPUs near their limit")?;
        report.running.iter().try_for_each(|warning| sheet.paragraph(NOTE, "warning", warning))?;
    }
    run(sheet, report)?;
    sheet.title("Devices")?;
    sheet.note(
        QUIET,
        "this build supports the host, the simulated device, CUDA, HIP, OpenCL and Metal",
    )?;
    for row in &report.devices {
        device(sheet, row)?;
    }
    sheet.title("Memory")?;
    memory(sheet, &report.memory)?;
    sheet.title("NUMA")?;
    numa(sheet, &report.numa)?;
    sheet.title("Huge pages")?;
    huge_pages(sheet, &report.huge_pages)?;
    sheet.title("Limits")?;
    limits(sheet, &report.limits)?;
    settings(sheet, report)
}

fn device(sheet: &mut Sheet<'_>, row: &DeviceRow) -> io::Result<()> {
    let style = match row.status {
        Status::Ready => GOOD,
        Status::Found => NOTE,
        Status::Broken => BAD,
        Status::Missing | Status::NotHere => QUIET,
    };
    sheet.device(&row.name(), (style, row.status.name()), &row.summary)?;
    if let (Some(total), Some(free)) = (row.total_bytes, row.free_bytes) {
        let text = format!("memory: {} free of {}", Bytes::new(free), Bytes::new(total));
        sheet.note(QUIET, &text)?;
    }
    if let Some(found) = &row.transfers {
        let gb = |bytes_per_s: u64| format!("{:.1}", bytes_per_s as f64 / 1e9);
        let text = format!(
            "transfers: ordinary memory {} GB/s up and {} down, pinned {} and {}; {} thread{}, pieces of {}{}; \
             measured in {} ms",
            gb(found.upload_bytes_per_s),
            gb(found.download_bytes_per_s),
            gb(found.upload_limit_bytes_per_s),
            gb(found.download_limit_bytes_per_s),
            found.threads,
            if found.threads == 1 { "" } else { "s" },
            Bytes::new(found.chunk_bytes),
            if found.past_caches { ", past the caches" } else { "" },
            found.took_ms
        );
        sheet.note(QUIET, &text)?;
    }
    // A device opened without a wish takes the huge pages that the system makes by itself.
    let can = row.capabilities.iter().map(|name| match name.as_str() {
        "huge_pages" => "transparent huge pages".to_owned(),
        name => name.replace('_', " "),
    });
    let can: Vec<String> = can.collect();
    for (name, list) in [("can", &can), ("seen", &row.seen), ("missing", &row.missing)] {
        if !list.is_empty() {
            sheet.note(QUIET, &format!("{name}: {}", list.join(", ")))?;
        }
    }
    row.cure.as_ref().map_or(Ok(()), |cure| sheet.cure("to get it", cure))
}

fn memory(sheet: &mut Sheet<'_>, memory: &MemorySection) -> io::Result<()> {
    // That the machine's memory is the machine's need not be said.
    let whence = |whence: &Option<String>| whence.clone().filter(|_| memory.contained);
    let total = whence(&memory.usable_total_whence).unwrap_or_default();
    sheet.line("usable", &size(memory.usable_total_bytes), &total)?;
    let free = match whence(&memory.usable_free_whence) {
        Some(whence) => format!("free, and cache that can be dropped; {whence}"),
        None => "free, and cache that can be dropped".to_owned(),
    };
    sheet.line("usable now", &size(memory.usable_free_bytes), &free)?;
    if memory.contained {
        let machine = "more than the container may use";
        sheet.line("machine", &size(memory.machine_total_bytes), machine)?;
        let available = "free, and cache that can be dropped";
        sheet.line("machine, available", &size(memory.machine_available_bytes), available)?;
    }
    match (memory.swap_total_bytes, memory.swap_free_bytes) {
        (Some(0), _) => sheet.line("swap", "none", "")?,
        (total, free) => sheet.line("swap", &size(total), &format!("{} free", size(free)))?,
    }
    unknown(sheet, &memory.unknown)
}

fn numa(sheet: &mut Sheet<'_>, numa: &NumaSection) -> io::Result<()> {
    for node in &numa.nodes {
        let cpus = match node.cpus.as_deref() {
            Some("") => "no processors".to_owned(),
            Some(cpus) => format!("processors {cpus}"),
            None => "processors unknown".to_owned(),
        };
        let mut remark = format!("{} of {}", size(node.free_bytes), size(node.total_bytes));
        remark.push_str(if numa.assumed {
            " free, cache included"
        } else {
            " free, cache not counted"
        });
        if let Some(distances) = node.distances.as_ref().filter(|_| numa.nodes.len() > 1) {
            let distances: Vec<String> = distances.iter().map(u32::to_string).collect();
            remark.push_str(&format!(", distances {}", distances.join(" ")));
        }
        sheet.line(&format!("node {}", node.id), &cpus, &remark)?;
    }
    if numa.assumed {
        sheet.note(QUIET, "the machine shows no nodes: taken as one")?;
    }
    unknown(sheet, &numa.unknown)
}

fn huge_pages(sheet: &mut Sheet<'_>, huge: &HugePageSection) -> io::Result<()> {
    let kinds = [
        ("transparent", huge.transparent_granted, &huge.transparent, "a process's own memory"),
        ("transparent, files", huge.shmem_granted, &huge.shmem, "pages of host memory"),
    ];
    for (label, granted, setting, whose) in kinds {
        let value = match granted {
            Some(true) => "granted",
            Some(false) => "not granted",
            None => "unknown",
        };
        let setting = setting.as_deref().map(|setting| format!(": {setting}")).unwrap_or_default();
        sheet.line(label, value, &format!("{whose}{setting}"))?;
    }
    sheet.paragraph(if huge.granted { GOOD } else { NOTE }, "explicit", &huge.summary)?;
    if let Some(cure) = &huge.cure {
        sheet.cure("to get them", cure)?;
    }
    for pool in &huge.pools {
        let value = format!("{} of {} free", number(pool.free), number(pool.total));
        let remark = format!("{} available now", number(pool.obtainable));
        sheet.line(&format!("pool of {}", Bytes::new(pool.page_bytes)), &value, &remark)?;
    }
    unknown(sheet, &huge.unknown)
}

fn limits(sheet: &mut Sheet<'_>, limits: &LimitSection) -> io::Result<()> {
    let bytes = |value: u64| Bytes::new(value).to_string();
    let count = |value: u64| value.to_string();
    let locked = match limits.locks_freely {
        Some(true) => "pinned memory; this user may lock more",
        _ => "the limit of pinned memory",
    };
    let threads = match limits.spawns_freely {
        Some(true) => "one for each stream; this user may have more",
        _ => "one for each stream; all of this user's count",
    };
    let rows = [
        ("locked memory", limit(limits.locked_memory, bytes), locked),
        ("open files", limit(limits.open_files, count), "one for each page shared with others"),
        ("threads", limit(limits.threads, count), threads),
        ("address space", limit(limits.address_space, bytes), "regions are reserved from it"),
        ("file size", limit(limits.file_size, bytes), "pages are kept in a memory file"),
        ("mappings", number(limits.max_map_count), "each mapped page may need one"),
        (
            "overcommit",
            limits.overcommit.unwrap_or("unknown").to_owned(),
            "how the system promises memory",
        ),
    ];
    for (label, value, remark) in rows {
        sheet.line(label, &value, remark)?;
    }
    let mut remark = match &limits.processors_allowed {
        Some(list) => format!("may run on {list}"),
        None => String::new(),
    };
    if let Some(quota) = limits.processor_quota_hundredths {
        let (whole, part) = (quota / 100, quota % 100);
        remark.push_str(&format!("; the container allows the time of {whole}.{part:02}"));
    }
    sheet.line("processors", &number(limits.processors), &remark)?;
    unknown(sheet, &limits.unknown)
}

/// What pools go by, and where each value came from; then what this command goes by.
fn settings(sheet: &mut Sheet<'_>, report: &Report) -> io::Result<()> {
    let of = |owner: Owner| report.settings.iter().filter(move |setting| setting.of == owner);
    sheet.title("Settings in force")?;
    for setting in of(Owner::Pool) {
        sheet.line(setting.name, setting.value.as_deref().unwrap_or("not set"), &setting.whence)?;
    }
    if !report.ignored_settings.is_empty() {
        let names = report.ignored_settings.join(", ");
        let text = format!("{names}: not a setting of this version, and ignored");
        sheet.paragraph(NOTE, "not read", &text)?;
    }
    sheet.title("Variables of this command")?;
    of(Owner::Command).try_for_each(|setting| variable(sheet, setting))
}

fn variable(sheet: &mut Sheet<'_>, setting: &Setting) -> io::Result<()> {
    let value = match &setting.value {
        None => "not set".to_owned(),
        // Two for the quotes, which show where it begins and ends.
        Some(value) => {
            let room = sheet.value_room().saturating_sub(2);
            format!("\"{}\"", shortened(&value.escape_debug().to_string(), room))
        }
    };
    sheet.line(setting.name, &value, setting.effect)
}

fn problems(sheet: &mut Sheet<'_>, report: &Report) -> io::Result<()> {
    if report.problems.is_empty() {
        return Ok(());
    }
    sheet.title("Problems and how to fix them")?;
    for (index, problem) in report.problems.iter().enumerate() {
        sheet.item(BAD, index + 1, &problem.what)?;
        sheet.under_item(&problem.why)?;
        sheet.item_cure(&problem.cure)?;
    }
    Ok(())
}

/// What would help the recorded run, each with its gain.
fn run(sheet: &mut Sheet<'_>, report: &Report) -> io::Result<()> {
    let Some(run) = &report.run else { return Ok(()) };
    sheet.title(&format!("Advice on {}", plain(&run.trace)))?;
    if run.advice.is_empty() {
        sheet.note(QUIET, "nothing stands out in this run")?;
    }
    for (index, advice) in run.advice.iter().enumerate() {
        sheet.item(NOTE, index + 1, &advice.title)?;
        sheet.under_item(&advice.text)?;
        if let Some(gain) = &advice.gain {
            sheet.under_item(&format!("gain, measured by replay: {gain}"))?;
        }
    }
    Ok(())
}

fn unknown(sheet: &mut Sheet<'_>, reasons: &[Unread]) -> io::Result<()> {
    reasons.iter().try_for_each(|reason| sheet.paragraph(NOTE, "unknown", &reason.to_string()))
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
