//! Everything a person sees goes through here.
//!
//! On a terminal, one line at the bottom says what runs and for how long, and is replaced by what
//! came of it. Elsewhere there are only whole lines, one now and then while something takes long. Colours
//! appear on a terminal alone, and not where `NO_COLOR` is set.
//!
//! Steps that run side by side share one screen: each call writes its text whole, under a lock.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anstyle::{AnsiColor, Style};

/// What went well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What went wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// What was left out.
pub(crate) const LEFT_OUT: Style = AnsiColor::Yellow.on_default();
/// What matters less.
pub(crate) const QUIET: Style = Style::new().dimmed();

/// The longest live line: on a narrower terminal it would wrap, and could not be replaced.
const LIVE_WIDTH: usize = 78;

/// What stands between the parts of a live line.
const GAP: &str = "  ";

/// How long a file or a pipe is left without a line: shorter than the patience of a person who
/// wonders whether it hangs, and of services that end what says nothing.
const BEAT: Duration = Duration::from_secs(30);

/// Where the words go.
pub(crate) struct Screen {
    state: Mutex<State>,
}

struct State {
    out: Out,
    kind: Kind,
    /// How many characters of a live line stand there, to be wiped.
    standing: usize,
    /// The commands that run, in the order in which they began.
    running: Vec<Running>,
}

/// A command that runs.
struct Running {
    name: String,
    /// What its part of the live line says.
    live: String,
    /// How long it had run when a line last said so.
    last_beat: Duration,
}

/// What takes the words.
enum Out {
    /// The program's output, which takes styles out where they would not be shown.
    Stdout(anstream::AutoStream<io::Stdout>),
    /// Nothing a person sees: a test reads it.
    #[cfg(test)]
    Paper(Vec<u8>),
}

impl Out {
    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Whoever closed the pipe does not want to know.
        let _ = match self {
            Self::Stdout(out) => out.write_fmt(text).and_then(|()| out.flush()),
            #[cfg(test)]
            Self::Paper(paper) => paper.write_fmt(text),
        };
    }
}

/// What shows the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A terminal: the line at the bottom can be replaced.
    Terminal,
    /// A file or a pipe: lines stay.
    Lines,
}

impl Screen {
    /// The program's standard output.
    pub(crate) fn stdout() -> Self {
        let kind = if io::stdout().is_terminal() { Kind::Terminal } else { Kind::Lines };
        Self::new(Out::Stdout(anstream::stdout()), kind)
    }

    /// No screen at all; what was written can be [read](Self::written).
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self::new(Out::Paper(Vec::new()), Kind::Lines)
    }

    fn new(out: Out, kind: Kind) -> Self {
        Self { state: Mutex::new(State { out, kind, standing: 0, running: Vec::new() }) }
    }

    /// What was written [nowhere](Self::nowhere), without styles.
    #[cfg(test)]
    pub(crate) fn written(&self) -> String {
        match &self.state().out {
            Out::Paper(paper) => {
                anstream::adapter::strip_str(&String::from_utf8_lossy(paper)).to_string()
            }
            Out::Stdout(_) => String::new(),
        }
    }

    /// Writes a line, or several that stay together. It may hold styles; they are taken out where they would
    /// not be shown.
    pub(crate) fn line(&self, text: impl fmt::Display) {
        self.state().line(text);
    }

    /// Says that a command begins: as a line of its own where lines stay.
    pub(crate) fn begin(&self, name: &str, what: impl fmt::Display) {
        let mut state = self.state();
        if state.kind == Kind::Lines {
            state.line(format_args!("{name}: {what}"));
        }
    }

    /// Replaces the line at the bottom, on a terminal. It has a part for each command that runs.
    pub(crate) fn live(&self, name: &str, elapsed: Duration, detail: &str) {
        let mut state = self.state();
        if state.kind == Kind::Lines {
            return;
        }
        let whole = format!("{name} {} s  {detail}", elapsed.as_secs());
        state.running(name).live = whole.chars().filter(|letter| !letter.is_control()).collect();
        let share = (LIVE_WIDTH + GAP.len()) / state.running.len().max(1);
        let cut = |running: &Running| -> String {
            running.live.chars().take(share.saturating_sub(GAP.len())).collect()
        };
        let text = state.running.iter().map(cut).collect::<Vec<_>>().join(GAP);
        let length = text.chars().count();
        let rest = state.standing.saturating_sub(length);
        state.out.write(format_args!("\r{text}{:rest$}", ""));
        state.standing = length;
    }

    /// Says that a command is still at it, where lines stay and its last is some time ago.
    pub(crate) fn beat(&self, name: &str, elapsed: Duration, progress: &str) {
        let mut state = self.state();
        let kind = state.kind;
        let running = state.running(name);
        // A clock that went back is that of the next command.
        running.last_beat = running.last_beat.min(elapsed);
        if kind != Kind::Lines || elapsed - running.last_beat < BEAT {
            return;
        }
        running.last_beat = elapsed;
        let comma = if progress.is_empty() { "" } else { ", " };
        state.line(format_args!("{name}: {} s{comma}{progress}", elapsed.as_secs()));
    }

    /// Forgets a command that has ended: it has no part of the live line any more.
    pub(crate) fn end(&self, name: &str) {
        self.state().running.retain(|running| running.name != name);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panics with the screen in hand leaves no half-written state that matters.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, text: impl fmt::Display) {
        self.wipe();
        self.out.write(format_args!("{text}\n"));
    }

    fn running(&mut self, name: &str) -> &mut Running {
        let known = self.running.iter().position(|running| running.name == name);
        let index = known.unwrap_or_else(|| {
            let (name, live) = (name.to_owned(), String::new());
            self.running.push(Running { name, live, last_beat: Duration::ZERO });
            self.running.len() - 1
        });
        &mut self.running[index]
    }

    fn wipe(&mut self) {
        if self.standing > 0 {
            self.out.write(format_args!("\r{:1$}\r", "", self.standing));
            self.standing = 0;
        }
    }
}

/// `text` in `style`.
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: Kind, act: impl FnOnce(&Screen)) -> String {
        let screen = Screen::new(Out::Paper(Vec::new()), kind);
        act(&screen);
        screen.written()
    }

    #[test]
    fn a_file_gets_whole_lines_only() {
        let text = shown(Kind::Lines, |screen| {
            screen.begin("clippy", "cargo clippy");
            screen.live("clippy", Duration::from_secs(3), "Compiling");
            screen.line("clippy passed");
        });
        assert_eq!(text, "clippy: cargo clippy\nclippy passed\n");
    }

    #[test]
    fn a_file_hears_now_and_then_of_what_takes_long() {
        let act = |screen: &Screen| {
            for second in 0..=70 {
                screen.beat("tests", Duration::from_secs(second), "12 of 300 tests");
            }
            // The next command begins at nothing.
            for second in 0..=35 {
                screen.beat("miri", Duration::from_secs(second), "");
            }
        };
        let text = "tests: 30 s, 12 of 300 tests\ntests: 60 s, 12 of 300 tests\nmiri: 30 s\n";
        assert_eq!(shown(Kind::Lines, act), text);
        assert_eq!(shown(Kind::Terminal, act), "", "a terminal has its live line");
    }

    #[test]
    fn a_terminal_keeps_nothing_of_a_live_line() {
        let text = shown(Kind::Terminal, |screen| {
            screen.begin("clippy", "cargo clippy");
            screen.live("clippy", Duration::from_secs(3), "Compiling a\tb");
            screen.live("clippy", Duration::from_secs(4), "b");
            screen.line("done");
        });
        assert_eq!(
            text,
            "\rclippy 3 s  Compiling ab\rclippy 4 s  b           \r             \rdone\n"
        );
    }

    #[test]
    fn a_live_line_never_wraps() {
        let long = "é".repeat(500);
        let text = shown(Kind::Terminal, |screen| screen.live("tests", Duration::ZERO, &long));
        assert_eq!(text.chars().count(), 1 + LIVE_WIDTH);
        let text = shown(Kind::Terminal, |screen| {
            screen.live("miri", Duration::ZERO, &long);
            screen.live("tests", Duration::ZERO, &long);
        });
        let last = text.rsplit('\r').next().unwrap_or_default();
        assert!(last.starts_with("miri 0 s  é") && last.contains("  tests 0 s  é"), "{last}");
        assert_eq!(last.chars().count(), LIVE_WIDTH);
    }

    #[test]
    fn what_has_ended_leaves_the_live_line() {
        let text = shown(Kind::Terminal, |screen| {
            screen.live("miri", Duration::ZERO, "");
            screen.live("tests", Duration::ZERO, "");
            screen.end("miri");
            screen.live("tests", Duration::ZERO, "");
        });
        assert!(text.ends_with(&format!("\rtests 0 s  {}", " ".repeat(12))), "{text:?}");
    }
}
