//! Writes snapshots for PyTorch's viewer (pytorch.org/memory_viz) and `torch/cuda/_memory_viz.py`.
//!
//! The history has every event. Since a recording has no addresses, blocks are placed by [`Placement`], in one segment.
//! A tag becomes the `user_metadata` of an allocation. An entry `forebay`, which other tools ignore, has what PyTorch
//! has no place for.

use std::collections::HashMap;
use std::io::{self, Write};

use super::super::details::since_1970;
use super::super::pickle::Writer;
use super::super::placement::{BASE, Placement, room};
use super::OWN;
use crate::{BlockIndex, Event, Trace};

pub(in crate::format) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let placement = Placement::of(trace)?;
    let mut frames = Frames { trace, written: HashMap::new(), empty: None };
    let mut pickle = Writer::new(out)?;
    pickle.dictionary(|pickle| {
        pickle.text("segments")?;
        pickle.list((placement.end > BASE).then_some(()), |pickle, ()| {
            segment(pickle, trace, &placement, &mut frames)
        })?;
        pickle.text("device_traces")?;
        pickle.list([()], |pickle, ()| history(pickle, trace, &placement, &mut frames))?;
        pickle.text(OWN)?;
        pickle.dictionary(|pickle| {
            pickle.texts(&[("name", trace.name())])?;
            let remarks = trace.remarks();
            pickle.numbers(&[
                ("failed_allocations", remarks.failed_allocations),
                ("live_at_start", remarks.live_at_start),
                ("of_forebay", u64::from(remarks.of_forebay)),
                ("began_unix_ns", since_1970(remarks.began)),
            ])
        })
    })?;
    pickle.finish()
}

/// All events, each free as a request that was granted at once.
fn history(
    pickle: &mut Writer<'_>,
    trace: &Trace,
    placement: &Placement,
    frames: &mut Frames<'_>,
) -> io::Result<()> {
    let steps = trace.events().enumerate().flat_map(|(at, event)| {
        let (actions, block, stream): (&[&str], _, _) = match event {
            Event::Allocate { block, stream, .. } => (&["alloc"], block, stream),
            Event::Free { block, stream } => (&["free_requested", "free_completed"], block, stream),
        };
        actions.iter().map(move |&action| (at, action, block, stream))
    });
    pickle.list(steps, |pickle, (at, action, block, stream)| {
        pickle.dictionary(|pickle| {
            let tag = if action == "alloc" { trace.tag(block) } else { None };
            pickle.texts(&[("action", action), ("user_metadata", tag.unwrap_or_default())])?;
            pickle.numbers(&[
                ("addr", placement.address(block)),
                ("size", trace.size(block).get()),
                ("stream", trace.handle(stream)),
            ])?;
            if let Some(time) = trace.time(at) {
                let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                pickle.numbers(&[("time_us", time)])?;
            }
            frames.put(pickle, (action == "alloc").then_some(block))
        })
    })
}

/// A part of the segment: a block that is live at the end, or what is between two of them.
struct Part {
    address: u64,
    size: u64,
    block: Option<BlockIndex>,
}

/// The one segment, as it is at the end.
fn segment(
    pickle: &mut Writer<'_>,
    trace: &Trace,
    placement: &Placement,
    frames: &mut Frames<'_>,
) -> io::Result<()> {
    let mut is_live = vec![false; trace.blocks()];
    for event in trace.events() {
        let (Event::Allocate { block, .. } | Event::Free { block, .. }) = event;
        if let Some(is_live) = is_live.get_mut(block.0 as usize) {
            *is_live = matches!(event, Event::Allocate { .. });
        }
    }
    let live = (0_u32..).zip(is_live).filter(|&(_, is_live)| is_live);
    let mut live: Vec<BlockIndex> = live.map(|(block, _)| BlockIndex(block)).collect();
    live.sort_by_key(|&block| placement.address(block));
    let requested: u64 = live.iter().map(|&block| trace.size(block).get()).sum();
    let used: u64 = live.iter().map(|&block| room(trace.size(block).get())).sum();
    let mut parts = Vec::new();
    let mut at = BASE;
    for block in live {
        let (address, size) = (placement.address(block), room(trace.size(block).get()));
        if address > at {
            parts.push(Part { address: at, size: address - at, block: None });
        }
        parts.push(Part { address, size, block: Some(block) });
        at = address + size;
    }
    if placement.end > at {
        parts.push(Part { address: at, size: placement.end - at, block: None });
    }
    pickle.dictionary(|pickle| {
        pickle.numbers(&[
            ("device", 0),
            ("address", BASE),
            ("total_size", placement.end - BASE),
            ("allocated_size", used),
            ("active_size", used),
            ("requested_size", requested),
            ("stream", 0),
            ("is_expandable", 0),
        ])?;
        pickle.texts(&[("segment_type", "large")])?;
        frames.put(pickle, None)?;
        pickle.text("segment_pool_id")?;
        pickle.list([0, 0], Writer::number)?;
        pickle.text("blocks")?;
        pickle.list(parts, |pickle, part| {
            let Part { address, size, block } = part;
            pickle.dictionary(|pickle| {
                let requested = block.map_or(0, |block| trace.size(block).get());
                pickle.numbers(&[
                    ("address", address),
                    ("size", size),
                    ("requested_size", requested),
                ])?;
                let state = if block.is_some() { "active_allocated" } else { "inactive" };
                pickle.texts(&[("state", state)])?;
                frames.put(pickle, block)
            })
        })
    })
}

/// Call stacks as lists of frames, each written once.
struct Frames<'a> {
    trace: &'a Trace,
    /// By the number of the stack: its number in the pickle.
    written: HashMap<u32, u32>,
    empty: Option<u32>,
}

impl Frames<'_> {
    /// The entry `frames` of a dictionary: the stack of `block`, or of nothing.
    fn put(&mut self, pickle: &mut Writer<'_>, block: Option<BlockIndex>) -> io::Result<()> {
        pickle.text("frames")?;
        let stack = block.and_then(|block| self.trace.details().stacks.number(block));
        let known = stack.map_or(self.empty, |stack| self.written.get(&stack).copied());
        if let Some(known) = known {
            return pickle.known(known);
        }
        let text = stack.and(block).and_then(|block| self.trace.stack(block)).unwrap_or_default();
        pickle.list(text.lines(), |pickle, line| {
            let (name, file, number) = frame(line);
            pickle.dictionary(|pickle| {
                pickle.texts(&[("name", name), ("filename", file)])?;
                pickle.numbers(&[("line", number)])
            })
        })?;
        let known = pickle.remember()?;
        match stack {
            Some(stack) => _ = self.written.insert(stack, known),
            None => self.empty = Some(known),
        }
        Ok(())
    }
}

/// Function, file and line of "function file:7"; a line of another form is the function.
fn frame(line: &str) -> (&str, &str, u64) {
    let whole = (line, "", 0);
    let Some((place, number)) = line.rsplit_once(':') else { return whole };
    let Some((name, file)) = place.split_once(' ') else { return whole };
    match number.parse::<u64>() {
        Ok(parsed) if parsed.to_string() == number && !file.is_empty() => (name, file, parsed),
        _ => whole,
    }
}
