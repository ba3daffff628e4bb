//! Chrome's trace events as JSON, for Perfetto (ui.perfetto.dev) and chrome://tracing. Written only.
//!
//! ```text
//!   counters        what was requested, and what forebay's pool would hold: the most of each of 16,384 spans
//!   async slices    blocks: the 16,384 with the most bytes times events, named by their owners
//!   slices          transfers: the first 16,384
//! ```
//!
//! The size is bounded for any recording; `otherData` says what was left out. Without a clock an event takes a
//! microsecond.

use std::io::{self, Write};
use std::sync::Arc;

use forebay::PoolOptions;
use forebay_core::Bytes;
use forebay_hal::Device;
use forebay_sim::{MemoryModel, SimMachine};

use crate::{
    BlockIndex, Event, Moment, PoolPlayer, ReplayOptions, StreamIndex, Trace, Transfer,
    TransferDirection, replay,
};

/// The most points of a counter, blocks and transfers.
const MAX: usize = 1 << 14;

/// The most bytes of call stacks.
const MAX_STACKS: usize = 4 << 20;

/// The most characters of a name.
const LONGEST_NAME: usize = 100;

/// The memory of the device that the run is played on: more than any has.
const CAPACITY: Bytes = Bytes::gib(1 << 10);

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let (lives, left_out) = lives(trace);
    let transfers = trace.transfers();
    let named = json(trace.name());
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"schema\":\"forebay.chrome.v1\",")?;
    write!(out, "\"name\":{named},\"events\":{},\"blocks_left_out\":{left_out},", trace.len())?;
    let transfers_left_out = transfers.len().saturating_sub(MAX);
    let clock = if trace.time(0).is_some() { "recorded" } else { "an event a microsecond" };
    writeln!(out, "\"transfers_left_out\":{transfers_left_out},\"clock\":\"{clock}\"}},")?;
    write!(out, "\"traceEvents\":[\n{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",")?;
    write!(out, "\"args\":{{\"name\":{named}}}}}")?;
    for direction in [TransferDirection::Upload, TransferDirection::Download] {
        let (tid, name) = (thread(direction), direction.name());
        write!(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"thread_name\",")?;
        write!(out, "\"args\":{{\"name\":\"{name}s\"}}}}")?;
    }
    counters(trace, out)?;
    let mut stacks = MAX_STACKS;
    for life in lives {
        block(trace, &life, &mut stacks, out)?;
    }
    for transfer in transfers.iter().take(MAX) {
        slice(transfer, out)?;
    }
    writeln!(out, "\n]}}")?;
    out.flush()
}

/// Microseconds of an event, to the nanosecond.
fn time(trace: &Trace, event: usize) -> String {
    micros(trace.time(event).map_or(event as u128 * 1000, |time| time.as_nanos()))
}

fn micros(nanos: u128) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// The most of each span of events.
struct Spans {
    per: usize,
    most: Vec<(usize, u64)>,
}

impl Spans {
    fn of(trace: &Trace) -> Self {
        Self { per: trace.len().div_ceil(MAX).max(1), most: Vec::new() }
    }

    fn note(&mut self, event: usize, value: Bytes) {
        match self.most.last_mut() {
            Some((begin, most)) if event - *begin < self.per => *most = value.get().max(*most),
            _ => self.most.push((event, value.get())),
        }
    }

    fn write(&self, name: &str, trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
        for &(event, value) in &self.most {
            let time = time(trace, event);
            write!(out, ",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{time},\"name\":\"{name}\",")?;
            write!(out, "\"args\":{{\"bytes\":{value}}}}}")?;
        }
        Ok(())
    }
}

/// Both counters. What the pool holds is left out where the run cannot be played.
fn counters(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let (mut requested, mut held) = (Spans::of(trace), Spans::of(trace));
    let mut live = Bytes::ZERO;
    for (at, event) in trace.events().enumerate() {
        live = match event {
            Event::Allocate { size, .. } => live.saturating_add(size),
            Event::Free { block, .. } => live.saturating_sub(trace.size(block)),
        };
        requested.note(at, live);
    }
    requested.write("requested", trace, out)?;
    let mut observe = |moment: Moment<'_>| held.note(moment.index, moment.player.reserved());
    match play(trace, &mut observe) {
        Some(()) => held.write("held by forebay", trace, out),
        None => Ok(()),
    }
}

/// Plays the run once on a simulated device.
fn play(trace: &Trace, observe: &mut dyn FnMut(Moment<'_>)) -> Option<()> {
    let options = SimMachine::builder().memory(MemoryModel::Phantom).checked(false);
    let device: Arc<dyn Device> = options.capacity(CAPACITY).build().ok()?.device(0)?;
    let mut player = PoolPlayer::with(device, PoolOptions::new()).ok()?;
    replay(trace, &mut player, ReplayOptions::new().passes(1).observe(observe)).ok().map(|_| ())
}

/// A block from its allocation to its free.
struct Life {
    block: BlockIndex,
    stream: StreamIndex,
    born: usize,
    /// `None` if it was not freed.
    freed: Option<usize>,
}

/// The blocks that are shown, in order, and how many are not.
fn lives(trace: &Trace) -> (Vec<Life>, usize) {
    let mut lives: Vec<Life> = Vec::with_capacity(trace.blocks());
    for (at, event) in trace.events().enumerate() {
        match event {
            Event::Allocate { block, stream, .. } => {
                lives.push(Life { block, stream, born: at, freed: None });
            }
            Event::Free { block, .. } => {
                if let Some(life) = lives.get_mut(block.0 as usize) {
                    life.freed = Some(at);
                }
            }
        }
    }
    let left_out = lives.len().saturating_sub(MAX);
    if left_out > 0 {
        lives.sort_by_key(|life| {
            let events = life.freed.unwrap_or(trace.len()) - life.born;
            let area = u128::from(trace.size(life.block).get()) * events as u128;
            (core::cmp::Reverse(area), life.block)
        });
        lives.truncate(MAX);
        lives.sort_by_key(|life| life.block);
    }
    (lives, left_out)
}

fn block(trace: &Trace, life: &Life, stacks: &mut usize, out: &mut dyn Write) -> io::Result<()> {
    let (block, size) = (life.block, trace.size(life.block));
    let owner = trace.tag(block).or_else(|| trace.stack(block)?.lines().next());
    let name = owner.map_or_else(|| size.to_string(), str::to_owned);
    let name = json(&name.chars().take(LONGEST_NAME).collect::<String>());
    let common =
        format!("\"cat\":\"block\",\"id\":\"{:#x}\",\"pid\":1,\"tid\":0,\"name\":{name}", block.0);
    let handle = trace.handle(life.stream);
    let mut told = format!("\"bytes\":{},\"stream\":\"{handle:#x}\"", size.get());
    if let Some(thread) = trace.thread(life.born) {
        told.push_str(&format!(",\"thread\":{thread}"));
    }
    if let Some(stack) = trace.stack(block)
        && let Some(left) = stacks.checked_sub(stack.len())
    {
        *stacks = left;
        told.push_str(&format!(",\"stack\":{}", json(stack)));
    }
    let begin = time(trace, life.born);
    write!(out, ",\n{{\"ph\":\"b\",\"ts\":{begin},{common},\"args\":{{{told}}}}}")?;
    // What was not freed lives to the last event.
    let end = time(trace, life.freed.unwrap_or(trace.len().saturating_sub(1)));
    write!(out, ",\n{{\"ph\":\"e\",\"ts\":{end},{common}}}")
}

/// The line that transfers of a direction are drawn on.
fn thread(direction: TransferDirection) -> u8 {
    match direction {
        TransferDirection::Upload => 1,
        TransferDirection::Download => 2,
    }
}

fn slice(transfer: &Transfer, out: &mut dyn Write) -> io::Result<()> {
    let (tid, name) = (thread(transfer.direction), transfer.direction.name());
    let begin = micros(transfer.begin.as_nanos());
    let took = micros(transfer.end.saturating_sub(transfer.begin).as_nanos());
    write!(out, ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{tid},\"ts\":{begin},\"dur\":{took},")?;
    let bytes = transfer.bytes.get();
    write!(out, "\"cat\":\"transfer\",\"name\":\"{name}\",\"args\":{{\"bytes\":{bytes}}}}}")
}

/// A text of JSON.
fn json(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}
