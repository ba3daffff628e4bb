//! The C header: written from the sources of `forebay-capi`, committed, and held against them.

use clap::Args;

use crate::files;
use crate::workplace::Workplace;

/// The crate that C calls, and its header, from the root of the repository.
const CRATE: &str = "crates/forebay-capi";
const HEADER: &str = "crates/forebay-capi/include/forebay.h";

/// What to do with the header.
#[derive(Clone, Debug, Args)]
pub(crate) struct Header {
    /// Write nothing; fail where the header is not what the sources say.
    #[arg(long)]
    check: bool,
}

impl Header {
    /// Writes it, or looks at it. What there is to say of it when it is what the sources say.
    pub(crate) fn run(&self, place: &Workplace) -> Result<String, String> {
        if self.check {
            return check(place);
        }
        let text = generated(place)?;
        files::write(&place.root().join(HEADER), &text)?;
        Ok(format!("{HEADER}: {} functions", functions(&text)))
    }
}

/// Holds the header against the sources; gives what there is to say of it.
pub(crate) fn check(place: &Workplace) -> Result<String, String> {
    let wanted = generated(place)?;
    let found = files::read(&place.root().join(HEADER))?;
    match difference(&wanted, &found) {
        None => Ok(format!("{} functions", functions(&wanted))),
        Some((line, want, have)) => Err(format!(
            "{HEADER} is not what the sources say: line {line} is\n  {have}\nand would be\n  {want}\n\
             \"cargo xtask header\" writes it anew"
        )),
    }
}

/// The header as the sources say.
fn generated(place: &Workplace) -> Result<String, String> {
    let folder = place.root().join(CRATE);
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    let bindings = cbindgen::Builder::new()
        .with_crate(&folder)
        .with_config(config)
        .generate()
        .map_err(|error| format!("no header could be made of {CRATE}: {error}"))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    // What rustdoc wants as a heading is a sentence in a comment; and empty lines of comments end in a
    // space.
    let text = text.replace("# Safety", "The caller promises:");
    Ok(text.lines().map(str::trim_end).fold(String::new(), |sum, line| sum + line + "\n"))
}

/// How many functions a header has.
fn functions(header: &str) -> usize {
    let starts = |line: &&str| !line.starts_with([' ', '*', '/', '#']) && line.contains("forebay_");
    let calls = header.lines().filter(starts);
    calls.filter(|line| line.contains('(') && !line.starts_with("static")).count()
}

/// The first line in which two texts differ: its number, the one's and the other's.
fn difference<'a>(wanted: &'a str, found: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let ended = || std::iter::repeat("(its end)");
    let lines = wanted.lines().chain(ended()).zip(found.lines().chain(ended())).zip(1..);
    let count = wanted.lines().count().max(found.lines().count());
    let mut lines = lines.take(count).map(|((want, have), number)| (number, want, have));
    lines.find(|(_, want, have)| want != have)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(difference("a\nb\nc\n", "a\nx\nc\n"), Some((2, "b", "x")));
        assert_eq!(difference("a\nb\n", "a\n"), Some((2, "b", "(its end)")));
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    }

    #[test]
    fn functions_are_counted_and_nothing_else() {
        let header = "/* forebay_a( */\n#define forebay_b(x)\nenum forebay_status forebay_c(int x);\n\
                      const char *forebay_d(void);\nstatic inline int forebay_e(void) {\n    forebay_f();\n";
        assert_eq!(functions(header), 2);
    }
}
