//! Memory snapshots of PyTorch: `torch.cuda.memory._dump_snapshot`.
//!
//! ```text
//!   device_traces[d][...]   what happened, oldest first, as far back as the history reaches
//!   segments[...].blocks    what there was at the end
//! ```
//!
//! A block is allocated by `alloc` and freed by the program at `free_requested`; `free_completed`, when the allocator
//! may reuse its memory, is not an event. A block that is freed without an `alloc`, or live at the end without one, was
//! live before the history began: such blocks are allocated first. `oom` is noted as a remark. The program's note on an
//! allocation (`user_metadata`) becomes its tag.

mod write;

pub(super) use write::write;

use std::collections::{BTreeMap, HashSet};
use std::io::BufRead;

use forebay_core::Bytes;

use super::details::date;
use super::pickle::{self, Heap, ValueId};
use super::{Format, FormatError, Intake, Position, ReadOptions};
use crate::{SourceNotes, Trace};

/// How many frames of a call stack are kept.
const MAX_FRAMES: usize = 32;

/// The entry of snapshots that forebay wrote, and of the settings in those that PyTorch wrote under forebay.
const OWN: &str = "forebay";

/// The microseconds from 1970 to 2000: a clock below that is one that began with the recording.
const FIRST_DATE: u64 = 946_684_800_000_000;

/// How many bytes of a call stack are kept.
const MAX_TEXT: usize = 1 << 10;

pub(super) fn read(
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Trace, FormatError> {
    let bytes = super::whole(input, options)?;
    let (heap, root) = pickle::load(&bytes, options.values)?;
    let snapshot = Snapshot { heap, root };
    let own = snapshot.heap.entry(root, OWN);
    let device = match own {
        // The only one there is, with a history or without.
        Some(_) if options.device.is_none() => 0,
        _ => snapshot.device(options.device)?,
    };
    // Lists can be shared, and a small file could name one event a billion times over. A file that
    // means it has at least a byte for each.
    let options = options.events(options.events.min(bytes.len() as u64));
    let entries = snapshot.history(device)?;
    let mut intake = Intake::new(name, Format::Snapshot, &options);
    let before = snapshot.live_before(device, entries, options.events)?;
    for (&address, start) in &before {
        intake.event(start.at, |builder| builder.allocate(address, start.size, start.stream))?;
        if let Some(block) = start.block {
            intake.builder.stack(&snapshot.stack(block));
        }
    }
    intake.builder.remarks().live_at_start = before.len() as u64;
    let mut begun = None;
    for &entry in entries {
        let record = snapshot.record(entry)?;
        let Record { at, key, size, stream, .. } = record;
        match record.action {
            Action::Allocate => {
                intake.event(at, |builder| builder.allocate(key, size, stream))?;
                intake.builder.stack(&snapshot.stack(entry));
                intake.builder.tag(&snapshot.text(entry, "user_metadata"));
            }
            Action::Free => intake.event(at, |builder| builder.free(key, stream))?,
            Action::OutOfMemory => intake.builder.remarks().failed_allocations += 1,
            Action::Other => {}
        }
        if let Ok(time) = snapshot.number(entry, "time_us")
            && !intake.builder.is_empty()
        {
            let began = *begun.get_or_insert(time);
            let since = time.saturating_sub(began);
            intake.builder.time(since.saturating_mul(1000));
        }
    }
    let notes = intake.builder.remarks();
    let began = begun.filter(|&began| began >= FIRST_DATE);
    notes.began = date(began.map_or(0, |began| began.saturating_mul(1000)));
    // Under forebay PyTorch's snapshots have its settings among the allocator's.
    let settings = snapshot.heap.entry(root, "allocator_settings");
    notes.of_forebay =
        settings.is_some_and(|settings| snapshot.heap.entry(settings, OWN).is_some());
    let trace = match own {
        None => intake.builder.finish(),
        Some(own) => {
            let number = |key| snapshot.number(own, key).unwrap_or(0);
            *intake.builder.remarks() = SourceNotes {
                failed_allocations: number("failed_allocations"),
                live_at_start: number("live_at_start"),
                began: date(number("began_unix_ns")),
                of_forebay: number("of_forebay") == 1,
            };
            let name = snapshot.text(own, "name");
            let trace = intake.builder.finish();
            if name.is_empty() { trace } else { trace.named(name) }
        }
    };
    Ok(trace)
}

/// What an entry of the history says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The program got a block.
    Allocate,
    /// The program gave a block back.
    Free,
    /// The program asked in vain.
    OutOfMemory,
    /// Something between the allocator and the driver.
    Other,
}

/// An entry of the history.
#[derive(Clone, Copy, Debug)]
struct Record {
    at: Position,
    action: Action,
    key: u64,
    size: Bytes,
    stream: u64,
}

/// A block from before the history.
#[derive(Clone, Copy, Debug)]
struct Start {
    at: Position,
    /// The block in its segment, which says who allocated it; one that is known by its free does not.
    block: Option<ValueId>,
    size: Bytes,
    stream: u64,
}

struct Snapshot<'a> {
    heap: Heap<'a>,
    root: ValueId,
}

impl Snapshot<'_> {
    fn broken(&self, at: ValueId, found: &str, expected: &str) -> FormatError {
        FormatError::malformed(Format::Snapshot, self.position(at), found, expected)
    }

    fn position(&self, at: ValueId) -> Position {
        Position::Byte(self.heap.place(at))
    }

    /// The list under `key`.
    fn list(&self, of: ValueId, key: &str) -> Result<&[ValueId], FormatError> {
        let items = self.heap.entry(of, key).and_then(|value| self.heap.items(value));
        items.ok_or_else(|| {
            self.broken(of, &format!("no list \"{key}\""), "a dictionary that has one")
        })
    }

    /// The number under `key`, which is never negative.
    fn number(&self, of: ValueId, key: &str) -> Result<u64, FormatError> {
        let number = self.heap.entry(of, key).and_then(|value| self.heap.integer(value));
        number.ok_or_else(|| {
            let found = format!("no number \"{key}\" from 0 up to 64 bits");
            self.broken(of, &found, "a dictionary that has one")
        })
    }

    /// The text under `key`, as far as it is kept; empty if there is none.
    fn text(&self, of: ValueId, key: &str) -> String {
        let text = self.heap.entry(of, key).and_then(|value| self.heap.text(value));
        let text = text.unwrap_or_default();
        String::from_utf8_lossy(text.get(..MAX_TEXT).unwrap_or(text)).into_owned()
    }

    /// The events of a device.
    fn history(&self, device: usize) -> Result<&[ValueId], FormatError> {
        let histories = self.list(self.root, "device_traces")?;
        let history = histories.get(device).copied();
        history.and_then(|history| self.heap.items(history)).ok_or_else(|| {
            let expected = format!("one of the {} devices in it", histories.len());
            self.broken(self.root, &format!("no history of device {device}"), &expected)
        })
    }

    /// The device asked for, or the only one with a history.
    fn device(&self, wanted: Option<u32>) -> Result<usize, FormatError> {
        if let Some(wanted) = wanted {
            return Ok(wanted as usize);
        }
        let histories = self.list(self.root, "device_traces")?;
        let has_events =
            |history: ValueId| self.heap.items(history).is_some_and(|entries| !entries.is_empty());
        let devices: Vec<usize> = histories
            .iter()
            .enumerate()
            .filter(|&(_, &history)| has_events(history))
            .map(|(device, _)| device)
            .take(9)
            .collect();
        match devices.as_slice() {
            [device] => Ok(*device),
            [] => Err(self.broken(
                self.root,
                "no history of any device",
                "one: call torch.cuda.memory._record_memory_history() before the run",
            )),
            several => {
                let names: Vec<String> = several.iter().map(usize::to_string).collect();
                let found = format!("histories of devices {}", names.join(", "));
                Err(self.broken(self.root, &found, "to be told which of them to take"))
            }
        }
    }

    /// An entry of the history.
    fn record(&self, entry: ValueId) -> Result<Record, FormatError> {
        let action = self.heap.entry(entry, "action").and_then(|action| self.heap.text(action));
        let action = match action {
            Some(b"alloc") => Action::Allocate,
            Some(b"free_requested" | b"free") => Action::Free,
            Some(b"oom") => Action::OutOfMemory,
            Some(_) => Action::Other,
            None => return Err(self.broken(entry, "no action", "a dictionary with an \"action\"")),
        };
        let at = self.position(entry);
        let plain = |action| Record { at, action, key: 0, size: Bytes::ZERO, stream: 0 };
        Ok(match action {
            Action::Allocate | Action::Free => Record {
                at,
                action,
                key: self.number(entry, "addr")?,
                size: Bytes::new(self.number(entry, "size")?),
                stream: self.number(entry, "stream")?,
            },
            other => plain(other),
        })
    }

    /// The call stack of an entry or block, innermost first; empty if it has none.
    fn stack(&self, of: ValueId) -> String {
        let frames = self.heap.entry(of, "frames").and_then(|frames| self.heap.items(frames));
        let mut text = String::new();
        for &frame in frames.unwrap_or_default().iter().take(MAX_FRAMES) {
            let part = |key| self.heap.entry(frame, key).and_then(|part| self.heap.text(part));
            let [name, file] = ["name", "filename"].map(|key| part(key).unwrap_or_default());
            // Before any of it is copied: a file may name one long text a million times.
            if text.len() + name.len() + file.len() > MAX_TEXT {
                break;
            }
            let line = self.heap.entry(frame, "line").and_then(|line| self.heap.integer(line));
            let [name, file] = [name, file].map(String::from_utf8_lossy);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&name);
            if !file.is_empty() {
                text.push_str(&format!(" {file}:{}", line.unwrap_or(0)));
            }
        }
        text
    }

    /// The blocks that were live before the first entry, by address.
    fn live_before(
        &self,
        device: usize,
        entries: &[ValueId],
        most: u64,
    ) -> Result<BTreeMap<u64, Start>, FormatError> {
        let mut before: BTreeMap<u64, Start> = BTreeMap::new();
        let mut seen: HashSet<u64> = HashSet::new();
        let mut live: HashSet<u64> = HashSet::new();
        for &entry in entries {
            let Record { at, action, key, size, stream } = self.record(entry)?;
            match action {
                Action::Allocate => {
                    seen.insert(key);
                    live.insert(key);
                }
                Action::Free => {
                    if !live.remove(&key) && seen.insert(key) {
                        before.insert(key, Start { at, block: None, size, stream });
                    }
                }
                Action::OutOfMemory | Action::Other => {}
            }
        }
        let mut looked = 0_u64;
        for &segment in self.list(self.root, "segments")? {
            if self.number(segment, "device")? != device as u64 {
                continue;
            }
            let stream = self.number(segment, "stream")?;
            for &block in self.list(segment, "blocks")? {
                looked += 1;
                if looked > most {
                    return Err(FormatError::TooLarge { what: "blocks", limit: most });
                }
                let state = self.heap.entry(block, "state").and_then(|id| self.heap.text(id));
                if state != Some(b"active_allocated") {
                    continue;
                }
                let key = self.number(block, "address")?;
                if live.contains(&key) || before.contains_key(&key) {
                    continue;
                }
                // Snapshots of older versions know only the rounded size.
                let size = self.number(block, "requested_size");
                let size = Bytes::new(size.or_else(|_| self.number(block, "size"))?);
                let start = Start { at: self.position(block), block: Some(block), size, stream };
                before.insert(key, start);
            }
        }
        Ok(before)
    }
}

#[cfg(test)]
mod tests;
