//! The post-mortem of a refused request (the setting `oom_report`): the figures as text, and in a second file the
//! snapshot that `forebay report` renders. Written after the call, with no lock held.

use core::fmt::Write as _;
use core::time::Duration;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Bytes, counted};

use crate::pool::calls::registry;
use crate::pool::inner::PoolInner;
use crate::pool::turn::with_turn;
use crate::pool::views::snapshot::{self, OtherPoolSnapshot, RefusalSnapshot, Snapshot};
use crate::pool::views::statistics;
use crate::report::{ReportFile, Shortage, Stack};
use crate::sync::map::Side;
use crate::whole_file::write_whole;
use crate::{Request, Tag};

/// The shortest time between two reports of refusals. A program that goes on after refusals may have thousands per
/// second.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// How many blocks and holes the text lists.
const LISTED: usize = 20;

/// Writes the report of a refusal, if the setting `oom_report` says where and the last one is old enough.
#[cold]
pub(super) fn report_refusal(
    pool: &PoolInner,
    request: Request,
    shortage: &Shortage,
) -> Option<ReportFile> {
    let settings = pool.settings().clone();
    let path = settings.oom_report()?;
    {
        let mut upkeep = pool.upkeep();
        let is_early = |last: Instant| last.elapsed() < BETWEEN_REPORTS;
        if upkeep.last_report.is_some_and(is_early) {
            return None;
        }
        upkeep.last_report = Some(Instant::now());
    }
    let stack = Stack::capture();
    let mut taken = snapshot::of(pool, &settings);
    let stack = taken.add_stack(stack);
    taken.refusal = Some(refusal(pool, request, shortage, stack));
    let written = write_text(&path, &text(pool, &taken, shortage));
    let written = written.and_then(|()| write_text(&beside(&path), &taken.to_json()));
    // Naming stacks and writing may take longer than the pause.
    pool.upkeep().last_report = Some(Instant::now());
    Some(written.map_or_else(|failed| failed, |()| ReportFile { path, failure: None }))
}

fn refusal(
    pool: &PoolInner,
    request: Request,
    shortage: &Shortage,
    stack: Option<usize>,
) -> RefusalSnapshot {
    let mut remedies = shortage.remedies();
    let other_pools = other_pools(pool);
    let helpful = |other: &&OtherPoolSnapshot| {
        other.free_bytes > 0 && shortage.is_helped_by(other.shares_limit)
    };
    for other in other_pools.iter().filter(helpful) {
        let free = Bytes::new(other.free_bytes);
        remedies.push(format!(
            "Pool {} holds {free} in no live block; trimming it returns what of that is in whole pages.",
            other.pool
        ));
    }
    RefusalSnapshot {
        requested_bytes: shortage.requested.get(),
        needed_bytes: shortage.needed.get(),
        side: if Side::of(request.size) == Side::Small { "small" } else { "large" }.into(),
        alignment_bytes: request.alignment.bytes().get(),
        stream: request.stream.0,
        tag: Tag::current().name(),
        stack,
        cause: shortage.cause.name().into(),
        message: shortage.to_string(),
        remedies,
        limit_bytes: shortage.limit.get(),
        held_bytes: shortage.held.get(),
        live_bytes: shortage.live.get(),
        cached_bytes: shortage.cached.get(),
        free_bytes: shortage.free.get(),
        free_pages_bytes: shortage.free_pages.get(),
        largest_free_bytes: shortage.largest_free.get(),
        fits_bytes: shortage.fits.get(),
        enough_limit_bytes: shortage.enough_limit.map(Bytes::get),
        device_free_bytes: shortage.device_free.get(),
        held_elsewhere_bytes: shortage.held_elsewhere.get(),
        held_by_group_bytes: shortage.held_by_group.get(),
        other_pools,
    }
}

/// The other pools of this process with the same memory of the same device. Without driver calls.
fn other_pools(pool: &PoolInner) -> Vec<OtherPoolSnapshot> {
    let snapshot = |other: &PoolInner| {
        if other.source.descriptor().name != pool.source.descriptor().name {
            return None;
        }
        let figures = statistics::of(other);
        Some(OtherPoolSnapshot {
            pool: other.id.0,
            held_bytes: figures.held.get(),
            free_bytes: figures.free.get(),
            shares_limit: Arc::ptr_eq(&other.group, &pool.group),
        })
    };
    let pools = registry::all_of(&pool.device);
    let others = pools.iter().filter(|(id, _)| *id != pool.id);
    others.filter_map(|(id, other)| with_turn(*id, other, snapshot)?).collect()
}

fn text(pool: &PoolInner, taken: &Snapshot, shortage: &Shortage) -> String {
    let mut text = format!("forebay: {} refused a request\n\n{shortage}\n", pool.id);
    let Some(refusal) = &taken.refusal else { return text };
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "\nthe request: {} B on stream {:#x}, tag {}\n",
        refusal.requested_bytes, refusal.stream, refusal.tag
    );
    write_stack(&mut text, taken, refusal.stack);
    let _ = writeln!(text, "\nwhat would have helped:");
    for remedy in &refusal.remedies {
        let _ = writeln!(text, "  {remedy}");
    }
    let mut holes: Vec<_> = taken.holes.iter().collect();
    holes.sort_by_key(|hole| core::cmp::Reverse(hole.size_bytes));
    let all = counted(holes.len() as u64 + taken.holes_left_out, "hole");
    let _ = writeln!(text, "\n{all}, the largest first:");
    for hole in holes.iter().take(LISTED) {
        let size = Bytes::new(hole.size_bytes);
        let _ = writeln!(text, "  {:#x}  {size}  among {} blocks", hole.address, hole.side);
    }
    let _ = write!(text, "\n{}\n\nlargest live blocks:\n", statistics::of(pool));
    for block in taken.blocks.iter().take(LISTED) {
        let (size, tag) = (Bytes::new(block.requested_bytes), &block.tag);
        let _ = write!(text, "  {:#x}  {size}  {tag}", block.address);
        if let Some(age) = block.age_ms {
            let _ = write!(text, "  {:.1?} old", Duration::from_millis(age));
        }
        text.push('\n');
        write_stack(&mut text, taken, block.stack);
    }
    text
}

/// The lines of a stack, indented.
fn write_stack(text: &mut String, taken: &Snapshot, stack: Option<usize>) {
    let lines = stack.and_then(|stack| taken.stacks.get(stack)).map(|lines| lines.lines());
    for line in lines.into_iter().flatten() {
        let _ = writeln!(text, "      {line}");
    }
}

/// Writes a file of a report, or says which could not be written and why. Others may share the folder, so a link at its
/// name is replaced, not followed.
fn write_text(path: &Path, text: &str) -> Result<(), ReportFile> {
    write_whole(path, |out| out.write_all(text.as_bytes())).map_err(|error| {
        let failure = Some(error.to_string());
        ReportFile { path: path.to_owned(), failure }
    })
}

/// The file of the snapshot that belongs to a report.
fn beside(path: &Path) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".json");
    path.with_file_name(name)
}
