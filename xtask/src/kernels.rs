//! The kernels: PTX written by clang from their sources, committed, and held against them.
//!
//! The library needs neither clang nor CUDA's toolkit: the driver compiles the text for its device. Architecture and
//! version of the text are old ones, so that every driver that `forebay-cuda` works with takes it.

use std::process::Command;

use crate::files;
use crate::workplace::Workplace;

/// Where the sources and their texts are, from the root of the repository.
const FOLDER: &str = "crates/forebay-cuda/kernels";

/// The kernels: each is `NAME.c`, and its text `NAME.ptx`.
const NAMES: [&str; 2] = ["copy", "lz4"];

/// What clang is told. 7.0 is the first architecture whose lanes are synchronised by name, and PTX 6.3 came with CUDA 10.
const WORDS: &str = "-x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib \
                     -Xclang -target-feature -Xclang +ptx63 -O3 -S -o -";

/// Writes the texts anew with the clang that `CLANG` names, or "clang".
pub(crate) fn write(place: &Workplace) -> Result<String, String> {
    let built: Result<Vec<_>, _> = NAMES.iter().map(|name| build(place, name)).collect();
    built.map(|notes| notes.join("\n"))
}

/// The paths of a kernel's source and text.
fn paths(name: &str) -> (String, String) {
    (format!("{FOLDER}/{name}.c"), format!("{FOLDER}/{name}.ptx"))
}

fn build(place: &Workplace, name: &str) -> Result<String, String> {
    let (path, to) = paths(name);
    let source = files::read(&place.root().join(&path))?;
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let mut command = Command::new(&clang);
    command.current_dir(place.root()).args(WORDS.split_whitespace()).arg(&path);
    let output = command.output().map_err(|error| format!("{clang} does not run: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let text: String = text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    let text = format!("// By \"cargo xtask kernels\" from {name}.c.\n{}\n{text}", stamp(&source));
    files::write(&place.root().join(&to), &text)?;
    Ok(format!("{to}: {} lines", text.lines().count()))
}

/// The line that tells which source a text is of, by its FNV-1a hash.
fn stamp(source: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("// Source: {:016x}", source.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_of_the_sources() {
        let place = Workplace::here();
        for (path, to) in NAMES.map(paths) {
            let [source, text] =
                [&path, &to].map(|path| files::read(&place.root().join(path)).unwrap());
            assert_eq!(
                text.lines().nth(1),
                Some(&*stamp(&source)),
                "{to} is of another {path}; \"cargo xtask kernels\" writes it anew"
            );
        }
    }
}
