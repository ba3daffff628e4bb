//! Everything a person sees goes through here.
//!
//! On a terminal, a line at the bottom for each command says what runs and for how long. Elsewhere there are only whole
//! lines, one now and then while something takes long. Colours appear on a terminal alone, and not where `NO_COLOR` is set.
//!
//! Steps that run side by side share one screen: each call writes its text whole.

use std::fmt;
#[cfg(not(test))]
use std::io::Write;
use std::io::{self, IsTerminal};
#[cfg(test)]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// What went well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What went wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// What was left out.
pub(crate) const LEFT_OUT: Style = AnsiColor::Yellow.on_default();
/// What matters less.
pub(crate) const QUIET: Style = Style::new().dimmed();

/// How long a file or a pipe is left without a line: shorter than the patience of a person who
/// wonders whether it hangs, and of services that end what says nothing.
const BEAT: Duration = Duration::from_secs(30);

/// Where the words go.
pub(crate) struct Screen {
    bars: MultiProgress,
    is_terminal: bool,
    /// What a test reads instead of a person.
    #[cfg(test)]
    written: Mutex<String>,
}

impl Screen {
    /// The program's standard output.
    pub(crate) fn stdout() -> Self {
        Self {
            bars: MultiProgress::new(),
            is_terminal: io::stdout().is_terminal() && io::stderr().is_terminal(),
            #[cfg(test)]
            written: Mutex::default(),
        }
    }

    /// Writes a line, or several that stay together. It may hold styles; they are taken out where they would
    /// not be shown.
    pub(crate) fn line(&self, text: impl fmt::Display) {
        let text = format!("{text}\n");
        #[cfg(test)]
        {
            let plain = anstream::adapter::strip_str(&text).to_string();
            self.written.lock().unwrap_or_else(PoisonError::into_inner).push_str(&plain);
        }
        // Whoever closed the pipe does not want to know.
        #[cfg(not(test))]
        let _ = self.bars.suspend(|| anstream::stdout().write_all(text.as_bytes()));
    }

    /// What was written, without styles.
    #[cfg(test)]
    pub(crate) fn written(&self) -> String {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins to show a command of the step `name`. `what` is a line of its own where lines stay; nothing is none.
    pub(crate) fn begin(&self, name: &'static str, what: impl fmt::Display) -> Live<'_> {
        let what = what.to_string();
        if !self.is_terminal && !what.is_empty() {
            self.line(format_args!("{name}: {what}"));
        }
        let style = ProgressStyle::with_template("{prefix} {elapsed}  {wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::no_length().with_style(style).with_prefix(name);
        let bar = if self.is_terminal { self.bars.add(bar) } else { ProgressBar::hidden() };
        Live { screen: self, name, bar, last_beat: Duration::ZERO }
    }
}

/// A command that runs, on the screen until this is dropped.
pub(crate) struct Live<'a> {
    screen: &'a Screen,
    name: &'static str,
    bar: ProgressBar,
    last_beat: Duration,
}

impl Live<'_> {
    /// Says how far the command is; where lines stay, only if its last is some time ago.
    pub(crate) fn show(&mut self, elapsed: Duration, detail: &str) {
        if self.screen.is_terminal {
            self.bar.set_message(detail.replace(char::is_control, " "));
            self.bar.tick();
        } else if elapsed.saturating_sub(self.last_beat) >= BEAT {
            self.last_beat = elapsed;
            let comma = if detail.is_empty() { "" } else { ", " };
            self.screen.line(format_args!("{}: {} s{comma}{detail}", self.name, elapsed.as_secs()));
        }
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `text` in `style`.
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_hears_now_and_then_of_what_takes_long() {
        let screen = Screen { is_terminal: false, ..Screen::stdout() };
        let mut live = screen.begin("tests", "cargo test");
        for second in 0..=70 {
            live.show(Duration::from_secs(second), "12 of 300 tests");
        }
        drop(live);
        screen.begin("miri", "").show(Duration::from_secs(35), "");
        let text = "tests: cargo test\ntests: 30 s, 12 of 300 tests\ntests: 60 s, 12 of 300 tests\nmiri: 35 s\n";
        assert_eq!(screen.written(), text);
    }
}
