//! Allocations whose length is no constant. A length that comes from a caller, a file or another process goes through
//! `forebay::host_vec`, which returns an error if the host is out of memory; the standard library would end the process.
//! [`ALLOWED`] lists the others, with what bounds them.
//!
//! What is not seen: `collect`, `extend` and `push`, whose length is that of what they are given, and texts.

use std::path::{Component, Path};

/// The library and its faces. The command and the readers of recordings work within budgets of their own.
const CRATES: [&str; 12] = [
    "forebay",
    "forebay-capi",
    "forebay-core",
    "forebay-cuda",
    "forebay-cudarc",
    "forebay-hal",
    "forebay-hip",
    "forebay-host",
    "forebay-metal",
    "forebay-opencl",
    "forebay-py",
    "forebay-sync",
];

/// Calls that allocate as much as they are told, and whether the length is the first of several arguments (`Some(true)`),
/// the only one (`Some(false)`), or not an argument.
const CALLS: [(&str, Option<bool>); 8] = [
    ("vec![", Some(false)),
    ("with_capacity(", Some(false)),
    (".to_vec(", None),
    (".resize(", Some(true)),
    (".resize_with(", Some(true)),
    (".reserve(", Some(false)),
    (".reserve_exact(", Some(false)),
    (".repeat(", Some(false)),
];

/// Where a length is bounded: the file, a part of the line, and by what.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("forebay-core/src/magazine.rs", "tallies.resize", "size classes"),
    ("forebay-core/src/address_space/holes/group_bits.rs", "self.rest.resize", "groups of holes"),
    (
        "forebay-core/src/address_space/holes/groups.rs",
        "self.by_stream.resize_with",
        "stream slots",
    ),
    ("forebay-core/src/address_space/holes/lengths.rs", "grouped.resize_with", "groups of holes"),
    ("forebay-host/src/numa.rs", "c_ulong::BITS", "NUMA nodes"),
    ("forebay-host/src/system/mounts.rs", "text.len()", "a line of the system's list"),
    ("forebay-metal/src/device.rs", "MTLCopyAllDevices", "GPUs"),
    ("forebay-opencl/src/memory.rs", "self.context.reserve", "no vector: a count of bytes"),
    ("forebay-capi/src/buffer/mod.rs", ".resize(size", "no vector: a buffer"),
    ("forebay-capi/src/torch/layout.rs", "layout.spans.len()", "segments of a pool"),
    ("forebay-capi/src/torch/sharing.rs", "parts.len()", "pages of a block"),
    ("forebay-py/src/trace.rs", "Policy::ALL", "policies"),
    ("forebay-py/src/unified_methods.rs", ".resize(size", "no vector: a buffer"),
    ("forebay/src/adaptor/limit.rs", "self.reserve(request.size())", "no vector: a count of bytes"),
    ("forebay/src/named/buffer.rs", "FILL", "a constant"),
    ("forebay/src/named/mapping.rs", "chunk.to_vec()", "a chunk"),
    ("forebay/src/objects/array.rs", "array.resize(len", "reserved fallibly before"),
    ("forebay/src/objects/cache.rs", "self.objects.reserve", "READY"),
    ("forebay/src/objects/idle.rs", "cache.reserve(more)", "no vector: see cache.rs"),
    ("forebay/src/buffer/device_buffer.rs", "vec![", "a chunk"),
    ("forebay/src/pool/debug/probe.rs", "vec![0; size]", "a chunk"),
    ("forebay/src/pool/common/backing_kind.rs", "peers.to_vec()", "devices"),
    ("forebay/src/handle/array.rs", "as_slice().to_vec()", "fallible: of a device array"),
    ("forebay/src/handle/slice.rs", "stage_length::<T>()", "a staging buffer"),
    ("forebay/src/transfer/between.rs", "half.min(size)", "a staging buffer"),
    ("forebay/src/transfer/calibration.rs", "size(large)", "a constant"),
    ("forebay/src/transfer/decode.rs", "statuses.to_vec()", "fallible: of a device array"),
];

/// The lines of a source that allocate a length which is neither constant nor allowed. `file` is the path below the folder
/// of all crates. `used` gets the allowed ones.
pub(crate) fn unbounded(file: &Path, text: &str, used: &mut Vec<usize>) -> Vec<usize> {
    let name = file.to_string_lossy().replace('\\', "/");
    if !is_checked(file) || name == "forebay/src/host_vec.rs" {
        return Vec::new();
    }
    let text = code(text);
    let mut found = Vec::new();
    for (call, length) in CALLS {
        for (at, _) in text.match_indices(call) {
            let (before, rest) = text.split_at(at);
            let separator = if call == "vec![" { ';' } else { ',' };
            let arguments = arguments(&rest[call.len()..], separator);
            if before.ends_with("host_vec::") || !allocates(call, length, &arguments) {
                continue;
            }
            let start = before.rfind('\n').map_or(0, |line| line + 1);
            let line = text[start..].lines().next().unwrap_or_default();
            let allowed =
                ALLOWED.iter().position(|(of, part, _)| *of == name && line.contains(part));
            match allowed {
                Some(allowed) => used.push(allowed),
                None => found.push(before.lines().count().max(1)),
            }
        }
    }
    found.sort_unstable();
    found
}

/// What [`ALLOWED`] allows and no source has.
pub(crate) fn stale(used: &[usize]) -> impl Iterator<Item = (&'static str, &'static str)> {
    let unused = ALLOWED.iter().enumerate().filter(|(index, _)| !used.contains(index));
    unused.map(|(_, (file, part, _))| (*file, *part))
}

fn is_checked(file: &Path) -> bool {
    let mut parts = file.components().filter_map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    let is_ours = parts.next().is_some_and(|first| CRATES.contains(&first));
    let skipped = ["tests", "tests.rs", "conformance", "conformance.rs"];
    is_ours && parts.next() == Some("src") && parts.all(|part| !skipped.contains(&part))
}

/// The source without its comments and without the tests at its end, line by line.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests].lines();
    let lines = lines.map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The arguments of a call whose bracket is open, as far as it is closed again.
fn arguments(rest: &str, separator: char) -> Vec<String> {
    let (mut depth, mut arguments) = (0_u32, vec![String::new()]);
    for letter in rest.chars() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            _ if letter == separator && depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = arguments.last_mut() {
            last.push(letter);
        }
    }
    // After a last comma there is none.
    arguments.retain(|argument| !argument.trim().is_empty());
    arguments
}

fn allocates(call: &str, length: Option<bool>, arguments: &[String]) -> bool {
    let length = match length {
        None => return true,
        // A list has no semicolon.
        Some(_) if call == "vec![" => arguments.get(1),
        Some(true) => arguments.first().filter(|_| arguments.len() > 1),
        Some(false) => arguments.first().filter(|_| arguments.len() == 1),
    };
    length.is_some_and(|length| !is_constant(length))
}

/// Whether an expression has numbers, constants and types alone.
fn is_constant(expression: &str) -> bool {
    let words = expression.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let mut words = words.filter(|word| !word.is_empty());
    words.all(|word| {
        word.starts_with(|first: char| first.is_ascii_digit())
            || !word.contains(|letter: char| letter.is_lowercase())
            || ["as", "usize", "u64", "u32", "size_of"].contains(&word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(file: &str, text: &str) -> Vec<usize> {
        unbounded(Path::new(file), text, &mut Vec::new())
    }

    #[test]
    fn a_length_that_is_no_constant_is_found() {
        for code in [
            "let bytes = vec![0; length];",
            "let bytes = vec![\n    [0; 4];\n    from.len()\n];",
            "let bytes = Vec::with_capacity(count);",
            "let bytes = String::with_capacity(\n    count,\n);",
            "let bytes = from.to_vec();",
            "bytes.resize(count, 0);",
            "bytes.resize_with(count, Vec::new);",
            "bytes.reserve(count * 2);",
            "bytes.reserve_exact(count);",
            "let text = \"x\".repeat(count);",
        ] {
            let text = format!("// vec![0; n]\n{code}\n#[cfg(test)]\nmod tests {{ vec![0; n]; }}");
            assert_eq!(lines("forebay/src/any.rs", &text).len(), 1, "{code}");
        }
        assert_eq!(lines("forebay-capi/src/any/deep.rs", "\n\nlet a = vec![0; n];"), [3]);
    }

    #[test]
    fn constants_lists_and_host_vec_are_left_alone() {
        for code in [
            "let bytes = vec![0; 16];",
            "let bytes = vec![[0; 4]; 2 * MAX as usize];",
            "let bytes = vec![one, two];",
            "let bytes = vec![one];",
            "let bytes = Vec::with_capacity(1 + MAX_FRAMES);",
            "let bytes = host_vec::with_capacity(count, call)?;",
            "memory.reserve(size, alignment)?;",
            "buffer.resize(size)?;",
        ] {
            assert_eq!(lines("forebay/src/any.rs", code), [0; 0], "{code}");
        }
        for file in [
            "forebay/src/pool/tests/any.rs",
            "forebay/tests/any.rs",
            "forebay/src/host_vec.rs",
            "forebay-cli/src/any.rs",
            "forebay-hal/src/conformance/cases/any.rs",
        ] {
            assert_eq!(lines(file, "let bytes = vec![0; length];"), [0; 0], "{file}");
        }
    }

    #[test]
    fn what_is_allowed_is_allowed_in_its_file_and_must_be_there() {
        let (file, code) = ("forebay/src/pool/debug/probe.rs", "buffer = vec![0; size].into();");
        let mut used = Vec::new();
        assert_eq!(unbounded(Path::new(file), code, &mut used), [0; 0]);
        assert_eq!(used.len(), 1);
        assert_eq!(lines("forebay/src/any.rs", code), [1]);
        assert_eq!(stale(&used).count(), ALLOWED.len() - 1);
        assert!(stale(&used).all(|(unused, _)| unused != file));
    }
}
