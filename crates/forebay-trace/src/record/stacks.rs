//! Call stacks of allocations: captured as addresses, resolved when the recording is finished.
//!
//! A program allocates from few places, so each stack is kept once. Capturing one takes some microseconds, resolving
//! one some milliseconds.

use core::ffi::c_void;
use std::collections::HashMap;

use crate::BlockIndex;
use crate::trace::Labels;

/// The most frames of a stack, from the first of the program on.
const MOST_FRAMES: usize = 32;

/// The most frames that are looked at.
const MOST_ADDRESSES: usize = 64;

/// The most different stacks.
const MOST_STACKS: usize = 1 << 16;

/// Beginnings of the names of innermost functions that say nothing of the program: those of this library, and of Rust's.
const OWN: [&str; 11] = [
    "forebay::",
    "forebay_trace::record::stacks::",
    "forebay_trace::record::Recorder",
    "forebay_trace::record::Intake",
    "forebay_capi::",
    "_forebay::",
    "backtrace::",
    "std::",
    "core::",
    "alloc::",
    "__rust",
];

/// The stacks of a recording.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    numbers: HashMap<Box<[usize]>, u32>,
    /// Blocks and the numbers of their stacks.
    of_blocks: Vec<(BlockIndex, u32)>,
}

/// The addresses of the calling thread's stack, the innermost first.
pub(super) fn capture() -> Box<[usize]> {
    let mut addresses = Vec::with_capacity(MOST_ADDRESSES);
    backtrace::trace(|frame| {
        addresses.push(frame.ip() as usize);
        addresses.len() < MOST_ADDRESSES
    });
    addresses.into_boxed_slice()
}

impl Stacks {
    /// Notes the stack of a block.
    pub(super) fn note(&mut self, block: BlockIndex, stack: Box<[usize]>) {
        let next = self.numbers.len();
        if next >= MOST_STACKS && !self.numbers.contains_key(&stack) {
            return;
        }
        let next = u32::try_from(next).unwrap_or(u32::MAX);
        self.of_blocks.push((block, *self.numbers.entry(stack).or_insert(next)));
    }

    /// Resolves the stacks and labels the blocks with them.
    pub(super) fn label(self, labels: &mut Labels) {
        let mut texts = vec![String::new(); self.numbers.len()];
        for (stack, number) in self.numbers {
            if let Some(text) = texts.get_mut(number as usize) {
                *text = resolved(&stack);
            }
        }
        for (block, number) in self.of_blocks {
            labels.set(block, texts.get(number as usize).map_or("", String::as_str));
        }
    }
}

/// A line for each frame: "function file:line", as far as that is known.
fn resolved(stack: &[usize]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for &address in stack {
        backtrace::resolve(address as *mut c_void, |symbol| {
            let name = symbol.name().map(|name| format!("{name:#}")).unwrap_or_default();
            let own = name.trim_start_matches('<');
            let is_own = lines.is_empty() && OWN.iter().any(|begin| own.starts_with(begin));
            if is_own || lines.len() >= MOST_FRAMES {
                return;
            }
            let place = symbol
                .filename()
                .map(|file| format!(" {}:{}", file.display(), symbol.lineno().unwrap_or(0)));
            lines.push(format!("{name}{}", place.unwrap_or_default()));
        });
    }
    lines.join("\n")
}
