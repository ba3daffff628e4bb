//! Call stacks of allocations: captured as addresses, resolved when the recording is finished.
//!
//! A program allocates from few places, so each stack is kept once. Capturing one takes some microseconds, resolving
//! one some milliseconds.

use core::ffi::c_void;
use std::collections::HashMap;
use std::path::Path;

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

/// The same by the file, where debug information names functions without their modules. Folders of crates are named
/// after them, and from a registry also after their version.
fn is_own_file(file: &Path) -> bool {
    let is_recorder = file.ends_with("src/record.rs") || file.ends_with("src/record/stacks.rs");
    let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
    let of_crate = parts.windows(2).filter(|pair| pair.get(1).is_some_and(|part| part == "src"));
    file.starts_with("/rustc")
        || of_crate.filter_map(|pair| pair.first()).any(|folder| {
            let version = folder.rfind('-').filter(|&dash| {
                folder
                    .get(dash + 1..)
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            });
            match folder.get(..version.unwrap_or(folder.len())) {
                Some("forebay" | "forebay-capi" | "forebay-py" | "backtrace") => true,
                Some("forebay-trace") => is_recorder,
                _ => false,
            }
        })
}

/// A line for each frame: "function file:line", as far as that is known.
fn resolved(stack: &[usize]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for &address in stack {
        backtrace::resolve(address as *mut c_void, |symbol| {
            let name = symbol.name().map(|name| format!("{name:#}")).unwrap_or_default();
            let own = name.trim_start_matches('<');
            let is_own = OWN.iter().any(|begin| own.starts_with(begin))
                || symbol.filename().is_some_and(is_own_file);
            if lines.is_empty() && is_own || lines.len() >= MOST_FRAMES {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_library_are_told_from_the_programs() {
        for own in [
            "/home/a/.cargo/registry/src/index-1/backtrace-0.3.77/src/backtrace/mod.rs",
            "/home/a/.cargo/registry/src/index-1/forebay-0.1.0/src/pool/api.rs",
            "/rustc/59807616/library/core/src/ops/function.rs",
            "/home/a/forebay/crates/forebay/src/pool/api.rs",
            "crates/forebay-trace/src/record.rs",
        ] {
            assert!(is_own_file(Path::new(own)), "{own}");
        }
        for others in [
            "/home/a/.cargo/registry/src/index-1/burn-0.1.0/src/lib.rs",
            "/home/a/forebay/crates/forebay-trace/src/record/tests.rs",
            "/home/a/forebay-users/src/main.rs",
            "src/main.rs",
        ] {
            assert!(!is_own_file(Path::new(others)), "{others}");
        }
    }
}
