//! How far a replay is, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Runs with fewer operations are over before a bar could be read.
const WORTH_SHOWING: u64 = 1 << 20;

/// A bar on standard error; nothing where that is no terminal, or the run is short.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for so many operations.
    pub(super) fn of(trace: &str, operations: u64) -> Self {
        let target = if operations < WORTH_SHOWING {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(operations), target);
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {percent:>3}% {msg:17}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(trace.to_owned());
        Self { bar }
    }

    /// The policy being played.
    pub(super) fn policy(&self, name: &'static str) {
        self.bar.set_message(name);
    }

    /// So many operations more.
    pub(super) fn advance(&self, operations: u64) {
        self.bar.inc(operations);
    }

    /// Lets `say` write to the terminal without the bar in between.
    pub(super) fn aside(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
