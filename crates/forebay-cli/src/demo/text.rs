//! The results for people.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use forebay_core::{Bytes, counted};

use super::{Saving, Story};
use crate::layout::{BAD, NOTE, QUIET, TITLE, grouped, paragraph, titled};
use crate::output::Width;
use crate::replay::DeviceName;
use crate::replay::time;

const GOOD: Style = AnsiColor::Green.on_default().bold();
const PLAIN: Style = Style::new();

/// The columns before a bar, and after it.
const BEFORE: usize = 20;
const AFTER: usize = 38;

/// Everything, from what is played to what to do next.
pub(super) fn tell(story: &Story, width: Width, out: &mut impl Write) -> io::Result<()> {
    what(story, width, out)?;
    here(story, width, out)?;
    there(story, width, out)?;
    saved(story, width, out)?;
    pair(story, width, out)?;
    next(out)?;
    page(story, width, out)
}

fn what(story: &Story, width: Width, out: &mut impl Write) -> io::Result<()> {
    let sums = &story.sums;
    let about = format!("{}: ten steps of training GPT-2 on an NVIDIA H200", story.trace);
    titled(("A recorded run", TITLE), &about, width, out)?;
    let text = format!(
        "{} and {}; at most {} requested at once",
        counted(sums.allocations, "allocation"),
        counted(sums.frees, "free"),
        sums.peak_requested
    );
    paragraph(Style::new(), &text, 2, width, out)?;
    for setting in &story.left_aside {
        let text = format!("ignored, because the demo runs at the defaults: {setting}");
        paragraph(NOTE, &text, 2, width, out)?;
    }
    writeln!(out)
}

/// What the pool does with it on this machine.
fn here(story: &Story, width: Width, out: &mut impl Write) -> io::Result<()> {
    let [cold, warm] = story.here.as_slice() else { return Ok(()) };
    let device = match cold.device {
        DeviceName::HOST => "this machine's own memory",
        DeviceName::SIM => "a simulated device, as this machine has too little free memory",
        _ => "this machine's GPU",
    };
    titled(("Replayed here", TITLE), &format!("forebay's pool on {device}"), width, out)?;
    for (row, said) in [(cold, "first pass"), (warm, "second pass")] {
        let text = format!(
            "{said:12} {}, {}; {}; {:.0} ns/op",
            Bytes::new(row.peak_reserved_bytes),
            match row.ooms {
                0 => format!("{:.2} % overhead", (row.ratio - 1.0) * 100.0),
                short => format!("{} failed", counted(short, "allocation")),
            },
            counted(row.driver_calls, "driver call"),
            row.mean_ns
        );
        paragraph(Style::new(), &text, 2, width, out)?;
    }
    writeln!(out)
}

/// The comparison: what each takes, as bars.
fn there(story: &Story, width: Width, out: &mut impl Write) -> io::Result<()> {
    let about = "simulated; models of the others; driver calls priced by a cost table";
    titled(("On an H200", TITLE), about, width, out)?;
    writeln!(
        out,
        "  {QUIET}{:BEFORE$}{}{:>12}{:>12}{:>12}{QUIET:#}",
        "allocator",
        " ".repeat(bar_width(width)),
        "memory",
        "overhead",
        "driver"
    )?;
    let most = story.there.iter().map(|row| row.peak_reserved_bytes).max().unwrap_or(1).max(1);
    for row in story.there.iter().filter(|row| row.pass == 1) {
        let whole = story.is_whole(row.policy);
        let style = match row.policy {
            _ if !whole => BAD,
            "forebay" => GOOD,
            _ => PLAIN,
        };
        let both = story.pass(row.policy, 2).map_or(0, |second| second.driver_ns);
        writeln!(
            out,
            "  {style}{:BEFORE$}{}{:>12}{:>12}{:>12}{style:#}",
            name(row.policy),
            bar(row.peak_reserved_bytes, most, bar_width(width)),
            Bytes::new(row.peak_reserved_bytes).to_string(),
            // What takes less because it got less is beyond nothing.
            match whole {
                true => format!("{:.2} %", (row.ratio - 1.0) * 100.0),
                false => "failed".to_owned(),
            },
            time(row.driver_ns.saturating_add(both)),
        )?;
    }
    let asked = story.sums.peak_requested;
    writeln!(
        out,
        "  {QUIET}{:BEFORE$}{}{:>12}{QUIET:#}\n",
        "requested",
        bar(asked.get(), most, bar_width(width)),
        asked.to_string()
    )
}

/// What people call the policies.
fn name(policy: &'static str) -> &'static str {
    match policy {
        "torch" => "PyTorch",
        "torch-expandable" => "PyTorch expandable",
        "pow2" => "powers of two",
        "direct" => "driver, each time",
        other => other,
    }
}

fn bar_width(width: Width) -> usize {
    width.columns().saturating_sub(2 + BEFORE + AFTER).max(4)
}

/// A bar of eighths of a column, so long that `most` would fill it.
fn bar(bytes: u64, most: u64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = u128::from(bytes) * columns as u128 * 8 / u128::from(most.max(1));
    let eighths = usize::try_from(eighths).unwrap_or(usize::MAX).min(columns * 8);
    let (full, rest) = (eighths / 8, eighths % 8);
    let part = EIGHTHS.get(rest).copied().unwrap_or_default();
    let used = full + usize::from(rest > 0);
    format!("{}{part}{}", "█".repeat(full), " ".repeat(columns - used))
}

fn saved(story: &Story, width: Width, out: &mut impl Write) -> io::Result<()> {
    let savings = story.savings();
    if savings.is_empty() {
        let why = "not known, because allocations failed";
        return writeln!(out, "{TITLE}What forebay saves{TITLE:#}  {BAD}{why}{BAD:#}\n");
    }
    let about = "memory, and time in the driver over two passes, against:";
    titled(("What forebay saves", TITLE), about, width, out)?;
    for saving in &savings {
        writeln!(
            out,
            "  {:BEFORE$}{:>15}{:>18}{:>9}{:>15}",
            name(saving.policy),
            than(saving.bytes, |bytes| Bytes::new(bytes).to_string()),
            format!("{} B", grouped(amount(saving.bytes))),
            format!("{:.1} %", saving.share.abs() * 100.0),
            than(saving.driver_ns, time),
        )?;
    }
    let words = savings.iter().find(|saving| saving.policy == "torch").and_then(in_words);
    words.map_or(Ok(()), |words| writeln!(out, "  {words}"))?;
    writeln!(out)
}

/// How much, whichever way it goes.
fn amount(value: i128) -> u64 {
    u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX)
}

/// "1.37 GiB less", "9.8 ms more", "the same".
fn than(saved: i128, said: impl Fn(u64) -> String) -> String {
    match saved {
        0 => "the same".to_owned(),
        less if less > 0 => format!("{} less", said(amount(less))),
        more => format!("{} more", said(amount(more))),
    }
}

/// What the saving means. `None` where nothing is saved.
fn in_words(saving: &Saving) -> Option<String> {
    (saving.bytes > 0).then(|| {
        let left = Bytes::new(amount(saving.bytes));
        format!("In the memory that PyTorch takes for this run, forebay leaves {left} free.")
    })
}

fn pair(story: &Story, width: Width, out: &mut impl Write) -> io::Result<()> {
    let (Some(ours), Some(yardstick)) = (story.pair("forebay"), story.pair("mimalloc")) else {
        return Ok(());
    };
    let about = "allocating a block that was just freed, and freeing it again";
    titled(("A hot pair", TITLE), about, width, out)?;
    let line = |out: &mut dyn Write, name: &str, figure: String, said: &str| {
        writeln!(out, "  {name:BEFORE$}{figure:>12}  {QUIET}{said}{QUIET:#}")
    };
    let figure =
        |ns: Option<f64>| ns.map_or_else(|| "failed".to_owned(), |ns| format!("{ns:.1} ns"));
    let size = format!("forebay, {}", ours.case);
    let times = ours.quotient.map_or_else(String::new, |times| format!("{times:.1}x mimalloc"));
    line(out, &size, figure(ours.ns_per_op), &format!("here; {times}"))?;
    line(
        out,
        "mimalloc, 512 B",
        figure(yardstick.ns_per_op),
        "here, in the same run: host memory",
    )?;
    line(out, "the driver", time(story.driver_pair_ns), "on the H200, by its cost table")?;
    writeln!(out)
}

/// What to do next, as it can be pasted.
fn next(out: &mut impl Write) -> io::Result<()> {
    // Cargo tells programs that it runs; whoever came that way has no command of that name yet.
    let command = match std::env::var_os("CARGO") {
        Some(_) => "cargo run --release --",
        None => "forebay",
    };
    writeln!(out, "{TITLE}Next{TITLE:#}")?;
    for (what, say) in [
        ("replay SNAPSHOT.pickle", "your own run; see replay --help"),
        ("report SNAPSHOT.pickle", "a page about your own run"),
        ("bench alloc", "time all workloads here"),
        ("doctor", "check this machine"),
    ] {
        writeln!(out, "  {command} {what:24}{QUIET}{say}{QUIET:#}")?;
    }
    Ok(())
}

/// Where the page is that shows the run.
fn page(story: &Story, width: Width, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    match &story.report {
        Ok(path) => {
            titled(("Report", TITLE), "the run above, for a browser", width, out)?;
            writeln!(out, "  {}", path.display())
        }
        Err(error) => paragraph(NOTE, &format!("no report: {error}"), 0, width, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_share_and_always_as_wide() {
        assert_eq!(bar(100, 100, 4), "████");
        assert_eq!(bar(50, 100, 4), "██  ");
        assert_eq!(bar(0, 100, 4), "    ");
        assert_eq!(bar(1, 32, 4), "▏   ");
        assert_eq!(bar(u64::MAX, 1, 4), "████", "never beyond its columns");
        for bytes in 0..100 {
            assert_eq!(bar(bytes, 100, 9).chars().count(), 9);
        }
    }

    #[test]
    fn savings_are_said_either_way_round() {
        let said = |bytes| than(bytes, |bytes| Bytes::new(bytes).to_string());
        assert_eq!(said(1 << 30), "1.00 GiB less");
        assert_eq!(said(-1024), "1.00 KiB more");
        assert_eq!(said(0), "the same");
        let saving = |bytes| Saving { policy: "torch", bytes, share: 0.1, driver_ns: 0 };
        let words = in_words(&saving(1 << 30)).unwrap();
        assert!(words.contains("1.00 GiB free"), "{words}");
        assert_eq!(in_words(&saving(-1)), None);
        assert_eq!(in_words(&saving(0)), None);
    }
}
