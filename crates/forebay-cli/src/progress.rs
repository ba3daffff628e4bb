//! Progress bars of long commands, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::clean;

/// A bar on standard error; nothing where that is no terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for so many steps of `what`.
    pub(crate) fn of(what: &str, steps: u64) -> Self {
        let target = ProgressDrawTarget::stderr();
        let bar = ProgressBar::with_draw_target(Some(steps), target).with_prefix(clean(what));
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {percent:>3}% {msg:17}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Nothing to see: what is over before a bar could be read.
    pub(crate) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// What is being done.
    pub(crate) fn doing(&self, name: &'static str) {
        self.bar.set_message(name);
    }

    /// So many steps more.
    pub(crate) fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Lets `say` write to the terminal without the bar in between.
    pub(crate) fn aside<T>(&self, say: impl FnOnce() -> T) -> T {
        self.bar.suspend(say)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
